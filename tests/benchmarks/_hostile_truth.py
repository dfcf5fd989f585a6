"""Posteriors of all rows for the hostile trial, kept in ``hostile_references.json``.

Every truth is a function of a model that returns the bank's `Moments`: by a sum over all states or
over a grid, in closed form, by importance sampling around all modes, or by NUTS on all rows.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pymc as pm
from _bank_references import Moments, moments
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp
from scipy.stats import truncnorm

SEED = 20
# Of the proposals of importance sampling, heavier than any of these posteriors, and their number.
FREEDOM, PROPOSALS, ROUNDS = 5, 40_000, 4
ENOUGH = 4_000
SEARCH = {"maxiter": 4_000, "xatol": 1e-10, "fatol": 1e-6}


class Density:
    """Log posterior of all rows in PyMC's unconstrained space, one vector per point."""

    def __init__(self, model: pm.Model):
        self.model = model
        self.start = model.initial_point()
        self.size = sum(v.size for v in self.start.values())
        self._logp = model.compile_logp()
        self._free = model.compile_fn(
            model.replace_rvs_by_values(model.free_RVs), inputs=model.value_vars
        )
        first = [np.asarray(v) for v in self._free(self.start)]
        self.names = [
            f"{rv.name}[{k}]" if value.ndim else rv.name
            for rv, value in zip(model.free_RVs, first, strict=True)
            for k in range(value.size)
        ]

    def point(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        found, begin = {}, 0
        for value_var in self.model.value_vars:
            like = self.start[value_var.name]
            part = theta[begin : begin + like.size].reshape(like.shape)
            found[value_var.name], begin = part.astype(like.dtype), begin + like.size
        return found

    def flat(self, values: dict) -> np.ndarray:
        chosen = self.start | values
        return np.concatenate(
            [np.asarray(chosen[v.name], dtype=float).ravel() for v in self.model.value_vars]
        )

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log density at points (N, d); minus infinity where it is not a number."""
        with np.errstate(all="ignore"):
            found = np.array([float(self._logp(self.point(t))) for t in theta])
        return np.where(np.isfinite(found), found, -np.inf)

    def free(self, theta: np.ndarray) -> np.ndarray:
        """Elements of the free variables at points (N, d): shape (N, elements)."""
        return np.array(
            [np.concatenate([np.ravel(v) for v in self._free(self.point(t))]) for t in theta]
        )


def weighted(names, values, log_weight) -> Moments:
    """Moments of weighted values (N, elements), with errors as of independent draws."""
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ values
    sd = np.sqrt(weight @ (values - mean) ** 2)
    influence = ((values - mean) ** 2 - sd**2) / (2 * sd)
    errors = [np.sqrt(weight**2 @ part**2) for part in (values - mean, influence)]
    return Moments(list(names), mean, sd, *errors, float(1 / np.sum(weight**2)), 1.0)


def exact(names, values, log_weight) -> Moments:
    """The same where the values are all there are, up to the mesh of a grid."""
    found = weighted(names, values, log_weight)
    none = np.zeros(len(found.mean))
    return Moments(found.names, found.mean, found.sd, none, none, np.inf, 1.0)


def states(model: pm.Model) -> Moments:
    """Sum over all states of binary variables."""
    density = Density(model)
    theta = np.array(list(product([0, 1], repeat=density.size)))
    return exact(density.names, theta.astype(float), density.logp(theta))


def grid(*axes: tuple[float, float, int]) -> Callable[[pm.Model], Moments]:
    """Sum over a grid of (from, to, points) per element of unconstrained space."""

    def truth(model):
        density = Density(model)
        mesh = np.meshgrid(*(np.linspace(*axis) for axis in axes), indexing="ij")
        theta = np.column_stack([m.ravel() for m in mesh])
        logp = density.logp(theta)
        kept = logp > logp.max() - 40
        edge = np.any([(t == t.min()) | (t == t.max()) for t in theta.T], axis=0)
        assert np.exp(logp[edge] - logsumexp(logp)).sum() < 1e-4, "a wider grid"
        assert kept.sum() > 50 ** len(axes), "a finer grid"
        return exact(density.names, density.free(theta[kept]), logp[kept])

    return truth


def gaussian(X, y, sigma: float, prior_sd) -> Callable[[pm.Model], Moments]:
    """Closed form of a normal regression with known scale and prior of mean zero."""

    def truth(model):
        scale = np.broadcast_to(np.asarray(prior_sd, dtype=float), X.shape[1:])
        Z = X * scale  # in units of the prior
        precision = Z.T @ Z / sigma**2 + np.eye(len(scale))
        covariance = np.linalg.inv(precision)
        mean, sd = scale * (covariance @ Z.T @ y) / sigma**2, scale * np.sqrt(np.diag(covariance))
        none = np.zeros(len(scale))
        return Moments(Density(model).names, mean, sd, none, none, np.inf, 1.0)

    return truth


def of_scipy(distribution) -> Callable[[pm.Model], Moments]:
    """One parameter whose posterior SciPy knows."""

    def truth(model):
        mean, sd, none = [distribution.mean()], [distribution.std()], np.zeros(1)
        return Moments(Density(model).names, np.array(mean), np.array(sd), none, none, np.inf, 1.0)

    return truth


def importance(*starts: dict, proposals: int = PROPOSALS) -> Callable[[pm.Model], Moments]:
    """Importance sampling from Student-t distributions around the modes that the starts lead to.

    Starts are values of the value variables; modes and their shares are weighed by the sampling
    itself. The distributions follow the weighted draws over some rounds.
    """

    def truth(model):
        density, rng = Density(model), np.random.default_rng(SEED)
        parts = [_laplace(density, density.flat(s)) for s in starts or ({},)]
        shares = np.full(len(parts), 1 / len(parts))
        for turn in range(ROUNDS):
            number = proposals if turn == ROUNDS - 1 else proposals // 10
            around = [Student(*part) for part in parts]
            counts = np.ceil(shares * number).astype(int)
            theta = np.concatenate([a.draws(k, rng) for a, k in zip(around, counts, strict=True)])
            each = np.array([a.logpdf(theta) for a in around])
            each += np.log(shares)[:, None]
            log_weight = density.logp(theta) - logsumexp(each, axis=0)
            parts, shares = _follow(theta, log_weight, each, parts)
        kept = np.isfinite(log_weight)
        found = weighted(density.names, density.free(theta[kept]), log_weight[kept])
        assert found.ess >= ENOUGH, f"{found.ess:.0f} effective draws"
        return found

    return truth


class Student:
    """Student-t distribution around a point; SciPy's refuses scales of very different size."""

    def __init__(self, center, covariance):
        self.center, self.root = center, np.linalg.cholesky(covariance)

    def draws(self, number, rng):
        z = rng.normal(size=(number, len(self.center)))
        heavy = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, number))
        return self.center + (z @ self.root.T) * heavy[:, None]

    def logpdf(self, theta):
        d = len(self.center)
        z = solve_triangular(self.root, (theta - self.center).T, lower=True)
        constant = (
            gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
        )
        tail = (FREEDOM + d) / 2 * np.log1p(np.sum(z**2, axis=0) / FREEDOM)
        return constant - np.log(np.diag(self.root)).sum() - tail


def _laplace(density: Density, theta):
    """Mode and covariance by differences of the log density, in units that follow it."""

    def objective(t):
        return -float(np.nan_to_num(density.logp(t[None])[0], neginf=-1e300))

    for _ in range(3):
        theta = minimize(objective, theta, method="Nelder-Mead", options=SEARCH).x
    step = np.full(density.size, 1e-4)
    top = objective(theta)
    for k in range(density.size):  # half a unit of log density to either side
        unit = np.eye(density.size)[k]
        while objective(theta + step[k] * unit) - top > 0.5 and step[k] > 1e-12:
            step[k] /= 2
        while objective(theta + step[k] * unit) - top < 0.25 and step[k] < 1e6:
            step[k] *= 1.5

    def at(i, j, a, b):
        unit = np.eye(density.size)
        return objective(theta + a * step[i] * unit[i] + b * step[j] * unit[j])

    hessian = np.empty((density.size, density.size))
    for i in range(density.size):
        for j in range(i + 1):
            cross = at(i, j, 1, 1) - at(i, j, 1, -1) - at(i, j, -1, 1) + at(i, j, -1, -1)
            hessian[i, j] = hessian[j, i] = cross / 4
    for i in range(density.size):
        hessian[i, i] = at(i, i, 1, 0) - 2 * top + at(i, i, -1, 0)
    values, vectors = np.linalg.eigh(hessian)
    scaled = (vectors / np.maximum(values, 1e-3)) @ vectors.T
    return theta, scaled * np.outer(step, step)


def _follow(theta, log_weight, each, parts):
    """Means, covariances and shares of the parts as the weighted draws have them."""
    weight = np.exp(log_weight - log_weight.max())
    belongs = np.exp(each - logsumexp(each, axis=0)) * weight / weight.sum()
    shares, found = np.maximum(belongs.sum(axis=1), 0.05), []
    for part, w in zip(parts, belongs, strict=True):
        if 1 / np.sum((w / w.sum()) ** 2) < 20 * theta.shape[1]:
            found.append(part)
            continue
        mean = w @ theta / w.sum()
        found.append((mean, np.atleast_2d(np.cov(theta.T, aweights=w, ddof=0)) * 1.1))
    return found, shares / shares.sum()


def nuts(other: Callable[[], pm.Model] | None = None) -> Callable[[pm.Model], Moments]:
    """NUTS on all rows, of the model itself or of another form with the same variables."""

    def truth(model):
        import nutpie

        form = model if other is None else other()
        idata = nutpie.sample(
            nutpie.compile_pymc_model(form), draws=40_000, tune=2_000, chains=4, cores=1, seed=SEED,
            target_accept=0.95, progress_bar=False,
        )  # fmt: skip
        found = moments(idata["posterior"].to_dataset(), [rv.name for rv in model.free_RVs])
        assert found.ess >= ENOUGH, f"{found.ess:.0f} effective draws"
        assert found.rhat <= 1.005, f"R-hat {found.rhat:.4f}"
        return found

    return truth


def truncated(mean: float, sd: float, lower: float, upper: float) -> Callable[[pm.Model], Moments]:
    """A normal posterior cut to an interval."""
    a, b = (lower - mean) / sd, (upper - mean) / sd
    return of_scipy(truncnorm(a, b, mean, sd))
