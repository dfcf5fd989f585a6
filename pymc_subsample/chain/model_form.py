"""The form in which a model is sampled: the order of its expansion, and the chain's coordinates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.chain.setup import Preparation, Problem
from pymc_subsample.coordinates import (
    QRCoordinates,
    find_coordinates,
    find_nesting,
    find_qr,
    reparameterise,
)
from pymc_subsample.expansion import Expansion, expand, verify_gradient
from pymc_subsample.expansion.curvature import MAX_CURVATURE
from pymc_subsample.expansion.scales import better_scales
from pymc_subsample.model import TallModel, TallModelError


@dataclass
class Form:
    """What of a model's form is found once, and holds wherever the step is connected anew."""

    own: bool  # Whether the chain may have coordinates of its own.
    # Groups within groups; None where they were not looked for.
    nesting: list[np.ndarray] | None = None
    # Coordinates in which nearly collinear columns are apart.
    apart: QRCoordinates | None = None
    # On which of `model.scales.SCALES` rows see parameters, by their numbers.
    scales: dict[int, str] = field(default_factory=dict)

    def expanded(
        self,
        tall: TallModel,
        names: Sequence[str],
        make: Callable[[TallModel], Expansion],
        *,
        gradient: bool,
    ) -> Expansion:
        """Make an expansion, in the chain's own coordinates of variables `names` if there are some.

        With `gradient` its gradient is verified.
        """
        apart, effects = self.apart, None
        tall.qr = None if apart is None else apart.qr
        expansion = make(tall)
        if self.own:
            if self.nesting is None:
                self.nesting = find_nesting(expansion)
            effects = find_coordinates(tall, names, self.nesting)
        if gradient:
            verify_gradient(tall, expansion)
        if apart is not None:
            expansion.reparameterise(apart)
        if effects is not None:
            if reparameterise(tall, expansion, effects):
                effects.qr = apart
            elif apart is not None:
                expansion.reparameterise(apart)
        return expansion

    @property
    def digest(self) -> str:
        """Tells columns and scales of rows from others; empty for those of the model."""
        columns = "" if self.apart is None else f", columns {self.apart.digest}"
        return f"{columns}, scales {self.scales}" if self.scales else columns

    def rescaled(
        self, tall: TallModel, expansion: Expansion, problem: Problem, prepared: Preparation
    ) -> bool:
        """Whether expansions on other scales would leave less; these hold from now on."""
        if expansion.order >= 2:
            self.scales = better_scales(
                tall, expansion, prepared.reference, prepared.pilot, prepared.far,
                problem.temperature,
            )  # fmt: skip
        return bool(self.scales)

    def collinear(
        self, tall: TallModel, expansion: Expansion, names: Sequence[str]
    ) -> QRCoordinates | None:
        """Return coordinates in which nearly collinear columns would be apart."""
        return find_qr(tall, expansion, names) if self.own else None


def expansion_of_order(tall: TallModel, order: int | str) -> Expansion:
    """Compile control variates of the order asked for; "auto" is the highest that there is."""
    expansion = expand(tall, 2 if isinstance(order, str) else order)
    if expansion.rough is not None and order == 2:
        raise TallModelError(
            f"PyTensor has no second derivatives of the log-likelihood of "
            f"{', '.join(map(repr, tall.observed))} ({expansion.rough}), which control variates of "
            'order 2 are made of. Use control_variate_order="auto" or 1, or HMCECS in place of a '
            "step that has neither."
        )
    if expansion.order <= expansion.highest_order:
        return expansion
    if isinstance(order, str):
        return expand(tall, expansion.highest_order)
    size = tall.phi_size
    raise TallModelError(
        f"{size:,} parameters meet the data in this model. control_variate_order=2 needs the "
        "sum of their curvatures over all rows, a matrix that is limited to "
        f"{MAX_CURVATURE:,} parameters unless groups leave most of it zero. Use "
        f"control_variate_order=1, which takes about {size**2 // 2:,} rows per draw, or sample "
        "this model with pm.sample()."
    )
