"""Triton kernels run on CPU tensors in Triton's interpreter, and do there what they do on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter


def run_interpreted(code: str) -> str:
    """What `code` prints in a process where Triton interprets."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_and_their_checks() -> None:
    code = """
        import torch
        from runtime_sample_kernels import checked_kernel, triton_kernel
        from coilwork_runtime import Builder
        kernels = Builder().build([triton_kernel(), checked_kernel()])
        for n in (0, 1, 1000):
            x = torch.randn(n)
            y = torch.full_like(x, -1)
            kernels["double_it"](x, y, n)
            assert torch.equal(y, 2 * x), n
        x = torch.arange(8)
        kernels["checked"](x, 8)
        assert x.tolist() == list(range(1, 9))
        try:
            kernels["checked"](torch.full((3,), 99), 3)
        except IndexError as error:
            print(error)
    """
    assert run_interpreted(code) == "index out of range (in kernel checked)\n"


def test_single_values_meet_blocks_in_a_loop_to_a_symbolic_bound() -> None:
    code = """
        import torch
        from runtime_sample_kernels import positive_kernel
        from coilwork_runtime import Builder
        positive = Builder().build([positive_kernel()])["positive"]
        for n in (0, 1, 1000):
            x, y = torch.randn(n), torch.full((n,), -1.0)
            for limit in (-1.0, 1.0):
                positive(x, torch.tensor(limit), y, n)
                assert torch.equal(y, ((limit < 0) & (x > 0)).float()), n
    """
    assert run_interpreted(code) == ""


def test_bf16_is_rounded_to_nearest() -> None:
    code = """
        import math
        import torch
        from runtime_sample_kernels import rounding_kernel
        from coilwork_runtime import Builder
        a = torch.tensor([0.0, 1.005, -1.005, 3.14159, 1e-40, 3.4e38, -math.inf, math.nan])
        n = torch.tensor([0, 1, -1, 255, 257, 259, 100_001, -(2**40) - 3])
        b, c = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.float64)
        Builder().build([rounding_kernel()])["rounded"](a, n, b, c)
        torch.testing.assert_close(b, a.bfloat16(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(c, n.bfloat16().double()), c
    """
    assert run_interpreted(code) == ""


def test_matrices_of_bf16_are_multiplied_as_numbers() -> None:
    code = """
        import torch
        from runtime_sample_kernels import product_kernel
        from coilwork_runtime import Builder
        a, b = (torch.randn(16, 16).bfloat16() for _ in range(2))
        c = torch.zeros(16, 16)
        Builder().build([product_kernel()])["product"](a, b, c)
        torch.testing.assert_close(c, a.float() @ b.float())
    """
    assert run_interpreted(code) == ""
