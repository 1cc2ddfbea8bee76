"""With a trace folder, every stage's text is there, and the generated module runs by itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError
from coilwork.job import open_job
from coilwork.stages import run_stages
from coilwork_ir.kernels.text import format_kernel, parse_kernel, parse_schedule
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.mapping import format_versions, parse_versions, verify_versions
from coilwork_ir.program.text import format_program, parse_program
from coilwork_tools.explain.trace_folder import open_trace

Compile = Callable[..., Callable[..., Any]]


def only_folder(trace: Path) -> Path:
    (folder,) = trace.iterdir()
    return folder


@pytest.fixture
def softmax_trace(strictly: Compile, tmp_path: Path) -> Path:
    """The dump of one graph with a matrix product, a fused kernel and a dynamic size."""

    def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ w).relu() * 2.0, -1)

    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    strictly(scores, trace=str(tmp_path), cache=False)(x, torch.randn(8, 16))
    return only_folder(tmp_path)


def test_every_stage_is_written(softmax_trace: Path) -> None:
    name = softmax_trace.name
    assert name.startswith("inference_")
    written = {path.name for path in softmax_trace.iterdir()}
    assert written == {
        "aten.txt",
        "layout.txt",
        f"{name}.loops.txt",
        f"{name}.schedule.txt",
        f"{name}.decisions.txt",
        f"{name}.layouts.txt",
        f"{name}.program.txt",
        "kernels",
        "kernels.bin",
        "module.py",
        "phases.json",
        "program.bin",
        "report.json",
    }
    assert "torch.ops.aten.mm.default" in (softmax_trace / "aten.txt").read_text()
    assert (softmax_trace / f"{name}.decisions.txt").read_text().strip()
    kernels = {path.name for path in (softmax_trace / "kernels").iterdir()}
    stems = {kernel.partition(".")[0] for kernel in kernels}
    assert stems
    assert kernels == {
        f"{stem}{suffix}" for stem in stems for suffix in (".cpp", ".kernel.txt", ".mapping.txt")
    }


def test_how_kernels_run_on_a_gpu_is_written(tmp_path: Path) -> None:
    with FakeTensorMode():
        x = torch.empty(512, 1000)
        gm = make_fx(lambda x: torch.softmax(torch.relu(x), -1))(x)
    options = CompileOptions(strict=True, cache=False, triton_on_cpu=True, trace=str(tmp_path))
    run_stages(open_job(gm, [x], role="inference", options=options), fallback=())
    (path,) = (only_folder(tmp_path) / "kernels").glob("*.mapping.txt")
    kernel = parse_kernel(path.with_name(path.name.replace(".mapping.", ".kernel.")).read_text())
    versions = parse_versions(path.read_text(), kernel.sizes)
    assert versions.target == "cuda" and format_versions(versions) == path.read_text()
    verify_versions(kernel, versions)


def test_the_report_says_how_each_kernel_runs(softmax_trace: Path) -> None:
    told = json.loads((softmax_trace / "report.json").read_text())["mappings"]
    written = {
        path.name.partition(".")[0]: path.read_text() for path in softmax_trace.glob("kernels/*.mapping.txt")
    }
    assert told == written != {}


def test_texts_parse_back(softmax_trace: Path) -> None:
    name = softmax_trace.name
    loops = (softmax_trace / f"{name}.loops.txt").read_text()
    assert format_graph(parse_graph(loops)) == loops
    parse_schedule((softmax_trace / f"{name}.schedule.txt").read_text())
    program = (softmax_trace / f"{name}.program.txt").read_text()
    assert format_program(parse_program(program)) == program
    for path in (softmax_trace / "kernels").glob("*.kernel.txt"):
        text = path.read_text()
        kernel = parse_kernel(text)
        assert format_kernel(kernel) == text
        # how it runs stands beside it
        mapping = path.with_name(path.name.replace(".kernel.txt", ".mapping.txt")).read_text()
        piece, _, told = mapping.rpartition("mapping @")
        versions = parse_versions("mapping @" + told, kernel.sizes)
        assert "mapping @" + told == format_versions(versions)
        verify_versions(parse_kernel(piece) if piece else kernel, versions)


def test_report_counts_and_times(softmax_trace: Path) -> None:
    report = json.loads((softmax_trace / "report.json").read_text())
    assert report["graph_id"] == softmax_trace.name
    assert (report["role"], report["cache_hit"], report["fallback"]) == ("inference", False, "")
    assert report["extern_calls"] == 1
    assert report["kernels"] >= report["distinct_kernels"] >= 1
    stages = {"lower", "schedule", "plan", "codegen", "wrap", "build", "verify"}
    assert stages <= set(report["seconds"])
    assert all(seconds >= 0 for seconds in report["seconds"].values())


def test_module_runs_by_itself(softmax_trace: Path, run_python: Callable[..., CompletedProcess[str]]) -> None:
    shown = run_python(str(softmax_trace / "module.py")).stdout.splitlines()
    assert shown[0].split() == ["kernel", "calls", "ms", "GB/s"]
    assert any(line.startswith("one call in total") for line in shown)
    names = {path.name.partition(".")[0] for path in (softmax_trace / "kernels").iterdir()}
    assert {line.split()[0] for line in shown[1:]} >= names


def test_nothing_is_written_without_a_folder(
    strictly: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    strictly(torch.sin)(torch.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_wrong_option(leniently: Compile, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        BackendCompilerFailed, match=r"(?s)bad-option.*trace: no folder .*file/inference"
    ) as raised:
        leniently(torch.sin, trace=str(file), cache=False)(torch.ones(3))
    assert isinstance(raised.value.inner_exception, OptionError)


def test_a_text_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = open_trace(str(tmp_path), "graph")
    (tmp_path / "graph" / "kernels").touch()
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        trace.write("kernels/one.cpp", "text")
        trace.write("module.py", "text")
    assert "one.cpp is not written" in caplog.text
    assert (tmp_path / "graph" / "module.py").read_text() == "text"


def test_the_environment_variable_names_the_folder_of_traces(
    leniently: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COILWORK_TRACE", str(tmp_path))
    leniently(torch.sin)(torch.ones(3))
    assert (only_folder(tmp_path) / "module.py").exists()
