"""Threads that compile first together all get the back end, and a forked child compiles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame
from torch._dynamo.backends import registry

from coilwork.backend import backend
from coilwork_frontend.torch_compat.dynamo import allow_registering_again


class Slow:
    """An entry point that all threads load at the same time."""

    def __init__(self, threads: int) -> None:
        self._together = threading.Barrier(threads)

    def load(self) -> Any:
        """The back end, once all are here."""
        self._together.wait(30)
        return backend


def test_threads_look_the_back_end_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.list_backends()
    monkeypatch.setitem(registry._BACKENDS, "coilwork", Slow(4))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(registry.lookup_backend, ["coilwork"] * 4))
    assert found == [backend] * 4


def test_other_names_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"theirs": print}
    monkeypatch.setattr(registry, "_BACKENDS", dict.fromkeys(("ours", "theirs", "late")))
    monkeypatch.setattr(registry, "_COMPILER_FNS", known)
    allow_registering_again("ours")
    assert registry.register_backend(backend, name="ours") is registry.register_backend(backend, name="ours")
    with pytest.raises(AssertionError, match="duplicate name: theirs"):
        registry.register_backend(backend, name="theirs")
    # what another thread still enters into the table that it knows
    known["late"] = repr
    with pytest.raises(AssertionError, match="duplicate name: late"):
        registry.register_backend(backend, name="late")
    assert registry.lookup_backend("late") is repr


if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


@contextmanager
def held_elsewhere() -> Iterator[None]:
    """While it is entered, another thread compiles as far as torch can tell."""
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with convert_frame.compile_lock:
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(60)
    yield
    ended.set()
    thread.join()


def in_child() -> int:
    """Compile in a forked child: 0 if that ends well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(100)
            compiled = torch.compile(lambda x: (x.sin() * 3.0625).cumsum(0), backend="coilwork")
            value = torch.arange(6.0).reshape(2, 3)
            torch.testing.assert_close(compiled(value), (value.sin() * 3.0625).cumsum(0))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_compiles() -> None:
    # what is to be mended is mended when the back end is loaded
    torch.compile(lambda x: x + 1, backend="coilwork")(torch.ones(3))
    with held_elsewhere():
        assert in_child() == 0


def test_a_thread_that_forks_in_its_own_compilation_gives_its_lock_back() -> None:
    with convert_frame.compile_lock:
        child = os.fork()
        if child == 0:
            # leaving the block must not give back a lock that nobody took
            pass
    if child == 0:
        free = convert_frame.compile_lock.acquire(timeout=1)
        os._exit(0 if free else 1)
    assert os.waitpid(child, 0)[1] == 0
