"""Stochastic-gradient Langevin and Hamiltonian samplers beside BlackJAX's, n = 10^6, d = 30.

Logistic regression, batches of the same size; every chain starts at the mode. BlackJAX draws its
batches with replacement inside one compiled ``lax.scan`` (without, it would sort all rows at each
step) and keeps every k-th position, as ours does. Its SGHMC draws momenta anew every L steps, which
share one batch; ours does the same (symplectic, ``resample_every=L``, ``steps_per_batch=L``).
Control variates: BlackJAX has those of order 1 (``control_variates``), ours also those of order 2.
Precision is that of the rows; ours computes in double precision.

With equal settings the step size is that at which the dynamics make standard deviations 2% too
large without any noise of gradients. BlackJAX's SGHMC with control variates, whose noise is held
for L steps, runs with smaller ones too. "defaults" are our own step with no argument but the size
of the batch.

Compilation, set-up and our check on all rows after the last draw are not counted. Both use one
thread and are timed by the processor's clock; samplers take turns, and ratios are medians over the
turns. The bound is on effective draws per second, of our defaults (with control variates) over
the quickest of BlackJAX's whose standard deviations are at most 5% off, three Monte Carlo errors
aside, or over that of the smallest step size. Steps of equal settings are compared without a bound:
with plain gradients effective draws are too few to count.

Plain gradients are far noisier, so that their smaller step sizes show a bias nevertheless.

python tests/benchmarks/sg_peers.py
python tests/benchmarks/sg_peers.py --n 20000 --steps 4000 --turns 2
"""

import logging
import os
import sys
from time import perf_counter, process_time

import numpy as np
import pymc as pm
from _measure import QUIET, Checks, command_line, table
from _problems import logistic_model, logistic_rows
from _reference import exact_posterior
from arviz_stats.base import array_stats

import pymc_subsample as pms

PRIOR_SD = 1.0
# Of SGHMC.
STEPS, FRICTION = 10, 2.0
# Method, plain gradients or not: multiple of variance or sd, and steps per kept draw.
STEP_SIZES = {
    ("SGLD", False): (2e-3, 100),
    ("SGLD", True): (0.074, 20),
    ("SGHMC", False): (2e-3, 10 * STEPS),
    ("SGHMC", True): (0.31, STEPS),
}
# More step sizes of BlackJAX's, as shares of the first.
SMALLER = {("SGHMC", True): (1 / 3, 1 / 6, 1 / 15)}
SD_BOUND = 0.05


class Ours:
    """Chains of one of our samplers through ``pm.sample``."""

    def __init__(self, model, bits, mode, method, order, h, thin, friction, **settings):
        name = "plain" if order is None else f"order {order}"
        self.name = f"ours, {name}, float{bits}"
        self.model, self.mode = model, mode
        shared = {
            "batch_size": args.batch, "step_size": h, "control_variate_order": order,
            "metric": "identity", "transitions_per_draw": thin,
        }  # fmt: skip
        if method == "defaults":
            self.name = f"ours, defaults, float{bits}"
            shared = {"batch_size": args.batch}
        elif order is not None:
            shared["reference"] = {"beta": mode}
        begin = perf_counter()
        with model:
            if method == "defaults":
                self.step = settings["step"](**shared)
            elif method == "SGLD":
                self.step = pms.sgmcmc.SGLD(**shared)
            else:
                held = {"resample_every": STEPS, "steps_per_batch": STEPS}
                self.step = pms.sgmcmc.SGHMC(
                    friction=friction, integrator="symplectic", **held, **shared
                )
        self.thin = self.step.transitions_per_draw
        self.once = perf_counter() - begin

    def run(self, draws, seed):
        times, tune = [], draws // 5
        with self.model:
            idata = pm.sample(
                draws, tune=tune, step=self.step, chains=1, random_seed=seed, **QUIET,
                initvals={"beta": self.mode},
                callback=lambda trace, draw: times.append(process_time()),
            )  # fmt: skip
        # All draws but the last one, in whose time the chain is checked on all rows.
        seconds = (times[-2] - times[tune - 1]) * draws / (draws - 1)
        return idata["posterior"]["beta"].values[0], seconds


class BlackJAX:
    """Chains of one of BlackJAX's samplers."""

    def __init__(self, X, y, mode, method, control, h, thin, friction, x64, share=1.0):
        import blackjax
        import jax
        import jax.numpy as jnp
        from blackjax.sgmcmc import gradients

        self.x64, self.thin = x64, thin
        shrunk = f", step size / {1 / share:.0f}" if share < 1 else ""
        kind = "order 1" if control else "plain"
        self.name = f"BlackJAX, {kind}{shrunk}, float{64 if x64 else 32}"
        h *= share
        jax.config.update("jax_enable_x64", x64)
        n = len(X)

        def log_prior(beta):
            return -0.5 * jnp.sum(beta**2) / PRIOR_SD**2

        def log_likelihood(beta, row):
            x, y = row
            eta = x @ beta
            return y * eta - jax.nn.softplus(eta)

        estimator = gradients.grad_estimator(log_prior, log_likelihood, n)
        rows = jnp.asarray(X, dtype=float), jnp.asarray(y, dtype=float)
        begin = perf_counter()
        self.position = jnp.asarray(mode, dtype=float)
        if control:
            estimator = gradients.control_variates(estimator, self.position, rows)
        if method == "SGLD":
            algorithm, per_call = blackjax.sgld(estimator), 1
        else:
            algorithm, per_call = blackjax.sghmc(estimator, STEPS, alpha=friction), STEPS

        def step(state, key, rows):
            choice, move = jax.random.split(key)
            index = jax.random.randint(choice, (args.batch,), 0, n)
            batch = rows[0][index], rows[1][index]
            return algorithm.step(move, state, batch, h), None

        def draw(state, key, rows):
            keys = jax.random.split(key, thin // per_call)
            state, _ = jax.lax.scan(lambda s, k: step(s, k, rows), state, keys)
            return state, state

        def sample(state, keys, rows):
            return jax.lax.scan(lambda s, k: draw(s, k, rows), state, keys)

        self.rows, self.jitted = rows, {}
        self.sample, self.key = jax.jit(sample), jax.random.key(1)
        self.once = perf_counter() - begin

    def run(self, draws, seed):
        import jax

        jax.config.update("jax_enable_x64", self.x64)
        for count in (draws // 5, draws):
            self.key, key = jax.random.split(self.key)
            keys = jax.random.split(key, count)
            if count not in self.jitted:
                begin = perf_counter()
                self.jitted[count] = self.sample.lower(self.position, keys, self.rows).compile()
                self.once += perf_counter() - begin
            begin = process_time()
            self.position, found = self.jitted[count](self.position, keys, self.rows)
            self.position.block_until_ready()
            seconds = process_time() - begin
        return np.asarray(found, dtype=float), seconds


def compared(X, y, models, exact, method, control, checks):
    """Table of one method with or without control variates, and its bounds."""
    size, thin = STEP_SIZES[method, control]
    scale = np.exp(np.mean(np.log(exact.sd)))
    h = size * (scale**2 if method == "SGLD" else scale)
    shared = h, thin, FRICTION / scale
    same = 1 if control else None
    runs = [Ours(models[bits], bits, exact.mode, method, same, *shared) for bits in (64, 32)]
    step = {"step": getattr(pms.sgmcmc, method)}
    runs += [
        Ours(models[bits], bits, exact.mode, "defaults", 2, h, thin, None, **step)
        for bits in (64, 32)
    ]
    runs += [
        BlackJAX(X, y, exact.mode, method, control, *shared, x64, share)
        for share in (1.0, *SMALLER.get((method, control), ()))
        for x64 in (True, False)
    ]
    found = {run.name: [] for run in runs}
    for turn in range(args.turns):
        for run in runs:
            found[run.name].append(run.run(args.steps // run.thin, turn))
    lines, rates, errors, noise, times = [], {}, {}, {}, {}
    for run in runs:
        values = np.array([draws for draws, _ in found[run.name]])
        seconds = np.array([s for _, s in found[run.name]])
        effective = min(
            float(array_stats.ess(values[..., j], chain_axis=0, draw_axis=1, method="bulk"))
            for j in range(values.shape[-1])
        )
        times[run.name], rates[run.name] = seconds, effective / len(seconds) / seconds
        errors[run.name] = exact.errors(values.reshape(-1, values.shape[-1]))
        noise[run.name] = effective**-0.5
        lines.append([
            run.name, values.shape[0] * values.shape[1] * run.thin,
            1e6 * np.median(seconds) / args.steps, effective, np.median(rates[run.name]),
            *errors[run.name], run.once,
        ])  # fmt: skip
    kind = f"{'with control variates' if control else 'plain gradients'}, batches of {args.batch:,}"
    print(f"\n{method}, {kind}: step size {h:.3g}, every {thin}th position kept")
    table(
        ["", "steps", "us / step", "min ESS", "ESS/s", "mean error / sd", "sd error", "s, once"],
        lines,
    )
    for bits in (64, 32):
        peers = [r.name for r in runs if isinstance(r, BlackJAX) and r.name.endswith(str(bits))]
        right = [p for p in peers if errors[p][1] <= SD_BOUND + 3 * noise[p] / 2**0.5]
        peer = max(right or peers[-1:], key=lambda p: np.median(rates[p]))
        mine = [r.name for r in runs if isinstance(r, Ours) and r.name.endswith(str(bits))]
        what = f"batch {args.batch}: {method}, {{}}, over {peer}"
        print(f"steps per second, {mine[0]} over {peers[0]}:",
              f"{np.median(times[peers[0]] / times[mine[0]]):.3g}")  # fmt: skip
        ratios = [np.median(rates[name] / rates[peer]) for name in mine]
        checks.at_least(f"{what.format(mine[-1])}: effective draws per second", ratios[-1], 2)
        for j, moment in enumerate(("means", "sds")):
            # Four errors of the worst of the coefficients.
            allowed = 4 * np.hypot(noise[mine[-1]], noise[peer])
            checks.at_most(f"{what.format(mine[-1])}: error of {moment}, less the other's",
                           errors[mine[-1]][j] - errors[peer][j], allowed)  # fmt: skip


def main():
    logging.getLogger("pymc.subsample").setLevel(logging.WARNING)
    print(
        f"Logistic regression, n = {args.n:,}, d = {args.d}, batches of {args.batches} rows; SGHMC "
        f"with friction {FRICTION:g} / sd and momenta drawn anew every {STEPS} steps"
    )
    X, y = logistic_rows(args.n, args.d)
    exact = exact_posterior(X, y, PRIOR_SD, pairs=args.pairs)
    print(exact)
    models = {bits: logistic_model(X.astype(f"f{bits // 8}"), y, PRIOR_SD) for bits in (64, 32)}
    checks = Checks()
    for batch in args.batches:
        args.batch = batch
        for method, control in STEP_SIZES:
            compared(X, y, models, exact, method, control, checks)
            sys.stdout.flush()
    checks.exit()


if __name__ == "__main__":
    parser = command_line(__doc__, n=1_000_000, d=30, turns=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--steps", type=int, default=100_000, help="per turn, after as many / 5")
    parser.add_argument("--pairs", type=int, default=300, help="of the exact posterior's draws")
    args = parser.parse_args()
    threads = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {threads}"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main()
