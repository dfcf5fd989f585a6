"""Expansion of any smooth log-likelihood, by directional derivatives.

With delta = phi - phi*, the control variate is q_i = l_i* + D l_i + D^2 l_i / 2, where D is the
derivative along delta at phi*. No Hessian is formed; the derivatives of the subsample are
computed anew at every call.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.gradient import grad
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.functions import (
    MATRIX,
    VECTOR,
    Compiled,
    compile_graph,
    compile_source,
)
from pymc_subsample.expansion.curvature import MAX_CURVATURE, Totals
from pymc_subsample.expansion.expansion import Expansion, parameter_functions
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.quadratic import STEP
from pymc_subsample.expansion.undefined import cause
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, rebuild
from pymc_subsample.graph.scalar_loop_gradients import gradients
from pymc_subsample.kernels.model import ANCHOR, BLOCK_POISSON, GRADIENT, LEFT, MINIBATCH, RESIDUAL
from pymc_subsample.model import TallModel

_LEVEL = types.void(VECTOR, MATRIX, VECTOR, VECTOR)
_PRODUCT = types.void(VECTOR, MATRIX, VECTOR, VECTOR)
# Random directions along which the diagonal of a large Hessian is estimated.
_PROBES = 16


def general_expansion(model: TallModel, order: int) -> Expansion:
    """Compile the general path of `model` for control variates of the given order."""
    packer = Packer(model)
    rows = pt.tensor("rows", dtype="float64", shape=(None, None))
    data = {
        var: packer.read(var, lambda p: rows[p], lambda p: rows[p]) for var in model.batch.columns
    }
    phi = pt.tensor("phi", dtype="float64", shape=(model.phi_size,))
    center = pt.tensor("center", dtype="float64", shape=(model.phi_size,))
    weight = pt.tensor("weight", dtype="float64", shape=())

    def loglik(at: Variable) -> Variable:
        parts = {
            new: at[part].reshape(new.type.shape).astype(new.type.dtype)
            for new, part in model.phi_slices.items()
        }
        [graph] = rebuild(model.batch.outputs, parts | data)
        return graph.astype("float64")

    at_center = loglik(center)
    sums = _GeneralSums(center, rows, at_center)
    rough = sums.rough() if order else None
    order = min(order, 1) if rough is not None else order

    def left_at(point: Variable) -> Variable:
        """Log-likelihoods at a point less their control variates' change from the reference."""
        direction = phi.type("direction")
        proxy, derivative, factorial = pt.zeros_like(at_center), at_center, 1.0
        for k in range(1, order + 1):
            derivative = _directional(derivative, center, direction)
            factorial *= k
            proxy = proxy + derivative / factorial
        [proxy] = rebuild([proxy], {direction: point - center})
        return loglik(point) - proxy

    def residual() -> Compiled:
        rule = pt.tensor("rule", dtype="int64", shape=())
        setting = pt.tensor("setting", dtype="float64", shape=())
        d = left_at(phi) - at_center
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
        return compile_graph(
            "gradient",
            [phi, rows, center, weight],
            {"grad[i] +": grad(weight * left_at(phi).sum(), phi)},
            ["grad"],
            GRADIENT,
        )

    def left() -> Compiled:
        return compile_graph(
            "left", [phi, center, rows], {"value[i]": left_at(phi)}, ["value"], LEFT
        )

    def anchor() -> Compiled:
        return compile_source("anchor", "def anchor(center, rows):\n    pass", {}, ANCHOR, "none")

    functions = {
        "residual": residual,
        "gradient": gradient,
        "anchor": anchor,
        "left": left,
        "gather": packer.compile_gather,
    }
    return Expansion(
        order=order,
        theta_size=model.size,
        phi_size=model.phi_size,
        width=max(1, len(packer)),
        linear=False,
        build=parameter_functions(model) | functions,
        sums=sums,
        slope=lambda: None,
        remainder=lambda center: None,
        third=lambda: None,
        cause=lambda at, row: cause(at_center, [center, rows], [at, row]),
        n_predictors=0,
        packer=packer,
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

    def __init__(self, center: Variable, rows: Variable, values: Variable) -> None:
        self._center, self._rows, self._values = center, rows, values
        self._total = values.sum()

    @cached_property
    def _slope(self) -> Variable:
        return grad(self._total, self._center)

    @cached_property
    def _level_function(self) -> Compiled:
        return compile_graph(
            "level",
            [self._center, self._rows],
            {"level[0]": self._total, "slope[i]": self._slope},
            ["level", "slope"],
            _LEVEL,
        )

    @cached_property
    def _product_graphs(self) -> tuple[Variable, Variable]:
        vector = self._center.type("vector")
        [product] = gradients(
            (self._slope * vector).sum(), [self._center], disconnected_inputs="ignore"
        )
        return vector, product

    @cached_property
    def _product(self) -> Callable[..., None]:
        try:
            vector, product = self._product_graphs
        except UNDIFFERENTIABLE:
            level, value = self._level_function, np.empty(1)
            return _differences(lambda at, rows, _, out: level(at, rows, value, out))
        inputs = [self._center, self._rows, vector]
        return compile_graph("product", inputs, {"out[i]": product}, ["out"], _PRODUCT)

    def rough(self) -> str | None:
        """Say which function has no second derivatives, if so."""
        _ = self._slope  # which other functions refuse to be without
        try:
            _ = self._product_graphs
        except UNDIFFERENTIABLE as error:
            return f"{type(error).__name__}: {error}"
        return None

    @cached_property
    def _bend(self) -> Callable[..., None]:
        """Second derivatives of each row along a direction."""
        direction = self._center.type("direction")
        inputs = [self._center, self._rows, direction]
        along = _directional(self._values, self._center, direction)
        try:
            bend = _directional(along, self._center, direction)
        except UNDIFFERENTIABLE:
            slope = compile_graph("along", inputs, {"out[i]": along}, ["out"], _PRODUCT)
            return _differences(slope)
        return compile_graph("bend", inputs, {"out[i]": bend}, ["out"], _PRODUCT)

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
