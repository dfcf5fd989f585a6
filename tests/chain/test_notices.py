"""What is said once in a run, and what is held back for one."""

import logging

import pytest

from pymc_subsample.chain.notices import held_back


@pytest.mark.parametrize("propagate", [True, False])
def test_what_is_held_back_leaves_the_logger_as_it_was(propagate, monkeypatch):
    log = logging.getLogger("pymc.subsample")
    monkeypatch.setattr(log, "propagate", propagate)
    before = log.level, list(log.handlers)
    with pytest.raises(KeyError), held_back():
        {}["a set-up that fails"]
    with held_back() as unsaid:
        log.info("heard %s", "later")
    assert unsaid.logged == [(logging.INFO, "heard later")]
    assert (log.propagate, log.level, log.handlers) == (propagate, *before)
