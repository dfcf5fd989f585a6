r"""How wrong a minibatch acceptance test is, measured on proposals of the chain itself.

For a few proposals :math:`\theta \to \theta'` every row is read once; the test then decides about
them again and again on fresh random batches of those numbers, forth and back. Its acceptance
probabilities :math:`\tilde\alpha` are compared with the exact ones. The chain's stationary
distribution obeys detailed balance with the log-ratio
:math:`\log \tilde\alpha(\theta, \theta') - \log \tilde\alpha(\theta', \theta)` in place of Delta:
where that is b Delta, standard deviations are off by the factor :math:`b^{-1/2}`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.kernels import metropolis as kernel

# Decisions per proposal and direction; fewer than the second number say nothing.
_DECISIONS = 2_000
_FEWEST = 30
# Acceptance probabilities below this say too little of the log-ratio.
_SMALLEST = 0.02


def metropolis_probability(log_ratio):
    """Return the acceptance probability of Metropolis and Hastings."""
    return np.exp(np.minimum(log_ratio, 0.0))


def barker_probability(log_ratio):
    """Return the acceptance probability of Barker."""
    return expit(log_ratio)


@dataclass(frozen=True)
class AcceptanceErrors:
    """What a pilot of k proposals found; every proposal counts forth and back.

    Attributes
    ----------
    log_ratio : ndarray, shape (2k,)
        Exact log posterior ratios.
    probability, exact : ndarray, shape (2k,)
        Acceptance probability of the test, estimated, and without subsampling.
    noise : ndarray, shape (2k,)
        Standard error of `probability`.
    largest : float
        Largest share that one row has in the sum of squares of the rows' terms.
    """

    log_ratio: np.ndarray
    probability: np.ndarray
    exact: np.ndarray
    noise: np.ndarray
    largest: float

    @property
    def error(self) -> np.ndarray:
        """Error of the acceptance probability, shape (2k,)."""
        return self.probability - self.exact

    @property
    def worst(self) -> float:
        """Largest size of an error beyond three standard errors of the pilot."""
        return float(np.max(np.abs(self.error) - 3 * self.noise, initial=0.0))

    def stretch(self) -> tuple[float, float]:
        """Relative error of posterior standard deviations, and what of it is beyond doubt.

        The second number is the nearer end to zero of its interval of three standard errors, and
        zero if that holds zero.
        """
        forth, back = self.probability[::2], self.probability[1::2]
        use = (forth > _SMALLEST) & (back > _SMALLEST)
        delta = self.log_ratio[::2][use]
        if not len(delta) or not np.any(delta):
            return 0.0, 0.0
        implied = np.log(forth[use] / back[use])
        noise = np.hypot(self.noise[::2][use] / forth[use], self.noise[1::2][use] / back[use])
        noise = np.maximum(noise, 1e-6)
        weights = delta / noise**2
        slope = (weights @ implied) / (weights @ delta)
        error = 1 / np.sqrt(weights @ delta)
        sure = float(np.clip(1.0, slope - 3 * error, slope + 3 * error))
        return float(max(slope, 1e-6) ** -0.5 - 1), max(sure, 1e-6) ** -0.5 - 1


def acceptance_errors(
    expansion: Expansion,
    reference: Reference | None,
    proposals: list[tuple[np.ndarray, np.ndarray, float]],
    *,
    order: int,
    temperature: float,
    test: int,
    settings: np.ndarray,
    probability: Callable,
    most_rows: int,
    rng: np.random.Generator,
) -> AcceptanceErrors:
    """Measure the errors of a test on some proposals: one pass over the rows for each.

    Parameters
    ----------
    expansion, reference
        Compiled model and expansion point, or None without control variates.
    proposals : list of (theta, theta', log factor)
        Each of shape (d,), and log q(theta | theta') - log q(theta' | theta).
    order : int
        Order of the control variates, 0 for none.
    temperature : float
        Divides the log-likelihood.
    test, settings
        Address of the test and its numbers.
    probability : callable
        Exact acceptance probability of a log-ratio.
    most_rows : int
        Rows that the decisions may read in all. Proposals about which the test then decides fewer
        than 30 times are left out: it reads nearly all rows for them.
    rng : numpy.random.Generator
        Draws batches.
    """
    permutation = np.arange(expansion.n_rows, dtype=np.uint32)
    uniforms = (rng.permutation(_DECISIONS) + 0.5) / _DECISIONS
    thresholds = np.log(uniforms)
    most = most_rows // (2 * len(proposals))
    ratios, probabilities, noise, largest = [], [], [], 0.0
    for theta, new_theta, factor in proposals:
        y, known = _rows(expansion, reference, theta, new_theta, order, temperature)
        known += factor
        if np.all(np.isfinite(y)):
            spread = (y - y.mean()) ** 2
            largest = max(largest, float(spread.max() / max(spread.sum(), 1e-300)))
        both = [
            decided(
                sign * y, sign * known, test=test, settings=settings, uniforms=uniforms,
                thresholds=thresholds, permutation=permutation, most_rows=most, rng=rng,
            )
            for sign in (1.0, -1.0)
        ]  # fmt: skip
        if min(map(len, both)) < _FEWEST:
            continue
        for sign, accepted in zip((1.0, -1.0), both, strict=True):
            ratios.append(sign * (known + y.mean()))
            share, done = accepted.mean(), len(accepted)
            probabilities.append(share)
            noise.append(np.sqrt(max(share * (1 - share), 1 / done) / done))
    log_ratio = np.array(ratios)
    return AcceptanceErrors(
        log_ratio, np.array(probabilities), probability(log_ratio), np.array(noise), largest
    )


def decided(
    y: np.ndarray,
    known: float,
    *,
    test: int,
    settings: np.ndarray,
    uniforms: np.ndarray,
    thresholds: np.ndarray,
    permutation: np.ndarray,
    most_rows: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return what a test decides again and again, 1 or 0; see `kernels.metropolis.decisions`.

    Parameters
    ----------
    y : ndarray, shape (n,)
        Every row's term, contiguous.
    known : float
        Known part of the log-ratio.
    test, settings, uniforms, thresholds, permutation, most_rows, rng
        As `kernels.metropolis.decisions` takes them.
    """
    functions = np.array([f.address for f in kernel.NUMBERS], dtype=np.int64)
    accepted = np.empty(len(uniforms))
    done = kernel.decisions(
        functions, test, np.array([y.ctypes.data]), rng, permutation, known, y.min(), y.max(),
        settings, uniforms, thresholds, accepted, most_rows,
    )  # fmt: skip
    return accepted[:done]


def _rows(
    expansion: Expansion, reference: Reference | None, theta, new_theta, order, temperature
) -> tuple[np.ndarray, float]:
    """Every row's term y, shape (n,), and the known part of the log-ratio but for proposals."""
    (phi, prior), (new_phi, new_prior) = (expansion.parameters(t) for t in (theta, new_theta))
    center = np.zeros_like(phi) if reference is None else reference.center
    known = new_prior - prior
    if reference is not None and order:
        scratch = np.empty_like(phi)
        known += kernel.control_change(
            phi, new_phi, center, reference.slope, reference.curvature, order, scratch
        )
    y = np.empty(expansion.n_rows)
    start = 0
    for rows in expansion.chunks():
        if order:
            expansion.anchor(center, rows)
        part = y[start : start + rows.shape[1]]
        expansion.change(phi, new_phi, center, rows, part)
        start += len(part)
    return y * (expansion.n_rows / temperature), known
