"""Chains that come to read much of the data, and bounds that take long: what is said, and when."""

import logging
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.bounds.remainders import bound_rows
from pymc_subsample.bounds.strata import UnboundedError
from pymc_subsample.chain import beside
from pymc_subsample.chain.all_rows import Comparison
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
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


def grow(monkeypatch, seconds: float, completed: bool = False):
    """Tune a chain whose set-up took far too few rows, as if a run took so many seconds."""
    step = pms.HMCECS(model=logistic())
    step.prepared = replace(
        step.prepared, subsample_size=5, n_blocks=5, always=np.zeros(0, dtype=np.int64)
    )
    step.completed, seen = completed, []

    def compare(model, step, drawn=None):
        seen.append(drawn)
        return Comparison(0.001, seconds, 20.0, 5.0)

    monkeypatch.setattr(beside, "compare", compare)
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
    for words in ("rows (", "before)", "An estimate reads", "about 1e+03 s", "about 20 s", "draw"):
        assert words in said, said


def test_a_run_that_grows_goes_on_where_nuts_saves_little(monkeypatch):
    step, seen, said = grow(monkeypatch, 8.0)
    assert seen
    assert step.share > 0.25
    assert all(per_draw > 0 and gradients >= 1 for per_draw, gradients in seen)
    assert any("An estimate reads" in text and "1,000 draws" in text for text in said)


def test_a_run_that_grows_goes_on_once_a_chain_is_complete(monkeypatch):
    step, _, said = grow(monkeypatch, 1000.0, completed=True)
    assert step.share > 0.25
    assert any("which is exact" in text for text in said)


def test_a_complete_chain_of_another_run_does_not_count():
    step = pms.HMCECS(model=logistic())
    step.completed = True
    assert not cloudpickle.loads(cloudpickle.dumps(step)).completed
    step._progressbar_config()
    assert not step.completed


def test_advice_refuses_a_step_that_outgrows_its_subsample(monkeypatch):
    def outgrown(*_):
        raise beside.OutgrownError("as many rows as that")

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
    found = bound_rows(expansion, reference, points, seconds=1e6)
    assert np.isfinite(found.per_decision)
    with pytest.raises(UnboundedError, match=r"took \d+ s of the processor.* may take 0 s"):
        bound_rows(expansion, reference, points, seconds=0.0)


@pytest.mark.costly
def test_what_is_named_instead_of_bounds_serves(monkeypatch):
    monkeypatch.setattr(deciding, "SAVED_SECONDS", -1e9)
    with pytest.raises(pms.TallModelError, match="Use HMCECS, which needs none"):
        pms.ScalableMH(model=near_components())
    assert pms.HMCECS(model=near_components()).share <= 1.1


@pytest.mark.costly
def test_where_hmcecs_does_not_serve_either_it_is_not_named(monkeypatch, caplog):
    def refuse(*_):
        raise pms.TallModelError("no subsample")

    monkeypatch.setattr(deciding, "SAVED_SECONDS", -1e9)
    monkeypatch.setattr("pymc_subsample.chain.sizing.choose", refuse)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(pms.TallModelError, match=r"either\. Sample this model with pm\.NUTS"),
    ):
        pms.ScalableMH(model=near_components())
