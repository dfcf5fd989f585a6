"""`pms.advise`: the step that pays, all rows where it does not, and never a failed pilot."""

import logging
from dataclasses import FrozenInstanceError, replace
from time import thread_time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_subsample as pms
from pymc_subsample.advice import decision, trials
from pymc_subsample.advice.pilot import Pilot, run_pilot
from pymc_subsample.advice.result import duration, shown
from pymc_subsample.all_rows import nuts_gradients, quiet, smallest_ess

# A pilot of 150 draws, whatever the machine.
SHORT = {"seconds": 1e-6}
# So many that set-up, and how fast the machine is, do not matter.
MANY = 10**7
# So many that one step pays, and trying another takes too long beside its run.
SOME = 10_000
ALL_ROWS = {"nutpie", "pm.NUTS"}


def logistic(n, d=3, correlation=0.0):
    rng = np.random.default_rng(1)
    shared = np.sqrt(correlation) * rng.normal(size=(n, 1))
    X = shared + np.sqrt(1 - correlation) * rng.normal(size=(n, d))
    y = rng.random(n) < 1 / (1 + np.exp(-X @ np.full(d, 0.3)))
    with pm.Model(coords={"row": range(n)}) as model:
        beta = pm.Normal("beta", 0, 2, shape=d)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y, dims="row")
    return model


def crossed(n=3_000, levels=60):
    """Effects of many levels, for whose number to the power of four the rows are few."""
    rng = np.random.default_rng(8)
    i, j = rng.integers(0, levels, (2, n))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1, shape=levels), pm.Normal("b", 0, 1, shape=levels)
        pm.Bernoulli("y", logit_p=a[i] + b[j], observed=rng.random(n) < 0.3)
    return model


def curve(n=20_000):
    """Rows see parameters by 24 numbers each: no few linear predictors."""
    X, Z = np.random.default_rng(9).normal(size=(2, n, 12))
    y = ((1 + 0.2 * X - 0.1 * Z) ** 2).mean(axis=1) + np.random.default_rng(10).normal(size=n)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        pm.Normal("y", ((1 + a * X + b * Z) ** 2).mean(axis=1), 1.0, observed=y)
    return model


def laplace():
    x = np.random.default_rng(2).normal(size=2_000)
    with pm.Model() as model:
        pm.Laplace("y", pm.Normal("b") * x, 1.0, observed=x)
    return model


def bessel():
    """PyTensor has no gradient of Bessel functions in their order."""
    rng = np.random.default_rng(3)
    x = rng.uniform(1, 3, 3_000)
    with pm.Model() as model:
        a = pm.Uniform("a", 0, 3)
        pm.Normal("y", pt.jv(a, x), 0.3, observed=0.5 + rng.normal(0, 0.3, 3_000))
    return model


def spins(scale=0.02, size=12, n=6_000):
    rng = np.random.default_rng(4)
    i, j = rng.integers(0, size, n), rng.integers(0, size, n)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=size)
        pm.Potential("pairs", rng.normal(0, scale, n) * (2 * x[i] - 1) * (2 * x[j] - 1))
    return model


@pytest.fixture(scope="session")
def tall():
    return logistic(40_000)


@pytest.fixture(scope="session")
def advice(tall):
    return pms.advise(tall, effective_draws=SOME, **SHORT)


def made(advice, model, monkeypatch):
    """The step that the advice's code hands to `pm.sample`."""
    taken = {}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: taken.update(kwargs))
    with model:
        eval(advice.code, {"pm": pm, "pms": pms})
    return taken.get("step")


def test_tall_smooth_data_are_for_the_exact_step(tall, advice, monkeypatch):
    assert advice.recommendation == advice.tried == "ScalableMH"
    assert advice.exact
    assert advice.passed
    step = made(advice, tall, monkeypatch)
    assert isinstance(step, pms.ScalableMH)
    assert (advice.rows, advice.parameters) == (40_000, 3)
    # 90 draws, of which each reads rows of a Poisson number.
    expected = step.bounds.per_decision
    assert abs(advice.subsample_size - expected) < 5 * np.sqrt(expected / 90)
    assert advice.data_share == pytest.approx(advice.subsample_size / 40_000)
    assert np.isnan(advice.perturbation)
    assert advice.ratio > 3  # a draw reads few of the 40,000 rows
    assert "ScalableMH is exact and reads" in advice.reason


def test_rows_of_many_predictors_are_for_hmcecs(monkeypatch):
    model = curve()
    advice = pms.advise(model, effective_draws=MANY, **SHORT)
    assert advice.recommendation == advice.tried == "HMCECS"
    assert not advice.exact
    step = made(advice, model, monkeypatch)
    assert advice.subsample_size == step.subsample_size
    assert advice.data_share == pytest.approx(step.subsample_size / 20_000)
    assert advice.loglik_variance == pytest.approx(
        np.max(step.moments.variance(step.subsample_size))
    )
    assert 0 < advice.perturbation < 0.05
    assert "HMCECS is perturbed and reads" in advice.reason
    assert "at most ten linear predictors" in advice.reason


def test_too_many_parameters_for_the_rows_are_not_for_the_exact_step():
    advice = pms.advise(crossed(n=12_000, levels=400), effective_draws=MANY, **SHORT)
    assert advice.recommendation != "ScalableMH"
    assert advice.tried == "HMCECS"
    assert "ScalableMH, which is exact, would accept only about" in advice.reason


def test_what_is_good_enough_is_not_tried_twice(tall, monkeypatch):
    """A thousand effective draws take the exact step less time than setting up another."""
    monkeypatch.setitem(trials.AVAILABLE, "HMCECS", type("Untried", (), {}))
    advice = pms.advise(tall, seconds=1.0)
    assert advice.tried == "ScalableMH"
    assert "HMCECS" not in advice.reason


def test_the_answer_is_one_line(advice):
    assert advice.answer == repr(advice).split("\n")[0]
    option = {o.sampler: o for o in advice.options}
    over = "over " if advice.full_at_least else ""
    assert advice.answer == (
        f"use ScalableMH: exact, {shown(advice.subsample_size)} rows per draw, 10,000 effective "
        f"draws in {duration(advice.seconds)}; "
        f"{advice.against} {over}{duration(advice.full_seconds)}"
    )
    assert option["ScalableMH"].seconds == advice.seconds
    assert option[advice.against].seconds == advice.full_seconds
    assert set(option) == {*trials.AVAILABLE, advice.against}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0123, "0.012 s"),
        (3.14, "3.1 s"),
        (119.4, "120 s"),
        (125.0, "2.1 min"),
        (32_400.0, "9 h"),
        (1e6, "12 days"),
        (1e10, "120,000 days"),
        (np.inf, "forever"),
    ],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_the_step_goes_on_as_a_new_one_would(tall):
    advice = pms.advise(tall, **SHORT)
    draws = []
    for step in (advice.step, None):
        with tall, quiet():
            found = pm.sample(
                50, tune=50, step=step or pms.ScalableMH(), chains=2, cores=1, random_seed=3,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
        draws.append(found["posterior"]["beta"].values)
    np.testing.assert_array_equal(*draws)


def test_steps_that_are_named_are_tried(tall):
    names = ["FireflyMC", "SGHMC"]
    advice = pms.advise(tall, samplers=names, effective_draws=MANY, **SHORT)
    status = {o.sampler: o.status for o in advice.options}
    assert {name for name in status if status[name] in {"passed", "failed"}} == set(names)
    assert status["ScalableMH"] == "untried"
    assert advice.tried in names
    for option in advice.options:
        assert option.exact == (option.sampler not in {
            "HMCECS", "SGHMC", "SGLD", "MinibatchBarkerMH", "AusterityMH", "ConfidenceMH",
        })  # fmt: skip
    # The second took its reference from the first.
    if advice.recommendation == "SGHMC":
        assert advice.step is None


def test_a_pilot_takes_a_tenth_of_its_run(tall):
    """By the time of the processor; beside set-ups of 2 s and more, of which none is lost."""
    pms.advise(tall)  # compiles
    start = thread_time()
    advice = pms.advise(tall)
    took = thread_time() - start
    assert advice.step is not None
    made = advice.setup_seconds
    assert took - made < 0.1 * advice.seconds + 0.5


def test_few_rows_are_not_tried(monkeypatch):
    monkeypatch.setattr(trials, "made", None)
    advice = pms.advise(logistic(800))
    assert advice.recommendation in ALL_ROWS
    assert "fast enough" in advice.reason
    assert advice.rows == 800
    assert 5 < advice.full_seconds < 15
    assert advice.step is None
    monkeypatch.undo()
    assert pms.advise(logistic(800), samplers="ScalableMH", **SHORT).tried == "ScalableMH"


def test_rows_on_disk(tmp_path):
    rng = np.random.default_rng(11)
    x = rng.normal(size=20_000)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x))).astype(float)
    data = pms.Rows.from_blocks([{"x": x, "y": y}], cache=tmp_path / "rows")
    some = data.sample(500)
    with pm.Model() as model:
        pm.Bernoulli("z", logit_p=pm.Normal("b") * pm.Data("x", some["x"]),
                     observed=pm.Data("y", some["y"]))  # fmt: skip
    advice = pms.advise(model, data=data, effective_draws=SOME, **SHORT)
    assert advice.rows == 20_000
    assert advice.code == "pm.sample(step=pms.ScalableMH(data=rows))"
    assert advice.step.n_rows == 20_000


def test_numbers_fit_each_other(advice):
    assert advice.ratio == pytest.approx(advice.ess_per_second / advice.full_ess_per_second)
    assert advice.setup_seconds < advice.seconds < advice.full_seconds
    fixed = advice.seconds - SOME / advice.ess_per_second
    full_fixed = advice.full_seconds - SOME / advice.full_ess_per_second
    n = advice.pays_from
    if n > 0:
        assert fixed + n / advice.ess_per_second == pytest.approx(
            full_fixed + n / advice.full_ess_per_second, rel=1e-3
        )
    else:
        assert fixed <= full_fixed
    with pytest.raises(FrozenInstanceError):
        advice.ratio = 1.0


def test_small_data_are_for_all_rows():
    advice = pms.advise(logistic(300), **SHORT)
    assert advice.recommendation in ALL_ROWS
    assert "fast enough" in advice.reason
    assert advice.full_seconds < 20


def test_pilot_is_silent_and_repeatable(tall, advice, caplog):
    caplog.set_level(logging.DEBUG)
    level = logging.getLogger("pymc").level
    with tall:
        again = pms.advise(effective_draws=SOME, **SHORT)
    assert not [r for r in caplog.records if r.name.startswith("pymc")]
    assert logging.getLogger("pymc").level == level
    assert again.ess_per_draw == advice.ess_per_draw
    other = pms.advise(tall, effective_draws=SOME, random_seed=5, **SHORT)
    assert other.ess_per_draw != advice.ess_per_draw


def test_arguments_are_in_the_code(tall):
    advice = pms.advise(tall, observed=["y"], dim="row", effective_draws=SOME, **SHORT)
    assert advice.code == "pm.sample(step=pms.ScalableMH(observed=['y'], dim='row'))"


def test_failed_pilots_are_not_recommended():
    model = logistic(5_000)
    with model, quiet():
        step = pms.HMCECS(subsample_size=10, control_variate_order=0)
    found = run_pilot(model, step, 1e-6, 0)
    assert any("variance of the estimate" in text for text in found.failed)
    given = pms.Advice("", "", "", tried="HMCECS", against="nutpie", rows=5_000)
    advised = decided(given, found)
    assert advised.recommendation == "nutpie"
    assert "failed its own checks" in advised.reason
    assert "variance of the estimate" in advised.reason
    assert decided(given, replace(found, failed=())).recommendation == "HMCECS"


def decided(given, found, full_ess_per_second=1e-3, full_fixed=1e4):
    return decision.compared(
        given, found, {}, 1.0, full_ess_per_second=full_ess_per_second, full_fixed=full_fixed,
        instead=("nutpie", "pm.sample()"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "share", "name", "words"),
    [
        (100.0, 0.01, "HMCECS", "passed its checks"),
        (70.0, 0.01, "nutpie", "saves too little"),
        (70.0, 0.3, "nutpie", "30% of the rows saves too little"),
        (55.0, 0.01, "nutpie", "saves too little"),
        (15.0, 0.01, "nutpie", "fast enough"),
    ],
)
def test_all_rows_unless_half_the_time_is_saved(seconds, share, name, words):
    # 1,000 tuning draws and 1,000 effective ones of 10 ms each, plus a set-up of 20 s.
    found = Pilot(0.5, 0.01, 19.0, 100.0, share, 4.0, ())
    given = pms.Advice("", "", "", tried="HMCECS", against="nutpie")
    advice = decided(given, found, full_ess_per_second=1000 / (seconds - 5), full_fixed=5.0)
    assert advice.seconds == pytest.approx(20 + 10 + 20)
    assert advice.full_seconds == pytest.approx(seconds)
    assert advice.recommendation == name
    assert words in advice.reason


def trial(name, seconds, failed=(), full_seconds=1e4):
    """An advice about a step that takes so long for its draws, after a set-up of 2 s."""
    found = Pilot(1.0, (seconds - 2) / 2000, 1.0, 5.0, 0.01, 4.0, failed)
    given = pms.Advice("", "", "", tried=name, against="nutpie")
    return decided(given, found, full_ess_per_second=1000 / full_seconds, full_fixed=0.0)


@pytest.mark.parametrize(
    ("seconds", "failed", "other", "other_failed", "name"),
    [
        (14.0, (), 10.0, (), "ScalableMH"),
        (16.0, (), 10.0, (), "HMCECS"),
        (5.0, (), 10.0, (), "ScalableMH"),
        (5.0, ("stay 4",), 10.0, (), "HMCECS"),
        (90.0, (), 10.0, ("variance 4",), "ScalableMH"),
        (9_000.0, (), 10.0, (), "HMCECS"),
        (5.0, ("stay 4",), 10.0, ("variance 4",), "nutpie"),
    ],
)
def test_exact_draws_may_take_a_little_longer(seconds, failed, other, other_failed, name):
    exact, perturbed = trial("ScalableMH", seconds, failed), trial("HMCECS", other, other_failed)
    advice = decision.preferred([exact, perturbed])
    assert advice.recommendation == name
    assert advice.exact == (name != "HMCECS")
    if name != "nutpie":
        assert advice.seconds == pytest.approx(seconds if name == "ScalableMH" else other)
    for left in {"ScalableMH", "HMCECS"} - {advice.tried}:
        assert left in advice.reason


def test_compiling_what_steps_share_is_not_held_against_the_first():
    exact, perturbed = trial("ScalableMH", 14.0), trial("HMCECS", 9.0)
    first = replace(exact, seconds=24.0, setup_seconds=12.0)
    assert decision.preferred([first, perturbed]).tried == "ScalableMH"
    assert decision.preferred([replace(exact, seconds=24.0), perturbed]).tried == "HMCECS"


@pytest.mark.parametrize(
    ("full_seconds", "failed", "hmcecs", "further"),
    [
        (1e4, (), True, False),  # 30 s of run, trying takes 1 + 1: a fifteenth
        (20.0, ("stay 4",), True, True),  # nothing passed, and 20 s of NUTS may be saved
        (10.4, ("stay 4",), False, False),  # where not even draws that cost nothing would pay
        (10.4, (), False, False),
    ],
)
def test_another_step_is_tried_where_it_may_save_something(full_seconds, failed, hmcecs, further):
    tried = trials.Trials(None, {}, pms.Advice("", "", ""), 1.0, 0)
    tried._setup = 1.0
    tried.found = [trial("ScalableMH", 30.0, failed, full_seconds)]
    assert tried._worth("HMCECS") == hmcecs
    tried._setup = 0.5
    assert tried._worth("SGHMC") == further


def test_pays_from_never_always_and_in_between():
    assert decision._pays_from(10.0, 1.0, 5.0, 1.0) == np.inf
    assert decision._pays_from(5.0, 2.0, 10.0, 1.0) == 0
    assert decision._pays_from(10.0, 2.0, 5.0, 1.0) == pytest.approx(10.0)


def test_kinks_are_for_all_rows():
    advice = pms.advise(laplace(), **SHORT)
    assert advice.recommendation in ALL_ROWS
    assert "not smooth" in advice.reason
    assert np.isnan(advice.ess_per_second)
    assert advice.parameters == 1
    assert "nan" not in repr(advice)


def test_without_gradients_metropolis_is_tried():
    advice = pms.advise(bessel(), effective_draws=MANY, **SHORT)
    assert advice.tried == "MinibatchBarkerMH"
    assert advice.recommendation in {"MinibatchBarkerMH", "pm.sample"}
    assert 0 < advice.data_share <= 1
    passed = "failed its own checks" not in advice.reason
    assert {o.sampler for o in advice.options if o.status == "refused"} >= {"ScalableMH", "HMCECS"}
    assert passed or advice.recommendation == "pm.sample"
    if advice.recommendation == "MinibatchBarkerMH":
        assert "control_variate_order=None" in advice.code


def test_binary_variables_are_for_gibbs(monkeypatch):
    model = spins()
    advice = pms.advise(model, effective_draws=MANY, **SHORT)
    assert advice.tried == "AusterityGibbs"
    assert advice.recommendation in {advice.tried, advice.against}
    assert advice.against == "AusterityGibbs(epsilon=0)"
    assert advice.exact == (advice.step.epsilon == 0)
    step = made(advice, model, monkeypatch)
    assert isinstance(step, pms.AusterityGibbs)
    assert (step.epsilon == 0) == ("epsilon=0" in advice.code)


def test_other_discrete_variables_are_for_pymc():
    with pm.Model() as model:
        k, mu = pm.Poisson("k", 2), pm.Normal("mu")
        pm.Normal("y", k + mu, 1, observed=np.zeros(200))
    advice = pms.advise(model, **SHORT)
    assert (advice.recommendation, advice.code) == ("pm.sample", "pm.sample()")
    assert "'k' is discrete" in advice.reason


def test_shows_what_it_found(advice):
    text, html = repr(advice), advice._repr_html_()
    assert text.startswith(f"{advice.answer}\n{advice.code}\n{advice.reason}\n")
    assert "40,000" in text
    assert "40,000" in html
    risky = replace(advice, reason="a < b & c")
    assert "a &lt; b &amp; c" in risky._repr_html_()


def test_deterministics_are_not_stored(monkeypatch):
    sample, stored = pm.sample, []

    def spied(*args, **kwargs):
        trace = sample(*args, **kwargs)
        stored.append(set(trace.varnames))
        return trace

    monkeypatch.setattr(pm, "sample", spied)
    x = np.random.default_rng(7).normal(size=2_000)
    with pm.Model() as model:
        mu = pm.Deterministic("mu", pm.Normal("b") * x)
        pm.Normal("y", mu, 1, observed=x)
    pms.advise(model, **SHORT)
    assert len(stored) == 1
    assert "b" in stored[0]
    assert "mu" not in stored[0]


# Errors


def test_no_model():
    with pytest.raises(TypeError, match="call advise inside"):
        pms.advise()


def test_nothing_observed():
    with pm.Model() as model:
        pm.Normal("mu")
    with pytest.raises(pms.TallModelError, match="no observed variable"):
        pms.advise(model)


def test_no_free_variable():
    with pm.Model() as model:
        pm.Normal("y", 0, 1, observed=np.zeros(100))
    with pytest.raises(ValueError, match="no free variable"):
        pms.advise(model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"observed": ["z"]}, "'z'"),
        ({"dim": "column"}, "dim='column'.*row"),
        ({"effective_draws": 0}, "effective_draws"),
        ({"seconds": -1.0}, "seconds"),
        ({"samplers": ["NUTS"]}, "samplers must be .*'NUTS'"),
        ({"samplers": []}, "samplers must be"),
    ],
)
def test_bad_arguments(tall, arguments, words):
    with pytest.raises(ValueError, match=words):
        pms.advise(tall, **arguments)


def test_impossible_data():
    """No sampler could start there, so none is recommended."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a")), observed=np.r_[-1, np.ones(200, int)])
    with pytest.raises(pms.TallModelError, match="'y'"):
        pms.advise(model)


# The projection


def gradients(model):
    with model, quiet():
        step = pms.HMCECS()
    return nuts_gradients(model, step, 60.0, 0)


def test_gradients_are_those_of_nuts_on_all_rows():
    """Both are estimates from a few hundred draws, hence a factor of 1.6."""
    model = logistic(2_000, correlation=0.9)
    per_effective, per_tuning, at_least = gradients(model)
    assert not at_least
    with model, quiet():
        trace = pm.sample(
            600, tune=400, chains=1, cores=1, nuts_sampler="pymc", progressbar=False,
            random_seed=2, return_inferencedata=False, compute_convergence_checks=False,
        )  # fmt: skip
    sizes = trace.get_sampler_stats("tree_size").sum()
    actual = sizes / smallest_ess(trace.get_values("beta"))
    assert actual / 1.6 < per_effective < 1.6 * actual
    assert per_tuning > 1
    assert gradients(logistic(2_000))[0] < per_effective


def test_out_of_time_the_projection_is_a_bound():
    """Not the leapfrog steps of another sampler, in coordinates of its own."""
    model = logistic(2_000, correlation=0.9)
    with model, quiet():
        step = pms.HMCECS()
    short, whole = (nuts_gradients(model, step, seconds, 0) for seconds in (1e-9, 60.0))
    assert short is not None
    assert whole is not None
    assert 1 <= short.per_effective_draw < whole.per_effective_draw
    assert short.at_least
    assert not whole.at_least


def test_expansion_that_is_no_density_projects_nothing(monkeypatch):
    model = logistic(2_000)
    with model, quiet():
        step = pms.HMCECS()
    at = step._prepared.reference
    bent = replace(step._prepared, reference=replace(at, curvature=-at.curvature))
    monkeypatch.setattr(step, "_prepared", bent)
    assert nuts_gradients(model, step, 20.0, 0) is None


def test_only_varying_parameters_count():
    draws = np.random.default_rng(6).normal(size=(500, 2))
    constant = np.zeros((500, 1))
    walk = np.cumsum(draws[:, :1], axis=0)
    assert smallest_ess(np.hstack([draws, constant])) > 250
    assert smallest_ess(np.hstack([draws, walk])) < 50
    assert smallest_ess(constant) == 1
