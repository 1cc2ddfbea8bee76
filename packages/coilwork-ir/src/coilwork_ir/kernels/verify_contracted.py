"""The rule of contracted kernels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.scalar import Scalar, contraction_in
from coilwork_ir.verification.rules import Place, Rule

CONTRACTED_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "contracted": Rule(
            "a contracted kernel has one reduction, a sum of products of a left and a right factor, and what it does "
            "besides varies along parallel ranges only",
            "hint `looped`, or put the rest into a kernel of its own",
        ),
    }
)


def check_contracted(
    kernel: Kernel, level_of: Mapping[Scalar, frozenset[Expr]], roots: tuple[Scalar, ...], place: Place
) -> None:
    """A kernel that says it is a contraction, and stores or checks `roots`, is one."""
    found = contraction_in(roots, [r.symbol for r in kernel.ranges if r.kind == "parallel"])
    if found is None:
        place.fail("contracted", "its reductions are not one sum of products")
    node, _ = found
    others = frozenset(r.symbol for r in kernel.ranges if r.kind != "parallel")
    if frozenset(node.axes) != others:
        place.fail("contracted", "the products are not summed over all ranges that are not parallel")
    touched = frozenset().union(*(level_of[r] for r in roots), *(s.index.free_symbols for s in kernel.stores))
    for symbol in sorted(touched & others, key=lambda s: s.name):
        place.fail("contracted", f"something besides the products varies along {symbol.name}")
