"""Simulation-based calibration of HMC-ECS (Talts et al. 2018; Modrak et al. 2023).

Parameters are drawn from the prior, rows from the model given them, and the posterior is sampled
through the step. The rank of each parameter among its draws, and of the rows' log-likelihood
among its values at the draws, is then uniform if and only if the draws come from the posterior.
Of draws that equal the truth, a random number count as smaller. Every model is compiled once and
driven with the rows of each replication.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pymc as pm
import scipy.stats
from scipy.special import expit

from pymc_subsample import HMCECS, ScalableMH
from pymc_subsample.chain import model_compilation
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.hmc_ecs import chain as hmc_ecs
from pymc_subsample.samplers.hmc_ecs.chain import _setting as setting

N_ROWS = 400
DRAWS = 63
BINS = 16


@dataclass(frozen=True)
class Problem:
    """A model to calibrate.

    `prior` draws the value variables; `rows` draws the data given them, by name; `loglik` is the
    rows' log-likelihood up to a constant; `model` builds the PyMC model on data; `ranked` names the
    elements of which ranks are taken, if not all.
    """

    prior: Callable
    rows: Callable
    loglik: Callable
    model: Callable
    ranked: tuple[str, ...] = ()


def _logistic() -> Problem:
    def prior(rng):
        return {"beta": rng.normal(size=3)}

    def rows(rng, point):
        X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 2))])
        return {"X": X, "y": rng.binomial(1, expit(X @ point["beta"]))}

    def loglik(point, X, y):
        eta = X @ point["beta"]
        return np.sum(y * eta - np.logaddexp(0, eta))

    def model(X, y):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=3)
            pm.Bernoulli("y", logit_p=X @ beta, observed=y)
        return model

    return Problem(prior, rows, loglik, model)


def _unknown_sigma() -> Problem:
    def prior(rng):
        return {"beta": rng.normal(size=2), "sigma_log__": np.log(rng.lognormal(0, 0.5))}

    def rows(rng, point):
        X = np.column_stack([np.ones(N_ROWS), rng.normal(size=N_ROWS)])
        return {"X": X, "y": rng.normal(X @ point["beta"], np.exp(point["sigma_log__"]))}

    def loglik(point, X, y):
        return scipy.stats.norm.logpdf(y, X @ point["beta"], np.exp(point["sigma_log__"])).sum()

    def model(X, y):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=2)
            sigma = pm.LogNormal("sigma", 0, 0.5)
            pm.Normal("y", X @ beta, sigma, observed=y)
        return model

    return Problem(prior, rows, loglik, model)


def _hierarchical() -> Problem:
    groups = 6
    g = np.arange(N_ROWS) % groups

    def prior(rng):
        return {
            "mu": rng.normal(),
            "tau_log__": np.log(rng.lognormal(-0.5, 0.5)),
            "z": rng.normal(size=groups),
            "b": rng.normal(),
        }

    def eta(point, g, x):
        return (point["mu"] + np.exp(point["tau_log__"]) * point["z"])[g] + point["b"] * x

    def rows(rng, point):
        x = rng.normal(size=N_ROWS)
        return {"g": g, "x": x, "y": rng.binomial(1, expit(eta(point, g, x)))}

    def loglik(point, g, x, y):
        at = eta(point, g, x)
        return np.sum(y * at - np.logaddexp(0, at))

    def model(g, x, y):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 1)
            tau = pm.LogNormal("tau", -0.5, 0.5)
            z = pm.Normal("z", 0, 1, shape=groups)
            b = pm.Normal("b", 0, 1)
            pm.Bernoulli("y", logit_p=(mu + tau * z)[g] + b * x, observed=y)
        return model

    return Problem(prior, rows, loglik, model)


def _poisson() -> Problem:
    def prior(rng):
        return {"beta": rng.normal(0, 0.5, size=2)}

    def rows(rng, point):
        X = np.column_stack([np.ones(N_ROWS), rng.normal(size=N_ROWS)])
        return {"X": X, "y": rng.poisson(np.exp(X @ point["beta"]))}

    def loglik(point, X, y):
        return scipy.stats.poisson.logpmf(y, np.exp(X @ point["beta"])).sum()

    def model(X, y):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 0.5, shape=2)
            pm.Poisson("y", pm.math.exp(X @ beta), observed=y)
        return model

    return Problem(prior, rows, loglik, model)


def _student() -> Problem:
    def prior(rng):
        return {"mu": rng.normal(), "sigma_log__": np.log(rng.lognormal(0, 0.5))}

    def rows(rng, point):
        return {"y": point["mu"] + np.exp(point["sigma_log__"]) * rng.standard_t(4, size=N_ROWS)}

    def loglik(point, y):
        return scipy.stats.t.logpdf(y, 4, point["mu"], np.exp(point["sigma_log__"])).sum()

    def model(y):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 1)
            sigma = pm.LogNormal("sigma", 0, 0.5)
            pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=y)
        return model

    return Problem(prior, rows, loglik, model)


PROBLEMS = {
    "logistic": _logistic(),
    "unknown sigma": _unknown_sigma(),
    "hierarchical logistic": _hierarchical(),
    "poisson": _poisson(),
    "student": _student(),
}


@cache
def _compiled(name, order):
    problem, rng = PROBLEMS[name], np.random.default_rng(0)
    data = problem.rows(rng, problem.prior(rng))
    model = problem.model(**data)
    tall = TallModel(model)
    names = [next(k for k, v in data.items() if np.array_equal(v, c)) for c in tall.rows.columns]
    return model, tall, expand(tall, order), names


def _posterior(name, data, seed, *, order, subsample_size, corrected, tune, thin, exact):
    """Points of value variables, rows per estimate or decision, and the noise of estimates."""
    model, tall, expansion, names = _compiled(name, order)
    # Compiled code gathers rows from the model's own columns.
    for column, key in zip(tall.rows.columns, names, strict=True):
        column.setflags(write=True)
        column[...] = data[key]
    expansion = replace(expansion)
    with (
        patch.object(model_compilation, "TallModel", lambda *_, **__: tall),
        patch.object(model_compilation, "expand", lambda *_, **__: expansion),
    ):

        def make(size):
            if exact:
                return ScalableMH(model=model, rng=seed, **exact)
            return HMCECS(
                model=model,
                control_variate_order=order,
                subsample_size=size,
                transitions_per_draw=thin,
                rng=seed,
            )

        try:
            step = make(subsample_size)
        except TallModelError:  # too few rows for any size; leaving these data out would bias
            step = make(N_ROWS)
    # Half of the estimated variance is taken off, unless a control leaves that out.
    whole = setting if corrected else lambda step: 0.0
    with patch.object(hmc_ecs, "_setting", whole):
        step.setup_chain(np.random.default_rng(seed), tune=tune, draws=DRAWS)
        point, points = tall.unravel(tall.ravel(tall.initial_point)), []
        for _ in range(tune):
            point, _ = step.step(point)
        step.stop_tuning()
        read = variance = 0.0
        for _ in range(DRAWS):
            point, [stats] = step.step(point)
            points.append(point)
            read += stats["rows_read" if exact else "subsample_size"] / DRAWS
            variance += 0.0 if exact else stats["loglik_variance"] / DRAWS
    return points, read, variance


@dataclass(frozen=True)
class Calibration:
    """Ranks of each quantity, shape (replications,), what was spent, and the verdict."""

    ranks: dict[str, np.ndarray]
    subsample_size: float
    variance: float
    bins: int = BINS

    def p_values(self) -> dict[str, float]:
        """Chi-square p-value of uniform ranks in equal bins, by quantity."""
        found = {}
        for name, ranks in self.ranks.items():
            counts = np.bincount(ranks * self.bins // (DRAWS + 1), minlength=self.bins)
            found[name] = float(scipy.stats.chisquare(counts).pvalue)
        return found

    def p_value(self) -> float:
        """Smallest p-value, corrected for the number of quantities."""
        values = self.p_values().values()
        return min(1.0, len(values) * min(values))


def _quantities(problem, point, data) -> dict[str, float]:
    """Elements of the parameters, and the log-likelihood."""
    flat = {
        f"{name}[{i}]" if np.size(value) > 1 else name: x
        for name, value in point.items()
        for i, x in enumerate(np.ravel(value))
    }
    ranked = {name: flat[name] for name in problem.ranked or flat}
    return ranked | {"log-likelihood": problem.loglik(point, **data)}


def calibrate(
    name: str,
    replications: int,
    *,
    order: int = 2,
    subsample_size: int | str = "auto",
    corrected: bool = True,
    tune: int = 100,
    thin: int = 10,
    seed: int = 1,
    exact: dict | None = None,
) -> Calibration:
    """Ranks of prior draws among draws of the posterior given rows simulated from them.

    With `exact`, arguments of it, `ScalableMH` draws them.
    """
    problem = PROBLEMS[name]

    def posterior(data, r):
        return _posterior(
            name, data, r, order=order, subsample_size=subsample_size, corrected=corrected,
            tune=tune, thin=thin, exact=exact,
        )  # fmt: skip

    return ranked(problem, posterior, replications, seed)


def ranked(problem: Problem, posterior: Callable, replications: int, seed: int) -> Calibration:
    """Ranks of prior draws among those of `posterior`, given data and a replication's number."""
    ranks: dict[str, list[int]] = {}
    sizes, variances = [], []
    for r in range(replications):
        rng = np.random.default_rng([seed, r])
        truth = {k: np.asarray(v, dtype=float) for k, v in problem.prior(rng).items()}
        data = problem.rows(rng, truth)
        points, size, variance = posterior(data, r)
        sizes.append(size)
        variances.append(variance)

        draws = [_quantities(problem, point, data) for point in points]
        for key, value in _quantities(problem, truth, data).items():
            below = sum(draw[key] < value for draw in draws)
            ties = sum(draw[key] == value for draw in draws)  # of discrete variables
            ranks.setdefault(key, []).append(below + int(rng.integers(ties + 1)))
    return Calibration(
        {key: np.array(values) for key, values in ranks.items()},
        float(np.mean(sizes)),
        float(np.mean(variances)),
    )
