"""Hand-written minibatch Metropolis-Hastings, the yardstick of ``transition_rate.py``.

Logistic regression with a normal prior: random walk, batches drawn without replacement, plain or
with order-2 Taylor control variates, decided by the Barker test or the sequential t-test. The model
is written out, and the critical values of the t-test are looked up.
"""

import numpy as np
from _handwritten import fast, glm_terms, logistic_curve, logistic_row, quadratic
from scipy.stats import t as student


@fast
def dot(x, b):
    total = 0.0
    for j in range(len(b)):
        total += x[j] * b[j]
    return total


@fast
def plain_changes(X, y, rows, theta, new, center, predictors, out):
    """Log-likelihood differences of rows; `predictors` is scratch, shape (3, rows)."""
    before, after = predictors[0], predictors[1]
    for i in range(len(rows)):
        row, a, b = rows[i], 0.0, 0.0
        for j in range(len(theta)):
            x = X[row, j]
            a += x * theta[j]
            b += x * new[j]
        before[i], after[i] = a, b
    for i in range(len(rows)):
        out[i] = logistic_row(y[rows[i]], after[i])[0] - logistic_row(y[rows[i]], before[i])[0]


@fast
def controlled_changes(X, y, rows, theta, new, center, predictors, out):
    """The same less the change of each row's second-order Taylor expansion."""
    before, after, star = predictors[0], predictors[1], predictors[2]
    for i in range(len(rows)):
        row, a, b, c = rows[i], 0.0, 0.0, 0.0
        for j in range(len(theta)):
            x = X[row, j]
            a += x * theta[j]
            b += x * new[j]
            c += x * center[j]
        before[i], after[i], star[i] = a, b, c
    for i in range(len(rows)):
        label, a, b = y[rows[i]], before[i], after[i]
        p = 1 / (1 + np.exp(-star[i]))
        slope = label - p - 0.5 * p * (1 - p) * (a + b - 2 * star[i])
        out[i] = logistic_row(label, b)[0] - logistic_row(label, a)[0] - (b - a) * slope


@fast
def prior(theta, tau):
    return -0.5 * tau * dot(theta, theta)


def barker(sigma, max_error, floor, support, cumulative):
    variance_bound = sigma**2

    @fast
    def decide(n, b, mean, second, third, known, u, z):
        """1 accepts, -1 rejects, 0 asks for more rows; moments about the mean."""
        ratio = mean + known
        if b >= n:
            return 1 if ratio > np.log((1 - u) / u) else -1
        variance = second / b / (b - 1.0) * (1 - b / n)
        error = floor + abs(third) / b**3 * (1 - b / n) * (1 - 2 * b / n) / 24
        if variance >= variance_bound or error > max_error:
            return 0
        correction = support[min(np.searchsorted(cumulative, u), len(support) - 1)]
        return 1 if ratio + np.sqrt(variance_bound - variance) * z + correction > 0 else -1

    return decide


def austerity(epsilon, batch, largest):
    critical = student.ppf(1 - epsilon, batch * np.arange(1, largest // batch + 2) - 1)

    @fast
    def decide(n, b, mean, second, third, known, u, z):
        distance = mean + known - np.log(u)
        if b < n:
            variance = second / b / (b - 1.0) * (1 - (b - 1.0) / (n - 1.0))
            if abs(distance) <= critical[b // batch - 1] * np.sqrt(variance):
                return 0
        return 1 if distance > 0 else -1

    return decide


def chain(changes, decide, order):
    """``run(...)``: k transitions in place; returns how many were accepted and the rows read."""

    @fast
    def run(rng, X, y, order_of_rows, theta, factor, tau, batch, weight, center, A, B, k):
        n, d = X.shape
        new, z, scratch = np.empty(d), np.empty(d), np.empty(d)
        rows, values, predictors = np.empty(batch, np.int64), np.empty(batch), np.empty((3, batch))
        accepted, read = 0, 0
        for _ in range(k):
            for j in range(d):
                z[j] = rng.standard_normal()
            for i in range(d):
                step = 0.0
                for j in range(i + 1):
                    step += factor[i, j] * z[j]
                new[i] = theta[i] + step
            known = prior(new, tau) - prior(theta, tau)
            if order == 2:
                known += quadratic(A, B, new - center, scratch)
                known -= quadratic(A, B, theta - center, scratch)
            u, normal = rng.random(), rng.standard_normal()
            b, mean, second, third, decision = 0, 0.0, 0.0, 0.0, 0
            while decision == 0:
                m = min(batch, n - b)
                for i in range(m):
                    at = b + i
                    other = at + int(rng.random() * (n - at))
                    row = order_of_rows[other]
                    order_of_rows[other] = order_of_rows[at]
                    order_of_rows[at] = row
                    rows[i] = row
                changes(X, y, rows[:m], theta, new, center, predictors, values)
                total = 0.0
                for i in range(m):
                    values[i] *= weight
                    total += values[i]
                average, squares, cubes = total / m, 0.0, 0.0
                for i in range(m):
                    e = values[i] - average
                    squares += e * e
                    cubes += e * e * e
                c, shift = b + m, average - mean
                third += cubes + shift**3 * b * m * (b - m) / c**2
                third += 3 * shift * (b * squares - m * second) / c
                second += squares + shift**2 * b * m / c
                mean += shift * m / c
                b = c
                decision = decide(n, b, mean, second, third, known, u, normal)
            for i in range(b):
                if order_of_rows[i] >= b:
                    order_of_rows[order_of_rows[i]] = order_of_rows[i]
            for i in range(b):
                order_of_rows[i] = i
            read += b
            if decision == 1:
                accepted += 1
                for j in range(d):
                    theta[j] = new[j]
        return accepted, read

    return run


def handwritten(decide, order, X, y, *, factor, tau, batch, temperature, reference, seed=1):
    """``run(k)``: k transitions onwards; their acceptance rate and average batch."""
    changes = controlled_changes if order == 2 else plain_changes
    loop, rng = chain(changes, decide, order), np.random.default_rng(seed)
    theta, rows = reference.copy(), np.arange(len(X), dtype=np.uint32)
    _, A, B = glm_terms(X, y, reference, logistic_curve)
    A, B = A / temperature, B / temperature

    def run(k):
        accepted, read = loop(
            rng, X, y, rows, theta, factor, tau, batch, len(X) / temperature, reference, A, B, k
        )
        return accepted / k, read / k

    return run
