"""Names of functions that are made by others, by what they close over."""

from collections.abc import Callable
from types import FunctionType
from typing import Any


def identity(function: Callable) -> str:
    """Tell a function from others of the same source by its place and what it closes over.

    Raises
    ------
    TypeError
        If that is something else than functions, numbers, texts, and tuples of them.
    """
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    held = zip(function.__code__.co_freevars, cells, strict=True)
    parts = [f"{name}={_described(function, name, value)}" for name, value in held]
    place = f"{function.__module__}.{function.__qualname__}:{function.__code__.co_firstlineno}"
    return f"{place}({', '.join(parts)})"


def _described(function: Callable, name: str, value: Any) -> str:
    python = getattr(value, "py_func", value)
    if isinstance(python, FunctionType):
        return "itself" if python is function else identity(python)
    if isinstance(value, tuple):
        return str([_described(function, name, part) for part in value])
    if isinstance(value, str | bool | int | float | None):
        return repr(value)
    raise TypeError(
        f"{function.__qualname__} cannot be told from others, to be kept on disk, by `{name}`, "
        f"which it closes over: {type(value).__name__}. Close over functions, numbers or texts."
    )
