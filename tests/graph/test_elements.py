"""Elements that graphs compute."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_subsample.graph.elements import computed_elements

x = pt.vector("x", shape=(7,))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (pt.exp(x), (7, 0)),
        (x * 2 + 1, (0, 14)),
        (pt.sigmoid(x).sum(), (7, 7)),
        (x**2, (0, 7)),
        (x**x, (7, 0)),
        (pt.gammaln(x[:3]), (3, 3)),
        (pt.special.log_softmax(x), (7, 0)),
        (pt.exp(pt.arange(50.0)) + x[0], (0, 52)),
    ],
)
def test_elements_are_counted_by_their_functions(graph, expected):
    """Those of data alone are computed once, and make no difference."""
    assert computed_elements([graph], [x]) == expected


def test_what_a_loop_computes_is_counted_in_each_step():
    steps = pytensor.scan(
        lambda before, x: before + pt.exp(x), outputs_info=[pt.zeros(7)], non_sequences=[x],
        n_steps=5, return_updates=False,
    )  # fmt: skip
    dear, others = computed_elements([steps], [x])
    assert dear == 5 * 7
    assert 5 * 7 <= others < 3 * 5 * 7


def test_lengths_that_types_do_not_tell_are_those_of_data():
    with pm.Model():
        column = pm.Data("column", np.zeros(300))
        a = pm.Normal("a")
    dear, others = computed_elements([pt.exp(a * column)], [a])
    assert (dear, others) == (300, 302)
