"""The Gaussian mixture of Seita et al. (2017), section 6.1: four tests side by side.

theta ~ N(0, diag(10, 1)); x_i ~ N(theta_1, 2) / 2 + N(theta_1 + theta_2, 2) / 2 with
theta = (0, 1): 10^6 rows at temperature 10^4, 5,000 draws, one transition each, plain batches of
100. Draws are counted in bins and compared with the exact probabilities of the bins: the Poisson
log-likelihood of eq. 23 and the chi-square statistic.

The paper gives its random walk the covariance diag(0.15, 0.15). Both readings are run, 0.15 as
variance and as standard deviation: the paper's average batch of 210 is that of the latter.

The paper does not tell its bins, so that its two statistics cannot be compared with ours in size.
Here they are squares of side 0.1; those that expect fewer than 5 of the draws, and all beyond,
count as one.

Exact tests, and the confidence sampler's bound by a full pass, read all rows at every proposal.
Exact chains run on every k-th row at temperature 10^4 / k, where n / T and so the posterior's shape
are the same, and are compared with the exact posterior of those rows. Draws of one transition each
are so dependent that both statistics measure little but that, and Barker's acceptance function
moves less often than Metropolis', with all rows too ("exact Barker"): more transitions per draw
show what else there is. The confidence sampler takes
its bound from a callable, the largest log-ratio between the smallest and the largest row; a short
chain with bound="full" shows what the pass costs.

python tests/benchmarks/barker_mixture.py
"""

from time import perf_counter

import numpy as np
import pymc as pm
from _measure import Checks, command_line, sample_batches, table
from scipy.special import gammaln

import pymc_subsample as pms

PAPER = {
    "Barker": (210, -1430.0, 3313.9),
    "austerity": (15562, -1578.9, 3647.7),
    "confidence": (16857, -1232.7, 2444.1),
}
# Of theta, beyond which there is next to no probability; bins, and integration points in each.
LOW, HIGH, SIDE, POINTS = np.array([-1.6, -3.0]), np.array([2.6, 3.0]), 0.1, 4


def mixture(x):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, np.sqrt([10, 1]), shape=2)
        mu = pm.math.stack([theta[0], theta[0] + theta[1]])
        pm.NormalMixture("x", [0.5, 0.5], mu=mu, sigma=np.sqrt(2), observed=pm.Data("rows", x))
    return model


def loglik(theta1, theta2, x):
    return np.logaddexp(-0.25 * (x - theta1) ** 2, -0.25 * (x - theta1 - theta2) ** 2)


def log_posterior(theta, x, counts, temperature):
    """Log posterior density at each row of theta, up to a constant."""
    prior = -0.5 * (theta**2 / [10, 1]).sum(axis=1)
    sums = [counts @ loglik(a, b, x) for a, b in theta]
    return prior + np.array(sums) / temperature


class Bins:
    """Exact probabilities of bins of theta, and how well draws agree with them."""

    def __init__(self, x, temperature, draws):
        # Rows on a grid of spacing 0.005, each shared between its two neighbours.
        at = (x - x.min()) / 0.005
        left, share = np.floor(at).astype(int), at % 1
        counts = np.bincount(left, 1 - share) + 0.0
        counts = np.append(counts, 0.0) + np.append(0.0, np.bincount(left, share))
        grid = x.min() + 0.005 * np.arange(len(counts))
        self.shape = np.round((HIGH - LOW) / SIDE).astype(int)
        axes = [
            a + SIDE / POINTS * (np.arange(k * POINTS) + 0.5)
            for a, k in zip(LOW, self.shape, strict=True)
        ]
        theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        logp = log_posterior(theta, grid, counts, temperature)
        density = np.exp(logp - logp.max())
        check = np.random.default_rng(0).choice(len(theta), 3, p=density / density.sum())
        exact = log_posterior(theta[check], x, np.ones(len(x)), temperature)
        self.error = np.ptp(exact - logp[check])
        density = density.reshape(self.shape[0], POINTS, self.shape[1], POINTS).sum(axis=(1, 3))
        cells = density / density.sum()
        self.kept = cells * draws >= 5
        self.expected = draws * np.append(cells[self.kept], cells[~self.kept].sum())

    def counts(self, theta):
        cell = np.floor((theta - LOW) / SIDE).astype(int)
        inside = np.all((cell >= 0) & (cell < self.shape), axis=1)
        counts = np.zeros(self.shape)
        np.add.at(counts, tuple(cell[inside].T), 1)
        return np.append(counts[self.kept], len(theta) - counts[self.kept].sum())

    def fit(self, counts):
        """Eq. 23 and chi-square."""
        mean = self.expected
        poisson = counts * np.log(mean) - mean - gammaln(counts + 1)
        return poisson.sum(), ((counts - mean) ** 2 / mean).sum()


def largest_ratio(x, temperature):
    """C of the confidence sampler: a row's log-ratio is a smooth function of one number."""
    grid = np.linspace(x.min(), x.max(), 1000)

    def bound(point, new_point):
        change = loglik(*new_point["theta"], grid) - loglik(*point["theta"], grid)
        return np.abs(change).max()

    return bound


def steps(x, temperature, every):
    """Names, data and steps, but for the proposal."""
    subset = x[::every]
    heat = temperature / every
    austerity = {"epsilon": 0.005, "batch_size": 100}
    confidence = {"delta": 0.01, "p": 2, "gamma": 1.5, "bound": largest_ratio(x, temperature)}
    yield "exact MH", subset, heat, pms.AusterityMH, {"epsilon": 0}
    yield "exact Barker", subset, heat, pms.MinibatchBarkerMH, {"batch_size": len(subset)}
    for sigma in args.sigma:
        name = f"Barker, sigma = {sigma:g}"
        yield name, x, temperature, pms.MinibatchBarkerMH, {"sigma": sigma, "batch_size": 100}
    yield "austerity", x, temperature, pms.AusterityMH, austerity
    yield "confidence", x, temperature, pms.ConfidenceMH, confidence


def chains(x, temperature, variance, thin):
    """Statistics of each method over the seeds."""
    for name, rows, heat, method, options in steps(x, temperature, args.every[thin > 1]):
        if thin > 1 and "arker" not in name and "exact" not in name:
            continue
        bins, model, results = BINS[len(rows)], MODELS[len(rows)], []
        with model:
            step = method(
                proposal=pms.proposals.RandomWalk(covariance=[variance, variance]),
                control_variate_order=None,
                temperature=heat,
                transitions_per_draw=thin,
                **options,
            )
            start = perf_counter()
            for seed in range(1, args.seeds + 1):
                draws, stats = sample_batches(
                    step, args.draws, seed=seed, start={"theta": np.array([0.0, 1.0])}
                )
                size = stats["batch_size"]
                fit = bins.fit(bins.counts(draws["theta"]))
                results.append([size.mean(), np.mean(size < 1000), stats["accepted"].mean(), *fit])
        seconds = (perf_counter() - start) / args.seeds
        yield name, len(rows), np.array(results), seconds


def report(x, temperature, variance, label, thin=1):
    print(f"\nRandom walk with {label}, {thin} transition{'s' * (thin > 1)} per draw")
    rows, results = [], {}
    for name, n, values, seconds in chains(x, temperature, variance, thin):
        results[name] = values
        size, small, accepted, poisson, chi = values.mean(axis=0)
        paper = PAPER.get(name.split(",")[0] if thin == 1 else "", ("", "", ""))
        rows.append([
            name, n, size, small, accepted, poisson, np.ptp(values[:, 3]), chi,
            f"{values[:, 4].min():,.0f} to {values[:, 4].max():,.0f}", *paper, seconds,
        ])  # fmt: skip
    table(
        ["test", "n", "mean batch", "< 1000", "accepted", "eq. 23", "range", "chi-square",
         "range", "paper: batch", "eq. 23", "chi-square", "s per chain"],
        rows,
    )  # fmt: skip
    return results


def independent(bins):
    """What eq. 23 and chi-square are for independent draws."""
    rng, p = np.random.default_rng(1), bins.expected / bins.expected.sum()
    fits = [bins.fit(rng.multinomial(args.draws, p)) for _ in range(200)]
    return np.mean(fits, axis=0)


def needed_rows(x, temperature, variance):
    """Average of the rows after which Var(log-ratio) < 1 at points of the posterior."""
    rng = np.random.default_rng(2)
    with MODELS[len(x)]:
        step = pms.MinibatchBarkerMH(
            proposal=pms.proposals.RandomWalk(covariance=[variance, variance]),
            temperature=temperature, control_variate_order=None, transitions_per_draw=1,
        )  # fmt: skip
        draws, _ = sample_batches(step, 2000, seed=99, start={"theta": np.array([0.0, 1.0])})
    needed, some = [], x[:10_000]
    for a, b in draws["theta"]:
        da, db = rng.normal(size=2) * np.sqrt(variance)
        y = (loglik(a + da, b + db, some) - loglik(a, b, some)) * len(x) / temperature
        needed.append(max(100, y.var()))
    return np.mean(needed)


def full_bound(x, temperature, variance):
    with MODELS[len(x)]:
        step = pms.ConfidenceMH(
            delta=0.01, p=2, gamma=1.5, bound="full", temperature=temperature,
            proposal=pms.proposals.RandomWalk(covariance=[variance, variance]),
            control_variate_order=None, transitions_per_draw=1,
        )  # fmt: skip
        _, stats = sample_batches(step, args.full_draws, start={"theta": np.array([0.0, 1.0])})
    print(
        f'confidence with bound="full", {args.full_draws} draws: mean batch '
        f"{stats['batch_size'].mean():,.0f}, rows read per test (half of n_evaluations) "
        f"{stats['n_evaluations'].mean() / 2:,.0f}"
    )


if __name__ == "__main__":
    parser = command_line(__doc__, n=1_000_000, draws=5000, seeds=5)
    parser.add_argument(
        "--every", type=int, nargs=2, default=[100, 500],
        help="exact chains take every k-th row: where draws are one transition, and many",
    )  # fmt: skip
    parser.add_argument("--thin", type=int, default=20, help="transitions per draw, second time")
    parser.add_argument("--sigma", type=float, nargs="*", default=[1.0, 1.3])
    parser.add_argument("--full-draws", type=int, default=200)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    x = rng.normal(rng.integers(0, 2, args.n), np.sqrt(2))
    temperature = args.n / 100
    rows = {len(x[::every]): x[::every] for every in (1, *args.every)}
    MODELS = {n: mixture(r) for n, r in rows.items()}
    BINS = {n: Bins(r, temperature * n / args.n, args.draws) for n, r in rows.items()}
    bins = BINS[args.n]
    ideal = independent(bins)
    print(
        f"Gaussian mixture, {args.n:,} rows, T = {temperature:,.0f}, {args.draws:,} draws; mean "
        f"over {args.seeds} seeds and range (largest less smallest)\n"
        f"{len(bins.expected)} bins; independent draws would have eq. 23 = {ideal[0]:,.0f}, "
        f"chi-square = {ideal[1]:,.0f}; error of the exact log density: "
        + ", ".join(f"{b.error:.1e}" for b in BINS.values())
    )
    results = report(x, temperature, 0.15**2, "standard deviations (0.15, 0.15)")
    thinned = report(x, temperature, 0.15**2, "standard deviations (0.15, 0.15)", args.thin)
    literal = report(x, temperature, 0.15, "covariance diag(0.15, 0.15)")
    print(
        "smallest average batch that Algorithm 1 can have here, the mean of Var(n / T log-ratio): "
        f"{needed_rows(x, temperature, 0.15):,.0f}; with standard deviations 0.15: "
        f"{needed_rows(x, temperature, 0.15**2):,.0f}"
    )
    full_bound(x, temperature, 0.15**2)
    print()
    checks = Checks()
    barker = [f"Barker, sigma = {sigma:g}" for sigma in args.sigma]
    for name in barker:
        checks.at_most(f"{name}, sd 0.15: average batch", results[name][:, 0].mean(), 210)
    # Like with like: draws of one transition show how fast an acceptance function moves.
    for label, found, other in (
        ("sd 0.15", results, "exact Barker"),
        ("variance 0.15", literal, "exact Barker"),
        (f"sd 0.15, {args.thin} transitions per draw", thinned, "exact MH"),
    ):
        exact = found[other]
        for name in barker:
            checks.at_least(
                f"{name}, {label}: mean eq. 23, no worse than {other}'s worst seed",
                found[name][:, 3].mean(), exact[:, 3].min(),
            )  # fmt: skip
            checks.at_most(
                f"{name}, {label}: mean chi-square, no worse than {other}'s worst seed",
                found[name][:, 4].mean(), exact[:, 4].max(),
            )  # fmt: skip
    checks.exit()
