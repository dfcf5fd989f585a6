"""A PyMC model seen as a prior, a set of rows and the log-likelihood of one row."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.compiled.functions import without_c
from pymc_subsample.graph.concrete import ReadsAllRows, concretize, depends_on, on_disk
from pymc_subsample.graph.numpy_functions import frozen
from pymc_subsample.model import binding, sample_leakage
from pymc_subsample.model.batch import BatchGraph, batch_graph, on_scales
from pymc_subsample.model.data_columns import column_graph, row_number_test, stored
from pymc_subsample.model.discovery import (
    find_rows,
    full_data_model,
    refuse_missing,
    row_terms,
    unfitting,
)
from pymc_subsample.model.errors import CoupledRows, TallModelError, with_densities
from pymc_subsample.model.evaluation import Evaluation, consecutive
from pymc_subsample.model.indices import negative_codes
from pymc_subsample.model.levels import refuse_other_levels
from pymc_subsample.model.lifting import lifted
from pymc_subsample.model.loops import followed
from pymc_subsample.model.minimum_cut import through_fewer
from pymc_subsample.model.parameter_checks import sort_checks, split_checks
from pymc_subsample.model.row_kinds import per_row
from pymc_subsample.model.row_sets import sets_side_by_side
from pymc_subsample.model.scales import SCALES
from pymc_subsample.model.selection import select_in_data
from pymc_subsample.model.support import owner_of_check
from pymc_subsample.model.terms import RowTerm, TermPart, numbers_read, parts_of
from pymc_subsample.model.trace import RowTrace, coupled_term, traced
from pymc_subsample.model.verification import (
    called,
    check_batches,
    check_sizes,
    check_start,
    warn_about_wrapped,
)
from pymc_subsample.rows import Rows as RowsOnDisk
from pymc_subsample.rows import Several
from pymc_subsample.rows.row_store import glimpse
from pymc_subsample.validation import warn


class TallModel(Evaluation):
    """A model whose log-likelihood is a sum over rows.

    The log posterior is ``logprior(theta) + sum_i loglik_i(phi(theta))``, where theta is the
    vector of all value variables (PyMC's unconstrained space, PyMC's order, Jacobians in the
    prior) and phi are the parameter-only quantities that meet a row column, after any transform.

    Parameters
    ----------
    model : pymc.Model
        Any model with conditionally independent rows. `pm.Minibatch` is undone: the full data
        behind it are the rows. Data are read now: a later `pm.set_data` needs a new `TallModel`.
    likelihood : sequence of str or Variable, optional
        Observed variables and potentials to subsample; they may have different numbers of rows.
        Default: all that have one log-likelihood per row, few rows (1% of the most) apart. A sum
        over a vector at the end of a potential is taken off.
    dim, initial_point, data
        As steps take them. Prior and rows are checked at the initial point.
    binary : sequence of str, optional
        Names of value variables that are 0 or 1 and will be sampled one element at a time. There
        may be as many of them as rows, as long as rows gather them by an index; the checks of the
        batch graph draw them at random.
    scales : dict of int to str, optional
        On which of `scales.SCALES` rows see parameters, by their numbers in phi_graphs.
    lift : bool, default True
        Take products of effects and scales before rows see them; without, nothing but
        `loglik_as_written` is there.

    Attributes
    ----------
    phi_size : int
        Length of phi.
    whole : list of Whole
        What is evaluated in full.

    Raises
    ------
    TallModelError
        If the rows cannot be found or are not independent; names the variable and the Op.
    """

    def __init__(
        self,
        model: pm.Model,
        likelihood: Sequence[str | Variable] | None = None,
        dim: str | None = None,
        binary: Sequence[str] = (),
        initial_point: Mapping[str, np.ndarray] | None = None,
        data: RowsOnDisk | Sequence[RowsOnDisk] | Several | None = None,
        *,
        scales: Mapping[int, str] = MappingProxyType({}),
        lift: bool = True,
    ) -> None:
        self.binary, self._scales = tuple(binary), {k: SCALES[v] for k, v in scales.items()}
        plain = partial(TallModel, model, likelihood, dim, binary, initial_point, data, lift=False)
        written = partial(TallModel, model, dim=dim, binary=binary, initial_point=initial_point)
        order = [v.name for v in model.value_vars]
        with without_c():
            self.initial_point = _started(model.initial_point(), initial_point or {})
        model = full_data_model(model)
        refused: dict[str, TallModelError] = {}
        if data is None:
            model = sets_side_by_side(model, apart=likelihood is None, refused=refused)
        refuse_missing(model)
        self.model = model
        self.value_vars = sorted(model.value_vars, key=lambda v: order.index(v.name))
        self.discrete = [v.name for v in model.discrete_value_vars]
        self.lay_out({v.name: self.initial_point[v.name] for v in self.value_vars})
        self.theta = pt.tensor("theta", dtype="float64", shape=(self.size,))
        given = None if data is None else binding.require_rows(data)
        self.bound = {} if given is None else binding.bound(model, given)
        # What takes the place of the model's data: columns on disk, or few rows in memory.
        self._placed = binding.placed(self.bound)
        checked = not lift or (given is not None and given.checked)
        if self.bound and not checked:
            columns = {str(v.name): column for v, column in self.bound.items()}
            refuse_other_levels(model, [*model.basic_RVs, *model.potentials], columns)
            sample = silently(written, likelihood=likelihood)
            if given is not None and not given.complete:
                sample_leakage.refuse_unbound(sample, self.bound)
            binding.refuse_other_rows(self.bound)

        terms = row_terms(model, likelihood)
        with with_densities():
            try:
                graphs = model.logp(vars=list(terms.values()), sum=False)
                prior = model.logp(vars=model.free_RVs) if model.free_RVs else pt.constant(0.0)
            except ValueError as error:
                if "shape" not in str(error).lower():
                    raise
                raise unfitting(model, terms, error) from error
        try:
            concrete = concretize(
                [*graphs, prior], self.value_vars, self.initial_point, self._placed
            )
        except ValueError as error:
            if self.bound:
                raise sample_leakage.misfit(self.bound, error) from error
            raise unfitting(model, terms, error) from error
        self._arrays, self._values = concrete.arrays, concrete.values
        self.roots = concrete.roots
        try:
            all_rows = self._read(concrete.outputs, terms, likelihood, dim, plain if lift else None)
        except ReadsAllRows as error:
            raise sample_leakage.refusal(error, self.roots) from None
        except TallModelError as error:
            if not refused:
                raise
            raise TallModelError(" ".join(map(str, [*refused.values(), error]))) from None
        if checked:
            return
        check_sizes(self)
        warn_about_wrapped(self)
        lengths = set(np.diff(self.rows.starts).tolist())
        for negative in negative_codes(concrete, lengths, model):
            warn(negative)
        check_start(self, self.loglik_as_written)
        check_batches(self, self.loglik_as_written, all_rows, self._values, self._arrays)
        if self.bound:
            if sample.likelihood != self.likelihood:
                sample = silently(written, likelihood=self.likelihood)
            sample_leakage.refuse_disagreement(sample, self)

    def _read(
        self,
        outputs: Sequence[Variable],
        terms: Mapping[str, Variable],
        likelihood: Sequence[str | Variable] | None,
        dim: str | None,
        plain: Callable[[], "TallModel"] | None,
    ) -> Variable:
        """Lay out prior, rows and columns of graphs; return the log-likelihood of all rows.

        `plain` makes the model without `lift`; None: this is it.
        """
        model = self.model
        outputs = followed(outputs, self._values, self._arrays, self.initial_point)
        outputs = select_in_data(outputs, self._arrays, self._values)
        [*graphs, prior], checks = split_checks(outputs)

        potentials = {v.name for v in model.potentials}
        parts = [
            part
            for name, graph in zip(terms, graphs, strict=True)
            for part in (parts_of(name, graph) if name in potentials else [TermPart(name, graph)])
        ]
        # A condition that is not lifted as well would let rows see what they need not.
        graphs = moved = [*(part.graph for part in parts), *checks]
        if plain is not None:
            moved = lifted(graphs, depends_on(graphs, self._values), self._arrays)
        # What checks compare with must not have gone through what they check.
        changed = any(new is not old for new, old in zip(moved, graphs, strict=True))
        self._plain = plain() if changed and plain is not None else None
        graphs, conditions = moved[: len(parts)], moved[len(parts) :]
        parts = [replace(part, graph=g) for part, g in zip(parts, graphs, strict=True)]
        checks = dict(zip(conditions, checks.values(), strict=True))
        dependent = depends_on([*graphs, prior, *conditions], self._values)
        cost = partial(numbers_read, dependent=dependent, arrays=self._arrays)
        found, whole = find_rows(model, parts, likelihood, dim, cost)
        rvs = {
            v: model.values_to_rvs[x] for v, x in zip(self._values, self.value_vars, strict=True)
        }
        trace = RowTrace(lambda v: v not in dependent, row_number_test(self._arrays))
        trace, kinds, others = traced(trace, found, rvs, self.binary, dependent)
        self.whole = [replace(w, numbers=cost(w.graph)) for w in [*whole, *others]]
        sample_leakage.refuse_in_full(self.whole, self._arrays, self.roots)
        self.likelihood = tuple(dict.fromkeys(r.name for rows in kinds.values() for r in rows))
        self.n_rows = sum(kinds)
        guards, conditions = sort_checks(
            checks, trace, dependent, self._arrays, kinds, partial(owner_of_check, model)
        )
        graphs = [*(r.graph for rows in kinds.values() for r in rows), *(g for g, _, _ in guards)]
        try:
            batch = batch_graph(graphs, trace, dependent, self._arrays)
        except CoupledRows as error:
            raise error.refusal(coupled_term(error, kinds)) from None
        logprior = sum((w.graph.sum() for w in self.whole), prior)
        for condition in conditions:
            logprior = pt.switch(condition, logprior, -np.inf)
        batch = on_scales(through_fewer(batch, [*self._values], self._arrays), self._scales)
        self._place_parameters(batch, logprior)
        self._place_columns(batch, trace.axes, kinds, guards)
        self._functions = {}
        return pt.concatenate(per_row(graphs, kinds, guards))

    def _place_parameters(self, batch: BatchGraph, logprior: Variable) -> None:
        """Lay the parameters out in one vector phi and express phi and the prior in theta."""
        for new, old in batch.parameters.items():
            if None in new.type.shape:
                raise TallModelError(
                    f"The length of parameter {old.name or old!s} is not known before sampling; "
                    "give it a fixed shape."
                )
        slices, self.phi_size = consecutive([new.type.shape for new in batch.parameters])
        self.phi_slices = dict(zip(batch.parameters, slices, strict=True))
        self.value_graphs = [
            self.theta[place].reshape(value.type.shape).astype(value.type.dtype)
            for value, place in zip(self._values, self.slices, strict=True)
        ]
        outputs = [*batch.parameters.values(), logprior]
        *self.phi_graphs, self.logprior_graph = self._of_theta(outputs, self._values, self._arrays)

    def _place_columns(
        self,
        batch: BatchGraph,
        axes: dict[Variable, int],
        kinds: dict[int, list[RowTerm]],
        guards: list[tuple[Variable, int, int]],
    ) -> None:
        """Find the raw columns on which the batch graph's data depend, and join kinds of rows."""
        arrays = dict(self._arrays)
        old = list(batch.columns.values())
        columns = column_graph(old, [axes[v] for v in old], arrays)
        derived = dict(zip(batch.columns, columns.outputs, strict=True))
        self.read_by_rows = [v for v in ancestors(old) if v in self.roots]
        roots = {v: self.roots.get(old) for v, old in columns.columns.items()}
        if self.bound:
            sample_leakage.refuse_others(self.bound, roots, columns.axes, kinds)
        values = {v: arrays[root] for v, root in columns.columns.items()}
        (
            self.batch, self._as_written, self.rows, self.raw, self.raw_axes, self.derived, members
        ) = stored(batch, derived, values, columns.axes, kinds, guards)  # fmt: skip
        self.raw_roots = [{k: roots[v] for k, v in own.items()} for own in members]

    @property
    def described(self) -> str:
        """What is subsampled, and what is evaluated in full."""
        if not self.whole:
            return self.rows.counted
        read = {w.name for w in self.whole if w.numbers}
        said = [
            f"{w.name!r} ({w.why}; reads {w.numbers:,} numbers)" if w.numbers
            else f"{w.name!r} (reads no data)"
            for w in self.whole if w.numbers or w.name not in read
        ]  # fmt: skip
        return f"{self.rows.counted}; in full at every gradient: {', '.join(dict.fromkeys(said))}"

    def over_theta(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Return graphs of the model's random variables as graphs of theta."""
        graphs = self.model.replace_rvs_by_values(list(graphs))
        concrete = concretize(graphs, self.value_vars, self.initial_point, self._placed)
        outputs, _ = split_checks(concrete.outputs)
        return self._of_theta(outputs, concrete.values, concrete.arrays)

    def _of_theta(
        self,
        outputs: Sequence[Variable],
        values: Sequence[Variable],
        arrays: Mapping[Variable, np.ndarray],
    ) -> list[Variable]:
        memo = dict(zip(values, self.value_graphs, strict=True))
        return [graph.astype("float64") for graph in frozen(outputs, arrays, memo)]

    def glimpses(self) -> dict[str, bytes]:
        """Return a digest of the content of each array of the model, by its name or shape."""
        found: dict[str, bytes] = {}
        for var, array in self._arrays.items():
            name = called(var, array.shape)
            seen = array.glimpse() if on_disk(array) else glimpse(array)
            found[name] = found.get(name, b"") + seen
        return found


def silently(make: Callable[..., TallModel], **given: Any) -> TallModel:
    """Make a model whose warnings another one repeats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make(**given)


def _started(
    start: dict[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    for name, value in given.items():
        if name not in start:
            raise ValueError(
                f"initial_point holds {name!r}, which is not a value variable of the model. Those "
                f"are {list(start)}."
            )
        old, new = np.asarray(start[name]), np.asarray(value)
        if new.shape != old.shape:
            raise ValueError(
                f"initial_point[{name!r}] has shape {new.shape}; the variable has {old.shape}."
            )
        start[name] = new.astype(old.dtype)
        if np.any(start[name] != new) and old.dtype.kind in "iu":
            raise ValueError(f"initial_point[{name!r}] must be whole, got {new}.")
    return start
