"""Launchers, and launch descriptors: how the native executor launches a kernel without Python.

A descriptor is the kernel's manifest and, for each of its versions, a binding: the addresses of this process
and the values of the chosen configuration.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coilwork_runtime.manifest.kernel_manifest import KernelManifest, encode_manifest
from coilwork_runtime.manifest.wire_format import block, i64, join_items, write_list


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One launch, worked out and not done yet.

    Attributes:
        device: whose it is (`coilwork_runtime.languages.CapturingDevice`).
        index: of the device among those of its type.
        handle: of the kernel.
        words: addresses and sizes.
        tensors: what lies there.
    """

    device: Any
    index: int
    handle: object
    words: tuple[int, ...]
    tensors: tuple[Any, ...] = ()

    def drop_tensors(self) -> Piece:
        """Return the launch without its tensors, so that it keeps no memory alive."""
        return replace(self, tensors=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A kernel that is built: a callable over tensors, then sizes, and how to do without it.

    Attributes:
        call: launches the kernel.
        descriptor: returns bytes for the native executor (native/program/plans.hpp), or None as long as a
            configuration is not settled. None: the kernel has none.
        report: raises the error of a failed check, by its number, counted from 1.
        binaries: returns the configuration and machine code of each version, chosen or else guessed, of a
            kernel that runs on a GPU.
        prepare: works out a launch from the same arguments, for devices that take several at once. None: the
            device takes them one by one.
    """

    call: Callable[..., None]
    descriptor: Callable[[], bytes | None] | None = None
    report: Callable[[int], None] | None = None
    binaries: Callable[[], Sequence[tuple[Mapping[str, int], Any]]] | None = None
    prepare: Callable[[Sequence[Any]], Piece] | None = None

    def __call__(self, *args: object) -> None:
        self.call(*args)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """A function on a device, as the driver knows it."""

    launch_address: int
    set_context_address: int
    context: int
    handle: int
    device: int
    threads: int
    shared_bytes: int
    compiler_scratch_bytes: int
    cluster: int = 1
    cooperative: bool = False
    launch_ex_address: int = 0


def encode_cpu_descriptor(manifest: KernelManifest, address: int) -> bytes:
    """Encode the descriptor of a C++ kernel whose entry is at `address`."""
    return encode_descriptor(manifest, [_encode_binding(False, address, manifest.values_of({}))])


def encode_descriptor(manifest: KernelManifest, bindings: Sequence[bytes]) -> bytes:
    """Encode the descriptor of a kernel with one binding, or with one for each of its versions."""
    return block(encode_manifest(manifest)) + join_items(bindings)


def encode_gpu_binding(manifest: KernelManifest, config: Mapping[str, int], entry: GpuEntry) -> bytes:
    """Encode the launch of a kernel by `entry`, which was compiled in `config`."""
    return b"".join(
        (
            _encode_binding(True, entry.handle, manifest.values_of(config)),
            encode_entry(entry),
        )
    )


def encode_entry(entry: GpuEntry) -> bytes:
    """Encode what of `entry` stands behind the function (native/program/plans.hpp)."""
    return b"".join(
        (
            struct.pack("<QQQ", entry.launch_address, entry.set_context_address, entry.context),
            struct.pack(
                "<iIIQ", entry.device, entry.threads, entry.shared_bytes, entry.compiler_scratch_bytes
            ),
            # the plain function costs less
            struct.pack(
                "<QIB",
                0 if entry.cluster == 1 and not entry.cooperative else entry.launch_ex_address,
                entry.cluster,
                entry.cooperative,
            ),
        )
    )


def _encode_binding(is_gpu: bool, address: int, parameters: Sequence[int]) -> bytes:
    return struct.pack("<BQ", is_gpu, address) + write_list(parameters, i64)
