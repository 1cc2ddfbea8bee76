"""How compiled kernels get onto the device's queues: the functions at the end of `queued.cpp`."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coilwork_runtime import KernelLaunchError, KernelManifest, raise_failure
from queued_device import LIBRARY

FAULT_BYTES = 4096
MOST_WORDS = 512


@dataclass(frozen=True)
class Loaded:
    """A kernel in this process. What it points to stays where it is."""

    function: ctypes.c_void_p
    checks: ctypes.Array[ctypes.c_char_p]
    name: bytes
    library: ctypes.CDLL


class QueuedDevice:
    """Implements `coilwork_runtime.CapturingDevice`: streams are the ids that torch has for them, too."""

    recovers = True

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(str(LIBRARY))
        library.queued_current.restype = ctypes.c_int64
        library.queued_exchange.argtypes, library.queued_exchange.restype = [ctypes.c_int64], ctypes.c_int64
        library.queued_new.restype = ctypes.c_int64
        library.queued_record.argtypes, library.queued_record.restype = [ctypes.c_int64], ctypes.c_void_p
        library.queued_wait.argtypes = [ctypes.c_int64, ctypes.c_void_p]
        library.queued_is_done.argtypes = [ctypes.c_void_p]
        library.queued_release.argtypes = [ctypes.c_void_p]
        library.queued_finish.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]
        work = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
        ]
        library.queued_launch.argtypes = [ctypes.c_int64, *work]
        library.queued_new_batch.restype = ctypes.c_void_p
        library.queued_batch_launch.argtypes = [ctypes.c_void_p, *work]
        library.queued_replay.argtypes = [ctypes.c_int64, ctypes.c_void_p]
        library.queued_release_batch.argtypes = [ctypes.c_void_p]

    def load(self, binary: bytes, manifest: KernelManifest, index: int) -> Loaded:
        if len(manifest.args) > MOST_WORDS:
            raise KernelLaunchError(
                "kernel-load", f"kernel {manifest.name} has {len(manifest.args)} parameters"
            )
        # the loader takes a path that it knows for the library that it knows
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            Path(file.name).write_bytes(binary)
            try:
                library = ctypes.CDLL(file.name)
                function = ctypes.cast(library[manifest.entry], ctypes.c_void_p)
            except (OSError, AttributeError) as error:
                raise KernelLaunchError(
                    "kernel-load", f"kernel {manifest.name} does not load", reason=str(error)
                ) from error
        messages = [check.encode() for check in manifest.checks]
        checks = (ctypes.c_char_p * len(messages))(*messages)
        return Loaded(function, checks, manifest.name.encode(), library)

    def launch(self, handle: Loaded, words: Sequence[int], stream: int) -> None:
        self._library.queued_launch(stream, *lay_out(handle, words))

    def capture(self, launches: Sequence[tuple[Loaded, Sequence[int]]], index: int) -> Batch:
        batch = Batch(self._library)
        for handle, words in launches:
            self._library.queued_batch_launch(batch.address, *lay_out(handle, words))
        return batch

    def replay(self, captured: Batch, stream: int) -> None:
        self._library.queued_replay(stream, captured.address)

    def stream(self, index: int) -> int:
        return self._library.queued_current()

    def make_stream(self, index: int) -> int:
        return self._library.queued_new()

    @contextmanager
    def use(self, stream: int) -> Iterator[None]:
        before = self._library.queued_exchange(stream)
        try:
            yield
        finally:
            self._library.queued_exchange(before)

    def record(self, stream: int) -> Event:
        return Event(self._library, self._library.queued_record(stream))

    def wait(self, stream: int, event: Event) -> None:
        self._library.queued_wait(stream, event.address)

    def is_done(self, event: Event) -> bool:
        return bool(self._library.queued_is_done(event.address))

    def synchronize(self, stream: int) -> None:
        fault = ctypes.create_string_buffer(FAULT_BYTES)
        self._library.queued_finish(stream, fault, FAULT_BYTES)
        if fault.value:
            raise_failure(fault.value.decode())

    def measure(self, call: Callable[[], None], index: int) -> float:
        stream = self.stream(index)
        self.synchronize(stream)
        start = time.perf_counter()
        call()
        self.synchronize(stream)
        return time.perf_counter() - start


def lay_out(handle: Loaded, words: Sequence[int]) -> tuple[object, ...]:
    """What the library's functions take of a launch."""
    passed = (ctypes.c_int64 * len(words))(*words)
    return handle.function, passed, len(words), handle.checks, len(handle.checks), handle.name


class Batch:
    """Launches that were captured; they are given back with this object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.address = library.queued_new_batch()

    def __del__(self) -> None:
        self._library.queued_release_batch(self.address)


class Event:
    """An event; it is given back with this object."""

    def __init__(self, library: ctypes.CDLL, address: int) -> None:
        self._library = library
        self.address = address

    def __del__(self) -> None:
        self._library.queued_release(self.address)
