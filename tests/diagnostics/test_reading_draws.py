"""Draws of a run are read as the model has them."""

import numpy as np
import pytest
import xarray as xr
from models import MODELS

from pymc_subsample.diagnostics.reading_draws import reader, spread, to_theta
from pymc_subsample.model import TallModel


def test_draws_are_spread_evenly():
    np.testing.assert_array_equal(spread(10, 2, 10), [1, 3, 5, 7, 9])
    np.testing.assert_array_equal(spread(7, 2, 100), np.arange(7))
    assert len(spread(1000, 3, 200)) == 67


# Transforms of every kind: intervals, scales, orders, simplices, covariances, named dimensions.
TRANSFORMED = [
    "beta_regression", "dims_hierarchy", "dims_mixed_with_ordinary", "dirichlet_multinomial",
    "mixture_of_regressions", "mvnormal_lkj", "normal_mixture", "ordered_logistic",
    "slopes_correlated", "truncated",
]  # fmt: skip


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_draws_are_mapped_to_unconstrained_space(name):
    """Points of the model bank come back from the scale of its variables, dims models' too."""
    model = MODELS[name](np.random.default_rng(1))
    tall = TallModel(model)
    rng = np.random.default_rng(2)
    thetas = tall.ravel(tall.initial_point) + 0.1 * rng.normal(size=(2, 3, tall.size))
    names = [rv.name for rv in model.free_RVs]
    values = reader(model, tall, names)(thetas.reshape(6, -1))
    shapes = model.eval_rv_shapes()
    data, start = {}, 0
    for var in names:
        shape = tuple(map(int, shapes[var]))
        size = int(np.prod(shape, dtype=int))
        part = values[:, start : start + size].reshape(2, 3, *shape)
        data[var] = (["chain", "draw", *(f"{var}_{i}" for i in range(len(shape)))], part)
        start += size
    back = to_theta(model, tall, xr.Dataset(data), "test")
    np.testing.assert_allclose(back, thetas, rtol=1e-8, atol=1e-8)
