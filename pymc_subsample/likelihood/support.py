"""Which variables and potentials make a point impossible."""

from collections.abc import Collection, Mapping

import numpy as np
import pymc as pm

from pymc_subsample.likelihood.errors import op_name


def impossible(
    model: pm.Model, point: Mapping[str, np.ndarray], besides: Collection[str] = ()
) -> str:
    """Name what has no finite log density at a point of value variables, with its value there.

    Priors, potentials and observed variables but those named `besides`, which may be large.
    """
    terms = [v for v in [*model.basic_RVs, *model.potentials] if v.name not in besides]
    densities = [x.sum() for x in model.logp(vars=terms, sum=False)]
    evaluate = model.compile_fn(
        densities, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    inputs = {v.name: point[v.name] for v in model.value_vars}
    with np.errstate(all="ignore"):
        found = zip(terms, evaluate(inputs), strict=True)
    said = []
    for term, value in found:
        if not np.isfinite(value):
            of = f" ({op_name(term.owner.op)})" if term in model.basic_RVs else " (a potential)"
            said.append(f"{term.name!r}{of} has log density {float(value)}")
    return ", ".join(said)
