"""Generated modules that run by themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runtime_sample_kernels import cpp_kernel, module_text

from coilwork_runtime.generated import random_input


def test_a_module_runs_by_itself_and_prints_times(tmp_path: Path) -> None:
    file = tmp_path / "generated_module.py"
    file.write_text(module_text(cpp_kernel()))
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    header, kernel, every, total = done.stdout.splitlines()
    assert header.split() == ["kernel", "calls", "ms", "GB/s"]
    assert re.fullmatch(r"double_it +1 +\d+\.\d{4} +\d+\.\d", kernel)
    assert re.fullmatch(r"all kernels +1 +\d+\.\d{4} +\d+\.\d", every)
    assert re.fullmatch(r"one call in total +1 +\d+\.\d{4} +\d+\.\d", total)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.complex64,
    ],
)
def test_made_up_inputs(dtype: torch.dtype) -> None:
    value = random_input((4, 6), (1, 4), dtype, "cpu")
    assert (value.dtype, value.shape, value.stride()) == (dtype, (4, 6), (1, 4))
    if not dtype.is_floating_point and not dtype.is_complex:
        assert set(value.flatten().tolist()) <= {0, 1}


def test_made_up_inputs_with_gaps_and_repeats() -> None:
    assert random_input((3,), (5,), torch.float32, "cpu").stride() == (5,)
    expanded = random_input((3, 2), (0, 1), torch.float32, "cpu")
    assert expanded.stride() == (0, 1) and torch.equal(expanded[0], expanded[2])
    assert random_input((0, 2), (2, 1), torch.float32, "cpu").numel() == 0
