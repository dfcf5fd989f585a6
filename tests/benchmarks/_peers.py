"""Other samplers on one logistic regression: NumPyro's HMCECS; nutpie and PyMC on all rows."""

from time import perf_counter

import numpy as np
from _measure import QUIET, Clock, Run
from _problems import logistic_model


def numpyro_hmcecs(
    X,
    y,
    prior_sd,
    mode,
    *,
    m=1000,
    blocks=100,
    tune=1000,
    draws=1000,
    seed=1,
    x64=True,
    time=perf_counter,
):
    """NUTS inside, order-2 Taylor proxy, started at the mode, whose search is not timed.

    A gradient counts as two evaluations of its rows, the refreshed subset as one more gradient.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import HMCECS, MCMC, NUTS

    numpyro.enable_x64(x64)

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, prior_sd).expand(X.shape[1:]).to_event(1))
        with numpyro.plate("rows", len(X), subsample_size=m) as index:
            numpyro.sample("y", dist.Bernoulli(logits=X[index] @ beta), obs=y[index])

    reference = {"beta": jnp.asarray(mode, dtype=float)}
    X, y = jnp.asarray(X, dtype=float), jnp.asarray(y, dtype=float)
    start = time()
    kernel = HMCECS(NUTS(model), num_blocks=blocks, proxy=HMCECS.taylor_proxy(reference, degree=2))
    mcmc = MCMC(kernel, num_warmup=tune, num_samples=draws, progress_bar=False)
    mcmc.warmup(jax.random.key(seed), X, y, init_params=reference)

    def sample():
        begin = time()
        mcmc.run(mcmc.post_warmup_state.rng_key, X, y, extra_fields=("hmc_state.num_steps",))
        values = np.asarray(mcmc.get_samples()["beta"], dtype=float)
        seconds = time() - begin
        steps = np.asarray(mcmc.get_extra_fields()["hmc_state.num_steps"])
        return values, seconds, 2 * m * float((steps + 1).sum())

    first, _, evaluations = sample()  # compiles the loop
    total = time() - start
    mcmc.post_warmup_state = mcmc.last_state
    second, seconds, more = sample()
    return Run(
        f"NumPyro HMCECS, float{64 if x64 else 32}",
        np.concatenate([first, second]),
        2 * seconds,
        total + seconds,
        f"m = {m}, {blocks} blocks, mode given",
        evaluations=evaluations + more,
    )


def nutpie_all_rows(
    X,
    y,
    prior_sd,
    *,
    n_pilot=20_000,
    tune=1000,
    draws=1000,
    full_draws=10,
    seed=1,
    time=perf_counter,
):
    """nutpie on all rows, projected where a whole run is unaffordable.

    The posterior of ``n_pilot`` rows has the same shape but is cheap: it gives the effective draws
    and the gradients that a run takes. A short run on all rows gives the time per gradient. The
    projected cost is the product.
    """
    import nutpie

    def run(rows, draws, tune):
        start = time()
        compiled = nutpie.compile_pymc_model(logistic_model(X[:rows], y[:rows], prior_sd))
        compiling = time() - start
        start = time()
        idata = nutpie.sample(
            compiled, draws=draws, tune=tune, chains=1, cores=1, seed=seed, progress_bar=False
        )
        seconds = time() - start
        gradients = [
            int(idata[g]["n_steps"].sum()) for g in ("sample_stats", "warmup_sample_stats")
        ]
        return idata["posterior"]["beta"].values[0], compiling, seconds, gradients

    values, compiling, seconds, (drawing, warming) = run(min(n_pilot, len(X)), draws, tune)
    note = f"{drawing / draws:.1f} gradients per draw"
    projected = len(X) > n_pilot
    if projected:
        _, compiling, seconds, gradients = run(len(X), full_draws, full_draws)
        note += f"; projected from {sum(gradients)} gradients on all rows and a run on {n_pilot:,}"
    else:
        gradients = [drawing, warming]
    per_gradient = seconds / sum(gradients)
    total = compiling + (drawing + warming) * per_gradient
    return Run(
        "nutpie, all rows", values, drawing * per_gradient, total, note, projected,
        2.0 * len(X) * drawing,
    )  # fmt: skip


def pymc_all_rows(X, y, prior_sd, *, tune=1000, draws=1000, seed=1, time=perf_counter):
    """PyMC's own NUTS, one chain."""
    import pymc as pm

    start = time()
    with logistic_model(X, y, prior_sd):
        clock = Clock(time)
        idata = pm.sample(
            draws, tune=tune, chains=1, nuts_sampler="pymc", callback=clock, random_seed=seed,
            **QUIET,
        )  # fmt: skip
    steps = int(idata["sample_stats"]["n_steps"].sum())
    return Run(
        "PyMC NUTS, all rows", idata["posterior"]["beta"].values[0], clock.seconds, time() - start,
        f"{steps / draws:.1f} gradients per draw", evaluations=2.0 * len(X) * steps,
    )  # fmt: skip
