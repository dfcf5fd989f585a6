"""Arguments that steps share: typed, described and read once, and shown in full everywhere.

A constructor's ``**above: Unpack[...]`` stands for arguments of the class above, and type checkers
know them by the typed dictionaries. A step's docstring describes what is its own. `complete` adds
the rest to both when the class is made, for `help`, `inspect.signature` and the documentation.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import Signature
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pymc as pm
import xarray as xr
from pymc.blocking import PointType

from pymc_subsample.chain import arguments, integrating, variables
from pymc_subsample.chain.model_compilation import Form
from pymc_subsample.chain.progress import announced, doing
from pymc_subsample.chain.sharing import Shared
from pymc_subsample.model.discovery import chosen_names
from pymc_subsample.rows import Rows
from pymc_subsample.signatures import completed, described

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


class StepArguments(TypedDict, total=False):
    """Arguments of all steps."""

    model: pm.Model | None
    likelihood: Sequence[str] | None
    dim: str | None
    data: Rows | Sequence[Rows] | None
    workers: Any
    rng: Any


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


def read_arguments(
    step: "ChainStep",
    vars: Sequence | None = None,
    *,
    model: pm.Model | None = None,
    likelihood: Sequence[str] | None = None,
    dim: str | None = None,
    data: Rows | Sequence[Rows] | None = None,
    reference: "Mapping[str, Any] | ChainStep | xr.DataTree | None" = None,
    reparameterize: bool = True,
    integrate: str | Sequence[str] | bool = "auto",
    workers: Any = None,
    rng: int | np.random.Generator | None = None,
    initial_point: PointType | None = None,
) -> None:
    """Read the arguments of a step, and integrate local variables of its model out.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    likelihood : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that
        have one log-likelihood per row, of any length; the others are evaluated in full every
        time.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    data : Rows or sequence of Rows, optional
        Rows on disk. The model is written on a sample of them, `Rows.sample`, as `pm.Data` by the
        names of columns; these take its place, and all rows are sampled. One for each length where
        rows have several.
    reference : dict, step or DataTree, optional
        Expansion point: untransformed values by variable name, for every free variable; or an
        earlier run of the model, by its idata (posterior means; in hierarchies those of the scales,
        and the mode given these) or its step. Then neither the mode nor other modes are searched
        for, unless the run is far from it, which is said. Values are used as given, those of a run
        may move in tuning. Default: the posterior mode, found automatically.
    reparameterize : bool, default True
        Whether the chain moves effects of groups, and other variables whose scale depends on
        parameters, in coordinates of its own, between their centred and non-centred forms, however
        the model writes them; and coefficients of nearly collinear columns, as of raw powers of a
        year, by the QR reparameterisation, where sums over rows lose their digits otherwise. Draws
        are in the model's own variables either way.
    integrate : "auto", False, str or sequence of str, default "auto"
        Local variables to integrate out, all of one grouping: effects of customers, patients or
        rows, each with few rows, which would be as many parameters. The chain moves the others, on
        their marginal posterior, and subsamples units, all rows of a level, in place of rows; local
        variables are drawn, exactly, given each draw that is stored. "auto": those of the grouping
        that has many levels of few rows, or an effect of each single row, which is always
        integrated out, however few there are; unless `vars`, `likelihood` or `dim` are given. Rows
        on disk must have the rows of each level together (``by=`` where they are made).
        See `marginalize` and `effects`.
    workers : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Who reads all rows where set-up, tuning and checks do: a number of threads of this process,
        or the workers of an executor. Results do not depend on it. Default: as many threads as
        there are processors. Chains that run in processes of their own use one thread each.
    rng : int or Generator, optional
        Random numbers of the set-up; a chain's own come from `pm.sample(random_seed=...)`.
        Default: a fixed seed, so that equal chains follow from equal seeds.
    initial_point : dict, optional
        Values of value variables where the search for the reference starts. Default: the model's
        initial point.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled; the message names the variable and the Op.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.
    """
    step.given_reference = step.earlier = None
    shared = reference if isinstance(reference, Shared) else None
    like = step.like = None if shared is None else shared.step
    if shared is not None:
        step.patience, reference = shared.patience, None
    of_run = isinstance(reference, xr.DataTree) or hasattr(reference, "reference_values")
    if not of_run:
        variables.given_reference(reference)
    step.workers = arguments.workers(workers)
    step.rng = arguments.generator(rng)
    step.row_rng = step.rng.spawn(1)[0]
    model = arguments.model_of_step(model, type(step).__name__)
    binary = step.method.binary
    with doing("integrating local variables out"):
        step.units = like.units if like is not None else integrating.integrated(
            model, False if binary else integrate, type(step).__name__, data,
            vars=vars, likelihood=likelihood, dim=dim,
        )  # fmt: skip
    step.sampled_model = model if step.units is None else step.units.marginal
    chosen = variables.binary_vars if binary else variables.continuous_vars
    step.vars = chosen(vars, step.model)
    if step.units is not None:
        integrating.declare_units(step)
        if not of_run:
            reference = step.units.without(reference)
            initial_point = step.units.without(initial_point)
    if of_run:  # of which it holds these, and not the run itself
        step.earlier = reference = variables.earlier(step.sampled_model, reference)
    else:
        step.given_reference = reference
    if reference is not None:
        variables.refuse_other_variables(step.sampled_model, reference, earlier=of_run)
    step.form = Form(arguments.truth("reparameterize", reparameterize))
    step.rows_of = {
        "likelihood": chosen_names(likelihood) or None,
        "dim": arguments.text("dim", dim, "a dimension"),
        "initial_point": arguments.initial_point(initial_point),
        "data": data if step.units is None else step.units.data,
    } | ({"binary": step.names} if binary else {})
    if like is not None:
        step.given_reference, step.earlier = like.given_reference, like.earlier
        step.form = replace(like.form, scales=like.form.scales if step.method.estimates else {})


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
