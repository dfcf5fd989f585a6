"""Bardenet et al. 2014, section 4.1: a normal model of normal and of lognormal data.

python tests/benchmarks/confidence_normal.py [--figure marginals.png]

The model is N(mu, sigma^2) with flat priors in both; the data are 10^5 draws of N(0, 0.1^2), or of
log N(0, 2), read as a lognormal whose logarithm has variance 2 (sd sqrt(2)); --log-sd 2 gives the
other reading. The posterior of sigma is known: sigma^2 = n s^2 / chi^2 with n - 2 degrees.
"""

import numpy as np
import pymc as pm
from _chains import sample, show_warnings
from _measure import Checks, command_line, table
from scipy.special import gammaln

import pymc_subsample as pms

parser = command_line(__doc__, n=100_000, draws=400, tune=400, chains=2, log_sd=2**0.5, seed=1)
parser.add_argument("--figure", help="where to draw the marginals of sigma")
args = parser.parse_args()


def exact_sigma(x):
    """Posterior mean and sd of sigma under flat priors on mu and sigma."""
    n, k = len(x), len(x) - 2
    log_mean = 0.5 * np.log(n * x.var() / 2) + gammaln((k - 1) / 2) - gammaln(k / 2)
    # var = n s^2 / (k - 2) - mean^2, its digits saved by the expansion of the gamma functions
    mean = np.exp(log_mean)
    return mean, mean * np.sqrt((1 / (2 * k)) * (1 + 5 / (4 * k)))


def normal_model(x):
    with pm.Model() as model:
        mu, sigma = pm.Flat("mu"), pm.HalfFlat("sigma")
        pm.Normal("x", mu, sigma, observed=x)
    return model


PROPOSAL = pms.proposals.AdaptiveMetropolis(target_accept=0.5)  # the paper's, in two dimensions


def steps(order):
    common = {"control_variate_order": order, "proposal": PROPOSAL}
    yield "exact MH", lambda: pms.AusterityMH(epsilon=0.0, batch_size=500, **common)
    for batch in (2, 500):
        yield (
            f"austerity .05, batch {batch}",
            lambda batch=batch: pms.AusterityMH(epsilon=0.05, batch_size=batch, **common),
        )
    yield "confidence .01", lambda: pms.ConfidenceMH(bound="full", **common)


HEADER = [
    "sampler",
    "control variates",
    "sigma mean",
    "error, sds",
    "+-",
    "sigma sd / exact",
    "+-",
    "rows per test",
    "share",
    "evaluations / n per transition",
    "time / exact MH",
]

rng = np.random.default_rng(args.seed)
DATA = {
    "N(0, 0.1^2)": rng.normal(0, 0.1, args.n),
    f"log N(0, {args.log_sd**2:.3g})": rng.lognormal(0, args.log_sd, args.n),
}
checks, collected = Checks(), {}
for title, x in DATA.items():
    mean, sd = exact_sigma(x)
    print(f"\n{title}, n = {args.n:,}: sigma = {mean:.6g} +- {sd:.3g} (analytic)")
    model, rows, runs = normal_model(x), [], {}
    start = {"mu": x.mean(), "sigma": x.std()}
    for order in (None, 2):
        for name, make in steps(order):
            with model:
                step = make()
            run = sample(
                f"{name}, {'plain' if order is None else 'order 2'}, {title}",
                step,
                model,
                ["sigma"],
                draws=args.draws,
                tune=args.tune,
                chains=args.chains,
                seed=args.seed,
                initvals=start,
            )
            runs[name, order] = run
            m, s, m_error, s_error = (float(v[0]) for v in run.moments())
            n_evaluations = run.stats["n_evaluations"].mean() / step.transitions_per_draw
            rows.append(
                [
                    name,
                    "none" if order is None else "order 2",
                    f"{m:.6g}",
                    (m - mean) / sd,
                    m_error / sd,
                    s / sd,
                    s_error / sd,
                    float(run.stats["batch_size"].mean()),
                    f"{run.share:.2%}",
                    n_evaluations / args.n,
                    run.seconds / runs["exact MH", None].seconds,
                ]
            )
    table(HEADER, rows)
    show_warnings(runs.values())
    collected[title] = (mean, sd, runs)

print(
    "\nThe paper (figure 4, no numbers but these): austerity with batch 2 on normal data has its "
    "maximum 7% off;\nwith 500 it is better there and 'fails dramatically' on lognormal data; the "
    "confidence sampler is right in all\nthree and needs 'essentially the whole dataset' for the "
    "lognormal.\n"
)
for title, (mean, sd, runs) in collected.items():
    lognormal = title.startswith("log")
    for (name, order), run in runs.items():
        m, s, m_error, s_error = (float(v[0]) for v in run.moments())
        said = f"{title}, {name}, {'plain' if order is None else 'order 2'}"
        if not name.startswith("austerity"):
            checks.at_most(f"{said}: error of the mean, sds", abs(m - mean) / sd, 0.1)
            checks.at_most(f"{said}: relative error of the sd", abs(s / sd - 1), 0.1)
        elif order is None and (lognormal or name.endswith(" 2")):
            off = max(abs(m - mean) / sd, s / sd - 1)
            checks.at_least(f"{said}: visibly wrong, worse of mean (sds) and sd (share)", off, 0.5)
            words = "ConfidenceMH" if lognormal else "wrong too often"
            warned = sum(words in message for message in run.warnings)
            checks.at_least(f"{said}: chains whose warning says '{words}'", warned, args.chains)
    share = runs["confidence .01", None].share
    checks.at_least(f"{title}, confidence, plain: share of data", share, 0.9)

if args.figure:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(collected), figsize=(11, 4), constrained_layout=True)
    for axis, (title, (mean, sd, runs)) in zip(axes, collected.items(), strict=True):
        for (name, order), run in runs.items():
            if order is None:
                values = run.draws[..., 0].ravel()
                low, high = np.quantile(values, [0.005, 0.995])
                axis.hist(
                    values, np.linspace(low, high, 60), density=True, histtype="step", label=name
                )
        grid = np.linspace(mean - 4 * sd, mean + 4 * sd, 200)
        density = np.exp(-0.5 * ((grid - mean) / sd) ** 2) / sd / np.sqrt(2 * np.pi)
        axis.plot(grid, density, "k:", label="analytic")
        axis.set(title=f"{title}: sigma", yscale="log", ylim=(1e-2 * density.max() / 50, None))
        axis.legend()
    figure.savefig(args.figure, dpi=90)
checks.exit()
