"""PyMC's step methods of this package: one chain that runs any sampler."""

import copyreg
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from operator import methodcaller
from time import thread_time
from types import MappingProxyType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pymc as pm
import xarray as xr
from pymc.blocking import PointType, StatsType
from pymc.step_methods.compound import BlockedStep
from pymc.step_methods.state import DataClassState, WithSamplingState

from pymc_subsample.chain import announcing, arguments, end_of_chain, guards, integrating, variables
from pymc_subsample.chain.ahead import Ahead
from pymc_subsample.chain.connection import CONNECTED, connect
from pymc_subsample.chain.method import Method, named_alike
from pymc_subsample.chain.model_form import Form
from pymc_subsample.chain.modes import number_of_chain
from pymc_subsample.chain.notices import Unsaid
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.sampler import STATISTIC, Sampler, Statistics
from pymc_subsample.chain.setup import Preparation
from pymc_subsample.chain.signatures import complete
from pymc_subsample.chain.theta_layout import ThetaLayout
from pymc_subsample.chain.tuning import ProposalTuning, Tuning
from pymc_subsample.diagnostics import checks
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.modes import ModeSearch
from pymc_subsample.expansion.reference import Reference, no_sums
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.kernels.model import Sums
from pymc_subsample.model import TallModel
from pymc_subsample.model.discovery import chosen_names
from pymc_subsample.rows import Rows
from pymc_subsample.units.sampled import Units

_PROTOCOL = 4  # Of pickle, the first for objects of any size.
# What belongs to a chain in this process.
_OWN = ("seen", "thread", "left", "ahead")


class ChainStep(BlockedStep):
    """A step method that runs a sampler of a model whose rows are subsampled.

    Its subclasses say which one: they name a record and a method, and take its arguments.

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

    # What subclasses name: what there is to know of their sampler, and what it does in a chain.
    sampler: ClassVar[Sampler]
    method: ClassVar[Method]
    stats_dtypes_shapes: ClassVar[Statistics]  # For PyMC, from the record.
    rules: ClassVar[Sequence[Rule]]

    # Made from the model by `connection.connect`: functions for the compiled transition, and the
    # elements of theta that move, among others.
    tall: TallModel
    expansion: Expansion
    compiled: Any
    active: np.ndarray
    layout: ThetaLayout
    n_rows: int
    observed: tuple[str, ...]
    asked_order: int | str
    seen: dict[str, Any]  # What the model's data were when it was connected.

    # Of the set-up. Local variables that are integrated out, if there are some, and the model that
    # is left.
    units: Units | None = None
    sampled_model: pm.Model
    centring: Mapping[str, np.ndarray] = MappingProxyType({})
    control_variate_order: int | None
    prepared: Preparation | None = None  # None where there is no reference.
    seconds_to_reference = 0.0  # What the part of it took that steps of one model share.
    unsaid: Unsaid | None = None  # Said in a run, of a set-up that `advise` made.

    # Of a chain. Which of the modes that the set-up found it starts in, and where it began, once it
    # has; whether the next draw is its first.
    mode: int = 0
    began = ""
    start_at_reference = False
    tune: bool
    draws_left: int
    temperature: float = 1.0
    reference: Reference | None = None
    row_rng: np.random.Generator
    record: Any
    tuning: Tuning | ProposalTuning | None = None
    # Its thread, the values that its last draw left behind, and that draw in coordinates of the
    # chain's own, where it has some.
    thread: threading.Thread | None = None
    left: np.ndarray | None = None
    own: np.ndarray | None = None

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
        reference: "Mapping[str, Any] | ChainStep | xr.DataTree | None" = None,
        reparameterize: bool = True,
        integrate: str | Sequence[str] | bool = "auto",
        passes: Any = None,
        rng: int | np.random.Generator | None = None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ) -> None:
        self.set_up_since = thread_time()
        self.given_reference: Mapping[str, Any] | None = None
        self.earlier: Mapping[str, Any] | None = None
        of_run = isinstance(reference, ChainStep | xr.DataTree)
        if not of_run:
            variables.given_reference(reference)
        arguments.only_numba(compile_kwargs)
        self.made_by = arguments.passes(passes)
        self.rng = arguments.generator(rng)
        self.row_rng = self.rng.spawn(1)[0]
        model = arguments.model_in_context(model, f"create {type(self).__name__}")
        binary = self.method.binary
        with doing("integrating local variables out"):
            self.units = integrating.integrated(
                model, integrate, type(self).__name__,
                vars=vars, observed=observed, dim=dim, data=data,
            )  # fmt: skip
        self.sampled_model = model if self.units is None else self.units.marginal
        chosen = variables.binary_vars if binary else variables.continuous_vars
        self.vars = chosen(vars, self.model)
        if self.units is not None:
            integrating.declare_units(self)
            if not of_run:
                reference = self.units.without(reference)
                initial_point = self.units.without(initial_point)
        if of_run:  # of which these are kept, and not the run itself
            self.earlier = reference = variables.earlier(self.sampled_model, reference)
        else:
            self.given_reference = reference
        if reference is not None:
            variables.refuse_other_variables(self.sampled_model, reference, earlier=of_run)
        self.form = Form(arguments.truth("reparameterize", reparameterize))
        self.rows_of: dict[str, Any] = {
            "observed": chosen_names(observed) or None,
            "dim": arguments.text("dim", dim, "a dimension"),
            "initial_point": arguments.initial_point(initial_point),
            "data": data,
        } | ({"binary": self.names} if binary else {})

    def __init_subclass__(cls, shares: Callable | None = None, **kwargs: Any) -> None:
        """Declare what the record says, complete arguments; `pickle` by way of cloudpickle.

        Arguments that `shares` takes, a function or by default the constructor above, are shown as
        the class's own.
        """
        super().__init_subclass__(**kwargs)
        cls.rules, cls.stats_dtypes_shapes = cls.sampler.rules, cls.sampler.statistics
        cls._state_class = cls.method.state
        complete(cls, shares)
        copyreg.pickle(cls, lambda step: (pickle.loads, (cloudpickle.dumps(step),)))
        cloudpickle.Pickler.dispatch_table[cls] = methodcaller("__reduce_ex__", _PROTOCOL)

    @property
    def names(self) -> list[str]:
        """Names of the value variables that the chain moves."""
        moved = {v.name for v in self.sampled_model.value_vars}
        return [v.name for v in self.vars if v.name in moved]

    @property
    def model(self) -> pm.Model:
        """The model that is sampled; a step that was unpickled has a copy of its own."""
        return self.sampled_model if self.units is None else self.units.model

    @property
    def home(self) -> Preparation:
        """What was prepared at the mode in which this chain starts."""
        assert self.prepared is not None
        return self.prepared.at_modes[self.mode]

    @property
    def search(self) -> ModeSearch | None:
        """The search for other modes, if there was one."""
        return None if self.prepared is None else self.prepared.search

    @property
    def reference_asked_for(self) -> bool:
        """Whether a reference was given, by its values or by an earlier run."""
        return self.given_reference is not None or self.earlier is not None

    @property
    def fingerprint(self) -> str:
        """Identifies rows and columns, so that a state is not continued on other ones."""
        return f"{self.tall.rows.fingerprint}{self.form.digest}"

    def reference_values(self) -> dict[str, np.ndarray]:
        """Return untransformed values of the free variables at the reference."""
        if (at := self.reference) is None:
            raise TypeError(f"This {type(self).__name__} has no reference to take over.")
        free = self.tall.model.free_RVs
        values = numpy_function([self.tall.theta], self.tall.over_theta(free))
        found = values(self.expansion.values(at.theta))
        return {v.name: np.asarray(x) for v, x in zip(free, found, strict=True)}

    def sums(self) -> Sums:
        """Return the sums of the control variates."""
        if self.reference is None:
            return no_sums(self.tall.phi_size)
        return self.reference.sums(self.control_variate_order or 0)

    def _refuse_changes(self) -> None:
        guards.refuse_changes(self, self.seen, guards.contents(self.model, self.tall))

    def setup_chain(self, rng: np.random.Generator, tune: int, draws: int) -> None:
        """Reset all that belongs to one chain; PyMC calls this right before it starts."""
        self._refuse_changes()
        if self.draws_left and self.thread is not None and self.thread.is_alive():
            guards.refuse_other_thread(self, self.thread)
        self.left, self.thread, self.own = None, threading.current_thread(), None
        self.ahead = Ahead()
        super().setup_chain(rng, tune, draws)
        integrating.begin(self)
        modes = len(self.prepared.at_modes) if tune and self.prepared is not None else 1
        self.mode = number_of_chain(self.rng) % modes
        self.row_rng = self.rng.spawn(1)[0]
        self.begin(tune, draws)

    @cached_property
    def ahead(self) -> Ahead:
        """Draws that are made and not handed out."""
        return Ahead()

    def reset_tuning(self) -> None:
        """Start again whatever adapts."""
        if self.method.resets:
            self.ahead.undo(self)
            tuned = int(self.tune) if self.tuning is None else self.tuning.total
            self.begin(tuned, self.draws_left)

    def begin(self, tune: int, draws: int) -> None:
        """Start a chain, or what a set-up leaves of one."""
        self.tune, self.began = tune > 0, ""
        self.draws_left = draws
        self.reference = None if self.prepared is None else self.home.reference
        asked = tune > 0 or self.reference_asked_for
        self.start_at_reference = asked and self.prepared is not None
        self.method.begin(self, tune, draws)

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Return the next draw, from a point of value variables, and its statistics."""
        guards.refuse_other_thread(self, self.thread)
        return self.ahead.next(self, point)

    @property
    def left_alone(self) -> int:
        """How many draws there are to make before anything but a compiled transition is due.

        The chain's last one is made alone: its checks may take long, and somebody may not wait.
        """
        alone = len(self.layout.own) == len(self.sampled_model.value_vars)
        ahead = alone and not self.tune and self.method.steady(self)
        return max(1, self.draws_left - 1) if ahead else 1

    def make(self, point: PointType, size: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Make some draws, one after the other.

        Returns vectors of values, shape (size, d), and statistics: arrays of shape (size,), or what
        the draws share. The last draw of a chain is made alone.
        """
        method = self.method
        thetas, infos = method.transitions(self, method.enter(self, point), size)
        values, infos["volume"] = self.expansion.written(thetas)
        reported = named_alike(self.stats_dtypes_shapes, infos)
        stats = reported | method.statistics(self, infos) | self._unjudged | {"tune": self.tune}
        if self.tune:
            info = {name: x[0] for name, x in infos.items()}
            stats["warning"] = method.adapt(self, thetas[0], info)
        else:
            method.watch(self, thetas, infos)
            self.draws_left -= size
            if self.draws_left == 0:
                stats |= self.judged()
        # The last draw: values of the variables, and the chain's vector.
        self.left = values[-1][self.active] if self.thread is not None else None
        self.own = None if self.expansion.coordinates is None else thetas[-1].copy()
        return values, stats

    def judged(self) -> dict[str, Any]:
        """Check a finished chain: statistics of its last draw, and the warning with it."""
        end_of_chain.confirm_crossings(self)
        found = end_of_chain.with_causes(
            self, [*self.method.check(self), *end_of_chain.check_tails(self)]
        )
        found += integrating.check_units(self)
        self.thread = None
        return end_of_chain.recorded(self, found)

    @cached_property
    def _unjudged(self) -> dict[str, Any]:
        """Statistics that draws share, but for the checks of the chain's last."""
        shared = {"n_rows": self.n_rows, STATISTIC: self.sampler.number}
        shared |= integrating.unit_statistics(self.units)
        return checks.record(self.rules, None) | shared | {"warning": None}

    # States and pickles

    @property
    def sampling_state(self) -> Any:
        """Everything the next draw depends on."""
        self.ahead.undo(self)
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state: DataClassState) -> None:
        self.ahead.forget()
        WithSamplingState.sampling_state.fset(self, state)
        self.left = None
        self.method.forget(self)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_changes()
        integrating.begin(self)
        self.ahead.undo(self)
        anew = {*CONNECTED, *self.method.anew, *_OWN}
        return {name: value for name, value in vars(self).items() if name not in anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        connect(self)
        self.seen = guards.contents(self.model, self.tall)

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list, dict[str, list[int]]]:
        announcing.announce(self)
        return announcing.columns(self.sampler, n_chains)

    @classmethod
    def _make_progressbar_update_functions(cls) -> tuple[Callable]:
        return (partial(announcing.shown, cls.sampler),)
