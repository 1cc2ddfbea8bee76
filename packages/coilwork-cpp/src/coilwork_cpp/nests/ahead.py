"""Lines of memory that a pass asks for ahead of their use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_cpp.planning.pass_plan import RowAhead
from coilwork_cpp.values.values import Block
from coilwork_ir.index import Expr
from coilwork_ir.syntax.cpp import ZERO, Binary, Call, Do, For, Literal, Name

_LINE_BYTES: Final = 64


def ask(block: Block, rows: Sequence[RowAhead], inner: Expr, first: Name, points: int) -> tuple[For, ...]:
    """Ask for the lines of `rows` at `points` points of `inner`, from number `first` on."""
    found: list[For] = []
    for row in rows:
        place = block.inside()
        place.symbols[inner] = Binary("+", first, Name("p"))
        address = Binary("+", Name(row.buffer), place.index(row.index))
        arguments = (address, Literal("1")) if row.write else (address,)
        fetch = Do(Call("__builtin_prefetch", arguments))
        found.append(For("p", ZERO, Literal(str(points)), (fetch,), step=_LINE_BYTES // row.itemsize))
    return tuple(found)
