"""How large positions, and what they are computed from, get: sums and products may wrap around, for the
result is the same, but not what is divided.
"""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.index.expression import Expr, as_expr, product, total
from coilwork_ir.index.view import Add, Const, FloorDiv, Max, Min, Mod, Mul, Sym, node


def largest_operands(positions: Iterable[Expr]) -> tuple[Expr, ...] | None:
    """Numbers that no operand of a division, a remainder, a minimum or a maximum in `positions` exceeds, as
    expressions over sizes.

    `None` if one depends on data.
    """
    found: dict[Expr, None] = {}
    for operand in _operands(positions):
        if any(isinstance(node(part), Mul) for part in _parts(operand)):
            most = magnitude(operand)
            if most is None:
                return None
            found[most] = None
    return tuple(found)


def _operands(positions: Iterable[Expr]) -> Iterable[Expr]:
    for position in positions:
        for part in _parts(position):
            match node(part):
                case FloorDiv(a, b) | Mod(a, b):
                    yield from (a, b)
                case Min(operands) | Max(operands):
                    yield from operands


def _parts(expr: Expr) -> Iterable[Expr]:
    yield expr
    match node(expr):
        case Add(operands) | Mul(operands) | Min(operands) | Max(operands):
            for operand in operands:
                yield from _parts(operand)
        case FloorDiv(a, b) | Mod(a, b):
            yield from _parts(a)
            yield from _parts(b)


def magnitude(expr: Expr) -> Expr | None:
    """No less than the magnitude of `expr`, whatever its ranges are at, as an expression over sizes; None if
    it depends on data.
    """
    match node(expr):
        case Const(value):
            return as_expr(abs(value))
        case Sym(_, symbol):
            return None if symbol.name.startswith("@") else symbol if symbol.extent is None else symbol.extent
        case Add(operands) | Min(operands) | Max(operands):
            parts = _list_magnitudes(operands)
            return None if parts is None else total(parts)
        case Mul(operands):
            parts = _list_magnitudes(operands)
            return None if parts is None else product(parts)
        case FloorDiv(a, b):
            # rounded down: of a negative one the magnitude may be one more
            parts = _list_magnitudes((a, b))
            return None if parts is None else parts[0] + 1
        case Mod(_, b):
            return magnitude(b)


def _list_magnitudes(operands: Iterable[Expr]) -> list[Expr] | None:
    parts = [magnitude(operand) for operand in operands]
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None
