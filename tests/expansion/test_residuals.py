"""Outlying rows: which they are, and what is gained by reading them always."""

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.stats
from chains import assert_goes_on, assert_moments, chain, sample
from scipy.special import log_expit

import pymc_subsample as pms
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residuals import _score, _split, residuals_around
from pymc_subsample.rows.row_store import drawn_without
from pymc_subsample.samplers.hmc_ecs import adaptation
from pymc_subsample.samplers.minibatch.confidence import _automatic_bound
from pymc_subsample.samplers.minibatch.step import recentre

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


def test_others_are_drawn_uniformly():
    always = np.array([0, 1, 4, 9])
    index = drawn_without(np.random.default_rng(1), 10, always, 60_000)
    counts = np.bincount(index, minlength=10)
    assert counts[always].sum() == 0
    assert scipy.stats.chisquare(np.delete(counts, always)).pvalue > 1e-5
    assert drawn_without(np.random.default_rng(1), 10, always[:0], (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("size", [0, 1, 7, 40])
@pytest.mark.parametrize("chunk", [3, 13, 200])
def test_moments_without_some_rows_are_those_of_the_others(size, chunk):
    rng = np.random.default_rng(2)
    d = rng.standard_t(2, size=(5, 200))
    least = np.sort(_score(d, 3))[-2 * size - 1] if chunk > 3 else 0.0
    kept = _split(d[:, :chunk], 3, least)
    for start in range(chunk, 200, chunk):
        kept = kept.followed(_split(d[:, start : start + chunk], 3, least), size)
    residuals = kept.ranked(size)
    ranked = np.argsort(-np.abs(d[[0, 1, 3, 4]]).max(axis=0))
    np.testing.assert_array_equal(residuals.index, ranked[:size])
    for always in {0, size // 2, size}:
        left = np.delete(d, ranked[:always], axis=1)
        inner = left[:3] - left[:3].mean(axis=1, keepdims=True)
        found = residuals.moments(always)
        np.testing.assert_allclose(found.second, np.mean(inner**2, axis=1))
        np.testing.assert_allclose(found.third, np.mean(inner**3, axis=1), atol=1e-9)
        np.testing.assert_allclose(found.fourth, np.mean(inner**4, axis=1))
        np.testing.assert_allclose(found.total, left[:3].sum(axis=1))
        assert found.largest == np.abs(left[3:]).max()
        assert np.isclose(found.lowest, left.sum(axis=1).min())
        assert found.n_rows == 200 - always


def packed(_, batches):
    return np.concatenate(list(batches), axis=1)


@pytest.mark.costly
def test_expansion_leaves_rows_out_of_its_chunks(expansion, monkeypatch):
    ex = expansion("poisson_exposure")
    without = np.array([0, 5, 6, 96])
    monkeypatch.setattr(type(ex), "chunk_rows", 7)
    found = np.concatenate(list(ex.over(packed, without=without)), axis=1)
    np.testing.assert_array_equal(found, ex.take(np.delete(np.arange(97), without)))


def skewed(n=6_000):
    """Groups of 3 to thousands of rows."""
    rng = np.random.default_rng(3)
    g = np.sort(np.concatenate([np.repeat(np.arange(12), 3), rng.integers(12, 15, n - 36)]))
    y = rng.poisson(np.exp(0.7 * rng.normal(size=15)[g]))
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=15)
        pm.Poisson("y", pm.math.exp(a[g]), observed=y)
    return model


@pytest.mark.costly(cases=0)
def test_rows_of_small_groups_are_read_always():
    step = pms.HMCECS(model=skewed(), rng=1)
    always = step.subsample.always
    assert 0 < len(always) < 600
    assert np.mean(np.isin(np.arange(36), always)) > 0.5
    # Without them a subsample takes several times the rows.
    at = step.prepared
    left = residuals_around(step.expansion, step.reference, at.pilot, at.far)
    variance = [np.max(left.moments(e).variance(step.subsample_size)) for e in (len(always), 0)]
    assert variance[1] > 2 * variance[0]


@pytest.mark.costly(cases=0)
def test_a_larger_subsample_reads_them_too():
    """And is never noisier than the automatic one: warnings advise it."""
    auto = pms.HMCECS(model=skewed(), rng=1)
    larger = pms.HMCECS(model=skewed(), rng=1, subsample_size=2 * auto.subsample_size)
    np.testing.assert_array_equal(larger.subsample.always, auto.subsample.always)
    assert larger.subsample_size == 2 * auto.subsample_size
    m = auto.subsample_size
    np.testing.assert_allclose(larger.moments.variance(2 * m), auto.moments.variance(m) / 2)


@pytest.mark.costly(cases=1)
def test_always_read_rows_leave_the_posterior_as_it_is():
    """Against pm.NUTS on all rows: 5 standard errors of both, sds within 12%."""
    model = skewed(600)
    with model:
        step = pms.HMCECS(rng=1)
        assert len(step.subsample.always)
        ours = pm.sample(step=step, chains=2, cores=1, tune=500, draws=2000, random_seed=1, **QUIET)
        full = pm.sample(chains=2, cores=1, tune=500, draws=1000, random_seed=2, **QUIET)
    share = ours.sample_stats["data_share"].values[0, -1]
    assert np.isclose(share * 600, step.subsample_size + len(step.subsample.always), atol=60)
    for name in ("tau", "a"):
        a, b = ours.posterior[name], full.posterior[name]
        mean, other = a.mean(("chain", "draw")), b.mean(("chain", "draw"))
        sd, other_sd = a.std(("chain", "draw")), b.std(("chain", "draw"))
        ess = az.ess(ours, var_names=name)[name], az.ess(full, var_names=name)[name]
        error = np.sqrt(sd**2 / ess[0] + other_sd**2 / ess[1])
        assert np.all(np.abs(mean - other) < 5 * error)
        assert np.all(np.abs(sd / other_sd - 1) < 0.12 + 4 * np.sqrt(1 / (2 * ess[1])))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "step", [pms.HMCECS, pms.MinibatchBarkerMH, pms.ConfidenceMH], ids=lambda s: s.__name__
)
def test_state_with_rows_that_are_always_read_round_trips(step):
    with skewed() as model:
        one, other = (step(rng=seed) for seed in (1, 2))
    assert_goes_on(one, other, model, tune=10, before=5, after=10)


@pytest.mark.costly(cases=0)
def test_reference_moves_with_rows_that_are_always_read():
    step = pms.HMCECS(model=skewed(), rng=1)
    step.setup_chain(np.random.default_rng(3), tune=10, draws=10)
    point = step.model.initial_point()
    for _ in range(3):
        point, _ = step.step(point)
    step.tuning._fold()
    adaptation.recentre(step, step.reference.theta)
    at = reference_at(step.expansion, step.reference.theta)
    np.testing.assert_allclose(step.reference.slope, at.slope)
    point, [stats] = step.step(point)
    assert np.isfinite(stats["model_logp"])


# Minibatch Metropolis-Hastings


def rare(n=100_000):
    """A dummy that six rows have, all of outcome 1: the model, its coefficient's mean and sd.

    By quadrature. The other coefficient is known so well that it may stay at its mode.
    """
    rng = np.random.default_rng(4)
    x, y = np.zeros(n), (rng.random(n) < 0.4).astype(int)
    x[:6], y[:6] = 1.0, 1
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    at = np.log(y[6:].mean() / (1 - y[6:].mean()))
    grid = np.linspace(-8, 14, 4001)
    weight = np.exp(6 * log_expit(at + grid) - grid**2 / 8)
    weight /= weight.sum()
    mean = weight @ grid
    return model, mean, np.sqrt(weight @ (grid - mean) ** 2), n**-0.5 / np.sqrt(0.24)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("step", [pms.MinibatchBarkerMH, pms.AusterityMH])
def test_rare_rows_are_read_always_by_small_proposals(step, right):
    """And without that are missed: most batches know nothing of them."""
    model, mean, sd, other = rare()
    walk = pms.proposals.RandomWalk(0.2, covariance=[other**2, sd**2])
    one = step(model=model, proposal=walk, transitions_per_draw=100)
    assert set(range(6)) <= set(one.always)
    assert len(one.always) < 20
    if not right:
        one.prepared = replace(one.prepared, always=np.zeros(0, dtype=np.int64))
    draws = sample(one, model, 1500, tune=20)["posterior"]["b"]
    if right:
        assert_moments(draws, mean, sd)
    else:
        with pytest.raises(AssertionError):
            assert_moments(draws, mean, sd)


@pytest.mark.costly(cases=0)
def test_bounds_are_of_rows_that_are_drawn():
    """One that held for the six rows too would be hundreds of times as large."""
    model, *_ = rare()
    steps = [pms.ConfidenceMH(model=model, bound=bound) for bound in ("linear", "local")]
    for one in steps:
        at, always = one.reference.theta, one.always
        bound = _automatic_bound(one, at, at + np.array([0.0, 0.5]))
        one.always = always[:0]
        assert _automatic_bound(one, at, at + np.array([0.0, 0.5])) > 100 * bound
        one.always = always
        _, stats = chain(one, model.initial_point(), tune=20, draws=20)
        assert np.mean([s["data_share"] for s in stats[20:]]) < 0.1


@pytest.mark.costly
@pytest.mark.parametrize("proposal", [None, pms.proposals.Langevin(batch_size=50)])
def test_rows_that_are_read_always_are_counted(proposal):
    model, *_ = rare(20_000)
    one = pms.MinibatchBarkerMH(model=model, proposal=proposal, transitions_per_draw=4)
    e = len(one.always)
    assert e >= 6
    _, stats = chain(one, model.initial_point(), tune=5, draws=5)
    for stat in stats:
        drawn = stat["batch_size"] - e
        assert drawn >= 100
        gradients = 6 * 50 + 4 * e if proposal else 0
        np.testing.assert_allclose(stat["n_evaluations"], 4 * (4 * drawn + 2 * e + gradients))


@pytest.mark.costly
def test_all_rows_are_all_rows():
    """Batches and gradients of as many as there are, where some are read always."""
    model, *_ = rare(2_000)
    for proposal in (None, pms.proposals.Langevin(batch_size=2_000)):
        one = pms.MinibatchBarkerMH(model=model, proposal=proposal, batch_size=2_000)
        assert len(one.always)
        _, stats = chain(one, model.initial_point(), tune=5, draws=5)
        assert {stat["batch_size"] for stat in stats} == {2_000}


@pytest.mark.costly
def test_rows_read_always_are_those_around_a_reference_that_moves():
    """Rows 0 to 3 are saturated at a slope of 1, and rows 4 to 7 at 0."""
    rng = np.random.default_rng(5)
    x, offset = rng.normal(size=20_000), np.zeros(20_000)
    x[:8], offset[4:8] = 60.0, -60.0
    y = (rng.random(len(x)) < 0.5).astype(int)
    y[:4], y[4:8] = 1, 0
    with pm.Model():
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1) * x + offset, observed=y)
        one = pms.MinibatchBarkerMH()
    assert set(one.always) >= {0, 1, 2, 3}
    assert not set(one.always) & {4, 5, 6, 7}
    recentre(one, np.array([1.0]))
    assert set(one.always) >= {4, 5, 6, 7}
    assert not set(one.always) & {0, 1, 2, 3}
