"""Hand-written gradients of the perturbed log density, the yardstick of ``gradient.py``.

One predictor eta_i = z_i' beta per row; order-2 Taylor control variates in phi = beta, or
phi = (beta, sigma). The rows of the subset and their star terms are gathered beforehand, one
contiguous vector per column, which lets the compiler vectorise over rows. The value and gradient
are those of

    log prior + sum_i q_i + s sum_u d_u - s^2 / 2 sum_u (d_u - mean d)^2

with s = n / m and d_u = l_u - q_u.
"""

import numpy as np
from numba import njit

fast = njit(fastmath=True, error_model="numpy")


@fast
def logistic_row(y, eta):
    """Log-likelihood and its derivative in eta, with one exp and one log."""
    x = np.exp(-abs(eta))
    inverse = 1 / (1 + x)
    p = inverse if eta >= 0 else x * inverse
    return y * eta - max(eta, 0.0) - np.log(1 + x), y - p


@fast
def poisson_row(y, eta):
    mu = np.exp(eta)
    return y * eta - mu, y - mu


@fast
def predictor(Z, delta, out):
    """out = Z' delta, for Z with one row per column of the design."""
    out[:] = 0.0
    for j in range(len(delta)):
        z, step = Z[j], delta[j]
        for i in range(len(out)):
            out[i] += step * z[i]


@fast
def quadratic(A, B, delta, grad):
    """A' delta + delta' B delta / 2, and its gradient."""
    value = 0.0
    for j in range(len(delta)):
        b = 0.0
        for k in range(len(delta)):
            b += B[j, k] * delta[k]
        value += delta[j] * (A[j] + 0.5 * b)
        grad[j] = A[j] + b
    return value


@fast
def estimate(s, d, weight):
    """s sum d - s^2/2 sum (d - mean)^2, and its derivatives in each d."""
    total = 0.0
    for i in range(len(d)):
        total += d[i]
    mean, squares = total / len(d), 0.0
    for i in range(len(d)):
        r = s * (d[i] - mean)
        squares += r * r
        weight[i] = s * (1 - r)
    return s * total - 0.5 * squares


@fast
def scatter(Z, g, weight, grad):
    """grad += Z (g * weight)."""
    for i in range(len(g)):
        g[i] *= weight[i]
    for j in range(len(Z)):
        z, total = Z[j], 0.0
        for i in range(len(g)):
            total += g[i] * z[i]
        grad[j] += total


def one_predictor(row):
    """Kernel of a model whose rows see beta through eta alone."""

    @fast
    def density(theta, reference, tau, s, Z, y, star, A, B, delta, work, grad):
        d, g, weight = work[0], work[1], work[2]
        for j in range(len(theta)):
            delta[j] = theta[j] - reference[j]
        predictor(Z, delta, d)
        for i in range(len(d)):
            e = d[i]
            value, slope = row(y[i], star[0, i] + e)
            d[i] = value - star[1, i] - e * (star[2, i] + 0.5 * star[3, i] * e)
            g[i] = slope - star[2, i] - star[3, i] * e
        value = estimate(s, d, weight) + quadratic(A, B, delta, grad)
        scatter(Z, g, weight, grad)
        for j in range(len(theta)):
            value -= 0.5 * tau * theta[j] ** 2
            grad[j] -= tau * theta[j]
        return value

    return density


@fast
def linear(theta, reference, tau, s, Z, y, star, A, B, delta, work, grad):
    """Normal rows with unknown sigma = exp(theta[-1]), half-normal a priori."""
    d, g, h, weight = work[0], work[1], work[2], work[3]
    p = len(theta) - 1
    sigma = np.exp(theta[p])
    for j in range(p):
        delta[j] = theta[j] - reference[j]
    ds = delta[p] = sigma - reference[p]
    predictor(Z, delta[:p], d)
    a = 1 / sigma
    a2, a2_star, log_sigma = a * a, 1 / reference[p] ** 2, theta[p]
    for i in range(len(d)):
        e = d[i]
        r = y[i] - star[0, i] - e
        u = r * a2
        q_eta = star[2, i] - a2_star * e + star[4, i] * ds
        q_sigma = star[3, i] + star[4, i] * e + star[5, i] * ds
        d[i] = -log_sigma - 0.5 * r * u - star[1, i]
        d[i] -= 0.5 * (e * (star[2, i] + q_eta) + ds * (star[3, i] + q_sigma))
        g[i] = u - q_eta
        h[i] = a * (r * u - 1) - q_sigma
    value = estimate(s, d, weight) + quadratic(A, B, delta, grad)
    scatter(Z, g, weight, grad)
    for i in range(len(d)):
        grad[p] += weight[i] * h[i]
    value += theta[p] - 0.5 * tau * sigma**2
    grad[p] = 1 + sigma * (grad[p] - tau * sigma)
    for j in range(p):
        value -= 0.5 * tau * theta[j] ** 2
        grad[j] -= tau * theta[j]
    return value


def glm_terms(X, y, beta, curve):
    """Star terms of every row (eta, l, l', l'') and the full-data sums A and B."""
    eta = X @ beta
    star = np.array([eta, *curve(y, eta)])
    return star, X.T @ star[2], (X.T * star[3]) @ X


def logistic_curve(y, eta):
    p = 1 / (1 + np.exp(-eta))
    return y * eta - np.logaddexp(0, eta), y - p, -p * (1 - p)


def poisson_curve(y, eta):
    mu = np.exp(eta)
    return y * eta - mu, y - mu, -mu


def linear_terms(X, y, phi):
    """Star terms eta, l, l_eta, l_sigma, l_eta_sigma, l_sigma_sigma; l_eta_eta is constant."""
    eta, sigma = X @ phi[:-1], phi[-1]
    r = (y - eta) / sigma
    star = np.array(
        [eta, -np.log(sigma) - r**2 / 2, r / sigma, (r**2 - 1) / sigma, -2 * r / sigma**2, 0 * r]
    )
    star[5] = (1 - 3 * r**2) / sigma**2
    cross = X.T @ star[4]
    B = np.block([[-X.T @ X / sigma**2, cross[:, None]], [cross[None], star[5].sum()]])
    return star, np.append(X.T @ star[2], star[3].sum()), B


def handwritten(density, terms, X, y, reference, index, tau=1.0):
    """``run(thetas, repeats)``: a compiled loop; the sum of the values and the last gradient."""
    star, A, B = terms(X, y, reference)
    Z = np.ascontiguousarray(X[index].T)
    y, star, s = y[index].astype(float), np.ascontiguousarray(star[:, index]), len(X) / len(index)
    delta, grad, work = np.empty(len(A)), np.empty(len(A)), np.empty((4, len(index)))

    @njit
    def loop(thetas, repeats, reference, Z, y, star, A, B, delta, work, grad):
        total = 0.0
        for k in range(repeats):
            theta = thetas[k % len(thetas)]
            total += density(theta, reference, tau, s, Z, y, star, A, B, delta, work, grad)
        return total

    def run(thetas, repeats):
        return loop(thetas, repeats, reference, Z, y, star, A, B, delta, work, grad), grad.copy()

    return run
