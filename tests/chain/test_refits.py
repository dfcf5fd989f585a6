"""A later run starts from an earlier one: where it was, without a search, and as right as ever."""

import logging
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse
import xarray as xr
from chains import sample
from exact_cases import logistic
from steps_of_all_kinds import KINDS

import pymc_subsample as pms
from pymc_subsample.chain import model_compilation as base
from pymc_subsample.chain import setup
from pymc_subsample.chain.variables import earlier
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.curvature import add, as_array, empty_sum, sum_of, times
from pymc_subsample.expansion.reference import reference_at, summed
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.rows.row_store import RowStore
from pymc_subsample.rows.stored_results import read_result, write_result


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.ERROR, "pymc")


@pytest.fixture(scope="module")
def first():
    """Return a model, its step and the idata of a run."""
    case = logistic()
    step = pms.HMCECS(model=case.model)
    return case, step, sample(step, case.model, draws=300)


@pytest.fixture
def searches(monkeypatch):
    found = []

    def searched(problem, *, search=setup.Problem._automatic_reference):
        found.append(problem)
        return search(problem)

    monkeypatch.setattr(setup.Problem, "_automatic_reference", searched)
    return found


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", KINDS)
def test_every_step_takes_over_a_reference_without_a_search(first, searches, make):
    case, step, idata = first
    new = make(model=case.model, reference=step)
    np.testing.assert_allclose(new.reference.theta, step.reference.theta, rtol=1e-12)
    new = make(model=case.model, reference=idata)
    means = [float(idata["posterior"][name].mean()) for name in case.names]
    np.testing.assert_allclose(new.reference.theta, means, rtol=1e-12)
    assert not searches
    make(model=case.model)
    assert searches


@pytest.mark.costly(cases=0)
def test_posterior_is_right_from_an_earlier_run(first):
    case, _, idata = first
    with case.model:
        found = sample(pms.ScalableMH(reference=idata), case.model, draws=3_000)
    case.assert_posterior(found)


@pytest.mark.costly(cases=0)
def test_reference_of_a_run_may_move_and_a_given_one_may_not(first):
    """From values that are off, as of a run on other rows."""
    case, *_ = first
    far = {n: m + 2 * s for n, m, s in zip(case.names, case.mean, case.sd, strict=True)}
    draws = {n: (("chain", "draw"), np.full((1, 5), x)) for n, x in far.items()}
    run = xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})
    moved = {}
    for name, reference in (("run", run), ("given", far)):
        step = pms.ScalableMH(model=case.model, reference=reference)
        start = step.reference.theta
        step.setup_chain(np.random.default_rng(1), 300, 0)
        point = case.model.initial_point()
        for _ in range(300):
            point, _ = step.step(point)
        moved[name] = not np.array_equal(step.reference.theta, start)
    assert moved == {"run": True, "given": False}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [pms.HMCECS, pms.ScalableMH])
def test_a_run_that_is_far_off_is_left_for_a_search(make, first, searches, caplog):
    """As of another model of the same names, or of a fit of Bambi's with the intercept moved."""
    case, *_ = first
    far = {n: np.array(m + 40 * s) for n, m, s in zip(case.names, case.mean, case.sd, strict=True)}
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step = make(model=case.model, reference=run_at(far))
    assert len(searches) == 1
    assert "the mode is searched for again" in caplog.text
    np.testing.assert_allclose(step.reference.theta, case.mean, atol=0.5 * max(case.sd))
    caplog.clear()
    near = {n: np.array(m + s) for n, m, s in zip(case.names, case.mean, case.sd, strict=True)}
    make(model=case.model, reference=run_at(near))
    assert len(searches) == 1
    assert not caplog.text


@pytest.mark.costly(cases=0)
def test_values_are_those_of_the_model_whatever_coordinates_the_chain_has():
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(6), 300)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau")
        effect = pm.Normal("effect", 0, tau, shape=6)
        w = pm.Dirichlet("w", np.ones(2))
        pm.Normal("y", effect[g] + w[0], 1.0, observed=rng.normal(size=len(g)))
    step = pms.HMCECS(model=model)
    values = step.reference_values()
    assert {n: v.shape for n, v in values.items()} == {"tau": (), "effect": (6,), "w": (2,)}
    assert values["tau"] > 0
    np.testing.assert_allclose(values["w"].sum(), 1.0)
    again = pms.HMCECS(model=model, reference=step)
    for name, value in again.reference_values().items():
        np.testing.assert_allclose(value, values[name], rtol=1e-8)
    given = pms.HMCECS(model=model, reference=values)
    np.testing.assert_allclose(again.reference.theta, given.reference.theta, rtol=1e-8)


def test_an_earlier_run_is_read_by_its_labels():
    """Levels in another order are the same levels; others keep their places."""
    draws = xr.DataArray(np.tile([1.0, 2.0, 3.0], (2, 5, 1)), dims=("chain", "draw", "airline"))
    for labels, expected in ((["UA", "AA", "DL"], [2.0, 3.0, 1.0]), (list("xyz"), [1.0, 2.0, 3.0])):
        coords = {"airline": ["AA", "DL", "UA"], "origin": ["EWR", "JFK"]}
        with pm.Model(coords=coords) as model:
            pm.Normal("effect", dims="airline")
        run = draws.assign_coords(airline=labels, origin="JFK").to_dataset(name="effect")
        found = earlier(model, xr.DataTree.from_dict({"posterior": run}))
        assert found["effect"].tolist() == expected


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [pms.HMCECS, pms.ScalableMH])
def test_means_of_a_hierarchy_are_taken_where_rows_see_them(make):
    """The effects of six groups are known to a hundredth, their scale to a fifth."""
    rng = np.random.default_rng(3)
    g = np.arange(18_000) % 6
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        effect = mu + tau * pm.Normal("z", shape=6)
        pm.Deterministic("effect", effect)
        observed = rng.normal(np.array([-2.0, -1.0, -0.3, 0.2, 0.8, 3.0])[g])
        pm.Normal("y", effect[g], 1.0, observed=observed)
    run = sample(pms.HMCECS(model=model), model, draws=500)
    posterior = run["posterior"].to_dataset().stack(sample=("chain", "draw"))
    sd, mean = posterior["effect"].std("sample").values, posterior["effect"].mean("sample").values
    means = {name: posterior[name].mean("sample").values for name in ("mu", "tau", "z")}

    def off(at):
        return np.sqrt(np.mean(((at["mu"] + at["tau"] * at["z"] - mean) / sd) ** 2))

    assert off(means) > 1.0
    step = make(model=model, reference=run)
    assert off(step.reference_values()) < 0.3
    start = step.reference
    step.setup_chain(np.random.default_rng(1), 300, 0)
    point = model.initial_point()
    for _ in range(300):
        point, _ = step.step(point)
    assert step.reference is start  # every move of it would take passes over all rows
    given = make(model=model, reference=means)
    assert off(given.reference_values()) == pytest.approx(off(means))


@pytest.mark.costly(cases=0)
def test_the_earlier_run_is_not_pickled_with_the_step(first):
    case, step, idata = first
    plain = len(pickle.dumps(pms.HMCECS(model=case.model)))
    for reference in (step, idata):
        new = pms.HMCECS(model=case.model, reference=reference)
        dumped = pickle.dumps(new)
        assert len(dumped) < 1.1 * plain
        theta = pickle.loads(dumped).reference.theta
        np.testing.assert_array_equal(theta, new.reference.theta)


def test_what_is_no_run_of_the_model_is_refused(first):
    case, _, idata = first
    empty = xr.DataTree.from_dict({"prior": idata["posterior"].dataset})
    with pytest.raises(ValueError, match=r"reference has no posterior .* but \['prior'\]"):
        pms.HMCECS(model=case.model, reference=empty)
    less = xr.DataTree.from_dict({"posterior": idata["posterior"].dataset.drop_vars(case.names[0])})
    with pytest.raises(ValueError, match=f"reference has no draws of '{case.names[0]}'"):
        pms.HMCECS(model=case.model, reference=less)
    plain = pms.MinibatchBarkerMH(model=case.model, control_variate_order=None)
    with pytest.raises(TypeError, match="MinibatchBarkerMH has no reference to take over"):
        pms.HMCECS(model=case.model, reference=plain)
    with pytest.raises(TypeError, match="reference must"):
        pms.HMCECS(model=case.model, reference=3.0)


def test_a_run_of_other_levels_is_refused_before_any_row_is_read(monkeypatch):
    """The values of a run of five groups do not fit a model of six."""

    def model(groups):
        group = np.arange(120) % groups
        with pm.Model() as model:
            effect = pm.Normal("effect", shape=groups)
            pm.Normal("obs", effect[group], observed=np.cos(np.arange(120.0)))
        return model

    step = pms.HMCECS(model=model(5))
    values = step.reference_values()

    def set_up(*args, **kwargs):
        raise AssertionError("set-up has begun")

    monkeypatch.setattr(base, "TallModel", set_up)
    with pytest.raises(AssertionError, match="set-up has begun"):
        pms.HMCECS(model=model(5), reference=values)
    said = r"reference\['effect'\] has shape \(5,\), expected \(6,\)\. "
    for reference in (step, run_at(values)):
        with pytest.raises(ValueError, match=f"{said}The model has changed .* leave reference="):
            pms.HMCECS(model=model(6), reference=reference)
    with pytest.raises(ValueError, match=f"{said}Give one value for each element"):
        pms.HMCECS(model=model(6), reference=values)


@pytest.mark.costly
@pytest.mark.parametrize("given", ["values", "idata", "step"])
def test_steps_without_control_variates_refuse_what_they_would_not_use(first, given):
    case, step, idata = first
    values = dict(zip(case.names, case.mean, strict=True))
    reference = {"values": values, "idata": idata, "step": step}[given]
    with pytest.raises(ValueError, match="reference"):
        pms.MinibatchBarkerMH(model=case.model, control_variate_order=None, reference=reference)
    with pytest.raises(ValueError, match="reference"):
        pms.sgmcmc.SGLD(
            model=case.model, control_variate_order=None, reference=reference, step_size=1e-3,
            metric="identity",
        )  # fmt: skip


# Rows that are appended

N, NEW = 6_000, 90
COLUMNS = {"X": ["x", "z"], "group": "group", "late": "late"}


def columns(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    x, z, group = rng.gamma(2, size=n), 1 + rng.normal(size=n), rng.integers(0, 5, n)
    eta = 0.5 * x - 0.4 * z + 0.2 * group - 0.8 + shift
    return {"x": x, "z": z, "group": group, "late": rng.random(n) < 1 / (1 + np.exp(-eta))}


def hierarchical(data, scale=1.5):
    s = data.sample(150)
    with pm.Model() as model:
        X, group, late = (pm.Data(name, s[name]) for name in ("X", "group", "late"))
        effect = pm.Normal("effect", 0, pm.HalfNormal("spread"), shape=5)
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("obs", logit_p=effect[group] + (X / scale) @ beta, observed=late)
    return model


@pytest.fixture
def grown(tmp_path):
    """Return rows to which others were appended after a step was made; and that step's values."""
    rows = pms.Rows.from_blocks([columns(N, 0)], cache=tmp_path / "x.rows", progressbar=False)
    data = rows.select(**COLUMNS)
    values = pms.HMCECS(model=hierarchical(data), data=data).reference_values()
    rows.append(columns(NEW, 1), progressbar=False)
    return rows, run_at(values)


def run_at(values):
    """Return the idata of a run that stayed at a point."""
    draws = {
        name: (("chain", "draw", *(f"{name}_{k}" for k in range(x.ndim))), x[None, None])
        for name, x in values.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws)})


@pytest.fixture
def read(monkeypatch):
    """Count the rows on disk that passes read: those of expansions, and of checks before them."""
    found = {"sums": 0, "start": 0}
    over, slices = Expansion._pack, RowStore.slices

    def packed(self, chunk):
        where, _ = chunk
        found["sums"] += where.stop - where.start
        return over(self, chunk)

    def sliced(self, size, begin=0):
        checked = self.shared and size == self.batch_size()
        found["start"] += (self.n_rows - begin) * checked
        return slices(self, size, begin)

    monkeypatch.setattr(Expansion, "_pack", packed)
    monkeypatch.setattr(RowStore, "slices", sliced)
    return found


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("make", [pms.HMCECS, pms.sgmcmc.SGLD, pms.ScalableMH])
def test_of_rows_on_disk_new_ones_alone_are_read(make, grown, read):
    rows, run = grown
    data = rows.select(**COLUMNS)
    step = make(model=hierarchical(data), data=data, reference=run)
    at = step.reference
    assert step.n_rows == N + NEW
    if make is not pms.ScalableMH:  # which needs numbers of every row in memory
        # For sums and residuals; for what the model computes of columns, and their log-likelihood.
        assert read == {"sums": 2 * NEW, "start": 2 * NEW}
    again = reference_at(step.expansion, at.theta)
    for name in ("center", "level", "slope", "curvature"):
        np.testing.assert_allclose(
            getattr(at, name), getattr(again, name), rtol=1e-9, atol=1e-9 * N, err_msg=name
        )
    assert np.any(again.slope != reference_at_of_old(step, at.theta).slope)


def reference_at_of_old(step, theta):
    return summed(step.expansion, theta, [step.expansion.take(np.arange(N))], 1.0)


@pytest.mark.costly(cases=0)
def test_residuals_are_those_of_all_rows(grown, monkeypatch):
    rows, run = grown
    data = rows.select(**COLUMNS)
    found = []

    def around(expansion, at, pilot, far, before):
        found.append((residuals_around(expansion, at, pilot, far, before), before))
        found.append((residuals_around(expansion, at, pilot, far), None))
        return found[0][0]

    monkeypatch.setattr(setup, "residuals_around", around)
    step = pms.HMCECS(model=hierarchical(data), data=data, reference=run)
    (mine, before), (fresh, _) = found
    assert before.n_rows == N
    assert mine.n_rows == fresh.n_rows == step.n_rows == N + NEW
    for always in (0, 50):
        for name, value in vars(fresh.moments(always)).items():
            np.testing.assert_allclose(
                getattr(mine.moments(always), name), value, rtol=1e-6, err_msg=name
            )
    monkeypatch.setattr(setup, "residuals_around", residuals_around)
    assert pms.HMCECS(model=hierarchical(data), data=data, reference=run).subsample_size > 0


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("what", ["scale", "far", "values", "temperature", "torn", "moved"])
def test_sums_that_do_not_serve_are_made_anew(what, grown, read):
    """Of another model, of a reference that is far, of a file that was cut, or not asked for."""
    rows, run = grown
    given = {"reference": run}
    if what == "far":
        given["reference"] = run_at(
            {n: x.to_numpy()[0, 0] + 0.5 for n, x in run["posterior"].data_vars.items()}
        )
    if what == "values":
        given["reference"] = {n: x.to_numpy()[0, 0] for n, x in run["posterior"].data_vars.items()}
    if what == "temperature":
        given["temperature"] = 2.0
    if what == "torn":
        for file in (rows.path / "kept").iterdir():
            file.write_bytes(file.read_bytes()[:-100])
    if what == "moved":
        rows.append(columns(2_000, 3, shift=4.0), progressbar=False)
    data = rows.select(**COLUMNS)
    read |= {"sums": 0, "start": 0}
    step = pms.HMCECS(model=hierarchical(data, 1.6 if what == "scale" else 1.5), data=data, **given)
    assert read["sums"] >= len(rows)
    again = reference_at(step.expansion, step.reference.theta, step.temperature)
    np.testing.assert_allclose(step.reference.slope, again.slope, rtol=1e-9, atol=1e-9)


def poisson(data, scale=1.0, prior=1.0, at=(0.0, 0.0), swapped=False, spread=False):
    """Return a model whose rows see no more than rates, whatever these are computed from."""
    s = data.sample(150)
    with pm.Model() as model:
        late, x = pm.Data("late", s["late"]), pm.Data("x", s["x"])
        means = dict(zip("ab", at, strict=True))
        slopes = {n: pm.Normal(n, means[n], prior) for n in ("ba" if swapped else "ab")}
        if spread:
            pm.Potential("narrow", -((slopes["a"] / pm.HalfNormal("spread")) ** 2))
        rate = pt.exp(scale * pt.stack([slopes["a"], slopes["b"]]))
        pm.Poisson("obs", rate[0] + rate[1] * x, observed=late)
    return model


@pytest.fixture
def counted(tmp_path):
    rows = pms.Rows.from_blocks([columns(N, 0)], cache=tmp_path / "x.rows", progressbar=False)
    data = rows.select(late="late", x="x")
    return data, pms.HMCECS(model=poisson(data), data=data).reference_values()


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("other", [{"scale": 1.03}, {"swapped": True}, {"spread": True}])
def test_sums_of_parameters_that_are_computed_otherwise_are_never_used(other, counted, read):
    """Of the same rows' log-likelihood at another phi, or of another vector theta."""
    data, values = counted
    pms.HMCECS(model=poisson(data, **other), data=data)
    for given in ({}, other):
        read["sums"] = 0
        values = values | ({"spread": np.array(1.0)} if "spread" in given else {})
        step = pms.HMCECS(model=poisson(data, **given), data=data, reference=run_at(values))
        again = reference_at(step.expansion, step.reference.theta)
        np.testing.assert_allclose(step.reference.slope, again.slope, rtol=1e-9, atol=1e-9)
        if "scale" in given:
            assert read["sums"] >= N


@pytest.mark.costly(cases=0)
def test_residuals_around_a_posterior_of_another_width_are_not_taken_over(counted, read):
    """Sums do not depend on the prior, but how far the posterior goes does."""
    data, values = counted
    at = [float(values[name]) for name in "ab"]
    for prior, passes in ((1.0, 0), (1e-3, 1), (1.0, 1), (0.9, 0)):
        read["sums"] = 0
        model = poisson(data, prior=prior, at=at)
        step = pms.HMCECS(model=model, data=data, reference=run_at(values))
        assert read["sums"] == passes * N
        again = residuals_around(step.expansion, step.reference, step.prepared.pilot)
        np.testing.assert_allclose(
            step.prepared.moments.variance(100), again.moments().variance(100), rtol=1e-6
        )


@pytest.mark.costly(cases=0)
def test_sums_of_other_rows_are_never_used(grown, read):
    """Also where someone puts them there."""
    rows, run = grown
    content = {file.name: file.read_bytes() for file in (rows.path / "kept").iterdir()}
    other = pms.Rows.from_blocks(
        [columns(N, 5), columns(NEW, 6)], cache=rows.path.parent / "y.rows", progressbar=False
    )
    (other.path / "kept").mkdir()
    for name, own in content.items():
        (other.path / "kept" / name).write_bytes(own)
    data = other.select(**COLUMNS)
    pms.HMCECS(model=hierarchical(data), data=data, reference=run)
    assert read["sums"] >= len(other)
    assert read["start"] >= len(other)


@pytest.mark.costly(cases=0)
def test_sums_of_rows_that_somebody_wrote_to_are_never_used(grown, read):
    """Rows that are the same nevertheless are summed anew, others are refused."""
    rows, run = grown
    file = rows.path / "rows.bin"
    for touched in (True, False):
        if touched:
            time.sleep(0.1)  # times of files are those of the system's last tick
            os.utime(file)
            rows = pms.Rows.open(rows.path)
        data = rows.select(**COLUMNS)
        read["sums"] = 0
        step = pms.HMCECS(model=hierarchical(data), data=data, reference=run)
        assert read["sums"] >= len(rows) if touched else read["sums"] == 0
        again = reference_at(step.expansion, step.reference.theta)
        np.testing.assert_allclose(step.reference.slope, again.slope, rtol=1e-9, atol=1e-9)
    store = rows._store
    time.sleep(0.1)
    with file.open("r+b") as written:  # a few rows, as a sample of 64 does not tell
        for row in (5, 905, 3003):
            written.seek(row * store.row_bytes + store.fields["x"].offset)
            written.write(np.array(1.0).tobytes())
    for use in (lambda: pms.Rows.open(rows.path), store.refuse_changes):
        with pytest.raises(ValueError, match="are not those that were written"):
            use()


@pytest.mark.costly(cases=0)
def test_sums_that_contradict_the_rows_are_told(grown, caplog):
    rows, run = grown
    [file] = [f for f in (rows.path / "kept").iterdir() if f.name.startswith("sums")]
    arrays = dict(np.load(file))
    np.savez(file, **arrays | {"level": 1.3 * arrays["level"]})
    data = rows.select(**COLUMNS)
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step = pms.HMCECS(model=hierarchical(data), data=data, reference=run)
    assert "do not agree with a sample of its rows" in caplog.text
    again = reference_at(step.expansion, step.reference.theta)
    np.testing.assert_allclose(step.reference.slope, again.slope, rtol=1e-9, atol=1e-9)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"group": 7}, "points outside the array"), ({"x": np.inf}, "is (NaN|-inf|inf)")],
)
def test_new_rows_are_checked(wrong, said, grown):
    rows, run = grown
    new = columns(40, 7)
    for name, value in wrong.items():
        new[name][3] = value
    rows.append(new, progressbar=False)
    data = rows.select(**COLUMNS)
    with pytest.raises(pms.TallModelError, match=said):
        pms.HMCECS(model=hierarchical(data), data=data, reference=run)


@pytest.mark.costly(cases=0)
def test_where_nothing_can_be_kept_nothing_is(tmp_path, monkeypatch):
    rows = pms.Rows.from_blocks([columns(N, 0)], cache=tmp_path / "x.rows", progressbar=False)
    data = rows.select(**COLUMNS)

    make = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self.is_relative_to(tmp_path):
            raise PermissionError("read-only")
        make(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    pms.HMCECS(model=hierarchical(data), data=data)
    assert not (rows.path / "kept").exists()


def test_few_files_are_kept_and_large_arrays_are_not(tmp_path):
    rows = pms.Rows.from_blocks([columns(50, 0)], cache=tmp_path / "x.rows", progressbar=False)
    for k in range(30):
        write_result(rows._store, f"a{k}", {"x": np.arange(k)})
    assert len(list((rows.path / "kept").iterdir())) == 16
    n, found = read_result(rows._store, "a29")
    assert n == 50
    assert np.array_equal(found["x"], np.arange(29))
    write_result(rows._store, "large", {"x": np.zeros(2**24)})
    assert read_result(rows._store, "large") is None
    assert read_result(rows._store, "a0") is None
    pms.Rows.from_blocks([columns(60, 1)], cache=rows.path, overwrite=True, progressbar=False)
    assert read_result(pms.Rows.open(rows.path)._store, "a29") is None


@pytest.mark.parametrize("kind", ["full", "sparse", "diagonal"])
def test_a_sum_goes_on_where_its_array_left(kind):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 6)) * (rng.random((2, 6, 6)) < 0.4)

    def increase(total, x):
        if kind == "sparse":
            total.add(scipy.sparse.csr_array(x))
        else:
            add(total, x if kind == "full" else np.diag(x))

    total = empty_sum(kind, 6)
    increase(total, first)
    total = sum_of(as_array(total, 1.0), kind, 6)
    increase(total, second)
    x = rng.normal(size=6)
    whole = first + second if kind != "diagonal" else np.diag(np.diag(first + second))
    np.testing.assert_allclose(times(as_array(total, 1.0), x), whole @ x, rtol=1e-12)


@pytest.mark.costly(cases=0)
def test_a_fit_of_bambis_is_updated_from_the_one_before(searches, caplog):
    """In the form that is its PyMC model's; the default one lacks variables, which is said."""
    bmb = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(2000, 5, 4_000), "g": rng.choice(list("abcd"), 4_000)})
    frame["y"] = (rng.random(4_000) < 1 / (1 + np.exp(0.2 * (2000 - frame.x)))) + 0

    def fit(rows, **given):
        model = bmb.Model("y ~ center(x) + (1 | g)", rows, family="bernoulli",
                          center_predictors=False)  # fmt: skip
        model.build()
        step = pms.HMCECS(model=model.backend.model, **given)
        return step, model.fit(
            100, 200, step=step, omit_offsets=False, chains=2, cores=1, random_seed=1,
            progressbar=False,
        )  # fmt: skip

    _, before = fit(frame[:3_600])
    assert len(searches) == 1
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step, after = fit(frame, reference=before)
    assert len(searches) == 1
    assert "searched for again" not in caplog.text
    assert step.n_rows == 4_000
    assert np.all(after["sample_stats"]["n_rows"] == 4_000)
    dropped = before.copy()  # as by default
    dropped["posterior"] = before["posterior"].to_dataset().drop_vars("1|g_offset")
    said = r"'1\|g_offset'.*omit_offsets=False.*center_predictors=False"
    with pytest.raises(ValueError, match=rf"no draws of {said}"):
        pms.HMCECS(model=step.model, reference=dropped)
    for function in (pms.loo, pms.audit):
        with pytest.raises(ValueError, match=rf"lacks {said}"):
            function(dropped, model=step.model)
