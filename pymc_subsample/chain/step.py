"""What all step methods share: the model they sample, and what is prepared for their chains."""

import copyreg
import logging
import pickle
from collections.abc import Collection, Mapping, Sequence
from operator import methodcaller
from time import thread_time
from types import MappingProxyType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pymc as pm
import xarray as xr
from pymc.blocking import PointType
from pymc.step_methods.compound import BlockedStep

from pymc_subsample.chain import arguments, guards, variables
from pymc_subsample.chain.form import Form, expansion_of_order
from pymc_subsample.chain.integrating import declare_units, integrated
from pymc_subsample.chain.modes import starts
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.setup import NEARLY, Preparation, Problem
from pymc_subsample.chain.signatures import complete
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.archive import Archive
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.modes import ModeSearch
from pymc_subsample.expansion.reference import Reference, no_sums
from pymc_subsample.expansion.undefined import without_curvature
from pymc_subsample.graph.concrete import numpy_function
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.kernels.model import Sums
from pymc_subsample.model import TallModel
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.differentiation import WITHOUT_GRADIENT, differentiated
from pymc_subsample.model.discovery import chosen_names
from pymc_subsample.model.identity import archive
from pymc_subsample.model.verification import warn_about_whole_terms
from pymc_subsample.rows import Rows
from pymc_subsample.rows.samples import warn_of_samples
from pymc_subsample.units.sampled import Units

_log = logging.getLogger("pymc.subsample")

_PROTOCOL = 4


class SubsampledStep(BlockedStep):
    """A step method on a model whose rows are subsampled.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full every
        time.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    data : Rows or sequence of Rows, optional
        Rows on disk. The model is written on a sample of them, `Rows.sample`, as `pm.Data` by the
        names of columns; these take its place, and all rows are sampled. One for each length where
        rows have several.
    reference : dict, step or DataTree, optional
        Expansion point: untransformed values by variable name, for every free variable; or an
        earlier run of the model, by its idata (posterior means; in hierarchies those of the scales,
        and the mode given these) or its step. Then neither the mode nor other modes are searched
        for, unless the run is far from it, which is said. Values are used as given, those of a run
        may move in tuning. Default: the posterior mode, found automatically.
    reparameterize : bool, default True
        Whether the chain moves effects of groups, and other variables whose scale depends on
        parameters, in coordinates of its own, between their centred and non-centred forms, however
        the model writes them; and coefficients of nearly collinear columns, as of raw powers of a
        year, by the QR reparameterisation, where sums over rows lose their digits otherwise. Draws
        are in the model's own variables either way.
    integrate : "auto", False, str or sequence of str, default "auto"
        Local variables to integrate out, all of one grouping: effects of customers, patients or
        rows, each with few rows, which would be as many parameters. The chain moves the others, on
        their marginal posterior, and subsamples units, all rows of a level, in place of rows; local
        variables are drawn, exactly, given each draw that is stored. "auto": those of the grouping
        that has many levels of few rows, unless `vars`, `observed`, `dim` or `data` are given. See
        `marginalize` and `effects`.
    passes : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Who reads all rows where set-up, tuning and checks do: a number of threads of this process,
        or the workers of an executor. Results do not depend on it. Default: as many threads as
        there are processors. Chains that run in processes of their own use one thread each.
    rng : int or Generator, optional
        Random numbers of the set-up; a chain's own come from `pm.sample(random_seed=...)`.
        Default: a fixed seed, so that equal chains follow from equal seeds.
    initial_point : dict, optional
        Values of value variables where the search for the reference starts. Default: the model's
        initial point.
    compile_kwargs : dict, optional
        Not used by this step, which always compiles with numba: anything but
        ``{"mode": "NUMBA"}`` raises.
    blocked : bool, default True
        Must be true: the variables are sampled jointly.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled; the message names the variable and the Op.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.

    Attributes
    ----------
    n_rows : int
        Rows of the data.
    observed : tuple of str
        Names of the subsampled variables.
    centring : dict of str to ndarray
        Of variables that the chain moves in coordinates of its own: the weight of the centred
        form, from 0 to 1, for each element or, in the order of components and units, each
        component of a vector of effects.
    """

    # Made anew from the model wherever a step is unpickled.
    _connected: ClassVar[tuple[str, ...]] = (
        "tall", "expansion", "_compiled", "active", "_read", "_moved",
    )  # fmt: skip
    # What to do about a log-likelihood that has no gradient.
    _without_gradient = "Use a Metropolis-Hastings step with control_variate_order=None."
    # Whether it moves by gradients, and needs them to say how the log-likelihood changes.
    _by_gradients = True
    # Whether what expansions leave is estimated, and not bounded, which wants them plain.
    _estimates = True
    # Of the model, as the step's compiled transition takes them.
    _functions: tuple[str | None, ...]
    centring: Mapping[str, np.ndarray] = MappingProxyType({})
    reference: Reference | None = None
    control_variate_order: int | None
    # None where there is no reference.
    prepared: Preparation | None = None
    # Which of the modes that the set-up found this chain starts in.
    mode: int = 0
    # Local variables that are integrated out, where there are some.
    _units: Units | None = None
    # What the part of the set-up took that steps of one model share.
    seconds_to_reference = 0.0

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse what PyMC's own constructor looks at first: model, variables and blocks."""
        given = [*args, kwargs.get("vars")][0]
        if isinstance(given, pm.Model):
            raise TypeError(f"vars is a pymc.Model: give it by name, {cls.__name__}(model=...).")
        model = arguments.model_in_context(kwargs.get("model"), f"create {cls.__name__}")
        if given is not None:
            variables.chosen_vars(given, model)
        arguments.blocked(kwargs.get("blocked", True), cls.__name__)
        for name in ("passes", "reference"):  # PyMC pickles all that is left with the step
            kwargs.pop(name, None)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        data: Rows | Sequence[Rows] | None = None,
        reference: "Mapping[str, Any] | SubsampledStep | xr.DataTree | None" = None,
        reparameterize: bool = True,
        integrate: str | Sequence[str] | bool = "auto",
        passes: Any = None,
        rng: int | np.random.Generator | None = None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ) -> None:
        self._began = thread_time()
        self._given_reference: Mapping[str, Any] | None = None
        self._earlier: Mapping[str, Any] | None = None
        of_run = isinstance(reference, SubsampledStep | xr.DataTree)
        if not of_run:
            variables.given_reference(reference)
        arguments.only_numba(compile_kwargs)
        self._made_by = arguments.passes(passes)
        self.rng = arguments.generator(rng)
        model = arguments.model_in_context(model, f"create {type(self).__name__}")
        with doing("integrating local variables out"):
            self._units = integrated(
                model, integrate, type(self).__name__,
                vars=vars, observed=observed, dim=dim, data=data,
            )  # fmt: skip
        self._model = model if self._units is None else self._units.marginal
        self.vars = self._chosen(vars)
        if self._units is not None:
            declare_units(self)
        if self._units is not None and not of_run:
            reference = self._units.without(reference)
            initial_point = self._units.without(initial_point)
        if of_run:  # of which these are kept, and not the run itself
            self._earlier = reference = variables.earlier(self._model, reference)
        else:
            self._given_reference = reference
        if reference is not None:
            variables.refuse_other_variables(self._model, reference, earlier=of_run)
        self._form = Form(arguments.truth("reparameterize", reparameterize))
        self._rows_of: dict[str, Any] = {
            "observed": chosen_names(observed) or None,
            "dim": arguments.text("dim", dim, "a dimension"),
            "initial_point": arguments.initial_point(initial_point),
            "data": data,
        }

    def _chosen(self, vars: Sequence | None) -> list:
        """Return the value variables to sample."""
        return variables.continuous_vars(vars, self.model)

    def _attach(self, order: int | str | None) -> None:
        """Trace and compile the model for control variates of some order, or of order "auto"."""
        self._order = 0 if order is None else order
        self._connect()
        if self._by_gradients:
            self._refuse_steps(self.expansion.as_written())
        if self.expansion.rough is not None:
            _log.info(
                f"{type(self).__name__}: control variates of order {self.expansion.order}, which "
                "take more rows than those of order 2: PyTensor has no second derivatives of "
                f"{', '.join(map(repr, self.tall.observed))} ({self.expansion.rough})"
            )
        self._seen = guards.contents(self.model, self.tall)
        if (data := self._rows_of["data"]) is not None:
            # Copies in other processes need not read all rows again.
            self._rows_of["data"] = require_rows(data).as_checked()
        else:
            warn_of_samples(self.tall.rows.columns, type(self).__name__)
        warn_about_whole_terms(self.tall.whole, self.n_rows)
        if len(self.tall.rows.names) > 1 or self.tall.whole:
            _log.info(f"{type(self).__name__} subsamples {self.tall.described}")

    def _refuse_steps(self, expansion: Expansion) -> None:
        """Refuse a log-likelihood that is flat between steps, or whose gradient is wrong."""
        with (
            doing("looking for jumps of the log-likelihood"),
            building_graphs(),
            differentiated(self.tall, self._without_gradient),
        ):
            Continuity(self.tall, expansion, self.active).require(WITHOUT_GRADIENT)

    def _connect(self) -> None:
        with building_graphs(), self._made_by.in_use():
            tall = self.tall = TallModel(self._model, **self._rows_of, scales=self._form.scales)
            self._check_vars()
            with (
                doing("compiling the log-likelihood"),
                differentiated(tall, self._without_gradient),
            ):
                self.expansion: Expansion = self._form.expanded(
                    tall, self._names, self._expand, gradient="gradient" in self._functions
                )
                self._compiled = self.expansion.model(*self._functions)
        self.n_rows = tall.n_rows
        self.observed = tall.observed
        self.active, own = self._places(self._names), set(self._names)
        layout = list(zip(tall.names, tall.slices, tall.shapes, strict=True))
        self._read = [(name, part) for name, part, _ in layout]
        self._moved = [entry for entry in layout if entry[0] in own]

    def _expand(self, tall: TallModel) -> Expansion:
        return expansion_of_order(tall, self._order)

    @property
    def _names(self) -> list[str]:
        """Names of the value variables to sample."""
        return [v.name for v in self.vars]

    @property
    def _home(self) -> Preparation:
        """What was prepared at the mode in which this chain starts."""
        assert self.prepared is not None
        return self.prepared.at_modes[self.mode]

    @property
    def _search(self) -> ModeSearch | None:
        return None if self.prepared is None else self.prepared.search

    def _refuse_changes(self) -> None:
        guards.refuse_changes(self, self._seen, guards.contents(self.model, self.tall))

    def _check_vars(self) -> None:
        """Refuse variables that this step cannot sample."""
        variables.refuse_discrete(self.vars, self.model)
        variables.refuse_own_steps(self.vars, self.model)

    @property
    def fingerprint(self) -> str:
        """Identifies rows and columns, so that a state is not continued on other ones."""
        return f"{self.tall.rows.fingerprint}{self._form.digest}"

    @property
    def model(self) -> pm.Model:
        """The model that is sampled; a step that was unpickled has a copy of its own."""
        return self._model if self._units is None else self._units.model

    def _places(self, names: Collection[str]) -> np.ndarray:
        """Positions in theta of value variables."""
        parts = zip(self.tall.names, self.tall.slices, strict=True)
        found = [np.r_[part] for name, part in parts if name in names]
        return np.concatenate([np.zeros(0, dtype=int), *found])

    def _continuous(self) -> np.ndarray:
        return self._places(set(self.tall.names) - set(self.tall.discrete))

    # A point of value variables is read into theta, PyMC's vector, shape (d,). What the chain
    # moves, and everything else here calls theta, is that or `Coordinates` of its own.

    def points(self, point: PointType, values: np.ndarray) -> list[PointType]:
        """Return `point` with this step's variables as in vectors of values, shape (n, d)."""
        n = len(values)
        columns = {name: values[:, part].reshape(n, *shape) for name, part, shape in self._moved}
        points = [{**point, **{name: x[i, ...] for name, x in columns.items()}} for i in range(n)]
        if self._units is None:
            return points
        return self._units.completed(points, self.tune, self.rng)

    def _taylor(self) -> Expansion:
        """Return the expansion in which the reference is sought."""
        return self.expansion

    def _problem(self, temperature: float, kind: int) -> Problem:
        """Return what a set-up needs to know, where the reference was given or not."""
        given: dict[str, Any] = {"temperature": temperature, "kind": kind}
        reference = self._given_reference if self._earlier is None else self._earlier
        if reference is not None:
            theta = variables.reference_theta(self._model, self.tall, reference)
            given["given"] = self.expansion.from_values(theta)
            given["earlier"] = self._earlier is not None
        sums = archive(self.tall, "sums")
        if sums is not None and temperature == 1.0:
            given["archive"] = Archive(*sums, kind)
        start, free = starts(self._model, self.tall), self._continuous()
        return Problem(self._taylor(), start, self.active, free, self.rng, **given)

    @property
    def _reference_asked_for(self) -> bool:
        """Whether a reference was given, by its values or by an earlier run."""
        return self._given_reference is not None or self._earlier is not None

    def reference_values(self) -> dict[str, np.ndarray]:
        """Return untransformed values of the free variables at the reference."""
        if (at := self.reference) is None:
            raise TypeError(f"This {type(self).__name__} has no reference to take over.")
        free = self.tall.model.free_RVs
        values = numpy_function([self.tall.theta], self.tall.over_theta(free))
        found = values(self.expansion.values(at.theta))
        return {v.name: np.asarray(x) for v, x in zip(free, found, strict=True)}

    def _found(
        self, temperature: float = 1.0, kind: int = PERTURBED
    ) -> tuple[Problem, Preparation]:
        """Find the reference point, or take the one that was given.

        Where expansions leave much, rows see parameters on better scales, and where sums over rows
        have hardly enough digits, nearly collinear columns are taken apart, if there are some and
        that helps: the problem is made anew. So it is with control variates of order 1 where some
        rows have no second derivatives and no predictors either.
        """
        problem, prepared = first = self._solved(temperature, kind)
        while self._integrated_anew(prepared):
            problem, prepared = first = self._solved(temperature, kind)
        if self._lowered(prepared.reference):
            problem, prepared = first = self._solved(temperature, kind)
        if self._estimates and self._form.rescaled(self.tall, self.expansion, *first):
            self._connect()
            problem, prepared = first = self._solved(temperature, kind)
        many = len(problem.free) > MAX_DENSE
        lost = problem.without_digits(prepared, NEARLY)
        if (many or len(lost)) and self._take_apart(first if many else None):
            problem, prepared = self._solved(temperature, kind)
            lost = problem.without_digits(prepared)
            if len(lost):
                self._form.apart, (problem, prepared) = None, first
                self._connect()
        if len(lost):
            lost = problem.without_digits(prepared)
            variables.refuse_rounded(self.tall, lost, own=self._form.own)
        self.centring = self._centring(prepared.reference.theta)
        if self.centring:
            _log.info("%s: in coordinates of its own: %s", type(self).__name__, self._moving())
        self.seconds_to_reference = thread_time() - self._began
        return problem, prepared

    def _solved(self, temperature: float, kind: int) -> tuple[Problem, Preparation]:
        with differentiated(self.tall, self._without_gradient):
            problem = self._problem(temperature, kind)
            return problem, problem.prepare()

    def _integrated_anew(self, prepared: Preparation) -> bool:
        """Take finer integrals over local variables where coarse ones may make other modes."""
        search = prepared.search
        if self._units is None or search is None or len(search.modes) < 2:
            return False
        values = [self.expansion.values(mode.theta) for mode in search.modes]
        points = [self.tall.unravel(x) for x in values]
        finer = self._units.finer(points, type(self).__name__)
        if finer is None:
            return False
        self._units, self._model = finer, finer.marginal
        self._connect()
        self._seen = guards.contents(self.model, self.tall)
        return True

    def _lowered(self, at: Reference) -> bool:
        """Take control variates of order 1 if expansions of rows are all of one order.

        Those in linear predictors are of order 1 in the rows that need it.
        """
        expansion = self.expansion
        if not at.flat or expansion.linear or expansion.order < 2:
            return False
        if self._order != "auto":
            raise without_curvature(expansion, at)
        self._order = 1
        self._connect()
        self.control_variate_order = 1
        return True

    def _take_apart(self, found: tuple[Problem, Preparation] | None) -> bool:
        """Take columns apart, if there are some, and their sums lose digits by themselves."""
        apart = self._form.collinear(self.tall, self.expansion, self._names)
        if apart is None:
            return False
        if found is not None:
            problem, prepared = found
            if not len(problem.without_digits(prepared, NEARLY, apart.places)):
                return False
        self._form.apart = apart
        self._connect()
        return True

    def _sums(self) -> Sums:
        if self.reference is None:
            return no_sums(self.tall.phi_size)
        return self.reference.sums(self.control_variate_order or 0)

    def _centring(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        effects = self.expansion.effects
        if effects is None:
            return {}
        rvs = {v.name: self.tall.model.values_to_rvs[v].name for v in self.tall.value_vars}
        return {rvs[name]: weights for name, weights in effects.centring(theta).items()}

    def _moving(self) -> str:
        said = []
        for name, weights in self.centring.items():
            span = [f"{100 * weight:.0f}%" for weight in (weights.min(), weights.max())]
            said.append(f"{name} {' to '.join(dict.fromkeys(span))} centred")
        return ", ".join(said)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Complete what is shared, announce long set-ups; `pickle` by way of cloudpickle."""
        super().__init_subclass__(**kwargs)
        complete(cls)
        copyreg.pickle(cls, lambda step: (pickle.loads, (cloudpickle.dumps(step),)))
        cloudpickle.Pickler.dispatch_table[cls] = methodcaller("__reduce_ex__", _PROTOCOL)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()
        self._seen = guards.contents(self.model, self.tall)
