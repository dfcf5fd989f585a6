"""What steps say of competing modes."""

import logging

import numpy as np

from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.diagnostics.checks import MODES, number

_log = logging.getLogger("pymc.subsample")


def warn_of_modes(step: ChainStep) -> None:
    """Say so where other modes compete, and in which variables they differ."""
    prepared = step.prepared
    if prepared is None or prepared.search is None or len(prepared.search.modes) < 2:
        return
    search = prepared.search
    here, *others = [step.expansion.values(mode.theta) for mode in search.modes]
    names = [
        name
        for name, part in step.layout.every
        if not all(np.allclose(here[part], x[part], rtol=0.1, atol=0.1) for x in others)
    ]
    shares = ", ".join(f"{share:.2g}" for share in search.shares[: 1 + len(others)])
    begun = len(prepared.at_modes)
    starts = (
        f"start in {begun} of them and hardly ever change: R-hat will be large"
        if begun > 1
        else "start in the first, and hardly ever see the others"
    )
    _log.warning(
        f"{type(step).__name__}: the posterior has at least {number(len(search.modes))} modes that "
        f"differ in {', '.join(names)} and hold about {shares} of the mass that was found. Chains "
        f"{starts}. {MODES.remedy}"
    )
