"""Acceptance tests on growing batches: rows are read until the test decides; see `decisions`."""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import (
    GENERATOR,
    INDEX,
    SCALAR,
    VECTOR,
    Compiled,
    function_at,
    generator_at,
    inner,
    load,
)
from pymc_subsample.kernels.batches import CHUNK, PERMUTATION, draw, restore
from pymc_subsample.kernels.model import ANCHOR, GATHER, LEFT, MODEL, change, functions
from pymc_subsample.kernels.vectors import is_finite
from pymc_subsample.samplers.minibatch.decisions import (
    ACCEPT,
    ANSWER,
    DECIDE,
    EVIDENCE,
    REJECT,
    Answer,
    Evidence,
)

MEMBERS = types.Array(types.uint32, 1, "C")


@inner
def merged(y, a, old_mean, old_second, old_third):
    """Merge new numbers into count, mean and central moments (Chan et al. 1979; Pebay 2008)."""
    b = y.shape[0]
    mean = 0.0
    for i in range(b):
        mean += y[i]
    mean /= b
    second = 0.0
    third = 0.0
    for i in range(b):
        e = y[i] - mean
        second += e * e
        third += e * e * e
    total = a + b
    shift = mean - old_mean
    old_second, old_third = old_second * a, old_third * a
    new_mean = old_mean + (shift * b / total if a > 0.0 else mean)
    new_third = (
        old_third + third + shift**3 * a * b * (a - b) / (total * total)
        + 3.0 * shift * (a * second - b * old_second) / total
    ) / total  # fmt: skip
    new_second = (old_second + second + shift * shift * a * b / total) / total
    return total, new_mean, new_second, new_third


# A test and its numbers.
Criterion = namedtuple("Criterion", "decide settings")
CRITERION = types.NamedTuple([types.int64, VECTOR], Criterion)

# Rows that a log-ratio sums over, and what reads them.
#
# order : of the control variates; without any, rows are not anchored
# permutation : array (n,) of uint32; 0, 1, ..., n - 1, left as it was found
# members : array (n,) of uint32; the rows, or empty: rows 0 to n - 1
# weight : n / T
Reader = namedtuple(
    "Reader", "anchor left gather columns width center order permutation members weight"
)
READER = types.NamedTuple(
    [
        types.FunctionType(ANCHOR), types.FunctionType(LEFT), types.FunctionType(GATHER), INDEX,
        types.int64, VECTOR, types.int64, PERMUTATION, MEMBERS, SCALAR,
    ],
    Reader,
)  # fmt: skip


@inner
def begun(known, threshold, uniform, normal, low, high):
    """Return the `Evidence` before any row has been read."""
    return Evidence(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, low, high, known, threshold, uniform, normal)


@kept(
    types.Tuple([EVIDENCE, ANSWER])(
        types.FunctionType(DECIDE), VECTOR, READER, types.npy_rng, VECTOR, VECTOR, types.int64,
        EVIDENCE,
    ),
)  # fmt: skip
def accept(decide, settings, reader, rng, phi, new_phi, full_bound, unseen):
    """Read rows until the test decides; return the evidence and its answer.

    The bounds of y come from a pass over all rows if `full_bound`; else they are those of `unseen`,
    what is known without rows.
    """
    anchor, left, gather, columns, width, center, order, permutation, members, weight = reader
    low, high, known = unseen.low, unseen.high, unseen.known
    threshold, uniform, normal = unseen.threshold, unseen.uniform, unseen.normal
    n = permutation.shape[0]
    index = np.empty(CHUNK, dtype=np.int64)
    rows = np.empty((width, CHUNK))
    y = np.empty(CHUNK)
    if full_bound:
        low, high = np.inf, -np.inf
        for start in range(0, n, CHUNK):
            m = min(CHUNK, n - start)
            if m < CHUNK:
                index, y, rows = np.empty(m, dtype=np.int64), np.empty(m), np.empty((width, m))
            for j in range(m):
                index[j] = members[start + j] if members.shape[0] > 0 else start + j
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            change(left, phi, new_phi, center, rows, y)
            for j in range(m):
                low = min(low, weight * y[j])
                high = max(high, weight * y[j])
    count, look, mean, second, third = 0.0, 0.0, 0.0, 0.0, 0.0
    drawn = 0
    wanted = int(min(n, settings[0]))
    while True:
        while count < wanted:
            seen = int(count)
            m = min(CHUNK, wanted - seen)
            if m != index.shape[0]:
                index, y, rows = np.empty(m, dtype=np.int64), np.empty(m), np.empty((width, m))
            if drawn == 0 and wanted == n:
                for j in range(m):
                    index[j] = seen + j
            else:
                draw(rng, permutation, seen, index)
                drawn = seen + m
            if members.shape[0] > 0:
                for j in range(m):
                    index[j] = members[index[j]]
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            change(left, phi, new_phi, center, rows, y)
            for j in range(m):
                y[j] *= weight
            count, mean, second, third = merged(y, count, mean, second, third)
        look += 1.0
        evidence = Evidence(
            float(n), count, look, mean, second, third, low, high, known, threshold, uniform, normal
        )
        if is_finite(mean):
            answer = decide(settings, evidence)
        else:
            # A row that is impossible at the proposal, or was at the current point.
            decision, probability = (ACCEPT, 1.0) if mean > 0.0 else (REJECT, 0.0)
            answer = Answer(decision, probability, 0.0, 0.0)
        if answer.decision <= 0.0:
            break
        wanted = int(answer.decision)
    restore(permutation, drawn)
    return evidence, answer


@kept(ANCHOR)
def _leave(center, rows):
    """Anchor nothing."""


@kept(LEFT)
def _read(phi, center, rows, value):
    for i in range(value.shape[0]):
        value[i] = rows[0, i] if phi[0] > 0.0 else 0.0


@kept(GATHER)
def _number(columns, index, rows):
    for i in range(index.shape[0]):
        rows[0, i] = load(columns[0] + 8 * index[i], np.float64)  # of 8 bytes each


# A model whose rows change by the numbers y, at the address `columns[0]`, from phi = 0 to 1.
NUMBERS = (
    Compiled(_leave, ANCHOR, None),
    Compiled(_read, LEFT, None),
    Compiled(_number, GATHER, None),
)
_functions = functions(("anchor", "left", "gather"))


@kept(
    types.int64(
        GENERATOR, MODEL, CRITERION, PERMUTATION, EVIDENCE, VECTOR, VECTOR, VECTOR, types.int64,
    ),
)  # fmt: skip
def decisions(generator, model, test, permutation, unseen, uniforms, thresholds, accepted,
              most_rows):  # fmt: skip
    """Let a test decide about one proposal again and again; return how often it did.

    The model is `NUMBERS`, with the address of y, shape (n,); `unseen` has the known part of the
    log-ratio and bounds of y. Each decision, of its own of `uniforms` and `thresholds`, writes 1 or
    0 to `accepted`, until so many rows have been read.
    """
    decide = function_at(test.decide, DECIDE)
    rng = generator_at(generator)
    here, there, every = np.zeros(1), np.ones(1), np.empty(0, dtype=np.uint32)
    anchor, left, gather = _functions(model.functions)
    reader = Reader(
        anchor, left, gather, model.columns, model.width, here, 0, permutation, every, 1.0
    )
    read = 0.0
    for j in range(uniforms.shape[0]):
        start = begun(
            unseen.known, thresholds[j], uniforms[j], rng.standard_normal(), unseen.low,
            unseen.high,
        )  # fmt: skip
        evidence, answer = accept(decide, test.settings, reader, rng, here, there, 0, start)
        accepted[j] = 1.0 if answer.decision == ACCEPT else 0.0
        read += evidence.n_seen
        if read > most_rows:
            return j + 1
    return uniforms.shape[0]
