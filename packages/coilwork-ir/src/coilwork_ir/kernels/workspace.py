"""The workspace by which programs that share the rows of scans tell each other their results.

A kernel with a `workspace` may have a program for each piece of each row. The workspace is memory of `i64`,
all of it 0 before. It begins with a counter, from which every program takes a number: the pieces that come
before its own have then been taken by programs that run already. Behind it lies a word for each piece of each
row, in this order, and so for each 32 bits of what a scan carries from point to point. Its lower half are
these bits; the upper half is 1 once they are there.

A kernel does not say how long pieces are. A workspace has room for so many, and who has programs share rows
cuts them as short as fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, ceildiv, multiply_all, provably_le
from coilwork_ir.kernels.nodes import Kernel, RangeKind
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import Combine, Reduce, Scalar, Scan, Sort, iterate_postorder
from coilwork_ir.verification import Place, Rule

_POSITIONED = frozenset({"min", "max", "argmin", "argmax"})

WORKSPACE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "workspace": Rule(
            "a workspace is an `inout` argument of i64 that the kernel neither loads nor stores",
            "give the kernel an argument for that alone, or no workspace",
        ),
    }
)


def check_workspace(kernel: Kernel, used: Collection[str], place: Place) -> None:
    """Check the workspace of `kernel`, which loads and stores the arguments `used`.

    Raises:
        VerifyError: it breaks the rule `workspace`.
    """
    arg = next((arg for arg in kernel.args if arg.name == kernel.workspace), None)
    if arg is None or arg.role != "inout" or arg.dtype is not DType.I64 or arg.name in used:
        place.fail("workspace", f"{kernel.workspace} is no argument for that alone")


# How much it holds


def scan_words(kind: ScanKind, dtype: DType) -> int:
    """Count the words of a scan's running value: with its position, or as a logarithm in two parts."""
    words = -(-dtype.itemsize // 4)
    if kind in _POSITIONED:
        return words + 1
    return 2 * words if kind == "logcumsumexp" else words


def list_scans(roots: Iterable[Scalar]) -> tuple[Scan, ...]:
    """One node for each scan that `roots` need, operands first."""
    scans: dict[object, Scan] = {}
    for node in iterate_postorder(tuple(roots)):
        if isinstance(node, Scan):
            scans.setdefault((node.kind, node.operands, node.axis, node.reverse), node)
    return tuple(scans.values())


def count_words(scans: Iterable[Scan]) -> int:
    """Words of a piece of all `scans`, each of a kind that has a name."""
    return sum(
        scan_words(scan.kind, scan.operands[0].dtype) for scan in scans if not isinstance(scan.kind, Combine)
    )


def compute_piece_length(points: int, pieces: int) -> int:
    """Points of each of about `pieces` pieces of a row of so many `points`: a power of two."""
    return 1 << max(0, (-(-points // max(1, pieces)) - 1).bit_length())


def count_workspace_elements(kernel: Kernel, length: int) -> Expr:
    """Elements that a workspace of `kernel` needs for pieces of `length` points."""
    pieces = ceildiv(_points(kernel, "reduction"), length)
    return (
        multiply_all([_points(kernel, "parallel"), pieces])
        * count_words(list_scans(list_kernel_roots(kernel)))
        + 1
    )


def find_piece_length(kernel: Kernel) -> int | None:
    """Points of the shortest pieces, a power of two, for which the workspace of `kernel` has room.

    None if it has no workspace, if programs can't share its rows, or if there is no room for two pieces of
    each.
    """
    points = as_int(_points(kernel, "reduction"))
    if not kernel.workspace or points is None or explain_not_shared(kernel) is not None:
        return None
    length = 1
    while length < points:
        if explain_no_room(kernel, length) is None:
            return length
        length *= 2
    return None


def _points(kernel: Kernel, kind: RangeKind) -> Expr:
    return multiply_all(
        r.symbol.extent for r in kernel.ranges if r.kind == kind and r.symbol.extent is not None
    )


# Which kernels may use it


def explain_not_shared(kernel: Kernel) -> str | None:
    """Return why programs can't share the rows of `kernel` through a workspace; None if they can."""
    scans = list_scans(list_kernel_roots(kernel))
    reduced = [r for r in kernel.ranges if r.kind != "parallel"]
    if not scans:
        return "what programs tell each other is where scans have got to, and there is none"
    if len({scan.reverse for scan in scans}) != 1 or len(reduced) != 1 or reduced[0].kind != "reduction":
        return "the scans do not run along one range in one direction"
    if any(isinstance(scan.kind, Combine) for scan in scans):
        return "a scan by a function has no word to tell others"
    if any(as_int(r.extent) is None for r in kernel.ranges):
        return "how long rows are, or how many, is not known"
    for node in iterate_postorder(list_kernel_roots(kernel)):
        if isinstance(node, Reduce | Sort):
            return f"a {type(node).__name__.lower()} needs all of a row"
    if any(store.mode != "store" for store in kernel.stores):
        return "a store combines with memory"
    return None


def explain_no_room(kernel: Kernel, length: int) -> str | None:
    """Return why the workspace of `kernel` does not do for pieces of `length` points; None if it does."""
    needed = count_workspace_elements(kernel, length)
    span = next(arg.span for arg in kernel.args if arg.name == kernel.workspace)
    return None if provably_le(needed, span) else f"{kernel.workspace} holds {span!r} elements of {needed!r}"
