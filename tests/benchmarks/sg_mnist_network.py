"""Li et al. (2020), section 5.3: a network with one hidden layer of 100 units on MNIST digits.

PYMC_SUBSAMPLE_DATA=<folder of mnist_1v7.npz and mnist_7v9.npz> python sg_mnist_network.py

Digits 1, 7 and 9, the ones in these files, instead of all ten: 18,956 rows to learn from, 3,172 to
test, three classes; pixels in [0, 1]; standard normal priors on all weights; softmax of a layer of
100 tanh units; batches of 100. Nearly 80,000 parameters in an ordinary PyMC model, sampled by the
general path, without control variates and in the units of the weights. Curves are those of
probabilities averaged over the draws so far, one per pass, and of single draws; means over chains
that start at the same small random weights.

The paper's step sizes are read as in sg_covertype.py: V is a sum over batches of a batch's mean,
which in our samplers is a temperature b with h / sqrt(b) and gamma sqrt(b), h / b for SGLD and h /
n for pSGLD (rows "V / b"). The same steps with the posterior's own noise are rows "V / b, T = 1".
The paper shows curves and no numbers: EWSG consistently above the others. It takes two batches per
step: as many gradients per pass, half as many steps.

python tests/benchmarks/sg_mnist_network.py --figure network.png
"""

import logging
import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import Checks, command_line, table
from scipy.special import softmax

import pymc_subsample as pms

HIDDEN, CLASSES = 100, 3
FRICTION = 0.1
READINGS = ("V / b", "V / b, T = 1")
STEP_SIZES = {"EWSG": 4e-3, "SGHMC": 2e-3, "CP-SGHMC": 2e-3, "SGLD": 1e-7, "pSGLD": 1e-4}


def digits():
    """Learning and test rows of digits 1, 7 and 9, as classes 0, 1 and 2."""
    folder = Path(os.environ["PYMC_SUBSAMPLE_DATA"])
    with np.load(folder / "mnist_1v7.npz") as ones, np.load(folder / "mnist_7v9.npz") as rest:
        parts = []
        for part in ("train", "test"):
            first = ones[f"y_{part}"] == 0
            X = np.concatenate([ones[f"X_{part}"][first], rest[f"X_{part}"]])
            y = np.concatenate([np.zeros(first.sum(), int), 1 + rest[f"y_{part}"].astype(int)])
            parts.append((X.astype(np.float32) / 255, y))
    (X, y), test = parts
    chosen = np.random.default_rng(1).permutation(len(X))[: args.rows]
    return (X[chosen], y[chosen]), test


def network(X, y):
    with pm.Model() as model:
        w1 = pm.Normal("w1", 0, 1, shape=(X.shape[1], HIDDEN))
        b1 = pm.Normal("b1", 0, 1, shape=HIDDEN)
        w2 = pm.Normal("w2", 0, 1, shape=(HIDDEN, CLASSES))
        b2 = pm.Normal("b2", 0, 1, shape=CLASSES)
        hidden = pm.math.tanh(pm.Data("X", X) @ w1 + b1)
        pm.Categorical("y", logit_p=hidden @ w2 + b2, observed=y)
    return model


def samplers(reading, n):
    """Name, sampler and steps per pass."""
    b = args.batch
    shared = {"batch_size": b, "temperature": float(b) if reading == "V / b" else 1.0}
    plain = {"control_variate_order": None, "metric": "identity"}
    heavy = plain | {"friction": FRICTION * b**0.5}
    h = {name: size / b**0.5 for name, size in STEP_SIZES.items()}
    euler = {"integrator": "euler"}
    yield "EWSG", pms.sgmcmc.EWSG(step_size=h["EWSG"], **heavy, **shared), n // (2 * b)
    yield "SGHMC", pms.sgmcmc.SGHMC(step_size=h["SGHMC"], **euler, **heavy, **shared), n // b
    yield (
        "CP-SGHMC",
        pms.sgmcmc.ClusteredSGHMC(step_size=h["CP-SGHMC"], **euler, **heavy, **shared),
        n // b,
    )
    yield "SGLD", pms.sgmcmc.SGLD(step_size=STEP_SIZES["SGLD"] / b, **plain, **shared), n // b
    yield (
        "pSGLD",
        pms.sgmcmc.PSGLD(step_size=STEP_SIZES["pSGLD"] / n, **plain, **shared),
        n // b,
    )


def probabilities(point, X):
    return softmax(np.tanh(X @ point["w1"] + point["b1"]) @ point["w2"] + point["b2"], axis=1)


def scores(p, y):
    """Accuracy in percent and mean log-likelihood."""
    level = np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(float).tiny))
    return 100 * np.mean(p.argmax(axis=1) == y), level.mean()


def learning_curves(step, start, X, y):
    """Scores of averages and of single draws by passes, shape (chains, passes, 4); seconds."""
    curves, seconds = np.empty((args.chains, args.passes, 4)), 0.0
    for k in range(args.chains):
        step.setup_chain(np.random.default_rng(k), 0, args.passes + 1)
        point, total = start, 0.0
        for j in range(args.passes):
            begin = perf_counter()
            point, [stats] = step.step(point)
            seconds += perf_counter() - begin
            p = np.nan if stats["diverging"] else probabilities(point, X)
            total = total + p
            curves[k, j] = (
                np.nan if np.isnan(total).any() else (*scores(total / (j + 1), y), *scores(p, y))
            )
    return curves, seconds


def main():
    (X, y), test = digits()
    model = network(X, y)
    rng = np.random.default_rng(3)
    start = {
        "w1": 0.05 * rng.normal(size=(X.shape[1], HIDDEN)), "b1": np.zeros(HIDDEN),
        "w2": 0.05 * rng.normal(size=(HIDDEN, CLASSES)), "b2": np.zeros(CLASSES),
    }  # fmt: skip
    print(f"Digits 1, 7, 9: {len(X):,} rows to learn from, {len(test[0]):,} to test; "
          f"{sum(v.size for v in start.values()):,} parameters", flush=True)  # fmt: skip
    found, cost = {}, {}
    with model:
        for reading in READINGS:
            begin = perf_counter()
            for name, step, steps in samplers(reading, len(X)):
                set_up = perf_counter() - begin
                step.transitions_per_draw = steps
                found[reading, name], seconds = learning_curves(step, start, *test)
                cost[reading, name] = 1e3 * seconds / (args.chains * args.passes * steps), set_up
                begin = perf_counter()
    at = sorted({max(1, args.passes * k // 8) for k in (1, 2, 4, 8)})
    parts = ("accuracy, %", "log-likelihood per row")
    for k, what in enumerate(f"{part}, {of}" for of in ("averages", "draws") for part in parts):
        print(f"\n{what} on the test rows, by passes")
        lines = []
        for key, curves in found.items():
            spread = curves[:, -1, k].std(ddof=1) if len(curves) > 1 else np.nan
            means = [f"{curves[:, j - 1, k].mean():.{2 + k % 2}f}" for j in at]
            lines.append([*key, *means, spread, *cost[key]])
        table(["V", "", *(f"{j} passes" for j in at), "+-", "ms / step", "s, set-up"], lines)
    if args.figure:
        draw_figure(args.figure, found, parts)
    print()
    checks = Checks()
    last = {name: found["V / b", name][:, -1, :2] for name in STEP_SIZES}
    for name in ("EWSG", "SGHMC", "CP-SGHMC"):
        checks.at_least(f"{name}: accuracy of averages, %", last[name][:, 0].mean(), 95)
    for name in ("SGHMC", "CP-SGHMC", "SGLD", "pSGLD"):
        for k, part in enumerate(parts):
            mine, other = last["EWSG"][:, k], last[name][:, k]
            error = np.hypot(mine.std(ddof=1), other.std(ddof=1)) / np.sqrt(len(mine))
            checks.at_least(f"EWSG's {part}, averages, less that of {name}, in its errors",
                            (mine.mean() - other.mean()) / error, -3)  # fmt: skip
    checks.exit()


def draw_figure(path, found, parts):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for line, reading in zip(axes, READINGS, strict=True):
        for k, (ax, part) in enumerate(zip(line, parts, strict=True)):
            for (of, name), curves in found.items():
                if of == reading:
                    curve = curves[:, :, k].mean(axis=0)
                    ax.plot(np.arange(1, len(curve) + 1), curve, label=name)
            ax.set(xlabel="passes over the rows", title=f"{reading}: {part}, averages")
            ax.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    parser = command_line(__doc__, rows=18_956, batch=100, passes=40, chains=4)
    parser.add_argument("--figure", help="where to save the learning curves")
    args = parser.parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.WARNING)
    main()
