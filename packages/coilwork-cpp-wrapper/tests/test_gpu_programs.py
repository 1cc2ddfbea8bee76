"""Programs for a GPU: on one that is not there, whose driver calls functions of the host."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_program_runs import SPECS, TEXT
from hand_programs import program_of

from coilwork_cpp_wrapper import emit_cpp, write_sources
from coilwork_ir.errors import EmitError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `gpu_program_runs` saw, in a process of its own, as the driver's name is the real one's."""
    if shutil.which("g++") is None or torch.version.cuda is not None:
        pytest.skip("needs g++, and a torch that has no CUDA of its own")
    module = Path(__file__).with_name("gpu_program_runs.py")
    command = [sys.executable, str(module), str(tmp_path_factory.mktemp("gpu"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_python_launches_until_a_kernel_is_settled(found: dict[str, Any]) -> None:
    assert found["gpu"] == ["cuda:0", ["relu_add", "double"]]
    # relu_add settles in the first call, double in the second; no blocks are no launch
    assert found["by Python"] == 4
    assert found["launches"] == [8, 0x50, 1, 64]


def test_sizes_choose_the_version_and_the_grid(found: dict[str, Any]) -> None:
    assert found["16 elements"] == [1, 64]
    assert found["12 elements"] == [1, 32]


def test_the_programs_gpu_is_current_during_a_call(found: dict[str, Any]) -> None:
    assert found["open guards"] == 0


def test_embedded_kernels_are_loaded_once_when_they_are_wanted(found: dict[str, Any]) -> None:
    assert found["without a launch"] == 0
    # two versions and one, whatever number of threads begins at once
    assert found["loads"] == 3 and found["wrong"] == []


def test_failures_name_kernel_and_line(found: dict[str, Any]) -> None:
    assert "kernel relu_add: the driver refuses a launch of 1 x 1 x 1 blocks: error 700" in found["refused"]
    assert "model.py:7   y = x.relu() + x" in found["refused"]
    assert found["failed in Python"] == "KeyError: 'kernel relu_add'"
    assert "kernel double cannot be loaded: the GPU driver cannot load kernel double" in found["damaged"]
    assert "kernel relu_add is not loaded" in found["not brought"]


def test_the_script_builds_a_library_for_processes_without_python(found: dict[str, Any]) -> None:
    assert found["signature"] == "(x: f32[s0, 4], w: f32[4]) -> (z: f32[s0, 4])"


def test_sources_need_the_machine_code(tmp_path: Path) -> None:
    with pytest.raises(EmitError, match="launches relu_add, double"):
        write_sources(emit_cpp(program_of(TEXT), SPECS), tmp_path)


def test_operators_are_the_gpus_own() -> None:
    text = emit_cpp(
        program_of(
            """program @p {
              input %x: f32[4, 4] @cuda:0
              input %n: f32[] @cpu
              check %x
              alloc %y: f32[4, 4] @cuda:0
              extern "aten.mm.out" (%x, %x) out ("out" %y)
              extern "aten.mul.Tensor" (%y, %n) defines (%z: f32[4, 4] @cuda:0)
              extern "aten.zeros.default" ([2], device = device "cuda:0") defines (%w: f32[2] @cuda:0)
              return (%z, %w)
            }"""
        ),
        {},
    ).text
    assert "aoti_torch_cuda_mm_out(y.get(), x.get(), x.get())" in text
    # only the dispatcher sorts out tensors of several devices
    assert 'rt::call("aten::mul", "Tensor"' in text
    assert "rt::gpu().type" in text or "rt::place(rt::gpu())" in text
    assert "const rt::OnGpu device;" in text
