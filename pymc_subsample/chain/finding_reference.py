"""The reference of a step: found, or given, in a form of the model in which its sums are exact."""

import logging
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_subsample.chain import variables
from pymc_subsample.chain.integrating import each, integrated_anew
from pymc_subsample.chain.model_compilation import connect
from pymc_subsample.chain.multimodality import starts
from pymc_subsample.chain.setup import NEARLY, Preparation, Problem
from pymc_subsample.chain.sharing import sharer
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.stored_sums import Archive
from pymc_subsample.expansion.undefined import without_curvature
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.model.errors import differentiated
from pymc_subsample.model.identity import archive

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")


def find(
    step: "ChainStep", temperature: float = 1.0, kind: int = PERTURBED
) -> tuple[Problem, Preparation]:
    """Find the reference point, or take the one that was given.

    Where expansions leave much, rows see parameters on better scales, and where sums over rows
    have hardly enough digits, nearly collinear columns are taken apart, if there are some and
    that helps: the problem is made anew. So it is with control variates of order 1 where some
    rows have no second derivatives and no predictors either.
    """
    if (like := sharer(step)) is not None:
        assert like.prepared is not None
        problem, prepared = _problem(step, temperature, kind), like.prepared
    else:
        if step.like is not None:
            step.earlier = step.like.reference_values()
        problem, prepared = _found(step, temperature, kind)
    step.like = None
    step.centring = _centring(step, prepared.reference.theta)
    if step.centring:
        said = _moving(step.centring)
        _log.info("%s: reparameterised: %s", type(step).__name__, said)
    step.seconds_to_reference = thread_time() - step.set_up_since
    return problem, prepared


def _found(step: "ChainStep", temperature: float, kind: int) -> tuple[Problem, Preparation]:
    problem, prepared = first = solved(step, temperature, kind)
    while integrated_anew(step, prepared.search):
        problem, prepared = first = solved(step, temperature, kind)
    if _lowered(step, prepared.reference):
        problem, prepared = first = solved(step, temperature, kind)
    if step.method.estimates and step.form.rescaled(step.tall, step.expansion, *first):
        connect(step)
        problem, prepared = first = solved(step, temperature, kind)
    many = len(problem.free) > MAX_DENSE
    lost = problem.without_digits(prepared, NEARLY)
    if (many or len(lost)) and _take_apart(step, first if many else None):
        problem, prepared = solved(step, temperature, kind)
        lost = problem.without_digits(prepared)
        if len(lost):
            step.form.apart, (problem, prepared) = None, first
            connect(step)
    if len(lost):
        lost = problem.without_digits(prepared)
        variables.refuse_rounded(step.tall, lost, own=step.form.own)
    return problem, prepared


def solved(step: "ChainStep", temperature: float, kind: int) -> tuple[Problem, Preparation]:
    """Set the problem up, and prepare it."""
    with differentiated(step.tall, step.method.without_gradient):
        problem = _problem(step, temperature, kind)
        return problem, problem.prepare()


def _problem(step: "ChainStep", temperature: float, kind: int) -> Problem:
    """Return what a set-up needs to know, where the reference was given or not."""
    given: dict[str, Any] = {
        "temperature": temperature, "kind": kind, "each": each(step)
    }  # fmt: skip
    reference = step.given_reference if step.earlier is None else step.earlier
    if reference is not None:
        theta = variables.reference_theta(step.sampled_model, step.tall, reference)
        given["given"] = step.expansion.from_values(theta)
        given["earlier"] = step.earlier is not None
    sums = archive(step.tall, "sums")
    if sums is not None and temperature == 1.0:
        given["archive"] = Archive(*sums, kind)
    begin, free = starts(step.sampled_model, step.tall), step.layout.continuous()
    return Problem(step.method.taylor(step), begin, step.active, free, step.rng, **given)


def _lowered(step: "ChainStep", at: Reference) -> bool:
    """Take control variates of order 1 if expansions of rows are all of one order.

    Those in linear predictors are of order 1 in the rows that need it.
    """
    expansion = step.expansion
    if not at.flat or expansion.linear or expansion.order < 2:
        return False
    if step.asked_order != "auto":
        raise without_curvature(expansion, at)
    step.asked_order = 1
    connect(step)
    step.control_variate_order = 1
    return True


def _take_apart(step: "ChainStep", found: tuple[Problem, Preparation] | None) -> bool:
    """Take columns apart, if there are some, and their sums lose digits by themselves."""
    apart = step.form.collinear(step.tall, step.expansion, step.names)
    if apart is None:
        return False
    if found is not None:
        problem, prepared = found
        if not len(problem.without_digits(prepared, NEARLY, apart.places)):
            return False
    step.form.apart = apart
    connect(step)
    return True


def _centring(step: "ChainStep", theta: np.ndarray) -> dict[str, np.ndarray]:
    effects = step.expansion.effects
    if effects is None:
        return {}
    tall = step.tall
    rvs = {v.name: tall.model.values_to_rvs[v].name for v in tall.value_vars}
    return {rvs[name]: weights for name, weights in effects.centring(theta).items()}


def _moving(centring: dict[str, np.ndarray]) -> str:
    said = []
    for name, weights in centring.items():
        span = dict.fromkeys(f"{100 * weight:.0f}" for weight in (weights.min(), weights.max()))
        between = f"between the forms, {'-'.join(span)}% of the way from non-centred to centred"
        ends: dict[tuple[str, ...], str] = {
            ("0",): "in the non-centred form",
            ("100",): "in the centred form",
        }
        said.append(f"{name} {ends.get(tuple(span), between)}")
    return "; ".join(said)
