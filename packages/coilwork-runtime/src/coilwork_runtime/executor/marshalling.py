"""Marshal arguments of operators for the native executor. See `Value` in native/program/model.hpp for the
codes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import torch

from coilwork_runtime.c_shim import Parameter, Type
from coilwork_runtime.executor.program_reader import Argument, Size, Slot
from coilwork_runtime.manifest.wire_format import i64, join_items, text, u32

Codes = Callable[[str], int | None]
"""What a function of torch's C interface that names a constant returns, e.g. `aoti_torch_dtype_float32`;
`None` without it.
"""
EXACT_INTEGER: Final = 1 << 53
"""A double holds every integer up to this one."""


class Kind(IntEnum):
    """The codes of values."""

    NONE = 0
    TENSOR = 1
    SIZE = 2
    INT = 3
    REAL = 4
    REAL_OF_SIZE = 5
    BOOL = 6
    CODE = 7
    TEXT = 8
    LIST = 9
    SOME = 10
    DEVICE = 11
    UNDEFINED = 12
    TENSOR_AT = 20
    INTS = 21
    TENSORS = 22
    INT_AT = 23
    REAL_AT = 24
    CODE_AT = 25
    DEVICE_AT = 26
    BOOLS = 27
    INTS_AT = 28


_LISTS: Final[Mapping[str, Kind]] = {"int": Kind.INTS, "bool": Kind.BOOLS}
INTEGER: Final = Type(name="int")


class Unplanned(Exception):
    """A call that torch's C interface cannot make; the text says why."""


def encode_dispatcher_value(parameter: Parameter, value: Argument, code: Codes) -> bytes:
    """`value` for the dispatcher.

    Raises:
        Unplanned: its C interface has no form for it.
    """
    try:
        return _encode_for_dispatcher(parameter.type, repeat_scalar(parameter, value), code)
    except Unplanned as error:
        raise Unplanned(f"argument {parameter.name}: {parameter.type}: {error}") from error


def encode_function_value(parameter: Parameter, value: Argument, code: Codes) -> bytes:
    """`value` for the C function of a single operator.

    Raises:
        Unplanned: it has no form there.
    """
    kind, value = parameter.type, repeat_scalar(parameter, value)
    if str(kind) == "Optional[List[int]]":
        # a pointer to a pointer, then a count
        listed = [] if value is None else value
        if not isinstance(listed, list):
            raise Unplanned("an optional list is not given as one")
        items = join_items([_scalar(INTEGER, item, code) for item in listed])
        return _code(Kind.NONE) + _code(Kind.NONE) if value is None else _code(Kind.INTS_AT) + items
    if kind.name == "Optional" and kind.element is not None:
        return _pointer(kind.element, value, code)
    if kind.name == "List" and kind.element is not None and isinstance(value, list):
        items = join_items([_scalar(kind.element, item, code) for item in value])
        return _code(_LISTS.get(kind.element.name, Kind.TENSORS)) + items
    return _scalar(kind, value, code)


def repeat_scalar(parameter: Parameter, value: Argument) -> Argument:
    """Return a single number where a list of fixed length is expected stands for all of its items."""
    if parameter.type.name == "List" and parameter.length and isinstance(value, int | float | Size):
        return [value] * parameter.length
    return value


def is_exact(value: Argument) -> bool:
    """Return True if a double holds the number `value`."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= EXACT_INTEGER)


def _encode_for_dispatcher(kind: Type, value: Argument, code: Codes) -> bytes:
    if kind.element is not None and kind.name == "Optional":
        return (
            _code(Kind.NONE)
            if value is None
            else _code(Kind.SOME) + _encode_for_dispatcher(kind.element, value, code)
        )
    if kind.element is not None and kind.name == "List" and isinstance(value, list):
        return _code(Kind.LIST) + join_items(
            [_encode_for_dispatcher(kind.element, item, code) for item in value]
        )
    if kind.name == "number":
        raise Unplanned("torch's C dispatcher takes no Scalar")
    if kind.name == "Device" and isinstance(value, torch.device):
        return _code(Kind.DEVICE) + _device(value, code)
    return _scalar(kind, value, code)


def _pointer(element: Type, value: Argument, code: Codes) -> bytes:
    """An optional argument is a pointer; a device's index follows by value."""
    match element.name, value:
        case "Device", None:
            return _code(Kind.NONE) + _code(Kind.NONE)
        case "Device", torch.device():
            return _code(Kind.DEVICE_AT) + _device(value, code)
        case _, None:
            return _code(Kind.NONE)
        case "Tensor", Slot(number):
            return _code(Kind.TENSOR_AT) + u32(number)
        case "int", _:
            return _code(Kind.INT_AT) + _scalar(element, value, code)
        case "float" | "number", _:
            return _code(Kind.REAL_AT) + _scalar(element, value, code)
        case "bool", bool():
            return _code(Kind.CODE_AT) + i64(value)
        case "ScalarType" | "Layout" | "MemoryFormat", _:
            return _code(Kind.CODE_AT) + i64(_torch_code(value, code))
        case _:
            raise Unplanned(f"an optional {element} has no C form")


def _scalar(kind: Type, value: Argument, code: Codes) -> bytes:
    match kind.name, value:
        case "Tensor", Slot(number):
            return _code(Kind.TENSOR) + u32(number)
        case "Tensor", None:
            # derivatives hand on what the forward had none of, by a tensor that is undefined
            return _code(Kind.UNDEFINED)
        case "int", Size(number):
            return _code(Kind.SIZE) + u32(number)
        case "int", int():
            return _code(Kind.INT) + i64(value)
        case "float" | "number", Size(number):
            return _code(Kind.REAL_OF_SIZE) + u32(number)
        case "float" | "number", int() | float():
            return _code(Kind.REAL) + struct.pack("<d", float(value))
        case "bool", bool():
            return _code(Kind.BOOL) + i64(value)
        case "str", str():
            return _code(Kind.TEXT) + text(value)
        case "ScalarType" | "Layout" | "MemoryFormat", _:
            return _code(Kind.CODE) + i64(_torch_code(value, code))
        case _:
            raise Unplanned(f"a {type(value).__name__} has no C form there")


_FAMILIES: Final[Mapping[type, str]] = {
    torch.dtype: "aoti_torch_dtype",
    torch.layout: "aoti_torch_layout",
    torch.memory_format: "aoti_torch_memory_format",
}


def _torch_code(value: Argument, code: Codes) -> int:
    """Return the number by which torch's C interface knows an element type, a layout or a memory format."""
    if isinstance(value, int):
        return value
    family = _FAMILIES.get(type(value))
    number = None if family is None else code(f"{family}_{str(value).removeprefix('torch.')}")
    if number is None:
        raise Unplanned(f"{value!r} has no C form there")
    return number


def _device(value: torch.device, code: Codes) -> bytes:
    number = code(f"aoti_torch_device_type_{value.type}")
    if number is None:
        raise Unplanned(f"device {value} has no C form")
    return struct.pack("<ii", number, value.index or 0)


def _code(kind: Kind) -> bytes:
    return bytes((kind,))
