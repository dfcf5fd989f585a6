"""Bardenet et al. 2014, section 4.2: Covertype with two attributes.

PYMC_SUBSAMPLE_DATA=<folder that holds covtype.npz> python tests/benchmarks/confidence_covertype.py

400,000 random rows; class 2 against the rest, elevation and aspect. Prior and preprocessing are
those of Gelman et al. (2008), as in the paper: attributes with mean 0 and sd 0.5, Cauchy(0, 2.5)
coefficients, Cauchy(0, 10) intercept. Chains of MH and of the confidence sampler start in the same
four random points; a chain has converged once it is within the posterior's 99.9% ellipsoid.
"""

import numpy as np
import pymc as pm
import scipy.stats
from _chains import sample, show_warnings
from _measure import Checks, command_line, table
from _problems import covertype_rows
from _reference import laplace, log_posterior

import pymc_subsample as pms

parser = command_line(__doc__, n=400_000, draws=200, tune=700, seed=1)
parser.add_argument("--cheap-draws", type=int, default=4000, help="with control variates")
args = parser.parse_args()

SCALES = np.array([10.0, 2.5, 2.5])
CHAINS = 4


def rows(n, rng):
    X, y = covertype_rows()
    chosen = np.sort(rng.permutation(len(y))[:n])
    X, y = X[chosen, :3], y[chosen]
    X[:, 1:] = 0.5 * (X[:, 1:] - X[:, 1:].mean(axis=0)) / X[:, 1:].std(axis=0)
    return X, y


def posterior(X, y, rng, pairs=400):
    """Exact mean and covariance, by importance sampling from the Laplace approximation."""
    mode, precision = laplace(X, y, 1e6)
    z = rng.normal(size=(pairs, 3))
    z = np.concatenate([z, -z])
    betas = mode + z @ np.linalg.inv(np.linalg.cholesky(precision))
    prior = scipy.stats.cauchy.logpdf(betas, 0, SCALES).sum(axis=1)
    log_weights = log_posterior(betas, X, y, np.inf) + prior + 0.5 * (z**2).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    # E_p f = E_q f + cov_q(w, f) / E_q w, as in _reference.py
    tilt = weights / weights.sum() - 1 / len(weights)
    shift = tilt @ (betas - mode)
    centred = betas - mode
    covariance = np.linalg.inv(precision) + (centred.T * tilt) @ centred - np.outer(shift, shift)
    return mode + shift, covariance, weights.mean() ** 2 / (weights**2).mean()


rng = np.random.default_rng(args.seed)
X, y = rows(args.n, rng)
mean, covariance, efficiency = posterior(X, y, rng)
sd = np.sqrt(np.diag(covariance))
print(f"Covertype, {len(y):,} rows, intercept and 2 attributes; posterior {mean} +- {sd}")
print(f"(exact, by importance sampling with efficiency {efficiency:.2%})\n")
with pm.Model() as model:
    beta = pm.Cauchy("beta", 0, SCALES, shape=3)
    pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
starts = [{"beta": value} for value in rng.normal(0, 1, (CHAINS, 3))]

common = {
    "transitions_per_draw": 1,
    "proposal": pms.proposals.AdaptiveMetropolis(target_accept=0.25),
}
SAMPLERS = {
    "exact MH": lambda: pms.AusterityMH(epsilon=0.0, control_variate_order=None, **common),
    "confidence, plain": lambda: pms.ConfidenceMH(
        bound="linear", control_variate_order=None, **common
    ),
    "confidence, order 1": lambda: pms.ConfidenceMH(
        bound="linear", control_variate_order=1, **common
    ),
    "confidence, order 2": lambda: pms.ConfidenceMH(
        bound="linear", control_variate_order=2, **common
    ),
}
HEADER = [
    "sampler",
    "rows to converge / n, by start",
    "share on the way",
    "share in equilibrium",
    "evaluations / n",
    "time / exact MH",
    "accepted",
    "worst mean, sds",
    "+-",
    "sd / exact",
    "+-",
]
inverse, radius = np.linalg.inv(covariance), scipy.stats.chi2(3).ppf(0.999)
lines, runs, needed, clock = [], {}, {}, None
for name, make in SAMPLERS.items():
    anchored = "order" in name
    with model:
        step = make()
    tune, draws = (1000, args.cheap_draws) if anchored else (args.tune, args.draws)
    run = sample(
        name,
        step,
        model,
        ["beta"],
        draws=draws,
        tune=tune,
        chains=CHAINS,
        seed=args.seed,
        initvals=None if anchored else starts,
        keep_tuned=True,
    )
    far = run.draws - mean
    inside = np.einsum("cda,ab,cdb->cd", far, inverse, far) < radius
    reached = [int(np.argmax(i)) if i.any() else len(i) for i in inside]
    batch = run.stats["batch_size"]
    needed[name] = np.array(
        [b[: r + 1].sum() / len(y) for b, r in zip(batch, reached, strict=True)]
    )
    way = np.concatenate([b[: r + 1] for b, r in zip(batch, reached, strict=True)]).mean()
    settled = run._replace(
        draws=run.draws[:, tune:], stats={k: v[:, tune:] for k, v in run.stats.items()}
    )
    runs[name] = settled
    m, s, m_error, s_error = settled.moments(batches=5 if not anchored else 20)
    clock = clock or run.seconds / run.draws[..., 0].size
    worst, off = np.abs((m - mean) / sd).argmax(), np.abs(s / sd - 1).argmax()
    lines.append(
        [
            name,
            "starts at the mode" if anchored else " ".join(f"{v:.1f}" for v in needed[name]),
            "" if anchored else f"{way / len(y):.1%}",
            f"{settled.share:.3%}",
            settled.stats["n_evaluations"].mean() / len(y),
            run.seconds / run.draws[..., 0].size / clock,
            settled.acceptance,
            (m - mean)[worst] / sd[worst],
            (m_error / sd)[worst],
            (s / sd)[off],
            (s_error / sd)[off],
        ]
    )
table(HEADER, lines)
show_warnings(runs.values())
ratio = needed["exact MH"] / needed["confidence, plain"]
print(
    "\nrows to converge, MH over confidence sampler, by start: "
    f"{' '.join(f'{r:.2f}' for r in ratio)} (the paper: up to 3)\nshare in equilibrium: "
    f"{runs['confidence, plain'].share:.1%} (the paper: close to n)\n"
)
checks = Checks()
for name, run in runs.items():
    m, s, m_error, s_error = run.moments(batches=5 if "order" not in name else 20)
    checks.at_most(
        f"{name}: error of a mean, standard errors", np.abs((m - mean) / m_error).max(), 4.5
    )
    checks.at_most(
        f"{name}: error of an sd, standard errors", np.abs((s - sd) / s_error).max(), 4.5
    )
    if "order" in name:
        checks.at_most(f"{name}: error of a mean, sds", np.abs((m - mean) / sd).max(), 0.1)
        checks.at_most(f"{name}: relative error of an sd", np.abs(s / sd - 1).max(), 0.05)
checks.at_least("confidence, plain: best ratio of rows to converge", ratio.max(), 2)
checks.at_least("confidence, plain: share in equilibrium", runs["confidence, plain"].share, 0.8)
checks.at_most("confidence, order 1: share", runs["confidence, order 1"].share, 0.5)
checks.at_most("confidence, order 2: share", runs["confidence, order 2"].share, 0.02)
checks.exit()
