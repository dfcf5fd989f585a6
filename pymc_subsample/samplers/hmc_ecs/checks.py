"""Whether an HMC-ECS chain can be trusted: the checks behind its warnings."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import chdtri

from pymc_subsample.bounds.predictor_ranges import ELSE, exact_step
from pymc_subsample.diagnostics.checks import (
    MODES,
    SHIFT_BOUND,
    STRETCH_BOUND,
    TEMPERATURE,
    Finding,
    Rule,
    amount,
    check_temperature,
    excess,
    remedies,
    sentence,
)
from pymc_subsample.diagnostics.divergences import check_divergences, divergence_rules
from pymc_subsample.diagnostics.estimate_errors import (
    SAMPLED,
    Estimator,
    errors_by_all,
    errors_by_few,
    few,
    read_few,
)
from pymc_subsample.diagnostics.perturbation import (
    DrawErrors,
    EstimateErrors,
    Perturbation,
    perturbation,
    standardised,
    with_known_sd,
)
from pymc_subsample.diagnostics.record import ChainRecord
from pymc_subsample.diagnostics.tails import TAIL
from pymc_subsample.expansion.block_poisson import log_variance
from pymc_subsample.expansion.estimators import VARIANCE_BOUND, ResidualMoments
from pymc_subsample.expansion.factors import whiten
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH

_LARGER = "Increase subsample_size (up to the number of rows)"
_MORE = (
    f"{_LARGER}: the chain's warning says by how much. control_variate_order=2 and reference=None, "
    "the defaults, need the fewest."
)
TUNE = Rule(
    "tune", "tuning draws", 1, "Use tune=1000.", severity="warn", at_least=True,
    besides="Matters only if another check of the chain fails; none does.",
)  # fmt: skip
# Acceptance rate of trajectories that step sizes are tuned to, as in Stan and PyMC.
TARGET_ACCEPT = 0.8
DISTANCE = Rule(
    "reference_distance",
    "reference point: distance / usual distance",
    1.0,
    "Leave reference=None, or tune for longer.",
    severity="warn",
    besides="A reference point that the step found may be farther away than usual (1) if the "
    "estimate passes its checks, as here.",
)
# The share of draws that may exceed twice the variance bound. A choice: at a variance of twice the
# bound estimates still move chains, and a larger share would weigh on their standard deviations.
EXCESS_BOUND = 0.05
NOISE = Rule(
    "loglik_variance", "variance of the estimate", VARIANCE_BOUND, _MORE,
    besides=f"Above {2 * VARIANCE_BOUND:g} in more than {EXCESS_BOUND:.0%} of the draws.",
    mean_of="loglik_variance", seldom=(2 * VARIANCE_BOUND, EXCESS_BOUND),
)  # fmt: skip
REFRESH = Rule(
    "subset_accepted",
    "accepted refreshes of the subsample",
    0.5,
    f"{_LARGER} or n_blocks.",
    at_least=True,
    mean_of="subset_accepted",
)
PERTURBATION = Rule(
    "perturbation", "perturbation of the posterior / tolerable perturbation", 1.0, f"{_MORE} {ELSE}"
)


def dynamics_rules(step: str) -> tuple[Rule, Rule, Rule]:
    """Return what trajectories must keep to: divergences, what these may hide, acceptance."""
    calmer = f"Give {step}(target_accept=0.95), then 0.99, or increase tune."
    acceptance = Rule(
        "acceptance_rate", "accepted moves", 0.3, "Increase tune.", "warn", at_least=True,
        mean_of="acceptance_rate",
    )  # fmt: skip
    return *divergence_rules("divergences", calmer), acceptance


DIVERGENCES, HIDDEN, ACCEPTANCE = dynamics_rules("HMCECS")
NEGATIVE = Rule(
    "negative",
    "draws of negative sign",
    0.0,
    "Use pms.summary, pms.expectation and pms.quantile, which account for them.",
    severity="warn",
)
SIGN = Rule(
    "sign",
    "share of effective draws left by the signs",
    0.5,
    f"{_LARGER}, or use estimator='perturbed'. {ELSE}",
    severity="warn",
    at_least=True,
)
# Draws beyond the ellipsoid that holds all but this of a normal distribution. A choice: one of
# 10,000 draws.
_RARE = 1e-4
CONFINED = Rule(
    "confined", "draws near the edge of the sampled region", 0.02, 'Use estimator="perturbed".'
)
RULES = (
    TUNE, DISTANCE, NOISE, REFRESH, PERTURBATION, NEGATIVE, SIGN, CONFINED, DIVERGENCES, HIDDEN,
    ACCEPTANCE, TEMPERATURE, TAIL, MODES,
)  # fmt: skip

# What one draw counts at most.
_MOST_NOISE = VARIANCE_BOUND / EXCESS_BOUND
# Mean squared distance along any direction up to which the set-up's residual moments hold: rows
# that matter farther out alone are in no random few. A choice: the pilot points are about there, or
# beyond.
_PREDICTED = 2.0
# Times as many rows are advised as would be just enough. A choice: what is advised should do at
# the first try.
_AMPLE = 2.0


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """How a chain estimated the log-likelihood."""

    estimator: Estimator
    active: np.ndarray  # Elements of theta that move, shape (a,).
    # Residual moments over all rows within the covariance whose factor is `factor`.
    predicted: ResidualMoments
    factor: np.ndarray
    n_blocks: int
    given_reference: bool  # Whether the user chose it.
    tune: int
    began: str = ""  # Where the chain started.
    kind: int = PERTURBED
    # Factor of the ellipsoid outside which the chain cannot go.
    confined: np.ndarray | None = None
    # Returns, for draws theta, shape (k, d), those variables that theta holds the logarithms of,
    # shape (k, l): of their standard deviations a few draws far out make most.
    positive: Callable[[np.ndarray], np.ndarray] | None = None


def check_hmc(record: ChainRecord, by: Estimates) -> list[Finding]:
    """Check one HMC-ECS chain; causes stand before their effects.

    A distant reference is reported where the user chose it, also if the other checks pass; one that
    was found, and a chain without tuning, only together with them.
    """
    record.fold()
    estimator, active = by.estimator, by.active
    expansion, reference = estimator.expansion, estimator.reference
    subsample_size, temperature = estimator.subsample_size, estimator.temperature
    n, size, signed = record.done, len(active), by.kind == BLOCK_POISSON
    thetas, noise, shares = record.weighted()
    z = record.standardise(thetas, active)
    if by.positive is not None:
        z = np.hstack([z, with_known_sd(standardised(by.positive(thetas), shares), shares)])

    def look(errors: DrawErrors) -> tuple[float, Perturbation]:
        if signed:
            products = subsample_size / MINIBATCH
            return errors.average(partial(_noise_of_products, products)), Perturbation(0, 0, 0, 0)
        return errors.average(_noise), perturbation(errors.weights(), shares, z)

    rows = read_few(estimator, thetas)
    variance, off = look(errors_by_few(estimator, rows, shares))
    if expansion.n_rows > few(expansion):
        far = whiten(by.factor, (np.array(record.thinned) - reference.theta)[:, active].T)
        noisy = np.max(by.predicted.variance(subsample_size, temperature))
        biased = 0.0 if signed else np.max(by.predicted.perturbation(subsample_size, temperature))
        clear = (
            variance < VARIANCE_BOUND / 2
            and excess(off.seen_shift, off.seen_stretch) < 0.5
            and noisy < VARIANCE_BOUND
            and biased < SHIFT_BOUND
            and np.max(np.mean(far**2, axis=1)) < _PREDICTED
        )
        sampled = 0 if clear else SAMPLED
        variance, off = look(errors_by_all(estimator, rows, thetas, shares, noise, z, sampled))
    largest = expansion.n_rows // MINIBATCH * MINIBATCH if signed else expansion.n_rows
    more_rows = subsample_size < largest
    left = partial(remedies, subsample_size, largest, expansion.raisable, by.given_reference)
    off_by = excess(off.shift, off.stretch)
    look_at = "look for outlying rows and small groups"
    doubtful = record.negative > 0 if signed else not off_by <= 1
    exact = exact_step(expansion, reference) if doubtful else []
    noisy, often = _noisiness(record, variance)
    # As many times the rows as keep to both bounds: noise falls like 1 / m, perturbation like m^-2.
    times = [_AMPLE * max(noisy, _MOST_NOISE * often) / VARIANCE_BOUND]
    times += [] if signed else [np.sqrt(_AMPLE * off_by)]
    advice = left(float(np.max(times)))
    findings = [
        _noise_check(noisy, often, sentence(advice)),
        _refresh_check(record, more_rows, by.n_blocks < subsample_size),
        *(
            [
                *_sign_checks(record, more_rows, exact),
                _confined_check(record, reference, active, by.confined),
            ]
            if signed
            else [
                _perturbation_check(
                    off.shift,
                    off.stretch,
                    sentence([*advice, *exact, look_at]),
                )
            ]
        ),
    ]
    if n > 2 * size:
        harmless = not by.given_reference and all(x.passed for x in findings)
        findings.insert(0, _distance_check(record, reference, active, harmless, by.given_reference))
    findings += check_dynamics(record, active, (DIVERGENCES, HIDDEN, ACCEPTANCE))
    tuning = check_tuning(by.tune, all(x.passed for x in findings), by.began)
    return [tuning, *findings, check_temperature(temperature)]


def _noise(errors: EstimateErrors) -> np.ndarray:
    """Variances of the estimate: a single draw does not decide on their average."""
    return np.minimum(np.nan_to_num(errors.variance, nan=np.inf), _MOST_NOISE)


def _noise_of_products(products: float, errors: EstimateErrors) -> np.ndarray:
    sds = np.sqrt(products * errors.variance)
    noise = [log_variance(products, sd) if np.isfinite(sd) else np.inf for sd in sds]
    return np.minimum(noise, _MOST_NOISE)


def check_tuning(tune: int, healthy: bool, began: str) -> Finding:
    """Say so where a chain was not tuned, unless it is healthy otherwise.

    `began` says where it started, as "at initvals"; empty where that is not known.
    """
    start = f"it started {began} and " * bool(began)
    return TUNE.check(
        tune,
        f"The chain was not tuned (tune=0): {start}its step size was never adapted, which may be "
        "the only thing wrong. Use tune=1000.",
        tune > 0 or healthy,
    )


def _noisiness(record: ChainRecord, measured: float) -> tuple[float, float]:
    """Return the estimate's variance on average, and the share of draws where it is twice a bound.

    `measured` is that at some of the draws, by all rows.
    """
    n = record.done
    return float(np.maximum(record.noise / n, measured)), record.excess / n


def _noise_check(variance: float, often: float, advice: str) -> Finding:
    return NOISE.check(
        variance,
        f"The log-likelihood estimate is too noisy: its variance is {amount(variance)} on average "
        f"(should be at most {VARIANCE_BOUND:g}) and above {2 * VARIANCE_BOUND:g} in "
        f"{often:.0%} of the draws, so the posterior can be wrong. "
        f"{advice}",
        NOISE.holds(variance) and often <= EXCESS_BOUND,
    )


def _refresh_check(record: ChainRecord, more_rows: bool, more_blocks: bool) -> Finding:
    accepted = record.subset_accepted / record.done
    advice = ["increase subsample_size"] if more_rows else []
    advice += ["increase n_blocks"] if more_blocks else []
    return REFRESH.check(
        accepted,
        f"Only {accepted:.0%} of the subsample's refreshes were accepted ("
        f"{REFRESH.should('.0%')}): the chain may be stuck on one subsample. "
        + sentence(advice or ["sample this model with pm.sample()"]),
    )


def _distance_check(
    record: ChainRecord, reference: Reference, active: np.ndarray, harmless: bool, given: bool
) -> Finding:
    """Say whether the reference is distant, unless that is known to do no harm."""
    # A draw is about the root of their number away, and three more.
    distance, bound = record.distance(reference.theta, active), 3 + np.sqrt(len(active))
    return DISTANCE.check(
        distance / bound,
        f"The reference point is stale: it lies {amount(distance)} posterior standard deviations "
        f"from the mean of the draws (should be at most {bound:.3g}), and the error of the control "
        "variates grows with that distance. "
        + ("Leave reference=None, or give" if given else "Tune for longer, or give as reference=")
        + " a point nearer the posterior mean.",
        harmless or distance <= bound,
    )


def _perturbation_check(shift: float, stretch: float, advice: str) -> Finding:
    value = excess(shift, stretch)
    off = (
        f"posterior means are off by about {shift:.2g} standard deviations (should be at most "
        f"{SHIFT_BOUND:g}), standard deviations by about {stretch:.0%} (at most "
        f"{STRETCH_BOUND:.0%})"
        if np.isfinite(value)
        else "posterior means and standard deviations are off by more than can be computed"
    )
    return PERTURBATION.check(
        value,
        "The subsample perturbs the posterior: the rows' residuals are skewed or heavy-tailed, and "
        f"{off}. {advice}",
    )


def _sign_checks(record: ChainRecord, more_rows: bool, exact: list[str]) -> list[Finding]:
    negative = record.negative / record.done
    left = (1 - 2 * negative) ** 2
    return [
        NEGATIVE.check(
            negative,
            f"The likelihood estimate is negative in {amount(100 * negative)}% of the draws, which "
            "count with the opposite sign: use pms.summary, pms.expectation and pms.quantile. "
            "az.summary and plots of the draws don't know the signs.",
        ),
        SIGN.check(
            left,
            f"So many signs leave {left:.0%} of the effective draws ("
            f"{SIGN.should('.0%')}). "
            + sentence(
                [*(["increase subsample_size"] * more_rows), *exact, "use estimator='perturbed'"]
            ),
        ),
    ]


def _confined_check(
    record: ChainRecord, reference: Reference, active: np.ndarray, confined: np.ndarray | None
) -> Finding:
    assert confined is not None
    z = whiten(confined, (np.array(record.thinned) - reference.theta)[:, active].T)
    share = float(np.mean((z**2).sum(axis=0) > chdtri(len(active), _RARE)))
    return CONFINED.check(
        share,
        f"The posterior has heavier tails than a normal distribution: {share:.0%} of the draws lie "
        f"where a normal distribution has {_RARE:.2%}, near the edge of the ellipsoid to which the "
        'block-Poisson estimate confines the chain. Use estimator="perturbed", or reparameterise.',
    )


def check_dynamics(
    record: ChainRecord,
    active: np.ndarray,
    rules: tuple[Rule, Rule, Rule],
    target: float = TARGET_ACCEPT,
) -> list[Finding]:
    """Check trajectories by the rules of `dynamics_rules`; the last is for rates tuned to 0.8."""
    divergences, hidden, acceptance = rules
    least = acceptance.bound * min(target / TARGET_ACCEPT, 1.0)
    accepted = record.acceptance / record.done
    return [
        *check_divergences(divergences, hidden, record, active, divergences.remedy),
        acceptance.check(
            accepted
            if target >= TARGET_ACCEPT or accepted < least
            else np.nan,  # the rule's own bound
            f"Only {accepted:.0%} of the moves were accepted (should be at least "
            f"{least:.0%}): the step size does not fit. Increase tune.",
            accepted >= least,
        ),
    ]
