"""Firefly Monte Carlo on three models: bright rows, and row evaluations per effective draw.

python tests/benchmarks/firefly.py

Beside `MinibatchBarkerMH` with Langevin proposals and `HMCECS`, both with control variates of order
2. The smallest bulk ESS over parameters counts; evaluations are those of the draws after tuning.
Means and standard deviations of the logistic regression are compared with those of the exact
posterior, of the others with those of `HMCECS`.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _measure import QUIET, Checks, command_line, table
from _problems import logistic_model, logistic_rows
from _reference import exact_posterior
from arviz_stats.base import array_stats

import pymc_subsample as pms

CLASSES = 3


def student_t(X, rng):
    y = X @ rng.normal(0, 0.3, X.shape[1]) + rng.standard_t(4, len(X))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.StudentT("y", nu=4, mu=X @ beta, sigma=1.0, observed=y)
    return model


def softmax(X, rng):
    eta = np.column_stack([np.zeros(len(X)), X @ rng.normal(0, 0.3, (X.shape[1], CLASSES - 1))])
    p = np.exp(eta) / np.exp(eta).sum(axis=1, keepdims=True)
    y = (rng.random((len(X), 1)) > p.cumsum(axis=1)).sum(axis=1)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=(X.shape[1], CLASSES - 1))
        eta = pt.concatenate([pt.zeros((len(X), 1)), X @ beta], axis=1)
        pm.Categorical("y", logit_p=eta, observed=y)
    return model


STEPS = {
    "FireflyMC": lambda: pms.FireflyMC(),
    "FireflyMC, random walk": lambda: pms.FireflyMC(proposal=pms.proposals.AdaptiveMetropolis()),
    "MinibatchBarkerMH": lambda: pms.MinibatchBarkerMH(proposal=pms.proposals.Langevin()),
    "HMCECS": lambda: pms.HMCECS(),
}


def measure(make, model, args):
    """Draws, bright rows, smallest ESS, evaluations and whether the report passes."""
    with model:
        idata = pm.sample(
            args.draws, tune=args.tune, step=make(), chains=2, random_seed=args.seed, **QUIET
        )
    draws = idata["posterior"]["beta"].values
    draws = draws.reshape(*draws.shape[:2], -1)
    ess = min(array_stats.ess(draws[..., j], method="bulk") for j in range(draws.shape[-1]))
    stats = idata["sample_stats"]
    bright = float(stats["n_bright"].mean()) if "n_bright" in stats else np.nan
    evaluations = float(stats["n_evaluations"].sum())
    return draws.reshape(-1, draws.shape[-1]), bright, ess, evaluations, pms.report(idata).status


if __name__ == "__main__":
    args = command_line(__doc__, n=100_000, d=10, draws=3000, tune=1000, seed=1).parse_args()

    rng = np.random.default_rng(7)
    X, y = logistic_rows(args.n, args.d)
    models = {
        "logistic": logistic_model(X, y, 1.0),
        "Student-t": student_t(X, rng),
        "softmax": softmax(X, rng),
    }
    rows, checks = [], Checks()
    for name, model in models.items():
        runs = {step: measure(make, model, args) for step, make in STEPS.items()}
        truth = runs["HMCECS"][0]
        mean, sd = truth.mean(axis=0), truth.std(axis=0)
        if name == "logistic":
            exact = exact_posterior(X, y, 1.0)
            mean, sd = exact.mean, exact.sd
        for step, (draws, bright, ess, evaluations, status) in runs.items():
            off = np.abs((draws.mean(axis=0) - mean) / sd).max()
            stretch = np.abs(draws.std(axis=0) / sd - 1).max()
            rows.append([name, step, bright, ess, evaluations / ess, off, stretch, status])
        if name != "softmax":
            cost = {step: run[3] / run[2] for step, run in runs.items()}
            checks.at_most(
                f"{name}: evaluations per effective draw over MinibatchBarkerMH's",
                cost["FireflyMC"] / cost["MinibatchBarkerMH"],
                1.0,
            )
        if name == "logistic":
            off, stretch = exact.errors(runs["FireflyMC"][0])
            noise = 4 / np.sqrt(runs["FireflyMC"][2])
            checks.at_most("logistic: error of a mean, in sds", off, noise)
            checks.at_most("logistic: error of an sd", stretch, noise)
    print(f"{args.n:,} rows, {args.d} columns")
    table(
        ["model", "step", "bright rows", "min ESS", "evaluations per ESS", "mean off, sds"]
        + ["sd off", "report"],
        rows,
    )
    print()
    checks.exit()
