"""What building and launching takes: a `Language`, made of a `KernelCompiler` and a `Device` where a back end
brings these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec
from coilwork_runtime.threads import Threads


@dataclass(frozen=True, slots=True)
class Building:
    """One kernel being built.

    Attributes:
        parts: what runs for it.
        finish: makes its launcher of their results.
    """

    parts: Sequence[Future[Any]]
    finish: Callable[[list[Any]], Launcher]


class Language(Protocol):
    """Builds and launches the kernels of one language. Used from several threads."""

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """Begin to build kernels in `threads`; by name, what is being done for each.

        Raises:
            RuntimeFault: what builds them is not installed.
        """
        ...

    def warm_up(self, workers: int) -> None:
        """Get ready to build, while others lower and schedule. Returns at once."""
        ...


@runtime_checkable
class KernelCompiler(Protocol):
    """Turns the text of kernels into binaries for a device."""

    def key(self, spec: KernelSpec) -> str:
        """All that the binary depends on beside the kernel: the compiler's version, its flags."""
        ...

    def compile(self, spec: KernelSpec) -> bytes:
        """The binary of the kernel.

        Raises:
            KernelBuildError: its text does not compile.
        """
        ...


@runtime_checkable
class Device(Protocol):
    """All that running kernels takes of a device; torch allocates its memory.

    Work is put on streams and done in their order. Handles, streams and events are the device's own values,
    which nobody else looks into. Memory of torch's that is freed stays usable to what was put on its stream
    before. Used from several threads.
    """

    @property
    def recovers(self) -> bool:
        """False if a failed check of a kernel ends this process's use of the device."""
        ...

    def load(self, binary: bytes, manifest: KernelManifest, index: int) -> object:
        """A handle of the kernel in `binary`, on device `index`.

        Raises:
            KernelLaunchError: the binary is damaged, or does not fit the device.
        """
        ...

    def launch(self, handle: object, words: Sequence[int], stream: Any) -> None:
        """Put the kernel on `stream`. `words` are addresses and sizes in the order of the manifest's
        arguments.

        A failed check of the kernel (`KernelManifest.checks`) is raised when the stream is waited for, at the
        latest.
        """
        ...

    def stream(self, index: int) -> Any:
        """Torch's current stream of device `index`."""
        ...

    def make_stream(self, index: int) -> Any:
        """A new stream of device `index`."""
        ...

    def use(self, stream: Any) -> AbstractContextManager[None]:
        """Makes `stream` torch's current one, while it is entered."""
        ...

    def record(self, stream: Any) -> Any:
        """An event that happens when what is on `stream` now is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Let work that is put on `stream` from now on wait for `event`. The caller does not wait."""
        ...

    def is_done(self, event: Any) -> bool:
        """True if `event` has happened."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Wait until what is on `stream` is done.

        Raises:
            IndexError, RuntimeError, ZeroDivisionError: a check failed, in the words of the manifest.
        """
        ...

    def measure(self, call: Callable[[], None], index: int) -> float:
        """Seconds that the work takes on the device which `call` puts on torch's current stream."""
        ...
