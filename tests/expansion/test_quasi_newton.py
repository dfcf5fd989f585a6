"""Minima of functions that bend both ways, end at walls, or have parameters in any units."""

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from pymc_subsample.expansion.quasi_newton import descend

LIMITS = {"most_steps": 200, "longest": 10.0, "tolerance": 1e-6}


def counted(value, slope, start, **limits):
    seen = []
    found = descend(lambda x: seen.append(x) or value(x), slope, np.array(start), **LIMITS | limits)
    assert found.evaluations == len(seen)
    return found


@pytest.mark.parametrize("size", [1, 5, 40])
def test_a_quadratic_takes_about_as_many_steps_as_parameters(size):
    rng = np.random.default_rng(size)
    root, at = rng.normal(size=(size, size)) + 2 * np.eye(size), rng.normal(size=size)
    matrix = root @ root.T
    found = counted(
        lambda x: 0.5 * (x - at) @ matrix @ (x - at), lambda x: matrix @ (x - at), np.zeros(size)
    )
    np.testing.assert_allclose(found.x, at, rtol=0, atol=1e-4)
    assert found.convex
    assert found.evaluations < 4 * size + 20


def test_in_units_of_the_curvature_one_step_suffices():
    at = np.full(30, 2.0)
    found = counted(
        lambda x: 0.5 * np.sum((x - at) ** 2), lambda x: x - at, np.zeros(30), longest=99
    )
    np.testing.assert_allclose(found.x, at, rtol=0, atol=1e-12)
    assert found.evaluations == 2


def test_a_bent_valley():
    found = counted(rosen, rosen_der, [-1.2, 1.0, -1.0, 1.0])
    np.testing.assert_allclose(found.x, 1.0, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wall", [np.inf, np.nan, 1e100])
def test_steps_across_a_wall_are_halved(wall):
    """x - log(x), of which the first step leads to negative numbers."""
    found = counted(
        lambda x: x[0] - np.log(x[0]) if x[0] > 0 else wall, lambda x: 1 - 1 / x, [5.0], longest=1e3
    )
    np.testing.assert_allclose(found.x, 1.0, rtol=0, atol=1e-4)
    assert found.convex


def test_what_bends_down_is_seen():
    """Two wells at -1 and 1, with a hill between them."""
    found = counted(lambda x: (x[0] ** 2 - 1) ** 2, lambda x: 4 * x * (x**2 - 1), [0.1])
    np.testing.assert_allclose(abs(found.x), 1.0, rtol=0, atol=1e-4)
    assert not found.convex


@pytest.mark.parametrize("start", [0.5, 30.0])
def test_what_bends_up_alone_is_convex(start):
    found = counted(lambda x: np.logaddexp(x[0], -x[0]), np.tanh, [start])
    np.testing.assert_allclose(found.x, 0.0, rtol=0, atol=1e-4)
    assert found.convex


def test_where_nothing_falls_it_stays():
    found = counted(lambda x: 1e100, lambda x: np.ones(3), np.zeros(3))
    np.testing.assert_array_equal(found.x, 0.0)
