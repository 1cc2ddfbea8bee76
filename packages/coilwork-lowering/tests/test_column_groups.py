"""Atomic updates of large tables on a GPU: the same columns of all rows together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.index import as_int
from coilwork_ir.loops import Scatter
from coilwork_ir.loops.interpret import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import lower
from coilwork_lowering.ops import column_groups


def largest(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(0, index, source, "amax")


def ranges(rows: int, columns: int, device: str, dtype: torch.dtype = torch.float32) -> list[int]:
    """Extents of the scatter of as many elements as the table has."""
    with FakeTensorMode():
        x = torch.empty(rows, columns, device=device, dtype=dtype)
        index = torch.empty(rows, columns, device=device, dtype=torch.int64)
        gm = make_fx(largest)(x, index, x)
    graph = lower(gm, name="graph").graph
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


def test_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_groups, "_STAYS", 1024)
    monkeypatch.setattr(column_groups, "_TOGETHER", 1024)
    with FakeTensorMode():
        x, source = (torch.empty(16, 32, device="cuda") for _ in range(2))
        index = torch.empty(16, 32, device="cuda", dtype=torch.int64)
        gm = make_fx(largest)(x, index, source)
    graph = lower(gm, name="graph").graph
    (scatter,) = (node for node in graph.nodes if isinstance(node, Scatter))
    assert [as_int(r.extent) for r in scatter.ranges if r.extent is not None] == [2, 16, 16]
    x, source = torch.randn(16, 32), torch.randn(16, 32)
    index = torch.randint(16, (16, 32))
    assert torch.equal(interpret_graph(graph, [x, index, source])[0], largest(x, index, source))
