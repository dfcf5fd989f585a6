"""Delayed acceptance as a PyMC step method."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from pymc_subsample.samplers.delayed import kernel
from pymc_subsample.samplers.delayed.sampler import DELAYED_MH

from pymc_subsample.chain import arguments, finding_reference, moves
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.model_compilation import attach
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.shared_arguments import SharedTransitions
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.kernels.proposals import Proposing


def _connected(step: Any) -> None:
    step.packed = None, None  # A reference, and all rows with what is cached of them there.


def _run(
    step: Any, thetas: np.ndarray, kind: int, given: np.ndarray, log_factor: float, k: int
) -> dict[str, np.ndarray]:
    if step.packed[0] is not step.reference:
        rows = step.expansion.take(np.arange(step.n_rows))
        step.expansion.anchor(step.reference.center, rows)
        step.packed = step.reference, rows
    infos, size = np.empty((len(thetas), len(kernel.INFO))), moves.scaling(step)
    moving = Proposing(kind, step.active, step.tuning.factor, size, 0, given, log_factor)
    kernel.transitions(
        address_of(step.rng), step.compiled, step.sums(), moving, step.packed[1],
        1.0 / step.temperature, thetas, k, infos,
    )  # fmt: skip
    return dict(zip(kernel.INFO, infos.T, strict=True))


METHOD = moves.method(
    _run, functions=lambda step: kernel.FUNCTIONS, connected=_connected, anew=("packed",)
)


class DelayedMH(ChainStep, shares=moves.set_up):
    r"""Metropolis-Hastings of which control variates decide first, and all rows about the rest.

    Parameters
    ----------
    control_variate_order : {"auto", 2, 1}, default "auto"
        Order of the Taylor control variates: the higher, the fewer rows are read for nothing.
    """

    sampler, method = DELAYED_MH, METHOD

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        control_variate_order: int | str = "auto",
        **above: Unpack[SharedTransitions],
    ):
        order = arguments.order(control_variate_order, "DelayedMH", plain=False)
        moves.set_up(self, vars, **above)
        attach(self, order)
        self.control_variate_order = self.expansion.order
        _, self.prepared = finding_reference.find(self, temperature=self.temperature)
        warn_of_modes(self)
        self.begin(tune=0, draws=0)
