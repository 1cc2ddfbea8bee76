"""Python text of index expressions, shapes, element types and call arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coilwork_ir.buffers import Argument, DeviceValue, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, format_expr


def index_text(expr: Expr) -> str:
    """`expr` as Python; the canonical text form of an index expression is Python already."""
    return format_expr(expr)


def tuple_text(values: Sequence[str]) -> str:
    """A tuple display."""
    return f"({values[0]},)" if len(values) == 1 else f"({', '.join(values)})"


def shape_text(extents: Sequence[Expr]) -> str:
    """A tuple of index expressions."""
    return tuple_text([index_text(extent) for extent in extents])


def dtype_text(dtype: DType) -> str:
    """The torch attribute."""
    return f"torch.{dtype.torch_name}"


def argument_text(value: Argument, name_of: Callable[[str], str]) -> str:
    """An argument of an operator call; `name_of` gives the identifier of a buffer."""
    match value:
        case Ref(name):
            return name_of(name)
        case Expr():
            return index_text(value)
        case DType():
            return dtype_text(value)
        case TorchValue(attribute):
            return f"torch.{attribute}"
        case DeviceValue(device):
            return f'torch.device("{device}")'
        case ListValue(items):
            return "[" + ", ".join(argument_text(item, name_of) for item in items) + "]"
        case float():
            return float_text(value)
        case _:
            return repr(value)


def float_text(value: float) -> str:
    """A float literal; infinities and nan have none, so they are spelled as calls."""
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
