"""Posteriors of several modes, most of them far from PyMC's initial point, and of one alone.

Every entry of `MULTIMODAL` and `UNIMODAL` is a function that returns a `pm.Model`.
"""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

N = 2_000
MULTIMODAL, UNIMODAL = {}, {}


def kept_in(bank):
    """Keep what a function writes inside `with pm.Model()`."""

    def keep(function, name=None):
        def make():
            with pm.Model() as model:
                function()
            return model

        bank[name or function.__name__] = make
        return make

    return keep


multimodal, unimodal = kept_in(MULTIMODAL), kept_in(UNIMODAL)


def rows(seed, n=N):
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=n)


# Several modes


def wave(seed, amplitude):
    rng, _ = rows(seed)
    t = rng.uniform(0, 240, N)
    y = 1.0 + 0.8 * np.cos(2 * np.pi * t / 24 - 1.0) + rng.normal(size=N)
    c = pm.Normal("c", 0, 5)
    a = amplitude("a")
    ph = pm.Normal("ph", 0, 10)
    pm.Normal("y", c + a * pm.math.cos(2 * np.pi * t / 24 - ph), 1.0, observed=y)


@multimodal
def phase():
    """A wave whose phase is not confined to one turn."""
    wave(0, partial(pm.HalfNormal, sigma=2))


@multimodal
def signed_phase():
    """The same with an amplitude of either sign."""
    wave(1, partial(pm.Normal, mu=0, sigma=2))


@multimodal
def square():
    """Both roots, the prior around one of them."""
    rng, x = rows(2)
    y = 4.0 * x + rng.normal(size=N)
    b = pm.Normal("b", 4, 4)
    pm.Normal("y", b**2 * x, 1.0, observed=y)


@multimodal
def mixture():
    """Swapped labels, less likely by the prior: they hold 27% of the mass."""
    rng, _ = rows(3)
    y = np.where(rng.random(N) < 0.5, -10.0, 10.0) + rng.normal(size=N)
    mu = pm.Normal("mu", [-10, 10], 20, shape=2, initval=[-10.0, 10.0])
    pm.NormalMixture("y", w=[0.5, 0.5], mu=mu, sigma=1.0, observed=y)


@multimodal
def mixture_of_all():
    """Labels of means, scales and weights that are swapped together."""
    rng, _ = rows(4)
    z = rng.choice(3, N, p=[0.5, 0.3, 0.2])
    y = np.array([-6.0, 0.0, 5.0])[z] + np.array([1.0, 0.5, 1.5])[z] * rng.normal(size=N)
    w = pm.Dirichlet("w", np.ones(3))
    mu = pm.Normal("mu", 0, 10, shape=3, initval=[-6.0, 0.0, 5.0])
    sigma = pm.HalfNormal("sigma", 2, shape=3)
    pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)


@multimodal
def mixture_of_regressions():
    """Two lines."""
    rng, x = rows(5)
    line = rng.random(N) < 0.5
    y = np.where(line, 3.0 + 2.0 * x, -3.0 - x) + rng.normal(scale=0.7, size=N)
    a = pm.Normal("a", [3, -3], 5, shape=2, initval=[3.0, -3.0])
    b = pm.Normal("b", 0, 3, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    each = [pm.logp(pm.Normal.dist(a[k] + b[k] * x, sigma), y) for k in range(2)]
    pm.Potential("y", pm.math.logaddexp(each[0], each[1]))


@multimodal
def loadings():
    """Scores of groups times loadings: a factor of known size but either sign."""
    rng, _ = rows(6)
    group, item = rng.integers(0, 4, N), rng.integers(0, 3, N)
    f, w = np.array([-0.5, 0.3, 0.7, -0.4]), np.array([2.0, 4.0, -3.0])
    f /= np.linalg.norm(f)
    y = f[group] * w[item] + rng.normal(scale=0.5, size=N)
    scores = pm.Normal("scores", 0, 1, shape=4, initval=f)
    pm.Potential("size", -0.5 * ((scores**2).sum() - 1) ** 2 / 0.02**2)
    load = pm.Normal("load", [0.5, 1.0, -0.5], 4, shape=3, initval=w)
    pm.Normal("y", scores[group] * load[item], 0.5, observed=y)


@multimodal
def network():
    """Hidden units that can be swapped, and mirrored with their weights."""
    rng, x = rows(7)
    z = rng.normal(size=N)
    y = 2.0 * np.tanh(1.5 * x) - 1.5 * np.tanh(2.0 * z - 1.0) + rng.normal(scale=0.3, size=N)
    X = np.column_stack([x, z])
    inner = pm.Normal("inner", 0, 2, shape=(2, 2), initval=[[1.5, 0.1], [0.1, 2.0]])
    shift = pm.Normal("shift", 0, 2, shape=2)
    outer = pm.Normal("outer", [1.0, -1.0], 2, shape=2, initval=[2.0, -1.5])
    pm.Normal("y", pt.tanh(X @ inner + shift) @ outer, 0.3, observed=y)


@multimodal
def mirrored_hierarchy():
    """Squared slopes of groups: the mean of the groups has to change its sign with them."""
    rng, x = rows(11)
    group = rng.integers(0, 6, N)
    w = 2.0 + 0.3 * rng.normal(size=6)
    y = w[group] ** 2 * x + rng.normal(size=N)
    mu, tau = pm.Normal("mu", 1, 3, initval=2.0), pm.HalfNormal("tau", 1)
    slopes = pm.Normal("slopes", mu, tau, shape=6, initval=np.full(6, 2.0))
    pm.Normal("y", slopes[group] ** 2 * x, 1.0, observed=y)


@multimodal
def default_start():
    """A mixture at whose initial point both means are the same, a saddle."""
    rng, _ = rows(12)
    y = np.where(rng.random(N) < 0.3, -3.0, 3.0) + rng.normal(size=N)
    w = pm.Dirichlet("w", np.ones(2))
    mu = pm.Normal("mu", 0, 5, shape=2)
    pm.NormalMixture("y", w=w, mu=mu, sigma=1.0, observed=y)


@multimodal
def two_squares():
    rng, x = rows(13)
    z = rng.normal(size=N)
    y = 4.0 * x + z + rng.normal(size=N)
    b = pm.Normal("b", [2, 1], 3, shape=2)
    pm.Normal("y", b[0] ** 2 * x + b[1] ** 2 * z, 1.0, observed=y)


@multimodal
def conflict():
    """A location with heavy tails and two camps of rows, the prior with one of them."""
    rng, _ = rows(8)
    y = -12.0 + 0.5 * rng.standard_t(3, N // 2)
    mu = pm.Normal("mu", -12, 10)
    pm.StudentT("y", nu=1, mu=mu, sigma=1.0, observed=np.concatenate([y, -y]))


@multimodal
def alias():
    """A frequency seen at whole hours alone: its mirror image fits as well."""
    rng, _ = rows(9)
    t = rng.integers(0, 8, N).astype(float)
    y = np.cos(1.1 * t) + rng.normal(scale=0.5, size=N)
    w = pm.Uniform("w", 0, 2 * np.pi, initval=1.1)
    pm.Normal("y", pm.math.cos(w * t), 0.5, observed=y)


@multimodal
def product():
    """A slope that meets the data only in products; the prior prefers one sign."""
    rng, x = rows(10)
    z = rng.normal(size=N)
    y = 6.0 * x + 3.0 * z + rng.normal(size=N)
    a = pm.Normal("a", 3, 3)
    b = pm.Normal("b", 2, 3)
    pm.Normal("y", a * b * x + b * pm.math.abs(b) * a / 4 * z, 1.0, observed=y)


# One mode


@unimodal
def logistic():
    rng, _ = rows(20)
    X = rng.normal(size=(N, 5))
    y = rng.binomial(1, expit(X @ np.linspace(-1, 1, 5)))
    beta = pm.Normal("beta", 0, 2, shape=5)
    pm.Bernoulli("y", logit_p=X @ beta, observed=y)


@unimodal
def scale():
    rng, x = rows(21)
    y = 1.0 + 2.0 * x + 0.7 * rng.normal(size=N)
    a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
    sigma = pm.HalfCauchy("sigma", 5)
    pm.Normal("y", a + b * x, sigma, observed=y)


def hierarchy(centred, spread, groups=12):
    rng, _ = rows(22)
    group = rng.integers(0, groups, N)
    y = 1.0 + spread * rng.normal(size=groups)[group] + 3.0 * rng.normal(size=N)
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 1)
    if centred:
        a = pm.Normal("a", mu, tau, shape=groups)
    else:
        a = mu + tau * pm.Normal("z", 0, 1, shape=groups)
    pm.Normal("y", a[group], 3.0, observed=y)


# Groups that hardly differ are a funnel, with a pole at a scale of zero.
for name, form in {
    "centred": (True, 1.0),
    "weak_centred": (True, 0.02),
    "weak_noncentred": (False, 0.02),
    "noncentred": (False, 1.0),
}.items():
    unimodal(partial(hierarchy, *form), name)


@unimodal
def collinear():
    """Only a sum is known well."""
    rng, x = rows(23)
    X = np.column_stack([x, x + 1e-3 * rng.normal(size=N)])
    y = X.sum(axis=1) + rng.normal(size=N)
    b = pm.Normal("b", 0, 10, shape=2)
    pm.Normal("y", X @ b, 1.0, observed=y)


@unimodal
def tails():
    rng, x = rows(24)
    y = 1.0 - x + rng.standard_t(3, N)
    b = pm.Normal("b", 0, 5, shape=2)
    nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 2)
    pm.StudentT("y", nu=nu, mu=b[0] + b[1] * x, sigma=sigma, observed=y)


@unimodal
def counts():
    """Overdispersed counts, with priors so wide that a draw of them overflows."""
    rng, x = rows(25)
    y = rng.negative_binomial(3, 3 / (3 + np.exp(1.0 + 0.5 * x)))
    b = pm.Normal("b", 0, 100, shape=2)
    alpha = pm.Exponential("alpha", 0.1)
    pm.NegativeBinomial("y", mu=pm.math.exp(b[0] + b[1] * x), alpha=alpha, observed=y)


@unimodal
def ordered_mixture():
    """A mixture whose labels the model keeps apart."""
    rng, _ = rows(26)
    y = np.where(rng.random(N) < 0.3, -2.0, 2.0) + rng.normal(size=N)
    mu = pm.Normal(
        "mu", [-1, 1], 5, shape=2, transform=pm.distributions.transforms.ordered,
        initval=[-1.0, 1.0],
    )  # fmt: skip
    w = pm.Dirichlet("w", np.ones(2))
    pm.NormalMixture("y", w=w, mu=mu, sigma=1.0, observed=y)


@unimodal
def one_sided_square():
    rng, x = rows(27)
    y = 4.0 * x + rng.normal(size=N)
    b = pm.HalfNormal("b", 4)
    pm.Normal("y", b**2 * x, 1.0, observed=y)
