"""All step methods that are public, by what they have in common."""

import pymc_subsample as pms
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.metropolis import MinibatchMH

_PUBLIC = [getattr(pms, name) for name in sorted(pms.__all__)]
STEPS = [x for x in _PUBLIC if isinstance(x, type) and issubclass(x, SubsampledStep)]
# Those that decide on growing batches.
TESTS = [step for step in STEPS if issubclass(step, MinibatchMH)]
