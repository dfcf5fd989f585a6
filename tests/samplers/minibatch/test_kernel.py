"""Compiled Metropolis-Hastings transitions: draw for draw, and invariance of their target.

The model is a logistic regression on 600 rows, written out in NumPy apart from the package.
"""

import numpy as np
import pymc as pm
import pytest
import scipy.stats
from barker_errors import worst_error
from exact_cases import Line
from scipy.special import expit, log_expit, logsumexp

from pymc_subsample.bounds.predictor_ranges import everywhere
from pymc_subsample.compiled.functions import Compiled, address_of
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.proposals import GIVEN, LANGEVIN, RANDOM_WALK, Proposing
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.correction import barker_correction
from pymc_subsample.samplers.minibatch.decisions import DECIDE, austerity, barker, confidence
from pymc_subsample.samplers.minibatch.kernel import (
    FUNCTIONS,
    GRADIENTS,
    INFO,
    Population,
    transitions,
)
from pymc_subsample.samplers.minibatch.largest_term import (
    FULL_BOUND,
    GIVEN_BOUND,
    LINEAR_BOUND,
    TermBound,
)

ERROR_RATE = 1e-5
SLOW = pytest.mark.slow
N, PRIOR_SD = 600, 1.0
MODE = np.array([0.39, -0.82])
# Reference points by order, some standard deviations off the mode so that residuals matter.
STARS = {0: np.zeros(2), 1: np.array([0.7, -0.3]), 2: np.array([0.2, -1.2])}
TESTS = {
    name: Compiled(module.decide, DECIDE, None)
    for name, module in (
        ("austerity", austerity),
        ("barker", barker),
        ("confidence", confidence),
    )
}


class Logistic(Line):
    """y ~ Bernoulli(expit(a + b x)), a and b ~ N(0, 1), in NumPy; theta has shape (..., 2)."""

    def logprior(self, theta):
        return -0.5 * (theta**2).sum(axis=-1) / PRIOR_SD**2

    def loglik(self, theta):
        return log_expit((2 * self.y - 1) * self.eta(theta))

    def control(self, theta, star, order):
        """Control variates; none, hence zero, at order 0."""
        p = expit(self.eta(star))
        delta = self.eta(theta) - self.eta(star)
        if order == 0:
            return 0 * delta
        q = self.loglik(star) + (self.y - p) * delta
        return q - 0.5 * p * (1 - p) * delta**2 if order == 2 else q

    def logp(self, theta, temperature=1.0):
        return self.logprior(theta) + self.loglik(theta).sum(axis=-1) / temperature

    def gradient(self, theta, index, star, order, temperature, always=()):
        """Gradient of the log posterior estimated on the rows `index`, and exact of others."""
        design = np.stack([np.ones(N), self.x])
        p, at = expit(self.eta(theta)), expit(self.eta(star))
        slope = self.y - p
        proxy = 0 * slope
        if order:
            proxy = self.y - at
        if order == 2:
            proxy = proxy - at * (1 - at) * (self.eta(theta) - self.eta(star))
        total = design @ proxy
        for some, scale in ((index, (N - len(always)) / len(index)), (list(always), 1.0)):
            total = total + scale * design[:, some] @ (slope - proxy)[some]
        return total / temperature - theta / PRIOR_SD**2


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=N)
    return Logistic(x, (rng.random(N) < expit(0.5 - 0.8 * x)).astype(float))


@pytest.fixture(scope="module")
def expansions(rows):
    with pm.Model() as model:
        a = pm.Normal("a", 0, PRIOR_SD)
        b = pm.Normal("b", 0, PRIOR_SD)
        pm.Bernoulli("y", logit_p=a + b * rows.x, observed=rows.y)
    tall = TallModel(model)
    return {order: expand(tall, order) for order in (0, 1, 2)}


FULL = np.array([[0.09, 0.0], [-0.03, 0.10]])
DIAGONAL = np.array([[0.09, 0.10]])


def settings_of(test, batch, *, sigma=1.0, max_error=0.002, epsilon=0.005, delta=0.01):
    if test == "austerity":
        return np.array([batch, epsilon])
    if test == "confidence":
        return np.array([batch, delta, 2.0, 2.0, 0])
    table = barker_correction(sigma)
    numbers = [batch, max_error, sigma, table.error, len(table.support)]
    return np.concatenate([numbers, table.support, np.cumsum(table.probabilities)])


class Sampler:
    """Calls the compiled transition the way a step does."""

    def __init__(self, ex, test, settings, *, order, kind=RANDOM_WALK, factor=FULL, step_size=1.5,
                 batch=0, temperature=1.0, bound=None, star=None, always=()):  # fmt: skip
        self.ex, self.test, self.settings, self.order = ex, test, settings, order
        self.kind, self.factor, self.step_size, self.batch = kind, factor, step_size, batch
        self.temperature = temperature
        gradients = GRADIENTS if kind == LANGEVIN else (None, None)
        anchor = "anchor" if order else None
        names = [anchor if name == "anchor" else name for name in FUNCTIONS]
        self.model = ex.model(*names, *gradients)
        self.star = STARS[order] if star is None else star
        self.sums = reference_at(ex, self.star, temperature).sums(order)
        self.permutation = np.arange(N, dtype=np.uint32)
        self.always = np.array(always, dtype=np.int64)
        exact = ex.take(self.always)
        if len(always):
            ex.anchor(self.sums.center, exact)
        others = N - len(always)
        members = np.delete(self.permutation, self.always) if len(always) else self.permutation[:0]
        self.population = Population(
            self.permutation[:others], members, others / temperature, exact, 1 / temperature
        )
        self.bound = TermBound(GIVEN_BOUND, np.inf, np.zeros((0, 0)))
        if bound == "full":
            self.bound = TermBound(FULL_BOUND, np.inf, np.zeros((0, 0)))
        elif bound == "linear":
            self.bound = TermBound(LINEAR_BOUND, *everywhere(ex))

    def run(self, rng, row_rng, theta, k=1, given=None, log_factor=0.0):
        """Overwrite theta by k transitions; return what they report."""
        info = np.empty(len(INFO))
        proposing = Proposing(
            self.kind, np.arange(2), self.factor, self.step_size, self.batch,
            theta if given is None else given, log_factor,
        )  # fmt: skip
        transitions(
            address_of(rng), address_of(row_rng), self.model, self.sums,
            Criterion(TESTS[self.test].address, self.settings), self.bound, proposing,
            self.population, theta[None], k, info[None],
        )  # fmt: skip
        return dict(zip(INFO, info, strict=True))


# Draw for draw


def numpy_draw(row_rng, permutation, start, size):
    for at in range(start, start + size):
        other = at + int(row_rng.random() * (len(permutation) - at))
        permutation[[at, other]] = permutation[[other, at]]
    return permutation[start : start + size]


def numpy_decision(test, settings, y, look, ratio, u, normal, spread, N):
    """True, False, or the number of rows to read next, of N."""
    b, batch = len(y), settings[0]
    if test == "barker":
        if b == N:
            return ratio > np.log((1 - u) / u)
        sigma, size = settings[2], int(settings[4])
        second, third = y.var(), scipy.stats.skew(y) * y.var() ** 1.5
        variance = y.var(ddof=1) / b * (1 - b / N)
        error = settings[3] + worst_error((2 - b / N) * (1 - b / N) / 2 * third / b**2)
        if variance >= sigma**2 or error > settings[1]:
            needed = y.var(ddof=1) / (sigma**2 + y.var(ddof=1) / N)
            return int(min(N, max(b + batch, 0.8 * needed)))
        assert second > 0
        support, cumulative = settings[5 : 5 + size], settings[5 + size :]
        correction = support[np.searchsorted(cumulative, u)]
        return ratio + np.sqrt(sigma**2 - variance) * normal + correction > 0
    distance = ratio - np.log(u)
    if b == N:
        return distance > 0
    if test == "austerity":
        sd = np.sqrt(y.var(ddof=1) / b * (1 - (b - 1) / (N - 1)))
        sure = scipy.stats.t.sf(abs(distance) / sd, b - 1) < settings[1]
        return distance > 0 if sure else int(min(N, b + batch))
    _, delta, p, gamma, _ = settings
    log = np.log(5 * p * look**p / ((p - 1) * delta))
    rho = 1 - (b - 1) / N if b <= N / 2 else (1 - b / N) * (1 + 1 / b)
    radius = y.std() * np.sqrt(2 * rho * log / b)
    radius += (7 / 3 + 3 / np.sqrt(2)) * spread * log / b
    return distance > 0 if abs(distance) > radius else int(min(N, np.ceil(gamma * b)))


def numpy_transition(rng, row_rng, rows, sampler, theta):
    """One transition of the algorithm in NumPy: theta, rows read, and whether it moved."""
    star, order, temperature = sampler.star, sampler.order, sampler.temperature
    L = sampler.factor if len(sampler.factor) > 1 else np.diag(sampler.factor[0])
    h, z = sampler.step_size, rng.standard_normal(2)
    always, others = sampler.always, np.delete(np.arange(N), sampler.always)
    n = len(others)
    drift, known = 0.0, 0.0
    if sampler.kind == LANGEVIN:
        index = others[numpy_draw(row_rng, np.arange(n), 0, sampler.batch)]
        gradients = [rows.gradient(theta, index, star, order, temperature, always)]
        drift = h**2 / 2 * L @ L.T @ gradients[0]
    new = theta + drift + h * L @ z
    if sampler.kind == LANGEVIN:
        there = rows.gradient(new, index, star, order, temperature, always)
        back = new + h**2 / 2 * L @ L.T @ there
        inverse = np.linalg.inv(h**2 * L @ L.T)
        there, here = new - theta - drift, theta - back
        known = -0.5 * here @ inverse @ here + 0.5 * there @ inverse @ there
    known += rows.logprior(new) - rows.logprior(theta)
    q, new_q = (rows.control(t, star, order) for t in (theta, new))
    known += (new_q - q).sum() / temperature
    changes = (rows.loglik(new) - new_q) - (rows.loglik(theta) - q)
    known += changes[always].sum() / temperature
    y = n / temperature * changes[others]
    u, normal = rng.random(), rng.standard_normal()
    spread = np.ptp(y) if sampler.bound[0] == FULL_BOUND else np.nan
    if sampler.bound[0] == LINEAR_BOUND:
        moved = [np.abs(rows.eta(t) - rows.eta(star)) for t in (theta, new)]
        if order == 0:
            moved = [np.abs(rows.eta(new) - rows.eta(theta))]
        slope = [1.0, 1 / 4, 1 / (6 * np.sqrt(3))][order] / [1, 2, 6][order]
        least = slope * N / temperature * sum(m.max() ** (order + 1) for m in moved)
        spread = 2 * least  # the compiled bound may be wider
    permutation, count, look = np.arange(n), 0, 0
    wanted = int(min(n, sampler.settings[0]))
    if wanted == n:
        count = n
    while True:
        if count < wanted:
            numpy_draw(row_rng, permutation, count, wanted - count)
            count = wanted
        look += 1
        seen = y[permutation[:count]]
        decision = numpy_decision(
            sampler.test, sampler.settings, seen, look, seen.mean() + known, u, normal, spread, n
        )
        if isinstance(decision, bool | np.bool_):
            return (new if decision else theta), count, look, bool(decision)
        wanted = decision


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("test", "order", "kind", "factor", "temperature", "step_size"),
    [
        ("barker", 1, RANDOM_WALK, FULL, 1.0, 1.5),
        ("barker", 0, RANDOM_WALK, DIAGONAL, 1.0, 0.3),
        ("barker", 2, LANGEVIN, FULL, 2.0, 1.0),
        ("barker", 0, LANGEVIN, DIAGONAL, 1.0, 0.3),
        ("austerity", 1, RANDOM_WALK, DIAGONAL, 5.0, 2.0),
        ("austerity", 0, RANDOM_WALK, FULL, 1.0, 1.5),
        ("austerity", 2, LANGEVIN, DIAGONAL, 1.0, 1.0),
        ("confidence", 1, RANDOM_WALK, FULL, 1.0, 1.5),
        ("confidence", 2, LANGEVIN, FULL, 3.0, 1.0),
    ],
)
@pytest.mark.parametrize("always", [(), (0, 3, 4, 17, 300, 598, 599)], ids=["", "always"])
def test_transitions_equal_the_algorithm_in_numpy(
    test, order, kind, factor, temperature, step_size, always, rows, expansions
):
    sampler = Sampler(
        expansions[order], test, settings_of(test, 37), order=order, kind=kind, factor=factor,
        temperature=temperature, step_size=step_size, batch=20, always=always,
        bound="full" if test == "confidence" else None,
    )  # fmt: skip
    e = len(always)
    ours, our_rows, theirs, their_rows = (np.random.default_rng(s) for s in (2, 3, 2, 3))
    theta = other = np.array([0.45, -0.75])
    moves, sizes = 0, []
    for _ in range(150):
        theta = theta.copy()
        info = sampler.run(ours, our_rows, theta)
        other, count, looks, moved = numpy_transition(theirs, their_rows, rows, sampler, other)
        np.testing.assert_allclose(theta, other, rtol=1e-8)
        assert (info["batch_size"], info["n_looks"], info["accepted"]) == (count + e, looks, moved)
        assert info["rows_tested"] == count + e + (N - e) * (test == "confidence")
        assert info["rows_proposed"] == (20 + e if kind == LANGEVIN else 0)
        moves += moved
        sizes.append(count)
    assert 15 < moves < 150  # both outcomes of the test
    assert len(set(sizes)) > 1
    assert min(sizes) < N
    np.testing.assert_array_equal(sampler.permutation, np.arange(N))


def exact_transition(rng, rows, theta, barker_test, temperature, L, h, langevin):
    """Metropolis-Hastings on all rows."""
    z = rng.standard_normal(2)

    def gradient(at):
        design = np.stack([np.ones(N), rows.x])
        return design @ (rows.y - expit(rows.eta(at))) / temperature - at / PRIOR_SD**2

    def logq(new, old):
        mean = old + h**2 / 2 * L @ L.T @ gradient(old)
        return scipy.stats.multivariate_normal(mean, h**2 * L @ L.T).logpdf(new)

    new = theta + h * L @ z
    if langevin:
        new = new + h**2 / 2 * L @ L.T @ gradient(theta)
    ratio = rows.logp(new, temperature) - rows.logp(theta, temperature)
    if langevin:
        ratio += logq(theta, new) - logq(new, theta)
    u = rng.random()
    rng.standard_normal()
    threshold = np.log((1 - u) / u) if barker_test else np.log(u)
    return new if ratio > threshold else theta


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("test", [*TESTS, "austerity, level 0"])
@pytest.mark.parametrize("langevin", [False, True])
def test_all_rows_give_metropolis_hastings(test, order, langevin, rows, expansions):
    """With batches of n, or at level 0: the same draws as without any batches."""
    test, _, zero = test.partition(",")
    settings = settings_of(test, 50 if zero else N, epsilon=0.0 if zero else 0.05)
    sampler = Sampler(
        expansions[order], test, settings, order=order, batch=N, temperature=1.5,
        kind=LANGEVIN if langevin else RANDOM_WALK, bound="full" if order == 0 else "linear",
    )  # fmt: skip
    ours, plain = (np.random.default_rng(4) for _ in range(2))
    theta = other = np.array([0.45, -0.75])
    moves = 0
    for _ in range(200):
        theta = theta.copy()
        before = theta.copy()
        info = sampler.run(ours, np.random.default_rng(5), theta)
        other = exact_transition(plain, rows, other, test == "barker", 1.5, FULL, 1.5, langevin)
        np.testing.assert_allclose(theta, other, rtol=1e-8)
        assert info["batch_size"] == N
        moves += not np.array_equal(theta, before)
        assert info["accepted"] == (not np.array_equal(theta, before))
    assert 30 < moves < 200


@pytest.mark.parametrize("order", [0, 1, 2])
def test_linear_bounds_read_no_fewer_rows_than_the_exact_spread(order, expansions):
    counts = {}
    for bound in ("linear", "full"):
        sampler = Sampler(
            expansions[order], "confidence", settings_of("confidence", 20), order=order,
            bound=bound, step_size=0.5, star=MODE, temperature=10.0,
        )  # fmt: skip
        counts[bound] = [
            sampler.run(np.random.default_rng(t), np.random.default_rng(t), np.array([0.4, -0.8]))[
                "batch_size"
            ]
            for t in range(60)
        ]
    assert np.all(np.array(counts["linear"]) >= counts["full"])
    assert min(counts["linear"]) < N


@pytest.mark.parametrize(("kind", "batch"), [(RANDOM_WALK, 0), (LANGEVIN, 10)])
def test_many_transitions_in_one_call_equal_many_calls(kind, batch, expansions):
    sampler = Sampler(
        expansions[1], "barker", settings_of("barker", 30), order=1, kind=kind, batch=batch
    )
    together, apart = np.array([0.45, -0.75]), np.array([0.45, -0.75])
    report = sampler.run(np.random.default_rng(6), np.random.default_rng(7), together, k=50)
    rng, row_rng = np.random.default_rng(6), np.random.default_rng(7)
    reports = [sampler.run(rng, row_rng, apart) for _ in range(50)]
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    for name, value in report.items():
        values = [r[name] for r in reports]
        expected = np.sum(values) if name.startswith("rows") else np.mean(values)
        np.testing.assert_allclose(value, expected, rtol=1e-8)


def test_how_many_rows_are_read_does_not_change_the_proposals(expansions):
    """Proposals and thresholds come from one generator, rows from the other."""
    states = []
    for batch in (20, N):
        sampler = Sampler(
            expansions[1], "barker", settings_of("barker", batch), order=1, step_size=1e-9
        )
        rng = np.random.default_rng(8)
        sampler.run(rng, np.random.default_rng(9), np.array([0.45, -0.75]), k=20)
        states.append(rng.bit_generator.state)
    assert states[0] == states[1]


@pytest.mark.parametrize("far", [1e3, 1e200, 1e308])
def test_proposals_out_of_range_are_rejected(far, expansions):
    for order in (0, 1, 2):
        for test in TESTS:
            sampler = Sampler(
                expansions[order], test, settings_of(test, 50), order=order, kind=GIVEN,
                bound="full",
            )  # fmt: skip
            theta = np.array([0.45, -0.75])
            info = sampler.run(
                np.random.default_rng(1), np.random.default_rng(2), theta,
                given=np.array([far, -far]),
            )  # fmt: skip
            assert info["accepted"] == 0
            assert theta.tolist() == [0.45, -0.75]
            assert info["acceptance_rate"] == 0


@pytest.mark.parametrize("log_factor", [np.nan, -np.inf])
def test_impossible_proposals_are_rejected_without_reading_rows(log_factor, expansions):
    sampler = Sampler(expansions[2], "austerity", settings_of("austerity", 50), order=2, kind=GIVEN)
    info = sampler.run(
        np.random.default_rng(1), np.random.default_rng(2), np.array([0.4, -0.7]),
        given=np.array([0.5, -0.8]), log_factor=log_factor,
    )  # fmt: skip
    assert info["accepted"] == info["batch_size"] == info["rows_tested"] == 0


# Invariance. Chains that start from the exact target stay there.


class Target:
    """The posterior, on a grid."""

    def __init__(self, rows, temperature=1.0, points=241):
        axes = [np.linspace(c - w, c + w, points) for c, w in ((0.5, 0.8), (-0.8, 0.9))]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        logp = np.concatenate([rows.logp(g, temperature) for g in np.array_split(grid, 100)])
        self.p = np.exp(logp - logsumexp(logp)).reshape(points, points)
        order = np.argsort(logp)
        self.levels = logp[order], np.cumsum(np.exp(logp - logsumexp(logp))[order])
        self.logp = lambda theta: rows.logp(theta, temperature)
        self.axes, self.steps = axes, [a[1] - a[0] for a in axes]
        assert max(self.p[[0, -1]].sum(), self.p[:, [0, -1]].sum()) < 1e-7

    def draw(self, rng, size):
        """Independent theta, shape (size, 2)."""
        cells = rng.choice(self.p.size, size=size, p=self.p.ravel())
        place = np.unravel_index(cells, self.p.shape)
        columns = [
            axis[i] + step * rng.uniform(-0.5, 0.5, size)
            for axis, step, i in zip(self.axes, self.steps, place, strict=True)
        ]
        return np.column_stack(columns)

    def distance(self, theta):
        """Largest of the Kolmogorov distances of both parameters and of the log density."""
        ranks = np.interp(self.logp(theta), *self.levels)
        found = [scipy.stats.kstest(ranks, "uniform").statistic]
        for a in range(2):
            cdf = np.append(0.0, np.cumsum(self.p.sum(axis=1 - a)))
            edges = np.append(self.axes[a], self.axes[a][-1] + self.steps[a]) - self.steps[a] / 2
            ranks = np.interp(theta[:, a], edges, cdf)
            found.append(scipy.stats.kstest(ranks, "uniform").statistic)
        return max(found)


CHAINS = 4_000
NOISE = scipy.stats.kstwo.isf(ERROR_RATE / 3, CHAINS)


@pytest.fixture(scope="module")
def target(rows):
    return Target(rows)


def run_chains(sampler, target, k, seed=5):
    rng, row_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    theta = target.draw(rng, CHAINS)
    moved, read = 0.0, 0.0
    for one in theta:
        info = sampler.run(rng, row_rng, one, k)
        moved += info["accepted"] / CHAINS
        read += info["batch_size"] / CHAINS / N
    return theta, moved, read


def test_start_from_the_target_passes_its_own_test(target):
    theta = target.draw(np.random.default_rng(7), CHAINS)
    assert target.distance(theta) < NOISE
    assert target.distance(theta + 0.02) > 2 * NOISE


# Of one decision, at most, that the documentation promises: `max_error`, epsilon, delta.
WRONG = {"barker": 0.002, "austerity": 0.005, "confidence": 0.01}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("test", "order", "kind", "step_size", "batch", "bound"),
    [
        ("barker", 1, RANDOM_WALK, 1.5, 40, None),
        ("barker", 0, RANDOM_WALK, 0.3, 40, None),
        pytest.param("barker", 1, LANGEVIN, 1.0, 40, None, marks=SLOW),
        ("austerity", 1, RANDOM_WALK, 1.5, 40, None),
        pytest.param("austerity", 0, LANGEVIN, 0.3, 40, None, marks=SLOW),
        ("confidence", 2, RANDOM_WALK, 1.5, 40, "linear"),
        pytest.param("confidence", 2, LANGEVIN, 1.0, 40, "full", marks=SLOW),
    ],
)
def test_target_is_invariant(test, order, kind, step_size, batch, bound, target, expansions):
    k = 5
    sampler = Sampler(
        expansions[order], test, settings_of(test, batch), order=order, kind=kind, batch=8,
        step_size=step_size, bound=bound, star=MODE if bound == "linear" else None,
    )  # fmt: skip
    theta, moved, read = run_chains(sampler, target, k)
    assert target.distance(theta) < NOISE + k * WRONG[test]
    assert 0.1 < moved < 0.95  # the test had something to do
    assert read < 0.8  # and did it on some of the rows


@pytest.mark.costly
@pytest.mark.parametrize("rows_of_gradient", [3, pytest.param(40, marks=SLOW)])
def test_langevin_on_a_minibatch_is_valid(rows_of_gradient, target, expansions):
    """With exact decisions and very noisy gradients."""
    sampler = Sampler(
        expansions[0], "austerity", settings_of("austerity", N, epsilon=0.0), order=0,
        kind=LANGEVIN, step_size=0.2, batch=rows_of_gradient,
    )  # fmt: skip
    theta, moved, _ = run_chains(sampler, target, 10)
    assert target.distance(theta) < NOISE
    assert 0.1 < moved < 0.98


def given_chains(sampler, target, propose, k):
    rng, row_rng = np.random.default_rng(10), np.random.default_rng(11)
    theta = target.draw(rng, CHAINS)
    for one in theta:
        for _ in range(k):
            new, log_factor = propose(rng, one)
            sampler.run(rng, row_rng, one, given=new, log_factor=log_factor)
    return theta


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "test", ["barker", *(pytest.param(t, marks=SLOW) for t in ("austerity", "confidence"))]
)
@pytest.mark.parametrize("mistake", [False, True])
def test_drifting_proposals_need_their_factor(test, mistake, target, expansions):
    sampler = Sampler(
        expansions[1], test, settings_of(test, 50), order=1, kind=GIVEN, bound="linear"
    )
    drift = 0.5

    def propose(rng, theta):
        z = rng.standard_normal(2)
        factor = 0.0 if mistake else 0.5 * (z @ z - (z + 2 * drift) @ (z + 2 * drift))
        return theta + 0.1 * (z + drift), factor

    theta = given_chains(sampler, target, propose, 3)
    distance = target.distance(theta)
    assert (distance > 2 * NOISE) if mistake else (distance < NOISE + 3 * WRONG[test])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("mistake", [False, True])
def test_langevin_proposals_need_their_reverse_density(mistake, rows, target, expansions):
    """Proposals made here, on minibatches, with their factor or without it."""
    sampler = Sampler(expansions[2], "barker", settings_of("barker", 50), order=2, kind=GIVEN)
    L, h, m = FULL, 0.5, 60
    design, shape = np.stack([np.ones(N), rows.x]), h**2 / 2 * FULL @ FULL.T

    def propose(rng, theta):
        index = rng.integers(0, N, m)
        x, y = design[:, index], rows.y[index]

        def force(at):
            return shape @ (N / m * x @ (y - expit(at @ x)) - at / PRIOR_SD**2)

        z = rng.standard_normal(2)
        new = theta + force(theta) + h * L @ z
        back = np.linalg.solve(h * L, theta - new - force(new))
        return new, 0.0 if mistake else 0.5 * (z @ z - back @ back)

    theta = given_chains(sampler, target, propose, 5)
    distance = target.distance(theta)
    assert (distance > 2 * NOISE) if mistake else (distance < NOISE + 5 * WRONG["barker"])


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "mistake",
    [
        "correction",
        "bound",
        *(pytest.param(m, marks=SLOW) for m in ("noise", "weight", "slope", "epsilon")),
    ],
)
def test_invariance_test_finds_mistakes(mistake, target, expansions):
    test = {"bound": "confidence", "epsilon": "austerity"}.get(mistake, "barker")
    settings = settings_of(test, 40, sigma=0.6)
    sampler = Sampler(expansions[1], test, settings, order=1)
    if mistake == "correction":  # X_corr left out
        sampler.settings = np.array([40, 0.01, 0.6, 0.0, 1, 0.0, 1.0])
    elif mistake == "noise":  # and X_nc twice the size
        sampler.settings[2] = 3.0
    elif mistake == "weight":
        # Of rows in an estimate, less than their share.
        sampler.population = sampler.population._replace(weight=N / 1.3)
    elif mistake == "slope":
        sampler.sums = sampler.sums._replace(slope=1.05 * sampler.sums.slope)
    elif mistake == "bound":
        sampler.bound = TermBound(GIVEN_BOUND, 0.0, np.zeros((0, 0)))
        sampler.settings = settings_of(test, 3)
        sampler.settings[1] = 0.999
    else:
        sampler.settings = settings_of(test, 3, epsilon=0.49)
    theta, moved, _ = run_chains(sampler, target, 20)
    assert moved > 0.02
    assert target.distance(theta) > 2 * NOISE
