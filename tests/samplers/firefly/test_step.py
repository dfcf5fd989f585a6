"""`FireflyMC`: bounds that hold, exact lights and posteriors, and a step like the others."""

import logging
from dataclasses import replace
from functools import cache

import chains
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from chains import assert_moments, assert_same, chain, round_trip, run, sample, verdict
from exact_cases import Case, mean_of, wide
from models import MODELS
from scipy.interpolate import RegularGridInterpolator
from scipy.special import expit, log_expit, log_softmax, softmax
from scipy.stats import binomtest, chisquare, kstest, norm
from scipy.stats import t as student

import pymc_subsample as pms
from pymc_subsample.bounds import lower_bounds
from pymc_subsample.bounds.lower_bounds import bounded_expansion
from pymc_subsample.chain import moves
from pymc_subsample.chain.proposals import AdaptiveMetropolis, Langevin, RandomWalk
from pymc_subsample.kernels.model import ALONE, PERTURBED
from pymc_subsample.kernels.proposals import GIVEN
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.firefly import step as firefly
from pymc_subsample.samplers.firefly.kernel import log_excess

SLOW = pytest.mark.slow
# Error rate of a test.
ALPHA = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


# Models: two parameters, log posterior on grids, and a point away from the mode. Bounds that touch
# the likelihoods there are loose: many rows are bright, and mistakes in their density show.


def logistic(n=200):
    rng = np.random.default_rng(1)
    x = rng.normal(size=n)
    y = (rng.random(n) < expit(-0.5 + 1.5 * x)).astype(int)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)

    def logp(a, b):
        rows = sum(log_expit((2 * k - 1) * (a + b * v)) for k, v in zip(y, x, strict=True))
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + rows

    return Case(
        model=model, logp=logp, center=(-0.5, 1.5), names=("a", "b"), off={"a": 0.3, "b": 0.5}
    )


def student_t(n=150):
    rng = np.random.default_rng(2)
    x = rng.normal(size=n)
    y = 1000 + 1.0 + 0.5 * x + 0.8 * rng.standard_t(3, n)
    with pm.Model() as model:
        a = pm.Normal("a", 1000, 5)
        b = pm.Normal("b", 0, 2)
        pm.StudentT("y", nu=3, mu=a + b * x, sigma=0.8, observed=y)

    def logp(a, b):
        rows = sum(student.logpdf((u - a - b * v) / 0.8, 3) for u, v in zip(y, x, strict=True))
        return norm.logpdf(a, 1000, 5) + norm.logpdf(b, 0, 2) + rows

    return Case(
        model=model, logp=logp, center=(1001.0, 0.5), names=("a", "b"), off={"a": 1001.5, "b": 0.0}
    )


def multinomial_logit(n=150):
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    utility = np.stack([0 * x, 0.8 * x, -0.6 * x], axis=1)
    y = np.array([rng.choice(3, p=p) for p in softmax(utility, axis=1)])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Categorical("y", p=pm.math.softmax(pt.stack([0 * x, a * x, b * x], 1), 1), observed=y)

    def logp(a, b):
        rows = sum(
            log_softmax(np.stack([0 * a, a * v, b * v]), axis=0)[k]
            for k, v in zip(y, x, strict=True)
        )
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + rows

    return Case(
        model=model, logp=logp, center=(0.8, -0.6), names=("a", "b"), off={"a": 0.3, "b": 0.0}
    )


def choice_sets(n=120):
    """Choices among sets of two to four alternatives: a set is a unit."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(2, 5, n)
    of, first = np.repeat(np.arange(n), sizes), np.concatenate([[0], np.cumsum(sizes)[:-1]])
    x, z = rng.normal(size=(2, len(of)))
    utility = 0.8 * x - 0.5 * z + rng.gumbel(size=len(of))
    chosen = np.lexsort((-utility, of))[first]
    with pm.Model() as model:
        u = pm.Normal("a", 0, 2) * x + pm.Normal("b", 0, 2) * z
        total = pt.zeros(n)[of].inc(pt.exp(u))
        pm.Potential("choice", u[chosen] - pt.log(total))

    def logp(a, b):
        rows = sum(
            log_softmax(np.stack([a * v + b * w for v, w in zip(x[s], z[s], strict=True)]), axis=0)[
                i - s.start
            ]
            for i, s in zip(chosen, map(slice, first, first + sizes), strict=True)
        )
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + rows

    return Case(
        model=model, logp=logp, center=(0.8, -0.5), names=("a", "b"), off={"a": 0.3, "b": 0.0}
    )


def latent_classes(n=100):
    """Units of four logistic rows, summed over two states of each."""
    rng = np.random.default_rng(6)
    unit, x = np.repeat(np.arange(n), 4), rng.normal(size=4 * n)
    kind = rng.random(n) < 0.4
    y = (rng.random(4 * n) < expit(-1 + 2.5 * kind[unit] + 0.5 * x)).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        kinds = pm.Bernoulli("kind", 0.4, shape=n)
        pm.Bernoulli("y", logit_p=a + 2.5 * kinds[unit] + b * x, observed=y)

    def logp(a, b):
        units = 0.0
        for rows in np.arange(4 * n).reshape(n, 4):
            each = [
                np.log(w) + sum(log_expit((2 * y[i] - 1) * (a + 2.5 * k + b * x[i])) for i in rows)
                for k, w in enumerate((0.6, 0.4))
            ]
            units = units + np.logaddexp(*each)
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + units

    return Case(
        model=model, logp=logp, center=(-1.0, 0.5), names=("a", "b"), off={"a": -0.4, "b": 0.1}
    )


CASES = {
    "logistic": logistic,
    "student": student_t,
    "softmax": multinomial_logit,
    "sets": choice_sets,
    "classes": latent_classes,
}


@pytest.fixture(scope="module")
def cases():
    return cache(lambda name: CASES[name]())


@pytest.fixture(scope="module")
def model(cases):
    return cases("logistic").model


# Bounds


def known_student_t(rng):
    X = rng.normal(size=(80, 2))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        y = 5 + 3 * rng.standard_t(4, 80)
        pm.StudentT("y", nu=4, mu=5 + pt.dot(X, b), sigma=2.0, observed=y)
    return model


def known_normal(rng):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("y", mu, 2.0, observed=rng.normal(size=80))
    return model


def two_logistic(rng):
    """Two outcomes with predictors of their own."""
    x = rng.normal(size=80)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=2)
        pm.Bernoulli("y", logit_p=a[0] + x, observed=rng.integers(0, 2, 80))
        pm.Binomial("z", 5, logit_p=a[1] * x, observed=rng.integers(0, 6, 80))
    return model


def known_dispersion(rng):
    x = rng.normal(size=80)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        pm.NegativeBinomial("y", mu=pm.math.exp(a * x), alpha=2.0, observed=rng.poisson(1, 80))
    return model


def guarded(rng):
    """Probabilities kept from 0 and 1, as in Bambi's models."""
    x, eps = rng.normal(size=80), np.finfo(float).eps
    with pm.Model() as model:
        p = pm.math.invlogit(pm.Normal("a", 0, 1) * x)
        p = pt.switch(pt.eq(p, 0), eps, p)
        p = pt.switch(pt.eq(p, 1), 1 - eps, p)
        pm.Bernoulli("y", p, observed=rng.integers(0, 2, 80))
    return model


def lopsided(rng):
    """A log-likelihood of bounded curvature that is symmetric about no point."""
    x = rng.normal(size=80)
    with pm.Model() as model:
        eta = pm.Normal("a", 0, 1) * x
        pm.Potential("y", 0.5 * pt.tanh(eta) - pt.sqrt(1 + eta**2))
    return model


BOUNDED = {
    "bernoulli_logit": "tangent",
    "bernoulli_p": "tangent",
    "binomial": "tangent",
    "dims_bernoulli": "tangent",
    "minibatch_bernoulli": "tangent",
    "categorical_softmax": "softmax",
    "categorical_logit": "softmax",
    "categorical_reference_parameters": "softmax",
    "categorical_stacked_utilities": "softmax",
    "multinomial": "softmax",
    known_student_t: "tangent",
    known_normal: "tangent",
    two_logistic: "tangent",
    known_dispersion: "tangent",
    guarded: "tangent",
    lopsided: "curvature",
}
IDS = [m if isinstance(m, str) else m.__name__ for m in BOUNDED]


def residuals(expansion, center, phi):
    found = []
    for rows in expansion.chunks():
        expansion.anchor(center, rows)
        found.append(np.empty(rows.shape[1]))
        expansion.residual(phi, rows, center, ALONE, 1.0, 0.0, found[-1], np.empty(0))
    return np.concatenate(found)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", BOUNDED, ids=IDS)
def test_bounds_are_below_and_touch(name):
    make = MODELS[name] if isinstance(name, str) else name
    tall = TallModel(make(np.random.default_rng(1)))
    expansion, kind = bounded_expansion(tall)
    assert kind == BOUNDED[name]
    rng = np.random.default_rng(5)
    for scale in (0.3, 3.0):
        theta = scale * rng.normal(size=expansion.theta_size)
        center, _ = expansion.parameters(theta)
        np.testing.assert_allclose(residuals(expansion, center, center), 0.0, atol=1e-9)
        for distance in (1e-3, 0.1, 1.0, 30.0):
            phi, _ = expansion.parameters(theta + distance * rng.normal(size=theta.shape))
            d = residuals(expansion, center, phi)
            assert np.all(d >= -1e-10 * (1 + d.max()))
            grad, start = np.zeros(len(phi)), 0
            for rows in expansion.chunks():
                expansion.anchor(center, rows)
                other = np.empty(rows.shape[1])
                expansion.residual(center, rows, center, PERTURBED, 1.0, 0.0, other, grad)
                expansion.left(phi, center, rows, other)
                other -= rows[expansion.level]
                part = d[start : (start := start + len(other))]
                np.testing.assert_allclose(part, other, atol=1e-9 * (1 + d.max()))
            np.testing.assert_allclose(grad, 0.0, atol=1e-7)


@pytest.mark.costly(cases=0)
def test_known_curvatures():
    """The formulas of Jaakkola and Jordan, of the Student-t tangent and of Boehning."""
    rng = np.random.default_rng(3)

    def anchored(make):
        expansion, _ = bounded_expansion(TallModel(make(np.random.default_rng(1))))
        center, _ = expansion.parameters(rng.normal(size=expansion.theta_size))
        rows = next(expansion.chunks())
        expansion.anchor(center, rows)
        return rows, expansion.level

    rows, level = anchored(MODELS["bernoulli_logit"])
    eta = np.abs(rows[level - 1])
    np.testing.assert_allclose(rows[level + 2], -np.tanh(eta / 2) / (2 * eta), rtol=1e-6)
    rows, level = anchored(known_student_t)
    slope = rows[level + 1]
    # The residual from the slope: (nu + 1) r / (nu s^2 + r^2), of either root.
    root = np.sqrt(np.maximum(25 - 4 * slope**2 * 16, 0.0))
    residual = np.array([(5 - root) / (2 * slope), (5 + root) / (2 * slope)])
    curvature = -5 / (16 + residual**2)
    assert np.all(np.abs(curvature - rows[level + 2]).min(axis=0) < 1e-6)
    rows, level = anchored(MODELS["categorical_softmax"])
    expected = -0.5 * (np.eye(4) - 0.25)[np.triu_indices(4)]
    np.testing.assert_allclose(rows[level + 5 :], np.tile(expected[:, None], rows.shape[1]))


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("bernoulli_logit", 1.0),
        ("bernoulli_logit", 0.95),
        ("categorical_softmax", 0.8),
        (known_student_t, 0.95),
    ],
)
def test_a_wrong_curvature_is_noticed(name, factor, monkeypatch):
    make = MODELS[name] if isinstance(name, str) else name
    tall, known = TallModel(make(np.random.default_rng(1))), lower_bounds._candidates

    def candidates(*arguments):
        for kind, graphs in known(*arguments):
            yield kind, [factor * g for g in graphs]

    monkeypatch.setattr(lower_bounds, "_candidates", candidates)
    if factor == 1.0:
        bounded_expansion(tall)
    else:
        with pytest.raises(pms.TallModelError, match="knows none"):
            bounded_expansion(tall)


@pytest.mark.costly
def test_a_bound_that_only_far_rows_break_is_noticed(model, monkeypatch):
    """The set-up looks at all rows too, near the posterior."""
    monkeypatch.setattr(lower_bounds, "_holds", lambda *_: True)
    monkeypatch.setattr(lower_bounds, "_least_found", lambda *_: 0.0)
    with pytest.raises(pms.TallModelError, match=r"lower bound .*'y' \(given\) exceeds it in row"):
        pms.FireflyMC(model=model, bound=-0.01)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("poisson_offset", "not bounded below"),
        ("normal", "unknown number.* scale"),
        ("student_t", "3 unknown number.* scale"),
        ("two_layer_network", "do not depend on the parameters through few linear"),
        ("ordered_logistic", "only through sums of exponentials|unknown number"),
    ],
)
def test_models_without_a_bound_are_refused_by_name(name, why):
    takes_the_exact_step = name in {"poisson_offset", "normal"}
    model = MODELS[name](np.random.default_rng(1))
    with pytest.raises(pms.TallModelError, match=f"'y' and knows none: .*{why}") as error:
        pms.FireflyMC(model=model)
    for known in ("Jaakkola-Jordan", "Student-t", "Boehning", "bound=c"):
        assert known in str(error.value)
    assert ("pms.ScalableMH()" in str(error.value)) == takes_the_exact_step


@pytest.mark.costly(cases=0)
def test_bounds_of_the_user(model):
    assert pms.FireflyMC(model=model, bound=-0.25).bound_taken == "given"
    with pytest.raises(ValueError, match=r"bound=-0.2 is no lower bound .*'y'.*-0.25 was found"):
        pms.FireflyMC(model=model, bound=-0.2)
    softmax = MODELS["categorical_softmax"](np.random.default_rng(1))
    pms.FireflyMC(model=softmax, bound=-0.5)
    with pytest.raises(ValueError, match=r"bound=-0\.49 is no lower bound"):
        pms.FireflyMC(model=softmax, bound=-0.49)
    with pytest.raises(pms.TallModelError, match="knows none of the kind 'softmax'"):
        pms.FireflyMC(model=model, bound="softmax")


@pytest.mark.costly(cases=0)
def test_tighter_bounds_leave_fewer_rows_bright(model):
    expected = {}
    for bound in ("tangent", "curvature", -1.0):
        step = pms.FireflyMC(model=model, bound=bound)
        expected[bound] = step.expected_bright
    assert expected["tangent"] < 0.7 * expected["curvature"] < 0.3 * expected[-1.0]


# Lights


@pytest.mark.parametrize("d", [1e-300, 1e-17, 1e-9, 0.3, 1.0, 3.0, 50.0, 1e4])
def test_log_excess(d):
    expected = np.log(np.expm1(d)) if d < 300 else d
    np.testing.assert_allclose(log_excess(d), expected, rtol=1e-12)
    assert log_excess(-d) == -np.inf
    assert log_excess(0.0) == -np.inf


def tiny(n=5):
    rng = np.random.default_rng(4)
    x = rng.normal(0, 2, n)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a + b * x, observed=rng.integers(0, 2, n))
    return model


@pytest.fixture(scope="module")
def small():
    """Steps on five rows whose probabilities of being bright are of all sizes."""
    model, made = tiny(), {}

    def make(brightness, rate=0.3):
        if (brightness, rate) not in made:
            name = "resample_fraction" if brightness == "explicit" else "dark_to_bright"
            made[brightness, rate] = pms.FireflyMC(
                model=model, brightness=brightness, reference={"a": -3.0, "b": 1.0}, **{name: rate}
            )
        return made[brightness, rate]

    return make


THETA = np.array([2.0, 1.0])


def excesses(step, theta):
    """Return d of all rows."""
    phi, _ = step.expansion.parameters(theta)
    return residuals(step.expansion, step.reference.center, phi)


def move(step, theta, given, bright, k=1):
    """Run the kernel with a proposal that is given; return the bright rows."""
    step.bright, step.bright_at = np.array(bright, dtype=np.int64), np.ones(2)
    firefly.run(step, theta[None], GIVEN, given, 0.0, k)
    return step.bright


def code(bright):
    return int(sum(1 << int(i) for i in bright))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("brightness", ["implicit", "explicit"])
def test_lights_change_with_the_right_probabilities(brightness, rate, small):
    """One update from all dark and from all bright, against the formulas."""
    step, n = small(brightness, rate), 4000
    step.row_rng = np.random.default_rng(1)
    d = excesses(step, THETA)
    odds = np.expm1(d)
    assert odds.min() < 0.2 < 1.0 < odds.max()
    if brightness == "explicit":
        up, down = rate * odds / (1 + odds), rate / (1 + odds)
    else:
        up, down = np.minimum(rate, odds), np.minimum(1, rate / odds)
    lit, kept = np.zeros(5), np.zeros(5)
    for _ in range(n):
        lit[move(step, THETA, THETA, [])] += 1
        kept[move(step, THETA, THETA, range(5))] += 1
    for i in range(5):
        assert binomtest(int(lit[i]), n, up[i]).pvalue > ALPHA
        assert binomtest(n - int(kept[i]), n, down[i]).pvalue > ALPHA
    assert not step.bright_rows.any()


@pytest.mark.costly
@pytest.mark.parametrize("brightness", ["implicit", "explicit"])
def test_lights_have_their_distribution(brightness, small):
    """All 32 states: one long chain, thinned, against the product of the rows' probabilities."""
    step, n = small(brightness), 4000
    step.row_rng = np.random.default_rng(2)
    probability = -np.expm1(-excesses(step, THETA))
    states = np.arange(32)[:, None] >> np.arange(5) & 1
    expected = np.prod(np.where(states, probability, 1 - probability), axis=1)
    counts, bright = np.zeros(32), []
    for _ in range(n):
        bright = move(step, THETA, THETA, bright, k=40)
        counts[code(bright)] += 1
    common = expected * n >= 5
    observed = [*counts[common], counts[~common].sum()]
    assert (
        chisquare(observed, n * np.array([*expected[common], expected[~common].sum()])).pvalue
        > ALPHA
    )
    assert chisquare(observed, np.full(len(observed), n / len(observed))).pvalue < ALPHA


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("brightness", ["implicit", "explicit"])
@pytest.mark.parametrize("mistake", [None, "bounds"])
def test_parameters_and_lights_have_their_joint_distribution(brightness, mistake, small):
    """Three points, 32 states of the lights: started from the target, which a step must keep."""
    step, n = small(brightness), 6000
    rng = step.row_rng = np.random.default_rng(3)
    points = np.array([[2.0, 1.0], [0.0, 0.3], [0.4, -0.5]])
    d = np.array([excesses(step, p) for p in points])
    with step.model:
        logp = step.model.compile_logp()
    full = np.array([logp({"a": a, "b": b}) for a, b in points])
    marginal = np.exp(full - full.max())
    marginal /= marginal.sum()
    probability = -np.expm1(-d)
    states = np.arange(32)[:, None] >> np.arange(5) & 1
    given = np.prod(np.where(states, probability[:, None], 1 - probability[:, None]), axis=2)
    joint = marginal[:, None] * given
    correct = step.reference
    if mistake:
        step.reference = replace(correct, slope=0 * correct.slope, curvature=0 * correct.curvature)
    counts = np.zeros((3, 32))
    try:
        for _ in range(n):
            at = rng.choice(3, p=marginal)
            bright = np.flatnonzero(rng.random(5) < probability[at])
            for _ in range(3):
                theta = points[at].copy()
                to = (at + rng.integers(1, 3)) % 3
                bright = move(step, theta, points[to], bright)
                at = to if np.array_equal(theta, points[to]) else at
            counts[at, code(bright)] += 1
    finally:
        step.reference = correct
    common = joint * n >= 5
    observed = [*counts[common], counts[~common].sum()]
    expected = n * np.array([*joint[common], joint[~common].sum()])
    p_value = chisquare(observed, expected).pvalue
    assert p_value > ALPHA if mistake is None else p_value < ALPHA


# Posteriors


def distribution(case, name):
    """Marginal distribution function of a parameter, by quadrature."""
    axes = [m + 8 * s * np.linspace(-1, 1, 401) for m, s in zip(case.mean, case.sd, strict=True)]
    a, b = np.meshgrid(*axes, indexing="ij")
    logp = case.logp(a, b)
    density = np.exp(logp - logp.max())
    i = case.names.index(name)
    marginal = density.sum(axis=1 - i)
    total = np.cumsum(0.5 * (marginal[1:] + marginal[:-1]))
    table = RegularGridInterpolator((axes[i],), np.concatenate([[0.0], total / total[-1]]))
    return lambda x: table(np.clip(x, axes[i][0], axes[i][-1])[:, None])


def assert_posterior(case, result, thin=10):
    for name, mean, sd in zip(case.names, case.mean, case.sd, strict=True):
        draws = result.posterior[name].values
        assert_moments(draws, mean, sd)
        assert kstest(draws[:, ::thin].ravel(), distribution(case, name)).pvalue > ALPHA


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "brightness", "proposal", "tuned"),
    [
        ("logistic", "implicit", Langevin(), False),
        ("logistic", "explicit", AdaptiveMetropolis(), False),
        ("logistic", "implicit", AdaptiveMetropolis(), True),
        ("student", "implicit", Langevin(), False),
        ("softmax", "implicit", Langevin(), False),
        ("sets", "implicit", Langevin(), False),
        ("classes", "implicit", Langevin(), False),
        pytest.param("logistic", "implicit", RandomWalk(0.3), False, marks=SLOW),
        pytest.param("logistic", "implicit", Langevin(), True, marks=SLOW),
        pytest.param("logistic", "explicit", Langevin(), True, marks=SLOW),
        pytest.param("student", "explicit", AdaptiveMetropolis(), False, marks=SLOW),
        pytest.param("student", "implicit", AdaptiveMetropolis(), True, marks=SLOW),
        pytest.param("softmax", "explicit", AdaptiveMetropolis(), False, marks=SLOW),
        pytest.param("softmax", "explicit", Langevin(), True, marks=SLOW),
    ],
)
def test_posterior_is_the_exact_one(name, brightness, proposal, tuned, cases):
    case = cases(name)
    step = pms.FireflyMC(
        model=case.model, brightness=brightness, proposal=proposal,
        reference=None if tuned else case.off, transitions_per_draw=40,
    )  # fmt: skip
    result = sample(step, case.model, 2000)
    assert_posterior(case, result)
    bright = float(result.sample_stats["n_bright"].mean())
    assert bright < 3 if tuned else bright > 3


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("mistake", ["bounds", "weights"])
def test_a_wrong_density_is_noticed(mistake, cases, monkeypatch):
    """Without the sum of the bounds, or with bright rows weighed by half of what they should be."""
    case = cases("logistic")
    step = pms.FireflyMC(model=case.model, reference=case.off)
    at = step.reference
    if mistake == "bounds":
        at = replace(at, slope=0 * at.slope, curvature=0 * at.curvature)
        prepared = replace(step.prepared, reference=at)
        step.prepared = prepared
    else:
        known = firefly._transitions

        def transitions(generator, rows, model, sums, lights, proposing, weight, *others):
            return known(generator, rows, model, sums, lights, proposing, 0.5 * weight, *others)

        monkeypatch.setattr(firefly, "_transitions", transitions)
    result = sample(step, case.model, 2000)
    with pytest.raises(AssertionError):
        assert_posterior(case, result)


@pytest.mark.costly(cases=0)
def test_proposals_of_the_user(cases):
    case = cases("logistic")

    def proposal(point, rng):
        """A walk in a and an independence proposal in b."""
        assert set(point) == {"a", "b"}
        new = {"a": point["a"] + rng.normal(0, 0.4), "b": rng.normal(1.6, 0.5)}
        return new, norm.logpdf(point["b"], 1.6, 0.5) - norm.logpdf(new["b"], 1.6, 0.5)

    step = pms.FireflyMC(model=case.model, proposal=proposal)
    assert_posterior(case, sample(step, case.model, 500, tune=20))


@pytest.mark.costly
def test_temperature_divides_the_log_likelihood():
    y = np.random.default_rng(4).normal(0.5, 1, 400)
    model = mean_of(y)
    result = sample(pms.FireflyMC(model=model, temperature=10.0), model, 800, tune=300)
    assert_moments(result.posterior["a"], y.sum() / 10 / 41, 41**-0.5)
    assert result.sample_stats["n_bright"].max() == 0


@pytest.mark.costly(cases=0)
def test_temperature_with_bright_rows(cases):
    case = cases("logistic")

    def logp(a, b):
        prior = norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2)
        return prior + 0.25 * (case.logp(a, b) - prior)

    hot = Case(logp=logp, center=case.center, names=case.names)
    step = pms.FireflyMC(model=case.model, temperature=4.0, reference=case.off)
    assert_posterior(hot, sample(step, case.model, 2000))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("shared", [True, False])
def test_compound_with_another_step(shared, cases):
    """Lights are drawn anew where another step has moved what meets the data, and only there."""
    case = cases("logistic")
    if shared:
        with case.model as model:
            steps = [pms.FireflyMC([model["a"]], reference=case.off), pm.Metropolis([model["b"]])]
        result = sample(steps, model, 2000, tune=500)
        case.assert_posterior(result)
        assert result.sample_stats["n_evaluations"].max() > 3 * 200
        return
    x = np.random.default_rng(3).normal(size=300)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        a = pm.Normal("a", 0, scale)
        y = (np.random.default_rng(4).random(300) < expit(x)).astype(int)
        pm.Bernoulli("y", logit_p=a * x, observed=y)
        steps = [pms.FireflyMC([a]), pm.Metropolis([scale])]
    result = sample(steps, model, 300, tune=300)
    assert result.sample_stats["n_evaluations"].mean() < 3 * 300


# Chains and state


@pytest.mark.costly
@pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=SLOW)])
def test_chains_in_processes_equal_chains_in_sequence(model, mp_ctx):
    chains.assert_processes_agree(pms.FireflyMC(model=model), model, mp_ctx)


@pytest.mark.costly(cases=0)
def test_no_state_leaks_between_chains(cases):
    case = cases("logistic")
    chains.assert_chains_leave_no_state(lambda: pms.FireflyMC(model=case.model), case.model)


PROPOSALS = {
    "walk": AdaptiveMetropolis(),
    "langevin": Langevin(),
    "callable": lambda point, rng: ({"a": point["a"] + rng.normal(0, 0.1)}, 0.0),
}


@pytest.fixture(scope="module")
def pairs(cases):
    """Two steps of the same configuration."""
    case = cases("logistic")

    @cache
    def make(brightness, proposal):
        kwargs = {"brightness": brightness, "proposal": PROPOSALS[proposal], "reference": case.off}
        return [pms.FireflyMC(model=case.model, **kwargs) for _ in range(2)]

    return make


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("brightness", "proposal"),
    [("implicit", "langevin"), ("explicit", "walk"), ("implicit", "callable")],
)
@pytest.mark.parametrize("at", [0, 11, 45, 55])
def test_state_round_trips_exactly(cases, pairs, brightness, proposal, at):
    case, (tune, draws) = cases("logistic"), (50, 15)
    one, other = pairs(brightness, proposal)
    round_trip(one, other, case.model, tune, draws, at)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.0),
        ("transitions_per_draw", 2),
        ("brightness", "explicit"),
        ("bound", "curvature"),
        ("dark_to_bright", 0.4),
    ],
)
def test_a_state_of_another_configuration_is_refused(model, pairs, name, value):
    [one, _], other = pairs("implicit", "langevin"), pms.FireflyMC(model=model, **{name: value})
    with pytest.raises(ValueError, match="rate" if name == "dark_to_bright" else name):
        other.sampling_state = one.sampling_state


@pytest.mark.costly(cases=0)
def test_data_travel_once_and_are_no_state():
    model = wide(200_000, "constant")
    step = pms.FireflyMC(model=model)
    *_, point = run(step, model.initial_point(), 3)
    point = {"b": step.reference.theta.copy()}
    *_, point = run(step, point, 3)
    assert len(cloudpickle.dumps(step.sampling_state)) < 100_000
    pickled = cloudpickle.dumps(step)
    assert len(pickled) < len(cloudpickle.dumps(model)) + 300_000
    copied = cloudpickle.loads(pickled)
    for each in (step, copied):
        each.setup_chain(np.random.default_rng(1), 0, 3)
    assert_same(run(step, point, 3), run(copied, point, 3))


@pytest.mark.costly
def test_proposals_adapt_in_tuning_and_only_then(model):
    one = pms.FireflyMC(model=model)
    one.setup_chain(np.random.default_rng(3), 300, 300)
    _, before, point = run(one, model.initial_point(), 300)
    one.stop_tuning()
    scaling, reference = moves.scaling(one), one.reference
    _, after, _ = run(one, point, 300)
    assert len({s["scaling"] for s in before}) > 100
    assert {s["scaling"] for s in after} == {scaling}
    assert one.reference is reference
    assert abs(np.mean([s["acceptance_rate"] for s in after]) - 0.574) < 0.1


# Statistics and checks


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("brightness", ["implicit", "explicit"])
def test_statistics_describe_the_transitions(cases, proposal, brightness):
    case, k, n = cases("logistic"), 4, 200
    one = pms.FireflyMC(
        model=case.model, proposal=PROPOSALS[proposal], transitions_per_draw=k,
        brightness=brightness, reference=case.off,
    )  # fmt: skip
    draws, stats = chain(one, {"a": np.array(0.3), "b": np.array(0.8)}, tune=20, draws=20)
    chains.assert_as_declared(one, stats)
    for stat in stats:
        moved = k * stat["n_bright"]
        read = k * stat["batch_size"] - moved
        per_move = 4 if proposal == "langevin" else 1
        np.testing.assert_allclose(stat["n_evaluations"], 3 * read + per_move * moved, atol=1)
        np.testing.assert_allclose(stat["data_share"], stat["batch_size"] / n)
        assert 0 <= stat["acceptance_rate"] <= 1
        assert k * stat["accepted"] == round(k * stat["accepted"])
    stuck = np.all(draws[1:] == draws[:-1], axis=1)
    assert [s["accepted"] == 0 for s in stats[1:]] == stuck.tolist()
    assert stats[0]["n_evaluations"] >= 3 * n  # all lights are drawn to begin with


def warned(step, point, tune=60, draws=40):
    _, stats = chain(step, point, tune=tune, draws=draws)
    return verdict(stats), stats[-1]["warning"].message


@pytest.mark.costly(cases=0)
def test_checks_at_the_end_of_a_chain(cases):
    case = cases("logistic")
    point = case.model.initial_point()
    last, said = warned(pms.FireflyMC(model=case.model), point)
    assert (last.failed, said) == ((), "FireflyMC: all checks passed")
    explicit = pms.FireflyMC(model=case.model, brightness="explicit", resample_fraction=0.9)
    last, said = warned(explicit, point)
    assert last.values["rows_read"] > 1
    assert "FireflyMC: A draw reads" in said
    assert 'Use brightness="implicit"' in said
    stiff = {"reference": case.off, "dark_to_bright": 1e-4}
    last, said = warned(pms.FireflyMC(model=case.model, **stiff), point)
    assert last.values["turnover"] < 0.1
    assert "of the bright rows are replaced per draw" in said
    wild = {"proposal": RandomWalk(1e3)}
    assert "proposals were accepted" in warned(pms.FireflyMC(model=case.model, **wild), point)[1]
    hot = pms.FireflyMC(model=case.model, temperature=2.0)
    assert "temperature=2" in warned(hot, point)[1]


def test_a_bound_that_is_none_is_reported_at_the_end(model, monkeypatch):
    monkeypatch.setattr(lower_bounds, "_holds", lambda *_: True)
    monkeypatch.setattr(lower_bounds, "_least_found", lambda *_: 0.0)
    monkeypatch.setattr(firefly, "_verify", lambda *_: 1.0)
    step = pms.FireflyMC(model=model, bound=-0.01)
    last, said = warned(step, model.initial_point())
    assert last.values["lower_bound"] > 1e3
    assert "draws are not from the posterior: what was taken for a lower bound" in said


@pytest.mark.costly(cases=0)
def test_result_is_what_the_rest_of_the_package_expects(model, tmp_path):
    step = pms.FireflyMC(model=model)
    result = pm.sample(
        300, tune=100, chains=2, cores=1, random_seed=1, step=step, model=model, progressbar=False
    )
    result.to_netcdf(tmp_path / "run.nc")
    for idata in (result, xr.open_datatree(tmp_path / "run.nc")):
        assert {"accepted", "n_bright", "n_evaluations"} <= set(idata.sample_stats.data_vars)
        found = pms.report(idata)
        assert str(found).startswith(("PASS: FireflyMC", "WARN: FireflyMC"))
        names = {f.name for f in found.findings}
        assert {"lower_bound", "rows_read", "turnover", "accepted", "temperature"} <= names
        table = pms.efficiency(idata)
        assert table["rows"].iloc[0] == 200
        pms.plot_subsample(idata, backend="none")
        pms.plot_batch_sizes(idata, backend="none")
        pms.plot_evaluations(idata, backend="none")
        audit = pms.audit(idata, model=model, draws=40)
        assert audit.kind == "score"
        assert audit.p_value > ALPHA
        with pytest.raises(ValueError, match='kind="weights" is not possible'):
            pms.audit(idata, model=model, kind="weights")


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("bar", ["combined+stats", "split+stats"])
def test_progress_bars(model, bar, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # in narrow terminals fewer columns are shown
    step = pms.FireflyMC(model=model)
    pm.sample(3, tune=3, chains=2, cores=1, step=step, model=model, progressbar=bar)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Acce", "Brig", "Data"))


def test_some_variables_move_and_others_stay(model):
    step = pms.FireflyMC(vars=["b"], model=model)
    point = {"a": np.array(0.31), "b": np.array(0.7)}
    step.setup_chain(np.random.default_rng(1), 0, 10)
    draws, _, after = run(step, point, 10)
    assert after["a"] == 0.31
    assert np.unique(draws).size > 3


# Real size


@pytest.fixture(scope="module")
def tall():
    n, d = 100_000, 6
    rng = np.random.default_rng(11)
    X = rng.normal(size=(n, d))
    y = (rng.random(n) < expit(X @ rng.normal(0, 0.8, d))).astype("int8")
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=d)
        pm.Bernoulli("y", logit_p=pt.dot(X, b), observed=y)
    return model


@pytest.mark.costly(cases=0)
def test_few_rows_are_bright_at_real_size(tall):
    step = pms.FireflyMC(model=tall)
    result = sample(step, tall, 1000)
    stats = result.sample_stats
    assert stats["n_bright"].mean() < 10
    assert stats["n_evaluations"].mean() < 1000
    assert stats["data_share"].mean() < 1e-3
    assert pms.report(result).status == "pass"
    audit = pms.audit(result, model=tall, draws=40)
    assert audit.p_value > ALPHA
    assert np.all(np.abs(audit.table["bias"]) < 0.15)
    assert np.all(np.abs(audit.table["sd_error"]) < 0.15)


# Arguments


BAD = [
    ({"temperature": 0}, "temperature .*above 0"),
    ({"bound": "jaakkola"}, "bound must be one of 'auto', .*'jaakkola'"),
    ({"bound": np.nan}, "bound must be one of .*nan"),
    ({"bound": True}, "bound must be one of .*True"),
    ({"brightness": "bright"}, "brightness must be one of 'explicit', 'implicit'; got 'bright'"),
    ({"dark_to_bright": 0}, "dark_to_bright must be a number above 0 and at most 1, got 0"),
    ({"dark_to_bright": 1.5}, "dark_to_bright .*1.5"),
    ({"dark_to_bright": "few"}, "dark_to_bright .*'few'"),
    ({"resample_fraction": 0.1}, "resample_fraction is not used with brightness='implicit'"),
    ({"dark_to_bright": 0.1, "brightness": "explicit"}, "dark_to_bright is not used"),
    ({"resample_fraction": -1, "brightness": "explicit"}, "resample_fraction must be .*-1"),
    ({"reference": {"a": 1.0}}, r"reference .*missing \['b'\]"),
    ({"proposal": "walk"}, "proposal must be .*'walk'"),
    ({"proposal": RandomWalk(covariance=[1.0])}, r"proposal: covariance has shape \(1,\).* 2 "),
]


@pytest.mark.parametrize(
    ("kwargs", "message"), BAD, ids=[f"{next(iter(b[0]))} {k}" for k, b in enumerate(BAD)]
)
def test_bad_arguments_are_named(model, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pms.FireflyMC(model=model, **kwargs)


def test_no_model():
    with pytest.raises(TypeError, match="create FireflyMC inside `with model:`"):
        pms.FireflyMC()


def test_discrete_variables_are_refused_by_name():
    with pm.Model() as model:
        k = pm.Poisson("k", 2)
        a = pm.Normal("a")
        pm.Bernoulli("y", logit_p=a + 0.1 * k, observed=np.r_[np.ones(30), np.zeros(30)])
    with pytest.raises(pms.TallModelError, match="'k' is discrete"):
        pms.FireflyMC(model=model)
