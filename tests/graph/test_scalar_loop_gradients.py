"""Log-likelihoods whose second derivatives PyTensor lacks: of special functions, or at all."""

import logging

import numpy as np
import pymc as pm
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from chains import QUIET
from pytensor.scalar.math import Erfcx
from pytensor.tensor.elemwise import Elemwise
from scipy.special import digamma, log_ndtr
from scipy.stats import beta, gamma

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.scalar_loop_gradients import gradients
from pymc_subsample.model import TallModel

N = 300


# Loops of special functions


def derivatives(function, point, order=2, among=None):
    """Return by place the derivatives of a function of vectors, in all of them or some."""
    inputs = [
        pt.tensor(f"x{k}", dtype="float64", shape=(len(point[0]),)) for k in range(len(point))
    ]
    graphs = {(): function(*inputs)}
    for _ in range(order):
        graphs = {
            (*place, k): slope
            for place, graph in graphs.items()
            for k, slope in enumerate(gradients(graph.sum(), inputs, disconnected_inputs="ignore"))
            if among is None or k in among
        }
    found = numpy_function(inputs, list(graphs.values()))(*point)
    return dict(zip(graphs, found, strict=True))


# Points on both sides of where each sum takes another form.
SHAPES, SCALES = np.array([0.4, 1.7, 3.0, 6.0, 0.9]), np.array([2.0, 0.5, 4.0, 1.0, 0.7])
AT = np.array([0.1, 3.0, 2.9, 9.0, 0.6])
SHARES = np.array([0.05, 0.95, 0.4, 0.6, 0.9])
ENOUGH = {"rtol": 1e-7}


@pytest.mark.costly
def test_mixed_derivatives_of_gammainc():
    r"""Of :math:`\partial P / \partial x`, the density, in the shape."""
    expected = gamma.pdf(AT, SHAPES) * (np.log(AT) - digamma(SHAPES))
    for function, sign in ((pt.gammainc, 1), (pt.gammaincc, -1)):
        found = derivatives(function, [SHAPES, AT])
        np.testing.assert_allclose(found[0, 1], sign * expected, **ENOUGH)
        np.testing.assert_allclose(found[1, 0], sign * expected, **ENOUGH)


@pytest.mark.slow
def test_mixed_derivatives_of_betainc():
    density = beta.pdf(SHARES, SHAPES, SCALES)
    both = digamma(SHAPES + SCALES)
    found = derivatives(pt.betainc, [SHAPES, SCALES, SHARES])
    first = density * (np.log(SHARES) - digamma(SHAPES) + both)
    second = density * (np.log1p(-SHARES) - digamma(SCALES) + both)
    np.testing.assert_allclose(found[0, 2], first, **ENOUGH)
    np.testing.assert_allclose(found[1, 2], second, **ENOUGH)
    np.testing.assert_allclose(found[0, 1], found[1, 0], **ENOUGH)


@pytest.mark.slow
def test_mixed_derivatives_of_hyp2f1():
    r"""Of :math:`F_z = (ab/c) F(a + 1, b + 1; c + 1; z)`, by PyTensor's own first ones."""
    a, b, c, z = SHAPES, SCALES, SHAPES + 1.3, SHARES
    found = derivatives(pt.hyp2f1, [a, b, c, z])
    other = derivatives(pt.hyp2f1, [a + 1, b + 1, c + 1, z], 1)
    level = derivatives(pt.hyp2f1, [a + 1, b + 1, c + 1, z], 0)[()]
    np.testing.assert_allclose(found[0, 3], b / c * level + a * b / c * other[0,], **ENOUGH)
    np.testing.assert_allclose(found[2, 3], -a * b / c**2 * level + a * b / c * other[2,], **ENOUGH)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("function", "point", "order"),
    [
        (pt.gammainc, [SHAPES, AT], 2),
        pytest.param(pt.betainc, [SHAPES, SCALES, SHARES], 2, marks=pytest.mark.slow),
    ],
)
def test_derivatives_in_shapes_are_slopes_of_those_below(function, point, order):
    """As central differences have them, whose error is of the order of the squared step."""
    h = 1e-4
    [found] = derivatives(function, point, order, [0]).values()
    [forth], [back] = (
        derivatives(function, [point[0] + s * h, *point[1:]], order - 1, [0]).values()
        for s in (1, -1)
    )
    np.testing.assert_allclose(found, (forth - back) / (2 * h), rtol=1e-5, atol=1e-6)


def censored(rng):
    x = rng.normal(size=N)
    y = np.minimum(rng.gamma(2, np.exp(0.3 * x)), 3.0)
    k, a, b = pm.HalfNormal("k", 3), pm.Normal("a"), pm.Normal("b")
    pm.Censored("y", pm.Gamma.dist(k, k / pm.math.exp(a + b * x)), lower=None, upper=3, observed=y)


@pytest.mark.costly
def test_a_censored_model_has_control_variates_of_order_two():
    with pm.Model() as model:
        censored(np.random.default_rng(1))
    tall = TallModel(model)
    expansion = expand(tall)
    assert expansion.order == 2
    assert expansion.rough is None
    assert Agreement(tall, expansion).of_gradient()
    assert expansion.third() is None  # sums settle before their third derivatives do


# Functions without second derivatives


class Flat(Erfcx):
    """A function without derivatives."""

    def pullback(self, inputs, outputs, along):
        raise NotImplementedError("no slope of Flat")


class LogPhi(ps.UnaryScalarOp):
    """The logarithm of the normal distribution function, with first derivatives."""

    nfunc_spec = ("scipy.special.log_ndtr", 1, 1)

    def impl(self, x):
        return log_ndtr(x)

    def pullback(self, inputs, outputs, along):
        [x], [slope] = inputs, along
        return [slope * np.sqrt(2 / np.pi) / flat(-x / np.sqrt(2))]


flat = Flat(ps.upgrade_to_float_no_complex, name="flat")
log_phi = Elemwise(LogPhi(ps.upgrade_to_float_no_complex, name="log_phi"))


def smooth(x):
    return pt.log(0.5 * pt.erfcx(-x / np.sqrt(2))) - x**2 / 2


def probit(function, n=N):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 2))
    y = rng.normal(size=n) < 0.3 + X @ [0.6, -0.4]
    with pm.Model() as model:
        eta = pm.Normal("a") + pt.dot(X, pm.Normal("b", shape=2))
        pm.Potential("y", function(pt.switch(y, eta, -eta)))
    return model


@pytest.mark.costly
@pytest.mark.parametrize("linear", [True, False])
def test_curvatures_are_differences_of_slopes(linear):
    found = []
    for function in (log_phi, smooth):
        tall = TallModel(probit(function))
        expansion = expand(tall, linear=linear)
        center, _ = expansion.parameters(np.array([0.2, 0.5, -0.3]))
        found.append((expansion, expansion.totals(expansion.chunks(), center, True)))
    (rough, sums), (exact, expected) = found
    assert (rough.order, exact.order) == (1, 2)
    assert "no slope of Flat" in rough.rough
    for one, other in zip(sums, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)
    assert rough.third() is None
    assert rough.slope() is None  # a difference is no bound


@pytest.mark.costly
def test_the_order_falls_to_one_and_the_first_message_says_why(caplog):
    caplog.set_level(logging.INFO)
    model = probit(log_phi)
    for step in (pms.HMCECS, pms.MinibatchBarkerMH, pms.sgmcmc.SGLD):
        caplog.clear()
        assert step(model=model).control_variate_order == 1
        assert "no second derivatives of 'y' (NotImplementedError: no slope of Flat)" in caplog.text
    assert pms.HMCECS(model=model, control_variate_order=1).control_variate_order == 1


@pytest.mark.parametrize(
    ("step", "options"),
    [(pms.HMCECS, {"control_variate_order": 2}), (pms.ScalableMH, {}), (pms.FireflyMC, {})],
)
def test_what_needs_second_derivatives_says_so(step, options):
    with pytest.raises(pms.TallModelError, match=r"no second derivatives.*Flat.*[Uu]se.*HMCECS"):
        step(model=probit(log_phi), **options)


@pytest.mark.costly
def test_the_posterior_of_order_one_is_that_of_order_two():
    """Means to four and a half of their errors, standard deviations to five parts in a hundred."""
    found = []
    for function in (log_phi, smooth):
        with probit(function, 4000):
            idata = pm.sample(4000, tune=500, chains=1, step=pms.HMCECS(), random_seed=1, **QUIET)
        draws = idata.posterior.to_dataset()
        found.append(np.column_stack([draws["a"].values.ravel(), draws["b"].values[0]]))
    one, two = found
    error = two.std(axis=0) * np.sqrt(2 / 1000)  # at least as many effective draws as 1,000
    assert np.all(abs(one.mean(axis=0) - two.mean(axis=0)) < 4.5 * error)
    # Of 1,000 effective draws, to 2.2%.
    np.testing.assert_allclose(one.std(axis=0), two.std(axis=0), rtol=4.5 * 0.022 * np.sqrt(2))


# Reductions over no axes


@pytest.mark.parametrize("function", [pt.sum, pt.prod, pt.max, pt.logsumexp])
def test_a_reduction_over_no_axes_changes_nothing(function):
    rng = np.random.default_rng(1)
    y = rng.normal(size=40)
    found = []
    for reduced in (lambda x: x, lambda x: function(x, axis=())):
        with pm.Model() as model:
            share, mean = pm.Beta("share", 2, 2), pm.Normal("mean", 0, 2, shape=2)
            terms = pt.log(pt.stack([share, 1 - share])) - 0.5 * (y[:, None] - mean) ** 2
            pm.Potential("y", reduced(pt.logsumexp(reduced(terms), axis=1)))
        tall = TallModel(model)
        found.append(tall.row_loglik(tall.ravel(tall.initial_point), np.arange(40)))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_sum_over_rows_beside_one_over_no_axes_is_refused():
    y = np.random.default_rng(1).normal(size=40)
    with pm.Model() as model:
        mean = pm.Normal("mean")
        rows = pt.sum(-0.5 * (y - mean) ** 2, axis=())
        pm.Potential("y", rows - rows.sum())
    with pytest.raises(pms.TallModelError, match=r"'y' are coupled by .*sum over rows"):
        TallModel(model)
