"""Which step `pms.auto` takes, beside what effective draws of both samplers take in whole runs.

Of the models of `_written.py` and of some that are harder for exact draws: crowds of parameters,
mixtures, a panel, few rows. Times are of the processor, with BLAS on one thread.

python tests/benchmarks/auto.py
python tests/benchmarks/auto.py --models panel ordered_ratings --draws 300
"""

import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from contextlib import suppress  # noqa: E402
from time import thread_time  # noqa: E402

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
from _measure import QUIET, Checks, command_line, table  # noqa: E402
from _problems import linear_model, logistic_model, logistic_rows  # noqa: E402
from _written import MODELS  # noqa: E402

import pymc_subsample as pms  # noqa: E402
from pymc_subsample.chain.notices import Unsaid  # noqa: E402
from pymc_subsample.chain.nuts_cost import quiet  # noqa: E402
from pymc_subsample.chain.nuts_trial import smallest_ess  # noqa: E402
from pymc_subsample.chain.sharing import Shared  # noqa: E402
from pymc_subsample.choice.auto import ALIKE, PATIENCE, chosen  # noqa: E402

# Beyond `ALIKE`, where a run of each is known to a quarter: of the slower over the faster one.
OFF = 1.25 * ALIKE


def linear(n, d=10):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    return linear_model(X, X @ rng.normal(size=d) + rng.normal(size=n), 2.0)


def poisson_groups(n, groups=300):
    rng = np.random.default_rng(2)
    group, x, effect = rng.integers(0, groups, n), rng.normal(size=n), rng.normal(0, 0.5, groups)
    with pm.Model() as model:
        mu, sd, z = pm.Normal("mu", 0, 2), pm.HalfNormal("sd", 1), pm.Normal("z", shape=groups)
        rate = pm.math.exp(mu + sd * z[group] + pm.Normal("b") * x)
        pm.Poisson("y", rate, observed=rng.poisson(np.exp(0.5 + effect[group] + 0.2 * x)))
    return model


def mixture(n):
    rng = np.random.default_rng(3)
    first = rng.random(n) < 0.4
    y = np.where(first, rng.normal(-2.0, 1.0, n), rng.normal(2.0, 0.7, n))
    with pm.Model() as model:
        w, mu = pm.Beta("w", 2, 2), pm.Normal("mu", [-2, 2], 1, shape=2)
        sd = pm.HalfNormal("sd", 1, shape=2)
        pm.NormalMixture("y", w=pm.math.stack([w, 1 - w]), mu=mu, sigma=sd, observed=y)
    return model


def panel(n, each=5):
    rng, customers = np.random.default_rng(4), n // each
    customer, x = np.repeat(np.arange(customers), each), rng.normal(size=n)
    logit = rng.normal(0, 0.8, customers)[customer] + 0.5 * x
    with pm.Model() as model:
        mu, sd, z = pm.Normal("mu", 0, 2), pm.HalfNormal("sd"), pm.Normal("z", shape=customers)
        logit_p = mu + sd * z[customer] + pm.Normal("b") * x
        pm.Bernoulli("y", logit_p=logit_p, observed=rng.random(n) < 1 / (1 + np.exp(-logit)))
    return model


CASES = {
    "few rows": lambda n: logistic_model(*logistic_rows(500, 3), 1.0),
    "logistic, 10": lambda n: logistic_model(*logistic_rows(n, 10), 1.0),
    "logistic, 100": lambda n: logistic_model(*logistic_rows(5 * n, 100), 1.0),
    "linear, 10": linear,
    "poisson, 300 groups": poisson_groups,
    "mixture": mixture,
    "panel": lambda n: panel(n // 2),
    # Without the one of 2,000 levels crossed, for which `ScalableMH` would be set up in vain.
    **{name: make for name, make in MODELS.items() if name != "crossed_thousands"},
}


def per_effective_draw(step, draws, tune):
    """Seconds of an effective draw of the worst parameter that the chain moves."""
    moved = [rv.name for rv in step.sampled_model.free_RVs]
    times = []
    idata = pm.sample(
        draws, tune=tune, step=step, model=step.model, chains=1, random_seed=1,
        var_names=moved, callback=lambda trace, draw: times.append(thread_time()), **QUIET,
    )  # fmt: skip
    values = [idata["posterior"][name].values[0].reshape(draws, -1) for name in moved]
    # The checks belong to the last draw.
    spent = (times[-2] - times[tune - 1]) * draws / (draws - 1)
    return spent / smallest_ess(np.hstack(values))


if __name__ == "__main__":
    parser = command_line(__doc__, n=20_000, draws=8_000, tune=1_000)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    lines, checks = [], Checks()
    for name in args.models:
        model = CASES[name](args.n)
        with quiet():
            first = pms.HMCECS(model=model)
            given = {"vars": None, "model": model}
            choice = chosen(first, given, Unsaid())
            exact = choice.exact
            if exact is None:  # not set up by `auto`
                with suppress(pms.TallModelError):
                    exact = pms.ScalableMH(reference=Shared(first, PATIENCE), **given)
            ours = per_effective_draw(first, args.draws, args.tune)
            theirs = np.nan if exact is None else per_effective_draw(exact, args.draws, args.tune)
        taken, other = (ours, theirs) if choice.step is first else (theirs, ours)
        lines.append([
            name, f"{first.n_rows:,}", len(first.active), type(choice.step).__name__,
            f"{choice.ratio:.2f}", f"{1e6 * ours:,.0f}", f"{1e6 * theirs:,.0f}",
            f"{theirs / ours:.2f}",
        ])  # fmt: skip
        print(lines[-1], flush=True)
        if exact is not None:
            checks.at_most(f"{name}: step taken, over the other one", taken / other, OFF)
    table(
        ["model", "rows", "parameters", "auto", "counted", "HMCECS, us per effective draw"]
        + ["ScalableMH, us", "measured"],
        lines,
    )
    checks.exit()
