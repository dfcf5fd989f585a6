"""Panels: fits by maximum likelihood beside posteriors, and a unit's integral by hand beside ours.

python tests/benchmarks/panels.py                      # 10^4 x 10^3 and 10^5 x 10^4 rows x units
python tests/benchmarks/panels.py --units 1000         # the smaller alone
python tests/benchmarks/panels.py --statsmodels 10000  # its fits of the larger too

A linear model with intercepts and slopes of units, whose exact posterior is found by importance
sampling from the closed form, and a logistic one with intercepts. Peers are shown if installed:
lme4 (R) and statsmodels. All seconds are of processors.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Processor seconds are of one core.

from time import process_time

import numpy as np
from _measure import Checks, command_line, sample_step, table
from _panels import (
    ClosedForm,
    handwritten,
    linear,
    linear_model,
    logistic,
    logistic_model,
    of_lme4,
    of_statsmodels,
    panel,
)
from gradient import beside, ours

import pymc_subsample as pms
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.quadrature import nodes

KINDS = {
    "linear": (linear, linear_model, ["a", "b", "tau", "of_slopes", "sigma"], ["z", "w"]),
    "logistic": (logistic, logistic_model, ["a", "b", "tau"], ["z"]),
}


def fits(kind, units):
    """Lines of the table of one panel, our run, and its exact posterior if that is known."""
    rng = np.random.default_rng(1)
    outcome, model, names, effects = KINDS[kind]
    unit, x, z = panel(units, args.rows, rng)
    y = outcome(unit, x, z, rng)
    made = model(unit, x, y)
    began = process_time()
    step = pms.HMCECS(model=made, integrate=effects)
    set_up = process_time() - began
    run, _ = sample_step(
        "HMCECS", made, lambda: step, names,
        draws=args.draws, time=process_time, var_names=names,
    )  # fmt: skip
    spread = list(zip(run.draws.mean(axis=0), run.draws.std(axis=0), strict=True))
    label = f"{len(x):,} x {units:,} {kind}"
    said = f"HMCECS: {args.draws:,} draws, {run.effective:,.0f} effective"
    yield [label, said, set_up + run.total, *map(text, spread)], run
    exact = None
    if kind == "linear":
        began = process_time()
        mean, sd, share = ClosedForm(unit, x, y).posterior(rng)
        exact = mean, sd
        said = f"exact posterior (importance efficiency {share:.0%})"
        spread = zip(mean, sd, strict=True)
        yield [label, said, process_time() - began, *map(text, spread)], exact
    found = list(of_lme4(kind, unit, x, y))
    if units <= args.statsmodels:
        found += of_statsmodels(kind, unit, x, y)
    for peer, seconds, values in found:
        yield [label, peer, seconds, *map(text, values)], None


def text(estimate):
    value, error = estimate
    return f"{value:.4f}" if np.isnan(error) else f"{value:.4f} ({error:.4f})"


def by_hand(units, m, rounds):
    """Microseconds per gradient of m units by hand and by the package, and their ratio."""
    rng = np.random.default_rng(5)
    unit, x, z = panel(units, args.rows, rng)
    y = logistic(unit, x, z, rng)
    marginal = pms.marginalize(logistic_model(unit, x, y), "z")
    integrals = integrals_of(marginal)
    modes = integrals.modes
    place = np.array([modes.m[:, 0], modes.S[:, 0, 0], modes.log_volume])
    points, log_w = nodes(1, integrals.integral.per_dimension)
    assert not integrals.integral.steps
    a, log_tau, b = at = integrals.reference
    thetas = at + rng.normal(size=(16, 3)) / np.sqrt(units)
    index = rng.integers(units, size=m)
    X, Y = (v.reshape(units, args.rows).T for v in (x, y))
    phi = np.array([a, np.exp(log_tau), b])
    order = [["a", "tau_log__", "b"].index(v.name) for v in marginal.value_vars]
    mine = ours(marginal, at[order], index)

    def reordered(thetas, repeats):
        total, grad = mine(np.ascontiguousarray(thetas[:, order]), repeats)
        return total, grad[np.argsort(order)]

    runs = [handwritten(X, Y, place, points[:, 0], log_w, phi, index), reordered]
    return [m, args.rows, len(points), *beside(runs, thetas, rounds, time=process_time)]


if __name__ == "__main__":
    parser = command_line(__doc__, rows=10, draws=10_000, rounds=15, statsmodels=1_000)
    parser.add_argument("--units", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--m", type=int, nargs="*", default=[100, 1000])
    args = parser.parse_args()

    checks, judged = Checks(), []
    for kind, (_, _, names, _) in KINDS.items():
        lines = []
        for units in args.units:
            (mine, run), *others = fits(kind, units)
            lines += [mine, *(line for line, _ in others)]
            judged += [(f"{kind}, {units:,} units", run, e) for _, e in others if e is not None]
        print("posterior mean (sd) or estimate (standard error)")
        table(["rows x units", "", "CPU s", *names], lines)
        print()
    hand = [by_hand(max(args.units), m, args.rounds) for m in args.m]
    table(
        ["units", "rows of each", "nodes", "hand-written, us", "pymc_subsample, us", "ratio"], hand
    )
    print()
    for what, run, (mean, sd) in judged:
        checks.at_least(f"{what}: effective draws", run.effective, 4000)
        off = np.abs(run.draws.mean(axis=0) - mean) / sd
        checks.at_most(f"{what}: largest error of a mean, in sds", off.max(), 0.1)
        off = np.abs(run.draws.std(axis=0) / sd - 1)
        checks.at_most(f"{what}: largest relative error of an sd", off.max(), 0.05)
    for m, _, _, _, _, ratio in hand:
        checks.at_most(f"gradient of {m} units: ratio to the hand-written kernel", ratio, 1.5)
    checks.exit()
