"""Which variables are integrated out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from pymc_subsample.model import TallModelError
from pymc_subsample.model.discovery import imputed
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.groupings import Grouping, pays
from pymc_subsample.units.parents import children
from pymc_subsample.units.reading import Reading, read
from pymc_subsample.units.unread import unread, without_variables
from pymc_subsample.validation import name_list


def chosen(reading: Reading, integrate: str | Sequence[str]) -> Grouping:
    """Return the grouping whose variables are integrated out."""
    names = name_list("integrate", integrate) or ["auto"]
    automatic = names == ["auto"]
    groupings, reasons = find_groupings(reading, () if automatic else names)
    if automatic:
        return _cheapest(reading, groupings, reasons)
    missing = {of: name for name, of in imputed(reading.model).items()}
    found: list[Grouping] = []
    for name in names:
        if name not in reading.values:
            own = f" Missing values of {name!r} are {missing.get(name)!r}." * (name in missing)
            raise ValueError(
                f"integrate holds {name!r}, which is not a free variable of the model.{own} Those "
                f"are {sorted(reading.values)}."
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
            f"{', '.join(g.described for g in found)}. Only the variables of one grouping, whose "
            "levels meet one to one, can be integrated out. Name those of one, and sample the "
            "others if they have few levels of many rows."
        )
    [grouping] = found
    left = [n for n in grouping.names if n not in names]
    grouping = grouping if not left else _of(grouping, names)
    if _holds_all(reading, grouping):
        raise _none_is_left(grouping)
    for name in grouping.names:
        for child in _left_behind(reading, grouping, name):
            raise _without_child(reading, names, name, child)
    return grouping


def _left_behind(reading: Reading, grouping: Grouping, name: str) -> list[str]:
    """Return variables that would stay without one on which their prior depends."""
    return [child for child in children(reading, name) if child not in grouping.names]


def _without_child(reading: Reading, names: Sequence[str], name: str, child: str) -> TallModelError:
    both = [*names, child]
    groupings, _ = find_groupings(reading, both)
    together = any({name, child} <= set(g.names) for g in groupings)
    instead = (
        f"Name both, integrate={both}"
        if together
        else f"Levels of the two are not one to one, so that only one is integrated out: name "
        f"{child!r}, and sample {name!r}"
    )
    return TallModelError(
        f"{name!r} cannot be integrated out without {child!r}, whose prior depends on it. {instead}"
        ", or sample this model as it is, with pm.NUTS."
    )


def _of(grouping: Grouping, names: Sequence[str]) -> Grouping:
    return replace(grouping, names=[n for n in grouping.names if n in names])


def _holds_all(reading: Reading, grouping: Grouping) -> bool:
    return len(grouping.names) == len(reading.values)


def _none_is_left(grouping: Grouping) -> TallModelError:
    return TallModelError(
        f"{' and '.join(map(repr, grouping.names))} are all free variables of the model: with them "
        "integrated out none is left to sample. Give integrate=False, or use pm.NUTS: what belongs "
        "to one level is independent of the others."
    )


def _cheapest(
    reading: Reading, groupings: Sequence[Grouping], reasons: Mapping[str, str]
) -> Grouping:
    paying = paying_one(reading, groupings)
    if paying is not None:
        return paying
    if all_of_them := [g for g in groupings if _holds_all(reading, g)]:
        raise _none_is_left(all_of_them[0])
    if groupings:
        raise TallModelError(
            f"No variable is integrated out: {'; '.join(g.described for g in groupings)} have so "
            "few levels, or so many rows in each, that sampling them costs less. Name them in "
            "integrate= to integrate them all the same."
        )
    said = "; ".join(f"{name!r} {reason}" for name, reason in reasons.items())
    raise TallModelError(f"The model has no local variables: {said}.")


def paying_one(reading: Reading, groupings: Sequence[Grouping]) -> Grouping | None:
    """Return the one grouping for which integrals cost less than parameters, if there is one.

    Where it holds all variables, none would be left to sample; nor is there one where variables
    would be left whose prior depends on those of it.
    """
    paying = [g for g in groupings if g.pays and not _holds_all(reading, g)]
    if len(paying) > 1:
        raise several_pay([g.described for g in paying])
    if not paying or any(_left_behind(reading, paying[0], name) for name in paying[0].names):
        return None
    return paying[0]


def several_pay(described: Sequence[str]) -> TallModelError:
    """Return what to say of several groupings of many levels of few rows."""
    return TallModelError(
        f"Variables of several groupings have many levels of few rows, or are missing values: "
        f"{'; '.join(described)}. Only one grouping can be integrated out. The others would stay "
        "parameters, about which a subsample says too little: it holds few rows, or none, that "
        "read any one of them. Name one grouping in integrate= and sample the others with NUTS on "
        "all rows, or leave a grouping out of the model."
    )


def would_pay(reading: Reading, names: Iterable[str]) -> list[str]:
    """Return those variables, of some, that are as long as those of many levels of few rows."""
    rows = max((max(term.shape, default=1) for term in reading.terms), default=1)
    lengths = {name: max(reading.values[name].type.shape, default=1) for name in names}
    return [name for name, n in lengths.items() if n and pays(n, max(1.0, rows / n))]


def may_pay(model: pm.Model, n_rows: int | None = None) -> bool:
    """Whether a variable is discrete, or long enough beside the observed ones for a look.

    Or put among other values, as what is missing of a column. `n_rows` is the number of rows where
    the model holds a sample of them.
    """
    if any(v.type.ndim for v in model.discrete_value_vars) or _put_among_others(model):
        return True
    # Lengths that types do not tell, as of a slice of `pm.Data`, may be short.
    known = [n or 1 for v in _observed(model) for n in v.type.shape]
    rows = max(known, default=1) if n_rows is None else n_rows
    continuous = [model.values_to_rvs[v].name for v in model.continuous_value_vars]
    long = [model[name] for name in continuous if model[name].type.ndim]
    if not long:
        return False
    shapes = model.eval_rv_shapes() if any(None in v.type.shape for v in long) else {}
    lengths = [max(shapes.get(v.name, v.type.shape), default=1) for v in long]
    return pays(int(max(lengths)), max(1.0, rows / max(lengths)))


def _put_among_others(model: pm.Model) -> bool:
    vectors = {rv for rv in model.free_RVs if rv.type.ndim}
    above = ancestors([*model.observed_RVs, *model.potentials]) if vectors else []
    return any(
        isinstance(v.owner_op, AdvancedIncSubtensor)
        and not vectors.isdisjoint(ancestors([v.owner.inputs[1]]))
        for v in above
    )


def sums_over_all(model: pm.Model) -> bool:
    """Whether a step sums over all discrete variables of a model, if it has some."""
    names = {model.values_to_rvs[v].name for v in model.discrete_value_vars} - {*unread(model)}
    if not names or not may_pay(model):
        return not names
    try:
        groupings, _ = find_groupings(read(without_variables(model, unread(model))))
    except TallModelError:
        return False
    return any(names <= set(grouping.names) for grouping in groupings)


def _observed(model: pm.Model) -> list[Variable]:
    return [model.rvs_to_values[rv] for rv in model.observed_RVs]
