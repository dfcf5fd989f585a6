"""`pms.predict`: what PyMC says of all rows at once, some rows at a time."""

import re
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from models import MODELS, bent_ridge
from pymc.distributions.moments.means import mean
from scipy import special, stats

import pymc_subsample as pms
from pymc_subsample.model.discovery import full_data_model
from pymc_subsample.results.predict import predict as module
from pymc_subsample.results.predict.mismatched_draws import of_another
from pymc_subsample.rows import Rows

SLOW_PYTHON = {"mode": "FAST_COMPILE"}  # no minutes of compilation
N, GROUPS = 1_000, 6


def tree(sign=None, **draws):
    posterior = {k: (("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))), v)
                 for k, v in draws.items()}  # fmt: skip
    groups = {"posterior": xr.Dataset(posterior)}
    if sign is not None:
        groups["sample_stats"] = xr.Dataset({"sign": (("chain", "draw"), sign)})
    return xr.DataTree.from_dict(groups)


def from_prior(model, draws=20):
    """Draws of the prior, as if they were those of a posterior."""
    with model:
        names = [v.name for v in model.free_RVs]
        found = pm.sample_prior_predictive(
            draws, var_names=names, random_seed=1, compile_kwargs=SLOW_PYTHON
        )
    return xr.DataTree.from_dict({"posterior": found["prior"].to_dataset()})


def columns(n=N, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "X": rng.normal(2.0, 3.0, size=(n, 2)),
        "group": rng.integers(0, GROUPS, n),
        "won": rng.integers(0, 2, n),
    }


def classifier(given, *, containers=True, centred=False):
    """Effects of groups and slopes; `eta` is at hand for expressions."""
    with pm.Model(coords={"flight": np.arange(len(given["won"]))}) as model:
        hold = pm.Data if containers else lambda name, x: x
        X, group, won = (hold(name, given[name]) for name in ("X", "group", "won"))
        if centred:
            X = X - X.mean(axis=0)
        a, b = pm.Normal("a"), pm.Normal("b", sigma=0.3, shape=2)
        z = pm.Normal("z", shape=GROUPS)
        model.eta = a + z[group] + X @ b
        pm.Bernoulli("won_", logit_p=model.eta, observed=won)
    return model


@pytest.fixture(scope="module")
def idata():
    return from_prior(classifier(columns()), 40)


def by_hand(idata, given, center=0.0):
    """Probabilities of all rows at all draws, shape (chain, draw, n)."""
    p = {name: v.values for name, v in idata["posterior"].data_vars.items()}
    eta = p["a"][..., None] + p["z"][..., given["group"]]
    eta = eta + np.einsum("cdk,nk->cdn", p["b"], np.asarray(given["X"]) - center)
    return 1 / (1 + np.exp(-eta))


# The numbers


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize(
    "name",
    [
        "bernoulli_logit",
        "binomial",
        "poisson_offset",
        "negative_binomial",
        "zero_inflated_poisson",
        "normal_deterministic_mu",
        "gamma_mu_sigma",
        "lognormal",
        "multinomial",
        "normal_matrix_outcome",
        "mixture_of_regressions",
        "slopes_noncentred",
        "effects_nested",
        "data_containers_with_dims",
        "pandas_columns",
        "rows_last",
        "rows_middle",
        "standardised_in_graph",
        "covariates_over_all_rows",
        "linear_trend_in_graph",
        "two_layer_network",
        "minibatch_normal",
    ],
)
def test_means_are_those_that_pymc_computes(name, monkeypatch):
    model = MODELS[name](np.random.default_rng(1))
    idata = from_prior(model)
    monkeypatch.setattr(module, "_MATRIX", 20 * 13)  # pieces of 13 rows, or fewer
    monkeypatch.setattr(module, "_VECTOR", 17)
    moments = pms.predict(idata, model.observed_RVs[0].name, model=model)
    found = pms.predict(idata, model.observed_RVs[0].name, model=model, prob=[0.1, 0.8])
    model = full_data_model(model)
    [rv, *_] = model.observed_RVs
    with model:
        pm.Deterministic("expected_mean", mean(rv.owner.inputs[0] if "minibatch" in name else rv))
    every = pm.compute_deterministics(
        idata["posterior"].to_dataset(),
        var_names=["expected_mean"],
        model=model,
        progressbar=False,
        compile_kwargs=SLOW_PYTHON,
    )["expected_mean"].values
    every = every.reshape(-1, *every.shape[2:])
    np.testing.assert_allclose(found["mean"], every.mean(axis=0), rtol=1e-9)
    sd = every.std(axis=0, ddof=1)
    np.testing.assert_allclose(found["sd"], sd, rtol=1e-6, atol=1e-9 * sd.max())
    xr.testing.assert_allclose(moments, found[["mean", "sd"]], rtol=1e-12)
    quantiles = np.moveaxis(np.quantile(every, [0.1, 0.8], axis=0), 0, -1)
    np.testing.assert_allclose(found["quantiles"], quantiles, rtol=1e-9, atol=1e-9 * sd.max())


def test_the_only_observed_variable_is_predicted_unless_another_is_named(idata):
    model = classifier(columns())
    xr.testing.assert_equal(
        pms.predict(idata, model=model), pms.predict(idata, "won_", model=model)
    )
    with pytest.raises(
        TypeError, match=r"what= is a model: write pms.predict\(idata, what, model="
    ):
        pms.predict(idata, model)
    with model:
        pm.Normal("other", 0.0, 1, observed=np.zeros(3))
    with pytest.raises(ValueError, match="the model has 2 observed variables: won_, other"):
        pms.predict(idata, model=model)


def test_new_rows_are_predicted_as_by_set_data(idata):
    new = columns(50, seed=2)
    model = classifier(columns())
    found = pms.predict(idata, "won_", model=model, data={k: new[k] for k in ("X", "group")})
    with classifier(columns()) as other:
        pm.Deterministic("p", pm.math.sigmoid(other.eta))
        pm.set_data(new)
        every = pm.sample_posterior_predictive(
            idata, var_names=["p"], progressbar=False, compile_kwargs=SLOW_PYTHON
        )
    expected = every["posterior_predictive"]["p"].mean(("chain", "draw"))
    np.testing.assert_allclose(found["mean"], expected, rtol=1e-12)
    np.testing.assert_array_equal(model["X"].get_value(), columns()["X"])  # as it was


def test_a_data_frame_is_taken_by_the_names_of_its_columns():
    """Other columns are left alone, and rows keep their labels."""
    rng = np.random.default_rng(1)
    held = {"x": rng.normal(size=40), "g": rng.integers(0, 3, 40)}
    with pm.Model() as model:
        x, g = (pm.Data(name, value) for name, value in held.items())
        eta = pm.Normal("b") * x + pm.Normal("z", shape=3)[g]
        pm.Normal("y", eta, 1, observed=np.zeros(40))
    idata = from_prior(model)
    new = pd.DataFrame(
        {"carrier": "ab", "g": [2, 0], "x": [1, 4]}, index=pd.Index(["u", "v"], name="id")
    )
    found = pms.predict(idata, "y", model=model, data=new)
    columns = {name: new[name].to_numpy() for name in ("x", "g")}
    expected = pms.predict(idata, "y", model=model, data=columns)
    xr.testing.assert_identical(found, expected.assign_coords(row=["u", "v"]))
    parts = pms.predict(idata, "y", model=model, data=dict(new[["g", "x"]]), chunksize=1)
    xr.testing.assert_identical(xr.concat(parts, "row"), found)
    several = new.set_index(["carrier", "x"], drop=False)  # labels of two levels
    xr.testing.assert_identical(pms.predict(idata, "y", model=model, data=several), expected)
    shuffled = {"g": new["g"], "x": new["x"].iloc[::-1]}
    with pytest.raises(ValueError, match=r"data\['g'\] and .* different indexes \(\['u', 'v'\]"):
        pms.predict(idata, "y", model=model, data=shuffled)
    with pytest.raises(ValueError, match=r"data lacks \['x'\]; .*data=\{'x': table"):
        pms.predict(idata, "y", model=model, data=new[["g", "carrier"]])
    with pytest.raises(TypeError, match=r"data\['g'\] must be of numbers, got \['a', 'b'\]"):
        pms.predict(idata, "y", model=model, data=new.assign(g=["a", "b"]))


def test_matrices_of_a_data_frame_are_given_by_a_dict(idata):
    given = columns(30, seed=4)
    frame = pd.DataFrame({"a": given["X"][:, 0], "b": given["X"][:, 1], "group": given["group"]})
    model = classifier(columns())
    with pytest.raises(ValueError, match=r"data lacks \['X'\].*\(1000, 2\)"):
        pms.predict(idata, "won_", model=model, data=frame)
    as_dict = {"X": frame[["a", "b"]], "group": frame["group"]}
    found = pms.predict(idata, "won_", model=model, data=as_dict)
    np.testing.assert_allclose(found["mean"], by_hand(idata, given).mean((0, 1)), rtol=1e-9)


@pytest.mark.parametrize("containers", [True, False])
def test_expressions_and_deterministics_are_predicted_as_the_outcome(idata, containers):
    model = classifier(columns(), containers=containers)
    outcome = pms.predict(idata, "won_", model=model)
    xr.testing.assert_equal(outcome, pms.predict(idata, model["won_"], model=model))
    expression = pms.predict(idata, pm.math.sigmoid(model.eta), model=model)
    with model:
        pm.Deterministic("p", pm.math.sigmoid(model.eta), dims="flight")
        named = pms.predict(idata, "p")
    np.testing.assert_allclose(outcome["mean"], by_hand(idata, columns()).mean((0, 1)), rtol=1e-12)
    np.testing.assert_array_equal(outcome["mean"], expression["mean"])
    np.testing.assert_array_equal(outcome["mean"], named["mean"])
    assert expression["mean"].dims == ("row",)
    assert named["mean"].dims == ("flight",)


def test_probabilities_of_categories_have_a_dimension_of_their_own():
    rng = np.random.default_rng(1)
    x = rng.normal(size=N)
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        p = pm.math.softmax(x[:, None] * b, axis=1)
        pm.Categorical("y", p, observed=rng.integers(0, 3, N))
    b = rng.normal(size=(1, 30, 3))
    found = pms.predict(tree(b=b), p, model=model)
    e = np.exp(x[:, None] * b[0][:, None])
    assert found["mean"].dims == ("row", "dim_1")
    expected = (e / e.sum(-1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(found["mean"], expected, rtol=1e-9)


def test_what_a_model_computes_from_all_rows_stays_that_of_the_rows_that_were_sampled(idata):
    """`pm.set_data` would centre the new rows by their own mean."""
    given, new = columns(), columns(50, seed=2)
    data = {k: new[k] for k in ("X", "group")}
    found = pms.predict(idata, "won_", model=classifier(given, centred=True), data=data)
    center = given["X"].mean(axis=0)
    right = by_hand(idata, new, center).mean((0, 1))
    wrong = by_hand(idata, new, new["X"].mean(axis=0)).mean((0, 1))
    np.testing.assert_allclose(found["mean"], right, rtol=1e-9)
    assert np.max(np.abs(found["mean"].values - wrong)) > 1e-3


def test_draws_are_spread_evenly_over_chains():
    model = classifier(columns())
    rng = np.random.default_rng(1)
    draws = {"a": (2, 90), "b": (2, 90, 2), "z": (2, 90, GROUPS)}
    idata = tree(**{k: rng.normal(size=shape) for k, shape in draws.items()})
    found = pms.predict(idata, "won_", model=model, draws=60)
    every = by_hand(idata, columns())[:, 1::3]
    np.testing.assert_allclose(found["mean"], every.mean((0, 1)), rtol=1e-12)


@pytest.mark.parametrize("dims", [("kind", "place"), None])
def test_dimensions_of_draws_are_taken_by_name(dims):
    given = columns(50)
    with pm.Model(coords={"kind": np.arange(3), "place": list("xyz")}) as model:
        table = pm.Normal("table", shape=(3, 3), dims=dims)
        mu = table[given["group"] % 3, given["won"]] + given["X"][:, 0]
        pm.Normal("y", mu, 1.0, observed=np.zeros(50))
    idata = from_prior(model)
    right = pms.predict(idata, "y", model=model)
    table = idata["posterior"]["table"]
    by_hand = table.values[0].mean(axis=0)[given["group"] % 3, given["won"]] + given["X"][:, 0]
    np.testing.assert_allclose(right["mean"], by_hand)
    _, _, first, second = table.dims
    for order in ([second, first, "draw", "chain"], ["chain", "draw", second, first]):
        moved = xr.DataTree.from_dict({"posterior": xr.Dataset({"table": table.transpose(*order)})})
        xr.testing.assert_identical(pms.predict(moved, "y", model=model), right)
    renamed = table.drop_vars([first], errors="ignore").rename({first: "other"})
    other = xr.DataTree.from_dict({"posterior": xr.Dataset({"table": renamed})})
    if dims is None:  # without a name in the model, any will do
        xr.testing.assert_identical(pms.predict(other, "y", model=model), right)
    else:
        with pytest.raises(ValueError, match=r"'table'\] has the dimensions \('other', 'place'\)"):
            pms.predict(other, "y", model=model)


# Labels

REGIONS = ["west", "east", "south"]


def regions(coords=REGIONS, *, dims=("region", "region"), derived=False):
    """Two sets of effects of the same codes, 0 to 2, of which `coords` may have the labels."""
    given = None if coords is None else dict(zip(dims, np.reshape(coords, (-1, 3)), strict=False))
    with pm.Model(coords=given) as model:
        code, x = pm.Data("code", np.arange(30) % 3), pm.Data("x", np.linspace(0, 1, 30))
        sizes = [{"shape": 3}] * 2 if given is None else [{"dims": d} for d in dims]
        z, w = (pm.Normal(name, **size) for name, size in zip("zw", sizes, strict=True))
        index = (2 * code) // 2 if derived else code
        pm.Normal("y", z[index] + w[index] * x, 1.0, observed=np.zeros(30))
    return model


def effects(model, **coords):
    """Draws of it, all the same, with the coords that are given."""
    values = {"z": [1.0, 2.0, 4.0], "w": [0.0, 0.5, 0.25]}
    dims = model.named_vars_to_dims
    draws = {
        name: (("chain", "draw", *dims.get(name, (f"{name}_0",))), np.tile(value, (1, 9, 1)))
        for name, value in values.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws, coords)})


@pytest.mark.parametrize(
    "labels",
    [
        ["east", "south", "east", "west"],
        np.array(["east", "south", "east", "west"], dtype=object),
        pd.Categorical(["east", "south", "east", "west"]),  # whose own codes are others
        pd.array(["east", "south", "east", "west"], dtype="string"),
    ],
)
def test_labels_are_those_that_the_coords_have_for_the_codes(labels):
    x = np.arange(4.0)
    model = regions([REGIONS] * 2, dims=("region", "side"))
    idata = effects(model, region=REGIONS, side=REGIONS)
    found = pms.predict(idata, "y", model=model, data={"code": labels, "x": x})
    codes = {"code": [1, 2, 1, 0], "x": x}
    xr.testing.assert_identical(found, pms.predict(idata, "y", model=model, data=codes))
    np.testing.assert_allclose(found["mean"], [2.0, 4.25, 3.0, 1.0])


@pytest.mark.parametrize(
    ("made", "new", "error", "said"),
    [
        ({}, {"code": ["east", "north"]}, ValueError,
         r"data\['code'\] has \['north'\], first in row 1, and the levels of 'region' in the model "
         r"are \['west', 'east', 'south'\]\. A level that the model does not know"),
        ({}, {"code": ["east", None]}, ValueError, r"has \[None\], first in row 1"),
        ({}, {"code": ["1", "2"]}, ValueError, r"has \['1', '2'\], first in row 0"),
        ({}, {"code": [3, 1]}, ValueError, r"data\['code'\] goes up to 3, in the model to 2"),
        ({}, {"x": ["a", "b"]}, TypeError, r"data\['x'\] .*got \['a', 'b'\] .* from 0 to 1"),
        ({"coords": None}, {}, TypeError, r"got \['west', 'east'\].* codes of it, from 0 to 2"),
        ({"coords": range(3)}, {}, TypeError, "codes of it, from 0 to 2, and no coords"),
        ({"derived": True}, {}, TypeError, "codes of it, from 0 to 2, and no coords"),
        ({"coords": [10, 20, 30]}, {}, TypeError, r"\[10, 20, 30\]: not one list of different"),
        ({"coords": ["west", "east", "east"]}, {}, TypeError, "not one list of different words"),
        ({"coords": [REGIONS, REGIONS[::-1]], "dims": ("region", "side")}, {}, TypeError,
         r"of 'side' \['south', .*, and of 'region' \['west', .*: not one list"),
    ],
)  # fmt: skip
def test_labels_whose_codes_are_not_known_are_refused(made, new, error, said):
    columns = {"code": ["west", "east"], "x": [0.0, 1.0]} | new
    model = regions(**made)
    with pytest.raises(error, match=said):
        pms.predict(effects(model), "y", model=model, data=columns)


def test_draws_whose_entries_have_other_labels_than_the_model_are_refused():
    """As where a model is written anew on rows whose levels came in another order."""
    names, labels = {"dims": ("region", "side")}, {"region": REGIONS, "side": REGIONS}
    turned = regions([["east", "west", "south"]] * 2, **names)
    said = r"entry 0 along 'region' is of 'west' in idata\.posterior\['z'\], and of 'east'"
    for code in (["west"], [0]):
        with pytest.raises(ValueError, match=said):
            pms.predict(
                effects(turned, **labels), "y", model=turned, data={"code": code, "x": [0.0]}
            )
    # Where only one of them has labels, they are all there is.
    numbered = regions([range(3)] * 2, **names)
    for model, given, code in [(numbered, labels, 2), (turned, {}, "south")]:
        found = pms.predict(
            effects(model, **given), "y", model=model, data={"code": [code], "x": [1.0]}
        )
        np.testing.assert_allclose(found["mean"], [4.25])


# Outcomes


def drawn(model, idata, draws, **given):
    """Means and sds of outcomes over many draws of one and the same parameter."""
    [(name, value)] = idata.items()
    repeated = tree(**{name: np.broadcast_to(value, (1, draws, *np.shape(value))).copy()})
    return pms.predict(repeated, "y", model=model, kind="outcome", draws=draws, **given)


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("family", ["normal", "bernoulli", "poisson", "binomial"])
def test_outcomes_have_the_distribution_that_they_were_given(family):
    n, draws = 40, 4_000
    x, trials = np.linspace(-1, 1, n), np.arange(1, n + 1)
    with pm.Model() as model:
        b = pm.Normal("b")
        eta, y = 0.3 + b * x, np.zeros(n, dtype=int)
        if family == "normal":
            pm.Normal("y", eta, 0.7, observed=y)
            exact = stats.norm(0.3 + 0.8 * x, 0.7)
        elif family == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=y)
            exact = stats.bernoulli(1 / (1 + np.exp(-0.3 - 0.8 * x)))
        elif family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
            exact = stats.poisson(np.exp(0.3 + 0.8 * x))
        else:
            pm.Binomial("y", trials, logit_p=eta, observed=y)
            exact = stats.binom(trials, 1 / (1 + np.exp(-0.3 - 0.8 * x)))
    found = drawn(model, {"b": 0.8}, draws)
    z = (found["mean"].values - exact.mean()) / (exact.std() / np.sqrt(draws))
    # A sum of n squares of independent normals: an error rate of 1e-5 at either end.
    low, high = stats.chi2(n).ppf([1e-5, 1 - 1e-5])
    assert low < np.sum(z**2) < high
    np.testing.assert_allclose(found["sd"], exact.std(), rtol=0.15)
    assert np.sum((z + 0.05 * np.sqrt(draws)) ** 2) > high  # a twentieth of an sd is seen


def test_outcomes_do_not_depend_on_threads_and_are_drawn_anew_in_each_piece(monkeypatch):
    monkeypatch.setattr(module, "_VECTOR", 100)
    x = np.ones(400)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * x, 1.0, observed=x)
    first, again = (drawn(model, {"b": 0.0}, 50) for _ in range(2))
    xr.testing.assert_equal(first, again)
    assert len(np.unique(first["mean"])) == 400
    other = drawn(model, {"b": 0.0}, 50, rng=1)
    assert not np.any(other["mean"] == first["mean"])


def test_a_generator_is_advanced_and_a_seed_is_the_same_again():
    x = np.ones(40)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * x, 1.0, observed=x)
    rng = np.random.default_rng(5)
    one, two = (drawn(model, {"b": 0.0}, 50, rng=rng) for _ in range(2))
    assert not np.any(one["mean"] == two["mean"])
    xr.testing.assert_equal(one, drawn(model, {"b": 0.0}, 50, rng=np.random.default_rng(5)))
    seeded = (drawn(model, {"b": 0.0}, 50, rng=5) for _ in range(2))
    xr.testing.assert_equal(*seeded)


# Signed draws


def test_signed_draws_count_with_their_signs():
    given, rng = columns(30), np.random.default_rng(3)
    sign = np.where(rng.random((2, 200)) < 0.9, 1, -1)
    draws = {"a": (2, 200), "b": (2, 200, 2), "z": (2, 200, GROUPS)}
    draws = {k: rng.normal(size=shape) for k, shape in draws.items()}
    draws["a"][sign < 0] += 2.0
    model = classifier(given)
    p = by_hand(tree(**draws), given)
    with_p = tree(sign, **draws, p=p)
    found = pms.predict(tree(sign, **draws), "won_", model=model, prob=[0.2, 0.7])
    expected = pms.expectation(with_p, lambda d: d["p"])["mean"]
    np.testing.assert_allclose(found["mean"], expected, rtol=1e-9)
    table = pms.summary(with_p, "p", fmt="xarray", round_to="none")["p"]
    np.testing.assert_allclose(found["sd"], table.sel(summary="sd"), rtol=1e-9)
    quantiles = pms.quantile(with_p, [0.2, 0.7], "p")["p"]
    np.testing.assert_allclose(found["quantiles"], quantiles.T, rtol=1e-12)
    xr.testing.assert_identical(
        pms.predict(tree(sign, **draws), "won_", model=model),
        found[["mean", "sd"]],
    )
    unsigned = pms.predict(tree(**draws), "won_", model=model)
    assert np.min(np.abs(unsigned["mean"] - found["mean"])) > 1e-3


def test_moments_are_exact_far_from_zero_and_of_one_draw_or_infinite_ones():
    rng = np.random.default_rng(5)
    for x in (1e9 + 1e-2 * rng.normal(size=(300, 7)), rng.random((1, 7)), np.full((4, 7), 0.3)):
        found = module._moments(x, None)
        np.testing.assert_allclose(found["mean"], x.mean(axis=0), rtol=1e-13)
        exact = np.std(x - x[0], axis=0, ddof=min(1, len(x) - 1))
        np.testing.assert_allclose(found["sd"], exact, rtol=1e-9)
    for x in ([[np.inf], [1.0], [2.0]], [[1.0], [np.inf], [2.0]]):
        found = module._moments(np.array(x), None)
        assert np.isposinf(found["mean"]).all()
        assert np.isnan(found["sd"]).all()


def test_signs_of_no_use_are_refused():
    sign = np.tile([1, -1], (2, 100))
    rng = np.random.default_rng(3)
    draws = {"a": (2, 200), "b": (2, 200, 2), "z": (2, 200, GROUPS)}
    idata = tree(sign, **{k: rng.normal(size=shape) for k, shape in draws.items()})
    with pytest.raises(ValueError, match="may as well be zero"):
        pms.predict(idata, "won_", model=classifier(columns(30)))


@pytest.mark.parametrize(
    "chosen",
    [
        {"draw": slice(50)},
        {"draw": slice(None, None, -1)},
        {"chain": [0]},
        {"chain": [1, 0]},
        {"draw": slice(1, None)},
    ],
)
@pytest.mark.parametrize("which", ["posterior", "sample_stats"])
def test_signs_of_other_draws_are_refused(chosen, which):
    rng = np.random.default_rng(3)
    draws = {"a": (2, 200), "b": (2, 200, 2), "z": (2, 200, GROUPS)}
    draws = {k: rng.normal(size=shape) for k, shape in draws.items()}
    groups = tree(np.where(rng.random((2, 200)) < 0.95, 1, -1), **draws)
    groups = {name: found.to_dataset() for name, found in groups.children.items()}
    groups = {k: g.assign_coords(chain=[0, 1], draw=np.arange(200)) for k, g in groups.items()}
    groups[which] = groups[which].isel(chosen)
    with pytest.raises(ValueError, match=r"sample_stats has the .*don't belong"):
        pms.predict(xr.DataTree.from_dict(groups), "won_", model=classifier(columns(30)))


# Rows on disk, and many rows


def test_rows_on_disk_are_predicted_as_those_in_memory(idata, tmp_path):
    given = columns()
    rows = Rows.from_blocks([given], cache=tmp_path / "rows")
    memory = pms.predict(idata, "won_", model=classifier(given))
    model = classifier(rows.sample(100))
    disk = pms.predict(idata, "won_", model=model, data=rows)
    np.testing.assert_array_equal(disk["mean"], memory["mean"])
    np.testing.assert_array_equal(disk["sd"], memory["sd"])
    assert pms.predict(idata, "won_", model=model).sizes == {"row": 100}  # those that it holds


def test_parts_are_those_of_the_whole(idata):
    model = classifier(columns())
    whole = pms.predict(idata, "won_", model=model)
    parts = list(pms.predict(idata, "won_", model=model, chunksize=300))
    assert [part.sizes["row"] for part in parts] == [300, 300, 300, 100]
    xr.testing.assert_equal(xr.concat(parts, "row"), whole)


@pytest.mark.costly
def test_memory_is_that_of_some_rows(idata):
    """A matrix of rows and draws would take 32 and 64 MB, and what is computed of it as much."""
    peaks = []
    model = classifier(columns(100))
    for n in (100_000, 200_000):
        new = columns(n)
        new.pop("won")
        tracemalloc.start()
        seen = sum(
            len(part["mean"])
            for part in pms.predict(idata, "won_", model=model, data=new, chunksize=10_000)
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seen == n
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 32_000_000


# Refusals


def model_of(**made):
    return classifier(columns(), **made)


def coupled():
    with pm.Model() as model:
        b = pm.Normal("b")
        x = np.arange(20.0)
        pm.Normal("y", pm.math.sum(b * x) + x, 1.0, observed=x)
        pm.Deterministic("rank", (b * x).cumsum())
    return model


NEW = {k: v for k, v in columns(5).items() if k != "won"}


@pytest.mark.parametrize(
    ("what", "given", "error", "said"),
    [
        ("nothing", {}, ValueError, "no variable 'nothing'"),
        (3, {}, TypeError, "must be the name of a variable"),
        ("a", {}, pms.TallModelError, "'a' has no rows of data: its shape is"),
        ("z", {}, pms.TallModelError, "its first axis is that of 'z'"),
        ("X", {}, pms.TallModelError, "depends on no variable"),
        ("won_", {"kind": "both"}, ValueError, "kind must be one of"),
        ("won_", {"draws": 0}, ValueError, "draws must be a positive integer"),
        ("won_", {"prob": 1.0}, ValueError, "prob must be strictly between 0 and 1"),
        ("won_", {"chunksize": 0}, ValueError, "chunksize must be a positive integer"),
        ("won_", {"data": [1, 2]}, TypeError, "data must be a dict of columns"),
        ("won_", {"data": {"X": NEW["X"]}}, ValueError, r"data lacks \['group'\]"),
        ("won_", {"data": NEW | {"Y": 1}}, ValueError, r"data holds \['Y'\]"),
        ("won_", {"data": NEW | {"X": NEW["X"][:4]}}, ValueError, "different numbers of rows"),
        ("won_", {"data": NEW | {"X": NEW["X"][:, :1]}}, ValueError, r"has shape \(5, 1\)"),
        ("won_", {"data": NEW | {"group": list("abcde")}}, TypeError, "must be of numbers"),
        ("won_", {"data": NEW | {"group": np.r_[0.0, 1, 1.5, 2, 3]}}, ValueError,
         "has 1.5 in row 2, which the model's type, int32, does not hold"),
        ("won_", {"data": NEW | {"group": np.r_[0.0, 1, 2, np.nan, 3]}}, ValueError,
         "has nan in row 3, which"),
        ("won_", {"data": NEW | {"group": np.ma.masked_equal([0, 1, 2, 3, 3], 3)}}, ValueError,
         r"data\['group'\] has masked values"),
        ("won_", {"data": NEW | {"group": np.arange(5) - 1}}, ValueError, "down to -1"),
        ("won_", {"data": NEW | {"group": np.arange(5) + 2}}, ValueError, "points outside"),
        ("won_", {"data": {k: v[:0] for k, v in NEW.items()}}, ValueError, "no rows"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(idata, what, given, error, said):
    with pytest.raises(error, match=said):
        pms.predict(idata, what, model=model_of(), **given)


def with_constants():
    """A scale, and effects with a table of groups; `prior` is behind the draws of b."""
    given = columns()
    with pm.Model() as model:
        x, group = pm.Data("x", given["X"][:, 0]), pm.Data("group", given["group"])
        scale, table = pm.Data("scale", 2.0), pm.Data("table", np.arange(GROUPS) / GROUPS)
        b = pm.Normal("b", sigma=pm.Data("prior", 1.0))
        y = pm.Data("y", given["won"])
        pm.Normal("y_", scale * b * x + table[group], 1.0, observed=y, shape=y.shape)
    return model


@pytest.mark.parametrize("name", ["scale", "table"])
def test_new_values_of_constants_are_refused_and_those_of_no_effect_ignored(name, tmp_path):
    model = with_constants()
    idata, new = tree(b=np.ones((1, 9))), {"x": np.arange(6.0), "group": np.arange(6)}
    same = pms.predict(idata, "y_", model=model, data=new | {"y": np.zeros(6), "prior": 3.0})
    np.testing.assert_allclose(same["mean"], 2 * np.arange(6.0) + np.arange(6) / GROUPS)
    other = new | {name: np.zeros(6) if name == "table" else 3.0}
    with pytest.raises(ValueError, match=rf"data\['{name}'\] would have no effect.*pm\.set_data"):
        pms.predict(idata, "y_", model=model, data=other)
    rows = Rows.from_blocks([new | {name: np.zeros(6)}], cache=tmp_path / "rows")
    with pytest.raises(ValueError, match="would have no effect"):
        pms.predict(idata, "y_", model=model, data=rows)
    pm.set_data({name: np.zeros(model[name].get_value().shape)}, model=model)
    changed = pms.predict(idata, "y_", model=model, data=new)
    assert np.min(np.abs(changed["mean"] - same["mean"])[1:]) > 1e-3


def test_integers_may_be_negative_where_they_are_no_index():
    """Whatever an index is computed from may not be."""
    degrees, level = np.arange(30), np.arange(30) % 3
    with pm.Model() as model:
        t, g = pm.Data("degrees", degrees), pm.Data("level", level)
        z = pm.Normal("z", shape=3)
        pm.Normal("y", z[(2 * g) // 2] + 0.5 * t, 1.0, observed=np.zeros(30))
    idata, new = tree(z=np.tile([1.0, 2.0, 4.0], (1, 9, 1))), {"level": np.array([2, 0])}
    found = pms.predict(idata, "y", model=model, data=new | {"degrees": np.array([-5, 3])})
    np.testing.assert_allclose(found["mean"], [4 - 2.5, 1 + 1.5])
    with pytest.raises(ValueError, match=r"data\['level'\] goes down to -1"):
        pms.predict(idata, "y", model=model, data={"level": [-1, 0], "degrees": [5, 3]})


def test_data_that_were_set_and_do_not_fit_are_refused(idata):
    with pm.Model() as model:
        x, b = pm.Data("x", np.arange(20.0)), pm.Normal("b")
        pm.Normal("y", b * x, 1.0, observed=np.zeros(20))
    pm.set_data({"x": np.arange(5.0)}, model=model)
    with pytest.raises(ValueError, match=r"don't fit together for 'y' .* as data="):
        pms.predict(tree(b=np.ones((1, 9))), "y", model=model)
    model = model_of()
    pm.set_data({"X": np.where(np.arange(2 * N).reshape(N, 2) == 7, np.nan, 1.0)}, model=model)
    with pytest.raises(pms.TallModelError, match=r"pm\.Data 'X' has missing values .* in rows 3\."):
        pms.predict(idata, "won_", model=model)
    model = model_of()
    pm.set_data({"group": np.arange(N)}, model=model)
    with pytest.raises(ValueError, match=r"points outside .* in rows of the model"):
        pms.predict(idata, "won_", model=model)


def test_predictions_that_are_nan_are_said(idata):
    new = NEW | {"X": np.where(np.arange(5)[:, None] == 3, np.nan, 1.0) * np.ones((5, 2))}
    with pytest.warns(UserWarning, match="1 of 5 rows are NaN, first row 3: a column has NaN"):
        found = pms.predict(idata, "won_", model=model_of(), data=new)
    assert np.isnan(found["mean"].values).tolist() == [False, False, False, True, False]


def test_one_row_is_refused_in_the_model_and_predicted_as_data():
    def written(n):
        with pm.Model() as model:
            x, b = pm.Data("x", np.full(n, 2.0)), pm.Normal("b")
            model.eta = b * x
            pm.Normal("y", model.eta, 1.0, observed=np.zeros(n))
        return model

    idata, model = tree(b=np.full((1, 9), 3.0)), written(1)
    for what, kind in [("y", "mean"), ("y", "outcome"), (model.eta, "mean")]:
        with pytest.raises(pms.TallModelError, match="holds a single row of"):
            pms.predict(idata, what, model=model, kind=kind)
    found = pms.predict(idata, "y", model=written(2), data={"x": [5.0]})
    np.testing.assert_allclose(found["mean"], [15.0])


def test_dimensions_without_a_name_are_numbered():
    x = np.arange(20.0)
    with pm.Model(coords={"obs": np.arange(20), "kind": list("xyz")}) as model:
        mu = x[:, None] * pm.Normal("b", shape=3)
        pm.Normal("y", mu, 1.0, observed=np.zeros((20, 3)))
        pm.Deterministic("late", mu, dims=("obs", None))
        pm.Deterministic("early", mu, dims=(None, "kind"))
    idata = tree(b=np.ones((1, 9, 3)))
    for what, dims in [("late", ("obs", "dim_1")), ("early", ("row", "kind"))]:
        found = pms.predict(idata, what, model=model, prob=0.5)
        assert found["mean"].dims == dims
        assert found["quantiles"].dims == (*dims, "quantile")


def test_models_that_cannot_be_predicted_are_refused_by_name(idata):
    draws = {k: v.values for k, v in idata["posterior"].items()}
    lost, short = ({**draws}, {**draws, "z": draws["z"][..., :3]})
    lost.pop("z")
    with pytest.raises(ValueError, match=r"that is not pm\.Data"):
        pms.predict(idata, "won_", model=model_of(containers=False), data={})
    with pytest.raises(ValueError, match="lacks 'z'"):
        pms.predict(tree(**lost), "won_", model=model_of())
    with pytest.raises(ValueError, match=r"shape \(3,\) per draw"):
        pms.predict(tree(**short), "won_", model=model_of())
    with pytest.raises(TypeError, match=r"must be the DataTree"):
        pms.predict(idata["posterior"].to_dataset(), "won_", model=model_of())
    with pytest.raises(pms.TallModelError, match="coupled by CumOp"):
        pms.predict(tree(b=np.ones((1, 9))), "rank", model=coupled())
    with pytest.raises(ValueError, match='kind="outcome" draws an observed variable'):
        pms.predict(tree(b=np.ones((1, 9))), "rank", model=coupled(), kind="outcome")
    model = MODELS["hurdle_poisson"](np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"outcomes of 'y' .* are not drawn"):
        pms.predict(from_prior(model, 3), "y", model=model, kind="outcome")


@pytest.mark.parametrize("computed", [False, True])
def test_categories_have_probabilities(computed):
    """Also where the model, of ordered ones, does not compute them for each row."""
    rng = np.random.default_rng(1)
    dollars = rng.uniform(2e4, 9e4, N)
    with pm.Model() as model:
        x = pm.Data("dollars", dollars)
        b, cuts = pm.Normal("b", 0, 1e-5), pm.Normal("cuts", shape=3)
        grades = rng.integers(0, 4, N)
        pm.OrderedLogistic("grade", eta=b * x, cutpoints=cuts, compute_p=computed, observed=grades)
    draws = {"b": rng.normal(0, 1e-5, (1, 9)), "cuts": np.sort(rng.normal(size=(1, 9, 3)))}
    new = np.array([3e4, 6e4, 8e4])
    below = special.expit(draws["cuts"] - draws["b"][..., None] * new[:, None, None, None])
    below = np.concatenate([np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])], -1)
    expected = np.diff(below).mean(axis=(1, 2))
    found = pms.predict(tree(**draws), "grade", model=model, data={"dollars": new})
    np.testing.assert_allclose(found["mean"], expected)
    if computed:
        found = pms.predict(tree(**draws), "grade_probs", model=model, data={"dollars": new})
        np.testing.assert_allclose(found["mean"], expected)


@pytest.mark.costly
def test_gaussian_processes_predict_new_rows():
    """The zero mean, as long as there are rows, goes with any; sums of rows do not."""
    hours = np.random.default_rng(1).uniform(0, 24, N)
    with pm.Model() as model:
        x = pm.Data("hours", hours)
        gp = pm.gp.HSGP(m=[5], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=4.0))
        f = gp.prior("f", X=x[:, None])
        pm.Normal("y", f, 1.0, observed=np.sin(hours))
        refused = [f + pt.cumsum(x), f + pt.switch(pt.arange(x.shape[0]) >= N, 1.0, 0.0)]
        same = model["f_hsgp_coeffs"][0] * pt.ones(x.shape[0])
    draws = from_prior(model, 9)
    held = pms.predict(draws, "y", model=model)
    some = pms.predict(draws, "y", model=model, data={"hours": hours[5:9]})
    np.testing.assert_allclose(some["mean"], held["mean"][5:9])
    for what in refused:  # row numbers are alike on these rows, and not on more of them
        with pytest.raises(ValueError, match="from all of its rows at once"):
            pms.predict(draws, what, model=model, data={"hours": hours[5:9]})
    with pytest.raises(ValueError, match="same for all rows"):
        pms.predict(draws, same, model=model, data={"hours": hours[5:9]})


@pytest.mark.parametrize("kind", ["scalar", "literal"])
def test_whole_numbers_of_four_rows_are_no_number_that_fills_a_column(kind, tmp_path):
    """They are constants of the graph, and new rows have others."""
    with pm.Model() as model:
        a, z = pm.Normal("a", shape=3), pm.Data("z", np.arange(4.0))
        x = pm.Data("x", np.ones(4, int)) if kind == "scalar" else np.ones(4, int)
        pm.Normal("y", a[x] + z, 1.0, observed=np.zeros(4))
    new = {"x": np.array([0, 1, 2]), "z": np.zeros(3)}
    new = Rows.from_blocks([new], cache=tmp_path / "rows")
    with pytest.raises(ValueError, match=r"pm\.Data|no effect|at once"):
        pms.predict(tree(a=np.array([[[10.0, 20, 30]]])), "y", model=model, data=new)


def test_probabilities_that_all_rows_share_are_refused():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("y", p, observed=np.arange(N) % 3)
    with pytest.raises(ValueError, match="knows no mean"):
        pms.predict(from_prior(model, 3), "y", model=model)


def test_random_numbers_inside_of_what_is_predicted_are_refused(idata):
    model = model_of()
    with pytest.raises(ValueError, match="random numbers of its own"):
        pms.predict(idata, model.eta + pm.Normal.dist(shape=N), model=model)


def test_a_misread_graph_is_found_out(idata, monkeypatch):
    from pymc_subsample.results.predict import rowwise

    def moved(inputs, outputs):
        return numpy_function(inputs, [outputs[0] + 1e-6])

    numpy_function = rowwise.numpy_function
    monkeypatch.setattr(rowwise, "numpy_function", moved)
    with pytest.raises(pms.TallModelError, match="misread"):
        pms.predict(idata, "won_", model=model_of())


def smoothed(x):
    """A mean of values before, which a loop over the columns of x computes, and its exact draws."""
    with pm.Model() as model:
        a, columns = pm.Normal("a"), pm.Data("x", x)
        steps = pytensor.scan(
            lambda now, before, a: a * before + now,
            sequences=[columns.T],
            outputs_info=[pt.zeros_like(columns[:, 0])],
            non_sequences=[a],
            return_updates=False,
        )
        pm.Normal("y", steps[-1], 1, observed=x[:, 0])
    draws = np.random.default_rng(1).uniform(-0.8, 0.8, (1, 20))
    return model, xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"a": (("chain", "draw"), draws)})}
    )


def test_loops_of_predictions_are_compared_with_themselves(monkeypatch):
    from pymc_subsample.model import loops

    x = np.random.default_rng(0).normal(size=(30, 5))
    model, draws = smoothed(x)
    powers = draws.posterior["a"].to_numpy().ravel()[:, None] ** np.arange(5)[::-1]
    found = pms.predict(draws, "y", model=model, draws=20)
    np.testing.assert_allclose(found["mean"], (powers @ x.T).mean(axis=0))
    followed = loops.without_loops
    monkeypatch.setattr(
        loops, "without_loops", lambda *given: [1.001 * v for v in followed(*given)]
    )
    with pytest.raises(pms.TallModelError, match="loop of the model was misread"):
        pms.predict(draws, "y", model=model)


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
def test_rows_may_read_sets_of_what_is_computed_of_columns_with_holes():
    rng = np.random.default_rng(1)
    rows, z = rng.permutation(60).reshape(20, 3), rng.normal(size=(60, 2))
    x = np.where(rng.random(60) < 0.2, np.nan, z[:, 0])
    with pm.Model() as model:
        column, b = pm.Normal("x", 0, 1, observed=x), pm.Normal("b", shape=2)
        pm.Normal("y", ((column[:, None] * z) @ b)[rows].sum(axis=1), 1, observed=z[:20, 1])
    drawn = rng.normal(size=(1, 20, np.isnan(x).sum()))
    slopes = rng.normal(size=(1, 20, 2))
    draws = xr.DataTree.from_dict({"posterior": xr.Dataset({
        "b": (("chain", "draw", "k"), slopes), "x_unobserved": (("chain", "draw", "i"), drawn)
    })})  # fmt: skip
    whole = np.tile(x, (20, 1))
    whole[:, np.isnan(x)] = drawn[0]
    expected = np.einsum("dm,mk,dk->dm", whole, z, slopes[0])[:, rows].sum(axis=2)
    found = pms.predict(draws, "y", model=model, draws=20)
    np.testing.assert_allclose(found["mean"], expected.mean(axis=0))


def likely(x, y, draws=400):
    """Draws from the normal approximation of a logistic regression's posterior, flat priors."""
    X, beta = np.column_stack([np.ones_like(x), x]), np.zeros(2)
    for _ in range(20):
        p = 1 / (1 + np.exp(-X @ beta))
        hessian = (X * (p * (1 - p))[:, None]).T @ X
        beta = beta + np.linalg.solve(hessian, X.T @ (y - p))
    rng = np.random.default_rng(0)
    found = rng.multivariate_normal(beta, np.linalg.inv(hessian), size=(2, draws // 2))
    return {"Intercept": found[..., 0], "x": found[..., 1]}


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("far", [1.0, 5.0])
def test_intercepts_that_bambi_moved_are_refused(centred, far):
    bmb = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    x = rng.normal(far, 1, 2_000)
    frame = pd.DataFrame({"x": x, "won": (rng.random(2_000) < 1 / (1 + np.exp(far - x))) + 0})
    model = bmb.Model("won ~ x", frame, family="bernoulli", center_predictors=centred)
    model.build()
    of_formula = likely(x, frame["won"].values)
    of_model = likely(x - x.mean(), frame["won"].values) if centred else of_formula
    theirs = model.predict(tree(**of_formula), kind="response_params", inplace=False)
    theirs = theirs["posterior"]["p"].mean(("chain", "draw"))
    for draws in (of_model, of_formula):
        idata = tree(**draws)
        idata["posterior"].attrs["modeling_interface"] = "bambi"
        if draws is of_model:
            found = pms.predict(idata, "p", model=model.backend.model)["mean"]
            np.testing.assert_allclose(found, theirs, atol=0.02 if centred else 1e-12)
        else:
            with pytest.raises(ValueError, match="'Intercept' in idata is not that"):
                pms.predict(idata, "p", model=model.backend.model)


def test_rows_that_are_not_those_of_the_run_are_noticed():
    """As where `data=` is forgotten, of a model that is written on a sample."""
    rng = np.random.default_rng(1)

    def of(n):
        x = rng.normal(size=n)
        with pm.Model() as model:
            a = pm.Normal("a")
            pm.Normal("y", a * pm.Data("x", x), observed=x + rng.normal(size=n))
        return model

    model = of(900)
    idata = pm.sample(
        50, tune=100, chains=1, cores=1, step=pms.HMCECS(model=model), model=model, random_seed=1,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="the run sampled 900 rows, and these are the 200 that"):
        pms.predict(idata, "y", model=of(200))
    with pytest.warns(UserWarning, match="the run was given other values of 'x' than the model"):
        pms.predict(idata, "y", model=of(900))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(idata, "y", model=model)
        pms.predict(idata, "y", model=of(200), data={"x": np.zeros(3)})


def test_means_of_columns_are_those_of_the_rows_of_the_run():
    """As where a model is written anew on the rows to predict, and centres its columns itself."""

    def of(x):
        with pm.Model() as model:
            a, given = pm.Normal("a"), pm.Data("x", x)
            pm.Normal("y", a * (given - given.mean()), observed=np.zeros(len(x)))
        return model

    held = np.arange(40.0)
    idata = xr.DataTree.from_dict({
        "posterior": xr.Dataset({"a": (("chain", "draw"), np.ones((1, 4)))}),
        "constant_data": xr.Dataset({"x": (("row",), held)}),
    })  # fmt: skip
    new = {"x": np.array([30.0, 31.0])}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*whole columns")
        found = pms.predict(idata, "y", model=of(held), data=new)["mean"]
    np.testing.assert_allclose(found, new["x"] - 19.5)
    for x in (new["x"], held[:20], held + 1.0):
        with pytest.warns(UserWarning, match="computes numbers from whole columns, such as a mean"):
            pms.predict(idata, "y", model=of(x), data=new)


# Draws of another model


SHORT = {"chains": 2, "cores": 1, "progressbar": False, "compute_convergence_checks": False}


def regression(x, y, group, *, hold=lambda name, x: x, tau=None):
    """Intercept, slopes and effects of groups, of the same names whatever the columns are."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", shape=2)
        scale = pm.HalfNormal("tau") if tau is None else tau
        eta = a + hold("x", x) @ b + scale * pm.Normal("z", shape=GROUPS)[group]
        pm.Bernoulli("won", logit_p=eta, observed=y)
    return model


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    x, group = rng.normal(size=(3_000, 2)) + [1.0, 0.0], rng.integers(0, GROUPS, 3_000)
    return x, rng.random(3_000) < 1 / (1 + np.exp(0.5 - x @ [1.0, -0.5])), group


@pytest.fixture(scope="module")
def fitted(rows):
    model = regression(*rows)
    step = pms.HMCECS(model=model)
    return pm.sample(300, tune=400, step=step, model=model, random_seed=1, **SHORT)


@pytest.mark.costly(cases=1)
def test_draws_of_another_model_of_the_same_names_are_noticed(fitted, rows, monkeypatch):
    """By all rows, read in pieces; the model that was sampled is taken without a word."""
    monkeypatch.setattr("pymc_subsample.rows.row_store.RowStore.batch_size", lambda self: 700)
    x, y, group = rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(fitted, "won", model=regression(*rows), draws=100)
        pms.predict(fitted, "won", model=regression(x, y, group, hold=pm.Data), draws=100)
    for other in ((x[:, ::-1], y, group), (x - x.mean(axis=0), y, group)):
        model = regression(*other)
        said = r"no sample of this model's posterior.* off by (\S+) of .* most in '"
        with pytest.raises(ValueError, match=said) as refused:
            pms.loo(fitted, model=model)
        with pytest.warns(UserWarning, match=said) as warned:
            pms.predict(fitted, "won", model=model, draws=100)
        texts = str(refused.value), str(warned[0].message)
        one, other = (float(re.search(said, text).group(1)) for text in texts)
        assert 0.5 < one / other < 2.0  # by order 2, and by gradients at some draws


@pytest.mark.costly
def test_draws_are_not_doubted_where_the_model_holds_other_rows(fitted, rows):
    """Other outcomes, or columns that were set: what if, and said, not where draws are from."""
    x, y, group = rows
    recorded = fitted.copy()
    recorded["constant_data"] = xr.Dataset({"x": (("x_dim_0", "x_dim_1"), x)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(fitted, "won", model=regression(x[:, ::-1], ~y, group), draws=20)
    with pytest.warns(UserWarning, match="the run was given other values of 'x' than") as said:
        pms.predict(recorded, "won", model=regression(x[:, ::-1], y, group, hold=pm.Data), draws=20)
    assert len(said) == 1


@pytest.mark.costly(cases=0)
def test_draws_on_a_bent_ridge_are_not_doubted():
    """Effects are known to a hundredth of what their scale is: the mean of draws is far off it."""
    model, g, observed = bent_ridge(18_000)
    with model:
        idata = pm.sample(500, tune=400, step=pms.HMCECS(), random_seed=1, **SHORT)
    draws = idata["posterior"].to_dataset()
    center = draws["mu"].mean() + draws["tau"].mean() * draws["z"].mean(("chain", "draw"))
    means = np.array([observed[g == k].mean() for k in range(6)])
    assert np.abs(center.values - means).max() > 3 / np.sqrt(3_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for some in (50, 500):
            pms.predict(idata, "y", model=model, draws=some)


@pytest.mark.costly(cases=0)
def test_means_of_a_funnel_are_those_of_its_posterior():
    """Two rows in each group, whose scale may be zero: far from normal, and right."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(40), 2)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 1)
        a = mu + tau * pm.Normal("z", shape=40)
        pm.Bernoulli("y", logit_p=a[g], observed=rng.random(80) < 0.5)
        idata = pm.sample(400, tune=500, random_seed=1, **SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(idata, "y", model=model)


def from_grid(b, height, draws=400):
    """Draws of one parameter by its log posterior on a grid."""
    p = np.exp(height - height.max())
    return np.random.default_rng(0).choice(b, (2, draws // 2), p=p / p.sum())


def recorded(model, **draws):
    """Draws, and what a run records of the model's observed values."""
    found = tree(**draws)
    values = {rv.name: model.rvs_to_values[rv].data for rv in model.observed_RVs}
    found["observed_data"] = xr.Dataset({k: (f"{k}_dim_0", v) for k, v in values.items()})
    return found


def events(x, z, y, until):
    """Times y of some, and of others z those up to a limit: PyMC derives the density of these."""
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Normal("y", b * x, 1.0, observed=y)
        pm.Censored("until", pm.Normal.dist(b * z, 1.0), None, 1.0, observed=until)
        model.eta = b * x
    return model


def truncated(x, z, y, until):
    """Of which PyTensor's derivatives, of the density as written, are NaN at the open end."""
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.TruncatedNormal("y", b * x, 1.0, lower=-2.0, observed=np.maximum(y, -1.9))
        model.eta = b * x
    return model


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("make", [events, truncated])
def test_draws_are_told_of_densities_that_pymc_derives(make):
    """Without a word of PyMC's own; also where derivatives of a density as written are NaN."""
    rng = np.random.default_rng(4)
    x, z = rng.normal(1, 1, 300), rng.normal(1, 1, 200)
    y, until = 0.5 * x + rng.normal(size=300), np.minimum(0.5 * z + rng.normal(size=200), 1.0)
    b = np.linspace(-1, 2, 3_001)
    mean, other = b[:, None] * x, b[:, None] * z
    height = stats.norm.logpdf(b)
    if make is events:
        height = height + stats.norm.logpdf(y, mean).sum(axis=1)
        known = np.where(until < 1, stats.norm.logpdf(until, other), stats.norm.logsf(1, other))
        height = height + known.sum(axis=1)
    else:
        seen = stats.norm.logpdf(np.maximum(y, -1.9), mean) - stats.norm.logsf(-2, mean)
        height = height + seen.sum(axis=1)
    model = make(x, z, y, until)
    idata = recorded(model, b=from_grid(b, height))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(idata, model.eta, model=model)
    changed = make(-x, -z, y, until)
    with pytest.warns(UserWarning, match=r"no sample of this model's posterior.* in 'b'"):
        pms.predict(idata, changed.eta, model=changed)


def test_draws_at_which_the_rows_are_impossible_are_noticed():
    rng = np.random.default_rng(4)
    x = rng.uniform(1, 2, 50)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Poisson("y", b * x, observed=rng.poisson(x))
    with pytest.warns(UserWarning, match="no sample of this model's posterior"):
        pms.predict(recorded(model, b=rng.normal(-1, 0.1, (2, 100))), b * x, model=model)


def test_draws_with_a_discrete_variable_are_noticed_by_the_others():
    """Exact draws: of when something doubled, and of how large it was, a normal given when."""
    rng = np.random.default_rng(5)
    t, n = np.arange(60), 60

    def written(x):
        with pm.Model() as model:
            b, when = pm.Normal("b"), pm.DiscreteUniform("when", 0, n - 1)
            model.eta = pm.math.switch(t < when, 1.0, 2.0) * b * x
            pm.Normal("y", model.eta, 1.0, observed=y)
        return model

    x = rng.normal(2, 1, n)
    y = np.where(t < 25, 1.0, 2.0) * 0.4 * x + rng.normal(size=n)
    s = np.where(t < t[:, None], 1.0, 2.0) * x
    precision, mean = 1 + (s**2).sum(axis=1), s @ y
    mean = mean / precision
    weight = np.exp(0.5 * mean**2 * precision - 0.5 * np.log(precision))
    when = rng.choice(n, (2, 200), p=weight / weight.sum())
    b = mean[when] + rng.normal(size=when.shape) / np.sqrt(precision[when])
    assert len(np.unique(when)) > 3
    model = written(x)
    idata = recorded(model, b=b, when=when)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(idata, model.eta, model=model)
    model = written(-x)
    with pytest.warns(UserWarning, match="most in 'b'"):
        pms.predict(idata, model.eta, model=model)


def test_signed_draws_are_told_by_their_signs():
    """Draws of the posterior, and as many of each sign somewhere else, which add up to nothing."""
    rng = np.random.default_rng(6)
    y = rng.normal(0.3, 1, 400)

    def written(shift):
        with pm.Model() as model:
            a = pm.Normal("a", 0, 10)
            pm.Normal("y", a + shift * np.ones(400), 1.0, observed=y)
        return model

    precision = 400 + 0.01
    own = rng.normal(y.sum() / precision, precision**-0.5, 1_000)

    def signed(share, far):
        """Return draws with a share beside the posterior, and their signs."""
        kind = rng.permutation(1_000) < share * 1_000
        sign = np.where(kind, rng.permutation(np.resize([1, -1], 1_000)), 1)
        return np.where(kind, own + far / np.sqrt(precision), own), sign

    model = written(0.0)
    a, sign = signed(0.8, 40.0)
    found = recorded(model, a=a.reshape(2, 500))
    draws = found["posterior"].to_dataset()
    assert of_another(found, model, draws, sign) == ""
    assert "most in 'a'" in of_another(found, model, draws, None)  # as if there were no signs
    a, sign = signed(0.2, 2.0)
    found = recorded(model, a=a.reshape(2, 500))
    found["sample_stats"] = xr.Dataset({"sign": (("chain", "draw"), sign.reshape(2, 500))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(found, "y", model=model)
    with pytest.warns(UserWarning, match="no sample of this model's posterior"):
        pms.predict(found, "y", model=written(1.0))
