"""Groups within groups: which they are, and what the chain moves."""

import numpy as np
import pymc as pm
import pytest

from pymc_subsample.control_variates import expand
from pymc_subsample.control_variates.quadratic import Posterior
from pymc_subsample.coordinates import find_coordinates, find_nesting, nesting, reparameterise
from pymc_subsample.coordinates.fit import fitted, start
from pymc_subsample.likelihood import TallModel

N, DISTRICTS, SCHOOLS, CLASSES = 6_000, 14, 40, 120
RNG = np.random.default_rng(1)
SCHOOL = RNG.permutation(np.arange(CLASSES) % SCHOOLS)
DISTRICT = RNG.permutation(np.arange(SCHOOLS) % DISTRICTS)
CLASS = np.r_[
    np.arange(CLASSES), RNG.choice(CLASSES, N - CLASSES, p=RNG.dirichlet(np.ones(CLASSES)))
]
AGE = RNG.uniform(6, 18, N)


def outcomes(*parts):
    return 500 + sum(parts) + np.random.default_rng(2).normal(0, 20, N)


def effects(name, size, scale, form="non-centred"):
    tau = pm.HalfNormal(f"tau_{name}", scale)
    if form == "centred":
        return pm.Normal(name, 0, tau, shape=size)
    return tau * pm.Normal(name, shape=size)


def classes(form="non-centred"):
    """Classes of schools of districts, all added up, as Bambi writes them."""
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100)
        eta += effects("d", DISTRICTS, 20, form)[DISTRICT[SCHOOL[CLASS]]]
        eta += effects("s", SCHOOLS, 20, form)[SCHOOL[CLASS]]
        eta += effects("c", CLASSES, 20, form)[CLASS]
        rng = np.random.default_rng(3)
        y = outcomes(rng.normal(0, 5, SCHOOLS)[SCHOOL[CLASS]], rng.normal(0, 8, CLASSES)[CLASS])
        pm.Normal("y", eta, 20.0, observed=y)
    return model


def found(model):
    """Return the nested pairs of variables in the order of phi, and where links are."""
    tall = TallModel(model)
    links = find_nesting(expand(tall))
    return tall, links


def owner(tall, element):
    """Return which parameter of the rows an element of phi belongs to, and its place there."""
    for k, part in enumerate(tall.phi_slices.values()):
        if part.start <= element < part.stop:
            return k, element - part.start
    return None


def pairs(tall, links):
    """Return by sizes of inner and outer groupings the outer group of each inner one."""
    sizes = [part.stop - part.start for part in tall.phi_slices.values()]
    result = {}
    for link in links:
        inner = np.flatnonzero(link >= 0)
        first = {owner(tall, i)[0] for i in inner}
        outer = {owner(tall, link[i])[0] for i in inner}
        [a], [b] = first, outer
        result[sizes[a], sizes[b]] = np.array([owner(tall, link[i])[1] for i in inner])
    return result


def test_each_grouping_is_found_in_each_that_is_larger():
    tall, links = found(classes())
    result = pairs(tall, links)
    assert result.keys() == {
        (CLASSES, SCHOOLS), (CLASSES, DISTRICTS), (SCHOOLS, DISTRICTS),
    }  # fmt: skip
    np.testing.assert_array_equal(result[CLASSES, SCHOOLS], SCHOOL)
    np.testing.assert_array_equal(result[SCHOOLS, DISTRICTS], DISTRICT)
    np.testing.assert_array_equal(result[CLASSES, DISTRICTS], DISTRICT[SCHOOL])


def two(first, second, *, slope=None, matrix=False):
    """Two groupings; or one of cells of both."""
    with pm.Model() as model:
        a = effects("a", int(first.max()) + 1, 20)
        eta = pm.Normal("mu", 500, 100) + a[first] * (1.0 if slope is None else slope)
        if matrix:
            shape = int(first.max()) + 1, int(second.max()) + 1
            eta += effects("b", shape[1], 20)[second] + effects("ab", shape, 20)[first, second]
        else:
            eta += effects("b", int(second.max()) + 1, 20)[second]
        pm.Normal("y", eta, 20.0, observed=outcomes())
    return model


def test_cells_are_within_both_of_their_groupings():
    rng = np.random.default_rng(4)
    first, second = rng.integers(0, 20, N), rng.integers(0, 15, N)
    first[:300], second[:300] = np.divmod(np.arange(300), 15)
    tall, links = found(two(first, second, matrix=True))
    result = pairs(tall, links)
    assert result.keys() == {(300, 20), (300, 15)}
    np.testing.assert_array_equal(result[300, 20], np.arange(300) // 15)
    np.testing.assert_array_equal(result[300, 15], np.arange(300) % 15)


def moved_once():
    """One row of a class that belongs to another school."""
    school = SCHOOL[CLASS]
    school[N // 2 + 1] = (school[N // 2 + 1] + 1) % SCHOOLS
    return school


@pytest.mark.parametrize(
    "model",
    [
        two(CLASS, np.random.default_rng(5).integers(0, SCHOOLS, N)),
        two(CLASS, moved_once()),
        two(CLASS, (CLASS + 7) % CLASSES),
        two(CLASS, SCHOOL[CLASS], slope=AGE),
        two(CLASS, SCHOOL[CLASS], slope=2.0 + np.zeros(N)),
    ],
    ids=["crossed", "but for a row", "the same groups", "slopes of one", "other units"],
)
def test_what_is_not_nested_is_not_found(model):
    assert found(model)[1] == []


def test_groups_whose_rows_were_not_looked_at_belong_to_none(monkeypatch):
    monkeypatch.setattr(nesting, "_FEW", 100)
    monkeypatch.setattr(nesting, "_MOST", 150)
    tall, links = found(two(CLASS, SCHOOL[CLASS]))
    [part] = [part for part in tall.phi_slices.values() if part.stop - part.start == CLASSES]
    link = next(link for link in links if np.any(link[part] >= 0))[part]
    assert 0 < np.count_nonzero(link >= 0) < CLASSES
    coordinates = find_coordinates(tall, tall.names, links)
    theta = np.random.default_rng(6).normal(size=tall.size)
    parts = dict(zip(tall.names, tall.slices, strict=True))
    tau = np.exp(theta[parts["tau_b_log__"]])
    _, offset = coordinates.strengths(theta, "a")
    expected = np.where(link >= 0, tau * theta[parts["b"]][SCHOOL], 0.0)
    np.testing.assert_allclose(offset[:, 0], expected, rtol=1e-12)


def whitened(model, links=None):
    """An expansion in coordinates of its own, at a point psi that has their constants."""
    tall = TallModel(model)
    expansion = expand(tall)
    links = find_nesting(expansion) if links is None else links
    assert reparameterise(tall, expansion, find_coordinates(tall, tall.names, links))
    psi = start(expansion.coordinates, tall.ravel(tall.initial_point))
    for _ in range(2):
        psi = fitted(Posterior(expansion).at(psi)).theta
    parts = dict(zip(tall.names, tall.slices, strict=True))

    return psi, parts, Posterior(expansion).at(psi).gradient


@pytest.mark.parametrize("form", ["centred", "non-centred"])
def test_classes_of_normal_rows_are_standard_normal_whatever_else_moves(form, monkeypatch):
    """Given scales, schools, districts and the mean, v is N(0, 1): its gradient is -v."""
    psi, parts, gradient = whitened(classes(form))
    rng = np.random.default_rng(7)
    for _ in range(5):
        point = psi.copy()
        point[: parts["c"].stop] += rng.normal(size=parts["c"].stop)
        np.testing.assert_allclose(gradient(point)[parts["c"]], -point[parts["c"]], atol=1e-4)


def test_without_links_they_are_not():
    psi, parts, gradient = whitened(classes(), links=[])
    point = psi.copy()
    point[parts["s"]] += np.random.default_rng(7).normal(size=SCHOOLS)
    assert np.abs(gradient(point)[parts["c"]] + point[parts["c"]]).max() > 0.1
