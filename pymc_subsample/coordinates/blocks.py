"""Which variables of a model are effects: normal given others that set their mean and scale."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.transforms import CholeskyCovPacked, CholeskyCovTransform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import (
    CauchyRV,
    GumbelRV,
    LaplaceRV,
    LogisticRV,
    MvNormalRV,
    NormalRV,
    StudentTRV,
)

from pymc_subsample.coordinates.effects import (
    MAX_COMPONENTS,
    Entry,
    across,
    diagonal,
    flattened,
    follow,
    line,
    product,
    total,
    units_of,
)
from pymc_subsample.graph.nodes import lower_factor
from pymc_subsample.model import TallModel

# Location and scale are their last two parameters.
_LOCATION_SCALE = (NormalRV, StudentTRV, LaplaceRV, CauchyRV, LogisticRV, GumbelRV)

# Order, mean and scale, as those of a block.
type _Prior = tuple[np.ndarray, list[Variable], list[list[Entry]]]


@dataclass(frozen=True)
class EffectBlock:
    """Variables x whose effects u on the rows are affine in them, given other variables.

    ``x = mean + scale e`` and ``u = offset + effect e``, where e has mean 0 and variance 1. All are
    graphs over theta: k components, each a vector over J units or a scalar.
    """

    # By value variable, which element of it, flat, is in each column of each unit: (J, columns).
    orders: dict[str, np.ndarray]
    columns: list[tuple[str, int]]  # The variable and its column that each component is.
    mean: list[Variable]
    scale: list[list[Entry]]
    offset: list[Entry]
    effect: list[list[Entry]]
    parents: frozenset[str]  # Names of the value variables on which all of these depend,
    scales: frozenset[str]  # and on which scale or effect do.
    # By component, which elements of phi are the effects of units: (J,), or none of them is.
    seen: list[np.ndarray]
    groups: int = 0  # That are one joint unit, see `joined`; 0 where each is a unit.

    @property
    def name(self) -> str:
        """Name of the first variable."""
        return self.columns[0][0]

    @property
    def components(self) -> int:
        """K."""
        return len(self.columns)

    @property
    def joint(self) -> bool:
        """Whether few groups are one unit."""
        return self.groups > 0

    @property
    def unlike(self) -> bool:
        """Whether units have scales of their own."""
        return any(g is not None and g.type.ndim > 0 for row in self.effect for g in row)

    @property
    def width(self) -> int:
        """So many components, one after the other, are independent of others a priori."""
        widths = {order.shape[1] // max(self.groups, 1) for order in self.orders.values()}
        return widths.pop() if len(widths) == 1 else self.components // max(self.groups, 1)

    @property
    def units(self) -> int:
        """J."""
        return len(self.orders[self.name])


def find_blocks(tall: TallModel, names: Sequence[str]) -> list[EffectBlock]:
    """Return the blocks among variables `names`, parents before children.

    A variable is one where its scale, or that of its effect, depends on other free variables: a
    shift alone is undone by a linear change of coordinates, which the mass matrix is.
    """
    parts = dict(zip(tall.names, tall.value_graphs, strict=True))
    priors = {
        value.name: _prior(tall, tall.model.values_to_rvs[value], parts[value.name])
        for value in tall.value_vars
    }
    # Where effects are met: by rows or, in a nested model, by the means of other effects.
    means = [mean for prior in priors.values() if prior is not None for mean in prior[1]]
    found: dict[str, EffectBlock] = {}
    for name, x in parts.items():
        prior = priors[name]
        if name not in names or name in tall.discrete or prior is None or not np.prod(x.type.shape):
            continue
        meets = tall.phi_graphs if x in ancestors(tall.phi_graphs) else means
        block = _block(tall, name, x, prior, meets)
        if block is not None:
            found[block.name] = block
    return ordered(found.values())


def joined(block: EffectBlock) -> EffectBlock:
    """Return the effects of few units as those of one, without what locations add to them.

    Locations are what rows can't tell from a shift of all groups: given the locations, groups are
    independent, but not without them.
    """
    each = [(unit, a) for unit in range(block.units) for a in range(block.components)]

    def entry(graph: Entry, unit: int) -> Entry:
        if graph is None or not graph.type.ndim:
            return graph
        return graph[0 if graph.type.shape[0] == 1 else unit]

    def spread(matrix: list[list[Entry]]) -> list[list[Entry]]:
        return [
            [entry(matrix[a][b], unit) if unit == other else None for other, b in each]
            for unit, a in each
        ]

    return replace(
        block,
        orders={name: order.reshape(1, -1) for name, order in block.orders.items()},
        columns=[
            (name, unit * block.orders[name].shape[1] + column)
            for unit in range(block.units)
            for name, column in block.columns
        ],
        mean=[entry(block.mean[a], unit) for unit, a in each],
        scale=spread(block.scale),
        offset=[None for _ in each],
        effect=spread(block.effect),
        seen=[],
        groups=block.units,
    )


def together(blocks: Sequence[EffectBlock]) -> list[list[EffectBlock]]:
    """Return blocks with as many units as another beside it: they may belong to the same groups.

    Rows tell the sum of a group's intercept and its slopes, but not one from the other.
    """
    found: list[list[EffectBlock]] = []
    for block in blocks:
        for i, beside in enumerate(found):
            size = sum(b.components for b in [*beside, block])
            after = {name for group in found[i:] for b in group for name in b.orders}
            alike = beside[0].units == block.units and not (beside[0].unlike or block.unlike)
            if alike and size <= MAX_COMPONENTS and not block.parents & after:
                beside.append(block)
                break
        else:
            found.append([block])
    return found


def merged(blocks: Sequence[EffectBlock]) -> EffectBlock:
    """Return blocks that have equally many units, and are no parents of each other, as one."""
    first, *others = blocks
    for second in others:
        first = replace(
            first,
            orders=first.orders | second.orders,
            columns=first.columns + second.columns,
            mean=first.mean + second.mean,
            scale=_diagonal(first.scale, second.scale),
            offset=first.offset + second.offset,
            effect=_diagonal(first.effect, second.effect),
            parents=first.parents | second.parents,
            scales=first.scales | second.scales,
            seen=first.seen + second.seen,
        )
    return first


def _diagonal(first: list[list[Entry]], second: list[list[Entry]]) -> list[list[Entry]]:
    above: list[Entry] = [None] * len(second)
    below: list[Entry] = [None] * len(first)
    return [row + above for row in first] + [below + row for row in second]


def _block(
    tall: TallModel,
    name: str,
    x: Variable,
    prior: _Prior,
    meets: Sequence[Variable],
) -> EffectBlock | None:
    order, mean, scale = prior
    k, first = len(mean), scale[0][0]
    effect = follow(x, meets, set(tall.value_graphs))
    factor, offset, at = effect.factor, effect.offset, None
    if k == 1 and effect.order.shape[1] > 1 and first is not None and first.type.ndim == 0:
        # A variable with independent elements, of which a matrix makes units.
        if mean[0].type.ndim:
            return None
        order, k = effect.order, effect.order.shape[1]
        mean, scale = mean * k, diagonal([first] * k)
    elif not np.array_equal(effect.order, order):
        factor, offset = diagonal([pt.ones(()) for _ in mean]), [pt.zeros(())] * k
    elif effect.graph is not None and effect.graph in tall.phi_graphs:
        first_seen = dict(zip(tall.phi_graphs, tall.phi_slices.values(), strict=True))
        at = first_seen[effect.graph].start + effect.at
    each = range(k)
    seen = [np.zeros(0, dtype=int) if at is None else at[order[:, a]] for a in each]
    offset = [total([offset[a], *(product(factor[a][b], mean[b]) for b in each)]) for a in each]
    by_unit = [
        [total(product(factor[a][c], scale[c][b]) for c in each) for b in each] for a in each
    ]
    depends = partial(ancestry, tall)
    strengths = [g for row in (*scale, *by_unit) for g in row if g is not None]
    parents, scales = depends([*mean, *offset, *strengths]), depends(strengths)
    if not scales or name in parents or parents & set(tall.discrete):
        return None
    columns = [(name, a) for a in each]
    return EffectBlock({name: order}, columns, mean, scale, offset, by_unit, parents, scales, seen)


def ancestry(tall: TallModel, graphs: Sequence[Entry]) -> frozenset[str]:
    """Return the names of the value variables on which graphs over theta depend."""
    above = set(ancestors([graph for graph in graphs if graph is not None]))
    parts = zip(tall.names, tall.value_graphs, strict=True)
    return frozenset(name for name, part in parts if part in above)


def _prior(tall: TallModel, rv: Variable, x: Variable) -> _Prior | None:
    """Return order, mean and scale of a variable that has a location and a scale, or None."""
    op, transform = rv.owner.op, tall.model.rvs_to_transforms[rv]
    shape, size = x.type.shape, int(np.prod(x.type.shape, dtype=int))
    single, axis = np.arange(size)[:, None], across(shape)
    if isinstance(op, ZeroSumNormalRV):
        # Its value is a linear map to independent normal variables, one fewer in each axis.
        [sigma] = tall.over_theta([op.dist_params(rv.owner)[0]])
        alike = all(sigma.type.broadcastable)
        return (single, [pt.zeros(())], [[sigma.dimshuffle([])]]) if alike else None
    if transform is not None:
        return None
    if isinstance(op, _LOCATION_SCALE):
        location, scale = tall.over_theta(op.dist_params(rv.owner)[-2:])
        if axis is not None:
            each = range(shape[axis])
            means, scales = ([line(v, axis, a) for a in each] for v in (location, scale))
            return units_of(shape), means, diagonal(scales)
        return single, [flattened(location, shape)], [[flattened(scale, shape)]]
    if isinstance(op, MvNormalRV) and x.type.ndim == 2:
        mean, cov = op.dist_params(rv.owner)
        mean, factor = tall.over_theta([mean, lower_factor(cov)])
        mean = mean[None, :] if mean.type.ndim == 1 else mean
        each = range(shape[1])
        if len(each) > MAX_COMPONENTS or factor.type.shape != (len(each), len(each)):
            return None
        triangular = [[factor[a, b] if b <= a else None for b in each] for a in each]
        means = [mean[0, a] if mean.type.shape[0] == 1 else mean[:, a] for a in each]
        return np.arange(size).reshape(shape), means, triangular
    return None


def ordered(blocks: Iterable[EffectBlock]) -> list[EffectBlock]:
    """Sort blocks so that parents come first; leave out those that close a circle."""
    done: list[EffectBlock] = []
    left = list(blocks)
    while left:
        names = {name for block in left for name in block.orders}
        ready = [block for block in left if not block.parents & names - block.orders.keys()]
        done += ready
        left = [b for b in left if not any(b is other for other in ready)] if ready else left[:-1]
    return done


def factor_rows(tall: TallModel, name: str) -> list[tuple[int, int]]:
    """Return where rows of Cholesky factors start in a variable, flat, and their off-diagonals."""
    [value] = (v for v in tall.value_vars if v.name == name)
    transform = tall.model.rvs_to_transforms[tall.model.values_to_rvs[value]]
    if not isinstance(transform, CholeskyCovPacked | CholeskyCovTransform):
        return []
    total = int(np.prod(value.type.shape, dtype=int))
    each = value.type.shape[-1]
    starts = [(i * (i + 1) // 2, i) for i in range(1, each) if i * (i + 1) // 2 < each]
    return [(first + start, i) for first in range(0, total, each) for start, i in starts]
