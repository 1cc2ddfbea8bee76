"""Values that the backward compares with their own extreme: the minimum cut does not compute them anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from aot_compilers import compiler_of
from torch import Tensor
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified

from coilwork_lowering import decompositions, partition


class Backward:
    """A backend that runs the partitioned graphs as they are, and keeps the names of the backward's
    operators.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def keep(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            calls = [node for node in graph.graph.nodes if node.op == "call_function"]
            self.names = {node.target.__name__.partition(".")[0] for node in calls}
            return make_boxed_func(graph.forward)

        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=compiler_of(lambda graph, _inputs: make_boxed_func(graph.forward)),
            bw_compiler=compiler_of(keep),
            decompositions=decompositions(),
            partition_fn=partition,
        )


def operators_of_backward(function: Callable[[Tensor], Tensor]) -> set[str]:
    torch._dynamo.reset()
    backend = Backward()
    compiled = torch.compile(function, backend=backend)
    x = torch.randn(37, 33, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for call in (function, compiled):
        call(x).sum().backward()
    theirs = torch.autograd.grad(function(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, 2 * theirs)
    return backend.names


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.log(x.abs() + 0.5).amax(0),
        lambda x: torch.log(x.abs() + 0.5).t().amin(1),
        lambda x: torch.log(x.abs() + 0.5).max(),
        lambda x: torch.log(x.abs() + 0.5).norm(float("inf"), 0),
        lambda x: torch.log(x.abs() + 0.5).neg().amax(0, keepdim=True),
    ],
    ids=["amax", "amin-of-view", "max", "norm", "behind-exact"],
)
def test_what_is_compared_with_its_extreme_is_computed_once(function: Callable[[Tensor], Tensor]) -> None:
    assert "log" not in operators_of_backward(function)


def test_sums_of_products_are_computed_once() -> None:
    """Which product becomes one instruction with the sum, a compiler decides anew in each kernel."""
    assert "sin" not in operators_of_backward(lambda x: (x * 1.7 + x.sin() * 0.3).amax(0))


def test_what_is_rounded_in_one_way_only_may_be_computed_again() -> None:
    assert {"eq", "mul"} <= operators_of_backward(lambda x: (x * x).abs().amax(0))


def test_what_is_compared_with_another_extreme_is_as_ever() -> None:
    names = operators_of_backward(lambda x: torch.maximum(torch.tanh(x * 0.5), x.amax(0)))
    assert "tanh" in names
