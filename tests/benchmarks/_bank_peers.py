"""NumPyro's HMCECS on the bank: the same rows, priors, subsample sizes and bad settings."""

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import xarray as xr
from _bank import CLASSES, GROUPS, Problem
from _bank_references import load, moments
from _bank_runs import BAD, DRAWS, FEW_ROWS, HEALTHY, TUNE, Cell, cell, convergence, errors

METHOD = "NumPyro's HMCECS"
# NumPyro's Taylor proxy has order 1 or 2. It takes the number of rows from its user in any case, so
# that there is no setting in which it would choose it.
SETTINGS = (HEALTHY, BAD[0], BAD[1], BAD[2], BAD[4], BAD[6])
BLOCKS = 10
CHAINS = 2
# 255 leapfrog steps at most: with the default of 1,023 a bad setting takes half an hour.
TREE_DEPTH = 8


def _likelihoods():
    """By problem: a function that samples the priors and returns that of a row's distribution."""
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from numpyro import sample

    def coefficients(rows, scale, shape=None):
        shape = shape or rows["X"].shape[1:]
        return sample("beta", dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))

    def logistic(rows):
        beta = coefficients(rows, 2.0)
        return lambda r: dist.Bernoulli(logits=r["X"] @ beta)

    def poisson(rows):
        beta = coefficients(rows, 2.0)
        return lambda r: dist.Poisson(r["exposure"] * jnp.exp(r["X"] @ beta))

    def negative_binomial(rows):
        beta, alpha = coefficients(rows, 2.0), sample("alpha", dist.Exponential(0.5))
        return lambda r: dist.NegativeBinomial2(jnp.exp(r["X"] @ beta), alpha)

    def gamma(rows):
        beta, shape = coefficients(rows, 2.0), sample("shape", dist.Gamma(2.0, 1.0))
        return lambda r: dist.Gamma(shape, shape / jnp.exp(r["X"] @ beta))

    def linear(rows):
        beta, sigma = coefficients(rows, 5.0), sample("sigma", dist.HalfNormal(5.0))
        return lambda r: dist.Normal(r["X"] @ beta, sigma)

    def categorical(rows):
        beta = coefficients(rows, 2.0, (rows["X"].shape[1], CLASSES - 1))

        def of(r):
            eta = r["X"] @ beta
            return dist.Categorical(logits=jnp.concatenate([0 * eta[:, :1], eta], axis=1))

        return of

    def student_t(rows):
        beta, sigma = coefficients(rows, 5.0), sample("sigma", dist.HalfNormal(5.0))
        nu = sample("nu", dist.Gamma(2.0, 0.1))
        return lambda r: dist.StudentT(nu, r["X"] @ beta, sigma)

    def intercepts(rows):
        mu, tau = sample("mu", dist.Normal(0.0, 1.0)), sample("tau", dist.HalfNormal(1.0))
        a = sample("a", dist.Normal(mu, tau).expand((GROUPS,)).to_event(1))
        b = sample("b", dist.Normal(0.0, 1.0))
        return lambda r: dist.Bernoulli(logits=a[r["group"]] + b * r["x"])

    def mixture(rows):
        """Without the order of the means, which a chain at one of two equal modes keeps."""
        w = sample("w", dist.Beta(2.0, 2.0))
        mu = sample("mu", dist.Normal(0.0, 3.0).expand((2,)).to_event(1))
        sigma = sample("sigma", dist.HalfNormal(2.0).expand((2,)).to_event(1))
        parts = dist.Categorical(probs=jnp.stack([w, 1 - w])), dist.Normal(mu, sigma)
        return lambda r: dist.MixtureSameFamily(parts[0], parts[1].expand((len(r["y"]), 2)))

    def spline(rows):
        tau, size = sample("tau", dist.HalfNormal(2.0)), rows["B"].shape[1]
        steps = jnp.minimum(*jnp.meshgrid(jnp.arange(size), jnp.arange(size)))
        covariance = 9.0 + tau**2 * steps + 1e-10 * jnp.eye(size)
        w = sample("w", dist.MultivariateNormal(jnp.zeros(size), covariance))
        sigma = sample("sigma", dist.HalfNormal(1.0))
        return lambda r: dist.Normal(r["B"] @ w, sigma)

    def weibull(rows):
        beta, alpha = coefficients(rows, 2.0), sample("alpha", dist.Gamma(2.0, 1.0))
        return lambda r: dist.RightCensoredDistribution(
            dist.Weibull(jnp.exp(r["X"] @ beta), alpha), r["time"] >= r["end"]
        )

    def network(rows):
        """Without the order of the output weights, as for the mixture."""
        W = sample("W", dist.Normal(0.0, 1.0).expand((2, 2)).to_event(2))
        b, v = (sample(n, dist.Normal(0.0, 1.0).expand((2,)).to_event(1)) for n in ("b", "log_v"))
        c, sigma = sample("c", dist.Normal(0.0, 1.0)), sample("sigma", dist.HalfNormal(1.0))
        return lambda r: dist.Normal(c + jnp.tanh(r["X"] @ W + b) @ jnp.exp(v), sigma)

    return {
        f.__name__: f
        for f in (
            logistic, poisson, negative_binomial, gamma, linear, categorical, student_t, intercepts,
            mixture, spline, weibull, network,
        )
    }  # fmt: skip


def runs(problem: Problem, rows: int, seeds: int = 1) -> Iterator[Cell]:
    """Run a problem in all settings with subsamples of as many rows as ours took."""
    for setting in SETTINGS:
        spoiled = setting.startswith("outlier")
        reference = load(problem, spoiled)
        point = {BAD[0]: reference.far.get("each"), BAD[1]: reference.far.get("joint")}.get(
            setting, reference.center
        )
        m = FEW_ROWS if setting == BAD[4] else rows
        order = 1 if setting == BAD[2] else 2
        for seed in range(1, 1 + (seeds if setting == HEALTHY else 1)):
            start = perf_counter()
            posterior = _sample(problem, problem.rows(spoiled), point, m, order, seed)
            names = list(dict.fromkeys(n.split("[")[0] for n in reference.moments.names))
            found = errors(moments(posterior, names), reference.moments)
            unmixed = convergence(posterior)
            status = "fail" if unmixed else "pass"
            found = *found, status, ", ".join(unmixed)
            yield cell(METHOD, problem, setting, seed, m, found, perf_counter() - start)


def _sample(problem, rows, point, m, order, seed) -> xr.Dataset:
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import HMCECS, MCMC, NUTS

    numpyro.enable_x64()
    priors = _likelihoods()[problem.name]
    rows = {key: jnp.asarray(column) for key, column in rows.items()}
    y = rows["time" if problem.name == "weibull" else "y"]

    def model(rows, y):
        of = priors(rows)
        with numpyro.plate("rows", len(y), subsample_size=m) as index:
            batch = {key: column[index] for key, column in rows.items()}
            numpyro.sample("y", of(batch), obs=y[index])

    start = {key: jnp.asarray(value, dtype=float) for key, value in point.items()}
    kernel = HMCECS(
        NUTS(model, max_tree_depth=TREE_DEPTH),
        num_blocks=BLOCKS,
        proxy=HMCECS.taylor_proxy(start, degree=order),
    )
    mcmc = MCMC(
        kernel, num_warmup=TUNE, num_samples=DRAWS, num_chains=CHAINS,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(seed), rows, y)
    draws = mcmc.get_samples(group_by_chain=True)
    return xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_{k}" for k in range(value.ndim - 2))), value)
            for name, value in ((k, np.asarray(v)) for k, v in draws.items())
        }
    )
