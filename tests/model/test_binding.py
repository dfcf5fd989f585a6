"""Models written on a sample of rows on disk: sampled as if all rows were in memory, or refused."""

import logging
import os
import pickle
import re
import subprocess
import sys
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, run

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel, TallModelError, binding
from pymc_subsample.rows import Rows, store
from pymc_subsample.rows.drawn_samples import warn_of_samples
from pymc_subsample.rows.on_disk import sample_index
from pymc_subsample.rows.row_store import Joined
from pymc_subsample.rows.store import Store

N = 4_000


@pytest.fixture(scope="module")
def table():
    """Return columns of several types, of which some are in a regression."""
    rng = np.random.default_rng(1)
    x, z = rng.gamma(2, size=N).astype("f4"), rng.integers(-3, 4, N).astype("i2")
    group = rng.integers(0, 5, N)
    eta = 0.5 * x - 0.2 * z + rng.normal(size=5)[group] - 0.8
    return {
        "x": x,
        "z": z,
        "w": rng.normal(size=N).astype("f4"),
        "group": group,
        "late": rng.random(N) < 1 / (1 + np.exp(-eta)),
        "y": (eta + rng.normal(size=N)).astype("f4"),
        "error": rng.uniform(0.5, 2, N),
        "count": rng.poisson(2, N),
    }


@pytest.fixture(scope="module")
def rows(table, tmp_path_factory):
    """Return them on disk."""
    return Rows.from_blocks([table], cache=tmp_path_factory.mktemp("rows") / "x.rows")


def logistic(s):
    """Return a hierarchical model of a matrix that is contiguous, and of one type."""
    with pm.Model() as model:
        X, group, late = (pm.Data(name, s[name]) for name in ("X", "group", "late"))
        effect = pm.Normal("effect", 0, pm.HalfNormal("scale"), shape=5)
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("obs", logit_p=effect[group] + X @ beta, observed=late)
    return model


def mixed(s):
    """Return one of a matrix of two types, with columns that the model computes."""
    with pm.Model() as model:
        X, late, y = (pm.Data(name, s[name]) for name in ("X", "late", "y"))
        beta = pm.Normal("beta", shape=3)
        bent = pm.math.switch(late, X[:, 1] ** 2, 0.0)
        pm.Normal("obs", X @ beta[:2] + beta[2] * bent, pm.HalfNormal("sd"), observed=y)
    return model


MODELS = {
    "logistic": (logistic, {"X": ["w", "x"], "group": "group", "late": "late"}),
    "mixed": (mixed, {"X": ["z", "x"], "late": "late", "y": "y"}),
}


def in_memory(table, selection):
    """Return all rows under a model's names."""
    return {
        name: table[c] if isinstance(c, str) else np.column_stack([table[k] for k in c])
        for name, c in selection.items()
    }


def assert_same_rows(bound, full, theta, index, slices):
    """Compare rows on disk with those in memory, packed and gathered too, to the bit."""
    assert bound.logprior(theta) == full.logprior(theta)
    for take in (index, *slices):
        np.testing.assert_array_equal(bound.row_loglik(theta, take), full.row_loglik(theta, take))
    one, other = expand(bound, 2), expand(full, 2)
    for some in (index, index[index < 100], index[:0]):
        np.testing.assert_array_equal(one.take(some), other.take(some))
    for a, b in zip(one.chunks(), other.chunks(), strict=True):
        np.testing.assert_array_equal(a, b)
    gathered = [np.zeros((one.width, len(index))) for _ in range(2)]
    one.gather(one.packer.table, index, gathered[0])
    other.gather(other.packer.table, index, gathered[1])
    np.testing.assert_array_equal(*gathered)
    np.testing.assert_allclose(gathered[0], one.take(index), rtol=1e-14)
    return one, other


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", MODELS)
def test_all_rows_are_those_of_the_model_in_memory(name, table, rows):
    make, selection = MODELS[name]
    view = rows.select(**selection)
    bound = TallModel(make(view.sample(200)), data=view)
    full = TallModel(make(in_memory(table, selection)))
    assert bound.n_rows == full.n_rows == N
    rng = np.random.default_rng(0)
    theta = rng.normal(size=full.size)
    assert_same_rows(bound, full, theta, rng.integers(0, N, 50), [slice(17, 90)])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("step", "given"),
    [
        (pms.HMCECS, {}),
        (pms.ScalableMH, {}),
        (pms.MinibatchBarkerMH, {"control_variate_order": None}),
        (pms.sgmcmc.SGLD, {}),
    ],
)
def test_draws_are_those_of_the_model_in_memory(step, given, table, rows):
    make, selection = MODELS["logistic"]
    view, draws = rows.select(**selection), []
    for model, more in (
        (make(view.sample(200)), {"data": view}),
        (make(in_memory(table, selection)), {}),
    ):
        with model:
            made = step(**given, **more)
            assert made.n_rows == N
            idata = pm.sample(
                step=made, tune=60, draws=40, chains=1, random_seed=3, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
        draws.append(idata.posterior)
    for name in ("beta", "effect", "scale"):
        np.testing.assert_array_equal(*(d[name].values for d in draws))
    assert np.ptp(draws[0]["beta"].values) > 0


@pytest.fixture(scope="module")
def sampled(rows):
    """Return a view, a step on it, its model, and a run."""
    make, selection = MODELS["logistic"]
    view = rows.select(**selection)
    with make(view.sample(200)) as model:
        step = pms.HMCECS(data=view)
        idata = pm.sample(
            step=step, tune=200, draws=100, chains=2, cores=1, random_seed=3, progressbar=False
        )
    return view, step, model, idata


@pytest.mark.costly(cases=0)
def test_what_comes_after_works_on_all_rows(sampled):
    view, _, model, idata = sampled
    assert pms.efficiency(idata)["rows"].unique() == [N]
    assert "HMCECS of 4,000 rows, 2 chains" in str(pms.report(idata))
    audit = pms.audit(idata, model=model, data=view, draws=40)
    with pytest.raises(ValueError, match="the run sampled 4,000 rows, the model has 200"):
        pms.audit(idata, model=model)
    # Weights are ratios of densities of all rows: with those of the sample alone they fail.
    assert audit.k_hat < 0.7


@pytest.mark.costly
def test_steps_are_sent_without_rows(sampled, table, monkeypatch):
    _, step, model, _ = sampled
    sent = pickle.dumps(step)
    held = [table["late"][1000:1100], table["group"][1000:1100].astype("i4")]
    assert not any(x.tobytes() in sent for x in held)
    assert model["late"].get_value()[100:].tobytes() in sent  # its sample
    monkeypatch.setattr(
        "pymc_subsample.model.tall_model.check_start",
        lambda *args: pytest.fail("all rows are checked again"),
    )
    found = pickle.loads(sent)
    assert found.n_rows == N
    assert found.fingerprint == step.fingerprint
    assert found.tall.rows.columns[0].store.path == step.tall.rows.columns[0].store.path


@pytest.mark.costly(cases=0)
def test_advice_names_the_rows(rows, monkeypatch):
    from pymc_subsample.results.advise.decision import code

    line = f"pm.sample(step=pms.HMCECS(data=pms.Rows({str(rows.path)!r})))"
    assert code("HMCECS", {"data": rows}) == line
    both = f"[pms.Rows({str(rows.path)!r}), pms.Rows({str(rows.path)!r}).select(x='z')]"
    assert code("SGLD", {"data": [rows, rows.select(x="z")]}).endswith(f"(data={both}))")
    make, selection = MODELS["mixed"]
    view = rows.select(**selection)
    advice = pms.advise(make(view.sample(200)), data=view, seconds=0.1)
    assert advice.rows == N
    # So few rows are sampled by NUTS; the model would then be one of the sample.
    assert advice.recommendation in {"nutpie", "pm.NUTS"}
    assert "a model that holds all rows in memory" in advice.reason
    assert advice.code.endswith("# of the model on all rows")


# Refusals


def regression(change=lambda x: x, **more):
    """Return a model of x and y, in which x is changed."""

    def make(s):
        x, y = pm.Data("x", s["x"]), pm.Data("y", s["y"])
        slope = pm.Normal("slope")
        pm.Normal("obs", pm.Normal("level") + slope * change(x), 1, observed=y, **more)

    return make


def array_for_y(s):
    x = pm.Data("x", s["x"])
    pm.Normal("obs", pm.Normal("slope") * x, 1, observed=s["y"])


def array_for_x(s):
    pm.Normal("obs", pm.Normal("slope") * s["x"], 1, observed=pm.Data("y", s["y"]))


def other_name(s):
    x = pm.Data("distance", s["x"])
    pm.Normal("obs", pm.Normal("slope") * x, 1, observed=pm.Data("y", s["y"]))


def weights(s):
    total = pm.Data("weights", np.ones(len(s["x"]))).sum()
    pm.Normal("obs", pm.Normal("slope") * total, 1, observed=pm.Data("y", s["y"]))


def scale_of_prior(s):
    x, y = pm.Data("x", s["x"]), pm.Data("y", s["y"])
    pm.Normal("obs", pm.Normal("slope", 0, x.std()) * x, 1, observed=y)


def length_in_prior(s):
    x, y = pm.Data("x", s["x"]), pm.Data("y", s["y"])
    pm.Normal("obs", pm.Normal("slope", 0, 1.0 * x.shape[0]) * x, 1, observed=y)


def length_of_python(s):
    y = pm.Data("y", s["y"])
    pm.Normal("obs", pm.Normal("level") * pt.ones(len(s["y"])), 1, observed=y)


def standardised(s):
    x = pm.Data("x", (s["x"] - s["x"].mean()) / s["x"].std())
    pm.Normal("obs", pm.Normal("slope") * x, 1, observed=pm.Data("y", s["y"]))


def rescaled(s):
    x = pm.Data("x", s["x"].astype(float) ** 1.01)
    pm.Normal("obs", pm.Normal("slope") * x, 1, observed=pm.Data("y", s["y"]))


def coded_anew(s):
    group = pm.Data("group", np.array([2, 0, 1, 4, 3])[s["group"]])
    pm.Normal("obs", pm.Normal("effect", shape=5)[group], 1, observed=pm.Data("y", s["y"]))


def too_few_groups(s):
    group = pm.Data("group", s["group"])
    pm.Normal("obs", pm.Normal("effect", shape=4)[group], 1, observed=pm.Data("y", s["y"]))


def negative_index(s):
    z = pm.Data("z", s["z"])
    pm.Normal("obs", pm.Normal("effect", shape=5)[z], 1, observed=pm.Data("y", s["y"]))


def transposed(s):
    x = pm.Data("x", s["x"][:, None])
    pm.Normal("obs", (pm.Normal("slope") * x)[:, 0], 1, observed=pm.Data("y", s["y"]))


def of_another_type(s):
    x = pm.Data("x", s["x"].astype(int))
    pm.Normal("obs", pm.Normal("slope") * x, 1, observed=pm.Data("y", s["y"]))


def chosen_rows(s):
    x, y, late = (pm.Data(name, s[name]) for name in ("x", "y", "late"))
    terms = pm.logp(pm.Normal.dist(pm.Normal("slope") * x, 1), y)
    pm.Potential("obs", terms[pt.nonzero(late)[0]])


def another_length(s):
    regression()(s)
    pm.Normal("other", pm.Normal("level_of_others"), 1, observed=np.ones(150))


REFUSED = {
    "mean": (regression(lambda x: x - x.mean()), r"pm.Data 'x' at once \(Sum\)"),
    "max": (regression(lambda x: x / x.max()), r"pm.Data 'x' at once \(Max\).*rows\.max\('x'\)"),
    "sort": (regression(pt.sort), r"pm.Data 'x' at once \(SortOp\)"),
    "cumulative sum": (regression(pt.cumsum), r"pm.Data 'x' at once \(CumOp\)"),
    "reversed": (regression(lambda x: x[::-1]), r"moves or changes some rows of pm.Data 'x'"),
    "first row": (regression(lambda x: x - x[0]), r"some rows of pm.Data 'x' \(Subtensor\)"),
    "one set": (
        regression(lambda x: pt.set_subtensor(x[0], 0.0)), r"some rows of pm.Data 'x' \(IncSub"
    ),
    "shape": (regression(lambda x: x / x.shape[0]), r"log-likelihood of 'obs' .*x\.shape\[0\]"),
    "row numbers": (regression(lambda x: x + pt.arange(x.shape[0])), r"such as pt\.arange"),
    "total_size": (regression(total_size=N), r"log-likelihood of 'obs' .*total_size="),
    "scale of a prior": (scale_of_prior, r"pm.Data 'x' at once \(Sum\).*rows\.std\('x'\)"),
    "length in a prior": (length_in_prior, r"its log prior differs from the model"),
    "length of Python's": (length_of_python, "shapes do not fit together"),
    "array for y": (array_for_y, r"The observed values of 'obs' are an array of shape \(200,\)"),
    "array for x": (array_for_x, r"The model holds an array of shape \(200,\)"),
    "another name": (other_name, r"pm.Data 'distance', of shape \(200,\).*has no column"),
    "weights": (weights, r"pm.Data 'weights', of shape \(200,\)"),
    "standardised": (standardised, r"pm.Data 'x' holds numbers from -1.*rows\.sample"),
    "rescaled": (rescaled, r"does not occur in data, in the columns 'x', 'y' together"),
    "coded anew": (coded_anew, r"does not occur in data.*rows\.coords"),
    "too few groups": (too_few_groups, r"'group' of 'obs' points outside the array of length 4"),
    "negative index": (negative_index, r"Column 'z' of data is an index.* down to -3"),
    "another shape": (transposed, r"pm.Data 'x' has shape \(200, 1\).*\(4000,\) in data"),
    "another type": (of_another_type, r"pm.Data 'x' is of type int32, which does not hold"),
    "rows chosen": (chosen_rows, r"some rows of pm.Data 'late' \(Nonzero\)"),
    "another length": (another_length, r"other lengths than data \(150 of 'other'\)"),
}  # fmt: skip


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_of_the_sample_is_refused_by_name(name, rows):
    make, said = REFUSED[name]
    with pm.Model() as model:
        make(rows.sample(200))
    with pytest.raises(TallModelError, match=f"(?s){said}"):
        TallModel(model, data=rows)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"error": lambda x: x.astype("f4")}, r"'error' \(.* in data: converted to float32"),
        ({"x": lambda x: x * (1 + 1e-9)}, r"'x' \(.* in data: not taken .* as float32\)\."),
        ({"y": np.trunc}, r"'y' \(.*: cut off to integers on the way\)\."),
        ({"y": lambda y: 0.9 * y}, r"'y' \(\S+ in the model, \S+ in data\)\."),
        ({"late": np.logical_not}, r"'late' \((True|False) in the model, \S+ in data\)"),
        ({"late": np.logical_not, "error": lambda x: x.astype("f4")}, r"'late' \(.*, 'error' \("),
    ],
)  # fmt: skip
def test_the_column_that_was_changed_is_named(changed, said, rows, monkeypatch):
    """By the most similar row, wherever it is: here that which the sample has it from."""
    monkeypatch.setattr(binding, "_PIECE", 1_000)
    s = rows.sample(200)
    s |= {name: change(s[name].astype(float) if name != "late" else s[name])
          for name, change in changed.items()}  # fmt: skip
    with pm.Model() as model:
        x, y, late, error = (pm.Data(name, s[name]) for name in ("x", "y", "late", "error"))
        pm.Normal("obs", pm.Normal("slope") * x + late, error, observed=y)
    with pytest.raises(TallModelError, match=said) as refused:
        TallModel(model, data=rows)
    k, row = re.search(r"Row (\d+) .* row ([\d,]+) of", str(refused.value)).groups()
    assert int(row.replace(",", "")) == sample_index(N, 200, 0)[int(k)]


def with_constants(rows):
    """Return the remedy: statistics as constants."""
    mean, deviation = rows.mean("x"), rows.std("x")
    return regression(lambda x: (x - mean) / deviation)


def exposure(s):
    """Return a model whose support and parameter checks are settled by looking at data."""
    count, error, group = (pm.Data(name, s[name]) for name in ("count", "error", "group"))
    rate = pm.math.exp(pm.Normal("effect", shape=5))[group] * error
    pm.Poisson("obs", rate, observed=count)


def test_a_model_of_rows_before_some_were_appended_is_told_at_once(table, tmp_path, monkeypatch):
    rows = Rows.from_blocks([table], cache=tmp_path / "x.rows", progressbar=False)
    make, selection = MODELS["logistic"]
    model = make(rows.select(**selection).sample(300))
    rows.append({name: x[:50] for name, x in table.items()}, progressbar=False)
    view = rows.select(**selection)
    found = binding.bound(model, view)
    monkeypatch.setattr(binding, "_PIECE", 0)  # nothing is looked for among all rows
    binding.refuse_other_rows(found)
    other = make(view.sample(300, seed=5))
    with pytest.raises(ValueError, match="range"):
        binding.refuse_other_rows(binding.bound(other, view))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("seed", [0, 7])
def test_what_does_not_depend_on_the_sample_is_taken(seed, rows):
    for make in (regression(), with_constants(rows), exposure):
        with pm.Model() as model:
            make(rows.sample(200, seed))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert TallModel(model, data=rows).n_rows == N


def half_normal(s):
    """Return a model of numbers that must be positive; its density is finite for any."""
    pm.HalfNormal("obs", pm.math.exp(pm.Normal("scale")), observed=pm.Data("error", s["error"]))


def known_deviations(s):
    """Return a model whose deviations, which are data, must be positive."""
    x, error, y = (pm.Data(name, s[name]) for name in ("x", "error", "y"))
    pm.Normal("obs", pm.Normal("slope") * x, error, observed=y)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (half_normal, r"'obs' is -inf at the initial point in rows 1234"),
        (known_deviations, r"A parameter check of the model fails for its data: sigma > 0"),
    ],
)
def test_what_holds_for_the_sample_but_not_for_all_rows_is_seen(make, said, table, tmp_path):
    """One row that is not in the sample has a number outside the support."""
    changed = {**table, "error": table["error"].copy()}
    changed["error"][1234] = -1
    rows = Rows.from_blocks([changed], cache=tmp_path / "x.rows")
    with pm.Model() as model:
        make({name: rows[name][:200] for name in rows.names})
    with pytest.raises(TallModelError, match=said):
        TallModel(model, data=rows)


def test_missing_numbers_are_refused_by_column(table, tmp_path):
    changed = {**table, "x": table["x"].copy()}
    changed["x"][[7, 1234]] = np.nan
    rows = Rows.from_blocks([changed], cache=tmp_path / "x.rows")
    with pm.Model() as model:
        regression()({key: rows[key][10:200] for key in rows.names})
    with pytest.raises(TallModelError, match=r"Column 'x' of data has 2 missing values"):
        TallModel(model, data=rows)


def test_integers_that_the_models_type_does_not_hold_are_refused(tmp_path):
    table = {"k": np.array([0, 1, 2**40]), "y": np.zeros(3)}
    rows = Rows.from_blocks([table], cache=tmp_path / "x.rows")
    with pm.Model() as model:
        k, y = pm.Data("k", table["k"][:2]), pm.Data("y", table["y"][:2])
        pm.Normal("obs", pm.Normal("slope") * k, 1, observed=y)
    with pytest.raises(TallModelError, match=r"'k' of data is of type int64.*int32"):
        TallModel(model, data=rows)


def test_data_that_are_no_rows_are_refused(rows, table):
    with pm.Model() as model:
        regression()(rows.sample(200))
    pandas = pytest.importorskip("pandas")
    for data, said in (
        (table, r"got dict\. Data in memory are given to the model"),
        (str(rows.path), rf"got str\. Open the folder with pms\.Rows\.open\('{rows.path}'\)"),
        (rows.path, r"got PosixPath\. Open the folder with pms\.Rows\.open"),
        (pandas.DataFrame({"x": [1.0]}), r"got DataFrame\. .* pms\.Rows\.from_pandas\("),
    ):
        with pytest.raises(TypeError, match=rf"data must be pms\.Rows, or a list .*, {said}"):
            pms.HMCECS(model=model, data=data)
    with pytest.raises(TallModelError, match=r"has columns 'other', and none of them"):
        pms.HMCECS(model=model, data=rows.select(other="x"))


def test_deterministic_variables_of_the_sample_are_warned_of(rows):
    with pm.Model() as model:
        s = rows.sample(200)
        x, y = pm.Data("x", s["x"]), pm.Data("y", s["y"])
        mean = pm.Deterministic("mean", pm.Normal("slope") * x)
        pm.Normal("obs", mean, 1, observed=y)
    kwargs = {"step": pms.HMCECS(model=model, data=rows), "model": model, "chains": 1, "cores": 1}
    with pytest.warns(UserWarning, match="'mean': computed by PyMC from the rows") as seen:
        pm.sample(2, tune=2, **kwargs, **QUIET)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pm.sample(2, tune=2, var_names=["slope"], **kwargs, **QUIET)


def test_rows_that_change_after_the_set_up_are_refused(table, tmp_path):
    rows = Rows.from_blocks([table], cache=tmp_path / "x.rows")
    with pm.Model() as model:
        regression()(rows.sample(200))
        step = pms.MinibatchBarkerMH(data=rows, control_variate_order=None)
    rows.append({name: x[:5] for name, x in table.items()})
    step.setup_chain(np.random.default_rng(0), 10, 10)  # rows before are as they were
    changed = np.memmap(rows.path / "rows.bin", np.uint8, "r+")
    changed[len(changed) // 2] ^= 255
    changed.flush()
    with pytest.raises(ValueError, match="they were changed"):
        step.setup_chain(np.random.default_rng(0), 10, 10)
    with pytest.raises(ValueError, match="they were changed"):
        pickle.dumps(step)
    os.truncate(rows.path / "rows.bin", 100)
    with pytest.raises(ValueError, match="cut off while it was in use"):
        step.setup_chain(np.random.default_rng(0), 10, 10)
    assert model is not None


@pytest.mark.costly(cases=0)
def test_a_disk_that_is_waited_for_changes_nothing(rows, monkeypatch):
    """From set-up to draws, with all rows asked for at once."""
    view, found = rows.select(**MODELS["logistic"][1]), []
    for overhead in (10.0, -1.0):
        monkeypatch.setattr(store, "_OVERHEAD", overhead)
        step = pms.HMCECS(model=logistic(view.sample(200)), data=view)
        assert (step.expansion.store.disk._asked > 0) == (overhead < 0)
        step.setup_chain(np.random.default_rng(3), 40, 30)
        draws, _, point = run(step, step.model.initial_point(), 40)
        step.stop_tuning()
        found.append(np.concatenate([draws, run(step, point, 30)[0]]))
    np.testing.assert_array_equal(*found)


@pytest.mark.costly
def test_rows_are_read_for_several_draws_at_once(rows, monkeypatch):
    view, taken = rows.select(x="x", y="y"), []
    sample = view.sample(200)
    with pm.Model() as model:
        eta = pm.Normal("a") + pm.Normal("b") * pm.Data("x", sample["x"])
        pm.Normal("obs", eta, 1, observed=pm.Data("y", sample["y"]))
    step = pms.HMCECS(model=model, data=view)

    def take(self, index, *, take=Store.take):
        taken.append(len(index))
        return take(self, index)

    monkeypatch.setattr(Store, "take", take)
    step.setup_chain(np.random.default_rng(3), 40, 512)
    *_, point = run(step, step.model.initial_point(), 40)
    step.stop_tuning()
    before = len(taken)
    run(step, point, 512)
    assert len(taken) - before < 512 / 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_sampling_takes_little_memory_beside_the_rows(tmp_path):
    """A chain on rows that are larger than the memory that the process may take."""
    code = """
import resource, sys
import numpy as np, pymc as pm
import pymc_subsample as pms
def blocks():
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = rng.standard_normal((2**15, 60), dtype="f4")
        yield {"x": x, "y": x[:, 0] + rng.standard_normal(2**15, dtype="f4")}
rows = pms.Rows.from_blocks(blocks(), cache=sys.argv[1])
s = rows.sample(200)
with pm.Model():
    x, y = pm.Data("x", s["x"]), pm.Data("y", s["y"])
    pm.Normal("obs", pm.Normal("slope") * x[:, 0], 1, observed=y)
    run = {"tune": 100, "draws": 100, "chains": 1, "progressbar": False}
    run["compute_convergence_checks"] = False
    pm.sample(step=pms.MinibatchBarkerMH(), **run)  # what is compiled takes memory of its own
    used = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmData")][0]
    limit = 1024 * used + 250 * 2**20
    assert (size := rows._store.records.nbytes) > 300 * 2**20, size
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    idata = pm.sample(step=pms.MinibatchBarkerMH(data=rows), **run)
print("slope", float(idata.posterior["slope"].mean()))
try:
    np.ones(size // 8)
except MemoryError:
    print("bounded")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "x.rows"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "bounded" in done.stdout, done.stderr[-3000:]
    slope = float(done.stdout.split("slope ")[1].split()[0])
    assert abs(slope - 1) < 0.01
    assert logging.getLogger("pymc.subsample")


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("wrap", [pm.Data, lambda _, x: x.astype("f8"), lambda _, x: x])
def test_a_sample_without_data_is_told(wrap, rows, caplog):
    """A step that takes a sample for all rows says so, once; of all rows it says nothing."""

    def told(s, **more):
        caplog.clear()
        with pm.Model():
            b = pm.Normal("b")
            x, y = (wrap(name, s[name]) for name in ("x", "y"))
            pm.Normal("obs", b * x, observed=y)
            pms.HMCECS(**more)
        return [r.getMessage() for r in caplog.records if "Rows.sample" in r.getMessage()]

    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        [said] = told(rows.sample(1_000))
        assert "the 1,000 rows" in said
        assert f"{N:,} rows of {rows.path}" in said
        assert "data=rows" in said
        assert not told(rows.sample(N))
        assert not told({name: x[1:] for name, x in rows.sample(1_000).items()})
        if wrap is pm.Data:
            assert not told(rows.sample(1_000), data=rows)


def test_a_model_of_fewer_levels_than_the_rows_have_is_told(table, tmp_path):
    """As after an append that brings a new level."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"y": table["y"], "group": pd.Categorical(table["group"].astype(str))})
    rows = Rows.from_pandas(frame, cache=tmp_path / "x.rows")
    rows.append(frame[:50].assign(group=pd.Categorical(["new"] * 50)))
    with pm.Model() as model:
        group, y = pm.Data("group", rows["group"][:N]), pm.Data("y", rows["y"][:N])
        pm.Normal("obs", pm.Normal("effect", shape=5)[group], 1, observed=y)
    with pytest.raises(TallModelError, match=r"coords\['group'\] has 6 levels.*write the model"):
        TallModel(model, data=rows)


def test_a_sample_among_rows_of_two_kinds_is_told(rows, caplog):
    one, other = rows.sample(300, seed=5)["x"], np.arange(200.0)
    warn_of_samples([Joined([other, other])], "Step")
    assert not caplog.records
    warn_of_samples([Joined([other, one.astype("f8")])], "Step")
    assert "the 300 rows" in caplog.text
