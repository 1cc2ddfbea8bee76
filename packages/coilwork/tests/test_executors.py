"""Who runs a program: as asked, with the reason where it is somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.compile_options import CompileOptions
from coilwork.errors import CoilworkFallbackWarning
from coilwork.stage_settings import make_executor_options
from coilwork_ir.errors import EmitError
from coilwork_ir.program.nodes import Program
from coilwork_runtime import ExecutorUnavailableError
from coilwork_runtime.executor import choice
from coilwork_runtime.executor.choice import Loadable
from coilwork_wrapper import EncodedProgram, encode_program, module_wrapper

Compile = Callable[..., Callable[..., Any]]


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.exp(x @ w).clamp(max=3.0).sum(0)


def run(compile_with: Compile, trace: Path, **options: object) -> dict[str, Any]:
    """Compile and call `scaled` as a new process would, check its result, and return the report."""
    torch._dynamo.reset()
    x, w = torch.randn(5, 8), torch.randn(8, 6)
    torch.testing.assert_close(compile_with(scaled, trace=str(trace), **options)(x, w), scaled(x, w))
    (path,) = trace.glob("*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def refuse(program: Program) -> EncodedProgram:
    return replace(encode_program(program), refusal=EmitError("native-unsupported", "a thing that cannot be"))


def unavailable(*_: object, **__: object) -> Any:
    raise ExecutorUnavailableError("executor-build", "the native executor cannot be built here")


@pytest.mark.parametrize(
    ("wanted", "found"), [("auto", "native"), ("native", "native"), ("python", "python")]
)
def test_the_executor_is_the_one_that_is_asked_for(
    wanted: str, found: str, strictly: Compile, tmp_path: Path
) -> None:
    report = run(strictly, tmp_path, executor=wanted, cache=False)
    assert (report["executor"], report["executor_reason"], report["python_calls"]) == (found, "", {})


def test_a_second_process_restores_the_program(strictly: Compile, tmp_path: Path) -> None:
    """What one executor left in the cache serves the other."""
    cache = str(tmp_path / "cache")
    found = [
        run(strictly, tmp_path / f"{number}", executor=wanted, cache_dir=cache)
        for number, wanted in enumerate(("native", "auto", "python"))
    ]
    assert [report["cache_hit"] for report in found] == [False, True, True]
    assert [report["executor"] for report in found] == ["native", "native", "python"]


def test_a_program_that_is_refused_runs_in_python(
    strictly: Compile, leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module_wrapper, "encode_program", refuse)
    cache = str(tmp_path / "cache")
    for number, hit in enumerate((False, True)):
        report = run(strictly, tmp_path / f"{number}", cache_dir=cache)
        assert report["cache_hit"] is hit and report["executor"] == "python"
        assert "a thing that cannot be" in report["executor_reason"]
    with pytest.warns(CoilworkFallbackWarning, match="Python instead of the native executor: .*a thing that"):
        run(leniently, tmp_path / "asked", executor="native", cache=False)


def test_without_the_extension_python_runs(
    strictly: Compile, leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "load_native", unavailable)
    report = run(strictly, tmp_path / "auto", cache=False)
    assert report["executor"] == "python" and "cannot be built here" in report["executor_reason"]
    with pytest.warns(CoilworkFallbackWarning, match="cannot be built here"):
        run(leniently, tmp_path / "asked", executor="native", cache=False)
    with pytest.raises(BackendCompilerFailed, match="cannot be built here"):
        run(strictly, tmp_path / "strict", executor="native", cache=False)


def test_lifetimes_are_checked_if_asked_for(
    strictly: Compile, leniently: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[str] = []

    class Listener:
        def __call__(self, event: str, *_: object) -> None:
            heard.append(event)

    assert run(strictly, tmp_path / "real", check_lifetimes=True, cache=False)["executor"] == "native"
    monkeypatch.setattr(choice, "LifetimeChecker", Listener)
    run(strictly, tmp_path / "heard", check_lifetimes=True, cache=False)
    assert heard[0] == "call" and heard[-1] == "leave" and "alloc" in heard
    with pytest.warns(CoilworkFallbackWarning, match="as was asked for"):
        run(leniently, tmp_path / "python", check_lifetimes=True, executor="python", cache=False)


def test_calls_through_python_are_reported(strictly: Compile, tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.randn(6)
    compiled = strictly(
        lambda x: x.clamp(min=0), trace=str(tmp_path), cache=False, fallback=["aten.clamp.default"]
    )
    torch.testing.assert_close(compiled(x), x.clamp(min=0))
    (path,) = tmp_path.glob("*/report.json")
    calls = json.loads(path.read_text())["python_calls"]
    assert list(calls) == ["aten.clamp.default"] and "Scalar" in calls["aten.clamp.default"]


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({"numerics": "fast"}, False),
        ({"products": "cublaslt"}, True),
        ({"products": "aten"}, None),
        ({"numerics": "eager"}, None),
        ({"batch_invariant": True}, None),
        ({"numerics": "eager", "products": "cublaslt"}, True),
    ],
)
def test_who_computes_products_on_gpus(options: dict[str, Any], required: bool | None) -> None:
    graph = Loadable(
        name="g", module="", kernels=b"", program=b"", refusal="", constants={}, devices=("cpu", "cuda:0")
    )
    library = choice._products(graph, make_executor_options(CompileOptions(**options)))
    assert (None if library is None else library.required) is required
    on_cpu = replace(graph, devices=("cpu",))
    assert choice._products(on_cpu, make_executor_options(CompileOptions(**options))) is None


@pytest.mark.parametrize(
    ("options", "replays"), [({}, True), ({"replay": False}, False), ({"check_nan": "kernels"}, False)]
)
def test_what_is_repeated_goes_to_the_driver_as_graphs(options: dict[str, Any], replays: bool) -> None:
    graph = Loadable(
        name="g", module="", kernels=b"", program=b"", refusal="", constants={}, devices=("cpu", "cuda:0")
    )
    assert (choice._graphs(graph, make_executor_options(CompileOptions(**options))) is not None) is replays
    assert (
        choice._graphs(replace(graph, devices=("cpu",)), make_executor_options(CompileOptions(**options)))
        is None
    )


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({"numerics": "fast"}, False),
        ({"convolutions": "cudnn"}, True),
        ({"convolutions": "aten"}, None),
        ({"products": "aten"}, False),
        ({"numerics": "eager"}, None),
        ({"batch_invariant": True}, None),
        ({"numerics": "eager", "convolutions": "cudnn"}, True),
    ],
)
def test_who_computes_convolutions_on_gpus(options: dict[str, Any], required: bool | None) -> None:
    graph = Loadable(
        name="g", module="", kernels=b"", program=b"", refusal="", constants={}, devices=("cpu", "cuda:0")
    )
    library = choice._convolutions(graph, make_executor_options(CompileOptions(**options)))
    assert (None if library is None else library.required) is required
    on_cpu = replace(graph, devices=("cpu",))
    assert choice._convolutions(on_cpu, make_executor_options(CompileOptions(**options))) is None
