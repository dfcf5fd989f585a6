"""What divergences hide, against chains that are kept out of a region whose mass is known."""

import numpy as np
import pytest
import scipy.stats

from pymc_subsample.diagnostics.divergences import effective_draws, loss


def kept_out(step, edge, draws, seed=0):
    """A Metropolis chain on a standard normal that diverges wherever it proposes beyond `edge`.

    `step` is the scale of its random walk; None proposes from the normal itself.
    """
    rng = np.random.default_rng(seed)
    z, u = rng.normal(size=draws), np.log(rng.random(draws))
    x, before, path = 0.0, [], np.empty(draws)
    for t in range(draws):
        new = z[t] if step is None else x + step * z[t]
        accepted = step is None or u[t] < 0.5 * (x**2 - new**2)
        if accepted and new > edge:
            before.append(x)
        elif accepted:
            x = new
        path[t] = x
    return path[:, None], np.reshape(before, (-1, 1))


def found(path, before):
    thinned = path[:: len(path) // 512]
    return loss(len(before), len(path), before, thinned, path.mean(axis=0), path.std(axis=0))


@pytest.mark.parametrize("edge", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("step", [None, 0.5, 1.5])
def test_the_missing_mass_is_about_that_of_the_region(step, edge):
    path, before = kept_out(step, edge, 8_000)
    mass = scipy.stats.norm.sf(edge)
    assert mass / 4 < found(path, before).share < 8 * mass


@pytest.mark.parametrize("edge", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("step", [None, 0.5, 1.5])
def test_errors_are_no_larger_than_what_may_be_hidden(step, edge):
    """Means and standard deviations of a normal cut off at the edge."""
    path, before = kept_out(step, edge, 8_000)
    cut = scipy.stats.truncnorm(-np.inf, edge)
    wrong = max(-cut.mean() / 0.1, (1 - cut.std()) / 0.05)
    largest = found(path, before).excess(3.0)
    assert largest > 1 or wrong < 1
    assert largest > wrong or wrong < 0.2


def test_few_divergences_in_a_long_run_pass():
    rng = np.random.default_rng(1)
    path = rng.normal(size=(2000, 3))
    few = found(path, path[:4])
    assert few.excess(3.0) < 1
    assert found(path, path[:0]).excess() == 0


def test_as_many_fail_where_the_chain_mixes_slowly():
    """A tenth of the draws of a funnel's scale are effective, and all are on one side."""
    path, _ = kept_out(0.15, np.inf, 2000)
    assert effective_draws(path[::4], 2000) < 200
    assert found(path, np.sort(path, axis=0)[:10]).excess() > 1


def test_chains_that_never_move_have_lost_everything():
    still = np.zeros((100, 2))
    assert loss(3, 100, still[:3], still, np.zeros(2), np.zeros(2)).excess() == np.inf
