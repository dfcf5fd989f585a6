"""Expansion of any smooth log-likelihood, by directional derivatives.

With delta = phi - phi*, the control variate is q_i = l_i* + D l_i + D^2 l_i / 2, where D is the
derivative along delta at phi*. No Hessian is formed; the derivatives of the subsample are
computed anew at every call.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.gradient import grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import toposort

from pymc_subsample.compiled.functions import (
    MATRIX,
    VECTOR,
    Compiled,
    by_name,
    compile_graph,
    compile_source,
)
from pymc_subsample.expansion.batch_loops import compile_batch
from pymc_subsample.expansion.curvature import MAX_CURVATURE, Totals
from pymc_subsample.expansion.expansion import Expansion, parameter_functions
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.quadratic import STEP
from pymc_subsample.expansion.row_code import of_one_kind
from pymc_subsample.expansion.undefined import cause
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, rebuild
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.nodes import is_product
from pymc_subsample.graph.scalar_loop_gradients import gradients
from pymc_subsample.kernels.linear import KERNELS
from pymc_subsample.kernels.model import (
    ALONE,
    ANCHOR,
    BLOCK_POISSON,
    GRADIENT,
    LEFT,
    MINIBATCH,
    RESIDUAL,
)
from pymc_subsample.model import TallModel

_LEVEL = types.void(VECTOR, MATRIX, VECTOR, VECTOR)
_PRODUCT = types.void(VECTOR, MATRIX, VECTOR, VECTOR)
# Random directions along which the diagonal of a large Hessian is estimated.
_PROBES = 16

# The log-likelihood of a batch of rows at a point.
type BatchLoglik = Callable[[Variable], Variable]


class _Batch:
    """Graphs of a batch of rows, and the functions that are compiled of them."""

    def __init__(self, model: TallModel) -> None:
        self._model, self.packer = model, Packer(model)
        rows = self.rows = pt.tensor("rows", dtype="float64", shape=(None, None))
        data = self._data = {
            var: self.packer.read(var, lambda p: rows[p], lambda p: rows[p])
            for var in model.batch.columns
        }
        tests = rebuild(model.batch.tests, dict(data))
        data |= dict(zip(model.batch.tests, tests, strict=True))
        self._tests = {test: number for number, test in enumerate(tests, 1)}
        kind = model.batch.kind
        products = [node for node in toposort(model.batch.outputs) if is_product(node)]
        self._by_matrices = any(node.outputs[0].type.shape[-1:] != (1,) for node in products)
        self._kind_at = None if kind is None else self.packer.request_all(kind)[0]
        self.width = max(1, len(self.packer))
        self.phi = pt.tensor("phi", dtype="float64", shape=(model.phi_size,))
        self.center = pt.tensor("center", dtype="float64", shape=(model.phi_size,))

    def loglik(self, at: Variable, kind: int | None = None) -> Variable:
        """Return the log-likelihoods of rows at a point: of all kinds, or of one."""
        parts = {
            new: at[part].reshape(new.type.shape).astype(new.type.dtype)
            for new, part in self._model.phi_slices.items()
        }
        [graph] = rebuild(self._model.batch.outputs, parts | self._data)
        return of_one_kind([graph.astype("float64")], self._tests, kind)[0]

    def loops(
        self,
        name: str,
        inputs: Sequence[Variable],
        graphs: Callable[[BatchLoglik], Sequence[Variable]],
        row: Sequence[str],
        others: Sequence[str],
        signature: types.Type,
        **more: Any,
    ) -> Compiled:
        """Compile loops over rows, which find graphs as out0, out1, ...; see `compile_batch`.

        Raises `NoForm` where rows are multiplied by a matrix: BLAS takes all of them at once, in a
        third of the time of loops for 10 x 5 numbers, in a thirteenth for 60 x 60. Also where there
        are more parameters than numbers in a row: each row's gradient has all of them, which takes
        twice the time of PyTensor's for 12 parameters and rows of 4 numbers.
        """
        if self._by_matrices or self._model.phi_size > self.width:
            raise NoForm
        kinds = [graphs(partial(self.loglik, kind=k)) for k in range(1 + len(self._tests))]
        outputs = [{f"out{k}": graph for k, graph in enumerate(found)} for found in kinds]
        named = {str(v.name): v for v in inputs}
        return compile_batch(
            name, named, outputs, row, others, signature, self.width, self._kind_at, **more
        )

    def compile(
        self,
        name: str,
        inputs: Sequence[Variable],
        targets: Sequence[str],
        graphs: Callable[[BatchLoglik], Sequence[Variable]],
        signature: types.Type,
    ) -> Compiled:
        """Compile what writes, or adds where a target ends in " +", graphs to buffers.

        A target ``value[i]`` is one number of each row; one with another index is a sum over rows.
        """
        buffers = [target.split("[")[0] for target in targets]
        before, row = [], []
        for k, (target, buffer) in enumerate(zip(targets, buffers, strict=True)):
            every = f"for e in range(out{k}.shape[0]):"
            if target.endswith("[i]"):
                row.append(f"{target} = out{k}[0]")
                continue
            row += [every, f"    {buffer}[e] += out{k}[e]"]
            if not target.endswith(" +"):
                before.append(f"{buffer}[:] = 0.0")
        with suppress(NoForm):
            return self.loops(name, inputs, graphs, row, buffers, signature, before=before)
        places = [target.replace("[e]", "[i]") for target in targets]
        written = dict(zip(places, graphs(self.loglik), strict=True))
        return compile_graph(name, inputs, written, buffers, signature)


def general_expansion(model: TallModel, order: int) -> Expansion:
    """Compile the general path of `model` for control variates of the given order."""
    batch = _Batch(model)
    rows, phi, center = batch.rows, batch.phi, batch.center
    weight = pt.tensor("weight", dtype="float64", shape=())
    sums = _GeneralSums(batch)
    rough = sums.rough() if order else None
    order = min(order, 1) if rough is not None else order

    def left_at(point: Variable, loglik: BatchLoglik) -> Variable:
        """Log-likelihoods at a point less their control variates' change from the reference."""
        direction, derivative = phi.type("direction"), loglik(center)
        proxy, factorial = pt.zeros_like(derivative), 1.0
        for k in range(1, order + 1):
            derivative = _directional(derivative, center, direction)
            factorial *= k
            proxy = proxy + derivative / factorial
        [proxy] = rebuild([proxy], {direction: point - center})
        return loglik(point) - proxy

    def change(loglik: BatchLoglik) -> Variable:
        return left_at(phi, loglik) - loglik(center)

    def residual() -> Compiled:
        def with_slope(loglik: BatchLoglik) -> list[Variable]:
            d = change(loglik)
            return [d, grad(d.sum(), phi, disconnected_inputs="ignore")]

        with suppress(NoForm):
            return batch.loops(
                "residual",
                [phi, rows, center],
                with_slope,
                ["d[i] = out0[0]", "for e in range(v.shape[1]):", "    v[i, e] = out1[e]"],
                ["rule", "weight", "setting", "d", "grad"],
                RESIDUAL,
                scratch=["v"],
                before=[f"v = np.empty((rows.shape[1], {model.phi_size}))"],
                after=[
                    f"if rule != {ALONE}:",
                    "    weights = np.ones((1, rows.shape[1]))",
                    "    weigh(rule, weight, setting, d, weights)",
                    "    for i in range(v.shape[0]):",
                    "        for e in range(v.shape[1]):",
                    "            grad[e] += weights[0, i] * v[i, e]",
                ],
                weigh=by_name("weigh", *KERNELS["weigh"]),
            )
        rule = pt.tensor("rule", dtype="int64", shape=())
        setting = pt.tensor("setting", dtype="float64", shape=())
        d = change(batch.loglik)
        products, m = pt.eq(rule, BLOCK_POISSON), pt.maximum(d.shape[0], 1)
        blocks = d.reshape((-1, pt.switch(products, MINIBATCH, m)))
        total = blocks.sum(axis=1, keepdims=True)
        apart = weight - setting * weight**2 * (blocks - total / m)
        weights = pt.switch(products, weight / (weight * total - setting), apart).ravel()
        return compile_graph(
            "residual",
            [phi, rows, center, rule, weight, setting],
            {"d[i]": d, "grad[i] +": grad(None, phi, known_grads={d: weights})},
            ["d", "grad"],
            RESIDUAL,
        )

    def gradient() -> Compiled:
        def slope(loglik: BatchLoglik) -> list[Variable]:
            total = weight * left_at(phi, loglik).sum()
            return [grad(total, phi, disconnected_inputs="ignore")]

        return batch.compile(
            "gradient", [phi, rows, center, weight], ["grad[e] +"], slope, GRADIENT
        )

    def left() -> Compiled:
        inputs, graphs = [phi, center, rows], lambda loglik: [left_at(phi, loglik)]
        return batch.compile("left", inputs, ["value[i]"], graphs, LEFT)

    def anchor() -> Compiled:
        return compile_source("anchor", "def anchor(center, rows):\n    pass", {}, ANCHOR, "none")

    functions = {
        "residual": residual,
        "gradient": gradient,
        "anchor": anchor,
        "left": left,
        "gather": batch.packer.compile_gather,
    }
    values = batch.loglik(center)
    return Expansion(
        order=order,
        theta_size=model.size,
        phi_size=model.phi_size,
        width=batch.width,
        linear=False,
        build=parameter_functions(model) | functions,
        sums=sums,
        slope=lambda: None,
        remainder=lambda center: None,
        third=lambda: None,
        cause=lambda at, row: cause(values, [center, rows], [at, row]),
        n_predictors=0,
        packer=batch.packer,
        store=model.rows,
        likelihood=model.likelihood,
        curvature="full" if model.phi_size <= MAX_CURVATURE else "diagonal",
        rough=rough,
    )


class _GeneralSums:
    """Full-data sums by one gradient and, for the Hessian, P vector products per chunk.

    The products are differences of gradients where PyTensor has no second derivatives. Rows whose
    Hessian is not finite are left out of its sum, and counted.
    """

    def __init__(self, batch: _Batch) -> None:
        self._batch, self._center = batch, batch.center
        self._vector = batch.center.type("vector")

    def _level(self, loglik: BatchLoglik) -> list[Variable]:
        total = loglik(self._center).sum()
        return [total, grad(total, self._center, disconnected_inputs="ignore")]

    def _bent(self, loglik: BatchLoglik) -> list[Variable]:
        _, slope = self._level(loglik)
        moved = (slope * self._vector).sum()
        return gradients(moved, [self._center], disconnected_inputs="ignore")

    @cached_property
    def _level_function(self) -> Compiled:
        inputs, targets = [self._center, self._batch.rows], ["level[0]", "slope[e]"]
        return self._batch.compile("level", inputs, targets, self._level, _LEVEL)

    @cached_property
    def _product(self) -> Callable[..., None]:
        inputs = [self._center, self._batch.rows, self._vector]
        try:
            return self._batch.compile("product", inputs, ["out[e]"], self._bent, _PRODUCT)
        except UNDIFFERENTIABLE:
            level, value = self._level_function, np.empty(1)
            return _differences(lambda at, rows, _, out: level(at, rows, value, out))

    def rough(self) -> str | None:
        """Say which function has no second derivatives, if so."""
        self._level(self._batch.loglik)  # which other functions refuse to be without
        try:
            self._bent(self._batch.loglik)
        except UNDIFFERENTIABLE as error:
            return f"{type(error).__name__}: {error}"
        return None

    @cached_property
    def _bend(self) -> Callable[..., None]:
        """Second derivatives of each row along a direction."""

        def along(loglik: BatchLoglik) -> list[Variable]:
            return [_directional(loglik(self._center), self._center, self._vector)]

        def bend(loglik: BatchLoglik) -> list[Variable]:
            [slopes] = along(loglik)
            return [_directional(slopes, self._center, self._vector)]

        inputs = [self._center, self._batch.rows, self._vector]
        compiled = partial(self._batch.compile, inputs=inputs, targets=["out[i]"])
        try:
            return compiled("bend", graphs=bend, signature=_PRODUCT)
        except UNDIFFERENTIABLE:
            return _differences(compiled("along", graphs=along, signature=_PRODUCT))

    def __call__(self, center: np.ndarray, rows: np.ndarray, total: Totals) -> None:
        level, slope, curvature, flat = total
        assert isinstance(curvature, np.ndarray)
        value, vector = np.empty(1), np.empty(len(center))
        self._level_function(center, rows, value, vector)
        level += value
        slope += vector
        if not len(curvature):
            return
        add = self._add_diagonal if curvature.ndim == 1 else self._add_full
        part = np.zeros_like(curvature)
        add(center, rows, part)
        if not np.all(np.isfinite(part)):
            left_out = self.flat(rows, center)
            flat[0] += np.count_nonzero(left_out)
            part[:] = 0.0
            add(center, np.ascontiguousarray(rows[:, ~left_out]), part)
        curvature += part

    def flat(self, rows: np.ndarray, center: np.ndarray) -> np.ndarray:
        """Say which packed rows, shape (m,), have no finite Hessian."""
        bend = np.empty(rows.shape[1])
        self._bend(center, rows, np.ones(len(center)), bend)
        return ~np.isfinite(bend)

    def _add_full(self, center: np.ndarray, rows: np.ndarray, full: np.ndarray) -> None:
        vector = np.empty(len(center))
        for a, line in enumerate(full):
            self._product(center, rows, np.eye(1, len(center), a)[0], vector)
            line += vector

    def _add_diagonal(self, center: np.ndarray, rows: np.ndarray, diagonal: np.ndarray) -> None:
        r"""Estimate the diagonal by products with random signs v, :math:`E[v \odot H v]`.

        The others of the row's elements add noise of mean zero (Hutchinson 1990).
        """
        rng, vector = np.random.default_rng(0), np.empty(len(center))
        for signs in rng.choice([-1.0, 1.0], (_PROBES, len(center))):
            self._product(center, rows, signs, vector)
            diagonal += signs * vector / _PROBES


def _differences(slope: Callable[..., None]) -> Callable[..., None]:
    """Return what writes differences along a vector of what ``slope(..., vector, out)`` does."""

    def difference(
        center: np.ndarray, rows: np.ndarray, vector: np.ndarray, out: np.ndarray
    ) -> None:
        step = STEP * max(1.0, np.max(np.abs(center * vector)))
        back = np.empty_like(out)
        slope(center + step * vector, rows, vector, out)
        slope(center - step * vector, rows, vector, back)
        out[:] = (out - back) / (2 * step)

    return difference


def _directional(values: Variable, at: Variable, direction: Variable) -> Variable:
    """Differentiate each element of `values` along `direction`: a vjp is linear in its vector."""
    dummy = pt.zeros_like(values)
    vector = dummy.type("vector")
    [slope] = gradients((values * vector).sum(), [at], disconnected_inputs="ignore")
    along = (slope * direction).sum()
    derivative = grad(along, vector, disconnected_inputs="ignore")
    [derivative] = rebuild([derivative], {vector: dummy})
    return derivative
