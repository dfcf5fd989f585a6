"""Source code of a model's functions on the linear-predictor path; see `kernels.model`."""

from dataclasses import dataclass

from pymc_subsample.bounds.coefficients import multiplicity
from pymc_subsample.expansion.row_layout import FLAT, AffineMap, RowLayout

_ROWS = "dense, dense_scale, gather, gather_scale, offset, offset_scale"
_BACK = "dense, dense_scale, gather, gather_scale, const, const_scale"


@dataclass
class LoopCode:
    """Code for a row's values: lines before the loop over rows, and the line inside it."""

    before: list[str]
    call: str


def _constants(affine: AffineMap, point: str, prefix: str, which: range) -> list[str]:
    """Code for what predictors `which` have in common in all rows, at a point of phi."""
    lines = []
    for e in which:
        terms = [repr(float(affine.base[e]))]
        for (predictor, element), scale in zip(affine.const, affine.const_scale, strict=True):
            if predictor == e:
                terms.append(f"{float(scale)!r} * {point}[{element}]")
        lines.append(f"    {prefix}{e} = {' + '.join(terms)}")
    return lines


def _predict(affine: AffineMap, at: RowLayout, point: str) -> list[str]:
    """Code that computes every predictor of a batch at a point of phi."""
    return [
        "    m = rows.shape[1]",
        f"    eta = np.empty(({at.n_varying}, m))",
        *_constants(affine, point, "x", range(at.n_predictors)),
        "    for i in range(m):",
        *(f"        eta[{e}, i] = x{e}" for e in range(at.n_varying)),
        *([] if at.n_varying else ["        pass"]),
        f"    predict({_ROWS}, {point}, rows, eta)",
    ]


def loglik(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Log-likelihoods alone."""
    lines = ["def loglik(phi, rows, value):", *_predict(affine, at, "phi"), *row.before]
    return "\n".join([*lines, "    for i in range(m):", row.call, "        value[i] = y0"])


def residual(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Residuals alone."""
    lines = ["def residual(phi, center, rows, d):", *_residuals(affine, at, row)]
    lines += ["        q = 0.0", *_proxy(at), f"        d[i] = y0 - rows[{at.level}, i] - q"]
    return "\n".join(lines)


def _residuals(affine: AffineMap, at: RowLayout, row: LoopCode) -> list[str]:
    """Code up to the predictors' distances z from the reference, inside the loop over rows."""
    shared = range(at.n_varying, at.n_predictors)
    return [
        *_predict(affine, at, "phi"),
        *_constants(affine, "center", "star", shared),
        *(f"    z{e} = x{e} - star{e}" for e in shared),
        *row.before,
        "    for i in range(m):",
        row.call,
        *(f"        z{e} = eta[{e}, i] - rows[{at.star + e}, i]" for e in range(at.n_varying)),
    ]


def _proxy(at: RowLayout) -> list[str]:
    """Code that adds the terms of order 1 to 3 of the control variate to q."""
    lines = []
    for e in range(at.n_predictors) if at.order else ():
        bend = _bend(at, e)
        half = f" + 0.5 * ({bend})" if bend else ""
        lines.append(f"        q += z{e} * (rows[{at.slope + e}, i]{half})")
    for which, column in at.derivatives(3).items():
        product = " * ".join(f"z{e}" for e in which)
        lines.append(f"        q += rows[{column}, i] * {product} / {multiplicity(which)!r}")
    return lines


def _bend(at: RowLayout, e: int) -> str:
    """Code for element e of the product of a row's Hessian with z."""
    columns, size = at.derivatives(2), range(at.n_predictors)
    terms = [f"rows[{columns[min(e, f), max(e, f)]}, i] * z{f}" for f in size]
    return " + ".join(terms) if at.order >= 2 else ""


def _slope(at: RowLayout, e: int) -> str:
    """Code for the control variate's derivative in predictor e."""
    slope = [f"rows[{at.slope + e}, i]"] if at.order >= 1 else []
    return f"({' + '.join([*slope, *filter(None, [_bend(at, e)])]) or '0.0'})"


def with_gradient(affine: AffineMap, at: RowLayout, row: LoopCode, name: str, weigh: str) -> str:
    """Residuals, and the gradient of an estimate by them, as a function of `kernels.linear` has it.

    The perturbed estimate, the block-Poisson one, or what bright rows add.
    """
    lines = [
        f"def {name}(phi, rows, center, weight, setting, d, grad):",
        f"    v = np.empty(({at.n_predictors}, rows.shape[1]))",
        *_residuals(affine, at, row),
        f"        q = rows[{at.level}, i]",
        *_proxy(at),
    ]
    lines += [f"        v[{e}, i] = y{e + 1} - {_slope(at, e)}" for e in range(at.n_predictors)]
    lines += [
        "        d[i] = y0 - q",
        f"    {weigh}(weight, setting, d, v)",
        f"    backproject({_BACK}, v, rows, grad)",
    ]
    return "\n".join(lines)


def gradient(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Gradient of the residuals' sum; the row's values are derivatives alone."""
    lines = [
        "def gradient(phi, rows, center, weight, grad):",
        f"    v = np.empty(({at.n_predictors}, rows.shape[1]))",
        *_residuals(affine, at, row),
    ]
    slopes = [f"weight * (y{e} - {_slope(at, e)})" for e in range(at.n_predictors)]
    lines += [f"        v[{e}, i] = {slope}" for e, slope in enumerate(slopes)]
    return "\n".join([*lines, f"    backproject({_BACK}, v, rows, grad)"])


def change(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Change of the residuals."""
    shared = range(at.n_varying, at.n_predictors)
    lines = ["def change(phi, new_phi, center, rows, change):"]
    for point, result in (("phi", "change[i] = q - y0"), ("new_phi", "change[i] += y0 - q")):
        lines += [*_predict(affine, at, point), *row.before]
        if at.order:
            lines += _constants(affine, "center", "star", shared)
            lines += [f"    z{e} = x{e} - star{e}" for e in shared]
        lines += ["    for i in range(m):", row.call, "        q = 0.0"]
        if at.order:
            lines += [
                f"        z{e} = eta[{e}, i] - rows[{at.star + e}, i]" for e in range(at.n_varying)
            ]
        lines += [*_proxy(at), f"        {result}"]
    return "\n".join(lines)


def anchor(affine: AffineMap, at: RowLayout, row: LoopCode, bounds: bool = False) -> str:
    """Log-likelihood and derivatives of rows at the reference.

    Where second derivatives are not finite there are none from the second on, unless `bounds` are
    in their place.
    """
    values = [f"y{k}" for k in range(at.width - at.level)]
    bends = [] if bounds else values[1 + at.n_predictors :]
    lines = [f"        if not abs({' + '.join(bends)}) < np.inf:"] if bends else []
    lines += [f"            {' = '.join(bends)} = {FLAT!r}"] if bends else []
    return "\n".join(
        [
            "def anchor(center, rows):",
            *_predict(affine, at, "center"),
            *row.before,
            "    for i in range(m):",
            row.call,
            *lines,
            *(f"        rows[{at.star + e}, i] = eta[{e}, i]" for e in range(at.n_varying)),
            *(f"        rows[{at.level + k}, i] = {value}" for k, value in enumerate(values)),
        ]
    )
