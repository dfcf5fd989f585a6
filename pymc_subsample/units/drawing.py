"""Draws of a unit's variables given what units share: proposals around its mode, accepted.

And those of local variables, as the model has them, for each recorded draw of shared ones.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.special import gammaln

from pymc_subsample.graph.numpy_functions import frozen, numpy_function
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.missed_mass import share_elsewhere
from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.moving import newton_step
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reference import start_of
from pymc_subsample.units.unit_arrays import variable_of
from pymc_subsample.units.unit_code import Densities, UnitCode, code_of, densities
from pymc_subsample.units.unit_densities import UnitFunctions

# Proposals are Student-t with so many degrees of freedom, whose tails are heavier than those of
# units given rows, and wider than a unit, whose mode and spread one step of Newton's finds.
_DEGREES, _WIDER = 4.0, 1.2
# Nodes per dimension at which the largest ratio is looked for, and how much larger it may be
# between them: in steps of a standard deviation a normal density beside a wider one differs by
# less. In more dimensions fewer nodes serve: a choice of time, for which draws answer by what they
# accept (`EXCESS`).
_LOOKED, _IN_MORE, _MOST_NODES = {1: 45, 2: 15}, 7, 512
_BETWEEN = 0.1
# By how much a unit's ratio, where it was largest at the reference, may differ from what the height
# of its mode foretells: half of what is added to it. And what a step of Newton's may gain, as log
# density, and do to the logarithm of the volume: then 8,000 bounds of 200 units in each of two
# panels were short by at most 0.05, and one in ten was looked for anew. Steps that gain or do more
# than the second numbers, as one of two standard deviations, are not taken.
_ALIKE = _BETWEEN / 2
_FORETOLD, _TAKEN = (0.2, 0.2), (2.0, np.log(2.0))
# Beyond, the exponential is not finite.
_LARGEST = 700.0
# What draws of a unit may be off by, as a share of probability.
EXCESS = 0.01
# Proposals at a time, twice as many at each turn, and until a unit is given up. While the units
# that are left have so many rows in all, a call takes longer to make than to evaluate.
_AT_A_TIME, _MOST = 8, 4_096
_FEW_ROWS = 4_000
# Levels, or densities, at a time, so that arrays stay within a processor's cache, and rows of them,
# so that those of few levels with very many rows stay within memory.
_TOGETHER, _ROWS_TOGETHER = 10_000, 100_000


class Drawer:
    """Draws of units' variables, by proposals around their modes.

    A proposal is accepted with a probability of its density over the largest one, relative to what
    it was proposed with: draws are independent and exact if that bound holds. Around its mode, in
    units of its spread, a unit's density has nearly the same shape at all theta, so that the ratio
    is the largest where it was at the reference, among many nodes. If it is not there what the
    height of the mode foretells, all of the nodes are looked at again, and proposals are looked at
    too (Caffo, Booth and Davis, 2002). `missed` has the share of probability by which proposals
    went beyond, or that is far away: what draws may be off by.

    `at` are functions of the same units and the theta at which modes were found, `steps` those of
    Newton's by which nodes of integrals move, and `code` that of the functions.
    """

    def __init__(
        self,
        functions: UnitFunctions,
        modes: Modes,
        at: tuple[UnitFunctions, np.ndarray],
        steps: int,
        code: UnitCode | None,
    ) -> None:
        self._at_reference, self._steps = modes, steps
        self._densities = densities(functions, code)
        units, size = modes.m.shape
        self._rows = sum(len(part.unit) for part in functions.data) / units
        points = nodes(size, _LOOKED.get(size, _IN_MORE))[0][:_MOST_NODES]
        self._nodes = _WIDER * points
        own, theta = at
        # Beyond where the bound is looked for.
        reach = float(np.max(np.abs(self._nodes)))
        self._elsewhere = share_elsewhere(own, theta, modes, reach)
        there = (self._densities if own is functions else Densities(own)).at(theta)
        placed, height, _ = _placed(there, modes)
        largest, which = self._largest(there, placed, np.arange(units))
        self._where, self._above = self._nodes[which], largest - height
        self._beyond, self._within = np.zeros(units), np.zeros(units)
        self._lost = np.zeros(units, dtype=bool)  # Units of which a draw was not accepted.
        self._states = None if functions.graphs.states is None else StateDrawer(functions)

    @property
    def missed(self) -> np.ndarray:
        """Share of probability beyond the bound, or far from the mode, by unit."""
        excess = self._beyond / np.maximum(self._within, 1e-300)
        return np.where(self._lost, 1.0, np.maximum(excess, self._elsewhere))

    # Units that theta rules out have a bound of zero: no proposal of theirs is accepted.
    @np.errstate(invalid="ignore")
    def draw(self, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a draw for each unit, shape (units, size); NaN where none was accepted."""
        units, size = self._at_reference.m.shape
        result, left = np.full((units, size), np.nan), np.arange(units)
        at, modes = self._densities.at(theta), self._at_reference
        for _ in range(self._steps):
            m, S, _ = newton_step(modes, *at.derivatives(modes)[1:])
            modes = replace(modes, m=m, S=S)
        modes, *known = _placed(at, modes)
        bound = self._bound(at, modes, *known)
        times, tried = max(1, min(self._cheap(units), _AT_A_TIME)), 0
        while len(left) and tried < _MOST:
            nu = _student(rng, (times, len(left), size))
            ratios, u = _log_ratios(at, modes, nu, left)
            over = np.where(ratios > -np.inf, ratios - bound[left], -np.inf)
            self._beyond[left] += np.expm1(np.clip(over, 0.0, _LARGEST)).sum(axis=0)
            self._within[left] += np.exp(np.minimum(over, 0.0)).sum(axis=0)
            accepted = np.log(rng.random(ratios.shape)) < over
            some, first = accepted.any(axis=0), np.argmax(accepted, axis=0)
            result[left[some]] = u[first[some], np.flatnonzero(some)]
            bound[left] = np.maximum(bound[left], ratios.max(axis=0))
            left, tried = left[~some], tried + times
            times = max(min(2 * times, _AT_A_TIME), self._cheap(len(left)))
        self._lost[left] = True
        return result if self._states is None else self._states.draw(theta, rng, result)

    def _cheap(self, units: int) -> int:
        """Return how many proposals of each unit have few rows in all."""
        return int(_FEW_ROWS / (self._rows * max(units, 1)))

    def _bound(
        self, at: Densities, modes: Modes, height: np.ndarray, short: np.ndarray
    ) -> np.ndarray:
        """Return the largest log ratio of each unit."""
        [bound], _ = _log_ratios(at, modes, self._where[None], np.arange(len(modes.m)))
        alike = short & (np.abs(bound - height - self._above) < _ALIKE)
        others = np.flatnonzero(~alike)
        if len(others):
            bound[others], _ = self._largest(at, modes, others)
        return bound + _BETWEEN

    def _largest(
        self, at: Densities, modes: Modes, units: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest log ratio of units at all nodes, and the number of its node."""
        largest, which = np.full(len(units), -np.inf), np.zeros(len(units), dtype=int)
        each = max(1.0, self._rows * _TOGETHER / _ROWS_TOGETHER)
        together = max(1, int(_TOGETHER / (each * len(units))))
        for start in range(0, len(self._nodes), together):
            nu = self._nodes[start : start + together, None]
            ratios, _ = _log_ratios(at, modes, nu, units)
            found, place = ratios.max(axis=0), ratios.argmax(axis=0)
            which = np.where(found > largest, start + place, which)
            largest = np.maximum(largest, found)
        return largest, which


# Far from modes densities may overflow: such steps are not taken.
@np.errstate(all="ignore")
def _placed(at: Densities, modes: Modes) -> tuple[Modes, np.ndarray, np.ndarray]:
    """Return modes after a step of Newton's, their log densities, and whether it was short."""
    value, slope, curvature = at.derivatives(modes)
    m, S, shrunk = newton_step(modes, slope, curvature)
    gain = 0.5 * (slope * (m - modes.m)).sum(axis=1)
    short, taken = (
        (gain < most) & (np.abs(shrunk) < change) for most, change in (_FORETOLD, _TAKEN)
    )
    m = np.where(taken[:, None], m, modes.m)
    S = np.where(taken[:, None, None], S, modes.S)
    return replace(modes, m=m, S=S), value + gain, short


def _log_ratios(
    at: Densities, modes: Modes, nu: np.ndarray, units: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities over those of proposals, (proposals, units), and the proposals."""
    m, S = modes.m[units], modes.S[units]
    u = m + np.einsum("gij,kgj->kgi", S, np.broadcast_to(nu, (len(nu), *m.shape)))
    found = at.log_density(np.tile(units, len(nu)), u.reshape(-1, u.shape[-1]))
    found = found.reshape(u.shape[:2])
    found = np.where(np.isnan(found), -np.inf, found)
    return found - _log_student(nu), u


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    scale = np.sqrt(_DEGREES / rng.chisquare(_DEGREES, shape[:-1]))
    return _WIDER * rng.standard_normal(shape) * scale[..., None]


def _log_student(nu: np.ndarray) -> np.ndarray:
    size = nu.shape[-1]
    constant = gammaln((_DEGREES + size) / 2) - gammaln(_DEGREES / 2)
    constant -= 0.5 * size * np.log(_DEGREES * np.pi) + size * np.log(_WIDER)
    squared = (nu**2).sum(axis=-1) / _WIDER**2
    return constant - 0.5 * (_DEGREES + size) * np.log1p(squared / _DEGREES)


class StateDrawer:
    """Draws of units' states: each with its probability, which is known."""

    def __init__(self, functions: UnitFunctions) -> None:
        self._functions = functions
        self.missed = np.zeros(len(functions.levels))

    def draw(
        self, theta: np.ndarray, rng: np.random.Generator, u: np.ndarray | None = None
    ) -> np.ndarray:
        """Return a state for each unit, given what else it has in u, shape (units, size)."""
        states, log_weights = self._functions.all_states
        every = states if u is None else np.where(self._functions.graphs.discrete, states, u)
        logs = np.stack([self._functions.joint(theta, at) for at in every]) + log_weights
        chosen = np.argmax(logs + rng.gumbel(size=logs.shape), axis=0)
        return every[chosen, np.arange(every.shape[1])]


def drawer_of(
    functions: UnitFunctions,
    at: tuple[UnitFunctions, np.ndarray],
    steps: int,
    code: UnitCode | None,
) -> Drawer | StateDrawer:
    """Return what draws variables of units; arguments are those of `Drawer`."""
    if functions.graphs.exact:
        return StateDrawer(functions)
    own, theta = at
    return Drawer(functions, find_modes(own, theta, start_of(own)), at, steps, code)


class LocalDraws:
    """Values of local variables, as the model's value variables, given those of shared ones.

    The random numbers of a draw follow from the shared values, a chain's `key` and the draw's
    `number`: draws do not depend on how many are made at a time, made again they are the same, and
    where shared values repeat they differ.
    """

    def __init__(self, marginal: Marginal) -> None:
        self._marginal, functions = marginal, marginal.functions
        graphs = self._graphs = functions.graphs
        reading, names = graphs.reading, graphs.grouping.names
        inputs = [*functions.values.values(), *(reading.values[name] for name in names)]
        outputs = [
            reading.standard[n][0] if n in reading.standard else reading.values[n] for n in names
        ]
        self._values = numpy_function(inputs, frozen(outputs, reading.arrays))
        self._names = [reading.model.rvs_to_values[reading.model[n]].name for n in names]
        theta, steps, code = marginal.reference, marginal.integral.steps, code_of(functions)
        pieces = [functions.of(levels) for levels in _parts(graphs.grouping.levels)]
        self._parts = [drawer_of(some, (some, theta), steps, code) for some in pieces]

    @property
    def missed(self) -> tuple[float, int]:
        """Share of probability that draws miss, of the worst level, and that level."""
        each = np.concatenate([drawer.missed for drawer in self._parts])
        return float(each.max()), int(np.argmax(each))

    def at(self, point: Mapping[str, np.ndarray], key: bytes, number: int) -> dict[str, np.ndarray]:
        """Return a draw given a point of value variables, by the names of value variables."""
        functions = self._marginal.functions
        theta = functions.ravel(dict(point))
        rng = generator_at(theta, key, number)
        u = np.concatenate([drawer.draw(theta, rng) for drawer in self._parts])
        own = [variable_of(self._graphs, name, u) for name in self._graphs.grouping.names]
        found = self._values(*functions.split(theta), *own)
        return dict(zip(self._names, found, strict=True))


def generator_at(
    values: np.ndarray, key: bytes, number: int, person: bytes = b""
) -> np.random.Generator:
    """Return a generator that follows from shared values, a chain's key and a draw's number."""
    counted = values.tobytes() + number.to_bytes(8, signed=True)
    digest = hashlib.blake2b(counted, key=key, digest_size=16, person=person).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _parts(levels: int) -> list[np.ndarray]:
    return np.array_split(np.arange(levels), -(-levels // _TOGETHER))
