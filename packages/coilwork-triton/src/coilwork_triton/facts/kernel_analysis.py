"""Facts about one kernel and the values in it.

`KernelAnalysis(kernel)` finds each fact once, when it is first asked for. Its `work` is what the kernel
does at each point, in numbers: bytes, operations, values that are carried along rows. `find_levels` says
along which ranges each value varies and in which pass over the reduction it can be computed. Below these
stand what they are made of: chains of dependent loads, segmented reductions, keys of sorts, users of
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, find_stride
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.loops import Check
from coilwork_ir.machine import MachineModel
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Combine,
    Combining,
    Contraction,
    IndexValue,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    count_leading_points,
    iterate_postorder,
    list_loads,
)
from coilwork_triton.facts.vectorization import (
    Access,
    has_scattered_loads,
    list_accesses,
    list_full_access_sizes,
    load_width_along,
)

# Facts of a kernel


# Kinds of reductions that gather two values.
_PAIRS: Final = frozenset({"welford", "online_softmax", "argmin", "argmax"})

# Scans whose running value comes with its position; the others combine values alone.
PAIRED_SCANS: Final = frozenset({"min", "max", "argmin", "argmax"})


def list_actions(kernel: Kernel) -> tuple[Store | Check, ...]:
    """Everything `kernel` does: checks first, then stores."""
    found: list[Store | Check] = [*kernel.checks, *kernel.stores]
    return tuple(found)


def list_roots(kernel: Kernel) -> tuple[Scalar, ...]:
    """Everything that `kernel` stores or checks.

    Raises:
        EmitError: that is nothing.
    """
    roots = tuple(root for action in list_actions(kernel) for root in list_action_roots(action))
    if not roots:
        raise EmitError("empty-kernel", f"kernel {kernel.name} stores nothing")
    return roots


def list_action_roots(action: Store | Check) -> tuple[Scalar, ...]:
    """Return the scalar graphs that an action evaluates."""
    if isinstance(action, Check):
        return (action.condition,)
    return (action.value, *action.indirect, *(() if action.mask is None else (action.mask,)))


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
        sums: reductions whose values are kept in registers over a loop together.
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
    sums: int = 0
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
        """The values that it stores or checks."""
        return list_roots(self.kernel)

    @cached_property
    def nodes(self) -> tuple[Scalar, ...]:
        """All values below the roots, operands first."""
        return tuple(iterate_postorder(self.roots))

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Its loads and stores at offsets that do not depend on data."""
        return list_accesses(self.kernel, self.roots)

    @cached_property
    def is_segmented(self) -> bool:
        """Its rows end where data says."""
        return is_segmented_reduction(self.roots)

    @cached_property
    def sorts(self) -> tuple[Sort, ...]:
        """Its sorts."""
        return tuple(v for v in self.nodes if isinstance(v, Sort))

    @cached_property
    def work(self) -> Work:
        """Its work at each of its points, in numbers."""
        kernel, nodes, sorts = self.kernel, self.nodes, self.sorts
        scans = [v for v in nodes if isinstance(v, Scan)]
        return Work(
            element_bytes=max((a.dtype.itemsize for a in kernel.args), default=4),
            tensors=len(kernel.args),
            stream_bytes=list_full_access_sizes(kernel.ranges, self.accesses),
            operations=sum(SCALAR_OPS[v.op].cost for v in nodes if isinstance(v, Op)),
            load_chain=load_chain_length(self.roots),
            is_scattered=has_scattered_loads(kernel, self.roots, self.machine),
            is_segmented=self.is_segmented,
            rereads_rows=_rereads_rows(kernel),
            accumulators=max(
                (2 if v.kind in _PAIRS else 1 for v in nodes if isinstance(v, Reduce)), default=0
            ),
            sums=len({(v.kind, v.operands) for v in nodes if isinstance(v, Reduce)}),
            column_sums=self._column_sums(),
            scan_words=max((scan_state_words(v.kind, v.operands[0].dtype) for v in scans), default=0),
            sort_key_bytes=max((compute_sort_key_size(v.operands[0].dtype) for v in sorts), default=0),
            sort_width=max((load_width_along(a, sorts[0].axis) for a in self.accesses), default=1)
            if sorts
            else 1,
        )

    def _column_sums(self) -> int:
        sequential = frozenset(r.symbol for r in self.kernel.ranges if r.kind == "sequential")
        sums = [v for v in self.nodes if isinstance(v, Reduce) and not sequential.isdisjoint(v.axes)]
        return len({(v.kind, v.operands) for v in sums})


def _rereads_rows(kernel: Kernel) -> bool:
    row = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
    return any(
        not row.isdisjoint(store.index.free_symbols)
        and any(isinstance(node, Reduce) for node in iterate_postorder((store.value,)))
        for store in kernel.stores
    )


def scan_state_words(kind: Combining, dtype: DType) -> int:
    """Return how many values of 4 bytes a scan carries from point to point: two where it carries positions,
    or a logarithm in two parts.
    """
    if isinstance(kind, Combine):
        return sum(-(-value.dtype.itemsize // 4) for value in kind.results)
    words = -(-dtype.itemsize // 4)
    return words + 1 if kind in PAIRED_SCANS else 2 * words if kind == "logcumsumexp" else words


# Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Facts about every value of a kernel.

    Attributes:
        varies: the kernel's range symbols that a value depends on.
        stage: the pass in which a value that varies along a reduction range is first available; for other
            values, the pass before which they are.
    """

    varies: Mapping[Scalar, frozenset[Expr]]
    stage: Mapping[Scalar, int]


def index_symbols(exprs: Iterable[Expr], ranges: frozenset[Expr]) -> frozenset[Expr]:
    """Return the range symbols among the free symbols of `exprs`."""
    found: frozenset[Expr] = frozenset()
    for expr in exprs:
        found |= expr.free_symbols & ranges
    return found


def find_levels(
    roots: Iterable[Scalar],
    ranges: frozenset[Expr],
    *,
    topk: Expr | None = None,
    given: Mapping[Scalar, frozenset[Expr]] = MappingProxyType({}),
) -> Levels:
    """Levels of all values reachable from `roots`, over the kernel's range symbols `ranges`. `given` says it
    of parameters.

    Sorts vary along `topk` instead of their axis if it is given: see
    `coilwork_triton.kernel_passes.topk_range`.
    """
    varies: dict[Scalar, frozenset[Expr]] = {}
    stage: dict[Scalar, int] = {}
    for node in iterate_postorder(roots):
        own: frozenset[Expr] = frozenset()
        for operand in node.operands:
            own |= varies[operand]
        at = max((stage[operand] for operand in node.operands), default=0)
        match node:
            case IndexValue():
                own |= index_symbols((node.expr,), ranges)
            case Load():
                own |= index_symbols(node.index, ranges)
            case Parameter():
                own |= given.get(node, frozenset())
            case Reduce() | Contraction():
                own -= frozenset(node.axes)
                at += 1
            case Scan():
                # of a block that is one point along an axis, Triton's threads have copies, and scan these as
                # well
                own |= ranges
            case Sort():
                own = (own - {node.axis}) | {node.axis if topk is None else topk}
            case _:
                pass
        varies[node] = own
        stage[node] = at
    return Levels(varies=varies, stage=stage)


# Users of values


Users: TypeAlias = Mapping[Scalar, Sequence[Scalar]]


def index_users(order: Sequence[Scalar]) -> Users:
    """Return the nodes of `order` that each of its nodes is an operand of."""
    found: dict[Scalar, list[Scalar]] = {node: [] for node in order}
    for node in order:
        for operand in dict.fromkeys(node.operands):
            found[operand].append(node)
    return found


# Chains of dependent loads


def load_chain_length(roots: Iterable[Scalar]) -> int:
    """Return the longest chain of loads below `roots`, each at a place that the one before decides.

    A search is little else, and is fast where many threads wait at once.
    """
    turns: dict[Scalar, int] = {}
    for node in iterate_postorder(tuple(roots)):
        before = max((turns[operand] for operand in node.operands), default=0)
        turns[node] = before + isinstance(node, Load)
    return max(turns.values(), default=0)


# Segmented reductions: rows end where data says. Most are short, and a loop ends at a program's longest one.


def find_segment_length(node: Reduce) -> Scalar | None:
    """Return how many points `node` combines at most along its only long axis; None if perhaps all."""
    return count_leading_points(node.kind, node.operands[0], node.axes) if len(node.operands) == 1 else None


def is_segmented_reduction(roots: Iterable[Scalar]) -> bool:
    """Tell if there are reductions below `roots`, and all of them end where data says."""
    found = [
        find_segment_length(node) for node in iterate_postorder(tuple(roots)) if isinstance(node, Reduce)
    ]
    return bool(found) and all(count is not None for count in found)


def find_gather_range(ranges: Sequence[Range], roots: Iterable[Scalar]) -> Range:
    """Return the parallel range along which gathered elements are contiguous; the last long one if none is.

    Gathers are most of what a segmented reduction reads, and the scheduler, which chose the order of the
    ranges, did not count them.
    """
    long = [r for r in ranges if r.symbol.extent is None or as_int(r.symbol.extent) != 1] or list(ranges)
    looked_up = [access.index[0] for access in list_loads(roots) if access.indirect]
    unit = as_expr(1)
    return max(long, key=lambda r: (sum(find_stride(e, r.symbol) is unit for e in looked_up), long.index(r)))


# Sort keys


Family = Literal["half", "float", "short", "word"]
# Positions have 15 bits of a key.
LONGEST_SORTED_ROW: Final = 1 << 15


def sort_key_family(dtype: DType) -> Family:
    """Return the device functions that make keys of values of `dtype`.

    Raises:
        EmitError: there are none.
    """
    if dtype in (DType.BF16, DType.F16):
        return "half"
    if dtype is DType.F32:
        return "float"
    if dtype.is_bool or (dtype.is_integer and dtype.itemsize <= 2):
        return "short"
    if dtype.is_integer and dtype.itemsize == 4:
        return "word"
    raise EmitError("sort-type", f"no sort of {dtype.text} in registers", remedy="run it as an external call")


def compute_sort_key_size(dtype: DType) -> int:
    """Size of a key: of the order of a value and its position."""
    return 4 if sort_key_family(dtype) in ("half", "short") else 8
