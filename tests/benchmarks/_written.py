"""Models as people write them: natural units, Bambi's defaults, centred and non-centred forms.

Each entry of `MODELS` is a function of a number of rows and a seed that returns a `pm.Model`. The
columns are those of the flights data, or simulated with the units that the name says. The form is
that of the source named in the docstring; nothing is scaled, centred or rewritten for our sake.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

MODELS = {}
FLIGHTS = Path(__file__).parents[2] / "examples" / "data" / "flights.npz"


def register(function):
    MODELS[function.__name__] = function
    return function


def flights(n, seed):
    """Return some flights as a data frame, in their own units."""
    with np.load(FLIGHTS) as table:
        frame = pd.DataFrame(
            {name: table[name] for name in table.files if not name.endswith("_names")}
        )
        frame["airline"] = table["carrier_names"][table["carrier"]]
    frame = frame.sample(min(n, len(frame)), random_state=seed).reset_index(drop=True)
    wide = frame.select_dtypes("unsignedinteger").columns
    frame[wide] = frame[wide].astype(float)
    frame["late"] = (frame["arrival_delay"] > 15).astype(int)
    return frame


def unequal(rng, n, groups, smallest=3):
    """Return group numbers of n rows: sizes from `smallest` to a large share of all."""
    weight = np.geomspace(1.0, 300.0, groups)
    rest = rng.choice(groups, n - smallest * groups, p=weight / weight.sum())
    return rng.permutation(np.concatenate([np.repeat(np.arange(groups), smallest), rest]))


def bambi(formula, frame, **options):
    import bambi as bmb

    model = bmb.Model(formula, frame, **options)
    model.build()
    return model.backend.model


# Regressions in natural units


@register
def logistic_miles(n, seed=0):
    """Logistic regression on one raw column (PyMC's introductory form)."""
    frame = flights(n, seed)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 10)
        b = pm.Normal("b", 0, 10)
        pm.Bernoulli("late", logit_p=a + b * frame["distance"].to_numpy(), observed=frame["late"])
    return model


@register
def salary_dollars(n, seed=0):
    """Linear regression of dollars on years (Gelman, Hill and Vehtari's earnings)."""
    rng = np.random.default_rng(seed)
    year, school = rng.integers(1950, 2020, n), rng.integers(8, 21, n)
    pay = 30_000 + 250.0 * (year - 1985) + 2_800.0 * (school - 12) + rng.normal(0, 14_000, n)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1e6)
        beta = pm.Normal("beta", 0, 1e4, shape=2)
        sigma = pm.HalfNormal("sigma", 1e5)
        mu = alpha + beta[0] * year + beta[1] * school
        pm.Normal("pay", mu, sigma, observed=pay)
    return model


@register
def tiny_and_huge_units(n, seed=0):
    """Columns with standard deviations from 1e-6 to 1e6, one offset by 1e6 of them."""
    rng = np.random.default_rng(seed)
    scale = np.array([1e-6, 1e-3, 1.0, 1e3, 1e6])
    X = rng.normal(size=(n, 5)) * scale
    X[:, 3] += 1e9
    eta = -1.0 + 0.4 * X[:, 0] * 1e6 - 0.3 * X[:, 2] + 0.5 * (X[:, 3] - 1e9) / 1e3
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1e7)
        b = pm.Normal("b", 0, 10 / scale)
        pm.Bernoulli("y", logit_p=a + X @ b, observed=rng.random(n) < 1 / (1 + np.exp(-eta)))
    return model


@register
def intercept_column(n, seed=0):
    """A design matrix with its column of ones and two collinear columns (statsmodels' habit)."""
    frame = flights(n, seed)
    km = 1.609 * frame["distance"] + np.random.default_rng(seed).normal(0, 1.0, len(frame))
    X = np.column_stack([np.ones(len(frame)), frame["distance"], km, frame["hour"]])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2.5, shape=4)
        pm.Bernoulli("late", p=pm.math.invlogit(X @ b), observed=frame["late"])
    return model


@register
def poisson_exposure(n, seed=0):
    """Claims per policy with exposure in days (actuarial textbooks)."""
    rng = np.random.default_rng(seed)
    days, age, power = rng.integers(30, 366, n), rng.integers(18, 90, n), rng.integers(40, 300, n)
    rate = np.exp(-8.5 - 0.01 * (age - 40) + 0.003 * power)
    with pm.Model() as model:
        b0 = pm.Normal("b0", 0, 10)
        b_age, b_power = pm.Normal("b_age", 0, 1), pm.Normal("b_power", 0, 1)
        mu = days * pm.math.exp(b0 + b_age * age + b_power * power)
        pm.Poisson("claims", mu, observed=rng.poisson(days * rate))
    return model


@register
def negative_binomial_counts(n, seed=0):
    """Overdispersed counts on raw columns (PyMC's gallery, GLM-negative-binomial-regression)."""
    frame, rng = flights(n, seed), np.random.default_rng(seed)
    mean = np.exp(1.0 + 0.05 * frame["hour"] + 2e-4 * frame["distance"])
    y = rng.poisson(rng.gamma(3.0, mean / 3.0))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        alpha = pm.Exponential("alpha", 0.5)
        mu = pm.math.exp(
            b[0] + b[1] * frame["hour"].to_numpy() + b[2] * frame["distance"].to_numpy()
        )
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=y)
    return model


@register
def robust_minutes(n, seed=0):
    """Delay in minutes with Student-t errors (PyMC's gallery, GLM-robust)."""
    frame = flights(n, seed)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 100)
        b = pm.Normal("b", 0, 10, shape=2)
        sigma = pm.HalfCauchy("sigma", 10)
        nu = pm.Gamma("nu", 2, 0.1)
        mu = a + b[0] * frame["hour"].to_numpy() + b[1] * frame["wind"].to_numpy()
        pm.StudentT(
            "delay", nu=nu, mu=mu, sigma=sigma, observed=frame["arrival_delay"].to_numpy(float)
        )
    return model


# Bambi's defaults


@register
def bambi_logistic(n, seed=0):
    """Bambi's documentation, logistic regression, defaults throughout."""
    return bambi("late ~ wind + distance", flights(n, seed), family="bernoulli")


@register
def bambi_varying_intercepts(n, seed=0):
    """Bambi's documentation, group-specific intercepts, defaults (non-centred)."""
    return bambi("late ~ wind + distance + (1|airline)", flights(n, seed), family="bernoulli")


@register
def bambi_varying_slopes(n, seed=0):
    """Bambi's documentation, group-specific slopes, defaults."""
    return bambi("late ~ wind + (1 + wind|airline)", flights(n, seed), family="bernoulli")


@register
def bambi_gaussian_nested(n, seed=0):
    """Bambi's documentation, two groupings and a Gaussian family, defaults."""
    frame = flights(n, seed)
    frame["station"] = frame["origin"].astype(int).astype(str)
    return bambi("arrival_delay ~ hour + (1|airline) + (1|station)", frame)


@register
def bambi_three_airports(n, seed=0):
    """The same, intercepts and slopes of three groups."""
    frame = flights(n, seed)
    frame["station"] = frame["origin"].astype(int).astype(str)
    return bambi("late ~ wind + (wind|station)", frame, family="bernoulli")


# Hierarchies, in both forms


def _three(n, seed):
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.repeat(np.arange(3), [3, 30, n - 33]))
    return g, rng.poisson(np.exp(1.0 + np.array([0.5, -0.3, 0.2])[g]))


@register
def three_unequal_noncentred(n, seed=0):
    """Groups of 3, 30 and all other rows, non-centred."""
    g, y = _three(n, seed)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(mu + tau * z[g]), observed=y)
    return model


@register
def three_unequal_centred(n, seed=0):
    """The same, centred."""
    g, y = _three(n, seed)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=3)
        pm.Poisson("y", pm.math.exp(a[g]), observed=y)
    return model


def _counts(n, seed, groups=25):
    rng = np.random.default_rng(seed)
    g = unequal(rng, n, groups)
    x = rng.normal(50, 20, n)
    rate = np.exp(0.5 + 0.4 * rng.normal(size=groups)[g] + 0.01 * (x - 50))
    return g, x, rng.poisson(rate), groups


def _poisson(n, seed, effects):
    """Counts in groups; ``effects(mu, tau, g, groups)`` are intercepts of the rows."""
    g, x, y, groups = _counts(n, seed)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        of_rows = effects(mu, tau, g, groups)
        pm.Poisson("y", pm.math.exp(of_rows + pm.Normal("b", 0, 1) * x), observed=y)
    return model


@register
def poisson_noncentred(n, seed=0):
    """Varying intercepts, `mu + tau * z` inside the row (PyMC's gallery, Radon)."""

    def effects(mu, tau, g, groups):
        return mu + tau * pm.Normal("z", 0, 1, shape=groups)[g]

    return _poisson(n, seed, effects)


@register
def poisson_centred(n, seed=0):
    """The same, centred."""
    return _poisson(n, seed, lambda mu, tau, g, k: pm.Normal("a", mu, tau, shape=k)[g])


@register
def poisson_half_and_half(n, seed=0):
    """The same, scaled but not shifted."""

    def effects(mu, tau, g, groups):
        return pm.Deterministic("a", mu + pm.Normal("d", 0, tau, shape=groups))[g]

    return _poisson(n, seed, effects)


@register
def little_variation(n, seed=0):
    """Groups that hardly differ: tau near zero."""
    rng = np.random.default_rng(seed)
    g = rng.integers(0, 30, n)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 100), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, shape=30)
        sigma = pm.HalfNormal("sigma", 50)
        a = mu + tau * z
        pm.Normal("y", a[g], sigma, observed=rng.normal(120, 15, n))
    return model


@register
def nested_schools(n, seed=0):
    """Pupils in schools in districts, a chain of non-centred effects (Stan's case studies)."""
    rng = np.random.default_rng(seed)
    district = np.arange(60) % 12
    school = unequal(rng, n, 60, smallest=30)
    effect = 500 + 20 * rng.normal(size=12)[district] + 30 * rng.normal(size=60)
    y = effect[school] + rng.normal(0, 80, n)
    with pm.Model() as model:
        mu = pm.Normal("mu", 500, 200)
        tau_d, tau_s = pm.HalfNormal("tau_d", 50), pm.HalfNormal("tau_s", 50)
        z_d, z_s = pm.Normal("z_d", shape=12), pm.Normal("z_s", shape=60)
        d = pm.Deterministic("d", mu + tau_d * z_d)
        s = pm.Deterministic("s", d[district] + tau_s * z_s)
        sigma = pm.HalfNormal("sigma", 200)
        pm.Normal("score", s[school], sigma, observed=y)
    return model


@register
def lkj_slopes(n, seed=0):
    """Correlated intercepts and slopes (PyMC's gallery, LKJ; McElreath's cafes)."""
    rng = np.random.default_rng(seed)
    g, x = unequal(rng, n, 20, smallest=20), rng.uniform(0, 40, n)
    ab = rng.multivariate_normal([-1.5, 0.03], [[0.25, -0.003], [-0.003, 0.0004]], 20)
    p = 1 / (1 + np.exp(-(ab[g, 0] + ab[g, 1] * x)))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        mean = pm.Normal("mean", 0, 2, shape=2)
        z = pm.Normal("z", 0, 1, shape=(2, 20))
        effect = pm.Deterministic("effect", pt.dot(chol, z).T)
        eta = mean[0] + effect[g, 0] + (mean[1] + effect[g, 1]) * x
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(n) < p)
    return model


@register
def lkj_slopes_centred(n, seed=0):
    """Correlated intercepts and slopes as a multivariate normal (PyMC's gallery)."""
    rng = np.random.default_rng(seed)
    g, x = unequal(rng, n, 20, smallest=20), rng.uniform(0, 40, n)
    ab = rng.multivariate_normal([50, 0.8], [[100, -1], [-1, 0.09]], 20)
    y = ab[g, 0] + ab[g, 1] * x + rng.normal(0, 12, n)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(20.0))
        mean = pm.Normal("mean", 0, 100, shape=2)
        ab = pm.MvNormal("ab", mean, chol=chol, shape=(20, 2))
        sigma = pm.Exponential("sigma", 0.1)
        pm.Normal("y", ab[g, 0] + ab[g, 1] * x, sigma, observed=y)
    return model


@register
def zero_sum_effects(n, seed=0):
    """Effects that add up to zero, with a learnt scale (PyMC's ZeroSumNormal example)."""
    rng = np.random.default_rng(seed)
    g = unequal(rng, n, 15, smallest=30)
    effect = 4 * rng.normal(size=15)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 50), pm.HalfNormal("tau", 10)
        a = pm.ZeroSumNormal("a", sigma=tau, shape=15)
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("y", mu + a[g], sigma, observed=40 + effect[g] + rng.normal(0, 9, n))
    return model


def _crossed(n, seed, raters):
    rng = np.random.default_rng(seed)
    rater, item = rng.integers(0, raters, n), unequal(rng, n, 30)
    eta = 0.3 + 0.7 * rng.normal(size=raters)[rater] + rng.normal(size=30)[item]
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        s = pm.HalfNormal("s", 1, shape=2)
        z_r, z_i = pm.Normal("z_r", shape=raters), pm.Normal("z_i", shape=30)
        logit = a + s[0] * z_r[rater] + s[1] * z_i[item]
        pm.Bernoulli("y", logit_p=logit, observed=rng.random(n) < 1 / (1 + np.exp(-eta)))
    return model


@register
def crossed_effects(n, seed=0):
    """Raters and items, non-centred (item response case studies)."""
    return _crossed(n, seed, 200)


@register
def crossed_thousands(n, seed=0):
    """The same with 2,000 raters."""
    return _crossed(n, seed, 2_000)


# Shrinkage, smooth functions, other likelihoods


@register
def regularised_horseshoe(n, seed=0):
    """Piironen and Vehtari's horseshoe (PyMC's gallery)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20)) * rng.uniform(0.5, 50, 20) + rng.uniform(-100, 100, 20)
    eta = 0.8 * (X[:, 0] - X[:, 0].mean()) / X[:, 0].std() - 1.0
    with pm.Model() as model:
        tau = pm.HalfStudentT("tau", 2, 0.1)
        lam = pm.HalfStudentT("lam", 5, 1, shape=20)
        c2 = pm.InverseGamma("c2", 1, 1)
        z = pm.Normal("z", 0, 1, shape=20)
        beta = pm.Deterministic("beta", z * tau * lam * pt.sqrt(c2 / (c2 + tau**2 * lam**2)))
        a = pm.Normal("a", 0, 10)
        Xs = (X - X.mean(0)) / X.std(0)
        pm.Bernoulli("y", logit_p=a + Xs @ beta, observed=rng.random(n) < 1 / (1 + np.exp(-eta)))
    return model


def _smooth(n, seed, cov, m):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 24, n))
    f = np.sin(x / 24 * 4 * np.pi) + 0.02 * x
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", 3, 10)
        eta = pm.Exponential("eta", 1)
        gp = pm.gp.HSGP(m=[m], L=[20.0], cov_func=eta**2 * cov(1, ls=ell))
        value = gp.prior("f", X=x[:, None])
        a = pm.Normal("a", 0, 2)
        pm.Bernoulli("y", logit_p=a + value, observed=rng.random(n) < 1 / (1 + np.exp(1 - f)))
    return model


@register
def hsgp_matern(n, seed=0):
    """A smooth function of the hour, 30 terms (PyMC's gallery, HSGP)."""
    return _smooth(n, seed, pm.gp.cov.Matern52, 30)


@register
def hsgp_expquad(n, seed=0):
    """The same with 20 terms and the exponentiated quadratic."""
    return _smooth(n, seed, pm.gp.cov.ExpQuad, 20)


@register
def ordered_ratings(n, seed=0):
    """Ordinal ratings (PyMC's gallery, ordered logistic), default `compute_p`."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n).astype(float)
    y = np.digitize(0.03 * age + rng.logistic(size=n), [0.0, 1.0, 2.5])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        cut = pm.Normal(
            "cut", [-1.0, 0.0, 1.0], 10, transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 0.0, 1.0],
        )  # fmt: skip
        pm.OrderedLogistic("y", eta=b * age, cutpoints=cut, observed=y)
    return model


@register
def weibull_censored(n, seed=0):
    """Lifetimes in hours, some of them censored (PyMC's gallery, survival analysis)."""
    rng = np.random.default_rng(seed)
    temperature = rng.normal(350, 20, n)
    scale = np.exp(7.0 - 0.01 * (temperature - 350))
    time = scale * rng.weibull(1.6, n)
    seen = time < 1200
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=2)
        alpha = pm.HalfNormal("alpha", 5)
        beta = pm.math.exp(b[0] + b[1] * temperature)
        pm.Weibull("time", alpha, beta[seen], observed=time[seen])
        pm.Potential("censored", -((1200 / beta[~seen]) ** alpha))
    return model


@register
def mixture_minutes(n, seed=0):
    """Delays as a mixture of two normals (PyMC's gallery, marginalised mixture)."""
    delay = flights(n, seed)["arrival_delay"].to_numpy(float)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", [-10, 60], 50, shape=2)
        sigma = pm.HalfNormal("sigma", 50, shape=2)
        pm.NormalMixture("delay", w, mu, sigma, observed=delay)
    return model
