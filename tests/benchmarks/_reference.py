"""Exact moments of a logistic regression's full-data posterior, by importance sampling.

With the Laplace approximation q = N(mode, S) as proposal and weights w = p/q, moments follow from
E_p f = E_q f + cov_q(w, f) / E_q w, where E_q f is known in closed form. With tall data the weights
are almost constant, so the Monte Carlo error is a small fraction of that of as many independent
posterior draws. Draws come in pairs mirrored at the mode, which cancels odd terms.
"""

from typing import NamedTuple

import numba
import numpy as np
from arviz_stats.base import array_stats


class Posterior(NamedTuple):
    mode: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    mean_error: float  # largest standard error of a mean, in posterior sds
    sd_error: float  # largest relative standard error of an sd
    efficiency: float  # effective share of the importance draws
    khat: float

    def errors(self, draws):
        """Largest error of a mean, in posterior sds, and largest relative error of an sd."""
        return np.abs((draws.mean(axis=0) - self.mean) / self.sd).max(), np.abs(
            draws.std(axis=0) / self.sd - 1
        ).max()

    def __str__(self):
        return (
            f"exact full-data posterior: standard errors {self.mean_error:.5f} sd (means), "
            f"{self.sd_error:.3%} (sds); "
            f"importance efficiency {self.efficiency:.1%}, Pareto k {self.khat:.2f}"
        )


def laplace(X, y, prior_sd, tolerance=1e-8, chunk=2**16):
    """Posterior mode and precision by Newton's method on all rows."""
    d = X.shape[1]
    beta = np.zeros(d)
    while True:
        gradient, precision = -beta / prior_sd**2, np.eye(d) / prior_sd**2
        for start in range(0, len(X), chunk):
            rows = X[start : start + chunk]
            p = 1 / (1 + np.exp(-(rows @ beta)))
            gradient += rows.T @ (y[start : start + chunk] - p)
            precision += (rows.T * (p * (1 - p))) @ rows
        step = np.linalg.solve(precision, gradient)
        if gradient @ step < tolerance:
            return beta, precision
        beta += step


@numba.njit(parallel=True, fastmath=True)
def _sum_softplus(eta):
    """Row sums of log(1 + exp(eta)): one exp per element, and one log per 256 of them."""
    sums = np.zeros(len(eta))
    for k in numba.prange(len(eta)):
        row = eta[k]
        for start in range(0, len(row), 256):
            product = 1.0
            for i in range(start, min(start + 256, len(row))):
                sums[k] += max(row[i], 0.0)
                product *= 1 + np.exp(-abs(row[i]))
            sums[k] += np.log(product)
    return sums


def log_posterior(betas, X, y, prior_sd, chunk=2**13, batch=256):
    """Full-data log posterior density at each row of ``betas``, up to a constant."""
    out = betas @ sum(X[i : i + 2**17].T @ y[i : i + 2**17] for i in range(0, len(X), 2**17))
    out -= 0.5 * (betas**2).sum(1) / prior_sd**2
    for k in range(0, len(betas), batch):
        for start in range(0, len(X), chunk):
            out[k : k + batch] -= _sum_softplus(betas[k : k + batch] @ X[start : start + chunk].T)
    return out


def exact_posterior(X, y, prior_sd, pairs=1000, seed=1, groups=50):
    mode, precision = laplace(X, y, prior_sd)
    covariance = np.linalg.inv(precision)
    half = np.random.default_rng(seed).normal(size=(pairs, 1, X.shape[1]))
    z = (half * np.array([[1], [-1]])).reshape(2 * pairs, -1)
    offsets = z @ np.linalg.cholesky(covariance).T
    log_weights = log_posterior(mode + offsets, X, y, prior_sd) + 0.5 * (z**2).sum(1)
    weights = np.exp(log_weights - log_weights.max())

    def moments(w, x):
        tilt = w / w.sum() - 1 / len(w)
        shift = tilt @ x
        variance = np.diag(covariance) + tilt @ x**2 - shift**2
        return np.array([shift, np.sqrt(variance)])

    shift, sd = moments(weights, offsets)
    folds = np.arange(2 * pairs) // 2 % groups
    leave_out = np.array([moments(weights[folds != g], offsets[folds != g]) for g in range(groups)])
    error = np.sqrt((groups - 1) * leave_out.var(axis=0))  # grouped jackknife
    return Posterior(
        mode=mode,
        mean=mode + shift,
        sd=sd,
        mean_error=(error[0] / sd).max(),
        sd_error=(error[1] / sd).max(),
        efficiency=weights.mean() ** 2 / (weights**2).mean(),
        khat=float(array_stats.psislw(log_weights)[1]),
    )
