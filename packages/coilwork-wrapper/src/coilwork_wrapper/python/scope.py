"""What the emission of one program's function needs to know, and what it turns out to use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from coilwork_ir.buffers import Argument, Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import Program
from coilwork_ir.syntax.python import Attribute, Call, Expression, Name, Tuple
from coilwork_wrapper.python.expressions import argument, index_expression, torch_dtype


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
        used: functions of the runtime, and element types, that the emitted text mentions; it is filled by
            emission.
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
    used: dict[str, Expression]

    def variable(self, buffer: str) -> Name:
        """The variable that holds a buffer or pool."""
        return Name(self.name(buffer))

    def variables(self, buffers: Iterable[str]) -> Tuple:
        """The variables that hold buffers, as a tuple."""
        return Tuple(tuple(map(self.variable, buffers)))

    def index(self, expr: Expr) -> Expression:
        """An index expression."""
        return index_expression(expr, self.symbols)

    def shape(self, extents: Iterable[Expr]) -> Tuple:
        """A tuple of index expressions."""
        return Tuple(tuple(map(self.index, extents)))

    def layout(self, buffer: Buffer) -> tuple[Expression, Expression, Expression]:
        """Shape, strides and element type of `buffer`."""
        return self.shape(buffer.shape), self.shape(buffer.strides), self.dtype(buffer.dtype)

    def dtype(self, dtype: DType) -> Name:
        """The local name of a torch element type."""
        self.used[dtype.torch_name] = torch_dtype(dtype)
        return Name(dtype.torch_name)

    def runtime(self, function: str, *arguments: Expression) -> Call:
        """A call of a function of the runtime, by its local name."""
        self.used[function] = Attribute(Name("rt"), function)
        return Call(Name(function), arguments)

    def argument(self, value: Argument) -> Expression:
        """An argument of an operator call."""
        return argument(value, self.name, self.index)
