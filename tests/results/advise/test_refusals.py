"""Messages name what serves: own steps, packages' loops, variables of checks, starts, samplers."""

import importlib.util
import logging
import sys

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence
from steps_of_all_kinds import STEPS

import pymc_subsample as pms
from pymc_subsample.chain import end_of_chain
from pymc_subsample.chain.sampler import STATISTIC
from pymc_subsample.samplers.registry import SAMPLERS

N = 400
QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}


# Variables with a step of their own


class Trees(BlockedStep):
    """As BART's: it alone samples variables that are called so."""

    @staticmethod
    def competence(var, has_grad):
        return Competence.IDEAL if str(var.name).startswith("trees") else Competence.INCOMPATIBLE


@pytest.fixture
def of_trees(monkeypatch):
    """Make a model whose variable of so many elements has a step of its own."""
    monkeypatch.setattr("pymc.step_methods.STEP_METHODS", STEP_METHODS)
    # PyMC prefers NUTS, an IDEAL step too, for what it lists first.
    STEP_METHODS.insert(0, Trees)
    rng = np.random.default_rng(1)

    def made(groups):
        index = np.arange(N) % groups
        with pm.Model() as model:
            mean = pm.Flat("trees", shape=groups)
            sigma = pm.HalfNormal("sigma")
            b = pm.Normal("b")
            seen = mean if groups == N else mean[index]
            pm.Normal("y", seen + b * rng.normal(size=N), sigma, observed=rng.normal(size=N))
        return model

    yield made
    STEP_METHODS.remove(Trees)


@pytest.mark.costly
def test_variables_with_a_step_of_their_own_are_left_to_it(of_trees):
    model = of_trees(8)
    for kind in (pms.HMCECS, pms.MinibatchBarkerMH, pms.sgmcmc.SGLD):
        with pytest.raises(pms.TallModelError, match="'trees' is sampled by Trees alone") as error:
            kind(model=model)
        assert "vars=['sigma', 'b']" in str(error.value)
    assert {v.name for v in pms.HMCECS(vars=["sigma", "b"], model=model).vars} == {
        "sigma_log__", "b",
    }  # fmt: skip
    advice = pms.advise(model)
    assert (advice.recommendation, advice.code) == ("pm.sample", "pm.sample()")


def test_one_per_row_is_for_pm_sample(of_trees):
    with pytest.raises(pms.TallModelError) as error:
        pms.HMCECS(model=of_trees(N))
    assert "'trees' is sampled by Trees alone" in str(error.value)
    assert "sample this model with pm.sample()" in str(error.value)


# Loops


_LOOP = """
import numpy as np
import pytensor
import pytensor.tensor as pt


def carried_over(x, b):
    return pytensor.scan(
        lambda x, before, b: 0.5 * before + x * b,
        sequences=[pt.as_tensor(x)],
        outputs_info=[pt.constant(np.float64(0.0))],
        non_sequences=[b],
        return_updates=False,
    )
"""


@pytest.mark.parametrize("packaged", [True, False])
def test_a_loop_of_a_package_is_named(packaged, tmp_path, monkeypatch):
    home = tmp_path / "adstock"
    home.mkdir()
    (home / "loops.py").write_text(_LOOP)
    if packaged:
        (home / "__init__.py").write_text("")
    spec = importlib.util.spec_from_file_location("loops", home / "loops.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loops", module)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mean = module.carried_over(rng.normal(size=N), pm.Normal("b"))
        pm.Normal("y", mean, 1, observed=rng.normal(size=N))
    with pytest.raises(pms.TallModelError, match="coupled by Scan") as error:
        pms.HMCECS(model=model)
    said = str(error.value)
    assert ("of adstock/loops.py, line 8" in said) == packaged
    assert ("A loop within each row" in said) != packaged
    assert "pm.sample()" in said


# Checks of parameters


def of_rows():
    pm.Normal("y", pm.Normal("mu"), np.where(np.arange(N) < 3, -1.0, 2.0), observed=np.zeros(N))
    return "sigma > 0", r"'y', NormalRV, whose parameters are 0, -1 to 2"


def of_a_prior():
    pm.Normal("y", 0, pm.HalfStudentT("scale", 4, np.nan), observed=np.zeros(N))
    return "sigma > 0", r"'scale', HalfStudentTRV, whose parameters are 4, nan"


def of_bounds():
    mean = pm.Normal("mu")
    pm.TruncatedNormal("y", mean, 1, lower=np.full(N, 2.0), upper=1.0, observed=np.full(N, 1.5))
    return "lower_bound <= upper_bound", r"'y', TruncatedNormalRV, whose parameters are 0, 1, 2, 1"


def of_probabilities():
    p = pm.Normal("a") * 0 + np.where(np.arange(N) < 2, 1.5, 0.5)
    pm.Bernoulli("y", p=p, observed=np.zeros(N, dtype=int))
    return "0 <= p <= 1", r"'y', BernoulliRV, whose parameters are 0.5 to 1.5"


@pytest.mark.parametrize("make", [of_rows, of_a_prior, of_bounds, of_probabilities])
def test_a_check_that_fails_names_its_variable(make):
    with pm.Model() as model:
        message, owner = make()
    with pytest.raises(pms.TallModelError, match=rf"{message}.*\(of {owner}\)"):
        pms.HMCECS(model=model)


# Starts, sizes and titles


def rows_of(make):
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        make(rng)
    return model


def logistic(rng):
    x = rng.normal(size=N)
    eta = pm.Normal("a", 0, 5) + pm.Normal("b", 0, 5) * x
    pm.Bernoulli("y", logit_p=eta, observed=rng.random(N) < 0.3)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("given", "where"),
    [({}, "at the model's initial point"), ({"initvals": {"a": 9.0}}, "at initvals")],
)
def test_a_chain_without_tuning_says_where_it_started(given, where, caplog, monkeypatch):
    with rows_of(logistic), caplog.at_level(logging.WARNING):
        step = pms.HMCECS(path_length=40.0, target_accept=0.01)
        monkeypatch.setattr(end_of_chain, "check_tails", lambda step: [])
        pm.sample(20, tune=0, chains=1, step=step, random_seed=1, **given, **QUIET)
    if "The chain was not tuned" in caplog.text:
        assert f"it started {where} and its step size" in caplog.text
    assert step.began == where


def test_every_sampler_has_a_number_and_keeps_it():
    assert {kind.__name__: kind.sampler for kind in STEPS} == SAMPLERS
    assert [name for name, s in sorted(SAMPLERS.items(), key=lambda x: x[1].number)] == [
        "HMCECS", "ScalableMH", "MinibatchBarkerMH", "AusterityMH", "ConfidenceMH", "FireflyMC",
        "AusterityGibbs", "SGMCMC", "SGLD", "PSGLD", "SVRGLD", "SGHMC", "SGNHT", "ClusteredSGHMC",
        "EWSG",
    ]  # fmt: skip
    assert all(STATISTIC in kind.stats_dtypes_shapes for kind in STEPS)

    class Own(pms.sgmcmc.SGHMC):
        pass

    assert Own.sampler.name == "SGHMC"


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("kind", [pms.MinibatchBarkerMH, pms.sgmcmc.SGLD, pms.ScalableMH])
def test_reports_are_titled_by_the_sampler(kind, tmp_path):
    with rows_of(logistic):
        idata = pm.sample(40, tune=40, chains=2, step=kind(), random_seed=1, **QUIET)
    assert pms.report(idata).method == kind.__name__
    assert f": {kind.__name__} of {N} rows" in str(pms.report(idata))
    earlier = idata.copy(deep=True)
    earlier["sample_stats"] = earlier["sample_stats"].to_dataset().drop_vars(STATISTIC)
    assert pms.report(earlier).method != ""
