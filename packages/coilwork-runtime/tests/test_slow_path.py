"""What fails in the middle of a program: whose exception it is, what it names, that nothing is lost, and that
the next call works.
"""

from __future__ import annotations

import gc
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_assembly import COMPUTE, Assembly, listing, u8

from coilwork_cache import MemoryStore
from coilwork_runtime import Builder, load_native
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.generated import CppKernel

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

MEBI = 1 << 20
PLACE = "call aten.mm.out\n  model.py:12  h = x @ w  [mm]"
SPIN = CppKernel(
    name="spin",
    source='extern "C" void spin(float* a, long n) { for (volatile long i = 0; i < n; ++i) a[0] += 1; }',
    entry="spin",
    args=("*inout:f32", "size:i64"),
    arg_names=("a", "n"),
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def load(store: MemoryStore, data: bytes, **launchers: Callable[..., Any]) -> NativeProgram:
    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    return load_native(data, launchers=launchers, constants={}, fallback=no_fallback, store=store)


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


@contextmanager
def losing_no_memory(limit: int = 48 * MEBI) -> Iterator[None]:
    gc.collect()
    before = resident_bytes()
    yield
    gc.collect()
    assert resident_bytes() - before < limit


def product(asm: Assembly, rows: int) -> bytes:
    """x @ x into a fresh matrix after a fresh megabyte was filled; x is declared nowhere, so that a wrong one
    gets to mm.
    """
    asm.input("x")
    asm.alloc("big", asm.layout(256, 1024))
    asm.call("aten.fill_.Scalar", [asm.ref("big"), u8(5) + bytes(8)])
    asm.alloc("out", asm.layout(rows, rows))
    asm.call("aten.mm.out", [asm.ref("x"), asm.ref("x")], out=[("out", "out")], place=PLACE)
    return asm.returns("out", "big")


def test_an_operator_that_fails(store: MemoryStore, capfd: pytest.CaptureFixture[str]) -> None:
    program = load(store, product(Assembly("net"), 3))
    wrong, right = torch.randn(3, 4), torch.randn(3, 3)
    with pytest.raises(RuntimeError) as of_torch:
        torch.mm(wrong, wrong, out=torch.empty(3, 3))
    with losing_no_memory():
        for _ in range(300):
            with pytest.raises(RuntimeError):
                program.call([wrong])
    with pytest.raises(RuntimeError) as caught:
        program.call([wrong])
    assert type(caught.value) is type(of_torch.value) and str(caught.value) == str(of_torch.value)
    assert caught.value.__notes__ == [f"instruction 3 of program net: {PLACE}"]
    torch.testing.assert_close(program.call([right])[0], right @ right)


def test_an_allocation_that_fails(store: MemoryStore, capfd: pytest.CaptureFixture[str]) -> None:
    asm = Assembly("net")
    rows = asm.size_input()
    asm.alloc("big", asm.layout(256, 1024))
    asm.call("aten.fill_.Scalar", [asm.ref("big"), u8(5) + bytes(8)])
    asm.alloc("huge", asm.layout(rows, 1024))
    program = load(store, asm.returns("huge"))
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty_strided((1 << 44, 1024), (1024, 1))
    with losing_no_memory():
        for _ in range(200):
            with pytest.raises(RuntimeError):
                program.call([1 << 44])
    with pytest.raises(RuntimeError) as caught:
        program.call([1 << 44])
    assert type(caught.value) is type(of_torch.value)
    assert "can't allocate memory" in str(caught.value)
    assert caught.value.__notes__ == ["instruction 2 of program net: alloc %huge"]
    assert program.call([2])[0].shape == (2, 1024)


def test_a_launcher_that_fails(store: MemoryStore) -> None:
    def launcher(out: torch.Tensor) -> None:
        if out[0, 0] > 0:
            raise LookupError("not this one")

    asm = Assembly("net")
    asm.input("x")
    asm.alloc("big", asm.layout(256, 1024))
    asm.call("aten.fill_.Scalar", [asm.ref("big"), u8(5) + bytes(8)])
    asm.launch("kernel", ["x"])
    program = load(store, asm.returns("x", "big"), kernel=launcher)
    with losing_no_memory():
        for _ in range(300):
            with pytest.raises(LookupError, match="not this one"):
                program.call([torch.ones(1, 1)])
    with pytest.raises(LookupError, match="not this one") as caught:
        program.call([torch.ones(1, 1)])
    assert caught.value.__notes__ == ["instruction 2 of program net: launch kernel"]
    assert program.call([torch.zeros(1, 1)])[0].item() == 0


def test_a_division_by_zero(store: MemoryStore) -> None:
    asm = Assembly("net")
    size, quotient = asm.size_input(), asm.variable()
    asm.add(COMPUTE, listing([u8(3) + quotient + asm.number(7) + size]), "compute a size")
    program = load(store, asm.returns(quotient))
    with pytest.raises(ZeroDivisionError) as caught:
        program.call([0])
    assert caught.value.__notes__ == ["instruction 0 of program net: compute a size"]
    assert [program.call([n])[0] for n in (2, -2, -1)] == [3, -4, -7]


def test_an_interrupt_stops_a_long_program(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("x")
    for _ in range(400):
        asm.launch("spin", ["x"], [asm.number(4_000_000)])
    program = load(store, asm.returns("x"), **dict(Builder(store).build([SPIN])))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    x = torch.zeros(1)
    start = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            program.call([x])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "launch spin" in caught.value.__notes__[0]
    assert int(caught.value.__notes__[0].split()[1]) < 399, time.perf_counter() - start


def test_many_calls_keep_no_memory(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("x")
    rows = asm.size_input()
    asm.alloc("big", asm.layout(rows, 1024))
    asm.call("aten.fill_.Scalar", [asm.ref("big"), u8(5) + bytes(8)])
    asm.call("aten.sum.default", [asm.ref("big")], results=["total"])
    asm.free("big")
    program = load(store, asm.returns("total", "x"))
    x = torch.zeros(3)
    program.call([x, 64])
    with losing_no_memory(limit=24 * MEBI):
        for k in range(4000):
            program.call([x, 64 + k % 64])
    assert program.counters()["python_calls"] == 0
