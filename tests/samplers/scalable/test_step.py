"""`ScalableMH`: bounds that hold, decisions that are exact, and a step like the others."""

import logging
import pickle
from functools import cache
from itertools import pairwise, product
from types import SimpleNamespace

import numba
import numpy as np
import pymc as pm
import pytest
from chains import assert_moments, assert_same, chain, round_trip, sample
from exact_cases import logistic, normal, poisson
from models import MODELS
from scipy.special import log_expit
from scipy.stats import norm
from scipy.stats import poisson as count

import pymc_subsample as pms
from pymc_subsample.bounds import strata
from pymc_subsample.bounds.kernel import alias_table, cubic_sum
from pymc_subsample.bounds.remainders import bound_rows
from pymc_subsample.compiled.functions import address_of, generator_at
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.model import ALONE, functions
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.scalable import deciding
from pymc_subsample.samplers.scalable import kernel as kernel
from pymc_subsample.samplers.scalable.checks import ProposalRecord, check_proposals
from pymc_subsample.samplers.scalable.forecast import _accepted, exact_rows, forecast, underrated
from pymc_subsample.samplers.scalable.kernel import FACTORISED, INFO, MH_SS, ROW_FUNCTIONS

SLOW = pytest.mark.slow
# Error rate of a test, in standard errors of a normal estimate.
ALPHA = 1e-5
SIGMAS = norm.isf(ALPHA / 2)
FORMS = {"factorised": FACTORISED, "mh-ss": MH_SS}


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


CASES = {"logistic": logistic, "poisson": poisson, "normal": normal}


@pytest.fixture(scope="module")
def cases():
    return cache(lambda name: CASES[name]())


# Decisions, on six rows. With bounds of a few times what they bound, mistakes show.

_POINTS = np.array([[-0.3, 0.5], [0.9, -0.4], [0.2, 1.1], [-0.9, -0.3]])


@pytest.fixture(scope="module", params=[2, 3])
def six(request):
    """Return six rows and their posterior, written out in NumPy, for either order."""
    rng = np.random.default_rng(3)
    x, y = 1.3 * rng.normal(size=6), np.array([0, 1, 1, 0, 1, 0])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * x, observed=y)
    design = np.stack([np.ones(6), x], axis=1)

    def rows(b):
        return log_expit((2 * y - 1) * (design @ b))

    second = expand(TallModel(model), 2)
    expansion = second if request.param == 2 else second.third()
    at = reference_at(second, np.array([0.1, 0.2]))
    p = 1 / (1 + np.exp(-design @ at.theta))
    third = -p * (1 - p) * (1 - 2 * p) / 6 * (request.param == 3)
    slope = design.T @ (y - p)
    curvature = -(design.T * (p * (1 - p))) @ design

    def surrogate(b):
        shift = b - at.theta
        return norm.logpdf(b).sum() + slope @ shift + shift @ curvature @ shift / 2

    return SimpleNamespace(
        expansion=expansion,
        second=second,
        reference=at,
        remainder=lambda b: (
            rows(b) - rows(at.theta) - (y - p) * (design @ (b - at.theta))
            + p * (1 - p) / 2 * (design @ (b - at.theta)) ** 2
            - third * (design @ (b - at.theta)) ** 3
        ),
        posterior=lambda b: norm.logpdf(b).sum() + rows(b).sum(),
        surrogate=surrogate,
        power=request.param + 1,
        known=lambda b, c: np.sum(
            third * ((design @ (c - at.theta)) ** 3 - (design @ (b - at.theta)) ** 3)
        ),
        change=lambda b, c: (
            rows(c) - rows(b)
            - third * ((design @ (c - at.theta)) ** 3 - (design @ (b - at.theta)) ** 3)
            - [(x @ (slope_of @ (c - b)))
               for x, slope_of in zip(design, _slopes(design, y, at.theta, b, c), strict=True)]
        ),
    )  # fmt: skip


def _slopes(design, y, center, b, c):
    """What times (c - b) is the change of a row's control variate, as matrices."""
    p = 1 / (1 + np.exp(-design @ center))
    for x, k, q in zip(design, y, p, strict=True):
        middle = x @ ((b + c) / 2 - center)
        yield ((k - q) - q * (1 - q) * middle) * np.eye(2)


def bounds_of(six, form="global", scale=1.0):
    # A narrow metric: no row seems worth reading always. The bounds of a move stay what they are.
    points = np.random.default_rng(0).normal(size=(500, 2)) @ np.diag([0.25, 0.2])
    found = bound_rows(six.expansion, six.reference, points + six.reference.center, form)
    table = found.table
    assert not len(table.always)
    return table._replace(bound=(scale * table.bound).astype("f4"), total=scale * table.total)


row_functions = functions(ROW_FUNCTIONS)


@numba.njit
def decisions(generator, model, sums, bounds, rule, phi, new_phi, times, info):
    """How many of some decisions on the same proposal accept it."""
    rng = generator_at(generator)
    anchor, left, gather = row_functions(model.functions)
    reader = kernel.ThinnedReader(
        anchor, left, gather, model.columns, sums.center, model.width, rule.unit
    )
    cubes = bounds.elements, bounds.metric, bounds.cubes
    known = cubic_sum(*cubes, new_phi, sums.center) - cubic_sum(*cubes, phi, sums.center)
    known *= rule.unit
    total = 0
    for _ in range(times):
        total += kernel.accept(rng, reader, bounds, rule, phi, new_phi, known, info)
    return total


def accepted(six, table, one, other, form, intensity=1.0, times=200_000, seed=1):
    """Share of accepted proposals, its standard error, and what was read."""
    rng, rule = np.random.default_rng(seed), kernel.RowDecision(form, intensity, 1.0)
    model, sums = six.expansion.model(*ROW_FUNCTIONS), six.reference.sums(2)
    info = np.zeros(len(INFO))
    info[INFO.index("exceeded")] = -1
    share = decisions(address_of(rng), model, sums, table, rule, one, other, times, info) / times
    error = np.sqrt(max(share * (1 - share), 1 / times) / times)
    return share, error, dict(zip(INFO, info, strict=True))


def enumerated(six, table, one, other, form, intensity=1.0, most=10):
    """The same by summing over how often each of six rows is kept."""
    delta, known = np.array(six.change(one, other)), six.known(one, other)
    if form == FACTORISED:
        return float(np.exp(min(known, 0.0) - np.maximum(-delta, 0).sum()))
    distance = [np.linalg.norm(table.metric[0] @ (b - six.reference.center)) for b in (one, other)]
    most_of = np.empty(6)
    powers = distance[0] ** six.power + distance[1] ** six.power
    most_of[table.order] = table.bound * powers * intensity
    rate = most_of - np.maximum(delta, 0)
    back = most_of - np.maximum(-delta, 0)
    counts = np.array(list(product(range(most), repeat=6)))
    probability = count.pmf(counts, rate).prod(axis=1)
    with np.errstate(divide="ignore"):
        ratio = np.exp(known + counts @ np.log(back / rate))
    return float(probability @ np.minimum(1.0, ratio))


PAIRS = [(0, 1), (1, 2), (2, 3), (0, 3)]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("intensity", [1.0, 2.0])
@pytest.mark.parametrize("form", FORMS)
def test_decisions_are_those_of_all_ways_to_draw_six_rows(six, form, intensity):
    table = bounds_of(six)
    for i, j in PAIRS:
        one, other = _POINTS[i], _POINTS[j]
        share, error, info = accepted(six, table, one, other, FORMS[form], intensity)
        expected = enumerated(six, table, one, other, FORMS[form], intensity)
        assert info["exceeded"] < 0
        assert info["rows_passed"] == 0
        assert abs(share - expected) < SIGMAS * error


def flows(six, table, form, times=400_000, nearer=1.0):
    """Standardised differences between the flows from one point to another and back."""
    found = []
    for i, j in PAIRS:
        one, other = nearer * _POINTS[i], nearer * _POINTS[j]
        there, back = (
            accepted(six, table, *pair, form, 1.0, times, seed)
            for seed, pair in enumerate([(one, other), (other, one)])
        )
        # min(1, surrogate ratio) of the surrogate's own test, from a symmetric proposal.
        step = six.surrogate(other) - six.surrogate(one)
        weights = np.exp([six.posterior(one), six.posterior(other)])
        up, down = min(1.0, np.exp(step)), min(1.0, np.exp(-step))
        gap = weights[0] * up * there[0] - weights[1] * down * back[0]
        found.append(gap / np.hypot(weights[0] * up * there[1], weights[1] * down * back[1]))
    return np.array(found)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("kind", "nearer"), [("global", 1.0), ("local", 0.5), ("auto", 1.5)])
@pytest.mark.parametrize("form", FORMS)
def test_posterior_is_left_invariant(six, form, kind, nearer):
    """Of transitions between some points, in detailed balance with the posterior itself."""
    found = flows(six, bounds_of(six, kind), FORMS[form], nearer=nearer)
    assert np.abs(found).max() < norm.isf(ALPHA / 2 / len(PAIRS))


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", FORMS)
def test_missing_terms_of_order_3_are_noticed(six, form):
    """Where rows decide on what order 3 leaves, the rest has to come from the sums."""
    if six.power == 3:
        assert not bounds_of(six).cubes.size
        return
    table = bounds_of(six)
    wrong = table._replace(cubes=np.zeros_like(table.cubes))
    assert np.abs(flows(six, wrong, FORMS[form])).max() > 2 * SIGMAS


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", FORMS)
def test_wrong_rate_of_thinning_is_noticed(six, form):
    """Half as many candidates as the bounds ask for."""
    table = bounds_of(six)
    wrong = table._replace(total=table.total / 2)
    assert np.abs(flows(six, wrong, FORMS[form])).max() > 2 * SIGMAS


@pytest.mark.costly(cases=0)
def test_mh_ss_accepts_more_than_factorised_and_less_than_all_rows(six):
    table = bounds_of(six)
    for i, j in PAIRS[1:3]:
        one, other = _POINTS[i], _POINTS[j]
        known = min(1.0, np.exp(six.known(one, other) + np.sum(six.change(one, other))))
        shares = [enumerated(six, table, one, other, form) for form in FORMS.values()]
        more = enumerated(six, table, one, other, MH_SS, intensity=2.0)
        assert shares[0] < shares[1] < more < known + 1e-12


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("form", FORMS)
def test_strata_with_rates_beyond_their_rows_are_read_whole(six, form):
    table = bounds_of(six, scale=1e3)
    one, other = _POINTS[:2]
    share, error, info = accepted(six, table, one, other, FORMS[form], times=20_000)
    assert info["rows_passed"] == 6 * 20_000
    assert info["rows_drawn"] == 0
    expected = min(1.0, np.exp(six.known(one, other) + np.sum(six.change(one, other))))
    assert abs(share - expected) < SIGMAS * error


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_always_read_are_decided_exactly(six, form):
    table = bounds_of(six)
    order = np.arange(2, dtype=np.int32)
    some = table._replace(
        always=np.arange(2, 6, dtype=np.int32), order=order, start=np.array([0, 2]),
        threshold=np.ones(2, dtype="f4"), alias=order,
        bound=np.full(2, table.bound.max()), total=np.array([2.0 * table.bound.max()]),
    )  # fmt: skip
    assert np.abs(flows(six, some, FORMS[form], times=100_000)).max() < norm.isf(ALPHA / 8)


def with_exact_rows(six, exact):
    """Return the same six rows, of which the surrogate reads some."""
    second = six.second
    rows = second.take(exact)
    second.anchor(six.reference.center, rows)

    def left(b):
        found, grad = np.empty(len(exact)), np.zeros(2)
        second.residual(b, rows, six.reference.center, ALONE, 1.0, 0.0, found, grad)
        return found.sum()

    return SimpleNamespace(**vars(six) | {"surrogate": lambda b: six.surrogate(b) + left(b)})


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("form", FORMS)
def test_rows_that_the_surrogate_reads_decide_nothing(six, form):
    """In detailed balance with the posterior, and not where they decide as well."""
    exact = np.array([0, 3, 4])
    points = np.random.default_rng(0).normal(size=(500, 2)) @ np.diag([0.25, 0.2])
    found = bound_rows(six.expansion, six.reference, points + six.reference.center, exact=exact)
    assert sorted([*found.table.order, *found.table.always]) == [1, 2, 5]
    nearer = with_exact_rows(six, exact)
    worst = np.abs(flows(nearer, found.table, FORMS[form])).max()
    assert worst < norm.isf(ALPHA / 2 / len(PAIRS))
    assert np.abs(flows(nearer, bounds_of(six), FORMS[form])).max() > 2 * SIGMAS
    far = np.array([[1.5, -1.0], [0.3, 2.0], [-1.0, 0.4]]) + six.reference.center
    known = [found.known(b, six.reference.center) for b in far]
    left = [np.delete(six.remainder(b), exact).sum() for b in far]
    shares = forecast(six.expansion, six.reference, found, far)
    whole = forecast(
        six.expansion, six.reference, bound_rows(six.expansion, six.reference, far), far
    )
    assert shares.excess <= 1.0
    total = np.array(known) + left
    starts = np.exp(np.concatenate([total[:-1], total[1:]]))
    ends = np.exp(np.concatenate([total[1:], total[:-1]]))
    np.testing.assert_allclose(
        shares.accepted[2], starts @ np.minimum(1, ends / starts) / starts.sum(), rtol=1e-6
    )
    assert whole.accepted[2] != pytest.approx(shares.accepted[2], rel=1e-3)


@pytest.mark.costly
def test_row_beyond_its_bound_stops_the_run(six):
    table = bounds_of(six)
    small = table._replace(bound=(table.bound / 1e4).astype("f4"))
    *_, info = accepted(six, small, _POINTS[0], _POINTS[2], MH_SS, times=2_000)
    assert 0 <= info["exceeded"] < 6


# Alias tables


@pytest.mark.parametrize("seed", range(3))
def test_alias_tables_draw_in_proportion(seed):
    rng = np.random.default_rng(seed)
    weights = rng.pareto(0.7, size=1_000) + 1e-3
    weights /= weights.mean()
    threshold, alias = np.empty(1_000, dtype="f4"), np.empty(1_000, dtype="i4")
    alias_table(weights, threshold, alias)
    share = threshold.astype(float)
    np.add.at(share, alias, 1.0 - threshold)
    np.testing.assert_allclose(share, weights, rtol=1e-4, atol=1e-5)


# Bounds


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_forecast_of_what_rows_accept(six, scale):
    """One by one, or read together, or some always."""
    points = np.random.default_rng(0).normal(size=(500, 2)) @ np.diag([1.0, 0.8]) * scale
    found = bound_rows(six.expansion, six.reference, points + six.reference.center, "global")
    assert (len(found.table.always) > 0) == (scale == 1.0)
    for one, other in pairwise(np.concatenate([_POINTS, 3.0 * _POINTS])):
        pair = np.array([one, other])
        predicted = forecast(six.expansion, six.reference, found, pair).accepted[FACTORISED]
        there, back = (
            accepted(six, found.table, *points, FACTORISED, times=20_000)
            for points in (pair, pair[::-1])
        )
        # A chain is at either as often as the posterior is larger than the surrogate there.
        known = six.known(one, other) + np.sum(six.change(one, other))
        share = np.array([1.0, np.exp(known)]) / (1.0 + np.exp(known))
        error = np.hypot(share[0] * there[1], share[1] * back[1])
        assert abs(share @ [there[0], back[0]] - predicted) < 5 * error + 1e-9


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.85])
def test_forecast_counts_starts_by_the_posterior(spread):
    """Independent proposals from a surrogate whose log-ratio is normal: 2 Phi(-s / sqrt 2)."""
    ratios = spread * np.random.default_rng(2).normal(size=20_001)
    none = np.zeros((2, 20_000))
    found = _accepted(ratios, np.diff(ratios), none, none[0])
    expected = 2 * norm.cdf(-spread / np.sqrt(2))
    np.testing.assert_allclose(found, expected, atol=5 * 0.5 * np.exp(spread**2) / np.sqrt(20_000))


def spread(expansion, at, scale, n, seed=0):
    rng = np.random.default_rng(seed)
    return at.center + scale * rng.normal(size=(n, len(at.center)))


# Of rows with one to three predictors, with and without groups, and two kinds of rows.
THIRDS = (
    "bernoulli_logit", "effects_crossed", "normal_heteroscedastic", "slopes_centred",
    "weibull_censored_potential",
)  # fmt: skip


def total_changes(second, third, at, phi):
    """Sums over rows of what order 2 and order 3 leave between the reference and phi."""
    sums = []
    for expansion in (second, third):
        total = 0.0
        for rows in expansion.chunks():
            expansion.anchor(at.center, rows)
            change = np.empty(rows.shape[1])
            expansion.change(at.center, phi, at.center, rows, change)
            total += change.sum()
        sums.append(total)
    return sums


@pytest.mark.costly(cases=0)
def test_terms_of_order_3_where_rows_reject_without_them(monkeypatch):
    """Decisions here read two rows, and accept 92% of the proposals."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5))
    with pm.Model() as model:
        eta = X @ pm.Normal("b", 0, 1, shape=5)
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(500) < 1 / (1 + np.exp(-X[:, 0])))
    assert pms.ScalableMH(model=model).control_variate_order == 2
    monkeypatch.setattr(deciding, "_ACCEPTED", 0.94)
    step = pms.ScalableMH(model=model)
    assert step.control_variate_order == 3
    assert step.predicted_acceptance > 0.94


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", THIRDS)
def test_terms_of_order_3_are_those_of_the_rows(tall_model, name):
    """Their sum is what the remainders of order 2 and 3 differ by, and scales as a cube."""
    tall = tall_model(name)
    second = expand(tall, 2)
    third = second.third()
    at = reference_at(second, tall.ravel(tall.initial_point))
    table = bound_rows(third, at, spread(second, at, 0.03, 500))
    for phi in spread(second, at, 0.05, 4):
        less, least = total_changes(second, third, at, phi)
        known = table.known(phi, at.center)
        np.testing.assert_allclose(less - least, known, rtol=1e-8, atol=1e-9)
        twice = table.known(2 * phi - at.center, at.center)
        np.testing.assert_allclose(twice, 8 * known, rtol=1e-9)


@pytest.mark.costly
def test_terms_of_order_3_of_columns_far_from_zero():
    """Terms of the slope and of the intercept are a million times as large as their sum."""
    rng, far = np.random.default_rng(8), 1e6
    x, y = rng.normal(size=200), rng.integers(0, 2, size=200)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1e7), pm.Normal("b", 0, 10)
        pm.Bernoulli("y", logit_p=a + b * (far + x), observed=y)
    second = expand(TallModel(model), 2)
    third = second.third()
    at = reference_at(second, np.array([-0.5 * far, 0.5]))
    level, slope = 0.2 * rng.normal(size=(2, 500))
    theta = at.theta + np.column_stack([level - far * slope, slope])
    points = np.array([second.parameters(t)[0] for t in theta])
    table = bound_rows(third, at, points)
    for phi in points[:4]:
        less, least = total_changes(second, third, at, phi)
        np.testing.assert_allclose(less - least, table.known(phi, at.center), atol=1e-6)


@pytest.mark.costly(cases=0)
def test_third_derivatives_that_are_not_finite():
    """Of a few rows, at the reference that is given: these are always read."""
    rng = np.random.default_rng(5)
    x, y, rough = rng.normal(size=100), rng.normal(size=100), np.arange(100) % 10 == 0
    with pm.Model() as model:
        eta = pm.Normal("b") * x
        penalty = pm.math.switch(rough, pm.math.abs(eta) ** 2.5, 0.0)
        pm.Potential("y", -0.5 * (y - eta) ** 2 - penalty)
    step = pms.ScalableMH(model=model, reference={"b": 0.0}, control_variate_order=3)
    np.testing.assert_array_equal(step.bounds.table.always, np.flatnonzero(rough))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", ["negative_binomial", "categorical_softmax"])
def test_models_without_terms_of_order_3(tall_model, name):
    """Whose third derivatives numba has no code for, or are many."""
    assert expand(tall_model(name), 2).third() is None
    with pytest.raises(TallModelError, match="control_variate_order=3 needs rows of 'y'"):
        pms.ScalableMH(model=tall_model(name).model, control_variate_order=3)


# Without few linear predictors.
REFUSED = {"row_softmax_and_norm", "two_layer_network"}
# Of whose functions of parameters nothing encloses the values: Bessel's.
UNBOUNDED = {"von_mises"}
# Impossible rows, which the set-up finds.
IMPOSSIBLE = {"mixture_of_supports"}
_FEW = {
    "bambi_categorical", "bernoulli_probit", "censored_row_bounds", "effects_crossed",
    "gamma_mu_sigma", "hurdle_poisson", "normal_mixture", "ordered_logistic",
}  # fmt: skip
_FEW_THIRDS = {"bernoulli_probit", "effects_crossed", "hurdle_poisson", "poisson_offset"}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        pytest.param(name, order, marks=[] if name in few else [SLOW])
        for order, few in ((2, _FEW), (3, _FEW_THIRDS))
        for name in sorted(MODELS)
    ],
)
def test_no_row_of_any_model_exceeds_its_bound(tall_model, name, order):
    """Or they are refused in words; at points from the posterior's bulk to far out."""
    tall = tall_model(name)
    second = expansion = expand(tall, 2)
    if order == 3 and (expansion := second.third()) is None:
        return
    if not expansion.n_predictors:
        assert name in REFUSED
        return
    at = reference_at(second, tall.ravel(tall.initial_point))
    points = spread(expansion, at, 0.03, 500)
    try:
        bounds = bound_rows(expansion, at, points)
    except TallModelError:
        assert name in REFUSED | UNBOUNDED
        return
    assert name not in REFUSED | UNBOUNDED
    far = [points[:3], spread(expansion, at, 0.1, 3), spread(expansion, at, 0.5, 3)]
    excess = forecast(expansion, at, bounds, np.concatenate(far)).excess
    assert (excess <= 1.0) == (name not in IMPOSSIBLE)


@pytest.mark.costly(cases=0)
def test_bounds_beside_remainders_of_logistic_rows(cases):
    """The tightest a row's bound can be is its third derivative's size along its own direction."""
    case = cases("logistic")
    tall = TallModel(case.model)
    expansion = expand(tall, 2)
    at = reference_at(expansion, np.array(case.mean))
    points = at.center + np.array(case.sd) * np.random.default_rng(1).normal(size=(2_000, 2))
    bounds = bound_rows(expansion, at, points, "global")
    design = np.concatenate([expansion.sums.design(rows) for rows in expansion.chunks()], axis=1)
    cov = np.cov(points.T)
    expected = np.sqrt(3) / 18 / 6 * np.einsum("an,ab,bn->n", design, cov, design) ** 1.5
    found = np.full(600, np.nan)
    found[bounds.table.order] = bounds.table.bound
    np.testing.assert_allclose(found, expected, rtol=5e-3)


def test_groups_are_strata_with_metrics_of_their_own():
    rng = np.random.default_rng(4)
    g = rng.permutation(np.repeat(np.arange(5), [3, 30, 300, 1_000, 2_000]))
    y = rng.binomial(1, 0.4, size=len(g))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        a = pm.Normal("a", 0, 1, shape=5)
        pm.Bernoulli("y", logit_p=mu + a[g], observed=y)
    expansion = expand(TallModel(model), 2)
    at = reference_at(expansion, np.zeros(6))
    [common] = expansion.sums.common
    sd = np.insert(2 / np.sqrt([3, 30, 300, 1_000, 2_000]), common, 0.5)
    points = sd * np.random.default_rng(5).normal(size=(4_000, 6))
    table = bound_rows(expansion, at, points).table
    assert table.elements.shape == (5, 2)
    sizes = dict(zip(table.elements[:, 1], np.diff(table.start), strict=True))
    assert [sizes[k] for k in sorted(sizes)][2:] == [300, 1_000, 2_000]
    distances = bound_rows(expansion, at, points).distances(points[0], at.center)
    squares = points[0] ** 2 / sd**2
    expected = np.sqrt(squares[common] + np.delete(squares, common))
    np.testing.assert_allclose(distances, expected, rtol=0.1)


# The step


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("acceptance", "order"), [("factorised", 2), ("mh-ss", 3)])
@pytest.mark.parametrize("name", CASES)
def test_posterior_is_exact(cases, name, acceptance, order):
    case = cases(name)
    with case.model:
        step = pms.ScalableMH(acceptance=acceptance, control_variate_order=order)
        idata = sample(step, case.model, draws=2_000)
    case.assert_posterior(idata)
    assert pms.report(idata).status == "pass"


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("acceptance", "order"), [("factorised", 2), ("mh-ss", 3)])
@pytest.mark.parametrize("name", CASES)
def test_posterior_is_exact_where_the_surrogate_reads_rows(
    cases, name, acceptance, order, monkeypatch
):
    """Some rows of each outcome, so that what is left out or counted twice would show."""
    case = cases(name)
    rows = np.r_[0:40, 200:260, 590:600]
    monkeypatch.setattr(deciding, "_ACCEPTED", 1.1)
    monkeypatch.setattr(deciding, "exact_rows", lambda *args, **kwargs: rows)
    step = pms.ScalableMH(model=case.model, acceptance=acceptance, control_variate_order=order)
    np.testing.assert_array_equal(step.bounds.exact, rows)
    idata = sample(step, case.model, draws=2_000)
    case.assert_posterior(idata)
    stats = idata["sample_stats"]
    counted = 3 * stats["rows_read"] + 2 * len(rows) * stats["n_steps"]
    np.testing.assert_allclose(stats["n_evaluations"], counted)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("acceptance", "order"), [("factorised", 2), ("mh-ss", 3)])
def test_rows_of_the_surrogate_are_tempered_as_the_others(acceptance, order, monkeypatch):
    case = logistic()

    def tempered(a, b, *, logp=case.logp):
        prior = norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2)
        return prior + (logp(a, b) - prior) / 3.0

    case.logp = tempered
    monkeypatch.setattr(deciding, "_ACCEPTED", 1.1)
    monkeypatch.setattr(deciding, "exact_rows", lambda *args, **kwargs: np.arange(150, 400))
    given = {"acceptance": acceptance, "control_variate_order": order, "temperature": 3.0}
    step = pms.ScalableMH(model=case.model, **given)
    idata = sample(step, case.model, draws=2_000)
    case.assert_posterior(idata)


def of_small_groups(n_large=20_000):
    """Return a model with forty groups of three rows and four large ones."""
    rng = np.random.default_rng(4)
    g = np.concatenate([np.repeat(np.arange(40), 3), rng.integers(40, 44, n_large)])
    y = rng.random(len(g)) < 1 / (1 + np.exp(-rng.normal(size=44)[g]))
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau", 1), shape=44)
        pm.Bernoulli("y", logit_p=a[g], observed=y)
    return model, 120


@pytest.mark.slow
def test_surrogate_reads_the_rows_of_small_groups(caplog):
    model, few = of_small_groups()
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        step = pms.ScalableMH(model=model)
    rows = step.bounds.exact
    assert few / 2 < np.sum(rows < few) > 0.9 * len(rows)
    assert f"the surrogate reads {len(rows)} rows" in caplog.text
    steps = [pms.ScalableMH(model=model) for _ in range(2)]
    round_trip(*steps, model, 60, 80, 65)
    again = pickle.loads(pickle.dumps(step))
    assert_same(
        chain(step, model.initial_point(), seed=3), chain(again, model.initial_point(), seed=3)
    )


@pytest.mark.costly
@pytest.mark.parametrize("small", [False, True])
def test_rows_for_the_surrogate_are_chosen_by_what_they_cost(small):
    model, few = of_small_groups()
    expansion = expand(TallModel(model), 2)
    at = reference_at(expansion, np.zeros(expansion.theta_size))
    points = np.random.default_rng(0).normal(size=(40, expansion.phi_size))
    points *= np.r_[np.full(40, 1.0 if small else 0.05), np.full(4, 0.01)]
    given = {"temperature": 1.0, "gradients": 8.0, "others": 1e5}
    found = exact_rows(expansion, at, points + at.center, row=15.0, **given)
    assert np.all(found < few)
    assert (len(found) > few / 2) == small
    assert not len(exact_rows(expansion, at, points + at.center, row=1e6, **given))


PROPOSALS = {
    "nuts": "nuts",
    "langevin": pms.proposals.Langevin(),
    "fixed langevin": pms.proposals.Langevin(step_size=0.9, target_accept=0.6),
    "adaptive": pms.proposals.AdaptiveMetropolis(),
    "fixed": pms.proposals.RandomWalk(0.15, covariance=[1.0, 0.5]),
}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", PROPOSALS)
def test_every_proposal_finds_the_posterior(cases, name):
    case = cases("logistic")
    step = pms.ScalableMH(model=case.model, proposal=PROPOSALS[name])
    idata = sample(step, case.model, draws=3_000)
    if "fixed" in name:
        used = set(np.ravel(idata["sample_stats"]["step_size"]))
        assert used == {0.9 if "langevin" in name else 0.15}
    case.assert_posterior(idata)


@pytest.mark.costly
def test_given_reference_far_away_costs_rows_alone(cases):
    case = cases("logistic")
    near = {n: m + 3 * s for n, m, s in zip(case.names, case.mean, case.sd, strict=True)}
    idata = sample(pms.ScalableMH(model=case.model, reference=near), case.model, draws=4_000)
    case.assert_posterior(idata)


@pytest.mark.costly(cases=0)
def test_few_of_many_rows_decide(caplog):
    caplog.set_level(logging.INFO, "pymc.subsample")
    rng = np.random.default_rng(8)
    X = rng.normal(size=(100_000, 5))
    y = rng.binomial(1, 1 / (1 + np.exp(-X @ [0.5, -0.3, 0.2, 0.0, 1.0])))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=5)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=y)
        step = pms.ScalableMH()
    assert step.bounds.per_decision < 1
    assert step.predicted_acceptance > 0.95
    assert "; a proposal reads fewer than one on average (0." in caplog.text
    assert "the rows are predicted to accept 99% of the proposals" in caplog.text
    idata = sample(step, model, draws=500)
    stats = idata["sample_stats"]
    assert float(stats["rows_read"].mean()) < 3 * step.bounds.per_decision + 1
    assert float(stats["rows_accepted"].mean()) > 0.9
    accepted = stats["rows_accepted"].mean("draw").values
    checked = idata["checks"]["value"].sel(check="rows_accepted")
    np.testing.assert_allclose(checked.values.ravel(), accepted)
    assert abs(float(stats["n_evaluations"].mean()) - 3 * float(stats["rows_read"].mean())) < 1e-6


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("at", [5, 40, 65])
def test_state_goes_on_in_another_step(model, at):
    steps = [pms.ScalableMH(model=model) for _ in range(2)]
    round_trip(*steps, model, 60, 80, at)


@pytest.mark.costly(cases=0)
def test_seeds_repeat(model):
    step = pms.ScalableMH(model=model)
    point = model.initial_point()
    assert_same(chain(step, point, seed=3), chain(step, point, seed=3))


def test_violation_names_the_row(model):
    step = pms.ScalableMH(model=model, acceptance="mh-ss", intensity=50.0)
    bounds = step.bounds
    table = bounds.table._replace(
        bound=(bounds.table.bound * 1e-6).astype("f4"), always=np.zeros(0, dtype=np.int32)
    )
    object.__setattr__(bounds, "table", table)
    with pytest.raises(RuntimeError, match=r"row [\d,]+ of 'y' exceeds its bound"):
        chain(step, model.initial_point(), draws=500)


def test_bound_of_the_user_that_is_none(model):
    with pytest.raises(TallModelError, match=r"by bound=1e-05.*exceeded .* times in row"):
        pms.ScalableMH(model=model, bound=1e-5)


def test_bound_of_the_user_that_is_one(cases):
    case = cases("logistic")
    step = pms.ScalableMH(model=case.model, bound=0.0963)
    assert step.bounds.kind == "global"
    idata = sample(step, case.model, draws=2_000)
    case.assert_posterior(idata)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"acceptance": "exact"}, "acceptance must be one of"),
        ({"proposal": "gibbs"}, "proposal must be one of"),
        ({"proposal": pms.proposals.Langevin}, "proposal must be one of"),
        ({"proposal": pms.proposals.Langevin(batch_size=10)}, "reads no rows. Leave it out"),
        ({"proposal": pms.proposals.Langevin(), "target_accept": 0.5}, "Give it to the proposal"),
        ({"proposal": pms.proposals.RandomWalk(1.0, covariance=[1.0] * 7)}, "covariance has shape"),
        ({"bound": "linear"}, "bound must be one of"),
        ({"bound": -1.0}, "bound must be one of"),
        ({"bound": np.nan}, "bound must be one of"),
        ({"intensity": 0.5}, "intensity must be a number from 1 up"),
        ({"control_variate_order": 1}, r"control_variate_order must be one of \(2, 3\)"),
        ({"control_variate_order": True}, "control_variate_order must be one of"),
        ({"control_variate_order": "3"}, "control_variate_order must be one of"),
        ({"surrogate_transitions": 0}, "surrogate_transitions"),
        ({"target_accept": 1.5}, "target_accept"),
    ],
)
def test_arguments_out_of_range(model, given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        pms.ScalableMH(model=model, **given)


def test_models_without_linear_predictors_are_refused():
    with pytest.raises(TallModelError, match="through at most ten linear predictors"):
        pms.ScalableMH(model=MODELS["two_layer_network"](np.random.default_rng(1)))


def test_global_bound_where_there_is_none(cases):
    with pytest.raises(TallModelError, match='bound="global" needs rows of'):
        pms.ScalableMH(model=cases("poisson").model, bound="global")


@pytest.mark.costly(cases=0)
def test_too_many_sets_of_parameters(model, monkeypatch):
    monkeypatch.setattr(strata, "_MOST_CUBES", 3)
    with pytest.raises(TallModelError, match=r"of 2 parameters .* are 4 sums, .* \(at most 3\)"):
        pms.ScalableMH(model=model, control_variate_order=3)
    assert pms.ScalableMH(model=model).control_variate_order == 2
    monkeypatch.setattr(strata, "_MOST_METRICS", 3)
    with pytest.raises(TallModelError, match="1 sets of 2 parameters"):
        pms.ScalableMH(model=model)


# Checks


def record(accepted, runs=(), decisions=1_000):
    found = ProposalRecord(draws=decisions)
    rng = np.random.default_rng(0)
    outcomes = list(rng.random(decisions - sum(runs)) < accepted)
    for run in runs:
        outcomes += [True, *[False] * (run - 1)]
    thetas, accepted = rng.normal(size=(decisions, 2)), np.array(outcomes, dtype=float)
    reported = {
        "diverging": 0.0, "loglik_variance": 0.0, "acceptance_rate": 0.8, "subset_accepted": 1.0,
        "sign": 1.0, "decisions": 1.0, "rows_drawn": 3.0, "rows_passed": 0.0,
        "accepted": 1.0,  # by the surrogate, which is no decision of the rows
    }  # fmt: skip
    infos = {name: np.full(decisions, x) for name, x in reported.items()}
    infos["rows_accepted"] = accepted
    found.add(thetas, infos)
    found.add_decisions(infos)
    return found


def failing(found, share=0.0):
    checks = check_proposals(
        found, active=np.arange(2), n_rows=1_000, underrated=share, temperature=1.0, tune=100
    )
    return {check.rule.name for check in checks if not check.passed}


@pytest.mark.parametrize("accepted", [0.4, 0.6, 0.9, 0.99])
def test_usual_stays_pass(accepted):
    assert failing(record(accepted)) == set()


def test_a_stay_in_the_tails_fails():
    assert failing(record(0.9, runs=[60])) == {"stay"}


def test_proposals_that_rows_reject_warn():
    assert "rows_accepted" in failing(record(0.02))
    assert failing(record(0.2)) == {"rows_accepted"}


@pytest.mark.parametrize(
    ("target", "rate", "told"),
    [
        (0.8, 0.22, True),
        (0.234, 0.22, False),
        (0.234, 0.05, True),
        (0.574, 0.3, False),
        (0.0, 0.01, False),
    ],
)
def test_moves_are_judged_by_the_rate_that_they_are_tuned_to(target, rate, told):
    """Random walks are best where few moves are accepted; given scales are the user's."""
    found = record(0.9)
    found.acceptance = rate * found.done
    checks = check_proposals(
        found, active=np.arange(2), n_rows=1_000, underrated=0.0, temperature=1.0, tune=100,
        target=target,
    )  # fmt: skip
    assert {c.rule.name for c in checks if not c.passed} == ({"acceptance_rate"} if told else set())


@pytest.mark.costly
def test_mass_that_the_surrogate_underrates():
    """Few counts, expanded in their mean, against the same by NumPy."""
    y = np.array([0] * 30 + [1, 2, 1, 3])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        pm.Poisson("y", pm.math.exp(a), observed=y)
    expansion = expand(TallModel(model), 2)
    at = reference_at(expansion, np.array([np.log(y.mean())]))
    [star] = at.center
    points = star * np.exp(np.linspace(-1.5, 1.5, 301))

    def left(mu):
        z = mu - star
        slope, bend = y.sum() / star - len(y), -y.sum() / star**2
        return y.sum() * np.log(mu / star) - len(y) * z - slope * z - bend * z**2 / 2

    beyond = left(points) - np.median(left(points)) > np.log(20)
    assert 0.05 < beyond.mean() < 0.5
    spread = star * np.random.default_rng(0).normal(1.0, 0.2, size=(500, 1))
    for some in (expansion, expansion.third()):
        bounds = bound_rows(some, at, spread, 1.0)
        assert underrated(some, at, bounds, points[:, None]) == beyond.mean()


@pytest.mark.parametrize("share", [0.0, 0.009, 0.011])
def test_underrated_mass_fails(share):
    assert failing(record(0.9), share) == ({"underrated"} if share > 0.01 else set())


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("n", [8, 20])
def test_handfuls_of_counts_are_refused(n):
    """Whose means may be zero within a few standard deviations."""
    y = np.zeros(n, dtype=int)
    y[[2, 6]] = 1, 2
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        pm.Poisson("y", pm.math.exp(a), observed=y)
    with pytest.raises(TallModelError, match="found none near the posterior mode"):
        pms.ScalableMH(model=model)


def kinked(n, at, rows):
    """A slope under known noise, and a few rows with a step up from some value of it on."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    marked = np.zeros(n)
    marked[rows] = 1.0
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5)
        steep = 10.0 * pm.math.maximum(0.0, b - at) * marked
        pm.CustomDist("y", b * x, steep, logp=lambda v, m, s: -0.5 * (v - m) ** 2 - s, observed=y)
    grid = np.linspace(0.8, 1.2, 20_001)
    logp = norm.logpdf(grid, 0, 5) + grid * (x @ y) - grid**2 * (x @ x) / 2
    weight = np.exp(logp - logp.max() - 10.0 * len(rows) * np.maximum(0.0, grid - at))
    weight /= weight.sum()
    mean = weight @ grid
    return model, mean, np.sqrt(weight @ (grid - mean) ** 2)


@pytest.mark.costly(cases=0)
def test_rows_with_kinks_within_reach_are_read_always():
    rows = [3, 700, 1545]
    model, mean, sd = kinked(2_000, 1.02, rows)
    step = pms.ScalableMH(model=model)
    assert set(rows) <= set(step.bounds.table.always)
    idata = sample(step, model, draws=4_000)
    assert_moments(idata["posterior"]["b"], mean, sd)


@pytest.mark.costly(cases=0)
def test_a_kink_far_away_leaves_no_bound_everywhere():
    """One predictor, and a logistic row but for a kink that no grid around the data comes upon."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=500)
    y = rng.integers(0, 2, size=500)

    def bent(value, eta):
        return pm.logp(pm.Bernoulli.dist(logit_p=eta), value) - pm.math.maximum(0.0, eta - 1000.0)

    with pm.Model() as model:
        b = pm.Normal("b", 0, 5)
        pm.CustomDist("y", b * x, logp=bent, observed=y)
    step = pms.ScalableMH(model=model)
    assert step.bounds.kind == "local"
    with pytest.raises(TallModelError, match="bounded everywhere"):
        pms.ScalableMH(model=model, bound="global")
    with pm.Model() as straight:
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 5) * x, observed=y)
    assert pms.ScalableMH(model=straight).bounds.kind == "global"
