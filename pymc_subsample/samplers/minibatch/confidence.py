"""The confidence sampler as a PyMC step method."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from pymc_subsample.bounds.predictor_ranges import everywhere, nearby
from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.proposals import Langevin
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch import largest_term as bounds
from pymc_subsample.samplers.minibatch.decision_errors import Proposed
from pymc_subsample.samplers.minibatch.decisions import DECIDE, confidence
from pymc_subsample.samplers.minibatch.sampler import CONFIDENCE_MH
from pymc_subsample.samplers.minibatch.step import (
    METHOD,
    Decision,
    SharedMH,
    connected,
    set_up,
    weight,
)

_BOUNDS = ("auto", "linear", "local", "full")
_NO_TABLE = np.zeros((0, 0))
# A log-ratio of this size, which rounding may make of exact control variates, misleads nobody. A
# choice: acceptance probabilities change by less.
_ROUNDING = 1e-4


def _connected(step: Any) -> None:
    connected(step)
    step.linear = step.expansion.slope() if step.bound in ("auto", "linear") else None
    if step.bound == "linear" and step.linear is None:
        raise ValueError(
            'bound="linear" needs a likelihood with one linear predictor per row and bounded '
            "derivatives in it (logistic regression, for instance); this model has none. Use "
            'bound="full", or give a function bound(point, new_point).'
        )
    # Bounds of the rows that are not read always, and which these are; those near a reference.
    step.anywhere = step.nearby = None


def _anywhere(step: Any) -> Any:
    """Bounds that hold wherever the chain goes, for rows with a bounded derivative."""
    if step.anywhere is None or not np.array_equal(step.anywhere[0], step.always):
        step.anywhere = step.always, everywhere(step.expansion, step.always)
    return step.anywhere[1]


def local_bounds(step: Any) -> np.ndarray | None:
    """Bounds near the reference of the chain, or None."""
    at, known = step.reference, step.nearby
    if at is None or step.bound == "full":
        return None
    if known is None or known[0] is not at or known[1] is not step.always:
        found = nearby(step.expansion, at.center, at.curvature, step.always)
        step.nearby = known = at, step.always, found
    return known[2]


def _cause(step: Any) -> str:
    if not callable(step.bound) and step.linear is None:
        if local_bounds(step) is not None:
            return "Many are too far from the reference for a bound without a pass."
        return (
            "The bound itself takes a pass over all rows, which counts: give a function as bound."
        )
    return "The bound on the rows' terms is too wide to decide on fewer."


def _remedies(step: Any) -> list[str]:
    return [f"decrease delta (now {step.delta:g})"]


def _settings(step: Any) -> np.ndarray:
    inequality = confidence.INEQUALITIES.index(step.inequality)
    return np.array(
        confidence.ConfidenceSettings(step.batch_size, step.delta, step.p, step.gamma, inequality)
    )


def row_bound(step: Any, theta: np.ndarray, given: np.ndarray) -> bounds.TermBound:
    """Say where the bound of a proposal comes from."""
    if callable(step.bound):
        return bounds.TermBound(bounds.GIVEN_BOUND, given_bound(step, theta, given), _NO_TABLE)
    if step.linear is not None:
        return bounds.TermBound(bounds.LINEAR_BOUND, *_anywhere(step))
    local = local_bounds(step)
    if local is not None:
        return bounds.TermBound(bounds.LOCAL_BOUND, np.inf, local)
    return bounds.TermBound(bounds.FULL_BOUND, np.inf, _NO_TABLE)


def given_bound(step: Any, theta: np.ndarray, new_theta: np.ndarray) -> float:
    """Ask the user for the bound of a proposal; in units of y."""
    points = [step.tall.unravel(step.expansion.values(x).copy()) for x in (theta, new_theta)]
    return arguments.row_bound(step.bound(*points)) * weight(step)


def _bounded(step: Any, proposed: Proposed) -> Proposed:
    moved = proposed.theta, proposed.new_theta
    if callable(step.bound):
        return proposed._replace(bound=given_bound(step, *moved))
    automatic = _automatic_bound(step, *moved)
    if not np.isfinite(automatic):
        return proposed
    return proposed._replace(bound=max(automatic, _ROUNDING))


def _automatic_bound(step: Any, theta: np.ndarray, new_theta: np.ndarray) -> float:
    """Bound of a proposal as the transition takes it; infinite where that takes a pass."""
    bound, sums = step.decision.bound(step, theta, new_theta), step.sums()
    phi, new_phi = (step.expansion.parameters(x)[0] for x in (theta, new_theta))
    moved = phi, new_phi, sums.center, sums.order, weight(step)
    return float(bounds.largest_term(bound, *moved))


class ConfidenceMH(ChainStep, shares=set_up):
    r"""Metropolis-Hastings decided by a concentration inequality on a growing batch.

    Every decision agrees with exact MH's with probability at least 1 - delta, whatever the
    distribution of the rows' log-ratios, given a bound on their size [1]_.

    Parameters
    ----------
    delta : float, default 0.01
        Probability of a wrong decision, at most.
    batch_size : int, default 100
        Rows to start with (at most all).
    p : float, default 2
        Look k spends (p - 1) / (p k^p) of delta.
    gamma : float, default 2
        Factor by which a batch grows.
    inequality : {"bernstein-serfling", "bernstein", "hoeffding-serfling"}
        Concentration inequality.
    bound : {"auto", "linear", "local", "full"} or callable
        Where the bound C on the rows' terms ``|log p(x_i | theta') - log p(x_i | theta)|`` (less
        their control variates') comes from. "linear": from how far the linear predictors move,
        where the likelihood's derivatives are bounded (logistic regression, for instance);
        "local": the same within some posterior standard deviations of the reference, where
        derivatives in up to four predictors are bounded by interval arithmetic (regressions
        with an unknown scale, counts, survival times), and a pass over all rows for proposals
        farther away; "full": a pass over all rows per proposal. Passes are counted in
        `n_evaluations`. A callable ``bound(point, new_point)`` of value variables gives C itself;
        the check at the end of a chain compares it with all rows on some proposals. "auto" takes
        the first of "linear", "local" and "full" that exists.

    References
    ----------
    .. [1] R. Bardenet, A. Doucet and C. Holmes (2014). Towards scaling up Markov chain Monte Carlo:
       an adaptive subsampling approach. ICML, section 2.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.ConfidenceMH(delta=0.01), chains=4)
    """

    name = "confidence_mh"
    sampler = CONFIDENCE_MH
    method = replace(
        METHOD, connected=_connected, anew=(*METHOD.anew, "linear", "anywhere", "nearby")
    )
    decision = Decision(
        test=Compiled(confidence.decide, DECIDE, None),
        settings=_settings,
        cause=_cause,
        remedies=_remedies,
        asks=lambda step: callable(step.bound),
        bound=row_bound,
        bounded=_bounded,
    )

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        delta: float = 0.01,
        p: float = 2.0,
        gamma: float = 2.0,
        inequality: str = "bernstein-serfling",
        bound: str | Callable[[dict, dict], float] = "auto",
        **above: Unpack[SharedMH],
    ) -> None:
        self.delta = arguments.between("delta", delta, 0.0, 1.0)
        self.p = arguments.between("p", p, 1.0, np.inf)
        self.gamma = arguments.between("gamma", gamma, 1.0, np.inf)
        self.inequality = arguments.choice("inequality", inequality, confidence.INEQUALITIES)
        self.bound = bound if callable(bound) else arguments.choice("bound", bound, _BOUNDS)
        if callable(bound):
            arguments.takes("bound", bound, "point", "new_point")
        if callable(bound) and isinstance(above.get("proposal"), Langevin):
            raise ValueError(
                'bound: a function cannot be combined with Langevin proposals. Use bound="full" or '
                '"linear".'
            )
        set_up(self, vars, **above)
        if self.bound == "local" and local_bounds(self) is None:
            raise ValueError(
                'bound="local" needs control variates, a likelihood of at most four linear '
                "predictors per row and derivatives that are bounded near the reference; this "
                'model has none. Use bound="full", or give a function bound(point, new_point).'
            )
