"""The subsample of an HMC-ECS chain: rows in groups that are refreshed one at a time."""

import numpy as np
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state

from pymc_subsample.expansion import Expansion
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.rows.row_store import drawn_without
from pymc_subsample.samplers.hmc_ecs.kernel import Fresh

# By the names that users give.
ESTIMATORS = {"perturbed": PERTURBED, "block-poisson": BLOCK_POISSON}


@dataclass_state
class SubsampleState(DataClassState):
    """Which rows are in the subsample, and which group is refreshed next."""

    size: int
    n_groups: int
    always: np.ndarray
    index: np.ndarray
    counts: np.ndarray
    counts_rng: np.random.Generator
    group: int


class Subsample(WithSamplingState):
    """Rows of an estimate and their packed, anchored columns.

    Perturbed estimates have a fixed number of rows, block-Poisson ones a Poisson number of
    minibatches of 30; `size` is their number or what is expected. They are refreshed in groups.
    Rows `always`, in order, are read by every estimate; the others are drawn.
    """

    _state_class = SubsampleState

    def __init__(self, kind: int, size: int, n_groups: int, always: np.ndarray) -> None:
        assert kind == BLOCK_POISSON or size % n_groups == 0, (size, n_groups)
        self.kind, self.size, self.n_groups = kind, size, n_groups
        self.always = always
        self.index = np.zeros(0, dtype=np.int64)  # Rows, group by group; empty until `draw`.
        self.counts = np.zeros(0, dtype=np.int64)  # Minibatches per group, or ones.
        # Draws those of the next groups: however many, the rows' own generator is left alone.
        self.counts_rng = np.random.default_rng(0)  # until `draw`
        self.group = 0  # Refreshed next.
        # As `kernels.estimates.density` takes them; made by `pack`.
        self.rows: np.ndarray | None = None
        self.exact: np.ndarray | None = None

    @property
    def products(self) -> float:
        """Expected number of minibatches."""
        return self.size / MINIBATCH

    def draw(self, rng: np.random.Generator, n_rows: int) -> None:
        """Draw all rows anew, with replacement."""
        self.rows = None
        self.counts = self._counts(rng, self.n_groups)
        size = self.n_groups * self._capacity(self.counts)
        self.index = drawn_without(rng, n_rows, self.always, size)
        self.counts_rng = np.random.default_rng(rng.integers(2**32, size=4))

    def pack(self, expansion: Expansion, center: np.ndarray) -> None:
        """Read the rows from the data and anchor them, group by group as the kernel does."""
        groups = self.index.reshape(self.n_groups, -1)
        used = self._used(self.counts)
        self.exact = expansion.take(self.always)
        if len(self.always):
            expansion.anchor(center, self.exact)
        parts = []
        for index, size in zip(groups, used, strict=True):
            part = expansion.take(index[:size])
            if size:
                expansion.anchor(center, part)
            parts.append(part)
        if self.kind == PERTURBED:
            self.rows = np.concatenate(parts, axis=1)
            return
        self.rows = np.zeros((self.n_groups, expansion.width * groups.shape[1]))
        for row, part in zip(self.rows, parts, strict=True):
            row[: part.size] = part.ravel()

    def propose(self, rng: np.random.Generator, expansion: Expansion, k: int) -> Fresh:
        """Draw k groups anew: the same as one by one."""
        counts = self._counts(self.counts_rng, k)
        self._make_room(self._capacity(counts), expansion.width)
        start = np.concatenate([[0], np.cumsum(self._used(counts))])
        index = drawn_without(rng, expansion.n_rows, self.always, int(start[-1]))
        expansion.store.touch(index)
        return Fresh(index, start)

    def _counts(self, rng: np.random.Generator, k: int) -> np.ndarray:
        if self.kind == PERTURBED:
            return np.ones(k, dtype=np.int64)
        return rng.poisson(self.products / self.n_groups, k)

    def _used(self, counts: np.ndarray) -> np.ndarray:
        if self.kind == PERTURBED:
            return counts * (self.size // self.n_groups)
        return counts * MINIBATCH

    def _capacity(self, counts: np.ndarray) -> int:
        """Rows for which a group has room."""
        return int(max(self._used(counts).max(), 1 if self.kind == PERTURBED else MINIBATCH))

    def _make_room(self, capacity: int, width: int) -> None:
        groups = self.index.reshape(self.n_groups, -1)
        more = capacity - groups.shape[1]
        if more <= 0:
            return
        # Rows first: after an interrupt in between there is room for no more numbers than rows.
        if self.rows is not None:
            self.rows = np.pad(self.rows, [(0, 0), (0, more * width)])
        self.index = np.pad(groups, [(0, 0), (0, more)]).ravel()
