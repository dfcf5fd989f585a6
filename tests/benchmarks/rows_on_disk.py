"""Rows on disk, more than memory holds: what making them, set-up, draws and memory take.

python tests/benchmarks/rows_on_disk.py                         # 10^8 rows of 10 columns, 4.1 GB
python tests/benchmarks/rows_on_disk.py --small --folder /mnt/large

Logistic regression on standard normal columns of single precision. The rows are made from blocks,
then sampled by processes of their own: with all of the machine's memory, with `--limit` MB of it,
pages of the file included (a control group, for which one has to be root), and, for comparison, as
a model with 10^6 rows in memory. Before the run with a limit the file leaves the system's cache,
where what others have read would count for nothing. Errors are those against the posterior mode and
curvature, by Newton's method on all rows in plain NumPy: of that many rows the posterior is normal.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from _measure import QUIET, Checks, command_line, table
from _on_disk import MB, Peak, parsed, run, status

BLOCK, SEED = 2**18, 8
IN_MEMORY = 1_000_000


def truth(d):
    return np.random.default_rng(SEED).normal(0, 0.3, d)


def blocks(n, d, seed=SEED):
    beta = truth(d).astype("float32")
    for k, start in enumerate(range(0, n, BLOCK)):
        rng = np.random.default_rng([seed, k])
        X = rng.standard_normal((min(BLOCK, n - start), d), dtype="float32")
        p = 1 / (1 + np.exp(-X @ beta))
        yield {"X": X, "y": (rng.random(len(X), dtype="float32") < p).astype("int8")}


def make(folder, n, d):
    """Make the rows."""
    import pymc_subsample as pms

    before, start = status("RssAnon"), perf_counter()
    peak = Peak()
    for block in blocks(n, d):  # what the numbers themselves cost
        del block
    drawn = perf_counter() - start
    rows = pms.Rows.from_blocks(blocks(n, d), n, cache=folder / "x.rows", progressbar=False)
    seconds = perf_counter() - start - 2 * drawn
    size = (folder / "x.rows" / "rows.bin").stat().st_size
    return {
        "seconds": seconds, "bytes": size, "row bytes": size // len(rows), "n": len(rows),
        "memory": peak.end() - before,
    }  # fmt: skip


def regression(data):
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=data["X"].shape[1])
        X, y = pm.Data("X", data["X"]), pm.Data("y", data["y"])
        pm.Bernoulli("late", logit_p=X @ beta, observed=y)
    return model


def refit(folder, n, d):
    """Append a hundredth of the rows; set up from an earlier run's values, and without."""
    import logging

    import xarray as xr

    import pymc_subsample as pms
    from pymc_subsample.expansion.reference import reference_at

    rows, seconds = pms.Rows.open(folder / "x.rows"), {}
    logging.getLogger("pymc.subsample").setLevel(logging.ERROR)
    values = pms.HMCECS(model=regression(rows.sample(5_000)), data=rows).reference_values()
    draws = {"beta": (("chain", "draw", "k"), values["beta"][None, None])}
    earlier = xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})
    rows.append(blocks(n // 100, d, SEED + 1), progressbar=False)
    model, steps = regression(rows.sample(5_000)), {}
    for name, given in (("refit", {"reference": earlier}), ("anew", {})):
        start = perf_counter()
        steps[name] = pms.HMCECS(model=model, data=rows, **given)
        seconds[name] = perf_counter() - start
    at = steps["refit"].reference
    error = np.max(np.abs(at.slope - reference_at(steps["anew"].expansion, at.theta).slope))
    return seconds | {"error": float(error)}


def sample(folder, n, d, draws):
    """Sample rows on disk, or so many in memory; without a folder."""
    import pymc as pm
    from arviz_stats.base import array_stats

    import pymc_subsample as pms

    if folder is None:
        several = list(blocks(n, d))
        data = {name: np.concatenate([b[name] for b in several]) for name in ("X", "y")}
        rows, several = None, None
    else:
        rows = pms.Rows.open(folder / "x.rows")
        data = rows.sample(5_000)
    before, peak, times = status("RssAnon"), Peak(), []
    start = perf_counter()
    with regression(data):
        step = pms.HMCECS(data=rows)
        ready = perf_counter()
        idata = pm.sample(
            draws, tune=1_000, step=step, chains=1, random_seed=1, **QUIET,
            callback=lambda trace, draw: times.append(perf_counter()),
        )  # fmt: skip
    beta = idata["posterior"]["beta"].values[0]
    ess = [float(array_stats.ess(beta[None, :, j], method="bulk")) for j in range(d)]
    return {
        "set-up": ready - start, "tuning": times[999] - ready,
        # The last draw checks the chain.
        "draw": float(np.mean(np.diff(times[1_000:-1]))), "memory": peak.end() - before,
        "mean": beta.mean(0).tolist(), "sd": beta.std(0, ddof=1).tolist(), "ess": ess,
        "rows": int(idata["sample_stats"]["subsample_size"].values[0, -1]),
        "report": str(pms.report(idata).status),
    }  # fmt: skip


def posterior(folder, d):
    """Mode and standard deviations, by passes over the file."""
    import pymc_subsample as pms

    rows = pms.Rows.open(folder / "x.rows")
    X, y, n = rows.column("X"), rows.column("y"), len(rows)
    beta = truth(d)
    for _ in range(3):
        slope, curvature = -beta, np.eye(d)
        for i in range(0, n, BLOCK):
            x = X[i : i + BLOCK].astype(float)
            p = 1 / (1 + np.exp(-x @ beta))
            slope = slope + x.T @ (y[i : i + BLOCK] - p)
            curvature = curvature + (x * (p * (1 - p))[:, None]).T @ x
        step = np.linalg.solve(curvature, slope)
        beta = beta + step
    sd = np.sqrt(np.diag(np.linalg.inv(curvature)))
    assert np.all(np.abs(step) < 1e-3 * sd), step / sd
    return {"mean": beta.tolist(), "sd": sd.tolist()}


def drop_pages(folder):
    """Take the rows out of the system's cache: a group is not charged for pages that are there."""
    file = os.open(folder / "x.rows" / "rows.bin", os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


CHILDREN = {"make": make, "sample": sample, "posterior": posterior, "refit": refit}


def main():
    parser = command_line(__doc__, n=100_000_000, d=10, draws=5_000)
    parser.add_argument("--limit", type=int, default=1_500, help="MB of memory; 0: no such run")
    args = parsed(parser, CHILDREN)
    n, d, draws = (2_000_000, args.d, 500) if args.small else (args.n, args.d, args.draws)
    with TemporaryDirectory(dir=args.folder) as folder:
        of = {"d": d, "folder": folder}
        made = run("make", n=n, **of)
        size = made["bytes"]
        print(f"{n:,} rows of {made['row bytes']} bytes, {size / 1e9:.2f} GB")
        print(f"made in {made['seconds']:.1f} s beside drawing the numbers: "
              f"{n / made['seconds'] / 1e6:.2f} million rows per second, "
              f"{made['memory'] / MB:.0f} MB of memory\n")  # fmt: skip
        exact = run("posterior", **of)
        limit = args.limit * MB
        on_disk = {"what": "sample", "n": n, "draws": draws, **of}
        in_memory = {"what": "sample", "n": min(n, IN_MEMORY), "d": d, "draws": draws}
        results = {
            f"{in_memory['n']:,} rows in memory": run(**in_memory),
            "on disk": run(**on_disk),
            f"{in_memory['n']:,} in memory, again": run(**in_memory),
        }
        if limit:
            drop_pages(Path(folder))
            results[f"on disk, {args.limit:,} MB of memory"] = run(**on_disk, limit=limit)
        again = run("refit", n=n, **of)
    mean, sd = np.array(exact["mean"]), np.array(exact["sd"])
    lines, checks = [], Checks()
    for name, r in results.items():
        far = np.abs(np.array(r["mean"]) - mean) / sd
        off = np.abs(np.array(r["sd"]) / sd - 1)
        own = "on disk" in name
        lines.append([
            name, r["set-up"], r["tuning"], 1e6 * r["draw"], r["rows"], r["memory"] / MB,
            min(r["ess"]), far.max() if own else None, off.max() if own else None, r["report"],
        ])  # fmt: skip
    header = ["", "set-up, s", "tuning, s", "us/draw", "rows", "MB", "min ESS"]
    table([*header, "mean, sds", "sd", "report"], lines)
    print("MB: private memory above that before set-up, at most. tuning: 1,000 draws.\n")
    print(f"set-up with 1% more rows: {again['anew']:.2f} s, {again['refit']:.2f} s from an "
          f"earlier run; gradients differ by {again['error']:.1g}\n")  # fmt: skip
    first, warm, last, *limited = results.values()
    base = min(first["draw"], last["draw"])
    checks.at_most("time per draw, on disk over in memory", warm["draw"] / base, 1.3)
    for name, r in [("all memory", warm), *(("limited memory", r) for r in limited)]:
        checks.at_most(f"{name}: private memory in GB", r["memory"] / 1e9, 1)
        # Of 2 d comparisons one fails by Monte Carlo error alone once in a thousand runs.
        error = 3.9 if args.d == 10 else 4.5
        far = np.abs(np.array(r["mean"]) - mean) / sd * np.sqrt(np.array(r["ess"]))
        checks.at_most(f"{name}: mean in Monte Carlo errors", far.max(), error)
        off = np.abs(np.array(r["sd"]) / sd - 1) * np.sqrt(2 * np.array(r["ess"]))
        checks.at_most(f"{name}: sd in Monte Carlo errors", off.max(), error)
    checks.exit()


if __name__ == "__main__":
    main()
