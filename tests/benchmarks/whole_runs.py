"""From starting Python to 400 effective draws of every parameter: the whole time.

python tests/benchmarks/whole_runs.py                  # five models, 3,000 to 300,000 rows
python tests/benchmarks/whole_runs.py --first          # six models, first and later runs
python tests/benchmarks/whole_runs.py --results FILE   # goes on with the runs that it lacks

Each run is a process of its own, in one of three states: "cold", where the caches of PyTensor,
numba and Python's bytecode are empty, as on a machine that never ran one; "new", where the sampler
has run, but not this model (ours: `python -m pymc_subsample.compile`; the others: another model);
"again", where the same run has been made before. Seconds are the processor's, of all threads, and
hold imports, data, set-up, compilation, tuning, draws and checks. All samplers get the same
`pm.Model` by `pm.sample`, two chains in sequence and PyMC's 1,000 draws of tuning; if the smallest
bulk ESS is below 400, the run is made again with more draws, and that one counts. Of a panel, the
parameters that units share count, and the first 200 effects. Picture: `whole-light.svg` and others.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from _measure import Checks, command_line, empty_compile_cache, provenance, result_of, table
from picture import COLORS

CHAINS, TUNE, EFFECTIVE, OF_EACH = 2, 1_000, 400, 200
OURS = ("auto", "HMCECS", "ScalableMH")
# Draws of the first attempt, and at most.
DRAWS, PEER_DRAWS, MOST = 1_000, 300, 4_000
ROWS, FIRST_ROWS = (3_000, 30_000, 300_000), (100_000,)
FIRST = ("logistic", "poisson_noncentred", "negative_binomial_counts", "lkj_slopes",
         "mixture_minutes", "hsgp_matern")  # fmt: skip
MODELS = ("logistic", "poisson_noncentred", "negative_binomial_counts", "lkj_slopes", "panel")
SAMPLERS = ("auto", "nutpie", "PyMC", "NumPyro")
OF_PYMC = {"nutpie": "nutpie", "PyMC": "pymc", "NumPyro": "numpyro"}
# CPU seconds of a first answer: first ever, new model, again.
AIMS = {"cold": 15.0, "new": 6.0, "again": 4.0}
_BETWEEN_NAMES = 0.08  # Decades, so that names do not overlap.
STYLES = {
    "auto": (COLORS["HMCECS"], "-"),
    "nutpie": (COLORS["nutpie"], "--"),
    "PyMC": (COLORS["nutpie"], ":"),
    "NumPyro": (COLORS["nutpie"], "-."),
}


def cpu():
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


def build(name, n):
    """Return a model of n rows."""
    rng = np.random.default_rng(0)
    if name == "logistic":
        from _problems import logistic_model, logistic_rows

        return logistic_model(*logistic_rows(n, 10), 1.0)
    if name == "panel":
        from _panels import logistic, logistic_model, panel

        unit, x, z = panel(n // 10, 10, rng)
        return logistic_model(unit, x, logistic(unit, x, z, rng))
    from _written import MODELS

    return MODELS[name](n)


def child(args):
    """Sample, and print the seconds since Python began, and what came out."""
    import logging
    import warnings

    import pymc as pm

    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    model = build(args.model, args.n)
    names = [rv.name for rv in model.free_RVs]
    settings = {
        "draws": args.draws, "tune": TUNE, "chains": CHAINS, "cores": 1, "random_seed": args.seed,
        "progressbar": False, "var_names": names, "compute_convergence_checks": False,
    }  # fmt: skip
    said = {}
    with model:
        if args.sampler in OURS:
            import pymc_subsample as pms

            step = getattr(pms, args.sampler)()
            idata = pm.sample(step=step, **settings)
            said = {"step": type(step).__name__, "status": pms.report(idata).status}
        else:
            more = {"chain_method": "sequential"} if args.sampler == "NumPyro" else {}
            idata = pm.sample(
                nuts_sampler=OF_PYMC[args.sampler], nuts_sampler_kwargs=more, **settings
            )
    spent = cpu()
    print(json.dumps({"seconds": spent, **said, **judged(idata["posterior"])}), flush=True)


def judged(posterior):
    """Return the smallest effective size, and means and sds of each element."""
    from arviz_stats.base import array_stats

    ess, mean, sd = [], [], []
    for name in sorted(posterior.data_vars):
        draws = posterior[name].values
        for element in draws.reshape(*draws.shape[:2], -1)[..., :OF_EACH].transpose(2, 0, 1):
            if np.ptp(element) > 0:  # a Cholesky factor has elements that are none
                ess.append(float(array_stats.ess(element, method="bulk")))
                mean.append(float(element.mean()))
                sd.append(float(element.std()))
    return {"ess": min(ess), "mean": mean, "sd": sd, "each": ess}


def run(model, n, sampler, environment, args):
    """Run a process, and once more with more draws if they were too few."""
    draws = DRAWS if sampler in OURS else PEER_DRAWS
    while True:
        command = [
            sys.executable, __file__, "--child", "--model", model, "--n", str(n),
            "--sampler", sampler, "--seed", str(args.seed), "--draws", str(draws),
        ]  # fmt: skip
        found = result_of(command, args.limit, environment) | {"draws": draws}
        ess = found.get("ess", EFFECTIVE)
        if ess >= EFFECTIVE or draws >= MOST:
            return found
        draws = min(MOST, int(np.ceil(1.3 * draws * EFFECTIVE / max(ess, 1.0))))


class Caches:
    """Folders of compiled code in the three states."""

    def __init__(self):
        self.made = {}

    def cold(self):
        """Return the environment of an empty one."""
        return empty_compile_cache()

    def new(self, sampler, model, args):
        """Return that of a copy in which a sampler is present, but no code of the model."""
        kind = "ours" if sampler in OURS else sampler
        # The code of one model is not that of another one, whichever was first.
        other = "poisson_noncentred" if model == "logistic" else "logistic"
        key = kind if kind == "ours" else (kind, other)
        if key not in self.made:
            environment = empty_compile_cache()
            if kind == "ours":
                command = [sys.executable, "-m", "pymc_subsample.compile"]
                subprocess.run(
                    command, env=os.environ | environment, check=True, capture_output=True
                )
            else:
                run(other, 1_000, sampler, environment, args)
            self.made[key] = environment
        return copied(self.made[key])


def copied(environment):
    """Return the environment of a copy of its folder."""
    origin = Path(environment["NUMBA_CACHE_DIR"]).parent
    folder = Path(tempfile.mkdtemp(prefix="benchmark-cache-"))
    shutil.copytree(origin, folder, dirs_exist_ok=True)
    return {key: value.replace(str(origin), str(folder)) for key, value in environment.items()}


def remove(environment):
    shutil.rmtree(Path(environment["NUMBA_CACHE_DIR"]).parent, ignore_errors=True)


class Results:
    """Runs that were made, a line for each in a file, if there is one."""

    def __init__(self, file):
        self.file, self.done = file, {}
        if file and file.exists():
            self.done = {tuple(key): found for key, found in map(json.loads, file.open())}

    def get(self, key, make):
        if key not in self.done:
            self.done[key] = make()
            if self.file:
                with self.file.open("a") as lines:
                    lines.write(json.dumps([key, self.done[key]]) + "\n")
        return self.done[key]


def seconds(found, limit=None):
    """Return the seconds of a run, or what stands for them in a table."""
    if "seconds" not in found:
        return f"> {limit:.0f}" if found.get("error", "").startswith("more than") else "error"
    few = found["ess"] < EFFECTIVE
    return f"{found['seconds']:.3g}{f' ({found["ess"]:.0f})' if few else ''}"


def in_states(model, n, sampler, states, results, caches, args):
    """Return what a sampler took in each state: a cold run leaves what "again" finds."""
    found, environment = {}, None
    for state in states:
        key = (model, n, sampler, state, args.seed)
        if key not in results.done:
            if state == "new":
                if environment is not None:
                    remove(environment)
                environment = caches.new(sampler, model, args)
            elif state == "cold" or environment is None:
                environment = caches.cold()
                if state == "again":
                    run(model, n, sampler, environment, args)
        found[state] = results.get(key, lambda here=environment: run(model, n, sampler, here, args))
        if state != "cold" and environment is not None:
            remove(environment)
            environment = None
    return found


def apart(one, other):
    """Return the largest difference of means in posterior sds, over what Monte Carlo error allows.

    Of all elements together it exceeds 1 once in a hundred runs (Bonferroni, normal errors).
    """
    from scipy.stats import norm

    a, b = ({k: np.array(found[k]) for k in ("mean", "sd", "each")} for found in (one, other))
    if len(a["mean"]) != len(b["mean"]):
        return np.nan
    error = np.sqrt(a["sd"] ** 2 / a["each"] + b["sd"] ** 2 / b["each"])
    allowed = norm.isf(0.005 / len(error))
    return float(np.max(np.abs(a["mean"] - b["mean"]) / error) / allowed)


def first(args, results, caches):
    """Print the seconds of first and later runs."""
    rows, checks = [], Checks()
    for model, n in product(args.only or FIRST, args.rows or FIRST_ROWS):
        for sampler in args.samplers:
            found = in_states(model, n, sampler, ("cold", "again", "new"), results, caches, args)
            said = found["cold"].get("step", "")
            rows.append([model, n, sampler, *(seconds(found[s], args.limit) for s in AIMS), said])
            print(*rows[-1], sep="  ", flush=True)
            if sampler in OURS:
                for state, aim in AIMS.items():
                    checks.at_most(
                        f"{model}, {n:,} rows, {sampler}: {state}",
                        found[state].get("seconds", np.inf),
                        aim,
                    )
    print()
    table(["model", "rows", "sampler", *AIMS, "takes"], rows)
    return checks


def by_rows(args, results, caches):
    """Print the seconds of whole runs at several numbers of rows; return what the picture shows."""
    rows, lines, checks = [], [], Checks()
    for model in args.only or MODELS:
        over = set()
        for n in args.rows or ROWS:
            runs = {}
            for sampler in args.samplers:
                states = ("cold", "new") if sampler in OURS else ("new",)
                if sampler in over:  # it took too long with fewer rows
                    found = {s: {"error": f"more than {args.limit:.0f} s"} for s in states}
                else:
                    found = in_states(model, n, sampler, states, results, caches, args)
                if "seconds" not in found["new"]:
                    over.add(sampler)
                runs[sampler] = found
                lines += [
                    (model, n, sampler, state, run.get("seconds", args.limit), "seconds" in run)
                    for state, run in found.items()
                    if run.get("ess", EFFECTIVE) >= EFFECTIVE
                ]
            ours = next(s for s in args.samplers if s in OURS)
            peers = [s for s in args.samplers if s not in OURS]
            rows.append([
                model, n, seconds(runs[ours]["cold"], args.limit),
                seconds(runs[ours]["new"], args.limit), runs[ours]["new"].get("step", ""),
                *(seconds(runs[s]["new"], args.limit) for s in peers),
            ])  # fmt: skip
            print(*rows[-1], sep="  ", flush=True)
            for peer in peers:
                if "seconds" in runs[peer]["new"] and "seconds" in runs[ours]["new"]:
                    checks.at_most(
                        f"{model}, {n:,} rows: means beside {peer}, over Monte Carlo error",
                        apart(runs[ours]["new"], runs[peer]["new"]), 1,
                    )  # fmt: skip
    print()
    table(["model", "rows", "cold", "new", "takes", *peers], rows)
    return lines, checks


def draw(lines, folder):
    """Draw a panel for each model, for light pages and dark ones.

    Runs that were stopped are open triangles at the limit; those of which chains did not move are
    left out.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(line[0] for line in lines))
    for dark, ink in enumerate(["#222222", "#dddddd"]):
        inks = dict.fromkeys(
            ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], ink
        )
        style = {
            "font.size": 10, "svg.hashsalt": "whole", "axes.spines.top": False,
            "axes.spines.right": False,
        }  # fmt: skip
        with matplotlib.rc_context(style | inks):
            down = math.ceil(len(models) / 2)  # two beside each other can be read on a phone
            figure, axes = plt.subplots(
                down, 2, figsize=(7, 2.8 * down), layout="constrained", sharey=True, squeeze=False
            )
            for panel in axes.flat[len(models) :]:
                panel.set_axis_off()
            for model, panel in zip(models, axes.flat, strict=False):
                ends = {}
                for sampler, (colors, dashes) in STYLES.items():
                    for state in ("new", "cold"):
                        runs = sorted(
                            (n, s, ended) for m, n, who, how, s, ended in lines
                            if (m, who, how) == (model, sampler, state)
                        )  # fmt: skip
                        at = [(n, s) for n, s, _ in runs]
                        if not at:
                            continue
                        look = {"color": colors[dark], "linestyle": dashes}
                        if state == "cold":
                            look["alpha"], look["linestyle"] = 0.5, (0, (1, 1))
                        panel.loglog(*zip(*at, strict=True), **look)
                        for n, s, ended in runs:
                            panel.plot(
                                n, s, marker="o" if ended else "^", markersize=3 if ended else 6,
                                markerfacecolor=None if ended else "none", color=colors[dark],
                                alpha=look.get("alpha"),
                            )  # fmt: skip
                        if state == "new":
                            name = "pms.auto" if sampler == "auto" else sampler
                            ends[name] = at[-1], colors[dark]
                panel.set_title(model.replace("_", " "), loc="left", fontsize=10)
                panel.set_xlabel("rows")
                rows = sorted({n for m, n, *_ in lines if m == model})
                panel.set_xticks(rows, [f"{n:,}" for n in rows])
                panel.minorticks_off()
                panel.grid(which="major", alpha=0.2, linewidth=0.6)
                height = -np.inf
                for name, (end, color) in sorted(ends.items(), key=lambda item: item[1][0][1]):
                    height = max(np.log10(end[1]), height + _BETWEEN_NAMES)
                    panel.annotate(
                        name, (1.1 * end[0], 10**height), color=color, va="center", fontsize=8,
                        annotation_clip=False,
                    )  # fmt: skip
            figure.supylabel("CPU seconds to 400 effective draws", fontsize=10, color=ink)
            figure.savefig(
                folder / f"whole-{['light', 'dark'][dark]}.svg", transparent=True,
                metadata={"Date": None},
            )  # fmt: skip
            if not dark:
                figure.savefig(folder / "whole.png", dpi=140, facecolor="white")
            plt.close(figure)


if __name__ == "__main__":
    parser = command_line(__doc__, seed=1)
    parser.add_argument("--first", action="store_true", help="first and later runs of one size")
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of them")
    parser.add_argument("--only", nargs="+", help="models")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--limit", type=float, default=600.0, help="CPU seconds per run")
    parser.add_argument("--results", type=Path, help="one line per run is kept here")
    parser.add_argument("--folder", type=Path, default=Path("demo_output"))
    for name in ("model", "sampler"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in ("n", "draws"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        sys.exit()
    print(*provenance().split("; "), sep="\n", flush=True)
    results, caches = Results(args.results), Caches()
    if args.first:
        checks = first(args, results, caches)
    else:
        lines, checks = by_rows(args, results, caches)
        args.folder.mkdir(parents=True, exist_ok=True)
        draw(lines, args.folder)
    print()
    checks.exit()
