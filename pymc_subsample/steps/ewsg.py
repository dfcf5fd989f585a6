"""Langevin dynamics on exponentially weighted gradients as a PyMC step method."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.kernels.langevin import EULER, MOMENTUM, ONE, OVERDAMPED, STOP, ZERO
from pymc_subsample.steps import arguments
from pymc_subsample.steps.sgld import StepSize
from pymc_subsample.steps.stochastic_gradient import StochasticGradient

_EXPECTED = {"momentum": MOMENTUM, "zero": ZERO, "one": ONE, "stop": STOP}
_DYNAMICS = {"underdamped": EULER, "overdamped": OVERDAMPED}


class EWSG(StochasticGradient):
    r"""Langevin dynamics on exponentially weighted stochastic gradients.

    At each step the batch B is not drawn uniformly but with probability

    .. math:: p_B \propto \exp\left(\tfrac12 |x + a_B|^2\right), \qquad
              a_B = -\sqrt h\, \hat g_B(\theta) / \sigma

    by a Metropolis chain over batches, so that the step, noise of the gradient included, is
    distributed more like one on all rows [1]_. :math:`\sigma^2 = 2 \gamma T`, or 2 T where there
    are no momenta. Dynamics of Euler and Maruyama as in `SGHMC`, or as in `SGLD`.

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
    step_size : float, "auto", PolynomialDecay or Cyclical, default "auto"
        h, in units of the metric; 0 does not move. "auto" takes the largest at which posterior
        standard deviations are predicted to be off by at most 2%, from the curvature at the
        reference and the noise of the gradients around it.
    friction : float, optional
        :math:`\gamma`, in units of one over time as the step size is one of time. Default: 2,
        critical damping, in the metric of the curvature; to be given with ``metric="identity"``.
    dynamics : {"underdamped", "overdamped"}, default "underdamped"
        With momenta or without.
    index_chain : int, default 1
        M, the steps of the chain over batches, which starts anew from a uniform one: M + 1
        gradients per integration step.
    expected : {"momentum", "zero", "one", "stop"}, default "momentum"
        x: where the dynamics are expected to go. "momentum" is
        :math:`\sqrt h \gamma r / \sigma`, as for a momentum that stays as it is (without
        momenta: as the last step); "zero" and "one" are numbers; "stop" is
        :math:`(h \gamma - 1) r / (\sqrt h \sigma)`, as for one that vanishes.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: the gradient of their sum over all rows is exact and
        a batch estimates the remainder alone. "auto" is the highest there is; None takes plain
        batches, as the paper does.
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

    Notes
    -----
    The weights use a guess x of a step that is not known yet. A weighted gradient is therefore
    biased, by terms of order h like the integrator itself, in exchange for less noise.

    References
    ----------
    .. [1] R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic
       gradient MCMC methods via non-uniform subsampling of gradients. arXiv:2002.08949.
    """

    name = "ewsg"

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        batch_size: int | None = None,
        step_size: StepSize = "auto",
        friction: float | None = None,
        dynamics: str = "underdamped",
        index_chain: int = 1,
        expected: str = "momentum",
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
        self.dynamics = arguments.choice("dynamics", dynamics, tuple(_DYNAMICS))
        self._dynamics = _DYNAMICS[self.dynamics]
        self._index_chain = arguments.transitions("index_chain", index_chain)
        self.expected = arguments.choice("expected", expected, tuple(_EXPECTED))
        if self.expected == "stop" and self.dynamics == "overdamped":
            raise ValueError('expected="stop" needs momenta: use dynamics="underdamped".')
        self._expected = _EXPECTED[self.expected]
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=1, step_size=step_size,
            control_variate_order=control_variate_order, reference=reference, metric=metric,
            friction=friction, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip
