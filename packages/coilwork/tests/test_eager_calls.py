"""Calls that torch's tracing gets wrong run in eager mode, and what is around them is compiled."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning, CompileError
from coilwork_frontend.capture.eager_fallback import compile_around

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


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many kernels each ATen graph has that is compiled."""
    found: list[int] = []
    plain = compile_graph.compile_graph

    def counting(*args: Any, **settings: Any) -> Any:
        made = plain(*args, **settings)
        found.append(made.report.kernels)
        return made

    monkeypatch.setattr(sys.modules["coilwork.backend"], "compile_graph", counting)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield found


def run_compiled(program: Callable[..., Any], *given: Any) -> tuple[Any, list[str]]:
    """The results, and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = torch.compile(program, backend="coilwork")(*given)
    return results, [str(w.message) for w in caught if issubclass(w.category, CoilworkFallbackWarning)]


def test_what_is_around_is_compiled_where_dynamo_calls_it(parts: list[int]) -> None:
    x = expanded(3, gradients=True)[1]
    results, said = run_compiled(one_write, x)
    assert len(said) == 1
    assert parts == [1, 1]
    for one, other in zip(results, one_write(expanded(3, gradients=True)[1]), strict=True):
        torch.testing.assert_close(one, other)


def spaced(count: Tensor, x: Tensor) -> Tensor:
    number = count.item()
    y = x.sin() * 2
    return torch.linspace(0, 1, number).cos() * 2 + y


def chunks(count: Tensor, x: Tensor) -> Tensor:
    number = count.item()
    torch._check(number >= 4)
    first, *_ = torch.arange(number).chunk(2)
    return first.sin() + x.sum()


@pytest.mark.parametrize(("program", "call"), [(spaced, "linspace"), (chunks, "chunk")])
def test_a_call_that_torch_does_not_trace_costs_that_call(
    program: Callable[..., Tensor], call: str, parts: list[int]
) -> None:
    given = torch.tensor(6), torch.ones(6)
    results, said = run_compiled(program, *given)
    torch.testing.assert_close(results, program(*given))
    assert len(parts) == 2
    assert all(parts)
    assert len(said) == 1
    assert said[0].startswith(f"{call} runs in eager mode, and the graph is compiled in parts")
    assert "GuardOnDataDependentSymNode" in said[0]


def says_in_a_branch(x: Tensor) -> Tensor:
    def loud(y: Tensor) -> Tensor:
        torch._higher_order_ops.print("in a branch {}", 1)
        return y.sin() * 2

    return torch.cond(x.sum() > -100, loud, torch.cos, (x.exp(),)) + 1


def says_in_a_loop(x: Tensor) -> Tensor:
    def loud(k: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        torch._higher_order_ops.print("in a loop {}", 2)
        return k + 1, y.sin()

    return torch._higher_order_ops.while_loop(lambda k, y: k < 3, loud, (torch.tensor(0), x * 2))[1] + 1


def says_in_a_branch_of_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > -100, says_in_a_branch, torch.cos, (x.exp(),)) + 1


@pytest.mark.parametrize("program", [says_in_a_branch, says_in_a_loop, says_in_a_branch_of_a_branch])
def test_effects_in_regions_are_not_lost(
    program: Callable[[Tensor], Tensor], capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(4)
    wanted = program(x)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", fullgraph=True)
    with pytest.warns(CoilworkFallbackWarning, match="lost-effect"):
        compiled(x)
    capfd.readouterr()
    for _ in range(2):
        torch.testing.assert_close(compiled(x), wanted)
    printed = capfd.readouterr().out
    program(x)
    assert printed == capfd.readouterr().out * 2
    torch._dynamo.reset()
    strictly = torch.compile(program, backend="coilwork", options={"strict": True})
    with pytest.raises(Exception, match="lost-effect"):
        strictly(x)
