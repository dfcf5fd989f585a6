"""Compiled code on disk: never stale, never needed, nothing left elsewhere."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pymc as pm
import pytest
from filelock import FileLock

import pymc_subsample as pms
from pymc_subsample.compiled import cache
from pymc_subsample.compiled.keys import identity, kernel_sources

PACKAGE = cache.PACKAGE
SIGNATURE = numba.float64(numba.float64)


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """Keep compiled code in an empty directory."""
    monkeypatch.setattr(cache, "ROOT", tmp_path)
    monkeypatch.setattr(cache, "_warned", False)
    cache.directory.cache_clear()
    yield tmp_path
    cache.directory.cache_clear()


def increment(x):
    return x + 1.0


def compiled(key="k"):
    """Compile x + 1, or load it, as another process does; return it and whether it was loaded."""
    cache._made.clear()
    dispatcher = cache.compile_kept(increment, key, [SIGNATURE])
    assert dispatcher(1.0) == 2.0
    return dispatcher, sum(dispatcher.stats.cache_hits.values()) == 1


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_code_is_loaded_again(empty):
    assert [compiled()[1] for _ in range(3)] == [False, True, True]
    assert not compiled("other")[1]
    assert len(files(empty)) == 2


def test_a_process_has_each_function_once(empty):
    one = cache.compile_kept(increment, "k", [SIGNATURE])
    assert cache.compile_kept(lambda x: x, "k", [SIGNATURE]) is not one  # of another name
    assert cache.compile_kept(increment, "other", [SIGNATURE]) is not one
    assert cache.compile_kept(increment, None, [SIGNATURE]) is not one
    assert cache.compile_kept(increment, "k", [SIGNATURE]) is one


@pytest.mark.costly
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts memory as Linux does")
def test_thousands_of_models_of_one_form_fit_into_a_process():
    """Linux allows 65,530 parts of memory: with those of each model anew, 1,500 were too many."""

    def parts_after(seed):
        rng = np.random.default_rng(seed)
        with pm.Model():
            z, scale = pm.Normal("z", shape=4), pm.HalfNormal("scale")
            eta = scale * z[np.arange(400) % 4]
            pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 400))
            pms.HMCECS()
            pms.ScalableMH()
        return len(Path("/proc/self/maps").read_text().splitlines())

    parts = [parts_after(seed) for seed in range(5)]
    assert parts[4] - parts[1] < 10


def test_a_process_waits_for_another_that_compiles_the_same(empty, tmp_path_factory, monkeypatch):
    dispatcher, _ = compiled()
    [file] = files(empty)
    elsewhere = shutil.move(file, tmp_path_factory.mktemp("elsewhere") / file.name)
    codegen = dispatcher.targetctx.codegen()
    assert dispatcher._cache.path(SIGNATURE, codegen) == file
    with ThreadPoolExecutor() as threads, FileLock(f"{file}.lock"):
        found = threads.submit(compiled)
        time.sleep(0.5)
        assert not found.done()
        shutil.move(elsewhere, file)
        assert not found.done()
    assert found.result()[1]
    assert files(empty) == [file]


def test_a_process_that_sleeps_is_not_waited_for(empty, monkeypatch):
    compiled()
    [file] = files(empty)
    file.unlink()
    monkeypatch.setattr(cache, "_WAITED_SECONDS", 0.1)
    with FileLock(f"{file}.lock"):
        assert not compiled()[1]
    assert compiled()[1]


def test_an_error_leaves_no_lock(empty):
    def wrong(x):
        return x.nothing

    with pytest.raises(numba.TypingError):
        cache.compile_kept(wrong, "wrong", [SIGNATURE])
    assert files(empty) == []


def outer(factor, *, power=1, helper=None):
    @numba.njit
    def part(x):
        return factor * x**power

    def function(x):
        return part(x) if helper is None else helper(x)

    return function


def test_functions_are_told_apart_by_what_they_close_over():
    other = numba.njit(lambda x: x)
    made = [outer(2), outer(2.0), outer((2, "a")), outer(2, power=2), outer(2, helper=other)]
    made += [
        lambda x: x + 1,
        lambda x: x + 2,
    ]
    names = [identity(function) for function in made]
    assert len(set(names)) == len(names)
    assert identity(outer(2)) == names[0]
    assert identity(test_functions_are_told_apart_by_what_they_close_over).startswith(
        f"{__name__}.test_"
    )


def test_what_cannot_be_told_apart_is_not_kept():
    with pytest.raises(TypeError, match=r"part cannot be told from others.*`factor`.*ndarray"):
        identity(outer(np.ones(2)))


# Transitions

_TRANSITION = """
from numba.core import event
from pymc_subsample.kernels.dynamics import trajectory
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.samplers.hmc_ecs.kernel import transitions

class Compilations(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event):
        pass

with event.install_listener("numba:compile", Compilations()):
    transitions(PERTURBED, trajectory)
"""


@pytest.mark.slow
def test_a_transition_is_made_of_what_it_runs_and_kept(tmp_path):
    flags = {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "PYTHONPATH": str(PACKAGE.parent)}
    made = set(run(_TRANSITION, **flags)[0].split())
    assert {"transitions", "trajectory", "leapfrog", "perturbed"} <= made
    assert not {"tree", "block_poisson", "refresh_block_poisson"} & made
    assert run(_TRANSITION, **flags)[0] == ""


# A helper that changes


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, text=True,
        cwd=environment["PYTHONPATH"], capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def copied(tmp_path):
    """Copy the package; return the copy and the environment in which it is imported."""
    root = tmp_path / "site"
    shutil.copytree(PACKAGE, root / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return root / PACKAGE.name, {
        "PYTHONPATH": str(root),
        "PYTENSOR_FLAGS": f"base_compiledir={tmp_path / 'pytensor'}",
        # Python's own bytecode is known by the second in which a source was written.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


_ENTRY = """
import numba
from pymc_subsample.compiled.cache import kept
from pymc_subsample.kernels.probe_helper import helper

{decorator}
def entry(x):
    return helper(x)
"""
_HELPER = """
import numba

@numba.njit
def helper(x):
    return {factor} * x
"""
_RUN = "from pymc_subsample.kernels.probe import entry; print(entry(1.0), entry.stats.cache_hits)"


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("decorator", "stale"),
    [
        ("@kept(numba.float64(numba.float64))", False),
        ("@numba.njit(numba.float64(numba.float64), cache=True)", True),
    ],
    ids=["ours", "numba's"],
)
def test_a_changed_helper_runs(copied, decorator, stale):
    """The old code would run on with numba's own cache, which knows of the entry's file alone."""
    package, environment = copied
    kernels = package / "kernels"
    (kernels / "probe.py").write_text(_ENTRY.format(decorator=decorator))
    found = []
    for factor in (2.0, 3.0):
        (kernels / "probe_helper.py").write_text(_HELPER.format(factor=factor))
        found.append(run(_RUN, **environment)[0].split()[0])
    assert found == ["2.0", "2.0" if stale else "3.0"]


@pytest.fixture
def stamp(tmp_path, monkeypatch):
    """Name of the directory for a copy of the sources."""
    place = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "PACKAGE", place)
    return lambda: cache.directory.__wrapped__().name


def test_every_source_and_version_counts(stamp, tmp_path, monkeypatch):
    seen, package = {stamp()}, tmp_path / PACKAGE.name
    assert stamp() in seen
    sources = kernel_sources(package)
    assert len(sources) > 35
    for source in sources:
        source.write_text(source.read_text() + "\n")
        seen.add(stamp())
    integrators = package / "samplers" / "gradients" / "integrators"
    (integrators / "__pycache__").mkdir(exist_ok=True)
    (integrators / "__pycache__" / "baoab.pyc").write_bytes(b"anew")
    assert stamp() in seen
    for module in (numba, np, cache.llvmlite, cache.pytensor):
        with monkeypatch.context() as changed:
            changed.setattr(module, "__version__", "0.0")
            seen.add(stamp())
    assert len(seen) == 1 + len(sources) + 4
    other = package / "results" / "report.py"
    before = stamp()
    other.write_text(other.read_text() + "\n")
    assert stamp() == before


def test_kernels_are_found_wherever_they_live(tmp_path):
    """By what they import, with what their imports import; not what merely calls them."""
    package = tmp_path / "p"
    for name, text in {
        "__init__": "", "compiled/__init__": "", "compiled/cache": "", "compiled/functions": "",
        "deep/kernel": "from p.compiled.cache import kept\nfrom p.deep import part",
        "deep/part": "from p.far.helper import (\n    one,\n    two,\n)",
        "far/helper": "one = two = 1",
        "deep/inlined": "from p.compiled.functions import VECTOR, inlined",
        "deep/step": "from p.deep.kernel import transitions",
        "deep/types": "from p.compiled.functions import VECTOR",
    }.items():  # fmt: skip
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {str(p.relative_to(package)) for p in kernel_sources(package)}
    assert found == {
        "compiled/cache.py", "compiled/functions.py", "deep/kernel.py", "deep/part.py",
        "far/helper.py", "deep/inlined.py",
    }  # fmt: skip


def test_kernels_know_nothing_of_pymc():
    """And whatever they are made of is in a file that counts."""
    sources = set(kernel_sources(PACKAGE))
    for path in sources:
        assert not re.search(r"^(from|import) pymc\b", path.read_text(), re.MULTILINE), path
    integrators = PACKAGE / "samplers" / "gradients" / "integrators"
    assert sources.issuperset(set(integrators.glob("*.py")) - {integrators / "__init__.py"})


def test_no_other_cache_is_used():
    for path in PACKAGE.rglob("*.py"):
        assert "cache=True" not in path.read_text(), path


# Faults


@pytest.mark.parametrize("left", [0, 10, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_written_again(empty, left):
    compiled()
    [file] = files(empty)
    whole = file.read_bytes()
    file.write_bytes(whole[: left if left > 1 else int(left * len(whole))])
    assert [compiled()[1] for _ in range(2)] == [False, True]


def test_a_file_with_another_byte_is_written_again(empty):
    compiled()
    [file] = files(empty)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert [compiled()[1] for _ in range(2)] == [False, True]


def test_where_nothing_can_be_written_code_stays_in_memory(empty, monkeypatch, caplog):
    """One message, whatever the number of functions, and nothing but a directory it needs."""
    (empty / "file").write_text("")
    monkeypatch.setattr(cache, "ROOT", empty / "file" / "folder")
    cache.directory.cache_clear()
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        assert not any(compiled(key)[1] for key in "abb")
    [record] = caplog.records
    assert "base_compiledir" in record.message
    assert str(empty / "file" / "folder") in record.message
    assert cache.source_flags() == {}


def test_a_full_disk_leaves_no_unfinished_file(empty, monkeypatch, caplog):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        assert not compiled()[1]
    assert "No space left on device" in caplog.text
    assert files(empty) == []


@pytest.mark.costly(cases=0)
def test_a_package_that_cannot_be_written_imports(copied, tmp_path):
    """numba finds no place for its cache then: not beside the source, not in a home."""
    package, environment = copied
    (tmp_path / "home").write_text("")
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").write_text("")
    environment |= {
        "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    home = "pymc_subsample.samplers.minibatch.decisions.austerity"
    code = f"from {home} import decide; print(decide.stats.cache_hits)"
    _, errors = run(code, **environment)
    assert "cannot be kept" not in errors
    kept = files(tmp_path / "pytensor" / "pymc_subsample")
    assert any(path.name.startswith("decide-") for path in kept)


def test_code_of_old_versions_is_removed(empty):
    old, young = empty / "old", empty / "young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "code").write_text("")
    long_ago = time.time() - 2 * cache._KEPT_SECONDS
    os.utime(old, (long_ago, long_ago))
    compiled()
    assert not old.exists()
    assert young.exists()


# Generated sources


@pytest.mark.costly
def test_a_step_leaves_nothing_in_the_temporary_folder(monkeypatch, tmp_path):
    """PyTensor would leave from 5 to 15 files per step."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, pm.math.exp(0.1 * mu), observed=rng.normal(size=500))
    step = pms.HMCECS(model=model)
    step.step(model.initial_point())
    assert list(tmp_path.iterdir()) == []
