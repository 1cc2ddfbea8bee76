"""Calls of torch operators as C++: through an operator's own C function where there is one, else the
dispatcher.

Arguments are matched with the operator's schema, then spelled for one or the other. A call that has no form
in torch's C interface goes through a relay (`relays.py`), which makes it in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from coilwork_cpp_wrapper.relays import describe_relay
from coilwork_cpp_wrapper.scope import Scope, get_dtype_code, refuse
from coilwork_ir.buffers import Argument, Buffer, DeviceValue, Item, ListValue, Ref, SymbolOutput, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import ExternCall
from coilwork_ir.streams import is_host
from coilwork_ir.syntax.cpp import (
    Assign,
    Braces,
    Call,
    Code,
    Declare,
    DeclareArray,
    Do,
    Member,
    Name,
    Statement,
    element,
    integer,
    real,
    string,
)
from coilwork_runtime.c_shim import (
    C_FUNCTIONS,
    LISTS,
    NUMBER_READS,
    SIMPLE_TYPES,
    CFunction,
    Parameter,
    Schema,
    Type,
    find_function_name,
    find_schema,
    list_c_types,
)

# ---- arguments ----


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
INTEGERS: Final = Type(name="List", element=Type(name="int"))
# What holds the items of a list that a C function takes.
_ARRAYS: Final[Mapping[str, str]] = MappingProxyType(
    {"List[int]": "rt::Ints", "List[bool]": "rt::Codes", "List[Tensor]": "rt::Handles"}
)


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
            bound.append((parameter, _default_value(parameter.default)))
        elif parameter.type.name == "Optional":
            bound.append((parameter, None))
        else:
            raise UnsupportedArgument(f"argument {parameter.name} is missing")
    if given:
        raise UnsupportedArgument(f"it has no argument {next(iter(given))}")
    return tuple(bound)


def _default_value(value: Any) -> Argument:
    if isinstance(value, list | tuple):
        return ListValue(tuple(_default_value(item) for item in value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedArgument(f"its default {value!r} cannot be spelled")


def dispatch_value(parameter: Parameter, value: Argument, scope: Scope) -> Code:
    """Return an `rt::Value` for the dispatcher.

    Raises:
        UnsupportedArgument: its C interface has no form for it.
    """
    try:
        return _dispatch(parameter.type, _repeat_number(parameter, value), scope)
    except UnsupportedArgument as error:
        raise UnsupportedArgument(f"argument {parameter.name}: {parameter.type}: {error}") from error


def _repeat_number(parameter: Parameter, value: Argument) -> Argument:
    """Return a single number where a list of fixed length is expected stands for all of its items."""
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
        return Call("rt::code", (_enum_code(kind, value),))
    match kind.name, value:
        case "Tensor", Ref(name):
            return Call("rt::tensor", (Name(scope.name(name)),))
        case "Tensor", None:
            # derivatives hand on what the forward had none of, by a tensor that is undefined
            return Call("rt::undefined")
        case "int", int() | Expr():
            return Call("rt::integer", (_number(value, scope),))
        case "float", int() | float() | Expr():
            return Call("rt::real", (_write_real(value, scope),))
        case "bool", bool():
            return Call("rt::boolean", (_boolean(value),))
        case "str", str():
            return Call("rt::text", (string(value),))
        case "Device", DeviceValue(device):
            return Call("rt::place", (_place(device, scope),))
        case "number", _:
            raise UnsupportedArgument("torch's C dispatcher takes no Scalar")
        case _:
            raise UnsupportedArgument(f"a {type(value).__name__} has no C form there")


def _enum_code(kind: Type, value: Argument) -> Code:
    match kind.name, value:
        case "ScalarType", DType():
            return get_dtype_code(value)
        case "Layout" | "MemoryFormat", TorchValue(attribute) if attribute in ATTRIBUTES:
            return Call(ATTRIBUTES[attribute])
        case _, int():
            return integer(value)
        case _:
            raise UnsupportedArgument(f"{value!r} has no C form there")


def _number(value: int | Expr, scope: Scope) -> Code:
    return scope.index(value) if isinstance(value, Expr) else integer(int(value))


def _write_real(value: float | Expr, scope: Scope) -> Code:
    return Call("double", (scope.index(value),)) if isinstance(value, Expr) else real(float(value))


def _boolean(value: bool) -> Code:
    return Name("true" if value else "false")


def _place(device: str, scope: Scope) -> Code:
    """Return an `rt::Device`."""
    if not is_host(device) and device not in (scope.gpu, scope.gpu.partition(":")[0]):
        raise UnsupportedArgument(f"device {device}: the program has memory on the host and {scope.gpu}")
    return Call("rt::host" if is_host(device) else "rt::gpu")


# C functions of single operators


def list_shim_parameters(kind: Type) -> tuple[str, ...]:
    """C types of the parameters that a parameter of type `kind` becomes.

    Raises:
        UnsupportedArgument: not a type that functions of the table have.
    """
    types = LISTS.get(str(kind)) or list_c_types(kind)
    if types is None:
        raise UnsupportedArgument(f"type {kind}")
    return types


def list_shim_values(parameter: Parameter, value: Argument, scope: Scope) -> tuple[Code, ...]:
    """Arguments for `list_shim_parameters(parameter.type)`.

    Raises:
        UnsupportedArgument: the value has no C form.
    """
    kind, value = parameter.type, _repeat_number(parameter, value)
    if str(kind) == "Optional[List[int]]":
        return _shim_optional_list(value, scope)
    if kind.name == "Optional" and kind.element is not None:
        return _shim_optional(kind.element, value, scope)
    if isinstance(value, ListValue):
        return _shim_list(kind, value, scope)
    return (_write_simple_value(kind, value, scope),)


def _shim_optional(element: Type, value: Argument, scope: Scope) -> tuple[Code, ...]:
    """An optional argument is a pointer; a device's index follows by value."""
    match element.name, value:
        case "Device", None:
            return NULL, integer(0)
        case "Device", DeviceValue(device):
            place = _place(device, scope)
            return _slot("int32_t", Member(place, "type")), Member(place, "index")
        case _, None:
            return (NULL,)
        case "Tensor", Ref(name):
            return (Call(f"{scope.name(name)}.pointer"),)
        case _:
            return (_slot(SIMPLE_TYPES[element.name], _write_simple_value(element, value, scope)),)


def _shim_optional_list(value: Argument, scope: Scope) -> tuple[Code, ...]:
    """Return a pointer to a pointer, then a count."""
    if value is None:
        return NULL, integer(0)
    if not isinstance(value, ListValue):
        raise UnsupportedArgument("an optional list is not given as one")
    data, count = _shim_list(INTEGERS, value, scope)
    return _slot("const int64_t*", data), count


def _slot(kind: str, value: Code) -> Code:
    return Member(Call(f"rt::Slot<{kind}>", (value,)), "data")


def _write_simple_value(kind: Type, value: Argument, scope: Scope) -> Code:
    if kind.name in CODES:
        return _enum_code(kind, value)
    match kind.name, value:
        case "Tensor", Ref(name):
            return Call(f"{scope.name(name)}.get")
        case "Tensor", None:
            return Member(Call("rt::Undefined"), "handle")
        case "int", int() | Expr():
            return _number(value, scope)
        case "float" | "number", int() | float() | Expr():
            return _write_real(value, scope)
        case "bool", bool():
            return integer(int(value))
        case "str", str():
            return string(value)
        case _:
            raise UnsupportedArgument(f"a {type(value).__name__} has no C form there")


def _shim_list(kind: Type, value: ListValue, scope: Scope) -> tuple[Code, ...]:
    count = integer(len(value.items))
    element = kind.element
    if element is None or str(kind) not in _ARRAYS:
        raise UnsupportedArgument(f"a list for type {kind}")
    items = tuple(_write_simple_value(element, item, scope) for item in value.items)
    return Member(Call(_ARRAYS[str(kind)], (Braces(items),)), "data"), count


# ---- calls ----


Declared: TypeAlias = Buffer | SymbolOutput | None
MOST_ARGUMENTS: Final = 64
_RESULTS: Final = ("Tensor", "int", "float", "bool", "number")
HOST: Final = "cpu"
# A double holds every integer up to this one.
EXACT_INTEGER: Final = 1 << 53


def emit_call(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    """Statements that make `call` and define its results.

    Raises:
        EmitError: `cpp-unsupported`, torch's C interface cannot call it.
    """
    if call.target in NUMBER_READS:
        yield from _read_number(call, scope)
        return
    schema = find_schema(call.target)
    if schema is None:
        refuse(
            f"operator {call.target} is not known to torch", call.origins, "it has no schema to call it by"
        )
    try:
        bound = bind_arguments(call, schema)
        _require_values(schema, bound)
    except UnsupportedArgument as error:
        refuse(f"{call.target} cannot be called in this way", call.origins, str(error))
    try:
        made = tuple(_call_directly(call, schema, bound, scope))
    except UnsupportedArgument:
        made = tuple(_call_relay(call, scope))
    yield from made
    yield from _settle_results(call, scope)


def _require_values(schema: Schema, bound: tuple[Bound, ...]) -> None:
    """Raise UnsupportedArgument for what no driver could call: a number as a tensor, a type as a result."""
    for parameter, value in bound:
        if parameter.type.name == "Tensor" and not isinstance(value, Ref | Item | None):
            raise UnsupportedArgument(f"argument {parameter.name} is no tensor")
    for kind in schema.results:
        if not any(kind.mentions(name) for name in _RESULTS):
            raise UnsupportedArgument(f"it returns {kind}, which is neither a tensor nor a number")


def _call_directly(
    call: ExternCall, schema: Schema, bound: tuple[Bound, ...], scope: Scope
) -> Iterator[Statement]:
    """Yield the call through a C function, else through the dispatcher.

    Raises:
        UnsupportedArgument: it has no form there.
    """
    shim = find_shim(call.target, schema, _find_device(call, bound, scope))
    if shim is not None and _is_unquantized(bound, scope) and _keeps_result_type(shim, bound, scope):
        try:
            yield from tuple(_call_shim(call, schema, shim, bound, scope))
            return
        except UnsupportedArgument:
            # the dispatcher has forms for more
            pass
    yield from _call_dispatcher(call, schema, bound, scope)


def find_shim(target: str, schema: Schema, device: str) -> CFunction | None:
    """Return the C function of the operator `target` on `device`: of the table, or as the headers of this
    torch declare it.
    """
    known = C_FUNCTIONS.get(target)
    if known is not None and is_host(device):
        return known
    symbol = find_function_name(schema, device) if device else None
    return None if symbol is None else CFunction(symbol=symbol, scalars=known.scalars if known else "promote")


def _find_device(call: ExternCall, bound: tuple[Bound, ...], scope: Scope) -> str:
    """Return the device that the operator runs on.

    Empty if its tensors are on several devices: the dispatcher then finds out.
    """
    tensors = {scope.buffer(name).device for name in _list_tensors(tuple(value for _, value in bound))}
    devices = tensors or {output.device for output in call.outputs if isinstance(output, Buffer)}
    return devices.pop() if len(devices) == 1 else "" if devices else HOST


def _is_unquantized(bound: tuple[Bound, ...], scope: Scope) -> bool:
    """False if a tensor is quantised, for which a device's own kernels are not."""
    names = _list_tensors(tuple(value for _, value in bound))
    return all(scope.buffer(name).dtype.category != "quantized" for name in names)


_C_RESULTS: Final[Mapping[str, str]] = MappingProxyType({"Tensor": "AtenTensorHandle*", "int": "int64_t*"})


def make_shim_prototype(schema: Schema, shim: CFunction) -> str:
    """Return the declaration of the C function `shim` of the operator `schema`."""
    outs = [p for p in schema.parameters if p.is_out]
    rest = [p for p in schema.parameters if not p.is_out]
    kinds = [kind for p in (*outs, *rest) for kind in list_shim_parameters(p.type)]
    if not schema.writes_in_place:
        kinds += [_C_RESULTS[str(result)] for result in schema.results]
    return f"AOTITorchError {shim.symbol}({', '.join(kinds)});"


def _keeps_result_type(shim: CFunction, bound: tuple[Bound, ...], scope: Scope) -> bool:
    """False if taking `Scalar` arguments as `double` would change the result."""
    scalars = [value for p, value in bound if p.type.mentions("number") and value is not None]
    if not all(isinstance(v, bool | int | float) and _is_exact(v) for v in scalars):
        return False
    if all(isinstance(v, float) for v in scalars):
        return True
    if shim.scalars == "cast":
        # without a tensor or an element type the operator would infer one from the Scalar
        return any(isinstance(value, Ref | DType) for _, value in bound)
    if any(isinstance(v, bool) for v in scalars):
        # where it is no number, as `alpha` of a sum, the operator refuses it
        return False
    return any(scope.buffer(name).dtype.is_float for name in _list_tensors(tuple(v for _, v in bound)))


def _is_exact(value: Argument) -> bool:
    return not isinstance(value, int) or abs(value) <= EXACT_INTEGER


def _list_tensors(values: tuple[Argument, ...]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, ListValue):
            yield from _list_tensors(value.items)


def _read_number(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    match call.args, call.outputs:
        case (Ref(name),), (SymbolOutput(symbol=symbol),):
            value = Call("rt::item", (Name(scope.name(name)),))
            yield Declare("const int64_t", scope.symbol(symbol), value)
        case _:
            refuse(
                f"{call.target} in this form",
                call.origins,
                "only an integer read from one tensor is supported",
            )


def _call_shim(
    call: ExternCall, schema: Schema, shim: CFunction, bound: tuple[Bound, ...], scope: Scope
) -> Iterator[Statement]:
    ordered = [b for b in bound if b[0].is_out] + [b for b in bound if not b[0].is_out]
    values = [code for parameter, value in ordered for code in list_shim_values(parameter, value, scope)]
    numbers: list[tuple[str, Declared]] = []
    if not schema.writes_in_place:
        if len(call.outputs) > len(schema.results):
            raise UnsupportedArgument(f"it has {len(schema.results)} results")
        outputs = (*call.outputs, *[None] * (len(schema.results) - len(call.outputs)))
        for kind, output in zip(schema.results, outputs, strict=True):
            if str(kind) == "int":
                number = f"number_{scope.number}_{len(numbers)}"
                numbers.append((number, output))
                yield Declare("int64_t", number, integer(0))
                values.append(Name(f"&{number}"))
            elif isinstance(output, Buffer):
                yield Declare("rt::Tensor", scope.name(output.name))
                values.append(Call(f"{scope.name(output.name)}.out"))
            else:
                values.append(Call("rt::Tensor().out"))
    scope.declare(make_shim_prototype(schema, shim))
    yield Do(Call("rt::check", (Call(shim.symbol, tuple(values)),)))
    for number, output in numbers:
        if isinstance(output, SymbolOutput):
            yield Declare("const int64_t", scope.symbol(output.symbol), Name(number))
    if schema.writes_in_place:
        yield from _share_first_argument(call, bound, scope)


def _share_first_argument(call: ExternCall, bound: tuple[Bound, ...], scope: Scope) -> Iterator[Statement]:
    """Yield an operator that returns its first argument: the result is a second handle on it."""
    for output in call.outputs:
        match output, bound[0][1]:
            case Buffer(name=name), Ref(source):
                yield Declare("rt::Tensor", scope.name(name), Call(f"{scope.name(source)}.alias"))
            case None, _:
                pass
            case _:
                raise UnsupportedArgument("its results are not tensors")


def _call_dispatcher(
    call: ExternCall, schema: Schema, bound: tuple[Bound, ...], scope: Scope
) -> Iterator[Statement]:
    for kind in schema.results:
        if str(kind) not in ("Tensor", "List[Tensor]", "int", "bool"):
            raise UnsupportedArgument(f"it returns {kind}, which torch's C dispatcher does not")
    kinds = [str(kind) for kind in schema.results]
    if kinds != kinds[::-1]:
        # it converts each result as the one at the same distance from the other end
        raise UnsupportedArgument(f"it returns ({', '.join(kinds)}), which torch's C dispatcher mixes up")
    if len(bound) > MOST_ARGUMENTS:
        raise UnsupportedArgument(f"it has more than {MOST_ARGUMENTS} arguments")
    values = Braces(tuple(dispatch_value(parameter, value, scope) for parameter, value in bound))
    count = len(schema.results)
    results = f"call_{scope.number}"
    # A pointer to nothing is fine for an operator without results.
    yield DeclareArray("uint64_t", results, max(count, 1))
    yield Do(
        Call(
            "rt::call", (string(schema.name), string(schema.overload), values, Name(results), integer(count))
        )
    )
    for position, (kind, outputs) in enumerate(
        zip(schema.results, _group_by_result(call, schema), strict=True)
    ):
        raw = element(results, position)
        if str(kind) == "List[Tensor]":
            parts = f"parts_{scope.number}" if count == 1 else f"parts_{scope.number}_{position}"
            yield from _list_results(outputs, raw, parts, scope)
        else:
            yield from _write_one_result(str(kind), outputs[0], raw, scope)


def _call_relay(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    """Yield the call through the relay that makes it in Python."""
    relay = describe_relay(call)
    scope.relay(relay.text)
    tensors = Braces(tuple(Call("rt::tensor", (Name(scope.name(name)),)) for name in relay.tensors))
    sizes = Braces(tuple(Call("rt::integer", (scope.index(size),)) for size in relay.sizes))
    values = Braces((Call("rt::list", (tensors,)), Call("rt::list", (sizes,))))
    results, parts = f"call_{scope.number}", f"parts_{scope.number}"
    yield DeclareArray("uint64_t", results, 1)
    yield Do(Call("rt::call", (string(relay.name), string(""), values, Name(results), integer(1))))
    yield DeclareArray("rt::Tensor", parts, max(len(relay.wanted), 1))
    yield Do(Call("rt::take_list", (element(results, 0), Name(parts), integer(len(relay.wanted)))))
    for position, number in enumerate(relay.wanted):
        part = element(parts, position)
        match call.outputs[number]:
            case Buffer(name=name):
                yield Declare("rt::Tensor", scope.name(name), Call("rt::move", (part,)))
            case SymbolOutput(symbol=symbol):
                yield Declare("const int64_t", scope.symbol(symbol), Call("rt::item", (part,)))


def _group_by_result(call: ExternCall, schema: Schema) -> tuple[tuple[Declared, ...], ...]:
    """Return the declarations for each result of the schema: the items of a list, or a single value."""
    count = len(schema.results)
    if call.paths:
        placed = tuple(zip(call.paths, call.outputs, strict=True))
        return tuple(tuple(o for path, o in placed if path[0] == number) for number in range(count))
    if count == 1 and str(schema.results[0]) == "List[Tensor]":
        return (call.outputs,)
    if len(call.outputs) > count:
        raise UnsupportedArgument(f"it has {count} results")
    outputs = (*call.outputs, *[None] * (count - len(call.outputs)))
    return tuple((output,) for output in outputs)


def _write_one_result(kind: str, output: Declared, raw: Code, scope: Scope) -> Iterator[Statement]:
    match kind, output:
        case "Tensor", Buffer(name=name):
            yield Declare("rt::Tensor", scope.name(name), Call("rt::take", (raw,)))
        case "Tensor", None:
            yield Do(Call("rt::take", (raw,)))
        case "int" | "bool", SymbolOutput(symbol=symbol):
            yield Declare("const int64_t", scope.symbol(symbol), Call("int64_t", (raw,)))
        case "int" | "bool", None:
            pass
        case _:
            raise UnsupportedArgument(f"a result of type {kind} is declared as something else")


def _list_results(outputs: tuple[Declared, ...], raw: Code, parts: str, scope: Scope) -> Iterator[Statement]:
    yield DeclareArray("rt::Tensor", parts, max(len(outputs), 1))
    yield Do(Call("rt::take_list", (raw, Name(parts), integer(len(outputs)))))
    for position, output in enumerate(outputs):
        match output:
            case Buffer(name=name):
                value = Call("rt::move", (element(parts, position),))
                yield Declare("rt::Tensor", scope.name(name), value)
            case None:
                yield Do(Call(f"{parts}[{position}].reset"))
            case SymbolOutput():
                raise UnsupportedArgument("an item of a list of tensors is no number")


def _settle_results(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    """Bind the sizes that only the results know, then bring the results into their declared layouts."""
    for symbol, position, dim in call.binds:
        output = call.outputs[position]
        if isinstance(output, Buffer):
            size = Call(f"{scope.name(output.name)}.size", (integer(dim),))
            yield Declare("const int64_t", scope.symbol(symbol), size)
    for number, output in enumerate(call.outputs):
        if not isinstance(output, Buffer):
            continue
        name = Name(scope.name(output.name))
        layout = (Call("rt::move", (name,)), *scope.layout(output), get_dtype_code(output.dtype))
        yield Assign(name, Call("rt::with_layout", layout))
        if number in call.aligned:
            yield Assign(name, Call("rt::aligned", layout))
