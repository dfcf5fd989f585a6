"""A run that cannot be trusted says so and what to change; a healthy one is silent."""

import logging
import re

import numpy as np
import pymc as pm
import pytest
from chains import QUIET
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.bounds.predictor_ranges import exact_step
from pymc_subsample.diagnostics.estimate_errors import Estimator, read_all, read_few
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.model import TallModel


def logistic(seed=0, n=1000, d=4, intercept=0.0):
    rng = np.random.default_rng(seed)
    X = np.c_[np.ones(n), rng.normal(size=(n, d - 1))]
    y = rng.random(n) < expit(intercept + X @ rng.normal(scale=0.5, size=d))
    order = np.argsort(y, kind="stable")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=d)
        pm.Bernoulli("y", logit_p=X[order] @ beta, observed=y[order])
    return model


def linear(seed=0, n=1000, d=3, outlier=0.0):
    rng = np.random.default_rng(seed)
    X = np.c_[np.ones(n), rng.normal(size=(n, d - 1))]
    y = X @ rng.normal(size=d) + rng.normal(size=n)
    y[0] += outlier
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=d)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ beta, sigma, observed=y)
    return model


def poisson(seed=0, n=1000, d=3, scale=0.4):
    rng = np.random.default_rng(seed)
    X = np.c_[np.ones(n), rng.normal(size=(n, d - 1))]
    y = np.sort(rng.poisson(np.exp(0.5 + X @ rng.normal(scale=scale, size=d))))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=d)
        pm.Poisson("y", pm.math.exp(X @ beta), observed=y)
    return model


def negative_binomial(seed=0, n=1000):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    mu = np.exp(1 + 0.3 * x)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        alpha = pm.Exponential("alpha", 0.5)
        y = rng.negative_binomial(2, 2 / (2 + mu))
        pm.NegativeBinomial("y", mu=pm.math.exp(a + b * x), alpha=alpha, observed=y)
    return model


def hierarchical(seed=0, n=1500, groups=8, spread=0.6):
    """Varying intercepts, centred, rows sorted by group."""
    rng = np.random.default_rng(seed)
    g = np.sort(rng.integers(0, groups, n))
    x = rng.normal(size=n)
    eta = rng.normal(0.2, spread, groups)[g] + 0.5 * x
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=groups)
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a[g] + b * x, observed=rng.random(n) < expit(eta))
    return model


def warnings_of(model, caplog, draws=600, tune=300, chains=2, seed=1, **kwargs):
    """What our step says at the end of each chain, through PyMC's logger."""
    step = pms.HMCECS(model=model, **kwargs)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pymc.stats.convergence"):
        pm.sample(
            draws, tune=tune, chains=chains, cores=1, random_seed=seed, step=step, model=model,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    said = [r for r in caplog.records if r.getMessage().startswith("HMCECS")]
    assert all(r.name == "pymc.stats.convergence" for r in said)
    return [r.getMessage() for r in said]


HEALTHY = [
    *[(logistic, {}), (linear, {}), (poisson, {}), (negative_binomial, {}), (hierarchical, {})],
    *[(logistic, {"n": 50, "d": 2}), (logistic, {"n": 3000, "intercept": -3.0})],
    *[(poisson, {"n": 100}), (linear, {"n": 60, "d": 2})],
]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("factory", "kwargs"), HEALTHY, ids=[f"{f.__name__}-{k}" for f, k in HEALTHY]
)
def test_healthy_runs_are_silent(factory, kwargs, caplog):
    assert not warnings_of(factory(**kwargs), caplog)


@pytest.mark.slow
def test_rows_that_matter_far_out_alone_are_found():
    """A cliff in the tail of one of nine parameters, by ten of half a million rows.

    All parameters together are no farther out than those of a normal posterior. Draws may be so
    far out that the error there is no finite number.
    """
    n, rng = 500_000, np.random.default_rng(1)
    X = np.c_[np.ones(n), rng.normal(size=(n, 7))]
    dose, exposure = np.zeros(n), np.zeros(n)
    rare = rng.choice(n, 10, replace=False)
    X[rare], dose[rare], exposure[rare] = 0, np.repeat([25.0, -25.0], 5), -100
    y = rng.poisson(np.exp(X @ np.r_[0.3, rng.normal(scale=0.2, size=7)] + exposure))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=8)
        theta = pm.StudentT("theta", nu=3, mu=0, sigma=1)
        pm.Poisson("y", pm.math.exp(X @ beta + theta * dose + exposure), observed=y)
    x = np.linspace(-6, 6, 100_001)
    rows = 5 * (np.exp(25 * x - 100) + np.exp(-25 * x - 100))
    density = np.exp(-2 * np.log1p(x * x / 3) - rows)
    sd = np.sqrt(np.sum(density * x**2) / np.sum(density))
    for seed in range(1, 5):
        step = pms.HMCECS(model=model)
        kwargs = {"step": step, "chains": 2, "cores": 1, "random_seed": seed, **QUIET}
        idata = pm.sample(4_000, model=model, **kwargs)
        assert idata.posterior["theta"].std() > 1.1 * sd  # the run is wrong
        found = {f.name: f.status for f in pms.report(idata).findings}
        assert found["perturbation"] == "fail"


@pytest.mark.costly(cases=0)
def test_an_outlier_is_read_always_and_does_no_harm(caplog):
    model = linear(outlier=300.0)
    given = {"control_variate_order": 1, "subsample_size": 50}
    assert 0 in pms.HMCECS(model=model, **given).subsample.always
    assert not warnings_of(model, caplog, tune=200, draws=300, **given)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [logistic, linear, poisson, negative_binomial, hierarchical])
def test_healthy_runs_are_silent_whatever_the_seed(factory, caplog):
    said = [warnings_of(factory(seed), caplog, chains=1, seed=seed) for seed in range(1, 7)]
    assert sum(map(bool, said)) == 0


def far_reference(model, distance):
    """A point about `distance` posterior standard deviations from the mode in each coefficient."""
    tall = TallModel(model)
    step = pms.HMCECS(model=model)
    sd = np.linalg.norm(step.tuning.factor, axis=1)
    return dict(zip(tall.names, [step.reference.theta + distance * sd], strict=True))


@pytest.mark.costly
def test_bad_reference_warns(caplog):
    model = logistic()
    said = warnings_of(model, caplog, reference=far_reference(model, 10))
    assert len(said) == 2
    assert all("give a better reference" in s for s in said)
    causes = [s.index("reference point is stale") for s in said]
    assert all(c < s.index("ncrease subsample_size") for c, s in zip(causes, said, strict=True))


@pytest.mark.costly
def test_harmlessly_distant_reference_is_silent(caplog):
    model = logistic(n=3000)
    assert not warnings_of(model, caplog, reference=far_reference(model, 2))


HARD = {
    "order 0": (logistic, {}, {"control_variate_order": 0, "subsample_size": 100}),
    "order 1": (hierarchical, {}, {"control_variate_order": 1, "subsample_size": 40}),
    "order 1, linear": (linear, {"d": 12}, {"control_variate_order": 1, "subsample_size": 40}),
    "few rows": (logistic, {"n": 150, "d": 12}, {"subsample_size": 7}),
}


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("factory", "data", "kwargs"), HARD.values(), ids=HARD)
def test_hard_cases_warn_and_say_what_to_change(factory, data, kwargs, caplog):
    said = warnings_of(factory(**data), caplog, tune=200, draws=300, **kwargs)
    assert said
    assert all("ncrease subsample_size" in s for s in said)
    assert all(f"now {kwargs['subsample_size']}" in s for s in said)
    for text in said:
        perturbs, raisable = "perturbs" in text, "control_variate_order" in kwargs
        assert ("small groups" in text) == perturbs
        assert ("pms.ScalableMH(), which is exact" in text) == (perturbs and not raisable)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "order", "taken"),
    [
        ("bernoulli_logit", 2, True),
        ("bernoulli_logit", 1, False),
        ("normal", 2, True),
        ("quantile_regression", 2, False),
        ("two_layer_network", 2, False),
    ],
)
def test_the_exact_step_is_named_only_where_it_takes_the_model(name, order, taken, tall_model):
    tall = tall_model(name)
    expansion = expand(tall, order)
    at = reference_at(expansion, tall.ravel(tall.initial_point))
    assert bool(exact_step(expansion, at)) == taken
    if order == 2 and taken:
        pms.ScalableMH(model=tall.model)
    elif order == 2:
        with pytest.raises(pms.TallModelError):
            pms.ScalableMH(model=tall.model)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_few_groups_do_not_trap_the_chain(spread, caplog):
    """The joint mode has the group scale at zero; the posterior is elsewhere."""
    model = hierarchical(seed=33, n=600, groups=5, spread=spread)
    step = pms.HMCECS(model=model)
    result = pm.sample(
        2000, tune=1000, chains=2, cores=1, random_seed=1, step=step, model=model,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    assert np.log(result.posterior["tau"]).mean() > -4
    assert result.sample_stats["diverging"].mean() < 0.1
    where = dict(zip(step.tall.names, step.tall.slices, strict=True))
    values = step.expansion.values(step.reference.theta)
    assert -4 < values[where["tau_log__"]] < 1


def test_unfit_step_size_warns(caplog, monkeypatch):
    monkeypatch.setattr("pymc_subsample.chain.tuning._INITIAL_STEP", 2.5)  # unstable above 2
    said = warnings_of(logistic(n=200), caplog, tune=0, draws=100, path_length=40.0)
    assert len(said) == 2
    assert all(s.startswith("HMCECS: The chain was not tuned (tune=0)") for s in said)
    assert all("draws diverged" in s and "target_accept" in s for s in said)
    assert all("0% of the moves were accepted" in s and "Increase tune" in s for s in said)


def test_set_up_warns_of_noise_it_predicts(caplog):
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        pms.HMCECS(model=logistic(), control_variate_order=0, subsample_size=100)
    assert "predicted to be too noisy" in caplog.text
    assert "Increase subsample_size (now 100) or use control_variate_order=2." in caplog.text


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("size", [200, 400])
def test_noise_and_perturbation_ask_for_one_size(size, caplog):
    """Both fail, and ask for different numbers of rows: the larger is enough for both."""
    model = logistic(n=3000)
    warned = warnings_of(model, caplog, chains=1, control_variate_order=0, subsample_size=size)
    assert len(warned) == 1
    for said in warned:
        assert "too noisy" in said
        assert "perturbs the posterior" in said
        sizes = re.findall(r"ncrease subsample_size \(now \d+\)(?: to [\d,]+ or so|, up to)", said)
        assert len(sizes) == 2
        assert sizes[0] == sizes[1]


def robust(likelihood, n=400):
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 5) + pm.Normal("b", 0, 5) * x
        likelihood("y", mu=mu, observed=x + rng.laplace(size=n))
    return model


def laplace(name, mu, observed):
    return pm.Laplace(name, mu, 1.0, observed=observed)


def asymmetric_laplace(name, mu, observed):
    return pm.AsymmetricLaplace(name, kappa=0.7, mu=mu, b=1.0, observed=observed)


def student_t(name, mu, observed):
    return pm.StudentT(name, nu=3, mu=mu, sigma=1.0, observed=observed)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("likelihood", [laplace, asymmetric_laplace])
def test_a_log_likelihood_with_a_kink_is_refused(likelihood):
    with pytest.raises(pms.TallModelError, match=r"'y' cannot be expanded.*variance of") as error:
        pms.HMCECS(model=robust(likelihood))
    assert re.search(
        r"largest along '\w+' .*power of (0|1)\.\d: it is not smooth", str(error.value)
    )
    assert "sample this model with pm.sample()" in str(error.value).lower()
    assert "control_variate_order" not in str(error.value)
    assert "reference=" not in str(error.value)
    assert pms.HMCECS(model=robust(student_t)).subsample_size < 400


@pytest.mark.costly
def test_too_few_rows_are_told_from_a_kink(caplog):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 12)) * 3
    with pm.Model() as model:
        b = pm.Normal("b", 0, 30, shape=12)
        pm.Bernoulli("y", logit_p=X @ b, observed=rng.random(20) < 0.5)
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        step = pms.HMCECS(model=model)
    said = caplog.text
    assert step.exact
    assert re.search(r"largest along 'b\[\d+\]' \(\d+% of it in rows [\d, ]+\)", said)
    assert re.search(r"power of [2345]\.\d, as for a smooth function: the rows are too few", said)


@pytest.mark.parametrize(("power", "function"), [(1.5, np.abs), (0.5, np.sign)])
def test_powers_of_kinks_and_steps(power, function):
    """Root mean square over rows of what a Taylor expansion leaves, as the module says."""
    at = np.random.default_rng(2).uniform(-1, 1, 1_000_000)
    left = [
        np.sqrt(np.mean((function(at + h) - function(at) - (power > 1) * np.sign(at) * h) ** 2))
        for h in (0.1, 0.2)
    ]
    assert np.isclose(np.log2(left[1] / left[0]), power, atol=0.05)


@pytest.mark.costly
def test_what_is_refused_names_what_was_chosen_badly():
    model = logistic()
    with pytest.raises(pms.TallModelError, match=r"Use control_variate_order=2 or sample") as error:
        pms.HMCECS(model=model, control_variate_order=0)
    assert "control_variate_order=0 is too low" in str(error.value)
    far = {"a": 100.0, "b": -100.0}
    with pytest.raises(pms.TallModelError, match=r"Leave reference=None or sample"):
        pms.HMCECS(model=robust(student_t), reference=far)


@pytest.mark.costly
def test_advice_leaves_out_what_is_already_so(caplog):
    model = logistic(n=40, d=12)
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        pms.HMCECS(model=model, subsample_size=40)
    said = [caplog.text, *warnings_of(model, caplog, tune=100, draws=100, subsample_size=40)]
    assert len(said) == 3
    assert all("sample this model with pm.sample()" in s.lower() for s in said)
    for advice in "ncrease subsample_size", "control_variate_order", "better reference":
        assert not any(advice in s for s in said)


@pytest.mark.costly
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_what_is_infinite_is_said_in_words(caplog):
    model = poisson(n=200)
    reference = {"beta": np.array([-3.0, 0.0, 0.0])}
    kwargs = {"reference": reference, "subsample_size": 2, "control_variate_order": 0}
    said = warnings_of(model, caplog, tune=50, draws=50, **kwargs)
    assert any("off by more than can be computed" in s for s in said)
    assert not any(re.search(r"\b(inf|nan)\b", s) for s in said)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_errors_of_the_estimate_are_those_of_simulated_subsamples(order, temperature):
    tall = TallModel(logistic(n=400))
    expansion = expand(tall, order)
    rng = np.random.default_rng(3)
    theta = rng.normal(scale=0.3, size=4)
    reference = reference_at(expansion, theta, temperature)
    step = {0: 0.003, 1: 0.08, 2: 0.25}[order]
    thetas = theta + step * np.array([[1.0, 1, 1, 1], [1, -1, 1, -1]])
    m, weight = 60, 400 / (60 * temperature)
    by = Estimator(
        expansion=expansion, reference=reference, subsample_size=m, temperature=temperature,
        always=np.zeros(0, dtype=np.int64),
    )  # fmt: skip
    found, _ = read_all(by, read_few(by, thetas), thetas, np.arange(2), 2)
    for k, point in enumerate(thetas):
        rows = expansion.take(np.arange(400))
        expansion.anchor(reference.center, rows)
        phi = expansion.parameters(point)[0]
        [d] = expansion.residuals(rows, reference.center, [phi])
        sample = d[rng.integers(0, 400, (200_000, m))]
        total, centred = weight * sample.sum(1), sample - sample.mean(1, keepdims=True)
        log_ratio = total - 0.5 * weight**2 * (centred**2).sum(1) - d.sum() / temperature
        ratio = np.exp(log_ratio)
        error = 5 * ratio.std() / ratio.mean() / np.sqrt(len(ratio))
        assert abs(np.log(ratio.mean()) - found.bias[k]) < error + 0.02 * abs(found.bias[k]) + 1e-4
        np.testing.assert_allclose(found.variance[k], total.var(), rtol=0.03)
