"""Whether a map found in a graph is one-to-one, with the volume that it says."""

import logging

import numpy as np

from pymc_subsample.coordinates.coordinates import Coordinates
from pymc_subsample.coordinates.scale_quantiles import through
from pymc_subsample.coordinates.scale_splines import KNOTS
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.verification import slope_agrees
from pymc_subsample.model import TallModel

_log = logging.getLogger("pymc.subsample")

# Of points from the initial one, on PyMC's unconstrained scale. A choice: the point itself and
# one that nobody chose.
_DISTANCES = (0.0, 0.3)
_STEP = 1e-5  # Of central differences: about the cube root of the rounding of doubles.
_TOLERANCE = 1e-5  # Far above what such differences leave of a smooth map.
# Of the slope in a random direction, beside what differences tell of it. A choice: ten times the
# error of such differences.
_SLOPE = 1e-4
# Two compilations of one formula may round differently, as processors with other instructions do:
# by a share of a number, and by one of the largest that it may be the difference of. A choice:
# some million roundings of doubles, and some ten thousand.
_ROUNDING, _CANCELLED = 1e-9, 1e-11


def reparameterise(tall: TallModel, expansion: Expansion, coordinates: Coordinates) -> bool:
    """Move an expansion to coordinates that were found, if they are what they should be.

    At points near the start, with information of random size: theta from psi and back, the
    volume against differences, the log prior against the model's own, the gradient against
    differences. Where one disagrees the model is sampled as it was written, and that is said.
    Returns whether they are.
    """
    written = expansion.parameters
    rng = np.random.default_rng(3)  # any seed
    points = [_point(coordinates, tall.ravel(tall.initial_point), d, rng) for d in _DISTANCES]
    sound = all(_is_invertible(coordinates, psi) for psi in points)
    if sound:
        before = [written(coordinates.to_theta(psi)[0]) for psi in points]
        expansion.reparameterise(coordinates)

        def same_gradient(psi: np.ndarray) -> bool:
            weights, direction = rng.standard_normal(expansion.phi_size), np.zeros(len(psi))
            direction[: coordinates.size] = rng.standard_normal(coordinates.size)

            def value(at: np.ndarray) -> np.ndarray:
                phi, logprior = expansion.parameters(at)
                return phi @ weights + logprior

            slope = float(expansion.pull_back(psi, weights) @ direction)
            with np.errstate(all="ignore"):
                return slope_agrees(value, psi, direction, slope, tolerated=_SLOPE)

        sound = all(
            _same_density(coordinates, psi, found, expansion.parameters(psi)) and same_gradient(psi)
            for psi, found in zip(points, before, strict=True)
        )
        if not sound:
            expansion.restore()
    if not sound:
        _log.warning(
            "The hierarchical form of %s was misread, and the model is sampled as it is written. "
            "Please report the model.",
            ", ".join(map(repr, coordinates.blocks)),
        )
    return sound


def _point(
    coordinates: Coordinates, theta: np.ndarray, distance: float, rng: np.random.Generator
) -> np.ndarray:
    psi = np.zeros(coordinates.length)
    for name, block in coordinates.blocks.items():
        k = block.components
        information, score = coordinates.constants(psi, name)
        root = rng.standard_normal((block.units, k, k))
        # No information of rows, some, and so much that effects follow the data.
        full = rng.choice([0.0, 1.0, 100.0], (block.units, 1, 1)) * root @ root.transpose(0, 2, 1)
        information[:] = full[:, *np.triu_indices(k)].T
        score[:] = rng.standard_normal(score.shape)
        slant = coordinates.slant(psi, name)
        slant[:] = rng.standard_normal(slant.shape)
    for line in coordinates.splines(psi):
        # A spline that bends by a fifth between knots, half a standard deviation apart from -4 on.
        bent = through(np.cumsum(np.exp(0.2 * rng.standard_normal(len(KNOTS)))) * 0.5 - 4.0)
        line[:] = 0.0 if bent is None else bent
    psi = coordinates.from_theta(theta, psi)
    psi[: coordinates.size] += distance * rng.standard_normal(coordinates.size)
    return psi


def _is_invertible(coordinates: Coordinates, psi: np.ndarray) -> bool:
    theta, volume = coordinates.to_theta(psi)
    if not np.all(np.isfinite(theta)):
        return True  # a start at which the prior is not finite is refused by name
    size = coordinates.size
    back = coordinates.from_theta(theta, psi)
    # far above rounding, far below any mistake
    if not np.allclose(back[:size], psi[:size], rtol=1e-6, atol=1e-6):
        return False
    return bool(
        abs(_volume(coordinates, psi) - volume) <= _TOLERANCE * (1 + abs(volume)) * np.sqrt(size)
    )


def _volume(coordinates: Coordinates, psi: np.ndarray) -> float:
    """Log volume of the map by differences: of one unit after another, or of joint ones at once."""
    joint, total = [np.union1d(coordinates.locations, coordinates.bent)], 0.0
    for name, block in coordinates.blocks.items():
        place = coordinates.places[name]
        if block.joint:
            joint.append(place.ravel())
        else:
            total += _log_determinants(coordinates, psi, place)
    return total + _log_determinants(coordinates, psi, np.concatenate(joint)[:, None])


def _log_determinants(coordinates: Coordinates, psi: np.ndarray, place: np.ndarray) -> float:
    """Add up log |det| of the map's derivatives in each column of elements, shape (k, J)."""
    k, units = place.shape
    jacobian = np.empty((units, k, k))
    for b in range(k):
        moved = [psi.copy(), psi.copy()]
        moved[0][place[b]] += _STEP
        moved[1][place[b]] -= _STEP
        forth, back = (coordinates.to_theta(point)[0] for point in moved)
        jacobian[:, :, b] = ((forth - back)[coordinates.order][place] / (2 * _STEP)).T
    return float(np.linalg.slogdet(jacobian)[1].sum())


def _same_density(
    coordinates: Coordinates,
    psi: np.ndarray,
    before: tuple[np.ndarray, float],
    after: tuple[np.ndarray, float],
) -> bool:
    """Whether phi and the log prior are those before the move, but for its volume."""
    (phi, logprior), (found, density) = before, after
    theta, volume = coordinates.to_theta(psi)
    if not np.isfinite(logprior):
        return True
    parts = [phi, *(x for name in coordinates.blocks for x in coordinates.strengths(theta, name))]
    largest = max(np.abs(x[np.isfinite(x)]).max(initial=1.0) for x in parts)
    same = np.allclose(found, phi, rtol=_ROUNDING, atol=_CANCELLED * largest)
    return bool(same and np.isclose(density, logprior + volume, rtol=_ROUNDING))
