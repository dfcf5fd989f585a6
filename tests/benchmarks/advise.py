"""What `pms.advise` says beside whole runs: how long they take, and what asking costs.

Of models as they are written (`_written.py`) and of others: predicted seconds to 1,000 effective
draws beside measured ones, of the step that was tried and of nutpie, and what the advice took
beyond the set-up that it hands over, as a share of the run that it recommends. Each advice is asked
for twice, so that its second set-up finds compiled code, as the run does.

Times are of the processor, with BLAS on one thread, so that a busy machine does not count.

python tests/benchmarks/advise.py
python tests/benchmarks/advise.py --only small laplace --draws 100
"""

import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from time import process_time, thread_time  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from _measure import QUIET, Checks, command_line, table  # noqa: E402
from _problems import linear_model, logistic_model, logistic_rows  # noqa: E402
from _written import MODELS  # noqa: E402

import pymc_subsample as pms  # noqa: E402
from pymc_subsample.chain.nuts_trial import smallest_ess  # noqa: E402
from pymc_subsample.samplers.registry import step_of  # noqa: E402

WANTED, TUNE = 1000, 1000


def logistic(n, d):
    return logistic_model(*logistic_rows(n, d), 1.0)


def linear(n, d):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    return linear_model(X, X @ rng.normal(size=d) + rng.normal(size=n), 2.0)


def correlated(n, d):
    rng = np.random.default_rng(2)
    X = np.c_[np.ones(n), rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, d - 1))]
    return logistic_model(X, rng.random(n) < 1 / (1 + np.exp(-0.2 * X.sum(1))), 1.0)


def hierarchy(n, groups):
    rng = np.random.default_rng(3)
    group, x = rng.integers(0, groups, n), rng.normal(size=n)
    y = rng.random(n) < 1 / (1 + np.exp(0.5 * x - rng.normal(0, 0.7, groups)[group]))
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0, 1), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", mean, sd, shape=groups)
        pm.Bernoulli("y", logit_p=effect[group] + pm.Normal("slope", 0, 1) * x, observed=y)
    return model


def heavy_tailed(n, d):
    rng = np.random.default_rng(4)
    X = np.c_[np.ones(n), rng.standard_t(1.5, size=(n, d - 1))]
    rate = np.exp(np.clip(0.1 * X.sum(axis=1), -20, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        alpha = pm.Exponential("alpha", 1)
        mu = pm.math.exp(pm.math.clip(X @ beta, -20, 4))
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=rng.poisson(rate))
    return model


def laplace(n, d):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d))
    with pm.Model() as model:
        mu = X @ pm.Normal("beta", 0, 1, shape=d)
        pm.Laplace("y", mu, 1.0, observed=X.sum(axis=1) + rng.laplace(size=n))
    return model


def written(n, name):
    return MODELS[name](n)


CASES = {
    "flights": (written, 300_000, "bambi_logistic"),
    "airlines": (written, 10_000, "bambi_varying_intercepts"),
    "counts in groups": (written, 5_000, "poisson_noncentred"),
    "smooth": (written, 3_000, "hsgp_matern"),
    "minutes": (written, 100_000, "robust_minutes"),
    "tiny": (written, 900, "bambi_logistic"),
    "small": (logistic, 2_000, 5),
    "tall logistic": (logistic, 200_000, 10),
    "linear": (linear, 100_000, 10),
    "correlated": (correlated, 20_000, 10),
    "hierarchy": (hierarchy, 20_000, 50),
    "heavy-tailed": (heavy_tailed, 20_000, 4),
    "laplace": (laplace, 20_000, 3),
}
# Factors by which predictions may be off, and the share of a run that its advice may take, beside
# seconds that nobody minds.
OFF, SHARE, NOBODY_MINDS = 3.0, 0.1, 0.5


def columns(idata, model):
    draws = [idata["posterior"][rv.name].values[0] for rv in model.free_RVs]
    return np.column_stack([d.reshape(len(d), -1) for d in draws])


def nutpie_run(model, draws, tune, seed=1):
    """Effective draws per second, seconds to those wanted and gradients per effective draw."""
    import nutpie

    start = process_time()
    compiled = nutpie.compile_pymc_model(model)
    compiling = process_time() - start
    start = process_time()
    idata = nutpie.sample(
        compiled, draws=draws, tune=tune, chains=1, cores=1, seed=seed, progress_bar=False
    )
    spent = process_time() - start
    drawing, tuning = (
        int(idata[group]["n_steps"].sum()) for group in ("sample_stats", "warmup_sample_stats")
    )
    per_gradient = spent / (drawing + tuning)
    effective = smallest_ess(columns(idata, model))
    rate = effective / (drawing * per_gradient)
    seconds = compiling + tuning / tune * TUNE * per_gradient + WANTED / rate
    return rate, seconds, drawing / effective, per_gradient, compiling


def our_run(model, kind, draws):
    """Effective draws per second, seconds to those wanted, and whether all checks passed."""
    times = []
    start = thread_time()
    with model:
        step = kind()
        idata = pm.sample(
            draws, tune=TUNE, step=step, chains=1, random_seed=1, **QUIET,
            callback=lambda trace, draw: times.append(thread_time()),
            var_names=[v.name for v in model.free_RVs],
        )  # fmt: skip
    # The checks belong to the last draw.
    drawing, checking = times[-2] - times[TUNE - 1], times[-1] - times[-2]
    rate = smallest_ess(columns(idata, model)) / drawing
    passed = not np.any(idata["checks"]["failed"] > 0)
    return rate, times[TUNE - 1] - start + checking + WANTED / rate, passed


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--draws", type=int, default=400, help="of nutpie, after as many to tune")
    args = parser.parse_args()

    rows, checks = [], Checks()
    for name in args.only:
        make, n, size = CASES[name]
        model = make(n, size)
        pms.advise(model, effective_draws=WANTED)
        start = thread_time()
        advice = pms.advise(model, effective_draws=WANTED)
        took = thread_time() - start
        print(f"\n{name}, {n:,} rows\n{advice}", flush=True)
        seconds = nutpie_run(model, args.draws, args.draws)[1]
        ours, passed = np.nan, False
        if advice.tried:
            _, ours, passed = our_run(model, step_of(advice.tried), 10 * args.draws)
        stepped = advice.recommendation == advice.tried
        lost = took - (advice.setup_seconds if advice.step is not None else 0.0)
        recommended = ours if stepped else seconds
        tried = (o for o in advice.options if o.status in ("passed", "failed"))
        others = [o.setup_seconds for o in tried if o.sampler != advice.tried]
        over = "over " if advice.full_bound else ""
        rows.append([
            name, n, advice.recommendation,
            advice.seconds, ours, f"{over}{advice.full_seconds:,.3g}", seconds,
            took, max(lost, 0.0) / recommended, str(passed) if advice.tried else "",
        ])  # fmt: skip
        checks.at_most(
            f"{name}: seconds that the recommended sampler takes more than the faster one, less 10",
            recommended - 10, 2 * min(seconds, ours if passed else np.inf),
        )  # fmt: skip
        if stepped:
            checks.at_least(f"{name}: the run passes its checks", passed, 1)
            checks.at_most(
                f"{name}: seconds that the advice takes beyond the set-ups of what it tries",
                lost, SHARE * recommended + NOBODY_MINDS + sum(others),
            )  # fmt: skip
        if advice.tried:
            off = max(advice.seconds / ours, ours / advice.seconds)
            checks.at_most(f"{name}: factor by which {advice.tried}'s seconds are off", off, OFF)
        if np.isfinite(advice.full_seconds):
            off = advice.full_seconds / seconds
            off = off if advice.full_bound else max(off, 1 / off)
            checks.at_most(f"{name}: factor by which nutpie's seconds are off", off, OFF)
    print()
    table(
        ["model", "rows", "advice", "tried: predicted s", "measured", "nutpie: predicted s",
         "measured", "advice took s", "lost, share of the run", "checks pass"],
        rows,
    )  # fmt: skip
    checks.exit()
