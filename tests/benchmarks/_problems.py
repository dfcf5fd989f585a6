"""Data and models of the benchmarks."""

import os
from pathlib import Path

import numpy as np
import pymc as pm


def logistic_rows(n, d, seed=20, chunk=2**17, dtype=np.float64):
    """Synthetic logistic regression, intercept first; chunked, so peak memory is the data's."""
    rng = np.random.default_rng(seed)
    beta = rng.normal(0, 0.3, d)
    X, y = np.empty((n, d), dtype=dtype), np.empty(n, dtype=np.int8)
    for start in range(0, n, chunk):
        rows = X[start : start + chunk]
        rows[:, 0] = 1
        rows[:, 1:] = rng.normal(size=(len(rows), d - 1))
        y[start : start + chunk] = rng.random(len(rows)) < 1 / (1 + np.exp(-(rows @ beta)))
    return X, y


def covertype_rows():
    """Covertype, class 2 against the rest: intercept and standardised columns, in file order."""
    with np.load(Path(os.environ["PYMC_SUBSAMPLE_DATA"]) / "covtype.npz") as data:
        quantitative = (data["quant"] - data["quant_mean"]) / data["quant_sd"]
        y = data["y"].astype(np.int8)
    return np.column_stack([np.ones(len(y)), quantitative]), y


def logistic_model(X, y, prior_sd):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    return model


def poisson_model(X, y, prior_sd):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd, shape=X.shape[1])
        pm.Poisson("y", mu=pm.math.exp(pm.Data("X", X) @ beta), observed=y)
    return model


def linear_model(X, y, prior_sd):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd, shape=X.shape[1])
        sigma = pm.HalfNormal("sigma", prior_sd)
        pm.Normal("y", pm.Data("X", X) @ beta, sigma, observed=y)
    return model
