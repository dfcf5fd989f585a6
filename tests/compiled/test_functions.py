"""Functions by name in compiled code. Rests on what is private to numba: its lowest runs it too."""

import re
from pathlib import Path
from threading import Event, Thread

import numba
import numpy as np
import pytensor
import pytest

from pymc_subsample.compiled import functions as home
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.kernels.model import ANCHOR, FORWARD, GATHER, functions

MARKS = {"forward": 1.0, "backward": 2.0, "anchor": 3.0, "gather": 4.0}


def marking(mark, signature):
    """Make a function that writes `mark` where its results go, and nothing else."""
    written = {
        FORWARD: lambda theta, first, second: second.fill(mark),
        ANCHOR: lambda center, rows: rows.fill(mark),
        GATHER: lambda columns, index, rows: rows.fill(mark),
    }[signature]
    return Compiled(numba.njit(signature)(written), signature, None)


@pytest.fixture(scope="module")
def marked():
    signatures = {"forward": FORWARD, "backward": FORWARD, "anchor": ANCHOR, "gather": GATHER}
    return {name: marking(MARKS[name], signature) for name, signature in signatures.items()}


# Neighbours of one signature, of as many arguments in other types, of other numbers of arguments.
@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    "names",
    [
        ("forward", "backward", "anchor", "gather"),
        ("gather", "backward", "anchor", "forward"),
        ("anchor", "gather", "forward", "backward"),
        ("backward", "gather", "forward", "anchor"),
    ],
    ids="-".join,
)
def test_functions_of_all_signatures_are_got_by_name(marked, names):
    of_addresses = functions(names)

    @numba.njit
    def each(addresses, vector, matrix, index):
        found = of_addresses(addresses)
        marks = np.empty(4)
        found.forward(vector, vector, vector)
        marks[0] = vector[0]
        found.backward(vector, vector, vector)
        marks[1] = vector[0]
        found.anchor(vector, matrix)
        marks[2] = matrix[0, 0]
        found.gather(index, index, matrix)
        marks[3] = matrix[0, 0]
        return marks

    addresses = np.array([marked[name].address for name in names])
    room = np.zeros(1), np.zeros((1, 1)), np.zeros(1, dtype=np.int64)
    np.testing.assert_array_equal(each(addresses, *room), list(MARKS.values()))


@pytest.mark.parametrize("names", [("gather", "backward"), ("forward", "backward")], ids="-".join)
def test_functions_are_got_by_position(marked, names):
    of_addresses = functions(names)

    @numba.njit
    def last(addresses, vector):
        _, backward = of_addresses(addresses)
        backward(vector, vector, vector)
        return vector[0]

    addresses = np.array([marked[name].address for name in names])
    assert last(addresses, np.zeros(1)) == MARKS["backward"]


def test_what_is_private_is_used_in_one_room():
    package = Path(home.__file__).parents[1]
    private = re.compile(
        r"^\s*(?:from|import) (numba\.(?:core|experimental)|llvmlite|pytensor\.link)", re.M
    )
    found = {path.parent.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert found == {"compiled"}


def test_flags_are_restored_by_the_last_thread_to_leave():
    """What one of two found, the other had set."""
    before = pytensor.config.traceback__limit
    inside, leave = Event(), Event()

    def other():
        with home.building_graphs():
            inside.set()
            leave.wait(10)

    thread = Thread(target=other)
    with home.building_graphs():
        thread.start()
        assert inside.wait(10)
        assert pytensor.config.traceback__limit == 0
    assert pytensor.config.traceback__limit == 0
    leave.set()
    thread.join()
    assert pytensor.config.traceback__limit == before != 0
