"""Loops inside a row compute what PyTensor does, derivatives too."""

import numba
import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_subsample.expansion.fusion import fuse, row_graph
from pymc_subsample.expansion.loops import row_loops
from pymc_subsample.expansion.schedule import Place
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.numpy_functions import numpy_function

K, N_ROWS = 7, 5
eta, shared = pt.vector("eta"), pt.vector("shared")
columns = [pt.vector(f"column{k}") for k in range(K + 1)]
x = pt.stack(columns[:K], axis=1)
index = columns[K].astype("int64")
terms = np.arange(1.0, K + 1)
series = pt.exp(x * eta[:, None] * 0.1) * shared[:, None] ** terms
table = pt.stack([shared * k for k in range(3)] + [eta], axis=1)


def chosen(values, entries):
    return values[pt.arange(values.shape[0]), entries]


ADDED = (pt.sum, pt.mean, lambda v, axis: pt.cumsum(v, axis=axis)[:, -1])
GRAPHS = {
    "sum": series.sum(axis=1),
    "log_sum_exp": pt.logsumexp(series + x, axis=1),
    "softmax": (pt.special.softmax(x * eta[:, None], axis=1) * terms).sum(axis=1),
    "a sum in a sum": (x * (series / series.sum(axis=1, keepdims=True))).sum(axis=1) ** 2,
    "two axes": (series[:, :, None] * pt.exp(-x[:, None, :] * eta[:, None, None] / 9)).sum(
        axis=(1, 2)
    ),
    "sums along one axis of two": pt.log(
        pt.exp(x[:, :, None] * terms * shared[:, None, None] / 20).sum(axis=1)
    ).sum(axis=1),
    "product": pt.prod(1 + 0.1 * series, axis=1, no_zeros_in_input=True),
    "extremes": series.max(axis=1) - series.min(axis=1),
    "cumulated": (pt.cumsum(series, axis=1) * terms).sum(axis=1),
    "backwards": (series[:, ::-1] * pt.exp(series)).sum(axis=1),
    "differences": (pt.log(series[:, 1:] / series[:, :-1]) ** 2).sum(axis=1),
    "truths": pt.switch(pt.any(x > 1, axis=1) & pt.all(x > -3, axis=1), eta * shared, -eta),
    "counts": pt.sum(x > 0, axis=1) * eta**2,
    "put": pt.exp(pt.set_subtensor(series[:, 1], eta)).sum(axis=1),
    "added": pt.inc_subtensor(series[:, [1, 1, 2]], eta[:, None]).sum(axis=1) * shared,
    "of shared alone": pt.sum(shared[:, None] ** terms, axis=1),
    "of data alone": pt.sum(pt.exp(x), axis=1),
    "integers": pt.sum((x.astype("int8") // 2) * eta[:, None] ** 2, axis=1),
    "picked by data": chosen(pt.exp(table), index) * pt.exp(table).sum(axis=1),
    "picked from numbers": pt.as_tensor(terms**2)[index] * eta**2,
    "truths side by side": pt.switch(
        ~pt.stack([columns[0] > 0, chosen(x > 0, index)], axis=1) & (x[:, :2] > -1), eta[:, None], 1
    ).sum(axis=1),
    "small integers": eta**2
    * sum(f((9 * x).astype("int8") + np.arange(70, 77, dtype="int8"), axis=1) for f in ADDED),
    "bits": pt.sum(pt.stack([index, index + 1], axis=1) & 1, axis=1) * eta,
    "nothing": pt.concatenate([x[:, K:] * eta[:, None], x[:, :1]], axis=1).sum(axis=1) * eta,
    "one": (pt.cumsum(pt.exp(series[:, :1]), axis=1)[:, ::-1] * terms[:1]).max(axis=1),
    "negative binomial": pt.sum(pt.gammaln(x**2 + pt.exp(eta)[:, None]), axis=1),
}


def by_loops(outputs, values):
    """Values of each row by the code of loops."""
    inputs = [eta, shared, *columns]
    fgraph = row_graph(inputs, outputs)
    places = [Place("eta[{}, i]", np.array([0])), Place("x0", None)]
    places += [Place("rows[{}, i]", np.array([k])) for k in range(K + 1)]
    results = [f"y{k}" for k in range(len(outputs))]
    given = dict(zip(fgraph.inputs, places, strict=True))
    code = row_loops(fgraph, given, {"x0"}, results)
    lines = ["def f(eta, x0, rows, out):", *(f"    {line}" for line in code.before)]
    lines += ["    for i in range(rows.shape[1]):", *(f"        {line}" for line in code.lines)]
    lines += [f"        out[{k}, i] = y{k}" for k in range(len(outputs))]
    space = dict(code.functions)
    exec("\n".join(lines), space)
    out = np.full((len(outputs), values.shape[1]), np.nan)
    numba.njit(space["f"])(values[:1], values[1, 0], values[2:], out)
    return out, code


@pytest.fixture
def values():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(K + 3, N_ROWS))
    values[1] = 0.7
    values[-1] = rng.integers(0, 3, N_ROWS)
    return values


def derived(graph):
    """A graph with its first and second derivatives in both inputs."""
    first = pt.grad(graph.sum(), [eta, shared], disconnected_inputs="ignore")
    second = [
        d for f in first for d in pt.grad(f.sum(), [eta, shared], disconnected_inputs="ignore")
    ]
    return [graph + 0.0 * eta, *(d + 0.0 * eta for d in (*first, *second))]


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize("name", GRAPHS)
def test_values_and_derivatives(name, values):
    outputs = derived(GRAPHS[name])
    found, _ = by_loops(outputs, values)
    exact = numpy_function([eta, shared, *columns], outputs)(*values)
    np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-12)


@pytest.mark.costly
def test_the_largest_element_is_the_same_number_wherever_it_is_compared():
    """Else none of them has a slope: a sum of two terms may round a product here and not there."""
    rng = np.random.default_rng(3)
    lines = eta[:, None] * rng.normal(size=300)
    upper = (lines + rng.normal(size=300)).max(axis=1) + abs(lines).sum(axis=1)
    values = rng.normal(size=(K + 3, 1_000))
    outputs = [upper, pt.grad(upper.sum(), eta)]
    found, _ = by_loops(outputs, values)
    exact = numpy_function([eta, shared, *columns], outputs)(*values)
    np.testing.assert_allclose(found, exact, rtol=1e-11)


def test_small_integers_in_lines_of_their_own():
    """As short rows have them: sums do not wrap around, reciprocals have all digits."""
    small = pt.cast(shared * 30, "int8")
    graphs = [f(x.astype("int8"), axis=1) * eta for f in (pt.sum, pt.mean)] + [eta / small]
    fgraph = row_graph([eta, shared, *columns], graphs)
    [e, s, *rest] = fgraph.inputs
    function = fuse(fgraph, [e, *rest], [s])
    row, hoist = function.row, function.hoist
    found = numba.njit(lambda s, e, x: row(e, x, x, x, x, x, x, x, hoist(s)))(0.1, 2.0, 100.0)
    np.testing.assert_allclose(found, [1400.0, 200.0, 2.0 / 3], rtol=1e-15)


@pytest.mark.parametrize("zeros", [[], [2], [2, 4], list(range(K))])
def test_slopes_of_products_with_zeros(zeros, values):
    """Where one number is zero its slope is the product of the others."""
    product = pt.prod(x * eta[:, None], axis=1)
    outputs = [product, *pt.grad(product.sum(), [eta, *columns[:2]])]
    values[[2 + z for z in zeros], 1:3] = 0.0
    found, _ = by_loops(outputs, values)
    exact = numpy_function([eta, shared, *columns], outputs)(*values)
    np.testing.assert_allclose(found, exact, rtol=1e-11)


@pytest.mark.parametrize("at", ["3", "-1", "4"])
def test_an_element_is_picked_by_data(at, values):
    """From the front, from the back, and outside of the table, where there is no number."""
    values[-1, 0] = float(at)
    picked = chosen(pt.exp(table), index)
    inside = np.s_[1:] if at == "4" else np.s_[:]
    found, _ = by_loops([picked], values)
    exact = np.exp(np.column_stack([0 * values[1], values[1], 2 * values[1], values[0]]))
    columns_of = values[-1, inside].astype(int)
    np.testing.assert_allclose(
        found[0, inside], exact[np.arange(N_ROWS)[inside], columns_of], rtol=1e-14
    )
    assert np.isnan(found[0, 0]) == (at == "4")


def test_a_longer_series_takes_no_more_code():
    rng = np.random.default_rng(0)
    sizes = []
    for length in (10, 200):
        many = pt.exp(eta[:, None] * np.sort(rng.normal(size=length))).sum(axis=1)
        fgraph = row_graph([eta], [pt.log(many)])
        given = {fgraph.inputs[0]: Place("eta[{}, i]", np.array([0]))}
        code = row_loops(fgraph, given, set(), ["y0"])
        sizes.append((code.operations, len(code.lines)))
    assert sizes[0] == sizes[1]


def test_what_rows_share_is_computed_once(values):
    _, code = by_loops([GRAPHS["sum"]], values)
    assert any("row" in line for line in code.before)
    assert not any("x0" in line for line in code.lines)


def test_what_is_no_number_of_a_row_has_no_form():
    fgraph = row_graph([eta, *columns], [x])
    given = {v: Place("rows[{}, i]", np.array([k])) for k, v in enumerate(fgraph.inputs)}
    with pytest.raises(NoForm):
        row_loops(fgraph, given, set(), ["y0"])
