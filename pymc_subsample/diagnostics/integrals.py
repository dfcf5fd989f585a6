"""Whether integrals over local variables, and draws of these, are what they should be."""

from pymc_subsample.diagnostics.checks import Rule

# Statistic of every draw: which of the model's free variables were integrated out, as bits.
INTEGRATED = "integrated"
# And how many levels they have.
LEVELS = "integrated_levels"
INTEGRALS = Rule(
    "integrals",
    "error of the log posterior by integrals over local variables",
    0.1,
    "Sample pms.marginalize(model, n_nodes=...) with twice as many nodes.",
)
LOCAL_DRAWS = Rule(
    "local_draws",
    "probability that draws of a level miss",
    0.01,
    "A level has several modes, or moves far with the other variables: sample this model with "
    "integrate=False, or with pm.NUTS.",
)
UNIT_RULES = (INTEGRALS, LOCAL_DRAWS)
