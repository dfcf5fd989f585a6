"""`pms.predict` of new rows whose columns or levels have names, and come in another order."""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_subsample as pms
from pymc_subsample.rows import Rows

NAMES = ["hour", "wind", "rain"]
SLOPES = np.array([1.0, 10.0, 100.0])
NEW = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
EXPECTED = NEW @ SLOPES
MIXED = ["rain", "hour", "wind"]
FRAME = pd.DataFrame(NEW, columns=NAMES)

# How a model may know the names of its columns: by the dims of the data or of what they multiply.
WRITTEN = {
    "own dims": ({"dims": ("row", "feature")}, None, lambda X, b: X @ b),
    "product": ({}, "feature", lambda X, b: X @ b),
    "centred": ({}, "feature", lambda X, b: ((X - X.mean(0)) / 1.0) @ b + X.mean(0) @ b),
    "dot": ({}, "feature", lambda X, b: pm.math.dot(X, 2.0 * b) / 2.0),
    "from the left": ({}, "feature", lambda X, b: b @ X.T),
    "sum": ({}, "feature", lambda X, b: (X * b).sum(axis=1)),
    "unknown": ({}, None, lambda X, b: X @ b),
}


def model_of(name, coords=NAMES):
    given, dims, write = WRITTEN[name]
    held = np.random.default_rng(1).normal(size=(50, 3))
    with pm.Model(coords={"feature": coords}) as model:
        X = pm.Data("X", held, **given)
        b = pm.Normal("b", shape=3) if dims is None else pm.Normal("b", dims=dims)
        pm.Normal("y", write(X, b), 1.0, observed=np.zeros(50))
    return model


def draws(dim="b_dim_0"):
    b = (("chain", "draw", dim), np.tile(SLOPES, (1, 9, 1)))
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"b": b})})


def predicted(name, X, **given):
    dim = "feature" if WRITTEN[name][1] else "b_dim_0"
    found = pms.predict(draws(dim), "y", model=model_of(name, **given), data={"X": X})
    return found["mean"].values


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "unknown"])
def test_columns_are_taken_by_their_names(name):
    cube = xr.DataArray(NEW, dims=("flight", "of"), coords={"of": NAMES})
    for new in (FRAME, FRAME[MIXED], FRAME[NAMES[::-1]], cube, cube.sel(of=MIXED)):
        np.testing.assert_allclose(predicted(name, new), EXPECTED)


def test_columns_without_names_on_both_sides_come_in_their_order():
    swapped = NEW[:, [2, 0, 1]] @ SLOPES
    np.testing.assert_allclose(predicted("unknown", FRAME[MIXED]), swapped)
    np.testing.assert_allclose(predicted("product", FRAME[MIXED].to_numpy()), swapped)
    numbered = FRAME[MIXED].set_axis(range(3), axis=1)
    np.testing.assert_allclose(predicted("product", numbered), swapped)
    np.testing.assert_allclose(predicted("product", FRAME[MIXED], coords=range(3)), swapped)


def test_names_that_are_others_are_refused_or_told():
    other = FRAME.rename(columns={"rain": "snow"})
    with pytest.raises(ValueError, match=r"has the columns \['hour', 'wind', 'snow'\], and the mo"):
        predicted("product", other)
    with pytest.raises(ValueError, match="Choose those of the model, each once, in any order"):
        predicted("product", FRAME.assign(snow=0.0))
    with pytest.warns(UserWarning, match=r"has the columns \['a', 'b', 'c'\].* order in") as caught:
        found = predicted("product", FRAME.set_axis(list("abc"), axis=1))
    np.testing.assert_allclose(found, EXPECTED)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("columns", [["hour", "wind", "hour"], ["rain"] * 3, [*NAMES, "hour"]])
def test_a_name_that_comes_twice_is_refused(columns):
    with pytest.raises(ValueError, match="each once, in any order"):
        predicted("own dims", FRAME[columns])


def test_columns_on_disk_are_taken_by_their_names(tmp_path):
    types = {"hour": "int16", "wind": "float64", "rain": "float32"}
    rows = Rows.from_pandas(FRAME.astype(types), cache=tmp_path / "rows")
    for order in (NAMES, MIXED):
        found = pms.predict(
            draws("feature"), "y", model=model_of("product"), data=rows.select(X=order)
        )
        np.testing.assert_allclose(found["mean"], EXPECTED)


# Levels on disk

LEVELS = ["west", "east", "south", "north"]
EFFECTS = np.array([1.0, 2.0, 4.0, 8.0])


def leveled(coords=LEVELS, more=()):
    with pm.Model(coords={"place": coords}) as model:
        code = pm.Data("region", np.arange(30) % 4)
        z = pm.Normal("z", dims="place")
        others = sum(z[pm.Data(name, np.arange(30) % 4)] for name in more)
        pm.Normal("y", z[code] + others, 1.0, observed=np.zeros(30))
    z = (("chain", "draw", "place"), np.tile(EFFECTS, (1, 9, 1)))
    return model, xr.DataTree.from_dict({"posterior": xr.Dataset({"z": z})})


@pytest.mark.parametrize("categories", [["south", "west"], ["north", "east", "west", "south"]])
def test_levels_on_disk_are_translated_into_the_models(categories, tmp_path):
    labels = np.random.default_rng(0).choice(categories, 3_000)
    frame = pd.DataFrame({"region": pd.Categorical(labels, categories=categories)})
    rows = Rows.from_pandas(frame, cache=tmp_path / "rows", categorical=["region"])
    model, idata = leveled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pms.predict(idata, "y", model=model, data=rows)
    expected = EFFECTS[pd.Index(LEVELS).get_indexer(labels)]
    np.testing.assert_allclose(found["mean"], expected)
    parts = pms.predict(idata, "y", model=model, data=rows, chunksize=700)
    np.testing.assert_array_equal(np.concatenate([p["mean"] for p in parts]), found["mean"])


def test_new_levels_on_disk_are_refused_where_a_row_has_one(tmp_path):
    labels = np.array(["south"] * 5 + ["mars"] + ["west"] * 4)
    rows = Rows.from_pandas(
        pd.DataFrame({"region": labels}), cache=tmp_path / "rows", categorical=["region"]
    )
    model, idata = leveled()
    said = r"data\['region'\] has \['mars'\], first in row 5, and the levels of 'place' in the mo"
    with pytest.raises(ValueError, match=said):
        pms.predict(idata, "y", model=model, data=rows)


def test_two_columns_of_the_same_parameters_are_translated_each_by_its_own_levels(tmp_path):
    rng = np.random.default_rng(2)
    one, two = rng.choice(LEVELS, 200), rng.choice(LEVELS[1:], 200)
    frame = pd.DataFrame({
        "region": pd.Categorical(one, categories=LEVELS[::-1]),
        "to": pd.Categorical(two, categories=LEVELS[1:]),
    })  # fmt: skip
    rows = Rows.from_pandas(frame, cache=tmp_path / "rows", categorical=["region", "to"])
    model, idata = leveled(more=["to"])
    found = pms.predict(idata, "y", model=model, data=rows)
    own = [EFFECTS[pd.Index(LEVELS).get_indexer(x)] for x in (one, two)]
    np.testing.assert_allclose(found["mean"], sum(own))
    model, idata = leveled(range(4), more=["to"])  # which says nothing of labels
    with pytest.raises(pms.TallModelError, match="Code 0 stands for level"):
        pms.predict(idata, "y", model=model, data=rows)


# Units


FAR = "far from all that it has seen, or in other units"


@pytest.fixture(scope="module")
def kilometres():
    """A model of distances in metres, from 2,000 to 4,000, and years from 2013 to 2023."""
    rng = np.random.default_rng(2)
    metres, year = rng.uniform(2_000, 4_000, 60), np.tile(np.arange(2013, 2025), 5)
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        x = pm.Data("x", np.column_stack([metres, year]))
        pm.Normal("y", x @ b[:2], 1.0, observed=np.zeros(60))
    return model


@pytest.mark.parametrize(
    "change",
    [lambda x: x / [1_000, 1], lambda x: (x - x.mean(0)) / x.std(0), lambda x: x * [1_000, 1]],
    ids=["km", "standardised", "mm"],
)
def test_numbers_in_other_units_are_said_to_be_far(change, kilometres):
    held = kilometres["x"].get_value()
    with pytest.warns(UserWarning, match=rf"column 0, .*{FAR}"):
        pms.predict(draws(), "y", model=kilometres, data={"x": change(held)})


@pytest.mark.parametrize("shift", [[0, 4], [900, 0], [-900, 5]], ids=["years", "up", "both"])
def test_rows_a_little_beyond_the_models_are_not(shift, kilometres):
    held = kilometres["x"].get_value()
    ends = held[np.argsort(held[:, 1])[-5:]] + shift  # all of the last year, and later
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.predict(draws(), "y", model=kilometres, data={"x": ends})
