"""Kernels of the user's launched by the native executor.

Triton compiles them for an H200 in the first call of each kind, and a driver that only remembers is given the
launches of the others.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executor_assembly import Assembly, Captured, listing, u8
from stub_driver import StubDriver
from stub_graphs import StubGraphs

pytest.importorskip("triton", reason="compiles Triton kernels")

import triton
import triton.language as tl
from triton.runtime import driver

from coilwork_cache import MemoryStore
from coilwork_runtime import DriverGraphs, load_native
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.launch_descriptor import GpuEntry
from coilwork_runtime.triton_kernels import user_launches
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.user_kernels import UserKernel, define_kernel
from coilwork_runtime.triton_kernels.user_launches import MOST_LAUNCHES, explain_obstacle


@triton.jit
def scale(x, out, n, factor, flag, kind: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) * factor
    if kind == "negative":
        value = -value
    tl.store(out + at, tl.where(flag, value, 0.0), mask=at < n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x"])
def shift(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit(do_not_specialize=["n", "c"])
def step(x, y, n, c):
    at = tl.arange(0, 4)
    tl.store(y + at, tl.load(y + at) + 3 * tl.load(x + at) + c, mask=at < n)


CONFIGS = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((16, 1), (32, 2))]
tuned = triton.autotune(configs=CONFIGS, key=["n"])(shift)
by_rule = triton.heuristics({"BLOCK": lambda given: 16})(shift)
with_hook = triton.autotune(
    configs=[triton.Config({"BLOCK": 16}, pre_hook=print), triton.Config({"BLOCK": 32})], key=["n"]
)(shift)


class TritonsDriver:
    """A device that Triton may compile for, and what it launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        load = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
            load_binary=lambda *arguments: (0, 0, 0, 0, 1024),
        )
        self.utils = load
        self.launcher_cls = lambda source, metadata: self._launch

    def _launch(self, *arguments: Any) -> None:
        self.launches.append(arguments)

    def get_current_target(self) -> Any:
        return driver_target()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        # the second configuration is the best
        times = iter(range(100, 0, -1))
        return lambda call, quantiles: [float(next(times))] * 3


def driver_target() -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    return StubDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def binaries(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> list[GpuBinary]:
    """What was loaded; the number of the last one is 0x2000 and its place."""
    loaded: list[GpuBinary] = []
    stub.set("fail_with", 0)
    # no kernel here has fewer, two for scratch memory among them
    stub.set("want_parameters", 4)

    def address(name: str) -> int:
        return ctypes.cast(stub.library[name], ctypes.c_void_p).value or 0

    def load(binary: GpuBinary, device: int) -> GpuEntry:
        loaded.append(binary)
        return GpuEntry(
            launch_address=address("cuLaunchKernel"),
            set_context_address=address("cuCtxSetCurrent"),
            context=0x77,
            handle=0x2000 + len(loaded),
            device=device,
            threads=binary.threads,
            shared_bytes=binary.shared_bytes,
            compiler_scratch_bytes=0,
        )

    monkeypatch.setattr(user_launches, "load_entry", load)
    return loaded


@pytest.fixture
def triton_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonsDriver]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    stand_in = TritonsDriver()
    monkeypatch.setattr(driver, "_active", stand_in)
    yield stand_in
    for kernel in (scale, shift, step):
        kernel.device_caches.clear()
    tuned.cache.clear()


def number(value: int) -> bytes:
    return u8(3) + struct.pack("<q", value)


def size(register: bytes) -> bytes:
    return u8(2) + register


def define(kernel: Any, written: str, grids: int = 1, **values: Any) -> UserKernel:
    defined = define_kernel(kernel, values, written=(written,), grids=grids)
    assert defined is not None
    return defined


def load(
    store: MemoryStore, asm: Assembly, *results: str, graphs: DriverGraphs | None = None
) -> NativeProgram:
    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    return load_native(
        asm.returns(*results),
        launchers={},
        constants={},
        fallback=no_fallback,
        store=store,
        graphs=graphs,
    )


def scaling(store: MemoryStore, *, factor: float = 2.5, kind: str = "plain") -> NativeProgram:
    """out = scale(x, n) over a grid of m."""
    x = torch.ones(4)
    kernel = define(scale, "out", x=x, out=x, n=7, factor=factor, flag=True, kind=kind, BLOCK=16)
    asm = Assembly("net")
    asm.input("x")
    asm.input("out")
    n, m = asm.size_input(), asm.size_input()
    constants = [u8(5) + struct.pack("<d", factor), u8(4) + u8(1), u8(7) + asm.text(kind), number(16)]
    grid = u8(11) + listing([size(m), number(1), number(1)])
    arguments = [asm.ref("x"), asm.ref("out"), size(n), *constants]
    asm.call(f"coilwork_kernels.{kernel.name}.default", arguments, kwargs=[("launch_grid", grid)])
    return load(store, asm, "out")


def floats(bits: int) -> float:
    value: float
    (value,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))
    return value


def test_what_triton_tells_apart_it_is_asked_for(
    stub: StubDriver, store: MemoryStore, binaries: list[GpuBinary], triton_driver: TritonsDriver
) -> None:
    program = scaling(store)
    memory = torch.randn(200)
    start = -memory.data_ptr() % 16 // 4
    x, out = memory[start : start + 48], memory[start + 64 : start + 112]

    def call(*given: Any) -> int:
        before = len(triton_driver.launches)
        program.call(list(given))
        return len(triton_driver.launches) - before

    assert call(x, out, 48, 3) == 1 and len(binaries) == 1
    assert binaries[0].threads == 128 and binaries[0].image.startswith(b"\x7fELF")
    # multiples of 16 from the same kind of place: again, and natively
    assert [call(x, out, n, m) for n, m in ((48, 3), (32, 2), (0, 5))] == [0, 0, 0]
    call(x, out, 64, 4)
    assert stub.launch() == [0x2001, 4, 1, 1, 128, binaries[0].shared_bytes, 0]
    stub.set("want_parameters", 6)
    call(x, out, 64, 4)
    passed = stub.parameters()
    assert passed[:2] == [x.data_ptr(), out.data_ptr()] and passed[5] == 0
    assert passed[2] & 0xFFFFFFFF == 64 and floats(passed[3]) == 2.5 and passed[4] & 0xFF == 1
    # each of these is another kernel of Triton's, once
    for more in ((x, out, 47, 3), (x[1:], out, 47, 3), (x, out, 1, 1), (x, out, (1 << 31) + 1, 1)):
        assert [call(*more), call(*more)] == [1, 0]
    assert len(binaries) == 5
    # an integer that is 1 is no parameter
    call(x, out, 1, 1)
    assert floats(stub.parameters()[2]) == 2.5
    # what was known stays known, and an empty grid launches nothing
    assert call(x, out, 16, 1) == 0 and stub.launch()[0] == 0x2001
    assert call(x, out, 32, 0) == 0 and stub.launch()[1] == 1
    assert program.counters()["python_calls"] == 5 and not program.python_calls


def test_texts_and_large_numbers(
    stub: StubDriver, store: MemoryStore, binaries: list[GpuBinary], triton_driver: TritonsDriver
) -> None:
    x, out = torch.ones(48), torch.ones(48)
    for factor, kind in ((1e300, "plain"), (-0.0, "negative")):
        program = scaling(store, factor=factor, kind=kind)
        for _ in range(2):
            program.call([x, out, 48, 3])
        assert program.counters()["python_calls"] == 1
        passed = floats(stub.parameters()[3])
        assert struct.pack("<f", passed) == struct.pack("<f", ctypes.c_float(factor).value)
    assert binaries[0].image != binaries[1].image


def test_an_autotuner_chooses_by_its_key(
    stub: StubDriver, store: MemoryStore, binaries: list[GpuBinary], triton_driver: TritonsDriver
) -> None:
    kernel = define(tuned, "x", grids=2, x=torch.ones(4), n=7)
    asm = Assembly("net")
    asm.input("x")
    n, narrow, wide = asm.size_input(), asm.size_input(), asm.size_input()
    one = number(1)
    grids = u8(11) + listing([size(narrow), one, one, size(wide), one, one])
    target = f"coilwork_kernels.{kernel.name}.default"
    asm.call(target, [asm.ref("x"), size(n)], kwargs=[("launch_grid", grids)])
    program = load(store, asm, "x")
    x = torch.ones(80)
    for n_now in (40, 40, 40, 48, 40, 48):
        program.call([x, n_now, 3, 2])
        if program.counters()["calls"] > 1:
            # the second configuration's grid and warps
            assert stub.launch()[1:5] in ([2, 1, 1, 64], [0, 0, 0, 0])
    assert program.counters()["python_calls"] == 2
    # neither the place of `x` nor more of `n` matters to these: the kernel's author says so
    program.call([x[1:], 40, 3, 2])
    assert program.counters()["python_calls"] == 2
    # there is an end to what is remembered
    for n_now in range(50, 50 + MOST_LAUNCHES):
        program.call([x, n_now, 3, 2])
    before = program.counters()["python_calls"]
    for _ in range(2):
        program.call([x, 50 + MOST_LAUNCHES - 1, 3, 2])
    assert program.counters()["python_calls"] == before + 2


def test_hooks_hear_of_each_launch(
    store: MemoryStore, binaries: list[GpuBinary], triton_driver: TritonsDriver
) -> None:
    program = scaling(store)
    x, out = torch.ones(48), torch.ones(48)
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        for _ in range(3):
            program.call([x, out, 48, 3])
        assert len(triton_driver.launches) == 3
    finally:
        hook.remove(print)
    program.call([x, out, 48, 3])
    assert len(triton_driver.launches) == 3


def test_launches_that_repeat_become_a_graph(
    store: MemoryStore,
    triton_driver: TritonsDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = StubGraphs(tmp_path)

    def load_entry(binary: GpuBinary, device: int) -> GpuEntry:
        return GpuEntry(
            launch_address=stub.address("cuLaunchKernel"),
            set_context_address=stub.address("cuCtxSetCurrent"),
            context=0x77,
            # this does what `step` does
            handle=stub.address("kernel"),
            device=device,
            threads=binary.threads,
            shared_bytes=binary.shared_bytes,
            compiler_scratch_bytes=0,
        )

    monkeypatch.setattr(user_launches, "load_entry", load_entry)
    values = [torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)]
    kernel = define(step, "y", x=values[0], y=values[1], n=4, c=5)
    asm = Captured("net")
    for name in ("x", "y"):
        asm.input(name)
    for k in range(6):
        given = [asm.ref(one, is_float=False) for one in ("xy", "yx")[k % 2]]
        grid = u8(11) + listing([number(1)] * 3)
        asm.call(
            f"coilwork_kernels.{kernel.name}.default",
            [*given, number(4), number(k)],
            kwargs=[("launch_grid", grid)],
        )
    program = load(store, asm, "y", graphs=DriverGraphs(path=str(stub.path)))
    program.call(list(values))
    assert len(triton_driver.launches) == 6
    for _ in range(9):
        wanted = [value.clone() for value in values]
        for k in range(6):
            wanted[(k + 1) % 2] += 3 * wanted[k % 2] + k
        program.call(list(values))
        assert all(torch.equal(got, want) for got, want in zip(values, wanted, strict=True))
    assert len(triton_driver.launches) == 6
    assert program.counters()["graphs"] > 0 and program.counters()["work_in_graphs"] % 6 == 0


@pytest.mark.parametrize(
    ("kernel", "grids", "reason"),
    [
        (by_rule, 1, "heuristics"),
        (with_hook, 2, "a configuration has a hook"),
        (tuned, 2, ""),
        (shift, 1, ""),
    ],
)
def test_what_stays_pythons(kernel: Any, grids: int, reason: str) -> None:
    given = {"x": torch.ones(4), "n": 4} | ({"BLOCK": 16} if kernel is shift else {})
    assert explain_obstacle(define(kernel, "x", grids=grids, **given)).startswith(reason)
    described = define_kernel(kernel, given, written=("x",), grids=grids, descriptors={"x": ("stable", (1,))})
    assert described is not None and "descriptors" in explain_obstacle(described)
