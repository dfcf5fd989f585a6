"""The block-Poisson estimator: formulas, enumeration, the compiled density and refresh, posteriors.

The mathematics are written out in NumPy here, apart from the package.
"""

from itertools import combinations, repeat

import numba
import numpy as np
import pymc as pm
import pytest
import scipy.stats
from scipy.special import gammaln

import pymc_subsample as pms
from pymc_subsample.chain.ellipsoid import radius
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.block_poisson import (
    choose_products,
    computational_time,
    inefficiency,
    log_factor_moments,
    log_variance,
    probability_positive,
)
from pymc_subsample.expansion.curvature import covariance
from pymc_subsample.expansion.estimators import ResidualMoments
from pymc_subsample.expansion.factors import factor, whiten
from pymc_subsample.expansion.general import general_expansion
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.dynamics import Moves
from pymc_subsample.kernels.estimates import (
    BLOCK_POISSON,
    FUNCTIONS,
    SubsampleEstimate,
    block_poisson,
    log_products,
    refresh_block_poisson,
    target_at,
)
from pymc_subsample.kernels.linear import weigh
from pymc_subsample.kernels.model import MINIBATCH, Surface
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.hmc_ecs.subsample import Subsample

QUIET = {"progressbar": False, "compute_convergence_checks": False}


# Formulas against simulation: 5%, the issue of sampling error kept below 1%.


@pytest.mark.parametrize("s", [0.02, 0.1, 0.3, 0.6, 1.0])
def test_moments_of_a_factor(s):
    a = 1 + s * np.random.default_rng(1).normal(size=4_000_000)
    mean, variance = log_factor_moments(s)
    logs = np.log(np.abs(a))
    assert abs(mean - logs.mean()) < 5 * logs.std() / len(a) ** 0.5
    np.testing.assert_allclose(variance, logs.var(), rtol=0.02)


def test_moments_of_a_factor_join_their_expansion():
    near = [log_factor_moments(s) for s in (0.999e-3, 1.001e-3)]
    np.testing.assert_allclose(near[0], near[1], rtol=0.01)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("products", [5, 20, 100])
@pytest.mark.parametrize("spread", [0.1, 0.25, 0.4])
def test_variance_and_sign_of_the_estimate(products, spread):
    rng, repeats = np.random.default_rng(2), 200_000
    sd = spread * products
    k = rng.poisson(products, repeats)
    factors = 1 + spread * rng.normal(size=k.sum())
    ends = np.append(0, np.cumsum(k))
    sums = np.append(0, np.cumsum(np.log(np.abs(factors))))[ends]
    negative = np.append(0, np.cumsum(factors < 0))[ends]
    np.testing.assert_allclose(log_variance(products, sd), np.diff(sums).var(), rtol=0.05)
    positive = np.mean(np.diff(negative) % 2 == 0)
    assert abs(probability_positive(products, sd) - positive) < 5 * 0.5 / repeats**0.5


def test_inefficiency_of_a_noisy_likelihood():
    assert inefficiency(0.0) == pytest.approx(1.0)
    # Simulation of an independence chain with log-noise N(-v / 2, v).
    rng, v, n = np.random.default_rng(3), 1.0, 400_000
    noise = rng.normal(-v / 2, v**0.5, n)
    coin = np.log(rng.random(n))
    at, runs, length = noise[0], [], 1
    for new, c in zip(noise[1:], coin[1:], strict=True):
        if c < new - at:
            runs.append(length)
            at, length = new, 1
        else:
            length += 1
    runs = np.array(runs, dtype=float)
    # Values drawn anew at each acceptance and repeated: the variance of a mean of n draws is
    # sum of squared run lengths over n^2.
    assert inefficiency(v) == pytest.approx((runs**2).sum() / runs.sum(), rel=0.1)
    # Pitt et al. (2012): the product of cost and inefficiency is least at a deviation of 0.92.
    sds = np.linspace(0.5, 1.5, 201)
    assert sds[np.argmin([inefficiency(s**2) / s**2 for s in sds])] == pytest.approx(0.92, abs=0.01)


def moments_of(sd, n=10**6, largest=0.0, total=0.0, lowest=0.0):
    """Residual moments with which a minibatch estimate has standard deviation `sd`."""
    x = np.array([sd**2 * MINIBATCH / n**2])
    return ResidualMoments(x, np.zeros(1), 3 * x**2, n, largest, np.array([total]), lowest)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("sd", [0.1, 1.0, 5.0, 30.0])
def test_chosen_products_cost_least_of_those_that_are_quiet(sd):
    chosen = choose_products(moments_of(sd))
    assert log_variance(chosen, sd) <= 1
    others = [x for x in range(4, 2000) if log_variance(x, sd) <= 1]
    least = min(computational_time(x, sd) for x in others)
    assert computational_time(chosen, sd) <= 1.1 * least


def test_chosen_products_keep_factors_from_zero():
    assert choose_products(moments_of(0.1)) == 4
    assert choose_products(moments_of(0.1, total=-5.0, lowest=-45.0)) >= 40
    assert choose_products(moments_of(0.1, largest=1e-3)) >= 10**6 * 1e-3 / 30
    assert choose_products(moments_of(1e9)) is None
    assert choose_products(moments_of(np.inf)) is None
    assert choose_products(moments_of(0.1, largest=2.0)) is None
    most = [choose_products(moments_of(sd)) for sd in np.geomspace(1e3, 1e6, 40)]
    assert all(x is None or x <= 10**6 // 30 for x in most)
    assert most[-1] is None


@pytest.mark.costly(cases=0)
def test_too_few_rows_for_the_estimate_are_refused():
    """Two rows weigh so much that no factor keeps its sign: the perturbed estimate copes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    x[:2] *= 15.0
    with pm.Model():
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Poisson("y", pm.math.exp(0.3 * x @ b), observed=rng.poisson(1.0, 300))
        assert pms.HMCECS().subsample_size <= 300
        with pytest.raises(pms.TallModelError, match="No subsample of the 300 rows") as error:
            pms.HMCECS(estimator="block-poisson")
        assert "ncrease" not in str(error.value)
        assert "Use pms.ScalableMH(), which is exact, use estimator" in str(error.value)
        pms.ScalableMH()
        assert pms.HMCECS(estimator="block-poisson", subsample_size=300).subsample_size == 300


@pytest.mark.costly
@pytest.mark.parametrize("m", [270, 300])
def test_no_more_rows_are_advised_than_there_are(m, caplog):
    rng = np.random.default_rng(0)
    x = 5 * rng.normal(size=(315, 4))
    with pm.Model():
        b = pm.Normal("b", 0, 2, shape=4)
        pm.Bernoulli("y", logit_p=x @ b, observed=(rng.random(315) < 0.5).astype(int))
        with caplog.at_level("WARNING", "pymc.subsample"):
            pms.HMCECS(estimator="block-poisson", subsample_size=m, reference={"b": 4 * np.ones(4)})
    assert "too noisy" in caplog.text
    assert ("ncrease subsample_size" in caplog.text) == (m == 270)


# Unbiasedness, by enumeration of all minibatches of 30 out of 6 rows


def test_estimate_is_unbiased_on_six_rows():
    d = np.array([0.03, -0.05, 0.01, 0.08, -0.02, -0.04])
    weight, products = 6 / 30, 1.3
    bound = 0.4 - products
    bars = np.array(list(combinations(range(35), 5)))
    edges = np.column_stack([np.full(len(bars), -1), bars, np.full(len(bars), 35)])
    counts = np.diff(edges, axis=1) - 1
    logp = gammaln(31) - gammaln(counts + 1).sum(axis=1) - 30 * np.log(6)
    rows = np.repeat(np.tile(d, (len(counts), 1)).ravel(), counts.ravel())
    factors = numbered_factors(rows, weight, bound, products)
    mean = np.exp(logp) @ factors
    np.testing.assert_allclose(mean, (d.sum() - bound) / products, rtol=1e-10)
    # A Poisson number of them.
    k = np.arange(60)
    poisson = np.exp(k * np.log(products) - products - gammaln(k + 1))
    expected = np.exp(bound + products) * (poisson @ mean**k)
    np.testing.assert_allclose(expected, np.exp(d.sum()), rtol=1e-10)
    # Where some factors are negative
    low = bound + 1.5
    negative = numbered_factors(rows, weight, low, products)
    assert np.mean(negative < 0) > 0.01
    np.testing.assert_allclose(np.exp(logp) @ negative, (d.sum() - low) / products, rtol=1e-10)


def test_a_minibatch_may_be_the_last_few_rows():
    """No number is read, or written, beyond the rows of a batch."""
    d, weight, bound = np.random.default_rng(0).normal(size=MINIBATCH + 17), 2.0, -300.0
    weights = np.ones((1, len(d)))
    weigh(BLOCK_POISSON, weight, bound, d, weights)
    totals = np.repeat([d[:MINIBATCH].sum(), d[MINIBATCH:].sum()], [MINIBATCH, 17])
    np.testing.assert_allclose(weights[0], weight / (weight * totals - bound), rtol=1e-12)


@numba.njit
def numbered_factors(rows, weight, bound, products):
    """Factor of each minibatch, by the production code."""
    found = np.empty(len(rows) // MINIBATCH)
    for b in range(len(found)):
        part = rows[b * MINIBATCH : (b + 1) * MINIBATCH]
        logs, sign, _, _ = log_products(part, weight, bound, products)
        found[b] = sign * np.exp(logs)
    return found


# The compiled density and refresh


@numba.njit
def evaluate(model, sums, given, moves, rows, counts, theta, phi, d, grad):
    target = target_at(model, sums, given, moves)
    return block_poisson(Surface(target, rows, counts, phi, d), theta, grad)


@numba.njit
def refreshed(rng, model, sums, given, moves, index, rows, counts, g, new_index, phi, estimate):
    target = target_at(model, sums, given, moves)
    return refresh_block_poisson(rng, target, index, rows, counts, g, new_index, phi, estimate)


class Poisson:
    """y ~ Poisson(exp(a + b x)), a and b ~ N(0, 1), compiled and in NumPy."""

    star = np.array([0.2, 0.3])

    def __init__(self, path, order, n=40):
        rng = np.random.default_rng(1)
        self.x = rng.uniform(-1, 1, n)
        self.y = rng.poisson(np.exp(0.3 + 0.5 * self.x))
        with pm.Model() as model:
            a, b = pm.Normal("a"), pm.Normal("b")
            pm.Poisson("y", pm.math.exp(a + b * self.x), observed=self.y)
        tall = TallModel(model)
        self.ex = general_expansion(tall, order) if path == "general" else expand(tall, order)
        assert self.ex.linear == (path == "linear")
        self.order, self.n = order, n
        self.reference = reference_at(self.ex, self.star)
        self.factor = factor(covariance(Quadratic(self.ex, self.reference).precision(np.arange(2))))

    def residuals(self, theta):
        def loglik(theta):
            eta = theta[0] + theta[1] * self.x
            return self.y * eta - np.exp(eta) - gammaln(self.y + 1)

        mean = np.exp(self.star[0] + self.star[1] * self.x)
        delta = (theta - self.star)[0] + (theta - self.star)[1] * self.x
        q = loglik(self.star) + (self.y - mean) * delta
        if self.order == 2:
            q = q - 0.5 * mean * delta**2
        return loglik(theta) - q, q.sum()

    def log_estimate(self, theta, index, counts, bound, products):
        """Log posterior estimate and sign, and every group's log product."""
        d, control = self.residuals(theta)
        total, sign, groups = bound + products, 1.0, []
        for numbers, k in zip(index, counts, strict=True):
            minibatches = d[numbers[: 30 * k]].reshape(k, 30).sum(axis=1) * self.n / 30
            factors = (minibatches - bound) / products
            groups.append(np.log(np.abs(factors)).sum())
            sign *= np.prod(np.sign(factors))
        prior = scipy.stats.norm.logpdf(theta).sum()
        return prior + control + total + sum(groups), sign, groups

    def arguments(self, bound, products, radius=np.inf):
        at = self.reference
        empty = np.empty((self.ex.width, 0))
        given = SubsampleEstimate(self.n / 30, bound, float(products), at.theta, radius, empty, 1.0)
        moves = Moves(np.arange(2), self.factor, 0.0, 0.0)
        return self.ex.model(*FUNCTIONS), at.sums(self.order), given, moves

    def evaluate(self, theta, sample, bound, radius=np.inf):
        phi, d, grad = np.empty(2), np.empty(sample.index.size), np.empty(2)
        found = evaluate(
            *self.arguments(bound, sample.products, radius), sample.rows, sample.counts, theta,
            phi, d, grad,
        )  # fmt: skip
        return *found, grad


@pytest.fixture(scope="module", params=[("linear", 1), ("linear", 2), ("general", 1)], ids=str)
def poisson(request):
    return Poisson(*request.param)


def drawn(poisson, products=6, seed=0):
    sample = Subsample(BLOCK_POISSON, products * MINIBATCH, 3, np.zeros(0, dtype=np.int64))
    sample.draw(np.random.default_rng(seed), poisson.n)
    sample.pack(poisson.ex, poisson.reference.center)
    return sample


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("bound", [-6.0, -0.5, 0.3])
def test_density_and_gradient(bound, poisson):
    theta, signs = np.array([0.9, -0.4]), set()
    for seed in range(4):
        sample = drawn(poisson, seed=seed)
        index = sample.index.reshape(3, -1)

        def expected(theta, sample=sample, index=index):
            return poisson.log_estimate(theta, index, sample.counts, bound, sample.products)

        value, sign, variance, grad = poisson.evaluate(theta, sample, bound)
        np.testing.assert_allclose(value, expected(theta)[0], rtol=1e-8)
        assert sign == expected(theta)[1]
        signs.add(sign)
        h = 1e-6 * np.eye(2)
        slopes = [(expected(theta + s)[0] - expected(theta - s)[0]) / 2e-6 for s in h]
        np.testing.assert_allclose(grad, slopes, rtol=1e-5, atol=1e-6)
        d, _ = poisson.residuals(theta)
        batches = np.concatenate(
            [d[i[: 30 * k]].reshape(k, 30) for i, k in zip(index, sample.counts, strict=True)]
        ).sum(axis=1)
        spread = (poisson.n / 30) ** 2 * batches.var(ddof=1) / sample.products
        np.testing.assert_allclose(variance, spread, rtol=1e-8)
    assert bound == -6.0 or signs == {-1.0, 1.0}


@pytest.mark.costly
def test_density_is_zero_outside_the_ellipsoid(poisson):
    sample = drawn(poisson)
    z = np.array([0.6, -0.8])
    for distance, inside in ((2.99, True), (3.01, False), (np.nan, False)):
        theta = poisson.star + distance * poisson.factor @ z
        value, *_ = poisson.evaluate(theta, sample, -6.0, radius=3.0)
        assert np.isfinite(value) == inside
        assert inside or value == -np.inf


@pytest.mark.costly(cases=1)
def test_refresh_equals_the_algorithm_in_numpy(poisson):
    bound, theta, sample = 0.1, np.array([0.9, -0.4]), drawn(poisson)
    ours, theirs, setup = (np.random.default_rng(s) for s in (5, 5, 6))
    phi = poisson.ex.parameters(theta)[0]
    accepted, grew = 0, 0
    for t in range(80):
        g = t % 3
        new_index, _ = sample.propose(setup, poisson.ex, 1)
        index, counts = sample.index.reshape(3, -1).copy(), sample.counts.copy()
        before = poisson.log_estimate(theta, index, counts, bound, sample.products)[2][g]
        wanted, k = index.copy(), len(new_index) // 30
        grew += k > counts[g]
        wanted[g, : 30 * k] = new_index
        wanted_counts = counts.copy()
        wanted_counts[g] = k
        after = poisson.log_estimate(theta, wanted, wanted_counts, bound, sample.products)[2][g]
        expected = np.log(theirs.random()) < after - before
        estimate = poisson.evaluate(theta, sample, bound)[:3]
        found = refreshed(
            ours, *poisson.arguments(bound, sample.products), sample.index, sample.rows,
            sample.counts, g, new_index, phi, estimate,
        )  # fmt: skip
        assert found == expected
        accepted += found
        if found:
            index, counts = wanted, wanted_counts
        np.testing.assert_array_equal(sample.counts, counts)
        for ours_of, theirs_of, size in zip(
            sample.index.reshape(3, -1), index, 30 * counts, strict=True
        ):
            np.testing.assert_array_equal(ours_of[:size], theirs_of[:size])
        value = poisson.evaluate(theta, sample, bound)[0]  # the rows themselves moved too
        again = poisson.log_estimate(theta, index, counts, bound, sample.products)[0]
        np.testing.assert_allclose(value, again, rtol=1e-8)
    assert 10 < accepted < 75
    assert grew > 3


def proposed(expansion, n_rows, k, always, n, sizes):
    """Numbers of minibatches of n groups, k a draw, and the rows of each."""
    rng, counts, rows = np.random.default_rng(11), [], []
    sample = Subsample(BLOCK_POISSON, 12 * MINIBATCH, 4, np.array(always, dtype=np.int64))
    sample.draw(rng, n_rows)
    while len(counts) < n:
        index, start = sample.propose(rng, expansion, k * int(next(sizes)))
        found = np.split(index, start[1:-1])
        assert all(len(rows) % 30 == 0 for rows in found)
        counts += [len(rows) // 30 for rows in found]
        rows += found
    return counts[:n], rows[:n]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("k", [1, 3, 700])
def test_proposals_are_the_same_however_many_are_made_at_a_time(k):
    """A Poisson number of minibatches of uniform rows each, whose numbers are drawn ahead."""
    poisson, n, few = Poisson("linear", 1), 20_000, 1_400
    for always in ([], [2, 5, 39]):
        sizes = iter(np.random.default_rng(2).integers(1, 400, n))
        counts, rows = proposed(poisson.ex, poisson.n, k, always, n, sizes)
        one, single = proposed(poisson.ex, poisson.n, k, always, few, repeat(1))
        np.testing.assert_array_equal(counts[:few], one)
        np.testing.assert_array_equal(np.concatenate(rows[:few]), np.concatenate(single))
        # 3 per group; at an error rate of 1e-6.
        expected = scipy.stats.poisson.pmf(np.arange(9), 3)
        expected = n * np.append(expected, 1 - expected.sum())
        seen = np.bincount(np.minimum(counts, 9), minlength=10)
        assert scipy.stats.chisquare(seen, expected).pvalue > 1e-6
        seen = np.bincount(np.concatenate(rows), minlength=poisson.n)
        assert not seen[always].any()
        assert scipy.stats.chisquare(np.delete(seen, always)).pvalue > 1e-6


# Posteriors


@pytest.fixture(scope="module")
def logistic():
    """A model that order 1 and few rows bias, with its exact posterior by quadrature."""
    rng, n = np.random.default_rng(7), 400
    x = rng.normal(size=n)
    y = rng.random(n) < 1 / (1 + np.exp(-(0.5 + 1.5 * x)))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y.astype(int))
    axes = np.linspace(-0.8, 1.8, 161), np.linspace(0.3, 3.3, 161)
    a, b = np.meshgrid(*axes, indexing="ij")
    eta = a[..., None] + b[..., None] * x
    logp = (y * eta - np.logaddexp(0, eta)).sum(axis=-1) - (a**2 + b**2) / 8
    p = np.exp(logp - logp.max())
    p /= p.sum()
    means = np.array([(p * a).sum(), (p * b).sum()])
    sds = np.sqrt([(p * a**2).sum() - means[0] ** 2, (p * b**2).sum() - means[1] ** 2])
    return model, means, sds


def signed_moments(idata, name):
    """Mean, its standard error from 50 batches, and sd, sign-corrected."""
    s = idata.sample_stats["sign"].values.astype(float)
    x = idata.posterior[name].values
    mean = (x * s).sum() / s.sum()
    batches = ((x - mean) * s).reshape(50, -1).mean(axis=1) / s.mean()
    sd = np.sqrt(((x - mean) ** 2 * s).sum() / s.sum())
    return mean, batches.std(ddof=1) / 50**0.5, sd


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_signed_posterior_is_exact(kernel, logistic):
    model, means, sds = logistic
    with model:
        step = pms.HMCECS(
            estimator="block-poisson", kernel=kernel, control_variate_order=1,
            subsample_size=390, transitions_per_draw=2,
        )  # fmt: skip
        idata = pm.sample(5000, tune=1000, chains=2, cores=1, step=step, random_seed=3, **QUIET)
    for name, exact, spread in zip("ab", means, sds, strict=True):
        mean, error, sd = signed_moments(idata, name)
        assert error < 0.1 * spread
        assert abs(mean - exact) < 5 * error
        assert abs(sd / spread - 1) < 0.1


@pytest.mark.costly(cases=0)
def test_chains_of_many_parameters_start_inside_the_ellipsoid_and_move():
    """Starts that are wider than the posterior were outside in 76 of 100 cases."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4_000, 110))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=110)
        pm.Normal("y", x @ b, 1.0, observed=rng.normal(size=4_000))
        step = pms.HMCECS(estimator="block-poisson")
    for seed in range(10):
        step.setup_chain(np.random.default_rng(seed), 400, 0)
        step.tune = True
        point, distances = model.initial_point(), []
        for _ in range(20):
            point, [stats] = step.step(point)
            z = point["b"] - step.reference.theta
            distances.append(np.linalg.norm(whiten(step.tuning.factor, z)))
            assert np.isfinite(stats["energy"])
        assert max(distances) < radius(110)
        assert len(set(distances)) > 10


@pytest.mark.costly(cases=0)
def test_negative_signs_are_told(logistic, caplog):
    """Of several chains, since one that hardly moves may have signs of one kind."""
    model, *_ = logistic
    with model:
        step = pms.HMCECS(
            estimator="block-poisson", control_variate_order=0, subsample_size=60, n_blocks=2
        )
        idata = pm.sample(500, tune=300, chains=4, cores=1, step=step, random_seed=3, **{
            "progressbar": False})  # fmt: skip
    negative = (idata.sample_stats["sign"].values < 0).mean(axis=1)
    assert negative.max() > 0.01
    assert "pms.summary" in caplog.text
    recorded = idata.checks.sel(check="negative")["value"]
    np.testing.assert_allclose(recorded.values[:, 0], negative)


# The step


def test_sizes_are_checked(logistic):
    model, *_ = logistic
    signed = {"model": model, "estimator": "block-poisson"}
    with pytest.raises(ValueError, match=r"subsample_size=100 is not a multiple of 30.*Use 90"):
        pms.HMCECS(**signed, subsample_size=100)
    with pytest.raises(ValueError, match="n_blocks=4 does not divide the 10 minibatches"):
        pms.HMCECS(**signed, subsample_size=300, n_blocks=4)
    with pytest.raises(ValueError, match=r"estimator must be.*'poisson'"):
        pms.HMCECS(model=model, estimator="poisson")
    with pytest.raises(ValueError, match=r"kernel must be.*'mala'"):
        pms.HMCECS(model=model, kernel="mala")
    with pytest.raises((TypeError, ValueError), match="max_treedepth"):
        pms.HMCECS(model=model, kernel="nuts", max_treedepth=0)


@pytest.mark.costly(cases=0)
def test_sizes_are_chosen(logistic):
    model, *_ = logistic
    step = pms.HMCECS(model=model, estimator="block-poisson")
    assert step.subsample_size % MINIBATCH == 0
    assert step.subsample_size // MINIBATCH % step.n_blocks == 0
    given = pms.HMCECS(model=model, estimator="block-poisson", subsample_size=300, n_blocks=5)
    assert (given.subsample_size, given.n_blocks) == (300, 5)
