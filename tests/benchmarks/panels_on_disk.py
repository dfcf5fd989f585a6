"""A panel on disk, of more rows than one holds in memory: what making it, set-up and draws take.

python tests/benchmarks/panels_on_disk.py               # 10^7 rows of 10^6 units, 0.16 GB
python tests/benchmarks/panels_on_disk.py --n 1000000 --units 100000

Logistic regression with an intercept of each unit and one predictor; units have one row and more,
and rows come in no order. The rows are made from blocks, sorted by unit, then sampled by processes
of their own: all of them on disk, and as many as `--memory` in memory, which must give the same
draws as on disk. A hundredth more rows, of old and new units, are appended in the end. Seconds are
of the processor, all threads together, and memory is private memory above that before, at most.
"""

from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
from _measure import QUIET, Checks, command_line, table
from _on_disk import MB, Peak, parsed, run, status

BLOCK, SEED = 2**18, 4
TRUTH = {"mu": 0.3, "tau": 0.8, "slope": 0.5}


def blocks(n, units, seed=SEED, new=0):
    """Rows of units, and of so many new ones, in no order: some units have ten times as many."""
    effect = np.random.default_rng(SEED).standard_normal(units + new)
    for k, start in enumerate(range(0, n, BLOCK)):
        rng = np.random.default_rng([seed, k])
        size = min(BLOCK, n - start)
        unit = np.minimum((units + new) * rng.beta(1, 2, size), units + new - 1).astype("int32")
        x = rng.standard_normal(size, dtype="float32")
        eta = TRUTH["mu"] + TRUTH["tau"] * effect[unit] + TRUTH["slope"] * x
        yield {"unit": unit, "x": x, "late": rng.random(size) < 1 / (1 + np.exp(-eta))}


class Stage:
    """Seconds and memory of what is done within, by name."""

    def __init__(self, found, name):
        self.found, self.name = found, name

    def __enter__(self):
        self.memory, self.peak, self.start = status("RssAnon"), Peak(), process_time()

    def __exit__(self, *error):
        seconds = process_time() - self.start
        memory = (self.peak.end() - self.memory) / MB
        self.found[self.name] = {"seconds": seconds, "memory": max(memory, 0.0)}


def make(folder, n, units):
    import pymc_subsample as pms

    found = {}
    with Stage(found, "drawing the numbers"):
        for block in blocks(n, units):
            del block
    with Stage(found, "made, sorted by unit"):
        rows = pms.Rows.from_blocks(
            blocks(n, units), n, cache=folder / "x.rows", by="unit", progressbar=False
        )
    found["made, sorted by unit"]["seconds"] -= found.pop("drawing the numbers")["seconds"]
    assert (np.diff(rows["unit"][:100_000]) >= 0).all()
    return found | {"row bytes": (folder / "x.rows" / "rows.bin").stat().st_size // n}


def panel(data, units):
    import pymc as pm

    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        slope, z = pm.Normal("slope"), pm.Normal("z", shape=units)
        unit, x, late = (pm.Data(name, data[name]) for name in ("unit", "x", "late"))
        pm.Bernoulli("o", logit_p=mu + tau * z[unit] + slope * x, observed=late)
    return model


def sample(folder, units, draws, in_memory):
    import pymc as pm

    import pymc_subsample as pms

    found, rows, ticks = {}, pms.Rows.open(folder / "x.rows"), []
    data = {name: np.array(rows[name]) for name in rows.names} if in_memory else rows.sample(5_000)
    model = panel(data, units)
    given = {} if in_memory else {"data": rows}
    del data
    with model, Stage(found, "set up"):
        step = pms.HMCECS(**given)
    with model, Stage(found, "sampled"):
        idata = pm.sample(
            draws, tune=1_000, step=step, chains=1, random_seed=1, var_names=list(TRUTH),
            callback=lambda trace, draw: ticks.append(process_time()), **QUIET,
        )  # fmt: skip
    found["1,000 draws of tuning"] = {"seconds": ticks[999] - ticks[0]}
    found["one draw after it, us"] = {"seconds": 1e6 * float(np.mean(np.diff(ticks[1_000:-1])))}
    with Stage(found, "effects of 1,000 levels at 100 draws"):
        thin = idata.isel(draw=slice(None, None, max(1, draws // 100)))
        pms.effects(thin, model, "z", levels=range(1_000), **given)
    values = {name: idata.posterior[name].values[0].tolist() for name in TRUTH}
    told = int(idata.sample_stats["subsample_size"].values[0, -1])
    return {"stages": found, "draws": values, "units": told, "status": pms.report(idata).status}


def append(folder, n, units):
    import pymc_subsample as pms

    found, rows, new = {}, pms.Rows.open(folder / "x.rows"), units // 100
    with Stage(found, "1% more rows appended"):
        rows.append(blocks(n // 100, units, SEED + 1, new), progressbar=False)
    model = panel(rows.sample(5_000), units + new)
    with Stage(found, "set up again"):
        step = pms.HMCECS(model=model, data=rows)
    assert int(step.units.n_rows) == len(rows)
    return found


CHILDREN = {"make": make, "sample": sample, "append": append}


def main():
    parser = command_line(__doc__, n=10_000_000, draws=1_000)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--memory", type=int, default=1_000_000, help="rows in memory at most")
    args = parsed(parser, CHILDREN)
    n, units, draws = (30_000, 3_000, 200) if args.small else (args.n, args.units, args.draws)
    with TemporaryDirectory(dir=args.folder) as folder:
        made = run("make", folder=folder, n=n, units=units)
        print(f"{n:,} rows of {made.pop('row bytes')} bytes, {units:,} units\n")
        how = {"on disk": False} | ({"in memory": True} if n <= args.memory else {})
        results = {
            name: run("sample", folder=folder, units=units, draws=draws, in_memory=in_memory)
            for name, in_memory in how.items()
        }
        stages = {"on disk": made | results["on disk"]["stages"]}
        stages["on disk"] |= run("append", folder=folder, n=n, units=units)
        stages |= {name: r["stages"] for name, r in results.items() if name != "on disk"}
    lines = [
        [name, *(stages[how].get(name, {}).get(k) for how in stages for k in ("seconds", "memory"))]
        for name in stages["on disk"]
    ]
    table(["", *(f"{how}, {k}" for how in stages for k in ("s", "MB"))], lines)
    on_disk, checks = results["on disk"], Checks()
    print(f"{on_disk['units']} units a draw; report: {on_disk['status']}\n")
    for name, true in TRUTH.items():
        draws_of = np.array(on_disk["draws"][name])
        off = abs(draws_of.mean() - true) / draws_of.std()
        # Of three, one is beyond by chance once in a thousand runs.
        checks.at_most(f"{name}: true value, in standard deviations", off, 3.6)
    if "in memory" in results:
        apart = max(
            np.max(np.abs(np.subtract(results["in memory"]["draws"][k], on_disk["draws"][k])))
            for k in TRUTH
        )
        checks.at_most("draws on disk less those in memory", float(apart), 1e-9)
    most = max(stage.get("memory", 0.0) for stage in stages["on disk"].values())
    checks.at_most("private memory on disk in GB", most * MB / 1e9, 1)
    checks.exit()


if __name__ == "__main__":
    main()
