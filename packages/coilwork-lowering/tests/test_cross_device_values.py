"""What is computed from numbers and sizes alone is computed on the device that reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Extern, Graph, Pointwise
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Const, iterate_postorder
from coilwork_lowering import decompositions, lower

GPU = torch.device("cuda:0")
HALF = torch.tensor(0.5)
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

REMADE: dict[str, Function] = {
    "a number": lambda x, s: x * torch.full((), 2.0),
    "a constant": lambda x, s: x * HALF,
    "an operand of where": lambda x, s: torch.where(x > 0, x, torch.scalar_tensor(-1e9)),
    "a factory, moved": lambda x, s: torch.arange(4).to(GPU) + x,
    "another type and layout": lambda x, s: torch.ones(2, 4).t().to(GPU, torch.float64) + 1,
    "approximated, of numbers": lambda x, s: x * torch.full((), 2.0).exp(),
    "rounded otherwise, of numbers": lambda x, s: x * (torch.full((), 2.0) / torch.full((), 3.0)),
    "a root of a constant": lambda x, s: x / torch.sqrt(HALF * 3),
    "exact arithmetic": lambda x, s: x + (torch.arange(4)[2] * 3 - 1).to(torch.float64).sqrt(),
}
MOVED: dict[str, Function] = {
    "memory": lambda x, s: x * s,
    "made of memory": lambda x, s: x * (s + 1),
    "approximated": lambda x, s: x + (torch.arange(4) / 3).exp().to(GPU),
    "written into": lambda x, s: x + torch.zeros(4).add_(s).to(GPU),
    "written over": lambda x, s: x + torch.zeros(4).fill_(2.0).to(GPU),
    "random numbers": lambda x, s: x + torch.rand(4).to(GPU),
}


def lowered(function: Function) -> tuple[Graph, list[str]]:
    """The graph, and the operators that it calls."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = torch.empty(4, device=GPU), torch.empty(())
        gm = make_fx(function, decomposition_table=decompositions())(*inputs)
    graph = lower(gm, name="graph").graph
    verify_graph(graph)
    return graph, [node.target for node in graph.nodes if isinstance(node, Extern)]


@pytest.mark.parametrize("name", REMADE)
def test_numbers_are_computed_where_they_are_read(name: str) -> None:
    graph, calls = lowered(REMADE[name])
    assert calls == []
    last = graph.nodes[-1]
    assert isinstance(last, Pointwise) and last.output.device == "cuda:0"


@pytest.mark.parametrize(
    ("function", "copies"),
    [
        (lambda x, s: x * s + x.sin() * s - s, 1),
        (lambda x, s: torch.where(x > s, x, s), 1),
        (lambda x, s: x * s + x.sin() * s.add_(1), 2),
        (lambda x, s: x * s.view(()) + x.sin() * s.add_(1).view(()), 2),
    ],
)
def test_memory_is_copied_once_for_all_that_read_it(function: Function, copies: int) -> None:
    _, calls = lowered(function)
    assert calls.count("aten._to_copy.default") == copies


@pytest.mark.parametrize("name", MOVED)
def test_memory_and_what_is_approximated_is_copied(name: str) -> None:
    _, calls = lowered(MOVED[name])
    assert calls.count("aten._to_copy.default") == 1


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x, s: x / torch.sqrt(HALF * 3), (HALF * 3).sqrt()),
        (lambda x, s: x * torch.full((), 2.0).exp(), torch.full((), 2.0).exp()),
        (lambda x, s: x * (torch.full((), 7.0) / 3), torch.full((), 7.0) / 3),
        (lambda x, s: x * HALF.to(torch.bfloat16).rsqrt(), HALF.to(torch.bfloat16).rsqrt()),
    ],
)
def test_numbers_are_those_of_torch(function: Function, number: torch.Tensor) -> None:
    graph, _ = lowered(function)
    there = [n for n in graph.nodes if isinstance(n, Pointwise) and n.output.device == "cuda:0"]
    found = [
        part.value for node in there for part in iterate_postorder((node.body,)) if isinstance(part, Const)
    ]
    assert number.item() in found


def test_what_another_device_computes_is_not_computed_here() -> None:
    _, calls = lowered(lambda x, s: s + torch.full((), 2.0, device=GPU).exp().cpu())
    assert calls.count("aten._to_copy.default") == 1
