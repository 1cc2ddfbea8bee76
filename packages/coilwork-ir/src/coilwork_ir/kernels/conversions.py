"""Constants that become integers which do not hold them, converted before a compiler sees them.

What comes of a float beyond an integer type is the processor's answer, and eager's. To a compiler that folds
constants it is undefined: it may take any number, and of a choice between such a constant and something else
the latter, always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType, round_to_dtype
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.roots import kernel_roots, with_roots
from coilwork_ir.scalar import Const, Load, Op, Scalar, cast, const, load, postorder, rewrite, where

# What a processor makes of a float of the first type on the way to an integer of the second, which is no
# `U64`.
Conversion = Callable[[float, DType, DType], int]

# Every conversion of a device goes through integers of 32 bits at least, and of most types with a sign.
_HELD: Final = float(1 << 31)
_UNSIGNED: Final = (DType.U16, DType.U32)


def convert_constants(kernel: Kernel, conversion: Conversion) -> Kernel:
    """`kernel` with the answers of `conversion` where a constant becomes an integer of a type that may not
    hold it.

    So also where the constant is one side of a choice, or what a masked load gives elsewhere. Other
    conversions stay.
    """
    if kernel.combined is not None:
        body = convert_constants(kernel.combined.body, conversion)
        return replace(kernel, combined=replace(kernel.combined, body=body))
    roots = kernel_roots(kernel)
    if not any(_source(node) is not None for node in postorder(roots)):
        return kernel
    return with_roots(kernel, rewrite(roots, _Conversions(conversion).visit))


def wrap_integer(value: int, dtype: DType) -> int:
    """The low bits of `value`, as many as `dtype` has, as a number of that type."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed_integer and value >> (bits - 1) else value


class _Conversions:
    """Rewrites the casts of one kernel; a choice within a choice is looked at once."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._found: dict[tuple[Scalar, DType], Scalar] = {}

    def visit(self, node: Scalar) -> Scalar:
        source = _source(node)
        return node if source is None else self._convert(source, node.dtype)

    def _convert(self, source: Scalar, dtype: DType) -> Scalar:
        key = (source, dtype)
        if key not in self._found:
            self._found[key] = self._write_conversion(source, dtype)
        return self._found[key]

    def _write_conversion(self, source: Scalar, dtype: DType) -> Scalar:
        match source:
            case Const(value=value):
                known = self._constant(float(value), source.dtype, dtype)
                return cast(source, dtype) if known is None else known
            case Op(op="where", operands=(condition, then, otherwise)):
                first, second = self._convert(then, dtype), self._convert(otherwise, dtype)
                if first is cast(then, dtype) and second is cast(otherwise, dtype):
                    return cast(source, dtype)
                return where(condition, first, second)
            case Op(op="cast", operands=(narrower,)) if (
                narrower.dtype.is_low_precision and source.dtype is DType.F32
            ):
                found = self._convert(narrower, dtype)
                return cast(source, dtype) if found is cast(narrower, dtype) else found
            case Load(mask=Scalar() as mask, other=other):
                elsewhere = self._constant(float(other), source.dtype, dtype)
                if elsewhere is None:
                    return cast(source, dtype)
                inside = load(
                    source.buffer, source.index, source.dtype, indirect=source.indirect, mask=mask, other=0
                )
                return where(mask, cast(inside, dtype), elsewhere)
            case _:
                return cast(source, dtype)

    def _constant(self, value: float, source: DType, dtype: DType) -> Const | None:
        """Return what `value` becomes; `None` if any compiler says the same."""
        value = round_to_dtype(value, source)
        if -_HELD <= value < _HELD and (dtype not in _UNSIGNED or value > -1):
            return None
        return const(self._conversion(value, source, dtype), dtype)


def _source(node: Scalar) -> Scalar | None:
    """The float that `node` converts to an integer."""
    if not (isinstance(node, Op) and node.op == "cast" and node.dtype.is_integer) or node.dtype is DType.U64:
        return None
    (source,) = node.operands
    return source if source.dtype.is_float else None
