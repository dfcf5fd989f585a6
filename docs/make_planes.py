"""Draw the README's picture of a panel into `docs/_static`: planes alone, and all together.

python docs/make_planes.py

Samples the model of `docs/tutorials/planes.ipynb`, and writes `planes-light.svg` and
`planes-dark.svg`, for light pages and dark ones, without a background.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm
from matplotlib import pyplot as plt
from scipy import stats
from scipy.special import expit

import pymc_subsample as pms

HERE = Path(__file__).parent
DATA, STATIC = HERE.parent / "examples" / "data", HERE / "_static"
SHOWN, PROBABILITY = 60, 0.89
COLORS = ("#c2500a", "#f79a5b"), ("#1464a5", "#6cb6f5")  # as in the picture of speed
ENDS = (1 - PROBABILITY) / 2, (1 + PROBABILITY) / 2


def load():
    """Return the plane of each flight of July, its hour and whether it was late."""
    with np.load(DATA / "flights.npz") as table, np.load(DATA / "planes.npz") as planes:
        july = table["month"] == 7
        _, plane = np.unique(planes["plane"][july], return_inverse=True)
        return plane, table["hour"][july], table["arrival_delay"][july] > 15


def sample(plane, hour, late):
    """Return draws of each plane's chance of being late at the mean hour, (draws, planes)."""
    with pm.Model():
        mean, between = pm.Normal("mean", 0, 2), pm.HalfNormal("between", 1)
        effect = pm.Normal("effect", mean, between, shape=int(plane.max()) + 1)
        logit = effect[plane] + pm.Normal("by_hour", 0, 2) * (hour - hour.mean()) / 12
        pm.Bernoulli("late", logit_p=logit, observed=late)
        idata = pm.sample(500, step=pms.HMCECS(), chains=4, random_seed=1, progressbar=False)
    print(pms.report(idata))
    return expit(idata.posterior["effect"].to_numpy().reshape(-1, plane.max() + 1))


def draw(plane, late, chance):
    """Draw intervals of some planes, from the lowest effect to the highest."""
    flights, n_late = np.bincount(plane), np.bincount(plane, late)
    alone = stats.beta(n_late + 0.5, flights - n_late + 0.5)  # Jeffreys' prior
    middle, together = chance.mean(axis=0), np.quantile(chance, ENDS, axis=0)
    some = np.argsort(middle)[np.linspace(0, len(middle) - 1, SHOWN).astype(int)]
    panels = {
        "Each plane by its own flights": (n_late / flights, alone.interval(PROBABILITY)),
        "All planes together": (middle, together),
    }
    style = {
        "font.size": 10, "svg.hashsalt": "planes", "axes.spines.top": False,
        "axes.spines.right": False, "axes.spines.left": False,
    }  # fmt: skip
    ink = ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"]
    for dark, text in enumerate(["#222222", "#dddddd"]):
        with matplotlib.rc_context(style | dict.fromkeys(ink, text)):
            figure, axes = plt.subplots(
                1, 2, figsize=(9, 3.4), sharex=True, sharey=True, layout="constrained"
            )
            for axis, colors, (title, (x, ends)) in zip(axes, COLORS, panels.items(), strict=True):
                y = np.arange(SHOWN)
                axis.hlines(
                    y, ends[0][some], ends[1][some], linewidth=1, alpha=0.55, color=colors[dark]
                )
                axis.scatter(x[some], y, s=4 + 0.7 * flights[some], color=colors[dark], linewidth=0)
                axis.axvline(
                    np.average(x, weights=flights), linewidth=0.8, alpha=0.5, color=text, zorder=0
                )
                axis.set_title(title, loc="left", fontsize=11)
                axis.set(xlabel="chance of being late", yticks=[], xlim=(-0.02, 1.02))
                axis.grid(axis="x", alpha=0.2, linewidth=0.6)
            figure.savefig(
                STATIC / f"planes-{['light', 'dark'][dark]}.svg",
                transparent=True, metadata={"Date": None},
            )  # fmt: skip
            plt.close(figure)


if __name__ == "__main__":
    matplotlib.use("agg")
    plane, hour, late = load()
    draw(plane, late, sample(plane, hour, late))
