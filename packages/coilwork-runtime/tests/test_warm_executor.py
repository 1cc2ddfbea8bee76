"""Loading the native executor beside other work."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest

from coilwork_cache import MemoryStore, Store
from coilwork_runtime import ExecutorUnavailableError, warm_executor
from coilwork_runtime.executor import native_program
from coilwork_runtime.native_build import EXECUTOR


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Store | None, str]]:
    """For whom the extension was loaded, and by which thread. It is not to be had."""
    found: list[tuple[Store | None, str]] = []

    def missing(store: Store | None) -> None:
        found.append((store, threading.current_thread().name))
        raise ExecutorUnavailableError("executor-build", "the native executor cannot be built here")

    monkeypatch.setattr(native_program, "find_executor_extension", missing)
    return found


def test_another_thread_loads_it_and_keeps_quiet_about_failures(
    asked: list[tuple[Store | None, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delitem(sys.modules, EXECUTOR, raising=False)
    store = MemoryStore()
    warm_executor(store)
    for thread in threading.enumerate():
        if thread.name == "coilwork-executor":
            thread.join(timeout=30)
    assert asked == [(store, "coilwork-executor")]
    assert capsys.readouterr().err == ""


def test_what_is_loaded_is_not_loaded_again(
    asked: list[tuple[Store | None, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, EXECUTOR, ModuleType(EXECUTOR))
    warm_executor(None)
    assert asked == []
