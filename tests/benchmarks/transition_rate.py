"""Transitions per second beside a hand-written loop that does the same work.

python tests/benchmarks/transition_rate.py

Logistic regression, random walk from the posterior mode, batches of 100. Both sides run k
transitions in one compiled call, in interleaved rounds; the ratio is the median over rounds. Plain
batches run at a temperature where 100 rows do, control variates of order 2 at temperature 1.
Acceptance rates and average batches of both are shown: they must agree.
"""

from time import perf_counter

import numpy as np
from _handwritten_mh import austerity, barker, handwritten
from _measure import Checks, command_line, table
from _problems import logistic_model, logistic_rows
from _reference import laplace

import pymc_subsample as pms
from pymc_subsample.samplers.minibatch.correction import barker_correction

BATCH, PRIOR_SD, EPSILON, MAX_ERROR, SIGMA = 100, 1.0, 0.05, 0.02, 1.3


def tests(n):
    """Name, step method, its options and the hand-written test."""
    table = barker_correction(SIGMA)
    cumulative = np.cumsum(table.probabilities)
    by_hand = barker(SIGMA, MAX_ERROR, table.error, table.support, cumulative)
    options = {"max_error": MAX_ERROR, "sigma": SIGMA}
    yield "Barker", pms.MinibatchBarkerMH, options, by_hand
    by_hand = austerity(EPSILON, BATCH, n)
    yield "austerity", pms.AusterityMH, {"epsilon": EPSILON}, by_hand


def ours(step, start, k):
    point = {"beta": start.copy()}

    def run(count):
        nonlocal point
        assert count == k
        point, [stats] = step.step(point)
        return stats["accepted"], stats["batch_size"]

    return run


def compare(X, y, rounds, k):
    mode, precision = laplace(X, y, PRIOR_SD)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    model = logistic_model(X, y, PRIOR_SD)
    for order, temperature in ((None, args.temperature), (2, 1.0)):
        move = factor * (2.4 * np.sqrt(temperature / len(mode)))
        for name, method, options, decide in tests(len(X)):
            reference = {"reference": {"beta": mode}} if order else {}
            with model:
                step = method(
                    proposal=pms.proposals.RandomWalk(covariance=move @ move.T), batch_size=BATCH,
                    control_variate_order=order, temperature=temperature,
                    transitions_per_draw=k, **reference, **options,
                )  # fmt: skip
            runs = [
                handwritten(
                    decide, order, X, y, factor=move, tau=PRIOR_SD**-2, batch=BATCH,
                    temperature=temperature, reference=mode,
                ),
                ours(step, mode, k),
            ]  # fmt: skip
            for run in runs:
                run(k)
            seconds, found = np.empty((rounds, 2)), np.empty((rounds, 2, 2))
            for i in range(rounds):
                for j, run in enumerate(runs):
                    start = perf_counter()
                    found[i, j] = run(k)
                    seconds[i, j] = (perf_counter() - start) / k
            hand, mine = 1 / np.median(seconds, axis=0)
            (hand_accepted, hand_batch), (accepted, batch) = found.mean(axis=0)
            ratio = np.median(seconds[:, 1] / seconds[:, 0])
            label = "plain" if order is None else f"order {order}"
            yield [f"{name}, {label}", temperature, hand_accepted, accepted, hand_batch, batch,
                   hand, mine, ratio]  # fmt: skip


if __name__ == "__main__":
    parser = command_line(__doc__, n=200_000, d=11, rounds=15)
    parser.add_argument("--temperature", type=float, help="of plain batches; n / 5 if not given")
    parser.add_argument("--transitions", type=int, default=2000, help="per compiled call")
    args = parser.parse_args()
    args.temperature = args.temperature or args.n / 5

    X, y = logistic_rows(args.n, args.d)
    print(
        f"Logistic regression, n = {args.n:,}, d = {args.d}, first batch {BATCH}; medians of "
        f"{args.rounds} interleaved rounds of {args.transitions:,} transitions"
    )
    rows = list(compare(X, y, args.rounds, args.transitions))
    table(
        ["test", "T", "accepted: by hand", "ours", "mean batch: by hand", "ours",
         "transitions/s: by hand", "ours", "ratio of times"],
        rows,
    )  # fmt: skip
    print()
    checks = Checks()
    for name, _, hand_accepted, accepted, hand_batch, batch, *_, ratio in rows:
        checks.at_most(f"{name}: time, ratio to the hand-written loop", ratio, 2)
        checks.at_most(
            f"{name}: difference of acceptance rates", abs(hand_accepted - accepted), 0.03
        )
        checks.at_most(
            f"{name}: relative difference of average batches", abs(batch / hand_batch - 1), 0.2
        )
    checks.exit()
