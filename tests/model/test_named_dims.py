"""Models of `pymc.dims` are what the same models are without names of their dimensions."""

from functools import cache

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest
import xarray as xr
from pytensor.xtensor import as_xtensor
from scipy.special import softmax

import pymc_subsample as pms
from pymc_subsample.model import TallModel

N = 60
COORDS = {"row": np.arange(N), "group": list("abcde"), "kind": ["u", "v", "w"]}
RNG = np.random.default_rng(1)
X, GROUP = RNG.normal(size=N), RNG.integers(0, 5, N)
Y, COUNTS, WON = RNG.normal(size=N), RNG.poisson(2, N), RNG.integers(0, 2, N)
KINDS = RNG.integers(0, 3, N)


def of_rows(values):
    return xr.DataArray(values, dims="row")


def hierarchy(named):
    of, dims = (pmd, {}) if named else (pm, {"dims": "row"})
    x, group = of.Data("x", X, dims="row"), of.Data("g", GROUP, dims="row")
    scale, shift = of.Data("scale", 1.5), of.Data("shift", -1)
    a, tau, sigma = of.Normal("a", 0, 1), of.HalfNormal("tau", 1), of.HalfNormal("sigma", 1)
    z = of.Normal("z", a, tau, dims="group")
    effects = z.isel(group=group) if named else z[group]
    mu = of.Deterministic("mu", a * x * scale + effects + shift, **dims)
    of.Normal("y", mu, sigma, observed=of_rows(Y) if named else Y, **dims)


def categories(named):
    if named:
        x = pmd.Data("x", X, dims="row")
        a, b = (pmd.Normal(name, 0, 1, dims="kind") for name in "ab")
        pmd.Categorical("y", logit_p=a + b * x, core_dims="kind", observed=of_rows(KINDS))
    else:
        x = pm.Data("x", X, dims="row")
        a, b = (pm.Normal(name, 0, 1, dims="kind") for name in "ab")
        pm.Categorical("y", logit_p=a + b * x[:, None], observed=KINDS, dims="row")


def several(named):
    of, dims = (pmd, {}) if named else (pm, {"dims": "row"})
    x = of.Data("x", X, dims="row")
    eta = of.Normal("a", 0, 1) + of.Normal("b", 0, 1) * x
    counts, won = (of_rows(v) if named else v for v in (COUNTS, WON))
    of.Poisson("k", of.math.exp(0.2 * eta), observed=counts, **dims)
    of.Bernoulli("w", logit_p=eta, observed=won, **dims)


MODELS = {"hierarchy": hierarchy, "categories": categories, "several": several}


@cache
def written(name, named):
    with pm.Model(coords=COORDS) as model:
        MODELS[name](named)
    return model


@pytest.mark.costly
@pytest.mark.parametrize("name", MODELS)
def test_rows_and_prior_are_those_of_the_model_without_names(name):
    named, plain = (TallModel(written(name, of)) for of in (True, False))
    theta = np.random.default_rng(2).normal(size=named.size)
    assert named.names == plain.names
    rows = np.arange(N)
    np.testing.assert_allclose(named.row_loglik(theta, rows), plain.row_loglik(theta, rows))
    np.testing.assert_allclose(named.logprior(theta), plain.logprior(theta))


def draws(model):
    """Return draws of the variables from a normal distribution, of positive ones their sizes."""
    rng, posterior = np.random.default_rng(3), {}
    for v in model.free_RVs:
        dims = model.named_vars_to_dims.get(v.name, ())
        values = rng.normal(size=(1, 9, *(len(COORDS[d]) for d in dims)))
        positive = v.name in ("tau", "sigma")
        posterior[v.name] = ("chain", "draw", *dims), abs(values) if positive else values
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"kind": "outcome", "rng": 1}, {"prob": [0.1, 0.8]}, {"data": None}]
)
def test_predictions_are_those_of_the_model_without_names(name, options):
    new = {"x": X[:7] + 1, "g": GROUP[:7]} if name == "hierarchy" else {"x": X[:7] + 1}
    if "data" in options:
        options = {"data": new}
    named, plain = (written(name, of) for of in (True, False))
    idata = draws(plain)
    for observed in plain.observed_RVs:
        found, expected = (
            pms.predict(idata, observed.name, model=m, **options) for m in (named, plain)
        )
        xr.testing.assert_allclose(found, expected, rtol=1e-12)


def test_predictions_are_what_was_written():
    model = written("hierarchy", True)
    idata = draws(model)
    a, z = (idata["posterior"][name].values[0] for name in "az")
    expected = (a[:, None] * X * 1.5 + z[:, GROUP] - 1).mean(axis=0)
    for what in ("mu", "y", model["mu"]):
        found = pms.predict(idata, what, model=model)
        np.testing.assert_allclose(found["mean"], expected, rtol=1e-12)
    categories, kinds = written("categories", True), draws(written("categories", True))
    a, b = (kinds["posterior"][name].values[0][:, None] for name in "ab")
    found = pms.predict(kinds, "y", model=categories)["mean"]
    expected = softmax(a + b * X[:, None], axis=-1).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_random_numbers_within_an_expression_are_refused():
    model = written("several", True)
    noise = pmd.Normal.dist(model["x"], 1)
    with pytest.raises(ValueError, match="random numbers of its own"):
        pms.predict(draws(model), noise + model["a"], model=model)


def test_data_that_are_constants_are_data():
    """As packages register them, where `pm.set_data` has nothing to set."""
    with pm.Model(coords=COORDS) as model:
        x = as_xtensor(of_rows(X), name="x")
        model.register_data_var(x)
        pmd.Normal("y", pmd.Normal("b") * x, 1, observed=of_rows(Y))
    assert not hasattr(model["x"], "get_value")
    assert TallModel(model).n_rows == N
