"""Units that their rows tell far better than shared variables are known: nodes move with these."""

import logging
from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytest
from chains import assert_moments
from scipy import stats

import pymc_subsample as pms
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.units import accuracy, moving
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.modes import find_modes
from pymc_subsample.units.sampled import units_of

# Units whose standard deviation is some thousandths of that of the distribution of units.
UNITS, ROWS, SCALE = 100, 40, 0.02


def precise(kind):
    rng = np.random.default_rng(1)
    index = np.repeat(np.arange(UNITS), ROWS)
    rows = rng.normal(rng.normal(1, 1, UNITS)[index], SCALE)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        s = pm.HalfNormal("s", 1)
        if kind == "centred":
            z = pm.Normal("z", mu, tau, shape=UNITS)
            pm.Normal("y", z[index], s, observed=rows)
        else:
            z = pm.Normal("z", 0, 1, shape=UNITS)
            pm.Normal("y", mu + tau * z[index], s, observed=rows)
    return model, rows.reshape(UNITS, ROWS)


def exact(rows, mu, tau, s):
    means, within = rows.mean(axis=1), ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum()
    total = stats.norm.logpdf(means, mu, np.sqrt(tau**2 + s**2 / ROWS)).sum()
    total -= UNITS * (ROWS - 1) * np.log(s) + 0.5 * within / s**2
    return total + stats.norm.logpdf(mu, 0, 5) + stats.halfnorm.logpdf([tau, s], 0, [2, 1]).sum()


@cache
def without(kind):
    model, rows = precise(kind)
    return pms.marginalize(model, "z"), rows


def far_points(model):
    """Return points four standard deviations and more away from where a model starts."""
    rng, start = np.random.default_rng(0), model.initial_point()
    sd = {"mu": 0.1, "tau_log__": 0.07, "s_log__": 0.011}
    return [{n: v + 4 * sd[n] * rng.normal() for n, v in start.items()} for _ in range(6)]


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["centred", "noncentred"])
def test_precise_units_have_their_closed_form_at_far_points(kind):
    model, rows = without(kind)
    density = numpy_function(model.value_vars, [model.logp()])
    off = []
    for point in far_points(model):
        mu, tau, s = point["mu"], np.exp(point["tau_log__"]), np.exp(point["s_log__"])
        closed = exact(rows, mu, tau, s) + np.log(tau) + np.log(s)
        off.append(float(density(*(point[v.name] for v in model.value_vars))[0]) - closed)
    # Sums of 4,000 terms of squares over 0.02**2.
    assert np.ptp(off) < 1e-6


def test_nodes_that_stay_are_refused(monkeypatch):
    monkeypatch.setattr(accuracy, "_STEPS_TRIED", (0,))
    with pytest.raises(pms.TallModelError, match="The integrals over 'z' are off by"):
        pms.marginalize(precise("centred")[0], "z")


def test_auto_leaves_effects_whose_integrals_do_not_serve(monkeypatch, caplog):
    monkeypatch.setattr(accuracy, "_STEPS_TRIED", (0,))
    model, _ = precise("centred")
    monkeypatch.setattr("pymc_subsample.units.groupings._INTEGRATED", 1)
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        assert units_of(model, "auto", "HMCECS") is None
    assert "HMCECS: not integrated out: 'z' (100 levels of 40 rows)" in caplog.text
    assert "The integrals over 'z' are off by" in caplog.text
    with pytest.raises(pms.TallModelError, match="The integrals over 'z' are off by"):
        units_of(model, ["z"], "HMCECS")


@pytest.mark.costly
def test_gradients_of_nodes_that_move_are_differences():
    model, _ = without("centred")
    total = model.logp()
    slopes = numpy_function(model.value_vars, pytensor.grad(total, model.value_vars))
    density = numpy_function(model.value_vars, [total])
    point, step = far_points(model)[0], 1e-5
    names = [v.name for v in model.value_vars]
    for k, name in enumerate(names):
        ahead, behind = (
            float(density(*(point[n] + s * (n == name) for n in names))[0]) for s in (step, -step)
        )
        found = float(slopes(*(point[n] for n in names))[k])
        assert found == pytest.approx((ahead - behind) / (2 * step), rel=1e-4, abs=1e-3)


def counts(size):
    """Return precise units of one, two or three variables each: counts of a curve."""
    rng = np.random.default_rng(2)
    index, x = np.repeat(np.arange(30), 60), np.tile(np.linspace(-1, 1, 60), 30)
    design = np.stack([np.ones(len(x)), x, x**2])[:size]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 3, 1), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=(30, size))
        u = rng.normal(size=(30, size))[index]
        rows = rng.poisson(np.exp(4 + (0.5 * u * design.T).sum(axis=1)))
        pm.Poisson("y", pm.math.exp(mu + (tau * z[index] * design.T).sum(axis=1)), observed=rows)
    return model


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_newton_moves_nodes_to_the_modes(size):
    integrals = integrals_of(pms.marginalize(counts(size), "z"))
    functions, theta = integrals.functions, integrals.reference
    there = theta + 0.05
    anew = find_modes(functions, there, integrals.modes.m)
    found = moving.moved(functions, there, integrals.modes, 4)
    inverse = np.linalg.inv(anew.S)
    away = np.einsum("gij,gj->gi", inverse, found.m - anew.m)
    before = np.einsum("gij,gj->gi", inverse, integrals.modes.m - anew.m)
    assert np.abs(before).max() > 3  # of their own standard deviations
    # Modes are found where a step would gain 1e-10, which is 1e-5 standard deviations away.
    assert np.abs(away).max() < 2e-5
    squared = found.S @ np.swapaxes(found.S, 1, 2)
    assert squared == pytest.approx(anew.S @ np.swapaxes(anew.S, 1, 2), rel=1e-3, abs=1e-9)
    assert integrals.integral.error < accuracy.TOLERABLE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["centred", "noncentred"])
def test_a_step_and_nuts_sample_precise_units(kind):
    model, rows = precise(kind)
    with model:
        ours = pm.sample(
            1_000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False,
            step=pms.HMCECS(integrate=["z"]),
        )  # fmt: skip
    with without(kind)[0]:
        nuts = pm.sample(1_000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
    s = float(nuts["posterior"]["s"].mean())
    mu, log_tau = np.linspace(0.3, 1.7, 60), np.linspace(-0.6, 0.6, 60)
    logp = np.array([[exact(rows, m, np.exp(t), s) + t for t in log_tau] for m in mu])
    weights = np.exp(logp - logp.max())
    weights /= weights.sum()
    for values, name, w in ((mu, "mu", weights.sum(1)), (log_tau, "tau", weights.sum(0))):
        mean = w @ values
        sd = np.sqrt(w @ (values - mean) ** 2)
        for run in (ours, nuts):
            draws = run["posterior"][name].to_numpy()
            draws = np.log(draws) if name == "tau" else draws
            assert_moments(draws, mean, sd)
            with pytest.raises(AssertionError):
                assert_moments(draws + sd, mean, sd)
    z = ours["posterior"]["z"].to_numpy()
    if kind == "noncentred":
        of = ours["posterior"]
        z = of["mu"].to_numpy()[..., None] + of["tau"].to_numpy()[..., None] * z
    away = (z - rows.mean(axis=1)) / (SCALE / np.sqrt(ROWS))
    # 200,000 draws that are independent but for s, which is known to a hundredth.
    assert away.std() == pytest.approx(1, abs=0.03)
