"""The record of Firefly Monte Carlo."""

from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.firefly.checks import RULES

FIREFLY_MC = Sampler(
    name="FireflyMC",
    number=6,
    rules=RULES,
    numbers=("accepted", "acceptance_rate", "n_bright", "batch_size", "scaling", "data_share"),
    shown=("acceptance_rate", "n_bright", "data_share"),
    chosen=("bound_taken", "brightness", "proposal", "expected_bright"),
    advised=Advised(place=2, exact=True),
)
SAMPLERS = (FIREFLY_MC,)
