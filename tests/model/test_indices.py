"""Negative codes of rows, which read parameters from their end, are told; others are not."""

import re
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_subsample as pms
from pymc_subsample.model import TallModel

N, LEVELS = 400, ["a", "b", "c", "d", "e"]
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 5, N)
SOME = np.where(RNG.random(N) < 0.1, -1, CODES)
GROUPS = RNG.integers(0, 6, N)


def model_of(write):
    with pm.Model(coords={"level": LEVELS}) as model:
        z, w = pm.Normal("z", dims="level"), pm.Normal("w", shape=5)
        pm.Normal("y", write(z, w), 1.0, observed=np.linspace(-1, 1, N))
    return model


def told(write):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TallModel(model_of(write))
    return [str(w.message) for w in caught if w.category is UserWarning]


def data(name, value):
    return pm.Data(name, value)


WRONG = {
    "array": (lambda z, w: z[SOME], SOME, r"An index of shape \(400,\)", r" of 'z' \('e'\)\."),
    "pandas": (
        lambda z, w: z[pd.Categorical(np.array(LEVELS)[CODES], LEVELS[:4]).codes],
        np.where(CODES == 4, -1, 0), "An index", r" of 'z' \('e'\)\.",
    ),
    "pm.Data": (
        lambda z, w: z[data("g", SOME.astype("int8"))], SOME, "pm.Data 'g', an index,", " of 'z'"
    ),
    "of two": (lambda z, w: pt.exp(w)[SOME] + z[SOME], SOME, "An index", " of '[wz]'.* and '[wz]'"),
    "scaled": (lambda z, w: (w.sum() * z)[SOME], SOME, "An index", " of '[wz]'.* and '[wz]'"),
    "a level of levels": (
        lambda z, w: w[pt.constant(np.array([0, 1, 2, -1, 4, 3]))[data("g", GROUPS)]],
        np.where(GROUPS == 3, -1, 0), "An index that is made of pm.Data 'g'", " of 'w'",
    ),
    "of several": (
        lambda z, w: z[np.c_[CODES, SOME]].sum(axis=1), SOME, r"shape \(400, 2\)", " of 'z'"
    ),
    "of some rows": (
        lambda z, w: pt.switch(GROUPS > 0, z[data("g", SOME)], 0.0), SOME, "'g'", " of 'z'"
    ),
    "beside a slope of 0": (lambda z, w: w[0] * z[SOME], SOME, "An index", " of '[wz]'"),
    "of what is known": (
        lambda z, w: z[pt.constant(CODES[:5])[data("g", SOME)]], SOME, "'g'", r"\.",
    ),
    "all": (lambda z, w: z[np.full(N, -2)], np.full(N, -2), "down to -2", " of 'z'"),
}  # fmt: skip


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize("name", WRONG)
def test_negative_codes_are_counted_and_named(name):
    write, codes, which, entries = WRONG[name]
    [said] = told(write)
    negative = np.flatnonzero(codes < 0)
    assert f" in {len(negative):,} of 400 rows (first: row {negative[0]})" in said
    assert re.search(which, said)
    assert re.search(f"the last of 5 entries{entries}", said)


RIGHT = {
    "codes": lambda z, w: z[CODES],
    "unsigned": lambda z, w: z[CODES.astype("uint8")],
    "a mask": lambda z, w: z[CODES] * (SOME < 0),
    "the last": lambda z, w: z[CODES] + w[-1],
    "some of the last": lambda z, w: z[CODES] + w[np.array([-1, -2])].sum(),
    "in a circle": lambda z, w: (z - z[np.arange(5) - 1])[CODES],
    "repaired": lambda z, w: pt.switch(SOME >= 0, z[pt.maximum(data("g", SOME), 0)], 0.0),
    "left out": lambda z, w: pt.switch(SOME >= 0, z[data("g", SOME)], 0.0),
    "left out by one of two": lambda z, w: pt.exp(w[0] + w[CODES] * z[SOME] * (SOME >= 0)),
    "computed": lambda z, w: z[data("year", CODES - 2) + 2],
    "no index": lambda z, w: z[CODES] + w[0] * data("degrees", SOME),
}


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("name", RIGHT)
def test_what_does_not_count_rows_from_the_end_is_silent(name):
    assert told(RIGHT[name]) == []


def test_categories_that_are_observed_are_no_codes_of_parameters():
    with pm.Model() as model:
        pm.Categorical("y", logit_p=pm.Normal("z", shape=5), observed=CODES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TallModel(model)


@pytest.mark.costly(cases=0)
def test_all_who_read_a_model_tell():
    model = model_of(lambda z, w: z[data("g", SOME)] + w[CODES])
    said = "pm.Data 'g', an index, is negative"
    with pytest.warns(UserWarning, match=said) as caught:
        step = pms.HMCECS(model=model)
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of the step nothing more
        idata = pm.sample(
            200, tune=200, step=step, model=model, chains=1, progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    with pytest.warns(UserWarning, match=said):
        pms.loo(idata, model=model)
    with pytest.warns(UserWarning, match=said):
        pms.advise(model, seconds=0.1)
    with pytest.warns(UserWarning, match=said) as caught:
        found = pms.predict(idata, "y", model=model)
    assert [w.filename for w in caught] == [__file__]
    codes = np.where(SOME < 0, 4, SOME)
    z, w = (idata.posterior[name].values[0] for name in "zw")
    expected = z[:, codes] + w[:, CODES]
    np.testing.assert_allclose(found["mean"], expected.mean(axis=0))
    np.testing.assert_allclose(found["sd"], expected.std(axis=0, ddof=1))


@pytest.mark.parametrize(("of", "warns"), [(np.int64, True), (np.float64, False)])
def test_whole_numbers_of_which_pymc_keeps_32_bits_are_said(of, warns):
    """2**31 k is 0 or -2**31 in what PyMC makes of whole numbers; floats stay what they are."""
    k = np.arange(200) % 5
    with pm.Model() as model:
        x = pm.Data("x", k.astype(of) * of(2**31))
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x / 2**31, 1.0, observed=0.2 * k)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        TallModel(model)
    assert any("'x' goes down to -2,147,483,648" in str(w.message) for w in said) is warns
