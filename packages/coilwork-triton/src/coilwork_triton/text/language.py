"""What Triton adds to Python: `triton.language`, functions that it compiles, loops in stages,
blocks' axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from coilwork_ir.syntax.python import (
    EVERYTHING,
    NONE,
    Attribute,
    Binary,
    Blank,
    Call,
    Comment,
    Docstring,
    Expression,
    For,
    Function,
    Import,
    Name,
    Number,
    Parameter,
    Statement,
    Subscript,
    Verbatim,
    call,
    print_module,
)

_TL: Final = Name("tl")
_CONSTEXPR: Final = Attribute(_TL, "constexpr")
_JIT: Final = Attribute(Name("triton"), "jit")


def tl(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of `triton.language`'s function `name`."""
    return Call(Attribute(_TL, name), args, tuple(kwargs.items()))


def tl_name(name: str) -> Attribute:
    """`tl.name`: an element type or constant of `triton.language`."""
    return Attribute(_TL, name)


def conjunction(conditions: tuple[Expression, ...]) -> Expression | None:
    """`a & b & …`, or None of none."""
    result: Expression | None = None
    for condition in conditions:
        result = condition if result is None else Binary("&", result, condition)
    return result


def insert_axes(block: Expression, is_kept: Sequence[bool]) -> Subscript:
    """`block[:, None]`: an axis of `block` for each True, in order, and an axis of one element for each
    False.
    """
    return Subscript(block, tuple(EVERYTHING if kept else NONE for kept in is_kept))


def define_function(
    name: str,
    parameters: Iterable[str],
    body: tuple[Statement, ...],
    *,
    constants: Iterable[str] = (),
    doc: str = "",
    inline: bool = True,
) -> Function:
    """A function that Triton compiles; `constants` are parameters known then. Without `inline` it
    stays one.
    """
    return Function(
        name=name,
        parameters=(*map(Parameter, parameters), *(Parameter(c, _CONSTEXPR) for c in constants)),
        body=(Docstring(doc), *body) if doc else body,
        decorators=(_JIT if inline else Call(_JIT, (), (("noinline", Number(True)),)),),
    )


def loop(
    variable: str,
    stop: Expression,
    step: Expression,
    body: tuple[Statement, ...],
    *,
    stages: Expression | None = None,
) -> For:
    """A loop over 0, `step`, … below `stop`; with `stages`, so many of its iterations are in
    flight at once.
    """
    bounds = (Number(0), stop, step)
    return For(
        variable, call("range", *bounds) if stages is None else tl("range", *bounds, num_stages=stages), body
    )


def print_kernels(doc: str, notes: str, functions: Iterable[Function | Verbatim]) -> str:
    """A file of `functions`: `doc` is its docstring, and `notes` stand in a comment behind the imports."""
    statements: list[Statement] = [Docstring(f"\n{doc}\n"), Blank()]
    statements += [Import("triton"), Import("triton.language", "tl"), Blank(), Comment(notes)]
    for function in functions:
        statements += [Blank(), Blank(), function]
    return print_module(statements)
