"""Minibatch tests at T = 1 with control variates of order 2 on Covertype, beside PyMC's Metropolis.

PYMC_SUBSAMPLE_DATA=<folder that holds covtype.npz> python tests/benchmarks/minibatch_covertype.py

Row evaluations are `n_evaluations` of the draws after tuning: with control variates four per row
read (log-likelihood at both points, and log-likelihood and gradient at the reference), without two.
PyMC's Metropolis evaluates both points on all rows. With its defaults it moves the coefficients one
by one, d tests per draw, which no covariance helps. It runs so, and made to move them jointly with
the posterior covariance (`elemwise_update = False`, two evaluations per row and draw); the bound is
against the latter. Effective draws are the smallest bulk ESS over the coefficients. On all rows
Metropolis is too slow for many draws: that run shows its acceptance rate, and its ESS is a rough
one. Long runs on evenly spaced rows, whose posterior has the same shape, have the ESS per draw, and
their evaluations are counted as if their rows were all n.
"""

from time import perf_counter

import numpy as np
import pymc as pm
from _measure import Checks, Run, command_line, sample_batches, table
from _problems import covertype_rows, logistic_model
from _reference import exact_posterior, laplace

import pymc_subsample as pms

PRIOR_SD = 10**0.5


def minibatch(name, method, seed, **options):
    """A run, its mean batch and its row evaluations."""
    with MODEL:
        start = perf_counter()
        step = method(transitions_per_draw=args.transitions, **options)
        draws, stats = sample_batches(step, args.draws, tune=args.tune, seed=seed)
        seconds = perf_counter() - start
    run = Run(name, draws["beta"], seconds, seconds)
    return (
        run,
        stats["batch_size"].mean(),
        int(stats["n_evaluations"].sum()),
        stats["acceptance_rate"].mean(),
    )


def metropolis(name, X, y, draws, tune, covariance=False):
    """PyMC's own, from the posterior mode; its evaluations are those on all rows.

    Joint updates with the posterior covariance, or coefficient by coefficient.
    """
    mode, precision = laplace(X, y, PRIOR_SD)
    posterior = np.linalg.inv(precision)
    scaling = 2.38 / len(mode) ** 0.5 if covariance else np.diag(posterior).min() ** 0.5
    with logistic_model(X, y, PRIOR_SD):
        step = pm.Metropolis(tune_interval=50, scaling=scaling, S=posterior if covariance else None)
        step.elemwise_update = not covariance
        begin = perf_counter()
        found, stats = sample_batches(step, draws, tune=tune, seed=args.seed, start={"beta": mode})
        seconds = perf_counter() - begin
    run = Run(name, found["beta"], seconds, seconds)
    evaluations = 2 * N_ROWS * draws * (1 if covariance else len(mode))
    moved = np.diff(found["beta"], axis=0) != 0
    accepted = np.any(moved, axis=1).mean() if covariance else stats["accepted"].mean()
    return run, float(N_ROWS), evaluations, accepted


if __name__ == "__main__":
    parser = command_line(__doc__, draws=10_000, tune=1000, seed=1)
    parser.add_argument("--n", type=int, help="rows, evenly spaced in file order; all if not given")
    parser.add_argument("--transitions", type=int, default=30, help="per draw")
    parser.add_argument("--peer-draws", type=int, default=1500, help="of Metropolis on all rows")
    parser.add_argument("--peer-rows", type=int, default=5000, help="of its long runs")
    parser.add_argument("--long-draws", type=int, default=10_000)
    args = parser.parse_args()

    X, y = covertype_rows()
    if args.n:
        X, y = X[:: len(X) // args.n], y[:: len(y) // args.n]
    print(f"Covertype, {len(y):,} rows, {X.shape[1]} coefficients, normal prior of variance 10")
    exact = exact_posterior(X, y, PRIOR_SD, pairs=300)
    print(exact)
    MODEL = logistic_model(X, y, PRIOR_SD)
    N_ROWS = len(y)
    some, peer = slice(None, None, max(len(y) // args.peer_rows, 1)), "PyMC Metropolis"
    few = f"{len(y[some]):,} rows"
    long = {"draws": args.long_draws, "tune": args.long_draws // 5}
    short = {"draws": args.peer_draws, "tune": args.peer_draws // 2}
    results = [
        minibatch("Barker, order 2", pms.MinibatchBarkerMH, args.seed),
        minibatch("austerity, order 2", pms.AusterityMH, args.seed, batch_size=100),
        metropolis(f"{peer}, jointly", X, y, **short, covariance=True),
        metropolis(f"{peer}, jointly, {few}", X[some], y[some], **long, covariance=True),
        metropolis(f"{peer}, default, {few}", X[some], y[some], **long),
    ]
    costs = [evaluations / run.effective for run, _, evaluations, _ in results]
    full = costs[3]
    print()
    header = ["sampler", "draws", "transitions", "accepted", "mean batch", "row evaluations"]
    header += ["min ESS", "evaluations per effective draw", "times fewer", "mean error", "sd error"]
    rows = []
    for (run, batch, evaluations, accepted), cost in zip(results, costs, strict=True):
        per_draw = 1 if "PyMC" in run.name else args.transitions
        rows.append([
            run.name, len(run.draws), len(run.draws) * per_draw, accepted, batch, evaluations,
            run.effective, cost, full / cost,
            *(exact.errors(run.draws) if few not in run.name else ("", "")),
        ])  # fmt: skip
    table([*header, "s, all"], [r + [x[0].total] for r, x in zip(rows, results, strict=True)])
    print("errors: largest, in posterior sds (means) and relative (sds)")
    print()
    checks = Checks()
    for (run, batch, *_), cost in zip(results[:2], costs[:2], strict=True):
        checks.at_most(f"{run.name}: mean batch", batch, 200)
        checks.accuracy(run, exact)
        checks.at_least(
            f"{run.name}: times fewer evaluations per effective draw than Metropolis, jointly",
            full / cost, 500,
        )  # fmt: skip
    checks.exit()
