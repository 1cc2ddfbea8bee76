"""Reductions and scans: sums, products, extremes, variances, and their running forms.

Kept dimensions are views of the result. Low-precision floats accumulate in `f32`, and the result is rounded
once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all, provably_positive
from coilwork_ir.loops import Scan
from coilwork_ir.loops.nodes import CheckError
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.building import values as view_maps
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.size_assertions import lower_nonzero
from coilwork_lowering.building.values import (
    Shape,
    TensorValue,
    Value,
    format_device,
    get_dtype,
    is_whole,
    make_coordinate_symbols,
    make_whole_value,
)
from coilwork_lowering.ops.elementwise import elementwise, overloads
from coilwork_lowering.rules import Call, NotLowered, Rule, wrap_dim
from coilwork_lowering.scalar_math import gt, index, like, maximum, select, to_dtype, truth
from coilwork_lowering.torch_compat.graphs import find_decomposed_operator

# ---- Reductions ----


def list_reduced_dims(
    call: Call, rank: int, name: str = "dim", *, empty_is_all: bool = True
) -> tuple[int, ...]:
    """Return the dimensions to reduce, sorted; an absent or empty list means all of them."""
    value = call.arguments.get(name)
    listed = () if value is None else call.integers(name)
    if not listed and (value is None or empty_is_all):
        return tuple(range(rank))
    return tuple(sorted({wrap_dim(d, rank) for d in listed})) if rank else ()


def reduce_over(
    builder: Builder,
    call: Call,
    value: TensorValue,
    positions: Sequence[int],
    kind: ReduceKind,
    prepare: Callable[[Scalar], Scalar],
    results: Sequence[DType | None],
) -> tuple[TensorValue | None, ...]:
    """Reduce `prepare(element)` over the dimensions `positions`."""
    kept = [k for k in range(len(value.shape)) if k not in positions]

    def body(point: tuple[Expr, ...], inner: tuple[Expr, ...]) -> Scalar:
        outer_at, inner_at = iter(point), iter(inner)
        coordinates = [next(inner_at) if k in positions else next(outer_at) for k in range(len(value.shape))]
        return prepare(builder.read(value, coordinates))

    return builder.reduce(
        kind,
        tuple(value.shape[k] for k in kept),
        # a scalar has no dimension, yet every reduction node has an axis
        tuple(value.shape[k] for k in positions) or (as_expr(1),),
        value.device,
        body,
        results,
        strides=_strides_without(builder, call, len(value.shape), positions),
    )


def _strides_without(builder: Builder, call: Call, rank: int, positions: Sequence[int]) -> tuple[Expr, ...]:
    fake = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    strides = builder.result_strides(fake)
    if len(strides) == rank - len(positions):
        return strides
    return tuple(s for k, s in enumerate(strides) if k not in positions)


def finish_reduction(
    builder: Builder, call: Call, value: TensorValue, fake: torch.Tensor, positions: Sequence[int]
) -> TensorValue:
    """Round to the result's type and put kept dimensions back."""
    wanted = get_dtype(fake.dtype)
    if value.dtype is not wanted:
        value = map_elements(builder, value, lambda x: to_dtype(x, wanted), wanted)
    if len(fake.shape) > len(value.shape):
        value = view_maps.insert(value, positions)
    return value


def map_elements(
    builder: Builder, value: TensorValue, function: Callable[[Scalar], Scalar], dtype: DType
) -> TensorValue:
    """`function` of every element, laid out as `value`."""
    strides = value.buffer.strides if is_whole(value) else None
    return builder.pointwise(
        value.shape, dtype, value.device, lambda point: function(builder.read(value, point)), strides=strides
    )


def take_only_result(results: tuple[TensorValue | None, ...]) -> TensorValue:
    """Return the only result."""
    value = results[0]
    assert value is not None
    return value


def accumulation_type(call: Call, source: DType) -> DType:
    """Return the type that sums accumulate in: `i64` for integers and bools, `f32` for narrow floats."""
    wanted = call.dtype
    return DType.F32 if wanted.is_low_precision else wanted


def _accumulate(kind: ReduceKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        positions = list_reduced_dims(call, len(value.shape))
        wide = accumulation_type(call, value.dtype)
        if wide.is_bool:
            raise NotLowered("a sum of booleans as boolean")
        total = reduce_over(builder, call, value, positions, kind, lambda x: to_dtype(x, wide), [wide])
        return finish_reduction(builder, call, take_only_result(total), call.fake, positions)

    return lower


def element_count(value_shape: Shape, positions: Sequence[int]) -> Expr:
    """Return how many elements one result combines."""
    return multiply_all(value_shape[k] for k in positions)


def _mean(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    positions = list_reduced_dims(call, len(value.shape))
    wide = accumulation_type(call, value.dtype)
    total = take_only_result(
        reduce_over(builder, call, value, positions, "sum", lambda x: to_dtype(x, wide), [wide])
    )
    count = to_dtype(index(element_count(value.shape, positions)), wide)
    wanted = call.dtype
    mean = map_elements(builder, total, lambda x: to_dtype(op("div", x, count), wanted), wanted)
    return finish_reduction(builder, call, mean, call.fake, positions)


def _extreme_kind(kind: ReduceKind, dtype: DType) -> ReduceKind:
    if dtype.is_bool:
        return "any" if kind == "max" else "all"
    return kind


def reduce_extreme(
    builder: Builder,
    call: Call,
    value: TensorValue,
    positions: Sequence[int],
    kind: ReduceKind,
    fake: torch.Tensor,
) -> TensorValue:
    """Return the largest or smallest element, of those that there must be; NaN wins."""
    wide = value.dtype.compute
    result = reduce_over(
        builder, call, value, positions, _extreme_kind(kind, wide), lambda x: cast(x, wide), [wide]
    )
    return finish_reduction(builder, call, take_only_result(result), fake, positions)


def require_elements(
    builder: Builder, call: Call, value: TensorValue, positions: Sequence[int], error: CheckError
) -> None:
    """Leave reductions of nothing, which have no extreme, to eager's error; where data decides the sizes,
    raise it.
    """
    sizes = [value.shape[k] for k in positions]
    if any(as_int(size) == 0 for size in sizes):
        raise NotLowered("the extreme of no elements")
    name = call.captured_operator.split(".")[1]
    if name.endswith("softmax"):
        # it gives nothing of such a dimension, and nobody reads the extreme
        return
    for size in sizes:
        lower_nonzero(builder, size, f"{name}(): a dimension without elements has no extreme", error)


def _require_elements_of_call(
    builder: Builder, call: Call, value: TensorValue, positions: Sequence[int]
) -> None:
    named = call.arguments.get("dim") not in (None, ())
    require_elements(builder, call, value, positions, "IndexError" if named else "RuntimeError")


def _lower_extreme(kind: ReduceKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        positions = list_reduced_dims(call, len(value.shape))
        _require_elements_of_call(builder, call, value, positions)
        return reduce_extreme(builder, call, value, positions, kind, call.fake)

    return lower


def find_extreme_position(
    builder: Builder,
    call: Call,
    value: TensorValue,
    positions: Sequence[int],
    kind: ReduceKind,
    fake: torch.Tensor,
) -> TensorValue:
    """Return where the first extreme is of elements that there must be, row-major over `positions`; the first
    NaN if there is one.
    """
    wide = DType.U8 if value.dtype.is_bool else value.dtype.compute
    arg: ReduceKind = "argmax" if kind == "max" else "argmin"
    result = reduce_over(builder, call, value, positions, arg, lambda x: cast(x, wide), [DType.I64])
    return finish_reduction(builder, call, take_only_result(result), fake, positions)


def _lower_extreme_position(kind: ReduceKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        positions = list_reduced_dims(call, len(value.shape), empty_is_all=False)
        _require_elements_of_call(builder, call, value, positions)
        return find_extreme_position(builder, call, value, positions, kind, call.fake)

    return lower


def _extreme_and_position(kind: ReduceKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        positions = list_reduced_dims(call, len(value.shape))
        _require_elements_of_call(builder, call, value, positions)
        values, places = call.result
        return (
            reduce_extreme(builder, call, value, positions, kind, values),
            find_extreme_position(builder, call, value, positions, kind, places),
        )

    return lower


def _lower_any_all(kind: ReduceKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        # any.dims and all.dims reduce nothing for an empty list; elsewhere there is no list
        positions = list_reduced_dims(call, len(value.shape), empty_is_all=False)
        result = take_only_result(reduce_over(builder, call, value, positions, kind, truth, [DType.BOOL]))
        return finish_reduction(builder, call, result, call.fake, positions)

    return lower


def _moments(
    builder: Builder, call: Call, fakes: Sequence[torch.Tensor | None], root: bool
) -> list[TensorValue]:
    """Return variance (or its root) and mean, as far as `fakes` ask for them."""
    value = call.tensor("self")
    positions = list_reduced_dims(call, len(value.shape))
    wide = value.dtype.compute
    # eager squares in f64 there: a root is finite where the variance is not
    if root and has_trait(value.device, ATEN_CPU) and value.dtype in (DType.F32, DType.BF16):
        wide = DType.F64
    correction = call.arguments.get("correction")
    if "unbiased" in call.arguments:
        correction = 1 if call["unbiased"] else 0
    if correction is None:
        correction = 1
    if not isinstance(correction, int | float):
        raise NotLowered("a correction that is only known at run time")
    results = reduce_over(
        builder,
        call,
        value,
        positions,
        "welford",
        lambda x: cast(x, wide),
        [wide if fakes[1] is not None else None, wide],
    )
    mean, squares = results
    assert squares is not None
    elements = element_count(value.shape, positions)
    count = to_dtype(index(elements), wide)
    divisor = maximum(op("sub", count, const(correction, wide)), const(0, wide))
    if correction < 0 and not provably_positive(elements):
        # of no elements it is NaN, not 0, whatever the correction adds to their number
        divisor = select(gt(count, const(0, wide)), divisor, const(0, wide))

    def variance(x: Scalar) -> Scalar:
        quotient = op("div", x, divisor)
        return op("sqrt", quotient) if root else quotient

    assert fakes[0] is not None
    wanted = get_dtype(fakes[0].dtype)
    spread = map_elements(builder, squares, lambda x: cast(variance(x), wanted), wanted)
    result = [finish_reduction(builder, call, spread, fakes[0], positions)]
    if mean is not None and fakes[1] is not None:
        if _updates_one_by_one(call.node) and as_int(elements) != 1:
            mean = _nan_beside_infinity(builder, mean, squares)
        result.append(finish_reduction(builder, call, mean, fakes[1], positions))
    return result


def _updates_one_by_one(node: torch.fx.Node) -> bool:
    """Tell if eager updates the mean element by element, as these operators do; norms, which are made of them
    here, add.
    """
    original = find_decomposed_operator(node)
    return original in (None, "aten.var_mean", "aten.std_mean")


def _nan_beside_infinity(builder: Builder, mean: TensorValue, squares: TensorValue) -> TensorValue:
    """Return the mean as updates leave it: beside an infinity the next one is NaN."""
    strides = mean.buffer.strides if is_whole(mean) else None

    def body(point: tuple[Expr, ...]) -> Scalar:
        result = builder.read(mean, point)
        return select(op("isnan", builder.read(squares, point)), like(math.nan, result), result)

    return builder.pointwise(mean.shape, mean.dtype, mean.device, body, strides=strides)


def _lower_spread(root: bool, with_mean: bool) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        if not value.dtype.is_float:
            raise NotLowered("variance of a type other than float")
        if with_mean:
            return tuple(_moments(builder, call, call.result, root))
        return _moments(builder, call, (call.fake, None), root)[0]

    return lower


# ---- Scans ----


def _append_scan(
    builder: Builder,
    call: Call,
    kind: ScanKind,
    value: TensorValue,
    dim: int,
    wide: DType,
    fakes: list[object],
) -> list[Buffer]:
    body = simplify(to_dtype(builder.read(value, make_coordinate_symbols("i", value.shape)), wide))
    device = value.device
    outputs = [builder.declare(value.shape, wide, device)]
    if len(fakes) == 2:
        outputs.append(builder.declare(value.shape, DType.I64, device))
    ranges = make_node_ranges("i", value.shape)
    builder.add(
        Scan(
            outputs=tuple(outputs),
            kind=kind,
            ranges=ranges,
            axis=ranges[dim],
            body=body,
            origins=builder.origins,
        )
    )
    return outputs


def _is_trivial(value: TensorValue) -> bool:
    """Tell whether there is nothing to run along: no dimension, or no elements."""
    return not value.shape or any(as_int(size) == 0 for size in value.shape)


def _make_scan(kind: ScanKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        wide = DType.F32 if call.dtype.is_low_precision else call.dtype
        if _is_trivial(value):
            return elementwise(builder, call, lambda a: a, operands=[value], compute=[wide])
        if wide.is_bool or (kind == "logcumsumexp" and not wide.is_float):
            raise NotLowered("a scan of this type")
        dim = wrap_dim(call.integer("dim"), len(value.shape))
        (output,) = _append_scan(builder, call, kind, value, dim, wide, [call.fake])
        return finish_reduction(builder, call, make_whole_value(output), call.fake, ())

    return lower


def _make_running_extreme(kind: ScanKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        if value.dtype.is_bool or _is_trivial(value):
            raise NotLowered("a scan of booleans, or without an axis")
        dim = wrap_dim(call.integer("dim"), len(value.shape))
        values, positions = call.result
        if format_device(values.device) != value.device:
            raise NotLowered("a scan across devices")
        result = _append_scan(builder, call, kind, value, dim, value.dtype.compute, [values, positions])
        return (
            finish_reduction(builder, call, make_whole_value(result[0]), values, ()),
            make_whole_value(result[1]),
        )

    return lower


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("sum sum.dim_IntList"), _accumulate("sum")),
    Rule(overloads("prod prod.dim_int"), _accumulate("prod")),
    Rule(overloads("mean mean.dim"), _mean),
    Rule(overloads("amax max"), _lower_extreme("max")),
    Rule(overloads("amin min"), _lower_extreme("min")),
    Rule(overloads("argmax"), _lower_extreme_position("max")),
    Rule(overloads("argmin"), _lower_extreme_position("min")),
    Rule(overloads("max.dim"), _extreme_and_position("max")),
    Rule(overloads("min.dim"), _extreme_and_position("min")),
    Rule(overloads("any any.dim any.dims"), _lower_any_all("any")),
    Rule(overloads("all all.dim all.dims"), _lower_any_all("all")),
    Rule(overloads("var var.dim var.correction"), _lower_spread(False, False)),
    Rule(overloads("std std.dim std.correction"), _lower_spread(True, False)),
    Rule(overloads("var_mean var_mean.dim var_mean.correction"), _lower_spread(False, True)),
    Rule(overloads("std_mean std_mean.dim std_mean.correction"), _lower_spread(True, True)),
    Rule(overloads("cumsum"), _make_scan("sum")),
    Rule(overloads("cumprod"), _make_scan("prod")),
    Rule(overloads("logcumsumexp"), _make_scan("logcumsumexp")),
    Rule(overloads("cummax"), _make_running_extreme("max")),
    Rule(overloads("cummin"), _make_running_extreme("min")),
)
