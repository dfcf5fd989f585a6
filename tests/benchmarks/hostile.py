"""Hostile trial: every sampler on models that are made to mislead it, and on healthy ones.

python tests/benchmarks/hostile.py                     # all of it, resumed where it stopped
python tests/benchmarks/hostile.py --write             # and into docs/hostile.md
python tests/benchmarks/hostile.py --small             # three models, four samplers
python tests/benchmarks/hostile.py --references        # makes the full-data posteriors anew
"""

import faulthandler
import json
import linecache
import signal
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
import pymc as pm
from _bank_references import DISTANCE, Reference, load, moments, save
from _bank_runs import HEALTHY, Judged, errors, outcome, quiet, verdict
from _hostile import TARGETS
from _hostile_rows import FAMILY as AWKWARD
from _hostile_units import FAMILY as UNITS
from _measure import Checks, command_line, table
from bank import markdown

import pymc_subsample as pms

REFERENCES = Path(__file__).with_name("hostile_references.json")
PAGE = Path(__file__).parents[2] / "docs" / "hostile.md"
BEGIN, END = "<!-- hostile trial: begin -->", "<!-- hostile trial: end -->"
SEED, DRAWS, TUNE, CHAINS = 5, 1_000, 1_000, 4
# Processor seconds of a run.
LIMIT = 240
# ConfidenceMH reads most rows of data as small as these.
FEWER = {"ConfidenceMH": 2}
SMALL = (
    ["logistic_units", "square", "spins"],
    ["HMCECS", "MinibatchBarkerMH", "SGHMC", "AusterityGibbs"],
)
# Of healthy runs that are right, the share that may fail.
FALSE_ALARMS = 0.02

TAYLOR = {
    "HMCECS": pms.HMCECS,
    "HMCECS, NUTS": partial(pms.HMCECS, kernel="nuts"),
    "HMCECS, block-Poisson": partial(pms.HMCECS, estimator="block-poisson"),
}
TESTS = {
    "MinibatchBarkerMH": pms.MinibatchBarkerMH,
    "AusterityMH": pms.AusterityMH,
    "ConfidenceMH": pms.ConfidenceMH,
}
GRADIENTS = {
    name: getattr(pms.sgmcmc, name)
    for name in ("SGLD", "PSGLD", "SVRGLD", "SGHMC", "SGNHT", "ClusteredSGHMC", "EWSG")
}
FIREFLY = {"FireflyMC": pms.FireflyMC}
EXACT = {"ScalableMH": pms.ScalableMH}
GIBBS = {"AusterityGibbs": pms.AusterityGibbs}
SAMPLERS = TAYLOR | TESTS | GRADIENTS | FIREFLY | EXACT | GIBBS
# Tried on every model.
ALWAYS = ("HMCECS", "ScalableMH")

# Settings that are bad on purpose are tried on one healthy model of either kind.
ATTACKED = {False: "logistic_units", True: "spins"}
FAMILIES = (
    HEALTHY, "several modes", "no gradient", "few informative rows", "outliers and tails",
    "hierarchies", "flat directions and units", "bounds", AWKWARD, UNITS, "binary",
    "bad settings",
)  # fmt: skip
OUTCOMES = ("right", "told", "refused", "SILENT", "false alarm", "error")


@dataclass(frozen=True)
class Trial(Judged):
    """One run: `setting` is empty, or how the sampler was spoiled."""

    sampler: str
    target: str
    setting: str
    family: str

    @property
    def key(self):
        return self.sampler, self.target, self.setting


# What is run


def settings(sampler: str, reference: Reference) -> dict[str, dict]:
    """Arguments and numbers of draws that spoil a sampler, by name."""
    found = {"no tuning": {"tune": 0}, "50 draws": {"draws": 50, "tune": 50}}
    if sampler in GIBBS:
        return found | {
            "epsilon 0.45": {"epsilon": 0.45}, "batches of 2": {"batch_size": 2, "epsilon": 0.3}
        }  # fmt: skip
    found["reference 10 sd off"] = {"reference": reference.far["each"]}
    if sampler in TAYLOR:
        least = 30 if sampler.endswith("block-Poisson") else 4
        found[f"subsamples of {least}"] = {"subsample_size": least}
        found["no control variates"] = {"control_variate_order": 0, "subsample_size": 390}
        found["target_accept 0.01"] = {"target_accept": 0.01}
    elif sampler in TESTS:
        found["batches of 2"] = {"batch_size": 2}
        found["no control variates"] = {"control_variate_order": None}
        found["large proposals"] = {"proposal": pms.proposals.RandomWalk(scale=30.0)}
        loose = {"AusterityMH": {"epsilon": 0.45}, "ConfidenceMH": {"delta": 0.9}}
        found["loose test"] = loose.get(sampler, {"max_error": 0.3, "batch_size": 2})
    elif sampler in GRADIENTS:
        found["batches of 2"] = {"batch_size": 2}
        found["no control variates"] = {"control_variate_order": None}
        found["steps 10 times as large"] = {"step_size": 10.0}
        found["steps 1,000 times smaller"] = {"step_size": 0.001}
        if sampler == "SVRGLD":
            del found["no control variates"]
    elif sampler in EXACT:
        found["bound of 1e-6"] = {"bound": 1e-6}
        found["target_accept 0.01"] = {"target_accept": 0.01}
        found["rows drawn 100 times as often"] = {"intensity": 100.0}
        found["trajectories of 100"] = {"path_length": 100.0}
    else:
        found["bound of 1e-6"] = {"bound": 1e-6}
        found["hardly any light changes"] = {"dark_to_bright": 1e-6}
    return found


def trials(target: str, samplers) -> list[tuple[str, str]]:
    """Samplers and settings of one model: every second sampler, and `ALWAYS`, for hostile ones."""
    chosen, found = TARGETS[target], []
    suited = [s for s in SAMPLERS if (s in GIBBS) == chosen.binary]
    if not chosen.healthy and not chosen.binary:
        turn = [n for n, t in TARGETS.items() if not t.healthy].index(target) % 2
        suited = [s for s in suited if s in ALWAYS or suited.index(s) % 2 == turn]
    for sampler in [s for s in suited if s in samplers]:
        found.append((sampler, ""))
        if target == ATTACKED[chosen.binary] and sampler != "HMCECS, NUTS":
            stand_in = Reference(None, {}, {"each": {}})
            found += [(sampler, s) for s in settings(sampler, stand_in)]
    return found


@cache
def truth(target: str) -> Reference:
    return load(TARGETS[target], False, REFERENCES)


def attempt(target: str, sampler: str, setting: str) -> Trial:
    """One run, judged."""
    chosen, start = TARGETS[target], perf_counter()
    reference = truth(target)
    model = chosen.model()
    judged = {name.split("[")[0] for name in reference.moments.names}
    names = [rv.name for rv in model.free_RVs if rv.name in judged]
    arguments = settings(sampler, reference)[setting] if setting else {}
    sizes = {"draws": DRAWS, "tune": TUNE} | {
        k: arguments.pop(k) for k in ("draws", "tune") if k in arguments
    }
    healthy = chosen.healthy and not setting and sampler not in chosen.unsuitable
    family = "bad settings" if setting else chosen.family
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with quiet():
            arguments = _in_units(sampler, model, arguments)
            step = SAMPLERS[sampler](model=model, **arguments)
            # Draws of effects, which are exact given the others, would take most of the time.
            stored = {"var_names": names} if family == UNITS else {}
            idata = pm.sample(
                **sizes, **stored, chains=FEWER.get(sampler, CHAINS), cores=1, step=step,
                model=model, random_seed=SEED, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
            run = moments(idata["posterior"].to_dataset(), names)
            *sizes_of_errors, wrong = errors(run, reference.moments)
            status, why = verdict(idata)
    except Exception as error:
        sizes_of_errors, wrong = (np.nan, np.nan), False
        status = "refused" if is_refusal(error) else "error"
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
        if status == "error":
            traceback.print_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    came = "error" if status == "error" else outcome(HEALTHY if healthy else "", wrong, status)
    judged = *sizes_of_errors, bool(wrong), status, why, came, perf_counter() - start
    return Trial(*judged, sampler, target, setting, family)


def _in_units(sampler, model, arguments):
    """Step sizes are multiples of the sampler's own."""
    if "step_size" not in arguments:
        return arguments
    own = SAMPLERS[sampler](model=model).steps.size
    return arguments | {"step_size": arguments["step_size"] * own}


def is_refusal(error: Exception) -> bool:
    """Whether the package, or PyMC, raised it on purpose: at a line that says so."""
    if isinstance(error, pm.exceptions.SamplingError):
        return True
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(pms.__file__).parent in Path(frame.filename).parents
    return ours and linecache.getline(frame.filename, frame.lineno).strip().startswith("raise ")


def too_long(*_):
    raise TimeoutError(f"longer than {LIMIT} CPU s")


def runs(target: str, samplers, done: set, path: Path | None) -> list[Trial]:
    """All missing runs of a model, in a process apart, kept as they come."""
    faulthandler.enable()
    signal.signal(signal.SIGPROF, too_long)
    found = []
    for sampler, setting in trials(target, samplers):
        if (sampler, target, setting) in done:
            continue
        trial = attempt(target, sampler, setting)
        found.append(trial)
        print(
            f"{trial.outcome:12}{target}, {sampler}{setting and ', '}{setting}: {trial.status} "
            f"{trial.mean_error:.2f} {trial.sd_error:.2f} {trial.why[:150]} "
            f"({trial.seconds:.0f} s)",
            flush=True,
        )
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
    return found


def kept(path: Path | None) -> list[Trial]:
    if path is None or not path.exists():
        return []
    return [Trial(**json.loads(line)) for line in path.read_text().splitlines()]


def make_reference(name: str):
    chosen, start = TARGETS[name], perf_counter()
    model = chosen.model()
    found = chosen.truth(model)
    far = {}
    if name == ATTACKED[False]:
        signs = np.random.default_rng(SEED).choice([-1.0, 1.0], len(found.mean))
        (variable,) = {n.split("[")[0] for n in found.names}
        far = {"each": {variable: found.mean + DISTANCE * signs * found.sd}}
    save(chosen, False, Reference(found, {}, far), REFERENCES)
    print(f"{name}: {found.ess:,.0f} effective draws, {perf_counter() - start:.0f} s", flush=True)


# Tables


COLUMNS = ("runs", "right", "told", "of these wrong", "refused", "SILENT", "false alarms", "errors")


def counts(chosen: list[Trial]):
    told = [t for t in chosen if t.outcome == "told"]
    number = {o: sum(t.outcome == o for t in chosen) for o in OUTCOMES}
    wrong = sum(t.wrong for t in told)
    return [
        len(chosen), number["right"], len(told), wrong, number["refused"], number["SILENT"],
        number["false alarm"], number["error"],
    ]  # fmt: skip


def by(found: list[Trial], attribute: str, names):
    for name in names:
        chosen = [t for t in found if getattr(t, attribute) == name]
        if chosen:
            yield [name, *counts(chosen)]
    yield ["all", *counts(found)]


def tables(found):
    return (
        (["sampler", *COLUMNS], list(by(found, "sampler", SAMPLERS))),
        (["models", *COLUMNS], list(by(found, "family", FAMILIES))),
    )


def write(found):
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    middle = "\n\n".join(markdown(*t) for t in tables(found))
    PAGE.write_text(f"{before}{BEGIN}\n\n{middle}\n\n{END}{after}")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--small", action="store_true", help="three models, four samplers")
    parser.add_argument("--models", nargs="+", choices=TARGETS, help="default: all")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, help="default: all")
    parser.add_argument("--cells", type=Path, help="file that keeps runs, to go on after a stop")
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    parser.add_argument("--references", action="store_true", help="make the full-data posteriors")
    args = parser.parse_args()
    models = args.models or (SMALL[0] if args.small else list(TARGETS))
    samplers = args.samplers or (SMALL[1] if args.small else list(SAMPLERS))
    if args.references:
        for name in models:
            make_reference(name)
        sys.exit()

    found = [t for t in kept(args.cells) if t.target in models and t.sampler in samplers]
    done = {t.key for t in found}
    missing = [
        name
        for name in models
        if not all((s, name, setting) in done for s, setting in trials(name, samplers))
    ]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=8) as pool:
        for name in missing:
            found += pool.submit(runs, name, samplers, done, args.cells).result()
    for t in tables(found):
        print()
        table(*t)
    print()
    checks = Checks()
    silent = sum(t.outcome == "SILENT" for t in found)
    checks.at_most("runs that are wrong and say nothing", silent, 0)
    died = sum(t.outcome == "error" for t in found)
    checks.at_most("runs that end in an internal error", died, 0)
    alarms = sum(t.outcome == "false alarm" for t in found)
    healthy = alarms + sum(
        t.outcome == "right" and TARGETS[t.target].healthy and not t.setting for t in found
    )
    checks.at_most(
        f"share of {healthy} healthy runs that fail although right", alarms / max(healthy, 1),
        FALSE_ALARMS,
    )  # fmt: skip
    if args.write:
        write(found)
    checks.exit()
