"""One number against its bound, and what to do where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass


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


def sentence(remedies: Sequence[str]) -> str:
    """Join remedies into one sentence."""
    *first, last = remedies
    text = f"{', '.join(first)} or {last}." if first else f"{last}."
    return text[0].upper() + text[1:]
