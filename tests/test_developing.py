"""What `docs/developing.md` says is true: its names exist, and its examples work."""

import ast
import importlib
import inspect
import pickle
import pydoc
import re
import sys
import tomllib
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import numpy as np
import pymc as pm
import pytest
from chains import round_trip, sample
from exact_cases import logistic
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample import samplers
from pymc_subsample.compiled import cache
from pymc_subsample.compiled.functions import Compiled, address_of, function_at, generator_at
from pymc_subsample.expansion import linear
from pymc_subsample.kernels.model import ANCHOR, GATHER, LEFT, Model
from pymc_subsample.samplers import minibatch, registry
from pymc_subsample.samplers.gradients import integrators
from pymc_subsample.samplers.gradients.stationary import variances
from pymc_subsample.samplers.minibatch import acceptance, decisions
from pymc_subsample.samplers.minibatch.decisions import DECIDE
from tests.samplers.gradients.test_kernel import (
    N,
    assert_ends_up,
    assert_moves_as_its_map,
    gaussian_rows,
)

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "developing.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL))
# Of the examples, which are nowhere else.
OWN = {
    "samplers/delayed/sampler.py", "samplers/delayed/kernel.py", "samplers/delayed/step.py",
    "samplers/minibatch/decisions/chebyshev.py", "samplers/minibatch/chebyshev.py",
    "samplers/gradients/integrators/obabo.py",
}  # fmt: skip


def exists(path):
    return (ROOT / path).exists() or (ROOT / "pymc_subsample" / path).exists()


def resolves(name):
    """Whether a dotted name is that of a module of the package or of something in one."""
    module, _, rest = "pymc_subsample", "", name.split(".")
    while rest and importlib.util.find_spec(f"{module}.{rest[0]}"):
        module = f"{module}.{rest.pop(0)}"
        if Path(importlib.util.find_spec(module).origin).name != "__init__.py":
            break
    found = importlib.import_module(module)
    for part in rest:
        if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
            return False
        found = getattr(found, part, None)
    return True


PATHS = sorted({c for c in CODE if re.fullmatch(r"[\w./-]+/[\w.-]*|\w+\.(py|md)", c)} - OWN)
ROOMS = {p.stem for p in (ROOT / "pymc_subsample").iterdir() if not p.stem.startswith("_")}
NAMES = sorted({c for c in CODE if re.fullmatch(r"\w+(\.\w+)+", c) and c.split(".")[0] in ROOMS})
NAMES = [name for name in NAMES if name not in PATHS]


def test_the_page_names_many_things():
    assert len(PATHS) > 15
    assert len(NAMES) > 60
    assert not exists("samplers/no_such_step.py")
    assert not resolves("chain.engine.ChainStep._no_such_method")


@pytest.mark.parametrize("path", PATHS)
def test_paths_exist(path):
    assert exists(path)


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name):
    assert resolves(name)


def test_rooms_import_from_those_above():
    lines = re.findall(r"^\| (`.*?/`) \|", PAGE, re.MULTILINE)
    order = [room for line in lines for room in re.findall(r"`(\w+)/`", line)]
    assert len(order) > 6
    package = ROOT / "pymc_subsample"
    for place, room in enumerate(order):
        for path in (package / room).rglob("*.py"):
            # Those of types alone are indented.
            found = re.findall(r"^from pymc_subsample\.(\w+)", path.read_text(), re.MULTILINE)
            assert not set(found) & set(order[place + 1 :]), path


def test_the_api_page_lists_what_is_public():
    page = (ROOT / "docs" / "api" / "index.md").read_text()
    listed, home = defaultdict(list), ""
    for module, name in re.findall(r"^\.\. currentmodule:: (\S+)$|^   (\w+)$", page, re.MULTILINE):
        home = module or home
        listed[home] += [name] * bool(name)
    modules = [name for name in pms.__all__ if inspect.ismodule(getattr(pms, name))]
    assert listed.pop("pymc_subsample.samplers.minibatch.correction")
    assert sorted(listed.pop("pymc_subsample") + modules) == sorted(pms.__all__)
    assert sorted(listed) == sorted(f"pymc_subsample.{name}" for name in modules)
    for name, found in listed.items():
        assert sorted(found) == sorted(importlib.import_module(name).__all__)


def test_what_is_shown_of_the_package_is_what_is_public():
    assert dir(pms) == sorted([*pms.__all__, "__version__"])
    known = [f"pymc_subsample.{n}" if inspect.ismodule(getattr(pms, n)) else n for n in pms.__all__]
    assert [getattr(pms, name).__name__ for name in pms.__all__] == known
    shown = re.findall(r"^    (\w+)\n        ", pydoc.plain(pydoc.render_doc(pms)), re.MULTILINE)
    assert shown[:5] == ["auto", "subsampling", "advise", "report", "audit"]
    with pytest.raises(AttributeError, match="no attribute 'SGLD'"):
        pms.SGLD  # noqa: B018


# The worked examples, as if their files were in their rooms.


@contextmanager
def at_home(example, *rooms):
    """Let files of an example be imported from rooms; code is kept apart, not for the next run."""
    with TemporaryDirectory() as kept, pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "directory", lambda: Path(kept))
        for room in rooms:
            place = EXAMPLES / example / Path(*room.__name__.split(".")[1:])
            patched.setattr(room, "__path__", [*room.__path__, str(place)])
        yield patched
    gone = []
    for name, module in list(sys.modules.items()):
        if str(EXAMPLES / example) in str(getattr(module, "__file__", "")):
            room, _, short = name.rpartition(".")
            delattr(sys.modules[room], short)
            gone.append(name)
    for name in gone:
        del sys.modules[name]


@pytest.fixture(scope="module")
def delayed():
    """Return the module of the step, its record in the table of all samplers."""
    with at_home("sampler", samplers) as patched:
        step = importlib.import_module(f"{samplers.__name__}.delayed.step")
        record = step.DELAYED_MH
        patched.setitem(registry.SAMPLERS, record.name, record)
        patched.setitem(registry.BY_NUMBER, record.number, record.name)
        yield step


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [2, 1])
def test_a_sampler_of_a_folder_is_exact(delayed, order):
    case = logistic()
    step = delayed.DelayedMH(model=case.model, control_variate_order=order)
    idata = sample(step, case.model, 1500)
    case.assert_posterior(idata)
    # Of the ten transitions of a draw and where it begins, those at which rows decide.
    share = float(idata["sample_stats"]["data_share"].mean())
    assert 0.1 < share < (0.5 if order == 2 else 1.1)
    found = pms.report(idata)
    assert found.status == "pass"
    assert "DelayedMH" in str(found)


@pytest.mark.costly(cases=0)
def test_a_sampler_of_a_folder_that_weighs_rows_wrongly_is_found_out(delayed, monkeypatch):
    right, case = delayed.kernel.transitions, logistic()

    def wrong(*given):
        weight = 5
        right(*given[:weight], 0.5 * given[weight], *given[weight + 1 :])

    monkeypatch.setattr(delayed.kernel, "transitions", wrong)
    step = delayed.DelayedMH(model=case.model, control_variate_order=1)
    with pytest.raises(AssertionError):
        case.assert_posterior(sample(step, case.model, 1500))


@pytest.mark.costly(cases=0)
def test_a_sampler_of_a_folder_goes_on_from_its_state_and_pickle(delayed):
    case = logistic()
    one, other = (delayed.DelayedMH(model=case.model) for _ in range(2))
    round_trip(one, pickle.loads(pickle.dumps(other)), case.model, tune=30, draws=20, at=35)
    with pytest.raises(ValueError, match="control_variate_order"):
        delayed.DelayedMH(model=case.model, control_variate_order=None)


@pytest.fixture(scope="module")
def chebyshev():
    """Return the kernel and the step of the test."""
    with at_home("acceptance_test", decisions, minibatch):
        kernel = importlib.import_module(f"{decisions.__name__}.chebyshev")
        yield kernel, importlib.import_module(f"{minibatch.__name__}.chebyshev").ChebyshevMH


def accepted(kernel, y, known, delta, uniforms, batch=20):
    """Let the test decide about numbers y: which decisions, and with how many rows each."""
    rng = np.random.default_rng(4)
    y = np.ascontiguousarray(y)
    found = np.empty(len(uniforms))
    test = Compiled(kernel.decide, DECIDE, None)
    done = acceptance.decisions(
        address_of(rng), Model(np.array([f.address for f in acceptance.NUMBERS]),
                               np.array([y.ctypes.data]), 1),
        acceptance.Criterion(test.address, np.array([batch, delta])),
        np.arange(len(y), dtype=np.uint32),
        acceptance.begun(known, 0.0, 0.0, 0.0, -np.inf, np.inf), uniforms, np.log(uniforms), found,
        2**62,
    )  # fmt: skip
    assert done == len(uniforms)
    return found.astype(bool)


def test_all_rows_decide_as_metropolis_and_hastings(chebyshev):
    kernel, _ = chebyshev
    y = np.random.default_rng(1).standard_t(3, 500)
    uniforms = np.random.default_rng(2).random(2000)
    exact = np.log(uniforms) < y.mean() - 0.3
    assert np.array_equal(accepted(kernel, y, -0.3, 0.05, uniforms, batch=500), exact)
    assert 0.2 < exact.mean() < 0.95


TAILS = {
    "normal": lambda rng: rng.normal(size=4000),
    "heavy": lambda rng: rng.standard_t(2.5, size=4000),
    "skew": lambda rng: rng.exponential(size=4000),
}


@pytest.mark.costly
@pytest.mark.parametrize("tails", TAILS)
def test_wrong_decisions_are_as_rare_as_promised(chebyshev, tails):
    """Over at most log2(4000 / 20) = 8 looks; those of a test that hardly looks are not."""
    kernel, _ = chebyshev
    y = TAILS[tails](np.random.default_rng(1))
    y += 0.2 - y.mean()
    uniforms = np.random.default_rng(2).random(20_000)
    exact = np.log(uniforms) < y.mean() - 0.5

    def wrong(delta):
        return np.mean(accepted(kernel, y, -0.5, delta, uniforms) != exact)

    promised = 8 * 0.003
    bound = promised + norm.isf(1e-5) * np.sqrt(promised / len(uniforms))
    assert wrong(0.003) < bound < wrong(0.999)


def normal_mean():
    """A model of one parameter, and its posterior mean and standard deviation."""
    y = np.random.default_rng(3).normal(0.3, 1.0, 3000)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=y)
    variance = 1 / (len(y) + 1 / 100)
    return model, variance * y.sum(), np.sqrt(variance)


@pytest.mark.costly
def test_its_step_has_the_exact_posterior(chebyshev):
    _, step = chebyshev
    model, mean, sd = normal_mean()
    method = step(model=model, delta=0.01, control_variate_order=1)
    idata = sample(method, model, 2000)
    draws = idata["posterior"]["mu"]
    # Seven standard errors of 2,000 effective draws.
    assert abs(float(draws.mean()) - mean) < 0.15 * sd
    assert float(draws.std()) == pytest.approx(sd, rel=0.11)
    share = idata["sample_stats"]["data_share"].mean()
    assert 0 < share < 0.9
    assert pms.report(idata).status != "fail"


def test_its_step_is_shown_in_full(chebyshev):
    _, step = chebyshev
    assert "delta : float, default 0.05" in step.__doc__
    assert "control_variate_order : " in step.__doc__
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), observed=np.zeros(50))
    with pytest.raises(ValueError, match="delta must be a number between 0 and 1"):
        step(model=model, delta=1.0)


@pytest.fixture(scope="module")
def gaussian():
    return gaussian_rows()


@pytest.fixture(scope="module")
def obabo():
    """Return the integrator, in the table."""
    with at_home("integrator", integrators) as patched:
        found = importlib.import_module(
            "pymc_subsample.samplers.gradients.integrators.obabo"
        ).INTEGRATOR
        patched.setitem(integrators.INTEGRATORS, "obabo", found)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.1, 0.7])
def test_an_integrator_moves_as_its_map(gaussian, obabo, h):
    assert_moves_as_its_map(gaussian, "obabo", h)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("h", "batch"), [(0.3, N), (0.7, N), (0.1, 1), (0.2, 3)])
def test_an_integrator_ends_up_where_theory_says(gaussian, obabo, h, batch):
    assert_ends_up(gaussian, "obabo", h, batch)


@pytest.mark.parametrize("h", [0.1, 0.5, 1.5])
def test_obabo_is_exact_for_momenta_of_a_normal(obabo, h):
    curvature = np.array([0.7, 1.1])
    position, momentum = variances(obabo, h, 2.0, 1.3, curvature, np.zeros(2))
    np.testing.assert_allclose(position, 1.3 / (curvature - (h * curvature / 2) ** 2), rtol=1e-10)
    np.testing.assert_allclose(momentum, 1.3, rtol=1e-10)


@pytest.mark.costly(cases=0)
def test_an_integrator_is_an_argument(obabo):
    model, mean, sd = normal_mean()
    step = pms.sgmcmc.SGMCMC(model=model, integrator="obabo", friction=1.5)
    # Of the largest step sizes, 0.5 / 1.1**k, that make a standard deviation wrong by at most 2%.
    assert abs((1 - step.automatic_step_size**2 / 4) ** -0.5 - 1) < 0.02
    assert step.automatic_step_size > 0.3
    with pytest.raises(ValueError, match="'obabo': it kicks momenta twice per gradient"):
        pms.sgmcmc.SGMCMC(model=model, integrator="obabo", gradient="ewsg")
    with pytest.raises(ValueError, match="floor is not used with integrator='obabo'"):
        pms.sgmcmc.SGMCMC(model=model, integrator="obabo", floor=0.1)
    idata = sample(step, model, 4000, tune=100)
    draws = idata["posterior"]["mu"]
    # Six standard errors of 4,000 effective draws, and what the step size adds.
    assert abs(float(draws.mean()) - mean) < 0.1 * sd
    assert float(draws.std()) == pytest.approx(sd, rel=0.07 + 0.02)
    assert pms.report(idata).status != "fail"


# Debugging


@numba.njit
def accepts(criterion, model, sums, permutation, generator, phi, new_phi, unseen):
    """Let compiled code accept."""
    reader = acceptance.Reader(
        function_at(model.functions[0], ANCHOR), function_at(model.functions[1], LEFT),
        function_at(model.functions[2], GATHER), model.columns, model.width, sums.center,
        sums.order, permutation, np.empty(0, np.uint32), 500.0,
    )  # fmt: skip
    decide, rng = function_at(criterion.decide, DECIDE), generator_at(generator)
    return acceptance.accept(decide, criterion.settings, reader, rng, phi, new_phi, 1, unseen)


@pytest.mark.costly
def test_snippets_run_and_python_does_what_compiled_code_does(monkeypatch, capsys):
    monkeypatch.setattr(linear, "compile_source", linear.compile_source)  # restored at the end
    exec("\n".join(SNIPPETS), found := {"__name__": "page"})
    printed = capsys.readouterr().out
    assert "threshold=-0.5" in printed
    assert "def left(phi, center, rows, value):" in printed

    ex, test, at = found["expansion"], found["confidence"].decide, found["at"]
    settings, every = np.array([50, 0.05, 2.0, 2.0, 0]), np.arange(500, dtype=np.uint32)
    unseen = acceptance.begun(0.1, -0.5, np.nan, np.nan, np.nan, np.nan)
    where = found["here"], found["there"]
    reader = acceptance.Reader(
        ex.anchor, ex.left, ex.gather, ex.packer.table, ex.width, at.center, 1, every,
        np.empty(0, np.uint32), 500.0,
    )  # fmt: skip
    python = acceptance.accept.py_func(
        test.py_func, settings, reader, np.random.default_rng(2), *where, 1, unseen
    )
    model, rng = ex.model("anchor", "left", "gather"), np.random.default_rng(2)
    criterion = acceptance.Criterion(Compiled(test, DECIDE, None).address, settings)
    machine = accepts(criterion, model, at.sums(1), every, address_of(rng), *where, unseen)
    results = []
    for evidence, answer in (python, machine):
        results.append([*answer, *evidence])
    np.testing.assert_allclose(*results, rtol=1e-12)
    assert evidence.n_seen >= 50


# What other files repeat.


def test_hooks_run_the_ruff_of_lint():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [ruff] = [r for r in project["optional-dependencies"]["dev"] if r.startswith("ruff")]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r'additional_dependencies: \["(.*)"\]', hooks) == [ruff, ruff]


def test_commands_of_the_contributing_page_are_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"`make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(set(named)) > 5
    assert set(named) <= targets
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        ran = re.findall(r"make ([a-z -]+)$", path.read_text(), re.MULTILINE)
        assert ran
        assert {t for line in ran for t in line.split()} <= targets


EXACT = {
    "expansion/test_block_poisson": "signed_posterior_is_exact",
    "samplers/firefly/test_step": "posterior_is_the_exact_one",
    "samplers/gibbs/test_step": "epsilon_zero_leaves_the_target_invariant",
    "samplers/hmc_ecs/test_step": "posterior_is_the_exact_one",
    "samplers/hmc_ecs/test_kernel": "invariance_test_finds_mistakes",
    "samplers/minibatch/test_kernel": "invariance_test_finds_mistakes",
    "samplers/minibatch/test_step": "posterior_is_the_exact_one",
    "samplers/scalable/test_step": "posterior_is_exact",
    "samplers/gradients/test_step": "posterior_is_the_exact_one",
}


@pytest.mark.parametrize("file", EXACT)
def test_each_change_samples_exact_posteriors(file):
    """However many costly tests are left to the night, which `cases=0` says."""
    source = (ROOT / "tests" / f"{file}.py").read_text()
    marks = re.search(rf"((?:^[@ )\]].*\n)*)^def test_{EXACT[file]}\(", source, re.MULTILINE)
    assert marks
    assert "costly(cases=0)" not in marks[1]
    assert "mark.slow" not in marks[1]


def test_no_two_modules_define_a_class_of_one_name():
    """Named tuples and type aliases of types that are made in a module count too."""
    homes = defaultdict(set)
    for path in (ROOT / "pymc_subsample").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            made = isinstance(node, ast.Assign) and re.match("[A-Z][a-z]", ast.unparse(node))
            if isinstance(node, ast.ClassDef | ast.TypeAlias) or made:
                found = node.targets[0] if made else getattr(node, "name", node)
                homes[found if isinstance(found, str) else found.id].add(path)
    assert len(homes) > 300
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def is_numeric(node):
    if isinstance(node, ast.Tuple | ast.BinOp | ast.UnaryOp):
        return all(map(is_numeric, getattr(node, "elts", None) or ast.iter_child_nodes(node)))
    return isinstance(node, ast.operator | ast.unaryop) or (
        isinstance(node, ast.Constant) and type(node.value) in (int, float)
    )


def test_numeric_constants_say_what_they_are_and_where_from():
    """In a comment beside or above them, or above the group that they are in; codes need none."""
    found, silent = 0, []
    for path in sorted((ROOT / "pymc_subsample").rglob("*.py")):
        lines = path.read_text().splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if not (isinstance(node, ast.Assign) and is_numeric(node.value)):
                continue
            if not ast.unparse(node.targets[0]).strip("(_)").isupper():
                continue
            if ast.unparse(node.value) in ("(0, 1)", "(0, 1, 2)"):
                continue
            found += 1
            above = node.lineno - 2
            while re.match(r"_?[A-Z][A-Z_, ]* = ", lines[above]):
                above -= 1
            if "  # " not in lines[node.end_lineno - 1] and not lines[above].startswith("# "):
                silent.append(f"{path}:{node.lineno}")
    assert found > 300
    assert not silent


def test_tests_mirror_the_tree():
    """A folder of tests is a room, or a part of one."""
    for folder in {path.parent for path in (ROOT / "tests").rglob("test_*.py")}:
        place = folder.relative_to(ROOT / "tests")
        assert (ROOT / "pymc_subsample" / place).is_dir(), place
