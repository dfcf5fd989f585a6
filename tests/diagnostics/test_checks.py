"""Checks of chains: what is found at their ends, where it is in a result, and is read again."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from chains import QUIET
from exact_cases import regression_on_itself

import pymc_subsample as pms
from pymc_subsample.diagnostics import chain_ends, checks
from pymc_subsample.diagnostics.checks import Finding, Rule
from pymc_subsample.samplers.gibbs import checks as gibbs
from pymc_subsample.samplers.hmc_ecs import checks as hmc
from pymc_subsample.samplers.minibatch import checks as metropolis

RULES = (
    Rule("noise", "noise", 1.0, "Use more rows."),
    Rule("moved", "moves", 0.5, "Move more.", severity="warn", at_least=True),
    Rule("far", "distance", 3.0, "Come back."),
)


@pytest.mark.parametrize("family", [hmc, metropolis, gibbs])
def test_names_of_rules_are_unique(family):
    names = [rule.name for rule in family.RULES]
    assert len(set(names)) == len(names)


def test_holds_is_false_for_numbers_that_are_none():
    assert RULES[0].holds(1.0)
    assert not RULES[0].holds(1.1)
    assert RULES[1].holds(0.5)
    assert not RULES[1].holds(0.4)
    assert not any(rule.holds(np.nan) for rule in RULES)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.12345, "0.123"), (123456.0, "123,000"), (-1999.6, "-2,000"), (1.2345e25, "1.23e+25"),
     (np.inf, "not finite")],
)  # fmt: skip
def test_amounts_have_no_more_digits_than_are_known(value, said):
    assert checks.amount(value) == said


SEARCH = SimpleNamespace(starts=9, images=4)


def of_chain(*found, search=None):
    return chain_ends.found("HMCECS", "HMCECS", 70, found, search)


def result(*chains):
    return xr.DataTree.from_dict({chain_ends.GROUP: chain_ends.as_group(chains)})


def test_recorded_checks_are_read_again():
    ends = of_chain(Finding(RULES[0], 2.0, False, "Too noisy."), Finding(RULES[1], 0.4, True, ""))
    assert (dict(ends.values), ends.failed) == ({"noise": 2.0, "moved": 0.4}, ("noise",))
    none = of_chain(Finding(RULES[2], np.nan, False, "Far."), search=SEARCH)
    assert none.failed == ("far",)
    assert (none.draws, none.searches, none.images) == (70, 9, 4)
    unmeasured = of_chain(Finding(RULES[2], np.nan, True, ""))
    assert (unmeasured.values, unmeasured.failed) == ({}, ())
    for chains in ([[ends]], [[ends], [none]], [[ends, none], [ends]], [[none], [], [unmeasured]]):
        found = chain_ends.in_result(result(*chains))
        expected = {k: chain for k, chain in enumerate(chains) if chain}
        np.testing.assert_equal(
            {k: [*map(vars, chain)] for k, chain in found.items()},
            {k: [*map(vars, chain)] for k, chain in expected.items()},
        )


def test_results_that_are_put_together_keep_all_that_was_found():
    """Of chains, of runs after another, and where some have checks that others have not."""
    one = result([of_chain(Finding(RULES[0], 2.0, False, ""))])[chain_ends.GROUP].to_dataset()
    other = result([of_chain(Finding(RULES[1], 0.4, True, ""))])[chain_ends.GROUP].to_dataset()
    beside = xr.concat([one, other.assign_coords(chain=[1])], "chain", join="outer")
    after = xr.concat([one, other], "draw", join="outer")
    for group, labels in ((beside, [[0], [1]]), (after, [[0, 0]])):
        found = chain_ends.in_result(xr.DataTree.from_dict({chain_ends.GROUP: group}))
        assert list(found) == sorted({x for label in labels for x in label})
        every = [end for ends in found.values() for end in ends]
        assert [dict(end.values) for end in every] == [{"noise": 2.0}, {"moved": 0.4}]
        assert [end.failed for end in every] == [("noise",), ()]
    assert chain_ends.in_result(xr.DataTree()) == {}


def test_a_warning_says_what_failed_only():
    found = [Finding(RULES[0], 2.0, False, "Too noisy."), Finding(RULES[1], 0.4, True, "Unsaid.")]
    assert checks.warning("HMCECS", found) == "HMCECS: Too noisy."
    assert checks.warning("HMCECS", found[1:]) is None
    assert checks.warning("HMCECS", None) is None


@pytest.fixture(scope="module")
def several():
    """Options of runs of two chains, and the model."""
    with regression_on_itself() as model:
        step = pms.HMCECS(subsample_size=50)
    options = {"tune": 100, "chains": 2, "step": step, "model": model, "random_seed": 1}
    return options | QUIET


@pytest.mark.costly
@pytest.mark.parametrize("given", [{"cores": 1}, {"cores": 2}, {"discard_tuned_samples": False}])
def test_chains_are_judged_once_in_a_group_that_survives_a_file(several, given, tmp_path):
    pytest.importorskip("netCDF4")
    idata = pm.sample(50, **several, **given)
    assert not [name for name in idata["sample_stats"] if "check" in name]
    idata.to_netcdf(tmp_path / "draws.nc")
    for tree in (idata, xr.open_datatree(tmp_path / "draws.nc")):
        found = chain_ends.in_result(tree)
        assert list(found) == [0, 1]
        for [end] in found.values():
            assert {"loglik_variance", "perturbation"} <= set(end.values)
            assert (end.sampler, end.draws, end.failed) == ("HMCECS", 50, ())


@pytest.mark.costly
def test_traces_have_what_their_results_have(several):
    trace = pm.sample(50, **several, cores=1, return_inferencedata=False)
    assert [len(ends) for ends in chain_ends.of_trace(trace)] == [1, 1]
    whole = pm.to_inference_data(trace, model=several["model"])
    assert list(chain_ends.in_result(whole)) == [0, 1]
    cut = pm.to_inference_data(trace[:40], model=several["model"])
    assert chain_ends.GROUP not in cut.children
    assert chain_ends.in_result(cut) == {}


@pytest.mark.costly
def test_runs_without_a_step_of_ours_are_as_they_were(several):
    options = {name: x for name, x in several.items() if name != "step"} | {"tune": 20}
    idata = pm.sample(20, **options, cores=1, nuts_sampler="pymc")
    assert set(idata.children) == {"posterior", "sample_stats", "observed_data"}
    with several["model"]:
        assert set(pm.sample_prior_predictive(3).children) >= {"prior", "prior_predictive"}


FOR_ALL = " for this chain (for the run: the largest number that any of its chains names)"


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


@pytest.mark.parametrize(
    ("rule", "value", "said"),
    [
        (Rule("x", "noise", 1.0, ""), 2.0, "noise 2 (should be at most 1)"),
        (
            Rule("x", "moves", 0.3, "", at_least=True),
            0.2996,
            "moves 0.2996 (should be at least 0.3)",
        ),
        (Rule("x", "heat", 1.0, "", equal=True), 2.0, "heat 2 (should be 1)"),
        (Rule("x", "noise", 1.0, "", besides="Seldom so."), 0.5, "noise 0.5 (seldom so)"),
    ],
)
def test_a_finding_is_said_with_what_it_should_be(rule, value, said):
    assert Finding(rule, value, passed=False).in_words == said
