"""Runs of the trust benchmark: settings, what a run says of itself, and whether it is right."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import arviz_stats
import numpy as np
import pymc as pm
import xarray as xr
from _bank import Problem
from _bank_references import Moments, Reference, load, moments
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample.chain.nuts_cost import quiet

METHOD = "HMCECS"
STEPS = {METHOD: pms.HMCECS, "ScalableMH": pms.ScalableMH}
MEAN_BOUND, SD_BOUND = 0.1, 0.05
# That Monte Carlo error alone makes a cell look wrong whose true errors are at the bounds.
LEVEL = 0.01
RHAT_BOUND, ESS_PER_CHAIN = 1.01, 100
CHAINS, DRAWS, TUNE = 4, 1_000, 1_000
FEW_ROWS = 20
HEALTHY = "healthy"
BAD = (
    "reference 10 sd off, each",
    "reference 10 sd off, jointly",
    "order 1, rows of order 2",
    "order 0, rows of order 2",
    f"{FEW_ROWS} rows",
    "outlier",
    "outlier, rows without it",
)
SETTINGS = (HEALTHY, *BAD)
# Of steps that have no subsample of a size.
EXACT_SETTINGS = (HEALTHY, *BAD[:2], BAD[5])


@dataclass(frozen=True)
class Judged:
    """What came of a run, or of the refusal of one.

    Attributes
    ----------
    mean_error, sd_error : float
        Largest error of a mean, in sds, and largest relative error of an sd. NaN if refused.
    wrong : bool
        Whether one of them is beyond its bound and Monte Carlo error.
    status : str
        What the run says of itself: pass, warn, fail or refused.
    why : str
        What failed.
    outcome : str
        right, told, refused, SILENT or false alarm.
    seconds : float
    """

    mean_error: float
    sd_error: float
    wrong: bool
    status: str
    why: str
    outcome: str
    seconds: float


@dataclass(frozen=True)
class Cell(Judged):
    """One run of a method; `rows` are those of a subsample or decision, 0 if refused."""

    method: str
    problem: str
    setting: str
    seed: int
    rows: int


def verdict(idata: xr.DataTree) -> tuple[str, str]:
    """What the report says of a run, and the checks that did not pass."""
    found = pms.report(idata)
    return found.status, ", ".join(f.name for f in found.findings if f.status != "pass")


def convergence(posterior: xr.Dataset) -> list[str]:
    """Which of ArviZ's convergence diagnostics are beyond their bounds."""
    rhat = arviz_stats.rhat(posterior)
    least = ESS_PER_CHAIN * posterior.sizes["chain"]
    ess = [arviz_stats.ess(posterior, method=method) for method in ("bulk", "tail")]
    mixed = all(bool((v <= RHAT_BOUND).all()) for v in rhat.data_vars.values())
    enough = all(bool((v >= least).all()) for e in ess for v in e.data_vars.values())
    return [name for name, held in (("R-hat", mixed), ("ESS", enough)) if not held]


def errors(run: Moments, reference: Moments) -> tuple[float, float, bool]:
    """Largest errors of a mean and an sd, and whether any is beyond Monte Carlo error.

    A run is wrong if for some of d parameters the error of the mean exceeds its bound by more than
    z standard errors, or that of the sd does. The standard errors are of run and reference
    together, and z is the normal quantile of two-sided level 0.01 over 2 d comparisons.
    """
    assert run.names == reference.names, (run.names, reference.names)
    shift = np.abs(run.mean - reference.mean) / reference.sd
    stretch = np.abs(run.sd / reference.sd - 1)
    z = norm.isf(LEVEL / (4 * len(shift)))
    allowed_shift = MEAN_BOUND + z * np.hypot(run.mean_error, reference.mean_error) / reference.sd
    allowed_stretch = SD_BOUND + z * np.hypot(run.sd_error, reference.sd_error) / reference.sd
    held = np.all(shift <= allowed_shift) and np.all(stretch <= allowed_stretch)
    return float(shift.max()), float(stretch.max()), not held


def outcome(setting: str, wrong: bool, status: str) -> str:
    """Name what came of a cell."""
    alarmed = status in ("fail", "refused")
    if setting == HEALTHY and alarmed and not wrong:
        return "false alarm"
    if alarmed:
        return "refused" if status == "refused" else "told"
    return "SILENT" if wrong else "right"


def options(setting: str, reference: Reference, rows: int) -> dict:
    """Arguments of `HMCECS` for a setting; `rows` is the subsample of the healthy run."""
    return {
        HEALTHY: {},
        BAD[0]: {"reference": reference.far["each"]},
        BAD[1]: {"reference": reference.far["joint"]},
        BAD[2]: {"control_variate_order": 1, "subsample_size": rows},
        BAD[3]: {"control_variate_order": 0, "subsample_size": rows},
        BAD[4]: {"subsample_size": FEW_ROWS},
        BAD[5]: {},
        BAD[6]: {"subsample_size": rows},
    }[setting]


def runs(
    problem: Problem,
    settings: tuple[str, ...] = SETTINGS,
    seeds: int = 3,
    step: Callable = pms.HMCECS,
    method: str = METHOD,
    draws: int = DRAWS,
) -> Iterator[Cell]:
    """Run a problem in all settings: in healthy ones with several seeds, else with one.

    `step` may be a `functools.partial` of the step method, for other estimators.
    """
    rows = 0
    for setting in settings:
        spoiled = setting.startswith("outlier")
        model, reference = problem.model(problem.rows(spoiled)), load(problem, spoiled)
        start = perf_counter()
        try:
            with quiet():
                made = step(model=model, **options(setting, reference, rows))
        except pms.TallModelError as error:
            found = np.nan, np.nan, False, "refused", type(error).__name__
            yield cell(method, problem, setting, 0, 0, found, perf_counter() - start)
            continue
        if setting == HEALTHY:
            rows = getattr(made, "subsample_size", 0)
        for seed in range(1, 1 + (seeds if setting == HEALTHY else 1)):
            with quiet():
                idata = pm.sample(
                    draws, tune=TUNE, chains=CHAINS, cores=1, step=made, model=model,
                    random_seed=seed, progressbar=False, compute_convergence_checks=False,
                )  # fmt: skip
            found = errors(
                moments(idata["posterior"].to_dataset(), [rv.name for rv in model.free_RVs]),
                reference.moments,
            )
            stats = idata["sample_stats"]
            size = (
                int(stats["subsample_size"].values[:, -1].max())
                if "subsample_size" in stats
                else round(float(stats["rows_read"].mean()))
            )
            seconds = perf_counter() - start
            yield cell(method, problem, setting, seed, size, (*found, *verdict(idata)), seconds)
            start = perf_counter()


def cell(method, problem, setting, seed, rows, found, seconds) -> Cell:
    """What came of a run, of which errors, status and reason were `found`."""
    *_, wrong, status, _ = found
    judged = *found, outcome(setting, wrong, status), seconds
    return Cell(*judged, method, problem.name, setting, seed, rows)
