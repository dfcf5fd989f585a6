"""What all step methods share: the model they sample, and points read into and out of theta."""

import logging
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep
from pymc.step_methods.state import WithSamplingState
from pytensor.gradient import NullTypeGradError
from pytensor.graph.utils import MethodNotDefined
from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.compile import building_graphs
from pymc_subsample.control_variates import Expansion, expand, verify_gradient
from pymc_subsample.control_variates.curvature import MAX_CURVATURE
from pymc_subsample.diagnostics import checks
from pymc_subsample.diagnostics.checks import Check, Rule
from pymc_subsample.likelihood import TallModel, TallModelError
from pymc_subsample.steps import arguments
from pymc_subsample.storage import refuse_beyond_memory

_log = logging.getLogger("pymc.subsample")


class SubsampledStep(BlockedStep):
    """A step method on a model whose rows are subsampled.

    Attributes
    ----------
    n_rows : int
        Rows of the data.
    observed : tuple of str
        Names of the subsampled variables.
    """

    # Made anew from the model wherever a step is unpickled.
    _connected: ClassVar[tuple[str, ...]] = (
        "_tall", "_expansion", "_addresses", "_active", "_read", "_moved",
    )  # fmt: skip
    # What to do about a log-likelihood that has no gradient.
    _without_gradient = "Use a Metropolis-Hastings step with control_variate_order=None."
    # What the progress bar shows: title and format by statistic.
    _shown: ClassVar[dict[str, tuple[str, str]]]
    # Of the checks at the end of a chain.
    _rules: ClassVar[Sequence[Rule]]
    # Of the model, as the step's compiled transition takes them.
    _functions: tuple[str, ...]

    def __new__(cls, *args, **kwargs):
        """Say what to do where there is no model; PyMC's own constructor asks for it first."""
        arguments.model_in_context(kwargs.get("model"), cls.__name__)
        return super().__new__(cls, *args, **kwargs)

    def _attach(
        self,
        model: pm.Model,
        vars: Sequence,
        observed,
        dim: str | None,
        order: int | str,
        initial_point: PointType | None = None,
    ):
        """Trace and compile a model for control variates of some order, or of order "auto"."""
        self._model = model
        self.vars = vars
        self._rows_of: dict[str, Any] = {
            "observed": observed,
            "dim": dim,
            "initial_point": initial_point,
        }
        self._order = order
        self._connect()
        self._seen = _contents(model)
        if len(self._tall.rows.names) > 1 or self._tall.whole:
            _log.info(f"{type(self).__name__} subsamples {self._tall.described}")

    def _connect(self):
        with building_graphs():
            tall = self._tall = TallModel(self._model, **self._rows_of)
            self._check_vars()
            with differentiated(tall, self._without_gradient):
                self._expansion: Expansion = self._expand(tall)
                self._addresses = self._expansion.addresses(*self._functions)
                if "gradient" in self._functions:
                    verify_gradient(tall, self._expansion)
        self.n_rows = tall.n_rows
        self.observed = tall.observed
        self._active = self._places([v.name for v in self.vars])
        names = {v.name for v in self.vars}
        layout = list(zip(tall.names, tall.slices, tall.shapes, strict=True))
        self._read = [(name, part) for name, part, _ in layout]
        self._moved = [entry for entry in layout if entry[0] in names]

    def _expand(self, tall: TallModel) -> Expansion:
        """Compile control variates of the order asked for; "auto" is the highest that there is."""
        expansion = expand(tall, 2 if isinstance(self._order, str) else self._order)
        if expansion.order <= expansion.highest_order:
            return expansion
        if isinstance(self._order, str):
            return expand(tall, expansion.highest_order)
        size = tall.phi_size
        raise TallModelError(
            f"{size:,} parameters meet the data in this model. control_variate_order=2 needs the "
            "sum of their curvatures over all rows, a matrix that is limited to "
            f"{MAX_CURVATURE:,} parameters unless groups leave most of it zero. Use "
            f"control_variate_order=1, which takes about {size**2 // 2:,} rows per draw, or sample "
            "this model with pm.NUTS or nutpie."
        )

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Refuse a model that is no longer the one the step was made for."""
        self._refuse_changes()
        super().setup_chain(rng, tune, draws)

    def _refuse_changes(self):
        seen, now = self._seen, _contents(self._model)
        changed = [name for name in {**seen, **now} if seen.get(name) is not now.get(name)]
        if changed:
            raise ValueError(
                f"{', '.join(map(repr, changed))} changed after this {type(self).__name__} was "
                "made, which read model and data then. Make a new step for the model as it is."
            )

    def _check_vars(self):
        """Refuse variables that this step cannot sample."""
        arguments.refuse_discrete(self.vars, self._model)

    @property
    def fingerprint(self) -> str:
        """Identifies the rows, so that a state is not continued on other data."""
        return self._tall.rows.fingerprint

    def _places(self, names) -> np.ndarray:
        """Positions in theta of value variables."""
        parts = zip(self._tall.names, self._tall.slices, strict=True)
        return np.concatenate([np.r_[part] for name, part in parts if name in names]).astype(int)

    def _continuous(self) -> np.ndarray:
        return self._places(set(self._tall.names) - set(self._tall.discrete))

    def _theta(self, point: PointType) -> np.ndarray:
        """Read a point of value variables into theta, shape (d,)."""
        theta = np.empty(self._tall.size)
        for name, part in self._read:
            theta[part] = np.ravel(point[name])
        return theta

    def _point(self, point: PointType, theta: np.ndarray) -> PointType:
        """Return `point` with this step's variables as in theta."""
        new = dict(point)
        for name, part, shape in self._moved:
            new[name] = theta[part].reshape(shape)
        return new

    def _judge(self, stats: dict[str, Any], found: list[Check] | None):
        """Record a finished chain's checks in the statistics of its last draw, and warn of them."""
        if found is None:
            stats |= self._unjudged
            stats["warning"] = None
            return
        prepared = getattr(self, "_prepared", None)
        if prepared is not None:
            found = [*found, checks.check_modes(int(prepared.other_mode is not None))]
        stats |= checks.record(self._rules, found)
        said = checks.warning(type(self).__name__, found)
        stats["warning"] = said and SamplerWarning(WarningType.BAD_PARAMS, said, "warn")

    @cached_property
    def _unjudged(self) -> dict[str, float]:
        """Statistics of a draw that is not the chain's last."""
        return checks.record(self._rules, None)

    def __getstate__(self):
        self._refuse_changes()
        state = self.__dict__.copy()
        for connected in (*self._connected, "_seen"):
            state.pop(connected, None)
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._connect()
        self._seen = _contents(self._model)

    @property
    def sampling_state(self):
        """Everything the next draw depends on."""
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state):
        WithSamplingState.sampling_state.fset(self, state)
        self._forget()

    def _forget(self):
        """Drop what is cached of the state."""

    # Progress bar

    def _progressbar_config(self, n_chains=1):
        # Called once in a run, before its chains begin and wherever they run.
        refuse_beyond_memory(self._model)
        columns = [
            TextColumn(f"{{task.fields[{name}]:{form}}}", table_column=Column(title, ratio=1))
            for name, (title, form) in self._shown.items()
        ]
        return columns, {name: [0] * n_chains for name in self._shown}

    @classmethod
    def _make_progressbar_update_functions(cls):
        def update(stats):
            shown = {name: stats[name] for name in cls._shown}
            return shown | {"failing": bool(stats.get("divergences", 0))}

        return (update,)


@contextmanager
def differentiated(tall: TallModel, advice: str):
    """Say which log-likelihood it is that PyTensor cannot differentiate."""
    try:
        yield
    except (NullTypeGradError, MethodNotDefined, NotImplementedError) as error:
        raise TallModelError(
            f"PyTensor cannot differentiate the log-likelihood of "
            f"{', '.join(map(repr, tall.observed))} ({type(error).__name__}: {error}). {advice}"
        ) from error


def _contents(model: pm.Model) -> dict[str, Any]:
    """Variables of a model and the arrays behind its data, by name."""
    variables = [*model.basic_RVs, *model.potentials]
    data = {v.name: v.get_value(borrow=True) for v in model.data_vars if hasattr(v, "get_value")}
    return {v.name: v for v in variables} | data
