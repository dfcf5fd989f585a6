"""Draws that are made ahead: the same as one by one, whatever happens between them."""

import copy
import inspect
import itertools
import pickle
import sys
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
from chains import QUIET, assert_same, run
from exact_cases import logistic, pairs
from numba import types
from numba.np.numpy_support import as_dtype

import pymc_subsample as pms
from pymc_subsample.chain import draw_buffer
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.samplers.firefly import kernel as firefly_kernel
from pymc_subsample.samplers.firefly import step as firefly
from pymc_subsample.samplers.firefly.checks import LightRecord
from pymc_subsample.samplers.gibbs import kernel as gibbs_kernel
from pymc_subsample.samplers.gibbs import step as gibbs
from pymc_subsample.samplers.gradients import kernel as gradients_kernel
from pymc_subsample.samplers.hmc_ecs import chain as hmc_ecs
from pymc_subsample.samplers.hmc_ecs import kernel as hmc_ecs_kernel
from pymc_subsample.samplers.minibatch import kernel as minibatch_kernel
from pymc_subsample.samplers.minibatch import step as metropolis
from pymc_subsample.samplers.scalable import chain as scalable
from pymc_subsample.samplers.scalable import kernel as scalable_kernel
from pymc_subsample.samplers.scalable.checks import ProposalRecord

TUNE, DRAWS = 30, 90
WAYS = {
    "hmc": (pms.HMCECS, {}),
    "nuts": (pms.HMCECS, {"kernel": "nuts", "transitions_per_draw": 3}),
    "single rows": (pms.HMCECS, {"subsample_size": 10, "n_blocks": 10}),
    "signs": (pms.HMCECS, {"estimator": "block-poisson"}),
    "scalable": (pms.ScalableMH, {}),
    "barker": (pms.MinibatchBarkerMH, {}),
    "austerity": (pms.AusterityMH, {}),
    "schedule": (pms.AusterityMH, {"epsilon": lambda draw: 0.1 / (1 + draw)}),
    "confidence": (pms.ConfidenceMH, {}),
    "firefly": (pms.FireflyMC, {}),
    "explicit": (pms.FireflyMC, {"brightness": "explicit"}),
    "sgld": (pms.sgmcmc.SGLD, {}),
    "schedules": (pms.sgmcmc.SGLD, {"step_size": pms.sgmcmc.PolynomialDecay(0.01, 10.0, 0.5)}),
    "svrg": (pms.sgmcmc.SVRGLD, {}),
    "sghmc": (pms.sgmcmc.SGHMC, {}),
    "thermostat": (pms.sgmcmc.SGNHT, {}),
    "ewsg": (pms.sgmcmc.EWSG, {}),
    "preconditioned": (pms.sgmcmc.PSGLD, {}),
    "gibbs": (pms.AusterityGibbs, {}),
    "coordinates": (pms.HMCECS, {}),
    "scalable in coordinates": (pms.ScalableMH, {}),
}


def hierarchy(n=3000, groups=8):
    rng = np.random.default_rng(3)
    g = rng.integers(0, groups, n)
    y = rng.random(n) < 1 / (1 + np.exp(-rng.normal(size=groups)[g]))
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau", 1), shape=groups)
        pm.Bernoulli("y", logit_p=a[g], observed=y)
    return model


@pytest.fixture(scope="module")
def made():
    """Return a step of a kind, which the tests of this module share."""
    models, steps = {"gibbs": pairs(), "coordinates": hierarchy()}, {}
    models["scalable in coordinates"], usual = models["coordinates"], logistic().model

    def make(name):
        if name not in steps:
            kind, options = WAYS[name]
            steps[name] = kind(model=models.get(name, usual), **options)
        return steps[name]

    return make


@pytest.fixture(autouse=True)
def _as_on_a_fast_machine(monkeypatch):
    """How many draws are made at a time does not depend on who else uses the processors."""
    monkeypatch.setattr(draw_buffer, "_SECONDS", 1e6)


def begun(step, seed=1, draws=DRAWS):
    """Begin a chain, and return its point after tuning."""
    step.setup_chain(np.random.default_rng(seed), TUNE, draws)
    *_, point = run(step, step.model.initial_point(), TUNE)
    step.stop_tuning()
    return point


def one_by_one(step, n, **kwargs):
    """Draws that are made when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainStep, "left_alone", 1)
        return run(step, begun(step, **kwargs), n)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", WAYS)
def test_draws_are_those_made_one_by_one(made, name):
    """To the end of the chain, with the checks there, and with the state that it leaves."""
    step = made(name)
    expected = one_by_one(step, DRAWS)
    state = pickle.dumps(step.sampling_state)
    found = run(step, begun(step), DRAWS)
    assert_same(found, expected)
    assert found[1][-1]["warning"] == expected[1][-1]["warning"]
    if name != "signs":  # where memory for rows that are not used may hold others
        assert pickle.dumps(step.sampling_state) == state


def add_steps(record, thetas, infos):
    record.add(thetas, infos)


def add_proposals(record, thetas, infos):
    record.add(thetas, infos)
    record.add_decisions(infos)


def add_lights(record, thetas, infos):
    record.add(thetas, infos["accepted"], infos["acceptance_rate"])
    record.add_lights(infos)


@pytest.mark.parametrize("share", [0.02, 0.9])
@pytest.mark.parametrize(
    ("kind", "add"),
    [(StepRecord, add_steps), (ProposalRecord, add_proposals), (LightRecord, add_lights)],
)
def test_records_are_those_of_draws_added_one_by_one(kind, add, share):
    """To the last bit; also where the first draw diverges, and more than are kept."""
    rng, n = np.random.default_rng(4), 1500
    names = (
        "acceptance_rate", "accepted", "darkened", "decisions", "kinetic_temperature",
        "loglik_variance", "lowest", "n_bright", "rows_accepted", "rows_drawn", "rows_passed",
        "sign", "step_size", "subset_accepted",
    )  # fmt: skip
    thetas, infos = rng.normal(size=(n, 3)), {name: rng.normal(size=n) for name in names}
    infos |= {"diverging": rng.random(n) < share, "noise": rng.random((n, 3))}
    infos["diverging"][0], infos["loglik_variance"][::50] = True, np.nan
    found = []
    for pieces in (range(1, n), [], np.sort(rng.integers(n, size=9))):
        record = kind(draws=n)
        for part in np.split(np.arange(n), pieces):
            add(record, thetas[part], {name: x[part] for name, x in infos.items()})
        found.append(vars(record))
    for other in found[1:]:
        np.testing.assert_equal(other, found[0])


ENTRIES = {
    hmc_ecs: ("transitions", hmc_ecs_kernel._SIGNATURE),
    scalable: ("compiled", scalable_kernel._SIGNATURE),
    gradients_kernel: ("integrate", gradients_kernel._SIGNATURE),
    metropolis: ("_transitions", minibatch_kernel.transitions.nopython_signatures[0]),
    firefly: ("_transitions", firefly_kernel.transitions.nopython_signatures[0]),
    gibbs: ("_sweeps", gibbs_kernel.sweeps.nopython_signatures[0]),
}


def misread(value, expected):
    """Yield arrays that compiled code, which does not look, would take for something else."""
    if isinstance(expected, types.NamedTuple):
        assert len(value) == len(expected.types)
        for part, kind in zip(value, expected.types, strict=True):
            yield from misread(part, kind)
    elif isinstance(expected, types.Array):
        dtype = as_dtype(expected.dtype)
        if (value.ndim, value.dtype) != (expected.ndim, dtype) or not value.flags.c_contiguous:
            yield value.shape, value.dtype, value.strides, expected


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", WAYS)
def test_compiled_code_is_handed_what_it_reads(made, name, monkeypatch):
    """Number of dimensions, type and order of every array: a call by address checks none."""
    step, found, called = made(name), [], []
    for module, (entry, signature) in ENTRIES.items():
        real = getattr(module, entry)
        makes = not entry.startswith("_")

        def checked(*given, function, signature=signature):
            called.append(len(given))
            for value, expected in zip(given, signature.args, strict=True):
                found.extend(misread(value, expected))
            return function(*given)

        def stand_in(*given, real=real, makes=makes, checked=checked):
            if makes:
                return partial(checked, function=real(*given))
            return checked(*given, function=real)

        monkeypatch.setattr(module, entry, stand_in)
    run(step, begun(step), DRAWS)
    assert called
    assert not found


def test_what_is_handed_over_wrongly_is_noticed():
    rows = np.zeros((3, 4, 1)).swapaxes(0, 1).reshape(4, -1)
    wrong = [rows, rows[0], np.zeros((4, 3), "f4")]
    assert [len(list(misread(x, types.float64[:, ::1]))) for x in wrong] == [1, 1, 1]
    assert not list(misread(np.zeros((4, 3)), types.float64[:, ::1]))


def test_draws_may_share_all_their_statistics():
    own = {"energy": np.arange(5.0), "tune": False}
    each = [[{"energy": energy, "tune": False}] for energy in (1.0, 2.0)]
    assert draw_buffer._separated(own, slice(1, 3), 2) == each
    assert draw_buffer._separated({"tune": False}, slice(1, 3), 2) == 2 * [[{"tune": False}]]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", WAYS)
def test_a_state_between_draws_is_that_after_the_last_one(made, name):
    step = made(name)
    draws, stats, _ = one_by_one(step, DRAWS)
    point = begun(step)
    for count in (1, 6, 20, 13):  # within what is made at a time, and at its end
        *_, point = run(step, point, count)
        state = copy.deepcopy(step.sampling_state)
    assert_same(run(step, point, 15), (draws[40:55], stats[40:55]))
    other = copy.copy(WAYS[name][0])(model=step.model, **WAYS[name][1])
    other.sampling_state = state
    assert_same(run(other, point, 15), (draws[40:55], stats[40:55]))
    step.sampling_state = state
    assert_same(run(step, point, 15), (draws[40:55], stats[40:55]))


@pytest.mark.costly
@pytest.mark.parametrize("name", ["hmc", "scalable", "sgld"])
def test_a_point_that_is_not_the_last_draw(made, name):
    """An equal one is gone on from; one that something else moved is refused, as ever."""
    step = made(name)
    draws, stats, _ = one_by_one(step, DRAWS)
    *_, point = run(step, begun(step), 20)
    for start in (20, 33):
        found = run(step, dict(point), 13)
        assert_same(found, (draws[start : start + 13], stats[start : start + 13]))
        point = found[2]
    moved = {value: x + 0.01 for value, x in point.items()}
    with pytest.raises(ValueError, match="moved between two draws"):
        step.step(moved)


def test_a_point_that_was_changed_in_place(made):
    step = made("hmc")
    *_, point = run(step, begun(step), 20)
    name = next(iter(point))
    point[name] += 0.01
    with pytest.raises(ValueError, match="moved between two draws"):
        step.step(point)


def test_a_chain_that_is_tuned_again(made):
    step, found = made("hmc"), []
    for several in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if not several:
                patch.setattr(ChainStep, "left_alone", 1)
            *_, point = run(step, begun(step), 20)
            step.reset_tuning()
            found.append(run(step, point, 40))
    assert_same(*found)


def test_another_thread_takes_no_draws(made):
    step, said = made("hmc"), []
    *_, point = run(step, begun(step), 20)

    def take():
        try:
            step.step(point)
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert "in another thread" in said[0]


@pytest.mark.costly
@pytest.mark.parametrize("name", ["hmc", "svrg", "coordinates"])
def test_points_in_arrays_that_are_written_again(made, name, monkeypatch):
    """As PyMC's worker processes keep them: draws are made ahead there too, and may be undone."""
    step = made(name)
    draws, stats, _ = one_by_one(step, DRAWS)
    shared = {value: np.array(x) for value, x in begun(step).items()}
    found, sizes, make = [], [], draw_buffer.Ahead.make

    def counted(self, step, point, size):
        sizes.append(size)
        return make(self, step, point, size)

    monkeypatch.setattr(draw_buffer.Ahead, "make", counted)
    for i in range(DRAWS):
        point, [stat] = step.step(shared)
        for value, x in point.items():
            shared[value][...] = x
        found.append((np.concatenate([np.ravel(point[v.name]) for v in step.vars]), stat))
        if i == 0:
            assert len(sizes) == 1
        if i == 40:
            assert step.sampling_state is not None
    assert_same((np.array([x for x, _ in found]), [s for _, s in found]), (draws, stats))
    assert max(sizes) > 8 or name == "svrg"


def test_a_step_that_is_pickled_between_draws(made):
    step = made("hmc")
    draws, stats, _ = one_by_one(step, DRAWS)
    *_, point = run(step, begun(step), 20)
    copied = pickle.loads(pickle.dumps(step))
    for one in (copied, step):
        assert_same(run(one, point, 20), (draws[20:40], stats[20:40]))


def test_an_interrupt_loses_no_state(made, monkeypatch):
    step = made("hmc")
    draws, stats, _ = one_by_one(step, DRAWS)
    point = begun(step)

    def interrupted(*arguments):
        step.rng.random(3)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        *_, point = run(step, point, 9)
        patch.setattr(hmc_ecs, "transitions", lambda *kind: interrupted)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            for count in range(9, DRAWS):  # noqa: B007
                point, _ = step.step(point)
    assert_same(run(step, point, 20), (draws[count : count + 20], stats[count : count + 20]))


def test_an_interrupt_while_draws_are_undone(made, monkeypatch):
    """They are undone again when the state is next asked for, or the chain goes on."""
    step = made("hmc")
    draws, stats, _ = one_by_one(step, DRAWS)
    for ask in (True, False):
        point = begun(step)
        *_, point = run(step, point, 20)
        make, left = draw_buffer.Ahead.make, [3]

        def interrupted(self, *arguments, make=make, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return make(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(draw_buffer.Ahead, "make", interrupted)
            with pytest.raises(KeyboardInterrupt):
                assert step.sampling_state
        if ask:
            assert step.sampling_state.draws_left == DRAWS - 20
        assert_same(run(step, point, 20), (draws[20:40], stats[20:40]))


class Interruptions:
    """Raises KeyboardInterrupt where a line of `chain.draw_buffer` would run for the nth time."""

    def __init__(self, line, times):
        self.line, self.left = line, times

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != draw_buffer.__file__:
            return None
        if event == "line" and frame.f_lineno == self.line:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def lines_of(*functions):
    """Lines of functions but those that hand out: a draw is lost where that is interrupted."""
    for function in functions:
        lines, begin = inspect.getsourcelines(function)
        for number in {at for *_, at in function.__code__.co_lines()} - {None, begin}:
            if "return point, stats" not in lines[number - begin]:
                yield number


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", ["hmc", "signs"])
def test_an_interrupt_between_any_two_lines(made, name):
    """Draws go on, and a state that is asked for is that after those that were handed out."""
    step, count = made(name), 40
    draws, stats, _ = one_by_one(step, DRAWS)
    *_, first = run(step, begun(step), 1)  # made alone, as is what an interrupt loses
    start = step.sampling_state
    own, hit = draw_buffer.Ahead, 0
    functions = own.next, own._left.fget, own.forget, own.undo, own._make, draw_buffer._restore
    for line, times in itertools.product(lines_of(*functions), (1, 2, 3, 7)):
        step.sampling_state, point, i, asked = start, first, 1, set()
        step.ahead = draw_buffer.Ahead()
        step.ahead._most = 4
        trace, before = Interruptions(line, times), sys.gettrace()
        sys.settrace(trace)
        while i < count:
            try:
                if i in (4, 11, 30) and i not in asked:
                    assert step.sampling_state.draws_left == DRAWS - i, (line, times, i)
                    asked.add(i)
                new, [stat] = step.step(point)
            except KeyboardInterrupt:
                sys.settrace(before)
                continue
            found = np.concatenate([np.ravel(new[v.name]) for v in step.vars])
            assert_same((found, [stat]), (draws[i], [stats[i]]))
            point, i = new, i + 1
        sys.settrace(before)
        hit += trace.left <= 0
    assert hit > 100


def test_checks_wait_for_the_last_draw(made, monkeypatch):
    """All others are handed out before, and a state is asked for without checking twice."""
    step, checked, handed = made("austerity"), [], []
    check = step.method.check

    def counted(step):
        checked.append(len(handed))
        return check(step)

    monkeypatch.setattr(type(step), "method", replace(step.method, check=counted))
    point = begun(step)
    for i in range(DRAWS):
        point, _ = step.step(point)
        handed.append(i)
        if i > DRAWS - 5:
            assert step.sampling_state is not None
    assert checked == [DRAWS - 1]


@pytest.mark.parametrize(("slow", "gives_up"), [(10**9, True), (1, False), (4, False)])
def test_a_state_that_always_takes_long_to_copy_is_not_copied(made, monkeypatch, slow, gives_up):
    """A machine that is busy for the first few copies does not turn drawing ahead off."""
    step, clock, copied = made("hmc"), [0.0], []

    def copy_state(step, real=draw_buffer._changing):
        copied.append(1)
        clock[0] += 1.0 if len(copied) <= slow else 1e-6
        return real(step)

    monkeypatch.setattr(draw_buffer, "_SECONDS", 1.0)
    monkeypatch.setattr(draw_buffer, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(draw_buffer, "thread_time", lambda: clock[0])
    monkeypatch.setattr(draw_buffer, "_changing", copy_state)
    draws, stats, _ = one_by_one(step, DRAWS)
    assert_same(run(step, begun(step), DRAWS), (draws, stats))
    # Before 2, 4, 8, 16 and 32 draws, and before all that are left but the last.
    assert len(copied) == (draw_buffer._COPIES if gives_up else 6)
    assert draw_buffer._COPIES < 6


def test_rows_are_not_summed_up_for_a_chain(monkeypatch):
    """As the fingerprint does, which takes a pass over all of them."""
    step = pms.HMCECS(model=logistic().model)
    run(step, begun(step), 40)
    assert "fingerprint" not in vars(step.tall.rows)


@pytest.mark.costly(cases=0)
def test_nothing_is_made_ahead_while_another_step_moves_parameters():
    """Nor in tuning."""
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b * rng.normal(size=500), observed=rng.normal(size=500))
    made = []
    step = pms.HMCECS([a], model=model)
    make = draw_buffer.Ahead.make

    def counted(self, step, point, size):
        made.append((step.tune, size))
        return make(self, step, point, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw_buffer.Ahead, "make", counted)
        both = [step, pm.Metropolis([b], model=model)]
        pm.sample(40, tune=20, chains=1, cores=1, step=both, model=model, random_seed=1, **QUIET)
        assert {size for _, size in made} == {1}
        alone = pms.HMCECS(model=model)
        made.clear()
        pm.sample(60, tune=20, chains=1, cores=1, step=alone, model=model, random_seed=1, **QUIET)
        assert {size for tune, size in made if tune} == {1}
        assert max(size for tune, size in made if not tune) > 8


@pytest.mark.parametrize("every", [1, 5])
def test_who_asks_for_every_state_waits_little_longer(made, every, monkeypatch):
    """Draws that are thrown away are few: what is made ahead adapts to how often that happens."""
    step, made_in_all = made("hmc"), 0
    make = draw_buffer.Ahead.make

    def counted(self, step, point, size):
        nonlocal made_in_all
        made_in_all += size
        return make(self, step, point, size)

    point = begun(step, draws=200)
    monkeypatch.setattr(draw_buffer.Ahead, "make", counted)
    for i in range(200):
        point, _ = step.step(point)
        if i % every == 0:
            assert step.sampling_state is not None
    assert made_in_all < 3 * 200


def test_row_numbers_do_not_depend_on_how_many_are_drawn_at_a_time():
    """As `Subsample.propose` relies on, also where half a word is left over."""
    for n in (1000, 2**31 + 5, 2**40):
        one, many = (np.random.default_rng(3) for _ in range(2))
        for size in (1, 3, 7):
            parts = [one.integers(0, n, (2, size)) for _ in range(9)]
            np.testing.assert_array_equal(np.concatenate(parts), many.integers(0, n, (18, size)))
        assert address_of(one) != address_of(many)
        assert one.random() == many.random()
