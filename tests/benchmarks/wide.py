"""Wide logistic regression: set-up, peak memory and time per draw at d = 500, and accuracy.

python tests/benchmarks/wide.py                                   # 10^6 rows of 500 float64
python tests/benchmarks/wide.py --n 1500000 --dtype float32
python tests/benchmarks/wide.py --small                           # 40,000 rows of 100
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

GB = 1e9


def wide_rows(n, d, dtype, seed=20, chunk=2**13):
    """Synthetic logistic regression, intercept first, made in chunks: its peak is the data's."""
    rng = np.random.default_rng(seed)
    beta = rng.normal(0, 1 / np.sqrt(d), d)
    X, y = np.empty((n, d), dtype), np.empty(n, dtype=np.int8)
    for start in range(0, n, chunk):
        rows = X[start : start + chunk]
        rows[:, 0] = 1
        rows[:, 1:] = rng.standard_normal((len(rows), d - 1), dtype=np.float32)
        y[start : start + chunk] = rng.random(len(rows)) < 1 / (1 + np.exp(-(rows @ beta)))
    return X, y


def wide_model(X, y, prior_sd):
    """A constant, since `pm.Data` would convert single precision to double."""
    import pymc as pm
    import pytensor.tensor as pt

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=pt.constant(X) @ beta, observed=y)
    return model


def timed_passes(step):
    """Seconds of a full-data pass with its P x P curvature, and of the largest parts of it."""
    from pymc_subsample.expansion.reference import reference_at

    expansion, theta = step.expansion, step.reference.theta
    start = perf_counter()
    for _ in expansion.chunks():
        pass
    read = perf_counter() - start
    start = perf_counter()
    reference_at(expansion, theta)
    return read, perf_counter() - start


def measure(args):
    """Set up and sample in this process, which should be fresh; write the draws to a file."""
    import pymc as pm
    from _measure import Clock
    from scaling import forget_peak, resident

    import pymc_subsample as pms

    imports = resident("VmRSS")
    X, y = wide_rows(args.n, args.d, args.dtype)
    data = X.nbytes + y.nbytes
    forget_peak()
    start = perf_counter()
    model = wide_model(X, y, args.prior_sd)
    del X, y
    clock = Clock()
    with model:
        step = pms.HMCECS()
        setup, setup_peak = perf_counter() - start, resident("VmHWM")
        idata = pm.sample(
            args.draws, tune=args.tune, step=step, chains=1, cores=1, progressbar=False,
            random_seed=args.seed, callback=clock,
        )  # fmt: skip
    peak = resident("VmHWM")
    read, whole = timed_passes(step)
    stats = idata["sample_stats"]
    np.savez(args.child, beta=idata["posterior"]["beta"].values[0])
    return {
        "data": data, "imports": imports, "setup": setup, "setup_peak": setup_peak, "peak": peak,
        "seconds": clock.seconds, "m": int(stats["subsample_size"].values[0, -1]),
        "steps": float(stats["n_steps"].mean()), "read": read, "pass": whole,
        "failed": int((idata["checks"]["failed"] > 0).sum()),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int)
    parser.add_argument("--d", type=int)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--prior-sd", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=9000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="40,000 rows of 100, to see it run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.n = args.n or (40_000 if args.small else 1_000_000)
    args.d = args.d or (100 if args.small else 500)
    if args.child:
        print(json.dumps(measure(args)))
        sys.exit()

    from _measure import Checks, Run, table
    from _reference import exact_posterior

    print(f"Wide logistic regression, n = {args.n:,}, d = {args.d}, {args.dtype}, a fresh process")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "draws.npz")
        options = ["n", "d", "dtype", "prior_sd", "draws", "tune", "seed"]
        command = [sys.executable, __file__, "--child", path]
        for name in options:
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
        r = json.loads(output.splitlines()[-1])
        with np.load(path) as saved:
            draws = saved["beta"]
    run = Run("pymc_subsample HMCECS", draws, r["seconds"], r["setup"] + r["seconds"])
    table(
        ["m", "steps/draw", "ms/draw", "min ESS", "ESS/s", "set-up s", "pass s", "of it reading"],
        [
            [r["m"], r["steps"], 1e3 * r["seconds"] / args.draws, run.effective]
            + [run.effective / run.seconds, r["setup"], r["pass"], r["read"]]
        ],
    )
    table(
        ["data GB", "imports", "set-up peak", "peak"],
        [[r[key] / GB for key in ("data", "imports", "setup_peak", "peak")]],
    )
    X, y = wide_rows(args.n, args.d, args.dtype)
    exact = exact_posterior(X, y, args.prior_sd)
    print(f"{exact}\n")
    checks = Checks()
    checks.at_most("peak memory in GB, imports included", r["peak"] / GB, 1.25 * r["data"] / GB + 2)
    checks.at_most("checks at the end of the chain that failed", r["failed"], 0)
    checks.accuracy(run, exact)
    checks.exit()
