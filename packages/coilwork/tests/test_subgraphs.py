"""Models whose layers are nested compile regions, beside eager."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops import foreach_map

from coilwork.backend import backend
from coilwork_frontend.capture.subgraphs import inline_subgraphs

STRICT = {"strict": True}


class Layer(nn.Module):
    """Updates buffers while it trains, and calls another region."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 6)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return x + gated(self.linear(self.norm(x)))


@torch.compiler.nested_compile_region
def gated(x: Tensor) -> Tensor:
    return x.relu() * x.sigmoid()


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [True, False])
def test_layers_as_subgraphs_are_those_of_eager(training: bool) -> None:
    torch.manual_seed(0)
    expected_of = nn.Sequential(*(Layer() for _ in range(3))).train(training)
    model = copy.deepcopy(expected_of)
    compiled = torch.compile(model, backend=backend, options=STRICT, fullgraph=True)
    for rows in (4, 4, 5):
        x = torch.randn(rows, 6)
        found, expected = compiled(x), expected_of(x)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    for mine, theirs in zip(model.parameters(), expected_of.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(dict(model.named_buffers()), dict(expected_of.named_buffers()))


@torch.compiler.nested_compile_region
def places(x: Tensor) -> Tensor:
    return torch.nonzero(x).sin()


@pytest.mark.parametrize("trains", [True, False])
def test_sizes_from_data_in_a_region_called_twice(trains: bool) -> None:
    """Both calls have one symbol for their sizes, be these equal or not."""

    def calls(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return places(x) + places(x), places(y), (x * y).sum()

    x, y = torch.randn(8, requires_grad=trains), torch.eye(3)[1:].reshape(-1).repeat(2)[:8]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(calls, backend=backend, options=STRICT, fullgraph=True)
        torch.testing.assert_close(compiled(x, y), calls(x, y))


def test_results_of_every_kind() -> None:
    """A constant, the same result twice, and control flow in a region."""

    @torch.compiler.nested_compile_region
    def region(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.cond(x.sum() > 0, lambda a: gated(a), lambda a: a.cos(), (x,))
        return z, z, y + z + torch.tensor([1.0, 2.0, 3.0])

    def function(x: Tensor) -> tuple[Tensor, ...]:
        a, b, c = region(x, x * 2)
        d, *_ = region(-x, c)
        return a, b, c, d

    x = torch.rand(4, 3)
    found = torch.compile(function, backend=backend, options=STRICT)(x)
    torch.testing.assert_close(found, function(x))


def test_nothing_is_called_any_more() -> None:
    seen: list[str] = []

    def count(gm: fx.GraphModule, _: object) -> fx.GraphModule:
        inline_subgraphs(gm)
        seen.extend(str(node.target) for node in gm.graph.nodes)
        return gm

    model = nn.Sequential(Layer(), Layer()).eval()
    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(model, backend=count)(x), model(x))
    assert seen and not any("subgraph" in target for target in seen)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_function_does_to_lists_of_tensors(dynamic: bool) -> None:
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return x.sigmoid() * y + 2

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        first = foreach_map(scaled, given[:2], given[2:])
        return (*foreach_map(torch.add, first, given[:2]), first[0])

    def one_by_one(*given: Tensor) -> tuple[Tensor, ...]:
        first = [scaled(x, y) for x, y in zip(given[:2], given[2:], strict=True)]
        return (*(x + y for x, y in zip(first, given[:2], strict=True)), first[0])

    given = [torch.randn(*shape, requires_grad=True) for shape in ((3, 4), (5,), (3, 4), (5,))]
    compiled = torch.compile(function, backend=backend, options=STRICT, fullgraph=True, dynamic=dynamic)
    found, expected = compiled(*given), one_by_one(*given)
    torch.testing.assert_close(found, expected)
    ones = [torch.ones_like(value) for value in found]
    torch.testing.assert_close(
        torch.autograd.grad(found, given, ones), torch.autograd.grad(expected, given, ones)
    )
