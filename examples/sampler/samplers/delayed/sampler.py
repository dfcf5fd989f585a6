"""The record of delayed acceptance."""

from pymc_subsample.chain.sampler import Sampler
from pymc_subsample.diagnostics.checks import ACCEPTED, MODES, TEMPERATURE
from pymc_subsample.diagnostics.tails import TAIL

DELAYED_MH = Sampler(
    name="DelayedMH",
    number=16,
    rules=(ACCEPTED, TEMPERATURE, TAIL, MODES),
    numbers=("accepted", "acceptance_rate", "data_share", "scaling"),
    shown=("acceptance_rate", "data_share"),
)
SAMPLERS = (DELAYED_MH,)
