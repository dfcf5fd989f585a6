"""Which variables are integrated out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pymc_subsample.model import TallModelError
from pymc_subsample.units.discovery import Grouping, find_groupings
from pymc_subsample.units.reading import Reading


def chosen(reading: Reading, integrate: str | Sequence[str]) -> Grouping:
    """Return the grouping whose variables are integrated out."""
    groupings, reasons = find_groupings(reading)
    if integrate == "auto":
        return _cheapest(groupings, reasons)
    names = [integrate] if isinstance(integrate, str) else list(integrate)
    found: list[Grouping] = []
    for name in names:
        if name not in reading.values:
            raise ValueError(
                f"integrate holds {name!r}, which is not a free variable of the model. Those are "
                f"{sorted(reading.values)}."
            )
        if name in reasons:
            raise TallModelError(
                f"{name!r} cannot be integrated out: it {reasons[name]}. A local variable has "
                "elements that are independent a priori, and rows read one level of it, as in "
                "z[customer]."
            )
        found += [g for g in groupings if name in g.names and not any(g is h for h in found)]
    if len(found) != 1:
        raise TallModelError(
            f"integrate={names} belong to {len(found)} groupings: "
            f"{', '.join(g.described for g in found)}. Integrals are over the variables of one."
        )
    [grouping] = found
    left = [n for n in grouping.names if n not in names]
    return grouping if not left else _of(grouping, names)


def _of(grouping: Grouping, names: Sequence[str]) -> Grouping:
    return replace(grouping, names=[n for n in grouping.names if n in names])


def _cheapest(groupings: Sequence[Grouping], reasons: Mapping[str, str]) -> Grouping:
    paying = [g for g in groupings if g.pays]
    if len(paying) == 1:
        return paying[0]
    if paying:
        raise TallModelError(
            f"Variables of several groupings have many levels of few rows: "
            f"{'; '.join(g.described for g in paying)}. Integrals are over one grouping, and the "
            "levels of another are parameters, which so few rows do not tell. Name the one in "
            "integrate= and sample all rows, or leave a grouping out."
        )
    if groupings:
        raise TallModelError(
            f"No variable is integrated out: {'; '.join(g.described for g in groupings)} have so "
            "few levels, or so many rows in each, that sampling them costs less. Name them in "
            "integrate= to integrate them all the same."
        )
    said = "; ".join(f"{name!r} {reason}" for name, reason in reasons.items())
    raise TallModelError(f"The model has no local variables: {said}.")
