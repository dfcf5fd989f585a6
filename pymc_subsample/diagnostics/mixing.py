"""Whether the chains of a run agree: R-hat and effective sample size of the worst element."""

import numpy as np
import xarray as xr

from pymc_subsample import array_stats
from pymc_subsample.diagnostics import signed
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.diagnostics.findings import Finding, judged, tiered
from pymc_subsample.diagnostics.thinned import columns

_LONGER = "Sample and tune for longer; if that doesn't help, reparametrise the model."
R_HAT = Rule("r_hat", "largest R-hat", 1.05, _LONGER)
R_HAT_DOUBT = Rule("r_hat", "largest R-hat", 1.01, _LONGER, severity="warn")
ESS = Rule("ess", "smallest effective sample size (bulk, tail)", 100, _LONGER, at_least=True)
ESS_DOUBT = Rule("ess", ESS.title, 400, _LONGER, severity="warn", at_least=True)
# Variables with more elements are left out of R-hat and effective sample size.
_MOST_ELEMENTS = 10_000


def mixing(posterior: xr.Dataset, signs: np.ndarray | None = None) -> list[Finding]:
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
            findings.append(judged(doubt, status, np.nan, advice))
            continue
        at = int(worst(known))
        findings.append(tiered(fail, doubt, float(known[at]), f"{labels[at]}. "))
    return findings
