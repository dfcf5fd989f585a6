"""Reference points of hierarchical models: the marginal mode of what is above the data."""

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from pymc_subsample.expansion import expand
from pymc_subsample.expansion.hyperparameter_mode import settle, split_hierarchy
from pymc_subsample.expansion.quadratic import Posterior
from pymc_subsample.expansion.search import find_mode
from pymc_subsample.model import TallModel


@pytest.fixture(scope="module")
def schools():
    """Five groups of unit-variance rows; the group scale is poorly determined."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(5), 40)
    y = rng.normal(0.3, 0.2, 5)[g] + rng.normal(size=200)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=5)
        pm.Normal("y", a[g], 1.0, observed=y)
    tall = TallModel(model)
    return tall, expand(tall), np.array([y[g == j].mean() for j in range(5)])


def parts(tall):
    return dict(zip(tall.names, tall.slices, strict=True))


def test_parameters_that_meet_the_data_are_told_apart(schools):
    tall, expansion, _ = schools
    inner, outer = split_hierarchy(expansion, tall.ravel(tall.initial_point), np.arange(tall.size))
    where = parts(tall)
    np.testing.assert_array_equal(inner, np.r_[where["a"]])
    assert set(outer) == {where["mu"].start, where["tau_log__"].start}


def test_group_scale_is_at_its_marginal_mode(schools):
    tall, expansion, means = schools
    theta = tall.ravel(tall.initial_point)
    inner, outer = split_hierarchy(expansion, theta, np.arange(tall.size))
    at = find_mode(Posterior(expansion), theta, inner, np.random.default_rng(0))
    theta = settle(at, inner, outer)
    where = parts(tall)

    def marginal(log_tau, mu):
        """log p(mu, log tau | y): group means are N(mu, tau^2 + 1/40)."""
        variance = np.exp(2 * log_tau) + 1 / 40
        logp = -0.5 * np.sum((means - mu) ** 2 / variance + np.log(variance))
        return logp - 0.5 * mu**2 - 0.5 * np.exp(2 * log_tau) + log_tau

    mu, log_tau = theta[where["mu"]][0], theta[where["tau_log__"]][0]
    best = minimize_scalar(lambda t: -marginal(t, mu), bounds=(-5, 2), method="bounded").x
    assert abs(log_tau - best) < 0.15
    # The mode of a given those is the usual shrinkage.
    weight = np.exp(2 * log_tau) / (np.exp(2 * log_tau) + 1 / 40)
    np.testing.assert_allclose(theta[where["a"]], mu + weight * (means - mu), atol=0.01)
    # The joint mode is a different point: there the scale vanishes.
    assert quad(lambda t: np.exp(marginal(t, mu) - marginal(best, mu)), -8, 3)[0] > 0.1
