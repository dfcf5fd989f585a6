"""The batch log-likelihood equals PyMC's own on the same rows, for every model of the bank."""

import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import LARGE_DETERMINISTIC, MODELS, N, minibatch_normal, row_gradient
from pymc.pytensorf import compile as compile_function
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample.chain.memory import warn_of_rows
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.rows.row_store import RowStore

PYTHON = Mode("py", "fast_compile")


def full_model(factory):
    """The model with `pm.Minibatch` passing on all rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pm, "Minibatch", lambda *data, batch_size: data if data[1:] else data[0])
        return factory(np.random.default_rng(1))


def reference(model):
    """PyMC's log-likelihood of each row, and the gradient of the sum over the rows `idx`."""
    terms = model.logp(vars=model.observed_RVs + model.potentials, sum=False)
    terms = [pt.as_tensor(term, allow_xtensor_conversion=True) for term in terms]
    values = model.value_vars
    names = [value.name for value in values]
    point = [model.initial_point()[name] for name in names]
    compiled = partial(compile_function, mode=PYTHON, on_unused_input="ignore")
    shapes = [list(shape) for shape in compiled(values, [term.shape for term in terms])(*point)]
    rows = sum(
        pt.moveaxis(term, shape.index(N), 0).reshape((N, -1)).sum(axis=1)
        for term, shape in zip(terms, shapes, strict=True)
        if N in shape
    )
    idx = pt.lvector("idx")
    gradients = pt.grad(
        rows[idx].sum(), values, disconnected_inputs="ignore", return_disconnected="none"
    )
    gradients = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
    function = compiled([*values, idx], [rows[idx], *gradients.values()])

    def evaluate(point, idx):
        loglik, *gradient = function(*[point[name] for name in names], idx)
        zeros = {name: np.zeros_like(value) for name, value in point.items()}
        return loglik, zeros | dict(zip(gradients, gradient, strict=True))

    return evaluate


def of_large_deterministics(caught):
    return any("GB per 1,000 draws" in str(warning.message) for warning in caught)


@pytest.fixture(scope="module", params=list(MODELS))
def case(request):
    factory, rng = MODELS[request.param], np.random.default_rng(2)
    full = full_model(factory)
    start = full.initial_point()
    points = [start] + [
        {name: np.asarray(x + 0.3 * rng.normal(size=x.shape)) for name, x in start.items()}
        for _ in range(3)
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = factory(np.random.default_rng(1))
        tall = TallModel(model)
    return SimpleNamespace(
        name=request.param,
        model=model,
        tall=tall,
        full=full,
        points=points,
        indices=[rng.integers(0, N, m) for m in (1, 20, 150)],
        warned=of_large_deterministics(caught),
    )


def assert_equal(actual, expected):
    expected = np.asarray(expected)
    assert np.shape(actual) == expected.shape
    assert np.isfinite(expected).all()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.costly(cases=1)
def test_structure(case):
    assert case.tall.n_rows == N
    names = [value.name for value in case.tall.value_vars]
    assert names == [value.name for value in case.model.value_vars]
    theta = case.tall.ravel(case.points[0])
    assert theta.dtype == np.float64
    assert_equal(theta, np.concatenate([np.ravel(case.points[0][name]) for name in names]))


@pytest.mark.costly(cases=1)
def test_rows_equal_the_full_model(case):
    evaluate = reference(case.full)
    for point in case.points:
        theta = case.tall.ravel(point)
        for idx in case.indices:
            values, gradients = evaluate(point, idx)
            assert_equal(case.tall.row_loglik(theta, idx), values)
            assert_equal(row_gradient(case.tall, theta, idx), case.tall.ravel(gradients))


@pytest.mark.costly(cases=1)
def test_prior_and_rows_sum_to_the_full_model(case):
    logp = case.full.compile_logp(mode=PYTHON)
    for point in case.points:
        theta = case.tall.ravel(point)
        rows = case.tall.row_loglik(theta, np.arange(N))
        assert_equal(case.tall.logprior(theta) + rows.sum(), logp(point))


@pytest.mark.costly(cases=2)
def test_rows_do_not_depend_on_their_company(case):
    theta, idx = case.tall.ravel(case.points[1]), case.indices[1]
    order = np.random.default_rng(3).permutation(len(idx))
    rows = case.tall.row_loglik(theta, idx)
    assert_equal(case.tall.row_loglik(theta, idx[order]), rows[order])
    assert_equal(case.tall.row_loglik(theta, idx[:7]), rows[:7])


def test_large_deterministics_are_warned_of_where_a_run_follows(case):
    assert not case.warned
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_rows(case.model, case.tall)
    assert of_large_deterministics(caught) == (case.name in LARGE_DETERMINISTIC)


def test_observed_are_the_row_variables():
    expected = {
        "two_outcomes": {"positive", "amount"},
        "small_unsubsampled_outcome": {"y"},
        "outcome_and_potential": {"y", "smaller_than_three"},
        "potential_only": {"loglik"},
    }
    for name, observed in expected.items():
        model = MODELS[name](np.random.default_rng(1))
        assert set(TallModel(model).likelihood) == observed


def test_observed_chosen_by_name():
    model = MODELS["two_outcomes"](np.random.default_rng(1))
    tall = TallModel(model, likelihood=["amount"])
    assert tuple(tall.likelihood) == ("amount",)
    point = model.initial_point()
    theta = tall.ravel(point)
    total = tall.logprior(theta) + tall.row_loglik(theta, np.arange(N)).sum()
    assert_equal(total, model.compile_logp(mode=PYTHON)(point))


def test_dim_chosen_by_name():
    model = MODELS["data_containers_with_dims"](np.random.default_rng(1))
    assert TallModel(model, dim="obs").n_rows == N


def test_minibatch_keeps_the_order_of_the_users_model():
    model = minibatch_normal(np.random.default_rng(1))
    assert [v.name for v in TallModel(model).value_vars] == ["beta", "sigma_log__"]


def test_total_size_weighs_what_is_not_a_minibatch():
    rng = np.random.default_rng(1)
    y, z = rng.normal(size=N), rng.normal(size=50)

    def build():
        with pm.Model() as model:
            a = pm.Normal("a")
            pm.Normal("y", a, observed=pm.Minibatch(y, batch_size=10), total_size=N)
            pm.Normal("z", a, observed=z, total_size=500)
            pm.Normal("w", a, 2, observed=pm.Minibatch(y, batch_size=10), total_size=3 * N)
        return model

    tall, theta = TallModel(build()), np.array([0.3])
    normal = pm.logp(pm.Normal.dist(0.3, 1), z).eval(mode=PYTHON)
    assert_equal(tall.logprior(theta), pm.logp(pm.Normal.dist(), 0.3).eval(mode=PYTHON))
    rows = sum(
        weight * pm.logp(pm.Normal.dist(0.3, sd), y).eval(mode=PYTHON)
        for weight, sd in ((1, 1), (3, 2))
    )
    rows = np.concatenate([rows, 10 * normal])
    assert_equal(tall.row_loglik(theta, slice(None)), rows)


@pytest.mark.costly
def test_steps_warn_of_terms_that_read_many_numbers():
    """Who reads them but a few times, as `loo`, is silent: the term belongs where it is."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Potential("penalty", -pt.sqrt(((rng.normal(size=20_000) * b - 1) ** 2).sum()))
        pm.Potential("small", -(b**2))
        pm.Normal("y", b, observed=rng.normal(size=N))
    with pytest.warns(UserWarning, match=r"'penalty' .* reads 20,000 numbers") as caught:
        pms.HMCECS(model=model)
    assert not any("'small'" in str(w.message) for w in caught)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TallModel(model)


def exponential(y, **kwargs):
    with pm.Model() as model:
        rate = pm.Normal("rate", 0, 1, **kwargs)
        pm.Exponential("y", rate, observed=y)
    return model


def test_minibatch_keeps_initial_values():
    y = np.random.default_rng(1).exponential(size=N)
    model = exponential(pm.Minibatch(y, batch_size=10), initval=3.0)
    assert TallModel(model).initial_point["rate"] == 3.0
    assert model.rvs_to_initial_values[model["rate"]] == 3.0


def test_start_given():
    model = exponential(np.random.default_rng(1).exponential(size=N))
    with pytest.raises(TallModelError, match="-inf at the initial point"):
        TallModel(model)
    assert TallModel(model, initial_point={"rate": 2}).initial_point["rate"] == 2.0
    with pytest.raises(ValueError, match="'speed', which is not a value variable"):
        TallModel(model, initial_point={"speed": 2.0})
    with pytest.raises(ValueError, match="shape"):
        TallModel(model, initial_point={"rate": [2.0]})


def test_fingerprint_tells_data_apart():
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=(5000, 3)), rng.integers(0, 5, 5000).astype("int8")

    def fingerprint(*columns):
        return RowStore(columns, 5000).fingerprint

    assert fingerprint(x, g) == fingerprint(np.asfortranarray(x), g.copy())
    one_number, reordered = x.copy(), rng.permutation(5000)
    one_number[1234, 1] += 1e-12
    others = [(one_number, g), (x[reordered], g[reordered]), (x, g.astype("int16")), (g, x), (x,)]
    assert len({fingerprint(*columns) for columns in [(x, g), *others]}) == 6
    assert len(fingerprint(np.ones(5000, "bool"), np.ones(5000, "longdouble"))) == 64


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize(
    "name",
    ["bernoulli_logit", "bernoulli_p", "binomial", "poisson_offset", "negative_binomial", "weibull"]
    + ["normal", "categorical_softmax", "multinomial", "item_response", "bambi_bernoulli"],
)
def test_common_models_check_nothing_per_row(name):
    """Checks that hold for any parameters cost nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tall = TallModel(MODELS[name](np.random.default_rng(1)))
    [rows] = tall.batch.outputs
    assert elemwise_name(rows.owner) != "Switch" or -np.inf not in [
        i.data for i in rows.owner.inputs if isinstance(i, Constant)
    ]


def test_divisor_that_is_always_zero():
    with pm.Model() as model:
        scale, z = pm.HalfNormal("s"), pm.Data("z", np.zeros(N))
        sd = pt.switch(pt.gt(z, 0), scale / z, scale)
        pm.Normal("y", 0, sd, observed=np.random.default_rng(1).normal(size=N))
    logp = model.compile_logp(mode=PYTHON)({"s_log__": np.array(0.3)})
    tall, theta = TallModel(model), np.array([0.3])
    assert_equal(tall.logprior(theta) + tall.row_loglik(theta, slice(None)).sum(), logp)


def test_probabilities_are_kept_from_what_rounding_makes_of_them_alone():
    """A guard against p = 1 goes, and log(1 - p) is exact beyond; a guard that changes p stays."""
    x, y = np.array([1.0, 40.0, -800.0, 0.0]), np.array([0, 0, 1, 0])

    def rows(guard):
        with pm.Model() as model:
            p = pm.math.invlogit(pm.Normal("a", 0, 1) * x)
            pm.Bernoulli("y", guard(p), observed=y)
        return TallModel(model).row_loglik(np.ones(1), slice(None))

    def kept(p, eps=1e-16):
        p = pt.switch(pt.eq(p, 0), eps, p)
        return pt.switch(pt.eq(p, 1), 1 - eps, p)

    expected = [-np.log1p(np.e), -40.0, -800.0, -np.log(2)]
    np.testing.assert_allclose(rows(kept), expected, rtol=1e-14)
    raised = [-np.log1p(np.e), np.log(1e-3), np.log(1e-3), -np.log(2)]
    np.testing.assert_allclose(rows(lambda p: pt.clip(p, 1e-3, 1 - 1e-3)), raised, rtol=1e-12)
    changed = rows(lambda p: pt.switch(pt.eq(p, 0.5), 0.25, p))
    np.testing.assert_allclose(changed[-1], np.log(0.75), rtol=1e-12)


@pytest.mark.costly(cases=0)
def test_more_terms_than_numpy_has_operands():
    """In the prior and in a row, written out one by one."""
    x = np.random.default_rng(1).normal(size=(60, 70))
    with pm.Model() as model:
        b = [pm.Normal(f"b{i}", i / 70, 2) for i in range(70)]
        eta = pt.add(*(b[i] * x[:, i] for i in range(70)))
        pm.Bernoulli("y", logit_p=eta, observed=x[:, 0] > 0)
    tall = TallModel(model)
    theta = np.random.default_rng(2).normal(size=tall.size)
    found = tall.row_loglik(theta, slice(None)).sum() + tall.logprior(theta)
    assert np.isclose(found, model.compile_logp()(tall.unravel(theta)), rtol=1e-12)


def test_a_parameter_chooses_from_numbers():
    """An index that is a parameter is no part of the table's rows."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=50)
    levels = np.array([0.0, 0.5, 1.0])
    with pm.Model() as model:
        z = pm.Categorical("z", np.ones(3) / 3)
        a = pm.Normal("a")
        pm.Normal("y", a * x + pm.math.stack(list(levels))[z], 1.0, observed=x)
    tall = TallModel(model)
    for k in range(3):
        theta = tall.ravel({"z": np.array(k), "a": np.array(0.3)})
        found = tall.row_loglik(theta, slice(None))
        np.testing.assert_allclose(found, norm.logpdf(x, 0.3 * x + levels[k]), rtol=1e-12)


@pytest.mark.costly
@pytest.mark.parametrize("log_sd", [-3.0, -19.0, -25.0])
def test_covariances_that_are_nearly_singular_are_read_by_their_factor(log_sd):
    """Factorised anew, a product loses half the digits of its factor, and then fails."""
    y = np.random.default_rng(1).normal(size=(N, 2))
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
        pm.MvNormal("y", np.zeros(2), chol=chol, observed=y)
    at = np.array([0.0, 1.0, log_sd])
    found = TallModel(model).row_loglik(at, np.arange(N))
    z = y[:, 1] - y[:, 0]
    expected = norm.logpdf(y[:, 0]) + norm.logpdf(z / np.exp(log_sd)) - log_sd
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("constant", [True, False])
def test_a_factor_beyond_its_triangle_is_read_as_pymc_does(constant):
    """Its lower triangle; of constants, the factor of the covariance that they make."""
    rng = np.random.default_rng(1)
    y, upper = rng.normal(size=(N, 2)), np.array([[1.0, 0.5], [0.0, 0.8]])
    with pm.Model() as model:
        mean, s = pm.Normal("mean"), pm.HalfNormal("s")
        pm.MvNormal("y", mean * np.ones(2), chol=upper if constant else s * upper, observed=y)
        pm.Normal("z", 0, s, observed=y[:, 0])
    tall = TallModel(model, likelihood="y")
    [rows] = model.compile_fn(model.logp(vars=[model["y"]], sum=False), inputs=model.value_vars,
                              on_unused_input="ignore")({"mean": 0.2, "s_log__": -0.3})  # fmt: skip
    at = np.concatenate([np.ravel({"mean": 0.2, "s_log__": -0.3}[v.name]) for v in tall.value_vars])
    np.testing.assert_allclose(tall.row_loglik(at, np.arange(N)), rows, rtol=1e-12)
