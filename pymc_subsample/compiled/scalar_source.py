"""Scalar graphs as Python code, a line for each operation.

PyTensor makes a numba function of every operation, which takes 10 ms each. Most of them are one
operator, or one function of NumPy.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort

from pymc_subsample.compiled.cache import compile_part
from pymc_subsample.compiled.functions import FAST

_ARITHMETIC = {ps.Add: " + ", ps.Mul: " * ", ps.Sub: " - ", ps.TrueDiv: " / "}
_COMPARISONS = {
    ps.GT: " > ", ps.LT: " < ", ps.GE: " >= ", ps.LE: " <= ", ps.EQ: " == ", ps.NEQ: " != ",
}  # fmt: skip
_FORMS = {
    ps.Abs: "abs({0})",
    ps.Cast: "np.float64({0})",
    ps.Exp: "np.exp({0})",
    ps.Identity: "{0}",
    ps.Log: "np.log({0})",
    ps.Log1p: "np.log1p({0})",
    ps.Neg: "-{0}",
    ps.Reciprocal: "1.0 / {0}",
    ps.Sqr: "{0} * {0}",
    ps.Sqrt: "np.sqrt({0})",
    ps.Switch: "{1} if {0} else {2}",
}


def scalar_function(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> tuple[Callable, str | None]:
    """Return a function of doubles to call from compiled code, and its key for the disk cache."""
    # No name ends with a digit: numba names a use of x2 at 1246 as it does one of x21 at 246.
    names = {v: f"x{i}_" for i, v in enumerate(inputs)}
    known: dict[str, Any] = {"np": np, "__name__": __name__}
    keys: list[str | None] = []
    lines = [f"def row({', '.join(names.values())}):"]
    for node in toposort(outputs, blockers=list(inputs)):
        form = _form(node)
        if form is not None:
            code = form.format(*(_double(v, names) for v in node.inputs))
        else:
            # It takes a third of a second to import, and few models need it.
            from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

            called = f"f{len(keys)}"
            known[called], key = numba_funcify_ensure_cache(node.op, node)
            constants = [v for v in node.inputs if isinstance(v, Constant)]
            typed = {v: f"{called}_{k}" for k, v in enumerate(constants)}
            known |= {name: np.dtype(v.type.dtype).type(v.data) for v, name in typed.items()}
            keys.append(key and key + str([(v.type.dtype, v.data.item()) for v in constants]))
            code = f"{called}({', '.join((names | typed)[v] for v in node.inputs)})"
        results = [f"v{len(names) + k}_" for k in range(len(node.outputs))]
        names |= dict(zip(node.outputs, results, strict=True))
        lines.append(f"    {', '.join(results)} = {code}")
    lines.append(f"    return {', '.join(_double(v, names) for v in outputs)}")
    text = "\n".join(lines)
    key = None if None in keys else sha256("|".join([text, *map(str, keys)]).encode()).hexdigest()
    exec(text, known)
    return compile_part(known["row"], key, fastmath=FAST), key


def _form(node: Apply) -> str | None:
    """Return the code of an operation on doubles and truth values, if it is short."""
    op, [out, *others] = type(node.op), [v.type.dtype for v in node.outputs]
    kinds = {v.type.dtype for v in node.inputs if not isinstance(v, Constant)}
    if others or not kinds <= {"float64", "bool"}:
        return None
    signs = {"float64": _ARITHMETIC, "bool": _COMPARISONS}.get(out, {})
    if op in signs:
        return signs[op].join(f"{{{k}}}" for k in range(len(node.inputs)))
    return _FORMS.get(op) if out == "float64" else None


def _double(var: Variable, names: dict[Variable, str]) -> str:
    """Return the code of a variable, or of a constant."""
    if var in names:
        return names[var]
    return f"({float(var.data)!r})".replace("inf", "np.inf").replace("nan", "np.nan")
