"""Coordinates in which nearly collinear columns are apart; see `model.qr`.

The sums over rows then keep their digits, and the chain's own vector those of the posterior: where
elements D of phi are, but for their units g, elements of theta, it holds ``R g theta`` in their
place, which is what rows see. A linear change, which Jacobians leave as it is.
"""

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import scipy.linalg

from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.coordinates.linking import composed
from pymc_subsample.expansion.curvature import MAX_CURVATURE, MAX_DENSE, rounded
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.graph.affine import Affine, Forms, Term
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.kernels.model import BACKWARD, FORWARD
from pymc_subsample.model import TallModel
from pymc_subsample.model.qr import QR

# Rows whose columns are looked at, and the share of a direction's precision that rounding may
# change before its columns are taken apart: a hundredth of what is refused. A choice: columns
# that are nearly collinear are so in any rows.
_ROWS, _LOST = 2_000, 1e-3
# What others leave of a column of length one, in units of the rounding of draws over the posterior
# standard deviation of n rows: below that draws do not hold the direction.
_LEFT = 20 * np.finfo(float).eps
# Columns that are taken apart together, at most; models of more are left as they are. A choice.
_MOST = 20


def find_qr(
    tall: TallModel, expansion: Expansion, names: Collection[str]
) -> "QRCoordinates | None":
    """Return coordinates for columns of which sums lose digits; None where there are none.

    Coefficients must be elements of variables `names` themselves, in any units, and no effects or
    what the distribution of effects depends on.
    """
    if not expansion.linear or tall.size > MAX_CURVATURE:
        return None
    elements, design = _design(tall, expansion)
    blocks = expansion.effects.blocks.values() if expansion.effects else ()
    moved = set().union(*(block.orders.keys() | block.parents for block in blocks))
    known = _owned(tall, elements, set(names) - moved)
    own = [k for k, element in enumerate(elements.tolist()) if element in known]
    found = _apart(design[own], _LEFT * np.sqrt(expansion.n_rows))
    if found is None:
        return None
    elements = elements[own][found[0]]
    forms = [known[element] for element in elements.tolist()]
    [*terms] = (term for form in forms for term in form.terms)
    return QRCoordinates(
        tall.size,
        QR(elements, found[1]),
        np.array([term.index for term in terms]),
        np.array([term.scale for term in terms]),
        np.array([form.constant for form in forms]),
    )


def _design(tall: TallModel, expansion: Expansion) -> tuple[np.ndarray, np.ndarray]:
    """Elements of phi that all rows see and no group does, (k,), and their columns, (k, m)."""
    sums = expansion.sums
    grouped = [
        np.r_[part]
        for part in tall.phi_slices.values()
        if any(part.start <= first < part.stop for first, _ in sums.slots)
    ]
    alone = ~np.isin(sums.common, np.concatenate([np.zeros(0, dtype=int), *grouped]))
    if len(sums.common) > MAX_DENSE:
        alone[:] = False
    index = np.linspace(0, expansion.n_rows - 1, min(_ROWS, expansion.n_rows)).astype(np.int64)
    rows = expansion.take(index)
    each = [sums.local_design(rows, e)[: len(alone)][alone] for e in range(expansion.n_predictors)]
    return sums.common[alone], np.concatenate([np.zeros((alone.sum(), 0)), *each], axis=1)


def _owned(tall: TallModel, elements: np.ndarray, names: Collection[str]) -> dict[int, Affine]:
    """Return those elements of phi that are one of theta each, in some unit, and an offset."""
    own: set[int] = set()
    for name, part in zip(tall.names, tall.slices, strict=True):
        if name in names and name not in tall.discrete:
            own.update(range(part.start, part.stop))
    theta = array_of((Affine((Term(i),)) for i in range(tall.size)), (tall.size,))
    algebra, found = Forms({tall.theta: theta}), dict[int, Affine]()
    for graph, place in zip(tall.phi_graphs, tall.phi_slices.values(), strict=True):
        if not np.any((elements >= place.start) & (elements < place.stop)):
            continue
        with suppress(NoForm):
            [forms] = algebra.evaluate([graph])
            found |= dict(zip(range(place.start, place.stop), forms.flat, strict=True))
    single = {
        element: form
        for element, form in found.items()
        if len(form.terms) == 1 and not form.offsets and form.terms[0].scale
    }
    count = Counter(form.terms[0].index for form in single.values())
    return {
        element: form
        for element, form in single.items()
        if form.terms[0].index in own and count[form.terms[0].index] == 1
    }


def _apart(design: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Return which columns, shape (k,), of (K, m) lose digits in sums, and R of these.

    Columns of length one of which others leave no more than `least` stay as they are.
    """
    length = np.linalg.norm(design, axis=1)
    keep = np.flatnonzero(np.isfinite(length) & (length > 0))
    while len(keep):
        columns = design[keep] / length[keep, None]
        lost = keep[rounded(columns @ columns.T, _LOST)]
        if not 1 < len(lost) <= _MOST:
            return None
        root = np.linalg.qr((design[lost] / length[lost, None]).T, mode="r")
        left = np.abs(np.diag(root))
        if np.all(left > least):
            root *= np.sign(np.diag(root))[:, None] * length[lost] / np.sqrt(design.shape[1])
            return lost, root
        keep = np.setdiff1d(keep, lost[left <= least])
    return None


class QRCoordinates:
    """Theta with ``psi = R g theta`` in the place of elements that meet collinear columns.

    What the chain needs of coordinates; see `Coordinates`. Elements `qr.elements` of
    phi are `units` times theta at `places`, and `more`, all of shape (k,).
    """

    linear: Literal[True] = True

    def __init__(
        self, size: int, qr: QR, places: np.ndarray, units: np.ndarray, more: np.ndarray
    ) -> None:
        self.qr, self.places, self._more = qr, places, qr.root @ more
        self._root = qr.root * units
        self._solved = scipy.linalg.solve_triangular(self._root, np.eye(len(places)))
        self.size = self.length = size
        self.order = np.arange(size)
        self._volume = -float(np.log(np.abs(np.diag(self._root))).sum())

    @property
    def digest(self) -> str:
        """Tells these coordinates from others."""
        parts = (self.qr.elements, self.places, self._root, self._more)
        return sha256(b"".join(x.tobytes() for x in parts)).hexdigest()

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, float]:
        """Return theta, shape (d,), and log |det dtheta/dpsi|."""
        theta = psi.copy()
        theta[self.places] = self._solved @ psi[self.places]
        return theta, self._volume

    def from_theta(self, theta: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
        """Return psi for theta, both of shape (d,)."""
        found = theta.copy()
        found[self.places] = self._root @ theta[self.places]
        return found

    def composed(self, forward: Compiled, backward: Compiled) -> dict[str, Callable[[], Compiled]]:
        """How to compile a model's parameter functions over psi in place of theta."""
        theta = _THETA.strip().format(size=self.size)
        sources = (x.format(theta=theta, size=self.size) for x in (_FORWARD, _BACKWARD))
        parts: dict[str, Any] = {
            "at": self.places, "seen": self.qr.elements, "more": self._more,
            "solved": self._solved, "volume": self._volume,
        }  # fmt: skip
        there, back = sources
        return {
            "forward": lambda: composed("forward", there, FORWARD, inner=forward, **parts),
            "backward": lambda: composed("backward", back, BACKWARD, inner=backward, **parts),
        }


_THETA = """
    theta = np.empty({size})
    for i in range({size}):
        theta[i] = psi[i]
    for i in range(at.shape[0]):
        theta[at[i]] = 0.0
        for j in range(i, at.shape[0]):
            theta[at[i]] += solved[i, j] * psi[at[j]]
"""

# What rows see is psi itself: computed from theta it would have lost its last digits.
_FORWARD = """
def forward(psi, phi, logprior):
    {theta}
    inner(theta, phi, logprior)
    for i in range(at.shape[0]):
        phi[seen[i]] = psi[at[i]] + more[i]
    logprior[0] += volume
"""

_BACKWARD = """
def backward(psi, grad_phi, grad):
    {theta}
    others, outer = grad_phi.copy(), np.empty({size})
    for i in range(at.shape[0]):
        others[seen[i]] = 0.0
    inner(theta, others, outer)
    for i in range({size}):
        grad[i] = outer[i]
    for j in range(at.shape[0]):
        grad[at[j]] = grad_phi[seen[j]]
        for i in range(j + 1):
            grad[at[j]] += solved[i, j] * outer[at[i]]
"""
