"""A later run starts from an earlier one: where it was, without a search, and as right as ever."""

import logging
import pickle

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from chains import assert_moments, sample
from exact_cases import exact, logistic

import pymc_subsample as pms
from pymc_subsample.steps import setup

STEPS = [pms.HMCECS, pms.ScalableMH, pms.MinibatchBarkerMH, pms.SGLD, pms.FireflyMC]


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


@pytest.fixture(scope="module")
def first():
    """Return a model, its step and the idata of a run."""
    case = logistic()
    case.mean, case.sd = exact(case)
    step = pms.HMCECS(model=case.model)
    return case, step, sample(step, case.model, draws=300)


@pytest.fixture
def searches(monkeypatch):
    found = []

    def searched(problem, *, search=setup._automatic_reference):
        found.append(problem)
        return search(problem)

    monkeypatch.setattr(setup, "_automatic_reference", searched)
    return found


@pytest.mark.parametrize("make", STEPS)
def test_every_step_takes_over_a_reference_without_a_search(first, searches, make):
    case, step, idata = first
    new = make(model=case.model, reference=step)
    np.testing.assert_allclose(new.reference.theta, step.reference.theta, rtol=1e-12)
    new = make(model=case.model, reference=idata)
    means = [float(idata["posterior"][name].mean()) for name in case.names]
    np.testing.assert_allclose(new.reference.theta, means, rtol=1e-12)
    assert not searches
    make(model=case.model)
    assert searches


def test_posterior_is_right_from_an_earlier_run(first):
    case, _, idata = first
    with case.model:
        found = sample(pms.ScalableMH(reference=idata), case.model, draws=3_000)
    for k, name in enumerate(case.names):
        assert_moments(found["posterior"][name], case.mean[k], case.sd[k])


def test_reference_of_a_run_may_move_and_a_given_one_may_not(first):
    """From values far off, as of a run on other rows."""
    case, *_ = first
    far = {n: m + 4 * s for n, m, s in zip(case.names, case.mean, case.sd, strict=True)}
    draws = {n: (("chain", "draw"), np.full((1, 5), x)) for n, x in far.items()}
    run = xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})
    moved = {}
    for name, reference in (("run", run), ("given", far)):
        step = pms.ScalableMH(model=case.model, reference=reference)
        start = step.reference.theta
        step.setup_chain(np.random.default_rng(1), 300, 0)
        point = case.model.initial_point()
        for _ in range(300):
            point, _ = step.step(point)
        moved[name] = not np.array_equal(step.reference.theta, start)
    assert moved == {"run": True, "given": False}


def test_values_are_those_of_the_model_whatever_coordinates_the_chain_has():
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(6), 300)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau")
        effect = pm.Normal("effect", 0, tau, shape=6)
        w = pm.Dirichlet("w", np.ones(2))
        pm.Normal("y", effect[g] + w[0], 1.0, observed=rng.normal(size=len(g)))
    step = pms.HMCECS(model=model)
    values = step.reference_values()
    assert {n: v.shape for n, v in values.items()} == {"tau": (), "effect": (6,), "w": (2,)}
    assert values["tau"] > 0
    np.testing.assert_allclose(values["w"].sum(), 1.0)
    again = pms.HMCECS(model=model, reference=step)
    for name, value in again.reference_values().items():
        np.testing.assert_allclose(value, values[name], rtol=1e-8)
    given = pms.HMCECS(model=model, reference=values)
    np.testing.assert_allclose(again.reference.theta, given.reference.theta, rtol=1e-8)


def test_the_earlier_run_is_not_pickled_with_the_step(first):
    case, step, idata = first
    plain = len(pickle.dumps(pms.HMCECS(model=case.model)))
    for reference in (step, idata):
        new = pms.HMCECS(model=case.model, reference=reference)
        dumped = pickle.dumps(new)
        assert len(dumped) < 1.1 * plain
        theta = pickle.loads(dumped).reference.theta
        np.testing.assert_array_equal(theta, new.reference.theta)


def test_what_is_no_run_of_the_model_is_refused(first):
    case, _, idata = first
    empty = xr.DataTree.from_dict({"prior": idata["posterior"].dataset})
    with pytest.raises(ValueError, match=r"reference has no posterior .* but \['prior'\]"):
        pms.HMCECS(model=case.model, reference=empty)
    less = xr.DataTree.from_dict({"posterior": idata["posterior"].dataset.drop_vars(case.names[0])})
    with pytest.raises(ValueError, match=f"reference has no draws of '{case.names[0]}'"):
        pms.HMCECS(model=case.model, reference=less)
    plain = pms.MinibatchBarkerMH(model=case.model, control_variate_order=None)
    with pytest.raises(TypeError, match="MinibatchBarkerMH has no reference to take over"):
        pms.HMCECS(model=case.model, reference=plain)
    with pytest.raises(TypeError, match="reference must"):
        pms.HMCECS(model=case.model, reference=3.0)


@pytest.mark.parametrize("given", ["values", "idata", "step"])
def test_steps_without_control_variates_refuse_what_they_would_not_use(first, given):
    case, step, idata = first
    values = dict(zip(case.names, case.mean, strict=True))
    reference = {"values": values, "idata": idata, "step": step}[given]
    with pytest.raises(ValueError, match="reference"):
        pms.MinibatchBarkerMH(model=case.model, control_variate_order=None, reference=reference)
    with pytest.raises(ValueError, match="reference"):
        pms.SGLD(
            model=case.model, control_variate_order=None, reference=reference, step_size=1e-3,
            metric="identity",
        )  # fmt: skip
