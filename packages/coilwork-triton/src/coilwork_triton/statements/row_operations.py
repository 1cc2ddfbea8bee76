"""Write the reductions, scans and sorts of a kernel: find their operands, and bind their results.

Each function makes a site of a node, which says what is combined and where, and has `reductions.py` or
`scans.py` write it. A sort of a row in registers is written here: integer keys of values and positions, a
network over the keys, and values and positions from the sorted keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.kernels.workspace import count_words, list_scans
from coilwork_ir.scalar import Combine, Reduce, Scalar, Scan, Sort
from coilwork_ir.syntax.python import Binary, Call, Expression, Name, Number, Tuple, method, number
from coilwork_triton.facts.kernel_analysis import compute_sort_key_size, sort_key_family
from coilwork_triton.iteration.space import LOOP_OFFSET
from coilwork_triton.launch.parameters import (
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
)
from coilwork_triton.statements.reductions import REDUCTIONS, Site
from coilwork_triton.statements.scans import (
    ScanSite,
    emit_block_scan,
    emit_lookback_scan,
    emit_loop_scan,
    has_deciding_lanes,
    start_carry,
)
from coilwork_triton.statements.scope import Scope, ValueWriter
from coilwork_triton.text.language import (
    Writer,
    conjunction,
    exact_constant,
    extents,
    free_constant,
    get_triton_type,
    tl,
    tl_name,
)

# Sites and results


# Sums of which the library has a function that adds them all.
MOST_SUMS: Final = 4


def _build_unnamed_site(values: ValueWriter, scope: Scope, node: Reduce) -> Site:
    """Return the site of the reduction `node` in `scope`, where its operands are known."""
    along_walk = values.reduces_along_walk(node)
    tile = values.shape.sequential if along_walk else values.shape.reduced
    if tile is None or (tile.axis is None and not along_walk):
        raise EmitError("reduce-axes", f"{node.kind} in kernel {values.kernel.name}, which reduces no range")
    all_of = values.sequential_symbols if along_walk else values.reduced_symbols
    missing = [s for s in all_of - frozenset(node.axes) if s.extent is None or as_int(s.extent) != 1]
    if missing:
        names = ", ".join(sorted(s.name for s in missing))
        raise EmitError(
            "reduce-axes",
            f"{node.kind} leaves the reduction ranges {names} alone",
            origins=values.kernel.origins,
        )
    value = values.expression(scope, node.operands[0])
    inside = frozenset({tile.index})
    shape = values.block(*node.operands, symbols=inside)
    end = values.space.mask(frozenset({tile.letter}))
    explicit = len(node.operands) > 1
    valid = conjunction(
        (
            *(() if end is None else (end,)),
            *((values.expression(scope, node.operands[1]),) if explicit else ()),
        )
    )
    mask_shape = values.block(*node.operands[1:], symbols=inside)
    if values.block(node.operands[0]) != shape:
        value = tl("broadcast_to", value, Tuple(tuple(Number(1) if s == "1" else Name(s) for s in shape)))
    return Site(
        dtype=node.operands[0].dtype,
        value=value,
        valid=valid,
        explicit=explicit,
        shape=shape,
        mask_shape=mask_shape,
        axis=tile.axis or 0,
        count=_element_count(values, node),
        position=_position(values, node) if node.kind in ("argmin", "argmax") else Number(0),
        ascending=values.space.simplify(_flat_position(node.axes)) is tile.index,
        lanes=values.space.lane(tile),
        chunk=values.shape.chunk if len(shape) == 1 else 1,
        index_dtype=values.shape.index_dtype,
    )


def _element_count(values: ValueWriter, node: Reduce) -> Expression:
    tile = values.shape.reduced
    exact = None if tile is None else as_int(tile.numel)
    if exact is not None:
        return number(float(exact))
    return tl("cast", Name("rnumel"), get_triton_type(node.operands[0].dtype))


def _position(values: ValueWriter, node: Reduce) -> Expression:
    flat = _flat_position(node.axes)
    if as_int(values.space.simplify(flat)) is not None:
        return exact_constant(0, values.shape.index_dtype)
    return values.space.index(flat)


def emit_reduce(values: ValueWriter, scope: Scope, node: Reduce) -> None:
    """Bind the results of `node`, whose row is all in registers."""
    site = build_site(values, scope, node)
    bind_results(values, scope, node, REDUCTIONS[node.kind].persistent(site, scope.writer))


def emit_sums(values: ValueWriter, scope: Scope, nodes: Sequence[Reduce]) -> None:
    """Bind the results of several sums, whose rows are all in registers: they are exchanged between threads
    at once.

    Each is what it would be alone: the elements of a row are added in the same order.
    """
    groups: dict[tuple[tuple[str, ...], DType], list[tuple[Reduce, Site]]] = {}
    for node in nodes:
        site = build_site(values, scope, node)
        groups.setdefault((site.shape, site.dtype), []).append((node, site))
    for group in groups.values():
        for start in range(0, len(group), MOST_SUMS):
            _emit_joint_sums(values, scope, group[start : start + MOST_SUMS])


def _emit_joint_sums(values: ValueWriter, scope: Scope, sites: Sequence[tuple[Reduce, Site]]) -> None:
    if len(sites) == 1:
        ((node, site),) = sites
        bind_results(values, scope, node, REDUCTIONS[node.kind].persistent(site, scope.writer))
        return
    kept = tuple(site.fill_invalid(free_constant(0, site.dtype)) for _, site in sites)
    combine = scope.writer.device(f"combine_{len(sites)}_sums")
    sums = sites[0][1].apply_along_axis("reduce", Tuple(kept), combine)
    for (node, _), result in zip(sites, scope.writer.bind_all(("sum",) * len(sites), sums), strict=True):
        bind_results(values, scope, node, (result,))


def build_site(values: ValueWriter, scope: Scope, node: Reduce) -> Site:
    """Return the site of the reduction `node` in `scope`, with the value in a variable, because builders
    repeat it.
    """
    site = _build_unnamed_site(values, scope, node)
    return (
        site if isinstance(site.value, Name) else replace(site, value=scope.writer.bind("value", site.value))
    )


def bind_results(values: ValueWriter, scope: Scope, node: Reduce, results: Sequence[Expression]) -> None:
    """Make the results known to `node` and to the nodes for the other results of the same reduction."""
    for other in values.order:
        if isinstance(other, Reduce) and other.kind == node.kind and other.operands == node.operands:
            scope.bound[other] = results[other.output]


def emit_scan(values: ValueWriter, scope: Scope, node: Scan) -> None:
    """Bind the results of `node`: within the block, or in a loop with what is carried from block to block."""
    if node.axis.extent is not None and as_int(node.axis.extent) == 1:
        _emit_trivial_scan(values, scope, node)
        return
    tile = values.shape.reduced
    if tile is None or tile.axis is None or tile.index is not node.axis:
        raise EmitError(
            "scan-axis",
            (
                f"scan along {node.axis.name}, which is not the only reduction range of kernel "
                f"{values.kernel.name}"
            ),
            origins=values.kernel.origins,
        )
    operands = [values.expression(scope, operand) for operand in node.operands]
    site = ScanSite(
        kind=node.kind,
        reverse=node.reverse,
        dtype=node.operands[0].dtype,
        value=operands[0],
        others=tuple(operands[1:]),
        other_dtypes=tuple(operand.dtype for operand in node.operands[1:]),
        is_first=Binary("==", Name("r0_done") if node.reverse else LOOP_OFFSET, Number(0)),
        inside=_mask_deciding_lanes(values, node),
        valid=values.space.mask(frozenset({"r"})),
        shape=values.block(node),
        axis=tile.axis,
        positions=values.space.index(node.axis),
        index_dtype=values.shape.index_dtype,
        run=RUN if values.shape.has_thread_runs else "",
    )
    sharing = values.shape.sharing
    if sharing is not None:
        results = emit_lookback_scan(site, sharing, _first_word(values, node), tile.block, scope.writer)
    elif scope.parent is None or values.shape.walk == "persistent":
        results = emit_block_scan(site, scope.writer)
    else:
        last = Number(0) if node.reverse else Binary("-", Name(tile.block), Number(1))
        edge = Binary("==", values.space.lane(tile), last)
        results = emit_loop_scan(site, scope.writer, start_carry(site, scope.parent.writer), edge)
    for other in values.order:
        if isinstance(other, Scan) and _is_same_scan(other, node):
            wanted = 1 if other.kind in ("argmin", "argmax") else other.output
            result: Expression = results[wanted]
            if other.dtype.is_bool:
                result = scope.writer.bind("running", Binary("!=", result, Number(0)))
            elif wanted == 1 and not isinstance(other.kind, Combine):
                result = scope.writer.bind("position", method(result, "to", tl_name("int64")))
            scope.bound[other] = result


def _mask_points(values: ValueWriter, node: Scalar, *, without: str = "") -> Expression | None:
    """Return the mask of the lanes of `node` that are points, along its tiles but `without`; None if all
    are.
    """
    return values.space.mask(values.space.letters(values.levels.varies[node]) - frozenset(without))


def _mask_deciding_lanes(values: ValueWriter, node: Scan) -> Expression | None:
    """Return the mask of the lanes that may decide for all in the scan `node`; None if none does, or all
    may.
    """
    if not has_deciding_lanes(node.kind):
        return None
    # running sums behind the end are that at the end
    last = not isinstance(node.kind, Combine) and not node.reverse and not values.shape.has_thread_runs
    return _mask_points(values, node, without="r" if last else "")


def _first_word(values: ValueWriter, node: Scan) -> int:
    """Words of the scans that are written before `node`."""
    scans = list_scans(values.order)
    place = next(k for k, other in enumerate(scans) if _is_same_scan(other, node))
    return count_words(scans[:place])


def emit_sort(values: ValueWriter, scope: Scope, node: Sort) -> None:
    """Bind the results of `node`, whose row is all in registers."""
    tile, chosen = values.shape.reduced, values.shape.topk
    if tile is None or tile.axis is None:
        raise EmitError(
            "sort-row", f"kernel {values.kernel.name} sorts along {node.axis.name}, which is no row"
        )
    if node.topk:
        raise EmitError("sort-row", f"kernel {values.kernel.name} chooses among equals as topk does on CPUs")
    operand = node.operands[0]
    whole = values.block(operand, symbols=frozenset({tile.index}))
    value = values.expression(scope, operand)
    if values.block(operand) != whole:
        value = tl("broadcast_to", value, Tuple(tuple(Number(1) if s == "1" else Name(s) for s in whole)))
    site = SortSite(
        dtype=operand.dtype,
        descending=node.descending,
        value=value,
        positions=values.space.index(tile.index),
        valid=values.space.mask(frozenset({"r"})),
        rows=None if chosen is None else _mask_points(values, operand, without="r"),
        shape=whole,
        count=None if chosen is None else int(chosen.block),
        floats=values.shape.float_keys,
        first=whole if chosen is None else (*whole[:-1], chosen.block),
    )
    results = sort_row(site, scope.writer)
    for other in values.order:
        if isinstance(other, Sort) and _is_same_sort(other, node):
            stem = "position" if other.output else "value"
            scope.bound[other] = scope.writer.bind(stem, results[other.output])


def _emit_trivial_scan(values: ValueWriter, scope: Scope, node: Scan) -> None:
    """The running value along an axis of one point is the value, at position 0."""
    for other in values.order:
        if isinstance(other, Scan) and _is_same_scan(other, node):
            position = other.kind in ("argmin", "argmax") or other.output == 1
            if isinstance(other.kind, Combine):
                value = values.expression(scope, node.operands[other.output])
            else:
                value = (
                    exact_constant(0, DType.I64) if position else values.expression(scope, node.operands[0])
                )
            scope.bound[other] = value if isinstance(value, Name) else scope.writer.bind("running", value)


def _flat_position(axes: Sequence[Expr]) -> Expr:
    """Row-major position over `axes`."""
    flat = as_expr(0)
    for axis in axes:
        extent = axis.extent
        flat = flat * (1 if extent is None else extent) + axis
    return flat


def _is_same_sort(a: Sort, b: Sort) -> bool:
    return (a.operands, a.axis, a.descending) == (b.operands, b.axis, b.descending)


def _is_same_scan(a: Scan, b: Scan) -> bool:
    return (a.kind, a.operands, a.axis, a.reverse) == (b.kind, b.operands, b.axis, b.reverse)


# Sorts


# Greater than all keys.
_LARGEST_KEY: Final[Mapping[int, int]] = MappingProxyType({4: (1 << 31) - 1, 8: 1 << 50})


@dataclass(frozen=True, slots=True, kw_only=True)
class SortSite:
    """One sort of a kernel: `value`, of which every row of blocks of extents `shape` is sorted along the last
    axis.

    `positions` is a block with the position along that axis, `valid` is true where it lies in range, and
    `rows` in lanes that are rows. With `count`, a power of two, only so many of each row are wanted, in
    blocks of extents `first`. With `floats`, keys of 64 bits are compared as floats are.
    """

    dtype: DType
    descending: bool
    value: Expression
    positions: Expression
    valid: Expression | None
    rows: Expression | None
    shape: tuple[str, ...]
    count: int | None
    floats: bool
    first: tuple[str, ...]


def sort_row(site: SortSite, writer: Writer) -> tuple[Expression, Expression]:
    """Sort a row, or find its first elements; return the values in order, and the positions that they had.

    The network is Batcher's bitonic one, over keys that contain positions.
    """
    kind = sort_key_family(site.dtype)
    falls = Number(site.descending)
    key, value = writer.device(f"sort_key_{kind}"), writer.device(f"sorted_{kind}")
    # behind the end of the row
    largest = Number(_LARGEST_KEY[compute_sort_key_size(site.dtype)])
    dtype = tl_name("int1") if site.dtype.is_bool else get_triton_type(site.dtype)
    wide = site.floats and compute_sort_key_size(site.dtype) == 8
    length, spread = Name(site.shape[-1]), (Name(SORT_THREADS), Name(SORT_WIDTH))
    if site.count is not None:
        valid = Name("None") if site.valid is None else site.valid
        rows: Expression = Name("None")
        if site.rows is not None:
            rows = tl("broadcast_to", site.rows, extents((*site.shape[:-1], "1")))
        what = (site.value, site.positions, valid, rows, key, value, dtype, Number(wide), largest, falls)
        how = (*spread, Name(SORT_SHARE), Name(SORT_GROUPS), Name(SORT_ROOM), Name(SORT_SPREAD))
        found = Call(writer.device("sort_first"), (*what, length, Number(site.count), *how))
        values, positions = writer.bind_all(("firsts", "places"), found)
        first = extents(site.first)
        return tl("reshape", values, first), tl("reshape", positions, first)
    keys: Expression = Call(key, (site.value, site.positions, falls))
    if site.valid is not None:
        keys = tl("where", site.valid, keys, largest)
    if wide:
        keys = Call(writer.device("sort_float_keys"), (keys,))
    ordered: Expression = Call(writer.device("sort_rows"), (writer.bind("keys", keys), length, *spread))
    if wide:
        ordered = Call(writer.device("sort_integer_keys"), (ordered,))
    keys = writer.bind("ordered", ordered)
    return Call(value, (keys, dtype, falls)), Call(writer.device("sorted_position"), (keys,))
