"""Arguments of operator calls in binary form. What they mean to an operator's schema is found out where they
are read.
"""

from __future__ import annotations

from collections.abc import Callable

from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_wrapper.native.encoding import Tag, encode_list, f64, i64, u8, u32
from coilwork_wrapper.native.registers import LARGEST, SMALLEST


def argument_bytes(
    value: Argument, ref: Callable[[str], bytes], register: Callable[[Expr], int], text: Callable[[str], int]
) -> bytes:
    """`value`; the functions tell of buffers and number sizes and strings."""
    match value:
        case None:
            return u8(Tag.NONE)
        case Ref(name):
            return u8(Tag.REF) + ref(name)
        case Item(name):
            return u8(Tag.ITEM) + ref(name)
        case Expr():
            known = as_int(value)
            if known is None or not SMALLEST <= known <= LARGEST:
                return u8(Tag.SIZE) + u32(register(value))
            return u8(Tag.INT) + i64(known)
        case bool():
            return u8(Tag.BOOL) + u8(value)
        case int():
            return argument_bytes(as_expr(value), ref, register, text)
        case float():
            return u8(Tag.FLOAT) + f64(value)
        case complex():
            return u8(Tag.COMPLEX) + f64(value.real) + f64(value.imag)
        case str():
            return u8(Tag.STR) + u32(text(value))
        case DType():
            return u8(Tag.DTYPE) + u32(text(value.torch_name))
        case TorchValue(attribute):
            return u8(Tag.TORCH) + u32(text(attribute))
        case DeviceValue(device):
            return u8(Tag.DEVICE) + u32(text(device))
        case ListValue(items):
            return u8(Tag.LIST) + encode_list(items, lambda item: argument_bytes(item, ref, register, text))
