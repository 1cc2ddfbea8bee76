"""Horizontal fusion: independent small kernels of one kind share a launch ("combo kernels").

Kernels of one kind differ in their tensors and in how many elements these have. The text of the kind is the
kernel with a size symbol for its extent, if it has one range of known extent. Extents that are multiples of
16 are a kind of their own, in which the symbol counts sixteens, so that accesses of 16 bytes stay wide.
Kernels over several ranges hold extents in their indices, and are of one kind only if they are equal.

A call moves up to the first one of its kind unless a dependence lies between. What it allocates then lives
longer, which must not raise the peak of memory. A long kernel stays alone: it would gain only a launch, and
lose time to the dispatch and to tuned configurations that a shared kernel cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, substitute, symbol
from coilwork_ir.kernels import ComboKernel, Kernel, KernelCall, Member, Range, Store, TensorArg
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.kernels.verify import find_member_aliasing
from coilwork_ir.loc import UNKNOWN, merge_origins
from coilwork_ir.scalar import Scalar, substitute_ranges
from coilwork_scheduler.cost_model import CostModel, KernelWork, SizeHints
from coilwork_scheduler.kernels.canonical import format_structure
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.order import ExternalMemory, SchedulingUnit, count_live_bytes

# ---- Kinds of kernels ----


_UNIT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """The kind of a kernel, by which kernels share launches.

    Attributes:
        text: equal for kernels of one kind.
        extent: how many units the range has that another kernel of the kind may have more or fewer of; None
            if all are alike in that.
    """

    text: str
    extent: int | None


def find_kernel_kind(kernel: Kernel) -> KernelKind | None:
    """Return the kind of `kernel`, if it can share a launch: it does nothing but store a value per point."""
    if not kernel.stores or kernel.checks or kernel.combined is not None or kernel.core is not None:
        return None
    if any(r.kind != "parallel" for r in kernel.ranges) or any(s.mode != "store" for s in kernel.stores):
        return None
    if any(as_int(r.extent) == 0 for r in kernel.ranges):
        return None
    free = _free_range(kernel)
    if free is None:
        return KernelKind(text=format_structure(kernel), extent=None)
    extent = as_int(free.extent) or 0
    unit = _UNIT if extent % _UNIT == 0 else 1
    return KernelKind(
        text=format_structure(generalize_extent(kernel, least=1, most=None)), extent=extent // unit
    )


def generalize_extent(kernel: Kernel, *, least: int, most: int | None) -> Kernel:
    """Put a size symbol, the last of its sizes, for the extent of the one range of `kernel`.

    Its values lie between `least` and `most`, in units of the kind; `most` is None if they have no bound.

    Raises:
        ValueError: it has no such range.
    """
    free = _free_range(kernel)
    if free is None:
        raise ValueError(f"kernel {kernel.name} has no range of its own extent")
    size = symbol(f"n{len(kernel.sizes)}", lo=least, hi=most)
    whole = as_int(free.extent) or 0
    count = size * (_UNIT if whole % _UNIT == 0 else 1)
    position = symbol(free.symbol.name, extent=count)
    mapping = {free.symbol: position}
    roots = substitute_ranges([root for store in kernel.stores for root in list_store_roots(store)], mapping)
    rest = iter(roots)
    stores = tuple(
        _replace_roots(
            replace(store, index=substitute(store.index, mapping)),
            [next(rest) for _ in list_store_roots(store)],
        )
        for store in kernel.stores
    )
    return replace(
        kernel,
        ranges=tuple(replace(r, symbol=position) if r is free else r for r in kernel.ranges),
        args=tuple(replace(a, span=count) if a.span is as_expr(whole) else a for a in kernel.args),
        sizes=(*kernel.sizes, size),
        stores=stores,
    )


def _free_range(kernel: Kernel) -> Range | None:
    """Return the one range with several points, if their number is known."""
    real = [r for r in kernel.ranges if as_int(r.extent) != 1]
    return real[0] if len(real) == 1 and as_int(real[0].extent) is not None else None


def _replace_roots(store: Store, roots: list[Scalar]) -> Store:
    last = None if store.mask is None else roots[-1]
    return replace(store, value=roots[0], indirect=tuple(roots[1 : 1 + len(store.indirect)]), mask=last)


# ---- Choosing launches ----


# Steps over which a call that allocates may move.
_WINDOW: Final = 256
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCandidate:
    """A call that may share a launch.

    Attributes:
        kind: equal for calls that can share one.
        names: the buffers that it is called with.
        time_us: what it takes besides the launch.
    """

    kind: str
    names: tuple[str, ...]
    time_us: float


def find_launch_candidate(
    kernel: Kernel, call: KernelCall, buffers: Mapping[str, Buffer], model: CostModel, sizes: SizeHints
) -> LaunchCandidate | None:
    """Return the call of `kernel` as a candidate, if its kernel can share a launch."""
    kind = find_kernel_kind(kernel)
    if kind is None:
        return None
    sizes_bytes = [sizes.size_bytes(buffers[name]) for name in call.args]
    roles = [arg.role for arg in kernel.args]
    work = KernelWork(
        read_bytes=sum(size for size, role in zip(sizes_bytes, roles, strict=True) if role != "out"),
        write_bytes=sum(size for size, role in zip(sizes_bytes, roles, strict=True) if role != "in"),
        operations=0,
        rows=sizes.numel(tuple(get_extent(r.symbol) for r in kernel.ranges)),
        row_length=1,
        programs=1,
    )
    nothing = replace(work, read_bytes=0, write_bytes=0)
    devices = " ".join(buffers[name].device for name in call.args)
    return LaunchCandidate(
        kind=f"{devices}\n{kind.text}",
        names=call.args,
        time_us=model.kernel_us(work) - model.kernel_us(nothing),
    )


@dataclass(slots=True)
class _Launch:
    """A launch that more calls may join: its place in the sequence, and the buffers of its calls."""

    place: int
    names: set[str]


def group_launches(
    units: Sequence[SchedulingUnit],
    sequence: Sequence[int],
    candidates: Mapping[int, LaunchCandidate],
    external: ExternalMemory,
    remarks: Remarks,
    *,
    launch_us: float,
    loss: float,
    max_args: int,
) -> tuple[tuple[int, ...], ...]:
    """Return `sequence` of `units` with `candidates` that share a launch as one entry, where the first is.

    A launch takes `launch_us`; `loss` is the share of a kernel's time that may be lost in a shared one.
    """
    slots: list[list[int]] = [[] for _ in sequence]
    place: dict[int, int] = {}
    open_launches: dict[str, _Launch] = {}
    memory = _Memory(count_live_bytes(units, sequence, external))
    for position, index in enumerate(sequence):
        unit, candidate = units[index], candidates.get(index)
        at = position
        if candidate is not None and candidate.time_us * loss <= launch_us:
            launch = open_launches.get(candidate.kind)
            obstacle = "" if launch is None else _obstacle(launch, unit, candidate, place, max_args)
            grown = sum(size for _, size in unit.allocates)
            if launch is not None and not obstacle and not memory.move(grown, position, launch.place):
                obstacle = "memory would have to be there earlier"
            if launch is not None and not obstacle:
                at = launch.place
                launch.names.update(candidate.names)
            else:
                if obstacle:
                    remarks.note("combine", candidate.names[-1:], False, obstacle)
                open_launches[candidate.kind] = _Launch(position, set(candidate.names))
        place[index] = at
        slots[at].append(index)
    found = tuple(tuple(slot) for slot in slots if slot)
    for run in found:
        if len(run) > 1:
            remarks.note(
                "combine",
                tuple(candidates[index].names[-1] for index in run[:_SHOWN]),
                True,
                "of one kind, and none waits for another",
                members=len(run),
                saved_us=(len(run) - 1) * launch_us,
                loss_us=loss * sum(candidates[index].time_us for index in run),
            )
    return found


def _obstacle(
    launch: _Launch, unit: SchedulingUnit, candidate: LaunchCandidate, place: Mapping[int, int], max_args: int
) -> str:
    """Return why the call of `candidate` cannot move to `launch`; empty if it can."""
    if any(place[earlier] >= launch.place for earlier in unit.before):
        return "waits for a step behind the earlier call of its kind"
    new = sum(name not in launch.names for name in dict.fromkeys(candidate.names))
    if len(launch.names) + new > max_args:
        return "a launch takes no more arguments"
    return ""


class _Memory:
    """Bytes alive at each step, and their peak, which no move may raise."""

    def __init__(self, live: list[int]) -> None:
        self._live = live
        self._peak = max(live, default=0)

    def move(self, size_bytes: int, source: int, to: int) -> bool:
        """Have `size_bytes` that step `source` allocates there from step `to` on, unless that raises the
        peak.
        """
        if not size_bytes:
            return True
        steps = range(to, source)
        if len(steps) > _WINDOW or any(self._live[step] + size_bytes > self._peak for step in steps):
            return False
        for step in steps:
            self._live[step] += size_bytes
        return True


# ---- The combo kernel ----


def make_combo_kernel(calls: Sequence[tuple[Kernel, KernelCall]]) -> tuple[Kernel, KernelCall]:
    """Return one kernel that does what `calls` do, and its call. Their kernels are of one kind.

    Tensors and sizes that several calls take are passed once. The name of the kernel is provisional.
    """
    parts = [(kernel, call, kind) for kernel, call in calls if (kind := find_kernel_kind(kernel))]
    first = parts[0][0]
    extents = [kind.extent for _, _, kind in parts if kind.extent is not None]
    alike = len(set(extents)) <= 1
    shared = first if alike else generalize_extent(first, least=min(extents), most=max(extents))
    body = replace(shared, name="member", origins=UNKNOWN)
    sizes: dict[Expr, Expr] = {}
    args: dict[str, TensorArg] = {}
    members: list[Member] = []
    for number, (kernel, call, kind) in enumerate(parts):
        own = tuple(_size(e, s, sizes) for e, s in zip(call.sizes, kernel.sizes, strict=True))
        values = own if alike or kind.extent is None else (*own, as_expr(kind.extent))
        spans = dict(zip(body.sizes, values, strict=True))
        for formal, name in zip(body.args, call.args, strict=True):
            if name not in args:
                span = substitute(formal.span, spans)
                args[name] = replace(formal, name=f"m{number}_{formal.name}", span=span)
        members.append(Member(args=tuple(args[name].name for name in call.args), sizes=values))
    joined = Kernel(
        name=f"{first.name}_x{len(parts)}",
        ranges=(),
        args=tuple(args.values()),
        sizes=tuple(sizes.values()),
        aliasing=_find_aliasing(body, members),
        stores=(),
        combined=ComboKernel(body=body, members=tuple(members)),
        numerics=first.numerics,
        origins=merge_origins(*(kernel.origins for kernel, _, _ in parts)),
    )
    call = KernelCall(
        kernel=joined.name,
        args=tuple(args),
        sizes=tuple(sizes),
        into=tuple(pair for _, call, _ in parts for pair in call.into),
        origins=joined.origins,
    )
    return joined, call


def _size(value: Expr, formal: Expr, sizes: dict[Expr, Expr]) -> Expr:
    """Return what a member's size symbol `formal` is: a number, or the symbol of the whole kernel for
    `value`.
    """
    if value.is_const:
        return value
    known = sizes.get(value)
    if known is None:
        known = sizes[value] = symbol(f"m_n{len(sizes)}", lo=formal.lo, hi=formal.hi)
    return known


def _find_aliasing(body: Kernel, members: Sequence[Member]) -> tuple[tuple[str, str], ...]:
    """Return the members' pairs of an output and an input that no other member reads."""
    readers: dict[str, int] = {}
    for member in members:
        for name in member.args:
            readers[name] = readers.get(name, 0) + 1
    pairs = (pair for member in members for pair in find_member_aliasing(body, member))
    return tuple((output, source) for output, source in pairs if readers[source] == 1)
