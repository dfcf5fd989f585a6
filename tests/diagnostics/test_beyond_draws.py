"""Tails that no draw reached are told by the density far out, and others are not."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats
import xarray as xr

import pymc_subsample as pms
from pymc_subsample.diagnostics.beyond_draws import beyond


def looked(log_density, draws):
    draws = np.reshape(draws, (len(draws), -1))
    return beyond(log_density, draws, np.full(draws.shape[1], float(len(draws))))[0]


def shelf(height, width=3000.0):
    """A standard normal beside a level that far below its top, which a wide normal ends."""

    def density(x):
        wide = -0.5 * (x[:, 0] / width) ** 2 - height
        return np.logaddexp(-0.5 * x[:, 0] ** 2, wide)

    # Of the whole: that of the wide normal outside of where draws are hardly matters.
    mass = width * np.exp(-height)
    return density, mass / (1 + mass)


@pytest.mark.parametrize("height", [9.0, 10.0, 12.0])
def test_mass_beyond_the_draws_and_its_sd_are_right(height):
    density, share = shelf(height)
    draws = scipy.stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    found = looked(density, draws)
    # Of two sides, each holds half. The first step beyond the draws is long for the normal density:
    # one draw of 4,000 comes out as one or two.
    np.testing.assert_allclose(found.mass, share / 2 / (1 - share / 2), rtol=0.02, atol=5e-4)
    sd = np.sqrt(1 - found.mass + found.mass * 3000.0**2)
    np.testing.assert_allclose(found.stretch, sd - 1, rtol=0.02)


def test_a_tail_too_small_for_so_few_draws_is_left_alone():
    density, share = shelf(14.5)
    assert share * 4000 < 10
    assert looked(density, np.random.default_rng(1).normal(size=4000)).stretch == 0


@pytest.mark.parametrize("distribution", [
    scipy.stats.norm(), scipy.stats.laplace(), scipy.stats.t(2.5), scipy.stats.cauchy(),
    scipy.stats.loggamma(0.2), scipy.stats.lognorm(1.5), scipy.stats.gumbel_r(),
])  # fmt: skip
def test_draws_of_the_density_itself_lack_nothing(distribution):
    """Fifty runs of each: a tail counts by chance in one of e^10."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        x = distribution.rvs(1000, random_state=rng)
        assert looked(lambda at: distribution.logpdf(at[:, 0]), x).stretch == 0


def test_correlated_elements_and_funnels_lack_nothing():
    rng = np.random.default_rng(3)
    cov = np.full((4, 4), 0.98) + 0.02 * np.eye(4)
    normal = scipy.stats.multivariate_normal(np.zeros(4), cov)
    t = scipy.stats.multivariate_t(shape=cov, df=3)

    def funnel(x):
        return scipy.stats.norm.logpdf(x[:, 0]) + np.sum(
            scipy.stats.norm.logpdf(x[:, 1:], scale=np.exp(x[:, :1])), axis=1
        )

    for _ in range(20):
        log_scale = rng.normal(size=(2000, 1))
        effects = np.exp(log_scale) * rng.normal(size=(2000, 5))
        for density, draws in (
            (normal.logpdf, normal.rvs(2000, random_state=rng)),
            (t.logpdf, t.rvs(2000, random_state=rng)),
            (funnel, np.hstack([log_scale, effects])),
        ):
            assert looked(density, draws).stretch < 0.05


@pytest.mark.costly
@pytest.mark.parametrize("reached", [True, False])
def test_a_slope_whose_tail_the_prior_ends(reached):
    """Exact draws, all of them or those below three times the median, as chains that stay there."""
    n, prior = 5000, 1800.0
    rng = np.random.default_rng(14)
    x = rng.uniform(-1, 1, size=n)
    y = np.tanh(60 * x) + rng.normal(size=n)
    grid = np.concatenate([np.linspace(0, 600, 4001)[1:], np.geomspace(600, 6 * prior, 2000)[1:]])
    near = np.abs(x) < 0.3
    logp = np.array([-0.5 * np.sum((y[near] - np.tanh(k * x[near])) ** 2) for k in grid])
    logp -= 0.5 * (grid / prior) ** 2
    weight = np.exp(logp - logp.max()) * np.gradient(grid)
    whole = weight / weight.sum()
    sd = np.sqrt(whole @ (grid - whole @ grid) ** 2)
    if not reached:
        weight = np.where(grid < 250, weight, 0)
    weight /= weight.sum()
    draws = np.interp(rng.random((4, 1000)), weight.cumsum(), grid)
    with pm.Model() as model:
        k = pm.Normal("k", 0, prior, initval=60)
        pm.Normal("y", pm.math.tanh(k * x), 1, observed=y)
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"k": (("chain", "draw"), draws)})})
    found = pms.audit(idata, model=model)
    assert found.status == ("pass" if reached else "warn")
    assert "It cannot see what no draw reached" in repr(found)
    assert "It cannot see what no draw reached" in found._repr_html_()
    if not reached:
        stretch, element = found.unreached
        assert element == "k"
        np.testing.assert_allclose(1 + stretch, sd / draws.std(), rtol=0.05)
        assert "k. Along a line far beyond its draws" in repr(found)
