"""One number against its bound, and what to do where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Check:
    """One number against its bound.

    Attributes
    ----------
    name : str
        What was checked.
    value, bound : float
        The number and where it fails.
    passed : bool
        Whether the number is within its bound.
    advice : str
        What was found and what to change, as a sentence.
    """

    name: str
    value: float
    bound: float
    passed: bool
    advice: str


def remedies(subsample_size: int, n_rows: int, order: int, given_reference: bool) -> list[str]:
    """Return what is left to change where the estimate is too noisy, best first."""
    left = [f"increase subsample_size (now {subsample_size})"] if subsample_size < n_rows else []
    left += ["use control_variate_order=2"] if order < 2 else []
    left += ["give a better reference"] if given_reference else []
    return left or ["sample this model with pm.NUTS or nutpie"]


def amount(value: float) -> str:
    """Show a number to three digits, or say that it is none."""
    return f"{value:.3g}" if np.isfinite(value) else "not finite"


def sentence(advice: Sequence[str]) -> str:
    """Join pieces of advice into one sentence."""
    *first, last = advice
    text = f"{', '.join(first)} or {last}." if first else f"{last}."
    return text[0].upper() + text[1:]
