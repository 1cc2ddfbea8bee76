"""Scans share kernels with what is pointwise around them, and those of few long rows are done in pieces on a
GPU.
"""

from __future__ import annotations

import pytest
import torch
from declared import GRIDS, schedule
from scan_graphs import EAGER, H200, SHORT_ROWS, scanned

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels import KernelCall
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.ops import ScanKind
from coilwork_ir.target import Target, get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.splitting.split_scans import choose_column_piece_length, choose_piece_length

IN_PIECES = ScheduleOptions(single_pass=False)


def kernels(
    graph: Graph,
    device: Target,
    options: ScheduleOptions = IN_PIECES,
    kept_bytes: int | None = SHORT_ROWS,
) -> int:
    """How many kernels `graph` takes, after a comparison of what they compute."""
    seen: list[Graph] = []
    made = schedule(graph, device, options, kept_bytes=kept_bytes, observe=lambda _, g: seen.append(g))
    for each in seen:
        verify_graph(each)
    verify_schedule(made)
    (source,) = graph.inputs
    assert isinstance(source, Buffer)
    shape = tuple(n.value for n in source.shape)
    x = (torch.randint(-4, 5, shape) / 8).bfloat16()
    wanted, found = interpret_graph(graph, [x]), interpret_schedule(made, [x])
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    return sum(isinstance(step, KernelCall) for step in made.steps)


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx2"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_is_pointwise_around_a_scan_shares_its_kernel(device: str, axis: int) -> None:
    assert kernels(scanned("sum", (3, 5, 7), axis), get_target(device)) == 1
    assert kernels(scanned("max", (3, 5, 7), axis, positions=True), get_target(device)) == 1


@pytest.mark.parametrize("kind", ["sum", "min", "max", "logcumsumexp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_few_long_rows_are_scanned_in_pieces(kind: ScanKind, reverse: bool) -> None:
    # pieces, their prefixes, and what follows from both, rounding included
    assert kernels(scanned(kind, (2, 6000), 1, reverse=reverse), EAGER) == 3
    assert kernels(scanned(kind, (6000,), 0, reverse=reverse), EAGER) == 3


@pytest.mark.parametrize("kind", ["sum", "min", "max", "logcumsumexp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_few_long_columns_are_scanned_in_pieces(kind: ScanKind, reverse: bool) -> None:
    assert kernels(scanned(kind, (4800, 64), 0, reverse=reverse), EAGER) == 3
    assert kernels(scanned(kind, (2, 4800, 40), 1, reverse=reverse), EAGER) == 3


@pytest.mark.parametrize("kind", ["sum", "logcumsumexp"])
def test_pieces_may_be_of_unequal_length(kind: ScanKind) -> None:
    # a prime number of points: pieces and the whole have no common space
    assert kernels(scanned(kind, (2, 8209), 1), EAGER) > 3


def test_what_stays_one_kernel() -> None:
    # many rows, rows and columns that fit on chip, columns without pieces, positions, CPUs, and not worth it
    assert kernels(scanned("sum", (300, 1200), 1), H200) == 1
    assert kernels(scanned("sum", (2, 6000), 1), EAGER, ScheduleOptions(), None) == 1
    assert kernels(scanned("sum", (512, 64), 0), EAGER) == 1
    assert kernels(scanned("sum", (4801, 64), 0), EAGER) == 1
    assert kernels(scanned("max", (4800, 64), 0, positions=True), EAGER) == 1
    assert kernels(scanned("max", (2, 6000), 1, positions=True), EAGER) == 1
    assert kernels(scanned("sum", (2, 6000), 1), get_target("x86-64-avx2")) == 1
    assert kernels(scanned("sum", (2, 6000), 1), H200) == 1
    # a piece's product, taken in any order, may leave the range
    assert kernels(scanned("prod", (2, 6000), 1), EAGER) == 1
    assert kernels(scanned("prod", (4800, 64), 0), EAGER) == 1


def test_pieces_fill_their_blocks() -> None:
    assert choose_piece_length(4_000_000, H200) == 8000
    assert choose_piece_length(262_144, H200) == 8192
    assert choose_piece_length(8209, H200) == 8192
    assert choose_piece_length(8192 * 20000, H200) is None


def test_pieces_of_columns_stay_in_registers_and_fill_the_device() -> None:
    assert choose_column_piece_length(65536, 512, H200, GRIDS.rows) == 256
    assert choose_column_piece_length(65536, 2048, H200, GRIDS.rows) == 512
    assert choose_column_piece_length(4096, 1024, H200, GRIDS.rows) == 128
    assert choose_column_piece_length(512, 16, H200, GRIDS.rows) is None
    assert choose_column_piece_length(4099, 1024, H200, GRIDS.rows) is None


@pytest.mark.parametrize(
    ("rows", "columns", "pieces"), [(8192, 8192, 0), (65536, 2048, 0), (65536, 256, 512)]
)
def test_columns_are_cut_where_few_programs_would_scan_them(rows: int, columns: int, pieces: int) -> None:
    found = [
        d for d in schedule(scanned("sum", (rows, columns), 0), H200).decisions if d.rule == "split-scan"
    ]
    assert [dict(d.numbers)["pieces"] for d in found if d.accepted] == ([pieces] if pieces else [])


def test_decisions_say_why() -> None:
    graph = scanned("sum", (8, 4_000_000), 1)
    (found,) = [
        d
        for d in schedule(graph, H200, ScheduleOptions(single_pass=False)).decisions
        if d.rule == "split-scan"
    ]
    assert found.accepted and dict(found.numbers)["pieces"] == 500
