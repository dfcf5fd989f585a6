"""Rows on disk: what is written is what is read, and what is not whole is refused."""

import errno
import json
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from pymc_subsample.rows import Rows, store, writing
from pymc_subsample.rows.store import Store

pa = pytest.importorskip("pyarrow")

N = 1_000
WORDS = ["north", "south", "west"]


def numbers(n=N, seed=0):
    """Return columns of every kind of number."""
    rng = np.random.default_rng(seed)
    return {
        "single": rng.normal(3, 2, n).astype("f4"),
        "double": rng.normal(size=n),
        "small": rng.integers(-100, 100, n, dtype="i1"),
        "large": rng.integers(0, 2**60, n),
        "unsigned": rng.integers(0, 2**16, n).astype("u2"),
        "flag": rng.random(n) < 0.3,
    }


@pytest.fixture(scope="module")
def table():
    """Return the columns, and categories."""
    return {**numbers(), "side": np.array(WORDS)[np.random.default_rng(1).integers(0, 3, N)]}


@pytest.fixture(scope="module")
def frame(table):
    """Return them as a data frame."""
    return pd.DataFrame({**table, "side": pd.Categorical(table["side"])})


@pytest.fixture
def rows(tmp_path):
    """Return rows of numbers."""
    return Rows.from_blocks([numbers()], cache=tmp_path / "x.rows")


def of_parquet(frame, folder):
    from pyarrow import parquet

    (folder / "part").mkdir()
    for k, (a, b) in enumerate(pairwise([0, 300, 301, N])):
        part = pa.Table.from_pandas(frame.iloc[a:b], preserve_index=False)
        parquet.write_table(part, folder / "part" / f"{k}.parquet", row_group_size=64)
    return Rows.from_parquet(folder / "part", cache=folder / "x.rows")


def of_polars(frame, folder):
    polars = pytest.importorskip("polars")
    columns = {name: x.to_numpy() for name, x in frame.items() if name != "side"}
    side = polars.Series(frame["side"].astype(str).to_list()).cast(polars.Categorical)
    return Rows.from_polars(polars.DataFrame({**columns, "side": side}), cache=folder / "x.rows")


def of_dask(frame, folder):
    dask = pytest.importorskip("dask.dataframe")
    return Rows.from_dask(dask.from_pandas(frame, npartitions=3), cache=folder / "x.rows")


def of_dataset(frame, folder):
    from pyarrow import dataset

    of_parquet(frame, folder)
    return Rows.from_arrow(dataset.dataset(folder / "part"), cache=folder / "y.rows")


def of_reader(frame, folder):
    reader = pa.Table.from_pandas(frame, preserve_index=False).to_reader(max_chunksize=77)
    return Rows.from_arrow(reader, cache=folder / "x.rows")


def of_xarray(frame, folder):
    data = frame.astype({"side": str}).to_xarray()
    return Rows.from_xarray(data, cache=folder / "x.rows", categorical=["side"])


def of_words(frame, folder):
    words = frame.astype({"side": str})
    return Rows.from_pandas(words, cache=folder / "x.rows", categorical=["side"])


SOURCES = {
    "parquet": of_parquet,
    "dataset": of_dataset,
    "reader": of_reader,
    "table": lambda frame, folder: Rows.from_arrow(
        pa.Table.from_pandas(frame, preserve_index=False), cache=folder / "x.rows"
    ),
    "pandas": lambda frame, folder: Rows.from_pandas(frame, cache=folder / "x.rows"),
    "pandas, words": of_words,
    "pandas, own types": lambda frame, folder: Rows.from_pandas(
        frame.convert_dtypes(), cache=folder / "x.rows"
    ),
    "polars": of_polars,
    "dask": of_dask,
    "xarray": of_xarray,
}


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_comes_back_as_it_was(source, table, frame, tmp_path):
    rows = SOURCES[source](frame, tmp_path)
    assert len(rows) == N
    assert rows.names == tuple(table)
    for name in numbers(1):
        np.testing.assert_array_equal(rows[name], table[name])
        if source != "pandas, own types":
            assert rows.dtype[name] == table[name].dtype
    np.testing.assert_array_equal(np.array(rows.coords["side"])[rows["side"]], table["side"])
    rows.verify()


def test_blocks_of_any_length(rows, tmp_path):
    table = numbers()
    ends = [0, 1, 1, 400, N]  # an empty one among them
    blocks = ({name: x[a:b] for name, x in table.items()} for a, b in pairwise(ends))
    found = Rows.from_blocks(blocks, N, cache=tmp_path / "y.rows", coords={"flag": ["no", "yes"]})
    for name, x in table.items():
        np.testing.assert_array_equal(found[name], x)
        assert found[name].dtype == x.dtype
    assert found.coords == {"flag": ["no", "yes"]}
    assert found._store.row_bytes == rows._store.row_bytes == 8 + 8 + 4 + 2 + 1 + 1


def test_matrices_and_half_precision(tmp_path):
    rng = np.random.default_rng(3)
    cube, half = rng.normal(size=(50, 2, 3)), rng.normal(size=50).astype("f2")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(cube.ravel()), 6)
    found = Rows.from_blocks([{"cube": cube, "half": half}], cache=tmp_path / "x.rows")
    np.testing.assert_array_equal(found["cube"], cube)
    np.testing.assert_array_equal(found["half"], half)
    assert found.dtype["half"] == np.float32
    listed = Rows.from_arrow(pa.table({"cube": lists}).slice(7), cache=tmp_path / "y.rows")
    np.testing.assert_array_equal(listed["cube"], cube.reshape(50, 6)[7:])
    np.testing.assert_allclose(listed.std("cube"), cube.reshape(50, 6)[7:].std(axis=0))


def test_datasets_of_several_dimensions(tmp_path):
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(3)
    X, y, low = rng.normal(size=(3, 40)), rng.normal(size=40), rng.normal(size=3)
    y[7] = np.nan
    data = xr.Dataset({"X": (("feature", "obs"), X), "y": ("obs", y)}, {"obs": np.arange(40)})
    found = Rows.from_xarray(data, cache=tmp_path / "x.rows")
    assert found.shape == {"X": (40, 3), "y": (40,)}
    np.testing.assert_array_equal(found["X"], X.T)
    left = Rows.from_xarray(data, cache=tmp_path / "y.rows", dim="obs", drop_missing=True)
    np.testing.assert_array_equal(left["X"], np.delete(X.T, 7, axis=0))
    with pytest.raises(ValueError, match="'feature', 'obs' is shared by all variables"):
        Rows.from_xarray(data[["X"]], cache=tmp_path / "z.rows")
    named = data.assign(low=("feature", low))
    assert Rows.from_xarray(named, cache=tmp_path / "z.rows", dim="obs").names == ("X", "y")
    with pytest.raises(ValueError, match="columns names 'low', which the dataset, along"):
        Rows.from_xarray(named, ["low"], cache=tmp_path / "a.rows", dim="obs")


def test_other_libraries_objects_are_told_apart(frame, tmp_path):
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"\.sink_parquet"):
        Rows.from_polars(polars.LazyFrame({"x": [1.0]}), cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=r"from_arrow takes .* got builtins\.dict"):
        Rows.from_arrow({"x": [1.0]}, cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=r"from_dask takes .* got pandas\."):
        Rows.from_dask(frame, cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=r"from_xarray takes .* got builtins\.int"):
        Rows.from_xarray(3, cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match="Block 0 must be a dict"):
        Rows.from_blocks(frame, cache=tmp_path / "x.rows")


def test_statistics_are_those_of_all_rows(rows, tmp_path):
    table = numbers()
    for name, x in table.items():
        assert rows.mean(name) == pytest.approx(x.mean(dtype=float), rel=1e-12)
        assert rows.std(name) == pytest.approx(x.std(dtype=float), rel=1e-9)
        assert (rows.min(name), rows.max(name)) == (float(x.min()), float(x.max()))
    x = np.random.default_rng(0).normal(1e6, 1, size=(700, 2))
    x[::7, 1] = np.nan
    x[:300, 0] = np.nan  # nothing known in whole blocks
    blocks = ({"x": x[a : a + 100]} for a in range(0, 700, 100))
    found = Rows.from_blocks(blocks, cache=tmp_path / "y.rows")
    np.testing.assert_allclose(found.mean("x"), np.nanmean(x, axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.std("x"), np.nanstd(x, axis=0), rtol=1e-8)
    np.testing.assert_array_equal(found.min("x"), np.nanmin(x, axis=0))
    assert found.missing("x").tolist() == [300, 100]
    assert "400 missing" in repr(found)


def test_a_selection_has_other_names_and_no_copies(rows):
    table = numbers()
    view = rows.select(X=["double", "large"], Z=["double", "single"], one=["flag"], y="flag")
    assert view.shape == {"X": (N, 2), "Z": (N, 2), "one": (N, 1), "y": (N,)}
    np.testing.assert_array_equal(
        view.column("Z")[:9,], np.c_[table["double"], table["single"]][:9]
    )
    np.testing.assert_array_equal(
        view.column("X")[np.array([5, 5, 0])], np.c_[table["double"], table["large"]][[5, 5, 0]]
    )
    for index in (-1, [3, 1], np.array([-1, 2]), table["flag"], np.s_[::-100]):
        np.testing.assert_array_equal(view.column("y")[index], table["flag"][index])
    np.testing.assert_array_equal(view["one"][:, 0], table["flag"])
    assert np.shares_memory(rows["single"], rows._store.records)
    with pytest.raises(TypeError, match="'Z' is made of columns that are apart"):
        view["Z"]
    with pytest.raises(TypeError, match="some rows at a time"):
        np.asarray(view.column("Z"))
    with pytest.raises(KeyError, match="no column 'nothing'"):
        rows.select(y="nothing")
    with pytest.raises(ValueError, match="selected already"):
        view.select(a="y")


@pytest.mark.parametrize("chosen", [["a", "b", "c"], ["c", "b", "a"], ["a", "c"], ["c", "a", "b"]])
def test_columns_of_one_type_make_a_matrix_in_any_order(chosen, tmp_path):
    table = {name: np.arange(5.0) + k for k, name in enumerate("abc")}
    rows = Rows.from_blocks([table], cache=tmp_path / "x.rows")
    expected = np.column_stack([table[name] for name in chosen])
    view = rows.select(X=chosen)
    np.testing.assert_array_equal(view.column("X")[:], expected)
    if chosen != ["c", "a", "b"]:  # evenly spaced
        assert np.shares_memory(view["X"], view._store.records)


def test_a_sample_is_of_rows_and_repeatable(rows):
    view = rows.select(x="single", y="double")
    one, other = view.sample(50), view.sample(50, seed=1)
    assert {name: x.shape for name, x in one.items()} == {"x": (50,), "y": (50,)}
    np.testing.assert_array_equal(one["x"], view.sample(50)["x"])
    assert not np.array_equal(one["x"], other["x"])
    place = [int(np.flatnonzero(rows["single"] == x)[0]) for x in one["x"]]
    np.testing.assert_array_equal(rows["double"][place], one["y"])
    np.testing.assert_array_equal(view.sample(10 * N)["x"], rows["single"])
    with pytest.raises(ValueError, match="k must be"):
        view.sample(0)


def test_pickles_are_a_path(rows):
    view = rows.select(x="double")
    sent = pickle.dumps(view)
    assert len(sent) < 1_000
    found = pickle.loads(sent)
    assert found.names == ("x",)
    assert found.fingerprint == rows.fingerprint
    np.testing.assert_array_equal(found["x"], rows["double"])


# What is missing


def test_missing_numbers_are_counted_refused_or_left_out(tmp_path):
    table = pa.table(
        {
            "x": pa.array([1.0, None, 3.0, 4.0]),
            "k": pa.array([1, 2, None, 4]),
            "c": pa.array(["a", "b", "a", None]).dictionary_encode(),
        }
    )
    found = Rows.from_arrow(table, ["x"], cache=tmp_path / "x.rows")
    np.testing.assert_array_equal(found["x"], [1, np.nan, 3, 4])
    assert found.missing("x") == 1
    for name, row in (("k", 2), ("c", 3)):
        for make, data in (
            (Rows.from_arrow, table),
            (Rows.from_pandas, table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)),
        ):
            with pytest.raises(ValueError, match=f"first in row {row}"):
                make(data, [name], cache=tmp_path / "y.rows")
            with pytest.raises(ValueError, match=r"categories: 'k', first in row 2, 'c', .* 3\."):
                make(data, cache=tmp_path / "y.rows")
            left = make(data, cache=tmp_path / make.__name__, drop_missing=True)
            assert len(left) == 1
            assert left.sample(1) == {"x": [1.0], "k": [1], "c": [0]}
            shutil.rmtree(tmp_path / make.__name__)
    assert not (tmp_path / "y.rows").exists()


def test_rows_are_appended_as_they_were_made(tmp_path, caplog):
    caplog.set_level("INFO", "pymc.subsample")
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "x": np.where(rng.random(900) < 0.3, np.nan, rng.normal(size=900)),
            "k": pd.array(np.where(rng.random(900) < 0.3, None, 4), dtype="Int64"),
            "c": pd.Categorical(np.where(rng.random(900) < 0.3, None, "a")),
        }
    )
    whole = frame.dropna()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    plain = {"x": frame["x"].to_numpy(), "k": np.ones(900, int), "c": np.zeros(900, int)}
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows", drop_missing=True)
    assert f"{900 - len(whole)} rows with missing values were left out" in caplog.text
    expected = whole["x"].to_numpy()
    for more, of_more in (
        (frame, whole["x"]),
        (table, whole["x"]),
        (plain, frame["x"].dropna()),
        ([plain, plain], np.tile(frame["x"].dropna(), 2)),
    ):
        caplog.clear()
        rows = Rows.open(rows.path)
        before = len(rows)
        rows.append(more)
        expected = np.concatenate([expected, of_more])
        np.testing.assert_array_equal(rows["x"], expected)
        left = (1800 if isinstance(more, list) else 900) - (len(rows) - before)
        assert f"{left} rows with missing values were left out" in caplog.text
    caplog.clear()
    rows.append(frame[frame["x"].isna()].iloc[:1])  # leaves nothing
    assert "1 row with a missing value was left out" in caplog.text
    rows.append(whole)
    assert caplog.text.count("left out") == 1
    np.testing.assert_array_equal(rows["x"], np.concatenate([expected, whole["x"]]))
    with pytest.raises(ValueError, match="different numbers of rows"):
        rows.append({**plain, "x": plain["x"][:5]})
    with pytest.raises(ValueError, match="or has a missing value in each row"):
        Rows.from_pandas(frame[frame["x"].isna()], cache=tmp_path / "y.rows", drop_missing=True)

    kept = Rows.from_pandas(frame[["x"]], cache=tmp_path / "z.rows")
    kept.append(frame[["x"]])
    assert kept.missing("x") == 2 * frame["x"].isna().sum()


def test_what_is_no_number_is_refused_by_name(frame, tmp_path):
    wrong = frame.assign(
        day=pd.Timestamp("2020-01-01"), word="text", thing=[[1]] * N, side=frame["side"]
    )
    expected = r"none: 'day' \(.*\), 'word' \(.*\), 'thing' \(.*\)\. Leave them out"
    with pytest.raises(TypeError, match=expected):
        Rows.from_pandas(wrong, cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=expected):
        Rows.from_arrow(pa.Table.from_pandas(wrong), cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=r"'word' \(<U4\)"):
        Rows.from_blocks([{"word": np.array(["text"])}], cache=tmp_path / "x.rows")
    with pytest.raises(ValueError, match="columns names 'none', which the data frame does not"):
        Rows.from_pandas(frame, ["none"], cache=tmp_path / "x.rows")
    with pytest.raises(TypeError, match=r'use \["single"\]'):
        Rows.from_pandas(frame, "single", cache=tmp_path / "x.rows")
    assert not list(tmp_path.glob("x*"))


def test_blocks_that_differ_are_refused(tmp_path):
    first = {"x": np.zeros(3), "k": np.zeros(3, "i2")}
    for block, error, said in (
        ({"x": np.zeros(2)}, ValueError, "same columns"),
        ({"x": np.zeros((2, 2)), "k": np.zeros(2, "i2")}, ValueError, "'x' has shape"),
        ({"x": np.zeros(2), "k": np.zeros(3, "i2")}, ValueError, "different numbers of rows"),
        ({"x": np.zeros(2), "k": np.array([0, 0.5])}, TypeError, "'k' has 0.5 in row 1 of"),
        ({"x": np.zeros(2), "k": np.array([0, np.nan])}, TypeError, "'k' has nan in row 1 of"),
        ({"x": np.zeros(2), "k": np.zeros(2)}, TypeError, r"Convert it: x\.astype\('int16'\)"),
        (
            {"x": np.zeros(2), "k": np.full(2, 2**15)},
            TypeError,
            "'k' has 32768 in row 0 of .* int64: int16",
        ),
    ):
        with pytest.raises(error, match=said):
            Rows.from_blocks([first, block], cache=tmp_path / "x.rows")
    with pytest.raises(ValueError, match="n_rows=7, but the blocks have 3"):
        Rows.from_blocks([first], 7, cache=tmp_path / "x.rows")
    with pytest.raises(ValueError, match="source is empty"):
        Rows.from_blocks([], cache=tmp_path / "x.rows")
    assert [p.name for p in tmp_path.iterdir()] == [".x.rows.lock"]


# A folder that is there already


def test_a_cache_is_used_for_the_same_source_and_no_other(frame, tmp_path):
    made = of_parquet(frame, tmp_path)
    before = os.stat(made.path / "rows.bin")
    again = Rows.from_parquet(tmp_path / "part", cache=made.path)
    assert os.stat(made.path / "rows.bin") == before
    assert again.fingerprint == made.fingerprint
    with pytest.raises(ValueError, match="columns was None, and is"):
        Rows.from_parquet(tmp_path / "part", ["single"], cache=made.path)
    with pytest.raises(ValueError, match="made from something else: kind"):
        Rows.from_pandas(frame, cache=made.path)
    with pytest.raises(ValueError, match="cannot be determined whether"):
        Rows.from_blocks([numbers()], cache=made.path)
    os.utime(tmp_path / "part" / "1.parquet", ns=(0, 10**9))
    with pytest.raises(ValueError, match=r"files that changed since: \S*1\.parquet\. .*append"):
        Rows.from_parquet(tmp_path / "part", cache=made.path)
    shutil.copy(tmp_path / "part" / "1.parquet", tmp_path / "part" / "new.parquet")
    with pytest.raises(ValueError, match=r"files that are new: \S*new\.parquet; .*append"):
        Rows.from_parquet(tmp_path / "part", cache=made.path)
    with pytest.raises(ValueError, match=r"files that are not named now: \S*0\.parquet, "):
        Rows.from_parquet(tmp_path / "part" / "1.parquet", cache=made.path)
    anew = Rows.from_parquet(tmp_path / "part", ["single"], cache=made.path, overwrite=True)
    assert anew.names == ("single",)
    np.testing.assert_array_equal(made["double"], frame["double"])  # mapped before


def test_a_changed_frame_is_another_source(frame, tmp_path):
    Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    Rows.from_pandas(frame.copy(), cache=tmp_path / "x.rows")
    changed = frame.assign(double=np.where(np.arange(N) == 500, 0.0, frame["double"]))
    with pytest.raises(ValueError, match="digests was"):
        Rows.from_pandas(changed, cache=tmp_path / "x.rows")


def test_what_is_not_rows_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("thesis", "file"):
        with pytest.raises(ValueError, match="is not replaced"):
            Rows.from_blocks([numbers()], cache=tmp_path / name, overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "dear"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "header.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds \['header.json'\]\) and is not replaced"):
        Rows.from_blocks([numbers()], cache=tmp_path / "other", overwrite=True)


def test_what_another_conversion_writes_is_let_be(tmp_path):
    """Of a folder whose name begins as this one's."""
    (tmp_path / ".x.rows.0123abcd.partial").mkdir()
    (tmp_path / ".x.0123abcd.partial").mkdir()
    Rows.from_blocks([numbers()], cache=tmp_path / "x")
    assert (tmp_path / ".x.rows.0123abcd.partial").exists()
    assert not (tmp_path / ".x.0123abcd.partial").exists()


def test_rows_that_were_appended_to_are_not_those_of_the_source(frame, tmp_path):
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    rows.append(frame.iloc[:7])
    with pytest.raises(ValueError, match="7 rows were appended"):
        Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    assert len(Rows.from_pandas(frame, cache=rows.path, overwrite=True)) == N


def damaged(path, how):
    """Damage a folder of rows."""
    header, file = path / "header.json", path / "rows.bin"
    known = json.loads(header.read_text())
    match how:
        case "no header":
            header.unlink()
        case "torn header":
            header.write_text(header.read_text()[:100])
        case "header of something else":
            header.write_text('{"format": "other"}')
        case "header without columns":
            del known["columns"]
            header.write_text(json.dumps(known))
        case "other version":
            header.write_text(json.dumps({**known, "version": 99}))
        case "no rows":
            file.unlink()
        case "cut off":
            os.truncate(file, file.stat().st_size - 1)
        case "changed":
            file.write_bytes(bytes(255 - b for b in file.read_bytes()))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no header", r"has no header\.json"),
        ("torn header", r"header\.json cannot be read"),
        ("header of something else", r"another format \('other'\)"),
        ("header without columns", "does not mention 'columns'"),
        ("other version", "version 99, and this pymc_subsample reads 2"),
        ("no rows", r"rows\.bin is missing"),
        ("cut off", r"23,999 bytes, and 1,000 rows of 24 bytes take 24,000: it was cut off"),
        ("changed", r"rows\.bin is not what header\.json describes"),
    ],
)
def test_a_torn_folder_is_refused_with_what_is_wrong(how, said, rows):
    damaged(rows.path, how)
    with pytest.raises(ValueError, match=said):
        Rows.open(rows.path)
    with pytest.raises(ValueError, match=said):
        Rows.from_blocks([numbers()], cache=rows.path)
    made = Rows.from_blocks([numbers()], cache=rows.path, overwrite=True)
    assert len(Rows.open(made.path)) == N


def test_nothing_and_files_are_no_rows(tmp_path):
    with pytest.raises(FileNotFoundError, match="There are no rows at"):
        Rows.open(tmp_path / "x.rows")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; rows are a folder"):
        Rows.open(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="is not there"):
        Rows.from_parquet(tmp_path / "*.parquet", cache=tmp_path / "x.rows")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        Rows.from_parquet(tmp_path / "file", cache=tmp_path / "x.rows")


def test_one_changed_number_is_found_by_verify_and_when_the_file_was_touched(rows):
    with (rows.path / "rows.bin").open("r+b") as file:
        file.seek(500 * rows._store.row_bytes)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([255 - byte]))
    header = os.stat(rows.path / "header.json").st_mtime_ns + 10**9
    os.utime(rows.path / "header.json", ns=(header, header))
    Rows.open(rows.path)  # 64 rows are compared, as the file is no newer than the header
    for check in (rows.verify, rows._store.refuse_changes):
        with pytest.raises(ValueError, match="rows 0 to 999 are not those that were written"):
            check()


def test_other_rows_in_the_place_of_pickled_ones_are_refused(rows):
    sent = pickle.dumps(rows)
    Rows.from_blocks([numbers(seed=7)], cache=rows.path, overwrite=True)
    with pytest.raises(ValueError, match="other rows than when this was saved"):
        pickle.loads(sent)
    with pytest.raises(ValueError, match="replaced while it was in use"):
        rows._store.refuse_changes()


# Appending


def test_a_file_that_was_written_to_is_compared_when_it_is_opened(rows, caplog):
    """In another process, too: the file is newer than its header. A copy is compared once."""
    header, file = rows.path / "header.json", rows.path / "rows.bin"
    later = os.stat(header).st_mtime_ns + 10**9
    kept = rows.path / "kept"
    kept.mkdir()
    os.utime(file, ns=(later, later))
    with caplog.at_level("INFO", "pymc.subsample"):
        Rows.open(rows.path)
        assert "comparing all rows" in caplog.text
        assert not kept.exists()
        caplog.clear()
        Rows.open(rows.path)
        assert not caplog.records
    index = np.setdiff1d(np.arange(N), np.random.default_rng(0).integers(0, N, 64))[5]
    changed = np.memmap(file, np.uint8, "r+")
    changed[index * rows._store.row_bytes] ^= 1
    changed.flush()
    os.utime(file, ns=(later + 1, later + 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="not those that were written"):
            Rows.open(rows.path)


def test_appended_rows_leave_those_before_as_they_were(rows):
    table, more = numbers(), numbers(37, seed=5)
    view = rows.select(x="double")
    sent, before = pickle.dumps(view), rows.fingerprint
    rows.append(more)
    assert len(rows) == N + 37
    assert rows.fingerprint != before
    for name in table:
        expected = np.concatenate([table[name], more[name]])
        np.testing.assert_array_equal(rows[name], expected)
        assert rows.mean(name) == pytest.approx(expected.mean(dtype=float), rel=1e-12)
        assert rows.std(name) == pytest.approx(expected.std(dtype=float), rel=1e-9)
    rows.verify()
    for old in (view, pickle.loads(sent)):
        assert len(old) == N
        assert old.fingerprint == before
        assert old.mean("x") == pytest.approx(table["double"].mean())
        old._store.refuse_changes()


def test_categories_are_appended_by_their_words(frame, tmp_path, caplog):
    caplog.set_level("INFO", "pymc.subsample")
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    more = frame.iloc[:4].astype({"side": str}).assign(side=["west", "east", "north", "east"])
    rows.append(more)
    assert rows.coords["side"] == [*frame["side"].cat.categories, "east"]
    assert "new level of 'side': 'east'" in caplog.text
    caplog.clear()
    rows.append(pa.Table.from_pandas(more, preserve_index=False))
    found = np.array(rows.coords["side"])[rows["side"][N:]]
    assert found.tolist() == ["west", "east", "north", "east"] * 2
    assert "new level" not in caplog.text
    rows.append(more.assign(side=[f"side {k % 2}" for k in range(4)]))
    assert "2 new levels of 'side': 'side 0', 'side 1'" in caplog.text


@pytest.mark.parametrize("kind", ["words", "categories", "table", "dictionary"])
def test_rows_that_are_left_out_bring_no_levels(kind, tmp_path, caplog):
    caplog.set_level("INFO", "pymc.subsample")

    def made(words, x):
        frame = pd.DataFrame({"side": words, "x": x})
        if kind in ("categories", "dictionary"):
            frame["side"] = frame["side"].astype("category")
        by_arrow = kind in ("table", "dictionary")
        return pa.Table.from_pandas(frame, preserve_index=False) if by_arrow else frame

    first, x = ["west", "left", "east", "west"], [1.0, np.nan, 2.0, 3.0]
    make = Rows.from_arrow if kind in ("table", "dictionary") else Rows.from_pandas
    options = {"categorical": ["side"], "drop_missing": True}
    rows = make(made(first, x), cache=tmp_path / "x.rows", **options)
    declared = kind in ("categories", "dictionary")  # a table's own levels, with rows or without
    before = rows.coords["side"]
    assert sorted(before) == ["east", "left", "west"][:: 1 if declared else 2]
    assert np.array(before)[rows["side"]].tolist() == ["west", "east", "west"]

    caplog.clear()
    rows.append(made(["gone"], [np.nan]))
    assert rows.coords["side"] == before
    rows.append(made(["apart", "new", "gone", "east"], [np.nan, 5.0, np.nan, 6.0]))
    assert rows.coords["side"] == [*before, "new"]
    assert caplog.text.count("new level") == 1
    rows.append(made(["gone", "new"], [7.0, 8.0]))
    assert Rows.open(rows.path).coords["side"] == [*before, "new", "gone"]
    found = np.array(rows.coords["side"])[rows["side"]]
    assert found.tolist() == ["west", "east", "west", "new", "east", "gone", "new"]


def test_as_many_levels_as_codes_of_a_byte_may_have_holes(tmp_path):
    """Codes 0 to 127 of int8, all of them levels: no number is left to stand for a hole."""
    words = [f"word {k}" for k in range(128)]
    codes = pa.array([*range(128), None, 3], pa.int8())
    table = pa.table({"c": pa.DictionaryArray.from_arrays(codes, pa.array(words))})
    with pytest.raises(ValueError, match="'c', first in row 128"):
        Rows.from_arrow(table, cache=tmp_path / "x.rows")
    rows = Rows.from_arrow(table, cache=tmp_path / "x.rows", drop_missing=True)
    assert rows["c"].tolist() == [*range(128), 3]
    assert rows.coords["c"] == words


def test_codes_have_levels(rows, tmp_path):
    for codes in ([0, 1, 2], [0, -1]):
        with pytest.raises(ValueError, match=r"'side' has codes from .* and 2 levels"):
            Rows.from_blocks(
                [{"side": np.array(codes)}], cache=tmp_path / "y.rows", coords={"side": "ab"}
            )
    rows = Rows.from_blocks(
        [{"side": np.array([0, 1])}], cache=tmp_path / "y.rows", coords={"side": ["a", "b"]}
    )
    with pytest.raises(ValueError, match="codes from 0 to 7"):
        rows.append({"side": np.array([7])})
    assert len(Rows.open(rows.path)) == 2


def test_names_are_text_and_of_one_column(frame, tmp_path):
    twice = pd.concat([frame[["single"]], frame[["single"]]], axis=1)
    for wrong in (twice, frame.rename(columns={"single": 1})):
        with pytest.raises(ValueError, match="Names must be text"):
            Rows.from_pandas(wrong, cache=tmp_path / "x.rows")


def test_codes_are_appended_to_levels_as_they_are(tmp_path):
    """Also to two levels of one name, which stay in their places."""
    for k, levels in enumerate((["x", "y", "x"], ["x", "y", "z", "w"])):
        blocks = [{"g": np.array([0, 1, 2]), "y": np.arange(3.0)}]
        rows = Rows.from_blocks(blocks, cache=tmp_path / str(k), coords={"g": levels})
        rows.append({"g": np.array([1, 2]), "y": np.arange(2.0)})
        assert dict(rows.coords) == {"g": levels}
        assert len(rows) == 5


def test_parquet_files_are_appended_by_their_path(frame, tmp_path):
    rows = of_parquet(frame, tmp_path)
    path = tmp_path / "new.parquet"
    frame.assign(side=pd.Categorical(["east"] * N)).to_parquet(path)
    for k, files in enumerate((path, str(path), [path, str(path)], str(tmp_path / "n*.parquet"))):
        before = len(rows)
        rows.append(files)
        assert len(rows) == before + (2 * N if k == 2 else N)
        assert rows.coords["side"][-1] == "east"
        assert rows.coords["side"].count("east") == 1
        assert set(rows["side"][before:]) == {len(rows.coords["side"]) - 1}
        np.testing.assert_array_equal(rows["single"][before:][:N], frame["single"])
    with pytest.raises(FileNotFoundError, match="gone"):
        rows.append("gone.parquet")


def test_words_in_a_dict_are_refused_by_what_append_takes(frame, tmp_path):
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    plain = {name: frame[name].to_numpy() for name in frame}
    with pytest.raises(TypeError, match=r"'side' \(object\)\..*\(here 'side'\).*codes") as told:
        rows.append({**plain, "side": frame["side"].astype(object).to_numpy()})
    assert "columns=" not in str(told.value)
    with pytest.raises(TypeError, match=r"append hold none: 'flag' \("):
        rows.append(frame.assign(flag="a"))
    assert len(rows) == N


def test_rows_are_asked_for_by_column(rows):
    with pytest.raises(TypeError, match=r"rows\.sample\(10\).*rows\['single'\]\[:10\]"):
        rows[:10]


def test_an_append_that_fails_leaves_the_rows_as_they_were(rows, monkeypatch):
    size = (rows.path / "rows.bin").stat().st_size

    def blocks():
        yield numbers(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.append(blocks())
    assert (rows.path / "rows.bin").stat().st_size == size
    # One that was killed leaves bytes that the header does not name.
    with (rows.path / "rows.bin").open("ab") as file:
        file.write(b"half a row")
    found = Rows.open(rows.path)
    found.append(numbers(10))
    assert len(Rows.open(rows.path)) == N + 10
    Rows.open(rows.path).verify()
    with pytest.raises(ValueError, match="has changed since these rows were opened"):
        rows.append(numbers(10))


# What the system refuses


class Full:
    """A file on a disk that becomes full."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        left = self.room - self.file.tell()
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data[:left])


def test_a_disk_that_becomes_full_is_named_and_cleaned(tmp_path, monkeypatch):
    write = writing.Written.write

    def written(self, file, *rest):
        write(self, Full(file, 30_000), *rest)

    monkeypatch.setattr(writing.Written, "write", written)
    with pytest.raises(OSError, match=r"x\.rows became full .* bytes are free") as refusal:
        Rows.from_blocks([numbers(), numbers()], cache=tmp_path / "x.rows")
    assert refusal.value.errno == errno.ENOSPC
    assert [p.name for p in tmp_path.iterdir()] == [".x.rows.lock"]


def test_room_on_the_disk_is_looked_at_first(tmp_path):
    read = []

    def blocks():
        for _ in range(2):
            read.append(1)
            yield numbers()

    with pytest.raises(OSError, match=r"takes 24,000,000,000,000,000 bytes, and [\d,]+ are free"):
        Rows.from_blocks(blocks(), 10**15, cache=tmp_path / "x.rows")
    assert len(read) == 1


def test_a_folder_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    with pytest.raises(PermissionError, match=r"x\.rows cannot be written: Permission denied"):
        Rows.from_blocks([numbers()], cache=tmp_path / "x.rows")


def test_rows_that_may_not_be_read_are_named(rows, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pymc_subsample.rows.store.mmap.mmap", refused)
    with pytest.raises(PermissionError, match=r"rows\.bin cannot be read: Permission denied"):
        Rows.open(rows.path)


def test_pyarrow_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_text("")
    with pytest.raises(ImportError, match=r"pip install 'pymc-subsample\[arrow\]'"):
        Rows.from_parquet(tmp_path / "x.parquet", cache=tmp_path / "x.rows")


SLOW = """
import sys, time
import numpy as np
from pymc_subsample.rows import Rows
def blocks():
    for k in range(1000):
        print(k, flush=True)
        yield {"x": np.full(1000, float(k))}
        time.sleep(0.05)
Rows.from_blocks(blocks(), cache=sys.argv[1])
"""


def test_a_killed_conversion_leaves_nothing_that_lasts(tmp_path):
    path = tmp_path / "x.rows"
    child = subprocess.Popen([sys.executable, "-c", SLOW, path], stdout=subprocess.PIPE)
    for _ in range(3):
        assert child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    left = list(tmp_path.glob(".x.rows.*.partial"))
    assert len(left) == 1
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        Rows.open(path)
    rows = Rows.from_blocks([numbers()], cache=path)
    assert len(rows) == N
    assert not left[0].exists()


def converted(path, source, begun, answers):
    """Convert a file in another process."""
    begun.wait()
    rows = Rows.from_parquet(source, cache=path)
    answers.put((rows.fingerprint, os.stat(path / "rows.bin").st_ino))


@pytest.mark.costly(cases=0)
def test_two_processes_make_one_folder(frame, tmp_path):
    of_parquet(frame, tmp_path)
    context = multiprocessing.get_context("spawn")
    begun, answers = context.Event(), context.Queue()
    path = tmp_path / "z.rows"
    children = [
        context.Process(target=converted, args=(path, tmp_path / "part", begun, answers))
        for _ in range(2)
    ]
    for child in children:
        child.start()
    begun.set()
    found = {answers.get(timeout=120) for _ in children}
    for child in children:
        child.join()
    assert len(found) == 1
    assert not list(tmp_path.glob(".z.rows.*.partial"))


def test_a_conversion_waits_for_the_one_that_is_writing(tmp_path, caplog):
    """And takes what it wrote, where it is of the same source."""
    path = tmp_path / "x.rows"
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW.replace("range(1000)", "range(8)"), path],
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline()
    caplog.set_level("INFO", logger="pymc.subsample")
    with pytest.raises(ValueError, match="holds rows already"):
        Rows.from_blocks([numbers()], cache=path)
    assert "being written by another process" in caplog.text
    child.communicate()
    assert len(Rows.open(path)) == 8_000


@pytest.mark.costly(cases=0)
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Conversion and passes stay below a limit below the size of the rows."""
    code = """
import resource, sys
import numpy as np
from pymc_subsample.rows import Rows
limit = 150 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
block = {"x": np.ones((2**16, 16))}
rows = Rows.from_blocks((block for _ in range(32)), cache=sys.argv[1])
size = rows["x"].nbytes
assert size > 1.5 * limit, size
assert rows["x"][:: 2**12].sum() == size / 8 / 2**12
rows.verify()
try:
    np.ones(size // 8)
except MemoryError:
    print("bounded")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.rows"], capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("bounded"), done.stderr[-2000:]


@pytest.mark.parametrize("slow", [False, True])
def test_a_disk_that_is_waited_for_is_asked_for_all_rows_at_once(slow, rows, monkeypatch):
    path, row_bytes = rows.path, rows._store.row_bytes
    opened, index = Rows.open(path)._store, np.random.default_rng(0).integers(0, N, 203)
    index = np.r_[index, 0, N - 1]
    expected = opened.records[index]
    asked = []

    class Memory(mmap.mmap):
        def madvise(self, option, *where):
            asked.append((option, *where))
            super().madvise(option, *where)

    monkeypatch.setattr(store.mmap, "mmap", Memory)
    monkeypatch.setattr(store, "_OVERHEAD", -1.0 if slow else 10.0)
    np.testing.assert_array_equal(opened.take(index), expected)
    assert asked == [(mmap.MADV_RANDOM,)]
    np.testing.assert_array_equal(opened.take(index), expected)
    pages = asked[1:]
    assert len(pages) == (len(index) if slow else 0)
    for row, (option, start, length) in zip(index, pages, strict=slow):
        assert option == mmap.MADV_WILLNEED
        assert start % mmap.PAGESIZE == 0
        assert start <= row * row_bytes
        assert (row + 1) * row_bytes <= start + length <= N * row_bytes
    monkeypatch.setattr(store, "_OVERHEAD", 10.0)
    for _ in range(70):
        opened.take(index[:2])
    before = len(asked)
    opened.take(index[:2])
    assert len(asked) == before


def test_a_store_reads_only_whole_segments(rows):
    rows.append(numbers(10))
    assert Store(rows.path, N).n_rows == N
    with pytest.raises(ValueError, match="holds 1,010 rows where 1,005 were expected"):
        Store(rows.path, 1_005)
