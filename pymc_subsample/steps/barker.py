"""Minibatch Barker MH as a PyMC step method."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.compile import Compiled
from pymc_subsample.correction import DEFAULT_SIGMA, barker_correction
from pymc_subsample.diagnostics.acceptance import barker as barker_test
from pymc_subsample.kernels import barker
from pymc_subsample.kernels.evidence import DECIDE
from pymc_subsample.steps import arguments
from pymc_subsample.steps.metropolis import MinibatchMH, Proposal


class MinibatchBarkerMH(MinibatchMH):
    r"""Metropolis-Hastings with Barker's acceptance function, decided on a minibatch.

    A proposal is accepted with probability :math:`1 / (1 + e^{-\Delta})`, Delta the log posterior
    ratio. The noise of its estimate from a batch takes the place of random numbers that the test
    would draw anyway, so that the batch need not grow with n but only until the estimate's
    variance falls below :math:`\sigma^2` [1]_.

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
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 100, or all rows
        where there are fewer.
    max_error : float, default 0.02
        The batch also grows until the estimated error of the acceptance probability is below
        this (leading term, from the skewness of the rows' log-ratios).
    sigma : float, default 1.3
        Standard deviation of the noise that the test absorbs; see `barker_correction`.
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

    References
    ----------
    .. [1] D. Seita, X. Pan, H. Chen and J. Canny (2017). An efficient minibatch acceptance test for
       Metropolis-Hastings. UAI, sections 3 to 5.
    """

    name = "minibatch_barker_mh"
    _test = Compiled(barker.decide, DECIDE, None)
    _error = "clt_error"
    _targets: ClassVar[tuple[float, float, float]] = (0.27, 0.158, 0.4)
    _scale: ClassVar[float] = 2.46
    stats_dtypes_shapes = MinibatchMH.statistics("clt_error")

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        batch_size: int | None = None,
        max_error: float = 0.02,
        sigma: float = DEFAULT_SIGMA,
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
        self.max_error = arguments.between("max_error", max_error, 0.0, np.inf)
        self.sigma = arguments.between("sigma", sigma, 0.0, np.inf)
        correction = barker_correction(self.sigma)
        self._table = np.concatenate([correction.support, np.cumsum(correction.probabilities)])
        self._floor = correction.error
        if not self.max_error > self._floor:
            raise ValueError(
                f"max_error={self.max_error:g} cannot be met: the correction at sigma="
                f"{self.sigma:g} has an error of {self._floor:.2g} itself. Increase max_error or "
                "decrease sigma."
            )
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size, proposal=proposal,
            control_variate_order=control_variate_order, reference=reference,
            temperature=temperature, transitions_per_draw=transitions_per_draw, rng=rng,
            initial_point=initial_point, compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip

    _with_all_rows = staticmethod(barker_test)

    def _cause(self) -> str:
        return (
            "The variance of the log-ratio, estimated from fewer rows, cannot be brought below "
            f"sigma^2 = {self.sigma**2:.3g}."
        )

    def _remedies(self) -> list[str]:
        return [f"decrease max_error (now {self.max_error:g})", "increase batch_size"]

    def _settings(self) -> np.ndarray:
        size = len(self._table) // 2
        numbers = [self.batch_size, self.max_error, self.sigma, self._floor, size]
        return np.concatenate([numbers, self._table])
