"""Models that cannot be subsampled are refused with a message that helps."""

import logging
import re
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
import scipy.stats
from chains import QUIET
from models import MODELS, K, N, design
from pytensor.compile.ops import wrap_py
from pytensor.raise_op import Assert
from pytensor.tensor.extra_ops import CumOp

import pymc_subsample as pms
from pymc_subsample import sgmcmc
from pymc_subsample.model import TallModel, TallModelError, trace, verification

REFUSED = {}
HINT = (
    r"\b(add|assign|check|choose|condition|drop|fill|fix|give|index|integrate|leave|marginali[sz]e"
    r"|model|move|name|observe|pass|precompute|remove|replace|rewrite|sample|set|split|standardi[sz]e"
    r"|start|sum|use|write)\b"
)


def refused(*patterns):
    """Register a model whose refusal must match all patterns."""

    def register(function):
        REFUSED[function.__name__] = function, patterns
        return function

    return register


def name(variable):
    return rf"(?<!\w){variable}(?!\w)"


# Rows coupled by the likelihood


@refused(name("y"), "RandomWalk")
def random_walk(rng):
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk(
            "y", sigma=sigma, init_dist=pm.Normal.dist(), observed=rng.normal(size=N)
        )
    return model


@refused(name("y"), "(?i)autoregressive")
def autoregression(rng):
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        pm.AR("y", rho, 1, init_dist=pm.Normal.dist(shape=2), observed=rng.normal(size=N))
    return model


@refused(name("y"), "MvNormal|MultivariateNormal|Cholesky")
def gaussian_process_marginal(rng):
    x = rng.uniform(size=(N, 1))
    with pm.Model() as model:
        length = pm.HalfNormal("length", 1)
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=length))
        gp.marginal_likelihood("y", X=x, y=rng.normal(size=N), sigma=0.5)
    return model


@refused(name("y"), "MvNormal|MultivariateNormal|Cholesky")
def full_covariance(rng):
    distance = np.abs(np.subtract.outer(*[rng.uniform(size=N)] * 2))
    with pm.Model() as model:
        length, mu = pm.HalfNormal("length", 1), pm.Normal("mu", 0, 1)
        cov = pt.exp(-distance / length) + 0.1 * np.eye(N)
        pm.MvNormal("y", mu * np.ones(N), cov=cov, observed=rng.normal(size=N))
    return model


@refused(name("y"), "CAR|Dot")
def conditional_autoregression(rng):
    W = np.eye(N, k=1) + np.eye(N, k=-1)
    with pm.Model() as model:
        alpha = pm.Uniform("alpha", 0, 1)
        pm.CAR("y", mu=np.zeros(N), W=W, alpha=alpha, tau=1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Sum|Mean")
def centred_predictor(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", mu - mu.mean(), 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Softmax")
def softmax_over_rows(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", pm.math.softmax(mu), 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Max")
def scaled_by_largest_row(rng):
    with pm.Model() as model:
        mu = pt.exp(design(rng) @ pm.Normal("beta", 0, 1, shape=K))
        pm.Normal("y", mu / mu.max(), 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "sparse matrix", r"effects\[group\]")
def sparse_dummies(rng):
    dummies = scipy.sparse.csr_matrix(np.eye(K)[rng.integers(0, K, N)])
    with pm.Model() as model:
        effects = pm.Normal("effects", 0, 1, shape=K)
        mu = pytensor.sparse.structured_dot(dummies, effects[:, None])[:, 0]
        pm.Normal("y", mu, 1, observed=rng.normal(size=N))
    return model


def around(rng, change):
    """Normal rows around what `change` makes of a predictor."""
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", change(mu), 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Cum")
def cumulative_predictor(rng):
    return around(rng, pt.cumsum)


@refused(name("y"), "Sort")
def sorted_predictor(rng):
    return around(rng, pt.sort)


@refused(name("y"), "AdvancedSubtensor")
def parent_row_predictor(rng):
    parent = rng.integers(0, 5, N)  # valid in a batch too, where it would find the wrong row
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", mu + 0.5 * mu[parent], 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Sum|Sub")
def outer_product_of_rows(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        kernel = pt.exp(-((mu[:, None] - mu[None, :]) ** 2))
        pm.Normal("y", mu + kernel.sum(axis=1), 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "AdvancedSubtensor|Subtensor")
def first_row_as_baseline(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", mu - mu[0], 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "Scan")
def recurrence_in_the_mean(rng):
    x = rng.normal(size=N)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5)
        mu = pytensor.scan(
            lambda x, last, rho: x + rho * last,
            sequences=[pt.as_tensor(x)],
            outputs_info=[np.float64(0)],
            non_sequences=[rho],
            return_updates=False,
        )
        pm.Normal("y", mu, 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "couples rows|coupled")
def check_over_all_rows(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        centred = Assert("mean of mu must be small")(mu, pt.abs(mu.mean()) < 10)
        pm.Normal("y", centred, 1, observed=rng.normal(size=N))
    return model


@refused(name("y"), "opaque|FromFunctionOp")
def opaque_operation(rng):
    @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
    def opaque(mu):
        return mu - mu[0]

    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", opaque(mu), 1, observed=rng.normal(size=N))
    return model


@refused(name("l"), "not itself a sum over rows", r"pm\.sample\(\)")
def function_of_a_sum(rng):
    with pm.Model() as model:
        alpha = pm.Normal("alpha")
        pm.Potential("l", -0.5 * N * pt.log(pt.sum((rng.normal(size=N) - alpha) ** 2)))
    return model


@refused(name("y"), "one number for each of them, not a sum")
def density_that_adds_up_its_rows(rng):
    def logp(value, mu):
        return pt.sum(-0.5 * (value - mu) ** 2)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("alpha"), logp=logp, observed=rng.normal(size=N))
    return model


@refused(name("b"), "0.01 times as large", "initval=0.01")
def rates_that_overflow_at_the_start(rng):
    x = np.column_stack([rng.normal(1000, 200, N), rng.normal(500, 50, N)])
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1, shape=2)
        pm.Poisson("y", pt.exp(x @ b), observed=rng.poisson(np.exp(x @ [0.001, 0.002])))
    return model


@refused(name("k"), "0.01 times as large", "initval=0.02")
def times_that_are_far_from_the_start(rng):
    """Of those that are not censored the bound is infinite, as it should be."""
    times, seen = 60 * rng.weibull(1.4, N), np.arange(N) < N // 2
    with pm.Model() as model:
        a, k = pm.Normal("a", 0, 5), pm.Gamma("k", 2, 1)
        y = pm.Weibull.dist(k, pm.math.exp(a))
        upper = np.where(seen, np.inf, 0.9 * times)
        pm.Censored("t", y, lower=None, upper=upper, observed=np.minimum(times, upper))
    return model


# One latent value per row


@refused(name("level"), "shorter series")
def random_walk_latent(rng):
    with pm.Model() as model:
        level = pm.GaussianRandomWalk("level", sigma=0.1, init_dist=pm.Normal.dist(), shape=N)
        pm.Normal("y", level, 1, observed=rng.normal(size=N))
    return model


@refused(name("level"), "shorter series")
def autoregressive_latent(rng):
    with pm.Model() as model:
        level = pm.AR("level", [0.5], 0.1, init_dist=pm.Normal.dist(shape=1), shape=N)
        pm.Normal("y", level, 1, observed=rng.normal(size=N))
    return model


@refused(name("noise"), r"pms\.marginalize")
def overdispersion_per_row(rng):
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1)
        noise = pm.Normal("noise", 0, 1, shape=N)
        pm.Poisson("y", pt.exp(alpha + noise), observed=rng.poisson(2, N))
    return model


@refused(name("true_x"))
def covariate_with_error(rng):
    x = rng.normal(size=N)
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        true_x = pm.Normal("true_x", 0, 1, dims="obs")
        pm.Normal("x", true_x, 0.3, observed=x, dims="obs")
        pm.Normal("y", pm.Normal("b", 0, 1) * true_x, 1, observed=x, dims="obs")
    return model


# Missing values


@refused(name("y_unobserved"), "missing|imput")
def missing_outcome_masked(rng):
    y = np.ma.masked_greater(rng.normal(size=N), 1.5)
    with pm.Model() as model:
        pm.Normal("y", design(rng) @ pm.Normal("beta", 0, 1, shape=K), 1, observed=y)
    return model


@refused(r"pm\.Data 'x' has missing values \(NaN, or masked\) in rows 7, 9\.")
def missing_covariate_set_later(rng):
    x = rng.normal(size=N)
    with pm.Model() as model:
        pm.Normal("y", pm.Data("x", x) * pm.Normal("beta", 0, 1), 1, observed=rng.normal(size=N))
    x[[7, 9]] = np.nan
    pm.set_data({"x": x}, model=model)
    return model


@refused(r"pm\.Data 'g' has missing values \(NaN, or masked\) in rows 5\.")
def missing_code_set_later(rng):
    """What is behind the mask would be taken for a code."""
    g = rng.integers(0, 3, N)
    with pm.Model() as model:
        effect = pm.Normal("effect", shape=3)
        pm.Normal("y", effect[pm.Data("g", g)], 1, observed=rng.normal(size=N))
    pm.set_data({"g": np.ma.masked_array(g, np.arange(N) == 5)}, model=model)
    return model


@refused(name("x_unobserved"), "missing|imput")
def missing_covariate(rng):
    x = np.ma.masked_greater(rng.normal(size=N), 1)
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, observed=x)
        pm.Normal("y", pm.Normal("b", 0, 1) * x, 1, observed=rng.normal(size=N))
    return model


# No row axis, or more than one


@refused(name("y"), "row|axis")
def scalar_outcome(rng):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=0.3)
    return model


@refused("observed|Potential")
def nothing_observed(rng):
    with pm.Model() as model:
        pm.Normal("mu", 0, 1)
    return model


@refused(name("loglik"), "Sum")
def summed_potential(rng):
    with pm.Model() as model:
        mu = design(rng) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Potential("loglik", -pt.sqrt(((rng.normal(size=N) - mu) ** 2).sum()))
    return model


@refused(name("y"), "axes|axis", "dim")
def square_outcome(rng):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=(N, N)))
    return model


# Log-likelihood not finite at the initial point


@refused(name("y"), r"\b3\b", r"\b50\b", "inf")
def outcome_outside_support(rng):
    y = rng.poisson(2, N)
    y[[3, 50]] = -1
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(design(rng) @ pm.Normal("beta", 0, 1, shape=K)), observed=y)
    return model


@refused(name("y"), r"\b7\b", "(?i)nan")
def covariate_not_a_number(rng):
    X = design(rng)
    X[7, 1] = np.nan
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("beta", 0, 1, shape=K), 1, observed=rng.normal(size=N))
    return model


@refused(name("pull"), r"\b12\b", "inf")
def potential_infinite(rng):
    x = rng.uniform(1, 2, N)
    x[12] = 0
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * x, 1, observed=x)
        pm.Potential("pull", b + pt.log(x))
    return model


@refused(name("counts"), "-1,294,967,296", "2,147,483,648", "32 bits", "(?i)give .* as floats")
def counts_of_more_than_32_bits(rng):
    with pm.Model() as model:
        mu = pm.math.exp(22 + pm.Normal("b") * rng.normal(size=N))
        pm.Poisson("y", mu, observed=pm.Data("counts", np.full(N, 3_000_000_000)))  # int32
    return model


@refused(name("CustomDist_y"), "logp=")
def without_log_density(rng):
    with pm.Model() as model:
        pm.CustomDist(
            "y", pm.Normal("mu"), random=lambda *_, **__: 0.0, observed=rng.normal(size=N)
        )
    return model


# Data that do not fit the model


@refused(name("y"), "Simulator", "pm.sample_smc")
def simulator(rng):
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Simulator(
            "y", lambda rng, b, size: rng.normal(b, 1, size), b, observed=rng.normal(size=N)
        )
    return model


@refused(name("y"), rf"observed with shape \({N - 1},\), and made of \({N},\)", "number of rows")
def outcome_of_another_length(rng):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * rng.normal(size=N), 1, observed=rng.normal(size=N - 1))
    return model


@refused(name("y"), rf"pm.Data 'x' has \({N},\); pm.Data 'out' has \({N - 1},\)", "number of rows")
def data_of_another_length(rng):
    with pm.Model() as model:
        x, y = pm.Data("x", rng.normal(size=N)), pm.Data("out", rng.normal(size=N - 1))
        pm.Normal("y", pm.Normal("b") * x, 1, observed=y)
    return model


@refused(name("y"), rf"observed with shape \({N}, 1\)", r"y\.ravel\(\)")
def outcome_that_is_a_column(rng):
    with pm.Model() as model:
        mu = pm.Normal("b") * rng.normal(size=N)
        pm.Normal("y", mu, 1, observed=rng.normal(size=(N, 1)))
    return model


@refused("group", r"\b4\b", r"\b9\b", "length 5", "0 to 4")
def index_out_of_range(rng):
    group = rng.integers(0, 5, N)
    group[[4, 9]] = 5
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=5)
        pm.Normal("y", a[pm.Data("group", group)], 1, observed=rng.normal(size=N))
    return model


@refused(r"\b11\b", "length 3")
def constant_index_out_of_range(rng):
    g, h = rng.integers(0, 5, N), rng.integers(0, 3, N)
    h[11] = -4
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=(5, 3))
        pm.Normal("y", a[g, h], 1, observed=rng.normal(size=N))
    return model


@refused("p", "0 <= p <= 1|0 <= p|data|sigma > 0")
def data_fail_a_check(rng):
    sigma = np.ones(N)
    sigma[5] = -1
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), sigma, observed=rng.normal(size=N))
    return model


@refused("no data|hold no data")
def rows_without_data(rng):
    with pm.Model() as model:
        pm.Potential("p", pt.alloc(pm.Normal("a", 0, 1), N))
    return model


@pytest.mark.costly(cases=4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", list(REFUSED))
def test_refused(case):
    factory, patterns = REFUSED[case]
    model = factory(np.random.default_rng(1))
    with pytest.raises(TallModelError) as error:
        TallModel(model)
    message = str(error.value)
    for pattern in patterns:
        assert re.search(pattern, message), message
    assert re.search(HINT, message, re.IGNORECASE), message


@pytest.mark.parametrize("order", ["reversed", "permuted"])
def test_reordered_predictor_is_refused_or_right(order):
    rng = np.random.default_rng(1)
    X, y = design(rng), rng.normal(size=N)
    permutation = np.arange(N)[::-1] if order == "reversed" else rng.permutation(N)
    with pm.Model() as model:
        mu = X @ pm.Normal("beta", 0, 1, shape=K)
        mu = mu[::-1] if order == "reversed" else mu[permutation]
        pm.Normal("y", mu, 1, observed=y)
    try:
        tall = TallModel(model)
    except TallModelError:
        return
    beta, idx = rng.normal(size=K), np.array([2, 3, 40, 2])
    residual = (y - X[permutation] @ beta)[idx]
    expected = -0.5 * (residual**2 + np.log(2 * np.pi))
    np.testing.assert_allclose(tall.row_loglik(beta, idx), expected, rtol=1e-10)


def test_error_is_a_value_error():
    assert issubclass(TallModelError, ValueError)


def test_square_outcome_is_settled_by_dim():
    y = np.random.default_rng(1).normal(size=(6, 6))
    with pm.Model(coords={"obs": range(6), "replicate": range(6)}) as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=y, dims=("obs", "replicate"))
    for dim, axis in ("obs", 1), ("replicate", 0):
        tall = TallModel(model, dim=dim)
        rows = tall.row_loglik(np.array([0.3]), np.arange(6))
        expected = -0.5 * ((y - 0.3) ** 2 + np.log(2 * np.pi)).sum(axis=axis)
        np.testing.assert_allclose(rows, expected, rtol=1e-12)


@pytest.mark.parametrize("arguments", [{"likelihood": ["z"]}, {"dim": "row"}], ids=str)
def test_unknown_names(arguments):
    model = MODELS["data_containers_with_dims"](np.random.default_rng(1))
    with pytest.raises(TallModelError) as error:
        TallModel(model, **arguments)
    asked, known = ("z", "y") if "likelihood" in arguments else ("row", "obs")
    assert re.search(name(asked), str(error.value))
    assert re.search(name(known), str(error.value))


@pytest.mark.costly(cases=0)
def test_large_deterministic_warns_at_the_line_of_the_user():
    model = MODELS["normal_deterministic_mu"](np.random.default_rng(1))
    step = pms.HMCECS(model=model)
    with pytest.warns(UserWarning, match=r"(?s)(?=.*\bmu\b)(?=.*var_names)") as caught:
        pm.sample(2, tune=2, step=step, model=model, chains=1, cores=1, **QUIET)
    assert {w.filename for w in caught if "Deterministic" in str(w.message)} == {__file__}


@pytest.mark.costly(cases=0)
def test_fitted_values_of_bambi_are_left_to_its_own_fit(caplog):
    """Where `pm.sample` is called for such a model, that is said (`test_examples`)."""
    pytest.importorskip("bambi")
    model = MODELS["bambi_gaussian"](np.random.default_rng(1))
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "pymc.subsample"):
        warnings.simplefilter("error")
        pms.HMCECS(model=model)
    assert "Bambi" not in caplog.text


@pytest.mark.parametrize("named", ["zeta", ["y", "zeta"]])
def test_unknown_likelihood_is_named_in_full(named):
    model = MODELS["normal"](np.random.default_rng(1))
    with pytest.raises(TallModelError, match=r"likelihood holds 'zeta'.*\['y'\]"):
        TallModel(model, likelihood=named)


def test_likelihood_of_another_type_is_named():
    model = MODELS["normal"](np.random.default_rng(1))
    with pytest.raises(TypeError, match=r"likelihood must hold variables or their names, got 3"):
        TallModel(model, likelihood=[3])


@pytest.mark.parametrize("evaluate_all", [True, False])
def test_verification_catches_what_the_trace_does_not(monkeypatch, evaluate_all):
    right = trace.carried_axes

    def wrong(op, node, axis):
        return [axis] if isinstance(op, CumOp) else right(op, node, axis)

    monkeypatch.setattr(trace, "carried_axes", wrong)
    if not evaluate_all:
        monkeypatch.setattr(verification, "_LARGEST_BYTES", 0)
    model = cumulative_predictor(np.random.default_rng(1))
    with pytest.raises(TallModelError, match="changes with the rows around it"):
        TallModel(model)


def test_rows_whose_parameters_are_invalid_are_impossible():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(size=N), rng.binomial(1, 0.5, N)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, initval=0.5)
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", p=a + b * x, observed=y)
    tall = TallModel(model)
    rows = tall.row_loglik(np.array([0.5, 0.7]), np.arange(N))
    p = 0.5 + 0.7 * x
    assert (p > 1).any()
    np.testing.assert_array_equal(np.isneginf(rows), p > 1)
    np.testing.assert_allclose(rows[p < 1], np.log(np.where(y, p, 1 - p))[p < 1])
    assert np.isneginf(tall.row_loglik(np.array([-0.1, 0.0]), np.arange(N))).all()


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", [sgmcmc.SGLD, sgmcmc.SVRGLD, pms.AusterityMH, pms.HMCECS])
def test_a_row_that_cuts_the_posterior_off_is_named_before_sampling(step):
    """Batches of rows miss the one that is impossible beyond a boundary, and their checks too."""
    rng = np.random.default_rng(1)
    x = np.abs(rng.normal(size=300))
    y = rng.poisson(1 + x)
    x[7], y[7] = -0.8, 0
    with pm.Model() as model:
        a, b = pm.Normal("a", 1, 1), pm.Normal("b", 1, 1)
        pm.Poisson("y", a + b * x, observed=y)
    with pytest.raises(TallModelError, match=r"not finite within the spread .* in rows 7: some"):
        step(model=model)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("open_ended", [[7], range(0, 3000, 9)], ids=["one", "many"])
def test_rows_without_derivatives_are_named(open_ended):
    """PyTensor's are NaN where a distribution function is taken at infinity."""
    rng = np.random.default_rng(1)
    low = np.floor(rng.normal(size=3000))
    high = low + 1
    low[list(open_ended)] = -np.inf
    with pm.Model() as model:
        band = pm.Normal.dist(pm.Normal("mu", 0, 1), pm.HalfNormal("s", 2))
        below, above = (pt.exp(pm.logcdf(band, x)) for x in (low, high))
        pm.Potential("y", pt.log(above - below))
    with pytest.raises(
        TallModelError, match=r"derivatives .* 'y' are not finite.* in rows"
    ) as error:
        pms.HMCECS(model=model)
    named = re.search(r"in rows (\d+(, \d+)*)", str(error.value))
    assert {int(row) for row in named[1].split(", ")} <= set(open_ended)


def test_invalid_parameters_shared_by_all_rows_are_impossible():
    with pm.Model() as model:
        sigma = pm.Normal("sigma", 1, 1)
        pm.Normal("y", 0, sigma, observed=np.random.default_rng(1).normal(size=N))
    tall = TallModel(model)
    assert np.isfinite(tall.logprior(np.array([0.5])))
    assert np.isneginf(tall.logprior(np.array([-0.5])))


def test_data_changed_before_but_not_after():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        x, y = pm.Data("x", rng.normal(size=N)), pm.Data("y_data", rng.normal(size=N))
        pm.Normal("y", pm.Normal("b", 0, 1) * x, 1, observed=y, shape=x.shape)
    new_x, new_y = rng.normal(size=2 * N), rng.normal(size=2 * N)
    with model:
        pm.set_data({"x": new_x, "y_data": new_y})
    tall = TallModel(model)
    assert tall.n_rows == 2 * N
    with model:
        pm.set_data({"x": np.zeros(3), "y_data": np.zeros(3)})
    expected = -0.5 * ((new_y - 0.4 * new_x) ** 2 + np.log(2 * np.pi))
    np.testing.assert_allclose(tall.row_loglik(np.array([0.4]), np.arange(2 * N)), expected)


def test_columns_of_different_lengths_are_refused():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(N))
        pm.Normal("y", pm.Normal("b", 0, 1) * x, 1, observed=np.ones(N), shape=x.shape)
        x.set_value(np.ones(N + 1))
    with pytest.raises(TallModelError, match=r"\by\b"):
        TallModel(model)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_very_few_rows(n):
    """As few as the lengths that PyTensor folds."""
    rng = np.random.default_rng(1)
    x, y, group = rng.normal(size=n), rng.integers(0, 3, n), np.arange(n)[::-1] // 2
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=7)
        pm.Poisson("y", pt.exp(a[group] + 0.5 * x), observed=y)
    tall = TallModel(model)
    theta, index = rng.normal(size=7), rng.integers(0, n, 20)
    mu = np.exp(theta[group] + 0.5 * x)
    expected = scipy.stats.poisson(mu).logpmf(y)[index]
    np.testing.assert_allclose(tall.row_loglik(theta, index), expected)


def test_observed_variable_without_the_dimension():
    rng = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(N)}) as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=rng.normal(size=N), dims="obs")
        pm.Normal("z", mu, 1, observed=rng.normal(size=7))
    with pytest.raises(TallModelError, match=r"\bz\b"):
        TallModel(model, likelihood=["y", "z"], dim="obs")
    assert TallModel(model, dim="obs").likelihood == ("y",)


@pytest.mark.parametrize("rotated", [False, True], ids=["smoothed", "gaussian process"])
def test_few_rows_may_read_as_many_parameters_through_a_matrix(rotated):
    """Given parameters such rows are independent; of many, what all read would be a pass."""
    rng = np.random.default_rng(2)
    W, y = rng.dirichlet(np.ones(N), size=N), rng.normal(size=N)
    with pm.Model() as model:
        if rotated:
            f = pm.Normal("f", shape=N)
        else:
            f = design(np.random.default_rng(3)) @ pm.Normal("beta", 0, 1, shape=K)
        pm.Normal("y", W @ f, 1, observed=y)
    tall = TallModel(model)
    theta, index = rng.normal(size=tall.size), rng.integers(0, N, 20)
    mean = W @ (theta if rotated else design(np.random.default_rng(3)) @ theta)
    np.testing.assert_allclose(
        tall.row_loglik(theta, index), scipy.stats.norm(mean, 1).logpdf(y)[index]
    )
