"""Variables of a model that a step samples, and the point around which it expands them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import to_keep
from pymc_subsample.model.errors import op_name
from pymc_subsample.model.own_steps import own_steps, said
from pymc_subsample.validation import finite, mapping, shown


def continuous_vars(vars: Any, model: pm.Model) -> list[Variable]:
    """Return the value variables to sample, by default all, checked later by `refuse_discrete`."""
    if vars is not None:
        return chosen_vars(vars, model)
    if not model.value_vars:
        raise ValueError("vars: the model has no free variable to sample.")
    return list(model.value_vars)


def chosen_vars(vars: Any, model: pm.Model) -> list[Variable]:
    """Return the value variables that were named."""
    if isinstance(vars, str | Variable):
        vars = [vars]
    if not isinstance(vars, Iterable) or isinstance(vars, bytes):
        raise TypeError(f"vars must hold free variables or their names, got {shown(vars)}.")
    chosen = list(dict.fromkeys(_value_var(var, model) for var in vars))
    if not chosen:
        raise ValueError("vars is empty: there is no free variable to sample.")
    return chosen


def refuse_discrete(vars: Sequence[Variable], model: pm.Model) -> None:
    """Raise if value variables to sample are discrete.

    After the rows have been found: a discrete variable with one element per row is refused as
    that, since leaving it to another step would not help.
    """
    discrete = [model.values_to_rvs[v].name for v in vars if v in model.discrete_value_vars]
    if discrete:
        rest = [model.values_to_rvs[v].name for v in model.continuous_value_vars]
        raise TallModelError(
            f"{', '.join(map(repr, discrete))} is discrete and has no gradient: this step samples "
            f"continuous variables only. Marginalise it, or give the continuous ones (vars={rest}) "
            "and leave the discrete ones to another step method."
        )


def refuse_own_steps(vars: Sequence[Variable], model: pm.Model) -> None:
    """Raise if PyMC gives value variables to a step of their own, as the trees of BART."""
    alone = own_steps(model)
    rvs = [model.values_to_rvs[v].name for v in vars]
    if own := {name: step for name, step in alone.items() if name in rvs}:
        rest = [model.values_to_rvs[v].name for v in model.continuous_value_vars]
        raise TallModelError(
            f"{said(own)}: there is no density that this step could follow. Give it the others "
            f"(vars={[name for name in rest if name not in alone]}), and pm.sample gives each of "
            "the rest its own step."
        )


_IN_OWN_COORDINATES = (
    " The step itself separates columns that all rows share, unless reparameterize=False, or a "
    "proposal, step size or metric in the model's own units, is given."
)


def refuse_rounded(tall: TallModel, elements: np.ndarray, *, own: bool) -> None:
    """Raise if the sums over rows in some elements of theta have too few digits.

    `own` says that the chain may have coordinates of its own, in which columns can be apart.
    """
    if not len(elements):
        return
    names = [
        repr(tall.model.values_to_rvs[v].name)
        for v, part in zip(tall.value_vars, tall.slices, strict=True)
        if np.any((elements >= part.start) & (elements < part.stop))
    ]
    raise TallModelError(
        f"{', '.join(names)}: large terms of the sums over rows cancel along some "
        "direction of the posterior, and 16 digits are too few for what is left: rounding may "
        "change the posterior's precision there by more than a tenth. Either a column is millions "
        "of standard deviations from zero (seconds since 1970, within minutes), or powers of a "
        "column are nearly alike, or the rows do not distinguish some parameters, and their priors "
        "hardly do. Subtract roughly the mean from such a column, before powers are taken, which "
        "does not change the slope; or give such parameters narrower priors, or leave one out."
        + ("" if own else _IN_OWN_COORDINATES)
    )


def binary_vars(vars: Any, model: pm.Model) -> list[Variable]:
    """Return the value variables to sample, all of them 0 or 1; by default all such."""
    if vars is None:
        chosen = [v for v in model.value_vars if is_binary(model.values_to_rvs[v])]
        if not chosen:
            found = ", ".join(map(_described, model.free_RVs)) or "none"
            raise TallModelError(
                f"The model has no binary free variable: this step samples variables that can only "
                f"be 0 or 1 (Bernoulli, or Categorical and DiscreteUniform on these two). Found: "
                f"{found}. Use another step method, such as AusterityMH or pm.NUTS."
            )
        return chosen
    chosen = chosen_vars(vars, model)
    wrong = [rv for rv in (model.values_to_rvs[v] for v in chosen) if not is_binary(rv)]
    if wrong:
        binary = [rv.name for rv in model.free_RVs if is_binary(rv)]
        raise TallModelError(
            f"vars holds {', '.join(map(_described, wrong))}: this step samples variables that can "
            "only be 0 or 1 (Bernoulli, or Categorical and DiscreteUniform on these two). Give the "
            f"binary ones (vars={binary}) and leave the others to another step method."
        )
    return chosen


def _described(rv: Variable) -> str:
    kind = "discrete" if rv.type.dtype.startswith(("int", "uint", "bool")) else "continuous"
    return f"{rv.name!r} ({op_name(rv.owner.op)}, {kind})"


def is_binary(rv: Variable) -> bool:
    """Whether the support of a random variable is provably {0, 1}."""
    op = getattr(rv.owner.op, "core_op", rv.owner.op)
    name = type(op).__name__
    if name == "BernoulliRV":
        return True
    if op is not rv.owner.op or name not in ("CategoricalRV", "DiscreteUniformRV", "BinomialRV"):
        return False
    first, *others = op.dist_params(rv.owner)
    if name == "CategoricalRV":
        return first.type.shape[-1] == 2
    if name == "DiscreteUniformRV":
        return _all_equal(first, 0) and _all_equal(others[0], 1)
    return _all_equal(first, 1)


def _all_equal(var: Variable, value: int) -> bool:
    """Whether a variable is a constant that equals `value` everywhere, as far as can be seen."""
    roots = [v for v in ancestors([var]) if v.owner is None]
    if not all(isinstance(v, Constant) for v in roots):
        return False
    return bool(np.all(evaluate([var], {})[0] == value))


def _value_var(var: Variable | str, model: pm.Model) -> Variable:
    if not isinstance(var, str | Variable):
        raise TypeError(f"vars must hold free variables or their names, got {shown(var)}.")
    found = model.named_vars.get(var) if isinstance(var, str) else var
    value = model.rvs_to_values.get(found, found)
    if value not in model.value_vars:
        names = [rv.name for rv in model.free_RVs]
        raise ValueError(
            f"vars holds {getattr(var, 'name', var)!r}, which is not a free variable of the model. "
            f"Its free variables are {names}."
        )
    return value


def given_reference(value: Any) -> None:
    """Refuse what is no reference point, before the model is looked at."""
    if value is not None:
        said = "untransformed values by variable name, or an earlier run: its idata or its step"
        mapping("reference", value, said)
        for name, x in value.items():
            finite(f"reference[{name!r}]", x)


def earlier(model: pm.Model, run: Any) -> dict[str, np.ndarray]:
    """Return a reference point from an earlier run, of which `run` is the step or the idata."""
    if not isinstance(run, xr.DataTree):
        return run.reference_values()
    if "posterior" not in run.children:
        raise ValueError(
            f"reference has no posterior to take means of, but {list(run.children)}. Give the "
            "idata that pm.sample returned."
        )
    draws = run["posterior"].dataset
    found = {}
    for rv in model.free_RVs:
        if rv.name not in draws:
            raise ValueError(
                f"reference has no draws of {rv.name!r}; its posterior holds "
                f"{list(draws.data_vars)}. "
                f"{to_keep(draws, [rv.name], model, 'Give an earlier run of the same model.')}"
            )
        mean = _as_labelled(model, draws[rv.name].mean(("chain", "draw"))).to_numpy()
        found[rv.name] = np.rint(mean) if rv.type.dtype.startswith(("int", "uint")) else mean
    return found


def _as_labelled(model: pm.Model, values: xr.DataArray) -> xr.DataArray:
    """Return values by the model's coords, where these have the same labels in another order."""
    for dim in set(values.dims) & set(values.coords) & set(model.coords):
        own, given = pd.Index(model.coords[dim] or ()), values.get_index(dim)
        if own.is_unique and given.is_unique and set(own) == set(given):
            values = values.sel({dim: own})
    return values


def refuse_other_variables(model: pm.Model, reference: Mapping[str, Any], *, earlier: bool) -> None:
    """Raise if a reference point is not of the model's free variables, with their shapes.

    `earlier` says that it is of an earlier run.
    """
    given_reference(reference)
    names = [rv.name for rv in model.free_RVs]
    missing = [n for n in names if n not in reference]
    unknown = [n for n in reference if n not in names]
    if missing or unknown:
        raise ValueError(
            f"reference must give a value for each free variable {names}: missing {missing}, "
            f"unknown {unknown}."
        )
    shapes = model.eval_rv_shapes()
    for name in names:
        found, expected = np.shape(reference[name]), tuple(map(int, shapes[name]))
        if found != expected:
            todo = "Give one value for each element."
            if earlier:
                todo = (
                    "The model has changed since the earlier run, as by a new level of a category "
                    "among appended rows: leave reference= out, so that the mode is searched for, "
                    "or give values of all free variables by name."
                )
            raise ValueError(f"reference[{name!r}] has shape {found}, expected {expected}. {todo}")


def reference_theta(model: pm.Model, tall: TallModel, reference: Mapping[str, Any]) -> np.ndarray:
    """Return theta for a reference point given as untransformed values of the free variables."""
    values = {}
    for rv in model.free_RVs:
        said = f"reference[{rv.name!r}]"
        value = finite(said, reference[rv.name])
        values[rv.name] = value.astype(rv.dtype)
        if rv.type.dtype.startswith(("int", "uint")) and np.any(values[rv.name] != value):
            raise ValueError(f"{said} must be whole, got {value}.")
    with np.errstate(all="ignore"):
        point = make_initial_point_fn(model=model, overrides=values)(0)
    _check_support(model, point, values)
    return tall.ravel(point)


def _check_support(
    model: pm.Model, point: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> None:
    """Refuse values that their transform does not give back or whose density is zero."""
    back = model.replace_rvs_by_values(model.free_RVs)
    densities = model.logp(vars=model.free_RVs, jacobian=False, sum=False)
    evaluate = model.compile_fn(
        [*back, *(pt.sum(d) for d in densities)], inputs=model.value_vars, mode="FAST_COMPILE",
        on_unused_input="ignore",
    )  # fmt: skip
    with np.errstate(all="ignore"):
        results = evaluate(point)
    for rv, value, density in zip(model.free_RVs, results, results[len(back) :], strict=False):
        given = values[rv.name]
        finite = np.isfinite(point[model.rvs_to_values[rv].name]).all() and np.isfinite(density)
        # what transformations there and back may round
        if not finite or not np.allclose(value, given, rtol=1e-6, atol=1e-9):
            raise ValueError(
                f"reference[{rv.name!r}] = {given} lies outside the support of {rv.name!r} "
                f"({op_name(rv.owner.op)})."
            )
