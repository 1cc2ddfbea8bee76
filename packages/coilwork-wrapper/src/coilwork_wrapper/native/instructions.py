"""Each instruction of a program in binary form. Total: a new instruction has to be added here to
be executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, GraphOutput, Ref, SymbolOutput, list_references
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.loc import Origin
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
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import find_call, list_outer_symbols
from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
)
from coilwork_wrapper.native.operands import Part
from coilwork_wrapper.native.wire_format import (
    Code,
    Ordering,
    Output,
    Relation,
    Result,
    View,
    encode_list,
    i32,
    u8,
    u32,
    u32s,
)
from coilwork_wrapper.provenance import list_origin_lines

RELATIONS: Final[Mapping[str, Relation]] = {
    "eq": Relation.EQ,
    "ne": Relation.NE,
    "lt": Relation.LT,
    "le": Relation.LE,
}
MOST_DIMENSIONS: Final = 64
_STREAMS: Final = "streams."


def write_instruction(part: Part, instruction: Instruction) -> None:
    """Add `instruction` to `part`, and what the native executor cannot do of it to its refusals."""
    match instruction:
        case Launch() | ExternCall() | Copy():
            part.use_stream(instruction.stream)
        case Comment() | Free() | Reinterpret() | Region():
            pass
        case _:
            part.use_stream(OWN)
    match instruction:
        case BindSymbol() | CheckLayout() | CheckSize():
            _check(part, instruction)
        case Alloc() | AllocPool() | PoolView() | Reuse() | Reinterpret() | Free():
            _memory(part, instruction)
        case Launch(kernel=kernel):
            operands = u32(part.shared.kernels[kernel]) + u32s([part.slot(name) for name in instruction.args])
            operands += u32s([part.registers.allocate(size) for size in instruction.sizes])
            part.add(Code.LAUNCH, _place(f"launch {kernel}", instruction.origins), operands)
        case CondCall():
            _cond(part, instruction)
        case LoopCall():
            _repeat(part, instruction)
        case SubprogramCall(body=body):
            operands = _encode_nested(part, body, instruction.operands)
            operands += encode_list(instruction.outputs, lambda output: _slot_and_layout(part, output))
            part.add(Code.RUN, _place(f"run {body.name}", instruction.origins), operands)
        case ExternCall() | Copy():
            if (call := find_call(instruction)) is not None:
                _extern(part, call)
        case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            _order_streams(part, instruction)
        case Region():
            _region(part, instruction)
        case Comment():
            pass
        case Return(values=values):
            part.add(Code.RETURN, "return", encode_list(values, lambda value: _result(part, value)))


def _region(part: Part, region: Region) -> None:
    if region.kind != "capture":
        raise AssertionError("regions that are called are subprograms before a program is written")
    part.add(Code.REGION, "begin a capture region", u8(1))
    for instruction in region.body:
        write_instruction(part, instruction)
    part.add(Code.REGION, f"end a capture region: {region.why}", u8(0))


def _order_streams(part: Part, instruction: StreamInstruction) -> None:
    match instruction:
        case ForkStream(stream=stream, device=device, after=after):
            part.order_streams(Ordering.FORK, stream, after, device)
        case RecordEvent(event=event, device=device, stream=stream):
            part.order_streams(Ordering.RECORD, event, stream, device)
        case WaitEvent(event=event, stream=None):
            part.order_streams(Ordering.SYNCHRONIZE, event)
        case WaitEvent(event=event, stream=str(stream)):
            part.order_streams(Ordering.WAIT, event, stream)
        case JoinStream(stream=stream, into=into):
            part.order_streams(Ordering.JOIN, stream, into)


def _check(part: Part, instruction: BindSymbol | CheckLayout | CheckSize) -> None:
    registers = part.registers
    match instruction:
        case BindSymbol(symbol=symbol, buffer=name):
            operands = u32(registers.symbol(symbol)) + u32(part.slot(name)) + u32(instruction.dim)
            rank = len(part.buffers[name].shape) if name in part.inputs else -1
            operands += u8(instruction.what == "stride") + i32(rank)
            part.add(Code.BIND, f"bind {symbol.name} to %{name}", operands)
        case CheckLayout(buffer=name):
            layout = _layout(part, part.buffers[name])
            flags = instruction.aligned | (not instruction.asserted) << 1
            part.add(Code.CHECK, f"check %{name}", u32(part.slot(name)) + layout + u8(flags))
        case CheckSize():
            operands = u32(registers.allocate(instruction.lhs)) + u8(RELATIONS[instruction.relation])
            operands += u32(registers.allocate(instruction.rhs)) + u32(part.text(instruction.message))
            part.add(Code.REQUIRE, _place("check a size", instruction.origins), operands)


def _memory(part: Part, instruction: Alloc | AllocPool | PoolView | Reuse | Reinterpret | Free) -> None:
    match instruction:
        case Alloc(buffer=buffer):
            part.add(
                Code.ALLOC,
                f"alloc %{buffer.name}",
                _slot_and_layout(part, buffer) + _encode_is_plain(part, buffer),
            )
        case AllocPool(pool=pool):
            layout = part.pool_layout(instruction.size_bytes, instruction.device)
            part.add(Code.POOL, f"alloc %{pool}", u32(part.slot(pool)) + u32(layout))
        case PoolView(buffer=buffer):
            operands = u32(part.slot(buffer.name)) + u32(part.slot(instruction.pool))
            operands += u32(part.registers.allocate(instruction.offset_bytes)) + _layout(part, buffer)
            part.add(Code.CARVE, f"carve %{buffer.name}", operands + _encode_is_plain(part, buffer))
        case Reuse(buffer=buffer, source=source):
            operands = _view(part, buffer, source, 0)
            part.add(Code.REUSE, f"reuse %{source} as %{buffer.name}", operands)
        case Reinterpret(buffer=buffer, source=source):
            operands = _view(part, buffer, source, instruction.offset)
            part.add(Code.VIEW, _place(f"view %{source} as %{buffer.name}", instruction.origins), operands)
        case Free(names=names):
            part.add(
                Code.FREE, "free " + ", ".join(f"%{n}" for n in names), u32s([part.slot(n) for n in names])
            )


def _view(part: Part, buffer: Buffer, source: str, offset: Expr | int) -> bytes:
    seen = part.buffers[source]
    start = part.registers.allocate(offset)
    kind = View.LAYOUT
    if buffer.dtype is not seen.dtype:
        kind = View.BITS
    elif (buffer.shape, buffer.strides) == (seen.shape, seen.strides) and start == part.registers.allocate(0):
        kind = View.SAME
    operands = u32(part.slot(buffer.name)) + u32(part.slot(source)) + u8(kind) + u32(start)
    return operands + _layout(part, buffer) + _encode_is_plain(part, buffer)


def _extern(part: Part, call: ExternCall) -> None:
    if call.target.startswith(_STREAMS):
        part.refuse(
            f"{call.target} chooses the stream of later work",
            "the native executor asks torch for the stream once in each call",
            call.origins,
        )
    shared = part.shared
    data = (
        u32(part.text(call.target))
        + u32(part.text(call.implements))
        + encode_list(call.args, part.argument)
        + encode_list(call.kwargs, lambda pair: u32(part.text(pair[0])) + part.argument(pair[1]))
        + encode_list(call.out, lambda pair: u32(part.text(pair[0])) + u32(part.slot(pair[1])))
        + u32(part.text(_get_device(part, call)))
        + u32(len(call.outputs))
        + u8(call.single)
        + encode_list(call.paths, u32s)
    )
    operands = u32(len(shared.calls)) + encode_list(call.outputs, lambda output: _output(part, output))
    shared.calls.append(data)
    operands += encode_list(
        call.binds, lambda bind: u32(part.registers.symbol(bind[0])) + u32(bind[1]) + u32(bind[2])
    )
    place = _place(f"call {call.target}", call.origins)
    # layouts may depend on sizes that the results bind; others are worked out before, for who makes the
    # results
    settled = [] if call.binds else _settle_results(part, call)
    part.add(Code.CALL, place, operands)
    for operands in settled or _settle_results(part, call):
        part.add(Code.SETTLE, place, operands)


def _settle_results(part: Part, call: ExternCall) -> list[bytes]:
    """Return the results of `call`, as they are to be."""
    return [
        _slot_and_layout(part, output) + u8(number in call.aligned)
        for number, output in enumerate(call.outputs)
        if isinstance(output, Buffer)
    ]


def _get_device(part: Part, call: ExternCall) -> str:
    """Return the device of the first tensor among the call's arguments and results."""
    given = (*call.args, *(value for _, value in call.kwargs), *(Ref(name) for _, name in call.out))
    names = [name for argument in given for name in list_references(argument)]
    names += [output.name for output in call.outputs if isinstance(output, Buffer)]
    return part.buffers[names[0]].device if names else ""


def _output(part: Part, output: Buffer | SymbolOutput | None) -> bytes:
    match output:
        case None:
            return u8(Output.NOTHING) + u32(0)
        case SymbolOutput(symbol=symbol):
            return u8(Output.NUMBER) + u32(part.registers.symbol(symbol))
        case Buffer(name=name):
            return u8(Output.TENSOR) + u32(part.slot(name))


def _cond(part: Part, call: CondCall) -> None:
    operands = u32(part.slot(call.predicate))
    operands += _encode_nested(part, call.then, call.operands) + _encode_nested(
        part, call.otherwise, call.operands
    )
    operands += encode_list(call.outputs, lambda output: _slot_and_layout(part, output))
    part.add(Code.COND, _place(f"choose by %{call.predicate}", call.origins), operands)


def _repeat(part: Part, call: LoopCall) -> None:
    values = (*call.carried, *call.extra)
    outputs = encode_list(call.outputs, lambda output: _slot_and_layout(part, output))
    if call.condition is not None:
        operands = _encode_nested(part, call.condition, values) + _encode_nested(part, call.body, values)
        part.add(Code.WHILE, _place("loop", call.origins), operands + outputs)
    elif call.rounds is not None:
        number = part.registers.reserve()
        operands = u32(part.registers.allocate(call.rounds)) + u32(number)
        operands += _encode_nested(part, call.body, values, number)
        part.add(Code.REPEAT, _place("loop", call.origins), operands + outputs)


def _encode_nested(part: Part, program: Program, values: Sequence[Argument], *numbers: int) -> bytes:
    """Return a nested program, its operands, the last of which are in the registers `numbers`, and its
    sizes.
    """
    sizes = [part.registers.symbol(symbol) for symbol in list_outer_symbols(program)]
    given = [_operand(part, value) for value in values] + [_encode_number(number) for number in numbers]
    return u32(part.shared.numbers[id(program)]) + encode_list(given, bytes) + u32s(sizes)


def _operand(part: Part, value: Argument) -> bytes:
    match value:
        case Ref(name):
            return u8(0) + u32(part.slot(name))
        case Expr() | int():
            return _encode_number(part.registers.allocate(value))
        case _:
            raise EmitError(
                "native-unsupported",
                f"a {type(value).__name__} handed to a nested program",
                reason="nested programs take tensors and integers",
            )


def _encode_number(register: int) -> bytes:
    return u8(1) + u32(register)


def _result(part: Part, value: GraphOutput) -> bytes:
    match value:
        case None:
            return u8(Result.NOTHING) + u32(0)
        case Ref(name):
            return u8(Result.TENSOR) + u32(part.slot(name))
        case Expr():
            return u8(Result.NUMBER) + u32(part.registers.allocate(value))


def _slot_and_layout(part: Part, buffer: Buffer) -> bytes:
    return u32(part.slot(buffer.name)) + _layout(part, buffer)


def _layout(part: Part, buffer: Buffer) -> bytes:
    if len(buffer.shape) > MOST_DIMENSIONS:
        part.refuse(f"%{buffer.name} has {len(buffer.shape)} dimensions")
    return u32(part.layout(buffer))


def _encode_is_plain(part: Part, buffer: Buffer) -> bytes:
    return u8(part.is_plain(buffer.name))


def _place(what: str, origins: tuple[Origin, ...]) -> str:
    return "\n  ".join((what, *list_origin_lines(origins)))
