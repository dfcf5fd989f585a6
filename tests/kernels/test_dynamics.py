"""What a transition reports of its path, beside the path followed in NumPy."""

from copy import deepcopy

import numba
import numpy as np
import pytest

from pymc_subsample.kernels.dynamics import JITTER, Moves, trajectory, tree

STEP = 0.35


@numba.njit
def density(surface, position, gradient):
    """Two Student-t variables with three degrees of freedom, as estimates are returned."""
    total = 0.0
    for j in range(position.shape[0]):
        total -= 2.0 * np.log1p(position[j] ** 2 / 3.0)
        gradient[j] = -4.0 * position[j] / (3.0 + position[j] ** 2)
    return total, 0.0, 0.0


def driver(dynamics):
    @numba.njit
    def run(rng, theta, moves):
        gradient = np.empty(theta.shape[0])
        estimate = density(0, theta, gradient)
        return dynamics(rng, density, 0, theta, gradient, estimate, moves)

    return run


def energies(position, momentum, steps):
    """Return positions and changes of the energy after 0, 1, ... steps, back if negative."""
    gradient, h = np.empty(2), np.copysign(STEP, steps)
    value = density(0, position, gradient)[0]
    start = 0.5 * momentum @ momentum - value
    positions, errors = [position], [0.0]
    for _ in range(abs(steps)):
        momentum = momentum + 0.5 * h * gradient
        position = position + h * momentum
        value = density(0, position, gradient)[0]
        momentum = momentum + 0.5 * h * gradient
        positions.append(position)
        errors.append(0.5 * momentum @ momentum - value - start)
    return positions, errors


@pytest.mark.parametrize("dynamics", [trajectory, tree])
def test_place_and_largest_error_are_those_of_the_path(dynamics):
    run, rng, places = driver(dynamics), np.random.default_rng(0), []
    extent = 6 if dynamics is tree else 8 * STEP
    moves = Moves(np.arange(2), np.ones((1, 2)), STEP, float(extent))
    theta = np.array([0.3, -1.0])
    for _ in range(200):
        copied, start = deepcopy(rng), theta.copy()
        if dynamics is trajectory:
            length = extent * (1 - JITTER + 2 * JITTER * copied.random())
        momentum = copied.standard_normal(2)
        found = run(rng, theta, moves)
        positions, errors = energies(start, momentum, int(found.place))
        np.testing.assert_allclose(theta, positions[-1], rtol=1e-9)
        if dynamics is trajectory:
            _, errors = energies(start, momentum, round(length / STEP))
            np.testing.assert_allclose(found.largest, max(errors, key=abs), rtol=1e-7)
        else:
            np.testing.assert_allclose(found.error, errors[-1], atol=1e-10)
            within = np.r_[
                energies(start, momentum, int(found.n_steps))[1],
                energies(start, momentum, -int(found.n_steps))[1],
            ]
            assert np.min(np.abs(within - found.largest)) < 1e-9
            assert abs(found.largest) >= np.max(np.abs(errors)) - 1e-9
        places.append(found.place)
    assert len(set(places)) > (10 if dynamics is tree else 1)
    assert (min(places) < 0) == (dynamics is tree)


def test_a_trajectory_that_leaves_reports_an_infinite_error():
    def outside(surface, position, gradient):
        gradient[:] = 0.0
        return (-np.inf if position[0] > 0.5 else 0.0), 0.0, 0.0

    edge = numba.njit(outside)

    @numba.njit
    def run(rng, theta, moves):
        return trajectory(rng, edge, 0, theta, np.zeros(1), (0.0, 0.0, 0.0), moves)

    moves = Moves(np.arange(1), np.ones((1, 1)), 1.0, 5.0)
    left = [run(np.random.default_rng(s), np.array([0.4]), moves) for s in range(20)]
    crossed = [t for t in left if t.crossed]
    assert crossed
    assert all(t.largest == np.inf and t.place == 0 and t.moved == 0 for t in crossed)
    assert all(t.largest == 0 for t in left if not t.crossed)
