"""The workspace of a look-back scan, and the kernel that fills it with zeros.

Programs that share a row write the state of their pieces there for the programs behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_int, multiply_all, symbol
from coilwork_ir.kernels import Kernel, KernelCall, TensorArg
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.workspace import compute_piece_length, count_workspace_elements
from coilwork_ir.loops import Pointwise
from coilwork_ir.scalar import const
from coilwork_ir.target import Target
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.fusion_group import group_of, make_stage
from coilwork_scheduler.kernels.canonical import canonicalize
from coilwork_scheduler.kernels.compose import compose
from coilwork_scheduler.kernels.tile import tile


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCalls:
    """A call of a kernel whose programs share rows, after one that fills its workspace.

    `buffers` are the workspace before and after.
    """

    fill: tuple[Kernel, KernelCall]
    scan: tuple[Kernel, KernelCall]
    buffers: tuple[Buffer, Buffer]


def add_workspace(
    kernel: Kernel,
    call: KernelCall,
    *,
    pieces: int,
    device: str,
    target: Target,
    sizes: SizeHints,
    fresh: FreshNames,
) -> WorkspaceCalls:
    """`call` of `kernel`, with a workspace on `device` for programs that share rows in `pieces` of them.

    `target` describes the device, `fresh` knows the names of all buffers.
    """
    points = as_int(multiply_all(r.extent for r in kernel.ranges if r.kind == "reduction"))
    assert points is not None, "rows that are shared are of known length"
    count = count_workspace_elements(kernel, compute_piece_length(points, pieces))
    before, after = (
        Buffer(
            name=fresh.close_to(f"{call.args[-1]}_{suffix}"),
            dtype=DType.I64,
            shape=(count,),
            strides=make_contiguous_strides((count,)),
            device=device,
        )
        for suffix in ("zeros", "told")
    )
    names = {arg.name for arg in kernel.args}
    name = next(f"io{k}" for k in range(len(names) + 1) if f"io{k}" not in names)
    # among what is read and written, behind what is only read
    place = sum(arg.role != "out" for arg in kernel.args)
    argument = TensorArg(name=name, dtype=DType.I64, role="inout", span=count, aligned=True)
    shared = replace(
        kernel,
        args=(*kernel.args[:place], argument, *kernel.args[place:]),
        workspace=name,
    )
    call = replace(
        call,
        args=(*call.args[:place], after.name, *call.args[place:]),
        into=(*call.into, (after.name, before.name)),
    )
    return WorkspaceCalls(
        fill=_make_fill(before, target, sizes, kernel.numerics, call),
        scan=(shared, call),
        buffers=(before, after),
    )


def _make_fill(
    buffer: Buffer, target: Target, sizes: SizeHints, numerics: Numerics, call: KernelCall
) -> tuple[Kernel, KernelCall]:
    position = symbol("i", extent=buffer.shape[0])
    node = Pointwise(output=buffer, ranges=(position,), body=const(0, DType.I64), origins=call.origins)
    buffers = {buffer.name: buffer}
    draft = compose(group_of(make_stage(0, node)), {buffer.name}, buffers, numerics)
    tiling = tile(draft, buffers, sizes, target)
    return canonicalize(draft, tiling, buffers, aligned=frozenset(buffers), numerics=numerics)
