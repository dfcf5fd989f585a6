"""Units whose rows depend on each other in time, in a matrix of units by times."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from chains import assert_moments, moments
from pytensor.graph.traversal import toposort
from scipy import stats
from scipy.integrate import quad

import pymc_subsample as pms
from pymc_subsample.graph.numpy_functions import numpy_function
from tests.model.test_time_within_rows import Y as FEW
from tests.model.test_time_within_rows import enumerated

J, T = 40, 5
rng = np.random.default_rng(2)


def simulated(units, times):
    """Return units with a level of their own and errors that are correlated by 0.6."""
    errors = rng.normal(size=(units, times)) / 2
    errors[:, 0] /= 0.8
    for t in range(1, times):
        errors[:, t] += 0.6 * errors[:, t - 1]
    return 1 + 0.7 * rng.normal(size=(units, 1)) + errors


Y = simulated(J, T)


def parameters(centred):
    mean, tau = pm.Normal("mean"), pm.HalfNormal("tau")
    rho, s = pm.Uniform("rho", -1, 1, initval=0.3), pm.HalfNormal("s")
    if centred:
        return pm.Normal("a", mean, tau, shape=J), rho, s
    return mean + tau * pm.Normal("a", shape=J), rho, s


def lagged(centred):
    level, rho, s = parameters(centred)
    errors = Y - level[:, None]
    pm.Normal("y", level[:, None] + rho * errors[:, :-1], s, observed=Y[:, 1:])
    pm.Normal("first", level, s / pt.sqrt(1 - rho**2), observed=Y[:, 0])


def of_data(centred):
    level, rho, s = parameters(centred)
    data = pm.Data("panel", Y)
    errors = data - level[:, None]
    pm.Normal("y", level[:, None] + rho * errors[:, :-1], s, observed=data[:, 1:])
    pm.Normal("first", level, s / pt.sqrt(1 - rho**2), observed=data[:, 0])


def innovations(centred):
    level, rho, s = parameters(centred)
    errors = Y - level[:, None]
    new = pt.concatenate(
        [errors[:, :1] * pt.sqrt(1 - rho**2), errors[:, 1:] - rho * errors[:, :-1]], axis=1
    )
    inside = pm.logp(pm.Normal.dist(0, s), new).sum()
    pm.Potential("y", inside + J * pt.log(1 - rho**2) / 2)


def covariance(centred):
    level, rho, s = parameters(centred)
    t = np.arange(T)
    cov = s**2 / (1 - rho**2) * rho ** abs(t[:, None] - t)
    chol = pt.linalg.cholesky(cov)
    pm.MvNormal("y", level[:, None] + np.zeros(T), chol=chol, observed=Y)


def log_densities(model, points):
    """Return the log density at values by name, and whether its graph loops over nodes."""
    graph = model.logp()
    function = numpy_function(model.value_vars, [graph])
    looped = [n for n in toposort([graph]) if "Blockwise{Join" in str(n.op)]
    return [float(function(*(p[v.name] for v in model.value_vars))[0]) for p in points], looped


def points():
    draws = np.random.default_rng(5)
    return [
        {
            "mean": 1 + draws.normal() / 5, "tau_log__": np.log(0.7) + draws.normal() / 5,
            "rho_interval__": 1.4 + draws.normal() / 2, "s_log__": np.log(0.5) + draws.normal() / 9,
        }
        for _ in range(4)
    ]  # fmt: skip


def natural(point):
    tau, s = np.exp(point["tau_log__"]), np.exp(point["s_log__"])
    rho = 2 / (1 + np.exp(-point["rho_interval__"])) - 1
    prior = stats.norm.logpdf(point["mean"]) + np.log((1 - rho**2) / 4)
    prior += sum(stats.halfnorm.logpdf(x) + np.log(x) for x in (tau, s))
    return point["mean"], tau, rho, s, prior


def in_closed_form(point):
    """Log density of autoregressive errors around normal levels, which are normal together."""
    mean, tau, rho, s, prior = natural(point)
    t = np.arange(T)
    cov = s**2 / (1 - rho**2) * rho ** abs(t[:, None] - t) + tau**2
    return prior + stats.multivariate_normal.logpdf(Y, np.full(T, mean), cov).sum()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("write", [lagged, of_data, innovations, covariance])
def test_autoregressive_errors(write, centred):
    with pm.Model() as model:
        write(centred)
    found, looped = log_densities(pms.marginalize(model, "a", n_nodes=15), points())
    np.testing.assert_allclose(found, [in_closed_form(p) for p in points()], atol=2e-4)
    assert not looped


def in_long_form(pairs):
    """Errors of rows below each other, those after the first of a unit given the ones before."""
    y, of = Y.ravel(), np.repeat(np.arange(J), T)
    level, rho, s = parameters(True)
    errors = y - level[of]
    same = of[1:] == of[:-1]
    if pairs == "of one unit":
        k = np.flatnonzero(same) + 1
        pm.Potential("later", pm.logp(pm.Normal.dist(0, s), errors[k] - rho * errors[k - 1]))
    else:
        later = pm.logp(pm.Normal.dist(0, s), errors[1:] - rho * errors[:-1])
        pm.Potential("later", pt.switch(same, later, 0.0))
    first = errors[np.arange(J) * T]
    pm.Potential("first", pm.logp(pm.Normal.dist(0, s / pt.sqrt(1 - rho**2)), first))


@pytest.mark.costly(cases=1)
def test_autoregressive_errors_in_long_form():
    with pm.Model() as model:
        in_long_form("of one unit")
    found, _ = log_densities(pms.marginalize(model, "a", n_nodes=15), points())
    np.testing.assert_allclose(found, [in_closed_form(p) for p in points()], atol=2e-4)


def test_pairs_of_rows_of_two_units_are_refused_with_what_to_do():
    with pm.Model() as model:
        in_long_form("of any")
    with pytest.raises(pms.TallModelError, match=r"several levels by a row.*e\[k - 1\]"):
        pms.marginalize(model, "a")


@pytest.mark.parametrize("units", [3, 5, 8])
@pytest.mark.costly(cases=1)
def test_walks_may_be_fewer_than_their_times(units):
    """Levels of the longer axis are times, and these depend on each other."""
    y = np.random.default_rng(8).normal(size=(units, 5)).cumsum(axis=1)
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        start = pm.Normal.dist(0, 1)
        w = pm.GaussianRandomWalk("w", 0, s, init_dist=start, steps=4, shape=(units, 5))
        pm.Normal("y", w, 0.5, observed=y)
    at = 1 + np.minimum(*np.indices((5, 5)) * 1.0)
    logp = pms.marginalize(model, "w").compile_logp()
    found, expected = [], []
    for s in (0.5, 1.0, 2.0):
        cov = 1 + s**2 * (at - 1) + 0.25 * np.eye(5)
        prior = stats.halfnorm.logpdf(s) + np.log(s)
        expected.append(prior + stats.multivariate_normal.logpdf(y, np.zeros(5), cov).sum())
        found.append(logp({"s_log__": np.log(s)}))
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("walk", [False, True])
def test_levels_of_series(walk):
    """Constants of PyMC's AR, and drifts of its random walk: what is left is normal together."""
    kept = 1.0 if walk else 0.6
    own, series = 1 + 0.7 * rng.normal(size=J), np.zeros((J, T))
    for t in range(1, T):
        series[:, t] = own + kept * series[:, t - 1] + rng.normal(size=J) / 2
    with pm.Model() as model:
        level, rho, s = parameters(True)
        start = pm.Normal.dist(0, 10)
        if walk:
            pm.GaussianRandomWalk("y", level, s, init_dist=start, observed=series)
        else:
            coefficients = pt.stack([level, pt.full(J, rho)], axis=-1)
            pm.AR("y", coefficients, s, constant=True, init_dist=start, observed=series)

    def exact(point):
        mean, tau, rho, s, prior = natural(point)
        new = series[:, 1:] - (1 if walk else rho) * series[:, :-1]
        cov = s**2 * np.eye(T - 1) + tau**2
        later = stats.multivariate_normal.logpdf(new, np.full(T - 1, mean), cov).sum()
        return prior + later + stats.norm.logpdf(series[:, 0], 0, 10).sum()

    found, looped = log_densities(pms.marginalize(model, "a", n_nodes=15), points())
    np.testing.assert_allclose(found, [exact(p) for p in points()], atol=2e-4)
    assert not looped


def test_hidden_states_of_units_with_effects():
    """Each unit is an integral over its level of a sum over all paths of its states."""
    with pm.Model() as model:
        leave = pm.Beta("leave", 2, 2, shape=2)
        mean = pm.Normal("mean", [-1, 1], 1, shape=2)
        level = pm.Normal("level", 0, 0.5, shape=len(FEW))
        p = pt.stack([pt.stack([1 - leave[0], leave[0]]), pt.stack([leave[1], 1 - leave[1]])])
        e = pm.logp(pm.Normal.dist(mean, 1), (FEW - level[:, None]).T[:, :, None])
        last = pytensor.scan(
            lambda e, before, log_p: pt.logsumexp(before[:, :, None] + log_p, axis=1) + e,
            sequences=[e[1:]], outputs_info=[np.log(0.5) + e[0]], non_sequences=[pt.log(p)],
            return_updates=False,
        )[-1]  # fmt: skip
        pm.Potential("ll", pt.logsumexp(last, axis=1).sum())
    theta = np.array([-0.5, 0.3, -0.8, 1.1])
    point = {"leave_logodds__": theta[:2], "mean": theta[2:]}

    def unit(y):
        def density(u):
            moved = np.concatenate([theta[:2], theta[2:] + u])
            [value] = enumerated(moved, [len(y)], y[None])
            return np.exp(value) * stats.norm.pdf(u, 0, 0.5)

        return np.log(quad(density, -4, 4, points=[0.0])[0])

    p = 1 / (1 + np.exp(-theta[:2]))
    expected = stats.beta.logpdf(p, 2, 2).sum() + np.log(p * (1 - p)).sum()
    expected += stats.norm.logpdf(theta[2:], [-1, 1], 1).sum() + sum(unit(y) for y in FEW)
    [found], _ = log_densities(pms.marginalize(model, "level", n_nodes=15), [point])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_trend_that_units_share_is_of_parameters():
    with pm.Model() as model:
        level, _, s = parameters(True)
        trend = pm.GaussianRandomWalk("trend", 0, 0.3, init_dist=pm.Normal.dist(), shape=T)
        pm.Normal("y", level[:, None] + trend, s, observed=Y)
    marginal = pms.marginalize(model)
    assert "trend" in marginal.named_vars
    assert "a" not in {v.name for v in marginal.free_RVs}


def test_paths_by_two_indices_are_refused():
    y = simulated(250, T)
    unit, time = np.indices(y.shape)
    with pm.Model() as model:
        path = pm.GaussianRandomWalk(
            "path", 0, pm.HalfNormal("q"), init_dist=pm.Normal.dist(0, 3), shape=y.shape
        )
        mean = path[unit.ravel(), time.ravel()]
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=y.ravel())
    with pytest.raises(pms.TallModelError, match=f"'path' has 250 paths of {T} values") as error:
        pms.HMCECS(model=model)
    assert "RandomWalk" in str(error.value)
    assert "pm.AR(" in str(error.value)


@pytest.mark.costly(cases=1)
def test_paths_of_rows_are_refused():
    counts = np.random.default_rng(1).poisson(np.exp(simulated(300, 8)))
    with pm.Model() as model:
        c, rho, s = pm.Normal("c"), pm.Uniform("rho", -1, 1), pm.HalfNormal("s")
        path = pm.AR(
            "path", pt.stack([c, rho]), s, constant=True, init_dist=pm.Normal.dist(0, 3),
            shape=counts.shape,
        )  # fmt: skip
        pm.Poisson("y", pt.exp(path), observed=counts)
    with pytest.raises(
        pms.TallModelError, match="Each of 300 levels of 'path' has 8 values"
    ) as error:
        pms.HMCECS(model=model)
    assert "depend on each other (AutoRegressive" in str(error.value)
    assert "pm.AR(" in str(error.value)


def covariance_of(mean, tau, rho, s, times):
    t = np.arange(times)
    return s**2 / (1 - rho**2) * rho ** abs(t[:, None] - t) + tau**2


@pytest.mark.costly(cases=1)
def test_draws_of_autoregressive_errors():
    """Draws have the moments of the posterior in closed form."""
    y = simulated(1_000, T)
    with pm.Model():
        mean, tau = pm.Normal("mean"), pm.HalfNormal("tau")
        rho, s = pm.Uniform("rho", -1, 1), pm.HalfNormal("s")
        level = mean + tau * pm.Normal("z", shape=len(y))
        errors = y - level[:, None]
        pm.Normal("y", level[:, None] + rho * errors[:, :-1], s, observed=y[:, 1:])
        pm.Normal("first", level, s / pt.sqrt(1 - rho**2), observed=y[:, 0])
        idata = pm.sample(
            1_500, tune=500, step=pms.HMCECS(rng=1), chains=2, cores=1, random_seed=1,
            var_names=["mean", "tau", "rho", "s"], progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    products, total = y.T @ y, y.sum(axis=0)

    def log_density(x):
        point = dict(zip(("mean", "tau_log__", "rho_interval__", "s_log__"), x, strict=True))
        mean, tau, rho, s, prior = natural(point)
        inverse = np.linalg.inv(cov := covariance_of(mean, tau, rho, s, T))
        around = np.outer(total, np.full(T, mean))
        centred = products - around - around.T + len(y) * mean**2
        return prior - 0.5 * (inverse * centred).sum() - len(y) / 2 * np.linalg.slogdet(cov)[1]

    def quantities(x):
        return np.column_stack([x[:, 0], np.exp(x[:, 1]), np.tanh(x[:, 2] / 2), np.exp(x[:, 3])])

    exact = moments(log_density, np.array([1.0, -0.4, 1.4, -0.7]), quantities)
    for name, mean, sd in zip(("mean", "tau", "rho", "s"), *exact, strict=True):
        assert_moments(idata["posterior"][name], mean, sd)
