"""Log predictive densities of some rows that are left out, and from them those of all."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.expansion import Expansion
from pymc_subsample.results.loo.arguments import Groups
from pymc_subsample.results.loo.expanded import Approximation

# Log-likelihoods of rows at all draws, in memory at a time. A choice: 64 MB.
_MATRIX = 2**23
# Relative differences of log-likelihoods that are rounding. A choice: ten thousand roundings of
# doubles.
_EQUAL = 1e-11
# The subsampling error over the standard error from which on no more rows are read. Both together
# are then 0.5% larger than the second alone.
_NEGLIGIBLE = 0.1
# Elements of a variable whose effective draws are counted, 0.2 ms each: their mean is within a few
# percent of that of all, where weights are smoothed by its square root.
_ELEMENTS = 1_000


def smoothed(logliks: np.ndarray, r_eff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Leave rows out by importance sampling of draws, log-likelihoods of shape (k, S).

    Returns log predictive densities, Pareto k and effective parameters, as `arviz.loo` has them;
    where log-likelihoods differ by no more than rounding does, k is 0.
    """
    elpd, k, p = logliks.mean(axis=1), np.zeros(len(logliks)), np.zeros(len(logliks))
    some = np.ptp(logliks, axis=1) > _EQUAL * (1 + np.abs(elpd))
    if some.any():
        elpd[some], k[some], p[some] = array_stats.loo(
            logliks[some], chain_axis=None, draw_axis=-1, r_eff=r_eff
        )
    return elpd, k, p


def relative_efficiency(posterior: xr.Dataset) -> float:
    """Return effective draws over draws, as `arviz.loo` has them: the mean over all elements.

    Of a large variable, such as fitted values of all rows, the mean over some of its elements.
    """
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains == 1:
        return 1.0
    total, size = 0.0, 0.0
    for v in posterior.data_vars.values():
        elements = v.values.reshape(chains, draws, -1)
        step = -(-elements.shape[2] // _ELEMENTS) or 1
        ess = array_stats.ess(elements[..., ::step], chain_axis=0, draw_axis=1, method="mean")
        known = np.ravel(ess)[np.isfinite(np.ravel(ess))]
        if len(known):
            count = elements.shape[2] * len(known) / np.size(ess)
            total, size = total + known.mean() * count, size + count
    return float(total / (chains * draws * size)) if size else 1.0


@dataclass(frozen=True)
class Estimate:
    """Sums over all n rows, from those that were left out."""

    elpd: float  # Expected log predictive density.
    se: float  # Its standard error.
    p: float  # Effective number of parameters.
    subsampling_se: float  # Standard error that comes from rows that were not read.
    approx: np.ndarray  # What stands for each row in the difference estimator, shape (n,).
    sample: np.ndarray  # Rows drawn at random, shape (m,).


class LeftOut:
    """Rows, or groups, left out one at a time, by Pareto-smoothed importance sampling.

    `elpd`, `p` and `k`, shape (n,), are log predictive densities, effective parameters and Pareto
    k; NaN of those not read yet.
    """

    def __init__(
        self, expansion: Expansion, phis: np.ndarray, r_eff: float, groups: Groups | None
    ) -> None:
        self.expansion, self._phis, self._groups = expansion, phis, groups
        self._r_eff = r_eff
        self.n, self.draws = expansion.n_rows if groups is None else groups.n, len(phis)
        self.elpd, self.p, self.k = np.full((3, self.n), np.nan)

    def read(self, index: np.ndarray) -> None:
        """Leave out each of some rows, or groups, unless that was done before.

        Raises `ValueError` if a log-likelihood is not finite at a draw.
        """
        index = index[np.isnan(self.elpd[index])]
        size = max(1, _MATRIX // self.draws)
        for start in range(0, len(index), size):
            some = index[start : start + size]
            values = self._logliks(some)
            self._refuse(some, values)
            self.elpd[some], self.k[some], self.p[some] = smoothed(values, self._r_eff)

    def _logliks(self, index: np.ndarray) -> np.ndarray:
        """Return log-likelihoods at all draws, shape (k, S)."""
        rows, owner = index, np.arange(len(index))
        if self._groups is not None:
            rows, owner = self._groups.rows(index)
        total = np.zeros((len(index), len(self._phis)))
        size = self.expansion.chunk_rows
        parts = [slice(i, i + size) for i in range(0, len(rows), size)]

        def added(part: slice) -> tuple[np.ndarray, np.ndarray]:
            """Log-likelihoods of some rows, those of one group added up, shape (groups, S)."""
            of, starts = np.unique(owner[part], return_index=True)
            batch, value = self.expansion.take(rows[part]), np.empty(len(rows[part]))
            sums = np.empty((len(of), len(self._phis)))
            for s, phi in enumerate(self._phis):
                self.expansion.loglik(phi, batch, value)
                sums[:, s] = np.add.reduceat(value, starts)
            return of, sums

        most = size if self._groups is None else 1 + len(index) // len(parts)
        result_bytes = 8 * most * len(self._phis)
        for of, sums in self.expansion.workers.map(added, parts, result_bytes):
            total[of] += sums
        return total

    def rows_in(self, index: np.ndarray) -> int:
        """Return the number of rows of some groups, or of some rows."""
        return len(index if self._groups is None else self._groups.rows(index)[0])

    def _refuse(self, index: np.ndarray, values: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if not len(bad):
            return
        what = "group" if self._groups is not None else "row"
        name = index[bad[0]] if self._groups is None else repr(self._groups.labels[index[bad[0]]])
        draws = int(np.sum(~np.isfinite(values[bad[0]])))
        raise ValueError(
            f"pms.loo: the log-likelihood of {len(bad)} of the {what}s that were read is not "
            f"finite at some draws (first: {what} {name}, at {draws} of {values.shape[1]} draws), "
            "so that its importance weights are not either. Pass the model and the data that were "
            "sampled; a likelihood that rules out rows at likely parameters has no PSIS-LOO."
        )


def of_all(left: LeftOut) -> Estimate:
    """Leave out all rows."""
    every = np.arange(left.n)
    left.read(every)
    elpd, se, p, _ = array_stats.loo_summary(left.elpd, left.p)
    return Estimate(float(elpd), float(se), float(p), 0.0, left.elpd, every)


def of_some(
    left: LeftOut, known: Approximation, outlying: np.ndarray, sample: np.ndarray
) -> Estimate:
    r"""Estimate sums from a simple random sample, by differences from what is known of all rows.

    .. math:: \sum_i a_i + \frac{n}{m} \sum_{i \in S} (e_i - a_i)

    where a is the approximation that leaves less of the sample; of `outlying` rows it is e itself,
    so that the sample does not have to hit them (Magnusson et al. 2020). Where the two are all
    rows, there is nothing to estimate.
    """
    left.read(outlying)
    left.read(sample)
    if len(np.union1d(outlying, sample)) == left.n:
        return of_all(left)

    def better(values: np.ndarray, *candidates: np.ndarray) -> np.ndarray:
        best = min(candidates, key=lambda a: float(np.var(values[sample] - a[sample])))
        best = best.copy()
        best[outlying] = values[outlying]
        return best

    approx = better(left.elpd, known.elpd, known.level)
    elpd, subsampling_se, se = array_stats.diff_srs_estimator(
        left.elpd[sample], approx[sample], approx, left.n
    )
    effects = better(left.p, known.p, np.zeros(left.n))
    p, _, _ = array_stats.diff_srs_estimator(left.p[sample], effects[sample], effects, left.n)
    return Estimate(float(elpd), float(se), float(p), float(subsampling_se), approx, sample)


def estimated(
    left: LeftOut,
    known: Approximation,
    observations: int | np.ndarray | None,
    first: int,
    rng: np.random.Generator,
) -> tuple[Estimate, np.ndarray]:
    """Leave out as many rows as are wanted, or as it takes; also return the outlying ones.

    By default the sample is doubled until the subsampling error is a tenth of the standard error;
    beyond half of the rows it is all of them.
    """
    none = np.zeros(0, dtype=np.int64)
    size = first if observations is None else np.size(observations)
    if isinstance(observations, int):
        size = observations
    if 3 * size > left.n if observations is None else size == left.n:  # a choice
        return of_all(left), none
    most = max(1, size // 2)
    effect = -np.abs(known.elpd - known.level)
    outlying = np.argpartition(effect, most - 1)[:most]
    if isinstance(observations, np.ndarray):
        return of_some(left, known, outlying, observations), outlying
    order = rng.permutation(left.n)
    while True:
        found = of_some(left, known, outlying, order[:size])
        if observations is not None or found.subsampling_se <= _NEGLIGIBLE * found.se:
            return found, outlying
        size *= 2
        if 2 * size > left.n:
            return of_all(left), none
