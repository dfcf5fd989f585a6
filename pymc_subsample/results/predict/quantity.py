"""What is predicted, as graphs: an observed variable's mean, what draws it, or an expression."""

from dataclasses import dataclass
from typing import Any

import pymc as pm
from pymc.distributions.moments.means import mean
from pymc.exceptions import UndefinedMomentException
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.random.op import RandomVariable

from pymc_subsample.graph.concrete import root_array
from pymc_subsample.graph.named_dims import without_names
from pymc_subsample.model.errors import op_name
from pymc_subsample.validation import shown

SAID = "pms.predict"
NOT_DRAWN = (
    f"{SAID}: outcomes of {{}} are not drawn here. Use pm.sample_posterior_predictive on some rows "
    "at a time, or predict an expression."
)


@dataclass(frozen=True)
class Predicted:
    """What is predicted."""

    name: str  # For messages.
    graphs: list[Variable]  # It, or the parameters of the distribution that it is drawn from.
    dims: tuple[str, ...]  # Those that the model gives it; may be empty.
    op: RandomVariable | None = None  # What draws it.
    shape: tuple[int, ...] = ()  # Of what the model observed of it.
    observed: bool = False  # Whether its rows are those of an observed variable.


def quantity(model: pm.Model, given: Any, kind: str) -> Predicted:
    """Return what a name or a graph stands for; of observed variables their mean, or a draw."""
    if isinstance(given, str):
        if given not in model.named_vars:
            known = [v.name for v in [*model.observed_RVs, *model.deterministics]]
            instead = f"only {known}" if known else (
                "and none but parameters and potentials. Predict an expression of these, such as "
                "pm.math.sigmoid(eta)")  # fmt: skip
            raise ValueError(f"{SAID}: the model has no variable {given!r}, {instead}.")
        var = model[given]
    elif isinstance(given, Variable):
        var = given
    else:
        raise TypeError(
            f"{SAID}: what is predicted must be the name of a variable, or an expression of the "
            f"model's variables such as pm.math.sigmoid(eta); got {shown(given)}."
        )
    if var in model.potentials:
        raise ValueError(
            f"{SAID}: {var.name!r} is a pm.Potential, a term of the log density, and says nothing "
            "of outcomes. Predict an expression of the model's variables, such as the mean that "
            f"{var.name!r} is made of: {SAID}(idata, pm.math.sigmoid(eta))."
        )
    name = repr(var.name or "the expression")
    dims = tuple(model.named_vars_to_dims.get(var.name, ())) if var.name else ()
    if var not in model.observed_RVs:
        if kind == "outcome":
            raise ValueError(
                f'{SAID}: kind="outcome" draws an observed variable, one of '
                f"{[v.name for v in model.observed_RVs]}; {name} is none."
            )
        return Predicted(name, [var], dims)
    held = model.rvs_to_values[var]
    while isinstance(var.owner.op, MinibatchRandomVariable):
        var = var.owner.inputs[0]
    [var] = without_names([var], [v for v in model.named_vars.values() if v is not var])
    op = var.owner.op
    drawn = isinstance(op, RandomVariable)
    if kind == "outcome":
        if not drawn:
            raise ValueError(NOT_DRAWN.format(f"{name} ({op_name(op)})"))
        lengths = root_array(held)
        shape = (0,) * var.type.ndim if lengths is None else lengths.shape
        return Predicted(name, op.dist_params(var.owner), dims, op, shape, observed=True)
    try:
        return Predicted(name, [mean(var)], dims, observed=True)
    except (NotImplementedError, UndefinedMomentException):
        if isinstance(op, CategoricalRV):
            [p] = op.dist_params(var.owner)
            if p.type.ndim > var.type.ndim and not any(p.type.broadcastable[:-1]):
                return Predicted(name, [p], dims, observed=True)
        also = ', or kind="outcome"' if drawn else ""
        raise ValueError(
            f"{SAID}: PyMC knows no mean of {name} ({op_name(op)}). Pass the expression that you "
            "want, such as the probabilities or the location as you wrote them in the model"
            f"{also}."
        ) from None
