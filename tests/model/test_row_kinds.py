"""Likelihoods of different lengths: their rows are numbered together and subsampled together."""

import logging
import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
from models import SEVERAL, K, N, design, row_gradient
from pytensor.compile.mode import Mode
from scipy.special import digamma, polygamma

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel, TallModelError

PYTHON = Mode("py", "fast_compile")


def made(name):
    model, sizes = SEVERAL[name](np.random.default_rng(1))
    return model, TallModel(model), sizes


@pytest.fixture(scope="module", params=list(SEVERAL))
def case(request):
    return made(request.param)


def points(tall, n):
    rng, start = np.random.default_rng(2), tall.ravel(tall.initial_point)
    return [start + 0.3 * rng.normal(size=tall.size) for _ in range(n)]


@pytest.mark.costly(cases=1)
def test_every_term_has_rows(case):
    _, tall, sizes = case
    assert set(tall.likelihood) == set(sizes)
    assert tall.n_rows == sum(sizes.values())
    assert {w.name for w in tall.whole} <= {"few"}


@pytest.mark.costly(cases=1)
def test_rows_and_prior_sum_to_the_model(case):
    model, tall, _ = case
    logp = model.compile_logp(mode=PYTHON)
    dlogp = model.compile_dlogp(mode=PYTHON)
    every = np.arange(tall.n_rows)
    prior = pt.grad(tall.logprior_graph, tall.theta, disconnected_inputs="ignore")
    for theta in points(tall, 3):
        point = tall.unravel(theta)
        total = tall.logprior(theta) + tall.row_loglik(theta, every).sum()
        np.testing.assert_allclose(total, logp(point), rtol=1e-10)
        gradient = row_gradient(tall, theta, every)
        gradient = gradient + prior.eval({tall.theta: theta}, mode=PYTHON)
        np.testing.assert_allclose(gradient, dlogp(point), rtol=1e-8, atol=1e-8)


@pytest.mark.costly
def test_rows_do_not_depend_on_their_company(case):
    _, tall, _ = case
    [theta] = points(tall, 1)
    every = tall.row_loglik(theta, np.arange(tall.n_rows))
    index = np.random.default_rng(3).integers(0, tall.n_rows, 60)
    np.testing.assert_allclose(tall.row_loglik(theta, index), every[index], rtol=1e-12)


def test_rows_are_those_of_their_term():
    model, tall, _ = made("amounts_and_counts")
    [theta] = points(tall, 1)
    graphs = model.logp(vars=[model["amount"], model["count"]], sum=False)
    ignore = {"mode": PYTHON, "on_unused_input": "ignore"}
    values = model.compile_fn(graphs, inputs=model.value_vars, **ignore)(tall.unravel(theta))
    rows = tall.row_loglik(theta, np.arange(tall.n_rows))
    np.testing.assert_allclose(rows, np.concatenate(values), rtol=1e-10)


@pytest.mark.costly
def test_likelihoods_alike_become_one():
    """Two data sets of one likelihood need no choice; other columns are shared where they can."""
    _, tall, _ = made("two_surveys")
    assert tall.batch.kind is None
    assert len(tall.raw) == 2
    _, tall, _ = made("amounts_and_counts")
    assert tall.batch.kind is not None
    # Groups, covariates, outcomes of both and the kind; log-factorials are not raw.
    assert len(tall.raw) == 5


def test_nothing_is_copied():
    X, y = np.ones((N, K)), np.arange(N) / N
    Z, z = np.ones((50, K)), np.arange(50) % 2
    with pm.Model() as model:
        data = {name: pm.Data(name, x) for name, x in {"X": X, "Z": Z, "a": y, "b": z}.items()}
        beta = pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", pm.math.dot(data["X"], beta), 1, observed=data["a"])
        pm.Bernoulli("z", logit_p=pm.math.dot(data["Z"], beta), observed=data["b"])
    stored = [part for column in TallModel(model).rows.columns for part in column.parts]
    own = [part for part in stored if 0 not in part.strides]
    arrays = [model[name].get_value(borrow=True) for name in data]
    assert all(any(np.shares_memory(array, part) for part in own) for array in arrays)
    assert sum(part.nbytes for part in own) == sum(array.nbytes for array in arrays)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "linear"),
    [
        ("weibull_selected_by_mask", True),
        ("amounts_and_counts", True),
        ("network_and_survey", None),
    ],
)
def test_expansion_is_the_models(name, linear):
    model, tall, _ = made(name)
    expansion = expand(tall, 2, linear=linear)
    assert expansion.linear == bool(linear)
    [theta] = points(tall, 1)
    phi, logprior = expansion.parameters(theta)
    level, slope = np.zeros(1), np.zeros(tall.phi_size)
    for rows in expansion.chunks():
        expansion.anchor(phi, rows)
        expansion.sums(phi, rows, (level, slope, np.zeros((0, 0)), np.zeros(1)))
    logp = model.compile_logp(mode=PYTHON)(tall.unravel(theta))
    np.testing.assert_allclose(logprior + level[0], logp, rtol=1e-10)
    dlogp = model.compile_dlogp(mode=PYTHON)(tall.unravel(theta))
    np.testing.assert_allclose(expansion.pull_back(theta, slope), dlogp, rtol=1e-8, atol=1e-8)
    # Compiled code finds every row where it is.
    index = np.random.default_rng(4).permutation(tall.n_rows)
    gathered = np.zeros((expansion.width, tall.n_rows))
    expansion.gather(expansion.packer.table, index, gathered)
    np.testing.assert_array_equal(gathered, expansion.take(index))


# Which terms have rows


def test_a_potential_is_read_as_the_sums_it_adds():
    x, y = np.random.default_rng(1).normal(size=(2, N))
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Potential("p", 0.5 * -pt.sum((y - b * x) ** 2) / 2.0 - (pt.exp(b) + pt.sum(x * b)))
    tall = TallModel(model)
    assert tall.n_rows == N
    theta = np.array([0.3])
    expected = -((y - 0.3 * x) ** 2) / 4 - 0.3 * x
    np.testing.assert_allclose(tall.row_loglik(theta, np.arange(N)), expected, rtol=1e-10)
    total = tall.logprior(theta) + expected.sum()
    np.testing.assert_allclose(total, model.compile_logp(mode=PYTHON)({"b": np.array(0.3)}))


def coupled_beside_rows(how, m, **kwargs):
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", design(rng) @ beta, 1, observed=rng.normal(size=N))
        pm.Normal("walk", how(rng.normal(size=(m, K)) @ beta), 1, observed=rng.normal(size=m))
    return model, kwargs


@pytest.mark.parametrize("m", [30, 300])
def test_coupled_rows_name_their_variable(m):
    """What is coupled is evaluated in full where it is the smaller part, and refused otherwise."""
    model, _ = coupled_beside_rows(pt.cumsum, m)
    with pytest.raises(TallModelError, match=r"rows of 'walk' are coupled by CumOp"):
        TallModel(model, likelihood=["y", "walk"])
    if m > N:
        with pytest.raises(TallModelError, match=r"rows of 'walk' are coupled by CumOp"):
            TallModel(model)
        return
    tall = TallModel(model)
    assert tall.likelihood == ("y",)
    [walk] = tall.whole
    assert (walk.name, walk.numbers) == ("walk", m * K + m)
    assert "'walk'" in tall.described
    assert f"{m * K + m:,} numbers" in tall.described


def test_latent_per_row_of_the_smaller_part_is_in_full():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=20)
        pm.Normal("y", a[rng.integers(0, 20, N)], 1, observed=rng.normal(size=N))
        pm.Normal("mean", a, 0.1, observed=rng.normal(size=20))
    assert TallModel(model).likelihood == ("y",)
    with pytest.raises(TallModelError, match=r"'a' .* per row of 'mean'"):
        TallModel(model, likelihood=["mean"])


def test_bad_rows_are_named_with_their_variable():
    rng = np.random.default_rng(1)
    y, z = rng.normal(size=N), rng.normal(size=40)
    z[7] = np.nan
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Normal("y", b, 1, observed=y)
        pm.Potential("z", -((b - z) ** 2) * pt.exp(b))
    with pytest.raises(TallModelError, match=r"is NaN at the initial point in rows 7 of 'z'"):
        TallModel(model)


@pytest.mark.parametrize(
    ("form", "value"),  # pm.Data takes no NaN
    [("data", np.inf), *((f, v) for f in ("array", "matrix") for v in (np.nan, np.inf))],
)
def test_bad_values_are_named_with_their_column(form, value):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N, 3)), rng.normal(size=N)
    x[[4, 9], 1] = value
    with pm.Model() as model:
        b, data = pm.Normal("b", shape=3), pm.Data("x", x) if form == "data" else x
        eta = b[0] * x[:, 0] + b[1] * x[:, 1] if form == "array" else data @ b
        pm.Normal("y", eta, 1, observed=y)
    name = {"data": r"'x' \(column 1\)", "matrix": rf"an array of shape \({N}, 3\) \(column 1\)"}
    expected = (
        rf"in rows 4, 9\. There {name.get(form, rf'an array of shape \({N},\)')} is {value}\."
    )
    with pytest.raises(TallModelError, match=expected.replace("is nan", "is NaN")):
        TallModel(model)


@pytest.mark.costly
def test_first_message_names_all(caplog):
    model, _ = SEVERAL["three_likelihoods"](np.random.default_rng(1))
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        pms.MinibatchBarkerMH(model=model, control_variate_order=None)
    said = (record.getMessage() for record in caplog.records)
    first = next(text for text in said if "still setting up" not in text)
    assert "164 rows of pair (97), flag (44) and weighted (23)" in first
    assert re.search(r"in full at every gradient: 'few' \(few rows; reads \d numbers\)", first)


def test_differences_of_neighbouring_rows_are_of_their_data():
    rng = np.random.default_rng(1)
    X, y, beta = rng.normal(size=(N + 1, K)), rng.normal(size=N), rng.normal(size=K)
    with pm.Model() as model:
        mu = X @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", mu[1:] - mu[:-1], 1, observed=y)
    rows = TallModel(model).row_loglik(beta, np.arange(N))
    residual = y - np.diff(X @ beta)
    np.testing.assert_allclose(rows, -0.5 * (residual**2 + np.log(2 * np.pi)), rtol=1e-10)


def test_groups_that_rows_repeat_are_no_selection():
    """The groups' quantity is computed once, not for each row."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0, 1, shape=2)
        of_group = pt.exp(rng.normal(size=(5, 2)) @ gamma)
        pm.Poisson("y", of_group[rng.integers(0, 5, N)], observed=rng.poisson(2, N))
    assert TallModel(model).phi_size == 5


# Posteriors


def gamma_poisson(rng, n, m):
    """Counts and waiting times, some of them unfinished, of one rate: its posterior is a Gamma."""
    counts = rng.poisson(2.5, n)
    waits = rng.exponential(1 / 2.5, m)
    seen = waits < 0.5
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Poisson("counts", rate, observed=counts)
        pm.Exponential("waits", rate, observed=waits[seen])
        unfinished = pm.logccdf(pm.Exponential.dist(rate), np.full((~seen).sum(), 0.5))
        pm.Potential("unfinished", pt.sum(unfinished))
    shape = 2 + counts.sum() + seen.sum()
    exact = scipy.stats.gamma(shape, scale=1 / (1 + n + np.minimum(waits, 0.5).sum()))
    return model, exact


@pytest.fixture(scope="module")
def known_posterior():
    return gamma_poisson(np.random.default_rng(5), 2000, 900)


def check_posterior(idata, exact, bias=0.0):
    """Mean and variance are those known, but for Monte Carlo error at 1e-5 per test and a bias."""
    draws = np.log(np.asarray(idata.posterior["rate"]))
    chains, n = draws.shape
    # A Gamma of so large a shape is normal in the logarithm to well within these errors.
    mean = digamma(exact.args[0]) + np.log(exact.kwds["scale"])
    sd = np.sqrt(polygamma(1, exact.args[0]))
    z = (draws - mean) / sd
    for power, expected in ((1, 0.0), (2, 1.0)):
        batches = (z**power).reshape(chains * 20, n // 20).mean(axis=1)
        error = batches.std(ddof=1) / np.sqrt(len(batches))
        limit = scipy.stats.t(len(batches) - 1).isf(0.25e-5) * error + bias
        assert abs(batches.mean() - expected) <= limit


@pytest.mark.costly(cases=0)
def test_posterior_of_three_likelihoods(known_posterior):
    model, exact = known_posterior
    with model:
        step = pms.HMCECS()
        idata = pm.sample(
            draws=2000, tune=500, chains=2, cores=1, step=step, random_seed=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    assert step.likelihood == ("counts", "waits", "unfinished")
    check_posterior(idata, exact)
    # Weights from the log-likelihood of all rows, which reads the same rows. They are all but
    # equal, so that the tail index of fifty says nothing; the audit knows.
    audit = pms.audit(idata, model=model, draws=50)
    assert str(audit).startswith("PASS")
    assert audit.ess > 49
    assert str(pms.report(idata)).startswith("PASS")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: pms.MinibatchBarkerMH(),
        lambda: pms.AusterityMH(epsilon=0.01),
        lambda: pms.sgmcmc.SGLD(),
    ],
    ids=["barker", "austerity", "sgld"],
)
def test_other_steps(known_posterior, make):
    model, exact = known_posterior
    with model:
        idata = pm.sample(
            draws=6000, tune=1000, chains=2, cores=1, step=make(), random_seed=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    check_posterior(idata, exact, bias=0.15)
