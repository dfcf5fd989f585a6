"""An audit recovers the posterior from wrong draws, and finds nothing wrong with right ones."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.stats
import xarray as xr
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.diagnostics.reading_draws import columns, to_theta
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel
from pymc_subsample.results.audit.result import Audit

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}


def logistic(n=2000, seed=0, prior=(0.5, 0.06)):
    """One slope, with its posterior mean and sd by quadrature."""
    rng = np.random.default_rng(seed)
    x = rng.exponential(size=n)
    y = rng.random(n) < 1 / (1 + np.exp(1 - 0.5 * x))
    grid = np.linspace(0.0, 1.2, 12_001)
    logp = np.array([np.sum(y * (b * x - 1) - np.logaddexp(0, b * x - 1)) for b in grid])
    logp -= 0.5 * ((grid - prior[0]) / prior[1]) ** 2
    weights = np.exp(logp - logp.max())
    weights /= weights.sum()
    mean = weights @ grid
    with pm.Model() as model:
        b = pm.Normal("b", *prior)
        pm.Bernoulli("y", logit_p=b * x - 1, observed=y)
    return model, mean, np.sqrt(weights @ (grid - mean) ** 2)


def several(n=1500):
    """Named coefficients and a scale with a transform."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 3))
    with pm.Model(coords={"k": ["age", "sex", "dose"]}) as model:
        beta = pm.Normal("beta", 0, 2, dims="k")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Deterministic("ratio", pm.math.exp(beta[0] - beta[1]))
        pm.Normal("y", X @ beta, sigma, observed=X @ [0.5, 0.0, -0.5] + rng.normal(size=n))
    return model


def sample(model, step, draws=1000, tune=500, chains=2, seed=1):
    return pm.sample(
        draws, tune=tune, chains=chains, random_seed=seed, step=step, model=model, **QUIET
    )


@pytest.fixture(scope="module")
def model():
    return several()


@pytest.fixture(scope="module")
def healthy(model):
    return sample(model, pms.HMCECS(model=model))


@pytest.fixture(scope="module")
def barker(model):
    return sample(model, pms.MinibatchBarkerMH(model=model))


def only(found: Audit, name):
    return float(found.table[name].values[0])


# Chains that have not mixed


@pytest.mark.costly(cases=0)
def test_weights_that_correct_nothing_are_no_verdict_on_chains_that_have_not_mixed():
    """Control variates are exact here, and all weights equal, wherever the chains are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    with pm.Model() as normal:
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x, 1.0, observed=rng.normal(size=400))
        still = sample(normal, pms.HMCECS(path_length=1e-3), draws=100, tune=20)
        moving = sample(normal, pms.HMCECS(), draws=800, tune=200)
        stuck, right = pms.audit(still), pms.audit(moving)
    assert {f.status for f in stuck.of_subsampling} == {"pass"}
    assert stuck.status == "fail"
    assert repr(stuck).startswith("FAIL")
    assert "have not mixed" in repr(stuck)
    assert "have not mixed" in stuck._repr_html_()
    assert pms.report(still, audit=stuck).status == "fail"
    assert right.status == "pass"
    assert repr(right).startswith("PASS")
    assert "have not mixed" not in repr(right)


@pytest.mark.costly
def test_draws_far_from_the_posterior_fail_where_weights_are_all_equal():
    """As of chains that stay at the same wrong place, which R-hat cannot tell."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1.0, observed=rng.normal(size=400))
    run = sample(model, pms.HMCECS(model=model), draws=500, tune=200)
    logp = model.compile_logp()

    def audited(by):
        a = run.posterior["a"] + by
        lp = [[float(logp({"a": x})) for x in chain] for chain in a.values]
        stats = run.sample_stats.to_dataset().assign(lp=(("chain", "draw"), lp))
        return pms.audit(
            xr.DataTree.from_dict({"posterior": a.to_dataset(), "sample_stats": stats}),
            model=model,
        )

    assert audited(0.0).status == "pass"
    found = audited(1.0)
    assert found.status == "fail"
    [off] = [f for f in found.findings if f.status != "pass"]
    assert (off.name, off.advice) == ("other", found.other)
    assert "far from this model's posterior" in repr(found)


# Weights


@pytest.mark.costly(cases=0)
def test_labels_are_those_of_arviz(healthy):
    import arviz as az

    _, labels = columns(healthy["posterior"].to_dataset(), ["beta", "sigma"])
    assert labels == list(az.summary(healthy, var_names=["beta", "sigma"]).index)
    assert "beta[dose]" in labels


@pytest.mark.costly(cases=0)
def test_recorded_lp_is_the_estimate_of_the_log_posterior(model):
    """With as many rows as there are, order 2 and narrow noise, weights hardly vary."""
    step = pms.HMCECS(model=model, subsample_size=1500)
    idata = sample(model, step, draws=200, tune=200)
    tall = TallModel(model)
    thetas = to_theta(model, tall, idata["posterior"].to_dataset(), "test").reshape(-1, tall.size)
    logp, _ = log_posteriors(expand(tall, 0), thetas)
    error = logp - idata["sample_stats"]["lp"].values.ravel()
    noise = np.sqrt(idata["sample_stats"]["loglik_variance"].values.ravel())
    assert noise.max() < 0.5
    assert np.abs(error / noise).max() < 6
    assert abs(np.mean(error / noise)) < 1


@pytest.mark.costly
def test_healthy_run_is_left_as_it_is(healthy, model):
    found = pms.audit(healthy, model=model, var_names=["beta", "sigma", "ratio"])
    assert found.kind == "weights"
    assert found.k_hat < 0.5
    assert found.n_draws == 200
    # The farthest draws too, and far out along either side of each element, alone and with others.
    assert 200 < found.passes <= 216 + 1 + 4 * 4
    assert found.ess > 190
    assert np.isnan(found.p_value)
    table = found.table
    assert np.abs(table["bias"]).max() < 0.01
    assert np.abs(table["sd_error"]).max() < 0.01
    every = healthy["posterior"].to_dataset()
    np.testing.assert_allclose(table["mean"].values[-1], every["ratio"].values.mean())
    np.testing.assert_allclose(table["sd"].values[-2], every["sigma"].values.std())


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [2, 3])
def test_weights_undo_the_noise_of_a_poor_run(seed):
    """Ten rows of order 1, expanded off the mode, put the mean a quarter of an sd or more off."""
    model, mean, sd = logistic()
    step = pms.HMCECS(
        model=model, subsample_size=10, control_variate_order=1, reference={"b": mean + sd}
    )
    idata = sample(model, step, draws=2000, seed=seed)
    found = pms.audit(idata, model=model, draws=400)
    error = only(found, "corrected_mean_mcse")
    assert only(found, "mean") < mean - 0.25 * sd
    assert only(found, "sd") > 1.15 * sd
    assert error < 0.12 * sd
    assert abs(only(found, "corrected_mean") - mean) < 4 * error
    assert abs(only(found, "corrected_sd") - sd) < 4 * only(found, "corrected_sd_mcse")
    assert found.ess < 350
    assert pms.report(idata, audit=found).status == "fail"


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("ignore")
def test_weights_undo_the_temperature():
    """A prior that pulls away weighs more at temperature 3: mean 0.3 sd off, sd too large."""
    model, mean, sd = logistic(prior=(0.3, 0.08))
    step = pms.HMCECS(model=model, temperature=3.0)
    idata = sample(model, step, draws=2000)
    found = pms.audit(idata, model=model, draws=600)
    assert only(found, "mean") < mean - 0.3 * sd
    assert only(found, "sd") > 1.25 * sd
    assert only(found, "corrected_mean_mcse") < 0.1 * sd
    for moment, truth in (("mean", mean), ("sd", sd)):
        error = only(found, f"corrected_{moment}_mcse")
        assert abs(only(found, f"corrected_{moment}") - truth) < 4 * error


# Scores


@pytest.fixture(scope="module")
def walled():
    """Forty levels whose outcomes are all alike: normal on one side, a wall on the other.

    The model, exact means and sds by quadrature, and a function from a seed to exact draws.
    """
    levels, rows, slope = 40, 100, 8.0
    height = np.linspace(-2, 12, levels)
    grid = np.linspace(-4, 6, 20_001)
    eta = height[:, None] + slope * grid
    density = np.exp(-0.5 * grid**2 - rows * np.logaddexp(0, -eta))
    density /= density.sum(axis=1, keepdims=True)
    mean = density @ grid
    sd = np.sqrt((density * (grid - mean[:, None]) ** 2).sum(axis=1))
    level = np.repeat(np.arange(levels), rows)
    with pm.Model() as model:
        z = pm.Normal("z", 0, 1, shape=levels)
        pm.Bernoulli("y", logit_p=height[level] + slope * z[level], observed=np.ones(len(level)))
    below = np.cumsum(density, axis=1)

    def draw(seed):
        u = np.random.default_rng(seed).random((levels, 4000))
        x = [np.interp(p, cdf, grid) for p, cdf in zip(u, below, strict=True)]
        return np.transpose(x).reshape(4, 1000, levels)

    return model, mean, sd, draw


def of_draws(x, model):
    z = xr.Dataset({"z": (("chain", "draw", "k"), x)})
    return pms.audit(xr.DataTree.from_dict({"posterior": z}), model=model)


def corrected_z(found, mean, sd):
    """How far corrected moments are off, in their errors, shape (2, p)."""
    table = found.table
    off = table["corrected_mean"].values - mean, table["corrected_sd"].values - sd
    return np.array(off) / [table["corrected_mean_mcse"], table["corrected_sd_mcse"]]


@pytest.mark.costly(cases=0)
def test_scores_leave_right_draws_of_separated_levels_as_they_are(walled):
    """Bounds fail a right audit once in 1e4; a is 1 in none: it made errors 1.5 times as large."""
    model, mean, sd, draw = walled
    z, errors, alarms = [], [], 0
    for seed in range(6):
        found = of_draws(draw(seed), model)
        z.append(corrected_z(found, mean, sd))
        errors.append(found.table["bias_mcse"].values)
        alarms += any(f.status != "pass" for f in found.of_subsampling)
    beyond = 2 * scipy.stats.t.sf(4, 19)
    assert np.sum(np.abs(z) > 4) <= scipy.stats.binom.isf(1e-4, np.size(z), beyond)
    # Bias and sd_error together, and the warning of the p-value: one audit in a hundred each.
    assert alarms <= scipy.stats.binom.isf(1e-4, 6, 0.02)
    # Least noise is no more than that of the draws which were audited, and of all.
    assert np.mean(errors) < np.hypot(1 / np.sqrt(200), 1 / np.sqrt(4000))


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("shift", "stretch"), [(-0.3, 1.0), (0.0, 1.25), (0.3, 1.0), (0.0, 0.8)])
def test_scores_find_wrong_draws_of_separated_levels(walled, shift, stretch):
    """Where draws reach the walls, the errors of corrections hold what is beyond first order."""
    model, mean, sd, draw = walled
    for seed in range(2):
        found = of_draws(mean + stretch * (draw(seed) - mean) + shift * sd, model)
        assert found.status == "fail"
        assert found.p_value < 1e-3
        if shift < 0 or stretch > 1:
            assert np.sqrt(np.mean(corrected_z(found, mean, sd) ** 2)) < 1.5


@pytest.fixture(scope="module")
def means():
    """A hundred means of four rows each, whose posterior is normal; exact means and their sd."""
    level = np.repeat(np.arange(100), 4)
    y = np.random.default_rng(19).normal(size=400)
    with pm.Model() as model:
        z = pm.Normal("z", 0, 3, shape=100)
        pm.Normal("y", z[level], 1, observed=y)
    precision = 4 + 1 / 9
    return model, np.bincount(level, y) / precision, precision**-0.5


@pytest.mark.slow
def test_scores_of_few_right_draws_find_no_sd_wrong(means):
    """Ten draws of four chains: the smallest of a hundred sds come with the smallest errors.

    Bias and sd_error together fail one audit in a hundred; the bound fails once in 1e4.
    """
    model, mean, sd = means
    alarms = 0
    for seed in range(40):
        found = of_draws(mean + sd * np.random.default_rng(seed).normal(size=(4, 10, 100)), model)
        alarms += any(f.name == "sd_error" and f.status != "pass" for f in found.of_subsampling)
    assert alarms <= scipy.stats.binom.isf(1e-4, 40, 0.01)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("stretch", [0.85, 1.15])
def test_scores_find_wrong_sds_of_a_normal_posterior(means, stretch):
    model, mean, sd = means
    draws = mean + stretch * sd * np.random.default_rng(0).normal(size=(4, 250, 100))
    judged = {f.name: f.status for f in of_draws(draws, model).of_subsampling}
    assert judged["sd_error"] == "fail"


@pytest.mark.costly
def test_minibatch_run_passes_and_a_stretched_one_does_not(barker, model):
    found = pms.audit(barker, model=model, var_names=["beta", "sigma", "ratio"])
    assert found.kind == "score"
    # The same, a pass for curvatures, and beside draws.
    assert found.n_draws + 1 < found.passes <= found.n_draws + 17 + 16 + 1 + 4 * 4
    assert found.p_value > 0.001
    assert np.isnan(found.k_hat)
    sure = np.abs(found.table["bias"]) - 4 * found.table["bias_mcse"]
    assert sure.max() < 0.02
    wrong = barker.copy(deep=True)
    beta = wrong["posterior"]["beta"]
    middle = beta.mean(("chain", "draw"))
    wrong["posterior"]["beta"] = middle + 1.15 * (beta - middle) + 0.3 * beta.std(("chain", "draw"))
    off = pms.audit(wrong, model=model, var_names=["beta", "sigma"])
    assert off.p_value < 1e-4
    np.testing.assert_allclose(off.table["sd_error"][:3], 0.15, atol=0.09)
    np.testing.assert_allclose(off.table["bias"][:3], 0.3, atol=0.15)
    np.testing.assert_allclose(
        off.table["corrected_mean"][:3], found.table["corrected_mean"][:3], atol=2e-3
    )


@pytest.mark.costly
def test_scores_and_weights_agree(healthy, model):
    weights = pms.audit(healthy, model=model, var_names=["beta", "sigma", "ratio"])
    score = pms.audit(healthy, model=model, var_names=["beta", "sigma", "ratio"], kind="score")
    assert score.p_value > 0.001
    a, b = weights.table, score.table
    error = np.hypot(a["corrected_mean_mcse"], b["corrected_mean_mcse"])
    assert np.all(np.abs(a["corrected_mean"] - b["corrected_mean"]) < 4.5 * error)
    error = np.hypot(a["corrected_sd_mcse"], b["corrected_sd_mcse"])
    assert np.all(np.abs(a["corrected_sd"] - b["corrected_sd"]) < 4.5 * error)


@pytest.mark.costly(cases=0)
def test_audit_is_repeatable_and_survives_a_file(barker, model, tmp_path):
    pytest.importorskip("netCDF4")
    barker.to_netcdf(tmp_path / "draws.nc")
    first = pms.audit(barker, model=model, draws=60)
    with xr.open_datatree(tmp_path / "draws.nc") as stored:
        second = pms.audit(stored, model=model, draws=60)
    assert first.p_value == second.p_value
    xr.testing.assert_equal(first.table, second.table)


def test_audit_is_readable(healthy, model):
    with model:
        found = pms.audit(healthy, draws=60)
    assert f"{found.passes} passes" in repr(found)
    assert "beta[sex]" in repr(found)
    assert "k-hat" in found._repr_html_()
    assert list(found.table["parameter"].values) == [
        "beta[age]",
        "beta[sex]",
        "beta[dose]",
        "sigma",
    ]


# Other models and other data


def effects(x, group, y, scale):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 3), pm.Normal("b", 0, 1)
        t, z = pm.HalfNormal("t", 1), pm.Normal("z", 0, scale, shape=8)
        pm.Bernoulli("y", logit_p=a + b * (x - 10) + t * z[group], observed=y)
    return model


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", [pms.HMCECS, pms.MinibatchBarkerMH])
def test_another_model_is_not_blamed_on_the_subsample(step):
    """Constants of a graph are not recorded by a run: its draws and its estimates tell."""
    rng = np.random.default_rng(0)
    x, group = rng.normal(10, 3, 20_000), rng.integers(0, 8, 20_000)
    y = (rng.random(20_000) < expit(0.3 * x - 4 + 0.2 * (group - 4))).astype(int)
    right = effects(x, group, y, 2.0)
    idata = sample(right, step(model=right), draws=1500, tune=1000)
    assert pms.audit(idata, model=right).other == ""
    far = effects(60 * x, group, y, 2.0), effects(x, (group + 1) % 8, y, 2.0)
    near = effects(x + 0.12, group, y, 2.0), effects(x, group, y, 1.0)
    for wrong in far:
        found = pms.audit(idata, model=wrong)
        assert found.status == "fail"
        assert "far from this model's posterior" in found.other
    for wrong in near if step is pms.HMCECS else ():
        found = pms.audit(idata, model=wrong)
        assert found.status == "fail"
        assert "Log posteriors of all rows differ" in found.other
    said = str(pms.report(idata, audit=found))
    assert said.count(found.other) == 1
    assert "Increase subsample_size" not in said
    with pytest.raises(ValueError, match="given other values of 'y'"):
        pms.audit(idata, model=effects(x, group, rng.permutation(y), 2.0))


def test_draws_of_another_model_fail_where_their_weights_only_warn(healthy, model):
    with model:
        found = pms.audit(healthy, draws=60)
    assert found.status == "pass"
    doubtful = replace(found, k_hat=0.6, ess=0.1 * found.n_draws)
    for judged, status in ((found, "pass"), (doubtful, "warn")):
        assert judged.status == status
        other = replace(judged, other="Another model was sampled.")
        assert other.status == "fail"
        assert str(other).count(other.other) == 1


# Refusals


@pytest.mark.costly(cases=0)
def test_a_run_of_several_steps_is_judged_by_scores(model):
    with model:
        step = [pms.HMCECS(vars=[model["beta"]]), pm.Slice([model["sigma"]])]
        idata = sample(model, step, draws=100, tune=100)
        assert pms.audit(idata, draws=40).kind == "score"
        with pytest.raises(ValueError, match="several step methods"):
            pms.audit(idata, draws=40, kind="weights")


@pytest.mark.costly(cases=0)
def test_what_cannot_be_audited_is_refused(healthy, barker, model):
    with pytest.raises(TypeError, match="no model in context"):
        pms.audit(healthy)
    partial = healthy.copy()
    partial["posterior"] = xr.DataTree(healthy["posterior"].to_dataset().drop_vars("sigma"))
    with pytest.raises(ValueError, match="lacks 'sigma'"):
        pms.audit(partial, model=model)
    for run in (healthy, barker):
        with pytest.raises(ValueError, match="sampled 1,500 rows, the model has 1,600"):
            pms.audit(run, model=several(1600))
    with pytest.raises(ValueError, match=r"var_names=\['gamma'\]"):
        pms.audit(healthy, model=model, var_names=["gamma"])
    with pytest.raises(ValueError, match="at least 40"):
        pms.audit(healthy.isel(draw=slice(10)), model=model)
    with pytest.raises(ValueError, match="draws must be"):
        pms.audit(healthy, model=model, draws=3)
    with pytest.raises(ValueError, match="kind must be one of"):
        pms.audit(healthy, model=model, kind="both")
    with pytest.raises(ValueError, match="an HMCECS run"):
        pms.audit(barker, model=model, kind="weights")
    with pytest.raises(TypeError, match=r"DataTree that pm\.sample returned, got dict"):
        pms.audit({}, model=model)
    with pytest.raises(ValueError, match="no group 'posterior'"):
        pms.audit(xr.DataTree(), model=model)
    negative = healthy.copy(deep=True)
    negative["posterior"]["sigma"] = -negative["posterior"]["sigma"]
    with pytest.raises(ValueError, match="'sigma' are not finite or lie on the edge"):
        pms.audit(negative, model=model)


def test_discrete_variables_are_refused():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("y", k, 1, observed=np.zeros(100))
    data = xr.Dataset({"k": (("chain", "draw"), np.zeros((1, 100), dtype=int))})
    idata = xr.DataTree.from_dict({"posterior": data})
    with pytest.raises(pms.TallModelError, match="'k' is discrete"):
        pms.audit(idata, model=model)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("family", "far"), [("bernoulli", 2.0), ("poisson", 600.0)])
def test_an_intercept_that_bambi_moved_is_named(family, far):
    """By either way, and where rates overflow; that of a model which is not centred is audited."""
    bmb = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    x = rng.normal(far, 1, 1_500)
    eta = x - far
    y = rng.poisson(np.exp(eta)) if family == "poisson" else (rng.random(1_500) < expit(eta)) + 0
    frame = pd.DataFrame({"y": y, "x": x})
    for centred, formula in ((True, "y ~ x"), (False, "y ~ center(x)")):
        written = bmb.Model(formula, frame, family=family, center_predictors=centred)
        written.build()
        inner = written.backend.model
        idata = written.fit(
            400, 400, step=pms.HMCECS(model=inner), chains=2, cores=1, random_seed=1,
            progressbar=False,
        )  # fmt: skip
        for kind in ("weights", "score"):
            if not centred:
                assert pms.audit(idata, model=inner, kind=kind, draws=60).status != "fail"
                continue
            with pytest.raises(ValueError, match=r"Bambi's fit .*center_predictors=False"):
                pms.audit(idata, model=inner, kind=kind, draws=60)
