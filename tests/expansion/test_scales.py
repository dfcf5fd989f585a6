"""Parameters that run to a limit: rows see them on a scale on which the limit is a point."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_subsample as pms
from pymc_subsample.diagnostics.array_stats import ess
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.scales import _Bent, better_scales
from pymc_subsample.model import TallModel
from pymc_subsample.model.scales import SCALES, fitting

N = 6_000


X = np.arange(N) % 2


def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(np.exp(0.4 + 0.3 * X))


def near_poisson() -> pm.Model:
    with pm.Model() as model:
        a, b, alpha = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2), pm.Exponential("alpha", 0.01)
        pm.NegativeBinomial("y", mu=pm.math.exp(a + b * X), alpha=alpha, observed=counts())
    return model


def hardly_inflated() -> pm.Model:
    with pm.Model() as model:
        a, b, psi = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2), pm.Beta("psi", 2, 2)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(a + b * X), observed=counts())
    return model


def half_effect_beyond_all_doses() -> pm.Model:
    rng = np.random.default_rng(4)
    dose = rng.choice([0.0, 1, 2, 5, 10], N)
    y = 2 + 8 * dose / (60 + dose) + rng.normal(0, 3, N)
    with pm.Model() as model:
        e0, top = pm.Normal("e0", 0, 10), pm.HalfNormal("emax", 20)
        half = pm.LogNormal("e50", 2, 2)
        pm.Normal("y", e0 + top * dose / (half + dose), 3.0, observed=y)
    return model


def exact(model: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return marginal densities of the intercept and of log(alpha) or logit(psi), on grids."""
    y, shift = counts(), np.linspace(-0.13, 0.13, 131)
    if model == "near_poisson":
        b = np.linspace(1, 9, 321)
        prior = -0.01 * np.exp(b) + b
    else:
        b = np.linspace(0, 10, 321)
        prior = -2 * (np.logaddexp(0, -b) + np.logaddexp(0, b))
    etas, sums = [], []
    for x in (0, 1):
        values, times = np.unique(y[x == X], return_counts=True)
        eta = np.log(y[x == X].mean()) + shift
        mu = np.exp(eta)[:, None, None]
        if model == "near_poisson":
            size = np.exp(b)[None, :, None]
            rows = stats.nbinom.logpmf(values, size, size / (size + mu))
        else:
            psi = special.expit(b)[None, :, None]
            rows = stats.poisson.logpmf(values, mu) + np.log(psi)
            rows = np.where(values == 0, np.logaddexp(rows, np.log1p(-psi)), rows)
        etas.append(eta)
        sums.append(rows @ times)
    log = sums[0][:, None] + sums[1][None] + prior - 0.5 * (etas[0][:, None, None] / 5) ** 2
    log = log - 0.5 * ((etas[1][None, :] - etas[0][:, None]) / 2)[:, :, None] ** 2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    return {"a": (etas[0], weight.sum(axis=(1, 2))), "b": (b, weight.sum(axis=(0, 1)))}


MODELS = {"near_poisson": near_poisson, "hardly_inflated": hardly_inflated}


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", MODELS)
def test_a_limit_is_sampled_by_few_rows_and_right(name):
    step = pms.HMCECS(model=MODELS[name]())
    assert step.share < 0.1
    with step.model:
        idata = pm.sample(
            step=step, chains=2, draws=3000, cores=1, progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    posterior, found = idata["posterior"], {}
    found["a"] = posterior["a"].values
    if name == "near_poisson":
        found["b"] = np.log(posterior["alpha"].values)
    else:
        found["b"] = special.logit(posterior["psi"].values)
    for parameter, (x, marginal) in exact(name).items():
        draws = found[parameter]
        mean = marginal @ x
        sd = np.sqrt(marginal @ (x - mean) ** 2)
        kurtosis = marginal @ ((x - mean) / sd) ** 4
        effective = float(min(ess(draws), ess((draws - mean) ** 2)))
        assert effective > 300
        # 4.5 standard errors: 1e-5.
        assert abs(draws.mean() - mean) < 4.5 * sd / np.sqrt(effective)
        assert abs(draws.var() / sd**2 - 1) < 4.5 * np.sqrt((kurtosis - 1) / effective)
        for q in (0.01, 0.99):
            end = np.interp(q, np.cumsum(marginal), x)
            hits = (draws < end).astype(float)
            error = 4.5 * np.sqrt(q * (1 - q) / float(ess(hits)))
            assert abs(hits.mean() - q) < error, (parameter, q)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", MODELS)
def test_without_scales_a_large_part_would_be_read(name, monkeypatch):
    monkeypatch.setattr("pymc_subsample.chain.model_compilation.better_scales", lambda *_: {})
    assert pms.HMCECS(model=MODELS[name]()).share > 0.1


@pytest.mark.costly
@pytest.mark.parametrize(("fewest", "worthwhile"), [(1, True), (10**9, False)])
def test_rows_are_not_compiled_anew_for_a_subsample_that_is_the_smallest(
    fewest, worthwhile, monkeypatch
):
    monkeypatch.setattr("pymc_subsample.expansion.scales.SMALLEST_SUBSAMPLE", fewest)
    step = pms.HMCECS(model=MODELS["near_poisson"]())
    assert bool(step.form.scales) == worthwhile


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", MODELS)
def test_residuals_on_a_scale_are_those_of_rows_that_see_it(name):
    model = MODELS[name]()
    plain = TallModel(model)
    expansion = expand(plain)
    theta = plain.ravel(plain.initial_point)
    theta = np.array([0.4, 0.3, 4.0])
    far = np.array([[0.42, 0.29, 6.0], [0.39, 0.3, 3.2]])
    reference = reference_at(expansion, theta)
    found = better_scales(plain, expansion, reference, far, far[:0])
    [(number, scale)] = found.items()
    assert scale == {"near_poisson": "reciprocal", "hardly_inflated": "exponential"}[name]
    place = list(plain.phi_slices.values())[number]
    rows = expansion.take(np.arange(300))
    bent = _Bent(
        expansion, rows, reference.center, np.array([expansion.parameters(x)[0] for x in far])
    )
    predicted = bent.left(dict.fromkeys(range(place.start, place.stop), SCALES[scale]))
    other = TallModel(model, scales=found)
    scaled = expand(other)
    center, _ = scaled.parameters(theta)
    np.testing.assert_allclose(
        center[place], SCALES[scale].value(reference.center[place]), rtol=1e-12
    )
    points = np.array([scaled.parameters(x)[0] for x in far])
    left = scaled.residuals(scaled.take(np.arange(300)), center, points)
    np.testing.assert_allclose(predicted, left, atol=1e-5)
    assert np.abs(left).max() < 0.1 * np.abs(bent.left({})).max()
    np.testing.assert_allclose(
        other.row_loglik(far[0], slice(0, 50)), plain.row_loglik(far[0], slice(0, 50)), rtol=1e-9
    )


@pytest.mark.costly
def test_scales_are_of_the_parameters_that_rows_see():
    """Data may drop a parameter that comes first."""
    x = 1.0 + X
    with pm.Model() as model:
        never, mu, alpha = pm.Normal("never"), pm.Normal("mu"), pm.Exponential("alpha", 0.01)
        eta = pt.switch(x > 0, mu * x, never * x)
        rows = pm.NegativeBinomial.dist(mu=pm.math.exp(eta), alpha=alpha)
        pm.Potential("y", pt.switch(x > 0, pm.logp(rows, counts()), never * x))
    plain = TallModel(model)
    theta = np.array([0.7, 0.2, 3.0])
    before, _ = expand(plain).parameters(theta)
    assert len(before) == 2
    for number in range(2):
        scaled = TallModel(model, scales={number: "reciprocal"})
        expected = np.where(np.arange(2) == number, 1 / before, before)
        np.testing.assert_allclose(expand(scaled).parameters(theta)[0], expected, rtol=1e-12)
        some = slice(0, 50)
        np.testing.assert_allclose(
            scaled.row_loglik(theta, some), plain.row_loglik(theta, some), rtol=1e-9
        )


def test_scales_fit_what_has_a_limit():
    with pm.Model() as model:
        mu, sigma, nu = pm.Normal("mu"), pm.HalfNormal("sigma"), pm.Exponential("nu", 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=np.arange(9.0))
    tall = TallModel(model)
    by_name = {
        str(graph): fitting(graph, tall.theta)
        for graph in tall.phi_graphs
    }  # fmt: skip
    assert sorted(map(len, by_name.values()))[0] == 0  # mu may be anything
    assert any(found == ["reciprocal"] for found in by_name.values())


@pytest.mark.costly
def test_where_no_subsample_is_enough_all_rows_are_read(caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        step = pms.HMCECS(model=half_effect_beyond_all_doses())
    assert "all rows are read, without approximation" in caplog.text
    assert step.exact
    assert step.share == 1.0
    step.setup_chain(np.random.default_rng(0), 200, 60)
    point, logp = step.model.initial_point(), step.model.compile_logp()
    stats = []
    for k in range(220):
        if k == 200:
            step.stop_tuning()
        point, [found] = step.step(point)
        if k < 200:
            continue
        assert found["model_logp"] == pytest.approx(logp(point), rel=1e-9)
        stats.append(found)
    assert max(s["loglik_variance"] for s in stats) == 0.0
    assert np.mean([s["accepted"] for s in stats]) > 0.2
