"""Functions of sums over sets of rows: the same log density with sets in the place of rows."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET

import pymc_subsample as pms
from pymc_subsample.model.row_sets import sets_side_by_side
from pymc_subsample.model.set_terms import SetTerm

SETS, PERSONS = 50, 9
_rng = np.random.default_rng(0)
_sizes = np.concatenate([[1, 1], _rng.integers(2, 9, SETS - 2)])
SET = _rng.permutation(np.repeat(np.arange(SETS), _sizes))
ROWS = len(SET)
X = _rng.normal(size=(ROWS, 3))
CHOSEN = np.array([_rng.choice(np.flatnonzero(j == SET)) for j in range(SETS)])
SOME = np.flatnonzero(_rng.random(ROWS) < 0.5)  # of a set none, one or several
ITEM, PERSON = _rng.integers(0, 7, ROWS), np.arange(SETS) % PERSONS
ANY = _rng.integers(0, ROWS, ROWS)
NEST = SET * 2 + np.arange(ROWS) % 2


def summed(x, n=SETS, index=SET):
    return pt.zeros((n, *x.type.shape[1:]))[index].inc(x)


def conditional_logit(u):
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(u))))


def read_by_rows(u):
    chosen = np.isin(np.arange(ROWS), CHOSEN)
    pm.Potential("choice", chosen * (u - pt.log(summed(pt.exp(u)))[SET]))


def rows_of_a_mask(u):
    p = pt.exp(u) / pt.inc_subtensor(pt.zeros(SETS)[SET], pt.exp(u))[SET]
    pm.Potential("choice", pt.log(p[np.isin(np.arange(ROWS), CHOSEN)]).sum())


def bincount(u):
    pm.Potential("choice", u[CHOSEN] - pt.log(pt.bincount(SET, weights=pt.exp(u), minlength=SETS)))


def outside_option(u):
    pm.Potential("choice", u[CHOSEN] - pt.log(pt.ones(SETS)[SET].inc(pt.exp(u))))


def several_chosen(u):
    pm.Potential("choices", (u - pt.log(summed(pt.exp(u)))[SET])[SOME])


def parts_of_a_sum(u):
    pm.Potential("choice", u[CHOSEN].sum() - 2 * pt.log(summed(pt.exp(u))).sum() + 3.0)


def beside_a_sum_of_parameters(u):
    penalty = pt.sqr(pm.Normal("a", 0, 1, shape=4)).sum()
    pm.Potential("choice", (u[CHOSEN] - pt.log(summed(pt.exp(u)))).sum() - penalty)


def two_sums(u):
    weight = _rng.gamma(2, size=SETS)
    pm.Potential("spread", -weight * (summed(u**2) - summed(u) ** 2 / np.bincount(SET)))


def sums_of_vectors(u):
    pm.Potential("moments", -(summed(X * u[:, None]) ** 2).sum(axis=1))


def mean_of_a_set(u):
    pm.Normal("y", summed(u) / np.bincount(SET), 1.0, observed=_rng.normal(size=SETS))


def censored_mean_of_a_set(u):
    y, s = np.clip(_rng.normal(size=SETS), -1, 1), pm.HalfNormal("s")
    pm.Censored("y", pm.Normal.dist(summed(u), s), lower=-1, upper=1, observed=y)


def conditional_poisson(u):
    total, e = _rng.poisson(20, SETS), pt.exp(u)
    pm.Poisson("y", total[SET] * e / summed(e)[SET], observed=_rng.poisson(3, ROWS))


def effects_of_rows_and_sets(u):
    z, w = pm.Normal("z", 0, 1, shape=7), pm.Normal("w", 0, 1, shape=PERSONS)
    u = u + z[ITEM] + w[PERSON[SET]] * X[:, 1]
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(u))) + 0.1 * w[PERSON])


def data_of_the_model(u):
    of = pm.Data("set", SET)
    pm.Potential("choice", u[pm.Data("chosen", CHOSEN)] - pt.log(summed(pt.exp(u), index=of)))


def sets_without_rows(u):
    of = np.where(SET == 4, 3, SET)
    pm.Potential("choices", u - pt.log(summed(pt.exp(u), index=of)[of]))


def sets_of_one_row_each(u):
    own = np.arange(ROWS)
    pm.Potential("choice", u - pt.log(1 + summed(pt.exp(u), ROWS, own)[own]))


def as_many_sets_as_rows(u):
    """Numbers of rows and of sets are the same: which an axis has follows from what reads it."""
    total = summed(pt.exp(u), ROWS, ANY)
    pm.Poisson("y", 1 + total, observed=_rng.poisson(2, ROWS))


def as_many_sets_of_which_some_are_read(u):
    first = np.unique(ANY, return_index=True)[1]
    pm.Potential("choice", u[first] - pt.log(summed(pt.exp(u), ROWS, ANY)[ANY[first]]))


def parameters_of_each_row_and_set(u):
    u = u + pm.Normal("e", 0, 1, shape=ROWS)
    a, w = pm.Normal("a"), pm.Normal("w", 0, 1, shape=SETS)
    outside = pt.exp(w) + pt.full((SETS,), pt.exp(a))[SET].inc(pt.exp(u))
    pm.Potential("choice", u[CHOSEN] * w - pt.log(outside))


def sums_that_are_read_when_observed(u):
    first = pm.Normal("first", u, 1.0, observed=X[:, 1])
    second = pm.Normal("second", summed(first * u), 1.0, observed=_rng.normal(size=SETS))
    pm.Normal("third", second * u[0], 1.0, observed=_rng.normal(size=SETS))
    pm.Deterministic("left", second - summed(u))


def nests_of_sets(u):
    """Nested logit (McFadden, 1978), with a scale of nests; some nests of a set are empty."""
    scale = pm.Uniform("scale", 0.2, 1)
    nest, of = np.unique(NEST, return_inverse=True)
    inclusive = scale * pt.log(summed(pt.exp(u / scale), len(nest), of))
    of_nest = (u / scale - inclusive[of] / scale)[CHOSEN]
    total = pt.log(summed(pt.exp(inclusive), SETS, nest // 2))
    pm.Potential("choice", of_nest + inclusive[of[CHOSEN]] - total)


def nests_by_rows(u):
    """The same by sums over rows alone."""
    scale = pm.Uniform("scale", 0.2, 1)
    weight = pt.exp(u / scale)
    rows = weight * (summed(weight, 2 * SETS, NEST) ** (scale - 1))[NEST]
    pm.Potential("choice", pt.log(rows[CHOSEN]) - pt.log(summed(rows)))


def sums_of_sums(u):
    inclusive = pt.log(summed(pt.exp(u), 2 * SETS, NEST) + 1e-9)
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(inclusive), SETS, np.arange(100) // 2)))


TERMS = [
    nests_of_sets, nests_by_rows, sums_of_sums,
    conditional_logit, read_by_rows, rows_of_a_mask, bincount, outside_option, several_chosen,
    parts_of_a_sum, beside_a_sum_of_parameters, two_sums, sums_of_vectors, mean_of_a_set,
    conditional_poisson, effects_of_rows_and_sets, data_of_the_model, sets_without_rows,
    censored_mean_of_a_set, sets_of_one_row_each, parameters_of_each_row_and_set,
    sums_that_are_read_when_observed, as_many_sets_as_rows, as_many_sets_of_which_some_are_read,
]  # fmt: skip


def built(term):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        term(X @ b)
    return model


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.__name__)
def test_log_density_and_its_gradient_are_those_of_the_model(term):
    model = built(term)
    sets = sets_side_by_side(model)
    assert sets is not model
    if term is not sets_of_one_row_each:
        assert not any(n == ROWS for v in sets.potentials for n in v.type.shape)
    names = [v.name for v in model.free_RVs]
    gradient, same = (m.compile_dlogp([m[name] for name in names]) for m in (sets, model))
    for _ in range(2):
        point = {
            name: value + _rng.normal(size=np.shape(value), scale=0.5)
            for name, value in model.initial_point().items()
        }
        np.testing.assert_allclose(sets.compile_logp()(point), model.compile_logp()(point))
        np.testing.assert_allclose(gradient(point), same(point), rtol=1e-7, atol=1e-7)


def test_sets_are_what_is_subsampled_and_their_rows_are_no_rows():
    tall = pms.model.TallModel(built(conditional_logit))
    assert tall.n_rows == SETS


def reads_another_set(u):
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(u)))[::-1])


def adds_up_what_belongs_to_other_sets(u):
    of_others = summed(u)[(SET + 1) % SETS]
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(of_others))))


def reads_all_sets(u):
    pm.Potential("choice", u[CHOSEN] - pt.log(summed(pt.exp(u))) - pt.cumsum(summed(u)))


def adds_the_last_of_each_set(u):
    last = pt.inc_subtensor(pt.zeros(SETS)[SET], pt.exp(u), ignore_duplicates=True)
    pm.Potential("choice", u[CHOSEN] - pt.log(last))


@pytest.mark.parametrize(
    "term",
    [
        reads_another_set,
        adds_up_what_belongs_to_other_sets,
        reads_all_sets,
        adds_the_last_of_each_set,
    ],
    ids=lambda term: term.__name__,
)
def test_sets_that_depend_on_each_other_are_refused(term):
    model = built(term)
    assert sets_side_by_side(model) is model
    with pytest.raises(pms.TallModelError, match="'choice' are coupled by"):
        pms.HMCECS(model=model)


def crosses_sets(u):
    pm.Potential("choice", summed(u) ** 2 - summed(u, 70, ANY % 70).sum())


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (
            lambda u: pm.Potential("c", u[CHOSEN] - pt.log(summed(pt.exp(u - u.max())))),
            "reads the largest .* of all rows",
        ),
        (
            lambda u: pm.Potential("c", u[np.roll(CHOSEN, 1)] - pt.log(summed(pt.exp(u)))),
            "element 0 is of set 0 by one index, and of set 49 by another|element 0 is of set 49",
        ),
        (crosses_sets, "are not within those of another"),
        (lambda u: pm.Potential("c", pt.stack([u[j == SET].max() for j in range(60)])), "inc"),
    ],
)
def test_why_sums_over_sets_are_not_followed_is_said_first(term, said):
    with pytest.raises(pms.TallModelError, match=said):
        pms.HMCECS(model=built(term))


def test_sets_that_are_read_in_another_way_are_found_out(monkeypatch):
    made = SetTerm.potentials
    monkeypatch.setattr(
        SetTerm, "potentials", lambda *given: {n: 1.001 * x for n, x in made(*given).items()}
    )
    with pytest.raises(pms.TallModelError, match="put together by sets, where the model has"):
        sets_side_by_side(built(conditional_logit))


def test_an_index_that_goes_beyond_the_sets_is_refused_by_its_numbers():
    model = built(lambda u: pm.Potential("choice", summed(pt.exp(u), index=SET + 1)))
    with pytest.raises(pms.TallModelError, match=f"'choice' adds up.* goes to {SETS}.*of {SETS}"):
        pms.HMCECS(model=model)


def test_an_index_that_counts_sets_from_the_end_is_refused_by_its_numbers():
    model = built(
        lambda u: pm.Potential("choice", u - pt.log(summed(pt.exp(u), index=SET - 1))[SET])
    )
    with pytest.raises(pms.TallModelError, match=r"'choice' adds up by an index .* down to -1"):
        pms.HMCECS(model=model)


def test_sets_without_rows_are_none():
    sets = sets_side_by_side(built(sets_without_rows))
    assert sum(v.type.shape[0] for v in sets.potentials) == SETS - 1


def choices(n_sets, persons=0, seed=1):
    """Return a model of choices between 2 and 6 products, with prices in their own units."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(n_sets), rng.integers(2, 7, n_sets))
    quality, price = rng.normal(size=len(of)), rng.gamma(4, 8, len(of))
    person = np.arange(n_sets) % max(persons, 1)
    taste = rng.normal(size=max(persons, 1)) * (0.8 if persons else 0.0)
    u = (0.7 + taste[person[of]]) * quality - 0.05 * price + rng.gumbel(size=len(of))
    order = np.lexsort((-u, of))
    chosen = order[np.unique(of[order], return_index=True)[1]]
    with pm.Model() as model:
        mean, cost = pm.Normal("mean", 0, 1), pm.Normal("cost", 0, 1)
        own = mean
        if persons:
            spread = pm.HalfNormal("spread", 1)
            own = mean + spread * pm.Normal("z", 0, 1, shape=persons)[person[of]]
        u = own * quality + cost * price
        pm.Potential("choice", u[chosen] - pt.log(pt.zeros(n_sets)[of].inc(pt.exp(u))))
    return model


def agree(one, other, names):
    """Means and sds differ by at most five standard errors, by the effective draws of each."""
    for name in names:
        a, b = (run.posterior[name].to_numpy() for run in (one, other))
        mean, sd = (
            sum(1 / np.asarray(az.ess(run, var_names=name, method=m)[name]) for run in (one, other))
            for m in ("mean", "sd")
        )
        a, b = (x.reshape(-1, *x.shape[2:]) for x in (a, b))
        scale = b.std(axis=0)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 5 * scale * np.sqrt(mean)), name
        assert np.all(np.abs(np.log(a.std(axis=0) / scale)) < 5 * np.sqrt(sd / 2)), name


def sampled(model, step=None, **more):
    run = pm.sample(
        1000, tune=1000, chains=2, cores=1, random_seed=2, model=model, step=step, **QUIET, **more
    )
    for name, ess in pm.ess(run).items():
        assert np.all(ess > 400), name
    return run


@pytest.mark.slow
@pytest.mark.parametrize("step", [pms.HMCECS, pms.ScalableMH])
def test_draws_of_choices_agree_with_nuts(step):
    model = choices(3000)
    found, wanted = sampled(model, step(model=model, rng=1)), sampled(model)
    agree(found, wanted, ["mean", "cost"])
    assert pms.report(found).status == "pass"


@pytest.mark.slow
def test_persons_tastes_are_integrated_out_and_drawn():
    model = choices(1200, persons=200)
    found, wanted = sampled(model, pms.HMCECS(model=model, rng=1)), sampled(model)
    agree(found, wanted, ["mean", "cost", "spread", "z"])


@pytest.mark.slow
def test_draws_of_a_flatter_posterior_do_not_agree():
    model = choices(3000)
    flat = sampled(model, pms.HMCECS(model=model, temperature=2.0, rng=1))
    with pytest.raises(AssertionError, match="mean"):
        agree(flat, sampled(model), ["mean", "cost"])


@pytest.mark.costly(cases=1)
def test_choices_are_left_out_one_by_one():
    model = choices(400)
    with model:
        run = pm.sample(
            500, tune=500, chains=2, cores=1, random_seed=3, step=pms.HMCECS(rng=3), **QUIET
        )
        found = pms.loo(run)
    assert found.n_data_points == 400
