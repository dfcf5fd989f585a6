"""Covertype, class 2 against the rest: accuracy on real, ordered data.

PYMC_SUBSAMPLE_DATA=<folder that holds covtype.npz> python tests/benchmarks/covertype.py
"""

from _measure import HEADER, Checks, command_line, sample_hmcecs, table
from _problems import covertype_rows, logistic_model
from _reference import exact_posterior

parser = command_line(__doc__, draws=10_000, tune=1000, seed=1)
parser.add_argument(
    "--n", type=int, help="rows, evenly spaced in file order; all of them if not given"
)
args = parser.parse_args()

PRIOR_SD = 10**0.5

X, y = covertype_rows()
if args.n:
    X, y = X[:: len(X) // args.n], y[:: len(y) // args.n]
print(f"Covertype, {len(y):,} rows, {X.shape[1]} coefficients, normal prior of variance 10")
exact = exact_posterior(X, y, PRIOR_SD)
print(exact)
run, _ = sample_hmcecs(
    logistic_model(X, y, PRIOR_SD), draws=args.draws, tune=args.tune, seed=args.seed
)
print()
table(HEADER, [run.row()])
print()
checks = Checks()
checks.accuracy(run, exact)
checks.exit()
