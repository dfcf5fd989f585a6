"""Sums in one order, whatever the number of BLAS threads.

BLAS splits products over its threads, which changes the last bits of sums over rows, of factors and
of eigenvectors, and with them every later draw. `pm.sample` gives its worker processes fewer
threads than it has itself.
"""

from collections.abc import Callable
from functools import cache, wraps

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """Find the libraries once: NumPy's and SciPy's are loaded with the package."""
    return ThreadpoolController()


def one_thread[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let a function use one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
