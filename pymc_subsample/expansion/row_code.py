"""A row's log-likelihood and its derivatives, as code to put inside a loop over rows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, toposort

from pymc_subsample.compiled.cache import compile_part
from pymc_subsample.compiled.functions import FAST, MATRIX, VECTOR, compile_graph
from pymc_subsample.expansion.fusion import MOST_OPERATIONS, fuse, row_graph
from pymc_subsample.expansion.linear_source import LoopCode
from pymc_subsample.expansion.loops import indented, row_loops
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.quadratic import STEP
from pymc_subsample.expansion.schedule import Place, Schedule
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, rebuild
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.scalar_loop_gradients import gradients
from pymc_subsample.model import TallModel
from pymc_subsample.model.minimum_cut import along_rows
from pymc_subsample.model.predictors import Predictor

# Where a row is no scalar code, PyTensor's loops take 20 ms for a node with two derivatives, and
# more than that beyond so many nodes, or with so many columns.
_MOST_LOOPS, _MOST_LOOPED = 700, 60
# Numbers of a row up to which each has lines of its own. Of 2,000 these compile in 3 s, where loops
# take 2, and run in half the time; of 3,500 in 28 s, of 8,400 not in three minutes (loops: 5 s).
# A recursion has lines of its own in loops too, and twice as many: that of 6,600 numbers and 2,800
# nodes took 16 s without, 40 with. (`tests/benchmarks/_series.py`, two derivatives.)
MOST_STRAIGHT = 1_500
# Numbers for each node of a row's graph from which on loops are worth their own lines.
_LOOPED = 4
# Numbers of second derivatives, of all pairs of p predictors, for each of the log-likelihood's
# times p + 1: .8 to 1.8 in six panels, 2.2 where effects have a normal distribution in two
# dimensions.
_OF_PAIRS = 2
_ROW = types.void(MATRIX, VECTOR, MATRIX, MATRIX)


# Names, lines before all rows and for one, and what identifies them for the disk cache.
type CodePart = tuple[dict[str, object], list[str], list[str], str | None]


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
        self._direction = [
            pt.tensor(f"d{e}", dtype="float64", shape=(None,)) for e in range(self.n_predictors)
        ]
        # Whether a row is of kind 1, 2, ..., and the column that says so.
        self._tests = {memo[t]: k for k, t in enumerate(model.batch.tests, 1) if t in memo}
        self._kind_at = packer.request_all(model.batch.kind)[0] if self._tests else -1
        self.kind: int | None = None  # None for rows of all kinds.
        self._of_kinds: dict[int, RowCode] = {}

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

    @cached_property
    def along(self) -> list[Variable] | None:
        """The derivatives of the slope along a direction: one for each predictor.

        None where second derivatives have graphs for all pairs of predictors: where the
        log-likelihood takes no loops, and these would have no more operations than a row may.
        """
        fgraph = row_graph([*self.x, *self.data.values()], [self.loglik])
        of_pairs = _OF_PAIRS * _elements(fgraph) * (self.n_predictors + 1)
        if not _takes_loops(fgraph) and of_pairs <= MOST_OPERATIONS:
            return None
        slopes = self.derivatives(1).values()
        moved = [d * slope for d, slope in zip(self._direction, slopes, strict=True)]
        return _gradients(pt.add(*moved) if len(moved) > 1 else moved[0], self.x)

    def rough(self) -> str | None:
        """Say which function has no second derivatives, if so."""
        kinds = [self.of_kind(kind) for kind in range(len(self._tests) + 1)]
        for rows in kinds:
            rows.derivatives(1)
        try:
            for rows in kinds:
                if rows.along is None:
                    rows.derivatives(2)
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

    def evaluation(
        self, outputs: Callable[["RowCode"], list[Variable]], *, bends: bool = False
    ) -> tuple[dict, LoopCode, str | None]:
        """Return names, code that computes the outputs of a row's code for row i, and a cache key.

        Where rows are of several kinds, each has a function of its own. With `bends`, second
        derivatives follow the first, which are among the outputs.
        """
        place = 1 + self.n_predictors if bends else 0  # What stands before second derivatives.
        pairs = self.n_predictors * (self.n_predictors + 1) // 2
        names: dict[str, object] = {}
        before: list[str] = []
        calls: list[list[str]] = []
        key: str | None = ""
        for kind in range(len(self._tests) + 1):
            rows, parts = self.of_kind(kind), []
            graphs = outputs(rows)
            if bends:
                parts = rows._by_direction(place, kind)
                graphs[place:place] = [] if parts else rows.curvature()
            left_out = pairs if parts else 0
            results = [f"y{k + left_out * (k >= place)}" for k in range(len(graphs))]
            try:
                parts = [rows._row(graphs, results, kind), *parts]
            except NoForm:
                graphs = outputs(self)
                graphs[place:place] = self.curvature() if bends else []
                return self._vectorised(graphs, ", ".join(f"y{k}" for k in range(len(graphs))))
            calls.append([])
            for made, first, lines, found in parts:
                names |= made
                before += first
                calls[-1] += lines
                key = None if key is None or found is None else key + found
        if len(calls) == 1:
            return names, LoopCode(indented(before, 1), "\n".join(indented(calls[0], 2))), key
        lines = [f"kind = rows[{self._kind_at}, i]"]
        for kind, call in enumerate(calls):
            test = f"if kind == {kind}" if kind == 0 else f"elif kind == {kind}"
            lines.append(f"{test if kind + 1 < len(calls) else 'else'}:")
            lines += indented(call, 1)
        return names, LoopCode(indented(before, 1), "\n".join(indented(lines, 2))), key

    def of_kind(self, kind: int) -> "RowCode":
        """Return the code of rows of one kind.

        Derivatives are made of its log-likelihood alone: zero times what other kinds have would
        remain in those of all.
        """
        if not self._tests:
            return self
        if kind not in self._of_kinds:
            one = self._of_kinds[kind] = copy(self)
            one.kind = kind
            [one.loglik] = one.own([self.loglik])
            one._derivatives = {0: {(): one.loglik}}
        return self._of_kinds[kind]

    def _row(self, outputs: list[Variable], results: Sequence[str], kind: int) -> CodePart:
        """Return the code for rows of one kind.

        A row of few elements is straight code; where it has many, they run in loops.
        """
        fgraph = row_graph([*self.x, *self.data.values()], outputs)
        places = self._places()
        shared = set(range(self.n_varying, self.n_predictors))
        if _takes_loops(fgraph):
            inputs = [f"x{e}" for e in sorted(shared)]
            with suppress(NoForm):
                given = dict(zip(fgraph.inputs, places, strict=True))
                loops = row_loops(fgraph, given, set(inputs), results)
                return self._looped("loops", loops, inputs, results, kind)
        codes = [p.name if p.index is None else p.name.format(p.index[0]) for p in places]
        varying = [k for k in range(len(places)) if k not in shared]
        function = fuse(
            fgraph, [fgraph.inputs[k] for k in varying], [fgraph.inputs[k] for k in sorted(shared)]
        )
        hoisted = [f"h{kind}_{k}" for k in range(function.n_hoisted)]
        names: dict[str, object] = {f"row{kind}": function.row}
        before = []
        if function.hoist is not None:
            names[f"hoist{kind}"] = function.hoist
            constants = ", ".join(codes[self.n_varying + k] for k in function.used_shared)
            before.append(f"{', '.join(hoisted)} = hoist{kind}({constants})")
        arguments = [codes[varying[k]] for k in function.used]
        call = f"{', '.join(results)} = row{kind}({', '.join([*arguments, *hoisted])})"
        return names, before, [call], function.key

    def _places(self) -> list[Place]:
        """Return where predictors and columns of row i are."""
        places = [Place("eta[{}, i]", np.array([e])) for e in range(self.n_varying)]
        places += [Place(f"x{e}", None) for e in range(self.n_varying, self.n_predictors)]
        return places + [Place("rows[{}, i]", np.array([p])) for p in self.data]

    def _by_direction(self, start: int, kind: int) -> list[CodePart]:
        """Return what `_row` does, of second derivatives as results `start`, `start` + 1, ...

        A loop over predictors computes them. None if the row takes no loops, or has no such.
        """
        with suppress(NoForm, *UNDIFFERENTIABLE):
            if self.along is None:
                return []
            size = self.n_predictors
            fgraph = row_graph([*self.x, *self.data.values(), *self._direction], self.along)
            shared = [f"x{e}" for e in range(self.n_varying, size)]
            directions = [f"d{e}" for e in range(size)]
            places = [*self._places(), *(Place(name, None) for name in directions)]
            names = [f"b{e}" for e in range(size)]
            given = dict(zip(fgraph.inputs, places, strict=True))
            loops = row_loops(fgraph, given, {*shared, *directions}, names)
            results = [f"y{start + k}" for k in range(size * (size + 1) // 2)]
            return [self._looped("bends", loops, shared, results, kind, names)]
        return []

    def _looped(
        self,
        name: str,
        loops: Schedule,
        shared: Sequence[str],
        results: Sequence[str],
        kind: int,
        slopes: Sequence[str] = (),
    ) -> CodePart:
        """Return what `_row` does, of loops: a function over all rows of one kind.

        On its own it takes numba less time: that grows with the square of a function's length.
        `slopes` are the names of derivatives along a direction, if results are these along each.
        """
        arguments = ", ".join(["eta", "rows", *shared])
        stores = [f"y[{k}, i] = {result}" for k, result in enumerate(results)]
        if slopes:
            # Of e and f >= e, as second derivatives are numbered.
            row = f"e * ({2 * len(slopes) - 1} - e) // 2"
            stores = [f"if e <= {f}: y[{row} + {f}, i] = {slope}" for f, slope in enumerate(slopes)]
        others = [f"if rows[{self._kind_at}, i] != {kind}:", "    continue"]
        turn = [*(others if self._tests else []), *loops.lines, *stores]
        body = [*loops.before, "for i in range(rows.shape[1]):", *indented(turn, 1)]
        if slopes:
            directions = [f"d{e} = 1.0 if e == {e} else 0.0" for e in range(len(slopes))]
            body = [f"for e in range({len(slopes)}):", *indented([*directions, *body], 1)]
        lines = [
            f"def loops({arguments}):",
            f"    y = np.empty(({len(results)}, rows.shape[1]))",
            *indented(body, 1),
            "    return y",
        ]
        text = "\n".join(lines)
        known: dict[str, Any] = dict(loops.functions)
        exec(text, known)
        key = "|".join([text, *loops.keys])
        function = compile_part(known["loops"], key, fastmath=FAST)
        found = f"{name}_of{kind}"
        call = [f"{result} = {found}[{k}, i]" for k, result in enumerate(results)]
        return {f"{name}{kind}": function}, [f"{found} = {name}{kind}({arguments})"], call, key

    def own(self, graphs: list[Variable]) -> list[Variable]:
        """Return graphs of rows of all kinds as they are for those of this code."""
        return of_one_kind(graphs, self._tests, self.kind)

    def _vectorised(
        self, outputs: list[Variable], results: str
    ) -> tuple[dict[str, object], LoopCode, str | None]:
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


def of_one_kind(
    graphs: list[Variable], tests: Mapping[Variable, int], kind: int | None
) -> list[Variable]:
    """Return graphs of rows of all kinds as they are for one kind, or as they are for None.

    `tests` say whether a row is of a kind.
    """

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Switch" or node.inputs[0] not in tests:
            return None
        taken = inputs[1 if tests[node.inputs[0]] == kind else 2]
        # One branch may be a single number, or of a narrower type.
        same = taken.type == node.outputs[0].type
        return [taken if same else pt.switch(np.bool_(tests[node.inputs[0]] == kind), *inputs[1:])]

    return graphs if kind is None else rebuild(graphs, {}, hook)


def _gradients(total: Variable, x: Sequence[Variable]) -> list[Variable]:
    """Differentiate independent rows: the gradient of their sum, row by row."""
    found = gradients(
        total.sum(), x, disconnected_inputs="ignore", return_disconnected="disconnected"
    )
    return [
        pt.zeros_like(v) if isinstance(g.type, DisconnectedType) else g
        for g, v in zip(found, x, strict=True)
    ]


def _takes_loops(fgraph: FunctionGraph) -> bool:
    """Whether a row's graph has so many numbers that they run in loops."""
    return _elements(fgraph) > max(MOST_STRAIGHT, _LOOPED * len(fgraph.apply_nodes))


def _elements(fgraph: FunctionGraph) -> int:
    """Return how many numbers there are in a row's graph."""
    shapes = [v.type.shape for node in fgraph.apply_nodes for v in node.outputs]
    return sum(prod(n for n in shape if n is not None) for shape in shapes)
