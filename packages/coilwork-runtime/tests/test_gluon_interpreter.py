"""Gluon in Triton's interpreter: roles of warps take turns, and what is wrong with them shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

pytest.importorskip("triton", reason="compiles Triton kernels")
pytestmark = pytest.mark.interpreter

# The loader brings 4 blocks to 2 stages, and the consumer adds the product of each with itself, and the block
# times 1. The copy engine stores the sums, and twice as much behind them from the same place.
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
def add(results, result, unit, stages, full, free):
    place = gl.arange(0, 16, layout=None)
    unit.index(0).store((place[:, None] == place[None, :]).to(tl.float32))
    if FENCE:
        hopper.fence_async_shared()
    sums = gl.full([16, 16], 0.0, tl.float32, None)
    for k in range(0, 4):
        if not LATE:
            hopper.mbarrier.wait(full.index(k % 2), k // 2 & 1)
        block = stages.index(k % 2)
        held = block.load(None)
        sums = hopper.warpgroup_mma(block, block.permute((1, 0)), sums, is_async=True)
        if HELD:
            sums = hopper.warpgroup_mma_wait(0, deps=[sums])
            hopper.mbarrier.arrive(free.index(k % 2), count=1)
        sums = hopper.warpgroup_mma(held, unit.index(0), sums, is_async=True)
        sums = hopper.warpgroup_mma_wait(PENDING, deps=[sums])
        if LATE:
            hopper.mbarrier.wait(full.index(k % 2), k // 2 & 1)
        if not HELD:
            hopper.mbarrier.arrive(free.index(k % 2), count=ARRIVALS)
    sums = hopper.warpgroup_mma_wait(0, deps=[sums])
    for k in range(0, 2):
        hopper.tma.store_wait(UNREAD)
        result.index(0).store(sums * (k + 1))
        hopper.fence_async_shared()
        hopper.tma.async_copy_shared_to_global(results, [16 * k, 0], result.index(0))
    hopper.tma.store_wait(LEFT)


@gluon.jit
def double_it(a, b, n0, XBLOCK: gl.constexpr):
    blocks = hopper.tma.make_tensor_descriptor(
        a, [16, 64], [64, 1], [16, 16], gl.NVMMASharedLayout.get_default_for([16, 16], tl.float32)
    )
    results = hopper.tma.make_tensor_descriptor(
        b, [32, 16], [16, 1], [16, 16], gl.NVMMASharedLayout.get_default_for([16, 16], tl.float32)
    )
    result = gl.allocate_shared_memory(results.dtype, [1, 16, 16], results.layout)
    unit = gl.allocate_shared_memory(results.dtype, [1, 16, 16], results.layout)
    stages = gl.allocate_shared_memory(blocks.dtype, [2, 16, 16], blocks.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], hopper.mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], hopper.mbarrier.MBarrierLayout())
    for stage in gl.static_range(2):
        hopper.mbarrier.init(full.index(stage), count=1)
        hopper.mbarrier.init(free.index(stage), count=1)
    consumer = (add, (results, result, unit, stages, full, free))
    gl.warp_specialize([consumer, (bring, (blocks, stages, full, free))], [1], [24])
"""


# What a variant does otherwise. PENDING: products under way when a stage is called free. ARRIVALS: how often
# that is said. LATE: blocks are waited for behind their product. HELD: a stage is free before registers have
# it. FENCE: one is behind what threads store. UNREAD, LEFT: stores that may not be read yet when others
# follow, and at the end.
RIGHT: Mapping[str, int] = MappingProxyType(
    {"PENDING": 0, "ARRIVALS": 1, "LATE": False, "HELD": False, "FENCE": True, "UNREAD": 0, "LEFT": 0}
)
VARIANTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "right": {},
        "free too early": {"PENDING": 1},
        "stuck": {"ARRIVALS": 0},
        "read too early": {"LATE": True},
        "read too late": {"HELD": True},
        "stored over": {"UNREAD": 1},
        "left": {"LEFT": 1},
        "no fence": {"FENCE": False},
    }
)


@pytest.fixture(scope="module")
def ends() -> dict[str, str]:
    """How each variant ends: if results are right, or its error."""
    code = """
        import json
        import torch
        from runtime_sample_kernels import triton_kernel
        from test_gluon_interpreter import KERNEL, RIGHT, VARIANTS
        from coilwork_runtime import Builder
        ends = {}
        for name, changes in VARIANTS.items():
            source = KERNEL
            for word, value in (RIGHT | changes).items():
                source = source.replace(word, str(value))
            a, b = torch.randn(16, 64), torch.zeros(32, 16)
            sums = a @ a.T + a.view(16, 4, 16).sum(1)
            try:
                Builder().build([triton_kernel(source=source)])["double_it"](a, b, 1)
                ends[name] = str(torch.allclose(b, torch.cat([1 * sums, 2 * sums]), atol=1e-3))
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


@pytest.mark.parametrize("name", ["free too early", "read too early", "read too late", "stored over"])
def test_what_a_kernel_does_not_wait_for_shows_in_results(ends: dict[str, str], name: str) -> None:
    assert ends[name] == "False"


def test_roles_that_wait_for_each_other_are_an_error(ends: dict[str, str]) -> None:
    assert "DeadlockError" in ends["stuck"]


def test_a_role_that_ends_before_its_results_are_read_is_an_error(ends: dict[str, str]) -> None:
    assert "LeftStoreError" in ends["left"]


def test_what_threads_stored_is_read_behind_a_fence(ends: dict[str, str]) -> None:
    assert "NoFenceError" in ends["no fence"]
