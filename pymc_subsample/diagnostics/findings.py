"""What a report says: findings about a run, and how they are shown."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_subsample.diagnostics.checks import Finding, Rule, amount

_ORDER = {"pass": 0, "warn": 1, "fail": 2}
_JUDGED = (
    "The report judges the computation: are the draws from the posterior? Whether the model "
    "describes the data is for predictive checks and pms.loo."
)
COLOURS = {"pass": "#2e7d32", "warn": "#b26a00", "fail": "#b71c1c"}


@dataclass(frozen=True)
class Report:
    """Everything that was checked of a run.

    Attributes
    ----------
    status : {"pass", "warn", "fail"}
        The worst of all findings.
    method : str
        Which step methods recorded the run.
    chains, draws : int
        Of the run.
    rows : float
        Of the data; NaN if not recorded.
    evaluations : float
        Row evaluations of all draws; NaN if not recorded.
    findings : tuple of Finding
        Causes before their effects.
    of : {"rows", "units"}
        What rows are: units, all rows of a level, where local variables were integrated out.

    Examples
    --------
    >>> report = pms.report(idata)
    >>> report.status in ("pass", "warn", "fail")
    True
    >>> failed = [x.name for x in report.findings if x.status == "fail"]
    """

    method: str
    chains: int
    draws: int
    rows: float
    evaluations: float
    findings: tuple[Finding, ...]
    of: str = "rows"

    @property
    def status(self) -> str:
        """The worst status of all findings."""
        return worst(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return what the report says as plain values."""
        names = ("name", "title", "status", "value", "bound", "at_least", "advice")
        return {
            "status": self.status,
            "method": self.method,
            "chains": self.chains,
            "draws": self.draws,
            "rows": self.rows,
            "evaluations": self.evaluations,
            "checks": [{name: getattr(f, name) for name in names} for f in self.findings],
        }

    @property
    def head(self) -> str:
        """What was run, and what it came to, in one line."""
        each = self.of.removesuffix("s")
        cost = f", {amount(self.evaluations)} {each} evaluations" if self.evaluations >= 0 else ""
        rows = f" of {self.rows:,.0f} {self.of}" if self.rows >= 0 else ""
        chains = "1 chain" if self.chains == 1 else f"{self.chains} chains"
        draws = "1 draw" if self.draws == 1 else f"{self.draws:,} draws"
        return f"{self.status.upper()}: {self.method}{rows}, {chains} of {draws}{cost}"

    def __str__(self) -> str:
        return "\n".join([self.head, *lines(self.findings), _JUDGED])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.head)}</b></p>{as_html(self.findings)}<p>{_JUDGED}</p>"


def worst(findings: Sequence[Finding]) -> str:
    """Return the worst status of some findings; "pass" of none."""
    return max((f.status for f in findings), key=_ORDER.__getitem__, default="pass")


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return lines of text: status, title, number and bound, and what to do below."""
    rows = [f.row() for f in findings]
    width = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    text = []
    for *cells, advice in rows:
        first, title, value, bound = (c.ljust(w) for c, w in zip(cells, width, strict=True))
        text.append(f"  {first}  {title}  {value}  {bound}".rstrip())
        text += [f"        {advice}"] if advice else []
    return text


def as_html(findings: Sequence[Finding]) -> str:
    """Return the same as a table for notebooks."""
    body = []
    for finding in findings:
        cells = [html.escape(cell) for cell in finding.row()]
        cells[0] = f'<b style="color:{COLOURS[finding.status]}">{cells[0]}</b>'
        body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{x}</th>" for x in ("", "check", "value", "bound", "what to do"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def said(finding: Finding) -> Finding:
    """Return a finding that says what decided if its bound did not."""
    if finding.decided:
        return finding
    besides = " ".join(filter(None, [finding.rule.besides, finding.advice]))
    return replace(finding, advice=besides)


def worst_chain(rule: Rule, found: list[tuple[Any, Finding]]) -> Finding:
    """Return what a rule found of the worst chain; before each finding stands the chain's label."""
    failed = [entry for entry in found if not entry[1].passed]
    values = np.array([finding.value for _, finding in failed or found])
    value = float(values.min() if rule.at_least else values.max())  # NaN if any is
    chains = ", ".join(str(chain) for chain in dict.fromkeys(chain for chain, _ in failed))
    advice = f"In chain {chains}. {rule.remedy}" if failed else ""
    return said(Finding(rule, value, not failed, advice))


def tiered(fail: Rule, doubt: Rule, value: float, who: str = "") -> Finding:
    """Judge a number by the bound where it fails and the one where it is doubtful."""
    rule = doubt if fail.holds(value) else fail
    advice = f"{f'Worst in {who}. ' if who else ''}{rule.remedy}"
    return rule.check(value, "" if rule.holds(value) else advice)
