"""A child that was forked in the middle of a compilation compiles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._dynamo import convert_frame

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
