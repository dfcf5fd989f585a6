"""The recipes of the page on results keep the draws of a run that fails."""

import multiprocessing
import os
import pickle
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
SHORT = {"draws": 30, "chains": 2, "cores": 1, "progressbar": False}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=500))
    return model


@pytest.fixture(scope="module")
def recipes():
    section = PAGE.read_text().split("## Long runs")[1]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def space(model, monkeypatch, tmp_path):
    """Names that the recipes have from before, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return {"model": model, "pm": pm, "pms": pms, "Path": Path}


@pytest.fixture
def runs(monkeypatch):
    """Shorten runs; return the seeds of those that were made."""
    sample, seeds = pm.sample, []

    def shorter(**options):
        seeds.append(options["random_seed"])
        return sample(**options | SHORT | {"tune": 30})

    monkeypatch.setattr(pm, "sample", shorter)
    return seeds


@pytest.mark.costly(cases=0)
def test_batches_go_on_where_they_were(recipes, space, runs):
    exec(recipes[0], space)
    assert runs == [0, 1, 2, 3]
    whole = space["idata"]
    Path("chains-2.nc").unlink()
    exec(recipes[0], space)
    assert runs == [0, 1, 2, 3, 2]
    for idata in (whole, space["idata"]):
        assert idata["posterior"].sizes["chain"] == idata["sample_stats"].sizes["chain"] == 8
        assert idata["posterior"]["chain"].to_numpy().tolist() == list(range(8))
    np.testing.assert_array_equal(whole["posterior"]["mu"], space["idata"]["posterior"]["mu"])
    assert "8 chains" in str(pms.report(whole))
    assert "interrupted" not in str(pms.report(whole))


@pytest.mark.costly(cases=0)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL and SIGSTOP")
@pytest.mark.parametrize("others_tune", [False, True])
def test_a_killed_worker_leaves_its_draws(recipes, space, monkeypatch, others_tune):
    sample, tune = pm.sample, 500  # many, that chain 1 may be stopped within them

    def send(number, chain):
        for process in multiprocessing.active_children():
            if process.name == f"worker_chain_{chain}":
                os.kill(process.pid, number)

    def killed(*, callback, **options):
        waiting = {1}

        def kill(trace, draw):
            callback(trace, draw)
            lengths = {chain: len(trace) for chain, trace in space["traces"].items()}
            if others_tune and draw.chain in waiting and lengths[1] > 5:
                waiting.clear()
                send(signal.SIGSTOP, 1)
            enough = {0: tune + 10, 1: 5 if others_tune else tune + 10}
            if all(lengths.get(chain, 0) > n for chain, n in enough.items()):
                send(signal.SIGKILL, 0)
                threading.Timer(0.5, send, (signal.SIGCONT, 1)).start()

        return sample(
            **options | {"draws": 20_000, "chains": 2, "cores": 2}, callback=kill,
            progressbar=False, random_seed=1,
        )  # fmt: skip

    monkeypatch.setattr(pm, "sample", killed)
    exec(recipes[1].replace("1000", str(tune)), space)
    posterior = space["idata"]["posterior"]
    assert posterior.sizes["chain"] == 2 - others_tune
    assert 1 <= posterior.sizes["draw"] <= 20_000
    assert np.all(np.isfinite(posterior["mu"]))
    assert "interrupted" in str(pms.report(space["idata"]))


@pytest.mark.costly
def test_a_saved_chain_goes_on_draw_for_draw(recipes, space, model):
    exec(recipes[2].replace("1000", "40").replace("10_000", "60").replace("5_000", "30"), space)
    step = pms.auto(model=model)
    step.setup_chain(np.random.default_rng(1), tune=40, draws=60)
    point, expected = model.initial_point(), []
    for i in range(100):
        if i == 40:
            step.stop_tuning()
        point, _ = step.step(point)
        expected.append(point["mu"])
    assert [point["mu"] for point in space["points"]] == expected[70:]
    point, state = pickle.loads(Path("chain.pickle").read_bytes())
    assert point["mu"] == expected[-1]
    assert state.draws_left == 0
