"""Kernels whose programs share the rows of a scan."""

from __future__ import annotations

from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.workspace import count_words, list_scans
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import Scalar, load, op, scan


def shared_rows(
    kind: ScanKind, rows: int, length: int, piece: int, dtype: DType, *, reverse: bool = False
) -> Kernel:
    """Scans of rows in pieces: of `in0`, and what is more of its results doubled."""
    x, r = along("x0", rows), along("r0", length, "reduction")
    flat = x.symbol * length + r.symbol
    values: list[Scalar] = [scan(kind, load("in0", [flat], dtype), r.symbol, reverse=reverse)]
    outs = [arg("out0", dtype, rows * length)]
    if kind in ("max", "min"):
        values.append(scan(kind, load("in0", [flat], dtype), r.symbol, reverse=reverse, output=1))
        outs.append(arg("out1", DType.I64, rows * length))
    else:
        values[0] = op("add", values[0], values[0])
    pieces = -(-length // piece)
    words = count_words(list_scans(values))
    return Kernel(
        name="running",
        ranges=(x, r),
        args=(arg("in0", dtype, rows * length), arg("io0", DType.I64, 1 + rows * pieces * words), *outs),
        stores=tuple(
            Store(buffer=out.name, index=flat, value=value) for out, value in zip(outs, values, strict=True)
        ),
        workspace="io0",
    )
