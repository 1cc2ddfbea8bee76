"""The text form of programs: `parse_program(format_program(p)) == p`. One instruction per line.

program @norm {
  symbol s0 in [2, inf]
  input %x: f32[s0, 1024]
  kernel @sum_1f2e3d4c fast { … }
  bind s0 in [2, inf] size %x 0
  check %x
  alloc %y: f32[s0]
  launch @sum_1f2e3d4c (%x, %y) sizes [s0]
  return (%y)
}

What is called as a subprogram stands once, behind the kernels of the outermost program.
"""

from __future__ import annotations

from coilwork_ir.buffers import Buffer, SymbolOutput
from coilwork_ir.index import format_expr
from coilwork_ir.kernels.text import format_kernel, format_proposals
from coilwork_ir.loops.text import format_header
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
from coilwork_ir.program.parser import parse_program
from coilwork_ir.program.regions import flatten_regions
from coilwork_ir.program.walk import list_distinct_programs
from coilwork_ir.streams import Copy, ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_ir.text.atoms import (
    format_argument,
    format_buffer,
    format_flight,
    format_list,
    format_on,
    format_origins,
    format_output,
    format_paths,
    format_stream_instruction,
    format_symbol,
)
from coilwork_ir.text.reader import quote

__all__ = ["format_instruction", "format_program", "parse_program"]


def format_program(program: Program, *, origins: bool = True, indent: str = "") -> str:
    """Canonical text of `program`."""
    inner = indent + "  "
    lines = [f"{indent}program @{program.name} {{"]
    lines += format_header(program.symbols, program.inputs, program.constants, inner)
    lines += [format_kernel(kernel, origins=origins, indent=inner) for kernel in program.kernels]
    lines += format_proposals(program.proposals, inner)
    if not indent:
        lines += [format_program(body, origins=origins, indent=inner) for body in _subprograms(program)]
    if program.peak_bytes is not None:
        lines.append(f"{inner}peak `{format_expr(program.peak_bytes)}`")
    for instruction in program.instructions:
        lines.append(inner + _format(instruction, inner, origins))
    lines.append(indent + "}")
    return "\n".join(lines) + ("" if indent else "\n")


def _subprograms(program: Program) -> list[Program]:
    """Return all that is called in `program` and what it holds, each behind what it calls."""
    parts = list_distinct_programs(program)
    called = {
        id(instruction.body)
        for part in parts
        for instruction in flatten_regions(part.instructions)
        if isinstance(instruction, SubprogramCall)
    }
    return [part for part in reversed(parts) if id(part) in called]


def format_instruction(instruction: Instruction) -> str:
    """Text of `instruction` alone, without where it is from."""
    return _format(instruction, "", origins=False)


def _format(instruction: Instruction, indent: str, origins: bool) -> str:
    match instruction:
        case BindSymbol():
            return (
                f"bind {format_symbol(instruction.symbol)} {instruction.what} %{instruction.buffer} "
                f"{instruction.dim}"
            )
        case CheckLayout():
            if not instruction.asserted:
                return f"align %{instruction.buffer}"
            return f"check %{instruction.buffer}" + (" aligned" if instruction.aligned else "")
        case Alloc():
            return f"alloc {format_buffer(instruction.buffer)}"
        case AllocPool():
            return (
                f"pool %{instruction.pool} `{format_expr(instruction.size_bytes)}` "
                f"{quote(instruction.device)}"
            )
        case PoolView():
            offset = format_expr(instruction.offset_bytes)
            return f"carve {format_buffer(instruction.buffer)} of %{instruction.pool} at `{offset}`"
        case Reuse():
            return f"reuse {format_buffer(instruction.buffer)} of %{instruction.source}"
        case Free():
            return f"free {format_list(f'%{n}' for n in instruction.names)}"
        case Comment():
            return f"comment {quote(instruction.text)}"
        case Return():
            return f"return {format_list(format_output(v) for v in instruction.values)}"
        case Region():
            return _format_region(instruction, indent, origins)
        case ForkStream() | RecordEvent() | WaitEvent() | JoinStream() | Copy():
            return format_stream_instruction(instruction, origins=origins)
        case _:
            tail = format_origins(instruction.origins) if origins else ""
            return _format_work(instruction, indent, origins) + tail


def _format_region(region: Region, indent: str, origins: bool) -> str:
    inner = indent + "  "
    named = f" @{region.name}" if region.name else ""
    head = f"region {region.kind}{named} {format_list(f'%{name}' for name in region.inputs)}"
    if region.symbols:
        head += f" sizes {format_list(map(format_symbol, region.symbols))}"
    if region.outputs:
        head += f" leaves {format_list(f'%{name}' for name in region.outputs)}"
    if region.why:
        head += f" why {quote(region.why)}"
    body = [inner + _format(instruction, inner, origins) for instruction in region.body]
    return "\n".join((f"{head} {{", *body, indent + "}"))


def _format_work(
    instruction: Reinterpret | Launch | ExternCall | CheckSize | CondCall | LoopCall | SubprogramCall,
    indent: str,
    origins: bool,
) -> str:
    match instruction:
        case Reinterpret():
            offset = format_expr(instruction.offset)
            return f"view {format_buffer(instruction.buffer)} of %{instruction.source} offset `{offset}`"
        case Launch():
            sizes = (
                f" sizes [{', '.join(format_expr(s) for s in instruction.sizes)}]"
                if instruction.sizes
                else ""
            )
            args = format_list(f"%{a}" for a in instruction.args)
            return f"launch @{instruction.kernel} {args}{sizes}{format_on(instruction.stream)}"
        case ExternCall():
            return _format_extern(instruction)
        case CheckSize():
            sides = (
                f"`{format_expr(instruction.lhs)}` {instruction.relation} `{format_expr(instruction.rhs)}`"
            )
            return f"assert {sides} {quote(instruction.message)}"
        case CondCall():
            branches = (instruction.then, instruction.otherwise)
            nested = [format_program(p, origins=origins, indent=indent + "  ") for p in branches]
            head = (
                f"cond %{instruction.predicate} "
                f"{format_list(format_argument(a) for a in instruction.operands)}"
            )
            outputs = format_list(format_buffer(b) for b in instruction.outputs)
            return f"{head} defines {outputs} {{\n" + "\n".join(nested) + f"\n{indent}}}"
        case LoopCall():
            nested = [
                format_program(p, origins=origins, indent=indent + "  ")
                for p in (instruction.condition, instruction.body)
                if p is not None
            ]
            rounds = instruction.rounds
            word = "while" if rounds is None else f"repeat `{format_expr(rounds)}`"
            carried = format_list(format_argument(a) for a in instruction.carried)
            extra = format_list(format_argument(a) for a in instruction.extra)
            outputs = format_list(format_buffer(b) for b in instruction.outputs)
            return f"{word} {carried} {extra} defines {outputs} {{\n" + "\n".join(nested) + f"\n{indent}}}"
        case SubprogramCall():
            operands = format_list(format_argument(a) for a in instruction.operands)
            outputs = format_list(format_buffer(b) for b in instruction.outputs)
            return f"run @{instruction.body.name} {operands} defines {outputs}"


def _format_extern(call: ExternCall) -> str:
    args = [format_argument(a) for a in call.args]
    args += [f"{name} = {format_argument(value)}" for name, value in call.kwargs]
    parts = [f"extern {quote(call.target)} {format_list(args)}"]
    if call.implements:
        parts.append(f"implements {quote(call.implements)}")
    if call.out:
        parts.append(f"out {format_list(f'{quote(keyword)} %{name}' for keyword, name in call.out)}")
    if call.binds:
        parts.append(f"binds {format_list(f'{format_symbol(s)} of {k} {d}' for s, k, d in call.binds)}")
    if call.outputs:
        parts.append(f"defines {format_list(_result(o) for o in call.outputs)}")
    if call.aligned:
        parts.append(f"aligned {format_list(map(str, call.aligned))}")
    if not call.single:
        parts.append("tuple")
    flight = format_flight(call.in_flight, call.until, call.waits)
    return " ".join((*parts, *format_paths(call.paths), *flight)) + format_on(call.stream)


def _result(output: Buffer | SymbolOutput | None) -> str:
    match output:
        case None:
            return "_"
        case SymbolOutput():
            return f"size {format_symbol(output.symbol)}"
        case Buffer():
            return format_buffer(output)
