"""Exact draws from a handful of rows, beside perturbed, signed and Firefly ones.

python tests/benchmarks/scalable.py                       # 10^4 to 10^6 rows
python tests/benchmarks/scalable.py --rows 10000000 --parameters 30

Logistic regression on normal columns and on columns of Student's t with 4 degrees of freedom. Rows
that decide on a draw (evaluations, of the others), row evaluations per effective draw (of the
slowest coefficient, from 2 chains of 1,000 draws), effective draws per second of tuning and
drawing, and seconds of set-up, compilation included. Errors are those of means and standard
deviations against the first sampler, in posterior standard deviations and as a ratio.
"""

import argparse
import time

import numpy as np
from _measure import Checks, table

TUNE, DRAWS, CHAINS = 1_000, 1_000, 2
COLUMNS = ("normal", "t(4)")
# What exact draws must take, at a million rows and 30 parameters.
AT, MOST_ROWS, FASTER, FEWER = (1_000_000, 30), 20.0, 2.0, 50.0


def logistic(n, d, columns, seed=1):
    """A model and its data's number of bytes."""
    import pymc as pm

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) if columns == "normal" else rng.standard_t(4, size=(n, d))
    b = rng.normal(size=d) / np.sqrt(d)
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ b))).astype("int8")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=d)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=y)
    return model


def samplers(n):
    import pymc_subsample as pms

    found = {
        "ScalableMH": pms.ScalableMH,
        "ScalableMH, factorised": lambda: pms.ScalableMH(acceptance="factorised"),
        "HMCECS": pms.HMCECS,
        "HMCECS, signed": lambda: pms.HMCECS(estimator="block-poisson"),
    }
    return found | ({"FireflyMC": pms.FireflyMC} if n <= 1_000_000 else {})


def measured(model, make):
    import arviz as az
    import pymc as pm

    import pymc_subsample as pms

    with model:
        start = time.perf_counter()
        step = make()
        ready = time.perf_counter()
        idata = pm.sample(
            DRAWS, tune=TUNE, chains=CHAINS, cores=1, step=step, progressbar=False, random_seed=2,
            compute_convergence_checks=False, quiet=True,
        )  # fmt: skip
    stats, draws = idata["sample_stats"], idata["posterior"]["beta"]
    ess = float(np.min(az.ess(idata)["beta"].values))
    drawing = float(idata["posterior"].attrs["sampling_time"])
    evaluations = float(stats["n_evaluations"].mean())
    return {
        "status": pms.report(idata).status,
        "set-up": ready - start,
        "rows": float(stats["rows_read"].mean()) if "rows_read" in stats else evaluations,
        "accepted": float(stats["rows_accepted"].mean()) if "rows_accepted" in stats else np.nan,
        "per effective draw": evaluations * DRAWS * CHAINS / ess,
        "effective per second": ess / drawing,
        "mean": draws.mean(("chain", "draw")).values,
        "sd": draws.std(("chain", "draw")).values,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--parameters", type=int, nargs="+", default=[10, 30])
    args = parser.parse_args()
    lines, checks = [], Checks()
    for n in args.rows:
        for d in args.parameters:
            for columns in COLUMNS:
                model = logistic(n, d, columns)
                runs = {name: measured(model, make) for name, make in samplers(n).items()}
                first = runs["ScalableMH"]
                for name, run in runs.items():
                    shift = np.max(np.abs(run["mean"] - first["mean"]) / first["sd"])
                    stretch = np.max(np.abs(run["sd"] / first["sd"] - 1))
                    lines.append([
                        f"{n:,}", d, columns, name, run["status"], f"{run['rows']:.1f}",
                        f"{run['accepted']:.3f}", f"{run['per effective draw']:,.0f}",
                        f"{run['effective per second']:,.0f}", f"{run['set-up']:.1f}",
                        f"{shift:.2f}", f"{stretch:.2f}",
                    ])  # fmt: skip
                if (n, d) == AT and columns == "normal":
                    other = runs["HMCECS"]
                    faster = first["effective per second"] / other["effective per second"]
                    fewer = other["per effective draw"] / first["per effective draw"]
                    checks.at_most("rows per draw", first["rows"], MOST_ROWS)
                    checks.at_least("effective draws per s over HMCECS's", faster, FASTER)
                    checks.at_least("HMCECS's evaluations over ours", fewer, FEWER)
    titles = [
        "rows", "parameters", "columns", "sampler", "report", "rows per draw", "rows accept",
        "evaluations per effective draw", "effective draws per s", "set-up s", "means off",
        "sds off",
    ]  # fmt: skip
    table(titles, lines)
    checks.exit()


if __name__ == "__main__":
    main()
