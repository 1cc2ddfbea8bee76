"""Programs that the native executor runs: memory, launches, calls, results; what goes through Python and what
it costs.
"""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from executor_assembly import (
    BIND,
    CARVE,
    CHECK,
    COMPUTE,
    POOL,
    REQUIRE,
    REUSE,
    SETTLE,
    Assembly,
    listing,
    u8,
    u32,
)

from coilwork_cache import MemoryStore
from coilwork_runtime import Builder, LayoutError, ProgramBytesError, load_native
from coilwork_runtime.executor.call_plans import Route
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.generated import CppKernel

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

ADD = CppKernel(
    name="add",
    source=(
        'extern "C" void add(const float* a, const float* b, float* c, long n) { for (long i = 0; i < n; '
        "++i) c[i] = a[i] + b[i]; }"
    ),
    entry="add",
    args=("*in:f32", "*in:f32", "*out:f32", "size:i64"),
    arg_names=("a", "b", "c", "n"),
)
GUARDED = CppKernel(
    name="guarded",
    source=(
        'extern "C" long guarded(float* a, float* s, long n) { for (long i = 0; i < 2 * n; ++i) s[i] = i; '
        "a[0] = s[n]; return n > 4 ? 2 : 0; }"
    ),
    entry="guarded",
    args=("*inout:f32", "*scratch:f32=2*n", "size:i64"),
    arg_names=("a", "s", "n"),
    checks=("first", "IndexError: too far"),
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def launchers(store: MemoryStore) -> dict[str, Callable[..., Any]]:
    """In the order of their specifications' arguments: tensors, then sizes."""
    return dict(Builder(store).build([ADD, GUARDED]))


def no_fallback() -> Callable[[list[Any]], Sequence[Any]]:
    raise AssertionError("no fallback is needed")


@pytest.fixture
def load(store: MemoryStore, launchers: Mapping[str, Callable[..., Any]]) -> Callable[..., NativeProgram]:
    def made(data: bytes, **others: Any) -> NativeProgram:
        values: dict[str, Any] = {
            "launchers": launchers,
            "constants": {},
            "fallback": no_fallback,
            "store": store,
        }
        return load_native(data, **(values | others))

    return made


def added() -> Assembly:
    """x + y of eight elements each, into fresh memory."""
    asm = Assembly()
    asm.input("x"), asm.input("y")
    eight = asm.layout(8)
    for name in ("x", "y"):
        asm.add(CHECK, asm.slot(name) + eight + u8(0), f"check %{name}")
    asm.alloc("z", eight)
    asm.launch("add", ["x", "y", "z"], [asm.number(8)])
    return asm


def test_kernels_run_and_the_list_is_emptied(load: Callable[..., NativeProgram]) -> None:
    program = load(added().returns("z"))
    x, y = torch.randn(8), torch.randn(8)
    args = [x, y]
    results = program.call(args)
    assert args == [] and isinstance(results, list)
    assert torch.equal(results[0], x + y)
    assert program.counters() == {
        "calls": 1,
        "python_calls": 0,
        "python_launches": 0,
        "slow_paths": 0,
        "fallbacks": 0,
        "products": 0,
        "refused_products": 0,
        "convolutions": 0,
        "refused_convolutions": 0,
        "graphs": 0,
        "work_in_graphs": 0,
    }


def test_inputs_are_returned_as_the_same_objects(load: Callable[..., NativeProgram]) -> None:
    x = torch.nn.Parameter(torch.randn(8))
    first, second, third = load(added().returns("x", "z", "x")).call([x, torch.zeros(8)])
    assert first is x and third is x and torch.equal(second, x.detach())
    assert not second.requires_grad


def test_nothing_numbers_and_constants(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    size = asm.size_input()
    asm.constant("c", "table")
    double = asm.variable()
    asm.add(COMPUTE, listing([u8(2) + double + size + asm.number(2)]))
    asm.alloc("z", asm.layout(8))
    asm.launch("add", ["x", "c", "z"], [asm.number(8)])
    table = torch.arange(8.0)
    program = load(asm.returns(None, double, "z", "c", asm.number(-5)), constants={"table": table})
    for _ in range(2):
        nothing, number, z, c, fixed = program.call([torch.ones(8), 21])
        assert nothing is None and number == 42 and fixed == -5 and c is table and torch.equal(z, table + 1)
    with pytest.raises(KeyError):
        load(asm.returns("z"))


@pytest.mark.parametrize("plain", [False, True])
def test_views_pools_and_reuse(plain: bool, load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    asm.add(POOL, asm.slot("pool") + asm.layout(256, dtype="uint8"))
    asm.add(CARVE, asm.slot("a") + asm.slot("pool") + asm.number(64) + asm.layout(8) + u8(plain))
    asm.launch("add", ["x", "x", "a"], [asm.number(8)])
    asm.free("pool")
    asm.view("tail", "a", asm.layout(4), offset=4, plain=plain)
    asm.alloc("z", asm.layout(4))
    asm.launch("add", ["tail", "tail", "z"], [asm.number(4)])
    asm.free("tail", "a")
    asm.view("w", "z", asm.layout(2, 2), kind=1, code=REUSE)
    asm.view("bits", "w", asm.layout(2, 2, dtype="int32"), kind=2)
    w, bits = load(asm.returns("w", "bits")).call([torch.arange(8.0)])
    assert torch.equal(w, torch.tensor([[16.0, 20.0], [24.0, 28.0]]))
    assert bits.dtype is torch.int32 and torch.equal(bits.view(torch.float32), w)


def test_plain_memory_becomes_a_tensor_when_one_is_wanted(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    asm.view("tail", "x", asm.layout(3), offset=5, plain=True)
    asm.view("bits", "tail", asm.layout(2), offset=1, plain=True)
    tail, bits = load(asm.returns("tail", "bits")).call([torch.arange(8.0)])
    assert tail.tolist() == [5.0, 6.0, 7.0] and bits.tolist() == [6.0, 7.0]


def test_memory_goes_back_when_the_program_says(load: Callable[..., NativeProgram]) -> None:
    seen: list[tuple[str, str]] = []

    def watch(
        event: str, program: str, number: int, name: str, tensor: torch.Tensor | None, place: str
    ) -> None:
        seen.append((event, name))

    asm = added()
    asm.alloc("t", asm.layout(8))
    asm.launch("add", ["z", "z", "t"], [asm.number(8)])
    asm.free("z", "x")
    (t,) = load(asm.returns("t"), watch=watch).call([torch.ones(8), torch.ones(8)])
    memory = [("alloc", "z"), ("alloc", "t"), ("free", "z"), ("free", "x")]
    assert seen == [("call", ""), *memory, ("return", "t"), ("leave", "")]
    assert t.tolist() == [4.0] * 8


def test_sizes_bind_and_are_required(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    rows, stride = asm.variable(), asm.variable()
    asm.add(BIND, rows + asm.slot("x") + u32(0) + u8(0) + u32(2))
    asm.add(BIND, stride + asm.slot("x") + u32(0) + u8(1) + u32(2))
    asm.add(REQUIRE, rows + u8(2) + asm.number(9) + asm.text("too many rows"))
    count = asm.variable()
    asm.add(COMPUTE, listing([u8(2) + count + rows + stride]))
    asm.add(CHECK, asm.slot("x") + asm.layout(rows, 4) + u8(0), "check %x")
    asm.alloc("z", asm.layout(rows, 4))
    asm.launch("add", ["x", "x", "z"], [count])
    program = load(asm.returns("z", rows))
    for n in (3, 5, 0):
        x = torch.randn(n, 4)
        z, found = program.call([x])
        assert found == n and torch.equal(z, x + x)
    with pytest.raises(RuntimeError) as caught:
        program.call([torch.randn(9, 4)])
    assert str(caught.value) == "too many rows"
    with pytest.raises(LayoutError, match=r"input x: shape \(4,\), expected 2 dimensions"):
        program.call([torch.randn(4)])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.ones(7), r"shape \(7,\), expected \(8,\)"),
        (torch.ones(8, dtype=torch.float64), "element type torch.float64, expected torch.float32"),
        (torch.ones(16)[::2], r"strides \(2,\), expected \(1,\)"),
        (torch.ones(8, device="meta"), "device meta, expected cpu"),
    ],
    ids=["shape", "dtype", "strides", "device"],
)
def test_inputs_that_do_not_fit_are_refused(
    wrong: torch.Tensor, words: str, load: Callable[..., NativeProgram]
) -> None:
    program = load(added().returns("z"))
    with pytest.raises(LayoutError, match=f"input y: {words}") as caught:
        program.call([torch.ones(8), wrong])
    assert caught.value.__notes__ == ["instruction 1 of program p: check %y"]
    assert torch.equal(program.call([torch.ones(8), torch.ones(8)])[0], torch.full((8,), 2.0))
    for given in ([torch.ones(8)], [torch.ones(8)] * 3):
        with pytest.raises(ValueError, match="values to unpack"):
            program.call(given)
    with pytest.raises(TypeError):
        program.call([torch.ones(8), "text"])


def test_inputs_are_aligned_where_that_was_promised(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    asm.add(CHECK, asm.slot("x") + asm.layout(8) + u8(1), "check %x")
    program = load(asm.returns("x"))
    aligned, crooked = torch.arange(8.0), torch.arange(9.0)[1:]
    assert program.call([aligned])[0] is aligned
    (copy,) = program.call([crooked])
    assert copy is not crooked and torch.equal(copy, crooked) and copy.data_ptr() % 16 == 0
    assert program.counters()["slow_paths"] == 1


def test_numbers_that_are_no_plain_integers_go_to_the_fallback(load: Callable[..., NativeProgram]) -> None:
    class Odd(int):
        pass

    asm = Assembly()
    size = asm.size_input()
    program = load(asm.returns(size), fallback=lambda: lambda args: ["fallback", *args])
    assert program.call([Odd(3)]) == ["fallback", 3]
    assert program.call([3]) == [3]
    assert program.counters()["fallbacks"] == 1


def test_checks_and_scratch_memory_of_kernels(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    size = asm.size_input()
    asm.launch("guarded", ["x"], [size])
    program = load(asm.returns("x"))
    x = torch.zeros(1)
    assert program.call([x, 3])[0].item() == 3
    with pytest.raises(IndexError) as caught:
        program.call([x, 5])
    assert str(caught.value) == "too far (in kernel guarded)"
    assert caught.value.__notes__ == ["instruction 0 of program p: launch guarded"]


def test_launchers_without_a_native_form_are_called_in_python(load: Callable[..., NativeProgram]) -> None:
    def launcher(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, n: int) -> None:
        c.copy_(a * b * n)

    program = load(added().returns("z"), launchers={"add": launcher})
    assert program.call([torch.full((8,), 2.0), torch.full((8,), 3.0)])[0].tolist() == [48.0] * 8
    assert program.counters()["python_launches"] == 1


def called(asm: Assembly, *results: str) -> bytes:
    for name in results:
        asm.add(SETTLE, asm.slot(name) + asm.layout(8) + u8(0), "settle")
    return asm.returns(*results)


def test_routes_of_operators(load: Callable[..., NativeProgram]) -> None:
    asm = Assembly()
    asm.input("x")
    asm.alloc("out", asm.layout(2, 2))
    asm.view("m", "x", asm.layout(2, 2))
    asm.call("aten.mm.out", [asm.ref("m"), asm.ref("m")], out=[("out", "out")])
    asm.call("aten.exp.default", [asm.ref("x")], results=["e"])
    asm.call(
        "aten.split.Tensor", [asm.ref("x"), u8(3) + b"\x04" + bytes(7)], results=["first", None], single=False
    )
    asm.call("aten.max.dim", [asm.ref("x"), u8(3) + bytes(8)], results=["most", "where"], single=False)
    asm.call("aten.clamp.default", [asm.ref("x"), u8(3) + bytes(8)], results=["clamped"])
    asm.call(
        "aten.add.Tensor",
        [asm.ref("x"), asm.ref("x")],
        kwargs=[("alpha", u8(3) + b"\x03" + bytes(7))],
        results=["added"],
    )
    asm.call("aten._local_scalar_dense.default", [asm.ref("where", is_float=False)], results=[asm.variable()])
    data = asm.returns("out", "e", "first", "most", "clamped", "added", u32(0))
    program = load(data)
    assert [plan.route for plan in program.plans] == [
        *(Route.FUNCTION, Route.DISPATCHER, Route.DISPATCHER, Route.DISPATCHER),
        *(Route.PYTHON, Route.FUNCTION, Route.ITEM),
    ]
    (clamp,) = program.python_calls
    assert clamp.target == "aten.clamp.default" and "Scalar" in clamp.reason
    x = torch.randn(8)
    m = x[:4].view(2, 2)
    expected = (m @ m, x.exp(), x[:4], x.max(), x.clamp(min=0), x * 4, int(x.argmax()))
    for ours, theirs in zip(program.call([x]), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert program.counters()["python_calls"] == 1


def test_results_get_their_declared_layout(load: Callable[..., NativeProgram]) -> None:
    def result(layout: Callable[[Assembly], bytes]) -> torch.Tensor:
        asm = Assembly()
        asm.input("x")
        asm.call("aten.t.default", [asm.ref("x")], results=["t"])
        asm.add(SETTLE, asm.slot("t") + layout(asm) + u8(0), "settle")
        found: torch.Tensor = load(asm.returns("t")).call([x])[0]
        return found

    x = torch.randn(2, 3)
    kept = result(lambda asm: asm.layout(3, 2, strides=(1, 3)))
    assert kept.data_ptr() == x.data_ptr() and torch.equal(kept, x.t())
    copied = result(lambda asm: asm.layout(3, 2))
    assert copied.is_contiguous() and torch.equal(copied, x.t())
    with pytest.raises(LayoutError, match=r"returned shape \(3, 2\) where \(2, 3\)"):
        result(lambda asm: asm.layout(2, 3))
    with pytest.raises(LayoutError, match="different elements"):
        result(lambda asm: asm.layout(3, 2, strides=(1, 0)))
    x[1] = x[0]
    repeated = result(lambda asm: asm.layout(3, 2, strides=(1, 0)))
    assert repeated.stride() == (1, 0) and torch.equal(repeated, x.t())
    with pytest.raises(LayoutError, match=r"returned element type torch\.float32 where torch\.int64"):
        result(lambda asm: asm.layout(3, 2, dtype="int64"))


def test_results_start_where_they_should(load: Callable[..., NativeProgram]) -> None:
    def result(x: torch.Tensor, strides: tuple[int, int]) -> torch.Tensor:
        asm = Assembly()
        asm.input("x")
        asm.call("aten.t.default", [asm.ref("x")], results=["t"])
        asm.add(SETTLE, asm.slot("t") + asm.layout(3, 2, strides=strides) + u8(1), "settle")
        found: torch.Tensor = load(asm.returns("t")).call([x])[0]
        return found

    line = torch.randn(8)
    aligned, between = line[:6].view(2, 3), line[1:7].view(2, 3)
    assert result(aligned, (1, 3)).data_ptr() == aligned.data_ptr()
    for x, strides in ((between, (1, 3)), (between, (2, 1)), (between[:, :1].expand(2, 3), (0, 3))):
        made = result(x, strides)
        assert made.data_ptr() % 16 == 0 and made.stride() == strides and torch.equal(made, x.t())


def test_threads_share_a_program(load: Callable[..., NativeProgram]) -> None:
    program = load(added().returns("z"))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((8,), float(seed))
        for _ in range(300):
            if program.call([x, x])[0].tolist() != [2.0 * seed] * 8:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and program.counters()["calls"] == 2400


def test_damaged_bytes_are_refused(load: Callable[..., NativeProgram]) -> None:
    data = added().returns("z")
    for damaged in (b"", data[:-1], data + b"x", b"x" + data[1:], data[:8] + u32(99) + data[12:]):
        with pytest.raises(ProgramBytesError):
            load(damaged)


def test_no_change_of_a_byte_crashes_loading(load: Callable[..., NativeProgram]) -> None:
    data = added().returns("z")
    refused = 0
    for position in range(16, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0xA5
        try:
            load(bytes(changed))
        except (ProgramBytesError, KeyError):
            refused += 1
    assert refused > len(data) // 2


def test_a_program_that_goes_lets_go_of_everything(load: Callable[..., NativeProgram]) -> None:
    def launcher(*_: Any) -> None:
        pass

    table = torch.ones(8)
    asm = added()
    asm.constant("c", "table")
    program = load(asm.returns("z", "c"), launchers={"add": launcher}, constants={"table": table})
    kept: list[weakref.ref[Any]] = [weakref.ref(launcher), weakref.ref(table)]
    program.call([torch.ones(8), torch.ones(8)])
    del program, launcher, table
    gc.collect()
    assert [one() for one in kept] == [None, None]
