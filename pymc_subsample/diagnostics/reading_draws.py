"""Draws of a run, read back: evenly spread ones, and their place in PyMC's unconstrained space."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_base.sel_utils import xarray_sel_iter
from pymc.initial_point import make_initial_point_expression

from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS, require_tree
from pymc_subsample.diagnostics.look import farthest
from pymc_subsample.diagnostics.perturbation import standardised
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import to_keep
from pymc_subsample.model.evaluation import Vector

# A dimension that no model has.
_FAR = "__farthest__"


def group(idata: xr.DataTree, name: str, said: str) -> xr.Dataset:
    """Return a group of a result, with chains and draws first; refuse what has no such draws."""
    require_tree(idata, f"{said}: idata")
    if name not in idata.children:
        raise ValueError(
            f"{said}: idata has no group {name!r}, only {list(idata.children)}. Pass what "
            "pm.sample returned."
        )
    data = idata[name].to_dataset()
    missing = [d for d in SAMPLE_DIMS if d not in data.dims]
    if missing or not all(data.sizes[d] for d in SAMPLE_DIMS):
        raise ValueError(
            f"{said}: group {name!r} must have the dimensions 'chain' and 'draw', and draws; its "
            f"sizes are {dict(data.sizes)}."
        )
    return data.transpose(*SAMPLE_DIMS, ...)


def spread(n_draws: int, n_chains: int, wanted: int) -> np.ndarray:
    """Evenly spread draws of each chain, about `wanted` of all chains together."""
    each = min(n_draws, max(1, -(-wanted // n_chains)))
    return ((np.arange(each) + 0.5) * n_draws / each).astype(int)


def columns(posterior: xr.Dataset, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Elements of variables, shape (chain, draw, p), and labels, as `arviz.summary` has them."""
    chosen = posterior[list(names)]
    labels = [
        BaseLabeller().make_label_flat(name, sel, isel)
        for name, sel, isel in xarray_sel_iter(chosen, skip_dims=set(SAMPLE_DIMS))
    ]
    parts = [np.asarray(chosen[name].values, dtype=float) for name in chosen.data_vars]
    sizes = tuple(posterior.sizes[d] for d in SAMPLE_DIMS)
    return np.concatenate([part.reshape(*sizes, -1) for part in parts], axis=-1), labels


def require_free_variables(posterior: xr.Dataset, model: pm.Model, said: str) -> None:
    """Refuse a posterior from which a point of the model cannot be read."""
    discrete = [model.values_to_rvs[v].name for v in model.discrete_value_vars]
    if discrete:
        raise TallModelError(
            f"{said}: {', '.join(map(repr, discrete))} is discrete, and densities of continuous "
            "variables only are evaluated. Marginalise it."
        )
    names = [rv.name for rv in model.free_RVs]
    missing = [name for name in names if name not in posterior]
    if missing:
        raise ValueError(
            f"{said}: idata.posterior lacks {', '.join(map(repr, missing))}. The density needs "
            f"every free variable of the model, {names}. "
            f"{to_keep(posterior, missing, model, 'Sample without var_names, or keep them.')}"
        )
    for name, shape in model.eval_rv_shapes().items():
        if name in names:
            refuse_other_shape(posterior, name, shape, f"{said}: ")


def refuse_other_shape(posterior: xr.Dataset, name: str, shape: Iterable[int], said: str) -> None:
    """Refuse draws of a variable that has another shape in the model."""
    expected, found = tuple(map(int, shape)), posterior[name].shape[2:]
    if found != expected:
        raise ValueError(
            f"{said}idata.posterior[{name!r}] has shape {found} per draw, the model's variable "
            f"{expected}. Pass the model that was sampled."
        )


def sample_stats(idata: xr.DataTree) -> xr.Dataset:
    """Sample statistics of a run, none if it has none."""
    return idata["sample_stats"].to_dataset() if "sample_stats" in idata.children else xr.Dataset()


def why_not_weights(idata: xr.DataTree) -> str:
    """Say why a run has no exact weights; empty where it has."""
    stats = sample_stats(idata)
    if "lp" not in stats or "subset_accepted" not in stats:
        return (
            "sample_stats does not hold 'lp' and 'subset_accepted', the estimated log posterior of "
            "an HMCECS run"
        )
    if "nstep_out" in stats or any(stats[name].ndim > 2 for name in stats.data_vars):
        return (
            "several step methods made this run, and 'lp' is the estimate before the others moved"
        )
    if stats.sizes["draw"] != idata["posterior"].sizes["draw"]:
        return "sample_stats and posterior have different numbers of draws"
    return ""


def require_same_rows(
    idata: xr.DataTree, tall: TallModel, said: str, *, some: bool = False
) -> None:
    """Refuse a model of other rows than the run recorded.

    `some`: the rows are those of some variables of the model, and the run may have sampled others.
    """
    sums = {tall.n_rows}
    for lengths in [{tall.n_rows}, *(set(w.graph.type.shape) for w in tall.whole)] if some else []:
        sums |= lengths | {a + b for a in sums for b in lengths}
    rows = sampled_rows(idata)
    if rows is not None and rows not in sums:
        of = f" of {', '.join(map(repr, tall.likelihood))}" if some else ""
        raise ValueError(
            f"{said}: the run sampled {rows:,} rows, the model has {tall.n_rows:,}{of}. Pass the "
            "model and the data that were sampled; pass rows on disk as data=."
        )


def sampled_rows(idata: xr.DataTree) -> int | None:
    """Return how many rows the steps of a run sampled, or None where they do not say."""
    stats = sample_stats(idata)
    rows = np.unique(stats["n_rows"]) if "n_rows" in stats else np.zeros(0)
    return int(rows[0]) if len(rows) == 1 else None


def to_theta(model: pm.Model, vector: Vector, posterior: xr.Dataset, said: str) -> np.ndarray:
    """Map draws inside their support to PyMC's unconstrained space, shape (chain, draw, d)."""
    thetas = _mapped(model, vector, posterior)
    for name, part in zip(vector.names, vector.slices, strict=True):
        bad = ~np.isfinite(thetas[..., part]).all(axis=-1)
        if bad.any():
            chain, draw = np.argwhere(bad)[0]
            owner = next(v for v in model.value_vars if v.name == name)
            raise ValueError(
                f"{said}: {bad.sum()} of the draws of {model.values_to_rvs[owner].name!r} are not "
                f"finite or lie on the edge of its support (first: chain {chain}, position {draw}),"
                " where the log posterior is not defined. Pass the model that was sampled, and all "
                "digits of its draws."
            )
    return thetas


def farthest_thetas(
    model: pm.Model, vector: Vector, posterior: xr.Dataset, most: int
) -> np.ndarray:
    """Return draws that are the farthest in single elements, as `to_theta` does, shape (k, d).

    Of positive ones, in their logarithms too. Those at the edge of their support, where rounding
    may have brought them, are left out.
    """
    values, _ = columns(posterior, [rv.name for rv in model.free_RVs])
    every = values.reshape(-1, values.shape[-1])
    every = np.hstack([every, np.log(every[:, np.all(every > 0, axis=0)])])
    chosen = farthest(standardised(every, np.full(len(every), 1 / len(every))), most)
    places = np.unravel_index(chosen, values.shape[:2])
    at = {d: xr.DataArray(i, dims=_FAR) for d, i in zip(SAMPLE_DIMS, places, strict=True)}
    draws = posterior.isel(at).drop_vars(SAMPLE_DIMS, errors="ignore").expand_dims("chain")
    [thetas] = _mapped(model, vector, draws.transpose("chain", _FAR, ...))
    return thetas[np.isfinite(thetas).all(axis=1)]


def _mapped(model: pm.Model, vector: Vector, posterior: xr.Dataset) -> np.ndarray:
    """Map draws, of two first dimensions, to vectors; what has no place there is not finite."""
    rvs = model.free_RVs
    # Plain tensors, also for variables of pymc.dims: an initial value is given like this there.
    inputs = [pt.tensor(dtype=rv.type.dtype, shape=rv.type.shape) for rv in rvs]
    outputs = make_initial_point_expression(
        free_rvs=rvs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=dict(zip(rvs, inputs, strict=True)),
        return_transformed=True,
    )
    forward = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    names = [model.rvs_to_values[rv].name for rv in rvs]
    draws = [posterior[rv.name].values.astype(rv.dtype) for rv in rvs]
    thetas = np.empty((*draws[0].shape[:2], vector.size))
    with np.errstate(all="ignore"):
        for at in np.ndindex(thetas.shape[:2]):
            values = forward(*(values[at] for values in draws))
            thetas[at] = vector.ravel(dict(zip(names, values, strict=True)))
    return thetas


def reader(model: pm.Model, vector: Vector, names: Sequence[str]) -> Callable:
    """Return a function from theta, shape (k, d), to elements of variables, shape (k, p)."""
    by_name = {v.name: v for v in [*model.free_RVs, *model.deterministics]}
    graphs = model.replace_rvs_by_values([by_name[name] for name in names])
    function = model.compile_fn(
        graphs, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore",
        point_fn=False,
    )  # fmt: skip
    kinds = {v.name: v.type.dtype for v in model.value_vars}
    order = [v.name for v in model.value_vars]

    def read(thetas: np.ndarray) -> np.ndarray:
        rows = []
        with np.errstate(all="ignore"):
            for theta in thetas:
                point = vector.unravel(theta)
                values = function(*(point[name].astype(kinds[name]) for name in order))
                rows.append(np.concatenate([np.ravel(value) for value in values]))
        return np.array(rows, dtype=float)

    return read
