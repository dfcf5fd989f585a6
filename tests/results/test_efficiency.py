"""What effective draws cost."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_subsample as pms
from pymc_subsample.diagnostics import signed


def tree(seconds=4.0, share=0.02, **stats):
    rng = np.random.default_rng(1)
    shape = (2, 300)
    posterior = {"a": rng.normal(size=shape), "b": rng.normal(size=(*shape, 2))}
    idata = az.from_dict(
        {
            "posterior": posterior,
            "sample_stats": {
                "n_evaluations": np.full(shape, 1200),
                "data_share": np.full(shape, share),
                "subsample_size": np.full(shape, 100),
                "n_rows": np.full(shape, 5000),
            }
            | {name: np.broadcast_to(value, shape) for name, value in stats.items()},
        }
    )
    if seconds is not None:
        idata["posterior"].attrs["sampling_time"] = seconds
    return idata


def test_costs_are_per_effective_draw():
    idata = tree()
    table = pms.efficiency(idata)
    ess = az.summary(idata, kind="diagnostics", round_to="none")["ess_bulk"]
    assert list(table.index) == ["a", "b[0]", "b[1]"]
    np.testing.assert_allclose(table["ess_bulk"], ess)
    np.testing.assert_allclose(table["evaluations_per_effective_draw"], 600 * 1200 / ess)
    np.testing.assert_allclose(table["passes_per_effective_draw"], 600 * 1200 / 5000 / ess)
    np.testing.assert_allclose(table["effective_draws_per_second"], ess / 4)
    np.testing.assert_allclose(table["data_share"], 0.02)
    np.testing.assert_array_equal(table["rows"], 5000)


def test_units_are_called_units():
    assert "units" not in pms.efficiency(tree())
    table = pms.efficiency(tree(effect_axis_z=0))
    assert "rows" not in table
    np.testing.assert_array_equal(table["units"], 5000)


def test_variables_are_selected_as_in_a_summary():
    idata = tree()
    assert list(pms.efficiency(idata, "b").index) == ["b[0]", "b[1]"]
    assert list(pms.efficiency(idata, "~b").index) == ["a"]
    assert list(pms.efficiency(idata, ["b"], coords={"b_dim_0": [1]}).index) == ["b[1]"]
    assert list(pms.efficiency(idata, "^a", filter_vars="regex").index) == ["a"]


def test_signed_draws_count_as_what_they_are_worth():
    sign = np.where(np.random.default_rng(2).random((2, 300)) < 0.1, -1, 1)
    idata = tree(sign=sign)
    table = pms.efficiency(idata)
    worth = signed.ess_bulk(idata["posterior"]["a"].values, sign)
    assert table.loc["a", "ess_bulk"] == pytest.approx(worth)
    # Eight of ten signs in balance: independent draws are worth 0.64 of their number.
    assert worth == pytest.approx(0.64 * 600, rel=0.25)
    assert table.loc["a", "evaluations_per_effective_draw"] == pytest.approx(720_000 / worth)


def test_what_is_unknown_is_not_a_number():
    table = pms.efficiency(tree(seconds=None))
    assert table["effective_draws_per_second"].isna().all()
    assert table["evaluations_per_effective_draw"].notna().all()
    others = tree()
    others["sample_stats"] = others["sample_stats"].to_dataset().drop_vars("n_rows")
    assert pms.efficiency(others)[["rows", "passes_per_effective_draw"]].isna().all(axis=None)
    several = tree()
    stats = several["sample_stats"].to_dataset()
    for name in ("n_evaluations", "data_share"):
        stats[name] = xr.concat([stats[name], stats[name]], f"{name}_dim_0").transpose(
            "chain", "draw", ...
        )
    several["sample_stats"] = stats
    table = pms.efficiency(several)
    assert table["data_share"].isna().all()
    np.testing.assert_array_equal(table["rows"], 5000)  # the steps agree
    np.testing.assert_allclose(
        table["evaluations_per_effective_draw"],
        2 * pms.efficiency(tree())["evaluations_per_effective_draw"],
    )


@pytest.mark.parametrize("name", ["n_evaluations", "data_share"])
def test_results_of_other_samplers_are_refused(name):
    idata = tree()
    idata["sample_stats"] = idata["sample_stats"].to_dataset().drop_vars(name)
    with pytest.raises(ValueError, match=f"sample_stats has no '{name}'; it has"):
        pms.efficiency(idata)
    del idata["sample_stats"]
    with pytest.raises(ValueError, match="it has nothing"):
        pms.efficiency(idata)
    with pytest.raises(TypeError, match="idata must be the DataTree"):
        pms.efficiency(idata["posterior"].to_dataset())


def test_parts_of_a_run_are_refused():
    with pytest.raises(ValueError, match="idata was thinned"):
        pms.efficiency(tree().isel(draw=slice(None, None, 3)))
    with pytest.raises(ValueError, match=r"idata\.isel\(chain=\[0\]\)"):
        pms.efficiency(tree(sign=1).isel(chain=0))
    with pytest.raises(ValueError, match="coords selects by chain"):
        pms.efficiency(tree(), coords={"chain": [0]})


@pytest.mark.parametrize("part", [{"draw": slice(100, None)}, {"chain": [1]}])
def test_the_time_of_a_part_is_not_known(part):
    table = pms.efficiency(tree().isel(part))
    assert table["effective_draws_per_second"].isna().all()
    assert table["evaluations_per_effective_draw"].notna().all()


def of_steps(name_values, **stats):
    """A run of two steps, whose statistics have a third dimension."""
    idata = tree(**stats)
    found = idata["sample_stats"].to_dataset()
    for name, values in name_values.items():
        parts = [xr.full_like(found["data_share"], 1.0, dtype=float) * v for v in values]
        found[name] = xr.concat(parts, f"{name}_dim_0").transpose("chain", "draw", ...)
    idata["sample_stats"] = found
    return idata


def test_runs_of_several_steps():
    both = {"subsample_size": (100, 300), "data_share": (0.02, 0.06)}
    np.testing.assert_array_equal(pms.efficiency(of_steps(both, sign=1))["rows"], 5000)
    other = both | {"n_rows": (5000, 6000)}
    assert pms.efficiency(of_steps(other))["rows"].isna().all()
    batch = 100 + 20 * np.random.default_rng(0).integers(0, 9, (2, 300))
    mixed = of_steps({"data_share": (batch / 5000, 100 / 5000)}, batch_size=batch)
    np.testing.assert_array_equal(pms.efficiency(mixed)["rows"], 5000)


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    found = {}
    for name, step in {
        "HMCECS": lambda: pms.HMCECS(subsample_size=50),
        "MinibatchBarkerMH": pms.MinibatchBarkerMH,
    }.items():
        with pm.Model():
            slope = pm.Normal("slope", 0, 1)
            pm.Normal("y", slope * x, 1, observed=x + rng.normal(size=2000))
            found[name] = pm.sample(
                200, tune=200, chains=2, cores=1, step=step(), progressbar=False, random_seed=1
            )
    return found


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", ["HMCECS", "MinibatchBarkerMH"])
def test_runs_fresh_and_from_a_file(runs, name, tmp_path):
    pytest.importorskip("netCDF4")
    idata = runs[name]
    table = pms.efficiency(idata)
    idata.to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as read:
        assert pms.efficiency(read).equals(table)
    assert table.loc["slope", "rows"] == 2000
    seconds = idata["posterior"].attrs["sampling_time"]
    assert 0 < seconds < 600
    assert table.loc["slope", "effective_draws_per_second"] == pytest.approx(
        table.loc["slope", "ess_bulk"] / seconds
    )
    spent = int(idata["sample_stats"]["n_evaluations"].sum())
    assert table.loc["slope", "passes_per_effective_draw"] == pytest.approx(
        spent / 2000 / table.loc["slope", "ess_bulk"]
    )
