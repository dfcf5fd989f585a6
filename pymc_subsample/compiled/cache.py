"""Machine code kept on disk, under a name that says what it was made from.

numba recompiles a function when its own file has changed, but not when a function that it calls
has. Here all kernels, wherever they live, and the versions of what compiles them name the directory
in which code is kept: code of another version is never read.
"""

import logging
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from multiprocessing import parent_process
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import llvmlite
import numba
import numpy as np
import pytensor
import pytensor.link.numba.cache  # gives functions symbols that no other process uses
from filelock import FileLock
from numba import types
from numba.core import caching, serialize, typeinfer
from numba.core.base import BaseContext
from numba.core.compiler import CompileResult

from pymc_subsample.compiled.keys import identity, kernel_sources
from pymc_subsample.compiled.selfcontained import SelfContained

_log = logging.getLogger("pymc.subsample")

PACKAGE = Path(__file__).parents[1]
# Next to what PyTensor compiles, which needs a directory that can be written.
ROOT = Path(pytensor.config.base_compiledir) / "pymc_subsample"

# Code of other versions is removed when nobody has used it for so long. A choice: who changes
# between versions within a month compiles once.
_KEPT_SECONDS = 30 * 24 * 3600.0
# What another process compiles is waited for so long. A choice of patience: beyond what any
# function takes on a busy machine, and an end where that process sleeps.
_WAITED_SECONDS = 120.0


@cache
def directory() -> Path:
    """Return where the code of this version is kept, and note that it is still in use."""
    stamp = sha256(repr(_versions()).encode())
    for file in kernel_sources(PACKAGE):
        stamp.update(f"{file.relative_to(PACKAGE)} {file.stat().st_size} ".encode())
        stamp.update(file.read_bytes())
    path = ROOT / stamp.hexdigest()
    with suppress(OSError):
        os.utime(path)
    return path


def _versions() -> list[str]:
    packages = (llvmlite, numba, np, pytensor)
    return [sys.implementation.cache_tag, *(f"{p.__name__} {p.__version__}" for p in packages)]


def kept(*signatures: types.Type, **options: Any) -> Callable:
    """Compile a function as `numba.njit` does, and keep its machine code on disk.

    Parameters
    ----------
    *signatures : numba signatures
        Compiled at once; without any, a signature is compiled when it is first needed.
    **options
        Of `numba.njit`.
    """

    def decorate(function: Callable):
        return compile_kept(function, identity(function), signatures, **options)

    return decorate


# Of functions that compiled code alone calls: Python can't.
PART = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compile_kept(
    function: Callable, key: str | None, signatures: Sequence[types.Type], **options: Any
) -> Any:
    """Compile a function that `key`, and the sources of kernels, tell from all others.

    With None it is not kept, but with the functions that call it. A process has one of each: numba
    never unloads code, whose parts of memory the system counts (65,530 of them in Linux's settings,
    44 for a hierarchy: beyond them LLVM ends the process).
    """
    if key is None:
        return _compiled(function, None, signatures, **options)
    identity = function.__name__, key, tuple(signatures)
    if identity not in _made:
        _made[identity] = _compiled(function, key, signatures, **options)
    return _made[identity]


_made: dict[tuple, Any] = {}


def compile_part(function: Callable, key: str | None, **options: Any) -> Any:
    """Compile a function that compiled code alone calls, with what calls it.

    A process has one of each key: the same loops of rows of several kinds are compiled once.
    """
    if key in _parts:
        return _parts[key]
    made = _compiled(function, None, (), **PART, **options)
    if key is not None:
        _parts[key] = made
    return made


_parts: dict[str | None, Any] = {}


def _compiled(
    function: Callable, key: str | None, signatures: Sequence[types.Type], **options: Any
) -> Any:
    # A division by zero makes infinity, which rejects a point, instead of an exception.
    options = {"error_model": "numpy", "pipeline_class": SelfContained} | options
    dispatcher = numba.njit(**options)(function)
    if key is not None:
        dispatcher._cache = _Kept(function.__name__, key)
    if signatures:
        for signature in signatures:
            compile_for(dispatcher, signature)
        dispatcher.disable_compile()
    return dispatcher


def compile_for(dispatcher: Any, signature: types.Type) -> None:
    """Compile a function for a signature, or load it, unless that has been done."""
    if signature.args in dispatcher.overloads:
        return
    with typeinfer.register_dispatcher(dispatcher), _one_process(dispatcher, signature):
        dispatcher.compile(signature)


@contextmanager
def _one_process(dispatcher: Any, signature: types.Type) -> Iterator[None]:
    """Wait for a process that compiles the same function, where it is kept: then it is loaded."""
    kept = dispatcher._cache
    path = isinstance(kept, _Kept) and kept.path(signature, dispatcher.targetctx.codegen())
    if not path or path.exists():
        yield
        return
    file = path.with_name(f"{path.name}.lock")
    lock = FileLock(file)
    # Where a folder can't be written, or knows no locks, each process compiles for itself.
    with suppress(OSError, NotImplementedError):
        _make_directory()
        lock.acquire(_WAITED_SECONDS)
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            file.unlink()


class _Kept(caching.NullCache):
    """Compiled code of one function: a file per signature, headed by its checksum."""

    def __init__(self, name: str, key: str):
        self.name, self.key = name, key
        # Checksums of what was read, by signature.
        self.loaded: dict[types.Type, bytes] = {}

    def path(self, signature: types.Type, codegen: Any) -> Path:
        identity = repr((self.key, str(signature), codegen.magic_tuple()))
        return directory() / f"{self.name}-{sha256(identity.encode()).hexdigest()}"

    def read(self, sig: types.Type, codegen: Any) -> bytes | None:
        """Return what is kept of the function, if it is whole."""
        try:
            content = self.path(sig, codegen).read_bytes()
        except OSError:
            return None
        checksum, code = content[:32], content[32:]  # 256 bits
        return code if checksum == sha256(code).digest() else None

    def load_overload(self, sig: types.Type, target_context: BaseContext):
        target_context.refresh()
        code = self.read(sig, target_context.codegen())
        if code is None:
            return None
        self.loaded[sig] = sha256(code).digest()
        return CompileResult._rebuild(target_context, *pickle.loads(code))

    def save_overload(self, sig: types.Type, data: CompileResult):
        if data.library.has_dynamic_globals:
            return
        path, code = self.path(sig, data.codegen), serialize.dumps(data._reduce())
        try:
            _make_directory()
            _write(path, sha256(code).digest() + code)
        except OSError as error:
            if not path.exists():  # another process may have been faster
                _warn_of(error)


class _Given(caching.NullCache):
    """Compiled code that another process sent."""

    def __init__(self, code: bytes, needs: list[str]):
        self.code, self.needs = code, needs

    def load_overload(self, sig: types.Type, target_context: BaseContext):
        target_context.refresh()
        return CompileResult._rebuild(target_context, *pickle.loads(self.code))


def packed(dispatcher: Any, signature: types.Type) -> tuple[bytes, list[str]]:
    """Return the machine code of a function, for `unpacked`, and what it needs.

    Raises
    ------
    pickle.PicklingError
        If it holds addresses of this process, or another one has compiled it again since: the last
        bits of what it computes may be others.
    """
    if isinstance(dispatcher._cache, _Given):
        return dispatcher._cache.code, dispatcher._cache.needs
    result = dispatcher.overloads[signature.args]
    codegen = result.target_context.codegen()
    loaded = getattr(dispatcher._cache, "loaded", {}).get(signature)
    if result.library.has_dynamic_globals:
        raise pickle.PicklingError(f"{dispatcher.__name__} holds addresses")
    if loaded is None:
        code = serialize.dumps(result._reduce())
    else:  # of which numba has not kept the code
        code = dispatcher._cache.read(signature, codegen) or b""
        if sha256(code).digest() != loaded:
            raise pickle.PicklingError(f"the code of {dispatcher.__name__} is not kept any more")
    return code, [*_versions(), *map(str, codegen.magic_tuple())]


def unpacked(code: bytes, needs: Sequence[str], signature: types.Type) -> Any:
    """Return the function that was `packed`.

    Raises
    ------
    RuntimeError
        If versions of libraries, or the processor, are others than where it was compiled.
    """
    names = ", ".join(f"x{i}" for i in range(len(signature.args)))
    dispatcher = numba.njit(eval(f"lambda {names}: None"))
    has = [*_versions(), *map(str, dispatcher.targetctx.codegen().magic_tuple())]
    if has != list(needs):
        raise RuntimeError(f"compiled for {', '.join(needs)}; there is {', '.join(has)}")
    dispatcher._cache = _Given(code, list(needs))
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def _write(path: Path, content: bytes):
    """Write a file that other processes see whole or not at all."""
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(content)
            file.close()
            unfinished.replace(path)
        except BaseException:
            file.close()
            unfinished.unlink(missing_ok=True)
            raise


def _make_directory():
    """Make the directory of this version, and remove those that are no longer used."""
    if directory().exists():
        return
    directory().mkdir(parents=True, exist_ok=True)
    for path in ROOT.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def source_flags() -> dict[str, str]:
    """Return PyTensor's flags for generated sources, to keep them out of the temporary folder.

    There PyTensor would leave a file per function and step that is made.
    """
    if getattr(pytensor.config, "generated_src_dir", None) != "":
        return {}
    with suppress(OSError):
        _make_directory()
        if os.access(directory(), os.W_OK):
            return {"generated_src_dir": str(directory())}
    return {}


def _warn_of(error: OSError):
    """Say once, and not again in worker processes, that code is compiled to memory alone."""
    global _warned
    if not _warned:
        _log.warning(
            f"Compiled code cannot be kept in {ROOT} ({error.strerror}): every session compiles it "
            "again, which takes up to a minute. Name a directory that can be written in the "
            "environment variable PYTENSOR_FLAGS: base_compiledir=/path/to/directory."
        )
    _warned = True


_warned = parent_process() is not None
