"""Posteriors without a standard deviation are told by their density far out, and no others are."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_subsample as pms
from pymc_subsample.diagnostics.tails import TAIL, check_tails

QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}


def checked(log_density, draws, n_rows=1000):
    """Check draws, shape (k, d), of a density of the first element alone, unless it takes all."""
    draws = draws.reshape(len(draws), -1)
    return check_tails(log_density, n_rows, draws, np.arange(draws.shape[1]), "'x{}'".format)


def alone(distribution):
    return lambda thetas: distribution.logpdf(thetas[:, 0])


@pytest.mark.parametrize("freedom", [1.0, 1.5, 1.9, 2.1, 3.0])
def test_shapes_are_those_of_students_t(freedom):
    t = scipy.stats.t(freedom, 3.0, 10.0)
    [check] = checked(alone(t), t.ppf((np.arange(500) + 0.5) / 500))
    np.testing.assert_allclose(check.value, 1 / freedom, rtol=0.02)
    assert check.passed == (freedom > 2)
    if not check.passed:
        assert f"'x0' has no {'mean' if freedom == 1 else 'standard'}" in check.advice


@pytest.mark.parametrize("distribution", [
    scipy.stats.norm(), scipy.stats.laplace(), scipy.stats.logistic(), scipy.stats.loggamma(0.05),
    scipy.stats.gumbel_l(), scipy.stats.exponweib(1, 0.3), scipy.stats.lognorm(2.0),
])  # fmt: skip
def test_tails_that_end_are_none(distribution):
    """Of 500 draws in 100 runs: none may be told."""
    rng = np.random.default_rng(1)
    runs = [distribution.rvs(500, random_state=rng) for _ in range(100)]
    assert all(check.value == 0 for x in runs for check in checked(alone(distribution), x))


def test_long_tails_that_end_are_looked_at():
    x = scipy.stats.lognorm(2.0).ppf((np.arange(500) + 0.5) / 500)
    [check] = checked(alone(scipy.stats.lognorm(2.0)), x)
    assert check.passed


def test_a_funnel_has_no_tail():
    """A logarithm of a scale with effects of no rows as they are written: its density rises."""
    rng = np.random.default_rng(2)
    log_scale = -rng.exponential(2.0, 500)
    effects = np.exp(log_scale)[:, None] * rng.standard_normal((500, 5))

    def log_density(thetas):
        own, others = thetas[:, 0], thetas[:, 1:]
        spread = -5 * own - 0.5 * np.sum((others / np.exp(own)[:, None]) ** 2, axis=1)
        return np.where(own < 0, 0.5 * own, -np.inf) + spread

    draws = np.column_stack([log_scale, effects])
    assert not [check for check in checked(log_density, draws) if not check.passed]


def test_improper_posteriors_are_said_to_be():
    draws = scipy.stats.cauchy.ppf((np.arange(500) + 0.5) / 500)
    [check] = checked(lambda thetas: np.zeros(len(thetas)), draws)
    assert check.value == np.inf
    assert not check.passed
    assert "improper" in check.advice


def test_few_draws_or_too_many_rows_are_not_looked_at():
    draws = scipy.stats.cauchy.ppf((np.arange(500) + 0.5) / 500)
    density = alone(scipy.stats.cauchy())
    assert not checked(density, draws[::20])
    assert not checked(density, draws, n_rows=10**9)
    assert not checked(density, np.zeros(500))


def separated(prior):
    """Fifty of 2,000 rows in which nothing ever happens, and a column of them."""
    rng = np.random.default_rng(1)
    x = rng.permutation(np.repeat([1.0, 0.0], [50, 1950]))
    y = (rng.random(2000) < 0.3) & (x == 0)
    with pm.Model() as model:
        slope = prior("slope")
        pm.Bernoulli("y", logit_p=pm.Normal("level", 0, 5) + slope * x, observed=y)
    return model


@pytest.mark.parametrize(
    ("prior", "told"),
    [(lambda name: pm.Cauchy(name, 0, 10), True), (lambda name: pm.Normal(name, 0, 2.5), False)],
)  # fmt: skip
@pytest.mark.parametrize("kind", [pms.ScalableMH, pms.HMCECS])
def test_separation_under_a_cauchy_prior_is_told(kind, prior, told, caplog):
    """Chains of the first passed, with a third of what is below the quantile of 1%."""
    with separated(prior):
        idata = pm.sample(600, tune=400, chains=1, step=kind(), random_seed=1, **QUIET)
    [found] = [f for f in pms.report(idata).findings if f.name == TAIL.name] or [None]
    assert (found is not None) == told
    if found is not None:
        assert found.status == "warn"
        np.testing.assert_allclose(found.value, 1.0, rtol=0.05)
        assert "The posterior of 'slope' has no mean and no standard deviation" in caplog.text
