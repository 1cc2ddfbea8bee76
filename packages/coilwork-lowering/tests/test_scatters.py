"""Atomic updates of large tables on a GPU: the same columns of all rows together."""

from __future__ import annotations

import pytest
import torch
from aot_compilers import tensors_of
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.index import as_int
from coilwork_ir.loops import Scatter
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import get_target
from coilwork_lowering import LoweringOptions, lower


def largest(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(0, index, source, "amax")


def ranges(
    rows: int,
    columns: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    options: LoweringOptions = LoweringOptions(),  # noqa: B008
) -> list[int]:
    """Extents of the scatter of as many elements as the table has."""
    with FakeTensorMode():
        x = torch.empty(rows, columns, device=device, dtype=dtype)
        index = torch.empty(rows, columns, device=device, dtype=torch.int64)
        gm = make_fx(largest)(x, index, x)
    graph = lower(gm, name="graph", options=options).graph
    verify_graph(graph)
    (scatter,) = (node for node in graph.nodes if isinstance(node, Scatter))
    found = [as_int(r.extent) for r in scatter.ranges if r.extent is not None]
    assert None not in found
    return [size for size in found if size is not None]


def test_columns_of_a_table_that_no_cache_holds_are_updated_in_groups() -> None:
    assert ranges(65536, 256, "cuda") == [8, 65536, 32]
    # whole sectors of memory, which share the columns evenly
    assert ranges(65536, 240, "cuda") == [10, 65536, 24]
    assert ranges(65536, 128, "cuda", torch.int64) == [8, 65536, 16]


@pytest.mark.parametrize(
    ("rows", "columns", "device"),
    [
        # a table that a cache holds
        (4096, 256, "cuda"),
        # no sectors share the columns evenly
        (65536, 250, "cuda"),
        # a sector of each row is too much as well
        (4_000_000, 64, "cuda"),
        (65536, 256, "cpu"),
    ],
)
def test_others_are_updated_as_they_lie(rows: int, columns: int, device: str) -> None:
    assert ranges(rows, columns, device) == [rows, columns]


def test_a_smaller_cache_holds_fewer_columns() -> None:
    a100 = LoweringOptions(resident_bytes=get_target("sm_80").resident_bytes)
    assert ranges(65536, 256, "cuda", options=a100) == [16, 65536, 16]
    # 20 MiB: of them an H200 holds all
    assert ranges(20480, 256, "cuda", options=a100) == [4, 20480, 64]
    assert ranges(20480, 256, "cuda") == [20480, 256]


def test_cutting_a_scatter_changes_no_numbers() -> None:
    with FakeTensorMode():
        x, source = (torch.empty(16, 32, device="cuda") for _ in range(2))
        index = torch.empty(16, 32, device="cuda", dtype=torch.int64)
        gm = make_fx(largest)(x, index, source)
    graph = lower(gm, name="graph", options=LoweringOptions(resident_bytes=1536)).graph
    (scatter,) = (node for node in graph.nodes if isinstance(node, Scatter))
    assert [as_int(r.extent) for r in scatter.ranges if r.extent is not None] == [4, 16, 8]
    x, source = torch.randn(16, 32), torch.randn(16, 32)
    index = torch.randint(16, (16, 32))
    (found,) = tensors_of(interpret_graph(graph, [x, index, source]))
    assert torch.equal(found, largest(x, index, source))
