"""Simulation-based calibration of models with variables of 500 units, which are integrated out.

As in `sbc`, by `pm.sample` on the model as it is written, so that each data set has its reference,
its nodes and its draws of effects.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pymc as pm
from chains import QUIET
from sbc import DRAWS, Calibration, Problem, ranked
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.model import TallModelError
from pymc_subsample.units import integrated, sampled
from pymc_subsample.units.unit_densities import UnitFunctions

UNITS = 500
# Ranks are uniform of draws that are nearly independent: autocorrelated ones are at both ends.
TUNE, TRANSITIONS = 200, 5
BINS = 8

_rows = np.random.default_rng(0).integers(3, 11, UNITS)
_unit = np.repeat(np.arange(UNITS), _rows)


def _logistic() -> Problem:
    def prior(rng):
        return {
            "mu": rng.normal(),
            "tau": rng.lognormal(-0.5, 0.5),
            "b": rng.normal(),
            "z": rng.normal(size=UNITS),
        }

    def eta(point, x):
        return point["mu"] + point["tau"] * point["z"][_unit] + point["b"] * x

    def rows(rng, point):
        x = rng.normal(size=len(_unit))
        return {"x": x, "y": rng.binomial(1, expit(eta(point, x)))}

    def loglik(point, x, y):
        at = eta(point, x)
        return np.sum(y * at - np.logaddexp(0, at))

    def model(x, y):
        with pm.Model() as model:
            mu, tau = pm.Normal("mu", 0, 1), pm.LogNormal("tau", -0.5, 0.5)
            b, z = pm.Normal("b", 0, 1), pm.Normal("z", 0, 1, shape=UNITS)
            pm.Bernoulli("y", logit_p=mu + tau * z[_unit] + b * x, observed=y)
        return model

    return Problem(prior, rows, loglik, model, ("mu", "tau", "b", "z[0]"))


def _poisson() -> Problem:
    """Slopes of units of six rows, centred."""
    unit = np.repeat(np.arange(UNITS), 6)

    def prior(rng):
        mean, scale = rng.normal(0.0, 0.5), rng.lognormal(-1.0, 0.4)
        slope = mean + scale * rng.normal(size=UNITS)
        return {"level": rng.normal(), "mean": mean, "scale": scale, "slope": slope}

    def log_rate(point, x):
        return point["level"] + point["slope"][unit] * x

    def rows(rng, point):
        x = rng.uniform(-1, 1, len(unit))
        return {"x": x, "y": rng.poisson(np.exp(log_rate(point, x)))}

    def loglik(point, x, y):
        at = log_rate(point, x)
        return np.sum(y * at - np.exp(at))

    def model(x, y):
        with pm.Model() as model:
            level, mean = pm.Normal("level", 0, 1), pm.Normal("mean", 0, 0.5)
            scale = pm.LogNormal("scale", -1.0, 0.4)
            slope = pm.Normal("slope", mean, scale, shape=UNITS)
            pm.Poisson("y", pm.math.exp(level + slope[unit] * x), observed=y)
        return model

    return Problem(prior, rows, loglik, model, ("level", "mean", "scale", "slope[0]"))


def _classes() -> Problem:
    """A class of each unit, of two."""

    def prior(rng):
        share = rng.beta(2, 2)
        return {
            "share": share,
            "level": rng.normal(),
            "gap": rng.lognormal(0.5, 0.4),
            "b": rng.normal(),
            "kind": rng.random(UNITS) < share,
        }

    def eta(point, x):
        return point["level"] + point["gap"] * point["kind"][_unit] + point["b"] * x

    def rows(rng, point):
        x = rng.normal(size=len(_unit))
        return {"x": x, "y": rng.binomial(1, expit(eta(point, x)))}

    def loglik(point, x, y):
        at, kind, share = eta(point, x), point["kind"], point["share"]
        own = np.sum(kind * np.log(share) + (1 - kind) * np.log1p(-share))
        return own + np.sum(y * at - np.logaddexp(0, at))

    def model(x, y):
        with pm.Model() as model:
            share, level = pm.Beta("share", 2, 2), pm.Normal("level")
            gap, b = pm.LogNormal("gap", 0.5, 0.4), pm.Normal("b")
            kind = pm.Bernoulli("kind", share, shape=UNITS)
            pm.Bernoulli("y", logit_p=level + gap * kind[_unit] + b * x, observed=y)
        return model

    return Problem(prior, rows, loglik, model, ("share", "level", "gap", "b", "kind[0]"))


def _holes() -> Problem:
    """A covariate that is missing in two rows of five, of rows and not of units."""
    gone = np.random.default_rng(1).random(UNITS) < 0.4

    def prior(rng):
        point = {
            "a": rng.normal(),
            "b": rng.normal(),
            "c": rng.normal(),
            "t": rng.lognormal(0, 0.4),
        }
        return point | {"x_unobserved": point["c"] + point["t"] * rng.normal(size=gone.sum())}

    def eta(point, x):
        joined = x.copy()
        joined[gone] = point["x_unobserved"]
        return point["a"] + point["b"] * joined

    def rows(rng, point):
        x = np.where(gone, np.nan, point["c"] + point["t"] * rng.normal(size=UNITS))
        return {"x": x, "y": rng.binomial(1, expit(eta(point, x)))}

    def loglik(point, x, y):
        at, z = eta(point, x), (x[~gone] - point["c"]) / point["t"]
        return np.sum(y * at - np.logaddexp(0, at)) - np.sum(z**2 / 2 + np.log(point["t"]))

    def model(x, y):
        with pm.Model() as model:
            a, b, c = (pm.Normal(name) for name in "abc")
            t = pm.LogNormal("t", 0, 0.4)
            column = pm.Normal("x", c, t, observed=x)
            pm.Bernoulli("y", logit_p=a + b * column, observed=y)
        return model

    return Problem(prior, rows, loglik, model, ("a", "b", "c", "t", "x_unobserved[0]"))


PROBLEMS = {
    "logistic": _logistic(),
    "poisson with slopes": _poisson(),
    "classes": _classes(),
    "covariate with holes": _holes(),
}


def _posterior(problem: Problem, data: dict, seed: int):
    """Points of variables, units per estimate, and the noise of estimates."""
    model = problem.model(**data)

    def made(size):
        return pms.HMCECS(
            model=model, subsample_size=size, transitions_per_draw=TRANSITIONS, rng=seed
        )

    try:
        step = made("auto")
    except TallModelError:  # too few units for any size; leaving these data out would bias
        step = made(UNITS)
    assert step.units is not None
    run = pm.sample(
        DRAWS, tune=TUNE, chains=1, cores=1, model=model, step=step, random_seed=seed, **QUIET
    )
    draws = {name: values.to_numpy()[0] for name, values in run.posterior.items()}
    points = [{name: values[k] for name, values in draws.items()} for k in range(DRAWS)]
    read, noise = (run.sample_stats[n] for n in ("subsample_size", "loglik_variance"))
    return points, float(read.mean()), float(noise.mean())


def counted_twice(functions: UnitFunctions) -> tuple[np.ndarray, np.ndarray]:
    """Return states of discrete variables and their weights, of which the last is too large."""
    states, log_weights = _all_states(functions)
    log_weights = log_weights.copy()
    log_weights[-1] += np.log(2)
    return states, log_weights


_all_states = UnitFunctions.all_states.fget


def calibrate(
    name: str, replications: int, *, n_nodes: int | None = None, states: Callable = _all_states
) -> Calibration:
    """Ranks of prior draws among draws of `HMCECS`.

    With `n_nodes` per dimension, if given, and `states` of discrete variables, which the set-up
    compares with the model unless they are not its own.
    """
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem, without_local = PROBLEMS[name], sampled.without_local

    def of_nodes(reading, grouping, chosen, rng, *rest):
        return without_local(reading, grouping, n_nodes or chosen, rng, *rest)

    with (
        patch.object(sampled, "without_local", of_nodes),
        patch.object(UnitFunctions, "all_states", property(states)),
        nullcontext() if states is _all_states else patch.object(integrated, "check_table"),
    ):
        found = ranked(problem, lambda data, r: _posterior(problem, data, r), replications, 1)
    return replace(found, bins=BINS)
