"""The records of Metropolis-Hastings on growing batches."""

from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.minibatch.checks import RULES


def deciding(
    name: str,
    number: int = 0,
    place: int | None = None,
    error: str = "test_error",
    level: str | None = None,
) -> Sampler:
    """Return the record of a test.

    `error` is what its own is called among the statistics, and `level` the argument that bounds it.
    """
    return Sampler(
        name=name,
        number=number,
        family="MinibatchBarkerMH, AusterityMH or ConfidenceMH",
        rules=RULES,
        numbers=(
            "accepted", "acceptance_rate", "batch_size", "n_looks", error, "loglik_ratio_variance",
            "scaling", "data_share",
        ),
        shown=("acceptance_rate", "batch_size", "data_share"),
        chosen=(*([level] if level else []), "batch_size", "control_variate_order", "proposal"),
        advised=None if place is None else Advised(place=place, by_gradients=False),
    )  # fmt: skip


MINIBATCH_BARKER_MH = deciding(
    "MinibatchBarkerMH", 3, place=4, error="clt_error", level="max_error"
)
AUSTERITY_MH = deciding("AusterityMH", 4, place=5, level="epsilon")
CONFIDENCE_MH = deciding("ConfidenceMH", 5, place=6, level="delta")
SAMPLERS = (MINIBATCH_BARKER_MH, AUSTERITY_MH, CONFIDENCE_MH)
