"""Mark tests as costly, or no longer, by what they took in a measured run.

Usage: python -m pytest -m "slow or not slow" --junitxml=run.xml; python scripts/mark_costly.py
run.xml

A test is costly that takes over two seconds over all its cases that are not slow. How many of its
cases each change runs, `costly(cases=...)`, is left as it is.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
# Seconds over all cases: 2,300 tests then take under eight minutes on two cores.
LIMIT = 2.0
MARK = re.compile(r"^@pytest\.mark\.costly(?:\(.*\))?\n", re.MULTILINE)


def seconds(report: Path) -> Counter:
    """Return what each test function took, by its file and name."""
    found: Counter = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        path = ROOT / (case.get("classname", "").replace(".", "/") + ".py")
        found[path, case.get("name", "").split("[")[0]] += float(case.get("time", 0))
    return found


def marked(source: str, name: str, costly: bool) -> str:
    """Return the source of a file in which a test is marked, or not."""
    at = re.search(rf"((?:^(?:@|[ )\]]).*\n)*)^def {name}\(", source, re.MULTILINE)
    if at is None or "mark.slow\n" in at[1] or bool(MARK.search(at[1])) == costly:
        return source
    above = "@pytest.mark.costly\n" + at[1] if costly else MARK.sub("", at[1])
    return source[: at.start()] + above + source[at.start() + len(at[1]) :]


def main() -> None:
    """Change the marks of all tests that the report has."""
    for (path, name), took in seconds(Path(sys.argv[1])).items():
        if path.exists():
            path.write_text(marked(path.read_text(), name, took > LIMIT))


if __name__ == "__main__":
    main()
