"""The rule of kernels that contract: one sum of products, and nothing beside it that varies along the sum."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.scalar import Contraction, Reduce, Scalar, Scan, Sort, find_parts, postorder
from coilwork_ir.verification import Place, Rule

CONTRACTION_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "contraction": Rule(
            "a kernel with a contraction combines nothing else, its left factor varies along rows, its "
            "right one along "
            "columns, both along the sum, and what the kernel does besides varies along parallel ranges only",
            "write the sum as a reduction, or put the rest into a kernel of its own",
        ),
    }
)


def check_contraction(
    kernel: Kernel,
    node: Contraction,
    level_of: Mapping[Scalar, frozenset[Expr]],
    roots: tuple[Scalar, ...],
    place: Place,
) -> None:
    """`node`, a value of `kernel`, which stores or checks `roots`, is all that the kernel combines.

    Raises:
        VerifyError: the kernel breaks the rule `contraction`.
    """
    combining = [v for v in postorder(roots) if isinstance(v, Contraction | Reduce | Scan | Sort)]
    if combining != [node]:
        place.fail("contraction", f"it combines {len(combining)} times")
    others = frozenset(r.symbol for r in kernel.ranges if r.kind != "parallel")
    if frozenset(node.axes) != others or len(node.axes) != len(others):
        place.fail("contraction", "the products are not summed over all ranges that are not parallel")
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    if find_parts(node.left, node.right, parallel, node.axes) is None:
        place.fail("contraction", "its factors do not tell rows, columns and a batch apart")
    touched = frozenset().union(*(level_of[r] for r in roots), *(s.index.free_symbols for s in kernel.stores))
    for symbol in sorted(touched & others, key=lambda s: s.name):
        place.fail("contraction", f"something besides the products varies along {symbol.name}")
