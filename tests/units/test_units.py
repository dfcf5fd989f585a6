"""Local variables are found, in any spelling; integrals and modes are those of their units."""

import logging

import numpy as np
import pymc as pm
import pytest
from panels import PANELS, REFUSED, G, N, g, other, x, y
from scipy.stats import multivariate_normal, norm

import pymc_subsample as pms
from pymc_subsample.units.choosing import chosen
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.graphs import unit_graphs
from pymc_subsample.units.layout import places, tables
from pymc_subsample.units.modes import find_modes
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reading import read
from pymc_subsample.units.reference import find_reference, start_of
from pymc_subsample.units.sampled import units_of
from pymc_subsample.units.standardised import standardised
from pymc_subsample.units.unit_densities import UnitFunctions
from pymc_subsample.units.verification import check_joint


def functions_of(model, names):
    """Return the functions of a model's units."""
    reading = read(model)
    grouping = chosen(reading, list(names))
    return UnitFunctions(unit_graphs(standardised(reading, grouping.names), grouping))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
def test_codes_may_have_no_room_for_the_number_of_levels(dtype):
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mean"), 1, shape=300)
        pm.Normal("y", a[g.astype(dtype)], 1, observed=y)
    [grouping], _ = find_groupings(read(model))
    [index] = grouping.index.values()
    assert grouping.levels == 300
    np.testing.assert_array_equal(index, g)


@pytest.mark.costly(cases=6)
@pytest.mark.parametrize("name", PANELS)
def test_local_variables_are_found_with_the_density_of_the_model(name):
    make, names, size = PANELS[name]
    groupings, reasons = find_groupings(read(make()))
    [grouping] = [grouping for grouping in groupings if names[0] in grouping.names]

    assert sorted(grouping.names) == sorted(names)
    assert reasons.keys().isdisjoint(names)

    functions = functions_of(make(), names)
    assert functions.graphs.size == size
    rng = np.random.default_rng(1)
    for _ in range(3):
        check_joint(functions, rng)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda value: -value,  # without the Jacobian of its transform
        lambda value: 1e-3 * value**2,  # much smaller near the start
    ],
)
def test_a_density_that_is_not_the_models_is_found_out(wrong):
    functions = functions_of(PANELS["gamma"][0](), ["u"])
    prior = functions.graphs.prior
    [value] = prior.local
    prior.output = prior.output + wrong(value)
    with pytest.raises(pms.TallModelError, match="was not read as it is"):
        check_joint(UnitFunctions(functions.graphs), np.random.default_rng(1))


@pytest.mark.costly
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_local_is_refused_by_name(name):
    make, variable, said = REFUSED[name]
    with pytest.raises(pms.TallModelError, match=f"'{variable}' cannot .*{said}"):
        pms.marginalize(make(), variable)


def test_levels_of_many_rows_stay_and_many_levels_of_few_do_not():
    rng = np.random.default_rng(1)
    few, many = rng.integers(0, 20, 3_000), rng.integers(0, 600, 3_000)
    with pm.Model() as model:
        store, customer = pm.Normal("store", shape=20), pm.Normal("customer", shape=600)
        pm.Normal("y", store[few] + customer[many], 1, observed=rng.normal(size=3_000))

    assert chosen(read(model), "auto").names == ["customer"]
    assert chosen(read(model), "store").names == ["store"]


def test_two_groupings_of_many_levels_are_refused_with_numbers():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        user, film = pm.Normal("user", shape=600), pm.Normal("film", shape=500)
        eta = user[rng.integers(0, 600, 3_000)] + film[rng.integers(0, 500, 3_000)]
        pm.Normal("y", eta, 1, observed=rng.normal(size=3_000))
    said = r"'user' \(\d+ levels of \d.* rows\); 'film' \(\d+ levels of \d.* rows\)"
    with pytest.raises(pms.TallModelError, match=said):
        pms.marginalize(model)
    with pytest.raises(pms.TallModelError, match="belong to 2 groupings"):
        pms.marginalize(model, ["user", "film"])


def test_a_model_of_local_variables_alone_is_sampled_as_it_is():
    with pm.Model() as model:
        b = pm.Normal("b", shape=500)
        pm.Normal("y", b[np.repeat(np.arange(500), 2)], 1.0, observed=np.zeros(1_000))
    assert units_of(model, "auto", "HMCECS") is None
    for integrate in (["b"], "auto"):
        with pytest.raises(pms.TallModelError, match="none is left to sample"):
            pms.marginalize(model, integrate)


def test_few_levels_are_left_and_that_is_said():
    """Of 40 levels, the one without rows is not counted."""
    model = PANELS["noncentred"][0]()
    with pytest.raises(pms.TallModelError, match=r"No variable is integrated out: 'z' .39 levels"):
        pms.marginalize(model)
    with pm.Model() as plain:
        pm.Normal("y", pm.Normal("mu"), 1, observed=y)
    with pytest.raises(pms.TallModelError, match="no local variables: 'mu' is a single number"):
        pms.marginalize(plain)
    with pytest.raises(ValueError, match="integrate holds 'w', which is not a free variable"):
        pms.marginalize(model, ["w"])


@pytest.mark.parametrize(
    ("size", "number", "degree"), [(1, 5, 7), (1, 45, 7), (2, 5, 3), (2, 9, 3), (3, 5, 3)]
)
def test_nodes_integrate_polynomials_of_normal_variables(size, number, degree):
    points, log_weights = nodes(size, number)
    weights = np.exp(log_weights) * multivariate_normal.pdf(points, np.zeros(size))

    assert weights.sum() == pytest.approx(1, abs=1e-6)
    for power in range(1, degree + 1):
        expected = norm.moment(power)
        found = weights @ (points**power).reshape(len(points), size)
        assert found == pytest.approx(expected, abs=1e-5 * 10**power)


def test_points_that_fill_the_space_integrate_a_correlated_normal_density():
    size = 5
    cov = 0.3 + 0.7 * np.eye(size)
    points, log_weights = nodes(size, 9)
    values = np.exp(log_weights) * multivariate_normal.pdf(points, np.zeros(size), cov)
    # 2**10 points: means of heavy-tailed products, whose error is about 1 / number of points.
    assert values.sum() == pytest.approx(1, abs=0.03)
    assert values @ points[:, 0] ** 2 == pytest.approx(1, abs=0.1)


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("name", ["noncentred", "lkj", "gamma", "student", "of_each_row"])
def test_modes_are_where_the_slope_vanishes(name):
    make, names, size = PANELS[name]
    functions = functions_of(make(), names)
    theta = functions.ravel(functions.start)
    modes = find_modes(functions, theta, start_of(functions))
    _, slope, curvature = functions.derivatives(theta, modes.m)

    assert modes.found.all()
    assert np.abs(slope).max() < 1e-4
    products = modes.S @ np.swapaxes(modes.S, 1, 2) @ -curvature
    assert products == pytest.approx(np.broadcast_to(np.eye(size), products.shape), abs=1e-6)


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("name", ["noncentred", "multivariate", "gamma", "two_outcomes", "ordered"])
def test_derivatives_are_differences(name):
    make, names, size = PANELS[name]
    functions, rng = functions_of(make(), names), np.random.default_rng(2)
    theta = functions.ravel(functions.start) + 0.1
    u = 0.5 * rng.normal(size=(len(functions.levels), size))
    _, slope, curvature = functions.derivatives(theta, u)
    step = 1e-5
    for i in range(size):
        above, below = (
            functions.derivatives(theta, u + s * np.eye(size)[i]) for s in (step, -step)
        )
        assert slope[:, i] == pytest.approx((above[0] - below[0]) / (2 * step), abs=1e-5)
        assert curvature[:, i] == pytest.approx((above[1] - below[1]) / (2 * step), abs=1e-4)
    weights, direction = rng.random(len(u)), rng.normal(size=functions.size)
    there, back = (weights @ functions.log_density(theta + s * direction, u) for s in (step, -step))
    found = functions.slope(theta, u, weights) @ direction
    assert found == pytest.approx((there - back) / (2 * step), rel=1e-5, abs=1e-5)


def hostile(rows_of, tau):
    """Binary rows of units, the outcomes of each alike, and a scale."""
    index = np.repeat(np.arange(len(rows_of)), rows_of)
    with pm.Model() as model:
        z = pm.Normal("z", shape=len(rows_of))
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + tau * z[index], observed=index % 2)
    return model


@pytest.mark.parametrize("tau", [0.0, 1e-6, 1.0, 30.0])
def test_modes_of_separated_units_are_found(tau):
    functions = functions_of(hostile([1, 3, 300, 1, 2, 40], tau), ["z"])
    modes = find_modes(functions, np.zeros(1), start_of(functions))
    assert modes.found.all()
    assert np.all((modes.S > 0) & (modes.S <= 1 + 1e-9))


def test_the_reference_is_about_the_mode():
    # y ~ Normal(mu + u, 1), u ~ Normal(0, 1): mu has the mean of its units' means, weighted.
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu + pm.Normal("u", shape=G)[g], 1, observed=y)
    found = find_reference(functions_of(model, ["u"]), np.random.default_rng(0))
    count = np.bincount(g)
    weights = count / (1 + count)
    means = np.bincount(g, weights=y) / count
    expected = weights @ means / (weights.sum() + 0.01)
    assert found[0] == pytest.approx(expected, abs=0.02 / np.sqrt(weights.sum()))


@pytest.mark.parametrize("alike", [False, True])
def test_tables_hold_each_row_once(alike):
    """Or rows of a unit that are alike once, as many times as there are of them."""
    sizes = [1, 3, 300, 1, 2, 40, 41, 300, 7]
    functions = functions_of(hostile(sizes, 1.0), ["z"])
    apart = UnitFunctions(functions.graphs, apart=True)
    rows, seen = (functions if alike else apart).data[1], []
    for table in tables(functions if alike else apart, 5):
        at, counts = places(rows, table.units, table.lengths[0])
        assert counts.sum(axis=1).tolist() == [sizes[unit] for unit in table.units]
        assert np.all(rows.unit[at] == table.units[:, None])
        seen += at[counts > 0].tolist()
    assert sorted(seen) == list(range(len(rows.unit)))
    every = apart.data[1]
    assert len(every.unit) == sum(sizes)
    pairs = np.column_stack([every.unit, *every.columns])
    unique, times = np.unique(pairs, axis=0, return_counts=True)
    if alike:
        found = np.column_stack([rows.unit, *rows.columns, rows.times])
        assert {tuple(x) for x in found} == {(*x, n) for x, n in zip(unique, times, strict=True)}
        assert len(unique) == len(rows.unit) < sum(sizes) / 10


def test_rows_that_are_alike_count_as_often_as_they_occur():
    """Log densities of units, their derivatives and slopes are those of all rows."""
    functions = functions_of(hostile([3, 300, 41], 1.0), ["z"])
    apart = UnitFunctions(functions.graphs, apart=True)
    theta, u = np.full(functions.size, 0.3), np.array([[0.2], [-1.0], [0.5]])
    for a, b in zip(functions.derivatives(theta, u), apart.derivatives(theta, u), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    slopes = [f.slope(theta, u, np.array([1.0, 2.0, -0.5])) for f in (functions, apart)]
    np.testing.assert_allclose(*slopes, rtol=1e-12)
    assert functions.n_rows.tolist() == apart.n_rows.tolist() == [3, 300, 41]


def test_what_is_integrated_out_is_said(caplog):
    caplog.set_level(logging.INFO, "pymc.subsample")
    pms.marginalize(PANELS["noncentred"][0](), "z", n_nodes=5)
    counts = np.bincount(g)
    expected = f"z integrated out: {len(counts)} levels with {counts.min()} to {counts.max()}"
    assert expected in caplog.text
    assert ", 5 nodes per level" in caplog.text


@pytest.mark.costly(cases=0)
def test_an_integral_that_nodes_do_not_serve_is_refused_by_level():
    rng = np.random.default_rng(0)
    index = np.arange(400) // 2
    with pm.Model() as model:
        z = pm.Normal("z", shape=200)
        tau = 100 + pm.HalfNormal("tau", 100)
        outcome = (rng.normal(size=200)[index] > 0).astype(int)
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + tau * z[index], observed=outcome)
    with pytest.raises(pms.TallModelError, match=r"Level \d+ of 'z' has .* far from its mode"):
        pms.marginalize(model, "z")


def test_crossed_effects_of_few_levels_stay():
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=G), pm.Normal("b", shape=30)
        pm.Normal("y", a[g] + b[other] + 0.1 * x, 1, observed=y)
    new = pms.marginalize(model, "a", n_nodes=3)
    assert [v.name for v in new.free_RVs] == ["b"]
    assert sum(functions_of(model, ["a"]).n_rows) == N
