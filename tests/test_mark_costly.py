"""Marks of costly and slow tests follow a measured run."""

import pytest

from scripts.mark_costly import marked, seconds, wanted

pytest_plugins = ["pytester"]

SOURCE = '''\
import pytest


def helper():
    return 1


def test_quick():
    pass


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("x", [
    1,
    pytest.param(2, marks=pytest.mark.slow),
])
def test_costly(x):
    pass


@pytest.mark.slow
def test_slow():
    pass
'''  # fmt: skip


@pytest.mark.parametrize(
    ("took", "mark"),
    [([0.1], ""), ([0.9, 1.0], ""), ([1.1, 1.0], "costly"), ([25, 1], "costly"), ([21.0], "slow")],
)
def test_a_mark_follows_from_what_a_test_took(took, mark):
    assert wanted(took) == mark


@pytest.mark.parametrize(
    ("name", "mark", "before", "after"),
    [
        ("test_quick", "costly", "def test_quick", "@pytest.mark.costly\ndef test_quick"),
        ("test_quick", "slow", "def test_quick", "@pytest.mark.slow\ndef test_quick"),
        ("test_quick", "", "", ""),
        ("test_costly", "costly", "", ""),  # with as many cases
        ("test_costly", "", "@pytest.mark.costly(cases=2)\n", ""),
        ("test_costly", "slow", "@pytest.mark.costly(cases=2)", "@pytest.mark.slow"),
        ("test_slow", "", "", ""),
        ("test_slow", "costly", "", ""),
        ("test_of_another_file", "costly", "", ""),
    ],
)
def test_marks_are_set_and_taken_away_beside_the_test(name, mark, before, after):
    assert marked(SOURCE, name, mark) == SOURCE.replace(before, after)


def test_marks_are_not_set_twice():
    once = marked(SOURCE, "test_quick", "costly")
    assert marked(once, "test_quick", "costly") == once
    assert marked(once, "test_quick", "") == SOURCE


def test_cases_marked_as_slow_by_hand_do_not_count(pytester):
    """A run with this project's `conftest`, and its report."""
    pytester.makeconftest(
        "from tests.conftest import pytest_collection_modifyitems  # noqa: F401\n"
        "def pytest_configure(config):\n"
        "    for mark in ('slow', 'costly(cases)'):\n"
        "        config.addinivalue_line('markers', mark)\n"
    )
    path = pytester.makepyfile(test_some=SOURCE)
    pytester.runpytest_inprocess("--junitxml=run.xml", "-m", "slow or not slow", "-p", "no:xdist")
    found = seconds(pytester.path / "run.xml", pytester.path)
    assert {name: len(took) for (_, name), took in found.items()} == {
        "test_quick": 1,
        "test_costly": 1,
    }
    assert {file for file, _ in found} == {path}
