"""The chain's own coordinates: the map, its constants, and what is sampled in them."""

import logging
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, assert_goes_on, assert_moments
from exact_cases import groups_of_all_sizes
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.chain.multimodality import starts
from pymc_subsample.coordinates import find_coordinates, reparameterise, verification
from pymc_subsample.coordinates.blocks import find_blocks
from pymc_subsample.coordinates.fit import fitted, start
from pymc_subsample.coordinates.verification import _is_invertible, _point
from pymc_subsample.coordinates.whitening import moved
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.quadratic import Posterior
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residual_causes import find_cause
from pymc_subsample.model import TallModel, TallModelError, lifting

FEW = "pymc_subsample.coordinates.coordinates._FEW"
SIZES = np.array([3, 5, 30, 200, 900])
GROUP = np.repeat(np.arange(5), SIZES)


def outcomes(seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(0.4, 0.5, 5)[GROUP] + rng.normal(size=len(GROUP))


def centred(y):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=5)
        pm.Normal("y", a[GROUP], 1.0, observed=y)
    return model


def noncentred(y):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", shape=5)
        pm.Deterministic("a", mu + tau * z)
        pm.Normal("y", mu + tau * z[GROUP], 1.0, observed=y)
    return model


def half(y):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        d = pm.Normal("d", 0, tau, shape=5)
        a = pm.Deterministic("a", mu + d)
        pm.Normal("y", a[GROUP], 1.0, observed=y)
    return model


FORMS = {"centred": centred, "non-centred": noncentred, "half": half}


def slopes(form):
    rng = np.random.default_rng(2)
    g, x = rng.integers(0, 4, 300), rng.uniform(0, 30, 300)
    y = rng.random(300) < expit(0.1 * (x - 15))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        if form == "centred":
            effect = pm.MvNormal("ab", pm.Normal("m", shape=2), chol=chol, shape=(4, 2))
        elif form == "columns":
            effect = pt.dot(chol, pm.Normal("z", shape=(2, 4))).T
        else:
            effect = pm.Normal("z", shape=(4, 2)) @ chol.T
        pm.Bernoulli("y", logit_p=effect[g, 0] + effect[g, 1] * x, observed=y)
    return model


def nested(form):
    rng = np.random.default_rng(3)
    school, district = rng.integers(0, 6, 200), np.array([0, 0, 1, 1, 2, 2])
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 50, shape=2)
        z = pm.Normal("z_d", shape=3)
        if form == "half":
            s = pm.Normal("s", 500 + tau[0] * z[district], tau[1])
        else:
            s = pm.Normal("s", (500 + tau[0] * z)[district], tau[1])
        pm.Normal("y", s[school], 80.0, observed=rng.normal(510, 80, 200))
    return model


def matrix(form):
    """Intercepts and slopes of one variable, without a correlation."""
    rng = np.random.default_rng(5)
    g, x = rng.integers(0, 7, 300), rng.uniform(0, 30, 300)
    columns = np.column_stack([np.ones(300), x])
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0, [2, 0.2], shape=2), pm.HalfNormal("sd", [1, 0.1], shape=2)
        if form == "centred":
            b = pm.Normal("b", mean, sd, shape=(7, 2))
        elif form == "offsets":
            b = mean + sd * pm.Normal("b", shape=(7, 2))
        else:
            b = (mean[:, None] + sd[:, None] * pm.Normal("b", shape=(2, 7))).T
        eta = (b[g] * columns).sum(axis=1)
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(300) < expit(0.1 * (x - 15)))
    return model


def others(kind):
    rng = np.random.default_rng(4)
    g, x = rng.integers(0, 5, 300), rng.uniform(size=(300, 1))
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        if kind == "zero sum":
            effect = pm.ZeroSumNormal("a", sigma=tau, shape=5)[g]
        elif kind == "horseshoe":
            local = pm.HalfCauchy("local", 1, shape=3)
            effect = rng.normal(size=(300, 3)) @ (pm.Normal("z", shape=3) * local * tau)
        elif kind == "heavy tails":
            effect = pm.StudentT("a", nu=4, mu=0, sigma=tau, shape=5)[g]
        elif kind == "extremes":
            effect = (tau * pm.Gumbel("a", 0, 1, shape=5))[g]
        else:
            gp = pm.gp.HSGP(m=[4], L=[2.0], cov_func=pm.gp.cov.Matern32(1, ls=tau))
            effect = gp.prior("f", X=x)
        pm.Poisson("y", pt.exp(effect), observed=rng.poisson(1.3, 300))
    return model


BANK = {
    **{form: (lambda f=function: f(outcomes())) for form, function in FORMS.items()},
    **{f"slopes {form}": (lambda f=form: slopes(f)) for form in ("centred", "columns", "rows")},
    "nested": lambda: nested("whole"),
    "nested half": lambda: nested("half"),
    **{f"matrix {f}": (lambda f=f: matrix(f)) for f in ("centred", "offsets", "transposed")},
    **{
        kind: (lambda k=kind: others(k))
        for kind in ("zero sum", "horseshoe", "heavy tails", "extremes", "smooth")
    },
}


@pytest.fixture(scope="module")
def built():
    made = {}

    def make(name):
        if name not in made:
            tall = TallModel(BANK[name]())
            made[name] = tall, find_coordinates(tall, tall.names)
        return made[name]

    return make


# The map


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", BANK)
def test_map_is_one_to_one_with_the_volume_it_says(built, name):
    tall, coordinates = built(name)
    assert coordinates is not None
    rng = np.random.default_rng(5)
    psi = _point(coordinates, tall.ravel(tall.initial_point), 0.5, rng)
    theta, volume = coordinates.to_theta(psi)
    size = coordinates.size
    np.testing.assert_allclose(coordinates.from_theta(theta, psi), psi, rtol=1e-9, atol=1e-9)
    columns = []
    for e in np.eye(len(psi))[:size]:
        forth, back = (coordinates.to_theta(psi + h * e)[0] for h in (1e-6, -1e-6))
        columns.append((forth - back) / 2e-6)
    _, expected = np.linalg.slogdet(np.array(columns))
    assert abs(volume - expected) < 1e-6 * size
    assert _is_invertible(coordinates, psi)


@pytest.mark.costly
def test_wrong_volume_is_noticed(built, monkeypatch):
    tall, coordinates = built("centred")
    psi = _point(coordinates, tall.ravel(tall.initial_point), 0.5, np.random.default_rng(5))
    right = coordinates.to_theta
    monkeypatch.setattr(coordinates, "to_theta", lambda psi: (right(psi)[0], right(psi)[1] + 0.01))
    assert not _is_invertible(coordinates, psi)


def test_misread_model_is_sampled_as_it_is_written(built, monkeypatch, caplog):
    tall, coordinates = built("centred")
    right = coordinates.to_theta
    monkeypatch.setattr(coordinates, "to_theta", lambda psi: (2 * right(psi)[0], right(psi)[1]))
    expansion = expand(tall)
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        reparameterise(tall, expansion, coordinates)
    assert expansion.coordinates is None
    assert "misread" in caplog.text
    theta = tall.ravel(tall.initial_point)
    assert np.isclose(expansion.parameters(theta)[1], tall.logprior(theta))


@pytest.mark.costly(cases=0)
def test_effects_are_found_through_scales_of_gathered_rows(built):
    tall, coordinates = built("non-centred")
    assert list(coordinates.blocks) == ["z"]
    assert 5 in [v.type.shape[0] for v in tall.phi_slices if v.type.ndim]
    for form in ("nested", "nested half"):
        _, nest = built(form)
        assert list(nest.blocks) == ["z_d", "s"]
        assert nest.blocks["s"].parents >= {"z_d", "tau_log__"}
    _, horseshoe = built("horseshoe")
    assert horseshoe.blocks["z"].scales == {"tau_log__", "local_log__"}
    for form in ("slopes centred", "slopes columns", "slopes rows"):
        [block] = built(form)[1].blocks.values()
        assert (block.units, block.groups, block.width) == (1, 4, 2)
    for form in ("matrix centred", "matrix offsets", "matrix transposed"):
        [block] = built(form)[1].blocks.values()
        assert (block.units, block.components, block.width) == (7, 2, 2)
        assert not block.unlike


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("scale", ["outside", "outside all", "inside", "both"])
def test_effects_are_found_where_rows_belong_to_two_groups(scale):
    """Paired comparisons, as of teams."""
    rng = np.random.default_rng(7)
    one, other, x = rng.integers(0, 9, 400), rng.integers(0, 9, 400), rng.normal(3, 2, 400)
    with pm.Model() as model:
        home, tau = pm.Normal("home"), pm.HalfNormal("tau")
        z = pm.Normal("z", shape=9)
        eta = {
            "outside": home + tau * (z[one] - z[other]) * x,
            "outside all": tau * (home + z[one] - z[other]),
            "inside": home + (tau * z[one] - tau * z[other]),
            "both": home + tau * (0.5 * z[one] + z[other]),
        }[scale]
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(400) < 0.6)
    tall = TallModel(model)
    expected = ["home", "z"] if scale == "outside all" else ["z"]
    assert list(find_coordinates(tall, tall.names).blocks) == expected
    expansion = expand(tall, 2)
    theta = tall.ravel(tall.initial_point) + rng.normal(size=tall.size)
    phi, prior = expansion.parameters(theta)
    assert phi.size <= 10 + (scale == "outside all")
    found = reference_at(expansion, theta).level + prior
    assert np.isclose(found, model.compile_logp()(tall.unravel(theta)), rtol=1e-10)


@pytest.mark.parametrize("both", [True, False])
def test_what_rows_meet_is_the_effect_whatever_else_is_made_of_it(both):
    """An effect shared by two likelihoods, in the second of them times a loading of any sign."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 20, 400)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        a, loading = pm.Normal("a"), pm.Normal("loading")
        shared = mu + tau * pm.Normal("z", shape=20)
        if both:
            pm.Bernoulli("y", logit_p=shared[group], observed=rng.random(400) < 0.3)
        pm.Normal("x", a + loading * shared[group], observed=rng.normal(size=400))
    tall = TallModel(model)
    assert find_coordinates(tall, tall.names).blocks["z"].scales == (
        {"tau_log__"} if both else {"tau_log__", "loading"}
    )


def test_few_effects_are_one_unit():
    def blocks(groups):
        with pm.Model() as model:
            a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau"), shape=groups)
            pm.Normal("y", a[np.arange(2 * groups) % groups], 1.0, observed=np.zeros(2 * groups))
        tall = TallModel(model)
        found = find_coordinates(tall, tall.names)
        return found, found.blocks["a"]

    found, few = blocks(12)
    assert few.joint
    assert few.components == 12
    assert list(found.locations) == [0]
    found, many = blocks(13)
    assert not many.joint
    assert many.units == 13
    assert list(found.locations) == [0]


def lines(groups):
    """Group, predictor and outcome of rows around a line per group."""
    rng = np.random.default_rng(8)
    g = np.repeat(np.arange(groups), rng.integers(3, 40, groups))
    x = rng.normal(10.0, 5.0, len(g))
    y = 2.0 + 0.3 * x + rng.normal(0, 1, groups)[g] + rng.normal(0, 0.1, groups)[g] * x
    return g, x, y + rng.normal(size=len(g))


def intercepts_and_slopes(groups):
    """As formulas with group-specific effects are built: offsets beside common coefficients."""
    g, x, y = lines(groups)
    with pm.Model() as model:
        m, b = pm.Normal("m", 0, 5), pm.Normal("b", 0, 2)
        sd_0, sd_1 = pm.HalfNormal("sd_0", 2), pm.HalfNormal("sd_1", 1)
        a = pm.Normal("z_0", shape=groups) * sd_0
        c = pm.Normal("z_1", shape=groups) * sd_1
        pm.Normal("y", m + b * x + a[g] + c[g] * x, 1.0, observed=y)
    return model


def moments_of_lines(groups):
    """Posterior means and sds of m, b, sd_0 and sd_1: a grid of the latter, closed form within."""
    g, x, y = lines(groups)
    columns = [np.column_stack([np.ones((g == k).sum()), x[g == k]]) for k in range(groups)]
    squares = [z.T @ z for z in columns]
    sums = [z.T @ y[g == k] for k, z in enumerate(columns)]
    found = []
    grid = np.geomspace(1e-3, 10.0, 160), np.geomspace(1e-4, 3.0, 160)
    for sd in np.stack(np.meshgrid(*grid), axis=-1).reshape(-1, 2):
        precision, total = np.diag([1 / 25, 1 / 4]), np.zeros(2)
        logp = np.log(sd).sum() - 0.5 * (sd**2 / [4, 1]).sum()  # half normal, on the log scale
        for square, each in zip(squares, sums, strict=True):
            spread = np.eye(2) + square * sd**2
            precision = precision + np.linalg.solve(spread, square)
            moved = np.linalg.solve(spread, each)
            total = total + moved
            logp += 0.5 * (each * sd**2) @ moved - 0.5 * np.linalg.slogdet(spread)[1]
        inverse = np.linalg.inv(precision)
        logp += 0.5 * total @ inverse @ total - 0.5 * np.linalg.slogdet(precision)[1]
        found.append([logp, *inverse @ total, *sd, *np.diag(inverse), 0.0, 0.0])
    table = np.array(found)
    weight = np.exp(table[:, 0] - table[:, 0].max())
    mean = weight @ table[:, 1:5] / weight.sum()
    variance = weight @ ((table[:, 1:5] - mean) ** 2 + table[:, 5:]) / weight.sum()
    return mean, np.sqrt(variance)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("groups", [5, 13])
def test_intercepts_and_slopes_have_the_exact_posterior(groups):
    """Of few groups, one unit, and of many, which follow the common coefficients."""
    model = intercepts_and_slopes(groups)
    step = pms.HMCECS(model=model, rng=1, subsample_size=40)
    idata = pm.sample(
        step=step, model=model, chains=2, cores=1, tune=500, draws=2_000, random_seed=3, **QUIET
    )
    for name, mean, sd in zip(("m", "b", "sd_0", "sd_1"), *moments_of_lines(groups), strict=True):
        assert_moments(idata.posterior[name], mean, sd)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("groups", "shape"), [(6, (12, 1)), (7, (2, 7))])
def test_intercepts_and_slopes_of_one_grouping_share_a_block(groups, shape):
    """Few are one unit, others go group by group."""
    tall = TallModel(intercepts_and_slopes(groups))
    found = find_coordinates(tall, tall.names)
    assert found.places[next(iter(found.blocks))].shape == shape
    assert [name for b in found.blocks.values() for name in b.orders] == ["z_0", "z_1"]
    weights = found.centring(start(found, tall.ravel(tall.initial_point)))
    assert {name: w.shape for name, w in weights.items()} == {"z_0": (groups,), "z_1": (groups,)}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "slopes",
    [
        lambda m, s, z, g, x: m * x + s * z[g] * x,
        lambda m, s, z, g, x: m * x + x * z[g] * s,
        lambda m, s, z, g, x: m * x + (s * z)[g] * x,
        lambda m, s, z, g, x: (m + s * z[g]) * x,
        lambda m, s, z, g, x: m * x + s * z[g] * (x / 10),
        lambda m, s, z, g, x: x * (m + z[g] * s),
    ],
)
def test_products_with_columns_hide_no_effects(slopes):
    rng = np.random.default_rng(11)
    g, x = rng.integers(0, 20, 500), rng.gamma(4, 10, 500)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", [1, 0.1], shape=2)
        z, w = pm.Normal("z", shape=20), pm.Normal("w", shape=20)
        eta = pm.Normal("a") + sd[0] * z[g] + slopes(pm.Normal("b"), sd[1], w, g, x)
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(500) < 0.4)
    tall = TallModel(model)
    [block] = find_coordinates(tall, tall.names).blocks.values()
    assert list(block.orders) == ["z", "w"]
    assert expand(tall, linear=True).phi_size >= 41


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "member",
    [
        lambda s, z, w: s * (1.5 + w @ z),
        lambda s, z, w: s * pt.dot(w, z),
        lambda s, z, w: (w @ z) * s,
        lambda s, z, w: s * (w * z).sum(axis=1),
        lambda s, z, w: -s * (w * z).sum(axis=1),
        lambda s, z, w: (w * z * s).sum(axis=-1),
    ],
)
def test_scales_of_sums_of_columns_are_those_of_effects(member):
    rng = np.random.default_rng(12)
    w = rng.dirichlet(np.full(6, 0.2), 400)
    with pm.Model() as model:
        tau, z = pm.HalfNormal("tau", 1), pm.Normal("z", shape=6)
        eta = pm.Normal("mu") + member(tau, z, w)
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(400) < 0.4)
    tall = TallModel(model)
    assert list(find_coordinates(tall, tall.names).blocks) == ["z"]
    expansion = expand(tall, linear=True)
    assert expansion.phi_size <= 8  # mu, six products and, once, tau
    theta = tall.ravel(tall.initial_point) + rng.normal(size=tall.size)
    found = reference_at(expansion, theta).level + expansion.parameters(theta)[1]
    assert np.isclose(found, model.compile_logp()(tall.unravel(theta)), rtol=1e-10)


def sums(kind):
    """Sums of which the parts mean something else, or are seen twice, if they are taken apart."""
    rng = np.random.default_rng(13)
    a, b = rng.integers(0, 256, (2, 200)).astype(np.uint8)
    with pm.Model() as model:
        tau, mu = pm.HalfNormal("tau"), pm.Normal("mu")
        if kind == "products of bytes":
            eta = 0.01 * tau * (mu + pm.Data("a", a) * pm.Data("b", b))
        elif kind == "differences of bytes":
            eta = 0.01 * tau * (mu + (pm.Data("a", a) - pm.Data("b", b)))
        elif kind == "discrete":
            k = pm.Bernoulli("k", 0.5, shape=3)
            eta = tau * (mu + (rng.integers(0, 3, (200, 3)) * k).sum(axis=1))
        else:
            eta = mu + rng.normal(size=(200, 3)) @ pm.Normal("b", shape=3)
        sigma = tau * eta if kind == "seen twice" else 1.0
        pm.Normal("y", eta, pt.abs(sigma) + 0.1, observed=rng.normal(size=200))
    return model


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "kind", ["products of bytes", "differences of bytes", "discrete", "seen twice"]
)
def test_sums_mean_what_the_model_says(kind):
    model = sums(kind)
    tall = TallModel(model, binary=["k"] if kind == "discrete" else [])
    theta = tall.ravel(tall.initial_point)
    if kind != "discrete":
        theta += np.random.default_rng(1).normal(size=tall.size)
    found = tall.row_loglik(theta, slice(None)).sum() + tall.logprior(theta)
    assert np.isclose(found, model.compile_logp()(tall.unravel(theta)), rtol=1e-10)
    if kind == "seen twice":
        assert tall.phi_size == 5


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("memory", [2**27, 0])
def test_a_wrong_lifting_is_found_out(monkeypatch, memory):
    """With all rows at once and, where they would take too much memory, by the expansion."""
    module = "pymc_subsample.model."
    monkeypatch.setattr(module + "verification._LARGEST_BYTES", memory)
    lifted = lifting.lifted

    def wrong(*arguments):
        return [g if g.dtype == "bool" else 1.001 * g for g in lifted(*arguments)]

    monkeypatch.setattr(module + "tall_model.lifted", wrong)
    with pytest.raises(TallModelError, match="coupled" if memory else "misread"):
        pms.HMCECS(model=noncentred(outcomes()), reparameterize=False)


@pytest.mark.costly
def test_constants_do_not_depend_on_those_before():
    """Of few groups beside many, whose common shift is an intercept: fitted once and again."""
    rng = np.random.default_rng(10)
    few, many = rng.integers(0, 3, 400), rng.integers(0, 13, 400)
    with pm.Model() as model:
        a = pm.Normal("z_a", shape=13) * pm.HalfNormal("sd_a", 2)
        b = pm.Normal("z_b", shape=3) * pm.HalfNormal("sd_b", 2)
        pm.Normal("y", pm.Normal("m", 0, 5) + a[many] + b[few], 1.0, observed=rng.normal(size=400))
    tall = TallModel(model)
    expansion = expand(tall)
    reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    coordinates = expansion.coordinates
    assert [block.joint for block in coordinates.blocks.values()] == [False, True]
    psi = start(coordinates, tall.ravel(tall.initial_point))
    once = fitted(Posterior(expansion).at(psi))
    again = fitted(once)
    np.testing.assert_allclose(again.theta, once.theta, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(coordinates.slant(once.theta, "z_a"), 1.0, rtol=1e-6)


@pytest.mark.costly
def test_intercepts_and_slopes_are_whitened_together(monkeypatch):
    """v is standard normal given all else, wherever scales and common coefficients are."""
    monkeypatch.setattr(FEW, 0)
    tall = TallModel(intercepts_and_slopes(5))
    expansion = expand(tall)
    reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    coordinates = expansion.coordinates
    psi = start(coordinates, tall.ravel(tall.initial_point))
    psi = fitted(Posterior(expansion).at(psi)).theta
    [place] = coordinates.places.values()
    others, rng = np.setdiff1d(np.arange(coordinates.size), place), np.random.default_rng(9)

    def logp(v):
        psi[place] = v
        return expansion.parameters(psi)[1] + reference_at(expansion, psi).level

    for _ in range(5):
        psi[others] += 0.7 * rng.standard_normal(len(others))
        v = rng.standard_normal((20, *place.shape))
        rest = [logp(each) + 0.5 * np.sum(each**2) for each in v]
        np.testing.assert_allclose(rest, rest[0], atol=1e-6)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("width", [0.01, 1.0, 100.0, 1e6])
def test_scales_may_start_anywhere(width, caplog):
    """A start beyond the knots is no reason to give the coordinates up."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", width)
        pm.Normal("y", pm.Normal("a", 0, tau, shape=5)[GROUP], 1.0, observed=outcomes())
    tall = TallModel(model)
    expansion = expand(tall)
    reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    assert expansion.coordinates is not None
    assert not caplog.records


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("log_tau", [-800.0, 800.0])
def test_scales_without_a_number_raise_nothing(log_tau):
    tall = TallModel(centred(outcomes()))
    expansion = expand(tall)
    reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    psi = start(expansion.coordinates, tall.ravel(tall.initial_point))
    [place] = [at for at, name in zip(tall.slices, tall.names, strict=True) if "tau" in name]
    psi[place] = log_tau
    expansion.pull_back(psi, np.zeros(expansion.phi_size))
    assert not np.isfinite(expansion.parameters(psi)[1])


@pytest.mark.costly
def test_effects_of_no_groups_are_left_alone():
    with pm.Model() as model:
        tau = pm.HalfNormal("tau")
        pm.Normal("none", 0, tau, shape=0)
        pm.Normal("unused", shape=0)
        pm.Normal("y", pm.Normal("a", 0, tau, shape=5)[GROUP], 1.0, observed=outcomes())
    tall = TallModel(model)
    found = find_coordinates(tall, tall.names)
    assert list(found.blocks) == ["a"]
    psi = start(found, tall.ravel(tall.initial_point))
    np.testing.assert_allclose(found.to_theta(psi)[0], tall.ravel(tall.initial_point), atol=1e-9)


@pytest.mark.costly(cases=0)
def test_dynamics_follow_the_coordinates():
    hierarchy = {"model": noncentred(outcomes()), "subsample_size": 50, "rng": 1}
    assert pms.HMCECS(**hierarchy).kernel == "nuts"
    assert pms.HMCECS(**hierarchy, path_length=np.pi / 2).kernel == "hmc"
    assert pms.HMCECS(**hierarchy, reparameterize=False).kernel == "hmc"


def test_fixed_scales_stay_as_they_are():
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), 1.0, shape=5)
        pm.Normal("y", a[GROUP], 1.0, observed=outcomes())
    tall = TallModel(model)
    assert find_coordinates(tall, tall.names) is None


@pytest.mark.parametrize(("largest", "off", "same"), [
    (1.0, 0.0, True), (1.0, 3e-17, True), (1.0, 1e-8, False),
    (1e8, 1e-8, True), (1e8, 1.0, False), (np.inf, 3e-17, True), (np.inf, 1e-8, False),
])  # fmt: skip
def test_what_rows_see_is_compared_up_to_rounding(largest, off, same):
    """Processors round one formula differently; the first number cancels in others."""
    phi = np.array([largest, 1e-16, -0.5])
    coordinates = SimpleNamespace(to_theta=lambda psi: (psi, 0.5), blocks={})
    before, after = (phi, -2.0), (phi + np.array([0.0, off, 0.0]), -1.5)
    assert verification._same_density(coordinates, np.zeros(3), before, after) == same


class Cubes:
    """An expansion that leaves in row i the cube of element i of theta, given in coordinates."""

    order = 2

    def __init__(self, tall, coordinates):
        self.coordinates, self.n_rows = coordinates, tall.size
        self.store = SimpleNamespace(named=str)

    def take(self, index):
        return np.asarray(index)[None]

    def parameters(self, psi):
        theta = np.empty(len(psi))
        theta[self.coordinates.order] = psi
        return theta, 0.0

    def residuals(self, rows, center, points):
        return points[:, rows[0]] ** 3


def test_causes_are_named_by_their_place_in_the_model(monkeypatch):
    monkeypatch.setattr(FEW, 0)
    tall = TallModel(slopes("centred"))
    coordinates = find_coordinates(tall, tall.names)
    [place] = (part for name, part in zip(tall.names, tall.slices, strict=True) if name == "ab")
    blocks = starts(tall.model, tall).blocks
    at = SimpleNamespace(theta=np.zeros(tall.size), center=np.zeros(tall.size))
    for unit, component in [(2, 1), (1, 0), (3, 1)]:
        sd = np.full((1, tall.size), 1e-3)
        sd[0, place.start + 4 * component + unit] = 2.0  # component by component
        free, rng = np.arange(tall.size), np.random.default_rng(0)
        found = find_cause(Cubes(tall, coordinates), at, sd, free, blocks, rng)
        assert found.parameter == f"ab[{unit}, {component}]"
        assert str(place.start + 2 * unit + component) in found.rows
        assert found.share > 0.999


# Its constants


def exactly_whitened(form, y):
    """An expansion at psi in coordinates of its own, for normal rows."""
    tall = TallModel(FORMS[form](y))
    expansion = expand(tall)
    reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    coordinates = expansion.coordinates
    rng = np.random.default_rng(6)
    psi = start(coordinates, tall.ravel(tall.initial_point))
    psi[: coordinates.size] += 0.3 * rng.standard_normal(coordinates.size)
    psi = fitted(Posterior(expansion).at(psi)).theta

    def logp(point):
        return expansion.parameters(point)[1] + reference_at(expansion, point).level

    place = next(iter(coordinates.places.values())).ravel()
    return psi, place, dict(zip(tall.names, tall.slices, strict=True)), logp


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", FORMS)
def test_effects_of_normal_rows_are_whitened_exactly(form, monkeypatch):
    """log p(h, v | y) is the marginal posterior of mu and tau, and -v^2 / 2."""
    monkeypatch.setattr(FEW, 0)
    monkeypatch.setattr("pymc_subsample.coordinates.coordinates._MOST_BENT", 0)
    y = outcomes()
    rng = np.random.default_rng(7)
    psi, place, parts, logp = exactly_whitened(form, y)
    means = np.array([y[g == GROUP].mean() for g in range(5)])

    def marginal(mu, log_tau):
        variance = np.exp(2 * log_tau) + 1 / SIZES
        logp = -0.5 * np.sum((means - mu) ** 2 / variance + np.log(variance))
        return logp - 0.5 * mu**2 - 0.5 * np.exp(2 * log_tau) + log_tau

    differences = []
    for _ in range(6):
        point = psi.copy()
        v = point[place] = rng.standard_normal(5)
        mu, log_tau = rng.normal(), rng.normal()
        if form == "non-centred":  # there mu is no part of the effects: it holds for any one of it
            mu = psi[parts["mu"]][0]
        point[parts["mu"]], point[parts["tau_log__"]] = mu, log_tau
        differences.append(logp(point) + 0.5 * v @ v - marginal(mu, log_tau))
    np.testing.assert_allclose(differences, differences[0], atol=1e-5)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bent", [False, True])
def test_few_effects_and_their_location_are_whitened_exactly(form, bent, monkeypatch):
    """log p(h, v | y) is the marginal posterior of tau, that of mu + A u, and -v^2 / 2.

    With tau moved by quantiles, the first is standard normal too.
    """
    if not bent:
        monkeypatch.setattr("pymc_subsample.coordinates.coordinates._MOST_BENT", 0)
    y = outcomes()
    rng = np.random.default_rng(7)
    psi, place, parts, logp = exactly_whitened(form, y)
    means = np.array([y[g == GROUP].mean() for g in range(5)])

    def marginal(log_tau):
        tau = np.exp(log_tau)
        cov = np.diag(tau**2 + 1 / SIZES) + 1.0
        fit = means @ np.linalg.solve(cov, means) + np.linalg.slogdet(cov)[1]
        return -0.5 * (fit + tau**2) + log_tau

    def normal(t):
        return -0.5 * t**2

    # mu + A u: the same normal distribution whatever tau and v are, mu's given the effects
    precision, differences = len(y) + 1.0, []
    center = y.sum() / precision
    for _ in range(6):
        point = psi.copy()
        v = point[place] = rng.standard_normal(5)
        mu, scale = rng.normal(), rng.normal()
        point[parts["mu"]], point[parts["tau_log__"]] = mu, scale
        location = 0.5 * precision * (mu - center) ** 2
        known = normal(scale) if bent else marginal(scale)
        differences.append(logp(point) + 0.5 * v @ v + location - known)
    np.testing.assert_allclose(differences, differences[0], atol=0.05 if bent else 1e-4)


@pytest.mark.costly
def test_correlations_do_not_turn_well_informed_effects():
    """With much information v follows u by a constant matrix, whatever K is."""

    def slope(sd, other, correlation):
        K = np.array([[sd, 0.0], [correlation * other, other]])
        table = np.array([[0, 1, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1], np.zeros(12, dtype=int)])
        information, score = [9e6, 4e6, 7e6], [0.0, 0.0]
        psi = np.array([0.0, 0.0, *information, *score])
        at, none = np.arange(2), np.zeros(0, dtype=int)
        for constant in (table, at, none):
            constant.flags.writeable = False
        jacobian = np.empty((2, 2))
        for b, e in enumerate(np.eye(2)):
            out = np.empty(2)
            psi[:2] = e
            moved((2, 1, 2, 2, 7), at, table, K.ravel(), none, psi, psi, e, out)
            jacobian[:, b] = out
        return jacobian @ np.linalg.inv(K)

    reference = slope(1.0, 0.5, 0.0)
    for K in [(1.0, 0.5, 2.0), (0.3, 2.0, -1.5), (2.0, 0.1, 0.5)]:
        np.testing.assert_allclose(slope(*K), reference, atol=1e-3 * np.abs(reference).max())


@pytest.mark.costly(cases=0)
def test_weights_follow_the_rows_of_each_group(monkeypatch):
    """At the reference the weight of the centred form is n tau^2 / (1 + n tau^2)."""
    monkeypatch.setattr(FEW, 0)
    step = pms.HMCECS(model=noncentred(outcomes()), subsample_size=50, rng=1)
    values = dict(zip(step.tall.names, step.tall.slices, strict=True))
    theta = step.expansion.values(step.reference.theta)
    strength = SIZES * np.exp(2 * theta[values["tau_log__"]])
    np.testing.assert_allclose(step.centring["z"], strength / (1 + strength), rtol=1e-3)


# What is sampled


def exact(y):
    """Means and sds of mu, log tau and the first and last effects, by quadrature."""
    means = np.array([y[g == GROUP].mean() for g in range(5)])
    mu, log_tau = np.meshgrid(np.linspace(-4, 4, 801), np.linspace(-8, 3, 1101), indexing="ij")
    variance = np.exp(2 * log_tau)[..., None] + 1 / SIZES
    logp = -0.5 * np.sum((means - mu[..., None]) ** 2 / variance + np.log(variance), axis=-1)
    logp += -0.5 * mu**2 - 0.5 * np.exp(2 * log_tau) + log_tau
    weight = np.exp(logp - logp.max())
    weight /= weight.sum()
    share = 1 / (SIZES * variance)
    center = share * mu[..., None] + (1 - share) * means
    spread = np.exp(2 * log_tau)[..., None] * share
    found = [(mu, 0.0 * mu), (log_tau, 0.0 * mu)]
    found += [(center[..., j], spread[..., j]) for j in (0, 4)]
    mean = np.array([np.sum(weight * x) for x, _ in found])
    square = np.array([np.sum(weight * (x**2 + s)) for x, s in found])
    return mean, np.sqrt(square - mean**2)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_exact_posterior(form):
    """4,000 draws: means within 5 standard errors, sds within 12%, at most 1e-5 by chance."""
    y = outcomes()
    with FORMS[form](y):
        step = pms.HMCECS(rng=1, subsample_size=100)
        idata = pm.sample(
            step=step, chains=2, cores=1, tune=500, draws=2000, random_seed=2, **QUIET
        )
    posterior = idata.posterior
    name = "d" if form == "half" else "a"
    effects = posterior[name] + (posterior["mu"] if form == "half" else 0.0)
    draws = [posterior["mu"], np.log(posterior["tau"]), effects[..., 0], effects[..., 4]]
    mean, sd = exact(y)
    for x, m, s in zip(draws, mean, sd, strict=True):
        ess = float(az.ess(x.to_dataset(name="x"))["x"])
        assert ess > 600
        assert abs(float(x.mean()) - m) < 5 * s / np.sqrt(ess)
        assert abs(float(x.std()) / s - 1) < 0.12


@pytest.mark.costly(cases=0)
def test_recorded_density_is_that_of_the_models_own_variables():
    """Audits weigh draws by the model's density over the recorded one; here they are equal."""
    with noncentred(outcomes()) as model:
        step = pms.HMCECS(rng=1, subsample_size=50)
        idata = pm.sample(step=step, chains=1, tune=200, draws=100, random_seed=2, **QUIET)
    draws, logp = idata.posterior.isel(chain=0), model.compile_logp()
    points = [
        {"mu": draws["mu"].values[i], "tau_log__": np.log(draws["tau"].values[i]),
         "z": draws["z"].values[i]}
        for i in range(100)
    ]  # fmt: skip
    excess = idata.sample_stats["lp"].values[0] - [float(logp(point)) for point in points]
    np.testing.assert_allclose(excess, excess[0], atol=1e-5)


@pytest.mark.costly(cases=0)
def test_runs_that_always_read_some_rows_can_be_audited():
    rng = np.random.default_rng(5)
    g = np.repeat(np.arange(3), [3, 30, 3000])
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau"), shape=3)
        pm.Poisson("y", pt.exp(1 + a[g]), observed=rng.poisson(np.exp(1.2), len(g)))
        step = pms.HMCECS(rng=1)
        assert len(step.subsample.always) > 0
        idata = pm.sample(step=step, chains=2, cores=1, tune=300, draws=300, **QUIET)
    stats = idata.sample_stats
    np.testing.assert_allclose(stats["subsample_size"] / stats["data_share"], len(g))
    assert pms.audit(idata, model=model, draws=50).status != "fail"
    assert pms.efficiency(idata)["rows"].iloc[0] == len(g)


@pytest.mark.costly(cases=0)
def test_forms_read_the_same_rows():
    y = outcomes()
    sizes = [pms.HMCECS(model=form(y), rng=1).subsample_size for form in FORMS.values()]
    assert max(sizes) <= 1.1 * min(sizes)


@pytest.mark.costly(cases=0)
def test_a_model_can_be_sampled_as_it_is_written():
    model = noncentred(outcomes())
    own = pms.HMCECS(model=model, rng=1, subsample_size=100)
    written = pms.HMCECS(model=model, rng=1, subsample_size=100, reparameterize=False)
    assert written.centring == {}
    assert own.expansion.theta_size > written.expansion.theta_size == own.tall.size


@pytest.mark.costly(cases=0)
def test_state_round_trips_in_coordinates_of_its_own():
    with noncentred(outcomes()) as model:
        one, other = (pms.HMCECS(rng=seed, subsample_size=50) for seed in (1, 7))
    assert_goes_on(one, other, model, tune=20, before=10, after=25)


@pytest.mark.costly
def test_coordinates_belong_to_the_sampled_variables_alone():
    """An effect that another step moves stays where that step put it."""
    with noncentred(outcomes()) as model:
        step = pms.HMCECS(["mu", "tau"], rng=1, subsample_size=50)
        assert step.centring == {}
        step.setup_chain(np.random.default_rng(3), tune=0, draws=5)
        point = model.initial_point()
        point["z"] = np.arange(5.0)
        moved, _ = step.step(point)
        np.testing.assert_array_equal(moved["z"], np.arange(5.0))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "make",
    [
        lambda: pms.MinibatchBarkerMH(rng=1),
        lambda: pms.AusterityMH(rng=1),
        lambda: pms.sgmcmc.SGHMC(rng=1),
        lambda: pms.sgmcmc.SGLD(rng=1),
    ],
    ids=["Barker", "austerity", "SGHMC", "SGLD"],
)
def test_other_steps_move_in_the_same_coordinates(make):
    with noncentred(outcomes()):
        step = make()
        assert set(step.centring) == {"z"}
        idata = pm.sample(step=step, chains=1, tune=300, draws=1500, random_seed=2, **QUIET)
    mean, sd = exact(outcomes())
    posterior = idata.posterior
    for x, m, s in zip(
        (posterior["mu"], posterior["a"][..., 4]), mean[[0, 3]], sd[[0, 3]], strict=True
    ):
        ess = float(az.ess(x.to_dataset(name="x"))["x"])
        assert abs(float(x.mean()) - m) < 5 * s / np.sqrt(ess) + 0.1 * s
        assert abs(float(x.std()) / s - 1) < 5 / np.sqrt(2 * ess) + 0.05


@pytest.mark.costly
def test_what_moves_is_said(caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        pms.HMCECS(model=noncentred(outcomes()), rng=1, subsample_size=50)
    assert "reparameterised: z between the forms, " in caplog.text
    assert "% of the way from non-centred to centred" in caplog.text


def test_reparameterize_must_be_a_flag():
    with pytest.raises(TypeError, match="reparameterize must be True or False"):
        pms.HMCECS(model=noncentred(outcomes()), reparameterize="yes")


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_units_of_a_check_are_those_of_rows_however_unlikely():
    """Log-likelihoods of 1e12 at the start: a change of 1 would be lost in their rounding."""
    rng = np.random.default_rng(1)
    hours = 1000 * rng.weibull(1.6, 300)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=2)
        alpha = pm.HalfNormal("alpha", 5)
        pm.Weibull("t", alpha, pt.exp(b[0] + b[1] * rng.normal(350, 20, 300)), observed=hours)
    tall = TallModel(model)
    theta = tall.ravel(tall.initial_point)
    index = np.arange(300)
    here = tall.loglik_as_written(theta, index)
    assert abs(here).max() > 1e9
    moved = tall.loglik_as_written(theta + tall.units * [1, 0, 0], index)
    assert 1e-3 < np.median(abs(moved - here) / abs(here)) < 10
    step = pms.HMCECS(model=model, rng=1)
    assert step.subsample_size <= 300


@pytest.mark.slow
def test_scales_of_groups_of_three_rows_beside_thousands():
    """Against NUTS on counts, means and variances of the groups, which are sufficient."""
    g, y = groups_of_all_sizes()
    n, mean = np.bincount(g), np.bincount(g, y) / np.bincount(g)
    squares = np.bincount(g, (y - mean[g]) ** 2)

    def model(rows):
        with pm.Model() as model:
            mu, ms = pm.Normal("mu", 0, 2), pm.Normal("ms")
            tau, ts = pm.HalfNormal("tau"), pm.HalfNormal("ts")
            z, zs = pm.Normal("z", shape=20), pm.Normal("zs", shape=20)
            level, sd = mu + tau * z, pt.exp(ms + ts * zs)
            pm.Deterministic("level", level)
            pm.Deterministic("log_sd", pt.log(sd))
            if rows:
                pm.Normal("y", level[g], sd[g], observed=y)
            else:
                missed = squares + n * (mean - level) ** 2
                pm.Potential("y", -n * pt.log(sd) - 0.5 * missed / sd**2)
        return model

    with model(rows=True):
        step = pms.HMCECS()
        found = pm.sample(step=step, chains=4, cores=1, random_seed=1, **QUIET)
    assert pms.report(found).status != "fail"
    with model(rows=False):
        exact = pm.sample(chains=4, cores=1, random_seed=2, target_accept=0.95, **QUIET)
    for name in ("mu", "tau", "ms", "ts", "level", "log_sd"):
        one, other = (run.posterior[name].values.reshape(4, 1000, -1) for run in (found, exact))
        for a in range(one.shape[2]):
            draws = [one[..., a], other[..., a]]
            sd = draws[1].std()
            error = sd * np.sqrt(sum(1 / float(az.ess(x)) for x in draws))
            assert abs(draws[0].mean() - draws[1].mean()) < 0.1 * sd + 4.5 * error, (name, a)
            assert abs(np.log(draws[0].std() / sd)) < 0.05 + 4.5 * error / sd, (name, a)


@pytest.mark.costly
@pytest.mark.parametrize("outcome", ["ordinal", "choice"])
def test_scales_of_effects_are_found_where_levels_broadcast(outcome):
    """PyMC and PyTensor give effects an axis for the levels before they are scaled."""
    rng = np.random.default_rng(1)
    group, y = rng.integers(0, 20, 500), rng.integers(0, 3, 500)
    with pm.Model() as model:
        z, tau = pm.Normal("z", shape=20), pm.HalfNormal("tau", 1)
        eta = tau * z[group]
        if outcome == "ordinal":
            pm.OrderedLogistic("y", eta=eta, cutpoints=[-1.0, 1.0], compute_p=False, observed=y)
        else:
            levels = pt.stack([pt.zeros_like(eta), eta, 2 * eta], axis=1)
            pm.Categorical("y", logit_p=levels, observed=y)
    tall = TallModel(model)
    assert [block.name for block in find_blocks(tall, tall.names)] == ["z"]
    assert all(graph.type.shape[:1] == (20,) for graph in tall.phi_graphs)
