"""The sum over all rows is estimated from some, as many as it takes."""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm

from pymc_subsample.results.loo.estimate import (
    estimated,
    relative_efficiency,
)
from pymc_subsample.results.loo.expanded import Approximation


class Known:
    """Rows whose predictive densities are known, and what an approximation misses of them."""

    def __init__(self, n, missing):
        rng = np.random.default_rng(1)
        self.n, self.elpd, self.read_so_far = n, rng.normal(size=n), np.zeros(n, dtype=bool)
        self.p = self.k = np.zeros(n)
        level = self.elpd + missing * rng.normal(size=n)
        self.approximation = Approximation(level, level + 1e-9 * rng.normal(size=n), np.zeros(n))

    def read(self, index):
        self.read_so_far[index] = True


@pytest.mark.parametrize(("missing", "size"), [(0.01, 400), (0.025, 1_600), (0.06, 6_400)])
def test_rows_are_doubled_until_their_error_is_negligible(missing, size):
    """The ratio of the errors is that of the residuals times sqrt(n / m - 1), n = 20,000."""
    known = Known(20_000, missing)
    found, _ = estimated(known, known.approximation, None, 400, np.random.default_rng(1))
    assert len(found.sample) == size
    assert found.subsampling_se < 0.1 * found.se
    far = norm.isf(1e-5 / 2)  # once in 100,000 times
    assert abs(found.elpd - known.elpd.sum()) < far * found.subsampling_se
    assert known.read_so_far.sum() < size + 200


def test_all_rows_are_read_where_half_would_not_do():
    known = Known(20_000, 1.0)
    found, _ = estimated(known, known.approximation, None, 400, np.random.default_rng(1))
    assert known.read_so_far.all()
    assert found.subsampling_se == 0
    assert found.elpd == pytest.approx(known.elpd.sum(), rel=1e-12)


def test_relative_efficiency_is_of_all_variables():
    rng = np.random.default_rng(1)
    slow = np.cumsum(rng.normal(size=(2, 250)), axis=1)
    fast = xr.DataArray(rng.normal(size=(2, 250, 3)), dims=("chain", "draw", "element"))
    data = xr.Dataset({"fast": fast, "slow": (("chain", "draw"), slow)})
    ess = az.ess(data, method="mean")
    expected = np.r_[ess["fast"].values, ess["slow"].values].mean() / 500
    assert relative_efficiency(data) == pytest.approx(float(expected))
    assert relative_efficiency(data.isel(chain=[0])) == 1.0
