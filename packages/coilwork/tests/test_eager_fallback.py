"""Graphs and calls that run in eager mode: eager's results with a warning, or an error."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.autograd import forward_ad

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning, CompileError
from coilwork_frontend import compile_captured
from coilwork_frontend.capture.eager_fallback import compile_around

Inputs = tuple[Tensor, ...]


def row_of_an_expanded_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 3
    x.detach()[0].add_(1)
    return y, x.sum()


def overlapping_windows(x: Tensor) -> Tensor:
    x.unfold(0, 3, 1).add_(1)
    return x.sin()


def two_types_of_one_memory(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y + 1


def shared() -> Inputs:
    x = torch.arange(4.0)
    return x, x.view(torch.int32)


REFUSED, WRONG = "torch cannot trace a graph that it captured", "a tensor that has an element several times"
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Inputs], str]] = {
    "a row of an expanded input with gradients": (
        row_of_an_expanded_input,
        lambda: (torch.arange(4.0, requires_grad=True).expand(3, 4),),
        WRONG,
    ),
    "overlapping windows": (overlapping_windows, lambda: (torch.arange(8.0),), REFUSED),
    "two types of one memory": (two_types_of_one_memory, shared, REFUSED),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"check": True}], ids=["", "check"])
def test_as_eager_with_a_warning(name: str, options: dict[str, object]) -> None:
    function, inputs, reason = PROGRAMS[name]
    given, expected = inputs(), inputs()
    with pytest.warns(CoilworkFallbackWarning, match=reason):
        found = torch.compile(function, backend=backend, options=options)(*given)
    torch.testing.assert_close(found, function(*expected), rtol=0, atol=0)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("option", ["strict", "batch_invariant"])
def test_an_error_where_eager_would_break_a_promise(option: str) -> None:
    function, inputs, _ = PROGRAMS["overlapping windows"]
    with pytest.raises(BackendCompilerFailed, match="internal overlap"):
        torch.compile(function, backend=backend, options={option: True})(*inputs())


def test_gradients_of_the_fallback_are_those_of_eager() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        x[0].add_(1)
        return (x * w).sin().sum()

    gradients = []
    for run in (function, torch.compile(function, backend=backend)):
        w = torch.ones(4, requires_grad=True)
        run(torch.arange(4.0).expand(3, 4), w).backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_eager_rejects_is_eagers_error() -> None:
    def function(x: Tensor) -> Tensor:
        return x.add_(1)

    with pytest.raises(RuntimeError, match="Please clone"):
        torch.compile(function, backend=backend)(torch.zeros(4).expand(3, 4))


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = torch.compile(program, backend="coilwork", fullgraph=True)(*given)
    (said,) = [one for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    torch.testing.assert_close(results, program(*given))
    # with `fullgraph`, torch runs what is behind a graph break in eager mode, if it may
    assert len(parts) == 2
    assert all(parts)
    assert str(said.message).startswith(f"{call} runs in eager mode, and the graph is compiled in parts")
    assert "GuardOnDataDependentSymNode" in str(said.message)
    source, first = inspect.getsourcelines(program)
    assert said.filename == __file__
    assert call in source[said.lineno - first]


@pytest.mark.parametrize("call", ["cumsum", "prod"])
def test_a_gradient_that_torch_does_not_trace_costs_that_call(call: str, parts: list[int]) -> None:
    def program(kept: Tensor, x: Tensor) -> Tensor:
        chosen = (x.exp() * 2)[kept]
        return getattr(chosen, call)(0).sin() + chosen.cos().sum()

    kept = torch.tensor([True, False, True, True])
    x, same = (torch.linspace(-1, 1, 4).requires_grad_() for _ in range(2))
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        result = torch.compile(program, backend="coilwork")(kept, x)
        result.sum().backward()
    (said,) = [one for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    expected = program(kept, same)
    expected.sum().backward()
    torch.testing.assert_close((result, x.grad), (expected, same.grad))
    assert str(said.message).startswith(f"{call} runs in eager mode, and the graph is compiled in parts")
    # forward and backward of two parts
    assert len(parts) == 4
    assert all(parts)


def between(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    start, stop = first.item(), last.item()
    torch._check(start >= 0)
    torch._check(start <= stop)
    torch._check(stop <= x.shape[0])
    return x[start:stop].cumsum(0).sin()


def test_a_graph_whose_gradient_asks_for_a_number_is_cut(parts: list[int]) -> None:
    """Behind the cut the numbers are sizes as others, so nothing runs in eager mode."""
    for last in (4, 5):
        x, same = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
        given = torch.tensor(1), torch.tensor(last)
        result, said = run_compiled(between, x, *given)
        result.sum().backward()
        expected = between(same, *given)
        expected.sum().backward()
        torch.testing.assert_close((result, x.grad), (expected, same.grad))
        assert said == []
    assert sum(parts) > 0


def test_parts_of_a_nested_tensor_stay_in_one_graph(parts: list[int]) -> None:
    given = [torch.linspace(0, length, 4 * length).view(length, 4) for length in (2, 3, 4)]
    nested = torch.nested.nested_tensor(given, layout=torch.jagged).requires_grad_()

    def program(x: Tensor) -> Tensor:
        return (x * 2).unbind()[1].sin() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        result, (said,) = run_compiled(program, nested)
    torch.testing.assert_close(result, program(nested))
    assert said.startswith("a graph runs in eager mode")
    assert parts == []


def test_a_branch_by_a_comparison_of_sizes_is_differentiated(parts: list[int]) -> None:
    """The backward is given what the forward compared."""

    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.shape[1] == 2, torch.exp, torch.square, (x,))

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] * 2 > x.shape[1] + 3, inner, torch.cos, (x,))

    compiled = torch.compile(program, backend="coilwork", dynamic=True, options={"strict": True})
    for shape in ((4, 3), (2, 9), (9, 2)):
        x, same = (torch.linspace(-1, 1, shape[0] * shape[1]).view(shape).requires_grad_() for _ in range(2))
        result = compiled(x)
        result.sum().backward()
        expected = program(same)
        expected.sum().backward()
        torch.testing.assert_close((result, x.grad), (expected, same.grad))


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y.mul_(2)
    a = torch.sin(x) * 2 + y
    b = torch.tanh(a) - x.exp()
    return a.cos() + b, b.sum(0)


def holds_fault(gm: torch.fx.GraphModule) -> bool:
    return any("tanh" in str(node.target) for node in gm.graph.nodes if node.op == "call_function")


# by module, the functions of which one fails for a graph with one operator: before, in and behind tracing
STEPS = {
    "roles": (compile_captured, "make_view_roles"),
    "tracing": (compile_captured, "compile_with_aot_autograd"),
    "a job": (compile_graph, "open_job"),
    "what is uncallable": (compile_graph, "list_uncallable"),
}


@pytest.mark.parametrize(("step", "trains"), [*((step, False) for step in STEPS), ("a job", True)])
def test_a_fault_that_names_no_call_costs_one_call(
    step: str, trains: bool, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = STEPS[step]
    plain: Callable[..., Any] = getattr(module, name)

    def failing(gm: torch.fx.GraphModule, *rest: Any, **settings: Any) -> Any:
        if holds_fault(gm):
            raise KeyError("injected")
        return plain(gm, *rest, **settings)

    monkeypatch.setattr(module, name, failing)

    def run(call: Callable[..., Any]) -> list[Tensor]:
        x, y = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_(trains), torch.ones(4, 3)
        results = call(x, y)
        if trains:
            sum(result.sin().sum() for result in results).backward()
        return [*(result.detach() for result in results), y, *([x.grad] if trains else [])]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # parts that another test compiled are not traced again
        options = {"cache": False}
        found = run(torch.compile(several, backend="coilwork", fullgraph=True, options=options))
    for one, other in zip(found, run(several), strict=True):
        torch.testing.assert_close(one, other)
    (said,) = [one for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    assert "tanh" in str(said.message) or "of one call" in str(said.message)
    assert "KeyError: 'injected'" in str(said.message)
    assert said.lineno == several.__code__.co_firstlineno + 3
    # parts of views alone have no kernel
    assert len(parts) >= 2
    assert sum(parts) >= 2


def test_a_fault_of_all_calls_is_not_searched_for_long(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x + 1
        return x

    tries: list[int] = []

    def failing(*given: Any) -> Any:
        tries.append(1)
        raise KeyError("injected")

    monkeypatch.setattr(compile_captured, "make_view_roles", failing)
    results, said = run_compiled(many, torch.ones(3))
    torch.testing.assert_close(results, many(torch.ones(3)))
    assert len(tries) <= 2 * 24 + 1
    assert said
    with pytest.raises(BackendCompilerFailed, match="injected"):
        torch.compile(many, backend="coilwork", options={"strict": True})(torch.ones(3))


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


FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "any sizes": {"dynamic": True},
    "strict": {"options": {"strict": True}},
    "python": {"options": {"executor": "python"}},
    "checked": {"options": {"check": True}},
}


def scaled(x: Tensor) -> Tensor:
    return x.sin() * x.sum()


def tangent(function: Any, x: Tensor, direction: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        found: Tensor | None = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
        return found


@pytest.mark.parametrize("form", FORMS)
def test_tangents_after_calls_without(form: str) -> None:
    compiled = torch.compile(scaled, backend=backend, **FORMS[form])
    x, direction = torch.arange(3.0), torch.tensor([1.0, -2.0, 0.5])
    for _ in range(2):
        torch.testing.assert_close(compiled(x), scaled(x))
        torch.testing.assert_close(tangent(compiled, x, direction), tangent(scaled, x, direction))


def test_a_module_with_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = torch.compile(model, backend=backend)
    x, direction = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(tangent(compiled, x, direction), tangent(model, x, direction))
    torch.testing.assert_close(compiled(x), model(x))


def test_plain_tensors_within_a_level() -> None:
    with forward_ad.dual_level():
        found = torch.compile(scaled, backend=backend)(torch.arange(3.0))
        assert forward_ad.unpack_dual(found).tangent is None
    torch.testing.assert_close(found, scaled(torch.arange(3.0)))


def test_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(scaled, backend=backend)
    with caplog.at_level(logging.WARNING, "coilwork"):
        compiled(torch.arange(3.0))
        assert not caplog.messages
        tangent(compiled, torch.arange(3.0), torch.ones(3))
    assert any("forward-mode" in message for message in caplog.messages)


def test_rows_that_must_not_depend_on_their_batch_are_an_error() -> None:
    compiled = torch.compile(scaled, backend=backend, options={"batch_invariant": True})
    compiled(torch.arange(3.0))
    with pytest.raises(BackendCompilerFailed, match=r"forward-mode.*\n.*\n.*torch\.func\.jvp"):
        tangent(compiled, torch.arange(3.0), torch.ones(3))


Function = Callable[[Tensor], Tensor]


def value() -> Tensor:
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", value().to_mkldnn())
        self.weight = torch.nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = self.held
        return held.to_dense() * x * self.weight


HELD = value().to_mkldnn()
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "behind a graph break": lambda x: x.to_mkldnn().to_dense() + 1,
    "of a closure": lambda x: HELD.to_dense() - x,
    "in a list, behind a graph break": lambda x: sum(one.to_dense() for one in [x.to_mkldnn(), x]),
    "a buffer, and gradients of a parameter": Held(),
}


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_opaque_inputs_as_eager_with_a_warning(name: str, dynamic: bool | None) -> None:
    function = FUNCTIONS[name]
    expected = function(value())
    with pytest.warns(CoilworkFallbackWarning, match=r"has layout torch\._mkldnn"):
        found = torch.compile(function, backend=backend, dynamic=dynamic)(value())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if isinstance(function, torch.nn.Module):
        parameters = list(function.parameters())
        gradients = (torch.autograd.grad(result.sum(), parameters) for result in (found, expected))
        torch.testing.assert_close(next(gradients), next(gradients))


def test_gradients_through_such_a_tensor() -> None:
    def gradient(function: Function) -> Tensor:
        x = value().requires_grad_()
        return torch.autograd.grad(function(x.to_mkldnn()).square().sum(), x)[0]

    def function(m: Tensor) -> Tensor:
        return m.to_dense() * 3

    with pytest.warns(CoilworkFallbackWarning):
        found = gradient(torch.compile(function, backend=backend))
    torch.testing.assert_close(found, gradient(function))


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_function_of_both_kinds(dynamic: bool | None) -> None:
    """Torch's guards tell them apart, so the check at compile time is enough, and calls cost nothing."""

    def function(x: Tensor) -> Tensor:
        return x.to_dense() + 1

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoilworkFallbackWarning)
        for given in (value(), value().to_mkldnn(), value(), value()[1:].to_mkldnn(), value()[:1]):
            torch.testing.assert_close(compiled(given), function(given), rtol=0, atol=0)


def test_strict_refuses_what_would_fall_back() -> None:
    compiled = torch.compile(lambda m: m.to_dense() + 1, backend=backend, options={"strict": True})
    with pytest.raises(BackendCompilerFailed, match=r"opaque-input.*\n.*with strides.*\n.*to_dense"):
        compiled(value().to_mkldnn())


@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_inside_of_functionalize(is_compiled_before: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y[1:].add_(x[:1])
        return y.sin()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    if is_compiled_before:
        compiled(value())
    with pytest.warns(CoilworkFallbackWarning, match=r"wrapped by torch\.func\.functionalize"):
        found = torch.func.functionalize(compiled)(value())
    torch.testing.assert_close(found, function(value()))
