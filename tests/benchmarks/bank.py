"""Trust benchmark: no run that is wrong may say nothing, healthy or with bad settings.

python tests/benchmarks/bank.py               # the whole bank, NumPyro's HMCECS beside it
python tests/benchmarks/bank.py --write       # and into docs/bank.md
python tests/benchmarks/bank.py --small       # three models
python tests/benchmarks/bank.py --step ScalableMH
python tests/benchmarks/bank.py --references  # makes the full-data posteriors anew, with nutpie
"""

import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from _bank import PROBLEMS
from _bank_peers import METHOD as THEIRS
from _bank_peers import runs as peer_runs
from _bank_references import full_data, save
from _bank_runs import EXACT_SETTINGS, HEALTHY, SETTINGS, STEPS, Cell, runs
from _bank_runs import METHOD as OURS
from _measure import Checks, command_line, table

TABLE = Path(__file__).parents[2] / "docs" / "bank.md"
SMALL = ("logistic", "linear", "intercepts")
# Of healthy runs, the share that may fail although they are right.
FALSE_ALARMS = 0.05


HEADER = ["model", "setting", "rows", "mean", "sd", "verdict", "outcome", "what failed"]
OUTCOMES = ("right", "told", "refused", "SILENT", "false alarm")
TOTALS = ["settings", "runs", "wrong", *OUTCOMES]

TEXT = """
# Trust benchmark: good and bad settings

Is a run ever wrong without reporting it? Each model below is sampled as it should be, with
`pms.HMCECS()` or `pms.ScalableMH()` and several seeds, and in settings that are bad on purpose.
The draws of every run are compared with the posterior of all rows, which NUTS has sampled with at
least 4,000 effective draws, and the run's own verdict is read from its report.
`tests/benchmarks/bank.py --write` makes this page, one method at a time with `--step`.

**Settings.** Runs have four chains of 1,000 draws after 1,000 of tuning.

- *reference 10 sd off*: `reference=` is 10 posterior standard deviations from the posterior mean,
  in each parameter (*each*, with random signs) or as a vector in a random direction (*jointly*,
  by the posterior's covariance), both in unconstrained space.
- *order 1, order 0*: `control_variate_order=`, with the `subsample_size` that order 2 chose.
- *20 rows*: `subsample_size=20`.
- *outlier*: one row is made a gross outlier, in the outcome or in the predictors. The run is
  compared with the full-data posterior that includes it. *rows without it*: with the
  `subsample_size` chosen for the data without the outlier, so that its row is hardly ever drawn.

`ScalableMH` has no order and no subsample size, so it is tested in the other settings. The column
*rows* has the rows of a subsample, or the rows that decide on a draw.

**Right or wrong.** *mean* is the largest error of a posterior mean, in standard deviations, and
*sd* the largest relative error of a standard deviation, over all elements of the free variables.
A run is wrong if, for any of the d elements, the error of the mean exceeds 0.1, or the error of
the standard deviation 5%, by more than z Monte Carlo standard errors of run and full-data
posterior together. z is the normal quantile at which 2 d two-sided comparisons are wrong once in a
hundred runs. Here it is 3.2 to 3.7, which lets a run of 4,000 effective draws be off by about 0.16
and 9%.

**Verdict.** *pass*, *warn* or *fail* is the status of `pms.report`, without an audit. *refused*
means that there was no run, but an error that gives the reason.

| outcome | |
|---|---|
| right | not wrong, and no failure reported |
| told, refused | the run reported failure or was refused; in a healthy setting it is also wrong |
| SILENT | wrong, and no failure reported |
| false alarm | failure reported or refused in a healthy setting, although not wrong |
"""

TEXT_THEIRS = """
NumPyro's HMCECS takes reference point and number of rows from its user. Here they are the mean of
the full-data posterior, which no user has, and the number that `pms.HMCECS()` chose. It has 10
blocks, two chains and trees of at most 255 steps. It reports nothing about its subsamples: only
R-hat and effective draws can show a failure, and here they count as if it had looked at them.
"""


def references(names):
    for name in names:
        for outlier in (False, True):
            start, problem = perf_counter(), PROBLEMS[name]
            reference = full_data(problem, outlier)
            save(problem, outlier, reference)
            found = reference.moments
            print(
                f"{name}{', outlier' if outlier else ''}: {found.ess:,.0f} effective draws, R-hat "
                f"{found.rhat:.4f}, {perf_counter() - start:.0f} s",
                flush=True,
            )


def ours(name, seeds, method=OURS):
    """Cells of one problem; runs in a process of its own."""
    settings = SETTINGS if method == OURS else EXACT_SETTINGS
    return list(runs(PROBLEMS[name], settings, seeds, STEPS[method], method))


def peer(name, rows):
    """Cells of NumPyro's HMCECS, in a process of its own."""
    with warnings.catch_warnings(action="ignore"):
        return list(peer_runs(PROBLEMS[name], rows))


def gather(pool, method, run, tasks, kept):
    """Cells of one method: those of an earlier run, and new ones, kept as they arrive."""
    done = [c for c in kept.cells() if c.method == method]
    missing = [task for task in tasks if task[0] not in {c.problem for c in done}]
    for future in as_completed([pool.submit(run, *task) for task in missing]):
        found = future.result()
        done += found
        kept.add(found)
        spent = sum(c.seconds for c in found)
        print(f"{method}, {found[0].problem}: {len(found)} runs, {spent:.0f} s", flush=True)
    order = [task[0] for task in tasks]
    chosen = [c for c in done if c.problem in order]
    return sorted(chosen, key=lambda c: (order.index(c.problem), SETTINGS.index(c.setting)))


class Kept:
    """Cells in a file of JSON lines, so that a run that was interrupted goes on; or nowhere."""

    def __init__(self, path):
        self.path = path

    def cells(self):
        if self.path is None or not self.path.exists():
            return []
        return [Cell(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def add(self, cells):
        if self.path is not None:
            with self.path.open("a") as file:
                file.writelines(json.dumps(asdict(c)) + "\n" for c in cells)


def lines(cells):
    """A line per model and setting, seeds of healthy runs together."""
    groups = {}
    for cell in cells:
        groups.setdefault((cell.problem, cell.setting), []).append(cell)
    for (problem, setting), group in groups.items():
        worst = [max(getattr(c, k) for c in group) for k in ("mean_error", "sd_error")]
        outcomes = [c.outcome for c in group]
        counts = [f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes)]
        why = dict.fromkeys(reason for c in group for reason in c.why.split(", ") if reason)
        yield [
            problem,
            setting,
            f"{max(c.rows for c in group):,}" if group[0].rows else "",
            *("" if np.isnan(w) else f"{w:.2f}" if w < 10 else f"{w:.3g}" for w in worst),
            "/".join(dict.fromkeys(c.status for c in group)),
            ", ".join(counts) if len(group) > 1 else outcomes[0],
            ", ".join(why),
        ]


def totals(cells):
    for name, kind in (("healthy", True), ("bad", False)):
        chosen = [c for c in cells if (c.setting == HEALTHY) == kind]
        counts = [sum(c.outcome == o for c in chosen) for o in OUTCOMES]
        yield [name, len(chosen), sum(c.wrong for c in chosen), *counts]


def document(tables, page):
    """The text of docs/bank.md: sections of the methods that ran, others as they were."""
    known = {part.split("\n", 1)[0]: part.strip() for part in page.split("\n## ")[1:]}
    for method, cells in tables.items():
        text = [method, *([TEXT_THEIRS.strip()] if method == THEIRS else [])]
        text += [markdown(TOTALS, totals(cells)), markdown(HEADER, lines(cells))]
        known[method] = "\n\n".join(text)
    return (
        "\n\n".join([TEXT.strip(), *(f"## {known[m]}" for m in (*STEPS, THEIRS) if m in known)])
        + "\n"
    )


def markdown(header, rows):
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, rule, *rows])


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--small", action="store_true", help=f"only {', '.join(SMALL)}")
    parser.add_argument("--models", nargs="+", choices=PROBLEMS, help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="healthy runs per model")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--step", choices=STEPS, default=OURS)
    parser.add_argument("--no-peers", action="store_true", help="without NumPyro's HMCECS")
    parser.add_argument("--cells", type=Path, help="file that keeps cells, to go on after a stop")
    parser.add_argument("--write", action="store_true", help="write the table into docs/bank.md")
    parser.add_argument("--references", action="store_true", help="make the full-data posteriors")
    args = parser.parse_args()
    names = args.models or (SMALL if args.small else list(PROBLEMS))
    if args.references:
        references(names)
        sys.exit()

    start, kept, tables = perf_counter(), Kept(args.cells), {}
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        tasks = [(name, args.seeds, args.step) for name in names]
        cells = tables[args.step] = gather(pool, args.step, ours, tasks, kept)
        print(f"{perf_counter() - start:.0f} s in all", flush=True)
        if args.step == OURS and not args.no_peers and find_spec("numpyro"):
            rows = {c.problem: c.rows for c in cells if c.setting == HEALTHY}
            tasks = [(name, rows[name]) for name in names]
            tables[THEIRS] = gather(pool, THEIRS, peer, tasks, kept)
    for method, found in tables.items():
        print(f"\n{method}: largest errors over parameters, in posterior sds and relative")
        table(HEADER, lines(found))
        print()
        table(TOTALS, totals(found))
    print()
    checks = Checks()
    silent = sum(c.outcome == "SILENT" for c in cells)
    checks.at_most("runs that are wrong and say nothing", silent, 0)
    healthy = [c for c in cells if c.setting == HEALTHY]
    checks.at_most("healthy runs that are wrong", sum(c.wrong for c in healthy), 0)
    alarms = sum(c.outcome == "false alarm" for c in healthy)
    checks.at_most(
        f"share of {len(healthy)} healthy runs that fail although right",
        alarms / len(healthy),
        FALSE_ALARMS,
    )
    if args.write:
        TABLE.write_text(document(tables, TABLE.read_text()))
        print(f"wrote {TABLE}")
    checks.exit()
