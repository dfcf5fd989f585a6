"""The compiled transition: densities, invariance of its target, bookkeeping, failure modes.

The model is a Poisson regression on a handful of rows, small enough to enumerate all subsamples.
Its mathematics are written out in NumPy here, apart from the package.
"""

from copy import copy
from dataclasses import replace
from itertools import product

import numba
import numpy as np
import pymc as pm
import pytest
import scipy.stats
from exact_cases import Line
from scipy.special import gammaln, logsumexp

from pymc_subsample.compiled.functions import address_of
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.curvature import covariance
from pymc_subsample.expansion.factors import factor
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.dynamics import Moves, trajectory, tree
from pymc_subsample.kernels.estimates import (
    FUNCTIONS,
    PERTURBED,
    SubsampleEstimate,
    perturbed,
    target_at,
)
from pymc_subsample.kernels.model import Surface
from pymc_subsample.model import TallModel
from pymc_subsample.rows.row_store import RowStore, drawn_without
from pymc_subsample.samplers.hmc_ecs.kernel import INFO, Fresh, SubsampleArrays, transitions

ERROR_RATE = 1e-5
CHAINS = 8_000
PRIOR_SD = 0.25


class Poisson(Line):
    """y ~ Poisson(exp(a + b x)), a and b ~ N(0, 0.25), in NumPy; theta has shape (..., 2)."""

    def logprior(self, theta):
        return -0.5 * (theta**2).sum(axis=-1) / PRIOR_SD**2 - np.log(2 * np.pi * PRIOR_SD**2)

    def loglik(self, theta):
        eta = self.eta(theta)
        return self.y * eta - np.exp(eta) - gammaln(self.y + 1)

    def control(self, theta, star, order):
        mean = np.exp(self.eta(star))
        delta = self.eta(theta) - self.eta(star)
        q = self.loglik(star) + np.zeros_like(delta)
        if order >= 1:
            q = q + (self.y - mean) * delta
        if order >= 2:
            q = q - 0.5 * mean * delta**2
        return q

    def logp(self, theta, index, star, order, temperature=1.0, correction=1.0, always=()):
        """Estimated log posterior on the subsample `index`, shape (..., m)."""
        q = self.control(theta, star, order)
        residuals = self.loglik(theta) - q
        d, known = residuals[..., index], residuals[..., list(always)]
        weight = (len(self.x) - len(always)) / (len(index) * temperature)
        s2 = weight**2 * ((d - d.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
        estimate = (q.sum(axis=-1) + known.sum(axis=-1)) / temperature + weight * d.sum(axis=-1)
        return self.logprior(theta) + estimate - 0.5 * correction * s2


def rows_of(n, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return Poisson(x, rng.poisson(np.exp(0.3 + 0.5 * x)))


@pytest.fixture(scope="module")
def poisson():
    """Compiled expansions by order, to be driven with other rows."""
    few = rows_of(11)
    with pm.Model() as model:
        a = pm.Normal("a", 0, PRIOR_SD)
        b = pm.Normal("b", 0, PRIOR_SD)
        pm.Poisson("y", pm.math.exp(a + b * few.x), observed=few.y)
    tall = TallModel(model)
    made = {order: expand(tall, order) for order in (0, 1, 2)}
    order_of_columns = [np.array_equal(c, few.x) for c in tall.rows.columns]

    def make(rows, order):
        columns = [rows.x if is_x else rows.y for is_x in order_of_columns]
        other, packer = copy(tall), object.__new__(Packer)
        other.rows = RowStore(columns, len(rows.x))
        packer.__dict__ = vars(made[order].packer) | {"_model": other}
        build = made[order].build | {"gather": packer.compile_gather}
        return replace(made[order], store=other.rows, packer=packer, build=build)

    return make


@numba.njit
def evaluate(model, sums, given, moves, rows, counts, theta, phi, d, grad):
    target = target_at(model, sums, given, moves)
    return perturbed(Surface(target, rows, counts, phi, d), theta, grad)


class Sampler:
    """Calls the compiled transition the way a step does."""

    def __init__(self, ex, star, m, n_blocks, *, temperature=1.0, correction=1.0, step_size=0.7,
                 path_length=1.5, mass="dense", active=None, dynamics=trajectory,
                 always=()):  # fmt: skip
        self.ex, self.m, self.n_blocks = ex, m, n_blocks
        self.reference = reference_at(ex, star, temperature)
        self.active = np.arange(ex.theta_size) if active is None else np.array(active)
        cov = covariance(Quadratic(ex, self.reference).precision(self.active))
        self.factor = factor(cov) if mass == "dense" else np.sqrt(np.diag(cov))[None]
        self.always = np.array(always, dtype=np.int64)
        self.exact, self.unit = self.anchored(self.always), 1 / temperature
        self.weight = (ex.n_rows - len(always)) / (m * temperature)
        self.correction, self.step_size = correction, step_size
        self.dynamics, self.extent = dynamics, path_length

    def anchored(self, index):
        rows = self.ex.take(index)
        self.ex.anchor(self.reference.center, rows)
        return rows

    def draw_rows(self, rng, k):
        return drawn_without(rng, self.ex.n_rows, self.always, (k, self.m // self.n_blocks))

    def run(self, rng, theta, index, rows, block, fresh):
        """Overwrite theta, index and rows by k transitions; return what they report."""
        info, ones = np.empty(len(INFO)), np.ones(self.n_blocks, dtype=np.int64)
        start = np.arange(len(fresh) + 1) * fresh.shape[1]
        transitions(PERTURBED, self.dynamics)(
            address_of(rng), *self.parts(), SubsampleArrays(index, rows, ones, block),
            Fresh(fresh.ravel(), start), theta[None], info[None],
        )  # fmt: skip
        return dict(zip(INFO, info, strict=True))

    def parts(self):
        at = self.reference
        given = SubsampleEstimate(
            self.weight, self.correction, 0.0, at.theta, np.inf, self.exact, self.unit
        )
        moves = Moves(self.active, self.factor, self.step_size, float(self.extent))
        return self.ex.model(*FUNCTIONS), at.sums(self.ex.order), given, moves

    def chain(self, rng, theta, index, k):
        """Run k transitions from theta and index; return the new ones and the report."""
        theta, index = theta.copy(), index.copy()
        info = self.run(rng, theta, index, self.anchored(index), 0, self.draw_rows(rng, k))
        return theta, index, info

    def density(self, theta, index):
        """Value, variance and gradient of the estimated log posterior."""
        ex = self.ex
        phi, d, grad = np.empty(ex.phi_size), np.empty(len(index)), np.empty(ex.theta_size)
        value, _, variance = evaluate(
            *self.parts(), self.anchored(index), np.ones(1, dtype=np.int64), theta, phi, d, grad
        )
        return value, variance, grad


# Reference points by order, off the mode so that residuals matter.
STARS = {0: np.array([0.3, -0.2]), 1: np.array([0.7, -0.5]), 2: np.array([0.5, 0.3])}
STAR = STARS[2]


# Density


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(("temperature", "correction"), [(1.0, 1.0), (3.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("always", [(), (5, 12, 28)])
def test_density_and_gradient(order, temperature, correction, always, poisson):
    rows, index = rows_of(30), np.array([3, 3, 17, 0, 29, 8, 8])
    sampler = Sampler(
        poisson(rows, order), STAR, 7, 7, temperature=temperature, correction=correction,
        always=always,
    )  # fmt: skip
    theta = np.array([0.8, -0.6])

    def expected(theta):
        return rows.logp(theta, index, STAR, order, temperature, correction, always)

    value, variance, grad = sampler.density(theta, index)
    # PyMC takes the logarithm of a prior's constant scale in single precision.
    np.testing.assert_allclose(value, expected(theta), rtol=1e-9)
    h = 1e-5 * np.eye(2)
    slopes = [(expected(theta + s) - expected(theta - s)) / 2e-5 for s in h]
    np.testing.assert_allclose(grad, slopes, rtol=1e-7)

    d = (rows.loglik(theta) - rows.control(theta, STAR, order))[index]
    scaled = sampler.weight * (d - d.mean())
    np.testing.assert_allclose(variance, (scaled**2).sum(), rtol=1e-10)


# The transition, draw for draw


def numpy_transition(rng, rows, sampler, order, theta, index, block, fresh, correction=1.0):
    """One transition of the algorithm in NumPy, with gradients from the compiled density."""
    m, b = len(index), len(fresh)

    def logp(theta, index):
        return rows.logp(theta, index, STARS[order], order, correction=correction)

    proposal = index.copy()
    at = block % (m // b) * b
    proposal[at : at + b] = fresh
    if np.log(rng.random()) < logp(theta, proposal) - logp(theta, index):
        index = proposal
    length = sampler.extent * (0.8 + 0.4 * rng.random())
    steps = max(1, round(length / sampler.step_size))
    p = rng.standard_normal(2)
    L = sampler.factor
    q, energy = theta.copy(), 0.5 * p @ p - logp(theta, index)
    for _ in range(steps):
        p = p + 0.5 * sampler.step_size * L.T @ sampler.density(q, index)[-1]
        q = q + sampler.step_size * L @ p
        p = p + 0.5 * sampler.step_size * L.T @ sampler.density(q, index)[-1]
    error = 0.5 * p @ p - logp(q, index) - energy
    if rng.random() < np.exp(-error):
        theta = q
    return theta, index, error


@pytest.mark.costly
@pytest.mark.parametrize("order", [1, 2])
def test_transitions_equal_the_algorithm_in_numpy(order, poisson):
    rows = rows_of(40)
    sampler = Sampler(poisson(rows, order), STARS[order], 12, 4, step_size=1.4)
    ours, theirs, setup = (np.random.default_rng(s) for s in (2, 2, 3))
    theta = other = np.array([0.6, -0.2])
    index = other_index = setup.integers(0, 40, 12)
    cached = sampler.anchored(index)
    moves = refreshes = 0
    for t in range(60):
        fresh = sampler.draw_rows(setup, 1)
        before = index.copy()
        theta, index = theta.copy(), index.copy()
        info = sampler.run(ours, theta, index, cached, t % 4, fresh)
        other, other_index, error = numpy_transition(
            theirs, rows, sampler, order, other, other_index, t, fresh[0]
        )
        np.testing.assert_allclose(theta, other, rtol=1e-7)
        np.testing.assert_allclose(info["energy_error"], error, atol=1e-8)
        assert index.tolist() == other_index.tolist()
        moves += info["accepted"]
        refreshes += info["subset_accepted"]
        assert info["subset_accepted"] == 1 or index.tolist() == before.tolist()
    assert 5 < moves < 60  # both outcomes of the test
    assert 5 < refreshes < 60


# Invariance. Chains that start from the exact target stay there.


class Target:
    """Joint distribution of theta and all n^m subsamples: theta on a grid, u enumerated."""

    def __init__(self, rows, m, order, points=161, width=1.6, always=()):
        drawn = [i for i in range(len(rows.x)) if i not in always]
        self.subsamples = np.array(list(product(drawn, repeat=m)))
        self.number = {tuple(u): k for k, u in enumerate(self.subsamples.tolist())}
        axis = np.linspace(-width, width, points)
        self.axis, self.step = axis, axis[1] - axis[0]
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
        logp = np.array(
            [rows.logp(grid, u, STARS[order], order, always=always) for u in self.subsamples]
        )
        self.p = np.exp(logp - logsumexp(logp))
        edge = max(self.p[:, [0, -1]].sum(), self.p[:, :, [0, -1]].sum())
        assert edge < 1e-7

    def draw(self, rng, size):
        """Independent theta, shape (size, 2), and numbers of subsamples."""
        cells = rng.choice(self.p.size, size=size, p=self.p.ravel())
        u, *place = np.unravel_index(cells, self.p.shape)
        jitter = rng.uniform(-0.5, 0.5, (size, 2))
        return self.axis[np.column_stack(place)] + self.step * jitter, u

    def p_value(self, theta, u):
        """Smallest of the p-values of u and of both parameters given u, times their number."""
        counts = np.bincount(u, minlength=len(self.p))
        expected = self.p.sum(axis=(1, 2)) * len(u)
        few = expected < 10
        if few.any():
            counts = np.append(counts[~few], counts[few].sum())
            expected = np.append(expected[~few], expected[few].sum())
        values = [scipy.stats.chisquare(counts, expected).pvalue]
        edges = np.append(self.axis - self.step / 2, self.axis[-1] + self.step / 2)
        for a in range(2):
            marginal = self.p.sum(axis=2 - a)
            cdf = np.cumsum(marginal / marginal.sum(axis=1, keepdims=True), axis=1)
            cdf = np.column_stack([np.zeros(len(cdf)), cdf])
            ranks = np.array(
                [np.interp(x, edges, cdf[i]) for x, i in zip(theta[:, a], u, strict=True)]
            )
            values.append(scipy.stats.kstest(ranks, "uniform").pvalue)
        return min(1.0, len(values) * min(values))


def run_chains(sampler, target, rng, k, calls=1):
    theta, u = target.draw(rng, CHAINS)
    moved = np.zeros(3)
    for c in range(CHAINS):
        index = target.subsamples[u[c]]
        for _ in range(calls):
            new, index, info = sampler.chain(rng, theta[c], index, k)
            theta[c] = new
            moved += [info[key] for key in ("accepted", "subset_accepted", "diverging")]
        u[c] = target.number[tuple(index.tolist())]
    return theta, u, moved / (CHAINS * calls)


@pytest.fixture(scope="module")
def tiny():
    return rows_of(6, seed=5)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("order", "m", "n_blocks", "mass", "k", "dynamics"),
    [
        (1, 2, 2, "dense", 3, trajectory),
        (2, 3, 3, "diagonal", 2, trajectory),
        (0, 3, 1, "dense", 2, trajectory),
        (1, 2, 2, "dense", 2, tree),
        (0, 3, 1, "diagonal", 2, tree),
    ],
)
def test_target_is_invariant(order, m, n_blocks, mass, k, dynamics, poisson, tiny):
    target = Target(tiny, m, order)
    extent = 1.5 if dynamics == trajectory else 6
    sampler = Sampler(
        poisson(tiny, order), STARS[order], m, n_blocks, mass=mass, dynamics=dynamics,
        path_length=extent,
    )  # fmt: skip
    theta, u, moved = run_chains(sampler, target, np.random.default_rng(5), k)
    assert target.p_value(theta, u) > ERROR_RATE
    assert moved[0] > 0.5
    assert moved[0] < 0.99 or dynamics == tree  # the acceptance test had something to do
    assert 0.1 < moved[1] < 0.97
    assert moved[2] == 0


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("dynamics", [trajectory, tree])
def test_target_is_invariant_where_some_rows_are_always_read(dynamics, poisson, tiny):
    always = (1, 4)
    target = Target(tiny, 2, 1, always=always)
    extent = 1.5 if dynamics == trajectory else 6
    sampler = Sampler(
        poisson(tiny, 1), STARS[1], 2, 2, dynamics=dynamics, path_length=extent, always=always
    )
    theta, u, _ = run_chains(sampler, target, np.random.default_rng(5), 2)
    assert target.p_value(theta, u) > ERROR_RATE
    # Negative control: the weight of a subsample of all rows.
    sampler.weight = sampler.ex.n_rows / sampler.m
    theta, u, _ = run_chains(sampler, target, np.random.default_rng(5), 2)
    assert target.p_value(theta, u) < ERROR_RATE


@pytest.mark.costly(cases=0)
def test_target_is_invariant_over_calls(poisson, tiny):
    target = Target(tiny, 2, 1)
    sampler = Sampler(poisson(tiny, 1), STARS[1], 2, 1)
    theta, u, _ = run_chains(sampler, target, np.random.default_rng(5), 1, calls=3)
    assert target.p_value(theta, u) > ERROR_RATE


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("order", "m", "mistake"),
    [(0, 3, "correction"), (1, 2, "correction"), (1, 2, "weight"), (1, 2, "slope"),
     (2, 2, "curvature"), (2, 2, "proposal")],
)  # fmt: skip
def test_invariance_test_finds_mistakes(order, m, mistake, poisson, tiny, monkeypatch):
    target = Target(tiny, m, order)
    sampler = Sampler(poisson(tiny, order), STARS[order], m, m)
    at = sampler.reference
    if mistake == "correction":
        sampler.correction = 0.0
    elif mistake == "weight":
        sampler.weight *= 1.2
    elif mistake == "slope":
        sampler.reference = replace(at, slope=1.2 * at.slope)
    elif mistake == "curvature":
        sampler.reference = replace(at, curvature=1.2 * at.curvature)
    else:
        uniform = sampler.draw_rows
        monkeypatch.setattr(
            sampler, "draw_rows", lambda rng, k: uniform(rng, k) if rng.random() < 0.8 else
            np.zeros((k, 1), int)
        )  # fmt: skip
    theta, u, _ = run_chains(sampler, target, np.random.default_rng(6), 3)
    assert target.p_value(theta, u) < 1e-10


@pytest.mark.costly
def test_start_from_the_target_passes_its_own_test(poisson, tiny):
    target = Target(tiny, 2, 1)
    theta, u = target.draw(np.random.default_rng(7), CHAINS)
    assert target.p_value(theta, u) > ERROR_RATE
    assert target.p_value(theta + 0.02, u) < 1e-10


# A quadratic log-likelihood: the subsample does not matter


@pytest.fixture(scope="module")
def gaussian():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 3))
    y = X @ [0.3, -0.2, 0.5] + 0.7 * rng.normal(size=300)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Normal("y", X @ beta, 0.7, observed=y)
    matrix = X.T @ X / 0.49 + np.eye(3)
    return expand(TallModel(model)), np.linalg.solve(matrix, X.T @ y / 0.49), matrix


@pytest.mark.costly
@pytest.mark.parametrize("far", [0.0, 5.0])
def test_exact_proxies_give_plain_hmc(far, gaussian):
    ex, mean, matrix = gaussian
    sampler = Sampler(ex, mean + far, 10, 5, step_size=0.5)
    rng, draws = np.random.default_rng(9), []
    theta, index = mean.copy(), rng.integers(0, 300, 10)
    rows = sampler.anchored(index)
    scale = np.linalg.cholesky(np.linalg.inv(matrix))
    plain, reference = np.random.default_rng(9), mean.copy()
    plain.integers(0, 300, 10)
    for t in range(4000):
        info = sampler.run(rng, theta, index, rows, t % 5, sampler.draw_rows(rng, 1))
        assert info["loglik_variance"] < 1e-12
        assert info["subset_accepted"] == 1 or t > 5
        draws.append(theta.copy())
        if t < 50:
            sampler.draw_rows(plain, 1)
            plain.random()
            steps = max(1, round(sampler.extent * (0.8 + 0.4 * plain.random()) / 0.5))
            p, q = plain.standard_normal(3), reference.copy()
            energy = 0.5 * p @ p + 0.5 * (q - mean) @ matrix @ (q - mean)
            for _ in range(steps):
                p = p - 0.25 * scale.T @ matrix @ (q - mean)
                q = q + 0.5 * scale @ p
                p = p - 0.25 * scale.T @ matrix @ (q - mean)
            new_energy = 0.5 * p @ p + 0.5 * (q - mean) @ matrix @ (q - mean)
            if plain.random() < np.exp(energy - new_energy):
                reference = q
            np.testing.assert_allclose(theta, reference, rtol=1e-6)
    white = np.linalg.solve(scale, (np.array(draws) - mean).T)
    # Quarter-period trajectories make draws nearly independent: at least 2,000 effective ones.
    z = scipy.stats.norm.isf(ERROR_RATE / 12)
    np.testing.assert_allclose(white.mean(axis=1), 0, atol=z / np.sqrt(2000))
    np.testing.assert_allclose(white.std(axis=1), 1, atol=z / np.sqrt(2 * 2000))


# Bookkeeping


def test_caches_hold_the_rows_of_the_index(poisson):
    rows = rows_of(50)
    sampler = Sampler(poisson(rows, 2), STAR, 20, 5)
    rng = np.random.default_rng(10)
    theta, index = STAR.copy(), rng.integers(0, 50, 20)
    cached = sampler.anchored(index)
    start = index.copy()
    for t in range(10):
        sampler.run(rng, theta, index, cached, (3 * t) % 5, sampler.draw_rows(rng, 3))
        expected = np.concatenate(
            [sampler.anchored(block) for block in index.reshape(5, 4)], axis=1
        )
        np.testing.assert_allclose(cached, expected, rtol=1e-14)
    assert (index != start).any()


@pytest.mark.parametrize("block", [0, 3, 4])
def test_many_transitions_in_one_call_equal_many_calls(block, poisson):
    rows, k = rows_of(50), 8
    sampler = Sampler(poisson(rows, 1), STAR, 20, 5)
    rng = np.random.default_rng(11)
    fresh = sampler.draw_rows(rng, k)
    index = rng.integers(0, 50, 20)

    together, index_together = STAR.copy(), index.copy()
    report = sampler.run(
        np.random.default_rng(12), together, index_together, sampler.anchored(index), block,
        fresh,
    )  # fmt: skip
    one_by_one, index_one_by_one = STAR.copy(), index.copy()
    cached, same, reports = sampler.anchored(index), np.random.default_rng(12), []
    for t in range(k):
        at = (block + t) % 5
        reports.append(
            sampler.run(same, one_by_one, index_one_by_one, cached, at, fresh[t : t + 1])
        )
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)
    assert index_together.tolist() == index_one_by_one.tolist()
    for key in ("acceptance_rate", "accepted", "subset_accepted"):
        np.testing.assert_allclose(report[key], np.mean([r[key] for r in reports]), rtol=1e-9)
    for key in ("n_steps", "diverging"):
        assert report[key] == sum(r[key] for r in reports)
    for key in ("energy", "energy_error", "loglik_variance", "log_posterior"):
        np.testing.assert_allclose(report[key], reports[-1][key], rtol=1e-9, atol=1e-12)


def test_inactive_parameters_do_not_move(poisson):
    sampler = Sampler(poisson(rows_of(50), 2), STAR, 20, 5, active=[1])
    rng = np.random.default_rng(13)
    theta, _, info = sampler.chain(rng, np.array([0.37, 0.2]), rng.integers(0, 50, 20), 20)
    assert info["accepted"] > 0
    assert theta[0] == 0.37
    assert theta[1] != 0.2


@pytest.mark.costly
def test_report_describes_the_current_state(poisson):
    rows = rows_of(50)
    sampler = Sampler(poisson(rows, 2), STAR, 20, 5)
    rng = np.random.default_rng(14)
    theta, index = STAR, rng.integers(0, 50, 20)
    for _ in range(10):
        theta, index, info = sampler.chain(rng, theta, index, 2)
        value, variance, _ = sampler.density(theta, index)
        np.testing.assert_allclose(info["log_posterior"], value, rtol=1e-12)
        np.testing.assert_allclose(info["loglik_variance"], variance, rtol=1e-9)


# Where the density is not finite


@pytest.mark.parametrize("step_size", [30.0, 1e4, 1e300])
def test_overflowing_trajectories_are_rejected(step_size, poisson):
    sampler = Sampler(poisson(rows_of(50), 2), STAR, 20, 5, step_size=step_size)
    rng = np.random.default_rng(15)
    theta, index = STAR, rng.integers(0, 50, 20)
    divergences = 0
    for _ in range(50):
        new, index, info = sampler.chain(rng, theta, index, 1)
        assert np.isfinite(new).all()
        assert not np.isnan(list(info.values())).any()
        assert info["diverging"] == 0 or (info["accepted"] == 0 and new.tolist() == theta.tolist())
        divergences += info["diverging"]
        theta = new
    assert divergences > 40


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused(value, poisson):
    rows = rows_of(50)
    sampler = Sampler(poisson(rows, 2), STAR, 20, 5)
    rng = np.random.default_rng(16)
    index = rng.integers(0, 50, 20)
    cached, theta, before = sampler.anchored(index), STAR.copy(), index.copy()
    fresh = np.setdiff1d(np.arange(50), index)[None, :4]
    rows.x[fresh] = value  # in memory, from which compiled code reads
    info = sampler.run(rng, theta, index, cached, 0, fresh)
    assert info["subset_accepted"] == 0
    assert index.tolist() == before.tolist()
    np.testing.assert_array_equal(cached, sampler.anchored(before))
    assert np.isfinite(theta).all()


# The integrator


def energy_errors(sampler, theta, index, fresh, seed):
    """Energy errors of trajectories of length 1 with 4, 8, 16, ... steps, same momentum."""
    rng = np.random.default_rng(seed)
    rng.random()
    jitter = 0.8 + 0.4 * rng.random()
    sampler.extent = 1 / jitter
    errors = []
    for steps in (4, 8, 16, 32, 64):
        sampler.step_size = 1 / steps
        rows = sampler.anchored(index)
        info = sampler.run(
            np.random.default_rng(seed), theta.copy(), index.copy(), rows, 0, fresh
        )  # fmt: skip
        assert info["n_steps"] == steps
        errors.append(abs(info["energy_error"]))
    return np.array(errors)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_energy_error_falls_with_the_square_of_the_step(seed, poisson):
    sampler = Sampler(poisson(rows_of(50), 1), STAR, 20, 5)
    rng = np.random.default_rng(17)
    index, theta = rng.integers(0, 50, 20), np.array([1.2, -0.8])
    errors = energy_errors(sampler, theta, index, sampler.draw_rows(rng, 1), seed)
    rates = np.log2(errors[1:-1] / errors[2:])
    np.testing.assert_allclose(rates[-1], 2, atol=0.1)
    assert errors[-1] < errors[0] / 100


def test_trajectories_are_reversible_and_preserve_volume(poisson):
    sampler = Sampler(poisson(rows_of(50), 1), STAR, 20, 5, step_size=0.3)
    rng = np.random.default_rng(18)
    index, L, h = rng.integers(0, 50, 20), sampler.factor, 0.3

    def leapfrog(z):
        q, p = z[:2].copy(), z[2:].copy()
        for _ in range(6):
            p = p + 0.5 * h * L.T @ sampler.density(q, index)[-1]
            q = q + h * L @ p
            p = p + 0.5 * h * L.T @ sampler.density(q, index)[-1]
        return np.concatenate([q, p])

    start = np.array([0.7, -0.5, 1.1, 0.4])
    end = leapfrog(start)
    flip = np.array([1, 1, -1, -1])
    np.testing.assert_allclose(flip * leapfrog(flip * end), start, rtol=1e-10)
    jacobian = [(leapfrog(start + s) - leapfrog(start - s)) / 2e-5 for s in 1e-5 * np.eye(4)]
    np.testing.assert_allclose(abs(np.linalg.det(jacobian)), 1, rtol=1e-7)
