"""The records of stochastic-gradient samplers."""

from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.gradients.checks import RULES

# Where `pms.advise` has them.
_PLACES = {"SGHMC": 3, "SGLD": 7}


def _moving(name: str, number: int) -> Sampler:
    return Sampler(
        name=name,
        home="pms.sgmcmc",
        number=number,
        family="A stochastic-gradient sampler",
        rules=RULES,
        numbers=(
            "batch_size", "data_share", "gradient_variance", "kinetic_temperature", "step_size",
            "temperature",
        ),
        others={"diverging": bool, "divergences": int},
        shown=("divergences", "step_size", "data_share"),
        chosen=(
            "parts.integrator", "parts.gradient", "parts.batches", "batch_size",
            "control_variate_order", "metric", "automatic_step_size",
        ),
        advised=Advised(place=_PLACES[name]) if name in _PLACES else None,
    )  # fmt: skip


SGMCMC = _moving("SGMCMC", 8)
SGLD = _moving("SGLD", 9)
PSGLD = _moving("PSGLD", 10)
SVRGLD = _moving("SVRGLD", 11)
SGHMC = _moving("SGHMC", 12)
SGNHT = _moving("SGNHT", 13)
CLUSTERED_SGHMC = _moving("ClusteredSGHMC", 14)
EWSG = _moving("EWSG", 15)
SAMPLERS = (SGMCMC, SGLD, PSGLD, SVRGLD, SGHMC, SGNHT, CLUSTERED_SGHMC, EWSG)
