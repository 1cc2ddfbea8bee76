"""Kernels in normal form: plain reductions, over ranges that are few and long.

Welford and online softmax become two plain reductions each, and contractions one. The first two exist to read
data once. A CPU's cache makes a second pass cheap, and two passes are more accurate. A mean is corrected by
the sum of the differences from it (the corrected two-pass algorithm of Chan, Golub and LeVeque, "Algorithms
for computing the sample variance", The American Statistician 37, 1983), so the mean of equal numbers is that
number. Means across memory are not corrected: each column's sums lie in memory, and one more takes a third of
the time.

Ranges of extent 1 disappear; a range that indices divide (`x0 // 64`, `x0 % 64`) splits at that divisor;
neighbours that every index walks as one become one. None of this changes the row-major order of the points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Add,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    as_int,
    find_stride,
    get_node,
    multiply_all,
    provably_divisible,
    substitute,
    symbol,
)
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.scalar import (
    Contraction,
    IndexValue,
    Load,
    Reduce,
    Scalar,
    Scan,
    Sort,
    cast,
    const,
    index_value,
    iterate_postorder,
    list_loads,
    load,
    op,
    reduce,
    rewrite,
    where,
)

# ---- reductions ----


def expand_reductions(kernel: Kernel) -> Kernel:
    """`kernel` without `welford`, `online_softmax` and contractions."""
    return replace_roots(kernel, rewrite(list_kernel_roots(kernel), _expand_reduction))


def _expand_reduction(node: Scalar) -> Scalar:
    if isinstance(node, Contraction):
        # there are no matrix units to fill here: each result is a sum of its own
        return reduce("sum", [op("mul", *(cast(f, node.dtype) for f in node.operands))], node.axes)
    if not isinstance(node, Reduce):
        return node
    source = node.operands[0]
    x = cast(source, source.dtype.compute)
    mask = node.operands[1:]
    if node.kind == "welford":
        return cast(_mean(node, x, mask) if node.output == 0 else _squares(node, x, mask), node.dtype)
    if node.kind == "online_softmax":
        top = reduce("max", (x, *mask), node.axes)
        if node.output == 0:
            return cast(top, node.dtype)
        return cast(reduce("sum", (op("exp", op("sub", x, top)), *mask), node.axes), node.dtype)
    return node


def _mean(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """Return the mean, corrected along memory; without numbers that are all finite, as it comes."""
    rounded = _compute_plain_mean(node, x, mask)
    if not _is_along_memory(node):
        return rounded
    corrected = op("add", rounded, op("div", _residue(node, x, mask), _count(node.axes, mask, x.dtype)))
    return where(op("isnan", corrected), rounded, corrected)


def _squares(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """Return the sum of squared differences from the mean, 0 at least, corrected as the mean is."""
    difference = op("sub", x, _compute_plain_mean(node, x, mask))
    squares = reduce("sum", (op("mul", difference, difference), *mask), node.axes)
    if not _is_along_memory(node):
        return squares
    residue = _residue(node, x, mask)
    excess = op("div", op("mul", residue, residue), _count(node.axes, mask, x.dtype))
    corrected = op("maximum", op("sub", squares, excess), const(0, x.dtype))
    return where(op("isnan", corrected), squares, corrected)


def _residue(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """Return the sum of differences from the rounded mean: what rounding took from the sum."""
    return reduce("sum", (op("sub", x, _compute_plain_mean(node, x, mask)), *mask), node.axes)


def _compute_plain_mean(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    return op("div", reduce("sum", (x, *mask), node.axes), _count(node.axes, mask, x.dtype))


def _is_along_memory(node: Reduce) -> bool:
    """Tell if neighbours in memory are combined."""
    return any(
        find_stride(place, axis) is as_expr(1)
        for access in list_loads(node.operands[:1])
        for place in access.index
        for axis in node.axes
    )


def _count(axes: Sequence[Expr], mask: Sequence[Scalar], dtype: DType) -> Scalar:
    """Number of elements combined, of type `dtype`."""
    if mask:
        ones = where(mask[0], const(1, DType.I64), const(0, DType.I64))
        return cast(reduce("sum", (ones,), axes), dtype)
    extents = [axis.extent for axis in axes]
    count = multiply_all(extent for extent in extents if extent is not None)
    return const(count.value, dtype) if count.is_const else cast(index_value(count), dtype)


# ---- ranges ----


def normalise_ranges(kernel: Kernel, least_lanes: int) -> Kernel:
    """`kernel` after all three rewrites. No reduction is left with fewer than `least_lanes`
    points innermost.
    """
    return _merge_neighbours(_split_at_divisors(_drop_unit_ranges(kernel), least_lanes))


def index_expressions(kernel: Kernel) -> tuple[Expr, ...]:
    """Return every index expression of loads, stores and index values."""
    expressions: dict[Expr, None] = {store.index: None for store in kernel.stores}
    for value in iterate_postorder(list_kernel_roots(kernel)):
        match value:
            case Load():
                expressions.setdefault(value.index[0])
            case IndexValue():
                expressions.setdefault(value.expr)
            case _:
                pass
    return tuple(expressions)


def replace_ranges(kernel: Kernel, ranges: Sequence[Range], mapping: Mapping[Expr, Expr]) -> Kernel:
    """`kernel` over `ranges`, with the old symbols that `mapping` names written in terms of the new ones."""
    axes = tuple(r.symbol for r in ranges if r.kind == "reduction")

    def visit(value: Scalar) -> Scalar:
        match value:
            case IndexValue():
                return index_value(substitute(value.expr, mapping), value.operands)
            case Load():
                index = [substitute(value.index[0], mapping)]
                return load(
                    value.buffer,
                    index,
                    value.dtype,
                    indirect=value.indirect,
                    mask=value.mask,
                    other=value.other,
                )
            case Reduce():
                return reduce(value.kind, value.operands, axes, output=value.output)
            case _:
                return value

    changed = replace_roots(kernel, rewrite(list_kernel_roots(kernel), visit))
    stores = tuple(replace(store, index=substitute(store.index, mapping)) for store in changed.stores)
    return replace(changed, ranges=tuple(ranges), stores=stores)


def _scan_axes(kernel: Kernel) -> frozenset[Expr]:
    """Ranges that scans and sorts run along."""
    return frozenset(
        v.axis for v in iterate_postorder(list_kernel_roots(kernel)) if isinstance(v, Scan | Sort)
    )


def _drop_unit_ranges(kernel: Kernel) -> Kernel:
    keep = []
    fixed = _scan_axes(kernel)
    mapping: dict[Expr, Expr] = {}
    reduced = [r for r in kernel.ranges if r.kind == "reduction"]
    for r in kernel.ranges:
        last = r.kind == "reduction" and all(q.symbol in mapping for q in reduced if q is not r)
        if as_int(r.extent) == 1 and r.symbol not in fixed and not last:
            mapping[r.symbol] = as_expr(0)
        else:
            keep.append(r)
    return replace_ranges(kernel, keep, mapping) if mapping else kernel


def find_divisors(expressions: Sequence[Expr], at: Expr) -> list[Expr]:
    """Constants by which some expression divides a multiple of the symbol `at`."""
    divisors: dict[Expr, None] = {}
    pending = [e for e in expressions if at in e.free_symbols]
    while pending:
        expr = pending.pop()
        match get_node(expr):
            case FloorDiv(numerator, denominator) | Mod(numerator, denominator):
                if at in numerator.free_symbols and at not in denominator.free_symbols:
                    divisors.setdefault(denominator)
                pending.append(numerator)
            case Const() | Sym():
                pass
            case Add(operands) | Mul(operands) | Min(operands) | Max(operands):
                pending.extend(o for o in operands if at in o.free_symbols)
    return sorted(divisors, key=lambda e: e.sort_key)


def _split_at_divisors(kernel: Kernel, least_lanes: int) -> Kernel:
    fixed = _scan_axes(kernel)
    for r in kernel.ranges:
        if r.symbol in fixed:
            continue
        extent = r.extent
        for divisor in reversed(find_divisors(index_expressions(kernel), r.symbol)):
            if divisor == extent or not provably_divisible(extent, divisor):
                continue
            if (
                r is kernel.ranges[-1]
                and r.kind == "reduction"
                and (as_int(divisor) or least_lanes) < least_lanes
            ):
                # a loop over the remainder, innermost, would leave lanes nothing to do: better, one load
                # gathers
                continue
            outer = symbol(f"{r.symbol.name}a", extent=extent // divisor)
            inner = symbol(f"{r.symbol.name}b", extent=divisor)
            pieces = [replace(r, symbol=outer), replace(r, symbol=inner)]
            at = kernel.ranges.index(r)
            ranges = (*kernel.ranges[:at], *pieces, *kernel.ranges[at + 1 :])
            split = replace_ranges(kernel, ranges, {r.symbol: outer * divisor + inner})
            if _division_count(split) < _division_count(kernel):
                return _split_at_divisors(split, least_lanes)
    return kernel


def _division_count(kernel: Kernel) -> int:
    """Number of (expression, range) pairs where the range occurs below a division."""
    expressions = index_expressions(kernel)
    return sum(len(find_divisors([e], r.symbol)) for r in kernel.ranges for e in expressions)


def _merge_neighbours(kernel: Kernel) -> Kernel:
    fixed = _scan_axes(kernel)
    at = 0
    while at + 1 < len(kernel.ranges):
        first, second = kernel.ranges[at : at + 2]
        if first.kind != second.kind or first.symbol in fixed or second.symbol in fixed:
            at += 1
            continue
        merged = _merge_pair(kernel, at)
        if merged is None:
            at += 1
        else:
            kernel = merged
    return kernel


def _merge_pair(kernel: Kernel, at: int) -> Kernel | None:
    """`kernel` with ranges `at` and `at + 1` as one, or None where that takes a division."""
    first, second = kernel.ranges[at : at + 2]
    inner = second.extent
    expressions = index_expressions(kernel)
    if any((first.symbol in e.free_symbols) != (second.symbol in e.free_symbols) for e in expressions):
        return None
    whole = symbol(f"{first.symbol.name}{second.symbol.name}", extent=first.extent * inner)
    mapping = {first.symbol: whole // inner, second.symbol: whole % inner}
    for e in expressions:
        if first.symbol in e.free_symbols and find_divisors([substitute(e, mapping)], whole):
            return None
    ranges = (*kernel.ranges[:at], replace(second, symbol=whole), *kernel.ranges[at + 2 :])
    return replace_ranges(kernel, ranges, mapping)
