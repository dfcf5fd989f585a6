"""Simulation-based calibration: p-values of uniform ranks, with and without the correction.

python tests/benchmarks/calibration.py                        # 320 replications
python tests/benchmarks/calibration.py --replications 1000
"""

import logging
import sys
import time
from pathlib import Path

from _measure import Checks, command_line, table

parser = command_line(__doc__, replications=320, seed=1)
args = parser.parse_args()

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
logging.getLogger("pymc").setLevel(logging.ERROR)

from sbc import BINS, DRAWS, N_ROWS, calibrate  # noqa: E402

HARD = {"order": 1, "subsample_size": 40}
RUNS = [
    ("logistic", {}),
    ("unknown sigma", {}),
    ("hierarchical logistic", {}),
    ("unknown sigma", HARD),
    ("unknown sigma", HARD | {"corrected": False}),
]

print(
    f"{args.replications} data sets of {N_ROWS} rows; rank among {DRAWS} draws, chi-square over "
    f"{BINS} bins; smallest p-value over parameters and log-likelihood, times their number"
)
lines, found = [], []
for name, settings in RUNS:
    start = time.perf_counter()
    result = calibrate(name, args.replications, seed=args.seed, **settings)
    found.append(result.p_value())
    lines.append(
        [
            name,
            settings.get("order", 2),
            f"{result.subsample_size:.0f}",
            "yes" if settings.get("corrected", True) else "no",
            f"{result.variance:.2g}",
            f"{result.p_value():.2g}",
            f"{time.perf_counter() - start:.0f}",
        ]
    )
table(["model", "order", "rows", "corrected", "mean variance", "p-value", "seconds"], lines)

checks = Checks()
checks.at_least("calibrated: smallest p-value", min(found[:-1]), 1e-5)
checks.at_most("correction left out: p-value", found[-1], 1e-5)
checks.exit()
