"""Rules, what they find of numbers, and what to do if a number fails."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.expansion.modes import ModeSearch

# What is tolerable: errors of means, in standard deviations, and of standard deviations. A choice:
# the Monte Carlo error of a mean of 100 effective draws, which a report takes for few; that of a
# standard deviation is 7%. A mean that is off by twice as much leaves 94.5% in an interval of 95%.
SHIFT_BOUND, STRETCH_BOUND = 0.1, 0.05


def excess(shift: float, stretch: float) -> float:
    """Errors of means and standard deviations over what is tolerable."""
    return float(np.maximum(shift / SHIFT_BOUND, stretch / STRETCH_BOUND))


@dataclass(frozen=True)
class Rule:
    """What is looked at, and what it means not to pass."""

    # In results, and for reading.
    name: str
    title: str
    bound: float  # Where it fails.
    remedy: str  # What to do then in general, as a sentence.
    # {"fail", "warn"}: what a failure means: draws that may be wrong, or wasted work and other
    # doubts.
    severity: str = "fail"
    at_least: bool = False  # Whether the number should be at least its bound rather than at most.
    equal: bool = False  # Whether it should be the bound.
    # If a condition beside the bound decides too, a sentence for findings that are that one's.
    besides: str = "Decided by more than this number."
    mean_of: str = ""  # Statistic of which the number is the mean over draws, if it is one.
    # A level, and the share of the draws that may exceed it.
    seldom: tuple[float, float] = (np.inf, 1.0)

    def holds(self, value: float) -> bool:
        """Whether a number keeps to the bound."""
        if self.equal:
            return bool(value == self.bound)
        return bool(value >= self.bound if self.at_least else value <= self.bound)

    def holds_of(self, draws: np.ndarray) -> bool:
        """Whether draws' statistic, of which the number is the mean, keeps to what it should."""
        level, most = self.seldom
        return self.holds(float(draws.mean())) and bool(np.mean(~(draws <= level)) <= most)

    def should(self, form: str = "g", shown: str = "") -> str:
        """Say what a number should be, with its bound in some form, or as it is shown."""
        side = "" if self.equal else "at least " if self.at_least else "at most "
        return f"should be {side}{shown or format(self.bound, form)}"

    def check(self, value: float, advice: str, passed: bool | None = None) -> "Finding":
        """Apply the rule to one number; `passed` if not the number alone decides."""
        return Finding(self, value, self.holds(value) if passed is None else passed, advice)


@dataclass(frozen=True)
class Finding:
    """What a rule found: of one chain, or the worst of a run, one line of a report.

    Attributes
    ----------
    rule : Rule
        What was looked at.
    value : float
        The number, of the worst chain. NaN if there is none.
    passed : bool
        Whether the number keeps to its bound, or does no harm.
    advice : str
        What was found and what to change, as sentences: in a report, of chains that did not pass,
        and what decided if no bound did.
    """

    rule: Rule
    value: float
    passed: bool
    advice: str = ""

    @property
    def name(self) -> str:
        """Of the rule."""
        return self.rule.name

    @property
    def title(self) -> str:
        """The rule's, for reading."""
        return self.rule.title

    @property
    def status(self) -> str:
        """What it came to: "pass", "warn" or "fail"."""
        return "pass" if self.passed else self.rule.severity

    @property
    def at_least(self) -> bool:
        """Whether the number should be at least its bound rather than at most."""
        return self.rule.at_least

    @property
    def equal(self) -> bool:
        """Whether the number should be its bound."""
        return self.rule.equal

    @property
    def decided(self) -> bool:
        """Whether the bound decided, rather than another condition."""
        return bool(np.isnan(self.value)) or self.rule.holds(self.value) == self.passed

    @property
    def bound(self) -> float:
        """The rule's; NaN if another condition decided: `advice` says which."""
        return float(self.rule.bound) if self.decided else np.nan

    def row(self) -> tuple[str, str, str, str, str]:
        """Return status, title, number, bound with its sign, and advice, as text."""
        sign = "=" if self.equal else ">=" if self.at_least else "<="
        value, bound = self._shown()
        bound = "" if np.isnan(self.bound) else f"{sign} {bound}"
        return self.status.upper(), self.title, value, bound, self.advice

    @property
    def in_words(self) -> str:
        """Title, number and what it should be, or what decided if no bound did."""
        value, bound = self._shown()
        besides = self.rule.besides.rstrip(".")
        decided = (
            self.rule.should(shown=bound) if self.decided else besides[:1].lower() + besides[1:]
        )
        return f"{self.title} {value} ({decided})"

    def _shown(self) -> tuple[str, str]:
        """Show three digits, or as many as tell on which side of its bound the number is."""
        if not np.isfinite(self.value) or np.isnan(self.bound):
            return f"{self.value:.3g}", f"{self.bound:g}"
        for digits in range(3, 18):  # doubles have 17
            of_bound = max(digits, 6)
            value, bound = float(f"{self.value:.{digits}g}"), float(f"{self.bound:.{of_bound}g}")
            if np.sign(value - bound) == np.sign(self.value - self.bound):
                break
        return amount(value, digits), amount(bound, of_bound)


TEMPERATURE = Rule(
    "temperature", "temperature of the log-likelihood", 1.0, "Use temperature=1.", equal=True
)
MODES = Rule(
    "modes",
    "other modes found",
    0.0,
    "If the model is symmetric there, restrict it to one mode (a sign, an order); otherwise use "
    "another sampler.",
    severity="warn",
)

ACCEPTED = Rule(
    "accepted",
    # A choice: with fewer than one in a hundred a run of 1,000 has ten values.
    "accepted proposals",
    0.01,
    "Use smaller proposals, or increase tune.",
    severity="warn",
    at_least=True,
    mean_of="accepted",
)


def check_temperature(
    temperature: float,
    rule: Rule = TEMPERATURE,
    instead: str = "a distribution with the log-likelihood divided by that",
) -> Finding:
    """Say so where the draws are from a tempered posterior, colder or hotter."""
    said = f"temperature={temperature:g}: the draws are not from the posterior but from {instead}."
    return rule.check(temperature, said)


def check_accepted(record: MoveRecord) -> Finding:
    """Say so where next to nothing is accepted."""
    accepted = record.accepted / max(record.done, 1)
    return ACCEPTED.check(
        accepted,
        f"Only {accepted:.1%} of the proposals were accepted "
        f"({ACCEPTED.should('.0%')}). {ACCEPTED.remedy}",
    )


def check_modes(search: ModeSearch) -> Finding:
    """Say so where there are modes that a chain, which starts in one of them, may not see."""
    others = len(search.modes) - 1
    return MODES.check(
        others,
        f"The posterior has {number(others)} other mode{'s' * (others > 1)} that hold"
        f"{'s' * (others == 1)} {sum(search.shares[1:]):.2g} of the mass that was found, which the "
        f"chain may not see. {MODES.remedy}",
    )


def warning(method: str, findings: Sequence[Finding] | None) -> str | None:
    """Return what a user is told at the end of sampling, or None if all passed."""
    failed = [finding.advice for finding in findings or () if not finding.passed]
    return f"{method}: {' '.join(failed)}" if failed else None


def remedies(
    subsample_size: int,
    n_rows: int,
    raisable: bool,
    given_reference: bool,
    times: float = np.nan,
) -> list[str]:
    """Return what is left to change where the estimate is too noisy, best first.

    `times` as many rows would be enough, if that is known.
    """
    left = []
    if subsample_size < n_rows:
        wanted, enough = times * subsample_size, ""
        if wanted >= n_rows:
            enough = ", up to all rows"
        elif times > 1:
            # Chains are judged apart, each by its own draws.
            enough = f" to {min(_rounded_up(wanted), n_rows):,} or so for this chain (for the run: "
            enough += "the largest number that any of its chains names)"
        left = [f"increase subsample_size (now {subsample_size:,}){enough}"]
    left += ["use control_variate_order=2"] if raisable else []
    left += ["give a better reference"] if given_reference else []
    return left or ["sample this model with pm.sample()"]


def number(count: int) -> str:
    """Spell out a small number."""
    return ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")[count]


def amount(value: float, digits: int = 3) -> str:
    """Show a number to some digits, or say that it is none."""
    if not np.isfinite(value):
        return "not finite"
    rounded = float(f"{value:.{digits}g}")
    # Beyond, doubles have no digits that tell whole numbers apart.
    whole = 1e3 <= abs(rounded) < 2**53 and rounded.is_integer()
    return f"{rounded:,.0f}" if whole else f"{rounded:.{digits}g}"


def sentence(advice: Sequence[str]) -> str:
    """Join pieces of advice into one sentence."""
    *first, last = advice
    text = f"{', '.join(first)} or {last}." if first else f"{last}."
    return text[0].upper() + text[1:]


def _rounded_up(x: float) -> int:
    """Return a whole number of two digits and zeros that is no smaller."""
    unit = 10 ** max(int(np.log10(x)) - 1, 0)
    return int(np.ceil(x / unit)) * unit
