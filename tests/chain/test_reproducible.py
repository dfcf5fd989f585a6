"""Draws are the same to the last bit in any process, whatever its BLAS threads and its memory."""

import os
import subprocess
import sys

import pytest

_RUN = """
import hashlib, sys
import numpy as np, pymc as pm, pymc_subsample as pms

shift = int(sys.argv[1])
kept = [bytearray(40_000 + 8 * k) for k in range(shift)]
rng = np.random.default_rng(0)
X = rng.normal(size=(6_000, 40))
y = (rng.random(6_000) < 1 / (1 + np.exp(-X[:, :4] @ [0.5, -0.3, 0.2, 0.1]))).astype(int)
with pm.Model():
    pm.Bernoulli("y", logit_p=X @ pm.Normal("b", 0, 1, shape=40), observed=y)
    for step in (pms.HMCECS, pms.MinibatchBarkerMH, pms.sgmcmc.SVRGLD, pms.sgmcmc.SGHMC):
        idata = pm.sample(
            40, tune=120, chains=1, cores=1, random_seed=3, step=step(), progressbar=False,
            quiet=True, compute_convergence_checks=False,
        )
        draws = np.ascontiguousarray(idata.posterior["b"].values)
        print(step.__name__, hashlib.sha256(draws.tobytes()).hexdigest())
"""


def draws(threads, shift):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads)}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _RUN, str(shift)], env=environment, check=True,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return found.stdout.splitlines()


@pytest.mark.slow
def test_draws_do_not_depend_on_threads_or_memory():
    first = draws(1, 0)
    assert len(first) == 4
    assert draws(2, 0) == first
    assert draws(2, 7) == first
