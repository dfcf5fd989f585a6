"""Source code of a model's functions on the linear-predictor path; see `kernels.model`."""

from dataclasses import dataclass

from pymc_subsample.expansion.coefficients import multiplicity
from pymc_subsample.expansion.row_layout import FLAT, AffineMap, RowLayout
from pymc_subsample.kernels.model import ALONE


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
        f"    predict(table, scales, {point}, rows, eta)",
    ]


def left(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Log-likelihoods less their control variates' change from the reference."""
    lines = ["def left(phi, center, rows, value):", *_residuals(affine, at, row)]
    return "\n".join([*lines, "        q = 0.0", *_proxy(at), "        value[i] = y0 - q"])


def _residuals(affine: AffineMap, at: RowLayout, row: LoopCode) -> list[str]:
    """Code up to the predictors' distances z from the reference, inside the loop over rows."""
    lines = [*_predict(affine, at, "phi")]
    if at.order:
        shared = range(at.n_varying, at.n_predictors)
        lines += _constants(affine, "center", "star", shared)
        lines += [f"    z{e} = x{e} - star{e}" for e in shared]
    lines += [*row.before, "    for i in range(m):", row.call]
    varying = range(at.n_varying) if at.order else ()
    return lines + [f"        z{e} = eta[{e}, i] - rows[{at.star + e}, i]" for e in varying]


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


def residual(affine: AffineMap, at: RowLayout, row: LoopCode) -> str:
    """Residuals, and the gradient of what a rule makes of them; see `kernels.linear.weigh`."""
    lines = [
        "def residual(phi, rows, center, rule, weight, setting, d, grad):",
        f"    v = np.empty(({at.n_predictors}, rows.shape[1]))",
        *_residuals(affine, at, row),
        f"        q = rows[{at.level}, i]",
        *_proxy(at),
    ]
    lines += [f"        v[{e}, i] = y{e + 1} - {_slope(at, e)}" for e in range(at.n_predictors)]
    lines += [
        "        d[i] = y0 - q",
        f"    if rule != {ALONE}:",
        "        weigh(rule, weight, setting, d, v)",
        "        backproject(table, scales, v, rows, grad)",
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
    return "\n".join([*lines, "    backproject(table, scales, v, rows, grad)"])


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
