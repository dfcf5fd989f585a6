"""Time from process start to the first draw of the demo model, caches empty and warm.

The caches are PyTensor's and Numba's compiled functions and Python's bytecode.

python tests/benchmarks/startup.py
"""

import argparse
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def first_draw(rows):
    """Print when the imports, the model, the step and the first draw were ready, and stop there."""
    sys.path.insert(0, str(EXAMPLES))
    import flights
    import pymc as pm

    import pymc_subsample as pms

    moments = [time.time()]
    model = flights.build_model(flights.load_data(rows))
    moments.append(time.time())

    def stop(trace, draw):
        print(*moments, time.time(), flush=True)
        os._exit(0)

    with model:
        step = pms.HMCECS()
        moments.append(time.time())
        pm.sample(step=step, chains=1, cores=1, progressbar=False, random_seed=1, callback=stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, help="rows of the demo's data; all of them if not given"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        first_draw(args.rows)

    from _measure import Checks, empty_compile_cache, table

    print("Seconds from process start to the first draw of the demo model")
    environment, rows = os.environ | empty_compile_cache(), []
    command = [
        sys.executable,
        __file__,
        "--child",
        *(["--rows", str(args.rows)] if args.rows else []),
    ]
    for cache in ("empty", "warm"):
        start = time.time()
        output = subprocess.run(
            command, env=environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout
        moments = [start, *map(float, output.splitlines()[-1].split())]
        rows.append(
            [
                cache,
                *(end - begin for begin, end in pairwise(moments)),
                moments[-1] - start,
            ]
        )
    table(["caches", "imports", "model", "step", "first draw", "total"], rows)
    print()
    checks = Checks()
    checks.at_most("seconds with empty caches", rows[0][-1], 30)
    checks.at_most("seconds with warm caches", rows[1][-1], 6)
    checks.exit()
