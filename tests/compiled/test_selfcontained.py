"""Compiled functions that hold all that they call."""

import os
import subprocess
import sys
from pathlib import Path

import models
import numba
import numpy as np
import pytest

from pymc_subsample.compiled.cache import compile_kept
from pymc_subsample.compiled.functions import inner

MATRIX = numba.float64[:, ::1]
X = np.random.default_rng(0).normal(size=(7, 4))


def softmaxes(offset):
    """Return a compiled function of rows that calls another one, too long to be inlined."""

    @inner
    def softmax(x, out):
        for i in range(len(x)):
            total = 0.0
            for k in range(x.shape[1]):
                out[i, k] = np.exp(x[i, k] - np.max(x[i]))
                total += out[i, k] * np.sin(x[i, k])
            for k in range(x.shape[1]):
                out[i, k] = out[i, k] / total + offset
        return np.log(np.abs(out)).sum() + np.abs(out).max()

    def twice(x, out):
        first = softmax(x, out)
        out[0, 0] = first + softmax(out.copy(), out)

    return compile_kept(twice, None, [numba.void(MATRIX, MATRIX)])


@pytest.mark.costly(cases=0)
def test_nothing_else_can_be_called_from_outside():
    [result] = softmaxes(1.0).overloads.values()
    functions = [f for f in result.library._final_module.functions if not f.is_declaration]
    assert any("softmax" in f.name for f in functions if f.linkage.name == "internal")
    others = [f.name for f in functions if f.linkage.name != "internal" and "twice" not in f.name]
    assert all(name.startswith("NRT_") for name in others)  # they count references


_SUMS = """
import numpy as np
from models import MODELS
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel

expansion = expand(TallModel(MODELS["row_softmax_and_norm"](np.random.default_rng(1))), 2)
[rows] = expansion.chunks()
for phi in np.random.default_rng(2).normal(size=(40, expansion.phi_size)):
    level, slope, *_ = expansion.totals([rows[:, :7].copy()], phi, False)
    print(level.tobytes().hex(), slope.tobytes().hex())
"""


@pytest.mark.slow
def test_code_read_from_the_disk_has_the_bits_of_that_just_compiled(tmp_path):
    kept = {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", _SUMS],
            cwd=Path(models.__file__).parent,
            env=os.environ | kept,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert found[0].count("\n") == 40
    assert found[0] == found[1]
