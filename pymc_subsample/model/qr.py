r"""Predictors whose nearly collinear columns are taken apart: the QR reparameterisation.

With :math:`X_D = Q R` the columns that multiply elements D of phi in the rows' predictors, rows see
:math:`R \varphi_D` through the columns of :math:`Q = X_D R^{-1}`. A raw polynomial of years, or a
time far from zero beside an intercept, then has sums over rows of which few digits are lost; see
"The QR reparameterization" in the Stan User's Guide.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.linalg
from pytensor.graph.basic import Variable

from pymc_subsample.graph.affine import Affine, DataColumn, Term
from pymc_subsample.graph.interpreter import array_of
from pymc_subsample.model.predictors import Predictor


class QR(NamedTuple):
    """What takes the place of some elements of phi: R times them."""

    elements: np.ndarray  # Positions in phi, shape (k,).
    root: np.ndarray  # R, shape (k, k): upper triangular.

    def applied(self, predictors: Sequence[Predictor]) -> list[Predictor]:
        """Return predictors with columns of Q."""
        inverse = scipy.linalg.solve_triangular(self.root, np.eye(len(self.root)))
        return [
            replace(
                p, forms=array_of((self._form(f, inverse) for f in p.forms.flat), p.forms.shape)
            )
            for p in predictors
        ]

    def _form(self, form: Affine, inverse: np.ndarray) -> Affine:
        place = {element: j for j, element in enumerate(self.elements.tolist())}
        own = [t for t in form.terms if t.index in place]
        terms = [t for t in form.terms if t.index not in place]
        for k, element in enumerate(place):
            column: Variable | float = 0.0
            for term in own:
                weight = inverse[place[term.index], k] * term.scale
                if weight:
                    data = term.coefficient
                    column = column + (weight if data is None else weight * data.numbers())
            if isinstance(column, Variable):
                terms.append(Term(element, coefficient=DataColumn(column, 0, 0)))
            elif column:
                terms.append(Term(element, scale=column))
        return replace(form, terms=tuple(terms))
