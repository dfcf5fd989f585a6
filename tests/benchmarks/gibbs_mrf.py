"""Subsampled Gibbs sampling of a Markov random field: figures 7 and 8 of Korattikara et al. (2014).

100 binary variables, a table of eight numbers for each of their 161,700 triples, batches of 500 of
the 4,851 triples that touch a variable. Figure 7: conditional probabilities by the test against
exact ones. Figure 8: error of 5-variable marginals against the time spent, all times as multiples
of the exact sampler's in the same run.

python tests/benchmarks/gibbs_mrf.py
python tests/benchmarks/gibbs_mrf.py --variables 30 --sweeps 500 --truth 2000     # small
"""

import argparse
from itertools import combinations
from time import perf_counter

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _measure import Checks, table

import pymc_subsample as pms
from pymc_subsample.diagnostics.gibbs import conditional_errors

LEVELS = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25]
# Samples after 1,000 s by the legend of figure 8, exact Gibbs sampling first.
PAPER_SAMPLES = dict(zip([0.0, *LEVELS], [2897, 3429, 3979, 4494, 4889, 5507, 5959], strict=True))
PAPER_ERROR = 0.01  # at epsilon = 0.01, section 6.3

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--variables", type=int, default=100)
parser.add_argument("--scale", type=float, default=0.02, help="standard deviation of log psi")
parser.add_argument("--batch", type=int, default=500)
parser.add_argument("--updates", type=int, default=200, help="conditional probabilities, figure 7")
parser.add_argument("--sweeps", type=int, default=8000, help="of the exact sampler, figure 8")
parser.add_argument("--truth", type=int, default=60_000, help="exact sweeps behind the reference")
parser.add_argument("--subsets", type=int, default=1600)
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
    """States, shape (s, D), seconds after each, and mean statistics."""
    chain, point = sampler(epsilon, seed), {"x": (rng.random(D) < 0.5).astype("int64")}
    for _ in range(20):
        point, _ = chain.step(point)
    states, times, stats, begin = np.empty((sweeps, D), np.uint8), [], [], perf_counter()
    for s in range(sweeps):
        point, [stat] = chain.step(point)
        states[s] = point["x"]
        times.append(perf_counter() - begin)
        stats.append([stat["data_share"], stat["n_looks"], stat["test_error"]])
        if times[-1] > seconds:
            break
    return states[: s + 1], np.array(times), np.mean(stats, axis=0)


def marginals(states, subsets):
    """Frequencies of the 32 states of each subset, shape (k, 32)."""
    codes = sum(states[:, subsets[:, b]].astype(np.int64) << b for b in range(5))
    codes += 32 * np.arange(len(subsets))
    return np.bincount(codes.ravel(), minlength=32 * len(subsets)).reshape(-1, 32) / len(states)


# The chain is started at states of the target, as the test meets them.
states, times, _ = sample(0.0, max(args.truth // 100, 200), seed=2)
pace = times[-1] / len(times)
checks = Checks()

print("\nFigure 7: conditional probabilities by the test against exact ones")
chosen = [
    (states[s].astype(float), int(v))
    for s, v in zip(
        rng.integers(0, len(states), args.updates), rng.integers(0, D, args.updates), strict=True
    )
]
rows, worst = [], {}
for epsilon in [0.0, *LEVELS]:
    chain, parts = sampler(epsilon, 3), []
    for first in range(0, len(chosen), 20):  # each call bounds the rows that it reads
        parts.append(
            conditional_errors(
                chain._expansion, chain._touching, chain._active, chosen[first : first + 20],
                test=chain._test.address, settings=chain._settings(), decisions=1000,
                rng=np.random.default_rng(first),
            )  # fmt: skip
        )
    exact = np.concatenate([p.exact for p in parts])
    error = np.concatenate([p.error for p in parts])
    noise = np.concatenate([p.noise for p in parts])
    worst[epsilon] = np.abs(error).max()
    high, low = exact > 0.7, exact < 0.3
    rows.append(
        [f"{epsilon:g}", worst[epsilon], np.abs(error).mean(), noise.mean()]
        + [error[part].mean() if part.any() else np.nan for part in (low, high)]
        + ["0" if not epsilon else "within 0.01" if epsilon == 0.01 else "not given"]
    )
header = ["epsilon", "max error", "mean |error|", "noise <=", "bias at p < .3", "at p > .7"]
table([*header, "paper, max"], rows)
print("paper: underestimates large probabilities and overestimates small ones")
checks.at_most("max error at epsilon = 0.01 (paper: 0.01)", worst[0.01], PAPER_ERROR)

print("\nFigure 8: average L1 error of 5-variable marginals after given times")
subsets = np.array([rng.choice(D, 5, replace=False) for _ in range(args.subsets)])
truth, long = np.zeros((args.subsets, 32)), 4
for seed in range(long):
    states, *_ = sample(0.0, args.truth // long, seed=10 + seed)
    truth += marginals(states, subsets) / long
budget = pace * args.sweeps
fractions = np.array([1 / 64, 1 / 16, 1 / 4, 1.0])
rows, counts, final = [], {}, {}
for epsilon in [0.0, *LEVELS]:
    limit = 4 * args.sweeps
    states, times, stats = sample(epsilon, limit, seed=20, seconds=budget)
    ends = np.maximum(np.searchsorted(times, fractions * budget, side="right"), 1)
    errors = [np.abs(marginals(states[:e], subsets) - truth).sum(axis=1).mean() for e in ends]
    half = states[: len(states) // 2], states[len(states) // 2 :]
    counts[epsilon], final[epsilon] = len(states), errors[-1]
    ratio = PAPER_SAMPLES[epsilon] / PAPER_SAMPLES[0.0]
    rows.append(
        [f"{epsilon:g}", len(states), len(states) / counts[0.0], ratio, *stats[:2], *errors]
    )
header = ["epsilon", "sweeps", "over exact", "paper", "rows read", "looks"]
table([*header, *[f"L1, {f:.3g} of time" for f in fractions]], rows)
# The reference is a long chain too: its own error, from its length alone.
noise = np.sqrt(2 / np.pi * truth * (1 - truth) / args.truth).sum(axis=1).mean()
print(f"error of the reference itself, independent draws: {noise:.3g}")
checks.at_least("sweeps in the same time, epsilon = 0.01 over exact", counts[0.01] / counts[0.0], 1)
checks.at_least("the same at 0.25 (paper: 2.06)", counts[0.25] / counts[0.0], 1.5)
checks.exit()
