"""What kept machine code is named after: files of kernels, and what functions close over."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
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


# What makes a module one of kernels.
_MARKS = ("kept", "inner", "inlined")
_IMPORTS = re.compile(r"^from (\w+(?:\.\w+)+) import (\([^)]*\)|.*)$", re.MULTILINE)


def kernel_sources(package: Path) -> list[Path]:
    """Return the files of kernels and of all that they import from the package, sorted.

    A module of kernels imports `cache.kept`, `functions.inner` or `functions.inlined`. Where only
    bytecode is installed, all of it is returned.
    """
    files = {_dotted(path, package): path for path in package.rglob("*.py")}
    imports = {name: set(_imported(path, files)) for name, path in files.items()}
    toolchain = f"{package.name}.compiled"
    found = {name for name in files if name.startswith(f"{toolchain}.")}
    marks = {(f"{toolchain}.{home}", mark) for home in ("cache", "functions") for mark in _MARKS}
    waiting = [name for name, seen in imports.items() if seen & marks]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [module for module, _ in imports[name]]
    bytecode = [p for p in package.rglob("*.pyc") if p.parent.name != "__pycache__"]
    return sorted([*(files[name] for name in found), *bytecode])


def _dotted(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield the modules of the package that a file imports, and by which names."""
    for base, names in _IMPORTS.findall(path.read_text(encoding="utf-8")):
        for part in names.strip("()").split(","):
            name = part.split(" as ")[0].strip()
            if f"{base}.{name}" in files:
                yield f"{base}.{name}", ""
            elif base in files:
                yield base, name
