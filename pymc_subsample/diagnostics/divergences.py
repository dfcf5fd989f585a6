r"""What divergences can do to a result.

A chain that diverges has entered a region R that its steps are too large for, and is thrown out of
it. It enters as often as one with small steps would, but that one would have stayed: about as long
as the chain remembers anything, which is N / ESS of its N draws. What is missing of the
posterior's mass is therefore about

.. math:: p = D / \mathrm{ESS}, \qquad \mathrm{ESS} \le N,

for D divergent draws: divergences per effective draw. Mass p that lies r standard deviations from
the mean of a parameter adds :math:`p\, r` standard deviations to the mean and :math:`p\, r^2` to
the variance, a share :math:`p\, r^2 / 2` of the standard deviation, if it is left out. r is the
root mean square distance of the draws before the divergences, in each parameter, and at least one.

This estimate fails where it is beyond what is tolerable (0.1 standard deviations, 5%). R lies
beyond the draws before it, how far is not known, and the share may be too small by two or three
where chains enter it slowly: with three times the distance, nine times the error, a warning says
that more may be hidden than is tolerable. A few divergences in a long run of a chain that mixes
pass; one in a hundred draws of a chain that mixes slowly, as at the neck of a funnel, do not.
"""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.checks import (
    SHIFT_BOUND,
    STRETCH_BOUND,
    Finding,
    Rule,
    amount,
    excess,
)
from pymc_subsample.diagnostics.record import ChainRecord, StepRecord

# What rules of these are called, by the kind of sampler.
RULE_NAMES = ("divergences", "diverged")
# Distance of divergences from the mean, in standard deviations, that is the least; and how many
# times as far what they hide may be, which covers chains that are kept out of a known region: a
# choice.
NEAREST = 1.0
_MARGIN = 3.0


def divergence_rules(name: str, remedy: str) -> tuple[Rule, Rule]:
    """Return what divergences must keep to, in what they do and in what they may hide."""
    wrong = Rule(name, "error from divergences / tolerable error", 1.0, remedy)
    title = "error that divergences may hide / tolerable error"
    unless = "Matters only if the error from divergences is tolerable; it is not."
    return wrong, Rule("hidden", title, 1.0, remedy, severity="warn", besides=unless)


@dataclass(frozen=True)
class Loss:
    """What is estimated to be missing because of divergences."""

    # Divergent draws, and all.
    divergences: int
    draws: int
    share: float  # Of the posterior's mass, at most 1.
    # Of that mass from the mean, in standard deviations of the parameter that is worst off.
    distance: float

    @property
    def shift(self) -> float:
        """Error of a mean, in standard deviations."""
        return self.share * self.distance if self.share else 0.0

    @property
    def stretch(self) -> float:
        """Relative error of a standard deviation."""
        return self.share * self.distance**2 / 2 if self.share else 0.0

    def excess(self, margin: float = 1.0) -> float:
        """Errors over what is tolerable, if the mass is so many times as far."""
        return excess(margin * self.shift, margin**2 * self.stretch)


def loss(
    divergences: int,
    draws: int,
    before: np.ndarray,
    thinned: np.ndarray,
    mean: np.ndarray,
    sd: np.ndarray,
) -> Loss:
    """Estimate what so many divergences hide, by the mean and sd of all draws, shape (a,).

    `before`, shape (k, a), are some of the draws before divergent ones, `thinned`, (m, a), evenly
    spread ones.
    """
    if not divergences:
        return Loss(0, draws, 0.0, NEAREST)
    moved = sd > 0
    if not moved.any() or not np.all(np.isfinite(sd)):
        return Loss(divergences, draws, 1.0, np.inf)
    share = min(divergences / effective_draws(thinned[:, moved], draws), 1.0)
    z = (before - mean)[:, moved] / sd[moved]
    distance = float(np.sqrt(np.max(np.mean(z**2, axis=0)))) if len(z) else NEAREST
    return Loss(divergences, draws, share, max(distance, NEAREST))


def effective_draws(thinned: np.ndarray, draws: int) -> float:
    """Effective draws of the slowest parameter, from 1 to all, by evenly spread ones, (m, a)."""
    found = np.asarray(array_stats.ess(thinned[None], chain_axis=0, draw_axis=1, method="mean"))
    if len(thinned) < 8 or not np.isfinite(found).any():  # a choice: fewer have no effective size
        return 1.0
    return float(np.clip(np.nanmin(found) * draws / len(thinned), 1.0, draws))


def check_divergences(
    wrong: Rule, hidden: Rule, record: ChainRecord | StepRecord, active: np.ndarray, advice: str
) -> list[Finding]:
    """Check what is estimated to be missing, and what may be."""
    thinned, before = (
        np.reshape(x, (-1, len(record.last)))[:, active] for x in (record.thinned, record.before)
    )
    mean, sd = record.mean[active], np.sqrt(record.variance[active])
    found = loss(record.divergences, record.done, before, thinned, mean, sd)
    errors, largest = found.excess(), found.excess(_MARGIN)
    said = (
        f"{found.divergences} of {found.draws} draws diverged, {amount(100 * found.share)}% of the "
        "effective draws: "
    )
    return [
        wrong.check(
            errors,
            f"{said}the region that they were thrown out of is missing, which makes posterior "
            f"means wrong by about {amount(found.shift)} standard deviations (should be at most "
            f"{SHIFT_BOUND:g}) and standard deviations by about {found.stretch:.0%} (at most "
            f"{STRETCH_BOUND:.0%}). {advice}",
        ),
        hidden.check(
            largest,
            f"{said}part of the posterior may be missing there. At worst that moves means or "
            f"standard deviations by {amount(largest)} times the tolerable error; the estimate is "
            f"{amount(errors)} times. {advice}",
            hidden.holds(largest) or not wrong.holds(errors),
        ),
    ]
