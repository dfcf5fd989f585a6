"""What a step does in a chain: draws, the state between them, and the checks at its end."""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.state import DataClassState, WithSamplingState
from pymc.util import is_transformed_name
from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.chain import guards
from pymc_subsample.chain.ahead import Ahead
from pymc_subsample.chain.calling import given_start, refuse_init
from pymc_subsample.chain.declarations import SHOWN, Statistics, named_alike
from pymc_subsample.chain.ends import with_causes
from pymc_subsample.chain.integrating import check_units, say_costs, store_as_called
from pymc_subsample.chain.memory import hint_for_bambi, refuse_beyond_memory, warn_of_rows
from pymc_subsample.chain.modes import number_of_chain
from pymc_subsample.chain.notices import Notice, Unsaid, begin_run
from pymc_subsample.chain.step import SubsampledStep
from pymc_subsample.chain.tuning import ProposalTuning, Tuning
from pymc_subsample.diagnostics import checks, samplers
from pymc_subsample.diagnostics.checks import Check, Rule
from pymc_subsample.diagnostics.integrals import INTEGRATED, UNIT_RULES
from pymc_subsample.diagnostics.scores import log_densities
from pymc_subsample.diagnostics.tails import TAIL, check_tails
from pymc_subsample.expansion.factors import scaled
from pymc_subsample.model.binding import quoted
from pymc_subsample.model.support import impossible

# How many times as wide as the posterior chains start around the reference.
_WIDER = 1.5
# Points at which they may start, around one that may be at an edge of the support: at a distance
# that is halved after each few of them.
_TRIES, _AT_EACH = 200, 20
# How far out they start at most, over the distance that they are confined to.
_WITHIN = 0.9


class ChainStep(SubsampledStep):
    """A step method that makes draws."""

    tune: bool
    # Statistics in the progress bar.
    _shown: ClassVar[Sequence[str]]
    # Of the checks at the end of a chain.
    rules: ClassVar[Sequence[Rule]]
    stats_dtypes_shapes: ClassVar[Statistics]
    # Within a chain: its thread, and the values that its last draw left behind.
    _thread: threading.Thread | None = None
    _left: np.ndarray | None = None
    # The last draw in coordinates of the chain's own, where it has some.
    own: np.ndarray | None = None
    # Whether the next draw is the chain's first.
    start_at_reference = False
    # Where the chain began, once it has.
    began = ""
    draws_left: int
    temperature: float
    record: Any
    tuning: Tuning | ProposalTuning
    # Of a set-up that `advise` made.
    unsaid: Unsaid | None = None

    def setup_chain(self, rng: np.random.Generator, tune: int, draws: int) -> None:
        """Reset all that belongs to one chain; PyMC calls this right before it starts."""
        self._refuse_changes()
        if self.draws_left and self._thread is not None and self._thread.is_alive():
            guards.refuse_other_thread(self, self._thread)
        self._left, self._thread, self.own = None, threading.current_thread(), None
        self._ahead = Ahead()
        super().setup_chain(rng, tune, draws)
        self._begin_units()
        modes = len(self.prepared.at_modes) if tune and self.prepared is not None else 1
        self.mode = number_of_chain(self.rng) % modes
        self.row_rng = self.rng.spawn(1)[0]
        self._begin(tune, draws)

    @cached_property
    def _ahead(self) -> Ahead:
        return Ahead()

    def reset_tuning(self) -> None:
        """Start again whatever adapts."""
        self._ahead.undo(self)
        self._begin(self.tuning.total, self.draws_left)

    def _begin(self, tune: int, draws: int) -> None:
        """Start a chain, or what a set-up leaves of one."""
        self.tune, self.began = tune > 0, ""
        self.draws_left = draws
        self.reference = None if self.prepared is None else self._home.reference
        asked = tune > 0 or self._reference_asked_for
        self.start_at_reference = asked and self.prepared is not None

    def _theta(self, point: PointType) -> np.ndarray:
        """Read a point of value variables into the chain's vector."""
        theta = np.empty(self.tall.size)
        for name, part in self._read:
            theta[part] = np.ravel(point[name])
        left = None if self._thread is None else self._left
        guards.refuse_company(self, left, theta[self.active])
        like = None if self.reference is None else self.reference.theta
        return self.expansion.from_values(theta, like, self.own)

    def _start(
        self,
        theta: np.ndarray,
        point: PointType,
        factor: np.ndarray,
        inside: bool = False,
        most: float = np.inf,
    ) -> bool:
        """Move a chain's first theta to the reference, unless `initvals` say where to start.

        With `inside` whatever they say, and less than `most` away, in units of the factor.
        """
        first, self.start_at_reference = self.start_at_reference, False
        if not self.began:
            given = given_start(self, point)
            self.began = "at initvals" if given else "at the model's initial point"
        if not first or self.reference is None or (not inside and given_start(self, point)):
            return False
        start = theta.copy()
        for k in range(_TRIES):
            z = _WIDER * self.rng.standard_normal(len(self.active))
            z *= min(1.0, _WITHIN * most / np.linalg.norm(z)) / 2 ** (k // _AT_EACH)
            start[self.active] = self.reference.theta[self.active] + scaled(factor, z[None])[0]
            if np.isfinite(self._logprior(start)):
                theta[:], self.began = start, "around the reference"
                return True
        if not np.isfinite(self._logprior(theta)):
            values = self.tall.unravel(self.expansion.values(theta))
            at = {v.name: values.get(v.name, point.get(v.name)) for v in self._model.value_vars}
            raise ValueError(
                f"{type(self).__name__}: the chain has nowhere to start: the log prior is not "
                f"finite at {_TRIES} points around the reference, nor at the given point: "
                f"{impossible(self._model, at, self.tall.observed)}. Give initvals= inside the "
                "support."
            )
        return False

    def _logprior(self, theta: np.ndarray) -> float:
        return self.expansion.parameters(theta)[1]

    def _leave(self, theta: np.ndarray, values: np.ndarray) -> None:
        """Remember the last draw: the chain's vector and the values of the variables."""
        self._left = values[self.active] if self._thread is not None else None
        self.own = None if self.expansion.coordinates is None else theta.copy()

    def _settled(self, theta: np.ndarray) -> np.ndarray:
        """Return theta with the mean of recent draws of tuning where it is continuous."""
        center, free = theta.copy(), self._continuous()
        center[free] = self.tuning.recent()[:, free].mean(axis=0)
        return center

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Return the next draw, from a point of value variables, and its statistics."""
        guards.refuse_other_thread(self, self._thread)
        return self._ahead.next(self, point)

    @property
    def left_alone(self) -> int:
        """How many draws there are to make before anything but a compiled transition is due.

        The chain's last one is made alone: its checks may take long, and somebody may not wait.
        """
        alone = len(self._moved) == len(self._model.value_vars)
        ahead = alone and self._steady and not self.tune
        return max(1, self.draws_left - 1) if ahead else 1

    def make(self, point: PointType, size: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Make some draws, one after the other.

        Returns vectors of values, shape (size, d), and statistics: arrays of shape (size,), or what
        the draws share. The last draw of a chain is made alone.
        """
        thetas, infos = self._transitions(self._entered(point), size)
        values, infos["volume"] = self.expansion.written(thetas)
        reported = named_alike(self.stats_dtypes_shapes, infos)
        stats = reported | self._statistics(infos) | self._unjudged | {"tune": self.tune}
        if self.tune:
            notice = self._adapt(thetas[0], {name: x[0] for name, x in infos.items()})
            stats["warning"] = notice
        else:
            self._watch(thetas, infos)
            self.draws_left -= size
            if self.draws_left == 0:
                stats |= self._judged()
        self._leave(thetas[-1], values[-1])
        return values, stats

    # What subclasses fill in.

    # Whether successive draws need nothing from Python.
    _steady = True

    def _entered(self, point: PointType) -> np.ndarray:
        """Read a point into the chain's vector, or start elsewhere."""
        return self._theta(point)

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Make draws, shape (size, d): these, and what transitions report, (size, ...).

        In tuning there is one.
        """
        raise NotImplementedError

    def _statistics(self, infos: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return statistics of n draws: arrays of shape (n,), or what the draws share.

        Those that transitions report by the same names are left out.
        """
        raise NotImplementedError

    def _divergences(self, diverging: np.ndarray) -> Any:
        """Return how many draws had diverged by each of the next ones, none of them in tuning."""
        return 0 if self.tune else self.record.divergences + np.cumsum(diverging > 0)

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> Notice | None:
        """Record a draw of tuning, and change what it asks for; return what is to be said."""

    def _watch(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        """Record draws."""
        raise NotImplementedError

    def _check(self) -> list[Check]:
        """Check, after its last draw, whether the chain can be trusted."""
        raise NotImplementedError

    def _check_tails(self) -> list[Check]:
        """Look how the density falls beyond draws that are very far out, if there are some."""
        if TAIL not in self.rules or self.temperature != 1.0:
            return []
        density = partial(log_densities, self.expansion, temperature=self.temperature)
        kept = np.array(self.record.kept)
        return check_tails(density, self.n_rows, kept, self._untransformed(), self._called)

    def _untransformed(self) -> np.ndarray:
        """Return the elements that are the model's variables, without a transformation."""
        effects, moved = self.expansion.effects, self._moved
        own = {} if effects is None else effects.blocks
        names = [name for name, *_ in moved if not is_transformed_name(name) and name not in own]
        places = self._places(names)
        return places if effects is None else np.setdiff1d(places, effects.bent)

    def _called(self, element: int) -> str:
        """Name an element of theta by its variable."""
        for name, part, shape in self._moved:
            if part.start <= element < part.stop:
                index = ", ".join(map(str, np.unravel_index(element - part.start, shape)))
                return f"{quoted(name)}[{index}]" if shape else quoted(name)
        raise IndexError(element)

    def _judged(self) -> dict[str, Any]:
        """Check a finished chain: statistics of its last draw, and the warning with it."""
        found = with_causes(self, [*self._check(), *self._check_tails()])
        if self._units is not None:
            found += check_units(self)
        search = self._search
        self._thread = None
        if search is not None:
            found = [*found, checks.check_modes(search)]
        said = checks.warning(type(self).__name__, found)
        warning = said and SamplerWarning(WarningType.BAD_PARAMS, said, "warn")
        return checks.record(self._rules, found, search) | {"warning": warning}

    @property
    def _rules(self) -> list[Rule]:
        """Those of the sampler, and of what it has integrated out."""
        return [*self.rules, *(() if self._units is None else UNIT_RULES)]

    @cached_property
    def _unjudged(self) -> dict[str, Any]:
        """Statistics that draws share, but for the checks of the chain's last."""
        shared = {"n_rows": self.n_rows, samplers.STATISTIC: samplers.number_of(type(self))}
        shared |= {} if self._units is None else {INTEGRATED: self._units.number}
        return checks.record(self._rules, None) | shared | {"warning": None}

    @property
    def sampling_state(self) -> Any:
        """Everything the next draw depends on."""
        self._ahead.undo(self)
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state: DataClassState) -> None:
        self._ahead.forget()
        WithSamplingState.sampling_state.fset(self, state)
        self._left = None
        self._forget()

    def _forget(self) -> None:
        """Drop what is cached of the state."""

    def _begin_units(self) -> None:
        """Take over what the run that calls, if one does, stores of local variables."""
        if self._units is not None:
            store_as_called(self._units)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_changes()
        self._begin_units()
        self._ahead.undo(self)
        anew = {*self._connected, "_seen", "_thread", "_left", "_ahead"}
        return {name: value for name, value in vars(self).items() if name not in anew}

    # Progress bar

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list, dict[str, list[int]]]:
        # Called once in a run, before its chains begin and wherever they run.
        begin_run()
        if self.unsaid is not None:
            self.unsaid.say()
        refuse_init(type(self).__name__)
        units = self._units
        refuse_beyond_memory(self.model, () if units is None else units.names)
        warn_of_rows(self.model, self.tall, () if units is None else units.lengths)
        hint_for_bambi(self.model)
        if self._units is not None:
            say_costs(self)
        columns = [
            TextColumn(f"{{task.fields[{name}]:{form}}}", table_column=Column(title, ratio=1))
            for name in self._shown
            for title, form in [SHOWN[name]]
        ]
        return columns, {name: [0] * n_chains for name in self._shown}

    @classmethod
    def _make_progressbar_update_functions(cls) -> tuple[Callable]:
        def update(stats: dict[str, Any]) -> dict[str, Any]:
            shown = {name: stats[name] for name in cls._shown}
            return shown | {"failing": bool(stats.get("divergences", 0))}

        return (update,)
