"""Run every benchmark in turn, print all tables, and at the end all that was compared with a bound.

python tests/benchmarks/run_all.py            # full size
python tests/benchmarks/run_all.py --readme   # what the README says
python tests/benchmarks/run_all.py --small    # does everything run?

Ratios and errors carry over to other machines; the commit and the load are printed beside them.
"""

import os
import subprocess
import sys
from pathlib import Path

from _measure import command_line, provenance

SMALL = {
    "advise": "--only small laplace --draws 100",
    "auto": "--n 2000 --draws 300 --models mixture panel logistic_miles",
    "gradient": "--rounds 3",
    "panels": "--units 200 --draws 500 --rounds 3 --m 100",
    "populations": "--units 300 --draws 300 --models sleepstudy",
    "local_variables": "--units 300 --draws 300 --models zero_inflation --ways auto nutpie",
    "gibbs_mrf": "--variables 30 --batch 50 --sweeps 200 --truth 5000 --updates 40",
    "startup": "--rows 20000",
    "setup_cost": "--rows 2000 --banks series --only com_poisson",
    "worst_case": "--n 1000 10000 --tests 16",
    "transition_rate": "--n 20000 --rounds 3",
    "barker_mixture": "--n 100000 --draws 500 --seeds 2 --full-draws 10",
    "barker_mnist": "--n 26000 --own 5000 --draws 100 --full-draws 5",
    "austerity_mnist": "--transitions 40 --decisions 100 --reference-draws 1000 --chains 2",
    "austerity_kdd99": "--rows 20000 --batch 200 --budget 60 --chains 2 --reference-draws 40",
    "confidence_normal": "--n 5000 --draws 50 --tune 50 --chains 1",
    "confidence_gaussian": "--n 10000 100000 --tests 50",
    "confidence_covertype": "--n 20000 --draws 20 --tune 100 --cheap-draws 300",
    "minibatch_covertype": "--n 20000 --draws 1000 --peer-draws 500",
    "scalable": "--rows 10000 --parameters 5 --draws 500",
    "exact_models": "--n 2000 --models Poisson --draws 500 --reference-draws 300",
    "mhss": "--n 5000 --parameters 5 --draws 500 --their-draws 2000",
    "firefly": "--n 20000 --draws 500 --tune 300",
    "higgs": "--n 100000 --draws 500 --full-rows 5000",
    "signed": "--draws 2000 --sweep-rows 20000 --sweep-draws 500",
    "ewsg_gaussian": "--chains 400 --replicates 100 --time 100",
    "sg_covertype": "--rows 20000 --chains 4",
    "sg_higgs": "--n 50000 --draws 200 --tune 300 --m 100",
    "sg_mnist_network": "--rows 2000 --passes 2 --chains 2",
    "sg_peers": "--n 20000 --steps 2000 --turns 2 --pairs 100",
    "bank": "--small --no-peers --seeds 1",
    "hostile": "--small",
    "calibration": "--replications 40",
    "written": "--n 2000 --only logistic_miles poisson_noncentred",
    "other_steps": "--n 2000 --only logistic_miles --steps SGHMC",
    "rows_on_disk": "--small --limit 0",
    "panels_on_disk": "--small",
    "scaling": "--n 10000 100000 --draws 500",
    "wide": "--small",
    "passes": "--small",
    "per_draw": "--n 20000 --draws 1000 --tune 100 --rounds 1 --steps HMCECS SGLD",
    "loo": "--n 3000 --tall 20000",
    "covertype": "--n 20000 --draws 6000",
    "logistic": "--n 20000 --draws 6000 --peer-draws 200",
    "picture": "--rows 1000 10000 --draws 2000",
}
README = ["picture", "logistic", "rows_on_disk", "bank"]

NEED_DATA = {
    "covertype",
    "minibatch_covertype",
    "barker_mnist",
    "austerity_mnist",
    "austerity_kdd99",
    "confidence_covertype",
    "sg_covertype",
    "sg_mnist_network",
}

parser = command_line(__doc__)
parser.add_argument("--small", action="store_true", help="small sizes: the bounds need not hold")
which = parser.add_mutually_exclusive_group()
which.add_argument("--only", nargs="+", choices=SMALL, default=list(SMALL))
which.add_argument("--readme", dest="only", action="store_const", const=README)
args = parser.parse_args()

failed, compared = [], []
for name in args.only:
    print(f"\n=== {name} ===\n{provenance()}", flush=True)
    if name in NEED_DATA and "PYMC_SUBSAMPLE_DATA" not in os.environ:
        print("skipped: set PYMC_SUBSAMPLE_DATA to the folder that holds the data sets")
        continue
    script = Path(__file__).with_name(f"{name}.py")
    options = SMALL[name].split() if args.small else []
    command = [sys.executable, "-u", str(script), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            print(line, end="", flush=True)
            if line.startswith(("pass  ", "FAIL  ")):
                compared.append(f"{line[:6]}{name}: {line[6:].rstrip()}")
    if running.returncode:
        failed.append(name)
print(f"\n=== in short ===\n{provenance()}", *compared, sep="\n")
print(f"\nbounds missed or script failed: {', '.join(failed)}" if failed else "\nall bounds met")
sys.exit(bool(failed))
