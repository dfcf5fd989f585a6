"""Acceptance tests, a module each: what they see of a proposal, and what they answer.

A test is a function ``decide(settings, evidence) -> Answer`` without randomness of its own. It is
handed over by address, so that the transition is compiled once for all tests. `settings` are the
test's numbers, shape (s,), of which the first is the size of its first batch; `vectors.named` gives
them names.
"""

from typing import NamedTuple

from numba import types

from pymc_subsample.compiled.functions import SCALAR, VECTOR

# What a test may answer in place of a number of rows.
ACCEPT, REJECT = -1.0, 0.0


class Evidence(NamedTuple):
    """What is known of a proposal.

    All is in units of the (tempered) log posterior ratio: row i contributes y_i = n / T times its
    own log-ratio, less its control variates', so that the log-ratio is `known` plus the mean of y
    over all rows.
    """

    # All rows, rows seen, and tests so far of this proposal.
    n_rows: float
    n_seen: float
    look: float
    # Mean and central moments of y over the rows seen, with divisor `n_seen`.
    mean: float
    second: float
    third: float
    # Bounds of y over all rows, where the test needs them.
    low: float
    high: float
    known: float  # Log-ratio of priors, proposals and control variates.
    threshold: float  # What the log-ratio must exceed: log u, or logit u for Gibbs sampling.
    # u ~ U(0, 1) and a number from N(0, 1), drawn once per proposal.
    uniform: float
    normal: float


class Answer(NamedTuple):
    """What a test makes of the evidence."""

    decision: float  # `ACCEPT`, `REJECT`, or how many rows it wants to have seen in all.
    # Estimate of the acceptance probability, over the test's random numbers.
    probability: float
    error: float  # Of the probability, or of the decision.
    variance: float  # Of the estimated log-ratio.


EVIDENCE = types.NamedUniTuple(SCALAR, len(Evidence._fields), Evidence)
ANSWER = types.NamedUniTuple(SCALAR, len(Answer._fields), Answer)
DECIDE = ANSWER(VECTOR, EVIDENCE)
