"""Overdamped Langevin dynamics on stochastic gradients as PyMC step methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.control_variates.reference import summed
from pymc_subsample.kernels.langevin import PRECONDITIONED
from pymc_subsample.schedules import Cyclical, PolynomialDecay
from pymc_subsample.steps import arguments
from pymc_subsample.steps.stochastic_gradient import StochasticGradient

StepSize = float | str | PolynomialDecay | Cyclical


class SGLD(StochasticGradient):
    r"""Stochastic-gradient Langevin dynamics.

    .. math:: \theta' = \theta + h \Sigma \hat g(\theta) + \sqrt{2hT}\, \Sigma^{1/2} \xi,
              \quad \xi \sim N(0, I)

    with :math:`\hat g` the gradient of the log posterior estimated on a batch of rows [1]_ and
    :math:`\Sigma` the metric. There is no acceptance test: draws are off by terms of order h, and
    by the noise of the gradients, which control variates take away in the main [2]_. For a
    corrected chain use `AusterityMH` or `MinibatchBarkerMH` with ``proposal=Langevin()``.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full at every
        gradient.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    batch_size : int, optional
        Rows per gradient, drawn without replacement, at most all. Default: 100, or all rows where
        there are fewer.
    steps_per_batch : int or "auto", default "auto"
        Integration steps that a batch serves before the next one is drawn, within a draw. Their
        noise is the same, which counts like that many times its variance. "auto" takes up to 10
        where that adds at most 0.2% to the predicted errors of standard deviations, as with
        control variates, and 1 where there is no such prediction.
    step_size : float, "auto", PolynomialDecay or Cyclical, default "auto"
        h, in units of the metric; 0 does not move. "auto" takes the largest at which posterior
        standard deviations are predicted to be off by at most 2%, from the curvature at the
        reference and the noise of the gradients around it.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: the gradient of their sum over all rows is exact and
        a batch estimates the remainder alone. "auto" is the highest there is; None takes plain
        batches.
    reference : dict, optional
        Expansion point, and centre of metric and automatic step size: untransformed values by
        variable name, for every free variable. Default: the posterior mode, found automatically.
    metric : {"curvature", "identity"}, default "curvature"
        Units in which steps are taken: of the posterior's inverse curvature at the reference, or
        of PyMC's unconstrained space.
    temperature : float, default 1
        T of the noise: the draws are from the posterior to the power 1/T. Anything but 1 warns; 0
        descends to a mode.
    transitions_per_draw : int, default 10
        Integration steps per recorded draw, all within one compiled call.
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
    .. [1] M. Welling and Y. W. Teh (2011). Bayesian learning via stochastic gradient Langevin
       dynamics. ICML.
    .. [2] J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth (2019). Control variates for stochastic
       gradient MCMC. Statistics and Computing 29.
    """

    name = "sgld"

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        batch_size: int | None = None,
        steps_per_batch: int | str = "auto",
        step_size: StepSize = "auto",
        control_variate_order: int | str | None = "auto",
        reference: Mapping[str, Any] | None = None,
        metric: str = "curvature",
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        reparameterize: bool = True,
        rng=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=steps_per_batch, step_size=step_size,
            control_variate_order=control_variate_order, reference=reference, metric=metric,
            friction=None, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip


class PSGLD(StochasticGradient):
    r"""Preconditioned stochastic-gradient Langevin dynamics.

    .. math:: \theta' = \theta + h G \hat g(\theta) + \sqrt{2hT G}\, \xi, \quad
              G = \frac{1}{\lambda + \sqrt v}, \quad
              v' = \alpha v + (1 - \alpha) (\hat g / n)^2

    element by element: a diagonal metric learnt from the gradients [1]_, on top of one that is
    known beforehand. v follows them while
    tuning and stays as it is then, so that the term which accounts for changes of G is not needed.
    Without tuning (``tune=0``) it keeps following them, and that term is left out, as the paper
    does: draws are then off by a little more.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full at every
        gradient.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    batch_size : int, optional
        Rows per gradient, drawn without replacement, at most all. Default: 100, or all rows where
        there are fewer.
    steps_per_batch : int or "auto", default "auto"
        Integration steps that a batch serves before the next one is drawn, within a draw. Their
        noise is the same, which counts like that many times its variance. "auto" takes up to 10
        where that adds at most 0.2% to the predicted errors of standard deviations, as with
        control variates, and 1 where there is no such prediction.
    step_size : float, "auto", PolynomialDecay or Cyclical, default "auto"
        h, in units of the metric; 0 does not move. "auto" takes the largest at which posterior
        standard deviations are predicted to be off by at most 2%, from the curvature at the
        reference and the noise of the gradients around it.
    averaging : float, default 0.99
        :math:`\alpha`, between 0 and 1.
    floor : float, default 1e-5
        :math:`\lambda`.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: the gradient of their sum over all rows is exact and
        a batch estimates the remainder alone. "auto" is the highest there is; None takes plain
        batches, as the paper does.
    reference : dict, optional
        Expansion point, and centre of metric and automatic step size: untransformed values by
        variable name, for every free variable. Default: the posterior mode, found automatically.
    metric : {"curvature", "identity"}, default "curvature"
        In which coordinates gradients are taken: "curvature" is the posterior's covariance by the
        curvature at the reference, as for `SGLD`; "identity" is the paper's, the model's own
        unconstrained variables, whose correlations and very different scales a diagonal metric
        cannot follow.
    temperature : float, default 1
        T of the noise: the draws are from the posterior to the power 1/T. Anything but 1 warns; 0
        descends to a mode.
    transitions_per_draw : int, default 10
        Integration steps per recorded draw, all within one compiled call.
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
    .. [1] C. Li, C. Chen, D. Carlson and L. Carin (2016). Preconditioned stochastic gradient
       Langevin dynamics for deep neural networks. AAAI.
    """

    name = "psgld"
    _dynamics = PRECONDITIONED

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        batch_size: int | None = None,
        steps_per_batch: int | str = "auto",
        step_size: StepSize = "auto",
        averaging: float = 0.99,
        floor: float = 1e-5,
        control_variate_order: int | str | None = "auto",
        reference: Mapping[str, Any] | None = None,
        metric: str = "curvature",
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        reparameterize: bool = True,
        rng=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        self._averaging = arguments.between("averaging", averaging, 0.0, 1.0)
        self._floor = arguments.between("floor", floor, 0.0, np.inf)
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=steps_per_batch, step_size=step_size,
            control_variate_order=control_variate_order, reference=reference, metric=metric,
            friction=None, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip

    def _averages(self) -> float:
        return self._averaging if self.tune or not self.tuned else 1.0

    def _preconditioner(self, square: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(self._floor + np.sqrt(square) / self.n_rows)


class SVRGLD(StochasticGradient):
    r"""Langevin dynamics on variance-reduced stochastic gradients.

    The gradient is

    .. math:: \nabla \log p(\theta) + \sum_i \nabla \ell_i(\tilde\theta) + \frac nb
              \sum_{i \in B} [\nabla \ell_i(\theta) - \nabla \ell_i(\tilde\theta)]

    where :math:`\tilde\theta` is the position of the chain every `refresh_period` steps, at which
    all rows are read [1]_: control variates of order 1 whose reference goes along. Dynamics as in
    `SGLD`.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full at every
        gradient.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    batch_size : int, optional
        Rows per gradient, drawn without replacement, at most all. Default: 100, or all rows where
        there are fewer.
    steps_per_batch : int or "auto", default "auto"
        Integration steps that a batch serves before the next one is drawn, within a draw. Their
        noise is the same, which counts like that many times its variance. "auto" takes up to 10
        where that adds at most 0.2% to the predicted errors of standard deviations, as with
        control variates, and 1 where there is no such prediction.
    step_size : float, "auto", PolynomialDecay or Cyclical, default "auto"
        h, in units of the metric; 0 does not move. "auto" takes the largest at which posterior
        standard deviations are predicted to be off by at most 2%, from the curvature at the
        reference and the noise of the gradients around it.
    refresh_period : int, optional
        Integration steps between passes over all rows. Default: as many as read all rows once,
        n / b.
    reference : dict, optional
        Expansion point, and centre of metric and automatic step size: untransformed values by
        variable name, for every free variable. Default: the posterior mode, found automatically.
    metric : {"curvature", "identity"}, default "curvature"
        Units in which steps are taken: of the posterior's inverse curvature at the reference, or
        of PyMC's unconstrained space.
    temperature : float, default 1
        T of the noise: the draws are from the posterior to the power 1/T. Anything but 1 warns; 0
        descends to a mode.
    transitions_per_draw : int, default 10
        Integration steps per recorded draw, all within one compiled call.
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
    .. [1] K. A. Dubey, S. J. Reddi, S. A. Williamson, B. Poczos, A. J. Smola and E. P. Xing (2016).
       Variance reduction in stochastic gradient Langevin dynamics. NeurIPS, algorithm 2.
    """

    name = "svrg_ld"

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        batch_size: int | None = None,
        steps_per_batch: int | str = "auto",
        step_size: StepSize = "auto",
        refresh_period: int | None = None,
        reference: Mapping[str, Any] | None = None,
        metric: str = "curvature",
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        reparameterize: bool = True,
        rng=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        self._given_period = refresh_period is not None
        period = 1 if refresh_period is None else refresh_period
        self.refresh_period = arguments.count("refresh_period", period)
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=steps_per_batch, step_size=step_size,
            control_variate_order=1, reference=reference, metric=metric,
            friction=None, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip

    def _begin(self, tune: int, draws: int):
        super()._begin(tune, draws)
        if not self._given_period:
            self.refresh_period = max(1, self.n_rows // self.batch_size)
        self.centred = -self.refresh_period
        self._passes = 0

    def _until_centring(self, theta: np.ndarray) -> int:
        if self.done - self.centred >= self.refresh_period:
            rows = self._expansion.chunks()
            self.reference = summed(self._expansion, theta, rows, 1.0, curved=False)
            self.centred = self.done
            self._passes += 1
        return self.centred + self.refresh_period - self.done

    def _centring_cost(self) -> int:
        passes, self._passes = self._passes, 0
        return 2 * passes * self.n_rows

    def _remedies(self) -> list[str]:
        return [f"decrease refresh_period (now {self.refresh_period})", *super()._remedies()[1:]]
