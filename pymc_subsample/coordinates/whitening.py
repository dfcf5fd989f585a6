r"""A group's effects as the chain sees them: independent of what their distribution depends on.

The k effects of a unit are :math:`u = d + K e` with :math:`e \sim N(0, 1)`, d and K functions of
other parameters. Near the posterior's centre the log-likelihood in u is about
:math:`b'u - \tfrac12 u' I u`, so that, given the other parameters,

.. math:: e \mid d, K, y \approx N(Q^{-1} K'(b - I d),\; Q^{-1}), \qquad Q = 1 + K' I K = C C'.

The chain moves :math:`v = C' e - C^{-1} K'(b - I d)`, which is about standard normal whatever d
and K are. Where there is much information (:math:`K' I K \gg 1`) that is the centred form, where
there is little the non-centred one, and in between their optimal mixture: for k = 1 the weight of
the centred form is :math:`I K^2 / (1 + I K^2)` at every K (Papaspiliopoulos, Roberts and Skoeld
2007, section 4; Gorinova, Moore and Hoffman 2020), and subtracting the conditional mean removes the
ridge as well (dynamic rescaling; Kleppe 2019).

C is upper triangular where K is lower triangular: then :math:`C' K^{-1}`, with which v follows u,
is triangular too and tends to the constant factor of I, where a lower one would turn with K.

Everything is written out, component by component, as vectors over units: nothing here is an array
of matrices.
"""

from collections.abc import Sequence
from functools import reduce
from operator import mul

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

# A component of a matrix that is zero for all parameters is None.
type Entry = Variable | None
type Matrix = Sequence[Sequence[Entry]]


def total(terms) -> Entry:
    """Add entries up."""
    found = [t for t in terms if t is not None]
    return None if not found else sum(found[1:], found[0])


def product(*factors: Entry) -> Entry:
    """Multiply entries."""
    if any(f is None for f in factors):
        return None
    return reduce(mul, factors)


class Whitening:
    """The conditional distribution of a unit's effects, factorised.

    Parameters
    ----------
    effect : k x k of Variable or None
        K.
    offset : k of Variable
        d.
    information : k x k of Variable
        I, symmetric.
    score : k of Variable
        b.
    """

    def __init__(
        self,
        effect: Matrix,
        offset: Sequence[Variable],
        information: Matrix,
        score: Sequence[Variable],
    ):
        k = self.size = len(offset)
        each = range(k)
        scaled = [
            [total(product(information[a][c], effect[c][b]) for c in each) for b in each]
            for a in each
        ]
        precision = [
            [total(product(effect[c][a], scaled[c][b]) for c in each) for b in each] for a in each
        ]
        for a in each:
            precision[a][a] = total([pt.ones(()), precision[a][a]])
        residual = [
            score[a] - total(product(information[a][c], offset[c]) for c in each) for a in each
        ]
        pulled = [total(product(effect[c][a], residual[c]) for c in each) for a in each]
        # Components from the last to the first, in which C is lower triangular.
        self.factor = _cholesky([row[::-1] for row in precision[::-1]])
        self.center = _forward(
            self.factor, [pt.zeros(()) if p is None else p for p in pulled[::-1]]
        )

    def standard(self, v: Sequence[Variable]) -> list[Variable]:
        """Return e for v."""
        each = range(self.size)
        found: dict[int, Entry] = {}
        for a in reversed(each):
            above = total(product(self.factor[c][a], found[c]) for c in range(a + 1, self.size))
            left = self.center[a] + v[-1 - a]
            found[a] = (left if above is None else left - above) / self.factor[a][a]
        return [found[a] for a in reversed(each)]

    def moved(self, e: Sequence[Variable]) -> list[Variable]:
        """Return v for e."""
        each = range(self.size)
        return [
            total(product(self.factor[c][a], e[-1 - c]) for c in range(a, self.size))
            - self.center[a]
            for a in reversed(each)
        ]

    def log_volume(self) -> list[Variable]:
        """Return log |de / dv|, to be added up."""
        return [-pt.log(self.factor[a][a]) for a in range(self.size)]


def _cholesky(matrix: list[list[Entry]]) -> list[list[Entry]]:
    k = len(matrix)
    factor: list[list[Entry]] = [[None] * k for _ in range(k)]
    for a in range(k):
        for b in range(a + 1):
            known = total(product(factor[a][c], factor[b][c]) for c in range(b))
            left = matrix[a][b]
            if known is not None:
                left = -known if left is None else left - known
            if a == b:
                factor[a][a] = pt.sqrt(left)
            else:
                factor[a][b] = None if left is None else left / factor[b][b]
    return factor


def _forward(factor: list[list[Entry]], x: list[Variable]) -> list[Variable]:
    found: list[Variable] = []
    for a in range(len(x)):
        below = total(product(factor[a][c], found[c]) for c in range(a))
        found.append((x[a] if below is None else x[a] - below) / factor[a][a])
    return found


def triangle(size: int) -> list[tuple[int, int]]:
    """Return the places of the upper triangle of a symmetric matrix, row by row."""
    return [(int(a), int(b)) for a, b in zip(*np.triu_indices(size), strict=True)]
