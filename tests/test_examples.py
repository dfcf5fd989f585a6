"""Every example runs at a small size and does what it says: scripts, pages and docstrings."""

import ast
import doctest
import importlib.util
import inspect
import logging
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from arviz_stats.base import array_stats

import pymc_subsample as pms

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BAMBI = EXAMPLES / "flights_bambi.py"
SMALL = {
    "flights": ["--rows=5000", "--draws=50", "--tune=100", "--chains=2"],
    "flights_bambi": ["--rows=5000", "--draws=50", "--tune=100", "--chains=2"],
}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.fixture
def matplotlib_without_a_screen():
    matplotlib = pytest.importorskip("matplotlib")
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    yield
    matplotlib.pyplot.close("all")
    matplotlib.use(before)


@pytest.mark.costly
@pytest.mark.usefixtures("matplotlib_without_a_screen")
def test_flights(tmp_path, capsys):
    idata = load("flights").main([*SMALL["flights"], f"--output={tmp_path}"])

    posterior = idata["posterior"]
    assert {"beta", "hour_effect", "carrier_intercept", "carrier_sd"} <= set(posterior.data_vars)
    assert posterior.sizes["chain"] == 2
    assert posterior.sizes["draw"] == 50
    assert all(np.isfinite(values).all() for values in posterior.data_vars.values())
    assert (tmp_path / "flights.png").stat().st_size > 10_000

    printed = capsys.readouterr().out
    assert "carrier_sd" in printed
    assert re.search(
        r"A draw evaluated [\d,]+ rows; HMC on all rows: [\d,]+ times as many", printed
    )
    assert re.search("^(PASS|WARN|FAIL): ", printed, re.MULTILINE)


@pytest.mark.costly(cases=0)
def test_flights_bambi(capsys):
    pytest.importorskip("bambi")
    idata = load("flights_bambi").main(SMALL["flights_bambi"])

    posterior = idata["posterior"]
    expected = {"Intercept", "hour", "distance", "wind", "1|carrier_sigma", "1|carrier"}
    assert set(posterior.data_vars) == expected
    assert all(np.isfinite(values).all() for values in posterior.data_vars.values())
    printed = capsys.readouterr().out
    assert "wind" in printed
    assert " of 5,000 rows, 2 chains of 50 draws" in printed


def test_the_bambi_example_leaves_all_to_bambi():
    """Priors, centred predictors and what is kept: the block is all that is its own."""
    calls = {node.func.attr: node.keywords for node in ast.walk(ast.parse(BAMBI.read_text()))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}  # fmt: skip
    assert {k.arg for k in calls["Model"]} == {"family"}
    assert {k.arg for k in calls["fit"]} == {"draws", "tune", "chains", "random_seed"}


@pytest.mark.costly
def test_intercept_of_a_bambi_model_is_that_of_its_formula(caplog):
    bmb = pytest.importorskip("bambi")
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(3, 1, 2000)})
    frame["y"] = 1 + 2 * frame.x + rng.normal(size=2000)
    model = bmb.Model("y ~ x", frame)
    model.build()
    step = pms.HMCECS(model=model.backend.model)
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        idata = model.fit(1000, 300, step=step, chains=2, cores=1, random_seed=1, progressbar=False)
        assert "This model is Bambi's" not in caplog.text
        short = {"draws": 10, "tune": 10, "chains": 2, "cores": 1, "progressbar": False}
        pm.sample(step=step, model=model.backend.model, **short)
        assert caplog.text.count("This model is Bambi's: sample it with model.fit(step=") == 1
    design = np.c_[np.ones(2000), frame.x]
    exact = np.linalg.lstsq(design, frame.y)[0][0]  # but for a prior worth a thousandth of the data
    sd = np.sqrt(np.linalg.inv(design.T @ design)[0, 0])
    draws = idata.posterior["Intercept"].values
    assert abs(draws.mean() - exact) < sd * (5 / np.sqrt(array_stats.ess(draws)) + 0.1)
    assert draws.std() == pytest.approx(sd, rel=0.15)


@contextmanager
def few_rows(load, file):
    """Some rows of a table of columns; what is not as long as the longest ones stays."""
    with load(file) as table:
        columns = {name: table[name] for name in table.files}
    n = max(map(len, columns.values()))
    rows = np.random.default_rng(1).integers(0, n, 3_000)
    yield {name: x[rows] if len(x) == n else x for name, x in columns.items()}


def shorten(monkeypatch):
    """Let runs have few draws; a pilot's own settings stay."""
    sample = pm.sample
    short = {"draws": 20, "tune": 40, "chains": 2, "cores": 1, "progressbar": False}

    def shorter(**kwargs):
        pilot = "callback" in kwargs
        return sample(**(kwargs if pilot else kwargs | short))

    monkeypatch.setattr(pm, "sample", shorter)


# Pages, their blocks, and what they print: a page that is executed shows its summary itself.
PAGES = [("README.md", 1, "ess_bulk"), ("docs/quickstart.md", 7, "ScalableMH of 3,000 rows")]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("page", "blocks", "printed"), PAGES)
def test_snippets_run_as_they_are(page, blocks, printed, monkeypatch, capsys):
    """One after the other, as a reader would run them, but on fewer rows and for fewer draws."""
    text = (ROOT / page).read_text()
    block = r"^```(?:python|\{code-cell\} ipython3)\n(?!:tags)(.*?)^```$"
    found = re.findall(block, text, re.MULTILINE | re.DOTALL)
    assert len(found) == blocks
    code = "\n".join(found)
    if "bambi" in code:
        pytest.importorskip("bambi")
    shorten(monkeypatch)
    monkeypatch.setattr(np, "load", partial(few_rows, np.load))
    monkeypatch.chdir(ROOT)
    exec(code, namespace := {})
    assert len(namespace["late"]) == 3_000
    assert namespace["idata"].posterior.sizes["draw"] == 20
    assert printed in capsys.readouterr().out


@pytest.mark.costly
def test_rows_on_disk_are_made_and_sampled_as_the_page_says(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "rows.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 9
    sample, load_file = pm.sample, np.load

    def shorter(**kwargs):
        short = {"draws": 20, "tune": 40, "chains": 2, "cores": 1, "progressbar": False}
        return sample(**kwargs | short)

    def loaded(file, **given):
        ours = Path(file).is_absolute()  # the page's own path is that of the flights
        return load_file(file, **given) if ours else few_rows(load_file, ROOT / file)

    monkeypatch.setattr(pm, "sample", shorter)
    monkeypatch.setattr(np, "load", loaded)
    monkeypatch.chdir(tmp_path)
    exec("\n".join(found), namespace := {})
    for name in ("idata", "shared", "of_both"):
        assert namespace[name].posterior.sizes["draw"] == 20
    printed = capsys.readouterr().out
    assert "Rows: 3,000 rows of 20 bytes" in printed
    assert re.search(r"carrier: int32, 1\d levels", printed)
    assert printed.rstrip().endswith("3100")


def test_flights_data_are_complete():
    data = load("flights").load_data()
    assert len(data["arrival_delay"]) == 327_346
    assert len(data["carrier_names"]) == 16
    assert np.mean(data["arrival_delay"] > 15) == pytest.approx(0.237, abs=0.001)


REFERENCE = (ROOT / "docs" / "api" / "index.md").read_text()
# Each name that it lists, after the module that has it.
PUBLIC = [
    (part.split("\n")[0], name)
    for part in REFERENCE.split(".. currentmodule:: ")[1:]
    for name in re.findall(r"^   (\w+)$", part, re.MULTILINE)
]


class Run(doctest.OutputChecker):
    """Compares outputs where an example shows one; most change from run to run."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def failures(doc, name, namespace):
    """How many lines of a docstring's examples raise or print something else than they say."""
    test = doctest.DocTestParser().get_doctest(doc, dict(namespace), name, None, 0)
    return doctest.DocTestRunner(Run()).run(test).failed


@pytest.fixture(scope="module")
def begun():
    """What the page of reference begins with: a model of a few flights and a short run."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(np, "load", partial(few_rows, np.load))
        patch.chdir(ROOT)
        [code] = re.findall(r"^```python\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)
        exec(code, namespace := {})
    return namespace


@pytest.mark.costly
@pytest.mark.usefixtures("matplotlib_without_a_screen")
@pytest.mark.parametrize(("home", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_examples_in_docstrings_run(home, name, begun, tmp_path, monkeypatch):
    doc = inspect.getdoc(getattr(importlib.import_module(home), name))
    assert re.search(r"^Examples\n--------$", doc, re.MULTILINE)
    examples = doc.split("Examples\n--------\n")[1]
    called = {"Report": "report", "Audit": "audit", "Advice": "advise"}
    called["BarkerCorrection"] = "barker_correction"
    of = "" if "samplers" in home else home.replace("pymc_subsample", "pms") + "."
    assert of + called.get(name, name) in examples
    if name == "ClusteredSGHMC":
        pytest.importorskip("sklearn")
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert failures(examples, name, begun) == 0


@pytest.mark.costly
def test_examples_that_fail_are_found(begun):
    assert failures(">>> pms.HMCEC()", "no such name", begun) == 1
    assert failures(">>> 1 + 1\n3", "another output", begun) == 1
    assert failures(">>> len(late)\n3000", "the same output", begun) == 0
