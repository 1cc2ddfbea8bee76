"""Where the values of integer scalars lie, as far as types, constants and ranges tell, and the same values in
32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import bounds
from coilwork_ir.scalar.build import cast, const, op
from coilwork_ir.scalar.nodes import Const, IndexValue, Op, Scalar
from coilwork_ir.scalar.walk import postorder

Span: TypeAlias = tuple[int, int]
"""The least and the greatest value."""

_TRUTH: Final[Span] = (0, 1)


def whole_span(root: Scalar) -> Span | None:
    """Bounds of `root`, an integer or a truth value; None if it may be anything that 64 bits hold."""
    return _spans(root).get(root)


def narrow_to_32_bits(root: Scalar) -> Scalar:
    """The value of `root`, of which `whole_span` says that it fits, as `i32`. What it is computed from is,
    too, where that fits.
    """
    spans = _spans(root)
    done: dict[Scalar, Scalar] = {}
    for node in postorder((root,)):
        if node.dtype.is_integer and _fits(spans.get(node), DType.I32):
            done[node] = _narrow(node, spans, done)
    return done[root]


def _narrow(node: Scalar, spans: Mapping[Scalar, Span], done: Mapping[Scalar, Scalar]) -> Scalar:
    if node.dtype is DType.I32:
        return node
    if not _fits(_compute_span(node, spans), node.dtype):
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
    found: dict[Scalar, Span] = {}
    for node in postorder((root,)):
        span = _span(node, found)
        if span is not None:
            found[node] = span
    return found


def _span(node: Scalar, known: Mapping[Scalar, Span]) -> Span | None:
    if node.dtype.is_bool:
        return _TRUTH
    if not node.dtype.is_integer:
        return None
    span = _compute_span(node, known)
    # arithmetic wraps around
    return span if span is not None and _fits(span, node.dtype) else _type_span(node.dtype)


def _compute_span(node: Scalar, known: Mapping[Scalar, Span]) -> Span | None:
    match node:
        case Const():
            return int(node.value), int(node.value)
        case IndexValue(operands=()):
            low, high = bounds(node.expr)
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


def _fits(span: Span | None, dtype: DType) -> bool:
    bits = 8 * dtype.itemsize
    low, high = (-(1 << bits - 1), 1 << bits - 1) if dtype.is_signed_integer else (0, 1 << bits)
    return span is not None and low <= span[0] and span[1] < high


def _either(spans: Sequence[Span]) -> Span:
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
        "where": _either,
        "add": lambda spans: (sum(low for low, _ in spans), sum(high for _, high in spans)),
        "sub": _difference,
        "mul": _product,
        "minimum": lambda spans: (min(low for low, _ in spans), min(high for _, high in spans)),
        "maximum": lambda spans: (max(low for low, _ in spans), max(high for _, high in spans)),
    }
)
