"""`pms.auto`: exact draws where they cost little more, one set-up for both samplers, no pilots."""

import logging
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, assert_moments
from exact_cases import logistic
from models import jumps
from pytensor.ifelse import ifelse

import pymc_subsample as pms
from pymc_subsample.chain import finding_reference, model_compilation, nuts_instead
from pymc_subsample.chain.nuts_cost import COMPILE_SECONDS, DRAWS, seconds_as_written
from pymc_subsample.chain.nuts_instead import SAVED_SECONDS
from pymc_subsample.chain.nuts_trial import Gradients, projection_of
from pymc_subsample.chain.sharing import Shared
from pymc_subsample.choice import auto as choosing
from pymc_subsample.choice import few_rows
from pymc_subsample.choice.auto import ALIKE, time_of_exact_draws, unfit
from pymc_subsample.results.advise import trials
from pymc_subsample.samplers.registry import ADVISED

# Of rows so many that they are not few.
MANY = 20_000


def regression(n=MANY, d=3):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=d)
        pm.Bernoulli("y", logit_p=X @ beta, observed=rng.random(n) < 1 / (1 + np.exp(-X[:, 0])))
    return model


def mixture(n=4_000):
    """Two components that overlap: their bounds are by interval arithmetic, and loose."""
    rng = np.random.default_rng(2)
    first = rng.random(n) < 0.4
    y = np.where(first, rng.normal(-1.5, 1.0, n), rng.normal(1.5, 0.7, n))
    with pm.Model() as model:
        w, mu = pm.Beta("w", 2, 2), pm.Normal("mu", [-1.5, 1.5], 1, shape=2)
        sd = pm.HalfNormal("sd", 1, shape=2)
        pm.NormalMixture("y", w=pm.math.stack([w, 1 - w]), mu=mu, sigma=sd, observed=y)
    return model


def crowd(n=3_000, groups=120):
    """A cube of parameters that is over twenty times the rows."""
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        z = pm.Normal("z", 0, 0.3, shape=groups)
        pm.Poisson("y", pm.math.exp(z[np.arange(n) % groups]), observed=rng.poisson(1, n))
    return model


def kinks(n=MANY):
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        pm.Laplace("y", pm.Normal("b") * rng.normal(size=n), 1.0, observed=rng.normal(size=n))
    return model


def panel(customers=400, each=4):
    rng, n = np.random.default_rng(5), customers * each
    customer, x = np.repeat(np.arange(customers), each), rng.normal(size=n)
    logit = rng.normal(0, 0.8, customers)[customer] + 0.5 * x
    with pm.Model() as model:
        mu, sd, z = pm.Normal("mu"), pm.HalfNormal("sd"), pm.Normal("z", shape=customers)
        logit_p = mu + sd * z[customer] + pm.Normal("slope") * x
        pm.Bernoulli("y", logit_p=logit_p, observed=rng.random(n) < 1 / (1 + np.exp(-logit)))
    return model


def classes(units=300, each=6):
    rng = np.random.default_rng(6)
    kind, unit = rng.random(units) < 0.4, np.repeat(np.arange(units), each)
    with pm.Model() as model:
        rate = pm.LogNormal("rate", [0, 1.5], 0.5)
        k = pm.Bernoulli("k", pm.Beta("share", 2, 2), shape=units)
        pm.Poisson("y", rate[k][unit], observed=rng.poisson(np.where(kind, 4.0, 1.0)[unit]))
    return model


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "pymc.subsample")

    def messages():
        """What is said, but of a busy machine before the first message."""
        found = [record.getMessage() for record in caplog.records]
        return [message for message in found if "still setting up" not in message]

    return messages


# The choice


@pytest.mark.costly
def test_exact_draws_are_taken_where_they_cost_little_more(said):
    step = pms.auto(model=regression())
    assert isinstance(step, pms.ScalableMH)
    assert said()[0].startswith(
        "auto takes ScalableMH, whose draws are exact; an effective draw takes about"
    )
    assert said()[1].startswith("ScalableMH: 20,000 rows of y")
    assert not any("HMCECS:" in message for message in said())


@pytest.mark.costly
def test_others_are_taken_where_exact_ones_cost_more(said):
    step = pms.auto(model=mixture())
    assert isinstance(step, pms.HMCECS)
    assert "since ScalableMH, which is exact, would take about" in said()[0]
    assert not any("ScalableMH:" in message for message in said())


@pytest.mark.costly
@pytest.mark.parametrize(("exact", "name"), [(ALIKE, "ScalableMH"), (1.01 * ALIKE, "HMCECS")])
def test_the_choice_changes_with_the_cost(exact, name, monkeypatch):
    for sampler, time in (("HMCECS", 1.0), ("ScalableMH", exact)):
        record = replace(ADVISED[sampler], effective_time=lambda step, time=time: time)
        monkeypatch.setitem(ADVISED, sampler, record)
    assert type(pms.auto(model=regression())).__name__ == name


@pytest.mark.costly
def test_costs_follow_what_is_read_and_accepted():
    first = pms.HMCECS(model=regression())
    exact = pms.ScalableMH(model=regression())
    ratio = time_of_exact_draws(first, exact)
    assert 0.3 < ratio < ALIKE
    accepted = exact.predicted_acceptance
    exact.predicted_acceptance = 0.2 * accepted  # draws that repeat the one before
    assert time_of_exact_draws(first, exact) > 3 * ratio
    exact.predicted_acceptance = accepted
    first.subsample_size *= 300  # rows that each gradient reads
    assert time_of_exact_draws(first, exact) < 0.5 * ratio


@pytest.mark.costly
def test_equal_models_get_equal_steps_with_equal_draws():
    runs = []
    for _ in range(2):
        with regression(n=2_000):
            runs.append(pm.sample(50, tune=50, step=pms.auto(), chains=1, random_seed=1, **QUIET))
    first, second = (run["posterior"]["beta"].values for run in runs)
    np.testing.assert_array_equal(first, second)


@pytest.mark.costly
def test_no_exact_step_is_set_up_for_a_crowd_of_parameters(monkeypatch, said):
    monkeypatch.setattr(choosing, "ScalableMH", None)
    assert "too many parameters" in unfit(pms.HMCECS(model=crowd()))
    assert isinstance(pms.auto(model=crowd()), pms.HMCECS)
    assert any(
        "auto takes HMCECS, since ScalableMH, which is exact, accepts" in text for text in said()
    )


@pytest.mark.costly
def test_no_exact_step_is_set_up_where_all_rows_are_read(monkeypatch, said):
    monkeypatch.setattr(pms.HMCECS, "exact", True)
    monkeypatch.setattr(choosing, "ScalableMH", None)
    assert isinstance(pms.auto(model=regression()), pms.HMCECS)
    assert any("is not needed: all rows are read" in message for message in said())


@pytest.mark.costly
def test_bounds_that_take_long_are_given_up(monkeypatch, said):
    """And not those of a step that is named."""
    model = mixture()
    monkeypatch.setattr(choosing, "PATIENCE", 1e-9)
    assert isinstance(pms.auto(model=model), pms.HMCECS)
    assert any("which is exact, does not take this model: " in message for message in said())
    pms.ScalableMH(model=model)


@pytest.mark.costly
@pytest.mark.parametrize("make", [panel, classes])
def test_units_are_sampled_by_what_takes_them(make, said):
    with make() as model:
        step = pms.auto()
        idata = pm.sample(100, tune=100, step=step, chains=1, random_seed=1, **QUIET)
    assert step.units is not None
    assert any("integrated out" in message for message in said())
    assert set(idata["posterior"]) == {v.name for v in model.free_RVs}


@pytest.mark.costly(cases=1)
def test_exact_draws_are_exact_but_for_integrals(said):
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    y = rng.normal(x)
    x[rng.random(2000) < 0.2] = np.nan
    y[rng.random(2000) < 0.1] = np.nan
    with pm.Model() as model:
        covariate = pm.Normal("x", pm.Normal("mean"), 1, observed=x)
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * covariate, 1, observed=y)
    assert isinstance(pms.auto(model=model), pms.ScalableMH)
    assert any("exact except for the error of integrals" in text for text in said())
    assert any("drawn given the others" in text for text in said())
    assert not any("in 10 blocks" in text for text in said())  # as HMCECS reads rows


# One set-up


@pytest.mark.costly
def test_both_samplers_share_one_set_up(monkeypatch):
    """One model traced and expanded, one search; alone each has its own."""
    seen = []
    solved, tall = finding_reference.solved, model_compilation.TallModel
    monkeypatch.setattr(
        finding_reference, "solved", lambda *given: seen.append("search") or solved(*given)
    )
    monkeypatch.setattr(
        model_compilation, "TallModel", lambda *x, **kw: seen.append("model") or tall(*x, **kw)
    )
    model = regression()
    assert isinstance(pms.auto(model=model), pms.ScalableMH)
    assert seen == ["model", "search"]
    pms.ScalableMH(model=model, reference=pms.HMCECS(model=model))
    assert len(seen) == 6


@pytest.mark.costly
def test_what_is_shared_is_what_the_step_would_have_found_itself():
    model = regression(n=2_000)
    alone = pms.ScalableMH(model=model)
    first = pms.HMCECS(model=model)
    shared = pms.ScalableMH(model=model, reference=Shared(first))
    assert shared.expansion is first.expansion
    assert shared.like is None
    np.testing.assert_allclose(shared.reference.theta, alone.reference.theta, rtol=1e-6)
    np.testing.assert_allclose(shared.predicted_acceptance, alone.predicted_acceptance, atol=0.02)


@pytest.mark.costly
def test_draws_of_the_exact_step_are_from_the_posterior():
    case = logistic()
    step = pms.auto(model=case.model)
    assert isinstance(step, pms.ScalableMH)
    with case.model:
        idata = pm.sample(4000, tune=500, step=step, chains=2, cores=2, random_seed=1, **QUIET)
    case.assert_posterior(idata)


@pytest.mark.costly
def test_draws_of_the_other_step_are_its_own(monkeypatch):
    """As of one that was made alone: that another was tried changes nothing."""
    model, runs = mixture(), []
    for make in (pms.auto, pms.HMCECS):
        step = make(model=model)
        run = pm.sample(30, tune=30, step=step, model=model, chains=1, random_seed=1, **QUIET)
        runs.append(run["posterior"]["mu"].values)
    np.testing.assert_array_equal(*runs)


@pytest.mark.costly
def test_arguments_reach_whichever_step_it_is(monkeypatch):
    for ratio in (0.0, 10.0):
        monkeypatch.setattr(choosing, "time_of_exact_draws", lambda *_, ratio=ratio: ratio)
        step = pms.auto(
            model=regression(n=2_000), target_accept=0.9, transitions_per_draw=2, path_length=1.0,
            reparameterize=False,
        )  # fmt: skip
        assert type(step).__name__ == ("HMCECS" if ratio else "ScalableMH")
        assert (step.target_accept, step.transitions_per_draw, step.path_length) == (0.9, 2, 1.0)
        assert not step.form.own


# Where subsampling does not help


def test_few_rows_are_for_nuts_before_anything_is_set_up(monkeypatch, said):
    monkeypatch.setattr(choosing, "HMCECS", None)
    step = pms.auto(model=regression(n=500), fallback=True, target_accept=0.9)
    assert type(step) is pm.NUTS
    assert step.target_accept == 0.9
    assert "auto takes PyMC's NUTS on all rows. So few rows (500) take" in said()[0]


@pytest.mark.costly
def test_few_rows_are_subsampled_without_a_fallback():
    assert isinstance(pms.auto(model=regression(n=500)), pms.ScalableMH)


@pytest.mark.costly
def test_a_model_that_is_refused_is_for_nuts_or_an_error(said):
    with pytest.raises(pms.TallModelError, match="kink"):
        pms.auto(model=kinks())
    assert type(pms.auto(model=kinks(), fallback=True)) is pm.NUTS
    assert any("NUTS on all rows. HMCECS refuses the model. " in message for message in said())


@pytest.mark.parametrize("n", [500, 5_000])
def test_jumps_are_not_left_to_nuts(n):
    """It does not see them, and samples a wrong posterior."""
    model = jumps(n)
    for fallback in (False, True):
        with pytest.raises(pms.TallModelError, match="has a step there"):
            pms.auto(model=model, fallback=fallback)
    refused = pytest.raises(pms.TallModelError, match="has a step there")
    with model, pms.subsampling(fallback=True), refused:
        pm.sample(progressbar=False)


def observed(mean):
    """A model of 300 rows, and whether it rounds or chooses by a parameter."""
    x = np.random.default_rng(3).normal(size=300)
    with pm.Model() as model:
        mean(x)
    return few_rows.written_with_jumps(model)


def test_what_rounds_or_chooses_by_a_parameter():
    """Not by data, and not in PyMC's own distributions."""
    weights, y = np.ones(2) / 2, np.zeros(300)
    ordered = pm.distributions.transforms.ordered
    for mean in (
        lambda x: pm.Normal("y", pt.switch(x > pm.Normal("c"), 1.0, 0.0), 1, observed=y),
        lambda x: pm.Normal("y", pt.floor(pm.Normal("c")), 1, observed=y),
        lambda x: pm.Normal("y", (x > pm.Normal("c")) * 1.0, 1, observed=y),
        lambda x: pm.Normal("y", pt.searchsorted(pm.Normal("c", shape=2), x), 1, observed=y),
        lambda x: pm.Normal("y", ifelse(pm.Normal("c") > 0, 1.0, 0.0), 1, observed=y),
        lambda x: pm.Potential("y", -pt.switch(x > pm.Normal("c"), x, x**2)),
        lambda x: pm.CustomDist(
            "y", pm.Normal("c"), logp=lambda v, c: -pt.switch(v > c, v, v**2), observed=y
        ),
        lambda x: pm.CustomDist(
            "y",
            pm.Normal("c"),
            dist=lambda c, size: pm.Normal.dist(pt.round(c), 1, size=size),
            observed=y,
        ),
    ):
        assert observed(mean)
    for mean in (
        lambda x: pm.Normal("y", pt.switch(x > 0, pm.Normal("c"), 0.0), 1, observed=y),
        lambda x: pm.Normal("y", abs(pt.clip(pm.Normal("c") * x, -1, 1)), 1, observed=y),
        lambda x: pm.NormalMixture("y", weights, pm.Normal("m", shape=2), 1, observed=y),
        lambda x: pm.Mixture(
            "y", weights, pm.Poisson.dist(pm.HalfNormal("m", shape=2)), observed=y.astype(int)
        ),
        lambda x: pm.Censored("y", pm.Normal.dist(pm.Normal("c") * x, 1), -1, 1, observed=y),
        lambda x: pm.Truncated("y", pm.Normal.dist(pm.Normal("c") * x, 1), -1, 1, observed=y),
        lambda x: pm.OrderedLogistic(
            "y",
            pm.Normal("c") * x,
            pm.Normal("cut", shape=2, transform=ordered, initval=[0, 1]),
            observed=y.astype(int),
        ),
        lambda x: pm.CustomDist("y", pm.Normal("c"), logp=lambda v, c: -((v - c) ** 2), observed=y),
    ):
        assert not observed(mean)


@pytest.mark.costly
def test_what_may_jump_and_is_refused_for_another_reason_is_doubted(caplog):
    t = np.linspace(0, 1, 500)
    with pm.Model() as model:
        step = pm.Normal("a") * (t > pm.Uniform("tau", 0, 1))
        pm.Normal("y", pt.cumsum(step) / 500, 1, observed=t)
    assert type(pms.auto(model=model, fallback=True)) is pm.NUTS
    assert few_rows.DOUBT in caplog.messages
    assert few_rows.DOUBT in pms.advise(model).reason


@pytest.mark.costly
@pytest.mark.parametrize(("seconds", "kind"), [(5.0, "HMCECS"), (50.0, "NUTS")])
def test_most_rows_are_for_nuts_where_that_is_as_fast(seconds, kind, monkeypatch, said):
    found = nuts_instead.Comparison(0.006, seconds, 20.0, 8.0)
    monkeypatch.setattr(nuts_instead, "compare", lambda *_: found)
    monkeypatch.setattr(pms.HMCECS, "share", 0.6)
    monkeypatch.setattr(choosing, "few_rows", lambda *_: None)
    step = pms.auto(model=crowd(), fallback=True)
    assert type(step).__name__ == kind
    assert any("HMCECS would save nothing. An estimate reads 60%" in m for m in said()) == (
        kind == "NUTS"
    )


@pytest.mark.costly
@pytest.mark.parametrize(("gradient", "less"), [(1e-9, True), (1.0, False)])
def test_nuts_is_named_where_it_takes_less(gradient, less, monkeypatch, said):
    monkeypatch.setattr(choosing, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr("pymc_subsample.chain.nuts_trial.COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(
        "pymc_subsample.chain.nuts_trial.seconds_per_full_gradient", lambda *_: gradient
    )
    pms.auto(model=regression())
    assert ("1,000 draws take about" in said()[0]) == less


def test_discrete_variables_that_are_shared_are_left_to_others():
    with pm.Model() as model:
        a, k = pm.Normal("a"), pm.Poisson("k", 3)
        pm.Normal("y", a + k, 1, observed=np.random.default_rng(1).normal(size=300))
    assert [v.name for v in pms.auto(model=model, fallback=True).vars] == ["a"]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"fallback": 3}, TypeError, "fallback must be True or False"),
        ({"subsample_size": 100}, TypeError, r"one of HMCECS: step=pms\.HMCECS\(subsample_size="),
        ({"bound": "local"}, TypeError, r"one of ScalableMH: step=pms\.ScalableMH\(bound="),
        ({"tempreature": 2}, TypeError, "auto: got an unexpected keyword argument 'tempreature'"),
        ({"temperature": -1}, ValueError, "temperature must be"),
    ],
)
def test_bad_arguments(given, error, said, model):
    with pytest.raises(error, match=said):
        pms.auto(model=model, **given)


def test_no_model():
    with pytest.raises(TypeError, match="create auto inside `with model:`"):
        pms.auto()


# A panel may be sampled with the variables of its units too


def outcomes(units=300, each=5):
    """Binary outcomes of units, each with an effect of its own."""
    rng = np.random.default_rng(8)
    unit = np.repeat(np.arange(units), each)
    outcome = rng.random(units * each) < 1 / (1 + np.exp(-rng.normal(size=units)[unit]))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=units)
        pm.Bernoulli("y", logit_p=mu + tau * z[unit], observed=outcome)
    return model


def test_a_panel_takes_what_its_elements_take():
    """Rows' sigmoids and logarithms, and hardly anything of few rows."""
    few, many, more = (seconds_as_written(outcomes(n, 5)) for n in (3, 30_000, 60_000))
    assert COMPILE_SECONDS < few < COMPILE_SECONDS + SAVED_SECONDS
    assert more - few == pytest.approx(2 * (many - few), rel=1e-3)
    gradient = (many - few) / (2 * DRAWS * 25)
    assert 3 < gradient / (150_000 * 8e-9) < 4  # three functions, whose elements take 8 ns each


def test_a_small_panel_is_for_nuts_before_anything_is_set_up(monkeypatch, said):
    """A count by its parameters, of which a row reads few, would call it no small one."""
    monkeypatch.setattr(choosing, "HMCECS", None)
    for seconds in (SAVED_SECONDS + COMPILE_SECONDS, 1 + SAVED_SECONDS + COMPILE_SECONDS):
        monkeypatch.setattr(few_rows, "seconds_as_written", lambda *_, s=seconds: s)
        found = few_rows.few_rows(outcomes(), ["y"], None)
        assert (found is None) == (seconds > SAVED_SECONDS + COMPILE_SECONDS)
    monkeypatch.setattr(few_rows, "seconds_as_written", lambda *_: 8.0)
    assert type(pms.auto(model=outcomes(), fallback=True)) is pm.NUTS
    nuts = "nutpie" if find_spec("nutpie") else "pm.NUTS"
    assert f"So few rows (1,500) take {nuts} about 8 s, most of which is" in said()[0]


def test_what_pymc_has_no_gradient_of_takes_forever():
    with outcomes() as model:
        pm.Bernoulli("k", 0.5, shape=300)
    assert seconds_as_written(model) == np.inf


@pytest.mark.parametrize("units", [30, 3_000])
def test_what_has_no_density_is_refused_by_name(units):
    """Also where units may have effects of their own, of which another reader looks first."""
    with pm.Model():
        z, of = pm.Normal("z", shape=units), np.repeat(np.arange(units), 10)
        pm.CustomDist("y", z[of], random=np.random.normal, observed=np.zeros(10 * units))
        with pytest.raises(pms.TallModelError, match="PyMC knows no log density"):
            pms.auto()


@pytest.mark.costly
@pytest.mark.parametrize(("seconds", "said_so"), [(0.1, True), (1e6, False)])
def test_what_a_panel_takes_as_it_is_written_is_said(seconds, said_so, monkeypatch, said):
    monkeypatch.setattr(nuts_instead, "seconds_as_written", lambda *_: seconds)
    pms.auto(model=outcomes(1_000, 12))
    assert ("z sampled too, about 0.1 s" in "".join(said())) == said_so


@pytest.mark.costly
@pytest.mark.parametrize(("seconds", "faster"), [(0.1, False), (1e6, True)])
def test_who_reads_most_units_is_told_of_the_model_as_it_is(seconds, faster, monkeypatch):
    step = pms.HMCECS(model=outcomes())
    monkeypatch.setattr(nuts_instead, "seconds_as_written", lambda *_: seconds)
    monkeypatch.setattr(pms.HMCECS, "share", 0.6)
    found = nuts_instead.Comparison(0.006, 5.0, 40.0, 8.0)
    monkeypatch.setattr(nuts_instead, "compare", lambda *_: found)
    beside = nuts_instead.beside_all_rows(step)
    assert beside.as_good != faster
    assert ("HMCECS is the faster of the two" in beside.said) == faster
    assert ("z sampled too, take about 0.1 s: try that" in beside.said) != faster


# What NUTS on all rows takes is one projection


@pytest.mark.costly
def test_what_nuts_takes_is_said_once_and_for_all():
    step = pms.HMCECS(model=regression(n=3_000))
    full = projection_of(step)
    assert projection_of(step) is full
    own = Gradients(1.0, 1.0)
    while (found := full.projected(5.0, own)).bound:
        pass
    compared = nuts_instead.compare(step, (0.001, 3.0))
    assert compared.full_seconds == found.seconds(DRAWS)
    advice = pms.advise(step.model, samplers="HMCECS", seconds=20.0)
    # Another timing of a gradient.
    assert 0.4 < advice.full_seconds / compared.full_seconds < 2.5


@pytest.mark.costly
def test_advice_agrees_or_says_why_not(monkeypatch):
    model = regression(n=40_000)
    settings = {"effective_draws": 20_000, "seconds": 1e-6, "samplers": ["HMCECS", "ScalableMH"]}
    for ratio, taken in ((10.0, "HMCECS"), (0.1, "ScalableMH")):
        monkeypatch.setattr(trials, "time_of_exact_draws", lambda *_, ratio=ratio: ratio)
        advice = pms.advise(model, **settings)
        differs = f"pms.auto() takes {taken}: it counts what draws read, and runs no pilots."
        assert (differs in advice.reason) == (advice.recommendation != taken)


def test_moments_are_compared():
    """The comparison of this file finds a wrong posterior."""
    draws = np.random.default_rng(1).normal(0.3, 1, size=(2, 4000))
    with pytest.raises(AssertionError):
        assert_moments(draws, 0.0, 1.0)


@pytest.mark.costly
@pytest.mark.parametrize(("ratio", "taken"), [(0.0, "ScalableMH"), (10.0, "HMCECS")])
def test_transitions_are_compiled_of_the_step_that_is_taken(ratio, taken, monkeypatch):
    compiled = []
    for kind in (pms.HMCECS, pms.ScalableMH):
        record = replace(kind.method, compile=lambda step: compiled.append(type(step).__name__))
        monkeypatch.setattr(kind, "method", record)
    monkeypatch.setattr(choosing, "time_of_exact_draws", lambda *_: ratio)
    pms.auto(model=regression(n=2_000))
    assert compiled == [taken]
    pms.HMCECS(model=regression(n=2_000))
    assert compiled == [taken, "HMCECS"]


@pytest.mark.costly
def test_a_rewrite_that_fails_in_pytensor_is_not_shown(capfd, caplog):
    """Of a random walk of 300: the trial of NUTS goes on without it, and the walk is refused."""
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk(
            "walk", sigma=pm.HalfNormal("t"), init_dist=pm.Normal.dist(), steps=299
        )
        pm.Normal("y", walk, 1.0, observed=np.zeros(300))
    with pytest.raises(pms.TallModelError, match="Free variable 'walk'"):
        pms.auto(model=model)
    shown = "".join(capfd.readouterr()) + caplog.text
    assert "Rewrite failure" not in shown
