"""Names and expressions of one emitted Python function.

`Scope` knows what a function's variables are called and notes what it uses of the runtime and of torch. Index
expressions, literals and arguments of calls become trees of `coilwork_ir.syntax`.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, format_expr, substitute, symbol
from coilwork_ir.program.nodes import Program
from coilwork_ir.syntax.python import (
    NONE,
    Attribute,
    Call,
    Expression,
    Formula,
    List,
    Name,
    Number,
    Text,
    Tuple,
    Unary,
    call,
    method,
    number,
)
from coilwork_wrapper.runtime_interface import FUNCTIONS

# ---- expressions ----


DTYPE_NAMES: Final = tuple(dtype.torch_name for dtype in DType)
ROUND: Final = "round_number"
"""The variable of a loop that counts."""
RESERVED: Final = frozenset(
    {
        ROUND,
        *("_", "args", "torch", "rt", "call", "known_inputs", "kernels", "constants", "results"),
        *("make_call", "make_inputs", "make_constants", "KERNELS"),
        *FUNCTIONS,
        *DTYPE_NAMES,
        *dir(builtins),
    }
)
"""Names that generated modules use themselves."""


def make_identifiers(names: Iterable[str], *taken: Container[str]) -> Mapping[str, str]:
    """Return a distinct valid identifier for each of `names`, the name itself where that is one and in none
    of `taken`.
    """
    fresh = FreshNames(shared=(RESERVED, *taken))
    chosen: dict[str, str] = {}
    for name in names:
        if name in chosen:
            continue
        base = name if name.isascii() and name.isidentifier() else _spell(name)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        chosen[name] = fresh.close_to(base)
    return chosen


def _spell(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


TORCH = Name("torch")


def index_expression(expr: Expr, names: Mapping[str, str]) -> Expression:
    """`expr` as Python, its symbols under the identifiers `names`.

    The canonical text form of an index expression is Python already.
    """
    if expr.is_const:
        return Number(expr.value)
    renamed = {
        one: symbol(names[one.name], lo=one.lo, hi=one.hi)
        for one in expr.free_symbols
        if names[one.name] != one.name
    }
    return Formula(format_expr(substitute(expr, renamed) if renamed else expr))


def quote(text: str) -> Text:
    """Return a string, as Python's `repr` spells it."""
    return Text(text, "'")


def get_torch_dtype(dtype: DType) -> Attribute:
    """Return the torch attribute."""
    return Attribute(TORCH, dtype.torch_name)


def argument(
    value: Argument, name_of: Callable[[str], str], index: Callable[[Expr], Expression]
) -> Expression:
    """Return an argument of an operator call; `name_of` gives the identifier of a buffer, `index` a size."""
    match value:
        case Ref(name):
            return Name(name_of(name))
        case Item(name):
            return method(Name(name_of(name)), "item")
        case Expr():
            return index(value)
        case DType():
            return get_torch_dtype(value)
        case TorchValue(attribute):
            return Attribute(TORCH, attribute)
        case DeviceValue(device):
            return method(TORCH, "device", quote(device))
        case ListValue(items):
            return List(tuple(argument(item, name_of, index) for item in items))
        case float():
            return real(value)
        case complex():
            return call("complex", real(value.real), real(value.imag))
        case str():
            return quote(value)
        case None:
            return NONE
        case _:
            return Number(value)


def real(value: float) -> Expression:
    """Return a float; a NaN keeps its sign."""
    if math.isnan(value) and math.copysign(1.0, value) < 0:
        return Unary("-", number(value))
    return number(value)


# ---- scope ----


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
        """Return the variable that holds a buffer or pool."""
        return Name(self.name(buffer))

    def variables(self, buffers: Iterable[str]) -> Tuple:
        """Return the variables that hold buffers, as a tuple."""
        return Tuple(tuple(map(self.variable, buffers)))

    def index(self, expr: Expr) -> Expression:
        """Return an index expression."""
        return index_expression(expr, self.symbols)

    def shape(self, extents: Iterable[Expr]) -> Tuple:
        """Return a tuple of index expressions."""
        return Tuple(tuple(map(self.index, extents)))

    def layout(self, buffer: Buffer) -> tuple[Expression, Expression, Expression]:
        """Shape, strides and element type of `buffer`."""
        return self.shape(buffer.shape), self.shape(buffer.strides), self.dtype(buffer.dtype)

    def dtype(self, dtype: DType) -> Name:
        """Return the local name of a torch element type."""
        self.used[dtype.torch_name] = get_torch_dtype(dtype)
        return Name(dtype.torch_name)

    def runtime(self, function: str, *arguments: Expression) -> Call:
        """Return a call of a function of the runtime, by its local name."""
        self.used[function] = Attribute(Name("rt"), function)
        return Call(Name(function), arguments)

    def argument(self, value: Argument) -> Expression:
        """Return an argument of an operator call."""
        return argument(value, self.name, self.index)
