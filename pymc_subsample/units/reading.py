"""A model as terms and priors, elementwise, over placeholders of its value variables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.multivariate import MvNormalRV
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import (
    CauchyRV,
    GumbelRV,
    LaplaceRV,
    LogisticRV,
    NormalRV,
    StudentTRV,
)
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import concretize, depends_on
from pymc_subsample.graph.nodes import lower_factor
from pymc_subsample.graph.unrolled import without_loops
from pymc_subsample.model import TallModelError
from pymc_subsample.model.binding import bound, placed
from pymc_subsample.model.discovery import full_data_model, refuse_masked, row_terms, unfitting
from pymc_subsample.model.errors import with_densities
from pymc_subsample.model.indices import negative_codes
from pymc_subsample.model.parameter_checks import split_checks
from pymc_subsample.model.row_sets import sets_side_by_side
from pymc_subsample.model.selection import select_in_data
from pymc_subsample.model.terms import TermPart, parts_of
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows import Rows
from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.placed import read_by_places
from pymc_subsample.units.places import by_element, row_number, settled
from pymc_subsample.validation import warn

# Location and scale are the last two of their parameters.
_LOCATION_SCALE = (NormalRV, StudentTRV, LaplaceRV, CauchyRV, LogisticRV, GumbelRV)


@dataclass
class Reading:
    """Graphs over placeholders of data and of values, these by the names of their variables.

    `forms` has the location, and the scale or its factor, of variables that have them.
    """

    model: pm.Model
    values: dict[str, Variable]
    arrays: dict[Variable, np.ndarray]
    terms: list[TermPart]
    priors: dict[str, Variable]  # Log densities of the values, with Jacobians, elementwise.
    constrained: dict[str, Variable]  # The variables, as functions of the values,
    derived: dict[str, Variable]  # and deterministic ones.
    forms: dict[str, tuple[Variable, Variable]]
    checks: dict[Variable, str]  # Conditions for all this to be finite, and what they say.
    negative: list[str]  # What there is to say of negative codes.
    among_others: set[str]  # Put among other values, as what is missing of a column.
    # Of variables whose values are others by now, what these were and log |d before / d after|.
    standard: dict[str, tuple[Variable, Variable]] = field(default_factory=dict)
    # Columns, or rows in memory, that take the place of `pm.Data` of the model,
    placed: Mapping[Variable, Any] = field(default_factory=dict)
    # where rows of each level are in columns on disk, by the place of these in a row, and what
    # there is to say of those whose rows are not together.
    runs: dict[int, Runs] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)

    @property
    def graphs(self) -> list[Variable]:
        """All graphs but the forms and deterministics."""
        terms = [t.graph for t in self.terms]
        return [*terms, *self.priors.values(), *self.constrained.values(), *self.checks]

    def trace(
        self, graphs: Iterable[Variable] | None = None, local: Iterable[Variable] | None = None
    ) -> RowTrace:
        """Return an empty trace of rows, or of levels, of these or of all graphs.

        Given local variables, no others have levels, however rows read elements of them.
        """
        graphs, values = self.graphs if graphs is None else list(graphs), [*self.values.values()]
        dependent = depends_on(graphs, [*values, *(local or ())])
        others = set() if local is None else dependent - depends_on(graphs, list(local))
        return RowTrace(
            lambda v: v not in dependent,
            row_number(self.arrays),
            lambda v: v in others and bool(by_element(v, self.arrays, values)),
        )


def read(model: pm.Model, columns: Mapping[Variable, Any] = MappingProxyType({})) -> Reading:
    """Read a model, or with other columns in the place of `pm.Data` of it."""
    model = full_data_model(model)
    model = model if columns else sets_side_by_side(model)
    refuse_masked(model)
    observed, free = row_terms(model, None), list(model.free_RVs)
    found = {rv.name: _form(rv) for rv in free if model.rvs_to_transforms[rv] is None}
    forms = {name: form for name, form in found.items() if form is not None}
    try:
        with with_densities():
            densities = [model.logp(vars=list(v), sum=False) for v in (observed.values(), free)]
        of_forms = [v for form in forms.values() for v in form]
        values = model.replace_rvs_by_values([*free, *of_forms, *model.deterministics])
        graphs = [*densities[0], *densities[1], *values]
        graphs = [g.values if isinstance(g.type, XTensorType) else g for g in graphs]
        concrete = concretize(graphs, model.value_vars, model.initial_point(), columns)
    except TallModelError:
        raise
    except ValueError as error:
        if columns or "shape" not in str(error).lower():
            raise
        raise unfitting(model, observed, error) from error
    outputs = without_loops(concrete.outputs, concrete.values, concrete.arrays)
    for name, graph in zip(observed, outputs, strict=False):
        if None in graph.type.shape:
            raise TallModelError(
                f"The shape of the log-likelihood of {name!r} depends on parameters. Fix the "
                "number of rows."
            )
    lengths = {max(g.type.shape) for g in outputs[: len(observed)] if g.type.shape}
    negative = list(negative_codes(concrete, lengths, model))
    outputs, put = read_by_places(
        outputs,
        concrete.arrays,
        concrete.values,
        min((n for n in lengths if n > 1), default=2),
    )
    outputs = select_in_data(outputs, concrete.arrays, concrete.values)
    outputs = settled(outputs, concrete.arrays)
    outputs, checks = split_checks(outputs)
    potentials, left = {v.name for v in model.potentials}, iter(outputs)
    terms = [
        part
        for name in observed
        for graph in [next(left)]
        for part in (parts_of(name, graph) if name in potentials else [TermPart(name, graph)])
        if 0 not in part.shape  # as of an outcome that is missing in all rows
    ]
    names = [rv.name for rv in free]
    rvs = [model.values_to_rvs[v].name for v in model.value_vars]
    return Reading(
        model=model,
        values=dict(zip(rvs, concrete.values, strict=True)),
        arrays=concrete.arrays,
        terms=terms,
        priors={name: next(left) for name in names},
        constrained={name: next(left) for name in names},
        forms={name: (next(left), next(left)) for name in forms},
        derived={v.name: next(left) for v in model.deterministics},
        checks=checks,
        negative=negative,
        among_others={rv for rv, v in zip(rvs, concrete.values, strict=True) if v in put},
        placed=columns,
    )


def read_bound(model: pm.Model, data: Rows | None) -> Reading:
    """Read a model, with rows on disk in the place of those that it holds, if there are some."""
    return read(model) if data is None else read(model, placed(bound(model, data)))


def warn_of_codes(reading: Reading) -> None:
    """Warn of negative codes, which pick levels from the end."""
    for said in reading.negative:
        warn(said)


def _form(rv: Variable) -> tuple[Variable, Variable] | None:
    op = rv.owner.op
    if isinstance(op, _LOCATION_SCALE) and rv.type.ndim:
        return tuple(op.dist_params(rv.owner)[-2:])
    if isinstance(op, MvNormalRV) and rv.type.ndim == 2:
        mean, cov = op.dist_params(rv.owner)
        return mean, lower_factor(cov)
    return None
