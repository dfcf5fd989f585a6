"""Checks of chains: what the last draw records, and what can be read from it again."""

import numpy as np
import pymc as pm
import pytest
from exact_cases import regression_on_itself

import pymc_subsample as pms
from pymc_subsample.diagnostics import checks
from pymc_subsample.diagnostics.checks import Check, Rule
from pymc_subsample.samplers.gibbs import checks as gibbs
from pymc_subsample.samplers.hmc_ecs import checks as hmc
from pymc_subsample.samplers.minibatch import checks as metropolis

RULES = (
    Rule("noise", "noise", 1.0, "Use more rows."),
    Rule("moved", "moves", 0.5, "Move more.", severity="warn", at_least=True),
    Rule("far", "distance", 3.0, "Come back."),
)


@pytest.mark.parametrize("family", [hmc, metropolis, gibbs])
def test_names_of_rules_are_unique_and_fit_a_bitmask(family):
    names = [rule.name for rule in family.RULES]
    assert len(set(names)) == len(names) < 60


def test_holds_is_false_for_numbers_that_are_none():
    assert RULES[0].holds(1.0)
    assert not RULES[0].holds(1.1)
    assert RULES[1].holds(0.5)
    assert not RULES[1].holds(0.4)
    assert not any(rule.holds(np.nan) for rule in RULES)


def test_recorded_checks_are_read_again():
    found = [Check(RULES[0], 2.0, False, "Too noisy."), Check(RULES[1], 0.4, True, "")]
    recorded = checks.record(RULES, found)
    assert set(recorded) == set(checks.statistics(RULES))
    assert checks.recall(RULES, recorded) == [(RULES[0], 2.0, False), (RULES[1], 0.4, True)]
    assert checks.recall(RULES, checks.record(RULES, None)) is None
    [none] = checks.recall(RULES, checks.record(RULES, [Check(RULES[2], np.nan, False, "Far.")]))
    assert (none[0], none[2]) == (RULES[2], False)
    assert checks.recall(RULES, checks.record(RULES, [])) == []


def test_a_warning_says_what_failed_only():
    found = [Check(RULES[0], 2.0, False, "Too noisy."), Check(RULES[1], 0.4, True, "Unsaid.")]
    assert checks.warning("HMCECS", found) == "HMCECS: Too noisy."
    assert checks.warning("HMCECS", found[1:]) is None
    assert checks.warning("HMCECS", None) is None


@pytest.mark.costly
def test_only_the_last_draw_is_judged_and_survives_a_file(tmp_path):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    with regression_on_itself():
        step = pms.HMCECS(subsample_size=50)
        idata = pm.sample(
            50, tune=100, chains=2, cores=1, step=step, progressbar=False, random_seed=1
        )
    idata.to_netcdf(tmp_path / "draws.nc")
    for tree in (idata, xr.open_datatree(tmp_path / "draws.nc")):
        stats = tree["sample_stats"].to_dataset()
        assert np.all(stats["failed_checks"].values[:, :-1] == -1)
        for chain in (0, 1):
            last = {name: stats[name].values[chain, -1] for name in checks.statistics(hmc.RULES)}
            said = checks.recall(hmc.RULES, last)
            assert {rule.name for rule, *_ in said} >= {"loglik_variance", "perturbation"}
            assert all(passed for *_, passed in said)


FOR_ALL = " for this chain, and to the largest number that a chain of the run names for all"


@pytest.mark.parametrize(("size", "times", "said"), [
    (990, 1.2, "increase subsample_size (now 990) to 1,200 or so" + FOR_ALL),
    (30_080, 1.53, "increase subsample_size (now 30,080) to 47,000 or so" + FOR_ALL),
    (9_000, 1.05, "increase subsample_size (now 9,000) to 9,500 or so" + FOR_ALL),
    (9_000, 1.1, "increase subsample_size (now 9,000) to 9,900 or so" + FOR_ALL),
    (60_000, 1.664, "increase subsample_size (now 60,000) to 99,900 or so" + FOR_ALL),
    (990, 0.9, "increase subsample_size (now 990)"),
    (990, np.nan, "increase subsample_size (now 990)"),
    (990, np.inf, "increase subsample_size (now 990), up to all rows"),
    (99_000, 2.0, "increase subsample_size (now 99,000), up to all rows"),
])  # fmt: skip
def test_remedies_say_how_many_rows_are_enough(size, times, said):
    assert checks.remedies(size, 99_900, False, False, times) == [said]
