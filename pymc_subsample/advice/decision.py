"""When subsampling is recommended: its time against that of a sampler on all rows."""

from dataclasses import replace

import numpy as np

from pymc_subsample.advice.pilot import Pilot
from pymc_subsample.advice.result import EXACT, Advice, duration, shown
from pymc_subsample.all_rows import DRAWS, SAVED_SECONDS, nuts, pays

# A share of the rows that the reason mentions.
_LARGE_SHARE = 0.1
# Times as long that an exact step may take: effective draws of two pilots are good to about 30%
# each, and so their ratio to about 40%.
_ALIKE = 1.5


def compared(
    advice: Advice,
    pilot: Pilot,
    given: dict,
    setup: float,
    *,
    full_ess_per_second: float,
    full_fixed: float,
    instead: tuple[str, str],
    full_at_least: bool = False,
) -> Advice:
    """Fill in the numbers, and recommend the step or what is `instead`: its name and code."""
    setup += pilot.overhead_seconds
    fixed = setup + DRAWS * pilot.seconds_per_draw
    rate, wanted = pilot.ess_per_draw / pilot.seconds_per_draw, advice.effective_draws
    advice = replace(
        advice,
        subsample_size=pilot.subsample_size,
        data_share=pilot.data_share,
        ess_per_draw=pilot.ess_per_draw,
        ess_per_second=rate,
        full_ess_per_second=full_ess_per_second,
        ratio=rate / full_ess_per_second,
        setup_seconds=setup,
        seconds=fixed + wanted / rate,
        full_seconds=full_fixed + wanted / full_ess_per_second,
        full_at_least=full_at_least,
        pays_from=_pays_from(fixed, rate, full_fixed, full_ess_per_second),
        passed=not pilot.failed,
    )
    exact = advice.tried in EXACT
    about = "over" if full_at_least else "about"
    times = (
        f"{wanted:,} effective draws take about {duration(advice.seconds)} with {advice.tried}, "
        f"and {about} {duration(advice.full_seconds)} with {advice.against} on all rows"
    )
    if pilot.failed:
        reason = f"The pilot of {advice.tried} failed its own checks: {'; '.join(pilot.failed)}."
        if advice.data_share >= _LARGE_SHARE:
            reason += f" It read {advice.data_share:.0%} of the rows."
    elif pays(advice.seconds, advice.full_seconds):
        option = "control_variate_order=None" if advice.tried == "MinibatchBarkerMH" else ""
        return replace(
            advice,
            recommendation=advice.tried,
            exact=exact,
            reason=f"{times}. {advice.tried} is {kind(advice.tried)} and reads "
            f"{shown(advice.subsample_size)} rows ({shown(100 * advice.data_share)}%) "
            f"{'per draw' if exact else 'at a time'}; its pilot passed its checks.",
            code=code(advice.tried, given, option),
        )
    elif advice.full_seconds < 2 * SAVED_SECONDS:
        reason = f"All rows are fast enough{'' if exact else ', and exact'}: {times}."
    elif advice.data_share >= _LARGE_SHARE:
        reason = f"A subsample of {advice.data_share:.0%} of the rows saves too little: {times}."
    else:
        reason = f"Subsampling saves too little: {times}."
    name, line = instead
    return replace(advice, recommendation=name, reason=reason, code=line)


def preferred(found: list[Advice]) -> Advice:
    """Choose among steps that were tried, and say how the other one did, if there is one.

    The set-up of the first counts for both: the second finds compiled what they share.
    """
    setup = max(advice.setup_seconds for advice in found)

    def order(advice: Advice) -> tuple[bool, bool, float]:
        seconds = setup + advice.seconds - advice.setup_seconds
        factor = 1.0 if advice.tried in EXACT else _ALIKE
        return advice.recommendation != advice.tried, not advice.passed, factor * seconds

    best, *others = sorted(found, key=order)
    said = [best.reason]
    for other in others if len(others) == 1 else ():
        takes = f"takes about {duration(other.seconds)}."
        took = f"{other.tried}, which is {kind(other.tried)}, {takes}"
        said.append(took if other.passed else other.reason)
    return replace(best, reason=" ".join(said))


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


def code(step: str, given: dict, option: str = "") -> str:
    """Return the line that samples with a step, given some of its arguments."""
    options = [option] if option else []
    words = {key: "rows" if key == "data" else repr(value) for key, value in given.items()}
    options += [f"{key}={words[key]}" for key, value in given.items() if value is not None]
    return f"pm.sample(step=pms.{step}({', '.join(options)}))"
