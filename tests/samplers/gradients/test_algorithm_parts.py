"""SGMCMC: presets are combinations of its parts, others are right, or refused with the reason."""

import itertools
import pickle

import numpy as np
import pytest
from chains import assert_same, chain

import pymc_subsample as pms
from pymc_subsample.samplers.gradients.integrators import INTEGRATORS
from tests.samplers.gradients.test_step import sample, verdicts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
START = {"a": np.array(0.3), "b": np.array(0.8)}
PRESETS = [
    (pms.sgmcmc.SGLD, {}, {"integrator": "overdamped"}),
    (pms.sgmcmc.PSGLD, {}, {"integrator": "preconditioned"}),
    (pms.sgmcmc.SVRGLD, {}, {"integrator": "overdamped", "gradient": "svrg"}),
    (pms.sgmcmc.SGHMC, {}, {}),
    (pms.sgmcmc.SGNHT, {}, {"integrator": "thermostat"}),
    (pms.sgmcmc.ClusteredSGHMC, {}, {"integrator": "symplectic", "batches": "clustered"}),
    (pms.sgmcmc.EWSG, {}, {"integrator": "euler", "gradient": "ewsg"}),
    (
        pms.sgmcmc.EWSG,
        {"dynamics": "overdamped", "expected": "one"},
        {"integrator": "overdamped", "gradient": "ewsg", "expected": "one"},
    ),
]
# Combinations that no preset has; step sizes bias nothing that these tests can see.
FREE = {
    "SGLD on clustered batches": {"integrator": "overdamped", "batches": "clustered"},
    "SVRG with momenta": {"gradient": "svrg", "step_size": 0.2, "refresh_period": 5},
    "preconditioned SVRG": {
        "integrator": "preconditioned", "gradient": "svrg", "step_size": 3e-5, "refresh_period": 5,
    },
    "SGNHT on clustered batches": {
        "integrator": "thermostat", "batches": "clustered", "step_size": 0.03,
    },
    "symplectic EWSG": {"integrator": "symplectic", "gradient": "ewsg", "step_size": 0.1},
    "EWSG on clustered batches": {
        "integrator": "euler", "gradient": "ewsg", "batches": "clustered",
    },
}  # fmt: skip
SLOW = ["preconditioned SVRG", "SGNHT on clustered batches", "EWSG on clustered batches"]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("preset", "given", "parts"), PRESETS)
def test_presets_are_combinations(model, preset, given, parts):
    one = preset(model=model, batch_size=50, **given)
    other = pms.sgmcmc.SGMCMC(model=model, batch_size=50, **parts)
    assert_same(chain(one, START), chain(other, START), but=["sampler"])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in FREE]
)
def test_free_combinations_have_the_exact_posterior(case, name):
    kwargs = {"batch_size": 50, "step_size": 0.02, "transitions_per_draw": 60} | FREE[name]
    step = pickle.loads(pickle.dumps(pms.sgmcmc.SGMCMC(model=case.model, **kwargs)))
    result = sample(step, step.model, 1500)
    case.assert_posterior(result)
    assert not verdicts(result)


@pytest.mark.costly(cases=0)
def test_clusters_and_weights_take_heat_away(model):
    """Excess of the kinetic temperature with plain gradients: 0.53, each known to 0.04.

    Clusters and weights leave 0.13 each. The chains share the noise of their dynamics.
    """
    kwargs = {
        "integrator": "symplectic", "batch_size": 30, "step_size": 0.05, "friction": 1.0,
        "control_variate_order": None, "steps_per_batch": 1, "transitions_per_draw": 200,
    }  # fmt: skip
    weights = {"gradient": "ewsg", "index_chain": 8}
    heat = {}
    for batches, given in itertools.product(("uniform", "clustered"), ({}, weights)):
        step = pms.sgmcmc.SGMCMC(model=model, batches=batches, **kwargs, **given)
        _, stats = chain(step, START, tune=20, draws=300)
        heat[batches, bool(given)] = np.mean([s["kinetic_temperature"] for s in stats[20:]]) - 1
    plain, clustered = heat["uniform", False], heat["clustered", False]
    assert heat["uniform", True] < 0.5 * plain
    assert clustered < 0.5 * plain
    assert heat["clustered", True] < clustered


@pytest.mark.costly(cases=0)
def test_a_state_belongs_to_its_parts(model):
    kwargs = {"model": model, "batch_size": 50, "step_size": 0.1}
    states = [
        pms.sgmcmc.SGMCMC(**kwargs, **parts).sampling_state
        for parts in ({}, {"gradient": "svrg"}, {"batches": "clustered"}, {"integrator": "euler"})
    ]
    assert len({state.sampler_parts for state in states}) == 4
    with pytest.raises(ValueError, match="sampler"):
        pms.sgmcmc.SGMCMC(**kwargs).sampling_state = states[2]


WEIGHTED = {"gradient": "ewsg", "integrator": "euler"}
REFUSED = [
    ({"integrator": "leapfrog"}, "integrator must be one of"),
    ({"gradient": "full"}, "gradient must be one of"),
    ({"batches": "sorted"}, "batches must be one of"),
    ({"gradient": "ewsg"}, "'baoab': it adds its noise between two half kicks"),
    (WEIGHTED | {"integrator": "thermostat"}, "'thermostat': its friction follows the noise"),
    (WEIGHTED | {"integrator": "preconditioned"}, "'preconditioned': the size of its noise"),
    (WEIGHTED | {"steps_per_batch": 2}, 'steps_per_batch=2 does not go with gradient="ewsg"'),
    (WEIGHTED | {"temperature": 0}, "temperature must be above 0"),
    (WEIGHTED | {"integrator": "overdamped", "expected": "stop"}, "expected=.* needs momenta"),
    ({"gradient": "svrg", "control_variate_order": 2}, "control_variate_order=2 .*svrg.* order 1"),
    ({"gradient": "svrg", "control_variate_order": None}, "control_variate_order=None .*svrg"),
    ({"integrator": "overdamped", "friction": 1.0}, "friction is not used with .*'overdamped'"),
    ({"integrator": "overdamped", "resample_every": 1}, "resample_every is not used"),
    ({"averaging": 0.9}, "averaging is not used with integrator='baoab', but with 'precond"),
    ({"floor": 0.9}, "floor is not used with integrator='baoab'"),
    ({"refresh_period": 3}, "refresh_period is not used with gradient='batch', but with 'svrg'"),
    ({"index_chain": 3}, "index_chain is not used with gradient='batch', but with 'ewsg'"),
    ({"expected": "zero"}, "expected is not used with gradient='batch'"),
    ({"n_clusters": 3}, "n_clusters is not used with batches='uniform', but with 'clustered'"),
]


@pytest.mark.parametrize(("kwargs", "message"), REFUSED)
def test_parts_that_do_not_fit_are_refused_with_the_reason(model, kwargs, message):
    with pytest.raises(ValueError, match=message):
        pms.sgmcmc.SGMCMC(model=model, **kwargs)


@pytest.mark.parametrize("preset", [pms.sgmcmc.SGHMC, pms.sgmcmc.ClusteredSGHMC])
def test_presets_with_momenta_keep_them(model, preset):
    with pytest.raises(ValueError, match=r"integrator must be one of .*'euler'"):
        preset(model=model, integrator="overdamped")
    assert "overdamped" in INTEGRATORS


def test_the_documentation_names_all_integrators():
    for name in INTEGRATORS:
        assert f'"{name}"' in pms.sgmcmc.SGMCMC.__doc__
