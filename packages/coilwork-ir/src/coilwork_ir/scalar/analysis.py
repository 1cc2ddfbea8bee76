"""Facts about scalar graphs that decide how a kernel is written.

- `find_span` bounds an integer by types, constants and ranges; `narrow_to_32_bits` computes it in 32 bits.
- `find_contraction` says which ranges of a sum of products are rows, columns and the batch. In
  `sum over k of left(b, m, k) * right(b, k, n)` only the left factor varies along the rows `m`, only the
  right one along the columns `n`, and both along the batch `b`. That is what matrix units compute: a factor
  is read and evaluated once per block of rows or columns. Factors of 16 bits are multiplied exactly in f32.
- `count_leading_points` finds reductions that end early: of `where(r < n, value, identity)`, with an `n`
  that does not vary along the axis `r`, only the first `n` points count.
- `find_even_parts` finds a range that comparisons cut into a few equal parts, as where tensors of one size
  are concatenated. A kernel that goes through one part and computes all of them at each point reads once
  what they share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, find_bounds, provably_le
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar.constructors import cast, const, op
from coilwork_ir.scalar.nodes import Const, Contraction, IndexValue, Op, Reduce, Scalar, Scan, Sort
from coilwork_ir.scalar.walk import find_index_symbols, iterate_postorder

# ---- Bounds of integers ----


Span: TypeAlias = tuple[int, int]
"""The least and the greatest value."""

_TRUTH: Final[Span] = (0, 1)


def find_span(root: Scalar) -> Span | None:
    """Bounds of `root`, an integer or a truth value; None if it may be anything that 64 bits hold."""
    return _spans(root).get(root)


def narrow_to_32_bits(root: Scalar) -> Scalar:
    """Return the value of `root`, of which `find_span` says that it fits, as `i32`. What it is computed from
    is, too, where that fits.
    """
    spans = _spans(root)
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder((root,)):
        if node.dtype.is_integer and _fits_dtype(spans.get(node), DType.I32):
            done[node] = _narrow(node, spans, done)
    return done[root]


def _narrow(node: Scalar, spans: Mapping[Scalar, Span], done: Mapping[Scalar, Scalar]) -> Scalar:
    if node.dtype is DType.I32:
        return node
    if not _fits_dtype(_compute_span(node, spans), node.dtype):
        # it wraps around where its own type ends, which is not where 32 bits do
        return cast(node, DType.I32)
    match node:
        case Const():
            return const(int(node.value), DType.I32)
        case Op(op="cast", operands=(source,)) if source in spans:
            return done.get(source, cast(source, DType.I32))
        case Op(op="where", operands=(condition, *branches)) if all(b in done for b in branches):
            return op("where", condition, *(done[branch] for branch in branches))
        case Op() if node.op in _OF_SPANS and all(operand in done for operand in node.operands):
            return op(node.op, *(done[operand] for operand in node.operands))
        case _:
            return cast(node, DType.I32)


def _spans(root: Scalar) -> dict[Scalar, Span]:
    spans: dict[Scalar, Span] = {}
    for node in iterate_postorder((root,)):
        span = _span(node, spans)
        if span is not None:
            spans[node] = span
    return spans


def _span(node: Scalar, known: Mapping[Scalar, Span]) -> Span | None:
    if node.dtype.is_bool:
        return _TRUTH
    if not node.dtype.is_integer:
        return None
    span = _compute_span(node, known)
    # arithmetic wraps around
    return span if span is not None and _fits_dtype(span, node.dtype) else _type_span(node.dtype)


def _compute_span(node: Scalar, known: Mapping[Scalar, Span]) -> Span | None:
    match node:
        case Const():
            return int(node.value), int(node.value)
        case IndexValue(operands=()):
            low, high = find_bounds(node.expr)
            return None if low is None or high is None else (low, high)
        case Op(op="cast", operands=(source,)):
            return known.get(source)
        case Op(op="where", operands=(_, *branches)):
            spans = [known.get(branch) for branch in branches]
        case Op():
            spans = [known.get(operand) for operand in node.operands]
        case _:
            return None
    given = [span for span in spans if span is not None]
    function = _OF_SPANS.get(node.op)
    return None if function is None or len(given) < len(spans) else function(given)


def _type_span(dtype: DType) -> Span | None:
    if dtype.itemsize > 4:
        return None
    bits = 8 * dtype.itemsize
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed_integer else (0, (1 << bits) - 1)


def _fits_dtype(span: Span | None, dtype: DType) -> bool:
    bits = 8 * dtype.itemsize
    low, high = (-(1 << bits - 1), 1 << bits - 1) if dtype.is_signed_integer else (0, 1 << bits)
    return span is not None and low <= span[0] and span[1] < high


def _unite_spans(spans: Sequence[Span]) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)


def _difference(spans: Sequence[Span]) -> Span:
    (a, b), (c, d) = spans
    return a - d, b - c


def _product(spans: Sequence[Span]) -> Span:
    (a, b), (c, d) = spans
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


_OF_SPANS: Final[Mapping[str, Callable[[Sequence[Span]], Span]]] = MappingProxyType(
    {
        "where": _unite_spans,
        "add": lambda spans: (sum(low for low, _ in spans), sum(high for _, high in spans)),
        "sub": _difference,
        "mul": _product,
        "minimum": lambda spans: (min(low for low, _ in spans), min(high for _, high in spans)),
        "maximum": lambda spans: (max(low for low, _ in spans), max(high for _, high in spans)),
    }
)


# ---- Contractions ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionParts:
    """The ranges of a contraction, each group in the order in which they were given.

    Attributes:
        batch: ranges that both factors vary along.
        rows: those of the left factor alone.
        columns: those of the right one alone.
    """

    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]


def find_parts(
    left: Scalar, right: Scalar, ranges: Iterable[Expr], axes: Iterable[Expr]
) -> ContractionParts | None:
    """Return the rows, columns and batch among `ranges` of the sum of `left * right` along `axes`; None if it
    is no contraction.

    Each range is a part of a factor, and each axis of both. Ranges of extent 1 do not count. The product of a
    matrix with a vector is no contraction: no part of it is read twice. Nor is one of what is itself reduced.
    """
    real = tuple(r for r in ranges if not _is_point(r))
    first, second = find_index_symbols((left,)), find_index_symbols((right,))
    along = frozenset(a for a in axes if not _is_point(a))
    if not along or not along <= first or not along <= second:
        return None
    parts = ContractionParts(
        batch=tuple(r for r in real if r in first and r in second),
        rows=tuple(r for r in real if r in first and r not in second),
        columns=tuple(r for r in real if r in second and r not in first),
    )
    count = len(parts.batch) + len(parts.rows) + len(parts.columns)
    if not parts.rows or not parts.columns or count != len(real):
        return None
    combining = any(
        isinstance(v, Reduce | Contraction | Scan | Sort) for v in iterate_postorder((left, right))
    )
    return None if combining else parts


def find_contraction(values: Iterable[Scalar]) -> Contraction | None:
    """Return the first contraction among `values` and below; None if there is none."""
    return next((node for node in iterate_postorder(tuple(values)) if isinstance(node, Contraction)), None)


def find_contractions(values: Iterable[Scalar]) -> tuple[Contraction, ...]:
    """Return all contractions among `values` and below, operands first."""
    return tuple(node for node in iterate_postorder(tuple(values)) if isinstance(node, Contraction))


def _is_point(symbol: Expr) -> bool:
    """True for a range of one point."""
    return symbol.extent is not None and as_int(symbol.extent) == 1


# ---- Leading points ----


# What combining does not notice, for kinds that rows may leave off with.
_IDENTITY: Final[Mapping[ReduceKind, float]] = MappingProxyType({"sum": 0, "prod": 1, "xor_sum": 0, "any": 0})
_FAR: Final[Mapping[ReduceKind, float]] = MappingProxyType({"min": math.inf, "max": -math.inf})


def count_leading_points(kind: ReduceKind, operand: Scalar, axes: tuple[Expr, ...]) -> Scalar | None:
    """Count the points along the only long axis that matter at most: a value that does not vary along it.

    None if that is not known to be less than all of them.
    """
    long = [a for a in axes if a.extent is None or as_int(a.extent) != 1]
    if len(long) != 1 or not isinstance(operand, Op) or operand.op != "where":
        return None
    condition, _, otherwise = operand.operands
    if not isinstance(otherwise, Const) or otherwise.value != _neutral(kind, otherwise.dtype):
        return None
    if not isinstance(condition, Op) or condition.op != "lt":
        return None
    position, count = condition.operands
    if isinstance(position, Op) and position.op == "cast" and _holds_all(position.dtype, long[0]):
        (position,) = position.operands
    if not isinstance(position, IndexValue) or position.operands or position.expr is not long[0]:
        return None
    return None if long[0] in find_index_symbols((count,)) else count


def _neutral(kind: ReduceKind, dtype: DType) -> float | None:
    """None for kinds without such a number, and types that it is not known of."""
    if kind not in _FAR:
        return _IDENTITY.get(kind)
    if dtype.is_float:
        return _FAR[kind]
    if not dtype.is_signed_integer:
        return None
    largest = (1 << (8 * dtype.itemsize - 1)) - 1
    return largest if kind == "min" else -largest - 1


def _holds_all(dtype: DType, axis: Expr) -> bool:
    """Every position along `axis` is the same number as a `dtype`."""
    if axis.extent is None or not dtype.is_integer:
        return False
    return provably_le(as_expr(axis.extent), 2 ** (8 * dtype.itemsize - 1))


# ---- Even parts ----


# As many results of a point stay in registers.
_MOST_PARTS: Final = 4
# By how much the first place of the other side lies behind the constant.
_BEHIND: Final[Mapping[str, int]] = MappingProxyType({"lt": 0, "ge": 0, "le": 1, "gt": 1})


def find_even_parts(roots: Iterable[Scalar], ranges: Sequence[Expr]) -> tuple[Expr, int] | None:
    """Return the range of `ranges` that comparisons in `roots` cut into a few equal parts, and how many; None
    if there is none.

    Of several such ranges the innermost, the last one.
    """
    cuts: dict[Expr, set[int]] = {}
    for node in iterate_postorder(tuple(roots)):
        match node:
            case Op(op=name, operands=(IndexValue(expr=place, operands=()), Const(value=value))) if (
                name in _BEHIND
            ):
                cuts.setdefault(place, set()).add(int(value) + _BEHIND[name])
            case _:
                pass
    for symbol in reversed(ranges):
        extent = None if symbol.extent is None else as_int(symbol.extent)
        inside = [] if extent is None else [cut for cut in cuts.get(symbol, ()) if 0 < cut < extent]
        if extent is not None and inside:
            parts = extent // gcd(extent, *inside)
            if parts <= _MOST_PARTS:
                return symbol, parts
    return None
