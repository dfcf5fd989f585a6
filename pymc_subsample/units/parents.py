"""Variables that enter the prior of others."""

from pytensor.graph.traversal import ancestors

from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.reading import Reading


def children(reading: Reading, name: str) -> list[str]:
    """Return the variables whose prior reads one, in a reading that is not standardised."""
    value = reading.values[name]
    return [c for c, prior in reading.priors.items() if c != name and value in ancestors([prior])]


def without_parents(
    given: Reading, reading: Reading, groupings: list[Grouping], reasons: dict[str, str]
) -> list[Grouping]:
    """Leave out variables that enter the prior of others, unless level by level of one grouping.

    Or what standardised others are moved by, which rows read: these others may have levels of
    their own. `given` is the reading before.
    """
    local = {name for grouping in groupings for name in grouping.names}
    for grouping in groupings:
        for name in list(grouping.names):
            known = [c for c in children(reading, name)
                     if c not in grouping.names or (c, name) not in grouping.links]  # fmt: skip
            moved = [c for c in children(given, name) if c not in local]
            if other := [*known, *moved]:
                grouping.names.remove(name)
                grouping.elements.pop(name, None)
                reasons[name] = f"enters the prior of {other[0]!r}, which is not one of its level"
    return [grouping for grouping in groupings if grouping.names]
