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

import pymc as pm
from _beside import largest, smallest_ess, timed
from _measure import Checks, command_line, table

import pymc_subsample as pms

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from populations import POPULATIONS

# Levels whose effects are compared.
LEVELS = 50


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
    of_shared, of_local = (largest(ours, exact, names, LEVELS) for names in (shared, local))
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
