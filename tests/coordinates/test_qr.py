"""Columns that are nearly collinear, of which sums over rows lose digits: they are taken apart."""

import logging
import pickle
from fractions import Fraction
from functools import cache
from math import comb

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, assert_moments, assert_same, chain
from steps_of_all_kinds import KINDS

import pymc_subsample as pms
from pymc_subsample.chain.nuts_cost import NutsOnExpansion
from pymc_subsample.coordinates import find_qr
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.model import TallModel, TallModelError

FIRST, LAST, N = 1990, 2020, 20_000
CURVE = np.array([0.3, 0.5, -0.4, 0.3, 0.2])


@cache
def years():
    """Years, and these from -1 to 1."""
    t = np.random.default_rng(1).integers(FIRST, LAST + 1, N).astype(float)
    return t, (t - (FIRST + LAST) / 2) / ((LAST - FIRST) / 2)


def polynomial(degree, logistic=True, flat=True):
    """A polynomial of raw years, as written by someone who does not scale."""
    t, u = years()
    rng = np.random.default_rng(2)
    eta = np.polynomial.polynomial.polyval(u, CURVE[: degree + 1])
    with pm.Model() as model:
        b = [pm.Flat("a"), *(pm.Flat(f"b{k}") for k in range(1, degree + 1))]
        if not flat:
            b = [pm.Normal(f"c{k}", 0, 15.0**-k) for k in range(degree + 1)]
        mu = sum(c * t**k for k, c in enumerate(b))
        if logistic:
            pm.Bernoulli("y", logit_p=mu, observed=rng.binomial(1, 1 / (1 + np.exp(-eta))))
        else:
            pm.Normal("y", mu, 1.0, observed=rng.normal(eta, 1.0))
    return model


def scaled_posterior(y, degree, logistic):
    """Mean and standard deviations of the coefficients of u: the years are 31 cells."""
    _, u = years()
    cells, cell, count = np.unique(u, return_inverse=True, return_counts=True)
    x = np.vander(cells, degree + 1, increasing=True)
    total = np.bincount(cell, weights=y)
    mode, rng = CURVE[: degree + 1].copy(), np.random.default_rng(3)
    for _ in range(20 if logistic else 1):
        p = 1 / (1 + np.exp(-x @ mode)) if logistic else x @ mode
        precision = (x.T * count * (p * (1 - p) if logistic else 1.0)) @ x
        mode += np.linalg.solve(precision, x.T @ (total - count * p))
    covariance = np.linalg.inv(precision)
    if not logistic:
        return mode, np.sqrt(np.diag(covariance))
    # Importance weights of 100,000 draws of the normal approximation are all but equal.
    z = rng.standard_normal((100_000, degree + 1))
    b = mode + z @ np.linalg.cholesky(covariance).T
    eta = b @ x.T
    log_weight = eta @ total - np.logaddexp(0, eta) @ count + 0.5 * (z**2).sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 90_000
    mean = weight @ b
    return mean, np.sqrt(weight @ (b - mean) ** 2)


def in_units_of_u(idata, degree):
    """Draws of the coefficients of u, shape (chain, draw, k), by exact arithmetic."""
    names = ["a", *(f"b{k}" for k in range(1, degree + 1))]
    raw = np.stack([idata.posterior[name].values for name in names], axis=-1)
    middle, half = Fraction(FIRST + LAST, 2), Fraction(LAST - FIRST, 2)
    weights = [
        [comb(k, j) * middle ** (k - j) * half**j if k >= j else 0 for k in range(degree + 1)]
        for j in range(degree + 1)
    ]
    exact = [
        [float(sum(w * Fraction(c) for w, c in zip(row, b, strict=True))) for row in weights]
        for b in raw.reshape(-1, degree + 1).tolist()
    ]
    return np.array(exact).reshape(raw.shape)


def observed(model):
    return model.rvs_to_values[model["y"]].data


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("kind", "degree", "logistic"),
    [*((kind, 3, True) for kind in KINDS), (pms.HMCECS, 4, True), (pms.HMCECS, 4, False)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_polynomials_of_raw_years_are_sampled_as_those_of_scaled_ones(kind, degree, logistic):
    model = polynomial(degree, logistic)
    mean, sd = scaled_posterior(observed(model), degree, logistic)
    with model:
        step = kind()
        options = {"draws": 1000, "tune": 500, "chains": 2, "cores": 1, "random_seed": 3}
        idata = pm.sample(step=step, **options, **QUIET)
    assert step.tall.qr is not None
    assert pms.report(idata).status == "pass"
    draws = in_units_of_u(idata, degree)
    for j in range(degree + 1):
        assert_moments(draws[..., j], mean[j], sd[j])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("kind", KINDS)
def test_in_the_models_own_coordinates_they_are_refused(kind):
    with polynomial(3), pytest.raises(TallModelError, match=r"'a', 'b1'.*large terms") as refusal:
        kind(reparameterize=False)
    assert "that all rows share, unless reparameterize=False" in str(refusal.value)


def apart(degree=3, logistic=True):
    """A model, and its expansion before and after its columns are taken apart."""
    tall = TallModel(polynomial(degree, logistic))
    before = expand(tall)
    qr = find_qr(tall, before, tall.names)
    tall.qr = qr.qr
    after = expand(tall)
    return tall, before, after, qr


@pytest.mark.costly
def test_rows_see_columns_that_are_apart():
    tall, before, after, coordinates = apart()
    index = np.arange(0, N, 97)
    raw, found = (e.sums.design(e.take(index)) for e in (before, after))
    elements, root = coordinates.qr
    assert sorted(elements) == [0, 1, 2, 3]
    np.testing.assert_allclose(root.T @ found[elements], raw[elements], rtol=1e-9)
    # Of length one over the rows that were looked at, and at right angles.
    found = found[elements]
    np.testing.assert_allclose(found @ found.T / len(index), np.eye(4), atol=0.35)
    assert Agreement(tall, after).of_posterior()


def test_coordinates_are_inverted_and_keep_density_and_gradient():
    tall, before, after, coordinates = apart()
    rng = np.random.default_rng(4)
    psi = rng.standard_normal(tall.size)
    theta, volume = coordinates.to_theta(psi)
    np.testing.assert_allclose(coordinates.from_theta(theta), psi, atol=1e-6)
    columns = [coordinates.to_theta(row)[0] for row in np.eye(tall.size)]
    assert np.linalg.slogdet(np.array(columns))[1] == pytest.approx(volume, rel=1e-9)
    phi, prior = after.parameters(theta)  # theta's
    _, written = before.parameters(theta)
    assert prior == written
    after.reparameterise(coordinates)
    own, moved = after.parameters(psi)
    np.testing.assert_allclose(own, phi, atol=1e-6)
    assert moved == pytest.approx(written + volume)
    elements, places = coordinates.qr.elements, coordinates.places
    np.testing.assert_array_equal(own[elements], psi[places])  # to the last bit
    weights = rng.standard_normal(len(phi))
    pulled = after.pull_back(psi, weights)
    np.testing.assert_allclose(pulled[places], weights[elements], rtol=1e-9)
    assert after.effects is None
    restored = after.as_written()
    np.testing.assert_array_equal(restored.parameters(theta)[0], phi)


@pytest.mark.costly
def test_priors_are_those_of_the_models_own_variables():
    """Of raw coefficients, which the coordinates mix; by differences."""
    tall = TallModel(polynomial(3, flat=False))
    expansion = expand(tall)
    coordinates = find_qr(tall, expansion, tall.names)
    expansion = expand(tall)
    expansion.reparameterise(coordinates)
    psi = np.random.default_rng(5).standard_normal(tall.size)
    slope = expansion.pull_back(psi, np.zeros(expansion.phi_size))
    for i, h in enumerate(10.0 * np.eye(tall.size)):
        (_, high), (_, low) = expansion.parameters(psi + h), expansion.parameters(psi - h)
        # The prior is quadratic: central differences are exact but for its rounding.
        assert slope[i] == pytest.approx((high - low) / 20.0, rel=1e-6, abs=1e-15 * abs(high))


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(
    "of",
    [pt.softplus, pt.abs, lambda c: pt.maximum(c, 0.0), lambda c: c + pt.switch(c > 9, c, 0.0)],
    ids=["softplus", "abs", "maximum", "switch"],
)
def test_functions_of_variables_are_not_taken_for_them_where_they_look_alike(of):
    """Far from where they bend: at 40, where the chain starts, all have the slope 1."""
    t, _ = years()
    with pm.Model() as model:
        a, b, c = pm.Flat("a"), pm.Flat("b"), pm.Normal("c", 40, 20)
        mu = a + b * t + of(c) * t**2
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(7).normal(size=N))
    tall = TallModel(model)
    coordinates = find_qr(tall, expand(tall), tall.names)
    if coordinates is not None:
        place = tall.slices[tall.names.index("c")].start
        assert place not in coordinates.places


@pytest.mark.costly
def test_units_and_offsets_of_coefficients_are_known():
    t, _ = years()
    units, offsets = np.array([2.5, -1.0, 1.0, 1e-6]), np.array([0.0, 0.0, 3.0, 0.0])
    with pm.Model() as model:
        b = units * pm.Flat("b", shape=4) + offsets
        mu = np.vander(t, 4, increasing=True) @ b
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(7).normal(size=N))
    tall = TallModel(model)
    coordinates = find_qr(tall, expand(tall), tall.names)
    np.testing.assert_allclose(
        (coordinates._root[0] / coordinates.qr.root[0])[np.argsort(coordinates.places)], units
    )
    tall.qr = coordinates.qr
    after = expand(tall)
    after.reparameterise(coordinates)
    psi = np.random.default_rng(4).standard_normal(4)
    phi, _ = after.parameters(psi)
    theta, _ = coordinates.to_theta(psi)
    # What rows see, by exact arithmetic.
    index = np.arange(0, N, 199)
    seen = phi @ after.sums.design(after.take(index))
    exact = [
        float(
            sum(
                (Fraction(u) * Fraction(x) + Fraction(o)) * Fraction(at) ** k
                for k, (u, x, o) in enumerate(zip(units, theta, offsets, strict=True))
            )
        )
        for at in t[index]
    ]
    # The predictor may be its negative, as in y - mu.
    np.testing.assert_allclose(np.abs(seen), np.abs(exact), rtol=1e-10)


def step_of(columns, prior, n=5_000, **options):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(n, 1)) + np.zeros((n, columns))
    x[:, 1:] += 1e-7 * rng.normal(size=(n, columns - 1))
    with pm.Model():
        b = pm.Normal("b", 0, prior, shape=columns) if prior else pm.Flat("b", shape=columns)
        pm.Normal("y", x @ b, 1.0, observed=rng.normal(x[:, 0], 1.0))
        return pms.HMCECS(**options)


@pytest.mark.costly(cases=0)
def test_what_priors_tell_apart_is_left_as_it_is_written():
    """In other coordinates the prior, which decides there, would lose its digits."""
    assert step_of(3, prior=1.0).tall.qr is None
    assert step_of(3, prior=None).tall.qr is not None


@pytest.mark.costly(cases=0)
def test_columns_that_are_combinations_of_others_are_refused():
    t, _ = years()
    with pm.Model():
        a, b, c = (pm.Flat(name) for name in "abc")
        mu = a + b * t + c * (2 * t + 1)
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(7).normal(size=N))
        with pytest.raises(TallModelError, match="'b', 'c': large terms of the sums") as refusal:
            pms.HMCECS()
    assert "reparameterize" not in str(refusal.value)


@pytest.mark.costly(cases=0)
def test_times_far_from_zero_beside_other_columns():
    rng = np.random.default_rng(0)
    z = rng.normal(size=N)
    x = rng.normal(3, 1, size=(N, 20))
    for offset in (1e7, 1e9):
        with pm.Model():
            eta = pm.Flat("a") + pm.Normal("b", 0, 5) * (offset + z)
            eta += x @ pm.Normal("c", 0, 5, shape=20)
            pm.Bernoulli("seen", logit_p=eta, observed=(rng.random(N) < 0.6) + 0)
            step = pms.HMCECS()
        coordinates = step.expansion.coordinates
        assert sorted(coordinates.places) == [0, 1]
        # The slope's standard deviation: the other columns are independent of this one.
        back = np.array([coordinates.to_theta(unit)[0] for unit in np.eye(22)]).T
        sd = np.linalg.norm((back @ step.home.factor)[1])
        assert sd == pytest.approx(1 / np.sqrt(N * 0.6 * 0.4), rel=0.05)


@pytest.fixture(scope="module")
def step():
    with polynomial(3):
        return pms.HMCECS()


@pytest.mark.slow
def test_a_copy_in_another_process_makes_the_same_draws(step):
    copy = pickle.loads(pickle.dumps(step))
    assert copy.tall.qr is not None
    assert_same(*(chain(s, s.model.initial_point(), draws=5) for s in (step, copy)))


@pytest.mark.costly(cases=0)
def test_audits_and_refits_see_the_models_own_variables(step, caplog):
    with step.model:
        options = {"draws": 500, "tune": 300, "chains": 2, "cores": 1, "random_seed": 4}
        idata = pm.sample(step=step, **options, **QUIET)
    assert repr(pms.audit(idata, model=step.model)).startswith("PASS")
    with caplog.at_level(logging.WARNING, logger="pymc.subsample"):
        again = pms.HMCECS(model=step.model, reference=idata)
    assert not caplog.records
    assert again.tall.qr is not None


@pytest.mark.costly(cases=0)
def test_a_state_goes_on_in_the_coordinates_that_it_is_of():
    rng = np.random.default_rng(9)
    z = rng.normal(size=N)
    seen = rng.binomial(1, 1 / (1 + np.exp(-0.5 * z)))

    def made(**options):
        with pm.Model():
            eta = pm.Flat("a") + pm.Flat("b") * (3e6 + z)
            pm.Bernoulli("seen", logit_p=eta, observed=seen)
            return pms.HMCECS(**options)

    apart, same, written = made(), made(), made(reparameterize=False)
    assert apart.tall.qr is not None
    assert written.tall.qr is None
    same.sampling_state = apart.sampling_state
    with pytest.raises(ValueError, match="fingerprint"):
        written.sampling_state = apart.sampling_state


@pytest.mark.costly
def test_nuts_on_all_rows_is_projected_from_the_models_own_variables(step):
    projected = NutsOnExpansion(step, 10, 10, 0)
    np.testing.assert_array_equal(
        projected.reference.theta, step.expansion.values(step.reference.theta)
    )
    # Of the intercept at the year 0, and of the cubic's coefficient.
    assert projected.sd[0] > 1e4 > 1e-4 > projected.sd[3]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (pms.HMCECS, "non-centred"),
        (pms.HMCECS, "beside an intercept"),
        (pms.FireflyMC, "non-centred"),
    ],
)
def test_hierarchies_with_polynomials_of_raw_years(kind, form):
    t, u = years()
    rng = np.random.default_rng(8)
    group, effects = rng.integers(0, 30, N), rng.normal(0, 0.5, 30)
    eta = np.polynomial.polynomial.polyval(u, CURVE[:4]) + effects[group]
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))

    def run(column):
        with pm.Model():
            a, b = pm.Flat("a"), [pm.Flat(f"b{k}") for k in range(1, 4)]
            tau = pm.HalfNormal("tau", 1)
            if form == "non-centred":
                effect = tau * pm.Normal("z", 0, 1, shape=30)
            else:
                effect = pm.Normal("z", 0, tau, shape=30)
            mu = a + effect[group] + sum(c * column**k for k, c in enumerate(b, 1))
            pm.Bernoulli("y", logit_p=mu, observed=y)
            step = kind()
            options = {"draws": 1000, "tune": 500, "chains": 2, "cores": 1, "random_seed": 3}
            idata = pm.sample(step=step, **options, **QUIET)
        assert (step.tall.qr is not None) == (column is t)
        assert list(step.centring) == ["z"]
        assert pms.report(idata).status != "fail"
        return idata

    raw, scaled = run(t), run(u)
    curves = in_units_of_u(raw, 3)
    draws = {"tau": raw.posterior["tau"].values}
    draws |= {f"b{k}": curves[..., k] for k in range(1, 4)}
    for name, found in draws.items():
        other = scaled.posterior[name].values
        # Of two runs alike: the difference has twice the variance.
        assert_moments(found, other.mean(), other.std(), z=7.0)


@pytest.mark.costly(cases=0)
def test_columns_beside_hundreds_of_groups():
    """The mass matrix is sparse there, and only these columns are looked at."""
    t, u = years()
    rng = np.random.default_rng(10)
    groups, sd = 600, 0.5
    group, effects = rng.integers(0, groups, N), rng.normal(0, sd, groups)
    y = rng.normal(np.polynomial.polynomial.polyval(u, CURVE[:4]) + effects[group], 1.0)
    with pm.Model():
        b = [pm.Flat("a"), *(pm.Flat(f"b{k}") for k in range(1, 4))]
        z = pm.Normal("z", 0, sd, shape=groups)
        pm.Normal("y", sum(c * t**k for k, c in enumerate(b)) + z[group], 1.0, observed=y)
        step = pms.HMCECS()
        options = {"draws": 500, "tune": 300, "chains": 2, "cores": 1, "random_seed": 3}
        idata = pm.sample(step=step, **options, **QUIET)
    assert step.tall.qr is not None
    # Effects integrated out: of each group the rows' mean shrinks.
    x = np.vander(u, 4, increasing=True)
    shrunk = 1 / (np.bincount(group, minlength=groups) + 1 / sd**2)
    sums = np.stack([np.bincount(group, weights=c, minlength=groups) for c in x.T], axis=1)
    precision = x.T @ x - sums.T @ (sums * shrunk[:, None])
    right = x.T @ y - sums.T @ (shrunk * np.bincount(group, weights=y, minlength=groups))
    mean, variance = np.linalg.solve(precision, right), np.diag(np.linalg.inv(precision))
    draws = in_units_of_u(idata, 3)
    for j in range(4):
        assert_moments(draws[..., j], mean[j], np.sqrt(variance[j]))


def normal_rows():
    """Years, outcomes about a cubic, and the exact posterior of its coefficients in u."""
    t, u = years()
    rng = np.random.default_rng(2)
    y = rng.normal(np.polynomial.polynomial.polyval(u, CURVE[:4]), 1.0)
    return t, y, scaled_posterior(y, 3, logistic=False)


def assert_cubic(idata, mean, sd):
    draws = in_units_of_u(idata, 3)
    for j in range(4):
        assert_moments(draws[..., j], mean[j], sd[j])


OPTIONS = {"draws": 1000, "tune": 500, "chains": 2, "cores": 1, "random_seed": 3}


@pytest.mark.slow
def test_beside_a_step_that_moves_other_variables():
    """The chain's vector is found anew from each draw."""
    t, y, (mean, sd) = normal_rows()
    with pm.Model():
        b = [pm.Flat("a"), *(pm.Flat(f"b{k}") for k in range(1, 4))]
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", sum(c * t**k for k, c in enumerate(b)), sigma, observed=y)
        step = pms.HMCECS(vars=b)
        idata = pm.sample(step=[step, pm.Metropolis([sigma])], **OPTIONS, **QUIET)
    assert step.tall.qr is not None
    # The rows' own sd is 1 to within a percent, and so are those of the coefficients.
    assert_cubic(idata, mean, sd)


@pytest.mark.slow
def test_rows_on_disk_and_their_stored_sums(tmp_path):
    t, y, (mean, sd) = normal_rows()
    pd.DataFrame({"t": t, "y": y}).to_parquet(tmp_path / "rows.parquet")
    rows = pms.Rows.from_parquet(tmp_path / "rows.parquet", cache=tmp_path / "rows")
    sample = rows.sample(1_000)
    for _ in range(2):
        with pm.Model():
            column, outcome = (pm.Data(name, np.asarray(sample[name])) for name in ("t", "y"))
            b = [pm.Flat("a"), *(pm.Flat(f"b{k}") for k in range(1, 4))]
            mu = sum(c * column**k for k, c in enumerate(b))
            pm.Normal("seen", mu, 1.0, observed=outcome)
            step = pms.HMCECS(data=rows)
            idata = pm.sample(step=step, **OPTIONS, **QUIET)
        assert step.tall.qr is not None
        assert_cubic(idata, mean, sd)
