"""All cases, and what of the op tables they visit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.cases import WRITTEN_CASES
from coilwork_ir.conformance.op_cases import COMBINING_CASES, OP_CASES
from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.scalar import Combine, Op, Reduce, Scalar, Scan, Sort, postorder

CASES: Final[tuple[Case, ...]] = (*WRITTEN_CASES, *OP_CASES, *COMBINING_CASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Names with the types of their operands: of scalar ops, of reductions and scans (`"function"` for those
    that have none), of sorts (whether descending), and of stores by mode.

    A value that was widened from a 16 bit float counts as one of that type.
    """

    ops: frozenset[tuple[str, DType]]
    reductions: frozenset[tuple[str, DType]]
    scans: frozenset[tuple[str, DType]]
    sorts: frozenset[tuple[bool, DType]]
    stores: frozenset[tuple[str, DType]]


def coverage(cases: Iterable[Case] = CASES) -> Coverage:
    """Return what `cases` visit."""
    kernels = [parse_kernel(case.text) for case in cases]
    nodes = [node for kernel in kernels for node in postorder(_roots(kernel))]
    return Coverage(
        ops=frozenset((n.op, _memory_type(n.operands[-1])) for n in nodes if isinstance(n, Op)),
        reductions=frozenset((n.kind, _memory_type(n.operands[0])) for n in nodes if isinstance(n, Reduce)),
        scans=frozenset(
            ("function" if isinstance(n.kind, Combine) else n.kind, _memory_type(n.operands[0]))
            for n in nodes
            if isinstance(n, Scan)
        ),
        sorts=frozenset((n.descending, _memory_type(n.operands[0])) for n in nodes if isinstance(n, Sort)),
        stores=frozenset((s.mode, s.value.dtype) for kernel in kernels for s in kernel.stores),
    )


def _roots(kernel: Kernel) -> tuple[Scalar, ...]:
    return (*(s.value for s in kernel.stores), *(check.condition for check in kernel.checks))


def _memory_type(value: Scalar) -> DType:
    if isinstance(value, Op) and value.op == "cast" and value.operands[0].dtype.is_low_precision:
        return value.operands[0].dtype
    return value.dtype
