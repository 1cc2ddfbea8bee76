"""Gluon in Triton's interpreter: roles of warps take turns, and what is wrong with them shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiles Triton kernels")
pytestmark = pytest.mark.interpreter

# The loader brings 4 blocks to 2 stages, and the consumer adds the product of each with itself.
KERNEL = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
import triton.language as tl


@gluon.jit
def bring(blocks, stages, full, free):
    for k in range(0, 4):
        hopper.mbarrier.wait(free.index(k % 2), (k // 2 & 1) ^ 1)
        hopper.mbarrier.expect(full.index(k % 2), 16 * 16 * 4)
        hopper.tma.async_copy_global_to_shared(blocks, [0, 16 * k], full.index(k % 2), stages.index(k % 2))


@gluon.jit
def add(stages, full, free, b):
    sums = gl.full([16, 16], 0.0, tl.float32, None)
    for k in range(0, 4):
        hopper.mbarrier.wait(full.index(k % 2), k // 2 & 1)
        block = stages.index(k % 2)
        sums = hopper.warpgroup_mma(block, block.permute((1, 0)), sums, is_async=True)
        sums = hopper.warpgroup_mma_wait(PENDING, deps=[sums])
        hopper.mbarrier.arrive(free.index(k % 2), count=ARRIVALS)
    sums = hopper.warpgroup_mma_wait(0, deps=[sums])
    place = gl.arange(0, 16, layout=None)
    tl.store(b + place[:, None] * 16 + place[None, :], sums)


@gluon.jit
def double_it(a, b, n0, XBLOCK: gl.constexpr):
    blocks = hopper.tma.make_tensor_descriptor(
        a, [16, 64], [64, 1], [16, 16], gl.NVMMASharedLayout.get_default_for([16, 16], tl.float32)
    )
    stages = gl.allocate_shared_memory(blocks.dtype, [2, 16, 16], blocks.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], hopper.mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], hopper.mbarrier.MBarrierLayout())
    for stage in gl.static_range(2):
        hopper.mbarrier.init(full.index(stage), count=1)
        hopper.mbarrier.init(free.index(stage), count=1)
    gl.warp_specialize([(add, (stages, full, free, b)), (bring, (blocks, stages, full, free))], [1], [24])
"""


# What the consumer leaves under way, and how often it says that a stage is free: right, too early, never.
VARIANTS = {"right": (0, 1), "early": (1, 1), "stuck": (0, 0)}


@pytest.fixture(scope="module")
def ends() -> dict[str, str]:
    """How each variant ends: if results are right, or its error."""
    code = """
        import json
        import torch
        from runtime_sample_kernels import triton_kernel
        from test_gluon_interpreter import KERNEL, VARIANTS
        from coilwork_runtime import Builder
        ends = {}
        for name, (pending, arrivals) in VARIANTS.items():
            source = KERNEL.replace("PENDING", str(pending)).replace("ARRIVALS", str(arrivals))
            a, b = torch.randn(16, 64), torch.zeros(16, 16)
            try:
                Builder().build([triton_kernel(source=source)])["double_it"](a, b, 1)
                ends[name] = str(torch.allclose(b, a @ a.T, atol=1e-3))
            except Exception as error:
                ends[name] = repr(error)
        print(json.dumps(ends))
    """
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_roles_take_turns(ends: dict[str, str]) -> None:
    assert ends["right"] == "True"


def test_a_stage_that_is_free_too_early_shows_in_results(ends: dict[str, str]) -> None:
    assert ends["early"] == "False"


def test_roles_that_wait_for_each_other_are_an_error(ends: dict[str, str]) -> None:
    assert "DeadlockError" in ends["stuck"]
