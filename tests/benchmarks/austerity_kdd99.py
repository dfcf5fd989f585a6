"""Korattikara et al. 2014, section 6.2: KDD99 (10%), Langevin proposals, figures 5 and 6.

PYMC_SUBSAMPLE_DATA=<folder that holds kdd99_10.npz> python tests/benchmarks/austerity_kdd99.py

Attack or not on 41 parameters: intercept, the 36 numeric columns that are not constant (two are),
and indicators of protocols tcp and udp and of flags SF and S0; columns that reach beyond 10 (bytes,
counts, durations) as log(1 + x), all scaled to [0, 1]; N(0, 1) on every coefficient. The paper
tells neither its features nor its prior nor its gradient's batch. A random 100,000 of the 494,021
rows are taken: what is compared here depends on the share of the rows behind a gradient (1%), while
time grows with n; --rows 494021 --batch 5000 takes them all, in half an hour.

As in the paper, proposals are not preconditioned: theta' = theta + h^2 / 2 g + h z, and the two
figures' h^2 (the paper's step size) differ by a factor of 5. The larger one is given by the
acceptance rate that it should have, 2 Phi(-sqrt(V) / 2), where V = h^2 tr(C) is the variance of the
exact log-ratio and C that of the gradient. Bias and acceptance are tied: uncorrected Langevin
(SGLD) inflates the variances along the principal axes of the whitened posterior by amounts that add
up to V / 4. Preconditioned, that is V / (4 * 41) each: 4% at an acceptance of 0.2, too little to be
seen without thousands of passes over the rows, and the "huge bias" of figure 5 cannot be. Without
preconditioning nearly all of it falls on the best determined direction, and the sum of the
coefficients' variances, which the least determined dominate, hides it.

The error is therefore that of the variance of the mean log-odds, rows weighted by p (1 - p) at the
mode: to first order, the predicted share of attacks. Its relative error is averaged over chains,
which start in the posterior and stop when they have spent their evaluations: 2 per row of a test,
4 per row behind a proposal (value and gradient at both ends; SGLD: 2). A chain that never moves
has error 1.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from time import process_time
from typing import NamedTuple

import numba
import numpy as np
from _kdd99 import distinct_rows, hmc, kdd99_rows, laplace
from _measure import Checks, command_line, table
from _problems import logistic_model
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import expit
from scipy.stats import norm

import pymc_subsample as pms

SGLD, EXACT, EPSILONS = "SGLD, uncorrected", "exact MH", (0.1, 0.05, 0.01)
# Transitions in the same time.
PAPER = {SGLD: 671_400, 0.1: 118_360, 0.05: 53_480, 0.01: 28_560, EXACT: 2_600}
CHECKPOINTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
PER_DRAW = 10

# What chains need, for processes that are forked.
SHARED = {}


@numba.njit
def langevin(X, y, h, b, theta, weights, draws, rng):
    """Uncorrected Langevin: every proposal is accepted. The weighted sum at every tenth state."""
    n, d = X.shape
    kept, grad = np.empty(draws), np.empty(d)
    for t in range(draws * PER_DRAW):
        grad[:] = -theta
        for _ in range(b):
            row = int(rng.random() * n)
            eta = 0.0
            for a in range(d):
                eta += X[row, a] * theta[a]
            residual = n / b * (y[row] - 1 / (1 + np.exp(-eta)))
            for a in range(d):
                grad[a] += residual * X[row, a]
        for a in range(d):
            theta[a] += 0.5 * h * h * grad[a] + h * rng.standard_normal()
        if (t + 1) % PER_DRAW == 0:
            kept[t // PER_DRAW] = weights @ theta
    return kept


class Chain(NamedTuple):
    quantity: np.ndarray  # the mean log-odds, per draw
    spent: np.ndarray  # evaluations up to each draw
    transitions: int
    accepted: float
    share: float  # of the rows, per test
    seconds: float  # of processor time


def run_chain(name, h, c):
    """Chain number c of a sampler, until its evaluations are spent."""
    began = process_time()
    X, y, weights = SHARED["X"], SHARED["y"], SHARED["weights"]
    start, rng = SHARED["starts"][c].copy(), np.random.default_rng([args.seed, c])
    budget = args.budget * len(y)
    if name == SGLD:
        each = 2 * args.batch * PER_DRAW
        draws = int(budget / each)
        kept = langevin(X, y, h, args.batch, start, weights, draws, rng)
        spent = each * np.arange(1, draws + 1)
        return Chain(kept, spent, draws * PER_DRAW, 1, 0, process_time() - began)
    step = SHARED[name, h]
    step.setup_chain(rng, 0, 10**9)  # checks come after the last draw
    point, kept, spent, accepted, share = {"beta": start}, [], [0.0], [], []
    while spent[-1] < budget:
        point, (stats,) = step.step(point)
        kept.append(weights @ point["beta"])
        spent.append(spent[-1] + stats["n_evaluations"])
        accepted.append(stats["accepted"])
        share.append(stats["data_share"])
    return Chain(
        np.array(kept), np.array(spent[1:]), len(kept) * step.transitions_per_draw,
        np.mean(accepted), np.mean(share), process_time() - began,
    )  # fmt: skip


def make_step(model, name, h):
    with model:
        return pms.AusterityMH(
            epsilon=0.0 if name == EXACT else name,
            batch_size=500,
            control_variate_order=None,
            proposal=pms.proposals.Langevin(
                step_size=h, batch_size=args.batch, covariance=np.ones(SHARED["X"].shape[1])
            ),
            transitions_per_draw=1 if name == EXACT else PER_DRAW,
        )


def ratios(chains, variance):
    """Variance of each chain's draws up to each checkpoint, over the exact one."""
    ends = [
        [
            max(2, np.searchsorted(chain.spent, c * args.budget * len(SHARED["y"])))
            for chain in chains
        ]
        for c in CHECKPOINTS
    ]
    return np.array([
        [chain.quantity[:end].var() / variance for chain, end in zip(chains, row, strict=True)]
        for row in ends
    ])  # fmt: skip


def report(pool, h, variance):
    """Print one figure as a table; mean ratios and L1 errors at the checkpoints by sampler."""
    chains = {
        name: list(
            pool.map(run_chain, *zip(*[(name, h, c) for c in range(args.chains)], strict=True))
        )
        for name in (EXACT, *reversed(EPSILONS), SGLD)
    }
    means = {
        name: [np.mean([getattr(chain, field) for chain in runs]) for field in Chain._fields[2:]]
        for name, runs in chains.items()
    }
    exact, lines, found = means[EXACT], [], {}
    for name, (transitions, accepted, share, seconds) in means.items():
        ratio = ratios(chains[name], variance)
        errors = np.abs(ratio - 1)
        found[name] = ratio.mean(axis=1), errors.mean(axis=1), transitions / exact[0]
        lines.append([
            name if isinstance(name, str) else f"epsilon {name:g}",
            int(transitions), transitions / exact[0],
            transitions / seconds * exact[3] / exact[0], PAPER[name] / PAPER[EXACT],
            accepted, "" if name == SGLD else f"{share:.1%}",
            *(f"{e:.2f}" for e in errors.mean(axis=1)),
            f"{errors[-1].std() / (args.chains - 1) ** 0.5:.2f}",
            f"{ratio[-1].mean():.2f}", f"{ratio[-1].std() / (args.chains - 1) ** 0.5:.2f}", seconds,
        ])  # fmt: skip
    table(
        ["sampler", "transitions", "over exact", "in equal time", "paper", "accepted",
         "rows per test", *(f"error at {c:.3g}" for c in CHECKPOINTS), "+-", "variance / exact",
         "+-", "s per chain"],
        lines,
    )  # fmt: skip
    return found


def main():
    X, y = kdd99_rows(args.rows, np.random.default_rng(args.seed))
    n, d = X.shape
    few = distinct_rows(X, y)
    mode, precision = laplace(*few)
    covariance = np.linalg.inv(precision)
    draws, acceptance = hmc(
        *few, mode, np.linalg.cholesky(covariance), args.reference_draws,
        np.random.default_rng(args.seed), chains=max(8, args.chains),
    )  # fmt: skip
    p = expit(X @ mode)
    weights = (p * (1 - p)) @ X / np.sum(p * (1 - p))
    quantity = draws @ weights
    variance = quantity.var()
    # Two halves differ by twice the error of the whole.
    half = len(quantity) // 2
    reference_error = abs(quantity[:half].var() - quantity[half:].var()) / variance / 2
    SHARED.update(X=X, y=y, weights=weights, starts=draws[:, -1])
    noise = (X.T * (n / args.batch * (y - p) ** 2)) @ X
    large = (2 * norm.ppf(args.acceptance / 2)) ** 2 / np.trace(noise)
    information = 4 * np.sum(p * (1 - p))
    laplace_error = weights @ covariance @ weights / variance - 1
    print(
        f"KDD99 10%: {n:,} rows ({len(few[0]):,} distinct), {d} coefficients; wrong at the mode "
        f"{np.mean((p > 0.5) != y):.3%};\nthe information is that of {information:,.0f} rows with "
        f"p = 1/2\nreference: exact HMC on all rows, {quantity.size:,} draws, acceptance "
        f"{acceptance:.2f}; error of its variance about {reference_error:.3f}; Laplace's "
        f"{laplace_error:.3f}\n{args.chains} chains, {args.budget:g} n evaluations each, "
        f"{args.batch:,} rows per gradient"
    )
    model = logistic_model(X, y, 1.0)
    steps = {5: (large**0.5, "large"), 6: ((large / 5) ** 0.5, "small")}
    for h, _ in steps.values():
        SHARED.update({(name, h): make_step(model, name, h) for name in (EXACT, *EPSILONS)})
    langevin(X, y, 0.0, 1, mode.copy(), weights, 1, np.random.default_rng(0))
    results, bias = {}, {}
    with ProcessPoolExecutor(args.cores, multiprocessing.get_context("fork")) as pool:
        for figure, (h, size) in steps.items():
            V = h * h * np.trace(noise)
            wide = solve_continuous_lyapunov(
                precision, 2 * np.eye(d) + h * h / 2 * (noise + precision)
            )
            bias[size] = weights @ wide @ weights / (weights @ covariance @ weights) - 1
            print(
                f"\nFigure {figure}: {size} step, h^2 = {h * h:.3g}; predicted: V {V:.2f}, "
                f"acceptance {2 * norm.cdf(-0.5 * V**0.5):.2f}; bias of SGLD's variance "
                f"{bias[size]:.0%} (of the sum of all coefficients' variances "
                f"{np.trace(wide) / np.trace(covariance) - 1:.2%}; preconditioned "
                f"{V / (4 * d):.1%})"
            )
            results[size] = report(pool, h, variance)
    print(
        "\nerror: mean over chains of |variance / exact - 1|, after shares of the evaluations.\n"
        "Paper: transitions in equal time over those of exact MH. Its figures: with the large\n"
        "step SGLD is biased, MH too slow, epsilon > 0 best; with the small one SGLD is quickest\n"
        "in the time given, until its bias shows and the others catch up.\n"
    )
    check(results, bias, reference_error)


def check(results, bias, reference_error):
    checks = Checks()
    checks.at_most("reference: error of the variance", reference_error, 0.05)
    large, small = results["large"], results["small"]
    checks.at_least(
        "large step: SGLD's variance / exact", large[SGLD][0][-1], 1 + bias["large"] / 2
    )
    for name in EPSILONS:
        errors = large[name][1]
        checks.at_most(
            f"large step, epsilon {name}: error over SGLD's", errors[-1] / large[SGLD][1][-1], 0.5
        )
        checks.at_most(
            f"large step, epsilon {name}: error over exact MH's",
            errors[-1] / large[EXACT][1][-1],
            1,
        )
        checks.at_most(
            f"large step, epsilon {name}: error over that at 1/16", errors[-1] / errors[1], 0.75
        )
    for size, found in results.items():
        checks.at_least(
            f"{size} step: transitions over exact MH's, epsilon 0.01", found[0.01][2], 3
        )
        checks.at_least(f"{size} step: the same, epsilon 0.1", found[0.1][2], 10)
    checks.at_most("small step: SGLD's variance / exact", small[SGLD][0][-1], 1 + 2 * bias["small"])
    quarter = CHECKPOINTS.index(1 / 4)
    others = min(errors[quarter] for name, (_, errors, _) in small.items() if name != SGLD)
    checks.at_most(
        "small step: SGLD's error over the best other's, at 1/4",
        small[SGLD][1][quarter] / others,
        1,
    )
    checks.exit()


if __name__ == "__main__":
    parser = command_line(__doc__, rows=100_000, chains=8, cores=2, seed=1)
    parser.add_argument("--batch", type=int, default=1000, help="rows behind a gradient")
    parser.add_argument("--acceptance", type=float, default=0.2, help="with the large step")
    parser.add_argument("--budget", type=float, default=600, help="evaluations per chain, in n")
    parser.add_argument("--reference-draws", type=int, default=200, help="per chain")
    args = parser.parse_args()
    main()
