"""Which axis of each variable carries the rows.

The row axis is known at the per-row log-likelihood and is followed backwards, Op by Op.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.model.axis_rules import IsRowNumber, carried_axes, indexed_axes
from pymc_subsample.model.errors import CoupledRows, TallModelError, op_name
from pymc_subsample.model.own_steps import own_step
from pymc_subsample.model.own_steps import said as own_steps_said
from pymc_subsample.model.terms import FEW_NUMBERS, RowTerm, Whole


class RowTrace:
    """The row axis, followed from outputs to roots.

    The trace need not go further where ``stop(var)`` is true. ``is_row_number(index, axis,
    length)`` says whether an index holds 0, 1, ..., length - 1 along the axis, so that indexing
    with it takes row i from row i, unless ``is_whole(var)`` is true of what it picks from.

    Attributes
    ----------
    axes : dict of Variable to int
        Row axis of every variable that carries rows.
    row_numbers : dict of Apply to dict of int to int
        Indexing node -> position of the inputs that are just the row number -> their row axis.
    whole : dict of Variable to Apply
        Inputs of row-carrying nodes that every row reads as a whole, and one such node.
    """

    def __init__(
        self,
        stop: Callable[[Variable], bool],
        is_row_number: IsRowNumber,
        is_whole: Callable[[Variable], bool] = lambda var: False,
    ) -> None:
        self.stop = stop
        self._is_row_number, self._is_whole = is_row_number, is_whole
        self.axes: dict[Variable, int] = {}
        self.row_numbers: dict[Apply, dict[int, int]] = {}
        self.whole: dict[Variable, Apply] = {}

    def follow(self, output: Variable, axis: int) -> None:
        """Follow the rows of one more output.

        Raises `CoupledRows`, and leaves the trace as it was, if an Op mixes rows, one variable
        would have to carry the rows on two axes, or rows are also read as a whole.
        """
        axes, row_numbers, whole = dict(self.axes), dict(self.row_numbers), dict(self.whole)
        pending = [(output, axis)]
        while pending:
            var, axis = pending.pop()
            if var in axes:
                if axes[var] != axis:
                    raise CoupledRows(var.owner)
                continue
            axes[var] = axis
            node = var.owner
            if node is None or self.stop(var):
                continue
            if isinstance(node.op, AdvancedSubtensor):
                test = (lambda *_: False) if self._is_whole(node.inputs[0]) else self._is_row_number
                input_axes, row_numbers[node] = indexed_axes(node, axis, test)
            else:
                input_axes = carried_axes(node.op, node, axis)
            for position, (i, a) in enumerate(zip(node.inputs, input_axes, strict=True)):
                if a is not None:
                    pending.append((i, a))
                elif position not in row_numbers.get(node, ()):
                    whole.setdefault(i, node)
        for var in whole.keys() & axes.keys():
            raise CoupledRows(whole[var])
        self.axes, self.row_numbers, self.whole = axes, row_numbers, whole

    def has_rows(self, var: Variable, n_rows: int) -> bool:
        """Whether a variable carries rows, or may be theirs: data that are as long."""
        long = n_rows in getattr(var.type, "shape", ())
        return var in self.axes or (long and self.stop(var))

    def refuse_reductions(self, dependent: set[Variable], n_rows: int) -> None:
        """Raise if a quantity that every row reads depends on parameters and on rows.

        Data that are as long as few rows may be of other things, and are read in full.
        """
        many = n_rows > FEW_NUMBERS
        for var in self.whole.keys() & dependent:
            carrying: set[Variable] = set()
            for node in (n for n in toposort([var]) if n.outputs[0] in dependent):
                rows = (i in self.axes or (many and self.has_rows(i, n_rows)) for i in node.inputs)
                if any(rows) or not carrying.isdisjoint(node.inputs):
                    if n_rows not in getattr(node.outputs[0].type, "shape", ()):
                        raise CoupledRows(node)
                    carrying.update(node.outputs)
            if carrying:
                raise CoupledRows(self.whole[var])


def traced(
    trace: RowTrace,
    terms: Sequence[RowTerm],
    latents: Mapping[Variable, Variable],
    binary: Collection[str],
    dependent: set[Variable],
) -> tuple[RowTrace, dict[int, list[RowTerm]], list[Whole]]:
    """Trace terms with rows; return them by number of rows, and those that have none.

    The trace is empty before. `latents` are the values of the free variables, and these; `binary`
    names values that rows may gather one by one; `dependent` is what depends on values. Raises
    `TallModelError` if a term has no rows that are independent, and must have, or none has.
    """
    kinds: dict[int, list[RowTerm]] = {}
    whole, refusal = [], None
    free = [value for value in latents if value.name not in binary]
    for term in terms:
        before = copy(trace)  # which following replaces parts of
        others = depends_on([term.graph], free) if binary else dependent
        try:
            trace.follow(term.graph, term.axis)
            _refuse_latents(trace, term, latents)
            trace.refuse_reductions(others, term.n_rows)
        except (CoupledRows, TallModelError) as error:
            refused = error.refusal(term.name) if isinstance(error, CoupledRows) else error
            if term.strict:
                raise refused from None
            trace, refusal = before, refused
            whole.append(Whole(term.name, term.graph, "rows that are not independent"))
        else:
            kinds.setdefault(term.n_rows, []).append(term)
    if not kinds and refusal is not None:
        raise refusal
    return trace, kinds, whole


def _refuse_latents(trace: RowTrace, term: RowTerm, latents: Mapping[Variable, Variable]) -> None:
    for value, rv in latents.items():
        if value in trace.axes:
            raise TallModelError(
                f"Free variable {rv.name!r} ({op_name(rv.owner.op)}) has one element per row of "
                f"{term.name!r} (shape {value.type.shape}, {term.n_rows} rows), and a subsample "
                f"says nothing about the elements of other rows. {_instead(rv)}"
            )


def _instead(rv: Variable) -> str:
    """Return what to write in place of a latent variable of each row."""
    if step := own_step(rv):
        return (
            f"{own_steps_said({rv.name: step})}, on all rows: sample this model with pm.sample(), "
            "which gives the other variables theirs."
        )
    if getattr(rv.owner.op, "ndim_supp", 0):
        return (
            "Its elements depend on each other, as in a time series. Index a shorter series, such "
            "as one element for each week, by an integer column; or write a smooth function of "
            "few numbers, such as pm.gp.HSGP or a spline; or sample this model with pm.sample()."
        )
    return (
        'Have it integrated out: a step does so with integrate="auto", without vars, likelihood, '
        "dim or data, and pms.marginalize(model) returns the model without it, or says why it "
        "cannot. Or index parameters of groups by an integer column."
    )


def coupled_term(error: CoupledRows, kinds: Mapping[int, Sequence[RowTerm]]) -> str:
    """Return the name of the term in which an Op was found to couple rows."""
    terms = [r for rows in kinds.values() for r in rows]
    mixed = None if error.node is None else error.node.outputs[0]
    return next((r.name for r in terms if mixed in set(ancestors([r.graph]))), terms[0].name)
