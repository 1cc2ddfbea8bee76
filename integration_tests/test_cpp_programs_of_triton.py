"""Programs in C++ that launch Triton kernels, on machines without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.planner import Planner
from coilwork_cpp_wrapper import emit_cpp
from coilwork_ir.program.walk import list_kernels
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.manifest.kernel_manifest import KernelArgument, KernelSpec
from integration_tests.interpreting import answers_of


@pytest.mark.interpreter
def test_python_launches_what_has_no_machine_code(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.interpreted_cpp_programs", tmp_path)
    assert not any(found.values()), "\n".join(found.values())


def test_a_training_step_for_a_gpu_compiles_as_cpp() -> None:
    planner = Planner(target="sm_90")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.Dropout(0.1))
    torch.compile(layers, backend=planner, dynamic=True)(torch.randn(32, 64)).sum().backward()
    assert len(planner.programs) == 2
    for program in planner.programs:
        specs = {
            kernel.name: KernelSpec(
                name=kernel.name,
                language="triton",
                entry=kernel.name,
                args=(
                    *(KernelArgument(name=a.name, role=a.role, dtype=a.dtype.text) for a in kernel.args),
                    *(KernelArgument(name=s.name, role="size", dtype="i64") for s in kernel.sizes),
                ),
                source="",
            )
            for kernel in list_kernels(program)
        }
        cpp = emit_cpp(program, specs)
        assert cpp.gpu == "cuda:0" and len(cpp.gpu_kernels) == len(specs) > 0
        assert "aoti_torch_cpu_" not in cpp.text and "aoti_torch_cuda_" in cpp.text
        command = [*find_toolchain().words, "-std=c++17", "-w", "-fsyntax-only", "-x", "c++", "-"]
        done = subprocess.run(command, input=cpp.text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
