"""What the model boundary refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise

from pymc_subsample.graph.concrete import UNDIFFERENTIABLE
from pymc_subsample.graph.unrolled import why_not

if TYPE_CHECKING:
    from pymc_subsample.model.tall_model import TallModel


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


class JumpError(TallModelError):
    """The log-likelihood has jumps, or a wrong gradient: NUTS samples another posterior then."""


class CoupledRows(Exception):
    """An Op mixes rows (internal: turned into a `TallModelError` that names the variable)."""

    def __init__(self, node: Apply | None, said: str = "") -> None:
        self.node, self._said = node, said
        super().__init__("" if node is None else op_name(node.op))

    @property
    def cause(self) -> str:
        """The Op, and in words what it does if that is known."""
        op = "an axis used twice" if self.node is None else op_name(self.node.op)
        return f"{op} ({_KNOWN[op]})" if op in _KNOWN else op

    def refusal(self, name: str) -> TallModelError:
        """Return the error that the user sees, about the observed variable `name`."""
        op = "an axis used twice" if self.node is None else op_name(self.node.op)
        if self.node is not None and type(self.node.op).__module__.startswith("pytensor.sparse"):
            return TallModelError(
                f"The rows of {name!r} come out of a sparse matrix ({op}), which is not split "
                "by rows. If it holds dummy columns of groups, index by an integer column instead "
                "(effects[group]), or add up by one, "
                "pt.zeros(n_sets)[set_of_row].inc(x); otherwise give a dense array "
                "(matrix.toarray()), or sample this model with pm.sample()."
            )
        if op.startswith("Simulator"):
            return TallModelError(
                f"{name!r} is simulated ({op}): its rows have no log-likelihood, which is what is "
                "subsampled. Sample this model with pm.sample_smc, or write a likelihood."
            )
        if op == "Scan":
            return TallModelError(f"The rows of {name!r} are coupled by Scan ({_loop(self.node)}")
        what = _KNOWN.get(op, "an operation that mixes rows or is not known to keep them apart")
        return TallModelError(
            f"The rows of {name!r} are coupled by {op} ({what}): the log-likelihood of a row must "
            "depend on parameters and on that row alone. Compute quantities that need all rows "
            "from data only, before the model; if rows really depend on each other, sample this "
            "model with pm.sample()."
        )

    def refusal_of_sets(self, name: str) -> TallModelError:
        """Return the error that says why sums over sets of rows of `name` are not followed."""
        op = "an axis used twice" if self.node is None else op_name(self.node.op)
        said = self._said or f"{op} mixes sets, or rows of a set in an order of its own"
        if op in {"Max", "Min", "CAReduce"}:
            said = (
                "it reads the largest or smallest of all rows. Leave it out, or take the one of "
                "each set, with its rows side by side: "
                "pt.where(is_row, x[rows], -np.inf).max(axis=1)"
            )
        return TallModelError(f"The sums over sets of rows in {name!r} are not followed: {said}.")


_KNOWN = {
    "MakeVector": "an array of parts that are computed one by one; sums over sets of rows are "
    "followed as `pt.zeros(n_sets)[set_of_row].inc(x)`",
    "CumOp": "a cumulative operation over rows",
    "Cholesky": "a covariance over rows",
    "Sum": "a sum over rows",
    "Subtensor": "rows that read other rows",
    "AdvancedSubtensor": "rows that read other rows",
    "AdvancedIncSubtensor": (
        "sums over sets of rows, which are followed if one index of data, "
        "`pt.zeros(n_sets)[set_of_row].inc(x)`, gives the set of each row, and no row reads "
        "another set"
    ),
}


_ONE_ROW = "the log-likelihood of a row must depend on parameters and on that row alone"


def _loop(node: Apply | None) -> str:
    """Say of a loop whose it is, and what remains: only its author can write it otherwise."""
    package = None if node is None else _package(node)
    what = "a loop that is not followed" if node is None else why_not(node)
    if package is not None:
        return (
            f"{what}, of {package}): {_ONE_ROW}. That code is the package's: "
            "sample this model with pm.sample(), which runs the loop over all rows, or use a "
            "likelihood of that package, or of your own, without one."
        )
    return (
        f"{what}): {_ONE_ROW}. A loop within each row, over its times, is followed if it has few "
        "steps, a known number of them, and no condition; if rows really depend on each "
        "other, or the loop is a package's, sample this model with pm.sample()."
    )


def _package(node: Apply) -> str | None:
    """Return where a package made a loop, by the stack that PyTensor keeps; None of a user's."""
    for stack in getattr(node.outputs[0].tag, "trace", ()):
        for frame in reversed(stack):
            path = Path(frame[0])
            if (path.parent / "__init__.py").exists():
                home = path.parent
                while (home.parent / "__init__.py").exists():
                    home = home.parent
                if home.name != "pytensor":
                    return f"{path.relative_to(home.parent)}, line {frame[1]}"
            else:
                return None
    return None


def op_name(op: Op) -> str:
    """Return the short name of an Op, as PyTensor prints it where that is telling."""
    inner = op.scalar_op if isinstance(op, Elemwise) else getattr(op, "core_op", None)
    return type(op if inner is None else inner).__name__


# What remains for a log-likelihood that is not the integral of its gradient.
WITHOUT_GRADIENT = (
    "This step needs a gradient. Use pms.MinibatchBarkerMH, pms.AusterityMH or pms.ConfidenceMH "
    "with control_variate_order=None and a proposal without gradients, pm.Metropolis or "
    "pm.DEMetropolisZ on all rows, or write a smooth function in place of the step (a sigmoid)."
)


@contextmanager
def with_densities() -> Iterator[None]:
    """Say so where PyMC knows no log density of some variable."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        raise TallModelError(
            "PyMC knows no log density of a variable of this model, so that no sampler can run "
            f"({str(error).strip()}) Give a `pm.CustomDist` its `logp=`."
        ) from error


@contextmanager
def differentiated(tall: "TallModel", advice: str) -> Iterator[None]:
    """Say which log-likelihood it is that PyTensor cannot differentiate here, and what remains.

    PyMC differentiates it as it is written, and once, with respect to parameters alone.
    """
    try:
        yield
    except UNDIFFERENTIABLE as error:
        raise TallModelError(
            f"PyTensor cannot differentiate the log-likelihood of "
            f"{', '.join(map(repr, tall.likelihood))} ({type(error).__name__}: {error}) as "
            f"rows need it here. {advice} If model.compile_dlogp() works, so does pm.NUTS."
        ) from error
