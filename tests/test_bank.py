"""The trust benchmark: its rule of right and wrong, its references, and two of its models."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from _bank import PROBLEMS
from _bank_references import load
from _bank_runs import BAD, HEALTHY, MEAN_BOUND, SD_BOUND, errors, outcome, quiet, runs, verdict

import pymc_subsample as pms
from pymc_subsample.samplers.hmc_ecs.checks import DISTANCE, NOISE

BOTH = pytest.mark.parametrize("outlier", [False, True], ids=["clean", "outlier"])


@BOTH
@pytest.mark.parametrize("name", PROBLEMS)
def test_references_belong_to_the_data_and_are_accurate(name, outlier):
    found = load(PROBLEMS[name], outlier).moments
    assert found.ess >= 4000
    assert found.rhat <= 1.01
    assert np.max(found.mean_error / found.sd) < 0.02
    assert np.max(found.sd_error / found.sd) < 0.02


def test_a_reference_of_other_data_is_refused():
    problem = PROBLEMS["linear"]
    with pytest.raises(ValueError, match="belongs to other data"):
        load(replace(problem, n_rows=problem.n_rows - 1), False)


@pytest.mark.parametrize("parameter", [0, 3])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_error_counts_beyond_its_bound_and_monte_carlo_error(parameter, sign):
    exact = load(PROBLEMS["linear"], False).moments
    assert not errors(exact, exact)[2]
    for name, scale in (("mean", MEAN_BOUND), ("sd", SD_BOUND)):
        bound = scale * exact.sd[parameter]
        noise = np.sqrt(2) * getattr(exact, f"{name}_error")[parameter]  # of run and reference
        for size, wrong in ((bound, False), (bound + 3 * noise, False), (bound + 4 * noise, True)):
            moved = getattr(exact, name).copy()
            moved[parameter] += sign * size  # z is 3.4 for 7 parameters
            assert errors(replace(exact, **{name: moved}), exact)[2] == wrong


def test_what_is_not_a_number_is_wrong():
    exact = load(PROBLEMS["linear"], False).moments
    assert errors(replace(exact, mean=np.nan * exact.mean), exact)[2]
    assert errors(replace(exact, sd_error=np.nan * exact.sd_error), exact)[2]


def test_only_a_failing_run_has_told():
    assert outcome(BAD[0], True, "warn") == "SILENT"
    assert outcome(HEALTHY, True, "pass") == "SILENT"
    assert outcome(BAD[0], True, "fail") == "told"
    assert outcome(HEALTHY, False, "fail") == "false alarm"
    assert outcome(HEALTHY, False, "refused") == "false alarm"


def test_the_verdict_is_the_worst_over_rules_chains_and_mixing():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=rng.normal(size=2000))
    with quiet():
        idata = pm.sample(
            500, tune=200, chains=2, cores=1, random_seed=1, step=pms.HMCECS(model=model),
            model=model, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    assert verdict(idata) == ("pass", "")
    failed = idata["checks"]["failed"]
    for rule, status in ((DISTANCE, "warn"), (NOISE, "fail")):
        failed.loc[{"chain": 1, "check": rule.name}] = 1
        assert verdict(idata) == (status, rule.name)
        failed.loc[{"chain": 1, "check": rule.name}] = 0
    idata["posterior"]["mu"].values[1] += 1.0
    assert verdict(idata)[0] == "fail"
    assert "r_hat" in verdict(idata)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "intercepts"])
def test_no_run_is_wrong_and_says_nothing(name):
    cells = list(runs(PROBLEMS[name], seeds=1))
    assert {c.setting for c in cells} == {HEALTHY, *BAD}
    assert not [c for c in cells if c.outcome == "SILENT"]
    assert [c.outcome for c in cells if c.setting == HEALTHY] == ["right"]
    assert [c for c in cells if c.wrong], "no setting was bad enough to test anything"
