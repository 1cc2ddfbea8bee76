"""The plans of a program's calls, for a process that has torch but no Python.

A plan names functions of torch's C interface instead of giving their addresses. A call may have several: the
reader takes the first whose function its torch has (`docs/how-to/ship-a-model.md`). A call that only Python
makes has none, and the reason stands there instead.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_runtime.executor.call_plans import CallPlan, Route, plan_call
from coilwork_runtime.executor.program_reader import RecordedCall, read_tables
from coilwork_runtime.executor.vendor_libraries import ConvolutionLibrary, ProductLibrary
from coilwork_runtime.manifest.wire_format import block, join_items, text, u32

MAGIC: Final = b"coilwork-plans"
SCHEMA: Final = 1
# Stands for an address, which the reader looks up.
_SOME_ADDRESS: Final = 1


@dataclass(slots=True)
class _Names:
    """torch's C interface by names: says that it has every function, or none, and remembers the last one."""

    library: ctypes.CDLL
    has_functions: bool
    last: str = ""

    def symbol(self, name: str) -> int:
        self.last = name
        return _SOME_ADDRESS if self.has_functions else 0

    def code(self, name: str) -> int | None:
        """Do as `TorchInterface.code`."""
        try:
            function = self.library[name]
        except AttributeError:
            return None
        function.restype = ctypes.c_int32
        number: int = function()
        return number


def encode_plans(program: bytes) -> bytes:
    """Return the plans of the calls of `program`, in their order.

    `MAGIC`, `SCHEMA`, and a list of calls: the reason why there is no plan, which is empty otherwise, and a
    list of the name of a function, empty for plans without one, and a plan (native/program/plans.hpp).

    Raises:
        ProgramBytesError: the bytes are no program.
    """
    library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    calls = [_encode_call(call, library) for call in read_tables(program).calls]
    return MAGIC + u32(SCHEMA) + join_items(calls)


def _encode_call(call: RecordedCall, library: ctypes.CDLL) -> bytes:
    named, plain = _Names(library, True), _Names(library, False)
    # the process that loads them decides whether its libraries do products and convolutions
    libraries = ProductLibrary(), ConvolutionLibrary()
    by_function, otherwise = plan_call(call, named, *libraries), plan_call(call, plain, *libraries)
    plans: list[tuple[str, CallPlan]] = []
    if by_function.route is Route.FUNCTION:
        plans.append((named.last, by_function))
    if otherwise.route not in (Route.PYTHON, Route.LAUNCH):
        plans.append(("", otherwise))
    return text("" if plans else f"{call.target}: {otherwise.reason}") + _encode_list(plans)


def _encode_list(plans: Sequence[tuple[str, CallPlan]]) -> bytes:
    return join_items([text(name) + block(plan.data) for name, plan in plans])
