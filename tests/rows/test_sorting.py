"""Rows that are sorted by a column: those of a level are together, in the order of the source."""

import signal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from pymc_subsample.rows import Rows, sorting
from pymc_subsample.rows.runs import NotTogether, find_runs

N = 20_000


def table(n=N, seed=0):
    """Return columns with keys from 10 to 10,000 in steps, of which one has a third of the rows."""
    rng = np.random.default_rng(seed)
    key = 10 + 37 * rng.integers(0, 270, n)
    key[rng.random(n) < 1 / 3] = 10 + 37 * 100
    return {
        "key": key.astype("i4"),
        "x": np.arange(n, dtype="f8"),
        "pair": rng.normal(size=(n, 2)).astype("f4"),
    }


@pytest.fixture
def short_runs(monkeypatch):
    """Let a run be of some hundred rows, so that there are many."""
    monkeypatch.setattr(sorting, "_RUN_BYTES", 2**14)


def assert_sorted(rows, expected, first=0):
    order = np.argsort(expected["key"], kind="stable")
    for name, x in expected.items():
        found = rows.column(name)[first : first + len(x)]
        np.testing.assert_array_equal(found, x[order])


@pytest.mark.parametrize("pieces", [1, 7, 300])
def test_rows_are_sorted_and_stay_in_order_within_a_level(pieces, short_runs, tmp_path):
    ends = np.linspace(0, N, pieces + 1).astype(int)
    blocks = ({name: x[a:b] for name, x in table().items()} for a, b in pairwise(ends))
    rows = Rows.from_blocks(blocks, N, cache=tmp_path / "x.rows", by="key")
    assert_sorted(rows, table())
    rows.verify()
    assert len(rows._store.segments) == 1
    whole = Rows.from_blocks([table()], cache=tmp_path / "y.rows")
    np.testing.assert_allclose(rows.mean("pair"), whole.mean("pair"))
    assert rows.max("key") == whole.max("key")
    assert {p.name for p in tmp_path.iterdir() if "lock" not in p.name} == {"x.rows", "y.rows"}


def test_few_rows_are_in_memory_at_a_time(short_runs, tmp_path, monkeypatch):
    """No more than are merged at a time, also of a level with more rows than that."""
    most, concatenate = [], np.concatenate

    def counted(parts, *args, **kwargs):
        found = concatenate(parts, *args, **kwargs)
        most.append(found.nbytes if found.dtype == np.uint8 else 0)
        return found

    monkeypatch.setattr(np, "concatenate", counted)
    blocks = ({k: x[i : i + 100] for k, x in table().items()} for i in range(0, N, 100))
    rows = Rows.from_blocks(blocks, cache=tmp_path / "x.rows", by="key")
    assert_sorted(rows, table())
    assert max(most) <= 3 * sorting._RUN_BYTES
    assert rows._store.n_rows * rows._store.row_bytes > 20 * sorting._RUN_BYTES


@pytest.mark.parametrize("words", [True, False])
def test_categories_are_numbered_as_they_are_found_and_then_sorted(words, short_runs, tmp_path):
    own = table()
    names = np.array([f"c{k}" for k in own["key"]]) if words else own["key"]
    frame = pd.DataFrame({"key": names, "x": own["x"]})
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows", categorical=["key"], by="key")
    assert (np.diff(rows["key"]) >= 0).all()
    found = np.array(rows.coords["key"])[rows["key"]]
    np.testing.assert_array_equal(found, names[rows["x"].astype(int)])
    unsorted = Rows.from_pandas(frame, cache=tmp_path / "y.rows", categorical=["key"])
    assert rows.coords == unsorted.coords
    assert find_runs(rows.column("key")).levels.tolist() == list(range(len(rows.coords["key"])))


def test_runs_are_where_rows_of_a_level_are(tmp_path):
    own = table()
    rows = Rows.from_blocks([own], cache=tmp_path / "x.rows", by="key")
    more = {name: x[:500] for name, x in table(seed=1).items()}
    more["key"][:5] = 11  # a new level
    rows.append(more)
    assert_sorted(rows, more, N)
    rows = Rows.open(tmp_path / "x.rows")
    runs, key = find_runs(rows.column("key")), rows["key"]
    wanted = np.array([11, 47, 12, 3710])
    np.testing.assert_array_equal(runs.counts(wanted), [(key == k).sum() for k in wanted])
    expected = np.concatenate([np.flatnonzero(key == k) for k in wanted])
    np.testing.assert_array_equal(runs.rows(wanted), expected)
    assert runs.counts(wanted)[2] == 0


@pytest.mark.parametrize("place", [5, N - 1])
def test_rows_that_are_apart_are_named(place, tmp_path):
    own = {name: x[np.argsort(table()["key"], kind="stable")] for name, x in table().items()}
    rows = Rows.from_blocks([own], cache=tmp_path / "x.rows")
    assert find_runs(rows.column("key")).counts(own["key"][:1]) == (own["key"] == 10).sum()
    own["key"][place] = own["key"][N // 2]
    rows = Rows.from_blocks([own], cache=tmp_path / "y.rows")
    with pytest.raises(NotTogether, match="'key'"):
        find_runs(rows.column("key"))


@pytest.mark.parametrize(
    ("by", "error", "said"),
    [
        ("z", ValueError, "by='z' is no column of the rows; they have 'key', 'x', 'pair'"),
        ("x", TypeError, "by='x' is a column of float64"),
        ("pair", TypeError, "of several numbers per row"),
        (3, TypeError, 'such as by="customer"; got 3'),
    ],
)
def test_what_rows_cannot_be_sorted_by(by, error, said, tmp_path):
    with pytest.raises(error, match=said):
        Rows.from_blocks([table()], cache=tmp_path / "x.rows", by=by)
    assert not list(tmp_path.glob(".x.rows.sorting"))


def test_another_order_is_another_source(tmp_path):
    frame = pd.DataFrame({k: x for k, x in table().items() if x.ndim == 1})
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows", by="key")
    again = Rows.from_pandas(frame, cache=tmp_path / "x.rows", by="key")
    assert again.fingerprint == rows.fingerprint
    with pytest.raises(ValueError, match="by was 'key', and is None"):
        Rows.from_pandas(frame, cache=tmp_path / "x.rows")


def test_no_rows_are_refused_and_none_appended(tmp_path):
    empty = {name: x[:0] for name, x in table().items()}
    with pytest.raises(ValueError, match="There are no rows to write"):
        Rows.from_blocks([empty], cache=tmp_path / "x.rows", by="key")
    rows = Rows.from_blocks([table()], cache=tmp_path / "x.rows", by="key")
    rows.append(empty)
    assert len(Rows.open(tmp_path / "x.rows")) == N


STOPPED = """
import sys
import pandas as pd
from pymc_subsample.rows import Rows, sorting
sorting._RUN_BYTES = 2**14
merged = sorting.merged
def stopping(store, by):
    for k, block in enumerate(merged(store, by)):
        if k == 3:
            print("merging", flush=True)
            sys.stdin.read()
        yield block
sorting.merged = stopping
frame = pd.read_pickle(sys.argv[1])
Rows.from_pandas(frame, cache=sys.argv[2], by="key", drop_missing=True)
"""


def stopped(frame, folder):
    """Kill a conversion while runs are merged."""
    frame.to_pickle(folder / "frame")
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED, folder / "frame", folder / "x.rows"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout.readline() == b"merging\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (folder / "x.rows").exists()
    assert (folder / ".x.rows.sorting" / "header.json").exists()


@pytest.mark.costly
@pytest.mark.parametrize("left", ["whole", "changed", "torn", "another source"])
def test_a_conversion_that_is_killed_while_it_merges_goes_on(left, tmp_path, caplog, monkeypatch):
    frame = pd.DataFrame({k: x for k, x in table().items() if x.ndim == 1})
    frame.loc[3, "x"] = np.nan
    stopped(frame, tmp_path)
    runs = tmp_path / ".x.rows.sorting" / "rows.bin"
    content = bytearray(runs.read_bytes())
    if left == "changed":
        content[5_000] ^= 1
        runs.write_bytes(content)
    if left == "torn":
        runs.write_bytes(content[:-1])
    if left == "another source":
        frame.loc[4, "x"] = 5.5
    read = []
    write = sorting._write_runs
    monkeypatch.setattr(sorting, "_write_runs", lambda *args: read.append(args) or write(*args))
    caplog.set_level("INFO", logger="pymc.subsample")
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows", by="key", drop_missing=True)
    assert bool(read) == (left != "whole")
    assert ("before the conversion was interrupted" in caplog.text) == (left == "whole")
    assert "1 row with a missing value was left out" in caplog.text
    assert_sorted(rows, {name: x.to_numpy() for name, x in frame.drop(3).items()})
    assert not runs.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_runs_stay_if_a_user_interrupts_and_go_with_an_error(error, tmp_path, monkeypatch):
    frame = pd.DataFrame({k: x for k, x in table().items() if x.ndim == 1})

    def failing(store, by):
        yield from ()
        raise error

    path = tmp_path / "x.rows"
    with monkeypatch.context() as patched:
        patched.setattr(sorting, "merged", failing)
        with pytest.raises(error):
            Rows.from_pandas(frame, cache=path, by="key")
    runs = tmp_path / ".x.rows.sorting"
    assert runs.exists() == (error is KeyboardInterrupt)
    assert_sorted(Rows.from_pandas(frame, cache=path, by="key"), frame.to_dict("series"))
    assert not runs.exists()


def test_blocks_are_read_again(tmp_path):
    """Of which it cannot be told whether they are the same."""
    folder = tmp_path / ".x.rows.sorting"
    Rows.from_blocks([table()], cache=folder, by="key")
    rows = Rows.from_blocks([table(seed=2)], cache=tmp_path / "x.rows", by="key")
    assert_sorted(rows, table(seed=2))
    assert not folder.exists()
