"""Free variables that PyMC gives to a step of their own, as the trees of BART to PGBART."""

import pymc as pm
from pymc.step_methods import NUTS, STEP_METHODS
from pytensor.graph.basic import Variable


def own_step(rv: Variable) -> str:
    """Return the step that alone samples a continuous free variable; empty if NUTS does.

    Such a variable has no density that gradients or proposals could follow.
    """
    if rv.type.dtype.startswith(("int", "uint", "bool")):
        return ""
    best = max(STEP_METHODS, key=lambda step: step._competence(rv, True))
    return "" if best is NUTS else best.__name__


def own_steps(model: pm.Model) -> dict[str, str]:
    """Return the steps that alone sample some free variables, by the names of these."""
    found = {rv.name: own_step(rv) for rv in model.free_RVs}
    return {name: step for name, step in found.items() if step}


def said(steps: dict[str, str]) -> str:
    """Say which variables have steps of their own."""
    names = ", ".join(map(repr, steps))
    verb, whose = ("is", "its") if len(steps) == 1 else ("are", "their")
    return (
        f"{names} {verb} sampled by {', '.join(dict.fromkeys(steps.values()))} alone, {whose} own "
        "step in PyMC"
    )
