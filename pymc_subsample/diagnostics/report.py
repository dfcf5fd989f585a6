"""One page on a run: what was checked, what failed, and what to change."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from pymc_subsample.diagnostics import firefly, gibbs, hmc, metropolis, signed, stochastic
from pymc_subsample.diagnostics.audit import K_HAT_BOUND, Audit
from pymc_subsample.diagnostics.checks import (
    FAILED,
    IMAGES,
    MODES,
    PREFIX,
    SEARCHES,
    Rule,
    recall,
)
from pymc_subsample.diagnostics.findings import Finding, Report, tiered, worst_chain
from pymc_subsample.diagnostics.partial import from_draws
from pymc_subsample.diagnostics.thinned import columns, group

_SAID = "pms.report"

# Which rules each family of step methods records.
FAMILIES: dict[str, Sequence[Rule]] = {
    "HMCECS": hmc.RULES,
    "MinibatchBarkerMH, AusterityMH or ConfidenceMH": metropolis.RULES,
    "AusterityGibbs": gibbs.RULES,
    "FireflyMC": firefly.RULES,
    "A stochastic-gradient sampler": stochastic.RULES,
}

_LONGER = "Sample and tune for longer; if that doesn't help, reparametrise the model."
R_HAT = Rule("r_hat", "largest R-hat", 1.05, _LONGER)
R_HAT_DOUBT = Rule("r_hat", "largest R-hat", 1.01, _LONGER, severity="warn")
ESS = Rule("ess", "smallest effective sample size (bulk, tail)", 100, _LONGER, at_least=True)
ESS_DOUBT = Rule("ess", ESS.title, 400, _LONGER, severity="warn", at_least=True)
_SIGNS = "Increase subsample_size."
SIGN = Rule("sign", "effective share of signed draws", 0.1, _SIGNS, at_least=True)
SIGN_DOUBT = Rule("sign", SIGN.title, 0.5, _SIGNS, severity="warn", at_least=True)
_UNWEIGHTED = (
    "The audit's corrections are not reliable. Increase subsample_size; if the variance of the "
    "estimate is small, check that the audit was given the model that was sampled."
)
_UNKNOWN = "The audit cannot tell how far it is off: its weights have no known error."
_NO_P_VALUE = "Too few effective draws for a p-value. Sample for longer."
K_HAT = Rule("k_hat", "audit: Pareto k-hat of the weights", K_HAT_BOUND, _UNWEIGHTED)
# Weights this even are harmless whatever the shape of their tail: the share of the effective size.
_EVEN = 0.99
K_HAT_DOUBT = Rule("k_hat", K_HAT.title, 0.5, "Audit more draws.", severity="warn")
_OFF = "Use the audit's corrected moments, and do what the failed checks above say."
BIAS = Rule("bias", "audit: bias of a mean, in sds, beyond 3 errors", hmc.SHIFT_BOUND, _OFF)
SD_ERROR = Rule(
    "sd_error", "audit: relative error of an sd, beyond 3 errors", hmc.STRETCH_BOUND, _OFF
)
_UNLIKE = "The draws are not from the posterior: see bias and sd_error, and stricter settings."
P_VALUE = Rule("p_value", "audit: p-value of the draws", 0.001, _UNLIKE, at_least=True)
P_VALUE_DOUBT = Rule("p_value", P_VALUE.title, 0.01, _UNLIKE, severity="warn", at_least=True)
# Beyond errors that say nothing.
_ERRORS = 3.0
# Variables with more elements are left out of R-hat and effective sample size.
_MOST_ELEMENTS = 10_000


def report(idata: xr.DataTree, *, audit: Audit | None = None) -> Report:
    """Report on one page whether a run can be trusted, and what to change.

    Parameters
    ----------
    idata : xarray.DataTree
        What `pm.sample` returned for a step of this package, fresh or read from a file.
    audit : Audit, optional
        What `audit` found of the same run: its findings are judged too.

    Returns
    -------
    Report
        Text by `str`, a table in a notebook, `to_dict()`, and `status`: "pass", "warn" or "fail".
        The checks that each chain recorded at its end are given by their worst chain. Of a chain
        that has lost its end, noise, refreshes, divergences and acceptance are judged by the draws
        that there are. R-hat and effective sample size are those of `summary`, of the worst element
        of the posterior; variables of more than 10,000 elements are left out.

    Raises
    ------
    TypeError
        If `idata` is no DataTree, or `audit` no `Audit`.
    ValueError
        If no step method of this package made the run.

    Notes
    -----
    Where several step methods made the run, PyMC does not say which of them recorded which
    verdict: numbers are then compared with their bounds anew, which is stricter where a step found
    that going beyond one did no harm.
    """
    stats = group(idata, "sample_stats", _SAID)
    posterior = group(idata, "posterior", _SAID)
    if audit is not None and not isinstance(audit, Audit):
        raise TypeError(
            f"{_SAID}: audit must be what pms.audit returned, got {type(audit).__name__}."
        )
    families = {
        name: rules
        for name, rules in FAMILIES.items()
        if all(PREFIX + rule.name in stats for rule in rules)
    }
    if FAILED not in stats or not families:
        raise ValueError(
            f"{_SAID}: sample_stats holds no checks of this package's step methods ({FAILED!r} and "
            f"{PREFIX + '*'!r}), only {sorted(map(str, stats.data_vars))}. Pass what "
            "pm.sample(step=pms.HMCECS()) or another of them returned."
        )
    findings = [found for found in _recorded(stats, families) if found.name != SIGN.name]
    signs = None
    if "sign" in stats and np.any(stats["sign"].values < 0):
        share = float(stats["sign"].values.mean()) ** 2  # of all chains together
        findings.append(tiered(SIGN, SIGN_DOUBT, share))
        signs = stats["sign"].values.astype(float)
    findings += _convergence(posterior, signs)
    if audit is not None:
        findings += _audited(audit)
    cost = float(stats["n_evaluations"].sum()) if "n_evaluations" in stats else np.nan
    return Report(
        " with ".join(families), stats.sizes["chain"], stats.sizes["draw"], cost, tuple(findings)
    )


def _recorded(stats: xr.Dataset, families: dict[str, Sequence[Rule]]) -> list[Finding]:
    """Judge the checks that each chain's last draw recorded."""
    last = stats.isel(draw=-1)
    verdicts = last[FAILED].values.reshape(stats.sizes["chain"], -1)
    judged = np.all(verdicts >= 0, axis=1)
    findings = []
    alone = len(families) == 1
    if not judged.all():
        who = ", ".join(map(str, stats["chain"].values[~judged]))
        findings.append(
            Finding(
                "not_judged", "chains without checks", "warn", float(np.sum(~judged)), 0.0, False,
                f"Chain {who}: interrupted, or its last draw was dropped, and with it the verdict "
                "on it. Here it is judged by its draws as far as they tell, which leaves out what "
                "is read from all rows. Run it to its end, keep its last draw, or give an audit.",
            )
        )  # fmt: skip
    for name, rules in families.items():
        found: dict[str, list[tuple[Any, float, bool]]] = {}
        for chain, label in enumerate(stats["chain"].values):
            entries = (
                _of_chain(rules, last.isel(chain=chain), alone)
                if judged[chain]
                else from_draws(rules, stats.isel(chain=chain))
            )
            for rule, value, passed in entries:
                found.setdefault(rule.name, []).append((label, value, passed))
        title = "" if alone else f"{name.split(',')[0]}: "
        named = [_searched(rule, stats) if rule is MODES else rule for rule in rules]
        findings += [
            worst_chain(rule, found[rule.name], title) for rule in named if rule.name in found
        ]
    return findings


def _searched(rule: Rule, stats: xr.Dataset) -> Rule:
    """Say how far the set-up looked for other modes."""
    if SEARCHES not in stats:
        return rule
    every, mirrored = (int(stats[name].max()) for name in (SEARCHES, IMAGES))
    drawn = f"{every - mirrored} from random points, {mirrored} from symmetries"
    return replace(rule, title=f"{rule.title} by {every} searches ({drawn})")


def _of_chain(rules: Sequence[Rule], last: xr.Dataset, alone: bool):
    """Yield rule, number and verdict; a run of several steps has several of each."""
    names = [FAILED, *(PREFIX + rule.name for rule in rules)]
    numbers = {name: np.ravel(last[name].values) for name in names}
    if alone:
        for k in range(len(numbers[FAILED])):
            yield from recall(rules, {name: x[k] for name, x in numbers.items()}) or ()
        return
    for rule in rules:
        for value in numbers[PREFIX + rule.name]:
            if not np.isnan(value):
                yield rule, float(value), rule.holds(value)


def _convergence(posterior: xr.Dataset, signs: np.ndarray | None) -> list[Finding]:
    """R-hat and effective sample size of the worst element; signs have shape (chain, draw)."""
    sizes = posterior.sizes["chain"] * posterior.sizes["draw"]
    names = [str(n) for n, x in posterior.items() if 0 < x.size <= _MOST_ELEMENTS * sizes]
    if not names:
        return []
    values, labels = columns(posterior, names)
    axes = {"chain_axis": 0, "draw_axis": 1}
    moved = values.std(axis=(0, 1)) > 0
    if signs is None or signs.ndim > 2 or not signs.sum() > 0:
        r_hat = np.asarray(array_stats.rhat(values, **axes))
        bulk = array_stats.ess(values, method="bulk", **axes)
        ess = np.fmin(bulk, array_stats.ess(values, method="tail", prob=(0.05, 0.95), **axes))
    else:
        each = [values[..., k] for k in range(values.shape[-1])]
        r_hat = np.array([signed.r_hat(x, signs) for x in each])
        ess = np.array(
            [np.fmin(signed.ess_bulk(x, signs), signed.ess_tail(x, signs, 0.05)) for x in each]
        )
    findings = []
    holes = np.flatnonzero(np.isnan(values).any(axis=(0, 1)))
    if len(holes):
        advice = (
            f"{labels[holes[0]]}{' and others' if len(holes) > 1 else ''}. Such draws have no "
            "mean, quantile or R-hat: leave the variable out, or compute it from finite numbers."
        )
        findings.append(
            Finding("nan", "elements with draws that are NaN", "warn", len(holes), 0, False, advice)
        )
    for fail, doubt, numbers, worst in (
        (R_HAT, R_HAT_DOUBT, r_hat, np.nanargmax), (ESS, ESS_DOUBT, ess, np.nanargmin),
    ):  # fmt: skip
        known = np.where(moved, numbers, np.nan)
        if np.all(np.isnan(known)):
            advice = "ArviZ gives none: sample at least 2 chains of at least 4 draws that move."
            still = not moved.any() and posterior.sizes["draw"] > 1
            status = "fail" if still else "warn"
            findings.append(
                Finding(
                    fail.name, fail.title, status, np.nan, float(doubt.bound), fail.at_least, advice
                )
            )
            continue
        at = int(worst(known))
        findings.append(tiered(fail, doubt, float(known[at]), f"{labels[at]}. "))
    return findings


def _audited(audit: Audit) -> list[Finding]:
    findings = []
    if audit.kind == "weights":
        even = audit.ess >= _EVEN * audit.n_draws
        findings.append(
            Finding(K_HAT.name, K_HAT.title, "pass", audit.k_hat, K_HAT.bound, False, "")
            if even and np.isfinite(audit.k_hat)
            else tiered(K_HAT, K_HAT_DOUBT, audit.k_hat)
        )
    for rule, number in ((BIAS, "bias"), (SD_ERROR, "sd_error")):
        size, error = np.abs(audit.table[number].values), audit.table[f"{number}_mcse"].values
        if not np.all(np.isfinite(error)):
            bound = float(rule.bound)
            findings.append(Finding(rule.name, rule.title, "warn", np.nan, bound, False, _UNKNOWN))
            continue
        sure = np.maximum(size - _ERRORS * error, 0.0)
        at = int(np.nanargmax(sure)) if np.any(sure > 0) else 0
        label = str(audit.table["parameter"].values[at])
        findings.append(tiered(rule, rule, float(sure[at]), f"{label}. "))
    if audit.kind == "score":
        unknown = Finding(
            P_VALUE.name, P_VALUE.title, "warn", np.nan, float(P_VALUE_DOUBT.bound), True,
            _NO_P_VALUE,
        )  # fmt: skip
        known = not np.isnan(audit.p_value)
        findings.append(tiered(P_VALUE, P_VALUE_DOUBT, audit.p_value) if known else unknown)
    return findings
