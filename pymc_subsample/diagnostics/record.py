"""What a chain did after tuning."""

from bisect import insort
from copy import copy
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Self

import numpy as np

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.expansion.estimators import VARIANCE_BOUND

# Draws that are collected before they are added up together. A choice: Python costs little for
# each then, and they take no memory.
_FOLD = 256
# Draws among which those to check are chosen: evenly spread ones, and the noisiest. A choice: of
# memory; perturbations are judged by 500 of them.
_MOST_THINNED = 512
_NOISIEST = 64
# Draws of a Metropolis-Hastings chain to check its test at. A choice: the check makes 2,000
# decisions at each.
_MOVES = 8
# Draws of a chain of integration steps to keep, by their number and by their size. A choice: 32
# MB of numbers.
_FEWEST_STEPS = 16
# Batches of successive draws, for the Monte Carlo error of all of them. A choice: errors are then
# good to an eighth, the root of 1 / 64.
_STEP_BATCHES = 32
_ELEMENTS = 4_000_000  # Numbers of all draws that are kept, a choice of memory: 32 MB.


def most_thinned(size: int) -> int:
    """Return how many draws of so many elements to keep."""
    return max(_FEWEST_STEPS, min(_MOST_THINNED, _ELEMENTS // size))


@dataclass
class Record:
    """Draws of a chain."""

    # Draws to come in all, and so far.
    draws: int = 0
    done: int = 0
    # Evenly spread draws theta, shape (d,).
    thinned: list[np.ndarray] = field(default_factory=list)

    def keep(self, thetas: np.ndarray, most: int) -> list[int]:
        """Count the next draws, shape (n, d), keep about `most` of all, and return which."""
        chosen, total = [], max(self.draws, 1)
        for i, theta in enumerate(thetas):
            if (self.done + i + 1) * most // total > len(self.thinned):
                self.thinned.append(theta.copy())
                chosen.append(i)
        self.done += len(thetas)
        return chosen

    def __deepcopy__(self, memo: dict) -> Self:
        """Copy what changes: draws, once they are in a list, do not."""
        new = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | np.ndarray):
                setattr(new, name, value.copy())
        return new


def running(total: Any, more: np.ndarray) -> Any:
    """Add numbers, (n, ...), one by one: sums do not depend on how many draws come at once."""
    if len(more) == 1:
        return total + more[0]
    return np.add.accumulate(np.concatenate([np.asarray(total, dtype=float)[None], more]))[-1]


@dataclass
class MovingRecord(Record):
    """Draws of a chain whose transitions may diverge."""

    divergences: int = 0  # Divergent draws.
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))  # The last draw, shape (d,).
    # The draws before divergent ones, the first of these.
    before: list[np.ndarray] = field(default_factory=list)
    # The same of draws whose trajectories crossed an edge of the support.
    crossings: int = 0
    beside: list[np.ndarray] = field(default_factory=list)

    def add_divergent(
        self, thetas: np.ndarray, diverging: np.ndarray, most: int, crossed: Any = ()
    ) -> None:
        """Look for divergent ones among the next draws, shape (n, d), before they are counted."""
        self.divergences += self._before(thetas, diverging, self.before, most)
        self.crossings += self._before(thetas, crossed, self.beside, most)
        self.last = thetas[-1].copy()

    def _before(self, thetas: np.ndarray, which: Any, some: list[np.ndarray], most: int) -> int:
        found = np.flatnonzero(which)
        after = found[self.done + found > 0][: most - len(some)].tolist()
        some += [thetas[i - 1].copy() if i else self.last for i in after]
        return len(found)

    def confirm(self, near: np.ndarray) -> None:
        """Count crossings as divergences where no edge is near: of `beside`, near where true."""
        wrong = np.flatnonzero(~near)
        share = len(wrong) / max(len(near), 1) if len(near) else 1.0
        moved = int(np.ceil(share * self.crossings))
        self.crossings, self.divergences = self.crossings - moved, self.divergences + moved
        self.before += [self.beside[i] for i in wrong]
        self.beside = [x for x, keep in zip(self.beside, near, strict=True) if keep]


def without_crossings(infos: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what draws report, where a trajectory that crossed an edge is none that diverged.

    It is rejected there, as a proposal outside of the support is, and with steps of any size.
    """
    return infos | {"diverging": infos["diverging"] - infos["crossed"]}


@dataclass
class ChainRecord(MovingRecord):
    """What a chain did after tuning."""

    size: int | None = None  # Elements of theta that can move, d; None for all.
    # Sums of the estimated variance of the log-likelihood, of the acceptance rate and of the share
    # of accepted refreshes.
    noise: float = 0.0
    acceptance: float = 0.0
    subset_accepted: float = 0.0
    negative: int = 0  # Draws whose likelihood estimate is negative.
    excess: int = 0  # Draws whose estimated variance exceeds twice its bound.
    # Mean of the draws and sum of squared deviations from it, shape (d,), (d, d).
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    # Estimated variances and numbers of the draws that are kept, and draws of the largest ones, in
    # increasing order.
    told: list[tuple[float, int]] = field(default_factory=list)
    noisiest: list[tuple[float, int, np.ndarray]] = field(default_factory=list)
    folded: int = 0  # Draws that are part of them.
    pending: list[np.ndarray] = field(default_factory=list)  # Those that are not yet.

    def add(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        """Add draws, shape (n, d), and what their transitions reported, each (n,)."""
        self.add_divergent(thetas, infos["diverging"] > 0, _MOST_THINNED, infos.get("crossed", ()))
        variance = infos["loglik_variance"]
        self.noise = running(self.noise, variance)
        self.acceptance = running(self.acceptance, infos["acceptance_rate"])
        self.subset_accepted = running(self.subset_accepted, infos["subset_accepted"])
        self.negative += int(np.count_nonzero(infos["sign"] < 0))
        self.excess += int(np.count_nonzero(~(variance <= 2 * VARIANCE_BOUND)))
        first, numbers = self.done, variance.tolist()
        self.told += [(numbers[i], first + i) for i in self.keep(thetas, _MOST_THINNED)]
        least = self.noisiest[0][0] if len(self.noisiest) == _NOISIEST else -np.inf
        for i in np.flatnonzero(~(variance <= least)).tolist():
            if len(self.noisiest) < _NOISIEST or numbers[i] > self.noisiest[0][0]:
                insort(self.noisiest, (numbers[i], first + i, thetas[i].copy()), key=itemgetter(0))
                del self.noisiest[:-_NOISIEST]
        while len(thetas):
            room = _FOLD - len(self.pending)
            self.pending += list(thetas[:room].copy())
            thetas = thetas[room:]
            if len(self.pending) == _FOLD:
                self.fold()

    def fold(self) -> None:
        """Merge pending draws into mean and squares."""
        if not self.pending:
            return
        new = np.array(self.pending)[:, : self.size]
        self.pending = []
        before, count = self.folded, len(new)
        self.folded += count
        mean = new.mean(axis=0)
        centred = new - mean
        if not before:
            self.mean, self.square = mean, centred.T @ centred
            return
        shift = mean - self.mean
        self.mean = self.mean + shift * count / (before + count)
        between = np.outer(shift, shift) * (before * count / (before + count))
        self.square = self.square + centred.T @ centred + between

    def weighted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the noisiest and evenly spread draws, their noise, and what each stands for.

        Shapes (k, d), (k,) for the estimated variance and (k,) for the share of all draws.
        """
        taken, top = {number for _, number, _ in self.noisiest}, len(self.noisiest)
        every = zip(self.told, self.thinned, strict=True)
        others = [(noise, at, theta) for (noise, at), theta in every if at not in taken]
        noise, _, thetas = zip(*self.noisiest, *others, strict=True)
        each = (1 - top / self.done) / max(len(others), 1)
        shares = np.repeat([1 / self.done, each], [top, len(others)])
        return np.array(thetas), np.array(noise), shares / np.sum(shares)

    @property
    def variance(self) -> np.ndarray:
        """Variance of the draws, shape (d,)."""
        return np.diag(self.square) / max(self.done - 1, 1)

    def standardise(self, thetas: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return draws, shape (k, d), less the mean and over the standard deviation, (k, a)."""
        sd = np.sqrt(self.variance[active])
        return (thetas[:, active] - self.mean[active]) / np.where(sd > 0, sd, 1.0)

    def distance(self, reference: np.ndarray, active: np.ndarray) -> float:
        """Distance of the mean from the reference, in posterior standard deviations."""
        self.fold()
        cov = self.square[np.ix_(active, active)] / max(self.done - 1, 1)
        scale = np.sqrt(np.diag(cov))
        scale = np.where(scale > 0, scale, 1.0)
        shift = (self.mean[active] - reference[active]) / scale
        # ten thousand times rounding
        solved = np.linalg.lstsq(cov / np.outer(scale, scale), shift, rcond=1e-10)[0]
        return float(np.sqrt(max(shift @ solved, 0.0)))


@dataclass
class MoveRecord(Record):
    """What a Metropolis-Hastings chain did after tuning."""

    most: int = _MOVES  # Draws to keep.
    # Sums of the share of accepted proposals and of the share of all rows read per proposal.
    accepted: float = 0.0
    share: float = 0.0
    # Shape (d,): the first draw, and the last less the first.
    origin: np.ndarray = field(default_factory=lambda: np.zeros(0))
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # Shape (d,): sums over draws, less the first, of theta, its square and its product with the one
    # before.
    total: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros(0))
    product: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, thetas: np.ndarray, accepted: np.ndarray, share: np.ndarray) -> None:
        """Add draws, shape (n, d), and what their transitions did, each (n,)."""
        if not self.done:
            self.origin = thetas[0].copy()
            self.last = self.total = self.square = self.product = np.zeros(len(self.origin))
        shifts = thetas - self.origin
        self.total = running(self.total, shifts)
        self.square = running(self.square, shifts**2)
        self.product = running(self.product, shifts * np.vstack([self.last, shifts[:-1]]))
        self.last = shifts[-1].copy()
        self.accepted = running(self.accepted, accepted)
        self.share = running(self.share, share)
        self.keep(thetas, self.most)

    def autocorrelation(self, active: np.ndarray) -> float:
        """Largest autocorrelation of successive draws among parameters `active`, from 0 to 1."""
        n = max(self.done, 1)
        mean = self.total / n
        variance = self.square / n - mean**2
        moved = variance > 0
        moved[np.setdiff1d(np.arange(len(moved)), active)] = False
        if not moved.any():
            return 1.0
        lagged = (self.product / n - mean**2)[moved] / variance[moved]
        return float(np.clip(lagged.max(), 0.0, 1.0))


@dataclass
class StepRecord(MovingRecord):
    """What a chain of integration steps did after tuning; it diverges by leaving all bounds."""

    step_size: float = 0.0  # Sum over draws.
    # Sum over draws of the estimated variance of each element of the gradient, shape (a,).
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    temperatures: list[float] = field(default_factory=list)  # Kinetic temperature of each draw.
    # Numbers of draws in batches of successive draws, shape (b,).
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    origin: np.ndarray = field(default_factory=lambda: np.zeros(0))  # The first draw, shape (d,).
    # Shape (b, d): sums over each batch of theta, less the first, and of its square.
    sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    squares: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        """Add draws, shape (n, d), and what their steps report: the gradient's noise (n, a)."""
        n, d = thetas.shape
        if not self.done:
            self.noise = np.zeros(infos["noise"].shape[1])
            batches = min(_STEP_BATCHES, max(_ELEMENTS // (2 * d), 2), max(self.draws, 1))
            self.origin, self.sizes = thetas[0].copy(), np.zeros(batches)
            self.sums, self.squares = (np.zeros((batches, d)) for _ in range(2))
        batch = (self.done + np.arange(n)) * len(self.sizes) // max(self.draws, 1)
        batch = np.minimum(batch, len(self.sizes) - 1)
        shifts = thetas - self.origin
        for total, more in ((self.sizes, 1), (self.sums, shifts), (self.squares, shifts * shifts)):
            np.add.at(total, batch, more)
        most = most_thinned(d)
        self.add_divergent(thetas, infos["diverging"], most)
        self.keep(thetas, most)
        self.step_size = running(self.step_size, infos["step_size"])
        self.noise = running(self.noise, infos["noise"])
        self.temperatures += infos["kinetic_temperature"].tolist()

    @property
    def mean(self) -> np.ndarray:
        """Mean of the draws, shape (d,)."""
        return self.origin + self.sums.sum(axis=0) / self.done

    @property
    def variance(self) -> np.ndarray:
        """Variance of the draws, shape (d,)."""
        shift = self.mean - self.origin
        square = self.squares.sum(axis=0) - self.done * shift**2
        return np.maximum(square, 0.0) / max(self.done - 1, 1)

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Monte Carlo errors of the mean and of the variance, each of shape (d,), by batches."""
        shift, sizes = self.mean - self.origin, self.sizes[:, None]
        centred = self.sums - sizes * shift
        spread = self.squares - 2 * shift * self.sums + sizes * shift**2
        spread = spread - sizes * (spread.sum(axis=0) / self.done)
        more = len(self.sizes) / max(len(self.sizes) - 1, 1)
        mean, variance = (
            np.sqrt(more * np.sum(x**2, axis=0)) / self.done for x in (centred, spread)
        )
        return mean, variance

    def effective(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Effective sample sizes of means and standard deviations of the kept draws, shape (a,)."""
        thinned = np.array(self.thinned)[None, :, active]
        mean, sd = (
            np.asarray(array_stats.ess(thinned, chain_axis=0, draw_axis=1, method=method))
            for method in ("mean", "sd")
        )
        return mean, np.fmin(mean, sd)

    def without(self, batches: int) -> "StepRecord":
        """Return the record of the draws after the first few batches."""
        left = int(self.sizes[:batches].sum())
        thinned = self.thinned[int(np.ceil(len(self.thinned) * left / self.done)) :]
        sizes, sums, squares = (x[batches:] for x in (self.sizes, self.sums, self.squares))
        return replace(
            self, done=self.done - left, sizes=sizes, sums=sums, squares=squares, thinned=thinned
        )

    def rescaled(self, scale: np.ndarray) -> "StepRecord":
        """Return the record with the gradient's noise in units of `scale`, shape (a,)."""
        return replace(self, noise=self.noise * scale**2)
