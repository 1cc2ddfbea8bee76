"""Arguments of operator calls: matched with the schema, then spelled for the dispatcher or for a
C function.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from coilwork_cpp_wrapper.scope import Scope, dtype_code
from coilwork_ir.buffers import Argument, DeviceValue, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import ExternCall
from coilwork_ir.syntax.cpp import Braces, Call, Code, Member, Name, integer, real, string
from coilwork_runtime.c_shim import SIMPLE_TYPES, Parameter, Schema, Type, c_types

Bound = tuple[Parameter, Argument]
ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "strided": "aoti_torch_layout_strided",
        "contiguous_format": "aoti_torch_memory_format_contiguous_format",
        "channels_last": "aoti_torch_memory_format_channels_last",
        "channels_last_3d": "aoti_torch_memory_format_channels_last_3d",
        "preserve_format": "aoti_torch_memory_format_preserve_format",
    }
)
CODES: Final = ("ScalarType", "Layout", "MemoryFormat")
NULL: Final = Name("nullptr")


class UnsupportedArgument(Exception):
    """An argument that cannot be spelled; the text says which and why."""


def bind_arguments(call: ExternCall, schema: Schema) -> tuple[Bound, ...]:
    """Each parameter of `schema` with its argument, defaults filled in.

    Raises:
        UnsupportedArgument: the call does not fit the schema.
    """
    if len(call.args) > len(schema.parameters):
        raise UnsupportedArgument(
            f"it takes {len(schema.parameters)} arguments and is given {len(call.args)}"
        )
    given: dict[str, Argument] = {
        p.name: a for p, a in zip(schema.parameters[: len(call.args)], call.args, strict=True)
    }
    given.update(call.kwargs)
    given.update((keyword, Ref(name)) for keyword, name in call.out)
    bound: list[Bound] = []
    for parameter in schema.parameters:
        if parameter.name in given:
            bound.append((parameter, given.pop(parameter.name)))
        elif parameter.has_default:
            bound.append((parameter, _default(parameter.default)))
        elif parameter.type.name == "Optional":
            bound.append((parameter, None))
        else:
            raise UnsupportedArgument(f"argument {parameter.name} is missing")
    if given:
        raise UnsupportedArgument(f"it has no argument {next(iter(given))}")
    return tuple(bound)


def _default(value: Any) -> Argument:
    if isinstance(value, list | tuple):
        return ListValue(tuple(_default(item) for item in value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedArgument(f"its default {value!r} cannot be spelled")


def dispatch_value(parameter: Parameter, value: Argument, scope: Scope) -> Code:
    """An `rt::Value` for the dispatcher.

    Raises:
        UnsupportedArgument: its C interface has no form for it.
    """
    try:
        return _dispatch(parameter.type, _repeat_number(parameter, value), scope)
    except UnsupportedArgument as error:
        raise UnsupportedArgument(f"argument {parameter.name}: {parameter.type}: {error}") from error


def _repeat_number(parameter: Parameter, value: Argument) -> Argument:
    """A single number where a list of fixed length is expected stands for all of its items."""
    if parameter.type.name == "List" and parameter.length and isinstance(value, int | float | Expr):
        return ListValue((value,) * parameter.length)
    return value


def _dispatch(kind: Type, value: Argument, scope: Scope) -> Code:
    if kind.element is not None and kind.name == "Optional":
        return (
            Call("rt::none")
            if value is None
            else Call("rt::optional", (_dispatch(kind.element, value, scope),))
        )
    if kind.element is not None and kind.name == "List" and isinstance(value, ListValue):
        element = kind.element
        return Call("rt::list", (Braces(tuple(_dispatch(element, item, scope) for item in value.items)),))
    if kind.name in CODES:
        return Call("rt::code", (_code(kind, value),))
    match kind.name, value:
        case "Tensor", Ref(name):
            return Call("rt::tensor", (Name(scope.name(name)),))
        case "int", int() | Expr():
            return Call("rt::integer", (_number(value, scope),))
        case "float", int() | float() | Expr():
            return Call("rt::real", (_real(value, scope),))
        case "bool", bool():
            return Call("rt::boolean", (_boolean(value),))
        case "str" | "Any", str():
            # of any type: through a relay
            return Call("rt::text", (string(value),))
        case "Device", DeviceValue(device):
            _require_cpu(device)
            return Call("rt::cpu")
        case "number", _:
            raise UnsupportedArgument("torch's C dispatcher takes no Scalar")
        case _:
            raise UnsupportedArgument(f"a {type(value).__name__} has no C form there")


def _code(kind: Type, value: Argument) -> Code:
    match kind.name, value:
        case "ScalarType", DType():
            return dtype_code(value)
        case "Layout" | "MemoryFormat", TorchValue(attribute) if attribute in ATTRIBUTES:
            return Call(ATTRIBUTES[attribute])
        case _, int():
            return integer(value)
        case _:
            raise UnsupportedArgument(f"{value!r} has no C form there")


def _number(value: int | Expr, scope: Scope) -> Code:
    return scope.index(value) if isinstance(value, Expr) else integer(int(value))


def _real(value: float | Expr, scope: Scope) -> Code:
    return Call("double", (scope.index(value),)) if isinstance(value, Expr) else real(float(value))


def _boolean(value: bool) -> Code:
    return Name("true" if value else "false")


def _require_cpu(device: str) -> None:
    if device != "cpu":
        raise UnsupportedArgument(f"device {device}: only the CPU is supported")


# C functions of single operators


def shim_parameters(kind: Type) -> tuple[str, ...]:
    """C types of the parameters that a parameter of type `kind` becomes.

    Raises:
        UnsupportedArgument: not a type that functions of the table have.
    """
    found = c_types(kind)
    if found is None:
        raise UnsupportedArgument(f"type {kind}")
    return found


def shim_values(parameter: Parameter, value: Argument, scope: Scope) -> tuple[Code, ...]:
    """Arguments for `shim_parameters(parameter.type)`.

    Raises:
        UnsupportedArgument: the value has no C form.
    """
    kind, value = parameter.type, _repeat_number(parameter, value)
    if kind.name == "Optional" and kind.element is not None:
        return _shim_optional(kind.element, value, scope)
    if isinstance(value, ListValue):
        return _shim_list(kind, value, scope)
    return (_simple(kind, value, scope),)


def _shim_optional(element: Type, value: Argument, scope: Scope) -> tuple[Code, ...]:
    """An optional argument is a pointer; a device's index follows by value."""
    match element.name, value:
        case "Device", None:
            return NULL, integer(0)
        case "Device", DeviceValue(device):
            _require_cpu(device)
            return _slot("int32_t", Call("aoti_torch_device_type_cpu")), integer(0)
        case _, None:
            return (NULL,)
        case "Tensor", Ref(name):
            return (Call(f"{scope.name(name)}.pointer"),)
        case _:
            return (_slot(SIMPLE_TYPES[element.name], _simple(element, value, scope)),)


def _slot(kind: str, value: Code) -> Code:
    return Member(Call(f"rt::Slot<{kind}>", (value,)), "data")


def _simple(kind: Type, value: Argument, scope: Scope) -> Code:
    if kind.name in CODES:
        return _code(kind, value)
    match kind.name, value:
        case "Tensor", Ref(name):
            return Call(f"{scope.name(name)}.get")
        case "int", int() | Expr():
            return _number(value, scope)
        case "float" | "number", int() | float() | Expr():
            return _real(value, scope)
        case "bool", bool():
            return integer(int(value))
        case "str", str():
            return string(value)
        case _:
            raise UnsupportedArgument(f"a {type(value).__name__} has no C form there")


def _shim_list(kind: Type, value: ListValue, scope: Scope) -> tuple[Code, ...]:
    count = integer(len(value.items))
    match str(kind):
        case "List[int]":
            numbers = [_number(i, scope) for i in value.items if isinstance(i, int | Expr)]
            return Member(Call("rt::Ints", (Braces(tuple(numbers)),)), "data"), count
        case "List[Tensor]":
            handles = [Call(f"{scope.name(i.name)}.get") for i in value.items if isinstance(i, Ref)]
            return Member(Call("rt::Handles", (Braces(tuple(handles)),)), "data"), count
        case _:
            raise UnsupportedArgument(f"a list for type {kind}")
