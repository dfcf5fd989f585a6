"""The record of austerity Gibbs sampling."""

from pymc_subsample.chain.sampler import Sampler
from pymc_subsample.samplers.gibbs.checks import RULES

AUSTERITY_GIBBS = Sampler(
    name="AusterityGibbs",
    number=7,
    rules=RULES,
    numbers=("flips", "batch_size", "data_share", "n_looks", "test_error"),
    shown=("flips", "batch_size", "data_share"),
    chosen=("epsilon", "batch_size", "scan", "sweeps_per_draw"),
)
SAMPLERS = (AUSTERITY_GIBBS,)
