"""Draws of a chain, which are made several at a time, and handed out one by one."""

import math
from copy import deepcopy
from dataclasses import fields
from threading import Thread
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.step_methods.state import WithSamplingState

from pymc_subsample.chain.end_of_chain import judged
from pymc_subsample.chain.integrating import completed, unit_statistics
from pymc_subsample.chain.method import named_alike
from pymc_subsample.chain.sampler import STATISTIC

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

# For which draws are made at a time: an interrupt waits for them. A state that takes more than a
# share of that to copy, as of thousands of parameters, is not copied: draws are made one by one.
# A choice: nobody notices a fiftieth of a second.
_SECONDS, _SHARE = 0.02, 0.05
# Copies of a state of which the fastest tells how long one takes: a machine that is busy
# elsewhere makes some of them slow. A choice: all five are slow only where the machine always is.
_COPIES = 5
# Draws that are taken apart at a time: Python's objects of few live in the processor's cache, and
# die before its collector looks at them. A choice: of twice as many some no longer fit.
_APART = 64


class Ahead:
    """Draws of a chain that are made and not handed out.

    They are those that would be made one by one. A chain that is asked for its state meanwhile, or
    goes on from elsewhere than its last draw, goes back to the state before them and makes those
    again that were handed out.
    """

    def __init__(self) -> None:
        # Draws that are made: from where, their values and statistics; how many are handed out, and
        # those that were taken apart last.
        self._from: PointType = {}
        self._values, self._stats = np.zeros((0, 0)), dict[str, Any]()
        self._handed_out = 0
        self._part: list[tuple[PointType, StatsType]] = []
        self._last: dict[str, bytes] = {}
        # State, point and thread before several draws.
        self._before: tuple[dict[str, Any], PointType, Thread | None] | None = None
        self._undoing = False
        self._most = 1
        self._copies, self._fastest = 0, math.inf
        # Statistics that draws share.
        self._shared: dict[str, Any] = {}

    @property
    def _left(self) -> bool:
        return self._handed_out < len(self._values)

    def next(self, step: "ChainStep", point: PointType) -> tuple[PointType, StatsType]:
        """Return the draw after `point`, and its statistics."""
        if self._undoing or not self._left or not self._is_last(point):
            self.undo(step)
            self._make(step, point)
        place = self._handed_out % _APART
        if place == 0:
            part = slice(self._handed_out, self._handed_out + _APART)
            points = step.layout.points(self._from, self._values[part])
            points = completed(step, points, len(self._values) - self._handed_out - 1)
            stats = _separated(self._stats, part, len(points))
            self._part = list(zip(points, stats, strict=True))
        point, stats = self._part[place]
        self._last = {name: value.tobytes() for name, value in point.items()}
        self._handed_out += 1  # last of all: an interrupt may come before
        return point, stats

    def _is_last(self, point: PointType) -> bool:
        """Whether a point is the last draw; worker processes of PyMC go on from a copy of it."""
        return {name: np.asarray(point[name]).tobytes() for name in self._last} == self._last

    def forget(self) -> None:
        """Drop what is not handed out: the state is another one."""
        self._before = None  # first of all: an interrupt may come after, and nothing is undone
        self._values = self._values[:0]
        self._handed_out, self._undoing = 0, False

    def undo(self, step: "ChainStep") -> None:
        """Bring the state back to the last draw that was handed out."""
        if not self._left and not self._undoing:
            return
        if self._before is not None:
            self._undoing = True  # until it is done: an interrupt may come meanwhile
            state, point, step.thread = self._before
            _restore(step, state)
            for _ in range(self._handed_out):
                values, _ = self.make(step, point, 1)
                [point] = completed(step, step.layout.points(point, values), 0)
            self._most = max(1, self._handed_out)
        self.forget()

    def _make(self, step: "ChainStep", point: PointType) -> None:
        pays = self._copies < _COPIES or self._fastest < _SHARE * _SECONDS
        size = min(self._most, step.left_alone) if pays else 1
        self.forget()
        if size > 1:
            start = thread_time()  # what else the machine does tells nothing of the state
            # PyMC's workers write every draw into the same arrays.
            fixed = {name: np.copy(x) for name, x in point.items()}
            self._before = _changing(step), fixed, step.thread
            self._copies += 1
            self._fastest = min(self._fastest, thread_time() - start)
            self._undoing = True  # until draws are there
        begin = perf_counter()
        values, self._stats = self.make(step, point, size)
        self._from, self._values = point, values
        self._undoing = False
        took = perf_counter() - begin
        if size == self._most and took < _SECONDS / 2:
            self._most *= 2
        elif took > 2 * _SECONDS:
            self._most = max(1, self._most // 2)

    def make(
        self, step: "ChainStep", point: PointType, size: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Make some draws, one after the other.

        Returns vectors of values, shape (size, d), and statistics: arrays of shape (size,), or what
        the draws share. The last draw of a chain is made alone.
        """
        method = step.method
        thetas, infos = method.transitions(step, method.enter(step, point), size)
        values, infos["volume"] = step.expansion.written(thetas)
        if not self._shared:
            self._shared = {"warning": None, "n_rows": step.n_rows} | unit_statistics(step.units)
            self._shared |= {STATISTIC: step.sampler.number}
        stats = named_alike(step.stats_dtypes_shapes, infos) | method.statistics(step, infos)
        stats |= self._shared | {"tune": step.tune}
        if step.tune:
            info = {name: x[0] for name, x in infos.items()}
            stats["warning"] = method.adapt(step, thetas[0], info)
        else:
            method.watch(step, thetas, infos)
            step.draws_left -= size
            if step.draws_left == 0:
                stats |= judged(step)
        # The last draw: values of the variables, and the chain's vector.
        step.left = values[-1][step.active] if step.thread is not None else None
        step.own = None if step.expansion.coordinates is None else thetas[-1].copy()
        return values, stats


def _separated(stats: dict[str, Any], part: slice, size: int) -> list[StatsType]:
    """Return the statistics of some draws, from arrays over draws and from what draws share."""
    own = {name: x[part].tolist() for name, x in stats.items() if type(x) is np.ndarray}
    found = [stats.copy() for _ in range(size)]
    for name, numbers in own.items():
        for each, number in zip(found, numbers, strict=True):
            each[name] = number
    return [[each] for each in found]


def _changing(step: "ChainStep") -> dict[str, Any]:
    """Copy what of a step's state changes in a chain."""
    found = {}
    for field in fields(step.method.state):
        if field.metadata.get("frozen") or field.metadata.get("tensor_name"):
            continue
        value = getattr(step, field.name)
        if isinstance(value, WithSamplingState):
            found[field.name] = value.sampling_state
        elif isinstance(value, np.random.Generator):
            found[field.name] = value.bit_generator.state
        else:
            found[field.name] = deepcopy(value)
    return found


def _restore(step: "ChainStep", state: dict[str, Any]) -> None:
    """Bring back what `_changing` copied, which may be needed again."""
    for name, value in state.items():
        own = getattr(step, name)
        if isinstance(own, WithSamplingState):
            own.sampling_state = value
        elif isinstance(own, np.random.Generator):
            own.bit_generator.state = value
        else:
            setattr(step, name, deepcopy(value))
    step.left = None
    step.method.forget(step)
