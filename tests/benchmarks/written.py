"""Models as people write them, with nothing rewritten for our sake, beside NUTS on all rows.

python tests/benchmarks/written.py                            # all models, 20,000 rows
python tests/benchmarks/written.py --n 300000 --only logistic_miles poisson_noncentred
python tests/benchmarks/written.py --results FILE             # goes on with the runs that it lacks

Each run has a process of its own, and each of our runs an empty cache of compiled code ("cold") or
the one that the run before it left ("warm"). Seconds are CPU seconds of all threads, from the model
to the draws, without importing packages. Those to 400 effective draws charge set-up and tuning as
they were and draws in proportion. `PyMC` has one short chain, for its rate. The reference is
nutpie's run or, where that takes longer than `--limit` or has not mixed, another with low-rank
adaptation that starts at the mode. The rule of right and wrong is the trust benchmark's.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from _measure import Checks, command_line, empty_compile_cache, result_of, table

CHAINS, DRAWS, TUNE = 2, 1_000, 1_000
PEER_DRAWS = 300
EFFECTIVE = 400
# What a user may wait for, in CPU seconds.
COLD, WARM = 20.0, 3.0
# One model in three forms, and how much faster the fastest may draw.
FORMS, RATIO = ("poisson_noncentred", "poisson_centred", "poisson_half_and_half"), 1.5


def cpu():
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


def ours(model, args):
    import pymc as pm

    import pymc_subsample as pms

    names = [rv.name for rv in model.free_RVs]
    start, wall = cpu(), time.perf_counter()
    with model:
        step = pms.HMCECS()
        step.step(model.initial_point())
        made, waited = cpu(), time.perf_counter()
        if args.draws == 0:
            return {"setup": made - start, "wall": waited - wall}
        clock = Clock()
        idata = pm.sample(
            args.draws, tune=TUNE, step=step, chains=CHAINS, cores=1, random_seed=args.seed,
            progressbar=False, var_names=names, callback=clock, compute_convergence_checks=False,
        )  # fmt: skip
    stats, found = idata["sample_stats"], pms.report(idata)
    return {
        "setup": made - start,
        "wall": waited - wall,
        "tuning": clock.tuning,
        "drawing": clock.drawing,
        "rows": int(stats["subsample_size"].values[:, -1].max()),
        "always": len(step.subsample.always),
        "steps": float(stats["n_steps"].mean()),
        "divergences": int(stats["diverging"].sum()),
        "status": found.status,
        "why": ", ".join(f.name for f in found.findings if f.status != "pass"),
        **draws_of(idata["posterior"].to_dataset(), names),
    }


class Clock:
    """CPU seconds of tuning and of drawing, over all chains."""

    def __init__(self):
        self.before, self.tuning, self.drawing = cpu(), 0.0, 0.0

    def __call__(self, trace, draw):
        now = cpu()
        if draw.tuning:
            self.tuning += now - self.before
        else:
            self.drawing += now - self.before
        self.before = now


def nutpie(model, args, initial=None, **options):
    import nutpie as peer

    names = [rv.name for rv in model.free_RVs]
    start = cpu()
    at = {} if initial is None else {"initial_points": initial, "jitter_rvs": set()}
    compiled = peer.compile_pymc_model(model, var_names=names, **at)
    made = cpu()
    idata = peer.sample(
        compiled, draws=args.draws, tune=TUNE, chains=CHAINS, cores=1, seed=args.seed,
        progress_bar=False, **options,
    )  # fmt: skip
    spent = cpu() - made
    tuning = float(idata["warmup_sample_stats"]["n_steps"].sum())
    drawing = float(idata["sample_stats"]["n_steps"].sum())
    return {
        "setup": made - start,
        "tuning": spent * tuning / (tuning + drawing),
        "drawing": spent * drawing / (tuning + drawing),
        "steps": drawing / (CHAINS * args.draws),
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
        **draws_of(idata["posterior"].to_dataset(), names),
    }


def from_mode(model, args):
    from _bank_references import _values

    import pymc_subsample as pms

    step = pms.HMCECS(model=model)
    theta = step.expansion.values(step.reference.theta)
    return nutpie(model, args, _values(model, theta), adaptation="low_rank")


def pymc(model, args):
    import pymc as pm

    names = [rv.name for rv in model.free_RVs]
    start, clock = cpu(), Clock()
    with model:
        idata = pm.sample(
            PEER_DRAWS, tune=PEER_DRAWS, chains=1, cores=1, random_seed=args.seed, callback=clock,
            progressbar=False, var_names=names, compute_convergence_checks=False,
        )  # fmt: skip
    return {
        "setup": cpu() - start - clock.tuning - clock.drawing,
        "tuning": clock.tuning,
        "drawing": clock.drawing,
        **draws_of(idata["posterior"].to_dataset(), names),
    }


def draws_of(posterior, names):
    from dataclasses import asdict

    from _bank_references import moments

    found = asdict(moments(posterior, names))
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


def child(args):
    import logging
    import warnings

    from _written import MODELS

    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    model = MODELS[args.model](args.n)
    sampler = {"HMCECS": ours, "nutpie": nutpie, "mode": from_mode, "PyMC": pymc}[args.sampler]
    print(json.dumps(sampler(model, args)), flush=True)


def run(model, sampler, args, draws=DRAWS, environment=()):
    command = [sys.executable, __file__, "--child", "--model", model, "--sampler", sampler]
    command += ["--n", str(args.n), "--seed", str(args.seed), "--draws", str(draws)]
    return result_of(command, args.limit, environment)


def to_effective(found):
    """CPU seconds to 400 effective draws: all of set-up and tuning, draws in proportion."""
    if "ess" not in found:
        return None
    return found["setup"] + found["tuning"] + found["drawing"] * EFFECTIVE / found["ess"]


def rate(found):
    """Effective draws per CPU second of drawing."""
    return found["ess"] / found["drawing"] if "ess" in found else None


def mixed(found):
    return found.get("ess", 0.0) >= EFFECTIVE and found["rhat"] <= 1.02


def judged(found, reference):
    from _bank_references import Moments
    from _bank_runs import errors

    def moments(run):
        arrays = {k: np.array(run[k]) for k in ("mean", "sd", "mean_error", "sd_error")}
        return Moments(names=run["names"], ess=run["ess"], rhat=run["rhat"], **arrays)

    return errors(moments(found), moments(reference))


def main(args):
    from _written import MODELS

    file = args.results
    done = {}
    if file and file.exists():
        done = {tuple(key): found for key, found in map(json.loads, file.open())}

    def result(model, sampler, **options):
        key = model, sampler, args.n, args.seed
        if key not in done:
            done[key] = run(model, sampler.removesuffix(", cold"), args, **options)
            if file:
                with file.open("a") as lines:
                    lines.write(json.dumps([key, done[key]]) + "\n")
        return done[key]

    rows, checks = [], Checks()
    for model in args.only or MODELS:
        cache = empty_compile_cache()
        cold = (
            result(model, "HMCECS, cold", draws=0, environment=cache.items()) if args.cold else {}
        )
        mine = result(model, "HMCECS", environment=cache.items() if args.cold else ())
        peers = reference = result(model, "nutpie") if args.peers else {}
        if args.peers and not mixed(reference):
            reference = result(model, "mode")
        peer = result(model, "PyMC") if args.pymc else {}
        error = mean = sd = wrong = None
        if "ess" in mine and "ess" in reference:
            mean, sd, wrong = judged(mine, reference)
        error = mine.get("error")
        rows.append([
            model, error or mine["status"], mine.get("rows"), mine.get("always"), mine.get("ess"),
            mean, sd, {None: "", True: "WRONG", False: "right"}[wrong], cold.get("setup"),
            mine.get("setup"), to_effective(mine), peers.get("ess"), to_effective(peers),
            to_effective(peer), rate(mine),
        ])  # fmt: skip
        print(*(f"{c:.3g}" if isinstance(c, float) else c for c in rows[-1]), flush=True)
    print()
    table(
        ["model", "says", "rows", "always", "ESS", "mean", "sd", "", "cold", "warm", "to 400",
         "nutpie's ESS", "to 400", "PyMC, to 400", "ESS/s"],
        rows,
    )  # fmt: skip
    for row in rows:
        checks.at_most(
            f"{row[0]}: wrong, failed or refused", int(row[7] != "right" or row[1] == "fail"), 0
        )
        if row[8]:
            checks.at_most(f"{row[0]}: CPU seconds of set-up, cold", row[8], COLD)
            checks.at_most(f"{row[0]}: CPU seconds of set-up, warm", row[9], WARM)
    rates = [row[-1] for row in rows if row[0] in FORMS and row[-1]]
    if len(rates) == len(FORMS):
        checks.at_most(f"draws per second, {', '.join(FORMS)}", max(rates) / min(rates), RATIO)
    checks.exit()


if __name__ == "__main__":
    parser = command_line(__doc__, n=20_000, seed=1)
    parser.add_argument("--only", nargs="+", help="models, of _written.py")
    parser.add_argument("--cold", action="store_true", help="also with an empty cache")
    parser.add_argument("--pymc", action="store_true", help="also PyMC's own NUTS")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="HMCECS alone")
    parser.add_argument("--limit", type=float, default=900.0, help="CPU seconds per run")
    parser.add_argument("--results", type=Path, help="one line per run is kept here")
    for name in ("model", "sampler"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--draws", type=int, default=DRAWS, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    child(args) if args.child else main(args)
