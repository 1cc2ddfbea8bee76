"""What a program allocates and releases, in order, heard from the native executor and from a Python module
alike.

A Python module that is emitted with this module as its runtime, and `NativeRecorder` as the executor's
`watch`, write the same lines: `("alloc", bytes)` for a block, `("release", bytes)` when the last tensor on it
goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from coilwork_runtime import generated
from coilwork_runtime.generated import *  # noqa: F403

Event = tuple[str, int]
F = TypeVar("F", bound=Callable[..., torch.Tensor])


@dataclass(slots=True)
class Recorder:
    """Blocks by address: their bytes and how many tensors are on them."""

    events: list[Event] = field(default_factory=list)
    blocks: dict[int, list[int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def allocated(self, tensor: torch.Tensor) -> None:
        """The program has a new block."""
        storage = tensor.untyped_storage()
        self.events.append(("alloc", storage.nbytes()))
        if storage.nbytes():
            self.blocks[storage.data_ptr()] = [storage.nbytes(), 0]

    def held(self, address: int) -> None:
        """One more tensor is on the block at `address`, if it is one of the program's."""
        if address in self.blocks:
            self.blocks[address][1] += 1

    def let_go(self, address: int) -> None:
        """One tensor less is."""
        block = self.blocks.get(address)
        if block is None:
            return
        block[1] -= 1
        if not block[1]:
            self.events.append(("release", block[0]))
            del self.blocks[address]


RECORDER: ContextVar[Recorder | None] = ContextVar("RECORDER", default=None)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record what Python modules do in this context."""
    recorder = Recorder()
    token = RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        RECORDER.reset(token)


def _gone(recorder: Recorder, key: int, address: int) -> None:
    recorder.seen.discard(key)
    recorder.let_go(address)


def _on(tensor: torch.Tensor) -> torch.Tensor:
    """Count `tensor`, once, as long as it lives."""
    recorder = RECORDER.get()
    if recorder is not None and id(tensor) not in recorder.seen:
        address = tensor.untyped_storage().data_ptr()
        recorder.seen.add(id(tensor))
        recorder.held(address)
        weakref.finalize(tensor, _gone, recorder, id(tensor), address)
    return tensor


def _allocating(function: F) -> F:
    @wraps(function)
    def call(*args: Any) -> torch.Tensor:
        tensor = function(*args)
        recorder = RECORDER.get()
        if recorder is not None:
            recorder.allocated(tensor)
        return _on(tensor)

    return cast(F, call)


def _viewing(function: F) -> F:
    @wraps(function)
    def call(*args: Any) -> torch.Tensor:
        return _on(function(*args))

    return cast(F, call)


empty_strided = _allocating(generated.empty_strided)
empty_strided_cpu = _allocating(generated.empty_strided_cpu)
empty_pool = _allocating(generated.empty_pool)
pool_view = _viewing(generated.pool_view)
reinterpret = _viewing(generated.reinterpret)
reinterpret_dtype = _viewing(generated.reinterpret_dtype)
ensure_layout = _viewing(generated.ensure_layout)
ensure_aligned_layout = _viewing(generated.ensure_aligned_layout)


def allocator_events(run: Callable[[], object]) -> list[int]:
    """What torch's allocator of the CPU hears while `run` runs: bytes of each block, negative when it is
    released.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        run()
    kineto: Any = profiler.profiler
    return [event.nbytes() for event in kineto.kineto_results.events() if event.name() == "[memory]"]


class NativeRecorder:
    """The executor's `watch`; the events of the last call are in `recorder`."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._frames: list[dict[str, int]] = []
        self._returned: list[int] = []

    def __call__(
        self, event: str, program: str, number: int, name: str, tensor: torch.Tensor | None, place: str
    ) -> None:
        if event == "call":
            self.recorder = Recorder()
        if event not in ("view", "carve", "taken", "return", "leave"):
            self._forget_returned()
        address = 0 if tensor is None else tensor.untyped_storage().data_ptr()
        match event:
            case "call" | "enter":
                self._frames.append({})
            case "decided":
                pass
            case "return":
                # it goes from one program to the other without a name
                self._returned.append(address)
                self.recorder.held(address)
            case "leave":
                for held in self._frames.pop().values():
                    self.recorder.let_go(held)
            case "free" | "taken":
                self.recorder.let_go(self._frames[-1].pop(name, 0))
            case _:
                if event == "alloc" and tensor is not None:
                    self.recorder.allocated(tensor)
                self._frames[-1][name] = address
                self.recorder.held(address)

    def _forget_returned(self) -> None:
        for address in self._returned:
            self.recorder.let_go(address)
        self._returned.clear()
