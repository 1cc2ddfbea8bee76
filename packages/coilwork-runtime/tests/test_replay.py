"""Work that is the same in call after call goes to the driver as graphs: results, what is done piece by
piece, and what is freed when.
"""

from __future__ import annotations

import ctypes
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch
from executor_assembly import CARVE, POOL, SETTLE, Assembly, Captured, u8
from stub_graphs import StubGraphs
from test_executor_convolutions import declared, shape_of

from coilwork_cache import MemoryStore
from coilwork_runtime import ConvolutionLibrary, DriverGraphs, ProductLibrary, load_native
from coilwork_runtime.executor import slow_path
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.generated import TritonKernel
from coilwork_runtime.launch_descriptor import GpuEntry, Launcher, encode_descriptor, encode_gpu_binding

SPEC = TritonKernel(
    name="step",
    source="",
    entry="step",
    args=("*in:i64:16", "*inout:i64", "size:i64", "size:i64"),
    arg_names=("x", "y", "n", "c"),
    grid=("n",),
    configs=({},),
)
HEARD = 6  # calls until there are graphs


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubGraphs:
    return StubGraphs(tmp_path_factory.mktemp("graphs"))


@pytest.fixture(autouse=True)
def as_it_was(stub: StubGraphs) -> Iterator[None]:
    yield
    for name in ("fail_with", "captured", "fail_capture", "fail_graphs"):
        stub.set(name, 0)
    stub.library.listen(None)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def launcher(stub: StubGraphs, kernel: str = "kernel") -> Callable[..., None]:
    entry = GpuEntry(
        launch_address=stub.address("cuLaunchKernel"),
        set_context_address=stub.address("cuCtxSetCurrent"),
        context=0x77,
        handle=stub.address(kernel),
        device=-1,
        threads=32,
        shared_bytes=0,
        compiler_scratch_bytes=0,
    )

    def launch(*args: Any) -> None:
        raise AssertionError("it is launched natively")

    data = encode_descriptor(SPEC, [encode_gpu_binding(SPEC, {}, entry)])
    return Launcher(call=launch, descriptor=lambda: data)


def load(store: MemoryStore, stub: StubGraphs, data: bytes, *, graphs: bool = True) -> NativeProgram:
    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    path = str(stub.path)
    return load_native(
        data,
        launchers={"step": launcher(stub), "start": launcher(stub, "start")},
        constants={},
        fallback=no_fallback,
        store=store,
        products=ProductLibrary(path=path, device="cpu", settings=lambda: 0b11110),
        convolutions=ConvolutionLibrary(path=path, device="cpu", settings=lambda: 0),
        graphs=DriverGraphs(path=path) if graphs else None,
    )


def chain(length: int, *, inputs: int = 2, size: int = 4) -> Captured:
    """Steps on inputs, each into the next."""
    asm = Captured("net")
    names = [f"x{k}" for k in range(inputs)]
    for name in names:
        asm.input(name)
    for k in range(length):
        asm.launch("step", [names[k % inputs], names[(k + 1) % inputs]], [asm.number(size), asm.number(k)])
    return asm


def stepped(tensors: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
    """What `chain` leaves in its inputs."""
    values = [t.clone() for t in tensors]
    for k in range(length):
        values[(k + 1) % len(values)] += 3 * values[k % len(values)] + k
    return values


def numbers(count: int = 2, size: int = 4) -> list[torch.Tensor]:
    return [torch.randint(-9, 9, (size,)) for _ in range(count)]


def check(program: NativeProgram, inputs: list[torch.Tensor], length: int) -> int:
    """Call, compare, and count the graphs that were launched."""
    before = program.counters()["graphs"]
    wanted = stepped(inputs, length)
    program.call(list(inputs))
    for got, want in zip(inputs, wanted, strict=True):
        assert torch.equal(got, want)
    return program.counters()["graphs"] - before


def test_equal_calls_become_one_graph(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(6).returns("x0"))
    inputs = numbers()
    assert [check(program, inputs, 6) for _ in range(HEARD + 2)] == [0] * HEARD + [1] * 2
    launches = stub.number("launches")
    check(program, inputs, 6)
    assert stub.number("launches") == launches
    assert program.counters()["work_in_graphs"] == 3 * 6


def test_little_work_is_left_alone(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(3).returns("x0"))
    inputs = numbers()
    assert sum(check(program, inputs, 3) for _ in range(8)) == 0


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_other_inputs_are_not_mistaken(store: MemoryStore, stub: StubGraphs, changed: int) -> None:
    program = load(store, stub, chain(9, inputs=3).returns("x0"))
    inputs = numbers(3)
    for _ in range(HEARD + 1):
        check(program, inputs, 9)
    others = list(inputs)
    others[changed] = torch.randint(-9, 9, (4,))
    assert [check(program, others, 9), check(program, inputs, 9), check(program, others, 9)] == [0, 1, 0]


def test_what_changed_for_good_is_learned_anew(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(6).returns("x0"))
    gc.collect()
    inputs, alive = numbers(), stub.number("instantiated") - stub.number("destroyed_graphs")
    for _ in range(HEARD + 1):
        check(program, inputs, 6)
    inputs = numbers()
    graphs = [check(program, inputs, 6) for _ in range(20)]
    assert graphs[-1] == 1 and 0 in graphs
    del program
    gc.collect()
    assert stub.number("instantiated") - stub.number("destroyed_graphs") == alive


@pytest.mark.parametrize("turns", [2, 3])
def test_calls_that_take_turns(store: MemoryStore, stub: StubGraphs, turns: int) -> None:
    """As where the last result is still there: the next one lies elsewhere."""
    program = load(store, stub, chain(9, inputs=3).returns("x0"))
    first, second = torch.randint(-9, 9, (4,)), torch.randint(-9, 9, (4,))
    inputs = [[first, second, torch.randint(-9, 9, (4,))] for _ in range(turns)]
    graphs = [check(program, inputs[call % turns], 9) for call in range(60)]
    assert graphs[50:] == [1] * 10
    # now in another order
    graphs = [check(program, inputs[random.Random(call).randrange(turns)], 9) for call in range(40)]
    assert graphs == [1] * 40


def test_what_changes_in_every_call_is_done_piece_by_piece(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    for name in "xy":
        asm.input(name)
    changing = asm.size_input()
    for k in range(12):
        size = changing if k == 5 else asm.number(k)
        asm.launch("step", ["x", "y"], [asm.number(4), size])
    program = load(store, stub, asm.returns("y"))
    x, y = numbers()
    for call in range(8):
        before, launches = program.counters()["graphs"], stub.number("launches")
        want = y + 12 * 3 * x + sum(call * 7 if k == 5 else k for k in range(12))
        program.call([x, y, call * 7])
        assert torch.equal(y, want)
        if call > HEARD:
            assert program.counters()["graphs"] == before + 2
            assert stub.number("launches") == launches + 1


def test_sizes_that_change_all_the_time_are_listened_to_ever_less(
    store: MemoryStore, stub: StubGraphs
) -> None:
    asm = Captured("net")
    for name in "xy":
        asm.input(name)
    changing = asm.size_input()
    for _ in range(6):
        asm.launch("step", ["x", "y"], [asm.number(4), changing])
    program = load(store, stub, asm.returns("y"))
    x, y = numbers()
    for call in range(100):
        want = y + 6 * (3 * x + call)
        program.call([x, y, call])
        assert torch.equal(y, want)
    assert program.counters()["graphs"] == 0


def test_two_shapes_in_turn(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    asm.input("x")
    asm.input("y")
    size = asm.size_input()
    for k in range(6):
        asm.launch("step", ["x", "y"], [size, asm.number(k)])
    program = load(store, stub, asm.returns("y"))
    x, y = numbers()
    for call in range(20):
        count, want = 2 + call % 2, y.clone()
        want[:count] += 6 * 3 * x[:count] + 15
        program.call([x, y, count])
        assert torch.equal(y, want)


def test_an_operator_in_between(store: MemoryStore, stub: StubGraphs) -> None:
    asm = chain(5)
    asm.call(
        "aten.add_.Tensor", [asm.ref("x0", is_float=False), asm.ref("x1", is_float=False)], results=["z"]
    )
    for k in range(5):
        asm.launch("step", ["x0", "x1"], [asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("x1"))
    inputs = numbers()
    for call in range(6):
        before = program.counters()["graphs"]
        wanted = stepped(inputs, 5)
        wanted[0] += wanted[1]
        wanted[1] += 5 * 3 * wanted[0] + 10
        program.call(list(inputs))
        assert all(torch.equal(a, b) for a, b in zip(inputs, wanted, strict=True))
        assert program.counters()["graphs"] - before == (2 if call >= HEARD else 0)


class Kept(numpy.ndarray[Any, Any]):
    """An array that can be referred to weakly."""


def test_memory_is_freed_behind_the_work_that_needs_it(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    asm.input("x")
    asm.input("y")
    asm.launch("step", ["x", "y"], [asm.number(4), asm.number(0)])
    asm.free("x")
    for k in range(5):
        asm.launch("step", ["y", "y"], [asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("y"))
    array = numpy.arange(4, dtype=numpy.int64)
    alive: list[bool] = []
    address = array.ctypes.data
    y = torch.zeros(4, dtype=torch.int64)
    known: list[weakref.ref[Any]] = []
    heard = ctypes.CFUNCTYPE(None)(lambda: alive.append(known[0]() is not None))
    for call in range(HEARD + 2):
        # the same memory in every call, held by nobody else but the tensor
        view = array.view(Kept)
        known[:] = [weakref.ref(view)]
        inputs = [torch.from_numpy(view), y]
        assert inputs[0].data_ptr() == address
        del view
        alive.clear()
        stub.library.listen(heard)
        program.call(inputs)
        stub.library.listen(None)
        assert known[0]() is None and alive == [True, *(call > 0,) * 5]  # nothing is put off in the first
    assert program.counters()["graphs"] == 2


def test_memory_is_freed_before_there_is_more(store: MemoryStore, stub: StubGraphs) -> None:
    asm = chain(6)
    asm.free("x0")
    asm.alloc("z", asm.layout(4, dtype="int64"))
    for k in range(5):
        asm.launch("step", ["x1", "x1"], [asm.number(4), asm.number(k)])
    asm.launch("step", ["x1", "z"], [asm.number(0), asm.number(k)])
    program = load(store, stub, asm.returns("x1", "z"))
    x1 = torch.zeros(4, dtype=torch.int64)
    array = numpy.zeros(4, dtype=numpy.int64)
    for call in range(HEARD + 2):
        before = program.counters()["graphs"]
        program.call([torch.from_numpy(array), x1])
        # what is allocated may lie elsewhere, which the last piece of work shows
        assert program.counters()["graphs"] - before in ((1, 2) if call >= HEARD else (0,))


@pytest.mark.parametrize("peak", [10_000_000, 0])
@pytest.mark.parametrize("at_first", [0, 20_000_000])
def test_memory_waits_where_the_peak_is_elsewhere(
    store: MemoryStore, stub: StubGraphs, monkeypatch: pytest.MonkeyPatch, peak: int, at_first: int
) -> None:
    """`peak`: bytes that the process has at the first allocation more than at the second; `at_first`: in the
    first call more.
    """
    size = 300_000
    asm = Captured("net")
    asm.input("large")
    asm.input("x")
    asm.alloc("a", asm.layout(4, dtype="int64"))
    asm.launch("start", ["large", "a"], [asm.number(4), asm.number(0)])
    asm.free("large")
    asm.alloc("b", asm.layout(4, dtype="int64"))
    for _ in range(3):
        asm.launch("start", ["a", "b"], [asm.number(4), asm.number(0)])
    asm.launch("step", ["a", "x"], [asm.number(4), asm.number(0)])
    program = load(store, stub, asm.returns("x"))
    calls = 0
    asked: list[int] = []

    def allocated(device: int) -> int:
        asked.append(calls)
        first = len(asked) % 2 == 1
        return 1_000 + (peak + (at_first if calls == 0 else 0)) * first

    monkeypatch.setattr(slow_path, "count_allocated_bytes", allocated)
    alive: list[bool] = []
    known: list[weakref.ref[Any]] = []
    heard = ctypes.CFUNCTYPE(None)(lambda: alive.append(known[0]() is not None))
    x = torch.arange(4)
    for calls in range(HEARD + 2):
        view = numpy.zeros(size, dtype=numpy.int64).view(Kept)
        known[:] = [weakref.ref(view)]
        inputs = [torch.from_numpy(view), x]
        del view
        alive.clear()
        stub.library.listen(heard)
        program.call(inputs)
        stub.library.listen(None)
        # `step` alone tells; it runs after the second allocation
        assert alive == [bool(peak) and calls > 1]
        assert known[0]() is None
    # what the first call has is not what others have
    assert asked == [1, 1]


def test_a_refused_launch_leaves_what_was_before_it_done(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    asm.input("x")
    asm.input("y")
    size = asm.size_input()
    for k in range(6):
        asm.launch("step", ["x", "y"], [size if k == 4 else asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("y"))
    x, y = numbers()
    for _ in range(HEARD + 1):
        program.call([x, y, 4])
    assert program.counters()["graphs"] == 1
    want = y + 4 * 3 * x + 6
    with pytest.raises(OverflowError, match="cannot be launched"):
        program.call([x, y, 1 << 40])
    assert torch.equal(y, want)
    want = y + 6 * 3 * x + 15
    program.call([x, y, 4])
    assert torch.equal(y, want) and program.counters()["graphs"] == 2


def test_a_stream_that_somebody_records(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(6).returns("x0"))
    inputs = numbers()
    for _ in range(HEARD + 1):
        check(program, inputs, 6)
    stub.set("captured", 1)
    assert check(program, inputs, 6) == 0
    stub.set("captured", 0)
    assert check(program, inputs, 6) == 1


@pytest.mark.parametrize("how", ["fail_capture", "fail_graphs"])
def test_a_driver_without_graphs(store: MemoryStore, stub: StubGraphs, how: str) -> None:
    program = load(store, stub, chain(6).returns("x0"))
    inputs = numbers()
    stub.set(how, 1)
    assert sum(check(program, inputs, 6) for _ in range(20)) == 0


def test_a_library_without_graphs(store: MemoryStore, stub: StubGraphs) -> None:
    class Absent(DriverGraphs):
        pass

    program = load_native(
        chain(6).returns("x0"),
        launchers={"step": launcher(stub)},
        constants={},
        fallback=lambda: lambda args: args,
        store=store,
        graphs=Absent(path=str(stub.path.parent / "absent.so")),
    )
    inputs = numbers()
    assert sum(check(program, inputs, 6) for _ in range(6)) == 0


def test_profilers_hear_of_every_launch(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(6).returns("x0"))
    inputs = numbers()
    for _ in range(HEARD + 1):
        check(program, inputs, 6)
    with torch.profiler.profile() as profile:
        assert check(program, inputs, 6) == 0
    assert [event.key for event in profile.key_averages() if event.key == "step" and event.count == 6]
    assert check(program, inputs, 6) == 1


def test_products_and_convolutions(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(5, 4),
        "row": torch.randn(4),
        "c": torch.empty(3, 4),
        "d": torch.empty(3, 4),
        "image": torch.randn(1, 2, 200, 200, dtype=torch.bfloat16),
        "weight": torch.randn(3, 2, 3, 3, dtype=torch.bfloat16),
        "x": torch.arange(4),
        "y": torch.zeros(4, dtype=torch.int64),
    }
    for name in tensors:
        asm.input(name)
    asm.launch("step", ["x", "y"], [asm.number(4), asm.number(1)])
    asm.call("aten.mm.out", [asm.ref("a"), asm.ref("b")], out=[("out", "c")], implements="product")
    asm.call(
        "aten.addmm.out",
        [asm.ref("row"), asm.ref("a"), asm.ref("b")],
        out=[("out", "d")],
        implements="product",
    )
    asm.launch("step", ["x", "y"], [asm.number(4), asm.number(2)])
    layout = declared(asm, torch.empty(1, 3, 198, 198, dtype=torch.bfloat16))
    asm.call(
        "aten.convolution.default",
        [asm.ref("image"), asm.ref("weight"), u8(0), *shape_of({}, 2)],
        results=["sums"],
        implements="convolution",
    )
    asm.add(SETTLE, asm.slot("sums") + layout + u8(1), "settle")
    asm.launch("step", ["x", "y"], [asm.number(4), asm.number(3)])
    program = load(store, stub, asm.returns("sums"))
    for _ in range(80):
        with torch.no_grad():
            tensors["a"].normal_()
            tensors["image"].normal_()
            tensors["c"].zero_()
            tensors["d"].zero_()
        want = tensors["y"] + 9 * tensors["x"] + 6
        (sums,) = program.call(list(tensors.values()))
        torch.testing.assert_close(tensors["c"], tensors["a"] @ tensors["b"])
        torch.testing.assert_close(tensors["d"], torch.addmm(tensors["row"], tensors["a"], tensors["b"]))
        torch.testing.assert_close(
            sums, torch.conv2d(tensors["image"], tensors["weight"]), atol=0.1, rtol=0.1
        )
        assert torch.equal(tensors["y"], want)
        del sums
    counters = program.counters()
    assert counters["refused_products"] == counters["refused_convolutions"] == 0
    assert counters["products"] == 160
    # the last two only if the convolution's result lies where it lay in the call before
    assert 4 <= counters["work_in_graphs"] / counters["graphs"] <= 6


def test_threads_replay_their_own_calls(store: MemoryStore, stub: StubGraphs) -> None:
    program = load(store, stub, chain(40).returns("x0"))
    wrong: list[int] = []

    def work() -> None:
        inputs = numbers()
        for call in range(200):
            wanted = stepped(inputs, 40)
            program.call(list(inputs))
            if not all(torch.equal(a, b) for a, b in zip(inputs, wanted, strict=True)):
                wrong.append(call)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def random_program(rng: random.Random) -> bytes:
    """Launches, products' like, operators that return what they are given, allocations and frees; three
    inputs and a number.
    """
    asm = Captured("net")
    names = ["x0", "x1", "x2"]
    for name in names:
        asm.input(name)
    size = asm.size_input()
    alive = list(names)
    for k in range(rng.randrange(20, 90)):
        what, name = rng.random(), f"a{k}"
        if what < 0.25:
            layout = asm.layout(4, 2 + 2 * rng.randrange(2), dtype="int64")
            if rng.random() < 0.7:
                asm.alloc(name, layout)
            else:
                asm.add(POOL, asm.slot(f"p{k}") + asm.layout(256, dtype="uint8"))
                asm.add(CARVE, asm.slot(name) + asm.slot(f"p{k}") + asm.number(32) + layout + u8(0))
                asm.free(f"p{k}")
            asm.launch("start", [rng.choice(alive), name], [asm.number(4), asm.number(k)])
            alive.append(name)
        elif what < 0.3:
            asm.call("aten.alias.default", [asm.ref(rng.choice(alive), is_float=False)], results=[name])
            alive.append(name)
        elif what < 0.32:
            asm.call("aten.zero_.default", [asm.ref(rng.choice(alive), is_float=False)], results=[name])
            asm.free(name)
        elif what < 0.5 and len(alive) > 4:
            gone = rng.choice(alive[3:])
            alive.remove(gone)
            asm.free(gone)
        else:
            constant = size if rng.random() < 0.03 else asm.number(rng.randrange(5))
            asm.launch("step", [rng.choice(alive), rng.choice(alive)], [asm.number(4), constant])
    return asm.returns(*alive[3:])


def test_random_programs_replay_what_they_compute(store: MemoryStore, stub: StubGraphs) -> None:
    graphs = 0
    for seed in range(150):
        rng = random.Random(seed)
        data = random_program(rng)
        with_graphs, without = load(store, stub, data), load(store, stub, data, graphs=False)
        inputs = [torch.randint(-9, 9, (4, 4)) for _ in range(3)]
        for call in range(24):
            if call == 20:
                inputs[rng.randrange(3)] = torch.randint(-9, 9, (4, 4))
            copies = [t.clone() for t in inputs]
            constant = rng.randrange(3) if call > 16 else 1
            wanted = without.call([*copies, constant])
            got = with_graphs.call([*inputs, constant])
            # kernels write four numbers
            for a, b in zip([*got, *inputs], [*wanted, *copies], strict=True):
                assert torch.equal(a.flatten()[:4], b.flatten()[:4]), seed
            del got, wanted
        graphs += with_graphs.counters()["graphs"]
    assert graphs > 200


def test_memory_is_used_again_within_a_call(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Captured("net")
    asm.input("x")
    for k in range(9):
        asm.alloc(f"a{k}", asm.layout(65536 - 6 * (k % 2), dtype="int64"))
        asm.launch("start", ["x", f"a{k}"], [asm.number(4), asm.number(k)])
        asm.launch("step", [f"a{k}", "x"], [asm.number(4), asm.number(0)])
        asm.free(f"a{k}")
    program = load(store, stub, asm.returns("x"))
    x = torch.arange(4)
    for _ in range(30):
        want = x
        for k in range(9):
            want = want + 3 * (want + k)
        program.call([x])
        assert torch.equal(x, want)
    counters = program.counters()
    # one block serves nine names, so no allocation ends the stretch
    assert counters["graphs"] and counters["work_in_graphs"] == 18 * counters["graphs"]


def test_work_outside_of_regions_is_done_piece_by_piece(store: MemoryStore, stub: StubGraphs) -> None:
    asm = chain(5)
    asm.region(begins=False)
    for k in range(5, 10):
        names = [f"x{k % 2}", f"x{(k + 1) % 2}"]
        asm.launch("step", names, [asm.number(4), asm.number(k)])
    asm.region(begins=True)
    for k in range(10, 14):
        names = [f"x{k % 2}", f"x{(k + 1) % 2}"]
        asm.launch("step", names, [asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("x0"))
    inputs = numbers()
    assert [check(program, inputs, 14) for _ in range(HEARD + 2)] == [0] * HEARD + [2] * 2
    assert program.counters()["work_in_graphs"] == 2 * (5 + 4)


def test_regions_next_to_each_other_are_graphs_of_their_own(store: MemoryStore, stub: StubGraphs) -> None:
    asm = chain(5)
    asm.region(begins=False)
    asm.region(begins=True)
    for k in range(5, 10):
        asm.launch("step", [f"x{k % 2}", f"x{(k + 1) % 2}"], [asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("x0"))
    inputs = numbers()
    assert [check(program, inputs, 10) for _ in range(HEARD + 1)] == [0] * HEARD + [2]


def test_a_program_without_regions_is_never_listened_to(store: MemoryStore, stub: StubGraphs) -> None:
    asm = Assembly("net")
    for name in ("x0", "x1"):
        asm.input(name)
    for k in range(6):
        asm.launch("step", [f"x{k % 2}", f"x{(k + 1) % 2}"], [asm.number(4), asm.number(k)])
    program = load(store, stub, asm.returns("x0"))
    inputs = numbers()
    assert sum(check(program, inputs, 6) for _ in range(HEARD + 4)) == 0
