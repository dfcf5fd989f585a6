"""Groups within groups: which they are, and what the chain moves."""

from itertools import product

import numpy as np
import pymc as pm
import pytest
from chains import QUIET, assert_moments

import pymc_subsample as pms
from pymc_subsample.coordinates import find_coordinates, find_nesting, nesting, reparameterise
from pymc_subsample.coordinates.compiled import CompiledMap
from pymc_subsample.coordinates.fit import fitted, start
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.quadratic import Posterior
from pymc_subsample.model import TallModel

N, DISTRICTS, SCHOOLS, CLASSES = 6_000, 14, 40, 120
# So few groups are one joint unit.
FEW = 8
RNG = np.random.default_rng(1)
SCHOOL = RNG.permutation(np.arange(CLASSES) % SCHOOLS)
DISTRICT = RNG.permutation(np.arange(SCHOOLS) % DISTRICTS)
CLASS = np.r_[
    np.arange(CLASSES), RNG.choice(CLASSES, N - CLASSES, p=RNG.dirichlet(np.ones(CLASSES)))
]
AGE = RNG.uniform(6, 18, N)


def outcomes(*parts, noise=20):
    return 500 + sum(parts) + np.random.default_rng(2).normal(0, noise, N)


def effects(name, size, scale, form="non-centred"):
    tau = pm.HalfNormal(f"tau_{name}", scale)
    if form == "centred":
        return pm.Normal(name, 0, tau, shape=size)
    return tau * pm.Normal(name, shape=size)


def classes(form="non-centred", districts=DISTRICTS):
    """Classes of schools of districts, all added up, as Bambi writes them."""
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100)
        eta += effects("d", districts, 20, form)[DISTRICT[SCHOOL[CLASS]] % districts]
        eta += effects("s", SCHOOLS, 20, form)[SCHOOL[CLASS]]
        eta += effects("c", CLASSES, 20, form)[CLASS]
        rng = np.random.default_rng(3)
        y = outcomes(rng.normal(0, 5, SCHOOLS)[SCHOOL[CLASS]], rng.normal(0, 8, CLASSES)[CLASS])
        pm.Normal("y", eta, 20.0, observed=y)
    return model


def found(model):
    """Return a tall model, and the links between its groupings."""
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


@pytest.mark.costly
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


@pytest.mark.costly
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


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "model",
    [
        lambda: two(CLASS, np.random.default_rng(5).integers(0, SCHOOLS, N)),
        lambda: two(CLASS, moved_once()),
        lambda: two(CLASS, (CLASS + 7) % CLASSES),
        lambda: two(CLASS, SCHOOL[CLASS], slope=AGE),
        lambda: two(CLASS, SCHOOL[CLASS], slope=2.0 + np.zeros(N)),
    ],
    ids=["crossed", "but for a row", "the same groups", "slopes of one", "other units"],
)
def test_what_is_not_nested_is_not_found(model):
    assert found(model())[1] == []


@pytest.mark.costly
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


def whitened(model, links=None, **values):
    """An expansion in coordinates of its own, at a point psi that has their constants."""
    tall = TallModel(model)
    expansion = expand(tall)
    links = find_nesting(expansion) if links is None else links
    assert reparameterise(tall, expansion, find_coordinates(tall, tall.names, links))
    psi = start(expansion.coordinates, tall.ravel({**tall.initial_point, **values}))
    psi = fitted(Posterior(expansion).at(psi)).theta
    parts = dict(zip(tall.names, tall.slices, strict=True))

    return psi, parts, Posterior(expansion).at(psi).gradient


def off_standard(model):
    """How far the gradient of classes is from -v where everything else moves, too."""
    psi, parts, gradient = whitened(model)
    rng, off = np.random.default_rng(7), []
    for _ in range(5):
        point = psi.copy()
        point[: parts["c"].stop] += rng.normal(size=parts["c"].stop)
        off.append(np.abs(gradient(point)[parts["c"]] + point[parts["c"]]).max())
    return max(off)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("districts", [DISTRICTS, FEW])
@pytest.mark.parametrize("form", ["centred", "non-centred"])
def test_classes_of_normal_rows_are_standard_normal_whatever_else_moves(form, districts):
    """Given scales, schools, districts and the mean, v is N(0, 1): its gradient is -v."""
    assert off_standard(classes(form, districts)) < 1e-4


@pytest.mark.costly(cases=0)
def test_groups_within_few_follow_the_mean_as_the_model_has_it(monkeypatch):
    """The chain's own mean holds a part of the few groups' effects, which would count twice."""
    tall, links = found(classes(districts=FEW))
    coordinates = find_coordinates(tall, tall.names, links)
    assert {name for name, block in coordinates.blocks.items() if block.joint} == {"d"}
    monkeypatch.setattr(CompiledMap, "_beta", lambda self, i: "psi")
    assert off_standard(classes(districts=FEW)) > 0.1


def with_means(kind, schools=SCHOOLS, districts=DISTRICTS):
    """Groups whose means are parameters: the mean itself, and in it other groups."""
    with pm.Model() as model:
        tau = [pm.HalfNormal(f"tau_{k}", 20) for k in range(3)]
        mu, apart = pm.Normal("mu", 500, 100), kind == "mean in rows"
        school = SCHOOL % schools
        if kind == "added up":
            s = pm.Normal("s", mu, tau[1], shape=schools)
            seen = s[school[CLASS]] + pm.Normal("c", 0, tau[2], shape=CLASSES)[CLASS]
        else:
            d = pm.math.exp(pm.Normal("d", 6.2, 0.1)) if kind == "bent" else 0.0 if apart else mu
            if kind != "bent":
                d = pm.Normal("d", d, tau[0], shape=districts)[DISTRICT % districts]
            s = pm.Normal("s", d, tau[1], shape=schools)
            seen = pm.Normal("c", s[school], tau[2], shape=CLASSES)[CLASS]
        pm.Normal("y", seen + (mu if apart else 0.0), 20.0, observed=outcomes())
    return model


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("kind", "few"),
    [*product(["chained", "mean in rows", "added up"], [False, True]), ("bent", False)],
)
def test_classes_are_so_where_means_are_parameters(kind, few):
    schools = FEW if few and kind == "added up" else SCHOOLS
    model = with_means(kind, schools, FEW if few else DISTRICTS)
    assert off_standard(model) < 1e-4


@pytest.mark.costly(cases=0)
def test_means_of_groups_may_bend_in_dollars():
    """Of what classes follow, schools, no part is left to follow: D is 0, and they are whitened."""
    dollars = np.round(np.random.default_rng(12).lognormal(10.8, 0.35, SCHOOLS))
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 6, 0.5), pm.Normal("slope", 0, 1e-5)
        mean = pm.math.exp(intercept + slope * dollars)
        s = pm.Normal("s", mean, pm.HalfNormal("tau_s", 20), shape=SCHOOLS)
        c = pm.Normal("c", s[SCHOOL], pm.HalfNormal("tau_c", 20), shape=CLASSES)
        pm.Normal("y", c[CLASS], 20.0, observed=outcomes())
    tall = TallModel(model)
    expansion = expand(tall)
    assert reparameterise(tall, expansion, find_coordinates(tall, tall.names))
    coordinates = expansion.coordinates
    psi = start(coordinates, tall.ravel(tall.initial_point))
    psi = fitted(Posterior(expansion).at(psi)).theta
    assert np.all(coordinates.centring(psi)["c"] > 0.01)
    size = {"intercept": 500.0, "slope": 500.0 * dollars.mean()}
    [followed] = coordinates.slant(psi, "c")
    names = [name for name in tall.names if name in size]
    assert np.abs(followed / [size[name] for name in names]).max() < 1e-4


@pytest.mark.costly(cases=0)
def test_classes_see_the_part_of_few_groups_that_they_are_not_in(monkeypatch):
    """Of few products, crossed with few districts, the mean holds the effects' mean.

    Products are about as many in each class: classes are nearly standard normal.
    """
    kind = np.random.default_rng(11).integers(0, 3, N)
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100) + effects("p", 3, 20)[kind]
        eta += effects("d", FEW, 20)[DISTRICT[SCHOOL[CLASS]] % FEW]
        eta += effects("c", CLASSES, 20)[CLASS]
        pm.Normal("y", eta, 20.0, observed=outcomes())
    assert off_standard(model) < 0.5
    own = CompiledMap.__init__

    def below_all(self, *arguments):
        own(self, *arguments)
        self._sets = [frozenset(self._joint)]
        self._above = [self._sets[0] if above else above for above in self._above]

    monkeypatch.setattr(CompiledMap, "__init__", below_all)
    assert off_standard(model) > 1


@pytest.mark.costly
def test_of_two_crossed_groupings_within_a_larger_one_the_smaller_follows_it():
    """Teachers and rooms of schools; rooms are within wings, too."""
    rng = np.random.default_rng(10)
    school = np.sort(rng.integers(0, 20, N))
    teacher, room = 3 * school + rng.integers(0, 3, N), 4 * school + rng.integers(0, 4, N)
    wing = rng.permutation(np.arange(80) % 30)[room]
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100)
        for name, index in (("s", school), ("t", teacher), ("r", room), ("w", wing)):
            eta += effects(name, int(index.max()) + 1, 20)[index]
        pm.Normal("y", eta, 20.0, observed=outcomes())
    tall, links = found(model)
    blocks = find_coordinates(tall, tall.names, links).blocks
    above = {name: block.parents & blocks.keys() for name, block in blocks.items()}
    assert above == {"s": set(), "w": set(), "t": {"s"}, "r": {"w"}}


@pytest.mark.costly
def test_few_groups_within_fewer_are_no_joint_unit():
    school = SCHOOL[CLASS] % 12
    tall, links = found(two(school, school % 4))
    blocks = find_coordinates(tall, tall.names, links).blocks
    assert {name: block.joint for name, block in blocks.items()} == {"a": False, "b": True}
    assert "b" in blocks["a"].parents


@pytest.mark.costly
def test_without_links_they_are_not():
    psi, parts, gradient = whitened(classes(), links=[])
    point = psi.copy()
    point[parts["s"]] += np.random.default_rng(7).normal(size=SCHOOLS)
    assert np.abs(gradient(point)[parts["c"]] + point[parts["c"]]).max() > 0.1


def precisions(names):
    """Eigenvalues of the precision where the small scale is two standard deviations off.

    Of a grouping with a large scale beside one with a small one, in the metric of the reference.
    """
    rng = np.random.default_rng(8)
    groups = {"large": rng.integers(0, 20, N), "small": rng.integers(0, 90, N)}
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100)
        for name in names:
            eta += effects(name, int(groups[name].max()) + 1, 20)[groups[name]]
        y = outcomes(
            rng.normal(0, 8, 20)[groups["large"]], rng.normal(0, 0.2, 90)[groups["small"]], noise=4
        )
        pm.Normal("y", eta, 4.0, observed=y)
    scales = {"tau_large_log__": np.log(8.0), "tau_small_log__": np.array(-1.0)}
    psi, parts, gradient = whitened(model, **scales)
    [place] = np.r_[parts["tau_small_log__"]]
    active = np.setdiff1d(np.arange(max(part.stop for part in parts.values())), place)

    def precision(z):
        columns = np.empty((len(active), len(active)))
        for k, i in enumerate(active):
            points = np.array([psi, psi])
            points[:, place] += z
            points[:, i] += -1e-4, 1e-4
            back, forth = (gradient(point)[active] for point in points)
            columns[:, k] = (back - forth) / 2e-4
        return 0.5 * (columns + columns.T)

    root = np.linalg.cholesky(np.linalg.inv(precision(0.0)))
    return [np.linalg.eigvalsh(root.T @ precision(z) @ root) for z in (-2.0, 2.0)]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("names", [("large", "small"), ("small", "large")])
def test_of_crossed_groupings_those_that_rows_tell_best_follow_the_mean(names):
    values = np.array(precisions(names))
    assert values.min() > 0.7
    assert values.max() < 1.4


@pytest.mark.costly
def test_in_another_order_the_mean_is_a_funnel(monkeypatch):
    def small_first(coordinates, weights):
        return sorted(coordinates.blocks, reverse=True)

    monkeypatch.setattr("pymc_subsample.coordinates.fit._order", small_first)
    assert np.max(precisions(["large", "small"])) > 3


@pytest.mark.costly
def test_groups_with_levels_of_no_row_are_no_parents_of_their_own():
    """Schools and classes of equally many levels are one block."""
    with pm.Model() as model:
        eta = pm.Normal("mu", 500, 100) + effects("s", CLASSES, 20)[SCHOOL[CLASS]]
        eta += effects("c", CLASSES, 20)[CLASS]
        pm.Normal("y", eta, 20.0, observed=outcomes())
    tall = TallModel(model)
    expansion = expand(tall)
    coordinates = find_coordinates(tall, tall.names, find_nesting(expansion))
    assert [block.components for block in coordinates.blocks.values()] == [2]
    assert reparameterise(tall, expansion, coordinates)


@pytest.mark.costly(cases=0)
def test_intercepts_and_slopes_follow_those_of_the_larger_group():
    with pm.Model() as model:
        mean = pm.Normal("mu", 500, 100)
        slope = pm.Normal("slope", 0, 10)
        for name, size, index in [("s", SCHOOLS, SCHOOL[CLASS]), ("c", CLASSES, CLASS)]:
            mean += effects(name, size, 20)[index]
            slope += effects(f"{name}_age", size, 5)[index]
        pm.Normal("y", mean + slope * AGE, 20.0, observed=outcomes())
    psi, parts, gradient = whitened(model)
    point = psi.copy()
    point[: parts["c_age"].stop] += np.random.default_rng(9).normal(size=parts["c_age"].stop)
    for name in ("c", "c_age"):
        np.testing.assert_allclose(gradient(point)[parts[name]], -point[parts[name]], atol=1e-3)


def test_a_grouping_of_another_step_is_followed_by_none():
    tall, links = found(classes())
    coordinates = find_coordinates(tall, ["tau_c_log__", "c"], links)
    assert coordinates.blocks["c"].parents == {"tau_c_log__"}


@pytest.mark.costly
def test_many_small_groups_are_not_taken_for_nested(monkeypatch):
    """Of rows that are sorted by group, evenly spread ones see each group once."""
    monkeypatch.setattr(nesting, "_FEW", 500)
    monkeypatch.setattr(nesting, "_MOST", 1_000)
    user = np.repeat(np.arange(N // 6), 6)
    assert found(two(user, np.random.default_rng(5).integers(0, SCHOOLS, N)))[1] == []


@pytest.mark.costly
def test_nodes_of_a_tree_follow_no_effect_of_their_own_variable():
    parent = np.r_[np.zeros(30, dtype=int), RNG.integers(0, 30, 150)]
    node = RNG.integers(30, 180, N)
    with pm.Model() as model:
        e = effects("e", 180, 20)
        pm.Normal(
            "y", pm.Normal("mu", 500, 100) + e[node] + e[parent[node]], 20.0, observed=outcomes()
        )
    tall = TallModel(model)
    expansion = expand(tall)
    coordinates = find_coordinates(tall, tall.names, find_nesting(expansion))
    assert coordinates.blocks["e"].parents == {"tau_e_log__"}
    assert reparameterise(tall, expansion, coordinates)


def in_schools(form, schools):
    """Classes of schools, and what is known of the posterior: means and sds by name."""
    of = SCHOOL % schools
    school = of[CLASS]
    rng = np.random.default_rng(3)
    y = outcomes(rng.normal(0, 5, schools)[school], rng.normal(0, 8, CLASSES)[CLASS])
    with pm.Model() as model:
        effect = effects("s", schools, 20, form)
        pm.Deterministic("school", effect)
        eta = pm.Normal("mu", 500, 100) + effect[school] + effects("c", CLASSES, 20, form)[CLASS]
        pm.Normal("y", eta, 20.0, observed=y)
    sizes = np.bincount(CLASS)
    means = np.bincount(CLASS, y) / sizes - 500
    same = (of[:, None] == of).astype(float)
    # Of scales, mu and the first school's effect, by a grid over the scales.
    grid = np.geomspace(0.05, 40, 80), np.geomspace(4, 14, 40)
    logp, moments = [], []
    for s, c in product(*grid):
        cov = s**2 * same + 100**2 + np.diag(c**2 + 400 / sizes)
        root = np.linalg.cholesky(cov)
        with_mu, with_school = np.full(CLASSES, 100.0**2), s**2 * (of == 0)
        z = np.linalg.solve(root, np.column_stack([means, with_mu, with_school]))
        height = -0.5 * z[:, 0] @ z[:, 0] - np.log(np.diag(root)).sum() - (s**2 + c**2) / 800
        logp.append(height + np.log(s * c))  # the grid is one of logarithms
        mu, first = z[:, 1] @ z[:, 0], z[:, 2] @ z[:, 0]
        variances = 100**2 - z[:, 1] @ z[:, 1], s**2 - z[:, 2] @ z[:, 2]
        moments.append([s, c, mu, first, s**2, c**2, mu**2 + variances[0], first**2 + variances[1]])
    weights = np.exp(np.array(logp) - max(logp))
    mean, square = (weights @ np.array(moments) / weights.sum()).reshape(2, 4)
    return model, mean + [0, 0, 500, 0], np.sqrt(square - mean**2)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("schools", [SCHOOLS, FEW])
@pytest.mark.parametrize("form", ["centred", "non-centred"])
def test_posterior_is_the_exact_one(form, schools):
    model, mean, sd = in_schools(form, schools)
    with model:
        step = pms.HMCECS()
        assert any("s" in b.parents for b in step.expansion.effects.blocks.values())
        idata = pm.sample(2_000, tune=1_000, chains=2, step=step, random_seed=1, **QUIET)
    post = idata.posterior
    draws = [post[name].values for name in ("tau_s", "tau_c", "mu")] + [
        post["school"].values[..., 0]
    ]
    for x, m, s in zip(draws, mean, sd, strict=True):
        assert_moments(x, m, s)
