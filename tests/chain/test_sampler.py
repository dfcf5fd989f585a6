"""Records of samplers: declared in their folders, validated when they are made, read everywhere."""

import ast
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from exact_cases import pairs
from pymc.step_methods.compound import BlockedStep
from steps_of_all_kinds import STEPS

import pymc_subsample as pms
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.samplers.registry import ADVISED, SAMPLERS, families, step_of

PACKAGE = Path(pms.__file__).parent


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_one_chain_that_runs_a_sampler(step):
    """It inherits from the chain alone, and that from PyMC's class."""
    assert step.__bases__ == (ChainStep,)
    assert ChainStep.__bases__ == (BlockedStep,)
    assert step_of(step.sampler.name) is step
    assert eval(step.sampler.called, {"pms": pms}) is step
    assert step.stats_dtypes_shapes == step.sampler.statistics


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_shows_what_it_is_and_chose(step, model):
    if step is pms.AusterityGibbs:
        model = pairs()
    made = step(model=model)
    of = ", ".join(rv.name for rv in model.free_RVs)
    assert repr(made).startswith(f"<{step.__name__} of {of}: {made.n_rows:,} rows of ")
    for name in step.sampler.chosen:
        assert f" {name.rpartition('.')[2]}=" in repr(made)
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)


@pytest.mark.costly
def test_the_step_of_auto_shows_which_sampler_it_is(model):
    shown = repr(pms.auto(model=model))
    assert re.match(r"<(HMCECS|ScalableMH) of a, b: \d+ rows of y; ", shown)
    assert "control_variate_order=2" in shown


def test_a_step_that_is_not_set_up_shows_that(model):
    assert repr(pms.HMCECS.__new__(pms.HMCECS, model=model)) == "<HMCECS, which is not set up>"


def test_samplers_of_a_family_record_the_same_rules():
    for sampler in SAMPLERS.values():
        assert families()[sampler.family] is sampler.rules
    assert [advised.place for advised in ADVISED.values()] == list(range(len(ADVISED)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "an HMC"}, "name and number must be those of a class"),
        ({"number": -1}, "name and number must be those of a class, got -1"),
        ({"rules": ()}, "at least one Rule"),
        ({"rules": ("noise",)}, r"at least one Rule, got \['noise'\]"),
        ({"rules": 2 * pms.HMCECS.sampler.rules[:1]}, r"\['tune'\] are there twice"),
        ({"numbers": ("step_size",)}, r"no statistic: \['acceptance_rate', 'data_share'"),
        ({"shown": ("energy",)}, r"no column for \['energy'\]"),
    ],
)
def test_a_record_that_does_not_fit_is_an_error_at_import(change, message):
    with pytest.raises(TypeError, match=f"Sampler .*{message}"):
        replace(pms.HMCECS.sampler, **change)


@pytest.mark.parametrize(("part", "of"), [("begin", "step, tune, draws"), ("steady", "step")])
def test_a_part_of_other_arguments_is_an_error_at_import(part, of):
    with pytest.raises(TypeError, match=rf"Method: {part} must be a function of \({of}\)"):
        replace(pms.HMCECS.method, **{part: lambda chain: None})
    with pytest.raises(TypeError, match=r"Decision: bound must be a function of .* and is None"):
        replace(pms.AusterityMH.decision, bound=None)


def test_no_module_reads_what_a_step_calls_its_own():
    """Of PyMC's own steps, `_competence` alone."""
    read = {
        node.attr
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
        if isinstance(node.value, ast.Name) and node.value.id == "step"
    }
    assert read == {"_competence"}
