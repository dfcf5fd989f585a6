"""Models with an effect of each unit, as people write them, beside NUTS on all of their variables.

python tests/benchmarks/populations.py                       # nine models of 5,000 units
python tests/benchmarks/populations.py --models crossed      # some of them

nutpie if it is installed, else PyMC's NUTS. Seconds are of processors, with set-up, compilation,
tuning, local variables of all draws, and checks.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Processor seconds are of one core.

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from time import process_time

import numpy as np
import pymc as pm
from _measure import Checks, command_line, table
from arviz_stats.base import array_stats

import pymc_subsample as pms

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from populations import POPULATIONS

# Levels whose effects are compared.
LEVELS = 50
# Of differences between two runs, standard errors beyond which one is no noise: of a thousand
# comparisons, in every seventeenth table.
ERRORS = 4.0


def elements(run, name, most=None):
    """Draws of some elements of a variable, (elements, chain, draw)."""
    values = run.posterior[name].transpose("chain", "draw", ...).to_numpy()
    values = values.reshape(*values.shape[:2], -1)
    found = np.arange(values.shape[2])
    if most is not None and len(found) > most:
        found = np.random.default_rng(0).choice(found, most, replace=False)
    return [x for x in np.moveaxis(values[:, :, found], 2, 0) if np.ptp(x) > 0]


def beyond(one, other):
    """Return by how much means and sds differ beyond Monte Carlo error: in sds, and as shares."""
    sd = other.std()
    squares = [(x - x.mean()) ** 2 for x in (one, other)]
    ess = [float(array_stats.ess(x)) for x in (one, other)]
    of_squares = [float(array_stats.ess(x)) for x in squares]
    noise = np.hypot(*(x.std() / sd / np.sqrt(n) for x, n in zip((one, other), ess, strict=True)))
    mean = abs(one.mean() - other.mean()) / sd
    spread = np.hypot(*(
        x.std() / x.mean() / 2 / np.sqrt(n) for x, n in zip(squares, of_squares, strict=True)
    ))  # fmt: skip
    return max(mean - ERRORS * noise, 0.0), max(abs(one.std() / sd - 1) - ERRORS * spread, 0.0)


def smallest_ess(run, names):
    return min(float(array_stats.ess(x)) for name in names for x in elements(run, name))


def timed(sample):
    began = process_time()
    return sample(), process_time() - began


def compared(name):
    """Return a line of the table, and the largest differences of its model."""
    make, local = POPULATIONS[name]
    model = make(args.units, seed=1)
    settings = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1, "model": model}
    settings |= {"draws": args.draws, "tune": 1_000, "compute_convergence_checks": False}
    ours, seconds = timed(lambda: pm.sample(step=pms.HMCECS(model=model), **settings))
    sampler = {"nuts_sampler": "nutpie"} if find_spec("nutpie") else {}
    exact, all_seconds = timed(lambda: pm.sample(target_accept=0.9, **sampler, **settings))
    shared = [v.name for v in model.free_RVs if v.name not in local]
    differences = [
        [
            beyond(*pair)
            for name in names
            for pair in zip(*(elements(run, name, LEVELS) for run in (ours, exact)), strict=True)
        ]
        for names in (shared, local)
    ]
    of_shared, of_local = (np.max(d, axis=0) for d in differences)
    effective = [smallest_ess(run, shared) for run in (ours, exact)]
    status = pms.report(ours).status
    line = [name, seconds, effective[0], status, all_seconds, effective[1], *of_shared, *of_local]
    return line, (of_shared, of_local), effective[1]


if __name__ == "__main__":
    parser = command_line(__doc__, units=5_000, draws=1_500)
    parser.add_argument("--models", nargs="+", choices=POPULATIONS, default=list(POPULATIONS))
    args = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    checks, lines = Checks(), []
    for name in args.models:
        line, (of_shared, of_local), effective = compared(name)
        lines.append(line)
        print(*line, flush=True)
        if effective < 100:  # it has not converged: nothing to compare with
            continue
        for what, (mean, sd) in (("shared", of_shared), ("local", of_local)):
            checks.at_most(f"{name}, {what}: means differ beyond noise by, in sds", mean, 0.1)
            checks.at_most(f"{name}, {what}: sds differ beyond noise by", sd, 0.05)
    print()
    table(
        ["model", "CPU s", "smallest ESS", "", "NUTS, CPU s", "smallest ESS", "means", "sds",
         "of units: means", "sds"], lines,
    )  # fmt: skip
    checks.exit()
