"""Languages that kernels are written in: the protocols, and a language made of a compiler and a device.

A `Language` builds and launches kernels. The runtime has two of its own, in `cpp/cpp_builder.py` and
`triton_kernels/triton_builder.py`. A back end brings a `KernelCompiler` and a `Device`, of which
`DeviceLanguage` makes one that keeps binaries in the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.dtypes import get_torch_dtype
from coilwork_runtime.launch_descriptor import Launcher, Piece
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec, encode_manifest
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
        """Return all that the binary depends on beside the kernel: the compiler's version, its flags."""
        ...

    def compile(self, spec: KernelSpec) -> bytes:
        """Return the binary of the kernel.

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
        """Return a handle of the kernel in `binary`, on device `index`.

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
        """Return a new stream of device `index`."""
        ...

    def use(self, stream: Any) -> AbstractContextManager[None]:
        """Makes `stream` torch's current one, while it is entered."""
        ...

    def record(self, stream: Any) -> Any:
        """Return an event that happens when what is on `stream` now is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Let work that is put on `stream` from now on wait for `event`. The caller does not wait."""
        ...

    def is_done(self, event: Any) -> bool:
        """Tell if `event` has happened."""
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


@runtime_checkable
class CapturingDevice(Device, Protocol):
    """A device that takes several launches as one piece of work, which costs less than one by one.

    What is the same in call after call is captured once. Coilwork compares all words of each call before
    (`executor/region_replay.py`).
    """

    def capture(self, launches: Sequence[tuple[object, Sequence[int]]], index: int) -> object | None:
        """Return the launches, each a handle and its words, in order, as one value for `replay`; None if they
        are rather launched one by one. Does nothing else with them.
        """
        ...

    def replay(self, captured: Any, stream: Any) -> None:
        """Put the launches on `stream`, as `launch` does one after the other. A value may be on several
        streams at once.
        """
        ...


# ---- languages of back ends ----


class DeviceLanguage:
    """Kernels that `compiler` builds and `device` runs. `store` keeps binaries between processes."""

    def __init__(self, compiler: KernelCompiler, device: Device, *, store: Store | None = None) -> None:
        self._compiler = compiler
        self._device = device
        self._kernels = KernelCache(store)

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """Do as `Language.start`."""
        return {
            spec.name: Building([threads.submit(self.binary, spec)], partial(self._launcher, spec))
            for spec in specs
        }

    def warm_up(self, workers: int) -> None:
        """Do nothing: the compiler is ready by itself."""

    def binary(self, spec: KernelSpec) -> bytes:
        """Return the kernel's binary, from the store or the compiler.

        Raises:
            KernelBuildError: its text does not compile.
        """
        facts = encode_manifest(spec).hex()
        key = content_key("kernel", spec.language, facts, spec.source, self._compiler.key(spec))
        return self._kernels.get_or_make(key, lambda: self._compiler.compile(spec))

    def _launcher(self, spec: KernelSpec, parts: list[Any]) -> Launcher:
        return make_launcher(spec, parts[0], self._device)


def make_launcher(manifest: KernelManifest, binary: bytes, device: Device) -> Launcher:
    """Return a callable over tensors, then sizes, that launches the kernel in `binary` on torch's current
    stream.

    The kernel is loaded when it is first called on a device.
    """
    handles: dict[int, object] = {}
    loading = threading.Lock()
    words_of = lay_out_words(manifest)

    def load(index: int) -> object:
        with loading:
            if index not in handles:
                handles[index] = device.load(binary, manifest, index)
            return handles[index]

    def find(args: Sequence[Any]) -> tuple[int, object]:
        index = next((max(one.get_device(), 0) for one in args if isinstance(one, torch.Tensor)), 0)
        handle = handles.get(index)
        return index, load(index) if handle is None else handle

    def launch(*args: Any) -> None:
        index, handle = find(args)
        words, scratch = words_of(args)
        device.launch(handle, words, device.stream(index))
        # the device's memory is freed in the order of its streams, and so behind the launch
        del scratch

    def prepare(args: Sequence[Any]) -> Piece:
        index, handle = find(args)
        words, scratch = words_of(args)
        tensors = (*(one for one in args if isinstance(one, torch.Tensor)), *scratch)
        return Piece(device=device, index=index, handle=handle, words=tuple(words), tensors=tensors)

    return Launcher(call=launch, prepare=prepare if isinstance(device, CapturingDevice) else None)


def lay_out_words(
    manifest: KernelManifest,
) -> Callable[[Sequence[Any]], tuple[list[int], list[torch.Tensor]]]:
    """A function from what a kernel is called with to the words of its parameters, and the scratch memory
    among them.
    """
    given = [one for one in manifest.args if one.role != "scratch"]
    sizes_at = [position for position, one in enumerate(given) if one.role == "size"]

    def lay_out(args: Sequence[Any]) -> tuple[list[int], list[torch.Tensor]]:
        sizes = [args[position] for position in sizes_at]
        where = next((one.device for one in args if isinstance(one, torch.Tensor)), None)
        values, words, scratch = iter(args), [], []
        for one in manifest.args:
            if one.elements is not None:
                elements = one.elements.evaluate(sizes, manifest.values_of({}))
                scratch.append(torch.empty(elements, dtype=get_torch_dtype(one.dtype), device=where))
                words.append(scratch[-1].data_ptr())
            else:
                value = next(values)
                words.append(value.data_ptr() if one.is_pointer else value)
        return words, scratch

    return lay_out
