"""What the emission of one program's function needs to know, and what it turns out to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coilwork_ir.buffers import Argument, Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import Program
from coilwork_wrapper.python.expressions import argument_text, index_text, tuple_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Identifiers of one function.

    Attributes:
        name: identifier of a buffer or pool.
        symbols: identifiers of size symbols.
        buffer: declaration of a buffer.
        inputs: names of the buffers that are parameters.
        constants: names of the buffers that are constants, which all functions share and none deletes.
        operator: identifier bound to an operator overload, e.g. `"aten.mm.out"` -> `"aten_mm_out"`.
        kernel: identifier bound to a kernel's launcher.
        function: identifier of the function that a nested program becomes.
        outer: symbols that a nested program's function takes after its list of arguments.
        used: functions of the runtime, and element types, that the emitted text mentions; it is filled by emission.
    """

    name: Callable[[str], str]
    symbols: Mapping[str, str]
    buffer: Callable[[str], Buffer]
    inputs: frozenset[str]
    constants: frozenset[str]
    operator: Callable[[str], str]
    kernel: Callable[[str], str]
    function: Callable[[Program], str]
    outer: Callable[[Program], tuple[Expr, ...]]
    used: dict[str, str]

    def index(self, expr: Expr) -> str:
        """An index expression."""
        return index_text(expr, self.symbols)

    def shape(self, extents: Sequence[Expr]) -> str:
        """A tuple of index expressions."""
        return tuple_text([self.index(extent) for extent in extents])

    def dtype(self, dtype: DType) -> str:
        """The local name of a torch element type."""
        self.used[dtype.torch_name] = f"torch.{dtype.torch_name}"
        return dtype.torch_name

    def runtime(self, function: str) -> str:
        """The local name of a function of the runtime."""
        self.used[function] = f"rt.{function}"
        return function

    def argument(self, value: Argument) -> str:
        """An argument of an operator call."""
        return argument_text(value, self.name, self.index)
