"""Triton kernels run on CPU tensors in Triton's interpreter, and do there what they do on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiles Triton kernels")
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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_joined_operands_are_combined_in_order(axis: int, backwards: bool) -> None:
    code = f"""
        import functools, itertools
        import torch
        from runtime_sample_kernels import joined_kernel
        from coilwork_runtime import Builder

        axis, backwards = {axis}, {backwards}
        then = lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1])
        flat = lambda pairs: [x for part in zip(*pairs) for x in part]
        for rows, columns in ((1, 1), (1, 2), (8, 1), (2, 16), (16, 4)):
            a = torch.randint(0, 2, (rows, columns)) * 2 - 1
            b = torch.randint(-9, 10, (rows, columns))
            along, across = (rows, columns) if axis == 0 else (columns, rows)
            outs = [torch.zeros(2 * n, dtype=torch.int64) for n in (across, across, 1, rows * columns)]
            kernel = joined_kernel(rows, columns, axis, backwards=backwards)
            Builder().build([kernel])["joined"](a, b, *outs)

            pairs = torch.stack((a, b), -1)
            lines = [[tuple(f) for f in line] for line in pairs.transpose(0, 1 - axis).tolist()]
            wholes = flat(functools.reduce(then, line) for line in lines)
            assert outs[0].tolist() == outs[1].tolist() == wholes, (rows, columns)
            everything = functools.reduce(then, map(tuple, pairs.reshape(-1, 2).tolist()))
            assert outs[2].tolist() == list(everything), (rows, columns)
            turn = (lambda x: x[::-1]) if backwards else (lambda x: x)
            prefixes = [turn(list(itertools.accumulate(turn(line), then))) for line in lines]
            found = outs[3].reshape(2, rows, columns).permute(1, 2, 0).transpose(0, 1 - axis)
            assert found.tolist() == [[list(f) for f in line] for line in prefixes], (rows, columns)
    """
    assert run_interpreted(code) == ""


def test_three_operands_of_floats_are_joined() -> None:
    code = """
        import torch
        from runtime_sample_kernels import moments_kernel
        from coilwork_runtime import Builder
        for n in (1, 2, 1024):
            a, b = torch.randn(n) + 100, torch.zeros(3)
            Builder().build([moments_kernel(n)])["moments"](a, b)
            wide = a.double()
            want = torch.stack((torch.tensor(float(n)).double(), wide.mean(), wide.var(correction=0)))
            torch.testing.assert_close(b.double(), want, rtol=1e-5, atol=0)
    """
    assert run_interpreted(code) == ""
