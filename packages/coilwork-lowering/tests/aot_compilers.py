"""Functions of a graph and inputs as compilers that AOTAutograd takes, and results known to be tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from torch import Tensor, fx
from torch._functorch._aot_autograd.schemas import AOTDispatchCompiler

TracingMode = Literal["real", "fake", "symbolic"]


def compiler_of(
    function: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]],
) -> AOTDispatchCompiler:
    """Return `function` with the names of arguments by which AOTAutograd may call it."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return function(gm, example_inputs)

    return compile_graph


def tensors_of(results: Iterable[object]) -> list[Tensor]:
    """Return `results`, of which each must be a tensor."""
    found = []
    for result in results:
        assert isinstance(result, Tensor), result
        found.append(result)
    return found
