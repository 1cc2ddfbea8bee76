"""Checks of inputs' layouts: one by one, and those of fixed layouts all in one cheap call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import BindSymbol, CheckLayout, CheckSize, Comment, Program
from coilwork_ir.syntax.python import (
    Assign,
    Do,
    Expression,
    Filled,
    If,
    Name,
    Statement,
    Tuple,
    Unary,
    Unpack,
    method,
)
from coilwork_wrapper.python.scope import Scope, quote

HALF_A_LINE: Final = 42
KNOWN: Final = Name("known_inputs")


def fixed_checks(program: Program, scope: Scope) -> tuple[CheckLayout, ...]:
    """Checks at the start of `program` whose shapes and strides depend on no symbol."""
    start = takewhile(
        lambda i: isinstance(i, BindSymbol | CheckLayout | CheckSize | Comment), program.instructions
    )
    checks = [instruction for instruction in start if isinstance(instruction, CheckLayout)]
    return tuple(check for check in checks if _is_fixed(check, scope))


def emit_fixed_checks(checks: Sequence[CheckLayout], scope: Scope) -> Iterator[Statement]:
    """Check inputs, unless they are like those of an earlier call, in every one of which they passed."""
    scope.used[KNOWN.id] = method(Name("rt"), "LayoutMemory")
    names = [scope.variable(check.buffer) for check in checks]
    details = [_check(check, scope) for check in checks]
    learn = Do(Filled(method(KNOWN, "learn", *names)))
    yield If(Unary("not", Filled(method(KNOWN, "match", *names))), (*details, learn))
    for group in _short_groups([scope.name(check.buffer) for check in checks if check.aligned]):
        aligned = scope.runtime("aligned", *map(Name, group))
        alone = len(group) == 1
        yield Unpack(Tuple((Name(group[0]),)), aligned) if alone else Assign(tuple(group), aligned)


def emit_check(check: CheckLayout, scope: Scope) -> Statement:
    """Check one input, and align it if it has to be."""
    if not check.aligned:
        return _check(check, scope)
    name = scope.name(check.buffer)
    return Assign((name,), Filled(scope.runtime("check_aligned_layout", *_write_expected(check, scope))))


def _short_groups(names: Sequence[str]) -> Iterator[list[str]]:
    """`names` in runs that fit on a line twice, as results and as arguments."""
    group: list[str] = []
    for name in names:
        if group and len(", ".join([*group, name])) > HALF_A_LINE:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _check(check: CheckLayout, scope: Scope) -> Statement:
    return Do(Filled(scope.runtime("check_layout", *_write_expected(check, scope))))


def _write_expected(check: CheckLayout, scope: Scope) -> tuple[Expression, ...]:
    buffer = scope.buffer(check.buffer)
    shape, strides, dtype = scope.layout(buffer)
    return scope.variable(buffer.name), quote(buffer.name), dtype, quote(buffer.device), shape, strides


def _is_fixed(check: CheckLayout, scope: Scope) -> bool:
    buffer = scope.buffer(check.buffer)
    return all(as_int(size) is not None for size in (*buffer.shape, *buffer.strides))
