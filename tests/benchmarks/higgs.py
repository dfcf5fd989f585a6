"""Table 2 of Dang et al. (2019): settings and efficiency of HMC-ECS on data in the shape of HIGGS.

10.5 million rows of 29 standard normal columns and an intercept, logistic regression, perturbed
and signed, with their settings (trajectories of 1.2, acceptance of full-data HMC 0.98) and with
ours. A row evaluation is a log-likelihood or a gradient of one row; everything counts: the search
for the reference point, sums over all rows, tuning and the checks at the end. Full-data HMC runs
on fewer rows of the same data, for its inefficiency alone: at the mode's own curvature the
posterior's shape does not depend on n.

python tests/benchmarks/higgs.py
python tests/benchmarks/higgs.py --n 200000 --draws 1000
"""

import logging
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import QUIET, Checks, command_line, table
from _problems import logistic_rows
from _reference import laplace
from arviz_stats.base import array_stats

import pymc_subsample as pms
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.kernels.model import ANCHOR, LEFT, RESIDUAL

PRIOR_SD = 10.0
PAPER = {
    "perturbed": [0.980, 1.0, 6, 2.185, "", 0.012, 642.8],
    "block-poisson": [0.979, 0.993, 6, 2.192, 1.0, 0.029, 554.1],
}


class Counted:
    """Row evaluations by Python's calls of compiled functions: set-up, tuning and final checks."""

    def __init__(self):
        self.rows = 0

    def __enter__(self):
        call = self._call = Compiled.__call__

        def counted(compiled, *arguments):
            if compiled.signature in (ANCHOR, RESIDUAL, LEFT):
                [rows] = [a for a in arguments if np.ndim(a) == 2]
                self.rows += (1 if compiled.signature == LEFT else 2) * rows.shape[1]
            call(compiled, *arguments)

        Compiled.__call__ = counted
        return self

    def __exit__(self, *_):
        Compiled.__call__ = self._call


def inefficiency(draws):
    """Draws per effective one, averaged over parameters."""
    ess = [array_stats.ess(draws[None, :, j], method="mean") for j in range(draws.shape[1])]
    return len(draws) / np.array(ess)


def full_hmc(X, y, draws, step_size, n_steps, rng):
    """HMC on all rows, mass from the curvature at the mode; acceptance and inefficiency."""
    X = X.astype(float)
    mode, precision = laplace(X, y, PRIOR_SD)
    factor = np.linalg.cholesky(np.linalg.inv(precision))

    def logp(z):
        theta = mode + factor @ z
        eta = X @ theta
        value = y @ eta - np.logaddexp(0, eta).sum() - 0.5 * theta @ theta / PRIOR_SD**2
        slope = X.T @ (y - 1 / (1 + np.exp(-eta))) - theta / PRIOR_SD**2
        return value, factor.T @ slope

    z = rng.normal(size=len(mode))
    state, kept, accepted = logp(z), [], 0.0
    for _ in range(draws):
        p = rng.normal(size=len(mode))
        new, q, value = state, z, state[0]
        energy = 0.5 * p @ p - value
        for _ in range(n_steps):
            p = p + 0.5 * step_size * new[1]
            q = q + step_size * p
            new = logp(q)
            p = p + 0.5 * step_size * new[1]
        probability = min(1.0, np.exp(energy - 0.5 * p @ p + new[0]))
        accepted += probability
        if rng.random() < probability:
            z, state = q, new
        kept.append(z)
    return accepted / draws, inefficiency(np.array(kept))


def subsampled(model, draws, tune, seed, **settings):
    """One run of HMCECS: its result, evaluations in all, and seconds."""
    start = perf_counter()
    with Counted() as counted, model:
        idata = pm.sample(
            draws, tune=tune, step=pms.HMCECS(**settings), chains=1, random_seed=seed,
            discard_tuned_samples=False, **QUIET,
        )  # fmt: skip
    moves = sum(
        int(idata[group]["n_evaluations"].sum())
        for group in ("sample_stats", "warmup_sample_stats")
    )
    return idata, counted.rows, moves, perf_counter() - start


if __name__ == "__main__":
    parser = command_line(__doc__, n=10_500_000, d=30, draws=2000, tune=1000, seed=1)
    parser.add_argument("--full-rows", type=int, default=20_000)
    args = parser.parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.WARNING)

    print(f"Logistic regression in the shape of HIGGS: n = {args.n:,}, d = {args.d}, float32")
    X, y = logistic_rows(args.n, args.d, dtype=np.float32)
    mode, precision = laplace(X, y, PRIOR_SD)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    rng = np.random.default_rng(args.seed)
    acceptance, full = full_hmc(X[: args.full_rows], y[: args.full_rows], args.draws, 0.2, 6, rng)
    # Gradient and value at each of 6 steps; as many tuning draws as ours.
    evaluations = 2 * 6 * (args.draws + args.tune)
    full_cost = evaluations / (args.draws / full.mean())

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=args.d)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)

    rows = [
        ["HMC, all rows: paper", 0.980, None, 6, 2.084, "", "", 100.0, "", "", ""],
        [
            f"HMC, all rows: ours on {args.full_rows:,}", acceptance, None, 6, full.mean(), "",
            args.draws / full.mean(), 100.0, full_cost, 1.0, "",
        ],
    ]  # fmt: skip
    checks, worst, gains = Checks(), [], []
    for estimator in ("perturbed", "block-poisson"):
        accept, subset, steps, factor, tau, share, gain = PAPER[estimator]
        rows.append(
            [f"{estimator}: paper", accept, subset, steps, factor, tau, 2000 / factor, share, "",
             gain, ""]
        )  # fmt: skip
        for name, settings in (
            ("as the paper", {"path_length": 1.2, "target_accept": 0.98}),
            ("our defaults", {}),
            ("NUTS", {"kernel": "nuts"}),
        ):
            idata, once, moves, seconds = subsampled(
                model, args.draws, args.tune, args.seed, estimator=estimator, **settings
            )
            stats, draws = idata["sample_stats"], idata["posterior"]["beta"].values[0]
            sign = stats["sign"].values[0]
            factors = inefficiency(draws)
            ess = args.draws / factors.mean() * sign.mean() ** 2
            cost = (once + moves) / args.n / ess
            errors = (
                np.abs((draws * sign[:, None]).sum(axis=0) / sign.sum() - mode) / sd,
                np.abs(draws.std(axis=0) / sd - 1),
            )
            worst.append((estimator, name, errors, factors))
            rows.append(
                [f"{estimator}: {name}", float(stats["acceptance_rate"].mean()),
                 float(stats["subset_accepted"].mean()), float(stats["n_steps"].mean()),
                 factors.mean(), float(np.mean(sign > 0)), ess,
                 100 * float(stats["data_share"].values[0, -1]), cost, full_cost / cost, seconds]
            )  # fmt: skip
            if name != "NUTS":
                bound = 600 if estimator == "perturbed" else 500
                gains.append((f"{estimator}, {name}", full_cost / cost, bound))
            print(f"{estimator}, {name}: {once / args.n:.1f} n evaluations once, "
                  f"{moves / args.n:.2f} n in {args.draws + args.tune:,} draws")  # fmt: skip
    print()
    table(
        ["", "acceptance", "subset", "steps", "IF", "tau", "ESS", "% of data", "n / effective draw",
         "fewer, times", "s"],
        rows,
    )  # fmt: skip
    print()
    for name, ratio, bound in gains:
        checks.at_least(f"{name}: evaluations fewer, times", ratio, bound)
    for estimator, name, (means, sds), factors in worst:
        # Five standard errors of the worst of the parameters, beyond the Laplace approximation's.
        noise = 5 * np.sqrt(factors.max() / args.draws)
        checks.at_most(f"{estimator}, {name}: error of a mean, in sds", means.max(), 0.02 + noise)
        checks.at_most(f"{estimator}, {name}: error of an sd", sds.max(), 0.02 + noise)
    checks.exit()
