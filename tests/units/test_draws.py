"""Draws of units' variables given what units share, beside their distribution by enumeration."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
from panels import PANELS
from scipy import stats
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.units import drawing
from pymc_subsample.units.choosing import chosen
from pymc_subsample.units.drawing import LocalDraws
from pymc_subsample.units.graphs import unit_graphs
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.modes import Modes, standing
from pymc_subsample.units.reading import read
from pymc_subsample.units.standardised import standardised
from pymc_subsample.units.unit_code import Densities, code_of, densities
from pymc_subsample.units.unit_densities import UnitFunctions

COPIES = 2_000
# Outcomes of a unit's five rows: one that is nearly normal, one whose mode is far out.
KINDS = np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1]])
X = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
UNITS = len(KINDS) * COPIES


@cache
def panel(size):
    """Draws of units of two kinds, of intercepts and, with a size of 2, of slopes."""
    unit, x = np.repeat(np.arange(UNITS), len(X)), np.tile(X, UNITS)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        names = ["z", "w"][:size]
        local = [pm.Normal(name, 0, 1, shape=UNITS)[unit] for name in names]
        slope = local[1] if size == 2 else 1.0
        pm.Bernoulli("y", logit_p=mu + tau * local[0] + slope * x,
                     observed=np.repeat(KINDS, COPIES, axis=0).ravel())  # fmt: skip
    integrals = integrals_of(pms.marginalize(model, names, n_nodes=7))
    return integrals, LocalDraws(integrals)


def at(integrals, mu, tau):
    """Return a point so far from the reference, in mu, and in units of tau's logarithm."""
    there = integrals.reference + np.array([mu, tau])
    values = zip(integrals.functions.values.values(), there, strict=True)
    return {v.name: np.array(x) for v, x in values}


def enumerated(point, outcome, size):
    """Return a grid for each of the variables, and their density on it, up to a constant."""
    axes = [np.linspace(-7, 7, 4_001 if size == 1 else 501)] * size
    z, *slope = np.meshgrid(*axes, indexing="ij")
    eta = point["mu"] + np.exp(point["tau_log__"]) * z
    log_p = -0.5 * (z**2 + sum(w**2 for w in slope))
    for x, y in zip(X, outcome, strict=True):
        p = expit(eta + (slope[0] if slope else 1.0) * x)
        log_p = log_p + np.log(p if y else 1 - p)
    return axes[0], np.exp(log_p - log_p.max())


def differs(found, grid, density):
    """Whether draws have another mean, sd, distribution, or tails than a density on a grid."""
    density = density / density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    kurtosis = density @ ((grid - mean) / sd) ** 4
    errors = [
        (found.mean() - mean) / sd * np.sqrt(len(found)),
        (found.std() / sd - 1) * np.sqrt(4 * len(found) / (kurtosis - 1)),
    ]
    below = np.cumsum(density) - density / 2
    ps = [stats.kstest(found, lambda x: np.interp(x, grid, below)).pvalue]
    for share in (0.01, 0.99):
        count = int((found < np.interp(share, below, grid)).sum())
        ps.append(stats.binomtest(count, len(found), share).pvalue)
    # 4.5 standard errors are exceeded in 7e-6 of samples.
    return np.abs(errors).max() > 4.5 or min(ps) < 1e-5


@pytest.mark.costly
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("far", [(0.0, 0.0), (0.1, -0.1), (0.8, 0.7)])
def test_draws_are_those_of_the_density_on_a_grid(size, far):
    integrals, drawing = panel(size)
    point = at(integrals, *far)
    found = drawing.at(point, b"key", 1)
    for outcome, own in zip(KINDS, np.arange(UNITS).reshape(len(KINDS), -1), strict=True):
        grid, density = enumerated(point, outcome, size)
        _, another = enumerated(point | {"mu": point["mu"] + 0.5}, outcome, size)
        for k, name in enumerate(["z", "w"][:size]):
            others = tuple(i for i in range(size) if i != k)
            assert not differs(found[name][own], grid, density.sum(axis=others))
        assert differs(found["z"][own], grid, another.sum(axis=tuple(range(1, size))))
    assert drawing.missed[0] < 0.01


@pytest.mark.costly
def test_draws_follow_from_the_point_the_key_and_the_number():
    integrals, drawing = panel(1)
    point, other = at(integrals, 0.05, 0.0), at(integrals, 0.8, 0.7)
    first = drawing.at(point, b"key", 3)["z"]
    drawing.at(other, b"key", 4)  # of which nothing is left
    np.testing.assert_array_equal(drawing.at(point, b"key", 3)["z"], first)
    np.testing.assert_array_equal(LocalDraws(integrals).at(point, b"key", 3)["z"], first)
    for key, number in ((b"key", 5), (b"other", 3)):
        assert not np.isin(drawing.at(point, key, number)["z"], first).any()


class Counted(Densities):
    """Densities by NumPy that keep how many they evaluated at a time."""

    def log_density(self, units, u):
        self.calls = [*getattr(self, "calls", []), len(units)]
        return super().log_density(units, u)


def counted_draws(monkeypatch, units, rows):
    """Return numbers of densities per call, of making a drawer by NumPy, and of a draw."""
    monkeypatch.setattr(drawing, "densities", lambda functions, code: Counted(functions))
    unit = np.repeat(np.arange(units), rows)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 8)
        z = pm.Normal("z", 0, 1, shape=units)
        pm.Normal("y", tau * z[unit] ** 2, 1, observed=np.linspace(1.5, 2.5, len(unit)))
    whole = read(model)
    functions = UnitFunctions(unit_graphs(standardised(whole, ["z"]), chosen(whole, ["z"])))
    theta = np.log([8.0])
    drawer = drawing.drawer_of(functions, (functions, theta), 0, None)
    before, drawer._densities.calls = drawer._densities.calls, []
    drawer.draw(theta, np.random.default_rng(1))
    return before, drawer._densities.calls


def test_units_of_many_rows_are_looked_at_at_few_nodes_at_a_time(monkeypatch):
    before, calls = counted_draws(monkeypatch, 2, 8_000)
    assert max([*before, *calls]) <= 16


def test_draws_of_few_units_take_few_calls(monkeypatch):
    # Of units with two modes proposals around one are accepted seldom.
    _, calls = counted_draws(monkeypatch, 20, 1)
    assert len(calls) <= 6


def test_units_that_shared_values_rule_out_are_missed():
    with pm.Model() as model:
        w, z = pm.LogNormal("w", 0, 1), pm.Normal("z", 0, 1, shape=2)
        half = z[np.array([0, 0, 1, 1])]
        pm.Uniform("y", half - w, half + w, observed=[0.0, 1.0, 0.2, 0.3])
    whole = read(model)
    functions = UnitFunctions(unit_graphs(standardised(whole, ["z"]), chosen(whole, ["z"])))
    drawer = drawing.drawer_of(functions, (functions, np.zeros(1)), 0, None)
    with np.errstate(all="raise"):
        found = drawer.draw(np.log([0.3]), np.random.default_rng(1))
    assert np.isnan(found[:, 0]).tolist() == [True, False]
    assert abs(found[1, 0] - 0.25) < 0.25
    assert drawer.missed[0] == 1
    assert drawer.missed[1] < 0.5


# Whose rows have no scalar form.
BY_NUMPY = {"ordered"}


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("name", PANELS)
@pytest.mark.parametrize("as_recorded", [False, True])
def test_compiled_densities_are_those_of_numpy(name, as_recorded):
    make, names, _ = PANELS[name]
    whole = read(make())
    reading, grouping = standardised(whole, names), chosen(whole, names)
    graphs = unit_graphs(reading, grouping)
    functions = UnitFunctions(graphs)
    theta = functions.ravel(functions.start) + 0.1
    if as_recorded:
        inputs = [reading.values[n] for n in functions.values]
        outputs = [reading.constrained[n] for n in functions.values]
        found = numpy_function(inputs, outputs)(*functions.split(theta))
        theta = np.concatenate([*map(np.ravel, found), np.zeros(0)])
        functions = UnitFunctions(graphs, as_recorded=True)
    code = code_of(functions)
    assert (code is None) == (name in BY_NUMPY)
    rng = np.random.default_rng(1)
    some = rng.integers(0, len(functions.levels), 50)
    u = 0.3 * rng.random((len(functions.levels), graphs.size)) + 0.1
    compiled, by_numpy = densities(functions, code).at(theta), densities(functions, None).at(theta)
    np.testing.assert_allclose(
        compiled.log_density(some, u[some]), by_numpy.log_density(some, u[some]), rtol=1e-9
    )
    modes = Modes(u, standing(*u.shape).S, np.ones(len(u), dtype=bool))
    exact = functions.derivatives(theta, u)
    # By NumPy those of one dimension are differences.
    for some, error in ((by_numpy, 2e-3), (compiled, 2e-3 if code is None else 1e-9)):
        for one, other in zip(some.derivatives(modes), exact, strict=True):
            np.testing.assert_allclose(one, other, rtol=error, atol=error)
