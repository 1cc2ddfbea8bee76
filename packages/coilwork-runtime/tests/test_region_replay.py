"""Stretches of launches that repeat are one piece of work of a back end's device, in both executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from executor_assembly import Assembly, Captured

from coilwork_cache import MemoryStore
from coilwork_runtime import CppCompiler, CpuDevice, load_interpreted, load_native
from coilwork_runtime.executor.region_replay import SLACK_BYTES, STEADY_CALLS, RegionReplay, find_regions
from coilwork_runtime.generated import CppKernel
from coilwork_runtime.languages import CapturingDevice, make_launcher

ADD = CppKernel(
    name="add",
    source="""#include <cstdint>
extern "C" void add(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i] + 1;
}
""",
    entry="add",
    args=("*in:f32", "*inout:f32", "size:i64"),
)
Load = Callable[[bytes], tuple[Callable[[list[Any]], Sequence[Any]], RegionReplay]]


class Tape(CpuDevice):
    """A processor that takes several launches at once, and tells what it was given."""

    def __init__(self) -> None:
        self.told: list[str | int] = []
        self.lock = threading.Lock()

    def launch(self, handle: Any, words: Sequence[int], stream: Any) -> None:
        with self.lock:
            self.told.append("launch")
        super().launch(handle, words, stream)

    def capture(self, launches: Sequence[tuple[object, Sequence[int]]], index: int) -> object:
        return tuple(launches)

    def replay(self, captured: Any, stream: Any) -> None:
        with self.lock:
            self.told.append(len(captured))
        for handle, words in captured:
            super().launch(handle, words, stream)

    def hear(self) -> list[str | int]:
        """What it was given since the last question."""
        found, self.told = self.told, []
        return found


@pytest.fixture(scope="module")
def binary() -> bytes:
    return CppCompiler().compile(ADD)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def tape() -> Tape:
    made = Tape()
    assert isinstance(made, CapturingDevice)
    return made


@pytest.fixture(params=["native", "python"])
def load(request: pytest.FixtureRequest, binary: bytes, store: MemoryStore, tape: Tape) -> Load:
    def load_program(data: bytes) -> tuple[Callable[[list[Any]], Sequence[Any]], RegionReplay]:
        launchers = {"add": make_launcher(ADD, binary, tape)}
        regions = find_regions(launchers)
        assert regions is not None

        def interpret() -> Callable[[list[Any]], Sequence[Any]]:
            return load_interpreted(data, launchers=launchers, constants={}, regions=regions)

        if request.param == "python":
            return interpret(), regions
        program = load_native(
            data, launchers=launchers, constants={}, fallback=interpret, store=store, regions=regions
        )
        return program.call, regions

    return load_program


def steps(asm: Assembly, names: Sequence[str], count: int, size: int = 4) -> None:
    for k in range(count):
        asm.launch("add", [names[k % len(names)], names[(k + 1) % len(names)]], [asm.number(size)])


def stepped(tensors: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
    """What `steps` leaves."""
    values = [one.clone() for one in tensors]
    for k in range(count):
        values[(k + 1) % len(values)] += values[k % len(values)] + 1
    return values


def check(call: Callable[[list[Any]], Sequence[Any]], inputs: list[torch.Tensor], count: int) -> None:
    wanted = stepped(inputs, count)
    call(list(inputs))
    assert all(torch.equal(got, want) for got, want in zip(inputs, wanted, strict=True))


def test_equal_calls_become_one_piece_of_work(load: Load, tape: Tape) -> None:
    asm = Captured()
    for name in ("x", "y"):
        asm.input(name)
    steps(asm, ["x", "y"], 6)
    call, regions = load(asm.returns("y"))
    inputs = [torch.rand(4), torch.rand(4)]
    for number in range(STEADY_CALLS + 2):
        check(call, inputs, 6)
        assert tape.hear() == ([6] if number >= STEADY_CALLS - 1 else ["launch"] * 6)
    # other memory, and the first again
    check(call, [inputs[0], torch.rand(4)], 6)
    assert tape.hear() == ["launch"] * 6
    check(call, inputs, 6)
    assert tape.hear() == [6] and regions.replayed == 4


def test_few_launches_are_left_alone(load: Load, tape: Tape) -> None:
    asm = Captured()
    for name in ("x", "y"):
        asm.input(name)
    steps(asm, ["x", "y"], 3)
    call, _ = load(asm.returns("y"))
    inputs = [torch.rand(4), torch.rand(4)]
    for _ in range(6):
        check(call, inputs, 3)
    assert set(tape.hear()) == {"launch"}


def test_an_operator_ends_a_stretch(load: Load, tape: Tape) -> None:
    asm = Captured()
    for name in ("x", "y"):
        asm.input(name)
    steps(asm, ["x", "y"], 4)
    asm.call("aten.mul_.Tensor", [asm.ref("y"), asm.ref("x")], results=[None])
    steps(asm, ["x", "y"], 4)
    call, _ = load(asm.returns("y"))
    inputs = [torch.rand(4), torch.rand(4)]
    for _ in range(5):
        left, right = stepped(inputs, 4)
        wanted = stepped([left, right * left], 4)
        call(list(inputs))
        assert all(torch.equal(got, want) for got, want in zip(inputs, wanted, strict=True))
        for one in inputs:
            one.copy_(torch.rand(4))
    assert tape.hear()[-2:] == [4, 4]


def test_an_error_comes_behind_what_was_put_off(load: Load, tape: Tape) -> None:
    asm = Captured()
    for name in ("x", "y", "w"):
        asm.input(name)
    steps(asm, ["x", "y"], 5)
    asm.call("aten.mul_.Tensor", [asm.ref("y"), asm.ref("w")], results=[None])
    call, _ = load(asm.returns("y"))
    inputs = [torch.rand(4), torch.rand(4)]
    wanted = stepped(inputs, 5)
    with pytest.raises(RuntimeError, match="must match"):
        call([*inputs, torch.rand(3)])
    assert all(torch.equal(got, want) for got, want in zip(inputs, wanted, strict=True))
    assert tape.hear() == ["launch"] * 5


@pytest.mark.parametrize("large", [False, True])
def test_memory_that_is_freed_waits_for_launches_up_to_a_limit(load: Load, tape: Tape, large: bool) -> None:
    size = SLACK_BYTES // 4 + 1 if large else 4
    asm = Captured()
    for name in ("x", "y"):
        asm.input(name)
    asm.alloc("z", asm.layout(size))
    steps(asm, ["x", "z", "y"], 4)
    asm.free("z")
    steps(asm, ["x", "y"], 4)
    call, _ = load(asm.returns("y"))
    inputs = [torch.rand(size), torch.rand(size)]
    for _ in range(6):
        call(list(inputs))
    # the launches behind the free are a stretch of their own, which repeats whatever memory is given out
    assert (4 in tape.hear()) == large


def test_threads_do_not_mix(load: Load, tape: Tape) -> None:
    asm = Captured()
    for name in ("x", "y"):
        asm.input(name)
    steps(asm, ["x", "y"], 8)
    call, regions = load(asm.returns("y"))

    def work(_: int) -> None:
        inputs = [torch.rand(4), torch.rand(4)]
        for _ in range(30):
            check(call, inputs, 8)
            for one in inputs:
                one.copy_(torch.rand(4))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert regions.replayed >= 4 * (30 - STEADY_CALLS)
    assert tape.hear()[-1] == 8


def test_a_device_that_takes_launches_one_by_one_has_no_regions(binary: bytes) -> None:
    assert find_regions({"add": make_launcher(ADD, binary, CpuDevice())}) is None
