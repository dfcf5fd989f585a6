"""Models of rows of several lengths, each in a folder of its own: as if all were in memory."""

import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pymc as pm
import pymc.math as pmm
import pytest

import pymc_subsample as pms
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.rows import Rows
from pymc_subsample.rows.workers import Workers
from tests.model.test_binding import assert_same_rows

EVENTS, CENSORED, FEW = 3_000, 1_200, 12


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(5)

    def drawn(n, kind):
        x = rng.normal(size=(n, 2)).astype(kind)
        group = rng.integers(0, 4, n)
        rate = np.exp(0.3 * x[:, 0] - 0.4 * x[:, 1] + 0.2 * group - 1)
        time = rng.exponential(1 / rate)
        return {
            "x0": x[:, 0], "x1": x[:, 1], "group": group, "time": time.astype(kind),
            "count": rng.poisson(rate),
        }  # fmt: skip

    sizes = {"events": EVENTS, "censored": CENSORED, "few": FEW}
    return {name: drawn(n, "f4") for name, n in sizes.items()} | {
        "double": drawn(CENSORED, "f8"),
        "equal": drawn(EVENTS, "f4"),
    }


@pytest.fixture(scope="module")
def rows(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return {
        name: Rows.from_blocks([table], cache=folder / f"{name}.rows")
        for name, table in tables.items()
    }


def survival(events, censored):
    """Return a model of the times of events, and of those after which nobody looked."""
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        effect = pm.Normal("effect", -1, pm.HalfNormal("spread"), shape=4)

        def rate(s, end):
            X, group = pm.Data(f"X_{end}", s[f"X_{end}"]), pm.Data(f"g_{end}", s[f"g_{end}"])
            return pmm.exp(X @ beta + effect[group]), pm.Data(f"t_{end}", s[f"t_{end}"])

        lam, time = rate(events, "event")
        pm.Exponential("events", lam, observed=time)
        lam, time = rate(censored, "none")
        pm.Potential("censored", -lam * time)
    return model


def surveys(first, second):
    """Return a model of two data sets with one likelihood."""
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        alpha = pm.Normal("alpha")
        for s, end in ((first, "event"), (second, "none")):
            X, count = pm.Data(f"X_{end}", s[f"X_{end}"]), pm.Data(f"n_{end}", s[f"n_{end}"])
            pm.Poisson(f"counts_{end}", pmm.exp(alpha + X @ beta), observed=count)
    return model


def view(source, end):
    return {f"X_{end}": ["x0", "x1"], f"g_{end}": "group", f"t_{end}": "time", f"n_{end}": "count"}


def selected(rows, *names):
    ends = ["event", "none"]
    return [rows[n].select(**view(n, end)) for n, end in zip(names, ends, strict=True)]


def whole(tables, *names):
    return [
        {
            f"X_{end}": np.column_stack([tables[n]["x0"], tables[n]["x1"]]),
            f"g_{end}": tables[n]["group"], f"t_{end}": tables[n]["time"],
            f"n_{end}": tables[n]["count"],
        }
        for n, end in zip(names, ["event", "none"], strict=True)
    ]  # fmt: skip


CASES = {
    "survival": (survival, ("events", "censored")),
    "turned": (survival, ("censored", "events")),
    "surveys": (surveys, ("events", "censored")),
    "equal": (survival, ("events", "equal")),
    "few": (survival, ("events", "few")),
}
SIZES = {"few": FEW}


def written(make, views, sizes=(200, 200)):
    """Write a model on samples, of equal lengths unless told."""
    return make(*(v.sample(k) for v, k in zip(views, sizes, strict=True)))


def both(name, tables, rows, sizes=None):
    """Return the model bound to rows on disk, and that in memory."""
    make, names = CASES[name]
    views = selected(rows, *names)
    sizes = sizes or [min(200, SIZES.get(n, 200)) for n in names]
    bound = TallModel(written(make, views, sizes), data=views)
    return bound, TallModel(make(*whole(tables, *names)))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_model_in_memory(name, tables, rows):
    bound, full = both(name, tables, rows)
    assert bound.rows.names == full.rows.names
    assert bound.rows.starts == full.rows.starts
    assert [w.name for w in bound.whole] == [w.name for w in full.whole]
    assert (bound.batch.kind is None) == (full.batch.kind is None)
    rng = np.random.default_rng(0)
    theta, index = 0.3 * rng.normal(size=full.size), rng.integers(0, full.n_rows, 60)
    slices = [slice(17, 90), slice(bound.n_rows - 1300, bound.n_rows)]
    one, other = assert_same_rows(bound, full, theta, index, slices)
    at = [reference_at(ex, theta) for ex in (one, other)]
    np.testing.assert_array_equal(at[0].curvature, at[1].curvature)
    assert at[0].level == at[1].level


def test_samples_may_be_of_different_lengths(tables, rows):
    bound, full = both("survival", tables, rows, sizes=(300, 150))
    theta = np.full(full.size, 0.1)
    every = slice(0, full.n_rows)
    np.testing.assert_array_equal(bound.row_loglik(theta, every), full.row_loglik(theta, every))


@pytest.mark.costly(cases=0)
def test_columns_of_other_types_are_read_as_they_are(tables, rows):
    """Of two folders that keep one number in different types."""
    views = selected(rows, "events", "double")
    bound = TallModel(written(surveys, views), data=views)
    full = TallModel(surveys(*whole(tables, "events", "double")))
    theta, every = np.full(full.size, 0.1), np.arange(full.n_rows)
    np.testing.assert_allclose(
        bound.row_loglik(theta, every), full.row_loglik(theta, every), rtol=1e-12
    )
    ex = expand(bound, 2)
    gathered = np.zeros((ex.width, ex.n_rows))
    ex.gather(ex.packer.table, every, gathered)
    np.testing.assert_allclose(gathered, ex.take(every), rtol=1e-14)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("name", "step"),
    [("survival", pms.HMCECS), ("survival", pms.ScalableMH), ("few", pms.HMCECS),
     ("surveys", pms.sgmcmc.SGLD)],
)  # fmt: skip
def test_draws_are_those_of_the_model_in_memory(name, step, tables, rows):
    make, names = CASES[name]
    views = selected(rows, *names)
    sizes, draws = [min(200, SIZES.get(n, 200)) for n in names], []
    for model, more in (
        (written(make, views, sizes), {"data": views}),
        (make(*whole(tables, *names)), {}),
    ):
        with model:
            idata = pm.sample(
                step=step(**more), tune=60, draws=40, chains=1, random_seed=3, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
        draws.append(idata.posterior)
    for var in draws[1].data_vars:
        np.testing.assert_array_equal(draws[0][var], draws[1][var])


@pytest.mark.slow
def test_what_comes_after_reads_all_rows(tables, rows):
    views = selected(rows, "events", "censored")
    model, full = written(survival, views), survival(*whole(tables, "events", "censored"))
    with model:
        step = pms.HMCECS(data=tuple(views))
        idata = pm.sample(
            step=step, tune=200, draws=150, chains=2, random_seed=3, progressbar=False, cores=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert step.n_rows == EVENTS + CENSORED
    audits = [
        pms.audit(idata, model=m, rng=1, **more)
        for m, more in ((model, {"data": views}), (full, {}))
    ]
    shown = [str(audit).splitlines()[1:] for audit in audits]  # the first has the seconds
    assert shown[0] == shown[1]
    reports = [str(pms.report(idata, audit=audit)).splitlines() for audit in audits]
    assert [x for x in reports[0] if "passes over" not in x] == [
        x for x in reports[1] if "passes over" not in x
    ]
    with pytest.raises(
        TallModelError, match=r"'censored' is evaluated in full \(.*'t_none'.*sample\("
    ):
        pms.loo(idata, model=model, var_name="events", rng=1, data=views)
    with pytest.raises(TallModelError, match="None of what 'censored' reads is in data"):
        pms.loo(idata, model=model, var_name="events", rng=1, data=views[0])
    with pytest.raises(ValueError, match=r"sampled 4,200 rows, the model has 200 of 'events'"):
        pms.loo(idata, model=model, var_name="events", rng=1)
    # With the censored rows in memory, the events are left out one by one.
    [_, table] = whole(tables, "events", "censored")
    half = survival(views[0].sample(200), table)
    for name in ("observed_data", "constant_data"):  # of the samples
        del idata[name]
    one, other = (
        pms.loo(idata, model=m, var_name="events", rng=1, **more)
        for m, more in ((half, {"data": views[0]}), (full, {}))
    )
    assert one.elpd == other.elpd
    with pytest.raises(ValueError, match="rows"):
        pms.audit(idata, model=model)
    again = pickle.loads(pickle.dumps(step))
    assert again.n_rows == step.n_rows
    assert again.tall.rows.fingerprint == step.tall.rows.fingerprint


@pytest.mark.slow
def test_workers_read_all_folders(tables, rows):
    bound, _ = both("survival", tables, rows)
    ex = expand(bound, 2)
    theta = np.full(bound.size, 0.1)
    alone = reference_at(ex, theta)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ex.workers = Workers(pool)
        found = reference_at(ex, theta)
    np.testing.assert_array_equal(found.curvature, alone.curvature)


# What is refused


def test_a_name_in_two_folders_is_refused(rows):
    views = selected(rows, "events", "censored")
    model = written(survival, views)
    twice = [views[0], rows["censored"].select(**view("censored", "none"), X_event=["x0", "x1"])]
    with pytest.raises(TallModelError, match=r"2 columns of the name 'X_event', in .*select"):
        pms.HMCECS(model=model, data=twice)


def test_a_name_in_no_folder_is_refused(rows):
    views = selected(rows, "events", "censored")
    model = written(survival, views)
    less = rows["censored"].select(X_none=["x0", "x1"], t_none="time")
    with pytest.raises(TallModelError, match=r"'g_none', of shape \(200,\).*no column"):
        pms.HMCECS(model=model, data=[views[0], less])
    said = r"'._none', of shape \(200.*no column.* what 'censored' reads .*data=\[rows, others\]"
    with pytest.raises(TallModelError, match=said):
        pms.HMCECS(model=model, data=views[0])
    other = written(survival, views, (300, 150))
    with pytest.raises(TallModelError, match=r"150 of 'censored'.*data=\[rows, others\]"):
        pms.HMCECS(model=other, data=views[0])


def test_rows_on_disk_are_not_evaluated_in_full(rows):
    views = selected(rows, "events", "censored")
    with pytest.raises(
        TallModelError, match=r"'censored' .*not in likelihood=.*'X_none'.*likelihood="
    ):
        pms.HMCECS(model=written(survival, views), data=views, likelihood=["events"])


def test_folders_of_other_rows_are_refused(rows):
    views = selected(rows, "events", "censored")
    samples = [v.sample(200) for v in views]
    samples[1]["g_none"] = samples[1]["g_none"][::-1]
    with pytest.raises(TallModelError, match="does not occur in data, in the columns 'X_none', "):
        pms.HMCECS(model=survival(*samples), data=views)


def test_lengths_that_do_not_fit_are_refused(rows):
    views = selected(rows, "events", "censored")
    samples = [v.sample(200) for v in views]
    with pm.Model() as model:  # takes rows of two folders together
        beta = pm.Normal("beta", shape=2)
        X, time = pm.Data("X_event", samples[0]["X_event"]), pm.Data("t_none", samples[1]["t_none"])
        pm.Normal("obs", X @ beta, 1, observed=time)
    with pytest.raises(
        TallModelError, match=r"3,000 and 1,200 rows in the place of the 200 and 200"
    ):
        pms.HMCECS(model=model, data=views)
    equal = selected(rows, "events", "equal")
    with pytest.raises(TallModelError, match=r"different numbers of rows: .*one sample"):
        pms.HMCECS(model=written(survival, equal, (200, 100)), data=equal)
    few = selected(rows, "events", "few")
    with pytest.raises(TallModelError, match=r"has 5 of 12 rows.*rows\.sample\(12\)"):
        pms.HMCECS(model=written(survival, few, (200, 5)), data=few)


def test_a_model_that_uses_the_length_of_a_sample_is_refused(rows):
    views = selected(rows, "events", "censored")
    samples = [v.sample(200) for v in views]
    for kind, said in (
        ("prior", "its log prior differs"),
        ("rows", "the log-likelihood of 'events'"),
    ):
        with survival(*samples) as model:
            length = model["t_none"].shape[0]
            if kind == "prior":
                pm.Potential("weighed", -0.1 * length * (model["beta"] ** 2).sum())
            else:
                pm.Potential("more", model["t_none"] * model["beta"][0] / length)
        with pytest.raises(TallModelError, match=f"{said}.*written"):
            pms.HMCECS(model=model, data=views)


def test_what_is_no_list_of_rows_is_refused(rows, tables):
    model = written(survival, selected(rows, "events", "censored"))
    for data in ([rows["events"], tables["events"]], ["x.rows"], [], {}):
        with pytest.raises(TypeError, match=r"^data must be"):
            pms.HMCECS(model=model, data=data)


@pytest.mark.costly(cases=0)
def test_rows_of_one_model_are_predicted_from_their_folder(rows):
    views = selected(rows, "events", "censored")
    with written(survival, views) as model:
        idata = pm.sample_prior_predictive(50, random_seed=1)
    idata["posterior"] = idata["prior"]
    for data in (views[0], views, views[::-1]):
        assert pms.predict(idata, "events", model=model, data=data).sizes["row"] == EVENTS
    with pytest.raises(ValueError, match=r"data lacks .*'X_event'"):
        pms.predict(idata, "events", model=model, data=views[1])
    with pytest.raises(TypeError, match="data must be a dict of columns"):
        pms.predict(idata, "events", model=model, data=[views[0], {}])


@pytest.mark.costly(cases=0)
def test_rows_that_change_after_the_set_up_are_refused(tables, tmp_path):
    names = ("events", "censored")
    made = {n: Rows.from_blocks([tables[n]], cache=tmp_path / f"{n}.rows") for n in names}
    views = selected(made, *names)
    step = pms.HMCECS(model=written(survival, views), data=views)
    path = tmp_path / "censored.rows" / "rows.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape("censored.rows")):
        step.setup_chain(np.random.default_rng(1), 10, 10)


@pytest.mark.costly(cases=0)
def test_rows_that_were_appended_to_one_folder_are_all_read(tables, tmp_path):
    names = ("events", "censored")
    made = {n: Rows.from_blocks([tables[n]], cache=tmp_path / f"{n}.rows") for n in names}
    views = selected(made, *names)
    model = written(survival, views)
    pms.HMCECS(model=model, data=views)
    more = {name: x[:100] for name, x in tables["censored"].items()}
    made["censored"].append(more)
    views = selected(made, *names)
    after = pms.HMCECS(model=model, data=views)
    assert after.n_rows == EVENTS + CENSORED + 100
    later = {n: np.concatenate([x, more[n]]) for n, x in tables["censored"].items()}
    full = pms.HMCECS(model=survival(*whole(tables | {"censored": later}, *names)))
    np.testing.assert_array_equal(after.reference.slope, full.reference.slope)
