"""Kinks and jumps are told from two forms of one function, wherever they are."""

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.scalar.basic import UnaryScalarOp
from pytensor.tensor.elemwise import Elemwise
from scipy.special import erfc, erfcx

from pymc_subsample.expansion.coefficients import Coefficients
from pymc_subsample.graph.piecewise import Pieces

SHORT, LONG = 0.05, 2.0


def log_cdf(z, at=-1.0):
    """Two forms of the logarithm of the normal distribution function."""
    lower = pt.log(0.5 * pt.erfcx(-z / np.sqrt(2.0))) - 0.5 * z**2
    return pt.switch(z < at, lower, pt.log1p(-0.5 * pt.erfc(z / np.sqrt(2.0))))


def huber(x):
    return pt.switch(abs(x) < 1, x**2 / 2, abs(x) - 0.5)


def unguarded(x):
    """Of a matrix, what a guard would be of a vector."""
    return pt.sum(pt.switch(x > -1, -np.inf, x), axis=1)


# Functions of x and a column w, and the lowest order k for which they are too rough at x = -1,
# if at all.
FUNCTIONS = {
    "smooth": (lambda x, w: pt.exp(x) * w, None),
    "two forms": (lambda x, w: log_cdf(x) + w, None),
    "two forms, elsewhere": (lambda x, w: log_cdf(x / w, -0.5), None),
    "two forms, in a matrix": (
        lambda x, w: pt.sum(log_cdf(pt.stack([x, w * x, x - w], axis=1)), axis=1),
        None,
    ),
    "rows last": (
        lambda x, w: pt.sum(log_cdf(pt.stack([x, w * x, x - w], axis=0)), axis=0),
        None,
    ),
    "jump": (lambda x, w: pt.switch(x > -1, w, 0.0), 1),
    "floor": (lambda x, w: pt.floor(x) * w, 1),
    "sign": (lambda x, w: pt.sign(x + 1) * (x + 1), 1),
    "abs": (lambda x, w: abs(x + 1) * w, 2),
    "maximum": (lambda x, w: pt.maximum(x, -1.0) * w, 2),
    "minimum": (lambda x, w: pt.minimum(x, -w), 2),
    "largest": (lambda x, w: pt.max(pt.stack([x, -w], axis=1), axis=1), 1),
    "clip": (lambda x, w: pt.clip(x, -5.0, -w), 2),
    "huber": (lambda x, w: huber(x) * w, 3),
    "cubic spline": (lambda x, w: pt.maximum(x + 1, 0.0) ** 3 + pt.exp(x), 2),
    "cubic": (lambda x, w: pt.switch(x > -1, (x + 1) ** 3, 0.0), None),
    "small kink": (lambda x, w: log_cdf(x) + 1e-3 * pt.switch(x > -1, x + 1, 0.0), 2),
    "small jump": (lambda x, w: pt.switch(x > -1, x + 1e-5, x), 1),
    "truth": (lambda x, w: 3 * w * (x > -1), 1),
    "index": (lambda x, w: pt.constant([0.0, 3.0])[pt.cast(x > -1, "int64")] * w, 1),
    "integer": (lambda x, w: pt.cast(x, "int64") * w, 1),
    "remainder": (lambda x, w: pt.mod(x + 1, 3.0) * w, 1),
    "angle": (lambda x, w: pt.arctan2(x + 1, -w), 1),
    "sorted": (lambda x, w: pt.sort(pt.stack([x, -w], axis=1), axis=1)[:, 0], 1),
    "infinite": (lambda x, w: unguarded(pt.stack([x, -4 * w], axis=1)), 1),
    "kink in small units": (lambda x, w: pt.maximum(1e-10 * (x + 1), 0.0) * 1e10 * w, 2),
    "kink on large numbers": (lambda x, w: pt.maximum(x + 1e8, 1e8 - w), 2),
    "two turns": (lambda x, w: pt.switch(abs(x + 1.02) < 0.02, (x + 1.04) ** 4 + w, w), 1),
}


WHOLE = {"largest", "floor", "sign", "truth", "index", "integer", "remainder", "angle", "sorted"}


def pieces(function):
    x, w = pt.vector("x", dtype="float64"), pt.vector("w", dtype="float64")
    return Pieces(function(x, w), [x], [w])


# Far from -1, the pieces of this one have kinks where they are not taken.
CASES = [
    (name, far) for name in FUNCTIONS for far in (SHORT, LONG) if (name, far) != ("huber", LONG)
]


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(("name", "far"), CASES)
def test_kinks_within_reach(name, far):
    """Rows near -1, and one that is far from it."""
    function, rough = FUNCTIONS[name]
    found = pieces(function)
    rng = np.random.default_rng(1)
    at = np.array([[*rng.uniform(-1 - 0.9 * far, -1 + 0.9 * far, size=40), -4.4]])
    width = np.full_like(at, far)
    width[:, -1] = SHORT
    for order in (1, 2, 3):
        _, smooth = found.joined(at, np.ones_like(at), width, order)
        if rough is None or order < rough:
            assert np.all(smooth[:-1])
        else:
            assert not np.any(smooth[:-1])
        # Reductions and jumps are not looked at row by row.
        assert smooth[-1] == (name not in WHOLE)


def test_columns_say_whether_a_row_has_a_kink():
    found = pieces(lambda x, w: pt.switch(x > 0, (1 + w) * x, x))
    w = np.zeros((1, 200))
    w[:, [3, 50]] = 0.1
    _, smooth = found.joined(np.full_like(w, 0.01), w, np.full_like(w, 0.02), 3)
    np.testing.assert_array_equal(smooth, w[0] == 0)


def test_two_predictors():
    """The same quotient turns in any direction, and forms may be of other variables."""
    x, y, w = (pt.vector(c, dtype="float64") for c in "xyw")
    found = Pieces(log_cdf(x / y) * w + abs(x - y - 5), [x, y], [w])
    rng = np.random.default_rng(2)
    at = np.array([rng.uniform(-2, 0, 100), rng.uniform(1, 2, 100)])
    joined, smooth = found.joined(at, np.ones((1, 100)), np.full_like(at, 0.2), 3)
    turning = [node for node in joined if not np.all(joined[node])]
    corners = at[0] + 0.2 * np.array([[1], [-1]]), at[1] + 0.2 * np.array([[1], [-1]])
    quotients = np.array([a / b for a in corners[0] for b in corners[1]])
    # A turn that only a corner reaches may not be found: such rows count as rough.
    deep = (quotients.min(axis=0) < -1.1) & (quotients.max(axis=0) > -0.9)
    beyond = (quotients.min(axis=0) > -1) | (quotients.max(axis=0) < -1)
    assert np.all(smooth[deep | beyond])
    assert deep.sum() > 10
    assert len(turning) <= 1


EVERYWHERE = {
    "smooth": (lambda x, w: pt.sigmoid(x) * w, True),
    "two forms": (lambda x, w: log_cdf(x) * w, True),
    "kink far out": (lambda x, w: pt.maximum(0.0, x - 1000.0) * w, False),
    "jump very far out": (lambda x, w: pt.switch(x < -1e7, w, 0.0), False),
    "guard that holds": (lambda x, w: pt.switch(pt.sigmoid(x) >= 0, x, -np.inf), True),
    "guard far out": (lambda x, w: pt.switch(x > -1e6, x, -np.inf), False),
    "of columns": (lambda x, w: pt.switch(w > 0, x, 2 * x), True),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_kinks_anywhere(name):
    function, smooth = EVERYWHERE[name]
    assert pieces(function).smooth_everywhere(np.array([[1.0, 2.0]]), 3) == smooth


class Hinge(UnaryScalarOp):
    """Somebody's own Op, whose derivative is zero on one side of a kink and one on the other."""

    def impl(self, x):
        return max(x, 0.0)

    def pullback(self, inputs, outputs, gradients):
        [x], [gradient] = inputs, gradients
        return [ps.switch(ps.ge(x, 0.0), gradient, 0.0)]

    L_op = pullback


def test_nothing_is_known_of_ops_of_other_packages():
    x = pt.vector("x", dtype="float64")
    hinge = Elemwise(Hinge(ps.upgrade_to_float, name="hinge"))
    assert not Pieces(hinge(x), [x], []).smooth_everywhere(np.zeros((0, 1)), 2)
    bound = Coefficients(hinge(x), [x], [], 2)
    assert bound(np.array([[0.1]]), np.zeros((0, 1)), np.ones((1, 1, 1)), 1.0) == np.inf
    slope = pt.grad(hinge(x).sum(), x)
    derivative = pt.grad(slope.sum(), x, disconnected_inputs="ignore")
    bound = Coefficients(hinge(x), [x], [], 2, {(0, 0): derivative})
    assert bound(np.array([[0.1]]), np.zeros((0, 1)), np.ones((1, 1, 1)), 1.0) == np.inf


def test_guards_are_no_pieces():
    found = pieces(lambda x, w: pt.switch(x > w, pt.log(x - w), -np.inf))
    at, far = np.array([[1.0, 3.0]]), np.array([[0.5, 0.5]])
    _, smooth = found.joined(at, np.ones((1, 2)), far, 3)
    assert np.all(smooth)
    np.testing.assert_array_equal(found.held(at, np.ones((1, 2)), far), [False, True])


def test_guards_written_the_other_way_round():
    found = pieces(lambda x, w: pt.switch(x <= w, -np.inf, pt.log(x - w)))
    at, far = np.array([[1.0, 3.0]]), np.array([[0.5, 0.5]])
    _, smooth = found.joined(at, np.ones((1, 2)), far, 3)
    assert np.all(smooth)
    np.testing.assert_array_equal(found.held(at, np.ones((1, 2)), far), [False, True])


def test_guards_that_one_corner_breaks():
    """In every one of many rows, and what holds surely needs no corners."""
    x, y, w = (pt.vector(c, dtype="float64") for c in "xyw")
    found = Pieces(pt.switch(x + y < w, x * y, -np.inf), [x, y], [w])
    rng = np.random.default_rng(3)
    at, far = rng.normal(size=(2, 2_000)), rng.uniform(0.1, 1.0, size=(2, 2_000))
    corner = np.sum(at + far, axis=0, keepdims=True)
    assert not np.any(found.held(at, corner - 1e-6, far))
    assert np.all(found.held(at, corner + 1e-6, far))


def test_forms_with_constants_in_single_precision():
    """As PyTensor's own are, by which these two differ."""
    root = float(np.float32(np.sqrt(0.5)))
    z = -1.0
    lower = np.log(0.5 * erfcx(-z * root)) - z**2 / 2
    assert 1e-9 < abs(lower - np.log1p(-0.5 * erfc(z * root))) < 1e-7

    def rounded(x, w):
        lower = pt.log(0.5 * pt.erfcx(-x * root)) - 0.5 * x**2
        return pt.switch(x < -1, lower, pt.log1p(-0.5 * pt.erfc(x * root)))

    at = np.array([[-1.0]])
    _, smooth = pieces(rounded).joined(at, np.ones((1, 1)), np.full_like(at, 0.05), 3)
    assert smooth[0]
