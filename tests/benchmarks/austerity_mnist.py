"""Korattikara et al. 2014, section 6.1: MNIST 7 against 9, random walk, figures 2, 3 and 4.

PYMC_SUBSAMPLE_DATA=<folder that holds mnist_7v9.npz> python tests/benchmarks/austerity_mnist.py

12,214 images, their first 50 principal components scaled to unit variance, N(0, 10) coefficients.
The random walk is isotropic with h = 2.38 / sqrt(trace of the posterior's precision); figure 2 is
also made with a quarter of it, for the paper's h is not given and wrong decisions depend on it: the
test's level holds for each look, and close calls have many looks. The reference is
a long run of HMC-ECS, whose own error is bounded by comparing its moments with exact ones. Chains
start in the posterior (at its draws), so that risk is variance and bias, not burn-in.
"""

import os
from pathlib import Path

import numpy as np
from _chains import sample, show_warnings
from _measure import Checks, command_line, one_by_one, sample_hmcecs, table
from _problems import logistic_model
from _reference import exact_posterior, laplace
from scipy.special import expit, stdtr

import pymc_subsample as pms

parser = command_line(__doc__, reference_draws=6_000, chains=8, seed=1)
parser.add_argument("--transitions", type=int, default=400, help="of exact MH, per chain")
parser.add_argument("--decisions", type=int, default=1000, help="that are compared for figure 2")
parser.add_argument("--figure", help="where to draw figures 2 and 3")
args = parser.parse_args()

EPSILONS = (0.0, 0.01, 0.05, 0.1, 0.2)
PAPER_SAMPLES = dict(zip(EPSILONS, (75484, 133069, 200672, 257897, 422978), strict=True))
COMPONENTS, PRIOR_SD, PER_DRAW = 50, 10**0.5, 10
CHECKPOINTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def principal_components():
    with np.load(Path(os.environ["PYMC_SUBSAMPLE_DATA"]) / "mnist_7v9.npz") as data:
        train, test = data["X_train"] / 255.0, data["X_test"] / 255.0
        y = data["y_train"].astype(np.int8)
    mean = train.mean(axis=0)
    _, values, directions = np.linalg.svd((train - mean).T @ (train - mean))
    project = directions[:COMPONENTS].T / np.sqrt(values[:COMPONENTS] / len(train))
    return (train - mean) @ project, y, (test - mean) @ project


X, y, X_test = principal_components()
model = logistic_model(X, y, PRIOR_SD)
mode, precision = laplace(X, y, PRIOR_SD)
SCALE = 2.38 / np.sqrt(np.trace(precision))
print(f"MNIST 7 against 9: {len(y):,} rows, {X.shape[1]} coefficients, {len(X_test):,} test images")

exact = exact_posterior(X, y, PRIOR_SD)
reference, idata = sample_hmcecs(model, draws=args.reference_draws, seed=args.seed)
truth = expit(reference.draws @ X_test.T).mean(axis=0)
mean_error, sd_error = exact.errors(reference.draws)
variance = float(idata["sample_stats"]["loglik_variance"].mean())
print(exact)
print(
    f"reference: HMCECS, {len(reference.draws):,} draws, at least {reference.effective:,.0f} "
    f"effective; variance of its log-likelihood {variance:.2g};\n"
    "  against the exact posterior: means within "
    f"{mean_error:.3f} sd, sds within {sd_error:.1%}\n"
)


def austerity(epsilon, order=None, per_draw=PER_DRAW, scale=SCALE):
    with model:
        return pms.AusterityMH(
            epsilon=epsilon,
            batch_size=500,
            control_variate_order=order,
            proposal=pms.proposals.RandomWalk(scale),
            transitions_per_draw=per_draw,
        )


at = np.linspace(0, len(reference.draws) - 1, args.decisions).astype(int)


def decisions(step):
    """Decisions at posterior draws, and rows read; proposal and u depend on the draw alone."""
    step.setup_chain(np.random.default_rng(args.seed), 0, args.decisions)
    one_by_one(step)
    accepted, rows = np.zeros(args.decisions, dtype=bool), np.zeros(args.decisions)
    for i, beta in enumerate(reference.draws[at]):
        step.rng = np.random.default_rng([args.seed, i])
        _, (stats,) = step.step({"beta": beta})
        accepted[i], rows[i] = stats["accepted"], stats["batch_size"]
    return accepted, rows


def decisions_by_hand(scale):
    """The same with NumPy, on row orders of its own: decisions and rows by epsilon."""
    n, rng = len(y), np.random.default_rng([args.seed, 10**6])
    looks = np.append(np.arange(500, n, 500), n)
    accepted = {e: np.zeros(args.decisions, dtype=bool) for e in EPSILONS}
    rows = {e: np.zeros(args.decisions) for e in EPSILONS}
    for i, beta in enumerate(reference.draws[at]):
        draw = np.random.default_rng([args.seed, i])
        new = beta + scale * draw.standard_normal(len(beta))
        threshold = np.log(draw.random()) + 0.5 * (new @ new - beta @ beta) / PRIOR_SD**2
        eta, new_eta = X @ beta, X @ new
        terms = y * (new_eta - eta) - np.logaddexp(0, new_eta) + np.logaddexp(0, eta)
        terms = n * rng.permutation(terms)
        mean = np.cumsum(terms)[looks - 1] / looks
        second = np.cumsum((terms - mean[-1]) ** 2)[looks - 1] / looks - (mean - mean[-1]) ** 2
        sd = np.sqrt(second / (looks - 1) * (1 - (looks - 1) / (n - 1)))
        with np.errstate(divide="ignore"):
            level = 1 - stdtr(looks - 1, np.abs(mean - threshold) / sd)
        level[-1] = -1
        for epsilon in EPSILONS:
            stop = int(np.argmax(level < epsilon)) if epsilon > 0 else len(looks) - 1
            accepted[epsilon][i], rows[epsilon][i] = mean[stop] > threshold, looks[stop]
    return accepted, rows


checks = Checks()
print("Figure 2: data used and wrong decisions, against exact MH with the same proposals and u")
lines, used, wrong, by_hand = [], {}, {}, {}
for share in (1, 0.25):
    truly, _ = decisions(austerity(0.0, per_draw=1, scale=share * SCALE))
    hand, hand_rows = decisions_by_hand(share * SCALE)
    for epsilon, order in [*((e, None) for e in EPSILONS), (0.05, 2)]:
        key = share, epsilon, order
        accepted, rows = decisions(austerity(epsilon, order, per_draw=1, scale=share * SCALE))
        used[key], wrong[key] = rows.mean() / len(y), np.mean(accepted != truly)
        line = [
            f"{share:g}",
            f"{epsilon:g}",
            "none" if order is None else f"order {order}",
            f"{used[key]:.1%}",
            f"{wrong[key]:.2%}",
        ]
        if order is None:
            by_hand[key] = hand_rows[epsilon].mean() / len(y), np.mean(hand[epsilon] != truly)
            line += [f"{by_hand[key][0]:.1%}", f"{by_hand[key][1]:.2%}"]
        else:
            line += ["", ""]
        line += [accepted.mean(), 1 / used[key]]
        lines.append([*line, PAPER_SAMPLES[epsilon] / PAPER_SAMPLES[0] if order is None else ""])
table(
    [
        "h / optimal",
        "epsilon",
        "control variates",
        "data used",
        "wrong",
        "used, by hand",
        "wrong, by hand",
        "accepted",
        "tests for the rows of one of exact MH",
        "the paper, samples per time / exact MH",
    ],
    lines,
)
print(
    f"{args.decisions:,} decisions: +- {np.sqrt(0.05 * 0.95 / args.decisions):.1%} at 5%. "
    "The paper shows figure 2 without numbers.\n"
)

budget = args.transitions * len(y)  # rows that decisions may read, per chain
results, lines, clock = {}, [], None
starts = [
    {"beta": b} for b in reference.draws[:: len(reference.draws) // args.chains][: args.chains]
]
for epsilon, order in [*((e, None) for e in EPSILONS), (0.05, 2)]:
    share = used[1, epsilon, order]
    draws = int(1.15 * args.transitions / share) // PER_DRAW
    name = f"{epsilon:g}" if order is None else f"{epsilon:g}, order {order}"
    run = sample(
        f"epsilon {name}",
        austerity(epsilon, order),
        model,
        ["beta"],
        draws=draws,
        chains=args.chains,
        seed=args.seed,
        initvals=starts,
    )
    rows = np.cumsum(run.stats["batch_size"] * PER_DRAW, axis=1)
    transitions = run.stats["batch_size"].size * PER_DRAW
    clock = clock or run.seconds / transitions
    running = np.array([np.cumsum(expit(chain @ X_test.T), axis=0) for chain in run.draws])
    risks, last = [], None
    for part in CHECKPOINTS:
        upto = [int(np.searchsorted(r, part * budget)) for r in rows]
        upto = [min(max(k, 1), draws) for k in upto]
        means = np.array([s[k - 1] / k for s, k in zip(running, upto, strict=True)])
        risks.append(float(((means - truth) ** 2).mean()))
        last = means
    spread = last.var(axis=0, ddof=1)
    bias = float(((last.mean(axis=0) - truth) ** 2 - spread / args.chains).mean())
    results[epsilon, order] = run, rows, risks, upto
    read = float(np.mean([r[k - 1] for r, k in zip(rows, upto, strict=True)]))
    lines.append(
        [
            name,
            int(np.mean(upto)) * PER_DRAW,
            read / len(y),
            run.acceptance,
            run.seconds / transitions / clock,
            run.seconds / transitions / clock * np.mean(upto) * PER_DRAW / args.transitions,
        ]
        + [f"{r:.2e}" for r in risks]
        + [f"{bias:.1e}"]
    )
print(
    f"Figure 3: risk of the predictive mean, {args.chains} chains, against rows read; the whole "
    f"budget is {args.transitions:,} n rows per chain"
)
table(
    [
        "epsilon",
        "transitions",
        "rows read / n",
        "accepted",
        "time per transition / exact MH",
        "time / exact MH",
        *(f"risk at {p:g}" for p in CHECKPOINTS),
        "bias^2 at 1",
    ],
    lines,
)
print(
    "The paper, figure 3: the smallest risk at 400 s has epsilon > 0; variance still dominates.\n"
)

print("Figure 4: marginals of the first two coefficients, three chains")
lines = [
    [
        "reference",
        "",
        *(f"{v:.4f}" for v in (exact.mean[0], exact.sd[0], exact.mean[1], exact.sd[1])),
    ]
]
for epsilon in (0.0, 0.01):
    run, rows, _, _ = results[epsilon, None]
    for part in (1 / 4, 1):
        for c in range(min(3, args.chains)):
            kept = run.draws[c, : max(2, int(np.searchsorted(rows[c], part * budget))), :2]
            m, s = kept.mean(axis=0), kept.std(axis=0)
            lines.append(
                [
                    f"epsilon {epsilon:g}, chain {c + 1}",
                    f"{part:g} ({len(kept) * PER_DRAW:,})",
                    *(f"{v:.4f}" for v in (m[0], s[0], m[1], s[1])),
                ]
            )
table(["", "of the budget (transitions)", "mean 1", "sd 1", "mean 2", "sd 2"], lines)

print("\nAll coefficients, all chains pooled")
lines, errors = [], {}
for (epsilon, order), (run, *_) in results.items():
    m, s, m_error, s_error = run.moments(batches=2)
    errors[epsilon, order] = (
        np.sqrt(np.mean(((m - exact.mean) / exact.sd) ** 2)),
        np.sqrt(np.mean((m_error / exact.sd) ** 2)),
        np.mean(s / exact.sd),
        np.sqrt(np.mean((s_error / exact.sd) ** 2)),
    )
    lines.append([run.name, *errors[epsilon, order]])
table(
    [
        "",
        "error of means, rms sds",
        "expected from its variance",
        "mean of sd / exact",
        "+- of one",
    ],
    lines,
)
show_warnings(run for run, *_ in results.values())
print()

checks.at_most("reference: largest error of a mean, in sds", mean_error, 0.1)
checks.at_most("reference: largest relative error of an sd", sd_error, 0.05)
for share in (1, 0.25):
    checks.at_most(f"h {share:g}, epsilon 0: wrong decisions", wrong[share, 0.0, None], 0)
    for epsilon in EPSILONS[1:]:
        (_, p), q = by_hand[share, epsilon, None], wrong[share, epsilon, None]
        error = np.sqrt((p * (1 - p) + q * (1 - q) + 1e-4) / args.decisions)
        said = f"h {share:g}, epsilon {epsilon:g}"
        checks.at_most(
            f"{said}: wrong decisions against those by hand, standard errors",
            abs(p - q) / error,
            4.5,
        )
    order = [used[share, e, None] for e in EPSILONS]
    checks.at_most(f"h {share:g}: largest growth of data used with epsilon", max(np.diff(order)), 0)
risk = {key: risks[-1] for key, (_, _, risks, _) in results.items()}
best = min(v for (e, order), v in risk.items() if e > 0 and order is None)
checks.at_most("best risk with epsilon > 0, over that of exact MH", best / risk[0.0, None], 1)
checks.at_most("order 2, epsilon 0.05: data used", used[1, 0.05, 2], 0.1)
checks.at_most("order 2, epsilon 0.05: wrong decisions", wrong[1, 0.05, 2], 0.05)
checks.at_most("order 2, epsilon 0.05: error of means, rms sds", errors[0.05, 2][0], 0.1)
checks.at_most("order 2, epsilon 0.05: mean sd ratio less 1", abs(errors[0.05, 2][2] - 1), 0.05)

if args.figure:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for share, line in ((1, "-"), (0.25, "--")):
        for color, what, values in (("b", "data used", used), ("r", "wrong decisions", wrong)):
            percent = [100 * values[share, e, None] for e in EPSILONS]
            left.plot(EPSILONS, percent, f"{color}.{line}", label=f"{what}, %, h {share:g}")
    left.plot(EPSILONS, [100 * e for e in EPSILONS], "k", label="epsilon, %")
    left.set(xlabel="epsilon")
    left.legend()
    for (epsilon, order), (_, _, risks, _) in results.items():
        at = np.array(CHECKPOINTS) * args.transitions
        right.loglog(at, risks, ".-", label=f"{epsilon:g}" + (", order 2" if order else ""))
    right.set(xlabel="rows read / n", ylabel="risk of the predictive mean")
    right.legend()
    figure.savefig(args.figure, dpi=90)
checks.exit()
