"""Which airline leaves you waiting? Logistic regression on 327,346 flights out of New York.

    python examples/flights.py

An ordinary PyMC model, sampled with a few rows of its data at a time: only `step=` is special.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_subsample as pms

DATA = Path(__file__).parent / "data" / "flights.npz"
WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def load_data(rows=None, seed=0):
    """Columns of the flights table: all rows, or some of them drawn at random."""
    with np.load(DATA) as table:
        data = {name: table[name] for name in table.files}
    n_rows = len(data["arrival_delay"])
    if rows is not None and rows < n_rows:
        chosen = np.sort(np.random.default_rng(seed).choice(n_rows, rows, replace=False))
        data = {
            name: values[chosen] if len(values) == n_rows else values
            for name, values in data.items()
        }
    return data


def build_model(data):
    """Chance of arriving more than 15 minutes late, given what is known before departure."""
    columns = {
        "log distance": np.log(data["distance"]),
        "visibility": data["visibility"],
        "wind": data["wind"],
        "log rain": np.log1p(data["rain"]),
    }
    design = np.column_stack(list(columns.values())).astype(float)
    design = (design - design.mean(axis=0)) / design.std(axis=0)
    first_hour = data["hour"].min()
    coords = {
        "predictor": list(columns),
        "hour": np.arange(first_hour, data["hour"].max() + 1),
        "month": MONTHS,
        "weekday": WEEKDAYS,
        "origin": data["origin_names"],
        "carrier": data["carrier_names"],
    }
    with pm.Model(coords=coords) as model:
        X = pm.Data("X", design, dims=("flight", "predictor"))
        hour_code = pm.Data("hour_code", data["hour"] - first_hour, dims="flight")
        month_code = pm.Data("month_code", data["month"] - 1, dims="flight")
        weekday_code = pm.Data("weekday_code", data["weekday"], dims="flight")
        origin_code = pm.Data("origin_code", data["origin"], dims="flight")
        carrier_code = pm.Data("carrier_code", data["carrier"], dims="flight")

        beta = pm.Normal("beta", sigma=1, dims="predictor")
        hour = pm.ZeroSumNormal("hour_effect", sigma=1, dims="hour")
        month = pm.ZeroSumNormal("month_effect", sigma=1, dims="month")
        weekday = pm.ZeroSumNormal("weekday_effect", sigma=1, dims="weekday")
        origin = pm.ZeroSumNormal("origin_effect", sigma=1, dims="origin")

        # Each airline has its own intercept, and the airlines resemble each other.
        mean = pm.Normal("carrier_mean", mu=-1, sigma=1)
        sd = pm.HalfNormal("carrier_sd", sigma=1)
        carrier = pm.Normal("carrier_intercept", mu=mean, sigma=sd, dims="carrier")
        pm.Deterministic("chance_late", pm.math.invlogit(carrier), dims="carrier")

        logit = (
            carrier[carrier_code]
            + hour[hour_code]
            + month[month_code]
            + weekday[weekday_code]
            + origin[origin_code]
            + X @ beta
        )
        late = (data["arrival_delay"] > 15).astype("int8")
        pm.Bernoulli("late", logit_p=logit, observed=late, dims="flight")
    return model


def print_cost(idata, n_rows, seconds):
    """Print what the draws cost, beside HMC on all rows with as many steps."""
    stats = idata["sample_stats"]
    evaluations = float(stats["n_evaluations"].mean())
    # A gradient counts as one evaluation more than the log-likelihood it comes with.
    full_evaluations = 2 * n_rows * float(stats["n_steps"].mean())
    ratio = full_evaluations / max(evaluations, 1)
    print(f"A draw evaluated {evaluations:,.0f} rows; HMC on all rows: {ratio:,.0f} times as many")
    print(f"Wall time, set-up and compilation included: {seconds:.0f} s")


def plot_carriers(idata, path):
    """Draw each airline's chance of being late, most punctual airline on top."""
    import matplotlib.pyplot as plt

    chance = idata["posterior"]["chance_late"].stack(draws=("chain", "draw"))
    chance = 100 * chance.sortby(-chance.mean("draws"))
    fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for share, width in [(0.89, 1.5), (0.5, 4)]:
        low, high = chance.quantile([(1 - share) / 2, (1 + share) / 2], "draws").values
        ax.hlines(chance["carrier"], low, high, "C0", lw=width, label=f"{share:.0%} interval")
    ax.plot(chance.mean("draws"), chance["carrier"], "o", color="white", mec="C0", label="mean")
    ax.set(title="Which airline is late?", xlabel="chance of arriving over 15 minutes late, %")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    print(f"Picture: {path}")


def main(argv=None):
    """Sample the model and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="flights to use (default: all)")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2013)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    options = parser.parse_args(argv)

    data = load_data(options.rows)
    model = build_model(data)
    start = time.perf_counter()
    with model:
        idata = pm.sample(
            draws=options.draws,
            tune=options.tune,
            chains=options.chains,
            random_seed=options.seed,
            step=pms.auto(),
        )
    seconds = time.perf_counter() - start

    import arviz as az  # only now: it takes a second, and sampling does without

    print(az.summary(idata).to_string())
    print(pms.report(idata))
    print_cost(idata, len(data["arrival_delay"]), seconds)
    plot_carriers(idata, options.output / "flights.png")
    return idata


if __name__ == "__main__":
    main()
