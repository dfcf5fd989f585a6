"""Bad input is refused by the name of the argument, at once, by this package and not below it."""

import inspect
import re
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from steps_of_all_kinds import STEPS

import pymc_subsample as pms
from pymc_subsample.chain import arguments, guards
from pymc_subsample.expansion.curvature import rounded
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.gradients.schedules import as_schedule
from pymc_subsample.samplers.minibatch.correction import barker_correction

N = 60
_PACKAGE = Path(pms.__file__).parent


def regression(x, y):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        pm.Normal("y", a + b * x, 1, observed=y)
    return model


@pytest.fixture(scope="session")
def binary():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("y", k, 1, observed=np.zeros(N))
    return model


@pytest.fixture(scope="session")
def tiny():
    rng = np.random.default_rng(1)
    return regression(rng.normal(size=N), rng.normal(size=N))


def result(values, sign=None, **statistics):
    """Return a result of sampling with a variable `a` and an HMCECS run's statistics."""
    shape = values.shape[:2]
    dims = ("chain", "draw")
    stats = {
        "n_evaluations": np.full(shape, 100), "data_share": np.full(shape, 0.5),
        "subsample_size": np.full(shape, 30), "batch_size": np.full(shape, 30.0),
        "sign": np.ones(shape) if sign is None else sign, "sampler": np.full(shape, 1),
    } | statistics  # fmt: skip
    coords = {d: np.arange(n) for d, n in zip(dims, shape, strict=True)}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"a": ((*dims, "k"), values)}, coords),
            "sample_stats": xr.Dataset({k: (dims, v) for k, v in stats.items()}, coords),
        }
    )


@pytest.fixture(scope="session")
def run():
    return result(np.random.default_rng(2).normal(size=(2, 50, 3)))


@pytest.fixture(scope="session")
def signed_run():
    sign = np.ones((2, 50))
    sign[:, ::17] = -1
    return result(np.random.default_rng(2).normal(size=(2, 50, 3)), sign)


@pytest.fixture(scope="session")
def audited():
    names = ("mean", "sd", "corrected_mean", "corrected_sd", "corrected_mean_mcse")
    table = {n: ("parameter", np.array([1.0, 1.1])) for n in names}
    return SimpleNamespace(table=xr.Dataset(table, {"parameter": ["a", "b"]}), kind="score")


def refused(call, name):
    """Expect an error about an argument, raised by this package at once."""
    start = time.thread_time()
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert time.thread_time() - start < 5.0  # seconds of the processor; it takes milliseconds
    assert re.search(rf"(?<!\w){name}", str(error.value)), str(error.value)
    assert Path(str(error.traceback[-1].path)).is_relative_to(_PACKAGE), error.traceback[-1]


# Every argument of every function, with what is wrong for all of them.

WRONG = {
    "object": object(), "nan": np.nan, "complex": 1j, "bytes": b"zz", "nested": [[1, "x"]],
    "keys": {1: 2}, "array": np.array(["x", "y"]),
}  # fmt: skip
NUMBERS = {
    "negative": -1.5, "infinite": -np.inf, "huge": 10**400, "true": True, "text": "zz",
}  # fmt: skip
# Arguments for which one of NUMBERS is fit or is refused when the model is looked at.
FIT = {("bound", "negative"), ("dim", "text"), ("vars", "text"), ("likelihood", "text")}
FIT |= {("reparameterize", "true"), ("skipna", "true"), ("rng", "huge")}
CALLABLES = [
    *STEPS, pms.proposals.RandomWalk, pms.proposals.AdaptiveMetropolis, pms.proposals.Langevin,
    pms.sgmcmc.PolynomialDecay, pms.sgmcmc.Cyclical, pms.advise, pms.audit, barker_correction,
    pms.efficiency, pms.expectation,
    pms.plot_audit, pms.plot_batch_sizes, pms.plot_evaluations, pms.plot_subsample, pms.quantile,
    pms.report, pms.summary,
]  # fmt: skip


def _parameters(function):
    return [
        p.name for p in inspect.signature(function).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]  # fmt: skip


EVERY = [(function, name) for function in CALLABLES for name in _parameters(function)]


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize(("function", "name"), EVERY, ids=[f"{f.__name__}-{n}" for f, n in EVERY])
def test_every_argument_is_checked(function, name, tiny, binary, run, audited):
    fit = {
        "idata": run, "runs": run, "prob": 0.5, "f": lambda draws: draws["a"],
        "model": binary if function is pms.AusterityGibbs else tiny,
        "audit": None if function is pms.report else audited,
    }  # fmt: skip
    given = {k: v for k, v in fit.items() if k in _parameters(function)}
    values = WRONG | {k: v for k, v in NUMBERS.items() if (name, k) not in FIT}
    for value in values.values():
        refused(partial(function, **{**given, name: value}), name)


# What else is wrong with an argument.


def case(function, name, **given):
    shown = re.sub(r" at 0x\w+", "", f"{function.__name__}-{name}-{given}")
    return pytest.param(function, name, given, id=shown[:100])


EMPTY_OR_TOO_LARGE = [
    case(pms.HMCECS, "likelihood", likelihood=3),
    case(pms.HMCECS, "likelihood", likelihood=[]),
    case(pms.HMCECS, "likelihood", likelihood=["y", 3]),
    case(pms.HMCECS, "vars", vars=[]),
    case(pms.HMCECS, "vars", vars=["zz"]),
    case(pms.HMCECS, "vars", vars=[np.zeros(2)]),
    case(pms.HMCECS, "model", model="m"),
    case(pms.HMCECS, "initial_point", initial_point=[0]),
    case(pms.HMCECS, r"initial_point\['a'\]", initial_point={"a": "x"}),
    case(pms.HMCECS, r"initial_point\['a'\]", initial_point={"a": np.nan}),
    case(pms.HMCECS, "rng", rng=np.random.RandomState(1)),
    case(pms.HMCECS, "max_treedepth", max_treedepth=10**9),
    case(pms.HMCECS, "transitions_per_draw", transitions_per_draw=10**9),
    case(pms.HMCECS, "control_variate_order.*None: HMCECS estimates", control_variate_order=None),
    case(
        pms.sgmcmc.SGLD, "control_variate_order.*0: SGLD looks at changes", control_variate_order=0
    ),
    case(pms.HMCECS, "temperature", temperature=1e300),
    case(pms.HMCECS, "temperature", temperature=1e-300),
    case(pms.HMCECS, "subsample_size", subsample_size=10**30),
    case(pms.HMCECS, r"reference\['a'\].*masked", reference={"a": np.ma.masked, "b": 0.0}),
    case(
        pms.HMCECS,
        r"reference\['a'\].*masked",
        reference={"a": np.ma.masked_array(1.0, mask=True), "b": 0.0},
    ),
    case(pms.HMCECS, r"reference\['a'\]", reference={"a": "1.0", "b": 0.0}),
    case(pms.HMCECS, r"reference\['a'\]", reference={"a": 1j, "b": 0.0}),
    case(pms.sgmcmc.SGLD, "step_size", step_size=10**400),
    case(pms.sgmcmc.EWSG, "index_chain", index_chain=10**9),
    case(pms.AusterityGibbs, "sweeps_per_draw", sweeps_per_draw=10**9),
    case(pms.AusterityMH, "epsilon is called as epsilon\\(draw\\)", epsilon=lambda: 0.1),
    case(pms.AusterityGibbs, "epsilon is called as", epsilon=lambda a, b: 0.1),
    case(pms.ConfidenceMH, "bound is called as", bound=lambda point: 1.0),
    case(pms.MinibatchBarkerMH, "proposal is called as", proposal=lambda point: (point, 0.0)),
    case(pms.proposals.RandomWalk, "covariance", covariance="wide"),
    case(pms.proposals.RandomWalk, "covariance", covariance=["a", "b"]),
    case(pms.proposals.RandomWalk, "covariance", covariance=[1e300, 1.0]),
    case(pms.proposals.Langevin, "covariance", covariance=[[1.0, 0.0], [0.0, -1.0]]),
    case(pms.proposals.AdaptiveMetropolis, "covariance", covariance=np.zeros((0, 0))),
    case(pms.sgmcmc.PolynomialDecay, "power", power=None),
    case(pms.sgmcmc.PolynomialDecay, "power", power=1.5),
    case(pms.sgmcmc.PolynomialDecay, "offset", offset=None),
    case(pms.sgmcmc.Cyclical, "length", length=None),
    case(pms.sgmcmc.Cyclical, "length", length=0.5),
    case(pms.advise, "model", model=3),
    case(pms.advise, "random_seed", random_seed="x"),
    case(pms.advise, "effective_draws", effective_draws=0),
    case(pms.audit, "model", model=3),
    case(pms.audit, "var_names", var_names=3),
    case(pms.audit, "var_names", var_names=[]),
    case(pms.audit, "draws", draws=10),
    case(pms.summary, "fmt", fmt="zz"),
    case(pms.summary, "kind", kind="zz"),
    case(pms.summary, "ci_prob", ci_prob=1.0),
    case(pms.summary, "ci_prob", ci_prob=[0.5, 0.6]),
    case(pms.summary, "var_names", var_names=["zz"]),
    case(pms.summary, "var_names", var_names=["("], filter_vars="regex"),
    case(pms.summary, "filter_vars", filter_vars="zz"),
    case(pms.summary, "group", group="zz"),
    case(pms.summary, "coords", coords={"zz": 1}),
    case(pms.summary, "coords", coords={"draw": [10**6]}),
    case(pms.summary, "sample_dims", sample_dims=["zz"]),
    case(pms.quantile, "prob", prob=0.0),
    case(pms.quantile, "prob", prob=[]),
    case(pms.quantile, "kind", kind="zz"),
    case(pms.expectation, "f is called as f\\(draws\\)", f=lambda: 0.0),
    case(pms.expectation, "f must return real", f=lambda draws: draws["a"].astype(str)),
    case(pms.efficiency, "coords", coords={"chain": 0}),
    case(pms.plot_subsample, "backend", backend="zz"),
    case(pms.plot_batch_sizes, "backend", backend="zz"),
    case(pms.plot_evaluations, "backend", backend="zz"),
    case(pms.plot_audit, "backend", backend="zz"),
    case(pms.plot_subsample, "figure_kwargs", figure_kwargs=3),
    case(pms.plot_audit, "max_parameters", max_parameters=0),
    case(pms.plot_evaluations, "n_points", n_points=10**9),
    case(pms.plot_batch_sizes, r"runs\['x'\]", runs={"x": 3}),
    case(pms.plot_batch_sizes, "runs", runs={}),
]


@pytest.mark.parametrize(("function", "name", "given"), EMPTY_OR_TOO_LARGE)
def test_bad_input_is_refused_by_name(
    function, name, given, tiny, binary, run, signed_run, audited
):
    fit = {
        "model": binary if function is pms.AusterityGibbs else tiny,
        "prob": 0.5,
        "f": lambda draws: draws["a"],
        "audit": audited,
    }
    for idata in (run, signed_run) if "idata" in _parameters(function) else (run,):
        fit |= {"idata": idata, "runs": idata}
        common = {k: v for k, v in fit.items() if k in _parameters(function)}
        refused(partial(function, **{**common, **given}), name)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("step", [pms.MinibatchBarkerMH, pms.sgmcmc.SGLD])
def test_batches_larger_than_the_data_are_refused_by_all(step, tiny):
    with pytest.raises(ValueError, match=f"batch_size={N + 1} is larger .* rows, {N}"):
        step(model=tiny, batch_size=N + 1)
    assert step(model=tiny).batch_size == N  # the default follows few rows


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("step", [pms.HMCECS, pms.MinibatchBarkerMH, pms.sgmcmc.SGLD])
def test_the_highest_order_is_known_to_all(step, tiny):
    assert step(model=tiny, control_variate_order="auto").control_variate_order == 2


@pytest.mark.parametrize("change", [{"q": 1.0}, {"a": [0.0, 1.0]}])
def test_a_start_of_another_model_is_refused(tiny, change):
    refused(partial(TallModel, tiny, initial_point=change), "initial_point")


def test_a_start_between_integers_is_refused():
    with pm.Model() as model:
        k, a = pm.Poisson("k", 3), pm.Normal("a", 0, 1)
        pm.Normal("y", a + k, 1, observed=np.arange(5.0))
    refused(partial(TallModel, model, initial_point={"k": 1.5}), r"initial_point\['k'\]")


def test_whole_numbers_beyond_those_of_numpy_are_taken_or_refused_by_name():
    """NumPy cannot tell whether integers beyond 64 bits are finite."""
    assert arguments.intensity(10**30) == 1e30
    assert as_schedule(10**30).size == 1e30
    for check, name in (
        (arguments.intensity, "intensity"),
        (arguments.temperature, "temperature"),
        (as_schedule, "step_size"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .* got 1000"):
            check(10**400)


def test_columns_whose_squares_overflow_are_refused_by_name():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=N), rng.normal(size=N)
    with pytest.raises(pms.TallModelError, match=r"of shape \(60,\).*e\+200.*Divide it"):
        TallModel(regression(1e200 * x, y))
    TallModel(regression(1e30 * x, y))
    x[3] = np.inf  # is found by the log-likelihood, as before
    with pytest.raises(pms.TallModelError, match="rows 3"):
        TallModel(regression(x, y))


def test_directions_that_rounding_hides_are_named():
    def alike(left):
        matrix = np.diag([4.0, 9.0, 1.0])
        matrix[0, 1] = matrix[1, 0] = 6.0 * (1 - left)
        return rounded(matrix, 0.1).tolist()

    assert alike(1e-3) == alike(1e-12) == []
    assert alike(1e-15) == alike(0.0) == [0, 1]


@pytest.mark.costly(cases=0)
def test_columns_whose_sums_cancel_beyond_their_digits_are_refused():
    """With rounding of eps, n W offset^2 eps is what n W is known to: 1e-3 of it, and more."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=20_000)
    seen = (rng.random(len(z)) < 0.6) + 0

    def step(offset, others=0, **options):
        x = rng.normal(3, 1, size=(len(z), others))
        with pm.Model():
            eta = pm.Flat("a") + pm.Normal("b", 0, 5) * (offset + z)
            eta += x @ pm.Normal("c", 0, 5, shape=others) if others else 0
            pm.Bernoulli("seen", logit_p=eta, observed=seen)
            return pms.HMCECS(**options)

    step(1e6, others=20)
    sums, t = step(1e6).reference, 1e6 + z
    back, front = np.argsort(np.abs(np.diag(sums.curvature)))[::-1]  # the slope's, the intercept's
    p = 1 / (1 + np.exp(-(sums.center[front] + sums.center[back] * t)))
    move = [Fraction(1), -Fraction(10**6)]
    left = sum(
        u * v * Fraction(float(sums.curvature[i, j]))
        for u, i in zip(move, (back, front), strict=True)
        for v, j in zip(move, (back, front), strict=True)
    )
    assert -float(left) == pytest.approx(np.sum(p * (1 - p) * z**2), rel=0.02)
    for offset, others in ((1e7, 0), (1e7, 20), (1e8, 20)):
        with pytest.raises(TallModelError, match="'a', 'b': large terms of the sums"):
            step(offset, others, reparameterize=False)


# Data that change behind a step


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("how", ["data", "array", "shuffled", "group"])
def test_data_changed_in_place_are_refused(how):
    rng = np.random.default_rng(1)
    x, g, y = rng.normal(size=N), rng.integers(0, 3, N), rng.normal(size=N)
    with pm.Model() as model:
        b, c = pm.Normal("b", 0, 1), pm.Normal("c", 0, 1, shape=3)
        z = pm.Data("z", rng.normal(size=N))
        pm.Normal("y", b * x + z + c[g], 1, observed=y)
    step = pms.sgmcmc.SGLD(model=model)
    step.setup_chain(np.random.default_rng(1), 5, 5)
    match how:
        case "data":
            z.get_value(borrow=True)[:] += 1.0
        case "array":
            x[7] = 3.0
        case "shuffled":
            rng.shuffle(x)
        case "group":
            g[:] = 0
    named = "'z' changed" if how == "data" else r"an array of shape \(60,\) changed"
    with pytest.raises(ValueError, match=named):
        step.setup_chain(np.random.default_rng(1), 5, 5)


def test_glimpses_of_long_arrays_see_changes_of_many_elements():
    from pymc_subsample.rows.row_store import glimpse

    rng = np.random.default_rng(1)
    x = rng.normal(size=(200_000, 4))
    before = glimpse(x)
    assert glimpse(np.asfortranarray(x)) == before  # content, not layout
    assert glimpse(x.astype(np.float32)) != before
    x[rng.choice(len(x), 1_000, replace=False), 2] += 1.0  # 1 in 800 elements: missed by e^-20
    assert glimpse(x) != before


# Steps that get into each other's way


@pytest.fixture(scope="module")
def step(tiny):
    return pms.sgmcmc.SGLD(
        model=tiny, metric="identity", step_size=1e-3, control_variate_order=None
    )


@pytest.mark.costly
def test_two_steps_on_the_same_variables_are_refused(step, tiny):
    with (
        tiny,
        pytest.raises(ValueError, match=r"'a', 'b': moved between two draws of this SGLD"),
    ):
        pm.sample(
            draws=20, tune=0, step=[step, pm.Metropolis()], chains=1, progressbar=False,
            compute_convergence_checks=False, random_seed=1,
        )  # fmt: skip


def test_a_step_in_two_threads_is_refused(step, tiny):
    from threading import Thread

    errors = []
    step.setup_chain(np.random.default_rng(1), 0, 5)
    point, _ = step.step(tiny.initial_point())

    def other():
        for call in (
            lambda: step.setup_chain(np.random.default_rng(2), 0, 5),
            lambda: step.step(point),
        ):
            try:
                call()
            except ValueError as error:
                errors.append(str(error))

    thread = Thread(target=other)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert all("in another thread" in said for said in errors)
    for _ in range(4):
        point, _ = step.step(point)  # undisturbed
    step.step(tiny.initial_point())  # a chain that has ended is nobody's


# Draws that are NaN


@pytest.mark.parametrize("signed", [False, True])
def test_draws_that_are_nan_have_no_numbers(signed):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 100, 2))
    values[1, 7, 1] = np.nan
    sign = np.ones((2, 100))
    if signed:
        sign[:, ::19] = -1
    run = result(values, sign)
    for kind in ("value", "mcse", "ess"):
        found = pms.quantile(run, [0.1, 0.9], kind=kind)["a"].values
        assert np.isnan(found[:, 1]).all()
        assert np.isfinite(found[:, 0]).all()
    for f in (lambda draws: draws["a"] ** 2, lambda draws: draws["a"] > 0):
        for found in pms.expectation(run, f).values():
            assert np.isnan(found.values[1])
            assert np.isfinite(found.values[0])
    for kind in ("stats", "all_median"):
        table = pms.summary(run, kind=kind, round_to="none").to_numpy()
        assert np.isnan(table[1]).all()
        assert np.isfinite(table[0]).all()
    with pytest.raises(ValueError, match="draws of a are NaN"):
        pms.plot_evaluations(run)


WHOLE = [
    (pms.HMCECS, {"path_length": 1, "temperature": 2}),
    (pms.ScalableMH, {"intensity": 2, "path_length": 1}),
    (pms.ScalableMH, {"proposal": pms.proposals.Langevin(step_size=1)}),
    (pms.AusterityMH, {"proposal": pms.proposals.RandomWalk(1, covariance=[1, 1])}),
    (pms.ConfidenceMH, {"bound": lambda point, new: 1}),
    (pms.MinibatchBarkerMH, {"proposal": lambda point, rng: (point, 0)}),
    (pms.sgmcmc.SGHMC, {"friction": 1, "step_size": 1}),
]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("function", "given"), WHOLE, ids=[f"{f.__name__}-{next(iter(given))}" for f, given in WHOLE]
)
def test_whole_numbers_are_numbers(tiny, function, given):
    """Compiled code does not convert them."""
    with tiny:
        pm.sample(
            2, tune=2, chains=1, cores=1, step=function(**given), progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip


def test_rows_that_32_bits_cannot_number_are_refused():
    step = SimpleNamespace()
    with pytest.raises(TallModelError, match="There are 4,294,967,297 rows of 'late', and Simple"):
        guards.row_numbers(step, 2**32 + 1, ("late",))
    np.testing.assert_array_equal(guards.row_numbers(step, 3, ("late",)), [0, 1, 2])


@pytest.mark.parametrize("step", STEPS)
def test_a_model_in_the_place_of_variables_is_refused(step):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.zeros(100))
    with pytest.raises(TypeError, match=r"vars is a pymc\.Model: give it by name, .*\(model="):
        step(model)


@pytest.mark.parametrize("given", [{"a": 50.0}, None])
def test_without_tuning_a_chain_starts_at_a_reference_that_was_given(given):
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", 0, 100), 1, observed=rng.normal(50, 1, 500))
        step = pms.HMCECS(reference=given, subsample_size=50, n_blocks=5)
    for initial in (0.0, 30.0):
        step.setup_chain(np.random.default_rng(1), tune=0, draws=5)
        first = step.method.enter(step, {"a": np.array(initial)})
        at_reference = given is not None and initial == model.initial_point()["a"]
        assert (abs(first[0] - 50) < 1) == at_reference
