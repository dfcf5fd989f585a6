"""A model as terms and priors, elementwise, over placeholders of its value variables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import (
    CauchyRV,
    GumbelRV,
    LaplaceRV,
    LogisticRV,
    NormalRV,
    StudentTRV,
)
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import concretize, depends_on, rebuild, tensor_input
from pymc_subsample.graph.nodes import lower_factor
from pymc_subsample.model import TallModelError
from pymc_subsample.model.binding import bound, placed
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.discovery import full_data_model, refuse_masked, row_terms
from pymc_subsample.model.indices import negative_codes
from pymc_subsample.model.parameter_checks import split_checks
from pymc_subsample.model.row_sets import sets_side_by_side
from pymc_subsample.model.selection import select_in_data
from pymc_subsample.model.terms import TermPart, parts_of
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows import Rows
from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.placed import PLACES, read_by_places, read_through
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
    # Of variables whose values are standardised, what these were and log |d before / d after|.
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

    def trace(self, graphs: Iterable[Variable] | None = None) -> RowTrace:
        """Return an empty trace of rows, or of levels, of these or of all graphs."""
        graphs = self.graphs if graphs is None else list(graphs)
        dependent = depends_on(graphs, list(self.values.values()))
        return RowTrace(lambda v: v not in dependent, row_number_test(self.arrays))


def read(model: pm.Model, columns: Mapping[Variable, Any] = MappingProxyType({})) -> Reading:
    """Read a model, or with other columns in the place of `pm.Data` of it."""
    model = full_data_model(model)
    model = model if columns else sets_side_by_side(model)
    refuse_masked(model)
    observed, free = row_terms(model, None), list(model.free_RVs)
    found = {rv.name: _form(rv) for rv in free if model.rvs_to_transforms[rv] is None}
    forms = {name: form for name, form in found.items() if form is not None}
    graphs = [
        *model.logp(vars=list(observed.values()), sum=False),
        *model.logp(vars=free, sum=False),
        *model.replace_rvs_by_values(
            [*free, *(v for form in forms.values() for v in form), *model.deterministics]
        ),
    ]
    graphs = [g.values if isinstance(g.type, XTensorType) else g for g in graphs]
    concrete = concretize(graphs, model.value_vars, model.initial_point(), columns)
    for name, graph in zip(observed, concrete.outputs, strict=False):
        if None in graph.type.shape:
            raise TallModelError(
                f"The shape of the log-likelihood of {name!r} depends on parameters. Fix the "
                "number of rows."
            )
    lengths = {max(g.type.shape) for g in concrete.outputs[: len(observed)] if g.type.shape}
    negative = list(negative_codes(concrete, lengths, model))
    outputs = read_by_places(
        concrete.outputs,
        concrete.arrays,
        concrete.values,
        min((n for n in lengths if n > 1), default=2),
    )
    outputs = select_in_data(outputs, concrete.arrays, concrete.values)
    outputs, checks = split_checks(outputs)
    potentials, left = {v.name for v in model.potentials}, iter(outputs)
    terms = [
        part
        for name in observed
        for graph in [next(left)]
        for part in (parts_of(name, graph) if name in potentials else [TermPart(name, graph)])
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


def standardised(reading: Reading, names: Iterable[str]) -> Reading:
    """Return a reading in which the values of variables with a scale are ``(x - mean) / scale``.

    Nodes that are fixed in these follow the mean and the scale, which may be near zero.
    """
    for name in names:
        if name not in reading.forms:
            continue
        location, scale = reading.forms[name]
        value, op = reading.values[name], reading.model[name].owner.op
        e = tensor_input(value.name, value.type.dtype, value.type.shape)
        joint = isinstance(op, MvNormalRV)
        x = location + (pt.dot(e, scale.T) if joint else scale * e)
        if x.type.shape != value.type.shape:
            continue
        volume = log_volume(reading, name, e)
        reading = _with(reading, value, x)
        if isinstance(op, NormalRV) or joint:
            prior = -0.5 * (e**2 + np.log(2 * np.pi))
            prior = prior.sum(axis=1) if joint else prior
        else:  # its location and scale are those of values that are moved by now
            prior = reading.priors[name] + pt.log(reading.forms[name][1]) + pt.zeros_like(e)
        reading.priors[name], reading.values[name] = prior, e
        reading.standard[name] = x, volume
        del reading.forms[name]
    return reading


def log_volume(reading: Reading, name: str, e: Variable) -> Variable:
    """Return log |d x / d e| of a variable ``x = mean + scale e``."""
    _, scale = reading.forms[name]
    if isinstance(reading.model[name].owner.op, MvNormalRV):
        return pt.log(pt.diag(scale)).sum() * e.type.shape[0]
    return (pt.log(scale) + pt.zeros_like(e)).sum()


def _standard(new: Variable, reading: Reading) -> list[Variable]:
    """Return the input that a graph which takes the place of a value has in its place."""
    known = {*reading.values.values(), *reading.arrays}
    return [v for v in ancestors([new]) if v.owner is None and v not in known
            and not isinstance(v, Constant)]  # fmt: skip


def _with(reading: Reading, old: Variable, new: Variable) -> Reading:
    """Put a graph in the place of a value."""
    pairs = [graph for form in reading.forms.values() for graph in form]
    moved = [graph for pair in reading.standard.values() for graph in pair]
    derived = reading.derived.values()
    whole = rebuild([*reading.graphs, *pairs, *derived, *moved], {old: new})
    if any(v.name == PLACES for v in ancestors([new])):
        values = [*(v for v in reading.values.values() if v is not old), *_standard(new, reading)]
        whole = read_through(whole, reading.arrays, values)
    graphs = iter(whole)
    return replace(
        reading,
        values=dict(reading.values),
        terms=[replace(term, graph=next(graphs)) for term in reading.terms],
        priors={name: next(graphs) for name in reading.priors},
        constrained={name: next(graphs) for name in reading.constrained},
        checks={next(graphs): said for said in reading.checks.values()},
        forms={name: (next(graphs), next(graphs)) for name in reading.forms},
        derived={name: next(graphs) for name in reading.derived},
        standard={name: (next(graphs), next(graphs)) for name in reading.standard},
    )
