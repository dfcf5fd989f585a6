"""Compiled functions that hold all that they call.

numba compiles a function that another one calls twice: by itself, and as a part of the other, where
it may come out with operations in another order. A call that is not inlined goes to whichever of
them the process has loaded first: one that compiles a function would compute other last bits than
one that reads it from the disk.
"""

from typing import Any
from uuid import uuid4

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

# How the names of functions begin that were Python: not those that count references, which numba
# knows by name.
_OF_PYTHON = "_ZN"


class _Library(JITCodeLibrary):
    """Machine code in which calls are to its own copies."""

    def finalize(self) -> None:
        self._own = {f.name for f in self._final_module.functions if not f.is_declaration}
        super().finalize()

    def _optimize_final_module(self) -> None:
        # Under names that nobody else calls: LLVM finds local functions by name too, and may have
        # changed what arguments they take.
        mark = uuid4().hex
        for function in self._final_module.functions:
            called = not function.is_declaration and function.name not in self._own
            if called and function.name.startswith(_OF_PYTHON):
                function.linkage = Linkage.internal
                function.name = f"{function.name}.{mark}"
        super()._optimize_final_module()


class SelfContained(Compiler):
    """numba's compiler, for functions that hold all that they call: `pipeline_class` of `njit`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.state.library is None:
            self.state.library = _Library(self.state.targetctx.codegen(), "selfcontained")
            self.state.library.enable_object_caching()
