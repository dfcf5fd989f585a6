"""What importing loads: nobody waits for what is not used."""

import subprocess
import sys

import pytest

# What takes as long to import as PyMC, and what of our own is for results.
HEAVY = {
    "arviz", "arviz_base", "arviz_plots", "arviz_stats", "scipy.stats",
    "pymc_subsample.results.plots", "pymc_subsample.results.expectations",
    "pymc_subsample.results.efficiency",
}  # fmt: skip


def loaded(code):
    """Return the modules that a fresh interpreter holds after some code."""
    code = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_package_itself_loads_nothing():
    found = loaded("import pymc_subsample")
    assert not found & {"numba", "numpy", "pymc", "pytensor"}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("names", ["HMCECS", "SGLD, pms.FireflyMC, pms.AusterityGibbs"])
def test_steps_do_not_load_what_only_results_need(names):
    found = loaded(f"import pymc\nimport pymc_subsample as pms\npms.{names}")
    assert "pymc_subsample.chain.engine" in found
    assert not found & HEAVY


def test_the_table_of_samplers_loads_no_transition():
    """Reports read it, of runs of whichever sampler: to compile one's transition takes seconds."""
    found = loaded("import pymc_subsample.samplers.registry")
    assert "pymc_subsample.samplers.gibbs.sampler" in found
    assert not {name for name in found if name.startswith("pymc_subsample.samplers")} & {
        *(f"pymc_subsample.samplers.{folder}.kernel" for folder in
          ("hmc_ecs", "minibatch", "gibbs", "firefly", "scalable", "gradients")),
        "pymc_subsample.samplers.minibatch.acceptance",
    }  # fmt: skip
