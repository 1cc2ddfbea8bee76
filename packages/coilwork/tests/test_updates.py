"""Inputs that are overwritten: which may be taken to be aligned, and what happens to one that is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import backend
from coilwork_frontend.calling_convention.input_memory import (
    list_aligned_updates,
    make_update_roles,
    name_inputs,
)
from coilwork_ir.calling_convention import CallingConvention
from coilwork_lowering import lower
from coilwork_runtime import bind_roles


def updates(function: Callable[..., object], *inputs: torch.Tensor, on_cpu: bool = True) -> tuple[int, ...]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    found = list_aligned_updates(gm, on_cpu=on_cpu)
    assert len(name_inputs(lower(gm, name="g").graph, found)) == len(found)
    return found


def step(param: torch.Tensor, grad: torch.Tensor) -> tuple[()]:
    new = torch.ops.aten.add.Tensor(param, grad)
    torch.ops.aten.copy_.default(param, new)
    return ()


def test_parameters_of_a_step() -> None:
    param, grad = torch.zeros(16), torch.zeros(16)
    assert updates(step, param, grad) == (0,)
    assert updates(step, param, grad, on_cpu=False) == ()


def test_single_elements_and_offsets_gain_nothing() -> None:
    assert updates(step, torch.zeros(()), torch.zeros(())) == ()
    assert updates(step, torch.zeros(1), torch.zeros(1)) == ()
    assert updates(step, torch.zeros(17)[1:], torch.zeros(16)) == ()


def test_memory_that_leaves_by_another_way_stays_what_it_is() -> None:
    def returned(param: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.ops.aten.copy_.default(param, grad + 1),)

    def also_returned(param: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor]:
        step(param, grad)
        return (param,)

    def viewed(param: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor]:
        half = torch.ops.aten.slice.Tensor(param, 0, 0, 8)
        step(param, grad)
        return (half,)

    for function in (returned, also_returned, viewed):
        assert updates(function, torch.zeros(16), torch.zeros(16)) == ()


def aligned(call: Callable[[list[Any]], Sequence[Any]], positions: Sequence[int], takes: int) -> Any:
    roles = CallingConvention(takes=takes, rows=make_update_roles(positions))
    return bind_roles(call, str(roles), {}).call


def test_what_is_not_aligned_goes_through_a_copy() -> None:
    seen: list[int] = []

    def call(args: list[Any]) -> Sequence[Any]:
        seen.extend(value.data_ptr() % 16 for value in args[:2])
        args[0] += 1
        args[1] *= 2
        return (args[0] + args[1],)

    checked = aligned(call, (0, 1), takes=3)
    base = torch.arange(9.0)
    inside, beside = base[1:], torch.ones(8)
    (result,) = checked([inside, beside, 5])
    assert seen == [0, 0]
    assert torch.equal(base, torch.tensor([0.0, *range(2, 10)])) and torch.equal(
        beside, torch.full((8,), 2.0)
    )
    assert torch.equal(result, inside + beside)


@pytest.mark.parametrize("positions", [(), (0,)])
def test_aligned_inputs_are_passed_as_they_are(positions: tuple[int, ...]) -> None:
    value = torch.zeros(8)
    assert aligned(lambda args: args, positions, takes=1)([value])[0] is value


class Counting(torch.nn.Module):
    """Scales by how often it was called, and by a state that it changes thereafter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("state", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        scaled = x * self.weight * self.count * self.state.clone()
        self.state.mul_(3)
        return scaled


def test_gradients_by_buffers_as_they_were() -> None:
    torch._dynamo.reset()
    ours, eager = Counting(), Counting()
    compiled = torch.compile(ours, backend=backend, options={"strict": True})
    x = torch.randn(4, 3)
    for _ in range(2):
        for run, module in ((compiled, ours), (eager, eager)):
            module.zero_grad()
            run(x).sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())
