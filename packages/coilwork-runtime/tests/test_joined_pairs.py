"""Pairs of 8-bit floats that a kernel stores and goes on with, which `ptxas` loses when it joins them, are
joined by shifts.

From Triton's PTX ptxas 12.8 makes, where `%rs1` is stored and read as well,

    F2FP.F16.E4M3.UNPACK_B R10, R10                              reads R10, which nothing has been written to
    F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R33, R20, R19, RZ
    F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R31, R18, R13, R33   the conversion, moved to where two pairs are
    joined

for `e4m3` and `e5m2` alike, for `f16`, `bf16` and `f32` before and behind them, and for bytes of the pair.
Other 8-bit floats are made by arithmetic on integers, which it gets right.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from coilwork_runtime import Builder
from coilwork_runtime.generated import TritonKernel
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import get_gpu_target, make_candidates, read_triton_version
from coilwork_runtime.triton_kernels.worker import split_joined_pairs

COUNT, BLOCK = 4096, 1024
SOURCE = """
import triton
import triton.language as tl


@triton.jit
def rounded(in0, out0, out1, XBLOCK: tl.constexpr):
    index = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    small = tl.load(in0 + index).to(tl.float32).to(tl.{small})
    tl.store(out0 + index, small)
    tl.store(out1 + index, small.to(tl.float32) * 2.0)
"""
PROBE = """
import json, os, sys, tempfile
from pathlib import Path
from coilwork_runtime.triton_kernels import worker

seen, mend = [], worker.split_joined_pairs

def watched(ptx):
    seen.append((ptx, mend(ptx)))
    return seen[-1][1]

worker.split_joined_pairs = watched
with tempfile.TemporaryDirectory() as folder:
    os.environ["TRITON_CACHE_DIR"] = folder
    for request in json.load(sys.stdin):
        worker.compile_kernel(request, Path(folder))
print(json.dumps(seen))
"""
SMALL = {"float8e4nv": "f8e4m3", "float8e5": "f8e5m2"}
PAIR = "\tcvt.rn.satfinite.e4m3x2.f32  %rs1, %r2, %r1;\n\tcvt.rn.satfinite.e4m3x2.f32  %rs2, %r4, %r3;\n"
JOIN = "\tmov.b32 \t%r9, {%rs1, %rs2};\n"


def kernel(small: str, given: str) -> KernelSpec:
    return TritonKernel(
        name="rounded",
        source=SOURCE.format(small=small),
        entry="rounded",
        args=(f"*in:{given}:16", f"*out:{SMALL[small]}:16", "*out:f32:16"),
        arg_names=("in0", "out0", "out1"),
        grid=(str(COUNT // BLOCK),),
        configs=({"XBLOCK": BLOCK, "num_warps": 4, "num_stages": 1},),
        target="sm_90",
    )


@pytest.mark.parametrize(
    "reader",
    [
        "\tcvt.rn.f16x2.e4m3x2 %r5, %rs1;\n",
        "\tshr.s16 \t%rs3, %rs1, 8;\n",
        "\tst.global.b16 [ %rd1 + 0 ], { %rs2 };\n",
        "\tmov.b32 \t%r8, {%rs2, %rs4};\n",
    ],
)
def test_what_is_read_elsewhere_is_joined_by_shifts(reader: str) -> None:
    mended = split_joined_pairs(PAIR + reader + JOIN)
    assert mended.startswith(PAIR)
    assert (
        "cvt.u32.u16 cwj0, %rs1; cvt.u32.u16 cwj1, %rs2; shl.b32 cwj1, cwj1, 16; or.b32 %r9, cwj0, cwj1;"
        in mended
    )
    assert "{%rs1, %rs2}" not in mended


@pytest.mark.parametrize(
    "text",
    [
        PAIR + JOIN,
        PAIR + JOIN + "\tadd.s16 \t%rs11, %rs12, %rs22;\n",
        "\tcvt.rn.f16x2.e4m3x2 %r5, %rs1;\n\tshr.s16 \t%rs3, %rs1, 8;\n" + JOIN,
        "\tcvt.rn.bf16x2.f32 \t%r9, %r1, %r2;\n\tmov.b32 \t{%rs1, %rs2}, %r9;\n\tneg.s16 \t%rs3, %rs1;\n"
        + JOIN,
    ],
)
def test_other_joins_stay(text: str) -> None:
    assert split_joined_pairs(text) == text


def test_no_shared_pair_is_joined_before_the_assembler() -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    requests = []
    for small in SMALL:
        for given in ("f32", "bf16"):
            spec = kernel(small, given)
            (only,) = make_candidates(spec, get_gpu_target(spec), read_triton_version())
            requests.append(only.request)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    stages = json.loads(done.stdout.splitlines()[-1])
    assert any(joined_shared_pairs(before) for before, _ in stages)
    assert not any(joined_shared_pairs(after) for _, after in stages)


def joined_shared_pairs(ptx: str) -> list[str]:
    """Registers of pairs in a join of 16-bit registers that something else reads, too."""
    pairs = re.findall(r"cvt\.rn\.satfinite\.e\dm\dx2\.f32\s+(%rs\d+)", ptx)
    joined = {name for two in re.findall(r"mov\.b32\s+%r\d+, \{(%rs\d+), (%rs\d+)\}", ptx) for name in two}
    return [name for name in pairs if name in joined and len(re.findall(rf"{name}\b", ptx)) > 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("given", ["f32", "bf16"])
@pytest.mark.parametrize("small", list(SMALL))
def test_what_is_stored_is_what_is_gone_on_with_on_a_gpu(small: str, given: str) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no 8-bit floats")
    dtype = torch.float8_e4m3fn if small == "float8e4nv" else torch.float8_e5m2
    x = torch.linspace(-400, 400, COUNT, device="cuda").to(
        torch.float32 if given == "f32" else torch.bfloat16
    )
    codes = torch.empty(COUNT, dtype=dtype, device="cuda")
    doubled = torch.empty(COUNT, device="cuda")
    Builder().build([kernel(small, given)])["rounded"](x, codes, doubled)
    assert torch.equal(codes.view(torch.uint8), x.to(dtype).view(torch.uint8))
    assert torch.equal(doubled, x.to(dtype).float() * 2)
