"""Austerity Gibbs sampling as a PyMC step method."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Unpack

import numpy as np
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.method import ChainState, Method
from pymc_subsample.chain.model_compilation import attach
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.shared_arguments import StepArguments
from pymc_subsample.compiled.functions import Compiled, address_of
from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.gibbs import kernel as kernel
from pymc_subsample.samplers.gibbs.checks import check_updates, memory
from pymc_subsample.samplers.gibbs.conditional_errors import conditional_errors
from pymc_subsample.samplers.gibbs.sampler import AUSTERITY_GIBBS
from pymc_subsample.samplers.gibbs.touching import Touching, check_touching, touching_rows
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.decisions import DECIDE, austerity

_log = logging.getLogger("pymc.subsample")

_sweeps = kernel.sweeps.get_overload(kernel.sweeps.signatures[0])

TEST = Compiled(austerity.decide, DECIDE, None)
# Without control variates no row is anchored.
_FUNCTIONS = tuple(name if name != "anchor" else None for name in kernel.FUNCTIONS)
_SCANS = ("random", "fixed")
# Decisions per update that the check of a chain looks at, and how many updates. A choice: errors
# of probabilities are then good to 1.6%, the root of 1 / 4,000.
_DECISIONS, _UPDATES = 1_000, 32


@dataclass_state
class AusterityGibbsState(ChainState):
    """Everything the next draw depends on. The rows themselves are taken anew from the model."""

    row_rng: np.random.Generator
    batch_size: int = field(metadata={"frozen": True})
    sweeps_per_draw: int = field(metadata={"frozen": True})
    scan: str = field(metadata={"frozen": True})


def _level(step: "AusterityGibbs") -> float:
    return arguments.level("epsilon", step.epsilon, step.record.done)


def _connected(step: "AusterityGibbs") -> None:
    with doing("finding the rows that touch each variable"):
        step.touching = touching_rows(step.tall, step.active)
        wrong = check_touching(step.tall, step.active, step.touching)
    if wrong is not None:
        raise TallModelError(
            f"Element {wrong} of the model's values {step.tall.names} changes rows of "
            f"{', '.join(map(repr, step.likelihood))} that were found not to touch it. Please "
            "report this model; use another step method meanwhile."
        )
    step.permutation = np.arange(step.n_touching.max(), dtype=np.uint32)
    step.center = np.zeros(step.tall.phi_size)


def _begin(step: "AusterityGibbs", tune: int, draws: int) -> None:
    step.record = MoveRecord(draws=draws)


def _statistics(step: "AusterityGibbs", infos: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "data_share": infos["rows_read"] / np.maximum(infos["rows_touching"], 1.0),
        "test_error": infos["error"],
        "n_evaluations": (2 * infos["rows_read"]).astype(int),
    }


def settings(step: "AusterityGibbs") -> np.ndarray:
    """Return the numbers of the test for the next draw."""
    level = _level(step)
    return np.array(
        austerity.AusteritySettings(step.batch_size if level > 0 else step.n_rows, level)
    )


def _transitions(
    step: "AusterityGibbs", theta: np.ndarray, size: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    thetas, infos = np.empty((size, len(theta))), np.empty((size, len(kernel.INFO)))
    thetas[0], touching = theta, step.touching
    _sweeps(
        address_of(step.rng), address_of(step.row_rng), step.compiled, step.center,
        Criterion(TEST.address, settings(step)),
        kernel.TouchingArrays(
            step.active, touching.start, touching.rows, touching.unknown is not None,
            step.scan == "random",
        ),
        step.permutation, thetas, step.sweeps_per_draw, infos,
    )  # fmt: skip
    return thetas, dict(zip(kernel.INFO, infos.T, strict=True))


# After tuning


def _watch(step: "AusterityGibbs", thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    share = infos["rows_read"] / np.maximum(infos["rows_touching"], 1.0)
    step.record.add(thetas, infos["flips"], share)


def _check(step: "AusterityGibbs") -> list[Finding]:
    level = _level(step)
    if level == 0 or step.n_touching.max() <= step.batch_size:
        return []  # exact
    rng = np.random.default_rng(0)
    tested = np.flatnonzero(step.n_touching > step.batch_size)
    draws = [step.record.thinned[k % len(step.record.thinned)] for k in range(_UPDATES)]
    updates = list(zip(draws, rng.choice(tested, _UPDATES).tolist(), strict=True))
    errors = conditional_errors(
        step.expansion, step.touching, step.active, updates, test=TEST.address,
        settings=settings(step), decisions=_DECISIONS, rng=rng,
    )  # fmt: skip
    remedies = [f"decrease epsilon (now {level:g})", "increase batch_size"]
    sweeps = memory(step.record, step.active, step.sweeps_per_draw)
    return check_updates(step.record, errors, sweeps, remedies)


METHOD = Method(
    state=AusterityGibbsState, functions=lambda step: _FUNCTIONS, begin=_begin,
    transitions=_transitions, statistics=_statistics, watch=_watch, check=_check,
    steady=lambda step: not callable(step.epsilon), by_gradients=lambda step: False, binary=True,
    connected=_connected, anew=("touching", "permutation", "center"),
)  # fmt: skip


class AusterityGibbs(ChainStep):
    r"""Gibbs sampling of binary variables, decided by a sequential t-test on a growing batch.

    Variable i is set to 1 where :math:`\log\frac{u}{1 - u}`, u uniform, lies below its conditional
    log-odds,

    .. math:: \log \frac{p(x_i = 1, x_{-i})}{p(x_i = 0, x_{-i})}
              + \sum_{j \in N_i} [f_j(x_i = 1, x_{-i}) - f_j(x_i = 0, x_{-i})],

    with p the prior (and every term of the model that is not subsampled), f the log-likelihood of
    a row, and :math:`N_i` the rows that touch variable i: a row is an element of a vector
    `pm.Potential`, a factor, or of an observed variable. Whether the inequality holds is tested at
    level epsilon after every batch of rows, drawn without replacement; the batch grows until the
    test decides, at most to all of :math:`N_i`, where the decision is that of Gibbs sampling [1]_.

    Which rows touch a variable is read off the model: by the integer columns that pick elements
    of it (``x[i] * x[j]``), or the coefficients that are not zero (``pm.math.dot(X, x)``). Where a
    row's dependence on the variables cannot be shown to be of that kind, all rows touch all
    variables, which is slower, and is logged.

    Parameters
    ----------
    vars : sequence of variables, optional
        Free variables to sample, which can only be 0 or 1: Bernoulli, or Categorical,
        DiscreteUniform and Binomial on these two values. Default: all such variables. Other
        free variables are left to other step methods.
    observed : sequence of str or variable, optional
        Potentials and observed variables whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full at every
        update.
    epsilon : float or callable, default 0.01
        Level of the test, from 0 (Gibbs sampling: every update reads all its rows) to 0.5. A
        callable ``epsilon(draw)`` gets the number of draws recorded so far, 0 while tuning, and
        returns the level.
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 500, or all rows
        where there are fewer.
    scan : {"random", "fixed"}
        Whether a sweep visits the variables in a new random order or in that of the model.
    sweeps_per_draw : int, default 1
        Sweeps over all variables per recorded draw, all within one compiled call.
    rng : int or Generator, optional
        Random numbers outside `pm.sample`; a chain's own come from ``pm.sample(random_seed=...)``.

    Attributes
    ----------
    n_rows : int
        Rows (factors) in all.
    n_touching : ndarray of int
        Rows that touch each variable, in the order of the model.
    likelihood : tuple of str
        Names of the subsampled variables.

    Raises
    ------
    TallModelError
        If a variable is not binary or the model's rows cannot be found; the message names it.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.

    Notes
    -----
    Statistics of a draw, means over its updates: `flips` (share of variables that changed),
    `batch_size` (rows read per update), `data_share` (share of the touching rows that were read),
    `n_looks` (tests per update), `test_error` (p-value at the decision), and `n_evaluations`, the
    row evaluations in all (two per row read).

    If no conditional probability is off by more than Delta, and eta < 1 is the Dobrushin
    coefficient of exact Gibbs sampling, what is sampled is within Delta / (1 - eta) of the target
    in total variation [1]_ (Theorem 2). The check at the end of a chain measures errors of
    conditional probabilities on updates of the chain, and warns.

    A row that makes a value impossible (-inf) must never be missed by a batch: such models need
    epsilon=0. An update costs one evaluation of the prior beside its rows.

    References
    ----------
    .. [1] A. Korattikara, Y. Chen and M. Welling (2014). Austerity in MCMC land: cutting the
       Metropolis-Hastings budget. ICML, section 5.

    Examples
    --------
    Twenty variables that are 0 or 1, and thousands of factors that reward pairs for being equal:

    >>> rng = np.random.default_rng(1)
    >>> pairs = rng.integers(0, 20, size=(5_000, 2))
    >>> strength = rng.normal(0, 0.02, size=5_000)
    >>> with pm.Model():
    ...     x = pm.Bernoulli("x", 0.5, shape=20)
    ...     equal = pm.math.eq(x[pairs[:, 0]], x[pairs[:, 1]])
    ...     pm.Potential("factors", strength * equal)
    ...     idata = pm.sample(step=pms.AusterityGibbs())
    """

    name = "austerity_gibbs"
    sampler, method = AUSTERITY_GIBBS, METHOD
    record: MoveRecord
    touching: Touching
    permutation: np.ndarray
    center: np.ndarray

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        epsilon: float | Callable[[int], float] = 0.01,  # a choice, a fifth of `AusterityMH`'s
        batch_size: int | None = None,
        scan: str = "random",
        sweeps_per_draw: int = 1,
        **above: Unpack[StepArguments],
    ) -> None:
        self.epsilon = arguments.test_level("epsilon", epsilon)
        arguments.optional_batch(batch_size, smallest=2)
        self.scan = arguments.choice("scan", scan, _SCANS)
        self.sweeps_per_draw = arguments.transitions(sweeps_per_draw, "sweeps_per_draw")
        super().__init__(vars, integrate=False, **above)
        self.row_rng = self.rng
        attach(self, 0)
        self.batch_size = arguments.batch_size(batch_size, self.n_rows, austerity.BATCH)
        if self.touching.unknown is not None:
            _log.warning(
                "AusterityGibbs: which rows of %s touch %s could not be determined, because of %s: "
                "every update may read all %d rows. Pick variables by integer columns, x[index], "
                "to make updates cheaper.",
                ", ".join(map(repr, self.likelihood)),
                ", ".join(repr(self.model.values_to_rvs[v].name) for v in self.vars),
                self.touching.unknown,
                self.n_rows,
            )
        self.begin(tune=0, draws=0)

    @property
    def n_touching(self) -> np.ndarray:
        """Rows that touch each variable."""
        if self.touching.unknown is not None:
            return np.full(len(self.active), self.n_rows)
        return np.diff(self.touching.start)
