"""Process groups that are objects: their names in programs, a graph for each, and none of them in
the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

ops: Any = torch.ops._c10d_functional
TAKES_OBJECTS = any("Any group_name" in str(schema) for schema in torch._C._jit_get_all_schemas())

pytestmark = pytest.mark.skipif(not TAKES_OBJECTS, reason="collectives of this torch take names alone")


@pytest.fixture(scope="module")
def groups() -> Iterator[tuple[Any, Any]]:
    """Two groups of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD, dist.new_group([0])
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def summed(x: Tensor, group: Any, y: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x.sin(), "sum", group)) + y


@pytest.mark.parametrize("options", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}])
def test_each_group_has_its_graph(groups: tuple[Any, Any], options: dict[str, Any]) -> None:
    compiled = torch.compile(
        summed, backend="coilwork", fullgraph=True, options={"strict": True, "cache": False, **options}
    )
    x, y = torch.ones(3), torch.arange(3.0)
    torch._dynamo.utils.counters.clear()
    for group in (*groups, *groups):
        torch.testing.assert_close(compiled(x, group, y), x.sin() + y)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_a_group_of_a_closure_and_gradients(groups: tuple[Any, Any]) -> None:
    def function(x: Tensor) -> Tensor:
        g = ops.all_gather_into_tensor(x * 2, 1, groups[1])
        return (ops.wait_tensor(g) * x).sum()

    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(function, backend="coilwork", fullgraph=True, options={"strict": True})
    (expected,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected)


def test_open_sizes_beside_a_group(groups: tuple[Any, Any]) -> None:
    compiled = torch.compile(
        summed, backend="coilwork", fullgraph=True, dynamic=True, options={"strict": True}
    )
    for size in (3, 5):
        x, y = torch.ones(size), torch.arange(float(size))
        torch.testing.assert_close(compiled(x, groups[0], y), x.sin() + y)
