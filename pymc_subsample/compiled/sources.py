"""Files from which kept machine code is made: kernels, wherever they live, and their imports."""

import re
from collections.abc import Iterator
from pathlib import Path

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
