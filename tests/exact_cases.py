"""Small models whose posteriors are known exactly, and runs of their steps."""

import copy
from types import SimpleNamespace

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats
from scipy.special import expit, log_expit
from scipy.stats import norm

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


def logistic(n=600, seed=1):
    """Two coefficients, rows sorted by outcome."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = np.sort((rng.random(n) < expit(0.3 + 0.8 * x)).astype("int8"))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    return SimpleNamespace(
        model=model,
        logp=lambda a, b: (
            norm.logpdf(a, 0, 2)
            + norm.logpdf(b, 0, 2)
            + sum(log_expit((2 * int(k) - 1) * (a + b * v)) for k, v in zip(y, x, strict=True))
        ),
        center=(y.mean() - 0.5, 0.0),
        names=("a", "b"),
    )


def poisson(n=600, seed=2):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=n))
    y = rng.poisson(np.exp(0.5 + 0.4 * x))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Poisson("y", mu=pm.math.exp(a + b * x), observed=y)

    def logp(a, b):
        total = norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + y.sum() * a + (y @ x) * b
        return total - sum(np.exp(a + b * v) for v in x)

    return SimpleNamespace(model=model, logp=logp, center=(0.5, 0.4), names=("a", "b"))


def normal(n=600, seed=3):
    """Mean and scale, rows sorted."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.normal(1.0, 0.7, size=n))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.HalfNormal("b", 2)
        pm.Normal("y", a, b, observed=y)

    def logp(a, b):
        squares = ((y - y.mean()) ** 2).sum() + n * (a - y.mean()) ** 2
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) - n * np.log(b) - squares / (2 * b**2)

    return SimpleNamespace(model=model, logp=logp, center=(1.0, 0.7), names=("a", "b"))


def groups_of_all_sizes():
    """Numbers of twenty groups, from a few to thousands, with means and scales of their own."""
    rng = np.random.default_rng(18)
    weight = np.geomspace(1.0, 300.0, 20)
    g = np.concatenate(
        [np.repeat(np.arange(20), 3), rng.choice(20, 99_940, p=weight / sum(weight))]
    )
    return g, rng.normal(rng.normal(size=20)[g], np.exp(rng.normal(0.5, 0.3, 20))[g])


def regression_on_itself(seed=0):
    """A slope of one of 2,000 rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=2000)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, 1, observed=x + rng.normal(size=2000))
    return model


def exact(case):
    """Posterior mean and sd of two parameters, by quadrature."""
    center, scale = np.array(case.center), np.array([0.3, 0.3])
    for _ in range(6):  # zoom in on the bulk
        axes = [c + s * np.linspace(-1, 1, 161) for c, s in zip(center, scale, strict=True)]
        a, b = np.meshgrid(*axes, indexing="ij")
        with np.errstate(invalid="ignore", divide="ignore"):
            logp = case.logp(a, b)
        weight = np.nan_to_num(np.exp(logp - np.nanmax(logp)))
        weight /= weight.sum()
        moments = [(float((weight * v).sum()), v) for v in (a, b)]
        center = np.array([m for m, _ in moments])
        sd = np.array([np.sqrt((weight * (v - m) ** 2).sum()) for m, v in moments])
        scale = 7 * np.maximum(sd, (axes[0][1] - axes[0][0]) / 7)
    return center, sd


def assert_moments(draws, mean, sd, z=5.0):
    """Mean and sd of draws, shape (chain, draw), within z Monte Carlo errors (1e-6 per test)."""
    draws = np.asarray(draws, dtype=float)
    deviation = (draws - mean) ** 2
    error = sd / np.sqrt(array_stats.ess(draws))
    assert abs(draws.mean() - mean) < z * error
    error = deviation.std() / np.sqrt(array_stats.ess(deviation))
    assert abs(deviation.mean() - sd**2) < z * error


def run(step, point, n):
    """Draws, shape (n, d), and statistics of n steps, and the last point."""
    thetas, stats = [], []
    for _ in range(n):
        point, [stat] = step.step(point)
        thetas.append(np.concatenate([np.ravel(point[v.name]) for v in step.vars]))
        stats.append(stat)
    return np.array(thetas), stats, point


def chain(step, point, seed=0, tune=30, draws=20):
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    before, first, point = run(step, point, tune)
    step.stop_tuning()
    after, second, _ = run(step, point, draws)
    return np.concatenate([before, after]), first + second


def assert_same(left, right):
    np.testing.assert_array_equal(left[0], right[0])
    assert [s.keys() for s in left[1]] == [s.keys() for s in right[1]]
    for mine, other in zip(left[1], right[1], strict=True):
        for name, value in mine.items():
            if name != "warning":
                np.testing.assert_equal(value, other[name], err_msg=name)


def sample(step, model, draws, tune=500, chains=2, seed=6, **kwargs):
    return pm.sample(
        draws, tune=tune, chains=chains, cores=1, random_seed=seed, step=step, model=model,
        **QUIET, **kwargs,
    )  # fmt: skip


def assert_processes_agree(step, model, mp_ctx, tune=40):
    """Chains in processes of their own equal those in sequence, and differ from each other."""
    kwargs = {"draws": 6, "tune": tune, "chains": 2, "random_seed": 4, "step": step, "model": model}
    alone = pm.sample(cores=1, **kwargs, **QUIET)
    apart = pm.sample(cores=2, mp_ctx=mp_ctx, **kwargs, **QUIET)
    for group in ("posterior", "sample_stats"):
        left, right = alone[group].dataset, apart[group].dataset
        assert set(left.data_vars) == set(right.data_vars)
        for name in left.data_vars:
            np.testing.assert_array_equal(left[name].values, right[name].values, err_msg=name)
    for draws in alone["posterior"].dataset.values():
        assert not np.array_equal(draws[0], draws[1])
    return alone


def assert_chains_leave_no_state(make, model):
    """A step that has run another chain in between, and one that has not, do the same."""
    one, point = make(), model.initial_point()
    first = chain(one, point, seed=1)
    chain(one, point, seed=2, tune=50, draws=7)
    assert_same(first, chain(one, point, seed=1))
    assert_same(first, chain(make(), point, seed=1))
    other, _ = chain(one, point, seed=3)
    assert not np.array_equal(first[0], other)


def assert_goes_on(one, other, model, tune, before, after):
    """A step takes the state of another in tuning, and does what that does to its end and on."""
    for step, seed in ((one, 3), (other, 8)):
        step.setup_chain(np.random.default_rng(seed), tune, tune)
    *_, point = run(one, model.initial_point(), before)
    other.sampling_state = copy.deepcopy(one.sampling_state)
    assert_same(*(run(step, dict(point), after) for step in (one, other)))


def round_trip(one, other, model, tune, draws, at):
    """A state taken at draw `at` of a step goes on as it did, in another step and in its own."""
    one.setup_chain(np.random.default_rng(7), tune, draws)
    *_, point = run(one, model.initial_point(), min(at, tune))
    if at >= tune:
        one.stop_tuning()
        *_, point = run(one, point, at - tune)
    saved, point = copy.deepcopy(one.sampling_state), copy.deepcopy(point)
    rest = run(one, point, 5)
    other.sampling_state = saved
    assert_same(rest, run(other, point, 5))
    one.sampling_state = saved
    assert_same(rest, run(one, point, 5))


def wide(n, kind):
    """A model with data of `n` rows given in some way."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (n, 6)).astype("int8")
    y = rng.integers(0, 2, n).astype("int8")
    with pm.Model() as model:
        if kind == "data":
            x, y = pm.Data("x", x), pm.Data("y_data", y)
        elif kind == "transposed":
            x = np.ascontiguousarray(x.T).T
        b = pm.Normal("b", 0, 1, shape=6)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, b), observed=y)
    return model
