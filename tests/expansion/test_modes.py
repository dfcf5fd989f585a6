"""Other modes of the posterior are found, wherever they are, reported and sampled."""

import logging

import numpy as np
import pymc as pm
import pytest
from exact_cases import groups_of_all_sizes
from mode_bank import MULTIMODAL, UNIMODAL

import pymc_subsample as pms
from pymc_subsample import sgmcmc
from pymc_subsample.chain import setup
from pymc_subsample.chain.multimodality import number_of_chain, prior_draws
from pymc_subsample.expansion.symmetric_modes import ThetaPart, images

QUICK = ("square", "conflict", "signed_phase", "mirrored_hierarchy")
QUICK_CONTROLS = ("logistic", "weak_centred", "weak_noncentred", "one_sided_square", "collinear")
STEPS = (pms.HMCECS, pms.MinibatchBarkerMH, sgmcmc.SGHMC)


def both(bank, quick):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in bank]


def square(prior_mean, n=400, **start):
    """Only the square of w meets the data."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=n)
    y = 1.5 * x + rng.normal(size=n)
    with pm.Model() as model:
        w = pm.Normal("w", prior_mean, 0.3 if prior_mean else 2.0, initval=0.5)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", w**2 * x + b, 1.0, observed=y)
    return model


def neck(narrow=1.0):
    """The way between modes at t = -2 and 2 is level, and may be narrow for x."""
    with pm.Model() as model:
        t, x = pm.Normal("t", 0, 10, initval=2.0), pm.Normal("x", shape=5)
        b = pm.Normal("b")
        bend = narrow * (pm.math.exp(3 * pm.math.exp(-(t**2))) - 1)
        pm.Potential("way", -((t**2 - 4) ** 2) / 8 - 0.5 * bend * (x**2).sum())
        rng = np.random.default_rng(5)
        eta = b + 1e-6 * (rng.normal(size=(300, 5)) @ x + t * rng.normal(size=300))
        pm.Normal("y", eta, 1.0, observed=rng.normal(size=300))
    return model


def sample(step, model, draws=150, **kwargs):
    defaults = {"tune": 200, "chains": 4, "cores": 1, "random_seed": 3}
    with model:
        return pm.sample(
            draws, step=step, progressbar=False, compute_convergence_checks=False,
            **(defaults | kwargs),
        )  # fmt: skip


def judged(idata):
    return {c["name"]: c for c in pms.report(idata).to_dict()["checks"]}


# The search


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", both(MULTIMODAL, QUICK))
def test_modes_are_found(name):
    step = pms.HMCECS(model=MULTIMODAL[name]())
    assert len(step.search.modes) > 1


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", both(UNIMODAL, QUICK_CONTROLS))
def test_a_single_mode_is_no_alarm(name):
    step = pms.HMCECS(model=UNIMODAL[name](), subsample_size=100)
    assert len(step.search.modes) == 1
    assert step.search.starts >= 10


def test_shares_are_the_masses():
    """By Laplace, the prior densities at both roots: logistic(2 b mu / s^2) of the mass."""
    search = pms.HMCECS(model=MULTIMODAL["square"]()).search
    root = search.modes[0].theta[0]
    assert root > 0
    expected = 1 / (1 + np.exp(-2 * root * 4 / 4**2))
    # the priors' slopes shift the modes a little
    assert abs(search.shares[0] - expected) < 0.01
    assert abs(sum(search.shares) - 1) < 1e-6


@pytest.mark.costly
def test_a_mode_of_little_mass_is_counted_but_needs_no_chain():
    step = pms.HMCECS(model=square(prior_mean=1.2))
    assert (len(step.search.modes), step.search.lighter) == (1, 1)
    assert step.reference.theta[0] > 0


@pytest.mark.costly
def test_a_single_mode_is_quick(caplog):
    """A concave posterior takes the first few starts alone."""
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step = pms.HMCECS(model=UNIMODAL["logistic"]())
    assert not caplog.text
    assert step.search.starts == 12
    more = pms.HMCECS(model=MULTIMODAL["square"]()).search
    assert more.prior == 32


@pytest.mark.costly
def test_the_higher_mode_becomes_the_reference():
    """Two clusters of rows, the smaller one at the start of the search."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(0, 0.2, 100), rng.normal(1.6, 0.2, 300)])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3, initval=0.0)
        near = pm.logp(pm.Normal.dist(a, 0.2), y)
        pm.Potential("y", pm.math.logaddexp(near, pm.logp(pm.Normal.dist(0, 10), y)))
    step = pms.HMCECS(model=model)
    assert abs(step.reference.theta[0] - 1.6) < 0.1


@pytest.mark.costly(cases=0)
def test_a_narrow_way_keeps_modes_apart():
    """Ends e^2 as dense as the middle, which chains cross were it not e^-7.5 as wide."""
    search = pms.HMCECS(model=neck()).search
    assert sorted(np.sign([mode.theta[0] for mode in search.modes])) == [-1, 1]
    np.testing.assert_allclose(search.shares, 0.5, atol=1e-3)


@pytest.mark.costly(cases=0)
def test_a_wide_level_way_joins_modes():
    assert len(pms.HMCECS(model=neck(narrow=0.0)).search.modes) == 1


@pytest.mark.costly
def test_a_heavier_mode_without_a_valley_becomes_the_reference():
    """Where the way from the start is wide and 0.9 deep, and the other mode e^2.5 as dense."""
    with pm.Model() as model:
        t, b = pm.Normal("t", 0, 10, initval=2.0), pm.Normal("b")
        pm.Potential("way", -4 * (t**2 / 4 - 1) ** 2 - 0.75 * t)
        rng = np.random.default_rng(5)
        pm.Normal("y", b + 1e-6 * t * rng.normal(size=300), 1.0, observed=rng.normal(size=300))
    search = pms.HMCECS(model=model).search
    assert search.modes[0].theta[0] < 0


def test_variables_without_forward_draws_stay_at_their_start():
    with pm.Model() as model:
        pm.Flat("a")
        s = pm.HalfNormal("s", 1, initval=2.0)
        pm.Normal("b", 100, s, shape=2)
    draw, names = prior_draws(model)
    assert names == ["s_log__", "b"]
    points = [draw(seed) for seed in range(20)]
    assert all(point["a"] == 0 for point in points)
    assert len({float(point["s_log__"]) for point in points}) == 20
    assert abs(np.mean([point["b"] for point in points]) - 100) < 2


def test_images_of_a_mode():
    """Labels are swapped in all variables of a length at once; only what moves does."""
    blocks = [
        ThetaPart("mu", slice(0, 2), (2,)),
        ThetaPart("sigma_log__", slice(2, 4), (2,), signed=False),
        ThetaPart("w_simplex__", slice(4, 5), (1,), signed=False, labelled=False),
    ]
    theta = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    rng = np.random.default_rng(0)
    found = {tuple(x) for x in images(blocks, theta, np.arange(5), rng)}
    assert (2.0, 1.0, 4.0, 3.0, 5.0) in found
    assert (2.0, 1.0, 3.0, 4.0, 5.0) in found
    assert (-1.0, -2.0, 3.0, 4.0, 5.0) in found
    assert (-1.0, 2.0, 3.0, 4.0, 5.0) in found
    assert all(x[4] == 5.0 and x[2] > 0 and x[3] > 0 for x in found)
    still = {tuple(x) for x in images(blocks, theta, np.array([0, 1]), rng)}
    assert all(x[2:] == (3.0, 4.0, 5.0) for x in still)


# What becomes of them


@pytest.mark.costly
def test_mirrored_modes_are_reported(caplog):
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        pms.HMCECS(model=square(prior_mean=0))
    assert "at least two modes" in caplog.text
    assert "differ in w and hold about 0.5, 0.5 of the mass" in caplog.text


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", STEPS)
@pytest.mark.parametrize("name", both(MULTIMODAL, ("square",)))
def test_no_sampler_is_silent(name, make):
    model = MULTIMODAL[name]()
    found = judged(sample(make(model=model), model))
    assert found["modes"]["status"] == "warn"
    assert found["modes"]["value"] >= 1
    assert found["r_hat"]["value"] > 1.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [pms.FireflyMC, pms.AusterityMH, pms.ConfidenceMH, sgmcmc.SGLD, sgmcmc.SVRGLD, sgmcmc.EWSG],
)
def test_nor_is_any_other(make):
    test_no_sampler_is_silent("square", make)


@pytest.mark.slow
@pytest.mark.parametrize("make", STEPS)
@pytest.mark.parametrize("name", UNIMODAL)
def test_no_sampler_is_alarmed(name, make):
    model = UNIMODAL[name]()
    found = judged(sample(make(model=model), model))
    assert found["modes"]["status"] == "pass"


@pytest.mark.costly(cases=0)
def test_chains_take_turns_among_modes():
    """In one process, in several, and within a compound step."""
    rngs = np.random.default_rng(1).spawn(4)
    assert [number_of_chain(rng) % 2 for rng in rngs] == [0, 1, 0, 1]
    steps = [rng.spawn(2)[1] for rng in np.random.default_rng(1).spawn(4)]
    assert [number_of_chain(rng) % 2 for rng in steps] == [1, 0, 1, 0]
    model = MULTIMODAL["square"]()
    step = pms.HMCECS(model=model)
    together = sample(step, model, draws=20)
    means = together.posterior["b"].mean("draw").values
    assert np.all(means * [1, -1, 1, -1] > 1.9)
    apart = sample(step, model, draws=20, cores=2)
    np.testing.assert_array_equal(apart.posterior["b"], together.posterior["b"])


def test_no_chain_starts_in_a_mode_of_hardly_any_mass(monkeypatch, caplog):
    monkeypatch.setattr(setup, "_STARTED", 0.6)  # the two hold one half each
    model = MULTIMODAL["square"]()
    with caplog.at_level(logging.WARNING, logger="pymc.subsample"):
        step = pms.HMCECS(model=model)
    assert "start in the first, and hardly ever see the others" in caplog.text
    means = sample(step, model, draws=20).posterior["b"].mean("draw").values
    assert np.all(np.abs(means) > 1.9)
    assert len(np.unique(np.sign(means))) == 1


@pytest.mark.costly(cases=0)
def test_a_chain_is_resumed_in_its_mode():
    model = MULTIMODAL["square"]()
    one, other = (pms.HMCECS(model=model) for _ in range(2))
    rng = np.random.default_rng(0).spawn(2)[1]
    one.setup_chain(rng, 20, 20)
    point = model.initial_point()
    for _ in range(20):
        point, _ = one.step(point)
    assert point["b"] < 0
    other.sampling_state = one.sampling_state
    assert other.home is other.prepared.others[0]
    np.testing.assert_array_equal(one.step(point)[0]["b"], other.step(point)[0]["b"])


@pytest.mark.costly(cases=0)
def test_the_report_says_how_far_was_searched():
    model = UNIMODAL["logistic"]()
    idata = sample(pms.HMCECS(model=model), model, chains=2)
    line = judged(idata)["modes"]
    assert line["title"] == "other modes found (12 searches, 5 from symmetries)"
    assert line["value"] == 0
    given = {"beta": np.zeros(5)}
    step = pms.HMCECS(model=model, reference=given, subsample_size=500)
    assert "modes" not in judged(sample(step, model, chains=2))


@pytest.mark.costly(cases=0)
def test_groups_of_which_a_subset_sees_a_row_have_scales():
    """That row counts as a hundred, of which the scale tends to zero."""
    g, y = groups_of_all_sizes()
    with pm.Model() as model:
        mu, ms = pm.Normal("mu", 0, 2), pm.Normal("ms")
        tau, ts = pm.HalfNormal("tau"), pm.HalfNormal("ts")
        z, zs = pm.Normal("z", shape=20), pm.Normal("zs", shape=20)
        pm.Normal("y", (mu + tau * z)[g], pm.math.exp((ms + ts * zs)[g]), observed=y)
    step = pms.HMCECS(model=model, rng=1)
    values = step.expansion.values(step.reference.theta)
    at = dict(zip(step.tall.names, step.tall.slices, strict=True))
    found = values[at["ms"]] + np.exp(values[at["ts_log__"]]) * values[at["zs"]]
    exact = [np.log(y[g == k].std()) for k in range(10, 20)]
    np.testing.assert_allclose(found[10:], exact, atol=0.05)
    assert np.all(np.abs(found) < 2)
