"""PyTensor graphs as numba functions that write into buffers and are cached on disk.

A compiled transition calls the model's functions by address, so that the transition itself is
compiled once for all models. For that every function of one role has one explicit signature, with
results written into arrays that the caller owns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import pytensor
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.context import BaseContext as BaseTypingContext
from numba.core.typing.templates import Signature
from numba.experimental.function_type import _get_wrapper_address
from numba.extending import get_cython_function_address, register_jitable
from pytensor.compile.io import In, Out
from pytensor.compile.maker import FunctionMaker
from pytensor.graph.basic import Variable, clone

from pymc_subsample.compiled.cache import (
    compile_for,
    compile_kept,
    directory,
    packed,
    source_flags,
    unpacked,
)
from pymc_subsample.compiled.process import shared, without_collection

VECTOR = types.Array(types.float64, 1, "C")
MATRIX = types.Array(types.float64, 2, "C")
SCALAR = types.float64
INDEX = types.Array(types.int64, 1, "C")

# Reassociation lets dot products vectorise; NaN and infinity keep their meaning, because a
# non-finite energy is how a trajectory is rejected.
FAST = {"reassoc", "contract", "arcp", "nsz"}

# Where a random generator is; see `generator_at`.
GENERATOR = types.int64
_BIT_GENERATOR = types.NumPyRandomBitGeneratorType("bit_generator")


@dataclass(frozen=True)
class Compiled:
    """A compiled function.

    Attributes
    ----------
    function : callable
        The numba function.
    signature : numba signature
        The one that it is called with.
    key : str or None
        Identifies the function for the disk cache; None where it cannot be cached.
    called : tuple of Named
        What it calls by name.
    """

    function: Callable
    signature: types.Type
    key: str | None
    called: "tuple[Named, ...]" = ()

    def __call__(self, *arguments: Any) -> None:
        """Call the function from Python; other threads go on meanwhile."""
        self.function(*arguments)

    def __reduce__(self) -> tuple:
        """Pickle as machine code, with what it calls, which has a name there before it is loaded.

        Raises
        ------
        pickle.PicklingError
            If `packed` does.
        """
        return _received, (self.called, *packed(self.function, self.signature), self.signature)

    @property
    def address(self) -> int:
        """Where the function is, for `function_at`; keep `self` alive while it is used.

        Addresses cost nothing to hand over; numba's own first-class functions cost 20 us per
        argument and call.
        """
        return _get_wrapper_address(self.function, self.signature)


def _received(
    called: "tuple[Named, ...]", code: bytes, needs: Sequence[str], signature: types.Type
) -> Compiled:
    return Compiled(unpacked(code, needs, signature), signature, None, called)


def compile_graph(
    name: str,
    inputs: Sequence[Variable],
    outputs: Mapping[str, Variable],
    buffers: Sequence[str],
    signature: types.Type,
) -> Compiled:
    """Compile a PyTensor graph to ``name(*inputs, *buffers)``.

    Parameters
    ----------
    name : str
        Name of the function.
    inputs : sequence of Variable
        Inputs of the graph.
    outputs : mapping of str to Variable
        Where each output goes: an element of a buffer for a scalar, such as ``"total[0]"``, and
        element i of it for a vector, such as ``"grad[4 + i]"``. What ends in " +" is added to.
    buffers : sequence of str
        Names of the buffers, in order.
    signature : numba signature
        Of inputs and buffers; the function returns nothing.

    Returns
    -------
    Compiled
        Cached on disk where PyTensor can cache the graph.
    """
    inner, key = lower(inputs, list(outputs.values()))
    arguments = ", ".join(f"x{i}" for i in range(len(inputs)))
    # PyTensor passes zero-dimensional arrays where a signature has plain numbers.
    values = ", ".join(
        f"np.asarray(x{i})" if v.type.ndim == 0 else f"x{i}" for i, v in enumerate(inputs)
    )
    returned = ", ".join(f"r{i}" for i in range(len(outputs)))
    lines = [
        f"def {name}({arguments}, {', '.join(buffers)}):",
        f"    {returned}, = inner({values})",
    ]
    # Loops, because numba takes a second or two to compile an assignment to a slice.
    for i, (target, output) in enumerate(outputs.items()):
        if output.type.ndim == 0:
            lines.append(f"    {target}= r{i}.item()")
        else:
            lines += [f"    for i in range(r{i}.shape[0]):", f"        {target}= r{i}[i]"]
    return compile_source(name, "\n".join(lines), {"inner": inner, "np": np}, signature, key)


def lower(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[Callable, str | None]:
    """Return a numba function of a graph, to call from compiled code, and its cache key."""
    # It takes a third of a second to import, and few models need it.
    from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

    from pymc_subsample.compiled.small_matrices import use_loops

    # The maker rewrites the graph as `pytensor.function` does, without making a Python function.
    sources, results = clone(list(inputs), list(outputs))
    maker = FunctionMaker(
        [In(v, borrow=True) for v in sources],
        [Out(v, borrow=True) for v in results],
        mode="NUMBA",
        on_unused_input="ignore",
    )
    use_loops(maker.fgraph)
    return numba_funcify_ensure_cache(maker.fgraph)


def compile_source(
    name: str,
    source: str,
    environment: dict,
    signature: types.Type,
    key: str | None,
) -> Compiled:
    """Compile Python source to a numba function with an explicit signature, cached under `key`.

    `environment` has what it reads: `Named` functions are called by their names, `Compiled` ones
    are a part of it. `key` identifies everything else there; with None nothing is cached.
    """
    words = set(re.findall(r"\w+(?=\()", source))
    called = {k: v for k, v in environment.items() if isinstance(v, Named) and k in words}
    parts = {k: v for k, v in environment.items() if isinstance(v, Compiled)}
    if called:
        head, body = source.strip("\n").split("\n", 1)
        fetched = "".join(f"    {k} = _{k}()\n" for k in sorted(called))
        source = f"{head}\n{fetched}{body}"
    defined = {k: v for k, v in environment.items() if not isinstance(v, Named)}
    defined |= {k: v.function for k, v in parts.items()}
    defined |= {f"_{k}": v.fetch for k, v in called.items()} | {"__name__": __name__}
    exec(compile(source, "<string>", "exec"), defined)
    function = defined[name]
    options = {"error_model": "numpy", "fastmath": FAST, "nogil": True}
    keys = [key, *(called[k].symbol for k in sorted(called)), *(x.key for x in parts.values())]
    known = [k for k in keys if k is not None]
    key = None
    if len(known) == len(keys):
        known += [str(signature), source, f"fastmath {pytensor.config.numba__fastmath}"]
        key = sha256("|".join(known).encode()).hexdigest()
    every = (*called.values(), *(x for part in parts.values() for x in part.called))
    made = compile_kept(function, key, [signature], **options)
    return Compiled(made, signature, key, tuple(dict.fromkeys(every)))


def inner(function: Callable | None = None, **options: Any):
    """Compile a function as `numba.njit` does, where compiled code calls it.

    Without entry points for Python and C, which take as long as the function; called from Python
    it is the Python function.
    """
    made = register_jitable(no_cfunc_wrapper=True, **options)
    return made if function is None else made(function)


# The same, as a part of what calls it, whatever its length.
inlined = inner(forceinline=True)


@contextmanager
def building_graphs() -> Iterator[None]:
    """Build and rewrite graphs faster: no stack trace per node, no garbage collection meanwhile.

    Constants that a rewrite divides by zero, in branches that are never taken, are not warned of.
    """
    with without_collection(), _without_traces(), np.errstate(all="ignore"):
        yield


@shared
@contextmanager
def without_c() -> Iterator[None]:
    """Let PyTensor run what PyMC evaluates at a few points in Python: C takes a second per Op."""
    with pytensor.config.change_flags(cxx=""):
        yield


@shared
@contextmanager
def _without_traces() -> Iterator[None]:
    with pytensor.config.change_flags(traceback__limit=0, **source_flags()):
        yield


@numba.extending.typeof_impl.register(Signature)
def _type_of(signature: Signature, context: Any):
    return types.TypeRef(types.FunctionType(signature))


def _function(context: Any, builder: Any, kind: types.FunctionType, address: Any):
    function = cgutils.create_struct_proxy(kind)(context, builder)
    function.c_addr = builder.inttoptr(address, ir.PointerType(ir.IntType(8)))
    return function._getvalue()


@numba.extending.intrinsic
def function_at(typingctx: BaseTypingContext, address: types.Type, signature: types.Type):
    """Return the function of a signature at an address (inside compiled code)."""
    kind = signature.instance_type

    def codegen(context: Any, builder: Any, signature: Signature, arguments: Sequence[Any]):
        return _function(context, builder, kind, arguments[0])

    return kind(types.int64, signature), codegen


@numba.extending.intrinsic
def functions_at(typingctx: BaseTypingContext, addresses: types.Type, signatures: types.Type):
    """Return functions of signatures, a named tuple, at addresses, an array (in compiled code)."""
    # numba takes a plain tuple for one of equal types, and 0.61 fails to compare functions' types.
    found = [signature.instance_type for signature in signatures]
    kind = types.NamedTuple(found, signatures.instance_class)

    def codegen(context: Any, builder: Any, signature: Signature, arguments: Sequence[Any]):
        pointer = context.make_array(addresses)(context, builder, arguments[0]).data
        found = []
        for position, function in enumerate(kind):
            place = builder.gep(pointer, [ir.Constant(ir.IntType(64), position)])
            found.append(_function(context, builder, function, builder.load(place)))
        return context.make_tuple(builder, kind, found)

    return kind(addresses, signatures), codegen


@dataclass(frozen=True)
class Named:
    """A function that is `kept`, to call from other compiled code without being a part of it."""

    symbol: str
    fetch: Callable  # Returns it in compiled code.
    compiled: Compiled  # Kept alive while it may be called.

    def __reduce__(self) -> tuple:
        """Pickle as machine code that is known by the same name where it is unpickled."""
        return _arrived, (self.symbol, *self.compiled.__reduce__()[1])


def by_name(name: str, function: Any, signature: types.Type) -> Named:
    """Make a function that is `kept` known by a name, which also tells its code and signature.

    It is looked up when the code that calls it is loaded, so that this can be kept on disk too, by
    a process that has called `by_name` before.
    """
    identity = f"{directory().name} {function._cache.key} {signature}"
    symbol = f"pymc_subsample_{name}_{sha256(identity.encode()).hexdigest()[:16]}"  # 64 bits
    if symbol not in _known:
        compile_for(function, signature)
        _known[symbol] = _named(symbol, Compiled(function, signature, None))
    return _known[symbol]


def _arrived(symbol: str, *code: Any) -> Named:
    """Return what is known by a name, or load it: numba never unloads code."""
    if symbol not in _known:
        _known[symbol] = _named(symbol, _received(*code))
    return _known[symbol]


_known: dict[str, Named] = {}


def _named(symbol: str, compiled: Compiled) -> Named:
    llvmlite.binding.add_symbol(symbol, compiled.address)
    kind = types.FunctionType(compiled.signature)

    @numba.extending.intrinsic
    def named(typingctx: BaseTypingContext):
        def codegen(context: Any, builder: Any, signature: Signature, arguments: Sequence[Any]):
            shape = ir.FunctionType(ir.VoidType(), [])
            found = cgutils.get_or_insert_function(builder.module, shape, symbol)
            return _function(context, builder, kind, builder.ptrtoint(found, ir.IntType(64)))

        return kind(), codegen

    return Named(symbol, named, compiled)


def address_of(rng: np.random.Generator) -> int:
    """Where a generator is, for `generator_at`; keep `rng` alive while it is used.

    numba takes a Generator apart by running Python, and when a signal's handler raises an exception
    there, such as KeyboardInterrupt, goes on with addresses that it has not got.
    """
    return rng.bit_generator.ctypes.bit_generator.value


@numba.extending.intrinsic
def generator_at(typingctx: BaseTypingContext, address: types.Type):
    """Return the NumPy generator at an address (inside compiled code)."""
    kind = types.npy_rng

    def codegen(context: Any, builder: Any, signature: Signature, arguments: Sequence[Any]):
        # NumPy's `bitgen_t`, of which all members are pointers.
        members = ("state", "fnptr_next_uint64", "fnptr_next_uint32", "fnptr_next_double")
        word = context.get_value_type(types.uintp)
        pointer = builder.inttoptr(arguments[0], ir.PointerType(word))
        bits = cgutils.create_struct_proxy(_BIT_GENERATOR)(context, builder)
        for position, member in enumerate(members):
            at = builder.gep(pointer, [ir.Constant(ir.IntType(32), position)])
            setattr(bits, member, builder.load(at))
        generator = cgutils.create_struct_proxy(kind)(context, builder)
        generator.bit_generator = bits._getvalue()
        return generator._getvalue()

    return kind(types.int64), codegen


@numba.extending.intrinsic
def load(typingctx: BaseTypingContext, address: types.Type, dtype: types.Type):
    """Read a number of some NumPy type at an address (inside compiled code)."""
    kind = dtype.dtype

    def codegen(context: Any, builder: Any, signature: Signature, arguments: Sequence[Any]):
        pointer = builder.inttoptr(arguments[0], ir.PointerType(context.get_data_type(kind)))
        value = builder.load(pointer)
        value.align = 1
        return value

    return kind(types.int64, dtype), codegen


def external(name: str, n_arguments: int):
    """Make a function of doubles of `scipy.special.cython_special` callable from compiled code.

    It is bound by name, so that the code that calls it can be kept on disk.
    """
    from scipy.special import cython_special

    kind = f"double ({'double, ' * n_arguments}int __pyx_skip_dispatch)"
    exported = cython_special.__pyx_capi__
    [key] = [k for k, v in exported.items() if k.endswith(name) and f'"{kind}"' in str(v)]
    symbol = f"pymc_subsample_{name}"
    address = get_cython_function_address("scipy.special.cython_special", key)
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, SCALAR(*[SCALAR] * n_arguments, types.int32))
