r"""The constants of the map, and where the posterior is centred in coordinates that have them.

At a reference point the log-likelihood is known to second order. A block's information and score
are read off the log posterior in coordinates that whiten its children but not the block itself,
from children to parents. In terms of the prior's standard deviations e and the effects
:math:`u = d + K e`, with G and P the gradient and the negative Hessian there,

.. math:: I = K^{-T} (P - 1) K^{-1}, \qquad b = K^{-T} (G + e) + I u .

A mode in psi is then one of the marginal posterior of means and scales, by Laplace's approximation
over the effects [1]_: the volume of the map holds the determinant.

References
----------
.. [1] L. Tierney and J. B. Kadane (1986). Accurate approximations for posterior moments and
   marginal densities. Journal of the American Statistical Association 81(393), section 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pymc_subsample.coordinates.coordinates import Coordinates
from pymc_subsample.coordinates.scale_quantiles import marginal
from pymc_subsample.expansion.quadratic import Posterior, Quadratic, steps
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.search import find_mode, polish, quadratic_mode

# Below this share of the prior's, an effect's standard deviation tells nothing of information.
# The root of the rounding of doubles. At most three rounds are a choice.
_SMALLEST = 1e-8
_ROUNDS = 3
# Of a precision matrix with a diagonal of ones. A choice: 1e-16 is rounding, and what such a
# matrix solves has six digits.
_SINGULAR = 1e-10


def start(coordinates: Coordinates, theta: np.ndarray) -> np.ndarray:
    """Return psi for theta in coordinates without information: the prior's own."""
    return coordinates.from_theta(theta, np.zeros(coordinates.length))


def fitted(quadratic: Quadratic) -> Quadratic:
    """Return the same in coordinates that have its information, if there are some, and finite."""
    coordinates, reference = quadratic.expansion.effects, quadratic.reference
    if coordinates is None or not reference.is_finite:
        return quadratic
    theta, _ = coordinates.to_theta(reference.theta)
    order = _order(coordinates, {})
    psi = _informed(quadratic, theta, order)
    if (better := _order(coordinates, coordinates.centring(psi))) != order:
        psi = _informed(quadratic, theta, better)
    if len(coordinates.bent):
        coordinates.splines(psi)[:] = [
            marginal(quadratic, psi, element) for element in coordinates.bent
        ]
        psi = coordinates.from_theta(theta, psi)
    if not np.all(np.isfinite(psi)):
        return quadratic
    return replace(quadratic, reference=replace(reference, theta=psi))


def _informed(quadratic: Quadratic, theta: np.ndarray, order: Sequence[str]) -> np.ndarray:
    """Return psi for theta with the information of each block, read off in this order."""
    coordinates = quadratic.expansion.effects
    assert coordinates is not None
    psi = start(coordinates, theta)
    for name in order:
        block = coordinates.blocks[name]
        information, score = coordinates.constants(psi, name)
        *found, slant = _information(quadratic, psi, name)
        information[:] = found[0][:, *np.triu_indices(block.components)].T
        score[:] = found[1].T
        coordinates.slant(psi, name)[:] = slant
        psi = coordinates.from_theta(theta, psi)
    return psi


def _order(coordinates: Coordinates, weights: Mapping[str, np.ndarray]) -> list[str]:
    """Return the blocks, children first; joint ones as soon as that lets them.

    Of others side by side, first those that rows tell best. These move along with locations
    whatever their scales, and leave little to the others, which would move by more, all together,
    where their own scales are large. `weights` are those of the centred form.
    """

    def key(name: str) -> tuple[bool, int, float]:
        block = coordinates.blocks[name]
        weight = np.mean([np.mean(weights.get(variable, 0.0)) for variable in block.orders])
        return not block.joint, -coordinates.depth[name], -float(np.nan_to_num(weight))

    done: list[str] = []
    left = dict(coordinates.blocks)
    while left:
        ready = [
            name
            for name, block in left.items()
            if not any(b.parents & block.orders.keys() for b in left.values() if b is not block)
        ]
        done.append(min(ready, key=key))
        del left[done[-1]]
    return done


def _information(
    quadratic: Quadratic, psi: np.ndarray, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Information, shape (J, k, k), score, (J, k), and D or A of a block that is not whitened."""
    coordinates = quadratic.expansion.effects
    assert coordinates is not None
    block = coordinates.blocks[name]
    k, units, place = block.components, block.units, coordinates.places[name]
    others = coordinates.locations
    apart = None if block.joint else quadratic.unit_hessians(place, psi)
    within, beside = np.empty((units, k, k)), np.empty((len(others), k * units))
    if apart is not None:
        within = -apart
        for at, column in enumerate(quadratic.hessian_columns(others, psi)):
            beside[at] = -column[place].ravel()
    else:
        for at, column in enumerate(quadratic.hessian_columns(place.ravel(), psi)):
            b, unit = divmod(at, units)
            within[unit, :, b] = -column[place[:, unit]]
            beside[:, at] = -column[others]
    slope = quadratic.gradient(psi)
    ascent = slope[place].T
    theta, _ = coordinates.to_theta(psi)
    effect, offset = coordinates.strengths(theta, name)
    e = psi[place].T
    inverse = _inverse(effect)
    if block.joint:
        # The locations' part, as if the log-likelihood were integrated over them.
        regression = _solved(quadratic.precision(others, psi), beside)
        within = within - beside.T @ regression
        ascent = ascent - slope[others] @ regression
    excess = 0.5 * (within + within.transpose(0, 2, 1)) - np.eye(k)
    information = _positive(inverse.transpose(0, 2, 1) @ excess @ inverse)
    u = offset + np.einsum("jab,jb->ja", effect, e)
    if block.joint:
        slant = (regression @ inverse[0]).T
    else:
        crossed = np.einsum("jba,ijb->iaj", inverse, beside.reshape(-1, k, units).swapaxes(1, 2))
        # D such that I D is as near as can be to how scores fall with locations.
        falls = crossed - _moved(coordinates, psi, name, information)
        slant = _solved(information.sum(axis=0), falls.sum(axis=2).T)
        slant = np.where(np.all(np.isfinite(slant), axis=0), slant, 0.0)
        u = u + slant @ psi[others]
    pulled = np.einsum("jba,jb->ja", inverse, ascent + e)
    return information, pulled + np.einsum("jab,jb->ja", information, u), slant


def _moved(
    coordinates: Coordinates, psi: np.ndarray, name: str, information: np.ndarray
) -> np.ndarray:
    """How the rows' score in u falls with each location through d, shape (locations, k, J).

    Through d itself, and through the effects that it depends on, which move along with locations.
    By the steps of `Quadratic.hessian_columns`, so that bends of d are in neither or in both.
    """
    found = np.zeros((len(coordinates.locations), *coordinates.places[name].shape))
    above = coordinates.elements(coordinates.ancestors[name])
    for i in np.flatnonzero(np.isin(coordinates.locations, above)):
        element = coordinates.locations[i]
        h = steps(psi[element])
        points = np.array([psi, psi])
        points[:, element] += -h, h
        low, high = (
            coordinates.strengths(coordinates.to_theta(point)[0], name)[1] for point in points
        )
        found[i] = np.einsum("jab,jb->aj", information, (high - low) / (2 * h))
    return found


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve with a positive matrix in any units; where it is singular, by the shortest solution."""
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))  # divides nothing by zero
    inverse = np.linalg.pinv(scale[:, None] * matrix * scale, rcond=_SINGULAR, hermitian=True)
    return scale[:, None] * (inverse @ (scale[:, None] * right))


def _inverse(effect: np.ndarray) -> np.ndarray:
    """Invert small matrices; where one is nearly singular, as if it were not."""
    left, values, right = np.linalg.svd(effect)
    # divides nothing by zero
    values = np.maximum(values, _SMALLEST * np.maximum(values.max(axis=1, keepdims=True), 1e-150))
    return np.einsum("jba,jb,jcb->jac", right, 1 / values, left)


def _positive(matrices: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite matrices."""
    symmetric = np.nan_to_num(0.5 * (matrices + matrices.transpose(0, 2, 1)))
    values, vectors = np.linalg.eigh(symmetric)
    return np.einsum("jab,jb,jcb->jac", vectors, np.maximum(values, 0.0), vectors)


def locate(
    posterior: Posterior, start: np.ndarray, free: np.ndarray, rng: np.random.Generator
) -> Quadratic:
    """Find the mode in coordinates of its own, and these coordinates; elements `free` move.

    First with all scales held, where the map is affine; then scales and everything else that is no
    effect, on the quadratic log-likelihood, which reads no rows; then all on all rows.
    """
    expansion, coordinates = posterior.expansion, posterior.expansion.effects
    assert coordinates is not None
    effects = np.concatenate([place.ravel() for place in coordinates.places.values()])
    others = np.setdiff1d(free, effects)
    held = np.intersect1d(coordinates.scales, free)
    found = find_mode(posterior, start, np.setdiff1d(free, held), rng)
    for _ in range(_ROUNDS):
        found = fitted(found)
        moved = quadratic_mode(found, others)
        before = expansion.parameters(moved)[0]
        better = polish(posterior, moved, free)
        # Far from the mode the log-likelihood is not quadratic.
        if not better.height >= found.height:
            better = polish(posterior, found.theta, free)
        found = better
        at = found.reference
        # a choice: nobody sees it
        if np.allclose(at.center, before, rtol=0, atol=1e-3 * _spread(at)):
            break
    return fitted(found)


def _spread(reference: Reference) -> np.ndarray:
    """Return about the posterior standard deviation of each element of phi."""
    size = len(reference.center)
    if reference.curvature.shape == (size, size):
        diagonal = -np.diag(reference.curvature)
    else:
        row, column, value = reference.curvature
        diagonal = np.zeros(size)
        same = row == column
        diagonal[row[same].astype(int)] = -value[same]
    return 1 / np.sqrt(np.maximum(diagonal, 1e-300))  # divides nothing by zero
