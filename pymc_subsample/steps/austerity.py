"""Austerity MH as a PyMC step method."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.compile import Compiled
from pymc_subsample.diagnostics.acceptance import AcceptanceErrors
from pymc_subsample.kernels import austerity
from pymc_subsample.kernels.evidence import DECIDE
from pymc_subsample.steps import arguments
from pymc_subsample.steps.metropolis import MinibatchMH, Proposal

_log = logging.getLogger("pymc.subsample")


class AusterityMH(MinibatchMH):
    r"""Metropolis-Hastings decided by a sequential t-test on a growing batch.

    Whether the log posterior ratio exceeds log u is tested at level epsilon after every batch;
    the batch grows until the test decides, at most to all n rows, where the decision is exact
    [1]_.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full at every
        proposal.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    epsilon : float or callable, default 0.05
        Level of the test at every look, from 0 (exact MH: every proposal reads all rows) to 0.5.
        The share of wrong decisions is larger than that where a test looks often. A callable
        ``epsilon(draw)`` gets the number of draws recorded so far, 0 while tuning, and returns
        the level: let it shrink to trade speed for accuracy as draws accumulate.
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 500, or all rows
        where there are fewer.
    proposal : RandomWalk, AdaptiveMetropolis, Langevin or callable, optional
        How moves are proposed. A callable ``proposal(point, rng)`` gets a dict of value variables
        (PyMC's unconstrained space) and returns ``(new_point, log_factor)``, where `new_point` may
        hold only what changed and `log_factor` is ``log q(point | new) - log q(new | point)``.
        Default: `AdaptiveMetropolis()`.
    control_variate_order : {2, 1, None}
        Order of the Taylor control variates: their sum over all rows is exact and a batch
        estimates the remainder alone. None takes plain batches, which needs no gradients and no
        reference but far more rows.
    reference : dict, optional
        Expansion point: untransformed values by variable name, for every free variable. Default:
        the posterior mode, found automatically.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows. Anything but 1 samples another
        distribution than the posterior, and warns.
    transitions_per_draw : int, default 10
        Transitions per recorded draw, all within one compiled call.
    reparameterize : bool, default True
        Whether the chain moves effects of groups, and other variables whose scale depends on
        parameters, in coordinates of its own, between their centred and non-centred forms, however
        the model writes them. Draws are in the model's own variables either way.
    rng : int or Generator, optional
        Random numbers of the set-up; a chain's own come from `pm.sample(random_seed=...)`.
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

    Notes
    -----
    The t-test takes the mean of a batch as normal. Where the rows' log-ratios have heavy tails it
    decides wrongly and often, without a sign of it in its own statistics: the check at the end of
    a chain looks at all rows for that, and names `ConfidenceMH`.

    References
    ----------
    .. [1] A. Korattikara, Y. Chen and M. Welling (2014). Austerity in MCMC land: cutting the
       Metropolis-Hastings budget. ICML, section 4.
    """

    name = "austerity_mh"
    _test = Compiled(austerity.decide, DECIDE, None)
    _default_batch = 500
    stats_dtypes_shapes = MinibatchMH.statistics("test_error")

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        epsilon: float | Callable[[int], float] = 0.05,
        batch_size: int | None = None,
        proposal: Proposal | None = None,
        control_variate_order: int | None = 2,
        reference: Mapping[str, Any] | None = None,
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        reparameterize: bool = True,
        rng=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        self.epsilon = arguments.test_level("epsilon", epsilon)
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size, proposal=proposal,
            control_variate_order=control_variate_order, reference=reference,
            temperature=temperature, transitions_per_draw=transitions_per_draw, rng=rng,
            initial_point=initial_point, compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip

    def _level(self, draw: int) -> float:
        return arguments.level("epsilon", self.epsilon, draw)

    @property
    def _exact(self) -> bool:
        return self._level(self.draws_done) == 0

    def _cause(self) -> str:
        return "The t-test cannot decide on fewer: the rows' log-ratios vary too much."

    def _remedies(self) -> list[str]:
        level = self._level(self.draws_done)
        return [f"decrease epsilon (now {level:g})", "increase batch_size"]

    def _conclude(self, errors: AcceptanceErrors):
        """Log the bound of Theorem 1 with what the pilot and the chain show."""
        slowest = self.record.autocorrelation(self._active) ** (1 / self.transitions_per_draw)
        if not len(errors.error):
            return
        bound = min(1.0, errors.limit / max(1 - slowest, 1e-12))
        _log.info(
            f"AusterityMH: on {len(errors.error) // 2} proposals of this chain the acceptance "
            f"probability was off by at most {errors.limit:.2g}, three standard errors of a "
            f"simulation included; with "
            f"the slowest autocorrelation, {slowest:.3g} per transition, as the chain's "
            f"contraction, the total variation distance to the posterior is at most {bound:.2g}."
        )

    def _settings(self) -> np.ndarray:
        return np.array([self.batch_size, self._level(self.draws_done)])
