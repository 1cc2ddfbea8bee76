"""Profilers hear of programs and kernels, whatever happens in them; without a profiler nobody is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from executor_assembly import Assembly
from torch.profiler import ProfilerActivity, profile

from coilwork_cache import MemoryStore
from coilwork_runtime import load_native
from coilwork_runtime.executor import profiler
from coilwork_runtime.executor.native_program import NativeProgram


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def twice(store: MemoryStore, kernel: Callable[..., None]) -> NativeProgram:
    """y = kernel(kernel(x))."""
    asm = Assembly("net")
    asm.input("x")
    asm.alloc("t", asm.layout(8))
    asm.launch("double", ["x", "t"])
    asm.alloc("y", asm.layout(8))
    asm.launch("double", ["t", "y"])
    asm.free("x", "t")

    def no_fallback() -> Callable[[list[Any]], Sequence[Any]]:
        raise AssertionError("no fallback is needed")

    return load_native(
        asm.returns("y"), launchers={"double": kernel}, constants={}, fallback=no_fallback, store=store
    )


def double(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.mul(x, 2, out=y)


def test_torchs_profiler_sees_programs_and_kernels(store: MemoryStore) -> None:
    program = twice(store, double)
    x = torch.ones(8)
    program.call([x])
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        (y,) = program.call([x])
    assert torch.equal(y, torch.full((8,), 4.0))
    names = [event.name for event in recorded.events()]
    assert names.count("coilwork: net") == 1 and names.count("double") == 2
    (whole,) = [event for event in recorded.events() if event.name == "coilwork: net"]
    inner = [event for event in recorded.events() if event.name == "double"]
    assert all(whole.time_range.start <= event.time_range.start <= whole.time_range.end for event in inner)


def test_without_a_profiler_nobody_is_asked(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(profiler, "enter", never)
    twice(store, double).call([torch.ones(8)])


def test_a_range_ends_where_a_kernel_fails(store: MemoryStore) -> None:
    def failing(x: torch.Tensor, y: torch.Tensor) -> None:
        raise KeyError("no")

    program = twice(store, failing)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        with pytest.raises(KeyError, match="no"):
            program.call([torch.ones(8)])
        torch.ones(3).neg()
    events = {event.name: event for event in recorded.events()}
    assert events["coilwork: net"].time_range.end <= events["aten::neg"].time_range.start
    assert events["double"].time_range.end <= events["aten::neg"].time_range.start


@pytest.mark.parametrize("moment", ["begin", "leave"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_interrupt_while_profilers_are_told_is_raised(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, moment: str, which: int
) -> None:
    """Of the program and its two launches; nothing is left open, and the next call works."""
    told = 0
    usual = getattr(profiler.Observation, moment)

    def interrupted(self: profiler.Observation, *args: Any, **keywords: Any) -> None:
        nonlocal told
        told += 1
        usual(self, *args, **keywords)
        if told == which + 1:
            raise KeyboardInterrupt

    program = twice(store, double)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        monkeypatch.setattr(profiler.Observation, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            program.call([torch.ones(8)])
        monkeypatch.setattr(profiler.Observation, moment, usual)
        torch.ones(3).neg()
        (y,) = program.call([torch.ones(8)])
    assert torch.equal(y, torch.full((8,), 4.0))
    (after,) = [event for event in recorded.events() if event.name == "aten::neg"]
    before = [e for e in recorded.events() if e.name in ("double", "coilwork: net")][: which + 1]
    assert all(event.time_range.end <= after.time_range.start for event in before)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Names of what Triton's hooks are told, of a Triton that has only these."""
    told: list[tuple[str, str]] = []
    knobs: Any = ModuleType("triton.knobs")
    knobs.runtime = SimpleNamespace(
        launch_enter_hook=lambda metadata: told.append(("enter", metadata.get()["name"])),
        launch_exit_hook=lambda metadata: told.append(("exit", metadata.data["name"])),
    )
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    return told


def test_tritons_hooks_hear_of_launches_only(heard: list[tuple[str, str]]) -> None:
    profiler.enter("net", False, 0).leave()
    assert heard == []
    observation = profiler.enter("kernel", True, 5)
    assert heard == [("enter", "kernel")]
    observation.leave()
    assert heard == [("enter", "kernel"), ("exit", "kernel")]


def test_more_about_a_launch_is_worked_out_when_it_is_asked_for() -> None:
    metadata = profiler.LaunchMetadata({"name": "kernel"})
    metadata.add(lambda flops: {"flops": flops}, (7,))
    assert "flops" not in metadata.data
    assert metadata.get() == {"name": "kernel", "flops": 7}
