"""The arguments of step methods: what is accepted, and what is said of anything else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from pymc.model import modelcontext
from pymc.util import get_random_generator
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.likelihood import TallModel, TallModelError
from pymc_subsample.likelihood.errors import op_name
from pymc_subsample.likelihood.graph import evaluate
from pymc_subsample.proposals import AdaptiveMetropolis, Langevin, RandomWalk
from pymc_subsample.schedules import Cyclical, Fixed, PolynomialDecay, Schedule
from pymc_subsample.validation import (
    at_least_zero,
    between,
    choice,
    count,
    finite,
    is_number,
    mapping,
    name_list,
    one_of,
    share,
    shown,
    takes,
    text,
)

__all__ = ["at_least_zero", "between", "choice", "count", "name_list", "one_of", "share", "text"]

# Orders of control variates that go without them, or that have constant ones.
_PLAIN, _CONSTANT = ((1, 2), '"auto" or None'), ((0, 1, 2), '"auto"')
# Within a draw, of which memory and the time to an interrupt are bounded.
_MOST_TRANSITIONS = 10_000
# Beyond it sums over rows lose what they are compared with.
_MOST_TEMPERATURE = 1e6


def order(value, step: str, plain: bool) -> int | str | None:
    """Return `value` if it is an order of control variates: 2, 1, "auto", and 0 or None.

    Steps on `plain` batches go without control variates, None, and constant ones do nothing for
    them; others have constant ones, 0, and cannot go without.
    """
    if isinstance(value, str) and value == "auto":
        return value
    if plain and is_number(value) and value == 0:
        raise ValueError(
            f'control_variate_order must be one of (1, 2), "auto" or None, got 0: {step} looks at '
            "changes of the log-likelihood, to which a constant adds nothing. Use None for plain "
            "batches."
        )
    if value is None and not plain:
        raise ValueError(
            f'control_variate_order must be one of (0, 1, 2) or "auto", got None: {step} estimates '
            "what control variates leave. Use 0 for the constant alone."
        )
    if value is None:
        return None
    return one_of("control_variate_order", value, *(_PLAIN if plain else _CONSTANT))


def schedule(value) -> Schedule:
    """Return the schedule of a step size: a number, "auto" or a schedule."""
    if isinstance(value, PolynomialDecay | Cyclical):
        return value
    if isinstance(value, str) and value == "auto":
        return Fixed()
    if not is_number(value) or not 0 <= value < np.inf:
        raise ValueError(
            'step_size must be "auto", a finite number of at least 0, pms.PolynomialDecay or '
            f"pms.Cyclical; got {shown(value)}."
        )
    return Fixed(float(value))


def curvature_bound(value, choices: Sequence[str]) -> str | float:
    """Return `value` if it is one of some words or a finite number."""
    if isinstance(value, str) and value in choices:
        return value
    if not is_number(value) or not np.isfinite(value):
        raise ValueError(
            f"bound must be one of {', '.join(map(repr, choices))} or a finite number: a lower "
            "bound on the second derivative of every row's log-likelihood in its linear predictor; "
            f"got {shown(value)}."
        )
    return float(value)


def level(name: str, value, draw: int) -> float:
    """Return the level of a test at some draw, from 0 to below 0.5; `value` may be a function."""
    given = value(draw) if callable(value) else value
    if not is_number(given) or not 0 <= given < 0.5:
        said = f"{name}({draw})" if callable(value) else name
        raise ValueError(f"{said} must be a number from 0 to below 0.5, got {shown(given)}.")
    return float(given)


def test_level(name: str, value):
    """Return the level of a test, or a function of the draw that gives it, if both are fit."""
    if callable(value):
        takes(name, value, "draw")
    level(name, value, 0)
    return value


def transitions(name: str, value) -> int:
    """Return `value` if it is a number of transitions that a draw may have."""
    return count(name, value, most=_MOST_TRANSITIONS)


def temperature(value, zero: bool = False) -> float:
    """Return a temperature; whether it may be zero is up to the sampler."""
    if zero and is_number(value) and value == 0:
        return 0.0
    least = 1 / _MOST_TEMPERATURE
    if zero:
        at_least_zero("temperature", value)
    else:
        between("temperature", value, 0.0, np.inf)
    if not least <= value <= _MOST_TEMPERATURE:
        raise ValueError(
            f"temperature must be from {least:g} to {_MOST_TEMPERATURE:g}, got {shown(value)}."
        )
    return float(value)


def batch_size(value, n_rows: int, default: int) -> int:
    """Return the rows of a batch: `default`, or all where there are fewer, if it is None."""
    if value is None:
        return min(default, n_rows)
    return count("batch_size", value, n_rows)


def optional_batch(value, smallest: int = 1) -> int | None:
    """Return `value` if it may be the rows of a batch, before the rows are known, or None."""
    return None if value is None else count("batch_size", value, smallest=smallest)


def function_or_choice(name: str, value, choices: Sequence[str], *parameters: str):
    """Return a function of some parameters, or one of some words."""
    return takes(name, value, *parameters) if callable(value) else choice(name, value, choices)


def blocked(value, step: str):
    """Refuse to sample variables one by one."""
    if value is not True and value is not np.True_:
        raise ValueError(
            f"blocked must be True: {step} samples its variables jointly; got {shown(value)}."
        )


def proposal(value):
    """Return a proposal: None stands for adaptive Metropolis."""
    if value is None:
        return AdaptiveMetropolis()
    if isinstance(value, type) or not (
        isinstance(value, RandomWalk | AdaptiveMetropolis | Langevin) or callable(value)
    ):
        raise TypeError(
            "proposal must be an instance of pms.RandomWalk, pms.AdaptiveMetropolis or "
            "pms.Langevin, or a function proposal(point, rng) -> (new_point, log_factor); got "
            f"{value!r}."
        )
    return takes("proposal", value, "point", "rng") if callable(value) else value


def proposal_size(value, size: int, n_rows: int | None = None):
    """Check the proposal's covariance, and its batch where it has one, against the model."""
    covariance = getattr(value, "covariance", None)
    if covariance is not None and len(covariance) != size:
        raise ValueError(
            f"proposal: covariance has shape {covariance.shape}, but the step samples {size} "
            "unconstrained values."
        )
    batch = getattr(value, "batch_size", None)
    if batch is not None and n_rows is not None and batch > n_rows:
        raise ValueError(
            f"proposal: batch_size={batch} is larger than the number of rows, {n_rows}."
        )


def proposed(function, tall: TallModel, theta: np.ndarray, rng) -> tuple[np.ndarray, float]:
    """Call a user's proposal; return theta', shape (d,), and its log factor."""
    point = {name: np.array(value) for name, value in tall.unravel(theta).items()}
    result = function(point, rng)
    try:
        new, log_factor = result
        log_factor = float(log_factor)
        given = tall.ravel({**point, **new})
    except (TypeError, ValueError) as error:
        raise TypeError(
            "proposal must return (new_point, log_factor): a dict of values by the names "
            f"{tall.names} and a number; got {result!r}."
        ) from error
    unknown = set(new) - set(tall.names)
    if unknown or given.shape != theta.shape:
        raise ValueError(
            f"proposal returned values for {sorted(map(str, new))}; expected names among "
            f"{tall.names} with shapes {tall.shapes}."
        )
    if not log_factor < np.inf or not np.all(np.isfinite(given)):
        raise ValueError(
            f"proposal returned values that are not finite: {new}, log_factor {log_factor}."
        )
    return given, log_factor


def flag(name: str, value) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def row_bound(value) -> float:
    """Return what a user's bound on the rows' terms gave, if it is a number from 0 up."""
    given = value[()] if isinstance(value, np.ndarray) and np.ndim(value) == 0 else value
    if not is_number(given) or not 0 <= given < np.inf:
        raise ValueError(
            "bound(point, new_point) must return a finite number, 0 or above: the largest "
            f"|log p(x_i | new) - log p(x_i | old)| over rows; got {shown(value)}."
        )
    return float(given)


def generator(rng) -> np.random.Generator:
    """Return the generator for `rng`, which None, a seed or a generator may give."""
    try:
        if isinstance(rng, bool | np.random.RandomState):
            raise TypeError
        return get_random_generator(0 if rng is None else rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"rng must be None, an integer seed of at least 0 or a numpy Generator, got "
            f"{shown(rng)}."
        ) from None


def seed(name: str, value) -> int:
    """Return an integer seed."""
    return count(name, value, smallest=0, most=2**64)


def only_numba(compile_kwargs: Mapping | None):
    """Refuse compilation with anything but numba."""
    given = mapping("compile_kwargs", compile_kwargs, "options of compilation")
    if given and given != {"mode": "NUMBA"}:
        raise ValueError(
            f"compile_kwargs={compile_kwargs!r} cannot be honoured: this step compiles with numba "
            'only. Leave it out or pass {"mode": "NUMBA"}.'
        )


def initial_point(value) -> dict[str, np.ndarray]:
    """Return values of value variables by name; None stands for the model's own."""
    given = mapping("initial_point", value, "values by the names of value variables")
    return {name: finite(f"initial_point[{name!r}]", x) for name, x in given.items()}


def model_in_context(model: pm.Model | None, said: str) -> pm.Model:
    """Return `model`, or that of the `with` block; `said` is what was to be done with it."""
    if model is not None and not isinstance(model, pm.Model):
        hint = " Pass its .backend.model, once built." if hasattr(model, "backend") else ""
        raise TypeError(f"model must be a pymc.Model, got {shown(model)}.{hint}")
    try:
        return modelcontext(model)
    except TypeError as error:
        raise TypeError(
            f"There is no model in context: {said} inside `with model:`, or pass model=."
        ) from error


def continuous_vars(vars, model: pm.Model) -> list[Variable]:
    """Return the value variables to sample, which the step takes to be continuous.

    `vars` are free variables of the model, their value variables or names; None stands for all.
    `refuse_discrete` follows once the rows are known.
    """
    if vars is not None:
        return chosen_vars(vars, model)
    if not model.value_vars:
        raise ValueError("vars: the model has no free variable to sample.")
    return list(model.value_vars)


def chosen_vars(vars, model: pm.Model) -> list[Variable]:
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


def binary_vars(vars, model: pm.Model) -> list[Variable]:
    """Return the value variables to sample, all of them 0 or 1.

    `vars` are free variables of the model, their value variables or names; None stands for all
    binary ones.
    """
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


def _value_var(var, model: pm.Model) -> Variable:
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


def given_reference(value):
    """Refuse what is no reference point, before the model is looked at."""
    if value is not None:
        mapping("reference", value, "untransformed values by variable name")
        for name, x in value.items():
            finite(f"reference[{name!r}]", x)


def reference_theta(model: pm.Model, tall: TallModel, reference: Mapping[str, Any]) -> np.ndarray:
    """Return theta for a reference point given as untransformed values of the free variables."""
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
    values = {}
    for rv in model.free_RVs:
        said = f"reference[{rv.name!r}]"
        value = finite(said, reference[rv.name])
        _check_shape(said, value, tuple(map(int, shapes[rv.name])))
        values[rv.name] = value.astype(rv.dtype)
        if rv.type.dtype.startswith(("int", "uint")) and np.any(values[rv.name] != value):
            raise ValueError(f"{said} must be whole, got {value}.")
    with np.errstate(all="ignore"):
        point = make_initial_point_fn(model=model, overrides=values)(0)
    _check_support(model, point, values)
    return tall.ravel(point)


def _check_shape(said: str, value, shape: tuple[int, ...]):
    if np.shape(value) != tuple(shape):
        raise ValueError(f"{said} has shape {np.shape(value)}, expected {tuple(shape)}.")


def _check_support(model: pm.Model, point, values: Mapping[str, np.ndarray]):
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
        if not finite or not np.allclose(value, given, rtol=1e-6, atol=1e-9):
            raise ValueError(
                f"reference[{rv.name!r}] = {given} lies outside the support of {rv.name!r} "
                f"({op_name(rv.owner.op)})."
            )
