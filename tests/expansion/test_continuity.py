"""Log-likelihoods that their gradients say nothing about: refused wherever gradients are used."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET
from models import MODELS, dose_response

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.model import TallModel

N = 400


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    return X, rng.normal(size=N), rng.random(N) < 0.5


def slopes():
    return pm.Normal("b", 0, 1, shape=2)


def sign_in_mean(X, y, z):
    pm.Normal("y", pt.switch(X @ slopes() > 0, 1.0, -1.0), 1.0, observed=y)


def floor_in_mean(X, y, z):
    pm.Normal("y", pt.floor(X @ slopes()), 1.0, observed=y)


def sign_in_logit(X, y, z):
    pm.Bernoulli("y", logit_p=pt.switch(X @ slopes() > 0, 1.0, -1.0), observed=z)


def floor_in_logit(X, y, z):
    pm.Bernoulli("y", logit_p=pt.floor(2.0 * (X @ slopes())), observed=z)


def rounded_beside_smooth(X, y, z):
    """Its scale has a gradient, its slopes have none."""
    pm.Normal("y", pt.round(X @ slopes()), pm.HalfNormal("s", 2), observed=y)


def change_point(X, y, z):
    at = pm.Uniform("at", -2, 2)
    early, late = pm.Normal("early", 0, 2), pm.Normal("late", 0, 2)
    pm.Normal("y", pt.switch(X[:, 0] < at, early, late), 1.0, observed=y)


def step_beside_slope(X, y, z):
    """Most of the change is smooth."""
    eta = X @ slopes()
    pm.Normal("y", eta + pt.gt(eta, 0.0), 1.0, observed=y)


def large_numbers(X, y, z):
    pm.Normal("y", pt.floor(1000.0 * (X @ slopes())), 1000.0, observed=1000.0 * y)


STEPS = [
    sign_in_mean, floor_in_mean, sign_in_logit, floor_in_logit, rounded_beside_smooth,
    change_point, step_beside_slope, large_numbers,
]  # fmt: skip


def laplace(X, y, z):
    pm.Laplace("y", X @ slopes(), 1.0, observed=y)


def absolute(X, y, z):
    pm.Normal("y", pt.abs(X @ slopes()), 1.0, observed=y)


def huber(X, y, z):
    r = pt.abs(y - X @ slopes())
    pm.Potential("y", -pt.switch(r < 1.0, 0.5 * r**2, r - 0.5))


def rectifier(X, y, z):
    hidden = pt.maximum(X @ pm.Normal("w", 0, 1, shape=(2, 3)), 0.0)
    pm.Normal("y", hidden @ pm.Normal("v", 0, 1, shape=3), 1.0, observed=y)


def clipped(X, y, z):
    pm.Bernoulli("y", p=pt.clip(0.5 + 0.2 * (X @ slopes()), 0.01, 0.99), observed=z)


def steep(X, y, z):
    """A sigmoid that looks like a step from afar."""
    pm.Normal("y", pm.math.sigmoid(200.0 * (X @ slopes())), 1.0, observed=y)


def steep_poisson(X, y, z):
    pm.Poisson("y", pt.exp(50.0 * (X @ slopes())), observed=z.astype(int))


def ex_gaussian(X, y, z):
    """PyMC changes to a normal density, not quite equal, where the tail is short."""
    s, nu = pm.HalfNormal("s", 1), pm.HalfNormal("nu", 1)
    pm.ExGaussian("y", mu=X @ slopes(), sigma=s, nu=nu, observed=y)


def steep_prior(X, y, z):
    """Far out its gradient has more digits than that of the rows."""
    b = pm.Normal("b", 0, 1e-6, shape=2, initval=[0.0, 0.0])
    pm.Normal("y", X @ b, pm.HalfNormal("s", 1e-3), observed=y)


def hierarchy(X, y, z):
    """Its location and scale meet no data themselves."""
    t = pm.HalfCauchy("t", 1)
    a = pm.Normal("a", pm.Normal("m", 0, 1), t, shape=4)
    pm.Normal("y", a[np.arange(N) % 4], 1.0, observed=y)


KINKS = [
    hierarchy,
    steep_prior,
    laplace,
    absolute,
    huber,
    rectifier,
    clipped,
    steep,
    steep_poisson,
    ex_gaussian,
]


def written(function):
    with pm.Model() as model:
        function(*data())
    return model


GRADIENT_STEPS = {
    "HMCECS": pms.HMCECS,
    "nuts": lambda **k: pms.HMCECS(kernel="nuts", subsample_size=100, **k),
    "SGLD": pms.sgmcmc.SGLD,
    "plain SGLD": lambda **k: pms.sgmcmc.SGLD(
        control_variate_order=None, metric="identity", step_size=1e-3, **k
    ),
    "PSGLD": pms.sgmcmc.PSGLD,
    "SVRGLD": pms.sgmcmc.SVRGLD,
    "SGHMC": pms.sgmcmc.SGHMC,
    "SGNHT": pms.sgmcmc.SGNHT,
    "EWSG": pms.sgmcmc.EWSG,
    "ClusteredSGHMC": pms.sgmcmc.ClusteredSGHMC,
    "MinibatchBarkerMH": lambda **k: pms.MinibatchBarkerMH(
        proposal=pms.proposals.Langevin(), control_variate_order=None, **k
    ),
    "AusterityMH": lambda **k: pms.AusterityMH(proposal=pms.proposals.Langevin(), **k),
    "ConfidenceMH": lambda **k: pms.ConfidenceMH(proposal=pms.proposals.Langevin(), **k),
}
# Compilation is what takes time: each step meets two models, each model most of the steps.
PAIRS = [
    pytest.param(model, step, id=f"{model.__name__}-{step}", marks=marks)
    for i, model in enumerate(STEPS)
    for j, step in enumerate(GRADIENT_STEPS)
    for marks in [() if (i + j) % len(STEPS) == 0 else pytest.mark.slow]
]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("model", "step"), PAIRS)
def test_steps_that_move_by_gradients_refuse_it(model, step):
    with pytest.raises(pms.TallModelError, match="gradient of the log-likelihood of 'y'") as error:
        GRADIENT_STEPS[step](model=written(model))
    assert "misses" in str(error.value)
    assert "pms.MinibatchBarkerMH" in str(error.value)


@pytest.mark.costly
@pytest.mark.parametrize("bound", ["auto", -10.0])
@pytest.mark.parametrize("model", [sign_in_mean, floor_in_logit])
def test_firefly_has_no_bound_or_needs_gradients(model, bound):
    with pytest.raises(ValueError, match=r"bound|gradient of the log-likelihood of 'y'"):
        pms.FireflyMC(model=written(model), bound=bound)


@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param(m, id=m.__name__) for m in STEPS])
def test_steps_are_found(model):
    tall = TallModel(written(model))
    gap = Continuity(tall, expand(tall, 0), np.arange(tall.size)).gap()
    assert gap.missing > 0.02
    assert gap.width < 1e-5


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("model", [pytest.param(m, id=m.__name__) for m in KINKS])
def test_kinks_and_steep_slopes_integrate(model):
    tall = TallModel(written(model))
    assert Continuity(tall, expand(tall, 0), np.arange(tall.size)).gap() is None


@pytest.mark.costly(cases=0)
def test_powers_that_overflow_far_out_are_no_steps():
    tall = TallModel(dose_response())
    assert Continuity(tall, expand(tall, 0), np.arange(tall.size)).gap() is None


@pytest.mark.costly(cases=0)
def test_slopes_that_overflow_before_their_curves_are_no_steps():
    rng = np.random.default_rng(0)
    dose = 10 ** rng.uniform(1, 5.3, N)
    with pm.Model() as model:
        ed50, power = pm.LogNormal("ed50", 8, 2), pm.HalfNormal("power", 2)
        share = dose**power / (dose**power + ed50**power)
        pm.Normal("y", share, pm.HalfNormal("s", 1), observed=rng.normal(size=N))
    tall = TallModel(model)
    assert Continuity(tall, expand(tall, 2), np.arange(tall.size)).gap() is None


@pytest.mark.costly(cases=0)
def test_differences_of_enormous_terms_are_no_steps():
    """Far out the log-likelihood is a difference of log-gammas, and nothing but their rounding."""
    rng = np.random.default_rng(0)
    x, counts = rng.uniform(0, 100, N), rng.multinomial(20, [0.2, 0.3, 0.5], N)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2, shape=3), pm.Normal("b", 0, 0.1, shape=3)
        pm.DirichletMultinomial("y", n=20, a=pt.exp(a + b * x[:, None]), observed=counts)
    tall = TallModel(model)
    assert Continuity(tall, expand(tall, 0), np.arange(tall.size)).gap() is None


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in sorted(MODELS)])
def test_the_bank_integrates(name, tall_model, expansion):
    tall = tall_model(name)
    gap = Continuity(tall, expansion(name), np.arange(tall.size)).gap()
    assert (gap is None) == (name != "change_point")


@pytest.mark.costly(cases=0)
def test_a_variable_that_another_step_moves_may_have_none():
    with written(change_point):
        assert pms.sgmcmc.SGLD(vars=["early", "late"]).n_rows == N
        with pytest.raises(pms.TallModelError, match="changes with 'at'"):
            pms.sgmcmc.SGLD(vars=["at"])


@pytest.mark.costly
def test_draws_are_not_audited_by_scores():
    with written(sign_in_mean):
        step = pms.MinibatchBarkerMH(control_variate_order=None)
        idata = pm.sample(50, tune=50, chains=1, step=step, **QUIET)
        with pytest.raises(pms.TallModelError, match="cannot be audited"):
            pms.audit(idata, draws=40)


@pytest.mark.costly
def test_a_gradient_that_is_wrong_far_away_is_noticed(tall_model, expansion, monkeypatch):
    """That near the start is compared with finite differences."""
    tall, ex = tall_model("poisson_offset"), expansion("poisson_offset", 0)
    right = ex.sums

    def wrong(phi, rows, total):
        before = total[1].copy()
        right(phi, rows, total)
        if np.abs(phi).max() > 1:
            total[1][:] = before

    monkeypatch.setattr(ex, "sums", wrong)
    with pytest.raises(pms.TallModelError, match="misses"):
        Continuity(tall, ex, np.arange(tall.size)).require("")
