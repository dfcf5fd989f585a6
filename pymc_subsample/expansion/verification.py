"""Whether a compiled expansion computes the log posterior that the model's author wrote."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor

from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.model import TallModel
from pymc_subsample.model.verification import probes, tolerance, warn_uncompared

_GROUPS = 10  # Of rows, evaluated apart.
# A gradient is compared with a finite difference where two of those agree to this share. Choices:
# between what third derivatives and what rounding do to differences.
_STEPS = (1e-4, 1e-6, 1e-8)
_AGREEING = 1e-3
# Of log densities that the model may take in single precision.
_ROUNDING = 1e-5

MISREAD = (
    "The compiled log-likelihood is not that of the model: its graph was misread. Please report "
    "the model, and sample it with pm.sample()."
)


class Agreement:
    """Of an expansion with its model as written, on 200 random rows at points near the start."""

    def __init__(self, model: TallModel, expansion: Expansion) -> None:
        self.model, self.expansion = model, expansion
        self._compared = 0  # Rows.

    def of_posterior(self) -> bool:
        """Whether log posterior and gradient are the model's, at two random points.

        They are compared by the functions that a step compiles anyway: change of the log-likelihood
        for order 0, sums otherwise. Where they differ, the model as written is taken in the form in
        which PyTensor computes it. Warns if that leaves no row to compare.
        """
        same = self._of_sums if self.expansion.order else self._of_changes

        def agree() -> bool:
            return all(
                same(theta, index) and self._of_prior(theta) for theta, index in probes(self.model)
            )

        agreed = agree() or (self.model.stabilise() and agree())
        if agreed and not self._compared:
            warn_uncompared(self.model)
        return agreed

    def of_loglik(self, theta: np.ndarray, index: np.ndarray) -> bool:
        """Whether `Expansion.loglik` of some rows at theta is the model's."""
        model, expansion = self.model, self.expansion
        expected, found = model.loglik_as_written(theta, index), np.empty(len(index))
        expansion.loglik(expansion.parameters(theta)[0], expansion.take(index), found)
        known = np.isfinite(expected)
        allowed = tolerance(model, model.loglik_as_written, theta, index)
        return bool(np.all(abs(found - expected)[known] <= allowed[known]))

    def of_gradient(self) -> bool:
        """Whether the gradient by which stochastic gradients move is the model's.

        `Expansion.gradient` and the gradient of the control variates around another point, added
        up over the rows at two random points, must be that of their log-likelihood.
        """
        model, expansion = self.model, self.expansion
        start = model.ravel(model.initial_point)
        size = expansion.phi_size
        full = expansion.order == 2 and expansion.curvature == "full" and size <= MAX_DENSE
        for theta, index in probes(model):
            phi, _ = expansion.parameters(theta)
            # Where curvatures are summed to no small matrix, rows are expanded at theta itself.
            away = full or expansion.order < 2
            center, _ = expansion.parameters(start if away else theta)
            finite = [model.loglik_as_written(x, index) for x in (start, theta)]
            index = index[np.isfinite(finite).all(axis=0)]
            if not len(index):
                continue
            rows, total, slope = expansion.take(index), np.zeros(size), np.zeros(size)
            curvature = np.zeros((size, size) if full else (0, 0))
            if expansion.order:
                expansion.anchor(center, rows)
                expansion.sums(center, rows, (np.zeros(1), slope, curvature, np.zeros(1)))
            expansion.gradient(phi, rows, center, 1.0, total)
            total += slope + (curvature @ (phi - center) if full else 0.0)
            gradient = self._of_rows(theta, total)
            if not np.all(np.isfinite(gradient)):
                continue  # rows without a derivative, which are refused by name or diverge
            loglik = partial(model.loglik_as_written, index=index)
            if not self._along_a_line(loglik, theta, gradient):
                return False
        return True

    def _of_prior(self, theta: np.ndarray) -> bool:
        model, expansion = self.model, self.expansion
        expected, found = model.logprior(theta), expansion.parameters(theta)[1]
        if not np.isfinite(expected):
            return True
        if not abs(found - expected) <= _ROUNDING * (1 + abs(expected)):
            return False
        if not expansion.order:
            return True
        gradient = expansion.pull_back(theta, np.zeros(expansion.phi_size))
        return self._along_a_line(lambda at: np.atleast_1d(model.logprior(at)), theta, gradient)

    def _of_changes(self, theta: np.ndarray, index: np.ndarray) -> bool:
        model, expansion = self.model, self.expansion
        start = model.ravel(model.initial_point)
        old, new = (model.loglik_as_written(point, index) for point in (start, theta))
        near, far = (tolerance(model, model.loglik_as_written, x, index) for x in (start, theta))
        (phi, _), (new_phi, _) = expansion.parameters(start), expansion.parameters(theta)
        found = np.empty(len(index))
        expansion.change(phi, new_phi, phi, expansion.take(index), found)
        known = np.isfinite(new - old)
        self._compared += int(known.sum())
        return bool(np.all(abs(found - (new - old))[known] <= (near + far)[known]))

    def _of_sums(self, theta: np.ndarray, index: np.ndarray) -> bool:
        model, expansion = self.model, self.expansion
        expected = model.loglik_as_written(theta, index)
        known = np.isfinite(expected)
        index, expected = index[known], expected[known]
        self._compared += len(index)
        if not len(index):
            return True
        allowed = tolerance(model, model.loglik_as_written, theta, index)
        center, _ = expansion.parameters(theta)
        slope = np.zeros(expansion.phi_size)
        for group in np.array_split(np.arange(len(index)), min(_GROUPS, len(index))):
            level, ascent, *_ = expansion.totals([expansion.take(index[group])], center, False)
            slope += ascent
            if not abs(level[0] - expected[group].sum()) <= allowed[group].sum():
                return False
        gradient = self._of_rows(theta, slope)
        return self._along_a_line(lambda at: model.loglik_as_written(at, index), theta, gradient)

    def _of_rows(self, theta: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Return a gradient in phi as one in theta, without the prior's."""
        pull = self.expansion.pull_back
        return pull(theta, slope) - pull(theta, np.zeros_like(slope))

    def _along_a_line(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        theta: np.ndarray,
        gradient: np.ndarray,
    ) -> bool:
        direction = self.model.units * np.random.default_rng(2).normal(size=self.model.size)
        precision = np.finfo(pytensor.config.floatX).eps
        slope = float(gradient @ direction)
        return slope_agrees(function, theta, direction, slope, precision)


def slope_agrees(
    function: Callable[[np.ndarray], Any],
    theta: np.ndarray,
    direction: np.ndarray,
    slope: float,
    precision: float = np.finfo(float).eps,
    tolerated: float = _AGREEING,
) -> bool:
    """Compare the slope of a function's sum in a direction with differences, if those converge."""

    def difference(h: float) -> tuple[np.ndarray, np.ndarray]:
        forth, back = (function(theta + s * h * direction) for s in (1.0, -1.0))
        return (forth - back) / (2 * h), precision * abs(forth).sum() / h

    for h in _STEPS:
        (rough, _), (fine, rounding) = difference(h), difference(0.5 * h)
        size, error = abs(fine).sum(), abs(rough - fine).sum() + rounding
        if error <= _AGREEING * size:
            return bool(abs(slope - fine.sum()) <= 10 * error + tolerated * size)
    return True
