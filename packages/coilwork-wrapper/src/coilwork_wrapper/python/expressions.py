"""Python text of index expressions, shapes and call arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, format_expr, substitute, symbol


def index_text(expr: Expr, names: Mapping[str, str]) -> str:
    """`expr` as Python, its symbols under the identifiers `names`.

    The canonical text form of an index expression is Python already.
    """
    renamed = {
        one: symbol(names[one.name], lo=one.lo, hi=one.hi)
        for one in expr.free_symbols
        if names[one.name] != one.name
    }
    return format_expr(substitute(expr, renamed) if renamed else expr)


def tuple_text(values: Sequence[str]) -> str:
    """A tuple display."""
    return f"({values[0]},)" if len(values) == 1 else f"({', '.join(values)})"


def dtype_text(dtype: DType) -> str:
    """The torch attribute."""
    return f"torch.{dtype.torch_name}"


def argument_text(value: Argument, name_of: Callable[[str], str], index: Callable[[Expr], str]) -> str:
    """An argument of an operator call; `name_of` gives the identifier of a buffer, `index` the text of a size."""
    match value:
        case Ref(name):
            return name_of(name)
        case Item(name):
            return f"{name_of(name)}.item()"
        case Expr():
            return index(value)
        case DType():
            return dtype_text(value)
        case TorchValue(attribute):
            return f"torch.{attribute}"
        case DeviceValue(device):
            return f"torch.device({device!r})"
        case ListValue(items):
            return "[" + ", ".join(argument_text(item, name_of, index) for item in items) + "]"
        case float():
            return float_text(value)
        case complex():
            return f"complex({float_text(value.real)}, {float_text(value.imag)})"
        case _:
            return repr(value)


def float_text(value: float) -> str:
    """A float literal; infinities and nan have none, so they are spelled as calls."""
    if math.isnan(value) and math.copysign(1.0, value) < 0:
        return '-float("nan")'
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
