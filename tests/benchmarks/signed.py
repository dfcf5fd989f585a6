"""Signed HMC-ECS: formulas against simulation, exactness, and the choice of the subsample's size.

The model has 400 rows and two parameters, so that its posterior is known by quadrature; control
variates of order 1 and few rows bias the perturbed estimate there. The sweeps show the
evaluations per effective draw around the sizes that are chosen.

python tests/benchmarks/signed.py
python tests/benchmarks/signed.py --draws 2000 --sweep-rows 20000 --sweep-draws 500
"""

import logging

import numpy as np
import pymc as pm
from _measure import QUIET, Checks, command_line, table
from _problems import logistic_model, logistic_rows

import pymc_subsample as pms
from pymc_subsample.expansion.block_poisson import log_variance, probability_positive

PRIOR_SD = 2.0


def simulated(products, spread, rng, repeats=200_000):
    """Variance of log|L| and share of positive L, by drawing factors."""
    k = rng.poisson(products, repeats)
    factors = 1 + spread * rng.normal(size=k.sum())
    ends = np.append(0, np.cumsum(k))
    logs = np.append(0, np.cumsum(np.log(np.abs(factors))))[ends]
    negative = np.append(0, np.cumsum(factors < 0))[ends]
    return np.diff(logs).var(), np.mean(np.diff(negative) % 2 == 0)


def small_problem(rng, n=400):
    """A logistic model of two parameters, and its posterior means and sds by quadrature."""
    x = rng.normal(size=n)
    y = (rng.random(n) < 1 / (1 + np.exp(-(0.5 + 1.5 * x)))).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, PRIOR_SD), pm.Normal("b", 0, PRIOR_SD)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    a, b = np.meshgrid(np.linspace(-0.8, 1.8, 261), np.linspace(0.3, 3.3, 261), indexing="ij")
    logp = -(a**2 + b**2) / (2 * PRIOR_SD**2)
    for xi, yi in zip(x, y, strict=True):
        eta = a + b * xi
        logp += yi * eta - np.logaddexp(0, eta)
    p = np.exp(logp - logp.max())
    p /= p.sum()
    means = np.array([(p * a).sum(), (p * b).sum()])
    return (
        model,
        means,
        np.sqrt([(p * v**2).sum() - m**2 for v, m in zip((a, b), means, strict=True)]),
    )


def sample(model, draws, tune, seed, chains=1, **settings):
    with model:
        step = pms.HMCECS(**settings)
        idata = pm.sample(draws, tune=tune, step=step, chains=chains, random_seed=seed, **QUIET)
    return idata, step


if __name__ == "__main__":
    parser = command_line(__doc__, draws=10_000, seed=1)
    parser.add_argument("--sweep-rows", type=int, default=100_000)
    parser.add_argument("--sweep-draws", type=int, default=4_000)
    args = parser.parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.ERROR)
    rng = np.random.default_rng(args.seed)
    checks = Checks()

    print("log|L|: variance and probability of a positive sign, formula and simulation")
    rows, worst = [], [0.0, 0.0]
    for products in (5, 20, 100):
        for spread in (0.05, 0.15, 0.25, 0.4):
            variance, positive = simulated(products, spread, rng)
            formulas = (
                log_variance(products, spread * products),
                probability_positive(products, spread * products),
            )
            rows.append([products, spread, formulas[0], variance, formulas[1], positive])
            worst[0] = max(worst[0], abs(formulas[0] / variance - 1))
            worst[1] = max(worst[1], abs(formulas[1] / positive - 1))
    table(["lambda", "sd of a factor", "Var", "simulated", "tau", "simulated"], rows)
    print()
    checks.at_most("variance of log|L|, relative error", worst[0], 0.05)
    checks.at_most("probability of a positive sign, relative error", worst[1], 0.05)

    print("\nControl variates of order 1, 400 rows, against quadrature")
    model, means, sds = small_problem(rng)
    rows = []
    for name, settings in {
        "perturbed, 8 rows": {"subsample_size": 8},
        "signed, about 240 rows": {"estimator": "block-poisson", "subsample_size": 240},
        "signed, about 390 rows": {"estimator": "block-poisson", "subsample_size": 390},
        "signed NUTS, about 390 rows": {
            "estimator": "block-poisson", "subsample_size": 390, "kernel": "nuts",
        },
    }.items():  # fmt: skip
        idata, _ = sample(
            model, args.draws, 1000, args.seed, chains=2, control_variate_order=1, **settings
        )
        found = pms.summary(idata, round_to="none")
        errors = (found["mean"].values - means) / found["mcse_mean"].values
        stretch = found["sd"].values / sds - 1
        negative = float(np.mean(idata["sample_stats"]["sign"].values < 0))
        told = bool(np.any(idata["checks"]["failed"] > 0))
        shift = np.abs(found["mean"].values - means) / sds
        rows.append(
            [name, 100 * negative, shift.max(), np.abs(errors).max(), np.abs(stretch).max(),
             float(found["ess_bulk"].min()), "yes" if told else "no"]
        )  # fmt: skip
    table(["", "% negative", "mean, in sds", "mean, in its errors", "sd", "ESS", "warned"], rows)
    print()
    checks.at_least("perturbed: largest relative error of an sd", rows[0][4], 0.05)
    for row in rows[1:]:
        checks.at_most(f"{row[0]}: largest error of a mean, in its standard errors", row[3], 3)
        checks.at_most(f"{row[0]}: largest relative error of an sd", row[4], 0.05)

    print(f"\nEvaluations per effective draw, {args.sweep_rows:,} rows, order 1")
    model = logistic_model(*logistic_rows(args.sweep_rows, 10), 1.0)
    for estimator in ("perturbed", "block-poisson"):
        with model:
            chosen = pms.HMCECS(estimator=estimator, control_variate_order=1).subsample_size
        rows = []
        for factor in (0.25, 0.5, 1, 2, 4):
            unit = 30 if estimator == "block-poisson" else 10
            m = max(round(factor * chosen / unit), 1) * unit
            idata, step = sample(
                model, args.sweep_draws, 800, args.seed, estimator=estimator,
                control_variate_order=1, subsample_size=m,
            )  # fmt: skip
            stats = idata["sample_stats"]
            try:
                ess = float(pms.summary(idata, round_to="none")["ess_bulk"].min())
            except ValueError:  # the signs leave nothing
                ess = np.nan
            rows.append(
                [factor, m, step.n_blocks, float(stats["loglik_variance"].median()),
                 float(stats["subset_accepted"].mean()), float(np.mean(stats["sign"] < 0)), ess,
                 float(stats["n_evaluations"].sum()) / ess,
                 1000 * idata["posterior"].attrs["sampling_time"] / ess]
            )  # fmt: skip
        print(f"\n{estimator}: {chosen:,} rows chosen")
        table(
            ["of chosen", "rows", "blocks", "variance", "refreshed", "negative", "ESS",
             "evaluations / ESS", "ms / ESS"],
            rows,
        )  # fmt: skip
        cost = [row[-1] for row in rows if np.isfinite(row[-1])]
        print()
        checks.at_most(
            f"{estimator}: cost of the chosen size over the least", rows[2][-1] / min(cost), 1.5
        )
    checks.exit()
