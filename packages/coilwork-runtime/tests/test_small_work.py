"""Of kernels with little to do, one configuration is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runtime_sample_kernels import triton_kernel

from coilwork_runtime import Builder
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.manifest.size_bytecode import Op, SizeBytecode, make_constant_code
from coilwork_runtime.triton_kernels.autotune.search import Search
from coilwork_runtime.triton_kernels.compilation import WorkerError, WorkerPool
from coilwork_runtime.triton_kernels.triton_builder import FEW_BYTES, is_best_guess_enough

SMALL = replace(triton_kernel(blocks=(512, 256, 1024)), traffic=make_constant_code(FEW_BYTES))


class RefusingPool(WorkerPool):
    """Refuses some block sizes, and notes all."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.refused = refused
        self.blocks: list[int] = []

    def compile(self, request: Any, *, timeout_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        block = request["constants"]["XBLOCK"]
        self.blocks.append(block)
        if block in self.refused:
            raise WorkerError(f"block {block} is too large")
        metadata = {"name": "double_it", "shared": 0, "num_warps": 4, "num_ctas": 1, "warp_size": 32}
        rest = {"global_scratch_size": 0, "profile_scratch_size": 0}
        return metadata | rest | {"launch_cooperative_grid": False, "launch_pdl": False}, b"code"


def built_blocks(
    spec: KernelSpec, *refused: int, search: Search | None = None
) -> tuple[list[int], list[int]]:
    """The blocks of which there are binaries, and those that were tried."""
    pytest.importorskip("triton", reason="its version is part of the key")
    pool = RefusingPool(*refused)
    (built,) = Builder(pool=pool, workers=1, search=search).binaries([spec])
    return [config["XBLOCK"] for config, _ in built], pool.blocks


def test_the_best_guess_alone_is_built() -> None:
    assert built_blocks(SMALL) == ([512], [512])


def test_the_others_are_if_it_does_not_compile() -> None:
    assert built_blocks(SMALL, 512) == ([256, 1024], [512, 512, 256, 1024])


def test_a_search_starts_from_all() -> None:
    assert len(built_blocks(SMALL, search=Search())[0]) == 3


@pytest.mark.parametrize(
    "other",
    [
        replace(SMALL, traffic=make_constant_code(FEW_BYTES + 1)),
        replace(SMALL, traffic=SizeBytecode(((Op.SIZE, 0),))),
        replace(SMALL, traffic=None),
        replace(SMALL, source=SMALL.source + "    for k in range(9):\n        tl.store(b, k)\n"),
        replace(SMALL, source=SMALL.source + "    tl.store(b, tl.cumsum(i, 0))\n"),
        replace(SMALL, source="no python ("),
    ],
)
def test_more_work_or_work_in_chains_has_candidates(other: KernelSpec) -> None:
    assert not is_best_guess_enough(other)
