"""Load a built C++ kernel and call it: as a launcher over tensors, and through the processor as a `Device`.

The processor does work when it is launched, so that its streams and events have nothing to order.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime.dtypes import get_torch_dtype
from coilwork_runtime.errors import KernelLaunchError, raise_check
from coilwork_runtime.launch_descriptor import Launcher, encode_cpu_descriptor
from coilwork_runtime.manifest.kernel_manifest import KernelManifest


def load_launcher(manifest: KernelManifest, library: Path) -> Launcher:
    """Return a callable over tensors, then sizes, that runs the kernel in `library`.

    Raises:
        OSError: the library does not load.
        AttributeError: it does not define the kernel.
    """
    function = ctypes.CDLL(str(library))[manifest.entry]
    function.argtypes = [ctypes.c_void_p if a.is_pointer else ctypes.c_int64 for a in manifest.args]
    function.restype = ctypes.c_int64 if manifest.checks else None

    def report(failed: int) -> None:
        raise_check(manifest.name, manifest.checks, failed - 1)

    descriptor = encode_cpu_descriptor(manifest, ctypes.cast(function, ctypes.c_void_p).value or 0)
    call = _call_of(manifest, function)
    if manifest.checks:
        call = _add_check(call, report)
    return Launcher(call=call, descriptor=lambda: descriptor, report=report)


# Calls with few tensors, by their number: without a loop they take two thirds of the time.
_CALLS: Final[Mapping[int, Callable[[Callable[..., Any]], Callable[..., Any]]]] = MappingProxyType(
    {
        1: lambda f: lambda a, *sizes: f(a.data_ptr(), *sizes),
        2: lambda f: lambda a, b, *sizes: f(a.data_ptr(), b.data_ptr(), *sizes),
        3: lambda f: lambda a, b, c, *sizes: f(a.data_ptr(), b.data_ptr(), c.data_ptr(), *sizes),
        4: lambda f: (
            lambda a, b, c, d, *sizes: f(a.data_ptr(), b.data_ptr(), c.data_ptr(), d.data_ptr(), *sizes)
        ),
        5: lambda f: (
            lambda a, b, c, d, e, *sizes: f(
                a.data_ptr(), b.data_ptr(), c.data_ptr(), d.data_ptr(), e.data_ptr(), *sizes
            )
        ),
    }
)


def _call_of(manifest: KernelManifest, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of the C function: tensors and scratch as addresses, sizes as they are."""
    is_ordered = all(
        before.is_pointer or not after.is_pointer
        for before, after in zip(manifest.args, manifest.args[1:], strict=False)
    )
    if is_ordered and all(one.role != "scratch" for one in manifest.args):
        tensors = len(manifest.args) - len(manifest.sizes)
        if tensors in _CALLS:
            return _CALLS[tensors](function)
        address_of = torch.Tensor.data_ptr
        return lambda *args: function(*map(address_of, args[:tensors]), *args[tensors:])
    return _make_mixed_call(manifest, function)


def _make_mixed_call(manifest: KernelManifest, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call as `_call_of` does, for arguments in any order and scratch memory."""
    given = [one for one in manifest.args if one.role != "scratch"]
    sizes_at = [position for position, one in enumerate(given) if one.role == "size"]

    def call(*args: Any) -> Any:
        sizes = [args[position] for position in sizes_at]
        values = iter(args)
        passed: list[Any] = []
        # their memory must outlive the call
        kept: list[torch.Tensor] = []
        for one in manifest.args:
            if one.elements is not None:
                kept.append(torch.empty(one.elements.evaluate(sizes), dtype=get_torch_dtype(one.dtype)))
                passed.append(kept[-1].data_ptr())
            else:
                value = next(values)
                passed.append(value.data_ptr() if one.is_pointer else value)
        return function(*passed)

    return call


def _add_check(call: Callable[..., Any], report: Callable[[int], None]) -> Callable[..., None]:
    def launch(*args: Any) -> None:
        failed = call(*args)
        if failed:
            report(failed)

    return launch


# ---- the processor as a device ----


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function of the process, and the kernel that it is."""

    function: Callable[..., Any]
    manifest: KernelManifest


class CpuDevice:
    """Runs C++ kernels, shared libraries, in the thread that launches them."""

    recovers = True

    def load(self, binary: bytes, manifest: KernelManifest, index: int) -> Loaded:
        """Do as `Device.load`."""
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
        """Do as `Device.launch`; a failed check is raised at once."""
        failed = handle.function(*words)
        if failed:
            raise_check(handle.manifest.name, handle.manifest.checks, failed - 1)

    def stream(self, index: int) -> int:
        """Return 0, the number of the only stream."""
        return 0

    def make_stream(self, index: int) -> int:
        """Return 0, the number of the only stream."""
        return 0

    def use(self, stream: int) -> AbstractContextManager[None]:
        """Do nothing: it is in use."""
        return nullcontext()

    def record(self, stream: int) -> int:
        """Return an event that has happened."""
        return 0

    def wait(self, stream: int, event: int) -> None:
        """Do nothing: the work before the event is done."""

    def is_done(self, event: int) -> bool:
        """True."""
        return True

    def synchronize(self, stream: int) -> None:
        """Do nothing: all launches are done."""

    def measure(self, call: Callable[[], None], index: int) -> float:
        """Seconds of the call."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
