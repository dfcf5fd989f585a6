"""Memory that PyMC takes for the draws of a run: what needs much of it, and if there is enough.

PyMC stores every free and deterministic variable at every draw, tuning included, and copies the
draws once more into the result. A variable with one element per row fills the memory that way.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.chain.pm_sample import calling_sample, is_called_by
from pymc_subsample.graph.concrete import concretize
from pymc_subsample.model.bambi import has_rows
from pymc_subsample.model.binding import listed
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.evaluation import Evaluation
from pymc_subsample.validation import warn

_log = logging.getLogger("pymc.subsample")

_GB = 1e9  # Bytes.
# Share of the free memory that the draws of a run may take. A choice: the rest is for what is
# made of them. A choice: the largest few take nearly all.
_SHARE = 0.5
_SHOWN = 4
# What distributions of PyMC store of their own accord, by the end of its name.
_PROBABILITIES = "_probs"
# Limits of a container.
_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Stored:
    """A variable that is stored at every draw."""

    name: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def size(self) -> int:
        """Bytes per draw."""
        return int(np.prod(self.shape, dtype=int)) * self.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} ({' x '.join(f'{s:,}' for s in self.shape)})"


def warn_of_rows(
    model: pm.Model,
    tall: Evaluation,
    lengths: Collection[int] = (),
    sample: Collection[Variable] = (),
) -> None:
    """Warn of what the run that calls stores with one element per row, evaluated at every draw.

    Where `tall` is of units, `lengths` are the numbers of their rows, and `sample` data of the
    model that stand for rows on disk.

    Where the rows are not the model's own, of what PyMC computes from its sample of them. Bambi
    writes some into its models, which its own `fit` leaves out of the result. Of those
    `hint_for_bambi` speaks.
    """
    stored = (calling_sample() or {}).get("var_names")
    variables = [v for v in model.deterministics if stored is None or v.name in stored]
    if tall.bound:
        of_sample = set(sample or tall.bound)
        read = [v.name for v in variables if not of_sample.isdisjoint(ancestors([v]))]
        if read:
            warn(
                f"{listed(read)}: computed by PyMC from the rows that the model is written on, not "
                "from all rows of data. Leave such deterministic variables out of the model, or "
                "out of the result: pm.sample(..., var_names=[...])."
            )
        return
    lengths = lengths or {tall.n_rows, *np.diff(tall.rows.starts).tolist()}
    large = _row_length(model, variables, lengths)
    if not large or all(has_rows(model, s.name) for s in large):
        return
    total = sum(s.size for s in large) * 1000 / _GB  # of 1,000 draws
    warn(
        "Deterministic variables with one element per row are evaluated on all rows, and stored, "
        f"at every draw: {', '.join(map(str, large))}. That takes {total:.2g} GB per 1,000 draws "
        f"of a chain. {_remedy(model, [s.name for s in large])}"
    )


def _row_length(
    model: pm.Model, variables: Sequence[Variable], lengths: Collection[int]
) -> list[Stored]:
    """Return those of some variables that have an axis of one of some lengths."""
    graphs = model.replace_rvs_by_values(variables)
    graphs = concretize(graphs, model.value_vars, model.initial_point()).outputs
    shapes = [tuple(s or 1 for s in getattr(g.type, "shape", ())) for g in graphs]
    return [
        Stored(v.name, shape, np.dtype(v.type.dtype).itemsize)
        for v, shape in zip(variables, shapes, strict=True)
        if not set(lengths).isdisjoint(shape)
    ]


def _remedy(model: pm.Model, names: Collection[str], local: Collection[str] = ()) -> str:
    makers = {v.name for v in model.observed_RVs}
    made = [n for n in names if n.removesuffix(_PROBABILITIES) in makers - {n}]
    said = []
    for name in made:
        maker = name.removesuffix(_PROBABILITIES)
        said.append(f"{name!r} is left out by compute_p=False in {maker!r}'s distribution.")
    if set(names) - set(made):
        stored = [v.name for v in model.free_RVs if v.name not in local]
        stored += [v.name for v in model.deterministics if v.name not in names]
        shown = f"[{', '.join(map(repr, stored))}]"
        if len(stored) > _SHOWN and not local:
            shown = "[v.name for v in model.free_RVs]"
        after = (
            "draw them, or summarise them, by pms.effects"
            if local
            else ("compute them afterwards from a few draws")
        )
        said.append(f"Leave them out with pm.sample(..., var_names={shown}) and {after}.")
    return " ".join(said)


def refuse_beyond_memory(model: pm.Model, local: Collection[str] = ()) -> None:
    """Raise if the run of `pm.sample` that calls takes more than half of the free memory.

    `local` are variables that are integrated out, which can be drawn afterwards.

    PyMC tells a step neither the number of chains and draws of a run nor what it stores of them;
    they are read from `pm.sample` itself, which has made the traces by then. Where it is not among
    the callers nothing is known, and nothing is refused.
    """
    run = _calling_run()
    free = free_memory()
    if run is None or free is None:
        return
    traces, draws, tune = run
    stored = _stored(traces)
    needed = _times(*run) * sum(s.size for s in stored)
    if needed <= _SHARE * free:
        return
    largest = sorted(stored, key=lambda s: -s.size)
    # A choice: less than a tenth of the largest is not worth a name.
    large = [s for s in largest if s.size >= 0.1 * largest[0].size][:_SHOWN]
    raise TallModelError(
        f"The draws of this run take {needed / _GB:.3g} GB of memory ({len(traces)} chains of "
        f"{tune:,} + {draws:,} draws, and a copy in the result), more than half of the "
        f"{free / _GB:.3g} GB that are free. Most of it is for {', '.join(map(str, large))}. "
        f"{_remedy(model, [s.name for s in large], local)} Or take fewer draws."
    )


def memory_of_draws(names: Collection[str]) -> tuple[list[str], float]:
    """Return which of some variables the run that calls stores, and how many GB their draws are."""
    run = _calling_run()
    if run is None:
        return list(names), 0.0
    stored = [s for s in _stored(run[0]) if s.name in names]
    return [s.name for s in stored], _times(*run) * sum(s.size for s in stored) / _GB


def _stored(traces: Sequence[NDArray]) -> list[Stored]:
    return [
        Stored(name, tuple(shape), np.dtype(traces[0].var_dtypes[name]).itemsize)
        for name, shape in traces[0].var_shapes.items()
    ]


def _times(traces: Sequence[NDArray], draws: int, tune: int) -> int:
    """Return how often a variable is kept: at draws, those of tuning too, and in the result."""
    return len(traces) * (2 * draws + tune)


def hint_for_bambi(model: pm.Model) -> None:
    """Say what Bambi's `fit` does where `pm.sample` was called for one of its models."""
    run = _calling_run()
    if run is None or is_called_by("bambi"):
        return
    large = [name for name in run[0][0].var_shapes if has_rows(model, name)]
    if large:
        _log.info(
            "This model is Bambi's: sample it with model.fit(step=...), which leaves the fitted "
            f"values of all rows out of the result ({', '.join(large)}) and gives the intercept "
            "for predictors as they are. pm.sample gives it for centred ones."
        )


def _calling_run() -> tuple[list[NDArray], int, int] | None:
    """Return the traces in memory, draws and tuning draws of the `pm.sample` that calls."""
    known = calling_sample() or {}
    traces = known.get("traces")
    if not traces or not all(isinstance(t, NDArray) for t in traces):
        return None
    return list(traces), int(known["draws"]), int(known["tune"])


def free_memory() -> float | None:
    """Return how many bytes this process can still take, or None where that is not known."""
    known = [n for n in (_of_machine(), _of_group()) if n is not None]
    return min(known, default=None)


def total_memory() -> float | None:
    """Return how many bytes the machine, or the container, has; None where that is not known."""
    known = [n for n in (_pages("SC_PHYS_PAGES"), _limit_of_group()) if n is not None]
    return min(known, default=None)


def _of_machine() -> float | None:
    found = _numbers(Path("/proc/meminfo"))
    if "MemAvailable:" in found:
        return 1024 * found["MemAvailable:"]  # which is in kB
    known = map(_pages, ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    return next((n for n in known if n is not None), None)


def _pages(name: str) -> float | None:
    try:
        return float(os.sysconf(name) * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def _of_group() -> float | None:
    """Return what is left of the limit of a container."""
    limit = _limit_of_group()
    try:
        used = float((_GROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    cached = _numbers(_GROUP / "memory.stat").get("inactive_file", 0.0)
    return None if limit is None else limit - used + cached


def _limit_of_group() -> float | None:
    try:
        return float((_GROUP / "memory.max").read_text())
    except (OSError, ValueError):  # no limit is spelled out as a word
        return None


def _numbers(file: Path) -> Mapping[str, float]:
    """Read lines of a name and a number."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: float(line[1]) for line in lines if len(line) > 1}
