"""Models whose rows hold a series, a recursion or many components, in the form of their sources.

Each entry of `MODELS` is a function of a number of rows and a seed that returns a `pm.Model`; many
take the number of terms too. What a row computes is as long as its series: such models show what
set-up costs per operation.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

MODELS = {}


def register(function):
    MODELS[function.__name__] = function
    return function


@register
def tweedie(n, seed=0, terms=12):
    """Claims of an insurer by Tweedie's series (Dunn and Smyth 2005, section 4)."""
    rng = np.random.default_rng(seed)
    x, power, dispersion = rng.standard_normal(n), 1.6, 20.0
    mean = np.exp(3 + 0.3 * x)
    count = rng.poisson(mean ** (2 - power) / (dispersion * (2 - power)))
    shape = np.maximum(count, 1) * (2 - power) / (power - 1)
    y = rng.gamma(shape, dispersion * (power - 1) * mean ** (power - 1)) * (count > 0)
    with pm.Model() as model:
        b = pm.Normal("b", [3, 0], 1)
        phi, p = pm.LogNormal("phi", 3, 1), pm.Uniform("p", 1.05, 1.95)
        mu = pm.math.exp(b[0] + b[1] * x)
        pm.CustomDist("claim", mu, phi, p, logp=_tweedie(terms), observed=y)
    return model


@register
def tweedie_dispersion(n, seed=0, terms=12):
    """The same with a regression of the dispersion (Smyth and Jorgensen 2002): a series per row."""
    rng = np.random.default_rng(seed)
    x, power = rng.standard_normal(n), 1.6
    mean, dispersion = np.exp(3 + 0.3 * x), np.exp(3 + 0.2 * x)
    count = rng.poisson(mean ** (2 - power) / (dispersion * (2 - power)))
    shape = np.maximum(count, 1) * (2 - power) / (power - 1)
    y = rng.gamma(shape, dispersion * (power - 1) * mean ** (power - 1)) * (count > 0)
    with pm.Model() as model:
        b, g = pm.Normal("b", [3, 0], 1), pm.Normal("g", [3, 0], 1)
        p = pm.Uniform("p", 1.05, 1.95)
        mu, phi = pm.math.exp(b[0] + b[1] * x), pm.math.exp(g[0] + g[1] * x)
        pm.CustomDist("claim", mu, phi, p, logp=_tweedie(terms), observed=y)
    return model


def _tweedie(terms):
    def logp(value, mu, phi, p):
        alpha, j = (2 - p) / (p - 1), np.arange(1, terms + 1)
        v = pt.switch(value > 0, value, 1.0)
        weight = alpha * pt.log(v / (p - 1)) - (1 + alpha) * pt.log(phi) - pt.log(2 - p)
        series = j * weight[:, None] - pt.gammaln(j + 1) - pt.gammaln(j * alpha)
        none = -(mu ** (2 - p)) / (phi * (2 - p))
        some = pt.logsumexp(series, axis=1) - pt.log(v) - v * mu ** (1 - p) / (phi * (p - 1))
        return pt.switch(value > 0, some + none, none)

    return logp


@register
def wiener(n, seed=0, terms=11):
    """First passage times of a diffusion, by the series for small times (Navarro and Fuss 2009).

    In the form of HSSM's `ddm`; simulated in steps of 5 ms.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    place, time = np.full(n, 0.75), np.zeros(n)
    inside = np.ones(n, dtype=bool)
    while inside.any():
        step = 0.005 * (0.5 + 0.3 * x[inside]) + np.sqrt(0.005) * rng.standard_normal(inside.sum())
        place[inside] += step
        time += 0.005 * inside
        inside &= (place > 0) & (place < 1.5) & (time < 2.5)
    sign, rt = np.where(place > 0.75, 1.0, -1.0), time + 0.3
    with pm.Model() as model:
        v = pm.Normal("v", 0, 1, shape=2)
        a, z = pm.LogNormal("a", 0.4, 0.3), pm.Beta("z", 10, 10)
        t = pm.Uniform("t", 0.0, 0.3)
        drift = sign * (v[0] + v[1] * x)
        start = pt.switch(sign > 0, 1.0 - z, z)
        time = (rt - t) / a**2
        r = start[:, None] + 2.0 * (np.arange(terms) - terms // 2)
        series = (r * pt.exp(-(r**2) / (2.0 * time[:, None]))).sum(axis=1)
        logp = pt.log(pt.maximum(series, 1e-29)) - 0.5 * np.log(2 * np.pi) - 1.5 * pt.log(time)
        pm.Potential("rt", logp - drift * a * start - drift**2 * (rt - t) / 2 - 2 * pt.log(a))
    return model


@register
def com_poisson(n, seed=0, terms=40):
    """Counts with less or more variance than a Poisson's (Shmueli et al. 2005; brms `com_poisson`).

    The normaliser is a sum over counts, for each row.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(1.0 + 0.3 * x))
    with pm.Model() as model:
        b, nu = pm.Normal("b", 0, 1, shape=2), pm.LogNormal("nu", 0, 0.3)

        def logp(value, rate, nu):
            j = np.arange(terms)
            log_z = pt.logsumexp(j * rate[:, None] - nu * pt.gammaln(j + 1.0), axis=1)
            return value * rate - nu * pt.gammaln(value + 1.0) - log_z

        pm.CustomDist("y", b[0] + b[1] * x, nu, logp=logp, observed=y)
    return model


@register
def poisson_lognormal(n, seed=0, terms=20):
    """Poisson counts with a normal effect of each row, summed out by Gauss-Hermite nodes.

    As lme4's `glmer(nAGQ=20)` does, with the nodes around zero.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(0.5 + 0.4 * x + 0.5 * rng.standard_normal(n)))
    nodes, weights = np.polynomial.hermite.hermgauss(terms)
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("sigma", 1)

        def logp(value, eta, sigma):
            log_mu = eta[:, None] + np.sqrt(2.0) * sigma * nodes
            inner = value[:, None] * log_mu - pt.exp(log_mu) - pt.gammaln(value + 1.0)[:, None]
            return pt.logsumexp(inner + np.log(weights), axis=1) - 0.5 * np.log(np.pi)

        pm.CustomDist("y", b[0] + b[1] * x, sigma, logp=logp, observed=y)
    return model


@register
def n_mixture(n, seed=0, terms=40):
    """Counts of animals that are overlooked, three visits to a site (Royle 2004)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = rng.binomial(rng.poisson(np.exp(1.5 + 0.4 * x))[:, None], 0.4, size=(n, 3))
    some = np.arange(terms)
    with pm.Model() as model:
        b, a = pm.Normal("b", 0, 1, shape=2), pm.Normal("a", 0, 1)
        rate, p = pt.exp(b[0] + b[1] * x), pm.math.invlogit(a)
        abundance = pm.logp(pm.Poisson.dist(rate[:, None]), some)
        seen = pm.logp(pm.Binomial.dist(some, p), y[:, :, None]).sum(axis=1)
        pm.Potential("y", pt.logsumexp(abundance + seen, axis=1))
    return model


@register
def adstock(n, seed=0, terms=12):
    """Sales on advertising of the last weeks, carried over and saturated (pymc-marketing's MMM)."""
    rng = np.random.default_rng(seed)
    spend, w = rng.gamma(1.0, 1.0, size=(n, terms)), 0.6 ** np.arange(terms)
    level = spend @ w / w.sum()
    y = 1 + 2 * (1 - np.exp(-level)) / (1 + np.exp(-level)) + rng.normal(0, 0.3, n)
    with pm.Model() as model:
        alpha, lam = pm.Beta("alpha", 1, 3), pm.Gamma("lam", 3, 1)
        beta, a = pm.HalfNormal("beta", 2), pm.Normal("a", 0, 2)
        sigma = pm.HalfNormal("sigma", 2)
        weights = alpha ** np.arange(terms)
        carried = (spend * weights / weights.sum()).sum(axis=1)
        saturated = (1 - pt.exp(-lam * carried)) / (1 + pt.exp(-lam * carried))
        pm.Normal("sales", a + beta * saturated, sigma, observed=y)
    return model


@register
def fourier(n, seed=0, terms=10):
    """Harmonics of a period that is a parameter (Bretthorst 1988, with a prior; as in Prophet)."""
    rng = np.random.default_rng(seed)
    time = rng.uniform(0, 4, n)
    y = np.sin(2 * np.pi * time / 1.1) + 0.3 * np.cos(4 * np.pi * time / 1.1) + rng.normal(0, 1, n)
    k = np.arange(1, terms + 1)
    with pm.Model() as model:
        period, sigma = pm.LogNormal("period", np.log(1.1), 0.01), pm.HalfNormal("sigma", 1)
        a, b = pm.Normal("a", 0, 1 / k), pm.Normal("b", 0, 1 / k)
        angle = 2 * np.pi * k * time[:, None] / period
        mu = (a * pt.cos(angle) + b * pt.sin(angle)).sum(axis=1)
        pm.Normal("y", mu, sigma, observed=y)
    return model


@register
def mixture_many(n, seed=0, terms=15):
    """A mixture of many normal distributions (PyMC's example of Gaussian mixtures)."""
    rng = np.random.default_rng(seed)
    y = rng.normal(4.0 * rng.integers(terms, size=n), 1.0)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.full(terms, 4.0))
        mu = pm.Normal("mu", 4.0 * np.arange(terms), 0.5)
        sigma = pm.HalfNormal("sigma", 1.0, shape=terms)
        pm.NormalMixture("y", w, mu, sigma, observed=y)
    return model


@register
def ordinal_many(n, seed=0, terms=20):
    """Ordered logistic regression of many levels (Liddell and Kruschke 2018, a slider's)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    cuts = np.linspace(-3, 3, terms)
    y = np.searchsorted(cuts, 0.8 * x + rng.logistic(size=n))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        c = pm.Normal("c", cuts, 1.0, transform=pm.distributions.transforms.ordered, initval=cuts)
        pm.OrderedLogistic("y", eta=b * x, cutpoints=c, observed=y)
    return model


@register
def latent_class(n, seed=0, terms=3):
    """Choices among five by people of several kinds (Greene and Hensher 2003)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 5, 2))
    taste = np.array([[1.5, -1.0], [-1.0, 0.5], [0.3, 2.0]])[rng.integers(3, size=n)]
    y = np.argmax((x * taste[:, None]).sum(axis=-1) + rng.gumbel(size=(n, 5)), axis=1)
    chosen = np.eye(5)[y]
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.full(terms, 2.0))
        beta = pm.Normal("beta", np.resize([[1.5, -1], [-1, 0.5], [0.3, 2]], (terms, 2)), 0.5)
        utility = (x[:, None] * beta[None, :, None]).sum(axis=-1)
        taken = (chosen[:, None] * utility).sum(axis=-1) - pt.logsumexp(utility, axis=-1)
        pm.Potential("choice", pt.logsumexp(pt.log(w) + taken, axis=-1))
    return model


@register
def hidden_markov(n, seed=0, terms=6):
    """Two hidden states over a few periods of each person (Stan user's guide, 2.6)."""
    rng = np.random.default_rng(seed)
    state = rng.integers(2, size=n)
    y = np.empty((n, terms))
    for t in range(terms):
        y[:, t] = rng.normal(2.0 * state, 1.0)
        state = np.where(rng.random(n) < 0.8, state, 1 - state)
    with pm.Model() as model:
        mu = pm.Normal("mu", [0.0, 2.0], 0.5)
        stay = pm.Beta("stay", 4, 2, shape=2)
        log_move = pt.log(pt.stack([stay, 1 - stay], axis=1))
        log_move = pt.stack([log_move[0], log_move[1, ::-1]])
        alpha = pm.logp(pm.Normal.dist(mu, 1.0), y[:, 0, None]) - np.log(2.0)
        for t in range(1, terms):
            alpha = pt.logsumexp(alpha[:, :, None] + log_move[None], axis=1)
            alpha = alpha + pm.logp(pm.Normal.dist(mu, 1.0), y[:, t, None])
        pm.Potential("y", pt.logsumexp(alpha, axis=1))
    return model


@register
def conditional_logit(n, seed=0, terms=30):
    """Choices among many alternatives by their attributes (McFadden 1974)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, n, terms))
    y = np.argmax(x[0] - 0.5 * x[1] + rng.gumbel(size=(n, terms)), axis=1)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        utility = beta[0] * x[0] + beta[1] * x[1]
        pm.Categorical("choice", logit_p=utility, observed=y)
    return model


@register
def shifted_beta_geometric(n, seed=0, terms=12):
    """Customers who stay or leave, by the recursion of Fader and Hardie (2007)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    time = np.minimum(rng.geometric(np.clip(rng.beta(1.5, 4.0, n), 0.01, 1)), terms)
    left, survived = np.eye(terms + 1)[time][:, 1:], time == terms
    with pm.Model() as model:
        g, d = pm.Normal("g", 0, 1, shape=2), pm.Normal("d", 1, 1)
        alpha, beta = pt.exp(g[0] + g[1] * x), pt.exp(d)
        log_p, log_s = [pt.log(alpha / (alpha + beta))], [pt.log(beta / (alpha + beta))]
        for t in range(2, terms):
            log_p.append(log_p[-1] + pt.log((beta + t - 2) / (alpha + beta + t - 1)))
            log_s.append(pt.log1mexp(pt.logsumexp(pt.stack(log_p), axis=0)))
        total = sum(left[:, t] * log_p[t] for t in range(terms - 1)) + survived * log_s[-1]
        pm.Potential("time", total)
    return model


@register
def distributed_lags(n, seed=0, terms=24):
    """Almon's (1965) polynomial lags, here exponential (MIDAS, Ghysels et al. 2007): 24 of them."""
    rng = np.random.default_rng(seed)
    x, k = rng.standard_normal((n, terms)), np.arange(terms)
    w = np.exp(0.1 * k - 0.02 * k**2)
    y = 0.5 + 1.5 * x @ (w / w.sum()) + rng.normal(0, 0.5, n)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 2)
        theta = pm.Normal("theta", [0.1, -0.02], [0.1, 0.01])
        sigma = pm.HalfNormal("sigma", 1)
        weights = pm.math.softmax(theta[0] * k + theta[1] * k**2)
        pm.Normal("y", a + b * (x * weights).sum(axis=1), sigma, observed=y)
    return model


@register
def poisson_tail(n, seed=0, terms=25):
    """Counts known to be at least 25 or not, by the sum of a Poisson's probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(3.0 + 0.3 * x)) >= terms
    with pm.Model() as model:
        b = pm.Normal("b", [3, 0], 1)
        eta, j = b[0] + b[1] * x, np.arange(terms)
        below = pt.logsumexp(j * eta[:, None] - pt.gammaln(j + 1.0), axis=1) - pt.exp(eta)
        pm.Potential("y", pt.switch(y, pt.log1mexp(below), below))
    return model
