"""A model as a step samples it: without its local variables, which are drawn afterwards."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import ReadsAllRows, on_disk
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.discovery import imputed
from pymc_subsample.model.own_steps import own_steps
from pymc_subsample.rows import Rows
from pymc_subsample.units.accuracy import MOST, TOLERABLE, Marginal, error_at
from pymc_subsample.units.choosing import chosen, may_pay, paying_one, several_pay, would_pay
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.drawing import LocalDraws, generator_at
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.marginal import described, inaccurate, without_local
from pymc_subsample.units.paths import is_path, path_apart, refuse_long_paths
from pymc_subsample.units.quantities import axes_of_levels
from pymc_subsample.units.reading import Reading, read, read_bound, warn_of_codes
from pymc_subsample.units.states import is_discrete
from pymc_subsample.units.stored_tables import StoredTables
from pymc_subsample.units.unread import UnreadDraws, without_unread
from pymc_subsample.validation import name_list

_log = logging.getLogger("pymc.subsample")

# Of the units among which references are looked for: as `marginalize` without `rng`.
_SEED = 0

Point = dict[str, np.ndarray]


class Units:
    """A model, `marginal` without its local variables, and draws of these.

    `integrals` are those that were made, if any; variables that nothing observed depends on,
    `unread`, are left out without.
    """

    def __init__(
        self,
        model: pm.Model,
        marginal: pm.Model,
        integrals: Marginal | None,
        unread: Sequence[str] = (),
        data: Rows | None = None,
        stored: StoredTables | None = None,
    ) -> None:
        self.model, self.marginal = model, marginal
        self._data, self._stored = data, stored
        self._integrals, self._unread = integrals, list(unread)
        own = [] if integrals is None else integrals.functions.graphs.grouping.names
        self.names = [*own, *unread]
        # By the names of these and of functions of them: which axis has the levels.
        self.axes = {} if integrals is None else axes_of_levels(integrals.functions.graphs)
        self.axes |= {name: axis for name, axis in self._longest() if name not in self.axes}
        # Whether draws of local variables are stored, as far as is known, and those of tuning.
        self.stored, self.tuning = True, False

    def _longest(self) -> Iterator[tuple[str, int]]:
        """Yield the longest axis of other variables that are drawn, and of functions of them."""
        drawn = {self.model[name] for name in self.names}
        for v in [*drawn, *self.model.deterministics]:
            if v.type.ndim and not drawn.isdisjoint(ancestors([v])):
                shape = [n or 0 for n in v.type.shape]
                yield v.name, shape.index(max(shape))

    @property
    def data(self) -> list[Rows] | Rows | None:
        """Rows on disk of the marginal model: tables of units, or those that were given."""
        return self._data if self._stored is None else self._stored.rows

    @property
    def integrates(self) -> bool:
        """Whether there are integrals, and not only variables that are left out without."""
        return self._integrals is not None

    @property
    def approximate(self) -> bool:
        """Whether integrals are by quadrature, and no sums over states, which are exact."""
        return self._integrals is not None and self._integrals.integral.error != 0

    @property
    def of_rows(self) -> bool:
        """Whether rows are subsampled, some with local variables of their own, and not units."""
        return self._integrals is None or self._integrals.functions.graphs.grouping.partial

    @property
    def rows(self) -> int:
        """Number of rows of all units."""
        return 0 if self._integrals is None else int(self._integrals.functions.n_rows.sum())

    def described(self, tables: int) -> str:
        """Say whose levels are subsampled; rows of units are laid out in so many tables."""
        assert self._integrals is not None
        rows = self.rows
        own = " and ".join(self._integrals.functions.graphs.grouping.names)
        if self.of_rows:
            return f"rows ({rows:,} with {own} integrated out)"
        laid_out = f" in {tables} tables" if tables > 1 else ""
        return f"levels of {own} ({rows:,} rows){laid_out}"

    @property
    def sample(self) -> set[Variable]:
        """`pm.Data` of the model that hold a sample of rows on disk."""
        if self._integrals is None:
            return set()
        placed = self._integrals.functions.graphs.reading.placed
        return {v for v, column in placed.items() if on_disk(column)}

    def refuse_changes(self) -> None:
        """Refuse rows on disk that changed since units were made of them."""
        if self._integrals is not None and (runs := self._integrals.functions.graphs.grouping.runs):
            runs.column.store.refuse_changes()

    @property
    def lengths(self) -> set[int]:
        """Numbers of rows of the terms that units are made of."""
        if self._integrals is None:
            return set()
        return {len(index) for index in self._integrals.functions.graphs.grouping.index.values()}

    @property
    def n_rows(self) -> int | None:
        """Rows of all units; None if rows are subsampled."""
        if self._integrals is None or self.of_rows:
            return None
        return self._integrals.functions.graphs.grouping.rows

    @cached_property
    def _local(self) -> LocalDraws | None:
        return None if self._integrals is None else LocalDraws(self._integrals)

    @cached_property
    def _afterwards(self) -> UnreadDraws:
        return UnreadDraws(self.model, self._unread)

    def stores(self, var_names: Sequence[str] | None, *, tuning: bool) -> None:
        """Remember which variables a run stores, None for all, and whether of tuning too."""
        local = {self.model[name] for name in self.names}
        wanted = [v for v in self.model.unobserved_RVs if var_names is None or v.name in var_names]
        self.stored, self.tuning = not local.isdisjoint(ancestors(wanted)), tuning

    def completed(
        self, points: list[Point], tune: bool, rng: np.random.Generator, left: int
    ) -> list[Point]:
        """Return points of value variables with draws of local ones, if these are stored.

        Random numbers follow from what seeded a chain's generator, from the points and from how
        many draws of the chain are `left` after the first of them: a point that repeats gets
        another draw.
        """
        if not self.stored or (tune and not self.tuning):
            return points
        key = rng.bit_generator.seed_seq.generate_state(8).tobytes()
        return [{**x, **self.drawn(x, key, left - k)} for k, x in enumerate(points)]

    def drawn(self, point: Point, key: bytes, number: int) -> dict[str, np.ndarray]:
        """Return a draw of local variables given a point of value variables."""
        found = {} if self._local is None else self._local.at(point, key, number)
        if self._unread:
            values = np.concatenate([np.ravel(x).astype(float) for x in point.values()])
            rng = generator_at(values, key, number, b"unread")
            found |= self._afterwards.at({**point, **found}, rng)
        return found

    def without(self, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return values by the names of variables, or of value variables, without local ones."""
        if not isinstance(values, Mapping):
            return values
        names = [v for n in self.names for v in (n, self.model.rvs_to_values[self.model[n]].name)]
        return {name: value for name, value in values.items() if name not in names}

    def missed(self) -> tuple[float, int]:
        """Return the share of probability that draws of the worst level miss, and the level."""
        local = vars(self).get("_local")
        return (0.0, -1) if local is None else local.missed

    def error(self, points: Sequence[Point]) -> float:
        """Return by how much integrals are off between points of the chain."""
        integrals = self._integrals
        if integrals is None:
            return 0.0
        thetas = np.array([integrals.functions.ravel(dict(point)) for point in points])
        return error_at(integrals, integrals.functions, thetas, np.random.default_rng(0))

    def finer(self, points: Sequence[Point], said: str) -> "Units | None":
        """Return units with twice the nodes if integrals are off between modes of the posterior.

        Nodes that do not serve far from the reference may make a mode of their own there.
        """
        integrals = self._integrals
        if integrals is None:
            return None
        theta = integrals.functions.split(integrals.reference)
        at = {v.name: x for v, x in zip(integrals.functions.values.values(), theta, strict=True)}
        error = self.error([at, *points])
        if not error > TOLERABLE:
            return None
        per_dimension = 2 * integrals.integral.per_dimension
        if per_dimension > MOST:
            raise inaccurate(replace(integrals.integral, error=error), integrals.functions)
        _log.info(
            "%s: integrals over %s are off by %.2g at another mode of the log posterior, and are "
            "computed again with %d nodes per dimension",
            said, " and ".join(integrals.functions.graphs.grouping.names), error, per_dimension,
        )  # fmt: skip
        graphs = integrals.functions.graphs
        reading = read(graphs.reading.model, graphs.reading.placed)
        grouping = chosen(reading, graphs.grouping.names)
        stored = None if self._data is None else StoredTables(self._data.path)
        marginal, integrals = without_local(
            reading, grouping, per_dimension, np.random.default_rng(_SEED), stored
        )
        return Units(self.model, marginal, integrals, self._unread, self._data, stored)

    def __getstate__(self) -> dict[str, Any]:
        drawn = ("_local", "_afterwards")
        return {name: value for name, value in vars(self).items() if name not in drawn}


def units_of(
    model: pm.Model, integrate: str | Sequence[str], said: str, data: Rows | None = None
) -> Units | None:
    """Return a model's units, if their variables are to be integrated out.

    With "auto", those of many levels of few rows each, if integrals over them serve. `data` are
    rows on disk that take the place of those that the model holds.
    """
    began = time.perf_counter()
    whole, (model, unread) = model, without_unread(model)
    if unread:
        sizes = [f"{n} ({int(np.prod(whole[n].shape.eval())):,} values)" for n in unread]
        _log.info(
            "%s: nothing observed depends on %s, so that the integral over them is one: they are "
            "drawn given the others.", said, " and ".join(sizes),
        )  # fmt: skip
    names = name_list("integrate", integrate)
    names = None if names in (None, ["auto"]) else [n for n in names if n not in unread]
    if names is None:
        found = _automatic(model, said, data)
    else:
        if data is not None:
            TallModel(model, data=data)
        reading = read_bound(model, data)
        found = (reading, chosen(reading, names)) if names else None
    unmixed = Units(whole, model, None, unread, data) if unread else None
    if found is None:
        return unmixed
    reading, grouping = found
    warn_of_codes(reading)
    stored = None
    if data is not None:
        if names is None:
            TallModel(model, data=data)
        stored = StoredTables(data.path)
    try:
        marginal, integrals = without_local(
            reading, grouping, None, np.random.default_rng(_SEED), stored
        )
    except TallModelError as error:
        if names is not None or grouping.required:
            raise
        _log.info("%s: not integrated out: %s: %s", said, grouping.described, error)
        return unmixed
    seconds = time.perf_counter() - began
    _log.info("%s: %s, in %.1f s.", said, described(integrals), seconds)
    return Units(whole, marginal, integrals, unread, data, stored)


def _automatic(model: pm.Model, said: str, data: Rows | None) -> tuple[Reading, Grouping] | None:
    if not may_pay(model, None if data is None else len(data)) or own_steps(model):
        return None
    try:
        reading = read_bound(model, data)
        groupings, reasons = find_groupings(reading)
    except (TallModelError, ReadsAllRows):  # of which the step itself has more to say
        return None
    except ValueError:  # of a length of the sample, in a model of rows on disk
        if data is None:
            raise
        return None
    if reading.apart:
        name, reason = next((n, r) for n, r in reasons.items() if reading.apart[0] in r)
        if others := [g for g in groupings if g.pays]:
            raise several_pay([*(g.described for g in others), f"{name!r} (apart on disk)"])
        raise TallModelError(
            f"{name!r} cannot be integrated out of rows on disk: it {reason}. Or give "
            "integrate=False, which samples all of its levels as parameters."
        )
    found = paying_one(reading, groupings)
    for name, column in imputed(model).items():
        if name in reasons:
            raise TallModelError(
                f"The missing values of {column!r} cannot be integrated out: {name!r} "
                f"{reasons[name]}. Let each row read its own value, or that of its level, "
                f"{column}[person]; write columns that depend on each other one by one, "
                "pm.Normal('w', c + d * x, ...); or leave out the rows in which one is missing."
            )
    for name in would_pay(reading, reasons):
        if is_discrete(reading.values[name]):
            rest = [v.name for v in model.free_RVs if not is_discrete(v)]
            raise TallModelError(
                f"{name!r} can neither be sampled by {said} nor integrated out: it "
                f"{reasons[name]}. Or give the others (vars={rest}) and leave {name!r} to another "
                "step method."
            )
        if is_path(reading, name):
            raise path_apart(reading, name, reasons[name])
        _log.info("%s: not integrated out: %r %s", said, name, reasons[name])
    if found is not None:
        refuse_long_paths(reading, found)
    return None if found is None else (reading, found)
