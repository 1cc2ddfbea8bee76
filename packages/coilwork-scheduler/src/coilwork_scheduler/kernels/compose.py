"""Compose a draft kernel from a fusion group: one scalar graph per store, over the group's ranges.

Loads of what the kernel computes are replaced by the value, and the others are at flat offsets. A masked load
may simplify divisions by what its mask says: `i // 1023` and `i % 1023` of an `i` that the mask keeps below
1023. The load is then of the very element that a padding writes, so that one may take the other's place.

Sums of 64-bit integers of which no partial sum leaves 32 bits are made in 32 bits and widened at the end, bit
for bit the same. `mask.sum()` counts in 64 bits by type, which halves the lanes of a CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    add_all,
    as_expr,
    as_int,
    find_bounds,
    floordiv,
    fold,
    get_extent,
    maximum,
    minimum,
    mod,
    multiply_all,
    substitute,
)
from coilwork_ir.index import (
    const as index_const,
)
from coilwork_ir.kernels import Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.loc import Origin, merge_origins
from coilwork_ir.loops import Check
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    cast,
    const,
    find_span,
    index_value,
    iterate_postorder,
    join_small_float_conversions,
    load,
    narrow_to_32_bits,
    op,
    reduce,
    replace_operands,
    scan,
    scan_again,
    sort_again,
    where,
)
from coilwork_scheduler.contractions.sum_of_products import match_contraction
from coilwork_scheduler.fusion_group import Group, Member
from coilwork_scheduler.kernels.rounding import (
    NO_DECISIONS,
    Decisions,
    elide_rounding,
    find_compared,
    iter_choices,
)

# ---- Offsets under masks ----


def simplify_under_mask(index: Expr, mask: Scalar) -> Expr:
    """An expression equal to `index` wherever `mask` is true."""
    below = _limits(mask)
    if not below:
        return index

    def quotient(numerator: Expr, denominator: Expr) -> Expr:
        return as_expr(0) if _is_below(numerator, denominator, below) else floordiv(numerator, denominator)

    def remainder(numerator: Expr, denominator: Expr) -> Expr:
        return numerator if _is_below(numerator, denominator, below) else mod(numerator, denominator)

    return fold(
        index,
        const=index_const,
        symbol=lambda symbol: symbol,
        add=lambda parts: add_all(parts),
        mul=lambda parts: multiply_all(parts),
        floordiv=quotient,
        mod=remainder,
        minimum=lambda parts: minimum(*parts),
        maximum=lambda parts: maximum(*parts),
    )


def _is_below(numerator: Expr, denominator: Expr, below: Mapping[Expr, int]) -> bool:
    limit, divisor = below.get(numerator), as_int(denominator)
    return limit is not None and divisor is not None and limit <= divisor


def _limits(mask: Scalar) -> dict[Expr, int]:
    """Expressions that are not negative, and which numbers they stay below where `mask` is true."""
    found: dict[Expr, int] = {}
    open_parts = [mask]
    while open_parts:
        match open_parts.pop():
            case Op(op="bitwise_and" | "logical_and", operands=operands):
                open_parts.extend(operands)
            case Op(
                op=("lt" | "le") as name, operands=(IndexValue(expr=expr, operands=()), Const(value=value))
            ):
                limit = int(value) + (name == "le")
                lowest = find_bounds(expr).lo
                if lowest is not None and lowest >= 0:
                    found[expr] = min(limit, found.get(expr, limit))
            case _:
                pass
    return found


# ---- Narrow sums ----


_LARGEST: Final = (1 << 31) - 1


def narrow_sum(node: Scalar) -> Scalar:
    """Return `node` in 32 bits, if it is a sum or running sum of known length that cannot leave them."""
    if not isinstance(node, Reduce | Scan) or node.kind != "sum" or node.dtype is not DType.I64:
        return node
    axes = node.axes if isinstance(node, Reduce) else (node.axis,)
    lengths = [find_bounds(get_extent(axis)).hi for axis in axes]
    known = [length for length in lengths if length is not None]
    span = find_span(node.operands[0])
    if len(known) < len(lengths) or span is None or prod(known) * max(-span[0], span[1]) > _LARGEST:
        return node
    value = narrow_to_32_bits(node.operands[0])
    if isinstance(node, Scan):
        return cast(scan("sum", value, node.axis, reverse=node.reverse), DType.I64)
    return cast(reduce("sum", (value,), node.axes), DType.I64)


# ---- Drafts ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A kernel over the group's own symbols and the graph's own buffer names.

    `into` pairs (new buffer, old buffer); loads of the old one go by the new name. `partial` are buffers of
    which some elements are combined with, or kept where data say so, so that they must be there before.
    `boxes` are those of which a box is overwritten, whatever is there: where it begins is not part of what
    the kernel does. Where there is a `bound`, what moves along the rows is loaded and stored only where that
    is true.
    """

    parallel: tuple[Expr, ...]
    sequential: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    bound: Scalar | None
    stores: tuple[Store, ...]
    checks: tuple[Check, ...]
    into: tuple[tuple[str, str], ...]
    partial: tuple[str, ...]
    boxes: tuple[str, ...]
    origins: tuple[Origin, ...]


def compose(
    group: Group,
    wanted: Collection[str],
    buffers: Mapping[str, Buffer],
    numerics: Numerics,
    decisions: Decisions = NO_DECISIONS,
) -> Draft:
    """Return the draft kernel of `group`, which stores those of its buffers that are `wanted` outside.

    What `decisions` are made of is used as it is stored, or rounded wherever eager rounds, as is what is
    compared.
    """
    into = tuple(pair for member in group.members for pair in member.stage.into)
    composer = _Composer(group, buffers, {old: new for new, old in into}, wanted, numerics, decisions)
    stores: list[Store] = []
    checks: list[Check] = []
    for member in group.members:
        scalars = iter(composer.values(member))
        for store in member.stage.stores:
            # a reduction may be wider than the buffer it goes to
            value = cast(next(scalars), buffers[store.buffer].dtype)
            indirect = tuple(next(scalars) for _ in store.indirect)
            mask = next(scalars) if store.mask is not None else None
            buffer = buffers[store.buffer]
            if member.stage.kind != "scatter":
                composer.produced[store.buffer] = value
            if store.buffer in wanted or store.mode != "store" or member.stage.into:
                index = buffer.offset_of(tuple(substitute(e, member.mapping) for e in store.index))
                stores.append(
                    Store(
                        buffer=store.buffer,
                        index=index,
                        value=value,
                        indirect=indirect,
                        mode=store.mode,
                        mask=composer.add_bound(index, mask),
                    )
                )
        for check in member.stage.checks:
            checks.append(Check(condition=next(scalars), message=check.message, error=check.error))
    scattered = [s for member in group.members if member.stage.kind == "scatter" for s in member.stage.stores]
    boxes = tuple(s.buffer for s in scattered if s.mode == "store" and not s.indirect and s.mask is None)
    return Draft(
        parallel=group.parallel,
        sequential=group.sequential,
        reduced=group.reduced,
        bound=composer.bound,
        stores=tuple(stores),
        checks=tuple(dict.fromkeys(checks)),
        into=into,
        partial=tuple(s.buffer for s in scattered if s.buffer not in boxes and not (s.covers or s.sparse)),
        boxes=boxes,
        origins=merge_origins(*(member.stage.origins for member in group.members)),
    )


class _Composer:
    """Rewrites one member after the other; remembers what the group has computed."""

    def __init__(
        self,
        group: Group,
        buffers: Mapping[str, Buffer],
        renamed: Mapping[str, str],
        wanted: Collection[str],
        numerics: Numerics,
        decisions: Decisions,
    ) -> None:
        self.produced: dict[str, Scalar] = {}
        self.bound = None if group.bound is None else group.bound.holds
        self._rows = frozenset() if group.bound is None else group.bound.position.free_symbols
        self._sequential = group.sequential
        self._reduced = group.reduced
        self._buffers = buffers
        self._renamed = renamed
        self._wanted = wanted
        self._decisions = decisions
        self._wide = numerics == "fast"
        self._exact: frozenset[Scalar] = frozenset()

    def values(self, member: Member) -> tuple[Scalar, ...]:
        """Return the member's scalar graphs in the group's space."""
        mapping = member.mapping
        if all(symbol is expr for symbol, expr in mapping.items()):
            mapping = {}
        roots = member.stage.scalars
        done: dict[Scalar, Scalar] = {}
        # every step is rounded, so that no kernel begins with what another has rounded and goes on otherwise
        selects = any(store.buffer in self._decisions.rounded for store in member.stage.stores)
        decisive = roots if selects else tuple(find_compared(roots, self._decisions.selections))
        self._exact = (
            _factors(member) | self._find_stored_casts(member) | frozenset(iterate_postorder(decisive))
        )
        for node in iterate_postorder(roots):
            done[node] = self._visit(node, [done[operand] for operand in node.operands], mapping)
        return tuple(done[root] for root in roots)

    def _find_stored_casts(self, member: Member) -> frozenset[Scalar]:
        """Return what is used of buffers that the group stores, too, as rounded for memory.

        By plain sums, since that is what eager adds: cheaper functions then do for what is only rounded. And
        all that decides something, so that other kernels, which read it, decide alike.
        """
        added = {
            root.operands[0]
            for root in member.stage.scalars
            if isinstance(root, Reduce) and root.kind == "sum"
        }
        return frozenset(
            node
            for node in iterate_postorder(member.stage.scalars)
            if isinstance(node, Op) and node.op == "cast"
            for value in iter_choices(node.operands[0])
            if isinstance(value, Load) and value.buffer in self._wanted and value.buffer in self.produced
            if value.buffer in self._decisions.deciding or node in added
        )

    def _visit(self, node: Scalar, operands: list[Scalar], mapping: Mapping[Expr, Expr]) -> Scalar:
        match node:
            case Load():
                return self._load(node, operands, mapping)
            case IndexValue():
                return index_value(substitute(node.expr, mapping), operands)
            case Reduce():
                # every reduction of a kernel runs along all of its reduction ranges, or all of its sequential
                # ones
                along = frozenset().union(*(mapping.get(a, a).free_symbols for a in node.axes))
                axes = self._reduced if along.isdisjoint(self._sequential) else self._sequential
                return narrow_sum(reduce(node.kind, operands, axes, output=node.output))
            case Scan():
                return narrow_sum(scan_again(node, operands, mapping.get(node.axis, node.axis)))
            case Sort():
                return sort_again(node, operands[0], mapping.get(node.axis, node.axis))
            case Op(op="cast") if self._wide and node not in self._exact:
                return join_small_float_conversions(cast(elide_rounding(operands[0], node.dtype), node.dtype))
            case _:
                return join_small_float_conversions(replace_operands(node, operands))

    def _load(self, node: Load, operands: list[Scalar], mapping: Mapping[Expr, Expr]) -> Scalar:
        count = len(node.indirect)
        mask = operands[count] if node.mask is not None else None
        value = self.produced.get(node.buffer)
        if value is not None:
            return value if mask is None else where(mask, value, const(node.other, node.dtype))
        buffer = self._buffers[node.buffer]
        index = buffer.offset_of(tuple(substitute(e, mapping) for e in node.index))
        if mask is not None:
            index = simplify_under_mask(index, mask)
        return load(
            self._renamed.get(node.buffer, node.buffer),
            (index,),
            node.dtype,
            indirect=operands[:count],
            mask=self.add_bound(index, mask),
            other=node.other,
        )

    def add_bound(self, index: Expr, mask: Scalar | None) -> Scalar | None:
        """`mask`, and where `index` moves from row to row also that the row exists."""
        if self.bound is None or not self._moves_along_rows(index):
            return mask
        if mask is None or mask is self.bound:
            return self.bound
        if isinstance(mask, Op) and mask.op == "bitwise_and" and self.bound in mask.operands:
            return mask
        return op("bitwise_and", self.bound, mask)

    def _moves_along_rows(self, index: Expr) -> bool:
        return not self._rows.isdisjoint(index.free_symbols.intersection(self._sequential))


def _factors(member: Member) -> frozenset[Scalar]:
    """Return the factors of a contraction, which stay as they were rounded: matrix units take them in no
    wider type.
    """
    found: set[Scalar] = set()
    for node in iterate_postorder(member.stage.scalars):
        if isinstance(node, Reduce) and node.kind == "sum":
            (operand,) = node.operands[:1]
            if match_contraction(node.kind, operand, member.stage.parallel, node.axes) is not None:
                found.update(operand.operands)
    return frozenset(found)
