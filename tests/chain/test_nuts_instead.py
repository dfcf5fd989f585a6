"""Chains that come to read much of the data, and bounds that take long: what is said, and when."""

import logging
import pickle
import re
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from pymc.stats.convergence import log_warning

import pymc_subsample as pms
from pymc_subsample.bounds import remainders
from pymc_subsample.bounds.remainders import bound_rows
from pymc_subsample.bounds.strata import UnboundedError
from pymc_subsample.chain import notices, nuts_instead, pm_sample
from pymc_subsample.chain.nuts_instead import Comparison
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.graph.intervals import WORK
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.scalable import deciding

N = 120


def logistic() -> pm.Model:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 5))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=5)
        pm.Bernoulli("y", logit_p=X @ b, observed=rng.random(N) < 1 / (1 + np.exp(-X.sum(axis=1))))
    return model


def near_components(n: int = 300) -> pm.Model:
    y = np.random.default_rng(2).normal(size=n)
    with pm.Model() as model:
        mu = pm.Normal(
            "mu", 0, 2, shape=2, initval=[-0.5, 0.5], transform=pm.distributions.transforms.ordered
        )
        pm.NormalMixture("y", w=[0.5, 0.5], mu=mu, sigma=1.0, observed=y)
    return model


def starved() -> pms.HMCECS:
    """Return a step whose set-up took far too few rows."""
    step = pms.HMCECS(model=logistic())
    step.prepared = replace(
        step.prepared, subsample_size=5, n_blocks=5, always=np.zeros(0, dtype=np.int64)
    )
    return step


def grow(monkeypatch, seconds: float):
    """Tune a chain whose set-up took far too few rows, as if a run took so many seconds."""
    step, seen = starved(), []

    def compare(step, drawn=None):
        seen.append(drawn)
        return Comparison(0.001, seconds, 20.0, 5.0)

    monkeypatch.setattr(nuts_instead, "compare", compare)
    step.setup_chain(np.random.default_rng(0), 400, 10)
    point, warnings = step.model.initial_point(), []
    for _ in range(400):
        point, [found] = step.step(point)
        warnings += [found["warning"]] if found.get("warning") else []
    return step, seen, [w.message for w in warnings]


@pytest.mark.costly(cases=1)
def test_a_run_that_grows_is_compared_and_ends_where_nuts_saves_most(monkeypatch):
    with pytest.raises(RuntimeError, match=r"Use pm\.sample") as raised:
        grow(monkeypatch, 1000.0)
    said = str(raised.value)
    for words in ("rows (", "before)", "An estimate reads", "about 1,000 s", "about 20 s", "draw"):
        assert words in said, said


def test_a_run_that_grows_goes_on_where_nuts_saves_little(monkeypatch):
    step, seen, said = grow(monkeypatch, 8.0)
    assert seen
    assert step.share > 0.25
    assert all(per_draw > 0 and gradients >= 1 for per_draw, gradients in seen)
    assert any("An estimate reads" in text and "1,000 draws" in text for text in said)


@pytest.mark.costly
@pytest.mark.parametrize("cores", [1, 2])
def test_a_run_without_draws_ends_with_our_error(cores, monkeypatch):
    """In workers too, where an error of theirs would be PyMC's."""
    monkeypatch.setattr(nuts_instead, "compare", lambda *_: Comparison(0.001, 1000.0, 20.0, 5.0))
    step = starved()
    with step.model, pytest.raises(nuts_instead.OutgrownError, match=r"^HMCECS: .* Use pm\.sample"):
        pm.sample(
            10, tune=400, chains=2, cores=cores, step=step, progressbar=False, random_seed=1,
            mp_ctx="fork",
        )  # fmt: skip


@pytest.mark.parametrize("drawn", [False, True])
def test_a_run_goes_on_once_a_chain_has_draws(drawn, monkeypatch, caplog):
    """What was drawn is kept, and it is said once."""
    monkeypatch.setattr(nuts_instead, "has_draws", lambda: drawn)
    notices.begin_run()
    warnings = [nuts_instead.Outgrown("cause", "HMCECS: slow") for _ in range(2)]
    if not drawn:
        with pytest.raises(nuts_instead.OutgrownError, match="slow"):
            log_warning(warnings[0])
        return
    for warning in warnings:
        log_warning(pickle.loads(pickle.dumps(warning)))
    assert [r.levelname for r in caplog.records if r.levelno >= logging.INFO] == ["WARNING"]


def test_draws_of_other_chains_are_seen():
    """By their traces; not those of tuning."""
    seen = []

    def callback(trace, draw):
        seen.append(pm_sample.has_draws())

    with pm.Model():
        pm.Normal("x")
        pm.sample(
            5, tune=5, chains=2, cores=1, step=pm.Metropolis(), callback=callback,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    assert seen == [False] * 5 + [True] * 15


def test_advice_refuses_a_step_that_outgrows_its_subsample(monkeypatch):
    def outgrown(*_):
        raise nuts_instead.OutgrownError("as many rows as that")

    monkeypatch.setattr("pymc_subsample.results.advise.trials.run_pilot", outgrown)
    advice = pms.advise(logistic(), samplers=["HMCECS"])
    assert advice.recommendation in ("pm.NUTS", "nutpie")
    assert "HMCECS refuses the model. as many rows as that" in advice.reason


@pytest.mark.costly
def test_bounds_that_take_longer_than_they_may_are_given_up():
    model = TallModel(near_components())
    expansion = expand(model)
    theta = model.ravel(model.initial_point)
    reference = reference_at(expansion, theta)
    points = np.random.default_rng(3).normal(reference.center, 0.1, (200, 2))
    began = WORK.elements
    found = bound_rows(expansion, reference, points, seconds=1e6)
    assert np.isfinite(found.per_decision)
    all_rows = WORK.elements - began
    said = []
    for seconds in (0.0, 0.0, 0.01, 0.01):
        with pytest.raises(
            UnboundedError, match=r"would take about [\d.]+ s of the .* the limit is 0 s"
        ) as error:
            bound_rows(expansion, reference, points, seconds=seconds)
        said.append(str(error.value))
    # Time is counted by intervals: the same whatever else the machine does.
    assert said[0] == said[1]
    assert said[2] == said[3]
    # What all rows take is known from the first ones: the limit is not spent.
    began = WORK.elements
    with pytest.raises(UnboundedError):
        bound_rows(expansion, reference, points, seconds=0.8 * remainders._SECONDS * all_rows)
    assert WORK.elements - began < 0.5 * all_rows


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [near_components, logistic])
def test_what_bounds_take_is_known_from_the_first_ones(make, monkeypatch):
    """Also where some hold everywhere, as logistic ones, which takes no intervals of rows."""
    monkeypatch.setattr(remainders, "_FEW_ROWS", 0.0)
    monkeypatch.setattr(remainders, "_SECONDS", 1.0)
    model = TallModel(make())
    expansion = expand(model)
    reference = reference_at(expansion, model.ravel(model.initial_point))
    points = np.random.default_rng(3).normal(reference.center, 0.1, (200, len(reference.center)))
    with pytest.raises(UnboundedError) as error:
        bound_rows(expansion, reference, points, seconds=0.0)
    [needed] = re.findall(r"would take about ([\d,.]+) s", str(error.value))
    needed = float(needed.replace(",", ""))
    bound_rows(expansion, reference, points, seconds=1.01 * needed)
    with pytest.raises(UnboundedError):
        bound_rows(expansion, reference, points, seconds=0.99 * needed)


def near_poisson(n: int = 3000) -> pm.Model:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    with pm.Model() as model:
        mu, alpha = pm.math.exp(pm.Normal("a") + pm.Normal("b") * x), pm.HalfNormal("alpha", 100)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=rng.poisson(np.exp(0.5 + 0.3 * x)))
    return model


def kinked(n: int = 2000) -> pm.Model:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    with pm.Model() as model:
        mu = pm.Normal("a") + pm.Normal("b") * x
        pm.Laplace("y", mu=mu, b=1.0, observed=rng.normal(size=n))
    return model


@pytest.mark.costly
def test_what_is_named_instead_of_bounds_serves(monkeypatch):
    """HMCECS, on another scale too, and not where it would refuse the model."""
    monkeypatch.setattr(deciding, "SAVED_SECONDS", -1e9)
    for make, said in ((near_components, "but reads all rows here"), (near_poisson, r"none\.")):
        with pytest.raises(pms.TallModelError, match=f"Use HMCECS, which needs .*{said}"):
            pms.ScalableMH(model=make())
        assert (pms.HMCECS(model=make()).share < 1.0) == (make is near_poisson)
    with pytest.raises(pms.TallModelError, match=r"cannot .* either\. Use pm\.sample\("):
        pms.ScalableMH(model=kinked())
    with pytest.raises(pms.TallModelError):
        pms.HMCECS(model=kinked())
