"""KDD99 (10%) as rows of a logistic regression, and its exact posterior."""

import os
from pathlib import Path

import numpy as np
from scipy.special import expit


def kdd99_rows(n, rng):
    """A random n of the rows: intercept and 40 columns in [0, 1]; attack or not."""
    with np.load(Path(os.environ["PYMC_SUBSAMPLE_DATA"]) / "kdd99_10.npz") as data:
        numeric, codes = data["num"].astype(float), data["cat"]
        protocols = [list(data["cat_levels_protocol"]).index(name) for name in ("tcp", "udp")]
        flags = [list(data["cat_levels_flag"]).index(name) for name in ("SF", "S0")]
        y = data["y_attack"].astype(np.int8)
    numeric = numeric[:, numeric.std(axis=0) > 0]
    numeric = np.where(numeric.max(axis=0) > 10, np.log1p(numeric), numeric)
    kinds = [codes[:, 0] == p for p in protocols] + [codes[:, 2] == f for f in flags]
    X = np.column_stack([np.ones(len(y)), numeric / numeric.max(axis=0), *kinds])
    rows = rng.permutation(len(y))[:n]
    return np.ascontiguousarray(X[rows]), y[rows]


def distinct_rows(X, y):
    """Rows that differ, and how often each occurs: the likelihood's sum is over fewer terms."""
    # Equal rows have equal projections; rounding may tell some apart, which does no harm.
    keys = X @ np.random.default_rng(0).normal(size=X.shape[1]) + 0.1 * y
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return X[first], y[first].astype(float), counts.astype(float)


def laplace(X, y, counts):
    """Mode and precision under the N(0, 1) prior, by Newton's method."""
    beta = np.zeros(X.shape[1])
    while True:
        p = expit(X @ beta)
        gradient = X.T @ (counts * (y - p)) - beta
        precision = (X.T * (counts * p * (1 - p))) @ X + np.eye(len(beta))
        step = np.linalg.solve(precision, gradient)
        if gradient @ step < 1e-8:
            return beta, precision
        beta += step


def hmc(X, y, counts, mode, factor, draws, rng, chains=8, leaps=3, length=1.5, burn=30):
    """Hamiltonian Monte Carlo on all rows, its mass matrix the curvature at the mode.

    Exact: only the rows' products are in single precision. All chains share one matrix product.
    """
    X32, counts32, signs = (
        X.astype(np.float32),
        counts.astype(np.float32),
        (1 - 2 * y).astype(np.float32),
    )

    def density(z, value=True):
        beta = mode + z @ factor.T
        eta = signs[:, None] * (X32 @ beta.T.astype(np.float32))
        odds = np.exp(np.minimum(eta, 80))
        weighted = odds / (1 + odds) * (signs * counts32)[:, None]
        grad = -(X32.T @ weighted).T.astype(float) - beta
        logp = -(counts32 @ np.log1p(odds)) - 0.5 * (beta**2).sum(axis=1) if value else None
        return logp, grad @ factor

    z = rng.normal(size=(chains, len(mode)))
    logp, grad = density(z)
    kept, accepted = [], []
    for i in range(draws + burn):
        step = length / leaps * rng.uniform(0.7, 1.1)
        start, momentum = (z, logp, grad), rng.normal(size=z.shape)
        energy = logp - 0.5 * (momentum**2).sum(axis=1)
        for leap in range(leaps):
            momentum = momentum + 0.5 * step * grad
            z = z + step * momentum
            logp, grad = density(z, value=leap == leaps - 1)
            momentum = momentum + 0.5 * step * grad
        log_ratio = logp - 0.5 * (momentum**2).sum(axis=1) - energy
        accept = np.log(rng.random(chains)) < log_ratio
        z = np.where(accept[:, None], z, start[0])
        logp, grad = np.where(accept, logp, start[1]), np.where(accept[:, None], grad, start[2])
        if i >= burn:
            kept.append(mode + z @ factor.T)
            accepted.append(accept.mean())
    return np.array(kept).swapaxes(0, 1), np.mean(accepted)
