"""What must not touch a chain: data that changed, another thread, other steps on its variables."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep

from pymc_subsample.chain.pm_sample import steps_beside
from pymc_subsample.model import TallModel, TallModelError

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_MOST_ROWS = 2**32  # Numbers of rows are of 32 bits.


def contents(model: pm.Model, tall: TallModel) -> dict[str, Any]:
    """Variables of a model, the arrays behind its data and digests of these, as named.

    A digest can miss changes in few elements of a long array; see `rows.row_store.glimpse`.
    """
    variables = [*model.basic_RVs, *model.potentials]
    data = {v: v.get_value(borrow=True) for v in model.data_vars if hasattr(v, "get_value")}
    objects = {v: v for v in variables} | data
    named = {repr(v.name): x for v, x in objects.items()}
    digests = tall.glimpses()
    return {name: (named.get(name), digests.get(name)) for name in {**named, **digests}}


def refuse_changes(step: "ChainStep") -> None:
    """Refuse a model, or data, that changed after the step was made; see `contents`."""
    if step.units is not None:
        step.units.refuse_changes()
    seen, now = step.seen, contents(step.model, step.tall)
    changed = [name for name in {**seen, **now} if _differ(seen.get(name), now.get(name))]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed after this {type(step).__name__} was made, which read "
            "the model and its data at that time. Make a new step for the model as it is now."
        )


def _differ(seen: tuple | None, now: tuple | None) -> bool:
    """Whether a part of the model, or the content of its data, is another one."""
    if seen is None or now is None:
        return True
    return seen[0] is not now[0] or seen[1] != now[1]


def refuse_other_thread(step: BlockedStep, thread: threading.Thread | None) -> None:
    """Refuse a chain that another thread runs."""
    if thread is not None and thread is not threading.current_thread():
        raise ValueError(
            f"This {type(step).__name__} runs a chain in another thread ({thread.name}). Make a "
            "step for each thread; if that chain was interrupted, make a new one."
        )


def refuse_company(step: BlockedStep, left: np.ndarray | None, found: np.ndarray) -> None:
    """Refuse to go on where something else moved what this chain left."""
    if left is not None and not np.array_equal(left, found):
        raise ValueError(
            f"{', '.join(repr(v.name) for v in step.vars)}: moved between two draws of this "
            f"{type(step).__name__}. Another step samples the same variables: give each "
            "variable to one step (vars=)."
        )


def row_numbers(step: BlockedStep, n_rows: int, likelihood: Sequence[str]) -> np.ndarray:
    """Return 0, 1, ..., n - 1, for a step that draws rows without replacement; refuse too many."""
    if n_rows > _MOST_ROWS:
        raise TallModelError(
            f"There are {n_rows:,} rows of {', '.join(map(repr, likelihood))}, and "
            f"{type(step).__name__} keeps the number of each in 32 bits: at most {_MOST_ROWS:,}. "
            "Use HMCECS, which keeps nothing per row."
        )
    return np.arange(n_rows, dtype=np.uint32)


def company(step: BlockedStep) -> str:
    """Say what the other steps in this chain move; empty where there are none."""
    names = {value.name: rv.name for value, rv in step.model.values_to_rvs.items()}
    return " and ".join(
        f"{type(other).__name__} moves {', '.join(names.get(v.name, v.name) for v in other.vars)}"
        for other in steps_beside(step)
    )
