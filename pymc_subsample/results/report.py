"""One page on a run: what was checked, what failed, and what to change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from pymc_subsample.diagnostics.checks import FAILED, IMAGES, MODES, PREFIX, SEARCHES, Rule, recall
from pymc_subsample.diagnostics.divergences import NEAREST, RULE_NAMES, Loss
from pymc_subsample.diagnostics.findings import Finding, Report, tiered, worst_chain
from pymc_subsample.diagnostics.integrals import UNIT_RULES, counted, effects_in, worded
from pymc_subsample.diagnostics.mixing import mixing
from pymc_subsample.diagnostics.reading_draws import group, sampled_rows
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.samplers.hmc_ecs import checks as hmc
from pymc_subsample.samplers.registry import families as all_families
from pymc_subsample.samplers.registry import samplers_of

_SAID = "pms.report"

_SIGNS = hmc.SIGN.remedy
# A choice: a tenth of the draws is what is left of them.
SIGN = Rule("sign", "effective share of signed draws", 0.1, _SIGNS, at_least=True)
SIGN_DOUBT = Rule("sign", SIGN.title, 0.5, _SIGNS, severity="warn", at_least=True)


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
        that there are. R-hat and effective sample size are those of `summary`, and of standard
        deviations, of the worst element of the posterior; variables of more than 10,000 elements
        are left out. Effects that were integrated out and drawn given each draw of the others are
        judged apart: by the largest R-hat, and the effective sample size that 99% of them exceed,
        of 2,000 evenly spread ones.

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

    Examples
    --------
    >>> print(pms.report(idata))

    With what all rows say:

    >>> print(pms.report(idata, audit=pms.audit(idata, model=model)))
    """
    stats = group(idata, "sample_stats", _SAID)
    posterior = group(idata, "posterior", _SAID)
    if audit is not None and not isinstance(audit, Audit):
        raise TypeError(
            f"{_SAID}: audit must be what pms.audit returned, got {type(audit).__name__}."
        )
    more = [rule for rule in UNIT_RULES if PREFIX + rule.name in stats]
    of = counted([stats])
    families: dict[str, Sequence[Rule]] = {
        name: [_worded(rule, of) for rule in (*rules, *more)]
        for name, rules in all_families().items()
        if all(PREFIX + rule.name in stats for rule in rules)
    }
    if FAILED not in stats or not families:
        raise ValueError(
            f"{_SAID}: sample_stats holds no checks of this package's step methods ({FAILED!r} and "
            f"{PREFIX + '*'!r}), only {sorted(map(str, stats.data_vars))}. Pass what "
            "pm.sample(step=pms.auto()) or another step of this package returned."
        )
    findings = [found for found in _recorded(stats, families) if found.name != SIGN.name]
    signs = None
    if "sign" in stats and np.any(stats["sign"].values < 0):
        share = float(stats["sign"].values.mean()) ** 2  # of all chains together
        findings.append(tiered(SIGN, SIGN_DOUBT, share))
        signs = stats["sign"].values.astype(float)
    findings += mixing(posterior, signs, effects_in(stats))
    if audit is not None:
        findings += audit.of_subsampling
    cost = float(stats["n_evaluations"].sum()) if "n_evaluations" in stats else np.nan
    rows, size = float(sampled_rows(idata) or np.nan), stats.sizes
    method = samplers_of(stats) or " with ".join(families)
    return Report(method, size["chain"], size["draw"], rows, cost, tuple(findings), of)


def _worded(rule: Rule, of: str) -> Rule:
    return replace(rule, title=worded(rule.title, of), remedy=worded(rule.remedy, of))


def _recorded(stats: xr.Dataset, families: Mapping[str, Sequence[Rule]]) -> list[Finding]:
    """Judge the checks that each chain recorded at its end, or at those of runs put together."""
    verdicts = stats[FAILED].transpose("chain", "draw", ...).values
    ends = np.all(verdicts.reshape(*verdicts.shape[:2], -1) >= 0, axis=2)
    judged = ends[:, -1]
    findings = []
    alone = len(families) == 1
    if not judged.all():
        who = ", ".join(map(str, stats["chain"].values[~judged]))
        why = "interrupted, or its last draw was dropped, and with it the verdict on it"
        instead = "Run it to its end, keep its last draw, or give an audit"
        if (step := _thinned(stats["draw"].values)) > 1:
            why = f"thinned to 1 draw in {step}, without the last, which holds the verdict on it"
            instead = "Report on the run before it is thinned, or give an audit"
        findings.append(
            Finding(
                "not_judged", "chains without checks", "warn", float(np.sum(~judged)), 0.0, False,
                f"Chain {who}: {why}. Here it is judged by its draws as far as they tell, which "
                f"leaves out what is read from all rows. {instead}.",
            )
        )  # fmt: skip
    for name, rules in families.items():
        found: dict[str, list[tuple[Any, float, bool]]] = {}
        for chain, label in enumerate(stats["chain"].values):
            own = stats.isel(chain=chain)
            entries = [
                entry
                for k in np.flatnonzero(ends[chain])
                for entry in _at_end(rules, own.isel(draw=k), alone)
            ]
            if not judged[chain]:
                entries += _from_draws(rules, own)
            for rule, value, passed in entries:
                found.setdefault(rule.name, []).append((label, value, passed))
        title = "" if alone else f"{name.split(',')[0]}: "
        named = [_searched(rule, stats) if rule.name == MODES.name else rule for rule in rules]
        if SEARCHES in stats and not stats[SEARCHES].any():  # nothing was looked for
            found.pop(MODES.name, None)
        findings += [
            worst_chain(rule, found[rule.name], title) for rule in named if rule.name in found
        ]
    return findings


def _thinned(draws: np.ndarray) -> int:
    """Return which multiple of the draws, by their numbers, was kept; 1 if not evenly."""
    steps = np.unique(np.diff(draws))
    return int(steps[0]) if len(steps) == 1 and steps[0] == int(steps[0]) else 1


def _searched(rule: Rule, stats: xr.Dataset) -> Rule:
    """Say how far the set-up looked for other modes."""
    if SEARCHES not in stats:
        return rule
    every, mirrored = (int(stats[name].max()) for name in (SEARCHES, IMAGES))
    drawn = f"{every - mirrored} from random points, {mirrored} from symmetries"
    searches = f"{every} searches that ended" if every != 1 else "the one search, which ended"
    return replace(rule, title=f"{rule.title} by {searches} at one ({drawn})")


def _at_end(
    rules: Sequence[Rule], last: xr.Dataset, alone: bool
) -> Iterator[tuple[Rule, float, bool]]:
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


def _from_draws(rules: Sequence[Rule], chain: xr.Dataset) -> list[tuple[Rule, float, bool]]:
    """Judge a chain whose end is missing, as far as its draws tell: rules, numbers, verdicts."""
    found = []
    for rule in rules:
        divergences = rule.name in RULE_NAMES  # by their share of the draws: the least that they do
        values = chain.get("diverging" if divergences else rule.mean_of)
        if values is None or values.dims != ("draw",):
            continue
        value = float(values.mean())
        passed = rule.holds_of(values.values)
        if divergences:
            value = Loss(int(values.sum()), len(values), value, NEAREST).excess()
            passed = rule.holds(value)
        found.append((rule, value, passed))
    return found
