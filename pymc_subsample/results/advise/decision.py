"""When subsampling is recommended: its time against that of a sampler on all rows."""

from collections.abc import Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np

from pymc_subsample.chain.nuts_cost import DRAWS
from pymc_subsample.chain.nuts_instead import SAVED_SECONDS, nuts, pays
from pymc_subsample.choice.auto import ALIKE
from pymc_subsample.results.advise.pilot import Pilot
from pymc_subsample.results.advise.result import EXACT, Advice, duration, percent, read
from pymc_subsample.rows import Rows

# A share of the rows that the reason mentions. A choice: below it nobody asks why it is so many.
_LARGE_SHARE = 0.1
# Seconds more that an exact step may take, where that is more than `ALIKE` allows. A choice.
_SOONER = 1.0


class AllRows(NamedTuple):
    """A sampler that reads all rows."""

    against: str  # Its name.
    instead: tuple[str, str]  # What is recommended if it is the better one: name and code.
    # Effective draws per second, and seconds before the first.
    ess_per_second: float
    fixed: float
    bound: str = ""  # Why these are bounds, if they are: it takes as long or longer.

    def seconds(self, draws: int) -> float:
        """Seconds to some effective draws."""
        return self.fixed + draws / self.ess_per_second


def compared(advice: Advice, pilot: Pilot, given: dict, setup: float, full: AllRows) -> Advice:
    """Fill in the numbers, and recommend the step or what is instead of it."""
    setup += pilot.overhead_seconds
    fixed = setup + DRAWS * pilot.seconds_per_draw
    rate, wanted = pilot.ess_per_draw / pilot.seconds_per_draw, advice.effective_draws
    advice = replace(
        advice,
        against=full.against,
        subsample_size=pilot.subsample_size,
        data_share=pilot.data_share,
        ess_per_draw=pilot.ess_per_draw,
        ess_per_second=rate,
        full_ess_per_second=full.ess_per_second,
        ratio=rate / full.ess_per_second,
        setup_seconds=setup,
        seconds=fixed + wanted / rate,
        full_seconds=full.seconds(wanted),
        full_bound=full.bound,
        pays_from=_pays_from(fixed, rate, full.fixed, full.ess_per_second),
        passed=not pilot.failed,
    )
    exact = advice.tried in EXACT
    times = (
        f"{wanted:,} effective draws take about {duration(advice.seconds)} with {advice.tried}, "
        f"and {'over' if full.bound else 'about'} {duration(advice.full_seconds)} with "
        f"{full.against} on all {advice.of}"
    )
    bounded = f" That is a lower bound: {full.bound}." if full.bound else ""
    if pilot.failed:
        reason = f"The pilot of {advice.tried} failed its own checks: {'; '.join(pilot.failed)}."
        if advice.data_share >= _LARGE_SHARE:
            reason += f" It read {percent(advice.data_share)} of the {advice.of}."
    elif pays(advice.seconds, advice.full_seconds, full.bound):
        rows = read(advice.tried, advice.subsample_size, advice.of)
        reads = f" and reads {rows} ({percent(advice.data_share)} of all)" if rows else ""
        return replace(
            advice,
            recommendation=advice.tried,
            exact=exact,
            reason=f"{times}.{bounded} {advice.tried} is {kind(advice.tried)}{reads}; its pilot "
            "passed its checks.",
            code=code(advice.tried, given),
        )
    elif full.bound:
        reason = f"{advice.tried} may not save enough: {times}.{bounded}"
    elif advice.full_seconds < 2 * SAVED_SECONDS:
        reason = f"All {advice.of} are fast enough{'' if exact else ', and exact'}: {times}."
    elif advice.data_share >= _LARGE_SHARE:
        share = f"{percent(advice.data_share)} of the {advice.of}"
        reason = f"A subsample of {share} saves too little: {times}."
    else:
        reason = f"Subsampling saves too little: {times}."
    name, line = full.instead
    return replace(advice, recommendation=name, reason=reason, code=line)


def preferred(found: list[Advice]) -> Advice:
    """Choose among steps that were tried, and say how the other one did, if there is one."""

    def order(advice: Advice) -> tuple[bool, bool, float]:
        seconds = advice.seconds if advice.tried in EXACT else exact_may_take(advice.seconds)
        return advice.recommendation != advice.tried, not advice.passed, seconds

    best, *others = sorted(found, key=order)
    said = [best.reason]
    for other in others if len(others) == 1 else ():
        takes = f"takes about {duration(other.seconds)}."
        took = f"{other.tried}, which is {kind(other.tried)}, {takes}"
        said.append(took if other.passed else other.reason)
    return replace(best, reason=" ".join(said))


def exact_may_take(seconds: float) -> float:
    """Seconds within which exact draws are preferred to perturbed ones that take some seconds."""
    return max(ALIKE * seconds, seconds + _SOONER)


def _pays_from(fixed: float, rate: float, full_fixed: float, full_rate: float) -> float:
    """Effective draws from which fixed + N / rate is less than the same on all rows."""
    if rate > full_rate:
        return max((fixed - full_fixed) / (1 / full_rate - 1 / rate), 0.0)
    return np.inf


def kind(name: str) -> str:
    """Say what draws of a sampler are."""
    return "exact" if name in EXACT else "perturbed"


def on_all_rows(empty: Advice, reason: str, instead: tuple[str, str] | None = None) -> Advice:
    """Recommend NUTS on all rows, or what is `instead`, for a reason."""
    name, line = instead or nuts()
    return replace(empty, recommendation=name, reason=reason, code=line)


def code(step: str, given: dict) -> str:
    """Return the line that samples with a step, given some of its arguments."""
    words = {k: _opened(v) if k == "data" else repr(v) for k, v in given.items()}
    options = [f"{name}={word}" for name, word in words.items()]
    return f"pm.sample(step=pms.{step}({', '.join(options)}))"


def _opened(rows: Rows | Sequence[Rows]) -> str:
    """Return the code that opens rows on disk, whatever they are called where they are used."""
    if not isinstance(rows, Rows):
        return f"[{', '.join(map(_opened, rows))}]"
    chosen: dict[str, Any] = dict(rows.selection or {})
    words = all(name.isidentifier() and not iskeyword(name) for name in chosen)
    named = ", ".join(f"{k}={v!r}" for k, v in chosen.items()) if words else f"**{chosen!r}"
    return f"pms.Rows({str(rows.path)!r}){f'.select({named})' if chosen else ''}"
