"""Minibatch Metropolis-Hastings as PyMC step methods."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments
from pymc_subsample.chain.competing import warn_of_modes
from pymc_subsample.chain.declarations import statistics
from pymc_subsample.chain.ellipsoid import far_points
from pymc_subsample.chain.guards import row_numbers
from pymc_subsample.chain.sizing import Choice, choose, choose_always
from pymc_subsample.compiled.functions import Compiled, address_of
from pymc_subsample.diagnostics.checks import Check, amount, sentence
from pymc_subsample.diagnostics.overlooked import check_overlooked
from pymc_subsample.diagnostics.scores import log_densities
from pymc_subsample.expansion.estimators import VARIANCE_BOUND
from pymc_subsample.expansion.ranges import exact_step
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.kernels.proposals import Proposing
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.minibatch import kernel as kernel
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.checks import RULES, check_moves
from pymc_subsample.samplers.minibatch.decision_errors import (
    AcceptanceErrors,
    Proposed,
    acceptance_errors,
    metropolis,
)
from pymc_subsample.samplers.minibatch.kernel import INFO, transitions
from pymc_subsample.samplers.minibatch.largest_term import GIVEN_BOUND, Bound
from pymc_subsample.samplers.minibatch.moves import ProposingState, ProposingStep, SharedProposing
from pymc_subsample.samplers.minibatch.proposals import Langevin, require_size

_log = logging.getLogger("pymc.subsample")

_transitions = transitions.get_overload(transitions.signatures[0])

# Of a Langevin proposal's gradient, where its batch size is left open.
_GRADIENT_ROWS = 100
# Numbers that the decisions of a chain's check may read: as many as it has read, within limits.
_DECISION_ROWS = 2_000_000, 200_000_000


class SharedMH(SharedProposing, total=False):
    """Arguments of all steps that decide on growing batches."""

    batch_size: int | None
    control_variate_order: int | str | None


@dataclass_state
class MinibatchMHState(ProposingState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    control_variate_order: int | None = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    always: np.ndarray


class MinibatchMH(ProposingStep):
    """Metropolis-Hastings on growing batches of rows; its subclasses say how it decides.

    Parameters
    ----------
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 100, or all rows
        where there are fewer. With control variates the few rows of the largest residuals are read
        beside it, always.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: their sum over all rows is exact and a batch
        estimates the remainder alone. "auto" is the highest there is; None takes plain batches,
        which needs no gradients and no reference but far more rows.
    """

    _state_class = MinibatchMHState
    _without_gradient = "Use control_variate_order=None, and a proposal without gradients."
    _connected = (*ProposingStep._connected, "_permutation", "_packed")

    rules = RULES
    _shown = ("acceptance_rate", "batch_size", "data_share")
    _default_batch: ClassVar[int] = 100
    # What the test's own error is called among the statistics.
    _error: ClassVar[str] = "test_error"

    @property
    def _by_gradients(self) -> bool:  # type: ignore[override]
        return isinstance(self.proposal, Langevin)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        names = ("accepted", "acceptance_rate", "batch_size", "n_looks", cls._error)
        more = ("loglik_ratio_variance", "scaling", "data_share")
        if "stats_dtypes_shapes" not in vars(cls):
            cls.stats_dtypes_shapes = statistics(RULES, (*names, *more))
        super().__init_subclass__(**kwargs)

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        batch_size: int | None = None,
        control_variate_order: int | str | None = "auto",
        **above: Unpack[SharedProposing],
    ) -> None:
        order = arguments.order(control_variate_order, type(self).__name__, plain=True)
        arguments.optional_batch(batch_size, smallest=2)
        super().__init__(vars, **above)
        if self._reference_asked_for and order is None:
            raise ValueError(
                "reference is the expansion point of the control variates, and "
                "control_variate_order is None. Give one or the other."
            )
        self._form.own &= order is not None
        self._attach(order)
        self.control_variate_order = None if order is None else self.expansion.order
        self.batch_size = arguments.batch_size(batch_size, self.n_rows, self._default_batch)
        require_size(self.proposal, len(self.active), self.n_rows)
        self.row_rng = self.rng.spawn(1)[0]
        self.prepared = self._prepare()
        warn_of_modes(self)
        self._begin(tune=0, draws=0)

    def _prepare(self) -> Choice | None:
        if self.control_variate_order is None:
            return None
        found = self._found(temperature=self.temperature)
        prepared = choose(*found, self.batch_size)
        variance = float(np.max(prepared.moments.variance(self.n_rows, self.temperature)))
        if variance > VARIANCE_BOUND and self.batch_size < self.n_rows:
            todo = ["leave reference=None"] if self._given_reference else []
            todo += ["use control_variate_order=2"] if self.control_variate_order == 1 else []
            todo += ["use control_variate_order=None", "sample this model with pm.sample()"]
            _log.warning(
                f"{type(self).__name__}: the log-likelihood of "
                f"{', '.join(map(repr, self.observed))} cannot be expanded well around the "
                f"reference: even {self.n_rows} rows, as many as there are, leave an estimate of "
                f"it a variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}). "
                + sentence(todo)
            )
        return prepared

    def _connect(self) -> None:
        unused = [] if self._order else ["anchor"]
        unused += [] if isinstance(self.proposal, Langevin) else kernel.GRADIENTS
        names = (*kernel.FUNCTIONS, *kernel.GRADIENTS)
        self._functions = tuple(None if name in unused else name for name in names)
        super()._connect()
        self._permutation = row_numbers(self, self.n_rows, self.observed)

        # What is read always at a reference, which rows of it, and the numbers of the others.
        self._packed: tuple[Reference | None, np.ndarray, np.ndarray, np.ndarray] | None = None

    def _begin(self, tune: int, draws: int) -> None:
        super()._begin(tune, draws)
        home = None if self.prepared is None else self._home
        self.always = home.always if isinstance(home, Choice) else np.zeros(0, dtype=np.int64)

    # The test: what subclasses fill in.

    _test: Compiled

    def _settings(self) -> np.ndarray:
        """Return the numbers of the test for the next draw; see `evidence`."""
        raise NotImplementedError

    def _run(
        self, thetas: np.ndarray, kind: int, given: np.ndarray, log_factor: float, k: int
    ) -> dict[str, np.ndarray]:
        infos, population = np.empty((len(thetas), len(INFO))), self._population()
        batch = getattr(self.proposal, "batch_size", 0) or _GRADIENT_ROWS
        batch = min(batch, len(population.permutation))
        _transitions(
            address_of(self.rng), address_of(self.row_rng), self._compiled, self._sums(),
            Criterion(self._test.address, self._settings()), self._bound(thetas[0], given),
            Proposing(
                kind, self.active, self.tuning.factor, self.scaling, batch, given, log_factor
            ),
            population, thetas, k, infos,
        )  # fmt: skip
        return dict(zip(INFO, infos.T, strict=True))

    def _recentre(self, theta: np.ndarray) -> None:
        """Take another reference, and the rows of the largest residuals around it."""
        before = self.reference
        super()._recentre(theta)
        at = self.reference
        assert at is not None
        far = far_points(PERTURBED, at.theta, self.tuning.factor, self.active, self.rng)
        try:
            residuals = residuals_around(self.expansion, at, far[: len(far) // 2], far)
        except TallModelError:
            self.reference = before  # impossible rows on the way: the end of the chain judges
            return
        self.always, _ = choose_always(PERTURBED, residuals, self.temperature)

    def _population(self) -> kernel.Population:
        at, always = self.reference, self.always
        if self._packed is None or self._packed[0] is not at or self._packed[1] is not always:
            members, exact = self._permutation[:0], self.expansion.take(always)
            if at is not None and len(always):
                members = np.delete(self._permutation, always)
                self.expansion.anchor(at.center, exact)
            self._packed = at, always, members, exact
        others, (_, _, members, exact) = self.n_rows - len(always), self._packed
        return kernel.Population(
            self._permutation[:others], members, self._weight, exact, 1.0 / self.temperature
        )

    @property
    def _weight(self) -> float:
        """Of a row's log-ratio in the terms of a batch."""
        return (self.n_rows - len(self.always)) / self.temperature

    def _bound(self, theta: np.ndarray, given: np.ndarray) -> Bound:
        """Where bounds of the rows' terms come from, for tests that need them."""
        return Bound(GIVEN_BOUND, np.inf, np.zeros((0, 0)))

    def _statistics(self, infos: dict[str, np.ndarray]) -> dict[str, Any]:
        tested, proposed = infos["rows_tested"], infos["rows_proposed"]
        evaluations = 2 * tested + 4 * proposed
        if self.control_variate_order:
            uses = 2 if isinstance(self.proposal, Langevin) else 1
            anchored_before = self.transitions_per_draw * uses * len(self.always)
            evaluations += 2 * (tested + proposed - anchored_before)
        return {
            "n_evaluations": evaluations.astype(int),
            self._error: infos["error"],
            "scaling": self.scaling,
            "data_share": infos["batch_size"] / self.n_rows,
        }

    # After tuning

    # What the test decides with all rows.
    _with_all_rows: Callable = staticmethod(metropolis)

    @property
    def _exact(self) -> bool:
        """Whether reading all rows is what the user asked for."""
        return False

    def _cause(self) -> str:
        """Say why the test reads many rows, where it does."""
        raise NotImplementedError

    def _remedies(self) -> list[str]:
        """Say what makes the test more accurate."""
        raise NotImplementedError

    def _watch(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        share = infos["rows_tested"] / (self.transitions_per_draw * self.n_rows)
        self.record.add(thetas, infos["accepted"], share)

    def _check(self) -> list[Check]:
        errors = None if self._exact else self._measured_errors()
        exact = []
        if errors is not None and self.prepared is not None:
            exact = exact_step(self.expansion, self.prepared.reference)
        found = check_moves(
            self.record,
            errors,
            order=self.control_variate_order or 0,
            exact=self._exact,
            temperature=self.temperature,
            cause=self._cause(),
            remedies=[*self._remedies(), *exact],
        )
        if errors is not None:
            density = partial(log_densities, self.expansion, temperature=self.temperature)
            kept = np.array(self.record.kept)
            found += check_overlooked(density, self.n_rows, kept, self.active)
        if errors is not None and all(check.passed for check in found):
            self._conclude(errors)
        return found

    def _measured_errors(self) -> AcceptanceErrors:
        """Let the test decide about proposals of this chain, at less cost than the chain's."""
        rng = np.random.default_rng(0)
        read = self.record.share * self.n_rows * self.transitions_per_draw
        return acceptance_errors(
            self.expansion,
            self.reference,
            [self._proposed(at, rng) for at in self._pilots],
            order=self.control_variate_order or 0,
            always=self.always,
            temperature=self.temperature,
            test=self._test.address,
            settings=self._settings(),
            exact=self._with_all_rows,
            most_rows=int(np.clip(read, *_DECISION_ROWS)),
            rng=rng,
        )

    def _proposed(self, theta: np.ndarray, rng: np.random.Generator) -> Proposed:
        return Proposed(theta, *self._moved_from(theta, rng))

    def _conclude(self, errors: AcceptanceErrors) -> None:
        """Say what is known of a chain that passed its checks."""
