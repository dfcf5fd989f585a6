"""Simulation-based calibration of models with effects of 500 units, which the step integrates out.

As in `sbc`, by `pm.sample` on the model as it is written, so that each data set has its reference,
its nodes and its draws of effects. Code is compiled once where that would take most of the time.
"""

import logging
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pymc as pm
import scipy.stats
from chains import QUIET
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import graph_inputs
from sbc import DRAWS, Calibration, Problem, ranked
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.chain import model_compilation
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.units import sampled

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
    """Intercepts and slopes of units of six rows, centred."""
    unit = np.repeat(np.arange(UNITS), 6)

    def prior(rng):
        mean, scale = rng.normal([0.5, 0.0], 0.5), rng.lognormal(-1.0, 0.4, 2)
        own = mean + scale * rng.normal(size=(UNITS, 2))
        return {"mean": mean, "scale": scale, "intercept": own[:, 0], "slope": own[:, 1]}

    def rate(point, x):
        return np.exp(point["intercept"][unit] + point["slope"][unit] * x)

    def rows(rng, point):
        x = rng.uniform(-1, 1, len(unit))
        return {"x": x, "y": rng.poisson(rate(point, x))}

    def loglik(point, x, y):
        return scipy.stats.poisson.logpmf(y, rate(point, x)).sum()

    def model(x, y):
        with pm.Model() as model:
            mean = pm.Normal("mean", [0.5, 0.0], 0.5, shape=2)
            scale = pm.LogNormal("scale", -1.0, 0.4, shape=2)
            intercept = pm.Normal("intercept", mean[0], scale[0], shape=UNITS)
            slope = pm.Normal("slope", mean[1], scale[1], shape=UNITS)
            rate = pm.math.exp(intercept[unit] + slope[unit] * x)
            pm.Poisson("y", rate, observed=y)
        return model

    shared = ("mean[0]", "mean[1]", "scale[0]", "scale[1]")
    return Problem(prior, rows, loglik, model, (*shared, "intercept[0]", "slope[0]"))


PROBLEMS = {"logistic": _logistic(), "poisson with slopes": _poisson()}


# Nodes per dimension where code is compiled once for all data sets: what a step chooses for most.
NODES = {"poisson with slopes": 7}


class _Once:
    """In the place of `TallModel` and `expand`: made of the first model, and given others' data."""

    def __init__(self) -> None:
        self.tall = self.expansion = None

    def read(self, model, **_):
        shared = [v for v in graph_inputs(model.potentials) if isinstance(v, SharedVariable)]
        given = {v.name: v.get_value() for v in shared}
        if self.tall is None:
            self.tall = TallModel(model)
            self.expansion = expand(self.tall, 2)
            self.names = [
                next(name for name, value in given.items() if np.array_equal(value, column))
                for column in self.tall.rows.columns
            ]
        # Compiled code gathers rows from the first model's columns.
        for column, name in zip(self.tall.rows.columns, self.names, strict=True):
            column.setflags(write=True)
            column[...] = given[name]
        return self.tall

    def expand(self, *_, **__):
        return replace(self.expansion)


_once = cache(lambda name, n_nodes: _Once())


@contextmanager
def _compiled_once(name, n_nodes):
    without_local, made = sampled.without_local, _once(name, n_nodes)

    def of_nodes(reading, grouping, _, rng):
        return without_local(reading, grouping, n_nodes, rng)

    with (
        patch.object(sampled, "without_local", of_nodes),
        patch.object(model_compilation, "TallModel", made.read),
        patch.object(model_compilation, "expand", made.expand),
    ):
        yield


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


def calibrate(name: str, replications: int, *, n_nodes: int | None = None) -> Calibration:
    """Ranks of prior draws among draws of `HMCECS`, with `n_nodes` per dimension if given."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem, n_nodes = PROBLEMS[name], n_nodes or NODES.get(name)
    with _compiled_once(name, n_nodes) if n_nodes else nullcontext():
        found = ranked(problem, lambda data, r: _posterior(problem, data, r), replications, 1)
    return replace(found, bins=BINS)
