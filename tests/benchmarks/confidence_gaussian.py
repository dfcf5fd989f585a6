"""Bardenet et al. 2014, section 4.3: the mean of N(theta, 1), where batches save at equilibrium.

python tests/benchmarks/confidence_gaussian.py

The data are N(1/2, 0.1^2), so that log-ratios |theta' - theta| |x - (theta + theta') / 2| differ
little between rows. Chains start in the posterior, N(mean of x, 1 / n) under a flat prior; the
random walk is 2.38 posterior sds wide. The paper's bound is C = 2 |theta' - theta| max |x_i|: the
*range* of the rows' log-ratios. `ConfidenceMH(bound=...)` takes a bound on their size and allows
for a range of twice that, so that half the paper's C is what gives the paper's test.
"""

import numpy as np
import pymc as pm
from _chains import sample, show_warnings
from _measure import Checks, command_line, table

import pymc_subsample as pms

parser = command_line(__doc__, seed=1)
parser.add_argument("--n", type=int, nargs="+", default=[10**5, 10**6, 10**7])
parser.add_argument("--tests", type=int, default=1000, help="at 10^5 rows; fewer with more rows")
args = parser.parse_args()


def gaussian_model(x):
    with pm.Model() as model:
        pm.Normal("x", pm.Flat("theta"), 1, observed=x)
    return model


def samplers(x):
    """Name, tests at most, and a function that makes the step."""
    most, low, high = np.abs(x).max(), x.min(), x.max()

    def paper(point, new):
        return abs(new["theta"] - point["theta"]) * most

    def largest(point, new):
        middle = 0.5 * (new["theta"] + point["theta"])
        return abs(new["theta"] - point["theta"]) * max(abs(low - middle), abs(high - middle))

    common = {
        "proposal": pms.proposals.RandomWalk(2.38 / np.sqrt(len(x))),
        "transitions_per_draw": 1,
    }
    few = max(60, int(args.tests * (1e5 / len(x)) ** 0.5))

    def confidence(order, bound, inequality="bernstein-serfling"):
        return lambda: pms.ConfidenceMH(
            control_variate_order=order, bound=bound, inequality=inequality, **common
        )

    yield (
        "exact MH",
        few,
        lambda: pms.AusterityMH(epsilon=0.0, control_variate_order=None, **common),
    )
    yield "confidence, plain, the paper's C", few, confidence(None, paper)
    yield "the same, Bernstein", few, confidence(None, paper, "bernstein")
    yield "confidence, plain, largest |y|", few, confidence(None, largest)
    yield "confidence, plain, full pass", few, confidence(None, "full")
    yield "confidence, order 1, full pass", few, confidence(1, "full")
    yield "confidence, order 2, full pass", few, confidence(2, "full")
    yield "confidence, order 2, C = 0", 20 * args.tests, confidence(2, lambda point, new: 0.0)


HEADER = [
    "sampler",
    "transitions",
    "rows per test",
    "share",
    "running share: 1/4, 1/2, 3/4",
    "evaluations / n",
    "time / exact MH",
    "accepted",
    "error, sds",
    "+-",
    "sd / exact",
    "+-",
]

checks, shares = Checks(), {}
for n in args.n:
    x = np.random.default_rng(args.seed).normal(0.5, 0.1, n)
    mean, sd = x.mean(), 1 / np.sqrt(n)
    model, rows, runs, clock = gaussian_model(x), [], [], None
    start = {"theta": mean + sd * np.random.default_rng(args.seed).normal()}
    print(f"\nn = {n:,}: theta = {mean:.7f} +- {sd:.3g} (analytic); max |x| {np.abs(x).max():.3f}")
    for name, draws, make in samplers(x):
        with model:
            step = make()
        run = sample(
            f"{name}, n = {n:,}",
            step,
            model,
            ["theta"],
            draws=draws,
            seed=args.seed,
            initvals=start,
        )
        runs.append(run)
        clock = clock or run.seconds / draws
        m, s, m_error, s_error = (float(v[0]) for v in run.moments())
        batch = run.stats["batch_size"][0]
        running = (np.cumsum(batch) / np.arange(1, draws + 1) / n)[
            [draws * k // 4 for k in (1, 2, 3)]
        ]
        rows.append(
            [
                name,
                draws,
                float(batch.mean()),
                f"{run.share:.3%}",
                " ".join(f"{v:.2%}" for v in running),
                run.stats["n_evaluations"].mean() / n,
                run.seconds / draws / clock,
                run.acceptance,
                (m - mean) / sd,
                m_error / sd,
                s / sd,
                s_error / sd,
            ]
        )
        shares[name, n] = run, (m - mean) / sd, m_error / sd, s / sd - 1, s_error / sd
    table(HEADER, rows)
    show_warnings(runs)
print("\nThe paper, figure 7(b): the share drops to 25% as n grows from 10^5 to 10^15; no table.\n")
for (name, n), (run, error, error_se, spread, spread_se) in shares.items():
    said = f"{name}, n = {n:,}"
    checks.at_most(f"{said}: error of the mean, standard errors", abs(error / error_se), 4.5)
    checks.at_most(f"{said}: error of the sd, standard errors", abs(spread / spread_se), 4.5)
    if name == "confidence, plain, the paper's C":
        checks.at_most(f"{said}: share of data", run.share, 1 if n < max(args.n) else 0.5)
    if "order" in name:
        checks.at_most(f"{said}: rows per test", run.stats["batch_size"].mean(), 100)
checks.exit()
