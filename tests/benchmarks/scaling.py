"""Time per draw and peak memory of set-up and sampling, one fresh process per number of rows.

python tests/benchmarks/scaling.py                          # n = 100,000 and 10,000,000
python tests/benchmarks/scaling.py --n 10000 100000 --draws 500
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

GB = 1e9


def resident(field):
    """``VmRSS`` or ``VmHWM`` (its peak) of this process, in bytes; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def measure(n, d, draws, tune):
    import numpy as np
    import pymc as pm
    from _problems import logistic_model, logistic_rows

    import pymc_subsample as pms

    imports = resident("VmRSS")
    X, y = logistic_rows(n, d)
    data = X.nbytes + y.nbytes
    model = logistic_model(X, y, 1.0)
    del X, y  # the model holds a copy
    forget_peak()
    times, peaks = [], {}

    def callback(
        trace, draw
    ):  # the peak is read here: PyMC copies pm.Data into the result after the last draw
        times.append(perf_counter())
        if draw.draw_idx == tune + draws - 1:
            peaks["sampling"] = resident("VmHWM")

    with model:
        step = pms.HMCECS()
        peaks["set-up"] = resident("VmHWM")
        idata = pm.sample(
            draws, tune=tune, step=step, chains=1, cores=1, progressbar=False, random_seed=1,
            callback=callback,
        )  # fmt: skip
    stats = idata["sample_stats"]
    times = np.diff(times[tune:])[:-1]  # the last draw checks the chain
    return {
        "n": n,
        "m": int(stats["subsample_size"].values[0, -1]),
        "steps": float(stats["n_steps"].mean()),
        "draw": float(np.mean(times)),
        "step": float(times.sum() / stats["n_steps"].values[0, 1:-1].sum()),
        "data": data,
        "imports": imports,
        "set-up": peaks["set-up"],
        "peak": peaks["sampling"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--d", type=int, default=30)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.n[0], args.d, args.draws, args.tune)))
        sys.exit()

    from _measure import Checks, table

    print(f"Scaling: logistic regression, d = {args.d}, each size in a fresh process")
    results = []
    for n in args.n:
        command = [
            sys.executable,
            __file__,
            "--child",
            "--n",
            n,
            "--d",
            args.d,
            "--draws",
            args.draws,
        ]
        output = subprocess.run(
            [*map(str, command), "--tune", str(args.tune)],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout
        results.append(json.loads(output.splitlines()[-1]))
    table(
        ["n", "m", "steps/draw", "us/draw", "us/step", "data GB", "imports", "set-up peak", "peak"],
        [
            [r["n"], r["m"], r["steps"], 1e6 * r["draw"], 1e6 * r["step"]]
            + [r[key] / GB for key in ("data", "imports", "set-up", "peak")]
            for r in results
        ],
    )
    print()
    checks = Checks()
    first, last = results[0], results[-1]
    checks.at_most(
        f"time per draw, n = {last['n']:,} over n = {first['n']:,}",
        last["draw"] / first["draw"],
        1.3,
    )
    for r in results:
        checks.at_most(
            f"n = {r['n']:,}: peak memory in GB, imports included",
            r["peak"] / GB,
            1.25 * r["data"] / GB + 1,
        )
    checks.exit()
