"""Running sums, products and extremes; sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int
from coilwork_ir.loops import Scan
from coilwork_ir.ops import ScanKind
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, Value, coordinate_symbols, device_text, whole
from coilwork_lowering.ops.elementwise import elementwise, overloads
from coilwork_lowering.ops.reductions import finish
from coilwork_lowering.rules import Call, NotLowered, Rule, wrap_dim
from coilwork_lowering.scalar_math import to_dtype


def _append(
    builder: Builder,
    call: Call,
    kind: ScanKind,
    value: TensorValue,
    dim: int,
    wide: DType,
    fakes: list[object],
) -> list[Buffer]:
    body = simplify(to_dtype(builder.read(value, coordinate_symbols("i", value.shape)), wide))
    device = value.device
    outputs = [builder.declare(value.shape, wide, device)]
    if len(fakes) == 2:
        outputs.append(builder.declare(value.shape, DType.I64, device))
    ranges = node_ranges("i", value.shape)
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
        (output,) = _append(builder, call, kind, value, dim, wide, [call.fake])
        return finish(builder, call, whole(output), call.fake, ())

    return lower


def _running_extreme(kind: ScanKind) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        if value.dtype.is_bool or _is_trivial(value):
            raise NotLowered("a scan of booleans, or without an axis")
        dim = wrap_dim(call.integer("dim"), len(value.shape))
        values, positions = call.result
        if device_text(values.device) != value.device:
            raise NotLowered("a scan across devices")
        found = _append(builder, call, kind, value, dim, value.dtype.compute, [values, positions])
        return (finish(builder, call, whole(found[0]), values, ()), whole(found[1]))

    return lower


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("cumsum"), _make_scan("sum")),
    Rule(overloads("cumprod"), _make_scan("prod")),
    Rule(overloads("logcumsumexp"), _make_scan("logcumsumexp")),
    Rule(overloads("cummax"), _running_extreme("max")),
    Rule(overloads("cummin"), _running_extreme("min")),
)
