"""Exact draws of models with unbounded third derivatives, and of hierarchies, beside NUTS.

python tests/benchmarks/exact_models.py

Poisson and negative binomial regression, Student's t with an unknown scale, a logistic regression
with intercepts of 200 groups of 3 to 30,000 rows, and the flights demo: `ScalableMH`, and
`HMCECS` beside it, against nutpie on all rows. Rows that decide on a draw, passes over all rows per
draw, the processor's seconds (give BLAS one thread, OMP_NUM_THREADS=1). For all elements of all
free variables, the largest difference of a mean and an sd in Monte Carlo standard errors of both,
and of the shares of draws below the .005 and .995 quantiles of both samples together.
"""

import sys
from pathlib import Path
from time import process_time

import numpy as np
import pymc as pm
from _measure import Checks, Run, command_line, sample_step, table, values_of
from _problems import poisson_model
from arviz_stats.base import array_stats
from scipy.stats import norm

import pymc_subsample as pms

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import flights

CHAINS, TAILS = 4, (0.005, 0.995)
# That Monte Carlo error alone makes one of a model's comparisons fail.
LEVEL = 0.01
STEPS = {"ScalableMH": pms.ScalableMH, "HMCECS": pms.HMCECS}


def regression(n, d, seed=3):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    return rng, X, X @ rng.normal(0, 0.2, d)


def poisson(n):
    rng, X, eta = regression(n, 10)
    return poisson_model(X, rng.poisson(np.exp(eta)), 5.0)


def negative_binomial(n):
    rng, X, eta = regression(n, 10)
    y = rng.poisson(rng.gamma(3.0, np.exp(eta) / 3.0))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=X.shape[1])
        alpha = pm.Exponential("alpha", 0.5)
        pm.NegativeBinomial("y", mu=pm.math.exp(X @ beta), alpha=alpha, observed=y)
    return model


def student_t(n):
    rng, X, eta = regression(n, 10)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=X.shape[1])
        sigma = pm.HalfNormal("sigma", 5)
        pm.StudentT("y", nu=4, mu=X @ beta, sigma=sigma, observed=eta + rng.standard_t(4, n))
    return model


def groups(n):
    """Of 3 to 30,000 rows, 3 n in all where n is 100,000."""
    size = np.round(3 * (n / 10) ** (np.linspace(0, 1, 200) ** 2.2)).astype(int)
    rng, g = np.random.default_rng(3), np.repeat(np.arange(200), size)
    X = rng.normal(size=(len(g), 5))
    eta = -0.5 + 0.8 * rng.normal(size=200)[g] + X @ rng.normal(0, 0.3, 5)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=200)
        beta = pm.Normal("beta", 0, 2, shape=5)
        y = rng.random(len(g)) < 1 / (1 + np.exp(-eta))
        pm.Bernoulli("y", logit_p=a[g] + X @ beta, observed=y)
    return model


def demo(n):
    return flights.build_model(flights.load_data(None if n >= 100_000 else n))


MODELS = {
    "Poisson": poisson,
    "negative binomial": negative_binomial,
    "Student-t": student_t,
    "200 groups": groups,
    "flights": demo,
}


def nuts(model, names, draws, tune):
    import nutpie

    start = process_time()
    compiled = nutpie.compile_pymc_model(model)
    begin = process_time()
    idata = nutpie.sample(
        compiled, draws=draws, tune=tune, chains=CHAINS, cores=1, seed=4, progress_bar=False
    )
    values, end = values_of(idata, names), process_time()
    gradients = int(idata["sample_stats"]["n_steps"].sum())
    rows = sum(int(np.prod(rv.shape.eval())) for rv in model.observed_RVs)
    run = Run(
        "nutpie, all rows", values.reshape(-1, values.shape[2]), end - begin, end - start,
        evaluations=2.0 * rows * gradients,
    )  # fmt: skip
    return run, values, rows


def compared(ours, theirs):
    """Largest differences in standard errors: of means, sds, and shares in both tails."""

    def each(values, statistic, **kwargs):
        return np.array([
            statistic(values[..., j], chain_axis=0, draw_axis=1, **kwargs)
            for j in range(values.shape[2])
        ])  # fmt: skip

    found = []
    for method, moment in (("mean", np.mean), ("sd", np.std)):
        error = np.hypot(*(each(v, array_stats.mcse, method=method) for v in (ours, theirs)))
        found.append(np.abs(moment(ours, axis=(0, 1)) - moment(theirs, axis=(0, 1))) / error)
    flat = [v.reshape(-1, v.shape[2]) for v in (ours, theirs)]
    for tail in TAILS:
        at = np.quantile(np.concatenate(flat), tail, axis=0)
        ess = [each(v, array_stats.ess, method="quantile", prob=tail) for v in (ours, theirs)]
        variance = sum(
            tail * (1 - tail) / np.minimum(e, len(f)) for e, f in zip(ess, flat, strict=True)
        )
        shares = [(f <= at).mean(axis=0) for f in flat]
        found.append(np.abs(shares[0] - shares[1]) / np.sqrt(variance))
    return [float(f.max()) for f in found]


if __name__ == "__main__":
    parser = command_line(__doc__, n=100_000, draws=2_000, tune=1_000, reference_draws=1_000)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    lines, checks = [], Checks()
    for name in args.models:
        model = MODELS[name](args.n)
        names = [rv.name for rv in model.free_RVs]
        reference, truth, rows = nuts(model, names, args.reference_draws, args.tune // 2)
        d, ess = truth.shape[2], reference.effective
        allowed = norm.isf(LEVEL / (2 * d * (2 + len(TAILS))))
        lines.append([
            name, f"{rows:,}", d, reference.name, *[""] * 5, f"{reference.evaluations / ess:,.0f}",
            f"{ess / reference.seconds:,.3g}", f"{reference.total:.0f}", *[""] * 4,
        ])  # fmt: skip
        for sampler, make in STEPS.items():
            run, idata = sample_step(
                sampler, model, make, names, draws=args.draws, tune=args.tune, chains=CHAINS,
                quiet=True, compute_convergence_checks=False, time=process_time,
            )  # fmt: skip
            stats, ess = idata["sample_stats"], run.effective
            ours = [""] * 4
            if sampler == "ScalableMH":
                ours = [
                    f"{float(stats[key].mean()):,.3g}"
                    for key in ("rows_read", "passes", "acceptance_rate", "rows_accepted")
                ]
            off = compared(values_of(idata, names), truth)
            lines.append([
                name, f"{rows:,}", d, sampler, pms.report(idata).status, *ours,
                f"{run.evaluations / ess:,.0f}", f"{ess / run.seconds:,.3g}", f"{run.total:.0f}",
                *(f"{z:.1f}" for z in off),
            ])  # fmt: skip
            if sampler == "ScalableMH":
                checks.at_most(f"{name}: largest difference in standard errors", max(off), allowed)
        print(flush=True)
        table(
            ["model", "rows", "parameters", "sampler", "report", "rows per draw", "passes per draw"]
            + ["surrogate accepts", "rows accept", "evaluations per effective draw"]
            + ["effective draws per s", "s in all", "mean", "sd", *map(str, TAILS)],
            lines,
        )
    checks.exit()
