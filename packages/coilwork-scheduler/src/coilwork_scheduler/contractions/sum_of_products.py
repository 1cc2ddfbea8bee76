"""Contractions as loops, and loops that are contractions.

`SumBuilder` builds the sum of products, in pieces if wanted, and the epilogue of what is summed. These are
reductions and pointwise nodes like others: what computes a factor is inlined into the sum, and what follows
may share its kernel. `ungroup` turns groups into plain bodies: groups along a range are looked up by a count
of the groups that end before each point, and outside of a group along an axis both factors are zero.
`load_element` reads a view's element where it lies in the memory that is viewed, so that what computes that
memory can take the place of the load.

`match_contraction` recognises a sum that is a contraction, whether the scheduler wrote it or a program spells
it. Factors are in `f32`, often widened from 16 bits: the product of two of these is exact, so a unit that
multiplies 16-bit numbers and adds in `f32` computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    floordiv,
    get_extent,
    mod,
    provably_eq,
    provably_le,
    substitute,
    symbol,
)
from coilwork_ir.loops import Contraction, Groups, Node, Pointwise, Reduce, View
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Contraction as ScalarContraction,
)
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Op,
    Parameter,
    Scalar,
    cast,
    const,
    contract,
    find_index_symbols,
    find_parts,
    index_value,
    iterate_postorder,
    load,
    op,
    parameter,
    placeholder,
    rewrite,
    substitute_ranges,
)
from coilwork_ir.scalar import (
    Reduce as ScalarReduce,
)

# ---- Groups ----


def ungroup(
    node: Contraction, buffers: Mapping[str, Buffer], name: Callable[[str], str]
) -> tuple[tuple[Node, ...], Contraction]:
    """Return what to compute before, and the contraction without groups that computes what `node` does."""
    groups = node.groups
    if groups is None:
        return (), node
    ends = buffers[groups.ends]
    if groups.along in node.axes:
        inside = _is_inside(groups, ends)
        left, right = (op("where", inside, f, const(0, f.dtype)) for f in (node.left, node.right))
        return (), replace(node, left=left, right=right, groups=None)
    shape = (get_extent(groups.along),)
    number = replace(
        node.output,
        name=name(f"{node.output.name}_group"),
        dtype=DType.I64,
        shape=shape,
        strides=make_contiguous_strides(shape),
    )
    end = cast(load(ends.name, (groups.index,), ends.dtype), DType.I64)
    count = Reduce(
        outputs=(number,),
        kind="sum",
        ranges=(groups.along,),
        axes=(groups.index,),
        body=cast(op("le", end, index_value(groups.along)), DType.I64),
        origins=node.origins,
    )
    left, right, epilogue = _look_up((node.left, node.right, node.epilogue), groups, number)
    return (count,), replace(node, left=left, right=right, epilogue=epilogue, groups=None)


def _is_inside(groups: Groups, ends: Buffer) -> Scalar:
    """True for the points along an axis that are in the group of a range."""
    is_behind_another = op("ge", index_value(groups.index), const(1, DType.I64))
    before = load(ends.name, (groups.index - 1,), ends.dtype, mask=is_behind_another)
    start, end = (cast(one, DType.I64) for one in (before, load(ends.name, (groups.index,), ends.dtype)))
    at = index_value(groups.along)
    # an `and` of comparisons
    return op("where", op("ge", at, start), op("lt", at, end), const(False, DType.BOOL))


def _look_up(roots: tuple[Scalar, ...], groups: Groups, number: Buffer) -> tuple[Scalar, ...]:
    """`roots` with the number of the group that each point is in, read from memory, in the place of
    `groups.index`.

    Behind the last group nothing is read: there is no such matrix.
    """
    own = load(number.name, (groups.along,), DType.I64)
    exists = op("lt", own, index_value(get_extent(groups.index)))

    def visit(scalar: Scalar) -> Scalar:
        match scalar:
            case IndexValue() if groups.index in scalar.expr.free_symbols:
                (at,) = _replace((scalar.expr,), groups.index, len(scalar.operands))
                return index_value(at, (*scalar.operands, own))
            case Load() if any(groups.index in e.free_symbols for e in scalar.index):
                places = _replace(scalar.index, groups.index, len(scalar.indirect))
                mask = exists if scalar.mask is None else op("where", exists, scalar.mask, exists)
                indirect = (*scalar.indirect, own)
                return load(
                    scalar.buffer, places, scalar.dtype, indirect=indirect, mask=mask, other=scalar.other
                )
            case _:
                return scalar

    return rewrite(roots, visit)


def _replace(index: tuple[Expr, ...], symbol: Expr, position: int) -> tuple[Expr, ...]:
    """`index` with the placeholder of `position` in the place of `symbol`."""
    return tuple(substitute(e, {symbol: placeholder(position)}) for e in index)


# ---- Reads through views ----


def load_element(
    buffer: Buffer, index: tuple[Expr, ...], buffers: Mapping[str, Buffer], views: Mapping[str, View]
) -> Load:
    """Return the element of `buffer` at `index`: a load from the innermost buffer that it is a view of, as
    far as that is dense.
    """
    while (view := views.get(buffer.name)) is not None:
        source = buffers[view.source]
        order = _dense(source)
        if source.dtype is not buffer.dtype or order is None:
            break
        offset = buffer.offset_of(index) + view.offset
        found: dict[int, Expr] = {}
        for place, dimension in enumerate(order):
            at = floordiv(offset, source.strides[dimension])
            # the outermost dimension has no other behind it
            found[dimension] = mod(at, source.shape[dimension]) if place else at
        buffer, index = source, tuple(found[dimension] for dimension in range(len(order)))
    return load(buffer.name, index, buffer.dtype)


def load_sliced_element(
    buffer: Buffer, index: tuple[Expr, ...], buffers: Mapping[str, Buffer], views: Mapping[str, View]
) -> Load | None:
    """Return the element of `buffer` at `index`, as a load from what it is a view of.

    Each dimension steps through one of that, so that `index` may lie outside of `buffer`, where a mask keeps
    it out. None if it is another view, or none.
    """
    view = views.get(buffer.name)
    if view is None or buffers[view.source].dtype is not buffer.dtype:
        return None
    source = buffers[view.source]
    starts = _starts(source, view.offset)
    several = [d for d, size in enumerate(buffer.shape) if as_int(size) != 1]
    found = dict(enumerate(starts)) if starts is not None else {}
    free = set(found)
    for d in several:
        steps = {e: step for e in free if (step := _step(buffer.strides[d], source.strides[e])) is not None}
        fitting = [e for e, step in steps.items() if _fits(found[e], step, buffer.shape[d], source.shape[e])]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda e: steps[e])
        free.remove(chosen)
        found[chosen] = found[chosen] + steps[chosen] * index[d]
    if not found and source.shape:
        return None
    return load(source.name, tuple(found[e] for e in range(len(source.shape))), buffer.dtype)


def _starts(source: Buffer, offset: Expr) -> list[Expr] | None:
    """Return the element of `source` at `offset`; None if that is not known."""
    rest = as_int(offset)
    if rest == 0:
        return [as_expr(0)] * len(source.shape)
    strides = [as_int(stride) for stride in source.strides]
    if rest is None or None in strides:
        return None
    starts = [as_expr(0)] * len(strides)
    known = [(stride, d) for d, stride in enumerate(strides) if stride and as_int(source.shape[d]) != 1]
    for stride, d in sorted(known, reverse=True):
        starts[d], rest = as_expr(rest // stride), rest % stride
    return None if rest else starts


def _step(ours: Expr, theirs: Expr) -> int | None:
    """By how many elements of a dimension of stride `theirs` one of stride `ours` steps."""
    if ours is theirs:
        return 1
    a, b = as_int(ours), as_int(theirs)
    return a // b if a and b and a % b == 0 else None


def _fits(start: Expr, step: int, count: Expr, size: Expr) -> bool:
    """Tell if `count` steps stay within `size`."""
    return provably_le(start + step * (count - 1) + 1, size)


def _dense(buffer: Buffer) -> tuple[int, ...] | None:
    """Dimensions, outermost in memory first, if each element of a stretch of memory is one of the
    buffer's.
    """
    pending = dict(enumerate(zip(buffer.shape, buffer.strides, strict=True)))
    wanted = as_expr(1)
    order: list[int] = []
    while pending:
        inner = [d for d, (_, stride) in pending.items() if stride is wanted or provably_eq(stride, wanted)]
        # of those of one stride all but the last have one element
        ones = [d for d in inner if provably_eq(pending[d][0], 1)]
        if not inner:
            return None
        chosen = ones[-1] if ones else inner[-1]
        order.append(chosen)
        wanted = wanted * pending.pop(chosen)[0]
    return tuple(reversed(order))


# ---- Building the loops ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SumBuilder:
    """Builds the loops of one graph's contractions.

    Attributes:
        buffers: those of the graph, by name.
        views: its views, by the names of what they define.
        name: gives fresh names for buffers.
        least: with 2, a single row or column gets another one beside it, of zeros: a product of a matrix with
            a vector would be a sum in another order.
        round_first: the sum is rounded before the epilogue computes with it: whether torch adds a bias within
            a product or behind it depends on strides.
    """

    buffers: Mapping[str, Buffer]
    views: Mapping[str, View]
    name: Callable[[str], str]
    least: int = 1
    round_first: bool = False

    def build(self, node: Contraction, *, pieces: int = 1) -> tuple[Node, ...]:
        """Return the nodes that compute `node`: sums, in `pieces` of equal length along its only axis, and
        the epilogue.
        """
        before, node = ungroup(node, self.buffers, self.name)
        nodes: list[Node] = [*before]
        output, origins = node.output, node.origins
        # the product with a vector has rows alone, and is a sum in one order anyhow
        last = frozenset(node.ranges[-2:]) if len(node.ranges) > 1 else frozenset()
        single = {r for r in last if as_int(get_extent(r)) == 1 and self.least > 1}
        ranges = tuple(symbol(r.name, extent=self.least) if r in single else r for r in node.ranges)
        length = get_extent(node.axes[0])
        axes, at = node.axes, {r: as_expr(0) for r in single}
        piece = symbol("piece", extent=pieces)
        if pieces > 1:
            axes = (symbol(node.axes[0].name, extent=floordiv(length, pieces)), *node.axes[1:])
            at[node.axes[0]] = piece * floordiv(length, pieces) + axes[0]
        factors = []
        for factor, moved in zip(
            (node.left, node.right), self._find_padded_ranges(node, single, ranges), strict=True
        ):
            (value,) = substitute_ranges((factor,), at)
            factors.append(_pad_single(self._load_through_views(value), moved))
        body = op("mul", *(cast(factor, node.accumulate) for factor in factors))
        is_plain = node.epilogue is parameter(0, output.dtype) and not single
        shape = tuple(get_extent(r) for r in ranges)
        total = output if is_plain else self._sums(node, f"{output.name}_sums", shape)
        if pieces == 1:
            nodes.append(
                Reduce(outputs=(total,), kind="sum", ranges=ranges, axes=axes, body=body, origins=origins)
            )
        else:
            parts = self._sums(node, f"{output.name}_pieces", (as_expr(pieces), *output.shape))
            over = (piece, *ranges)
            nodes.append(
                Reduce(outputs=(parts,), kind="sum", ranges=over, axes=axes, body=body, origins=origins)
            )
            again = load(parts.name, over, node.accumulate)
            nodes.append(
                Reduce(
                    outputs=(total,), kind="sum", ranges=ranges, axes=(piece,), body=again, origins=origins
                )
            )
        if not is_plain:
            value = self._epilogue(node, total)
            nodes.append(Pointwise(output=output, ranges=node.ranges, body=value, origins=origins))
        return tuple(nodes)

    def _find_padded_ranges(
        self, node: Contraction, single: set[Expr], ranges: tuple[Expr, ...]
    ) -> tuple[Expr | None, Expr | None]:
        """Return the range of each factor's rows or columns that got zeros beside it."""
        if not single:
            return None, None
        row, column = (
            wide if own in single else None for own, wide in zip(node.ranges[-2:], ranges[-2:], strict=True)
        )
        return row, column

    def _sums(self, node: Contraction, name: str, shape: tuple[Expr, ...]) -> Buffer:
        return replace(
            node.output,
            name=self.name(name),
            dtype=node.accumulate,
            shape=shape,
            strides=make_contiguous_strides(shape),
        )

    def _epilogue(self, node: Contraction, total: Buffer) -> Scalar:
        """Return the value stored at a point: the epilogue of the sum in `total`."""
        summed: Scalar = load(total.name, node.ranges, node.accumulate)
        if self.round_first and node.epilogue is not cast(parameter(0, node.accumulate), node.epilogue.dtype):
            summed = cast(cast(summed, node.output.dtype), node.accumulate)
        (value,) = rewrite(
            (node.epilogue,), lambda scalar: summed if isinstance(scalar, Parameter) else scalar
        )
        return self._load_through_views(value)

    def _load_through_views(self, value: Scalar) -> Scalar:
        """`value` with its loads, but those of what is built here, where the memory that they view lies."""

        def visit(scalar: Scalar) -> Scalar:
            if not isinstance(scalar, Load) or scalar.indirect or scalar.mask is not None:
                return scalar
            if scalar.buffer not in self.buffers:
                return scalar
            return load_element(self.buffers[scalar.buffer], scalar.index, self.buffers, self.views)

        (made,) = rewrite((value,), visit)
        return made


def _pad_single(factor: Scalar, at: Expr | None) -> Scalar:
    """`factor`, or 0 behind its only row or column along `at`, if it has a single one."""
    if at is None:
        return factor
    first = op("lt", index_value(at), const(1, DType.I64))
    return op("where", first, factor, const(0, factor.dtype))


# ---- Recognition ----


_HALVES: Final = frozenset({DType.F16, DType.BF16})
# Integers whose values both of the 16-bit types have.
_SMALL: Final = frozenset({DType.I8, DType.U8, DType.BOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The factors of a sum of products, of one type, and the ranges that only one of them varies along.

    Attributes:
        left, right: the factors.
        rows: ranges of the left one alone.
        columns: those of the right one alone.
        axes: what is summed over.
    """

    left: Scalar
    right: Scalar
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    axes: tuple[Expr, ...]

    def shares_a_kernel(self, other: Factors) -> bool:
        """Tell if both have the same rows, columns and axes, and a factor in common."""
        parts = [(one.rows, one.columns, frozenset(one.axes)) for one in (self, other)]
        return parts[0] == parts[1] and (self.left is other.left or self.right is other.right)

    @property
    def node(self) -> ScalarContraction:
        """The sum as kernels say it, in f32."""
        return contract(self.left, self.right, self.axes, DType.F32)


def match_contraction(
    kind: ReduceKind, operand: Scalar, ranges: Iterable[Expr], axes: tuple[Expr, ...]
) -> Factors | None:
    """Return the factors of the reduction of `operand`, over `ranges` and along `axes`; None if it is no
    contraction.

    The factor that varies along the outermost of the ranges that are not batch is the left one.
    """
    if kind != "sum" or not isinstance(operand, Op) or operand.op != "mul" or operand.dtype is not DType.F32:
        return None
    real = tuple(r for r in ranges if r.extent is None or as_int(r.extent) != 1)
    first, second = operand.operands
    known = {factor: find_index_symbols((factor,)) for factor in (first, second)}
    outer = next((r for r in real if (r in known[first]) != (r in known[second])), None)
    if outer is None:
        return None
    left, right = (first, second) if outer in known[first] else (second, first)
    parts = find_parts(left, right, real, axes)
    if parts is None:
        return None
    dtype = _common_type(left, right)
    return Factors(
        left=_narrow(left, dtype),
        right=_narrow(right, dtype),
        rows=parts.rows,
        columns=parts.columns,
        axes=axes,
    )


def contractions_in(values: Iterable[Scalar], ranges: Iterable[Expr]) -> dict[ScalarReduce, Factors]:
    """Return the reductions among `values` and below, if all are contractions over `ranges` that one kernel
    may have.

    They have the same axes, rows and columns, and one factor in common: with that read once, they are less
    work in one kernel than in several. Empty if one of them is anything else.
    """
    ranges = tuple(ranges)
    found: dict[ScalarReduce, Factors] = {}
    for node in iterate_postorder(tuple(values)):
        if not isinstance(node, ScalarReduce):
            continue
        one = (
            match_contraction(node.kind, node.operands[0], ranges, node.axes)
            if len(node.operands) == 1
            else None
        )
        if one is None:
            return {}
        found[node] = one
    first, *others = found.values() or (None,)
    if first is not None and not all(first.shares_a_kernel(one) for one in others):
        return {}
    return found


def match_contraction_node(node: Node) -> Factors | None:
    """`node` as a contraction; None if it is none."""
    if not isinstance(node, Reduce):
        return None
    return match_contraction(node.kind, node.body, node.ranges, node.axes)


def _common_type(left: Scalar, right: Scalar) -> DType:
    """Return the 16-bit type that both factors are exact in, or f32."""
    before = {_strip_widening(left).dtype, _strip_widening(right).dtype}
    halves = before & _HALVES
    return next(iter(halves)) if len(halves) == 1 and before <= halves | _SMALL else DType.F32


def _narrow(factor: Scalar, dtype: DType) -> Scalar:
    return factor if factor.dtype is dtype else cast(_strip_widening(factor), dtype)


def _strip_widening(factor: Scalar) -> Scalar:
    """Return what `factor` is in f32, if it is only widened."""
    return factor.operands[0] if isinstance(factor, Op) and factor.op == "cast" else factor
