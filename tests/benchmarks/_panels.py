"""Panels for ``panels.py``: data, models, their exact posteriors, peers, and a kernel by hand."""

import subprocess
import tempfile
from pathlib import Path
from shutil import which
from time import process_time

import numpy as np
import pymc as pm
from _handwritten import estimate, fast, logistic_row, quadratic
from numba import njit
from scipy.optimize import minimize
from scipy.special import expit

# Units and their spread: of the intercept, and of the slope and the rows in the linear model.
INTERCEPT, SLOPE, TAU, OF_SLOPES, SIGMA = -0.5, 0.7, 0.8, 0.4, 1.0


def panel(units, rows, rng):
    """Unit and column of each row, and the effects of units."""
    unit = np.repeat(np.arange(units), rows)
    return unit, rng.normal(size=len(unit)), rng.normal(size=(2, units))


def linear(unit, x, z, rng):
    mean = INTERCEPT + TAU * z[0][unit] + (SLOPE + OF_SLOPES * z[1][unit]) * x
    return rng.normal(mean, SIGMA)


def logistic(unit, x, z, rng):
    return rng.binomial(1, expit(INTERCEPT + TAU * z[0][unit] + SLOPE * x))


def linear_model(unit, x, y):
    units = int(unit[-1]) + 1
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        tau, of_slopes = pm.HalfNormal("tau", 1), pm.HalfNormal("of_slopes", 1)
        sigma = pm.HalfNormal("sigma", 1)
        z, w = pm.Normal("z", 0, 1, shape=units), pm.Normal("w", 0, 1, shape=units)
        pm.Normal("y", a + tau * z[unit] + (b + of_slopes * w[unit]) * x, sigma, observed=y)
    return model


def logistic_model(unit, x, y):
    with pm.Model() as model:
        a, tau, b = pm.Normal("a", 0, 1), pm.HalfNormal("tau", 1), pm.Normal("b", 0, 1)
        z = pm.Normal("z", 0, 1, shape=int(unit[-1]) + 1)
        pm.Bernoulli("y", logit_p=a + tau * z[unit] + b * x, observed=y)
    return model


class ClosedForm:
    """The linear model with its effects integrated out, by sums over the rows of each unit.

    Parameters are a, b and the logarithms of tau, of_slopes and sigma.
    """

    def __init__(self, unit, x, y):
        Z = np.column_stack([np.ones_like(x), x])
        products = np.column_stack([Z[:, i] * Z[:, j] for i, j in ((0, 0), (0, 1), (1, 1))])
        add = np.add.reduceat
        start = np.flatnonzero(np.diff(unit, prepend=-1))
        self.n = add(np.ones_like(x), start)
        self.ZZ, self.Zy = add(products, start), add(Z * y[:, None], start)
        self.yy = add(y * y, start)

    def __call__(self, theta):
        a, b, *logs = theta
        tau, of_slopes, sigma = np.exp(logs)
        s00, s01, s11 = self.ZZ.T
        r0 = self.Zy[:, 0] - s00 * a - s01 * b
        r1 = self.Zy[:, 1] - s01 * a - s11 * b
        squares = self.yy - 2 * (a * self.Zy[:, 0] + b * self.Zy[:, 1])
        squares += a * a * s00 + 2 * a * b * s01 + b * b * s11
        # I + D Z'Z / sigma^2, D Z'r and the rest as Woodbury has it.
        p, q = (tau / sigma) ** 2, (of_slopes / sigma) ** 2
        det = (1 + p * s00) * (1 + q * s11) - p * q * s01**2
        within = p * r0**2 * (1 + q * s11) - 2 * p * q * s01 * r0 * r1 + q * r1**2 * (1 + p * s00)
        logp = -0.5 * np.sum(
            self.n * 2 * logs[2] + np.log(det) + (squares - within / det) / sigma**2
        )
        prior = -0.5 * (a * a + b * b + tau**2 + of_slopes**2 + sigma**2) + np.sum(logs)
        return logp + prior

    def posterior(self, rng, draws=4_000):
        """Means and sds of a, b, tau, of_slopes and sigma by importance sampling; efficiency."""
        found = minimize(lambda x: -self(x), np.zeros(5), method="BFGS", options={"gtol": 1e-3})
        covariance = np.linalg.inv(_hessian(lambda x: -self(x), found.x, np.diag(found.hess_inv)))
        factor = np.linalg.cholesky(covariance)
        normal = rng.normal(size=(draws // 2, 5))
        normal = np.concatenate([normal, -normal])
        thetas = found.x + normal @ factor.T
        log_w = np.array([self(x) for x in thetas]) + 0.5 * (normal**2).sum(axis=1)
        w = np.exp(log_w - log_w.max())
        w /= w.sum()
        values = np.column_stack([thetas[:, :2], np.exp(thetas[:, 2:])])
        mean = w @ values
        return mean, np.sqrt(w @ (values - mean) ** 2), 1 / (draws * (w**2).sum())


def _hessian(function, at, variances):
    """Second differences, in steps of a tenth of a standard deviation."""
    steps = np.diag(0.1 * np.sqrt(variances))
    found = np.empty((len(at), len(at)))
    for i, u in enumerate(steps):
        for j, v in enumerate(steps):
            ends = function(at + u + v) - function(at + u - v)
            ends += function(at - u - v) - function(at - u + v)
            found[i, j] = ends / (4 * u[i] * v[j])
    return found


# What a peer returns: its name, CPU seconds, and for each parameter an estimate and its standard
# error, NaN where it gives none.
_R = """
suppressMessages(library(lme4))
d <- read.csv("{path}")
began <- sum(proc.time()[1:2])
{fit}
seconds <- sum(proc.time()[1:2]) - began
fixed <- coef(summary(fit))
sds <- as.data.frame(VarCorr(fit))$sdcor
cat(seconds, t(fixed[, 1:2]), sds, "\\n")
"""
_FITS = {
    "linear": "fit <- lmer(y ~ x + (x || g), d, REML = FALSE)",
    "logistic": "fit <- glmer(y ~ x + (1 | g), d, family = binomial, nAGQ = 9)",
}


def of_lme4(kind, unit, x, y):
    """Fits of R's lme4, if it is installed."""
    if which("Rscript") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        rows = np.column_stack([unit, x, y])
        np.savetxt(
            path, rows, delimiter=",", header="g,x,y", comments="", fmt=["%d", "%.17g", "%.17g"]
        )
        code = _R.format(path=path, fit=_FITS[kind])
        found = subprocess.run(["Rscript", "-e", code], capture_output=True, text=True)
    if found.returncode:
        return
    seconds, a, se_a, b, se_b, *sds = map(float, found.stdout.split())
    values = [(a, se_a), (b, se_b), *((sd, np.nan) for sd in sds)]
    yield "lme4", seconds, values


def of_statsmodels(kind, unit, x, y):
    """Fits of statsmodels, if it is installed: maximum likelihood, or variational Bayes."""
    try:
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM
        from statsmodels.regression.mixed_linear_model import MixedLM, MixedLMParams
    except ImportError:
        return
    from scipy import sparse

    X, began = np.column_stack([np.ones_like(x), x]), process_time()
    if kind == "linear":
        free = MixedLMParams.from_components(fe_params=np.ones(2), cov_re=np.eye(2))
        fit = MixedLM(y, X, unit, exog_re=X).fit(reml=False, free=free)
        sds = np.sqrt([*np.diag(fit.cov_re), fit.scale])
        values = [*zip(fit.fe_params, fit.bse_fe, strict=True), *((sd, np.nan) for sd in sds)]
        yield "statsmodels MixedLM", process_time() - began, values
        return
    Z = sparse.csr_matrix((np.ones_like(x), (np.arange(len(x)), unit)))
    fit = BinomialBayesMixedGLM(y, X, Z, np.zeros(Z.shape[1], int), vcp_p=1, fe_p=1).fit_vb()
    log_tau, its = fit.vcp_mean[0], fit.vcp_sd[0]
    values = [*zip(fit.fe_mean, fit.fe_sd, strict=True), (np.exp(log_tau), np.exp(log_tau) * its)]
    yield "statsmodels, variational", process_time() - began, values


@fast
def unit_integrals(theta, X, y, place, nu, log_w, total, first, second, value, slope):
    """Log-likelihood of each unit, value (m,), and its derivatives by a, tau and b, slope (3, m).

    X and y, (R, m), have a row for each row of a unit; place, (3, m), are mode, spread, log volume.
    """
    a, tau, b = theta
    R, m = X.shape
    for k in range(len(nu)):
        for i in range(m):
            total[k, i] = log_w[k] + place[2, i] - 0.5 * (place[0, i] + place[1, i] * nu[k]) ** 2
            first[k, i] = second[k, i] = 0.0
        for r in range(R):
            for i in range(m):
                eta = a + tau * (place[0, i] + place[1, i] * nu[k]) + b * X[r, i]
                logp, rest = logistic_row(y[r, i], eta)
                total[k, i] += logp
                first[k, i] += rest
                second[k, i] += rest * X[r, i]
    for i in range(m):
        largest = total[0, i]
        for k in range(1, len(nu)):
            largest = max(largest, total[k, i])
        whole = by_a = by_tau = by_b = 0.0
        for k in range(len(nu)):
            share = np.exp(total[k, i] - largest)
            whole += share
            by_a += share * first[k, i]
            by_tau += share * first[k, i] * (place[0, i] + place[1, i] * nu[k])
            by_b += share * second[k, i]
        value[i] = largest + np.log(whole)
        slope[0, i], slope[1, i], slope[2, i] = by_a / whole, by_tau / whole, by_b / whole


@fast
def unit_density(theta, center, s, X, y, place, nu, log_w, star, A, B, delta, work, node, grad):
    """As ``_handwritten.one_predictor``, of units: theta are a, log tau and b."""
    total, first, second = node
    phi, d, slope, weight = work[0, :3], work[1], work[2:5], work[5]
    phi[0], phi[1], phi[2] = theta[0], np.exp(theta[1]), theta[2]
    for j in range(3):
        delta[j] = phi[j] - center[j]
    unit_integrals(phi, X, y, place, nu, log_w, total, first, second, d, slope)
    for i in range(len(d)):
        d[i] -= star[0, i]
        for j in range(3):
            change = 0.0
            for k in range(3):
                change += star[4 + 3 * j + k, i] * delta[k]
            d[i] -= delta[j] * (star[1 + j, i] + 0.5 * change)
            slope[j, i] -= star[1 + j, i] + change
    value = estimate(s, d, weight) + quadratic(A, B, delta, grad)
    for j in range(3):
        for i in range(len(d)):
            grad[j] += slope[j, i] * weight[i]
    value += theta[1] - 0.5 * (phi[0] ** 2 + phi[1] ** 2 + phi[2] ** 2)
    grad[0] -= phi[0]
    grad[1] = 1 + phi[1] * (grad[1] - phi[1])
    grad[2] -= phi[2]
    return value


def unit_terms(phi, X, y, place, nu, log_w):
    """Star terms of all units, (1 + 3 + 9, n), and their sums: derivatives of log-likelihoods."""
    u = place[0] + place[1] * nu[:, None]
    eta = phi[0] + phi[1] * u[:, None] + phi[2] * X
    p = expit(eta)
    rest, curve = y - p, -p * (1 - p)
    total = (y * eta - np.logaddexp(0, eta)).sum(axis=1) + log_w[:, None] + place[2] - 0.5 * u**2
    by = [np.ones_like(eta), np.broadcast_to(u[:, None], eta.shape), np.broadcast_to(X, eta.shape)]
    largest = total.max(axis=0)
    share = np.exp(total - largest)
    value = largest + np.log(share.sum(axis=0))
    share /= share.sum(axis=0)
    slopes = np.array([(rest * z).sum(axis=1) for z in by])
    mean = (slopes * share).sum(axis=1)
    second = np.array([[(curve * z * w).sum(axis=1) for z in by] for w in by])
    second += slopes[:, None] * slopes[None]
    hessian = (second * share).sum(axis=2) - mean[:, None] * mean[None]
    star = np.concatenate([value[None], mean, hessian.reshape(9, -1)])
    return star, mean.sum(axis=1), hessian.sum(axis=2)


def handwritten(X, y, place, nu, log_w, phi, index):
    """``run(thetas, repeats)``, as ``_handwritten.handwritten``."""
    star, A, B = unit_terms(phi, X, y, place, nu, log_w)
    s, m = X.shape[1] / len(index), len(index)
    X, y, place, star = (
        np.ascontiguousarray(v[:, index], dtype=float) for v in (X, y, place, star)
    )
    delta, grad, work = np.empty(3), np.empty(3), np.empty((6, m))
    node = np.empty((3, len(nu), m))

    @njit
    def loop(thetas, repeats, center, X, y, place, nu, log_w, star, A, B, delta, work, node, grad):
        total = 0.0
        for k in range(repeats):
            theta = thetas[k % len(thetas)]
            total += unit_density(
                theta, center, s, X, y, place, nu, log_w, star, A, B, delta, work, node, grad
            )
        return total

    def run(thetas, repeats):
        given = X, y, place, nu, log_w, star, A, B, delta, work, node, grad
        return loop(thetas, repeats, phi, *given), grad.copy()

    return run
