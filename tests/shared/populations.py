"""Models with a variable for each of many units, as people write them, on simulated data.

Every entry of `POPULATIONS` returns a model, and the names of its variables that grow in number
with the units. Units have as many rows each: what a step compiles grows with them.
"""

import numpy as np
import pymc as pm

POPULATIONS = {}


def keeper(models):
    """Return a decorator of functions that write a model in its context, kept in `models`.

    They take random numbers and how many units there are.
    """

    def named(*local, units):
        def keep(function):
            def make(units=units, seed=0):
                with pm.Model() as model:
                    function(np.random.default_rng(seed), units)
                return model

            models[function.__name__] = make, local
            return make

        return keep

    return named


population = keeper(POPULATIONS)


def expit(x):
    return 1 / (1 + np.exp(-x))


@population("effect", units=200)
def sleepstudy(rng, units):
    """Reaction times of subjects over days, with random intercepts (Belenky et al., in lme4)."""
    subject, days = np.repeat(np.arange(units), 4), np.tile(np.arange(4.0), units)
    reaction = 2.5 + 0.35 * rng.normal(size=units)[subject] + 0.1 * days
    reaction += 0.25 * rng.normal(size=len(days))
    intercept, slope = pm.Normal("intercept", 0, 5), pm.Normal("slope", 0, 1)
    tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
    effect = pm.Normal("effect", 0, tau, shape=units)
    pm.Normal("reaction", intercept + effect[subject] + slope * days, sigma, observed=reaction)


@population("ability", units=400)
def item_responses(rng, units):
    """Persons answer items: a Rasch model (Stan's case study "Hierarchical 2PL", of one slope)."""
    persons, items = units, 4
    person, item = np.repeat(np.arange(persons), items), np.tile(np.arange(items), persons)
    p = expit(1.2 * rng.normal(size=persons)[person] - np.linspace(-1, 1, items)[item])
    discrimination = pm.HalfNormal("discrimination", 2)
    difficulty = pm.Normal("difficulty", 0, 2, shape=items)
    ability = pm.Normal("ability", 0, 1, shape=persons)
    logit = discrimination * ability[person] - difficulty[item]
    pm.Bernoulli("correct", logit_p=logit, observed=rng.random(len(p)) < p)


@population("patient_effect", units=400)
def repeated_binary(rng, units):
    """Patients at visits, treated or not, as of toenail infections (in glmmTMB)."""
    patient, time = np.repeat(np.arange(units), 3), np.tile(np.arange(3.0), units)
    treated = (np.arange(units) % 2)[patient]
    p = expit(0.5 + 1.0 * rng.normal(size=units)[patient] - 0.4 * time - 0.3 * treated * time)
    mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 2)
    b = pm.Normal("b", 0, 1, shape=2)
    u = pm.Normal("patient_effect", mu, tau, shape=units)
    logit = u[patient] + b[0] * time + b[1] * treated * time
    pm.Bernoulli("severe", logit_p=logit, observed=rng.random(len(p)) < p)


@population("alpha", units=300)
def players(rng, units):
    """At-bats of players, each in one row (Stan's case study of repeated binary trials)."""
    at_bats = rng.integers(20, 80, units)
    hits = rng.binomial(at_bats, expit(-1.0 + 0.4 * rng.normal(size=units)))
    mu, sigma = pm.Normal("mu", -1, 1), pm.HalfNormal("sigma", 1)
    alpha = pm.Normal("alpha", 0, 1, shape=units)
    pm.Binomial("hits", at_bats, logit_p=mu + sigma * alpha, observed=hits)


@population("theta", units=300)
def players_beta(rng, units):
    """The same with a beta distribution of chances (PyMC's example of baseball)."""
    at_bats = rng.integers(20, 80, units)
    hits = rng.binomial(at_bats, rng.beta(20, 55, units))
    phi = pm.Uniform("phi", 0, 1)
    kappa = pm.Gamma("kappa", 2, 0.05)
    theta = pm.Beta("theta", phi * kappa, (1 - phi) * kappa, shape=units)
    pm.Binomial("hits", at_bats, theta, observed=hits)


@population("epsilon", units=500)
def overdispersed_counts(rng, units):
    """Counts with an effect for each row (Harrison 2014; grouse ticks in lme4)."""
    x = rng.normal(size=units)
    counts = rng.poisson(np.exp(0.5 + 0.3 * x + 0.6 * rng.normal(size=units)))
    a, b, sigma = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1), pm.HalfNormal("sigma", 1)
    epsilon = pm.Normal("epsilon", 0, sigma, shape=units)
    pm.Poisson("counts", pm.math.exp(a + b * x + epsilon), observed=counts)


@population("effects", units=200)
def correlated_slopes(rng, units):
    """Intercepts and slopes of customers, correlated (McElreath's cafes)."""
    cov = np.array([[0.5, -0.2], [-0.2, 0.3]])
    own = rng.multivariate_normal([1.0, -0.5], cov, units)
    customer, x = np.repeat(np.arange(units), 3), np.tile([-1.0, 0.0, 1.0], units)
    y = own[customer, 0] + own[customer, 1] * x + 0.5 * rng.normal(size=3 * units)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    mean = pm.Normal("mean", 0, 1, shape=2)
    effects = pm.MvNormal("effects", mean, chol=chol, shape=(units, 2))
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", effects[customer, 0] + effects[customer, 1] * x, sigma, observed=y)


@population("effect", units=200)
def heavy_tails(rng, units):
    """Effects of sites from a Student-t distribution (eight schools with outliers, BDA 17)."""
    site = np.repeat(np.arange(units), 3)
    y = 1 + 0.7 * rng.standard_t(4, units)[site] + 0.6 * rng.normal(size=3 * units)
    mu, tau, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
    effect = pm.StudentT("effect", nu=4, mu=mu, sigma=tau, shape=units)
    pm.Normal("y", effect[site], sigma, observed=y)


@population("student", units=300)
def crossed(rng, units):
    """Ratings of lecturers by students (InstEval in lme4): those are integrated, these stay."""
    students, lecturers = units, 10
    student = np.repeat(np.arange(students), 3)
    lecturer = rng.integers(0, lecturers, len(student))
    rating = 3 + 0.4 * rng.normal(size=students)[student]
    rating += 0.5 * rng.normal(size=lecturers)[lecturer] + 0.9 * rng.normal(size=len(student))
    mu, sigma = pm.Normal("mu", 3, 2), pm.HalfNormal("sigma", 1)
    of_students, of_lecturers = pm.HalfNormal("of_students", 1), pm.HalfNormal("of_lecturers", 1)
    own = pm.Normal("student", 0, 1, shape=students)
    theirs = pm.Normal("lecturer", 0, 1, shape=lecturers)
    mean = mu + of_students * own[student] + of_lecturers * theirs[lecturer]
    pm.Normal("rating", mean, sigma, observed=rating)
