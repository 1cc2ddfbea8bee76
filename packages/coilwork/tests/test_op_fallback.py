"""A fault of one rule or one kernel costs one call of ATen: the rest of the graph stays compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_reports import catch_fallbacks, read_reports
from torch._dynamo.exc import BackendCompilerFailed

from coilwork import stages
from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.scalar import const, op
from coilwork_ir.target import Capabilities, Target
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.registry import RULES
from coilwork_lowering.rules import Call, Rule

Compile = Callable[..., Callable[..., Any]]


def waves(x: torch.Tensor) -> torch.Tensor:
    wide = torch.sin(x.double()) * 2
    return wide.float() + torch.sin(x) * torch.cos(x) + torch.exp(x).sum(0)


def inputs() -> torch.Tensor:
    return torch.linspace(-2.0, 2.0, 24).reshape(6, 4)


def ill_typed(value: Value) -> None:
    op("bitcast", const(1.0, DType.F64), dtype=DType.I32)


def raising(error: Exception) -> Callable[[Value], None]:
    def fail(value: Value) -> None:
        raise error

    return fail


FAULTS: dict[str, Callable[[Value], None]] = {
    "an ill-typed body": ill_typed,
    "a broken rule": raising(VerifyError("cast-type", "injected")),
    "an internal error": raising(KeyError("injected")),
    "an assertion": raising(AssertionError()),
}


def break_rule(
    monkeypatch: pytest.MonkeyPatch, operator: str, fault: Callable[[Value], None], *, of: torch.dtype
) -> None:
    """Let the rule of `operator` fail for operands of one type."""
    rule = RULES[operator]

    def lower(builder: Builder, call: Call) -> Value:
        if call.fakes[next(iter(call.fakes))].dtype is of:
            fault(call.arguments[next(iter(call.arguments))])
        return rule.lower(builder, call)

    module = sys.modules["coilwork_lowering.lower"]
    monkeypatch.setattr(module, "RULES", {**RULES, operator: Rule(rule.targets, lower)})


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_only_the_node_at_fault_becomes_a_call(
    fault: Callable[[Value], None], leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_rule(monkeypatch, "aten.sin.default", fault, of=torch.float64)
    x = inputs()
    with catch_fallbacks() as said:
        result = leniently(waves, trace=str(tmp_path), cache=False)(x)
    torch.testing.assert_close(result, waves(x))
    assert len(said) == 1
    assert "aten.sin.default run as ATen's own kernels" in str(said[0].message)
    assert "torch.sin(x.double())" in str(said[0].message)
    assert Path(said[0].filename).name == Path(__file__).name
    assert said[0].lineno == waves.__code__.co_firstlineno + 1
    report = read_reports(tmp_path)["inference"]
    # the other sine has a kernel
    assert (report["fallback"], report["extern_calls"]) == ("", 1)
    assert report["kernels"] >= 1


def test_a_node_of_the_backward_graph_becomes_a_call(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_rule(monkeypatch, "aten.neg.default", FAULTS["an internal error"], of=torch.float32)
    x = inputs().requires_grad_()
    with catch_fallbacks() as said:
        leniently(waves, trace=str(tmp_path), cache=False)(x).square().sum().backward()
    gradient, x.grad = x.grad, None
    waves(x).square().sum().backward()
    torch.testing.assert_close(gradient, x.grad)
    assert ["graph backward_" in str(one.message) for one in said] == [True]
    found = read_reports(tmp_path)
    assert {role: report["extern_calls"] for role, report in found.items()} == {"forward": 0, "backward": 1}
    assert not any(report["fallback"] for report in found.values())


def test_an_operator_that_fails_again_and_again_is_left_out_at_once(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def many(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.sin(x) * 2
        return x

    break_rule(monkeypatch, "aten.sin.default", FAULTS["a broken rule"], of=torch.float32)
    x = inputs()
    with catch_fallbacks() as said:
        result = leniently(many, trace=str(tmp_path), cache=False)(x)
    torch.testing.assert_close(result, many(x))
    assert len(said) == 2
    assert read_reports(tmp_path)["inference"]["extern_calls"] == 20


def test_under_strict_a_faulty_rule_raises(strictly: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch, "aten.sin.default", FAULTS["an ill-typed body"], of=torch.float32)
    with pytest.raises(BackendCompilerFailed, match=r"the rule of aten\.sin\.default failed"):
        strictly(waves, cache=False)(inputs())


class BrokenFor:
    """The C++ generator, which stumbles over kernels with one operator."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    @property
    def name(self) -> str:
        return "broken"

    def supports(self, target: Target) -> bool:
        return CppCodegen().supports(target)

    def capabilities(self, target: Target) -> Capabilities:
        return CppCodegen().capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        if any(origin.op == self.operator for origin in kernel.origins):
            raise IndexError("injected")
        return CppCodegen().emit(kernel, target, options)


def test_of_a_fused_kernel_one_call_is_left_out(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stages, "find_codegen", lambda target: BrokenFor("aten.cos.default"))
    x = inputs()
    with catch_fallbacks() as said:
        result = leniently(waves, trace=str(tmp_path), cache=False)(x)
    torch.testing.assert_close(result, waves(x))
    assert len(said) == 1
    assert str(said[0].message).startswith("aten.cos.default run as ATen's own kernels")
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"]) == ("", 1)
