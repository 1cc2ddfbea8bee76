"""What happens when something cannot be compiled or built: who is told what, and that results stay right."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork import compile_graph as compiler
from coilwork import stages
from coilwork.backend import backend
from coilwork.compile_graph import compile_graph
from coilwork.compile_options import CompileOptions
from coilwork.errors import CoilworkFallbackWarning, CompileError
from coilwork.job import Job
from coilwork.stages import Compiled
from coilwork_cpp import CppCodegen
from coilwork_ir.backend import Codegen
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.loc import Origin
from coilwork_ir.target import Capabilities, Target
from coilwork_lowering.errors import LoweringError
from coilwork_runtime import KernelBuildError, LayoutError, MissingCompilerError, MissingTritonError

Compile = Callable[..., Callable[..., Any]]


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x).cumsum(0) + torch.cos(x).sum(0)


def inputs() -> torch.Tensor:
    return torch.linspace(-2.0, 2.0, 24).reshape(6, 4)


def report_in(trace: Path) -> dict[str, Any]:
    (path,) = trace.glob("*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@contextmanager
def fallback_warning(match: str) -> Iterator[pytest.WarningsRecorder]:
    """Exactly one fallback warning, which matches."""
    with pytest.warns(CoilworkFallbackWarning, match=match) as caught:
        yield caught
    assert len([w for w in caught if w.category is CoilworkFallbackWarning]) == 1, [
        str(w.message) for w in caught
    ]


def raised_by_backend(error: BackendCompilerFailed) -> CompileError:
    """Our error, which Dynamo wraps in its own."""
    assert isinstance(error.inner_exception, CompileError)
    return error.inner_exception


def refuse(operator: str) -> Callable[..., Compiled]:
    """`run_stages`, where lowering refuses `operator` unless it is left to ATen."""
    real = stages.run_stages

    def run(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
        if operator not in fallback:
            origin = Origin(node="sin", op=operator, file="model.py", line=7, code="torch.sin(x)")
            raise LoweringError("no-lowering", f"{operator} has no lowering", origins=(origin,))
        return real(job, fallback=fallback)

    return run


# A stage fails


def test_operator_that_cannot_be_lowered_goes_to_aten(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "run_stages", refuse("aten.sin.default"))
    x = inputs()
    with fallback_warning(r"aten\.sin\.default run as ATen's own kernels") as caught:
        result = leniently(waves, trace=str(tmp_path), cache=False)(x)
    torch.testing.assert_close(result, waves(x))
    assert "model.py:7   torch.sin(x)" in str(caught[0].message)
    report = report_in(tmp_path)
    assert (report["fallback"], report["extern_calls"]) == ("", 1)
    assert report["kernels"] >= 1
    assert "torch.ops.aten.sin" in next(tmp_path.glob("*/module.py")).read_text()


def test_graph_that_cannot_be_compiled_runs_in_eager_mode(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
        raise ZeroDivisionError("a bug in a stage")

    monkeypatch.setattr(compiler, "run_stages", broken)
    x = inputs()
    with fallback_warning(r"runs in eager mode: ZeroDivisionError: a bug in a stage") as caught:
        result = leniently(waves, trace=str(tmp_path), cache=False)(x)
    torch.testing.assert_close(result, waves(x), rtol=0, atol=0)
    assert '{"strict": True}' in str(caught[0].message)
    assert report_in(tmp_path)["fallback"] == "a bug in a stage"


def test_backward_that_cannot_be_compiled_runs_in_eager_mode(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stages.run_stages

    def broken(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
        if job.role == "backward":
            raise ZeroDivisionError("a bug in a stage")
        return real(job, fallback=fallback)

    monkeypatch.setattr(compiler, "run_stages", broken)
    x = inputs().requires_grad_()
    with fallback_warning(r"graph backward_\w+ runs in eager mode"):
        leniently(waves, cache=False)(x).square().sum().backward()
    gradient, x.grad = x.grad, None
    waves(x).square().sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_strict_raises_with_its_cause(strictly: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "run_stages", refuse("aten.sin.default"))
    with pytest.raises(BackendCompilerFailed, match="CompileError") as caught:
        strictly(waves, cache=False)(inputs())
    error = raised_by_backend(caught.value)
    assert error.code == "graph-failed"
    assert isinstance(error.__cause__, LoweringError)
    assert "aten.sin.default has no lowering" in str(error)


def test_an_error_without_a_message_is_named_by_its_type(
    strictly: Compile, leniently: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
        raise AssertionError

    monkeypatch.setattr(compiler, "run_stages", broken)
    with pytest.raises(BackendCompilerFailed, match="reason  AssertionError"):
        strictly(waves, cache=False)(inputs())
    torch.compiler.reset()
    with fallback_warning(r"runs in eager mode: AssertionError\n"):
        leniently(waves, cache=False)(inputs())


def test_an_error_that_names_a_call_again_costs_that_call(
    leniently: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, ...]] = []
    origins = (Origin(node="sin", op="aten.sin.default"),)
    plain = compiler.run_stages

    def stubborn(job: Job, *, fallback: tuple[str, ...]) -> Compiled:
        if not any(node.name == "sin" and node.op == "call_function" for node in job.gm.graph.nodes):
            return plain(job, fallback=fallback)
        tried.append(fallback)
        raise LoweringError("no-lowering", "never", origins=origins)

    monkeypatch.setattr(compiler, "run_stages", stubborn)
    with pytest.warns(CoilworkFallbackWarning) as caught:
        result = leniently(waves, cache=False)(inputs())
    said = [str(w.message) for w in caught if w.category is CoilworkFallbackWarning]
    assert "run as ATen's own kernels" in said[0]
    assert said[1].startswith("aten.sin.default run in eager mode between compiled parts")
    assert len(said) == 2
    assert tried == [(), ("aten.sin.default",)]
    torch.testing.assert_close(result, waves(inputs()))


# A kernel fails


class BrokenFor:
    """The C++ generator, except that kernels with one operator do not compile or cannot be expressed."""

    def __init__(self, operator: str, *, emits: bool) -> None:
        self.operator = operator
        self.emits = emits

    @property
    def name(self) -> str:
        return "broken"

    def supports(self, target: Target) -> bool:
        return CppCodegen().supports(target)

    def capabilities(self, target: Target) -> Capabilities:
        return CppCodegen().capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        source = CppCodegen().emit(kernel, target, options)
        if all(origin.op != self.operator for origin in kernel.origins):
            return source
        if not self.emits:
            raise EmitError("no-printer", "cannot be expressed")
        return replace(source, text=source.text + "\nthis is not C++;\n")


def generate_with(monkeypatch: pytest.MonkeyPatch, codegen: Codegen) -> None:
    monkeypatch.setattr(stages, "find_codegen", lambda target: codegen)


@pytest.mark.parametrize("emits", [True, False], ids=["build", "emit"])
def test_kernel_that_fails_goes_to_aten(
    emits: bool, leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generate_with(monkeypatch, BrokenFor("aten.cos.default", emits=emits))
    x = inputs()
    with fallback_warning(r"aten\.cos\.default.* run as ATen's own kernels") as caught:
        result = leniently(waves, trace=str(tmp_path), cache=False, fusion=False)(x)
    torch.testing.assert_close(result, waves(x))
    said = str(caught[0].message)
    assert ("does not build" if emits else "cannot be expressed") in said
    report = report_in(tmp_path)
    assert (report["fallback"], report["extern_calls"]) == ("", 1)
    assert report["kernels"] >= 2


def test_strict_shows_the_compilers_words(strictly: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_with(monkeypatch, BrokenFor("aten.cos.default", emits=True))
    with pytest.raises(BackendCompilerFailed, match="this is not C") as caught:
        strictly(waves, cache=False)(inputs())
    assert isinstance(raised_by_backend(caught.value).__cause__, KernelBuildError)


# Something is not installed


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


def test_no_cpp_compiler(leniently: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    x = inputs()
    with fallback_warning(r"no C\+\+ compiler") as caught:
        result = leniently(waves, cache=False)(x)
    torch.testing.assert_close(result, waves(x), rtol=0, atol=0)
    assert "install g++" in str(caught[0].message)


def test_no_cpp_compiler_strict(strictly: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    with pytest.raises(BackendCompilerFailed, match="install g") as caught:
        strictly(waves, cache=False)(inputs())
    assert isinstance(raised_by_backend(caught.value).__cause__, MissingCompilerError)


def test_without_triton_a_fallback_says_how_to_install_it(
    leniently: Compile, strictly: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    x = inputs()
    with fallback_warning(r"[Tt]riton is not installed") as caught:
        result = leniently(waves, triton_on_cpu=True, cache=False)(x)
    torch.testing.assert_close(result, waves(x), rtol=0, atol=0)
    assert "pip install" in str(caught[0].message)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="pip install") as raised:
        strictly(waves, triton_on_cpu=True, cache=False)(x)
    assert isinstance(raised_by_backend(raised.value).__cause__, MissingTritonError)


# Operators that fake tensors do not know


@torch.library.custom_op("coilwork_tests::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@torch.library.custom_op("coilwork_tests::fake", mutates_args=())
def fake(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


fake.register_fake(torch.empty_like)


@torch.library.custom_op(
    "coilwork_tests::contiguous_only", mutates_args=(), tags=[torch.Tag.needs_contiguous_strides]
)
def contiguous_only(x: list[torch.Tensor]) -> torch.Tensor:
    assert all(value.is_contiguous() for value in x)
    return x[0] + x[1]


contiguous_only.register_fake(lambda x: torch.empty_like(x[0], memory_format=torch.contiguous_format))


def test_operator_without_fake_is_torchs_own_error() -> None:
    compiled = torch.compile(lambda x: no_fake(x) + 1, backend=backend)
    with pytest.raises(RuntimeError, match=r"no_fake\.register_fake"):
        compiled(inputs())


def test_custom_operator_is_called(strictly: Compile) -> None:
    x = inputs()
    torch.testing.assert_close(strictly(lambda x: fake(x * 2) + 1)(x), torch.sin(x * 2) + 1)


def test_custom_operator_that_needs_contiguous_operands(strictly: Compile) -> None:
    x = inputs().t()
    torch.testing.assert_close(strictly(lambda x: contiguous_only([x, x * 2]))(x), x * 3)


# Wrong inputs at run time


def test_wrong_layouts_name_the_input() -> None:
    graph = make_fx(lambda a, b: (a * 2 + b,), tracing_mode="fake")(torch.ones(4, 3), torch.ones(3))
    options = CompileOptions(strict=True)
    call = compile_graph(graph, [torch.ones(4, 3), torch.ones(3)], role="inference", options=options)
    (right,) = call([torch.ones(4, 3), torch.ones(3)])
    assert torch.equal(right, torch.full((4, 3), 3.0))
    wrong: tuple[tuple[list[torch.Tensor], str], ...] = (
        ([torch.ones(4, 3), torch.ones(5)], r"input b_1: shape \(5,\), expected \(3,\)"),
        ([torch.ones(5, 3), torch.ones(3)], r"input a_1: shape \(5, 3\), expected \(4, 3\)"),
        ([torch.ones(3, 4).t(), torch.ones(3)], r"input a_1: strides \(1, 4\), expected \(3, 1\)"),
        ([torch.ones(4, 3, dtype=torch.float64), torch.ones(3)], r"input a_1: element type torch.float64"),
    )
    for given, said in wrong:
        with pytest.raises(LayoutError, match=said):
            call(given)


@pytest.mark.parametrize("settings", [{}, {"executor": "python"}, {"wrapper": "fx"}], ids=str)
def test_without_asserts_the_caller_promises_the_layouts(settings: dict[str, Any]) -> None:
    inputs = [torch.arange(12.0).view(4, 3), torch.arange(16.0)[:3]]
    graph = make_fx(lambda a, b: (a * 2 + b, b * 3), tracing_mode="fake")(*inputs)
    options = CompileOptions(strict=True, size_asserts=False, **settings)
    call = compile_graph(graph, inputs, role="inference", options=options)
    odd = torch.arange(17.0)[1:4]
    assert odd.data_ptr() % 16
    # rows that nothing asks for are no error any more, and addresses are still looked at
    for a, b in ((inputs[0], inputs[1]), (inputs[0], odd), (torch.arange(24.0).view(8, 3), inputs[1])):
        results = call([a, b])
        for result, wanted in zip(results, (a[:4] * 2 + b, b * 3), strict=True):
            assert torch.equal(result, wanted)


def test_a_good_compile_warns_of_nothing(strictly: Compile) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for torchs_own in (DeprecationWarning, ResourceWarning):
            warnings.filterwarnings("ignore", category=torchs_own)
        torch.testing.assert_close(strictly(waves)(inputs()), waves(inputs()))


def test_progress_of_kernels_is_logged(strictly: Compile, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="coilwork"):
        strictly(waves)(inputs())
    said = [record.getMessage() for record in caplog.records if "kernels ready" in record.getMessage()]
    assert said, "a graph with kernels tells how many are ready"
    last = said[-1].rpartition(": ")[2].split()
    assert last[0] == last[2] == str(len(said))
