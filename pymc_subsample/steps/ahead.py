"""Draws that are made several at a time, and handed out one by one."""

from collections import deque
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.step_methods.state import DataClassState, WithSamplingState

if TYPE_CHECKING:
    from pymc_subsample.steps.chains import ChainStep

# For which draws are made at a time: an interrupt waits for them.
_SECONDS = 0.02


class Ahead:
    """Draws of a chain that are made and not handed out.

    They are those that would be made one by one. A chain that is asked for its state meanwhile, or
    goes on from elsewhere than its last draw, goes back to the state before them and makes those
    again that were handed out.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[PointType, StatsType]] = deque()
        self._last: PointType
        self._before: tuple[DataClassState, PointType, Thread | None]
        self._made = 0
        self._most = 1

    def next(self, step: "ChainStep", point: PointType) -> tuple[PointType, StatsType]:
        """Return the draw after `point`, and its statistics."""
        if not self._ready or not self._is_last(point):
            self.undo(step)
            self._make(step, point)
        point, stats = self._ready.popleft()
        self._last = point.copy()
        return point, stats

    def _is_last(self, point: PointType) -> bool:
        """Whether a point is the last draw; worker processes of PyMC go on from a copy of it."""
        return all(
            point[name] is value or np.asarray(point[name]).tobytes() == value.tobytes()
            for name, value in self._last.items()
        )

    def forget(self) -> None:
        """Drop what is not handed out: the state is another one."""
        self._ready.clear()

    def undo(self, step: "ChainStep") -> None:
        """Bring the state back to the last draw that was handed out."""
        if not self._ready:
            return
        handed_out = self._made - len(self._ready)
        step.sampling_state, point, step._thread = self._before
        for _ in range(handed_out):
            [(point, _)] = step.make(point, 1)
        self._most = handed_out

    def _make(self, step: "ChainStep", point: PointType) -> None:
        size = min(self._most, step.left_alone)
        if size > 1:
            state = WithSamplingState.sampling_state.fget(step)
            # PyMC's workers write every draw into the same arrays.
            self._before = state, {name: np.copy(x) for name, x in point.items()}, step._thread
        start = perf_counter()
        try:
            self._ready.extend(step.make(point, size))
        except BaseException:
            if size > 1:
                step.sampling_state = state
            raise
        self._made = size
        if size == self._most and perf_counter() - start < _SECONDS / 2:
            self._most *= 2
