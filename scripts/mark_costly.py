"""Mark tests as costly or slow by what they took in a measured run, or as costly no longer.

Usage: python -m pytest -m "slow or not slow" --junitxml=run.xml; python scripts/mark_costly.py
run.xml

A test is costly that takes over two seconds over all its cases that are not slow, and slow if each
of its cases takes over twenty. How many of its cases each change runs, `costly(cases=...)`, is left
as it is, and so are marks of slow tests and of slow cases, which may have other reasons.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
# Seconds over all cases: 2,300 tests then take under eight minutes on two cores.
COSTLY = 2.0
# Seconds of a single case. A choice: a hundred of them take half an hour.
SLOW = 20.0
MARK = re.compile(r"^@pytest\.mark\.costly(?:\(.*\))?\n", re.MULTILINE)

type Times = dict[tuple[Path, str], list[float]]


def seconds(report: Path, root: Path = ROOT) -> Times:
    """Return what the cases of each test function took that are not slow, by its file and name."""
    found: Times = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        # What `tests/conftest.py` writes of cases that are marked by hand.
        if case.find("properties/property[@name='slow']") is not None:
            continue
        path = root / (case.get("classname", "").replace(".", "/") + ".py")
        found[path, case.get("name", "").split("[")[0]].append(float(case.get("time", 0)))
    return found


def wanted(took: list[float]) -> str:
    """Return the mark of a test whose cases took so many seconds; empty for none."""
    return "slow" if min(took) > SLOW else "costly" if sum(took) > COSTLY else ""


def marked(source: str, name: str, mark: str) -> str:
    """Return the source of a file in which a test has a mark, or is not costly."""
    at = re.search(rf"((?:^(?:@|[ )\]]).*\n)*)^def {name}\(", source, re.MULTILINE)
    if at is None or "mark.slow\n" in at[1] or (mark == "costly" and MARK.search(at[1])):
        return source
    above = MARK.sub("", at[1])
    if mark:
        above = f"@pytest.mark.{mark}\n{above}"
    return source[: at.start()] + above + source[at.start() + len(at[1]) :]


def main() -> None:
    """Change the marks of all tests that the report has."""
    for (path, name), took in seconds(Path(sys.argv[1])).items():
        if path.exists():
            path.write_text(marked(path.read_text(), name, wanted(took)))


if __name__ == "__main__":
    main()
