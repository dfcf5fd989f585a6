"""Signatures in full, of functions whose ``**above: Unpack[...]`` stands for shared arguments."""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import get_args


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
