"""Stochastic-gradient MCMC of free parts: integrator, gradient, batches and step size."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_subsample.chain import arguments, finding_reference
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.model_compilation import attach
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.shared_arguments import SharedContinuous, SharedTransitions, shares
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.gradients import sampler as records
from pymc_subsample.samplers.gradients.algorithm_parts import Parts, chosen_parts
from pymc_subsample.samplers.gradients.chain import METHOD
from pymc_subsample.samplers.gradients.schedules import Cyclical, PolynomialDecay, as_schedule
from pymc_subsample.samplers.gradients.step_size import Steps, find_step_size

StepSize = float | str | PolynomialDecay | Cyclical

_METRICS = ("curvature", "identity")


class SharedCore(SharedTransitions, total=False):
    """Arguments of all stochastic-gradient samplers."""

    batch_size: int | None
    step_size: StepSize
    metric: str


class SharedSG(SharedCore, total=False):
    """Arguments of those whose batches may be held, and whose control variates be chosen."""

    steps_per_batch: int | str
    control_variate_order: int | str | None


@shares(ChainStep.__init__, ChainStep.__doc__)
def set_up(
    step: Any,
    vars: Sequence | None,
    parts: Parts,
    *,
    batch_size: int | None = None,
    steps_per_batch: int | str = "auto",
    step_size: StepSize = "auto",
    control_variate_order: int | str | None = "auto",
    metric: str = "curvature",
    temperature: float = 1.0,
    transitions_per_draw: int = 10,
    **above: Unpack[SharedContinuous],
) -> None:
    """Set up a step of some parts; arguments are those of `SGMCMC`."""
    step.parts = parts
    order = arguments.order(control_variate_order, type(step).__name__, plain=True)
    arguments.optional_batch(batch_size)
    hold = arguments.count("steps_per_batch", steps_per_batch, auto=True)
    step.schedule = as_schedule(step_size)
    step.metric = arguments.choice("metric", metric, _METRICS)
    if not parts.has_friction and metric == "identity" and parts.dynamics.has_momenta:
        raise ValueError(
            'metric="identity" leaves the scale of the parameters open: give friction, in units'
            ' of one over time as step_size is one of time, or use metric="curvature".'
        )
    step.temperature = arguments.temperature(temperature, zero=True)
    step.transitions_per_draw = arguments.transitions(transitions_per_draw)
    order, step.steps_per_batch = parts.order_and_hold(order, hold, step.temperature)
    ChainStep.__init__(step, vars, **above)
    needed = order is not None or metric == "curvature" or step.schedule.automatic
    if step.reference_asked_for and not needed:
        raise ValueError(
            "reference is not used: there are no control variates, and metric and step_size "
            "are given. Leave it out."
        )
    # A step size and a metric that are given are those of the model's own variables.
    step.form.own &= metric == "curvature" or step.schedule.automatic
    attach(step, order)
    with doing("compiling the integrator"):
        langevin.integrate(parts.dynamics)
    step.control_variate_order = None if order is None else step.expansion.order
    step.batch_size = arguments.batch_size(batch_size, step.n_rows, arguments.BATCH)
    step.friction, step.sampler_parts = parts.friction, f"{type(step).__name__} {parts}"
    if needed:
        problem, found = finding_reference.find(step)
        step.prepared = problem.possible(found)
    warn_of_modes(step)
    step.steps = Steps(np.nan, step.steps_per_batch or 1)
    step.begin(tune=0, draws=0)
    step.steps = find_step_size(step)
    step.automatic_step_size, step.hold = step.steps.size, step.steps.hold


class SGMCMC(ChainStep, shares=set_up):
    r"""Stochastic-gradient MCMC of freely combined parts.

    Langevin dynamics along :math:`\hat g(\theta)`, the gradient of the log posterior estimated on a
    batch of rows, without an acceptance test [1]_. `SGLD`, `PSGLD`, `SVRGLD`, `SGHMC`, `SGNHT`,
    `ClusteredSGHMC` and `EWSG` are presets; with its defaults this is `SGHMC`, and
    ``SGMCMC(integrator="overdamped", batches="clustered")`` is `SGLD` on clustered batches.

    Parameters
    ----------
    integrator : {"baoab", "symplectic", "euler", "thermostat", "overdamped", "preconditioned"}
        How parameters move. With momenta: "baoab", "symplectic" and "euler" as for `SGHMC`, or
        "thermostat" as for `SGNHT`. Without: "overdamped" as for `SGLD`, or "preconditioned" as for
        `PSGLD`.
    gradient : {"batch", "svrg", "ewsg"}, default "batch"
        "batch": of a batch, less control variates around the reference. "svrg": of a batch, less
        control variates around a position of the chain, as for `SVRGLD`. "ewsg": of a batch that is
        drawn with exponential weights, as for `EWSG`, with the integrators "euler", "symplectic"
        and "overdamped".
    batches : {"uniform", "clustered"}, default "uniform"
        All batches alike, or those that hold rows of each cluster, as for `ClusteredSGHMC`; the
        latter needs scikit-learn (``pip install "pymc-subsample[clusters]"``).
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
    resample_every : int, optional
        Integration steps after which momenta are drawn anew. Default: never; friction does.
    averaging : float, optional
        :math:`\alpha` of the preconditioner, between 0 and 1. Default: 0.99.
    floor : float, optional
        :math:`\lambda` of the preconditioner. Default: 1e-5.
    refresh_period : int, optional
        Integration steps between passes over all rows, with "svrg". Default: as many as read all
        rows once, n / b.
    index_chain : int, optional
        M, the steps of the chain over batches of "ewsg". Default: 1.
    expected : {"momentum", "zero", "one", "stop"}, optional
        x: where the dynamics are expected to go, with "ewsg". Default: "momentum".
    n_clusters : int, optional
        Clusters of rows. Default: 10.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: the gradient of their sum over all rows is exact and
        a batch estimates the remainder alone. "auto" is the highest there is, or 1 with "svrg";
        None takes plain batches.
    reference : dict, step or DataTree, optional
        Expansion point, and centre of metric and automatic step size: untransformed values by
        variable name, for every free variable, or an earlier run of the model, by its idata
        (posterior means) or its step. Default: the posterior mode, found automatically.
    metric : {"curvature", "identity"}, default "curvature"
        Units in which steps are taken: of the posterior's inverse curvature at the reference, or
        of PyMC's unconstrained space.
    temperature : float, default 1
        T of the noise: the draws are from the posterior to the power 1/T. Anything but 1 warns; 0
        descends to a mode.
    transitions_per_draw : int, default 10
        Integration steps per recorded draw, all within one compiled call.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled; the message names the variable and the Op.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or belongs to a part that was not
        chosen, or if parts don't go together; the message says why.

    Attributes
    ----------
    parts : Parts
        Integrator, gradient and batches by name, and their options.

    References
    ----------
    .. [1] Y.-A. Ma, T. Chen and E. B. Fox (2015). A complete recipe for stochastic gradient MCMC.
       NeurIPS.

    Examples
    --------
    The thermostat, on gradients of batches of 500 rows without control variates:

    >>> with model:
    ...     step = pms.sgmcmc.SGMCMC(
    ...         integrator="thermostat", batch_size=500, control_variate_order=None
    ...     )
    ...     idata = pm.sample(step=step)
    """

    name = "sgmcmc"
    sampler, method = records.SGMCMC, METHOD
    transitions_per_draw: int
    batch_size: int
    metric: str
    record: StepRecord
    steps: Steps  # As the set-up chose them.
    permutation: np.ndarray
    near_reference: bool
    tuned: bool
    metric_factor: np.ndarray
    momentum: np.ndarray
    integrator_state: np.ndarray
    origin: np.ndarray
    done: int
    centred: int
    passes_made: int
    refresh_period: int
    automatic_step_size: float
    hold: int
    friction: float
    schedule: Any

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        integrator: str = "baoab",
        gradient: str = "batch",
        batches: str = "uniform",
        friction: float | None = None,
        resample_every: int | None = None,
        averaging: float | None = None,
        floor: float | None = None,
        refresh_period: int | None = None,
        index_chain: int | None = None,
        expected: str | None = None,
        n_clusters: int | None = None,
        **above: Unpack[SharedSG],
    ) -> None:
        self.parts = chosen_parts(
            integrator, gradient, batches, friction=friction, resample_every=resample_every,
            averaging=averaging, floor=floor, refresh_period=refresh_period,
            index_chain=index_chain, expected=expected, n_clusters=n_clusters,
        )  # fmt: skip
        set_up(self, vars, self.parts, **above)
