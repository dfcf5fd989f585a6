"""Exact draws beside the published code of Metropolis-Hastings with scalable subsampling.

python tests/benchmarks/mhss.py      # pip install PyMHSS tensorflow jax

Logistic, probit and Poisson regression, the last with mean log(1 + exp(eta)), on the data that
Prado, Nemeth and Sherlock (2024), section 5, simulate. Theirs: order 1 and 2, kappa = 1.5, vectors
instead of loops, the posterior's mean and covariance given, which are those of our draws. Ours:
through ``pm.sample``, by a random walk with one step and with as many as it chooses per
proposal, and with defaults. Rows per draw are those that are read: of theirs, the batch where the
surrogate accepts. A row that is read takes two evaluations of its log-likelihood, and for ours a
third of its expansion, which they keep. The smallest bulk ESS over parameters counts. Seconds are
the processor's, after tuning (OMP_NUM_THREADS=1).
"""

import os
import sys
from importlib.util import find_spec
from time import process_time
from types import SimpleNamespace

os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import pymc as pm
from _measure import Run, command_line, sample_step, table
from scipy.special import ndtr

import pymc_subsample as pms

MEANS = {
    "logistic": lambda eta: 1 / (1 + np.exp(-eta)),
    "probit": ndtr,
    "poisson": lambda eta: np.log1p(np.exp(eta)),
}
OURS = {
    "random walk, one step": {"proposal": "random-walk", "surrogate_transitions": 1},
    "random walk": {"proposal": "random-walk"},
    "defaults": {},
}
KAPPA, TUNE = 1.5, 1_000


def data(kind, n, d, seed=5):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    mean = MEANS[kind](X @ rng.normal(size=d) / np.sqrt(d))
    return X, rng.poisson(mean) if kind == "poisson" else (rng.random(n) < mean).astype(int)


def build(kind, X, y):
    with pm.Model() as model:
        eta = X @ pm.Normal("beta", 0, 100, shape=X.shape[1])
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=eta, observed=y)
        elif kind == "probit":
            pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=y)
        else:
            pm.Poisson("y", mu=pm.math.log1pexp(eta), observed=y)
    return model


def theirs(kind, X, y, draws, order, found):
    """One chain of their code, and rows read per proposal."""
    from PyMHSS import algorithms

    algorithms.time = SimpleNamespace(time=process_time)
    np.random.seed(order)  # noqa: NPY002
    start = process_time()
    run = algorithms.MH_SS(
        y, X, np.cov(found.draws.T), found.draws.mean(axis=0), TUNE, draws, kind, "vectorised",
        taylor_order=order, kappa=KAPPA,
    )  # fmt: skip
    total = process_time() - start
    batch = run["BoverN"][:, 0] * len(y)
    some = (batch > 0) & (batch < len(y))
    passed = run["acc_rate_ratio1"] / max(some.mean(), 1 / draws)
    rows = passed * batch[some].sum() + batch[batch >= len(y)].sum()
    # They time all transitions, those of tuning too, without their set-up.
    seconds = run["cpu_time"] * draws / (draws + TUNE)
    name = f"PyMHSS, order {order}"
    return Run(name, run["parameters"], seconds, total, evaluations=2 * rows), rows / draws, (
        run["acc_rate"]
    )  # fmt: skip


if __name__ == "__main__":
    parser = command_line(__doc__, n=100_000, draws=4_000, their_draws=40_000)
    parser.add_argument("--parameters", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--models", nargs="+", choices=MEANS, default=list(MEANS))
    args = parser.parse_args()
    if not find_spec("PyMHSS"):
        print("skipped: pip install PyMHSS tensorflow jax")
        sys.exit()
    lines = []
    for kind in args.models:
        for d in args.parameters:
            X, y = data(kind, args.n, d)
            model, runs = build(kind, X, y), []
            for name, options in OURS.items():
                run, idata = sample_step(
                    f"ScalableMH, {name}", model, lambda o=options: pms.ScalableMH(**o),
                    draws=args.draws, tune=TUNE, chains=2, quiet=True, time=process_time,
                    compute_convergence_checks=False,
                )  # fmt: skip
                stats = idata["sample_stats"]
                accepted = float(stats["acceptance_rate"].mean() * stats["rows_accepted"].mean())
                run = run._replace(note=pms.report(idata).status)
                runs.append((run, float(stats["rows_read"].mean()), accepted))
            found = runs[-1][0]
            runs += [theirs(kind, X, y, args.their_draws, order, found) for order in (1, 2)]
            for run, rows, accepted in runs:
                ess = run.effective
                off = np.abs(run.draws.mean(axis=0) - found.draws.mean(axis=0))
                lines.append([
                    kind, d, run.name, run.note, f"{rows:,.1f}", f"{accepted:.2f}", f"{ess:,.0f}",
                    f"{len(run.draws) * rows / ess:,.0f}", f"{run.evaluations / ess:,.0f}",
                    f"{ess / run.seconds:,.3g}", f"{run.total:.1f}",
                    f"{np.max(off / found.draws.std(axis=0)):.2f}",
                ])  # fmt: skip
            print(flush=True)
            table(
                ["model", "parameters", "sampler", "report", "rows per draw", "accepted", "ESS"]
                + ["rows per effective draw", "evaluations per effective draw"]
                + ["effective draws per s", "s in all", "means off"],
                lines,
            )
