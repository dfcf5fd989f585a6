"""Passes over the rows: the same sums whoever makes them, and no harm from workers that fail."""

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba import types

import pymc_subsample as pms
from pymc_subsample.bounds.predictor_ranges import reach
from pymc_subsample.chain.arguments import workers as checked
from pymc_subsample.compiled import cache
from pymc_subsample.compiled.functions import VECTOR, compile_source
from pymc_subsample.diagnostics.estimate_errors import Estimator, read_all, read_few
from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion import expansion as expansion_module
from pymc_subsample.expansion.everywhere import distinct
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModelError
from pymc_subsample.rows import workers as module
from pymc_subsample.rows.row_store import RowStore
from pymc_subsample.rows.workers import Workers, processors

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

CHUNK = 7
# Columns as they are, computed ones, groups, and no linear predictors.
CASES = ["bernoulli_logit", "poisson_offset", "slopes_noncentred", "row_softmax_and_norm"]


def forked(workers):
    """Processes without an expansion: they were forked before there was one."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))
    list(pool.map(abs, range(2 * workers)))
    return pool


@pytest.fixture(scope="module")
def processes():
    with forked(2) as pool:
        yield pool


@pytest.fixture
def case(expansion, tall_model, monkeypatch):
    """Return an expansion in chunks of a few rows, and a point, by name."""

    def make(name, order=2):
        ex = expansion(name, order)
        monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 8 * ex.width * CHUNK)
        monkeypatch.setattr(ex, "workers", Workers(1))
        tall = tall_model(name)
        rng = np.random.default_rng(1)
        return ex, tall.ravel(tall.initial_point) + 0.1 * rng.normal(size=tall.size)

    return make


def everything(ex, theta):
    """What passes of all kinds find."""
    rng = np.random.default_rng(2)
    thetas = theta + 0.01 * rng.normal(size=(4, len(theta)))
    at = reference_at(ex, theta)
    left = residuals_around(ex, at, thetas[:2], thetas[2:])
    by = Estimator(
        expansion=ex, reference=at, subsample_size=10, temperature=1.0, always=np.array([0, 3, 4])
    )
    errors, largest = read_all(by, read_few(by, thetas), thetas, np.arange(4), 2)
    found = [at.level, at.slope, at.curvature, left.index, left.outlying, left.sums, left.outer]
    found += [errors.variance, errors.bias, largest, *log_posteriors(ex, thetas)]
    if ex.linear and ex.n_predictors == 1:
        found += [distinct(ex, [0]), reach(ex)]
    return found


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# Sums


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", CASES)
def test_sums_do_not_depend_on_who_makes_them(name, case, processes, monkeypatch, caplog):
    ex, theta = case(name)
    assert len(list(ex.chunks())) > 10
    expected = everything(ex, theta)
    with ThreadPoolExecutor(3) as threads:
        for given in (2, 4, threads, processes):
            monkeypatch.setattr(ex, "workers", Workers(given))
            assert_same(everything(ex, theta), expected)
    assert not caplog.records


def test_sums_do_not_depend_on_which_worker_is_slow(case, monkeypatch):
    ex, theta = case("bernoulli_logit")
    center = ex.parameters(theta)[0]
    expected = list(ex.over(Expansion.totals, center, True))
    monkeypatch.setattr(ex, "workers", Workers(4))
    assert_same(
        [x for part in ex.over(late, center) for x in part], [x for part in expected for x in part]
    )


def late(ex, batches, center):
    """Sums of rows, the sooner the later they come."""
    [rows] = batches
    found = ex.totals([rows], center, True)
    time.sleep(0.01 * np.random.default_rng(int(1e6 * abs(rows[0, 0]))).random())
    return found


def test_large_results_are_of_several_batches(case, monkeypatch):
    ex, theta = case("bernoulli_logit")
    plain = reference_at(ex, theta)
    size = ex.phi_size**2 * 8
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", size // 4)
    seen = list(ex.over(count_batches, result_bytes=size))
    assert max(seen) == 4
    one = reference_at(ex, theta)
    np.testing.assert_allclose(one.curvature, plain.curvature, rtol=1e-12)
    monkeypatch.setattr(ex, "workers", Workers(3))
    np.testing.assert_array_equal(reference_at(ex, theta).curvature, one.curvature)


def count_batches(_, batches):
    return len(list(batches))


def test_set_up_and_draws_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 2_000)
    model = logistic()
    found = []
    for given in (1, 3):
        step = pms.HMCECS(model=model, workers=given, rng=1)
        assert step.expansion.workers.threads == given
        step.setup_chain(np.random.default_rng(1), 50, 50)
        point = model.initial_point()
        for _ in range(60):
            point, _ = step.step(point)
        found.append([step.prepared.reference.slope, point["beta"]])
    assert_same(*found)


def logistic(n=600):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=X @ beta, observed=rng.integers(0, 2, n))
    return model


# Failures


def stops(ex, batches, file, what):
    """Count rows; do `what` at the first batch that a process other than the first sees."""
    [rows] = batches
    if os.getpid() != int(file.stem) and not file.exists():
        file.touch()
        what()
    return rows.shape[1]


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def unpicklable():
    raise type("Local", (Exception,), {"__reduce__": lambda self: threading.Lock()})


@pytest.mark.parametrize("what", [killed, unpicklable])
def test_what_a_worker_fails_to_do_is_done_here(what, case, monkeypatch, tmp_path, caplog):
    ex, theta = case("bernoulli_logit")
    expected = everything(ex, theta)
    with forked(2) as pool:
        monkeypatch.setattr(ex, "workers", Workers(pool))
        file = tmp_path / f"{os.getpid()}.done"
        assert sum(ex.over(stops, file, what)) == ex.n_rows
        assert file.exists()
        assert sum(ex.over(stops, file, what)) == ex.n_rows
        assert_same(everything(ex, theta), expected)
    assert [r.message.startswith("workers=: a worker failed") for r in caplog.records] == [True]


def test_an_executor_that_was_shut_down_is_not_needed(case, monkeypatch, caplog):
    ex, theta = case("bernoulli_logit")
    expected = everything(ex, theta)
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    monkeypatch.setattr(ex, "workers", Workers(pool))
    assert_same(everything(ex, theta), expected)
    assert len(caplog.records) == 1


class Failing(Executor):
    """Fails at everything, and counts how often it may."""

    asked = 0

    def submit(self, *_):
        self.asked += 1
        future = module.Future()
        future.set_exception(OSError("no such worker"))
        return future


def test_who_always_fails_is_not_asked_any_more(case, monkeypatch, caplog):
    ex, _ = case("bernoulli_logit")
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 8 * ex.width)
    monkeypatch.setattr(ex, "workers", Workers(failing := Failing()))
    assert sum(ex.over(count_rows)) == ex.n_rows
    assert 0 < failing.asked <= 4 * module._AHEAD * processors() < ex.n_rows // 2
    assert "no such worker" in caplog.text


def count_rows(_, batches):
    return sum(rows.shape[1] for rows in batches)


def bad(_, batches, where):
    [rows] = batches
    if np.any(rows[0] == where):
        raise ValueError("this one")
    return 0


@pytest.mark.parametrize("place", [0, 50])
def test_errors_of_a_pass_are_raised(place, case, processes, monkeypatch, caplog):
    ex, _ = case("bernoulli_logit")
    where = ex.take(np.array([place]))[0, 0]
    for given in (1, 3, processes):
        monkeypatch.setattr(ex, "workers", Workers(given))
        with pytest.raises(ValueError, match="this one"):
            list(ex.over(bad, where))
    assert not caplog.records


@pytest.mark.costly(cases=0)
def test_rows_are_named_alike(processes, monkeypatch):
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 400)
    rng = np.random.default_rng(1)
    x = rng.uniform(0.5, 1, 60)
    x[[17, 41]] = -5.0
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1, initval=0.01)
        pm.Exponential("y", 1 + slope * x, observed=rng.exponential(size=60))
    said = []
    for given in (1, 3, processes):
        with pytest.raises(TallModelError, match="not finite within") as error:
            pms.HMCECS(model=model, workers=given, reference={"slope": 0.01})
        said.append(str(error.value))
    assert "rows 17, 41" in said[0]
    assert len(set(said)) == 1


def slow(item):
    time.sleep(0.02)
    return item


def running():
    return [t for t in threading.enumerate() if t.name.startswith("workers")]


@pytest.fixture
def interruptible():
    """Where tests run in the background, interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.costly(cases=0)
def test_an_interrupt_ends_a_pass(interruptible):
    done = []
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        done.extend(Workers(2).map(slow, range(10_000)))
    assert time.monotonic() - start < 5
    gc.collect()
    assert not running()


def test_a_pass_that_is_left_early_leaves_no_threads():
    results = Workers(3).map(slow, range(10_000))
    assert [next(results), next(results)] == [0, 1]
    assert running()
    results.close()
    assert not running()


# Memory


class Numbers:
    """The subject of a pass over numbers."""

    def portable(self):
        return Numbers()

    def sent(self, item):
        return item


def plain(_, item):
    return item


@pytest.mark.parametrize("large", [False, True])
def test_few_parts_wait_for_their_turn(large, processes):
    size = module._AHEAD_BYTES // 3 + 1 if large else 0
    for given in (4, processes):
        taken = iter(range(200))
        counted = []
        source = (counted.append(k) or k for k in taken)
        most = 0
        for done, found in enumerate(Workers(given).over(plain, Numbers(), source, size)):
            assert found == done
            most = max(most, len(counted) - done)
            time.sleep(0.001)
        workers = 4 if given == 4 else 2
        assert most <= (3 if large else 2 * workers + 1)
        assert most >= 2


# Which threads, and where


@pytest.mark.parametrize("value", ["threads", 0, -1, True, 1.5, object(), [], Executor, np.nan])
def test_what_makes_no_passes_is_refused(value):
    with pytest.raises((TypeError, ValueError), match=r"^workers\b"):
        checked(value)
    with pytest.raises((TypeError, ValueError), match=r"^workers\b"):
        pms.HMCECS(model=logistic(), workers=value)


def test_what_makes_passes_is_taken():
    assert checked(None).threads == processors()
    assert checked(np.int64(3)).threads == 3


def test_asynchronous_clients_are_refused():
    client = type("Client", (), {"asynchronous": True, "get_executor": None, "nthreads": None})()
    with pytest.raises(ValueError, match="asynchronous=False"):
        checked(client)


def of_child(workers):
    return workers.threads, workers._executor is None, Workers().threads, Workers(3).threads


@pytest.mark.parametrize("given", ["nothing", "number", "executor"])
def test_chains_in_processes_make_passes_with_one_thread(given, processes):
    workers = Workers({"nothing": None, "number": 4, "executor": processes}[given])
    assert processes.submit(of_child, workers).result() == (1, True, 1, 3)
    copied = pickle.loads(pickle.dumps(workers))
    assert copied.threads == (4 if given == "number" else processors())
    assert copied._executor is None
    # Forked with the step, in place of pickled.
    with forked_child(workers) as threads:
        assert threads == 1


@contextmanager
def forked_child(workers):
    read, write = os.pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: os.write(write, bytes([workers.threads])))
    child.start()
    child.join()
    yield os.read(read, 1)[0]
    os.close(read)
    os.close(write)


@pytest.mark.costly
def test_executors_stay_where_they_are(processes):
    step = pms.HMCECS(model=logistic(), workers=processes, rng=1)
    assert step.expansion.workers is step.workers
    for library in (pickle, cloudpickle):
        copied = library.loads(library.dumps(step))
        assert copied.workers._executor is None
        assert copied.expansion.workers.threads == processors()


@pytest.mark.costly
def test_all_that_a_step_makes_uses_its_passes():
    step = pms.FireflyMC(model=logistic(), workers=2, rng=1)
    assert step.expansion.workers is step.workers
    assert module._current.get() is None


# What goes to other processes


class Mapped(RowStore):
    """Rows in a file, pickled as where that is."""

    shared = True
    sent: list = []  # noqa: RUF012

    def __init__(self, files):
        self.files = files
        columns = [np.load(file, mmap_mode="r") for file in files]
        super().__init__(columns, len(columns[0]))

    def __reduce__(self):
        return Mapped, (self.files,)


def share(ex, monkeypatch, folder):
    """Have the rows of an expansion in files."""
    files = [folder / f"{k}.npy" for k in range(len(ex.store.columns))]
    for file, column in zip(files, ex.store.columns, strict=True):
        np.save(file, column)
    monkeypatch.setattr(ex, "store", Mapped(files))


def test_processes_read_shared_rows_themselves(case, processes, monkeypatch, tmp_path):
    ex, theta = case("bernoulli_logit")
    expected = everything(ex, theta)
    share(ex, monkeypatch, tmp_path)
    monkeypatch.setattr(ex, "workers", Workers(processes))
    part = next(ex.workers.map(ex.sent, [list(ex._chunks())]))
    assert all(isinstance(where, slice) for where, _ in part)
    assert_same(everything(ex, theta), expected)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("per_worker", [1, 4])
def test_workers_get_several_parts_at_once(per_worker, case, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(module, "_TASKS", per_worker)
    ex, theta = case("bernoulli_logit")
    n_parts, expected = len(list(ex._chunks())), everything(ex, theta)
    share(ex, monkeypatch, tmp_path)
    where = ex.take(np.array([ex.n_rows - 1]))[0, 0]
    with forked(2) as pool:
        tasks = []
        submit = pool.submit
        monkeypatch.setattr(pool, "submit", lambda *job: tasks.append(job[2]) or submit(*job))
        monkeypatch.setattr(ex, "workers", Workers(pool))
        assert sum(ex.over(count_rows)) == ex.n_rows
        assert sum(map(len, tasks)) == n_parts - 1  # the first is done here
        assert len({len(task) for task in tasks[:-1]}) == 1
        assert 2 * per_worker <= len(tasks) <= 4 * per_worker
        assert_same(everything(ex, theta), expected)
        # The extended sum, of fewer rows, adds the same parts.
        begin = 3 * CHUNK
        found = list(ex.over(Expansion.totals, ex.parameters(theta)[0], True, begin=begin))
        monkeypatch.setattr(ex, "workers", Workers(1))
        alone = list(ex.over(Expansion.totals, ex.parameters(theta)[0], True, begin=begin))
        assert_same([x for part in found for x in part], [x for part in alone for x in part])
        monkeypatch.setattr(ex, "workers", Workers(pool))
        with pytest.raises(ValueError, match="this one"):
            list(ex.over(bad, where))
        assert not caplog.records
        file = tmp_path / f"{os.getpid()}.done"
        assert sum(ex.over(stops, file, unpicklable)) == ex.n_rows
        assert_same(everything(ex, theta), expected)
    assert [r.message.startswith("workers=: a worker failed") for r in caplog.records] == [True]


def test_matrices_of_many_parts_are_added_up_where_the_rows_are(case, monkeypatch, tmp_path):
    ex, theta = case("bernoulli_logit")
    center, n_parts = ex.parameters(theta)[0], len(list(ex._chunks()))
    plain = reference_at(ex, theta)
    monkeypatch.setattr(expansion_module, "_MOST_RESULTS", 5)
    matrix = ex.phi_size**2 * 8
    results = list(ex.over(Expansion.totals, center, True, result_bytes=matrix))
    assert 5 <= len(results) <= 10 < n_parts
    assert len(list(ex.over(Expansion.totals, center, False))) == n_parts
    one = everything(ex, theta)
    np.testing.assert_allclose(reference_at(ex, theta).curvature, plain.curvature, rtol=1e-12)
    share(ex, monkeypatch, tmp_path)
    with forked(2) as pool:
        for given in (3, pool):
            monkeypatch.setattr(ex, "workers", Workers(given))
            assert_same(everything(ex, theta), one)


def test_code_is_sent_once_per_worker(case, monkeypatch):
    ex, theta = case("bernoulli_logit")
    center = ex.parameters(theta)[0]
    with forked(1) as pool:
        submitted = []
        submit = pool.submit
        monkeypatch.setattr(
            pool, "submit", lambda *job: submitted.append(len(pickle.dumps(job))) or submit(*job)
        )
        monkeypatch.setattr(ex, "workers", Workers(pool))
        list(ex.over(Expansion.totals, center, True))
    first = module._AHEAD
    assert min(submitted[:first]) > 3 * max(submitted[first:])


def test_code_of_another_processor_is_refused(case):
    ex, _ = case("bernoulli_logit")
    rebuild, (called, code, needs, signature) = ex.anchor.__reduce__()
    with pytest.raises(RuntimeError, match="compiled for"):
        rebuild(called, code, [*needs[:-1], "another"], signature)
    rows = ex.take(np.arange(5))
    center, again = np.zeros(ex.phi_size), rows.copy()
    ex.anchor(center, rows)
    rebuild(called, code, needs, signature)(center, again)
    np.testing.assert_array_equal(rows, again)


def test_code_that_was_compiled_again_elsewhere_is_not_sent(monkeypatch):
    def add_one():
        source, signature = "def f(x):\n    x[0] += 1.0", types.void(VECTOR)
        return compile_source("f", source, {}, signature, "test_passes")

    add_one()
    cache._made.clear()  # as in another process
    read = add_one()
    x = np.zeros(1)
    pickle.loads(pickle.dumps(read))(x)
    assert x[0] == 1.0
    monkeypatch.setattr(type(read.function._cache), "read", lambda *_: b"other code")
    with pytest.raises(pickle.PicklingError, match="not kept any more"):
        pickle.dumps(read)


def test_compiled_functions_let_other_threads_go_on(case):
    ex, _ = case("bernoulli_logit")
    assert all(f.function.targetoptions["nogil"] for f in (ex.anchor, ex.residual, ex.left))


def test_functions_of_pytensor_are_for_several_threads(tall_model):
    tall = tall_model("poisson_offset")
    function = numpy_function([tall.theta], [tall.logprior_graph, tall.theta * 2])
    thetas = np.random.default_rng(1).normal(size=(400, tall.size))
    expected = [function(theta) for theta in thetas]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda theta: function(theta), thetas))
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
    copied = pickle.loads(pickle.dumps(function))
    assert_same(copied(thetas[0]), expected[0])


COMPOSED = {
    "softmax": lambda x: pt.special.softmax(x, axis=1),
    "log_softmax": lambda x: pt.special.log_softmax(x, axis=1),
    "logsumexp": lambda x: pt.logsumexp(x, axis=1),
    "scan": lambda x: pytensor.scan(
        lambda row, sofar: pt.exp(row) + sofar / 2, x, x[0], return_updates=False
    ),
}


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_ops_are_for_several_threads(name):
    """An Op with a graph inside has one function for all functions that it is part of."""
    x = pt.matrix("x", shape=(50, 4))
    function = numpy_function([x], [COMPOSED[name](x)])
    values = np.random.default_rng(1).normal(size=(1000, 50, 4))
    expected = [function(value) for value in values]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda value: function(value), values))
    finally:
        sys.setswitchinterval(before)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.costly(cases=0)
def test_steps_with_an_executor_sample(processes, monkeypatch):
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 4_000)
    model = logistic()
    draws = []
    for given in (None, processes):
        with model:
            idata = pm.sample(
                30, tune=30, step=pms.HMCECS(workers=given, rng=1), chains=2, cores=2,
                random_seed=1, progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip
        draws.append(idata["posterior"]["beta"].values)
    assert_same(*draws)


def test_columns_may_lie_anywhere(case):
    ex, _ = case("poisson_offset")
    columns = ex.store.take(slice(0, 50))
    expected = ex.packer.pack(columns, np.zeros((ex.width, 50)))
    moved = []
    for column in columns:
        memory = np.zeros(column.nbytes + 1, np.uint8)[1:]
        moved.append(np.frombuffer(memory, column.dtype).reshape(column.shape))
        moved[-1][...] = column
        assert not moved[-1].flags.aligned
    np.testing.assert_array_equal(ex.packer.pack(moved, np.zeros((ex.width, 50))), expected)
    turned = [np.asfortranarray(column) for column in columns]
    np.testing.assert_array_equal(ex.packer.pack(turned, np.zeros((ex.width, 50))), expected)


# Dask


@contextmanager
def cluster(**kwargs):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(dashboard_address=None, silence_logs=50, **kwargs) as there,
        distributed.Client(there) as client,
    ):
        yield client


@pytest.mark.costly
def test_dask_makes_the_same_sums_with_threads(case, monkeypatch, caplog):
    with cluster(n_workers=1, threads_per_worker=2, processes=False) as client:
        ex, theta = case("slopes_noncentred")
        expected = everything(ex, theta)
        monkeypatch.setattr(ex, "workers", checked(client))
        assert ex.workers._count == 2
        assert_same(everything(ex, theta), expected)
    assert not [r for r in caplog.records if r.name == "pymc.subsample"]


@pytest.mark.slow
def test_dask_makes_the_same_sums_when_a_worker_dies(case, monkeypatch, tmp_path, caplog):
    with cluster(n_workers=2, threads_per_worker=1) as client:
        ex, theta = case("poisson_offset")
        expected = everything(ex, theta)
        monkeypatch.setattr(ex, "workers", checked(client))
        assert_same(everything(ex, theta), expected)
        file = tmp_path / f"{os.getpid()}.done"
        assert sum(ex.over(stops, file, killed)) == ex.n_rows
        assert file.exists()
        assert_same(everything(ex, theta), expected)
    assert not [r for r in caplog.records if r.name == "pymc.subsample"]


@pytest.mark.slow
def test_processes_that_are_spawned_make_the_same_sums(case, monkeypatch, caplog):
    ex, theta = case("poisson_offset")
    expected = everything(ex, theta)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        monkeypatch.setattr(ex, "workers", Workers(pool))
        assert_same(everything(ex, theta), expected)
    assert not caplog.records
