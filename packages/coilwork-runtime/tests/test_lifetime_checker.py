"""The lifetime checker names what a program does wrong with memory, and leaves a right one alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from executor_assembly import CARVE, POOL, REUSE, Assembly, u8

from coilwork_cache import MemoryStore
from coilwork_runtime import LifetimeChecker, LifetimeError, load_native

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


def add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    c.copy_(a + b)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def run(store: MemoryStore, data: bytes, checker: LifetimeChecker, kernel: Callable[..., None] = add) -> Any:
    def no_fallback() -> Callable[[list[Any]], Sequence[Any]]:
        raise AssertionError("no fallback is needed")

    program = load_native(
        data, launchers={"add": kernel}, constants={}, fallback=no_fallback, store=store, watch=checker
    )
    program.call([torch.ones(8)])
    return program.call([torch.ones(8)])


def doubled(asm: Assembly) -> None:
    """%t = x + x, %z = t + t."""
    asm.input("x")
    asm.alloc("t", asm.layout(8))
    asm.launch("add", ["x", "x", "t"])
    asm.alloc("z", asm.layout(8))
    asm.launch("add", ["t", "t", "z"])


def test_a_right_program_passes(store: MemoryStore) -> None:
    checker = LifetimeChecker()
    asm = Assembly("net")
    doubled(asm)
    asm.view("v", "t", asm.layout(2, 4))
    asm.free("t")
    asm.free("v", "x")
    asm.view("w", "z", asm.layout(4, 2), code=REUSE)
    (w,) = run(store, asm.returns("w"), checker)
    assert torch.equal(w, torch.full((4, 2), 4.0))
    assert checker.peak_bytes == 64


def test_a_leak_is_named(store: MemoryStore) -> None:
    asm = Assembly("net")
    doubled(asm)
    with pytest.raises(LifetimeError, match="%t of program net is neither freed nor returned") as caught:
        run(store, asm.returns("z"), LifetimeChecker())
    assert caught.value.code == "leak" and "allocated in alloc %t" in str(caught.value)


def test_what_is_freed_twice_is_named(store: MemoryStore) -> None:
    asm = Assembly("net")
    doubled(asm)
    asm.free("t")
    asm.free("t")
    with pytest.raises(LifetimeError, match="%t is freed and not alive") as caught:
        run(store, asm.returns("z"), LifetimeChecker())
    assert caught.value.code == "freed-twice"
    assert caught.value.__notes__ == ["instruction 5 of program net: free"]


def test_what_is_defined_twice_is_named(store: MemoryStore) -> None:
    asm = Assembly("net")
    doubled(asm)
    asm.alloc("t", asm.layout(8))
    with pytest.raises(LifetimeError, match="%t is defined while it is alive") as caught:
        run(store, asm.returns("z"), LifetimeChecker())
    assert caught.value.code == "defined-twice"


def test_freed_and_unwritten_memory_is_poisoned(store: MemoryStore) -> None:
    kept: list[torch.Tensor] = []

    def keeping(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        kept.append(a.detach())
        assert c.isnan().all()
        add(a, b, c)

    asm = Assembly("net")
    doubled(asm)
    asm.free("t")
    (z,) = run(store, asm.returns("z"), LifetimeChecker(), keeping)
    assert torch.equal(z, torch.full((8,), 4.0))
    assert kept[1].isnan().all()


def carve(asm: Assembly, name: str, offset: int) -> None:
    operands = asm.slot(name) + asm.slot("pool") + asm.number(offset) + asm.layout(8) + u8(True)
    asm.add(CARVE, operands, f"carve %{name}")


def test_a_part_of_a_pool_is_spoiled_when_it_is_freed(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("x")
    asm.add(POOL, asm.slot("pool") + asm.layout(64, dtype="uint8"))
    carve(asm, "a", 0)
    asm.launch("add", ["x", "x", "a"])
    carve(asm, "b", 32)
    asm.launch("add", ["a", "a", "b"])
    asm.view("again", "a", asm.layout(8))
    asm.free("a")
    asm.launch("add", ["again", "b", "b"])
    asm.free("again")
    carve(asm, "c", 0)
    asm.alloc("y", asm.layout(8))
    asm.launch("add", ["b", "c", "y"])
    asm.free("x", "b", "c", "pool")
    checker = LifetimeChecker()
    (y,) = run(store, asm.returns("y"), checker)
    # %c was never written
    assert torch.isnan(y).all()
    assert checker.peak_bytes == 96


def test_parts_of_a_pool_that_overlap_are_named(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("x")
    asm.add(POOL, asm.slot("pool") + asm.layout(64, dtype="uint8"))
    carve(asm, "a", 0)
    asm.launch("add", ["x", "x", "a"])
    carve(asm, "b", 16)
    with pytest.raises(LifetimeError, match="bytes 16 to 48 of the pool for %b still belong to %a") as caught:
        run(store, asm.returns("b"), LifetimeChecker())
    assert caught.value.code == "memory-twice"
