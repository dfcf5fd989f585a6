"""A set-up that takes long says what it is at, now and then; a short one says nothing."""

import logging
import threading
import time

import numpy as np
import pymc as pm
import pytest

from pymc_subsample.chain import progress
from pymc_subsample.chain.progress import announced, doing
from pymc_subsample.samplers.registry import step_of


@pytest.fixture
def said(caplog):
    """Return what was said of set-ups."""
    caplog.set_level(logging.INFO, "pymc.subsample")
    return lambda: [m for m in caplog.messages if "still setting up" in m]


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "_LIMITS", (0.05, 60.0))


def wait():
    time.sleep(0.3)


def test_a_short_set_up_says_nothing(said):
    with announced("Step"), doing("compiling"):
        pass
    assert not said()


def test_a_long_set_up_says_later_what_it_has_come_to(said, monkeypatch):
    monkeypatch.setattr(progress, "_LIMITS", (0.05, 0.5, 60.0))
    with announced("Step"):
        with doing("compiling"):
            wait()
        with doing("searching"):
            time.sleep(0.6)
    assert said() == [
        "Step: still setting up (0.05 s): compiling",
        "Step: still setting up (0.5 s): searching",
    ]


def test_other_work_says_what_it_is(caplog, at_once):
    with caplog.at_level(logging.INFO, "pymc.subsample"), announced("Audit", "auditing"):
        wait()
    assert "Audit: still auditing (0.05 s): reading the model" in caplog.messages


def test_what_goes_on_when_the_time_is_over_is_said_once(said, at_once):
    with announced("Step"):
        with doing("compiling"):
            pass
        with doing("searching"), announced("Another"):
            wait()
            assert said() == ["Step: still setting up (0.05 s): searching"]
        wait()
    assert len(said()) == 1
    with announced("Later"):
        wait()
    assert said()[1:] == ["Later: still setting up (0.05 s): reading the model"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_set_up_that_ends_early_says_nothing_later(said, at_once, error):
    before = threading.active_count()
    with pytest.raises(error), announced("Step"), doing("compiling"):
        raise error
    assert threading.active_count() == before
    wait()
    assert not said()
    with announced("Later"):
        wait()
    assert len(said()) == 1


def test_threads_speak_for_themselves(said, at_once):
    def run(name):
        with announced(name), doing("compiling"):
            wait()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("One", "Two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(m.split(":")[0] for m in said()) == ["One", "Two"]


STEPS = {
    "HMCECS": {},
    "MinibatchBarkerMH": {"control_variate_order": None},
    "SGLD": {"step_size": 1e-3, "control_variate_order": None, "metric": "identity"},
    "FireflyMC": {},
}


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", STEPS)
def test_steps_say_what_they_are_at(name, said, monkeypatch):
    make = step_of(name)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Bernoulli("y", logit_p=a, observed=np.arange(200) % 3 == 0)
    monkeypatch.setattr(progress, "_LIMITS", (1e-3,))
    make(model=model, **STEPS[name])
    [line] = said()
    assert line.startswith(f"{name}: still setting up (0.001 s): ")
    monkeypatch.setattr(progress, "_LIMITS", (600.0,))
    make(model=model, **STEPS[name])
    assert len(said()) == 1
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


@pytest.mark.parametrize(("width", "columns"), [(60, 0), (80, 1), (92, 2), (104, 3), (200, 3)])
def test_a_narrow_terminal_shows_fewer_columns(width, columns, monkeypatch):
    """As many as leave PyMC's own their width."""
    monkeypatch.setenv("COLUMNS", str(width))
    sampler = step_of("HMCECS").sampler
    found, first = sampler.columns(2)
    assert len(found) == columns
    assert first.keys() == set(sampler.shown)
