"""Checks of a finished model on its own data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise

from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.binding import listed
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.evaluation import SHARE, Evaluation
from pymc_subsample.model.identity import archive
from pymc_subsample.model.levels import indexed
from pymc_subsample.model.support import impossible
from pymc_subsample.model.terms import Whole
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.row_store import parts_of
from pymc_subsample.rows.stored_results import rows_of_result, write_result
from pymc_subsample.rows.workers import current
from pymc_subsample.validation import warn

Loglik = Callable[[np.ndarray, Any], np.ndarray]

# Warnings point to the line outside that made the model or the step.

# Fourth powers are still finite.
_LARGEST_NUMBER = 1e60
_SHOWN = 10
# A whole number below which it is likely that it was large and positive.
_WRAPPED = -1_000_000
_SURELY_WRAPPED = -(2**30)
# Of PyMC's start of positive parameters, what else is tried.
_SMALLER = (0.1, 0.01, 1e-3)
_LOST_BITS = (
    "if it was 2,147,483,648 or more, PyMC has kept 32 bits of it. Give such numbers as floats."
)

# A term that reads fewer costs little beside a subsample.
_MANY_NUMBERS = 10_000

# Rows that are read at a time where all are.
_PIECE = 2**17
# Verification evaluates all rows at once if no quantity on the way is larger than this.
_LARGEST_BYTES = 2**27
# Rows that are compared, two steps from the start in units of the parameters, and how many times
# its size a log-likelihood may change there for its rows to be looked at. Choices of time; where a
# step leads so far that densities underflow, agreement says nothing.
_SAMPLE = 200
_STEPS = (0.3, 0.01)
_FAR = 10.0
# Two ways to compute a log-likelihood agree to this share of the size of its terms, and to what
# rounding the parameters to a few thousand units in the last place changes.
_TOLERANCE = 1e-6
_ROUNDING = 1e-12
_JITTERED = 3


def check_sizes(tall: Evaluation) -> None:
    """Refuse columns with numbers so large that their squares and products overflow."""
    for var, column in zip(tall.raw, tall.rows.columns, strict=True):
        largest = max(map(_largest_number, parts_of(column)))
        if largest > _LARGEST_NUMBER:
            which = repr(var.name) if var.name else f"of shape {column.shape}"
            raise TallModelError(
                f"The column {which} in the data of {listed(tall.likelihood)} holds numbers up to "
                f"{largest:.3g} (at most {_LARGEST_NUMBER:g}), whose squares overflow. "
                "Divide it by its standard deviation."
            )


def _largest_number(column: np.ndarray | StoredColumn) -> float:
    if column.dtype.kind != "f":
        return 0.0
    if isinstance(column, StoredColumn):
        extremes = np.array([column.statistic("low"), column.statistic("high")])
        if np.all(np.isfinite(extremes)):
            return float(np.max(np.abs(extremes), initial=0.0))
    parts = (column[i : i + _PIECE] for i in range(0, len(column), _PIECE))
    return max(current().map(_largest_of, parts), default=0.0)


def _largest_of(column: np.ndarray) -> float:
    extremes = np.array([np.fmin.reduce(column, axis=None), np.fmax.reduce(column, axis=None)])
    if not np.all(np.isfinite(extremes)):  # such as the bounds of what is not censored
        extremes = column[np.isfinite(column)]
    return float(np.max(np.abs(extremes), initial=0.0))


def check_start(tall: Evaluation, batch: Loglik) -> None:
    """Evaluate prior and every row at the initial point; name the rows that are not finite.

    Of rows on disk, those that were found to be finite there before are not read again. The stable
    form of the log-likelihood decides, but `batch` is much faster in plain Python.
    """
    theta = tall.ravel(tall.initial_point)
    logprior = tall.logprior(theta)
    if not np.isfinite(logprior):
        raise TallModelError(
            f"The log prior is not finite at the initial point ({logprior}): "
            f"{impossible(tall.model, tall.initial_point, tall.likelihood)}. Give an `initval` "
            "inside the support."
        )
    place = archive(tall, "start", theta)
    begin = rows_of_result(*place) if place else 0
    bad: list[int] = []
    kinds: set[str] = set()

    def suspects(part: slice) -> np.ndarray:
        return part.start + np.flatnonzero(~np.isfinite(batch(theta, part)))

    found = current().map(suspects, tall.rows.slices(tall.rows.batch_size(), begin))
    try:
        doubtful = [suspect for suspect in found if len(suspect)]
    except IndexError:
        raise _bad_index(tall) from None
    for suspect in doubtful:
        values = tall.row_loglik(theta, suspect)
        wrong = ~np.isfinite(values)
        bad += suspect[wrong][:_SHOWN].tolist()
        kinds |= {"NaN" if np.isnan(v) else str(v) for v in values[wrong]}
    if bad:
        shown = tall.rows.named(bad[:_SHOWN])
        raise TallModelError(
            f"The log-likelihood of {listed(tall.likelihood)} is {' or '.join(sorted(kinds))} at "
            f"the initial point in rows {shown}{' and maybe more' * (len(bad) >= _SHOWN)}. "
            + _remedy(tall, theta, np.array(bad[:_SAMPLE]))
        )
    if place and begin < tall.n_rows:
        write_result(*place, {})


def _remedy(tall: Evaluation, theta: np.ndarray, rows: np.ndarray) -> str:
    """Say which columns are not finite in some rows, or what too far a start, and what to do."""
    found, wrapped = [], ""
    for var, column in zip(tall.raw, tall.rows.take(rows), strict=True):
        name = called(var, (tall.n_rows, *column.shape[1:]))
        if column.dtype.kind == "i" and np.any(column < _WRAPPED):
            wrapped = wrapped or f" There {name} is {column[column < _WRAPPED][0]:,}: {_LOST_BITS}"
        wrong = ~np.isfinite(column)
        if not wrong.any():
            continue
        value = "NaN" if np.isnan(column[wrong]).any() else f"{column[wrong].flat[0]}"
        if column.ndim == 2 and column.shape[1] > 1:
            which = np.flatnonzero(wrong.any(axis=0))[:_SHOWN]
            name += f" (column {', '.join(map(str, which))})"
        found.append((name, value))
    # Bounds that are infinite may be meant; what is missing never is.
    missing = [entry for entry in found if entry[1] == "NaN"]
    if not missing and (smaller := _too_large(tall, theta, rows)):
        share, starts = smaller
        names, [first, *_] = listed(list(starts)), starts
        return (
            f"They are finite if {names} is {share:g} times as large: that start is too far from "
            f"these data. Give it an `initval`, such as initval={starts[first]:.2g} for {first!r}, "
            "or give one of the size of these data to the variable that scales or shifts them."
        )
    if not found:
        return (
            "Look for impossible values in these rows, or give the parameters another `initval`."
            + wrapped
        )
    said = " and ".join(dict.fromkeys(f"{name} is {value}" for name, value in missing or found))
    do = "or fill in the missing values"
    if missing:
        do += "; a covariate with a distribution, observed= this column, is integrated out instead"
    return f"There {said}. Leave these rows out of the data, {do}."


def _too_large(
    tall: Evaluation, theta: np.ndarray, rows: np.ndarray
) -> tuple[float, dict[str, float]] | None:
    """Return by what a smaller start of one positive variable makes the rows finite, and which.

    The second largest of such shares, if there is one: at the first they are hardly finite.
    """
    works = []
    for share in _SMALLER:
        found = {}
        for name, part in zip(tall.names, tall.slices, strict=True):
            if name.endswith("_log__"):
                smaller = theta.copy()
                smaller[part] += np.log(share)
                if np.all(np.isfinite(tall.row_loglik(smaller, rows))):
                    found[name.removesuffix("_log__")] = float(np.exp(smaller[part].max()))
        if found:
            works.append((share, found))
    return works[:2][-1] if works else None


def warn_about_wrapped(tall: Evaluation) -> None:
    """Warn of columns of 32 bits that go down to where larger numbers are wrapped to."""
    for var, column in zip(tall.raw, tall.rows.columns, strict=True):
        if isinstance(column, np.ndarray) and column.dtype == np.int32:
            low = int(column.min(initial=0))
            if low < _SURELY_WRAPPED:
                name = repr(var.name) if var.name else "A column of whole numbers"
                warn(f"{name} goes down to {low:,}: {_LOST_BITS}")


def called(var: Variable, shape: tuple[int, ...]) -> str:
    """Name an array of the model."""
    return repr(var.name) if var.name else f"an array of shape {shape}"


def _bad_index(tall: Evaluation) -> TallModelError:
    """Find the integer column that points outside the array that it indexes."""
    for node, at, index in indexed(tall.batch.outputs):
        length = node.inputs[0].type.shape[at]
        if index not in tall.batch.axes or length is None:
            continue
        rows, start = [], 0
        outside = partial(_outside, length=length, axis=tall.batch.axes[index])
        for found, size in tall.over_column(index, outside):
            rows += (start + found).tolist()
            start += size
        if rows:
            columns = [v.name for v in ancestors([index]) if v in tall.batch.columns]
            names = "".join(f" {name!r}" for name in columns if name)
            return TallModelError(
                f"An integer column{names} of {listed(tall.likelihood)} points outside the array "
                f"of length {length} that it indexes, in rows "
                f"{tall.rows.named(rows[:_SHOWN])}. Use integers from 0 to {length - 1}."
                f"{_more_levels(tall, columns, length)}"
            )
    return TallModelError(
        f"An index of {listed(tall.likelihood)} points outside the array that it indexes. Check "
        "the integer columns of the model."
    )


def _more_levels(tall: Evaluation, names: Sequence[str | None], length: int) -> str:
    for root, column in tall.bound.items():
        levels = len(column.fields[0].levels or ())
        if root.name in names and levels > length:
            return (
                f" rows.coords[{root.name!r}] has {levels:,} levels, more than the model, as "
                "after appending rows with new ones: write the model again, for all of them."
            )
    return ""


def _outside(value: np.ndarray, length: int, axis: int) -> tuple[np.ndarray, int]:
    """Return the rows with an index outside of an array, and how many rows there are."""
    outside = np.argwhere((value < -length) | (value >= length))
    return np.unique(outside[:, axis]), value.shape[axis]


def check_batches(
    tall: Evaluation,
    batch: Loglik,
    rows: Variable,
    values: Sequence[Variable],
    arrays: Mapping[Variable, np.ndarray],
) -> None:
    """Compare rows in random company with the same rows among all rows, at random parameters.

    ``batch(theta, index)`` is the log-likelihood of the rows `index`, by the Ops of `rows`, that of
    all rows, shape (n,), a graph of `values` and data. It is evaluated if that takes little memory,
    at all parameters at once; otherwise each row is compared with itself alone.
    """
    found = list(probes(tall))
    if not tall.bound and _largest(rows) <= _LARGEST_BYTES:
        read = [v for v in ancestors([rows]) if v in arrays]
        function = numpy_function([*values, *read], [rows])

        def among_all(probe: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            theta, index = probe
            point = zip(values, tall.unravel(theta).values(), strict=True)
            parts = [x.astype(v.type.dtype) for v, x in point]
            return function(*parts, *(arrays[v] for v in read))[0][index]

        others = current().map(among_all, found, compiles=False)
    else:
        others = (np.concatenate([batch(at, [i]) for i in index]) for at, index in found)
    compared = 0
    for (theta, index), expected in zip(found, others, strict=True):
        # Before PyTensor's rewrites a log-likelihood may overflow where the batch's does not.
        known = np.isfinite(expected)
        compared += int(known.sum())
        error = abs(batch(theta, index)[known] - expected[known])
        if not np.all(error <= tolerance(tall, batch, theta, index)[known]):
            raise TallModelError(
                f"The log-likelihood of {listed(tall.likelihood)} in a row changes with the rows "
                "around it: rows are coupled in a way that was not recognised. Write the "
                "likelihood so that each row depends on parameters and on that row alone, or "
                "sample this model with pm.sample()."
            )
    if not compared:
        warn_uncompared(tall)


def warn_uncompared(tall: Evaluation) -> None:
    """Say that checks of the log-likelihood had nothing to go by."""
    warn(
        f"The log-likelihood of {listed(tall.likelihood)} by its own operations is not finite, or "
        "has lost its digits to underflow, in all of the rows and at all of the parameters looked "
        "at: the stable form that is sampled could not be compared with it. Write sums of "
        "exponentials with pm.math.logsumexp or pm.Mixture, or compare a few rows yourself."
    )


def probes(tall: Evaluation) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield random parameters, shape (d,), and rows, shape (m,), at two distances of the start.

    Rows whose log-likelihood has changed so much that it may be mostly rounding, as log(1 - p) at
    a large predictor is, are left out while there are others.
    """
    rng, start = np.random.default_rng(0), tall.ravel(tall.initial_point)
    for step in _STEPS:
        theta = start + step * tall.units * rng.normal(size=tall.size)
        for name, place in zip(tall.names, tall.slices, strict=True):
            if name in tall.binary:
                theta[place] = rng.random(place.stop - place.start) < 0.5
        starts = tall.rows.starts
        size = min(_SAMPLE, 2 * tall.n_rows) // (len(starts) - 1)
        index = np.concatenate([rng.integers(a, b, size) for a, b in pairwise(starts)])
        before, after = (tall.loglik_as_written(point, index) for point in (start, theta))
        with np.errstate(invalid="ignore"):
            far = abs(after - before) > _FAR * (1.0 + SHARE * abs(before))
        yield theta, index if far.all() else index[~far]


def tolerance(tall: Evaluation, loglik: Loglik, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
    """How far two ways to compute log-likelihoods may be apart, shape (m,).

    A share of their size, and what rounding can change: where terms cancel, or where a function
    is evaluated close to its singularity, that is found by rounding the parameters.
    """
    rng = np.random.default_rng(1)
    scale = _ROUNDING * np.maximum(abs(theta), tall.units) * (tall.units > 0)
    expected = loglik(theta, index)
    known = np.isfinite(expected)
    allowed = np.full(len(expected), np.inf)
    size = abs(expected[known])
    allowed[known] = _TOLERANCE * np.maximum(size, size.mean() if len(size) else 0.0)
    for _ in range(_JITTERED):
        moved = loglik(theta + scale * rng.normal(size=tall.size), index)
        allowed[known] += np.nan_to_num(abs(moved[known] - expected[known]), posinf=0.0)
    return allowed


def _largest(output: Variable) -> int:
    """Bytes of the largest array made on the way to `output`; products copy what they convert."""
    largest = 0
    for node in toposort([output]):
        if getattr(node.op, "view_map", {}):
            continue
        arrays = [v for v in node.outputs if None not in getattr(v.type, "shape", (None,))]
        for out in arrays:
            made = [out] if isinstance(node.op, Elemwise) else [out, *node.inputs]
            for var in made:
                if None in getattr(var.type, "shape", (None,)):
                    continue
                if var is out or var.type.dtype != out.type.dtype:
                    size = int(np.prod(var.type.shape, dtype=int))
                    largest = max(largest, size * np.dtype(out.type.dtype).itemsize)
    return largest


def warn_about_whole_terms(terms: Sequence[Whole], n_rows: int) -> None:
    """Warn of terms outside the rows that read many numbers, a tenth of the rows' or more."""
    for term in terms:
        if term.numbers >= max(_MANY_NUMBERS, n_rows // 10):
            warn(
                f"{term.name!r} is not subsampled ({term.why}) and reads {term.numbers:,} numbers, "
                "all of them at every gradient, which is exact and slow. If it is a sum over "
                "rows, write it with one element for each (a potential as a vector) and name it in "
                "likelihood=; if it needs only sums of data, precompute them."
            )
