"""One set-up for two steps of a model: the second takes over what the first one has made."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


class Shared(NamedTuple):
    """Given as a reference: a step that was set up with the same arguments, and never run."""

    step: "ChainStep"
    # Seconds, by a count, that what is left of the set-up may take: beyond it is refused.
    patience: float = math.inf


_undecided: ContextVar[bool] = ContextVar("undecided", default=False)


@contextmanager
def undecided() -> Iterator[None]:
    """Set up steps of which one will run: compiled transitions are left to who decides."""
    token = _undecided.set(True)
    try:
        yield
    finally:
        _undecided.reset(token)


def ready(step: "ChainStep") -> None:
    """Compile a step's transitions, before chains begin: once for all of them."""
    if not _undecided.get():
        step.method.compile(step)


def sharer(step: "ChainStep") -> "ChainStep | None":
    """Return the step whose expanded rows, and reference, are those of this one, if there is one.

    Rows on other scales, or of another order, are expanded anew.
    """
    like = step.like
    if like is None or step.form != like.form:
        return None
    return like if step.asked_order in ("auto", like.expansion.order) else None
