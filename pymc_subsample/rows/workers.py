"""Who reads all rows: a function of some rows at a time, wherever it runs, in a fixed order.

What rows go together does not depend on who works on them, and results come in the order of the
rows: sums of them are the same to the last bit for any number of threads, processes or machines.
"""

import logging
import os
import pickle
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import batched, chain, islice
from multiprocessing import parent_process
from typing import Any, Protocol
from weakref import WeakValueDictionary

import cloudpickle
import numpy as np

from pymc_subsample.compiled.process import one_thread

_log = logging.getLogger("pymc.subsample")

# Parts of a pass that are done or begun ahead of their turn, per worker; and of their results. A
# choice: one that is done and one that is begun; 512 MB, since parts of many numbers are few.
_AHEAD = 2
_AHEAD_BYTES = 2**29
# Tasks of an executor per worker, so that all end at about the same time, and parts of one at most.
# Dask's scheduler takes about a millisecond for each, as long as a part does.
_TASKS, _MOST_TOGETHER = 8, 256
# Subjects of passes that a worker process keeps. A choice: a model, those of its forms that are
# compared, and another.
_MOST_SUBJECTS = 4


class Subject(Protocol):
    """What passes are of."""

    def portable(self) -> Any:
        """Return what worker processes need of it, once; it is pickled."""

    def sent(self, item: Any) -> Any:
        """Return what they need of a part of the rows."""


class Workers:
    """Those who make passes over the rows.

    By default threads of this process, as many as there are processors for it; else a number of
    threads, an executor of `concurrent.futures` or a client of Dask. In a process that another one
    started, as `pm.sample` does for its chains, the default is one thread, and executors and
    numbers of threads that were given in the other one don't count.
    """

    def __init__(self, given: Any = None) -> None:
        self._given = given if isinstance(given, int) else None
        self._executor: Executor | None = None
        self._count = 1
        if isinstance(given, Executor):
            self._executor = given
            self._count = getattr(given, "_max_workers", None) or processors()
        elif self._given is None and given is not None:
            self._executor = given.get_executor(pure=False)
            self._count = sum(given.nthreads().values())
        self._process: int | None = os.getpid()
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave executors where they are."""
        return vars(self) | {"_executor": None, "_process": None, "_told": False}

    @property
    def threads(self) -> int:
        """How many threads of this process work on a pass."""
        of_this_process = self._given if self._process == os.getpid() else None
        if parent_process() is not None:
            return of_this_process or 1
        return self._given or processors()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have passes over what is made meanwhile made by these."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable,
        result_bytes: int = 0,
        *,
        compiles: bool = True,
    ) -> Iterator[Any]:
        """Yield ``function(item)`` of items in their order, by threads of this process.

        The first is done before others begin: what the function `compiles` when first called, it
        compiles once. Items are read a few ahead; of large results, few are made at a time. NumPy's
        warnings are off.
        """
        items = iter(items)
        for item in items if compiles else ():
            yield quietly(function, item)
            break
        most = max(1, _AHEAD_BYTES // max(result_bytes, 1))
        workers = min(self.threads, most)
        if workers < 2:
            yield from (quietly(function, item) for item in items)
            return
        with ThreadPoolExecutor(workers, "workers") as pool:
            submit = partial(pool.submit, quietly, function)
            for _, future in _in_turn(items, submit, min(_AHEAD * workers, most)):
                yield future.result()

    def over(
        self,
        work: Callable[[Any, Any], Any],
        subject: Subject,
        items: Iterable,
        result_bytes: int = 0,
        n_items: int = 0,
    ) -> Iterator[Any]:
        """Yield ``work(subject, item)`` of items in their order, wherever these workers are.

        Where there are `n_items`, an executor gets several at once, and returns the result of each.
        What it fails to do, for a worker was killed or misses a package, is done here.
        """
        executor = self._executor if self._process == os.getpid() else None
        here = partial(work, subject)
        items = iter(items)
        for item in items if executor else ():
            yield quietly(here, item)  # as `map` does, and its errors are not those of a worker
            break
        left = list(islice(items, 1))
        items = chain(left, items)
        sent = self._packed(work, subject) if executor and left else None
        if executor is None or sent is None:
            yield from self.map(here, items, result_bytes)
            return
        most = max(1, min(_AHEAD * self._count, _AHEAD_BYTES // max(result_bytes, 1)))
        room = _AHEAD_BYTES // max(most * result_bytes, 1)
        together = min(n_items // (_TASKS * self._count), _MOST_TOGETHER, room)
        with ExitStack() as stack:
            pool: ThreadPoolExecutor | None = None
            fresh, failures = most, 0

            def some(task: Sequence) -> list:
                return [quietly(here, item) for item in task]

            def submit(task: Sequence, whole: bool = False) -> Future:
                nonlocal pool, fresh
                fresh -= 1
                if pool is None and failures > most:
                    pool = stack.enter_context(ThreadPoolExecutor(self.threads, "workers"))
                if pool is None:
                    try:
                        known = sent if whole or fresh >= 0 else replace(sent, content=None)
                        return executor.submit(_run, known, [*map(subject.sent, task)])
                    except Exception as error:  # the executor was shut down or is broken
                        self._tell(error)
                        pool = stack.enter_context(ThreadPoolExecutor(self.threads, "workers"))
                return pool.submit(some, task)

            for task, future in _in_turn(batched(items, max(1, together)), submit, most):
                try:
                    found = future.result()
                    if isinstance(found, _Unknown):
                        found = submit(task, whole=True).result()
                    failures = 0
                except Exception as error:
                    self._tell(error)
                    failures += 1
                    found = some(task)
                if isinstance(found, _Raised):
                    raise found.error
                yield from found

    def _packed(self, work: Callable, subject: Subject) -> "_Sent | None":
        try:
            content = cloudpickle.dumps(subject.portable())
            key = sha256(content).hexdigest()
            sent = _Sent(key, content, cloudpickle.dumps(work), _version())
        except Exception as error:  # such as compiled code that holds addresses
            self._tell(error)
            return None
        _subjects[sent.key] = subject
        return sent

    def _tell(self, error: Exception) -> None:
        """Say once that not all is done by the executor."""
        if not self._told:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            _log.warning(f"workers=: a worker failed, and its rows are read here instead ({said})")
        self._told = True


_current: ContextVar[Workers | None] = ContextVar("workers", default=None)


def current() -> Workers:
    """Return the workers that are in use, by default threads."""
    return _current.get() or Workers()


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quietly(function: Callable, *arguments: Any) -> Any:
    """Call a function; numbers that are not finite are looked for in its results."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def _in_turn(
    items: Iterable, submit: Callable[[Any], Future], most: int
) -> Iterator[tuple[Any, Future]]:
    """Submit items, at most so many ahead of the one whose turn it is."""
    waiting: deque[tuple[Any, Future]] = deque()
    try:
        for item in items:
            waiting.append((item, submit(item)))
            if len(waiting) >= most:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()


# In worker processes


@dataclass(frozen=True)
class _Sent:
    """What is sent with every item: what to do with it, and of what."""

    key: str
    content: bytes | None
    work: bytes
    version: str


@dataclass(frozen=True)
class _Raised:
    """What the pass itself raised, in contrast to what runs it."""

    error: Exception


class _Unknown:
    """The answer of a worker that was not sent the subject yet."""


_subjects: WeakValueDictionary[str, Any] = WeakValueDictionary()  # of this process's own passes
_received: OrderedDict[str, Any] = OrderedDict()
_receiving = threading.Lock()


def _version() -> str:
    return import_module("pymc_subsample").__version__


def _run(sent: _Sent, task: Sequence) -> Any:
    """Do parts of a pass; without the content of a subject that it has not got, ask for it."""
    if sent.version != (version := _version()):
        raise RuntimeError(f"it has version {version} of pymc_subsample, not {sent.version}")
    with _receiving:
        subject = _subjects.get(sent.key, _received.get(sent.key))
        if subject is None:
            if sent.content is None:
                return _Unknown()
            subject = _received[sent.key] = pickle.loads(sent.content)
            while len(_received) > _MOST_SUBJECTS:
                _received.popitem(last=False)
    work = pickle.loads(sent.work)
    try:
        return one_thread(lambda: [quietly(work, subject, item) for item in task])()
    except Exception as error:
        return _Raised(error)
