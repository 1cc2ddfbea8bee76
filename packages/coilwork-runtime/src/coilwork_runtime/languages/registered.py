"""A language of a back end's: what its compiler makes of a kernel is kept in the store, and its device
launches it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.languages.protocol import Building, Device, KernelCompiler
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec, encode_manifest
from coilwork_runtime.threads import Threads


class DeviceLanguage:
    """Kernels that `compiler` builds and `device` runs. `store` keeps binaries between processes."""

    def __init__(self, compiler: KernelCompiler, device: Device, *, store: Store | None = None) -> None:
        self._compiler = compiler
        self._device = device
        self._kernels = KernelCache(store)

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """As `Language.start`."""
        return {
            spec.name: Building([threads.submit(self.binary, spec)], partial(self._launcher, spec))
            for spec in specs
        }

    def warm_up(self, workers: int) -> None:
        """Nothing: it is the compiler's to be ready."""

    def binary(self, spec: KernelSpec) -> bytes:
        """The kernel's binary, from the store or the compiler.

        Raises:
            KernelBuildError: its text does not compile.
        """
        facts = encode_manifest(spec).hex()
        key = content_key("kernel", spec.language, facts, spec.source, self._compiler.key(spec))
        return self._kernels.get_or_make(key, lambda: self._compiler.compile(spec))

    def _launcher(self, spec: KernelSpec, parts: list[Any]) -> Launcher:
        return make_launcher(spec, parts[0], self._device)


def make_launcher(manifest: KernelManifest, binary: bytes, device: Device) -> Launcher:
    """A callable over tensors, then sizes, that launches the kernel in `binary` on torch's current stream.

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

    def launch(*args: Any) -> None:
        index = next((max(one.get_device(), 0) for one in args if isinstance(one, torch.Tensor)), 0)
        handle = handles.get(index)
        if handle is None:
            handle = load(index)
        words, scratch = words_of(args)
        device.launch(handle, words, device.stream(index))
        # the device's memory is freed in the order of its streams, and so behind the launch
        del scratch

    return Launcher(call=launch)


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
                scratch.append(torch.empty(elements, dtype=torch_dtype(one.dtype), device=where))
                words.append(scratch[-1].data_ptr())
            else:
                value = next(values)
                words.append(value.data_ptr() if one.is_pointer else value)
        return words, scratch

    return lay_out
