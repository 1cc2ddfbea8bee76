"""Split scans of few long rows or columns, which leave a GPU idle: one look-back pass, or three kernels.

A GPU kernel scans a row with one program, which carries the running value from block to block. Where rows are
fewer than fill the device, programs share them. In a single pass with decoupled look-back, each program
starts with what those before it say of their pieces, so rows are read once. A program takes its number when
it starts, so that those before it have started, too. It asks all of them at once and combines their answers
in one order. What it asks for grows with the number of pieces.

Otherwise there are three kernels: a reduction of each piece, a scan of the pieces' results, which are few,
and a scan of each piece that starts with them. Rows are then read twice and written once. Columns, whose
neighbours in memory are those of other columns, are alike, but a program has as many of them as fill a
sector. Pieces depend on extents and the device alone, and combine in one order: results are the same from run
to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    floordiv,
    get_extent,
    mod,
    multiply_all,
    provably_positive,
    symbol,
)
from coilwork_ir.kernels.workspace import scan_words
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import (
    Combine,
    Scalar,
    const,
    index_value,
    list_loads,
    load,
    op,
    substitute_ranges,
    where,
)
from coilwork_ir.target import Capabilities, RowWalks, Target, Targets
from coilwork_scheduler.cost_model import CostModel, KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.splitting.combine_pieces import get_identity, guard_loads

# ---- Look-back scans ----


# Bytes of a word, and what one from the second-level cache costs beside one from memory.
_WORD: Final = 8


def count_shared_pieces(node: Scan, target: Target) -> int | None:
    """Count the pieces of a row of `node` that one pass scans; `None` if one pass cannot."""
    scans = target.machine.scans
    extents = [as_int(get_extent(r)) for r in node.ranges]
    size = as_int(get_extent(node.axis))
    if size is None or None in extents or node.checks or isinstance(node.kind, Combine):
        return None
    rows = as_int(multiply_all(get_extent(r) for r in node.ranges if r is not node.axis))
    assert rows is not None
    # values of two registers each leave room for half as many
    length = (
        scans.longest_shared_piece
        if scan_words(node.kind, node.body.dtype) == 1
        else scans.longest_shared_piece // 2
    )
    while (
        length > scans.shortest_shared_piece
        and rows * -(-size // length) < scans.shared_programs * target.multiprocessors
    ):
        length //= 2
    pieces = -(-size // length)
    return pieces if 1 < pieces <= scans.most_shared_pieces else None


def estimate_single_pass_us(
    node: Scan,
    pieces: int,
    target: Target,
    *,
    read_bytes: float,
    write_bytes: float,
    rows: int,
    model: CostModel,
) -> float:
    """Return what the kernel of `node` takes whose rows are shared in `pieces`, and the one that fills its
    workspace.
    """
    size = as_int(get_extent(node.axis))
    assert size is not None and not isinstance(node.kind, Combine)
    told = _WORD * scan_words(node.kind, node.body.dtype) * rows * pieces
    fill = KernelWork(
        read_bytes=0, write_bytes=told, operations=0, rows=rows * pieces, row_length=1, programs=1
    )
    scan = KernelWork(
        # all pieces are asked for at once: in the mean half of them come before
        read_bytes=read_bytes + told * pieces / 2 * target.machine.scans.near_cost,
        write_bytes=write_bytes,
        operations=rows * size,
        rows=rows * pieces,
        row_length=-(-size // pieces),
        programs=rows * pieces,
    )
    return model.kernel_us(fill) + model.kernel_us(scan)


# ---- The pass ----


# Kinds whose pieces' results are those of a reduction, which combine by a scalar operation.
_COMBINE: Final[Mapping[ScanKind, tuple[ReduceKind, str]]] = MappingProxyType(
    {
        "sum": ("sum", "add"),
        "prod": ("prod", "mul"),
        "min": ("min", "minimum"),
        "max": ("max", "maximum"),
        "logcumsumexp": ("online_softmax", ""),
    }
)


def split_scans(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Split scans of few long rows, where the cost model says that it pays and no generator does it."""
    options, targets = settings.options, settings.targets
    if not options.split or options.batch_invariant or not targets.have_whole_rows:
        return graph
    weigher = _Weigher(facts=facts, settings=settings)
    fresh = facts.fresh_names()
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Scan) and _may_be_cut(node, targets):
            nodes.extend(weigher.cut(node, fresh))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weigher:
    """Decides how a scan is done."""

    facts: Dependence
    settings: Settings

    def cut(self, node: Scan, fresh: FreshNames) -> tuple[Node, ...]:
        """Return what replaces `node`: itself, shared by programs or not, or the nodes of three kernels.
        `fresh` knows all buffers' names.
        """
        names = tuple(b.name for b in node.outputs if b is not None)
        size = as_int(get_extent(node.axis))
        assert size is not None
        rows = self.settings.sizes.numel(tuple(get_extent(r) for r in node.ranges if r is not node.axis))
        read_bytes = sum(
            self.settings.sizes.size_bytes(self.facts.buffers[access.buffer])
            for access in list_loads((node.body,))
        )
        write_bytes = sum(self.settings.sizes.size_bytes(b) for b in node.outputs if b is not None)
        target, can = self._target(node), self._capabilities(node)
        across = _is_strided(node)
        stays = not across and can.rows.keeps(size)
        full, scans = target.machine.launches.full_programs, target.machine.scans
        programs = max(1, full * max(rows, read_bytes // size) // scans.column_bytes) if across else rows
        whole_us = self.settings.model.kernel_us(_work(read_bytes, write_bytes, rows, size, programs))
        numbers = {"whole_us": round(whole_us, 3)}
        length = None
        if not stays and _combines(node):
            length = (
                choose_column_piece_length(size, rows, target, can.rows)
                if across
                else choose_piece_length(size, target)
            )
        split_us = None
        if length is not None:
            pieces = -(-size // length)
            many = can.rows.count_programs(rows * pieces, across=across)
            split_us = (
                self.settings.model.kernel_us(_work(read_bytes, 0, rows * pieces, length, many))
                + self.settings.model.kernel_us(_work(8 * rows * pieces, 0, rows, pieces, programs))
                + self.settings.model.kernel_us(_work(read_bytes, write_bytes, rows * pieces, length, many))
            )
            numbers["split_us"] = round(split_us, 3)
        is_alone = stays or across or not self.settings.options.single_pass or not can.shares_rows
        shared = None if is_alone else count_shared_pieces(node, target)
        if shared is not None:
            single_us = estimate_single_pass_us(
                node,
                shared,
                target,
                read_bytes=read_bytes,
                write_bytes=write_bytes,
                rows=rows,
                model=self.settings.model,
            )
            numbers["single_us"] = round(single_us, 3)
            pays = single_us < scans.clear_win * whole_us and (split_us is None or single_us <= split_us)
            self.settings.remarks.note(
                "single-pass",
                names,
                pays,
                "rows are read once, by programs that fill the device"
                if pays
                else "asking the pieces before costs more than it saves",
                pieces=shared,
                **numbers,
            )
            if pays:
                return (replace(node, split=shared),)
        if length is None or split_us is None:
            return (node,)
        pays = split_us < scans.clear_win * whole_us
        self.settings.remarks.note(
            "split-scan",
            names,
            pays,
            "pieces fill the device" if pays else "reading rows again costs more than idle programs do",
            pieces=-(-size // length),
            **numbers,
        )
        return _Writer(node=node, length=length, fresh=fresh).run() if pays else (node,)

    def _target(self, node: Scan) -> Target:
        return self.settings.targets.of(_device(node))

    def _capabilities(self, node: Scan) -> Capabilities:
        return self.settings.targets.capabilities_of(_device(node))


def _device(node: Scan) -> str:
    return next(b.device for b in node.outputs if b is not None)


def _work(read_bytes: float, write_bytes: float, rows: int, length: int, programs: int) -> KernelWork:
    return KernelWork(
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        operations=rows * length,
        rows=rows,
        row_length=length,
        programs=programs,
    )


def _may_be_cut(node: Scan, targets: Targets) -> bool:
    """Tell if the rows of `node` are of known length, combine by a kind that has a name, and are whole if
    left so.
    """
    if node.checks or isinstance(node.kind, Combine) or targets.capabilities_of(_device(node)).cuts_rows:
        return False
    return as_int(get_extent(node.axis)) is not None and all(
        provably_positive(get_extent(r)) for r in node.ranges
    )


def _combines(node: Scan) -> bool:
    """Tell if pieces of `node` combine by operations of the loop IR."""
    if _kind(node) not in _COMBINE or node.outputs[0] is None:
        return False
    if node.kind == "prod" and node.body.dtype.is_float:
        # a reduction multiplies points that do not lie together, whose product may leave the range that no
        # running product leaves
        return False
    return all(b is None for b in node.outputs[1:]) and not node.body.dtype.is_bool


def _kind(node: Scan) -> ScanKind:
    """Return the kind of `node`, a scan that may be cut."""
    assert not isinstance(node.kind, Combine)
    return node.kind


def _is_strided(node: Scan) -> bool:
    """Tell if neighbours are those of another range than the scan's, so that pieces of it do not lie one
    behind the other.
    """
    real = [r for r in node.ranges if as_int(get_extent(r)) != 1]
    return real[-1:] != [node.axis]


def choose_column_piece_length(size: int, rows: int, target: Target, walks: RowWalks) -> int | None:
    """Do as `compute_piece_length`, for pieces of columns, of which there are `rows`: they stay in registers,
    and there are enough to fill `target`.

    `None` for columns that stay as a whole, and for such as have no divisor that will do.
    """
    reductions = target.machine.reductions
    scans = target.machine.scans
    if size <= walks.kept_across:
        return None
    wanted = max(1, -(-reductions.programs * reductions.block_results * target.multiprocessors // rows))
    longest = max(2 * scans.shortest_column_piece, min(walks.kept_across, size // wanted))
    shortest = max(scans.shortest_column_piece, -(-size // scans.most_pieces))
    return _choose_fullest(size, shortest, longest)


def choose_piece_length(size: int, target: Target) -> int | None:
    """Return the divisor of `size` that fills most of a power of two; the longest piece if no divisor will
    do, `None` if that is too short.
    """
    scans = target.machine.scans
    shortest = max(scans.shortest_piece, -(-size // scans.most_pieces))
    return _choose_fullest(size, shortest, scans.longest_piece) or (
        scans.longest_piece if shortest <= scans.longest_piece else None
    )


def _choose_fullest(size: int, shortest: int, longest: int) -> int | None:
    found = [n for n in range(shortest, longest + 1) if size % n == 0]
    return max(found, key=lambda n: (round(n / (1 << (n - 1).bit_length()), 1), n), default=None)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Makes the nodes that replace one scan; `fresh` knows the names of all buffers."""

    node: Scan
    length: int
    fresh: FreshNames

    def run(self) -> tuple[Node, ...]:
        node = self.node
        size = as_int(get_extent(node.axis))
        assert size is not None
        count = -(-size // self.length)
        piece = symbol(f"{node.axis.name}_piece", extent=as_expr(count))
        point = symbol(f"{node.axis.name}_point", extent=as_expr(self.length))
        position = piece * self.length + point
        body = self._body(position, even=size % self.length == 0)
        outer = tuple(piece if r is node.axis else r for r in node.ranges)
        reduction, total = self._reduce_pieces(outer, point, body)
        before = self._buffer("before", outer)
        running = Scan(
            outputs=(before,),
            kind=node.kind,
            ranges=outer,
            axis=piece,
            body=total,
            reverse=node.reverse,
            origins=node.origins,
        )
        place = node.ranges.index(node.axis)
        inner = (*outer[: place + 1], point, *outer[place + 1 :])
        local = self._buffer("local", inner)
        within = Scan(
            outputs=(local,),
            kind=node.kind,
            ranges=inner,
            axis=point,
            body=body,
            reverse=node.reverse,
            origins=node.origins,
        )
        return (reduction, running, within, self._join_pieces(before, local, count))

    def _body(self, position: Expr, *, even: bool) -> Scalar:
        """Return the scan's body at a point of a piece; what combining does not notice behind the end."""
        node = self.node
        size = get_extent(node.axis)
        if even:
            return substitute_ranges((node.body,), {node.axis: position})[0]
        inside = op("lt", index_value(position), index_value(size))
        (found,) = substitute_ranges((node.body,), {node.axis: position})
        return where(inside, guard_loads(found, inside), const(self._identity(), node.body.dtype))

    def _reduce_pieces(self, outer: tuple[Expr, ...], point: Expr, body: Scalar) -> tuple[Reduce, Scalar]:
        """Return the reduction of each piece, and the value that its results make."""
        node = self.node
        kind, _ = _COMBINE[_kind(node)]
        parts = [self._buffer("part", outer)]
        if kind == "online_softmax":
            parts.append(self._buffer("part_sum", outer))
        reduction = Reduce(
            outputs=tuple(parts), kind=kind, ranges=outer, axes=(point,), body=body, origins=node.origins
        )
        found = [load(part.name, outer, part.dtype) for part in parts]
        if len(found) == 1:
            return reduction, found[0]
        return reduction, _add_largest(found[0], op("log", found[1]))

    def _join_pieces(self, before: Buffer, local: Buffer, count: int) -> Pointwise:
        """Return the scan's result: each piece's, combined with what the pieces before it give."""
        node = self.node
        output = node.outputs[0]
        assert output is not None
        dtype = node.body.dtype
        piece, point = floordiv(node.axis, self.length), mod(node.axis, self.length)
        near = piece + 1 if node.reverse else piece - 1
        edge = (
            op("lt", index_value(near), index_value(as_expr(count)))
            if node.reverse
            else op("ge", index_value(near), const(0, DType.I64))
        )
        place = node.ranges.index(node.axis)
        at = (*node.ranges[:place], near, *node.ranges[place + 1 :])
        inner = (*node.ranges[:place], piece, point, *node.ranges[place + 1 :])
        first = load(before.name, at, dtype, mask=edge, other=self._identity())
        second = load(local.name, inner, dtype)
        if node.kind == "logcumsumexp":
            value = _log_add(first, second)
        else:
            value = op(_COMBINE[_kind(node)][1], first, second)
        return Pointwise(output=output, ranges=node.ranges, body=value, origins=node.origins)

    def _identity(self) -> bool | int | float:
        kind, _ = _COMBINE[_kind(self.node)]
        return get_identity(kind, self.node.body.dtype)

    def _buffer(self, suffix: str, ranges: tuple[Expr, ...]) -> Buffer:
        output = self.node.outputs[0]
        assert output is not None
        shape = tuple(get_extent(r) for r in ranges)
        return Buffer(
            name=self.fresh.close_to(f"{output.name}_{suffix}"),
            dtype=self.node.body.dtype,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=output.device,
        )


def _add_largest(largest: Scalar, rest: Scalar) -> Scalar:
    """`largest + rest`, where `rest` is NaN for infinite ones."""
    return where(op("isinf", largest), largest, op("add", largest, rest))


def _log_add(a: Scalar, b: Scalar) -> Scalar:
    largest = op("maximum", a, b)
    total = op("add", op("exp", op("sub", a, largest)), op("exp", op("sub", b, largest)))
    return _add_largest(largest, op("log", total))
