"""Leaving out some rows says what leaving out each of them would."""

import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from arviz_stats.utils import ELPDDataLOO, ELPDDataLOOSubsample
from models import bent_ridge
from scipy.special import logsumexp
from scipy.stats import chi2, norm

import pymc_subsample as pms
from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.drift import directions, drift_of
from pymc_subsample.diagnostics.reading_draws import to_theta
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel
from pymc_subsample.results.loo import elpd_data, estimate
from pymc_subsample.results.loo.estimate import (
    LeftOut,
    of_all,
    of_some,
)
from pymc_subsample.results.loo.expanded import approximate
from pymc_subsample.rows import Rows

N = 2_000
# Of a normal error, two-sided: once in 100,000 times.
FAR = 4.42


def tree(draws=250, **values):
    """A result with draws of some variables, shape (chain, draw, ...)."""
    posterior = {
        name: (["chain", "draw", *(f"{name}_dim_{i}" for i in range(x.ndim - 2))], x)
        for name, x in values.items()
    }
    coords = {"chain": np.arange(2), "draw": np.arange(draws)}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior, coords)})


def around(rng, value, sd):
    """Draws of a posterior that is about normal."""
    return value + sd * rng.normal(size=(2, 250, *np.shape(value)))


def logistic(rng, columns=None, n=N):
    X = rng.standard_t(3, size=(n, 4)) if columns is None else columns
    beta = np.array([1.0, -1.0, 0.5, 0.0])[: X.shape[1]]
    y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ beta))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=len(beta))
        pm.Bernoulli("y", logit_p=X @ b, observed=y)
    return model, tree(b=around(rng, beta, 2 / np.sqrt(len(X))))


def normal(rng):
    """Errors of heavier tails than the model has."""
    X = rng.normal(size=(N, 3))
    y = X @ [1.0, 0.0, -1.0] + rng.standard_t(3, size=N)
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ b, sigma, observed=y)
    sd = np.std(y - X @ [1.0, 0.0, -1.0])
    b = around(rng, np.array([1.0, 0.0, -1.0]), sd / np.sqrt(N))
    return model, tree(b=b, sigma=around(rng, sd, sd / np.sqrt(2 * N)))


def counts(rng):
    """More parameters than the pass has directions at least."""
    g, effect = rng.integers(0, 80, N), 0.5 * rng.normal(size=80)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        z = pm.Normal("z", shape=80)
        pm.Poisson("y", pm.math.exp(mu + tau * z[g]), observed=rng.poisson(np.exp(1 + effect[g])))
    sd = 1 / np.sqrt(2.7 * N / 80)
    mu, tau = around(rng, 1.0, 0.3 * sd), around(rng, 0.5, 0.05)
    return model, tree(mu=mu, tau=tau, z=around(rng, effect / 0.5, sd))


def mixture(rng):
    """No linear predictor, a simplex, and order."""
    y = np.where(rng.random(N) < 0.3, rng.normal(-2, 1, N), rng.normal(1, 0.7, N))
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", [-2, 1], 1, shape=2)
        pm.NormalMixture("y", w, mu, [1.0, 0.7], observed=y)
    w = rng.dirichlet([0.3 * N, 0.7 * N], size=(2, 250))
    return model, tree(w=w, mu=around(rng, np.array([-2.0, 1.0]), 1.5 / np.sqrt(N)))


def network(rng):
    """Rows on the general path."""
    X = rng.normal(size=(N, 3))
    w, v = rng.normal(size=(3, 6)), rng.normal(size=6)
    with pm.Model() as model:
        hidden = pm.math.tanh(X @ pm.Normal("w", shape=(3, 6)))
        y = np.tanh(X @ w) @ v + rng.normal(size=N)
        pm.Normal("y", hidden @ pm.Normal("v", shape=6), 1.0, observed=y)
    return model, tree(w=around(rng, w, 2 / np.sqrt(N)), v=around(rng, v, 2 / np.sqrt(N)))


CASES = [logistic, normal, counts, mixture, network]


def full(model, idata):
    """ArviZ's, from the matrix of all rows and draws."""
    with_matrix = idata.copy()
    pm.compute_log_likelihood(with_matrix, model=model, progressbar=False)
    return az.loo(with_matrix, pointwise=True), with_matrix["log_likelihood"]["y"].values


def left_out(model, idata):
    """What `pms.loo` makes of them, to be called step by step."""
    tall = TallModel(model)
    thetas = to_theta(model, tall, idata["posterior"].to_dataset(), "test")
    expansion = expand(tall, 0)
    phis = np.array([expansion.parameters(t)[0] for t in thetas.reshape(-1, tall.size)])
    return LeftOut(expansion, phis, 1.0, None), approximate(expansion, phis)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.__name__)
def found(request):
    model, idata = request.param(np.random.default_rng(1))
    return pms.loo(idata, model=model), *full(model, idata)


# Against the full matrix


@pytest.mark.costly(cases=0)
def test_estimates_are_those_of_all_rows_within_their_error(found):
    some, every, _ = found
    assert isinstance(some, ELPDDataLOOSubsample)
    assert (some.subsample_size, some.n_data_points, some.n_samples) == (400, N, 500)
    assert abs(some.elpd - every.elpd) < FAR * some.subsampling_se
    assert 0 < some.subsampling_se < 0.1 * some.se
    assert some.se == pytest.approx(every.se, rel=0.02)
    assert some.p == pytest.approx(every.p, rel=0.05)


@pytest.mark.costly(cases=0)
def test_rows_that_are_read_are_left_out_as_arviz_does(found):
    """Elpd and Pareto k of each, by the same relative efficiency."""
    some, every, _ = found
    read = np.isfinite(some.pareto_k.values)
    assert 400 < read.sum() <= 600
    assert np.all(read[some.loo_subsample_observations])
    np.testing.assert_allclose(some.elpd_i.values[read], every.elpd_i.values[read], rtol=1e-9)
    np.testing.assert_allclose(some.pareto_k.values[read], every.pareto_k.values[read], atol=1e-6)
    assert some.good_k == every.good_k
    assert some.warning == every.warning


@pytest.mark.costly
def test_rows_that_matter_most_are_among_them(found):
    some, every, matrix = found
    effect = logsumexp(matrix, axis=(0, 1)) - np.log(500) - every.elpd_i.values
    most = np.argsort(-effect)[:50]
    assert np.isfinite(some.pareto_k.values[most]).mean() >= 0.95


def test_other_rows_have_the_approximation(found):
    some, every, matrix = found
    unread = np.isnan(some.pareto_k.values)
    np.testing.assert_array_equal(some.elpd_i[unread], some.elpd_loo_approx[unread])
    error = (some.elpd_i - every.elpd_i.values).values[unread]
    plain = (matrix.mean(axis=(0, 1)) - every.elpd_i.values)[unread]
    assert np.std(error) < 0.2 * np.std(plain)


@pytest.mark.costly(cases=0)
def test_errors_cover_the_truth_and_without_outlying_rows_do_not():
    """Of 300 samples, errors in units of their standard error; as of Student's t(99) at worst."""
    left, known = left_out(*normal(np.random.default_rng(1)))
    truth = of_all(left).elpd
    outlying = np.argsort(-np.abs(known.elpd - known.level))[:200]

    def errors(rows):
        rng, z = np.random.default_rng(2), []
        for _ in range(300):
            some = of_some(left, known, rows, rng.permutation(N)[:400])
            z.append((some.elpd - truth) / some.subsampling_se)
        return np.array(z)

    squares = np.sum(errors(outlying) ** 2)
    low, high = chi2.ppf([1e-5, 1 - 1e-5], 300)
    assert low < squares < 1.1 * high
    assert np.mean(np.abs(errors(outlying[:0])) > 3) > 0.1


# The pass over all rows


@pytest.mark.parametrize("most", [10, 1])
def test_terms_of_order_two_are_exact_for_a_normal_posterior_and_rows(most):
    """Against Gaussian integrals; with fewer directions than parameters, by chance."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 200))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a") * x, 1.0, observed=y)
    draws = rng.normal(size=(1, 200))
    draws = 0.3 + 0.4 * (draws - draws.mean()) / draws.std(ddof=1)
    _, known = left_out(model, tree_of_one(a=draws))
    mean, variance = 0.3, 0.16
    leverage = -variance * x**2
    slope = x * (y - mean * x)
    level = -0.5 * (y - mean * x) ** 2 - 0.5 * np.log(2 * np.pi)
    spread = slope**2 * variance
    good = leverage > -0.7
    assert good.sum() > 190
    elpd = level[good] + 0.5 * np.log1p(leverage[good]) - 0.5 * (spread / (1 + leverage))[good]
    np.testing.assert_allclose(known.level, level, rtol=1e-12)
    np.testing.assert_allclose(known.elpd[good], elpd, rtol=1e-9)
    lpd = level - 0.5 * np.log1p(-leverage) + 0.5 * spread / (1 - leverage)
    np.testing.assert_allclose((known.elpd + known.p)[good], lpd[good], rtol=1e-9)
    steps, weight = directions(rng.normal(size=(5_000, 3)) @ np.diag([1.0, 10.0, 1e-3]), most)
    covariance = weight * steps.T @ steps / np.outer([1.0, 10.0, 1e-3], [1.0, 10.0, 1e-3])
    if most >= 3:
        np.testing.assert_allclose(covariance, np.eye(3), atol=FAR * np.sqrt(2 / 5_000))
    else:
        assert steps.shape == (1, 3)


def tree_of_one(**draws):
    posterior = {name: (["chain", "draw"], x) for name, x in draws.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "name", ["bernoulli_logit", "negative_binomial", "two_layer_network", "mvnormal_lkj"]
)
def test_compiled_logliks_have_all_their_constants(name, tall_model, expansion):
    """Constants cancel in a step, but not here."""
    tall, compiled = tall_model(name), expansion(name, 0)
    theta = tall.ravel(tall.initial_point) + 0.1 * np.random.default_rng(0).normal(size=tall.size)
    index, value = np.arange(50), np.empty(50)
    compiled.loglik(compiled.parameters(theta)[0], compiled.take(index), value)
    np.testing.assert_allclose(value, tall.loglik_as_written(theta, index), rtol=1e-9)


@pytest.mark.costly
def test_threads_change_nothing():
    model, idata = logistic(np.random.default_rng(1))
    one, two = (pms.loo(idata, model=model, workers=k) for k in (1, 2))
    np.testing.assert_array_equal(one.elpd_i, two.elpd_i)


@pytest.mark.costly(cases=0)
def test_processes_change_nothing():
    model, idata = logistic(np.random.default_rng(1))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = pms.loo(idata, model=model, workers=pool)
    np.testing.assert_array_equal(found.elpd_i, pms.loo(idata, model=model).elpd_i)


def test_rows_that_are_impossible_nearby_are_among_those_that_matter():
    y = np.random.default_rng(1).uniform(0, 0.9, N)
    y[[3, 500]] = 1.04, 1.05
    with pm.Model() as model:
        top = pm.HalfNormal("top", initval=1.1)
        pm.Potential("inside", pm.math.switch(y < top, -pm.math.log(top), -np.inf))
    _, known = left_out(model, tree(top=around(np.random.default_rng(2), 1.1, 0.1)))
    effect = np.abs(known.elpd - known.level)
    assert set(np.argsort(-effect)[:2]) == {3, 500}
    assert np.all(np.isfinite(known.elpd))


@pytest.mark.costly(cases=0)
def test_a_row_is_all_that_one_place_of_the_rows_holds():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=2), 1.0, observed=rng.normal(size=(300, 2)))
    idata = tree(mu=around(rng, np.zeros(2), 0.06))
    _, matrix = full(model, idata)
    by_row = {"mu": idata["posterior"]["mu"].values}
    by_row = az.from_dict({"posterior": by_row, "log_likelihood": {"y": matrix.sum(axis=-1)}})
    assert pms.loo(idata, model=model).elpd == pytest.approx(az.loo(by_row).elpd, rel=1e-12)


# How many rows are read


@pytest.mark.costly(cases=0)
def test_the_number_of_rows_can_be_given_and_the_rows():
    model, idata = logistic(np.random.default_rng(1))
    some = pms.loo(idata, model=model, observations=50)
    assert some.subsample_size == 50
    rows = some.loo_subsample_observations
    again = pms.loo(idata, model=model, observations=rows, rng=5)
    assert again.elpd == some.elpd
    assert len(np.intersect1d(pms.loo(idata, model=model).loo_subsample_observations, rows)) == 50
    assert np.isin(pms.loo(idata, model=model, rng=2).loo_subsample_observations, rows).sum() < 45
    every = pms.loo(idata, model=model, observations=N)
    assert type(every) is ELPDDataLOO
    others = np.flatnonzero(np.isnan(some.pareto_k.values))
    # With the rows that matter most, which are read in any case, these are all.
    covering = pms.loo(idata, model=model, observations=np.union1d(rows, others))
    assert type(covering) is ELPDDataLOO
    assert "subsampling" not in str(covering)
    assert covering.elpd == every.elpd


@pytest.mark.costly
def test_few_rows_are_all_read_as_arviz_does():
    model, idata = logistic(np.random.default_rng(1), n=300)
    found, (expected, _) = pms.loo(idata, model=model), full(model, idata)
    assert type(found) is type(expected) is ELPDDataLOO
    for name in ("elpd", "se", "p"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)
    np.testing.assert_allclose(found.pareto_k, expected.pareto_k, atol=1e-6)


# Draws of another posterior


def sampled(model):
    return pm.sample(
        500, tune=500, chains=2, cores=1, model=model, progressbar=False, random_seed=1, quiet=True,
        compute_convergence_checks=False,
    )  # fmt: skip


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("centred", [True, False])
def test_draws_of_a_skewed_posterior_are_taken(centred):
    """Means of a funnel are far from its mode; the mean gradient is zero all the same."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(60), 3)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=60) if centred else mu + tau * pm.Normal("z", shape=60)
        pm.Bernoulli("y", logit_p=a[g], observed=rng.random(len(g)) < 0.5)
    tall, idata = TallModel(model), sampled(model)
    thetas = to_theta(model, tall, idata["posterior"].to_dataset(), "test")
    assert drift_of(expand(tall, 0), thetas.reshape(-1, tall.size)).off < 1.0
    assert np.isfinite(pms.loo(idata, model=model).elpd)


@pytest.mark.costly(cases=0)
def test_a_hierarchy_on_a_bent_ridge_is_known_from_few_rows():
    """The mean of scale and effects in units of it is beside the ridge; that of effects is not."""
    model, g, observed = bent_ridge(30_000)
    with model:
        idata = pm.sample(
            500, tune=400, chains=2, cores=1, step=pms.HMCECS(), random_seed=1, progressbar=False
        )
    found = pms.loo(idata, model=model)
    assert found.subsample_size == 400
    assert found.subsampling_se < 0.01 * found.se
    # Of a normal mean with known scale and as good as flat prior, exactly.
    means = np.array([observed[g == k].mean() for k in range(6)])
    left = (observed - means[g]) / (1 - 1 / 5_000)
    exact = norm.logpdf(left, 0, np.sqrt(1 + 1 / 4_999))
    assert abs(found.elpd - exact.sum()) < 0.5
    assert found.se == pytest.approx(np.sqrt(30_000) * exact.std(), rel=0.01)
    assert found.p == pytest.approx(6.0, abs=0.6)


@pytest.mark.costly(cases=0)
def test_draws_of_another_model_are_refused():
    """Of the same names and shapes: other columns, another outcome, Bambi's moved intercept."""
    rng = np.random.default_rng(0)
    x = rng.normal(50.0, 10.0, size=(N, 2))
    y = rng.random(N) < 1 / (1 + np.exp(3.0 - x @ [0.07, -0.01]))

    def model_of(columns, outcome=y):
        with pm.Model() as model:
            eta = pm.Normal("Intercept", 0, 5) + columns @ pm.Normal("b", 0, 1, shape=2)
            pm.Bernoulli("y", logit_p=eta, observed=outcome)
        return model

    right = model_of(x)
    idata = sampled(model_of(x - x.mean(axis=0)))
    shift = idata["posterior"]["b"].values @ x.mean(axis=0)
    moved = tree(Intercept=idata["posterior"]["Intercept"].values - shift,
                 b=idata["posterior"]["b"].values, draws=500)  # fmt: skip
    assert pms.loo(moved, model=right).elpd > -0.7 * N
    for given, model in (
        (idata, right),
        (moved, model_of(x[:, ::-1])),
        (moved, model_of(x, ~y)),
    ):
        given = given.filter(lambda node: node.name != "observed_data")
        said = r"no sample of this model's posterior.* off by [\d.,e+]+ .* most in '(Intercept|b)'"
        with pytest.raises(ValueError, match=said + r".*center_predictors=False"):
            pms.loo(given, model=model)


# Comparison


@pytest.mark.costly(cases=0)
def test_models_are_compared_as_by_the_full_matrix():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 4))
    better, draws = logistic(np.random.default_rng(2), X)
    with pm.Model() as worse:
        eta = X[:, [0, 1, 3]] @ pm.Normal("b", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=eta, observed=better.rvs_to_values[better["y"]].data)
    others = tree(b=around(rng, np.array([0.95, -0.95, 0.0]), 2 / np.sqrt(N)))
    some = {"better": pms.loo(draws, model=better), "worse": pms.loo(others, model=worse)}
    every = {"better": full(better, draws)[0], "worse": full(worse, others)[0]}
    found, expected = (az.compare(x, round_to="none") for x in (some, every))
    assert list(found.index) == list(expected.index) == ["better", "worse"]
    error = found.subsampling_dse["worse"]
    assert error < 0.1 * expected.dse["worse"]
    assert abs(found.elpd_diff["worse"] - expected.elpd_diff["worse"]) < FAR * error
    assert found.dse["worse"] == pytest.approx(expected.dse["worse"], rel=0.05)
    assert found.weight["better"] == pytest.approx(expected.weight["better"], abs=0.02)


def test_results_are_printed_and_plotted(found):
    some, *_ = found
    shown = str(some)
    assert "500 by 400 subsampled" in shown
    assert f"{some.elpd:.1f}" in shown
    assert "Pareto k diagnostic" in shown
    assert some.elpd_i.dims == some.pareto_k.dims == some.elpd_loo_approx.dims == ("y_dim_0",)
    az.plot_khat(some)


# Groups


def grouped(matrix, codes):
    """Log-likelihoods of groups, from those of rows."""
    return np.stack([matrix[..., codes == g].sum(axis=-1) for g in np.unique(codes)], axis=-1)


@pytest.mark.costly(cases=0)
def test_groups_are_left_out_together():
    model, idata = logistic(np.random.default_rng(1), n=3_000)
    codes = np.random.default_rng(2).permutation(np.repeat(np.arange(1_500), 2))
    some = pms.loo(idata, model=model, groups=codes)
    _, matrix = full(model, idata)
    expected = az.from_dict({
        "posterior": {"b": idata["posterior"]["b"].values},
        "log_likelihood": {"y": grouped(matrix, codes)},
    })  # fmt: skip
    expected = az.loo(expected, pointwise=True)
    assert some.n_data_points == 1_500
    assert some.subsample_size == 400
    assert abs(some.elpd - expected.elpd) < FAR * some.subsampling_se
    assert some.se == pytest.approx(expected.se, rel=0.05)
    read = np.isfinite(some.pareto_k.values)
    np.testing.assert_allclose(some.elpd_i[read], expected.elpd_i.values[read], rtol=1e-9)
    np.testing.assert_allclose(some.pareto_k[read], expected.pareto_k.values[read], atol=1e-6)
    error = (some.elpd_i - expected.elpd_i.values).values[~read]
    assert np.std(error) < 0.01


@pytest.mark.costly
def test_large_groups_are_doubted_before_all_are_read(monkeypatch, caplog):
    """Each of the four groups has an intercept of its own, which no draws without it would have."""
    rng = np.random.default_rng(12)
    codes = np.repeat(np.arange(4), 300)
    y = rng.normal(codes, 1.0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", 0, 10, shape=4)[codes], 1.0, observed=y)
        idata = pm.sample(
            500, tune=300, chains=2, cores=1, step=pms.ScalableMH(), progressbar=False,
            random_seed=1,
        )  # fmt: skip
    caplog.clear()
    read = []
    whole = estimate.LeftOut.read

    def spied(self, index):
        read.append((len(index), len(caplog.records)))
        whole(self, index)

    monkeypatch.setattr(estimate.LeftOut, "read", spied)
    with pytest.warns(UserWarning, match="of the 4 groups that were read"):
        plain = pms.loo(idata, model=model, groups=codes)
    assert read == [(4, 0)]
    monkeypatch.setattr(elpd_data, "_LONG", 1)
    with pytest.warns(UserWarning, match="of the 4 groups that were read"):
        found = pms.loo(idata, model=model, groups=codes)
    looked = next(k + 1 for k in range(4) if read[1 + k][1] == 0 and read[2 + k][1] == 1)
    assert read == [(4, 0), *[(1, 0)] * looked, (4, 1)]  # said after the first, before all
    which = "the group that matters" if looked == 1 else f"one of the {looked} groups that matter"
    assert f"in {which} most" in caplog.records[0].getMessage()
    assert found.elpd == pytest.approx(plain.elpd, rel=1e-12)
    np.testing.assert_allclose(found.pareto_k, plain.pareto_k)


@pytest.mark.costly(cases=0)
def test_groups_have_names_and_may_be_a_column():
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=600), rng.integers(0, 12, 600)
    with pm.Model() as model:
        airline = pm.Data("airline", g)
        effect = pm.Normal("effect", 0, 1, shape=12)
        pm.Normal("y", effect[airline] + x * 0.5, 1.0, observed=rng.normal(size=600))
    idata = tree(effect=around(rng, np.zeros(12), 0.1))
    named = pms.loo(idata, model=model, groups=np.array(list("abcdefghijkl"))[g])
    column = pms.loo(idata, model=model, groups="airline")
    assert named.elpd == column.elpd
    assert list(named.elpd_i["group"].values) == list("abcdefghijkl")
    assert column.elpd_i.dims == ("airline",)
    alone = pms.loo(idata, model=model, groups=np.arange(600))
    assert alone.elpd == pytest.approx(pms.loo(idata, model=model).elpd, rel=1e-12)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (np.zeros(10), r"one label for each of the 2,000 rows; it has shape \(10,\)"),
        (np.zeros(N), "has one group"),
        (np.r_[np.nan, np.zeros(N - 1)], r"missing in 1 rows \(first: row 0\)"),
        (np.array([None, *["a"] * (N - 1)], dtype=object), "missing in 1 rows"),
        ("nowhere", r"groups='nowhere': the model's pm.Data are \[\]"),
    ],
)
def test_groups_that_are_none_are_refused(groups, said):
    model, idata = logistic(np.random.default_rng(1))
    with pytest.raises(ValueError, match=said):
        pms.loo(idata, model=model, groups=groups)


# Rows on disk


@pytest.mark.costly(cases=0)
def test_rows_on_disk_are_left_out_as_those_in_memory(tmp_path):
    rng = np.random.default_rng(1)
    x, region = rng.normal(size=6_000), rng.integers(0, 1_500, 6_000)
    y = rng.random(6_000) < 1 / (1 + np.exp(-x))
    table = {"x": x, "y": y, "region": region}
    rows = Rows.from_blocks([table], cache=tmp_path / "x.rows")

    def written(s):
        with pm.Model() as model:
            a, b = pm.Normal("a"), pm.Normal("b")
            pm.Bernoulli(
                "late", logit_p=a + b * pm.Data("x", s["x"]), observed=pm.Data("y", s["y"])
            )
        return model

    idata = tree(a=around(rng, 0.0, 0.03), b=around(rng, 1.0, 0.04))
    for groups in (None, "region"):
        memory = pms.loo(idata, model=written(table), groups=None if groups is None else region)
        disk = pms.loo(idata, model=written(rows.sample(500)), data=rows, groups=groups)
        assert disk.n_data_points == memory.n_data_points
        np.testing.assert_array_equal(disk.elpd_i, memory.elpd_i)
        assert disk.elpd == memory.elpd
    with pytest.raises(ValueError, match="data has the columns"):
        pms.loo(idata, model=written(rows.sample(500)), data=rows, groups="nowhere")


# What is not to be trusted


@pytest.mark.costly(cases=0)
def test_large_pareto_k_are_counted_and_their_share_is_estimated():
    """Ten rows that decide on a slope of their own: outlying, and found."""
    rng = np.random.default_rng(1)
    x = np.zeros(N)
    x[::200] = 30.0
    y = rng.normal(size=N) + 2.0 * x
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", 0, 10) + pm.Normal("b", 0, 10) * x, 1.0, observed=y)
    idata = tree(a=around(rng, 0.0, 1 / np.sqrt(N)), b=around(rng, 2.0, 0.05))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = full(model, idata)
    high = int((expected.pareto_k > expected.good_k).sum())
    assert high == 10
    with pytest.warns(UserWarning, match=r"in 10 of the \d+ rows .* 10 of them among the 200 that"):
        found = pms.loo(idata, model=model)
    assert found.warning
    assert np.all(np.isfinite(found.pareto_k.values[::200]))
    with pytest.warns(
        UserWarning, match=r"0\.5% of all 2,000 rows \(95% interval 0\.5% to 1\.[45]%"
    ):
        pms.loo(idata, model=model)


@pytest.mark.costly
def test_equal_logliks_have_no_tail():
    """ArviZ cannot fit a tail to them."""
    x = np.r_[np.full(10, 800.0), np.random.default_rng(1).normal(size=90)]
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b") * x, observed=x > 0)
    found = pms.loo(tree(b=around(np.random.default_rng(2), 3.0, 0.1)), model=model)
    assert np.all(found.pareto_k.values[:10] == 0)
    assert np.all(np.isfinite(found.elpd_i))


def test_rows_that_are_impossible_at_some_draws_are_refused():
    y = np.random.default_rng(1).uniform(0, 1, 300)
    y[7] = 0.9999
    with pm.Model() as model:
        top = pm.HalfNormal("top")
        pm.Potential("inside", pm.math.switch(y < top, -pm.math.log(top), -np.inf))
    with pytest.raises(ValueError, match=r"rows that were read is not finite .*row \d+, at \d+ of"):
        pms.loo(tree(top=around(np.random.default_rng(2), 1.02, 0.01)), model=model)


# What is refused


@pytest.fixture(scope="module")
def small():
    return logistic(np.random.default_rng(1), n=200)


def test_draws_of_another_model_are_refused_by_name(small):
    model, idata = small
    with pytest.raises(ValueError, match=r"idata\.posterior lacks 'b'"):
        pms.loo(tree(slope=np.zeros((2, 250, 4))), model=model)
    with pytest.raises(ValueError, match=r"'b'\] has shape \(3,\) per draw"):
        pms.loo(idata.isel(b_dim_0=[0, 1, 2]), model=model)
    more = tree(b=idata["posterior"]["b"].values, gamma=np.random.default_rng(1).random((2, 250)))
    with pytest.warns(UserWarning, match="holds 'gamma', which the model does not have"):
        pms.loo(more, model=model)


def test_draws_given_other_data_are_refused(small):
    model, idata = small
    other = idata.copy()
    y = np.asarray(model.rvs_to_values[model["y"]].data)
    other["observed_data"] = xr.Dataset({"y": ("y_dim_0", y)})
    pms.loo(other, model=model)
    for wrong in (~y.astype(bool), y[:100]):
        other["observed_data"] = xr.Dataset({"y": ("y_dim_0", wrong)})
        with pytest.raises(ValueError, match="given other values of 'y'"):
            pms.loo(other, model=model)


@pytest.mark.costly
def test_draws_given_other_pm_data_are_refused():
    """As those that were set after sampling, with rows or without."""
    x = np.random.default_rng(3).normal(size=300)
    with pm.Model() as model:
        data, unit = pm.Data("x", x), pm.Data("unit", 2.0)
        pm.Bernoulli("y", logit_p=data * pm.Normal("b") / unit, observed=x > 0)
    idata = tree(b=np.random.default_rng(4).normal(2, 0.1, (2, 250)))
    recorded = {"x": ("x_dim_0", x), "unit": ((), 2.0)}
    idata["constant_data"] = xr.Dataset(recorded)
    pms.loo(idata, model=model)
    for name, wrong in (("x", ("x_dim_0", x[::-1])), ("unit", ((), 3.0))):
        idata["constant_data"] = xr.Dataset(recorded | {name: wrong})
        with pytest.raises(ValueError, match=f"given other values of '{name}'"):
            pms.loo(idata, model=model)


def test_signed_draws_are_refused(small):
    model, idata = small
    signed = idata.copy()
    sign = np.ones((2, 250))
    sign[0, ::50] = -1
    signed["sample_stats"] = xr.Dataset({"sign": (("chain", "draw"), sign)})
    with pytest.raises(ValueError, match="some draws carry a negative sign"):
        pms.loo(signed, model=model)
    signed["sample_stats"]["sign"][:] = 1
    assert pms.loo(signed, model=model).elpd == pms.loo(idata, model=model).elpd


@pytest.mark.costly(cases=0)
def test_several_likelihoods_need_a_choice():
    rng = np.random.default_rng(1)
    x = rng.normal(size=500)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Normal("y", b * x, 1.0, observed=rng.normal(size=500))
        pm.Normal("z", b, 1.0, observed=rng.normal(size=500))
        pm.Normal("w", b, 1.0, observed=rng.normal(size=300))
    idata = tree(b=around(rng, 0.0, 0.05))
    with pytest.raises(pms.TallModelError, match=r"'y', 'z', 'w' have rows\. Say whose"):
        pms.loo(idata, model=model)
    with pytest.raises(pms.TallModelError, match="different numbers of rows"):
        pms.loo(idata, model=model, var_name=["y", "w"])
    pm.compute_log_likelihood(idata, model=model, progressbar=False)
    loglik = idata["log_likelihood"]
    for name in ("y", "w"):
        expected = az.loo(idata, var_name=name)
        assert pms.loo(idata, model=model, var_name=name).elpd == pytest.approx(expected.elpd)
    both = loglik["y"].values + loglik["z"].values
    both = az.from_dict({"posterior": {"b": idata["posterior"]["b"].values},
                         "log_likelihood": {"yz": both}})  # fmt: skip
    found = pms.loo(idata, model=model, var_name=["y", "z"])
    assert found.elpd == pytest.approx(az.loo(both).elpd)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"observations": 1}, ValueError, "observations must be an integer of at least 2"),
        ({"observations": 201}, ValueError, "larger than the number of rows, 200"),
        ({"observations": [0, 0, 1]}, ValueError, "different numbers from 0 to 199"),
        ({"observations": [0, 200]}, ValueError, "different numbers from 0 to 199"),
        ({"observations": [0.5, 1.0]}, ValueError, "or row numbers"),
        ({"var_name": "nowhere"}, pms.TallModelError, "nowhere"),
        ({"reff": 0.0}, ValueError, "reff must be a positive"),
        ({"data": 5}, TypeError, "data"),
    ],
)
def test_wrong_arguments_are_refused(small, given, error, said):
    model, idata = small
    with pytest.raises(error, match=said):
        pms.loo(idata, model=model, **given)


def test_few_draws_and_no_results_are_refused(small):
    model, idata = small
    with pytest.raises(ValueError, match="idata has 20 draws"):
        pms.loo(idata.isel(draw=slice(10)), model=model)
    with pytest.raises(TypeError, match=r"must be the DataTree"):
        pms.loo(SimpleNamespace(), model=model)


@pytest.mark.costly
def test_weighted_rows_are_left_out_exactly(monkeypatch):
    """A weighted normal log-likelihood and a normal posterior have a closed form.

    Bambi's result holds the fitted values of all rows: effective draws are counted of some.
    """
    bmb = pytest.importorskip("bambi")
    counted, ess = [], array_stats.ess
    monkeypatch.setattr(
        array_stats, "ess", lambda x, **rest: (counted.append(x[0, 0].size), ess(x, **rest))[1]
    )
    rng, n, draws = np.random.default_rng(3), 3_000, 1_000
    x, weight = rng.normal(size=n), rng.uniform(0.2, 3.0, n)
    y = 1 + 0.5 * x + rng.normal(size=n) / np.sqrt(weight)
    wide = bmb.Prior("Normal", mu=0, sigma=10)
    written = bmb.Model(
        "weighted(y, w) ~ x",
        pd.DataFrame({"x": x, "y": y, "w": weight}),
        priors={"Intercept": wide, "x": wide, "sigma": 1.0},
        center_predictors=False,
    )
    written.build()
    X = np.column_stack([np.ones(n), x])
    cov = np.linalg.inv(np.eye(2) / 100 + (X.T * weight) @ X)
    mean = cov @ (X.T @ (weight * y))
    b = rng.multivariate_normal(mean, cov, size=(2, draws))
    idata = tree(draws, Intercept=b[..., 0], x=b[..., 1], mu=b @ X.T)
    found = pms.loo(idata, model=written.backend.model)
    # Without row i the predictor is normal too, by Sherman and Morrison.
    v = np.einsum("ij,jk,ik->i", X, cov, X)
    inflated = 1 + weight * v / (1 - weight * v)
    centre = X @ mean - weight * v * (y - X @ mean) / (1 - weight * v)
    exact = -0.5 * (weight * np.log(2 * np.pi) + np.log(inflated))
    exact -= 0.5 * weight * (y - centre) ** 2 / inflated
    assert sum(counted) <= 2 + 1_000
    # Of each row, to first order: the sd of its log-likelihood over that of 2,000 draws.
    error = weight * np.abs(y - X @ mean) * np.sqrt(v) + weight * v
    error /= np.sqrt(2 * draws)
    read = np.isfinite(found.pareto_k.values)
    gap = np.abs(np.asarray(found.elpd_i) - exact)[read]
    assert np.all(gap < 6.0 * error[read])  # of hundreds of normal errors, once in 10**6 times
    assert abs(found.elpd - exact.sum()) < FAR * found.subsampling_se + error.sum()
    # The control: the log-likelihood at the posterior's mean is not what leaves a row out.
    at_mean = -0.5 * weight * (np.log(2 * np.pi) + (y - X @ mean) ** 2)
    assert np.any(np.abs(at_mean - exact)[read] > 6.0 * error[read])
