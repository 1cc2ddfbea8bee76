"""The processor as a `Device`: work is done when it is launched, so that streams and events have nothing to
order.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coilwork_runtime.errors import KernelLaunchError, raise_check
from coilwork_runtime.manifest.kernel_manifest import KernelManifest


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function of the process, and the kernel that it is."""

    function: Callable[..., Any]
    manifest: KernelManifest


class CpuDevice:
    """Runs C++ kernels, shared libraries, in the thread that launches them."""

    recovers = True

    def load(self, binary: bytes, manifest: KernelManifest, index: int) -> Loaded:
        """As `Device.load`."""
        # the loader takes a path that it knows for the library that it knows
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            Path(file.name).write_bytes(binary)
            try:
                function = ctypes.CDLL(file.name)[manifest.entry]
            except (OSError, AttributeError) as error:
                raise KernelLaunchError(
                    "kernel-load", f"kernel {manifest.name} does not load", reason=str(error)
                ) from error
        function.argtypes = [ctypes.c_void_p if one.is_pointer else ctypes.c_int64 for one in manifest.args]
        function.restype = ctypes.c_int64 if manifest.checks else None
        return Loaded(function, manifest)

    def launch(self, handle: Any, words: Sequence[int], stream: Any) -> None:
        """As `Device.launch`; a failed check is raised at once."""
        failed = handle.function(*words)
        if failed:
            raise_check(handle.manifest.name, handle.manifest.checks, failed - 1)

    def stream(self, index: int) -> int:
        """The one stream that there is."""
        return 0

    def make_stream(self, index: int) -> int:
        """The one stream that there is."""
        return 0

    def use(self, stream: int) -> AbstractContextManager[None]:
        """Nothing: it is in use."""
        return nullcontext()

    def record(self, stream: int) -> int:
        """An event that has happened."""
        return 0

    def wait(self, stream: int, event: int) -> None:
        """Nothing: what the event is of is done."""

    def is_done(self, event: int) -> bool:
        """True."""
        return True

    def synchronize(self, stream: int) -> None:
        """Nothing: what was launched is done."""

    def measure(self, call: Callable[[], None], index: int) -> float:
        """Seconds of the call."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
