"""Compile what all models share, before the first of them is sampled.

``python -m pymc_subsample.compile`` in the build of a container, or in CI, spares the first run on
a machine most of its compilation. Transitions are the same machine code for all models, kept on
disk; small models are sampled here, so that what is compiled is what runs need.
"""

import argparse
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter

import numpy as np

from pymc_subsample.compiled import cache
from pymc_subsample.samplers.registry import SAMPLERS, step_of

# Enough for a subsample to be a small part of the rows.
_ROWS, _GROUPS = 5_000, 20


def _logistic(rng: np.random.Generator) -> None:
    import pymc as pm

    X = rng.standard_normal((_ROWS, 3))
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=3)
    pm.Bernoulli("y", logit_p=a + X @ b, observed=rng.integers(0, 2, _ROWS))


def _groups(rng: np.random.Generator) -> None:
    import pymc as pm

    group = rng.integers(0, _GROUPS, _ROWS)
    counts = rng.poisson(np.exp(0.3 * rng.standard_normal(_GROUPS))[group])
    level, scale = pm.Normal("level", 0, 2), pm.HalfNormal("scale", 1)
    z = pm.Normal("z", 0, 1, shape=_GROUPS)
    pm.Poisson("y", pm.math.exp(level + scale * z[group]), observed=counts)


def _slopes(rng: np.random.Generator) -> None:
    import pymc as pm

    group, x = rng.integers(0, _GROUPS, _ROWS), rng.standard_normal(_ROWS)
    drawn = 0.5 * rng.standard_normal((_GROUPS, 2))[group]
    y = drawn[:, 0] + drawn[:, 1] * x + rng.standard_normal(_ROWS)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=2))
    z, level = pm.Normal("z", 0, 1, shape=(_GROUPS, 2)), pm.Normal("level", 0, 2, shape=2)
    effect = (level + z @ chol.T)[group]
    pm.Normal("y", effect[:, 0] + effect[:, 1] * x, pm.HalfNormal("sigma", 1), observed=y)


# Those that `pms.auto` chooses from move in coordinates of effects, each kind with code of its own.
_OF_AUTO: dict[str, tuple[Callable, ...]] = dict.fromkeys(
    ("HMCECS", "ScalableMH"), (_logistic, _groups, _slopes)
)
# Its code is compiled when it is imported, and it takes other models.
_MODELS: dict[str, tuple[Callable, ...]] = {**_OF_AUTO, "AusterityGibbs": ()}


def compiled(sampler: str) -> float:
    """Compile what one sampler needs; return the seconds that it took."""
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.ERROR)
    start, step = perf_counter(), step_of(sampler)
    for build in _MODELS.get(sampler, (_logistic,)):
        with pm.Model() as model:
            build(np.random.default_rng(1))
        pm.sample(
            draws=20, tune=100, chains=1, cores=1, step=step(model=model), model=model,
            random_seed=1, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    return perf_counter() - start


def compile_all(samplers: Iterable[str], workers: int) -> None:
    """Compile what several samplers need, in processes, and print what was done.

    Raises
    ------
    SystemExit
        If compiled code cannot be kept.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(compiled, sampler): sampler for sampler in samplers}
        for done in as_completed(running):
            print(f"{running[done]}: {done.result():.0f} s", flush=True)
    files = [file for file in cache.directory().glob("*") if file.is_file()]
    if not files:
        raise SystemExit(f"Nothing could be kept in {cache.ROOT}, as was said above.")
    size = sum(file.stat().st_size for file in files)
    print(f"{size / 1e6:.0f} MB of machine code in {cache.directory()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m pymc_subsample.compile",
        description="Compile what all models share, and keep it for later runs on this machine.",
    )
    parser.add_argument(
        "samplers",
        nargs="*",
        metavar="sampler",
        help=f"default: {' '.join(_OF_AUTO)}, from which pms.auto chooses; or of "
        f"{', '.join(SAMPLERS)}",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count(),
        help="processes at a time (default: one for each processor)",
    )
    args = parser.parse_args()
    if unknown := [name for name in args.samplers if name not in SAMPLERS]:
        parser.error(f"there is no sampler {unknown[0]!r}; there are {', '.join(SAMPLERS)}")
    if args.workers < 1:
        parser.error(f"--workers must be at least 1, not {args.workers}")
    compile_all(args.samplers or _OF_AUTO, args.workers)
