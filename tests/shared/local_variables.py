"""Models with discrete or missing variables of units, as people write them, on simulated data.

As `populations.POPULATIONS`: a model, and the names of its variables that grow with the units.
"""

import numpy as np
import pymc as pm
from populations import expit, keeper

LOCAL_VARIABLES = {}
local_variable = keeper(LOCAL_VARIABLES)
ORDERED = pm.distributions.transforms.ordered


@local_variable("climate_unobserved", "lmx_unobserved", units=400)
def employees(rng, units):
    """Two columns of a survey with holes (PyMC's gallery, "Bayesian Missing Data Imputation")."""
    climate = rng.normal(4, 0.8, units)
    lmx = 2 + 0.4 * climate + 0.6 * rng.normal(size=units)
    empower = 5 + 1.5 * lmx + 1.0 * climate + 1.5 * rng.normal(size=units)
    climate[rng.random(units) < 0.2] = np.nan
    lmx[rng.random(units) < 0.15] = np.nan
    mean, spread = pm.Normal("mean", 4, 2), pm.HalfNormal("spread", 1)
    a, b, noise = pm.Normal("a", 0, 5), pm.Normal("b", 0, 1), pm.HalfNormal("noise", 1)
    c, d = pm.Normal("c", 0, 10), pm.Normal("d", 0, 2, shape=2)
    sigma = pm.HalfNormal("sigma", 3)
    climate = pm.Normal("climate", mean, spread, observed=climate)
    lmx = pm.Normal("lmx", a + b * climate, noise, observed=lmx)
    pm.Normal("empower", c + d[0] * lmx + d[1] * climate, sigma, observed=empower)


@local_variable("cat_unobserved", units=400)
def house_cats(rng, units):
    """Songs of birds, and cats that nobody looked for (McElreath, Statistical Rethinking, 15.3)."""
    cat = rng.random(units) < 0.4
    notes = rng.poisson(np.exp(1.6 - 0.7 * cat))
    cat = np.ma.masked_array(cat.astype(int), mask=rng.random(units) < 0.3)
    k, a, b = pm.Beta("k", 2, 2), pm.Normal("a", 0, 1), pm.Normal("b", 0, 0.5)
    cat = pm.Bernoulli("cat", k, observed=cat)
    pm.Poisson("notes", pm.math.exp(a + b * cat), observed=notes)


@local_variable("occupied", units=400)
def occupancy(rng, units):
    """Sites visited several times (Stan's case study of occupancy; PyMC's gallery of ecology)."""
    visits = 4
    site, forest = np.repeat(np.arange(units), visits), rng.normal(size=units)
    wind, there = rng.normal(size=len(site)), rng.random(units) < expit(0.3 + 0.8 * forest)
    seen = (rng.random(len(site)) < expit(-0.3 + 0.5 * wind)) & there[site]
    ever = np.bincount(site, weights=seen) > 0
    beta, alpha = pm.Normal("beta", 0, 1.5, shape=2), pm.Normal("alpha", 0, 1.5, shape=2)
    logit = beta[0] + beta[1] * forest
    occupied = pm.Bernoulli("occupied", logit_p=logit, shape=units, initval=ever.astype(int))
    detected = pm.math.sigmoid(alpha[0] + alpha[1] * wind)
    pm.Bernoulli("seen", occupied[site] * detected, observed=seen)


@local_variable("fishing", units=400)
def zero_inflation(rng, units):
    """Counts that may be zero for two reasons (Stan's user guide, "Zero-inflated models")."""
    x = rng.normal(size=units)
    counts = rng.poisson(np.exp(0.8 + 0.4 * x) * (rng.random(units) < 0.7))
    share, a, b = pm.Beta("share", 2, 2), pm.Normal("a", 0, 1.5), pm.Normal("b", 0, 1)
    fishing = pm.Bernoulli("fishing", share, shape=units, initval=(counts > 0).astype(int))
    pm.Poisson("counts", fishing * pm.math.exp(a + b * x), observed=counts)


@local_variable("category", units=400)
def gaussian_mixture(rng, units):
    """Points of three clusters (PyMC's gallery, "Gaussian Mixture Model")."""
    k = rng.choice(3, units, p=[0.3, 0.4, 0.3])
    points = rng.normal(np.array([-4.0, 0.0, 3.5])[k], np.array([1.0, 0.7, 1.0])[k])
    p = pm.Dirichlet("p", np.full(3, 2.0))
    means = pm.Normal("means", 0, 5, shape=3, transform=ORDERED, initval=[-4.0, 0.0, 4.0])
    sd = pm.HalfNormal("sd", 2, shape=3)
    category = pm.Categorical("category", p, shape=units)
    pm.Normal("points", means[category], sd[category], observed=points)


@local_variable("truth", units=300)
def raters(rng, units):
    """Items that five raters label (Dawid and Skene; Stan's user guide, "Noisy categories")."""
    K, J = 3, 5
    item, rater = np.repeat(np.arange(units), J), np.tile(np.arange(J), units)
    right = np.full((K, K), 0.15) + 0.55 * np.eye(K)
    truth = rng.choice(K, units, p=[0.5, 0.3, 0.2])
    label = (rng.random(len(item))[:, None] > right[truth[item]].cumsum(axis=1)).sum(axis=1)
    prevalence = pm.Dirichlet("prevalence", np.full(K, 2.0))
    confusion = pm.Dirichlet("confusion", 1 + 4 * np.eye(K), shape=(J, K, K))
    truth = pm.Categorical("truth", prevalence, shape=units)
    pm.Categorical("label", confusion[rater, truth[item]], observed=label)


@local_variable("real", units=400)
def captures(rng, units):
    """Animals seen and others that may be (PyMC's gallery, closed capture and recapture)."""
    occasions = 5
    seen = rng.binomial(occasions, 0.3 * (rng.random(units) < 0.6))
    psi, p = pm.Beta("psi", 1, 1), pm.Beta("p", 1, 1)
    real = pm.Bernoulli("real", psi, shape=units, initval=(seen > 0).astype(int))
    pm.Binomial("seen", occasions, real * p, observed=seen)


@local_variable("is_outlier", units=400)
def outliers(rng, units):
    """A line and points that are not on it (Hogg; PyMC's gallery, robust regression)."""
    x, out = rng.normal(size=units), rng.random(units) < 0.1
    y = np.where(out, rng.normal(0, 4, units), 1 + 2 * x + 0.5 * rng.normal(size=units))
    b, sigma = pm.Normal("b", 0, 5, shape=2), pm.HalfNormal("sigma", 1)
    fraction, wide = pm.Beta("fraction", 2, 8), pm.Gamma("wide", 8, 2)
    is_outlier = pm.Bernoulli("is_outlier", fraction, shape=units)
    mean = pm.math.switch(is_outlier, 0.0, b[0] + b[1] * x)
    pm.Normal("y", mean, pm.math.switch(is_outlier, wide, sigma), observed=y)


def choices(rng, units):
    """Simulate four choices of each person, of three: person, price, time and shocks."""
    person = np.repeat(np.arange(units), 4)
    price, time = rng.normal(size=(2, len(person), 3))
    return person, price, time, rng.gumbel(size=price.shape)


@local_variable("taste", units=300)
def mixed_logit(rng, units):
    """Tastes of persons for prices (xlogit's panel example; Biogeme's swissmetro, normal)."""
    person, price, time, shock = choices(rng, units)
    own = -1 + 0.7 * rng.normal(size=units)
    chosen = (own[person, None] * price - 0.5 * time + shock).argmax(axis=1)
    mean, spread = pm.Normal("mean", 0, 2), pm.HalfNormal("spread", 1)
    b = pm.Normal("b", 0, 2)
    taste = pm.Normal("taste", mean, spread, shape=units)
    utility = taste[person][:, None] * price + b * time
    pm.Categorical("chosen", logit_p=utility, observed=chosen)


@local_variable("kind", units=300)
def latent_class_logit(rng, units):
    """Two kinds of travellers (Biogeme's swissmetro, latent classes of panels)."""
    person, price, time, shock = choices(rng, units)
    own = np.where(rng.random(units) < 0.4, -2.0, -0.3)
    chosen = (own[person, None] * price - 0.5 * time + shock).argmax(axis=1)
    share, b = pm.Beta("share", 2, 2), pm.Normal("b", 0, 2)
    of_kinds = pm.Normal(
        "of_kinds", 0, 2, shape=2, transform=ORDERED, initval=np.array([-1.0, 0.0])
    )
    kind = pm.Bernoulli("kind", share, shape=units)
    utility = of_kinds[kind][person][:, None] * price + b * time
    pm.Categorical("chosen", logit_p=utility, observed=chosen)
