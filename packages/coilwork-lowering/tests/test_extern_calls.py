"""Calls of operators without a lowering."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor

from coilwork_ir.buffers import Item
from coilwork_ir.loops import Extern
from coilwork_lowering import LoweringError, lower

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two floats": lambda x, y: torch.histc(x, 5, -y.item(), 2 * y.item()),
    "a keyword": lambda x, y: torch.baddbmm(x, x, x, beta=y.item(), alpha=y.item() - 1),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_from_data_are_arguments(name: str) -> None:
    recorder = Recorder()
    compiled = torch.compile(FUNCTIONS[name], backend=recorder, fullgraph=True)
    for number in (1.5, 0.25):
        x, y = torch.randn(2, 3, 3), torch.tensor(number)
        torch.testing.assert_close(compiled(x, y), FUNCTIONS[name](x, y))
    (lowered,) = recorder.lowered
    (call,) = [node for node in lowered.graph.nodes if isinstance(node, Extern)]
    given = [*call.args, *(value for _, value in call.kwargs)]
    assert sum(isinstance(value, Item) for value in given) == 2


def test_tensors_without_strides_are_refused() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x,))
    (given,) = gm.graph.find_nodes(op="placeholder")
    given.meta["val"] = torch.eye(3).to_sparse()
    with pytest.raises(LoweringError, match=r"\[layout\].*torch.sparse_coo"):
        lower(gm, name="graph")


PARTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "select_scatter": lambda x, dim: torch.select_scatter(x, x[0], dim, 0),
    "slice_scatter": lambda x, dim: torch.slice_scatter(x, x[:1], dim, 0, 1),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dim", [2, -3])
def test_dimensions_that_are_not_there_are_for_aten_to_refuse(name: str, dim: int) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(IndexError):
        PARTS[name](x, dim)
    recorder = Recorder()
    with pytest.raises(IndexError):
        torch.compile(lambda x: PARTS[name](x, dim), backend=recorder, fullgraph=True)(x)
    (lowered,) = recorder.lowered
    assert [node.target for node in lowered.graph.nodes if isinstance(node, Extern)] == [
        f"aten.{name}.default"
    ]


@pytest.mark.parametrize("position", [2, 300, -3])
@pytest.mark.parametrize("prepare", [lambda x: x, lambda x: x * 2], ids=["an input", "a result"])
def test_rows_that_are_not_there_are_for_aten_to_refuse(
    position: int, prepare: Callable[[Tensor], Tensor]
) -> None:
    x, row = torch.ones(2, 3), torch.zeros(3)
    with pytest.raises(IndexError):
        torch.select_scatter(x, row, 0, position)
    compiled = torch.compile(
        lambda x, row: torch.select_scatter(prepare(x), row, 0, position), backend=Recorder(), fullgraph=True
    )
    with pytest.raises(IndexError):
        compiled(x, row)
