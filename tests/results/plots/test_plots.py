"""Pictures show the numbers that they are about, and wrong input is named."""

from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from exact_cases import regression_on_itself

import pymc_subsample as pms
from pymc_subsample.diagnostics.chain_ends import ChainEnd, as_group
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.results.advise.result import Option, duration
from pymc_subsample.results.plots.report import reach
from pymc_subsample.samplers.hmc_ecs.checks import RULES

matplotlib.use("agg")
SHAPE = (3, 400)
PLOTS = [pms.plot_subsample, pms.plot_batch_sizes, pms.plot_evaluations]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def tree(seed=0, **stats):
    rng = np.random.default_rng(seed)
    posterior = {"a": rng.normal(size=SHAPE), "b": rng.normal(size=(*SHAPE, 2)).cumsum(axis=1)}
    return az.from_dict({"posterior": posterior, "sample_stats": stats})


def hmc(seed=0, **extra):
    rng = np.random.default_rng(seed)
    return tree(
        seed,
        subset_accepted=rng.binomial(1, 0.9, SHAPE).astype(float),
        loglik_variance=rng.gamma(2, 0.2, SHAPE),
        data_share=np.full(SHAPE, 0.01),
        subsample_size=np.full(SHAPE, 100),
        n_evaluations=rng.integers(500, 1500, SHAPE),
        **extra,
    )


def metropolis(seed=0, rows=20_000, **extra):
    size = np.clip(np.exp(np.random.default_rng(seed).normal(6, 1, SHAPE)), 100, rows)
    return tree(
        seed,
        batch_size=size,
        data_share=size / rows,
        loglik_ratio_variance=1 / size,
        n_evaluations=(2 * size).astype(int),
        **extra,
    )


def panels(pc):
    return [axes for axes in pc.viz["figure"].item().axes if axes.get_title() or axes.lines]


def title(axes):
    return axes.get_title().split("\n")[0]


# The subsample over the draws


def test_subsample_of_hmc():
    idata = hmc()
    pc = pms.plot_subsample(idata)
    accepted, variance, share = panels(pc)
    assert title(accepted) == "Refreshes accepted"
    assert title(variance) == "Variance of estimate"
    assert title(share) == "Share of rows"
    stats = idata["sample_stats"]
    for name, bound in (("subset_accepted", 0.5), ("loglik_variance", 1.0)):
        for chain in range(3):
            x, y = pc.viz["means"][name].sel(chain=chain).item().get_data()
            values = stats[name].values[chain].reshape(50, 8)
            np.testing.assert_allclose(y, values.mean(axis=1))
            np.testing.assert_allclose(x, 3.5 + 8 * np.arange(50))
        assert pc.viz["bounds"][name].item().get_ydata()[0] == bound
    points = pc.viz["draws"]["loglik_variance"].sel(chain=1).item().get_offsets()
    np.testing.assert_allclose(points[:, 1], stats["loglik_variance"].values[1])
    assert variance.get_ylim()[1] > max(stats["loglik_variance"].max(), 1)
    legend = pc.viz["figure"].item().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1", "2"]


def test_subsample_of_metropolis():
    pc = pms.plot_subsample(metropolis())
    assert [title(axes) for axes in panels(pc)] == [
        "Variance of log-ratio",
        "Share of rows",
    ]


def test_pictures_of_runs_of_units_say_so():
    units = {"effect_axis_z": np.zeros(SHAPE, int)}
    share = panels(pms.plot_subsample(hmc(**units)))[2]
    assert title(share) == "Share of units"
    both = {"one": hmc(), "two": hmc(1, **units)}
    labels = [panels(pms.plot_evaluations(x))[0].get_xlabel() for x in (both, both["two"])]
    assert labels == ["Row or unit evaluations", "Unit evaluations"]
    batches = {"one": metropolis(), "two": metropolis(1, **units)}
    one, two = panels(pms.plot_batch_sizes(batches))
    assert one.get_title().endswith("of 20,000 rows")
    assert two.get_title().endswith("of 20,000 units")
    assert one.get_xlabel() == "Rows or units per decision"


def test_subsample_of_a_short_chain_whose_variance_is_infinite_at_a_draw():
    idata = hmc().isel(chain=[1], draw=slice(0, 30))
    idata["sample_stats"]["loglik_variance"][0, 3] = np.inf
    pc = pms.plot_subsample(idata)
    assert len(pc.viz["means"]["subset_accepted"].item().get_xdata()) == 30
    assert np.all(np.isfinite(panels(pc)[1].get_ylim()))
    assert not pc.viz["figure"].item().legends


# Batches


def test_batch_sizes():
    runs = {"one": metropolis(1), "two": metropolis(2, rows=3000)}
    pc = pms.plot_batch_sizes(runs)
    one, two = panels(pc)
    assert one.get_xscale() == one.get_yscale() == "log"
    assert one.get_xlim() == two.get_xlim()
    assert one.get_ylim() == two.get_ylim()
    for name, rows, axes in (("one", 20_000, one), ("two", 3000, two)):
        sizes = runs[name]["sample_stats"]["batch_size"].values
        assert axes.get_title() == f"{name}\nmean {sizes.mean():,.0f} of {rows:,} rows"
        assert pc.viz["mean"]["batch_size"].sel(run=name).item().get_xdata()[0] == sizes.mean()
        assert pc.viz["rows"]["batch_size"].sel(run=name).item().get_xdata()[0] == rows
        outline = pc.viz["bars"]["batch_size"].sel(run=name).item().get_paths()[0].vertices
        for edge in np.geomspace(100, 100_000, 41)[3:20:4]:
            height = max(outline[np.isclose(outline[:, 0], edge), 1])
            ratio = 1000 ** (1 / 40)
            left = np.sum((sizes >= edge / ratio) & (sizes < edge))
            right = np.sum((sizes >= edge) & (sizes < edge * ratio))
            assert height == max(left, right)


def test_batch_sizes_of_one_run():
    pc = pms.plot_batch_sizes(metropolis())
    assert panels(pc)[0].get_title().startswith("mean ")
    assert panels(pc)[0].get_ylabel() == "Draws"


def test_batches_of_all_rows_and_of_none():
    size = np.full(SHAPE, 100.0)
    size[0, 3] = 0
    idata = tree(batch_size=size, data_share=size / 100, n_evaluations=size)
    pc = pms.plot_batch_sizes(idata)
    outline = pc.viz["bars"]["batch_size"].item().get_paths()[0].vertices
    assert outline[:, 1].max() == size.size - 1


def test_many_runs_are_wrapped():
    pc = pms.plot_batch_sizes({f"run {i}": metropolis(i) for i in range(5)})
    figure = pc.viz["figure"].item()
    assert len(panels(pc)) == 5
    assert figure.get_figheight() == pytest.approx(2 * 3.4)


# Evaluations


def test_evaluations():
    sign = np.where(np.random.default_rng(5).random(SHAPE) < 0.1, -1, 1)
    runs = {"hmc": hmc(), "signed": hmc(1, sign=sign), "metropolis": metropolis()}
    pc = pms.plot_evaluations(runs, ["a"], n_points=4)
    for name, idata in runs.items():
        x, y = pc.viz["lines"]["ess"].sel(run=name).item().get_data()
        assert len(x) == 4
        assert x[-1] == idata["sample_stats"]["n_evaluations"].sum()
        whole = pms.summary(idata, ["a"], kind="diagnostics", round_to="none")
        assert y[-1] == pytest.approx(whole.loc["a", "ess_bulk"])
        first = idata.isel(draw=slice(0, 20))
        assert x[0] == first["sample_stats"]["n_evaluations"].sum()
        if name != "signed":
            few = az.summary(first, var_names=["a"], kind="diagnostics", round_to="none")
            assert y[0] == pytest.approx(few.loc["a", "ess_bulk"])
    (axes,) = panels(pc)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    legend = pc.viz["figure"].item().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == list(runs)


def test_evaluations_take_the_smallest_sample_size():
    idata = hmc()
    pc = pms.plot_evaluations(idata)
    ess = az.summary(idata, kind="diagnostics", round_to="none")["ess_bulk"]
    assert ess.min() < ess["a"] / 5
    assert pc.viz["lines"]["ess"].item().get_ydata()[-1] == pytest.approx(ess.min())


@pytest.mark.parametrize("n_points", [1, 2.5, True, "many"])
def test_points_are_counted(n_points):
    with pytest.raises(ValueError, match="n_points must be an integer of at least 2"):
        pms.plot_evaluations(hmc(), n_points=n_points)


def test_evaluations_of_parts_are_refused():
    with pytest.raises(ValueError, match="runs: x has 10 draws per chain"):
        pms.plot_evaluations({"x": hmc().isel(draw=slice(0, 10))})
    with pytest.raises(ValueError, match="thinned"):
        pms.plot_evaluations(hmc().isel(draw=slice(None, None, 2)))


# Audits


def audit(k=3, **changed):
    rng = np.random.default_rng(3)
    columns = {
        "mean": 5 + rng.normal(size=k),
        "sd": rng.gamma(2, size=k),
        "corrected_mean": 5 + rng.normal(size=k),
        "corrected_sd": 1 + rng.gamma(2, size=k),
        "corrected_mean_mcse": rng.gamma(2, 0.1, size=k),
    } | changed
    data = {name: ("parameter", np.asarray(values)) for name, values in columns.items()}
    labels = [f"beta[{i}]" for i in range(k)]
    return SimpleNamespace(table=xr.Dataset(data, {"parameter": labels}))


def test_audit():
    result = audit()
    table = result.table
    pc = pms.plot_audit(result)
    of_mean, of_sd = panels(pc)
    points = pc.viz["errors"]["mean"].item().get_offsets()
    error = (table["mean"] - table["corrected_mean"]) / table["corrected_sd"]
    np.testing.assert_allclose(points, np.stack([error, [0, -1, -2]], axis=1))
    points = pc.viz["errors"]["sd"].item().get_offsets()
    np.testing.assert_allclose(points[:, 0], table["sd"] / table["corrected_sd"])
    ends = pc.viz["noise"]["mean"].item().get_xdata().reshape(3, 3)[:, :2]
    reach = 2 * table["corrected_mean_mcse"] / table["corrected_sd"]
    np.testing.assert_allclose(ends.mean(axis=1), error)
    np.testing.assert_allclose(np.diff(ends)[:, 0] / 2, reach)
    labels = [text.get_text() for text in of_mean.get_yticklabels()]
    assert labels == ["beta[0]", "beta[1]", "beta[2]"]
    assert pc.viz["none"]["sd"].item().get_xdata()[0] == 1
    for axes, lowest, highest in ((of_mean, -0.1, 0.1), (of_sd, 0.95, 1.05)):
        assert axes.get_xlim()[0] < lowest
        assert axes.get_xlim()[1] > highest
    assert of_mean.get_xlim()[0] < ends.min()
    assert of_mean.get_xlim()[1] > ends.max()


def test_audit_shows_the_worst_parameters_in_their_order():
    shift, ratio = np.zeros(60), np.ones(60)
    shift[[7, 30]], ratio[50] = 0.3, 1.2
    result = audit(60, mean=shift, corrected_mean=np.zeros(60), sd=ratio, corrected_sd=np.ones(60))
    pc = pms.plot_audit(result, max_parameters=3)
    labels = [text.get_text() for text in panels(pc)[0].get_yticklabels()]
    assert labels == ["beta[7]", "beta[30]", "beta[50]"]
    assert panels(pc)[0].get_title().endswith("\n3 of 60 parameters")
    labels = panels(pms.plot_audit(result))[0].get_yticklabels()
    assert len(labels) == 40


def test_audit_with_the_errors_of_its_errors():
    noise = np.array([0.1, 0.2, 0.3])
    result = audit()
    result.table["bias_mcse"] = ("parameter", noise)
    ends = pms.plot_audit(result).viz["noise"]["mean"].item().get_xdata().reshape(3, 3)[:, :2]
    np.testing.assert_allclose(np.diff(ends)[:, 0], 4 * noise)


def test_audit_leaves_constants_out():
    constant = {"mean": [1, 1, 2], "corrected_mean": [1 + 1e-13, 1, 2]}
    result = audit(sd=[0, 1, 1], corrected_sd=[0, 1, 1], **constant)
    labels = panels(pms.plot_audit(result))[0].get_yticklabels()
    assert [text.get_text() for text in labels] == ["beta[1]", "beta[2]"]
    with pytest.raises(ValueError, match="no parameters that vary"):
        pms.plot_audit(audit(sd=np.zeros(3), corrected_sd=np.zeros(3), **constant))


@pytest.mark.parametrize(("kind", "k_hat", "doubt"), [
    ("weights", 0.4, False), ("weights", 0.9, True), ("weights", np.nan, True),
    ("score", np.nan, False),
])  # fmt: skip
def test_audit_says_when_its_corrections_are_in_doubt(kind, k_hat, doubt):
    result = audit()
    result.kind, result.k_hat = kind, k_hat
    title = pms.plot_audit(result).viz["figure"].item().get_suptitle()
    assert title.startswith("The corrections are not reliable: k-hat") == doubt


def test_audit_without_known_errors_is_drawn_without_them():
    result = audit()
    result.kind, result.k_hat = "weights", np.inf
    result.table["bias_mcse"] = ("parameter", np.full(3, np.inf))
    pc = pms.plot_audit(result)
    assert "errors are not known" in pc.viz["figure"].item().get_suptitle()
    ends = pc.viz["noise"]["mean"].item().get_xdata().reshape(3, 3)[:, :2]
    np.testing.assert_array_equal(np.diff(ends), 0)


def test_what_is_no_audit_is_refused():
    incomplete = SimpleNamespace(table=audit().table.drop_vars("corrected_sd"))
    for wrong, found in ((hmc(), "NoneType"), (object(), "NoneType"), (incomplete, "'mean'")):
        with pytest.raises(TypeError, match=f"audit must have a table of .*{found}"):
            pms.plot_audit(wrong)
    with pytest.raises(ValueError, match=r"no finite errors for beta\[1\];"):
        pms.plot_audit(audit(corrected_sd=[1.0, 0.0, 2.0]))
    with pytest.raises(ValueError, match="max_parameters must be a positive integer"):
        pms.plot_audit(audit(), max_parameters=0)


# Reports


def judged(failed=(), **numbers):
    """A run of `HMCECS` whose checks are given by name; others are where they should be."""
    last = {rule.name: rule.bound if rule.at_least or rule.equal else 0.0 for rule in RULES}
    last |= numbers
    idata, (chains, draws) = hmc(), SHAPE
    ends = [[ChainEnd("HMCECS", "HMCECS", last, tuple(failed), draws)]] * chains
    idata["checks"] = as_group(ends)
    return idata


def test_report_places_checks_between_pass_and_fail():
    idata = judged(
        ["loglik_variance", "reference_distance"], loglik_variance=3.0, reference_distance=2.0,
        subset_accepted=0.75,
    )  # fmt: skip
    found = pms.report(idata)
    pc = pms.plot_report(idata)
    of_checks, variance, size = panels(pc)
    assert pc.viz["figure"].item().get_suptitle() == found.head
    assert found.head.startswith("FAIL")
    labels = [" ".join(t.get_text().split()) for t in of_checks.get_yticklabels()]
    assert len(labels) == len(found.findings)
    places = {f.name: -k for k, f in enumerate(found.findings)}
    at = {}
    for status in ("pass", "warn", "fail"):
        names = {f.name for f in found.findings if f.status == status}
        points = pc.viz[status]["checks"].item().get_offsets()
        assert set(points[:, 1]) == {places[name] for name in names}
        at |= {y: x for x, y in points}
        ends = np.ravel(pc.viz[f"{status} bars"]["checks"].item().get_xdata())
        np.testing.assert_allclose(ends.reshape(-1, 3)[:, :2], [[0, x] for x in points[:, 0]])
    # b's cumulative sums have not mixed.
    assert {f.name for f in found.findings if f.status == "fail"} == {
        "loglik_variance", "r_hat", "ess",
    }  # fmt: skip
    assert at[places["loglik_variance"]] == pytest.approx(3 / 4)
    assert at[places["subset_accepted"]] == pytest.approx(0.5 / 1.25)
    assert at[places["reference_distance"]] == pytest.approx(2 / 3)
    assert at[places["perturbation"]] == 0
    assert at[places["temperature"]] == 0
    assert at[places["ess"]] > 0.5
    assert labels[-places["loglik_variance"]] == "variance of the estimate: 3 (<= 1)"
    assert (
        labels[-places["subset_accepted"]] == "accepted refreshes of the subsample: 0.75 (>= 0.5)"
    )
    assert title(variance) == "Variance of estimate"
    assert title(size) == "Rows in subsample"
    drawn = pc.viz["means"]["loglik_variance"].sel(chain=1).item().get_ydata()
    values = idata["sample_stats"]["loglik_variance"].values[1]
    np.testing.assert_allclose(drawn, values.reshape(50, 8).mean(axis=1))
    assert list(pc.viz["bounds"].data_vars) == ["loglik_variance"]
    legend = pc.viz["figure"].item().legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("value", "bound", "more", "expected"),
    [
        (0.0, 1.0, {}, 0.0),
        (1.0, 1.0, {}, 0.5),
        (3.0, 1.0, {}, 0.75),
        (np.inf, 1.0, {}, 1.0),
        (-np.inf, 0.7, {}, 0.0),
        (0.0, 0.0, {}, 0.0),
        (2.0, 0.0, {}, 1.0),
        (np.nan, 1.0, {}, 1.0),
        (np.nan, 1.0, {"passed": True}, 0.0),
        (400.0, 400.0, {"at_least": True}, 0.5),
        (100.0, 400.0, {"at_least": True}, 0.8),
        (0.0, 400.0, {"at_least": True}, 1.0),
        (1.0, 1.0, {"equal": True}, 0.0),
        (2.0, 1.0, {"equal": True}, 1.0),
        (1.0, 1.01, {"name": "r_hat"}, 0.0),
        (1.01, 1.01, {"name": "r_hat"}, 0.5),
    ],
)
def test_half_the_way_is_the_bound(value, bound, more, expected):
    given = {"name": "x", "title": "x", "remedy": ""} | more
    passed = given.pop("passed", None)
    rule = Rule(bound=bound, **given)
    assert reach(rule.check(value, "", passed)) == pytest.approx(expected)


# Advice


def advised():
    options = (
        Option("ScalableMH", True, "passed", 3.0, setup_seconds=2.0, rows=14.0),
        Option("HMCECS", False, "failed", 40.0, setup_seconds=2.5, note="variance 4"),
        Option("FireflyMC", True, "refused", note="FireflyMC needs a bound. It has none."),
        Option("SGHMC", False, "untried", note="another step pays"),
        Option("nutpie", True, "projected", 32_400.0, True),
    )
    return pms.Advice(
        "ScalableMH", "", "", tried="ScalableMH", against="nutpie", subsample_size=14.0,
        options=options,
    )  # fmt: skip


def test_advice():
    advice = advised()
    pc = pms.plot_advice(advice)
    (axes,) = pc.viz["figure"].item().axes
    assert pc.viz["figure"].item().get_suptitle() == (
        "use ScalableMH: exact, 14 rows per draw, 1,000 effective draws in 3 s; nutpie\n"
        "over 9 h (a lower bound)"
    )
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == [
        "ScalableMH (exact)", "HMCECS (perturbed)", "nutpie (exact)", "FireflyMC (exact)",
        "SGHMC (perturbed)",
    ]  # fmt: skip
    colours = {}
    known = {option.sampler: option for option in advice.options}
    for k, option in enumerate(known[name] for name in ("ScalableMH", "HMCECS", "nutpie")):
        points = pc.viz[option.sampler]["seconds"].item()
        np.testing.assert_allclose(points.get_offsets(), [[np.log10(option.seconds), -k]])
        filled = np.array_equal(points.get_facecolor(), points.get_edgecolor())
        assert filled == option.exact  # open if perturbed
        colours[option.sampler] = tuple(points.get_edgecolor()[0])
        line = pc.viz[f"{option.sampler} line"]["seconds"].item().get_xdata()
        assert line[1] == np.log10(option.seconds)
        if option.setup_seconds > 0:
            assert line[0] == np.log10(option.setup_seconds)
    assert colours["ScalableMH"] != colours["HMCECS"] == colours["nutpie"]
    said = [text.get_text() for text in axes.texts]
    assert said == [
        "3 s, recommended", "40 s, failed its checks", "over 9 h",
        "refused: FireflyMC needs a bound", "untried: another step pays",
    ]  # fmt: skip
    assert axes.get_xlim()[0] < np.log10(2.0)
    assert axes.get_xlim()[1] > np.log10(32_400)
    ticks = [duration(round(10**t, 6)) for t in axes.get_xticks()]
    assert 3 <= len(ticks) <= 8
    assert [text.get_text() for text in axes.get_xticklabels()] == ticks


def test_advice_of_infinite_times():
    options = [*advised().options, Option("SGLD", False, "passed", np.inf, setup_seconds=2.0)]
    pc = pms.plot_advice(replace(advised(), options=tuple(options)))
    (axes,) = pc.viz["figure"].item().axes
    [[x, _]] = pc.viz["SGLD"]["seconds"].item().get_offsets()
    assert np.log10(32_400) < x < axes.get_xlim()[1] < np.inf
    assert "forever" in [text.get_text() for text in axes.texts]
    alone = replace(advised(), options=(Option("SGLD", False, "passed", np.inf),))
    (axes,) = pms.plot_advice(alone).viz["figure"].item().axes
    assert np.all(np.isfinite(axes.get_xlim()))


def test_advice_without_times_is_refused():
    with pytest.raises(TypeError, match=r"what pms\.advise returned, got int"):
        pms.plot_advice(3)
    nothing = pms.Advice("nutpie", "It is not smooth.", "", options=advised().options[2:3])
    with pytest.raises(ValueError, match="predicts no times: It is not smooth"):
        pms.plot_advice(nothing)


# Errors


def of_normals(shift=0.0, seed=0, draws=400, evaluations=7.0, **more):
    rng = np.random.default_rng(seed)
    a = 5 + 2 * (rng.normal(size=(3, draws)) + shift)
    b = rng.normal(size=(3, draws, 2)) + shift
    stats = {"n_evaluations": np.full((3, draws), evaluations)} | more
    idata = az.from_dict({"posterior": {"a": a, "b": b}, "sample_stats": stats})
    idata["posterior"].attrs |= {"sampling_time": 10.0, "tuning_steps": 100}
    return idata


def test_errors_are_those_of_running_means():
    reference = of_normals(seed=9, draws=5_000)
    runs = {"exact": of_normals(), "off": of_normals(0.5, 1, evaluations=2.0)}
    pc = pms.plot_error_against_cost(runs, reference=reference, n_points=5)
    posterior = reference["posterior"].to_dataset()
    for name, each in (("exact", 7.0), ("off", 2.0)):
        x, y = pc.viz["lines"]["error"].sel(run=name).item().get_data()
        assert len(x) == 5
        assert x[0] == 5 * each
        assert x[-1] == 400 * each
        for cost, error in ((x[0], y[0]), (x[-1], y[-1])):
            k = round(cost / each)
            off = []
            for variable in ("a", "b"):
                all_draws = posterior[variable].values
                draws = runs[name]["posterior"][variable].values[:, :k]
                mean, sd = (f(all_draws, axis=(0, 1)) for f in (np.mean, np.std))
                off.append(np.ravel((draws.mean(axis=1) - mean) / sd))
            assert error == pytest.approx(np.sqrt(np.mean(np.concatenate(off) ** 2)))
    assert y[-1] == pytest.approx(0.5, abs=0.1)
    noise = pc.viz["reference"]["error"].item().get_ydata()[0]
    assert noise == pytest.approx(1 / np.sqrt(15_000), rel=0.2)
    assert pc.viz["tolerated"]["error"].item().get_ydata()[0] == 0.1
    (axes,) = panels(pc)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_xlabel() == "Row evaluations of a chain"


def test_errors_of_signed_draws_weigh_them():
    sign = np.where(np.random.default_rng(5).random((3, 400)) < 0.1, -1, 1)
    run, reference = of_normals(sign=sign), of_normals(seed=9, draws=5_000)
    pc = pms.plot_error_against_cost(run, ["a"], reference=reference, n_points=2)
    draws, known = run["posterior"]["a"].values, reference["posterior"]["a"].values
    mean = (sign * draws).sum(axis=1) / sign.sum(axis=1)
    expected = np.sqrt(np.mean(((mean - known.mean()) / known.std()) ** 2))
    assert pc.viz["lines"]["error"].item().get_ydata()[-1] == pytest.approx(expected)


def test_errors_against_seconds_and_of_nuts():
    reference = of_normals(seed=9, draws=5_000)
    pc = pms.plot_error_against_cost(of_normals(), reference=reference, cost="seconds", n_points=2)
    x = pc.viz["lines"]["error"].item().get_xdata()
    np.testing.assert_allclose(x, [10 * 105 / 500, 10.0])
    nuts = of_normals(n_steps=np.full((3, 400), 4))
    del nuts["sample_stats"]["n_evaluations"]
    with pytest.raises(ValueError, match="does not say how many rows it evaluated"):
        pms.plot_error_against_cost({"NUTS": nuts}, reference=reference)
    nuts["observed_data"] = xr.Dataset({"y": ("row", np.zeros(1_000)), "z": ("one", [0.0])})
    pc = pms.plot_error_against_cost({"NUTS": nuts}, reference=reference, n_points=2)
    x = pc.viz["lines"]["error"].sel(run="NUTS").item().get_xdata()
    np.testing.assert_allclose(x, 2 * 1_000 * 4 * np.array([5, 400]))


def test_errors_of_what_does_not_fit_are_refused():
    run, reference = of_normals(), of_normals(seed=9)
    with pytest.raises(TypeError, match="reference must be the DataTree"):
        pms.plot_error_against_cost(run, reference=3)
    with pytest.raises(ValueError, match="cost must be one of 'evaluations', 'seconds'"):
        pms.plot_error_against_cost(run, reference=reference, cost="rows")
    lacks = run.copy()
    lacks["posterior"] = lacks["posterior"].to_dataset().isel(b_dim_0=slice(0, 1))
    with pytest.raises(ValueError, match=r"lacks has no 'b' of the shape .* \(2,\)"):
        pms.plot_error_against_cost({"lacks": lacks}, reference=reference)
    run["posterior"].attrs.clear()
    with pytest.raises(ValueError, match="the run does not hold the time"):
        pms.plot_error_against_cost(run, reference=reference, cost="seconds")
    constant = reference.copy()
    constant["posterior"] = 0 * constant["posterior"].to_dataset()
    with pytest.raises(ValueError, match="no element of its variables varies"):
        pms.plot_error_against_cost(run, reference=constant)


# All of them


@pytest.mark.parametrize("plot", PLOTS)
def test_results_of_other_samplers_are_refused(plot):
    with pytest.raises(ValueError, match=r"sample_stats has no .*; it has \['lp'\]"):
        plot(tree(lp=np.zeros(SHAPE)))
    posterior = tree(lp=np.zeros(SHAPE))["posterior"].to_dataset()
    with pytest.raises(TypeError, match="must be the DataTree"):
        plot(posterior)


@pytest.mark.parametrize("plot", PLOTS[1:])
def test_collections_of_anything_else_are_refused(plot):
    with pytest.raises(TypeError, match="got an empty one"):
        plot({})
    with pytest.raises(TypeError, match="got int"):
        plot(3)
    with pytest.raises(TypeError, match=r"must be the DataTree that pm\.sample returned, got list"):
        plot({"a": [1, 2]})


def test_a_run_of_several_steps_has_all_of_them():
    idata = metropolis()
    stats = idata["sample_stats"].to_dataset()
    share, size = stats["data_share"], stats["batch_size"]
    parts = [xr.full_like(share, 0.5), share]
    stats["data_share"] = xr.concat(parts, "a").transpose("chain", "draw", "a")
    idata["sample_stats"] = stats
    titles = [title(axes) for axes in panels(pms.plot_subsample(idata))]
    assert titles == ["Variance of log-ratio", "Share of rows, step 1", "Share of rows, step 2"]
    # The share that is proportional to the batches is theirs.
    assert "of 20,000 rows" in panels(pms.plot_batch_sizes(idata))[0].get_title()
    stats["batch_size"] = xr.concat([size, size], "b").transpose("chain", "draw", "b")
    idata["sample_stats"] = stats
    titles = [title(axes) for axes in panels(pms.plot_batch_sizes({"two": idata}))]
    assert titles == ["two, step 1", "two, step 2"]


def test_a_run_without_chains_is_refused():
    for plot, run in zip(PLOTS[:2], (hmc(), metropolis()), strict=True):
        with pytest.raises(ValueError, match=r"keep its dimension: idata\.isel\(chain=\[0\]\)"):
            plot(run.isel(chain=0))


def test_arguments_reach_the_figure():
    for plot, argument in (
        *((plot, run) for plot, run in zip(PLOTS, (hmc(), metropolis(), hmc()), strict=True)),
        (pms.plot_audit, audit()),
    ):
        pc = plot(argument, figure_kwargs={"figsize": (5, 2)})
        assert tuple(pc.viz["figure"].item().get_size_inches()) == (5, 2)
        assert plot(argument, backend="none").backend == "none"


@pytest.mark.costly(cases=0)
def test_a_real_run_from_a_file(tmp_path):
    pytest.importorskip("netCDF4")
    with regression_on_itself():
        idata = pm.sample(
            100, tune=100, chains=2, cores=1, step=pms.HMCECS(subsample_size=50),
            progressbar=False, random_seed=1,
        )  # fmt: skip
    idata.to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as read:
        for plot in (pms.plot_subsample, pms.plot_evaluations):
            pc = plot(read)
            pc.savefig(tmp_path / "picture.png")
            assert plt.imread(tmp_path / "picture.png").std() > 0
        with pytest.raises(ValueError, match="sample_stats has no 'batch_size'"):
            pms.plot_batch_sizes(read)
