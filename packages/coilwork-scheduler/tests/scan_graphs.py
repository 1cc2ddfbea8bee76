"""Graphs of scans."""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Graph, Pointwise, Scan
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import cast, load, op
from coilwork_ir.target import get_target

BF16, F32 = DType.BF16, DType.F32
H200 = get_target("sm_90")
# launches cost nothing and memory is slow: whatever may be split is
EAGER = replace(H200, launch_us=1e-6, bandwidth_gb_s=1.0)
# rows of so many bytes of f32 stay on chip, where tests say so
SHORT_ROWS = 4096


def tensor(name: str, shape: tuple[int, ...], dtype: DType) -> Buffer:
    sizes = tuple(as_expr(n) for n in shape)
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes), device="cpu")


def scanned(
    kind: ScanKind, shape: tuple[int, ...], axis: int, *, reverse: bool = False, positions: bool = False
) -> Graph:
    """`scan(2 * x)` of bf16 rows in f32, rounded to bf16."""
    x, wide, out = tensor("x", shape, BF16), tensor("wide", shape, F32), tensor("out", shape, BF16)
    at = tensor("at", shape, DType.I64)
    ranges = tuple(symbol(f"i{k}", extent=n) for k, n in enumerate(x.shape))
    value = cast(load("x", ranges, BF16), F32)
    scan = Scan(
        outputs=(wide, at) if positions else (wide,),
        kind=kind,
        ranges=ranges,
        axis=ranges[axis],
        body=op("add", value, value),
        reverse=reverse,
    )
    rounded = Pointwise(output=out, ranges=ranges, body=cast(load("wide", ranges, F32), BF16))
    results = ("out", "at") if positions else ("out",)
    return Graph(
        name="scanned",
        inputs=(x,),
        nodes=(scan, rounded),
        outputs=tuple(Ref(name) for name in results),
    )
