"""Predictions of models with an effect of each row: known rows have theirs, others new ones."""

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_subsample as pms

N, DRAWS = 40, 4_000
rng = np.random.default_rng(0)
x, exposed = rng.normal(size=N), rng.uniform(1, 2, N)
y = rng.poisson(exposed * np.exp(0.3 * x))


def counts(spelling, x=x, exposed=exposed, y=y):
    n = len(x)
    with pm.Model() as model:
        on, at = pm.Data("x", x), pm.Data("exposed", exposed)
        a, b, s = pm.Normal("a"), pm.Normal("b"), pm.HalfNormal("s")
        if spelling == "centred":
            eta = pm.Normal("u", a, s, shape=n) + b * on
        elif spelling == "non-centred":
            eta = a + s * pm.Normal("u", shape=n) + b * on
        elif spelling == "of the second axis":
            eta = a + (s * pm.Normal("u", 0, [[0.5], [2.0]], shape=(2, n))).sum(axis=0) + b * on
        else:
            u = pm.MvNormal("u", np.zeros(2), np.array([[1.0, 0.5], [0.5, 2.0]]), shape=(n, 2))
            eta = a + s * u[:, 0] + (b + u[:, 1]) * on
        pm.Poisson("y", at * pm.math.exp(eta), observed=y)
    return model


SPELLINGS = ("centred", "non-centred", "of the second axis", "a pair")


@cache
def posterior(spelling):
    """Draws of any posterior: predictions are functions of these."""
    own = np.random.default_rng(1)
    shape = tuple(counts(spelling)["u"].shape.eval())
    draws = {
        "a": own.normal(0.2, 0.1, (1, DRAWS)),
        "b": own.normal(0.3, 0.1, (1, DRAWS)),
        "s": own.uniform(0.2, 0.4, (1, DRAWS)),
        "u": own.normal(0, 0.5, (1, DRAWS, *shape)),
    }
    return az.from_dict({"posterior": draws})


def predicted(spelling, **kwargs):
    return pms.predict(posterior(spelling), "y", model=counts(spelling), draws=DRAWS, **kwargs)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_known_rows_have_their_own_effects(spelling):
    draws = posterior(spelling)["posterior"].to_dataset()
    a, b, c, u = (draws[name].to_numpy()[0] for name in ("a", "b", "s", "u"))
    a, b, c = a[:, None], b[:, None], c[:, None]
    eta = {
        "centred": lambda: u + b * x,
        "non-centred": lambda: a + c * u + b * x,
        "of the second axis": lambda: a + c * u.sum(axis=1) + b * x,
        "a pair": lambda: a + c * u[..., 0] + (b + u[..., 1]) * x,
    }[spelling]()
    rate = exposed * np.exp(eta)
    found = predicted(spelling)
    np.testing.assert_allclose(found["mean"], rate.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["sd"], rate.std(axis=0, ddof=1), rtol=1e-9)
    # In pieces that are not the model's length.
    parts = list(predicted(spelling, chunksize=7))
    np.testing.assert_allclose(np.concatenate([p["mean"] for p in parts]), found["mean"])
    drawn = predicted(spelling, kind="outcome")
    error = np.sqrt((rate.var(axis=0) + rate.mean(axis=0)) / DRAWS)
    assert np.all(abs(drawn["mean"] - found["mean"]) < 5 * error)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_new_rows_have_effects_of_the_prior(spelling):
    """As posterior predictive draws of the model on these rows, without draws of their effects."""
    new = {"x": np.array([-1.0, 0.5, 2.0]), "exposed": np.array([1.0, 3.0, 1.5])}
    found = predicted(spelling, data=new, kind="outcome", prob=[0.1, 0.5, 0.9])
    with counts(spelling, **new, y=np.zeros(3, dtype=int)):
        shared = posterior(spelling)["posterior"].to_dataset().drop_vars("u")
        drawn = pm.sample_posterior_predictive(
            az.from_dict({"posterior": {n: v.to_numpy() for n, v in shared.items()}}),
            random_seed=2, progressbar=False,
        )["posterior_predictive"]["y"].to_numpy()[0]  # fmt: skip
    for k in range(3):
        own, sd = drawn[:, k], drawn[:, k].std(ddof=1)
        assert abs(float(found["mean"][k]) - own.mean()) < 5 * sd * np.sqrt(2 / DRAWS)
        for p, quantile in zip((0.1, 0.5, 0.9), found["quantiles"][k].to_numpy(), strict=True):
            low, high = stats.binom(DRAWS, p).ppf([5e-6, 1 - 5e-6]) / DRAWS
            spread = high - low  # of the other sample, too
            assert np.mean(own < quantile) - spread < p < np.mean(own <= quantile) + spread
    means = predicted(spelling, data=new)
    assert np.all(abs(means["mean"] - found["mean"]) < 5 * found["sd"] * np.sqrt(2 / DRAWS))
    # Rows that are alike have effects of their own.
    twice = {n: np.repeat(v, 2) for n, v in new.items()}
    one, other = predicted(spelling, data=twice)["mean"].to_numpy().reshape(3, 2).T
    assert np.all(one != other)


def test_effects_alone_are_rows_of_what_is_observed():
    with pm.Model() as model:
        a = pm.Normal("a")
        eta = pm.Deterministic("eta", a + pm.Normal("u", shape=N))
        pm.Poisson("y", pm.math.exp(eta), observed=y)
    draws = posterior("centred")["posterior"].to_dataset()[["a", "u"]]
    idata = az.from_dict({"posterior": {n: v.to_numpy() for n, v in draws.items()}})
    found = pms.predict(idata, "y", model=model, draws=DRAWS)
    rate = np.exp(draws["a"] + draws["u"]).mean(("chain", "draw"))
    np.testing.assert_allclose(found["mean"], rate, rtol=1e-9)
    with pytest.raises(pms.TallModelError, match="its first axis is that of 'u'"):
        pms.predict(idata, "eta", model=model)


def with_effects(make, **draws):
    with pm.Model() as model:
        on = pm.Data("x", x)
        a = pm.Normal("a")
        pm.Normal("y", a + make(a, on), 1, observed=rng.normal(size=N))
    own = {"a": np.zeros((1, 9)), "u": np.zeros((1, 9, N))} | draws
    return model, az.from_dict({"posterior": own})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda a, x: pm.GaussianRandomWalk("u", 1, init_dist=pm.Normal.dist(), shape=N) + x,
         "has an element for each row, and those of new rows are not drawn here"),
        (lambda a, x: pm.Normal("u", 0, pm.math.exp(x), shape=N) + x,
         "the prior of 'u'.* reads numbers of the rows"),
    ],
)  # fmt: skip
def test_effects_that_cannot_be_drawn_are_refused(make, said):
    model, idata = with_effects(make)
    pms.predict(idata, "y", model=model)
    with pytest.raises(ValueError, match=said):
        pms.predict(idata, "y", model=model, data={"x": np.ones(3)})


def test_what_the_prior_of_effects_reads_is_needed():
    model, idata = with_effects(lambda a, x: pm.Normal("u", 0, pm.HalfNormal("s"), shape=N) + x)
    pms.predict(idata, "y", model=model)
    with pytest.raises(ValueError, match=r"lacks 's', which the prior of 'u' reads"):
        pms.predict(idata, "y", model=model, data={"x": np.ones(3)})
