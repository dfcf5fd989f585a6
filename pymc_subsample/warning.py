"""Warnings, which point at the first line that is not the package's."""

import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


def warn(message: str) -> None:
    """Warn, as of what called the package."""
    warnings.warn(message, UserWarning, skip_file_prefixes=(_PACKAGE,))
