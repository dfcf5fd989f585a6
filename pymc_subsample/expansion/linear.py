r"""Expansion of a log-likelihood of a few affine predictors per row.

With :math:`x_i` the E predictors of row i (see `kernels.linear`) the second-order control variate
of Dang et al. (2019, eq. 4.4), expanded in phi, is

.. math:: q_i = l_i^* + g_i' (x_i - x_i^*) + \tfrac12 (x_i - x_i^*)' H_i (x_i - x_i^*)

which takes 1 + E + E(E+1)/2 numbers per row in place of a d x d Hessian. They are cached behind
the data columns of a packed row: the varying x_i*, l_i*, g_i and the upper triangle of H_i.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

import numpy as np
from numba import types
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort

from pymc_subsample.compiled.functions import (
    Compiled,
    by_name,
    compile_source,
)
from pymc_subsample.expansion import linear_source
from pymc_subsample.expansion.coefficients import Coefficients
from pymc_subsample.expansion.curvature import MAX_CURVATURE, MAX_DENSE, MAX_TERMS
from pymc_subsample.expansion.everywhere import distinct, largest_size
from pymc_subsample.expansion.expansion import Expansion, parameter_functions
from pymc_subsample.expansion.linear_source import LoopCode
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.expansion.row_layout import AffineMap, RowLayout, affine_map
from pymc_subsample.expansion.sums import LinearSums
from pymc_subsample.expansion.undefined import cause as found_cause
from pymc_subsample.graph.affine import Affine
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.piecewise import Pieces
from pymc_subsample.graph.scalar_loop_gradients import has_loops
from pymc_subsample.kernels.linear import KERNELS
from pymc_subsample.kernels.model import ANCHOR, GRADIENT, LEFT, RESIDUAL
from pymc_subsample.model import TallModel
from pymc_subsample.model.predictors import MAX_COLUMNS, MAX_PREDICTORS, Predictor, are_few

# A curvature of which at most one element in so many can differ from zero is kept as a list.
_FILLED = 8
# Up to so many, derivatives in all combinations of them are bounded.
MAX_COMBINED = 2
# Up to so many have control variates of order 3, if second derivatives have so many nodes at most:
# of the third there are three to four times as many, which take 10 ms each to compile.
_MOST_THIRDS, _MOST_NODES = 3, 250


def is_small(model: TallModel, predictors: Sequence[Predictor]) -> bool:
    """Whether a row's log-likelihood reads few enough numbers for the linear-predictor path.

    Of a row that reads more numbers beside the predictors than it has second derivatives, as of a
    unit at many nodes, these cost little.
    """
    size = sum(p.forms.size for p in predictors)
    blocked = [p.var for p in predictors]
    above = set(ancestors(model.batch.outputs, blockers=blocked)) - set(blocked)
    read = [(v.type.shape, model.batch.axes[v]) for v in model.batch.columns if v in above]
    lengths = [[s for i, s in enumerate(shape) if i != axis] for shape, axis in read]
    beside = sum(int(np.prod(x, dtype=int)) for x in lengths)
    return are_few(size, beside) and beside <= MAX_COLUMNS


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
    layout = RowLayout(star, n_varying, len(forms), order)
    table, scales = affine.joined()
    kernels = {name: by_name(name, *kernel) for name, kernel in KERNELS.items()}
    environment = {"np": np, "table": table, "scales": scales, **kernels}
    table_key = f"{table.shape}{table.tobytes().hex()}|{scales.tobytes().hex()}"

    def build(
        name: str,
        source: Callable[[AffineMap, RowLayout, LoopCode], str],
        outputs: Callable[[RowCode], list[Variable]],
        signature: types.Type,
        *,
        bends: bool = False,
    ) -> Compiled:
        names, lines, key = code.evaluation(outputs, bends=bends)
        key = None if key is None else key + table_key
        text = source(affine, layout, lines)
        return compile_source(name, text, environment | names, signature, key)

    functions = {
        "residual": lambda: build(
            "residual", linear_source.residual, lambda rows: rows.up_to(1), RESIDUAL
        ),
        "gradient": lambda: build(
            "gradient", linear_source.gradient, lambda rows: rows.up_to(1)[1:], GRADIENT
        ),
        "anchor": lambda: build(
            "anchor",
            partial(linear_source.anchor, bounds=bool(bent)),
            lambda rows: [*rows.up_to(1), *(rows.own(bent) or rows.beyond(order))],
            ANCHOR,
            bends=not bent,
        ),
        "left": lambda: build("left", linear_source.left, lambda rows: rows.up_to(0), LEFT),
        "gather": packer.compile_gather,
    }
    if order == 3:
        functions = {name: functions[name] for name in ("anchor", "left", "gather")}
    sums = LinearSums(affine, layout, model.phi_size)

    @cache
    def slope() -> float | None:
        if len(forms) > 1 or not n_varying or rough is not None:
            return None
        kinds = distinct(expansion, list(code.data))
        if kinds is None or has_loops(code.derivatives(order).values()):
            return None  # whose slopes are not those of what they sum up to
        data = list(code.data.values())
        if not Pieces(code.loglik, code.x, data).smooth_everywhere(kinds, order + 1):
            return None
        [derivative] = code.derivatives(order + 1).values()
        return largest_size(derivative, code.x[0], data, kinds)

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

        def of(rows: np.ndarray, gradients: np.ndarray, limit: float) -> np.ndarray:
            at = np.concatenate(
                [rows[star : star + n_varying], np.tile(shared[n_varying:], rows.shape[1])]
            )
            found = bound(at, rows[list(code.data)], gradients, limit)
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
            # Sums of series settle before their third derivatives do: those of `gammainc` in its
            # shape were off by 2 to 100%.
            or has_loops(code.derivatives(2).values())
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
        likelihood=model.likelihood,
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
