"""Kernels of equal texts share their binaries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runtime_sample_kernels import rewrite, triton_kernel

from coilwork_runtime import Builder
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import GpuBinary, WorkerPool
from coilwork_runtime.triton_kernels.triton_builder import group_equal_texts


def renamed(name: str, **changes: Any) -> KernelSpec:
    """The sample kernel, whose text says that it is called `name`."""
    source = triton_kernel().source.replace("double_it", name)
    return rewrite(
        triton_kernel(name),
        source=f'"""{name} of another line."""\n# {name}\n{source}',
        entry=name,
        **changes,
    )


FIRST, SECOND = renamed("double_1"), renamed("double_2", grid=("7",), traffic=None)


class CountingPool(WorkerPool):
    """Answers with the entry's name as code."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, int]] = []

    def compile(self, request: Any, *, timeout_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        self.requests.append((request["entry"], request["constants"]["XBLOCK"]))
        metadata = {"name": request["entry"], "shared": 0, "num_warps": 4, "num_ctas": 1, "warp_size": 32}
        rest = {"global_scratch_size": 0, "profile_scratch_size": 0}
        flags = {"launch_cooperative_grid": False, "launch_pdl": False}
        return metadata | rest | flags, request["entry"].encode()


def test_names_comments_and_launches_do_not_count() -> None:
    assert group_equal_texts([FIRST, SECOND]) == {"double_1": FIRST, "double_2": FIRST}


@pytest.mark.parametrize(
    "other",
    [
        replace(SECOND, source=SECOND.source.replace("* 2", "* 3")),
        rewrite(SECOND, args=("*in:f32", "*out:f32:16", "size:i32")),
        replace(SECOND, checks=("out of range",)),
        replace(SECOND, target="sm_80"),
        replace(SECOND, source="no python ("),
        # a text that mentions its name is not the text of another name
        replace(SECOND, source=SECOND.source + "other = double_2\n"),
    ],
)
def test_everything_else_does(other: KernelSpec) -> None:
    assert group_equal_texts([FIRST, other])["double_2"] is other


def test_one_binary_is_built_for_both() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    pool = CountingPool()
    progress: list[tuple[int, int]] = []
    wider = replace(SECOND, configs=triton_kernel(blocks=(512, 1024)).configs)
    built = Builder(pool=pool, workers=1).binaries([FIRST, wider])
    assert sorted(pool.requests) == [("double_1", 512), ("double_1", 1024)]
    names = [[found[1].name for found in one if isinstance(found[1], GpuBinary)] for one in built]
    assert names == [["double_1"], ["double_1", "double_1"]]
    launchers = Builder(pool=pool, workers=1, progress=lambda done, of, _: progress.append((done, of))).build(
        [FIRST, wider]
    )
    assert list(launchers) == ["double_1", "double_2"]
    assert progress == [(1, 2), (2, 2)]


def test_large_kernels_are_built_first() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    pool = CountingPool()
    small, large = renamed("small"), renamed("large")
    dots = "    tl.dot(a, b)\n" * 30
    large = replace(large, source=large.source + dots, configs=triton_kernel(blocks=(512, 8192)).configs)
    Builder(pool=pool, workers=1).binaries([small, large])
    assert pool.requests == [("large", 8192), ("large", 512), ("small", 512)]
