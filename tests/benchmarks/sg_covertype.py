r"""Li et al. (2020), section 5.2: logistic regression on Covertype, one pass, table 1.

PYMC_SUBSAMPLE_DATA=<folder that holds covtype.npz> python tests/benchmarks/sg_covertype.py

Class 2 or not on 54 columns, without intercept: 10 quantitative ones in [0, 1], and indicators of 4
areas and 40 soils; N(0, 10 I); a random 80% of the rows to learn from, the others to test; batches
of 50; 200 independent chains from 0, of one pass each: n / b steps, half as many for EWSG, which
takes two batches per step. Accuracies of single draws, and of probabilities averaged over 20 of
them at a time, with their spreads: the paper does not tell which are its own, but only averages
vary as little.

The paper's step sizes do not fit its formulas: with V the sum over all rows, 464,809 here, the
Euler scheme at gamma = 50 is unstable for h > gamma / curvature, 2e-4 here (rows "sum"). They give
the paper's four log-likelihoods if V is a sum over batches of a batch's mean, V / b. The dynamics
of V / b at temperature 1 are, in ours, those of V at temperature b with h / sqrt(b) and
gamma sqrt(b), or h / b without momenta (rows "V / b"); they sample a posterior that is sqrt(50)
times too wide, of which a pass shows little. Rows "V / b, T = 1" have the same steps and the
posterior's own noise. Gradients of pSGLD are scaled by their own size, sums in the paper and means
in ours: its step size is h / n. The paper does not tell the scale of its columns. V / b and [0, 1]
were chosen here because they come near; standardised quantitative columns give single draws its
accuracies (75.1, 75.3, 75.1, 74.8; averages 75.5, 75.5, 75.5, 75.4) and log-likelihoods better by
0.001 to 0.01.

FlyMC starts near the posterior's mode, to which its bounds are tuned, and has one pass after its
lights were drawn: the exact posterior at once, which the others reach later, if at all.
"""

import logging
import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import Checks, command_line, table
from _reference import laplace
from scipy.special import expit

import pymc_subsample as pms

PRIOR_SD = 10**0.5
FRICTION = 50.0
STEP_SIZES = {"SGLD": 0.02e-3, "pSGLD": 5e-3, "SGHMC": 1e-3, "EWSG": 3e-3}
# Accuracy in percent and log-likelihood per row of the test set, and their spreads. The accuracy of
# SGLD cannot be read in our copy.
PAPER = {
    "SGLD": ("", 0.079, -0.525, 0.0),
    "pSGLD": (75.079, 0.094, -0.527, 0.0),
    "SGHMC": (75.272, 0.069, -0.525, 0.0),
    "EWSG": (75.293, 0.045, -0.523, 0.0),
    "FlyMC": (75.165, 0.079, -0.523, 0.001),
}
# Draws whose predictions are averaged.
ENSEMBLE = 20


def covertype_rows(rng):
    """Learning and test rows, 54 columns, quantitative ones scaled to [0, 1]."""
    with np.load(Path(os.environ["PYMC_SUBSAMPLE_DATA"]) / "covtype.npz") as data:
        y = data["y"].astype(np.int8)
        X = np.zeros((len(y), 54), dtype=np.float32)
        quantitative = data["quant"].astype(float)
        low, high = quantitative.min(axis=0), quantitative.max(axis=0)
        X[:, :10] = (quantitative - low) / (high - low)
        X[np.arange(len(y)), 10 + data["wilderness"].astype(int)] = 1
        X[np.arange(len(y)), 14 + data["soil"].astype(int)] = 1
    chosen = rng.permutation(len(y))[: args.rows]
    cut = int(0.8 * len(chosen))
    return (*((X[part], y[part]) for part in (chosen[:cut], chosen[cut:])),)


def samplers(reading, n):
    """Sampler by name, with the paper's step sizes in one of their readings, and its steps."""
    b = args.batch
    share = 1 if reading == "sum" else b
    shared = {"batch_size": b, "temperature": b if reading == "V / b" else 1.0}
    plain = {"control_variate_order": None, "metric": "identity"}
    heavy = plain | {"friction": FRICTION * share**0.5}
    h = {name: size / share for name, size in STEP_SIZES.items()}
    h |= {name: STEP_SIZES[name] / share**0.5 for name in ("SGHMC", "EWSG")}
    h["pSGLD"] = STEP_SIZES["pSGLD"] / n
    yield "SGLD", pms.sgmcmc.SGLD(step_size=h["SGLD"], **plain, **shared), n // b
    yield "pSGLD", pms.sgmcmc.PSGLD(step_size=h["pSGLD"], **plain, **shared), n // b
    yield (
        "SGHMC",
        pms.sgmcmc.SGHMC(step_size=h["SGHMC"], integrator="euler", **heavy,
                  **shared),
        n // b,
    )  # fmt: skip
    yield "EWSG", pms.sgmcmc.EWSG(step_size=h["EWSG"], **heavy, **shared), n // (2 * b)


def last_draws(step, steps, count, seed):
    """Where `count` chains from 0 are after one pass, shape (count, 54); NaN if one diverged."""
    rng, draws = np.random.default_rng(seed), np.empty((count, 54))
    step.transitions_per_draw = steps
    for k in range(count):
        step.setup_chain(rng, 0, 2)
        point, [stats] = step.step({"beta": np.zeros(54)})
        draws[k] = np.nan if stats["diverging"] else point["beta"]
    return draws


def fireflies(step, n, count, seed):
    """Where `count` chains of FireflyMC are one pass after their lights were drawn; transitions."""
    rng, draws, transitions = np.random.default_rng(seed), np.empty((count, 54)), 0
    for k in range(count):
        step.setup_chain(rng, 10**6, 1)  # starts around the mode, adapts its step size
        point, _ = step.step({"beta": np.zeros(54)})
        spent = 0
        while spent < 2 * n:  # log-likelihood and gradient of each row
            point, [stats] = step.step(point)
            spent += stats["n_evaluations"]
            transitions += step.transitions_per_draw
        draws[k] = point["beta"]
    return draws, transitions // count, float(stats["n_bright"])


def predictions(draws, X, y):
    """Accuracy in percent and mean log-likelihood on the test rows, of each draw.

    And the accuracy of probabilities averaged over each `ENSEMBLE` draws, or over all if fewer.
    """
    accuracy, level = np.zeros(len(draws)), np.zeros(len(draws))
    size = min(ENSEMBLE, max(len(draws), 1))
    groups = len(draws) // size
    averaged = np.zeros(groups)
    for start in range(0, len(X), 10_000):
        eta = X[start : start + 10_000] @ draws.T
        truth = y[start : start + 10_000, None]
        accuracy += np.sum((eta > 0) == truth, axis=0)
        level += np.sum(truth * eta - np.logaddexp(0, eta), axis=0)
        mean = expit(eta[:, : groups * size]).reshape(len(eta), groups, size).mean(axis=2)
        averaged += np.sum((mean > 0.5) == truth, axis=0)
    return 100 * accuracy / len(X), level / len(X), 100 * averaged / len(X)


def shown(found, paper):
    """Cells of the table."""
    accuracy, level, averaged = found
    if not len(accuracy):
        return ["none left", *[""] * 9]
    return [
        accuracy.mean(), accuracy.std(), f"{averaged.mean():.2f}", averaged.std(), *paper[:2],
        f"{level.mean():.4f}", level.std(), *paper[2:],
    ]  # fmt: skip


def main():
    (X, y), test = covertype_rows(np.random.default_rng(2))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=54)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    mode, precision = laplace(X.astype(float), y, PRIOR_SD)
    (accuracy,), (level,), _ = predictions(mode[None], *test)
    largest = np.linalg.eigvalsh(precision)[-1]
    print(
        f"Covertype: {len(X):,} rows to learn from, {len(test[0]):,} to test; at the posterior's "
        f"mode {accuracy:.2f}%, {level:.4f}; largest curvature {largest:.3g}"
    )
    found, lines = {}, []
    readings = {"V / b": args.chains, "V / b, T = 1": args.chains, "sum": args.chains // 40}
    for reading, chains in readings.items():
        chains = max(chains, 2)
        with model:
            for k, (name, step, steps) in enumerate(samplers(reading, len(X))):
                if reading == "sum" and name == "pSGLD":
                    continue  # as it is at T = 1
                begin = perf_counter()
                draws = last_draws(step, steps, chains, k)
                seconds = perf_counter() - begin
                left = draws[~np.isnan(draws[:, 0])]
                found[reading, name] = predictions(left, *test)
                paper = PAPER[name] if reading == "V / b" else ("",) * 4
                lines.append([reading, name, steps, *shown(found[reading, name], paper),
                              1e6 * seconds / chains / steps])  # fmt: skip
    with model:
        begin = perf_counter()
        step = pms.FireflyMC()
        draws, steps, bright = fireflies(step, len(X), max(args.chains, 2), len(found))
        seconds = perf_counter() - begin
    exact = found["exact", "FlyMC"] = predictions(draws, *test)
    lines.append([f"exact, {bright:,.0f} bright", "FlyMC", steps, *shown(exact, PAPER["FlyMC"]),
                  1e6 * seconds / len(draws) / steps])  # fmt: skip
    print()
    table(
        ["V", "", "steps", "accuracy, %", "+-", f"of {ENSEMBLE} draws", "+-", "paper", "+-",
         "log-likelihood", "+-", "paper", "+-", "us / step"],
        lines,
    )  # fmt: skip
    print()
    checks = Checks()
    for name in STEP_SIZES:
        wanted = PAPER[name]
        _, level, averaged = found["V / b", name]
        checks.at_most(f"{name}: log-likelihood, distance from the paper's",
                       abs(level.mean() - wanted[2]), 0.003)  # fmt: skip
        if wanted[0]:
            checks.at_most(
                f"{name}: accuracy of {ENSEMBLE} draws, distance from the paper's, %",
                abs(averaged.mean() - wanted[0]), 0.5,
            )  # fmt: skip
    accuracy, level, _ = found["exact", "FlyMC"]
    for what, values, wanted in zip(
        ("accuracy, %", "log-likelihood"), (accuracy, level), PAPER["FlyMC"][::2], strict=True
    ):
        checks.at_least(f"FlyMC: {what}, and the paper's", values.mean(), wanted)
    for reading in ("V / b", "V / b, T = 1"):
        mine = found[reading, "EWSG"]
        for name in ("SGHMC", "pSGLD", "SGLD"):
            other = found[reading, name]
            kinds = "accuracy", "log-likelihood", f"accuracy of {ENSEMBLE} draws"
            for k, what in enumerate(kinds):
                error = np.hypot(mine[k].std(), other[k].std()) / np.sqrt(len(mine[k]))
                checks.at_least(f"{reading}: EWSG's {what} less that of {name}, in its errors",
                                (mine[k].mean() - other[k].mean()) / error, -3)  # fmt: skip
    checks.exit()


if __name__ == "__main__":
    args = command_line(__doc__, rows=581_012, batch=50, chains=200).parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.WARNING)
    main()
