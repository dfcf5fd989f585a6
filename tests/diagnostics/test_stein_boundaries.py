"""Where a density ends or jumps: identities hold there, chains start inside, and it is named."""

import logging
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
import xarray as xr

import pymc_subsample as pms
from pymc_subsample.chain import points
from pymc_subsample.diagnostics import stein_boundaries
from pymc_subsample.diagnostics.record import ChainRecord
from pymc_subsample.diagnostics.stein_boundaries import edges_near, ends_near, jumps_near, operated

QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}
N = 500

# The identities


@pytest.mark.parametrize(
    ("low", "high", "at", "jump"),
    [
        (0.3, np.inf, 9.0, 0.0), (-0.5, 0.4, 9.0, 0.0), (-np.inf, np.inf, 0.2, -1.5),
        (-np.inf, np.inf, -0.4, 0.8), (-1.0, np.inf, 1.1, -0.7),
    ],
)  # fmt: skip
def test_means_are_zero_beside_ends_and_jumps(low, high, at, jump):
    """By quadrature, of a normal density that is cut off and jumps; gradients alone are far off."""

    def density(x):
        inside = low < x[0] < high
        return -0.5 * x[0] ** 2 + jump * (x[0] > at) if inside else -np.inf, -x

    # Midpoints of cells, so that no point lies on an edge: 1e-4 of error, 5% of what is missed.
    grid = np.arange(-7, 7, 0.004) + 0.002
    level = np.array([density(np.array([x]))[0] for x in grid])
    weight = np.exp(level)
    weight /= weight.sum()
    x, factor = grid[weight > 0, None], np.array([[0.6]])
    weight = weight[weight > 0]
    found = edges_near(density, x, factor, np.random.default_rng(1))
    s, h = operated(-x, factor, found)
    np.testing.assert_allclose(weight @ s, 0, atol=2e-3)
    np.testing.assert_allclose(weight @ (x * s + 0.6 * h), 0, atol=2e-3)
    assert abs(weight @ x) > 0.04  # twenty times that


def test_a_smooth_density_has_no_edges():
    """Nor has one with a kink, a wall, or a value of minus infinity far away."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 3))

    def normal(x):
        return -0.5 * x @ x if x[0] > -30 else -np.inf, -x

    def laplace(x):
        return -5 * np.abs(x).sum(), -5 * np.sign(x)

    def wall(x):
        return -np.exp(8 * x[0]) - 0.5 * x @ x, -x - np.array([8 * np.exp(8 * x[0]), 0, 0])

    for density in (normal, laplace, wall):
        assert edges_near(density, x, np.eye(3), rng) is None
        assert jumps_near(density, x, np.arange(3)) == 0


def test_lines_of_many_parameters_are_capped(monkeypatch):
    """Where an edge is near; an audit says that it judges nothing, and why."""
    x = np.abs(np.random.default_rng(2).normal(size=(50, 3)))

    def half(x):
        return -0.5 * x @ x if np.all(x > 0) else -np.inf, -x

    monkeypatch.setattr(stein_boundaries, "MOST_LINES", 299)
    with pytest.raises(stein_boundaries.ManyLinesError, match="300"):
        edges_near(half, x, np.eye(3), np.random.default_rng(1))
    assert edges_near(half, x + 30, np.eye(3), np.random.default_rng(1)) is None
    found = audited(sum_above)
    assert (found.status, found.edges) == ("warn", "many")
    assert "takes a search along more than" in repr(found)


# Audits


def normal_rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2))
    y = x @ [0.5, 0.45] + rng.normal(size=N)
    cov = np.linalg.inv(x.T @ x)
    return x, y, cov @ (x.T @ y), cov, rng


def sum_above(mean):
    b = pm.Normal("b", 0, 1, shape=2, initval=mean + 0.2)
    pm.Potential("c", pt.switch(b[0] + b[1] > mean.sum() + 0.02, 0, -np.inf))
    return b, lambda b: -0.5 * (b**2).sum(1), lambda b: b.sum(1) > mean.sum() + 0.02


def ordered(mean):
    gap = mean[1] - mean[0]
    b = pm.Normal("b", 0, 1, shape=2, initval=[mean[0], mean[1] + 0.2])
    pm.Potential("c", pt.switch(b[0] + gap < b[1], 0, -np.inf))
    return b, lambda b: -0.5 * (b**2).sum(1), lambda b: b[:, 0] + gap < b[:, 1]


def truncated(mean):
    low = float(mean.min()) - 0.02
    dist = pm.Normal.dist(0, 1)
    b = pm.Truncated("b", dist, lower=low, shape=2, initval=[low + 0.1] * 2, default_transform=None)
    return b, lambda b: -0.5 * (b**2).sum(1), lambda b: (b > low).all(1)


def untransformed(mean):
    low, high = mean[0] - 0.03, mean[0] + 0.1
    first = pm.Uniform("b0", low, high, default_transform=None, initval=mean[0])
    b = pt.stack([first, pm.Normal("b1", 0, 1, initval=mean[1])])
    return b, lambda b: -0.5 * b[:, 1] ** 2, lambda b: (b[:, 0] > low) & (b[:, 0] < high)


def custom(mean):
    def logp(value, low):
        return pt.switch((value > low) & (value < low + 1), -value, -np.inf)

    first = pm.CustomDist("b0", mean[0], logp=logp, initval=mean[0] + 0.05)
    b = pt.stack([first, pm.Normal("b1", 0, 1, initval=mean[1])])
    return b, lambda b: -0.5 * b[:, 1] ** 2 - b[:, 0], lambda b: b[:, 0] > mean[0]


def a_step(mean):
    b = pm.Normal("b", 0, 1, shape=2, initval=mean)
    pm.Potential("c", pt.switch(b[0] > mean[0], 0, -1.0))
    weight = lambda b: -0.5 * (b**2).sum(1) - (b[:, 0] <= mean[0])  # noqa: E731
    return b, weight, lambda b: np.ones(len(b), dtype=bool)


def a_hole(mean):
    b = pm.Normal("b", 0, 1, shape=2, initval=mean + 0.1)
    pm.Potential("c", pt.switch(((b - mean) ** 2).sum() > 0.02**2, 0, -np.inf))
    inside = lambda b: ((b - mean) ** 2).sum(1) > 0.02**2  # noqa: E731
    return b, lambda b: -0.5 * (b**2).sum(1), inside


def bounded(mean):
    low, high = mean[0] - 0.03, mean[0] + 0.1
    first = pm.Uniform("b0", low, high, initval=mean[0])
    b = pt.stack([first, pm.Normal("b1", 0, 1, initval=mean[1])])
    return b, lambda b: -0.5 * b[:, 1] ** 2, lambda b: (b[:, 0] > low) & (b[:, 0] < high)


KINDS = [sum_above, ordered, truncated, untransformed, custom, a_step, a_hole, bounded]
WRONG = {
    "wide": lambda d: d.mean(0) + 1.3 * (d - d.mean(0)),
    "narrow": lambda d: d.mean(0) + (d - d.mean(0)) / 1.3,
    "shifted": lambda d: d + 0.4 * d.std(0) * [-1, 1],
}


def audited(kind, seed=0, spoil=None, weigh=True):
    """Audit 4,000 independent draws of the posterior, or what is made of them."""
    x, y, mean, cov, rng = normal_rows(seed)
    with pm.Model() as model:
        b, weight, inside = kind(mean)
        pm.Normal("y", (x * b).sum(-1), 1, observed=y)
    draws = rng.multivariate_normal(mean, cov, size=60_000)
    draws = draws[inside(draws)]
    if weigh:
        w = weight(draws)
        draws = draws[np.log(rng.random(len(draws))) < w - w.max()]
    if spoil is not None:
        draws = spoil(draws)
        draws = draws[inside(draws)]
    assert len(draws) >= 4000
    draws = draws[:4000].reshape(4, 1000, 2)
    dims = ("chain", "draw")
    values = (
        {"b": ((*dims, "k"), draws)}
        if "b" in model.named_vars
        else {"b0": (dims, draws[..., 0]), "b1": (dims, draws[..., 1])}
    )
    return pms.audit(xr.DataTree.from_dict({"posterior": xr.Dataset(values)}), model=model)


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_right_draws_beside_an_edge_pass_and_wrong_ones_fail(kind):
    found = audited(kind)
    assert found.status == "pass"
    assert found.edges == ("" if kind is bounded else "prior")
    assert ("cuts the density off" in repr(found)) == (kind is not bounded)
    table = found.table
    assert np.all(np.abs(table["bias"]) < 5 * table["bias_mcse"] + 0.02)
    assert np.all(np.abs(table["sd_error"]) < 5 * table["sd_error_mcse"] + 0.02)
    for spoil in WRONG.values():
        assert audited(kind, spoil=spoil).status == "fail"


def test_draws_that_ignore_a_jump_fail():
    """Between jumps their density is right: all is in how much there is on either side."""
    assert audited(a_step, weigh=False).status == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_false_alarms_are_rare(kind):
    """More than one right run in fifty: by chance once in 1e5."""
    failed = sum(audited(kind, seed).status == "fail" for seed in range(50))
    assert failed <= scipy.stats.binom.isf(1e-5, 50, 1 / 50)


def test_rows_that_end_the_density_are_said():
    """Outcomes up to a parameter: draws lie above the largest, and the density is largest there."""
    rng = np.random.default_rng(3)
    y = rng.uniform(0, 2, size=N)
    with pm.Model() as model:
        top = pm.Uniform("top", 1.0, 9.0, initval=3.0)
        pm.Potential("y", pt.switch(y < top, -pt.log(top), -np.inf))
    draws = y.max() * rng.random((4, 500)) ** (-1 / (N - 1))
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"top": (("chain", "draw"), draws)})})
    found = pms.audit(idata, model=model)
    assert (found.status, found.edges) == ("warn", "rows")
    # One at each draw and one for its curvature; 16 steps, and as far as each leaves the support
    # 23 halvings and one more; 16 at the farthest and 33 beyond.
    assert found.passes > 200 + 1 + 16 + 24 + 16
    assert "some rows becomes minus infinity" in repr(found)


def test_draws_beyond_a_constraint_are_refused_with_its_name():
    x, y, mean, _, rng = normal_rows(0)
    with pm.Model() as model:
        b, *_ = sum_above(mean)
        pm.Normal("y", (x * b).sum(-1), 1, observed=y)
    draws = rng.multivariate_normal(mean, 0.002 * np.eye(2), size=(4, 100))
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"b": (("chain", "draw", "k"), draws)})})
    with pytest.raises(ValueError, match=r"outside of the support: 'c' \(a potential\)"):
        pms.audit(idata, model=model)


# Chains


@pytest.fixture(scope="module")
def constrained():
    x, y, mean, cov, rng = normal_rows(0)
    with pm.Model() as model:
        b, _, inside = sum_above(mean)
        pm.Normal("y", (x * b).sum(-1), 1, observed=y)
    draws = rng.multivariate_normal(mean, cov, size=200_000)
    return model, draws[inside(draws)]


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize(
    "kind", [pms.HMCECS, pms.ScalableMH, pms.MinibatchBarkerMH, pms.FireflyMC, pms.sgmcmc.SGLD]
)
def test_chains_start_inside(kind, constrained):
    """Half of what lies around the reference, which is at the edge, is outside."""
    model, _ = constrained
    density = model.compile_logp(vars=model.potentials[:1], sum=True)
    step = kind(model=model, rng=1)
    for seed in range(8):
        step.setup_chain(np.random.default_rng(seed), tune=5, draws=5)
        theta = step.method.enter(step, model.initial_point())
        values = step.tall.unravel(step.expansion.values(theta))
        assert np.isfinite(density(values))
        assert step.began == "around the reference"


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_trajectories_that_cross_an_edge_are_rejections(kernel, constrained):
    """No divergences, whatever the steps' size: draws are right, and pass."""
    model, exact = constrained
    with model:
        step = pms.HMCECS(kernel=kernel)
        idata = pm.sample(1000, tune=500, chains=2, step=step, random_seed=1, **QUIET)
    assert step.record.crossings > 100
    found = idata.checks.sel(check="divergences")["value"]
    assert idata.sample_stats["diverging"].sum() == found.sum() == 0
    assert not np.any(idata.checks["failed"] > 0)
    draws = idata.posterior["b"].values.reshape(-1, 2)
    # Effective draws are a tenth of 2,000: five standard errors of a mean and of an sd.
    np.testing.assert_allclose(draws.mean(0), exact.mean(0), atol=5 * exact.std() / 200**0.5)
    np.testing.assert_allclose(draws.std(0), exact.std(0), rtol=5 / 400**0.5)


def funnel():
    """Return one beside a constraint, with few informative rows: its neck is real."""
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(400, 2)), np.arange(400) % 8
    with pm.Model() as model:
        v, z = pm.Normal("v", 0, 3, initval=1.0), pm.Normal("z", 0, 100, shape=8)
        pm.Potential("f", -0.5 * (z**2).sum() * pt.exp(-v) - 4 * v)
        b = pm.Normal("b", 0, 1, shape=2, initval=[0.6, 0.6])
        pm.Potential("c", pt.switch(b[0] + b[1] > -0.5, 0.0, -np.inf))
        mu, y = (x * b).sum(1) + z[group], x @ [0.5, 0.45] + 100 * rng.normal(size=400)
        pm.Normal("y", mu, 100.0, observed=y)
    return model


@pytest.mark.costly
def test_an_edge_hides_no_divergences(caplog):
    """Of a funnel's neck, while most trajectories cross the edge beside it."""
    with funnel(), caplog.at_level(logging.WARNING):
        step = pms.HMCECS()
        idata = pm.sample(1000, tune=1000, chains=2, step=step, random_seed=1, **QUIET)
    assert step.record.crossings > 50
    assert "of 1000 draws diverged" in caplog.text
    assert idata.checks.sel(check="divergences")["value"].max() > 1
    assert pms.report(idata).status == "fail"


def test_crossings_of_no_edge_are_divergences():
    """Of a density of zero that is no edge nearby, as where a number overflows."""
    record = ChainRecord(draws=9)
    draws = np.arange(18.0).reshape(9, 2)
    crossed = np.array([0, 1, 0, 1, 0, 0, 1, 0, 0])
    record.add_divergent(draws, np.zeros(9), 512, crossed)
    assert (record.divergences, record.crossings) == (0, 3)
    record.confirm(np.array([True, False, True]))
    assert (record.divergences, record.crossings) == (1, 2)
    np.testing.assert_array_equal(record.before, draws[[2]])
    np.testing.assert_array_equal(record.beside, draws[[0, 5]])

    def walls(x):
        """Density that has vanished before it ends, and one that has not."""
        return -np.exp(30 * x[0]) if x[0] < 0.8 else -np.inf

    near = partial(ends_near, points=np.zeros((1, 1)), draws=draws[:, :1], active=np.arange(1))
    assert not near(walls)
    assert near(lambda x: 0.0 if x[0] < 0.8 else -np.inf)


def test_gradients_that_leave_the_support_name_it(constrained, caplog):
    model, _ = constrained
    with model, caplog.at_level(logging.WARNING):
        pm.sample(300, tune=300, chains=1, step=pms.sgmcmc.SGLD(), random_seed=1, **QUIET)
    assert "outside of the support: 'c' (a potential)" in caplog.text


def test_gradients_that_ignore_a_jump_say_so(caplog):
    x, y, mean, _, _ = normal_rows(0)
    with pm.Model(), caplog.at_level(logging.WARNING):
        b, *_ = a_step(mean)
        pm.Normal("y", (x * b).sum(-1), 1, observed=y)
        idata = pm.sample(300, tune=300, chains=1, step=pms.sgmcmc.SGLD(), random_seed=1, **QUIET)
    assert "A prior or a potential jumps by 1 beside the draws" in caplog.text
    assert pms.report(idata).status != "pass"


def test_a_chain_with_nowhere_to_start_is_refused(constrained, monkeypatch):
    model, _ = constrained
    step = pms.HMCECS(model=model, rng=1)
    monkeypatch.setattr(points, "log_prior", lambda step, theta: -np.inf)
    step.setup_chain(np.random.default_rng(1), tune=5, draws=5)
    point = {"b": model.initial_point()["b"] - 9}
    with pytest.raises(ValueError, match=r"nowhere to start.*'c' \(a potential\)"):
        points.start(step, step.tall.ravel(point), model.initial_point(), step.tuning.factor)


def test_a_start_outside_is_refused_with_its_cause():
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Potential("c", pt.switch(b > 1, 0, -np.inf))
        pm.Normal("y", b, 1, observed=np.ones(N))
    with pytest.raises(pms.TallModelError, match=r"'c' \(a potential\) has log density -inf"):
        pms.HMCECS(model=model)
