"""Underdamped Langevin dynamics on stochastic gradients as PyMC step methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.kernels.langevin import THERMOSTAT
from pymc_subsample.steps import arguments
from pymc_subsample.steps.sgld import StepSize
from pymc_subsample.steps.stochastic_gradient import INTEGRATORS, StochasticGradient


class SGHMC(StochasticGradient):
    r"""Stochastic-gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

    .. math:: d\theta = r\, dt, \quad
              dr = (\hat g(\theta) - \gamma r)\, dt + \sqrt{2 \gamma T}\, dW

    in units of the metric, with :math:`\hat g` the gradient of the log posterior estimated on a
    batch of rows [1]_. There is no acceptance test: draws are off by terms of order h, and by the
    noise of the gradients, which control variates take away in the main.

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
    friction : float, optional
        :math:`\gamma`, in units of one over time as the step size is one of time. Default: 2,
        critical damping, in the metric of the curvature; to be given with ``metric="identity"``.
    integrator : {"baoab", "symplectic", "euler"}, default "baoab"
        A splitting that is exact for the positions of a normal posterior [2]_; the scheme of [1]_;
        or that of Euler and Maruyama [3]_.
    resample_every : int, optional
        Integration steps after which momenta are drawn anew [1]_. Default: never; friction does.
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
    .. [1] T. Chen, E. Fox and C. Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo.
       ICML.
    .. [2] B. Leimkuhler and C. Matthews (2013). Rational construction of stochastic numerical
       methods for molecular sampling. Applied Mathematics Research eXpress 2013(1).
    .. [3] R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic
       gradient MCMC methods via non-uniform subsampling of gradients. arXiv:2002.08949, eq. 3.
    """

    name = "sghmc"

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
        friction: float | None = None,
        integrator: str = "baoab",
        resample_every: int | None = None,
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
        self.integrator = arguments.choice("integrator", integrator, tuple(INTEGRATORS))
        self._dynamics = INTEGRATORS[self.integrator]
        if resample_every is not None:
            self._refresh = arguments.count("resample_every", resample_every)
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=steps_per_batch, step_size=step_size,
            control_variate_order=control_variate_order, reference=reference, metric=metric,
            friction=friction, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip


class SGNHT(StochasticGradient):
    r"""Stochastic-gradient Nose-Hoover thermostat.

    .. math:: dr = (\hat g(\theta) - \zeta r)\, dt + \sqrt{2 \gamma T}\, dW, \quad
              d\theta = r\, dt, \quad d\zeta = (|r|^2 / d - T)\, dt

    in units of the metric: the friction :math:`\zeta` takes up the heat that noisy gradients
    bring, as far as it is the same in all directions [1]_.

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
    friction : float, optional
        :math:`\gamma`, in units of one over time as the step size is one of time. Default: 2,
        critical damping, in the metric of the curvature; to be given with ``metric="identity"``.
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
    .. [1] N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel and H. Neven (2014). Bayesian sampling
       using stochastic gradient thermostats. NeurIPS.
    """

    name = "sgnht"
    _dynamics = THERMOSTAT

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
        friction: float | None = None,
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
            friction=friction, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip
