"""What the minibatch Metropolis-Hastings steps find out about a chain, and what they say of it."""

import logging
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit
from steps_of_all_kinds import TESTS

import pymc_subsample as pms
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.diagnostics.chain_ends import in_result
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.minibatch.confidence import given_bound, local_bounds
from pymc_subsample.samplers.minibatch.correction import barker_correction
from pymc_subsample.samplers.minibatch.decision_errors import (
    AcceptanceErrors,
    Proposed,
    acceptance_errors,
    barker,
    metropolis,
)
from pymc_subsample.samplers.minibatch.decisions import DECIDE, austerity, confidence
from pymc_subsample.samplers.minibatch.decisions import barker as barker_kernel

N = 400


# Errors of acceptance probabilities


@pytest.fixture(scope="module")
def rows():
    """Rows whose terms are theta times a column: a few of them are large."""
    rng = np.random.default_rng(1)
    column = rng.normal(size=N)
    column[:4] = 60.0
    column -= column.mean()
    with pm.Model() as model:
        theta = pm.Flat("theta")
        pm.Potential("rows", theta * column)
    return column, expand(TallModel(model), 0)


def errors_of(rows, test, settings, moves, exact=metropolis, bound=None, factor=0.0, rows_read=1e8,
              always=()):  # fmt: skip
    _, expansion = rows
    return acceptance_errors(
        expansion, None,
        [Proposed(np.zeros(1), np.full(1, m), factor, bound) for m in moves],
        order=0, temperature=1.0, test=Compiled(test.decide, DECIDE, None).address,
        settings=np.asarray(settings, dtype=float), exact=exact, most_rows=int(rows_read),
        rng=np.random.default_rng(2), always=np.array(always, dtype=int),
    )  # fmt: skip


def barker_settings(batch, max_error):
    table = barker_correction(1.2)
    numbers = [batch, max_error, table.sigma, table.error, len(table.support)]
    return np.concatenate([numbers, table.support, np.cumsum(table.probabilities)])


@pytest.mark.parametrize("factor", [-1.5, -0.3, 0.4])
def test_reading_all_rows_leaves_no_error(rows, factor):
    for test, settings, exact, probability in (
        (austerity, [N, 0.0], metropolis, np.exp(min(factor, 0.0))),
        (barker_kernel, barker_settings(N, 0.02), barker, expit(factor)),
    ):
        errors = errors_of(rows, test, settings, [0.01], exact, factor=factor)
        np.testing.assert_allclose(errors.log_ratio, [factor, -factor], atol=1e-12)
        np.testing.assert_allclose(errors.exact[0], probability, rtol=1e-9)
        assert np.abs(errors.error).max() <= 1e-12
        assert errors.limit < 0.005


def test_log_ratios_are_tempered():
    with pm.Model() as model:
        theta = pm.Flat("theta")
        pm.Potential("rows", theta * np.linspace(0.0, 0.1, N))
    errors = acceptance_errors(
        expand(TallModel(model), 0), None, [Proposed(np.zeros(1), np.ones(1), 0.3)], order=0,
        temperature=5.0, test=Compiled(austerity.decide, DECIDE, None).address,
        settings=np.array([N, 0.0]), exact=metropolis, most_rows=10**6,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    np.testing.assert_allclose(errors.log_ratio, [0.3 + 4, -4.3])
    np.testing.assert_allclose(errors.rises, [4.3])


@pytest.mark.parametrize("test", [austerity, barker_kernel])
def test_rows_that_are_read_always_mislead_nobody(rows, test):
    """The four large ones; with others in their place the test is as wrong as before."""
    exact = metropolis if test is austerity else barker
    settings = [40, 0.05] if test is austerity else barker_settings(40, 0.02)
    found = {}
    for always in ((), (0, 1, 2, 3), (4, 5, 6, 7)):
        found[always] = errors_of(rows, test, settings, [0.02], exact, always=always)
        np.testing.assert_allclose(found[always].log_ratio, 0.0, atol=1e-9)
    without, right, other = found.values()
    # The t-test is wrong itself, once in twenty looks.
    assert right.worst < 0.05 < 0.2 < min(without.worst, other.worst)
    assert right.largest < 0.1 < without.largest == pytest.approx(other.largest, rel=0.02)


def test_always_read_rows_that_are_impossible_are_noticed():
    with pm.Model() as model:
        b = pm.HalfFlat("b", default_transform=None, initval=3.0)
        pm.Uniform("y", 0, b, observed=np.linspace(0.01, 2.0, N))
    for theta, new_theta in ((1.99, 1.98), (1.98, 1.99)):
        errors = acceptance_errors(
            expand(TallModel(model), 0), None,
            [Proposed(np.array([theta]), np.array([new_theta]), 0.0)], order=0, temperature=1.0,
            test=Compiled(austerity.decide, DECIDE, None).address, settings=np.array([20, 0.05]),
            exact=metropolis, most_rows=10**6, rng=np.random.default_rng(1),
            always=np.arange(N - 10, N),
        )  # fmt: skip
        assert errors.rise == np.inf


@pytest.mark.costly(cases=0)
def test_errors_are_those_of_a_simulation(rows):
    """A t-test that misses the large rows, simulated apart from the package."""
    column, _ = rows
    batch, epsilon, move = 40, 0.05, 0.02
    found = errors_of(rows, austerity, [batch, epsilon], [move])
    from scipy import stats

    rng, y, accepted, repeats = np.random.default_rng(3), N * move * column, 0, 4000
    for _ in range(repeats):
        u, order = rng.random(), rng.permutation(N)
        for b in range(batch, N + 1, batch):
            seen = y[order[:b]]
            distance = seen.mean() - np.log(u)
            if b == N:
                break
            sd = seen.std(ddof=1) / np.sqrt(b) * np.sqrt(1 - (b - 1) / (N - 1))
            if stats.t.sf(abs(distance) / sd, b - 1) < epsilon:
                break
        accepted += distance > 0
    share = accepted / repeats
    noise = np.sqrt(share * (1 - share) / repeats + found.noise[0] ** 2)
    assert abs(found.probability[0] - share) < 4.5 * noise
    assert found.exact[0] == 1.0
    assert found.worst > 0.1
    spread = (column - column.mean()) ** 2
    np.testing.assert_allclose(found.largest, spread.max() / spread.sum())


@pytest.mark.costly
def test_standard_errors_cover_the_errors(rows):
    """Of 2,000 decisions against 60 times as many."""
    settings = [40, 0.05]
    moves = [0.004, 0.02]
    results = []
    for seed in range(60):
        one = acceptance_errors(
            rows[1], None, [Proposed(np.zeros(1), np.full(1, m), -0.5) for m in moves], order=0,
            temperature=1.0, test=Compiled(austerity.decide, DECIDE, None).address,
            settings=np.array(settings), exact=metropolis, most_rows=10**8,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        results.append((one.probability, one.noise))
    probability, noise = np.array(results).transpose(1, 0, 2)
    z = (probability - probability.mean(axis=0)) / noise
    # Thresholds are stratified, which makes the estimates better than they say, not worse.
    assert np.all(z.std(axis=0) < 1.4)
    assert np.all(z.std(axis=0) > 0.1)


def test_few_decisions_say_nothing(rows):
    errors = errors_of(rows, austerity, [N, 0.0], [0.01, 0.02], rows_read=N * 20)
    assert len(errors.error) == 0
    assert errors.worst == errors.limit == 0
    assert errors.stretch() == (0.0, 0.0)


def test_a_bound_that_was_given_is_compared_and_used(rows):
    column, _ = rows
    settings = [20, 0.1, 2.0, 2.0, 0]
    largest = N * 0.02 * np.abs(column).max()
    right = errors_of(rows, confidence, settings, [0.02], bound=largest)
    wrong = errors_of(rows, confidence, settings, [0.02], bound=largest / 1e4)
    none = errors_of(rows, confidence, settings, [0.02])
    assert none.beyond is None
    np.testing.assert_allclose(right.beyond, 1.0)
    np.testing.assert_allclose(wrong.beyond, 1e4)
    assert right.worst < 0.01 < 0.1 < wrong.worst


def test_impossible_rows_are_rejected_with_certainty():
    with pm.Model() as model:
        b = pm.HalfFlat("b", default_transform=None, initval=3.0)
        pm.Uniform("y", 0, b, observed=np.linspace(0.01, 2.0, N))
    expansion = expand(TallModel(model), 0)
    for test, settings, exact in (
        (austerity, [20, 0.05], metropolis),
        (barker_kernel, barker_settings(20, 0.02), barker),
    ):
        errors = acceptance_errors(
            expansion, None, [Proposed(np.array([2.1]), np.array([1.99]), 0.0)], order=0,
            temperature=1.0, test=Compiled(test.decide, DECIDE, None).address,
            settings=np.asarray(settings, dtype=float), exact=exact, most_rows=10**7,
            rng=np.random.default_rng(1),
        )  # fmt: skip
        assert errors.exact.tolist() == [0.0, 1.0]
        assert errors.worst > 0.5  # batches that miss the two impossible rows
        assert np.isfinite(errors.stretch()).all()


def test_draws_that_make_rows_impossible_are_noticed(caplog):
    """A bound below the largest row, which every batch but one in ten misses."""
    with pm.Model() as model:
        b = pm.HalfFlat("b", default_transform=None, initval=3.0)
        pm.Uniform("y", 0, b, observed=np.linspace(0.01, 2.0, N))
    expansion = expand(TallModel(model), 0)
    for theta, new_theta, rise in ((1.99, 1.98, np.inf), (1.98, 1.99, np.inf), (2.1, 2.2, None)):
        errors = acceptance_errors(
            expansion, None, [Proposed(np.array([theta]), np.array([new_theta]), 0.0)], order=0,
            temperature=1.0, test=Compiled(austerity.decide, DECIDE, None).address,
            settings=np.array([20, 0.05]), exact=metropolis, most_rows=10**6,
            rng=np.random.default_rng(1),
        )  # fmt: skip
        expected = N * np.log(theta / new_theta) if rise is None else rise
        np.testing.assert_allclose(errors.rise, expected, rtol=1e-9)
    step = pms.MinibatchBarkerMH(
        model=model, control_variate_order=None, batch_size=20,
        proposal=pms.proposals.RandomWalk(0.01),
    )  # fmt: skip
    text, failed = said(caplog, step, model, 200, tune=0)
    assert "rise" in failed
    assert "some make rows impossible" in text


@pytest.mark.parametrize("slope", [0.25, 1.0, 4.0])
def test_stretch_is_that_of_a_flatter_or_steeper_target(slope):
    """Acceptance probabilities of Metropolis-Hastings for the density to a power."""
    ratio = np.array([0.5, -0.5, 1.0, -1.0, -0.2, 0.2])
    probability = np.exp(np.minimum(slope * ratio, 0.0))
    exact = np.exp(np.minimum(ratio, 0.0))
    errors = AcceptanceErrors(probability, exact, np.full(6, 1e-4), ratio, 0.0, ratio)
    stretch, sure = errors.stretch()
    np.testing.assert_allclose(stretch, slope**-0.5 - 1, atol=1e-9)
    assert abs(sure) <= abs(stretch)
    assert (slope == 1.0) or abs(sure) > 0.9 * abs(stretch)
    noisy = AcceptanceErrors(probability, exact, np.full(6, 0.3), ratio, 0.0, ratio)
    assert noisy.stretch()[1] == 0.0


def test_probabilities_that_may_be_zero_say_nothing_of_the_stretch():
    ratio = np.array([-900.0, 900.0])
    probability, exact = np.array([0.04, 1.0]), np.array([0.0, 1.0])
    errors = AcceptanceErrors(probability, exact, np.full(2, 0.03), ratio, 0.0, ratio)
    assert errors.stretch() == (0.0, 0.0)


# Warnings


def logistic(n=4000):
    rng = np.random.default_rng(5)
    x = rng.normal(size=n)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a + b * x, observed=rng.random(n) < expit(0.3 - 0.5 * x))
    return model


@pytest.fixture(scope="module")
def model():
    return logistic()


def sample(step, model, draws, tune, random_seed=6, **kwargs):
    return pm.sample(
        draws, tune=tune, chains=1, cores=1, random_seed=random_seed, step=step, model=model,
        progressbar=False, compute_convergence_checks=False, **kwargs,
    )  # fmt: skip


def said(caplog, step, model, draws=150, tune=300, **kwargs):
    """Warnings of a run, and which rules failed."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pymc"):
        result = sample(step, model, draws, tune, **kwargs)
    [[end]] = in_result(result).values()
    names = set(end.failed)
    return " ".join(r.getMessage() for r in caplog.records), names


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", TESTS)
def test_healthy_chains_are_silent(step, model, caplog):
    assert said(caplog, step(model=model), model) == ("", set())


@pytest.fixture(scope="module")
def lognormal():
    """A normal model for lognormal data, and where its posterior is."""
    data = np.random.default_rng(4).lognormal(0, 2, 20_000)
    with pm.Model() as model:
        mu, sigma = pm.Flat("mu"), pm.HalfFlat("sigma")
        pm.Normal("y", mu, sigma, observed=data)
    return model, {"mu": data.mean(), "sigma": data.std()}


@pytest.mark.costly
def test_heavy_tails_are_said_and_name_confidence_mh(lognormal, caplog):
    model, start = lognormal
    step = pms.AusterityMH(model=model, control_variate_order=None, transitions_per_draw=1)
    text, failed = said(caplog, step, model, 400, tune=400, initvals=start, random_seed=7)
    assert failed == {"acceptance_error", "rise"}
    for words in ("wrong too often", "heavy-tailed", "ConfidenceMH", "epsilon (now 0.05)"):
        assert words in text
    assert "ScalableMH" not in text  # which needs what order=None does without


def test_wrong_draws_are_noticed_where_the_checked_decisions_are_right(lognormal, caplog):
    """A chain about ten times too wide, whose decisions at the pilot's proposals are easy."""
    model, start = lognormal
    step = pms.AusterityMH(model=model, control_variate_order=None, transitions_per_draw=1)
    text, failed = said(caplog, step, model, 400, tune=400, initvals=start)
    assert failed == {"rise"}
    assert "not from the posterior: proposals from them multiply its density" in text


def test_a_chain_on_its_way_is_noticed(model, caplog):
    step = pms.AusterityMH(model=model, proposal=pms.proposals.RandomWalk(1e-4))
    text, failed = said(caplog, step, model, 20, tune=0, initvals={"a": 3.0, "b": 3.0})
    assert failed == set()  # steps too small to tell
    step = pms.AusterityMH(
        model=model, proposal=pms.proposals.RandomWalk(0.3), transitions_per_draw=1
    )
    text, failed = said(caplog, step, model, 20, tune=0, initvals={"a": 30.0, "b": 30.0})
    assert failed == {"rise"}
    assert "Tune longer" in text


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_posterior_ratios_of_proposals_have_mean_one_at_the_posterior(scale):
    """What the rise is compared with, by simulation of a normal posterior."""
    rng = np.random.default_rng(8)
    theta = rng.normal(size=(20_000, 8))
    new = theta + scale * rng.normal(size=theta.shape)
    ratio = (theta**2 - new**2) / 2
    none = np.zeros(0)
    rises = [AcceptanceErrors(none, none, none, none, 0.0, r).rise for r in ratio]
    for x in (0.5, 1.0, 2.0):
        assert np.mean(np.array(rises) > x) <= np.exp(-x)
    assert np.mean(np.exp(rises)) < 1.2
    twice = [AcceptanceErrors(none, none, none, none, 0.0, 16 * r).rise for r in ratio]
    if scale == 1.0:  # draws four times too wide
        assert np.mean(np.array(twice) > 10) > 0.3


def test_a_level_that_is_too_coarse_warns_without_heavy_tails(model, caplog):
    step = pms.AusterityMH(
        model=model, control_variate_order=None, epsilon=0.3, batch_size=50, transitions_per_draw=1
    )
    text, failed = said(caplog, step, model)
    assert "acceptance_error" in failed
    assert "Decrease epsilon (now 0.3)" in text
    assert "heavy" not in text


@pytest.mark.costly
def test_the_exact_step_is_named_with_control_variates(caplog):
    rng = np.random.default_rng(0)
    X = 6 * rng.normal(size=(1000, 6))
    y = rng.random(1000) < expit(0.5 * X.sum(axis=1))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("b", 0, 2, shape=6), observed=y)
    step = pms.AusterityMH(model=model, epsilon=0.49, batch_size=5, transitions_per_draw=1)
    # In longer ones it drifts to where proposals are wrong, and not decisions on them.
    text, failed = said(caplog, step, model, draws=20, tune=20)
    assert "acceptance_error" in failed
    assert "use pms.ScalableMH(), which is exact" in text


def test_a_variance_that_cannot_be_met_warns(model, caplog):
    step = pms.MinibatchBarkerMH(model=model, control_variate_order=None, transitions_per_draw=2)
    text, failed = said(caplog, step, model)
    assert failed == {"share"}
    assert "cannot be brought below sigma^2 = 1.69" in text
    assert "control_variate_order=2" in text


def test_reading_all_rows_on_purpose_does_not_warn(model, caplog):
    step = pms.AusterityMH(model=model, epsilon=0.0, transitions_per_draw=2)
    assert said(caplog, step, model) == ("", set())


def test_proposals_that_are_never_accepted_warn(model, caplog):
    step = pms.AusterityMH(model=model, proposal=pms.proposals.RandomWalk(20.0))
    text, failed = said(caplog, step, model)
    assert failed == {"accepted"}
    assert "smaller proposals" in text


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", TESTS)
def test_a_temperature_warns(step, model, caplog):
    text, failed = said(caplog, step(model=model, temperature=2.0), model)
    assert failed == {"temperature"}
    assert "temperature=2: the draws are not from the posterior" in text


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("value", "warns"), [(0.0, True), (1.0, False)])
def test_a_bound_that_is_too_small_warns(value, warns, model, caplog):
    """Of the rows' log-ratios less their control variates; 1 is far above them all."""
    step = pms.ConfidenceMH(model=model, bound=lambda point, new: value, transitions_per_draw=2)
    text, failed = said(caplog, step, model)
    assert ("bound" in failed) == warns
    assert ("bound on the rows' terms is too small" in text) == warns


def test_an_automatic_bound_that_does_not_hold_warns(model, caplog, monkeypatch):
    """The check lets the test decide with the bound that the chain had, not with that of all."""
    step = pms.ConfidenceMH(model=model, transitions_per_draw=2)
    assert said(caplog, step, model)[1] <= {"share"}
    automatic = step.decision.bound

    def smaller(step, theta, given):
        found = automatic(step, theta, given)
        return found._replace(slope=1e-3 * found.slope, table=_shrunk(found.table, step))

    monkeypatch.setattr(type(step), "decision", replace(step.decision, bound=smaller))
    assert "bound" in said(caplog, step, model)[1]


def _shrunk(table, step):
    """Tables of bounds near the reference hold them beside the radii, below the metric."""
    smaller = table.copy()
    if step.linear is None:
        smaller[step.tall.phi_size :, 1] *= 1e-3
    return smaller


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("predictors", [1, 2])
def test_rows_with_a_kink_have_no_bound_but_a_pass(predictors):
    """Derivatives of median regression are zero beside the kink, and so would the bound be."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=400)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2)
        scale = 1.0 if predictors == 1 else pm.math.exp(pm.Normal("log_scale", 0, 1))
        pm.Laplace("y", b * x, scale, observed=0.5 * x + rng.laplace(size=400))
    step = pms.ConfidenceMH(model=model)
    assert step.linear is None
    assert local_bounds(step) is None


def test_a_given_bound_is_tempered(model):
    step = pms.ConfidenceMH(model=model, bound=lambda point, new: 0.3, temperature=4.0)
    theta = np.zeros(2)
    np.testing.assert_allclose(given_bound(step, theta, theta), 0.3 * 4000 / 4)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("kink", [True, False])
def test_log_likelihoods_that_cannot_be_expanded_are_said_at_set_up(kink, caplog):
    y = np.random.default_rng(6).laplace(1, 2, 2000)
    with pm.Model() as model:
        mu, b = pm.Normal("mu", 0, 10), pm.HalfNormal("b", 5)
        (pm.Laplace if kink else pm.Logistic)("y", mu, b, observed=y)
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        pms.AusterityMH(model=model)
    assert ("cannot be expanded well" in caplog.text) == kink
    assert ("control_variate_order=None" in caplog.text) == kink


def test_the_bound_of_theorem_1_is_logged(model, caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        sample(pms.AusterityMH(model=model), model, 200, tune=300)
    [text] = [r.getMessage() for r in caplog.records if "total variation" in r.getMessage()]
    error, slowest, distance = (
        float(text.split(words)[1].split()[0].rstrip(",.;"))
        for words in ("off by at most ", "slowest autocorrelation, ", "posterior is at most ")
    )
    assert 0 < error < 0.03
    np.testing.assert_allclose(distance, min(1.0, error / (1 - slowest)), rtol=0.1)
