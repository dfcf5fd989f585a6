"""What the benchmarks share: timed runs through ``pm.sample``, tables and checks."""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np


def provenance():
    """What was measured, and how busy the machine is: a line to print beside every table."""
    here = Path(__file__).parent

    def git(*command):
        found = subprocess.run(["git", *command], cwd=here, capture_output=True, text=True)
        return found.stdout.strip()

    changed = ", with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pymc", "pytensor", "numba"))
    return (
        f"commit {git('rev-parse', '--short', 'HEAD') or 'unknown'}{changed}; {versions}; "
        f"load {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors"
    )


def empty_compile_cache():
    """Environment of empty caches for PyTensor, Numba and Python's own bytecode.

    The first two count if set before they are imported, the last in processes started with it.
    """
    folder = tempfile.mkdtemp(prefix="benchmark-cache-")
    flags = [flag for flag in os.environ.get("PYTENSOR_FLAGS", "").split(",") if flag]
    return {
        "PYTENSOR_FLAGS": ",".join([*flags, f"base_compiledir={folder}/pytensor"]),
        "NUMBA_CACHE_DIR": f"{folder}/numba",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "PYTHONDONTWRITEBYTECODE": "",
    }


def result_of(command, limit, environment=()):
    """Return what a process prints as JSON on its last line, or an error.

    It may take `limit` CPU seconds.
    """
    most = int(limit)
    found = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | dict(environment),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
    )  # fmt: skip
    if found.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"error": f"more than {most} s"}
    if found.returncode:
        return {"error": found.stderr.strip().splitlines()[-1][:200]}
    return json.loads(found.stdout.splitlines()[-1])


class Run(NamedTuple):
    """Posterior draws of one sampler (draws by parameters) and what they cost."""

    name: str
    draws: np.ndarray
    seconds: float  # for the draws after tuning alone
    total: float  # with set-up, compilation and tuning
    note: str = ""
    projected: bool = False  # the draws are a smaller problem's: no use for accuracy
    evaluations: float = np.nan  # of rows, for the draws after tuning

    @property
    def effective(self):
        from arviz_stats.base import array_stats

        return float(
            min(
                array_stats.ess(self.draws[None, :, j], method="bulk")
                for j in range(self.draws.shape[1])
            )
        )

    def row(self):
        rate, total_rate = self.effective / self.seconds, self.effective / self.total
        return [
            self.name,
            len(self.draws),
            self.effective,
            self.seconds,
            rate,
            self.total,
            total_rate,
            self.note,
        ]


QUIET = {"cores": 1, "progressbar": False, "quiet": True, "compute_convergence_checks": False}
HEADER = ["sampler", "draws", "min ESS", "s", "ESS/s", "s, all", "ESS/s, all", "note"]


class Clock:
    """Callback of ``pm.sample`` that adds up the time between draws after tuning."""

    def __init__(self, time=perf_counter):
        self.time, self.last, self.seconds = time, time(), 0.0

    def __call__(self, trace, draw):
        now = self.time()
        if not draw.tuning:
            self.seconds += now - self.last
        self.last = now


def one_by_one(step):
    """Let a step that began a chain be called with any points, making one draw at a time."""
    type(step).left_alone, step.thread = 1, None


def values_of(idata, names):
    """Draws of all elements of some variables, shape (chains, draws, elements)."""
    draws = [idata["posterior"][name].values for name in names]
    return np.concatenate([d.reshape(*d.shape[:2], -1) for d in draws], axis=2)


def sample_step(
    name, model, make, var="beta", *, draws, tune=1000, chains=1, seed=1, time=perf_counter, **more
):
    """Run the step that `make` returns through ``pm.sample``; also returns PyMC's result.

    `var` is a variable's name, or several. Chains run one after another. Set-up, compilation
    included, counts as part of the total. `time` tells the time: processor time is that of a quiet
    machine on a busy one.
    """
    import pymc as pm

    clock, start = Clock(time), time()
    with model:
        idata = pm.sample(
            draws,
            tune=tune,
            step=make(),
            chains=chains,
            cores=1,
            progressbar=False,
            random_seed=seed,
            callback=clock,
            **more,
        )
    total = time() - start
    values = values_of(idata, [var] if isinstance(var, str) else var)
    values = values.reshape(chains * draws, -1)
    evaluations = float(idata["sample_stats"]["n_evaluations"].sum())
    return Run(name, values, clock.seconds, total, evaluations=evaluations), idata


def sample_hmcecs(model, var="beta", *, draws, tune=1000, seed=1, **kwargs):
    """Run ``pms.HMCECS`` on one chain through ``pm.sample``; also returns PyMC's result."""
    import pymc_subsample as pms

    run, idata = sample_step(
        "pymc_subsample HMCECS", model, lambda: pms.HMCECS(**kwargs), var,
        draws=draws, tune=tune, seed=seed,
    )  # fmt: skip
    stats = idata["sample_stats"]
    rates = {
        "acceptance": "acceptance_rate",
        "subset acceptance": "subset_accepted",
        "steps": "n_steps",
    }
    note = ", ".join(
        [f"m = {int(stats['subsample_size'].values[0, -1])}"]
        + [f"{name} {float(stats[key].mean()):.2f}" for name, key in rates.items()]
    )
    return run._replace(note=note), idata


def sample_batches(step, draws, *, tune=0, seed=1, start=None):
    """One chain of a minibatch Metropolis-Hastings step; its draws by name and its statistics.

    The step is on the context stack's model, and warnings about the benchmark's own settings
    (temperature, few draws) are left out.
    """
    import pymc as pm

    idata = pm.sample(
        draws, tune=tune, step=step, chains=1, random_seed=seed, initvals=start, **QUIET
    )
    draws = {str(name): v.values[0] for name, v in idata["posterior"].data_vars.items()}
    names = [str(name) for name in idata["sample_stats"].data_vars if name != "warning"]
    return draws, {name: idata["sample_stats"][name].values[0] for name in names}


def table(header, rows):
    def text(cell):
        if cell is None or isinstance(cell, str):
            return cell or ""
        return f"{cell:,.0f}" if isinstance(cell, int) or abs(cell) >= 1000 else f"{cell:.3g}"

    cells = [[text(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    print("\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]]), flush=True)


class Checks:
    """Bounds that a benchmark must meet, printed as they are checked."""

    def __init__(self):
        self.failed = False

    def at_most(self, what, value, bound):
        self._report(what, value, "<=", bound, value <= bound)

    def at_least(self, what, value, bound):
        self._report(what, value, ">=", bound, value >= bound)

    def _report(self, what, value, sign, bound, passed):
        self.failed |= not passed
        print(
            f"{'pass' if passed else 'FAIL'}  {what}: {value:,.4g} (must be {sign} {bound:,g})",
            flush=True,
        )

    def accuracy(self, run, exact):
        """Posterior means, sds and effective draws against the exact full-data posterior."""
        self.at_least(f"{run.name}: effective draws", run.effective, 4000)
        mean_error, sd_error = exact.errors(run.draws)
        self.at_most(f"{run.name}: largest error of a mean, in sds", mean_error, 0.1)
        self.at_most(f"{run.name}: largest relative error of an sd", sd_error, 0.05)

    def exit(self):
        sys.exit(int(self.failed))


def command_line(description: str, **defaults: float) -> argparse.ArgumentParser:
    """Parser of a benchmark's command line, with numbers by name and their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser
