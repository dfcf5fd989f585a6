"""`HMCECS` as a step method of PyMC: reproducible, resumable, composable, and right."""

import copy
import logging
import re
from dataclasses import replace

import arviz as az
import chains
import cloudpickle
import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from chains import QUIET, assert_moments, assert_same, chain, round_trip, run
from exact_cases import centred_hierarchy, logistic, normal, poisson, wide
from scipy.special import expit
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample.chain import nuts_cost, nuts_instead
from pymc_subsample.chain.tuning import Tuning
from pymc_subsample.samplers.hmc_ecs import adaptation


@pytest.fixture(scope="module")
def step(model):
    return pms.HMCECS(model=model)


# Chains


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "mp_ctx", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_chains_in_processes_equal_chains_in_sequence(model, step, mp_ctx):
    chains.assert_processes_agree(step, model, mp_ctx)


@pytest.mark.costly(cases=0)
def test_no_state_leaks_between_chains(model):
    chains.assert_chains_leave_no_state(lambda: pms.HMCECS(model=model), model)


def test_sampling_twice_with_one_step_gives_the_same(model, step):
    kwargs = {"draws": 5, "tune": 25, "chains": 2, "cores": 1, "random_seed": 3, "model": model}
    first, second = (pm.sample(step=step, **kwargs, **QUIET) for _ in range(2))
    other = pm.sample(step=step, **{**kwargs, "random_seed": 5}, **QUIET)
    np.testing.assert_array_equal(first.posterior["b"], second.posterior["b"])
    assert not np.array_equal(first.posterior["b"], other.posterior["b"])
    assert not np.array_equal(first.posterior["b"][0], first.posterior["b"][1])


def test_statistics_are_of_their_declared_type(model, step):
    _, stats = chain(step, model.initial_point())
    chains.assert_as_declared(step, stats)


def test_statistics_describe_the_transition(model, step):
    _, stats = chain(step, model.initial_point(), tune=100, draws=30)
    m, b = step.subsample_size, step.subsample_size // step.n_blocks
    for stat in stats:
        gradients = stat["n_steps"] + 1 + round(stat["subset_accepted"])
        assert stat["n_evaluations"] == 2 * (m * gradients + 3 * b)
        assert stat["subsample_size"] == m
        assert 0 <= stat["acceptance_rate"] <= 1
    assert [s["tune"] for s in stats] == [True] * 100 + [False] * 30
    assert len({s["step_size"] for s in stats[100:]}) == 1


# State


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"control_variate_order": 1, "transitions_per_draw": 3},
        {"estimator": "block-poisson", "transitions_per_draw": 2},
        {"estimator": "block-poisson", "kernel": "nuts"},
    ],
)
@pytest.mark.parametrize("at", [0, 1, 11, 45, 55])
def test_state_round_trips_exactly(model, at, kwargs):
    tune, draws = 50, 15
    one, other = (pms.HMCECS(model=model, **kwargs) for _ in range(2))
    round_trip(one, other, model, tune, draws, at)


@pytest.mark.costly(cases=0)
def test_state_round_trips_across_a_new_reference_and_mass_matrix(model, monkeypatch):
    monkeypatch.setattr(Tuning, "should_recentre", lambda *_: True)
    monkeypatch.setattr(Tuning, "better_factor", lambda *_: np.diag([0.02, 0.01]))
    one, other = (pms.HMCECS(model=model) for _ in range(2))
    one.setup_chain(np.random.default_rng(8), 200, 20)
    before = one.reference.theta.copy()
    *_, point = run(one, model.initial_point(), 150)
    assert not np.array_equal(one.reference.theta, before)
    saved, point = copy.deepcopy(one.sampling_state), copy.deepcopy(point)
    rest = run(one, point, 30)
    other.sampling_state = saved
    assert_same(rest, run(other, point, 30))
    one.setup_chain(np.random.default_rng(8), 200, 20)
    np.testing.assert_array_equal(one.reference.theta, before)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("control_variate_order", 1),
        ("target_accept", 0.9),
        ("path_length", 1.0),
        ("transitions_per_draw", 2),
        ("temperature", 2.0),
        ("subsample_size", 50),
        ("n_blocks", 5),
    ],
)
def test_a_state_of_another_configuration_is_refused(model, step, name, value):
    other = pms.HMCECS(model=model, **{name: value})
    with pytest.raises(ValueError, match=name if hasattr(step, name) else "given"):
        other.sampling_state = step.sampling_state


def test_a_state_of_other_data_is_refused(step):
    with pytest.raises(ValueError, match="n_rows"):
        pms.HMCECS(model=logistic(n=500).model).sampling_state = step.sampling_state


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("kind", ["constant", "data", "transposed"])
def test_data_travel_once_and_are_no_state(kind):
    n = 200_000
    model = wide(n, kind)
    step = pms.HMCECS(model=model)
    *_, point = run(step, model.initial_point(), 3)
    assert len(cloudpickle.dumps(step.sampling_state)) < 100_000
    pickled = cloudpickle.dumps(step)
    assert len(pickled) < len(cloudpickle.dumps(model)) + 300_000  # data: 1,400,000
    copied = cloudpickle.loads(pickled)
    step.setup_chain(np.random.default_rng(1), 0, 3)
    copied.setup_chain(np.random.default_rng(1), 0, 3)
    assert_same(run(step, point, 3), run(copied, point, 3))


# pm.sample


def test_result_is_what_pymc_and_arviz_expect(model, step):
    seen = []
    result = pm.sample(
        draws=30, tune=40, chains=2, cores=1, random_seed=1, step=step, model=model,
        discard_tuned_samples=False, progressbar=True,
        callback=lambda trace, draw: seen.append(draw),
    )  # fmt: skip
    assert result.posterior.sizes["draw"] == 30
    assert result.warmup_posterior.sizes["draw"] == 40
    expected = {"acceptance_rate", "diverging", "energy", "energy_error", "loglik_variance"}
    expected |= {"max_energy_error", "index_in_trajectory"}
    expected |= {
        "sign",
        "tree_depth",
        "n_evaluations",
        "n_steps",
        "step_size",
        "subsample_size",
        "subset_accepted",
    }
    assert expected <= set(result.sample_stats.data_vars)
    assert "warning" not in result.sample_stats
    assert len(seen) == 2 * 70
    az.summary(result)
    az.ess(result)
    az.plot_trace(result, backend="none")
    with model:
        predictive = pm.sample_posterior_predictive(result, progressbar=False)
    assert predictive.posterior_predictive["y"].shape == (2, 30, 600)


@pytest.mark.costly
def test_variables_and_groups_of_the_result_can_be_chosen(model, step):
    kwargs = {"draws": 5, "tune": 5, "chains": 1, "step": step, "model": model, **QUIET}
    assert set(pm.sample(var_names=["b"], **kwargs).posterior.data_vars) == {"b"}
    result = pm.sample(idata_kwargs={"dims": {"a": []}, "include_transformed": True}, **kwargs)
    pm.compute_log_likelihood(result, model=model, progressbar=False)
    assert result.log_likelihood["y"].shape == (1, 5, 600)


@pytest.mark.parametrize("bar", ["combined", "split", "combined+stats", "split+stats"])
def test_progress_bars(model, step, bar, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # in narrow terminals fewer columns are shown
    pm.sample(3, tune=3, chains=2, cores=1, step=step, model=model, progressbar=bar)
    shown = capsys.readouterr().out
    assert ("Step" in shown) == ("16.6" in shown) == ("stats" in bar)


@pytest.mark.costly
@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_result_can_be_saved(model, step, tmp_path, engine):
    result = pm.sample(10, tune=10, chains=1, step=step, model=model, random_seed=1, **QUIET)
    result.to_netcdf(tmp_path / "result.nc", engine=engine)
    back = az.from_netcdf(tmp_path / "result.nc")
    np.testing.assert_array_equal(back.posterior["b"], result.posterior["b"])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"draws": 1, "tune": 0},
        {"draws": 1, "tune": 1},
        {"draws": 3, "tune": 5, "initvals": {"a": 0.1}},
        {"draws": 2, "tune": 0, "initvals": [{"a": 0.1}, {"a": 0.2}]},
    ],
)
def test_short_runs_work(model, step, kwargs):
    result = pm.sample(chains=2, cores=1, step=step, model=model, random_seed=1, **kwargs, **QUIET)
    assert np.isfinite(result.posterior["a"]).all()


def test_without_tuning_a_chain_starts_where_it_is_told(model):
    step = pms.HMCECS(model=model, path_length=1e-6)
    step.setup_chain(np.random.default_rng(0), 0, 1)
    step.tuning.step._log_bar = np.log(1e-6)
    [theta], *_ = run(step, {"a": np.array(0.4), "b": np.array(0.9)}, 1)
    np.testing.assert_allclose(theta, [0.4, 0.9], atol=1e-5)


def test_trajectories_are_bounded(model, step):
    step.setup_chain(np.random.default_rng(0), 0, 1)
    step.tuning.step._log_bar = np.log(1e-9)
    _, [stat], _ = run(step, model.initial_point(), 1)
    assert 500 < stat["n_steps"] <= 1024


@pytest.mark.filterwarnings("ignore:.*return_inferencedata:FutureWarning")
def test_multitrace(model, step):
    trace = pm.sample(
        5, tune=5, chains=1, step=step, model=model, return_inferencedata=False, **QUIET
    )
    assert trace["b"].shape == (5,)
    assert trace.get_sampler_stats("subset_accepted").shape == (5,)


def test_model_from_the_context(model):
    with model:
        step = pms.HMCECS([model["b"], "a"])
        result = pm.sample(3, tune=3, chains=1, step=step, random_seed=1, **QUIET)
    assert result.posterior["a"].shape == (1, 3)


@pytest.mark.parametrize(
    "step", [pms.HMCECS, pms.AusterityMH, pms.ConfidenceMH, pms.MinibatchBarkerMH]
)
def test_without_a_model_it_is_said_where_one_comes_from(step):
    with pytest.raises(TypeError, match=f"create {step.__name__} inside `with model:`.*model="):
        step()


def test_other_nuts_samplers_are_left_alone(model, step):
    with pytest.raises(ValueError, match="nuts_sampler"):
        pm.sample(nuts_sampler="nutpie", step=step, model=model, **QUIET)


@pytest.mark.costly(cases=0)
def test_set_up_is_reported(model, caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        pms.HMCECS(model=model, subsample_size=60)
    assert "600 rows of y" in caplog.text
    assert "60 rows (10.00%)" in caplog.text
    assert "starting with" not in caplog.text
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        pms.HMCECS(model=model)
    assert "starting with" in caplog.text


@pytest.mark.costly(cases=0)
def test_a_subsample_size_that_does_not_divide_is_reported(model, caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        assert pms.HMCECS(model=model, subsample_size=211).n_blocks == 1
    assert "subsample_size=210 divides well" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        pms.HMCECS(model=model, subsample_size=210)
        pms.HMCECS(model=model, subsample_size=211, n_blocks=1)
        pms.HMCECS(model=model, subsample_size=2)
    assert "divides well" not in caplog.text


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_subsample_that_changes_in_tuning_is_reported_once(model, caplog, monkeypatch, cores):
    step = pms.HMCECS(model=model)
    monkeypatch.setattr(Tuning, "should_recentre", lambda *_: True)
    sized = adaptation.sized
    monkeypatch.setattr(adaptation, "sized", lambda *given: (*sized(*given)[:2], 200, 20))
    for seed in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "pymc.stats.convergence"):
            pm.sample(
                5, tune=200, chains=2, cores=cores, step=step, model=model, random_seed=seed,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
        said = [r for r in caplog.records if "subsample changed" in r.getMessage()]
        assert len(said) == 2
        [once] = [r for r in said if r.levelno == logging.INFO]
        assert once.getMessage().startswith("HMCECS: the chain settled away from the reference")
        assert "it draws 200 rows (33.33%; 100 before)" in once.getMessage()


def changepoint():
    """A rate that changes at a row which PyMC's own step has to find, far from its start."""
    rows = np.arange(1000)
    y = np.random.default_rng(1).poisson(np.where(rows < 300, 3.0, 2.0))
    with pm.Model() as model:
        early, late = pm.Normal("early", 1, 1), pm.Normal("late", 1, 1)
        change = pm.DiscreteUniform("change", 0, 999, initval=500)
        pm.Poisson("y", pm.math.exp(pm.math.switch(rows < change, early, late)), observed=y)
    return model


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("cores", [1, 2])
def test_other_steps_are_named_once_where_they_change_the_subsample(caplog, cores):
    with changepoint() as model, caplog.at_level(logging.DEBUG, "pymc.stats.convergence"):
        step = pms.HMCECS([model["early"], model["late"]])
        pm.sample(
            5, tune=400, chains=4, cores=cores, step=[step, pm.Metropolis([model["change"]])],
            random_seed=1, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    said = [r for r in caplog.records if "subsample changed" in r.getMessage()]
    causes = {r.getMessage().split(";")[0] for r in said}
    assert len(said) > len(causes)
    assert sum(r.levelno == logging.INFO for r in said) == len(causes)
    assert "HMCECS: while Metropolis moves change, the chain settled away from" in str(causes)


# Where most rows are read


def reported(model, caplog, **kwargs):
    caplog.clear()
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        step = pms.HMCECS(model=model, **kwargs)
    [said] = [m for m in caplog.messages if "subsample of" in m]
    return step, said


@pytest.mark.costly(cases=0)
def test_small_data_are_for_nuts_on_all_rows(model, caplog, monkeypatch):
    _, said = reported(model, caplog, subsample_size=150)
    assert said.endswith("pm.NUTS or nutpie on all rows may be faster")
    monkeypatch.setattr(nuts_instead, "find_spec", lambda name: name)
    _, said = reported(model, caplog, subsample_size=160)
    assert re.search(r"reads 27% of the rows, and a gradient of all of them takes .* ms: try", said)
    assert said.endswith('try pm.sample(nuts_sampler="nutpie")')
    monkeypatch.setattr(nuts_instead, "find_spec", lambda name: None)
    assert reported(model, caplog, subsample_size=160)[1].endswith("try pm.sample()")


@pytest.mark.costly(cases=0)
def test_nobody_waits_for_a_comparison_that_is_not_said(model, caplog, monkeypatch):
    monkeypatch.setattr(nuts_instead, "compare", None)
    reported(model, caplog, subsample_size=150)
    reported(model, caplog, subsample_size=300, vars=["a"])
    reported(model, caplog, subsample_size=300, temperature=2.0)
    with nuts_cost.quiet():
        pms.HMCECS(model=model, subsample_size=300)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("seconds", "verdict"), [(40, "HMCECS is"), (60, "Use pm.sample(")])
def test_the_faster_sampler_is_named(model, caplog, monkeypatch, seconds, verdict):
    found = nuts_instead.Comparison(0.006, seconds, 100.0, 8.2)
    monkeypatch.setattr(nuts_instead, "compare", lambda *_: found)
    monkeypatch.setattr(nuts_instead, "find_spec", lambda name: name)
    _, said = reported(model, caplog, subsample_size=300)
    ours = f"A chain of 1,000 tuning steps and 1,000 draws takes about {seconds} s"
    assert f"{ours}; nutpie on all rows takes about 100 s for as many effective draws" in said
    assert "(8 gradients per draw, 6 ms each)" in said
    assert said.split(" each). ")[1].startswith(verdict)


@pytest.mark.costly(cases=0)
def test_comparison_is_timed_and_leaves_the_step_as_it_is(model, caplog, monkeypatch):
    alone, _ = reported(model, caplog, subsample_size=300)
    monkeypatch.setattr(nuts_instead, "SAVED_SECONDS", 0.0)
    step, said = reported(model, caplog, subsample_size=300)
    assert re.search(r"1,000 draws .* about [\d.]+ s; .* (about|over) [\d.]+ s .* \(\d+ gra", said)
    assert_same(*(chain(s, model.initial_point()) for s in (alone, step)))


@pytest.mark.costly(cases=0)
def test_comparison_counts_the_gradients_of_nuts(monkeypatch):
    """On a correlated posterior NUTS, whose mass matrix is diagonal, needs more of them."""
    monkeypatch.setattr(nuts_instead, "SAVED_SECONDS", 0.0)
    rng = np.random.default_rng(2)
    found = {}
    for correlation in (0.0, 0.995):
        x = rng.normal(size=2000)
        z = correlation * x + np.sqrt(1 - correlation**2) * rng.normal(size=2000)
        with pm.Model() as model:
            a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
            pm.Normal("y", a * x + b * z, 1, observed=x + z + rng.normal(size=2000))
        step = pms.HMCECS(model=model)
        found[correlation] = nuts_instead.compare(step)
        with model:
            nuts = pm.sample(
                20, tune=300, chains=1, cores=1, nuts_sampler="pymc", discard_tuned_samples=False,
                random_seed=1, **QUIET,
            )  # fmt: skip
        steps = float(nuts["warmup_sample_stats"]["n_steps"].values[0, 100:].mean())
        assert 0.6 < found[correlation].gradients / steps < 1.7
    assert found[0.995].gradients > 2 * found[0.0].gradients
    assert found[0.0].full_seconds > nuts_cost.COMPILE_SECONDS


@pytest.mark.costly(cases=0)
def test_an_expansion_that_is_no_density_counts_the_gradients_of_the_step(model, monkeypatch):
    monkeypatch.setattr(nuts_instead, "SAVED_SECONDS", 0.0)
    step = pms.HMCECS(model=model, subsample_size=300)
    at = step.prepared.reference
    for wrong in (np.nan, -10.0):
        bent = replace(at, curvature=wrong * at.curvature)
        monkeypatch.setattr(step, "prepared", replace(step.prepared, reference=bent))
        found = nuts_instead.compare(step)
        assert found.gradients == nuts_cost.seconds_per_draw(step, 0)[1]


# Right answers


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("factory", [logistic, poisson, normal])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"control_variate_order": 1, "subsample_size": 200}, {"transitions_per_draw": 5}],
    ids=["default", "first order", "several transitions"],
)
def test_posterior_is_the_exact_one(factory, kwargs):
    case = factory()
    result = pm.sample(
        3000, tune=500, chains=2, cores=1, random_seed=6,
        step=pms.HMCECS(model=case.model, **kwargs), model=case.model, **QUIET,
    )  # fmt: skip
    case.assert_posterior(result)
    if kwargs:
        assert result.sample_stats["subset_accepted"].mean() < 1


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [1, 2])
def test_posterior_of_a_centred_hierarchy_is_the_exact_one(order):
    """Rows sorted by group; given mean and scale of the groups, everything is normal."""
    groups, size = 8, 100
    model, means = centred_hierarchy(groups, size)
    step = pms.HMCECS(model=model, control_variate_order=order, subsample_size=200)
    result = pm.sample(
        5000, tune=1000, chains=2, cores=1, random_seed=9, step=step, model=model, **QUIET
    )
    assert (result.sample_stats["subset_accepted"].mean() < 1) == (order == 1)

    m, t = np.meshgrid(np.linspace(-1, 2, 301), np.linspace(0.01, 2.5, 500), indexing="ij")
    variance = t**2 + 1 / size
    logp = norm.logpdf(m) + norm.logpdf(t)
    logp += norm.logpdf(means[:, None, None], m, np.sqrt(variance)).sum(axis=0)
    weight = np.exp(logp - logp.max())
    weight /= weight.sum()

    def moments(value, spread=0.0):
        mean = (weight * value).sum()
        return mean, np.sqrt((weight * (spread + (value - mean) ** 2)).sum())

    assert_moments(result.posterior["mu"], *moments(m))
    assert_moments(result.posterior["tau"], *moments(t))
    for j in range(groups):
        shrunk = m + t**2 / variance * (means[j] - m)
        expected = moments(shrunk, t**2 / variance / size)
        assert_moments(result.posterior["a"][..., j], *expected)


@pytest.fixture(scope="module")
def hierarchical_logistic():
    """A centred hierarchy of varying intercepts and its posterior by NUTS on all rows."""
    rng = np.random.default_rng(4)
    g = np.sort(rng.integers(0, 10, 3000))
    x = rng.normal(size=3000)
    y = rng.random(3000) < expit(rng.normal(0.2, 0.6, 10)[g] + 0.5 * x)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        a, b = pm.Normal("a", mu, tau, shape=10), pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a[g] + b * x, observed=y)
        full = pm.sample(
            4000, tune=1000, chains=2, cores=1, random_seed=1, step=pm.NUTS(target_accept=0.9),
            **QUIET,
        )  # fmt: skip
    return model, full


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_posterior_equals_that_of_nuts_on_all_rows(hierarchical_logistic, order):
    model, full = hierarchical_logistic
    step = pms.HMCECS(model=model, control_variate_order=order)
    result = pm.sample(
        5000, tune=1000, chains=2, cores=1, random_seed=2, step=step, model=model, **QUIET
    )
    for name in full.posterior.data_vars:
        left, right = (r.posterior[name].values for r in (result, full))
        left, right = (x.reshape(*x.shape[:2], -1) for x in (left, right))
        for j in range(left.shape[2]):
            ours, theirs = left[..., j], right[..., j]
            mean, sd = theirs.mean(), theirs.std()
            error = sd * np.sqrt(1 / array_stats.ess(ours) + 1 / array_stats.ess(theirs))
            assert abs(ours.mean() - mean) < 5 * error
            squares = [(d - mean) ** 2 for d in (ours, theirs)]
            error = np.sqrt(sum(s.var() / array_stats.ess(s) for s in squares))
            assert abs(squares[0].mean() - squares[1].mean()) < 5 * error


def regression(n=400, seed=4):
    rng = np.random.default_rng(seed)
    X = np.c_[np.ones(n), rng.normal(size=(n, 2))]
    y = X @ [0.5, -1.0, 0.2] + rng.normal(size=n)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Normal("y", X @ beta, 1.0, observed=y)
    return model, X, y


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("order", [1, 2])
def test_temperature_divides_the_log_likelihood(order):
    model, X, y = regression()
    step = pms.HMCECS(model=model, temperature=10, control_variate_order=order)
    result = pm.sample(
        4000, tune=500, chains=2, cores=1, random_seed=2, step=step, model=model, **QUIET
    )
    cov = np.linalg.inv(np.eye(3) + X.T @ X / 10)
    mean = cov @ X.T @ y / 10
    for j in range(3):
        assert_moments(result.posterior["beta"][..., j], mean[j], np.sqrt(cov[j, j]))


@pytest.mark.costly(cases=0)
def test_compound_with_another_step():
    case = normal()
    with case.model as model:
        steps = [pms.HMCECS([model["a"]], subsample_size=100), pm.Metropolis([model["b"]])]
        result = pm.sample(6000, tune=1000, chains=2, cores=1, random_seed=3, step=steps, **QUIET)
    case.assert_posterior(result)
    # The reference takes the other step's variable into account.
    np.testing.assert_allclose(steps[0].reference.theta, [1.0, np.log(0.7)], atol=0.2)


@pytest.mark.costly(cases=0)
def test_compound_with_nuts():
    """PyMC gives the variables that are left to NUTS."""
    case = normal()
    with case.model as model:
        step = pms.HMCECS(vars=[model["a"]], control_variate_order=1, subsample_size=100)
        result = pm.sample(3000, tune=1000, chains=2, cores=1, random_seed=3, step=step, **QUIET)
    assert {"tree_depth", "subset_accepted"} <= set(result.sample_stats.data_vars)
    case.assert_posterior(result)


@pytest.mark.costly(cases=0)
def test_compound_with_a_discrete_variable():
    rng = np.random.default_rng(5)
    n, shift = 400, 0.08
    y = np.sort(rng.normal(0.3, 1, n))
    with pm.Model():
        a = pm.Normal("a", 0, 1)
        z = pm.Bernoulli("z", 0.5)
        pm.Normal("y", a + shift * z, 1.0, observed=y)
        steps = [pms.HMCECS([a]), pm.BinaryMetropolis([z])]
        result = pm.sample(4000, tune=300, chains=2, cores=1, random_seed=1, step=steps, **QUIET)
    evidence = norm.pdf(y.mean(), [0, shift], np.sqrt(1 + 1 / n))
    odds = evidence / evidence.sum()
    means = n / (n + 1) * (y.mean() - np.array([0, shift]))
    mean = odds @ means
    sd = np.sqrt(1 / (n + 1) + odds @ (means - mean) ** 2)
    assert_moments(result.posterior["a"], mean, sd)
    assert_moments(result.posterior["z"], odds[1], np.sqrt(odds[0] * odds[1]))


# Arguments


def test_discrete_variables_are_refused_by_name():
    with pm.Model() as model:
        a = pm.Normal("a")
        k = pm.Poisson("k", 3)
        pm.Normal("y", a + k, 1, observed=np.zeros(50))
    with pytest.raises(pms.TallModelError, match=r"'k' is discrete.*vars=\['a'\]"):
        pms.HMCECS(model=model)
    with pytest.raises(pms.TallModelError, match="'k' is discrete"):
        pms.HMCECS([k], model=model)


def test_discrete_variables_of_each_row_are_refused_where_they_are_not_summed_over():
    with pm.Model() as model:
        a = pm.Normal("a", shape=2)
        z = pm.Bernoulli("z", 0.5, shape=50)
        pm.Normal("y", a[z], 1, observed=np.arange(50.0))
    for given in ({"vars": [z]}, {"vars": [a]}, {"integrate": False}):
        with pytest.raises(pms.TallModelError, match=r"'z' .* has one element per row") as error:
            pms.HMCECS(model=model, **given)
        assert 'integrate="auto"' in str(error.value)


BAD = [
    ({"temperature": 0}, "temperature .*above 0"),
    ({"subsample_size": 0}, "subsample_size must be an integer of at least 2 or"),
    ({"subsample_size": 1}, "subsample_size must be an integer of at least 2.*got 1"),
    ({"subsample_size": -1}, "subsample_size .*-1"),
    ({"subsample_size": 2.5}, "subsample_size .*2.5"),
    ({"subsample_size": "big"}, "subsample_size .*\"auto\".*'big'"),
    ({"subsample_size": True}, "subsample_size"),
    ({"subsample_size": 601}, "subsample_size=601 .*600"),
    ({"n_blocks": 0}, "n_blocks must be a positive integer"),
    ({"n_blocks": 1.0}, "n_blocks .*1.0"),
    ({"n_blocks": 601}, "n_blocks=601 .*600"),
    ({"n_blocks": 7, "subsample_size": 50}, "n_blocks=7 does not divide subsample_size=50"),
    ({"n_blocks": 70, "subsample_size": 50}, "n_blocks=70 .*50"),
    ({"control_variate_order": 3}, r"control_variate_order .*\(0, 1, 2\).*3"),
    ({"control_variate_order": "2"}, "control_variate_order .*'2'"),
    ({"target_accept": 0}, "target_accept .*between 0 and 1.*got 0"),
    ({"target_accept": 1}, "target_accept"),
    ({"target_accept": "high"}, "target_accept .*'high'"),
    ({"path_length": np.nan}, "path_length .*above 0.*nan"),
    ({"path_length": -1.0}, "path_length"),
    ({"path_length": np.inf}, "path_length"),
    ({"transitions_per_draw": "auto"}, "transitions_per_draw"),
]


@pytest.mark.costly
@pytest.mark.parametrize(("kwargs", "message"), BAD, ids=[str(k) for k, _ in BAD])
def test_bad_arguments_are_named(model, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pms.HMCECS(model=model, **kwargs)


@pytest.mark.costly(cases=0)
def test_good_arguments_are_accepted(model):
    for kwargs in (
        {"rng": np.random.default_rng(1)},
        {"subsample_size": np.int64(40), "n_blocks": np.int64(8)},
        {"vars": model["a"]},
        {"likelihood": "y"},
        {"likelihood": [model["y"]]},
        {"initial_point": {"a": 0.2}},
    ):
        pms.HMCECS(model=model, **kwargs)


@pytest.fixture(scope="module")
def transformed():
    rng = np.random.default_rng(0)
    y = rng.normal(size=300)
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        w = pm.Dirichlet("w", np.ones(3))
        c = pm.Normal(
            "c", [0, 1, 2], 1, shape=3, transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 0.0, 1.0],
        )  # fmt: skip
        u = pm.Uniform("u", 0, 2)
        pm.Normal("y", (w * c).sum() + u, s, observed=y)
    return model


POINT = {"s": 1.1, "w": [0.2, 0.3, 0.5], "c": [-1.0, 0.5, 2.0], "u": 0.5}


@pytest.mark.costly(cases=0)
def test_reference_is_given_untransformed(transformed):
    step = pms.HMCECS(model=transformed, reference=POINT, subsample_size=100)
    values = step.tall.unravel(step.reference.theta)
    outputs = transformed.replace_rvs_by_values(transformed.free_RVs)
    back = transformed.compile_fn(outputs, inputs=transformed.value_vars, mode="FAST_COMPILE")
    for name, value in zip(POINT, back(values), strict=True):
        np.testing.assert_allclose(value, POINT[name])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"s": -1.0}, r"reference\['s'\] = -1.0 lies outside the support of 's' \(HalfNormal"),
        ({"s": 0.0}, r"reference\['s'\] = 0.0 lies outside"),
        ({"w": [0.2, 0.3, 0.6]}, r"reference\['w'\] .* outside the support of 'w' \(Dirichlet"),
        ({"c": [2.0, 1.0, 0.0]}, r"reference\['c'\] .* outside"),
        ({"u": 3.0}, r"reference\['u'\] = 3.0 lies outside the support of 'u' \(Uniform"),
        ({"u": np.nan}, r"reference\['u'\] is not finite"),
        ({"u": "half"}, r"reference\['u'\] must be a number"),
        ({"w": [0.5, 0.5]}, r"reference\['w'\] has shape \(2,\), expected \(3,\)"),
        ({"v": 1.0}, r"unknown \['v'\]"),
    ],
)
def test_bad_reference_names_the_variable(transformed, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pms.HMCECS(model=transformed, reference=POINT | change)


def test_incomplete_reference_names_the_variable(transformed):
    with pytest.raises(ValueError, match=r"missing \['s', 'w', 'u'\]"):
        pms.HMCECS(model=transformed, reference={"c": POINT["c"]})
    with pytest.raises(TypeError, match="reference must be a dict"):
        pms.HMCECS(model=transformed, reference=[1.0])


@pytest.mark.parametrize(("off", "times"), [(0.4, 1), (2.0, 2), (50.0, 4), (np.inf, 1)])
def test_the_last_look_of_tuning_asks_what_the_subsample_perturbs(off, times, monkeypatch, caplog):
    """The perturbation falls like m^-2, and half of what is tolerable is aimed at."""
    looked = []

    def perturbation(step):
        looked.append(step.tuning.done)
        return off

    monkeypatch.setattr(adaptation, "measured_perturbation", perturbation)
    rng = np.random.default_rng(1)
    x = rng.normal(size=4000)
    with pm.Model():
        eta = pm.Normal("a") + pm.Normal("b") * x
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(4000) < 0.4)
        step = pms.HMCECS(rng=1)
        before = step.subsample_size
        pm.sample(50, tune=200, chains=1, step=step, progressbar=False, random_seed=1)
    assert looked == [140]
    assert step.subsample_size == times * before
    assert ("perturbs the posterior by more than was predicted" in caplog.text) == (times > 1)


def test_what_a_subsample_perturbs_is_told_before_the_end():
    """Few rows of a skewed column matter: ten rows per estimate beside enough of them."""
    rng = np.random.default_rng(2)
    x = np.exp(2 * rng.normal(size=20_000))
    with pm.Model():
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 1)
        pm.Poisson("y", pm.math.exp(a + b * np.minimum(x, 100)), observed=rng.poisson(1, 20_000))
        step = pms.HMCECS(rng=1)
    found = []
    for size in (10, step.subsample_size):
        step.setup_chain(np.random.default_rng(1), tune=100, draws=1)
        step.subsample.always = step.subsample.always[:0]
        step.subsample_size = size
        z = np.random.default_rng(3).standard_normal((100, 2))
        for theta in step.reference.theta + z @ np.linalg.cholesky(step.home.factor).T:
            step.tuning.add(theta, 0.8, 0.1)
        step.tuning._fold()
        found.append(adaptation.measured_perturbation(step))
    assert found[0] > 5 * found[1]
