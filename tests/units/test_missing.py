"""Missing values and errors in variables: integrated out, summed over, or drawn afterwards."""

from dataclasses import replace
from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import integrate, stats

import pymc_subsample as pms
from pymc_subsample import TallModelError
from pymc_subsample.results.loo.units import UnitsLeftOut
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.reading import read
from pymc_subsample.units.sampled import units_of
from pymc_subsample.units.unit_densities import UnitFunctions
from pymc_subsample.units.unread import UnreadDraws, unread

N = 120

pytestmark = pytest.mark.filterwarnings("ignore:Data in .* contains missing values")


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    x, w = 0.5 + 0.8 * z + 0.7 * rng.normal(size=n), rng.normal(size=n) - 0.3
    y = 1 + 0.6 * x - 0.4 * w + 0.5 * rng.normal(size=n)
    return rng, z, x, w, y


def holes(rng, values, share=0.3):
    values = np.array(values, dtype=float)
    values[rng.random(values.shape) < share] = np.nan
    return values


def masked(values):
    return np.ma.masked_invalid(values)


def value_point(model, point):
    """A point of value variables, from one of variables: scales are on the log scale here."""
    values = {model.rvs_to_values[rv].name: np.asarray(point[rv.name]) for rv in model.free_RVs}
    for name, x in values.items():
        if name.endswith("_log__"):
            values[name] = np.log(x)
        elif name.endswith("_logodds__"):
            values[name] = np.log(x / (1 - x))
    return values


def log_prior(model, point):
    at = value_point(model, point)
    graph = model.compile_fn(model.logp(vars=model.free_RVs), inputs=model.value_vars)
    return float(graph(at))


def log_likelihood(marginal, point):
    at = value_point(marginal, point)
    return float(marginal.compile_logp()(at)) - log_prior(marginal, point)


# What is integrated out: models, likelihoods in closed form, and points


def one_column():
    rng, z, x, _, y = data()
    return _one_column(z, holes(rng, x), y)


def _one_column(z, x, y):
    gone = np.isnan(x)
    with pm.Model() as model:
        a, b, c, d = (pm.Normal(name) for name in "abcd")
        s, t = pm.HalfNormal("s"), pm.HalfNormal("t")
        column = pm.Normal("x", c + d * z, t, observed=x)
        pm.Normal("y", a + b * column, s, observed=y)

    def exact(a, b, c, d, s, t):
        mean, sd = c + d * z, np.hypot(s, b * t)
        return (
            stats.norm.logpdf(x[~gone], mean[~gone], t).sum()
            + stats.norm.logpdf(y, a + b * np.where(gone, mean, x), np.where(gone, sd, s)).sum()
        )

    points = [{"a": 1, "b": b, "c": 0.5, "d": 0.8, "s": 0.6, "t": t}
              for b, t in ((0.6, 0.7), (0.5, 0.75), (0.7, 0.65))]  # fmt: skip
    return model, exact, points


def two_columns():
    rng, _, x, w, y = data()
    x, w = holes(rng, x), holes(rng, w)
    no_x, no_w = np.isnan(x), np.isnan(w)
    with pm.Model() as model:
        a, b, c, d, e = (pm.Normal(name) for name in "abcde")
        s, t, u = (pm.HalfNormal(name) for name in "stu")
        first, second = pm.Normal("x", c, t, observed=x), pm.Normal("w", d, u, observed=w)
        pm.Normal("y", a + b * first + e * second, s, observed=y)

    def exact(a, b, c, d, e, s, t, u):
        mean = a + b * np.where(no_x, c, x) + e * np.where(no_w, d, w)
        sd = np.sqrt(s**2 + no_x * (b * t) ** 2 + no_w * (e * u) ** 2)
        return (
            stats.norm.logpdf(x[~no_x], c, t).sum()
            + stats.norm.logpdf(w[~no_w], d, u).sum()
            + stats.norm.logpdf(y, mean, sd).sum()
        )

    points = [
        {"a": 1, "b": b, "c": 0.5, "d": -0.3, "e": e, "s": 0.5, "t": 1.1, "u": 1}
        for b, e in ((0.6, -0.4), (0.7, -0.3))
    ]
    return model, exact, points


def matrix():
    rng, z, x, w, y = data()
    X = holes(rng, np.column_stack([x, w, z]), 0.2)
    gone = np.isnan(X)
    assert set(gone.sum(axis=1)) == {0, 1, 2, 3} or set(gone.sum(axis=1)) == {0, 1, 2}
    with pm.Model() as model:
        mu, t = pm.Normal("mu", shape=3), pm.HalfNormal("t", shape=3)
        a, b, s = pm.Normal("a"), pm.Normal("b", shape=3), pm.HalfNormal("s")
        columns = pm.Normal("X", mu, t, observed=X)
        pm.Normal("y", a + pm.math.dot(columns, b), s, observed=y)

    def exact(mu, t, a, b, s):
        each = stats.norm.logpdf(X, mu, t)
        mean = a + np.where(gone, mu, X) @ b
        sd = np.sqrt(s**2 + gone @ (b * t) ** 2)
        return each[~gone].sum() + stats.norm.logpdf(y, mean, sd).sum()

    points = [
        {"mu": np.array([0.5, -0.3, 0]), "t": np.array([1.1, 1, 1]), "a": 1.0, "s": 0.5,
         "b": np.array(b)} for b in ([0.6, -0.4, 0.0], [0.5, -0.5, 0.1])
    ]  # fmt: skip
    return model, exact, points


def one_of_the_other():
    """What is missing of w depends on x, which may be missing too."""
    rng, _, x, w, _ = data()
    return _one_of_the_other(holes(rng, x), holes(rng, w))


def one_is_the_mean_of_the_other():
    """PyMC picks the rows of x itself, in the place of those of a function of x."""
    rng, _, x, w, _ = data()
    return _one_of_the_other(holes(rng, x), holes(rng, w), slope=False)


def one_of_the_other_in_all_rows():
    return _one_of_the_other(np.full(N, np.nan), np.full(N, np.nan))


def one_in_all_rows_the_other_in_some():
    """What is never observed has no place of its own: at points near the reference."""
    rng, _, _, w, _ = data()
    model, exact, _ = _one_of_the_other(np.full(N, np.nan), holes(rng, w))
    return model, exact, None


def one_in_some_rows_the_other_in_all():
    rng, _, x, _, _ = data()
    return _one_of_the_other(holes(rng, x), np.full(N, np.nan))


def _values_of_both(of_x, of_w, **more):
    _, _, x, w, _ = data()
    x[of_x], w[of_w] = np.nan, np.nan
    return _one_of_the_other(x, w, **more)


def one_value_of_both():
    return _values_of_both([3], [3])


def one_value_of_both_in_two_rows():
    return _values_of_both([3], [9])


def one_value_of_both_read_apart():
    """The outcome does not see x: nothing reads both."""
    return _values_of_both([3], [9], both=False)


def few_values_of_both_read_apart():
    return _values_of_both([3, 9, 20], [30], both=False)


def few_values_of_both():
    return _values_of_both([3, 9, 20], [3, 30])


def _one_of_the_other(x, w, *, slope=True, both=True):
    _, z, _, _, y = data()
    no_x, no_w = np.isnan(x), np.isnan(w)
    with pm.Model() as model:
        a, b, c, d, e, f = (pm.Normal(name) for name in "abcdef")
        s, t, u = (pm.HalfNormal(name) for name in "stu")
        first = pm.Normal("x", c + d * z, t, observed=x)
        second = pm.Normal("w", e * first if slope else first, u, observed=w)
        pm.Normal("y", a + b * first + f * second if both else a + f * second, s, observed=y)

    def exact(a, b, c, d, e, f, s, t, u):
        total = 0.0
        e, b = e if slope else 1.0, b if both else 0.0
        for i in range(N):
            # x, w and y are normal together: of those that are observed.
            m = c + d * z[i]
            L = np.array([[t, 0, 0], [e * t, u, 0], [b * t + f * e * t, f * u, s]])
            mean, cov = np.array([m, e * m, a + b * m + f * e * m]), L @ L.T
            seen = np.flatnonzero([not no_x[i], not no_w[i], True])
            total += stats.multivariate_normal.logpdf(
                np.array([x[i], w[i], y[i]])[seen], mean[seen], cov[np.ix_(seen, seen)]
            )
        return total

    points = [
        {"a": 1, "b": 0.6, "c": 0.5, "d": 0.8, "e": e, "f": f, "s": 0.5, "t": 0.7, "u": 1}
        for e, f in ((0.0, -0.4), (0.1, -0.3))
    ]
    return model, exact, points


def covariates_of_persons(effects=False):
    """A covariate of each of 80 persons, with holes, that their rows read."""
    rng, _, _, _, y = data()
    person = np.r_[np.arange(80), rng.integers(0, 80, N - 80)]
    x = holes(rng, rng.normal(size=80))
    gone = np.isnan(x)
    with pm.Model() as model:
        a, b, c = (pm.Normal(name) for name in "abc")
        s, t, u = (pm.HalfNormal(name) for name in "stu")
        column = pm.Normal("x", c, t, observed=x)
        mean = a + b * column[person]
        if effects:
            mean += pm.Normal("effect", 0, u, shape=80)[person]
        pm.Normal("y", mean, s, observed=y)

    def exact(a, b, c, s, t, u):
        total = stats.norm.logpdf(x[~gone], c, t).sum()
        for j in range(80):
            own = y[person == j]
            ones = np.ones((len(own), len(own)))
            cov = s**2 * np.eye(len(own)) + (gone[j] * (b * t) ** 2 + effects * u**2) * ones
            mean = a + b * (c if gone[j] else x[j])
            total += stats.multivariate_normal.logpdf(own, np.full(len(own), mean), cov)
        return total

    points = [{"a": 1, "b": b, "c": 0.5, "s": 0.6, "t": t, "u": 0.4}
              for b, t in ((0.6, 0.7), (0.5, 0.9))]  # fmt: skip
    return model, exact, points


def covariates_whose_mean_is_the_effect(by_person):
    """A covariate with holes around an effect of persons, or rows, that the outcome reads too."""
    rng, _, _, _, y = data()
    J = 40 if by_person else N
    g = np.sort(np.arange(N) % J)
    x = holes(rng, rng.normal(size=J))
    gone = np.isnan(x)
    with pm.Model() as model:
        a, b, c, d = (pm.Normal(name) for name in "abcd")
        s, t, tau = (pm.HalfNormal(name) for name in ("s", "t", "tau"))
        u = pm.Normal("u", 0, tau, shape=J)
        column = pm.Normal("x", c + d * u, t, observed=x)
        own = (lambda v: v[g]) if by_person else (lambda v: v)
        pm.Normal("y", a + b * own(column) + own(u), s, observed=y)

    def exact(a, b, c, d, s, t, tau):
        total = 0.0
        for j in range(J):
            rows = y[g == j]
            n = len(rows)
            # Of u and errors: x, and the rows of this level.
            of_u = np.r_[d * tau, np.full(n, (1 + b * d) * tau)]
            of_x = np.r_[t, np.full(n, b * t)]
            cov = np.outer(of_u, of_u) + np.outer(of_x, of_x) + np.diag(np.r_[0, np.full(n, s**2)])
            seen = slice(1, None) if gone[j] else slice(None)
            mean, values = np.r_[c, np.full(n, a + b * c)], np.r_[x[j], rows]
            total += stats.multivariate_normal.logpdf(values[seen], mean[seen], cov[seen, seen])
        return total

    points = [
        {"a": 1.0, "b": b, "c": 0.2, "d": d, "s": 0.6, "t": 0.9, "tau": 0.5}
        for b, d in ((0.4, 0.5), (0.2, 1.2))
    ]
    return model, exact, points


@pytest.mark.parametrize("by_person", [True, False])
@pytest.mark.costly(cases=1)
def test_the_mean_of_a_covariate_may_be_an_effect_of_the_same_persons(by_person):
    model, exact, points = covariates_whose_mean_is_the_effect(by_person)
    found = assert_exact(model, exact, points, ["u", "x_unobserved"], n_nodes=21)
    assert np.ptp(found) > 0.1


@pytest.mark.parametrize("by_person", [True, False])
def test_an_effect_is_not_integrated_without_a_covariate_of_which_it_is_the_mean(by_person):
    model, _, points = covariates_whose_mean_is_the_effect(by_person)
    with pytest.raises(TallModelError, match=r"'u' cannot .* without 'x_unobserved', whose prior "
                       r"depends on it\. Name both, integrate=\['u', 'x_un"):  # fmt: skip
        pms.marginalize(model, "u")
    alone = pms.marginalize(model, "x_unobserved")
    assert {"u"} == {v.name for v in model.free_RVs} - {*points[0], "x_unobserved"}
    assert {v.name for v in alone.free_RVs} == {*points[0], "u"}


def test_an_effect_of_each_row_is_not_left_where_what_is_missing_is_integrated():
    _, _, x, *_, y = data()
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=N)
        column = pm.Normal("x", pm.Normal("c"), 1, observed=np.where(x > 1, np.nan, x))
        pm.Normal("y", pm.Normal("b") * column + u, 1, observed=y)
    with pytest.raises(TallModelError, match=r"row of 'y' has an element of 'u' of its own, .*"
                       r"integrate=\['x_unobserved', 'u'\]"):  # fmt: skip
        pms.marginalize(model, "x_unobserved")
    pms.marginalize(model, ["x_unobserved", "u"])


def test_covariates_of_rows_and_an_effect_of_several_rows_are_two_groupings():
    """The mean of what is missing of each row is an effect of its person."""
    rng, _, x, _, y = data()

    def model_of(J):
        g = np.arange(N) % J
        with pm.Model() as model:
            c, t, tau = pm.Normal("c"), pm.HalfNormal("t"), pm.HalfNormal("tau")
            u = pm.Normal("u", 0, tau, shape=J)
            column = pm.Normal("x", c + u[g], t, observed=holes(rng, x))
            pm.Normal("y", pm.Normal("b") * column + u[g], 0.5, observed=y)
        return model

    with pytest.raises(TallModelError, match="one is integrated out: name 'x_unobserved'"):
        pms.marginalize(model_of(40), "u")
    with pytest.raises(TallModelError, match=r"2 groupings: 'u'.*, 'x_unobserved'"):
        pms.marginalize(model_of(40), ["u", "x_unobserved"])
    assert "u" in [v.name for v in pms.marginalize(model_of(40)).free_RVs]
    with pytest.raises(TallModelError, match=r"several groupings .*: 'u'.*'x_unobserved'"):
        units_of(model_of(90), "auto", "HMCECS")


def covariates_and_effects_of_persons():
    return covariates_of_persons(effects=True)


def a_column_of_which_rows_are_read():
    """One outcome reads the first rows, another all, in another order."""
    rng, _, x, w, y = data()
    x, order = holes(rng, x), rng.permutation(N)
    gone = np.isnan(x)
    with pm.Model() as model:
        a, b, c = (pm.Normal(name) for name in "abc")
        s, t = pm.HalfNormal("s"), pm.HalfNormal("t")
        column = pm.Normal("x", c, t, observed=x)
        pm.Normal("y", a + b * column[:50], s, observed=y[:50])
        pm.Normal("w", pm.math.exp(0.5 * column)[order] - 1, 1, observed=w[order])

    def exact(a, b, c, s, t):
        total = stats.norm.logpdf(x[~gone], c, t).sum()
        for i in range(N):

            def density(v, i=i):
                found = stats.norm.pdf(w[i], np.exp(0.5 * v) - 1, 1)
                return found * (stats.norm.pdf(y[i], a + b * v, s) if i < 50 else 1)

            weighted = lambda v: density(v) * stats.norm.pdf(v, c, t)  # noqa: E731
            total += np.log(
                integrate.quad(weighted, c - 9 * t, c + 9 * t)[0] if gone[i] else density(x[i])
            )
        return total

    points = [{"a": 1, "b": b, "c": 0.5, "s": 0.6, "t": 0.9} for b in (0.6, 0.3)]
    return model, exact, points


def errors_in_a_variable():
    rng, _, x, _, y = data()
    read = holes(rng, x + 0.3 * rng.normal(size=N))
    gone = np.isnan(read)
    with pm.Model() as model:
        a, b, c = (pm.Normal(name) for name in "abc")
        s, t = pm.HalfNormal("s"), pm.HalfNormal("t")
        true = pm.Normal("true", c, t, shape=N)
        pm.Normal("read", true, 0.3, observed=read)
        pm.Normal("y", a + b * true, s, observed=y)

    def exact(a, b, c, s, t):
        cov = np.array([[t**2 + 0.09, b * t**2], [b * t**2, (b * t) ** 2 + s**2]])
        both = np.column_stack([read, y])[~gone]
        found = stats.multivariate_normal.logpdf(both, [c, a + b * c], cov).sum()
        return found + stats.norm.logpdf(y[gone], a + b * c, np.sqrt(cov[1, 1])).sum()

    points = [{"a": 1, "b": b, "c": 0.5, "s": 0.5, "t": 1.1} for b in (0.6, 0.7)]
    return model, exact, points


def one_value():
    """A length of one is broadcast where there are no more values."""
    _, z, x, *_, y = data()
    x[3] = np.nan
    return _one_column(z, x, y)


def one_value_of_a_matrix():
    return _matrix([(4, 1)])


def one_value_of_each_column():
    """Where the indices of what is missing are the numbers of its levels too."""
    return _matrix([(3, 0), (9, 1)])


def a_column_of_a_matrix():
    return _matrix([(slice(None), 1)])


def a_column_and_more():
    return _matrix([(slice(None), 1), (slice(5, 50), 0)])


def a_matrix_of_one_column():
    return _matrix([(slice(5, 50), 0)], columns=1)


def _matrix(gone, columns=2):
    _, _, x, w, y = data()
    X = np.column_stack([x, w])[:, :columns]
    for at in gone:
        X[at] = np.nan
    gone = np.isnan(X)
    with pm.Model() as model:
        mu, t = pm.Normal("mu", shape=columns), pm.HalfNormal("t", shape=columns)
        a, b, s = pm.Normal("a"), pm.Normal("b", shape=columns), pm.HalfNormal("s")
        pm.Normal("y", a + pm.Normal("X", mu, t, observed=X) @ b, s, observed=y)

    def exact(mu, t, a, b, s):
        mean = a + np.where(gone, mu, X) @ b
        sd = np.sqrt(s**2 + gone @ (b * t) ** 2)
        return stats.norm.logpdf(X, mu, t)[~gone].sum() + stats.norm.logpdf(y, mean, sd).sum()

    points = [
        {"mu": np.array([0.5, -0.3])[:columns], "t": np.array([1.1, 1])[:columns], "a": 1.0,
         "s": 0.5, "b": np.array(b)[:columns]} for b in ([0.6, -0.4], [0.5, -0.5])
    ]  # fmt: skip
    return model, exact, points


def outcomes_of_which_one_is_missing_in_all_rows():
    model, exact, points = one_column()
    with model:
        pm.Normal("v", 0.3 * model["x"], 1, observed=np.full(N, np.nan))
    return model, exact, points


@pytest.mark.parametrize(
    "case",
    [one_value, one_value_of_a_matrix, one_value_of_each_column, a_column_of_a_matrix,
     a_column_and_more, a_matrix_of_one_column, outcomes_of_which_one_is_missing_in_all_rows,
     one_is_the_mean_of_the_other, one_of_the_other_in_all_rows, one_in_all_rows_the_other_in_some,
     one_in_some_rows_the_other_in_all, one_value_of_both, one_value_of_both_in_two_rows,
     one_value_of_both_read_apart, few_values_of_both, few_values_of_both_read_apart],
)  # fmt: skip
@pytest.mark.costly(cases=5)
def test_where_values_are_missing_does_not_matter(case):
    assert_exact(*case())


@pytest.mark.parametrize(
    "case", [one_column, two_columns, matrix, one_of_the_other, errors_in_a_variable]
)
@pytest.mark.costly(cases=5)
def test_what_is_missing_is_integrated_out_exactly(case):
    found = assert_exact(*case())
    assert np.ptp(found) > 0.5


READS = {
    "a product": lambda X, b, g: X[g] @ b,
    "a sum": lambda X, b, g: (X[g] * b).sum(axis=1),
    "columns of rows": lambda X, b, g: X[g, 0] * b[0] + X[g, 1] * b[1],
    "rows of columns": lambda X, b, g: X[:, 0][g] * b[0] + X[g][:, 1] * b[1],
    "rows of a product": lambda X, b, g: (X @ b)[g],
    "rows of columns as rows": lambda X, b, g: X.T[0, g] * b[0] + X.T[1, g] * b[1],
    "columns as rows": lambda X, b, g: b @ X.T[:, g],
}


def a_matrix_of_persons(read="a sum", effects=""):
    """Covariates of persons with 1 to 4 rows each, some missing, and effects of these."""
    rng = np.random.default_rng(2)
    J = 40
    g = np.sort(np.concatenate([np.arange(J), rng.integers(0, J, 60)]))
    X = 0.3 + rng.normal(size=(J, 2))
    y = X[g] @ [0.6, -0.4] + 0.4 * rng.normal(size=J)[g] + 0.5 * rng.normal(size=len(g))
    X = holes(rng, X)
    gone = np.isnan(X)
    with pm.Model() as model:
        mu, t = pm.Normal("mu", shape=2), pm.HalfNormal("t", shape=2)
        b, s = pm.Normal("b", shape=2), pm.HalfNormal("s")
        mean = READS[read](pm.Normal("X", mu, t, observed=X), b, g)
        if effects:
            tau = pm.HalfNormal("tau")
            z = pm.Normal("z", 0, tau if effects == "centred" else 1, shape=J)
            mean = mean + (z if effects == "centred" else tau * z)[g]
        pm.Normal("y", mean, s, observed=y)

    def exact(mu, t, b, s, tau=0.0):
        total = stats.norm.logpdf(X, mu, t)[~gone].sum()
        for j in range(J):
            own = y[g == j]
            mean = np.full(len(own), np.where(gone[j], mu, X[j]) @ b)
            cov = s**2 * np.eye(len(own)) + tau**2 + gone[j] @ (b * t) ** 2
            total += stats.multivariate_normal.logpdf(own, mean, cov)
        return total

    points = [{"mu": np.array([0.3, 0.2]), "t": np.array([1.1, 1]), "s": 0.5, "b": np.array(b)}
              | ({"tau": 0.4} if effects else {}) for b in ([0.6, -0.4], [0.5, -0.5])]  # fmt: skip
    return model, exact, points


@pytest.mark.parametrize("read", READS)
@pytest.mark.costly(cases=1)
def test_a_matrix_with_holes_may_be_read_by_persons(read):
    found = assert_exact(*a_matrix_of_persons(read))
    assert np.ptp(found) > 0.3


def test_a_matrix_with_holes_may_have_persons_in_its_columns():
    rng, _, x, w, y = data(60)
    X, g = holes(rng, np.column_stack([x, w])[:40]), np.r_[np.arange(40), np.arange(20)]
    point = {"mu": 0.3, "b": np.array([0.6, -0.4])}
    found = []
    for turned in (False, True):
        with pm.Model() as model:
            b, mu = pm.Normal("b", shape=2), pm.Normal("mu")
            column = pm.Normal("X", mu, 1, observed=X.T if turned else X)
            one, other = (column[j, g] if turned else column[g, j] for j in range(2))
            pm.Normal("y", one * b[0] + other * b[1], 0.5, observed=y)
        found.append(log_likelihood(pms.marginalize(model, n_nodes=9), point))
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("turned", [False, True])
def test_the_mean_of_a_matrix_with_holes_may_differ_from_person_to_person(turned):
    """Of an effect that has few levels here, and stays a parameter."""
    rng, _, x, w, y = data(60)
    X, g = holes(rng, np.column_stack([x, w])[:40]), np.r_[np.arange(40), np.arange(20)]
    gone, of = np.isnan(X), np.arange(40) % 4
    with pm.Model() as model:
        b, d, u = pm.Normal("b", shape=2), pm.Normal("d", shape=2), pm.Normal("u", shape=4)
        mean = (d[:, None] * u[of]).T if not turned else d[:, None] * u[of]
        column = pm.Normal("X", mean, 1, observed=X.T if turned else X)
        rows = column.T[g] if turned else column[g]
        pm.Normal("y", rows @ b, 0.5, observed=y)

    def exact(b, d, u):
        mean = u[of][:, None] * d
        total = stats.norm.logpdf(X[~gone], mean[~gone]).sum()
        for j in range(40):
            of_y = np.where(gone[j], mean[j], X[j]) @ b
            n = np.sum(g == j)
            cov = 0.25 * np.eye(n) + (b[gone[j]] ** 2).sum()
            total += stats.multivariate_normal.logpdf(y[g == j], np.full(n, of_y), cov)
        return total

    points = [{"b": np.array([0.5, -0.4]), "d": np.array([0.3, 1.0]), "u": np.array(u)}
              for u in ([0.1, -0.2, 0.3, 0.0], [0.5, 0.2, -0.3, 0.1])]  # fmt: skip
    found = assert_exact(model, exact, points, "X_unobserved", n_nodes=7)
    assert np.ptp(found) > 0.1


CHOICES = {
    "a matrix": lambda u, rows, y: u(rows.shape),
    "rows side by side": lambda u, rows, y: u(rows.size)[rows],
    "rows in order": lambda u, rows, y: u(rows.size).reshape(rows.shape),
}


def choices(n=60):
    rng = np.random.default_rng(3)
    x = holes(rng, rng.normal(size=(n, 3)), 0.2)
    return x, np.arange(3 * n).reshape(n, 3), rng.integers(0, 3, n)


def exact_choices(x, y, b, c, t, is_row=True):
    """By the sum over a grid of nodes of all that is missing of a set."""
    z, w = np.polynomial.hermite_e.hermegauss(30)
    total = stats.norm.logpdf(x[~np.isnan(x) & is_row], c, t).sum()
    for i in range(len(x)):
        gone = np.flatnonzero(np.isnan(x[i]))
        at = np.array(list(product(range(30), repeat=len(gone))), dtype=int)
        rows = np.repeat(x[[i]], len(at), axis=0)
        rows[:, gone] = c + t * z[at]
        u = np.where(np.broadcast_to(is_row, x.shape)[i], b * rows, -np.inf)
        weight = np.prod(w[at] / w.sum(), axis=1)
        total += np.log(np.sum(weight * np.exp(u[:, y[i]]) / np.exp(u).sum(axis=1)))
    return total


POINT = {"b": 1.3, "c": 0.2, "t": 1.1}


@pytest.mark.parametrize("density", ["categorical", "potential"])
@pytest.mark.parametrize("spelling", CHOICES)
@pytest.mark.costly(cases=1)
def test_attributes_of_alternatives_may_be_missing(spelling, density):
    """All that is missing of the alternatives of a choice is one integral, in any spelling."""
    x, rows, y = choices()
    with pm.Model() as model:
        b, c, t = pm.Normal("b"), pm.Normal("c"), pm.HalfNormal("t")
        seen = lambda shape: pm.Normal("x", c, t, observed=x.reshape(shape))  # noqa: E731
        u = b * CHOICES[spelling](seen, rows, y)
        if density == "categorical":
            pm.Categorical("y", logit_p=u, observed=y)
        else:
            pm.Potential("y", u[np.arange(len(y)), y] - pt.logsumexp(u, axis=1))
    found = log_likelihood(pms.marginalize(model, n_nodes=11), POINT)
    assert found == pytest.approx(exact_choices(x, y, **POINT), abs=2e-3)


def ragged(spelling):
    """Sets of two or three rows: added up by an index, or filled up, with a known row or not."""
    x, _, y = choices()
    is_row = np.arange(3) < np.where(np.arange(len(y)) % 2, 3, 2)[:, None]
    y = np.minimum(y, is_row.sum(axis=1) - 1)
    of, flat = np.repeat(np.arange(len(y)), is_row.sum(axis=1)), x[is_row]
    places = np.cumsum(is_row).reshape(is_row.shape) - 1
    filler = np.flatnonzero(~np.isnan(flat))[0] if spelling == "filled up" else places[:, :1]
    with pm.Model() as model:
        b, c, t = pm.Normal("b"), pm.Normal("c"), pm.HalfNormal("t")
        column = pm.Normal("x", c, t, observed=flat)
        if spelling == "added up":
            total = pt.zeros(len(y))[of].inc(pt.exp(b * column))
            pm.Potential("y", (b * column)[places[np.arange(len(y)), y]] - pt.log(total))
        else:
            u = b * column[np.where(is_row, places, filler)]
            pm.Categorical("y", logit_p=pt.where(is_row, u, -np.inf), observed=y)
    return model, np.where(is_row, x, 0), y, is_row


def test_sets_of_different_sizes_with_holes_are_refused_with_what_to_write():
    assert "'y', which adds up sets of rows (put the rows" in refusal(ragged("added up")[0])
    assert "is read twice by a row (fill an index" in refusal(ragged("filled up twice")[0])


@pytest.mark.parametrize(
    "read",
    [
        lambda X, b, rows: (X @ b)[rows],
        lambda X, b, rows: (X @ b).reshape(rows.shape),
        lambda X, b, rows: X[rows] @ b,
        lambda X, b, rows: X[rows[:, 0]] @ b + X[rows[:, 1]] @ b,
    ],
)
def test_sets_of_what_is_computed_of_a_matrix_are_refused_in_words(read):
    """An index of several rows reads a column, and not yet a matrix."""
    x, rows, y = choices()
    with pm.Model() as model:
        b, matrix = pm.Normal("b", shape=2), np.column_stack([x.ravel(), x.ravel()[::-1]])
        utility = read(pm.Normal("X", 0, 1, observed=matrix), b, rows)
        if utility.type.ndim == 1:
            utility = utility[:, None] * np.arange(3)
        pm.Categorical("y", logit_p=utility, observed=y)
    said = refusal(model)
    assert "give each column a distribution of its own" in said or "coupled by Reshape" in said


@pytest.mark.costly(cases=1)
def test_sets_that_are_filled_up_may_have_holes():
    model, x, y, is_row = ragged("filled up")
    found = log_likelihood(pms.marginalize(model, n_nodes=11), POINT)
    assert found == pytest.approx(exact_choices(x, y, is_row=is_row, **POINT), abs=2e-3)


@pytest.mark.parametrize("effects", ["centred", "not centred"])
@pytest.mark.costly(cases=1)
def test_effects_and_missing_values_of_persons_are_integrated_together_by_name(effects):
    model, exact, points = a_matrix_of_persons(effects=effects)
    found = assert_exact(model, exact, points, integrate=["z", "X_unobserved"])
    assert np.ptp(found) > 0.3


def test_missing_values_and_effects_of_several_rows_are_not_integrated_together():
    rng, _, x, _, y = data()
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("u"), shape=40)
        column = pm.Normal("x", pm.Normal("c"), 1, observed=holes(rng, x))
        pm.Normal("y", column + z[np.repeat(np.arange(40), 3)], 0.5, observed=y)
    with pytest.raises(TallModelError, match=r"2 groupings: .*Name those of one"):
        pms.marginalize(model, ["z", "x_unobserved"])
    with pytest.raises(ValueError, match="Missing values of 'x' are 'x_unobserved'"):
        pms.marginalize(model, "x")


def test_a_variable_as_long_as_what_is_missing_is_not_put_among_others():
    """It is multiplied with one that is, as a whole."""
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=3), pm.Normal("b", shape=3)
        x = pt.set_subtensor(pt.ones(N)[np.array([3, 5, 8])], b * a.sum())
        pm.Normal("y", x, 1, observed=np.ones(N))
    assert read(model).among_others == {"b"}


def test_without_holes_there_is_nothing_to_integrate():
    """A mask that is false, by PyMC and by hand: a variable without elements."""
    _, _, x, _, y = data()
    with pm.Model() as model:
        c = pm.Normal("c")
        column = pm.Normal("x", c, 1, observed=np.ma.masked_array(x, np.zeros(N, dtype=bool)))
        none = pm.Normal("none", c, 1, shape=0)
        other = pt.set_subtensor(pt.as_tensor(x)[np.zeros(N, dtype=bool)], none)
        pm.Normal("y", column + other, 0.5, observed=y)
    assert find_groupings(read(model))[1]["none"] == "has no elements"
    assert units_of(model, "auto", "HMCECS") is None
    with model:
        step = pms.HMCECS()
        draws = pm.sample(20, tune=20, chains=1, step=step, progressbar=False, random_seed=1)
    assert draws.posterior["none"].shape == (1, 20, 0)


@pytest.mark.parametrize(
    "case",
    [covariates_of_persons, covariates_and_effects_of_persons, a_column_of_which_rows_are_read],
)
@pytest.mark.costly(cases=1)
def test_what_is_missing_may_be_read_by_several_rows(case):
    model, exact, points = case()
    found = assert_exact(model, exact, points)
    assert np.ptp(found) > 0.3
    names = {v.name for v in pms.marginalize(model).free_RVs}
    assert names == set(points[0]) & {v.name for v in model.free_RVs}


def near(marginal):
    """The reference, and a point beside it, of variables."""
    at = marginal.initial_point()
    point = {n.removesuffix("_log__"): np.exp(x) if n.endswith("_log__") else x
             for n, x in at.items()}  # fmt: skip
    return [point, {name: 1.05 * x for name, x in point.items()}]


def assert_exact(model, exact, points, integrate="auto", n_nodes=11):
    marginal = pms.marginalize(model, integrate, n_nodes=n_nodes)
    points = points or near(marginal)
    found = np.array([log_likelihood(marginal, point) for point in points])
    expected = np.array([exact(**point) for point in points])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    return expected


def test_discrete_values_are_summed_over_exactly():
    """Two columns, with two and three values."""
    rng, _, _, _, y = data()
    smoker, kind = holes(rng, rng.random(N) < 0.4), holes(rng, rng.integers(0, 3, N))
    with pm.Model() as model:
        p, q = pm.Beta("p", 1, 1), pm.Dirichlet("q", np.ones(3))
        b, g, s = pm.Normal("b"), pm.Normal("g", shape=3), pm.HalfNormal("s")
        first = pm.Bernoulli("smoker", p, observed=masked(smoker))
        second = pm.Categorical("kind", q, observed=masked(kind))
        pm.Normal("y", b * first + g[second], s, observed=y)
    marginal = pms.marginalize(model)
    at = marginal.initial_point()
    b, g, s = at["b"], at["g"], np.exp(at["s_log__"])
    p = 1 / (1 + np.exp(-at["p_logodds__"]))
    q = np.exp([*at["q_simplex__"], -np.sum(at["q_simplex__"])])
    q /= q.sum()
    expected = 0.0
    for i in range(N):
        states = [
            (x, k)
            for x in ([0, 1] if np.isnan(smoker[i]) else [int(smoker[i])])
            for k in ([0, 1, 2] if np.isnan(kind[i]) else [int(kind[i])])
        ]
        expected += np.log(sum(
            (p if x else 1 - p) * q[k] * stats.norm.pdf(y[i], b * x + g[k], s) for x, k in states
        ))  # fmt: skip
    prior = marginal.compile_fn(marginal.logp(vars=marginal.free_RVs), inputs=marginal.value_vars)
    assert float(marginal.compile_logp()(at)) - float(prior(at)) == pytest.approx(expected)


def test_integers_may_be_missing_in_the_prior_of_others():
    """A number of rows of one column is none of those of another."""
    rng, _, _, _, y = data(60)
    one, other = holes(rng, rng.random(60) < 0.4), holes(rng, rng.random(60) < 0.5, 0.5)
    with pm.Model() as model:
        p, c, e, b = pm.Beta("p", 1, 1), pm.Normal("c"), pm.Normal("e"), pm.Normal("b")
        first = pm.Bernoulli("one", p, observed=masked(one))
        second = pm.Bernoulli("other", logit_p=c + e * first, observed=masked(other))
        pm.Normal("y", b * second, 0.5, observed=y)
    marginal = pms.marginalize(model)
    point = {"p": 0.3, "c": -0.4, "e": 1.2, "b": 0.8}
    each = []
    for k, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rate = 1 / (1 + np.exp(0.4 - 1.2 * k))
        found = np.log((0.7, 0.3)[k] * (rate if j else 1 - rate))
        fits = (np.isnan(one) | (one == k)) & (np.isnan(other) | (other == j))
        each.append(np.where(fits, found + stats.norm.logpdf(y, 0.8 * j, 0.5), -np.inf))
    expected = np.logaddexp.reduce(each).sum()
    assert log_likelihood(marginal, point) == pytest.approx(expected)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("columns", [2, 3])
def test_a_matrix_of_integers_is_summed_over_all_states_of_a_row(columns, apart):
    """Rows miss none, each and all of the columns: products of states differ from row to row.

    Or one column at most, some rows another than others.
    """
    rng, _, _, _, y = data(60)
    X = holes(rng, rng.random((60, columns)) < 0.4, 0.5)
    if apart:
        several = np.isnan(X) & (np.cumsum(np.isnan(X), axis=1) > 1)
        X[several] = 1.0
    gone = np.isnan(X)
    assert len(np.unique(gone, axis=0)) == (1 + columns if apart else 2**columns)
    with pm.Model() as model:
        p, b = pm.Beta("p", 1, 1, shape=columns), pm.Normal("b", shape=columns)
        observed = pm.Bernoulli("X", p, observed=masked(X))
        pm.Normal("y", 0.25 + observed @ b, 0.5, observed=y)
    point = {"p": np.array([0.3, 0.6, 0.8])[:columns], "b": np.array([0.8, -0.5, 1.3])[:columns]}
    states = np.array(list(product((0, 1), repeat=columns)))

    def exact(p):
        each = []
        for state in states:
            known = np.where(state == 1, np.log(p), np.log1p(-p)).sum()
            fits = (gone | (state == X)).all(axis=1)
            row = known + stats.norm.logpdf(y, 0.25 + state @ point["b"], 0.5)
            each.append(np.where(fits, row, -np.inf))
        return np.logaddexp.reduce(each).sum()

    marginal = pms.marginalize(model)
    assert log_likelihood(marginal, point) == pytest.approx(exact(point["p"]), abs=1e-6)
    assert abs(exact(point["p"]) - exact(point["p"][::-1])) > 0.5


def integers_and_numbers(apart, e, n=60):
    """A yes or no, and a number whose mean is higher by e given yes; apart: not in one row."""
    rng, _, x, _, y = data(n)
    smoker, x = holes(rng, rng.random(n) < 0.4), holes(rng, x)
    if apart:
        x[np.isnan(smoker)] = 0.3
    no_x, no_smoker = np.isnan(x), np.isnan(smoker)
    assert (no_x & no_smoker).any() != apart
    with pm.Model() as model:
        p, s, t = pm.Beta("p", 1, 1), pm.HalfNormal("s"), pm.HalfNormal("t")
        a, b, c, d = (pm.Normal(name) for name in "abcd")
        state = pm.Bernoulli("smoker", p, observed=masked(smoker))
        column = pm.Normal("x", c + e * state, t, observed=x)
        pm.Normal("y", a + b * column + d * state, s, observed=y)

    def rows(k, p, s, t, a, b, c, d):
        """Log densities of all rows if smoker is k where it is missing."""
        k = np.where(no_smoker, k, smoker)
        mean, sd = c + e * k, np.where(no_x, np.hypot(s, b * t), s)
        found = np.log(np.where(k > 0, p, 1 - p)) + np.where(
            no_x, 0, stats.norm.logpdf(np.nan_to_num(x), mean, t)
        )
        return found + stats.norm.logpdf(y, a + b * np.where(no_x, mean, x) + d * k, sd)

    def exact(**at):
        one, other = rows(0, **at), rows(1, **at)
        return np.where(no_smoker, np.logaddexp(one, other), one).sum()

    points = [{"p": 0.4, "s": 0.5, "t": 1.1, "a": 1.0, "b": b, "c": 0.5, "d": d}
              for b, d in ((0.6, 0.3), (0.5, 0.5))]  # fmt: skip
    return model, exact, points, rows, (x, y, no_x, no_smoker)


@pytest.mark.parametrize(("apart", "e"), [(True, 0.0), (False, 0.0), (False, 1.0)])
@pytest.mark.costly(cases=1)
def test_integers_and_numbers_are_missing_at_once(apart, e):
    model, exact, points, rows, _ = integers_and_numbers(apart, e)
    expected = assert_exact(model, exact, points)
    assert np.ptp(expected) > 0.5
    assert abs(sum(rows(0, **points[0])) - expected[0]) > 0.5


@pytest.mark.slow
def test_integers_and_numbers_are_drawn_together():
    """The state by its probability given what is known, the number given the state."""
    model, _, [point, *_], rows, (x, y, no_x, no_smoker) = integers_and_numbers(False, 1.0, 20)
    marginal = pms.marginalize(model)
    draws = 2_000
    found = pms.effects(result(point, draws), marginal, ["x", "smoker"], levels=list(range(len(x))))
    state = found["smoker"].to_numpy()[0]
    one, other = rows(0, **point), rows(1, **point)
    share = 1 / (1 + np.exp(one - other))
    z = (state.mean(axis=0) - share)[no_smoker] / np.sqrt(share * (1 - share) / draws)[no_smoker]
    assert np.abs(z).max() < stats.norm.isf(1e-5 / (2 * no_smoker.sum()))
    assert np.abs(share[no_smoker] - point["p"]).max() > 0.2
    summary = pms.effects(result(point, 400), marginal)
    shares = summary["smoker_unobserved_probability"].sel(smoker_unobserved_value=1)
    # Five standard errors: 1e-5 for twenty of them.
    assert np.abs(shares - share[no_smoker]).max() < 5 * np.sqrt(0.25 / 400)
    i = np.flatnonzero(no_x & no_smoker)[0]
    precision = 1 / point["t"] ** 2 + (point["b"] / point["s"]) ** 2
    for k in (0, 1):
        of_prior = (point["c"] + k) / point["t"] ** 2
        of_row = point["b"] * (y[i] - point["a"] - point["d"] * k) / point["s"] ** 2
        drawn = found["x"].to_numpy()[0, :, i][state[:, i] == k]
        own, shifted = (stats.norm((of_prior + of_row) / precision + by, precision**-0.5).cdf
                        for by in (0, 0.3))  # fmt: skip
        assert stats.kstest(drawn, own).pvalue > 1e-5
        assert stats.kstest(drawn, shifted).pvalue < 1e-5


@pytest.mark.costly
def test_rows_with_integers_and_numbers_missing_are_left_out_exactly():
    model, _, [point, *_], rows, (x, _, _, no_smoker) = integers_and_numbers(False, 0.0)
    at = {name: np.log(x) if name in "st" else x for name, x in point.items()}
    at["p"] = np.log(point["p"] / (1 - point["p"]))
    left, theta = left_out(pms.marginalize(model, n_nodes=9), at, "y")
    without = {**point, "s": 1e6}  # as if nothing were known of y
    one, other = (rows(k, **point) - rows(k, **without) for k in (0, 1))
    flat = stats.norm.logpdf(0, 0, 1e6)
    prior = [rows(k, **without) for k in (0, 1)]
    total = np.logaddexp(*(prior[k] + (one, other)[k] for k in (0, 1))) - np.logaddexp(*prior)
    expected = np.where(no_smoker, total, one) + flat
    np.testing.assert_allclose(left._values(np.arange(len(x)), theta)[:, 0], expected, atol=1e-3)


def test_logistic_outcomes_are_integrated_over():
    rng, z, x, _, y = data()
    x, y = holes(rng, x), (y > 1).astype(int)
    with pm.Model() as model:
        a, b, c, t = pm.Normal("a"), pm.Normal("b"), pm.Normal("c"), pm.HalfNormal("t")
        column = pm.Normal("x", c + 0.8 * z, t, observed=x)
        pm.Bernoulli("y", logit_p=a + b * column, observed=y)
    point = {"a": -0.2, "b": 0.9, "c": 0.5, "t": 0.8}
    marginal = pms.marginalize(model, n_nodes=15)

    def rows(i):
        def density(v):
            p = 1 / (1 + np.exp(0.2 - 0.9 * v))
            return (p if y[i] else 1 - p) * stats.norm.pdf(v, 0.5 + 0.8 * z[i], 0.8)

        return density(x[i]) if not np.isnan(x[i]) else integrate.quad(density, -15, 15)[0]

    expected = sum(np.log(rows(i)) for i in range(N))
    assert log_likelihood(marginal, point) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("spelling", ["set_subtensor", "concatenate", "columns"])
def test_spellings_of_what_is_missing_are_one(spelling):
    rng, _, x, _, y = data()
    x = np.r_[x[:80], np.full(40, np.nan)] if spelling == "concatenate" else holes(rng, x)
    gone = np.isnan(x)

    def written(model_of):
        with pm.Model() as model:
            a, b, c = (pm.Normal(name) for name in "abc")
            s, t = pm.HalfNormal("s"), pm.HalfNormal("t")
            pm.Normal("y", a + b * model_of(c, t), s, observed=y)
        return model

    def by_hand(c, t):
        new = pm.Normal("new", c, t, shape=int(gone.sum()))
        pm.Normal("known", c, t, observed=x[~gone])
        if spelling == "concatenate":
            return pt.concatenate([x[~gone], new])
        if spelling == "columns":
            both = pt.set_subtensor(pt.zeros((N, 2))[np.flatnonzero(gone), 1], new)
            return pt.set_subtensor(both[np.flatnonzero(~gone), 1], x[~gone])[:, 1]
        return pt.set_subtensor(pt.as_tensor(np.nan_to_num(x))[gone], new)

    point = {"a": 1, "b": 0.6, "c": 0.5, "s": 0.5, "t": 1.0}
    known = written(lambda c, t: pm.Normal("x", c, t, observed=x))
    models = known, written(by_hand)
    one, other = (pms.marginalize(model, n_nodes=7) for model in models)
    assert log_likelihood(one, point) == pytest.approx(log_likelihood(other, point), abs=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_rows_with_holes_read_groups_by_codes_of_any_type(dtype):
    rng, _, x, _, y = data()
    x, z = holes(rng, x), holes(rng, x)
    codes = (np.arange(N) % 10).astype(dtype)
    with pm.Model() as model:
        level = pm.Normal("level", shape=10)
        first = pm.Normal("x", level[codes], observed=x)
        second = pm.Normal("z", first + level[codes], observed=z)
        pm.Normal("y", first + second, observed=y)
    level, missing = find_groupings(read(model))[0]
    assert level.names == ["level"]
    assert level.levels == 10
    assert sorted(missing.names) == ["x_unobserved", "z_unobserved"]


@pytest.mark.parametrize("together", [True, False])
def test_parts_of_a_potential_that_do_not_read_what_is_missing_stay(together):
    rng, _, x, _, y = data()
    x, w = holes(rng, x), rng.normal(size=N)
    gone = np.isnan(x)
    with pm.Model() as model:
        b, c = pm.Normal("b"), pm.Normal("c")
        new = pm.Normal("new", shape=int(gone.sum()))
        column = pt.set_subtensor(pt.as_tensor(np.nan_to_num(x))[gone], new)
        reads = pm.logp(pm.Normal.dist(b * column), y).sum()
        other = pm.logp(pm.Normal.dist(c), w).sum()
        pm.Potential("p", reads + other if together else reads)
        if not together:
            pm.Potential("q", other)
    variance = np.where(gone, 1 + 0.3**2, 1)
    expected = stats.norm.logpdf(y, np.where(gone, 0, 0.3 * x), np.sqrt(variance)).sum()
    expected += stats.norm.logpdf(w, 0.5).sum()
    marginal = pms.marginalize(model, n_nodes=15)
    assert log_likelihood(marginal, {"b": 0.3, "c": 0.5}) == pytest.approx(expected, abs=1e-4)


def test_rows_without_what_is_missing_cost_no_integral():
    model, *_ = one_column()
    marginal = pms.marginalize(model)
    gone = int(model["x_unobserved"].shape.eval()[0])
    lengths = sorted(p.type.shape for p in marginal.potentials)
    assert lengths == sorted([(gone,), (N - gone,)])


def test_rows_that_miss_one_value_or_two_share_a_table():
    model, *_ = two_columns()
    lengths = [p.type.shape[0] for p in pms.marginalize(model).potentials]
    assert len(lengths) == 2
    assert sum(lengths) == N


# Draws of what is missing


def result(point, draws, **more):
    """A result in which each draw is the same point."""
    posterior = xr.Dataset({
        name: (["chain", "draw", *(f"{name}_{i}" for i in range(np.ndim(x)))],
               np.broadcast_to(x, (1, draws, *np.shape(x))).astype(float))
        for name, x in point.items()
    })  # fmt: skip
    return xr.DataTree.from_dict({"posterior": posterior, **more})


def test_draws_of_what_is_missing_are_those_of_its_posterior():
    model, _, [point, *_] = one_column()
    marginal = pms.marginalize(model)
    rng, z, x, _, y = data()
    gone = np.flatnonzero(np.isnan(holes(rng, x)))
    found = pms.effects(result(point, 4_000), marginal, "x_unobserved", levels=[0, 1, 2])
    a, b, c, d, s, t = (point[name] for name in "abcdst")
    for k in range(3):
        i = gone[k]
        precision = 1 / t**2 + (b / s) ** 2
        mean = ((c + d * z[i]) / t**2 + b * (y[i] - a) / s**2) / precision
        drawn = found["x_unobserved"].isel(x_unobserved_dim_0=k).to_numpy().ravel()
        own, shifted = (stats.norm(mean + by, precision**-0.5).cdf for by in (0, 0.2))
        assert stats.kstest(drawn, own).pvalue > 1e-5
        assert stats.kstest(drawn, shifted).pvalue < 1e-5


@pytest.mark.costly
def test_a_covariate_of_a_person_is_drawn_given_all_rows_of_that_person():
    model, _, [point, *_] = covariates_of_persons()
    rng, _, _, _, y = data()
    person = np.r_[np.arange(80), rng.integers(0, 80, N - 80)]
    gone = np.flatnonzero(np.isnan(holes(rng, rng.normal(size=80))))
    i = gone[np.argmax(np.bincount(person)[gone])]
    own = y[person == i]
    assert len(own) > 1
    found = pms.effects(result(point, 2_000), pms.marginalize(model), "x", levels=[i])
    a, b, c, s, t = (point[name] for name in "abcst")
    precision = 1 / t**2 + len(own) * (b / s) ** 2
    mean = (c / t**2 + b / s**2 * (own - a).sum()) / precision
    drawn = found["x"].to_numpy().ravel()
    right, shifted = (stats.norm(mean + by, precision**-0.5).cdf for by in (0, 0.2))
    assert stats.kstest(drawn, right).pvalue > 1e-5
    assert stats.kstest(drawn, shifted).pvalue < 1e-5


def test_columns_as_a_whole_have_what_was_observed_and_draws():
    model, _, [point, *_] = two_columns()
    marginal = pms.marginalize(model)
    rows = list(range(N))
    found = pms.effects(result(point, 50), marginal, ["x", "x_unobserved"], levels=rows[:20])
    sd = found["x"].std(("chain", "draw")).to_numpy()
    gone = np.flatnonzero(sd > 1e-9)
    assert 0 < len(gone) < 20
    drawn = found["x_unobserved"].isel(x_unobserved_dim_0=slice(len(gone))).to_numpy()
    np.testing.assert_array_equal(found["x"].to_numpy()[..., gone], drawn)
    summary = pms.effects(result(point, 50), marginal)
    assert set(summary) == {"x_unobserved", "w_unobserved"}


def test_missing_outcomes_are_drawn_given_all_others():
    """Of two variables that nothing observed depends on, and of one that the other is made of."""
    rng, _, x, _, _ = data()
    counts = holes(rng, rng.poisson(3, N))
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        rate = pm.Poisson("counts", pm.math.exp(a + b * x), observed=masked(counts))
        pm.Gamma("later", 2.0 + rate, 1.0)
    gone = np.isnan(counts)
    assert unread(model) == ["counts_unobserved", "later"]
    draw = UnreadDraws(model, unread(model))
    rng = np.random.default_rng(1)
    point = {"a": np.array(1.0), "b": np.array(0.3)}
    found = [draw.at(point, rng) for _ in range(2_000)]
    own = np.array([each["counts_unobserved"] for each in found])
    rates = np.exp(1 + 0.3 * x[gone])
    z = (own.mean(axis=0) - rates) / np.sqrt(rates / len(own))
    assert np.abs(z).max() < stats.norm.isf(1e-5 / (2 * gone.sum()))
    np.testing.assert_allclose(own.var(axis=0, ddof=1), rates, rtol=0.25)
    # The log of a gamma variable, whose shape is that of the same draw.
    [name] = [n for n in found[0] if n.startswith("later")]
    scaled = np.array([
        np.exp(each[name][gone]).mean() - (2 + each["counts_unobserved"]).mean() for each in found
    ])  # fmt: skip
    sd = np.sqrt((2 + rates).sum()) / gone.sum()
    assert abs(scaled.mean()) < 4.5 * sd / np.sqrt(len(found))


def test_what_is_read_is_not_left_out():
    model, *_ = one_column()
    assert unread(model) == []
    with pm.Model() as scalar:
        pm.Normal("alone")
        pm.Normal("y", pm.Normal("a"), 1, observed=np.zeros(5))
    assert unread(scalar) == []  # any sampler takes it along


# Runs


@pytest.mark.slow
def test_a_run_has_the_posterior_of_nuts(caplog):
    """An outcome, and one of two columns, missing in rows of their own; complete rows differ."""
    rng, z, x, _, y = data(300, seed=4)
    x[y > 1.2] = np.where(rng.random((y > 1.2).sum()) < 0.7, np.nan, x[y > 1.2])
    y = holes(rng, y, 0.1)
    with pm.Model() as model:
        a, b, c = (pm.Normal(name) for name in "abc")
        s, t = pm.HalfNormal("s"), pm.HalfNormal("t")
        column = pm.Normal("x", c + 0.8 * z, t, observed=x)
        pm.Normal("y", a + b * column, s, observed=y)
        nuts = pm.sample(1_000, chains=4, cores=1, progressbar=False, random_seed=1)
        idata = pm.sample(
            1_000, chains=4, cores=1, step=pms.HMCECS(), progressbar=False, random_seed=2
        )
    assert "nothing observed depends on y_unobserved" in caplog.text
    assert "x_unobserved integrated out" in caplog.text
    whole = ~(np.isnan(x) | np.isnan(y))
    design = np.column_stack([np.ones(whole.sum()), x[whole]])
    complete = np.linalg.lstsq(design, y[whole], rcond=None)[0]
    for name in [*"abcst", "x_unobserved", "y_unobserved"]:
        one, other = (tree.posterior[name].to_numpy() for tree in (idata, nuts))
        one, other = (values.reshape(4_000, -1) for values in (one, other))
        sd = other.std(axis=0)
        assert np.abs(one.mean(axis=0) - other.mean(axis=0)).max() < 0.25 * sd.max()
        assert np.abs((one.mean(axis=0) - other.mean(axis=0)) / sd).max() < 0.2
        np.testing.assert_allclose(one.std(axis=0), sd, rtol=0.15)
    off = (complete - [idata.posterior[name].mean() for name in "ab"]) / [
        idata.posterior[name].std() for name in "ab"
    ]
    assert np.abs(off).max() > 0.5  # as rows without what is missing say
    assert set(idata.posterior) == set(nuts.posterior)
    assert "units" not in str(pms.report(idata))
    found = pms.effects(idata, model)
    np.testing.assert_allclose(
        found["x_unobserved"].sel(statistic="mean"),
        idata.posterior["x_unobserved"].mean(("chain", "draw")), atol=0.15,
    )  # fmt: skip
    assert set(found) == {"x_unobserved", "y_unobserved"}
    one = pms.predict(idata, "x", model=model, draws=4_000)
    np.testing.assert_allclose(one["mean"], idata.posterior["x"].mean(("chain", "draw")))
    assert "FAIL" not in str(pms.audit(idata, model=model, draws=100))


def test_draws_are_the_same_when_made_again():
    model, *_ = one_column()
    with model:
        runs = [
            pm.sample(20, tune=20, chains=1, step=pms.HMCECS(), progressbar=False, random_seed=3)
            for _ in range(2)
        ]
    one, other = (run.posterior["x_unobserved"].to_numpy() for run in runs)
    np.testing.assert_array_equal(one, other)
    assert (one[0, 1:] != one[0, :-1]).all()


def left_out(marginal, at, term):
    """Rows of a term, to be left out, at a point of value variables."""
    integrals = integrals_of(marginal)
    functions = UnitFunctions(integrals.functions.graphs, apart=True)
    integrals = replace(integrals, functions=functions)
    names = [v.name.removesuffix("_log__").removesuffix("_logodds__")
             for v in functions.values.values()]  # fmt: skip
    theta = np.array([[at[name] for name in names]], dtype=float)
    graphs = functions.graphs
    terms = [graphs.reading.terms[i].name for i in graphs.grouping.index]
    return UnitsLeftOut(integrals, 1 + terms.index(term), theta, 1.0, None), theta


def test_rows_left_out_are_predicted_without_what_is_missing():
    model, _, [point, *_] = one_column()
    at = {name: np.log(x) if name in "st" else x for name, x in point.items()}
    left, theta = left_out(pms.marginalize(model, n_nodes=9), at, "y")
    found = left._values(np.arange(N), theta)[:, 0]
    rng, z, x, _, y = data()
    x = holes(rng, x)
    a, b, c, d, s, t = (point[name] for name in "abcdst")
    mean, gone = c + d * z, np.isnan(x)
    sd = np.where(gone, np.hypot(s, b * t), s)
    expected = stats.norm.logpdf(y, a + b * np.where(gone, mean, x), sd)
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.costly
def test_a_single_missing_value_is_drawn():
    model, _, [point, *_] = one_value()
    found = pms.effects(
        result(point, 2_000), pms.marginalize(model), ["x", "x_unobserved"], levels=[0]
    )
    with pytest.raises(ValueError, match="levels holds 1"):
        pms.effects(result(point, 10), pms.marginalize(model), "x_unobserved", levels=[1])
    _, z, x, _, y = data()
    precision = 1 / point["t"] ** 2 + (point["b"] / point["s"]) ** 2
    mean = (point["c"] + point["d"] * z[3]) / point["t"] ** 2
    mean += point["b"] * (y[3] - point["a"]) / point["s"] ** 2
    own, shifted = (stats.norm(mean / precision + by, precision**-0.5).cdf for by in (0, 0.2))
    drawn = found["x_unobserved"].to_numpy().ravel()
    assert stats.kstest(drawn, own).pvalue > 1e-5
    assert stats.kstest(drawn, shifted).pvalue < 1e-5
    np.testing.assert_array_equal(found["x"], x[0])


# Refusals


def refusal(model, **given):
    with model, pytest.raises((TallModelError, ValueError)) as caught:
        pms.HMCECS(**given)
    return str(caught.value)


def test_a_step_that_integrates_nothing_out_names_rows_and_remedy():
    model, *_ = one_column()
    said = refusal(model, integrate=False)
    assert "'x' has missing values in" in said
    assert 'integrate="auto"' in said


def test_what_shares_rows_with_an_effect_of_many_levels_is_refused():
    rng, _, x, _, y = data()
    g = rng.integers(0, 100, N)
    with pm.Model() as model:
        u, c = pm.HalfNormal("u"), pm.Normal("c")
        effect = pm.Normal("effect", 0, u, shape=100)
        column = pm.Normal("x", c, 1, observed=holes(rng, x))
        pm.Normal("y", column + effect[g], 0.5, observed=y)
    assert "'x_unobserved'" in (said := refusal(model))
    assert "several groupings" in said


def test_what_mixes_missing_values_is_refused_for_that_reason():
    _, _, x, _, y = data()
    with pm.Model() as model:
        column = pm.Normal("x", pm.Normal("c"), 1, observed=np.where(x > 1, np.nan, x))
        pm.Normal("y", column - column.mean(), 0.5, observed=y)
    said = refusal(model)
    assert "The missing values of 'x' cannot be integrated out: 'x_unobserved' is read as" in said


def test_parts_of_a_vector_are_refused():
    """PyMC has one joint density for what is known of a vector, and what is missing."""
    rng, _, x, w, y = data()
    with pm.Model() as model:
        mu, b = pm.Normal("mu", shape=2), pm.Normal("b", shape=2)
        both = pm.MvNormal("X", mu, np.eye(2), observed=holes(rng, np.column_stack([x, w])))
        pm.Normal("y", pm.math.dot(both, b), 0.5, observed=y)
    said = refusal(model)
    assert "The missing values of 'X' cannot be integrated out: 'X_unobserved' has a prior" in said
    assert "one by one" in said
