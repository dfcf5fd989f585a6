"""Linear predictors are found where there are any, and their affine forms are right."""

import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import MODELS, G, K, N, design, groups, row_gradient
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model import TallModel
from pymc_subsample.model.identity import extremes
from pymc_subsample.model.predictors import find_predictors

# Number of elements of the predictors that every row has its own value of, and of the shared ones.
EXPECTED = {
    "bernoulli_logit": (1, 0),
    "bernoulli_p": (1, 0),
    "bernoulli_probit": (1, 0),
    "binomial": (1, 0),
    "binomial_p": (1, 0),
    "poisson_offset": (1, 0),
    "negative_binomial": (1, 1),
    "normal": (1, 1),
    "normal_heteroscedastic": (2, 0),
    "normal_matrix_outcome": (4, 4),
    "gamma": (1, 1),
    "categorical_softmax": (4, 0),
    "categorical_logit": (3, 0),
    "ordered_logistic": (3, 0),
    "ordered_probit": (3, 0),
    "multinomial": (4, 0),
    "mvnormal_lkj": (3, 7),
    "truncated_normal": (1, 1),
    "censored_normal": (1, 1),
    "weibull": (1, 1),
    "zero_inflated_poisson": (1, 2),
    "intercepts_centred": (1, 1),
    "slopes_noncentred": (1, 0),
    "effects_crossed": (1, 0),
    "effects_nested": (1, 0),
    "item_response": (2, 0),
    "two_layer_network": (4, 10),
    "spline": (1, 1),
    "rows_last": (1, 0),
    "indicator_terms": (1, 0),
    "index_column_of_matrix": (1, 0),
    "dims_bernoulli": (1, 0),
    "dims_hierarchy": (1, 1),
    "bambi_groups": (1, 1),
    "bambi_categorical": (4, 0),
    "minibatch_groups": (1, 0),
}


def predictors_of(tall):
    offsets = {var: part.start for var, part in tall.phi_slices.items()}
    return find_predictors(tall.batch, offsets, partial(extremes, tall))


def count(predictors):
    if predictors is None:
        return None
    return tuple(sum(p.forms.size for p in predictors if p.shared == s) for s in (False, True))


def assert_right(tall):
    """Evaluate the affine forms and compare with the predictors' own values, in random rows."""
    predictors = predictors_of(tall)
    rng = np.random.default_rng(4)
    index, phi = rng.integers(0, tall.n_rows, 40), rng.uniform(0.2, 1, tall.phi_size)
    phi = np.sort(phi)  # thresholds among them
    columns = {}
    for v in tall.batch.columns:
        axis = tall.batch.axes[v]
        every = np.concatenate(list(tall.over_column(v, np.copy)), axis=axis)
        columns[v] = np.take(every, index, axis=axis)
    givens = columns | {
        v: phi[part].reshape(v.type.shape).astype(v.type.dtype)
        for v, part in tall.phi_slices.items()
    }

    def column(c):
        return evaluate([c.graph()], columns)[0] if c is not None else np.zeros(1, dtype=int)

    for predictor in predictors:
        [value] = evaluate([predictor.var], givens)
        value = np.moveaxis(value, predictor.axis, 0)
        assert value.shape[0] == (1 if predictor.shared else len(index))
        assert np.moveaxis(predictor.forms, predictor.axis, 0).shape == (1, *value.shape[1:])
        forms = np.moveaxis(predictor.forms, predictor.axis, 0).ravel()
        for form, expected in zip(forms, value.reshape(len(value), -1).T, strict=True):
            total = form.constant + sum(scale * column(c) for scale, c in form.offsets)
            for term in form.terms:
                group = column(term.group).astype(int)
                assert group.min() >= 0
                assert term.index + group.max() < tall.phi_size
                coefficient = 1 if term.coefficient is None else column(term.coefficient)
                assert np.isfinite(coefficient).all()
                total = total + term.scale * coefficient * phi[term.index + group]
            np.testing.assert_allclose(
                np.broadcast_to(total, expected.shape), expected, rtol=1e-10, atol=1e-10
            )

    # Nothing else of the parameters is needed.
    inputs = {p.var: p.var.type() for p in predictors}
    rows = rebuild(tall.batch.outputs, dict(inputs))
    assert not set(ancestors(rows)) & tall.phi_slices.keys()
    values = dict(zip(inputs.values(), evaluate([p.var for p in predictors], givens), strict=True))
    [expected] = evaluate(tall.batch.outputs, givens)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(evaluate(rows, columns | values)[0], expected, rtol=1e-10)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", list(MODELS))
def test_forms_equal_values(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tall = TallModel(MODELS[name](np.random.default_rng(1)))
    if name in EXPECTED:
        assert count(predictors_of(tall)) == EXPECTED[name]
    if predictors_of(tall) is not None:
        assert_right(tall)


def model_of(predictor, observed=None):
    """Return a model of normal outcomes with a predictor made by a function of a generator."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = predictor(rng)
        pm.Normal("y", mu, 1, observed=rng.normal(size=N) if observed is None else observed)
    return model


def effects(name="a", shape=G):
    return pm.Normal(name, 0, 1, shape=shape)


PREDICTORS = {
    "negative indices": lambda rng: effects()[groups(rng) - G],
    "mixed signs": lambda rng: effects()[groups(rng) - 2],
    "interaction": lambda rng: effects(shape=(G, 4))[groups(rng), groups(rng, 4)],
    "negative interaction": lambda rng: effects(shape=(G, 4))[groups(rng), -1 - groups(rng, 4)],
    "interaction of small integers": lambda rng: effects(shape=(G, 90))[
        groups(rng).astype("int8"), groups(rng, 90).astype("int8")
    ],
    "fixed level": lambda rng: effects(shape=(G, 4))[groups(rng), -1],
    "transposed table": lambda rng: effects(shape=(G, 4)).T[groups(rng, 4), groups(rng)],
    "column of a table": lambda rng: effects(shape=(G, 4))[:, 1][groups(rng)],
    "part of a vector": lambda rng: effects(shape=2 * G)[G:][groups(rng)],
    "every other": lambda rng: effects(shape=2 * G)[::2][groups(rng)],
    "reversed": lambda rng: effects()[::-1][groups(rng)],
    "shifted index in the graph": lambda rng: effects()[pt.as_tensor(groups(rng)) - 1],
    "products of columns": lambda rng: (
        effects("b") * pt.as_tensor(design(rng, G)) * rng.normal(size=(N, 1))
    ).sum(axis=1),
    "nested products": lambda rng: (
        (
            (effects("b", ()) * rng.normal(size=N) + effects("c", ()))
            * pt.as_tensor(rng.normal(size=N))
            - rng.normal(size=N)
        )
        / rng.uniform(1, 2, N)
    ),
    "chosen by data": lambda rng: pt.switch(
        rng.normal(size=N) > 0, effects("b", ()) * 2, effects("c", ()) + rng.normal(size=N)
    ),
    "hinge with missing logarithm": lambda rng: pt.switch(
        (x := pt.as_tensor(rng.normal(size=N))) > 0, effects("b", ()) * pt.log(x), 0.0
    ),
    "slopes by group": lambda rng: (effects(shape=(G, K))[groups(rng)] * design(rng)).sum(axis=1),
    "matrix of one column": lambda rng: pt.dot(design(rng), effects("b", (K, 1))).flatten(),
    "boolean column": lambda rng: effects("b", ()) * (rng.normal(size=N) > 0),
    "unsigned index": lambda rng: effects()[groups(rng).astype("uint8")],
}


@pytest.mark.costly(cases=5)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", list(PREDICTORS))
def test_spellings(name):
    tall = TallModel(model_of(PREDICTORS[name]))
    assert count(predictors_of(tall)) == (1, 0)
    assert_right(tall)


@pytest.mark.parametrize("length", [N, N - 1])
@pytest.mark.parametrize("columns", [(), (2,)], ids=str)
def test_as_many_parameters_as_rows(length, columns):
    """Whose axes are told from those of rows by where they come from, not by their length."""

    def table(rng):
        values = effects(shape=(length, *columns))[rng.integers(0, length, N)]
        return values.reshape((N, -1)).sum(axis=1)

    assert_right(TallModel(model_of(table)))


def test_a_square_design():
    X = np.random.default_rng(1).normal(size=(N, N))
    assert_right(TallModel(model_of(lambda rng: X @ effects("beta", N))))


def test_numbers_that_parameters_share_may_be_as_many_as_rows():
    """A covariance of as many items as there are rows, and a mean over them."""
    rng = np.random.default_rng(2)
    root = np.linalg.cholesky(np.cov(rng.normal(size=(N, 3 * N))))

    def items(rng):
        f = pt.dot(root, effects("f", N))
        return (f - f.mean())[rng.integers(0, N, N)]

    assert_right(TallModel(model_of(items)))


# Columns of small integers, whose products and sums overflow in their own type. PyMC meets a
# parameter first and computes in double precision.
PRODUCTS = {
    "b*A*B": lambda A, B, C, b, c: b * A * B,
    "A*(B*b)": lambda A, B, C, b, c: A * (B * b),
    "A*b*B*C": lambda A, B, C, b, c: A * b * B * C,
    "c+A*(b*B+c)": lambda A, B, C, b, c: c + A * (b * B + c),
    "switch*A": lambda A, B, C, b, c: pt.switch(pt.gt(B, 40), B * b, c) * A,
    "A*b*(A+B)": lambda A, B, C, b, c: A * b * (A + B),
    "b/A/B": lambda A, B, C, b, c: b / A / B,
    "b-A-B-C": lambda A, B, C, b, c: b - A - B - C,
    "mul(A,B,b)": lambda A, B, C, b, c: pt.mul(A, B, b),
}


def model_of_integers(predictor, dtype):
    """Return a model of three integer columns, and the same of the numbers in double precision."""
    rng = np.random.default_rng(1)
    columns = rng.integers(20, 60, (3, N)) * (1000 if dtype == "int32" else 1)
    y = rng.normal(size=N)
    models = []
    for kind in (dtype, "float64"):
        with pm.Model() as model:
            A, B, C = (
                pm.Data(name, x.astype(kind)) for name, x in zip("ABC", columns, strict=True)
            )
            b, c = pm.Normal("b", 0, 1e-3), pm.Normal("c", 0, 1e-3)
            pm.Normal("y", predictor(A, B, C, b, c), 10.0, observed=y)
        models.append(model)
    return models


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
@pytest.mark.parametrize("name", list(PRODUCTS))
def test_products_of_integers_do_not_overflow(name, dtype):
    narrow, wide = map(TallModel, model_of_integers(PRODUCTS[name], dtype))
    theta = np.array([0.02, -0.5])
    np.testing.assert_allclose(
        narrow.row_loglik(theta, slice(None)), wide.row_loglik(theta, slice(None)), rtol=1e-12
    )
    np.testing.assert_allclose(
        row_gradient(narrow, theta, slice(None)), row_gradient(wide, theta, slice(None))
    )
    assert_right(narrow)
