"""What is said of bad input: arguments that are not accepted, and warnings."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

# Counts beyond this are typing errors, and overflow in compiled code.
_LARGEST = 2**31 - 1
# Names, columns or rows that are listed, and characters of a value: a choice, what a screen shows.
LISTED = 20
_CHARACTERS = 200


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number that fits into a float; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer; truth values are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def one_of(name: str, value: Any, choices: Sequence[int], other: str | None = None) -> int:
    """Return `value` if it is one of some integers; `other` is named as one more choice."""
    if not is_whole(value) or value not in choices:
        wanted = f"{tuple(choices)} or {other}" if other else str(tuple(choices))
        raise ValueError(f"{name} must be one of {wanted}, got {shown(value)}.")
    return int(value)


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of some words."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, words))}; got {shown(value)}."
        )
    return value


def number(name: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """Return `value` if it is a finite number that fits; `wanted` says which ones do."""
    if not is_number(value) or not np.isfinite(float(value)) or not fits(value):
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}.")
    return float(value)


def between(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` if it is a number strictly between two bounds."""
    bounded = f"a number between {low:g} and {high:g} (exclusive)"
    wanted = bounded if np.isfinite(high) else f"a finite number above {low:g}"
    return number(name, value, wanted, lambda x: low < x < high)


def positive(name: str, value: Any) -> float:
    """Return `value` if it is a positive finite number."""
    return number(name, value, "a positive finite number", lambda x: x > 0)


def at_least_zero(name: str, value: Any) -> float:
    """Return `value` if it is a finite number, 0 or above."""
    return number(name, value, "a finite number of at least 0", lambda x: x >= 0)


def share(name: str, value: Any) -> float:
    """Return `value` if it is a number above 0 and at most 1."""
    return number(name, value, "a number above 0 and at most 1", lambda x: 0 < x <= 1)


def count(
    name: str,
    value: Any,
    largest: int | None = None,
    of: str = "rows",
    auto: bool = False,
    smallest: int = 1,
    most: int = _LARGEST,
) -> Any:
    """Return `value` if it is an integer from `smallest` to `most`; None for "auto".

    `largest` is a bound that the data set, the number `of` something.
    """
    if auto and isinstance(value, str) and value == "auto":
        return None
    if not is_whole(value) or value < smallest:
        wanted = "a positive integer" if smallest == 1 else f"an integer of at least {smallest}"
        wanted += ' or "auto"' if auto else ""
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}.")
    if largest is not None and value > largest:
        raise ValueError(
            f"{name}={shown(value)} is larger than the number of {of}, {largest}. Use at most that."
        )
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}.")
    return int(value)


def numbers(name: str, value: Any) -> np.ndarray:
    """Return `value`, a number or an array of numbers in any shape, in double precision."""
    if np.ma.isMaskedArray(value) and np.ma.is_masked(value):
        raise ValueError(f"{name} must be without masked values, got {shown(value)}.")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and all(map(is_number, array.flat)):
            array = array.astype(float)
        real = array.dtype.kind in "biuf"
    except (TypeError, ValueError, OverflowError):
        real = False
    if not real:
        raise TypeError(f"{name} must be a number or an array of numbers, got {shown(value)}.")
    return array.astype(float)


def probabilities(name: str, value: Any) -> np.ndarray:
    """Return `value`, one or several probabilities, shape () or (k,)."""
    prob = numbers(name, value)
    if not (prob.size and prob.ndim < 2 and np.all((prob > 0) & (prob < 1))):
        raise ValueError(f"{name} must be strictly between 0 and 1, got {shown(value)}.")
    return prob


def finite(name: str, value: Any) -> np.ndarray:
    """Return `value`, a finite number or an array of them, in double precision."""
    array = numbers(name, value)
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} is not finite: {shown(value)}.")
    return array


def mapping(name: str, value: Any, of: str) -> dict:
    """Return a dict by name; None stands for an empty one. `of` says what it holds."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a dict of {of}, got {shown(value)}.")
    return dict(value)


def text(name: str, value: Any, of: str) -> str | None:
    """Return `value` if it is a name or None; `of` says of what."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be the name of {of}, got {shown(value)}.")
    return value


def name_list(name: str, value: Any) -> list[str] | None:
    """Return one or several names as a list; None stays."""
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else []
    if not given or not all(isinstance(x, str) for x in given):
        raise TypeError(f"{name} must be a name or a list of names, got {shown(value)}.")
    return given


def truth(name: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}.")
    return bool(value)


def takes(name: str, function: Callable, *arguments: str) -> Callable:
    """Return a function that can be called with so many positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled functions may have none
        return function
    try:
        signature.bind(*arguments)
    except TypeError:
        raise TypeError(
            f"{name} is called as {name}({', '.join(arguments)}), but the given function takes "
            f"{signature}."
        ) from None
    return function


def shown(value: Any) -> str:
    """Show a value in a message, briefly."""
    try:
        said = repr(value)
    except Exception:
        said = f"an object of type {type(value).__name__}"
    return said if len(said) <= _CHARACTERS else f"{said[:_CHARACTERS]}..."


def warn(message: str) -> None:
    """Warn, at the first line that is neither the package's nor PyMC's."""
    places = find_spec("pymc"), find_spec(__package__)
    packages = tuple(str(Path(p.origin).parent) for p in places if p is not None and p.origin)
    warnings.warn(message, UserWarning, skip_file_prefixes=packages)
