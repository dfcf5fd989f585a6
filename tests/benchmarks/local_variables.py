"""Models with discrete or missing variables of units, as people write them, beside other ways.

python tests/benchmarks/local_variables.py                        # ten models of 2,000 units
python tests/benchmarks/local_variables.py --models occupancy --ways auto nutpie

Ways are `pms.auto()`, on the model as it is; nutpie on `pms.marginalize(model)`, and on what
`pymc_extras.marginalize` makes of it, if installed (else PyMC's NUTS, and nothing); and
`pm.sample()`, whose compound steps move discrete variables by Gibbs and Metropolis, on few units
(`--few`), beside `pms.auto()` on as many. Seconds are of processors, with set-up, compilation,
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
from local_variables import LOCAL_VARIABLES

WAYS = ("auto", "nutpie", "extras", "compound")


def auto(model, _, settings):
    return pm.sample(step=pms.auto(model=model), model=model, **settings)


def nuts(model, settings):
    sampler = {"nuts_sampler": "nutpie"} if find_spec("nutpie") else {}
    return pm.sample(model=model, target_accept=0.9, **sampler, **settings)


def marginal(model, _, settings):
    return nuts(pms.marginalize(model), settings)


def extras(model, local, settings):
    import pymc_extras

    return nuts(pymc_extras.marginalize(model, list(local)), settings)


def compound(model, _, settings):
    return pm.sample(model=model, **settings)


RUN = dict(zip(WAYS, (auto, marginal, extras, compound), strict=True))


def measured(name, way, units):
    """Return a run of a model in some way, or why there is none, and a line of the table."""
    make, local = LOCAL_VARIABLES[name]
    model = make(units, seed=1)
    settings = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1}
    settings |= {"draws": args.draws, "tune": args.tune, "compute_convergence_checks": False}
    shared = [v.name for v in model.free_RVs if v.name not in local]
    try:
        run, seconds = timed(lambda: RUN[way](model, local, settings))
    except Exception as error:  # of others; ours is a failed check
        said = str(error).strip() or repr(error)
        return None, shared, [name, way, units, "", "", "", said.splitlines()[0][:70]]
    ess = smallest_ess(run, shared)
    status = pms.report(run).status if way == "auto" else ""
    return run, shared, [name, way, units, seconds, ess, ess / seconds, status]


def compared(name, checks):
    """Yield lines of the table of a model."""
    ways = [w for w in WAYS if w in args.ways]
    for units in (args.units, args.few):
        own = [w for w in ways if (w == "compound") == (units == args.few)]
        if not own or (units == args.few and "compound" not in own):
            continue
        own = ["auto", *(w for w in own if w != "auto")]
        ours = None
        for way in own:
            run, shared, line = measured(name, way, units)
            if way == "auto":
                ours = run
                checks.at_most(f"{name}, {units} units: failed", float(run is None), 0)
            elif run is not None and ours is not None and line[4] >= 100:
                mean, sd = largest(ours, run, shared)
                line += [mean, sd]
                checks.at_most(f"{name}, {way}: means differ beyond noise by, in sds", mean, 0.1)
                checks.at_most(f"{name}, {way}: sds differ beyond noise by", sd, 0.05)
            print(*line, flush=True)
            yield line + [""] * (9 - len(line))


if __name__ == "__main__":
    parser = command_line(__doc__, units=2_000, few=300, draws=1_000, tune=1_000)
    parser.add_argument("--models", nargs="+", choices=LOCAL_VARIABLES, default=[*LOCAL_VARIABLES])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    checks = Checks()
    lines = [line for name in args.models for line in compared(name, checks)]
    print()
    table(["model", "way", "units", "CPU s", "smallest ESS", "ESS / s", "", "means", "sds"], lines)
    checks.exit()
