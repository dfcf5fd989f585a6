"""Stable forms of a row's log-likelihood."""

import numpy as np
import pytensor.tensor as pt
import pytest
from scipy.special import gammainc, gammaincc

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.simplify import _complemented


@pytest.mark.parametrize(
    ("written", "exact", "x"),
    [
        (pt.gammainc, gammaincc, np.array([0.1, 1.0, 30.0, 60.0])),
        (pt.gammaincc, gammainc, np.array([1e-12, 1e-6, 0.1, 30.0])),
    ],
)
def test_complements_keep_their_digits(written, exact, x):
    """Where one minus what is written has none left, or a few."""
    inputs = [pt.vector(c, dtype="float64") for c in "ax"]
    graph = pt.log1mexp(pt.log(written(*inputs)))
    [stable] = rebuild([graph], {}, _complemented)
    a = np.full(4, 2.5)
    with np.errstate(all="ignore"):
        [before], [after] = (numpy_function(inputs, [g])(a, x) for g in (graph, stable))
    np.testing.assert_allclose(after, np.log(exact(a, x)), rtol=1e-13)
    assert not np.allclose(before, after, rtol=1e-6)
