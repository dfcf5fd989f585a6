"""Taylor coefficients over intervals hold those of all functions that their inputs allow."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.special import expit, gammainc, gammaincc
from scipy.stats import norm

from pymc_subsample.expansion import coefficients as bounded
from pymc_subsample.graph.jets import enclose_coefficient
from pymc_subsample.graph.piecewise import Pieces

MASK, EVERY = np.array([[True, False, True]]), np.array([True])
GRAPHS = {
    "products": lambda x, y, z: x * y * z - x**2 * y,
    "quotients": lambda x, y, z: x / (2 + y**2) - 1 / (3 + z),
    "powers": lambda x, y, z: (1 + x**2) ** 1.5 + (2 + y) ** -2 + (2 + x) ** (y / 4),
    "exponentials": lambda x, y, z: pt.exp(x * y) - pt.expm1(z) + pt.tanh(x - y),
    "logs": lambda x, y, z: pt.log(3 + x) * pt.log1p(y**2) + pt.sqrt(2 + z),
    "sigmoids": lambda x, y, z: pt.sigmoid(x - y) * pt.softplus(z + x),
    "gammas": lambda x, y, z: pt.gammaln(3 + x) - pt.gammaln(2.5 + y * z / 4),
    "error functions": lambda x, y, z: pt.erf(x) + pt.log(pt.erfc(y)) * z,
    "normal": lambda x, y, z: -0.5 * ((z - x) / pt.exp(y)) ** 2 - y,
    "student": lambda x, y, z: -(pt.exp(y) + 1) / 2 * pt.log1p((z - x) ** 2 / pt.exp(y)),
    "log of a sum": lambda x, y, z: pt.logsumexp(pt.stack([x, y, z - x * y], axis=1), axis=1),
    "softmax": lambda x, y, z: pt.special.softmax(pt.stack([x, y, z], axis=1), axis=1)[:, 0],
    "log softmax": lambda x, y, z: pt.special.log_softmax(pt.stack([x, 2 * y, z], axis=1), axis=1)[
        :, 1
    ],
    "nearly certain": lambda x, y, z: pt.logsumexp(
        pt.stack([x * y, 2 * y - 4, z - 7 + x], axis=1), axis=1
    ),
    "sums of exponentials": lambda x, y, z: pt.log(
        1
        + 0.3 * pt.exp(x)
        + pt.switch(MASK, pt.exp(pt.stack([y * z, x - z, 2 * y], axis=1)), 0).sum(axis=1)
    ),
    "classes": lambda x, y, z: pt.log(
        pt.exp(pt.softplus(x + y) - pt.softplus(z)) + pt.exp(y) * (0.1 * pt.exp(-z))
    ),
    "certain choice of a number": lambda x, y, z: pt.log(
        pt.switch(MASK[0, 1:2], pt.exp(x), 2.0) * pt.exp(y) + pt.exp(z)
    ),
    "choices by data": lambda x, y, z: pt.log(
        pt.switch(EVERY, 0.3, pt.exp(x)) * pt.exp(y) + pt.switch(EVERY, pt.exp(z * x), 0.1)
    ),
    "certain choice": lambda x, y, z: pt.switch(x > -5, x**3, y),
    "certain extremes": lambda x, y, z: pt.maximum(x, y - 9) ** 3 + abs(x + 9) * y,
}
ROWS = 400


def drawn(seed):
    """Return a generator, points, and gradients of at most one in length, in two dimensions."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-1, 1, size=(3, ROWS))
    gradients = rng.uniform(-0.7, 0.7, size=(3, ROWS, 2))
    return rng, centres, gradients


def within(rng, gradients, longest=1.0):
    """Return where inputs move along random directions, of which some are of the largest length."""
    u = rng.normal(size=gradients.shape[1:])
    u *= longest * rng.choice([1.0, 0.6], size=(len(u), 1)) / np.linalg.norm(u, axis=1)[:, None]
    return np.einsum("eik,ik->ei", gradients, u)


def coefficients(graph, inputs, at, along):
    """Coefficients up to order 4 along directions, by PyTensor's own derivatives."""
    t = pt.vector("t", dtype="float64")
    moved = [x + t * v for x, v in zip(at, along, strict=True)]
    found = [graph(*moved)]
    for _ in range(4):
        found.append(pt.grad(found[-1].sum(), t, disconnected_inputs="ignore"))
    values = [f.eval({t: np.zeros(ROWS)}, mode=Mode("py", None)) for f in found]
    return [v / k for v, k in zip(values, (1, 1, 2, 6, 24), strict=True)]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("width", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("name", GRAPHS)
def test_coefficients_are_bounded(name, width):
    inputs = [pt.vector(c, dtype="float64") for c in "xyz"]
    rng, centres, gradients = drawn(1)
    far = width * np.linalg.norm(gradients, axis=2)
    pieces = Pieces(GRAPHS[name](*inputs), inputs, [])
    joined, _ = pieces.joined(centres, np.empty((0, ROWS)), far, 4)
    bounds = [enclose_coefficient(pieces.loglik, inputs, k) for k in (1, 2, 3, 4)]
    found = [bound(centres, gradients, width, joined) for bound in bounds]
    for _ in range(6):
        at = centres + within(rng, gradients, width)
        way = within(rng, gradients)
        exact = coefficients(GRAPHS[name], inputs, at, way)[1:]
        for size, most in zip(exact, found, strict=True):
            assert np.all(np.abs(size) <= most * (1 + 1e-9) + 1e-12)
    if width == 0.0:
        assert np.all(np.isfinite(found[3]))


def test_bounds_of_one_function_are_attained():
    x = pt.vector("x", dtype="float64")
    bound = enclose_coefficient(pt.exp(2 * x), [x], 3)
    at, v = np.linspace(-1, 1, 9), np.linspace(0.1, 1, 9)
    found = bound([at], [v[:, None]], 0.1, {})
    np.testing.assert_allclose(found, np.exp(2 * (at + 0.1 * v)) * 8 * v**3 / 6, rtol=1e-12)


def test_of_terms_that_weigh_little_little_is_left():
    """The third cumulant of two terms of which one has the weight p is p (1 - p) (1 - 2 p)."""
    x = pt.vector("x", dtype="float64")
    at = np.array([-12.0, -6.0, -2.0, 3.0])
    p = expit(at)
    exact = np.abs(p * (1 - p) * (1 - 2 * p)) / 6
    for graph in (pt.logsumexp(pt.stack([x, 0 * x], axis=1), axis=1), pt.log(1 + pt.exp(x))):
        sharp, near = (
            enclose_coefficient(graph, [x], 3)([at], [np.ones((4, 1))], far, {})
            for far in (0.0, 0.1)
        )
        assert np.all(exact <= sharp * (1 + 1e-12))
        assert np.all(sharp <= 1.3 * np.fmax(exact, 0.02 * p))
        assert np.all(near <= 1.7 * np.fmax(exact, 0.02 * p))


def test_directions_are_of_length_one_together():
    """Sums of inputs that move apart know that they do."""
    inputs = [pt.vector(c, dtype="float64") for c in "xy"]
    at, gradients = np.zeros((2, 1)), [np.array([[1.0, 0.0]]), np.array([[-1.0, 1e-3]])]
    graph = pt.softplus(sum(inputs)) + pt.exp(inputs[0] + inputs[1])
    [found] = enclose_coefficient(graph, inputs, 3)(at, gradients, 1.0, {})
    assert 1e-9 / 6 < found < 2e-9 / 6


BREAKS = {
    "abs": lambda x: abs(x),
    "maximum": lambda x: pt.maximum(x, 0.0) ** 2,
    "switch": lambda x: pt.switch(x > 0, x, 2 * x),
    "sign": lambda x: pt.sign(x) * x,
    "floor": lambda x: x * pt.floor(x),
    "truth": lambda x: 3.0 * (x > 0) + x**2,
    "integer": lambda x: x * pt.cast(10 * (x + 3.0), "int64"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_kinks_and_jumps_have_no_bounds(name):
    x = pt.vector("x", dtype="float64")
    pieces = Pieces(BREAKS[name](x), [x], [])
    bound = enclose_coefficient(pieces.loglik, [x], 3)
    at = np.array([-0.5, 0.05, 0.5])
    joined, _ = pieces.joined(at[None], np.empty((0, 3)), np.full((1, 3), 0.1), 3)
    found = bound([at], [np.ones((3, 1))], 0.1, joined)
    assert np.isinf(found[1])
    assert np.all(np.isfinite(found[[0, 2]])) == (name != "integer")


def test_two_forms_of_one_function_have_bounds():
    """On either side, and where it turns, at most the larger of both."""
    x = pt.vector("x", dtype="float64")
    lower = pt.log(0.5 * pt.erfcx(-x / np.sqrt(2.0))) - 0.5 * x**2
    upper = pt.log1p(-0.5 * pt.erfc(x / np.sqrt(2.0)))
    pieces = Pieces(pt.switch(x < -1, lower, upper), [x], [])
    at, far = np.linspace(-2, 0, 81), np.full((1, 81), 0.02)
    joined, smooth = pieces.joined(at[None], np.empty((0, 81)), far, 3)
    assert np.all(smooth)
    found, below, above = (
        enclose_coefficient(graph, [x], 3)([at], [np.ones((81, 1))], 0.02, joined)
        for graph in (pieces.loglik, lower, upper)
    )
    ratio = norm.pdf(at) / norm.cdf(at)
    third = ratio * ((at + ratio) * (at + 2 * ratio) - 1) / 6
    assert np.all(np.abs(third) <= found)
    assert np.all(found <= np.maximum(below, above))
    np.testing.assert_array_equal(found[at < -1.021], below[at < -1.021])
    np.testing.assert_array_equal(found[at > -0.979], above[at > -0.979])


@pytest.mark.parametrize("name", ["sigmoids", "normal", "sums of exponentials"])
def test_rows_are_bounded_some_at_a_time(name, monkeypatch):
    inputs = [pt.vector(c, dtype="float64") for c in "xyz"]
    _, centres, gradients = drawn(3)
    bound = bounded.Coefficients(GRAPHS[name](*inputs), inputs, [], 3)
    whole = bound(centres, np.empty((0, ROWS)), gradients, 0.3)
    monkeypatch.setattr(bounded, "_TOGETHER", 7)
    assert ROWS % 7
    np.testing.assert_array_equal(bound(centres, np.empty((0, ROWS)), gradients, 0.3), whole)


def incomplete(function, a, x, along):
    """Coefficients up to order 4 of an incomplete gamma function along directions, shape (5, m).

    Of its Chebyshev polynomial of degree 24 within a quarter of the way: to 1e-8 at order 4.
    """
    t = 0.25 * np.cos(np.pi * (np.arange(25) + 0.5) / 25)
    values = function(a + t[:, None] * along[0], x + t[:, None] * along[1])
    fitted = np.polynomial.chebyshev.chebfit(4 * t, values, 24)
    series = [np.polynomial.chebyshev.cheb2poly(c)[:5] for c in fitted.T]
    return np.transpose(series) * 4.0 ** np.arange(5)[:, None]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("width", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("graph", [pt.gammainc, pt.gammaincc])
def test_coefficients_of_incomplete_gamma_functions_are_bounded(graph, width):
    """While shape and argument move, and as sharply as the shape alone allows."""
    function = {pt.gammainc: gammainc, pt.gammaincc: gammaincc}[graph]
    inputs = [pt.vector(c, dtype="float64") for c in "ax"]
    rng = np.random.default_rng(1)
    along = rng.uniform(0, 1, size=(2, ROWS))
    at = np.exp(rng.uniform([[-0.5], [-2.5]], [[4.5], [4.5]], size=(2, ROWS)))
    along = along * np.minimum(1, at)
    gradients = along[..., None] * np.eye(2)[:, None]
    for order in (1, 2, 3, 4):
        bound = enclose_coefficient(graph(*inputs), inputs, order)
        most = bound(at, gradients, width, {})
        assert np.all(np.isfinite(most))
        for _ in range(4):
            near, way = at + within(rng, gradients, width), within(rng, gradients)
            exact = incomplete(function, *near, way)[order]
            assert np.all(np.abs(exact) <= most * (1 + 1e-9) + 1e-8)
        if width == 0.0:
            exact = incomplete(function, *at, [along[0], 0 * at[1]])[order]
            sharp = bound(at, [gradients[0], None], 0.0, {})
            np.testing.assert_allclose(sharp, np.abs(exact), atol=1e-8)
