"""Each instruction of a program as Python statements.

`emit_instruction` has a case for every instruction: a new one has to be added here. Inputs' layouts are
checked one by one, or, those that are fixed, together in one cheap call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, Ref, SymbolOutput
from coilwork_ir.index import Expr, as_expr, as_int
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
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.nodes import Return as Returned
from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
)
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Call,
    Delete,
    Do,
    Expression,
    Filled,
    For,
    If,
    List,
    Name,
    Noted,
    Number,
    Raise,
    Return,
    Statement,
    Subscript,
    Tuple,
    Unary,
    Unpack,
    While,
    call,
    method,
)
from coilwork_ir.syntax.python import Comment as Remark
from coilwork_wrapper.provenance import list_origin_lines
from coilwork_wrapper.python.scope import ROUND, Scope, quote

# ---- layout checks ----


HALF_A_LINE: Final = 42
KNOWN: Final = Name("known_inputs")


def find_fixed_checks(program: Program, scope: Scope) -> tuple[CheckLayout, ...]:
    """Checks at the start of `program` whose shapes and strides depend on no symbol."""
    start = takewhile(
        lambda i: isinstance(i, BindSymbol | CheckLayout | CheckSize | Comment), program.instructions
    )
    checks = [instruction for instruction in start if isinstance(instruction, CheckLayout)]
    return tuple(check for check in checks if _is_fixed(check, scope))


def emit_fixed_checks(checks: Sequence[CheckLayout], scope: Scope) -> Iterator[Statement]:
    """Check inputs, unless they are like those of an earlier call, in every one of which they passed."""
    asserted = [check for check in checks if check.asserted]
    if asserted:
        scope.used[KNOWN.id] = method(Name("rt"), "LayoutMemory")
        names = [scope.variable(check.buffer) for check in asserted]
        details = [_call_check(check, scope) for check in asserted]
        learn = Do(Filled(method(KNOWN, "learn", *names)))
        yield If(Unary("not", Filled(method(KNOWN, "match", *names))), (*details, learn))
    for group in _split_into_lines([scope.name(check.buffer) for check in checks if check.aligned]):
        yield _align(group, scope)


def emit_check(check: CheckLayout, scope: Scope) -> Statement:
    """Check one input, and align it if it has to be."""
    if not check.aligned:
        return _call_check(check, scope)
    name = scope.name(check.buffer)
    if not check.asserted:
        return _align([name], scope)
    return Assign(
        (name,), Filled(scope.runtime("check_aligned_layout", *_list_expected_layout(check, scope)))
    )


def _align(names: Sequence[str], scope: Scope) -> Statement:
    """Copy the tensors of `names` that are not aligned."""
    aligned = scope.runtime("ensure_aligned", *map(Name, names))
    return Assign(tuple(names), aligned) if len(names) > 1 else Unpack(Tuple((Name(names[0]),)), aligned)


def _split_into_lines(names: Sequence[str]) -> Iterator[list[str]]:
    """`names` in runs that fit on a line twice, as results and as arguments."""
    group: list[str] = []
    for name in names:
        if group and len(", ".join([*group, name])) > HALF_A_LINE:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _call_check(check: CheckLayout, scope: Scope) -> Statement:
    return Do(Filled(scope.runtime("check_layout", *_list_expected_layout(check, scope))))


def _list_expected_layout(check: CheckLayout, scope: Scope) -> tuple[Expression, ...]:
    buffer = scope.buffer(check.buffer)
    shape, strides, dtype = scope.layout(buffer)
    return scope.variable(buffer.name), quote(buffer.name), dtype, quote(buffer.device), shape, strides


def _is_fixed(check: CheckLayout, scope: Scope) -> bool:
    buffer = scope.buffer(check.buffer)
    return all(as_int(size) is not None for size in (*buffer.shape, *buffer.strides))


# ---- instructions ----


RELATIONS: Final[Mapping[str, str]] = MappingProxyType({"eq": "==", "ne": "!=", "lt": "<", "le": "<="})
RESULTS: Final = Name("results")
# By type of device, what the runtime allocates there by without asking the dispatcher, and if it takes a
# number.
QUICK_ALLOCATIONS: Final[Mapping[str, tuple[str, bool]]] = MappingProxyType(
    {"cpu": ("empty_strided_cpu", False), "cuda": ("empty_strided_cuda", True)}
)


def emit_instruction(instruction: Instruction, scope: Scope) -> Iterator[Statement]:
    """Statements that do what `instruction` says."""
    match instruction:
        case BindSymbol():
            source = scope.variable(instruction.buffer)
            size = method(source, instruction.what, Number(instruction.dim))
            yield Assign((scope.symbols[instruction.symbol.name],), size)
        case CheckLayout():
            yield emit_check(instruction, scope)
        case Alloc() | AllocPool() | PoolView() | Reuse() | Reinterpret() | Free():
            yield from _memory(instruction, scope)
        case Launch():
            yield from _provenance(instruction)
            sizes = map(scope.index, instruction.sizes)
            run = call(scope.kernel(instruction.kernel), *map(scope.variable, instruction.args), *sizes)
            yield Do(Filled(_put_on(instruction.stream, run, scope)))
        case ExternCall():
            yield from _provenance(instruction)
            yield from _extern(instruction, scope)
        case CheckSize():
            sides = scope.index(instruction.lhs), scope.index(instruction.rhs)
            fails = Unary("not", Binary(RELATIONS[instruction.relation], *sides))
            yield If(fails, (Raise(call("RuntimeError", quote(instruction.message))),))
        case CondCall():
            yield from _cond(instruction, scope)
        case LoopCall():
            yield from _repeat(instruction, scope)
        case SubprogramCall():
            yield from _run(instruction, scope)
        case Copy():
            yield from _provenance(instruction)
            target, source = scope.variable(instruction.target), scope.variable(instruction.source)
            copying = method(target, "copy_", source, Name(str(instruction.non_blocking)))
            yield Do(_put_on(instruction.stream, copying, scope))
        case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            yield _order_streams(instruction, scope)
        case Region():
            raise AssertionError("regions are inlined before a program is emitted")
        case Comment(text=text):
            yield Remark(text, wrapped=True)
        case Returned(values=values):
            yield Return((Filled(Tuple(tuple(map(scope.argument, values)))),))


def _put_on(stream: str, run: Call, scope: Scope) -> Call:
    """`run`, with what it does put on `stream`."""
    if stream == OWN:
        return run
    on_stream = scope.runtime("on_stream", scope.variable(stream), run.function, *run.args)
    return Call(on_stream.function, on_stream.args, run.kwargs)


def _order_streams(instruction: StreamInstruction, scope: Scope) -> Statement:
    def others(stream: str) -> tuple[Expression, ...]:
        return () if stream == OWN else (scope.variable(stream),)

    match instruction:
        case ForkStream(stream=stream, device=device, after=after):
            return Assign((scope.name(stream),), scope.runtime("fork_stream", quote(device), *others(after)))
        case RecordEvent(event=event, device=device, stream=stream):
            return Assign((scope.name(event),), scope.runtime("record_event", quote(device), *others(stream)))
        case WaitEvent(event=event, stream=None):
            return Do(scope.runtime("synchronize_event", scope.variable(event)))
        case WaitEvent(event=event, stream=str(stream)):
            return Do(scope.runtime("wait_event", scope.variable(event), *others(stream)))
        case JoinStream(stream=stream, into=into):
            return Do(scope.runtime("join_stream", scope.variable(stream), *others(into)))
        case _:
            raise AssertionError(instruction)


def _memory(
    instruction: Alloc | AllocPool | PoolView | Reuse | Reinterpret | Free, scope: Scope
) -> Iterator[Statement]:
    match instruction:
        case Alloc(buffer=buffer):
            yield _define(buffer, _empty(buffer, scope), scope)
        case AllocPool():
            size, device = scope.index(instruction.size_bytes), quote(instruction.device)
            yield Assign((scope.name(instruction.pool),), scope.runtime("empty_pool", size, device))
        case PoolView(buffer=buffer):
            pool, offset = scope.variable(instruction.pool), scope.index(instruction.offset_bytes)
            yield _define(buffer, scope.runtime("pool_view", pool, offset, *scope.layout(buffer)), scope)
        case Reuse(buffer=buffer):
            view = _view(buffer, instruction.source, as_expr(0), scope)
            yield _define(buffer, Noted(view, "reuse"), scope)
            if instruction.source not in scope.constants:
                yield Delete((scope.name(instruction.source),))
        case Reinterpret(buffer=buffer):
            yield _define(buffer, _view(buffer, instruction.source, instruction.offset, scope), scope)
        case Free(names=names):
            # constants outlive the call: `call` reads them from around it and cannot delete them
            yield Delete(tuple(scope.name(n) for n in names if n not in scope.constants))


def _define(buffer: Buffer, value: Expression, scope: Scope) -> Statement:
    return Assign((scope.name(buffer.name),), value)


def _provenance(
    instruction: Launch | ExternCall | CondCall | LoopCall | SubprogramCall | Copy,
) -> Iterator[Statement]:
    for line in list_origin_lines(instruction.origins):
        yield Remark(line, wrapped=True)


def _empty(buffer: Buffer, scope: Scope) -> Expression:
    kind, _, number = buffer.device.partition(":")
    layout = scope.layout(buffer)
    name, is_numbered = QUICK_ALLOCATIONS.get(kind, ("", False))
    if not name:
        return scope.runtime("empty_strided", *layout, quote(buffer.device))
    return scope.runtime(name, *layout, *([Number(int(number or 0))] if is_numbered else []))


def _view(buffer: Buffer, source_name: str, offset: Expr, scope: Scope) -> Expression:
    source, name, start = scope.buffer(source_name), scope.variable(source_name), scope.index(offset)
    if buffer.dtype is not source.dtype:
        return scope.runtime("reinterpret_dtype", name, *scope.layout(buffer), start)
    if (buffer.shape, buffer.strides) == (source.shape, source.strides) and as_int(offset) == 0:
        return name
    return scope.runtime("reinterpret", name, scope.shape(buffer.shape), scope.shape(buffer.strides), start)


def _extern(extern: ExternCall, scope: Scope) -> Iterator[Statement]:
    kwargs = [(key, scope.argument(value)) for key, value in extern.kwargs]
    kwargs += [(key, scope.variable(name)) for key, name in extern.out]
    arguments = tuple(map(scope.argument, extern.args))
    run = Call(Name(scope.operator(extern.target)), arguments, tuple(kwargs))
    value = Filled(_put_on(extern.stream, run, scope))
    wanted = [(k, o) for k, o in enumerate(extern.outputs) if o is not None]
    if not wanted:
        yield Do(value)
    elif extern.single:
        yield Assign((_result_name(wanted[0][1], scope),), value)
        yield from _settle(wanted[0][1], extern, 0, scope)
    else:
        yield Assign((RESULTS.id,), value)
        for number, output in wanted:
            path = extern.paths[number] if extern.paths else (number,)
            place: Expression = RESULTS
            for step in path:
                place = Subscript(place, (Number(step),))
            yield Assign((_result_name(output, scope),), place)
            yield from _settle(output, extern, number, scope)
        yield Delete((RESULTS.id,))


def _result_name(output: Buffer | SymbolOutput, scope: Scope) -> str:
    return scope.symbols[output.symbol.name] if isinstance(output, SymbolOutput) else scope.name(output.name)


def _settle(
    output: Buffer | SymbolOutput, extern: ExternCall, number: int, scope: Scope
) -> Iterator[Statement]:
    """Bind the symbols of a result, and give it the declared layout."""
    if isinstance(output, SymbolOutput):
        return
    name = scope.variable(output.name)
    for symbol, position, dim in extern.binds:
        if position == number:
            yield Assign((scope.symbols[symbol.name],), method(name, "size", Number(dim)))
    ensure = "ensure_aligned_layout" if number in extern.aligned else "ensure_layout"
    yield _define(output, scope.runtime(ensure, name, *scope.layout(output)), scope)


def _call_nested(
    program: Program, operands: tuple[Argument, ...], scope: Scope, *numbers: Expression
) -> Expression:
    given = List((*map(scope.argument, operands), *numbers))
    return call(scope.function(program), given, *map(scope.index, scope.outer(program)))


def _settle_nested(value: Name, output: Buffer, scope: Scope) -> Statement:
    # a nested program may return its operand or one tensor twice; results have memory of their own
    own = method(value, "clone")
    return _define(output, scope.runtime("ensure_layout", own, *scope.layout(output)), scope)


def _cond(cond: CondCall, scope: Scope) -> Iterator[Statement]:
    yield from _provenance(cond)
    names = scope.variables(output.name for output in cond.outputs)
    then, otherwise = (
        _unpack(names, _call_nested(branch, cond.operands, scope)) for branch in (cond.then, cond.otherwise)
    )
    yield If(method(scope.variable(cond.predicate), "item"), (then,), (otherwise,))
    for output in cond.outputs:
        yield _settle_nested(scope.variable(output.name), output, scope)


def _repeat(loop: LoopCall, scope: Scope) -> Iterator[Statement]:
    yield from _provenance(loop)
    names = scope.variables(output.name for output in loop.outputs)
    carried: tuple[Argument, ...] = tuple(Ref(output.name) for output in loop.outputs)
    operands = (*carried, *loop.extra)
    if names.items:
        yield Unpack(names, Tuple(tuple(map(scope.argument, loop.carried))))
    if loop.condition is not None:
        verdict = Subscript(_call_nested(loop.condition, operands, scope), (Number(0),))
        step = _unpack(names, _call_nested(loop.body, operands, scope))
        yield While(method(verdict, "item"), (step,))
    elif loop.rounds is not None:
        step = _unpack(names, _call_nested(loop.body, operands, scope, Name(ROUND)))
        yield For(ROUND, call("range", scope.index(loop.rounds)), (step,))
    for output in loop.outputs:
        yield _settle_nested(scope.variable(output.name), output, scope)


def _run(run: SubprogramCall, scope: Scope) -> Iterator[Statement]:
    yield from _provenance(run)
    names = scope.variables(output.name for output in run.outputs)
    yield _unpack(names, _call_nested(run.body, run.operands, scope))
    for output in run.outputs:
        settled = scope.runtime("ensure_layout", scope.variable(output.name), *scope.layout(output))
        yield _define(output, settled, scope)


def _unpack(names: Tuple, value: Expression) -> Statement:
    return Unpack(names, value) if names.items else Do(value)
