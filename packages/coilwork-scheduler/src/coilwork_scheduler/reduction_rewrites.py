"""Rewrites of single reductions and scans into something cheaper.

One-hot sums: a sum whose terms are all zero but one is that term. The gradient of a cross-entropy with
respect to logits sums `where(class == target, a, 0) * b` along the classes. A product with zero counts as
zero, as in eager's own kernel, also where `b` is not finite; hence only with `fast` numerics. A term that
differs from point to point, as in `where(class == target, place[row, class], 0)`, becomes a gather, unless a
kernel has the row at hand anyway. Floats that are multiplied by zero at the other points are still summed: an
infinite one makes NaN there.

Short reductions: on GPUs, up to four computed terms are unrolled into one expression per result. A tile of
`[points, 3]` would have four lanes per point, and the sum would go through the lanes. A row that lies side by
side in memory and is read once stays a row, because its loads are wide. A row that is read again beside the
result, as in a softmax, stays one, too.

Reversed scans: a scan whose results are all read from the end runs the other way, and its results are stored
in reverse. The gradient of `cumsum` is `flip(cumsum(flip(x)))`: the first flip is fused into the scan, and
reversing the scan cancels the second.

Scales: `sum(x * round(w * s))`, where `s` does not vary along the sum, is `s * sum(x * w)` but for the
rounding of each weight to 16 bits, which `fast` numerics leave out. An 8-bit `w` is exact in 16 bits, so
matrix units take it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, substitute
from coilwork_ir.loops import Check, Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies, list_defined_buffers, list_read_buffers
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    const,
    find_index_symbols,
    index_value,
    iterate_postorder,
    list_loads,
    load,
    op,
    placeholder,
    rewrite,
    substitute_ranges,
    where,
)
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.sum_of_products import match_contraction_node
from coilwork_scheduler.dependence import Dependence, index_readers
from coilwork_scheduler.inlining.substitute import replace_bodies
from coilwork_scheduler.kernels.draft_analysis import find_unit_strides
from coilwork_scheduler.settings import Settings

# ---- One-hot sums ----


def gather_one_hot(graph: Graph, chunks: Mapping[str, int], settings: Settings) -> Graph:
    """Replace sums over one-hot masks by their only term, under `fast` numerics. Linear time.

    Sums of a chunk, one of `chunks`, stay: what goes through its rows element by element may leave results in
    their memory, and a load of another element would keep it from that.
    """
    if settings.options.numerics != "fast":
        return graph
    nodes: list[Node] = []
    makers = {buffer.name: node for node in graph.nodes for buffer in list_defined_buffers(node)}
    changed = False
    for node in graph.nodes:
        term = _find_only_term(node, makers) if isinstance(node, Reduce) else None
        if term is None or any(access.buffer in chunks for access in list_loads((term,))):
            nodes.append(node)
            continue
        assert isinstance(node, Reduce) and node.outputs[0] is not None
        output = node.outputs[0]
        changed = True
        settings.remarks.note("one-hot", (output.name,), True, "all terms of the sum but one are zero")
        nodes.append(
            Pointwise(output=output, ranges=node.ranges, body=term, checks=node.checks, origins=node.origins)
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _find_only_term(node: Reduce, makers: Mapping[str, Node]) -> Scalar | None:
    """Return the only term of `node` that is not zero, or zero where it lies outside; None for other sums.

    `makers` maps buffers to the nodes that compute them; the graph's inputs have none.
    """
    (output, *_) = node.outputs
    if node.kind != "sum" or len(node.axes) != 1 or output is None or output.dtype is not node.body.dtype:
        return None
    (axis,) = node.axes
    if any(axis in find_index_symbols((check.condition,)) for check in node.checks):
        return None
    found = _comparison(node.body, axis)
    if found is None:
        return None
    condition, position = found
    (otherwise,) = rewrite((node.body,), lambda scalar: _assume(scalar, condition, False))
    if not isinstance(otherwise, Const) or otherwise.value != 0:
        return None
    (term,) = rewrite((node.body,), lambda scalar: _assume(scalar, condition, True))
    inside = op(
        "bitwise_and",
        op("ge", position, const(0, DType.I64)),
        op("lt", position, index_value(get_extent(axis))),
    )
    if not _multiplies_rows(node.body, condition, axis):
        (term,) = rewrite((term,), lambda scalar: _look_up(scalar, axis, position, inside, makers))
    if axis in find_index_symbols((term,)):
        return None
    return where(inside, term, const(0, term.dtype))


def _multiplies_rows(body: Scalar, condition: Scalar, axis: Expr) -> bool:
    """Tell if floats that differ along the axis are multiplied by zero where `condition` does not hold: of
    infinite ones eager makes NaN.
    """
    (otherwise,) = rewrite((body,), lambda scalar: _assume(scalar, condition, False, products=False))
    return any(
        load.dtype.is_float and axis in find_index_symbols((load,)) for load in list_loads((otherwise,))
    )


def _look_up(
    node: Scalar, axis: Expr, position: Scalar, inside: Scalar, makers: Mapping[str, Node]
) -> Scalar:
    """Return `node` at `position` of `axis` if it can be read there; its operands already are."""
    if isinstance(node, IndexValue) and node.expr is axis:
        return position
    if not isinstance(node, Load) or not any(axis in e.free_symbols for e in node.index):
        return node
    maker = makers.get(node.buffer)
    if maker is not None and not isinstance(maker, Extern):
        if not isinstance(maker, Scan) or node.index[maker.ranges.index(maker.axis)] is axis:
            return node
    at = placeholder(len(node.indirect))
    return load(
        node.buffer,
        [substitute(e, {axis: at}) for e in node.index],
        node.dtype,
        indirect=(*node.indirect, position),
        mask=inside if node.mask is None else op("bitwise_and", inside, node.mask),
        other=node.other,
    )


def _comparison(body: Scalar, axis: Expr) -> tuple[Scalar, Scalar] | None:
    """Return the only place in `body` that the axis decides: `axis == position`, and the position."""
    found: tuple[Scalar, Scalar] | None = None
    for node in iterate_postorder((body,)):
        if not isinstance(node, Op) or node.op != "eq":
            continue
        for one, other in (node.operands, node.operands[::-1]):
            is_axis = isinstance(one, IndexValue) and one.expr is axis
            if is_axis and other.dtype is DType.I64 and axis not in find_index_symbols((other,)):
                if found is not None and found[0] is not node:
                    return None
                found = node, other
    return found


def _assume(node: Scalar, condition: Scalar, truth: bool, *, products: bool = True) -> Scalar:
    """Simplify `node` where `condition` is `truth`; its operands are simplified already.

    With `products`, a product with zero is zero.
    """
    if node is condition:
        return const(truth, DType.BOOL)
    if not isinstance(node, Op):
        return node
    zero = [o for o in node.operands if isinstance(o, Const) and o.value == 0]
    match node.op:
        case "where" if isinstance(node.operands[0], Const):
            return node.operands[1] if node.operands[0].value else node.operands[2]
        case "mul" if zero and products:
            return zero[0]
        case "cast" if zero:
            return const(False if node.dtype.is_bool else 0, node.dtype)
        case "bitwise_and" if node.dtype.is_bool and zero:
            return zero[0]
        case "bitwise_and" if node.dtype.is_bool and any(isinstance(o, Const) for o in node.operands):
            return next((o for o in node.operands if not isinstance(o, Const)), node.operands[0])
    return node


# ---- Short reductions ----


# The most terms that are unrolled, and what all of them may cost, as in the op table.
_MOST_TERMS: Final = 4
_MOST_COST: Final = 128
_COMBINED: Final[Mapping[str, str]] = MappingProxyType(
    {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}
)


def unroll_reductions(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Unroll short reductions of computed terms into pointwise nodes. Linear time."""
    readers = index_readers(graph, facts)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        unrolled = (
            _unroll(node, graph, facts, settings.targets, readers) if isinstance(node, Reduce) else None
        )
        if unrolled is not None:
            changed = True
            why = "a few computed terms are one expression"
            settings.remarks.note("write-out", (unrolled.output.name,), True, why)
        nodes.append(node if unrolled is None else unrolled)
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _unroll(
    node: Reduce, graph: Graph, facts: Dependence, targets: Targets, readers: Mapping[str, Sequence[int]]
) -> Pointwise | None:
    output = node.outputs[0]
    combined = _COMBINED.get(node.kind)
    counts = [as_int(get_extent(axis)) for axis in node.axes]
    known = [count for count in counts if count is not None]
    if combined is None or output is None or not node.axes or len(known) < len(counts):
        return None
    terms = math.prod(known)
    if not 1 < terms <= _MOST_TERMS or terms * _cost(node.body) > _MOST_COST:
        return None
    if not targets.of(output.device).is_gpu or output.dtype is not node.body.dtype:
        return None
    axes = frozenset(node.axes)
    if match_contraction_node(node) is not None or any(
        not axes.isdisjoint(find_index_symbols((check.condition,))) for check in node.checks
    ):
        return None
    rows = [
        access for access in list_loads((node.body,)) if not axes.isdisjoint(find_index_symbols((access,)))
    ]
    if any(_is_row(access, node, facts) for access in rows):
        return None
    if _is_read_again({access.buffer for access in rows}, output.name, graph, readers):
        return None
    values: list[Scalar] = []
    for term in product(*map(range, known)):
        at: dict[Expr, Expr] = {axis: as_expr(k) for axis, k in zip(node.axes, term, strict=True)}
        values += substitute_ranges((node.body,), at)
    return Pointwise(
        output=output,
        ranges=node.ranges,
        body=reduce(lambda a, b: op(combined, a, b), values),
        checks=node.checks,
        origins=node.origins,
    )


def _cost(body: Scalar) -> int:
    return 1 + sum(SCALAR_OPS[node.op].cost for node in iterate_postorder((body,)) if isinstance(node, Op))


def _is_row(access: Load, node: Reduce, facts: Dependence) -> bool:
    """Tell if `access` goes once through memory that is contiguous along what `node` reduces."""
    if access.indirect:
        return False
    own = find_index_symbols((access,))
    once = all(r in own or as_int(get_extent(r)) == 1 for r in node.ranges)
    offset = facts.buffers[access.buffer].offset_of(access.index)
    return once and not find_unit_strides(offset).isdisjoint(node.axes)


def _is_read_again(rows: set[str], result: str, graph: Graph, readers: Mapping[str, Sequence[int]]) -> bool:
    """Tell if what reads `result` reads one of the buffers `rows` as well."""
    for reader in readers.get(result, ()):
        if reader >= len(graph.nodes):
            # the caller
            continue
        node = graph.nodes[reader]
        if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            continue
        if any(access.buffer in rows for access in list_loads(list_bodies(node))):
            return True
    return False


# ---- Reversed scans ----


def reverse_scans(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Reverse scans whose results are all read from the end. Linear in the size of `graph`.

    Goes backwards, so that a reversed scan may make the one that it reads a candidate.
    """
    scans = [position for position, node in enumerate(graph.nodes) if _value_of(node) is not None]
    if not scans:
        return graph
    nodes = list(graph.nodes)
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(nodes):
        for name in list_read_buffers(node):
            readers.setdefault(name, []).append(position)
    returned = {output.name for output in graph.outputs if isinstance(output, Ref)}
    changed = False
    for position in reversed(scans):
        scan = nodes[position]
        value = _value_of(scan)
        assert isinstance(scan, Scan) and value is not None
        places = readers.get(value, [])
        dim, extent = scan.ranges.index(scan.axis), get_extent(scan.axis)
        if value in returned or not _read_from_the_end([nodes[p] for p in places], value, dim, extent):
            continue
        changed = True
        nodes[position] = _reverse(scan)
        for place in places:
            nodes[place] = _mirror_reads(nodes[place], value, dim, extent)
        settings.remarks.note("turn-scan", (value,), True, "all that reads it does so from the end")
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _value_of(node: Node) -> str | None:
    """Return the running value, if that is all that `node` gives: positions would count from the other
    end.
    """
    if not isinstance(node, Scan) or node.kind in ("argmin", "argmax"):
        return None
    value, *others = node.outputs
    return None if value is None or any(o is not None for o in others) or node.others else value.name


def _mirror(place: Expr, extent: Expr) -> Expr:
    return extent - as_expr(1) - place


def _read_from_the_end(nodes: Sequence[Node], name: str, dim: int, extent: Expr) -> bool:
    """Tell if computations alone read `name`, none of them forwards along `dim`, and one of them
    backwards.
    """
    backwards = False
    for node in nodes:
        if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            return False
        if isinstance(node, Scatter) and node.into == name:
            return False
        for access in list_loads(list_bodies(node)):
            if access.buffer != name:
                continue
            place = access.index[dim]
            if any(s.name.startswith("@") for s in place.free_symbols):
                return False
            if not any(s.extent is not None for s in place.free_symbols):
                continue
            if not _is_point(_mirror(place, extent)):
                return False
            backwards = True
    return backwards


def _is_point(place: Expr) -> bool:
    """Tell if `place` is one range, moved by so much."""
    ranges = [s for s in place.free_symbols if s.extent is not None]
    return len(ranges) == 1 and ranges[0] not in (place - ranges[0]).free_symbols


def _reverse(scan: Scan) -> Scan:
    mapping: Mapping[Expr, Expr] = {scan.axis: _mirror(scan.axis, get_extent(scan.axis))}
    body, *conditions = substitute_ranges((scan.body, *(check.condition for check in scan.checks)), mapping)
    checks = tuple(
        Check(condition=condition, message=check.message, error=check.error)
        for condition, check in zip(conditions, scan.checks, strict=True)
    )
    return replace(scan, body=body, checks=checks, reverse=not scan.reverse)


def _mirror_reads(node: Node, name: str, dim: int, extent: Expr) -> Node:
    """Return `node` with its loads of `name` mirrored along `dim`."""
    assert isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter)

    def visit(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load) or scalar.buffer != name:
            return scalar
        index = [_mirror(e, extent) if k == dim else e for k, e in enumerate(scalar.index)]
        return load(
            scalar.buffer,
            index,
            scalar.dtype,
            indirect=scalar.indirect,
            mask=scalar.mask,
            other=scalar.other,
        )

    return replace_bodies(node, rewrite(list_bodies(node), visit))


# ---- Scales of weights ----


_HALVES: Final = frozenset({DType.F16, DType.BF16})
_EXACT: Final = frozenset({DType.I8, DType.U8})


def hoist_scales(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Move scales of 8-bit weights behind their sums, under `fast` numerics. Linear time."""
    if settings.options.numerics != "fast":
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        found = _hoist_scale(node, names.close_to) if isinstance(node, Reduce) else None
        if found is None:
            nodes.append(node)
            continue
        changed = True
        nodes += found
        settings.remarks.note(
            "scale-sums", (found[1].output.name,), True, "a scale is the same for a whole sum"
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _hoist_scale(node: Reduce, name: Callable[[str], str]) -> tuple[Reduce, Pointwise] | None:
    """`node` without the scale in one of its factors, and what multiplies its sums with it."""
    body, (output, *_) = node.body, node.outputs
    if node.kind != "sum" or output is None or output.dtype is not DType.F32:
        return None
    if not isinstance(body, Op) or body.op != "mul":
        return None
    for place, factor in enumerate(body.operands):
        found = _split_scale(factor, frozenset(node.axes))
        if found is None:
            continue
        weight, scale = found
        operands = [weight if k == place else other for k, other in enumerate(body.operands)]
        plain = replace(output, name=name(f"{output.name}_plain"))
        value = op("mul", load(plain.name, node.ranges, DType.F32), scale)
        sums = replace(node, outputs=(plain,), body=op("mul", *operands))
        return sums, Pointwise(output=output, ranges=node.ranges, body=value, origins=node.origins)
    return None


def _split_scale(factor: Scalar, axes: frozenset[Expr]) -> tuple[Scalar, Scalar] | None:
    """Return a weight of 8 bits in f32, and the scale that `factor` multiplies it with before it rounds the
    product to 16 bits.
    """
    rounded = _cast_from(factor, _HALVES) if factor.dtype is DType.F32 else None
    scaled = None if rounded is None else _cast_from(rounded, frozenset({DType.F32}))
    if rounded is None or not isinstance(scaled, Op) or scaled.op != "mul":
        return None
    for weight, scale in (scaled.operands, scaled.operands[::-1]):
        narrow: Scalar = weight
        while isinstance(narrow, Op) and narrow.op == "cast":
            (narrow,) = narrow.operands
        if narrow.dtype in _EXACT and axes.isdisjoint(find_index_symbols((scale,))):
            return cast(narrow, DType.F32), scale
    return None


def _cast_from(value: Scalar, types: frozenset[DType]) -> Scalar | None:
    """Return what `value` is a cast of, if that has one of `types`."""
    if isinstance(value, Op) and value.op == "cast" and value.operands[0].dtype in types:
        return value.operands[0]
    return None
