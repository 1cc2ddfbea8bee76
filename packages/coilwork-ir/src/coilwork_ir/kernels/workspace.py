"""What programs that share the rows of scans tell each other, and where.

A kernel with `Hints.workspace` has a program for each piece of each row. Memory of `i64`, all of it 0 before, begins with a counter,
from which every program takes a number: the pieces that come before its own have then been taken by programs that run
already. Behind it lies a word for each piece of each row, in this order, and so for each 32 bits of what a scan carries from point to
point. Its lower half are these bits; the upper half is 1 once they are there.
"""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, ceildiv, product
from coilwork_ir.kernels.nodes import Kernel, RangeKind
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import Combine, Scalar, Scan, postorder

_POSITIONED = frozenset({"min", "max", "argmin", "argmax"})


def scan_words(kind: ScanKind, dtype: DType) -> int:
    """How many words the running value of a scan of `dtype` takes: with its position, or as a logarithm in two parts."""
    words = -(-dtype.itemsize // 4)
    if kind in _POSITIONED:
        return words + 1
    return 2 * words if kind == "logcumsumexp" else words


def scans_of(roots: Iterable[Scalar]) -> tuple[Scan, ...]:
    """One node for each scan that `roots` need, operands first."""
    found: dict[object, Scan] = {}
    for node in postorder(tuple(roots)):
        if isinstance(node, Scan):
            found.setdefault((node.kind, node.operands, node.axis, node.reverse), node)
    return tuple(found.values())


def words_of(scans: Iterable[Scan]) -> int:
    """Words of a piece of all `scans`, each of a kind that has a name."""
    return sum(
        scan_words(scan.kind, scan.operands[0].dtype) for scan in scans if not isinstance(scan.kind, Combine)
    )


def piece_of(kernel: Kernel) -> int | None:
    """Points of the pieces of `kernel`, a power of two; `None` if its rows have no known length."""
    length = as_int(_points(kernel, "reduction"))
    if length is None:
        return None
    return 1 << max(0, (-(-length // max(1, kernel.hints.split)) - 1).bit_length())


def workspace_elements(kernel: Kernel, roots: Iterable[Scalar]) -> Expr:
    """Elements that the workspace of `kernel`, which computes `roots`, holds."""
    pieces = ceildiv(_points(kernel, "reduction"), piece_of(kernel) or 1)
    return product([_points(kernel, "parallel"), pieces]) * words_of(scans_of(roots)) + 1


def _points(kernel: Kernel, kind: RangeKind) -> Expr:
    return product(r.symbol.extent for r in kernel.ranges if r.kind == kind and r.symbol.extent is not None)
