"""The largest of many estimated errors is not taken for a perturbation; a real one is."""

import numpy as np
import pytest

from pymc_subsample.diagnostics.checks import SHIFT_BOUND, STRETCH_BOUND
from pymc_subsample.diagnostics.perturbation import perturbation


def looked_at(rng, bias, d, k=64):
    z = rng.standard_normal((k, d))
    return perturbation(bias(z), np.full(k, 1 / k), z)


def excess(off):
    return max(off.shift / SHIFT_BOUND, off.stretch / STRETCH_BOUND)


def seen(off):
    return max(off.seen_shift / SHIFT_BOUND, off.seen_stretch / STRETCH_BOUND)


@pytest.mark.parametrize("d", [100, 200])
def test_a_bias_that_depends_on_no_parameter_is_no_perturbation(d):
    """No mean is off, and no sd by more than 1.2%; of the uncorrected estimates many alarm."""
    rng = np.random.default_rng(1)
    found = [
        looked_at(rng, lambda z: 0.14 * np.sum(z**2 - 1, axis=1) / np.sqrt(2 * d), d)
        for _ in range(100)
    ]
    assert np.mean([seen(off) > 1 for off in found]) > 0.2
    assert np.mean([excess(off) > 1 for off in found]) <= 0.05


@pytest.mark.parametrize("d", [1, 20, 200])
@pytest.mark.parametrize("power", [1, 2])
def test_one_perturbed_parameter_among_many_is_seen(d, power):
    """Its mean is off by 0.25 sds or its sd by about 15%, more than twice what is tolerable."""
    rng = np.random.default_rng(2)
    size = {1: 0.25, 2: 0.2}[power]
    found = [looked_at(rng, lambda z: size * z[:, 0] ** power, d) for _ in range(100)]
    assert np.mean([excess(off) > 1 for off in found]) > 0.9


def test_nothing_is_taken_off_a_single_parameter():
    rng = np.random.default_rng(3)
    off = looked_at(rng, lambda z: 0.3 * z[:, 0] + 0.2 * z[:, 0] ** 2, 1)
    assert (off.shift, off.stretch) == pytest.approx((off.seen_shift, off.seen_stretch))


def test_what_is_not_finite_is_infinite():
    off = perturbation(np.array([0.0, np.nan]), np.full(2, 0.5), np.zeros((2, 3)))
    assert off.shift == off.stretch == np.inf
