"""Minibatch Metropolis-Hastings as step methods: right answers, state, statistics, arguments."""

import copy
import logging

import chains
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import assert_moments, assert_same, chain, round_trip, run, sample
from exact_cases import centred_hierarchy, logistic, mean_of, normal, poisson
from scipy.stats import norm
from steps_of_all_kinds import TESTS

import pymc_subsample as pms
from pymc_subsample.chain import moves
from pymc_subsample.chain.proposals import AdaptiveMetropolis, Langevin, RandomWalk

SLOW = pytest.mark.slow
SMALL = {"batch_size": 50}
# Every family's warnings are tested elsewhere; small data make all of them read many rows.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


# Right answers


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("factory", "order"),
    [
        (logistic, 2),
        (normal, 1),
        (logistic, None),
        pytest.param(normal, 2, marks=SLOW),
        pytest.param(logistic, 1, marks=SLOW),
        pytest.param(normal, None, marks=SLOW),
    ],
)
@pytest.mark.parametrize("step", TESTS)
def test_posterior_is_the_exact_one(factory, order, step):
    """The tests' own errors are far below the noise of these many draws."""
    case = factory()
    kwargs = {"epsilon": 0.005} if step is pms.AusterityMH else {}
    step = step(model=case.model, control_variate_order=order, **SMALL, **kwargs)
    result = sample(step, case.model, 1500)
    case.assert_posterior(result)
    share = result.sample_stats["data_share"].mean()
    assert share < 1 or order is None


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "proposal",
    [
        pytest.param(RandomWalk(0.15), marks=SLOW),
        pytest.param(RandomWalk(1.5, covariance=[0.01, 0.01]), marks=SLOW),
        RandomWalk(1.2, covariance=[[0.01, 0.001], [0.001, 0.01]]),
        pytest.param(Langevin(batch_size=50), marks=SLOW),
        Langevin(step_size=0.8, batch_size=50, covariance=[0.01, 0.01]),
        "walk in a, independent in b",
    ],
    ids=["scale", "diagonal", "full", "langevin", "fixed langevin", "callable"],
)  # fmt: skip
def test_proposals(case, proposal):
    if isinstance(proposal, str):

        def given(point, rng):
            """A walk in a and an independence proposal in b."""
            assert set(point) == {"a", "b"}
            new = {"a": point["a"] + rng.normal(0, 0.12), "b": rng.normal(0.07, 0.12)}
            return new, norm.logpdf(point["b"], 0.07, 0.12) - norm.logpdf(new["b"], 0.07, 0.12)

        proposal = given
    step = pms.MinibatchBarkerMH(model=case.model, proposal=proposal, **SMALL)
    result = sample(step, case.model, 600, tune=300, chains=1 if callable(proposal) else 2)
    case.assert_posterior(result)
    if not isinstance(proposal, Langevin) or proposal.step_size:
        assert np.unique(result.sample_stats["scaling"]).size == 1


@pytest.mark.costly(cases=1)
def test_a_wrong_factor_is_noticed(case):
    """Proposals of a user that mostly go up, with and without their factor."""

    def proposal(mistake):
        def propose(point, rng):
            z = rng.normal()
            factor = 0.0 if mistake else 0.5 * (z**2 - (z + 1.6) ** 2)
            return {"a": point["a"] + 0.1 * (z + 0.8)}, factor

        return propose

    center, other = case.mean
    means = {}
    for mistake in (False, True):
        step = pms.AusterityMH(model=case.model, proposal=proposal(mistake), vars=["a"], **SMALL)
        step.setup_chain(np.random.default_rng(1), 0, 400)
        draws, _, _ = run(step, {"a": np.array(center), "b": np.array(other)}, 400)
        means[mistake] = draws[50:].mean()
    # The posterior sd is 0.08; 350 draws of ten transitions each are nearly independent.
    assert abs(means[False] - center) < 0.03
    assert means[True] > center + 0.06


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", TESTS)
def test_temperature_divides_the_log_likelihood(step):
    y = np.random.default_rng(4).normal(0.5, 1, 400)
    model = mean_of(y)
    for order in (1, None):
        kwargs = {"control_variate_order": order, "temperature": 10.0}
        result = sample(step(model=model, **SMALL, **kwargs), model, 800, tune=300)
        precision = 1 + 40
        assert_moments(result.posterior["a"], y.sum() / 10 / precision, precision**-0.5)


@pytest.mark.costly(cases=0)
def test_compound_with_another_step():
    case = normal()
    with case.model as model:
        steps = [pms.AusterityMH([model["a"]], **SMALL), pm.Metropolis([model["b"]])]
    result = sample(steps, model, 2500, tune=600)
    case.assert_posterior(result)


@pytest.mark.costly(cases=0)
def test_two_outcomes_share_their_rows():
    """A normal and a log-normal outcome with one mean: twice the data."""
    rng = np.random.default_rng(8)
    y, z = rng.normal(0.4, 1, 500), rng.normal(0.4, 1, 500)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        pm.Normal("y", a, 1.0, observed=y)
        pm.LogNormal("z", a, 1.0, observed=np.exp(z))
    for order in (2, None):
        step = pms.MinibatchBarkerMH(model=model, control_variate_order=order, **SMALL)
        assert set(step.likelihood) == {"y", "z"}
        result = sample(step, model, 800, tune=300)
        assert_moments(result.posterior["a"], (y.sum() + z.sum()) / 1001, 1001**-0.5)


@pytest.mark.costly(cases=0)
def test_transformed_variables_of_groups():
    """Conjugate probabilities of five groups."""
    rng = np.random.default_rng(9)
    y = (rng.random(500) < 0.3).astype(int)
    g = np.repeat(np.arange(5), 100)
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2, shape=5)
        pm.Bernoulli("y", p=p[g], observed=y)
    step = pms.AusterityMH(model=model, epsilon=0.005, **SMALL)
    result = sample(step, model, 2500, tune=800)
    ones = y.reshape(5, 100).sum(axis=1)
    for j, k in enumerate(ones):
        mean = (2 + k) / 104
        assert_moments(result.posterior["p"][..., j], mean, np.sqrt(mean * (1 - mean) / 105))


@SLOW
@pytest.mark.parametrize("step", TESTS)
def test_centred_hierarchy(step):
    groups, size = 6, 100
    model, means = centred_hierarchy(groups, size, tau=0.5)
    result = sample(step(model=model, transitions_per_draw=40, **SMALL), model, 5000, tune=1500)
    variance = 0.25 + 1 / size
    precision = 1 + groups / variance
    mean = means.sum() / variance / precision
    assert_moments(result.posterior["mu"], mean, precision**-0.5)
    shrink = 0.25 / variance
    for j in range(groups):
        expected = mean + shrink * (means[j] - mean)
        sd = np.sqrt(shrink / size + (1 - shrink) ** 2 / precision)
        assert_moments(result.posterior["a"][..., j], expected, sd)


@SLOW
@pytest.mark.parametrize("step", TESTS)
def test_poisson_regression(step):
    case = poisson()
    result = sample(step(model=case.model, **SMALL), case.model, 4000)
    case.assert_posterior(result)


# Chains and state


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=SLOW)])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: pms.MinibatchBarkerMH(model=model, proposal=Langevin(batch_size=20), **SMALL),
        lambda model: pms.ConfidenceMH(model=model, **SMALL),
    ],
    ids=["barker", "confidence"],
)
def test_chains_in_processes_equal_chains_in_sequence(model, make, mp_ctx):
    chains.assert_processes_agree(make(model), model, mp_ctx)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("step", TESTS)
def test_no_state_leaks_between_chains(model, step):
    chains.assert_chains_leave_no_state(lambda: step(model=model, **SMALL), model)


PROPOSALS = {
    "adaptive": AdaptiveMetropolis(),
    "langevin": Langevin(batch_size=20),
    "callable": lambda point, rng: ({"a": point["a"] + rng.normal(0, 0.1)}, 0.0),
}


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("step", "order", "proposal"),
    [
        (pms.MinibatchBarkerMH, 2, "adaptive"),
        (pms.AusterityMH, None, "langevin"),
        (pms.ConfidenceMH, 1, "callable"),
    ],
)
@pytest.mark.parametrize("at", [0, 11, 45, 55])
def test_state_round_trips_exactly(model, step, order, proposal, at):
    tune, draws = 50, 15
    kwargs = {"control_variate_order": order, "proposal": PROPOSALS[proposal], **SMALL}
    one, other = (step(model=model, **kwargs) for _ in range(2))
    round_trip(one, other, model, tune, draws, at)


def test_state_round_trips_without_a_chain(model):
    one, other = (
        pms.AusterityMH(model=model, control_variate_order=None, **SMALL) for _ in range(2)
    )
    *_, point = run(one, model.initial_point(), 3)
    saved, point = copy.deepcopy(one.sampling_state), copy.deepcopy(point)
    rest = run(one, point, 5)
    other.sampling_state = saved
    assert_same(rest, run(other, point, 5))


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "value"),
    [("control_variate_order", 1), ("temperature", 2.0), ("transitions_per_draw", 2),
     ("batch_size", 60)],
)  # fmt: skip
def test_a_state_of_another_configuration_is_refused(model, name, value):
    one = pms.AusterityMH(model=model, **SMALL)
    other = pms.AusterityMH(model=model, **{**SMALL, name: value})
    with pytest.raises(ValueError, match=name):
        other.sampling_state = one.sampling_state


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", TESTS)
def test_proposals_adapt_in_tuning_and_only_then(model, step):
    one = step(model=model, **SMALL)
    one.setup_chain(np.random.default_rng(3), 200, 200)
    _, before, point = run(one, model.initial_point(), 200)
    one.stop_tuning()
    factor, reference, scaling = one.tuning.factor.copy(), one.reference, moves.scaling(one)
    _, after, _ = run(one, point, 200)
    assert len({s["scaling"] for s in before}) > 100
    assert {s["scaling"] for s in after} == {scaling}
    np.testing.assert_array_equal(one.tuning.factor, factor)
    assert one.reference is reference
    assert [s["tune"] for s in before + after] == [True] * 200 + [False] * 200
    rate = np.mean([s["acceptance_rate"] for s in after])
    assert abs(rate - TESTS[step].rate) < 0.1


@pytest.mark.costly(cases=0)
def test_adaptation_finds_the_scale_from_afar(model):
    """A covariance a hundred times too wide or too narrow."""
    for variance in (1.0, 1e-4):
        proposal = AdaptiveMetropolis(covariance=[variance] * 2, target_accept=0.3)
        one = pms.AusterityMH(model=model, proposal=proposal, **SMALL)
        _, stats = chain(one, model.initial_point(), tune=400, draws=300)
        assert abs(np.mean([s["acceptance_rate"] for s in stats[400:]]) - 0.3) < 0.1


# Statistics


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [None, 1])
@pytest.mark.parametrize("proposal", ["adaptive", "langevin", "callable"])
@pytest.mark.parametrize("step", TESTS)
def test_statistics_describe_the_transitions(model, step, proposal, order):
    k, n = 4, 600
    kwargs = {"bound": "full"} if step is pms.ConfidenceMH else {}
    one = step(
        model=model, proposal=PROPOSALS[proposal], transitions_per_draw=k,
        control_variate_order=order, **SMALL, **kwargs,
    )  # fmt: skip
    draws, stats = chain(one, {"a": np.array(0.3), "b": np.array(0.8)}, tune=20, draws=20)
    per_row, e = 2 if order is None else 4, len(one.always)
    gradients = 20 * (6 if order else 4) + 4 * e if proposal == "langevin" else 0
    chains.assert_as_declared(one, stats)
    for stat in stats:
        drawn = stat["batch_size"] - e + (n - e if step is pms.ConfidenceMH else 0)
        expected = k * (drawn * per_row + 2 * e + gradients)
        np.testing.assert_allclose(stat["n_evaluations"], expected, rtol=1e-12)
        np.testing.assert_allclose(stat["data_share"], stat["batch_size"] / n)
        assert 50 + e <= stat["batch_size"] <= n
        assert 0 <= stat["acceptance_rate"] <= 1
        assert k * stat["accepted"] == round(k * stat["accepted"])
        assert stat["n_looks"] >= 1
        assert stat["loglik_ratio_variance"] >= 0
    stuck = np.all(draws[1:] == draws[:-1], axis=1)
    assert [s["accepted"] == 0 for s in stats[1:]] == stuck.tolist()
    error = [s[step.decision.error] for s in stats]
    assert 0 <= min(error) <= max(error) <= TESTS[step].limit


def test_result_is_what_pymc_expects(model):
    step = pms.MinibatchBarkerMH(model=model, **SMALL)
    result = pm.sample(
        30, tune=40, chains=2, cores=1, random_seed=1, step=step, model=model,
        discard_tuned_samples=False, progressbar=False,
    )  # fmt: skip
    assert result.posterior.sizes["draw"] == 30
    assert result.warmup_posterior.sizes["draw"] == 40
    assert {"accepted", "batch_size", "clt_error", "n_evaluations"} <= set(
        result.sample_stats.data_vars
    )
    with model:
        predictive = pm.sample_posterior_predictive(result, progressbar=False)
    assert predictive.posterior_predictive["y"].shape == (2, 30, 600)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("bar", ["combined+stats", "split+stats"])
def test_progress_bars(model, bar, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # in narrow terminals fewer columns are shown
    step = pms.AusterityMH(model=model, **SMALL)
    pm.sample(3, tune=3, chains=2, cores=1, step=step, model=model, progressbar=bar)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Acce", "Batch", "Data", "50"))


def test_some_variables_move_and_others_stay(model):
    step = pms.AusterityMH(vars=["b"], model=model, **SMALL)
    point = {"a": np.array(0.31), "b": np.array(0.7)}
    step.setup_chain(np.random.default_rng(1), 0, 10)
    draws, _, after = run(step, point, 10)
    assert after["a"] == 0.31
    assert np.unique(draws).size > 3


def test_epsilon_may_shrink_as_draws_accumulate(model):
    seen = []

    def epsilon(draw):
        seen.append(draw)
        return 0.2 / (1 + draw)

    step = pms.AusterityMH(model=model, epsilon=epsilon, transitions_per_draw=2, **SMALL)
    chain(step, model.initial_point(), tune=5, draws=6)
    levels = [d for i, d in enumerate(seen) if i == 0 or d != seen[i - 1]]
    assert levels == [0, 1, 2, 3, 4, 5, *levels[6:]]
    step.epsilon = lambda draw: 0.1 if draw < 2 else 0.7
    with pytest.raises(ValueError, match=r"epsilon\(2\) must be a number.*0.7"):
        chain(step, model.initial_point(), tune=5, draws=6)


def test_level_zero_is_exact(model):
    step = pms.AusterityMH(model=model, epsilon=0.0, **SMALL)
    _, stats = chain(step, model.initial_point())
    assert {s["batch_size"] for s in stats} == {600}
    assert {s["test_error"] for s in stats} == {0}


def test_bounds_of_the_user_are_asked_for(model):
    """A bound of zero decides after one batch, an enormous one after all rows."""
    for value, share in ((0.0, None), (1e6, 1.0)):
        asked = []

        def bound(point, new, value=value, asked=asked):
            asked.append((dict(point), dict(new)))
            return value

        step = pms.ConfidenceMH(model=model, bound=bound, transitions_per_draw=3, **SMALL)
        step.setup_chain(np.random.default_rng(1), 0, 10)
        draws, stats, _ = run(step, {"a": np.array(0.3), "b": np.array(0.8)}, 4)
        assert len(asked) == 12
        assert set(asked[0][0]) == set(asked[0][1]) == {"a", "b"}
        assert asked[0][0]["a"] == 0.3 != asked[0][1]["a"]
        shares = [s["data_share"] for s in stats]
        assert np.isfinite(draws).all()
        assert min(shares) == 1 if share else min(shares) < 0.5


def test_proposals_outside_the_support_are_rejected_unread():
    with pm.Model() as model:
        a = pm.Uniform("a", 0, 1, transform=None)
        pm.Normal("y", a, 1.0, observed=np.linspace(-1, 2, 200))
    step = pms.AusterityMH(
        model=model, proposal=lambda point, rng: ({"a": point["a"] + 5.0}, 0.0),
        control_variate_order=None, **SMALL,
    )  # fmt: skip
    step.setup_chain(np.random.default_rng(1), 0, 5)
    draws, stats, _ = run(step, {"a": np.array(0.5)}, 5)
    assert (draws == 0.5).all()
    assert {s["n_evaluations"] for s in stats} == {0}


# Models


def special(control_variate_order):
    """PyTensor has no gradient of Bessel functions in their order."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 3, 300)
    y = 2 * norm.pdf(x) + rng.normal(0, 0.1, 300)
    with pm.Model() as model:
        a = pm.Uniform("a", 0, 3)
        pm.Normal("y", pt.jv(a, x), 0.3, observed=y)
    return pms.AusterityMH(model=model, control_variate_order=control_variate_order, **SMALL)


@pytest.mark.costly
def test_models_without_gradient_need_no_control_variates():
    step = special(None)
    draws, _ = chain(step, step.model.initial_point())
    assert np.unique(draws).size > 3


def test_models_without_gradient_are_refused_by_name_where_one_is_needed():
    with pytest.raises(pms.TallModelError, match="control_variate_order=None"):
        special(2)


@pytest.mark.parametrize("step", TESTS)
def test_discrete_variables_are_refused_by_name(step):
    with pm.Model() as model:
        a = pm.Normal("a")
        k = pm.Poisson("k", 3)
        pm.Normal("y", a + k, 1, observed=np.zeros(50))
    with pytest.raises(pms.TallModelError, match=r"'k' is discrete.*vars=\['a'\]"):
        step(model=model)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", TESTS)
def test_fewer_rows_than_a_batch(step):
    model = logistic(n=40).model
    _, stats = chain(step(model=model), model.initial_point())
    assert {s["batch_size"] for s in stats} == {40}


def test_an_error_below_that_of_the_correction_is_refused(model):
    with pytest.raises(ValueError, match="max_error"):
        pms.MinibatchBarkerMH(model=model, sigma=1.6, max_error=1e-3)


# Arguments

BAD = [
    ({"temperature": 0}, "temperature .*above 0"),
    ({"batch_size": 0}, "batch_size must be an integer of at least 2, got 0"),
    ({"batch_size": 1}, "batch_size must be an integer of at least 2, got 1"),
    ({"batch_size": 2.5}, "batch_size .*2.5"),
    ({"batch_size": True}, "batch_size"),
    ({"control_variate_order": 0}, r"control_variate_order .*\(1, 2\).*got 0.*Use None"),
    ({"control_variate_order": 3}, "control_variate_order .*3"),
    ({"control_variate_order": "2"}, "control_variate_order .*'2'"),
    ({"reference": {"a": 1.0}}, r"reference .*missing \['b'\]"),
    ({"reference": {"a": 1, "b": 1}, "control_variate_order": None}, "reference .*None"),
    ({"proposal": "walk"}, "proposal must be .*'walk'"),
    ({"proposal": RandomWalk}, "proposal must be an instance"),
    ({"proposal": RandomWalk(covariance=[1.0])}, r"proposal: covariance has shape \(1,\).* 2 "),
    ({"proposal": Langevin(batch_size=601)}, "proposal: batch_size=601 .*600"),
]
EVERY = [(pms.AusterityMH, *b) for b in BAD]
EVERY += [(step, *b) for step, test in TESTS.items() for b in test.bad]


@pytest.mark.parametrize(
    ("step", "kwargs", "message"),
    EVERY,
    ids=[f"{next(iter(e[1]))} {k}" for k, e in enumerate(EVERY)],
)
def test_bad_arguments_are_named(model, step, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        step(model=model, **{**SMALL, **kwargs})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomWalk(0), "RandomWalk: scale"),
        (lambda: RandomWalk(np.inf), "RandomWalk: scale"),
        (lambda: RandomWalk(1, [[1, 2], [2, 1]]), "RandomWalk: covariance .*positive definite"),
        (lambda: RandomWalk(1, [[1, 0.5], [0, 1]]), "RandomWalk: covariance .*symmetric"),
        (lambda: RandomWalk(1, [1.0, -1.0]), "RandomWalk: covariance"),
        (lambda: RandomWalk(1, np.ones((2, 3))), r"RandomWalk: covariance .*\(2, 3\)"),
        (lambda: AdaptiveMetropolis(1.0), "AdaptiveMetropolis: target_accept"),
        (lambda: AdaptiveMetropolis(0), "AdaptiveMetropolis: target_accept"),
        (lambda: Langevin(step_size=-1), "Langevin: step_size"),
        (lambda: Langevin(batch_size=0), "Langevin: batch_size"),
        (lambda: Langevin(batch_size=1.5), "Langevin: batch_size"),
    ],
)
def test_bad_proposals_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "proposal must return"),
        ({"a": 1.0}, "proposal must return"),
        (({"a": 1.0}, "x"), "proposal must return"),
        (({"c": 1.0}, 0.0), r"'c'.*\['a', 'b'\]"),
        (({"a": [1.0, 2.0]}, 0.0), "expected names|must return"),
        (({"a": np.nan}, 0.0), "not finite"),
        (({"a": 1.0}, np.nan), "not finite"),
        (({"a": 1.0}, np.inf), "not finite"),
    ],
)
def test_bad_results_of_a_proposal_are_named(model, result, message):
    step = pms.AusterityMH(model=model, proposal=lambda point, rng: result, **SMALL)
    with pytest.raises((ValueError, TypeError), match=message):
        step.step(model.initial_point())


def test_a_proposal_moves_only_what_its_step_samples(model):
    step = pms.AusterityMH(
        [model["a"]], model=model, proposal=lambda point, rng: ({"a": 1.0, "b": 2.0}, 0.0), **SMALL
    )
    with pytest.raises(ValueError, match=r"moved \['b'\], but this step samples \['a'\] alone"):
        step.step(model.initial_point())


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan, None, "big", [1.0]])
def test_bad_results_of_a_bound_are_named(model, value):
    step = pms.ConfidenceMH(model=model, bound=lambda point, new: value, **SMALL)
    with pytest.raises((ValueError, TypeError), match=r"bound\(point, new_point\) must return"):
        step.step(model.initial_point())


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", ["poisson", "normal"])
def test_linear_bounds_need_bounded_derivatives(name):
    model = {"poisson": poisson, "normal": normal}[name]().model
    with pytest.raises(ValueError, match='bound="linear" needs'):
        pms.ConfidenceMH(model=model, bound="linear")
    pms.ConfidenceMH(model=model, bound="auto")
