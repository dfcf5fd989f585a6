"""Compiled Langevin steps on stochastic gradients: equation by equation, and where they end up."""

from itertools import combinations

import numpy as np
import pymc as pm
import pytest
from models import row_gradient
from scipy.stats import chi2, norm

from pymc_subsample.compiled.functions import address_of
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import no_sums, reference_at
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.gradients.gradient_estimates import (
    FUNCTIONS,
    STRATIFIED,
    UNIFORM,
    Batches,
    forces,
)
from pymc_subsample.samplers.gradients.integrators import INTEGRATORS
from pymc_subsample.samplers.gradients.kernel import (
    INFO,
    MOMENTUM,
    ONE,
    STOP,
    ZERO,
    State,
    integrate,
)
from pymc_subsample.samplers.gradients.stationary import (
    autocorrelation_time,
    choose_step_size,
    sd_error,
    spectrum,
    variances,
)

ERROR_RATE = 1e-5
ALL = list(INTEGRATORS)
WITH_MOMENTA = [name for name in ALL if INTEGRATORS[name].has_momenta]
N, D = 6, 2
ROWS = np.random.default_rng(5).normal(size=(N, D))
FACTOR = np.array([[0.6, 0.0], [0.2, 0.5]])
IDENTITY = np.ones((1, D))
# Integrator states of a chain that begins, at friction 1.3, where they are not zeros.
STARTS = {"preconditioned": [-1.0, -1.0], "thermostat": [1.3, 0.0]}


def gaussian_rows():
    """Expansions, by order, of a flat prior and rows l_i = -|theta - c_i|^2 / 2."""
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=D)
        pm.Normal("y", theta, 1.0, observed=ROWS)
    tall = TallModel(model, dim=None)
    return {order: expand(tall, order) for order in (0, 1, 2)}


@pytest.fixture(scope="module")
def gaussian():
    return gaussian_rows()


class Chain:
    """Arguments of `integrate`, and the same in NumPy on the Gaussian rows."""

    def __init__(self, expansion, dynamics, batch, seed=0, **kwargs):
        self.expansion, self.dynamics, self.batch = expansion, dynamics, batch
        self.rng, self.row_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        self.theta, self.origin = np.array([0.3, -0.4]), np.array([0.3, -0.4])
        self.momentum = np.array([0.5, -1.0])
        self.state = np.array(STARTS.get(dynamics, [0.0, 0.0]))
        self.factor, self.friction, self.temperature = FACTOR, 1.3, 0.8
        self.averaging, self.floor, self.length, self.rule = 0.9, 1e-3, 0, MOMENTUM
        self.refresh, self.done, self.sampling, self.order = 0, 0, UNIFORM, 0
        self.hold, self.most = 1, np.inf
        self.permutation = np.arange(expansion.n_rows, dtype=np.uint32)
        self.__dict__.update(kwargs)
        self.model = expansion.model(*FUNCTIONS)
        self.sums = self._sums()
        self.noise, self.squares, self.info = np.empty(D), np.empty(D), np.empty(len(INFO))

    def _sums(self):
        if not self.order:
            return no_sums(D)
        return reference_at(self.expansion, np.array([0.1, 0.2])).sums(self.order)

    def step(self, sizes):
        settings = np.array(
            [self.friction, self.temperature, self.averaging, self.floor, self.length, self.rule,
             self.refresh, self.done, self.hold, self.most], dtype=float,
        )  # fmt: skip
        batches = Batches(self.permutation, self.sampling, self.batch, np.arange(D), self.factor)
        state = State(self.theta, self.origin, self.momentum, self.state)
        integrate(INTEGRATORS[self.dynamics])(
            address_of(self.rng), address_of(self.row_rng), self.model, self.sums, batches, state,
            settings, np.asarray([sizes], dtype=float), np.empty((1, len(self.theta))),
            self.noise[None], self.squares[None], self.info[None],
        )  # fmt: skip
        self.done += len(sizes)
        return self.theta.copy()

    # NumPy

    def _batch(self):
        n = len(self.permutation)
        if self.sampling == STRATIFIED:
            u = [self.row_rng.random() for _ in range(self.batch)]
            return [self.permutation[int((s + x) * n / self.batch)] for s, x in enumerate(u)]
        left = list(self.permutation)
        for at in range(self.batch):
            other = at + int(self.row_rng.random() * (n - at))
            left[at], left[other] = left[other], left[at]
        return left[: self.batch]

    def _force(self, rows=None):
        rows = ROWS[self._batch()] if rows is None else rows
        return self.factor.T @ (N / self.batch * (rows - self.theta).sum(axis=0))

    def _weighted(self, h):
        sigma = np.sqrt(2 * self.temperature)
        sigma *= 1 if self.dynamics == "overdamped" else np.sqrt(self.friction)
        value = self.state if self.dynamics == "overdamped" else self.momentum
        scale = 1.0 if self.dynamics == "overdamped" else np.sqrt(h) * self.friction * np.sqrt(h)
        x = {
            MOMENTUM: scale * value / (sigma * np.sqrt(h)),
            ZERO: np.zeros(D),
            ONE: np.ones(D),
            STOP: (self.friction * h - 1) * self.momentum / (sigma * np.sqrt(h)),
        }[self.rule]
        force = self._force()
        for _ in range(self.length):
            other = self._force()
            here, there = (x - np.sqrt(h) / sigma * f for f in (force, other))
            if np.log(self.row_rng.random()) < 0.5 * (there @ there - here @ here):
                force = other
        return force

    def numpy(self, sizes):
        normal = self.rng.standard_normal
        friction, temperature, h_root = self.friction, self.temperature, np.sqrt
        measured = int(self.row_rng.random() * len(sizes))
        if not self.length:
            rows = ROWS[self._batch()]
            force = self._force(rows)
        for t, h in enumerate(sizes):
            if self.refresh and (self.done + t) % self.refresh == 0:
                self.momentum = h_root(temperature) * normal(D)
            if self.dynamics == "symplectic":
                self.theta = self.theta + h * self.factor @ self.momentum
            if self.dynamics == "baoab":
                half = self.momentum + h / 2 * force
                c = np.exp(-friction * h)
                self.momentum = c * half + np.sqrt((1 - c**2) * temperature) * normal(D)
                self.theta = self.theta + h / 2 * self.factor @ (half + self.momentum)
            if self.length:
                force = self._weighted(h)
            else:
                if t > 0 and t % self.hold == 0:
                    rows = ROWS[self._batch()]
                force = self._force(rows)
                if t == measured and (self.batch == 1 or self.sampling == STRATIFIED):
                    self._batch()  # by which the noise is estimated
            if self.dynamics == "baoab":
                self.momentum = self.momentum + h / 2 * force
            elif self.dynamics == "overdamped":
                self.state = h * force + np.sqrt(2 * h * temperature) * normal(D)
                self.theta = self.theta + self.factor @ self.state
            elif self.dynamics == "preconditioned":
                square = (force / N) ** 2
                old = np.where(self.state < 0, square, self.state)
                self.state = self.averaging * old + (1 - self.averaging) * square
                g = h / (self.floor + np.sqrt(self.state))
                change = g * force + np.sqrt(2 * g * temperature) * normal(D)
                self.theta = self.theta + self.factor @ change
            else:
                old = self.momentum
                damping = self.state[0] if self.dynamics == "thermostat" else friction
                self.momentum = old + h * (force - damping * old)
                self.momentum = self.momentum + np.sqrt(2 * friction * temperature * h) * normal(D)
                if self.dynamics == "thermostat":
                    self.theta = self.theta + h * self.factor @ self.momentum
                    self.state[0] += h * (self.momentum @ self.momentum / D - temperature)
                if self.dynamics == "euler":
                    self.theta = self.theta + h * self.factor @ old
        return self.theta


# Equation by equation


@pytest.mark.costly
@pytest.mark.parametrize("sampling", [UNIFORM, STRATIFIED])
@pytest.mark.parametrize("batch", [1, 4, N])
@pytest.mark.parametrize("dynamics", ALL)
def test_steps_are_those_of_numpy(gaussian, dynamics, batch, sampling):
    kwargs = {"sampling": sampling, "refresh": 3, "done": 1}
    kwargs["permutation"] = np.array([3, 1, 5, 0, 2, 4], dtype=np.uint32)
    if sampling == UNIFORM:
        kwargs["permutation"] = np.arange(N, dtype=np.uint32)
    one, other = (Chain(gaussian[0], dynamics, batch, **kwargs) for _ in range(2))
    sizes = [0.05, 0.02, 0.1, 0.07]
    np.testing.assert_allclose(one.step(sizes), other.numpy(sizes), rtol=1e-12)
    np.testing.assert_allclose(one.momentum, other.momentum, rtol=1e-12)
    np.testing.assert_allclose(one.state, other.state, rtol=1e-12)
    assert one.info[0] == 0


@pytest.mark.parametrize("hold", [2, 3, 10])
@pytest.mark.parametrize("dynamics", ALL)
def test_a_batch_may_serve_several_steps(gaussian, dynamics, hold):
    one, other = (Chain(gaussian[0], dynamics, 2, hold=hold) for _ in range(2))
    sizes = [0.05, 0.02, 0.1, 0.07, 0.03, 0.04, 0.05]
    np.testing.assert_allclose(one.step(sizes), other.numpy(sizes), rtol=1e-12)
    assert one.info[3] == 1 + (len(sizes) - 1) // hold
    assert one.info[2] == len(sizes) + 0.5 + (dynamics == "baoab")


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(
    ("dynamics", "rule"),
    [("euler", MOMENTUM), ("euler", ZERO), ("euler", ONE), ("euler", STOP),
     ("overdamped", MOMENTUM), ("overdamped", ONE)],
)  # fmt: skip
def test_weighted_steps_are_those_of_numpy(gaussian, dynamics, rule, length):
    kwargs = {"length": length, "rule": rule}
    one, other = (Chain(gaussian[0], dynamics, 2, **kwargs) for _ in range(2))
    sizes = [0.1, 0.2, 0.15, 0.05, 0.2] * 6
    np.testing.assert_allclose(one.step(sizes), other.numpy(sizes), rtol=1e-12)
    assert 0 < one.info[4] < length * len(sizes)


@pytest.mark.parametrize("dynamics", ALL)
def test_control_variates_of_order_two_make_gaussian_gradients_exact(gaussian, dynamics):
    """Steps on one row are then those on all rows."""
    few = Chain(gaussian[2], dynamics, 1, order=2)
    every = Chain(gaussian[0], dynamics, N)
    np.testing.assert_allclose(few.step([0.1] * 5), every.step([0.1] * 5), rtol=1e-9)
    assert np.all(few.noise < 1e-20)


@pytest.mark.parametrize("dynamics", ALL)
def test_zero_steps_do_not_move(gaussian, dynamics):
    chain = Chain(gaussian[0], dynamics, 2)
    np.testing.assert_array_equal(chain.step([0.0] * 3), [0.3, -0.4])


@pytest.mark.parametrize("dynamics", ["overdamped", "euler", "symplectic", "baoab"])
def test_zero_temperature_descends_to_the_mode(gaussian, dynamics):
    chain = Chain(gaussian[0], dynamics, N, temperature=0.0)
    np.testing.assert_allclose(chain.step([0.2] * 400), ROWS.mean(axis=0), atol=1e-9)


def test_what_leaves_all_bounds_starts_again(gaussian):
    chain = Chain(gaussian[0], "symplectic", 2, origin=np.array([1.0, 2.0]))
    chain.step([50.0] * 600)
    assert chain.info[0] > 0
    assert np.all(np.isfinite(chain.theta))
    assert np.all(np.isfinite(chain.momentum))


@pytest.mark.parametrize("dynamics", ALL)
def test_what_starts_again_has_the_state_of_a_chain_that_begins(gaussian, dynamics):
    begun = np.full(D, 7.0)
    INTEGRATORS[dynamics].start(1.3, begun)
    chain = Chain(gaussian[0], dynamics, 2, most=0.0)
    chain.state = np.full(D, 7.0)
    chain.step([0.1])
    assert chain.info[0] == 1
    for found in (begun, chain.state):
        np.testing.assert_array_equal(found, STARTS.get(dynamics, [0.0, 0.0]))
    np.testing.assert_array_equal(chain.momentum, np.zeros(D))


@pytest.mark.parametrize("dynamics", ["overdamped", "symplectic", "baoab"])
def test_steps_that_outweigh_their_noise_start_again(gaussian, dynamics):
    """A chain far out is sent back, whose drift is beyond the bound, and one within it is not."""
    origin, far = np.array([0.1, 0.2]), np.array([40.0, 0.0])
    for most, sent_back in ((1e3, False), (2.0, True)):
        chain = Chain(gaussian[0], dynamics, N, origin=origin, most=most, factor=IDENTITY)
        chain.theta = far.copy()
        chain.step([0.01])
        assert chain.info[0] == sent_back
        assert np.array_equal(chain.theta, origin) == sent_back


# Gradients


def subset_forces(batch):
    subsets = [list(c) for c in combinations(range(N), batch)]
    return np.array([N / batch * ROWS[s].sum(axis=0) for s in subsets])


def sampled(gaussian, order, sampling, batch, count, permutation=None, seed=0):
    rng, out = np.random.default_rng(seed), np.empty((count, D))
    chain = Chain(gaussian[order], "overdamped", batch, order=order)
    rows = np.arange(N, dtype=np.uint32) if permutation is None else permutation
    batches = Batches(rows, sampling, batch, np.arange(D), IDENTITY)
    forces(address_of(rng), chain.model, chain.sums, batches, np.zeros(D), out)
    return out


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_uniform_gradients_are_those_of_all_subsets(gaussian, batch, order):
    """Each subset comes equally often (chi-square), which makes the gradient unbiased."""
    found = sampled(gaussian, order, UNIFORM, batch, 20_000)
    if order:
        np.testing.assert_allclose(found, np.tile(ROWS.sum(axis=0), (len(found), 1)), atol=1e-9)
        return
    expected = subset_forces(batch)
    distance = np.abs(found[:, None] - expected[None]).sum(axis=-1)
    assert np.all(distance.min(axis=1) < 1e-9)
    counts = np.bincount(distance.argmin(axis=1), minlength=len(expected))
    mean = len(found) / len(expected)
    assert np.sum((counts - mean) ** 2 / mean) < chi2.isf(ERROR_RATE, len(expected) - 1)


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_stratified_gradients_are_unbiased_and_less_noisy(gaussian, batch):
    """Strata cut rows in two: each row still comes with probability b / n."""
    permutation = np.argsort(ROWS[:, 0]).astype(np.uint32)
    found = sampled(gaussian, 0, STRATIFIED, batch, 40_000, permutation)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - ROWS.sum(axis=0)) < norm.isf(ERROR_RATE / 4) * error)
    if batch > 1:
        uniform = sampled(gaussian, 0, UNIFORM, batch, 40_000)
        assert found[:, 0].var() < 0.5 * uniform[:, 0].var()


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "linear"), [("bernoulli_logit", True), ("student_t", True), ("student_t", False)]
)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_all_rows_give_the_exact_gradient(expansion, tall_model, name, order, linear):
    """Whatever the control variates, and however the model is compiled."""
    tall, made = tall_model(name), expansion(name, order, linear)
    assert made.linear == linear
    rng, n = np.random.default_rng(4), tall.n_rows
    star, theta = (tall.ravel(tall.initial_point) + x for x in rng.normal(0, 0.3, (2, tall.size)))
    at = reference_at(made, star)
    out = np.empty((1, tall.size))
    every, ones = np.arange(n, dtype=np.uint32), np.ones((1, tall.size))
    batches = Batches(every, UNIFORM, n, np.arange(tall.size), ones)
    forces(address_of(rng), made.model(*FUNCTIONS), at.sums(order), batches, theta, out)
    prior = made.pull_back(theta, np.zeros(made.phi_size))
    exact = prior + row_gradient(tall, theta, slice(None))
    np.testing.assert_allclose(out[0], exact, rtol=1e-8, atol=1e-8 * np.abs(exact).max())


@pytest.mark.parametrize("batch", [1, 2, 3, 5, N])
def test_noise_is_the_variance_of_a_gradient(gaussian, batch):
    chain = Chain(gaussian[0], "overdamped", batch, factor=IDENTITY)
    found = np.mean([(chain.step([1e-9]), chain.noise.copy())[1] for _ in range(20_000)], axis=0)
    expected = subset_forces(batch).var(axis=0)
    np.testing.assert_allclose(found, expected, rtol=0.06, atol=1e-12)


@pytest.mark.parametrize("batch", [2, 5])
def test_noise_of_strata_is_theirs(gaussian, batch):
    permutation = np.argsort(ROWS[:, 0]).astype(np.uint32)
    chain = Chain(
        gaussian[0], "overdamped", batch, factor=IDENTITY, sampling=STRATIFIED,
        permutation=permutation,
    )  # fmt: skip
    found = np.mean([(chain.step([1e-9]), chain.noise.copy())[1] for _ in range(20_000)], axis=0)
    expected = sampled(gaussian, 0, STRATIFIED, batch, 40_000, permutation).var(axis=0)
    np.testing.assert_allclose(found, expected, rtol=0.1)


# Exponential weights (Li et al. 2020)


def exact_weights(theta, x, h, sigma):
    a = -np.sqrt(h) / sigma * N * (ROWS - theta)
    log = 0.5 * np.sum((x + a) ** 2, axis=1)
    weights = np.exp(log - log.max())
    return a, weights / weights.sum()


def chosen_rows(gaussian, x_rule, h, length, momentum, count=4000, flip=1.0):
    """Rows that a weighted step took, found from where it went without noise of its own."""
    counts = np.zeros(N)
    for seed in range(count):
        chain = Chain(
            gaussian[0], "euler", 1, seed=seed, length=length, rule=x_rule, factor=IDENTITY,
            momentum=flip * momentum, temperature=0.8,
        )  # fmt: skip
        before = chain.momentum.copy()
        noise = np.random.default_rng(seed).standard_normal(D)
        chain.step([h])
        kick = chain.momentum - before * (1 - chain.friction * h)
        kick -= np.sqrt(2 * chain.friction * chain.temperature * h) * noise
        counts[np.argmin(np.abs(kick / h - N * (ROWS - np.array([0.3, -0.4]))).sum(axis=1))] += 1
    return counts


def test_index_chain_leaves_its_weights_invariant(gaussian):
    """Long chains draw rows with the weights of eq. 4; the weights of another x do not fit."""
    h, momentum = 0.02, np.array([0.5, -1.0])
    sigma = np.sqrt(2 * 1.3 * 0.8)
    x = np.sqrt(h) * 1.3 * momentum / sigma
    _, weights = exact_weights(np.array([0.3, -0.4]), x, h, sigma)
    _, others = exact_weights(np.array([0.3, -0.4]), -5 * x, h, sigma)
    counts = chosen_rows(gaussian, MOMENTUM, h, 60, momentum)
    limit = chi2.isf(ERROR_RATE, N - 1)
    total = counts.sum()
    assert np.sum((counts - total * weights) ** 2 / (total * weights)) < limit
    assert np.sum((counts - total * others) ** 2 / (total * others)) > limit


def test_one_step_of_the_index_chain(gaussian):
    """From a uniform row, by the acceptance probability of eq. 5."""
    h, momentum = 0.02, np.array([0.5, -1.0])
    sigma = np.sqrt(2 * 1.3 * 0.8)
    x = np.sqrt(h) * 1.3 * momentum / sigma
    _, weights = exact_weights(np.array([0.3, -0.4]), x, h, sigma)
    accept = np.minimum(1, weights[None, :] / weights[:, None]) / N
    move = accept - np.diag(np.diag(accept))
    move += np.diag(1 - move.sum(axis=1))
    expected = np.full(N, 1 / N) @ move
    counts = chosen_rows(gaussian, MOMENTUM, h, 1, momentum)
    total = counts.sum()
    limit = chi2.isf(ERROR_RATE, N - 1)
    assert np.sum((counts - total * expected) ** 2 / (total * expected)) < limit
    assert np.sum((counts - total / N) ** 2 / (total / N)) > limit


def test_exact_weights_match_the_kernel_on_all_rows():
    """Theorem 2: given the step x, all rows are equally likely under the weights.

    The kernel of the weighted step is then that on all rows over the weights' normalisation, whose
    mean is one but which depends on x by terms of order h: the theorem takes it as a constant.
    """
    theta, sigma = np.array([0.3, -0.4]), 1.2
    worst = {}
    for h in (0.002, 0.0005):
        rng = np.random.default_rng(0)
        full = -np.sqrt(h) / sigma * (ROWS - theta).sum(axis=0)
        x = -full + rng.normal(size=(2000, D))  # steps on all rows
        ratio = []
        for at in x:
            a, weights = exact_weights(theta, at, h, sigma)
            log = norm.logpdf(at + a).sum(axis=1)
            joint = weights * np.exp(log)
            np.testing.assert_allclose(joint, joint.mean(), rtol=1e-9)
            ratio.append(joint.sum() / np.exp(norm.logpdf(at + full).sum()))
        worst[h] = np.mean(np.abs(np.array(ratio) - 1))
    assert 3.5 < worst[0.002] / worst[0.0005] < 4.5


@pytest.mark.costly(cases=0)
def test_weights_reduce_the_noise(gaussian):
    """Kinetic temperature of SGHMC with and without: theirs must be nearer to T (Theorem 3)."""
    heat = {}
    for length in (0, 1):
        chain = Chain(
            gaussian[0], "euler", 1, friction=10.0, temperature=1.0, factor=IDENTITY, length=length
        )
        chain.step([0.02] * 1000)
        blocks = [(chain.step([0.02] * 10_000), chain.info[1])[1] for _ in range(120)]
        heat[length] = np.mean(blocks) - 1, np.std(blocks, ddof=1) / np.sqrt(120)
    (plain, error), (weighted, other) = heat[0], heat[1]
    assert plain - weighted > norm.isf(ERROR_RATE) * np.hypot(error, other)
    assert weighted > 0


# Where they end up


def gaussian_noise(batch):
    spread = ROWS.var(axis=0, ddof=1)
    return N**2 * spread / batch * (1 - batch / N)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("h", "batch"), [(0.1, N), (0.3, N), (0.1, 1), (0.2, 3)], ids=["m=n", "large", "1", "3"]
)
@pytest.mark.parametrize("dynamics", ["overdamped", *WITH_MOMENTA])
def test_stationary_variances_are_those_of_theory(gaussian, dynamics, h, batch):
    assert_ends_up(gaussian, dynamics, h, batch)


def assert_ends_up(gaussian, dynamics, h, batch):
    """Long runs, by batch means; the variance without noise and at step zero does not fit."""
    h = h / 3 if dynamics in ("overdamped", "thermostat") else h
    scale = np.sqrt(1 / N)  # the posterior's sd: curvature 1
    factor = np.full((1, D), scale)
    noise = gaussian_noise(batch) * scale**2
    chain = Chain(gaussian[0], dynamics, batch, factor=factor, friction=2.0, temperature=1.0)
    if dynamics == "thermostat":
        chain.state[:] = [2.0, 0.0]
    chain.step([h] * 5000)
    draws, squares = [], []
    sizes = np.full(20, h)
    for _ in range(20_000):
        draws.append((chain.step(sizes) - ROWS.mean(axis=0)) / scale)
        squares.append(chain.squares.copy())
    position, momentum = variances(INTEGRATORS[dynamics], h, 2.0, 1.0, np.ones(D), noise)
    z = norm.isf(ERROR_RATE / 16)
    pairs = [(np.array(draws) ** 2, position)]
    if dynamics != "overdamped":
        pairs.append((np.array(squares), momentum))
    for found, expected in pairs:
        means = found.reshape(50, -1, D).mean(axis=1)
        error = means.std(axis=0, ddof=1) / np.sqrt(50)
        assert np.all(np.abs(means.mean(axis=0) - expected) < 1.3 * z * error), (dynamics, h, batch)
        assert np.all(error < 0.03 * expected)


@pytest.mark.parametrize("h", [0.1, 0.7])
@pytest.mark.parametrize("dynamics", [n for n in ALL if not INTEGRATORS[n].own_metric])
def test_linear_maps_are_those_of_the_steps(gaussian, dynamics, h):
    assert_moves_as_its_map(gaussian, dynamics, h)


def assert_moves_as_its_map(gaussian, dynamics, h):
    """Without noise, on all rows: to where a step leads, the map leads in some coordinates."""
    scale, size = np.full((1, D), 0.9 / np.sqrt(N)), 1 + INTEGRATORS[dynamics].has_momenta
    step, mode = np.empty((size, size)), ROWS.mean(axis=0)
    for k in range(size):
        chain = Chain(gaussian[0], dynamics, N, factor=scale, friction=1.3, temperature=0.0)
        chain.theta, chain.momentum = mode + (k == 0) * scale[0], np.full(D, float(k))
        chain.step([h])
        step[:, k] = [(chain.theta - mode)[0] / scale[0, 0], chain.momentum[0]][:size]

    def rates(matrix):
        return np.sort_complex(np.linalg.eigvals(matrix))

    def mapped(friction, curvature):
        found = INTEGRATORS[dynamics].linear_map(h, friction, np.array([curvature]))
        return rates(found.matrix[0])

    np.testing.assert_allclose(mapped(1.3, 0.81), rates(step), rtol=1e-9)
    assert not np.allclose(mapped(1.3, 0.82), rates(step), rtol=1e-5)
    assert size == 1 or not np.allclose(mapped(1.31, 0.81), rates(step), rtol=1e-5)


def test_baoab_is_exact_for_positions_of_a_normal():
    for h in (0.1, 0.5, 1.5):
        position, _ = variances(INTEGRATORS["baoab"], h, 2.0, 1.3, np.array([0.7]), np.zeros(1))
        np.testing.assert_allclose(position, 1.3 / 0.7, rtol=1e-12)


@pytest.mark.parametrize("dynamics", ["overdamped", "euler", "symplectic", "baoab", "thermostat"])
def test_unstable_steps_have_no_stationary_variance(dynamics):
    position, _ = variances(INTEGRATORS[dynamics], 5.0, 2.0, 1.0, np.ones(2), np.zeros(2))
    assert np.all(np.isinf(position))
    assert autocorrelation_time(INTEGRATORS[dynamics], 5.0, 2.0, np.ones(2)) == np.inf


@pytest.mark.parametrize("noise", [0.0, 10.0, 1e4])
@pytest.mark.parametrize("dynamics", ["overdamped", "euler", "symplectic", "baoab", "thermostat"])
def test_chosen_step_sizes_keep_their_promise(dynamics, noise):
    curvature, noise = np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0]) * noise
    h = choose_step_size(INTEGRATORS[dynamics], 2.0, curvature, noise)
    for size, fits in ((h, True), (1.25 * h, h > 0.4)):
        position, _ = variances(INTEGRATORS[dynamics], size, 2.0, 1.0, curvature, noise)
        assert (np.max(np.abs(sd_error(position, 1.0, curvature))) <= 0.02) == fits


def test_spectrum_follows_the_posteriors_directions():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    directions = np.linalg.qr(root)[0]
    precision = directions @ np.diag([1.0, 4.0, 9.0]) @ directions.T
    noise = directions @ np.diag([3.0, 2.0, 1.0]) @ directions.T
    curvature, found, _ = spectrum(precision, noise)
    np.testing.assert_allclose(curvature, [1, 4, 9])
    np.testing.assert_allclose(found, [3, 2, 1])
    curvature, found, _ = spectrum(np.ones(3), noise)
    np.testing.assert_allclose(np.sort(found), [1, 2, 3])
