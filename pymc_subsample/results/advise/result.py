"""What `advise` hands back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from pymc_subsample.samplers.registry import ADVISED

EXACT = frozenset(
    {"nutpie", "pm.NUTS", "pm.Metropolis", "pm.sample"}
    | {name for name, advised in ADVISED.items() if advised.exact}
)
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0  # Seconds.


@dataclass(frozen=True, repr=False)
class Option:
    """What one sampler would take.

    Attributes
    ----------
    sampler : str
        Its name.
    exact : bool
        Whether its draws are from the posterior itself.
    status : {"passed", "failed", "refused", "untried", "projected"}
        What its pilot came to, by the step's own checks; "refused" if the step does not take the
        model, "untried" if it was not looked at, "projected" for what reads all rows, without a
        pilot.
    seconds : float
        One chain's time to the effective draws that are wanted, with set-up, compilation and 1,000
        tuning draws; nan if refused or untried.
    at_least : bool
        Whether `seconds` is a lower bound, and no estimate.
    setup_seconds : float
        The part of it before and after the draws.
    rows : float
        Read per draw, estimate or decision.
    ess_per_second : float
        Smallest bulk effective sample size of a parameter, per second of drawing.
    note : str
        Why it failed, was refused, was not tried or is a bound; empty otherwise.
    """

    sampler: str
    exact: bool
    status: str
    seconds: float = np.nan
    at_least: bool = False
    setup_seconds: float = np.nan
    rows: float = np.nan
    ess_per_second: float = np.nan
    note: str = ""

    def __repr__(self) -> str:
        known = {name: value for name, value in vars(self).items() if value == value != ""}
        return f"Option({', '.join(f'{name}={value!r}' for name, value in known.items())})"

    def _cells(self) -> tuple[str, ...]:
        return (
            self.sampler,
            "exact" if self.exact else "perturbed",
            # A draw of fewer rows is said to read one.
            read(self.sampler, self.rows) if self.rows < 1.5 else shown(self.rows),
            duration(self.setup_seconds),
            self.taking,
            ": ".join(filter(None, [self.status, shortened(self.note)])),
        )

    @property
    def taking(self) -> str:
        """Its seconds in words; empty if they are not known."""
        said = duration(self.seconds)
        return f"over {said}" if said and self.at_least else said


@dataclass(frozen=True, repr=False)
class Advice:
    """What `advise` found; numbers that were not measured are nan, seconds are of the processor.

    Attributes
    ----------
    recommendation : str
        Name of a step, or of a sampler that reads all rows: "nutpie", "pm.NUTS", or "pm.sample"
        where PyMC's own choice of steps is meant.
    reason : str
        Why, in plain words.
    code : str
        The line to write, within `with model:`.
    exact : bool
        Whether draws of what is recommended are from the posterior itself.
    tried : str
        The step whose pilot was run, the best one if several were; empty if none was.
    passed : bool
        Whether the pilot passed the step's own checks.
    against : str
        The sampler on all rows that it is compared with; empty if none was.
    rows, parameters : int
        Rows of the data and unconstrained parameters; no rows (0) if they could not be found.
    of : {"rows", "units"}
        What rows are here: units, all rows of a level, if local variables are integrated out.
    subsample_size, data_share : float
        Rows per estimate or decision (of `ScalableMH` per draw), and the same as a share of all
        rows.
    loglik_variance, perturbation : float
        Predicted variance of the log-likelihood estimate, and the error that it leaves in the log
        of the likelihood estimate's mean; largest values on the 95% ellipsoid. `HMCECS` only.
    ess_per_draw, ess_per_second : float
        Smallest bulk effective sample size of a parameter, per draw and second of the pilot.
    full_ess_per_second : float
        The same for `against`, projected.
    ratio : float
        `ess_per_second` over `full_ess_per_second`.
    setup_seconds : float
        Making the step, compilation included, `pm.sample` before the first draw, and the checks
        at the end of the chain.
    effective_draws : int
        Effective draws that are wanted.
    seconds, full_seconds : float
        One chain's time to them, with set-up, compilation and 1,000 tuning draws, by the step
        that was tried and by `against`.
    full_bound : str
        Why `full_seconds` is a lower bound; empty if it is an estimate.
    pays_from : float
        Effective draws from which the step that was tried is the faster one; 0 if always, inf if
        never.
    options : tuple of Option
        All samplers: tried, projected, refused and untried.
    step : step or None
        The recommended step, set up: ``pm.sample(step=advice.step)`` need not do that again, says
        what a new one says of its set-up, and draws what it would, or equally good draws where
        another step was tried before, whose reference it took. None where all rows are recommended.

    Examples
    --------
    >>> advice = pms.advise(model)
    >>> print(advice.recommendation, advice.code)
    """

    recommendation: str
    reason: str
    code: str
    exact: bool = True
    tried: str = ""
    passed: bool = False
    against: str = ""
    rows: int = 0
    parameters: int = 0
    of: str = "rows"
    subsample_size: float = np.nan
    data_share: float = np.nan
    loglik_variance: float = np.nan
    perturbation: float = np.nan
    ess_per_draw: float = np.nan
    ess_per_second: float = np.nan
    full_ess_per_second: float = np.nan
    ratio: float = np.nan
    setup_seconds: float = np.nan
    effective_draws: int = 1000
    seconds: float = np.nan
    full_seconds: float = np.nan
    full_bound: str = ""
    pays_from: float = np.nan
    options: tuple[Option, ...] = ()
    step: Any = field(default=None, compare=False)

    @property
    def answer(self) -> str:
        """The advice in one line."""
        rows = f"all {self.rows:,} {self.of}" if self.rows else ""
        if self.recommendation == self.tried:
            rows = read(self.tried, self.subsample_size, self.of)
        said, others = ["exact" if self.exact else "perturbed", rows], []
        for option in self.options:
            takes = option.taking
            takes += " (a lower bound)" if option.at_least else ""
            takes += " (failed its checks)" if option.status == "failed" else ""
            if takes and option.sampler == self.recommendation:
                said.append(f"{self.effective_draws:,} effective draws in {takes}")
            elif takes and option.sampler in (self.tried, self.against):
                others.append(f"{option.sampler} {takes}")
        return "; ".join([f"use {self.recommendation}: {', '.join(filter(None, said))}", *others])

    def _numbers(self) -> list[tuple[str, str]]:
        never = self.pays_from == np.inf
        found = [
            (self.of, shown(self.rows or np.nan)),
            ("parameters", shown(self.parameters)),
            (f"share of the {self.of}", percent(self.data_share)),
            ("predicted variance", shown(self.loglik_variance)),
            ("predicted perturbation", shown(self.perturbation)),
            ("effective draws (bulk) per draw", shown(self.ess_per_draw)),
            (f"effective draws per second over {self.against or 'all rows'}", shown(self.ratio)),
            ("pays from effective draws", "never" if never else shown(self.pays_from)),
        ]
        return [(name, value) for name, value in found if value]

    def _table(self) -> list[tuple[str, ...]]:
        if not self.options:
            return []
        head = ("sampler", "draws", self.of, "set-up", f"{self.effective_draws:,} effective", "")
        return [head, *(o._cells() for o in self.options if o.status != "untried")]

    def _untried(self) -> str:
        """Name the samplers that were not tried, and why if they could have been."""
        said = [
            f"{o.sampler} ({o.note})" if o.note else o.sampler
            for o in self.options
            if o.status == "untried"
        ]
        return f"Not tried: {', '.join(said)}; samplers= tries them." if said else ""

    def __repr__(self) -> str:
        said = [self.answer, self.code, self.reason, *_aligned(self._table())]
        return "\n".join(filter(None, [*said, self._untried(), *_aligned(self._numbers())]))

    def _repr_html_(self) -> str:
        def rows(cells: list[tuple[str, ...]]) -> str:
            return "".join(
                f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells
            )

        return (
            f"<p><b>{escape(self.answer)}</b></p><p><code>{escape(self.code)}</code></p>"
            f"<p>{escape(self.reason)}</p><table>{rows(self._table())}</table>"
            f"<p>{escape(self._untried())}</p><table>{rows(list(self._numbers()))}</table>"
        )


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Write a table in columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in table]
    return ["  " + "  ".join(row).rstrip() for row in padded]


def shown(value: float) -> str:
    """Show a number to three digits; nothing if it is not known."""
    if not np.isfinite(value):
        return "" if np.isnan(value) else "infinite"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def unit(sampler: str) -> str:
    """Name what a sampler reads its rows for."""
    return ADVISED[sampler].reads_for if sampler in ADVISED else "estimate"


def read(sampler: str, rows: float, of: str = "rows") -> str:
    """Say how many rows a sampler reads: "14 rows per draw", "1 row per 27 draws"."""
    if np.isnan(rows):
        return ""
    if rows == 0 or rows >= 1.5:  # a draw of fewer is a draw of one
        return f"{shown(rows) if rows else 'no'} {of} per {unit(sampler)}"
    between = float(f"{1 / rows:.2g}")
    times = unit(sampler) if between < 1.5 else f"{between:,.0f} {unit(sampler)}s"
    return f"1 {of.removesuffix('s')} per {times}"


def percent(share: float) -> str:
    """Show a share of the rows; nothing if it is not known."""
    # what two digits show
    return "under 0.01%" if 0 < share < 1e-4 else shown(100 * share) + "%" * (share == share)


def duration(seconds: float) -> str:
    """Say how long so many seconds are, to two digits; nothing if that is not known."""
    if not np.isfinite(seconds):
        return "" if np.isnan(seconds) else "forever"
    for unit, size in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"


def shortened(text: str, most: int = 80) -> str:  # a choice: a line
    """Return the first sentence of a text, cut where it is long."""
    first = text.split(". ")[0].rstrip(".")
    return first if len(first) <= most else f"{first[: most - 3].rsplit(' ', 1)[0]} ..."
