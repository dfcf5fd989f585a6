"""`pms.advise`: the step that pays, all rows where it does not, and never a failed pilot."""

import logging
import re
import warnings
from dataclasses import FrozenInstanceError, replace
from time import thread_time
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import jumps

import pymc_subsample as pms
from pymc_subsample.chain.nuts_cost import quiet
from pymc_subsample.chain.nuts_trial import CUT
from pymc_subsample.choice import few_rows
from pymc_subsample.results.advise import decision, trials
from pymc_subsample.results.advise.decision import AllRows
from pymc_subsample.results.advise.pilot import Pilot, run_pilot
from pymc_subsample.results.advise.result import Option, duration, percent, read
from pymc_subsample.samplers.registry import ADVISED

# A pilot of 150 draws, whatever the machine.
SHORT = {"seconds": 1e-6}
# So many that set-up, and how fast the machine is, do not matter.
MANY = 10**7
# So many that steps pay, and exact draws take hardly longer.
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
    """Rows see twelve parameters, each through a curve of its own: no few linear predictors."""
    X = np.random.default_rng(9).normal(size=(n, 12))
    y = np.tanh(0.2 * X).sum(axis=1) + np.random.default_rng(10).normal(size=n)
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=12)
        pm.Normal("y", pm.math.tanh(w * X).sum(axis=1), 1.0, observed=y)
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
    pms.advise(tall, samplers=["HMCECS", "ScalableMH"], **SHORT)  # compiles
    with pytest.MonkeyPatch.context() as patch:
        # The exact one, however long its pilot of some milliseconds is held up by other work.
        patch.setattr(decision, "exact_may_take", lambda seconds: 1e9)
        return pms.advise(tall, effective_draws=SOME, **SHORT)


def made(advice, model, monkeypatch):
    """The step that the advice's code hands to `pm.sample`."""
    taken = {}
    monkeypatch.setattr(pm, "sample", lambda **kwargs: taken.update(kwargs))
    with model:
        eval(advice.code, {"pm": pm, "pms": pms})
    return taken.get("step")


@pytest.mark.costly(cases=0)
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


@pytest.mark.costly(cases=0)
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


@pytest.mark.slow
def test_too_many_parameters_for_the_rows_are_not_for_the_exact_step():
    """Its set-up takes fifty times as long, for little: worth a trial in long runs alone."""
    model = crossed(n=12_000, levels=400)
    advice = pms.advise(model, effective_draws=MANY, **SHORT)
    assert advice.tried == "HMCECS"
    assert advice.recommendation != "ScalableMH"
    exact = {o.sampler: o for o in advice.options}["ScalableMH"]
    assert exact.status == "untried"
    assert "would accept only about" in exact.note


def wages(n=200_000):
    """Predictors in their own units: bounds for the exact step take longer than all else."""
    rng = np.random.default_rng(1)
    age, school = rng.integers(18, 65, n).astype(float), rng.integers(8, 21, n).astype(float)
    region = rng.integers(0, 10, n)
    y = 0.5 + 0.08 * school + 0.04 * age - 0.0004 * age**2 + rng.normal(0, 0.5, n)
    with pm.Model() as model:
        effect = pm.math.concatenate([[0.0], pm.Normal("effect", 0, 1, shape=9)])
        b = pm.Normal("b", 0, 1, shape=3)
        mu = pm.Normal("a", 0, 5) + b[0] * school + b[1] * age + b[2] * age**2 + effect[region]
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=y)
    return model


@pytest.mark.slow
def test_both_steps_are_compared_by_their_own_set_ups():
    """Twice as long for the exact one in trials, and 1.5 times or a second more is allowed."""
    model = wages()
    pms.advise(model, samplers=["HMCECS", "ScalableMH"], **SHORT)  # compiles
    # Draws of a trial that NUTS could be judged by: a bound of its first steps is at the edge of
    # what pays on a fast machine.
    advice = pms.advise(model, samplers=["HMCECS", "ScalableMH"])
    option = {o.sampler: o for o in advice.options}
    perturbed, exact = (option[name].seconds for name in ("HMCECS", "ScalableMH"))
    free = exact <= decision.exact_may_take(perturbed)
    assert option["HMCECS"].status == option["ScalableMH"].status == "passed"
    assert advice.recommendation == ("ScalableMH" if free else "HMCECS")
    # The second took its reference from the first, and its set-up is that of a run on its own.
    with model, quiet():
        start = thread_time()
        pms.ScalableMH()
        alone = thread_time() - start
    assert option["ScalableMH"].setup_seconds > 0.6 * alone


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("name", "longer"), [("HMCECS", 0.0), ("ScalableMH", 1e9)])
def test_a_step_of_a_shared_reference_is_handed_over(tall, name, longer, monkeypatch):
    monkeypatch.setattr(decision, "exact_may_take", lambda seconds: longer)
    advice = pms.advise(tall, samplers=["HMCECS", "ScalableMH"], effective_draws=SOME, **SHORT)
    assert advice.step.search is not None  # as a new one would have looked for other modes
    assert type(advice.step).__name__ == advice.recommendation == name
    assert advice.step.n_rows == 40_000


@pytest.mark.costly(cases=0)
def test_what_the_set_up_said_is_said_in_the_run(tall, caplog):
    caplog.set_level(logging.INFO)
    with tall:
        pms.ScalableMH()
    expected = [r.getMessage() for r in caplog.records if "; a proposal reads" in r.getMessage()]
    assert len(expected) == 1
    caplog.clear()
    advice = pms.advise(tall, samplers="ScalableMH", effective_draws=SOME, **SHORT)
    assert "; a proposal reads" not in caplog.text
    for times in (1, 0):  # once, in the first run
        caplog.clear()
        with tall:
            pm.sample(
                20, tune=20, step=advice.step, chains=2, cores=1, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
        said = [r for r in caplog.records if "; a proposal reads" in r.getMessage()]
        assert [r.getMessage() for r in said] == expected * times
        assert all(r.levelno == logging.INFO for r in said)


@pytest.mark.costly(cases=0)
def test_what_the_set_up_warned_of_is_warned_of_in_the_run():
    x = np.random.default_rng(7).normal(size=200_000)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Potential("whole", -1e-12 * (b * x).sum() ** 2)
        pm.Normal("y", pm.Deterministic("mu", b * x), 1, observed=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advice = pms.advise(model, samplers="HMCECS", effective_draws=MANY, **SHORT)
    with model, pytest.warns(UserWarning, match="one element per row") as caught:
        pm.sample(
            2, tune=2, step=advice.step, chains=1, cores=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert any("'whole' is not subsampled" in str(w.message) for w in caught)


@pytest.mark.costly
def test_the_answer_is_one_line(advice):
    assert advice.answer == repr(advice).split("\n")[0]
    option = {o.sampler: o for o in advice.options}
    over, bound = ("over ", " (a lower bound)") if advice.full_bound else ("", "")
    assert advice.answer == (
        f"use ScalableMH: exact, {read('ScalableMH', advice.subsample_size)}, 10,000 effective "
        f"draws in {duration(advice.seconds)}; "
        f"{advice.against} {over}{duration(advice.full_seconds)}{bound}"
    )
    assert option["ScalableMH"].seconds == advice.seconds
    assert option[advice.against].seconds == advice.full_seconds
    assert set(option) == {*ADVISED, advice.against}


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
        (np.nan, ""),
    ],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("sampler", "rows", "said"),
    [
        ("ScalableMH", 0.0367, "1 row per 27 draws"),
        ("ScalableMH", 0.00778, "1 row per 130 draws"),
        ("ScalableMH", 0.9, "1 row per draw"),
        ("ScalableMH", 1.4, "1 row per draw"),
        ("ScalableMH", 0.0, "no rows per draw"),
        ("ScalableMH", 14.04, "14 rows per draw"),
        ("HMCECS", 1_234.0, "1,234 rows per estimate"),
        ("HMCECS", np.nan, ""),
    ],
)
def test_rows_are_said_as_people_read_them(sampler, rows, said):
    assert read(sampler, rows) == said


def test_shares_are_said_as_people_read_them():
    said = [percent(share) for share in (3.9e-8, 0.005, 0.5, 0.0, np.nan)]
    assert said == ["under 0.01%", "0.5%", "50%", "0%", ""]


def test_what_is_not_known_is_left_out():
    """Neither nan nor a word that stands for it."""
    refused = Option("HMCECS", False, "refused", note="It has a kink.")
    advice = pms.Advice(
        "SGLD", "It pays.", "", exact=False, tried="SGLD", against="nutpie", rows=9, passed=True,
        loglik_variance=np.inf, options=(Option("SGLD", False, "passed", 3.0), refused),
    )  # fmt: skip
    assert advice.answer == "use SGLD: perturbed, 1,000 effective draws in 3 s"
    for text in (repr(advice), advice._repr_html_(), repr(advice.options)):
        for word in ("nan", "none", "never"):
            assert word not in text.lower()
    assert repr(refused) == (
        "Option(sampler='HMCECS', exact=False, status='refused', at_least=False, "
        "note='It has a kink.')"
    )
    assert re.search("predicted variance +infinite", repr(advice))


@pytest.mark.costly(cases=0)
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


@pytest.mark.costly(cases=0)
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


@pytest.mark.costly(cases=0)
def test_a_pilot_takes_a_tenth_of_its_run(tall):
    """By the time of the processor; and half a second, that nobody minds."""
    pms.advise(tall)  # compiles
    start = thread_time()
    advice = pms.advise(tall)
    took = thread_time() - start
    assert advice.step is not None
    tried = [o for o in advice.options if o.status in ("passed", "failed")]
    assert took < sum(o.setup_seconds + 0.1 * o.seconds + 0.5 for o in tried)
    start = thread_time()
    alone = pms.advise(tall, samplers="ScalableMH")
    # Its set-up is not lost.
    assert thread_time() - start - alone.setup_seconds < 0.1 * alone.seconds + 0.5


@pytest.mark.costly
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


@pytest.mark.costly(cases=0)
def test_rows_on_disk(tmp_path, monkeypatch):
    rng = np.random.default_rng(11)
    x = rng.normal(size=20_000)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x))).astype(float)
    data = pms.Rows.from_blocks([{"x": x, "y": y}], cache=tmp_path / "rows")
    some = data.sample(500)
    with pm.Model() as model:
        pm.Bernoulli("z", logit_p=pm.Normal("b") * pm.Data("x", some["x"]),
                     observed=pm.Data("y", some["y"]))  # fmt: skip
    advice = pms.advise(model, data=data, samplers="ScalableMH", effective_draws=SOME, **SHORT)
    assert advice.rows == 20_000
    assert advice.code == f"pm.sample(step=pms.ScalableMH(data=pms.Rows({str(data.path)!r})))"
    assert advice.step.n_rows == 20_000
    assert made(advice, model, monkeypatch).n_rows == 20_000  # as printed, whatever is called rows


@pytest.mark.parametrize("names", [{"a": "x", "b": ["x", "y"]}, {"not a word": "y", "if": "x"}])
def test_rows_that_were_selected_are_selected_in_the_code(tmp_path, names):
    x, y = np.arange(10.0), np.arange(10)
    rows = pms.Rows.from_blocks([{"x": x, "y": y}], cache=tmp_path / "r").select(**names)
    line = decision.code("HMCECS", {"data": rows, "dim": "row"})
    inside = line.removeprefix("pm.sample(step=pms.HMCECS(data=").removesuffix(", dim='row'))")
    found = eval(inside, {"pms": pms})
    assert found.names == rows.names
    for name in names:
        np.testing.assert_array_equal(found.column(name)[:5], rows.column(name)[:5])


@pytest.mark.costly
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


@pytest.mark.costly(cases=0)
def test_pilot_is_silent_and_repeatable(tall, caplog):
    caplog.set_level(logging.DEBUG)
    level = logging.getLogger("pymc").level
    one = {"samplers": "ScalableMH", "effective_draws": SOME} | SHORT  # whatever the times
    advice = pms.advise(tall, **one)
    with tall:
        again = pms.advise(**one)
    assert not [r for r in caplog.records if r.name.startswith("pymc")]
    assert logging.getLogger("pymc").level == level
    assert again.ess_per_draw == advice.ess_per_draw
    other = pms.advise(tall, random_seed=5, **one)
    assert other.ess_per_draw != advice.ess_per_draw


def test_arguments_are_in_the_code(tall):
    given = {"likelihood": ["y"], "dim": "row", "samplers": "ScalableMH"}
    advice = pms.advise(tall, effective_draws=SOME, **given, **SHORT)
    assert advice.code == "pm.sample(step=pms.ScalableMH(likelihood=['y'], dim='row'))"


@pytest.mark.costly
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


def decided(given, found, full_ess_per_second=1e-3, full_fixed=1e4, bound=""):
    full = AllRows("nutpie", ("nutpie", "pm.sample()"), full_ess_per_second, full_fixed, bound)
    return decision.compared(given, found, {}, 1.0, full)


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
    return decided(given, found, 1000 / full_seconds, 0.0)


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


def test_set_ups_count():
    """Draws that take as long, after a set-up of 12 s in the place of 2 s."""
    exact, perturbed = trial("ScalableMH", 9.0), trial("HMCECS", 9.0)
    longer = replace(exact, seconds=19.0, setup_seconds=12.0)
    assert decision.preferred([perturbed, exact]).tried == "ScalableMH"
    assert decision.preferred([perturbed, longer]).tried == "HMCECS"


@pytest.mark.parametrize(("full", "name"), [(45.0, "nutpie"), (55.0, "HMCECS"), (70.0, "HMCECS")])
def test_a_recommendation_that_rests_on_a_bound_says_so(full, name):
    """Saving 10 s of it is enough, since it errs to one side; 40 s are what the step takes."""
    found = Pilot(0.5, 0.01, 9.0, 100.0, 0.01, 4.0, ())
    given = pms.Advice("", "", "", tried="HMCECS")
    advice = decided(given, found, 1000 / (full - 5), 5.0, CUT)
    assert advice.seconds == pytest.approx(40)
    assert advice.recommendation == name
    assert f"over {duration(full)} with nutpie" in advice.reason
    assert f"That is a lower bound: {CUT}." in advice.reason
    assert "fast enough" not in advice.reason
    shown = trials.Trials(given_model(), {}, advice, 1.0, 0)
    shown.found = [advice]
    answer = shown._with_options(advice).answer
    assert f"{duration(full)} (a lower bound)" in answer
    assert f"over {duration(full)}" in answer


def given_model():
    with pm.Model() as model:
        pm.Normal("a")
    return model


@pytest.mark.parametrize(
    ("setup", "seconds", "failed", "full_seconds", "parameters", "why"),
    [
        (1.0, 30.0, (), 1e4, 5, ""),  # a set-up of about 2 s, and 45 s are allowed
        (1.0, 1.1, (), 1e4, 5, ""),  # 2 s, and 2.1 s
        (3.0, 3.1, (), 1e4, 5, ""),  # 6 s, and 6.1 s
        (9.0, 9.2, (), 1e4, 5, "set-up"),  # 18 s, and 13.8 s
        (9.0, 9.2, ("variance 4",), 1e4, 5, ""),
        (1.0, 30.0, (), 10.4, 5, "no step"),  # where not even draws that cost nothing would pay
        (1.0, 30.0, ("variance 4",), 10.4, 5, "no step"),
        (1.0, 400.0, (), 1e4, 300, "parameters"),  # 50 s, and a tenth of 400 s
        (1.0, 600.0, (), 1e4, 300, ""),
        (1.0, 400.0, ("variance 4",), 1e4, 300, ""),
    ],
)
def test_the_exact_step_is_tried_where_it_could_be_the_one(
    setup, seconds, failed, full_seconds, parameters, why
):
    tried = trials.Trials(None, {}, pms.Advice("", "", ""), 1.0, 0)
    tried._first = SimpleNamespace(active=np.arange(parameters))
    tried._setup = setup
    tried.found = [replace(trial("HMCECS", seconds, failed, full_seconds), rows=100_000)]
    assert why in tried._unworthy("ScalableMH")
    assert bool(why) == bool(tried._unworthy("ScalableMH"))


def test_pays_from_never_always_and_in_between():
    assert decision._pays_from(10.0, 1.0, 5.0, 1.0) == np.inf
    assert decision._pays_from(5.0, 2.0, 10.0, 1.0) == 0
    assert decision._pays_from(10.0, 2.0, 5.0, 1.0) == pytest.approx(10.0)


@pytest.mark.costly(cases=0)
def test_kinks_are_for_all_rows():
    advice = pms.advise(laplace(), **SHORT)
    assert advice.recommendation in ALL_ROWS
    assert "not smooth" in advice.reason
    assert np.isnan(advice.ess_per_second)
    assert advice.parameters == 1
    assert "nan" not in repr(advice)


@pytest.mark.costly(cases=0)
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


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("n", "samplers"),
    [
        (500, "auto"),
        (20_000, "auto"),
        (20_000, ["HMCECS", "MinibatchBarkerMH"]),
        (20_000, "MinibatchBarkerMH"),
    ],
)
def test_jumps_are_never_for_nuts(n, samplers):
    """It would be called exact, and does not see them."""
    advice = pms.advise(jumps(n), samplers=samplers, effective_draws=MANY, **SHORT)
    assert advice.tried == "MinibatchBarkerMH"
    assert advice.against == "pm.Metropolis"
    assert advice.recommendation in {"MinibatchBarkerMH", "pm.Metropolis"}
    assert "pm.sample(step=pm" in advice.code


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("samplers", ["HMCECS", "FireflyMC"])
def test_jumps_that_all_refuse_are_for_metropolis(samplers):
    advice = pms.advise(jumps(20_000), samplers=samplers, **SHORT)
    assert advice.recommendation == "pm.Metropolis"
    assert advice.code == "pm.sample(step=pm.Metropolis())"


def test_jumps_beside_a_discrete_variable_are_doubted():
    """PyMC's own choice of steps has NUTS for the others."""
    with jumps(500):
        pm.Poisson("z", pm.Poisson("k", 2) + 1, observed=np.ones(500, dtype=int))
        assert few_rows.DOUBT in pms.advise().reason


@pytest.mark.costly
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


@pytest.mark.costly
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
        ({"likelihood": ["z"]}, "'z'"),
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


@pytest.mark.costly
def test_effective_draws_of_a_panel_are_those_of_what_is_sampled():
    """The smallest of a thousand units' effects, in a short pilot, would be of noise alone."""
    rng = np.random.default_rng(2)
    unit = np.repeat(np.arange(1_000), 10)
    y = rng.random(len(unit)) < 1 / (1 + np.exp(-rng.normal(size=1_000)[unit]))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=1_000)
        pm.Bernoulli("y", logit_p=mu + tau * z[unit], observed=y)
    advice = pms.advise(model, samplers="HMCECS")
    assert advice.of == "units"
    # Trajectories of a length for independent draws: over a third of them, by 90 draws.
    assert advice.ess_per_draw > 1 / 3
