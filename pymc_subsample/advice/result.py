"""What `advise` hands back."""

from dataclasses import dataclass
from html import escape

import numpy as np


@dataclass(frozen=True, repr=False)
class Advice:
    """What `advise` found; numbers that were not measured are nan, seconds are of the processor.

    Attributes
    ----------
    recommendation : str
        "ScalableMH", "HMCECS", "MinibatchBarkerMH", "AusterityGibbs", or a sampler that reads all
        rows: "nutpie", "pm.NUTS", or "pm.sample" where PyMC's own choice of steps is meant.
    reason : str
        Why, in plain words.
    code : str
        The line to write, within `with model:`.
    exact : bool
        Whether draws of what is recommended are from the posterior itself.
    tried : str
        The step whose pilot was run, the better one if two were; empty if none was.
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
    pays_from : float
        Effective draws from which the step that was tried is the faster one; 0 if always, inf if
        never.

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
    pays_from: float = np.nan

    def _numbers(self) -> list[tuple[str, str]]:
        tried, against = self.tried or "step", self.against or "all rows"
        unit = "draw" if tried == "ScalableMH" else "estimate"
        wanted = f"{self.effective_draws:,} effective draws"
        found = [
            ("rows", self.rows or np.nan),
            ("parameters", self.parameters),
            (f"rows per {unit}", self.subsample_size),
            ("percent of the rows", 100 * self.data_share),
            ("predicted variance", self.loglik_variance),
            ("predicted perturbation", self.perturbation),
            ("effective draws per draw", self.ess_per_draw),
            (f"effective draws per second, {tried}", self.ess_per_second),
            (f"effective draws per second, {against} (projected)", self.full_ess_per_second),
            ("ratio", self.ratio),
            ("set-up, seconds", self.setup_seconds),
            (f"seconds to {wanted}, {tried}", self.seconds),
            (f"seconds to {wanted}, {against} (projected)", self.full_seconds),
            ("pays from effective draws", self.pays_from),
        ]
        return [(name, shown(value)) for name, value in found if not np.isnan(value)]

    def __repr__(self) -> str:
        numbers = self._numbers()
        width = max(len(name) for name, _ in numbers)
        lines = [f"  {name:<{width}}  {value}" for name, value in numbers]
        return "\n".join([f"{self.recommendation}: {self.code}", self.reason, *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
            for name, value in self._numbers()
        )
        return (
            f"<p><b>{escape(self.recommendation)}</b>: <code>{escape(self.code)}</code></p>"
            f"<p>{escape(self.reason)}</p><table>{rows}</table>"
        )


def shown(value: float) -> str:
    """Show a number to three digits."""
    if not np.isfinite(value):
        return "never" if value > 0 else "none"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
