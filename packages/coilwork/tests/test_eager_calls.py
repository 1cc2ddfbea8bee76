"""Calls that torch's tracing gets wrong run in eager mode, and what is around them is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning, CompileError
from coilwork_frontend.capture.eager_calls import compile_around

Program = Callable[[Tensor], Sequence[Tensor]]


def one_write(x: Tensor) -> Sequence[Tensor]:
    y = x * 2
    x[0].add_(1.0)
    return y + x * 2, x.t()


def several_writes(x: Tensor) -> Sequence[Tensor]:
    """Views that are made before a write and used behind it, and parts of lists."""
    first, second = (x * 3).unbind(0)[:2]
    row = x[1]
    row.add_(second)
    x[0, 1:].sub_((x * 0.5)[0, 1:])
    return first + row, row, (x * 7) + second


def sizes_around(x: Tensor) -> Sequence[Tensor]:
    count, columns = x.shape
    x[0].add_(count)
    x[-1, :1] = columns
    return (x.sum() + count,)


def without_gradients(x: Tensor) -> Sequence[Tensor]:
    y = x.exp()
    with torch.no_grad():
        z = x * 3
        z.add_(y)
    x[1].mul_(2)
    with torch.no_grad():
        return z, (x + z).sin()


def expanded(rows: int, *, gradients: bool) -> tuple[Tensor, Tensor]:
    leaf = torch.arange(8.0).requires_grad_(gradients)
    return leaf, (leaf * 1)[1:4].expand(rows, 3)


def outcome(program: Program, rows: int, *, gradients: bool) -> list[Tensor]:
    """Results, the input, and what the leaf gains."""
    leaf, x = expanded(rows, gradients=gradients)
    results = list(program(x))
    wanted = [y for y in results if y.requires_grad]
    if wanted:
        torch.autograd.backward([y.sin().sum() for y in wanted])
        assert leaf.grad is not None
        results.append(leaf.grad)
    return [*results, x]


@pytest.mark.parametrize("dynamic", [None, True], ids=["closed", "open"])
@pytest.mark.parametrize("program", [one_write, several_writes, sizes_around, without_gradients])
def test_as_eager_around_writes_to_repeated_elements(program: Program, dynamic: bool | None) -> None:
    graphs: list[fx.GraphModule] = []

    def counted(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return backend(gm, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=counted, dynamic=dynamic, fullgraph=True)
    said: list[str] = []
    for rows, gradients in ((2, True), (3, True), (3, False), (4, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = outcome(compiled, rows, gradients=gradients)
        said += [str(w.message) for w in caught if issubclass(w.category, CoilworkFallbackWarning)]
        for one, other in zip(found, outcome(program, rows, gradients=gradients), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
            assert one.requires_grad == other.requires_grad
    # of a graph that is compiled again as well
    assert 1 <= len(said) <= len(graphs)
    assert all("in eager mode, and the graph is compiled in parts" in text for text in said)


def test_what_is_around_is_compiled() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin() * 2
        y.t().sub_(3)
        return y.cos() + x

    captured: list[fx.GraphModule] = []

    def capture(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        captured.append(gm)
        return gm.forward

    torch._dynamo.reset()
    x = torch.rand(3, 4)
    torch.compile(program, backend=capture)(x)
    parts: list[list[str]] = []

    def compiler(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        parts.append([str(node.target) for node in gm.graph.nodes if node.op == "call_method"])
        return gm.forward

    (graph,) = captured
    error = CompileError("a-code", "no", reason="none", remedy="nothing")
    with pytest.warns(CoilworkFallbackWarning, match="sub_ runs in eager mode.*a-code"):
        call = compile_around(graph, {"sub_"}, error, compiler)
    (found,) = call(x)
    torch.testing.assert_close(found, program(x))
    assert parts == [["sin", "t"], ["cos"]]
