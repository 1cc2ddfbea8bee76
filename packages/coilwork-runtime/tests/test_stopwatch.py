"""What instructions take: counted by kind, only while somebody asks."""

from __future__ import annotations

import pytest
import torch
from executor_assembly import Assembly

from coilwork_cache import MemoryStore
from coilwork_runtime.executor.native_program import load_native


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def test_instructions_are_counted_by_kind(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("a")
    for name in ("t", "y"):
        asm.alloc(name, asm.layout(4, 4))
    asm.call("aten.mm.out", [asm.ref("a"), asm.ref("a")], out=[("out", "t")])
    asm.call("aten.mm.out", [asm.ref("t"), asm.ref("a")], out=[("out", "y")])
    asm.free("t")
    program = load_native(asm.returns("y"), launchers={}, constants={}, fallback=lambda: list, store=store)
    a = torch.randn(4, 4)
    program.call([a])
    watch = program.stopwatch
    assert (watch.calls, watch.phases(), watch.kinds()) == (0, (), ())
    with watch:
        for _ in range(3):
            program.call([a])
    (y,) = program.call([a])
    torch.testing.assert_close(y, a @ a @ a)
    assert watch.calls == 3
    kinds = {one.kind: one for one in watch.kinds()}
    assert kinds["aten.mm.out, C function"].count == 2 and kinds["allocations"].count == 2
    assert kinds["frees"].count == 1
    phases = {one.kind: one.microseconds for one in watch.phases()}
    assert list(phases) == ["inputs", "beginning", "instructions", "results"]
    inside = sum(one.microseconds for one in watch.kinds())
    assert 0 < inside <= 1.5 * phases["instructions"] + 5
    assert sum(one.count for one in watch.places()) == sum(one.count for one in watch.kinds())


def test_each_time_from_the_beginning(store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("a")
    program = load_native(asm.returns("a"), launchers={}, constants={}, fallback=lambda: list, store=store)
    for times in (2, 1):
        with program.stopwatch as watch:
            for _ in range(times):
                program.call([torch.ones(2)])
        assert watch.calls == times
