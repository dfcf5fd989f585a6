"""Whether a chain of scalable Metropolis-Hastings can be trusted: the checks behind its warnings.

It samples the posterior itself. What is left to doubt is whether it moves: rows may reject what the
surrogate proposes, or hold a chain where the posterior is larger than its surrogate.
"""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.checks import MODES, TEMPERATURE, Finding, Rule, check_temperature
from pymc_subsample.diagnostics.record import ChainRecord, running
from pymc_subsample.diagnostics.tails import TAIL
from pymc_subsample.samplers.hmc_ecs.checks import (
    TARGET_ACCEPT,
    TUNE,
    check_dynamics,
    check_tuning,
    dynamics_rules,
)

DIVERGENCES, HIDDEN, ACCEPTANCE = dynamics_rules("ScalableMH")
_OTHERS = "Sample this model with pm.sample(), or with HMCECS if its checks pass."
DECIDED = Rule(
    "rows_accepted", "proposals accepted by the rows", 0.3, _OTHERS, severity="warn", at_least=True
)
STAY = Rule("stay", "longest stay / usual stay at this acceptance rate", 3.0, _OTHERS)
UNDERRATED = Rule(
    "underrated", "posterior mass understated twentyfold by the surrogate", 0.01, _OTHERS
)
READ = Rule("rows_read", "rows read per proposal / all rows", 0.5, _OTHERS, severity="warn")
RULES = (
    TUNE,
    DIVERGENCES,
    HIDDEN,
    ACCEPTANCE,
    DECIDED,
    STAY,
    UNDERRATED,
    READ,
    TEMPERATURE,
    TAIL,
    MODES,
)

# Of all chains whose acceptance does not depend on where they are, the share with a longer stay
# than what is called usual. A choice: one chain in a thousand.
_RARE = 1e-3


@dataclass
class ProposalRecord(ChainRecord):
    """What a chain did after tuning."""

    # Proposals that rows decided on, and those that they accepted.
    decisions: float = 0.0
    taken: float = 0.0
    rows: float = 0.0  # Rows read for them.
    # Decisions since the last proposal that was accepted, and the most that there were.
    stay: float = 0.0
    longest: float = 0.0

    def add_decisions(self, infos: dict[str, np.ndarray]) -> None:
        """Add what the transitions of some draws decided, each of shape (n,)."""
        decisions, taken = infos["decisions"], infos["decisions"] * infos["rows_accepted"]
        self.decisions = running(self.decisions, decisions)
        self.taken = running(self.taken, taken)
        self.rows = running(self.rows, infos["rows_drawn"] + infos["rows_passed"])
        # Several decisions of one draw, not all against, end a stay somewhere among them.
        for ends, made in zip((taken > 0.5).tolist(), decisions.tolist(), strict=True):
            self.stay = 0.0 if ends else self.stay + made
            self.longest = max(self.longest, self.stay)

    @property
    def accepted(self) -> float:
        """Share of the proposals accepted by the rows."""
        return self.taken / max(self.decisions, 1.0)

    @property
    def usual_stay(self) -> float:
        """Decisions that only one in a thousand chains of this acceptance stays for longer."""
        # whose logarithms are finite
        rejected = float(np.clip(1.0 - self.accepted, 1e-3, 1.0 - 1e-6))
        return 1.0 + np.log(_RARE / max(self.decisions, 1.0)) / np.log(rejected)


def check_proposals(
    record: ProposalRecord,
    *,
    active: np.ndarray,
    n_rows: int,
    underrated: float,
    temperature: float,
    tune: int,
    began: str = "",
    target: float = TARGET_ACCEPT,
) -> list[Finding]:
    """Check one chain, whose step size was tuned to the acceptance rate `target`.

    `underrated` is the share of points around the reference where the surrogate is far too small.
    """
    record.fold()
    share = record.rows / max(record.decisions, 1.0) / n_rows
    stay = record.longest / record.usual_stay
    findings = [
        *check_dynamics(record, active, (DIVERGENCES, HIDDEN, ACCEPTANCE), target),
        DECIDED.check(
            record.accepted,
            f"The rows accept only {record.accepted:.1%} of what the surrogate proposes ("
            f"{DECIDED.should('.0%')}): the posterior is far from the second-order "
            f"expansion of its log-likelihood. {DECIDED.remedy}",
        ),
        STAY.check(
            stay,
            f"The chain stayed where it was for {record.longest:,.0f} proposals, where "
            f"{record.usual_stay:.0f} are many at its acceptance of {record.accepted:.0%}: there "
            "the posterior is larger than its surrogate says, and the chain may not go there as "
            f"often as it should. {STAY.remedy}",
        ),
        UNDERRATED.check(
            underrated,
            f"The surrogate has lighter tails than the posterior: {underrated:.1%} of the mass "
            f"around the mode ({UNDERRATED.should('.0%')}) lies where the surrogate is more than "
            "twenty times too small. A chain rarely goes there, and tails may be missing. "
            f"{UNDERRATED.remedy}",
        ),
        READ.check(
            share,
            f"A proposal reads {share:.0%} of the rows on average: the method saves nothing here. "
            "The bounds on the rows' remainders are wide, or the chain is far from the reference, "
            "for example after a start far away, or because other steps move variables that these "
            f"rows depend on. {READ.remedy}",
        ),
    ]
    tuning = check_tuning(tune, all(x.passed for x in findings), began)
    return [tuning, *findings, check_temperature(temperature)]
