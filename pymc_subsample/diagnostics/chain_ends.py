"""What rules found at the ends of chains: a group of a result, once for each chain.

They travel with the warning of a chain's last draw, a statistic that PyMC leaves out of results,
and become the group `GROUP` where PyMC turns traces into a result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import xarray as xr
from pymc.backends.base import MultiTrace

from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.expansion.modes import ModeSearch

GROUP = "checks"
# Of a check that was not made.
_NOT_MADE = -1


@dataclass(frozen=True)
class ChainEnd:
    """What the rules of one step found at the end of a chain."""

    # The sampler, and its family, by whose rules these were.
    sampler: str
    family: str
    values: Mapping[str, float]  # By the names of the rules that were looked at.
    failed: tuple[str, ...]  # Names of those that failed.
    draws: int  # Which these are on.
    # Searches that the set-up made for other modes, and those of them that started at images of the
    # mode under symmetries.
    searches: int = 0
    images: int = 0


def found(
    sampler: str, family: str, draws: int, findings: Sequence[Finding], search: ModeSearch | None
) -> ChainEnd:
    """Return what was found, without what could not be measured and does no harm."""
    looked_at = [x for x in findings if not (x.passed and np.isnan(x.value))]
    return ChainEnd(
        sampler,
        family,
        {x.name: float(x.value) for x in looked_at},
        tuple(x.name for x in looked_at if not x.passed),
        draws,
        0 if search is None else search.starts,
        0 if search is None else search.images,
    )


def of_trace(trace: MultiTrace) -> list[list[ChainEnd]]:
    """Return the ends of each chain of a trace; none if its last draw is not the chain's."""
    if "warning" not in trace.stat_names or not len(trace):
        return []
    last = trace.get_sampler_stats("warning", burn=len(trace) - 1, combine=False, squeeze=False)
    extras = [[getattr(warning, "extra", None) for warning in np.ravel(one)] for one in last]
    return [[extra for extra in one if isinstance(extra, ChainEnd)] for one in extras]


def as_group(chains: Sequence[Sequence[ChainEnd]]) -> xr.Dataset:
    """Return ends of chains as arrays over chains, steps and rules."""
    names = list(dict.fromkeys(name for chain in chains for end in chain for name in end.values))
    shape = len(chains), max(map(len, chains))
    value = np.full((*shape, len(names)), np.nan)
    failed = np.full(value.shape, _NOT_MADE, dtype=np.int8)
    said = {name: np.full(shape, "", dtype=object) for name in ("sampler", "family")}
    counts = {name: np.zeros(shape, dtype=np.int64) for name in ("draws", "searches", "images")}
    for at in np.ndindex(shape):
        if at[1] < len(chains[at[0]]):
            end = chains[at[0]][at[1]]
            for k, name in enumerate(names):
                if name in end.values:
                    value[*at, k], failed[*at, k] = end.values[name], name in end.failed
            for kind, x in (said | counts).items():
                x[at] = getattr(end, kind)
    each, steps = ("chain", "step", "check"), ("chain", "step")
    of_steps = {name: (steps, x.astype(str)) for name, x in said.items()}
    of_steps |= {name: (steps, x) for name, x in counts.items()}
    return xr.Dataset(
        {"value": (each, value), "failed": (each, failed)} | of_steps,
        coords={"chain": np.arange(len(chains)), "check": np.array(names, dtype=str)},
    )


def in_result(idata: xr.DataTree) -> dict[Any, list[ChainEnd]]:
    """Return the ends of each chain of a result, or of several that were put together."""
    if GROUP not in idata.children:
        return {}
    group = idata[GROUP].to_dataset()
    others = [d for d in group.dims if d not in ("chain", "check")]
    result: dict[Any, list[ChainEnd]] = {}
    for chain, label in enumerate(group["chain"].values):
        for at in np.ndindex(*(group.sizes[d] for d in others)):
            one = group.isel(dict(zip(others, at, strict=True)) | {"chain": chain})
            if isinstance(name := one["sampler"].item(), str) and name:
                result.setdefault(label, []).append(_read(one))
    return result


def _read(one: xr.Dataset) -> ChainEnd:
    failed = dict(zip(one["check"].values.tolist(), one["failed"].values, strict=True))
    return ChainEnd(
        one["sampler"].item(),
        one["family"].item(),
        {name: float(one["value"].sel(check=name)) for name, how in failed.items() if how >= 0},
        tuple(name for name, how in failed.items() if how > 0),
        int(one["draws"]),
        int(one["searches"]),
        int(one["images"]),
    )


def with_chain_ends(convert: Callable[..., xr.DataTree]) -> Callable[..., xr.DataTree]:
    """Have a conversion of traces, `pm.to_inference_data`, put ends of chains into its result."""

    @wraps(convert)
    def converted(trace: Any = None, **given: Any) -> xr.DataTree:
        result = convert(trace, **given)
        chains = of_trace(trace) if isinstance(trace, MultiTrace) else []
        if any(chains):
            result[GROUP] = xr.DataTree(as_group(chains))
        return result

    return converted
