"""An integrator has all of its parts, each as it is called, or it cannot be registered."""

from dataclasses import fields, replace

import pytest

from pymc_subsample.samplers.gradients.integrators import INTEGRATORS
from pymc_subsample.samplers.gradients.integrators.integrator import Integrator

PARTS = [field.name for field in fields(Integrator)]
EULER, OVERDAMPED = INTEGRATORS["euler"], INTEGRATORS["overdamped"]


@pytest.mark.parametrize("part", PARTS)
def test_no_part_can_be_left_out(part):
    given = {name: getattr(EULER, name) for name in PARTS}
    assert Integrator(**given).has_momenta
    del given[part]
    with pytest.raises(TypeError, match=rf"required keyword-only argument: '{part}'"):
        Integrator(**given)


@pytest.mark.parametrize(
    "part",
    ["start", "drift", "kick", "drift_ratio", "expectation", "linear_map", "noise_variance",
     "momentum_variance", "own_metric"],
)  # fmt: skip
def test_parts_take_what_they_are_called_with(part):
    with pytest.raises(TypeError, match=rf"'euler': {part} must be a function of \(.*one of \(x\)"):
        replace(EULER, **{part: lambda x: x})
    with pytest.raises(TypeError, match=rf"'euler': {part} must be a function of \(.* and is 3"):
        replace(EULER, **{part: 3})


@pytest.mark.parametrize("part", ["start", "drift", "kick", "drift_ratio", "linear_map"])
def test_functions_cannot_be_none(part):
    with pytest.raises(TypeError, match=rf"{part} must be a function of .* and is None"):
        replace(EULER, **{part: None})


def test_parts_fit_each_other():
    with pytest.raises(TypeError, match="momentum_variance must be given where there are momenta"):
        replace(EULER, momentum_variance=None)
    with pytest.raises(TypeError, match=r"momentum_variance .* only there; friction is None"):
        replace(OVERDAMPED, momentum_variance=EULER.momentum_variance)
    with pytest.raises(TypeError, match="reuses_gradient does not go with expectation"):
        replace(EULER, reuses_gradient=True)
    with pytest.raises(TypeError, match="friction must be"):
        replace(EULER, friction="free")


def test_names_in_the_table_are_those_of_the_integrators():
    assert {name: found.name for name, found in INTEGRATORS.items()} == {n: n for n in INTEGRATORS}
