"""What is meant for PyMC's NUTS is refused as `pm.sample` begins, beside a step of ours."""

import pickle
import re
from copy import deepcopy

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from chains import QUIET
from settings_of_nuts import FOR_NUTS

import pymc_subsample as pms

SHORT = {"draws": 20, "tune": 20, "chains": 1, "cores": 1, "random_seed": 1} | QUIET


@pytest.mark.parametrize(("given", "said"), FOR_NUTS)
def test_what_is_for_nuts_is_refused_of_a_step(model, step, given, said):
    with pytest.raises(ValueError, match=said.format(r"pms\.HMCECS")):
        pm.sample(model=model, step=step, **SHORT, **deepcopy(given))


@pytest.mark.parametrize(("given", "said"), FOR_NUTS)
def test_a_step_of_auto_is_not_called_by_its_class(model, chosen, given, said):
    """But by what the user wrote, before and after it has been in another process."""
    for step in (chosen, pickle.loads(pickle.dumps(chosen))):
        with pytest.raises(ValueError, match=said.format(r"pms\.auto")) as refused:
            pm.sample(model=step.model, step=step, **SHORT, **deepcopy(given))
        assert type(step).__name__ not in str(refused.value)


@pytest.fixture(scope="module")
def chosen(model):
    return pms.auto(model=model)


@pytest.fixture(scope="module")
def step(model):
    return pms.HMCECS(model=model)


@pytest.mark.costly
@pytest.mark.parametrize(
    "given", [{"backend": "numba"}, {"compile_kwargs": {"mode": "NUMBA"}}, {"nuts_sampler": "pymc"}]
)
def test_what_changes_nothing_is_not_refused(model, step, given):
    assert pm.sample(model=model, step=step, **SHORT, **given)["posterior"].sizes["draw"] == 20


@pytest.mark.costly(cases=1)
def test_what_is_for_nuts_is_not_refused_where_nuts_has_a_part(model):
    idata = pm.sample(model=model, step=pms.HMCECS(["a"], model=model), target_accept=0.9, **SHORT)
    assert {"data_share", "step_size_bar"} <= set(idata["sample_stats"])


@pytest.mark.parametrize("given", [pms.HMCECS, [pms.ScalableMH], pms.sgmcmc.SGLD])
def test_a_class_in_the_place_of_a_step_is_refused_with_what_to_write(model, given):
    [kind] = np.ravel(given)
    name, called = kind.__name__, re.escape(kind.sampler.called)
    with pytest.raises(ValueError, match=rf"{name}, a class: write step={called}\(\)"):
        pm.sample(model=model, step=given, **SHORT)
    assert f"{given}" == str(given)


def test_without_a_model_the_block_is_named():
    bambi = pytest.importorskip("bambi")
    data = pd.DataFrame({"x": np.arange(9.0), "y": np.arange(9.0)})
    with pytest.raises(TypeError, match=r"before build\(\), .* `with pms.subsampling\(\):`"):
        bambi.Model("y ~ x", data).fit(step=pms.HMCECS())
