"""From a compiled transition to a draw of `pm.sample`: where the time of a draw goes.

python tests/benchmarks/per_draw.py                        # 10^6 rows of 30 columns
python tests/benchmarks/per_draw.py --n 20000 --draws 2000

Logistic regression, and a Poisson one of 25 groups, non-centred ("groups"); one chain in sequence,
no progress bar. Tuning and set-up are left out: of two
lengths of chain the difference counts, the median over rounds. The compiled transition is timed
inside the same runs. PyMC's own loop is that of a step which returns a draw and its statistics
that were made before. With two processes a draw is one of either chain.
"""

import logging
from contextlib import contextmanager
from time import perf_counter
from unittest.mock import patch

import numpy as np
import pymc as pm
from _measure import Checks, command_line, table
from _problems import logistic_model, logistic_rows
from _written import poisson_noncentred
from pymc.step_methods.compound import BlockedStep

import pymc_subsample as pms
from pymc_subsample.kernels import langevin
from pymc_subsample.steps import firefly, hmc_ecs, metropolis, scalable

STEPS = {
    "HMCECS": (pms.HMCECS, {}, (hmc_ecs, "transitions", True)),
    "HMCECS, nuts": (pms.HMCECS, {"kernel": "nuts"}, (hmc_ecs, "transitions", True)),
    "HMCECS, signs": (
        pms.HMCECS, {"estimator": "block-poisson"}, (hmc_ecs, "transitions", True),
    ),
    "ScalableMH": (pms.ScalableMH, {}, (scalable, "compiled", True)),
    "MinibatchBarkerMH": (pms.MinibatchBarkerMH, {}, (metropolis, "_transitions", False)),
    "SGLD": (pms.SGLD, {}, (langevin, "integrate", True)),
    "SGHMC": (pms.SGHMC, {}, (langevin, "integrate", True)),
    "FireflyMC": (pms.FireflyMC, {}, (firefly, "_transitions", False)),
    "HMCECS, groups": (pms.HMCECS, {}, (hmc_ecs, "transitions", True)),
    "ScalableMH, groups": (pms.ScalableMH, {}, (scalable, "compiled", True)),
}  # fmt: skip
MOST, MOST_PARALLEL = 1.5, 40e-6


class Replay(BlockedStep):
    """Return the same draw again and again."""

    default_blocked = True

    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, step, point, stats):
        self.vars, self.tune, self.draw = step.vars, True, (point, stats)
        self.stats_dtypes_shapes = step.stats_dtypes_shapes
        self.rng = np.random.default_rng()

    def setup_chain(self, rng, tune, draws):
        """Nothing changes."""

    def step(self, point):
        """Return it."""
        return self.draw


@contextmanager
def timed(module, name, made):
    """Count the seconds inside a compiled function, or of those that a function makes."""
    spent, real = [0.0], getattr(module, name)

    def call(function, *arguments):
        start = perf_counter()
        found = function(*arguments)
        spent[0] += perf_counter() - start
        return found

    def stand_in(*arguments):
        if not made:
            return call(real, *arguments)
        return lambda *inside: call(real(*arguments), *inside)

    with patch.object(module, name, stand_in):
        yield spent


def seconds(step, model, draws, cores=1):
    """Of a whole run."""
    start = perf_counter()
    pm.sample(
        draws, tune=args.tune, chains=cores, cores=cores, step=step, model=model, progressbar=False,
        random_seed=1, compute_convergence_checks=False, mp_ctx="fork" if cores > 1 else None,
    )  # fmt: skip
    return perf_counter() - start


def per_draw(step, model, cores=1):
    """Seconds that a draw adds to a run."""
    few, many = args.draws // 5, args.draws
    return (seconds(step, model, many, cores) - seconds(step, model, few, cores)) / (many - few)


def measure(name, model):
    kind, options, place = STEPS[name]
    step = kind(model=model, **options)
    seconds(step, model, 100)
    step.setup_chain(np.random.default_rng(1), 0, 10)
    replay = Replay(step, *step.step(model.initial_point()))
    found = []
    for _ in range(args.rounds):
        with timed(*place) as spent:
            seconds(step, model, args.draws // 5)
            few, spent[0] = spent[0], 0.0
            seconds(step, model, args.draws)
        inside = (spent[0] - few) / (args.draws - args.draws // 5)
        whole, own = per_draw(step, model), per_draw(replay, model)
        both = [per_draw(x, model, cores=2) / 2 for x in (step, replay)] if args.parallel else []
        found.append([inside, whole, own, *both])
    return np.median(found, axis=0)


if __name__ == "__main__":
    parser = command_line(__doc__, n=10**6, d=30, rounds=5)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--steps", nargs="*", default=list(STEPS))
    parser.add_argument("--parallel", action="store_true", help="two chains in processes, too")
    args = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    models = {
        "groups": poisson_noncentred(args.n),
        "": logistic_model(*logistic_rows(args.n, args.d), 1.0),
    }
    print(f"Logistic regression, n = {args.n:,}, d = {args.d}; microseconds per draw")
    rows, checks = [], Checks()
    for name in args.steps:
        model = next(model for ending, model in models.items() if name.endswith(ending))
        inside, whole, own, *both = measure(name, model)
        rows.append([name, *(1e6 * x for x in (inside, whole - inside - own, own, whole)),
                     whole / inside, (whole - own) / inside, *(1e6 * x for x in both)])  # fmt: skip
        checks.at_most(f"{name}: a draw over its compiled transition", whole / inside, MOST)
        if both:
            checks.at_most(
                f"{name}: two processes, beyond PyMC's own", both[0] - both[1] - inside / 2,
                MOST_PARALLEL,
            )  # fmt: skip
    table(
        ["step", "compiled", "ours beside it", "PyMC's loop", "a draw", "over compiled",
         "without PyMC's loop", *(["two processes", "of these PyMC's"] if args.parallel else [])],
        rows,
    )  # fmt: skip
    print()
    checks.exit()
