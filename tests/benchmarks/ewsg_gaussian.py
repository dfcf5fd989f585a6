r"""Li et al. (2020), section 5.1: exponentially weighted gradients of a normal target, figure 1.

n = 20 rows c_i ~ N(0, I) in two dimensions, V(theta) = sum |theta - c_i|^2 / 2, batches of one row,
30 passes over the rows. 10,000 independent chains start at 0; KL is that of the normal with their
mean and covariance to the target (a quarter of the chains for figures 1c to 1h).

A pass is n gradients of a row: M + 1 of them per step of EWSG, one for SGLD, pSGLD and SGHMC, and
for SVRG-LD one per row at the centre and two per step. The batch by which each compiled call
estimates the noise of the gradient, for its warnings, is not counted.

The paper has figures and no numbers. It does not say where chains start.

Theorem 4 bounds the mean square error of a time average over T = K h by C (1 / T + h / T * noise +
h^2). Its three terms in turn: the error against T, of slope -1; what is left of the error at a
small fixed T beyond its limit as h -> 0, of slope 1 in h; and the squared bias as T -> infinity, of
slope 2. Here the function is the variance, |theta - mean|^2 / 2. The last two are slopes of SGHMC.
With M = 1, EWSG's bias of a variance is negative for small h (the weights prefer large gradients,
which steepens the potential), positive for large h, and 0 at about h = 0.0075: its square keeps
to the bound, below that of SGHMC at every step, but has no slope there and rises faster beyond.

The paper argues that the chain over rows may as well go on from step to step. By hand, below, that
is worse: the same row pushes again and again.

python tests/benchmarks/ewsg_gaussian.py --figure ewsg.png
python tests/benchmarks/ewsg_gaussian.py --chains 800 --replicates 200 --time 300
"""

import logging
from time import perf_counter

import numpy as np
import pymc as pm
from _measure import QUIET, Checks, command_line, table
from arviz_stats.base import array_stats

import pymc_subsample as pms

PASSES = 30
DIM = 2
EWSG = {"step_size": 5e-2, "friction": 10.0}
RULES = ("momentum", "zero", "one", "stop")
STEP_SIZES = (0.1, 0.05, 0.025, 0.0125, 0.00625)
LENGTHS = {20: (1, 3, 4, 9, 19), 50: (1, 4, 9, 19), 100: (1, 4, 9, 19)}
# Of Theorem 4: a time average takes positions this far apart.
SPACING = 0.2
SMALL_STEPS = (0.0025, 0.005, 0.01, 0.02)
# The bias at larger ones, too.
LARGE_STEPS = (0.04, 0.08)
TIMES = (2, 4, 8, 16, 32)


def gaussian_rows(n):
    return np.random.default_rng(3).normal(size=(n, DIM))


def gaussian_model(rows):
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=DIM)
        pm.Normal("c", theta, 1, observed=pm.Data("rows", rows))
    return model


def make(model, sampler, **settings):
    """A sampler with batches of one row, in the units of theta."""
    settings = {"metric": "identity", "batch_size": 1, "step_size": 5e-2} | settings
    with model:
        return sampler(**settings)


def chains(step, count, every, keep, *, seed, start=None):
    """Positions of independent chains every so many steps, shape (keep, count, 2)."""
    step.transitions_per_draw = every
    rng, found = np.random.default_rng(seed), np.empty((keep, count, DIM))
    for k in range(count):
        step.setup_chain(rng, 0, keep + 1)
        point = {"theta": np.zeros(DIM) if start is None else start}
        for j in range(keep):
            point, _ = step.step(point)
            found[j, k] = point["theta"]
    return found


def divergence(draws, rows):
    """KL of the normal with the draws' moments to N(mean of the rows, I / n)."""
    n, shift = len(rows), draws.mean(axis=0) - rows.mean(axis=0)
    ratio = np.cov(draws.T) * n
    return 0.5 * (np.trace(ratio) - DIM - np.linalg.slogdet(ratio)[1] + n * shift @ shift)


def autocorrelation_time(draws):
    """1 + sum of autocorrelations: the paper's, without the usual 2."""
    ess = min(array_stats.ess(draws[None, :, j], method="mean") for j in range(DIM))
    return (len(draws) / ess + 1) / 2


def by_hand(rows, count, steps, h, friction, rng, persistent=False):
    """EWSG with M = 1 in NumPy; its chain over rows starts anew in each step, or goes on."""
    n, sigma = len(rows), np.sqrt(2 * friction)
    theta, r = np.zeros((count, DIM)), rng.normal(size=(count, DIM))
    index = rng.integers(n, size=count)
    for _ in range(steps):
        if not persistent:
            index = rng.integers(n, size=count)
        other = rng.integers(n, size=count)
        x = np.sqrt(h) * friction * r / sigma
        here, there = (
            np.sum((x + np.sqrt(h) * n * (theta - rows[i]) / sigma) ** 2, axis=1)
            for i in (index, other)
        )
        index = np.where(np.log(rng.random(count)) < (there - here) / 2, other, index)
        force = -n * (theta - rows[index])
        noise = sigma * np.sqrt(h) * rng.normal(size=(count, DIM))
        theta, r = theta + h * r, r + h * (force - friction * r) + noise
    return theta


def samplers(model):
    """Name, step method, gradients of a row per step; SVRG-LD has a centre every n steps."""
    yield "SGLD", make(model, pms.sgmcmc.SGLD, step_size=5e-3, control_variate_order=None), 1
    yield "pSGLD", make(model, pms.sgmcmc.PSGLD, step_size=5e-3, control_variate_order=None), 1
    yield "SGHMC", uniform(model), 1
    yield "EWSG", weighted(model), 2
    yield "SVRG-LD", make(model, pms.sgmcmc.SVRGLD, step_size=5e-4), 3


def weighted(model, **settings):
    return make(model, pms.sgmcmc.EWSG, control_variate_order=None, **EWSG | settings)


def uniform(model, **settings):
    settings = EWSG | settings
    return make(model, pms.sgmcmc.SGHMC, integrator="euler", control_variate_order=None, **settings)


def learning_curves(model, rows, count):
    """Figure 1a: KL by passes."""
    n, found = len(rows), {}
    for k, (name, step, cost) in enumerate(samplers(model)):
        begin = perf_counter()
        draws = chains(step, count, 3 * n // cost, PASSES // 3, seed=k)
        found[name] = [divergence(d, rows) for d in draws], perf_counter() - begin
    at = (3, 6, 12, 30)
    lines = [
        [name, *(curve[p // 3 - 1] for p in at), seconds]
        for name, (curve, seconds) in found.items()
    ]
    print(f"\nFigure 1a: KL by passes over the rows, {count:,} chains")
    table(["", *(f"{p} passes" for p in at), "s"], lines)
    return {name: curve for name, (curve, _) in found.items()}


def expectations(model, rows, count):
    """Figure 1c: KL by passes for the rules of x."""
    n = len(rows)
    found = {}
    for k, rule in enumerate(RULES):
        step = weighted(model, expected=rule)
        draws = chains(step, count, 3 * n // 2, PASSES // 3, seed=20 + k)
        found[rule] = [divergence(d, rows) for d in draws]
    print("\nFigure 1c: KL by passes, where the dynamics are expected to go (x)")
    at = (3, 6, 12, 30)
    table(["x", *(f"{p} passes" for p in at)],
          [[rule, *(curve[p // 3 - 1] for p in at)] for rule, curve in found.items()])  # fmt: skip
    return found


def lengths(count):
    """Figures 1d, 1e, 1g and 1h: KL after all passes by the length of the chain over rows."""
    curves, final = {}, {}
    for n, choices in LENGTHS.items():
        rows = gaussian_rows(n)
        model = gaussian_model(rows)
        for M in choices:
            step = weighted(model, index_chain=M)
            blocks = 10 if 3 * n % (M + 1) == 0 else 1
            draws = chains(step, count, PASSES * n // (M + 1) // blocks, blocks, seed=40 + M)
            curve = [divergence(d, rows) for d in draws]
            final[n, M] = curve[-1]
            if n == 20:
                curves[M] = curve
        draws = chains(uniform(model), count, PASSES * n, 1, seed=40)
        final[n, 0] = divergence(draws[-1], rows)
    print("\nFigures 1d to 1h: KL after 30 passes by M, steps of the chain over rows (0: SGHMC)")
    columns = sorted({M for _, M in final})
    table(
        ["n", *(f"M = {M}" for M in columns), "best M", "paper"],
        [
            [n, *(final.get((n, M)) for M in columns),
             min((M for k, M in final if k == n), key=lambda M, n=n: final[n, M]),
             {20: "", 50: "19", 100: "19"}[n]]
            for n in LENGTHS
        ],
    )  # fmt: skip
    return curves, final


def trade(model, rows, time):
    """Figure 1b: KL of a long chain against its autocorrelation time."""
    found = {"SGHMC": [], "EWSG": []}
    lines = []
    for h in STEP_SIZES:
        for name in found:
            step = (uniform if name == "SGHMC" else weighted)(model, step_size=h)
            every = max(1, round(0.05 / h))
            keep = int(time / h / every)
            draws = chains(step, 1, every, keep + 200, seed=7)[200:, 0]
            tau = autocorrelation_time(draws) * every
            found[name].append((tau, divergence(draws, rows)))
    for k, h in enumerate(STEP_SIZES):
        (t0, e0), (t1, e1) = found["SGHMC"][k], found["EWSG"][k]
        lines.append([f"{h:g}", t0, e0, t1, e1, 2 * t1])
    print("\nFigure 1b: error against autocorrelation time of long chains, by step size")
    table(["h", "SGHMC: steps", "KL", "EWSG: steps", "KL", "gradients"], lines)
    return found


def time_averages(make_step, model, rows, h, count, time, seed):
    """Time averages of |theta - mean|^2 / 2 over true values, of chains that have settled."""
    step = make_step(model, step_size=h)
    every, keep, settle = round(SPACING / h), round(time / SPACING), 10
    mean = rows.mean(axis=0)
    draws = chains(step, count, every, keep + settle, seed=seed, start=mean)[settle:]
    return np.mean((draws - mean) ** 2, axis=(0, 2)) * len(rows)


def continuous_error(n, friction, time):
    """Mean square error of such an average as h -> 0, in closed form."""
    keep = round(time / SPACING)
    root = np.sqrt(friction**2 - 4 * n)
    fast, slow = (friction + root) / 2, (friction - root) / 2
    lag = SPACING * np.abs(np.subtract.outer(np.arange(keep), np.arange(keep)))
    correlation = (fast * np.exp(-slow * lag) - slow * np.exp(-fast * lag)) / root
    return np.mean(correlation**2) * 2 / DIM


def slope(x, y, error):
    """Slope of log y on log x by weighted least squares, and its standard error."""
    weight = (y / error) ** 2
    centred = np.log(x) - np.average(np.log(x), weights=weight)
    spread = np.sum(weight * centred**2)
    return np.sum(weight * centred * np.log(y)) / spread, spread**-0.5


def theorem(model, rows, replicates, time):
    """Figures 1j to 1l: errors of time averages and the slopes of their three parts."""

    def measured(values):
        return values.mean(), values.std(ddof=1) / np.sqrt(len(values))

    steps, times, h0 = np.array(SMALL_STEPS), np.array(TIMES), SMALL_STEPS[1]
    all_steps, small = np.array(SMALL_STEPS + LARGE_STEPS), slice(len(steps))
    limit = continuous_error(len(rows), EWSG["friction"], times[0])
    parts, lines = {}, []
    for name, make_step in (("SGHMC", uniform), ("EWSG", weighted)):
        biases = np.array([
            measured(time_averages(make_step, model, rows, h, 20, time / 20, 200 + k) - 1)
            for k, h in enumerate(all_steps)
        ])  # fmt: skip
        by_step = np.array([
            measured((time_averages(make_step, model, rows, h, replicates, times[0], 100 + k)
                      - 1) ** 2)
            for k, h in enumerate(steps)
        ])  # fmt: skip
        third = biases[:, 0] ** 2 - biases[:, 1] ** 2
        third_error = 2 * np.abs(biases[:, 0]) * biases[:, 1]
        second = by_step[:, 0] - limit - third[small]
        second_error = np.hypot(by_step[:, 1], third_error[small])
        parts[name] = second, second_error, third, third_error
        lines += [
            [name, f"{h:g}", *by_step[k], by_step[k, 0] - limit, second[k], *biases[k], third[k]]
            for k, h in enumerate(steps)
        ]
        lines += [
            [name, f"{h:g}", *[""] * 4, *biases[k], third[k]]
            for k, h in enumerate(all_steps) if k >= len(steps)
        ]  # fmt: skip
    by_time = np.array([
        measured((time_averages(weighted, model, rows, h0, replicates // t, t, t) - 1) ** 2)
        for t in TIMES
    ])  # fmt: skip
    first = by_time[:, 0] - parts["EWSG"][2][1]
    parts["T"] = first
    print(f"\nTheorem 4: mean square error of the average variance, over the variance's square;\n"
          f"limit as h -> 0 at T = {times[0]} (closed form): {limit:.4f}")  # fmt: skip
    table(
        ["T", f"EWSG: error at h = {h0:g}", "+-", "less the squared bias"],
        [[int(t), *found, left] for t, found, left in zip(TIMES, by_time, first, strict=True)],
    )
    print()
    table(
        ["", "h", f"error at T = {times[0]}", "+-", "less limit", "less squared bias too",
         "bias at T = inf", "+-", "squared"],
        lines,
    )  # fmt: skip
    largest = slice(len(steps) - 1, None)
    for name in ("SGHMC", "EWSG"):
        _, _, third, third_error = parts[name]
        value, error = slope(all_steps[largest], third[largest], third_error[largest])
        print(
            f"slope of {name}'s squared bias from h = {steps[-1]:g} on: {value:.2f} +- {error:.2f}"
        )
    second, second_error, third, third_error = parts["SGHMC"]
    third, third_error = third[small], third_error[small]
    slopes = {
        "EWSG's error against T": (*slope(times, first, by_time[:, 1]), -1),
        "SGHMC's error at fixed T, less limit and squared bias, against h": (
            *slope(steps, second, second_error), 1),
        "SGHMC's squared bias against h": (*slope(steps, third, third_error), 2),
    }  # fmt: skip
    return slopes, parts


def draw_figure(path, curves, traded, rules, lengths_curves, final, parts):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(17, 8), layout="constrained")

    def by_passes(ax, title, found, label="{}"):
        for name, curve in found.items():
            ax.semilogy(np.arange(1, len(curve) + 1) * PASSES / len(curve), curve,
                        label=label.format(name))  # fmt: skip
        ax.set(title=title, xlabel="passes over the rows", ylabel="KL")
        ax.legend()

    by_passes(axes[0, 0], "1a: samplers", curves)
    for name, points in traded.items():
        axes[0, 1].loglog(*zip(*sorted(points), strict=True), "o-", label=name)
    axes[0, 1].set(title="1b: step sizes", xlabel="autocorrelation time, steps", ylabel="KL")
    axes[0, 1].legend()
    axes[0, 1].xaxis.set_minor_formatter("")
    by_passes(axes[0, 2], "1c: x", rules)
    by_passes(axes[0, 3], "1d: M", lengths_curves, "M = {}")
    for n in LENGTHS:
        lengths = [M for k, M in final if k == n]
        axes[1, 0].semilogy(lengths, [final[n, M] for M in lengths], "o", label=f"n = {n}")
    axes[1, 0].set(title="1e to 1h: after 30 passes", xlabel="M (0: SGHMC)", ylabel="KL")
    axes[1, 0].legend()
    for ax, title, power, name in (
        (axes[1, 1], "1j: EWSG, error against T", -1, "T"),
        (axes[1, 2], f"1k: error at T = {TIMES[0]}, less limit and squared bias", 1, "h"),
        (axes[1, 3], "1l: squared bias", 2, "h"),
    ):
        x = np.array(TIMES if name == "T" else SMALL_STEPS, dtype=float)
        if power == 2:
            x = np.array(SMALL_STEPS + LARGE_STEPS)
        lines = {"EWSG": parts["T"]}
        if name == "h":
            lines = {sampler: parts[sampler][2 * power - 2] for sampler in ("SGHMC", "EWSG")}
        for sampler, y in lines.items():
            ax.loglog(x[y > 0], y[y > 0], "o-", label=sampler)
        y = next(iter(lines.values()))
        ax.loglog(x, y[-1] * (x / x[-1]) ** power, "k:", label=f"slope {power}")
        ax.set(title=title, xlabel=name)
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ax.xaxis.set_minor_formatter("")
        ax.legend()
    figure.savefig(path, dpi=80)


def passes_needed(curve):
    """Passes from which on a curve of KL stays within 1.5 times its last value."""
    above = np.flatnonzero(np.array(curve) > 1.5 * curve[-1])
    return (above[-1] + 2 if len(above) else 1) * PASSES / len(curve)


def check(curves, hand, traded, rules, final, slopes, parts, by_sample, noise):
    """`noise` is the Monte Carlo error of a KL."""
    checks, last = Checks(), {name: curve[-1] for name, curve in curves.items()}
    for other in ("SGHMC", "SGLD", "pSGLD"):
        checks.at_most(f"EWSG: final KL over that of {other}", last["EWSG"] / last[other], 1)
    rest = min(value for name, value in last.items() if name != "SVRG-LD")
    checks.at_most("SVRG-LD: final KL over the best other", last["SVRG-LD"] / rest, 1)
    needed = {name: passes_needed(curve) for name, curve in curves.items()}
    slowest = max(value for name, value in needed.items() if name != "SVRG-LD")
    checks.at_least("SVRG-LD: passes until KL is within 1.5 times its last, over the slowest other",
                    needed["SVRG-LD"] / slowest, 1)  # fmt: skip
    checks.at_most("EWSG: final KL as written by hand, difference", abs(last["EWSG"] - hand), noise)
    checks.at_most("EWSG: KL of a run of pm.sample, difference", abs(last["EWSG"] - by_sample),
                   noise)  # fmt: skip
    (t0, e0), (t1, e1) = (np.array(sorted(traded[name])).T for name in ("SGHMC", "EWSG"))
    shared = t1[(t1 >= t0[0]) & (t1 <= t0[-1])]
    excess = np.interp(shared, t1, e1) / np.exp(np.interp(np.log(shared), np.log(t0), np.log(e0)))
    checks.at_most("EWSG: largest KL over SGHMC's at equal autocorrelation times", max(excess), 1)
    best = min(rules[rule][-1] for rule in RULES if rule != "momentum")
    checks.at_most(
        "x by momentum: final KL over the best other rule's", rules["momentum"][-1] / best, 1
    )
    for n in (50, 100):
        checks.at_most(f"n = {n}: final KL at M = 19 over M = 1", final[n, 19] / final[n, 1], 1)
    for name, (value, error, expected) in slopes.items():
        checks.at_most(f"slope of {name}: {value:.2f} +- {error:.2f}; distance from {expected}",
                       abs(value - expected), 0.2 + 3 * error)  # fmt: skip
    for part, what in ((0, "second"), (2, "third")):
        mine, theirs = parts["EWSG"][part], parts["SGHMC"][part]
        error = np.hypot(parts["EWSG"][part + 1], parts["SGHMC"][part + 1])
        checks.at_most(f"Theorem 4: the {what} part of EWSG's error less SGHMC's, in its errors",
                       np.max((mine - theirs) / error), 3)  # fmt: skip
    checks.exit()


def sampled(model, rows, draws):
    """KL of one run of pm.sample, its draws far enough apart to be almost independent."""
    with model:
        idata = pm.sample(
            draws, tune=20, chains=1, random_seed=11, step=weighted(model, transitions_per_draw=40),
            **QUIET,
        )  # fmt: skip
    return divergence(idata["posterior"]["theta"].values[0], rows)


def main():
    rows = gaussian_rows(20)
    model = gaussian_model(rows)
    curves = learning_curves(model, rows, args.chains)
    rng = np.random.default_rng(9)
    steps = PASSES * len(rows) // 2
    hand, persistent = (
        divergence(by_hand(rows, args.chains, steps, 5e-2, 10.0, rng, kept), rows)
        for kept in (False, True)
    )
    by_sample = sampled(model, rows, args.chains)
    print(
        f"EWSG after {PASSES} passes: {curves['EWSG'][-1]:.4f}; by hand {hand:.4f}, its chain over "
        f"rows kept between steps {persistent:.4f}; one run of pm.sample {by_sample:.4f}"
    )
    traded = trade(model, rows, args.time)
    rules = expectations(model, rows, args.chains // 4)
    by_length, final = lengths(args.chains // 4)
    slopes, parts = theorem(model, rows, args.replicates, 5 * args.time)
    if args.figure:
        draw_figure(args.figure, curves, traded, rules, by_length, final, parts)
    print()
    # Four errors of a difference: a variance of r times the target's gives KL an error of
    # (r - 1) / sqrt(chains), and r is about 2.2.
    noise = 4 * np.sqrt(2) * 1.2 / np.sqrt(args.chains)
    check(curves, hand, traded, rules, final, slopes, parts, by_sample, noise)


if __name__ == "__main__":
    parser = command_line(__doc__, chains=10_000)
    parser.add_argument("--time", type=float, default=3000, help="of the long chains, in T")
    parser.add_argument("--replicates", type=int, default=4000, help="of time averages")
    parser.add_argument("--figure", help="where to save a picture of all parts of figure 1")
    args = parser.parse_args()
    logging.getLogger("pymc.subsample").setLevel(logging.WARNING)
    main()
