"""Steps go through pickle and cloudpickle, and go on there as here."""

import pickle
import subprocess
import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from numba import types
from steps_of_all_kinds import KINDS

import pymc_subsample as pms
from pymc_subsample.compiled.functions import VECTOR, by_name, compile_source
from pymc_subsample.kernels.model import PERTURBED

LIBRARIES = {"pickle": pickle, "cloudpickle": cloudpickle}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        pm.Normal("y", mu[0] + mu[1] * rng.normal(size=500), 1, observed=rng.normal(size=500))
    return model


def draws(step, point, n=5):
    found = []
    for _ in range(n):
        point, _ = step.step(point)
        found.append(point["mu"])
    return np.array(found)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("make", KINDS)
def test_a_copy_goes_on_as_the_step_does(model, make, library):
    step, point = make(model=model), model.initial_point()
    step.setup_chain(np.random.default_rng(2), 10, 100)
    point = {"mu": draws(step, point, 20)[-1]}
    library = LIBRARIES[library]
    copied = library.loads(library.dumps(step))
    assert type(copied) is type(step)
    np.testing.assert_array_equal(draws(copied, point), draws(step, point))


@pytest.mark.costly
def test_a_copy_samples_the_model_that_it_brings(model):
    copied = pickle.loads(pickle.dumps(pms.HMCECS(model=model)))
    with copied.model:
        idata = pm.sample(
            20, tune=20, step=copied, chains=1, cores=1, progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert idata["posterior"].sizes["draw"] == 20
    assert "subsample_size" in idata["sample_stats"]


@pytest.mark.parametrize(
    "made",
    [
        lambda model: pms.HMCECS(None, model=model),
        lambda model: pms.HMCECS(vars=None, model=model),
        lambda model: pms.auto(model=model),
    ],
)
def test_all_variables_may_be_asked_for_as_none(model, made):
    """PyMC had taken None for a variable of its own, which workers that are spawned lack."""
    step = made(model)
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    assert [v.name for v in copied.vars] == [v.name for v in step.vars] == ["mu"]


def test_model_and_step_stay_together_in_cloudpickle(model):
    copied, step = cloudpickle.loads(cloudpickle.dumps((model, pms.HMCECS(model=model))))
    assert step.model is copied


@pytest.mark.costly
def test_functions_that_pickle_cannot_name():
    """A model with a lambda, which plain pickle refuses."""
    y = np.random.default_rng(3).normal(size=200)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=1)
        pm.CustomDist("y", mu[0], logp=lambda y, mu: -((y - mu) ** 2) / 2, observed=y)
    step = pms.HMCECS(model=model)
    copied = pickle.loads(pickle.dumps(step))
    point = model.initial_point()
    np.testing.assert_array_equal(draws(copied, point), draws(step, point))


# Calls what it is sent, and sends that on, with functions of its own.
ELSEWHERE = """
import pickle
import sys

import numpy as np
import pymc as pm

import pymc_subsample as pms
from pymc_subsample.compiled import functions

made, given, found = pickle.load(sys.stdin.buffer)
loaded = []
functions.unpacked, unpacked = lambda *x: loaded.append(x) or unpacked(*x), functions.unpacked
for name, expected in found.items():
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in given[name]]
    made[name](*arguments)
    for x, y in zip(arguments, expected, strict=True):
        np.testing.assert_array_equal(x, y)
again = pickle.loads(pickle.dumps(made))
assert len(loaded) == len(made), "what is known by name is not loaded again"
with pm.Model():
    pm.Normal("y", pm.Normal("mu") * np.arange(50.0), 1, observed=np.zeros(50))
    own = pms.HMCECS(subsample_size=20, n_blocks=2).expansion
sys.stdout.buffer.write(pickle.dumps((again, own.residual, own.gather)))
"""


def test_functions_take_along_what_they_call_by_name():
    """Another process has not loaded these kernels; it computes the same bits."""
    rng = np.random.default_rng(1)
    with pm.Model():
        scale = pm.HalfNormal("scale")
        effects = pm.Normal("effects", 0, scale, shape=4)
        pm.Normal("y", effects[rng.integers(4, size=200)], 1, observed=rng.normal(size=200))
        expansion = pms.HMCECS(subsample_size=50, n_blocks=5).expansion
    theta, center = rng.normal(size=expansion.theta_size), rng.normal(size=expansion.phi_size)
    index = np.arange(20)
    rows = expansion.take(index)
    d, grad = np.empty(len(index)), np.zeros(expansion.phi_size)
    given = {
        "forward": (theta, center.copy(), np.empty(1)),
        "backward": (theta, center, np.zeros(expansion.theta_size)),
        "anchor": (center, rows),
        "residual": (center + 0.1, rows, center, PERTURBED, 2.0, 0.5, d, grad),
    }
    made = {name: getattr(expansion, name) for name in given}
    assert all(function.called for function in made.values())
    found = {
        name: [x.copy() if isinstance(x, np.ndarray) else x for x in values]
        for name, values in given.items()
    }
    for name, arguments in found.items():
        made[name](*arguments)
    sent = pickle.dumps((made, given, found))
    run = subprocess.run([sys.executable, "-c", ELSEWHERE], input=sent, check=True, stdout=-1)
    again, *others = pickle.loads(run.stdout)
    assert again.keys() == made.keys()
    assert all(function.called for function in others)
    assert "forward" in vars(expansion.portable())
    cloudpickle.dumps(expansion.portable())


def test_functions_of_one_name_are_told_apart():
    signature = types.void(VECTOR)
    made = [
        compile_source("f", f"def f(x):\n    x[0] = {value}", {}, signature, "told_apart").function
        for value in (1.0, 2.0)
    ]
    named = [by_name("told_apart", function, signature) for function in made]
    caller = "def call(x):\n    f(x)"
    for value, called in zip((1.0, 2.0), named, strict=True):
        x = np.zeros(1)
        compile_source("call", caller, {"f": called}, signature, "told_apart")(x)
        assert x[0] == value
