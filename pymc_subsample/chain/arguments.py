"""Arguments of steps and of audits: what is accepted, and what is said of anything else."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from pymc_subsample.model.context import generator, model_in_context, model_of_step
from pymc_subsample.rows.workers import Workers
from pymc_subsample.validation import (
    at_least_zero,
    between,
    choice,
    count,
    finite,
    is_number,
    mapping,
    name_list,
    number,
    one_of,
    share,
    shown,
    takes,
    text,
    truth,
)

__all__ = [
    "at_least_zero", "between", "choice", "count", "generator", "model_in_context", "model_of_step",
    "name_list", "one_of", "share", "takes", "text", "truth",
]  # fmt: skip

# Orders of control variates that go without them, or that have constant ones.
_PLAIN, _CONSTANT = ((1, 2), '"auto" or None'), ((0, 1, 2), '"auto"')
# Within a draw, of which memory and the time to an interrupt are bounded. A choice: of 100 us
# each they take a second.
_MOST_TRANSITIONS = 10_000
# Rows of a batch to begin with, where a sampler has no reason for others. A choice: means of 100
# are nearly normal, and twice as many cost tests that decide at once twice as much.
BATCH = 100
# Doublings of a trajectory that may be asked for. A choice: a million steps are most likely a
# mistake.
_DEEPEST = 20
# Beyond it sums over rows lose what they are compared with: a log-likelihood of 1e9 is rounded to
# 1e-7.
_MOST_TEMPERATURE = 1e6


def order(value: Any, step: str, plain: bool) -> int | str | None:
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


def decisive_order(value: Any) -> int | str:
    """Return `value` if it is an order of control variates whose remainders rows decide on."""
    if isinstance(value, str) and value == "auto":
        return value
    return one_of("control_variate_order", value, (2, 3), '"auto"')


def derivative_bound(
    value: Any, choices: Sequence[str], of: str, least: float = -np.inf
) -> str | float:
    """Return a bound on derivatives, or where to take it from; `of` says what it bounds."""
    if isinstance(value, str) and value in choices:
        return value
    low = "a finite number" if least == -np.inf else f"a number from {least:g} up"
    wanted = (
        f"one of {', '.join(map(repr, choices))}, or {low}: {of} of every row's log-likelihood in "
        "its linear predictor"
    )
    return number("bound", value, wanted, lambda x: x >= least)


def intensity(value: Any) -> float:
    """Return how many times as many rows are drawn as their bounds ask for."""
    wanted = "a number from 1 up, how many times as many rows are drawn as their bounds ask for"
    return number("intensity", value, wanted, lambda x: x >= 1)


def level(name: str, value: Any, draw: int) -> float:
    """Return the level of a test at some draw, from 0 to below 0.5; `value` may be a function."""
    said, given = (f"{name}({draw})", value(draw)) if callable(value) else (name, value)
    return number(said, given, "a number from 0 to below 0.5", lambda x: 0 <= x < 0.5)


def test_level(name: str, value: Any) -> float | Callable[[int], float]:
    """Return the level of a test, or a function of the draw that gives it, if both are fit."""
    if callable(value):
        takes(name, value, "draw")
    level(name, value, 0)
    return value


def transitions(value: Any, name: str = "transitions_per_draw") -> int:
    """Return `value` if it is a number of transitions that a draw may have."""
    return count(name, value, most=_MOST_TRANSITIONS)


def treedepth(value: Any) -> int:
    """Return `value` if it is a number of doublings that a trajectory may have at most."""
    return count("max_treedepth", value, most=_DEEPEST)


def path_length(value: Any) -> float:
    """Return the length of trajectories; by default a quarter of a period of a normal posterior.

    From there momentum and position have changed places: positions do not depend on those before.
    """
    return between("path_length", np.pi / 2 if value is None else value, 0.0, np.inf)


def temperature(value: Any, zero: bool = False) -> float:
    """Return a temperature; whether it may be zero is up to the sampler."""
    if zero and is_number(value) and value == 0:
        return 0.0
    if zero:
        at_least_zero("temperature", value)
    else:
        between("temperature", value, 0.0, np.inf)
    least, most = 1 / _MOST_TEMPERATURE, _MOST_TEMPERATURE
    return number("temperature", value, f"from {least:g} to {most:g}", lambda x: least <= x <= most)


def workers(value: Any) -> Workers:
    """Return who makes passes over all rows."""
    if value is None or isinstance(value, Executor):
        return Workers(value)
    if hasattr(value, "get_executor") and hasattr(value, "nthreads"):  # a client of Dask
        if value.asynchronous:
            raise ValueError(
                "workers is an asynchronous Dask client, whose results nothing waits for. Make it "
                "with Client(..., asynchronous=False)."
            )
        return Workers(value)
    if is_number(value):
        return Workers(count("workers", value))
    raise TypeError(
        "workers must be None, a number of threads, an executor of concurrent.futures or a "
        f"dask.distributed.Client, got {shown(value)}."
    )


def batch_size(value: Any, n_rows: int, default: int) -> int:
    """Return the rows of a batch: `default`, or all where there are fewer, if it is None."""
    if value is None:
        return min(default, n_rows)
    return count("batch_size", value, n_rows)


def optional_batch(value: Any, smallest: int = 1) -> int | None:
    """Return `value` if it may be the rows of a batch, before the rows are known, or None."""
    return None if value is None else count("batch_size", value, smallest=smallest)


def row_bound(value: Any) -> float:
    """Return what a user's bound on the rows' terms gave, if it is a number from 0 up."""
    given = value[()] if isinstance(value, np.ndarray) and np.ndim(value) == 0 else value
    if not is_number(given) or not 0 <= given < np.inf:
        raise ValueError(
            "bound(point, new_point) must return a finite number, 0 or above: the largest "
            f"|log p(x_i | new) - log p(x_i | old)| over rows; got {shown(value)}."
        )
    return float(given)


def seed(name: str, value: Any) -> int:
    """Return an integer seed."""
    return count(name, value, smallest=0, most=2**64)  # of NumPy's seeds


def initial_point(value: Any) -> dict[str, np.ndarray]:
    """Return values of value variables by name; None stands for the model's own."""
    given = mapping("initial_point", value, "values by the names of value variables")
    return {name: finite(f"initial_point[{name!r}]", x) for name, x in given.items()}
