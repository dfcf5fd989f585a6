r"""Whether the chains of a run agree: R-hat and effective sample size of the worst element.

R-hat of c chains that have mixed is not 1 but, of k = 2c halves of as many effective draws in all
as S,

.. math:: \hat R^2 \approx 1 + \frac{k}{S} \frac{\chi^2_{k-1}}{k - 1},

and the largest of many elements is larger. It is doubted where it is above what one run in a
hundred comes to by chance, of all elements together, and never below 1.01, where it does no harm.
S is what chains have one by one: together, they seem to have the fewer the less they agree.

The effective sample size is that of ranks, of tails and of standard deviations. The last is the
smallest by far where momenta swing a chain to and fro and hardly ever change their energy.

Effects that were drawn given each draw of the others are judged apart from these. They mix at least
as fast, but there are thousands of them, and the smallest of so many estimates is far below what
each of them estimates. An estimate of S effective draws is off by :math:`\sqrt{8 / S}` of itself
(Sokal, 1997, for a window of four autocorrelation times). What 99% of effects exceed is compared
with what 99% of estimates exceed where all effects have the number of draws that is asked for.

References
----------
Sokal, A. (1997). Monte Carlo methods in statistical mechanics: foundations and new algorithms.
In: Functional Integration, 131-192. Springer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import chi2, norm

from pymc_subsample.diagnostics import array_stats, signed
from pymc_subsample.diagnostics.checks import Finding, Rule
from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.diagnostics.findings import tiered
from pymc_subsample.diagnostics.reading_draws import columns

_LONGER = "Sample and tune for longer; if that does not help, reparametrise the model."
# 1.05: a choice, between 1.1 (Gelman and Rubin 1992) and the doubt; 1.01 and 400: Vehtari et al.
# 2021. Of 100 effective draws a mean is off by `SHIFT_BOUND`.
R_HAT = Rule("r_hat", "largest R-hat", 1.05, _LONGER)
R_HAT_DOUBT = Rule("r_hat", "largest R-hat", 1.01, _LONGER, severity="warn")
HOLES = Rule(
    "nan",
    "elements with draws that are NaN",
    0,
    "Such draws have no mean, quantile or R-hat: leave the variable out, or compute it from finite "
    "numbers.",
    severity="warn",
)
ESS = Rule("ess", "smallest effective sample size (bulk, tail, sd)", 100, _LONGER, at_least=True)
ESS_DOUBT = Rule("ess", ESS.title, 400, _LONGER, severity="warn", at_least=True)
# Share of runs of chains that have mixed in which R-hat is doubted. A choice: one in a hundred.
FALSE_ALARMS = 0.01
# Share of effects that may have fewer effective draws, and effects that are looked at. A choice: of
# thousands of effects some have few by chance, and statistics of one take 0.2 ms.
_FEW, _LOOKED_AT = 0.01, 2_000
# Variables with more elements are left out of R-hat and effective sample size. A choice: two
# seconds at 0.2 ms each. Tails are those of ArviZ.
_MOST_ELEMENTS = 10_000
_TAILS = 0.05, 0.95
_AXES = {"chain_axis": 0, "draw_axis": 1}


def _fewest(rule: Rule) -> Rule:
    """Return the rule for what all but a few effects exceed."""
    off = np.exp(norm.ppf(_FEW) * np.sqrt(8 / rule.bound))
    title = f"effective sample size that {1 - _FEW:.0%} of effects exceed"
    return replace(rule, name="effects_ess", title=title, bound=float(round(rule.bound * off)))


def _of_effects(rule: Rule) -> Rule:
    return replace(rule, name="effects_r_hat", title="largest R-hat of effects")


EFFECTS_ESS, EFFECTS_ESS_DOUBT = _fewest(ESS), _fewest(ESS_DOUBT)
EFFECTS_R_HAT, EFFECTS_R_HAT_DOUBT = _of_effects(R_HAT), _of_effects(R_HAT_DOUBT)


def mixing(
    posterior: xr.Dataset,
    signs: np.ndarray | None = None,
    axes: Mapping[str, int] = MappingProxyType({}),
) -> list[Finding]:
    """R-hat and effective sample size of the worst element; signs have shape (chain, draw).

    Variables in `axes` are effects, drawn given the others, which are judged by all of them
    together: by name, which axis has the levels.
    """
    sizes = posterior.sizes["chain"] * posterior.sizes["draw"]
    effects = posterior[[name for name in axes if name in posterior]]
    others = posterior.drop_vars(list(effects))
    names = [str(n) for n, x in others.items() if 0 < x.size <= _MOST_ELEMENTS * sizes]
    findings = _holes(posterior[[*names, *effects]])
    if names:
        r_hat, ess = _judged(*columns(others, names), signs)
        findings += [
            _worst(R_HAT, R_HAT_DOUBT, np.nanargmax, *r_hat),
            _worst(ESS, ESS_DOUBT, np.nanargmin, *ess),
        ]
    if effects:
        r_hat, ess = _judged(*columns(_some(effects, axes), [str(n) for n in effects]), signs)
        findings += [
            _worst(EFFECTS_R_HAT, EFFECTS_R_HAT_DOUBT, np.nanargmax, *r_hat),
            _worst(EFFECTS_ESS, EFFECTS_ESS_DOUBT, _few, *ess),
        ]
    return findings


def _some(effects: xr.Dataset, axes: Mapping[str, int]) -> xr.Dataset:
    """Return evenly spread levels of effects."""
    each, some = max(1, _LOOKED_AT // len(effects)), {}
    for name, x in effects.items():
        for dim in [d for d in x.dims if d not in SAMPLE_DIMS][axes[str(name)] :][:1]:
            n = x.sizes[dim]
            some[dim] = np.unique(np.linspace(0, n - 1, min(each, n)).astype(int))
    return effects.isel(some)


def _few(values: np.ndarray) -> int:
    """Return which of some numbers all but a few exceed; NaN are none."""
    known = np.flatnonzero(~np.isnan(values))
    return int(known[np.argsort(values[known])[int(_FEW * len(known))]])


def _holes(posterior: xr.Dataset) -> list[Finding]:
    names = [str(n) for n, x in posterior.items() if np.isnan(x.to_numpy()).any()]
    if not names:
        return []
    values, labels = columns(posterior, names)
    holes = np.flatnonzero(np.isnan(values).any(axis=(0, 1)))
    others = " and others" if len(holes) > 1 else ""
    return [HOLES.check(len(holes), f"{labels[holes[0]]}{others}. {HOLES.remedy}")]


_Numbers = tuple[np.ndarray, np.ndarray, np.ndarray, list[str], bool]


@np.errstate(all="ignore")  # ArviZ's of elements that do not move
def _judged(
    values: np.ndarray, labels: list[str], signs: np.ndarray | None
) -> tuple[_Numbers, _Numbers]:
    """Return R-hats and effective sample sizes of elements, as `_worst` takes them."""
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
    chance = np.ones(len(labels))
    high = np.flatnonzero(moved & (r_hat > R_HAT_DOUBT.bound))
    if len(high):
        chance[high] = by_chance([x[..., high] for x in series], int(moved.sum()))
    beyond = moved & (r_hat > np.fmax(chance, R_HAT_DOUBT.bound))
    still = not moved.any() and values.shape[1] > 1
    among = beyond if beyond.any() else moved
    return (r_hat, among, chance, labels, still), (ess, moved, np.zeros(len(labels)), labels, still)


def _worst(
    fail: Rule,
    doubt: Rule,
    worst: Callable[[np.ndarray], Any],
    numbers: np.ndarray,
    among: np.ndarray,
    usual: np.ndarray,
    labels: list[str],
    still: bool,
) -> Finding:
    """Judge the worst of some numbers, of elements that are `among` those which matter."""
    known = np.where(among, numbers, np.nan)
    if np.all(np.isnan(known)):
        advice = "ArviZ gives none: sample at least 2 chains of at least 4 draws that move."
        return replace(doubt, severity="fail" if still else "warn").check(np.nan, advice)
    at = int(worst(known))
    fail, doubt = (replace(x, bound=max(x.bound, float(usual[at]))) for x in (fail, doubt))
    return tiered(fail, doubt, float(numbers[at]), labels[at])


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
