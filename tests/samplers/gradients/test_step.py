"""Stochastic-gradient samplers as step methods: answers, warnings, state, statistics, arguments."""

import copy
import logging
from functools import partial
from itertools import product

import chains
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from chains import QUIET, assert_same, chain, round_trip, run
from exact_cases import mean_of, normal, poisson
from scipy.signal import lfilter
from scipy.special import digamma, ndtr, polygamma
from scipy.stats import binom, t

import pymc_subsample as pms
from pymc_subsample import sgmcmc
from pymc_subsample.diagnostics.chain_ends import in_result
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.expansion import Expansion, expand
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.gradients import checks as stochastic
from pymc_subsample.samplers.gradients import clusters
from pymc_subsample.samplers.gradients import draw_gradients as pilots
from pymc_subsample.samplers.gradients.chain_moments import from_start
from pymc_subsample.samplers.gradients.stationary import rescaled
from pymc_subsample.samplers.gradients.step_size import posterior_precision

SLOW = pytest.mark.slow
# A step size that biases nothing that these tests can see.
FINE = {"batch_size": 50, "control_variate_order": 2, "step_size": 0.02}
MAKE = {
    "SGLD": lambda **k: sgmcmc.SGLD(**{**FINE, **k}),
    "PSGLD": lambda **k: sgmcmc.PSGLD(**{**FINE, "step_size": 3e-5, **k}),
    "SVRGLD": lambda **k: sgmcmc.SVRGLD(
        batch_size=50, **{"step_size": 0.02, "refresh_period": 5, **k}
    ),
    "SGHMC": lambda **k: sgmcmc.SGHMC(**{**FINE, "step_size": 0.2, **k}),
    "euler": lambda **k: sgmcmc.SGHMC(integrator="euler", **{**FINE, **k}),
    "symplectic": lambda **k: sgmcmc.SGHMC(
        integrator="symplectic", **{**FINE, "step_size": 0.1, **k}
    ),
    "SGNHT": lambda **k: sgmcmc.SGNHT(**{**FINE, "step_size": 0.03, **k}),
    "ClusteredSGHMC": lambda **k: sgmcmc.ClusteredSGHMC(**{**FINE, "step_size": 0.1, **k}),
    "EWSG": lambda **k: sgmcmc.EWSG(**{**FINE, **k}),
    "overdamped": lambda **k: sgmcmc.EWSG(dynamics="overdamped", **{**FINE, **k}),
}
NAMES = list(MAKE)
STEPS = np.arange(12)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


sample = partial(chains.sample, tune=100)


def verdicts(result):
    """Names of the checks that failed, of all chains."""
    return {name for ends in in_result(result).values() for end in ends for name in end.failed}


# Right answers


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", NAMES)
def test_posterior_is_the_exact_one(case, name):
    result = sample(MAKE[name](model=case.model, transitions_per_draw=60), case.model, 1500)
    case.assert_posterior(result)
    assert not verdicts(result)
    assert pms.report(result).status in ("pass", "warn")


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("factory", [normal, poisson])
@pytest.mark.parametrize("name", ["SGLD", "SGHMC", pytest.param("SVRGLD", marks=SLOW)])
def test_other_models(factory, name):
    case = factory()
    result = sample(MAKE[name](model=case.model, transitions_per_draw=60), case.model, 1500)
    case.assert_posterior(result)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "name", ["SGLD", "SGHMC", "SGNHT", "SVRGLD", "EWSG", "PSGLD", "ClusteredSGHMC"]
)
def test_defaults_find_their_step_size(case, name):
    """Standard deviations are predicted to be 2% off: so they are, within Monte Carlo error."""
    step = getattr(sgmcmc, name)(model=case.model)
    result = sample(step, case.model, 4000)
    for variable, mean, sd in zip(case.names, *case.exact, strict=True):
        draws = result.posterior[variable].values
        assert abs(draws.mean() - mean) < 0.15 * sd
        assert abs(draws.std() / sd - 1) < 0.09
    assert not verdicts(result)


def test_some_variables_move_and_others_stay(model):
    step = sgmcmc.SGHMC(["b"], model=model, **FINE)
    point = {"a": np.array(0.31), "b": np.array(0.7)}
    step.setup_chain(np.random.default_rng(1), 0, 10)
    draws, _, after = run(step, point, 10)
    assert after["a"] == 0.31
    assert np.unique(draws).size == 10


@pytest.mark.costly(cases=0)
def test_compound_with_another_step():
    case = normal()
    with case.model as model:
        steps = [sgmcmc.SGLD(["a"], transitions_per_draw=60, **FINE), pm.Metropolis([model["b"]])]
    result = sample(steps, model, 2500, tune=600)
    case.assert_posterior(result)


@pytest.mark.costly
def test_a_bias_is_there_where_it_should_be_and_is_told(case):
    """Plain gradients at a step size thirty times too large: predicted, seen and reported."""
    step = sgmcmc.SGLD(model=case.model, batch_size=20, control_variate_order=None, step_size=0.05)
    result = sample(step, case.model, 3000)
    (mean, _), (sd, _) = case.exact
    stretch = result.posterior["a"].values.std() / sd - 1
    noise = 600 / 20 * (1 - 20 / 600)  # in units of the metric, by Fisher's information
    assert abs(stretch - (np.sqrt((1 + 0.025 * noise) / (1 - 0.025)) - 1)) < 0.1
    assert {"noise_error", "stretch"} <= verdicts(result)
    assert abs(result.posterior["a"].values.mean() - mean) < 0.2 * sd
    assert pms.report(result).status == "fail"


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("kwargs", "failed"),
    [
        ({"step_size": 0.5}, "step_error"),
        ({"step_size": 5.0}, "diverged"),
        ({"step_size": 1e-6}, "shift"),
        ({"step_size": 0.1, "batch_size": 5, "control_variate_order": None}, "noise_error"),
        ({"temperature": 2.0}, "temperature"),
    ],
)
def test_checks_name_what_is_wrong(case, kwargs, failed):
    result = sample(MAKE["SGLD"](model=case.model, **kwargs), case.model, 1000)
    assert failed in verdicts(result)


def of_twenty():
    """Twenty coefficients of rows that know nothing of them."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(500, 20))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=20)
        pm.Normal("y", x @ b, 1.0, observed=rng.normal(size=500))
    return model


@pytest.mark.costly(cases=0)
def test_slow_chains_are_not_blamed_for_their_monte_carlo_error():
    """A hundred effective draws of ten thousand: many more than that are not claimed."""
    model = of_twenty()
    step = sgmcmc.SGLD(model=model, step_size=0.02, transitions_per_draw=1)
    assert not verdicts(sample(step, model, 10_000, tune=1000, chains=5))


@pytest.mark.costly(cases=0)
def test_monte_carlo_errors_are_those_of_dependent_draws():
    """By batches, of a process with known autocorrelation: mean and variance, 150 times."""
    rng, found = np.random.default_rng(8), []
    for _ in range(150):
        record = StepRecord(draws=1000)
        x = lfilter([0.6], [1, -0.8], rng.normal(size=(1100, 1)), axis=0)[100:] + 50
        for theta in x:
            record.add(
                theta[None],
                {
                    "noise": np.zeros((1, 1)),
                    "diverging": np.zeros(1),
                    "step_size": np.ones(1),
                    "kinetic_temperature": np.ones(1),
                },
            )
        found.append([x.mean(), x.var(), *np.concatenate(record.errors())])
    mean, variance, *claimed = np.transpose(found)
    np.testing.assert_allclose(np.mean(claimed, axis=1), [mean.std(), variance.std()], rtol=0.2)


def test_heat_is_noticed_without_any_reference(case):
    """EWSG on plain gradients: nothing but the kinetic temperature knows."""
    step = sgmcmc.EWSG(
        model=case.model, batch_size=2, step_size=2e-2, metric="identity", friction=30.0,
        control_variate_order=None,
    )  # fmt: skip
    result = sample(step, case.model, 1000, chains=1)
    assert "heat" in verdicts(result)
    assert step.prepared is None


def funnel():
    """Group effects whose scale may be tiny: no step size fits everywhere."""
    rng = np.random.default_rng(11)
    g = rng.integers(0, 8, 4000)
    with pm.Model() as model:
        mu, t = pm.Normal("mu", 0, 1), pm.HalfCauchy("t", 1)
        a = pm.Normal("a", mu, t, shape=8)
        pm.Normal("y", a[g], 1, observed=rng.normal(0.02 * rng.normal(size=8)[g], 1))
    return model


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [sgmcmc.SGLD, sgmcmc.SGHMC])
def test_unstable_steps_are_divergences(make):
    """A step far beyond what noise does is one; the chain starts again and goes on."""
    model = funnel()
    result = sample(make(model=model, reparameterize=False), model, 1000, tune=500, chains=1)
    diverging = result.sample_stats["diverging"].values
    assert 0 < diverging.mean() < 0.7
    assert "diverged" in verdicts(result)
    assert result.posterior["t"].values.max() < 100


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("draws", [200, 2000])
@pytest.mark.parametrize("make", [sgmcmc.SGLD, sgmcmc.SGHMC, sgmcmc.SVRGLD])
def test_the_way_from_a_far_start_is_noticed(make, draws):
    """Without tuning, from hundreds of standard deviations away: R-hat sees nothing of it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=2)
        pm.Normal("y", X @ b, 1.0, observed=X @ [5, -10] + rng.normal(size=20_000))
    step = make(model=model)
    assert "start" in verdicts(sample(step, model, draws, tune=0, chains=1))
    assert "start" not in verdicts(sample(step, model, draws, tune=200, chains=1))


@pytest.mark.parametrize("far", [1e3, 1e9, 1e15])
def test_no_start_is_too_far_to_be_noticed(far):
    """However many digits the distance takes from the rest of the draws."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        record = StepRecord(draws=320)
        for theta in [np.full(2, far), *rng.normal(size=(319, 2))]:
            record.add(
                theta[None],
                {
                    "noise": np.zeros((1, 2)),
                    "diverging": np.zeros(1),
                    "step_size": np.ones(1),
                    "kinetic_temperature": np.ones(1),
                },
            )
        assert from_start(record, np.arange(2)) > stochastic.SD_BOUND


@pytest.mark.costly(cases=0)
def test_noise_of_svrg_is_that_along_the_way(case):
    """Not that where its reference is, where a piece of steps starts."""
    kwargs = {"batch_size": 2, "step_size": 0.03, "steps_per_batch": 1}
    found = []
    for refresh in (50, 51):
        step = sgmcmc.SVRGLD(
            model=case.model, refresh_period=refresh, transitions_per_draw=50, **kwargs
        )
        _, stats = chain(step, case.model.initial_point(), tune=20, draws=400)
        found.append(np.mean([s["gradient_variance"] for s in stats[20:]]))
    assert found[0] > 1
    np.testing.assert_allclose(*found, rtol=0.3)


@pytest.mark.costly(cases=0)
def test_errors_are_measured_without_a_reference():
    """Of many parameters and weighted gradients, whose noise nothing else looks at."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20_000, 110))
    y = rng.random(20_000) < 1 / (1 + np.exp(-X @ rng.normal(0, 0.1, 110)))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=110)
        pm.Bernoulli("y", logit_p=X @ b, observed=y.astype(int))
    wide = sgmcmc.EWSG(
        model=model, metric="identity", dynamics="overdamped", step_size=2e-4, batch_size=20,
        transitions_per_draw=50, control_variate_order=None,
    )  # fmt: skip
    failed = verdicts(sample(wide, model, 500, chains=1))
    assert "stretch" in failed
    assert "unmeasured" not in failed


def test_what_nothing_could_measure_is_said(model):
    """Ten draws are too few for the gradients of all rows."""
    step = sgmcmc.EWSG(model=model, **FINE)
    assert "unmeasured" in verdicts(sample(step, model, 10, chains=1))


@pytest.mark.costly
def test_many_parameters_are_not_measured_and_that_is_said(caplog):
    with pm.Model() as model:
        b = pm.Normal("b", shape=501)
        pm.Normal("y", b[np.repeat(np.arange(501), 2)], 1.0, observed=np.zeros(1002))
    with caplog.at_level(logging.WARNING, "pymc"):
        draws = pm.sample(
            50, tune=50, step=sgmcmc.SGLD(model=model, batch_size=1002), model=model, chains=1,
            random_seed=1, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    assert "unmeasured" in verdicts(draws)
    assert "moves 501 parameters" in caplog.text


def test_a_step_size_of_zero_does_not_move(model, caplog):
    caplog.set_level(logging.WARNING, "pymc")
    idata = pm.sample(
        100, tune=10, chains=1, cores=1, random_seed=1, step=sgmcmc.SGLD(model=model, step_size=0),
        model=model, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    assert "step_size=0: the chain does not move" in caplog.text
    assert np.isinf(idata.checks.sel(check="step_error")["value"].item())


def test_unstable_step_sizes_are_told_before_sampling(model, caplog):
    caplog.set_level(logging.WARNING, "pymc")
    sgmcmc.SGLD(model=model, step_size=3.0)
    assert "SGLD: at step_size 3 the dynamics are unstable" in caplog.text


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("share", [1e-4, 0.5])
def test_step_sizes_of_other_units_are_told_before_sampling(model, caplog, share):
    """Such as BlackJAX's, of a posterior that is a hundredth of a unit wide."""
    auto = sgmcmc.SGLD(model=model).automatic_step_size
    caplog.set_level(logging.WARNING, "pymc")
    sgmcmc.SGLD(model=model, step_size=share * auto)
    assert ("is so small, in units of the metric" in caplog.text) == (share < 0.1)


@pytest.mark.costly
def test_a_narrow_direction_is_not_taken_for_noise(caplog):
    """With all rows in every batch there is no noise."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 2)) * [1.0, 300.0]
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=2)
        pm.Normal("y", X @ b, 1.0, observed=rng.normal(size=300))
    caplog.set_level(logging.WARNING, "pymc")
    sgmcmc.SGLD(model=model, batch_size=300, metric="identity", control_variate_order=None)
    assert "narrower in some directions" in caplog.text
    assert "noisy" not in caplog.text


@pytest.mark.costly
def test_larger_batches_are_no_remedy_for_noise(caplog):
    model = mean_of(np.random.default_rng(0).normal(1.0, 1.0, 50_000), prior_sd=10)
    caplog.set_level(logging.WARNING, "pymc")
    for size in (10, 100, 1000):
        caplog.clear()
        sgmcmc.SGLD(model=model, control_variate_order=None, batch_size=size)
        assert "larger batches take as many" in caplog.text


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [sgmcmc.SGLD, pms.AusterityMH])
def test_another_mode_is_told(make, caplog):
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.normal(-2, 0.5, 500), rng.normal(2, 0.5, 500)])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2, initval=[-1.0, 1.0])
        pm.NormalMixture("y", w=[0.5, 0.5], mu=mu, sigma=0.5, observed=y)
    caplog.set_level(logging.WARNING, "pymc")
    step = make(model=model, control_variate_order=2)
    assert f"{make.__name__}: the posterior has at least two modes" in caplog.text
    found = pms.report(sample(step, model, 100)).to_dict()["checks"]
    assert {c["name"]: c["status"] for c in found}["modes"] == "warn"


@pytest.mark.costly
def test_several_steps_of_this_package_in_one_run(model):
    with model:
        steps = [sgmcmc.SGHMC([model["a"]], **FINE), pms.AusterityMH([model["b"]])]
        result = pm.sample(50, tune=50, chains=1, cores=1, step=steps, random_seed=2, **QUIET)
    assert result.sample_stats["batch_size"].shape[-1] == 2


@pytest.mark.costly(cases=0)
def test_what_is_left_of_a_chain_is_judged_by_its_draws(model):
    hot = sample(sgmcmc.SGLD(model=model, temperature=4.0, **FINE), model, 100, chains=1)
    unstable = sample(sgmcmc.SGLD(model=model, step_size=3.0), model, 100, chains=1)
    assert unstable.sample_stats["diverging"].any()
    for result, name in ((hot, "temperature"), (unstable, "diverged")):
        found = pms.report(result.isel(draw=slice(0, 60))).to_dict()["checks"]
        assert {c["name"]: c["status"] for c in found}[name] == "fail"


@pytest.mark.costly
def test_a_state_of_another_sampler_is_refused(model):
    one, other = sgmcmc.SGLD(model=model, **FINE), sgmcmc.SGHMC(model=model, **FINE)
    with pytest.raises(ValueError, match="sampler"):
        other.sampling_state = one.sampling_state


def test_warnings_reach_the_user(case, caplog):
    caplog.set_level(logging.WARNING, "pymc")
    step = MAKE["SGLD"](model=case.model, step_size=0.5)
    pm.sample(
        400, tune=50, chains=1, cores=1, random_seed=1, step=step, model=case.model,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    assert "SGLD: step_size 0.5 is too large" in caplog.text


@pytest.mark.costly
def test_noisy_gradients_are_told_before_sampling(caplog):
    model = mean_of(np.random.default_rng(0).normal(1.0, 1.0, 50_000), prior_sd=10)
    caplog.set_level(logging.INFO, "pymc")
    sgmcmc.SGLD(model=model, control_variate_order=None, batch_size=10)
    assert "passes over the rows" in caplog.text
    caplog.clear()
    sgmcmc.SGLD(model=model)
    assert "passes over the rows" not in caplog.text
    assert "steps per effective draw" in caplog.text


# Parts


def test_preconditioner_stays_as_it_is_after_tuning(model):
    one = MAKE["PSGLD"](model=model)
    for tune in (20, 0):
        one.setup_chain(np.random.default_rng(3), tune, 20)
        _, _, point = run(one, model.initial_point(), 20)
        before = one.integrator_state.copy()
        one.stop_tuning()
        run(one, point, 5)
        assert np.array_equal(before, one.integrator_state) == (tune > 0)


def test_svrg_reads_all_rows_now_and_then(model):
    one = sgmcmc.SVRGLD(
        model=model, batch_size=50, step_size=0.02, refresh_period=7, transitions_per_draw=10,
        steps_per_batch=1,
    )  # fmt: skip
    one.setup_chain(np.random.default_rng(1), 0, 7)
    _, stats, _ = run(one, {"a": np.array(0.3), "b": np.array(0.8)}, 7)
    spent = [s["n_evaluations"] for s in stats]
    steps = [range(10 * k, 10 * k + 10) for k in range(7)]
    passes = [len([t for t in part if t % 7 == 0]) for part in steps]
    pieces = [len({t // 7 for t in part}) for part in steps]
    # A piece takes half a gradient more than it has steps.
    expected = [
        p * 600 * 2 + 2 * 50 * ((10 + 0.5 * q) + 10) for p, q in zip(passes, pieces, strict=True)
    ]
    assert spent == expected
    default = sgmcmc.SVRGLD(model=model, batch_size=50, step_size=0.02)
    assert default.refresh_period == 12


@pytest.mark.costly(cases=0)
def test_svrg_is_less_noisy_near_its_reference(case):
    plain = sgmcmc.SGLD(model=case.model, batch_size=20, control_variate_order=None, step_size=0.01)
    reduced = sgmcmc.SVRGLD(model=case.model, batch_size=20, step_size=0.01, refresh_period=1)
    noise = {}
    for step in (plain, reduced):
        _, stats = chain(step, case.model.initial_point(), tune=5, draws=100)
        noise[step.name] = np.mean([s["gradient_variance"] for s in stats[5:]])
    assert noise["svrg_ld"] < 0.01 * noise["sgld"]


@pytest.mark.costly
def test_strata_make_gradients_less_noisy():
    rng = np.random.default_rng(2)
    x = rng.normal(size=4000)
    y = (rng.random(4000) < 1 / (1 + np.exp(-2 * x))).astype(int)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * x, observed=y)
    noise = {}
    for make in (sgmcmc.SGHMC, sgmcmc.ClusteredSGHMC):
        step = make(model=model, batch_size=50, control_variate_order=None, step_size=0.001)
        _, stats = chain(step, model.initial_point(), tune=5, draws=400)
        noise[make] = np.mean([s["gradient_variance"] for s in stats[5:]])
    assert noise[sgmcmc.ClusteredSGHMC] < 0.6 * noise[sgmcmc.SGHMC]
    assert sorted(step.permutation) == list(range(4000))


@pytest.mark.costly
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_with_infinite_columns_are_clustered(monkeypatch):
    """The log of a rate of zero, in a row that k-means has not seen before."""
    rng = np.random.default_rng(3)
    x, rate = rng.normal(size=300), rng.choice([1.0, 5.0], 300)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Poisson("y", rate * pm.math.exp(b * x), observed=rng.poisson(rate))
    step = sgmcmc.ClusteredSGHMC(model=model, n_clusters=2)
    rows = step.expansion.take(np.arange(300))
    packed = np.concatenate([rows[:, :299], np.where(rows[:, 299:] == 1, 1, -np.inf)], axis=1)
    for seen in (50, 300):
        monkeypatch.setattr(clusters, "_ROWS", seen)
        monkeypatch.setattr(Expansion, "take", lambda self, index: packed[:, index])
        monkeypatch.setattr(Expansion, "chunks", lambda self: iter([packed]))
        order = clusters.clustered_order(step.expansion, 2, np.random.default_rng(0))
        assert sorted(order) == list(range(300))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [sgmcmc.SGLD, sgmcmc.SGHMC])
def test_a_batch_serves_more_steps_where_its_noise_is_small(model, make):
    with_variates = make(model=model, batch_size=50)
    plain = make(model=model, batch_size=50, control_variate_order=None)
    assert (with_variates.hold, plain.hold) == (10, 1)
    assert make(model=model, batch_size=50, steps_per_batch=3).hold == 3
    assert sgmcmc.EWSG(model=model, batch_size=50).hold == 1


@pytest.mark.costly(cases=0)
def test_held_noise_counts_as_often_as_it_is_held(case):
    """The end-of-chain prediction is that of a run in which each batch serves ten steps."""
    (_, _), (sd, _) = case.exact
    kwargs = {"batch_size": 60, "control_variate_order": None, "step_size": 0.004}
    step = sgmcmc.SGLD(model=case.model, steps_per_batch=10, transitions_per_draw=100, **kwargs)
    result = sample(step, case.model, 4000)
    draws = result.posterior["a"].values
    stretch = draws.std() / sd - 1
    predicted = float(result.checks.sel(check="noise_error")["value"].mean())
    assert 0.05 < predicted < 0.12
    assert abs(stretch - predicted) < 0.05
    assert "noise_error" in verdicts(result)


def test_momenta_are_drawn_anew(model):
    """With them drawn at every draw, successive draws start alike from equal seeds."""
    one = MAKE["symplectic"](model=model, resample_every=4, transitions_per_draw=4, step_size=0.1)
    one.setup_chain(np.random.default_rng(3), 0, 2)
    other = copy.deepcopy(one.sampling_state)
    point = {"a": np.array(0.3), "b": np.array(0.8)}
    first, _, _ = run(one, point, 1)
    one.sampling_state = other
    one.momentum = one.momentum + 5.0
    np.testing.assert_array_equal(first, run(one, point, 1)[0])


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (0.01, np.full(12, 0.01)),
        (sgmcmc.PolynomialDecay(0.02, offset=10, power=0.5), 0.02 * (1 + STEPS / 10) ** -0.5),
        (sgmcmc.Cyclical(0.02, length=6), 0.01 * (1 + np.cos(np.pi * (STEPS % 6) / 6))),
    ],
)
def test_schedules(model, schedule, expected):
    step = MAKE["SGLD"](model=model, step_size=schedule, transitions_per_draw=2)
    _, stats = chain(step, model.initial_point(), tune=2, draws=4)
    found = [s["step_size"] for s in stats]
    np.testing.assert_allclose(found, expected.reshape(6, 2).mean(axis=1), rtol=1e-12)


@pytest.mark.costly(cases=0)
def test_schedules_of_the_automatic_step_size(model):
    auto = MAKE["SGLD"](model=model, step_size="auto").automatic_step_size
    step = MAKE["SGLD"](model=model, step_size=sgmcmc.PolynomialDecay(offset=1, power=1.0))
    assert step.automatic_step_size == auto
    sizes = step.schedule.sizes(np.arange(3), auto)
    np.testing.assert_allclose(sizes, auto / np.array([1, 2, 3]))


# Chains and state


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=SLOW)])
@pytest.mark.parametrize("name", ["SVRGLD", "EWSG", "ClusteredSGHMC"])
def test_chains_in_processes_equal_chains_in_sequence(model, name, mp_ctx):
    chains.assert_processes_agree(MAKE[name](model=model), model, mp_ctx, tune=10)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", NAMES)
def test_no_state_leaks_between_chains(model, name):
    chains.assert_chains_leave_no_state(lambda: MAKE[name](model=model), model)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 11, 25])
def test_state_round_trips_exactly(model, name, at):
    tune, draws = 20, 15
    one, other = (MAKE[name](model=model) for _ in range(2))
    round_trip(one, other, model, tune, draws, at)


@pytest.mark.costly
def test_a_state_brings_its_step_size_and_metric(model):
    """Both are chosen with random numbers of the set-up, or around a reference that was given."""
    at = {"a": 0.1, "b": 0.5}
    one = sgmcmc.SGHMC(model=model, control_variate_order=None, rng=1)
    other = sgmcmc.SGHMC(model=model, control_variate_order=None, rng=2, reference=at)
    assert one.automatic_step_size != other.automatic_step_size
    one.setup_chain(np.random.default_rng(7), 0, 15)
    *_, point = run(one, model.initial_point(), 5)
    saved, point = copy.deepcopy(one.sampling_state), copy.deepcopy(point)
    chosen = other.automatic_step_size
    other.sampling_state = saved
    assert_same(run(one, point, 5), run(other, point, 5))
    other.setup_chain(np.random.default_rng(8), 0, 5)
    assert other.automatic_step_size == chosen


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "value"),
    [("control_variate_order", 1), ("temperature", 2.0), ("transitions_per_draw", 2),
     ("batch_size", 60), ("metric", "identity")],
)  # fmt: skip
def test_a_state_of_another_configuration_is_refused(model, name, value):
    one, other = sgmcmc.SGLD(model=model, **FINE), sgmcmc.SGLD(model=model, **{**FINE, name: value})
    with pytest.raises(ValueError, match=name):
        other.sampling_state = one.sampling_state


# Statistics and results


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", NAMES)
def test_statistics_describe_the_steps(model, name):
    one = MAKE[name](model=model, transitions_per_draw=4)
    _, stats = chain(one, {"a": np.array(0.3), "b": np.array(0.8)}, tune=6, draws=10)
    weighted = name in ("EWSG", "overdamped")
    # Half a batch tells how noisy gradients are, a second batch where halves are other strata.
    gradients, batches = (8, 8) if weighted else (4.5, 1 + 3 // one.hold)
    gradients += name == "SGHMC"
    if name == "ClusteredSGHMC":
        gradients, batches = gradients + 0.5, batches + 1
    chains.assert_as_declared(one, stats)
    for stat in stats:
        if name != "SVRGLD":
            assert stat["n_evaluations"] == 2 * 50 * (gradients + batches)
        assert stat["batch_size"] == 50
        assert stat["data_share"] == 50 / 600
        assert stat["gradient_variance"] >= 0
        momenta = name not in ("SGLD", "PSGLD", "SVRGLD", "overdamped")
        assert np.isfinite(stat["kinetic_temperature"]) == momenta
        assert stat["temperature"] == 1.0
    assert {"step_error", "temperature"} <= set(chains.verdict(stats).values)


@pytest.mark.costly(cases=0)
def test_results_serve_the_other_tools(model, tmp_path):
    step = MAKE["SGHMC"](model=model)
    result = sample(step, model, 300, tune=50)
    path = tmp_path / "run.nc"
    result.to_netcdf(path)
    for run_ in (result, xr.open_datatree(path)):
        audit = pms.audit(run_, model=model, draws=100)
        assert audit.kind == "score"
        assert audit.p_value > 1e-5
        assert pms.report(run_, audit=audit).status in ("pass", "warn")
        table = pms.efficiency(run_)
        assert np.all(table["evaluations_per_effective_draw"] > 0)
        assert np.all(table["rows"] == 600)
        assert len(pms.summary(run_)) == 2
        assert pms.plot_batch_sizes(run_).viz is not None
        assert pms.plot_evaluations(run_).viz is not None


@pytest.mark.costly(cases=0)
def test_an_audit_sees_the_bias(case):
    step = sgmcmc.SGLD(model=case.model, batch_size=20, control_variate_order=None, step_size=0.05)
    result = sample(step, case.model, 2000)
    audit = pms.audit(result, model=case.model, draws=200)
    assert audit.p_value < 1e-3
    table = audit.table.sel(parameter="a")
    assert abs(float(table["corrected_sd"]) / case.sd[0] - 1) < 0.1
    assert float(table["sd_error"]) > 0.2


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("bar", ["combined+stats", "split+stats"])
def test_progress_bars(model, bar, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # in narrow terminals fewer columns are shown
    step = MAKE["SGHMC"](model=model)
    pm.sample(3, tune=3, chains=2, cores=1, step=step, model=model, progressbar=bar)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Div", "Data", "8.3"))


# Refusals and bad arguments


@pytest.mark.costly(cases=1)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("size", [0.0, 1e300])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "ClusteredSGHMC"])
def test_steps_of_no_size_and_of_any_are_reported(model, name, size):
    """Neither the chain nor its checks divide by them, or overflow."""
    step = MAKE[name](model=model, step_size=size)
    with np.errstate(all="ignore"):  # NumPy's own averages of such draws
        _, stats = chain(step, model.initial_point(), tune=2, draws=25)
    end = chains.verdict(stats)
    assert end.failed
    assert (end.values["diverged"] > 1) == (size > 0)
    assert not end.values["step_error"] <= 0.05


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_reports_say_what_temperature_should_be(model, temperature):
    step = sgmcmc.SGHMC(model=model, temperature=temperature, **FINE)
    text = str(pms.report(sample(step, model, 30)))
    [line] = [line for line in text.splitlines() if "temperature of the posterior" in line]
    assert line.split()[0] == "FAIL"
    assert line.split()[-3:] == [f"{temperature:g}", "=", "1"]


def test_models_without_reference_need_none(model):
    """A given step size in plain units reads no row before the first step."""
    step = sgmcmc.SGLD(
        model=model, control_variate_order=None, metric="identity", step_size=1e-4, batch_size=5
    )
    assert step.prepared is None
    assert step.reference is None


@pytest.mark.parametrize("step", [sgmcmc.SGLD, sgmcmc.SGHMC, sgmcmc.EWSG])
def test_discrete_variables_are_refused_by_name(step):
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        a = pm.Normal("a", 0, 1)
        pm.Normal("y", a + k, 1.0, observed=np.arange(50.0))
    with pytest.raises(pms.TallModelError, match="'k' is discrete"):
        step(model=model)


def test_a_model_is_needed():
    with pytest.raises(TypeError, match="create SGLD inside `with model:`"):
        sgmcmc.SGLD()


@pytest.mark.parametrize(
    ("step", "kwargs", "message"),
    [
        (sgmcmc.SGLD, {"batch_size": 0}, "batch_size must be a positive integer"),
        (sgmcmc.SGLD, {"batch_size": 601}, "batch_size=601 is larger than the number of rows, 600"),
        (sgmcmc.SGLD, {"step_size": -1}, "step_size must be"),
        (sgmcmc.SGLD, {"step_size": np.nan}, "step_size must be"),
        (sgmcmc.SGLD, {"step_size": "small"}, "step_size must be"),
        (sgmcmc.SGLD, {"step_size": True}, "step_size must be"),
        (sgmcmc.SGLD, {"control_variate_order": 3}, "control_variate_order must be one of"),
        (sgmcmc.SGLD, {"control_variate_order": 0}, "control_variate_order must be one of"),
        (sgmcmc.SGLD, {"metric": "mass"}, "metric must be one of"),
        (sgmcmc.SGLD, {"temperature": -0.1}, "temperature must be a finite number of at least 0"),
        (sgmcmc.SGLD, {"reference": {"a": 0.0}}, "missing \\['b'\\]"),
        (
            sgmcmc.SGLD,
            {
                "reference": {"a": 0.0, "b": 0.0}, "metric": "identity", "step_size": 0.1,
                "control_variate_order": None,
            },
            "reference is not used",
        ),
        (sgmcmc.PSGLD, {"averaging": 1.0}, "averaging must be a number between 0 and 1"),
        (sgmcmc.PSGLD, {"floor": 0.0}, "floor must be"),
        (sgmcmc.SGLD, {"steps_per_batch": 0}, "steps_per_batch must be a positive integer"),
        (sgmcmc.SVRGLD, {"refresh_period": 0}, "refresh_period must be a positive integer"),
        (sgmcmc.SGHMC, {"friction": 0.0}, "friction must be"),
        (sgmcmc.SGHMC, {"metric": "identity"}, "give friction"),
        (sgmcmc.SGHMC, {"integrator": "leapfrog"}, "integrator must be one of"),
        (sgmcmc.SGHMC, {"resample_every": 0}, "resample_every must be a positive integer"),
        (sgmcmc.ClusteredSGHMC, {"n_clusters": 1}, "n_clusters must be an integer of at least 2"),
        (sgmcmc.ClusteredSGHMC, {"n_clusters": 601}, "n_clusters=601 is larger"),
        (sgmcmc.EWSG, {"index_chain": 0}, "index_chain must be a positive integer"),
        (sgmcmc.EWSG, {"expected": "future"}, "expected must be one of"),
        (sgmcmc.EWSG, {"expected": "stop", "dynamics": "overdamped"}, "needs momenta"),
        (sgmcmc.EWSG, {"temperature": 0.0}, "temperature must be above 0"),
        (sgmcmc.EWSG, {"dynamics": "hamiltonian"}, "dynamics must be one of"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(model, step, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        step(model=model, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sgmcmc.PolynomialDecay(initial=0.0),
            "PolynomialDecay: initial must be a positive",
        ),
        (lambda: sgmcmc.PolynomialDecay(offset=-1), "PolynomialDecay: offset"),
        (lambda: sgmcmc.PolynomialDecay(power=1.5), "power must be a number above 0 and at most 1"),
        (lambda: sgmcmc.Cyclical(largest="a"), "Cyclical: largest"),
        (lambda: sgmcmc.Cyclical(length=0), "Cyclical: length"),
    ],
)
def test_bad_schedules_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.costly(cases=0)
def test_diagonal_metrics_know_the_largest_curvature():
    """Correlated predictors of many coefficients: with a diagonal metric their sum is stiff."""
    rng = np.random.default_rng(3)
    size, n = 510, 3000
    common = rng.normal(size=(n, 1))
    X = rng.normal(size=(n, size)) + common
    y = X[:, 0] + rng.normal(size=n)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=size)
        pm.Normal("y", X @ b, 1.0, observed=y)
    step = sgmcmc.SGLD(model=model)
    precision = X.T @ X + np.eye(size)
    [scale] = step.prepared.factor
    largest = np.linalg.eigvalsh(precision * scale * scale[:, None])[-1]
    np.testing.assert_allclose(step.steps.curvature.max(), largest, rtol=0.05)
    assert step.automatic_step_size < 0.1 / largest
    step = sgmcmc.SGLD(model=model, metric="identity")
    largest = np.linalg.eigvalsh(precision)[-1]
    assert 0.03 / largest < step.automatic_step_size < 0.1 / largest
    scale = rng.uniform(0.01, 0.03, size)
    found = posterior_precision(step, step.prepared, scale)
    largest = np.linalg.eigvalsh(precision * scale * scale[:, None])[-1]
    np.testing.assert_allclose(rescaled(found, scale).max(), largest, rtol=0.05)
    dense = rescaled(np.diag(found), scale)
    np.testing.assert_allclose(rescaled(found, scale), np.diag(dense), rtol=1e-12)


@pytest.mark.costly
def test_few_draws_do_not_make_a_step_size_look_too_large():
    """The covariance of five draws per parameter is too narrow by far in some direction."""
    model = of_twenty()
    step = sgmcmc.PSGLD(model=model, metric="identity", control_variate_order=2)
    assert not verdicts(sample(step, model, 110, chains=4))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("metric", "passes"), [("curvature", True), ("identity", False)])
def test_a_learnt_diagonal_needs_the_curvature_of_correlated_columns(metric, passes):
    """Columns far from zero and of unlike units, as people write them; the paper's metric fails."""
    rng = np.random.default_rng(8)
    X = np.column_stack([np.ones(1000), rng.normal(300, 100, 1000), rng.normal(0.05, 0.01, 1000)])
    y = X @ [1.0, 0.002, 10.0] + rng.normal(size=1000)
    with pm.Model() as model:
        b = pm.Normal("b", 0, [10.0, 1.0, 100.0], shape=3)
        pm.Normal("y", X @ b, 1.0, observed=y)
    idata = sample(sgmcmc.PSGLD(model=model, metric=metric), model, 500, chains=4)
    assert (pms.report(idata).status != "fail") == passes
    if not passes:
        return
    precision = X.T @ X + np.diag([1e-2, 1.0, 1e-4])
    mean, sd = np.linalg.solve(precision, X.T @ y), np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = idata["posterior"]["b"].values.reshape(-1, 3)
    # 2,000 draws, some 500 of them effective: five standard errors.
    np.testing.assert_array_less(abs(draws.mean(axis=0) - mean) / sd, 0.25)
    np.testing.assert_array_less(abs(draws.std(axis=0) / sd - 1), 0.05 + 0.16)


def normal_levels():
    """Twenty independent levels, exactly normal."""
    y = np.random.default_rng(5).normal(size=(20, 50))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=20)
        pm.Normal("y", b[np.repeat(np.arange(20), 50)], 1.0, observed=y.ravel())
    sd = np.full(20, (50 + 0.01) ** -0.5)
    mean = y.sum(axis=1) * sd**2
    return model, mean, sd, sd, lambda z: mean + sd * z


def walls():
    """Twenty levels, of which eight have outcomes that are all alike, and heavy-tailed priors."""
    hits = np.r_[np.full(5, 60), np.zeros(3), np.random.default_rng(5).binomial(60, 0.3, 12)]
    y = (np.arange(60) < hits[:, None]).astype(int)
    with pm.Model() as model:
        b = pm.StudentT("b", nu=3, mu=0, sigma=2.5, shape=20)
        pm.Bernoulli("y", logit_p=b[np.repeat(np.arange(20), 60)], observed=y.ravel())
    grid = np.linspace(-60, 60, 240_001)
    log = t.logpdf(grid / 2.5, 3) + hits[:, None] * grid - 60 * np.logaddexp(0, grid)
    mass = np.exp(log - log.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    below = np.cumsum(mass, axis=1) - mass / 2
    mean = mass @ grid
    sd = np.sqrt(mass @ grid**2 - mean**2)
    modes, h = log.argmax(axis=1)[:, None] + [-5, 0, 5], 5 * (grid[1] - grid[0])
    bent = np.take_along_axis(log, modes, axis=1) @ [-1, 2, -1] / h**2

    def draw(z):
        return np.stack([np.interp(u, b, grid) for u, b in zip(ndtr(z).T, below, strict=True)], 1)

    return model, mean, sd, bent**-0.5, draw


@pytest.fixture(scope="module", params=[normal_levels, walls])
def measured(request):
    """Whether draws pass, that are off in the last of twenty levels."""
    model, mean, sd, curved, draw = request.param()
    expansion, every = expand(TallModel(model), 0), np.arange(20)
    dynamics = stochastic.Dynamics(
        None, 1.0, 1.0, every, curved[None], np.ones(20), None, weighted=False
    )

    def passes(seed, shift=0.0, stretch=1.0):
        theta = draw(np.random.default_rng(seed).standard_normal((1000, 20)))
        theta[:, -1] = mean[-1] + shift * sd[-1] + stretch * (theta[:, -1] - mean[-1])
        return not told(theta, dynamics, expansion)

    return passes


def told(theta, dynamics, expansion):
    """Which errors the check of a chain finds in draws, (k, d)."""
    record, ones = StepRecord(draws=len(theta)), np.ones(len(theta))
    stats = dict.fromkeys(("step_size", "kinetic_temperature"), ones)
    record.add(theta, stats | {"noise": np.ones_like(theta), "diverging": 0 * ones})
    look = pilots.looked(record, dynamics.active, expansion).along(dynamics.active)
    checked = stochastic._measured(record, dynamics, look, ["look"])
    return {check.rule.name for check in checked if not check.passed}


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(
    ("shift", "stretch"), [(0, 0.3), (0, 0.5), (0, 1.5), (0, 2), (0, 3), (1, 1), (1, 0.3), (1, 3)]
)
def test_one_direction_of_twenty_that_is_wrong_is_found(measured, shift, stretch):
    """Where all others are right, so that what directions share says nothing."""
    assert not any(measured(seed, shift, stretch) for seed in range(3))


@pytest.mark.costly
def test_right_draws_of_twenty_directions_pass(measured):
    """Also at walls, where a full Newton step from a few draws is far too long."""
    alarms = sum(not measured(seed) for seed in range(20))
    assert alarms <= binom.isf(1e-5, 20, 1e-3)


@pytest.mark.costly(cases=0)
def test_random_rows_tell_the_same(measured, monkeypatch):
    """Where rows are too many to read all of them at a hundred draws: half of them, here."""
    monkeypatch.setattr(pilots, "_ROWS", 4000)
    monkeypatch.setattr(pilots, "_RANDOM_ROWS", [60_000])
    alarms = sum(not measured(seed) for seed in range(20))
    assert alarms <= binom.isf(1e-5, 20, 1e-3)
    assert not any(measured(seed, stretch=3.0) for seed in range(3))
    assert not any(measured(seed, shift=1.5) for seed in range(3))


@pytest.mark.costly
@pytest.mark.parametrize("measured", [normal_levels], indirect=True)
@pytest.mark.parametrize("effective", [32, 99])
def test_few_draws_tell_less_and_raise_no_alarm(measured, monkeypatch, effective):
    monkeypatch.setattr(pilots, "_MOST", effective)
    alarms = sum(not measured(seed) for seed in range(20))
    assert alarms <= binom.isf(1e-5, 20, 1e-3)
    assert not any(measured(seed, stretch=3.0) for seed in range(3))


def correlated(size, rho, n=400):
    """Linear regression on columns of a common factor; its expansion, means and covariance."""
    rng = np.random.default_rng(1)
    X = np.sqrt(1 - rho) * rng.standard_normal((n, size))
    X += np.sqrt(rho) * rng.standard_normal((n, 1))
    y = X @ np.full(size, 0.2) + rng.standard_normal(n)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=size)
        pm.Normal("y", pm.math.dot(X, b), 1, observed=y)
    precision = X.T @ X + np.eye(size) / 25
    covariance = np.linalg.inv(precision)
    return model, covariance @ X.T @ y, covariance, np.linalg.eigvalsh(precision)[-1]


def without_metric(size):
    every = np.arange(size)
    ones = np.ones((1, size))
    return stochastic.Dynamics(None, 1.0, 1.0, every, ones, None, None, weighted=False)


@pytest.mark.costly
def test_draws_that_know_no_correlation_are_found():
    """As noisy gradients make them; a regression alone compares such draws with themselves."""
    model, mean, covariance, _ = correlated(10, 0.99)
    expansion, sd = expand(TallModel(model), 0), np.sqrt(np.diag(covariance))
    for stretch, seed in product((0.6, 1.3, 2.0), range(5)):
        z = np.random.default_rng(seed).standard_normal((1000, 10))
        assert "stretch" in told(mean + stretch * sd * z, without_metric(10), expansion)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_right_draws_of_a_hundred_directions_pass(rho):
    """Whose covariance of few hundred draws makes full steps too long."""
    model, mean, covariance, _ = correlated(100, rho, 2000)
    expansion, factor = expand(TallModel(model), 0), np.linalg.cholesky(covariance)
    draws = (
        mean + np.random.default_rng(seed).standard_normal((10_000, 100)) @ factor.T
        for seed in range(10)
    )
    alarms = sum(bool(told(theta, without_metric(100), expansion)) for theta in draws)
    assert alarms <= binom.isf(1e-5, 10, 1e-3)


@pytest.mark.costly
def test_gradients_of_one_row_are_told_by_their_draws():
    """Nothing predicts the noise of weighted gradients."""
    model, _, covariance, steepest = correlated(20, 0.7, 5000)
    step = sgmcmc.EWSG(
        model=model, step_size=0.2 / steepest, dynamics="overdamped", metric="identity",
        control_variate_order=None, batch_size=1, transitions_per_draw=100,
    )  # fmt: skip
    draws = sample(step, model, 1000, tune=300)
    found = draws["posterior"]["b"].values.reshape(-1, 20).std(axis=0)
    assert np.max(found / np.sqrt(np.diag(covariance))) > 1.5
    assert "stretch" in verdicts(draws)


@pytest.mark.costly
@pytest.mark.parametrize("n", [20_000, 200_000])
def test_very_wide_draws_are_found_in_many_rows(n, monkeypatch):
    """Their distance makes full steps from few of them as noisy as they are wrong."""
    monkeypatch.setattr(pilots, "_ROWS", 4 * n)
    monkeypatch.setattr(pilots, "_RANDOM_ROWS", [n])
    model, _, covariance, steepest = correlated(1, 0.0, n)
    step = sgmcmc.EWSG(
        model=model, step_size=0.05 / steepest, dynamics="overdamped", metric="identity",
        control_variate_order=None, batch_size=1, transitions_per_draw=50,
    )  # fmt: skip
    draws = sample(step, model, 1000, tune=300)
    assert draws["posterior"]["b"].values.std() > 10 * np.sqrt(covariance[0, 0])
    assert "stretch" in verdicts(draws)


def groups_of_three(centred, groups=30):
    """Effects of normal groups of three rows, whose scale may be small."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(groups), 3)
    y = 0.3 * rng.normal(size=groups)[group] + rng.normal(size=3 * groups)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        if centred:
            a = pm.Normal("a", mu, tau, shape=groups)
        else:
            a = mu + tau * pm.Normal("z", shape=groups)
        pm.Normal("y", a[group], 1.0, observed=y)
    means, grid = y.reshape(groups, 3).mean(axis=1), np.linspace(1e-3, 4, 4000)
    variance = grid**2 + 1 / 3
    weight = groups / variance + 1 / 25
    center = means.sum() / variance / weight
    log = -0.5 * grid**2 - groups / 2 * np.log(variance) - np.log(weight) / 2
    log -= 0.5 * (means[:, None] ** 2 / variance).sum(axis=0) - 0.5 * center**2 * weight
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    mean = mass @ grid
    return model, mean, np.sqrt(mass @ (grid - mean) ** 2)


@pytest.mark.costly(cases=0)
def test_curvature_that_changes_makes_a_step_size_too_large():
    """That at the reference tells nothing of narrow groups, and gradients are zero on average."""
    model, mean, sd = groups_of_three(centred=True)
    step = sgmcmc.SGLD(model=model, reparameterize=False, batch_size=90)
    draws = sample(step, model, 1000, tune=500, chains=4)
    assert abs(draws["posterior"]["tau"].values.mean() - mean) > 0.5 * sd
    assert "step_error" in verdicts(draws)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("shape", [1.0, 2.0])
def test_errors_of_means_by_the_step_size_are_those_of_long_chains(shape):
    """Of the logarithm of a gamma variable, in the metric of its curvature."""
    rng, h, draws = np.random.default_rng(1), 0.1, 200_000
    z, root = np.full(draws, np.log(shape)), shape**-0.5
    for _ in range(400):
        z += h * (shape - np.exp(z)) / shape + np.sqrt(2 * h) * root * rng.normal(size=draws)
    gradient = (shape - np.exp(z)) * root
    scores = np.array([gradient[:, None]] * 2)
    predicted = pilots.least_mean_error(z[:, None], scores, h, 1e-3)
    off = abs(z.mean() - digamma(shape)) / np.sqrt(polygamma(1, shape))
    # A mean is off by .0022 sds, a tenth of the error that is looked for; four of these.
    assert 0.6 < predicted / off < 1.4


@pytest.mark.costly(cases=0)
def test_coordinates_of_the_chain_keep_the_curvature():
    model, mean, sd = groups_of_three(centred=True)
    step = sgmcmc.SGLD(model=model, batch_size=90, transitions_per_draw=30)
    draws = sample(step, model, 1000, tune=500, chains=4)
    assert not verdicts(draws)
    # 4,000 draws, of which a tenth is effective at least; five standard errors.
    assert abs(draws["posterior"]["tau"].values.mean() - mean) < (0.1 + 5 / 20) * sd


@pytest.mark.parametrize("size", [1, 20])
def test_slow_chains_from_afar_are_noticed(size):
    """From ten sds away, thirty draws to forget a direction: its sd comes out half too wide."""
    rho, noticed = np.exp(-1 / 30), 0
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise = rng.normal(size=(1000, size)) * np.sqrt(1 - rho**2)
        theta, _ = lfilter([1], [1, -rho], noise, axis=0, zi=rho * rng.normal(size=(1, size)))
        theta[:, 0] += 10 * rho ** np.arange(1000)
        record, ones = StepRecord(draws=1000), np.ones(1000)
        told = dict.fromkeys(("step_size", "kinetic_temperature"), ones)
        record.add(theta, told | {"noise": np.ones_like(theta), "diverging": 0 * ones})
        noticed += from_start(record, np.arange(size)) > stochastic.SD_BOUND
    assert noticed >= 10


@pytest.mark.costly
def test_a_reference_at_which_steps_are_too_long_is_told(caplog):
    """One of twenty, where rows bend by a twentieth of what they do where the draws are."""
    y = np.random.default_rng(3).poisson(1.5, 800)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 3, shape=20)
        pm.Poisson("y", pm.math.exp(b[np.repeat(np.arange(20), 40)]), observed=y)
    away = np.log(y.reshape(20, 40).mean(axis=1)) - np.r_[np.zeros(19), 3.0]
    with caplog.at_level(logging.WARNING, "pymc"):
        step = sgmcmc.SGLD(
            model=model, reference={"b": away}, batch_size=800, control_variate_order=None,
            transitions_per_draw=20,
        )  # fmt: skip
    assert "standard deviations per parameter (by the curvature there) from the mode" in caplog.text
    draws = sample(step, model, 1000, tune=300)
    # By conjugacy with little of a prior: the log of a gamma variable.
    sd = np.sqrt(polygamma(1, y[-40:].sum()))
    assert draws["posterior"]["b"].values[..., -1].std() > 1.5 * sd
    assert "stretch" in verdicts(draws)
