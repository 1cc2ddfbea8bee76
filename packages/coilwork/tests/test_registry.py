"""Threads that compile first together all get the back end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
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
