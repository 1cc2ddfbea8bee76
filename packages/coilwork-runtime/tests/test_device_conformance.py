"""The conformance kit for devices passes the processor and finds each fault that is planted; its languages
build kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from coilwork_cache import MemoryStore
from coilwork_runtime import (
    Builder,
    CppCompiler,
    CpuDevice,
    Device,
    DeviceLanguage,
    KernelBuildError,
    KernelSpec,
    Language,
)
from coilwork_runtime.conformance import CHECKS, Sample, Samples, check_device, format_failures
from coilwork_runtime.generated import CppKernel, DeviceKernel
from coilwork_runtime.languages import make_launcher

ADD = CppKernel(
    name="add",
    source="""#include <cstdint>
extern "C" void add(const float* x, const float* y, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}
""",
    entry="add",
    args=("*in:f32", "*in:f32", "*out:f32", "size:i64"),
)
PICK = CppKernel(
    name="pick",
    source="""#include <cstdint>
extern "C" int64_t pick(const float* table, const int64_t* index, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < 0 || index[i] >= 8) return 1;
    out[i] = table[index[i]];
  }
  return 0;
}
""",
    entry="pick",
    args=("*in:f32", "*in:i64", "*out:f32", "size:i64"),
    checks=("IndexError: index out of range",),
)
SUM_TWICE = DeviceKernel(
    language="abacus",
    name="sum_twice",
    source="""#include <cstdint>
extern "C" void sum_twice(const float* x, int64_t n, float* work, float* out) {
  for (int64_t i = 0; i < n; ++i) work[i] = x[i] + x[i];
  for (int64_t i = 0; i < n; ++i) out[i] = work[i] + work[i];
}
""",
    entry="sum_twice",
    args=("*in:f32", "size:i64", "*scratch:f32=n", "*out:f32"),
    arg_names=("x", "n", "work", "out"),
)


@pytest.fixture(scope="module")
def samples() -> Samples:
    compiler = CppCompiler()
    made = [Sample(manifest=spec, binary=compiler.compile(spec)) for spec in (ADD, PICK)]
    return Samples(add=made[0], pick=made[1])


class Faulty(CpuDevice):
    """A processor that forgets some of its work, as `fault` says."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.launches = 0

    def load(self, binary: bytes, manifest: Any, index: int) -> Any:
        if self.fault == "loads anything" and binary == b"no binary":
            return None
        return super().load(binary, manifest, index)

    def launch(self, handle: Any, words: Sequence[int], stream: Any) -> None:
        self.launches += 1
        if self.fault == "wrong size":
            words = [*words[:-1], words[-1] - 1]
        if self.fault == "forgets" and self.launches % 7 == 0:
            return
        if self.fault == "lost in threads" and threading.current_thread() is not threading.main_thread():
            return
        try:
            super().launch(handle, words, stream)
        except IndexError:
            if self.fault != "silent checks":
                raise

    def make_stream(self, index: int) -> int:
        return 1

    def stream(self, index: int) -> int:
        return getattr(self, "current", 0)

    @contextmanager
    def use(self, stream: int) -> Any:
        if self.fault != "ignores use":
            self.current = stream
        yield
        if self.fault != "keeps the stream":
            self.current = 0

    def is_done(self, event: int) -> bool:
        return self.fault != "events that never happen"

    def measure(self, call: Callable[[], None], index: int) -> float:
        if self.fault == "measures nothing":
            return 1e-3
        if self.fault == "goes back in time":
            call()
            return -1.0
        return super().measure(call, index)


class Capturing(Faulty):
    """One that takes several launches at once."""

    def capture(self, launches: Sequence[tuple[object, Sequence[int]]], index: int) -> object:
        if self.fault == "runs what it captures":
            self.replay(launches, 0)
        return launches[:-1] if self.fault == "loses the last" else launches

    def replay(self, captured: Any, stream: Any) -> None:
        for handle, words in reversed(captured) if self.fault == "from behind" else captured:
            self.launch(handle, words, stream)


def test_the_processor_passes(samples: Samples) -> None:
    results = check_device(CpuDevice(), "cpu", samples)
    assert isinstance(CpuDevice(), Device)
    assert not format_failures(results), format_failures(results)
    assert [one.check for one in results] == list(CHECKS)
    assert {one.check for one in results if one.status == "refused"} == {"captured launches"}


def test_devices_that_do_not_come_back_from_failed_checks_refuse_them(samples: Samples) -> None:
    results = check_device(CpuDevice(), "cpu", replace(samples, pick=None))
    assert [one.check for one in results if one.status == "refused"] == ["failed checks", "captured launches"]


def test_a_device_that_captures_passes(samples: Samples) -> None:
    results = check_device(Capturing(""), "cpu", samples)
    assert {one.status for one in results} == {"passed"}, results


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("wrong size", "launches"),
        ("forgets", "launches are done in order"),
        ("events that never happen", "events order streams"),
        ("ignores use", "the current stream is torch's"),
        ("keeps the stream", "the current stream is torch's"),
        ("lost in threads", "many threads"),
        ("loads anything", "damaged binaries"),
        ("silent checks", "failed checks"),
        ("measures nothing", "measuring"),
        ("goes back in time", "measuring"),
        ("runs what it captures", "captured launches"),
        ("loses the last", "captured launches"),
        ("from behind", "captured launches"),
    ],
)
def test_planted_faults_are_found(samples: Samples, fault: str, found: str) -> None:
    device = Capturing(fault)
    results = check_device(device, "cpu", samples)
    assert found in {one.check for one in results if one.status == "failed"}, results
    assert device.launches


def test_a_language_of_a_back_ends_builds_once_and_gives_scratch_memory() -> None:
    compiled: list[str] = []

    class Counting(CppCompiler):
        def compile(self, spec: KernelSpec) -> bytes:
            compiled.append(spec.name)
            return super().compile(spec)

    store = MemoryStore()

    def find(name: str, given: object) -> Language | None:
        assert given is store
        return DeviceLanguage(Counting(), CpuDevice(), store=store) if name == "abacus" else None

    for _ in range(2):
        launchers = Builder(store, find_language=find).build([SUM_TWICE, ADD])
        out, total = torch.empty(5), torch.empty(5)
        launchers["sum_twice"](torch.arange(5.0), 5, out)
        launchers["add"](out, out, total, 5)
        assert total.tolist() == [0.0, 8.0, 16.0, 24.0, 32.0]
    assert compiled == ["sum_twice"]


@pytest.mark.parametrize("find", [None, lambda name, store: None])
def test_a_language_nobody_builds_is_named(find: Any) -> None:
    with pytest.raises(KernelBuildError, match="nothing that is installed builds kernels in 'abacus'"):
        Builder(find_language=find).build([SUM_TWICE])
    with pytest.raises(KernelBuildError, match="binaries in 'abacus' are launched by the back end"):
        Builder(find_language=find).binaries([SUM_TWICE])


def test_a_kernel_is_loaded_once_whoever_calls(samples: Samples) -> None:
    loads: list[int] = []

    class Watched(CpuDevice):
        def load(self, binary: bytes, manifest: Any, index: int) -> Any:
            loads.append(index)
            return super().load(binary, manifest, index)

    launcher = make_launcher(samples.add.manifest, samples.add.binary, Watched())
    x = torch.ones(3)
    outs = [torch.zeros(3) for _ in range(8)]
    threads = [threading.Thread(target=launcher, args=(x, x, out, 3)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [0]
    assert all(out.tolist() == [2.0, 2.0, 2.0] for out in outs)


@pytest.mark.gpu
def test_a_gpu_passes_the_conformance_kit() -> None:
    from coilwork_runtime import GpuDevice, TritonCompiler, describe_gpu
    from coilwork_runtime.generated import TritonKernel

    spec = TritonKernel(
        name="add",
        source="""import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n0, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + i, tl.load(x + i, i < n0) + tl.load(y + i, i < n0), i < n0)
""",
        entry="add",
        args=("*in:f32", "*in:f32", "*out:f32", "size:i64"),
        arg_names=("x", "y", "out", "n0"),
        grid=("(n0 + XBLOCK - 1) // XBLOCK",),
        configs=({"XBLOCK": 256, "num_warps": 4, "num_stages": 1},),
        target=describe_gpu(0).name,
    )
    sample = Sample(manifest=spec, binary=TritonCompiler(None).compile(spec))
    results = check_device(GpuDevice(None), "cuda:0", Samples(add=sample, pick=None))
    assert not format_failures(results), format_failures(results)
