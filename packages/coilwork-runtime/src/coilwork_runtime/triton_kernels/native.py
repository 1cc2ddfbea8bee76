"""The launcher written in C++: the wheel's, or built once and kept in the store; ctypes where it cannot be
built.
"""

from __future__ import annotations

from typing import Any

from coilwork_cache import Store
from coilwork_runtime.extensions import load_own_extension
from coilwork_runtime.native_build import LAUNCHER
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.driver import Driver, Kernel, LoadedFunction, slow_kernel


def make_kernel(
    driver: Driver, function: LoadedFunction, binary: GpuBinary, kinds: str, store: Store | None
) -> Kernel:
    """A callable over grid, stream, scratch and arguments. `kinds`: see launcher.cpp."""
    extension = launcher_extension(store)
    if extension is None:
        return slow_kernel(driver, function, binary, kinds)
    kernel: Kernel = extension.Kernel(
        driver.launch_address,
        0 if binary.cluster == 1 and not binary.cooperative else driver.launch_ex_address,
        driver.set_context_address,
        function.handle,
        function.context,
        binary.threads,
        binary.shared_bytes,
        binary.cluster,
        binary.cooperative,
        kinds,
        binary.name,
    )
    return kernel


def launcher_extension(store: Store | None) -> Any | None:
    """The extension module, or None where there is neither a stored one nor what it takes to build it."""
    return load_own_extension(LAUNCHER, store)
