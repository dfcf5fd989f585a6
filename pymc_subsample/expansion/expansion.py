"""A log-likelihood expanded around a reference point: compiled functions and packed rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import batched
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.functions import Compiled, building_graphs
from pymc_subsample.expansion.curvature import MAX_CURVATURE, Totals, empty_sum
from pymc_subsample.expansion.loops import compile_loops
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.small_matrices import factorised, substituted
from pymc_subsample.kernels.model import ALONE, BACKWARD, FORWARD, Model
from pymc_subsample.model import TallModel
from pymc_subsample.rows.row_store import RowStore
from pymc_subsample.rows.workers import Workers, current

if TYPE_CHECKING:
    from pymc_subsample.coordinates.coordinates import Coordinates
    from pymc_subsample.coordinates.qr import QRCoordinates

# Chunks stay in the cache and in memory that the allocator has already.
_CHUNK_BYTES = 2**22
# Results of one pass that are matrices: with more chunks than that, each is of several.
_MOST_RESULTS = 4096
# What the functions of worker processes read of an expansion, beside those that are compiled.
_PORTABLE = ("order", "phi_size", "width", "linear", "sums", "packer", "curvature", "level")

# Which rows, or their raw columns, and which of them, shape (e,), are left out.
Chunk = tuple[slice | list[np.ndarray], np.ndarray]


def _compiled(name: str) -> "cached_property[Compiled]":
    def build(self: "Expansion") -> Compiled:
        with building_graphs():
            return self.build[name]()

    return cached_property(build)


@dataclass
class Expansion:
    """What a model's compiled transitions and full-data passes need, for one order.

    Functions are compiled when first asked for; see `kernels.model`.

    The chain's vector is theta, d elements, unless the expansion has coordinates of its own; then
    constants of those follow. Packed rows are stored column by column, shape (width, m).
    """

    order: int  # Of the control variates: 0, 1, 2, or 3 for what decides alone; see `third`.
    theta_size: int  # Of the chain's vector.
    phi_size: int  # P.
    width: int  # Columns of a packed row, cached ones included.
    linear: bool  # Whether the linear-predictor path was found.
    build: Mapping[str, Callable[[], Compiled]]  # Compiles each of the functions.
    # ``sums(center, rows, total)`` adds sum l*, sum grad l* and, unless it is empty, sum hess l* of
    # anchored rows to `curvature.Totals`: to a matrix, shape (P, P), a diagonal, (P,), or a
    # `SparseSum`; a row's Hessian that is not finite is taken for zero, and counted.
    # ``sums.flat(rows, center)`` says of which rows it is. ``sums.design(rows, e)`` returns the
    # gradient in phi of one of the predictors of packed rows, shape (P, m), where these are few.
    sums: Any
    # ``slope()`` returns a bound on the derivative of order `order` + 1 of any row's log-likelihood
    # in its one predictor, or None.
    slope: Callable[[], float | None]
    # ``remainder(center)`` returns a function of anchored rows, of how far their predictors move,
    # shape (E, m), and of how many times as far at most, that bounds what control variates leave
    # of each; see `coefficients.Coefficients`. None where rows have no few predictors.
    remainder: Callable[[np.ndarray], Callable | None]
    # ``third()`` returns the same with control variates of order 3, or None where rows have more
    # than three predictors. It has no `residual` and `gradient`.
    third: Callable[[], "Expansion | None"]
    # ``cause(center, row)`` says in words what gives a packed row no derivatives, if that is found.
    cause: Callable[[np.ndarray, np.ndarray], str | None]
    n_predictors: int  # Linear predictors of a row, E; 0 where they are not few.
    packer: Packer
    store: RowStore  # The n rows of raw columns.
    likelihood: tuple[str, ...] = ()  # Names of the subsampled variables.
    # What of sum hess l* is summed: "full", "sparse" or "diagonal"; see `curvature`.
    curvature: str = "full"
    level: int | None = None  # Column of l* in an anchored row, on the linear-predictor path.
    # Why rows have no second derivatives, if so. Their curvature is a difference of slopes then,
    # which serves to find the mode and the metric, and not as a control variate.
    rough: str | None = None
    coordinates: "Coordinates | QRCoordinates | None" = (
        None  # In which the chain moves; see `reparameterise`.
    )
    workers: Workers = field(default_factory=current)  # Who makes passes over all rows.

    forward = _compiled("forward")
    backward = _compiled("backward")
    residual = _compiled("residual")
    gradient = _compiled("gradient")
    anchor = _compiled("anchor")
    left = _compiled("left")
    gather = _compiled("gather")

    def addresses(self, *names: str) -> np.ndarray:
        """Addresses of some of the functions, for a compiled transition."""
        return np.array([getattr(self, name).address for name in names], dtype=np.int64)

    def model(self, *names: str | None) -> Model:
        """Return what a compiled transition takes, with some functions; None for no function."""
        found = [0 if name is None else getattr(self, name).address for name in names]
        columns = self.packer.table if "gather" in names else np.zeros(0, dtype=np.int64)
        return Model(np.array(found, dtype=np.int64), columns, self.width)

    @property
    def units(self) -> list[np.ndarray]:
        """Elements, shape (k, J), of effects whose J units may have derivatives of their own."""
        return [] if self.effects is None else self.effects.units

    @property
    def effects(self) -> "Coordinates | None":
        """The coordinates where they are those of effects, and not linear."""
        found = self.coordinates
        return None if found is None or found.linear is True else found

    def has_precision(self, size: int) -> bool:
        """Whether the precision of `size` parameters is known and small enough to form."""
        return self.curvature != "diagonal" and size <= MAX_CURVATURE

    def reparameterise(self, coordinates: "Coordinates | QRCoordinates") -> None:
        """Move to other coordinates: from now on, vectors theta are those of `coordinates`."""
        forward, backward = self.forward, self.backward
        if self.coordinates is None:
            self._written = {"forward": lambda: forward, "backward": lambda: backward}
        self.build = {**self.build, **coordinates.composed(forward, backward)}
        del self.forward, self.backward
        self.coordinates, self.theta_size = coordinates, coordinates.length

    def move_as(self, other: "Expansion") -> None:
        """Move to the coordinates of another expansion of the same model."""
        effects = other.effects
        for coordinates in (other.coordinates if effects is None else effects.qr, effects):
            if coordinates is not None:
                self.reparameterise(coordinates)

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Return PyMC's vector of value variables, shape (d,), for the chain's."""
        return theta if self.coordinates is None else self.coordinates.to_theta(theta)[0]

    def written(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return PyMC's vectors, (n, d), for the chain's, and log |det| of each change, (n,)."""
        if self.coordinates is None:
            return thetas, np.zeros(len(thetas))
        found = [self.coordinates.to_theta(theta) for theta in thetas]
        return np.array([at for at, _ in found]), np.array([volume for _, volume in found])

    def from_values(
        self, values: np.ndarray, like: np.ndarray | None = None, own: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the chain's vector for PyMC's.

        Constants of the coordinates are those of the vector `like`, or nil. It is a copy of `own`
        where that is such a vector: found anew, its last bits would be others.
        """
        if self.coordinates is None:
            return values
        like, d = np.zeros(self.theta_size) if like is None else like, len(values)
        same = own is not None and np.array_equal(own[d:], like[d:])
        if own is not None and same and np.array_equal(self.values(own), values):
            return own.copy()
        return self.coordinates.from_theta(values, like)

    def restore(self) -> None:
        """Undo `reparameterise`."""
        assert self.coordinates is not None
        self.build, self.theta_size = {**self.build, **self._written}, self.coordinates.size
        self.coordinates = None
        for name in self._written:
            self.__dict__.pop(name, None)

    def as_written(self) -> "Expansion":
        """Return the expansion over theta, PyMC's vector of value variables."""
        if self.coordinates is None:
            return self
        written = copy(self)
        written.restore()
        return written

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.store.n_rows

    @property
    def highest_order(self) -> int:
        """Order that control variates can have: 1 where curvatures are too large, or not known."""
        return 2 if self.limited is None else 1

    @property
    def limited(self) -> str | None:
        """Say why control variates cannot have order 2, if so."""
        if self.rough is not None:
            return "no second derivatives"
        return None if self.curvature != "diagonal" else "too many parameters"

    @property
    def raisable(self) -> bool:
        """Whether control variates of order 2 are not used but can be had."""
        return self.order < 2 <= self.highest_order

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return rows `index`, shape (m,), packed but not anchored: shape (width, m)."""
        return self.packer.pack(self.store.take(index), np.zeros((self.width, len(index))))

    def empty_totals(self, curved: bool) -> Totals:
        """Return zeros to add sums over rows to, with or without curvatures."""
        curvature = empty_sum(self.curvature, self.phi_size) if curved else np.zeros((0, 0))
        return np.zeros(1), np.zeros(self.phi_size), curvature, np.zeros(1)

    def totals(self, batches: Iterable[np.ndarray], center: np.ndarray, curved: bool) -> Totals:
        """Sum l*, its gradient and, if so asked, its Hessian over batches of packed rows."""
        total = self.empty_totals(curved)
        for rows in batches:
            self.anchor(center, rows)
            self.sums(center, rows, total)
        return total

    def residuals(self, rows: np.ndarray, center: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return what control variates leave of packed rows, (k, rows), at points phi, (k, P)."""
        self.anchor(center, rows)
        d, grad = np.empty((len(points), rows.shape[1])), np.zeros(self.phi_size)
        for out, phi in zip(d, points, strict=True):
            self.residual(phi, rows, center, ALONE, 1.0, 0.0, out, grad)
        return d

    def loglik(self, phi: np.ndarray, rows: np.ndarray, value: np.ndarray) -> None:
        """Write log-likelihoods, shape (m,), of rows that are packed but not anchored."""
        self.left(phi, phi, rows, value)

    def change(
        self, phi: np.ndarray, new_phi: np.ndarray, center: np.ndarray, rows: np.ndarray,
        out: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the change of rows' residuals, shape (m,); see `kernels.model.change`."""
        before = np.empty(len(out))
        self.left(phi, center, rows, before)
        self.left(new_phi, center, rows, out)
        out -= before

    def chunks(self, without: np.ndarray | tuple = ()) -> Iterator[np.ndarray]:
        """Yield all rows but some, packed but not anchored, in chunks of bounded memory."""
        return map(self._pack, self._chunks(without))

    def over(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        without: np.ndarray | tuple = (),
        begin: int = 0,
        result_bytes: int = 0,
    ) -> Iterator[Any]:
        """Yield ``function(expansion, batches, *arguments)`` of all rows, in their order.

        The function, of batches of packed rows that are not anchored, is one of a module, or a
        method of this class: it may be called in other processes, where an expansion has no more
        than what `portable` leaves of it.
        Rows `without`, in order, are left out, and those before `begin`. One batch at a time makes
        a result unless `result_bytes`, which says that results are large, are more than its own, or
        there would be thousands of results.
        """
        n_chunks = -(-(self.n_rows - begin) // self.chunk_rows)
        each = max(1, result_bytes // _CHUNK_BYTES)
        if result_bytes:
            each = max(each, n_chunks // _MOST_RESULTS)
        parts = batched(self._chunks(without, begin), each)
        work = partial(_worked, function, arguments)
        # Workers that are sent the rows get them a part at a time.
        n_parts = n_chunks // each if self.store.shared else 0
        return self.workers.over(work, self, parts, result_bytes, n_parts)

    def portable(self) -> "Expansion":
        """Return what passes in other processes need: what has been compiled, to pack and to sum.

        Without the rows, unless processes share them.
        """
        part = object.__new__(Expansion)
        names = [*_PORTABLE, *(n for n, x in vars(self).items() if isinstance(x, Compiled))]
        names += ["store"] if self.store.shared else []
        part.__dict__ = {name: getattr(self, name) for name in names}
        return part

    def sent(self, part: Sequence[Chunk]) -> Sequence[Chunk]:
        """Return rows as other processes need them: by number, or their raw columns."""
        if self.store.shared:
            return part
        return [(self._columns(where), left_out) for where, left_out in part]

    def _chunks(self, without: np.ndarray | tuple = (), begin: int = 0) -> Iterator[Chunk]:
        without = np.asarray(without, dtype=np.int64)
        for where in self.store.slices(self.chunk_rows, begin):
            first, last = np.searchsorted(without, [where.start, where.stop])
            if last - first < where.stop - where.start:
                yield where, without[first:last] - where.start

    def _columns(self, where: slice | list[np.ndarray]) -> list[np.ndarray]:
        return self.store.take(where) if isinstance(where, slice) else where

    def _pack(self, chunk: Chunk) -> np.ndarray:
        where, left_out = chunk
        columns = self._columns(where)
        rows = self.packer.pack(columns, np.zeros((self.width, len(columns[0]))))
        return np.ascontiguousarray(np.delete(rows, left_out, axis=1)) if len(left_out) else rows

    def batches(self, index: np.ndarray) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), as `take` does, in pieces of a chunk's size."""
        size = self.chunk_rows
        return [self.take(index[i : i + size]) for i in range(0, len(index), size)]

    @property
    def chunk_rows(self) -> int:
        """Rows of a batch of usual size."""
        return max(1, _CHUNK_BYTES // (8 * max(self.width, self.store.numbers)))

    def parameters(self, theta: np.ndarray) -> tuple[np.ndarray, float]:
        """Return phi, shape (P,), and the log prior at theta."""
        phi, logprior = np.empty(self.phi_size), np.empty(1)
        self.forward(self._point(theta), phi, logprior)
        return phi, float(logprior[0])

    def pull_back(self, theta: np.ndarray, grad_phi: np.ndarray) -> np.ndarray:
        """Return the gradient in theta of the log prior plus ``phi(theta) @ grad_phi``."""
        grad = np.empty(self.theta_size)
        self.backward(self._point(theta), grad_phi, grad)
        return grad

    def _point(self, theta: np.ndarray) -> np.ndarray:
        """Return theta as compiled code takes it, which looks at no lengths."""
        theta = np.ascontiguousarray(theta, dtype=float)
        assert theta.shape == (self.theta_size,), "theta is of another model"
        return theta


def _worked(
    function: Callable, arguments: tuple, expansion: Expansion, part: Iterable[Chunk]
) -> Any:
    return function(expansion, map(expansion._pack, part), *arguments)


def parameter_functions(model: TallModel) -> dict[str, Callable[[], Compiled]]:
    """How to compile theta -> (phi, log prior) and its pull-back, variable by variable."""
    written, places = [*model.phi_graphs, model.logprior_graph], list(model.phi_slices.values())
    for by_elements in (factorised, substituted):
        written = rebuild(written, {}, by_elements)
    *graphs, logprior = written
    if model.qr is not None:
        graphs, places = [_combined(graphs, *model.qr)], [slice(0, model.phi_size)]

    def forward() -> Compiled:
        return compile_loops(
            "forward",
            [model.theta],
            _parts("phi", places, graphs) | {"logprior[0]": logprior},
            ["phi", "logprior"],
            FORWARD,
        )

    def backward() -> Compiled:
        grad_phi = pt.tensor("grad_phi", dtype="float64", shape=(model.phi_size,))
        objective = logprior
        for graph, place in zip(graphs, places, strict=True):
            objective += (graph * grad_phi[place].reshape(graph.type.shape)).sum()
        gradient = pt.grad(objective, model.value_graphs, disconnected_inputs="ignore")
        return compile_loops(
            "backward",
            [model.theta, grad_phi],
            _parts("grad", model.slices, gradient),
            ["grad"],
            BACKWARD,
        )

    return {"forward": forward, "backward": backward}


def _combined(graphs: Sequence[Variable], elements: np.ndarray, root: np.ndarray) -> Variable:
    """Return phi, shape (P,), with combinations in the place of some elements."""
    phi = pt.concatenate([graph.ravel() for graph in graphs])
    return pt.set_subtensor(phi[elements], (root * phi[elements]).sum(axis=1))


def _parts(buffer: str, places: list[slice], graphs: list[Variable]) -> dict[str, Variable]:
    """Where each variable goes in a vector of all of them."""
    return {
        f"{buffer}[{at.start} + i]" if graph.type.ndim else f"{buffer}[{at.start}]": (
            graph.ravel() if graph.type.ndim else graph
        )
        for at, graph in zip(places, graphs, strict=True)
    }
