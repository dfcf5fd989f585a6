"""Variables with an element for each row: of new rows they are drawn from their prior."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.tensor.random.op import RandomVariable

from pymc_subsample.graph.concrete import concretize
from pymc_subsample.graph.numpy_functions import frozen, numpy_function
from pymc_subsample.model.errors import op_name
from pymc_subsample.results.predict.quantity import SAID, read
from pymc_subsample.results.predict.rowwise import RowFunction


class RowEffects:
    """Values of a function's leaves for some rows: those with an element for each are of these.

    Rows are those of the model, or new ones.
    """

    def __init__(
        self, model: pm.Model, function: RowFunction, posterior: xr.Dataset, new: bool
    ) -> None:
        self._own, self._leaves = function.own, function.leaves
        each = self._own.items() if new else ()
        self._new = {name: _Drawn(model, name, axis, posterior) for name, axis in each}
        read = [n for drawn in self._new.values() for n in drawn.read]
        self.names = list(dict.fromkeys([*self._leaves, *read]))

    def at(
        self, points: Sequence, start: int, stop: int, rng: np.random.Generator
    ) -> Iterator[list[np.ndarray]]:
        """Yield values of the leaves, for rows from `start` to `stop`, at points of `names`."""
        for point in points:
            values = dict(zip(self.names, point, strict=True))
            for name, axis in self._own.items():
                drawn = self._new.get(name)
                values[name] = (
                    values[name].take(range(start, stop), axis)
                    if drawn is None
                    else drawn.draw(values, stop - start, rng)
                )
            yield [values[name] for name in self._leaves]


class _Drawn:
    """A free variable whose elements along an axis are of rows, given draws of `read`."""

    def __init__(self, model: pm.Model, name: str, axis: int, posterior: xr.Dataset) -> None:
        rv, op = model[name], model[name].owner.op
        self._name, self._op, self._axis = name, op, axis
        if not isinstance(op, RandomVariable) or axis >= rv.type.ndim - op.ndim_supp:
            raise ValueError(
                f"{SAID}: {name!r} ({op_name(op)}) has an element for each row, and those of new "
                "rows are not drawn here: they are not independent, or have no distribution of "
                "their own. Use pm.sample_posterior_predictive."
            )
        parameters = op.dist_params(rv.owner)
        stored = [v for v in model.free_RVs if v.name in posterior and v is not rv]
        leaves, missing = read(model, parameters, stored)
        if missing:
            raise ValueError(
                f"{SAID}: idata.posterior lacks {', '.join(map(repr, missing))}, which the prior "
                f"of {name!r} reads: {name!r} of new rows is drawn from it. Sample without "
                "var_names, or keep them."
            )
        self.read = [v.name for v in leaves]
        point = {n: posterior[n].values[0, 0] for n in self.read}
        concrete = concretize(parameters, leaves, point)
        graphs = frozen(concrete.outputs, concrete.arrays)
        self._parameters = numpy_function(concrete.values, graphs)
        self._shape = posterior[name].shape[2:]

    def draw(
        self, values: Mapping[str, np.ndarray], m: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw it for m rows."""
        op = self._op
        batch = len(self._shape) - op.ndim_supp
        found = zip(self._parameters(*(values[n] for n in self.read)), op.ndims_params, strict=True)
        shape = [m if i == self._axis else n for i, n in enumerate(self._shape[:batch])]
        return op.rng_fn(rng, *(self._alike(p, core, batch) for p, core in found), tuple(shape))

    def _alike(self, parameter: np.ndarray, core: int, batch: int) -> np.ndarray:
        """Return a parameter of one row, which is that of all."""
        axis = self._axis - batch + np.ndim(parameter) - core
        if axis < 0:
            return parameter
        if np.ptp(parameter, axis=axis).any():
            raise ValueError(
                f"{SAID}: the prior of {self._name!r}, which has an element for each row, reads "
                "numbers of the rows, so the prior for new rows is not known. Write the model with "
                "a distribution that all rows share, times a column; or use "
                "pm.sample_posterior_predictive."
            )
        return np.take(parameter, [0], axis=axis)
