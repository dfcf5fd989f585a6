"""What tells the rows' log-likelihood of one model from that of another."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from importlib import import_module

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.functions import building_graphs, lower
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.model.evaluation import Evaluation
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.mapped import MappedRows
from pymc_subsample.rows.store import Store
from pymc_subsample.rows.stored_results import read_result, write_result

_TOGETHER = 64  # Rows that NumPy compares as one.


def archive(
    tall: Evaluation, what: str, *at: np.ndarray, of: Sequence[Variable] = ()
) -> tuple[Store, str] | None:
    """Return where something that was computed from rows on disk is stored, and its name there.

    The name depends on the log-likelihood of a row as a function of phi and columns and on phi as a
    function of theta, or on other columns `of` the batch graph, constants included, on the columns
    that the model's data are, and on the numbers `at`. It does not depend on the prior. None where
    rows are in memory or in several folders, or PyTensor has no name for one of the functions.
    """
    if not isinstance(tall.rows, MappedRows) or (disk := tall.rows.disk) is None:
        return None
    with building_graphs():
        graphs = rebuild(of or tall.batch.outputs, dict(tall.derived))
        functions = [lower([*tall.phi_slices, *tall.raw], graphs)]
        functions += [] if of else [lower([tall.theta], tall.phi_graphs)]
    names = [name for _, name in functions]
    if None in names:
        return None
    columns = [
        (c.row_shape, c.offsets, [t.str for t in c.types], c.dtype.str) for c in tall.rows.columns
    ]
    phi = [(place.start, str(v.type)) for v, place in tall.phi_slices.items()]
    versions = import_module("pymc_subsample").__version__, pm.__version__, pytensor.__version__
    numbers = [x.tobytes().hex() for x in (*at, *((not of and tall.qr) or ()))]
    said = repr((names, columns, phi, tall.size, versions, numbers))
    return disk, f"{what}-{sha256(said.encode()).hexdigest()}"


def extremes(tall: Evaluation, var: Variable, axis: int) -> np.ndarray:
    """Return the smallest and largest value over all rows of each number that rows have.

    Shape (2, k), for the elements of a data-only variable with rows on an axis, in order. Those of
    columns on disk are known, and of what is computed from these they are stored.
    """
    source = tall.derived.get(var)
    column = tall.rows.columns[tall.raw.index(source)] if source in tall.raw else None
    if isinstance(column, StoredColumn):
        known = [column.statistic(which).ravel() for which in ("low", "high")]
        return np.array(known, var.type.dtype)
    place, begin, parts = archive(tall, "extremes", of=[var]), 0, []
    if place and (before := read_result(*place)) is not None:
        begin, arrays = before
        parts.append(arrays["extremes"])
    parts += tall.over_column(var, partial(_extremes, axis=axis), begin)
    found = np.array([np.min(parts, axis=(0, 1)), np.max(parts, axis=(0, 1))])
    if place and begin < tall.n_rows:
        write_result(*place, {"extremes": found})
    return found


def _extremes(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the smallest and largest value over rows, shape (2, k)."""
    if axis == 0 and len(x) > _TOGETHER:  # NumPy compares many short rows at a time faster
        whole = len(x) - len(x) % _TOGETHER
        blocks, rest = x[:whole].reshape(-1, _TOGETHER, *x.shape[1:]), x[whole:]
        return np.array(
            [of.reduce([*of.reduce(blocks), *rest]).ravel() for of in (np.minimum, np.maximum)]
        )
    return np.array([x.min(axis).ravel(), x.max(axis).ravel()])
