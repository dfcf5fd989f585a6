"""Subsampled Gibbs sampling of a Markov random field: figures 7 and 8 of Korattikara et al. (2014).

100 binary variables, a table of eight numbers for each of their 161,700 triples, batches of 500 of
the 4,851 triples that touch a variable. Figure 7: conditional probabilities by the test against
exact ones. Figure 8: error of 5-variable marginals against the processor time spent. The reference
is another sampler, which expands the log-probability into a polynomial and needs no factors.

python tests/benchmarks/gibbs_mrf.py
python tests/benchmarks/gibbs_mrf.py --variables 30 --batch 50 --sweeps 300 --truth 5000  # small
"""

from itertools import combinations, permutations
from time import perf_counter, process_time

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _measure import Checks, command_line, table

import pymc_subsample as pms
from pymc_subsample.samplers.gibbs.conditional_errors import conditional_errors
from pymc_subsample.samplers.gibbs.step import TEST, settings

LEVELS = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25]
# Samples after 1,000 s by the legend of figure 8, exact Gibbs sampling first.
PAPER_SAMPLES = dict(zip([0.0, *LEVELS], [2897, 3429, 3979, 4494, 4889, 5507, 5959], strict=True))
PAPER_ERROR = 0.01  # at epsilon = 0.01, section 6.3

parser = command_line(__doc__, variables=100, batch=500, subsets=1600)
parser.add_argument("--scale", type=float, default=0.02, help="standard deviation of log psi")
parser.add_argument("--updates", type=int, default=200, help="conditional probabilities, figure 7")
parser.add_argument("--sweeps", type=int, default=500, help="of the exact sampler, figure 8")
parser.add_argument("--truth", type=int, default=100_000, help="sweeps of the reference")
args = parser.parse_args()

D = args.variables
rng = np.random.default_rng(1)
triples = np.array(list(combinations(range(D), 3)))
log_psi = rng.normal(0, args.scale, (len(triples), 2, 2, 2))
with pm.Model() as model:
    x = pm.Bernoulli("x", 0.5, shape=D)
    i, j, k = triples.T
    pm.Potential("psi", pt.as_tensor(log_psi)[np.arange(len(triples)), x[i], x[j], x[k]])

start = perf_counter()
step = pms.AusterityGibbs(model=model, batch_size=args.batch)
print(
    f"{D} binary variables, {step.n_rows:,} factors, {step.n_touching[0]:,} per variable; "
    f"set-up {perf_counter() - start:.1f} s"
)


def sampler(epsilon, seed):
    step.epsilon = epsilon
    step.setup_chain(np.random.default_rng(seed), 10**9, 0)  # tuning, so that no check runs
    return step


def sample(epsilon, sweeps, seed, seconds=np.inf):
    """States, shape (s, D), processor seconds after each, and mean statistics."""
    chain, point = sampler(epsilon, seed), {"x": states[-1].astype("int64")}
    drawn, times, stats, begin = np.empty((sweeps, D), np.uint8), [], [], process_time()
    for s in range(sweeps):
        point, [stat] = chain.step(point)
        drawn[s] = point["x"]
        times.append(process_time() - begin)
        stats.append([stat["data_share"], stat["n_looks"], stat["test_error"]])
        if times[-1] > seconds:
            break
    return drawn[: s + 1], np.array(times), np.mean(stats, axis=0)


def polynomial():
    """Coefficients a (D,), b (D, D) and c (D, D, D), symmetric with zero diagonals.

    The log-odds of x_i are a_i + sum_j b_ij x_j + sum_{j<k} c_ijk x_j x_k.
    """
    a, b, c = np.zeros(D), np.zeros((D, D)), np.zeros((D, D, D))
    cube = log_psi
    for axis in (1, 2, 3):  # values to differences: 1, x, per variable
        zero, one = np.split(cube, 2, axis=axis)
        cube = np.concatenate([zero, one - zero], axis=axis)
    t = triples.T
    for v, place in zip(t, [(1, 0, 0), (0, 1, 0), (0, 0, 1)], strict=True):
        np.add.at(a, v, cube[:, *place])
    for (u, v), place in zip(
        [(t[0], t[1]), (t[0], t[2]), (t[1], t[2])], [(1, 1, 0), (1, 0, 1), (0, 1, 1)], strict=True
    ):
        np.add.at(b, (u, v), cube[:, *place])
        np.add.at(b, (v, u), cube[:, *place])
    for u, v, w in permutations(t):
        c[u, v, w] = cube[:, 1, 1, 1]
    return a, b, c


@numba.njit
def reference(rng, a, b, c, sweeps, thin):
    """States after every `thin` sweeps of Gibbs sampling."""
    size = len(a)
    x = (rng.random(size) < 0.5).astype(np.uint8)
    drawn = np.empty((sweeps // thin, size), np.uint8)
    on = np.empty(size, np.int64)
    for s in range(sweeps // thin * thin):
        for i in range(size):
            count, odds = 0, a[i]
            for j in range(size):
                if x[j] and j != i:
                    on[count] = j
                    count += 1
            for p in range(count):
                odds += b[i, on[p]]
                for q in range(p):
                    odds += c[i, on[p], on[q]]
            x[i] = rng.random() < 1 / (1 + np.exp(-odds))
        if s % thin == thin - 1:
            drawn[s // thin] = x
    return drawn


def marginals(drawn, subsets):
    """Frequencies of the 32 states of each subset, shape (k, 32)."""
    counts = np.zeros(32 * len(subsets))
    for first in range(0, len(drawn), 2000):
        part = drawn[first : first + 2000]
        codes = sum(part[:, subsets[:, b]].astype(np.int64) << b for b in range(5))
        codes += 32 * np.arange(len(subsets))
        counts += np.bincount(codes.ravel(), minlength=len(counts))
    return counts.reshape(-1, 32) / len(drawn)


coefficients = polynomial()
states = reference(rng, *coefficients, args.truth, 1)[args.truth // 50 :]
checks = Checks()

above = conditional_errors(
    step.expansion, step.touching, step.active, [(states[0].astype(float), v) for v in range(D)],
    test=TEST.address, settings=np.array([step.n_rows, 0.0]), decisions=1,
    rng=np.random.default_rng(0),
).exact  # fmt: skip
a, b, c = coefficients
odds = a + b @ states[0] + 0.5 * np.einsum("ijk,j,k->i", c, states[0], states[0])
difference = np.abs(above - 1 / (1 + np.exp(-odds))).max()
checks.at_most("conditional probabilities of both samplers apart", difference, 1e-9)

print("\nFigure 7: conditional probabilities by the test against exact ones")
chosen = [
    (states[s].astype(float), int(v))
    for s, v in zip(
        rng.integers(0, len(states), args.updates), rng.integers(0, D, args.updates), strict=True
    )
]
rows, worst = [], {}
for epsilon in [0.0, *LEVELS]:
    chain = sampler(epsilon, 3)
    parts = [  # each call bounds the rows that it reads
        conditional_errors(
            chain.expansion,
            chain.touching,
            chain.active,
            chosen[first : first + 5],
            test=TEST.address,
            settings=settings(chain),
            decisions=4000,
            rng=np.random.default_rng(first),
        )
        for first in range(0, len(chosen), 5)
    ]
    exact = np.concatenate([p.exact for p in parts])
    error = np.concatenate([p.error for p in parts])
    noise = np.concatenate([p.noise for p in parts])
    decile = np.minimum((10 * exact).astype(int), 9)
    curve = np.bincount(decile, error) / np.maximum(np.bincount(decile), 1)
    worst[epsilon] = np.abs(curve).max()
    high, low = exact > 0.7, exact < 0.3
    rows.append(
        [f"{epsilon:g}", worst[epsilon], np.abs(error).max(), noise.mean(), np.abs(error).mean()]
        + [error[part].mean() if part.any() else np.nan for part in (low, high)]
        + ["0" if not epsilon else "within 0.01" if epsilon == 0.01 else "not given"]
    )
header = ["epsilon", "max, deciles of p", "max, single", "its noise", "mean |error|"]
header += ["bias at p < .3", "at p > .7"]
table([*header, "paper, max"], rows)
print("paper: underestimates large probabilities and overestimates small ones")
checks.at_most(
    "max error over deciles of p at epsilon = 0.01 (paper: 0.01)", worst[0.01], PAPER_ERROR
)

print("\nFigure 8: average L1 error of 5-variable marginals after given times")
subsets = np.array([rng.choice(D, 5, replace=False) for _ in range(args.subsets)])
truth = marginals(states, subsets)
_, times, _ = sample(0.0, 20, seed=2)
budget = times[-1] / len(times) * args.sweeps
fractions = np.array([1 / 64, 1 / 16, 1 / 4, 1.0])
rows, counts = [], {}
for epsilon in [0.0, *LEVELS]:
    limit = 10 * args.sweeps
    drawn, times, stats = sample(epsilon, limit, seed=20, seconds=budget)
    ends = np.clip(np.searchsorted(times, fractions * budget, side="right"), 1, len(drawn))
    errors = [np.abs(marginals(drawn[:e], subsets) - truth).sum(axis=1).mean() for e in ends]
    counts[epsilon] = len(drawn)
    ratio = PAPER_SAMPLES[epsilon] / PAPER_SAMPLES[0.0]
    rows.append([f"{epsilon:g}", len(drawn), len(drawn) / counts[0.0], ratio, *stats[:2], *errors])
header = ["epsilon", "sweeps", "over exact", "paper", "rows read", "looks"]
table([*header, *[f"L1, {f:.3g} of time" for f in fractions]], rows)
noise = np.sqrt(2 / np.pi * truth * (1 - truth) / len(states)).sum(axis=1).mean()
print(f"error of the reference itself, if its {len(states):,} draws were independent: {noise:.2g}")
checks.at_least("sweeps in the same time, epsilon = 0.01 over exact", counts[0.01] / counts[0.0], 1)
checks.at_least("the same at 0.25 (paper: 2.06)", counts[0.25] / counts[0.0], 1.5)
checks.exit()
