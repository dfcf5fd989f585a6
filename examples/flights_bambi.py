"""The flights again, as a formula: Bambi writes the PyMC model, a few rows at a time sample it.

pip install '.[bambi]'
python examples/flights_bambi.py
"""

import argparse
from pathlib import Path

import bambi as bmb
import numpy as np
import pandas as pd

import pymc_subsample as pms

DATA = Path(__file__).parent / "data" / "flights.npz"


def load_frame(rows=None, seed=0):
    """Flights as a data frame: all of them, or some drawn at random."""
    with np.load(DATA) as table:
        frame = pd.DataFrame(
            {
                "late": (table["arrival_delay"] > 15).astype(int),
                "hour": table["hour"].astype(float),
                "distance": table["distance"].astype(float),  # miles
                "wind": table["wind"].astype(float),  # knots
                "carrier": table["carrier_names"][table["carrier"]],
            }
        )
    return frame if rows is None else frame.sample(rows, random_state=seed)


def main(argv=None):
    """Sample the model and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="flights to use (default: all)")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2013)
    options = parser.parse_args(argv)

    model = bmb.Model(
        "late ~ hour + distance + wind + (1 | carrier)",
        load_frame(options.rows),
        family="bernoulli",
    )
    with pms.subsampling():
        idata = model.fit(
            draws=options.draws,
            tune=options.tune,
            chains=options.chains,
            random_seed=options.seed,
        )

    import arviz as az

    print(az.summary(idata).to_string())
    print(pms.report(idata))
    return idata


if __name__ == "__main__":
    main()
