"""Second derivatives of effects whose units meet in none: all units at once."""

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.coordinates.fit import fitted
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.quadratic import Posterior, Quadratic

RNG = np.random.default_rng(1)
N, STORES, ITEMS = 1500, 40, 25
STORE, ITEM, OTHER = (RNG.integers(0, size, N) for size in (STORES, ITEMS, STORES))
X = RNG.normal(3.0, 2.0, N)
Y = RNG.random(N) < 1 / (1 + np.exp(-RNG.normal(size=STORES)[STORE] - 0.2 * X))


def crossed():
    """Intercepts and slopes of stores, and intercepts of items."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        sd, sd_item = pm.HalfNormal("sd", 1, shape=2), pm.HalfNormal("sd_item", 1)
        u = pm.Normal("u", 0, sd, shape=(STORES, 2))
        z = pm.Normal("z", shape=ITEMS)
        eta = a + b * X + u[STORE, 0] + u[STORE, 1] * X + sd_item * z[ITEM]
        pm.Bernoulli("y", logit_p=eta, observed=Y)
    return model


def memberships():
    """Rows that belong to two stores each."""
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        u = sd * pm.Normal("z", shape=STORES)
        pm.Bernoulli("y", logit_p=a + u[STORE] + u[OTHER], observed=Y)
    return model


@pytest.fixture(scope="module")
def made():
    steps = {}

    def make(model):
        if model not in steps:
            steps[model] = pms.HMCECS(model=model(), subsample_size=50, rng=1)
        return steps[model].expansion, steps[model].reference

    return make


def one_by_one(monkeypatch):
    monkeypatch.setattr(Expansion, "units", property(lambda self: []))
    monkeypatch.setattr(Quadratic, "unit_hessians", lambda *_: None)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("model", [crossed, memberships])
def test_all_at_once_as_one_by_one(model, made, monkeypatch):
    expansion, reference = made(model)
    active = np.random.default_rng(2).permutation(expansion.coordinates.size)
    some = np.setdiff1d(active, expansion.units[0].ravel()[:1])

    def found():
        quadratic = Quadratic(expansion, reference)
        matrices = quadratic.precision(active), quadratic.precision(some)
        return *matrices, quadratic.scales(active), fitted(quadratic).theta

    fast = found()
    one_by_one(monkeypatch)
    for quick, slow in zip(fast, found(), strict=True):
        np.testing.assert_allclose(quick, slow, rtol=1e-4, atol=1e-5 * np.abs(slow).max())


@pytest.mark.costly
def test_fewer_gradients(made, monkeypatch):
    expansion, reference = made(crossed)
    active, calls = np.arange(expansion.coordinates.size), []
    pull_back = Expansion.pull_back

    def counted(self, *arguments):
        calls.append(1)
        return pull_back(self, *arguments)

    monkeypatch.setattr(Expansion, "pull_back", counted)
    Quadratic(expansion, reference).precision(active)
    stores = 2 * STORES
    assert len(calls) == 2 * (len(active) - stores) + 2 * 4  # two weights, two components


@pytest.mark.costly
def test_units_that_meet_are_told(made):
    for model, name, apart in (
        (crossed, "u", True),
        (crossed, "z", True),
        (memberships, "z", False),
    ):
        expansion, reference = made(model)
        places = expansion.coordinates.places[name]
        found = Quadratic(expansion, reference).unit_hessians(places)
        assert (found is not None) == apart


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("strength", "apart"), [(3e-5, True), (3e-3, False)])
def test_units_that_hardly_meet_are_told(made, monkeypatch, strength, apart):
    """One pair of stores of 780, by a share of their own second derivatives."""
    expansion, reference = made(crossed)
    gradient, places = Quadratic.gradient, expansion.coordinates.places["u"]
    one, other = places[0, :2]
    exact = -np.diag(Quadratic(expansion, reference).precision(places.ravel()))[:2]
    coupling = strength * np.sqrt(exact[0] * exact[1])

    def coupled(self, theta):
        found = gradient(self, theta)
        found[one] += coupling * theta[other]
        found[other] += coupling * theta[one]
        return found

    monkeypatch.setattr(Quadratic, "gradient", coupled)
    assert (Quadratic(expansion, reference).unit_hessians(places) is not None) == apart


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("far", [300.0, 800.0])
def test_where_rates_overflow_there_is_no_curvature(far):
    """As at starts of a search, and at a moved intercept of counts; what is finite is taken."""
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        u = sd * pm.Normal("z", shape=STORES)
        pm.Poisson("y", pm.math.exp(a + u[STORE]), observed=Y.astype(int))
    expansion = pms.HMCECS(model=model, subsample_size=50, rng=1).expansion
    values = np.zeros(expansion.coordinates.size)
    values[0] = far
    there = Posterior(expansion).at(expansion.from_values(values))
    finite = there.reference.is_finite
    assert finite == (far < 700)
    active = np.arange(len(values))
    matrix, sd, moved = there.precision(active), there.scales(active), fitted(there)
    assert matrix.shape == (len(active), len(active))
    assert np.isfinite(matrix).all() == finite
    assert np.isfinite(sd).all()
    assert np.isfinite(moved.theta).all()
    assert (moved is there) == (not finite)
