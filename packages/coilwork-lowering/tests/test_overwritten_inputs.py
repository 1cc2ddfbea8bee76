"""Buffers that a forward overwrites: the backward computes with the values that the forward computed with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kept_halves import KeptHalves
from torch import Tensor, nn

Step = Callable[["Scaled", Tensor], Tensor]


class Scaled(nn.Module):
    state: Tensor
    count: Tensor

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("state", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


def counted(module: Scaled, x: Tensor) -> Tensor:
    module.count += 1
    found: Tensor = x * module.weight * module.count
    return found


def read_before(module: Scaled, x: Tensor) -> Tensor:
    found = module.weight * module.state.clone()
    module.state.add_(x[0])
    return found


def read_before_and_after(module: Scaled, x: Tensor) -> Tensor:
    found = module.weight * module.state.sin()
    module.state.mul_(3)
    return found * module.state.view(1, 3) * x


def replaced(module: Scaled, x: Tensor) -> Tensor:
    module.state.copy_(module.state * 2 + x[1])
    return (module.weight * module.state).sin()


def normalized(module: Scaled, x: Tensor) -> Tensor:
    found: Tensor = module.norm(x * module.weight)
    return found


def graphs_of(module: Scaled, x: Tensor) -> tuple[list[torch.fx.GraphModule], Callable[[Tensor], Tensor]]:
    backend = KeptHalves(keep_inference_input_mutations=True)
    torch._dynamo.reset()
    return backend.graphs, torch.compile(module, backend=backend)


@pytest.mark.parametrize("step", [counted, read_before, read_before_and_after, replaced, normalized])
def test_gradients_of_overwritten_buffers_are_those_of_eager(step: Step) -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)
    ours, eager = Scaled(step), Scaled(step)
    _, compiled = graphs_of(ours, x)
    for _ in range(2):
        for run, module in ((compiled, ours), (eager, eager)):
            module.zero_grad()
            run(x).square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_buffers_that_only_the_forward_reads_are_not_copied() -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)
    module = Scaled(normalized)
    graphs, compiled = graphs_of(module, x)
    compiled(x).sum().backward()
    assert not any("clone" in str(node.target) for gm in graphs for node in gm.graph.nodes)
