"""Discrete local variables: sums over their states, and draws by their probabilities."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from chains import QUIET
from scipy import stats
from scipy.special import logsumexp

import pymc_subsample as pms
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.units.choosing import sums_over_all

ordered = pm.distributions.transforms.ordered


def latent_classes(units, rows, seed=0):
    """Three classes of customers, told by the rows of each."""
    rng = np.random.default_rng(seed)
    unit, kind = np.repeat(np.arange(units), rows), rng.choice(3, units, p=[0.5, 0.3, 0.2])
    y = np.array([-2.0, 0.5, 3.0])[kind[unit]] + 1.2 * rng.normal(size=units * rows)
    with pm.Model(coords={"unit": [f"u{i}" for i in range(units)]}) as model:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", [-1, 0, 1], 3, transform=ordered, initval=[-1, 0, 1])
        kind = pm.Categorical("kind", w, dims="unit")
        pm.Normal("y", mu[kind[unit]], pm.HalfNormal("sigma", 2), observed=y)
    return model


def classes_by_a_column(units, rows):
    """Probabilities of two classes are each unit's own."""
    rng = np.random.default_rng(1)
    unit, x = np.repeat(np.arange(units), rows), rng.normal(size=units)
    y = rng.poisson(np.where(rng.random(units) < 0.4, 1.0, 4.0)[unit])
    with pm.Model() as model:
        a, rate = pm.Normal("a", 0, 1, shape=2), pm.HalfNormal("rate", 3, shape=2)
        kind = pm.Bernoulli("kind", logit_p=a[0] + a[1] * x, shape=units)
        pm.Poisson("y", pt.switch(kind, rate[1], rate[0])[unit], observed=y)
    return model


def occupancy(units, visits):
    """A site without the species has no detections: its rows are impossible where it has some."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=units)
    there = rng.random(units) < 1 / (1 + np.exp(-0.3 - x))
    seen = (rng.random((units, visits)) < 0.4) & there[:, None]
    with pm.Model() as model:
        a, b, p = pm.Normal("a", 0, 1.5), pm.Normal("b", 0, 1.5), pm.Beta("p", 1, 1)
        z = pm.Bernoulli("z", logit_p=a + b * x, shape=units)
        pm.Bernoulli("y", (z * p)[:, None], observed=seen.astype(int), shape=(units, visits))
    return model


def inflated(units, _rows):
    """Zero inflation by a Bernoulli for each row."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=units)
    y = np.where(rng.random(units) < 0.7, rng.poisson(np.exp(0.5 + 0.4 * x)), 0)
    with pm.Model() as model:
        psi, b = pm.Beta("psi", 1, 1), pm.Normal("b", 0, 1, shape=2)
        z = pm.Bernoulli("z", psi, shape=units)
        pm.Poisson("y", z * pm.math.exp(b[0] + b[1] * x), observed=y)
    return model


def two_at_once(units, rows):
    """Two variables of a unit, one with bounds; and two elements of one."""
    rng = np.random.default_rng(4)
    unit = np.repeat(np.arange(units), rows)
    y = rng.normal(size=units * rows) + rng.integers(0, 3, units)[unit]
    with pm.Model() as model:
        step, p = pm.Normal("step", 1, 1), pm.Beta("p", 2, 2)
        count = pm.DiscreteUniform("count", 1, 3, shape=units)
        pair = pm.Bernoulli("pair", p, shape=(units, 2))
        pm.Normal("y", (step * count + pair[:, 0] - 0.5 * pair[:, 1])[unit], 1.0, observed=y)
    return model


def labels(units, rows):
    """What several raters, each with mistakes of their own, make of an item."""
    rng = np.random.default_rng(6)
    item, rater = np.repeat(np.arange(units), rows), np.tile(np.arange(rows), units)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.full(3, 2.0))
        told = pm.Dirichlet("told", 1 + 4 * np.eye(3), shape=(rows, 3, 3))
        kind = pm.Categorical("kind", w, shape=units)
        label = (rng.integers(0, 3, units)[item] + (rng.random(len(item)) < 0.3)) % 3
        pm.Categorical("label", told[rater, kind[item]], observed=label)
    return model


MODELS = {f.__name__: f for f in
          (latent_classes, classes_by_a_column, occupancy, inflated, two_at_once, labels)
          }  # fmt: skip


def every_state(model):
    """All values of all discrete variables of a small model."""
    values = {"kind": range(3 if "w" in model.named_vars else 2), "count": range(1, 4)}
    start = model.initial_point()
    names = [v.name for v in model.discrete_value_vars]
    sizes = [start[n].size for n in names]
    each = [values.get(n, range(2)) for n, size in zip(names, sizes, strict=True)
            for _ in range(size)]  # fmt: skip
    for state in product(*each):
        parts = np.split(np.array(state), np.cumsum(sizes)[:-1])
        yield {n: p.reshape(start[n].shape) for n, p in zip(names, parts, strict=True)}


def points_near_the_start(model, rng, number):
    for _ in range(number):
        start = {v.name: model.initial_point()[v.name] for v in model.continuous_value_vars}
        yield {k: np.asarray(x + 0.3 * rng.normal(size=np.shape(x))) for k, x in start.items()}


def repeated(model, point, draws):
    """A result whose draws are all the same."""
    rvs = [rv for rv in model.free_RVs if model.rvs_to_values[rv] in model.continuous_value_vars]
    found = model.compile_fn(model.replace_rvs_by_values(rvs), inputs=model.continuous_value_vars)
    arrays = {
        rv.name: xr.DataArray(
            np.broadcast_to(x, (1, draws, *np.shape(x))),
            dims=["chain", "draw", *(f"{rv.name}_{i}" for i in range(np.ndim(x)))],
        )
        for rv, x in zip(rvs, found(point), strict=True)
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(arrays)})


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("name", MODELS)
def test_units_sum_over_all_states_and_draw_each_with_its_probability(name):
    """All states of five units are counted: the sum to rounding, and draws by a test of 1e-4."""
    units, draws = 3 if name == "two_at_once" else 5, 4_000
    model = MODELS[name](units, 2)
    marginal, joint = pms.marginalize(model), model.compile_logp()
    summed, states = marginal.compile_logp(), list(every_state(model))
    for point in points_near_the_start(model, np.random.default_rng(5), 3):
        logs = np.array([joint(point | state) for state in states])
        assert summed(point) == pytest.approx(logsumexp(logs), abs=1e-9 * abs(logsumexp(logs)))

    levels = model.coords.get("unit", range(units))
    drawn = pms.effects(repeated(model, point, draws), marginal, levels=list(levels))
    found = {k: drawn[k].values[0].reshape(draws, -1) for k in states[0]}
    counts = [
        np.sum([(found[k] == np.ravel(x)).all(axis=1) for k, x in state.items()], axis=0)
        for state in states
    ]
    counts = np.sum(np.array(counts) == len(found), axis=1)
    probability = np.exp(logs - logsumexp(logs))
    assert counts[probability == 0].sum() == 0
    assert counts.sum() == draws
    order = np.argsort(-probability)
    # States of fewer than ten expected draws are one.
    cell = np.minimum(np.arange(len(order)), np.sum(draws * probability > 10))
    expected = np.bincount(cell, weights=draws * probability[order])
    observed = np.bincount(cell, weights=counts[order])
    some = expected > 5
    statistic = np.sum((observed - expected)[some] ** 2 / expected[some])
    assert stats.chi2.sf(statistic, some.sum()) > 1e-4


@pytest.mark.costly(cases=1)
def test_rows_that_are_picked_by_their_number_are_read_by_units():
    """The density of a Categorical picks by the numbers of rows, whose length units know."""
    marginal = pms.marginalize(labels(40, 4))
    tall, logp = TallModel(marginal), marginal.compile_logp()
    assert tall.n_rows == 40
    rng = np.random.default_rng(7)
    for point in points_near_the_start(marginal, rng, 3):
        theta = tall.ravel(point)
        found = tall.logprior(theta) + tall.row_loglik(theta, slice(None)).sum()
        assert found == pytest.approx(float(logp(point)), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latent_classes", "occupancy", "inflated"])
def test_a_run_is_that_of_nuts_on_the_marginal_model(name):
    model = MODELS[name](600, 4)
    with model:
        step = pms.HMCECS()
        idata = pm.sample(1_000, tune=1_000, chains=4, cores=1, step=step, random_seed=1, **QUIET)
    assert pms.report(idata).status == "pass"
    with pms.marginalize(model) as marginal:
        full = pm.sample(2_000, tune=1_000, chains=4, cores=1, random_seed=2, **QUIET)
    for rv in marginal.free_RVs:
        ours, theirs = (d["posterior"][rv.name].values for d in (idata, full))
        ours, theirs = (x.reshape(*x.shape[:2], -1) for x in (ours, theirs))
        for k in range(theirs.shape[2]):
            both = [array_stats.ess(x[..., k]) for x in (ours, theirs)]
            mean, sd = theirs[..., k].mean(), theirs[..., k].std()
            # Errors of both are in the difference: five of them, 1e-6 in each comparison.
            error = sd * np.sqrt(1 / both[0] + 1 / both[1])
            assert abs(ours[..., k].mean() - mean) < 5 * error
            assert abs(ours[..., k].std() / sd - 1) < 5 * error / sd + 0.05
    [discrete] = [model.values_to_rvs[v].name for v in model.discrete_value_vars]
    draws, summary = idata["posterior"][discrete], pms.effects(idata, model)
    assert np.issubdtype(draws.dtype, np.integer)
    shares = summary[f"{discrete}_probability"]
    np.testing.assert_allclose(shares.sum(f"{discrete}_value"), 1.0)
    for k in shares[f"{discrete}_value"].values:
        both = (draws == k).mean(["chain", "draw"]).values, shares.sel({f"{discrete}_value": k})
        # Of 4,000 draws each, of which 400 are effective at least: five errors.
        assert np.all(abs(both[0] - both[1].values) < 5 * np.sqrt(2 * 0.25 / 400))


def with_counts():
    with pm.Model() as model:
        n = pm.Poisson("n", pm.Gamma("rate", 2, 1), shape=50)
        pm.Binomial("y", n[:, None], pm.Beta("p", 1, 1), observed=np.ones((50, 3), dtype=int))
    return model


def with_many():
    with pm.Model() as model:
        each = pm.Bernoulli("each", pm.Beta("p", 1, 1), shape=(50, 12))
        pm.Normal("y", each.sum(axis=1), 1.0, observed=np.zeros(50))
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_counts, "is discrete without a finite set of values"),
        (with_many, "'each' have 4,096 states together in each level"),
    ],
)
def test_what_is_not_summed_over_is_refused_by_name(make, said):
    for call in (pms.marginalize, pms.HMCECS):
        with pytest.raises(TallModelError, match=said):
            call(model=make())


@pytest.mark.costly
def test_effects_of_units_are_integrated_over_in_all_states():
    """Rows of an effect and a class: given the class, those of a unit are normal together."""
    units, unit = 40, np.repeat(np.arange(40), 2)
    model, other = latent_classes(units, 2), np.random.default_rng(3).normal(1.0, 1.5, (40, 2))
    with model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), dims="unit")
        pm.Normal("other", z[unit] + model["kind"][unit], 1.0, observed=other.ravel())
    marginal = pms.marginalize(model, n_nodes=11)
    y = model.rvs_to_values[model["y"]].data.reshape(units, 2)
    start = marginal.initial_point()
    prior = marginal.compile_fn(marginal.logp(vars=marginal.free_RVs), inputs=marginal.value_vars)
    values = [marginal.replace_rvs_by_values([marginal[n]])[0] for n in ("w", "mu", "sigma", "tau")]
    constrained = marginal.compile_fn(values, inputs=marginal.value_vars)
    for scale in (0.0, 0.2):
        at = {name: x + scale for name, x in start.items()}
        w, mu, sigma, tau = constrained(at)
        each = [
            np.log(w[k])
            + stats.norm.logpdf(y, mu[k], sigma).sum(axis=1)
            + stats.multivariate_normal.logpdf(other, [k, k], np.eye(2) + tau**2)
            for k in range(3)
        ]
        expected = logsumexp(each, axis=0).sum()
        assert marginal.compile_logp()(at) - prior(at) == pytest.approx(expected, abs=2e-3)
        assert abs(np.max(each, axis=0).sum() - expected) > 0.5


@pytest.mark.slow
def test_what_follows_a_run_knows_states():
    """An audit passes; leaving out units is importance sampling by hand; predictions are means."""
    model = latent_classes(600, 4)
    with model:
        idata = pm.sample(
            1_000, tune=500, chains=2, cores=1, step=pms.HMCECS(), random_seed=1, **QUIET
        )
        assert pms.audit(idata).status == "pass"
        left_out = pms.loo(idata, groups=np.repeat(np.arange(600), 4))
        means = pms.predict(idata, "y", draws=200)["mean"].values.reshape(600, 4)
    draws = idata["posterior"].to_dataset().stack(all=("chain", "draw"))
    y = model.rvs_to_values[model["y"]].data.reshape(600, 4)
    each = stats.norm.logpdf(y[..., None, None], draws["mu"].values, draws["sigma"].values).sum(1)
    unit = logsumexp(np.log(draws["w"].values) + each, axis=1)
    expected = np.sum(np.log(unit.shape[1]) - logsumexp(-unit, axis=1))
    assert left_out.elpd == pytest.approx(expected, abs=0.1)  # of an elpd with an error of 30
    kinds = draws["kind"].values
    by_hand = np.take_along_axis(draws["mu"].values, kinds, axis=0).mean(axis=1)
    # Predictions are from 200 draws, of a mean that differs by five between classes.
    assert np.all(abs(means.T - by_hand) < 5 * 2.5 / np.sqrt(200))


@pytest.mark.slow
@pytest.mark.parametrize("make", [pms.MinibatchBarkerMH, pms.sgmcmc.SGHMC, pms.ScalableMH])
def test_other_steps_sum_over_states(make):
    model = latent_classes(600, 4)
    with model:
        idata = pm.sample(1_500, tune=1_000, chains=2, cores=1, step=make(), random_seed=3, **QUIET)
        full = pm.sample(1_500, tune=1_000, chains=2, cores=1, step=pms.HMCECS(),
                         random_seed=4, **QUIET)  # fmt: skip
    assert pms.report(idata).status in ("pass", "warn")
    for name in ("w", "mu", "sigma"):
        ours, theirs = (d["posterior"][name].values.reshape(2, 1_500, -1) for d in (idata, full))
        for k in range(theirs.shape[2]):
            both = [array_stats.ess(x[..., k]) for x in (ours, theirs)]
            sd = theirs[..., k].std()
            error = sd * np.sqrt(1 / both[0] + 1 / both[1])
            # What a run that passes may be off by: a tenth of an sd, an sd by a twentieth.
            assert abs(ours[..., k].mean() - theirs[..., k].mean()) < 5 * error + 0.1 * sd
            assert abs(ours[..., k].std() / sd - 1) < 5 * error / sd + 0.05


@pytest.mark.costly
def test_advice_on_discrete_variables_is_by_what_a_step_sums_over():
    assert sums_over_all(latent_classes(5, 2))
    assert not sums_over_all(with_counts())
    with latent_classes(5, 2) as model:
        shared = pm.Bernoulli("shared", 0.5)
        pm.Normal("other", shared, 1.0, observed=np.zeros(10))
    assert not sums_over_all(model)
