r"""Expansion of a log-likelihood of a few affine predictors per row.

With :math:`x_i` the E predictors of row i (see `kernels.linear`) the second-order control variate
of Dang et al. (2019, eq. 4.4), expanded in phi, is

.. math:: q_i = l_i^* + g_i' (x_i - x_i^*) + \tfrac12 (x_i - x_i^*)' H_i (x_i - x_i^*)

which takes 1 + E + E(E+1)/2 numbers per row in place of a d x d Hessian. They are cached behind
the data columns of a packed row: the varying x_i*, l_i*, g_i and the upper triangle of H_i.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort

from pymc_subsample.compiled.functions import (
    MATRIX,
    VECTOR,
    Compiled,
    compile_graph,
    compile_source,
)
from pymc_subsample.expansion import sources
from pymc_subsample.expansion.affine import AffineMap, Layout, affine_map
from pymc_subsample.expansion.coefficients import Coefficients
from pymc_subsample.expansion.columns import Packer
from pymc_subsample.expansion.curvature import MAX_CURVATURE, MAX_DENSE, MAX_TERMS
from pymc_subsample.expansion.expansion import LOGLIK, Expansion, parameter_functions
from pymc_subsample.expansion.fusion import fuse
from pymc_subsample.expansion.quadratic import STEP
from pymc_subsample.expansion.ranges import derivative_bound, distinct
from pymc_subsample.expansion.sources import LoopCode
from pymc_subsample.expansion.sums import LinearSums
from pymc_subsample.expansion.undefined import cause as found_cause
from pymc_subsample.graph.affine import Affine
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, elemwise_name, rebuild
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.loops import gradients, has_loops
from pymc_subsample.graph.pieces import Pieces
from pymc_subsample.kernels import linear as kernels
from pymc_subsample.kernels.model import ANCHOR, CHANGE, DIFFERENCE, GRADIENT, RESIDUAL
from pymc_subsample.model import TallModel
from pymc_subsample.model.cuts import along_rows
from pymc_subsample.model.predictors import Predictor

# Beyond this many predictors per row, directional derivatives cost less than E x E Hessians.
MAX_PREDICTORS = 10
# Numbers that a row's code reads beside the predictors, each an argument of it: six hundred, with
# 7,800 operations, compile for minutes.
MAX_COLUMNS = 200
# Where a row is no scalar code, PyTensor's loops take 20 ms for a node with two derivatives, and
# more than that beyond so many nodes, or with so many columns.
_MOST_LOOPS, _MOST_LOOPED = 700, 60
# A curvature of which at most one element in so many can differ from zero is kept as a list.
_FILLED = 8
# Up to so many, derivatives in all combinations of them are bounded.
MAX_COMBINED = 2
# Up to so many have control variates of order 3, if second derivatives have so many nodes at most:
# of the third there are three to four times as many, which take 10 ms each to compile.
_MOST_THIRDS, _MOST_NODES = 3, 250

_ROW = types.void(MATRIX, VECTOR, MATRIX, MATRIX)


def is_small(model: TallModel, predictors: Sequence[Predictor]) -> bool:
    """Whether a row's log-likelihood reads few enough numbers for the linear-predictor path."""
    if sum(p.forms.size for p in predictors) > MAX_PREDICTORS:
        return False
    blocked = [p.var for p in predictors]
    above = set(ancestors(model.batch.outputs, blockers=blocked)) - set(blocked)
    read = [(v.type.shape, model.batch.axes[v]) for v in model.batch.columns if v in above]
    lengths = [[s for i, s in enumerate(shape) if i != axis] for shape, axis in read]
    return sum(int(np.prod(x, dtype=int)) for x in lengths) <= MAX_COLUMNS


def linear_expansion(
    model: TallModel,
    predictors: Sequence[Predictor],
    order: int,
    bends: Callable[["RowCode", Expansion], list[Variable]] | None = None,
) -> Expansion:
    """Compile the linear-predictor path of `model` for control variates of the given order.

    ``bends(code, expansion)`` gives graphs that take the place of the second derivatives, as lower
    bounds want; the expansion that it gets can pack rows.
    """
    predictors = sorted(predictors, key=lambda p: p.shared)
    forms = [f for p in predictors for f in p.forms.flat]
    n_varying = sum(p.forms.size for p in predictors if not p.shared)
    packer = Packer(model)
    affine = affine_map(forms, packer)
    code = RowCode(model, predictors, n_varying, packer)
    star = len(packer)
    rough = code.rough() if order else None
    order = min(order, 1) if rough is not None else order
    layout = Layout(star, n_varying, len(forms), order)
    tables = vars(affine)
    environment = tables | {
        "np": np,
        "predict": kernels.predict,
        "backproject": kernels.backproject,
        "weigh": kernels.weigh,
        "weigh_bright": kernels.weigh_bright,
        "weigh_products": kernels.weigh_products,
    }
    table_key = "|".join(f"{k}{v.shape}{v.tobytes().hex()}" for k, v in tables.items())
    table_key += inspect.getsource(kernels)

    def build(
        name: str,
        source: Callable[[AffineMap, Layout, LoopCode], str],
        outputs: list[Variable],
        signature: types.Type,
    ) -> Compiled:
        names, lines, key = code.evaluation(outputs)
        key = None if key is None else key + table_key
        text = source(affine, layout, lines)
        return compile_source(name, text, environment | names, signature, key)

    def moving(name: str, weigh: str) -> Callable[[], Compiled]:
        source = partial(sources.with_gradient, name=name, weigh=weigh)
        return lambda: build(name, source, code.up_to(1), DIFFERENCE)

    functions = {
        "difference": moving("difference", "weigh"),
        "gradient": lambda: build("gradient", sources.gradient, code.up_to(1)[1:], GRADIENT),
        "products": moving("products", "weigh_products"),
        "residual": lambda: build("residual", sources.residual, [code.loglik], RESIDUAL),
        "glow": moving("glow", "weigh_bright"),
        "anchor": lambda: build(
            "anchor",
            partial(sources.anchor, bounds=bool(bent)),
            [*code.up_to(1), *(bent or code.curvature()), *code.beyond(order)],
            ANCHOR,
        ),
        "change": lambda: build("change", sources.change, [code.loglik], CHANGE),
        "gather": packer.compile_gather,
        "loglik": lambda: build("loglik", sources.loglik, [code.loglik], LOGLIK),
    }
    if order == 3:
        functions = {name: functions[name] for name in ("residual", "anchor", "change", "gather")}
    sums = LinearSums(affine, layout, model.phi_size)

    @cache
    def slope() -> float | None:
        if len(forms) > 1 or not n_varying or rough is not None:
            return None
        kinds = distinct(expansion, list(code.data))
        if kinds is None:
            return None
        data = list(code.data.values())
        if not Pieces(code.loglik, code.x, data).smooth_everywhere(kinds, order + 1):
            return None
        [derivative] = code.derivatives(order + 1).values()
        return derivative_bound(derivative, code.x[0], data, kinds)

    def remainder(center: np.ndarray) -> Callable | None:
        if not 0 < len(forms) <= MAX_PREDICTORS:
            return None
        derivatives: dict[tuple[int, ...], Variable] = {}
        if len(forms) <= MAX_COMBINED:
            with suppress(*UNDIFFERENTIABLE):
                if not has_loops(code.derivatives(order).values()):
                    derivatives = code.derivatives(order + 1)
        with np.errstate(all="ignore"):  # of PyTensor, which tries constants
            data = list(code.data.values())
            bound = Coefficients(code.loglik, code.x, data, order + 1, derivatives)
        shared = affine.base[:, None] + affine.shared(center)[:, None]

        def of(rows: np.ndarray, moves: np.ndarray, limit: float) -> np.ndarray:
            at = np.concatenate(
                [rows[star : star + n_varying], np.tile(shared[n_varying:], rows.shape[1])]
            )
            found = bound(at, rows[list(code.data)], moves, limit)
            return np.where(sums.flat(rows, center), np.inf, found) if order >= 2 else found

        return of

    def cause(center: np.ndarray, rows: np.ndarray) -> str | None:
        expansion.anchor(center, rows)
        shared = affine.base[n_varying:] + affine.shared(center)[n_varying:]
        values = [*rows[star : star + n_varying], *shared[:, None], *rows[list(code.data)]]
        return found_cause(code.loglik, [*code.x, *code.data.values()], values)

    def third() -> Expansion | None:
        few = 0 < len(forms) <= _MOST_THIRDS
        if (
            not few
            or rough is not None
            or len(list(toposort(code.derivatives(2).values()))) > _MOST_NODES
        ):
            return None
        try:
            derivatives = code.derivatives(3).values()
        except UNDIFFERENTIABLE:
            return None
        if any(elemwise_name(n) == "PolyGamma" for n in toposort(derivatives)):
            return None  # which numba leaves to Python
        return linear_expansion(model, predictors, 3)

    expansion = Expansion(
        order=order,
        theta_size=model.size,
        phi_size=model.phi_size,
        width=layout.width,
        linear=True,
        build=parameter_functions(model) | functions,
        sums=sums,
        slope=slope,
        remainder=remainder,
        third=third,
        cause=cause,
        n_predictors=len(forms),
        packer=packer,
        store=model.rows,
        observed=model.observed,
        curvature=_kind_of_curvature(model, forms),
        level=layout.level,
        rough=rough,
    )
    bent: list[Variable] = [] if bends is None else bends(code, expansion)
    return expansion


def _kind_of_curvature(model: TallModel, forms: Sequence[Affine]) -> str:
    """How the sum of the rows' curvatures is kept, from how many elements it can have."""
    size, terms = model.phi_size, [t for form in forms for t in form.terms]
    dense = len({t.index for t in terms if t.group is None})
    levels = {
        (t.index, t.group): next(
            part.stop - t.index for part in model.phi_slices.values() if t.index < part.stop
        )
        for t in terms
        if t.group is not None
    }
    count = dense**2 + 2 * dense * sum(levels.values())
    for (_, group), length in levels.items():
        for (_, other), width in levels.items():
            same = group == other
            count += min(length, width) if same else min(model.n_rows, length * width)
    if size > MAX_DENSE and len(terms) <= MAX_TERMS and count <= size**2 / _FILLED:
        return "sparse"
    return "full" if size <= MAX_CURVATURE else "diagonal"


class RowCode:
    """The row log-likelihood and its derivatives, as code to put inside a loop over rows."""

    def __init__(
        self, model: TallModel, predictors: Sequence[Predictor], n_varying: int, packer: Packer
    ) -> None:
        self.n_varying = n_varying
        self.n_predictors = sum(p.forms.size for p in predictors)
        self.x = [
            pt.tensor(f"x{e}", dtype="float64", shape=(None,)) for e in range(self.n_predictors)
        ]
        blocked = [p.var for p in predictors]
        above = set(ancestors(model.batch.outputs, blockers=blocked)) - set(blocked)
        memo: dict[Variable, Variable] = {}
        self.data: dict[int, Variable] = {}
        for var in model.batch.columns:
            if var in above:
                memo[var] = packer.read(var, self._column)
        start = 0
        parameters: dict[Variable, Variable] = {}
        for predictor in predictors:
            parts = self.x[start : start + predictor.forms.size]
            start += len(parts)
            lengths = [s for i, s in enumerate(predictor.forms.shape) if i != predictor.axis]
            if lengths:
                stacked = pt.stack(parts, axis=1).reshape((parts[0].shape[0], *lengths))
                value = pt.moveaxis(stacked, 0, predictor.axis or 0)
            else:
                value = parts[0]
            into = memo if predictor.axis is not None else parameters
            into[predictor.var] = value.astype(predictor.var.type.dtype)
        memo |= along_rows(model.batch, parameters)
        self.loglik = rebuild(model.batch.outputs, memo)[0].astype("float64")
        self._derivatives: dict[int, dict[tuple[int, ...], Variable]] = {0: {(): self.loglik}}
        # Whether a row is of kind 1, 2, ..., and the column that says so.
        self._tests = {memo[t]: k for k, t in enumerate(model.batch.tests, 1) if t in memo}
        self._kind = packer.request_all(model.batch.kind)[0] if self._tests else -1

    def derivatives(self, order: int) -> dict[tuple[int, ...], Variable]:
        """Differentiate the log-likelihood so many times, by predictors e <= f <= g."""
        if order not in self._derivatives:
            self._derivatives[order] = {
                (*which, e): derivative
                for which, graph in self.derivatives(order - 1).items()
                for e, derivative in enumerate(_gradients(graph, self.x))
                if not which or e >= which[-1]
            }
        return self._derivatives[order]

    def rough(self) -> str | None:
        """Say which function has no second derivatives, if so."""
        self.derivatives(1)
        try:
            self.derivatives(2)
        except UNDIFFERENTIABLE as error:
            return f"{type(error).__name__}: {error}"
        return None

    def curvature(self) -> list[Variable]:
        """Return second derivatives or, if there are none, differences of the first."""
        with suppress(*UNDIFFERENTIABLE):
            return list(self.derivatives(2).values())
        found = []
        for (e,), slope in self.derivatives(1).items():
            for x in self.x[e:]:
                h = STEP * pt.maximum(1.0, abs(x))
                forth, back = (rebuild([slope], {x: x + s * h})[0] for s in (1.0, -1.0))
                found.append((forth - back) / (2.0 * h))
        return found

    def up_to(self, order: int) -> list[Variable]:
        """Return the log-likelihood and its derivatives."""
        return [graph for k in range(order + 1) for graph in self.derivatives(k).values()]

    def beyond(self, order: int) -> list[Variable]:
        """Return derivatives of more than the second order."""
        return [graph for k in range(3, order + 1) for graph in self.derivatives(k).values()]

    def _column(self, position: int) -> Variable:
        if position not in self.data:
            self.data[position] = pt.tensor(f"column{position}", dtype="float64", shape=(None,))
        return self.data[position]

    def evaluation(self, outputs: list[Variable]) -> tuple[dict, "LoopCode", str | None]:
        """Return names, code that computes `outputs` for row i, and a cache key.

        Where rows are of several kinds, each has a function of its own.
        """
        results = ", ".join(f"y{k}" for k in range(len(outputs)))
        varying, shared = self.x[: self.n_varying], self.x[self.n_varying :]
        sources = [f"eta[{e}, i]" for e in range(self.n_varying)]
        sources += [f"rows[{p}, i]" for p in self.data]
        names: dict = {}
        before, calls = [], []
        key: str | None = ""
        for kind in range(len(self._tests) + 1):
            try:
                function = fuse(
                    self._of_kind(outputs, kind), [*varying, *self.data.values()], shared
                )
            except NoForm:
                return self._vectorised(outputs, results)
            hoisted = [f"h{kind}_{k}" for k in range(function.n_hoisted)]
            names[f"row{kind}"] = function.row
            if function.hoist is not None:
                names[f"hoist{kind}"] = function.hoist
                constants = ", ".join(f"x{self.n_varying + k}" for k in function.used_shared)
                before.append(f"    {', '.join(hoisted)} = hoist{kind}({constants})")
            arguments = [sources[k] for k in function.used]
            calls.append(f"{results} = row{kind}({', '.join([*arguments, *hoisted])})")
            key = None if key is None or function.key is None else key + function.key
        if len(calls) == 1:
            return names, LoopCode(before, f"        {calls[0]}"), key
        lines = [f"        kind = rows[{self._kind}, i]"]
        for kind, call in enumerate(calls):
            test = f"if kind == {kind}" if kind == 0 else f"elif kind == {kind}"
            lines.append(f"        {test if kind + 1 < len(calls) else 'else'}:")
            lines.append(f"            {call}")
        return names, LoopCode(before, "\n".join(lines)), key

    def _of_kind(self, outputs: list[Variable], kind: int) -> list[Variable]:
        """Return graphs as they are for rows of one kind."""

        def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
            if elemwise_name(node) != "Switch" or node.inputs[0] not in self._tests:
                return None
            holds = self._tests[node.inputs[0]] == kind
            taken = inputs[1 if holds else 2]
            # One branch may be a single number, or of a narrower type.
            same = taken.type == node.outputs[0].type
            return [taken if same else pt.switch(np.bool_(holds), *inputs[1:])]

        return rebuild(outputs, {}, hook) if self._tests else outputs

    def _vectorised(
        self, outputs: list[Variable], results: str
    ) -> tuple[dict[str, Callable], LoopCode, str | None]:
        """Evaluate all rows at once by PyTensor's own loops, then read row i."""
        if len(self.data) > _MOST_LOOPED or len(list(toposort(outputs))) > _MOST_LOOPS:
            raise NoForm
        eta = pt.tensor("eta", dtype="float64", shape=(self.n_varying, None))
        constants = pt.tensor("s", dtype="float64", shape=(self.n_predictors - self.n_varying,))
        rows = pt.tensor("rows", dtype="float64", shape=(None, None))
        place = {v: eta[e] for e, v in enumerate(self.x[: self.n_varying])}
        place |= {
            v: pt.alloc(constants[e], rows.shape[1]) for e, v in enumerate(self.x[self.n_varying :])
        }
        place |= {v: rows[p] for p, v in self.data.items()}
        graphs = rebuild(outputs, dict(place))
        targets = {f"out[{k}, i]": g for k, g in enumerate(graphs)}
        row = compile_graph("row", [eta, constants, rows], targets, ["out"], _ROW)
        shared = [f"x{e}" for e in range(self.n_varying, self.n_predictors)]
        array = f"np.array([{', '.join(shared)}])" if shared else "np.empty(0)"
        before = [f"    y = np.empty(({len(outputs)}, m))", f"    row(eta, {array}, rows, y)"]
        call = f"        {results} = {', '.join(f'y[{k}, i]' for k in range(len(outputs)))}"
        return {"row": row.function}, LoopCode(before, call), row.key


def _gradients(total: Variable, x: Sequence[Variable]) -> list[Variable]:
    """Differentiate independent rows: the gradient of their sum, row by row."""
    found = gradients(
        total.sum(), x, disconnected_inputs="ignore", return_disconnected="disconnected"
    )
    return [
        pt.zeros_like(v) if isinstance(g.type, DisconnectedType) else g
        for g, v in zip(found, x, strict=True)
    ]
