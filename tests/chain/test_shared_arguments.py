"""Arguments that steps share are shown in full, in signatures, help and documents, and checked."""

import inspect
import pydoc
import re

import numpy as np
import pymc as pm
import pytest
from steps_of_all_kinds import STEPS

import pymc_subsample as pms
from pymc_subsample import sgmcmc
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.shared_arguments import complete


def described(doc):
    """Return the names in the section of parameters."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n--|\Z)", doc, re.DOTALL | re.MULTILINE)
    return re.findall(r"^(\w+) : ", section.group(1), re.MULTILINE)


@pytest.mark.parametrize("step", STEPS)
def test_each_argument_is_shown_and_described(step):
    names = list(inspect.signature(step).parameters)
    assert names[0] == "vars"
    assert {"model", "likelihood", "dim", "rng"} < set(names)
    assert not {"compile_kwargs", "blocked"} & set(names)  # of PyMC's steps, without a meaning here
    assert described(step.__doc__) == names
    assert list(inspect.signature(step.__init__).parameters) == ["self", *names]
    shown = pydoc.plain(pydoc.render_doc(step))
    assert all(f"{name}: " in shown or f"{name}=" in shown for name in names)
    assert all(f" {name} : " in shown for name in names)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_names_its_errors_and_sources(step):
    assert len(re.findall(r"^Raises\n---", step.__doc__, re.MULTILINE)) == 1
    cited = set(re.findall(r"\[(\d+)\]_", step.__doc__))
    assert cited == set(re.findall(r"^\.\. \[(\d+)\] ", step.__doc__, re.MULTILINE))


def test_descriptions_of_a_steps_own_come_first():
    assert "Default: 500" in pms.AusterityMH.__doc__
    assert "Default: 100" in pms.MinibatchBarkerMH.__doc__
    assert inspect.signature(pms.HMCECS).parameters["transitions_per_draw"].default == 1
    assert inspect.signature(pms.AusterityMH).parameters["transitions_per_draw"].default == 10


def test_what_nobody_describes_is_missed():
    class Step(ChainStep):
        """A step.

        Parameters
        ----------
        own : int
            Its own.
        """

        sampler, method = pms.HMCECS.sampler, pms.HMCECS.method

        def __init__(self, vars=None, *, own=1, other=2, model=None):
            pass

    complete(Step)  # once more changes nothing
    assert described(Step.__doc__) == ["vars", "own", "model"]


@pytest.mark.parametrize(
    ("step", "name"),
    [(sgmcmc.SGLD, "integrator"), (pms.HMCECS, "steps"), (pms.AusterityMH, "delta")],
)
def test_unknown_arguments_are_refused_by_the_step_that_was_called(step, name):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), observed=[0.0, 1.0])
    with pytest.raises(TypeError, match=f"^{step.__name__}: got an unexpected .* '{name}'"):
        step(model=model, **{name: 1})


@pytest.mark.parametrize("source", ["parquet", "arrow", "pandas", "polars", "xarray", "dask"])
def test_constructors_of_rows_have_the_same_options(source, tmp_path):
    make = getattr(pms.Rows, f"from_{source}")
    parameters = inspect.signature(make).parameters
    options = [p for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in options if p.name != "dim"}
    assert defaults == {
        "cache": inspect.Parameter.empty,
        "by": None,
        "categorical": (),
        "drop_missing": False,
        "overwrite": False,
        "progressbar": True,
    }
    assert all(name in make.__doc__ for name in parameters)
    with pytest.raises(TypeError, match=rf"^Rows\.{make.__name__}\(\) got an unexpected .* 'drop'"):
        make(None, cache=tmp_path / "x.rows", drop=True)
    with pytest.raises(TypeError, match=rf"^Rows\.{make.__name__}\(\) missing .* 'cache'"):
        make(None)


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("step", [step for step in STEPS if step is not pms.AusterityGibbs])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"temperature": -0.1}, "temperature must be .*-0.1"),
        ({"temperature": np.nan}, "temperature"),
        ({"temperature": "hot"}, "temperature .*'hot'"),
        ({"transitions_per_draw": 0}, "transitions_per_draw .*positive integer"),
        ({"rng": "junk"}, "rng .*'junk'"),
        ({"rng": -1}, "rng .*-1"),
        ({"likelihood": ["z"]}, "likelihood.*'z'"),
        ({"likelihood": "z"}, "likelihood.*'z'"),
        ({"dim": "rows"}, "dim='rows'"),
        ({"vars": ["c"]}, r"vars holds 'c'.*\['a', 'b'\]"),
        ({"vars": []}, "vars is empty|No free random variables"),
        ({"blocked": False}, "got an unexpected keyword argument 'blocked'"),
        ({"compile_kwargs": {"mode": "JAX"}}, "unexpected keyword argument 'compile_kwargs'"),
        ({"initial_point": {"q": 1.0}}, r"initial_point holds 'q'.*\['a', 'b'\]"),
        ({"initial_point": {"a": [1.0, 2.0]}}, r"initial_point\['a'\] has shape \(2,\)"),
    ],
)
def test_shared_arguments_are_checked(step, model, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        step(model=model, **kwargs)
