"""What is said once in a run, and what is held back for one."""

import logging
import threading
import warnings

import pytest

from pymc_subsample.chain.notices import Unsaid, held_back
from pymc_subsample.chain.nuts_cost import quiet


@pytest.mark.parametrize("propagate", [True, False])
def test_what_is_held_back_leaves_the_logger_as_it_was(propagate, monkeypatch):
    log = logging.getLogger("pymc.subsample")
    monkeypatch.setattr(log, "propagate", propagate)
    before = log.level, list(log.handlers), list(log.filters)
    with pytest.raises(KeyError), held_back():
        {}["a set-up that fails"]
    with held_back() as unsaid:
        log.info("heard %s", "later")
    assert unsaid.logged == [(logging.INFO, "heard later")]
    assert (log.propagate, log.level, log.handlers, log.filters) == (propagate, *before)


def test_only_what_this_thread_says_is_held_back(caplog):
    caplog.set_level(logging.INFO, "pymc.subsample")
    log = logging.getLogger("pymc.subsample")
    with held_back() as unsaid:
        other = threading.Thread(target=log.info, args=("said",))
        other.start()
        other.join()
        log.info("unsaid")
    assert caplog.messages == ["said"]
    unsaid.say()
    assert caplog.messages == ["said", "unsaid"]


def test_threads_that_are_quiet_at_once_speak_again(caplog):
    """The one that came first leaves first: what it restores is not what the other one found."""
    log, filters = logging.getLogger("pymc"), list(warnings.filters)
    level, came, left = log.level, threading.Event(), threading.Event()

    def other():
        with quiet():
            came.set()
            left.wait()
            log.error("unsaid")

    thread = threading.Thread(target=other)
    with quiet():
        thread.start()
        came.wait()
    left.set()
    thread.join()
    assert (log.level, warnings.filters) == (level, filters)
    log.error("said")
    assert caplog.messages == ["said"]


def test_of_a_set_up_that_is_shared_its_own_sampler_is_left_out():
    first, own = Unsaid(), Unsaid()
    first.logged = [
        (logging.INFO, "HMCECS: z integrated out: 90 levels"),
        (logging.INFO, "HMCECS: 100 rows"),
        (logging.WARNING, "HMCECS: too noisy"),
        (logging.WARNING, "the reference is far away"),
    ]
    own.logged = [(logging.INFO, "ScalableMH: 100 rows")]
    said = [text for _, text in own.after(first, "HMCECS", "ScalableMH").logged]
    expected = ["ScalableMH: z integrated out: 90 levels", "the reference is far away"]
    assert said == [*expected, "ScalableMH: 100 rows"]
