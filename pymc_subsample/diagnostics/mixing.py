r"""Whether the chains of a run agree: R-hat and effective sample size of the worst element.

R-hat of c chains that have mixed is not 1 but, of k = 2c halves of as many effective draws in all
as S,

.. math:: \hat R^2 \approx 1 + \frac{k}{S} \frac{\chi^2_{k-1}}{k - 1},

and the largest of many elements is larger. It is doubted where it is above what one run in a
hundred comes to by chance, of all elements together, and never below 1.01, where it does no harm.
S is what chains have one by one: together, they seem to have the fewer the less they agree.

The effective sample size is that of ranks, of tails and of standard deviations. The last is the
smallest by far where momenta swing a chain to and fro and hardly ever change their energy.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr
from scipy.stats import chi2

from pymc_subsample.diagnostics import array_stats, signed
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.diagnostics.findings import Finding, judged, tiered
from pymc_subsample.diagnostics.reading_draws import columns

_LONGER = "Sample and tune for longer; if that doesn't help, reparametrise the model."
R_HAT = Rule("r_hat", "largest R-hat", 1.05, _LONGER)
R_HAT_DOUBT = Rule("r_hat", "largest R-hat", 1.01, _LONGER, severity="warn")
ESS = Rule("ess", "smallest effective sample size (bulk, tail, sd)", 100, _LONGER, at_least=True)
ESS_DOUBT = Rule("ess", ESS.title, 400, _LONGER, severity="warn", at_least=True)
# Share of runs of chains that have mixed in which R-hat is doubted.
FALSE_ALARMS = 0.01
# Variables with more elements are left out of R-hat and effective sample size.
_MOST_ELEMENTS = 10_000
_TAILS = 0.05, 0.95
_AXES = {"chain_axis": 0, "draw_axis": 1}


@np.errstate(all="ignore")  # ArviZ's of elements that do not move
def mixing(posterior: xr.Dataset, signs: np.ndarray | None = None) -> list[Finding]:
    """R-hat and effective sample size of the worst element; signs have shape (chain, draw)."""
    sizes = posterior.sizes["chain"] * posterior.sizes["draw"]
    names = [str(n) for n, x in posterior.items() if 0 < x.size <= _MOST_ELEMENTS * sizes]
    if not names:
        return []
    values, labels = columns(posterior, names)
    moved = values.std(axis=(0, 1)) > 0
    if signs is None or signs.ndim > 2 or not signs.sum() > 0:
        series = [values]
        r_hat = np.asarray(array_stats.rhat(values, **_AXES))
        kinds: list[dict] = [
            {"method": "bulk"},
            {"method": "tail", "prob": _TAILS},
            {"method": "sd"},
        ]
        ess = np.fmin.reduce([array_stats.ess(values, **kind, **_AXES) for kind in kinds])
    else:
        each = [values[..., k] for k in range(values.shape[-1])]
        series = [values, np.broadcast_to(signs[..., None], values.shape)]
        series.append(np.stack([signed.influence(x, signs) for x in each], axis=-1))
        r_hat = np.array([signed.r_hat(x, signs) for x in each])
        few = (signed.ess_bulk, partial(signed.ess_tail, prob=_TAILS[0]), signed.ess_sd)
        ess = np.fmin.reduce([[f(x, signs) for x in each] for f in few])
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
    chance = np.ones(len(labels))
    high = np.flatnonzero(moved & (r_hat > R_HAT_DOUBT.bound))
    if len(high):
        chance[high] = by_chance([x[..., high] for x in series], int(moved.sum()))
    beyond = moved & (r_hat > np.fmax(chance, R_HAT_DOUBT.bound))
    for fail, doubt, numbers, among, worst, usual in (
        (R_HAT, R_HAT_DOUBT, r_hat, beyond if beyond.any() else moved, np.nanargmax, chance),
        (ESS, ESS_DOUBT, ess, moved, np.nanargmin, np.zeros(len(labels))),
    ):
        known = np.where(among, numbers, np.nan)
        if np.all(np.isnan(known)):
            advice = "ArviZ gives none: sample at least 2 chains of at least 4 draws that move."
            still = not moved.any() and posterior.sizes["draw"] > 1
            status = "fail" if still else "warn"
            findings.append(judged(doubt, status, np.nan, advice))
            continue
        at = int(worst(known))
        fail, doubt = (replace(x, bound=max(x.bound, float(usual[at]))) for x in (fail, doubt))
        findings.append(tiered(fail, doubt, float(numbers[at]), f"{labels[at]}. "))
    return findings


def by_chance(series: list[np.ndarray], elements: int) -> np.ndarray:
    """R-hat that some of so many elements exceed in a share `FALSE_ALARMS` of runs that have mixed.

    `series`, shape (chain, draw, k), of k of the elements, are what R-hat is the largest of, by
    ranks and by ranks of distances from the median. NaN where effective draws are not known.
    """
    folded = [np.abs(x - np.median(x, axis=(0, 1))) for x in series]
    halves = 2 * len(series[0])
    one = FALSE_ALARMS / (elements * len([*series, *folded]))
    alone = [
        sum(array_stats.ess(x[[c]], method="bulk", **_AXES) for c in range(len(x)))
        for x in (*series, *folded)
    ]
    excess = chi2.isf(one, halves - 1) * halves / (halves - 1)
    return np.sqrt(1 + excess / np.min(alone, axis=0))
