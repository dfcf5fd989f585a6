"""Loops of a log-likelihood or a prediction, written out and compared with themselves."""

from collections.abc import Mapping, Sequence

import numpy as np
from pytensor.graph.basic import Variable

from pymc_subsample.graph.concrete import on_disk
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.graph.unrolled import without_loops
from pymc_subsample.model.errors import TallModelError

# Points that are compared, how far from the start, and to which share: both ways add and multiply
# the same numbers.
_POINTS, _APART, _TOLERANCE = 3, 0.1, 1e-8


def followed(
    outputs: Sequence[Variable],
    values: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    start: Mapping[str, np.ndarray],
) -> list[Variable]:
    """Write out the loops of graphs, and evaluate both beside the start.

    Of columns on disk the model's own sample is compared. Steps of a loop are freed as they are
    evaluated, so that this takes about as much memory as the data.
    """
    new = without_loops(outputs, values, arrays)
    changed = [(a, b) for a, b in zip(outputs, new, strict=True) if a is not b]
    if not changed or any(on_disk(array) for array in arrays.values()):
        return new
    rng = np.random.default_rng(0)
    for _ in range(_POINTS):
        point = {v: _moved(np.asarray(start[v.name]), rng) for v in values if v.name is not None}
        found = evaluate([v for pair in changed for v in pair], {**arrays, **point})
        for a, b in zip(found[::2], found[1::2], strict=True):
            alike = a.shape == b.shape
            if not alike or not np.allclose(a, b, _TOLERANCE, _TOLERANCE, equal_nan=True):
                raise TallModelError(
                    "A loop of the model was misread. Please report the model, sample it with "
                    "pm.sample(), and predict with pm.sample_posterior_predictive."
                )
    return new


def _moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return x + rng.normal(0.0, _APART, x.shape) if x.dtype.kind == "f" else x
