"""What the model boundary refuses."""

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise


class TallModelError(ValueError):
    """The model's rows cannot be subsampled; the message says why and what to do.

    Examples
    --------
    A random walk over the rows, each of which depends on the one before:

    >>> with pm.Model() as dependent:
    ...     walk = pm.GaussianRandomWalk("walk", init_dist=pm.Normal.dist(), shape=len(miles))
    ...     pm.Normal("y", walk, 1, observed=miles)
    >>> try:
    ...     pms.HMCECS(model=dependent)
    ... except pms.TallModelError as error:
    ...     print(error)
    """


class CoupledRows(Exception):
    """An Op mixes rows (internal: turned into a `TallModelError` that names the variable)."""

    def __init__(self, node: Apply | None) -> None:
        self.node = node
        super().__init__("" if node is None else op_name(node.op))

    def refusal(self, name: str) -> TallModelError:
        """Return the error that the user sees, about the observed variable `name`."""
        op = "an axis used twice" if self.node is None else op_name(self.node.op)
        if self.node is not None and type(self.node.op).__module__.startswith("pytensor.sparse"):
            return TallModelError(
                f"The rows of {name!r} come out of a sparse matrix ({op}), which is not taken "
                "apart by rows. Where it holds dummies of groups, index by an integer column "
                "instead (effects[group]); otherwise give a dense array (matrix.toarray()), or "
                "sample this model with pm.NUTS."
            )
        if op.startswith("Simulator"):
            return TallModelError(
                f"{name!r} is simulated ({op}): its rows have no log-likelihood, which is what is "
                "subsampled. Sample this model with pm.sample_smc, or write a likelihood."
            )
        what = _KNOWN.get(op, "an operation that mixes rows or is not known to keep them apart")
        return TallModelError(
            f"The rows of {name!r} are coupled by {op} ({what}): the log-likelihood of a row must "
            "depend on parameters and on that row alone. Compute quantities that need all rows "
            "from data only, before the model; if rows really depend on each other, sample this "
            "model with pm.NUTS."
        )


_KNOWN = {
    "CumOp": "a cumulative operation over rows",
    "Scan": "a loop that is not followed; one within rows may be written as a `for` of Python",
    "Cholesky": "a covariance over rows",
    "Sum": "a sum over rows",
    "Subtensor": "rows that read other rows",
    "AdvancedSubtensor": "rows that read other rows",
}


def op_name(op: Op) -> str:
    """Return the short name of an Op, as PyTensor prints it where that is telling."""
    inner = op.scalar_op if isinstance(op, Elemwise) else getattr(op, "core_op", None)
    return type(op if inner is None else inner).__name__
