"""Tall logistic regression: effective draws per second beside NumPyro and nutpie, and accuracy.

python tests/benchmarks/logistic.py                 # n = 1,000,000, d = 30
python tests/benchmarks/logistic.py --n 20000 --draws 6000 --peer-draws 200
"""

import os

from _measure import HEADER, Checks, command_line, empty_compile_cache, sample_hmcecs, table

parser = command_line(
    __doc__, n=1_000_000, d=30, prior_sd=1.0, draws=10_000, tune=1000, peer_draws=1000, seed=1
)
parser.add_argument(
    "--peers", nargs="*", choices=["numpyro", "nutpie"], default=["numpyro", "nutpie"]
)
parser.add_argument("--no-ours", action="store_true", help="run the peers alone")
parser.add_argument(
    "--warm", action="store_true", help="use the existing compile cache, not an empty one"
)
args = parser.parse_args()

if not args.warm:
    os.environ.update(empty_compile_cache())

from _peers import numpyro_hmcecs, nutpie_all_rows  # noqa: E402
from _problems import logistic_model, logistic_rows  # noqa: E402
from _reference import exact_posterior  # noqa: E402

print(f"Logistic regression, n = {args.n:,}, d = {args.d}, normal prior with sd {args.prior_sd:g}")
X, y = logistic_rows(args.n, args.d)
exact = exact_posterior(X, y, args.prior_sd)
print(exact)

runs = {}
if not args.no_ours:
    model = logistic_model(X, y, args.prior_sd)
    runs["ours"], _ = sample_hmcecs(model, draws=args.draws, tune=args.tune, seed=args.seed)
budget = {"draws": args.peer_draws, "tune": args.tune, "seed": args.seed}
if "numpyro" in args.peers:
    runs["numpyro"] = numpyro_hmcecs(X, y, args.prior_sd, exact.mode, **budget)
    runs["numpyro, float32"] = numpyro_hmcecs(X, y, args.prior_sd, exact.mode, **budget, x64=False)
if "nutpie" in args.peers:
    runs["nutpie"] = nutpie_all_rows(X, y, args.prior_sd, **budget)

print()
table(
    [*HEADER[:-1], "mean error / sd", "sd error", "note"],
    [
        [*run.row()[:-1], *(("", "") if run.projected else exact.errors(run.draws)), run.note]
        for run in runs.values()
    ],
)
print()
checks = Checks()
BOUNDS = {"numpyro": 40, "nutpie": 1000}
if "ours" in runs:
    ours = runs.pop("ours")
    checks.accuracy(ours, exact)
    for name, run in runs.items():
        if name in BOUNDS:
            ratio = (ours.effective / ours.seconds) / (run.effective / run.seconds)
            checks.at_least(
                f"effective draws per second, ratio to {name}",
                ratio,
                BOUNDS[name],
            )
checks.exit()
