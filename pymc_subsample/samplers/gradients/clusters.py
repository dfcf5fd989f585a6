"""Strata of similar rows, for batches that hold some of each."""

import numpy as np

from pymc_subsample.chain.multimodality import MOST_SEEDS
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion import Expansion

# Rows by which the centres are found. A choice of time.
_ROWS = 100_000
# Sds from the mean beyond which distances no longer grow. A choice: the centres would go to
# single outliers otherwise.
_FAR = 10.0


@one_thread
def clustered_order(expansion: Expansion, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the rows in the order of their cluster, shape (n,), of uint32.

    K-means on the standardised columns of the data, outcomes included.
    """
    try:
        from sklearn.cluster import MiniBatchKMeans
    except ImportError as error:
        raise ImportError(
            "Clusters of rows are found by scikit-learn, which is not installed: "
            'pip install "pymc-subsample[clusters]", or use batches="uniform", as SGHMC does.'
        ) from error
    n = expansion.n_rows
    sample = expansion.take(np.sort(rng.choice(n, min(n, _ROWS), replace=False)))
    known = np.ma.masked_invalid(sample)
    mean = known.mean(axis=1, keepdims=True).filled(0.0)
    sd = known.std(axis=1, keepdims=True).filled(0.0)
    vary = sd[:, 0] > 0

    def standardised(rows: np.ndarray) -> np.ndarray:
        """Infinite elements, such as logs of zero, are as far as any can be."""
        with np.errstate(invalid="ignore"):
            z = (rows[vary] - mean[vary]) / sd[vary]
        return np.clip(np.nan_to_num(z, nan=0.0, posinf=_FAR, neginf=-_FAR), -_FAR, _FAR).T

    seed = int(rng.integers(MOST_SEEDS))
    # Three starts, as scikit-learn took for `MiniBatchKMeans`.
    means = MiniBatchKMeans(n_clusters, random_state=seed, n_init=3).fit(standardised(sample))
    labels = np.concatenate([means.predict(standardised(rows)) for rows in expansion.chunks()])
    return np.argsort(labels, kind="stable").astype(np.uint32)
