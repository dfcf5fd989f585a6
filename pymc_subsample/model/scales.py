"""Scales on which rows see a parameter: on one of them the limit that it may run to is a point.

The negative binomial ends in Poisson's distribution where alpha is infinite, Student's t in the
normal one where nu is, zero inflation in none where log(1 - psi) is minus infinity. There the
log-likelihood is smooth in 1 / alpha, 1 / nu, 1 - psi, and flat in the parameter itself: a
posterior that goes there is wide, and an expansion in it leaves most of the log-likelihood.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.intervals import Enclosure
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.graph.overall_intervals import OverallIntervals


class Scale(NamedTuple):
    """Numbers u = g(p) in the place of a parameter p."""

    forward: Callable[[Variable], Variable]  # g of a graph
    back: Callable[[Variable], Variable]  # and its inverse.
    value: Callable[[np.ndarray], np.ndarray]  # g of numbers,
    slope: Callable[[np.ndarray], np.ndarray]  # its derivative,
    bend: Callable[[np.ndarray], np.ndarray]  # and the second over the first.
    fits: Callable[[Enclosure], bool]  # Whether g is smooth and bounded where the limit is.


SCALES: Mapping[str, Scale] = {
    "reciprocal": Scale(
        pt.reciprocal, pt.reciprocal, np.reciprocal,
        lambda p: -(p**-2.0), lambda p: -2.0 / p, lambda p: p.positive,
    ),
    "exponential": Scale(
        pt.exp, pt.log, np.exp, np.exp, np.ones_like, lambda p: bool(np.isfinite(p.high)),
    ),
}  # fmt: skip


def fitting(graph: Variable, theta: Variable) -> list[str]:
    """Return the names of the scales that a parameter, a graph of theta, may be seen on."""
    bounds = OverallIntervals(depends_on([graph], [theta]), partial(_data, {}))
    limits = bounds.of(graph)
    return [name for name, scale in SCALES.items() if scale.fits(limits)]


def _data(arrays: Mapping[Variable, Any], var: Variable) -> list[np.ndarray]:
    return evaluate([var], arrays)
