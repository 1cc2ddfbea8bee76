"""Checks of inputs' layouts: one by one, and those of fixed layouts all in one cheap call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import BindSymbol, CheckLayout, CheckSize, Comment, Program
from coilwork_wrapper.python.scope import Scope
from coilwork_wrapper.python.tree import Line, Listing, Statement, Suite

HALF_A_LINE = 42


def fixed_checks(program: Program, scope: Scope) -> tuple[CheckLayout, ...]:
    """Checks at the start of `program` whose shapes and strides depend on no symbol."""
    start = takewhile(
        lambda i: isinstance(i, BindSymbol | CheckLayout | CheckSize | Comment), program.instructions
    )
    checks = [instruction for instruction in start if isinstance(instruction, CheckLayout)]
    return tuple(check for check in checks if _is_fixed(check, scope))


def emit_fixed_checks(checks: Sequence[CheckLayout], scope: Scope) -> Iterator[Statement]:
    """Check inputs, unless they are like those of an earlier call, in every one of which they passed."""
    scope.used["known_inputs"] = "rt.LayoutMemory()"
    names = tuple(scope.name(check.buffer) for check in checks)
    details = [_check(check, scope) for check in checks]
    learn = Listing("known_inputs.learn(", names, ")")
    yield Suite(Listing("if not known_inputs.match(", names, "):"), (*details, learn))
    for group in _short_groups([scope.name(check.buffer) for check in checks if check.aligned]):
        some = ", ".join(group)
        target = some if len(group) > 1 else f"({some},)"
        yield Line(f"{target} = {scope.runtime('aligned')}({some})")


def emit_check(check: CheckLayout, scope: Scope) -> Statement:
    """Check one input, and align it if it has to be."""
    if not check.aligned:
        return _check(check, scope)
    name = scope.name(check.buffer)
    return Listing(f"{name} = {scope.runtime('check_aligned_layout')}(", _expected(check, scope), ")")


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
    return Listing(f"{scope.runtime('check_layout')}(", _expected(check, scope), ")")


def _expected(check: CheckLayout, scope: Scope) -> tuple[str, ...]:
    buffer = scope.buffer(check.buffer)
    return (
        *(scope.name(buffer.name), repr(buffer.name), scope.dtype(buffer.dtype), repr(buffer.device)),
        *(scope.shape(buffer.shape), scope.shape(buffer.strides)),
    )


def _is_fixed(check: CheckLayout, scope: Scope) -> bool:
    buffer = scope.buffer(check.buffer)
    return all(as_int(size) is not None for size in (*buffer.shape, *buffer.strides))
