"""Calls of torch operators as C++: through an operator's own C function where there is one, else the
dispatcher.

Operators whose names of process groups torch's C dispatcher cannot pass: called through operators of ours,
in Python.

Since torch 2.13 collectives take a process group or its name, a parameter of type `Any`, for which torch's
C interface has no form. Each gets a relay: an operator with the same parameters that takes a name, a `str`,
and hands it on. Relays are registered where a program is loaded, so programs that need some run in
processes with Python alone.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from coilwork_cpp_wrapper.arguments import (
    Bound,
    UnsupportedArgument,
    bind_arguments,
    dispatch_value,
    shim_parameters,
    shim_values,
)
from coilwork_cpp_wrapper.scope import Scope, dtype_code, refuse
from coilwork_cpp_wrapper.torch_compat import Library, new_library, relay_to
from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.program.nodes import ExternCall
from coilwork_ir.syntax.cpp import (
    Assign,
    Braces,
    Call,
    Code,
    Declare,
    DeclareArray,
    Do,
    Name,
    Statement,
    element,
    integer,
    string,
)
from coilwork_runtime.c_shim import C_FUNCTIONS, NUMBER_READS, CFunction, Parameter, Schema, find_schema

_NAMESPACE: Final = "coilwork_relays"
_REGISTERING: Final = threading.Lock()


def needs_relay(bound: Iterable[tuple[Parameter, Argument]]) -> bool:
    """Tell if a call is given a name that only Python can pass."""
    return any(parameter.type.name == "Any" and isinstance(value, str) for parameter, value in bound)


def relay_name(schema: Schema) -> str:
    """The relay of an operator: `coilwork_relays::_c10d_functional__all_reduce`."""
    return f"{_NAMESPACE}::{schema.name.replace('::', '__')}"


def register_relays(targets: Iterable[str]) -> None:
    """Register the relays of operators such as `"_c10d_functional.all_reduce.default"` that are not yet
    there.
    """
    for target in targets:
        with _REGISTERING:
            _register(target)


def _free_in_child() -> None:
    # a thread of the parent's may hold it, and none goes on with that here
    if _REGISTERING.locked():
        _REGISTERING.release()


os.register_at_fork(after_in_child=_free_in_child)


@functools.cache
def _library() -> Library:
    """The library of all relays; they live as long as it does."""
    return new_library(_NAMESPACE)


@functools.cache
def _register(target: str) -> None:
    namespace, name, overload = target.split(".")
    relay_to(_library(), f"{namespace}__{name}", namespace, name, overload)


Declared: TypeAlias = Buffer | SymbolOutput | None
MOST_ARGUMENTS: Final = 64
# A double holds every integer up to this one.
EXACT_INTEGER: Final = 1 << 53


def emit_call(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    """Statements that make `call` and define its results.

    Raises:
        EmitError: `cpp-unsupported`, torch's C interface cannot call it.
    """
    if call.target in NUMBER_READS:
        yield from _item(call, scope)
        return
    schema = find_schema(call.target)
    if schema is None:
        refuse(
            f"operator {call.target} is not known to torch", call.origins, "it has no schema to call it by"
        )
    try:
        bound = bind_arguments(call, schema)
        shim = C_FUNCTIONS.get(call.target)
        if shim is not None and _suits(shim, bound, call, scope):
            yield from _call_shim(call, schema, shim, bound, scope)
        else:
            yield from _call_dispatcher(call, schema, bound, scope)
    except UnsupportedArgument as error:
        refuse(f"torch's C interface cannot call {call.target}", call.origins, str(error))
    yield from _finish(call, scope)


def shim_prototype(schema: Schema, shim: CFunction) -> str:
    """The declaration of the C function `shim` of the operator `schema`."""
    outs = [p for p in schema.parameters if p.is_out]
    rest = [p for p in schema.parameters if not p.is_out]
    kinds = [kind for p in (*outs, *rest) for kind in shim_parameters(p.type)]
    if not _writes_in_place(schema):
        kinds += ["AtenTensorHandle*"] * len(schema.results)
    return f"AOTITorchError {shim.symbol}({', '.join(kinds)});"


def used_shim(call: ExternCall) -> tuple[Schema, CFunction] | None:
    """The C function that `call` may go through, with the operator's schema."""
    shim, schema = C_FUNCTIONS.get(call.target), find_schema(call.target)
    return None if shim is None or schema is None else (schema, shim)


def is_relayed(call: ExternCall) -> bool:
    """Tell if `call` goes through a relay, which is registered in Python."""
    schema = find_schema(call.target)
    if schema is None or all(parameter.type.name != "Any" for parameter in schema.parameters):
        return False
    return needs_relay(bind_arguments(call, schema))


def _writes_in_place(schema: Schema) -> bool:
    """Out variants and operators named `op_` return what they were given, which their C functions
    leave out.
    """
    return any(p.is_out for p in schema.parameters) or schema.name.endswith("_")


def _suits(shim: CFunction, bound: tuple[Bound, ...], call: ExternCall, scope: Scope) -> bool:
    """False if taking `Scalar` arguments as `double` would change the result."""
    scalars = [value for p, value in bound if p.type.mentions("number") and value is not None]
    if not all(isinstance(v, bool | int | float) and _is_exact(v) for v in scalars):
        return False
    if all(isinstance(v, float) for v in scalars):
        return True
    if shim.scalars == "cast":
        # without a tensor or an element type the operator would infer one from the Scalar
        return any(isinstance(value, Ref | DType) for _, value in bound)
    return any(scope.buffer(name).dtype.is_float for name in _tensors(tuple(v for _, v in bound)))


def _is_exact(value: Argument) -> bool:
    return not isinstance(value, int) or abs(value) <= EXACT_INTEGER


def _tensors(values: tuple[Argument, ...]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, ListValue):
            yield from _tensors(value.items)


def _item(call: ExternCall, scope: Scope) -> Iterator[Statement]:
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
    values = [code for parameter, value in ordered for code in shim_values(parameter, value, scope)]
    if not _writes_in_place(schema):
        if len(call.outputs) > len(schema.results):
            raise UnsupportedArgument(f"it has {len(schema.results)} results")
        outputs = (*call.outputs, *[None] * (len(schema.results) - len(call.outputs)))
        for output in outputs:
            if isinstance(output, Buffer):
                yield Declare("rt::Tensor", scope.name(output.name))
                values.append(Call(f"{scope.name(output.name)}.out"))
            else:
                values.append(Call("rt::Tensor().out"))
    yield Do(Call("rt::check", (Call(shim.symbol, tuple(values)),)))
    if _writes_in_place(schema):
        yield from _share_first_argument(call, bound, scope)


def _share_first_argument(call: ExternCall, bound: tuple[Bound, ...], scope: Scope) -> Iterator[Statement]:
    """An operator that returns its first argument: the result is a second handle on it."""
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
    operator = relay_name(schema) if needs_relay(bound) else schema.name
    values = Braces(tuple(dispatch_value(parameter, value, scope) for parameter, value in bound))
    count = len(schema.results)
    results = f"call_{scope.number}"
    # A pointer to nothing is fine for an operator without results.
    yield DeclareArray("uint64_t", results, max(count, 1))
    yield Do(
        Call("rt::call", (string(operator), string(schema.overload), values, Name(results), integer(count)))
    )
    for position, (kind, outputs) in enumerate(
        zip(schema.results, _group_by_result(call, schema), strict=True)
    ):
        raw = element(results, position)
        if str(kind) == "List[Tensor]":
            parts = f"parts_{scope.number}" if count == 1 else f"parts_{scope.number}_{position}"
            yield from _list_results(outputs, raw, parts, scope)
        else:
            yield from _one_result(str(kind), outputs[0], raw, scope)


def _group_by_result(call: ExternCall, schema: Schema) -> tuple[tuple[Declared, ...], ...]:
    """Return what is declared of each result of the schema: the items of a list, or one thing."""
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


def _one_result(kind: str, output: Declared, raw: Code, scope: Scope) -> Iterator[Statement]:
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


def _finish(call: ExternCall, scope: Scope) -> Iterator[Statement]:
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
        layout = (Call("rt::move", (name,)), *scope.layout(output), dtype_code(output.dtype))
        yield Assign(name, Call("rt::with_layout", layout))
        if number in call.aligned:
            yield Assign(name, Call("rt::aligned", layout))
