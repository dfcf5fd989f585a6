"""A step's model: traced, expanded and compiled, at set-up and wherever the step is unpickled."""

import logging
from typing import TYPE_CHECKING

from pymc_subsample.chain import guards, variables
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.theta_layout import ThetaLayout
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.model import TallModel
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.errors import WITHOUT_GRADIENT, differentiated
from pymc_subsample.model.verification import warn_about_whole_terms
from pymc_subsample.rows.drawn_samples import warn_of_samples

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")

# What `connect` makes.
CONNECTED = ("tall", "expansion", "compiled", "active", "layout")


def attach(step: "ChainStep", order: int | str | None) -> None:
    """Trace and compile the model for control variates of some order, or of order "auto"."""
    step.asked_order = 0 if order is None else order
    connect(step)
    if step.method.by_gradients(step):
        refuse_steps(step, step.expansion.as_written())
    if step.expansion.rough is not None:
        _log.info(
            f"{type(step).__name__}: control variates of order {step.expansion.order}, which "
            "take more rows than those of order 2: PyTensor has no second derivatives of "
            f"{', '.join(map(repr, step.tall.observed))} ({step.expansion.rough})"
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
        Continuity(step.tall, expansion, step.active).require(WITHOUT_GRADIENT)


def connect(step: "ChainStep") -> None:
    """Make all that is made from the model: `CONNECTED`, and what the method adds."""
    functions = step.method.functions(step)
    with building_graphs(), step.made_by.in_use():
        tall = step.tall = TallModel(step.sampled_model, **step.rows_of, scales=step.form.scales)
        if not step.method.binary:
            variables.refuse_discrete(step.vars, step.model)
            variables.refuse_own_steps(step.vars, step.model)
        with (
            doing("compiling the log-likelihood"),
            differentiated(tall, step.method.without_gradient),
        ):
            step.expansion = step.form.expanded(
                tall, step.names, lambda rows: step.method.expand(step, rows),
                gradient="gradient" in functions,
            )  # fmt: skip
            step.compiled = step.expansion.model(*functions)
    step.n_rows = tall.n_rows
    step.observed = tall.observed
    step.layout = ThetaLayout(tall, step.vars)
    step.active = step.layout.places(step.names)
    step.method.connected(step)
