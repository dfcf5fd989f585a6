"""Signatures and docstrings in full, of functions that leave shared arguments to another one.

``**above: Unpack[...]`` stands for these in a signature.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import get_args

_SECTION = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)
# What is inherited as a whole, where there is nothing of one's own.
_WHOLE = ("Returns", "Raises")


def completed(function: Callable, above: Mapping[str, Parameter]) -> Signature:
    """Return a signature with the arguments that a function hands on by name, as `above` has them.

    Those of its own that `above` does not have come first of their kind.
    """
    own = inspect.signature(function)
    *named, last = own.parameters.values()
    if last.kind is not Parameter.VAR_KEYWORD:
        return own
    [shared] = get_args(last.annotation)
    keys = shared.__required_keys__ | shared.__optional_keys__
    places = {name: place for place, name in enumerate(above)}
    taken = [above[name] for name in above if name in keys]
    known = sorted([*named, *taken], key=lambda p: (p.kind, places.get(p.name, -1)))
    return own.replace(parameters=known)


def described(doc: str, above: str, names: Sequence[str]) -> str:
    """Return a docstring with what it leaves to the one `above`: parameters by name, and errors."""
    start, own = _sections(doc)
    _, other = _sections(above)
    known = _entries(other.get("Parameters", "")) | _entries(own.get("Parameters", ""))
    parameters = "\n".join(known[name] for name in names if name in known)
    inherited = {title: other[title] for title in _WHOLE if title in other}
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
