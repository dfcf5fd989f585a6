"""Samplers of the literature as presets of `SGMCMC`."""

from collections.abc import Sequence
from typing import Unpack

from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.samplers.gradients import sampler as records
from pymc_subsample.samplers.gradients.algorithm_parts import chosen_parts, underdamped
from pymc_subsample.samplers.gradients.chain import METHOD
from pymc_subsample.samplers.gradients.step import SGMCMC, SharedCore, SharedSG, set_up

_DYNAMICS = {"underdamped": "euler", "overdamped": "overdamped"}


class SGLD(ChainStep, shares=SGMCMC):
    r"""Stochastic-gradient Langevin dynamics.

    .. math:: \theta' = \theta + h \Sigma \hat g(\theta) + \sqrt{2hT}\, \Sigma^{1/2} \xi,
              \quad \xi \sim N(0, I)

    with :math:`\hat g` the gradient of the log posterior estimated on a batch of rows [1]_ and
    :math:`\Sigma` the metric. There is no acceptance test: draws are off by terms of order h, and
    by the noise of the gradients, which control variates take away in the main [2]_. For a
    corrected chain use `AusterityMH` or `MinibatchBarkerMH` with ``proposal=Langevin()``.

    References
    ----------
    .. [1] M. Welling and Y. W. Teh (2011). Bayesian learning via stochastic gradient Langevin
       dynamics. ICML.
    .. [2] J. Baker, P. Fearnhead, E. B. Fox and C. Nemeth (2019). Control variates for stochastic
       gradient MCMC. Statistics and Computing 29.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGLD(), chains=4)

    With steps that shrink:

    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGLD(step_size=pms.sgmcmc.PolynomialDecay()))
    """

    name = "sgld"
    sampler, method = records.SGLD, METHOD

    def __init__(self, vars: Sequence | None = None, **above: Unpack[SharedSG]) -> None:
        set_up(self, vars, chosen_parts("overdamped"), **above)


class PSGLD(ChainStep, shares=SGMCMC):
    r"""Preconditioned stochastic-gradient Langevin dynamics.

    .. math:: \theta' = \theta + h G \hat g(\theta) + \sqrt{2hT G}\, \xi, \quad
              G = \frac{1}{\lambda + \sqrt v}, \quad
              v' = \alpha v + (1 - \alpha) (\hat g / n)^2

    element by element: a diagonal metric learnt from the gradients [1]_, on top of one that is
    known beforehand. v follows them while tuning and stays as it is then, so that the term which
    accounts for changes of G is not needed. Without tuning (``tune=0``) it keeps following them,
    and that term is left out, as the paper does: draws are then off by a little more.

    Parameters
    ----------
    averaging : float, default 0.99
        :math:`\alpha`, between 0 and 1.
    floor : float, default 1e-5
        :math:`\lambda`.
    metric : {"curvature", "identity"}, default "curvature"
        In which coordinates gradients are taken: "curvature" is the posterior's covariance by the
        curvature at the reference, as for `SGLD`; "identity" is the paper's, the model's own
        unconstrained variables, whose correlations and very different scales a diagonal metric
        cannot follow.

    References
    ----------
    .. [1] C. Li, C. Chen, D. Carlson and L. Carin (2016). Preconditioned stochastic gradient
       Langevin dynamics for deep neural networks. AAAI.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.PSGLD(), chains=4)
    """

    name = "psgld"
    sampler, method = records.PSGLD, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        averaging: float = 0.99,
        floor: float = 1e-5,
        **above: Unpack[SharedSG],
    ) -> None:
        parts = chosen_parts("preconditioned", averaging=averaging, floor=floor)
        set_up(self, vars, parts, **above)


class SVRGLD(ChainStep, shares=SGMCMC):
    r"""Langevin dynamics on variance-reduced stochastic gradients.

    The gradient is

    .. math:: \nabla \log p(\theta) + \sum_i \nabla \ell_i(\tilde\theta) + \frac nb
              \sum_{i \in B} [\nabla \ell_i(\theta) - \nabla \ell_i(\tilde\theta)]

    where :math:`\tilde\theta` is the position of the chain every `refresh_period` steps, at which
    all rows are read [1]_: control variates of order 1 whose reference goes along. Dynamics as in
    `SGLD`.

    References
    ----------
    .. [1] K. A. Dubey, S. J. Reddi, S. A. Williamson, B. Poczos, A. J. Smola and E. P. Xing (2016).
       Variance reduction in stochastic gradient Langevin dynamics. NeurIPS, algorithm 2.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SVRGLD(), chains=4)
    """

    name = "svrg_ld"
    sampler, method = records.SVRGLD, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        steps_per_batch: int | str = "auto",
        refresh_period: int | None = None,
        **above: Unpack[SharedCore],
    ) -> None:
        parts = chosen_parts("overdamped", "svrg", refresh_period=refresh_period)
        set_up(self, vars, parts, steps_per_batch=steps_per_batch, **above)


class SGHMC(ChainStep, shares=SGMCMC):
    r"""Stochastic-gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

    .. math:: d\theta = r\, dt, \quad
              dr = (\hat g(\theta) - \gamma r)\, dt + \sqrt{2 \gamma T}\, dW

    in units of the metric, with :math:`\hat g` the gradient of the log posterior estimated on a
    batch of rows [1]_. There is no acceptance test: draws are off by terms of order h, and by the
    noise of the gradients, which control variates take away in the main.

    Parameters
    ----------
    integrator : {"baoab", "symplectic", "euler"}, default "baoab"
        A splitting that is exact for the positions of a normal posterior [2]_; the scheme of [1]_;
        or that of Euler and Maruyama [3]_.
    resample_every : int, optional
        Integration steps after which momenta are drawn anew [1]_. Default: never; friction does.

    References
    ----------
    .. [1] T. Chen, E. Fox and C. Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo.
       ICML.
    .. [2] B. Leimkuhler and C. Matthews (2013). Rational construction of stochastic numerical
       methods for molecular sampling. Applied Mathematics Research eXpress 2013(1).
    .. [3] R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic
       gradient MCMC methods via non-uniform subsampling of gradients. arXiv:2002.08949, eq. 3.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGHMC(batch_size=200), chains=4)
    """

    name = "sghmc"
    sampler, method = records.SGHMC, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        integrator: str = "baoab",
        friction: float | None = None,
        resample_every: int | None = None,
        **above: Unpack[SharedSG],
    ) -> None:
        arguments.choice("integrator", integrator, underdamped())
        parts = chosen_parts(integrator, friction=friction, resample_every=resample_every)
        set_up(self, vars, parts, **above)


class SGNHT(ChainStep, shares=SGMCMC):
    r"""Stochastic-gradient Nose-Hoover thermostat.

    .. math:: dr = (\hat g(\theta) - \zeta r)\, dt + \sqrt{2 \gamma T}\, dW, \quad
              d\theta = r\, dt, \quad d\zeta = (|r|^2 / d - T)\, dt

    in units of the metric: the friction :math:`\zeta` takes up the excess temperature that
    noisy gradients bring, as far as it is the same in all directions [1]_.

    References
    ----------
    .. [1] N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel and H. Neven (2014). Bayesian sampling
       using stochastic gradient thermostats. NeurIPS.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGNHT(), chains=4)
    """

    name = "sgnht"
    sampler, method = records.SGNHT, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        friction: float | None = None,
        **above: Unpack[SharedSG],
    ) -> None:
        set_up(self, vars, chosen_parts("thermostat", friction=friction), **above)


class ClusteredSGHMC(ChainStep, shares=SGMCMC):
    r"""Stochastic-gradient Hamiltonian Monte Carlo on batches that hold rows of each cluster.

    Rows are clustered by k-means once, over their standardised columns, outcomes included, and
    laid out cluster by cluster; a batch takes one row of each of b equal parts, each row with
    probability b / n. Rows of a cluster have similar gradients, so that batches differ less [1]_.
    Dynamics as in `SGHMC`. Needs scikit-learn (``pip install "pymc-subsample[clusters]"``).

    Parameters
    ----------
    n_clusters : int, default 10
        Clusters of rows.
    integrator : {"symplectic", "baoab", "euler"}, default "symplectic"
        As for `SGHMC`.

    References
    ----------
    .. [1] T. Fu and Z. Zhang (2017). CPSG-MCMC: clustering-based preprocessing method for
       stochastic gradient MCMC. AISTATS.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.ClusteredSGHMC(n_clusters=5), chains=4)
    """

    name = "clustered_sghmc"
    sampler, method = records.CLUSTERED_SGHMC, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        integrator: str = "symplectic",
        friction: float | None = None,
        n_clusters: int = 10,
        **above: Unpack[SharedSG],
    ) -> None:
        arguments.choice("integrator", integrator, underdamped())
        parts = chosen_parts(
            integrator, batches="clustered", friction=friction, n_clusters=n_clusters
        )
        set_up(self, vars, parts, **above)


class EWSG(ChainStep, shares=SGMCMC):
    r"""Langevin dynamics on exponentially weighted stochastic gradients.

    At each step the batch B is not drawn uniformly but with probability

    .. math:: p_B \propto \exp\left(\tfrac12 |x + a_B|^2\right), \qquad
              a_B = -\sqrt h\, \hat g_B(\theta) / \sigma

    by a Metropolis chain over batches, so that the step, noise of the gradient included, is
    distributed more like one on all rows [1]_. :math:`\sigma^2 = 2 \gamma T`, or 2 T where there
    are no momenta. Dynamics of Euler and Maruyama as in `SGHMC`, or as in `SGLD`.

    Parameters
    ----------
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

    Notes
    -----
    The weights use a guess x of a step that is not known yet. A weighted gradient is therefore
    biased, by terms of order h like the integrator itself, in exchange for less noise.

    References
    ----------
    .. [1] R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic
       gradient MCMC methods via non-uniform subsampling of gradients. arXiv:2002.08949.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.EWSG(), chains=4)
    """

    name = "ewsg"
    sampler, method = records.EWSG, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        dynamics: str = "underdamped",
        friction: float | None = None,
        index_chain: int = 1,
        expected: str = "momentum",
        control_variate_order: int | str | None = "auto",
        **above: Unpack[SharedCore],
    ) -> None:
        self.dynamics = arguments.choice("dynamics", dynamics, tuple(_DYNAMICS))
        parts = chosen_parts(
            _DYNAMICS[self.dynamics], "ewsg", friction=friction, index_chain=index_chain,
            expected=expected,
        )  # fmt: skip
        set_up(self, vars, parts, control_variate_order=control_variate_order, **above)
