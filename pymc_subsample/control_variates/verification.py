"""Whether a compiled expansion computes the log posterior that the model's author wrote."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytensor

from pymc_subsample.control_variates.curvature import MAX_DENSE
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.likelihood import TallModel
from pymc_subsample.likelihood.verification import probes, tolerance

_GROUPS = 10
# A gradient is compared with a finite difference where two of those agree to this share.
_STEPS = (1e-4, 1e-6, 1e-8)
_AGREEING = 1e-3
# Of log densities that the model may take in single precision.
_ROUNDING = 1e-5


def agrees(model: TallModel, expansion: Expansion) -> bool:
    """Whether an expansion has the log posterior and the gradient of the model as written.

    Both are compared at two random points near the start, on 200 random rows, by the functions
    that a step compiles anyway: change of the log-likelihood for order 0, sums otherwise. Where
    they differ, the model as written is taken in the form in which PyTensor computes it.
    """
    check = _sums_agree if expansion.order else _changes_agree

    def same() -> bool:
        return all(
            check(model, expansion, theta, index) and _prior_agrees(model, expansion, theta)
            for theta, index in probes(model)
        )

    return same() or (model.stabilise() and same())


def loglik_agrees(
    model: TallModel, expansion: Expansion, theta: np.ndarray, index: np.ndarray
) -> bool:
    """Whether `Expansion.loglik` of some rows at theta is that of the model as written."""
    expected, found = model.loglik_as_written(theta, index), np.empty(len(index))
    expansion.loglik(expansion.parameters(theta)[0], expansion.take(index), found)
    known = np.isfinite(expected)
    allowed = tolerance(model, model.loglik_as_written, theta, index)
    return bool(np.all(abs(found - expected)[known] <= allowed[known]))


def gradient_agrees(model: TallModel, expansion: Expansion) -> bool:
    """Whether the gradient by which stochastic gradients move is that of the model as written.

    `Expansion.gradient` and the gradient of the control variates around another point, added up
    over 200 random rows at two random points near the start, must be that of their log-likelihood.
    """
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
            expansion.sums(center, rows, (np.zeros(1), slope, curvature))
        expansion.gradient(phi, rows, center, 1.0, total)
        total += slope + (curvature @ (phi - center) if full else 0.0)
        gradient = expansion.pull_back(theta, total) - expansion.pull_back(theta, np.zeros(size))
        if not np.all(np.isfinite(gradient)):
            continue  # rows without a derivative, which are refused by name or diverge
        loglik = partial(model.loglik_as_written, index=index)
        if not _gradient_agrees(model, loglik, theta, gradient):
            return False
    return True


def _prior_agrees(model: TallModel, expansion: Expansion, theta: np.ndarray) -> bool:
    expected, found = model.logprior(theta), expansion.parameters(theta)[1]
    if not np.isfinite(expected):
        return True
    if not abs(found - expected) <= _ROUNDING * (1 + abs(expected)):
        return False
    if not expansion.order:
        return True
    gradient = expansion.pull_back(theta, np.zeros(expansion.phi_size))
    return _gradient_agrees(model, lambda at: np.atleast_1d(model.logprior(at)), theta, gradient)


def _changes_agree(
    model: TallModel, expansion: Expansion, theta: np.ndarray, index: np.ndarray
) -> bool:
    start = model.ravel(model.initial_point)
    old, new = (model.loglik_as_written(point, index) for point in (start, theta))
    near, far = (tolerance(model, model.loglik_as_written, x, index) for x in (start, theta))
    (phi, _), (new_phi, _) = expansion.parameters(start), expansion.parameters(theta)
    found = np.empty(len(index))
    expansion.change(phi, new_phi, phi, expansion.take(index), found)
    known = np.isfinite(new - old)
    return bool(np.all(abs(found - (new - old))[known] <= (near + far)[known]))


def _sums_agree(
    model: TallModel, expansion: Expansion, theta: np.ndarray, index: np.ndarray
) -> bool:
    expected = model.loglik_as_written(theta, index)
    known = np.isfinite(expected)
    index, expected = index[known], expected[known]
    if not len(index):
        return True
    allowed = tolerance(model, model.loglik_as_written, theta, index)
    center, _ = expansion.parameters(theta)
    slope = np.zeros(expansion.phi_size)
    for group in np.array_split(np.arange(len(index)), min(_GROUPS, len(index))):
        level, ascent, _ = expansion.totals([expansion.take(index[group])], center, False)
        slope += ascent
        if not abs(level[0] - expected[group].sum()) <= allowed[group].sum():
            return False
    gradient = expansion.pull_back(theta, slope) - expansion.pull_back(theta, np.zeros_like(slope))
    return _gradient_agrees(model, lambda at: model.loglik_as_written(at, index), theta, gradient)


def _gradient_agrees(
    model: TallModel,
    function: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    gradient: np.ndarray,
) -> bool:
    """Compare a gradient along a random direction with finite differences, if those converge."""
    direction = model.units * np.random.default_rng(2).normal(size=model.size)

    precision = np.finfo(pytensor.config.floatX).eps

    def difference(h: float) -> tuple[np.ndarray, np.ndarray]:
        forth, back = (function(theta + s * h * direction) for s in (1.0, -1.0))
        return (forth - back) / (2 * h), precision * abs(forth).sum() / h

    for h in _STEPS:
        (rough, _), (fine, rounding) = difference(h), difference(0.5 * h)
        size, error = abs(fine).sum(), abs(rough - fine).sum() + rounding
        if error <= _AGREEING * size:
            return bool(abs(gradient @ direction - fine.sum()) <= 10 * error + _AGREEING * size)
    return True
