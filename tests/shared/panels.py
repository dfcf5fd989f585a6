"""Models of few rows per level, in the spellings that users have.

Every entry of `PANELS` returns a model of `N` rows, the names of its local variables, and how many
elements a level has of them; `REFUSED` the variable that is not local, and a part of what is said.
"""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt

N, G = 150, 40

_rng = np.random.default_rng(0)
g = _rng.integers(0, G - 1, N)  # the last level has no rows
x, noise = _rng.normal(size=(2, N))
y = 0.4 * x + _rng.normal(size=G)[g] + noise
binary = (y > 0).astype(int)
region = _rng.integers(0, 4, G)
other = _rng.integers(0, 30, N)

PANELS, REFUSED = {}, {}


def panel(*names, size=1):
    """Keep what a function writes in a model, with its local variables and their size."""

    def keep(function):
        def make():
            with pm.Model(coords={"level": [f"l{i}" for i in range(G)], "row": range(N)}) as model:
                function()
            return model

        PANELS[function.__name__] = make, names, size
        return make

    return keep


def refused(name, said):
    """Keep what a function writes, and why a variable of it is not local."""

    def keep(function):
        def make():
            with pm.Model() as model:
                function()
            return model

        REFUSED[function.__name__] = make, name, said
        return make

    return keep


@panel("theta")
def beta_binomial():
    phi, kappa = pm.Uniform("phi", 0, 1), pm.Gamma("kappa", 2, 0.05)
    theta = pm.Beta("theta", phi * kappa, (1 - phi) * kappa, dims="level")
    pm.Binomial("y", 5, theta[g], observed=5 * binary)


@panel("z")
def noncentred():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    z = pm.Normal("z", 0, 1, dims="level")
    pm.Bernoulli("y", logit_p=mu + tau * z[g] + pm.Normal("b") * x, observed=binary)


@panel("a")
def centred():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    a = pm.Normal("a", mu, tau, dims="level")
    pm.Normal("y", a[g] + pm.Normal("b") * x, pm.HalfNormal("s"), observed=y)


@panel("1|id_offset", "x|id_offset", size=2)
def as_bambi_writes_it():
    offsets = [pm.Normal(f"{of}|id_offset", 0, 1, dims="level") for of in ("1", "x")]
    effects = [
        pm.Deterministic(f"{of}|id", offset * pm.HalfNormal(f"{of}|id_sigma"), dims="level")
        for of, offset in zip(("1", "x"), offsets, strict=True)
    ]
    mu = pm.Normal("Intercept") + effects[0][g] + effects[1][g] * x
    mu = pm.Deterministic("mu", mu)
    pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y)


@panel("a")
def within_regions():
    above = pm.Normal("above", 0, pm.HalfNormal("between"), shape=4)
    a = pm.Normal("a", above[region], pm.HalfNormal("within"), shape=G)
    pm.Normal("y", a[g], 1, observed=y)


@panel("z", size=2)
def lkj():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    z = pm.Normal("z", shape=(2, G))
    effect = chol @ z
    pm.Normal("y", effect[0, g] + effect[1, g] * x, 1, observed=y)


@panel("u", size=2)
def multivariate():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    u = pm.MvNormal("u", pm.Normal("m", shape=2), chol=chol, shape=(G, 2))
    pm.Normal("y", u[g, 0] + u[g][:, 1] * x, 1, observed=y)


@panel("t")
def student():
    t = pm.StudentT("t", nu=4, mu=pm.Normal("mu"), sigma=pm.HalfNormal("tau"), shape=G)
    pm.Normal("y", t[g], 1, observed=y)


@panel("u")
def gamma():
    k = pm.Gamma("k", 4, 2)
    u = pm.Gamma("u", k, k, shape=G)
    pm.Poisson("y", u[g] * pt.exp(pm.Normal("b") * x), observed=binary)


@panel("wait")
def exponential():
    wait = pm.Exponential("wait", pm.HalfNormal("rate"), shape=G)
    pm.Exponential("y", wait[g], observed=np.abs(y))


@panel("e")
def of_each_row():
    e = pm.Normal("e", 0, pm.HalfNormal("tau"), shape=N)
    pm.Poisson("y", pt.exp(e + pm.Normal("b") * x), observed=binary)


@panel("e")
def of_each_row_by_its_number():
    e = pm.Normal("e", 0, pm.HalfNormal("tau"), shape=N)
    pm.Poisson("y", pt.exp(e[np.arange(N)]), observed=binary)


@panel("person")
def responses():
    person = pm.Normal("person", shape=(50,))
    easy = pm.Normal("easy", shape=3)
    slope = pm.HalfNormal("slope", shape=3)
    eta = slope[None, :] * (person[:, None] + easy[None, :])
    pm.Bernoulli("y", logit_p=eta, observed=binary.reshape(50, 3))


@panel("z")
def two_outcomes():
    z = pm.Normal("z", shape=G)
    tau = pm.HalfNormal("tau", shape=2)
    pm.Normal("y", tau[0] * z[g], 1, observed=y)
    pm.Poisson("counts", pt.exp(tau[1] * z), observed=_rng.poisson(1, G))


@panel("z")
def items_from_a_table():
    z, item = pm.Normal("z", shape=G), pm.Normal("item", 0, 1, shape=30)
    pm.Bernoulli("y", logit_p=z[g] - item[other], observed=binary)


@panel("scale")
def scales_of_levels():
    scale = pm.LogNormal("scale", pm.Normal("mu"), pm.HalfNormal("tau"), shape=G)
    pm.Normal("y", pm.Normal("m"), scale[g], observed=y)


@panel("z")
def ordered():
    z = pm.Normal("z", 0, 1, shape=G)
    cuts = pm.Normal("cuts", [-1.0, 1.0], 1.0, transform=pm.distributions.transforms.ordered)
    pm.OrderedLogistic(
        "y", eta=pm.HalfNormal("tau") * z[g], cutpoints=cuts, observed=np.digitize(y, [-1, 1])
    )


@panel("z")
def named_dimensions():
    code = pmd.as_xtensor(g, dims=("row",))
    z, tau = pmd.Normal("z", 0, 1, dims="level"), pmd.HalfNormal("tau")
    eta = pmd.Normal("mu") + tau * z.isel(level=code)
    rows = pmd.as_xtensor(y, dims=("row",))
    pmd.Normal("y", eta, pmd.HalfNormal("s"), observed=rows, dims="row")


@refused("z", "add up to zero")
def sums_to_zero():
    pm.Normal("y", pm.ZeroSumNormal("z", shape=G)[g], 1, observed=y)


@refused("z", "read by 'p', which has no rows")
def in_a_potential():
    z = pm.Normal("z", shape=G)
    pm.Potential("p", -(z.sum() ** 2))
    pm.Normal("y", z[g], 1, observed=y)


@refused("z", "enters the prior of 'b'")
def in_a_prior():
    z = pm.Normal("z", shape=G)
    b = pm.Normal("b", z.mean(), 1)
    pm.Normal("y", z[g] + b * x, 1, observed=y)


@refused("z", "read at several levels by a row")
def pairs():
    z = pm.Normal("z", shape=G)
    pm.Normal("y", z[g] - z[(g + 1) % G], 1, observed=y)


@refused("z", "whole by each row")
def centred_at_their_mean():
    z = pm.Normal("z", shape=G)
    pm.Normal("y", z[g] - z.mean(), 1, observed=y)


@refused("z", "levels depend on each other")
def a_walk():
    z = pm.GaussianRandomWalk("z", init_dist=pm.Normal.dist(), shape=G)
    pm.Normal("y", z[g], 1, observed=y)


@refused("z", "mixes its levels")
def smoothed():
    z = pm.Normal("z", shape=G)
    pm.Normal("y", pt.cumsum(z)[g], 1, observed=y)


@refused("z", "whole by each row")
def columns():
    z = pm.Normal("z", shape=G)
    pm.Normal("y", np.eye(G)[g] @ z, 1, observed=y)


@refused("mu", "single number")
def shared():
    pm.Normal("y", pm.Normal("mu") + pm.Normal("z", shape=G)[g], 1, observed=y)
