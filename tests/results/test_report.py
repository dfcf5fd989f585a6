"""One page says what failed, by how much and what to do; a healthy run passes."""

import ast
import json
import operator
from dataclasses import replace
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.signal import lfilter
from scipy.stats import binom, chi2, ncx2

import pymc_subsample as pms
from pymc_subsample.diagnostics import mixing as mixing_of
from pymc_subsample.diagnostics.checks import Finding, Rule
from pymc_subsample.diagnostics.findings import said, worst_chain
from pymc_subsample.diagnostics.mixing import FALSE_ALARMS, mixing
from pymc_subsample.diagnostics.weights import MOST_K, good_k
from pymc_subsample.results import report
from pymc_subsample.results.audit import result as audited_by
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.samplers.hmc_ecs import checks as hmc
from pymc_subsample.samplers.minibatch import checks as metropolis
from pymc_subsample.samplers.registry import families

xr = pytest.importorskip("xarray")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}


def linear(n=1500):
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", slope * x, sigma, observed=x + rng.normal(size=n))
    return model


def sample(model, step, draws=500, chains=2):
    return pm.sample(draws, tune=400, chains=chains, random_seed=1, step=step, model=model, **QUIET)


@pytest.fixture(scope="module")
def model():
    return linear()


@pytest.fixture(scope="module")
def healthy(model):
    return sample(model, pms.HMCECS(model=model))


def written(idata, chain=None, failed=(), **numbers):
    """A copy of a run of which other numbers were found at the end; those that `failed` did."""
    changed = idata.copy(deep=True)
    group = changed["checks"].to_dataset().copy(deep=True)
    at = {} if chain is None else {"chain": chain}
    for name, value in numbers.items():
        each = (2, -1) if chain is None else -1
        values = value if np.ndim(value) == 0 else np.reshape(value, each)
        group["value"].loc[at | {"check": name}] = values
    for name in failed:
        group["failed"].loc[at | {"check": name}] = 1
    changed["checks"] = xr.DataTree(group)
    return changed


def interrupted(idata, chains):
    """A copy of a run in which some chains have not been judged."""
    changed = idata.copy(deep=True)
    group = changed["checks"].to_dataset().copy(deep=True)
    for name, none in {"sampler": "", "draws": 0}.items():
        group[name].loc[{"chain": chains}] = none
    changed["checks"] = xr.DataTree(group)
    return changed


def audited(kind="weights", ess=150.0, **numbers):
    """An audit of two parameters."""
    table = {
        name: ("parameter", np.zeros(2))
        for name in (
            "mean",
            "corrected_mean",
            "corrected_mean_mcse",
            "bias",
            "bias_mcse",
            "sd",
            "corrected_sd",
            "sd_error",
            "sd_error_mcse",
        )
    } | {name: ("parameter", x) for name, x in numbers.items() if name not in ("k_hat", "p_value")}
    dataset = xr.Dataset(table, coords={"parameter": ["slope", "sigma"]})
    found = {"k_hat": np.nan, "p_value": np.nan} | {
        name: x for name, x in numbers.items() if name in ("k_hat", "p_value")
    }
    return Audit(
        dataset,
        kind,
        (),
        found["k_hat"],
        ess,
        found["p_value"],
        n_draws=200,
        passes=200,
        seconds=1.0,
    )


def test_an_audit_of_a_panel_speaks_of_units():
    numbers = {
        "bias": np.ones(2), "bias_mcse": np.zeros(2), "sd_error": np.ones(2),
        "sd_error_mcse": np.zeros(2), "k_hat": 0.9,
    }  # fmt: skip
    for changed in ({}, {"kind": "score", "edges": "rows"}, {"unreached": (0.9, "slope")}):
        found = replace(audited(**numbers), **changed)
        of_rows, of_units = (
            " ".join(f.advice for f in replace(found, counted=each).of_subsampling)
            for each in ("rows", "units")
        )
        assert "rows" in of_rows
        assert of_units == of_rows.replace("rows", "units")


def statuses(found):
    return {f.name: f.status for f in found.findings}


@pytest.mark.costly
def test_draws_that_are_nan_are_said(healthy):
    broken = healthy.copy(deep=True)
    broken["posterior"]["slope"][0, 7] = np.nan
    found = pms.report(broken)
    assert statuses(found)["nan"] == "warn"
    assert found.status == "warn"
    assert "slope. Such draws" in str(found)


def test_a_healthy_run_passes_with_all_its_checks(healthy):
    found = pms.report(healthy)
    assert found.status == "pass"
    assert found.method == "HMCECS"
    signed = {"negative", "sign", "confined"}  # of the block-Poisson estimate alone
    names = {rule.name for rule in hmc.RULES} - signed - {"tail"}  # of draws very far out alone
    assert names | {"r_hat", "ess"} == set(statuses(found))
    assert "PASS: HMCECS of 1,500 rows, 2 chains of 500 draws" in str(found)
    assert found.rows == found.to_dict()["rows"] == 1500
    assert found.evaluations == healthy["sample_stats"]["n_evaluations"].sum()
    noise = next(f for f in found.findings if f.name == "loglik_variance")
    recorded = healthy["checks"]["value"].sel(check="loglik_variance")
    assert noise.value == recorded.max()
    assert noise.advice == ""


def test_a_report_read_from_a_file_is_the_same(healthy, tmp_path):
    pytest.importorskip("netCDF4")
    healthy.to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as stored:
        assert pms.report(stored).to_dict() == pms.report(healthy).to_dict()


def test_a_failed_rule_is_named_with_its_chain_number_bound_and_remedy(healthy):
    wrong = written(healthy, chain=1, failed=["loglik_variance"], loglik_variance=3.5)
    found = pms.report(wrong)
    assert found.status == "fail"
    [failure] = [f for f in found.findings if f.status != "pass"]
    assert (failure.name, failure.value, failure.bound) == ("loglik_variance", 3.5, 1.0)
    assert failure.advice.startswith("In chain 1. Increase subsample_size")
    lines = str(found).splitlines()
    at = next(i for i, line in enumerate(lines) if "FAIL " in line)
    assert "3.5" in lines[at]
    assert "<= 1" in lines[at]
    assert "Increase subsample_size" in lines[at + 1]


def test_severity_of_a_rule_decides_between_warn_and_fail(healthy):
    wrong = written(healthy, failed=["acceptance_rate"], acceptance_rate=[0.2, 0.1])
    found = pms.report(wrong)
    assert found.status == "warn"
    [finding] = [f for f in found.findings if f.status != "pass"]
    assert finding.value == 0.1
    assert finding.advice.startswith("In chain 0, 1.")


def test_what_does_no_harm_passes_and_is_mentioned(healthy):
    found = pms.report(written(healthy, chain=0, reference_distance=1.4))
    assert found.status == "pass"
    assert hmc.DISTANCE.besides in str(found)


@pytest.mark.parametrize("chains", [[0], [0, 1]])
def test_interrupted_chains_are_not_judged(healthy, chains):
    found = pms.report(interrupted(healthy, chains))
    assert found.status == "warn"
    assert statuses(found)["not_judged"] == "warn"
    assert "Chain " + ", ".join(map(str, chains)) in str(found)
    assert ("perturbation" in statuses(found)) == (len(chains) == 1)


def test_runs_put_together_are_judged_by_each_of_their_ends(healthy):
    bad = written(healthy, chain=1, failed=["reference_distance"], reference_distance=7.0)
    names = ("posterior", "sample_stats", "checks")
    groups = [{g: x[g].to_dataset() for g in names} for x in (bad, healthy)]
    n = healthy["posterior"].sizes["draw"]
    later = {
        g: x.assign_coords(draw=x["draw"] + n) if "draw" in x.dims else x
        for g, x in groups[1].items()
    }
    together = {g: xr.concat([x, later[g]], "draw") for g, x in groups[0].items()}
    found = pms.report(xr.DataTree.from_dict(together))
    assert statuses(found)["reference_distance"] != "pass"
    assert statuses(found)["reference_distance"] == statuses(pms.report(bad))["reference_distance"]
    good = {g: xr.concat([groups[1][g], x], "draw") for g, x in later.items()}
    assert pms.report(xr.DataTree.from_dict(good)).status == "pass"


def test_runs_put_together_without_what_was_found_of_one_are_not_judged(healthy):
    """Whichever of them it is of: no verdict is on all draws."""
    groups = {g: healthy[g].to_dataset() for g in ("posterior", "sample_stats")}
    twice = {
        g: xr.concat([x, x.assign_coords(draw=x["draw"] + 500)], "draw") for g, x in groups.items()
    }
    twice["checks"] = healthy["checks"].to_dataset()
    found = pms.report(xr.DataTree.from_dict(twice))
    assert statuses(found)["not_judged"] == "warn"
    assert "joined from runs without their group 'checks'" in str(found)


def test_draws_that_are_thinned_or_cut_keep_their_verdict(healthy):
    uneven = healthy.isel(draw=[0, 3, 4, 9, *range(10, 250)])
    for part in (healthy.isel(draw=slice(None, None, 2)), healthy.isel(draw=slice(250)), uneven):
        assert "not_judged" not in statuses(pms.report(part))
    one = pms.report(healthy.isel(chain=[1]))
    assert one.chains == 1
    assert "not_judged" not in statuses(one)


def test_an_interrupted_chain_is_judged_by_its_draws(healthy):
    half = interrupted(healthy, [0, 1]).isel(draw=slice(0, 250))
    found = pms.report(half)
    judged = {"loglik_variance", "subset_accepted", "divergences", "acceptance_rate"}
    assert {f.name for f in found.findings} == judged | {"not_judged", "r_hat", "ess"}
    values = {f.name: f.value for f in found.findings}
    stats = half["sample_stats"]
    assert values["acceptance_rate"] == stats["acceptance_rate"].mean("draw").min()
    noisy = half.copy(deep=True)
    noisy["sample_stats"]["loglik_variance"].values[1, :100] = 5.0
    noisy["sample_stats"]["diverging"].values[0, :100] = True
    wrong = {f.name: f for f in pms.report(noisy).findings if f.status == "fail"}
    assert set(wrong) == {"loglik_variance", "divergences"}
    assert wrong["loglik_variance"].advice.startswith("In chain 1.")
    # Of the mass, 40% one standard deviation away, of which 0.1 are tolerable.
    assert wrong["divergences"].value == pytest.approx(4.0)
    # A few very noisy draws, on average below the bound.
    noisy["sample_stats"]["loglik_variance"].values[1] = np.r_[np.full(20, 2.5), np.zeros(230)]
    assert statuses(pms.report(noisy))["loglik_variance"] == "fail"


@pytest.mark.costly(cases=0)
def test_an_interrupted_metropolis_chain_is_judged_by_its_draws(model):
    idata = sample(model, pms.MinibatchBarkerMH(model=model), draws=60).isel(draw=slice(0, 50))
    idata = interrupted(idata, [0, 1])
    idata["sample_stats"]["accepted"].values[:] = 0.0
    found = pms.report(idata)
    assert statuses(found)["accepted"] == "warn"


def test_a_check_that_failed_without_a_number_is_reported(healthy):
    wrong = written(healthy, chain=1, failed=["loglik_variance"], loglik_variance=np.nan)
    found = pms.report(wrong)
    assert statuses(found)["loglik_variance"] == "fail"
    assert "nan" in next(x for x in str(found).splitlines() if "FAIL " in x)


def test_numbers_near_a_bound_show_on_which_side_they_are():
    def shown(value, bound=1.01):
        return Rule("r_hat", "", bound, "").check(value, "").row()[2]

    assert shown(1.0112) == "1.011"
    assert shown(1.00999) == "1.00999"
    assert shown(1.01) == "1.01"
    assert shown(1.5) == "1.5"
    assert shown(0.123456, 1.0) == "0.123"


@pytest.mark.costly(cases=0)
def test_a_tempered_run_is_named(model):
    step = pms.HMCECS(model=model, temperature=2.0)
    found = pms.report(sample(model, step, draws=50))
    assert statuses(found)["temperature"] == "fail"
    assert next(f for f in found.findings if f.name == "temperature").value == 2.0


def test_chains_that_disagree_fail(healthy):
    apart = healthy.copy(deep=True)
    slope = apart["posterior"]["slope"]
    apart["posterior"]["slope"] = slope + slope.std() * xr.DataArray([0.0, 3.0], dims="chain")
    found = pms.report(apart)
    by_name = {f.name: f for f in found.findings}
    assert by_name["r_hat"].status == by_name["ess"].status == "fail"
    assert by_name["r_hat"].advice.startswith("Worst in slope.")
    alone = pms.report(healthy.isel(chain=[0]))
    assert {f.name for f in alone.findings if np.isnan(f.value)} <= {"r_hat", "ess"}


# Chance


def chains_of(rng, size, elements=20, chains=4, draws=500):
    """Chains that have mixed, of elements with an autocorrelation of 0.6."""
    x = rng.standard_normal((size, chains, draws, elements))
    for t in range(1, draws):
        x[:, :, t] = 0.6 * x[:, :, t - 1] + 0.8 * x[:, :, t]
    return x


def of_r_hat(values):
    posterior = xr.Dataset({"x": (("chain", "draw", "k"), values)})
    return next(found for found in mixing(posterior) if found.name == "r_hat")


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("chains", "draws"), [(2, 400), (4, 250)])
def test_r_hat_of_mixed_chains_is_doubted_as_often_as_is_said(chains, draws):
    runs = chains_of(np.random.default_rng(0), 60, chains=chains, draws=draws)
    found = [of_r_hat(run) for run in runs]
    alarms = sum(one.status != "pass" for one in found)
    assert alarms <= binom.isf(1e-5, len(runs), FALSE_ALARMS)
    assert np.mean([one.value > 1.01 for one in found]) > 0.5  # of many elements, or few chains


@pytest.mark.costly(cases=0)
def test_r_hat_finds_a_chain_that_is_elsewhere():
    """Of 1,000 effective draws and 20 elements, in one of which a chain of four is off."""
    off, halves, effective, elements = 0.8, 8, 4 * 1_000 / 4, 20
    least = chi2.isf(FALSE_ALARMS / (2 * elements), halves - 1)
    missed = ncx2.cdf(1.2 * least, halves - 1, effective / halves * 1.5 * off**2)
    runs = chains_of(np.random.default_rng(1), 15, elements, draws=1_000)
    assert len(runs) * missed < 1e-4
    runs[:, 0, :, 3] += off
    found = [of_r_hat(run) for run in runs]
    assert all(one.status != "pass" and one.advice.startswith("Worst in x[3].") for one in found)


def test_r_hat_of_chains_that_are_stuck_fails_and_of_many_draws_is_held_to_its_own_bound():
    rng = np.random.default_rng(2)
    [run] = chains_of(rng, 1, elements=2)
    run[..., 0] += 5 * np.arange(4)[:, None]
    stuck = of_r_hat(run)
    assert stuck.status == "fail"
    assert stuck.bound < 1.1  # chains one by one have hundreds of effective draws
    run = rng.standard_normal((4, 5_000, 1))
    run[0] += 0.3
    apart = of_r_hat(run)
    assert apart.status == "warn"
    assert apart.bound == 1.01


def test_a_report_says_that_it_judges_no_model(healthy):
    said = "Whether the model describes the data is for predictive checks and pms.loo."
    for text in (str(pms.report(healthy)), pms.report(healthy)._repr_html_()):
        assert said in text


@pytest.mark.parametrize(("negative", "status"), [(1, "pass"), (100, "warn"), (200, "fail")])
def test_signs_count_by_the_square_of_their_mean(healthy, negative, status):
    sign = np.ones((2, 500))
    sign[:, :negative] = -1
    signed = healthy.copy(deep=True)
    stats = signed["sample_stats"].to_dataset()
    signed["sample_stats"] = xr.DataTree(stats.assign(sign=(("chain", "draw"), sign)))
    found = next(f for f in pms.report(signed).findings if f.name == "sign")
    assert found.status == status
    assert found.value == pytest.approx((1 - 2 * negative / 500) ** 2)


def test_signs_count_in_the_effective_sample_size(healthy):
    sign = np.where(np.random.default_rng(0).random((2, 500)) < 0.25, -1, 1)
    signed = healthy.copy(deep=True)
    stats = signed["sample_stats"].to_dataset()
    signed["sample_stats"] = xr.DataTree(stats.assign(sign=(("chain", "draw"), sign)))
    table = pms.summary(signed, kind="diagnostics", round_to="none")
    found = next(f for f in pms.report(signed).findings if f.name == "ess")
    plain = next(f for f in pms.report(healthy).findings if f.name == "ess")
    assert found.value <= table["ess_bulk"].min() * (1 + 1e-9)
    assert found.value < 0.7 * plain.value
    r_hat = next(f for f in pms.report(signed).findings if f.name == "r_hat")
    assert r_hat.value == pytest.approx(table["r_hat"].max())


@pytest.mark.costly
@pytest.mark.parametrize(
    ("kind", "numbers", "expected"),
    [
        ("weights", {"k_hat": 0.2}, {"k_hat": "pass", "bias": "pass", "sd_error": "pass"}),
        ("weights", {"k_hat": 0.56}, {"k_hat": "pass"}),  # 1 - 1 / log10(200) is 0.5654
        ("weights", {"k_hat": 0.57}, {"k_hat": "warn"}),
        ("weights", {"k_hat": 0.69}, {"k_hat": "warn"}),
        ("weights", {"k_hat": 0.8}, {"k_hat": "fail"}),
        (
            "weights",
            {"k_hat": np.inf, "bias_mcse": [np.inf, np.inf]},
            {"k_hat": "fail", "bias": "warn", "sd_error": "pass"},
        ),
        ("score", {"p_value": np.nan}, {"p_value": "warn"}),
        ("weights", {"k_hat": 0.2, "bias": [0.0, -0.3]}, {"bias": "fail"}),
        ("weights", {"k_hat": 0.2, "bias": [0, 0.3], "bias_mcse": [0, 0.1]}, {"bias": "pass"}),
        ("score", {"p_value": 0.5, "sd_error": [0.2, 0.0]}, {"sd_error": "fail"}),
        ("score", {"p_value": 0.5}, {"p_value": "pass"}),
        ("score", {"p_value": 0.005}, {"p_value": "warn"}),
        ("score", {"p_value": 1e-5}, {"p_value": "fail"}),
    ],
)
def test_an_audit_is_judged(healthy, kind, numbers, expected):
    found = pms.report(healthy, audit=audited(kind, **numbers))
    assert expected.items() <= statuses(found).items()
    worst = "fail" if "fail" in expected.values() else "warn" if "warn" in expected.values() else ""
    assert found.status == (worst or "pass")


def panel(rng, shared, levels=4_000, draws=250):
    """Draws of a shared variable, an AR(1) of lag `shared`, and of effects given each of them."""
    x = lfilter([np.sqrt(1 - shared**2)], [1, -shared], rng.standard_normal((4, 4 * draws)))
    mu = x[:, -draws:]
    effects = mu[..., None] + 3 * rng.standard_normal((4, draws, levels))
    return xr.Dataset({
        "mu": (("chain", "draw"), mu), "effect": (("chain", "draw", "unit"), effects)
    })  # fmt: skip


@pytest.mark.slow
def test_effects_of_a_healthy_run_pass_and_shared_variables_that_do_not_mix_fail():
    healthy, stuck = (panel(np.random.default_rng(1), lag) for lag in (0.3, 0.995))
    alone = {f.name: f for f in mixing(healthy)}
    assert alone["ess"].value < 0.8 * 4 * 250  # the smallest of 4,000 estimates of 1,000
    assert {f.name: f.status for f in mixing(healthy, axes={"effect": 0})} == {
        "r_hat": "pass", "ess": "pass", "effects_r_hat": "pass", "effects_ess": "pass"
    }  # fmt: skip
    found = {f.name: f.status for f in mixing(stuck, axes={"effect": 0})}
    assert found["r_hat"] == found["ess"] == "fail"
    # Effects that follow a shared variable which does not mix do not pass either.
    stuck["effect"] = stuck["effect"] / 100 + stuck["mu"]
    found = {f.name: f.status for f in mixing(stuck, axes={"effect": 0})}
    assert found["effects_r_hat"] == found["effects_ess"] == "fail"


def test_as_many_levels_as_draws_are_levels():
    effects = xr.Dataset({"z": (("chain", "draw", "unit"), np.zeros((1, 2_500, 2_500), np.int8))})
    assert dict(mixing_of._some(effects, {"z": 0}).sizes) == {
        "chain": 1,
        "draw": 2_500,
        "unit": 2_000,
    }


@pytest.mark.costly
@pytest.mark.parametrize("draws", [100, 250])
def test_effects_that_have_as_many_effective_draws_as_are_asked_for_exceed_the_bound(draws):
    """Of 400 effective draws in four chains, independent ones or of an autocorrelation."""
    rng, levels = np.random.default_rng(2), 1_000
    lag = (4 * draws - 400) / (4 * draws + 400)
    x = rng.standard_normal((4, 4 * draws, levels))
    x = lfilter([np.sqrt(1 - lag**2)], [1, -lag], x, axis=1)[:, -draws:]
    bulk = az.ess(x, method="bulk", chain_axis=0, draw_axis=1)
    share, error = np.mean(bulk < mixing_of.EFFECTS_ESS_DOUBT.bound), mixing_of._FEW
    assert share <= binom.isf(1e-5, levels, error) / levels
    assert np.mean(bulk < 400) > 0.3  # as they are without what estimates are off by


@pytest.mark.parametrize("signs", [False, True])
def test_draws_that_swing_without_changing_their_energy_are_too_few(signs):
    """Their ranks and tails have plenty of effective draws, and their squares hardly any."""
    rng, n = np.random.default_rng(1), 1000
    energy = np.exp(lfilter([0.05], [1, -0.998], rng.standard_normal((4, 2 * n)))[:, n:])
    x = energy * np.sin(2.0 * np.arange(n) + rng.uniform(0, 6.3, (4, 1)))
    posterior = xr.Dataset({"a": (("chain", "draw"), x)})
    ones = np.where(rng.random((4, n)) < 0.999, 1.0, -1.0) if signs else None
    assert az.ess(x, method="bulk") > 1000
    assert az.ess(x, method="tail", prob=(0.05, 0.95)) > 400
    found = next(f for f in mixing(posterior, ones) if f.name == "ess")
    assert found.status != "pass"
    assert found.value < 400
    assert signs or found.value == pytest.approx(az.ess(x, method="sd"))


def test_more_draws_bear_weights_that_are_less_even(healthy):
    found = {}
    for draws in (200, 1_000, 10**6):
        audit = replace(audited(k_hat=0.66), n_draws=draws, ess=0.75 * draws)
        found[draws] = statuses(pms.report(healthy, audit=audit))["k_hat"]
    assert found == {200: "warn", 1_000: "pass", 10**6: "pass"}
    assert good_k(10**6) == MOST_K


def test_even_weights_are_harmless_whatever_their_tail(healthy):
    assert statuses(pms.report(healthy, audit=audited(ess=199.9, k_hat=0.8)))["k_hat"] == "pass"
    assert statuses(pms.report(healthy, audit=audited(ess=197.9, k_hat=0.8)))["k_hat"] == "warn"
    assert statuses(pms.report(healthy, audit=audited(ess=197.9, k_hat=0.5)))["k_hat"] == "pass"
    assert statuses(pms.report(healthy, audit=audited(ess=195.6, k_hat=0.71)))["k_hat"] == "warn"
    assert statuses(pms.report(healthy, audit=audited(ess=189.0, k_hat=0.8)))["k_hat"] == "fail"
    assert statuses(pms.report(healthy, audit=audited(ess=195.6, k_hat=1.1)))["k_hat"] == "fail"
    assert statuses(pms.report(healthy, audit=audited(ess=197.9, k_hat=np.inf)))["k_hat"] == "fail"
    assert statuses(pms.report(healthy, audit=audited(ess=199.9, k_hat=np.inf)))["k_hat"] == "fail"


# What is printed


OF_THE_REPORT = (
    report.SIGN, report.SIGN_DOUBT, mixing_of.R_HAT, mixing_of.R_HAT_DOUBT, mixing_of.ESS,
    mixing_of.ESS_DOUBT, mixing_of.EFFECTS_R_HAT, mixing_of.EFFECTS_R_HAT_DOUBT,
    mixing_of.EFFECTS_ESS, mixing_of.EFFECTS_ESS_DOUBT, audited_by.K_HAT, audited_by.BIAS,
    audited_by.SD_ERROR, audited_by.UNREACHED, audited_by.P_VALUE, audited_by.P_VALUE_DOUBT,
    replace(audited_by.K_HAT, name="many digits", bound=good_k(200)),
)  # fmt: skip
EVERY_RULE = {
    f"{family.split(',')[0]}: {rule.name}": rule
    for family, rules in {**families(), "report": OF_THE_REPORT}.items()
    for rule in rules
}


def agrees(finding):
    """Whether a line's verdict is that of its number and its bound, as they are printed."""
    verdict, _, value, bound, _ = finding.row()
    sign, number = bound.split()
    holds = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}[sign]
    return holds(float(value), float(number)) == (verdict == "PASS")


@pytest.mark.parametrize("rule", EVERY_RULE.values(), ids=list(EVERY_RULE))
@pytest.mark.parametrize("passed", [True, False])
def test_no_verdict_stands_beside_a_bound_that_contradicts_it(rule, passed):
    """Of numbers far from the bound, on it and as near it as numbers are; alone and of chains."""
    near = np.nextafter(rule.bound, [-np.inf, np.inf])
    for value in (rule.bound, *near, rule.bound - 0.7, rule.bound + 125.0, np.inf, -np.inf):
        alone, other = Finding(rule, value, passed), Finding(rule, rule.bound, True)
        for found in (worst_chain(rule, [(0, alone), (1, other)]), said(alone)):
            decided = rule.holds(found.value) == passed
            assert found.row()[3] == "" if not decided else agrees(found)
            assert (rule.besides in found.advice) != decided


def test_what_else_decides_is_said_by_each_rule_that_asks_for_it():
    """Acceptance is compared with a bound of its own, and then its number is not recorded."""
    asks = set()
    for path in Path(pms.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".check"):
                more = len(node.args) > 2 or any(k.arg == "passed" for k in node.keywords)
                asks |= {ast.unparse(node.func).removesuffix(".check")} if more else set()
    assert asks == {"TUNE", "NOISE", "DISTANCE", "SHARE", "hidden", "acceptance"}
    plain = hmc.TEMPERATURE.besides
    named = {name for name, rule in EVERY_RULE.items() if rule.besides != plain}
    assert {name.split(": ")[1] for name in named} == {
        "tune", "loglik_variance", "reference_distance", "share", "hidden", "k_hat", "many digits",
    }  # fmt: skip


def test_what_excused_a_number_is_said_in_its_place(healthy):
    wrong = written(healthy, failed=["divergences"], divergences=40.0, hidden=125.0)
    lines = str(pms.report(wrong)).splitlines()
    [at] = [k for k, line in enumerate(lines) if "may hide" in line]
    assert lines[at].split()[0] == "PASS"
    assert lines[at].split()[-1] == "125"
    assert lines[at + 1].strip() == hmc.HIDDEN.besides
    noisy = written(healthy, failed=["loglik_variance"], loglik_variance=0.8)
    lines = str(pms.report(noisy)).splitlines()
    [at] = [k for k, line in enumerate(lines) if "variance of the estimate" in line]
    assert lines[at].split()[0] == "FAIL"
    assert "0.8" in lines[at]
    assert "<=" not in lines[at]
    assert lines[at + 1].strip().startswith(hmc.NOISE.besides)
    even = audited(ess=199.9, k_hat=0.85)
    found = pms.report(healthy, audit=even)
    [line] = [f for f in found.findings if f.name == "k_hat"]
    assert line.row()[2:] == ("0.85", "", audited_by.K_HAT.besides)
    assert "k-hat is above" not in repr(even)


def test_the_parameter_that_is_off_is_named(healthy):
    found = pms.report(healthy, audit=audited(k_hat=0.1, bias=[0.05, -0.3]))
    bias = next(f for f in found.findings if f.name == "bias")
    assert bias.value == pytest.approx(0.3)
    assert bias.advice.startswith("Worst in sigma.")


def test_forms_of_a_report(healthy):
    found = pms.report(healthy, audit=audited(k_hat=0.9))
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["status"] == "fail"
    assert {c["name"] for c in plain["checks"]} == set(statuses(found))
    page = found._repr_html_()
    assert page.count("<tr>") == len(found.findings) + 1
    assert "&lt;= 1" in page
    assert repr(found) == str(found)


@pytest.mark.costly(cases=0)
def test_minibatch_runs_are_recognised(model):
    idata = sample(model, pms.MinibatchBarkerMH(model=model))
    found = pms.report(idata)
    assert "MinibatchBarkerMH" in found.method
    assert found.rows == 1500
    given = {"bound", "tail"}  # of a user's bound, and of draws far out, alone
    assert {rule.name for rule in metropolis.RULES} - given <= set(statuses(found))
    assert statuses(found)["acceptance_error"] == "pass"


def test_binary_runs_are_recognised():
    rng = np.random.default_rng(1)
    group = rng.integers(0, 5, 400)
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.5, shape=5)
        pm.Normal("y", 0.2 * z[group], 1, observed=rng.normal(0.1, 1, size=400))
    found = pms.report(sample(model, pms.AusterityGibbs(model=model, batch_size=20)))
    assert found.method == "AusterityGibbs"
    assert found.rows == 400
    assert statuses(found)["conditional_error"] in ("pass", "fail")


@pytest.mark.slow
def test_several_methods_are_judged_by_their_own_verdicts(model):
    with model:
        both = [pms.HMCECS(vars=[model["slope"]]), pms.MinibatchBarkerMH(vars=[model["sigma"]])]
        twice = [pms.HMCECS(vars=[model["slope"]]), pms.HMCECS(vars=[model["sigma"]])]
        mixed, same = sample(model, both), sample(model, twice)
    found = pms.report(mixed)
    assert found.method.startswith("HMCECS with MinibatchBarkerMH")
    assert found.rows == 1500
    assert {"loglik_variance", "acceptance_error"} <= set(statuses(found))
    assert statuses(found)["loglik_variance"] == "pass"
    wrong = pms.report(written(mixed, chain=0, failed=["loglik_variance"], loglik_variance=5.0))
    assert statuses(wrong)["loglik_variance"] == "fail"
    assert statuses(pms.report(same))["loglik_variance"] == "pass"
    changed = written(same, chain=1, loglik_variance=[0.1, 5.0])
    changed["checks"]["failed"].loc[{"chain": 1, "check": "loglik_variance"}] = [0, 1]
    wrong = pms.report(changed)
    failed = next(f for f in wrong.findings if f.status == "fail")
    assert (failed.name, failed.value) == ("loglik_variance", 5.0)
    assert failed.advice.startswith("In chain 1.")
    stats = same["sample_stats"].to_dataset()
    rows = stats["n_rows"].where(stats["draw"] > 0, 7)  # as if a third step had recorded others
    third = same.copy(deep=True)
    third["sample_stats"] = xr.DataTree(stats.assign(n_rows=rows))
    assert pms.report(same).rows == 1500
    assert np.isnan(pms.report(third).rows)


def test_what_cannot_be_reported_is_refused(healthy):
    data = xr.Dataset({"lp": (("chain", "draw"), np.zeros((2, 50)))})
    other = xr.DataTree.from_dict({"posterior": data, "sample_stats": data})
    with pytest.raises(
        ValueError, match=r"no checks of this package's step methods.*'sample_stats'"
    ):
        pms.report(other)
    own = healthy.copy(deep=True)  # by rules of a sampler that nobody knows
    own["checks"] = own["checks"].to_dataset().assign(family=(("chain", "step"), [["Own"]] * 2))
    with pytest.raises(ValueError, match=r"no checks of this package's step methods.* of HMCECS"):
        pms.report(own)
    with pytest.raises(ValueError, match="no group 'sample_stats'"):
        pms.report(xr.DataTree.from_dict({"posterior": data}))
    with pytest.raises(TypeError, match="got list"):
        pms.report([])
    with pytest.raises(TypeError, match=r"what pms\.audit returned, got dict"):
        pms.report(healthy, audit={})


def test_names_of_all_checks_are_documented():
    text = (Path(__file__).parents[2] / "docs" / "trust_details.md").read_text()
    for rules in families().values():
        assert ", ".join(f"`{rule.name}`" for rule in rules) in text
