"""Draws that all rows make all but impossible are told, and no draws of a posterior are."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_subsample as pms
from pymc_subsample.chain.ellipsoid import far_points
from pymc_subsample.diagnostics import look, overlooked_rows
from pymc_subsample.diagnostics.look import log_densities
from pymc_subsample.diagnostics.overlooked_rows import depth
from pymc_subsample.diagnostics.reading_draws import farthest_thetas
from pymc_subsample.model import TallModel

QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}


def normal(rng, k, d):
    return -0.5 * np.sum(rng.normal(size=(k, d)) ** 2, axis=1)


def funnel(rng, k, groups):
    """Effects of no rows, with a scale of its own: log densities are hundreds apart."""
    log_scale = rng.normal(0, 1, k)
    z = normal(rng, k, groups)
    return -0.5 * log_scale**2 + z - groups * log_scale


def level(rng, k, d):
    """Many effects without rows, of a scale that is known to one side."""
    return -d * rng.exponential(size=k)


def heavy(rng, k, d):
    return scipy.stats.t.logpdf(rng.standard_t(1, size=(k, d)), 1).sum(axis=1)


def log_gamma(rng, k, d):
    """Logarithms of small gamma numbers: an exponential tail."""
    shape = 0.05
    return np.array([
        scipy.stats.loggamma.logpdf(
            scipy.stats.loggamma.rvs(shape, size=d, random_state=rng), shape
        ).sum() for _ in range(k)
    ])  # fmt: skip


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("d", [1, 2, 30, 500])
@pytest.mark.parametrize("draw", [normal, funnel, level, heavy, log_gamma])
def test_draws_of_a_posterior_are_not_told(draw, d):
    """The farthest of 1,000, beside 24 of them, in 20 runs: fewer than one in 10^3 may be told."""
    rng = np.random.default_rng(d)
    for _ in range(20):
        logp = draw(rng, 1_000 if draw is not log_gamma else 200, d)
        assert depth(logp, logp[:24]) < 1
        assert depth(logp, logp) < 1


def test_one_draw_that_is_all_but_impossible_is_told():
    logp = normal(np.random.default_rng(0), 200, 30)
    for low in (-500.0, -np.inf, np.nan):
        wrong = np.append(logp, low)
        assert depth(wrong, wrong) > 1
        assert depth(wrong, logp[:24]) > 1
    assert depth(np.append(logp, logp.min() - 5), logp) < 1


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4])
def test_many_draws_that_are_all_but_impossible_hide_none(share):
    """By rows whose log density falls linearly; of 24 draws less than half are beyond 4 in 5."""
    rng = np.random.default_rng(1)
    told = 0
    for _ in range(200):
        logp = normal(rng, 200, 5) - (rng.random(200) < share) * rng.uniform(500, 1e4, 200)
        told += depth(logp, logp) > 1
        assert depth(np.append(logp, -np.inf), logp[:24]) == np.inf
    assert told > 0.95 * 200


def test_too_few_say_nothing_unless_one_is_impossible():
    assert depth(np.array([-1e9]), np.zeros(7)) == 0.0
    assert depth(np.zeros(8), np.array([0.0, -np.inf])) == np.inf


def walled(n, nu, wall):
    """A Poisson regression, and a t_nu parameter that one row alone keeps above minus `wall`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    dose, offset = np.zeros(n), np.zeros(n)
    x[17], dose[17], offset[17] = 0.0, -40.0, -40.0 * wall
    y = rng.poisson(np.exp(0.3 + 0.2 * x + offset))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        theta = pm.StudentT("theta", nu=nu, mu=0, sigma=1)
        pm.Poisson("y", pm.math.exp(a + b * x + theta * dose + offset), observed=y)
    grid = np.linspace(-40, 40, 400_001)
    log = scipy.stats.t.logpdf(grid, nu) - np.exp(np.minimum(-40 * (grid + wall), 700.0))
    density = np.exp(log - log.max())
    mean = np.sum(density * grid) / np.sum(density)
    return model, np.sqrt(np.sum(density * (grid - mean) ** 2) / np.sum(density))


@pytest.fixture(scope="module")
def wall():
    return walled(300_000, 5, 2.4)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_row_beyond_which_nothing_is_likely_is_told_of_stochastic_gradients(wall, seed):
    """One of 300,000: batches do not hold it, nor do random rows. Standard deviations are off."""
    model, sd = wall
    with model:
        idata = pm.sample(3_000, step=pms.sgmcmc.SGHMC(), chains=2, random_seed=seed, **QUIET)
    assert idata.posterior["theta"].std() > 1.05 * sd
    found = {f.name: f.status for f in pms.report(idata).findings}
    assert found["overlooked"] == "fail"
    audit = pms.audit(idata, model=model)
    assert audit.status == "fail"
    assert "all but impossible" in audit.other


@pytest.fixture(scope="module")
def far_wall():
    """Beyond where the set-up looks: no row is read always."""
    return walled(300_000, 3, 4.33)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("step", [pms.MinibatchBarkerMH, pms.AusterityMH])
def test_a_row_beyond_which_nothing_is_likely_is_told_of_minibatch_tests(far_wall, step):
    """Of every chain that stayed there, and of none that did not go there."""
    model, _ = far_wall
    made, there = step(model=model), 0
    for seed in range(1, 5):
        kwargs = {"step": made, "chains": 1, "random_seed": seed, **QUIET}
        idata = pm.sample(6_000, model=model, **kwargs)
        kept = idata.posterior["theta"].values[0]
        found = {f.name: f.status for f in pms.report(idata).findings}
        if np.mean(kept < -5) > 0.005:
            there += 1
            assert found["overlooked"] == "fail"
        elif kept.min() > -4.4:
            assert found["overlooked"] == "pass"
    assert there


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_log_densities_are_those_of_all_rows(order, temperature):
    model, _ = walled(5_000, 5, 2.4)
    step = pms.MinibatchBarkerMH(model=model, control_variate_order=order or None)
    tall = TallModel(model)
    thetas = np.array([0.3, 0.2, 0.0]) + 0.1 * np.random.default_rng(0).normal(size=(6, 3))
    found = log_densities(step.expansion, thetas, temperature)
    prior, rows = (model.compile_logp(vars) for vars in (model.free_RVs, model.observed_RVs))
    exact = [prior(x) + rows(x) / temperature for x in map(tall.unravel, thetas)]
    np.testing.assert_allclose(found, exact, rtol=1e-10)


@pytest.mark.costly(cases=0)
def test_of_too_many_rows_the_check_is_left_out(wall, monkeypatch):
    """It is not said to pass."""
    model, _ = wall
    for most in (1e12, 1_000_000):
        monkeypatch.setattr(look, "MOST_ROWS", most)
        with model:
            idata = pm.sample(1_000, step=pms.sgmcmc.SGHMC(), chains=1, random_seed=1, **QUIET)
        assert ("overlooked" in {f.name for f in pms.report(idata).findings}) == (most > 1e9)


def test_what_is_said_of_a_density_that_is_no_number():
    assert overlooked_rows.how_deep(np.inf) == "not finite"


@pytest.mark.costly(cases=0)
def test_rows_that_matter_to_one_side_are_read_always(wall):
    """Whatever the seed of the set-up: the farther points are on both sides."""
    model, sd = wall
    for seed in range(4):
        assert 17 in pms.HMCECS(model=model, rng=seed).subsample.always
    step = pms.HMCECS(model=model)
    idata = pm.sample(20_000, model=model, step=step, chains=2, random_seed=1, **QUIET)
    # Five standard errors of some 8,000 effective draws, of a kurtosis of 9.
    assert idata.posterior["theta"].std().item() == pytest.approx(sd, rel=0.08)


def test_points_far_out_are_on_both_sides_of_every_direction():
    theta, factor = np.array([1.0, -2.0, 5.0]), np.array([[0.1, 2.0, 30.0]])
    free = np.arange(3)
    z = (far_points(0, theta, factor, free, np.random.default_rng(0)) - theta) / factor
    assert np.all(z.max(axis=0) == pytest.approx(4))
    assert np.all(z.min(axis=0) == pytest.approx(-4))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("edge", [0.0, 1e-3])
def test_the_farthest_draws_are_read_back_on_the_scale_of_the_sampler(edge):
    """Of every variable; those that rounding has put at the edge of their support are left out."""
    with pm.Model(coords={"far": [0, 1]}) as model:
        s, b = pm.HalfNormal("s", 1), pm.Normal("b", 0, 1, dims="far")
        pm.Normal("y", b[0] + b[1], s, observed=np.zeros(50))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 500, 2))
    scales = np.exp(rng.normal(size=(2, 500)))
    values[1, 77, 0], scales[0, 3], scales[1, 4], scales[1, 5] = 30.0, 1e3, edge, 1e-9
    idata = pm.sample(5, tune=5, model=model, chains=2, random_seed=1, **QUIET)
    posterior = idata.posterior.to_dataset().isel(draw=np.zeros(500, dtype=int))
    posterior = posterior.assign_coords(draw=np.arange(500))
    posterior["b"] = (posterior["b"].dims, values)
    posterior["s"] = (posterior["s"].dims, scales)
    tall = TallModel(model)
    found = farthest_thetas(model, tall, posterior, 16)
    place = dict(zip(tall.names, tall.slices, strict=True))
    assert 30.0 in found[:, place["b"]]
    assert np.any(np.isclose(found[:, place["s_log__"]], np.log(1e3)))
    assert edge == 0 or np.any(np.isclose(found[:, place["s_log__"]], np.log(1e-9)))
    assert np.all(np.isfinite(found))
    assert len(found) <= 16
