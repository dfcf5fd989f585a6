"""Which sampler made a run: a number in its statistics, since a run keeps nothing else of it."""

import numpy as np
import xarray as xr

# Statistic of every draw: a place in this table. Runs are stored with it: names are added at its
# end, and none is moved or removed. The first is that of a step of the user's own.
STATISTIC = "sampler"
SAMPLERS = (
    "", "HMCECS", "ScalableMH", "MinibatchBarkerMH", "AusterityMH", "ConfidenceMH", "FireflyMC",
    "AusterityGibbs", "SGMCMC", "SGLD", "PSGLD", "SVRGLD", "SGHMC", "SGNHT", "ClusteredSGHMC",
    "EWSG",
)  # fmt: skip


def number_of(step: type) -> int:
    """Return the number of a step class, or of the nearest class that it is made from."""
    names = [kind.__name__ for kind in step.__mro__ if kind.__name__ in SAMPLERS]
    return SAMPLERS.index(names[0]) if names else 0


def samplers_of(stats: xr.Dataset) -> str:
    """Name the samplers that made a run; empty where it does not say, as earlier runs do not."""
    if STATISTIC not in stats:
        return ""
    numbers = np.unique(stats[STATISTIC].values[np.isfinite(stats[STATISTIC].values)]).astype(int)
    return " with ".join(filter(None, (SAMPLERS[k] for k in numbers if 0 < k < len(SAMPLERS))))
