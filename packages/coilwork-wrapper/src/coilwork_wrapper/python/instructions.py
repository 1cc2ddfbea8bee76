"""Each instruction of a program as Python statements. Total: a new instruction has to be added here to be emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
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
from coilwork_wrapper.python.checks import emit_check
from coilwork_wrapper.python.expressions import tuple_text
from coilwork_wrapper.python.scope import Scope
from coilwork_wrapper.python.tree import Delete, Line, Listing, Remark, Statement, Suite

RELATIONS = (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="))


def emit_instruction(instruction: Instruction, scope: Scope) -> Iterator[Statement]:
    """Statements that do what `instruction` says."""
    match instruction:
        case BindSymbol():
            symbol, source = scope.symbols[instruction.symbol.name], scope.name(instruction.buffer)
            yield Line(f"{symbol} = {source}.{instruction.what}({instruction.dim})")
        case CheckLayout():
            yield emit_check(instruction, scope)
        case Alloc() | AllocPool() | PoolView() | Reuse() | Reinterpret() | Free():
            yield from _memory(instruction, scope)
        case Launch():
            yield from _provenance(instruction)
            args = [scope.name(a) for a in instruction.args] + [scope.index(s) for s in instruction.sizes]
            yield Listing(f"{scope.kernel(instruction.kernel)}(", tuple(args), ")")
        case ExternCall():
            yield from _provenance(instruction)
            yield from _extern(instruction, scope)
        case CheckSize():
            relation = dict(RELATIONS)[instruction.relation]
            test = f"{scope.index(instruction.lhs)} {relation} {scope.index(instruction.rhs)}"
            yield Suite(f"if not ({test})", (Line(f"raise RuntimeError({instruction.message!r})"),))
        case CondCall():
            yield from _cond(instruction, scope)
        case WhileCall():
            yield from _while(instruction, scope)
        case Comment(text=text):
            yield Remark(text)
        case Return(values=values):
            yield Listing("return (", tuple(scope.argument(v) for v in values), ")", single=True)


def _memory(
    instruction: Alloc | AllocPool | PoolView | Reuse | Reinterpret | Free, scope: Scope
) -> Iterator[Statement]:
    match instruction:
        case Alloc(buffer=buffer):
            yield Line(f"{scope.name(buffer.name)} = {_empty(buffer, scope)}")
        case AllocPool():
            size, name = scope.index(instruction.size_bytes), scope.name(instruction.pool)
            yield Line(f"{name} = {scope.runtime('empty_pool')}({size}, {instruction.device!r})")
        case PoolView(buffer=buffer):
            pool, offset = scope.name(instruction.pool), scope.index(instruction.offset_bytes)
            view = f"{scope.runtime('pool_view')}({pool}, {offset}, {_layout(buffer, scope)})"
            yield Line(f"{scope.name(buffer.name)} = {view}")
        case Reuse(buffer=buffer):
            old = scope.name(instruction.source)
            view = _view(buffer, scope.buffer(instruction.source), old, "0", scope)
            yield Line(f"{scope.name(buffer.name)} = {view}  # reuse")
            if instruction.source not in scope.constants:
                yield Delete((old,))
        case Reinterpret(buffer=buffer):
            old = scope.name(instruction.source)
            view = _view(
                buffer, scope.buffer(instruction.source), old, scope.index(instruction.offset), scope
            )
            yield Line(f"{scope.name(buffer.name)} = {view}")
        case Free(names=names):
            # constants outlive the call: `call` reads them from around it and cannot delete them
            yield Delete(tuple(scope.name(n) for n in names if n not in scope.constants))


def _provenance(instruction: Launch | ExternCall | CondCall | WhileCall) -> Iterator[Statement]:
    for line in origin_lines(instruction.origins):
        yield Remark(line)


def _layout(buffer: Buffer, scope: Scope) -> str:
    return f"{scope.shape(buffer.shape)}, {scope.shape(buffer.strides)}, {scope.dtype(buffer.dtype)}"


def _empty(buffer: Buffer, scope: Scope) -> str:
    kind, _, number = buffer.device.partition(":")
    layout = _layout(buffer, scope)
    if kind == "cpu":
        return f"{scope.runtime('empty_strided_cpu')}({layout})"
    if kind == "cuda":
        return f"{scope.runtime('empty_strided_cuda')}({layout}, {number or 0})"
    return f"{scope.runtime('empty_strided')}({layout}, {buffer.device!r})"


def _view(buffer: Buffer, source: Buffer, source_name: str, offset: str, scope: Scope) -> str:
    same_layout = (buffer.shape, buffer.strides) == (source.shape, source.strides)
    if buffer.dtype is not source.dtype:
        return f"{scope.runtime('reinterpret_dtype')}({source_name}, {_layout(buffer, scope)}, {offset})"
    if same_layout and offset == "0":
        return source_name
    shape, strides = scope.shape(buffer.shape), scope.shape(buffer.strides)
    return f"{scope.runtime('reinterpret')}({source_name}, {shape}, {strides}, {offset})"


def _extern(call: ExternCall, scope: Scope) -> Iterator[Statement]:
    args = [piece for a in call.args for piece in _pieces(a, scope)]
    args += [f"{key}={scope.argument(value)}" for key, value in call.kwargs]
    args += [f"{key}={scope.name(name)}" for key, name in call.out]
    wanted = [(k, o) for k, o in enumerate(call.outputs) if o is not None]
    opening = f"{scope.operator(call.target)}("
    if not wanted:
        yield Listing(opening, tuple(args), ")")
    elif call.single:
        name = _result_name(wanted[0][1], scope)
        yield Listing(f"{name} = {opening}", tuple(args), ")")
        yield from _settle(wanted[0][1], call, 0, scope)
    else:
        yield Listing(f"results = {opening}", tuple(args), ")")
        for number, output in wanted:
            path = call.paths[number] if call.paths else (number,)
            place = "".join(f"[{step}]" for step in path)
            yield Line(f"{_result_name(output, scope)} = results{place}")
            yield from _settle(output, call, number, scope)
        yield Delete(("results",))


def _pieces(argument: Argument, scope: Scope) -> Sequence[str]:
    """Texts that give `argument` when joined by commas: the items of a long list may stand on several lines."""
    if not isinstance(argument, ListValue) or not argument.items:
        return [scope.argument(argument)]
    pieces = [scope.argument(item) for item in argument.items]
    pieces[0] = f"[{pieces[0]}"
    pieces[-1] = f"{pieces[-1]}]"
    return pieces


def _result_name(output: Buffer | SymbolOutput, scope: Scope) -> str:
    return scope.symbols[output.symbol.name] if isinstance(output, SymbolOutput) else scope.name(output.name)


def _settle(
    output: Buffer | SymbolOutput, call: ExternCall, number: int, scope: Scope
) -> Iterator[Statement]:
    """Bind the symbols of a result, and give it the declared layout."""
    if isinstance(output, SymbolOutput):
        return
    name = scope.name(output.name)
    for symbol, position, dim in call.binds:
        if position == number:
            yield Line(f"{scope.symbols[symbol.name]} = {name}.size({dim})")
    ensure = scope.runtime("ensure_aligned_layout" if number in call.aligned else "ensure_layout")
    yield Line(f"{name} = {ensure}({name}, {_layout(output, scope)})")


def _call_nested(program: Program, operands: tuple[Argument, ...], scope: Scope) -> str:
    shown = ", ".join(scope.argument(a) for a in operands)
    sizes = "".join(f", {scope.index(symbol)}" for symbol in scope.outer(program))
    return f"{scope.function(program)}([{shown}]{sizes})"


def _settle_nested(value: str, output: Buffer, scope: Scope) -> Statement:
    # a nested program may return its operand or one tensor twice; results have memory of their own
    ensure = scope.runtime("ensure_layout")
    return Line(f"{scope.name(output.name)} = {ensure}({value}.clone(), {_layout(output, scope)})")


def _cond(call: CondCall, scope: Scope) -> Iterator[Statement]:
    yield from _provenance(call)
    names = [scope.name(output.name) for output in call.outputs]
    then, otherwise = (
        Line(f"{tuple_text(names)} = {taken}" if names else taken)
        for taken in (
            _call_nested(call.then, call.operands, scope),
            _call_nested(call.otherwise, call.operands, scope),
        )
    )
    yield Suite(f"if {scope.name(call.predicate)}.item()", (then,))
    yield Suite("else", (otherwise,))
    for name, output in zip(names, call.outputs, strict=True):
        yield _settle_nested(name, output, scope)


def _while(call: WhileCall, scope: Scope) -> Iterator[Statement]:
    yield from _provenance(call)
    names = [scope.name(output.name) for output in call.outputs]
    carried: tuple[Argument, ...] = tuple(Ref(output.name) for output in call.outputs)
    operands = (*carried, *call.extra)
    if names:
        yield Line(f"{tuple_text(names)} = {tuple_text([scope.argument(a) for a in call.carried])}")
    step = _call_nested(call.body, operands, scope)
    yield Suite(
        f"while {_call_nested(call.condition, operands, scope)}[0].item()",
        (Line(f"{tuple_text(names)} = {step}" if names else step),),
    )
    for name, output in zip(names, call.outputs, strict=True):
        yield _settle_nested(name, output, scope)
