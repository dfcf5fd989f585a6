"""Runs of steps, and what they owe whatever they sample."""

import copy

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats
from scipy import stats as distributions
from scipy.optimize import minimize

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


def assert_moments(draws, mean, sd, z=5.0):
    """Mean and sd of draws, shape (chain, draw), within z Monte Carlo errors (1e-6 per test)."""
    draws = np.asarray(draws, dtype=float)
    deviation = (draws - mean) ** 2
    error = sd / np.sqrt(array_stats.ess(draws))
    assert abs(draws.mean() - mean) < z * error
    error = deviation.std() / np.sqrt(array_stats.ess(deviation))
    assert abs(deviation.mean() - sd**2) < z * error


def moments(log_density, start, quantities, n=20_000):
    """Return mean and sd of quantities, by importance sampling from a t around the mode."""
    mode = minimize(lambda x: -log_density(x), start, method="Nelder-Mead", tol=1e-6).x
    h = 1e-3 * np.eye(len(mode))
    curvature = [
        [(log_density(mode + a + b) - log_density(mode + a - b)
          - log_density(mode - a + b) + log_density(mode - a - b)) / 4e-6 for a in h]
        for b in h
    ]  # fmt: skip
    proposal = distributions.multivariate_t(mode, np.linalg.inv(-np.array(curvature)), df=8)
    x = proposal.rvs(n, random_state=1)
    log_weights = np.array([log_density(point) for point in x]) - proposal.logpdf(x)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    assert 1 / (weights**2).sum() > n / 4
    values = quantities(x)
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


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


def verdict(stats):
    """What the checks at the end of a chain found."""
    assert not any(getattr(stat["warning"], "extra", None) for stat in stats[:-1])
    return stats[-1]["warning"].extra


def assert_same(left, right, but=()):
    np.testing.assert_array_equal(left[0], right[0])
    assert [s.keys() for s in left[1]] == [s.keys() for s in right[1]]
    for mine, other in zip(left[1], right[1], strict=True):
        ends = (getattr(stat["warning"], "extra", None) for stat in (mine, other))
        found = [end and {k: x for k, x in vars(end).items() if k not in but} for end in ends]
        np.testing.assert_equal(*found)
        for name, value in mine.items():
            if name not in ("warning", *but):
                np.testing.assert_equal(value, other[name], err_msg=name)


def assert_as_declared(step, stats):
    """Statistics are those that the step declares, of their types and shapes."""
    for stat in stats:
        assert set(stat) == set(step.stats_dtypes_shapes)
        for name, (dtype, shape) in step.stats_dtypes_shapes.items():
            if name == "warning":
                assert stat[name] is None or isinstance(stat[name], dtype)
            else:
                assert np.can_cast(np.asarray(stat[name]).dtype, dtype, "safe"), name
                assert np.shape(stat[name]) == tuple(shape), name


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
