"""Steps integrate local variables out of an unchanged model, and draw them for what is stored."""

import logging
import pickle
from functools import cache

import cloudpickle
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from chains import QUIET, assert_as_declared, assert_moments, chain, verdict
from scipy import stats

import pymc_subsample as pms
from pymc_subsample.chain import end_of_chain, nuts_instead
from pymc_subsample.diagnostics.integrals import INTEGRALS, LOCAL_DRAWS, effects_in, worded
from pymc_subsample.samplers.hmc_ecs.checks import NOISE
from pymc_subsample.units import drawing, marginal, run_marginal
from pymc_subsample.units.accuracy import Integral
from pymc_subsample.units.choosing import may_pay

UNITS, ROWS = 300, 2
rng = np.random.default_rng(3)
unit = np.repeat(np.arange(UNITS), ROWS)
outcome = 0.3 + 0.8 * rng.normal(size=UNITS)[unit] + rng.normal(size=UNITS * ROWS)
NAMES = [f"u{i}" for i in range(UNITS)]


def linear_mixed(y=outcome, index=unit):
    with pm.Model(coords={"unit": NAMES}) as model:
        code = pm.Data("code", index)
        mu, tau, sigma = pm.Normal("mu"), pm.HalfNormal("tau"), pm.HalfNormal("sigma")
        z = pm.Normal("z", dims="unit")
        pm.Deterministic("effect", mu + tau * z, dims="unit")
        pm.Normal("y", mu + tau * z[code], sigma, observed=y)
    return model


@cache
def model():
    return linear_mixed()


@cache
def step():
    return pms.HMCECS(model=model())


@pytest.mark.costly
def test_all_units_are_compared_in_the_variables_that_the_chain_moves(monkeypatch):
    """In those of the user's model, effects among them, compiled code had written beyond arrays."""
    monkeypatch.setattr(nuts_instead, "SAVED_SECONDS", 0.0)
    found = nuts_instead.compare(step())
    assert 1 < found.gradients < 100
    with pytest.raises(AssertionError, match="theta is of another model"):
        step().expansion.parameters(np.zeros(UNITS))


def sampled(draws=1_000, tune=500, chains=2, **kwargs):
    return pm.sample(
        draws, tune=tune, chains=chains, step=step(), model=model(), random_seed=4,
        **{"cores": 1} | QUIET | kwargs,
    )  # fmt: skip


@cache
def idata():
    return sampled(draws=2_000)


def on_a_grid():
    """Posterior means, standard deviations and two quantiles of mu, tau and sigma: balanced rows.

    Sums of a unit are normal with variance ROWS (sigma^2 + ROWS tau^2), and what is within it tells
    of sigma alone.
    """
    y = outcome.reshape(UNITS, ROWS)
    mean, within = y.mean(axis=1), ((y - y.mean(axis=1, keepdims=True)) ** 2).sum()
    mu, tau, sigma = np.meshgrid(
        np.linspace(-0.1, 0.8, 81), np.linspace(0.3, 1.4, 111), np.linspace(0.7, 1.3, 101),
        indexing="ij",
    )  # fmt: skip
    between = tau**2 + sigma**2 / ROWS
    squares = ((mean - mean.mean()) ** 2).sum() + UNITS * (mean.mean() - mu) ** 2
    log_p = -0.5 * UNITS * np.log(between) - 0.5 * squares / between
    log_p += -UNITS * (ROWS - 1) * np.log(sigma) - 0.5 * within / sigma**2
    log_p += -0.5 * (mu**2 + tau**2 + sigma**2)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = {}
    for axis, (name, grid) in enumerate({"mu": mu, "tau": tau, "sigma": sigma}.items()):
        marginal = p.sum(axis=tuple(i for i in range(3) if i != axis))
        x = np.unique(grid)
        m = marginal @ x
        ends = np.interp([0.01, 0.99], marginal.cumsum() - marginal / 2, x)
        found[name] = m, np.sqrt(marginal @ (x - m) ** 2), ends
    return found


@pytest.mark.costly
def test_the_posterior_of_what_units_share_is_that_of_a_linear_mixed_model():
    for name, (mean, sd, ends) in on_a_grid().items():
        draws = idata().posterior[name].to_numpy()
        assert_moments(draws, mean, sd)
        # Of so few independent draws, a share of 1% is between these in all but 1e-5 of samples.
        few = draws.size // 10
        for probability, end in zip((0.01, 0.99), ends, strict=True):
            low, high = stats.binom(few, probability).ppf([5e-6, 1 - 5e-6]) / few
            assert low <= np.mean(draws < end) <= high
        with pytest.raises(AssertionError):
            assert_moments(draws, mean + sd, sd)


def standardised(run, level):
    """Draws of a level's variable, less their mean and over their sd given the others, exactly."""
    posterior = run.posterior.to_dataset()
    mu, tau, sigma = (posterior[name].to_numpy().ravel() for name in ("mu", "tau", "sigma"))
    own = outcome[unit == level]
    precision = ROWS * tau**2 / sigma**2 + 1
    mean = (own.sum() - ROWS * mu) * tau / sigma**2 / precision
    return (posterior["z"].to_numpy()[..., level].ravel() - mean) * np.sqrt(precision)


@pytest.mark.costly
def test_local_variables_are_drawn_given_each_draw():
    for level in (0, 17, int(np.argmax(outcome.reshape(UNITS, ROWS).sum(axis=1)))):
        assert stats.kstest(standardised(idata(), level), "norm").pvalue > 1e-5
    posterior = idata().posterior
    effect = posterior["mu"] + posterior["tau"] * posterior["z"]
    np.testing.assert_allclose(posterior["effect"], effect)
    assert posterior["z"].dims == ("chain", "draw", "unit")
    # Units are independent given the others, and so are draws of one.
    pair = np.corrcoef(standardised(idata(), 3), standardised(idata(), 4))[0, 1]
    assert abs(pair) < 4.5 / np.sqrt(4_000)


@pytest.mark.costly
def test_where_a_point_repeats_local_variables_are_drawn_anew():
    posterior = idata().posterior.to_dataset()
    same = np.all([np.diff(posterior[n], axis=1) == 0 for n in ("mu", "tau", "sigma")], axis=0)
    assert same.sum() > 20  # of rejected trajectories
    assert not (np.diff(posterior["z"].to_numpy(), axis=1)[same] == 0).any()


@pytest.mark.costly
def test_draws_of_the_prior_are_found_out(monkeypatch):
    right = drawing.LocalDraws.at
    elsewhere = {"mu": 0.0, "tau_log__": 0.0, "sigma_log__": 1.0}  # where sigma is e

    def wrong(self, point, key, number):
        there = point | {n: np.array(x) for n, x in elsewhere.items()}
        return right(self, there, key, number)

    monkeypatch.setattr(drawing.LocalDraws, "at", wrong)
    assert stats.kstest(standardised(sampled(draws=500), 17), "norm").pvalue < 1e-5


@pytest.mark.costly
def test_draws_do_not_depend_on_processes_or_on_what_is_stored():
    short = {"draws": 60, "tune": 60}
    first, parallel = sampled(**short), sampled(**short, cores=2)
    xr.testing.assert_equal(first.posterior.to_dataset(), parallel.posterior.to_dataset())
    without = sampled(**short, var_names=["mu", "tau", "sigma"]).posterior.to_dataset()
    xr.testing.assert_equal(first.posterior.to_dataset()[["mu", "tau", "sigma"]], without)
    again = pickle.loads(cloudpickle.dumps(step()))
    start = model().initial_point()
    one, other = (chain(s, start)[0] for s in (step(), again))
    np.testing.assert_array_equal(one, other)


@pytest.mark.costly
def test_a_run_that_stores_no_local_variable_draws_none(monkeypatch):
    monkeypatch.setattr(drawing.LocalDraws, "at", lambda *_: pytest.fail("drawn"))
    run = sampled(draws=100, tune=100, var_names=["mu", "tau", "sigma"])
    monkeypatch.undo()
    draws = pms.effects(run, model(), "z", levels=["u0", "u17"])["z"]
    assert draws.shape == (2, 100, 2)


@pytest.mark.costly
def test_statistics_are_as_declared():
    _, found = chain(step(), model().initial_point(), tune=20, draws=20)
    assert_as_declared(step(), found)
    assert {(stat["effect_axis_z"], stat["effect_axis_effect"]) for stat in found} == {(0, 0)}
    assert np.isfinite(verdict(found).values["integrals"])


@pytest.mark.costly
def test_a_report_counts_units_and_judges_integrals():
    report = pms.report(idata())
    assert report.status == "pass"
    assert f"of {UNITS} units" in str(report)
    names = [finding.name for finding in report.findings]
    assert {INTEGRALS.name, LOCAL_DRAWS.name} < set(names)


def test_texts_about_rows_are_about_units_but_not_names_of_variables():
    said = "Rows per row: the rows' terms, rows[3], 'row' and rows_read; a row evaluation."
    assert worded(said, "rows") == said
    assert worded(said, "units") == (
        "Units per unit: the units' terms, rows[3], 'row' and rows_read; a unit evaluation."
    )
    assert worded("Row evaluations of rows", "rows or units") == (
        "Row or unit evaluations of rows or units"
    )


@pytest.mark.costly
def test_warnings_at_the_end_of_a_chain_are_about_units():
    found = NOISE.check(5.0, "Increase subsample_size, up to all rows.")
    said = end_of_chain._recorded(step(), [found])["warning"].message
    assert said == "HMCECS: Increase subsample_size, up to all units."


@pytest.mark.costly
def test_a_stored_run_knows_its_effects_by_name(tmp_path):
    sampled(draws=100, tune=100, cores=2).to_netcdf(tmp_path / "run.nc")
    with xr.open_datatree(tmp_path / "run.nc") as stored:
        parts = {n: stored[n].to_dataset() for n in ("posterior", "sample_stats")}
        twice = {n: xr.concat([x, x], "chain") for n, x in parts.items()}
    run = xr.DataTree.from_dict(twice)
    assert effects_in(run.sample_stats) == {"z": 0, "effect": 0}
    assert run_marginal.integrated_in(run, model()) == ["z"]
    with pm.Model() as other:
        pm.Normal("mu")
    with pytest.raises(ValueError, match="'effect' and 'z' out, which the model does not have"):
        run_marginal.integrated_in(run, other)


@pytest.mark.costly
def test_a_shared_variable_of_as_many_elements_as_levels_is_none_of_the_effects():
    """Of 300 elements one is stuck, which the line of effects would let pass."""
    posterior = idata().posterior.to_dataset()
    values = np.random.default_rng(0).normal(size=posterior["z"].shape)
    values[:, :, 7] = np.repeat(np.arange(20), 100) + [[0], [1]] + values[:, :, 7]
    run = idata().assign(posterior=xr.DataTree(posterior.assign(w=(posterior["z"].dims, values))))
    found = {finding.name: finding for finding in pms.report(run).findings}
    assert found["effects_ess"].status == found["effects_r_hat"].status == "pass"
    assert found["ess"].status == "fail"
    assert "w[u7]" in found["ess"].advice


@pytest.mark.costly
def test_integrals_of_too_few_nodes_fail_in_the_report_and_in_an_audit(monkeypatch):
    def few(*_):
        return Integral(per_dimension=1, steps=0, error=0.0, worst=0)

    y = (outcome > 0.3).astype(int)
    with pm.Model() as binary:
        tau, z = pm.HalfNormal("tau", 2), pm.Normal("z", shape=UNITS)
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + tau * z[unit], observed=y)
    monkeypatch.setattr(marginal, "choose_nodes", few)
    run = pm.sample(
        200, tune=300, chains=2, cores=1, model=binary, step=pms.HMCECS(model=binary),
        random_seed=1, **QUIET,
    )  # fmt: skip
    [finding] = [f for f in pms.report(run).findings if f.name == INTEGRALS.name]
    assert finding.status == "fail"
    assert "n_nodes" in finding.advice


@pytest.mark.slow
def test_an_audit_is_of_the_marginal_posterior():
    audit = pms.audit(idata(), model=model(), draws=100)
    assert (audit.kind, audit.counted) == ("weights", "units")
    exact = on_a_grid()
    for name, (mean, sd, _) in exact.items():
        row = audit.table.to_dataframe().loc[name]
        assert abs(row["corrected_mean"] - mean) < 5 * row["corrected_mean_mcse"] + 0.02 * sd
    with pytest.raises(ValueError, match="other values of 'y'"):
        pms.audit(idata(), model=linear_mixed(outcome + 1), draws=100)


def left_out(index, others):
    """Log densities of rows at all draws, given others of their unit, exactly."""
    posterior = idata().posterior.to_dataset()
    mu, tau, sigma = (posterior[name].to_numpy().ravel() for name in ("mu", "tau", "sigma"))
    precision = len(others) / sigma**2 + 1 / tau**2
    mean = mu + (outcome[others][:, None] - mu).sum(axis=0) / sigma**2 / precision
    n, residual = len(index), outcome[index][:, None] - mean
    between = sigma**2 + n / precision
    log_det = (n - 1) * np.log(sigma**2) + np.log(between)
    square = (residual**2).sum(axis=0) / sigma**2
    square -= residual.sum(axis=0) ** 2 / (sigma**2 * precision * between)
    return -0.5 * (square + log_det + n * np.log(2 * np.pi))


@pytest.mark.costly
def test_rows_and_units_are_left_out_as_in_closed_form():
    some = np.array([0, 1, 100, 333])
    rows = pms.loo(idata(), model=model(), observations=some, reff=1.0)
    exact = [left_out([r], np.setdiff1d(np.flatnonzero(unit == unit[r]), [r])) for r in some]
    expected = [-np.log(np.mean(np.exp(-x))) for x in exact]
    np.testing.assert_allclose(rows.elpd_i[some], expected, atol=0.002)

    units = pms.loo(idata(), model=model(), observations=some[:3], groups="code", reff=1.0)
    exact = [left_out(np.flatnonzero(unit == u), np.zeros(0, int)) for u in some[:3]]
    expected = [-np.log(np.mean(np.exp(-x))) for x in exact]
    np.testing.assert_allclose(units.elpd_i[some[:3]], expected, atol=0.002)
    # A row alone, without what the others of its unit say of it, is another thing.
    alone = -np.log(np.mean(np.exp(-left_out([0], np.zeros(0, int)))))
    assert abs(alone - float(rows.elpd_i[0])) > 0.01


@pytest.mark.costly
def test_known_and_new_units_are_predicted():
    data = {"code": [3, UNITS, UNITS, UNITS + 1]}
    found = pms.predict(idata(), "y", model=model(), data=data, new_levels=2)
    posterior = idata().posterior.to_dataset()
    known = (posterior["mu"] + posterior["tau"] * posterior["z"][..., 3]).mean()
    assert float(found["mean"][0]) == pytest.approx(float(known), abs=0.1)
    # 500 draws: 4.5 standard errors.
    sd = float(np.sqrt((posterior["tau"] ** 2).mean() + posterior["mu"].var()))
    assert float(found["mean"][1]) == pytest.approx(float(posterior["mu"].mean()), abs=0.2 * sd)
    assert float(found["sd"][1]) == pytest.approx(sd, rel=4.5 / np.sqrt(2 * 500))
    assert float(found["mean"][1]) == float(found["mean"][2]) != float(found["mean"][3])
    with pytest.raises(ValueError, match="points outside the array"):
        pms.predict(idata(), "y", model=model(), data=data)
    # By labels, which levels have here, as `effects` takes them.
    labels = ["u3", "new", "new", "other"]
    named = pms.predict(
        idata(), "y", model=model(), data={"code": labels}, new_levels=["new", "other"]
    )
    xr.testing.assert_equal(named, found)
    with pytest.raises(ValueError, match=r"has \['new', 'other'\].* are 300, from 'u0' to 'u299'"):
        pms.predict(idata(), "y", model=model(), data={"code": labels})
    with pytest.raises(ValueError, match=r"holds \['u3'\], levels of .* for which there are draws"):
        pms.predict(idata(), "y", model=model(), data={"code": labels}, new_levels=["u3"])
    with pytest.raises(ValueError, match=r"levels holds 3\. Levels are labels, the model's coords"):
        pms.effects(idata(), model(), "z", levels=[3])
    few = idata().copy()
    few["posterior"] = xr.DataTree(posterior.drop_vars(["z", "effect"]))
    again = pms.predict(few, "y", model=model(), data={"code": [3]})
    assert float(again["mean"][0]) == pytest.approx(float(known), abs=0.15)


@pytest.mark.costly
def test_a_reference_may_hold_all_variables():
    values = {"mu": 0.3, "tau": 0.8, "sigma": 1.0, "z": np.zeros(UNITS)}
    made = pms.HMCECS(model=model(), reference=values)
    assert made.reference_values()["tau"] == pytest.approx(0.8)
    assert set(made.reference_values()) == {"mu", "tau", "sigma"}


def test_what_is_integrated_by_itself():
    def with_levels(levels, rows):
        with pm.Model() as made:
            z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=levels)
            pm.Normal("y", z[np.arange(rows) % levels], 1, observed=np.zeros(rows))
        return made

    assert may_pay(with_levels(100, 200))
    assert not may_pay(with_levels(12, 3_000))
    with pm.Model() as scalars:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.zeros(1_000))
    assert not may_pay(scalars)


@pytest.mark.costly
def test_groups_of_many_rows_stay():
    index = np.repeat(np.arange(12), 200)
    with pm.Model() as groups:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=12)
        pm.Normal("y", z[index], 1, observed=rng.normal(size=len(index)))
    made = pms.HMCECS(model=groups)
    assert made.units is None
    assert made.n_rows == len(index)


@pytest.mark.costly
def test_scalable_mh_has_bounds_for_units():
    made = pms.ScalableMH(model=model())
    assert made.n_rows == UNITS


def two_groupings():
    other = rng.permutation(unit)
    with pm.Model() as made:
        a, b = pm.Normal("a", shape=UNITS), pm.Normal("b", shape=UNITS)
        pm.Normal("y", a[unit] + b[other], pm.HalfNormal("sigma"), observed=outcome)
    return made


def test_two_groupings_of_few_rows_are_refused_with_their_numbers():
    with pytest.raises(pms.TallModelError, match=r"'a' \(300 levels of 2 rows\); 'b' \(300 level"):
        pms.HMCECS(model=two_groupings())


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"integrate": True}, TypeError, "integrate must be"),
        ({"integrate": 3}, TypeError, "integrate must be"),
        ({"integrate": "tau"}, pms.TallModelError, "'tau' cannot be integrated out: it is a"),
        ({"integrate": "w"}, ValueError, "integrate holds 'w'"),
        ({"integrate": "z", "likelihood": "y"}, ValueError, r"integrate=\['z'\] with likelihood="),
        ({"integrate": "z", "vars": ["mu"]}, ValueError, r"integrate=\['z'\] with vars="),
    ],
)
def test_arguments_that_do_not_fit(arguments, error, said):
    with pytest.raises(error, match=said):
        pms.HMCECS(model=model(), **arguments)


def test_data_that_change_are_noticed():
    made = linear_mixed()
    own = pms.MinibatchBarkerMH(model=made)
    with made:
        pm.set_data({"code": unit[::-1].copy()})
    with pytest.raises(ValueError, match="'code' changed after"):
        pm.sample(10, tune=10, chains=1, step=own, model=made, **QUIET)


@pytest.mark.costly
def test_draws_that_do_not_fit_are_refused_with_what_to_leave_out(monkeypatch, caplog):
    monkeypatch.setattr("pymc_subsample.chain.memory.free_memory", lambda: 1e6)
    with pytest.raises(pms.TallModelError, match=r"'z' \(300\).*var_names=.*pms\.effects"):
        sampled(draws=100, tune=100)
    monkeypatch.undo()
    monkeypatch.setattr("pymc_subsample.chain.integrating._LONG", 0.0)
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        sampled(draws=20, tune=20)
    assert "drawing and storing z for the result takes about" in caplog.text


@pytest.mark.slow
def test_a_scale_near_zero_is_told_from_a_mode_that_coarse_integrals_make(caplog):
    own = np.random.default_rng(0)
    ones = own.binomial(2, 0.53, UNITS)
    with pm.Model() as plain:
        tau, z = pm.HalfNormal("tau", 2), pm.Normal("z", shape=UNITS)
        y = np.column_stack([ones > 0, ones > 1]).astype(int).ravel()
        pm.Bernoulli("y", logit_p=pm.Normal("mu", 0, 2) + tau * z[unit], observed=y)
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        run = pm.sample(
            2_000, tune=1_000, chains=2, cores=1, model=plain, step=pms.HMCECS(model=plain),
            random_seed=1, var_names=["mu", "tau"], **QUIET,
        )  # fmt: skip

    mu, tau = np.meshgrid(np.linspace(-0.5, 0.9, 71), np.linspace(0.001, 2.5, 126), indexing="ij")
    nu = np.linspace(-8, 8, 161)
    weights = stats.norm.pdf(nu) / stats.norm.pdf(nu).sum()
    p = 1 / (1 + np.exp(-(mu[..., None] + tau[..., None] * nu)))
    log_p = -0.5 * (mu / 2) ** 2 - 0.5 * (tau / 2) ** 2
    for k, times in enumerate(np.bincount(ones, minlength=3)):
        log_p += times * np.log(stats.binom.pmf(k, 2, p) @ weights)
    posterior = np.exp(log_p - log_p.max())
    posterior /= posterior.sum()
    for name, x in {"mu": mu, "tau": tau}.items():
        mean = (posterior * x).sum()
        assert_moments(run.posterior[name], mean, np.sqrt((posterior * (x - mean) ** 2).sum()))


@pytest.mark.slow
def test_effects_of_another_grouping_stay_and_have_coordinates():
    """Those of eight films beside three hundred users, which are integrated out."""
    user, film = unit, np.arange(len(unit)) % 8
    with pm.Model() as crossed:
        u = pm.Normal("u", 0, pm.HalfNormal("su"), shape=UNITS)
        f = pm.Normal("f", 0, pm.HalfNormal("sf"), shape=8)
        pm.Normal("y", pm.Normal("a") + u[user] + f[film], 1.0, observed=outcome)
    made = pms.HMCECS(model=crossed)
    assert made.units.names == ["u"]
    assert set(made.names) == {"a", "f", "su_log__", "sf_log__"}
    assert {v.name for v in made.vars} == {*made.names, "u"}


@pytest.mark.costly
def test_probabilities_that_are_clipped_far_out_are_read_as_they_are():
    """Where a slope of a year moves by a tenth they are clipped in the model's own graph."""
    year = np.tile([2019.0, 2023.0], UNITS)
    with pm.Model() as panel:
        z = pm.Normal("z", 0, 1, shape=UNITS)
        eta = pm.Normal("a") + pm.Normal("b", 0, 0.01) * year + z[unit]
        p = pm.math.clip(pm.math.invlogit(eta), 1e-16, 1 - 1e-16)
        pm.Bernoulli("y", p=p, observed=outcome > 0)
    assert pms.marginalize(panel) is not None


@pytest.mark.costly
def test_bambis_moved_intercept_is_refused_first():
    """Draws of effects, and of rows left out, would be given an intercept that is another one."""
    bmb = pytest.importorskip("bambi")
    random, index = np.random.default_rng(6), np.repeat(np.arange(200), 3)
    year = random.integers(2000, 2025, 600).astype(float)
    y = random.poisson(np.exp(0.5 * random.normal(size=200)[index] + 0.03 * (year - 2012)))
    frame = pd.DataFrame({"y": y, "year": year, "customer": index})
    found = {}
    for center in (True, False):
        formula = f"y ~ {'year' if center else 'center(year)'} + (1|customer)"
        wrote = bmb.Model(formula, frame, family="poisson", center_predictors=center)
        wrote.build()
        within = wrote.backend.model
        made = pms.HMCECS(model=within, integrate="1|customer_offset")
        run = wrote.fit(
            draws=100, tune=200, chains=2, cores=1, step=made, random_seed=1, omit_offsets=center,
            progressbar=False,
        )  # fmt: skip
        found[center] = run, within
    run, within = found[True]
    for ask in (
        lambda: pms.effects(run, within, levels=["0"]),
        lambda: pms.predict(run, "y", model=within),
        lambda: pms.loo(run, model=within),
    ):
        with pytest.raises(ValueError, match="'Intercept' in idata is not that of the PyMC model"):
            ask()
    run, within = found[False]
    assert pms.effects(run, within, levels=["0"])["1|customer_offset"].shape == (2, 100, 1)


@pytest.mark.costly
def test_rows_with_effects_of_their_own_are_predicted():
    """Known rows by draws of their effects, stored or not, and new ones by effects of the prior."""
    own = np.random.default_rng(8)
    x = own.normal(size=200)
    with pm.Model() as by_row:
        on = pm.Data("x", x)
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        u = pm.Normal("u", mu, tau, shape=200)
        pm.Poisson("y", pm.math.exp(u + on), observed=own.poisson(np.exp(0.5 * own.normal() + x)))
        run = pm.sample(500, step=pms.HMCECS(), chains=2, cores=1, random_seed=2, **QUIET)
    draws = run.posterior.to_dataset()
    rate = np.exp(draws["u"].to_numpy() + x).reshape(-1, 200)
    found = pms.predict(run, "y", model=by_row, draws=1_000)
    np.testing.assert_allclose(found["mean"], rate.mean(axis=0), rtol=1e-9)
    without = run.copy()
    without["posterior"] = xr.DataTree(draws.drop_vars("u"))
    again = pms.predict(without, "y", model=by_row, draws=1_000)
    error = found["sd"] * np.sqrt(2 / 1_000)
    assert np.all(abs(again["mean"] - found["mean"]) < 5 * error)
    new = pms.predict(run, "y", model=by_row, data={"x": np.zeros(2)}, draws=1_000)
    mu, tau = draws["mu"].to_numpy(), draws["tau"].to_numpy()
    expected = np.exp(mu + tau**2 / 2).mean()
    np.testing.assert_allclose(new["mean"], expected, atol=5 * float(new["sd"].max()) / 1_000**0.5)
    with pytest.raises(ValueError, match=r"'u' has an element for each row: .* Leave out new_lev"):
        pms.predict(run, "y", model=by_row, data={"x": np.zeros(2)}, new_levels=2)
