"""Which rows a surrogate reads itself: those whose expansions leave most of the posterior."""

import numpy as np

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.forecast import remainders
from pymc_subsample.control_variates.reference import Reference

# At most so many, and how many numbers of them are tried.
_MOST, _TRIED = 4096, 40
# By how much effective proposals must become faster.
_WORTHWHILE = 1.5
# What a remainder counts for that is not finite.
_IMPOSSIBLE = 1e6


@one_thread
def exact_rows(
    expansion: Expansion,
    reference: Reference,
    points: np.ndarray,
    *,
    temperature: float,
    gradients: float,
    row: float,
    others: float,
) -> np.ndarray:
    """Choose rows that the surrogate reads, by what they cost and how near they bring it.

    Rows of small groups decide against most proposals together, and against those that would bring
    a chain back from where the surrogate has little mass: there, a log-likelihood of few rows is no
    parabola. Two passes over the rows.

    `points`, values of phi, shape (K, P), are spread as the posterior is. There are `gradients` of
    the surrogate per proposal; `row` is the time that a row adds to one, `others` that of the rest
    of a proposal. Returns rows in order; none where none are worth their time.
    """
    scores, total = [], np.zeros(len(points))
    for left in expansion.over(remainders, reference.center, points):
        varying = _varying(left)
        scores.append(np.linalg.norm(varying, axis=0).astype("f4"))
        total += varying.sum(axis=1)
    score = np.concatenate(scores)
    most = min(_MOST, len(score))
    index = np.argpartition(-score, most - 1)[:most]
    index = index[np.argsort(-score[index], kind="stable")]
    rows = expansion.take(index)
    varying = _varying(remainders(expansion, [rows], reference.center, points))
    left = total[:, None] - np.column_stack([np.zeros(len(points)), np.cumsum(varying, axis=1)])
    tried = np.unique(np.r_[0, np.geomspace(8, most, _TRIED).astype(int)])
    tried = tried[tried <= most]
    # Of normal log-ratios between posterior and surrogate, the share of draws that are effective.
    effective = np.exp(-left[:, tried].var(axis=0) / temperature**2)
    rate = effective / (others + gradients * row * tried)
    best = int(np.argmax(rate))
    return np.sort(index[: tried[best] if rate[best] > _WORTHWHILE * rate[0] else 0])


def _varying(left: np.ndarray) -> np.ndarray:
    left = np.nan_to_num(left, nan=-_IMPOSSIBLE, neginf=-_IMPOSSIBLE, posinf=_IMPOSSIBLE)
    return left - left.mean(axis=0)
