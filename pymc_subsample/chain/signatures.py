"""Arguments that steps share: typed, listed and described once, and shown in full everywhere.

A constructor's ``**above: Unpack[...]`` stands for arguments of the class above, and type checkers
know them by the typed dictionaries. A step's docstring describes what is its own. `complete` adds
the rest to both when the class is made, for `help`, `inspect.signature` and the documentation.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Signature
from typing import Any, TypedDict

import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.chain.progress import announced
from pymc_subsample.rows import Rows
from pymc_subsample.signatures import completed, described


class StepArguments(TypedDict, total=False):
    """Arguments of all steps."""

    model: pm.Model | None
    observed: Sequence[str] | None
    dim: str | None
    data: Rows | Sequence[Rows] | None
    passes: Any
    rng: Any
    compile_kwargs: dict | None
    blocked: bool


class SharedContinuous(StepArguments, total=False):
    """Arguments of all steps on continuous variables."""

    reference: Any
    reparameterize: bool
    integrate: str | Sequence[str] | bool
    initial_point: PointType | None


class SharedTransitions(SharedContinuous, total=False):
    """Arguments of all steps of several transitions per draw, on a tempered log-likelihood."""

    temperature: float
    transitions_per_draw: int


def complete(cls: type, shares: Callable | None = None) -> None:
    """Give a class a signature and a docstring that hold what it shares with the one above it.

    Or with a function `shares`, to which its constructor hands on what is shared. It refuses what
    is not in the signature, and says what a long set-up is at.
    """
    above = cls.__base__.__init__ if shares is None else shares  # type: ignore[misc]
    doc = cls.__base__.__doc__ if shares is None else shares.__doc__
    if "__init__" in vars(cls):
        signature = completed(vars(cls)["__init__"], inspect.signature(above).parameters)
        cls.__init__ = _announced(cls.__init__, signature)  # type: ignore[misc]
        shown = list(signature.parameters.values())[1:]
        cls.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    if vars(cls).get("__doc__"):  # there are none under `python -OO`
        names = list(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]
        cls.__doc__ = described(cls.__doc__ or "", doc or "", names)


def shares(above: Callable, doc: str | None) -> Callable[[Callable], Callable]:
    """Complete a function as `complete` does a class, from a function above and its docstring."""

    def made(function: Callable) -> Callable:
        signature = completed(function, inspect.signature(above).parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__doc__ = described(function.__doc__ or "", doc or "", list(signature.parameters))
        return function

    return made


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
