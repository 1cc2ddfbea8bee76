"""Operators that no kernel is generated for are calls inside the compiled program: lists of results,
quantised and other rare types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning
from coilwork_tools.explain.report import CompileReport

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")


@torch.library.custom_op("coilwork_called::split_off", mutates_args=())
def split_off(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x * 2, [x * 3, x * 4]


@split_off.register_fake
def _(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x)]


def _backward(ctx: Any, whole: Tensor, parts: list[Tensor]) -> Tensor:
    return whole * 2 + parts[0] * 3 + parts[1] * 4


split_off.register_autograd(_backward)


@torch.library.custom_op("coilwork_called::added_to", mutates_args=("x",))
def added_to(x: Tensor, y: Tensor | None, scales: list[float] | None) -> None:
    x.add_(1 if y is None else y * sum(scales or [1.0]))


def results_in_lists(x: Tensor) -> tuple[Tensor, ...]:
    whole, parts = torch.ops.coilwork_called.split_off(x.cos() * 2)
    return whole.relu() + 1, parts[0] * 2, parts[1].sin()


def writes_and_returns_nothing(x: Tensor) -> Tensor:
    y = x * 2
    torch.ops.coilwork_called.added_to(y, x.sin(), [2.0, 3.0])
    torch.ops.coilwork_called.added_to(y, None, None)
    return y + 1


def quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x.sin(), 0.1, 10, torch.quint8).relu().dequantize() + 1


def quantized_result(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x.sin(), 0.1, 10, torch.qint8)


def bits(x: Tensor) -> Tensor:
    return (x * 2).view(torch.uint8).view(torch.bits8).clone().view(torch.uint8) + 1


PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "results in lists": (results_in_lists, 1),
    "writes and returns nothing": (writes_and_returns_nothing, 2),
    "quantised": (quantized, 3),
    "a quantised result": (quantized_result, 1),
    "bits": (bits, 1),
}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompileReport]]:
    made: list[CompileReport] = []
    plain = compile_graph.CompiledGraph.__init__

    def recording(self: Any, call: Any, report: CompileReport, *given: Any, **named: Any) -> None:
        plain(self, call, report, *given, **named)
        # what is put around a call keeps its report
        if not any(report is known for known in made):
            made.append(report)

    monkeypatch.setattr(compile_graph.CompiledGraph, "__init__", recording)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def plain(value: Any) -> Any:
    return value.int_repr() if isinstance(value, Tensor) and value.is_quantized else value


@pytest.mark.parametrize("wrapper", ["python", "fx"])
@pytest.mark.parametrize("executor", ["native", "python"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_are_called_from_the_compiled_program(
    reports: list[CompileReport], name: str, executor: str, wrapper: str
) -> None:
    function, calls = PROGRAMS[name]
    x = torch.randn(4, 6)
    options = {"cache": False, "strict": True, "wrapper": wrapper, "executor": executor}
    found = torch.compile(function, backend=backend, options=options, fullgraph=True)(x)
    torch.testing.assert_close(plain(found), plain(function(x)))
    (report,) = reports
    assert report.kernels and report.extern_calls >= calls and not report.fallback


def test_gradients_pass_through_lists_of_results(reports: list[CompileReport]) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled = torch.compile(results_in_lists, backend=backend, options={"cache": False, "strict": True})
    for one, function in ((x, results_in_lists), (y, compiled)):
        sum(part.sum() for part in function(one)).backward()
    torch.testing.assert_close(y.grad, x.grad)
    assert {report.role for report in reports} == {"forward", "backward"}
    assert not any(report.fallback for report in reports)


def test_an_operator_with_an_effect_may_return_a_list(reports: list[CompileReport]) -> None:
    library = torch.library.Library("coilwork_called_effects", "DEF")
    seen: list[float] = []

    def told(x: Tensor) -> list[Tensor]:
        seen.append(float(x.sum()))
        return [x + 1, x * 2]

    library.define("told(Tensor x) -> Tensor[]")
    library.impl("told", told, "CPU")
    library.impl("told", lambda x: [torch.empty_like(x), torch.empty_like(x)], "Meta")
    _register_effectful_op(torch.ops.coilwork_called_effects.told.default, _EffectType.ORDERED)

    def function(x: Tensor) -> Tensor:
        return torch.ops.coilwork_called_effects.told(x.cos())[1].sin()

    x = torch.randn(4, 6)
    options = {"cache": False, "strict": True}
    found = torch.compile(function, backend=backend, options=options, fullgraph=True)(x)
    assert len(seen) == 1
    torch.testing.assert_close(found, function(x))
    # the operator, and what resolves the bits of the result that a kernel reads
    assert [report.extern_calls for report in reports] == [2]


def test_an_operator_may_return_several_sizes(reports: list[CompileReport]) -> None:
    library = torch.library.Library("coilwork_called_sizes", "DEF")

    def sizes(x: Tensor, y: Tensor) -> tuple[Tensor, int, int]:
        return x * 2, x.size(0), y.size(0)

    library.define("sizes(Tensor x, Tensor y) -> (Tensor, SymInt, SymInt)")
    library.impl("sizes", sizes, "CPU")
    library.impl("sizes", sizes, "Meta")

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, int, int]:
        doubled, first, second = torch.ops.coilwork_called_sizes.sizes(x, y)
        return doubled + second, first * 2, second

    compiled = torch.compile(
        function, backend=backend, options={"cache": False, "strict": True}, fullgraph=True, dynamic=True
    )
    for rows, others in ((11, 32), (7, 9)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(reports) == 1


def test_what_capture_chose_for_floats_runs_as_it_was_captured() -> None:
    def function(x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        return torch.max_pool2d(q, 2).dequantize() + 1

    x = torch.randn(1, 2, 4, 4)
    torch._dynamo.reset()
    with pytest.warns(CoilworkFallbackWarning, match=r"(?s)\[mistraced\].*max_pool2d_with_indices") as caught:
        found = torch.compile(function, backend=backend, options={"cache": False})(x)
    assert sum(w.category is CoilworkFallbackWarning for w in caught) == 1
    torch.testing.assert_close(found, function(x))


def test_frozen_values_are_not_kept_quantised(reports: list[CompileReport]) -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            parts = [torch.quantize_per_tensor(y, 0.1, 10, torch.quint8) for y in (self.weight * 2, x.sin())]
            return torch.cat(parts).dequantize() + 1

    model, x = Weighted().eval(), torch.randn(4, 4)
    options = {"cache": False, "strict": True, "freezing": True}
    with torch.no_grad():
        found = torch.compile(model, backend=backend, options=options)(x)
        torch.testing.assert_close(found, model(x))
    assert reports[-1].extern_calls == 4


def test_results_that_torchs_c_interface_mixes_up_reach_programs_in_cpp() -> None:
    x = torch.randn(4, 6)
    torch._dynamo.reset()
    options = {"cache": False, "strict": True, "wrapper": "cpp"}
    compiled = torch.compile(results_in_lists, backend=backend, options=options)
    torch.testing.assert_close(compiled(x), results_in_lists(x))


def test_dynamo_traces_nothing_that_a_backward_graph_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine runs a backward graph between frames of the user's that Dynamo traces."""
    tracers: list[object] = []
    plainly = compile_graph.CompiledGraph.__call__

    def telling(self: Any, args: list[Any]) -> Any:
        tracers.append(torch._C._dynamo.eval_frame.get_eval_frame_callback())
        return plainly(self, args)

    def gradient_of(x: Tensor, at: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((x.gather(0, at) * 2).sum(), x)
        return gradient + 1

    monkeypatch.setattr(compile_graph.CompiledGraph, "__call__", telling)
    torch._dynamo.reset()
    given = torch.randn(8, requires_grad=True), torch.randint(0, 8, (20,))
    compiled = torch.compile(gradient_of, backend=backend, options={"strict": True, "cache": False})
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), gradient_of(*given))
    assert len(tracers) >= 4 and set(tracers) == {None}
