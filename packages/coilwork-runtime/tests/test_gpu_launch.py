"""Triton kernels on a real GPU: launches, streams, devices, shared memory, tuning."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch
from runtime_sample_kernels import checked_kernel, rewrite, triton_kernel, version

from coilwork_cache import MemoryStore, TuningCache
from coilwork_runtime import Builder, DeviceError, KernelLaunchError, Search, describe_gpu
from coilwork_runtime.generated import TritonKernel
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.autotune.records import recall, record_key
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.driver import find_launcher_extension, make_slow_kernel, present_driver
from coilwork_runtime.triton_kernels.gpu import LoadedKernel, make_torch_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# Two blocks of (ROWS, 128) f32 per program, exchanged through shared memory: far more than 48 kB.
WIDE = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    x = tl.load(a + at)
    y = tl.load(b + at)
    tl.store(c + at, tl.dot(x, y))
"""


def present_target() -> str:
    return describe_gpu(0).name


def doubling() -> KernelSpec:
    return triton_kernel(target=present_target())


def product_kernel(size: int) -> KernelSpec:
    return TritonKernel(
        name="product",
        source=WIDE,
        entry="product",
        args=("*in:f32:16", "*in:f32:16", "*out:f32:16"),
        arg_names=("a", "b", "c"),
        grid=("1",),
        configs=({"SIZE": size, "num_warps": 8, "num_stages": 1},),
        target=present_target(),
    )


@pytest.mark.parametrize("n", [1, 511, 512, 100_003])
def test_computes_on_the_gpu(n: int) -> None:
    launch = Builder().build([doubling()])["double_it"]
    x = torch.randn(n, device="cuda")
    y = torch.full_like(x, -1)
    launch(x, y, n)
    assert torch.equal(y, 2 * x)


def test_an_empty_tensor_launches_nothing() -> None:
    launch = Builder().build([doubling()])["double_it"]
    x = torch.empty(0, device="cuda")
    launch(x, x, 0)
    torch.cuda.synchronize()


def test_uses_the_current_stream() -> None:
    launch = Builder().build([doubling()])["double_it"]
    x = torch.randn(1 << 24, device="cuda")
    y = torch.zeros_like(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            launch(x, y, x.numel())
        done = torch.cuda.Event()
        done.record()
    done.synchronize()
    assert torch.equal(y, 2 * x)


def test_is_recorded_into_a_graph() -> None:
    launch = Builder().build([doubling()])["double_it"]
    x = torch.randn(1000, device="cuda")
    y = torch.zeros_like(x)
    launch(x, y, 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y, 1000)
    x.fill_(3)
    graph.replay()
    assert torch.equal(y, torch.full_like(y, 6))


def test_works_from_a_fresh_thread() -> None:
    launch = Builder().build([doubling()])["double_it"]
    x = torch.randn(1000, device="cuda")
    y = torch.zeros_like(x)
    launch(x, y, 1000)
    z = torch.zeros_like(x)
    thread = threading.Thread(target=launch, args=(x, z, 1000))
    thread.start()
    thread.join()
    assert torch.equal(z, 2 * x)


def test_more_shared_memory_than_a_block_gets_unasked() -> None:
    kernel = product_kernel(128)
    launch = Builder().build([kernel])["product"]
    a, b = torch.randn(128, 128, device="cuda"), torch.randn(128, 128, device="cuda")
    c = torch.empty_like(a)
    launch(a, b, c)
    torch.testing.assert_close(c, (a.double() @ b.double()).float(), rtol=2e-2, atol=0.1)


def test_a_binary_that_asks_for_too_much_is_refused() -> None:
    gpu = make_torch_gpu(None)
    real = gpu.load

    def greedy(binary: GpuBinary, device: int, kinds: str) -> LoadedKernel:
        return real(dataclasses.replace(binary, shared_bytes=1 << 20), device, kinds)

    launch = Builder(gpu=dataclasses.replace(gpu, load=greedy)).build([doubling()])["double_it"]
    x = torch.randn(8, device="cuda")
    with pytest.raises(KernelLaunchError, match="shared memory"):
        launch(x, x.clone(), 8)


def test_the_ctypes_launcher_does_the_same() -> None:
    gpu = make_torch_gpu(None)

    def load(binary: GpuBinary, device: int, kinds: str) -> LoadedKernel:
        driver = present_driver()
        return LoadedKernel(launch=make_slow_kernel(driver, driver.load(binary, device), binary, kinds))

    launch = Builder(gpu=dataclasses.replace(gpu, load=load)).build([doubling()])["double_it"]
    x = torch.randn(1000, device="cuda")
    y = torch.zeros_like(x)
    launch(x, y, 1000)
    assert torch.equal(y, 2 * x)


def test_the_extension_is_what_launches_here() -> None:
    assert find_launcher_extension(None) is not None


def test_cpu_tensors_are_refused() -> None:
    launch = Builder().build([doubling()])["double_it"]
    with pytest.raises(DeviceError, match="CPU tensors"):
        launch(torch.ones(4), torch.ones(4), 4)


def test_the_fastest_candidate_is_chosen_and_remembered() -> None:
    store = MemoryStore()
    spec = triton_kernel(target=present_target(), blocks=(16, 1024))
    launch = Builder(store).build([spec])["double_it"]
    x = torch.randn(1 << 24, device="cuda")
    y = torch.zeros_like(x)
    launch(x, y, x.numel())
    assert torch.equal(y, 2 * x)
    choice: Any
    ((_, choice),) = TuningCache(store).list()
    assert choice["mapping"] == choice["candidates"][1]
    assert choice["milliseconds"][1] < choice["milliseconds"][0]


def test_a_search_leaves_narrow_blocks_behind_and_is_remembered() -> None:
    store, heard = MemoryStore(), list[tuple[str, int]]()
    spec = rewrite(
        triton_kernel(target=present_target(), blocks=(16,)),
        versions=(
            version(
                {"XBLOCK": (16, 8, 32, 64, 128, 256, 512, 1024), "num_warps": (4, 1, 2, 8)},
                ("32*num_warps", "XBLOCK + 1000"),
            ),
        ),
    )
    search = Search(most=40, told=lambda name, trials, best: heard.append((name, trials)))
    launch = Builder(store, search=search).build([spec])["double_it"]
    x = torch.randn(1 << 24, device="cuda")
    y = torch.zeros_like(x)
    launch(x, y, x.numel())
    assert torch.equal(y, 2 * x)
    (found,) = recall(store, spec, torch.cuda.get_device_name()).values()
    assert found["XBLOCK"] >= 128
    record: Any = TuningCache(store).get(record_key(spec, torch.cuda.get_device_name()))
    (entry,) = record["searches"]
    assert entry["best"]["milliseconds"] < entry["proposed"][0]["milliseconds"] / 2
    assert entry["best"]["registers"] > 0 and heard[-1] == ("double_it", 1 + len(entry["tried"]))
    # whoever comes next takes it, with a search or without
    for builder in (Builder(store), Builder(store, search=Search(told=lambda *_: pytest.fail("searched")))):
        ((config, _), *_) = reversed(builder.binaries([spec])[0])
        assert config == found
        y.zero_()
        builder.build([spec])["double_it"](x, y, x.numel())
        assert torch.equal(y, 2 * x)


def test_a_kernel_without_sizes_is_built_as_it_was_found() -> None:
    store = MemoryStore()
    fixed = triton_kernel(target=present_target(), blocks=(16, 32))
    spec = rewrite(
        fixed,
        source=fixed.source.replace("a, b, n0,", "a, b,").replace("n0", "1048576"),
        args=("*in:f32:16", "*out:f32:16"),
        arg_names=("a", "b"),
        traffic=None,
        grid=("1048576 // XBLOCK",),
        versions=(version({"XBLOCK": (16, 32, 64, 128, 256, 512, 1024)}),),
    )
    x = torch.randn(1 << 20, device="cuda")
    for search in (Search(), None):
        y = torch.zeros_like(x)
        Builder(store, search=search).build([spec])["double_it"](x, y)
        assert torch.equal(y, 2 * x)
    ((only,),) = Builder(store).binaries([spec])
    assert only[0]["XBLOCK"] > 32


def test_tuning_leaves_updated_tensors_alone() -> None:
    source = triton_kernel().source.replace(
        "b + i, tl.load(a + i, i < n0) * 2", "a + i, tl.load(a + i, i < n0) + 1"
    )
    spec = rewrite(
        triton_kernel(target=present_target(), blocks=(128, 256, 512)),
        source=source,
        args=("*inout:f32:16", "*out:f32:16", "size:i32"),
    )
    launch = Builder().build([spec])["double_it"]
    x = torch.zeros(1000, device="cuda")
    launch(x, torch.empty_like(x), 1000)
    assert torch.equal(x, torch.ones_like(x))


def test_a_passed_check_changes_nothing() -> None:
    spec = dataclasses.replace(checked_kernel(), target=present_target())
    launch = Builder().build([spec])["checked"]
    x = torch.arange(8, device="cuda")
    launch(x, 8)
    assert x.tolist() == list(range(1, 9))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device() -> None:
    launch = Builder().build([doubling()])["double_it"]
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x = torch.randn(1000, device=device)
        y = torch.zeros_like(x)
        launch(x, y, 1000)
        assert torch.equal(y, 2 * x)
