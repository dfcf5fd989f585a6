"""`AusterityGibbs`: exact without subsampling, close with it, and honest about which rows count."""

import copy
import logging
import re
from itertools import combinations, permutations, product

import cloudpickle
import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, assert_processes_agree
from scipy.special import expit, logit
from scipy.stats import chi2

import pymc_subsample as pms
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.gibbs import step as gibbs
from pymc_subsample.samplers.gibbs.checks import memory
from pymc_subsample.samplers.gibbs.conditional_errors import ConditionalErrors, conditional_errors
from pymc_subsample.samplers.gibbs.touching import touching_rows
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE, REJECT, Answer

D = 6
PRIOR = np.array([0.5, 0.3, 0.8, 0.2, 0.6, 0.1])
TRIPLES = np.array(list(combinations(range(D), 3)))
PAIRS = np.array(list(combinations(range(D), 2)))
FOURS = np.array(list(permutations(range(4), 3)))


def tables(seed, *shape, scale=0.5):
    return np.random.default_rng(seed).normal(0, scale, shape)


def triples(size=D, prior=PRIOR, scale=0.5, dtype=None):
    """Every triple has a table of eight numbers."""
    index = np.array(list(combinations(range(size), 3)))
    psi = tables(1, len(index), 2, 2, 2, scale=scale)
    with pm.Model() as model:
        x = pm.Bernoulli("x", prior, shape=size)
        i, j, k = index.T
        pm.Potential("psi", pt.as_tensor(psi)[np.arange(len(index)), x[i], x[j], x[k]])
    return model


def flat_tables():
    psi = tables(2, len(TRIPLES), 8)
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR, shape=D)
        i, j, k = TRIPLES.T
        state = 4 * x[i] + 2 * x[j] + x[k]
        pm.Potential("psi", pt.as_tensor(psi)[np.arange(len(TRIPLES)), state])
    return model


def ising():
    """Pair potentials of spins, and a field, which has fewer rows and is evaluated in full."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=D)
        spin = 2 * x - 1
        pm.Potential("pairs", tables(3, len(PAIRS)) * spin[PAIRS[:, 0]] * spin[PAIRS[:, 1]])
        pm.Potential("field", tables(4, D) * spin)
    return model


def ring():
    """As many factors as variables."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR, shape=D)
        spin = 2 * x - 1
        other = spin[[3, 2, 4, 5, 1, 0]]
        pm.Potential("pairs", tables(5, D) * spin[np.roll(np.arange(D), 1)] * other)
    return model


def two_potentials():
    """Two potentials over the same rows, and two variables of different kinds."""
    other = np.random.default_rng(7).integers(0, 2, len(FOURS))
    i, j, k = FOURS.T
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR[:4], shape=4)
        z = pm.Categorical("z", p=[0.3, 0.7], shape=2)
        pm.Potential("first", tables(6, len(FOURS)) * x[i] * (1 - x[j]) * pt.exp(0.5 * x[k]))
        pm.Potential("second", tables(7, len(FOURS)) * z[other] * pt.sqrt(1.0 + x[i]))
    return model


def selection():
    """Observed rows: a regression on the columns that binary variables select."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(40, D)) * (rng.random((40, D)) < 0.4)
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR, shape=D)
        pm.Normal("y", 0.4 * pm.math.dot(X, x), 1.0, observed=rng.normal(size=40))
    return model


def hierarchy():
    """The prior of one variable depends on another."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR[:4], shape=4)
        pm.Bernoulli("z", pm.math.invlogit(x[0] - 2.0 * x[1]), shape=2)
        i, j, k = FOURS.T
        pm.Potential("psi", tables(9, len(FOURS)) * x[i] * x[j] + 0.3 * model["z"][k % 2])
    return model


def untraceable():
    """Every row depends on a cumulative sum."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", PRIOR, shape=D)
        pm.Potential("psi", tables(10, len(PAIRS)) * pt.cumsum(x)[PAIRS[:, 1]])
    return model


MODELS = {
    f.__name__: f
    for f in (
        triples, flat_tables, ising, ring, two_potentials, selection, hierarchy, untraceable,
    )
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


def enumerated(model):
    """All states, shape (2^D, D), and their probabilities; compiled by PyMC alone."""
    names = [v.name for v in model.value_vars]
    point = model.initial_point()
    sizes = [point[n].size for n in names]
    states = np.array(list(product([0, 1], repeat=sum(sizes))))
    logp = model.compile_logp(mode="FAST_COMPILE")
    parts = np.split(states, np.cumsum(sizes)[:-1], axis=1)
    values = [
        logp({n: p[s].reshape(point[n].shape) for n, p in zip(names, parts, strict=True)})
        for s in range(len(states))
    ]
    weights = np.exp(np.array(values) - max(values))
    return states, weights / weights.sum()


def to_point(step, state):
    step.left = None  # from any point, which a run never does
    [point] = step.layout.points(step.tall.initial_point, np.array([state], dtype=float))
    return point


def state_of(step, point):
    return step.tall.ravel(point)


def number(state):
    return int(np.asarray(state) @ (1 << np.arange(len(state))[::-1]))


def moved_from_target(step, states, probability, n=8000, seed=1):
    """p-value of the target after one draw from each of n states of it."""
    rng = np.random.default_rng(seed)
    step.setup_chain(rng, 0, n + 1)
    counts = np.zeros(len(states))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainStep, "left_alone", 1)
        for s in rng.choice(len(states), n, p=probability):
            point, _ = step.step(to_point(step, states[s]))
            counts[number(state_of(step, point))] += 1
    expected = n * probability
    order = np.argsort(expected)
    # Cells of five or more are what the chi-square approximation asks for.
    group = np.cumsum(expected[order]) // 5
    observed, wanted = (np.bincount(group.astype(int), w[order]) for w in (counts, expected))
    use = wanted > 0
    statistic = ((observed - wanted)[use] ** 2 / wanted[use]).sum()
    return chi2.sf(statistic, use.sum() - 1)


# Which rows touch a variable


def test_rows_touch_what_changes_them(model):
    tall = TallModel(model, binary=[v.name for v in model.value_vars])
    touching = touching_rows(tall, np.arange(tall.size))
    states = np.array(list(product([0.0, 1.0], repeat=tall.size)))
    values = np.array([tall.row_loglik(s, slice(None)) for s in states])
    changes = np.zeros((tall.size, tall.n_rows), dtype=bool)
    for i in range(tall.size):
        flipped = states.copy()
        flipped[:, i] = 1 - flipped[:, i]
        other = values[[number(s) for s in flipped.astype(int)]]
        changes[i] = np.any(np.abs(other - values) > 1e-12, axis=0)
    if touching.unknown is not None:
        assert touching.unknown == "CumOp"
        return
    found = np.zeros_like(changes)
    for i in range(tall.size):
        rows = touching.rows[touching.start[i] : touching.start[i + 1]]
        assert np.all(np.diff(rows) > 0)
        found[i, rows] = True
    np.testing.assert_array_equal(found, changes)


def test_lengths_of_what_depends_on_parameters_are_known(tall_model):
    tall = tall_model("zero_inflated_negative_binomial")
    touching = touching_rows(tall, np.arange(tall.size))
    assert touching.unknown is None
    np.testing.assert_array_equal(np.diff(touching.start), tall.n_rows)


def test_untraceable_rows_all_touch(caplog):
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step = pms.AusterityGibbs(model=untraceable())
    assert re.search("'psi'.*'x'.*CumOp", caplog.text)
    assert np.all(step.n_touching == len(PAIRS))


EXPRESSIONS = {
    "sum": lambda x, i, c: (c[:, None] * x[i]).sum(axis=1),
    "coefficients": lambda x, i, c: pt.tanh((np.eye(D)[i[:, 0]] * x * c[:, None]).sum(axis=1)),
    "choice": lambda x, i, c: pt.switch(c > 0, x[i[:, 0]], x[i[:, 1]]) * c,
    "matrix": lambda x, i, c: pt.dot(np.eye(D)[i[:, 0]], pt.stack([x, 2 * x], 1)).sum(1) * c,
    "grid": lambda x, i, c: c * x.reshape((2, 3))[i[:, 0] % 2, i[:, 1] % 3],
    "stacked": lambda x, i, c: c * pt.stack([x, 1 - x])[np.ones(len(c), int), i[:, 2]],
    "slices": lambda x, i, c: c * (x[::-1][i[:, 0] % D] + x[2:4][i[:, 1] % 2]),
    "logsumexp": lambda x, i, c: pt.logsumexp(c[:, None] * x[i], axis=1),
    "softmax": lambda x, i, c: pt.special.softmax(c[:, None] * x[i], axis=1)[:, 0],
    "lookup": lambda x, i, c: c * pt.as_tensor(np.array([0.3, -0.7]))[x[i[:, 0]]],
}


@pytest.mark.costly
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_sources_pass_through_expressions(name):
    c = tables(11, len(TRIPLES))
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=D)
        pm.Potential("psi", EXPRESSIONS[name](x, TRIPLES, c))
    test_rows_touch_what_changes_them(model)


# Exactness


@pytest.mark.costly(cases=1)
def test_epsilon_zero_leaves_the_target_invariant(model):
    states, probability = enumerated(model)
    step = pms.AusterityGibbs(model=model, epsilon=0)
    assert moved_from_target(step, states, probability) > 1e-5


@pytest.fixture(scope="module")
def small():
    model = triples()
    return model, *enumerated(model)


@numba.njit(DECIDE)
def _metropolis(settings, evidence):
    ratio = evidence.mean + evidence.known
    decision = ACCEPT if ratio > np.log(evidence.uniform) else REJECT
    if evidence.n_seen < evidence.n_rows:
        decision = evidence.n_rows
    return Answer(decision, 0.0, 0.0, 0.0)


@pytest.mark.costly(cases=1)
def test_a_wrong_threshold_is_noticed(small, monkeypatch):
    model, states, probability = small
    step = pms.AusterityGibbs(model=model, epsilon=0)
    monkeypatch.setattr(gibbs, "TEST", Compiled(_metropolis, DECIDE, None))
    assert moved_from_target(step, states, probability) < 1e-9


@pytest.mark.costly(cases=1)
def test_early_decisions_are_noticed(small):
    """The invariance test has the power to see a bias of the size that a coarse test makes."""
    model, states, probability = small
    step = pms.AusterityGibbs(model=model, epsilon=0.49, batch_size=2)
    assert moved_from_target(step, states, probability) < 1e-9


def plain_sweep(rng, x, log_odds, shuffled):
    order = np.arange(len(x))
    if shuffled:
        for s in range(len(x) - 1):
            other = s + int(rng.random() * (len(x) - s))
            order[s], order[other] = order[other], order[s]
    for i in order:
        x[i] = logit(rng.random()) < log_odds(x, i)
    return x


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("scan", ["fixed", "random"])
@pytest.mark.parametrize("name", ["triples", "ising", "two_potentials", "untraceable"])
def test_epsilon_zero_is_plain_gibbs_draw_for_draw(name, scan):
    model = MODELS[name]()
    states, probability = enumerated(model)
    logp = np.log(probability)

    def log_odds(x, i):
        above, below = x.copy(), x.copy()
        above[i], below[i] = 1, 0
        return logp[number(above)] - logp[number(below)]

    step = pms.AusterityGibbs(model=model, epsilon=0, scan=scan, sweeps_per_draw=3)
    step.setup_chain(np.random.default_rng(3), 0, 100)
    rng = copy.deepcopy(step.rng)
    point, x = step.tall.initial_point, states[0].copy()
    point = to_point(step, x)
    for _ in range(60):
        point, _ = step.step(point)
        for _ in range(3):
            x = plain_sweep(rng, x, log_odds, scan == "random")
        np.testing.assert_array_equal(state_of(step, point), x)


def test_thresholds_do_not_depend_on_the_rows_read():
    """Decisions that are not close are the same however many rows they took."""
    model = triples(size=14, prior=expit(np.linspace(-6, 6, 14)), scale=0.01)
    steps = [pms.AusterityGibbs(model=model, epsilon=e, batch_size=20) for e in (0, 0.01)]
    ends = []
    for step in steps:
        step.setup_chain(np.random.default_rng(5), 0, 40)
        point = model.initial_point()
        for _ in range(40):
            point, _ = step.step(point)
        ends.append((state_of(step, point), step.rng.random()))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_untouched_variables_follow_their_prior():
    with pm.Model() as model:
        x = pm.Bernoulli("x", [0.2, 0.5, 0.5, 0.5], shape=4)
        pm.Potential("psi", tables(12, 30) * x[np.random.default_rng(0).integers(1, 4, 30)])
    step = pms.AusterityGibbs(model=model)
    assert step.n_touching[0] == 0
    step.setup_chain(np.random.default_rng(0), 0, 4001)
    ones, point = 0, model.initial_point()
    for _ in range(4000):
        point, _ = step.step(point)
        ones += point["x"][0]
    assert abs(ones / 4000 - 0.2) < 4.5 * np.sqrt(0.2 * 0.8 / 4000)


# Subsampling


@pytest.fixture(scope="module")
def large():
    """4,060 factors, 406 of which touch each variable."""
    return triples(size=30, prior=0.5, scale=0.1)


def errors_of(step, model, epsilon, updates=24, decisions=2000):
    step.epsilon = epsilon
    rng = np.random.default_rng(2)
    pairs = [((rng.random(30) < 0.5).astype(float), int(i)) for i in rng.integers(0, 30, updates)]
    return conditional_errors(
        step.expansion, step.touching, step.active, pairs, test=gibbs.TEST.address,
        settings=gibbs.settings(step), decisions=decisions, rng=rng,
    )  # fmt: skip


def test_conditional_probabilities_are_close(large):
    step = pms.AusterityGibbs(model=large, batch_size=50)
    assert np.all(step.n_touching == 29 * 28 // 2)
    mean = []
    for epsilon, bound in ((0.0, 0.0), (0.01, 0.015), (0.05, 0.05), (0.2, 0.15)):
        errors = errors_of(step, large, epsilon)
        assert errors.worst <= bound
        mean.append(np.abs(errors.error).mean())
    assert mean[0] < 1e-3  # resolution of the thresholds
    assert mean[0] < mean[1] < mean[2] < mean[3]


@pytest.mark.costly(cases=0)
def test_fewer_rows_are_read_at_larger_epsilon(large):
    shares, sizes = [], []
    for epsilon in (0.0, 0.01, 0.05, 0.2):
        step = pms.AusterityGibbs(model=large, epsilon=epsilon, batch_size=50)
        step.setup_chain(np.random.default_rng(1), 0, 50)
        point, stats = large.initial_point(), []
        for _ in range(50):
            point, [stat] = step.step(point)
            stats.append(stat)
        shares.append(np.mean([s["data_share"] for s in stats]))
        sizes.append(np.mean([s["batch_size"] for s in stats]))
        assert np.mean([s["n_evaluations"] for s in stats]) == pytest.approx(60 * sizes[-1])
        assert np.mean([s["test_error"] for s in stats]) <= epsilon / 2
    assert shares[0] == 1.0
    assert np.all(np.diff(shares) < 0)
    np.testing.assert_allclose(sizes, 406 * np.array(shares))


@pytest.mark.costly
def test_a_good_chain_does_not_warn_and_a_coarse_test_does(large):
    for epsilon, batch_size, warns in ((0.02, 50, False), (0.45, 5, True)):
        step = pms.AusterityGibbs(model=large, epsilon=epsilon, batch_size=batch_size)
        warning = last_warning(step, large)
        assert (warning.level != "debug") == warns
    assert re.search(r"conditional probability.*Decrease epsilon.*batch_size", warning.message)


def last_warning(step, model, draws=20):
    step.setup_chain(np.random.default_rng(1), 0, draws)
    point = model.initial_point()
    for d in range(draws):
        point, [stat] = step.step(point)
        assert d == draws - 1 or stat["warning"] is None
    return stat["warning"]


@pytest.mark.costly(cases=0)
def test_probabilities_near_zero_are_compared_by_their_standard_deviations():
    """Two spins that hardly ever differ, and terms much larger than their sum."""
    n, rng = 20_000, np.random.default_rng(3)
    couple, below, above = (
        x - x.mean() + total / n for total in (2.0, 0.3, 0.3) for x in [rng.normal(0, 100 / n, n)]
    )
    swapped = (rng.random(n) < 0.5).astype(int)
    with pm.Model():
        x = pm.Bernoulli("x", 0.5, shape=2)
        spin = 2 * x - 1
        field = 2 * np.where(swapped, above, below)
        pm.Potential("f", couple * spin[swapped] * spin[1 - swapped] + field * spin[swapped])
        steps = [pms.AusterityGibbs(epsilon=e, sweeps_per_draw=5) for e in (0.02, 0.0)]
        runs = [pm.sample(300, tune=50, step=s, chains=2, random_seed=1, **QUIET) for s in steps]
    coarse, exact = map(pms.report, runs)
    found = {f.name: f for f in coarse.findings}
    assert found["conditional_error"].value < 0.05
    assert found["conditional_shift"].status == coarse.status == "fail"
    off = [run.posterior["x"].values.mean() for run in runs]
    assert found["conditional_shift"].value > abs(np.subtract(*off)) / 2
    assert "conditional_shift" not in {f.name for f in exact.findings if f.status != "pass"}


def errors_like(error, noise, exact, variable):
    ones = np.ones(len(error))
    return ConditionalErrors(exact + error, exact * ones, noise * ones, 0.0, False, variable)


def test_shifts_are_told_beyond_their_noise():
    rng, variable = np.random.default_rng(1), np.repeat(np.arange(8), 4)
    told = [
        errors_like(0.01 * rng.normal(size=32), 0.01, 0.3, variable).shift > 0 for _ in range(500)
    ]
    assert np.mean(told) < 0.01  # less than one in a hundred by noise alone
    sd = np.sqrt(0.3 * 0.7)
    same = errors_like(np.full(32, 0.02), 1e-6, 0.3, variable)
    assert same.shift == pytest.approx(0.02 / sd, rel=1e-3)
    signs = np.tile([1.0, -1.0], 16)
    assert errors_like(0.02 * signs, 1e-6, 0.3, variable).shift == pytest.approx(0, abs=1e-4)
    assert errors_like(np.zeros(32), 1e-3, 1.0, variable).shift == 0.0  # all decided


def test_a_chain_remembers_as_long_as_it_is_correlated():
    rng, n = np.random.default_rng(2), 4_000
    independent = rng.integers(0, 2, (n, 1)).astype(float)
    kept = np.cumsum(rng.random(n) < 0.1)  # drawn anew one time in ten
    slow = rng.integers(0, 2, kept.max() + 1)[kept][:, None].astype(float)
    for draws, sweeps, least, most in (
        (independent, 1, 1, 1), (independent, 100, 1, 1), (slow, 1, 5, 11), (slow, 5, 20, 50)
    ):  # fmt: skip
        record = MoveRecord(draws=n)
        record.add(draws, np.ones(n), np.ones(n))
        assert least <= memory(record, np.array([0]), sweeps) <= most


@pytest.mark.costly
def test_impossible_values_warn():
    index = np.array(list(combinations(range(12), 3)))
    psi = tables(13, len(index), 8, scale=0.01)
    psi[::40, 7] = -np.inf
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=12, initval=np.zeros(12, int))
        i, j, k = index.T
        state = 4 * x[i] + 2 * x[j] + x[k]
        pm.Potential("psi", pt.as_tensor(psi)[np.arange(len(index)), state])
    step = pms.AusterityGibbs(model=model, epsilon=0.1, batch_size=10)
    assert "epsilon=0" in last_warning(step, model, draws=40).message
    exact = pms.AusterityGibbs(model=model, epsilon=0)
    assert last_warning(exact, model).level == "debug"
    point, logp = model.initial_point(), model.compile_logp(mode="FAST_COMPILE")
    for _ in range(50):
        point, _ = exact.step(point)
        assert np.isfinite(logp(point))


# Arguments and models that are refused


def mixed():
    rng = np.random.default_rng(14)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.4, shape=4)
        mu = pm.Normal("mu", 0, 1)
        pm.Poisson("count", 2.0)
        group = rng.integers(0, 4, 60)
        pm.Normal("y", mu + 0.5 * x[group], 1, observed=rng.normal(0.5, 1, 60))
    return model


@pytest.mark.parametrize(
    ("arguments", "error", "pattern"),
    [
        ({"vars": ["mu"]}, TallModelError, r"'mu' \(NormalRV, continuous\).*vars=\['x'\]"),
        ({"vars": ["count"]}, TallModelError, r"'count' \(PoissonRV, discrete\).*vars=\['x'\]"),
        ({"vars": ["x", "mu"]}, TallModelError, "'mu'"),
        ({"vars": ["nothing"]}, ValueError, "'nothing'.*free variables are"),
        ({"vars": []}, ValueError, "vars is empty|No free random variables"),
        ({"epsilon": 0.5}, ValueError, "epsilon must be a number from 0 to below 0.5, got 0.5"),
        ({"epsilon": -0.1}, ValueError, "epsilon"),
        ({"epsilon": lambda draw: 0.7}, ValueError, r"epsilon\(0\).*0.7"),
        ({"epsilon": "small"}, ValueError, "epsilon.*'small'"),
        ({"batch_size": 1}, ValueError, "batch_size must be an integer of at least 2, got 1"),
        ({"batch_size": 2.5}, ValueError, "batch_size must be an integer of at least 2, got 2.5"),
        ({"scan": "forward"}, ValueError, "scan must be one of 'random', 'fixed'"),
        ({"sweeps_per_draw": 0}, ValueError, "sweeps_per_draw"),
        ({"blocked": False}, TypeError, "'blocked'"),
        ({"rng": "seed"}, TypeError, "rng"),
        ({"likelihood": ["z"]}, TallModelError, "likelihood.*'z'"),
    ],
)
def test_arguments_are_checked(arguments, error, pattern):
    with pytest.raises(error, match=pattern):
        pms.AusterityGibbs(model=mixed(), **arguments)


def test_models_without_binary_variables_or_rows_are_refused():
    with pm.Model() as model:
        pm.Normal("mu")
        pm.DiscreteUniform("k", 0, 3)
        pm.Potential("psi", tables(15, 20) * model["mu"])
    with pytest.raises(TallModelError, match=r"no binary free variable.*'mu'.*'k'.*Use"):
        pms.AusterityGibbs(model=model)
    with pm.Model() as model:
        pm.Bernoulli("x", 0.5, shape=3)
    with pytest.raises(TallModelError, match="no observed variable and no potential"):
        pms.AusterityGibbs(model=model)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=3)
        pm.Potential("psi", (x[[0, 1]] * x[[1, 2]]).prod())
    with pytest.raises(TallModelError, match=r"'psi'.*Prod"):
        pms.AusterityGibbs(model=model)


@pytest.mark.parametrize(
    ("make", "binary"),
    [
        (lambda: pm.Bernoulli("v", 0.3), True),
        (lambda: pm.Categorical("v", p=[0.3, 0.7]), True),
        (lambda: pm.Categorical("v", p=[0.3, 0.3, 0.4]), False),
        (lambda: pm.DiscreteUniform("v", 0, 1), True),
        (lambda: pm.DiscreteUniform("v", 0, 2), False),
        (lambda: pm.DiscreteUniform("v", 1, 2), False),
        (lambda: pm.Binomial("v", 1, 0.3), True),
        (lambda: pm.Binomial("v", 2, 0.3), False),
        (lambda: pm.Poisson("v", 0.01), False),
        (lambda: pm.Truncated("v", pm.Poisson.dist(1.0), upper=1), False),
    ],
)
def test_what_is_binary(make, binary):
    from pymc_subsample.chain.variables import is_binary

    with pm.Model():
        assert is_binary(make()) == binary


# A step method of PyMC


def test_state_round_trip(large):
    step = pms.AusterityGibbs(model=large, batch_size=50)
    step.setup_chain(np.random.default_rng(4), 0, 100)
    point = large.initial_point()
    for _ in range(5):
        point, _ = step.step(point)
    state = copy.deepcopy(step.sampling_state)
    first = [point]
    for _ in range(5):
        first.append(step.step(first[-1])[0])
    for other in (step, pms.AusterityGibbs(model=large, batch_size=50)):
        other.sampling_state = copy.deepcopy(state)
        again = point
        for expected in first[1:]:
            again, _ = other.step(again)
            np.testing.assert_array_equal(again["x"], expected["x"])
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    copied.sampling_state = copy.deepcopy(state)
    np.testing.assert_array_equal(copied.step(point)[0]["x"], first[1]["x"])
    with pytest.raises(ValueError, match="batch_size"):
        pms.AusterityGibbs(model=large, batch_size=60).sampling_state = state


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("mp_ctx", ["fork", "spawn"])
def test_chains_in_processes_equal_chains_in_sequence(large, mp_ctx):
    step = pms.AusterityGibbs(model=large, batch_size=50)
    alone = assert_processes_agree(step, large, mp_ctx, tune=4)
    assert alone["posterior"]["x"].dtype.kind == "i"


def test_seeds_and_statistics(large):
    step = pms.AusterityGibbs(model=large, batch_size=50)

    def sample(seed):
        kwargs = {"draws": 8, "tune": 3, "chains": 1, "cores": 1, "step": step, "model": large}
        return pm.sample(random_seed=seed, **kwargs, **QUIET)

    first, again, other = sample(1), sample(1), sample(2)
    np.testing.assert_array_equal(first["posterior"]["x"], again["posterior"]["x"])
    assert not np.array_equal(first["posterior"]["x"], other["posterior"]["x"])
    stats = first["sample_stats"]
    for name, (dtype, _) in step.stats_dtypes_shapes.items():
        if name not in ("warning", "tune"):
            assert stats[name].dtype == dtype
    assert np.all((stats["flips"] > 0) & (stats["flips"] <= 1))
    assert np.all((stats["n_looks"] >= 1) & (stats["data_share"] <= 1))


@pytest.mark.costly(cases=0)
def test_other_variables_are_sampled_by_other_steps():
    """x, continuous mu and a count together: marginals of x by enumeration and Gaussian algebra."""
    rng = np.random.default_rng(16)
    group, y = rng.integers(0, 3, 45), rng.normal(0.6, 1, 45)
    with pm.Model():
        x = pm.Bernoulli("x", [0.3, 0.5, 0.6], shape=3)
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu + 0.8 * x[group], 1, observed=y)
        step = pms.AusterityGibbs(epsilon=0)
        assert [v.name for v in step.vars] == ["x"]
        draws = 6000
        idata = pm.sample(
            draws, tune=300, chains=1, cores=1, random_seed=1,
            step=[step, pm.Metropolis([mu])], **QUIET,
        )  # fmt: skip
    states = np.array(list(product([0, 1], repeat=3)))
    cov = np.eye(45) + 1.0
    inverse = np.linalg.inv(cov)
    residual = y - 0.8 * states[:, group]
    logp = -0.5 * np.einsum("si,ij,sj->s", residual, inverse, residual)
    prior = np.array([0.3, 0.5, 0.6])
    logp += (states * np.log(prior) + (1 - states) * np.log(1 - prior)).sum(axis=1)
    p = np.exp(logp - logp.max())
    exact = (p / p.sum()) @ states
    from arviz_stats.base import array_stats

    values = idata["posterior"]["x"].values
    for i in range(3):
        ess = array_stats.ess(values[:, :, i].astype(float), method="mean")
        error = np.sqrt(exact[i] * (1 - exact[i]) / ess)
        assert abs(values[:, :, i].mean() - exact[i]) < 4.5 * error


def test_epsilon_may_follow_the_draws(large):
    seen = []

    def epsilon(draw):
        seen.append(draw)
        return 0.2 / (1 + draw)

    step = pms.AusterityGibbs(model=large, epsilon=epsilon, batch_size=50)
    pm.sample(5, tune=2, chains=1, cores=1, step=step, model=large, random_seed=1, **QUIET)
    assert max(seen) >= 4
