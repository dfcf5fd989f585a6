"""Codes of categories: the same levels in every folder, and in the model, or a refusal."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.rows import Rows

LEVELS = ["north", "east", "south"]


def frame(levels, n=300):
    """Return rows in which the levels appear in this order."""
    rng = np.random.default_rng(len(levels))
    words = [*levels, *rng.choice(levels, n - len(levels))]
    return pd.DataFrame({"region": words, "x": rng.normal(size=n), "y": rng.normal(size=n)})


def made(kind, table, folder, **options):
    """Return rows of a data frame, by the maker for a kind of table."""
    given: object = table
    if kind == "parquet":
        given = folder.with_suffix(".parquet")
        table.to_parquet(given, index=False)
    if kind == "arrow":
        given = pytest.importorskip("pyarrow").Table.from_pandas(table, preserve_index=False)
    if kind == "polars":
        given = pytest.importorskip("polars").from_pandas(table)
    if kind == "dask":
        given = pytest.importorskip("dask.dataframe").from_pandas(table, npartitions=3)
    if kind == "xarray":
        given = table.to_xarray()
        options["columns"] = list(table)
    return getattr(Rows, f"from_{kind}")(given, cache=folder, progressbar=False, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return rows with levels in one order, in another, in the first with a fourth, and given."""
    folder = tmp_path_factory.mktemp("levels")
    options = {"categorical": ["region"]}
    longer = [*LEVELS, "west"]
    return {
        "first": made("arrow", frame(LEVELS), folder / "first.rows", **options),
        "turned": made("arrow", frame(LEVELS[::-1]), folder / "turned.rows", **options),
        "longer": made("arrow", frame(longer), folder / "longer.rows", **options),
        "given": made(
            "arrow", frame(LEVELS[::-1]), folder / "given.rows", categorical={"region": LEVELS}
        ),
    }


@pytest.mark.parametrize("kind", ["parquet", "arrow", "pandas", "polars", "xarray", "dask"])
def test_levels_are_those_that_are_given_in_order(kind, tmp_path):
    table = frame(LEVELS[::-1])
    longer = [*LEVELS, "west"]  # which no row has
    rows = made(kind, table, tmp_path / "x.rows", categorical={"region": longer})
    assert rows.coords["region"] == longer
    assert [longer[k] for k in rows["region"][:]] == table["region"].tolist()
    free = made(kind, table, tmp_path / "free.rows", categorical={"region": None})
    assert sorted(free.coords["region"]) == sorted(LEVELS)
    with pytest.raises(ValueError, match=r"'region' has values that are none .* 'south'\. Add"):
        made(kind, table, tmp_path / "y.rows", categorical={"region": ["north", "east"]})
    assert not (tmp_path / "y.rows").exists()


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_given_levels_go_before_those_of_the_table(kind, tmp_path):
    table = frame(LEVELS).astype({"region": pd.CategoricalDtype(["none", *sorted(LEVELS)])})
    rows = made(kind, table, tmp_path / "x.rows", categorical={"region": LEVELS})
    assert rows.coords["region"] == LEVELS
    assert [LEVELS[k] for k in rows["region"][:]] == table["region"].tolist()


def test_rows_that_are_left_out_need_no_level(tmp_path):
    table = frame([*LEVELS, "west"])
    table.loc[table["region"] == "west", "x"] = np.nan
    options = {"categorical": {"region": LEVELS}, "drop_missing": True}
    rows = made("pandas", table, tmp_path / "x.rows", **options)
    assert rows.coords["region"] == LEVELS


def test_rows_with_other_levels_are_made_anew(tmp_path):
    table = frame(LEVELS)
    made("parquet", table, tmp_path / "x.rows", categorical={"region": LEVELS})
    file = tmp_path / "x.parquet"

    def again(levels):
        return Rows.from_parquet(file, cache=tmp_path / "x.rows", categorical={"region": levels})

    assert again(np.array(LEVELS)).coords["region"] == LEVELS
    with pytest.raises(ValueError, match="was made from something else"):
        again(LEVELS[::-1])


def test_levels_are_a_list_without_repeats(tmp_path):
    for wrong, said in [("north", "a list of levels, got 'north'"), (3, "a list of levels, got 3")]:
        with pytest.raises(TypeError, match=said):
            made("pandas", frame(LEVELS), tmp_path / "x.rows", categorical={"region": wrong})
    with pytest.raises(ValueError, match="names a level twice"):
        made("pandas", frame(LEVELS), tmp_path / "x.rows", categorical={"region": ["a", "a"]})


# Models


def two(first, second, how="dims"):
    """Return a model in which columns of two folders index the same effects, and the views."""
    views = [
        first.select(r1="region", x1="x", y1="y"), second.select(r2="region", x2="x", y2="y")
    ]  # fmt: skip
    coords = {"dims": {"regions": first.coords["region"]}, "codes": {"regions": range(4)}}.get(how)
    with pm.Model(coords=coords) as model:
        named = {"dims": "regions"} if coords else {"shape": 4}
        effect = pm.Normal("effect", **named)
        a = b = effect
        if how == "offsets":
            a, b = 0.1 + 2 * effect, pm.Deterministic("moved", effect - 1)
        for k, (view, table) in enumerate(zip(views, (a, b), strict=True), start=1):
            s = view.sample(200)
            r, x, y = (pm.Data(f"{n}{k}", s[f"{n}{k}"]) for n in "rxy")
            pm.Normal(f"of_{k}", table[r] + x, 1, observed=y)
    return model, views


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("how", ["dims", "codes", "shape", "offsets"])
def test_folders_that_index_the_same_effects_have_the_same_levels(folders, how):
    model, views = two(folders["first"], folders["turned"], how)
    said = (
        r"Code 0 stands for level 'north' in .* and for level 'south' in column 'region' \('r2' in "
        r"the model\) of .*turned\.rows.*categorical=\{'region': list\("
    )
    with pytest.raises(TallModelError, match=said):
        TallModel(model, data=views)
    for other in ("given", "longer") if how != "dims" else ["given"]:
        model, views = two(folders["first"], folders[other], how)
        assert TallModel(model, data=views).n_rows == 300


def test_two_columns_of_a_folder_that_index_the_same_effects_have_the_same_levels(tmp_path):
    table = frame(LEVELS).assign(other=frame(LEVELS[::-1])["region"])

    def played(name, categorical):
        rows = made("arrow", table, tmp_path / name, categorical=categorical)
        s = rows.sample(200)
        with pm.Model() as model:
            home, away, y = (pm.Data(n, s[n]) for n in ("region", "other", "y"))
            skill = pm.Normal("skill", shape=3)
            pm.Normal("of", skill[home] - skill[away], 1, observed=y)
        return TallModel(model, data=rows)

    with pytest.raises(TallModelError, match=r"Code 0 stands for .* in column 'other'"):
        played("x.rows", ["region", "other"])
    assert played("y.rows", dict.fromkeys(["region", "other"], LEVELS)).n_rows == 300


def one(rows, coords, of=None):
    s = rows.sample(200)
    with pm.Model(coords={"regions": coords, "parts": ["level", "slope"]}) as model:
        r, x, y = (pm.Data(name, s[name]) for name in ("region", "x", "y"))
        effect = pm.Normal("effect", dims=("regions", "parts") if of else "regions")
        effect = of(effect) if of else effect
        pm.Normal("of", effect[r.astype("int64")] + x, 1, observed=y)
    return model


@pytest.mark.costly(cases=0)
def test_coords_of_the_model_are_those_of_the_folder(folders):
    turned = folders["turned"]
    for of in (None, lambda effect: effect.T[1], lambda effect: effect.sum(axis=1)):
        said = r"level 'north' in the model's coords of 'regions'"
        with pytest.raises(TallModelError, match=said):
            TallModel(one(turned, LEVELS, of), data=turned)
    for coords in (turned.coords["region"], [*turned.coords["region"], "west"], range(3)):
        assert TallModel(one(turned, coords), data=turned).n_rows == 300


@pytest.mark.costly
def test_levels_of_folders_to_predict_become_those_of_the_model(folders):
    first = folders["first"]
    with one(first, LEVELS) as model:
        idata = pm.sample_prior_predictive(50, random_seed=1)
    idata["posterior"] = idata["prior"]
    turned = pms.predict(idata, "of", model=model, data=folders["turned"])["mean"]
    given = folders["given"]
    found = pms.predict(idata, "of", model=model, data=given)["mean"]
    effect = idata["posterior"]["effect"].mean(("chain", "draw")).values
    codes = [LEVELS.index(w) for w in frame(LEVELS[::-1])["region"]]
    np.testing.assert_allclose(found, effect[codes] + given["x"][:], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(turned, found)
