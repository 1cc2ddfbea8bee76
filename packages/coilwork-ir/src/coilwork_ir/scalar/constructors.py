"""Constructors of scalar nodes: the only way to make one. They check types and intern.

The last part joins conversions of conversions that change no value, so that no number is rounded again to a
type that it has been of. That saves instructions, and a rounding that is not there cannot be wrong.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from coilwork_ir.dtypes import FORMATS, DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr, find_bounds, get_extent, symbol
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, ReduceKind, ScalarOp
from coilwork_ir.scalar.nodes import (
    SCALARS,
    Combine,
    Combining,
    Const,
    Contraction,
    IndexValue,
    Key,
    Literal_,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
)

# ---- Constructors ----


_S = TypeVar("_S", bound=Scalar)


def placeholder(position: int) -> Expr:
    """Return the index symbol that stands for `indirect[position]` of a load or an index value."""
    return symbol(f"@{position}")


def const(value: Literal_, dtype: DType) -> Const:
    """Return a literal of `dtype`; `value` is converted to the type's class of Python number.

    Raises:
        VerifyError: the value is not representable (a fractional value of an integer type, say).
    """
    literal: Literal_
    identity: object
    if dtype.is_bool:
        literal = bool(value)
        identity = literal
    elif dtype.is_integer:
        if isinstance(value, float) and (math.isnan(value) or math.isinf(value) or int(value) != value):
            raise VerifyError("const-range", f"{value!r} is not a value of {dtype.text}")
        literal = int(value)
        identity = literal
    elif dtype.is_float:
        try:
            literal = float(value)
        except OverflowError:
            literal = math.inf if value > 0 else -math.inf  # an integer beyond every float
        # -0.0 == 0.0 and nan != nan, so bits identify a float
        identity = struct.pack("<d", literal)
    else:
        raise VerifyError("const-type", f"no constants of type {dtype.text}")

    def make() -> Const:
        return _fill(Const, dtype, (), value=literal)

    key: Key = (Const, dtype, identity)
    return _intern(key, make, Const)


def index_value(expr: Expr, indirect: Sequence[Scalar] = ()) -> IndexValue:
    """Return the `i64` value of `expr`; `indirect[k]` stands for `placeholder(k)`."""
    _check_indirect(indirect)

    def make() -> IndexValue:
        return _fill(IndexValue, DType.I64, tuple(indirect), expr=expr)

    key: Key = (IndexValue, expr, tuple(indirect))
    return _intern(key, make, IndexValue)


def load(
    buffer: str,
    index: Sequence[Expr],
    dtype: DType,
    *,
    indirect: Sequence[Scalar] = (),
    mask: Scalar | None = None,
    other: Literal_ = 0,
) -> Load:
    """Return the element of `buffer` (of type `dtype`) at `index`; see `Load`."""
    _check_indirect(indirect)
    if mask is not None and not mask.dtype.is_bool:
        raise VerifyError("mask-type", f"the mask of a load of %{buffer} is {mask.dtype.text}, not bool")
    if isinstance(mask, Const) and mask.value is True:
        mask = None
    other = 0 if mask is None else const(other, dtype).value
    operands = tuple(indirect) if mask is None else (*indirect, mask)

    def make() -> Load:
        return _fill(
            Load,
            dtype,
            operands,
            buffer=buffer,
            index=tuple(index),
            indirect=tuple(indirect),
            mask=mask,
            other=other,
        )

    key: Key = (Load, buffer, tuple(index), dtype, tuple(indirect), mask, repr(other))
    return _intern(key, make, Load)


def op(name: str, *operands: Scalar, dtype: DType | None = None) -> Scalar:
    """Row `name` of the op table applied to `operands`.

    `dtype` is needed, and allowed, only by `cast` and `bitcast`; a cast to the operand's own type is the
    operand.

    Raises:
        VerifyError: no such row, wrong number of operands, or operand types that break the row's rule.
    """
    row = SCALAR_OPS.get(name)
    if row is None:
        raise VerifyError(
            "unknown-op", f"no scalar op {name!r}", remedy="add a row to coilwork_ir.ops.SCALAR_OPS"
        )
    result = _result_dtype(row, operands, dtype)
    if row.rule in ("cast", "bitcast") and operands[0].dtype is result:
        return operands[0]

    def make() -> Op:
        return _fill(Op, result, operands, op=name)

    key: Key = (Op, name, result, operands)
    return _intern(key, make, Op)


def cast(value: Scalar, dtype: DType) -> Scalar:
    """`value` converted to `dtype`."""
    return op("cast", value, dtype=dtype)


def where(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    """`then` where `condition` (bool) holds, else `otherwise`; both have one type."""
    return op("where", condition, then, otherwise)


def reduce(
    kind: ReduceKind,
    operands: Sequence[Scalar],
    axes: Sequence[Expr],
    *,
    output: int = 0,
) -> Reduce:
    """Result `output` of combining `operands[0]` along `axes`; `operands[1]`, if given, masks elements out.

    Raises:
        VerifyError: unknown kind or result number, wrong number or types of operands.
    """
    row = REDUCE_OPS.get(kind)
    if row is None:
        raise VerifyError("unknown-op", f"no reduction {kind!r}")
    if not 0 <= output < row.outputs:
        raise VerifyError("reduce-output", f"reduction {kind} has {row.outputs} results, no number {output}")
    if len(operands) not in (row.inputs, row.inputs + 1):
        raise VerifyError("arity", f"reduction {kind} takes {row.inputs} operand and an optional mask")
    if len(operands) > row.inputs and not operands[-1].dtype.is_bool:
        raise VerifyError("mask-type", f"the mask of reduction {kind} is {operands[-1].dtype.text}, not bool")
    source = operands[0].dtype
    if kind in ("any", "all") and not source.is_bool:
        raise VerifyError("operand-type", f"reduction {kind} of {source.text}; it combines bool")
    if kind in ("welford", "online_softmax") and not source.is_float:
        raise VerifyError("operand-type", f"reduction {kind} of {source.text}; it combines floats")
    result = DType.I64 if kind in ("argmin", "argmax") else source

    def make() -> Reduce:
        return _fill(Reduce, result, tuple(operands), kind=kind, axes=tuple(axes), output=output)

    key: Key = (Reduce, kind, tuple(operands), tuple(axes), output)
    return _intern(key, make, Reduce)


def contract(left: Scalar, right: Scalar, axes: Sequence[Expr], dtype: DType) -> Contraction:
    """Return the sum of `left * right` along `axes`, multiplied and added in `dtype`; see `Contraction`.

    Raises:
        VerifyError: the factors are not floats of one type, or `dtype` is narrower than they are.
    """
    if left.dtype is not right.dtype or not left.dtype.is_float:
        raise VerifyError(
            "operand-type",
            f"contract {left.dtype.text} by {right.dtype.text}: it multiplies floats of one type",
            remedy="insert casts",
        )
    if not dtype.is_float or dtype.itemsize < left.dtype.itemsize:
        raise VerifyError("contract-type", f"contract {left.dtype.text} in {dtype.text}, which is narrower")

    def make() -> Contraction:
        return _fill(Contraction, dtype, (left, right), axes=tuple(axes))

    key: Key = (Contraction, left, right, tuple(axes), dtype)
    return _intern(key, make, Contraction)


def parameter(position: int, dtype: DType) -> Parameter:
    """Number `position` of what a function, a `Combine` or an epilogue, is given, of type `dtype`."""

    def make() -> Parameter:
        return _fill(Parameter, dtype, (), position=position)

    key: Key = (Parameter, position, dtype)
    return _intern(key, make, Parameter)


def combine(results: Sequence[Scalar]) -> Combine:
    """Return the function of two tuples that gives `results`; see `Combine`.

    Raises:
        VerifyError: it gives nothing, or a parameter is out of range or of another type than the result that
            it is a value of.
    """
    count = len(results)
    if not count:
        raise VerifyError("combine-results", "a combining function without results")
    seen: set[Scalar] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.operands)
        if isinstance(node, Parameter):
            if not 0 <= node.position < 2 * count:
                raise VerifyError("combine-parameter", f"no parameter {node.position} of two times {count}")
            wanted = results[node.position % count].dtype
            if node.dtype is not wanted:
                raise VerifyError(
                    "combine-parameter",
                    f"parameter {node.position} is {node.dtype.text}, its result {wanted.text}",
                )
        elif not isinstance(node, Const | Op):
            raise VerifyError("combine-results", f"a combining function with a {type(node).__name__.lower()}")
    return Combine(tuple(results))


def scan(
    kind: Combining,
    operand: Scalar,
    axis: Expr,
    *,
    others: Sequence[Scalar] = (),
    output: int = 0,
    reverse: bool = False,
) -> Scan:
    """Return the inclusive running `kind` of `operand` along `axis`, from the end if `reverse`; a `Combine`
    combines it together with `others`.

    Raises:
        VerifyError: there is no such result, or the operands are not what `kind` takes.
    """
    operands = (operand, *others)
    if isinstance(kind, Combine):
        if [value.dtype for value in operands] != [value.dtype for value in kind.results]:
            shown = ", ".join(value.dtype.text for value in operands)
            raise VerifyError("operand-type", f"a scan of ({shown}), which its function does not combine")
        if not 0 <= output < kind.count:
            raise VerifyError("scan-output", f"a scan of {kind.count} values has no result number {output}")
        result = operands[output].dtype
    else:
        if others:
            raise VerifyError("arity", f"scan {kind} takes 1 operand, got {len(operands)}")
        if output not in (0, 1) or (output == 1 and kind not in ("min", "max")):
            raise VerifyError("scan-output", f"scan {kind} has no result number {output}")
        result = DType.I64 if output == 1 or kind in ("argmin", "argmax") else operand.dtype

    def make() -> Scan:
        return _fill(Scan, result, operands, kind=kind, axis=axis, output=output, reverse=reverse)

    key: Key = (Scan, kind, operands, axis, output, reverse)
    return _intern(key, make, Scan)


def sort(operand: Scalar, axis: Expr, *, output: int = 0, descending: bool = False, topk: int = 0) -> Sort:
    """Values (`output` 0) or positions (1) of `operand` along `axis` in order; see `Sort`.

    Raises:
        VerifyError: there is no such result, values of this type have no order, or rows are known to have
            fewer than `topk` elements.
    """
    if output not in (0, 1):
        raise VerifyError("sort-output", f"a sort has no result number {output}")
    if operand.dtype.is_opaque:
        raise VerifyError("operand-type", f"sort of {operand.dtype.text}, which has no order")
    length = find_bounds(get_extent(axis)).hi if topk > 0 else None
    if topk < 0 or (length is not None and topk > length):
        raise VerifyError("sort-count", f"the first {topk} elements of rows of {length}")
    result = DType.I64 if output == 1 else operand.dtype

    def make() -> Sort:
        return _fill(Sort, result, (operand,), axis=axis, output=output, descending=descending, topk=topk)

    key: Key = (Sort, operand, axis, output, descending, topk)
    return _intern(key, make, Sort)


def sort_again(node: Sort, operand: Scalar, axis: Expr) -> Sort:
    """`node` of another `operand`, along another `axis`."""
    return sort(operand, axis, output=node.output, descending=node.descending, topk=node.topk)


def _fill(cls: type[_S], dtype: DType, operands: tuple[Scalar, ...], **fields: object) -> _S:
    node = cls.__new__(cls)
    fill = object.__setattr__
    fill(node, "dtype", dtype)
    fill(node, "operands", operands)
    for name, value in fields.items():
        fill(node, name, value)
    return node


def _intern(key: Key, make: Callable[[], _S], cls: type[_S]) -> _S:
    node = SCALARS.intern(key, make)
    assert isinstance(node, cls)
    return node


def _check_indirect(indirect: Sequence[Scalar]) -> None:
    for position, value in enumerate(indirect):
        if not value.dtype.is_integer:
            raise VerifyError("index-type", f"index value @{position} is {value.dtype.text}, not an integer")


def _result_dtype(row: ScalarOp, operands: Sequence[Scalar], dtype: DType | None) -> DType:
    if len(operands) != row.arity:
        raise VerifyError("arity", f"{row.name} takes {row.arity} operands, got {len(operands)}")
    types = [operand.dtype for operand in operands]
    shown = ", ".join(t.text for t in types)
    if row.rule in ("cast", "bitcast"):
        if dtype is None:
            raise VerifyError("cast-type", f"{row.name} needs the type to convert to")
        if row.rule == "bitcast" and dtype.itemsize != types[0].itemsize:
            raise VerifyError("cast-type", f"bitcast from {shown} to {dtype.text}: sizes differ")
        return dtype
    if dtype is not None:
        raise VerifyError("cast-type", f"{row.name} takes its type from its operands; do not pass one")
    if row.rule == "select":
        if not types[0].is_bool or types[1] is not types[2]:
            raise VerifyError("operand-type", f"where({shown}): expected (bool, T, T)")
        return types[1]
    if any(t is not types[0] for t in types):
        raise VerifyError(
            "operand-type", f"{row.name}({shown}): operands must have one type", remedy="insert casts"
        )
    if not row.takes(types[0]):
        raise VerifyError("operand-type", f"{row.name}({shown}): takes {row.accepts} operands")
    return DType.BOOL if row.rule in ("compare", "test") else types[0]


# ---- Conversions of conversions ----


_FRACTION: Final[Mapping[DType, int]] = MappingProxyType(
    {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7}
    | {dtype: form.fraction for dtype, form in FORMATS.items()}
)
_EXPONENT: Final[Mapping[DType, int]] = MappingProxyType(
    {DType.F64: 11, DType.F32: 8, DType.F16: 5, DType.BF16: 8}
    | {dtype: form.exponent for dtype, form in FORMATS.items()}
)
# Half way from the largest `f8e4m3` to the number that would come next.
_E4M3_LIMIT: Final = 464.0


def is_lossless(source: DType, target: DType) -> bool:
    """Tell if every value of `source` survives a conversion to `target` and back."""
    if source is target:
        return True
    if source.is_bool:
        return not target.is_opaque and target.format is None
    if source.is_integer and target.is_integer:
        if source.is_signed_integer and not target.is_signed_integer:
            return False
        if source.is_signed_integer == target.is_signed_integer:
            return target.itemsize >= source.itemsize
        return target.itemsize > source.itemsize
    # 8-bit floats of one kind lack zeros, infinities or exponents of another
    if not target.is_float or target.format is not None:
        return False
    if source.is_integer:
        bits = 8 * source.itemsize - source.is_signed_integer
        return bits <= _FRACTION[target] + 1 and bits < 2 ** (_EXPONENT[target] - 1)
    return (
        source.is_float and _FRACTION[target] >= _FRACTION[source] and _EXPONENT[target] >= _EXPONENT[source]
    )


def join_conversions(node: Op) -> Scalar:
    """`node`, a cast or bitcast, without what its operand converts in vain. NaN stays NaN, maybe of other
    bits.

    A 16-bit float that is seen as bits and back stays so: `fast` numerics keep that rounding, as the
    program asks.
    """
    (source,) = node.operands
    if node.op == "bitcast":
        return _join_bitcasts(node, source)
    before = _value_before(source, node.dtype)
    if before is not None:
        return before
    if isinstance(source, Op) and source.op == "cast":
        inner = source.operands[0]
        if is_lossless(inner.dtype, source.dtype) and not (node.dtype.is_bool and inner.dtype.is_float):
            return cast(inner, node.dtype)
    return node


def join_small_float_conversions(node: Scalar) -> Scalar:
    """Return `node`, joined if it makes an 8-bit float of what another one was made into, or bits of bits."""
    match node:
        case Op(op="cast") if node.dtype.format is not None:
            return join_conversions(node)
        case Op(op="bitcast", operands=(source,)) if {node.dtype.format, source.dtype.format} != {None}:
            return join_conversions(node)
        case _:
            return node


def cast_to_e4m3_or_nan(value: Scalar) -> Scalar:
    """`value` as an `f8e4m3`; what is too large for that becomes NaN, with its sign. A mere cast gives the
    largest number.
    """
    wide = cast(value, DType.F32)
    return op("bitcast", _code_or_nan(cast(wide, DType.F8E4M3), wide), dtype=DType.F8E4M3)


def _code_or_nan(small: Scalar, wide: Scalar) -> Scalar:
    """Return the bits of `small`, or of NaN where `wide`, the f32 that it is made of, is too large.

    As bits, since targets differ in the signs of NaN that they convert.
    """
    kept = op("le", op("abs", wide), const(_E4M3_LIMIT, DType.F32))
    return where(kept, _bits(small), _nan_code(wide))


def _bits(small: Scalar) -> Scalar:
    bits = op("bitcast", small, dtype=DType.U8)
    assert isinstance(bits, Op)
    return join_conversions(bits)


def _nan_code(wide: Scalar) -> Scalar:
    """Return the bits of the `f8e4m3` that is NaN and has the sign of `wide`, an f32."""
    bits = op("bitcast", wide, dtype=DType.I32)
    sign = op("bitwise_and", op("rshift", bits, const(24, DType.I32)), const(0x80, DType.I32))
    return op("bitwise_or", cast(sign, DType.U8), const(0x7F, DType.U8))


def _value_before(value: Scalar, dtype: DType) -> Scalar | None:
    """Return the 8-bit float of type `dtype` that `value` was before casts to types that hold all numbers of
    `dtype`.
    """
    if dtype.format is None:
        return None
    while value.dtype is not dtype:
        if not (isinstance(value, Op) and value.op == "cast" and is_lossless(dtype, value.dtype)):
            return None
        value = value.operands[0]
    return value


def _join_bitcasts(node: Op, source: Scalar) -> Scalar:
    if not isinstance(source, Op):
        return node
    if source.op == "bitcast":
        inner = source.operands[0]
        keeps_rounding = inner.dtype.is_low_precision and inner.dtype.format is None
        return inner if inner.dtype is node.dtype and not keeps_rounding else node
    # every number of the type is within its limit, and NaN gets its own sign
    small = _find_limited(source) if source.op == "where" and node.dtype is DType.F8E4M3 else None
    return node if small is None else small


def _find_limited(code: Op) -> Scalar | None:
    """Return the `f8e4m3` that `code` is made of, if it is what `_code_or_nan` makes of one."""
    match code.operands[0]:
        case Op(op="le", operands=(Op(op="abs", operands=(Op(op="cast", operands=(small,)) as wide,)), _)):
            return small if small.dtype is DType.F8E4M3 and code is _code_or_nan(small, wide) else None
        case _:
            return None
