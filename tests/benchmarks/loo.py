"""Leave-one-out cross-validation from a few hundred rows, beside the full matrix.

python tests/benchmarks/loo.py                 # five models of 20,000 rows; 10^6 rows
python tests/benchmarks/loo.py --n 5000 --tall 100000
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from time import perf_counter

import arviz as az
import numpy as np
import pymc as pm
from _measure import Checks, command_line, table

import pymc_subsample as pms
from pymc_subsample.rows import Rows

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}
MODELS = {}


def register(function):
    MODELS[function.__name__.replace("_", " ")] = function
    return function


def regression(n, rng, errors):
    """Columns, and what they and some errors make."""
    X = rng.normal(size=(n, 5))
    return X, X @ [1.0, -1.0, 0.5, 0.02, 0.0] + errors(n)


@register
def logistic_heavy_tails(n, rng):
    X = rng.standard_t(3, size=(n, 10))
    beta = rng.normal(0, 0.3, 10)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=10)
        y = rng.random(n) < 1 / (1 + np.exp(-X @ beta))
        pm.Bernoulli("y", logit_p=X @ b, observed=y)
    return model


@register
def counts_by_group(n, rng):
    """Some of the groups have a handful of rows."""
    size = rng.dirichlet(np.full(200, 0.5))
    g, effect = rng.choice(200, n, p=size), 0.5 * rng.normal(size=200)
    x = rng.normal(size=n)
    with pm.Model() as model:
        mu, tau, b = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Normal("b")
        z = pm.Normal("z", shape=200)
        y = rng.poisson(np.exp(0.5 + effect[g] + 0.2 * x))
        pm.Poisson("y", pm.math.exp(mu + tau * z[g] + b * x), observed=y)
    return model


def normal(X, y):
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 1, shape=X.shape[1]), pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ b, sigma, observed=y)
    return model


def student(X, y):
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 1, shape=X.shape[1]), pm.HalfNormal("sigma", 2)
        pm.StudentT("y", pm.Gamma("nu", 2, 0.2), mu=X @ b, sigma=sigma, observed=y)
    return model


@register
def normal_with_outliers(n, rng):
    return normal(*regression(n, rng, lambda n: rng.standard_t(3, size=n)))


@register
def student_t(n, rng):
    return student(*regression(n, rng, lambda n: rng.standard_t(3, size=n)))


@register
def mixture(n, rng):
    with pm.Model() as model:
        y = np.where(rng.random(n) < 0.3, rng.normal(-2, 1, n), rng.normal(1, 0.7, n))
        mu = pm.Normal("mu", [-2, 1], 0.5, shape=2)
        pm.NormalMixture(
            "y", pm.Dirichlet("w", np.ones(2)), mu, pm.HalfNormal("s", shape=2), observed=y
        )
    return model


def normal_or_student(n, rng):
    """Errors with tails: models far apart."""
    X, y = regression(n, rng, lambda n: rng.standard_t(5, size=n))
    return {"Student t": student(X, y), "normal": normal(X, y)}


def with_or_without_a_column(n, rng):
    """A coefficient of three standard errors: models close to each other."""
    X, y = regression(n, rng, rng.standard_normal)
    return {"with": normal(X, y), "without": normal(X[:, [0, 1, 2, 4]], y)}


def sampled(model, draws):
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.sample(draws, tune=1000, chains=4, step=pms.HMCECS(), random_seed=1, **QUIET)


def both(model, draws):
    """`pms.loo` and `az.loo`, with the seconds that they took."""
    idata = sampled(model, draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = perf_counter()
        some = pms.loo(idata, model=model)
        seconds = [perf_counter() - start]
        start = perf_counter()
        pm.compute_log_likelihood(idata, model=model, progressbar=False)
        every = az.loo(idata, pointwise=True)
        return some, every, [*seconds, perf_counter() - start]


def five_models(n, draws, checks):
    found = []
    for name, make in MODELS.items():
        some, every, seconds = both(make(n, np.random.default_rng(1)), draws)
        error, known = some.elpd - every.elpd, np.isfinite(some.pareto_k.values)
        apart = np.abs(some.pareto_k.values - every.pareto_k.values)[known].max()
        high = int((every.pareto_k.values > every.good_k).sum())
        seen = int((some.pareto_k.values > some.good_k).sum())
        largest = float(some.pareto_k.max()), float(every.pareto_k.max())
        found.append((
            name, every.elpd, some.elpd, some.subsampling_se, every.se, some.se, every.p, some.p,
            int(known.sum()), high, seen, *largest[::-1], *seconds[::-1],
        ))  # fmt: skip
        checks.append(
            ("at_most", f"{name}: subsampling errors", abs(error) / some.subsampling_se, 3)
        )
        checks.append(
            ("at_most", f"{name}: share of the error", some.subsampling_se / some.se, 0.1)
        )
        checks.append(("at_most", f"{name}: difference of Pareto k", apart, 1e-6))
        checks.append(("at_least", f"{name}: large Pareto k that were seen", seen, min(high, 100)))
    table(
        ["model", "elpd, az", "elpd", "subsampling", "se, az", "se", "p, az", "p", "rows read",
         "k > good, az", "seen", "max k, az", "max k", "s, az", "s"],
        [list(row) for row in found],
    )  # fmt: skip


def two_pairs(n, draws, checks):
    rows = []
    for make in (normal_or_student, with_or_without_a_column):
        results = {k: both(m, draws)[:2] for k, m in make(n, np.random.default_rng(1)).items()}
        some, every = (
            az.compare({k: pair[i] for k, pair in results.items()}, round_to="none") for i in (0, 1)
        )
        worse = every.index[1]
        name = make.__name__.replace("_", " ")
        difference = [float(x.elpd_diff[worse]) for x in (every, some)]
        error = float(some.subsampling_dse[worse])
        rows.append([
            name, worse, *difference, error, float(every.dse[worse]), float(some.dse[worse]),
            float(every.weight[worse]), float(some.weight[worse]),
        ])  # fmt: skip
        checks.append(
            ("at_least", f"{name}: ranked alike", list(some.index) == list(every.index), 1)
        )
        away = abs(difference[1] - difference[0]) / error
        checks.append(("at_most", f"{name}: subsampling errors of the difference", away, 3))
    table(
        ["pair", "worse", "difference, az", "difference", "subsampling", "dse, az", "dse",
         "weight, az", "weight"],
        rows,
    )  # fmt: skip


# One million rows


class Memory(threading.Thread):
    """Most anonymous memory of this process while it runs, in MB: not what is mapped from files."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first = self.most = self.now()
        self.over = threading.Event()

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text().splitlines()
        [kb] = [line.split()[1] for line in lines if line.startswith("RssAnon")]
        return int(kb) / 1024

    def run(self):
        while not self.over.wait(0.005):
            self.most = max(self.most, self.now())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def tall(n, draws, on_disk):
    """Time and memory of one estimate, compilation included."""
    rng = np.random.default_rng(1)
    X, beta = rng.standard_normal((n, 30)), rng.normal(0, 1 / np.sqrt(30), 30)
    data = {"X": X, "y": rng.random(n) < 1 / (1 + np.exp(-X @ beta))}
    more = {}
    with tempfile.TemporaryDirectory() as folder:
        if on_disk:
            rows = Rows.from_blocks([data], cache=Path(folder) / "x.rows", progressbar=False)
            data, more = rows.sample(5_000), {"data": rows}
            del X
        with pm.Model() as model:
            eta = pm.Data("X", data["X"]) @ pm.Normal("b", 0, 1, shape=30)
            pm.Bernoulli("late", logit_p=eta, observed=pm.Data("y", data["y"]))
            idata = pm.sample(
                draws, tune=1000, chains=4, step=pms.HMCECS(**more), random_seed=1, **QUIET
            )
        start = perf_counter()
        with Memory() as memory:
            found = pms.loo(idata, model=model, **more)
        seconds = perf_counter() - start
    read = int(np.isfinite(found.pareto_k).sum())
    print(json.dumps([
        seconds, memory.most - memory.first, read, found.elpd, found.se, found.subsampling_se
    ]))  # fmt: skip


def main():
    parser = command_line(__doc__, n=20_000, tall=10**6)
    parser.add_argument("--draws", type=int, default=500, help="of each of four chains")
    parser.add_argument("--one", choices=["in memory", "on disk"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        tall(args.tall, 1_000, args.one == "on disk")
        return
    print(f"{args.n:,} rows, {4 * args.draws:,} draws")
    checks = []
    five_models(args.n, args.draws, checks)
    print()
    two_pairs(args.n, args.draws, checks)
    print(f"\n{args.tall:,} rows of 30 columns, 4,000 draws")
    rows = []
    for where in ("in memory", "on disk"):
        command = [sys.executable, __file__, "--one", where, "--tall", str(args.tall)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append([where, *json.loads(said.splitlines()[-1])])
        checks.append(("at_most", f"{args.tall:,} rows, {where}: seconds", rows[-1][1], 15))
        checks.append(("at_most", f"{args.tall:,} rows, {where}: MB", rows[-1][2], 200))
    table(["rows", "s", "MB", "rows read", "elpd", "se", "subsampling"], rows)
    print()
    bounds = Checks()
    for kind, *what in checks:
        getattr(bounds, kind)(*what)
    bounds.exit()


if __name__ == "__main__":
    main()
