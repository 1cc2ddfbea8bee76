"""Each instruction of a program as Python statements. Total: a new instruction has to be added here to be emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coilwork_ir.buffers import Argument, Buffer, Ref, SymbolOutput
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
    Reinterpret,
    Return,
    Reuse,
    WhileCall,
)
from coilwork_wrapper.provenance import origin_lines
from coilwork_wrapper.python.expressions import argument_text, dtype_text, index_text, shape_text, tuple_text
from coilwork_wrapper.python.tree import Line, Remark, Statement, Suite

RELATIONS = (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the emission of one program needs to know.

    Attributes:
        name: identifier of a buffer or pool.
        buffer: declaration of a buffer.
        operator: identifier bound to an operator overload, e.g. `"aten.mm.out"` -> `"aten_mm_out"`.
        kernel: identifier bound to a kernel's launcher.
        function: identifier of the function that a nested program becomes.
    """

    name: Callable[[str], str]
    buffer: Callable[[str], Buffer]
    operator: Callable[[str], str]
    kernel: Callable[[str], str]
    function: Callable[[Program], str]


def emit_instruction(instruction: Instruction, scope: Scope) -> Iterator[Statement]:
    """Statements that do what `instruction` says."""
    match instruction:
        case BindSymbol():
            yield Line(
                f"{instruction.symbol.name} = {scope.name(instruction.buffer)}.{instruction.what}({instruction.dim})"
            )
        case CheckLayout():
            yield _check_layout(instruction, scope)
        case Alloc(buffer=buffer):
            yield Line(f"{scope.name(buffer.name)} = {_empty(buffer)}")
        case AllocPool():
            size = index_text(instruction.size_bytes)
            yield Line(f'{scope.name(instruction.pool)} = rt.empty_pool({size}, "{instruction.device}")')
        case PoolView(buffer=buffer):
            pool, offset = scope.name(instruction.pool), index_text(instruction.offset_bytes)
            yield Line(f"{scope.name(buffer.name)} = rt.pool_view({pool}, {offset}, {_layout(buffer)})")
        case Reuse(buffer=buffer):
            old = scope.name(instruction.source)
            view = _view(buffer, scope.buffer(instruction.source), old, "0")
            yield Line(f"{scope.name(buffer.name)} = {view}  # reuse")
            yield Line(f"del {old}")
        case Reinterpret(buffer=buffer):
            old = scope.name(instruction.source)
            view = _view(buffer, scope.buffer(instruction.source), old, index_text(instruction.offset))
            yield Line(f"{scope.name(buffer.name)} = {view}")
        case Launch():
            yield from _provenance(instruction)
            args = [scope.name(a) for a in instruction.args] + [index_text(s) for s in instruction.sizes]
            yield Line(f"{scope.kernel(instruction.kernel)}({', '.join(args)})")
        case ExternCall():
            yield from _provenance(instruction)
            yield from _extern(instruction, scope)
        case CheckSize():
            relation = dict(RELATIONS)[instruction.relation]
            test = f"{index_text(instruction.lhs)} {relation} {index_text(instruction.rhs)}"
            yield Suite(f"if not ({test})", (Line(f"raise RuntimeError({instruction.message!r})"),))
        case CondCall():
            yield from _cond(instruction, scope)
        case WhileCall():
            yield from _while(instruction, scope)
        case Free(names=names):
            yield Line(f"del {', '.join(scope.name(n) for n in names)}")
        case Comment(text=text):
            yield Remark(text)
        case Return(values=values):
            shown = [argument_text(v, scope.name) for v in values]
            yield Line(f"return {tuple_text(shown) if shown else '()'}")


def _provenance(instruction: Launch | ExternCall) -> Iterator[Statement]:
    for line in origin_lines(instruction.origins):
        yield Remark(line)


def _layout(buffer: Buffer) -> str:
    return f"{shape_text(buffer.shape)}, {shape_text(buffer.strides)}, {dtype_text(buffer.dtype)}"


def _empty(buffer: Buffer) -> str:
    kind, _, number = buffer.device.partition(":")
    if kind == "cpu":
        return f"rt.empty_strided_cpu({_layout(buffer)})"
    if kind == "cuda":
        return f"rt.empty_strided_cuda({_layout(buffer)}, {number or 0})"
    return f'rt.empty_strided({_layout(buffer)}, "{buffer.device}")'


def _view(buffer: Buffer, source: Buffer, source_name: str, offset: str) -> str:
    same_layout = (buffer.shape, buffer.strides) == (source.shape, source.strides)
    if buffer.dtype is not source.dtype:
        return f"rt.reinterpret_dtype({source_name}, {_layout(buffer)}, {offset})"
    if same_layout and offset == "0":
        return source_name
    return (
        f"rt.reinterpret({source_name}, {shape_text(buffer.shape)}, {shape_text(buffer.strides)}, {offset})"
    )


def _check_layout(instruction: CheckLayout, scope: Scope) -> Statement:
    buffer = scope.buffer(instruction.buffer)
    name = scope.name(buffer.name)
    layout = f"{dtype_text(buffer.dtype)}, {buffer.device!r}, {shape_text(buffer.shape)}, {shape_text(buffer.strides)}"
    if instruction.aligned:
        return Line(f"{name} = rt.check_aligned_layout({name}, {name!r}, {layout})")
    return Line(f"rt.check_layout({name}, {name!r}, {layout})")


def _extern(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    args = [argument_text(a, scope.name) for a in call.args]
    args += [f"{key}={argument_text(value, scope.name)}" for key, value in call.kwargs]
    args += [f"{key}={scope.name(name)}" for key, name in call.out]
    text = f"{scope.operator(call.target)}({', '.join(args)})"
    wanted = [(k, o) for k, o in enumerate(call.outputs) if o is not None]
    if not wanted:
        yield Line(text)
        return
    if call.single:
        yield from _result(text, wanted[0][1], call, 0, scope)
        return
    yield Line(f"results = {text}")
    for number, output in wanted:
        yield from _result(f"results[{number}]", output, call, number, scope)
    yield Line("del results")


def _result(
    text: str, output: Buffer | SymbolOutput, call: ExternCall, number: int, scope: Scope
) -> Iterator[Statement]:
    if isinstance(output, SymbolOutput):
        yield Line(f"{output.symbol.name} = {text}")
        return
    name = scope.name(output.name)
    yield Line(f"{name} = {text}")
    for symbol, position, dim in call.binds:
        if position == number:
            yield Line(f"{symbol.name} = {name}.size({dim})")
    yield Line(f"{name} = rt.ensure_layout({name}, {shape_text(output.shape)}, {shape_text(output.strides)})")


def _call_nested(program: Program, operands: tuple[Argument, ...], scope: Scope) -> str:
    shown = ", ".join(argument_text(a, scope.name) for a in operands)
    return f"{scope.function(program)}([{shown}])"


def _targets(outputs: tuple[Buffer, ...], scope: Scope) -> str:
    return tuple_text([scope.name(b.name) for b in outputs]) if outputs else "_"


def _cond(call: CondCall, scope: Scope) -> Iterator[Statement]:
    targets = _targets(call.outputs, scope)
    yield Suite(
        f"if {scope.name(call.predicate)}.item()",
        (Line(f"{targets} = {_call_nested(call.then, call.operands, scope)}"),),
    )
    yield Suite("else", (Line(f"{targets} = {_call_nested(call.otherwise, call.operands, scope)}"),))


def _while(call: WhileCall, scope: Scope) -> Iterator[Statement]:
    targets = _targets(call.outputs, scope)
    start = tuple_text([argument_text(a, scope.name) for a in call.carried])
    carried: tuple[Argument, ...] = tuple(Ref(b.name) for b in call.outputs)
    operands = (*carried, *call.extra)
    yield Line(f"{targets} = {start}")
    yield Suite(
        f"while {_call_nested(call.condition, operands, scope)}[0].item()",
        (Line(f"{targets} = {_call_nested(call.body, operands, scope)}"),),
    )


def bound_symbol_names(program: Program) -> tuple[str, ...]:
    """Names of size symbols, which buffers' identifiers must not take."""
    found: dict[str, None] = {symbol.name: None for symbol in program.symbols}
    for entry in program.inputs:
        if isinstance(entry, Expr) and entry.is_symbol:
            found.setdefault(entry.name)
    for instruction in program.instructions:
        if isinstance(instruction, ExternCall):
            for symbol, _, _ in instruction.binds:
                found.setdefault(symbol.name)
            for output in instruction.outputs:
                if isinstance(output, SymbolOutput):
                    found.setdefault(output.symbol.name)
    return tuple(found)
