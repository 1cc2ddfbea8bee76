"""A program as plain data: lists, dictionaries, texts and numbers, which JSON holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    GraphInput,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    SymbolOutput,
    TorchValue,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, fold
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    LoopCall,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import index_buffers
from coilwork_ir.streams import Copy, ForkStream, JoinStream, RecordEvent, WaitEvent

Plan = dict[str, Any]


def plan_program(program: Program) -> Plan:
    """The plan of `program`, and of the programs nested in it.

    Raises:
        EmitError: it has an instruction that plans have no word for.
    """
    known = index_buffers(program)
    return {
        "name": program.name,
        "inputs": [_input(entry) for entry in program.inputs],
        "constants": {constant.buffer.name: constant.key for constant in program.constants},
        "steps": [_step(step, known) for step in program.instructions],
    }


def _input(entry: GraphInput) -> dict[str, Any]:
    if isinstance(entry, Buffer):
        return {"tensor": entry.name, "rank": len(entry.shape)}
    return {"size": entry.name if entry.is_symbol else ""}


def _step(step: Instruction, known: dict[str, Buffer]) -> dict[str, Any]:
    match step:
        case BindSymbol():
            return {
                "do": "bind",
                "symbol": step.symbol.name,
                "of": step.buffer,
                "dim": step.dim,
                "what": step.what,
            }
        case CheckLayout():
            asks = {"aligned": step.aligned, "asserted": step.asserted}
            return {"do": "check", **asks, **_buffer(known[step.buffer])}
        case Alloc():
            return {"do": "alloc", **_buffer(step.buffer)}
        case AllocPool():
            return {"do": "pool", "name": step.pool, "bytes": size(step.size_bytes), "device": step.device}
        case PoolView():
            return {"do": "carve", "of": step.pool, "at": size(step.offset_bytes), **_buffer(step.buffer)}
        case Reuse():
            return {"do": "view", "of": step.source, "at": 0, "ends": True, **_buffer(step.buffer)}
        case Reinterpret():
            return {
                "do": "view",
                "of": step.source,
                "at": size(step.offset),
                "ends": False,
                **_buffer(step.buffer),
            }
        case Launch():
            return {
                "do": "launch",
                "kernel": step.kernel,
                "args": list(step.args),
                "sizes": sizes(step.sizes),
                "stream": step.stream,
            }
        case ExternCall():
            return _call(step)
        case Copy():
            return {"do": "copy", "of": step.source, "to": step.target, "stream": step.stream}
        case ForkStream():
            return {"do": "fork", "name": step.stream, "device": step.device, "after": step.after}
        case RecordEvent():
            return {"do": "record", "name": step.event, "device": step.device, "stream": step.stream}
        case WaitEvent():
            return {"do": "wait", "event": step.event, "stream": step.stream}
        case JoinStream():
            return {"do": "join", "stream": step.stream, "into": step.into}
        case CheckSize():
            sides = {"left": size(step.lhs), "right": size(step.rhs)}
            return {"do": "assert", "relation": step.relation, "message": step.message, **sides}
        case CondCall():
            parts = {"then": plan_program(step.then), "otherwise": plan_program(step.otherwise)}
            operands = {"if": step.predicate, "operands": _arguments(step.operands)}
            return {"do": "cond", **parts, **operands, "outputs": [_buffer(one) for one in step.outputs]}
        case LoopCall():
            asked = None if step.condition is None else plan_program(step.condition)
            rounds = None if step.rounds is None else size(step.rounds)
            parts = {"condition": asked, "rounds": rounds, "body": plan_program(step.body)}
            operands = {"carried": _arguments(step.carried), "extra": _arguments(step.extra)}
            return {"do": "loop", **parts, **operands, "outputs": [_buffer(one) for one in step.outputs]}
        case SubprogramCall():
            operands = {"operands": _arguments(step.operands)}
            outputs = {"outputs": [_buffer(one) for one in step.outputs]}
            return {"do": "run", "plan": plan_program(step.body), **operands, **outputs}
        case Free():
            return {"do": "free", "names": list(step.names)}
        case Comment():
            return {"do": "comment", "text": step.text}
        case Return():
            return {"do": "return", "values": [_result(value) for value in step.values]}
        case _:
            raise EmitError("plan-unsupported", f"plans have no word for {type(step).__name__}")


def _call(call: ExternCall) -> dict[str, Any]:
    outputs: list[dict[str, Any] | None] = []
    for number, output in enumerate(call.outputs):
        path = [] if call.single else list(call.paths[number]) if call.paths else [number]
        match output:
            case None:
                outputs.append(None)
            case SymbolOutput():
                outputs.append({"symbol": output.symbol.name, "path": path})
            case Buffer():
                binds = [[symbol.name, dim] for symbol, position, dim in call.binds if position == number]
                is_aligned = number in call.aligned
                outputs.append({"path": path, "binds": binds, "aligned": is_aligned, **_buffer(output)})
    return {
        "do": "call",
        "operator": call.target,
        "stream": call.stream,
        "args": _arguments(call.args),
        "kwargs": {name: _argument(value) for name, value in call.kwargs},
        "out": dict(call.out),
        "outputs": outputs,
    }


def _buffer(buffer: Buffer) -> dict[str, Any]:
    layout = {"shape": sizes(buffer.shape), "strides": sizes(buffer.strides)}
    return {"name": buffer.name, "type": buffer.dtype.torch_name, "on": buffer.device, **layout}


def _arguments(values: Sequence[Argument]) -> list[Any]:
    return [_argument(value) for value in values]


def _argument(value: Argument) -> Any:
    """Numbers, texts and None stand for themselves, all else is a dictionary."""
    match value:
        case Ref(name):
            return {"tensor": name}
        case Item(name):
            return {"item": name}
        case Expr():
            return {"size": size(value)}
        case DType():
            return {"torch": value.torch_name}
        case TorchValue(attribute):
            return {"torch": attribute}
        case DeviceValue(device):
            return {"device": device}
        case ListValue(items):
            return {"list": _arguments(items)}
        case _:
            return value


def _result(value: GraphOutput) -> Any:
    return (
        {"tensor": value.name} if isinstance(value, Ref) else None if value is None else {"size": size(value)}
    )


def sizes(exprs: Sequence[Expr]) -> list[Any]:
    """Each as `size`."""
    return [size(expr) for expr in exprs]


def size(expr: Expr) -> Any:
    """A number, a symbol's name, or a list of an operation and its operands."""
    return fold(
        expr,
        const=lambda value: value,
        symbol=lambda symbol: symbol.name,
        add=lambda parts: ["+", *parts],
        mul=lambda parts: ["*", *parts],
        floordiv=lambda a, b: ["//", a, b],
        mod=lambda a, b: ["%", a, b],
        minimum=lambda parts: ["min", *parts],
        maximum=lambda parts: ["max", *parts],
    )
