"""Packed 16-bit arithmetic, which `ptxas` gets wrong, does not reach it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from coilwork_runtime import Builder
from coilwork_runtime.generated import TritonKernel
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import get_gpu_target, make_candidates, read_triton_version
from coilwork_runtime.triton_kernels.worker import mend_stages, split_packed_arithmetic

ROWS, COLUMNS, BLOCK = 16, 112, 2048
SOURCE = f"""
import triton
import triton.language as tl


@triton.jit
def halves(out, XBLOCK: tl.constexpr):
    index = tl.arange(0, XBLOCK)
    row = index // {COLUMNS}
    column = index % {COLUMNS}
    tl.store(out + index, (row + 1) // 2 * {COLUMNS} + (column + 1) // 2 * 7, index < {ROWS * COLUMNS})
"""
# A process that prints the PTX of a request before and after it is mended.
PROBE = """
import json, os, sys, tempfile
from pathlib import Path
from coilwork_runtime.triton_kernels import worker

seen, mend = [], worker.split_packed_arithmetic

def watched(ptx):
    seen.append((ptx, mend(ptx)))
    return seen[-1][1]

worker.split_packed_arithmetic = watched
with tempfile.TemporaryDirectory() as folder:
    os.environ["TRITON_CACHE_DIR"] = folder
    worker.compile_kernel(json.load(sys.stdin), Path(folder))
print(json.dumps(seen))
"""


def kernel() -> KernelSpec:
    """`out[112 * r + c] = (r + 1) // 2 * 112 + (c + 1) // 2 * 7`."""
    return TritonKernel(
        name="halves",
        source=SOURCE,
        entry="halves",
        args=("*out:i32",),
        arg_names=("out",),
        grid=("1",),
        configs=({"XBLOCK": BLOCK, "num_warps": 8, "num_stages": 1},),
        target="sm_90",
    )


def test_a_pair_becomes_two() -> None:
    text = "\tadd.s16x2 \t%r137, %r133, %r136;\n\tmax.u16x2 %r1, %r2, %r3;\n\tadd.s32 \t%r1, %r2, %r3;\n"
    one, two, three = split_packed_arithmetic(text).splitlines()
    assert "mov.b32 {cwa0, cwa1}, %r133; mov.b32 {cwb0, cwb1}, %r136;" in one
    assert "add.s16 cwa0, cwa0, cwb0; add.s16 cwa1, cwa1, cwb1; mov.b32 %r137, {cwa0, cwa1};" in one
    assert two.count("max.u16 ") == 2
    assert three == "\tadd.s32 \t%r1, %r2, %r3;"


def test_stages_without_ptx_stay() -> None:
    stages = {"amdgcn": len}
    assert mend_stages(None, stages) is None
    assert stages == {"amdgcn": len}


def test_it_reaches_the_assembler_in_halves() -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    spec = kernel()
    (only,) = make_candidates(spec, get_gpu_target(spec), read_triton_version())
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(only.request),
        capture_output=True,
        text=True,
        check=True,
    )
    ((before, after),) = json.loads(done.stdout.splitlines()[-1])
    assert "s16x2" in before
    assert "s16x2" not in after


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_indices_are_right_on_a_gpu() -> None:
    out = torch.full((ROWS * COLUMNS,), -1, dtype=torch.int32, device="cuda")
    Builder().build([kernel()])["halves"](out)
    row = torch.arange(ROWS, device="cuda")[:, None]
    column = torch.arange(COLUMNS, device="cuda")[None, :]
    expected = (row + 1) // 2 * COLUMNS + (column + 1) // 2 * 7
    assert torch.equal(out.view(ROWS, COLUMNS), expected.int())
