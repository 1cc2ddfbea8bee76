"""Kernels whose neighbours along a row read what the others read: images enlarged, pooled, shuffled."""

from __future__ import annotations

from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, floordiv, maximum, minimum, mod
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op

F32, I64 = DType.F32, DType.I64


def nearest(dtype: DType, rows: int, columns: int, *, aligned: bool = True, times: int = 2) -> Kernel:
    """Each element `times` times, in rows of `columns`."""
    x0, x1 = along("x0", rows), along("x1", times * columns)
    value = load("in0", [x0.symbol * columns + floordiv(x1.symbol, times)], dtype)
    return kernel_over(
        (x0, x1), [value], [arg("in0", dtype, rows * columns)], columns=times * columns, aligned=aligned
    )


def bilinear(dtype: DType, rows: int, columns: int) -> Kernel:
    """Rows and columns of an image, each of them twice, as `torch.nn.functional.interpolate` has them."""
    x0, x1 = along("x0", 2 * rows), along("x1", 2 * columns)

    def places(at: Expr, size: int) -> tuple[Expr, Expr, Scalar]:
        half, zero, one = floordiv(at + 1, 2), as_expr(0), as_expr(1)
        quarter = index_value(mod(maximum(at * 2 - 1, zero), 4))
        weight = op("mul", cast(quarter, F32), const(0.25, F32))
        return maximum(half - 1, zero), minimum(maximum(half, one), as_expr(size - 1)), weight

    def between(left: Scalar, right: Scalar, weight: Scalar) -> Scalar:
        return op("add", left, op("mul", op("sub", right, left), weight))

    above, below, vertical = places(x0.symbol, rows)
    before, after, horizontal = places(x1.symbol, columns)

    def element(row: Expr, column: Expr) -> Scalar:
        return cast(load("in0", [row * columns + column], dtype), F32)

    upper, lower = (between(element(row, before), element(row, after), horizontal) for row in (above, below))
    value = cast(between(upper, lower, vertical), dtype)
    return kernel_over((x0, x1), [value], [arg("in0", dtype, rows * columns)], columns=2 * columns)


def pooled(dtype: DType, rows: int, columns: int) -> Kernel:
    """The maximum of windows of three, two apart, of rows padded by one on the left."""
    x0, x1 = along("x0", rows), along("x1", columns)
    inside = op("ge", index_value(x1.symbol * 2 - 1), const(0, I64))
    start = x0.symbol * (2 * columns) + x1.symbol * 2
    value: Scalar = load("in0", [start - 1], dtype, mask=inside, other=float("-inf"))
    for k in (0, 1):
        value = op("maximum", value, load("in0", [start + k], dtype))
    return kernel_over((x0, x1), [value], [arg("in0", dtype, 2 * rows * columns)], columns=columns)


def windows(dtype: DType, rows: int, columns: int, *, length: int = 3, apart: int = 1) -> Kernel:
    """Every row moved by each element of a window, with zeros before it and behind it; or by `apart` times
    that.
    """
    x0, x1, x2 = along("x0", rows), along("x1", length), along("x2", columns)
    at = x2.symbol + x1.symbol * apart - 1
    inside = op(
        "bitwise_and",
        op("ge", index_value(at), const(0, I64)),
        op("lt", index_value(at), const(columns, I64)),
    )
    value = load("in0", [x0.symbol * columns + at], dtype, mask=inside)
    place = (x0.symbol * length + x1.symbol) * columns + x2.symbol
    out = arg("out0", dtype, rows * length * columns, aligned=True)
    return Kernel(
        name="stepped",
        ranges=(x0, x1, x2),
        args=(arg("in0", dtype, rows * columns), out),
        stores=(Store(buffer="out0", index=place, value=value),),
    )


def kernel_over(
    ranges: tuple[Range, Range],
    values: list[Scalar],
    inputs: list[TensorArg],
    *,
    columns: int,
    aligned: bool = True,
) -> Kernel:
    """Stores `values` to one tensor each."""
    rows = ranges[0].symbol.extent
    assert rows is not None
    outputs = [arg(f"out{k}", value.dtype, rows * columns, aligned=aligned) for k, value in enumerate(values)]
    place = ranges[0].symbol * columns + ranges[1].symbol
    return Kernel(
        name="stepped",
        ranges=ranges,
        args=(*inputs, *outputs),
        stores=tuple(
            Store(buffer=out.name, index=place, value=value)
            for out, value in zip(outputs, values, strict=True)
        ),
    )
