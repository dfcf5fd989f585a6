"""Bounds hold for all predictors and rows: also where no grid and no sample looks."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.optimize import minimize_scalar

from pymc_subsample.bounds.lower_bounds import bounded_expansion
from pymc_subsample.bounds.softmax import least_curvature
from pymc_subsample.expansion.everywhere import affine_in, largest_size, least
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel

N = 200
rng = np.random.default_rng(1)
X = rng.normal(size=N)


def model_of(row):
    with pm.Model() as model:
        pm.Potential("y", row(pm.Normal("b") * X))
    return model


def curvature_of(model):
    """Return the kind of a model's bound, and its smallest curvature."""
    expansion, kind = bounded_expansion(TallModel(model))
    rows = next(iter(expansion.chunks()))
    expansion.anchor(np.array([0.3]), rows)
    return kind, rows[expansion.level + 2].min()


def spiked(x, k, h=0.05):
    """Log probability, with a spike at 0.5 and -0.5 that lies between the points of a grid."""
    return pt.log(0.5 + 0.2 * pt.tanh(x) - h * pt.exp(-k * (x**2 - 0.25) ** 2))


@pytest.mark.parametrize("k", [3e3, 1e6])
def test_the_curvature_of_a_spike_is_found(k):
    kind, found = curvature_of(model_of(lambda x: spiked(x, k)))
    x = pt.vector("x")
    slope = pt.grad(spiked(x, k).sum(), x)
    second = numpy_function([x], [pt.grad(slope.sum(), x)])
    width = 3 / np.sqrt(k)
    actual = second(np.linspace(-0.5 - width, -0.5 + width, 100_001))[0].min()
    assert kind == "curvature"
    assert 1.01 * actual <= found <= actual
    # What a thousand points, dense near zero, show is no bound.
    grid = np.sinh(np.linspace(-np.arcsinh(1e3), np.arcsinh(1e3), 1000))
    assert 1.002 * second(grid)[0].min() > actual


def test_a_dent_on_one_side_is_no_tangent():
    """Of a logistic row: no point of a scan is near enough to see it."""
    kind, _ = curvature_of(model_of(lambda x: -pt.softplus(x)))
    assert kind == "tangent"
    kind, found = curvature_of(
        model_of(lambda x: -pt.softplus(x) - 1e-5 * pt.exp(-1e9 * (x**2 + x - 0.34) ** 2))
    )
    assert kind == "curvature"
    assert found < -1e3


def test_a_slope_far_out_counts():
    """Beyond the grid rows have no slope for `ConfidenceMH`, and no remainder for `ScalableMH`."""
    x = pt.vector("x")
    spike = pt.tanh(x) + 10 * pt.exp(-((x * x - 2025) ** 2) / 8100)
    found = largest_size(spike, x, [], np.zeros((0, 1)))
    best = minimize_scalar(lambda v: -np.tanh(v) - 10 * np.exp(-((v * v - 2025) ** 2) / 8100),
                           bounds=(44, 46), method="bounded")  # fmt: skip
    assert -best.fun <= found <= -1.002 * best.fun


@pytest.mark.parametrize("order", [0, 1, 2])
def test_exact_steps_know_of_a_spike_beyond_the_grid(order):
    from pymc_subsample.expansion import expand

    def row(x):
        return -pt.softplus(x) + 5 * pt.tanh(50 * (x * x / 90 - 22.5))

    found = expand(TallModel(model_of(row)), order).slope()
    v = pt.vector("x")
    graph = row(v)
    for _ in range(order + 1):
        graph = pt.grad(graph.sum(), v)
    actual = np.abs(numpy_function([v], [graph])(np.linspace(44.5, 45.5, 200_001))[0]).max()
    assert found is None or found >= actual


def test_the_least_value_over_boxes_of_data():
    x, y = pt.vector("x"), pt.vector("y")
    low, high = np.array([[-2.0, 0.0]]), np.array([[1.0, 3.0]])
    found = least(-(y**2) / pt.cosh(x - y), x, [y], low, high)
    assert -9 * 1.002 <= found <= -9


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (lambda x, y: y * pt.sigmoid(x), True),
        (lambda x, y: pt.cast(y, "int64") * pt.sigmoid(x) - x, True),
        (lambda x, y: y**2 * pt.sigmoid(x), False),
        (lambda x, y: pt.sigmoid(x + y), False),
        (lambda x, y: pt.switch(y > 1, x, 0.0), False),
    ],
)
def test_what_is_affine_in_data(graph, expected):
    x, y = pt.vector("x"), pt.vector("y")
    ends = np.array([0.0]), np.array([9.0])
    assert affine_in(graph(x, y), x, [y], *ends, np.array([True]), np.array([True])) == expected


# Rows whose data have too many values to look at each.


def many(kind):
    r = np.random.default_rng(2)
    n = 300
    x, w, trials = r.normal(size=n), r.uniform(0.5, 2, n), r.integers(1, 400, n)
    with pm.Model() as model:
        eta = pm.Normal("b") * x
        if kind == "weights":
            pm.Potential("y", -w * pt.softplus(pt.switch(r.random(n) < 0.5, -1.0, 1.0) * eta))
        elif kind == "trials":
            pm.Binomial("y", trials, logit_p=eta, observed=r.binomial(trials, 0.4))
        else:
            counts = r.negative_binomial(2, 0.01, n)
            pm.NegativeBinomial("y", mu=pm.math.exp(4 + eta), alpha=2.0, observed=counts)
    return model


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("kind", ["weights", "trials", "counts"])
def test_tangents_of_rows_of_many_kinds(kind):
    assert bounded_expansion(TallModel(many(kind)))[1] == "tangent"


# Sums of exponentials

SUMS = {
    "softmax": lambda x, w: x[0] - pt.log(pt.exp(x[0]) + pt.exp(x[1]) + pt.exp(x[2])),
    "ragged": lambda x, w: x[1] - pt.log(
        pt.exp(x[0]) + pt.exp(x[1]) + pt.switch(w > 1, pt.exp(x[2]), 0.0)
    ),
    "states": lambda x, w: pt.log(
        0.3 * pt.exp(-w * pt.softplus(x[0])) + 0.7 * pt.exp(-w * pt.softplus(x[0] + x[1] - x[2]))
    ),
    "states, their largest first": lambda x, w: pt.logsumexp(
        pt.stack([-1 - w * pt.softplus(x[0]), -w * pt.softplus(x[0] + x[1] - x[2])]), axis=0
    ),
    "logistic": lambda x, w: (1 - w) * pt.softplus(x[0] + 2 * x[1]) - pt.softplus(x[2]),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_second_derivatives_are_above_the_least_ones(name):
    x, w = [pt.vector(f"x{e}") for e in range(3)], pt.vector("w")
    graph = SUMS[name](x, w)
    bound = least_curvature(graph, x, [w])
    slopes = pt.grad(graph.sum(), x)
    second = [pt.grad(slopes[e].sum(), x[f], disconnected_inputs="ignore") for e, f in bound]
    evaluate = numpy_function([*x, w], [*bound.values(), *second])
    r, k, tight = np.random.default_rng(3), 4000, []
    for scale in (0.1, 1.0, 4.0):
        found = evaluate(*(scale * r.normal(size=(3, k))), r.choice([0.5, 1.5], k))
        both = np.zeros((2, k, 3, 3))
        for j in range(2):
            for (e, f), v in zip(bound, found[6 * j :], strict=False):
                both[j, :, e, f] = both[j, :, f, e] = v
        assert np.linalg.eigvalsh(both[1] - both[0]).min() > -1e-9
        tight.append(np.trace(both[1], axis1=1, axis2=2) / np.trace(both[0], axis1=1, axis2=2))
    assert np.max(tight) > 0.25  # four times of it would hold too, and leave more rows bright


def test_what_bends_without_bound_has_none():
    x = [pt.vector(f"x{e}") for e in range(2)]
    assert least_curvature(x[0] * x[1], x, []) is None
    assert least_curvature(-pt.exp(x[0]) - pt.softplus(x[1]), x, []) is None
    assert least_curvature(pt.maximum(x[0], x[1]), x, []) is None
    assert least_curvature(x[0] - pt.max(pt.stack(x, axis=1), axis=1), x, []) is None
    bending = -pt.softplus(x[0])
    largest = pt.maximum(bending, -pt.softplus(x[1]))
    taken_once = pt.log(pt.exp(bending - largest) + pt.exp(-pt.softplus(x[1])))
    assert least_curvature(taken_once + largest, x, []) is None
    assert least_curvature(taken_once, x, []) is None
