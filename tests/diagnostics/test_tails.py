"""Posteriors without a standard deviation are told by their density far out, and no others are."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_subsample as pms
from pymc_subsample.chain import end_of_chain
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
    """Beyond a draw that is very far out, and random ones of 500 in 20 runs: none may be told."""
    rng = np.random.default_rng(1)
    runs = [distribution.rvs(500, random_state=rng) for _ in range(20)]
    for sign in (-1, 1):
        far = np.copy(runs[0])
        far[0] = np.median(far) + sign * 20 * scipy.stats.iqr(far)
        runs.append(far)
    assert not [check for x in runs for check in checked(alone(distribution), x)]


@pytest.mark.parametrize("far", [None, 0, 1])
def test_a_funnel_has_no_tail(far):
    """A logarithm of a scale with effects of no rows as they are written: its density rises."""
    rng = np.random.default_rng(2)
    log_scale = -rng.exponential(2.0, 500)
    effects = np.exp(log_scale)[:, None] * rng.standard_normal((500, 5))
    draws = np.column_stack([log_scale, effects])
    if far is not None:
        draws[0, far] = -100.0

    def log_density(thetas):
        own, others = thetas[:, 0], thetas[:, 1:]
        spread = -5 * own - 0.5 * np.sum((others / np.exp(own)[:, None]) ** 2, axis=1)
        return np.where(own < 0, 0.5 * own, -np.inf) + spread

    assert not [check for check in checked(log_density, draws) if not check.passed]


def test_all_may_move_together():
    """Student's t of two elements: density falls by one power more than that of one alone."""
    rng = np.random.default_rng(3)
    t = scipy.stats.multivariate_t(shape=[[1.0, 0.95], [0.95, 1.0]], df=1)
    [check] = checked(t.logpdf, t.rvs(500, random_state=rng))
    np.testing.assert_allclose(check.value, 0.5, rtol=0.02)
    assert not check.passed


def test_improper_posteriors_are_said_to_be():
    draws = scipy.stats.cauchy.ppf((np.arange(500) + 0.5) / 500)
    [check] = checked(lambda thetas: np.zeros(len(thetas)), draws)
    assert check.value == np.inf
    assert not check.passed
    assert "improper" in check.advice


def test_few_draws_or_too_many_rows_are_not_looked_at():
    draws = scipy.stats.cauchy.ppf((np.arange(500) + 0.5) / 500)
    density = alone(scipy.stats.cauchy())
    assert not checked(density, draws[::90])
    assert not checked(density, draws, n_rows=10**9)
    assert checked(density, draws, n_rows=10**8)
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


def test_correlations_without_rows_are_not_told():
    """Uniform ones: in PyMC's unconstrained space they have tails, and none of their own."""
    rng = np.random.default_rng(4)
    with pm.Model():
        corr = pm.LKJCorr("corr", n=2, eta=1)
        pm.Normal("y", pm.Normal("mu") + 0 * corr.sum(), 1, observed=rng.normal(size=500))
        idata = pm.sample(500, tune=500, chains=1, step=pms.HMCECS(), random_seed=1, **QUIET)
    assert TAIL.name not in [found.name for found in pms.report(idata).findings]


@pytest.mark.parametrize("kind", [pms.FireflyMC, pms.sgmcmc.SGHMC, pms.MinibatchBarkerMH])
def test_all_kinds_of_chains_look(kind):
    with separated(lambda name: pm.Cauchy(name, 0, 10)):
        step = kind(rng=1)
        step.setup_chain(np.random.default_rng(1), tune=100, draws=100)
        point = step.model.initial_point()
        for draw in range(199):
            if draw == 100:
                step.stop_tuning()
            point, _ = step.step(point)
        step.ahead.undo(step)
        [slope] = [part for name, part, _ in step.layout.own if name == "slope"]
        for at in (0, -1):
            step.record.thinned[at] = step.record.thinned[at].copy()
            step.record.thinned[at][slope] = -1e5
        [check] = end_of_chain.check_tails(step)
    np.testing.assert_allclose(check.value, 1.0, rtol=0.05)
    assert "The posterior of 'slope' has no mean" in check.advice
