"""Memory for the draws of a run is said at set-up, and refused where there is not enough."""

import warnings

import numpy as np
import pymc as pm
import pytest
from chains import QUIET
from models import N

import pymc_subsample as pms
from pymc_subsample.chain import memory as storage
from pymc_subsample.model import TallModelError

CLASSES = 4
# Of a draw of the model below: probabilities of every row, cutpoints and their value, slope, mu.
NUMBERS = N * CLASSES + 2 * (CLASSES - 1) + 1 + N


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=N), rng.integers(0, CLASSES, N)
    with pm.Model() as model:
        b = pm.Normal("b")
        cutpoints = pm.Normal(
            "cutpoints",
            0,
            3,
            shape=CLASSES - 1,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 0, 1],
        )
        mu = pm.Deterministic("mu", b * x)
        pm.OrderedLogistic("y", mu, cutpoints, observed=y)
    return model


@pytest.fixture(scope="module")
def step(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pms.MinibatchBarkerMH(model=model, control_variate_order=None)


def sample(model, step, **kwargs):
    kwargs = {"draws": 30, "tune": 20, "chains": 2, "cores": 1} | kwargs
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.sample(
            step=step, progressbar=False, random_seed=1, compute_convergence_checks=False, **kwargs
        )


@pytest.mark.costly
def test_a_run_says_how_much_and_how_to_avoid_it(model, step):
    size = N * (CLASSES + 1) * 8 * 1000 / 1e9
    with (
        model,
        pytest.warns(UserWarning, match=f"{size:.2g} GB per 1,000 draws of a chain") as caught,
    ):
        pm.sample(2, tune=2, step=step, chains=1, cores=1, **QUIET)
    [warned] = [w for w in caught if "GB" in str(w.message)]
    said = str(warned.message)
    assert f"'y_probs' ({N} x {CLASSES})" in said
    assert "'y_probs' is left out by compute_p=False in 'y'" in said
    assert "var_names=['b', 'cutpoints']" in said
    assert warned.filename == __file__


def test_what_is_not_stored_is_not_warned_of(model, step):
    with model, warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*one element per row")
        pm.sample(2, tune=2, step=step, chains=1, cores=1, var_names=["b", "cutpoints"], **QUIET)


@pytest.mark.costly
def test_long_lists_of_names_are_an_expression():
    with pm.Model():
        b = [pm.Normal(f"b{i}") for i in range(6)]
        mu = pm.Deterministic("mu", sum(b) * np.ones(N))
        pm.Normal("y", mu, 1.0, observed=np.zeros(N))
        step = pms.ScalableMH()
        with pytest.warns(UserWarning, match=r"var_names=\[v.name for v in model.free_RVs\]"):
            pm.sample(2, tune=2, step=step, chains=1, cores=1, **QUIET)


@pytest.mark.costly
def test_no_more_than_half_of_the_free_memory(model, step, monkeypatch):
    """The draws of all chains with tuning, and a copy without: PyMC's own trace says the same."""
    needed = 2 * (30 + 20 + 30) * NUMBERS * 8
    monkeypatch.setattr(storage, "free_memory", lambda: 2.0 * needed)
    idata = sample(model, step)
    stored = sum(idata.posterior[v].nbytes for v in idata.posterior.data_vars)
    assert stored == 2 * 30 * (NUMBERS - CLASSES + 1) * 8  # values are not in the result
    monkeypatch.setattr(storage, "free_memory", lambda: 2.0 * needed - 1)
    with pytest.raises(TallModelError, match=r"2 chains of 20 \+ 30 draws.*'y_probs'.*compute_p"):
        sample(model, step)


def test_refused_before_parallel_chains_begin(model, step, monkeypatch):
    monkeypatch.setattr(storage, "free_memory", lambda: 1e5)
    with pytest.raises(TallModelError, match="than half of the"):
        sample(model, step, cores=2)


@pytest.mark.costly(cases=0)
def test_refused_beside_another_step(model, monkeypatch):
    monkeypatch.setattr(storage, "free_memory", lambda: 1e5)
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = pms.MinibatchBarkerMH([model["b"]], control_variate_order=None)
        other = pm.Metropolis([model["cutpoints"]])
    with pytest.raises(TallModelError, match="than half of the"):
        sample(model, [one, other])


def test_what_is_not_stored_takes_no_memory(model, step, monkeypatch):
    monkeypatch.setattr(storage, "free_memory", lambda: 1e5)
    idata = sample(model, step, var_names=["b", "cutpoints"])
    assert set(idata.posterior.data_vars) == {"b", "cutpoints"}


def test_free_memory_of_a_container(tmp_path, monkeypatch):
    machine = storage.free_memory()
    assert machine is not None
    assert machine > 0
    files = {
        "memory.max": "3000",
        "memory.current": "2000",
        "memory.stat": "file 9\ninactive_file 500",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(storage, "_GROUP", tmp_path)
    assert storage.free_memory() == 1500
    assert storage.total_memory() == 3000  # whatever is in use
    (tmp_path / "memory.max").write_text("max")
    assert storage.free_memory() > 1500
