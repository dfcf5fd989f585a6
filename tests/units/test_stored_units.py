"""Units of rows on disk are those of the same rows in memory; rows that are apart are refused."""

import gc
import logging
import os
import pickle
import subprocess
import sys
import warnings
from functools import cache

import cloudpickle
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from chains import QUIET

import pymc_subsample as pms
from pymc_subsample.chain.memory import warn_of_rows
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.rows.store import UNITS
from pymc_subsample.units import stored_tables
from pymc_subsample.units.layout import row_numbers
from pymc_subsample.units.sampled import units_of
from pymc_subsample.units.stored_tables import StoredTables

UNITS_N = 400


@cache
def table(largest=5):
    """Return rows of units of 1 and 3, and of one of many, in no order, with words for units."""
    rng = np.random.default_rng(5)
    sizes = rng.choice([1, 3], UNITS_N)
    sizes[7] = largest
    unit = rng.permutation(np.repeat(np.arange(UNITS_N), sizes))
    n = len(unit)
    x, effect, slope = (rng.normal(size=k) for k in (n, UNITS_N, UNITS_N))
    eta = 0.3 + 0.9 * effect[unit] + (0.5 + 0.3 * slope[unit]) * x
    return pd.DataFrame({
        "unit": np.array([f"u{k}" for k in range(UNITS_N)])[unit],
        "x": x.astype("f4"),
        "y": eta + 0.7 * rng.normal(size=n),
        "late": rng.random(n) < 1 / (1 + np.exp(-eta)),
        "n": rng.poisson(np.exp(np.minimum(eta, 3.0))).astype("i2"),
    })  # fmt: skip


@pytest.fixture
def rows(tmp_path):
    return of(table(), tmp_path / "x.rows")


@pytest.fixture
def many_rows(tmp_path):
    return of(table(3_000), tmp_path / "x.rows")


def of(frame, path, by="unit", **given):
    return pms.Rows.from_pandas(frame, cache=path, categorical=["unit"], by=by, **given)


def in_order(rows):
    """Return all rows in memory, those of a level side by side."""
    order = np.argsort(rows["unit"], kind="stable")
    return {name: np.array(rows[name])[order] for name in rows.names}


def centred(data, levels=UNITS_N):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        u = pm.Normal("u", mu, tau, shape=levels)
        unit, late = pm.Data("unit", data["unit"]), pm.Data("late", data["late"])
        pm.Bernoulli("o", logit_p=u[unit], observed=late)
    return model


def non_centred(data, levels=UNITS_N):
    """With what each level and its group have, in the mean of its effect."""
    size, group = np.linspace(-1, 1, levels), np.arange(levels) % 3
    with pm.Model() as model:
        b, mu = pm.Normal("b", shape=2), pm.Normal("mu", shape=3)
        tau, sigma = pm.HalfNormal("tau"), pm.HalfNormal("sigma")
        z = pm.Normal("z", shape=levels)
        unit, x, y = (pm.Data(name, data[name]) for name in ("unit", "x", "y"))
        effect = pm.Deterministic("effect", mu[group] + b[0] * size + tau * z)
        pm.Normal("o", effect[unit] + b[1] * pm.math.log1p(x**2), sigma, observed=y)
    return model


def slopes(data, levels=UNITS_N):
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
        mu = pm.Normal("mu", shape=2)
        z = pm.Normal("z", shape=(levels, 2))
        u = mu + z @ chol.T
        unit, x, n = (pm.Data(name, data[name]) for name in ("unit", "x", "n"))
        pm.Poisson("o", pm.math.exp(u[unit, 0] + u[unit, 1] * x), observed=n)
    return model


def classes(data, levels=UNITS_N):
    with pm.Model() as model:
        p, mu = pm.Beta("p", 2, 2), pm.Normal("mu", [-1.0, 1.0], 1, shape=2)
        c = pm.Bernoulli("c", p, shape=levels)
        unit, y = pm.Data("unit", data["unit"]), pm.Data("y", data["y"])
        pm.Normal("o", mu[c][unit], 1, observed=y)
    return model


MODELS = {"centred": centred, "non-centred": non_centred, "slopes": slopes, "classes": classes}


def both(make, rows, integrate="auto", levels=UNITS_N):
    """Return units of rows on disk and in memory."""
    on_disk = units_of(make(rows.sample(300), levels), integrate, "HMCECS", rows)
    return on_disk, units_of(make(in_order(rows), levels), integrate, "HMCECS")


def assert_same(on_disk, in_memory):
    """Log-likelihoods of all units are the same, and so is all the rest."""
    tall = [
        TallModel(on_disk.marginal, data=on_disk.data),
        TallModel(in_memory.marginal),
    ]
    assert tall[0].names == tall[1].names
    assert tall[0].rows.starts == tall[1].rows.starts
    for spread in (0.0, 0.3):
        theta = np.concatenate([np.ravel(x) for x in tall[1].initial_point.values()])
        theta = theta + spread * np.random.default_rng(1).normal(size=len(theta))
        each = [t.loglik_as_written(theta, np.arange(t.n_rows)) for t in tall]
        assert np.isfinite(each[1]).all()
        np.testing.assert_allclose(*each, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(*(t.logprior(theta) for t in tall), rtol=1e-12)


@pytest.mark.costly
def test_log_densities_of_a_level_of_many_rows_are_those_of_rows_in_memory(many_rows):
    assert_same(*both(centred, many_rows))


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("name", MODELS)
def test_log_densities_are_those_of_rows_in_memory(name, rows, monkeypatch):
    on_disk, in_memory = both(MODELS[name], rows, ["c"] if name == "classes" else "auto")
    assert on_disk.integrates
    assert_same(on_disk, in_memory)

    def turned(*given):
        """Return numbers of units with rows in another order, of one column."""
        for what, numbers in row_numbers(*given):
            yield what, numbers[::-1] if what == "1_0" else numbers

    monkeypatch.setattr(stored_tables, "row_numbers", turned)
    with pytest.raises(TallModelError, match="not read from the disk as they were laid out"):
        units_of(MODELS[name](rows.sample(300)), on_disk.names, "HMCECS", rows)


@pytest.mark.slow
def test_draws_are_those_of_rows_in_memory(many_rows):
    """To the last bit, also in other processes, and those of local variables with them."""
    rows = many_rows
    found = []
    for data, cores in ((rows, 2), (None, 1)):
        with centred(rows.sample(300) if data else in_order(rows)):
            step = pms.HMCECS(data=data)
            found.append(
                pm.sample(
                    100,
                    tune=100,
                    step=step,
                    chains=2,
                    cores=cores,
                    random_seed=3,
                    idata_kwargs={"log_likelihood": False},
                    **QUIET,
                )
            )
    for name in ("mu", "tau", "u"):
        np.testing.assert_array_equal(*(run.posterior[name].to_numpy() for run in found))
    assert int(found[0].sample_stats["rows_of_units"].max()) == len(rows)
    model = centred(rows.sample(300))
    kept = found[0].copy()
    kept["posterior"] = kept["posterior"].to_dataset()[["mu", "tau"]]
    levels = [rows.coords["unit"].index(name) for name in ("u7", "u8")]
    drawn = pms.effects(kept, model, levels=levels, data=rows)
    own = found[0].posterior["u"].to_numpy()[..., levels]
    np.testing.assert_allclose(drawn["u"].mean(("chain", "draw")), own.mean((0, 1)), atol=0.25)
    assert drawn["u"].to_numpy()[..., 0].std() < 0.2  # of 3,000 rows, of which the sample has few
    with pytest.raises(ValueError, match="rows on disk as data="):
        pms.effects(kept, model, levels=levels)
    with pytest.raises(ValueError, match="units of the run have"):
        pms.loo(kept, model=model)
    with pytest.raises(TypeError, match="left out only in memory"):
        pms.loo(kept, model=model, data=rows)
    with pytest.raises(ValueError, match="keep draws of local variables"):
        pms.predict(kept, "o", model=model)
    audit = pms.audit(kept, model=model, data=rows, draws=40)
    assert audit.n_draws >= 40


@pytest.mark.costly
def test_rows_of_old_and_new_units_are_appended(rows):
    more = pd.DataFrame({
        "unit": ["u3", "new", "u7", "new", "u3", "other"] * 2,
        **{name: table()[name].to_numpy()[:12] for name in ("x", "y", "late", "n")},
    })  # fmt: skip
    before = units_of(centred(rows.sample(300)), "auto", "HMCECS", rows)
    first = [len(part) for part in before.data]
    old = pms.Rows.open(rows.path)
    rows.append(more)
    assert rows.coords["unit"][-2:] == ["new", "other"]
    on_disk, in_memory = both(centred, rows, levels=UNITS_N + 2)
    assert_same(on_disk, in_memory)
    assert [len(part) for part in before.data] == first
    before.refuse_changes()
    assert_same(before, units_of(centred(in_order(old)), "auto", "HMCECS"))


def unsorted(tmp_path):
    return of(table(), tmp_path / "y.rows", by=None)


def broken(tmp_path):
    """Return rows in order but for one, by hand."""
    frame = table().sort_values("unit", kind="stable").reset_index(drop=True)
    frame.loc[[3, len(frame) - 5], "unit"] = frame["unit"][[len(frame) - 5, 3]].to_numpy()
    return of(frame, tmp_path / "y.rows", by=None)


@pytest.mark.parametrize("make", [unsorted, broken])
@pytest.mark.parametrize("integrate", ["auto", ["u"]])
def test_rows_that_are_apart_are_refused_with_what_to_do(make, integrate, tmp_path):
    rows = make(tmp_path)
    with (
        centred(rows.sample(300)),
        pytest.raises(TallModelError, match=r"not together: row .* Make the rows with by='unit'"),
    ):
        pms.HMCECS(data=rows, integrate=integrate)


def test_of_two_groupings_that_cannot_both_be_together_it_is_said_that_they_cross(tmp_path):
    film = np.random.default_rng(0).integers(0, 300, len(table()))
    rows = of(table().assign(film=film), tmp_path / "y.rows")
    s = rows.sample(300)
    with centred(s) as model:
        logit = model["u"][model["unit"]] + pm.Normal("w", shape=300)[pm.Data("film", s["film"])]
        pm.Bernoulli("also", logit_p=logit, observed=model["late"])
    said = r"several groupings have many levels of few rows, or .*: 'u' .*; 'w' \(apart on disk\)"
    with pytest.raises(TallModelError, match=said):
        pms.HMCECS(model=model, data=rows)


def test_rows_may_be_in_order_without_having_been_sorted(tmp_path):
    frame = table().sort_values("unit", kind="stable")
    rows = of(frame, tmp_path / "y.rows", by=None)
    assert units_of(centred(rows.sample(300)), "auto", "HMCECS", rows).integrates


def test_groups_of_many_rows_may_be_apart(tmp_path):
    few = np.arange(len(table())) % 4
    frame = table().assign(unit=[f"u{k}" for k in few])
    rows = of(frame, tmp_path / "y.rows", by=None)
    assert units_of(centred(rows.sample(300), 4), "auto", "HMCECS", rows) is None


def test_what_units_on_disk_are_not_made_of(rows):
    s = rows.sample(300)
    with centred(s) as model:
        pm.Normal("other", pm.Normal("b"), 1, observed=pm.Data("y", s["y"]))
    with pytest.raises(TallModelError, match="'other' reads rows on disk, and not 'u'"):
        units_of(model, ["u"], "HMCECS", rows)
    model = centred(s)
    with pytest.raises(ValueError, match="in one folder of rows"):
        pms.HMCECS(model=model, data=[rows, rows], integrate=["u"])
    with pm.Model() as model:
        school = pm.math.constant(np.arange(UNITS_N) % 200)[pm.Data("unit", s["unit"])]
        eta = pm.Normal("mu") + pm.Normal("u", shape=200)[school]
        pm.Bernoulli("o", logit_p=eta, observed=pm.Data("late", s["late"]))
    with pytest.raises(TallModelError, match="computes of columns on disk"):
        pms.HMCECS(model=model, data=rows, integrate=["u"])


def test_a_statistic_of_the_sample_is_refused_as_in_any_model(rows):
    s = rows.sample(300)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        u = pm.Normal("u", shape=UNITS_N)
        x = pm.Data("x", s["x"])
        eta = mu + tau * u[pm.Data("unit", s["unit"])] + x - x.mean()
        pm.Bernoulli("o", logit_p=eta, observed=pm.Data("late", s["late"]))
    with pytest.raises(TallModelError, match="statistic of the sample"):
        pms.HMCECS(model=model, data=rows)


def test_deterministics_of_the_sample_are_told(rows):
    model = centred(rows.sample(300))
    with model:
        pm.Deterministic("read", model["late"] + 1)
    units = units_of(model, "auto", "HMCECS", rows)
    tall = TallModel(units.marginal, data=units.data)
    with pytest.warns(UserWarning, match="'read': computed by PyMC from the rows that the model"):
        warn_of_rows(model, tall, units.lengths, units.sample)


def test_rows_that_change_are_noticed(rows):
    units = units_of(centred(rows.sample(300)), "auto", "HMCECS", rows)
    units.refuse_changes()
    with (rows.path / "rows.bin").open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(ValueError, match=r"were changed|it was changed"):
        units.refuse_changes()


def test_units_are_removed_with_what_made_them(rows):
    units = units_of(centred(rows.sample(300)), "auto", "HMCECS", rows)
    folder = rows.path / UNITS
    assert any(p.is_dir() for p in folder.iterdir())
    copy = pickle.loads(cloudpickle.dumps(units))
    del copy
    gc.collect()
    assert any(p.is_dir() for p in folder.iterdir())
    del units
    gc.collect()
    assert not list(folder.iterdir())
    again = of(table().iloc[:500], rows.path, overwrite=True)
    assert len(again) == 500


KILLED = """
import os, signal, sys
from pathlib import Path
from pymc_subsample.units.stored_tables import StoredTables
tables = StoredTables(Path(sys.argv[1]))
(tables._folder.path / "x").write_text("x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_units_of_a_process_that_was_killed_are_removed_by_the_next(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert len([p for p in (tmp_path / UNITS).iterdir() if p.is_dir()]) == 1
    tables = StoredTables(tmp_path)
    other = StoredTables(tmp_path)  # which leaves the first one's alone
    there = {p for p in (tmp_path / UNITS).iterdir() if p.is_dir()}
    assert there == {tables._folder.path, other._folder.path}


def test_a_folder_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    with pytest.raises(PermissionError, match="Units of rows on disk are written to a folder"):
        StoredTables(tmp_path)


def test_a_sample_that_is_integrated_by_itself_is_told(rows, caplog):
    pms.marginalize(centred(rows.sample(300)), "u")
    assert "without a step with data=rows, the 300 rows" in caplog.text


def test_units_say_what_they_are(rows, caplog):
    caplog.set_level(logging.INFO, logger="pymc.subsample")
    units_of(centred(rows.sample(300)), "auto", "HMCECS", rows)
    assert f"u integrated out: {UNITS_N} levels with 1 to 5 rows" in caplog.text
    assert "rows written" not in caplog.text


@pytest.mark.parametrize("name", ["centred", "slopes", "classes"])
@pytest.mark.parametrize("kind", ["mean", "outcome"])
def test_predictions_are_those_of_rows_in_memory(name, kind, rows):
    """Of draws of effects, which rows on disk read by the levels of their folder."""
    on_disk, in_memory = (MODELS[name](data) for data in (rows.sample(300), in_order(rows)))
    with in_memory:
        prior = pm.sample_prior_predictive(20, random_seed=1, var_names=list_of(in_memory))
    idata = xr.DataTree.from_dict({"posterior": prior["prior"].to_dataset()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*seems to hold no sample of")
        found = pms.predict(idata, "o", model=on_disk, data=rows, kind=kind, prob=0.9, draws=20)
        expected = pms.predict(idata, "o", model=in_memory, kind=kind, prob=0.9, draws=20)
    assert found["mean"].shape == (len(rows),)
    assert found["mean"].std() > 0.01
    for statistic in ("mean", "sd", "quantiles"):
        np.testing.assert_array_equal(found[statistic], expected[statistic])


def list_of(model):
    return [v.name for v in model.free_RVs]
