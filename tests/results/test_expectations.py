"""Summaries of signed draws: exact expectations, errors that cover, and ArviZ where signs agree."""

import warnings

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from arviz_stats.base import array_stats
from scipy.optimize import brentq
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample.diagnostics import signed

KINDS = (
    "all", "stats", "diagnostics", "all_median", "stats_median", "diagnostics_median",
    "mc_diagnostics",
)  # fmt: skip


def tree(posterior, sign=None, **coords):
    dims = {"beta": ["x"], "group": ["g", "h"]}
    groups = {"posterior": posterior}
    if sign is not None:
        groups["sample_stats"] = {"sign": sign}
    return az.from_dict(groups, dims=dims, coords=coords)


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(1)
    return {
        "alpha": rng.normal(size=(4, 250)),
        "beta": rng.gamma(2.0, size=(4, 250, 3)),
        "count": rng.poisson(3.0, size=(4, 250)),
    }


@pytest.fixture(scope="module")
def signs():
    return np.where(np.random.default_rng(2).random((4, 250)) < 0.1, -1, 1)


def names(**extra):
    return {"x": ["u", "v", "w"]} | extra


# The posterior 1.2 N(0, 1) - 0.2 N(1, 1/2): draws from the absolute mixture carry signs.
SHARE = 1.2 / 1.4
SIGN = 1 / 1.4
MEAN, SD = -0.2, np.sqrt(1.2 - 0.2 * 1.25 - 0.04)


def mixture_cdf(x):
    return 1.2 * norm.cdf(x) - 0.2 * norm.cdf(x, 1, 0.5)


def mixture_draws(rng, shape=(4, 250)):
    sign = np.where(rng.random(shape) < SHARE, 1.0, -1.0)
    z = rng.normal(size=shape)
    return np.where(sign > 0, z, 1 + 0.5 * z), sign


def autocorrelated_draws(rng, shape=(4, 500)):
    """Draws y + s of an AR(1) series y and signs s that stay what they are for a while."""
    noise = rng.normal(size=shape) * np.sqrt(1 - 0.8**2)
    redrawn = rng.random(shape) < 0.3
    fresh = np.where(rng.random(shape) < 0.85, 1.0, -1.0)
    y, sign = rng.normal(size=shape), fresh.copy()
    for t in range(1, shape[1]):
        y[:, t] = 0.8 * y[:, t - 1] + noise[:, t]
        sign[:, t] = np.where(redrawn[:, t], fresh[:, t], sign[:, t - 1])
    return y + sign, sign


MEDIAN = brentq(lambda x: mixture_cdf(x) - 0.5, -3, 3)
CASES = {
    "mean": (mixture_draws, MEAN, signed.mean, signed.mcse_mean),
    "sd": (mixture_draws, SD, lambda v, s: np.sqrt(signed.variance(v, s)), signed.mcse_sd),
    "probability": (
        lambda rng: (lambda v, s: ((v < 0.5).astype(float), s))(*mixture_draws(rng)),
        mixture_cdf(0.5), signed.mean, signed.mcse_mean,
    ),
    "median": (
        mixture_draws, MEDIAN, lambda v, s: signed.quantile(v, s, 0.5),
        lambda v, s: signed.mcse_quantile(v, s, 0.5),
    ),
    "autocorrelated_mean": (autocorrelated_draws, 1 / 0.7, signed.mean, signed.mcse_mean),
}  # fmt: skip


def standardised(case, repetitions=400):
    draw, truth, estimate, error = CASES[case]
    rngs = np.random.default_rng(3).spawn(repetitions)
    runs = [draw(rng) for rng in rngs]
    return np.array([(estimate(*run) - truth) / error(*run) for run in runs]), runs


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("case", CASES)
def test_errors_cover_the_truth(case):
    z, _ = standardised(case)
    # 4.4 standard errors of the mean and of the root mean square of 400 standard normals, and 3%
    # for the noise of the errors themselves.
    assert abs(z.mean()) < 0.22 + 0.03
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 0.156 + 0.03


def pseudo_marginal_chains(rng, chains, draws, warmup=200):
    """Metropolis on |w| N(theta; 0, 1), w = 1 + c or 1 - c, c growing in theta: its mean is 1."""

    def target(theta, e):
        w = 1 + e * (0.5 + 0.3 * theta**2)
        return np.log(np.abs(w)) - theta**2 / 2, np.sign(w)

    theta, e = rng.normal(size=chains), rng.choice([-1.0, 1.0], chains)
    logp, sign = target(theta, e)
    thetas, signs = np.empty((2, draws, chains))
    for t in range(-warmup, draws):
        new_theta, new_e = theta + 2 * rng.normal(size=chains), rng.choice([-1.0, 1.0], chains)
        new_logp, new_sign = target(new_theta, new_e)
        accept = np.log(rng.random(chains)) < new_logp - logp
        theta, e = np.where(accept, new_theta, theta), np.where(accept, new_e, e)
        logp, sign = np.where(accept, new_logp, logp), np.where(accept, new_sign, sign)
        if t >= 0:
            thetas[t], signs[t] = theta, sign
    return thetas.T, signs.T


def test_a_signed_chain_recovers_its_posterior():
    thetas, signs = pseudo_marginal_chains(np.random.default_rng(11), 400 * 4, 400)
    assert 0.02 < np.mean(signs < 0) < 0.2
    runs = list(zip(thetas.reshape(400, 4, 400), signs.reshape(400, 4, 400), strict=True))
    for power, truth in ((1, 0.0), (2, 1.0)):
        z = [(signed.mean(t**power, s) - truth) / signed.mcse_mean(t**power, s) for t, s in runs]
        # As above, and more for the skewness of the squares, whose errors are small where they are.
        assert abs(np.mean(z)) < 0.22 + 0.1
        assert abs(np.sqrt(np.mean(np.square(z))) - 1) < 0.156 + 0.05
    unsigned = [(np.mean(t**2) - 1) / array_stats.mcse(t**2, method="mean") for t, _ in runs]
    assert np.mean(unsigned) > 2


def test_errors_that_ignore_autocorrelation_of_the_signs_do_not_cover():
    _, runs = standardised("autocorrelated_mean")
    naive = [
        (signed.mean(v, s) - 1 / 0.7) / (signed.influence(v, s).std() / np.sqrt(v.size))
        for v, s in runs
    ]
    assert np.sqrt(np.mean(np.square(naive))) > 1.5


def test_errors_that_ignore_signs_do_not_cover():
    _, runs = standardised("mean")
    naive = [(v.mean() - MEAN) / array_stats.mcse(v, method="mean") for v, _ in runs]
    assert abs(np.mean(naive)) > 1


def test_effective_draws_are_those_of_the_posterior_itself():
    rng = np.random.default_rng(4)
    sign = np.where(rng.random((4, 5000)) < 0.8, 1.0, -1.0)
    values = rng.normal(size=(4, 5000))
    for ess in (
        signed.ess_mean(values, sign),
        signed.ess_bulk(values, sign),
        signed.ess_tail(values, sign, 0.9),
        signed.ess_quantile(values, sign, 0.5),
    ):
        # The share of positive signs counts squared; ArviZ's estimate is good to some percent.
        assert ess == pytest.approx(20_000 * 0.6**2, rel=0.2)


def test_pairs_of_opposite_signs_cancel(posterior):
    base = posterior["alpha"]
    pairs = np.random.default_rng(5).normal(1, 2, size=(4, 100))
    values = np.concatenate([base, pairs, pairs], axis=1)
    sign = np.concatenate([np.ones((4, 350)), -np.ones((4, 100))], axis=1)
    assert signed.mean(values, sign) == pytest.approx(base.mean())
    assert signed.variance(values, sign) == pytest.approx(base.var())
    probs = [0.03, 0.25, 0.5, 0.9001]
    expected = np.quantile(base, probs, method="inverted_cdf")
    np.testing.assert_array_equal(signed.quantile(values, sign, probs), expected)
    low, high = signed.hdi(values, sign, 0.8)
    ordered = np.sort(base.ravel())
    width = min(ordered[799:] - ordered[: len(ordered) - 799])
    assert high - low == pytest.approx(width)
    assert np.mean((base >= low) & (base <= high)) == pytest.approx(0.8)


def test_quantiles_of_noisy_signs_are_ordered_and_near():
    values, sign = mixture_draws(np.random.default_rng(6), (4, 2000))
    probs = np.linspace(0.001, 0.999, 999)
    found = signed.quantile(values, sign, probs)
    assert np.all(np.diff(found) >= 0)
    raw = np.cumsum(sign.ravel()[np.argsort(values.ravel())]) / sign.sum()
    assert np.any(np.diff(raw) < 0)
    # Kolmogorov's distance of as many draws as the signs are worth, at 1e-5.
    bound = np.sqrt(-np.log(1e-5 / 2) / 2 / (8000 * SIGN**2))
    assert np.max(np.abs(mixture_cdf(found) - probs)) < bound


def test_the_distribution_is_no_farther_from_the_truth_than_the_estimate():
    for rng in np.random.default_rng(7).spawn(50):
        values, sign = mixture_draws(rng, (2, 40))
        x, reached = signed.distribution(values, sign)
        raw = np.cumsum(sign.ravel()[np.argsort(values.ravel())]) / sign.sum()
        truth = mixture_cdf(x)
        assert np.max(abs(reached - truth)) <= np.max(abs(raw - truth)) + 1e-12
        assert np.all(np.diff(reached) >= 0)


def test_r_hat_sees_chains_that_differ_in_their_signs_only():
    rng = np.random.default_rng(8)
    values = rng.normal(size=(4, 500))
    alike = np.where(rng.random((4, 500)) < 0.1, -1.0, 1.0)
    apart = np.where(rng.random((4, 500)) < np.array([[0.0, 0.0, 0.0, 0.4]]).T, -1.0, 1.0)
    assert signed.r_hat(values, alike) < 1.02
    assert array_stats.rhat(values) < 1.02 < 1.05 < signed.r_hat(values, apart)


# ArviZ


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("sign", ["none", "positive"])
@pytest.mark.parametrize("kind", KINDS)
def test_unsigned_draws_are_summarised_by_arviz(posterior, kind, sign):
    idata = tree(posterior, np.ones((4, 250)) if sign == "positive" else None, **names())
    for options in (
        {},
        {"round_to": "none", "ci_kind": "hdi", "ci_prob": 0.5},
        {"var_names": ["beta"], "coords": {"x": ["u", "w"]}, "fmt": "long"},
    ):
        found = pms.summary(idata, kind=kind, **options)
        pd.testing.assert_frame_equal(found, az.summary(idata, kind=kind, **options))
    found = pms.summary(idata, var_names="~alpha", kind=kind, fmt="xarray")
    xr.testing.assert_identical(
        found, az.summary(idata, var_names="~alpha", kind=kind, fmt="xarray")
    )


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ci_kind", ["eti", "hdi"])
def test_signed_summaries_look_like_those_of_arviz(posterior, signs, kind, ci_kind):
    idata = tree(posterior, signs, **names())
    options = {"kind": kind, "ci_kind": ci_kind, "ci_prob": 0.8}
    for fmt in ("wide", "long"):
        found = pms.summary(idata, fmt=fmt, **options)
        like = az.summary(idata, fmt=fmt, **options)
        assert list(found.columns) == list(like.columns)
        assert list(found.index) == list(like.index)
        assert found.notna().all().all()
    found = pms.summary(idata, fmt="xarray", **options)
    like = az.summary(idata, fmt="xarray", **options)
    assert found.sizes == like.sizes
    assert list(found["summary"]) == list(like["summary"])


def test_few_negative_signs_change_arvizs_numbers_little(posterior):
    sign = np.ones((4, 250))
    sign[0, 17] = -1
    idata = tree(posterior, sign, **names())
    for kind in KINDS:
        found = pms.summary(idata, kind=kind, round_to="none")
        like = az.summary(idata, kind=kind, round_to="none")
        small = found.drop(columns=[c for c in found if "mcse" in c or "ess" in c])
        np.testing.assert_allclose(small, like[small.columns], atol=0.05, rtol=0.02)
        for column in (c for c in found if c not in small):
            # The error of a median is the distance of two draws, which can be the next ones.
            rtol = 0.3 if column == "mcse_median" else 0.12
            np.testing.assert_allclose(found[column], like[column], rtol=rtol)


def test_a_signed_summary_holds_the_estimates(posterior, signs):
    table = pms.summary(tree(posterior, signs, **names()), round_to="none", ci_prob=0.8)
    beta = posterior["beta"][..., 1]
    expected = {
        "mean": (beta * signs).sum() / signs.sum(),
        "sd": np.sqrt(signed.variance(beta, signs)),
        "eti80_ub": signed.quantile(beta, signs, 0.9),
        "ess_bulk": signed.ess_bulk(beta, signs),
        "ess_tail": signed.ess_tail(beta, signs, az.rcParams["stats.ci_prob"]),
        "mcse_mean": signed.mcse_mean(beta, signs),
    }
    for column, value in expected.items():
        assert table.loc["beta[v]", column] == pytest.approx(float(value))


def test_digits(posterior, signs):
    idata = tree(posterior, signs, **names())
    raw = pms.summary(idata, round_to="none")
    np.testing.assert_array_equal(pms.summary(idata, round_to=2), raw.round(2))
    shown = pms.summary(idata)
    np.testing.assert_array_equal(shown.to_numpy(dtype=float), raw)
    assert f" {raw.loc['alpha', 'r_hat']:.2f} " in str(shown)


def test_signed_draws_survive_a_file(posterior, signs, tmp_path):
    pytest.importorskip("netCDF4")
    idata = tree(posterior, signs.astype("int8"), **names())
    idata.to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as read:
        pd.testing.assert_frame_equal(pms.summary(read), pms.summary(idata))


def test_selections(posterior, signs):
    idata = tree(posterior, signs, **names())
    whole = pms.summary(idata, round_to="none")
    part = pms.summary(idata, ["bet"], filter_vars="like", coords={"x": ["w"]}, round_to="none")
    pd.testing.assert_frame_equal(pd.DataFrame(part), pd.DataFrame(whole.loc[["beta[w]"]]))
    late = pms.summary(idata.isel(draw=slice(50, None)), round_to="none")
    by_coords = pms.summary(idata, coords={"draw": np.arange(50, 250)}, round_to="none")
    pd.testing.assert_frame_equal(late, by_coords)
    assert late.loc["alpha", "mean"] == pytest.approx(
        signed.mean(posterior["alpha"][:, 50:], signs[:, 50:])
    )


def test_signs_belong_to_the_posterior(posterior, signs):
    idata = tree(posterior, signs, **names())
    idata["prior"] = idata["posterior"].copy()
    pd.testing.assert_frame_equal(
        pms.summary(idata, group="prior"), az.summary(idata, group="prior")
    )
    idata["posterior_predictive"] = idata["posterior"].copy()
    predictive = pms.summary(idata, group="posterior_predictive")
    pd.testing.assert_frame_equal(predictive, pms.summary(idata))


# Expectations and quantiles


def test_expectation_of_a_function(posterior, signs):
    def exceeds(draws):
        return draws["beta"] > draws["alpha"]

    found = pms.expectation(tree(posterior, signs, **names()), exceeds)
    above = (posterior["beta"] > posterior["alpha"][..., None]).astype(float)
    assert found["mean"].dims == ("x",)
    for k, name in enumerate("uvw"):
        of = found.sel(x=name)
        assert of["mean"] == pytest.approx(signed.mean(above[..., k], signs))
        assert of["mcse"] == pytest.approx(signed.mcse_mean(above[..., k], signs))
        assert of["ess"] == pytest.approx(signed.ess_mean(above[..., k], signs))


def test_unsigned_expectations_are_arvizs(posterior):
    idata = tree(posterior, **names())
    found = pms.expectation(idata, lambda draws: draws["beta"])
    like = az.summary(idata, ["beta"], kind="mc_diagnostics", fmt="xarray", round_to="none")["beta"]
    np.testing.assert_allclose(found["mean"], posterior["beta"].mean((0, 1)))
    np.testing.assert_allclose(found["mcse"], like.sel(summary="mcse_mean"))
    np.testing.assert_allclose(found["ess"], like.sel(summary="ess_mean"))


@pytest.mark.parametrize("kind", ["value", "mcse", "ess"])
def test_quantiles(posterior, signs, kind):
    unsigned, with_signs = tree(posterior, **names()), tree(posterior, signs, **names())
    probs = [0.1, 0.5]
    found = pms.quantile(unsigned, probs, "beta", kind=kind)["beta"]
    assert found.dims == ("quantile", "x")
    expected = {
        "value": np.quantile(posterior["beta"][..., 2], 0.5),
        "mcse": array_stats.mcse(posterior["beta"][..., 2], method="quantile", prob=0.5),
        "ess": array_stats.ess(posterior["beta"][..., 2], method="quantile", prob=0.5),
    }
    assert found.sel(quantile=0.5, x="w") == pytest.approx(float(expected[kind]))
    found = pms.quantile(with_signs, probs, ["beta"], kind=kind)["beta"]
    function = {
        "value": signed.quantile, "mcse": signed.mcse_quantile, "ess": signed.ess_quantile
    }[kind]  # fmt: skip
    expected = function(posterior["beta"][..., 2], signs, 0.1)
    assert found.sel(quantile=0.1, x="w") == pytest.approx(float(expected))
    one = pms.quantile(with_signs, 0.1, kind=kind)
    assert set(one) == set(posterior)
    np.testing.assert_array_equal(one["beta"], found.sel(quantile=0.1))


def test_constants_and_missing_draws(posterior, signs):
    alpha = posterior["alpha"].copy()
    alpha[1, 3] = np.nan
    idata = tree({"fixed": np.full((4, 250), 2.5), "alpha": alpha}, signs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = pms.summary(idata, round_to="none")
    assert table.loc["fixed", ["mean", "sd", "mcse_mean"]].to_list() == [2.5, 0.0, 0.0]
    assert table.loc["fixed", "ess_bulk"] == 1000
    assert table.loc["alpha"].isna().all()


# Refusals and warnings


def test_a_mean_sign_near_zero_is_refused(posterior):
    sign = np.where(np.random.default_rng(9).random((4, 250)) < 0.48, -1, 1)
    idata = tree(posterior, sign, **names())
    for call in (
        lambda: pms.summary(idata),
        lambda: pms.expectation(idata, lambda draws: draws["alpha"]),
        lambda: pms.quantile(idata, 0.5),
    ):
        with pytest.raises(ValueError, match=r"of the signs are positive.*may as well be zero"):
            call()
    with pytest.raises(ValueError, match="may as well be zero"):
        pms.summary(tree(posterior, -np.ones((4, 250))))


def test_a_mean_sign_that_is_hardly_known_is_warned_of(posterior):
    sign = np.where(np.random.default_rng(10).random((4, 250)) < 0.42, -1, 1)
    with pytest.warns(UserWarning, match=r"10% of it: estimates are biased") as found:
        pms.summary(tree(posterior, sign, **names()), "alpha")
    assert found[0].filename == __file__


def test_a_good_sign_is_not_warned_of(posterior, signs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pms.summary(tree(posterior, signs, **names()))


@pytest.mark.filterwarnings("ignore:90.0% of the signs")
def test_a_negative_variance_is_none_and_said_to_be_so():
    values = np.zeros((2, 50))
    sign = np.ones((2, 50))
    values[:, :5], sign[:, :5] = 10, -1
    with pytest.warns(UserWarning, match="variance of far is negative") as found:
        table = pms.summary(tree({"far": values}, sign), round_to="none")
    assert found[-1].filename == __file__
    assert np.isnan(table.loc["far", "sd"])
    assert np.isnan(table.loc["far", "mcse_sd"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "most"}, "kind must be one of"),
        ({"fmt": "tall"}, "fmt must be one of"),
        ({"ci_kind": "max"}, "ci_kind must be one of"),
        ({"ci_prob": 1.0}, "ci_prob must be strictly between 0 and 1"),
        ({"ci_prob": [0.5, 0.9]}, "ci_prob must be one number"),
        ({"skipna": True}, "skipna must be False"),
        ({"sample_dims": ["draw"]}, "sample_dims must be"),
        ({"group": "posteriors"}, "no group 'posteriors'"),
    ],
)
def test_options_that_signed_draws_cannot_have(posterior, signs, options, message):
    with pytest.raises(ValueError, match=message):
        pms.summary(tree(posterior, signs, **names()), **options)


@pytest.mark.parametrize("prob", [0, 1, -0.1, np.nan, "half", [], [0.5, 2.0], [[0.5]]])
def test_probabilities_out_of_range(posterior, prob):
    with pytest.raises((ValueError, TypeError), match=r"prob must be (strictly between|a num)"):
        pms.quantile(tree(posterior, **names()), prob)


def test_what_is_no_data_tree_is_refused(posterior):
    idata = tree(posterior, **names())
    for wrong in (idata["posterior"].to_dataset(), posterior):
        with pytest.raises(TypeError, match="idata must be the DataTree"):
            pms.summary(wrong)


@pytest.mark.parametrize("value", [0, 2, np.nan])
def test_signs_are_one_or_minus_one(posterior, signs, value):
    sign = signs.astype(float)
    sign[2, 3] = value
    with pytest.raises(ValueError, match="must be 1 or -1"):
        pms.summary(tree(posterior, sign, **names()))


def test_signs_of_other_draws_are_refused(posterior, signs):
    idata = tree(posterior, signs, **names())
    idata["posterior"] = idata["posterior"].isel(draw=slice(None, None, 2))
    with pytest.raises(ValueError, match="signs don't belong to these draws"):
        pms.summary(idata)
    idata = tree(posterior, np.stack([signs, signs], axis=2), **names())
    with pytest.raises(ValueError, match="Several step methods recorded negative signs"):
        pms.summary(idata)
    with pytest.raises(ValueError, match=r"keep its dimension: idata\.isel\(chain=\[0\]\)"):
        pms.summary(tree(posterior, signs, **names()).isel(chain=0))


def test_signs_of_several_steps(posterior, signs):
    """One step with signs beside others without any: its signs are the run's."""
    none = np.ones_like(signs)
    expected = pms.summary(tree(posterior, signs, **names()), round_to="none")
    both = tree(posterior, np.stack([none, signs], axis=2), **names())
    pd.testing.assert_frame_equal(pms.summary(both, round_to="none"), expected)
    plain = pms.summary(tree(posterior, np.stack([none, none], axis=2), **names()))
    pd.testing.assert_frame_equal(plain, pms.summary(tree(posterior, **names())))


@pytest.mark.parametrize("signed_run", [False, True])
def test_a_single_chain_is_selected_like_a_list_of_one(posterior, signs, signed_run):
    idata = tree(posterior, signs if signed_run else None, **names())
    one, some = {"chain": 2}, {"chain": [2]}
    pd.testing.assert_frame_equal(pms.summary(idata, coords=one), pms.summary(idata, coords=some))
    xr.testing.assert_equal(
        pms.quantile(idata, 0.5, coords=one), pms.quantile(idata, 0.5, coords=some)
    )
    xr.testing.assert_equal(
        pms.expectation(idata, lambda draws: draws["beta"], coords=one),
        pms.expectation(idata, lambda draws: draws["beta"], coords=some),
    )


def test_functions_that_are_none(posterior):
    idata = tree(posterior, **names())
    with pytest.raises(TypeError, match="f must be a function of the draws, got 'beta'"):
        pms.expectation(idata, "beta")
    with pytest.raises(TypeError, match="real numbers"):
        pms.expectation(idata, lambda draws: draws["beta"] * 1j)


def test_functions_that_return_no_draws(posterior, signs):
    idata = tree(posterior, signs, **names())
    with pytest.raises(TypeError, match="f must return a DataArray, got ndarray"):
        pms.expectation(idata, lambda draws: draws["alpha"].values)
    with pytest.raises(ValueError, match="f must keep the dimensions chain and draw"):
        pms.expectation(idata, lambda draws: draws["alpha"].mean("draw"))
    with pytest.raises(ValueError, match="kind must be one of"):
        pms.quantile(idata, 0.5, kind="sd")
