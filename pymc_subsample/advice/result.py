"""What `advise` hands back."""

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

EXACT = frozenset({"ScalableMH", "FireflyMC", "nutpie", "pm.NUTS", "pm.Metropolis", "pm.sample"})
NO_PILOT = "no pilot: "
_OF_A_DRAW = frozenset({"ScalableMH"})
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0


@dataclass(frozen=True)
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
        Whether `seconds` is a lower bound alone.
    setup_seconds : float
        The part of it before and after the draws.
    rows : float
        Read per draw, estimate or decision.
    ess_per_second : float
        Smallest bulk effective sample size of a parameter, per second of drawing.
    note : str
        Why it failed, was refused or was not tried; empty otherwise.
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

    def _cells(self) -> tuple[str, ...]:
        rows, setup = (
            "" if np.isnan(value) else show(value)
            for value, show in ((self.rows, shown), (self.setup_seconds, duration))
        )
        return (
            self.sampler,
            "exact" if self.exact else "perturbed",
            rows,
            setup,
            self.taking,
            ": ".join(filter(None, [self.status, shortened(self.note)])),
        )

    @property
    def idle(self) -> bool:
        """Whether nothing at all is known about it."""
        return self.status == "untried" and self.note.startswith(NO_PILOT)

    @property
    def taking(self) -> str:
        """Its seconds in words; empty if they are not known."""
        if np.isnan(self.seconds):
            return ""
        return f"over {duration(self.seconds)}" if self.at_least else duration(self.seconds)


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
    full_at_least : bool
        Whether the numbers of `against` are bounds: it takes `full_seconds` or longer.
    pays_from : float
        Effective draws from which the step that was tried is the faster one; 0 if always, inf if
        never.
    options : tuple of Option
        All samplers: tried, projected, refused and untried.
    step : step or None
        The recommended step, set up: ``pm.sample(step=advice.step)`` need not do that again, and
        draws what a new one would. None where all rows are recommended, and where the pilot took
        its reference from another step.

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
    full_at_least: bool = False
    pays_from: float = np.nan
    options: tuple[Option, ...] = ()
    step: Any = field(default=None, compare=False)

    @property
    def answer(self) -> str:
        """The advice in one line."""
        chosen, others = None, []
        for option in self.options:
            if option.sampler == self.recommendation:
                chosen = option
            elif option.taking and option.sampler in (self.tried, self.against):
                failed = " (failed its checks)" if option.status == "failed" else ""
                others.append(f"{option.sampler} {option.taking}{failed}")
        said = ["exact" if self.exact else "perturbed"]
        if self.recommendation == self.tried:
            unit = "draw" if self.tried in _OF_A_DRAW else "estimate"
            said.append(f"{shown(self.subsample_size)} rows per {unit}")
        elif self.rows:
            said.append(f"all {self.rows:,} rows")
        if chosen is not None and chosen.taking:
            said.append(f"{self.effective_draws:,} effective draws in {chosen.taking}")
        return "; ".join([f"use {self.recommendation}: {', '.join(said)}", *others])

    def _numbers(self) -> list[tuple[str, str]]:
        found = [
            ("rows", self.rows or np.nan),
            ("parameters", self.parameters),
            ("percent of the rows", 100 * self.data_share),
            ("predicted variance", self.loglik_variance),
            ("predicted perturbation", self.perturbation),
            ("effective draws per draw", self.ess_per_draw),
            (f"effective draws per second over {self.against or 'all rows'}", self.ratio),
            ("pays from effective draws", self.pays_from),
        ]
        return [(name, shown(value)) for name, value in found if not np.isnan(value)]

    def _table(self) -> list[tuple[str, ...]]:
        head = ("sampler", "draws", "rows", "set-up", f"{self.effective_draws:,} effective", "")
        return [head, *(o._cells() for o in self.options if not o.idle)]

    def _untried(self) -> str:
        """Name the samplers that nothing is known about, and why."""
        idle = [option for option in self.options if option.idle]
        names = ", ".join(option.sampler for option in idle)
        return f"Not tried: {names} ({idle[0].note}; samplers= tries them)." if idle else ""

    def __repr__(self) -> str:
        numbers = self._numbers()
        width = max(len(name) for name, _ in numbers)
        lines = [f"  {name:<{width}}  {value}" for name, value in numbers]
        table = self._table() if self.options else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = [
            "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        said = [self.answer, self.code, self.reason, *rows, self._untried(), *lines]
        return "\n".join(filter(None, said))

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


def shown(value: float) -> str:
    """Show a number to three digits."""
    if not np.isfinite(value):
        return "never" if value > 0 else "none"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Say how long so many seconds are, to two digits."""
    if not np.isfinite(seconds):
        return "forever"
    for unit, size in (("days", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"


def shortened(text: str, most: int = 80) -> str:
    """Return the first sentence of a text, cut where it is long."""
    first = text.split(". ")[0].rstrip(".")
    return first if len(first) <= most else f"{first[: most - 3].rsplit(' ', 1)[0]} ..."
