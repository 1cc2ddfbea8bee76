"""Conditionals and loops: nested programs are functions of the same form as the outermost one."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_cpp_wrapper.scope import Scope, dtype_code, refuse
from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.index import Expr
from coilwork_ir.loc import Origin
from coilwork_ir.program.nodes import CondCall, Program, Return, SubprogramCall, WhileCall
from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Break,
    Call,
    Code,
    Declare,
    DeclareArray,
    Do,
    If,
    Name,
    Statement,
    While,
    element,
    integer,
)


def emit_cond(call: CondCall, scope: Scope) -> Iterator[Statement]:
    """Run one of two functions."""
    results = f"results_{scope.number}"
    yield DeclareArray("rt::Tensor", results, max(len(call.outputs), 1))
    predicate = Call("rt::item", (Name(scope.name(call.predicate)),))
    yield If(
        Binary("!=", predicate, integer(0)),
        tuple(_run(call.then, call.operands, results, call.origins, scope)),
        tuple(_run(call.otherwise, call.operands, results, call.origins, scope)),
    )
    for position, output in enumerate(call.outputs):
        yield Declare(
            "rt::Tensor", scope.name(output.name), _settle_result(element(results, position), output, scope)
        )


def emit_while(call: WhileCall, scope: Scope) -> Iterator[Statement]:
    """Run a function on its own results as long as another one says so."""
    names = [scope.name(output.name) for output in call.outputs]
    for name, start in zip(names, call.carried, strict=True):
        if not isinstance(start, Ref):
            refuse(
                "a loop that carries a number", call.origins, "only tensors are carried between iterations"
            )
        yield Declare("rt::Tensor", name, Call(f"{scope.name(start.name)}.alias"))
    carried: tuple[Argument, ...] = tuple(Ref(output.name) for output in call.outputs)
    operands = (*carried, *call.extra)
    verdict, results = f"verdict_{scope.number}", f"results_{scope.number}"
    body: list[Statement] = [
        DeclareArray("rt::Tensor", verdict, 1),
        *_run(call.condition, operands, verdict, call.origins, scope),
        If(Binary("==", Call("rt::item", (element(verdict, 0),)), integer(0)), (Break(),)),
        DeclareArray("rt::Tensor", results, max(len(names), 1)),
        *_run(call.body, operands, results, call.origins, scope),
    ]
    for position, name in enumerate(names):
        body.append(Assign(Name(name), Call("rt::move", (element(results, position),))))
    yield While(Name("true"), tuple(body))
    for name, output in zip(names, call.outputs, strict=True):
        yield Assign(Name(name), _settle_result(Name(name), output, scope))


def emit_run(call: SubprogramCall, scope: Scope) -> Iterator[Statement]:
    """Run a function; its results are memory of their own."""
    results = f"results_{scope.number}"
    yield DeclareArray("rt::Tensor", results, max(len(call.outputs), 1))
    yield from _run(call.body, call.operands, results, call.origins, scope, suffix=f"_{scope.number}")
    for position, output in enumerate(call.outputs):
        given = Call("rt::move", (element(results, position),))
        settled = Call("rt::with_layout", (given, *scope.layout(output), dtype_code(output.dtype)))
        yield Declare("rt::Tensor", scope.name(output.name), settled)


def _settle_result(value: Code, output: Buffer, scope: Scope) -> Code:
    """A result in memory of its own, whatever the nested program returned: its operand, or another layout."""
    return Call("rt::copied", (value, *scope.layout(output), dtype_code(output.dtype)))


def _run(
    program: Program,
    operands: tuple[Argument, ...],
    results: str,
    origins: tuple[Origin, ...],
    scope: Scope,
    *,
    suffix: str = "",
) -> Iterator[Statement]:
    """Call the function of `program`, which empties the array of its operands. `suffix` makes names of
    arrays that no other call in the block has."""
    last = program.instructions[-1]
    if not isinstance(last, Return) or not all(isinstance(v, Ref) for v in last.values):
        refuse(
            "a branch or loop that returns a number",
            origins,
            "only tensors are returned from nested programs",
        )
    tensors: list[Code] = []
    numbers: list[Code] = []
    for operand in operands:
        match operand:
            case Ref(name):
                tensors.append(Call(f"{scope.name(name)}.alias"))
            case Expr():
                numbers.append(scope.index(operand))
            case bool() | int():
                numbers.append(integer(int(operand)))
            case _:
                refuse(
                    f"operand {operand!r} of a branch or loop",
                    origins,
                    "only tensors and integers are passed on",
                )
    numbers += [scope.index(symbol) for symbol in scope.outer_symbols(program)]
    given = f"operands_{scope.function(program)}{suffix}"
    extents = f"extents_{scope.function(program)}{suffix}"
    yield _array("rt::Tensor", given, tensors)
    yield _array("const int64_t", extents, numbers or [integer(0)])
    arguments = (Name("constants"), Name(given), Name(extents), Name(results), Name("nullptr"))
    yield Do(Call(scope.function(program), arguments))


def _array(kind: str, name: str, items: list[Code]) -> Statement:
    return DeclareArray(kind, name, items=tuple(items)) if items else DeclareArray(kind, name, 1)
