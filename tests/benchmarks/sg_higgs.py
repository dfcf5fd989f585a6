"""Tables 1 and 3 of Dang et al. (2019) in shape: SGLD and SG-HMC beside HMC-ECS on HIGGS-like rows.

Logistic regression on standard normal columns and an intercept (see higgs.py), every sampler with
control variates of order 2 at the same reference, m = 1,300 rows per step (signed HMC-ECS: its own
choice) and the curvature at the mode as its metric. HMC-ECS takes 6 leapfrog steps of 0.2, SG-HMC
as many of 0.06 as give the same trajectory, momenta drawn anew in each (symplectic scheme; the
paper's friction C = I is Sigma in units of the metric: almost none). The paper's step size of
SGLD, 1e-6, is in other units: 0.01 costs about as much as theirs, 0.1 is as accurate and cheaper on
these columns, whose posterior the metric makes round.

A sampler's cost is its inefficiency times row evaluations per draw; HMC-ECS pays for the search,
full-data sums, tuning and final checks too, the others for their draws alone, as in the paper.
Relative computational times are those costs over that of perturbed HMC-ECS, per parameter; column
"draws alone" has medians that leave out what HMC-ECS does once. Rows are counted as this package
reads them: SG samplers expand the control variates of a new batch at each step, HMC-ECS keeps its
subsample within a trajectory. Table 3's spline model of bankruptcies is not public; its row has the
same shape on this data: SG-HMC with as many gradients as HMC-ECS per trajectory.

python tests/benchmarks/sg_higgs.py
python tests/benchmarks/sg_higgs.py --n 100000 --draws 300
"""

import logging
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import QUIET, Checks, command_line, table
from _problems import logistic_rows
from _reference import laplace
from higgs import PRIOR_SD, inefficiency, subsampled

import pymc_subsample as pms

STEP = 0.06
LENGTH = round(1.2 / STEP)
ECS_LENGTH = 6
# Least, median and largest relative computational time.
TABLE_1 = {
    "signed HMC-ECS": (0.8, 1.15, 1.95),
    "SG-HMC": (2.43, 2.97, 4.08),
    "SGLD": (3.58, 12.46, 326.8),
}
TABLE_3 = {
    "signed HMC-ECS": (1.2, 1.6, 2.6),
    "SG-HMC": (6.8, 9.5, 682.3),
    "SG-HMC, as many gradients": (48.6, 100.2, 246.7),
    "SGLD": (53.9, 230.1, 2784.2),
}


def stochastic(model, step, draws, tune, seed):
    """One run: its draws and row evaluations per draw after tuning."""
    with model:
        idata = pm.sample(draws, tune=tune, step=step, chains=1, random_seed=seed, **QUIET)
    evaluations = float(idata["sample_stats"]["n_evaluations"].mean())
    return idata["posterior"]["beta"].values[0], evaluations


def ecs(model, estimator, **settings):
    """Draws of HMC-ECS, weights, and row evaluations per draw: in all, and for the draws alone."""
    idata, once, moves, _ = subsampled(
        model, args.draws, args.tune, args.seed, estimator=estimator, path_length=1.2,
        target_accept=0.98, **settings,
    )  # fmt: skip
    stats = idata["sample_stats"]
    return (idata["posterior"]["beta"].values[0], stats["sign"].values[0],
            (once + moves) / args.draws, float(stats["n_evaluations"].mean()))  # fmt: skip


def main():
    X, y = logistic_rows(args.n, args.d, dtype=np.float32)
    mode, precision = laplace(X, y, PRIOR_SD)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=args.d)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    reference = {"beta": mode}
    lines, checks, ratios, errors = [], Checks(), {}, {}
    base = {}

    def report(name, draws, sign, cost, begin, alone=None):
        factor = inefficiency(draws) / sign.mean() ** 2
        time = factor * cost
        base.setdefault("all", time)
        base.setdefault("alone", factor * alone if alone else None)
        ratio = time / base["all"]
        alone = np.median(factor * (cost if alone is None else alone) / base["alone"])
        ratios[name] = np.min(ratio), np.median(ratio), np.max(ratio)
        mean = (draws * sign[:, None]).sum(axis=0) / sign.sum()
        spread = np.sqrt((draws**2 * sign[:, None]).sum(axis=0) / sign.sum() - mean**2)
        errors[name] = (np.abs(mean - mode) / sd, spread / sd - 1, factor)
        lines.append([
            name, len(draws), factor.mean(), cost, *ratios[name], alone,
            *TABLE_1.get(name, ("",) * 3), *TABLE_3.get(name, ("",) * 3),
            errors[name][0].max(), errors[name][1].mean(), np.abs(errors[name][1]).max(),
            perf_counter() - begin,
        ])  # fmt: skip
        print(f"{name}: {perf_counter() - begin:.0f} s", flush=True)

    for name, settings in (
        ("HMC-ECS", {"estimator": "perturbed", "subsample_size": args.m}),
        ("signed HMC-ECS", {"estimator": "block-poisson"}),
    ):
        begin = perf_counter()
        draws, sign, cost, alone = ecs(model, **settings)
        report(name, draws, sign, cost, begin, alone)

    shared = {"batch_size": args.m, "reference": reference}
    heavy = {"step_size": STEP, "friction": float(np.mean(sd**2)), "integrator": "symplectic"}
    with model:
        plans = {
            "SG-HMC": pms.sgmcmc.SGHMC(transitions_per_draw=LENGTH, resample_every=LENGTH,
                                control_variate_order=2, **heavy, **shared),
            "SG-HMC, as many gradients": pms.sgmcmc.SGHMC(
                transitions_per_draw=ECS_LENGTH, resample_every=ECS_LENGTH,
                control_variate_order=2, **heavy, **shared),
            "SGHMC, our defaults": pms.sgmcmc.SGHMC(**shared),
            "SGLD": pms.sgmcmc.SGLD(step_size=0.01, transitions_per_draw=10 * ECS_LENGTH,
                             control_variate_order=2, **shared),
            "SGLD, h = 0.1": pms.sgmcmc.SGLD(step_size=0.1, transitions_per_draw=ECS_LENGTH,
                                      control_variate_order=2, **shared),
            "SG-HMC, no control variates": pms.sgmcmc.SGHMC(
                transitions_per_draw=LENGTH, resample_every=LENGTH, control_variate_order=None,
                **heavy, **shared),
            "SGLD, h = 0.1, no control variates": pms.sgmcmc.SGLD(
                step_size=0.1, transitions_per_draw=ECS_LENGTH, control_variate_order=None,
                **shared),
        }  # fmt: skip
    for name, step in plans.items():
        begin = perf_counter()
        draws, cost = stochastic(model, step, args.draws, args.tune // 2, args.seed)
        report(name, draws, np.ones(len(draws)), cost, begin)
    print(
        f"\nn = {args.n:,}, d = {args.d}, m = {args.m:,}: computational time over that of HMC-ECS"
    )
    table(
        ["", "draws", "IF", "rows / draw", "least", "median", "most", "draws alone", "Table 1", "",
         "", "Table 3", "", "", "mean error / sd", "sds, mean", "worst", "s"],
        lines,
    )  # fmt: skip
    print()
    checks.at_least("SG-HMC: median computational time over HMC-ECS", ratios["SG-HMC"][1], 1)
    checks.at_least("SGLD over SG-HMC: median computational time",
                    ratios["SGLD"][1] / ratios["SG-HMC"][1], 1)  # fmt: skip
    for name in ("HMC-ECS", "SG-HMC", "SGHMC, our defaults", "SGLD", "SGLD, h = 0.1"):
        means, sds, factor = errors[name]
        # Five errors of the worst of the parameters, beyond the Laplace approximation's.
        noise = 5 * np.sqrt(factor.max() / args.draws)
        checks.at_most(f"{name}: error of a mean, in sds", means.max(), 0.02 + noise)
        checks.at_most(f"{name}: error of an sd", np.abs(sds).max(), 0.06 + noise)
    checks.at_least("SG-HMC without control variates: error of the sds",
                    errors["SG-HMC, no control variates"][1].mean(), 0.1)  # fmt: skip
    checks.exit()


if __name__ == "__main__":
    args = command_line(
        __doc__, n=2_000_000, d=30, m=1300, draws=2000, tune=1000, seed=1
    ).parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.ERROR)
    main()
