"""Chains of the minibatch Metropolis-Hastings steps: their draws, cost and warnings."""

import logging
import re
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

import numpy as np


class Chains(NamedTuple):
    """Draws of some parameters, shape (chains, draws, parameters), and what they cost."""

    name: str
    draws: np.ndarray
    stats: dict[str, np.ndarray]  # shape (chains, draws)
    seconds: float
    warnings: list[str]

    @property
    def share(self) -> float:
        """Mean share of the rows that a decision took."""
        return float(self.stats["data_share"].mean())

    @property
    def acceptance(self) -> float:
        return float(self.stats["accepted"].mean())

    def moments(self, batches=20):
        """Means and sds over all chains, with standard errors from means of batches of draws."""
        flat = np.concatenate(list(self.draws))
        parts = [p for chain in self.draws for p in np.array_split(chain, batches)]
        mean, sd = flat.mean(axis=0), flat.std(axis=0)
        squares = np.array([((p - mean) ** 2).mean(axis=0) for p in parts])
        means = np.array([p.mean(axis=0) for p in parts])
        root = np.sqrt(len(parts))
        return mean, sd, means.std(axis=0) / root, squares.std(axis=0) / root / (2 * sd)


@contextmanager
def _heard():
    """Collect the warnings that PyMC and the steps log."""
    messages: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    ear, logger = Ear(logging.WARNING), logging.getLogger("pymc")
    logger.addHandler(ear)
    try:
        yield messages
    finally:
        logger.removeHandler(ear)


def sample(
    name,
    step,
    model,
    var_names,
    *,
    draws,
    tune=0,
    chains=1,
    seed=1,
    initvals=None,
    keep_tuned=False,
):
    """Run a step through ``pm.sample`` on one core; `keep_tuned` puts the tuning draws in front."""
    import pymc as pm

    with model, _heard() as messages:
        start = perf_counter()
        idata = pm.sample(
            draws,
            tune=tune,
            step=step,
            chains=chains,
            cores=1,
            progressbar=False,
            random_seed=seed,
            initvals=initvals,
            compute_convergence_checks=False,
            discard_tuned_samples=not keep_tuned,
        )
        seconds = perf_counter() - start
    phases = ["warmup_", ""] if keep_tuned else [""]

    def joined(group, key):
        return np.concatenate([idata[phase + group][key].values for phase in phases], axis=1)

    columns = [joined("posterior", v) for v in var_names]
    columns = [c.reshape(*c.shape[:2], -1) for c in columns]
    stats = idata["sample_stats"]
    kept = {key: joined("sample_stats", key) for key in stats if stats[key].dtype != object}
    return Chains(name, np.concatenate(columns, axis=2), kept, seconds, messages)


def show_warnings(runs):
    """Print every warning once per run, but for those about few draws."""
    for run in runs:
        for message in dict.fromkeys(re.sub(r"\s+", " ", text) for text in run.warnings):
            if not message.startswith("Only "):
                print(f"{run.name} warned: {message}")
