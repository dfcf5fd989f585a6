"""A log-likelihood expanded around a reference point: compiled functions and packed rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.compile import Compiled, compile_graph
from pymc_subsample.control_variates.columns import Packer
from pymc_subsample.kernels.model import BACKWARD, FORWARD
from pymc_subsample.likelihood import TallModel
from pymc_subsample.rows import RowStore

_CHUNK_BYTES = 2**25


@dataclass
class Expansion:
    """Everything that is compiled for a model, for control variates of one order.

    Attributes
    ----------
    order : int
        Order of the control variates: 0, 1 or 2.
    theta_size, phi_size : int
        d and P.
    width : int
        Columns of a packed row, cached ones included. Packed rows are stored column by column,
        shape (width, m).
    addresses : ndarray, shape (4,)
        Of the compiled functions, as the compiled transition takes them.
    linear : bool
        Whether the linear-predictor path was found.
    forward, backward, difference, anchor : Compiled
        The model's functions; see `pymc_subsample.kernels.hmc`.
    sums : callable
        ``sums(center, rows, level, slope, curvature)`` adds sum l*, sum grad l* and, unless
        `curvature` is empty, sum hess l* of anchored rows.
    """

    order: int
    theta_size: int
    phi_size: int
    width: int
    linear: bool
    forward: Compiled
    backward: Compiled
    difference: Compiled
    anchor: Compiled
    sums: Callable
    packer: Packer
    store: RowStore

    def __post_init__(self):
        functions = (self.forward, self.backward, self.difference, self.anchor)
        self.addresses = np.array([f.address for f in functions], dtype=np.int64)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.store.n_rows

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return rows `index`, shape (m,), packed but not anchored: shape (width, m)."""
        return self.packer.pack(self.store.take(index), np.zeros((self.width, len(index))))

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield all rows, packed but not anchored, in chunks of bounded memory."""
        size = max(1, _CHUNK_BYTES // (8 * self.width))
        for columns in self.store.chunks(size):
            yield self.packer.pack(columns, np.zeros((self.width, len(columns[0]))))

    def parameters(self, theta: np.ndarray) -> tuple[np.ndarray, float]:
        """Return phi, shape (P,), and the log prior at theta."""
        phi, logprior = np.empty(self.phi_size), np.empty(1)
        self.forward(np.ascontiguousarray(theta, dtype=float), phi, logprior)
        return phi, float(logprior[0])

    def pull_back(self, theta: np.ndarray, grad_phi: np.ndarray) -> np.ndarray:
        """Return the gradient in theta of the log prior plus ``phi(theta) @ grad_phi``."""
        grad = np.empty(self.theta_size)
        self.backward(np.ascontiguousarray(theta, dtype=float), grad_phi, grad)
        return grad


def compile_parameter_functions(model: TallModel) -> tuple[Compiled, Compiled]:
    """Compile theta -> (phi, log prior) and its pull-back, variable by variable."""
    places = list(model.phi_slices.values())
    forward = compile_graph(
        "forward",
        [model.theta],
        _parts("phi", places, model.phi_graphs) | {"logprior[0]": model.logprior_graph},
        ["phi", "logprior"],
        FORWARD,
    )
    grad_phi = pt.tensor("grad_phi", dtype="float64", shape=(model.phi_size,))
    objective = model.logprior_graph
    for graph, place in zip(model.phi_graphs, places, strict=True):
        objective += (graph * grad_phi[place].reshape(graph.type.shape)).sum()
    gradient = pt.grad(objective, model.value_graphs, disconnected_inputs="ignore")
    backward = compile_graph(
        "backward",
        [model.theta, grad_phi],
        _parts("grad", model.slices, gradient),
        ["grad"],
        BACKWARD,
    )
    return forward, backward


def _parts(buffer: str, places: list[slice], graphs: list[Variable]) -> dict[str, Variable]:
    """Where each variable goes in a vector of all of them."""
    return {
        f"{buffer}[{at.start} + i]" if graph.type.ndim else f"{buffer}[{at.start}]": (
            graph.ravel() if graph.type.ndim else graph
        )
        for at, graph in zip(places, graphs, strict=True)
    }
