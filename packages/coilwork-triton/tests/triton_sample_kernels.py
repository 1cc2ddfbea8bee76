"""Kernels that stand for what models need: compiled for GPUs, and kept as golden text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from contraction_kernels import Product, int8_linear, product_kernel
from kernel_bench import WALKS, along, arg
from sharing_kernels import shared_rows
from step_kernels import bilinear, pooled

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, ceildiv, maximum, provably_divisible, symbol
from coilwork_ir.kernels import ComboKernel, Kernel, Member, Range, Store, TensorArg
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Check
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, ScanKind
from coilwork_ir.scalar import (
    Scalar,
    cast,
    const,
    index_value,
    load,
    op,
    placeholder,
    reduce,
    scan,
    sort,
    where,
)

BF16, F32, I64 = DType.BF16, DType.F32, DType.I64


def wide(buffer: str, offset: Expr, **options: Any) -> Scalar:
    """A bf16 element as f32."""
    return cast(load(buffer, [offset], BF16, **options), F32)


def origin(node: str, name: str, line: int, code: str) -> Origin:
    """A line of a made-up user program."""
    return Origin(node=node, op=name, file="model.py", line=line, code=code)


def bias_gelu() -> Kernel:
    """out = gelu(x + bias), tanh form, bf16, one merged tile."""
    x0, x1 = along("x0", 4096), along("x1", 3072)
    flat = x0.symbol * 3072 + x1.symbol
    h = op("add", wide("in0", flat), wide("in1", x1.symbol))
    cube = op("mul", op("mul", h, h), h)
    inner = op("mul", op("add", h, op("mul", cube, const(0.044715, F32))), const(0.7978845608028654, F32))
    gelu = op("mul", op("mul", h, const(0.5, F32)), op("add", op("tanh", inner), const(1.0, F32)))
    return Kernel(
        name="add_gelu",
        ranges=(x0, x1),
        args=(arg("in0", BF16, 4096 * 3072), arg("in1", BF16, 3072), arg("out0", BF16, 4096 * 3072)),
        stores=(Store(buffer="out0", index=flat, value=cast(gelu, BF16)),),
        origins=(
            origin("add", "aten.add.Tensor", 11, "h = self.fc(x)"),
            origin("gelu", "aten.gelu.default", 12, "h = F.gelu(h, approximate='tanh')"),
        ),
    )


def copy(dtype: DType, *, aligned: bool) -> Kernel:
    """out = -x over a million elements."""
    x0 = along("x0", 1 << 20)
    value: Scalar = load("in0", [x0.symbol], dtype)
    value = cast(op("neg", cast(value, F32)), dtype)
    args = (arg("in0", dtype, 1 << 20, aligned=aligned), arg("out0", dtype, 1 << 20, aligned=aligned))
    return Kernel(
        name="negate", ranges=(x0,), args=args, stores=(Store(buffer="out0", index=x0.symbol, value=value),)
    )


def rows(width: int) -> tuple[Range, Range, Expr]:
    """A row reduction's ranges and flat offset."""
    x0, r0 = along("x0", 4096), along("r0", width, "reduction")
    return x0, r0, x0.symbol * width + r0.symbol


def softmax(width: int) -> Kernel:
    """out = softmax(x, -1), bf16."""
    x0, r0, flat = rows(width)
    x = wide("in0", flat)
    high, total = (reduce("online_softmax", [x], [r0.symbol], output=k) for k in (0, 1))
    value = cast(op("div", op("exp", op("sub", x, high)), total), BF16)
    return Kernel(
        name="softmax",
        ranges=(x0, r0),
        args=(arg("in0", BF16, 4096 * width), arg("out0", BF16, 4096 * width)),
        stores=(Store(buffer="out0", index=flat, value=value),),
        origins=(origin("softmax", "aten._softmax.default", 31, "p = scores.softmax(-1)"),),
    )


def layer_norm(width: int) -> Kernel:
    """out = layer_norm(x) * w + b, with the row's mean and reciprocal deviation kept for the
    backward pass.
    """
    x0, r0, flat = rows(width)
    x = wide("in0", flat)
    mean, m2 = (reduce("welford", [x], [r0.symbol], output=k) for k in (0, 1))
    rstd = op("rsqrt", op("add", op("div", m2, const(width, F32)), const(1e-5, F32)))
    normal = op("mul", op("sub", x, mean), rstd)
    value = op("add", op("mul", normal, wide("in1", r0.symbol)), wide("in2", r0.symbol))
    big = 4096 * width
    return Kernel(
        name="layer_norm",
        ranges=(x0, r0),
        args=(
            arg("in0", BF16, big), arg("in1", BF16, width), arg("in2", BF16, width),
            arg("out0", BF16, big), arg("out1", F32, 4096), arg("out2", F32, 4096),
        ),
        stores=(
            Store(buffer="out0", index=flat, value=cast(value, BF16)),
            Store(buffer="out1", index=x0.symbol, value=mean),
            Store(buffer="out2", index=x0.symbol, value=rstd),
        ),
        origins=(origin("ln", "aten.native_layer_norm.default", 21, "x = self.ln_1(x)"),),
    )  # fmt: skip


def layer_norm_backward(
    rows: int | Expr, width: int, groups: int, dtype: DType = BF16, *, kept: bool = True
) -> Kernel:
    """Gradients of layer_norm(x) * w + b: of x, and per group of rows of w and b, from one read of x and of
    what flows back.

    `in0` is what flows back, `in1` w, `in2` x, `in3` and `in4` the rows' means and reciprocal deviations.
    Without `kept` the gradient of x is summed along columns too, as for a bias before the layer norm.
    """
    length = ceildiv(as_expr(rows), groups)
    x0, w0, r0 = along("x0", groups), along("w0", length, "sequential"), along("r0", width, "reduction")
    row = x0.symbol * length + w0.symbol
    flat = row * width + r0.symbol
    even = provably_divisible(as_expr(rows), groups)
    inside = None if even else op("lt", index_value(row), index_value(as_expr(rows)))

    def read(buffer: str, offset: Expr, element: DType = dtype) -> Scalar:
        return cast(load(buffer, [offset], element, mask=inside), F32)

    def summed(value: Scalar) -> Scalar:
        whole = value if inside is None else where(inside, value, const(0.0, F32))
        return reduce("sum", [whole], [w0.symbol])

    flow, x = read("in0", flat), read("in2", flat)
    weight = cast(load("in1", [r0.symbol], dtype), F32)
    deviation = read("in4", row, F32)
    normal = op("mul", op("sub", x, read("in3", row, F32)), deviation)
    scaled = op("mul", flow, weight)
    share = const(1 / width, F32)
    total = op("mul", reduce("sum", [scaled], [r0.symbol]), share)
    slope = op("mul", reduce("sum", [op("mul", scaled, normal)], [r0.symbol]), share)
    value = op("mul", deviation, op("sub", op("sub", scaled, total), op("mul", normal, slope)))
    part = x0.symbol * width + r0.symbol
    columns = [op("mul", flow, normal), flow, *(() if kept else (value,))]
    big = as_expr(rows) * width
    outs = [arg(f"out{k}", F32, groups * width) for k in range(len(columns))]
    return Kernel(
        name="layer_norm_backward",
        ranges=(x0, w0, r0),
        args=(
            arg("in0", dtype, big), arg("in1", dtype, width), arg("in2", dtype, big),
            arg("in3", F32, rows), arg("in4", F32, rows), *outs, arg(f"out{len(outs)}", dtype, big),
        ),
        sizes=tuple(as_expr(rows).free_symbols),
        stores=(
            *(Store(buffer=o.name, index=part, value=summed(v)) for o, v in zip(outs, columns, strict=True)),
            Store(buffer=f"out{len(outs)}", index=flat, value=cast(value, dtype), mask=inside),
        ),
        origins=(origin("ln", "aten.native_layer_norm_backward.default", 21, "x = self.ln_1(x)"),),
    )  # fmt: skip


def transpose_add() -> Kernel:
    """out = x + y.t(), a 2-D tile."""
    y0, x0 = along("y0", 1000), along("x0", 777)
    value = op(
        "add",
        load("in0", [y0.symbol * 777 + x0.symbol], F32),
        load("in1", [x0.symbol * 1000 + y0.symbol], F32),
    )
    return Kernel(
        name="add_transposed",
        ranges=(y0, x0),
        args=tuple(arg(n, F32, 777_000) for n in ("in0", "in1", "out0")),
        stores=(Store(buffer="out0", index=y0.symbol * 777 + x0.symbol, value=value),),
    )


def column_sums() -> Kernel:
    """out = x.sum(0), a reduction across contiguous columns."""
    x0, r0 = along("x0", 3072), along("r0", 4096, "reduction")
    value = reduce("sum", [wide("in0", r0.symbol * 3072 + x0.symbol)], [r0.symbol])
    return Kernel(
        name="column_sums",
        ranges=(x0, r0),
        args=(arg("in0", BF16, 3072 * 4096), arg("out0", F32, 3072)),
        stores=(Store(buffer="out0", index=x0.symbol, value=value),),
    )


def embedding() -> Kernel:
    """out = table[ids] + positions for a symbolic batch, with its range check."""
    n = symbol("n0", lo=1)
    x0, x1 = along("x0", n), along("x1", 768)
    row = load("in1", [x0.symbol], I64)
    wrapped = where(op("lt", row, const(0, I64)), op("add", row, const(50257, I64)), row)
    value = op(
        "add", wide("in0", placeholder(0) * 768 + x1.symbol, indirect=[wrapped]), wide("in2", x1.symbol)
    )
    inside = op("bitwise_and", op("ge", wrapped, const(0, I64)), op("lt", wrapped, const(50257, I64)))
    return Kernel(
        name="embedding",
        ranges=(x0, x1),
        args=(
            arg("in0", BF16, 50257 * 768),
            arg("in1", I64, n),
            arg("in2", BF16, 768),
            arg("out0", BF16, n * 768),
        ),
        sizes=(n,),
        stores=(Store(buffer="out0", index=x0.symbol * 768 + x1.symbol, value=cast(value, BF16)),),
        checks=(Check(condition=inside, message="index out of range in self", error="IndexError"),),
    )


def scatter_add() -> Kernel:
    """io.index_add_(0, ids, x) with atomics."""
    x0, x1 = along("x0", 4096), along("x1", 64)
    store = Store(
        buffer="io0",
        index=placeholder(0) * 64 + x1.symbol,
        indirect=(load("in1", [x0.symbol], I64),),
        value=load("in0", [x0.symbol * 64 + x1.symbol], F32),
        mode="add",
    )
    args = (arg("in0", F32, 4096 * 64), arg("in1", I64, 4096), arg("io0", F32, 64000))
    return Kernel(name="index_add", ranges=(x0, x1), args=args, stores=(store,))


def histograms() -> Kernel:
    """io[i].scatter_add_(0, x[i], 1) for rows of bytes."""
    x0, x1 = along("x0", 512), along("x1", 786432)
    number = cast(load("in0", [x0.symbol * 786432 + x1.symbol], DType.U8), I64)
    store = Store(
        buffer="io0",
        index=placeholder(0) + x0.symbol * 256,
        indirect=(number,),
        value=const(1, DType.I32),
        mode="add",
    )
    args = (arg("in0", DType.U8, 512 * 786432), arg("io0", DType.I32, 512 * 256))
    return Kernel(name="histograms", ranges=(x0, x1), args=args, stores=(store,))


def ragged_sums() -> Kernel:
    """Rows of `in1`, added from `in0[i]` on up to `in0[i + 1]`: sums whose lengths are data."""
    x0, x1, r0 = along("x0", 1000), along("x1", 64), along("r0", 700, "reduction")
    start, end = (cast(load("in0", [x0.symbol + k], DType.I32), I64) for k in (0, 1))
    step = index_value(r0.symbol)
    inside = op("lt", step, op("sub", end, start))
    place = (op("add", start, step),)
    row = load("in1", [placeholder(0) * 64 + x1.symbol], F32, indirect=place, mask=inside)
    value = reduce("sum", [where(inside, row, const(0.0, F32))], [r0.symbol])
    args = (arg("in0", DType.I32, 1001), arg("in1", F32, 700 * 64), arg("out0", F32, 64000))
    store = Store(buffer="out0", index=x0.symbol * 64 + x1.symbol, value=value)
    return Kernel(
        name="ragged_sums",
        ranges=(x0, x1, r0),
        args=args,
        stores=(store,),
    )


def looked_up_across() -> Kernel:
    """Places of 16 rows of `in0`, which data say, added for each of many points: threads lie along the
    points.
    """
    x0, r0 = along("x0", 16384), along("r0", 16, "reduction")
    place = load("in1", [x0.symbol], I64)
    value = load("in0", [r0.symbol * 1024 + placeholder(0)], F32, indirect=[place])
    return Kernel(
        name="looked_up_across",
        ranges=(x0, r0),
        args=(arg("in0", F32, 16384), arg("in1", I64, 16384), arg("out0", F32, 16384)),
        stores=(Store(buffer="out0", index=x0.symbol, value=reduce("sum", [value], [r0.symbol])),),
    )


def cumulative(kind: ScanKind, *, reverse: bool = False) -> Kernel:
    """A running reduction of each row."""
    x0, r0, flat = rows(5000)
    out = I64 if kind.startswith("arg") else F32
    store = Store(
        buffer="out0", index=flat, value=scan(kind, load("in0", [flat], F32), r0.symbol, reverse=reverse)
    )
    args = (arg("in0", F32, 4096 * 5000), arg("out0", out, 4096 * 5000))
    return Kernel(name=f"cumulative_{kind}", ranges=(x0, r0), args=args, stores=(store,))


def cumulative_columns(kind: ScanKind, length: int) -> Kernel:
    """A running reduction of each column, which may be written over what it is made of."""
    x0, r0 = along("x0", 4096), along("r0", length, "reduction")
    at = r0.symbol * 4096 + x0.symbol
    running = scan(kind, cast(load("in0", [at], BF16), F32), r0.symbol)
    args = (arg("in0", BF16, 4096 * length), arg("out0", BF16, 4096 * length))
    return Kernel(
        name=f"cumulative_{kind}",
        ranges=(x0, r0),
        args=args,
        stores=(Store(buffer="out0", index=at, value=cast(running, BF16)),),
        aliasing=(("out0", "in0"),),
    )


def channels(images: int, count: int, length: int) -> Kernel:
    """What each channel of images is off its mean: pieces of a few neighbours are reduced together."""
    x0, r0, r1 = along("x0", count), along("r0", images, "reduction"), along("r1", length, "reduction")
    at = (r0.symbol * count + x0.symbol) * length + r1.symbol
    value = cast(load("in0", [at], BF16), F32)
    mean = reduce("welford", [value], [r0.symbol, r1.symbol])
    total = images * count * length
    return Kernel(
        name="channels",
        ranges=(x0, r0, r1),
        args=(arg("in0", BF16, total), arg("out0", BF16, total)),
        stores=(Store(buffer="out0", index=at, value=cast(op("sub", value, mean), BF16)),),
    )


def padded() -> Kernel:
    """out = pad(x, (1, 1)), a masked load."""
    x0, x1 = along("x0", 100), along("x1", 34)
    at = index_value(x1.symbol)
    inside = op("bitwise_and", op("ge", at, const(1, I64)), op("lt", at, const(33, I64)))
    value = load("in0", [x0.symbol * 32 + x1.symbol - 1], F32, mask=inside, other=0.0)
    args = (arg("in0", F32, 3200), arg("out0", F32, 3400))
    store = Store(buffer="out0", index=x0.symbol * 34 + x1.symbol, value=value)
    return Kernel(name="pad", ranges=(x0, x1), args=args, stores=(store,))


def reflected(shape: tuple[int, int, int], dtype: DType) -> Kernel:
    """Planes of `shape`, two rows and three columns of which, at either end, are the reflected ones of
    smaller planes.
    """
    planes, rows, columns = shape
    x0, x1, x2 = along("x0", planes), along("x1", rows), along("x2", columns)
    height, width = max(1, rows - 4), columns - 6
    row, column = _reflection(x1.symbol - 2, height), _reflection(x2.symbol - 3, width)
    value = load("in0", [x0.symbol * (height * width) + row * width + column], dtype)
    index = x0.symbol * (rows * columns) + x1.symbol * columns + x2.symbol
    args = (arg("in0", dtype, planes * height * width), arg("out0", dtype, planes * rows * columns))
    store = Store(buffer="out0", index=index, value=value)
    return Kernel(name="reflected", ranges=(x0, x1, x2), args=args, stores=(store,))


def _reflection(place: Expr, extent: int) -> Expr:
    """`place`, from -extent + 1 to 2 * extent - 2, or 0 where there is one element."""
    if extent == 1:
        return place * 0
    last = extent - 1
    beyond = maximum(place, -place) - last
    return last - maximum(beyond, -beyond)


def every_op(
    dtype: DType, *, scalars: Collection[int] = (), numerics: Literal["fast", "eager", "strict"] = "fast"
) -> Kernel:
    """Each op of the table on `dtype` once, each to an output of its own. Operands number `scalars` are
    single elements.
    """
    x0 = along("x0", 1024)
    places = [as_expr(0) if k in scalars else x0.symbol for k in range(3)]
    values = [load(f"in{k}", [place], dtype) for k, place in enumerate(places)]
    chosen = load("in3", [places[0]], DType.BOOL)
    args = [*(arg(f"in{k}", dtype, 1024) for k in range(3)), arg("in3", DType.BOOL, 1024)]
    stores: list[Store] = []
    for name, row in SCALAR_OPS.items():
        if row.rule == "select":
            value = op(name, chosen, *values[1:])
        elif row.rule in ("same", "compare", "test") and row.takes(dtype):
            value = op(name, *values[: row.arity])
        else:
            continue
        out = f"out{len(stores)}"
        alone = all(k in scalars for k in range(row.arity))
        stores.append(Store(buffer=out, index=as_expr(0) if alone else x0.symbol, value=value))
        args.append(arg(out, value.dtype, 1024))
    return Kernel(
        name=f"every_{dtype.text}_op",
        ranges=() if all(k in scalars for k in range(3)) else (x0,),
        args=tuple(args),
        stores=tuple(stores),
        numerics=numerics,
    )


def every_reduction(*, across: bool = False) -> Kernel:
    """Each reduction of the table once, in one kernel."""
    width = 500
    x0, r0, flat = rows(width)
    if across:
        x0, r0 = along("x0", 4096), along("r0", width, "reduction")
        flat = r0.symbol * 4096 + x0.symbol
    inputs = {"any": DType.BOOL, "all": DType.BOOL, "xor_sum": I64}
    stores: list[Store] = []
    args = [
        arg("in0", F32, 4096 * width),
        arg("in1", DType.BOOL, 4096 * width),
        arg("in2", I64, 4096 * width),
    ]
    for kind, row in REDUCE_OPS.items():
        dtype = inputs.get(kind, F32)
        value = load({F32: "in0", DType.BOOL: "in1", I64: "in2"}[dtype], [flat], dtype)
        for output in range(row.outputs):
            found = reduce(row.name, [value], [r0.symbol], output=output)
            stores.append(Store(buffer=f"out{len(stores)}", index=x0.symbol, value=found))
            args.append(arg(f"out{len(stores) - 1}", found.dtype, 4096))
    return Kernel(name="every_reduction", ranges=(x0, r0), args=tuple(args), stores=tuple(stores))


def converted() -> Kernel:
    """One value in every memory type and back."""
    x0 = along("x0", 4096)
    kinds = [
        DType.F64,
        DType.F16,
        BF16,
        DType.F8E4M3,
        DType.F8E5M2,
        I64,
        DType.I32,
        DType.I16,
        DType.I8,
        DType.U8,
        DType.BOOL,
    ]
    stores, args = [], []
    for number, dtype in enumerate(kinds):
        args += [arg(f"in{number}", dtype, 4096), arg(f"out{number}", dtype, 4096)]
        value = cast(cast(load(f"in{number}", [x0.symbol], dtype), F32), dtype)
        stores.append(Store(buffer=f"out{number}", index=x0.symbol, value=value))
    return Kernel(name="converted", ranges=(x0,), args=tuple(args), stores=tuple(stores))


def together(counts: Sequence[int | Expr], dtype: DType = F32, *, unit: int = 16) -> Kernel:
    """in += scale * grad for a list of tensors of `unit * count` elements each, in one launch; one scale for
    all.
    """
    n0 = symbol("n0", lo=0, hi=1 << 20)
    x0 = along("x0", n0 * unit)

    def args(stem: str, count: Expr | int) -> tuple[TensorArg, ...]:
        many = as_expr(count) * unit
        return arg(f"{stem}in1", dtype, many), arg(f"{stem}io0", dtype, many)

    def widened(name: str, offset: Expr | int) -> Scalar:
        return cast(load(name, [as_expr(offset)], dtype), F32)

    step = op("mul", widened("in0", 0), widened("in1", x0.symbol))
    new = cast(op("add", widened("io0", x0.symbol), step), dtype)
    body = Kernel(
        name="member",
        ranges=(x0,),
        args=(arg("in0", dtype, 1), *args("", n0)),
        sizes=(n0,),
        stores=(Store(buffer="io0", index=x0.symbol, value=new),),
    )
    sizes = dict.fromkeys(c for c in map(as_expr, counts) if not c.is_const)
    tensors = [
        replace(a, name=f"m{k}_{a.name}", role="in" if "in1" in a.name else "inout")
        for k, c in enumerate(counts)
        for a in args("", c)
    ]
    return Kernel(
        name=f"axpy_x{len(counts)}",
        ranges=(),
        args=(replace(arg("in0", dtype, 1), name="m0_in0"), *tensors),
        sizes=tuple(sizes),
        stores=(),
        combined=ComboKernel(
            body=body,
            members=tuple(
                Member(args=("m0_in0", f"m{k}_in1", f"m{k}_io0"), sizes=(as_expr(c),))
                for k, c in enumerate(counts)
            ),
        ),
        origins=(origin("add", "aten._foreach_add_.List", 21, "torch._foreach_add_(p, g, alpha=a)"),),
    )


def sorted_rows(rows: int, length: int, dtype: DType, *, first: int = 0, descending: bool = False) -> Kernel:
    """Values and positions of rows in order, or the first of them."""
    x0, r0 = along("x0", rows), along("r0", length, "reduction")
    element = load("in0", [x0.symbol * length + r0.symbol], dtype)
    kept = first or length
    mask = op("lt", index_value(r0.symbol), index_value(as_expr(first))) if first else None
    at = x0.symbol * kept + r0.symbol
    return Kernel(
        name="sorted_rows",
        ranges=(x0, r0),
        args=(
            arg("in0", dtype, rows * length),
            arg("out0", dtype, rows * kept),
            arg("out1", I64, rows * kept),
        ),
        stores=tuple(
            Store(
                buffer=f"out{k}",
                index=at,
                value=sort(element, r0.symbol, output=k, descending=descending),
                mask=mask,
            )
            for k in (0, 1)
        ),
    )


SAMPLES: Mapping[str, Kernel] = MappingProxyType(
    {
        "bias_gelu": bias_gelu(),
        "softmax_persistent": softmax(8192),
        "softmax_short": softmax(384),
        "softmax_looped": softmax(50304),
        "layer_norm_persistent": layer_norm(1024),
        "layer_norm_looped": layer_norm(5000),
        "layer_norm_backward": layer_norm_backward(16384, 4096, 256),
        "layer_norm_backward_short": layer_norm_backward(5000, 768, 264),
        "transpose_add": transpose_add(),
        "column_sums": column_sums(),
        "embedding": embedding(),
        "scatter_add": scatter_add(),
        "histograms": histograms(),
        "cumsum_persistent": cumulative("sum"),
        "cummax_looped": cumulative("max"),
        "logcumsumexp_reverse": cumulative("logcumsumexp", reverse=True),
        "cumsum_columns": cumulative_columns("sum", 8192),
        "cumsum_shared": shared_rows("sum", 3, 20000, 8192, F32),
        "cummin_shared_reverse": shared_rows("min", 3, 20000, 4096, DType.F64, reverse=True),
        "cummax_columns": cumulative_columns("max", 5000),
        "logcumsumexp_columns": cumulative_columns("logcumsumexp", 5000),
        "channels": channels(256, 2048, 49),
        "pad": padded(),
        "reflected": reflected((64, 58, 118), BF16),
        "ragged_sums": ragged_sums(),
        "looked_up_across": looked_up_across(),
        "together": together([1, 4096, 3, 65536, 64]),
        "sorted_rows": sorted_rows(32768, 1024, BF16),
        "sorted_short_rows": sorted_rows(100000, 60, DType.I32, descending=True),
        "first_of_rows": sorted_rows(16384, 4000, F32, first=50, descending=True),
        "reductions_persistent": every_reduction(),
        "reductions_looped": every_reduction(),
        "int8_linear": int8_linear(m=16, n=96, k=512, half=BF16),
        "odd_linear": product_kernel(Product(m=300, n=333, k=200, left=BF16, right=BF16, epilogue=True)),
        "upsampling": bilinear(BF16, 128, 128),
        "pooling": pooled(BF16, 4096, 56),
        "reductions_across": every_reduction(across=True),
    }
)

_LOOPED = frozenset(
    {"layer_norm_looped", "cummax_looped", "logcumsumexp_reverse", "reductions_looped", "reductions_across"}
)


def sample_options(name: str) -> Mapping[str, object]:
    """What the sample called `name` is emitted with."""
    return WALKS["looped" if name in _LOOPED else "persistent"]
