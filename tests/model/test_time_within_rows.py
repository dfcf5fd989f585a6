"""Rows with a time axis inside: loops over time, and what reads the values before."""

from itertools import pairwise, product

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from chains import assert_moments, moments
from pytensor.scan.utils import until
from scipy import stats

import pymc_subsample as pms
from pymc_subsample.graph.unrolled import LONGEST
from pymc_subsample.model import TallModel
from pymc_subsample.units.sampled import units_of

J, T = 30, 4
rng = np.random.default_rng(3)
Y = np.cumsum(rng.normal(size=(J, T)), axis=1) / 2
LENGTH = rng.integers(1, T + 1, J)


def hidden(likelihood):
    """Return a model of two hidden states, each of which may be left at any time."""
    with pm.Model() as model:
        leave = pm.Beta("leave", 2, 2, shape=2)
        mean = pm.Normal("mean", [-1, 1], 1, shape=2)
        log_p = pt.log(pt.stack([pt.stack([1 - leave[0], leave[0]]),
                                 pt.stack([leave[1], 1 - leave[1]])]))  # fmt: skip
        likelihood(log_p, mean)
    return model


def emissions(mean, y=Y):
    return pm.logp(pm.Normal.dist(mean, 1), pt.as_tensor(y).T[:, :, None])


def forward(e, before, log_p):
    return pt.logsumexp(before[:, :, None] + log_p, axis=1) + e


def scanned(log_p, e):
    return pytensor.scan(
        forward, sequences=[e[1:]], outputs_info=[np.log(0.5) + e[0]], non_sequences=[log_p],
        return_updates=False,
    )  # fmt: skip


def by_a_loop(log_p, mean):
    last = scanned(log_p, emissions(mean))[-1]
    pm.Potential("ll", pt.logsumexp(last, axis=1).sum())


def by_a_loop_of_python(log_p, mean):
    e = emissions(mean)
    alpha = np.log(0.5) + e[0]
    for t in range(1, T):
        alpha = forward(e[t], alpha, log_p)
    pm.Potential("ll", pt.logsumexp(alpha, axis=1).sum())


def by_a_distribution(log_p, mean):
    def logp(value, mean, log_p, zeros):
        e = pm.logp(pm.Normal.dist(mean, 1), value.T[:, :, None])
        return pt.logsumexp(scanned(log_p, e)[-1], axis=1)

    pm.CustomDist(
        "ll", mean, log_p, np.zeros(T), logp=logp, signature="(k),(k,k),(t)->(t)", observed=Y
    )


def by_probabilities(log_p, mean):
    e = pt.exp(emissions(mean))

    def step(e, before, p):
        return (before @ p) * e

    last = pytensor.scan(
        step, sequences=[e[1:]], outputs_info=[0.5 * e[0]], non_sequences=[pt.exp(log_p)],
        return_updates=False,
    )[-1]  # fmt: skip
    pm.Potential("ll", pt.log(last.sum(axis=1)))


def unit_by_unit(log_p, mean):
    def of_unit(y, log_p, mean):
        e = pm.logp(pm.Normal.dist(mean, 1), y[:, None])
        last = pytensor.scan(
            lambda e, before, log_p: pt.logsumexp(before[:, None] + log_p, axis=0) + e,
            sequences=[e[1:]], outputs_info=[np.log(0.5) + e[0]], non_sequences=[log_p],
            return_updates=False,
        )[-1]  # fmt: skip
        return pt.logsumexp(last)

    each = pytensor.scan(
        of_unit, sequences=[pt.as_tensor(Y)], non_sequences=[log_p, mean], return_updates=False
    )
    pm.Potential("ll", each.sum())


def into_an_array(log_p, mean):
    e = emissions(mean)
    alpha = pt.set_subtensor(pt.zeros((T, J, 2))[0], np.log(0.5) + e[0])
    for t in range(1, T):
        alpha = pt.set_subtensor(alpha[t], forward(e[t], alpha[t - 1], log_p))
    pm.Potential("ll", pt.logsumexp(alpha[-1], axis=1).sum())


def of_several_lengths(log_p, mean):
    e = emissions(mean)
    alpha = pt.concatenate([(np.log(0.5) + e[0])[None], scanned(log_p, e)])
    last = alpha[LENGTH - 1, np.arange(J)]
    pm.Potential("ll", pt.logsumexp(last, axis=1).sum())


def counted_from_the_end(log_p, mean):
    e = emissions(mean)
    alpha = pt.concatenate([(np.log(0.5) + e[0])[None], scanned(log_p, e)])
    last = alpha[LENGTH - 1 - T, np.arange(J)]
    pm.Potential("ll", pt.logsumexp(last, axis=1).sum())


def enumerated(theta, lengths, values=Y):
    """Log-likelihood of each unit, as a sum over all paths of its states."""
    leave, mean = 1 / (1 + np.exp(-theta[:2])), theta[2:]
    P = np.array([[1 - leave[0], leave[0]], [leave[1], 1 - leave[1]]])
    found = []
    for y, n in zip(values, lengths, strict=True):
        paths = [
            0.5 * np.prod([P[a, b] for a, b in pairwise(path)])
            * np.prod(stats.norm.pdf(y[:n], mean[list(path)]))
            for path in product((0, 1), repeat=n)
        ]  # fmt: skip
        found.append(np.log(sum(paths)))
    return np.array(found)


SPELLINGS = [
    by_a_loop, by_a_loop_of_python, by_a_distribution, by_probabilities, unit_by_unit,
    into_an_array, of_several_lengths,
]  # fmt: skip


@pytest.mark.parametrize("likelihood", SPELLINGS, ids=lambda f: f.__name__)
def test_hidden_states(likelihood):
    tall = TallModel(hidden(likelihood))
    assert tall.n_rows == J
    theta = np.array([-0.5, 0.3, -0.8, 1.1])
    index = np.array([4, 0, 17, 29])
    lengths = LENGTH if likelihood is of_several_lengths else np.full(J, T)
    found = tall.row_loglik(theta, index)
    np.testing.assert_allclose(found, enumerated(theta, lengths)[index], rtol=1e-10)


def test_times_of_a_loop_are_counted_from_the_end():
    """How many there are is not known before the loop is written out."""
    with pytest.warns(UserWarning, match=f"-1 is the last of {T} entries"):
        tall = TallModel(hidden(counted_from_the_end))
    theta, index = np.array([-0.5, 0.3, -0.8, 1.1]), np.array([4, 0, 17, 29])
    found = tall.row_loglik(theta, index)
    np.testing.assert_allclose(found, enumerated(theta, LENGTH)[index], rtol=1e-10)


def capture_recapture():
    """Return histories, first captures and a model of survival and of capture."""
    seen = np.zeros((J, T), dtype=int)
    first = rng.integers(0, T - 1, J)
    for history, start in zip(seen, first, strict=True):
        history[start:] = np.cumprod(rng.random(T - start) < 0.8) * (rng.random(T - start) < 0.6)
        history[start] = 1
    with pm.Model() as model:
        survives, captured = pm.Beta("survives", 1, 1), pm.Beta("captured", 1, 1)

        def step(seen, t, alive, dead, survives, captured):
            here = alive * survives * pt.switch(seen, captured, 1 - captured)
            gone = (dead + alive * (1 - survives)) * pt.switch(seen, 0.0, 1.0)
            after = t > pt.as_tensor(first)
            return pt.switch(after, here, 1.0), pt.switch(after, gone, 0.0)

        alive, dead = pytensor.scan(
            step, sequences=[pt.as_tensor(seen.T)[1:], pt.arange(1, T)],
            outputs_info=[pt.ones(J), pt.zeros(J)], non_sequences=[survives, captured],
            return_updates=False,
        )  # fmt: skip
        pm.Potential("ll", pt.log(alive[-1] + dead[-1]).sum())
    return seen, first, model


def test_capture_recapture():
    """Each history's probability is a sum over when an animal died."""
    seen, first, model = capture_recapture()
    tall = TallModel(model)
    theta = np.array([0.9, 0.2])
    survives, captured = 1 / (1 + np.exp(-theta))
    expected = []
    for history, start in zip(seen, first, strict=True):
        after, total = history[start + 1 :], 0.0
        for alive in range(len(after) + 1):  # at how many later times
            p = survives**alive * (1 - survives if alive < len(after) else 1.0)
            lived = np.where(after[:alive], captured, 1 - captured).prod()
            total += p * lived * (after[alive:] == 0).all()
        expected.append(np.log(total))
    np.testing.assert_allclose(tall.row_loglik(theta, np.arange(J)), expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["AR", "GaussianRandomWalk", "GARCH11", "MvNormal"])
def test_distributions_over_time(name):
    """The rows of PyMC's own densities of series are those that PyMC gives."""
    t = np.arange(T)
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        if name == "AR":
            rho = pm.Normal("rho", 0, 0.5, shape=3)
            pm.AR("y", rho, s, constant=True, init_dist=pm.Normal.dist(0, 2), observed=Y)
        elif name == "GaussianRandomWalk":
            pm.GaussianRandomWalk("y", 0.1, s, init_dist=pm.Normal.dist(0, 2), observed=Y)
        elif name == "GARCH11":
            a = pm.Beta("a", 2, 2)
            pm.GARCH11("y", omega=s, alpha_1=a / 2, beta_1=0.3, initial_vol=1.0, observed=Y)
        else:
            rho = pm.Uniform("rho", -1, 1)
            pm.MvNormal("y", np.zeros(T), cov=s**2 * rho ** abs(t[:, None] - t), observed=Y)
    tall = TallModel(model)
    assert tall.n_rows == J
    theta = 0.1 * np.arange(1, tall.size + 1)
    found = tall.row_loglik(theta, np.arange(J))
    [graph] = model.logp(vars=model.observed_RVs, sum=False)
    point = {
        v.name: theta[place].reshape(v.type.shape)
        for v, place in zip(tall.value_vars, tall.slices, strict=True)
    }
    expected = pm.pytensorf.compile(model.value_vars, graph, mode="FAST_COMPILE")(**point)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def recurrence(x, **given):
    """Return means of a model of rows that each read a loop over their own times."""
    with pm.Model() as model:
        rho = pm.Normal("rho")

        def step(x, before, rho):
            new = x + rho * before
            return (new, until(pt.all(new > 9))) if given.get("ends") else new

        means = pytensor.scan(
            step, sequences=[pt.as_tensor(x).T], outputs_info=[np.zeros(len(x))],
            non_sequences=[rho], return_updates=False,
        )  # fmt: skip
        pm.Normal("y", means[-1], 1, observed=np.zeros(len(x)))
    return model


@pytest.mark.parametrize(
    ("x", "given", "said"),
    [
        (np.ones((500, LONGEST + 1)), {}, f"{LONGEST + 1} steps, and up to {LONGEST} are followed"),
        (np.ones((500, T)), {"ends": True}, "ends on a condition"),
    ],
)
def test_loops_that_are_refused(x, given, said):
    with pytest.raises(pms.TallModelError, match="coupled by Scan") as error:
        pms.HMCECS(model=recurrence(x, **given))
    assert said in str(error.value)


@pytest.mark.costly(cases=1)
def test_draws_of_hidden_states():
    """Draws have the moments of the posterior that the forward algorithm gives."""
    units, times, moved = 1_500, 4, np.random.default_rng(7)
    state, y = moved.integers(0, 2, units), np.empty((units, times))
    for t in range(times):
        if t:
            leaves = moved.random(units) < np.array([0.2, 0.35])[state]
            state = np.where(leaves, 1 - state, state)
        y[:, t] = np.array([-1.0, 1.5])[state] + moved.normal(size=units)

    def likelihood(log_p, mean):
        last = scanned(log_p, emissions(mean, y))[-1]
        pm.Potential("ll", pt.logsumexp(last, axis=1).sum())

    with hidden(likelihood):
        idata = pm.sample(
            1_500, tune=500, step=pms.HMCECS(rng=1), chains=2, cores=1, random_seed=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip

    def log_density(x):
        p, mean = 1 / (1 + np.exp(-x[:2])), x[2:]
        P = np.array([[1 - p[0], p[0]], [p[1], 1 - p[1]]])
        e = stats.norm.pdf(y[:, :, None], mean)
        alpha = e[:, 0] / 2
        for t in range(1, times):
            alpha = (alpha @ P) * e[:, t]
        prior = 2 * np.log(p * (1 - p)).sum() + stats.norm.logpdf(mean, [-1, 1]).sum()
        return prior + np.log(alpha.sum(axis=1)).sum()

    def quantities(x):
        return np.column_stack([1 / (1 + np.exp(-x[:, :2])), x[:, 2:]])

    mean, sd = moments(log_density, np.array([-1.4, -0.6, -1.0, 1.5]), quantities, 4_000)
    for k in range(2):
        assert_moments(idata["posterior"]["leave"][..., k], mean[k], sd[k])
        assert_moments(idata["posterior"]["mean"][..., k], mean[2 + k], sd[2 + k])


def test_checks_of_what_rows_pick_are_conditions():
    """PyMC checks parameters of a distribution; states that are ordered are put together."""
    y = np.random.default_rng(8).poisson(2.0, (6, 30))
    with pm.Model() as model:
        rate = pm.Gamma(
            "rate", 2, 1, shape=2, initval=[1.0, 3.0],
            transform=pm.distributions.transforms.ordered,
        )  # fmt: skip
        emission = pm.logp(pm.Poisson.dist(rate), pt.as_tensor(y)[:, :, None])
        pm.Potential("units", pt.logsumexp(emission[1:].sum(axis=0) + emission[0], axis=1).sum())
    assert not units_of(model, "auto", "HMCECS", None)
    tall, logp = TallModel(model), model.compile_logp()
    assert tall.n_rows == 30
    theta = tall.ravel(model.initial_point())
    found = tall.logprior(theta) + tall.row_loglik(theta, slice(None)).sum()
    assert found == pytest.approx(float(logp(model.initial_point())), rel=1e-12)
