"""Exact draws from a handful of rows, beside approximate, signed, Firefly and all-rows ones.

python tests/benchmarks/scalable.py                     # 10^4 to 10^6 rows, 10 to 100 parameters
python tests/benchmarks/scalable.py --peers             # with NumPyro's HMCECS and nutpie
python tests/benchmarks/scalable.py --rows 10000000 --parameters 10
python tests/benchmarks/scalable.py --ratios            # d^3 / n from 0.01 to 10

Logistic regression on normal columns and on columns of Student's t with 4 degrees of freedom, two
chains of `--draws` draws after 1,000 for tuning. Rows that decide on a draw; proposals that the
surrogate and that rows accept; row evaluations and effective draws per second of the slowest
coefficient, tuning and set-up excluded; seconds in all, set-up and warm compilation included.
Seconds are the processor's: give BLAS one thread (OMP_NUM_THREADS=1). Errors are those of means, in
posterior standard deviations, and of standard deviations, as a ratio, against the posterior of all
rows, and the Monte Carlo error that the largest of so many means has; nutpie's are not shown where
its draws are those of fewer rows. Peers are shown for normal columns alone.
"""

from importlib.util import find_spec
from time import process_time

import numpy as np
from _measure import Checks, command_line, sample_step, table
from _problems import logistic_model
from _reference import exact_posterior
from scipy.stats import norm

PRIOR_SD, CHAINS = 5.0, 2
COLUMNS = ("normal", "t(4)")
# What exact draws must take, at a million rows and 30 parameters.
AT, MOST_ROWS, FASTER, FEWER = (1_000_000, 30), 20.0, 2.0, 50.0
# Numbers of parameters and values of d^3 / n; not more rows times parameters than this.
SIZES, RATIOS, LARGEST = (10, 30, 100), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), 10**8
# Choices may be so much slower than the better one; speeds of one run are known to a quarter.
CHOICE = 1.5


def logistic(n, d, columns, seed=1):
    """Covariates and outcomes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) if columns == "normal" else rng.standard_t(4, size=(n, d))
    b = rng.normal(size=d) / np.sqrt(d)
    return X, (rng.random(n) < 1 / (1 + np.exp(-X @ b))).astype("int8")


def samplers(n, d):
    import pymc_subsample as pms

    found = {
        "ScalableMH": pms.ScalableMH,
        "ScalableMH, factorised": lambda: pms.ScalableMH(acceptance="factorised"),
        "ScalableMH, MH-SS": lambda: pms.ScalableMH(acceptance="mh-ss"),
        "HMCECS": pms.HMCECS,
        "HMCECS, signed": lambda: pms.HMCECS(estimator="block-poisson"),
    }
    return found | ({"FireflyMC": pms.FireflyMC} if n * d <= 30_000_000 else {})


def measured(name, model, make, draws):
    """One run, its report, its step and mean statistics; or why there is none."""
    import pymc_subsample as pms

    steps = []

    def made():
        steps.append(make())
        return steps[0]

    try:
        run, idata = sample_step(
            name, model, made, draws=draws, chains=CHAINS, seed=2, quiet=True,
            compute_convergence_checks=False, time=process_time,
        )  # fmt: skip
    except pms.TallModelError as error:
        return None, "refused", None, str(error)
    stats = idata["sample_stats"]
    means = {
        key: float(stats[key].mean()) if key in stats else np.nan
        for key in ("rows_read", "rows_accepted", "acceptance_rate", "passes")
    }
    return run, pms.report(idata).status, steps[0], means


def peers(X, y, mode, draws):
    from _peers import numpyro_hmcecs, nutpie_all_rows

    if find_spec("numpyro"):
        yield numpyro_hmcecs(
            X, y, PRIOR_SD, mode, m=min(1000, len(X) // 10), draws=draws // 2, time=process_time
        )
    yield nutpie_all_rows(X, y, PRIOR_SD, time=process_time)


def cells(run, exact):
    """Cost per effective draw and errors, as text."""
    ess = run.effective
    noise = norm.isf(0.005 / run.draws.shape[1]) / np.sqrt(ess)
    off = ["", "", ""]
    if not run.projected:
        off = [*(f"{e:.3f}" for e in exact.errors(run.draws)), f"{noise:.3f}"]
    each = run.evaluations / ess
    return [
        f"{each:,.0f}" if each >= 10 else f"{each:.2g}", f"{ess / run.seconds:,.3g}",
        f"{run.total:.1f}", *off,
    ]  # fmt: skip


TITLES = [
    "rows", "parameters", "columns", "sampler", "report", "rows per draw", "surrogate accepts",
    "rows accept", "evaluations per effective draw", "effective draws per s", "s in all",
    "means off", "sds off", "Monte Carlo",
]  # fmt: skip


def compare(args, checks):
    for n in args.rows:
        for d in args.parameters:
            for columns in COLUMNS:
                X, y = logistic(n, d, columns)
                exact, model = exact_posterior(X, y, PRIOR_SD), logistic_model(X, y, PRIOR_SD)
                where, lines, runs = [f"{n:,}", d, columns], [], {}
                for name, make in samplers(n, d).items():
                    if name.endswith("MH-SS"):
                        continue
                    run, status, _, means = measured(name, model, make, args.draws)
                    if run is None:
                        lines.append([*where, name, status, *[""] * 9])
                        continue
                    ours = [""] * 3
                    if name.startswith("ScalableMH"):
                        ours = [
                            f"{means['rows_read']:,.1f}", f"{means['acceptance_rate']:.3f}",
                            f"{means['rows_accepted']:.3f}",
                        ]  # fmt: skip
                    lines.append([*where, name, status, *ours, *cells(run, exact)])
                    runs[name] = run, means
                if args.peers and columns == COLUMNS[0]:
                    lines += [
                        [*where, run.name, *[""] * 4, *cells(run, exact)]
                        for run in peers(X, y, exact.mode, args.draws)
                    ]
                print(f"\n{n:,} x {d}, {columns}; {exact}", flush=True)
                table(TITLES, lines)
                if (n, d) == AT and columns == "normal":
                    (ours, means), (other, _) = runs["ScalableMH"], runs["HMCECS"]
                    checks.at_most("rows per draw", means["rows_read"], MOST_ROWS)
                    checks.at_least(
                        "effective draws per s over HMCECS's",
                        ours.effective / ours.seconds / other.effective * other.seconds, FASTER,
                    )  # fmt: skip
                    checks.at_least(
                        "HMCECS's evaluations over ours",
                        other.evaluations / other.effective / ours.evaluations * ours.effective,
                        FEWER,
                    )  # fmt: skip


def ratios(args, checks):
    """Where it wins and loses, as d^3 / n grows, and whether it says so beforehand."""
    lines = []
    for d in args.parameters or SIZES:
        for ratio in RATIOS:
            n = round(d**3 / ratio)
            if n * d > LARGEST:
                continue
            X, y = logistic(n, d, "normal")
            model, rates, line = logistic_model(X, y, PRIOR_SD), {}, [d, f"{n:,}", f"{ratio:g}"]
            for name, make in samplers(n, d).items():
                if "signed" in name or "Firefly" in name:
                    continue
                run, status, step, means = measured(name, model, make, args.draws)
                if run is None:
                    line.append(status)
                    continue
                rates[name] = run.effective / run.seconds
                if name == "ScalableMH":
                    line.append(step.acceptance)
                elif name == "HMCECS":
                    line += [
                        f"{run.evaluations / len(run.draws):,.0f}",
                        f"{rates[name]:,.0f}",
                        status,
                    ]
                else:
                    line += [
                        f"{means['rows_read']:,.1f}", f"{means['rows_accepted']:.2f}",
                        f"{step.predicted_acceptance:.2f}", f"{rates[name]:,.0f}", status,
                    ]  # fmt: skip
                    checks.at_most(
                        f"{d}, {ratio:g}, {name}: predicted acceptance off by",
                        abs(means["rows_accepted"] - step.predicted_acceptance), 0.1,
                    )  # fmt: skip
            both = [rates[f"ScalableMH, {form}"] for form in ("factorised", "MH-SS")]
            chosen = both[line[3] == "mh-ss"]
            checks.at_most(
                f"{d}, {ratio:g}: the better rule over the chosen one", max(both) / chosen, CHOICE
            )
            lines.append(line)
    print()
    form = ["rows", "accepted", "predicted", "ESS/s", "report"]
    table(
        ["d", "n", "d^3/n", "auto", *(f"factorised: {form[0]}", *form[1:])]
        + [f"MH-SS: {form[0]}", *form[1:], "HMCECS: evaluations", "ESS/s", "report"],
        lines,
    )


def main():
    parser = command_line(__doc__, draws=2_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--parameters", type=int, nargs="+", help="default: 10, 30 and 100")
    parser.add_argument("--peers", action="store_true", help="NumPyro and nutpie beside it")
    parser.add_argument("--ratios", action="store_true", help="a table over d^3 / n instead")
    args, checks = parser.parse_args(), Checks()
    args.parameters = args.parameters or SIZES
    (ratios if args.ratios else compare)(args, checks)
    checks.exit()


if __name__ == "__main__":
    main()
