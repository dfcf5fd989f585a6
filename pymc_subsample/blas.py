"""Sums in one order, whatever the number of BLAS threads.

BLAS splits products over its threads, which changes the last bits of sums over rows, of factors and
of eigenvectors, and with them every later draw. `pm.sample` gives its worker processes fewer
threads than it has itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """Find the libraries once: NumPy's and SciPy's are loaded with the package."""
    return ThreadpoolController()


class _Limit:
    """The limit, while there are any who want it."""

    lock = threading.Lock()
    holders = 0
    limiter: Any = None


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let BLAS use one thread, in all threads: it has its own until the last of them is done."""
    with _Limit.lock:
        if not _Limit.holders:
            _Limit.limiter = _controller().limit(limits=1, user_api="blas")
        _Limit.holders += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.holders -= 1
            if not _Limit.holders:
                _Limit.limiter.restore_original_limits()


def one_thread[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let a function use one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with on_one_thread():
            return function(*args, **kwargs)

    return limited
