"""Rows packed by compiled code, out of memory, equal those that NumPy packs."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import MODELS, N
from scipy.special import gammaln

from pymc_subsample.expansion import expand
from pymc_subsample.expansion.gather import RawColumns, compile_gather
from pymc_subsample.model import TallModel

# Types, layouts of memory, and columns that are computed from the raw ones.
FAST = [
    "dtype_bool",
    "dtype_int8",
    "dtype_uint8",
    "dtype_int16",
    "dtype_int32",
    "dtype_int64",
    "dtype_float32",
    "fortran_order",
    "noncontiguous",
    "rows_last",
    "rows_last_transposed_in_graph",
    "rows_last_outcome",
    "rows_middle",
    "multinomial",
    "normal_matrix_outcome",
    "intercepts_centred",
    "standardised_matrix_in_graph",
    "indicator_terms",
    "lagged_outcome_in_graph",
    "weibull_censored_potential",
    "two_outcomes",
    "data_containers",
    "pandas_frame",
]


def check_gather(ex):
    """The compiled function writes what NumPy writes, and nothing else."""
    packed = len(ex.packer)
    rng = np.random.default_rng(1)
    for index in (rng.integers(0, N, 13), np.array([N - 1]), np.array([4, 4, 0]), np.arange(N)):
        rows = np.full((ex.width, len(index)), np.nan)
        ex.gather(ex.packer.table, index, rows)
        expected = ex.take(index)
        derived = [p for places, _ in ex.packer._wholes.values() for p in places]
        direct = np.setdiff1d(np.arange(packed), derived)
        np.testing.assert_array_equal(rows[direct], expected[direct])
        np.testing.assert_allclose(rows[derived], expected[derived], rtol=1e-14, atol=1e-14)
        assert np.isnan(rows[packed:]).all()


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(m, marks=pytest.mark.slow) for m in MODELS if m not in FAST)]
)
def test_rows_of_the_model_bank(name, tall_model):
    ex = expand(tall_model(name), 0)
    assert len(ex.packer) > 0
    check_gather(ex)


@pytest.mark.costly(cases=0)
def test_the_bank_has_columns_of_both_kinds(tall_model):
    kinds = [expand(tall_model(name), 0).packer for name in FAST]
    assert sum(bool(p._direct) for p in kinds) > 10
    assert sum(bool(p._wholes) for p in kinds) > 3


@pytest.mark.parametrize("k", [3, 30])
def test_what_is_computed_of_a_matrix_is_computed_once(k):
    """Not for each of its columns, which took most of a draw."""
    rng = np.random.default_rng(4)
    X, y = rng.integers(0, 9, (N, k)), rng.normal(size=N)
    with pm.Model() as model:
        b = pm.Normal("b", shape=k)
        pm.Normal("y", (pt.gammaln(pm.Data("X", X) + 1.0) * b).sum(axis=1), 1.0, observed=y)
    ex = expand(TallModel(model), 0)
    rows = ex.take(np.arange(N))
    [function] = ex.packer._function._free
    assert len(function.maker.fgraph.apply_nodes) < 5
    for column in gammaln(X + 1.0).T:
        assert np.any(np.all(np.abs(rows - column) < 1e-12, axis=1))


def test_packed_columns_are_those_of_the_data(tall_model):
    """Against the arrays themselves: NumPy's packing is not taken for granted."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2 * N, 2 * 3))[::2, ::-2]  # of the model `noncontiguous`
    ex = expand(tall_model("noncontiguous"), 0)
    index = np.array([5, 96, 0, 41])
    rows = np.zeros((ex.width, 4))
    ex.gather(ex.packer.table, index, rows)
    for x in X.T:
        assert (rows == x[index]).all(axis=1).sum() == 1


# Arrays of every kind, straight


def memory_map(array, path):
    mapped = np.memmap(path, array.dtype, "w+", shape=array.shape)
    mapped[:] = array
    mapped.flush()
    return np.memmap(path, array.dtype, "r", shape=array.shape)


@pytest.fixture
def arrays(tmp_path):
    """Name, array: n rows on the first axis."""
    rng = np.random.default_rng(2)
    n = 40
    records = np.zeros(n, dtype=[("flag", "i1"), ("x", "f8"), ("k", "i4")])  # x is not aligned
    records["x"], records["k"] = rng.normal(size=n), rng.integers(-99, 99, n)
    cube = rng.normal(size=(4, n, 3))
    kinds = {
        kind: (100 * rng.random(n) - 50).astype(kind)
        for kind in ("i1", "i2", "i4", "i8", "f2", "f4", "f8", ">f8", "<f8", ">i4", ">i2")
    }
    kinds |= {k: rng.integers(0, 200, n).astype(k) for k in ("u1", "u2", "u4", "u8", ">u2")}
    return kinds | {
        "largest": np.array([2**53, -(2**53)] * 20),
        "bool": rng.random(n) < 0.5,
        "not finite": np.tile([np.nan, np.inf, -np.inf, -0.0], 10),
        "reversed": rng.normal(size=n)[::-1],
        "every third": rng.normal(size=3 * n)[::3],
        "broadcast": np.broadcast_to(np.float64(1.5), n),
        "field": records["x"],
        "last field": records["k"],
        "read only": memory_map(rng.normal(size=n), tmp_path / "a"),
        "mapped matrix": memory_map(rng.integers(0, 9, (n, 3)).astype("i1"), tmp_path / "b"),
        "matrix": rng.normal(size=(n, 3)),
        "fortran": np.asfortranarray(rng.normal(size=(n, 3))),
        "rows in the middle": np.moveaxis(cube, 1, 0),
        "swapped cube": np.moveaxis(cube.astype(">f4"), 1, 0),
    }


def test_numbers_are_read_from_arrays_of_every_kind(arrays):
    columns = RawColumns(list(arrays.values()))
    direct, expected = [], []
    for k, array in enumerate(arrays.values()):
        flat = array.reshape(len(array), -1)
        for element in range(flat.shape[1]):
            direct.append((len(direct), k, element))
            expected.append(flat[:, element].astype(float))
    gather, table = compile_gather(columns, direct, [], [], [])
    index = np.array([39, 0, 7, 7, 21])
    rows = np.empty((len(direct), 5))
    gather(table, index, rows)
    np.testing.assert_array_equal(rows, np.array(expected)[:, index])


def test_wide_rows_compile_as_one_loop():
    wide = np.arange(3 * 3000, dtype=np.float32).reshape(3, 3000)
    narrow = np.arange(3 * 5, dtype=np.int8).reshape(3, 5)
    direct = [(k, 0, k) for k in range(3000)] + [(3000 + k, 1, k) for k in range(5)]
    gather, table = compile_gather(RawColumns([wide, narrow]), direct, [], [], [])
    rows, index = np.empty((3005, 2)), np.array([2, 0])
    gather(table, index, rows)
    np.testing.assert_array_equal(rows, np.vstack([wide.T, narrow.T])[:, index])


@pytest.mark.costly
def test_columns_are_computed_from_arrays_of_every_kind(arrays):
    names = ["i2", "f2", ">f8", "bool", "field", "fortran", "rows in the middle"]
    chosen = [arrays[name] for name in names]
    columns = RawColumns(chosen)
    vectors = [
        pt.vector(name, dtype=place.dtype)
        for name, [place] in zip(names[:5], columns.places, strict=False)
    ]
    matrix = pt.matrix("matrix", dtype="float64")
    cube = pt.tensor("cube", dtype="float64", shape=(4, None, 3))  # rows on the second axis
    small, half, swapped, flag, field = vectors
    graphs = [
        small + half * swapped,
        pt.switch(flag, field, -field),
        matrix[:, 0] - matrix[:, 2],
        (cube**2).sum(axis=(0, 2)),
    ]
    derived = [(graph, [k], [0]) for k, graph in enumerate(graphs)]
    gather, table = compile_gather(
        columns, [], derived, [*vectors, matrix, cube], [0, 0, 0, 0, 0, 0, 1]
    )
    index = np.array([39, 0, 7, 7, 21])
    rows = np.empty((4, 5))
    gather(table, index, rows)
    small, half, swapped, flag, field, matrix, cube = (a[index] for a in chosen)
    expected = [
        small.astype(float) + half.astype(float) * swapped.astype(float),
        np.where(flag, field, -field),
        matrix[:, 0] - matrix[:, 2],
        (cube**2).sum(axis=(1, 2)),
    ]
    np.testing.assert_allclose(rows, expected, rtol=1e-14)


def test_arrays_are_not_copied_but_for_types_that_cannot_be_read(arrays):
    columns = RawColumns(list(arrays.values()))
    copied = {
        name
        for (name, array), [place] in zip(arrays.items(), columns.places, strict=True)
        if not np.shares_memory(array, place.owner)
    }
    assert copied == {"f2", ">f8", ">i4", ">i2", ">u2", "swapped cube"}


def test_rows_out_of_memory_are_refused():
    lazy = SimpleNamespace(shape=(40,), dtype=np.dtype("f8"))
    with pytest.raises(TypeError, match="SimpleNamespace"):
        RawColumns([np.zeros(40), lazy])


def test_rows_follow_the_data_that_the_model_holds(tall_model):
    """A model built from the same function twice has arrays, and addresses, of its own."""
    one = expand(tall_model("dtype_int16"), 0)
    other = expand(TallModel(MODELS["dtype_int16"](np.random.default_rng(2))), 0)
    index = np.arange(N)
    results = []
    for ex in (one, other):
        rows = np.zeros((ex.width, N))
        ex.gather(ex.packer.table, index, rows)
        np.testing.assert_array_equal(rows, ex.take(index))
        results.append(rows)
    assert not np.array_equal(*results)
