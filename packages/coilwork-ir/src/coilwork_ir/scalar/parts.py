"""Values that are another computation in each of a few equal parts of a range, as where tensors of one size
are joined.

A kernel can go through one part and compute all of them at each of its points: what they read alike is read
once, and no point computes what only another part needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr, as_int
from coilwork_ir.scalar.nodes import Const, IndexValue, Op, Scalar
from coilwork_ir.scalar.walk import postorder

# As many results of a point stay in registers.
_MOST_PARTS: Final = 4
# By how much the first place of the other side lies behind the constant.
_BEHIND: Final[Mapping[str, int]] = MappingProxyType({"lt": 0, "ge": 0, "le": 1, "gt": 1})


def even_parts(roots: Iterable[Scalar], ranges: Sequence[Expr]) -> tuple[Expr, int] | None:
    """The range of `ranges` that comparisons in `roots` cut into a few equal parts, and how many; None if
    there is none.

    Of several such ranges the innermost, the last one.
    """
    cuts: dict[Expr, set[int]] = {}
    for node in postorder(tuple(roots)):
        match node:
            case Op(op=name, operands=(IndexValue(expr=place, operands=()), Const(value=value))) if (
                name in _BEHIND
            ):
                cuts.setdefault(place, set()).add(int(value) + _BEHIND[name])
            case _:
                pass
    for symbol in reversed(ranges):
        extent = None if symbol.extent is None else as_int(symbol.extent)
        inside = [] if extent is None else [cut for cut in cuts.get(symbol, ()) if 0 < cut < extent]
        if extent is not None and inside:
            parts = extent // gcd(extent, *inside)
            if parts <= _MOST_PARTS:
                return symbol, parts
    return None
