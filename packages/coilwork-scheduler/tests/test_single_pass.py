"""Few long rows of a scan are shared by programs on a GPU: one kernel reads them once, after one that fills
its workspace.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from declared import DEFAULT, schedule
from known_values import tensors_of
from scan_graphs import EAGER, H200, SHORT_ROWS, scanned

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.kernels.workspace import find_piece_length
from coilwork_ir.loops import Graph, Pointwise, Scan
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.ops import ScanKind
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import load, op
from coilwork_ir.target import Target, get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.memory import plan
from coilwork_scheduler.splitting.split_scans import count_shared_pieces


def planned(
    graph: Graph,
    device: Target = EAGER,
    options: ScheduleOptions = DEFAULT,
    kept_bytes: int | None = SHORT_ROWS,
) -> Schedule:
    """The schedule of `graph`, after a comparison of what all levels compute."""
    seen: list[Graph] = []
    made = schedule(graph, device, options, kept_bytes=kept_bytes, observe=lambda _, g: seen.append(g))
    for each in seen:
        verify_graph(each)
    verify_schedule(made)
    return made


def shares(made: Schedule) -> bool:
    """Whether `made` fills a workspace and scans with it, and does nothing else."""
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    kernels = {kernel.name: kernel for kernel in made.kernels}
    if len(calls) != 2 or len(made.steps) != 2:
        return False
    fill, scan = (kernels[call.kernel] for call in calls)
    ((told, zeros),) = calls[1].into
    named = dict(zip((arg.name for arg in scan.args), calls[1].args, strict=True))
    return (
        calls[0].args == (zeros,)
        and [arg.dtype for arg in fill.args] == [DType.I64]
        and named[scan.workspace] == told
        and find_piece_length(scan) is not None
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max", "logcumsumexp"])
def test_few_long_rows_are_read_once(kind: ScanKind, reverse: bool) -> None:
    for shape, axis in (((2, 6000), 1), ((3, 2, 4099), 2), ((6001,), 0)):
        graph = scanned(kind, shape, axis, reverse=reverse)
        made = planned(graph)
        assert shares(made)
        x = (torch.randint(-4, 5, shape) / 8).bfloat16()
        wanted, found = interpret_graph(graph, [x]), interpret_schedule(made, [x])
        program = plan(made)
        verify_program(program)
        assert parse_schedule(format_schedule(made)) == made
        assert parse_program(format_program(program)) == program
        ran = interpret_program(program, [x])
        for a, b, c in zip(wanted, found, ran, strict=True):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(a, c)


def test_positions_come_with_values() -> None:
    graph = scanned("max", (2, 6000), 1, positions=True)
    made = planned(graph)
    assert shares(made)
    x = torch.randint(-40, 50, (2, 6000)).bfloat16()
    wanted, found = tensors_of(interpret_graph(graph, [x])), tensors_of(interpret_schedule(made, [x]))
    for a, b in zip(wanted, found, strict=True):
        assert a.equal(b)


def test_what_other_ways_are_for() -> None:
    # rows that stay on chip, columns, many rows, one piece, more pieces than a program asks, CPUs, what
    # callers forbid
    assert not shares(planned(scanned("sum", (2, 1000), 1)))
    assert not shares(planned(scanned("sum", (4800, 64), 0)))
    assert not shares(planned(scanned("sum", (3000, 20000), 1), H200))
    assert not shares(planned(scanned("sum", (1, 20_000_000), 1), H200))
    assert not shares(planned(scanned("sum", (2, 6000), 1), get_target("x86-64-avx2")))
    for options in (
        ScheduleOptions(single_pass=False),
        ScheduleOptions(split=False),
        ScheduleOptions(batch_invariant=True),
    ):
        assert not shares(planned(scanned("sum", (2, 6000), 1), EAGER, options))


def test_sizes_that_are_not_known_keep_their_way() -> None:
    rows = symbol("s0", lo=1, hi=8)
    shape = (rows, as_expr(100_000))
    x, out = (
        Buffer(name=name, dtype=DType.F32, shape=shape, strides=make_contiguous_strides(shape), device="cpu")
        for name in ("x", "out")
    )
    ranges = tuple(symbol(f"i{k}", extent=extent) for k, extent in enumerate(shape))
    scan = Scan(outputs=(out,), kind="sum", ranges=ranges, axis=ranges[1], body=load("x", ranges, DType.F32))
    graph = Graph(name="any", symbols=(rows,), inputs=(x,), nodes=(scan,), outputs=(Ref("out"),))
    made = planned(graph, H200, kept_bytes=None)
    assert not any(kernel.workspace for kernel in made.kernels)
    assert any(d.rule == "split-scan" and d.accepted for d in made.decisions)


def test_pieces_fill_the_device_and_stay_in_registers() -> None:
    def pieces(rows: int, length: int, dtype: DType = DType.F32, kind: ScanKind = "sum") -> int | None:
        sizes = (as_expr(rows), as_expr(length))
        out = Buffer(name="y", dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes), device="cpu")
        ranges = tuple(symbol(f"i{k}", extent=extent) for k, extent in enumerate(sizes))
        body = load("x", ranges, dtype)
        return count_shared_pieces(
            Scan(outputs=(out,), kind=kind, ranges=ranges, axis=ranges[1], body=body), H200
        )

    assert pieces(64, 1 << 20) == 128
    assert pieces(64, 1 << 20, DType.F64) == 256
    assert pieces(64, 1 << 20, kind="logcumsumexp") == 256
    assert pieces(1, 1 << 20) == 512
    assert pieces(1, 100_000) == 49
    assert pieces(1, 2000) is None
    assert pieces(1, 1 << 23) == 1024
    assert pieces(1, (1 << 23) + 1) is None


def test_fusion_counts_the_programs_that_share_a_row() -> None:
    # an epilogue that reads as much again is worth it, since a row is not one program's
    shape = (as_expr(1), as_expr(1_000_000))
    x, y, wide, out = (
        Buffer(name=name, dtype=DType.F32, shape=shape, strides=make_contiguous_strides(shape), device="cpu")
        for name in ("x", "y", "wide", "out")
    )
    ranges = tuple(symbol(f"i{k}", extent=extent) for k, extent in enumerate(shape))
    scan = Scan(outputs=(wide,), kind="sum", ranges=ranges, axis=ranges[1], body=load("x", ranges, DType.F32))
    more = op("add", load("y", ranges, DType.F32), load("wide", ranges, DType.F32))
    graph = Graph(
        name="more",
        inputs=(x, y),
        nodes=(scan, Pointwise(output=out, ranges=ranges, body=more)),
        outputs=(Ref("out"), Ref("wide")),
    )
    assert shares(planned(graph, H200, kept_bytes=None))


def test_equal_scans_share_their_kernels_and_have_their_own_workspaces() -> None:
    sizes = (as_expr(2), as_expr(100_000))
    buffers = [
        Buffer(name=name, dtype=DType.F32, shape=sizes, strides=make_contiguous_strides(sizes), device="cpu")
        for name in ("x", "once", "twice")
    ]
    ranges = tuple(symbol(f"i{k}", extent=extent) for k, extent in enumerate(sizes))
    nodes = tuple(
        Scan(outputs=(out,), kind="sum", ranges=ranges, axis=ranges[1], body=load(of.name, ranges, DType.F32))
        for of, out in pairwise(buffers)
    )
    graph = Graph(name="again", inputs=(buffers[0],), nodes=nodes, outputs=(Ref("twice"),))
    made = planned(graph, H200, ScheduleOptions(aligned_inputs=("x",)), None)
    assert len(made.kernels) == 2 and len(made.steps) == 4
    x = torch.randn(2, 100_000, dtype=torch.float64).float()
    (found,) = interpret_schedule(made, [x])
    torch.testing.assert_close(found, x.double().cumsum(1).cumsum(1).float(), rtol=1e-3, atol=1.0)


def test_decisions_say_why() -> None:
    made = planned(scanned("sum", (8, 4_000_000), 1), H200, kept_bytes=None)
    (one,) = [d for d in made.decisions if d.rule == "single-pass"]
    numbers = dict(one.numbers)
    assert one.accepted and numbers["pieces"] == 489
    assert numbers["single_us"] < numbers["split_us"] < numbers["whole_us"]
