"""`pms.subsampling`: whatever calls `pm.sample` in the block gets our step, and nothing else does.

PyMC's registry is as it was after each block, whatever happened in it. The clients are real ones
where they are installed: Bambi, simuk; pymc-marketing and pymc-extras want an older PyMC, and what
they call is called here.
"""

import threading
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from chains import QUIET
from exact_cases import logistic
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods import STEP_METHODS
from scipy.stats import chisquare
from settings_of_nuts import FOR_NUTS

import pymc_subsample as pms
from pymc_subsample.choice import block

SHORT = {"draws": 20, "tune": 20, "chains": 1, "cores": 1, "random_seed": 1} | QUIET


@pytest.fixture(autouse=True)
def registry():
    """Fail a test that leaves anything behind in PyMC's registry."""
    before = list(STEP_METHODS)
    yield
    assert before == STEP_METHODS


class Assigned:
    """A step in the place of one whose set-up takes seconds."""

    def __init__(self, vars=None, *, model, **given):
        self.vars, self.given = list(model.value_vars if vars is None else vars), given


@pytest.fixture
def quick(monkeypatch):
    """Have blocks make steps that can be assigned, and not run."""
    monkeypatch.setattr(
        block, "subsampling_step", lambda vars=None, **given: Assigned(vars, **given)
    )


def assigned(model, step=None):
    """Return by name who samples each variable, as `pm.sample` would have it."""
    _, found = assign_step_methods(model, step)
    return {v.name: kind.__name__ for kind, vars in found.items() for v in vars}


OURS = {"a": "Subsampling", "b": "Subsampling"}
PYMCS = {"a": "NUTS", "b": "NUTS"}


@pytest.mark.costly
def test_pm_sample_runs_our_step_in_the_block_and_its_own_after_it(model, case):
    with pms.subsampling():
        idata = pm.sample(2000, tune=500, chains=2, cores=1, random_seed=1, model=model, **QUIET)
    assert "data_share" in idata["sample_stats"]
    case.assert_posterior(idata)
    idata = pm.sample(model=model, **SHORT)
    assert "data_share" not in idata["sample_stats"]


def test_outside_of_a_block_nothing_is_ours(model, quick):
    assert assigned(model) == PYMCS
    with pms.subsampling():
        assert assigned(model) == OURS
    assert assigned(model) == PYMCS


def test_a_block_that_no_run_asked_says_so(model, quick, caplog):
    with pms.subsampling():
        assert assigned(model) == OURS
    with pytest.raises(ZeroDivisionError), pms.subsampling():
        raise ZeroDivisionError
    assert not caplog.text
    with pms.subsampling():
        assert not assigned(model, pm.NUTS(model=model))
    [message] = caplog.messages
    assert message.startswith("subsampling: the block had no effect")


def test_the_registry_is_restored_after_an_exception(model, quick):
    with pytest.raises(ZeroDivisionError), pms.subsampling():
        raise ZeroDivisionError(STEP_METHODS.index(block.Subsampling))
    assert assigned(model) == PYMCS
    with pytest.raises(ZeroDivisionError), pms.subsampling(), pms.subsampling():
        raise ZeroDivisionError
    assert assigned(model) == PYMCS


@pytest.mark.parametrize("error", [TypeError, pms.TallModelError, KeyboardInterrupt])
def test_an_error_of_the_set_up_is_raised_once_it_is_made(model, monkeypatch, error):
    made = []

    def broken(vars=None, **given):
        made.append(given)
        raise error("no such rows")

    monkeypatch.setattr(block, "subsampling_step", broken)
    with pytest.raises(error, match="no such rows"), pms.subsampling():
        assigned(model)
    assert len(made) == 1
    assert assigned(model) == PYMCS


def spied(monkeypatch):
    """Return the list of steps that blocks will make."""
    made = []

    def make(vars=None, **given):
        made.append(Assigned(vars, **given))
        return made[-1]

    monkeypatch.setattr(block, "subsampling_step", make)
    return made


def test_an_inner_block_has_arguments_of_its_own(model, monkeypatch):
    made = spied(monkeypatch)
    with pms.subsampling(temperature=2.0):
        assigned(model)
        with pms.subsampling(temperature=3.0):
            assigned(model)
        assigned(model)
    assert [step.given["temperature"] for step in made] == [2.0, 3.0, 2.0]


def test_each_run_in_a_block_has_a_step_of_its_own(model, monkeypatch):
    made = spied(monkeypatch)
    with pms.subsampling():
        for _ in range(3):
            assigned(model)
    assert len(made) == 3


def test_only_the_thread_that_is_in_a_block_is_affected(quick):
    models = [logistic().model for _ in range(2)]
    inside, outside, done = [], [], threading.Barrier(2)

    @contextmanager
    def nothing():
        yield

    def run(where, found, model):
        with where():
            for _ in range(50):
                done.wait()  # both are at it at the same time
                found.append(assigned(model))
            done.wait()

    threads = [
        threading.Thread(target=run, args=(pms.subsampling, inside, models[0])),
        threading.Thread(target=run, args=(nothing, outside, models[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [OURS] * 50
    assert outside == [PYMCS] * 50


@pytest.mark.costly
@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_run_is_quiet(quiet, caplog, model):
    caplog.set_level("INFO", "pymc.subsample")
    with pms.subsampling():
        pm.sample(model=model, **SHORT | {"quiet": quiet})
    assert ("auto takes " in caplog.text) != quiet


@pytest.mark.costly
def test_two_threads_sample_at_once_and_one_of_them_is_in_a_block():
    found = {}

    def run(name, model, context):
        with context, model:
            # PyMC's `quiet`, in two threads at once, can leave its logger silent for good.
            found[name] = pm.sample(**SHORT | {"quiet": False})

    @contextmanager
    def nothing():
        yield

    threads = [
        threading.Thread(target=run, args=("ours", logistic().model, pms.subsampling())),
        threading.Thread(target=run, args=("theirs", logistic(seed=2).model, nothing())),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "data_share" in found["ours"]["sample_stats"]
    assert "data_share" not in found["theirs"]["sample_stats"]


def mixed():
    """A model with a discrete variable that all rows share."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        a, k = pm.Normal("a"), pm.Poisson("k", 3)
        pm.Normal("y", a + k, 1, observed=rng.normal(size=300))
    return model


def test_others_are_left_to_the_steps_of_pymc(quick):
    with pms.subsampling():
        assert assigned(mixed()) == {"a": "Subsampling", "k": "Metropolis"}


def test_variables_of_a_step_that_was_given_are_left_to_it(model, quick):
    with pms.subsampling():
        assert assigned(model, pm.Slice([model["a"]], model=model)) == {"b": "Subsampling"}


def test_a_model_without_continuous_variables_is_pymcs(quick, caplog):
    with pm.Model() as model:
        k = pm.Poisson("k", 3)
        pm.Poisson("y", k + 1, observed=np.ones(300, dtype=int))
    with pms.subsampling(), caplog.at_level("INFO", "pymc.subsample"):
        assert assigned(model) == {"k": "Metropolis"}
    assert "PyMC samples it" in caplog.text


def test_local_discrete_variables_are_ours(quick):
    """As they are summed over."""
    rng, group = np.random.default_rng(1), np.repeat(np.arange(100), 5)
    with pm.Model() as model:
        rate = pm.LogNormal("rate", [0, 2], 1)
        kind = pm.Bernoulli("kind", 0.4, shape=100)
        pm.Poisson("y", rate[kind][group], observed=rng.poisson(2, 500))
    with pms.subsampling():
        assert set(assigned(model).values()) == {"Subsampling"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"model": pm.Model()}, "model= is an argument of the pm.sample"),
        ({"vars": ["a"]}, "vars= is an argument of the pm.sample"),
        ({"tempreature": 2}, "unexpected keyword argument 'tempreature'"),
    ],
)
def test_arguments_are_refused_where_the_block_begins(given, error):
    with pytest.raises(TypeError, match=f"subsampling: .*{error}"), pms.subsampling(**given):
        raise AssertionError


@pytest.mark.parametrize(("given", "said"), FOR_NUTS)
def test_what_is_for_nuts_is_refused_of_a_block_before_its_set_up(model, monkeypatch, given, said):
    monkeypatch.setattr(block, "subsampling_step", Assigned)
    monkeypatch.setattr(Assigned, "__init__", lambda self: pytest.fail("the set-up began"))
    with pytest.raises(ValueError, match=said.format(r"pms\.subsampling")), pms.subsampling():
        pm.sample(model=model, **SHORT, **deepcopy(given))


# Clients


@pytest.mark.costly
def test_bambi_fits_before_the_model_is_built():
    bambi = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, 6, 3_000), rng.normal(size=3_000)
    rate = 1 / (1 + np.exp(-0.3 * x - rng.normal(0, 0.5, 6)[group]))
    data = pd.DataFrame({"y": rng.binomial(1, rate), "x": x, "group": group.astype(str)})
    model = bambi.Model("y ~ x + (1 | group)", data, family="bernoulli")
    assert not model.built
    settings = {"draws": 500, "tune": 500, "chains": 2, "cores": 1, "random_seed": 1}
    settings["progressbar"] = False
    with pms.subsampling():
        idata = model.fit(**settings)
    assert "data_share" in idata["sample_stats"]
    reference = model.fit(**settings)
    assert "data_share" not in reference["sample_stats"]
    for name in ("Intercept", "x"):
        ours, theirs = (run["posterior"][name] for run in (idata, reference))
        sd = float(theirs.std())
        # Two runs with at least 100 effective draws each: 5 standard errors, a rate of 1e-6.
        assert abs(float(ours.mean() - theirs.mean())) < 5 * sd * np.sqrt(2 / 100)
        assert 0.6 < float(ours.std()) / sd < 1.6  # the same of log sds, at 1 / sqrt(2 * 100)


def calibrated(n_simulations, temperature=1.0):
    """Return ranks, (simulations, 2), of true parameters among 64 thinned draws, by simuk."""
    simuk = pytest.importorskip("simuk")
    x = np.random.default_rng(1).normal(size=400)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a + b * x, observed=np.zeros(400, dtype=int))
    sbc = simuk.SBC(
        model,
        num_simulations=n_simulations,
        sample_kwargs={"draws": 63, "tune": 200, "chains": 1, "cores": 1},
        seed=1,
        progress_bar=False,
    )
    with pms.subsampling(temperature=temperature):
        sbc.run_simulations()
    found = sbc.simulations["prior_sbc"]
    return np.column_stack([found[name].values.ravel() for name in ("a", "b")])


@pytest.mark.costly
def test_simuk_runs_our_step_on_models_that_it_observes_itself():
    assert calibrated(3).shape == (3, 2)


@pytest.mark.slow
def test_simuk_finds_us_calibrated_and_finds_a_wrong_temperature():
    def p_values(ranks):
        return [chisquare(np.bincount(r // 8, minlength=8)).pvalue for r in ranks.T]

    # Two p-values: a rate of 2e-5.
    assert min(p_values(calibrated(200))) > 1e-5
    assert min(p_values(calibrated(200, temperature=4.0))) < 1e-5


class Builder:
    """What pymc-extras' ModelBuilder does, and pymc-marketing's after it."""

    def __init__(self):
        self.sampler_config = SHORT | {"draws": 300, "tune": 300, "quiet": False}

    def build_model(self, data):
        with pm.Model() as self.model:
            x = pm.Data("x", data["x"].to_numpy())
            a, b, s = pm.Normal("a"), pm.Normal("b"), pm.HalfNormal("s")
            pm.Normal("y", a + b * x, s, observed=data["y"].to_numpy())

    def fit(self, data, **given):
        self.build_model(data)
        with self.model:
            idata = pm.sample(**{**self.sampler_config, **given})
            idata.update(pm.sample_posterior_predictive(idata, progressbar=False))
        return idata


@pytest.mark.costly
def test_a_model_builder_fits_by_subsamples():
    rng = np.random.default_rng(1)
    x = rng.normal(size=2_000)
    data = pd.DataFrame({"x": x, "y": 1 + 2 * x + rng.normal(size=2_000)})
    with pms.subsampling():
        idata = Builder().fit(data)
    assert "data_share" in idata["sample_stats"]
    # Flat priors beside 2,000 rows: least squares, within a fifth of a standard error.
    slope, intercept = np.polyfit(x, data["y"], 1)
    for name, value in (("a", intercept), ("b", slope)):
        assert abs(float(idata["posterior"][name].mean()) - value) < 0.3 / np.sqrt(2_000)
    with pms.subsampling(), pytest.raises(ValueError, match=r"pms.subsampling\(target_accept"):
        Builder().fit(data, target_accept=0.95)


def purchases(n, rng):
    """Customers who buy at a rate of their own until they leave, as in Fader et al. (2005)."""
    observed = rng.uniform(20, 40, n)
    bought = rng.poisson(rng.gamma(1.5, 1 / 6, n) * observed * rng.beta(2, 1, n))
    last = np.where(bought > 0, rng.uniform(0.2, 1, n) * observed, 0.0)
    return np.column_stack([last, bought.astype(float)]), observed


def beta_geometric(value, alpha, r, p, observed):
    """Log-likelihood of the beta-geometric model with a chance of leaving that all share."""
    last, bought = value[:, 0], value[:, 1]
    rate = r * pm.math.log(alpha) + pm.math.gammaln(r + bought) - pm.math.gammaln(r)
    alive = bought * pm.math.log(1 - p) - (r + bought) * pm.math.log(alpha + observed)
    left = pm.math.log(p) - pm.math.log(1 - p) - (r + bought) * pm.math.log(alpha + last)
    left = pm.math.switch(bought > 0, left + bought * pm.math.log(1 - p), -np.inf)
    return rate + pm.math.logaddexp(alive, left)


@pytest.mark.costly
def test_a_model_of_customers_is_fitted_by_subsamples():
    """As pymc-marketing's CLV models are: a CustomDist of pairs, and `pm.sample(**given)`."""
    rng = np.random.default_rng(1)
    value, observed = purchases(3_000, rng)
    with pm.Model() as model:
        alpha, r, p = pm.LogNormal("alpha"), pm.LogNormal("r"), pm.Uniform("p")
        pm.CustomDist(
            "bought", alpha, r, p, observed, logp=beta_geometric, observed=value,
            signature="(),(),(),()->(2)",
        )  # fmt: skip
    with pms.subsampling(), model:
        idata = pm.sample(**SHORT)
    assert "data_share" in idata["sample_stats"]
