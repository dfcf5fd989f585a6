"""From a compiled transition to a draw of `pm.sample`: where the time of a draw goes.

python tests/benchmarks/per_draw.py                        # 10^6 rows of 30 columns
python tests/benchmarks/per_draw.py --n 20000 --draws 2000

Logistic regression, and a Poisson one of 25 groups, non-centred ("groups"); one chain in sequence,
no progress bar. What counts are the draws after tuning, from the first until PyMC's loop is done:
neither set-up, nor what makes a result of a chain, such as a copy of the rows. The checks after a
chain's last draw, which read all rows some times, have a column of their own, in seconds. Medians
over rounds; the compiled transition is timed inside other runs, in turns. PyMC's own loop is that
of a step which returns a draw and its statistics that were made before. With two processes a draw
is one of either chain, and the difference of two lengths of chain counts.
"""

import logging
from contextlib import contextmanager
from time import perf_counter
from unittest.mock import patch

import numpy as np
import pymc as pm
import pymc.sampling.mcmc as mcmc
from _measure import Checks, command_line, table
from _problems import logistic_model, logistic_rows
from _written import poisson_noncentred
from pymc.step_methods.compound import BlockedStep

import pymc_subsample as pms
from pymc_subsample.chain import draw_buffer
from pymc_subsample.samplers.firefly import step as firefly
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.hmc_ecs import chain as hmc_ecs
from pymc_subsample.samplers.minibatch import step as metropolis
from pymc_subsample.samplers.scalable import chain as scalable

STEPS = {
    "HMCECS": (pms.HMCECS, {}, (hmc_ecs, "transitions", True)),
    "HMCECS, nuts": (pms.HMCECS, {"kernel": "nuts"}, (hmc_ecs, "transitions", True)),
    "HMCECS, signs": (
        pms.HMCECS, {"estimator": "block-poisson"}, (hmc_ecs, "transitions", True),
    ),
    "ScalableMH": (pms.ScalableMH, {}, (scalable, "compiled", True)),
    "MinibatchBarkerMH": (pms.MinibatchBarkerMH, {}, (metropolis, "_transitions", False)),
    "SGLD": (pms.sgmcmc.SGLD, {}, (langevin, "integrate", True)),
    "SGHMC": (pms.sgmcmc.SGHMC, {}, (langevin, "integrate", True)),
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
        self.stats_dtypes = step.stats_dtypes
        self.rng = np.random.default_rng()

    def setup_chain(self, rng, tune, draws):
        """Nothing changes."""

    def step(self, point):
        """Return it."""
        return self.draw


def unchecked():
    """Leave the checks at a chain's end out."""

    def unjudged(step):
        step.thread = None
        return {}

    return patch.object(draw_buffer, "judged", unjudged)


def seconds_of_checks(step, model):
    """Of those at the end of one chain."""
    spent, real = [], draw_buffer.judged

    def judged(self):
        start = perf_counter()
        found = real(self)
        spent.append(perf_counter() - start)
        return found

    with patch.object(draw_buffer, "judged", judged):
        seconds(step, model, 1_000)
    return spent[0]


@contextmanager
def timed(step, module, name, made):
    """Count the seconds after tuning inside a compiled function, or those that a function makes."""
    spent, real = [0.0], getattr(module, name)

    def call(function, *arguments):
        start = perf_counter()
        found = function(*arguments)
        spent[0] += 0.0 if step.tune else perf_counter() - start
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


def per_draw(step, model):
    """Seconds of a draw after tuning, in PyMC's loop."""
    begun, done = [], []
    sample, stop = mcmc._sample_many, step.stop_tuning

    def sampled(*arguments, **options):
        sample(*arguments, **options)
        done.append(perf_counter())

    def stopped():
        stop()
        begun.append(perf_counter())

    with patch.object(mcmc, "_sample_many", sampled), patch.object(step, "stop_tuning", stopped):
        seconds(step, model, args.draws)
    return (done[-1] - begun[-1]) / args.draws


def per_draw_of_two(step, model):
    """Seconds that a draw adds to a run of two processes, of either chain."""
    few, many = args.draws // 5, args.draws
    return (seconds(step, model, many, 2) - seconds(step, model, few, 2)) / (many - few) / 2


def measure(name, model):
    kind, options, place = STEPS[name]
    step = kind(model=model, **options)
    checks = seconds_of_checks(step, model)
    with unchecked():
        return *rounds(step, model, place), checks


def rounds(step, model, place):
    """Seconds inside the compiled transition, of a draw and of PyMC's loop; of two processes."""
    step.setup_chain(np.random.default_rng(1), 0, 10)
    replay = Replay(step, *step.step(model.initial_point()))
    found = []
    for _ in range(args.rounds):
        with timed(step, *place) as spent:
            seconds(step, model, args.draws)
        inside = spent[0] / args.draws
        whole, own = per_draw(step, model), per_draw(replay, model)
        both = [per_draw_of_two(x, model) for x in (step, replay)] if args.parallel else []
        found.append([inside, whole, own, *both])
    return np.median(found, axis=0)


if __name__ == "__main__":
    parser = command_line(__doc__, n=10**6, d=30, rounds=5)
    parser.add_argument("--draws", type=int, default=20_000)
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
        inside, whole, own, *both, end = measure(name, model)
        rows.append([name, *(1e6 * x for x in (inside, whole - inside - own, own, whole)),
                     whole / inside, (whole - own) / inside, end,
                     *(1e6 * x for x in both)])  # fmt: skip
        checks.at_most(f"{name}: a draw over its compiled transition", whole / inside, MOST)
        if both:
            checks.at_most(
                f"{name}: two processes, beyond PyMC's own", both[0] - both[1] - inside / 2,
                MOST_PARALLEL,
            )  # fmt: skip
    table(
        ["step", "compiled", "ours beside it", "PyMC's loop", "a draw", "over compiled",
         "without PyMC's loop", "checks, s",
         *(["two processes", "of these PyMC's"] if args.parallel else [])],
        rows,
    )  # fmt: skip
    print()
    checks.exit()
