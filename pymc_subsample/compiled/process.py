"""State of the process that is set while something runs: garbage collection, flags, threads."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


def shared(
    context: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Let a context be that of the process: the first thread enters it, the last one leaves it.

    Threads that each restored what they had found would restore what another one has set.
    """
    lock, inside, entered = RLock(), 0, list[AbstractContextManager[None]]()

    @wraps(context)
    @contextmanager
    def of_all() -> Iterator[None]:
        nonlocal inside
        with lock:
            if not inside:
                made = context()
                made.__enter__()
                entered.append(made)
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if not inside:
                    entered.pop().__exit__(None, None, None)

    return of_all


@shared
@contextmanager
def without_collection() -> Iterator[None]:
    """Put garbage collection off, which imports and rewrites of graphs set off again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@cache
def _controller() -> "ThreadpoolController":
    """Find the libraries once: NumPy's and SciPy's are loaded with the package."""
    from threadpoolctl import ThreadpoolController  # not with the package: it takes 65 ms

    return ThreadpoolController()


def one_thread[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let a function use one BLAS thread, so that its sums come in one order.

    BLAS splits products over its threads, which changes the last bits of sums over rows, of factors
    and of eigenvectors, and with them every later draw. `pm.sample` gives its worker processes
    fewer threads than it has itself.
    """

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
