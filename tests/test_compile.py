"""`python -m pymc_subsample.compile` makes what models share, and leaves a model its own code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Of a model of its own: other numbers of columns and of groups than those that were compiled.
RUN = """
import numpy as np, pymc as pm, pymc_subsample as pms
rng = np.random.default_rng(3)
group, x = rng.integers(0, 31, 8_000), rng.standard_normal((8_000, 4))
with pm.Model():
    level, scale = pm.Normal("level", 0, 2), pm.HalfNormal("scale", 1)
    z, b = pm.Normal("z", 0, 1, shape=31), pm.Normal("b", 0, 1, shape=4)
    pm.Bernoulli("y", logit_p=level + scale * z[group] + x @ b, observed=rng.integers(0, 2, 8_000))
    for step in (pms.HMCECS(), pms.ScalableMH()):
        pm.sample(20, tune=100, step=step, chains=1, cores=1, progressbar=False,
                  compute_convergence_checks=False)
"""
SHARED = {"transitions", "control_sum", "scale_up", "count", "bend", "straighten", "add_cubes",
          "alias_table", "cubic_sum", "distances", "whiten"}  # fmt: skip


def run(*command, folder=None):
    flags = {"PYTENSOR_FLAGS": f"base_compiledir={folder}"} if folder else {}
    environment = os.environ | flags | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=ROOT
    )


def names(folder):
    kept = (folder / "pymc_subsample").glob("*/*")
    return {path.name: path.name.rpartition("-")[0] for path in kept if path.is_file()}


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["HMC"], "there is no sampler 'HMC'; there are HMCECS,"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_compiled(arguments, said, tmp_path):
    found = run("-m", "pymc_subsample.compile", *arguments, folder=tmp_path)
    assert found.returncode == 2
    assert said in found.stderr
    assert "transitions" not in names(tmp_path).values()


@pytest.mark.slow
def test_a_run_then_compiles_its_model_alone(tmp_path):
    found = run("-m", "pymc_subsample.compile", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "HMCECS: " in found.stdout
    assert "MB of machine code in" in found.stdout
    before = names(tmp_path)
    assert set(before.values()) >= SHARED
    found = run("-c", RUN, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    made = names(tmp_path).keys() - before.keys()
    assert made  # its own functions
    assert not SHARED & {names(tmp_path)[name] for name in made}


@pytest.mark.slow
def test_what_cannot_be_kept_is_an_error(tmp_path):
    """As on a read-only file system: `pymc_subsample` is a file, and no folder can be made."""
    (tmp_path / "pymc_subsample").write_text("")
    found = run("-m", "pymc_subsample.compile", "AusterityGibbs", folder=tmp_path)
    assert found.returncode == 1
    assert "Nothing could be kept in" in found.stderr
