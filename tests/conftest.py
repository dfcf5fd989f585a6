"""Models and compiled expansions, made once per session."""

from functools import cache
from importlib import import_module
from itertools import product
from zlib import crc32

import numpy as np
import pytest
from models import MODELS

from pymc_subsample.expansion import expand
from pymc_subsample.kernels.dynamics import trajectory, tree
from pymc_subsample.kernels.estimates import DENSITY
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.gradients.integrators import INTEGRATORS
from pymc_subsample.samplers.gradients.kernel import integrate
from pymc_subsample.samplers.hmc_ecs.kernel import transitions

pytest.register_assert_rewrite("chains")


def pytest_configure(config):
    """Compile the transitions once, before workers run the whole suite: each would compile its own.

    Where files are named, what their tests need is compiled when they need it.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and config.getoption("numprocesses", None):
        for name in ("firefly", "gibbs", "minibatch"):
            import_module(f"pymc_subsample.samplers.{name}.kernel")
        for integrator in INTEGRATORS.values():
            integrate(integrator)
        for kind, dynamics in product(DENSITY, (trajectory, tree)):
            transitions(kind, dynamics)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all cases of a costly test but those that each change runs as slow."""
    costly = {}
    for item in items:
        if item.get_closest_marker("slow"):  # by hand, for `scripts/mark_costly.py`
            item.user_properties.append(("slow", True))
        if item.get_closest_marker("costly") and not item.get_closest_marker("slow"):
            costly.setdefault((item.path, item.originalname), []).append(item)
    for cases in costly.values():
        most = cases[0].get_closest_marker("costly").kwargs.get("cases", len(cases))
        cases.sort(key=lambda item: crc32(item.name.encode()))  # whatever the parameters' order
        for item in cases[most:]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def case():
    """Return a logistic regression with two parameters."""
    from exact_cases import logistic

    return logistic()


@pytest.fixture(scope="module")
def model(case):
    """Return its model."""
    return case.model


@pytest.fixture(scope="session")
def tall_model():
    """Return the `TallModel` of a model of the bank, by name."""

    @cache
    def make(name):
        return TallModel(MODELS[name](np.random.default_rng(1)))

    return make


@pytest.fixture(scope="session")
def expansion(tall_model):
    """Return the compiled expansion of a model of the bank: name, order, linear or not."""

    @cache
    def make(name, order=2, linear=None):
        return expand(tall_model(name), order, linear=linear)

    return make
