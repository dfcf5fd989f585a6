"""Which variables and potentials make a point impossible, or have parameters that are."""

from collections.abc import Collection, Mapping

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pymc_subsample.model.errors import op_name
from pymc_subsample.model.parameter_checks import split_checks


def impossible(
    model: pm.Model, point: Mapping[str, np.ndarray], besides: Collection[str] = ()
) -> str:
    """Name what has no finite log density at a point of value variables, with its value there.

    Priors, potentials and observed variables but those named `besides`, which may be large.
    """
    terms = [v for v in [*model.basic_RVs, *model.potentials] if v.name not in besides]
    densities = [x.sum() for x in model.logp(vars=terms, sum=False)]
    said = []
    for term, value in zip(terms, _evaluated(model, densities, point), strict=True):
        if not np.isfinite(value):
            of = f" ({op_name(term.owner.op)})" if term in model.basic_RVs else " (a potential)"
            said.append(f"{term.name!r}{of} has log density {float(value)}")
    return ", ".join(said)


def owner_of_check(model: pm.Model, message: str) -> str:
    """Say of which variable PyMC's check of parameters fails, and what these are at the start.

    Empty where none fails by itself.
    """
    point = model.initial_point()
    for rv in model.basic_RVs:
        _, checks = split_checks(model.logp(vars=[rv], sum=False))
        conditions = [condition for condition, said in checks.items() if said == message]
        if not all(np.all(holds) for holds in _evaluated(model, conditions, point)):
            params = ", ".join(map(_summary, _evaluated(model, _parameters(model, rv), point)))
            return f" (of {rv.name!r}, {op_name(rv.owner.op)}, whose parameters are {params})"
    return ""


def _parameters(model: pm.Model, rv: Variable) -> list[Variable]:
    """Return the numbers that a random variable is drawn by, of the model's value variables."""
    node = rv.owner
    of_op = getattr(node.op, "dist_params", None)
    found = of_op(node) if of_op is not None else node.inputs
    numbers = [v for v in found if getattr(v.type, "dtype", "")[:3] in ("flo", "int", "uin")]
    return model.replace_rvs_by_values(numbers)


def _evaluated(model: pm.Model, graphs: list[Variable], point: Mapping[str, np.ndarray]) -> list:
    evaluate = model.compile_fn(
        graphs, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    with np.errstate(all="ignore"):
        return evaluate({v.name: point[v.name] for v in model.value_vars})


def _summary(value: np.ndarray) -> str:
    """Show a parameter: a number, or from where to where an array goes."""
    numbers = np.unique(np.ravel(value))
    if len(numbers) < 2:
        return ", ".join(f"{x:.4g}" for x in numbers) or "empty"
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    nan = " with NaN" * bool(np.isnan(numbers).any())
    return f"{low:.4g} to {high:.4g}{nan}"
