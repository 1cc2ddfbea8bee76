"""Products of matrices as kernels, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Scalar, cast, const, contract, load, op, reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`left [batch, m, k] @ right [batch, k, n]`, each in memory by rows or by columns.

    With `left_exp` the exponential of the left one; with `epilogue`, a bias per column, a maximum with 0, a
    residual; with `over`, added to what is in the output.
    """

    m: int
    n: int
    k: int
    left: DType
    right: DType
    batch: int = 1
    left_by_rows: bool = True
    right_by_rows: bool = True
    left_exp: bool = False
    epilogue: bool = False
    over: bool = False


def product_kernel(shape: Product, *, as_sum: bool = False) -> Kernel:
    """The product, in the type of the left factor; `as_sum`, as a reduction."""
    batch, m, n, k = shape.batch, shape.m, shape.n, shape.k
    b, i, j = along("x0", batch), along("x1", m), along("x2", n)
    r = along("r0", k, "reduction")
    rows = i.symbol * k + r.symbol if shape.left_by_rows else r.symbol * m + i.symbol
    columns = r.symbol * n + j.symbol if shape.right_by_rows else j.symbol * k + r.symbol
    left: Scalar = load("in0", [b.symbol * (m * k) + rows], shape.left)
    right: Scalar = load("in1", [b.symbol * (k * n) + columns], shape.right)
    if shape.left_exp:
        left, right = op("exp", cast(left, DType.F32)), cast(right, DType.F32)
    value = product_of(left, right, [r.symbol], as_sum=as_sum)
    at = b.symbol * (m * n) + i.symbol * n + j.symbol
    args = [arg("in0", shape.left, batch * m * k), arg("in1", shape.right, batch * k * n)]
    if shape.epilogue:
        bias = cast(load("in2", [j.symbol], shape.left), DType.F32)
        residual = cast(load("in3", [at], shape.left), DType.F32)
        value = op("add", op("maximum", op("add", value, bias), const(0.0, DType.F32)), residual)
        args += [arg("in2", shape.left, n), arg("in3", shape.left, batch * m * n)]
    output = "io0" if shape.over else "out0"
    if shape.over:
        value = op("add", value, cast(load(output, [at], shape.left), DType.F32))
    return Kernel(
        name="product",
        ranges=(b, i, j, r),
        args=(*args, arg(output, shape.left, batch * m * n)),
        stores=(Store(buffer=output, index=at, value=cast(value, shape.left)),),
    )


def product_of(left: Scalar, right: Scalar, axes: list[Expr], *, as_sum: bool) -> Scalar:
    """The sum of `left * right` along `axes`, as a contraction or as a reduction."""
    if not as_sum:
        return contract(left, right, axes, DType.F32)
    return reduce("sum", [op("mul", cast(left, DType.F32), cast(right, DType.F32))], axes)


def int8_linear(*, m: int, n: int, k: int, half: DType) -> Kernel:
    """`x [m, k] @ weight [n, k].t() * scale [n]`, the weight in 8 bits."""
    i, j, r = along("x0", m), along("x1", n), along("r0", k, "reduction")
    x = load("in0", [i.symbol * k + r.symbol], half)
    weight = cast(load("in1", [j.symbol * k + r.symbol], DType.I8), half)
    total = cast(cast(contract(x, weight, [r.symbol], DType.F32), half), DType.F32)
    value = op("mul", total, cast(load("in2", [j.symbol], half), DType.F32))
    return Kernel(
        name="int8_linear",
        ranges=(i, j, r),
        args=(
            arg("in0", half, m * k),
            arg("in1", DType.I8, n * k),
            arg("in2", half, n),
            arg("out0", half, m * n),
        ),
        stores=(Store(buffer="out0", index=i.symbol * n + j.symbol, value=cast(value, half)),),
    )


def product_over_two_ranges() -> Kernel:
    """A product that sums over two ranges, which no index sees as one."""
    i, j = along("x0", 20), along("x1", 24)
    outer, inner = along("r0", 3, "reduction"), along("r1", 11, "reduction")
    left = load("in0", [i.symbol * 40 + outer.symbol * 13 + inner.symbol], DType.F32)
    right = load("in1", [outer.symbol * 24 * 12 + inner.symbol * 24 + j.symbol], DType.F32)
    value = contract(left, right, [outer.symbol, inner.symbol], DType.F32)
    return Kernel(
        name="two_ranges",
        ranges=(i, j, outer, inner),
        args=(arg("in0", DType.F32, 800), arg("in1", DType.F32, 3 * 24 * 12), arg("out0", DType.F32, 480)),
        stores=(Store(buffer="out0", index=i.symbol * 24 + j.symbol, value=value),),
    )


def gated_products(*, m: int, n: int, k: int, half: DType) -> Kernel:
    """`tanh(x [m, k] @ gate [n, k].t()) * (x @ up [n, k].t())`."""
    i, j, r = along("x0", m), along("x1", n), along("r0", k, "reduction")
    x = load("in0", [i.symbol * k + r.symbol], half)
    gate, up = (
        contract(x, load(name, [j.symbol * k + r.symbol], half), [r.symbol], DType.F32)
        for name in ("in1", "in2")
    )
    value = cast(op("mul", op("tanh", gate), up), half)
    weights = (arg(name, half, n * k) for name in ("in1", "in2"))
    return Kernel(
        name="gated_products",
        ranges=(i, j, r),
        args=(arg("in0", half, m * k), *weights, arg("out0", half, m * n)),
        stores=(Store(buffer="out0", index=i.symbol * n + j.symbol, value=value),),
    )
