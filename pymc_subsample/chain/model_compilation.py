"""A step's model: traced, expanded and compiled, at set-up and wherever the step is unpickled.

In which form, of its rows and of the chain's coordinates, is found once.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.chain import guards, variables
from pymc_subsample.chain.points import ThetaLayout
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.setup import Preparation, Problem
from pymc_subsample.chain.sharing import sharer
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.coordinates import (
    QRCoordinates,
    find_coordinates,
    find_nesting,
    find_qr,
    reparameterise,
)
from pymc_subsample.expansion import Expansion, expand
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.expansion.curvature import MAX_CURVATURE
from pymc_subsample.expansion.scales import better_scales
from pymc_subsample.expansion.verification import MISREAD, Agreement
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.errors import WITHOUT_GRADIENT, differentiated
from pymc_subsample.model.verification import warn_about_whole_terms
from pymc_subsample.rows.drawn_samples import warn_of_samples

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")

# What `connect` makes.
CONNECTED = ("tall", "expansion", "compiled", "active", "layout")


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
        if gradient and not Agreement(tall, expansion).of_gradient():
            raise TallModelError(MISREAD)
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
            f"{', '.join(map(repr, tall.likelihood))} ({expansion.rough}), which control variates "
            'of order 2 need. Use control_variate_order="auto" or 1, or HMCECS in place of a step '
            "that has neither."
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


def attach(step: "ChainStep", order: int | str | None) -> None:
    """Trace and compile the model for control variates of some order, or of order "auto"."""
    step.asked_order = 0 if order is None else order
    connect(step)
    if step.method.by_gradients(step) and sharer(step) is None:
        refuse_steps(step, step.expansion.as_written())
    if step.expansion.rough is not None:
        _log.info(
            f"{type(step).__name__}: control variates of order {step.expansion.order}, which "
            "take more rows than those of order 2: PyTensor has no second derivatives of "
            f"{', '.join(map(repr, step.tall.likelihood))} ({step.expansion.rough})"
        )
    step.seen = guards.contents(step.model, step.tall)
    if (data := step.rows_of["data"]) is not None:
        # Copies in other processes need not read all rows again.
        step.rows_of["data"] = require_rows(data).as_checked()
    else:
        warn_of_samples(step.tall.rows.columns, type(step).__name__)
    warn_about_whole_terms(step.tall.whole, step.n_rows)
    if step.units is None and (len(step.tall.rows.names) > 1 or step.tall.whole):
        _log.info(f"{type(step).__name__} subsamples {step.tall.described}")


def refuse_steps(step: "ChainStep", expansion: Expansion) -> None:
    """Refuse a log-likelihood that is flat between steps, or whose gradient is wrong."""
    with (
        doing("looking for jumps of the log-likelihood"),
        building_graphs(),
        differentiated(step.tall, step.method.without_gradient),
    ):
        near = step.units is not None and step.units.approximate
        Continuity(step.tall, expansion, step.active, near).require(WITHOUT_GRADIENT)


def connect(step: "ChainStep") -> None:
    """Make all that is made from the model: `CONNECTED`, and what the method adds."""
    functions, like = step.method.functions(step), sharer(step)
    with building_graphs(), step.workers.in_use():
        if like is not None:
            tall = step.tall = like.tall
        else:
            tall = step.tall = TallModel(
                step.sampled_model, **step.rows_of, scales=step.form.scales
            )
            if not step.method.binary:
                variables.refuse_discrete(step.vars, step.sampled_model)
                variables.refuse_own_steps(step.vars, step.model)
        with (
            doing("compiling the log-likelihood"),
            differentiated(tall, step.method.without_gradient),
        ):
            step.expansion = like.expansion if like is not None else step.form.expanded(
                tall, step.names, lambda rows: step.method.expand(step, rows),
                gradient="gradient" in functions,
            )  # fmt: skip
            step.compiled = step.expansion.model(*functions)
    step.n_rows = tall.n_rows
    step.likelihood = tall.likelihood
    step.layout = ThetaLayout(tall, step.vars)
    step.active = step.layout.places(step.names)
    step.method.connected(step)
