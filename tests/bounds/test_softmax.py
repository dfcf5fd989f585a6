"""Second derivatives of sums of exponentials."""

import pytensor.tensor as pt
import pytest

from pymc_subsample.bounds.softmax import least_curvature

X, Z, K = (pt.vector(name, dtype="float64", shape=(None,)) for name in "xzk")
_WHOLE = pt.cast(K, "int64")


@pytest.mark.parametrize(
    ("factor", "known"),
    [
        (pt.invert(_WHOLE), False),
        (pt.or_(_WHOLE, -8), False),
        (pt.invert(pt.gt(K, 0)), True),
        (pt.or_(pt.gt(K, 0), pt.eq(K, -1)), True),
        (pt.abs(K), True),
    ],
)
def test_only_exponentials_that_are_added_have_bounds(factor, known):
    graph = -pt.log(pt.exp(X) + pt.cast(factor, "float64") * pt.exp(Z) + 20)
    assert (least_curvature(graph, [X, Z], [K]) is not None) == known
