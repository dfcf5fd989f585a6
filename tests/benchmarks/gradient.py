"""Time per gradient of the compiled density, beside a hand-written kernel on the same subset.

And of whole transitions: the No-U-Turn sampler's beside those of trajectories of fixed length.

python tests/benchmarks/gradient.py
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from _handwritten import (
    glm_terms,
    handwritten,
    linear,
    linear_terms,
    logistic_curve,
    logistic_row,
    one_predictor,
    poisson_curve,
    poisson_row,
)
from _measure import Checks, command_line, one_by_one, table
from _problems import linear_model, logistic_model, poisson_model
from numba import njit

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.dynamics import Moves
from pymc_subsample.kernels.estimates import FUNCTIONS, SubsampleEstimate, perturbed, target_at
from pymc_subsample.kernels.model import Surface
from pymc_subsample.model import TallModel


@njit
def drive(model, sums, given, moves, thetas, repeats, rows):
    """Sum of the log densities at ``repeats`` points in turn, and the last gradient."""
    target = target_at(model, sums, given, moves)
    counts = np.ones(1, dtype=np.int64)
    phi, d, grad = np.empty(len(sums.center)), np.empty(rows.shape[1]), np.empty(thetas.shape[1])
    surface = Surface(target, rows, counts, phi, d)
    total = 0.0
    for k in range(repeats):
        logp, _, _ = perturbed(surface, thetas[k % len(thetas)], grad)
        total += logp
    return total, grad


def ours(model, reference, index):
    """``run(thetas, repeats)`` for the package: like ``handwritten``, from inside a compiled loop.

    ``reference`` holds value variables in the model's order, as the rows of ``thetas`` do.
    """
    tall = TallModel(model)
    expansion = expand(tall)
    at = reference_at(expansion, reference)
    rows = expansion.take(index)
    expansion.anchor(at.center, rows)

    def run(thetas, repeats):
        # `expansion` owns the functions behind the addresses.
        none = np.empty((len(rows), 0))
        given = SubsampleEstimate(tall.n_rows / len(index), 1.0, 0.0, at.theta, np.inf, none, 1.0)
        moves = Moves(np.arange(tall.size), np.ones((1, tall.size)), 0.0, 0.0)
        model, sums = expansion.model(*FUNCTIONS), at.sums(2)
        return drive(model, sums, given, moves, thetas, repeats, rows)

    return run


class Problem(NamedTuple):
    name: str
    model: Callable
    density: Callable
    terms: Callable
    X: np.ndarray
    y: np.ndarray
    reference: np.ndarray
    thetas: np.ndarray  # points around the reference, as value variables


def problems(n, d, rng):
    X = rng.normal(size=(n, d))
    X[:, 0] = 1
    beta = rng.normal(0, 0.1, d)
    eta, thetas = X @ beta, beta + rng.normal(size=(16, d)) / np.sqrt(n)
    log_sigma = np.log(0.7) + rng.normal(size=16) / np.sqrt(n)

    density, terms = one_predictor(logistic_row), partial(glm_terms, curve=logistic_curve)
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int8)
    yield Problem("logistic", logistic_model, density, terms, X, y, beta, thetas)

    density, terms = one_predictor(poisson_row), partial(glm_terms, curve=poisson_curve)
    y = rng.poisson(np.exp(eta))
    yield Problem("Poisson", poisson_model, density, terms, X, y, beta, thetas)

    phi, thetas = np.append(beta, 0.7), np.column_stack([thetas, log_sigma])
    yield Problem(
        "linear", linear_model, linear, linear_terms, X, rng.normal(eta, 0.7), phi, thetas
    )


def compare(n, d, m, rounds, target_seconds=0.1):
    """Rows of the table: interleaved rounds, medians."""
    rng = np.random.default_rng(5)
    for name, model, kernel, terms, X, y, reference, thetas in problems(n, d, rng):
        index = rng.integers(n, size=m)
        values = reference.copy()
        if name == "linear":
            values[-1] = np.log(values[-1])
        runs = [
            handwritten(kernel, terms, X, y, reference, index),
            ours(model(X, y, 1.0), values, index),
        ]
        yield [name, m, *beside(runs, thetas, rounds, target_seconds)]


def beside(runs, thetas, rounds, target_seconds=0.1, time=perf_counter):
    """Microseconds of two ways to the same gradients, and their ratio."""
    gradients = [run(thetas, 7)[1] for run in runs]
    changes = [run(thetas, 7)[0] - 7 * run(thetas, 1)[0] for run in runs]  # free of constants
    scale = np.abs(gradients[0]).max()
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(changes[1], changes[0], rtol=1e-6)
    start = time()
    runs[0](thetas, 1000)
    repeats = int(1000 * target_seconds / (time() - start)) + 1
    seconds = np.empty((rounds, len(runs)))
    for i in range(rounds):
        for j, run in enumerate(runs):
            start = time()
            run(thetas, repeats)
            seconds[i, j] = (time() - start) / repeats
    hand, mine = 1e6 * np.median(seconds, axis=0)
    ratio = np.median(seconds[:, 1] / seconds[:, 0])
    return hand, mine, ratio


def transitions(n, d, m, rounds, draws=40):
    """Microseconds per gradient of transitions, all included, by kernel: interleaved rounds."""
    rng = np.random.default_rng(5)
    problem = next(problems(n, d, rng))
    model = problem.model(problem.X, problem.y, 1.0)
    steps, points = [], []
    for kernel in ("hmc", "nuts"):
        step = pms.HMCECS(
            model=model, kernel=kernel, subsample_size=m, n_blocks=10, transitions_per_draw=50
        )
        step.setup_chain(np.random.default_rng(1), 20, draws * rounds)
        one_by_one(step)
        point = model.initial_point()
        for _ in range(20):
            point, _ = step.step(point)
        step.stop_tuning()
        steps.append(step)
        points.append(point)
    seconds = np.empty((rounds, 2))
    for i in range(rounds):
        for j, step in enumerate(steps):
            gradients, start = 0, perf_counter()
            for _ in range(draws - (i == rounds - 1)):  # the last draw would check the chain
                points[j], [stats] = step.step(points[j])
                gradients += stats["n_steps"]
            seconds[i, j] = (perf_counter() - start) / gradients
    return 1e6 * np.median(seconds, axis=0), np.median(seconds[:, 1] / seconds[:, 0])


if __name__ == "__main__":
    parser = command_line(__doc__, n=100_000, d=30, rounds=15)
    parser.add_argument("--m", type=int, nargs="*", default=[100, 1000])
    args = parser.parse_args()

    print(f"Gradients, n = {args.n:,}, d = {args.d}; medians of {args.rounds} interleaved rounds")
    rows = [row for m in args.m for row in compare(args.n, args.d, m, args.rounds)]
    table(["model", "m", "hand-written, us", "pymc_subsample, us", "ratio"], rows)
    print()
    moves = [(m, *transitions(args.n, args.d, m, args.rounds)) for m in args.m]
    table(
        ["logistic, m", "fixed length, us per gradient", "NUTS, us per gradient", "ratio"],
        [[m, *times, ratio] for m, times, ratio in moves],
    )
    print()
    checks = Checks()
    for name, m, _, _, ratio in rows:
        checks.at_most(f"{name}, m = {m}: ratio to the hand-written kernel", ratio, 1.5)
    for m, _, ratio in moves:
        checks.at_most(f"NUTS, m = {m}: ratio to trajectories of fixed length", ratio, 2.0)
    checks.exit()
