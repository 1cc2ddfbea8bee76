"""Share one kernel between calls that differ in numbers alone.

Source: anti-unification (Plotkin, "A note on inductive generalization", 1970).

A kernel whose extents and offsets are numbers is compiled anew for each of them. Steps of an unrolled loop
that append to a tensor, or write elsewhere in it, never share a text. Beyond a few kernels of one pattern the
numbers in which they differ become size symbols, and one text serves all. Long loops lose nothing by that:
they go over blocks, whose ends are computed anyway. Numbers that change together share a symbol: of the rows
that a step appends, their count, the stride and the bound of a condition are `n0`, `n0` and `n0 - 1`.

A divisor stays a number, because dividing by an argument takes a CPU many times as long. A constant that is
only added, multiplied, compared or chosen may be an argument too. A float is passed as its bits, so that it
arrives exactly.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_double, c_float
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, format_expr, parse_expr, substitute, symbol
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.loops import Check
from coilwork_ir.scalar import (
    Const,
    Contraction,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    cast,
    index_value,
    iterate_postorder,
    load,
    op,
    reduce,
    replace_operands,
    scan_again,
)
from coilwork_scheduler.kernels.canonical import format_structure, show_constant
from coilwork_scheduler.optimization_remarks import Remarks

# ---- The least general kernel ----


# Numbers of an expression's text; digits of names are none. A sign belongs to one that is all of the text.
_NUMBER: Final = re.compile(r"\A-?\d+\Z|(?<![\w.])\d+")
_DIVISOR: Final = re.compile(r"(?://|%) \d+")
# Accesses are 16 bytes wide where a row is a multiple of as many elements.
_UNIT: Final = 16
# Arguments that take the place of numbers: as many as a kernel may have tensors. Each costs a call a little.
_MOST_SYMBOLS: Final = 32
# What computes the same way whether or not it knows a constant operand.
_INDIFFERENT: Final = frozenset(
    {"add", "sub", "mul", "where", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge"}
)
# From here on a number is an argument of its own: sums and multiples of others might overflow 64 bits.
_LARGE: Final = 1 << 48
# How a float lies in memory, and the integer as wide.
_BITS: Final = MappingProxyType({DType.F32: (c_float, DType.I32), DType.F64: (c_double, DType.I64)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A kernel without its numbers.

    Attributes:
        text: equal for kernels that differ in `numbers` alone.
        numbers: of its index expressions, in order.
    """

    text: str
    numbers: tuple[int, ...]


def find_pattern(kernel: Kernel) -> Pattern | None:
    """Return the pattern of `kernel`; None if its numbers also decide how it is computed.

    Extents that are multiples of 16 make another pattern than those that are not.
    """
    if kernel.core is not None or kernel.combined is not None or kernel.workspace:
        return None
    if any(isinstance(node, Contraction | Sort) for node in iterate_postorder(_roots(kernel))):
        return None
    extents = [as_int(r.extent) for r in kernel.ranges]
    if any(extent == 0 for extent in extents):
        return None
    multiples = [extent is None or extent % _UNIT == 0 for extent in extents]
    numbers = [int(found) for text in _texts(kernel) for found in _NUMBER.findall(text)]
    constants = _free_constants(kernel)

    def hide(constant: Const) -> str:
        return _hide_numbers(_encode_bits(constant)) if constant in constants else show_constant(constant)

    text = format_structure(kernel, _hide_numbers, hide)
    return Pattern(text=f"{multiples}\n{text}", numbers=tuple(numbers))


def generalize(
    kernel: Kernel, numbers: Sequence[Sequence[int]]
) -> tuple[Kernel, tuple[tuple[int, ...], ...]] | None:
    """Give `kernel` size symbols for the numbers in which it and others of its pattern differ.

    `numbers` are those of the patterns, `kernel`'s first. Returns the kernel and, for each entry of
    `numbers`, what the new symbols are; None if they would be too many, or a divisor is among them.
    """
    fills = _Fills(kernel, numbers)
    if not fills.symbols or len(fills.symbols) > _MOST_SYMBOLS:
        return None
    at = 0
    for text in _texts(kernel):
        divisors = {found.end() for found in _DIVISOR.finditer(text)}
        for found in _NUMBER.finditer(text):
            if found.end() in divisors and at in fills.by_place:
                return None
            at += 1
    made = _rebuild(kernel, fills)
    return replace(made, sizes=(*kernel.sizes, *fills.symbols)), fills.values


def _hide_numbers(expr: Expr) -> str:
    return _NUMBER.sub("#", format_expr(expr))


def _free_constants(kernel: Kernel) -> frozenset[Const]:
    """Constants that only feed operations that compute the same way for any value."""
    roots = _roots(kernel)
    found: set[Const] = set()
    bound = {root for root in roots if isinstance(root, Const)}
    for node in iterate_postorder(roots):
        if isinstance(node, Const) and (node.dtype is DType.I64 or node.dtype in _BITS):
            found.add(node)
        if not isinstance(node, Op) or node.op not in _INDIFFERENT:
            bound.update(operand for operand in node.operands if isinstance(operand, Const))
    return frozenset(found - bound)


def _encode_bits(constant: Const) -> Expr:
    """Return the integer as which `constant` is passed."""
    if constant.dtype is DType.I64:
        return as_expr(int(constant.value))
    lies, _ = _BITS[constant.dtype]
    return as_expr(int.from_bytes(bytes(lies(constant.value)), sys.byteorder, signed=True))


def _decode_bits(expr: Expr, dtype: DType) -> Scalar:
    """Return the constant of type `dtype` that was passed as `expr`."""
    value = index_value(expr)
    return value if dtype is DType.I64 else op("bitcast", cast(value, _BITS[dtype][1]), dtype=dtype)


def _roots(kernel: Kernel) -> list[Scalar]:
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots.extend(list_store_roots(store))
    roots.extend(check.condition for check in kernel.checks)
    return roots


def _texts(kernel: Kernel) -> list[str]:
    """Expressions of `kernel` in the order in which `_rebuild` replaces them."""
    return [format_expr(expr) for expr in _list_kernel_expressions(kernel)]


def _list_kernel_expressions(kernel: Kernel) -> Iterator[Expr]:
    constants = _free_constants(kernel)
    yield from (r.extent for r in kernel.ranges)
    yield from (arg.span for arg in kernel.args)
    for node in iterate_postorder(_roots(kernel)):
        match node:
            case Load():
                yield from node.index
            case IndexValue():
                yield node.expr
            case Const() if node in constants:
                yield _encode_bits(node)
            case _:
                pass
    yield from (store.index for store in kernel.stores)


class _Fills:
    """Expressions that replace numbers: `by_place` for the ones that differ, by position.

    Attributes:
        symbols: new size symbols.
        values: of the symbols, for each of the kernels.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[Sequence[int]]) -> None:
        # by direction, and for large numbers by place
        classes: dict[tuple[tuple[int, ...], int | None], list[tuple[int, int]]] = {}
        for place, given in enumerate(zip(*numbers, strict=True)):
            steps = [value - given[0] for value in given]
            factor = gcd(*steps)
            if factor:
                first = next(step for step in steps if step)
                factor = factor if first > 0 else -factor
                direction = tuple(step // factor for step in steps)
                own = place if any(abs(value) >= _LARGE for value in given) else None
                classes.setdefault((direction, own), []).append((place, factor))
        self.by_place: dict[int, str] = {}
        found: list[Expr] = []
        values: list[list[int]] = []
        for (direction, _), places in classes.items():
            column, slopes = _parametrize(direction, places, numbers)
            size = symbol(f"n{len(kernel.sizes) + len(found)}", lo=min(column), hi=max(column))
            found.append(size)
            values.append(column)
            for place, slope in slopes:
                self.by_place[place] = f"({slope}*{size.name} + {numbers[0][place] - slope * column[0]})"
        self.symbols = tuple(found)
        self.values = tuple(zip(*values, strict=True)) if values else tuple(() for _ in numbers)


def _parametrize(
    direction: tuple[int, ...], places: Sequence[tuple[int, int]], numbers: Sequence[Sequence[int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the values of one symbol, and the slope with which the number at each of `places` follows it.

    The symbol is one of the numbers where the others are whole multiples of it and of its steps, counted in
    sixteens where all are multiples of 16.
    """
    least = min(abs(factor) for _, factor in places)
    chosen, own = next(
        ((p, f) for p, f in places if f == least), next((p, f) for p, f in places if abs(f) == least)
    )
    if any(factor % least for _, factor in places):
        start = min(direction)
        return [step - start for step in direction], list(places)
    values = [given[chosen] for given in numbers]
    unit = _UNIT if all(value % _UNIT == 0 for value in values) else 1
    return [value // unit for value in values], [(p, unit * factor // own) for p, factor in places]


class _Refill:
    """Replaces numbers of expressions, in the order of `_list_kernel_expressions`."""

    def __init__(self, fills: _Fills, symbols: dict[str, Expr]) -> None:
        self._fills = fills
        self.symbols = symbols
        self._at = 0

    def replace(self, expr: Expr) -> Expr:
        """Return the next expression, with symbols for numbers that differ and the new ranges."""
        text = format_expr(expr)
        places = self._at + len(_NUMBER.findall(text))
        at, self._at = self._at, places
        if any(place in self._fills.by_place for place in range(at, places)):
            numbers = iter(range(at, places))
            filled = _NUMBER.sub(lambda found: self._fills.by_place.get(next(numbers), found[0]), text)
            return parse_expr(filled, self._names(expr))
        changed = {s: self.symbols[s.name] for s in expr.free_symbols if s.name in self.symbols}
        return substitute(expr, changed)

    def _names(self, expr: Expr) -> Mapping[str, Expr]:
        return {**{s.name: s for s in expr.free_symbols}, **self.symbols}


def _rebuild(kernel: Kernel, fills: _Fills) -> Kernel:
    refill = _Refill(fills, {size.name: size for size in fills.symbols})
    extents = [refill.replace(r.extent) for r in kernel.ranges]
    spans = [refill.replace(arg.span) for arg in kernel.args]
    ranges = [
        replace(r, symbol=symbol(r.symbol.name, extent=extent))
        for r, extent in zip(kernel.ranges, extents, strict=True)
    ]
    axes = {old.symbol: new.symbol for old, new in zip(kernel.ranges, ranges, strict=True)}
    refill.symbols.update({new.name: new for new in axes.values()})
    constants = _free_constants(kernel)
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(_roots(kernel)):
        operands = [done[operand] for operand in node.operands]
        if isinstance(node, Const) and node in constants:
            bits = refill.replace(_encode_bits(node))
            done[node] = node if as_int(bits) is not None else _decode_bits(bits, node.dtype)
        else:
            done[node] = _refill_node(node, operands, refill, axes)
    stores = tuple(
        replace(
            store,
            index=refill.replace(store.index),
            value=done[store.value],
            indirect=tuple(done[value] for value in store.indirect),
            mask=None if store.mask is None else done[store.mask],
        )
        for store in kernel.stores
    )
    checks = tuple(
        Check(condition=done[check.condition], message=check.message, error=check.error)
        for check in kernel.checks
    )
    args = tuple(replace(arg, span=span) for arg, span in zip(kernel.args, spans, strict=True))
    return replace(kernel, ranges=tuple(ranges), args=args, stores=stores, checks=checks)


def _refill_node(
    node: Scalar, operands: Sequence[Scalar], refill: _Refill, axes: Mapping[Expr, Expr]
) -> Scalar:
    match node:
        case Load():
            count = len(node.indirect)
            return load(
                node.buffer,
                [refill.replace(expr) for expr in node.index],
                node.dtype,
                indirect=operands[:count],
                mask=operands[count] if node.mask is not None else None,
                other=node.other,
            )
        case IndexValue():
            return index_value(refill.replace(node.expr), operands)
        case Reduce():
            return reduce(node.kind, operands, [axes[a] for a in node.axes], output=node.output)
        case Scan():
            return scan_again(node, operands, axes[node.axis])
        case _:
            return replace_operands(node, operands)


# ---- The pass ----


BuiltKernel = tuple[Kernel, KernelCall]
_SHOWN: Final = 4


def generalize_sizes(
    built: Mapping[int, BuiltKernel], buffers: Mapping[str, Buffer], remarks: Remarks, *, most_sizes: int
) -> Mapping[int, BuiltKernel]:
    """Replace kernels of one pattern that come with more than `most_sizes` different numbers by one
    kernel.
    """
    changed: dict[int, BuiltKernel] = {}
    for alike in _group_similar_calls(built, most_sizes):
        by_pattern: dict[str, dict[int, tuple[int, ...]]] = {}
        for index in alike:
            kernel, call = built[index]
            pattern = find_pattern(kernel)
            if pattern is not None:
                devices = " ".join(buffers[name].device for name in call.args)
                by_pattern.setdefault(f"{devices}\n{pattern.text}", {})[index] = pattern.numbers
        for numbers in by_pattern.values():
            sizes = len(set(numbers.values()))
            if sizes <= most_sizes:
                continue
            found = generalize(built[next(iter(numbers))][0], tuple(numbers.values()))
            remarks.note(
                "open-size",
                tuple(built[index][1].args[-1] for index in list(numbers)[:_SHOWN]),
                found is not None,
                "of one kind, and in so many sizes that the size is an argument"
                if found is not None
                else "of one kind, but a divisor or too many numbers would be arguments",
                members=len(numbers),
                sizes=sizes,
            )
            if found is None:
                continue
            kernel, values = found
            for index, own in zip(numbers, values, strict=True):
                call = built[index][1]
                changed[index] = (kernel, replace(call, sizes=(*call.sizes, *map(as_expr, own))))
    return {**built, **changed} if changed else built


def _group_similar_calls(built: Mapping[int, BuiltKernel], most_sizes: int) -> Sequence[Sequence[int]]:
    """Group calls by name, ranges, stores and argument types; leave out groups of `most_sizes` and fewer."""
    found: dict[tuple[object, ...], list[int]] = {}
    for index, (kernel, _) in built.items():
        types = tuple((arg.dtype, arg.role) for arg in kernel.args)
        found.setdefault((kernel.name, len(kernel.ranges), len(kernel.stores), types), []).append(index)
    return [tuple(same) for same in found.values() if len(same) > most_sizes]
