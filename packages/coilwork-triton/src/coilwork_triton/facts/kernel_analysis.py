"""Facts about a kernel that follow from it alone; each fact is found once, when it is first asked for.

`KernelAnalysis(kernel)` has the graphs and accesses that decisions look at. Its `work` is what the kernel
does at each point in numbers: bytes, operations, values that are carried along rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.loops import Check
from coilwork_ir.machine import MachineModel
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Combine, Combining, Op, Reduce, Scalar, Scan, Sort, postorder
from coilwork_triton.facts.ragged import is_ragged
from coilwork_triton.facts.sort_keys import key_bytes
from coilwork_triton.facts.vectors import Access, accesses_of, loads_apart, together_along, whole_sizes
from coilwork_triton.facts.waiting import loads_in_turn

# Kinds of reductions that gather two values.
_PAIRS: Final = frozenset({"welford", "online_softmax", "argmin", "argmax"})

# Scans whose running value comes with its position; the others combine values alone.
PAIRED_SCANS: Final = frozenset({"min", "max", "argmin", "argmax"})


def actions_of(kernel: Kernel) -> tuple[Store | Check, ...]:
    """Everything `kernel` does: checks first, then stores."""
    found: list[Store | Check] = [*kernel.checks, *kernel.stores]
    return tuple(found)


def roots_of(kernel: Kernel) -> tuple[Scalar, ...]:
    """Everything that `kernel` stores or checks.

    Raises:
        EmitError: that is nothing.
    """
    roots = tuple(root for what in actions_of(kernel) for root in action_roots(what))
    if not roots:
        raise EmitError("empty-kernel", f"kernel {kernel.name} stores nothing")
    return roots


def action_roots(what: Store | Check) -> tuple[Scalar, ...]:
    """The scalar graphs that an action evaluates."""
    if isinstance(what, Check):
        return (what.condition,)
    return (what.value, *what.indirect, *(() if what.mask is None else (what.mask,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a kernel at each of its points, in numbers.

    Attributes:
        element_bytes: size of the widest element loaded or stored.
        tensors: number of tensor arguments.
        stream_bytes: element sizes of what is accessed at every point.
        operations: weighted arithmetic per point.
        load_chain: loads of a point that wait for each other.
        is_scattered: neighbouring points load from sectors of their own.
        is_segmented: rows of r end where data says, most of them early.
        rereads_rows: rows are read again once they are reduced.
        accumulators: values per point of a block that one reduction keeps in registers over a loop, at most.
        column_sums: reductions along w.
        scan_words: 4-byte values per point that a scan along r carries; 0 if there is none.
        sort_key_bytes: size of the keys that r is sorted by; 0 if it is not sorted.
        sort_width: neighbours along r that one thread loads at once where it is sorted.
    """

    element_bytes: int
    tensors: int
    stream_bytes: tuple[int, ...] = ()
    operations: int = 0
    load_chain: int = 0
    is_scattered: bool = False
    is_segmented: bool = False
    rereads_rows: bool = False
    accumulators: int = 0
    column_sums: int = 0
    scan_words: int = 0
    sort_key_bytes: int = 0
    sort_width: int = 1


class KernelAnalysis:
    """Facts about `kernel`, on a device of which `machine` was measured."""

    def __init__(self, kernel: Kernel, machine: MachineModel) -> None:
        self.kernel = kernel
        self.machine = machine

    @cached_property
    def roots(self) -> tuple[Scalar, ...]:
        """Return what it stores or checks."""
        return roots_of(self.kernel)

    @cached_property
    def nodes(self) -> tuple[Scalar, ...]:
        """All values below the roots, operands first."""
        return tuple(postorder(self.roots))

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Return where it loads and stores at places that no data decide."""
        return accesses_of(self.kernel, self.roots)

    @cached_property
    def is_segmented(self) -> bool:
        """Its rows end where data says."""
        return is_ragged(self.roots)

    @cached_property
    def sorts(self) -> tuple[Sort, ...]:
        """Its sorts."""
        return tuple(v for v in self.nodes if isinstance(v, Sort))

    @cached_property
    def work(self) -> Work:
        """Return what it does at each of its points."""
        kernel, nodes, sorts = self.kernel, self.nodes, self.sorts
        scans = [v for v in nodes if isinstance(v, Scan)]
        return Work(
            element_bytes=max((a.dtype.itemsize for a in kernel.args), default=4),
            tensors=len(kernel.args),
            stream_bytes=whole_sizes(kernel.ranges, self.accesses),
            operations=sum(SCALAR_OPS[v.op].cost for v in nodes if isinstance(v, Op)),
            load_chain=loads_in_turn(self.roots),
            is_scattered=loads_apart(kernel, self.roots, self.machine),
            is_segmented=self.is_segmented,
            rereads_rows=_rereads_rows(kernel),
            accumulators=max(
                (2 if v.kind in _PAIRS else 1 for v in nodes if isinstance(v, Reduce)), default=0
            ),
            column_sums=self._column_sums(),
            scan_words=max((carried_words(v.kind, v.operands[0].dtype) for v in scans), default=0),
            sort_key_bytes=max((key_bytes(v.operands[0].dtype) for v in sorts), default=0),
            sort_width=max((together_along(a, sorts[0].axis) for a in self.accesses), default=1)
            if sorts
            else 1,
        )

    def _column_sums(self) -> int:
        walked = frozenset(r.symbol for r in self.kernel.ranges if r.kind == "walked")
        sums = [v for v in self.nodes if isinstance(v, Reduce) and not walked.isdisjoint(v.axes)]
        return len({(v.kind, v.operands) for v in sums})


def _rereads_rows(kernel: Kernel) -> bool:
    row = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
    return any(
        not row.isdisjoint(store.index.free_symbols)
        and any(isinstance(node, Reduce) for node in postorder((store.value,)))
        for store in kernel.stores
    )


def carried_words(kind: Combining, dtype: DType) -> int:
    """How many values of 4 bytes a scan carries from point to point: two where it carries positions, or a
    logarithm in two parts."""
    if isinstance(kind, Combine):
        return sum(-(-value.dtype.itemsize // 4) for value in kind.results)
    words = -(-dtype.itemsize // 4)
    return words + 1 if kind in PAIRED_SCANS else 2 * words if kind == "logcumsumexp" else words
