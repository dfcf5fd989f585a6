"""What is said where a log-likelihood has no gradient."""

from collections.abc import Iterator
from contextlib import contextmanager

from pymc_subsample.graph.concrete import UNDIFFERENTIABLE
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.tall_model import TallModel

# What remains for a log-likelihood that is not the integral of its gradient.
WITHOUT_GRADIENT = (
    "This step needs a gradient. Use pms.MinibatchBarkerMH, pms.AusterityMH or pms.ConfidenceMH "
    "with control_variate_order=None and a proposal without gradients, pm.Metropolis or "
    "pm.DEMetropolisZ on all rows, or write a smooth function in place of the step (a sigmoid)."
)


@contextmanager
def differentiated(tall: TallModel, advice: str) -> Iterator[None]:
    """Say which log-likelihood it is that PyTensor cannot differentiate here, and what remains.

    PyMC differentiates it as it is written, and once, with respect to parameters alone.
    """
    try:
        yield
    except UNDIFFERENTIABLE as error:
        raise TallModelError(
            f"PyTensor cannot differentiate the log-likelihood of "
            f"{', '.join(map(repr, tall.observed))} ({type(error).__name__}: {error}) as rows "
            f"need it here. {advice} Where model.compile_dlogp() works, so does pm.NUTS."
        ) from error
