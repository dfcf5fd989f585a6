r"""Firefly Monte Carlo: the compiled transition.

Row i has likelihood :math:`L_i`, a lower bound :math:`B_i` of it, and a light :math:`z_i`. With
:math:`q_i = \log B_i` and :math:`d_i = \log L_i - q_i \ge 0`, both over the temperature, parameters
and lights have the density

.. math:: p(\theta) \exp\Bigl(\sum_i q_i(\theta)\Bigr) \prod_{i:\,z_i = 1} (e^{d_i(\theta)} - 1)

whose marginal in theta is the posterior. The sum over all rows is a quadratic that is known
beforehand; else only the bright rows, z = 1, are read. A transition updates the lights, then theta.

Updated explicitly, a light among a random share r of all is drawn from its conditional
distribution, bright with probability :math:`1 - e^{-d}`. Updated implicitly, every light is
proposed to change, a dark one with probability r only, and accepted as Metropolis and Hastings do.
Dark rows that are looked at come by skips of geometric length, so that others cost nothing.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, INDEX, MATRIX, SCALAR, generator_at, inner
from pymc_subsample.kernels import proposals
from pymc_subsample.kernels.batches import CHUNK
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import ALONE, BRIGHT, MODEL, SUMS, functions
from pymc_subsample.kernels.proposals import PROPOSING
from pymc_subsample.kernels.vectors import clear, copy

# Of the model, in the order of their addresses; that of Langevin proposals comes last.
FUNCTIONS = ("forward", "anchor", "residual", "gather", "backward")
_functions = functions(FUNCTIONS)

# How rows light up.
EXPLICIT, IMPLICIT = 0, 1

# Results of a run of transitions: means over them, then sums, then the least residual seen.
INFO = (
    "accepted",
    "acceptance_rate",
    "n_bright",
    "rows_read",  # anchored anew and evaluated
    "rows_moved",  # evaluated at proposals
    "darkened",  # lights that went out
    "lowest",
)
ACCEPTED, RATE, N_BRIGHT, READ, MOVED, DARKENED, LOWEST = range(len(INFO))

# Bright rows for which there is room beside those at the start; it doubles where that is too
# little.
_ROOM = 16

LIGHTS = types.Array(types.uint8, 1, "C")


@kept(SCALAR(SCALAR))
def log_excess(d):
    """Compute log(exp(d) - 1); minus infinity where rounding has made d negative."""
    if d > 1.0:
        return d + np.log1p(-np.exp(-d))
    return np.log(np.expm1(d)) if d > 0.0 else -np.inf


@inner
def _brightens(d, rate, kind, u):
    """Whether a dark row that is looked at becomes bright."""
    if kind == EXPLICIT:
        return u < -np.expm1(-d)
    return u * rate < np.expm1(d)


@inner
def _darkens(d, rate, kind, u):
    """Whether a bright row becomes dark."""
    if kind == EXPLICIT:
        return u < rate * np.exp(-d)
    return u * np.expm1(d) < rate


@inner
def _grown(bright, packed, d, size):
    """Return longer copies of what is kept of bright rows, if there is no room for one more."""
    if size < bright.shape[0]:
        return bright, packed, d
    longer = 2 * size + _ROOM
    new_bright, new_d = np.empty(longer, dtype=np.int64), np.empty(longer)
    new_packed = np.empty((longer, packed.shape[1]))
    for j in range(size):
        new_bright[j], new_d[j] = bright[j], d[j]
        for c in range(packed.shape[1]):
            new_packed[j, c] = packed[j, c]
    return new_bright, new_packed, new_d


# How rows are read, and 1 / T.
BrightReader = namedtuple("BrightReader", "anchor residual gather columns center width weight")

# Lights: array (n,) of uint8, zeros, left as they were found; rows that are bright to begin with,
# and whether to draw all anew first; how they are updated, `EXPLICIT` or `IMPLICIT`, with r: the
# share drawn anew, or the probability of a dark row's proposal.
Lights = namedtuple("Lights", "lights bright fresh kind rate")
_LIGHTS = types.NamedTuple([LIGHTS, INDEX, types.int64, types.int64, SCALAR], Lights)


@inner
def _read(reader, index, phi, info):
    """Pack and anchor some rows; return them and their residuals."""
    rows, values = np.empty((reader.width, index.shape[0])), np.empty(index.shape[0])
    reader.gather(reader.columns, index, rows)
    reader.anchor(reader.center, rows)
    reader.residual(phi, rows, reader.center, ALONE, 1.0, 0.0, values, np.empty(0))
    for i in range(values.shape[0]):
        values[i] *= reader.weight
        info[LOWEST] = min(info[LOWEST], values[i])
    info[READ] += values.shape[0]
    return rows, values


@inner
def _relight(reader, rng, lights, phi, rate, kind, bright, packed, d, size, info):
    """Update the lights; return what is kept of bright rows, and their number."""
    n, before = lights.shape[0], size
    index = np.empty(CHUNK, dtype=np.int64)
    row, skipping = -1.0, rate < 1.0
    while row < n:
        m = 0
        while m < CHUNK:
            row += 1.0
            if skipping:
                row += np.floor(np.log(1.0 - rng.random()) / np.log1p(-rate))
            if not row < n:
                break
            if lights[int(row)] == 0:
                index[m] = int(row)
                m += 1
        if m == 0:
            break
        seen = np.empty(m, dtype=np.int64)
        copy(index[:m], seen)
        rows, values = _read(reader, seen, phi, info)
        for i in range(m):
            if _brightens(values[i], rate, kind, rng.random()):
                bright, packed, d = _grown(bright, packed, d, size)
                bright[size], d[size] = seen[i], values[i]
                for c in range(reader.width):
                    packed[size, c] = rows[c, i]
                lights[seen[i]] = 1
                size += 1
    for j in range(before - 1, -1, -1):
        if _darkens(d[j], rate, kind, rng.random()):
            lights[bright[j]] = 0
            size -= 1
            bright[j], d[j] = bright[size], d[size]
            for c in range(reader.width):
                packed[j, c] = packed[size, c]
            info[DARKENED] += 1.0
    return bright, packed, d, size


@inner
def _collect(reader, lights, phi, old, info):
    """Read the rows that are bright to begin with."""
    size = old.shape[0]
    bright, d = np.empty(size + _ROOM, dtype=np.int64), np.empty(size + _ROOM)
    packed = np.empty((size + _ROOM, reader.width))
    for start in range(0, size, CHUNK):
        index = np.empty(min(CHUNK, size - start), dtype=np.int64)
        copy(old[start : start + index.shape[0]], index)
        rows, values = _read(reader, index, phi, info)
        for i in range(index.shape[0]):
            bright[start + i], d[start + i] = index[i], values[i]
            lights[index[i]] = 1
            for c in range(reader.width):
                packed[start + i, c] = rows[c, i]
    return bright, packed, d


@inner
def _bright_gradient(backward, residual, theta, phi, rows, sums, weight, d, grad_phi, grad):
    """Gradient in theta of the log density given the lights."""
    clear(grad_phi)
    residual(phi, rows, sums.center, BRIGHT, weight, 0.0, d, grad_phi)
    control_sum(phi, sums, 0.0, grad_phi)
    backward(theta, grad_phi, grad)


@inner
def _draw(generator, row_generator, model, sums, given, proposing, weight, theta, k, info):
    """Run k transitions from theta, in place; return the rows that are bright in the end."""
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    forward, anchor, residual, gather, backward = _functions(model.functions)
    lights, old, fresh, brightness, rate = given
    center, width = sums.center, model.width
    reader = BrightReader(anchor, residual, gather, model.columns, center, width, weight)
    p, langevin = center.shape[0], proposing.kind == proposals.LANGEVIN
    phi, new_phi, grad_phi = np.empty(p), np.empty(p), np.empty(p)
    prior, new_prior = np.empty(1), np.empty(1)
    new_theta, grad = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    proposal = proposals.proposal_of(proposing)
    clear(info)
    info[LOWEST] = np.inf
    forward(theta, phi, prior)
    size = old.shape[0]
    bright, packed, d = _collect(reader, lights, phi, old, info)
    if fresh:
        bright, packed, d, size = _relight(reader, row_rng, lights, phi, 1.0, EXPLICIT, bright,
                                           packed, d, size, info)  # fmt: skip
        info[DARKENED] = 0.0
    for _ in range(k):
        bright, packed, d, size = _relight(reader, row_rng, lights, phi, rate, brightness, bright,
                                           packed, d, size, info)  # fmt: skip
        info[N_BRIGHT] += size
        rows, new_d = np.empty((width, size)), np.empty(size)
        for c in range(width):
            for j in range(size):
                rows[c, j] = packed[j, c]
        proposals.draw_move(rng, proposal)
        if langevin:
            _bright_gradient(backward, residual, theta, phi, rows, sums, weight, new_d, grad_phi,
                             grad)  # fmt: skip
            proposals.add_drift(proposal, grad)
        proposals.move(proposal, theta, new_theta)
        forward(new_theta, new_phi, new_prior)
        if langevin:
            _bright_gradient(backward, residual, new_theta, new_phi, rows, sums, weight, new_d,
                             grad_phi, grad)  # fmt: skip
        uniform = rng.random()
        if not new_prior[0] > -np.inf:
            continue
        if not langevin:
            residual(new_phi, rows, center, ALONE, 1.0, 0.0, new_d, grad_phi)
        info[MOVED] += size
        ratio = proposals.log_factor(proposal, grad)
        ratio += new_prior[0] - prior[0]
        ratio += control_sum(new_phi, sums, 0.0, grad_phi)
        ratio -= control_sum(phi, sums, 0.0, grad_phi)
        for j in range(size):
            new_d[j] *= weight
            info[LOWEST] = min(info[LOWEST], new_d[j])
            ratio += log_excess(new_d[j]) - log_excess(d[j])
        if ratio > -np.inf:
            info[RATE] += min(1.0, np.exp(min(ratio, 0.0)))
        if np.log(uniform) < ratio:
            copy(new_theta, theta)
            copy(new_phi, phi)
            copy(new_d, d)
            prior[0] = new_prior[0]
            info[ACCEPTED] += 1.0
    for field in range(READ):  # those before are means
        info[field] /= k
    result = np.empty(size, dtype=np.int64)
    copy(bright[:size], result)
    for j in range(size):
        lights[bright[j]] = 0
    return result


@kept(
    INDEX(
        GENERATOR, GENERATOR, MODEL, SUMS, _LIGHTS, PROPOSING, SCALAR, MATRIX, types.int64, MATRIX
    )
)
def transitions(generator, row_generator, model, sums, given, proposing, weight, thetas, k, infos):
    """Make draws of k transitions each; return the rows that are bright in the end.

    The generators are of proposals and decisions, and of the lights. `sums` are of the log bounds,
    `weight` is 1 / T, and Langevin's gradient is exact, without a batch. The first of `thetas`, (n,
    d), is where the chain is; draws are written over them, and `INFO` to `infos`.
    """
    bright = given.bright
    for i in range(thetas.shape[0]):
        if i > 0:
            copy(thetas[i - 1], thetas[i])
        fresh = given.fresh if i == 0 else 0
        now = Lights(given.lights, bright, fresh, given.kind, given.rate)
        bright = _draw(generator, row_generator, model, sums, now, proposing, weight, thetas[i], k,
                       infos[i])  # fmt: skip
    return bright
