"""Regions of a program: where their boundaries are, what can be captured, and the program without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coilwork_ir.buffers import Argument, Buffer, Item, ListValue, SymbolOutput, references
from coilwork_ir.index import Expr
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
    PoolView,
    Program,
    Region,
    RegionKind,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
    WhileCall,
)
from coilwork_ir.program.walk import defined_buffers, defined_values, symbols_bound_by, used_symbols
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, WaitEvent, is_host


def make_region(kind: RegionKind, body: Sequence[Instruction], why: str = "", *, name: str = "") -> Region:
    """The region of `body`, with its boundary."""
    inputs: dict[str, None] = {}
    alive: dict[str, None] = {}
    defined: set[str] = set()
    symbols: dict[str, Expr] = {}
    bound: set[str] = set()
    for instruction in body:
        for name in used_names(instruction):
            if name not in defined:
                inputs[name] = None
        # the results of a call may have the sizes that it binds
        bound.update(symbol.name for symbol in symbols_bound_by(instruction))
        for symbol in used_symbols(instruction):
            if symbol.name not in bound:
                symbols.setdefault(symbol.name, symbol)
        made = [*(buffer.name for buffer in defined_buffers(instruction)), *defined_values(instruction)]
        defined.update(made)
        alive.update(dict.fromkeys(made))
        for name in ended_names(instruction):
            alive.pop(name, None)
    return Region(
        kind=kind,
        inputs=tuple(inputs),
        outputs=tuple(alive),
        symbols=tuple(symbols.values()),
        body=tuple(body),
        why=why,
        name=name,
    )


def used_names(instruction: Instruction) -> tuple[str, ...]:
    """Buffers, pools, streams and events that `instruction` uses, what it ends included."""
    match instruction:
        case BindSymbol() | CheckLayout():
            return (instruction.buffer,)
        case PoolView():
            return (instruction.pool,)
        case Reuse() | Reinterpret():
            return (instruction.source,)
        case Launch():
            return (*instruction.args, *_stream(instruction.stream))
        case ExternCall():
            values = (*instruction.args, *(value for _, value in instruction.kwargs))
            into = tuple(name for _, name in instruction.out)
            given = (*_list_references(values), *into, *instruction.waits)
            return (*given, *_stream(instruction.stream))
        case CondCall():
            return (instruction.predicate, *_list_references(instruction.operands))
        case WhileCall():
            return _list_references((*instruction.carried, *instruction.extra))
        case SubprogramCall():
            return _list_references(instruction.operands)
        case Copy():
            return (instruction.source, instruction.target, *_stream(instruction.stream))
        case ForkStream():
            return _stream(instruction.after)
        case RecordEvent():
            return _stream(instruction.stream)
        case WaitEvent():
            return (instruction.event, *_stream(instruction.stream or OWN))
        case JoinStream():
            return (instruction.stream, *_stream(instruction.into))
        case Region():
            return instruction.inputs
        case Free():
            return instruction.names
        case Return():
            return _list_references(instruction.values)
        case Alloc() | AllocPool() | CheckSize() | Comment():
            return ()


def ended_names(instruction: Instruction) -> tuple[str, ...]:
    """Names that are no more behind `instruction`."""
    match instruction:
        case Free():
            return instruction.names
        case Reuse():
            return (instruction.source,)
        case JoinStream():
            return (instruction.stream,)
        case Region():
            return tuple(name for inner in instruction.body for name in ended_names(inner))
        case _:
            return ()


def _stream(stream: str) -> tuple[str, ...]:
    return () if stream == OWN else (stream,)


def _list_references(values: Sequence[Argument]) -> tuple[str, ...]:
    return tuple(name for value in values for name in references(value))


def find_capture_refusal(instruction: Instruction, buffers: Mapping[str, Buffer], device: str) -> str:
    """Find why `instruction` cannot be in a capture region of `device`, which a driver replays; "" if it can.

    Memory is what it was when the region was captured, or the driver does the work piece by piece:
    allocations and views are fine anywhere.
    """
    match instruction:
        case Alloc() | AllocPool() | PoolView() | Reuse() | Reinterpret() | Free() | CheckSize() | Comment():
            return ""
        case Launch():
            return _find_other_place(instruction.args, instruction.stream, buffers, device)
        case ExternCall():
            if instruction.in_flight or instruction.waits:
                return f"{instruction.target} goes on behind its call"
            if instruction.binds or any(isinstance(output, SymbolOutput) for output in instruction.outputs):
                return f"sizes are read of what {instruction.target} returns"
            values = (*instruction.args, *(value for _, value in instruction.kwargs))
            if any(map(_reads_item, values)):
                return f"the host reads a number for {instruction.target}"
            if not instruction.implements:
                return f"torch does {instruction.target}"
            return _find_other_place(used_names(instruction), instruction.stream, buffers, device)
        case Copy():
            return "torch does a copy"
        case CondCall() | WhileCall():
            return "the host decides on a branch or loop"
        case SubprogramCall():
            return "a subprogram is called"
        case BindSymbol() | CheckLayout():
            return "an input is looked at"
        case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            return "streams part or meet"
        case Region():
            return f"a {instruction.kind} region"
        case Return():
            return "the program ends"


def _find_other_place(names: Sequence[str], stream: str, buffers: Mapping[str, Buffer], device: str) -> str:
    if stream != OWN:
        return f"work on %{stream}"
    others = {buffers[name].device for name in names if name in buffers} - {device}
    return f"work on {min(others)}" if others else ""


def _reads_item(value: Argument) -> bool:
    match value:
        case Item():
            return True
        case ListValue(items):
            return any(map(_reads_item, items))
        case _:
            return False


def find_device(instruction: Instruction, buffers: Mapping[str, Buffer]) -> str:
    """Find the device that `instruction` gives work to, "" if it gives none or the host does it."""
    match instruction:
        case Launch(args=names):
            pass
        case ExternCall() if instruction.implements:
            names = used_names(instruction)
        case _:
            return ""
    devices = [buffers[name].device for name in names if name in buffers]
    return devices[0] if devices and not is_host(devices[0]) else ""


def inline_regions(program: Program, *, remarks: bool = False) -> Program:
    """`program`, and those nested in it, without regions: with what is in them, `remarks` say of which."""
    inlined = tuple(_inline_regions(program.instructions, remarks))
    same = len(inlined) == len(program.instructions)
    if same and all(a is b for a, b in zip(inlined, program.instructions, strict=True)):
        return program
    return replace(program, instructions=inlined)


def inline_nested_regions(instruction: Instruction, *, remarks: bool = False) -> Instruction:
    """`instruction`, with what is in regions of the programs nested in it in their places."""
    match instruction:
        case CondCall():
            then = inline_regions(instruction.then, remarks=remarks)
            otherwise = inline_regions(instruction.otherwise, remarks=remarks)
            if then is instruction.then and otherwise is instruction.otherwise:
                return instruction
            return replace(instruction, then=then, otherwise=otherwise)
        case WhileCall():
            condition = inline_regions(instruction.condition, remarks=remarks)
            body = inline_regions(instruction.body, remarks=remarks)
            if condition is instruction.condition and body is instruction.body:
                return instruction
            return replace(instruction, condition=condition, body=body)
        case SubprogramCall():
            inner = inline_regions(instruction.body, remarks=remarks)
            return instruction if inner is instruction.body else replace(instruction, body=inner)
        case _:
            return instruction


def straight(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """`instructions`, those of regions in the places of their regions."""
    for instruction in instructions:
        if isinstance(instruction, Region):
            yield from straight(instruction.body)
        else:
            yield instruction


def _inline_regions(instructions: Sequence[Instruction], remarks: bool) -> Iterator[Instruction]:
    for instruction in instructions:
        if not isinstance(instruction, Region):
            yield inline_nested_regions(instruction, remarks=remarks)
            continue
        if remarks:
            why = f": {instruction.why}" if instruction.why else ""
            yield Comment(text=f"{instruction.kind} region{why}")
        yield from _inline_regions(instruction.body, remarks)
