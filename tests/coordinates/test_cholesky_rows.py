"""Rows of Cholesky factors as standard deviations and partial correlations."""

import numpy as np
import pymc as pm
import pytest

from pymc_subsample.coordinates import find_coordinates
from pymc_subsample.coordinates.cholesky_rows import fold, fold_back, unfold
from pymc_subsample.model import TallModel

# Of a factor of four variables, after two numbers that are not of it.
ROWS = np.array([[2 + i * (i + 1) // 2, i] for i in (1, 2, 3)])
ROWS.flags.writeable = False
SIZE = 12


def point(seed=0, spread=1.0):
    return spread * np.random.default_rng(seed).normal(size=SIZE)


def unfolded(x):
    theta = x.copy()
    return theta, unfold(ROWS, theta)


def test_rows_have_the_scales_and_partial_correlations():
    x = point()
    theta, _ = unfolded(x)
    np.testing.assert_array_equal(theta[:3], x[:3])
    for at, m in ROWS:
        row = np.append(theta[at : at + m], np.exp(theta[at + m]))
        assert np.isclose(np.linalg.norm(row), np.exp(x[at + m]))
        left = np.sqrt(np.cumsum(row[::-1] ** 2)[::-1])
        np.testing.assert_allclose(row[:m] / left[:m], np.tanh(x[at : at + m]))


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_there_and_back(spread):
    x = point(1, spread)
    theta, _ = unfolded(x)
    fold(ROWS, theta)
    np.testing.assert_allclose(theta, x, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_volume_and_derivatives(seed):
    x, h = point(seed), 1e-6
    weights = np.random.default_rng(10 + seed).normal(size=SIZE)
    theta, volume = unfolded(x)
    jacobian, slope = np.empty((SIZE, SIZE)), np.empty(SIZE)
    for i, step in enumerate(h * np.eye(SIZE)):
        (high, high_volume), (low, low_volume) = unfolded(x + step), unfolded(x - step)
        jacobian[:, i] = (high - low) / (2 * h)
        slope[i] = (weights @ (high - low) + high_volume - low_volume) / (2 * h)
    assert np.isclose(np.linalg.slogdet(jacobian)[1], volume, atol=1e-6)
    bar = weights.copy()
    fold_back(ROWS, theta, bar)
    np.testing.assert_allclose(bar, slope, atol=1e-6, rtol=1e-6)


def test_rows_are_found_in_a_model():
    groups = np.arange(60) % 20
    with pm.Model() as model:
        pm.Normal("before", shape=4)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1.0, size=3))
        u = pm.Normal("z", shape=(20, 3)) @ chol.T
        pm.Normal("y", u[groups].sum(axis=1), observed=np.zeros(60))
    tall = TallModel(model)
    found = find_coordinates(tall, tall.names)
    assert found.rows.tolist() == [[5, 1], [7, 2]]
