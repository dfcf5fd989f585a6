"""Stochastic-gradient HMC on stratified batches as a PyMC step method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.kernels.gradients import STRATIFIED
from pymc_subsample.steps import arguments
from pymc_subsample.steps.sgld import StepSize
from pymc_subsample.steps.stochastic_gradient import INTEGRATORS, StochasticGradient
from pymc_subsample.strata import clustered_order


class ClusteredSGHMC(StochasticGradient):
    r"""Stochastic-gradient Hamiltonian Monte Carlo on batches that hold rows of each cluster.

    Rows are clustered by k-means once, over their standardised columns, outcomes included, and
    laid out cluster by cluster; a batch takes one row of each of b equal parts, each row with
    probability b / n. Rows of a cluster have similar gradients, so that batches differ less [1]_.
    Dynamics as in `SGHMC`. Needs scikit-learn (``pip install "pymc-subsample[clusters]"``).

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
    n_clusters : int, default 10
        Clusters of rows.
    integrator : {"symplectic", "baoab", "euler"}, default "symplectic"
        As for `SGHMC`.
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
    ImportError
        If scikit-learn is not installed.

    References
    ----------
    .. [1] T. Fu and Z. Zhang (2017). CPSG-MCMC: clustering-based preprocessing method for
       stochastic gradient MCMC. AISTATS.
    """

    name = "clustered_sghmc"
    _sampling = STRATIFIED

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
        n_clusters: int = 10,
        integrator: str = "symplectic",
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
        self.n_clusters = arguments.count("n_clusters", n_clusters, smallest=2)
        self.integrator = arguments.choice("integrator", integrator, tuple(INTEGRATORS))
        self._dynamics = INTEGRATORS[self.integrator]
        self._set_up(
            vars, model, observed=observed, dim=dim, batch_size=batch_size,
            steps_per_batch=steps_per_batch, step_size=step_size,
            control_variate_order=control_variate_order, reference=reference, metric=metric,
            friction=friction, temperature=temperature,
            transitions_per_draw=transitions_per_draw, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
            reparameterize=reparameterize,
        )  # fmt: skip

    def _ordered(self) -> np.ndarray:
        arguments.count("n_clusters", self.n_clusters, self.n_rows)
        return clustered_order(self._expansion, self.n_clusters, np.random.default_rng(0))
