"""`pms.marginalize` has the integrals, and `pms.effects` draws what was integrated out."""

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from chains import assert_moments
from panels import PANELS, G, binary, g, x, y
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.traversal import ancestors
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.expansion import linear_predictors
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.units import accuracy, integrated
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.modes import Modes


def log_density(model):
    """Return the log density of a model as a function of values by name."""
    function = numpy_function(model.value_vars, [model.logp()])
    return lambda point: float(function(*(point[v.name] for v in model.value_vars))[0])


def of_levels(values):
    return [values[g == level] for level in np.unique(g)]


@cache
def centred():
    return pms.marginalize(PANELS["centred"][0](), "a", n_nodes=31)


def linear_mixed(point):
    """Log density of "centred" with its effects integrated out in closed form."""
    mu, b = point["mu"], point["b"]
    tau, s = np.exp(point["tau_log__"]), np.exp(point["s_log__"])
    rows = zip(of_levels(y), of_levels(x), strict=True)
    total = sum(
        stats.multivariate_normal.logpdf(
            own, mu + b * slope, s**2 * np.eye(len(own)) + tau**2 * np.ones((len(own), len(own)))
        )
        for own, slope in rows
    )
    for scale in (tau, s):
        total += stats.halfnorm.logpdf(scale) + np.log(scale)
    return total + stats.norm.logpdf([mu, b]).sum()


def points(model, spread, seed=0, n=10):
    """Return points around where a model starts."""
    rng, start = np.random.default_rng(seed), model.initial_point()
    return [
        {name: v + spread * rng.normal(size=np.shape(v)) for name, v in start.items()}
        for _ in range(n)
    ]


@pytest.mark.costly
def test_a_linear_mixed_model_has_its_closed_form():
    found = log_density(centred())
    for point in points(centred(), spread=0.3):
        # Differences to 1e-8: both begin with the same constants.
        assert found(point) == pytest.approx(linear_mixed(point), abs=1e-8)


@pytest.mark.costly
def test_correlated_slopes_have_their_closed_form():
    model = pms.marginalize(PANELS["multivariate"][0](), "u", n_nodes=31)
    found = log_density(model)
    [chol] = [v for v in model.free_RVs if v.name == "chol"]
    packed = numpy_function([model.rvs_to_values[chol]], [model.replace_rvs_by_values([chol])[0]])
    prior = numpy_function(model.value_vars, [model.logp(vars=model.free_RVs)])
    for point in points(model, spread=0.1, n=4):
        values = packed(point["chol_cholesky-cov-packed__"])[0]
        factor = np.array([[values[0], 0], [values[1], values[2]]])
        cov, mean = factor @ factor.T, point["m"]
        expected = float(prior(*(point[v.name] for v in model.value_vars))[0])
        for own, slope in zip(of_levels(y), of_levels(x), strict=True):
            design = np.column_stack([np.ones(len(own)), slope])
            expected += stats.multivariate_normal.logpdf(
                own, design @ mean, design @ cov @ design.T + np.eye(len(own))
            )
        assert found(point) == pytest.approx(expected, abs=1e-6)


@pytest.mark.costly
def test_a_covariance_may_be_a_product_of_any_matrix():
    """Which is no lower factor of it."""
    rng = np.random.default_rng(5)
    index, slope, outcome = np.arange(40) % 20, rng.normal(size=40), rng.normal(size=40)
    some = np.array([[0.5, 1.2], [1.0, -0.3]])

    def found(matrix):
        with pm.Model() as model:
            own = pm.HalfNormal("tau") * matrix
            u = pm.MvNormal("u", np.zeros(2), cov=own @ own.T, shape=(20, 2))
            pm.Normal("y", u[index, 0] + u[index, 1] * slope, 1, observed=outcome)
        return float(log_density(pms.marginalize(model, "u", n_nodes=9))({"tau_log__": 0.2}))

    assert found(some) == pytest.approx(found(np.linalg.cholesky(some @ some.T)), abs=1e-5)


@cache
def six_units():
    rng = np.random.default_rng(4)
    index, slope = np.repeat(np.arange(6), 2), rng.normal(size=12)
    outcome = np.array([0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0])
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        z = pm.Normal("z", shape=6)
        eta = pm.Normal("mu") + tau * z[index] + pm.Normal("b") * slope
        pm.Bernoulli("y", logit_p=eta, observed=outcome)

    def exact(point):
        mu, b, tau = point["mu"], point["b"], np.exp(point["tau_log__"])
        total = stats.halfnorm.logpdf(tau) + np.log(tau) + stats.norm.logpdf([mu, b]).sum()
        for unit in range(6):
            sign, eta = 2 * outcome[index == unit] - 1, mu + b * slope[index == unit]

            def integrand(z, sign=sign, eta=eta):
                return stats.norm.pdf(z) * np.prod(expit(sign * (eta + tau * z)))

            total += np.log(quad(integrand, -12, 12, epsabs=1e-13, points=[0])[0])
        return total

    return model, exact


@pytest.mark.costly
def test_six_units_of_two_rows_equal_brute_force():
    model, exact = six_units()
    many, chosen = (pms.marginalize(model, "z", n_nodes=n) for n in (61, None))
    found, quick = log_density(many), log_density(chosen)
    near, *others = points(chosen, spread=0.5)
    for point in [near, *others]:
        assert found(point) == pytest.approx(exact(point), abs=1e-6)
        # Of the number that was chosen, differences of the log posterior are what is promised.
        assert quick(point) - quick(near) == pytest.approx(exact(point) - exact(near), abs=0.01)


@pytest.mark.parametrize("wrong", ["volume", "weights"])
def test_an_integral_without_its_volume_or_weights_is_found_out(wrong, monkeypatch):
    model, _ = six_units()
    if wrong == "volume":
        monkeypatch.setattr(
            integrated, "log_likelihood", _without_volume(integrated.log_likelihood)
        )
    else:
        plain = integrated.of_fewer
        monkeypatch.setattr(integrated, "of_fewer", lambda *a: 0 * plain(*a))
    with pytest.raises(pms.TallModelError, match="was not read as it is"):
        pms.marginalize(model, "z", n_nodes=5)


def _without_volume(log_likelihood):
    def wrong(marginal, table, name):
        return log_likelihood(marginal, table, name) - marginal.modes.log_volume[table.units]

    return wrong


@pytest.mark.costly
def test_the_closed_form_tells_a_volume_that_is_left_out(monkeypatch):
    monkeypatch.setattr(Modes, "log_volume", property(lambda self: np.zeros(len(self.m))))
    model = pms.marginalize(PANELS["centred"][0](), "a", n_nodes=31)
    [point] = points(model, spread=0.1, n=1)
    assert abs(log_density(model)(point) - linear_mixed(point)) > 1


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("name", ["noncentred", "lkj", "gamma", "two_outcomes", "responses"])
def test_gradients_are_differences(name, monkeypatch):
    monkeypatch.setattr(accuracy, "_STEPS_TRIED", (0,))  # nodes stay
    make, names, _ = PANELS[name]
    model = pms.marginalize(make(), names, n_nodes=3)
    total = model.logp()
    slopes = numpy_function(model.value_vars, pytensor.grad(total, model.value_vars))
    density = log_density(model)
    [point] = points(model, spread=0.1, n=1)
    rng = np.random.default_rng(1)
    direction = {name: rng.normal(size=np.shape(v)) for name, v in point.items()}
    step = 1e-6
    ahead, behind = (
        density({n: v + s * direction[n] for n, v in point.items()}) for s in (step, -step)
    )
    found = slopes(*(point[v.name] for v in model.value_vars))
    along = sum(
        np.sum(slope * direction[v.name]) for slope, v in zip(found, model.value_vars, strict=True)
    )
    assert along == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-5)


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("name", PANELS)
def test_any_spelling_has_its_marginal_model(name):
    make, names, _ = PANELS[name]
    before = make()
    new = pms.marginalize(before, names, n_nodes=3)
    kept = [v.name for v in before.free_RVs if v.name not in names]
    assert sorted(v.name for v in new.free_RVs) == sorted(kept)
    assert np.isfinite(log_density(new)(new.initial_point()))


@pytest.mark.costly
def test_more_nodes_than_are_chosen_may_be_asked_for():
    """By 45 nodes for each of two variables, and by 21, the density is the same."""
    index, rng = np.repeat(np.arange(60), 5), np.random.default_rng(2)
    x, outcome = rng.normal(size=300), rng.integers(0, 2, 300)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1, shape=2)
        u, v = pm.Normal("u", shape=60), pm.Normal("v", shape=60)
        eta = pm.Normal("a") + scale[0] * u[index] + scale[1] * v[index] * x
        pm.Bernoulli("y", logit_p=eta, observed=outcome)
    many, few = (pms.marginalize(model, ["u", "v"], n_nodes=n) for n in (45, 21))
    for [point] in (points(few, spread=0.1, n=1), points(few, spread=0.3, n=1)):
        assert log_density(many)(point) == pytest.approx(log_density(few)(point), abs=1e-4)


@pytest.mark.costly
def test_units_of_one_three_and_hundreds_of_rows():
    sizes = [1] * 20 + [3] * 20 + [300] * 3
    index = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(1)
    outcome = rng.normal(size=len(sizes))[index] + rng.normal(size=len(index))
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=len(sizes))
        pm.Normal("y", z[index], 1, observed=outcome)
    new = pms.marginalize(model, "z", n_nodes=45)
    assert len(new.potentials) == 2  # few rows are laid out in vain
    found = log_density(new)
    for [point] in (points(new, spread=0.1, n=1), points(new, spread=0.2, n=1)):
        tau = np.exp(point["tau_log__"])
        expected = stats.halfnorm.logpdf(tau) + np.log(tau)
        for level, size in enumerate(sizes):
            own = outcome[index == level]
            cov = np.eye(size) + tau**2 * np.ones((size, size))
            expected += stats.multivariate_normal.logpdf(own, np.zeros(size), cov)
        assert found(point) == pytest.approx(expected, abs=1e-6)


def test_code_of_a_unit_reads_its_own_table_alone():
    sizes = [1] * 90 + [20] * 60 + [300] * 30
    index = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(1)
    outcome = rng.normal(size=len(sizes))[index] + rng.normal(size=len(index)) > 0
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=len(sizes))
        b = pm.Normal("b")
        at = pm.Data("x", rng.normal(size=len(index)))
        pm.Bernoulli("y", logit_p=z[index] + b * at, observed=outcome)
    tall = TallModel(pms.marginalize(model, "z", n_nodes=5))
    predictors = linear_predictors(tall)
    assert predictors is not None  # in spite of 900 numbers
    with building_graphs():
        varying = sum(p.forms.size for p in predictors if not p.shared)
        rows = RowCode(tall, predictors, varying, Packer(tall))
        read = [columns_of(rows.of_kind(k).up_to(2)) for k in range(len(tall.batch.tests) + 1)]
        together = columns_of(rows.up_to(2))
    short, long = map(len, read)
    assert short // 20 == 3  # x, y, and whether the row counts
    assert long // 300 == 2
    assert len(set.intersection(*read)) == 2 * 5  # its nodes, and their log weights
    assert together > set.union(*read)  # negative control: and whose row it is


def columns_of(graphs):
    return {v.name for v in ancestors(graphs) if (v.name or "").startswith("column")}


@pytest.mark.costly
def test_what_the_model_keeps():
    with pm.Model(coords={"level": range(G), "two": ["a", "b"]}) as model:
        code, slope, late = pm.Data("code", g), pm.Data("slope", x), pm.Data("late", [1.0, 2.0])
        tau, b = pm.HalfNormal("tau"), pm.Normal("b", dims="two")
        a = pm.Normal("a", 0, tau, dims="level")
        pm.Deterministic("twice", 2 * a)
        pm.Deterministic("variance", tau**2)
        pm.Normal("y", a[code] + b[0] * slope, 1, observed=y)
        pm.Normal("others", b, 1, observed=late)
    new = pms.marginalize(model, "a", n_nodes=3)
    assert [v.name for v in new.free_RVs] == ["tau", "b"]
    assert [v.name for v in new.deterministics] == ["variance"]
    assert [v.name for v in new.observed_RVs] == ["others"]
    assert [v.name for v in new.data_vars] == ["late"]
    assert new.named_vars_to_dims["b"] == ("two",)
    assert "a" in model.named_vars  # the model itself is as it was


@pytest.mark.costly
def test_a_potential_keeps_what_is_not_integrated():
    with pm.Model() as model:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z", shape=G)
        rows = pm.logp(pm.Normal.dist(tau * z[g], 1), y)
        pm.Potential("both", rows.sum() - tau**4)
    with pm.Model() as other:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z", shape=G)
        pm.Normal("y", tau * z[g], 1, observed=y)
    mine, plain = (pms.marginalize(m, "z", n_nodes=15) for m in (model, other))
    for point in points(plain, spread=0.2, n=3):
        expected = log_density(plain)(point) - np.exp(4 * point["tau_log__"])
        assert log_density(mine)(point) == pytest.approx(expected, abs=1e-6)


def test_conditions_on_what_units_share_hold():
    with pm.Model() as model:
        scale = pm.Normal("scale", 1, 1)
        z = pm.Normal("z", shape=G)
        pm.Normal("y", z[g], scale, observed=y)
    new = pms.marginalize(model, "z", n_nodes=5)
    density = log_density(new)
    assert np.isfinite(density({"scale": np.array(0.9)}))
    with pytest.raises(ParameterValueError):  # as of any parameter, in compiled code -inf
        density({"scale": np.array(-0.9)})


def recorded(n, **values):
    """Return a run whose draws are all the same."""
    draws = {name: (("chain", "draw"), np.full((2, n // 2), v)) for name, v in values.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})


@pytest.mark.costly
def test_draws_of_effects_are_those_of_a_linear_mixed_model():
    mu, tau, s, b = 0.2, 0.7, 1.1, 0.3
    run = recorded(2_000, mu=mu, tau=tau, s=s, b=b)
    labels = ["l0", f"l{G - 1}", "l7"]  # the second has no rows
    draws = pms.effects(run, centred(), "a", levels=labels)["a"]
    assert draws.dims == ("chain", "draw", "level")
    for label in labels:
        own = g == int(label[1:])
        precision = own.sum() / s**2 + 1 / tau**2
        mean = ((y - b * x)[own].sum() / s**2 + mu / tau**2) / precision
        found = draws.sel(level=label).to_numpy().ravel()
        exact = stats.norm(mean, precision**-0.5)
        assert stats.kstest(found, exact.cdf).pvalue > 1e-5
        assert stats.kstest(found, stats.norm(mean, 1.5 * precision**-0.5).cdf).pvalue < 1e-5


@pytest.mark.costly
def test_draws_of_skewed_effects_have_their_moments():
    model = pms.marginalize(PANELS["gamma"][0](), "u", n_nodes=15)
    k, b, n = 2.0, 0.1, 2_000
    draws = pms.effects(recorded(n, k=k, b=b), model, levels=[0, 3, G - 1])["u"]
    for level in (0, 3, G - 1):
        own = g == level
        exact = stats.gamma(k + binary[own].sum(), scale=1 / (k + np.exp(b * x[own]).sum()))
        found = draws.sel(u_dim_0=level).to_numpy().ravel()
        assert stats.kstest(found, exact.cdf).pvalue > 1e-5


def test_summaries_of_all_levels_are_those_of_draws():
    run = recorded(200, mu=0.2, tau=0.7, s=1.1, b=0.3)
    table = pms.effects(run, centred(), "a", quantiles=[0.5])["a"]
    assert table.dims == ("statistic", "level")
    assert table.statistic.to_numpy().tolist() == ["mean", "sd", "50%"]
    counts = np.bincount(g, minlength=G)
    precision = counts / 1.1**2 + 1 / 0.7**2
    sums = np.bincount(g, weights=y - 0.3 * x, minlength=G)
    mean = (sums / 1.1**2 + 0.2 / 0.7**2) / precision
    errors = (table.sel(statistic="mean") - mean) * np.sqrt(200 * precision)
    # The largest of 40 standard normal numbers is above 5.5 in 1e-6 of samples.
    assert np.abs(errors).max() < 5.5


@pytest.mark.costly(cases=0)
def test_deterministics_of_effects_are_drawn_with_them():
    make, names, _ = PANELS["as_bambi_writes_it"]
    model = pms.marginalize(make(), names, n_nodes=5)
    values = {"1|id_sigma": 0.5, "x|id_sigma": 0.3, "Intercept": 0.1, "sigma": 1.0}
    draws = pms.effects(recorded(10, **values), model, levels=["l0", "l1"])
    assert set(draws) == {*names, "1|id", "x|id"}
    assert draws["1|id"].to_numpy() == pytest.approx(0.5 * draws["1|id_offset"].to_numpy())


@pytest.mark.costly
def test_integrals_that_do_not_serve_at_draws_are_said():
    model, _ = six_units()
    new = pms.marginalize(model, "z", n_nodes=5)
    far = recorded(40, tau=1.0, mu=0.0, b=0.0)
    said = r"The integrals over 'z' are off by .* at draws"
    far["posterior"]["tau"][0, :10] = 8.0
    with pytest.warns(UserWarning, match=said):
        pms.effects(far, new, levels=[0])
    far["posterior"]["tau"][0, :10] = 30.0
    with (
        pytest.warns(UserWarning, match=said),
        pytest.raises(ValueError, match=r"Level 0 of 'z' cannot be drawn by proposals"),
    ):
        pms.effects(far, new, levels=[0])


def test_what_cannot_be_drawn_is_said():
    run = recorded(4, mu=0.2, tau=0.7, s=1.1, b=0.3)
    with pytest.raises(ValueError, match=r"levels holds 'l99'\. Levels are labels.* 40 in all"):
        pms.effects(run, centred(), levels=["l99"])
    with pytest.raises(ValueError, match="var_names holds 'mu', which is not made of local"):
        pms.effects(run, centred(), "mu", levels=["l1"])
    with pytest.raises(ValueError, match="lacks 's', which the draws of local variables depend on"):
        pms.effects(recorded(4, mu=0.2, tau=0.7, b=0.3), centred(), levels=["l1"])
    with pytest.raises(TypeError, match=r"must be the model that pms\.marg"):
        pms.effects(run, PANELS["centred"][0](), levels=["l1"])


@pytest.mark.parametrize("apart", [1.0, 2.0])
def test_units_of_two_modes_are_refused_if_nodes_do_not_see_both(apart):
    with pm.Model() as model:
        z = pm.Normal("z", 0, 1, shape=3)
        widths = np.array([0.2, 0.3])
        modes = [-0.5 * ((z - s * apart) / w) ** 2 for s, w in zip((1, -1), widths, strict=True)]
        pm.Potential("y", pm.math.logaddexp(*modes) + 0 * pm.Normal("center"))
    with pytest.raises(pms.TallModelError, match=r"Level 0 of 'z' has about .*% of its"):
        pms.marginalize(model, "z")


def pairs_of_rows(units):
    """Return a linear mixed model of two rows per unit, and its posterior of mu and tau."""
    rng = np.random.default_rng(5)
    index = np.repeat(np.arange(units), 2)
    rows = 0.3 + 0.7 * rng.normal(size=units)[index] + rng.normal(size=2 * units)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        z = pm.Normal("z", 0, 1, shape=units)
        pm.Normal("y", mu + tau * z[index], 1, observed=rows)
    # A unit's difference tells neither; its mean is normal with variance tau**2 + 1/2.
    means = rows.reshape(units, 2).mean(axis=1)

    def logp(mu, tau):
        variance = tau**2 + 0.5
        squares = ((means - means.mean()) ** 2).sum() + units * (means.mean() - mu) ** 2
        likelihood = -0.5 * squares / variance - 0.5 * units * np.log(variance)
        return likelihood - 0.5 * (mu**2 + tau**2)

    return model, logp


def summarised(values, logp):
    """Return mean, sd, 1% and 99% of a parameter on a grid, of log densities of its margin."""
    weights = np.exp(logp - logp.max())
    weights /= weights.sum()
    mean = weights @ values
    edges = np.interp([0.01, 0.99], np.cumsum(weights) - 0.5 * weights, values)
    return np.array([mean, np.sqrt(weights @ (values - mean) ** 2), *edges])


def margins(mu, tau, logp):
    """Return summaries of both parameters from log densities on their grid."""
    return [
        summarised(grid, np.logaddexp.reduce(logp, axis=axis)) for grid, axis in ((mu, 1), (tau, 0))
    ]


@pytest.mark.costly
def test_the_posterior_on_a_grid_is_that_of_the_closed_form():
    model, exact = pairs_of_rows(200)
    new = pms.marginalize(model, "z")  # as many nodes as it chooses
    mu, tau = np.linspace(-0.1, 0.7, 25), np.linspace(0.3, 1.1, 25)
    density = log_density(new)
    found = np.array([
        [density({"mu": np.array(a), "tau_log__": np.log(b)}) - np.log(b) for b in tau] for a in mu
    ])  # fmt: skip
    expected = margins(mu, tau, exact(mu[:, None], tau))
    for ours, theirs in zip(margins(mu, tau, found), expected, strict=True):
        # Log densities are off by 0.01 at most, at the edge.
        assert ours == pytest.approx(theirs, abs=0.01 * theirs[1])


@pytest.mark.slow
def test_subsampled_units_have_the_posterior_of_the_closed_form():
    model, exact = pairs_of_rows(4_000)
    with pms.marginalize(model, n_nodes=5):
        step = pms.HMCECS(subsample_size=100)
        run = pm.sample(
            step=step, draws=4_000, tune=1_000, chains=2, cores=1, random_seed=1, progressbar=False
        )
    mu, tau = np.linspace(0.15, 0.45, 200), np.linspace(0.5, 0.9, 200)
    for name, theirs in zip(("mu", "tau"), margins(mu, tau, exact(mu[:, None], tau)), strict=True):
        draws = run["posterior"][name].to_numpy()
        assert_moments(draws, *theirs[:2])
        # The share of draws below a quantile, for the rate of effective draws of its indicator.
        for quantile, share in zip(theirs[2:], (0.01, 0.99), strict=True):
            below = (draws < quantile).astype(float)
            assert_moments(below, share, np.sqrt(share * (1 - share)))
        with pytest.raises(AssertionError):
            assert_moments(draws, theirs[0], 1.2 * theirs[1])


@pytest.mark.slow
def test_nuts_on_the_marginal_model_has_the_posterior_of_the_model():
    make, names, _ = PANELS["noncentred"]
    settings = {"draws": 2_000, "tune": 1_000, "chains": 2, "progressbar": False, "random_seed": 1}
    with pms.marginalize(make(), names) as marginal:
        found = pm.sample(**settings)
    with make():
        plain = pm.sample(target_accept=0.95, **settings)
    for name in ("mu", "tau", "b"):
        rows = [az.summary(run, var_names=[name], kind="all").iloc[0] for run in (found, plain)]
        a, b = (run["posterior"][name].to_numpy().ravel() for run in (found, plain))
        error = np.hypot(*(float(row["mcse_mean"]) for row in rows))
        assert abs(a.mean() - b.mean()) < 4.5 * error
        assert a.std() == pytest.approx(b.std(), rel=0.15)
    effect = pms.effects(found, marginal, "z", levels=["l3", "l39"])["z"]
    other = plain["posterior"]["z"].sel(level=["l3", "l39"])
    assert effect.mean(("chain", "draw")).to_numpy() == pytest.approx(
        other.mean(("chain", "draw")).to_numpy(), abs=0.1
    )
    assert effect.std(("chain", "draw")).to_numpy() == pytest.approx(
        other.std(("chain", "draw")).to_numpy(), rel=0.1
    )


@pytest.mark.costly
def test_rates_that_overflow_where_the_search_starts_are_refused_by_name():
    """With a scale of thousands, as a wide prior's start, on the scale of logarithms."""
    with pm.Model() as wide:
        z = pm.Normal("z", 0, 1, shape=200)
        rate = pm.math.exp(pm.Normal("mu") + pm.HalfNormal("tau", 5_000) * z[np.arange(200)])
        pm.Poisson("y", rate, observed=np.arange(200) % 5)
    with pytest.raises(pms.TallModelError, match=r"'z' has no finite gradient beside .*'tau'"):
        pms.marginalize(wide, "z")


@pytest.mark.costly
@pytest.mark.parametrize("column", ["year", "income"])
def test_columns_may_be_in_any_units(column):
    """Rates of exp(2000 b) overflow a few steps of b from the start, and those of incomes too."""
    rng, units = np.random.default_rng(5), 300
    index = np.repeat(np.arange(units), 4)
    raw = {
        "year": rng.integers(2000, 2025, 4 * units) + 0.0,
        "income": rng.lognormal(11, 0.5, 4 * units),
    }
    x = raw[column]
    z = (x - x.mean()) / x.std()
    y = rng.poisson(np.exp(0.5 + 0.7 * rng.normal(size=units)[index] + 0.3 * z))
    found = []
    for values, unit, origin in ((x, x.std(), x.mean()), (z, 1.0, 0.0)):
        with pm.Model() as model:
            mu, tau = pm.Normal("mu", 0, 1_000), pm.HalfNormal("tau", 1)
            b, effect = pm.Normal("b", 0, 10 / unit), pm.Normal("effect", shape=units)
            pm.Poisson("y", pm.math.exp(mu + tau * effect[index] + b * values), observed=y)
        integrals = integrals_of(pms.marginalize(model))
        own, reference = integrals.functions, integrals.reference
        at = dict(zip(own.values, own.split(reference), strict=True))
        found.append([at["mu"] + at["b"] * origin, at["b"] * unit, at["tau"]])
        assert integrals.integral.error < 0.01
    # A hundredth of the posterior's standard deviations, which are above 0.03.
    np.testing.assert_allclose(*found, atol=3e-4)
    assert abs(found[0][1] - 0.3) < 0.15


@pytest.mark.costly
@pytest.mark.parametrize("likelihood", ["normal", "bernoulli"])
def test_rows_with_a_column_that_is_not_finite_are_named(likelihood):
    rng, index = np.random.default_rng(1), np.repeat(np.arange(200), 3)
    x = rng.normal(size=600)
    x[[7, 70]] = np.nan
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        eta = mu + tau * pm.Normal("z", shape=200)[index] + pm.Normal("b") * x
        if likelihood == "normal":
            pm.Normal("y", eta, 1, observed=rng.normal(size=600))
        else:
            pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 600))
    with pytest.raises(TallModelError, match=r"in rows 7, 70.*is NaN"):
        pms.marginalize(model, "z")


def test_the_reference_is_not_where_effects_that_stay_have_no_spread():
    rng = np.random.default_rng(0)
    user, film = rng.integers(0, 300, 3_000), rng.integers(0, 20, 3_000)
    effects = rng.normal(0, 0.5, 20)
    liked = rng.random(3_000) < expit(rng.normal(0, 0.7, 300)[user] + effects[film])
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("su"), shape=300)
        f = pm.Normal("f", 0, pm.HalfNormal("sf"), shape=20)
        pm.Bernoulli("liked", logit_p=u[user] + f[film], observed=liked)
    start = pms.marginalize(model, "u").initial_point()
    assert start["sf_log__"] > np.log(0.2)  # the density has a pole at zero
    share = np.bincount(film, liked) / np.bincount(film)
    assert np.corrcoef(start["f"], np.log(share / (1 - share)))[0, 1] > 0.95


@pytest.mark.parametrize("outcomes", [1, 2])
def test_tables_of_equally_many_units_are_one(outcomes):
    """Two terms of as many rows would be taken for terms of the same rows."""
    index = np.repeat(np.arange(40), [3] * 20 + [30] * 20)
    later = np.repeat(np.arange(20, 40), 2)  # units without rows of the second outcome too
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=40)[index] + rng.normal(size=660), rng.normal(size=40)
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=40)
        pm.Normal("y", z[index], 1, observed=first)
        if outcomes == 2:
            pm.Normal("w", z[later], 1, observed=second)
    new = pms.marginalize(model, "z", n_nodes=45)
    assert len(new.potentials) == 1
    tau = 0.8
    expected = stats.halfnorm.logpdf(tau) + np.log(tau)
    for level in range(40):
        own = [first[index == level], second[later == level]][:outcomes]
        own = np.concatenate(own)
        cov = np.eye(len(own)) + tau**2
        expected += stats.multivariate_normal.logpdf(own, np.zeros(len(own)), cov)
    assert log_density(new)({"tau_log__": np.log(tau)}) == pytest.approx(expected, abs=1e-6)


# Observed variables that are read by others


def mediated(reads, rng):
    """An outcome, and what reads it: the variable, or its data."""
    unit = np.repeat(np.arange(60), 3)
    first = rng.normal(size=60)[unit] + rng.normal(size=180)
    second = 1.1 * first + rng.normal(size=180)
    with pm.Model() as model:
        b, tau = pm.Normal("b"), pm.HalfNormal("tau")
        u = pm.Normal("u", 0, tau, shape=60)
        outcome = pm.Normal("first", u[unit], 1, observed=first)
        found = first if reads == "data" else outcome
        if reads == "a potential":
            pm.Potential("second", -0.5 * (second - b * found) ** 2 - 0.5 * np.log(2 * np.pi))
        else:
            pm.Normal("second", b * found, 1, observed=second)
    return model


@pytest.mark.parametrize("reads", ["an outcome", "a potential"])
def test_what_reads_an_outcome_of_units_reads_its_data(reads):
    models = [mediated(kind, np.random.default_rng(3)) for kind in (reads, "data")]
    here, there = (pms.marginalize(model, "u").compile_logp() for model in models)
    for b in (-1.0, 0.0, 1.0, 5.0):
        point = {"b": b, "tau_log__": 0.1}
        assert here(point) == pytest.approx(there(point), rel=1e-9)


def test_a_term_that_is_dropped_with_units_is_added_again(monkeypatch):
    """As what is downstream of an outcome of units was, without a word: it was lost."""
    whole = pms.marginalize(mediated("an outcome", np.random.default_rng(3)), "u").compile_logp()
    keep = integrated.without_variables
    monkeypatch.setattr(
        integrated, "without_variables", lambda model, names: keep(model, [*names, "second"])
    )
    marginal = pms.marginalize(mediated("an outcome", np.random.default_rng(3)), "u")
    assert "second" not in marginal.named_vars
    for b in (-1.0, 0.0, 5.0):
        point = {"b": b, "tau_log__": 0.1}
        assert marginal.compile_logp()(point) == pytest.approx(float(whole(point)), rel=1e-9)


def test_a_term_that_is_lost_is_refused_with_the_numbers(monkeypatch):
    """As parts of a potential were, of which another read effects."""
    added = pm.Potential
    monkeypatch.setattr(
        integrated.pm, "Potential", lambda name, term: "part" in name or added(name, term)
    )
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("b"), pm.HalfNormal("tau"), shape=60)
        of_units = pm.logp(pm.Normal.dist(u[np.repeat(np.arange(60), 3)], 1), rng.normal(size=180))
        pm.Potential("rows", of_units.sum() - model["b"] ** 2 - 3.0)
    with pytest.raises(TallModelError, match=r"log density is -\d.* terms are lost"):
        pms.marginalize(model, "u")


def test_a_term_of_a_variable_that_is_dropped_is_refused(monkeypatch):
    keep = integrated.without_variables
    monkeypatch.setattr(
        integrated, "without_variables", lambda model, names: keep(model, [*names, "b"])
    )
    with pytest.raises(TallModelError, match="log density of 'b' would be lost"):
        pms.marginalize(mediated("an outcome", np.random.default_rng(3)), "u")


def test_a_variable_may_read_an_outcome_of_units():
    rng = np.random.default_rng(4)
    models = []
    for reads in ("an outcome", "data"):
        model = mediated(reads, np.random.default_rng(3))
        with model:
            mean = model["first"].mean() if reads == "an outcome" else np.mean(
                model.rvs_to_values[model["first"]].data
            )  # fmt: skip
            pm.Normal("q", mean, 0.1)
        models.append(pms.marginalize(model, "u").compile_logp())
    point = {"b": 1.0, "tau_log__": 0.1, "q": rng.normal()}
    assert models[0](point) == pytest.approx(models[1](point), rel=1e-9)
