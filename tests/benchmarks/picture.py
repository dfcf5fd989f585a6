"""The picture of the README: speed and accuracy against the number of rows.

python tests/benchmarks/picture.py                          # 10^4, 10^5 and 10^6 rows
python tests/benchmarks/picture.py --rows 1000 10000        # do they run?
python tests/benchmarks/picture.py --redraw                 # the picture alone, from its numbers

One logistic regression, sampled by `HMCECS` and `ScalableMH`, and by nutpie and PyMC's NUTS on all
rows, each in one chain and as a whole: nothing is projected. Effective draws are those of the
slowest coefficient; errors are the largest of a mean, in posterior standard deviations, and of a
standard deviation, as a ratio, against the exact posterior of all rows, and hold the Monte Carlo
error of so many draws. Seconds are the processor's: give BLAS one thread (OMP_NUM_THREADS=1).

Writes `speed.csv`, `speed.txt` with the commit and the load of the machine, the two halves of the
picture for light pages and dark ones, without a background
(`speed-light.svg`, `error-dark.svg`, ...), and both with one (`speed.png`). Those on the site are
made with `--folder docs/_static`.
"""

from itertools import product
from pathlib import Path
from time import process_time

import numpy as np
from _measure import Checks, command_line, provenance, sample_step, table

PRIOR_SD = 1.0
COLUMNS = ["rows", "sampler", "draws", "ess", "per_second", "per_second_in_all", "mean", "sd"]
COLORS = {
    "ScalableMH": ("#1464a5", "#6cb6f5"),
    "HMCECS": ("#c2500a", "#f79a5b"),
    "nutpie": ("#6a6a6a", "#b0b0b0"),
    "PyMC NUTS": ("#6a6a6a", "#b0b0b0"),
}
PANELS = {
    "speed": ("per_second", "Effective draws per second"),
    "error": ("mean", "Largest error of a mean, in posterior sds"),
}
STYLES = {"nutpie": "--", "PyMC NUTS": ":"}


def runs(X, y, args):
    """Yield a run of every sampler, ours first."""
    from _peers import nutpie_all_rows, pymc_all_rows
    from _problems import logistic_model

    import pymc_subsample as pms

    model = logistic_model(X, y, PRIOR_SD)
    timed = {"tune": args.tune, "seed": args.seed, "time": process_time}
    for step in (pms.ScalableMH, pms.HMCECS):
        run, _ = sample_step(
            step.__name__, model, step, draws=args.draws, quiet=True,
            compute_convergence_checks=False, **timed,
        )  # fmt: skip
        yield run
    peer = timed | {"draws": args.peer_draws}
    yield nutpie_all_rows(X, y, PRIOR_SD, n_pilot=len(X), **peer)._replace(name="nutpie")
    yield pymc_all_rows(X, y, PRIOR_SD, **peer)._replace(name="PyMC NUTS")


def measured(args):
    from _problems import logistic_rows
    from _reference import exact_posterior

    for n in args.rows:
        X, y = logistic_rows(n, args.d)
        exact = exact_posterior(X, y, PRIOR_SD)
        print(f"{n:,} rows: {exact}", flush=True)
        for run in runs(X, y, args):
            ess = run.effective
            yield [
                n, run.name, len(run.draws), ess, ess / run.seconds, ess / run.total,
                *exact.errors(run.draws),
            ]  # fmt: skip


def read(file):
    with file.open() as lines:
        lines = [line.strip().split(",") for line in lines]
    return [[int(n), name, *map(float, numbers)] for n, name, *numbers in lines[1:]]


def write(file, lines, notes):
    def text(cell):
        if isinstance(cell, str):
            return cell
        return f"{cell:.0f}" if cell >= 100 else f"{cell:.3g}"

    cells = [COLUMNS, *([text(cell) for cell in line] for line in lines)]
    file.write_text("".join(",".join(line) + "\n" for line in cells))
    file.with_suffix(".txt").write_text("".join(f"{note}\n" for note in notes))


def draw(lines, folder):
    """Draw the panels one by one, for light pages and dark ones, and both in one picture."""
    import matplotlib

    matplotlib.use("agg")
    style = {
        "font.size": 10, "svg.hashsalt": "speed", "axes.spines.top": False,
        "axes.spines.right": False,
    }  # fmt: skip
    for dark, text in enumerate(["#222222", "#dddddd"]):
        ink = ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"]
        with matplotlib.rc_context(style | dict.fromkeys(ink, text)):
            for name in PANELS:
                file = folder / f"{name}-{['light', 'dark'][dark]}.svg"
                figure = panels([name], lines, dark)
                figure.savefig(file, transparent=True, metadata={"Date": None})
            if not dark:
                panels(PANELS, lines, dark).savefig(
                    folder / "speed.png", dpi=160, facecolor="white"
                )


def panels(names, lines, dark):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(names), figsize=(4.5 * len(names), 3.4), layout="constrained", squeeze=False
    )
    for name, panel in zip(names, axes[0], strict=True):
        key, title = PANELS[name]
        panel.set_xscale("log")
        ends = {}
        for sampler, colors in COLORS.items():
            n, values = (
                [line[COLUMNS.index(which)] for line in lines if line[1] == sampler]
                for which in ("rows", key)
            )
            look = {"color": colors[dark], "linestyle": STYLES.get(sampler, "-")}
            panel.plot(n, values, marker="o", markersize=4, **look)
            ends[sampler] = n[-1], values[-1]
        if name == "speed":
            panel.set_yscale("log")
        else:
            panel.axhline(0.1, linewidth=0.8, alpha=0.5, color=panel.xaxis.label.get_color())
            panel.set_ylim(0, max(0.12, *(1.1 * line[COLUMNS.index(key)] for line in lines)))
        label_ends(panel, ends, dark)
        panel.set_title(title, loc="left", fontsize=11)
        panel.set_xlabel("rows")
        panel.grid(which="major", alpha=0.2, linewidth=0.6)
    plt.close(figure)
    return figure


def label_ends(axes, ends, dark, apart=0.09):
    """Names beside the last points, moved apart where they would overlap."""
    axes.autoscale_view()
    fraction = axes.transScale + axes.transLimits
    heights, at = {name: fraction.transform(end)[1] for name, end in ends.items()}, -np.inf
    for name in sorted(ends, key=heights.get):
        at = max(heights[name], at + apart)
        axes.annotate(
            name, (1, at), xycoords="axes fraction", xytext=(4, 0), textcoords="offset points",
            va="center", color=COLORS[name][dark], annotation_clip=False,
        )  # fmt: skip


def compared(lines, checks):
    """Print speeds as ratios of this run, after tuning and in all, and errors."""
    at = {(line[0], line[1]): line for line in lines}
    sizes = sorted({line[0] for line in lines})
    rate, in_all = COLUMNS.index("per_second"), COLUMNS.index("per_second_in_all")
    for ours in ("ScalableMH", "HMCECS"):
        for other, n in product(("nutpie", "PyMC NUTS"), sizes):
            a, b = at[n, ours], at[n, other]
            name = f"{ours} over {other}, {n:,} rows"
            checks.at_least(f"{name}: speed after tuning", a[rate] / b[rate], 1)
            checks.at_least(f"{name}: with set-up and tuning", a[in_all] / b[in_all], 1)
        worst = [max(at[n, ours][i] for n in sizes) for i in (-2, -1)]
        checks.at_most(f"{ours}: largest error of a mean, in sds", worst[0], 0.1)
        checks.at_most(f"{ours}: largest relative error of an sd", worst[1], 0.05)
        drawn = min(at[n, ours][COLUMNS.index("ess")] for n in sizes)
        checks.at_least(f"{ours}: effective draws", drawn, 1000)


if __name__ == "__main__":
    parser = command_line(__doc__, d=10, draws=10_000, peer_draws=1000, tune=1000, seed=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=Path("demo_output"))
    parser.add_argument("--redraw", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    file, checks = args.folder / "speed.csv", Checks()
    if args.redraw:
        lines = read(file)
    else:
        settings = {key: vars(args)[key] for key in ("d", "draws", "peer_draws", "tune", "seed")}
        notes, lines = [f"{settings}", *provenance().split("; ")], []
        print(*notes, sep="\n", flush=True)
        for line in measured(args):
            lines.append(line)
            now = f"in the end: {provenance().split('; ')[-1]}"
            write(file, lines, [*notes, now])  # what a run has that is interrupted
    table(COLUMNS, lines)
    print()
    compared(lines, checks)
    draw(lines, args.folder)
    checks.exit()
