"""PyMC's step methods of this package: one chain that runs any sampler."""

import copyreg
import inspect
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from time import thread_time
from types import MappingProxyType
from typing import Any, ClassVar, Unpack

import cloudpickle
import numpy as np
import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.step_methods.compound import BlockedStep
from pymc.step_methods.state import DataClassState, WithSamplingState
from pytensor.graph.basic import Variable

from pymc_subsample.chain import arguments, guards, integrating, notices, variables
from pymc_subsample.chain.draw_buffer import Ahead
from pymc_subsample.chain.method import Method
from pymc_subsample.chain.model_compilation import CONNECTED, Form, connect
from pymc_subsample.chain.multimodality import number_of_chain
from pymc_subsample.chain.notices import Unsaid
from pymc_subsample.chain.nuts_trial import OnAllRows
from pymc_subsample.chain.pm_sample import (
    calling_sample,
    is_asked_by_pymc,
    refuse_settings_of_nuts,
)
from pymc_subsample.chain.points import ThetaLayout
from pymc_subsample.chain.sampler import Sampler, Statistics
from pymc_subsample.chain.setup import Preparation
from pymc_subsample.chain.shared_arguments import SharedContinuous, complete, read_arguments
from pymc_subsample.chain.tuning import ProposalTuning, Tuning
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.modes import ModeSearch
from pymc_subsample.expansion.reference import Reference, no_sums
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.kernels.model import Sums
from pymc_subsample.model import TallModel
from pymc_subsample.rows.workers import Workers
from pymc_subsample.units.sampled import Units

_PROTOCOL = 4  # Of pickle, the first for objects of any size.
# What belongs to a chain in this process.
_OWN = ("seen", "thread", "left", "ahead", "full", "like")


class _Class(type(BlockedStep)):  # type: ignore[misc]
    """Of step methods: says, where `pm.sample` refuses the class, what to write in its place."""

    def __format__(cls, spec: str) -> str:
        if calling_sample() is None:
            return super().__format__(spec)
        return f"{cls.__name__}, a class: write step={cls.sampler.called}(), with parentheses"


class ChainStep(BlockedStep, metaclass=_Class):
    """A step method that runs a sampler of a model whose rows are subsampled.

    Its subclasses say which one: they name a record and a method, and take its arguments.

    Attributes
    ----------
    n_rows : int
        Rows of the data.
    likelihood : tuple of str
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

    # Of its arguments, by `read_arguments`: processor time when they were, who reads all rows, the
    # reference as it was given or that of an earlier run, and what names the rows of the model.
    set_up_since: float
    workers: Workers
    rng: np.random.Generator
    given_reference: Mapping[str, Any] | None
    earlier: Mapping[str, Any] | None
    # Whose set-up is shared, until it has been, and seconds that the rest of it may take.
    like: "ChainStep | None" = None
    patience = np.inf
    form: Form
    rows_of: dict[str, Any]
    # The function that the user called for it, if not its class, and the arguments of that.
    asked_by: tuple[str, tuple[str, ...]] | None = None

    # Made from the model by `connection.connect`: functions for the compiled transition, and the
    # elements of theta that move, among others.
    tall: TallModel
    expansion: Expansion
    compiled: Any
    active: np.ndarray
    layout: ThetaLayout
    n_rows: int
    likelihood: tuple[str, ...]
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
    full: OnAllRows | None = None  # NUTS on all rows, where it was projected.
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
        """Refuse what PyMC's own constructor looks at first: model and variables."""
        given = [*args, kwargs.get("vars")][0]
        if isinstance(given, pm.Model):
            raise TypeError(f"vars is a pymc.Model: give it by name, {cls.__name__}(model=...).")
        model = arguments.model_of_step(kwargs.get("model"), cls.__name__)
        if given is not None:
            variables.chosen_vars(given, model)
        else:  # which PyMC would take for a variable
            args = args[1:]
            kwargs.pop("vars", None)
        # PyMC pickles all that is left with the step, and makes a step of each variable of itself.
        for name in ("workers", "reference", "blocked"):
            kwargs.pop(name, None)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, vars: Sequence | None = None, **given: Unpack[SharedContinuous]) -> None:
        self.set_up_since = thread_time()
        read_arguments(self, vars, **given)

    def __init_subclass__(cls, shares: Callable | None = None, **kwargs: Any) -> None:
        """Declare what the record says, complete arguments; `pickle` by way of cloudpickle.

        Arguments that `shares` takes, a function or by default the constructor above, are shown as
        the class's own.
        """
        super().__init_subclass__(**kwargs)
        cls.stats_dtypes_shapes = cls.sampler.statistics
        cls._state_class = cls.method.state
        complete(cls, shares)
        copyreg.pickle(cls, lambda step: (pickle.loads, (cloudpickle.dumps(step),)))
        cloudpickle.Pickler.dispatch_table[cls] = methodcaller("__reduce_ex__", _PROTOCOL)

    @property
    def vars(self) -> list[Variable]:
        """Value variables that the step samples, which PyMC asks for before all else in a run."""
        if is_asked_by_pymc():
            name, known = type(self).__name__, tuple(inspect.signature(type(self)).parameters)
            asked_by = self.sampler.called
            if self.asked_by is not None:
                asked_by, known = self.asked_by
                name = f"the step of {asked_by}()"
            refuse_settings_of_nuts(name, asked_by, known, self._vars)
        return self._vars

    @vars.setter
    def vars(self, chosen: list[Variable]) -> None:
        self._vars = chosen

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            rvs = {v.name: rv.name for v, rv in self.sampled_model.values_to_rvs.items()}
            of, chose = ", ".join(rvs[v] for v in self.names), self.sampler.described(self)
            return f"<{name} of {of}: {integrating.sampled(self)}{chose and '; '}{chose}>"
        except AttributeError:
            return f"<{name}, which is not set up>"

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

    def setup_chain(self, rng: np.random.Generator, tune: int, draws: int) -> None:
        """Reset all that belongs to one chain; PyMC calls this right before it starts."""
        guards.refuse_changes(self)
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
        guards.refuse_changes(self)
        integrating.begin(self)
        self.ahead.undo(self)
        anew = {*CONNECTED, *self.method.anew, *_OWN}
        return {name: value for name, value in vars(self).items() if name not in anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        connect(self)
        self.seen = guards.contents(self.model, self.tall)

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list, dict[str, list[int]]]:
        notices.announce(self)
        return self.sampler.columns(n_chains)

    @classmethod
    def _make_progressbar_update_functions(cls) -> tuple[Callable]:
        return (cls.sampler.shown_of,)


complete(ChainStep, read_arguments)
