"""The wrappers drive the same kernels; what C++ cannot drive goes to Python, with a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.errors import CoilworkFallbackWarning
from coilwork_cpp_wrapper import wrapper as cpp_wrapper
from coilwork_frontend.capture.eager_fallback import box_graph
from coilwork_ir.errors import EmitError

Compile = Callable[..., Callable[..., Any]]


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.silu(x @ w)
    return (hidden * 2).softmax(-1).sum(0)


@pytest.mark.parametrize(
    ("wrapper", "written"),
    [("python", "module.py"), ("native", "module.py"), ("fx", "fx.py"), ("cpp", "program.cpp")],
)
def test_each_wrapper_trains_and_writes_its_program(
    wrapper: str, written: str, strictly: Compile, tmp_path: Path
) -> None:
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(8, 6, requires_grad=True)
    gated(x, w).square().sum().backward()
    expected, x.grad, w.grad = (x.grad, w.grad), None, None
    strictly(gated, wrapper=wrapper, trace=str(tmp_path))(x, w).square().sum().backward()
    torch.testing.assert_close((x.grad, w.grad), expected)
    for path in tmp_path.iterdir():
        assert (path / written).read_text().strip()
        report = json.loads((path / "report.json").read_text())
        assert report["fallback"] == "" and report["kernels"] > 0


def refuse(*_: object) -> object:
    raise EmitError("cpp-unsupported", "aten.strange.default cannot be called from C++ yet")


def test_what_cpp_refuses_is_driven_by_python(leniently: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_wrapper, "emit_cpp", refuse)
    x, w = torch.randn(5, 8), torch.randn(8, 6)
    with pytest.warns(
        CoilworkFallbackWarning,
        match=r"(?s)driven by Python instead of wrapper='cpp'.*aten\.strange\.default",
    ):
        result = leniently(gated, wrapper="cpp")(x, w)
    torch.testing.assert_close(result, gated(x, w))


def test_what_cpp_refuses_is_an_error_with_strict(strictly: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_wrapper, "emit_cpp", refuse)
    with pytest.raises(BackendCompilerFailed, match=r"aten\.strange\.default"):
        strictly(gated, wrapper="cpp")(torch.randn(5, 8), torch.randn(8, 6))


def test_boxed_empties_its_list() -> None:
    graph = torch.fx.symbolic_trace(lambda a, b: (a + b,))
    args = [torch.ones(2), torch.ones(2)]
    (result,) = box_graph(graph)(args)
    assert args == [] and torch.equal(result, torch.full((2,), 2.0))
