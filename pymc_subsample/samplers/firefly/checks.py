"""Whether a Firefly chain can be trusted: the checks behind its warnings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.checks import (
    ACCEPTED,
    MODES,
    TEMPERATURE,
    Finding,
    Rule,
    check_accepted,
    check_temperature,
)
from pymc_subsample.diagnostics.record import MoveRecord, running
from pymc_subsample.diagnostics.tails import TAIL
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.model import ALONE

LOWER = Rule(
    "lower_bound",
    "excess of a lower bound / rounding error",
    1.0,
    'Use bound="auto", or a smaller number.',
)
READ = Rule(
    "rows_read",
    # A choice: beyond half of the rows all of them cost as much.
    "rows read per draw / all rows",
    0.5,
    'Use brightness="implicit", a tighter bound, or another sampler (ScalableMH, HMCECS, pm.NUTS).',
    severity="warn",
)
TURNOVER = Rule(
    "turnover",
    # A choice: as slow as lights that take more than ten draws to change.
    "bright rows replaced per draw / bright rows",
    0.1,
    "Increase dark_to_bright (or resample_fraction) or transitions_per_draw.",
    severity="warn",
    at_least=True,
)
RULES = (LOWER, READ, TURNOVER, ACCEPTED, TEMPERATURE, TAIL, MODES)

# What rounding may do to a residual, over the log-likelihood that it is a part of. A choice: some
# million roundings of doubles.
_ROUNDING = 1e-9


@dataclass
class LightRecord(MoveRecord):
    """What a Firefly chain did after tuning."""

    # Sums over draws of the mean number of bright rows and of lights that went out.
    bright: float = 0.0
    darkened: float = 0.0
    lowest: float = np.inf  # Least residual of a row that was read.

    def add_lights(self, infos: dict[str, np.ndarray]) -> None:
        """Add what the transitions of some draws did to the lights, each of shape (n,)."""
        self.bright = running(self.bright, infos["n_bright"])
        self.darkened = running(self.darkened, infos["darkened"])
        self.lowest = min(self.lowest, float(infos["lowest"].min()))


@dataclass(frozen=True)
class Brightness:
    """Residuals of all rows at some points."""

    expected: np.ndarray  # Expected number of bright rows at each point, shape (k,).
    # Largest excess of a bound over its likelihood, over what rounding may do: at most 1.
    excess: float
    row: int  # Where that is.
    tolerance: float  # What rounding may do to any row's residual at the reference.


def brightness(
    expansion: Expansion, reference: Reference, thetas: Iterable[np.ndarray], temperature: float
) -> Brightness:
    """Evaluate all rows at points theta, shape (d,), in one pass."""
    points = [expansion.parameters(theta)[0] for theta in thetas]
    expected = np.zeros(len(points))
    excess, row, start, largest = 0.0, -1, 0, 0.0
    for bright, level, over in expansion.over(_excess, reference.center, points, temperature):
        expected += bright
        largest = max(largest, float(level))
        if len(over) and over.max() > excess:
            excess, row = float(over.max()), start + int(over.argmax())
        start += len(over)
    return Brightness(expected, excess, row, _ROUNDING * (1.0 + largest) / temperature)


def _excess(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: Sequence[np.ndarray],
    temperature: float,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return expected bright rows at each point, the largest level, every row's largest excess."""
    [rows] = batches
    d, worst = np.empty(rows.shape[1]), np.zeros(rows.shape[1])
    expansion.anchor(center, rows)
    level, bright = np.abs(rows[expansion.level]), []
    for phi in points:
        expansion.residual(phi, rows, center, ALONE, 1.0, 0.0, d, np.empty(0))
        bright.append(-np.expm1(-np.maximum(d, 0.0) / temperature).sum())
        sizes = np.where(np.isfinite(d), np.abs(d), 0.0)
        over = -d / (_ROUNDING * (1.0 + level + sizes.max(initial=0.0)))
        worst = np.maximum(worst, np.where(np.isnan(over), np.inf, over))
    return np.array(bright), level.max(initial=0.0), worst


def check_lights(
    record: LightRecord, found: Brightness, *, temperature: float, n_rows: int, saving: str
) -> list[Finding]:
    """Check one chain; `saving` says what makes it read fewer rows, as a sentence."""
    draws = max(record.done, 1)
    share, bright = record.share / draws, record.bright / draws
    excess = float(max(found.excess, -record.lowest / found.tolerance, 0.0))
    replaced = record.darkened / draws / bright if bright >= 1.0 else 1.0
    where = f", row {found.row} for one" if found.excess > LOWER.bound else ""
    return [
        LOWER.check(
            excess,
            "The draws are not from the posterior: what was taken for a lower bound on the rows' "
            f"log-likelihoods exceeds some of them{where}. {LOWER.remedy}",
        ),
        READ.check(
            share,
            f"A draw reads {share:.0%} of the rows on average, with {bright:,.0f} of {n_rows:,} "
            f"bright: the method saves nothing here. {saving}",
        ),
        TURNOVER.check(
            replaced,
            f"Only {replaced:.1%} of the bright rows are replaced per draw ("
            f"{TURNOVER.should('.0%')}): parameters can move no faster than "
            f"they. {TURNOVER.remedy}",
        ),
        check_accepted(record),
        check_temperature(temperature),
    ]
