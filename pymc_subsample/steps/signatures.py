"""Arguments that steps share: typed, listed and described once, and shown in full everywhere.

A constructor's ``**above: Unpack[...]`` stands for arguments of the class above, and type checkers
know them by the typed dictionaries. A step's docstring describes what is its own. `complete` adds
the rest to both when the class is made, for `help`, `inspect.signature` and the documentation.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Signature
from typing import Any, TypedDict

import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.data import Rows
from pymc_subsample.progress import announced
from pymc_subsample.signatures import completed

_SECTION = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


class Shared(TypedDict, total=False):
    """Arguments of all steps."""

    model: pm.Model | None
    observed: Sequence[str] | None
    dim: str | None
    data: Rows | Sequence[Rows] | None
    passes: Any
    rng: Any
    compile_kwargs: dict | None
    blocked: bool


class SharedContinuous(Shared, total=False):
    """Arguments of all steps on continuous variables."""

    reference: Any
    reparameterize: bool
    initial_point: PointType | None


def complete(cls: type) -> None:
    """Give a class a signature and a docstring that hold what it shares with the one above it.

    Its constructor refuses what is not in the signature, and says what a long set-up is at.
    """
    if "__init__" in vars(cls):
        above = inspect.signature(cls.__base__.__init__).parameters  # type: ignore[misc]
        signature = completed(vars(cls)["__init__"], above)
        cls.__init__ = _announced(cls.__init__, signature)  # type: ignore[misc]
        shown = list(signature.parameters.values())[1:]
        cls.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    if vars(cls).get("__doc__"):  # there are none under `python -OO`
        names = list(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]
        cls.__doc__ = _described(cls.__doc__ or "", cls.__base__.__doc__ or "", names)


def _announced(initialise: Callable, signature: Signature) -> Callable:
    @wraps(initialise)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}.") from None
        with announced(type(self).__name__):
            initialise(self, *args, **kwargs)

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    return wrapped


def _described(doc: str, above: str, names: Sequence[str]) -> str:
    """Return a docstring with the parameters, and errors, that it leaves to the class above."""
    start, own = _sections(doc)
    _, other = _sections(above)
    known = _entries(other.get("Parameters", "")) | _entries(own.get("Parameters", ""))
    parameters = "\n".join(known[name] for name in names if name in known)
    inherited = {"Raises": other["Raises"]} if "Raises" in other else {}
    parts = {"Parameters": parameters} | inherited | own | {"Parameters": parameters}
    texts = [f"{title}\n{'-' * len(title)}\n{text.strip()}" for title, text in parts.items()]
    return "\n\n".join([start.strip(), *texts]) + "\n"


def _sections(doc: str) -> tuple[str, dict[str, str]]:
    start, *rest = _SECTION.split(inspect.cleandoc(doc))
    return start, dict(zip(rest[::2], rest[1::2], strict=True))


def _entries(text: str) -> dict[str, str]:
    """Return the descriptions in a section by the names of what they describe."""
    entries = [entry.rstrip() for entry in _ENTRY.split(text) if entry.strip()]
    return {entry.split(" : ")[0]: entry for entry in entries}
