"""Passes over all rows: seconds with one thread, and the share of them that more threads take.

python tests/benchmarks/passes.py                        # 10^6 rows of 30 columns
python tests/benchmarks/passes.py --small
python tests/benchmarks/passes.py --processes            # with workers that are sent the rows, too
"""

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import Checks, command_line, table

import pymc_subsample as pms
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.estimate_errors import Estimator, read_all, read_few
from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at, summed
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.model import TallModel
from pymc_subsample.model.verification import check_start
from pymc_subsample.rows.workers import Workers, processors
from pymc_subsample.samplers.minibatch.decision_errors import _rows

# Of the time with one thread, on two processors that nobody else uses.
MOST = 0.6


def logistic(n, d, groups):
    """Rows of standard normal columns; with groups, an effect and a slope of each, too."""
    rng = np.random.default_rng(1)
    X, beta = rng.standard_normal((n, d)), rng.normal(0, 1 / np.sqrt(d), d)
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ beta))).astype("int8")
    with pm.Model() as model:
        eta = pm.math.dot(pm.Data("X", X), pm.Normal("beta", 0, 1, shape=d))
        if groups:
            g = rng.integers(0, groups, n)
            tau = pm.HalfNormal("tau", 1, shape=2)
            a, b = (pm.Normal(f"{name}", 0, tau[k], shape=groups) for k, name in enumerate("ab"))
            eta = eta + a[g] + b[g] * X[:, 0]
        pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


def kinds(model):
    """Passes by what they are for, as functions of who makes them."""
    tall = TallModel(model)
    expansion = expand(tall, 2)
    rng = np.random.default_rng(2)
    at = reference_at(expansion, tall.ravel(tall.initial_point))
    thetas = at.theta + 0.003 * rng.standard_normal((10, tall.size))
    by = Estimator(
        expansion=expansion, reference=at, subsample_size=1000, temperature=1.0,
        always=np.zeros(0, dtype=np.int64),
    )  # fmt: skip
    few = read_few(by, thetas)
    made = {
        "sums at the reference": lambda: reference_at(expansion, at.theta),
        "gradient of all rows": lambda: summed(expansion, at.theta, None, 1.0, curved=False),
        "residuals at 8 points": lambda: residuals_around(expansion, at, thetas[:4], thetas[4:8]),
        "errors of the estimate at 10 draws": lambda: read_all(by, few, thetas, np.arange(10), 10),
        "terms of an acceptance test": lambda: _rows(expansion, at, *thetas[:2], 2, 1.0),
        "log posterior at 10 draws (audit)": lambda: log_posteriors(expansion, thetas),
        "check at the start": lambda: check_start(tall, tall.loglik_as_written),
    }

    def by(workers, run):
        expansion.workers = workers
        start = perf_counter()
        with workers.in_use():
            one_thread(run)()
        return perf_counter() - start

    return {name: (lambda workers, run=run: by(workers, run)) for name, run in made.items()}


def set_up(model):
    """The whole set-up of a step."""

    def run(workers):
        start = perf_counter()
        pms.HMCECS(model=model, workers=workers.threads)
        return perf_counter() - start

    return run


def compare(title, timed, makers, repeats):
    """Print best times over alternating repeats; return the shares with two threads."""
    found, shares = [], {}
    for name, run in timed.items():
        for workers in makers.values():
            run(workers)  # compiles, and tells workers what they need
        seconds = dict.fromkeys(makers, np.inf)
        for _ in range(repeats):
            seconds = {maker: min(seconds[maker], run(makers[maker])) for maker in makers}
        one, *others = seconds.values()
        found.append([name, one, *(other / one for other in others)])
        shares[name] = others[0] / one
    one, *others = makers
    print()
    table([title, f"s, {one}", *(f"share, {other}" for other in others)], found)
    return shares


def main():
    parser = command_line(__doc__, n=10**6, d=30, groups=50, repeats=7)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    n = 50_000 if args.small else args.n
    repeats = 2 if args.small else args.repeats
    print(f"{n:,} rows, {args.d} columns; {processors()} processors")
    makers = {"1 thread": Workers(1), "2 threads": Workers(2)}
    with ExitStack() as stack:
        if args.processes:
            pool = stack.enter_context(ProcessPoolExecutor(2, get_context("spawn")))
            makers["2 processes"] = Workers(pool)
        model = logistic(n, args.d, 0)
        shares = compare("logistic regression", kinds(model), makers, repeats)
        grouped = kinds(logistic(n, args.d, args.groups))
        compare(f"with {args.groups} groups", grouped, makers, repeats)
    makers.pop("2 processes", None)
    whole = {"set-up of HMCECS": set_up(model)}
    shares |= compare("whole", whole, makers, max(2, repeats // 2))
    checks = Checks()
    print()
    for name, share in shares.items():
        checks.at_most(f"{name}, two threads over one", share, MOST)
    checks.exit()


if __name__ == "__main__":
    main()
