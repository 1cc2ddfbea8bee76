"""Where AOTAutograd's wrapper has nothing to do, Dynamo's code calls the compiled graph itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from coilwork.backend import backend as coilwork_backend
from coilwork_runtime import LayoutError

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


def compile_and_note(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[str]]:
    """The compiled function, and a list that gets the type of the callable for each of its graphs."""
    torch._dynamo.reset()
    kinds: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        made = coilwork_backend(gm, example_inputs, options={"strict": True})
        kinds.append(type(made).__name__)
        return made

    compiled: Callable[..., Any] = torch.compile(function, backend=backend, **options)
    return compiled, kinds


def scaled(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def view_of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.view(-1)


def overwriting(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def test_a_plain_graph() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert kinds == ["Program"]


def test_subclasses_are_taken_apart_and_put_together() -> None:
    """As inputs, and as results that are made of plain ones: the compiled graph sees their parts alone."""
    pair = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    compiled, kinds = compile_and_note(scaled)
    torch.testing.assert_close(compiled(pair).b, scaled(pair.b))

    compiled, more = compile_and_note(lambda a, b: TwoTensor(a * 2, b))
    found = compiled(pair.a, pair.b)
    assert isinstance(found, TwoTensor)
    torch.testing.assert_close(found.a, pair.a * 2)
    assert kinds == more == ["function"]


@pytest.mark.parametrize("function", [view_of_an_input, overwriting])
def test_what_the_wrapper_is_needed_for(function: Callable[..., Any]) -> None:
    compiled, kinds = compile_and_note(function)
    ours, theirs = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(compiled(ours), function(theirs))
    torch.testing.assert_close(ours, theirs)
    assert "Program" not in kinds


def test_sizes_that_change_go_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(scaled, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), scaled(x))
    assert kinds == ["function"]


def test_training_goes_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.randn(3, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 / torch.cosh(x.detach()) ** 2)
    assert kinds == ["function"]


def test_inputs_that_ask_for_gradients_where_none_are_recorded() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.nn.Parameter(torch.randn(3))
    with torch.no_grad():
        result = compiled(x)
    assert not result.requires_grad and kinds == ["Program"]
    assert torch.is_grad_enabled()


def test_autocast_goes_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(lambda x: x @ x)
    x = torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype is torch.bfloat16
    assert kinds == ["function"]


def test_one_tensor_given_twice() -> None:
    compiled, _ = compile_and_note(lambda x, y: x * 2 + y)
    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(compiled(x, x), x * 3)
    torch.testing.assert_close(compiled(x, y), x * 2 + y)


def test_a_wrong_input_is_refused_with_the_instruction() -> None:
    graphs: list[Callable[..., Any]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(coilwork_backend(gm, example_inputs, options={"strict": True}))
        return graphs[-1]

    torch._dynamo.reset()
    torch.compile(scaled, backend=backend)(torch.randn(3))
    with pytest.raises(LayoutError):
        graphs[0](torch.randn(4))
    with pytest.raises(ValueError, match="not enough values"):
        graphs[0]()
    torch.testing.assert_close(graphs[0](torch.zeros(3))[0], torch.zeros(3))
