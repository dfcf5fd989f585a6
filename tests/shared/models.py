"""Models with independent rows, written the way PyMC users write them.

Every entry of `MODELS` is a function of a NumPy generator that returns a `pm.Model` with `N` rows.
No other axis of any model has length `N`. Those of `SEVERAL` have rows of several kinds, and return
the number of rows of each one too. What makes them is written as inside `with pm.Model():`.
"""

from functools import partial, wraps

import numpy as np
import pandas as pd
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt
import pytest
from scipy.special import expit, softmax

N, K, G = 97, 3, 5  # rows, columns, groups

MODELS = {}
SEVERAL = {}
LARGE_DETERMINISTIC = set()  # models that store a Deterministic of N values


def row_gradient(tall, theta, index):
    """Gradient in theta, shape (d,), of the sum of the log-likelihoods of some rows."""
    return tall.weighted_gradient(theta, index, np.ones(len(tall.row_loglik(theta, index))))


def register(function=None, **coords):
    """Keep what a function writes inside `with pm.Model(coords=coords)`."""
    if function is None:
        return partial(register, **coords)

    @wraps(function)
    def make(rng):
        with pm.Model(coords=coords) as model:
            function(rng)
        return model

    MODELS[function.__name__] = make
    return make


def several(function):
    """Keep the same where rows are of several kinds; the function returns how many of each."""

    @wraps(function)
    def make(rng):
        with pm.Model() as model:
            sizes = function(rng)
        return model, sizes

    SEVERAL[function.__name__] = make
    return make


def stores_rows(function):
    LARGE_DETERMINISTIC.add(function.__name__)
    return function


def design(rng, k=K):
    return rng.normal(size=(N, k))


def linear(rng, X, scale=0.5):
    return 0.3 + X @ rng.normal(scale=scale, size=X.shape[1])


def binary(rng):
    X = design(rng)
    return X, rng.binomial(1, expit(linear(rng, X)))


def counts(rng):
    X = design(rng)
    return X, rng.poisson(np.exp(linear(rng, X)))


def exposed_counts(rng):
    X, exposure = design(rng), rng.uniform(1, 5, N)
    return X, exposure, rng.poisson(exposure * np.exp(linear(rng, X)))


def continuous(rng):
    X = design(rng)
    return X, linear(rng, X) + rng.normal(size=N)


def waits(rng):
    X = design(rng)
    return X, rng.gamma(2, np.exp(linear(rng, X)) / 2)


def lifetimes(rng):
    X = design(rng)
    return X, rng.weibull(1.5, N) * np.exp(linear(rng, X))


def groups(rng, k=G):
    return np.concatenate([np.arange(k), rng.integers(0, k, N - k)])


def ordered(name, start):
    transform = pm.distributions.transforms.ordered
    return pm.Normal(name, 0, 3, shape=len(start), transform=transform, initval=start)


def table(rng):
    """A data frame with a column of every kind."""
    df = pd.DataFrame(design(rng), columns=["x1", "x2", "x3"])
    df["group"] = pd.Categorical.from_codes(groups(rng), list("abcde"))
    eta = df["x1"] - 0.5 * df["x2"] + 0.2 * df["group"].cat.codes
    df["y"] = eta + rng.normal(scale=0.5, size=N)
    df["count"] = rng.poisson(np.exp(0.5 * eta))
    df["won"] = rng.random(N) < expit(eta)
    df["positive"] = np.exp(df["y"])
    return df


# Binary outcomes


@register
def bernoulli_logit(rng):
    X, y = binary(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=X @ beta, observed=y)


@register
def bernoulli_logit_intercept_dot(rng):
    X, y = binary(rng)
    alpha = pm.Normal("alpha", 0, 2)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=alpha + pm.math.dot(X, beta), observed=y)


@stores_rows
@register
def bernoulli_p(rng):
    X = design(rng)
    y = rng.random(N) < expit(linear(rng, X))
    alpha = pm.Normal("alpha", 0, 2)
    beta = pm.Normal("beta", 0, 1, shape=K)
    p = pm.Deterministic("p", pm.math.sigmoid(alpha + pt.dot(X, beta)))
    pm.Bernoulli("y", p=p, observed=y)


@register
def bernoulli_probit(rng):
    X, y = binary(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", p=pm.math.invprobit((X * beta).sum(axis=-1)), observed=y)


@register
def bernoulli_columns(rng):
    X = design(rng)
    x1, x2 = X[:, 0], X[:, 1]
    y = rng.binomial(1, expit(0.3 + x1 - x2))
    b0 = pm.Normal("b0", 0, 2)
    b1 = pm.Normal("b1", 0, 2)
    b2 = pm.Normal("b2", 0, 2)
    pm.Bernoulli("y", p=pm.math.invlogit(b0 + b1 * x1 + b2 * x2 + b1 * b2 * x1 * x2), observed=y)


@register
def binomial(rng):
    X = design(rng)
    trials = rng.integers(1, 20, N)
    y = rng.binomial(trials, expit(linear(rng, X)))
    beta = pm.Normal("beta", 0, 1, shape=(K, 1))
    pm.Binomial("y", n=trials, logit_p=(X @ beta)[:, 0], observed=y)


@register
def binomial_p(rng):
    g = groups(rng)
    y = rng.binomial(10, 0.3, N)
    p = pm.Beta("p", 2, 2, shape=G)
    pm.Binomial("y", 10, p[g], observed=y)


@register
def beta_binomial(rng):
    X, y = design(rng), rng.binomial(12, rng.beta(3, 4, N))
    beta = pm.Normal("beta", 0, 1, shape=K)
    kappa = pm.Gamma("kappa", 2, 0.5)
    mu = pm.math.sigmoid(X @ beta)
    pm.BetaBinomial("y", n=12, alpha=mu * kappa, beta=(1 - mu) * kappa, observed=y)


@register(person=range(11), item=range(7))
def item_response(rng):
    person, item = groups(rng, 11), groups(rng, 7)
    y = rng.binomial(1, 0.6, N)
    ability = pm.Normal("ability", 0, 1, dims="person")
    difficulty = pm.Normal("difficulty", 0, 1, dims="item")
    slope = pm.LogNormal("slope", 0, 0.5, dims="item")
    pm.Bernoulli("y", logit_p=slope[item] * (ability[person] - difficulty[item]), observed=y)


# Counts


@register
def poisson_offset(rng):
    X, exposure, y = exposed_counts(rng)
    alpha = pm.Normal("alpha", 0, 1)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Poisson("y", mu=pm.math.exp(alpha + pm.math.dot(X, beta) + np.log(exposure)), observed=y)


@register
def poisson_exposure(rng):
    X, exposure, y = exposed_counts(rng)
    rate = pm.Gamma("rate", 2, 1)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Poisson("y", exposure * rate * pt.exp(pt.sum(X * beta[None, :], axis=1)), observed=y)


@register
def negative_binomial(rng):
    X, y = design(rng), rng.negative_binomial(3, 0.4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Exponential("alpha", 1)
    pm.NegativeBinomial("y", mu=pt.exp(X @ beta), alpha=alpha, observed=y)


@register
def zero_inflated_poisson(rng):
    X = design(rng)
    y = rng.poisson(np.exp(linear(rng, X))) * rng.binomial(1, 0.7, N)
    psi = pm.Beta("psi", 2, 2)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(X @ beta), observed=y)


@register
def zero_inflated_negative_binomial(rng):
    X = design(rng)
    y = rng.negative_binomial(3, 0.4, N) * rng.binomial(1, 0.7, N)
    gamma = pm.Normal("gamma", 0, 1, shape=K)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Exponential("alpha", 1)
    pm.ZeroInflatedNegativeBinomial(
        "y", psi=pm.math.sigmoid(X @ gamma), mu=pt.exp(X @ beta), alpha=alpha, observed=y
    )


@register
def hurdle_poisson(rng):
    X, y = counts(rng)
    psi = pm.Beta("psi", 2, 2)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.HurdlePoisson("y", psi=psi, mu=pt.exp(X @ beta), observed=y)


# Continuous outcomes


@register
def normal(rng):
    X, y = continuous(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", mu=(X * beta).sum(-1), sigma=sigma, observed=y)


@register
def normal_intercept_only(rng):
    y = rng.normal(2, 3, N)
    mu = pm.Normal("mu", 0, 10)
    sigma = pm.HalfCauchy("sigma", 5)
    pm.Normal("y", mu, sigma, observed=y)


@stores_rows
@register(obs=np.arange(N))
def normal_deterministic_mu(rng):
    x = rng.normal(size=N)
    y = 1 + 2 * x + rng.normal(size=N)
    intercept = pm.Normal("intercept", 0, 1)
    slope = pm.Normal("slope", 0, 1)
    mu = pm.Deterministic("mu", intercept + slope * x, dims="obs")
    sigma = pm.Exponential("sigma", 1)
    pm.Normal("y", mu, sigma, observed=y, dims="obs")


@register
def normal_heteroscedastic(rng):
    X, y = continuous(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    gamma = pm.Normal("gamma", 0, 0.5, shape=2)
    pm.Normal("y", X @ beta, sigma=pm.math.exp(gamma[0] + gamma[1] * X[:, 0]), observed=y)


@register
def normal_precision_polynomial(rng):
    x = rng.uniform(-1, 1, N)
    y = x - x**2 + rng.normal(scale=0.3, size=N)
    b = pm.Normal("b", 0, 1, shape=3)
    tau = pm.Gamma("tau", 2, 1)
    pm.Normal("y", b[0] + b[1] * x + b[2] * pt.as_tensor(x) ** 2, tau=tau, observed=y)


@register
def normal_measurement_error(rng):
    effect, error = rng.normal(size=N), rng.uniform(0.5, 2, N)
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    pm.Normal("y", mu, sigma=pt.sqrt(tau**2 + error**2), observed=effect)


@register
def student_t(rng):
    X = design(rng)
    y = linear(rng, X) + rng.standard_t(4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    nu = pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=pm.math.dot(X, beta), sigma=sigma, observed=y)


@register
def gamma(rng):
    X, y = waits(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    shape = pm.Gamma("shape", 2, 1)
    pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(X @ beta), observed=y)


@register
def gamma_mu_sigma(rng):
    X, y = waits(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 2)
    pm.Gamma("y", mu=pm.math.exp(X @ beta), sigma=sigma, observed=y)


@register
def beta_regression(rng):
    X, y = design(rng), rng.beta(3, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    nu = pm.Gamma("nu", 2, 0.1)
    pm.Beta("y", mu=pm.math.sigmoid(X @ beta), nu=nu + 2, observed=y)


@register
def lognormal(rng):
    X = design(rng)
    y = np.exp(linear(rng, X) + rng.normal(size=N))
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.LogNormal("y", X @ beta, sigma, observed=y)


@register
def quantile_regression(rng):
    X, y = continuous(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    b = pm.HalfNormal("b", 1)
    pm.AsymmetricLaplace("y", b=b, mu=X @ beta, q=0.9, observed=y)


# Categories and vectors per row


@register
def categorical_softmax(rng):
    X = design(rng)
    y = np.array([rng.choice(4, p=p) for p in softmax(design(rng, 4), axis=1)])
    alpha = pm.Normal("alpha", 0, 1, shape=4)
    beta = pm.Normal("beta", 0, 1, shape=(K, 4))
    pm.Categorical("y", p=pm.math.softmax(alpha + pm.math.dot(X, beta), axis=1), observed=y)


@register
def categorical_logit(rng):
    X, y = design(rng), rng.integers(0, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=(K, 3))
    free = X @ beta
    pm.Categorical("y", logit_p=pt.concatenate([pt.zeros((N, 1)), free], axis=1), observed=y)


@register
def categorical_reference_parameters(rng):
    X, y = design(rng), rng.integers(0, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=(K, 3))
    full = pt.concatenate([beta, np.zeros((K, 1))], axis=1)
    pm.Categorical("y", logit_p=pt.dot(X, full), observed=y)


@register
def categorical_stacked_utilities(rng):
    price = rng.uniform(1, 2, (N, 3))
    y = rng.integers(0, 3, N)
    a = pm.Normal("a", 0, 1, shape=2)
    b = pm.Normal("b", 0, 1)
    utility = pt.stack([a[0] + b * price[:, 0], a[1] + b * price[:, 1], b * price[:, 2]]).T
    pm.Categorical("y", p=pm.math.softmax(utility, axis=-1), observed=y)


@register
def categorical_no_covariate(rng):
    y = rng.integers(0, 4, N)
    p = pm.Dirichlet("p", np.ones(4))
    pm.Categorical("y", p, observed=y)


@register
def ordered_logistic(rng):
    X, y = design(rng), rng.integers(0, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    cutpoints = ordered("cutpoints", [-1.0, 0.0, 1.0])
    pm.OrderedLogistic("y", eta=X @ beta, cutpoints=cutpoints, observed=y, compute_p=False)


@stores_rows
@register
def ordered_probit(rng):
    X, y = design(rng), rng.integers(0, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    cutpoints = ordered("cutpoints", [-1.0, 0.0, 1.0])
    pm.OrderedProbit("y", eta=pm.math.dot(X, beta), cutpoints=cutpoints, observed=y)


@register
def stopping_ratio(rng):
    """As Bambi's `sratio`: each level is the last one with a probability of its own."""
    X, y = design(rng), rng.integers(0, 4, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    thresholds = pm.Normal("thresholds", 0, 2, shape=3)
    stop = pm.math.sigmoid(thresholds - (X @ beta)[:, None])
    levels = [stop[:, k] * pt.prod(1 - stop[:, :k], axis=1) for k in range(3)]
    p = pt.stack([*levels, pt.prod(1 - stop, axis=1)], axis=1)
    pm.Categorical("y", p=p, observed=y)


@register
def von_mises(rng):
    X = design(rng)
    y = rng.vonmises(linear(rng, X), 2.0)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.VonMises("y", mu=X @ beta, kappa=pm.HalfNormal("kappa", 3), observed=y)


@register
def multinomial(rng):
    X = design(rng)
    trials = rng.integers(5, 15, N)
    y = np.array([rng.multinomial(t, [0.2, 0.3, 0.1, 0.4]) for t in trials])
    beta = pm.Normal("beta", 0, 1, shape=(K, 4))
    pm.Multinomial("y", n=trials, p=pm.math.softmax(X @ beta, axis=-1), observed=y)


@register
def dirichlet_multinomial(rng):
    y = rng.multinomial(10, [0.2, 0.3, 0.1, 0.4], size=N)
    a = pm.Gamma("a", 2, 1, shape=4)
    pm.DirichletMultinomial("y", n=10, a=a, observed=y)


@register
def mvnormal_lkj(rng):
    y = rng.multivariate_normal([0, 1, 2], np.eye(3) + 0.3, size=N)
    mu = pm.Normal("mu", 0, 2, shape=3)
    chol, _, _ = pm.LKJCholeskyCov(
        "chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1), compute_corr=True
    )
    pm.MvNormal("y", mu, chol=chol, observed=y)


@register
def mvnormal_regression_cov(rng):
    X, y = design(rng), rng.normal(size=(N, 2))
    beta = pm.Normal("beta", 0, 1, shape=(K, 2))
    sd = pm.HalfNormal("sd", 1, shape=2)
    rho = pm.Uniform("rho", -1, 1)
    off = rho * sd[0] * sd[1]
    cov = pt.stacklists([[sd[0] ** 2, off], [off, sd[1] ** 2]])
    pm.MvNormal("y", mu=X @ beta, cov=cov, observed=y)


@register
def normal_matrix_outcome(rng):
    X, y = design(rng), rng.normal(size=(N, 4))
    W = pm.Normal("W", 0, 1, shape=(K, 4))
    sigma = pm.HalfNormal("sigma", 1, shape=4)
    pm.Normal("y", X @ W, sigma, observed=y)


# Mixtures, censoring, survival


@register
def normal_mixture(rng):
    y = np.where(rng.random(N) < 0.4, rng.normal(-2, 1, N), rng.normal(2, 0.5, N))
    w = pm.Dirichlet("w", np.ones(2))
    mu = ordered("mu", [-1.0, 1.0])
    sigma = pm.HalfNormal("sigma", 1, shape=2)
    pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)


@register
def mixture_of_regressions(rng):
    x = rng.normal(size=N)
    y = np.where(rng.random(N) < 0.4, x, -x) + rng.normal(scale=0.4, size=N)
    w = pm.Dirichlet("w", np.ones(2))
    a = pm.Normal("a", 0, 1, shape=2)
    b = pm.Normal("b", 0, 1, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    components = pm.Normal.dist(a + b * x[:, None], sigma)
    pm.Mixture("y", w=w, comp_dists=components, observed=y)


@register
def mixture_of_families(rng):
    X = design(rng)
    y = linear(rng, X) + rng.standard_t(3, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    w = pm.Beta("w", 2, 2)
    mu = X @ beta
    components = [pm.Normal.dist(mu, 1), pm.StudentT.dist(nu=3, mu=mu, sigma=2)]
    pm.Mixture("y", w=pt.stack([w, 1 - w]), comp_dists=components, observed=y)


@register
def poisson_mixture_gated(rng):
    X, y = design(rng), rng.poisson(3, N)
    gate = pm.Normal("gate", 0, 1, shape=(K, 2))
    rate = pm.Gamma("rate", 2, 1, shape=2)
    components = pm.Poisson.dist(rate, shape=(N, 2))
    pm.Mixture("y", w=pm.math.softmax(X @ gate, axis=1), comp_dists=components, observed=y)


@register
def censored_normal(rng):
    X = design(rng)
    y = np.clip(linear(rng, X) + rng.normal(size=N), -1, 1)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    latent = pm.Normal.dist(mu=X @ beta, sigma=sigma)
    pm.Censored("y", latent, lower=-1, upper=1, observed=y)


@register
def censored_row_bounds(rng):
    X = design(rng)
    upper = rng.uniform(0.5, 2, N)
    y = np.minimum(rng.exponential(size=N), upper)
    beta = pm.Normal("beta", 0, 1, shape=K)
    latent = pm.Weibull.dist(alpha=1.5, beta=pt.exp(X @ beta))
    pm.Censored("y", latent, lower=None, upper=upper, observed=y)


@register
def truncated_normal(rng):
    X = design(rng)
    y = np.abs(linear(rng, X) + rng.normal(size=N))
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.TruncatedNormal("y", X @ beta, sigma, lower=0, observed=y)


@register
def truncated(rng):
    X = design(rng)
    y = 0.1 + rng.gamma(2, 1, N)
    beta = pm.Normal("beta", 0, 0.5, shape=K)
    alpha = pm.Gamma("alpha", 4, 2)
    pm.Truncated("y", pm.Gamma.dist(alpha, pt.exp(X @ beta)), lower=0.1, observed=y)


@register
def weibull(rng):
    X, y = lifetimes(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    pm.Weibull("y", alpha=alpha, beta=pt.exp(X @ beta), observed=y)


@register
def weibull_censored_potential(rng):
    X, time = lifetimes(rng)
    event = rng.random(N) < 0.7
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    scale = pm.math.exp(X @ beta)
    z = (time / scale) ** alpha
    log_hazard = pm.math.log(alpha) + (alpha - 1) * pm.math.log(time) - alpha * pm.math.log(scale)
    pm.Potential("loglik", event * log_hazard - z)


@register
def weibull_censored_switch(rng):
    X, time = lifetimes(rng)
    event = rng.random(N) < 0.7
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    dist = pm.Weibull.dist(alpha, pt.exp(pm.math.dot(X, beta)))
    survival = pt.log1mexp(pm.logcdf(dist, time))
    pm.Potential("loglik", pm.math.switch(event, pm.logp(dist, time), survival))


# Groups


@register(group=list("abcde"))
def intercepts_centred(rng):
    g = groups(rng)
    y = g + rng.normal(size=N)
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfNormal("tau", 2)
    a = pm.Normal("a", mu, tau, dims="group")
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", a[g], sigma, observed=y)


@register
def slopes_centred(rng):
    g, x = groups(rng).astype("int8"), rng.normal(size=N)
    y = g + x + rng.normal(size=N)
    mu = pm.Normal("mu", 0, 5, shape=2)
    tau = pm.HalfNormal("tau", 2, shape=2)
    a = pm.Normal("a", mu[0], tau[0], shape=G)
    b = pm.Normal("b", mu[1], tau[1], shape=G)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", a[g] + b[g] * x, sigma, observed=y)


@register(group=range(G))
def slopes_noncentred(rng):
    g, x = groups(rng), rng.normal(size=N)
    y = rng.binomial(1, expit(x))
    group = pm.Data("group_idx", g)
    mu_a, mu_b = pm.Normal("mu_a", 0, 1), pm.Normal("mu_b", 0, 1)
    tau_a, tau_b = pm.HalfNormal("tau_a", 1), pm.HalfNormal("tau_b", 1)
    a = pm.Deterministic("a", mu_a + tau_a * pm.Normal("z_a", 0, 1, dims="group"), dims="group")
    b = pm.Deterministic("b", mu_b + tau_b * pm.Normal("z_b", 0, 1, dims="group"), dims="group")
    pm.Bernoulli("y", logit_p=a[group] + b[group] * x, observed=y)


@register(group=range(G), effect=["a", "b"])
def slopes_correlated(rng):
    g, x = groups(rng), rng.normal(size=N)
    y = g + x + rng.normal(size=N)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    mu = pm.Normal("mu", 0, 2, dims="effect")
    z = pm.Normal("z", 0, 1, dims=("group", "effect"))
    ab = pm.Deterministic("ab", mu + pt.dot(chol, z.T).T, dims=("group", "effect"))
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", ab[g, 0] + ab[g, 1] * x, sigma, observed=y)


@register
def slopes_mvnormal_matrix(rng):
    g, Z = groups(rng), np.column_stack([np.ones(N), rng.normal(size=N)])
    y = g + rng.normal(size=N)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    u = pm.MvNormal("u", mu=np.zeros(2), chol=chol, shape=(G, 2))
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", (u[g] * Z).sum(axis=1), sigma, observed=y)


@register
def effects_crossed(rng):
    g, h = groups(rng), groups(rng, 7)
    y = rng.poisson(2, N)
    a = pm.ZeroSumNormal("a", 1, shape=G)
    b = pm.Normal("b", 0, 1, shape=7)
    c = pm.Normal("c", 0, 0.3, shape=(G, 7))
    pm.Poisson("y", pt.exp(a[g] + b[h] + c[g, h]), observed=y)


@register
def effects_nested(rng):
    county_of_site = np.array([0, 0, 1, 1, 2, 2, 2])
    site = groups(rng, 7)
    y = rng.normal(size=N)
    county = pm.Normal("county", 0, 1, shape=3)
    offset = pm.Normal("offset", 0, 1, shape=7)
    tau = pm.HalfNormal("tau", 1)
    effect = county[county_of_site] + tau * offset
    pm.Normal("y", effect[site], 1, observed=y)


@register
def time_trend(rng):
    month = groups(rng, 12)
    y = rng.poisson(3, N)
    level = pm.GaussianRandomWalk("level", sigma=0.3, init_dist=pm.Normal.dist(0, 1), shape=12)
    pm.Poisson("y", pt.exp(level[month]), observed=y)


@register
def gaussian_process_over_groups(rng):
    age = groups(rng, 6)
    y = rng.binomial(1, 0.4, N)
    length = pm.InverseGamma("length", 5, 5)
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=length))
    f = gp.prior("f", X=np.arange(6.0)[:, None])
    pm.Bernoulli("y", logit_p=f[age], observed=y)


@register
def matrix_factorisation(rng):
    user, item = groups(rng, 9), groups(rng, 7)
    rating = rng.normal(size=N)
    U = pm.Normal("U", 0, 1, shape=(9, 2))
    V = pm.Normal("V", 0, 1, shape=(7, 2))
    pm.Normal("rating", (U[user] * V[item]).sum(axis=-1), 0.5, observed=rating)


@register
def change_point(rng):
    year = np.sort(rng.uniform(0, 10, N))
    y = rng.poisson(np.where(year < 4, 3, 1))
    switchpoint = pm.Uniform("switchpoint", 0, 10)
    early, late = pm.Exponential("early", 1), pm.Exponential("late", 1)
    pm.Poisson("y", pm.math.switch(switchpoint >= year, early, late), observed=y)


# Several observed variables


@register
def two_outcomes(rng):
    X = design(rng)
    positive = rng.binomial(1, expit(linear(rng, X)))
    amount = linear(rng, X) + rng.normal(size=N)
    b = pm.Normal("b", 0, 1, shape=K)
    c = pm.Normal("c", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Bernoulli("positive", logit_p=X @ b, observed=positive)
    pm.Normal("amount", X @ c + X @ b, sigma, observed=amount)


@register
def outcome_and_potential(rng):
    X, y = continuous(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    mu = X @ beta
    pm.Normal("y", mu, 1, observed=y)
    pm.Potential("smaller_than_three", -pt.softplus(4 * (mu - 3)))
    pm.Potential("soft_sum_to_zero", -50 * beta.sum() ** 2)


@register
def small_unsubsampled_outcome(rng):
    X, y = continuous(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", X @ beta, sigma, observed=y)
    pm.Normal("calibration", beta[0], 0.1, observed=rng.normal(size=8))
    pm.Normal("total", beta.sum(), 1, observed=0.2)


@register
def outcome_observed_covariate(rng):
    x = rng.normal(1, 2, N)
    y = 2 * x + rng.normal(size=N)
    mu_x = pm.Normal("mu_x", 0, 2)
    x_rv = pm.Normal("x", mu_x, 2, observed=x)
    slope = pm.Normal("slope", 0, 2)
    pm.Normal("y", slope * x_rv, 1, observed=y)


# Custom likelihoods


@register
def custom_logp(rng):
    X = design(rng)
    y = linear(rng, X) + rng.laplace(size=N)

    def logp(value, mu, b):
        return -pt.log(2 * b) - pt.sqrt(1e-3 + ((value - mu) / b) ** 2)

    beta = pm.Normal("beta", 0, 1, shape=K)
    b = pm.HalfNormal("b", 1)
    pm.CustomDist("y", X @ beta, b, logp=logp, observed=y)


@register
def custom_dist(rng):
    X = design(rng)
    y = np.exp(linear(rng, X) + rng.normal(size=N))

    def dist(mu, sigma, size):
        return pm.math.exp(pm.Normal.dist(mu, sigma, size=size))

    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.CustomDist("y", X @ beta, sigma, dist=dist, observed=y)


@register
def potential_only(rng):
    X, y = continuous(rng)
    weight = rng.uniform(0.5, 1.5, N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Potential("loglik", weight * pm.logp(pm.Normal.dist(X @ beta, sigma), y))


# Networks, splines, Gaussian process bases


@register
def two_layer_network(rng):
    X, y = binary(rng)
    w1 = pm.Normal("w1", 0, 1, shape=(K, 4), initval=rng.normal(size=(K, 4)))
    b1 = pm.Normal("b1", 0, 1, shape=4)
    w2 = pm.Normal("w2", 0, 1, shape=(4, 2), initval=rng.normal(size=(4, 2)))
    w_out = pm.Normal("w_out", 0, 1, shape=2, initval=rng.normal(size=2))
    hidden = pm.math.tanh(pm.math.dot(X, w1) + b1)
    hidden = pt.maximum(pm.math.dot(hidden, w2), 0.1 * pm.math.dot(hidden, w2))
    pm.Bernoulli("y", p=pm.math.sigmoid(pm.math.dot(hidden, w_out)), observed=y)


@register
def spline(rng):
    from scipy.interpolate import BSpline

    x = rng.uniform(0, 1, N)
    knots = np.r_[[0] * 4, 0.3, 0.6, [1] * 4]
    B = np.asfortranarray(BSpline.design_matrix(x, knots, 3).toarray())
    y = np.sin(6 * x) + rng.normal(scale=0.2, size=N)
    a = pm.Normal("a", 0, 2)
    tau = pm.HalfNormal("tau", 1)
    z = pm.Normal("z", 0, 1, shape=B.shape[1])
    w = tau * pt.cumsum(z)
    sigma = pm.Exponential("sigma", 1)
    pm.Normal("y", a + pm.math.dot(B, w.T), sigma, observed=y)


@register
def spline_in_graph(rng):
    x, knots = rng.uniform(0, 1, N), np.linspace(0.1, 0.9, 6)
    y = np.sin(6 * x) + rng.normal(scale=0.2, size=N)
    x = pm.Data("x", x)
    b = pm.Normal("b", 0, 1, shape=6)
    hinges = pt.clip(x[:, None] - knots[None, :], 0, np.inf)
    pm.Normal("y", pm.math.dot(hinges, b), 0.5, observed=y)


@register
def hilbert_space_gaussian_process(rng):
    x = rng.uniform(-1, 1, N)[:, None]
    y = np.sin(3 * x[:, 0]) + rng.normal(scale=0.2, size=N)
    length = pm.InverseGamma("length", 5, 5)
    gp = pm.gp.HSGP(m=[6], L=[1.5], cov_func=pm.gp.cov.Matern52(1, ls=length))
    basis, sqrt_psd = gp.prior_linearized(pm.Data("x", x))
    beta = pm.Normal("beta", 0, 1, shape=6)
    pm.Normal("y", basis @ (beta * sqrt_psd), 0.3, observed=y)


# The same regression, its data given in other ways


@register
def data_containers(rng):
    X, y = binary(rng)
    X, y = pm.Data("X", X), pm.Data("y_data", y)
    beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
    pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=y)


@register(obs=np.arange(N), feature=["a", "b", "c"])
def data_containers_with_dims(rng):
    X, y = continuous(rng)
    X = pm.Data("X", X, dims=("obs", "feature"))
    y = pm.Data("y_data", y, dims="obs")
    alpha = pm.Normal("alpha", 0, 1)
    beta = pm.Normal("beta", 0, 1, dims="feature")
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", alpha + X @ beta, sigma, observed=y, dims="obs")


@register
def data_shapes(rng):
    x = rng.normal(size=N)
    y = x + rng.normal(size=N)
    x = pm.Data("x", x)
    b = pm.Normal("b", 0, 1)
    mu = b * x
    pm.Normal("y", mu, 1, shape=mu.shape, observed=y)


@register
def pandas_columns(rng):
    df = table(rng)
    b = pm.Normal("b", 0, 1, shape=3)
    sigma = pm.HalfNormal("sigma", 1)
    mu = b[0] + b[1] * df["x1"].values + b[2] * df["x2"].to_numpy()
    pm.Normal("y", mu, sigma, observed=df["y"])


@register(group=list("abcde"))
def pandas_frame(rng):
    df = table(rng)
    group, _ = pd.factorize(df["group"], sort=True)
    X = pm.Data("X", df[["x1", "x2", "x3"]])
    a = pm.Normal("a", 0, 1, dims="group")
    beta = pm.Normal("beta", 0, 1, shape=3)
    pm.Bernoulli("y", logit_p=a[group] + pt.dot(X, beta), observed=df["won"])


@register
def pandas_series_in_graph(rng):
    df = table(rng)
    a = pm.Normal("a", 0, 1, shape=G)
    b = pm.Normal("b", 0, 1)
    mu = a[df["group"].cat.codes.values] + b * pt.as_tensor(df["x1"])
    pm.Poisson("count", mu=pm.math.exp(mu), observed=df["count"])


def _with_dtype(dtype):
    def factory(rng):
        X = (3 * design(rng)).astype(dtype)
        y = rng.binomial(1, expit(linear(rng, X, 0.1))).astype(dtype)
        beta = pm.Normal("beta", 0, 0.3, shape=K)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)

    factory.__name__ = f"dtype_{dtype}"
    return factory


for dtype in ("bool", "int8", "uint8", "int16", "int32", "int64", "float32"):
    register(_with_dtype(dtype))


@register
def fortran_order(rng):
    X = np.asfortranarray(design(rng))
    y = rng.binomial(1, expit(linear(rng, X)))
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=X @ beta, observed=y)


@register
def noncontiguous(rng):
    X = rng.normal(size=(2 * N, 2 * K))[::2, ::-2]
    y = rng.binomial(1, expit(linear(rng, X)))
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=X @ beta, observed=y)


@register
def rows_last(rng):
    X, y = binary(rng)
    Xt = pm.Data("Xt", X.T)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=beta @ Xt, observed=y)


@register
def rows_last_transposed_in_graph(rng):
    X, y = binary(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=pt.as_tensor(X.T).T @ beta, observed=y)


@register
def rows_last_outcome(rng):
    x = rng.normal(size=N)
    y = rng.normal(size=(4, N))
    a = pm.Normal("a", 0, 1, shape=4)
    b = pm.Normal("b", 0, 1, shape=4)
    pm.Normal("y", a[:, None] + b[:, None] * x[None, :], 1, observed=y)


@register
def rows_middle(rng):
    X = rng.normal(size=(2, N, K))
    y = rng.normal(size=N)
    b = pm.Normal("b", 0, 1, shape=(2, K))
    pm.Normal("y", (X * b[:, None, :]).sum(axis=(0, 2)), 1, observed=y)


# Spellings of the linear predictor


@register
def standardised_in_graph(rng):
    x = rng.normal(5, 3, N)
    y = x + rng.normal(size=N)
    x = pm.Data("x", x)
    a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", a + b * (x - x.mean()) / x.std(), sigma, observed=y)


@register
def standardised_matrix_in_graph(rng):
    X = rng.normal(5, 3, (N, K))
    y = rng.normal(size=N)
    X = pm.Data("X", X)
    Z = (X - X.mean(axis=0)) / X.std(axis=0, keepdims=True)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Normal("y", Z @ beta, 1, observed=y)


@register
def scaled_prior_from_data(rng):
    x = rng.normal(5, 3, N)
    y = x + rng.normal(size=N)
    x, y = pm.Data("x", x), pm.Data("y_data", y)
    a = pm.Normal("a", y.mean(), 2.5 * y.std())
    b = pm.Normal("b", 0, 2.5 / x.std())
    pm.Normal("y", a + b * x, 1, observed=y)


@register
def constant_shapes(rng):
    x = rng.normal(size=N)
    y = x + rng.normal(size=N)
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    mu = pt.zeros(N) + a + b * x
    pm.Normal("y", mu, pt.ones(N) * sigma, observed=y)


@register
def constant_shape_broadcast(rng):
    y = rng.normal(size=N)
    a = pm.Normal("a", 0, 1)
    pm.Normal("y", pt.broadcast_to(a, (N,)), 1, observed=y, shape=N)


@register
def intercept_column_in_graph(rng):
    X, y = binary(rng)
    beta = pm.Normal("beta", 0, 1, shape=K + 1)
    Z = pt.concatenate([pt.ones((N, 1)), X], axis=1)
    pm.Bernoulli("y", logit_p=Z @ beta, observed=y)


@register
def columns_stacked_in_graph(rng):
    X, y = binary(rng)
    x1, x2 = pm.Data("x1", X[:, 0]), pm.Data("x2", X[:, 1])
    beta = pm.Normal("beta", 0, 1, shape=3)
    Z = pt.stack([pt.ones_like(x1), x1, x2], axis=1)
    pm.Bernoulli("y", logit_p=pt.dot(Z, beta), observed=y)


@register
def columns_sliced_in_graph(rng):
    X, y = binary(rng)
    X = pm.Data("X", X)
    b = pm.Normal("b", 0, 1, shape=4)
    eta = b[0] + X[:, 0] * b[1] + X[:, 1:] @ b[2:]
    pm.Bernoulli("y", logit_p=eta, observed=y)


@register
def index_column_of_matrix(rng):
    table = np.column_stack([rng.normal(size=N), groups(rng)])
    y = rng.normal(size=N)
    table = pm.Data("table", table)
    a = pm.Normal("a", 0, 1, shape=G)
    b = pm.Normal("b", 0, 1)
    pm.Normal("y", a[table[:, 1].astype("int64")] + b * table[:, 0], 1, observed=y)


@register
def indicator_terms(rng):
    g, x = groups(rng, 3), rng.normal(size=N)
    y = rng.normal(size=N)
    group = pm.Data("group", g)
    b = pm.Normal("b", 0, 1, shape=4)
    mu = b[0] + b[1] * pt.eq(group, 1) + b[2] * pt.eq(group, 2) + b[3] * pt.where(x > 0, x, 0.0)
    pm.Normal("y", mu, 1, observed=y)


@register
def padded_parameters(rng):
    g = groups(rng)
    y = rng.normal(size=N)
    free = pm.Normal("free", 0, 1, shape=G - 1)
    effect = pt.concatenate([pt.zeros(1), free])
    scale = pt.set_subtensor(pt.ones(G)[1], pm.HalfNormal("scale", 1))
    pm.Normal("y", effect[g], scale[g], observed=y)


@register
def linear_trend_in_graph(rng):
    y = rng.normal(size=N)
    b = pm.Normal("b", 0, 1, shape=2)
    t = pt.arange(N) / N
    pm.Normal("y", b[0] + b[1] * t, 1, observed=y)


@register
def lagged_outcome_in_graph(rng):
    y = pm.Data("series", rng.normal(size=N + 1))
    rho = pm.Normal("rho", 0, 0.5)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", rho * y[:-1], sigma, observed=y[1:])


@register
def outer_product_sum(rng):
    X, y = design(rng), rng.normal(size=N)
    beta = pm.Normal("beta", 0, 1, shape=K)
    L = pm.Normal("L", 0, 1, shape=(K, 2))
    quadratic = 0.1 * ((X @ L) ** 2).sum(axis=1) + pt.einsum("nk,k->n", X, beta)
    pm.Normal("y", quadratic, 1, observed=y)


@register
def row_softmax_and_norm(rng):
    X, y = design(rng), rng.normal(size=N)
    W = pm.Normal("W", 0, 1, shape=(K, 4))
    v = pm.Normal("v", 0, 1, shape=4)
    attention = pm.math.softmax(X @ W, axis=-1)
    attention = attention - attention.mean(axis=1, keepdims=True)
    pm.Normal("y", attention @ v + pm.math.logsumexp(X @ W, axis=1, keepdims=False), 1, observed=y)


@register
def rows_of_a_longer_predictor(rng):
    mu = rng.normal(size=(N + 1, K)) @ pm.Normal("beta", 0, 1, shape=K)
    pm.Normal("y", mu[1:], 1, observed=rng.normal(size=N))


@register
def parent_covariate_in_graph(rng):
    parent = rng.integers(0, 5, N)
    x = pm.Data("x", rng.normal(size=N))
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", b[0] * x + b[1] * x[parent], 1, observed=rng.normal(size=N))


@register
def covariates_over_all_rows(rng):
    x = pm.Data("x", rng.normal(size=N))
    b = pm.Normal("b", 0, 1, shape=4)
    mu = b[0] * x + b[1] * pt.cumsum(x) + b[2] * (x - x[::-1]) + b[3] * pt.argsort(x)
    pm.Normal("y", mu, 1, observed=rng.normal(size=N))


@register
def row_number_twice(rng):
    X = design(rng)
    row = pt.arange(N)
    beta = pm.Normal("beta", 0, 1, shape=(K, 4))
    trend = pm.Normal("trend", 0, 1, shape=4)
    logits = X @ beta + trend * (row[:, None] / N)
    logp = pm.math.log_softmax(logits, axis=1)
    pm.Potential("loglik", logp[row, rng.integers(0, 4, N)])


@register
def parameters_in_rows_reshaped(rng):
    X = design(rng)
    W = pm.Normal("W", 0, 1, shape=(K, 4))
    mu = (X @ W).reshape((N, 2, 2)).sum(axis=1)
    pm.Normal("y", mu[:, 0] - mu[:, 1], 1, observed=rng.normal(size=N))


@register
def mixture_of_supports(rng):
    y = np.where(rng.random(N) < 0.5, -rng.exponential(size=N), rng.gamma(2, size=N))
    w = pm.Beta("w", 2, 2)
    mu = pm.Normal("mu", 0, 1)
    components = [pm.Normal.dist(mu, 1), pm.Gamma.dist(2, pm.Gamma("rate", 2, 1))]
    pm.Mixture("y", w=pt.stack([w, 1 - w]), comp_dists=components, observed=y)


@register
def probability_linear_in_data(rng):
    x = rng.uniform(size=N)
    a = pm.Normal("a", 0, 0.01, initval=0.5)
    b = pm.Normal("b", 0, 0.01)
    pm.Bernoulli("y", p=pm.math.sigmoid(a) + 0.01 * b * x, observed=rng.binomial(1, 0.5, N))


@register
def piecewise_by_data(rng):
    x = rng.normal(size=N)
    b = pm.Normal("b", 0, 1, shape=3)
    x = pm.Data("x", x)
    mu = b[0] + pt.switch(x > 0, b[1] * x, b[2] * pt.sqrt(abs(x)))
    pm.Normal("y", mu, 1, observed=rng.normal(size=N))


@register
def softplus_scale_and_clipped_probability(rng):
    X = design(rng)
    beta = pm.Normal("beta", 0, 1, shape=(K, 2))
    eta = X @ beta
    pm.Normal("z", 0, pm.math.log1pexp(eta[:, 0]), observed=rng.normal(size=N))
    p = pt.clip(pm.math.invlogit(eta[:, 1]), 0.01, 0.99)
    pm.Bernoulli("y", p, observed=rng.binomial(1, 0.5, N))


# Named dimensions

NAMED = {"obs": np.arange(N), "feature": ["a", "b", "c"], "group": list("abcde")}


@register(**NAMED)
def dims_bernoulli(rng):
    X, y = binary(rng)
    X = pmd.Data("X", X, dims=("obs", "feature"))
    y = pmd.Data("y_data", y, dims="obs")
    alpha = pmd.Normal("alpha", 0, 1)
    beta = pmd.Normal("beta", 0, 1, dims="feature")
    pmd.Bernoulli("y", logit_p=alpha + X.dot(beta), observed=y)


@register(**NAMED)
def dims_hierarchy(rng):
    X, g = design(rng), groups(rng)
    y = rng.binomial(1, expit(linear(rng, X)))
    x = pmd.Data("x", X[:, 0], dims="obs")
    group = pmd.Data("group_idx", g, dims="obs")
    tau = pmd.HalfNormal("tau", 1)
    a = pmd.Normal("a", 0, tau, dims="group")
    b = pmd.Normal("b", 0, 1, dims="group")
    sigma = pmd.HalfNormal("sigma", 1)
    mu = a.isel(group=group) + b.isel(group=group) * x
    pmd.Normal("y", mu, sigma, observed=pmd.as_xtensor(y + 0.1 * X[:, 1], dims=("obs",)))


@register(**NAMED)
def dims_sum_rows_last(rng):
    X, y = binary(rng)
    X = pmd.Data("X", X.T, dims=("feature", "obs"))
    beta = pmd.Normal("beta", 0, 1, dims="feature")
    mu = pmd.math.exp((X * beta).sum("feature"))
    pmd.Poisson("y", mu, observed=pmd.as_xtensor(y, dims=("obs",)), dims="obs")


@register(**NAMED)
def dims_categorical(rng):
    X, g = design(rng), groups(rng)
    X = pmd.Data("X", X, dims=("obs", "feature"))
    y = pmd.Data("y_data", g, dims="obs")
    W = pmd.Normal("W", 0, 1, dims=("feature", "group"))
    p = pmd.math.softmax(X.dot(W), dim="group")
    pmd.Categorical("y", p=p, core_dims="group", observed=y)


@register(**NAMED)
def dims_mixed_with_ordinary(rng):
    X, y = binary(rng)
    X = pmd.Data("X", X, dims=("obs", "feature"))
    beta = pmd.Normal("beta", 0, 1, dims="feature")
    eta = (X * beta).sum("feature").values
    pm.Bernoulli("y", logit_p=eta, observed=y, dims="obs")


# Models made by Bambi


def _bambi(formula, family="gaussian", link=None):
    def factory(rng):
        bmb = pytest.importorskip("bambi")
        wrapper = bmb.Model(formula, table(rng), family=family, link=link)
        wrapper.build()
        return wrapper.backend.model

    return factory


for name, arguments in {
    "gaussian": ("y ~ x1 + x2",),
    "groups": ("y ~ x1 + (x1 | group)",),
    "bernoulli": ("won ~ x1 * x2 + (1 | group)", "bernoulli"),
    "poisson": ("count ~ x1 + group + offset(x2)", "poisson"),
    "negative_binomial": ("count ~ 0 + x1 + x2 + x3", "negativebinomial"),
    "gamma": ("positive ~ scale(x1)", "gamma", "log"),
    "student_t": ("y ~ bs(x1, df=5)", "t"),
    "categorical": ("group ~ x1 + x2", "categorical"),
}.items():
    MODELS[f"bambi_{name}"] = _bambi(*arguments)  # Bambi's fit leaves its large ones out


# Models written with pm.Minibatch


@register
def minibatch_normal(rng):
    X, y = continuous(rng)
    X, y = pm.Minibatch(X, y, batch_size=10)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", X @ beta, sigma, observed=y, total_size=N)


@register
def minibatch_groups(rng):
    g, x = groups(rng), rng.normal(size=N)
    y = x + rng.normal(size=N)
    g, x, y = pm.Minibatch(pm.Data("g", g), pm.Data("x", x), pm.Data("y_data", y), batch_size=10)
    a = pm.Normal("a", 0, 1, shape=G)
    b = pm.Normal("b", 0, 1)
    pm.Normal("y", a[g] + b * x, 1, observed=y, total_size=(N,))


@register
def minibatch_bernoulli(rng):
    X = design(rng)
    y = rng.binomial(1, expit(linear(rng, X))).astype("int32")
    X, y = pm.Minibatch(X, y, batch_size=10)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Bernoulli("y", logit_p=X @ beta, observed=y, total_size=N)


@register
def minibatch_matrix_outcome(rng):
    X, y = design(rng), rng.normal(size=(N, 4))
    X, y = pm.Minibatch(X, y, batch_size=10)
    W = pm.Normal("W", 0, 1, shape=(K, 4))
    pm.Normal("y", X @ W, 1, observed=y, total_size=(N, ...))


@register
def minibatch_without_total_size(rng):
    X, y = continuous(rng)
    X, y = pm.Minibatch(X, y, batch_size=10)
    beta = pm.Normal("beta", 0, 1, shape=K)
    pm.Normal("y", X @ beta, 1, observed=y)


# Rows of several kinds


def survival(rng):
    X, time = lifetimes(rng)
    lost = rng.uniform(0.2, 5, N)
    return X, np.minimum(time, lost), time < lost


@several
def weibull_split_by_event(rng):
    X, time = lifetimes(rng)
    lost = 21
    X_lost, time_lost = design(rng)[:lost], rng.uniform(0.1, 1, lost)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    pm.Weibull("y", alpha, pt.exp(X @ beta), observed=time)
    pm.Potential("y_lost", -((time_lost / pt.exp(X_lost @ beta)) ** alpha))
    return {"y": N, "y_lost": lost}


@several
def weibull_selected_by_mask(rng):
    X, time, event = survival(rng)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    scale = pt.exp(X @ beta)
    pm.Weibull("event", alpha, scale[event], observed=time[event])
    lost = pm.Weibull.dist(alpha, scale[~event])
    pm.Potential("lost", pm.logccdf(lost, time[~event]).sum())
    return {"event": event.sum(), "lost": (~event).sum()}


@several
def weibull_selected_by_index(rng):
    X, time, event = survival(rng)
    (seen,), (unseen,) = np.nonzero(event), np.nonzero(~event)
    X, time = pm.Data("X", X), pm.Data("time", time)
    beta = pm.Normal("beta", 0, 1, shape=K)
    alpha = pm.Gamma("alpha", 2, 1)
    eta = pm.math.dot(X, beta)
    z = (time / pt.exp(eta)) ** alpha
    hazard = pt.log(alpha) + (alpha - 1) * pt.log(time) - alpha * eta
    pm.Potential("event", pt.sum((hazard - z)[seen]) - pt.sum(z[unseen]))
    return {"event": N}


@several
def two_surveys(rng):
    sizes = {"first": N, "second": 40}
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1)
    for name, n in sizes.items():
        X = rng.normal(size=(n, K))
        pm.Normal(name, X @ beta, sigma, observed=rng.normal(size=n))
    return sizes


@several
def amounts_and_counts(rng):
    m = 31
    x, z = rng.normal(size=N), rng.normal(size=m)
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
    a = pm.Normal("a", mu, tau, shape=G)
    b = pm.Normal("b", 0, 1)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("amount", a[groups(rng)] + b * x, sigma, observed=x + rng.normal(size=N))
    rate = pt.exp(0.5 * a[rng.integers(0, G, m)] + b * z)
    pm.Poisson("count", rate, observed=rng.poisson(1.5, m))
    return {"amount": N, "count": m}


@several
def zero_inflated_pair(rng):
    sizes = {"calls": N, "visits": 55}
    psi = pm.Beta("psi", 2, 2)
    b = pm.Normal("b", 0, 1, shape=2)
    for k, (name, n) in enumerate(sizes.items()):
        rate = pt.exp(b[0] + b[1] * rng.normal(size=n) + 0.2 * k)
        y = rng.binomial(1, 0.7, n) * rng.poisson(2, n)
        pm.ZeroInflatedPoisson(name, psi, rate, observed=y)
    return sizes


@several
def three_likelihoods(rng):
    """Matrix-valued rows, a slice of a predictor and a weighted sum."""
    m = 44
    X, y = design(rng), rng.normal(size=(N, 2))
    weight = rng.uniform(0.5, 1.5, 23)
    beta = pm.Normal("beta", 0, 1, shape=K)
    sigma = pm.HalfNormal("sigma", 1, shape=2)
    mu = X @ beta
    pm.Normal("pair", mu[:, None] * np.array([1.0, 0.5]), sigma, observed=y)
    pm.Bernoulli("flag", logit_p=mu[:m], observed=rng.binomial(1, 0.5, m))
    share = pm.math.sigmoid(rng.normal(size=(23, K)) @ beta)
    pm.Potential("weighted", -0.5 * (weight @ pt.log(share)))
    pm.Normal("few", beta[0], 0.5, observed=rng.normal(size=4))
    return {"pair": N, "flag": m, "weighted": 23}


@several
def network_and_survey(rng):
    m = 37
    X, Z = design(rng), rng.normal(size=(m, K))
    w = pm.Normal("w", 0, 1, shape=(K, 2))
    v = pm.Normal("v", 0, 1, shape=2)
    pm.Normal("y", pt.tanh(X @ w) @ v, 1, observed=rng.normal(size=N))
    pm.Bernoulli("z", logit_p=pt.tanh(Z @ w) @ v**2, observed=rng.binomial(1, 0.5, m))
    return {"y": N, "z": m}


# Of any number of rows


def bent_ridge(n, groups=6):
    """Effects that rows know far better than their scale; return the model, groups and outcomes.

    The mean of scale and effects in units of it is beside the ridge on which they lie.
    """
    rng = np.random.default_rng(3)
    g = np.arange(n) % groups
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 3)
        effect = mu + tau * pm.Normal("z", shape=groups)
        y = rng.normal(np.linspace(-6.0, 9.0, groups)[g])
        pm.Normal("y", effect[g], 1.0, observed=y)
    return model, g, y


def dose_response(n=2_000):
    """Doses in milligrams, with a placebo; powers of 75 and more overflow in its derivatives."""
    rng = np.random.default_rng(9)
    dose = rng.choice([0.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0], n)
    y = 10 + 40 * dose**1.6 / (30**1.6 + dose**1.6) + rng.normal(0, 8, n)
    with pm.Model() as model:
        none, most = pm.Normal("none", 0, 50), pm.Normal("most", 0, 100)
        half, h = pm.LogNormal("half", 3, 1), pm.LogNormal("h", 0, 0.5)
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("y", none + most * dose**h / (half**h + dose**h), sigma, observed=y)
    return model


def jumps(n):
    """A change at a place that is estimated: the log-likelihood jumps wherever it passes a row."""
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        cut, step = pm.Normal("cut", initval=0.1), pm.Normal("step")
        beyond = pt.switch(rng.normal(size=n) > cut, 1.0, 0.0)
        pm.Normal("y", step * beyond, 1, observed=rng.normal(size=n))
    return model
