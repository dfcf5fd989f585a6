"""Samplers other than HMCECS on models as people write them.

python tests/benchmarks/other_steps.py                    # five models, six samplers
python tests/benchmarks/other_steps.py --only lkj_slopes --steps SGLD FireflyMC

Each run has a process of its own. Means and sds are judged as in written.py, against HMCECS, whose
own are compared with NUTS on all rows there.
"""

import argparse
import json
import sys
import time

from _measure import Checks, command_line, result_of, table

MODELS = (
    "logistic_miles", "bambi_varying_slopes", "poisson_noncentred", "lkj_slopes", "hsgp_matern",
)  # fmt: skip
# Draws of each of two chains, after as many of tuning.
DRAWS = {
    "HMCECS": 4_000,
    "MinibatchBarkerMH": 20_000,
    "AusterityMH": 20_000,
    "ConfidenceMH": 20_000,
    "FireflyMC": 4_000,
    "SGLD": 40_000,
    "SGHMC": 40_000,
}
REFERENCE = "HMCECS"


def child(args):
    import logging
    import warnings

    import pymc as pm
    from _written import MODELS as written
    from written import draws_of

    import pymc_subsample as pms
    from pymc_subsample.samplers.registry import step_of

    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    model, draws = written[args.model](args.n), DRAWS[args.step]
    names = [rv.name for rv in model.free_RVs]
    before = time.process_time()
    with model:
        try:
            step = step_of(args.step)()
        except (pms.TallModelError, ValueError) as error:
            print(json.dumps({"status": "refused", "why": str(error).split(". ")[0]}))
            return
        idata = pm.sample(
            draws, tune=min(draws, 10_000), step=step, chains=2, cores=1, random_seed=args.seed,
            progressbar=False, var_names=names, compute_convergence_checks=False,
        )  # fmt: skip
    found = pms.report(idata)
    print(json.dumps({
        "status": found.status,
        "why": ", ".join(f.name for f in found.findings if f.status != "pass"),
        "seconds": time.process_time() - before,
        **draws_of(idata["posterior"].to_dataset(), names),
    }))  # fmt: skip


def run(model, step, args):
    command = [sys.executable, __file__, "--child", "--model", model, "--step", step]
    command += ["--n", str(args.n), "--seed", str(args.seed)]
    found = result_of(command, args.limit)
    return {"status": "stopped", "why": found["error"]} if "error" in found else found


def main(args):
    from written import judged

    rows, checks = [], Checks()
    for model in args.only or MODELS:
        reference = run(model, REFERENCE, args)
        for step in args.steps or [name for name in DRAWS if name != REFERENCE]:
            found = run(model, step, args)
            mean = sd = wrong = None
            if "ess" in found and "ess" in reference:
                mean, sd, wrong = judged(found, reference)
            said = {None: "", True: "wrong", False: "right"}[wrong]
            rows.append([model, step, found["status"], found["why"], found.get("ess"), mean, sd,
                         said, found.get("seconds")])  # fmt: skip
            print(*rows[-1], flush=True)
            failed = found["status"] == "stopped" and not found["why"].startswith("more than")
            silent = failed or (found["status"] == "pass" and wrong)
            checks.at_most(f"{model}, {step}: silently wrong, or an error", int(bool(silent)), 0)
    print()
    table(["model", "step", "says", "why", "ESS", "mean", "sd", "", "CPU s"], rows)
    checks.exit()


if __name__ == "__main__":
    parser = command_line(__doc__, n=10_000, seed=1)
    parser.add_argument("--only", nargs="+", help="models, of _written.py")
    parser.add_argument("--steps", nargs="+", help="samplers")
    parser.add_argument("--limit", type=float, default=300.0, help="CPU seconds per run")
    for name in ("model", "step"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    child(args) if args.child else main(args)
