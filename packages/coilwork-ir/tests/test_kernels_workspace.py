"""Kernels whose programs share rows: how much they tell each other, and that it changes nothing of what they
mean.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.kernels.workspace import (
    compute_piece_length,
    count_workspace_elements,
    find_piece_length,
    scan_words,
)
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.ops import ScanKind

SHARED = """
kernel @running fast {
  range x0: `3` parallel
  range r0: `40` reduction
  arg in0: f64 in span `120`
  arg io0: i64 inout span `46`
  arg out0: f64 out span `120`
  arg out1: i64 out span `120`
  workspace io0
  body {
    t0 = load %in0[40*x0 + r0] : f64
    t1 = scan max 0 (t0) along r0
    t2 = scan max 1 (t0) along r0
    store %out0[40*x0 + r0] = t1
    store %out1[40*x0 + r0] = t2
  }
}
"""


def test_a_shared_scan_means_what_it_would_alone() -> None:
    kernel = parse_kernel(SHARED)
    verify_kernel(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel
    x, out, at = torch.randn(3, 40, dtype=torch.float64), torch.zeros(120).double(), torch.zeros(120).long()
    told = torch.zeros(46, dtype=torch.int64)
    interpret_kernel(kernel, {"in0": x.view(-1), "io0": told, "out0": out, "out1": at}, ())
    wanted = x.cummax(1)
    assert out.view(3, 40).equal(wanted.values) and at.view(3, 40).equal(wanted.indices)


def test_a_workspace_holds_a_counter_and_a_word_for_32_bits_of_every_piece() -> None:
    kernel = parse_kernel(SHARED)
    # values in two words, positions in one; both results are of one scan
    assert count_workspace_elements(kernel, 8).value == 1 + 3 * 5 * 3


def test_pieces_are_as_short_as_the_workspace_has_room_for() -> None:
    kernel = parse_kernel(SHARED)
    assert find_piece_length(kernel) == 8
    for points in (2, 3, 5, 40, 100, 1000):
        for pieces in range(2, 9):
            length = compute_piece_length(points, pieces)
            rows = parse_kernel(SHARED.replace("`40`", f"`{points}`").replace("40*", f"{points}*"))
            span = count_workspace_elements(rows, length)
            args = tuple(replace(a, span=span) if a.name == "io0" else a for a in rows.args)
            assert find_piece_length(replace(rows, args=args)) == length
    assert find_piece_length(parse_kernel(SHARED.replace("`46`", "`10`"))) is None
    assert find_piece_length(replace(kernel, workspace="")) is None
    verify_kernel(parse_kernel(SHARED.replace("`46`", "`10`")))


@pytest.mark.parametrize(
    ("kind", "dtype", "words"),
    [
        ("sum", DType.F32, 1),
        ("sum", DType.I64, 2),
        ("prod", DType.F16, 1),
        ("logcumsumexp", DType.F32, 2),
        ("logcumsumexp", DType.F64, 4),
        ("max", DType.I8, 2),
        ("min", DType.F64, 3),
    ],
)
def test_words_of_what_is_carried(kind: ScanKind, dtype: DType, words: int) -> None:
    assert scan_words(kind, dtype) == words


def test_advice_to_share_rows_stays_in_the_text() -> None:
    graph = parse_graph(
        "graph @g { input %x: f32[8] (%s: f32[8]) = scan sum [i0: 8] along i0 reverse split 4 "
        "{ t0 = load %x[i0] : f32 yield t0 } return (%s) }"
    )
    assert "along i0 reverse split 4 {" in format_graph(graph) and parse_graph(format_graph(graph)) == graph
