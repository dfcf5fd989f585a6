r"""How wrong a minibatch acceptance test is, measured on proposals of the chain itself.

For a few proposals :math:`\theta \to \theta'` every row is read once; the test then decides about
them again and again on fresh random batches of those numbers, forth and back. Its acceptance
probabilities :math:`\tilde\alpha` are compared with the exact ones. The chain's stationary
distribution obeys detailed balance with the log-ratio
:math:`\log \tilde\alpha(\theta, \theta') - \log \tilde\alpha(\theta', \theta)` in place of Delta:
where that is b Delta, standard deviations are off by the factor :math:`b^{-1/2}`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from pymc_subsample.compiled.functions import address_of
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.model import Model
from pymc_subsample.samplers.minibatch.acceptance import NUMBERS, Criterion, begun, decisions
from pymc_subsample.samplers.minibatch.kernel import control_change

# Decisions per proposal and direction; fewer than the second number say nothing. A choice: errors
# are then good to 1%, the root of 1 / 8,000; of 30 to a tenth.
_DECISIONS = 2_000
_FEWEST = 30
# Standard errors that are no doubt: three are exceeded once in 370 times.
ERRORS = 3
# Acceptance probabilities below this say too little of the log-ratio. A choice: chains hardly
# ever take such moves.
_SMALLEST = 0.02
# And those below so many standard errors. Exceeded once in two million times.
_KNOWN = 5
# Terms y that are too small to mislead anybody. A choice: acceptance probabilities change by
# less.
_ROUNDING = 1e-6


def metropolis(log_ratio: float, uniforms: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the acceptance probability of Metropolis and Hastings, and decisions by uniforms."""
    probability = float(np.exp(min(log_ratio, 0.0)))
    return probability, uniforms < probability


def barker(log_ratio: float, uniforms: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the acceptance probability of Barker, and decisions by uniforms."""
    return float(expit(log_ratio)), uniforms > expit(-log_ratio)


class Proposed(NamedTuple):
    """A proposal to look at."""

    # From where to where, shape (d,).
    theta: np.ndarray
    new_theta: np.ndarray
    log_factor: float  # log q(theta | theta') - log q(theta' | theta).
    # What the test takes as the largest size of a row's term y, where somebody gave that.
    bound: float | None = None


@dataclass(frozen=True)
class PilotErrors:
    """Probabilities with which a test accepts, as a pilot found them."""

    # Shape (k,): by the test, estimated, and by all rows.
    probability: np.ndarray
    exact: np.ndarray
    noise: np.ndarray  # Standard error of `probability`, shape (k,).

    @property
    def error(self) -> np.ndarray:
        """Error of the probability, shape (k,)."""
        return self.probability - self.exact

    @property
    def worst(self) -> float:
        """Largest size of an error beyond three standard errors of the pilot."""
        return float(np.max(np.abs(self.error) - ERRORS * self.noise, initial=0.0))


@dataclass(frozen=True)
class AcceptanceErrors(PilotErrors):
    """What a pilot of k proposals found; every proposal counts forth and back, in arrays (2k,)."""

    log_ratio: np.ndarray  # Exact log posterior ratios, shape (2k,).
    largest: float  # Largest share that one row has in the sum of squares of the rows' terms.
    # Shape (j,): exact log posterior ratios, factor included, of all proposals from the chain's
    # draws: also of those about which too few decisions were made, which are in none of the above.
    # Infinite where a draw makes a row impossible.
    rises: np.ndarray
    # Largest size of a row's term over the bound that was given for it, if any was.
    beyond: float | None = None

    @property
    def limit(self) -> float:
        """Size that no error exceeds, but for three standard errors of the pilot."""
        return float(np.max(np.abs(self.error) + ERRORS * self.noise, initial=0.0))

    @property
    def rise(self) -> float:
        r"""Log of the mean posterior ratio of the proposals.

        At draws from the posterior a ratio :math:`e^\Delta` has mean 1, whatever the posterior and
        the proposal, so that this exceeds x with probability :math:`e^{-x}` at most.
        """
        if not len(self.rises):
            return 0.0
        return float(logsumexp(self.rises) - np.log(len(self.rises)))

    def stretch(self) -> tuple[float, float]:
        """Relative error of posterior standard deviations, and what of it is beyond doubt.

        The second number is the nearer end to zero of its interval of three standard errors, and
        zero if that holds zero.
        """
        forth, back = self.probability[::2], self.probability[1::2]
        known = self.probability > np.maximum(_SMALLEST, _KNOWN * self.noise)
        use = known[::2] & known[1::2] & np.isfinite(self.log_ratio[::2])
        delta = self.log_ratio[::2][use]
        if not len(delta) or not np.any(delta):
            return 0.0, 0.0
        implied = np.log(forth[use] / back[use])
        noise = np.hypot(self.noise[::2][use] / forth[use], self.noise[1::2][use] / back[use])
        noise = np.maximum(noise, 1e-6)  # divides nothing by zero
        weights = delta / noise**2
        slope = (weights @ implied) / (weights @ delta)
        error = 1 / np.sqrt(weights @ delta)
        sure = float(np.clip(1.0, slope - ERRORS * error, slope + ERRORS * error))
        # Where decisions hardly depend on the ratio, a thousand times.
        return float(max(slope, 1e-6) ** -0.5 - 1), max(sure, 1e-6) ** -0.5 - 1


@dataclass(frozen=True)
class RepeatedDecisions:
    """A test that decides about a proposal again and again, on fresh random batches."""

    test: Criterion
    # Of each decision; see `decisions`.
    uniforms: np.ndarray
    thresholds: np.ndarray
    most_rows: int  # To read for one proposal.
    rng: np.random.Generator  # Draws batches.

    def decided(self, y: np.ndarray, known: float, bound: float | None = None) -> np.ndarray:
        """Return decisions, 1 or 0, about terms y of all rows, shape (n,), contiguous.

        The test takes `bound` as that of their sizes. Default: their smallest and largest.
        """
        low, high = (y.min(), y.max()) if bound is None else (-bound, bound)
        functions = np.array([f.address for f in NUMBERS], dtype=np.int64)
        model = Model(functions, np.array([y.ctypes.data]), 1)
        permutation, accepted = np.arange(len(y), dtype=np.uint32), np.empty(len(self.uniforms))
        done = decisions(
            address_of(self.rng), model, self.test, permutation,
            begun(known, 0.0, 0.0, 0.0, low, high), self.uniforms, self.thresholds, accepted,
            self.most_rows,
        )  # fmt: skip
        return accepted[:done]


def largest_share(y: np.ndarray) -> float:
    """Share that one row has in the sum of squares of terms, at most."""
    spread = (y - y.mean()) ** 2
    return float(spread.max() / max(spread.sum(), 1e-300))  # divides nothing by zero


def acceptance_errors(
    expansion: Expansion,
    reference: Reference | None,
    proposals: list[Proposed],
    *,
    order: int,
    temperature: float,
    test: int,
    settings: np.ndarray,
    always: np.ndarray | tuple = (),
    exact: Callable[[float, np.ndarray], tuple[float, np.ndarray]],
    most_rows: int,
    rng: np.random.Generator,
) -> AcceptanceErrors:
    """Measure the errors of a test on some proposals: one pass over the rows for each.

    There is no reference without control variates, whose order is 0 then. `test` and `settings` are
    the test's address and numbers; it reads rows `always`. `exact`, `metropolis`, `barker` or
    another, returns the probability with which it is meant to accept, by log-ratio, and its
    decisions with all rows by uniform numbers. Decisions read `most_rows` in all. Proposals about
    which the test then decides fewer than 30 times are left out: it reads nearly all rows for them.
    """
    rows = partial(_rows, expansion, reference, order=order, temperature=temperature, always=always)
    uniforms = (rng.permutation(_DECISIONS) + 0.5) / _DECISIONS
    most = most_rows // (2 * len(proposals))
    repeated = RepeatedDecisions(Criterion(test, settings), uniforms, np.log(uniforms), most, rng)
    found: list[tuple[float, float, float, float]] = []
    rises: list[float] = []
    largest, beyond = 0.0, None
    for proposal in proposals:
        y, known = rows(proposal.theta, proposal.new_theta)
        known += proposal.log_factor
        if np.all(np.isfinite(y)):
            largest = max(largest, largest_share(y))
        rises.append(known + y.mean())
        # Where a row is impossible, so is its difference with itself.
        if not rises[-1] < np.inf and not np.all(
            np.isfinite(np.hstack(rows(*[proposal.theta] * 2)))
        ):
            rises[-1] = np.inf
        if proposal.bound is not None:
            allowed = max(proposal.bound, _ROUNDING)
            beyond = max(beyond or 0.0, float(np.abs(y).max()) / allowed)
        both = [repeated.decided(s * y, s * known, proposal.bound) for s in (1.0, -1.0)]
        if min(map(len, both)) < _FEWEST:
            continue
        for sign, accepted in zip((1.0, -1.0), both, strict=True):
            ratio = sign * rises[-1]
            ratio = -np.inf if np.isnan(ratio) else ratio  # as the transition takes it
            found.append((ratio, *compared(accepted, *exact(ratio, uniforms[: len(accepted)]))))
    log_ratio, probability, right, noise = np.array(found).reshape(-1, 4).T
    rise = np.nan_to_num(np.array(rises), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    return AcceptanceErrors(probability, right, noise, log_ratio, largest, rise, beyond)


def compared(
    accepted: np.ndarray, exact: float, decisions: np.ndarray
) -> tuple[float, float, float]:
    """Estimate of the acceptance probability, the exact one, and the estimate's standard error.

    Comparison with the exact decisions at the same random numbers leaves little noise where the
    test hardly ever differs from them.
    """
    done, share = len(accepted), accepted.mean()
    wrong = accepted - decisions
    floor = 1 / done
    plain, paired = max(share * (1 - share), floor), max(wrong.var(), floor)
    if paired < plain:
        return float(np.clip(exact + wrong.mean(), 0, 1)), exact, float(np.sqrt(paired / done))
    return share, exact, float(np.sqrt(plain / done))


def _rows(
    expansion: Expansion,
    reference: Reference | None,
    theta: np.ndarray,
    new_theta: np.ndarray,
    order: int,
    temperature: float,
    always: np.ndarray | tuple,
) -> tuple[np.ndarray, float]:
    """Terms y of rows, but for `always`, and the known part of the log-ratio but for proposals."""
    (phi, prior), (new_phi, new_prior) = (expansion.parameters(t) for t in (theta, new_theta))
    center = np.zeros_like(phi) if reference is None else reference.center
    known = new_prior - prior
    if reference is not None and order:
        known += control_change(phi, new_phi, reference.sums(order), np.empty_like(phi))
    y = np.concatenate(list(expansion.over(_changes, phi, new_phi, center, order > 0)))
    with np.errstate(over="ignore"):
        if len(always):
            known, y = known + y[always].sum() / temperature, np.delete(y, always)
        return y * (len(y) / temperature), known


def _changes(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    phi: np.ndarray,
    new_phi: np.ndarray,
    center: np.ndarray,
    anchored: bool,
) -> np.ndarray:
    [rows] = batches
    if anchored:
        expansion.anchor(center, rows)
    expansion.change(phi, new_phi, center, rows, y := np.empty(rows.shape[1]))
    return y
