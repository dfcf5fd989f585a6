"""Processor seconds that a step's set-up takes, for the models of the banks, code not kept before.

Beside them is what PyMC takes to compile the model's gradient. Transitions, which are compiled once
for all models, are compiled beforehand.

python tests/benchmarks/setup_cost.py
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

# Beyond so many seconds a set-up is stopped, and missed its bound.
LIMIT = 150
# Functions that are made for a model; see `compiled.functions.compile_source` and
# `compiled.functions.compile_graph`.
OF_MODELS = (
    "anchor", "backward", "f", "forward", "gather", "gradient", "left", "level", "product",
    "residual", "row",
)  # fmt: skip


def models(bank, rows):
    """Functions that make the models of a bank, by name."""
    import _bank
    import _hostile
    import _hostile_rows  # whose models join the others
    import _hostile_units
    import _series
    import _written
    import models as small
    import numpy as np

    match bank:
        case "series":
            return {name: lambda f=f: f(rows) for name, f in _series.MODELS.items()}
        case "written":
            return {name: lambda f=f: f(rows, 0) for name, f in _written.MODELS.items()}
        case "small":
            return {
                name: lambda f=f: f(np.random.default_rng(0)) for name, f in small.MODELS.items()
            }
        case "bank":
            return {name: lambda p=p: p.model(p.rows()) for name, p in _bank.PROBLEMS.items()}
    assert {_hostile_rows.FAMILY, _hostile_units.FAMILY} <= {
        t.family for t in _hostile.TARGETS.values()
    }
    return {name: t.model for name, t in _hostile.TARGETS.items() if not t.binary}


def child(bank, name, rows, what):
    """Print the seconds of one set-up, or why there was none."""
    from time import process_time

    import pymc_subsample as pms
    from pymc_subsample.samplers.registry import step_of

    model = models(bank, rows)[name]()
    start = process_time()
    found = {}
    with model:
        if what == "PyMC":
            model.compile_dlogp()(model.initial_point())
        else:
            try:
                step_of(what)()
            except (ValueError, pms.TallModelError) as error:
                found = {"refused": str(error)[:60]}
    print(json.dumps({"seconds": process_time() - start, **found}))


def environment(kept):
    """A folder of kept code without that of models, and PyTensor's flags that name it."""
    folder = tempfile.mkdtemp(prefix="setup-cost-")
    of_model = shutil.ignore_patterns(*(f"{name}-*" for name in OF_MODELS), "*.py")
    shutil.copytree(kept, Path(folder) / "pymc_subsample", ignore=of_model)
    return folder, {"PYTENSOR_FLAGS": f"base_compiledir={folder}"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--banks", nargs="+", default=["series", "written", "bank", "hostile", "small"]
    )
    parser.add_argument("--steps", nargs="+", default=["PyMC", "HMCECS"])
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a step may take")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child[:2], args.rows, args.child[2])
        sys.exit()

    from _measure import Checks, result_of, table

    from pymc_subsample.compiled import cache

    rows, most = [], {}
    for bank in args.banks:
        for name in models(bank, args.rows):
            if args.only and name not in args.only:
                continue
            line = [bank, name]
            for step in args.steps:
                folder, flags = environment(cache.ROOT)
                options = ["--child", bank, name, step, "--rows", str(args.rows)]
                try:
                    found = result_of([sys.executable, __file__, *options], LIMIT, flags)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                seconds = found.get("seconds", float(LIMIT))
                said = found.get("refused", found.get("error", ""))
                line.append(f"{seconds:.1f}" + (f" ({said[:30]})" if said else ""))
                if step != "PyMC" and "refused" not in found:
                    most[bank, name, step] = seconds
            rows.append(line)
            print("  ".join(line), flush=True)
    print("\nProcessor seconds of set-up")
    table(["bank", "model", *args.steps], rows)
    worst = sorted(most, key=most.__getitem__, reverse=True)[:5]
    print()
    table(["worst", "model", "step", "s"], [[*key, most[key]] for key in worst])
    print()
    checks = Checks()
    for key in worst:
        checks.at_most(" ".join(key), most[key], args.limit)
    checks.exit()
