"""Rows per test in the worst case of Seita et al. (2017), section 2.1, as n grows.

x_i ~ N(0.5, 1), a flat prior on the mean, theta drawn from the posterior and proposals from
N(theta, 1 / n). Tests that tell the log-ratio from log u use all rows with a probability that does
not fall with n (Lemma 1: at least 0.0085), or decide wrongly: a t-test repeated after every 100
rows stops early by chance. Columns "wrong" count decisions that differ from exact MH's for the same
points, proposals and thresholds.

The Barker test need not tell them apart, but at T = 1 it must bring the variance of the log-ratio's
estimate, n^2 (theta' - theta)^2 (1 / b - 1 / n), below sigma^2: a constant share of all rows again,
though never all of them. It escapes by temperature (here T = n / 100, proposals from N(theta, T /
n)) or by control variates.

For normal rows these are exact. The second table has Student-t rows with 5 degrees of freedom,
where they are not.

python tests/benchmarks/worst_case.py
"""

import numpy as np
import pymc as pm
from _measure import Checks, command_line, one_by_one, table

import pymc_subsample as pms

LEMMA_1 = 0.0085
NU = 5.0


def normal_model(x):
    with pm.Model() as model:
        mu = pm.Flat("mu")
        pm.Normal("x", mu, 1, observed=pm.Data("rows", x))
    return model


def student_model(x):
    with pm.Model() as model:
        mu = pm.Flat("mu")
        pm.StudentT("x", nu=NU, mu=mu, sigma=1, observed=pm.Data("rows", x))
    return model


def student_mode(x):
    mode = np.median(x)
    for _ in range(50):
        weight = 1 / (1 + (x - mode) ** 2 / NU)
        mode = weight @ x / weight.sum()
    return mode


def normal_bound(x):
    """C: a row's log-ratio is linear in the row."""
    ends = np.array([x.min(), x.max()])

    def bound(point, new_point):
        a, b = point["mu"], new_point["mu"]
        return np.abs((b - a) * (ends - 0.5 * (a + b))).max()

    return bound


def student_bound(x):
    """C: the log-likelihood of a row changes by at most its largest slope times the move."""
    slope = (NU + 1) / (2 * np.sqrt(NU))

    def bound(point, new_point):
        return slope * abs(new_point["mu"] - point["mu"])

    return bound


def methods(bound):
    plain = {"control_variate_order": None}
    yield "exact MH", pms.AusterityMH, {"epsilon": 0} | plain, 1.0
    yield "Barker", pms.MinibatchBarkerMH, plain, 1.0
    for epsilon in (0.05, 0.005):
        options = {"epsilon": epsilon, "batch_size": 100} | plain
        yield f"austerity, epsilon = {epsilon:g}", pms.AusterityMH, options, 1.0
    yield "confidence, delta = 0.01", pms.ConfidenceMH, {"bound": bound} | plain, 1.0
    yield "Barker, T = n / 100", pms.MinibatchBarkerMH, plain, 0.01
    for order in (1, 2):
        control = {"control_variate_order": order}
        yield f"Barker, order {order}", pms.MinibatchBarkerMH, control, 1.0
        yield f"austerity, order {order}", pms.AusterityMH, {"batch_size": 100} | control, 1.0
        yield f"confidence, order {order}", pms.ConfidenceMH, {"bound": "auto"} | control, 1.0


def run_tests(step, mode, sd, tests):
    """Batches, rows read and decisions, one test each, from independent points of the posterior.

    Proposals and thresholds depend on the seed alone, not on the test.
    """
    step.setup_chain(np.random.default_rng(7), 0, tests)
    one_by_one(step)
    rng, found = np.random.default_rng(3), []
    for _ in range(tests):
        point = {"mu": np.array(mode + sd * rng.standard_normal())}
        _, [stats] = step.step(point)
        per_row = 4 if step.control_variate_order else 2
        read = stats["n_evaluations"] / per_row
        found.append([stats["batch_size"], read, stats["accepted"]])
    return np.array(found).T


def tests_at(n):
    return max(args.tests // (1 if n < 1e6 else 4 if n < 1e7 else 16), 1)


def problem(name, rows, make_model, mode_of, bound_of, information):
    """Mean batch and share of tests that used all rows, by method and n."""
    found, notes, wrong = {}, {}, {}
    for n in args.n:
        x = rows(n)
        mode, sd = mode_of(x), 1 / np.sqrt(information * n)
        tests = tests_at(n)
        with make_model(x):
            for label, method, options, heat in methods(bound_of(x)):
                temperature = 1.0 if heat == 1.0 else n * heat
                step = method(
                    proposal=pms.proposals.RandomWalk(scale=sd * np.sqrt(temperature)),
                    transitions_per_draw=1,
                    temperature=temperature,
                    **options,
                )
                batches, read, accepted = run_tests(step, mode, sd * np.sqrt(temperature), tests)
                if label == "exact MH":
                    exact = accepted
                found[label, n] = batches.mean(), np.mean(batches >= n)
                comparable = not label.startswith("Barker")
                wrong[label, n] = f"{np.mean(accepted != exact):.1%}" if comparable else ""
                notes[label] = "a pass over all rows per test" if read.mean() > n + 1 else ""
    labels = list(dict.fromkeys(label for label, _ in found))
    cells = [
        [label]
        + ["{:,.0f} ({:.1%})".format(*found[label, n][:2]) for n in args.n]
        + [found[label, args.n[-1]][0] / found[label, args.n[0]][0]]
        + [wrong[label, args.n[0]], wrong[label, args.n[-1]], notes[label]]
        for label in labels
    ]
    print(f"\n{name}: mean rows per test (share of tests that used all n)")
    header = ["test", *(f"n = {n:,}" for n in args.n), "last / first", "wrong: first n", "last n"]
    header.append("besides, for its bound")
    table(header, cells)
    return found


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--n", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument(
        "--tests", type=int, default=200, help="a quarter of it at 10^6 rows, a 16th at 10^7"
    )
    args = parser.parse_args()

    rng = np.random.default_rng(5)
    print(
        f"Tests: {', '.join(f'{tests_at(n)}' for n in args.n)}; first batch of 100 rows, "
        "which austerity also grows by"
    )
    normal = problem(
        "Normal rows", lambda n: rng.normal(0.5, 1, n), normal_model, np.mean, normal_bound, 1.0
    )
    student = problem(
        "Student-t rows, 5 degrees of freedom", lambda n: 0.5 + rng.standard_t(NU, n),
        student_model, student_mode, student_bound, (NU + 1) / (NU + 3),
    )  # fmt: skip
    print()
    checks = Checks()
    for label in ("austerity, epsilon = 0.005", "confidence, delta = 0.01"):
        shares = [normal[label, n][1] for n in args.n]
        checks.at_least(
            f"{label}, normal rows: share of tests on all rows, all n together (Lemma 1)",
            np.average(shares, weights=[tests_at(n) for n in args.n]), LEMMA_1,
        )  # fmt: skip
    for order in (1, 2):
        for name, found in (("normal", normal), ("Student-t", student)):
            label = f"Barker, order {order}"
            checks.at_most(
                f"{label}, {name} rows: largest mean batch over all n",
                max(found[label, n][0] for n in args.n), 200,
            )  # fmt: skip
    checks.at_most(
        "Barker, T = n / 100, normal rows: largest mean batch over all n",
        max(normal["Barker, T = n / 100", n][0] for n in args.n), 200,
    )  # fmt: skip
    checks.exit()
