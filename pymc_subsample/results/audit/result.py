"""What an audit found, and how it is judged."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import t

from pymc_subsample.diagnostics.checks import SHIFT_BOUND, STRETCH_BOUND, Finding, Rule
from pymc_subsample.diagnostics.findings import as_html, lines, said, tiered, worst
from pymc_subsample.diagnostics.integrals import worded
from pymc_subsample.diagnostics.mixing import FALSE_ALARMS
from pymc_subsample.diagnostics.scores import BLOCKS
from pymc_subsample.diagnostics.stein_boundaries import MOST_LINES
from pymc_subsample.diagnostics.weights import MOST_K, good_k
from pymc_subsample.validation import LISTED

_UNWEIGHTED = (
    "The audit's corrections are not reliable. Increase subsample_size (up to the number of rows)."
)
_ABOVE = "As above: if the draws are of another model, the audit cannot judge the subsample."
_UNKNOWN = "The audit cannot tell how far it is off: its weights have no known error."
_NO_P_VALUE = "Too few effective draws for a p-value. Sample for longer."
# Share of the effective size from which on weights are harmless whatever the shape of their tail
# (by Cauchy and Schwarz they move a mean by sqrt(1 / 0.99 - 1) = 0.1 standard deviations at most),
# and from which on k-hat alone fails nothing. In 400 simulated audits each of 200 independent
# weights k-hat had a standard deviation of 0.13 to 0.2. It was above 0.7 in none whose logs were
# normal with a variance of up to 0.3, and in 3.8% where they had Student's t with 3 degrees of
# freedom and variance 0.02: three quarters of these had an effective size of 95% or more.
_EVEN, _NEARLY_EVEN = 0.99, 0.95
K_HAT = Rule(
    "k_hat", "audit: Pareto k-hat of the weights", MOST_K, _UNWEIGHTED,
    besides=f"Above {MOST_K:g}, but this matters only if the weights change something; their "
    f"effective size is {_EVEN:.0%} of the draws or more.",
)  # fmt: skip
# Up to that of `good_k`, the draws that were audited are enough for what is corrected.
_MORE_DRAWS = "Audit more draws: these weights are too uneven for so few."
_OFF = "Use the audit's corrected moments, and do what the failed checks above say."
_TOWARDS = (
    "Do what the failed checks above say, and audit again. If the posterior is normal, the audit's "
    "corrected moments are its own; if not, they show in which direction it lies."
)
BIAS = Rule("bias", "audit: bias of a mean in sds, net of Monte Carlo error", SHIFT_BOUND, _OFF)
SD_ERROR = Rule(
    "sd_error", "audit: relative error of an sd, net of Monte Carlo error", STRETCH_BOUND, _OFF
)
_BY_ROWS = (
    "The log-likelihood of some rows becomes minus infinity within a standard deviation of the "
    "draws (an outcome outside of its support), and the density is not zero there, so its "
    "gradients carry no information about means and standard deviations. Audit a run of "
    "pms.HMCECS, which is audited by weights, or compare with pm.sample(step=pm.DEMetropolisZ())."
)
_MANY_LINES = (
    "A constraint or a step of the prior is near the draws, and correcting their gradients for it "
    f"takes a search along more than {MOST_LINES:,} lines, two for each draw and parameter. Audit "
    "a run of pms.HMCECS, whose weights need no such search, or audit fewer draws."
)
# Why scores judge nothing beside an edge.
_UNJUDGED = {"rows": _BY_ROWS, "many": _MANY_LINES}
# What no audit can see, said of every one.
UNSEEN = (
    "An audit evaluates the density at the draws. It cannot see what no draw reached: other modes, "
    "or a tail farther out."
)
_CUT = (
    "A constraint or a step of the prior cuts the density off beside the draws; gradients count "
    "less the nearer they are to it."
)
UNREACHED = Rule(
    "unreached", "audit: share of an sd beyond the farthest draws", STRETCH_BOUND,
    "Along a line far beyond its draws the density is low but wide: the rows hardly distinguish "
    "large values there, and only the prior bounds them. Chains take long to get there. Give it a "
    "narrower prior or another scale (its reciprocal or logarithm), or read only inner quantiles.",
    severity="warn",
)  # fmt: skip
_UNLIKE = "The draws are not from the posterior: see bias and sd_error, and stricter settings."
P_VALUE = Rule("p_value", "audit: p-value of the draws", 0.001, _UNLIKE, at_least=True)
P_VALUE_DOUBT = Rule("p_value", P_VALUE.title, 0.01, _UNLIKE, severity="warn", at_least=True)
EDGES = Rule(
    "edges",
    "audit: whether means and sds are right, beside an edge",
    np.nan,
    _BY_ROWS,
    severity="warn",
)
OTHER = Rule(
    "other",
    "audit: whether draws are of this model",
    np.nan,
    "Pass the model and the data that were sampled.",
)
# Errors that say nothing of one number, and degrees of freedom of an error. A choice: three
# standard errors are exceeded once in 370 numbers.
_ERRORS, _FREEDOM = 3.0, BLOCKS - 1


@dataclass(frozen=True)
class Audit:
    r"""What an audit found.

    Its verdict, `status`, is the worst of two judgements, which `findings` lists one by one:
    whether the chains mixed, and whether the draws that there are have the posterior's moments.
    Weights judge subsampling alone: they are even, and correct nothing, where the chains have all
    stayed where they started.

    Attributes
    ----------
    table : xarray.Dataset
        Over the dimension ``parameter``, labelled as `arviz.summary` does. ``mean``, ``sd`` and
        ``mean_mcse`` are those of all draws, ``audited_mean`` and ``audited_sd`` of the draws that
        were audited; ``corrected_mean``, ``corrected_sd``, ``corrected_mean_mcse`` and
        ``corrected_sd_mcse`` estimate the posterior's own. ``bias`` is (mean - corrected mean) /
        corrected sd and ``sd_error`` is sd / corrected sd - 1, with the Monte Carlo errors
        ``bias_mcse`` and ``sd_error_mcse``. By scores, errors of corrected moments also hold what
        first order leaves out where the posterior is not normal.
    kind : {"weights", "score"}
        How it was done.
    mixing : tuple of Finding
        R-hat and effective sample size of all draws, of the worst element.
    k_hat : float
        Pareto shape of the weights. The corrections are reliable up to min(1 - 1 / log10 S, 0.7)
        with S = `n_draws`; from there to 0.7 more draws would be enough. NaN for "score".
    ess : float
        How many equally weighted draws would say as much as the weighted ones. NaN for "score".
    p_value : float
        Probability of draws at least as far from the posterior, had they been from it. NaN for
        "weights", and where the run has fewer than 50 effective draws, whose Monte Carlo error is
        not known well enough.
    n_draws : int
        Draws at which all rows were read.
    passes : int
        Passes over all rows, each of one log-likelihood and gradient.
    seconds : float
        Time taken.
    other : str
        Why the draws seem to be of another model or of other data than the audit was given, or of
        one without some rows: empty where nothing says so.
    edges : {"", "prior", "many", "rows"}
        What ends the density, or makes it jump, within a standard deviation of the draws: nothing;
        priors and potentials, and scores count by their distance from there; the same, and scores
        judge nothing, since there are too many parameters to look along; or rows, and scores judge
        nothing. "" for "weights", which need no gradients.
    unreached : tuple of float and str
        What the density holds beyond the farthest draws adds to a standard deviation in
        unconstrained space, as a share, and of which element: by lines through the most central
        draw, where that many effective draws should have been there ten times over. Exact of a
        single parameter.
    counted : {"rows", "units"}
        What the log-likelihood is a sum of: units where the run integrated local variables out.

    Examples
    --------
    >>> audit = pms.audit(idata, model=model)
    >>> audit.status in ("pass", "warn", "fail")
    True
    >>> audit.table  # errors of means and standard deviations, by parameter
    """

    table: xr.Dataset
    kind: str
    mixing: tuple[Finding, ...]
    k_hat: float
    ess: float
    p_value: float
    n_draws: int
    passes: int
    seconds: float
    other: str = ""
    edges: str = ""
    unreached: tuple[float, str] = (0.0, "")
    counted: str = "rows"

    @property
    def of_subsampling(self) -> tuple[Finding, ...]:
        """What the weights or scores come to."""
        return tuple(_judged(self))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that is judged: whether the chains mixed, then what subsampling did to the draws."""
        return (*self.mixing, *self.of_subsampling)

    @property
    def status(self) -> str:
        """The worst status of all findings: "pass", "warn" or "fail"."""
        return worst(self.findings)

    def _head(self) -> str:
        found = (
            f"importance weights: k-hat {self.k_hat:.2f}, effective size {self.ess:.0f}"
            if self.kind == "weights"
            else f"scores: p-value {self.p_value:.3g}"
            if np.isfinite(self.p_value)
            else "scores: no p-value, an edge is near"
            if self.edges in _UNJUDGED
            else "scores: no p-value, too few effective draws"
        )
        return (
            f"{self.status.upper()}: audit of {self.n_draws} draws by {found} "
            f"({self.passes} passes over the data, {self.seconds:.1f} s)"
        )

    def _shown(self) -> tuple[Any, str]:
        names = [
            "mean", "corrected_mean", "corrected_mean_mcse", "bias", "bias_mcse",
            "sd", "corrected_sd", "sd_error", "sd_error_mcse",
        ]  # fmt: skip
        frame = self.table[names].to_dataframe()[names]
        total = len(frame)
        if any(f.name == K_HAT.name and f.status == "fail" for f in self.of_subsampling):
            return frame[:LISTED], (
                f"k-hat is above {MOST_K}: the weights are too uneven, and the corrected moments "
                "are not reliable."
            )
        if total <= LISTED:
            return frame, ""
        largest = np.argsort(-np.abs(frame["bias"].to_numpy()), kind="stable")[:LISTED]
        note = f"The {LISTED} of {total} parameters with the largest bias; all are in `.table`."
        return frame.iloc[largest], note

    def __repr__(self) -> str:
        frame, note = self._shown()
        text = frame.to_string(float_format=lambda x: f"{x:.3g}", index_names=False)
        judged = lines(self.findings)
        notes = note, _CUT if self.edges == "prior" else "", UNSEEN
        return "\n".join(filter(None, [self._head(), *judged, self._unmixed(), text, *notes]))

    def _repr_html_(self) -> str:
        frame, note = self._shown()
        table = frame.to_html(float_format=lambda x: f"{x:.3g}", index_names=False)
        judged = as_html(self.findings)
        notes = note, _CUT if self.edges == "prior" else "", UNSEEN
        below = "".join(f"<p>{note}</p>" for note in notes if note)
        return f"<p>{self._head()}</p>{judged}<p>{self._unmixed()}</p>{table}{below}"

    def _unmixed(self) -> str:
        """Say what the table does not know where the chains have not mixed."""
        if worst(self.mixing) != "fail":
            return ""
        return (
            "The chains have not mixed: the corrected moments below describe the regions where "
            "the chains stayed, not the posterior."
        )


def beyond_error(size: np.ndarray, error: np.ndarray, bound: float) -> np.ndarray:
    """By how much numbers, shape (p,), are off at least: three of their errors are taken off.

    More are, where that would leave more than the bound in more than a share `FALSE_ALARMS` of
    audits in which means and standard deviations of all p are right.
    """
    chance = t.isf(FALSE_ALARMS / (4 * len(size)), _FREEDOM)
    with np.errstate(divide="ignore"):
        errors = np.maximum(_ERRORS, chance - bound / error)
    return np.maximum(size - errors * error, 0.0)


def _judged(audit: Audit) -> list[Finding]:
    """Judge table and weights or p-value."""
    findings = []
    if audit.kind == "weights":
        even = audit.ess / audit.n_draws
        bound = good_k(audit.n_draws)
        doubt = replace(K_HAT, bound=bound, remedy=_MORE_DRAWS, severity="warn")
        if even >= _EVEN and np.isfinite(audit.k_hat):
            findings.append(said(Finding(K_HAT, audit.k_hat, True)))
        elif even >= _NEARLY_EVEN and bound < audit.k_hat < 1:  # from there on there is no mean
            findings.append(doubt.check(audit.k_hat, ""))
        else:
            findings.append(tiered(K_HAT, doubt, audit.k_hat))
    unjudged = _UNJUDGED.get(audit.edges)
    if unjudged:
        findings.append(EDGES.check(np.nan, unjudged))
    scored = audit.kind == "score" and not unjudged
    numbers = () if unjudged else ((BIAS, "bias"), (SD_ERROR, "sd_error"))
    for rule, number in numbers:
        size, error = np.abs(audit.table[number].values), audit.table[f"{number}_mcse"].values
        if not np.all(np.isfinite(error)):
            findings.append(replace(rule, severity="warn").check(np.nan, _UNKNOWN))
            continue
        rule = rule if audit.kind == "weights" else replace(rule, remedy=_TOWARDS)
        sure = beyond_error(size, error, rule.bound)
        at = int(np.nanargmax(sure)) if np.any(sure > 0) else 0
        label = str(audit.table["parameter"].values[at])
        findings.append(tiered(rule, rule, float(sure[at]), label))
    stretch, element = audit.unreached
    findings.append(tiered(UNREACHED, UNREACHED, stretch, element))
    if scored:
        unknown = P_VALUE_DOUBT.check(np.nan, _NO_P_VALUE)
        known = not np.isnan(audit.p_value)
        findings.append(tiered(P_VALUE, P_VALUE_DOUBT, audit.p_value) if known else unknown)
    if audit.other:
        if not any(found.status == "fail" for found in findings):
            findings.insert(0, OTHER.check(np.nan, audit.other))
        off = [k for k, found in enumerate(findings) if found.status != "pass"]
        for k in off:
            advice = audit.other if k == off[0] else _ABOVE
            findings[k] = replace(findings[k], advice=advice)
    return [replace(found, advice=worded(found.advice, audit.counted)) for found in findings]
