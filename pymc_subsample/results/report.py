"""One page on a run: what was checked, what failed, and what to change."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from pymc_subsample.chain.sampler import STATISTIC
from pymc_subsample.diagnostics.chain_ends import GROUP, ChainEnd, in_result
from pymc_subsample.diagnostics.checks import MODES, Finding, Rule
from pymc_subsample.diagnostics.divergences import NEAREST, RULE_NAMES, Loss
from pymc_subsample.diagnostics.findings import Report, tiered, worst_chain
from pymc_subsample.diagnostics.integrals import UNIT_RULES, counted, effects_in, worded
from pymc_subsample.diagnostics.mixing import mixing
from pymc_subsample.diagnostics.reading_draws import group, sampled_rows
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.samplers.hmc_ecs import checks as hmc
from pymc_subsample.samplers.registry import SAMPLERS, samplers_of
from pymc_subsample.samplers.registry import families as all_families

_SAID = "pms.report"

_SIGNS = hmc.SIGN.remedy
# A choice: a tenth of the draws is what is left of them.
SIGN = Rule("sign", "effective share of signed draws", 0.1, _SIGNS, at_least=True)
SIGN_DOUBT = Rule("sign", SIGN.title, 0.5, _SIGNS, severity="warn", at_least=True)
NOT_JUDGED = Rule(
    "not_judged",
    "chains without checks",
    0.0,
    f"Run the chain to its end, join the group {GROUP!r} too, or pass an audit.",
    severity="warn",
)


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
        The checks that were made at the end of each chain, which are the group ``checks`` of
        `idata`, are given by their worst chain. Of a chain that was interrupted, noise, refreshes,
        divergences and acceptance are judged by the draws that there are. R-hat and effective
        sample size are those of `summary`, and of standard deviations, of the worst element of the
        posterior; variables of more than 10,000 elements are left out. Effects that were integrated
        out and drawn given each draw of the others are judged apart: by the largest R-hat, and the
        effective sample size that 99% of them exceed, of 2,000 evenly spread ones.

    Raises
    ------
    TypeError
        If `idata` is no DataTree, or `audit` no `Audit`.
    ValueError
        If no step method of this package made the run.

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
    ends, of, made_by = in_result(idata), counted([stats]), samplers_of(stats)
    kinds = {SAMPLERS[name].family for name in made_by}
    for end in chain(*ends.values()):
        made_by, kinds = list(dict.fromkeys([*made_by, end.sampler])), kinds | {end.family}
    families: dict[str, Sequence[Rule]] = {
        name: [
            replace(rule, title=worded(rule.title, of), remedy=worded(rule.remedy, of))
            for rule in (*rules, *UNIT_RULES)
        ]
        for name, rules in all_families().items()
        if name in kinds
    }
    if not kinds or kinds - families.keys():
        others = f" of {' and '.join(made_by)}" if made_by else ""
        raise ValueError(
            f"{_SAID}: idata holds no checks of this package's step methods, only the groups "
            f"{list(idata.children)}{others}. Pass what pm.sample(step=pms.auto()) or another step "
            "of this package returned."
        )
    findings = [found for found in _recorded(stats, ends, families) if found.name != SIGN.name]
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
    method = " with ".join(made_by)
    return Report(method, size["chain"], size["draw"], rows, cost, tuple(findings), of)


def _recorded(
    stats: xr.Dataset,
    ends: Mapping[Any, Sequence[ChainEnd]],
    families: Mapping[str, Sequence[Rule]],
) -> list[Finding]:
    """Judge the checks that each chain recorded at its end, or at those of runs put together."""
    steps = int(np.prod(stats[STATISTIC].shape[2:])) if STATISTIC in stats else 1
    wanted = stats.sizes["draw"] * steps
    lost = [
        label
        for label in stats["chain"].values
        if sum(end.draws for end in ends.get(label, ())) < wanted
    ]
    findings = []
    if lost:
        findings.append(
            NOT_JUDGED.check(
                float(len(lost)),
                f"Chain {', '.join(map(str, lost))}: interrupted, or joined from runs without "
                f"their group {GROUP!r}, so no check covers all draws. These draws are judged "
                f"here without the checks that read all rows. {NOT_JUDGED.remedy}",
            )
        )
    for name, rules in families.items():
        before = "" if len(families) == 1 else f"{name.split(',')[0]}: "
        searched = [_searched(rule, [*chain(*ends.values())]) for rule in rules]
        named = {rule.name: replace(rule, title=before + rule.title) for rule in searched}
        found: dict[str, list[tuple[Any, Finding]]] = {name: [] for name in named}
        for at, label in enumerate(stats["chain"].values):
            for end in ends.get(label, ()):
                for x in named.keys() & end.values.keys() if end.family == name else ():
                    one = Finding(named[x], end.values[x], x not in end.failed)
                    found[x].append((label, one))
            if label in lost:
                for one in _from_draws(rules, stats.isel(chain=at)):
                    found[one.name].append((label, one))
        findings += [worst_chain(named[x], chains) for x, chains in found.items() if chains]
    return findings


def _searched(rule: Rule, ends: Sequence[ChainEnd]) -> Rule:
    """Say of other modes how far the set-up looked for them."""
    every = max((end.searches for end in ends), default=0)
    if rule.name != MODES.name or not every:
        return rule
    mirrored = max(end.images for end in ends)
    searches = f"{every} {'search' if every == 1 else 'searches'}, {mirrored} from symmetries"
    return replace(rule, title=f"{rule.title} ({searches})")


def _from_draws(rules: Sequence[Rule], draws: xr.Dataset) -> list[Finding]:
    """Judge a chain whose end is missing, as far as its draws tell."""
    found = []
    for rule in rules:
        divergences = rule.name in RULE_NAMES  # by their share of the draws: the least that they do
        values = draws.get("diverging" if divergences else rule.mean_of)
        if values is None or values.dims != ("draw",):
            continue
        value = float(values.mean())
        passed = rule.holds_of(values.values)
        if divergences:
            value = Loss(int(values.sum()), len(values), value, NEAREST).excess()
            passed = rule.holds(value)
        found.append(Finding(rule, value, passed))
    return found
