"""What an acceptance test sees of a proposal, and what it answers.

A test is a function ``decide(settings, evidence) -> rows`` without randomness of its own: it
returns how many rows it wants to have seen in all, or `ACCEPT` or `REJECT`. It is handed over by
address, so that the transition is compiled once for all tests.

`settings` are the test's numbers, shape (s,); the first is the size of its first batch.
`evidence`, shape (len(EVIDENCE),), holds the rest. All quantities are in units of the (tempered)
log posterior ratio: row i contributes y_i = n / T times its own log-ratio, less its control
variates', so that the log-ratio is `known` plus the mean of y over all rows.
"""

from numba import types

from pymc_subsample.compile import VECTOR

EVIDENCE = (
    "n_rows",
    "count",  # rows seen
    "look",  # tests so far of this proposal
    "mean",  # of y, over the rows seen
    "second",  # central moments of y, over the rows seen
    "third",
    "low",  # bounds of y over all rows, where the test needs them
    "high",
    "known",  # log-ratio of priors, proposals and control variates
    "threshold",  # what the log-ratio must exceed: log u, or logit u for Gibbs
    "uniform",  # u ~ U(0, 1), drawn once per proposal
    "normal",  # N(0, 1), likewise
    # Written by the test:
    "probability",  # estimate of the acceptance probability
    "error",  # of the probability, or of the decision
    "variance",  # of the estimated log-ratio
)
(N_ROWS, COUNT, LOOK, MEAN, SECOND, THIRD, LOW, HIGH, KNOWN, THRESHOLD, UNIFORM, NORMAL,
 PROBABILITY, ERROR, VARIANCE) = range(len(EVIDENCE))  # fmt: skip

ACCEPT, REJECT = -1, 0

DECIDE = types.int64(VECTOR, VECTOR)
