"""Programs whose memory is settled when they are loaded do what the same programs do as written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from executor_assembly import CARVE, POOL, REUSE, Assembly, u8
from hypothesis import given, settings
from hypothesis import strategies as st

from coilwork_cache import MemoryStore
from coilwork_runtime import Builder, LifetimeChecker, load_native
from coilwork_runtime.generated import CppKernel

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

SAME, LAYOUT, BITS = range(3)
FILL = CppKernel(
    name="fill",
    source='extern "C" void fill(float* a, long n, long v) { for (long i = 0; i < n; ++i) a[i] = v + i; }',
    entry="fill",
    args=("*out:f32", "size:i64", "size:i64"),
    arg_names=("a", "n", "v"),
)
ADD = CppKernel(
    name="add",
    source='extern "C" void add(float* a, const float* b, long n, long m) '
    "{ for (long i = 0; i < n; ++i) a[i] = 0.5f * a[i] + b[i % m]; }",
    entry="add",
    args=("*inout:f32", "*in:f32", "size:i64", "size:i64"),
    arg_names=("a", "b", "n", "m"),
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def launchers(store: MemoryStore) -> Mapping[str, Callable[..., Any]]:
    return Builder(store).build([FILL, ADD])


def run(data: bytes, launchers: Mapping[str, Callable[..., Any]], store: MemoryStore, *inputs: Any) -> None:
    """Both ways, three times."""
    used = {name: launchers[name] for name in ("fill", "add")}
    plain, checked = (
        load_native(data, launchers=used, constants={}, fallback=lambda: list, store=store, watch=watch)
        for watch in (None, LifetimeChecker())
    )
    for _ in range(3):
        fresh = [value.clone() for value in inputs]
        expected = checked.call([value.clone() for value in inputs])
        for one, other in zip(plain.call(fresh), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_views_of_a_block_that_is_freed_before_them(
    launchers: Mapping[str, Callable[..., Any]], store: MemoryStore
) -> None:
    asm = Assembly()
    asm.alloc("a", asm.layout(8), plain=True)
    asm.launch("fill", ["a"], [asm.number(8), asm.number(1)])
    asm.view("tail", "a", asm.layout(4), offset=4, plain=True)
    asm.free("a")
    asm.view("again", "tail", asm.layout(2, 2), kind=LAYOUT)
    asm.free("tail")
    asm.alloc("b", asm.layout(8))
    asm.launch("fill", ["b"], [asm.number(8), asm.number(100)])
    asm.launch("add", ["b", "again"], [asm.number(8), asm.number(4)])
    run(asm.returns("b", "again"), launchers, store)


def test_parts_of_a_pool_and_reuse(launchers: Mapping[str, Callable[..., Any]], store: MemoryStore) -> None:
    asm = Assembly()
    asm.add(POOL, asm.slot("pool") + asm.layout(128, dtype="uint8"), "alloc %pool")
    for name, offset in (("a", 0), ("b", 64)):
        operands = asm.slot(name) + asm.slot("pool") + asm.number(offset) + asm.layout(8) + u8(True)
        asm.add(CARVE, operands, f"carve %{name}")
        asm.launch("fill", [name], [asm.number(8), asm.number(offset)])
    asm.free("pool")
    asm.view("c", "a", asm.layout(2, 4), code=REUSE, kind=LAYOUT, plain=True)
    asm.launch("add", ["c", "b"], [asm.number(8), asm.number(8)])
    asm.free("b")
    asm.view("d", "c", asm.layout(2, 4), code=REUSE, kind=SAME)
    asm.call("aten.sum.default", [asm.ref("d")], results=["sum"])
    run(asm.returns("sum", "d"), launchers, store)


def test_memory_read_as_another_type(launchers: Mapping[str, Callable[..., Any]], store: MemoryStore) -> None:
    asm = Assembly()
    asm.input("x")
    asm.alloc("a", asm.layout(8), plain=True)
    asm.launch("fill", ["a"], [asm.number(8), asm.number(3)])
    asm.launch("add", ["a", "x"], [asm.number(8), asm.number(2)])
    asm.free("x")
    asm.view("bits", "a", asm.layout(8, dtype="int32"), code=REUSE, kind=BITS)
    run(asm.returns("bits"), launchers, store, torch.tensor([2.0, 5.0]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_programs_compute_the_same_when_resolved(data: st.DataObject) -> None:
    store = STORE
    launchers = Builder(store).build([FILL, ADD])
    asm = Assembly()
    asm.input("x")
    alive = {"x": 8}
    for number in range(data.draw(st.integers(1, 14), label="steps")):
        name, source = f"t{number}", data.draw(st.sampled_from(sorted(alive)), label="source")
        length = alive[source]
        plain = data.draw(st.booleans(), label="plain")
        match data.draw(
            st.sampled_from(["alloc", "view", "same", "reuse", "free", "add", "sum"]), label="what"
        ):
            case "alloc":
                asm.alloc(name, asm.layout(8), plain=plain)
                asm.launch("fill", [name], [asm.number(8), asm.number(number)])
                alive[name] = 8
            case "view" if length > 1:
                asm.view(name, source, asm.layout(length - 1), offset=1, plain=plain)
                alive[name] = length - 1
            case "same":
                asm.view(name, source, asm.layout(length), kind=SAME, plain=plain)
                alive[name] = length
            case "reuse" if source != "x":
                asm.view(name, source, asm.layout(length), kind=LAYOUT, code=REUSE, plain=plain)
                del alive[source]
                alive[name] = length
            case "free" if len(alive) > 1:
                asm.free(source)
                del alive[source]
            case "add":
                other = data.draw(st.sampled_from(sorted(alive)), label="other")
                asm.launch("add", [source, other], [asm.number(length), asm.number(alive[other])])
            case "sum":
                asm.call("aten.sum.default", [asm.ref(source)], results=[name])
                alive[name] = 1
            case _:
                pass
    kept = data.draw(st.lists(st.sampled_from(sorted(alive)), min_size=1, unique=True), label="kept")
    for name in sorted(alive.keys() - set(kept)):
        asm.free(name)
    run(asm.returns(*kept), launchers, store, torch.arange(8.0))


STORE = MemoryStore()
