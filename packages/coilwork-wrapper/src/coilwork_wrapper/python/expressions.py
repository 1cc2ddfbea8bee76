"""Index expressions, literals and arguments of calls as Python.

Python identifiers for the names of a program.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, format_expr, substitute, symbol
from coilwork_ir.syntax.python import (
    NONE,
    Attribute,
    Expression,
    Formula,
    List,
    Name,
    Number,
    Text,
    Unary,
    call,
    method,
    number,
)
from coilwork_wrapper.surface import FUNCTIONS

DTYPE_NAMES: Final = tuple(dtype.torch_name for dtype in DType)
RESERVED: Final = frozenset(
    {
        *("_", "args", "torch", "rt", "call", "known_inputs", "kernels", "constants", "results"),
        *("make_call", "make_inputs", "make_constants", "KERNELS"),
        *FUNCTIONS,
        *DTYPE_NAMES,
        *dir(builtins),
    }
)
"""Names that generated modules use themselves."""


def identifiers(names: Iterable[str], *taken: Container[str]) -> Mapping[str, str]:
    """A distinct valid identifier for each of `names`, the name itself where that is one and in none of
    `taken`.
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
    """A string, as Python's `repr` spells it."""
    return Text(text, "'")


def torch_dtype(dtype: DType) -> Attribute:
    """The torch attribute."""
    return Attribute(TORCH, dtype.torch_name)


def argument(
    value: Argument, name_of: Callable[[str], str], index: Callable[[Expr], Expression]
) -> Expression:
    """An argument of an operator call; `name_of` gives the identifier of a buffer, `index` a size."""
    match value:
        case Ref(name):
            return Name(name_of(name))
        case Item(name):
            return method(Name(name_of(name)), "item")
        case Expr():
            return index(value)
        case DType():
            return torch_dtype(value)
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
    """A float; a NaN keeps its sign."""
    if math.isnan(value) and math.copysign(1.0, value) < 0:
        return Unary("-", number(value))
    return number(value)
