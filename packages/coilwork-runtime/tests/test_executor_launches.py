"""How the native executor launches GPU kernels: grids, arguments, scratch memory, errors, through a driver
that only remembers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from executor_assembly import Assembly
from runtime_sample_kernels import rewrite
from stub_driver import StubDriver

from coilwork_cache import MemoryStore
from coilwork_runtime import ProgramBytesError, load_native
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.generated import KernelVersion, TritonKernel
from coilwork_runtime.launch_descriptor import GpuEntry, Launcher, encode_descriptor, encode_gpu_binding
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

SPEC = TritonKernel(
    name="scale",
    source="",
    entry="scale",
    args=("*in:f32:16", "*out:f32", "size:i64", "size:i32"),
    arg_names=("x", "y", "n", "m"),
    grid=("(n + XBLOCK - 1) // XBLOCK", "max(m, 1)"),
    configs=({"XBLOCK": 4},),
)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    return StubDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def entry(stub: StubDriver) -> GpuEntry:
    """A function on a device that torch does not know."""
    stub.set("fail_with", 0)
    stub.set("want_parameters", 6)

    def address(name: str) -> int:
        return ctypes.cast(stub.library[name], ctypes.c_void_p).value or 0

    return GpuEntry(
        launch_address=address("cuLaunchKernel"),
        set_context_address=address("cuCtxSetCurrent"),
        context=0x77,
        handle=0x2005,
        device=-1,
        threads=128,
        shared_bytes=64,
        compiler_scratch_bytes=0,
    )


def form(entry: GpuEntry, spec: KernelSpec = SPEC) -> bytes:
    return encode_descriptor(spec, [encode_gpu_binding(spec, {"XBLOCK": 4}, entry)])


def load(
    store: MemoryStore,
    entry: GpuEntry,
    spec: KernelSpec = SPEC,
    *,
    later: bool = False,
    made: Callable[[], bytes | None] | None = None,
) -> NativeProgram:
    """y = kernel(x, n, m), where n and m are inputs; with `later` the first launch goes through Python.
    `made` gives the form.
    """
    settle = made or (lambda: form(entry, spec))
    settled = [not later]

    def launch(*args: Any) -> None:
        settled[0] = True

    launcher = Launcher(call=launch, descriptor=lambda: settle() if settled[0] else None)
    asm = Assembly("net")
    asm.input("x")
    n, m = asm.size_input(), asm.size_input()
    asm.alloc("y", asm.layout(8))
    asm.launch("scale", ["x", "y"], [n, m])

    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    return load_native(
        asm.returns("y"), launchers={"scale": launcher}, constants={}, fallback=no_fallback, store=store
    )


def test_grid_and_arguments(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    program = load(store, entry)
    x = torch.randn(8)
    (y,) = program.call([x, 9, 5])
    assert stub.launch() == [0x2005, 3, 5, 1, 128, 64, 0]
    assert stub.parameters()[:3] == [x.data_ptr(), y.data_ptr(), 9]
    assert stub.parameters()[3] & 0xFFFFFFFF == 5 and stub.parameters()[4:] == [0, 0]
    program.call([x, 8, 0])
    assert stub.launch()[1:4] == [2, 1, 1]
    assert program.counters()["python_launches"] == 0


def test_sizes_choose_between_versions(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    guards = ("n % 2 + max(0, m - 8)", "max(0, m - 8)", "")
    spec = rewrite(SPEC, versions=[KernelVersion(guard=guard) for guard in guards])

    def all_of_them() -> bytes | None:
        others = ((0x2005, 128), (0x3005, 32), (0x4005, 64))
        entries = [replace(entry, handle=handle, threads=threads) for handle, threads in others]
        return encode_descriptor(spec, [encode_gpu_binding(spec, {"XBLOCK": 4}, one) for one in entries])

    program = load(store, entry, made=all_of_them)
    for n, m, handle, threads in (
        (8, 8, 0x2005, 128),
        (9, 8, 0x3005, 32),
        (8, 9, 0x4005, 64),
        (9, 9, 0x4005, 64),
        (4, 1, 0x2005, 128),
    ):
        program.call([torch.randn(8), n, m])
        assert stub.launch()[0] == handle and stub.launch()[4] == threads
    assert program.counters()["python_launches"] == 0


def test_clusters_and_blocks_that_wait_for_each_other(
    stub: StubDriver, store: MemoryStore, entry: GpuEntry
) -> None:
    address = ctypes.cast(stub.library["cuLaunchKernelEx"], ctypes.c_void_p).value or 0
    program = load(store, replace(entry, cluster=4, launch_ex_address=address))
    (y,) = program.call([torch.randn(8), 9, 5])
    assert stub.launch() == [0x2005, 12, 5, 1, 128, 64, 0]
    assert stub.attributes() == [[4, 4, 1, 1], [5, 1, 0, 0]]
    assert stub.parameters()[1] == y.data_ptr()
    load(store, replace(entry, cooperative=True, launch_ex_address=address)).call([torch.randn(8), 9, 5])
    assert stub.launch()[1] == 3 and stub.attributes() == [[2, 1, 0, 0]]


def test_launch_hooks(
    stub: StubDriver, store: MemoryStore, entry: GpuEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, str, int]] = []

    class Chain:
        def __init__(self, what: str) -> None:
            self.what, self.calls = what, list[str]()

        def __call__(self, metadata: Any) -> None:
            heard.append((self.what, metadata.get()["name"], stub.number("launches") - before))

    knobs: Any = ModuleType("triton.knobs")
    knobs.runtime = SimpleNamespace(launch_enter_hook=Chain("enter"), launch_exit_hook=Chain("exit"))
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    program, before = load(store, entry), stub.number("launches")
    program.call([torch.randn(8), 9, 5])
    assert heard == [] and stub.number("launches") == before + 1
    knobs.runtime.launch_enter_hook.calls.append("somebody")
    program.call([torch.randn(8), 9, 5])
    assert heard == [("enter", "scale", 1), ("exit", "scale", 2)]
    knobs.runtime.launch_enter_hook = None
    program.call([torch.randn(8), 9, 5])
    assert len(heard) == 2
    knobs.runtime.launch_exit_hook.calls.append("somebody")
    program.call([torch.randn(8), 9, 5])
    assert heard[2:] == [("exit", "scale", 4)]


def test_no_blocks_no_launch(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    program = load(store, entry)
    before = stub.number("launches")
    program.call([torch.randn(8), 0, 1])
    assert stub.number("launches") == before


def test_what_the_driver_cannot_take(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    program = load(store, entry)
    x = torch.randn(8)
    with pytest.raises(OverflowError, match="does not fit the 32 bits"):
        program.call([x, 4, -(1 << 40)])
    with pytest.raises(OverflowError, match="cannot be launched"):
        program.call([x, 1 << 40, 1])
    stub.set("fail_with", 700)
    with pytest.raises(
        RuntimeError, match="kernel scale: the driver refuses a launch of 1 x 1 x 1 blocks: error 700"
    ) as caught:
        program.call([x, 4, 1])
    assert caught.value.__notes__ == ["instruction 1 of program net: launch scale"]
    stub.set("fail_with", 0)
    program.call([x, 4, 1])


def test_a_thread_without_a_context_gets_one(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    program = load(store, entry)
    stub.set("fail_with", 201)
    program.call([torch.randn(8), 4, 1])
    assert stub.number("current_context") == 0x77


def test_scratch_memory_of_kernel_and_compiler(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    spec = rewrite(
        SPEC,
        args=("*in:f32:16", "*out:f32", "size:i64", "size:i32", "*scratch:f32=2*n + 1"),
        arg_names=("x", "y", "n", "m", "s"),
    )
    stub.set("want_parameters", 7)
    program = load(store, replace(entry, device=-1, compiler_scratch_bytes=256), spec)
    program.call([torch.randn(8), 9, 5])
    scratch, compilers, last = stub.parameters()[4:7]
    assert scratch and compilers and scratch != compilers and last == 0


def test_the_first_launch_may_settle_the_configuration(
    stub: StubDriver, store: MemoryStore, entry: GpuEntry
) -> None:
    program = load(store, entry, later=True)
    before = stub.number("launches")
    for _ in range(3):
        program.call([torch.randn(8), 4, 1])
    assert stub.number("launches") == before + 2
    assert program.counters()["python_launches"] == 1


def test_a_grid_may_choose_by_sizes(stub: StubDriver, store: MemoryStore, entry: GpuEntry) -> None:
    spec = rewrite(SPEC, grid=("n if m > 1 else 1", "(n == m) + 1"))
    program = load(store, entry, spec)
    for n, m, grid in ((5, 1, [1, 1, 1]), (5, 2, [5, 1, 1]), (5, 5, [5, 2, 1])):
        program.call([torch.randn(8), n, m])
        assert stub.launch()[1:4] == grid


def test_a_grid_that_does_not_fit_64_bits_is_refused(
    stub: StubDriver, store: MemoryStore, entry: GpuEntry
) -> None:
    program = load(store, entry, rewrite(SPEC, grid=("n * n",)))
    with pytest.raises(RuntimeError, match="64 bits"):
        program.call([torch.randn(8), 1 << 40, 1])


def test_a_binding_fits_its_manifest(store: MemoryStore, entry: GpuEntry) -> None:
    for bad, reason in (
        (encode_descriptor(SPEC, []), "other versions"),
        (encode_descriptor(SPEC, [encode_gpu_binding(SPEC, {"XBLOCK": 4}, entry)] * 2), "other versions"),
        (
            encode_descriptor(SPEC, [encode_gpu_binding(replace(SPEC, parameters=()), {}, entry)]),
            "other parameters",
        ),
        (form(entry) + b"!", "something follows"),
    ):
        with pytest.raises(ProgramBytesError, match=reason):
            load(store, entry, made=partial(bytes, bad))
