"""Full-data posteriors of the bank, by NUTS on all rows, kept in ``bank_references.json``.

They are made anew by ``bank.py --references``, with nutpie, and belong to data of one fingerprint.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from _bank import Problem, fingerprint
from arviz_stats.base import array_stats

from pymc_subsample.graph.numpy_functions import numpy_function

FILE = Path(__file__).with_name("bank_references.json")
DISTANCE = 10.0
DRAWS, TUNE, CHAINS, SEED = 3_000, 1_000, 4, 20


@dataclass(frozen=True)
class Moments:
    """Means and sds of a posterior's parameters, with Monte Carlo standard errors.

    Attributes
    ----------
    names : list of str
        Elements of the free variables.
    mean, sd, mean_error, sd_error : ndarray, shape (d,)
    ess, rhat : float
        Smallest of bulk and tail effective draws, largest R-hat.
    """

    names: list[str]
    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray
    ess: float
    rhat: float


@dataclass(frozen=True)
class Reference:
    """Full-data posterior of a problem.

    Attributes
    ----------
    moments : Moments
    center : dict
        The posterior mean in unconstrained space, as values of the free variables.
    far : dict of dict
        Points 10 sds from it: "each" parameter by that much, and "joint": the vector of parameters
        in a random direction.
    """

    moments: Moments
    center: dict[str, np.ndarray]
    far: dict[str, dict[str, np.ndarray]]


def moments(posterior: xr.Dataset, names: list[str]) -> Moments:
    """Moments of the free variables' elements from draws (chain, draw, ...)."""
    labels, columns = [], []
    for name in names:
        values = posterior[name].values
        flat = values.reshape(*values.shape[:2], -1)
        labels += [name] if values.ndim == 2 else [f"{name}[{k}]" for k in range(flat.shape[2])]
        columns += [flat[..., k] for k in range(flat.shape[2])]

    def each(statistic, **kwargs):
        return np.array([statistic(c, chain_axis=0, draw_axis=1, **kwargs) for c in columns])

    return Moments(
        labels,
        np.array([c.mean() for c in columns]),
        np.array([c.std() for c in columns]),
        each(array_stats.mcse, method="mean"),
        each(array_stats.mcse, method="sd"),
        float(
            min(
                each(array_stats.ess, method="bulk").min(),
                each(array_stats.ess, method="tail", prob=(0.05, 0.95)).min(),
            )
        ),
        float(each(array_stats.rhat, method="rank").max()),
    )


def full_data(problem: Problem, outlier: bool) -> Reference:
    """Sample the posterior of all rows.

    Chains start at the posterior mode: with tall data a start that is a fixed distance away is
    hundreds of standard deviations off, where an outlier can hold a chain for as long as it runs.
    """
    import nutpie

    import pymc_subsample as pms

    model = problem.model(problem.rows(outlier))
    step = pms.HMCECS(model=model, subsample_size=100)
    mode = _values(model, step.expansion.values(step.reference.theta))
    compiled = nutpie.compile_pymc_model(
        model, backend="jax", gradient_backend="jax", initial_points=mode, jitter_rvs=set()
    )
    idata = nutpie.sample(
        compiled, draws=DRAWS, tune=TUNE, chains=CHAINS, cores=2, seed=SEED,
        adaptation="low_rank", progress_bar=False,
    )  # fmt: skip
    posterior = idata["posterior"].to_dataset()
    center, far = _points(model, posterior)
    return Reference(moments(posterior, _names(model)), center, far)


def _names(model: pm.Model) -> list[str]:
    return [rv.name for rv in model.free_RVs]


def _values(model: pm.Model, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Values of the free variables at a point of unconstrained space, shape (d,)."""
    values, start = [], 0
    initial = model.initial_point()
    for value_var in model.value_vars:
        shape = initial[value_var.name].shape
        size = int(np.prod(shape, dtype=int))
        values.append(theta[start : start + size].reshape(shape))
        start += size
    found = numpy_function(model.value_vars, model.replace_rvs_by_values(model.free_RVs))(*values)
    return dict(zip(_names(model), found, strict=True))


def _points(model: pm.Model, posterior: xr.Dataset):
    """Centre and far points, from draws in unconstrained space."""
    flat = []
    for rv in model.free_RVs:
        draws = posterior[rv.name].values
        draws = draws.reshape(-1, *draws.shape[2:])
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            draws = transform.forward(draws, *rv.owner.inputs).eval()
        flat.append(draws.reshape(len(draws), -1))
    theta = np.concatenate(flat, axis=1)
    mean, root = theta.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(theta.T)))
    rng = np.random.default_rng(SEED)
    signs, direction = rng.choice([-1.0, 1.0], len(mean)), rng.normal(size=len(mean))
    each = DISTANCE * signs * theta.std(axis=0)
    joint = DISTANCE * root @ (direction / np.linalg.norm(direction))
    far = {"each": mean + each, "joint": mean + joint}
    return _values(model, mean), {key: _values(model, point) for key, point in far.items()}


def save(problem: Problem, outlier: bool, reference: Reference, file: Path = FILE):
    """Add a reference to the file, or replace it."""
    stored = json.loads(file.read_text()) if file.exists() else {}
    found = reference.moments

    def plain(values):
        return {k: np.asarray(v).tolist() for k, v in values.items()}

    stored[_key(problem, outlier)] = {
        "data": fingerprint(problem.rows(outlier)),
        "seed": SEED,
        "names": found.names,
        **{k: getattr(found, k).tolist() for k in ("mean", "sd", "mean_error", "sd_error")},
        "ess": found.ess,
        "rhat": found.rhat,
        "center": plain(reference.center),
        "far": {k: plain(v) for k, v in reference.far.items()},
    }
    lines = [f"{json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load(problem: Problem, outlier: bool, file: Path = FILE) -> Reference:
    """Read a reference; refuse one of other data."""
    stored = json.loads(file.read_text()) if file.exists() else {}
    key = _key(problem, outlier)
    if key not in stored:
        raise FileNotFoundError(f"No reference of {key!r} in {file}. Run bank.py --references.")
    entry = stored[key]
    if entry["data"] != fingerprint(problem.rows(outlier)):
        raise ValueError(
            f"The reference of {key!r} in {file} belongs to other data. Run bank.py --references."
        )

    def arrays(values):
        return {k: np.array(v) for k, v in values.items()}

    return Reference(
        Moments(
            entry["names"],
            *(np.array(entry[k]) for k in ("mean", "sd", "mean_error", "sd_error")),
            entry["ess"],
            entry["rhat"],
        ),
        arrays(entry["center"]),
        {k: arrays(v) for k, v in entry["far"].items()},
    )


def _key(problem: Problem, outlier: bool) -> str:
    return f"{problem.name}, outlier" if outlier else problem.name
