"""Warnings, which point at the first line that is neither the package's nor PyMC's."""

import warnings
from pathlib import Path

import pymc as pm

_PACKAGES = tuple(str(Path(file).parent) for file in (__file__, pm.__file__))


def warn(message: str) -> None:
    """Warn, as of what called the package."""
    warnings.warn(message, UserWarning, skip_file_prefixes=_PACKAGES)
