"""Ctrl-C at any time leaves the interpreter alive and the draws in hand.

Trials are forked: a child samples with compiled transitions while its timer raises
KeyboardInterrupt at random times, and its exit status says how it ended.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
from importlib import import_module

import numba
import numpy as np
import pymc as pm
import pytest
from exact_cases import pairs
from numba import types
from steps_of_all_kinds import STEPS

from pymc_subsample.compiled.functions import address_of, generator_at
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.hmc_ecs import kernel as hmc
from pymc_subsample.samplers.registry import step_of

# Called from Python, by module of `samplers`.
ENTRY_POINTS = [
    ("minibatch.acceptance", "decisions"),
    ("firefly.kernel", "transitions"),
    ("gibbs.kernel", "sweeps"),
    ("gradients.gradient_estimates", "forces"),
    ("minibatch.kernel", "transitions"),
]
# One for each entry point of a draw, where 12 to 43% of all interrupts were fatal.
QUICK = ["HMCECS", "MinibatchBarkerMH", "FireflyMC", "SGLD", "AusterityGibbs"]
SLOW = [step.__name__ for step in STEPS if step.__name__ not in QUICK]

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def logistic(n=2000, d=3):
    rng = np.random.default_rng(1)
    X, beta = rng.normal(size=(n, d)), rng.normal(0, 0.5, d)
    y = rng.random(n) < 1 / (1 + np.exp(-X @ beta))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return model


def made(name):
    model = pairs() if name == "AusterityGibbs" else logistic()
    return model, step_of(name)(model=model)


def interrupted(work, n_children, n_interrupts, longest):
    """Interrupt `work` in forked children; return the exit status of each."""
    statuses = []
    for seed in range(n_children):
        child = os.fork()
        if child == 0:
            os._exit(_interrupt(work, n_interrupts, longest, random.Random(seed)))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return statuses


def _interrupt(work, n_interrupts, longest, random):
    """Exit status of a child: 0 when each interrupt arrived as a KeyboardInterrupt."""
    try:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for _ in range(n_interrupts):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(longest / 10, longest))
                while True:
                    work()
            except KeyboardInterrupt:
                pass
    except BaseException:
        return 1
    return 0


def assert_survives(name, n_children, n_interrupts):
    model, step = made(name)
    step.setup_chain(np.random.default_rng(3), 20, 10**6)
    point = model.initial_point()
    for _ in range(20):
        point, _ = step.step(point)

    def again():
        step.left = None  # from one point over and over, which a run never does
        step.ahead.forget()
        step.step(point)

    statuses = interrupted(again, n_children, n_interrupts, 0.002)
    assert statuses == [0] * n_children


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", QUICK)
def test_interrupts_are_survived(name):
    """Before the mend this passed once in 100,000 runs: (1 - 0.12) ** 100."""
    assert_survives(name, n_children=10, n_interrupts=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK + SLOW)
def test_many_interrupts_are_survived(name):
    assert_survives(name, n_children=100, n_interrupts=20)


def test_a_crash_is_noticed():
    statuses = interrupted(lambda: os.kill(os.getpid(), signal.SIGKILL), 2, 1, 0.002)
    assert statuses == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(("module", "name"), ENTRY_POINTS)
def test_entry_points_take_no_generator(module, name):
    """numba would run Python to take it apart."""
    entry = getattr(import_module(f"pymc_subsample.samplers.{module}"), name)
    [signature] = entry.signatures
    assert not any(isinstance(kind, types.NumPyRandomGeneratorType) for kind in signature)


@pytest.mark.parametrize("module", [hmc, langevin])
def test_transitions_made_of_parts_take_no_generator(module):
    kinds = module._SIGNATURE.args
    assert not any(isinstance(kind, types.NumPyRandomGeneratorType) for kind in kinds)


@numba.njit
def _draws(address, normals, uniforms):
    rng = generator_at(address)
    for i in range(len(normals)):
        normals[i] = rng.standard_normal()
        uniforms[i] = rng.random()
    return rng.integers(0, 10**6)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_a_generator_by_address_draws_the_same(bits):
    ours, theirs = (np.random.Generator(bits(5)) for _ in range(2))
    normals, uniforms = np.empty((2, 1000))
    last = _draws(address_of(ours), normals, uniforms)
    expected = [(theirs.standard_normal(), theirs.random()) for _ in range(1000)]
    np.testing.assert_array_equal(np.transpose([normals, uniforms]), expected)
    assert last == theirs.integers(0, 10**6)
    assert ours.random() == theirs.random()  # both are in the same state


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", ["HMCECS", "SGLD"])
def test_an_interrupted_run_returns_its_draws(name):
    """Python drops an interrupt that comes within a `__del__`: as users do, ask again."""
    model, step = made(name)
    delays = itertools.cycle([0.02, 0.013, 0.031, 0.017, 0.029])

    def interrupt(trace, draw):
        if draw.draw_idx % 5_000 == 100:
            signal.setitimer(signal.ITIMER_REAL, next(delays))

    def run():
        return pm.sample(
            50_000, tune=50, step=step, model=model, chains=1, cores=1, progressbar=False,
            random_seed=1, callback=interrupt, compute_convergence_checks=False,
        )  # fmt: skip

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        idata = None
        while idata is None:
            try:
                idata = run()
            except SystemError as error:  # it came while PyTensor's own function of the trace ran
                if "numba_funcified_fgraph" not in str(error):
                    raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    draws = idata["posterior"]["beta"].to_numpy()
    assert 51 <= draws.shape[1] < 50_000
    assert np.all(np.isfinite(draws))


_ONE_BY_ONE = """
import os, signal, pymc as pm
from tests.chain import test_interrupts
seen = {}
def say(trace, draw):
    seen[draw.chain] = draw.draw_idx
    if draw.chain == AT and draw.draw_idx == WHEN:
        os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model, step = test_interrupts.made("HMCECS")
    idata = pm.sample(
        6_000, tune=1_000, step=step, model=model, chains=3, cores=1, progressbar=False,
        random_seed=1, callback=say, compute_convergence_checks=False,
    )
    sizes = idata["posterior"].sizes
    print(*seen.values(), sizes["chain"], sizes["draw"], flush=True)
"""


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("at", "when"), [(0, 400), (1, 1_600), (1, 6_000)])
def test_an_interrupt_of_one_core_ends_one_chain(at, when, tmp_path):
    """As the page on results says: the others go on, and most draws in all are returned."""
    script = tmp_path / "interrupted.py"
    script.write_text(_ONE_BY_ONE.replace("AT", str(at)).replace("WHEN", str(when)))
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, check=True, timeout=120,
    )  # fmt: skip
    *last, chains, draws = map(int, done.stdout.split())
    assert len(last) == 3
    assert when <= last[at] < 6_999
    assert all(x == 6_999 for k, x in enumerate(last) if k != at)
    kept = max(last[at] - 1_000, 0)
    assert (chains, draws) == (2, 6_000) if 3 * kept < 12_000 else (3, pytest.approx(kept, abs=1))


# A shell ignores Ctrl-C for what it runs in the background, and children inherit that.
_CHAINS = """
import signal, pymc as pm
from tests.chain import test_interrupts
def say(trace, draw):
    if draw.draw_idx == 100:
        print("running", flush=True)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model, step = test_interrupts.made("HMCECS")
    idata = pm.sample(
        200_000, tune=50, step=step, model=model, chains=2, cores=2, progressbar=False,
        random_seed=1, callback=say, mp_ctx="{context}", compute_convergence_checks=False,
    )
    print("draws", idata["posterior"].sizes["draw"], flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_interrupted_workers_return_their_draws(context, tmp_path):
    """Ctrl-C in a terminal goes to the workers as well."""
    script = tmp_path / "interrupted.py"
    script.write_text(_CHAINS.replace("{context}", context))
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "running\n"
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    lines = output.split()
    assert process.returncode == 0
    assert lines[-2] == "draws"
    assert 0 < int(lines[-1]) < 200_000
