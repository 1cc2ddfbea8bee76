"""The GPU driver's module API, through ctypes: from a binary in memory to a function that can be launched.

Launches go through the extension `launcher.cpp`, which the wheel brings or which is built once and kept in
the store; where it cannot be built, through `make_slow_kernel` in Python.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_cache import Store
from coilwork_runtime.errors import DeviceError, KernelLaunchError
from coilwork_runtime.extensions import load_own_extension
from coilwork_runtime.native_build import LAUNCHER
from coilwork_runtime.triton_kernels.compilation import GpuBinary, encode_binary

INVALID_CONTEXT: Final = 201
MAX_DYNAMIC_SHARED_MEMORY: Final = 8
NON_PORTABLE_CLUSTER: Final = 14
MOST_PORTABLE_CLUSTER: Final = 8
# attributes of a launch
COOPERATIVE: Final = 2
CLUSTER_DIMENSION: Final = 4
CLUSTER_SCHEDULING: Final = 5
SPREAD: Final = 1
STATIC_SHARED_LIMIT_BYTES: Final = 48 * 1024
# attributes of a function
LOCAL_BYTES: Final = 3
REGISTERS: Final = 4

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFunction:
    """A function in device memory. `keep` is its module's handle; modules stay loaded as long as the process.

    `registers` and `spill_bytes` are what a thread of it uses; 0 where the driver does not say.
    """

    handle: int
    context: int
    keep: int
    registers: int = 0
    spill_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverNames:
    """A vendor's names of the driver's functions; their parameters are the same. `launch_ex` is empty where
    there is none.

    `faults` are the errors of a kernel that failed on the device: all calls behind it get them, whatever they
    ask.
    """

    library: str
    module_load: str
    module_function: str
    launch: str
    error_name: str
    attribute: str
    faults: frozenset[int]
    launch_ex: str = ""


CUDA: Final = DriverNames(
    library="libcuda.so.1",
    module_load="cuModuleLoadData",
    module_function="cuModuleGetFunction",
    launch="cuLaunchKernel",
    error_name="cuGetErrorName",
    attribute="cuFuncGetAttribute",
    faults=frozenset({700, 702, 710, *range(714, 720)}),
    launch_ex="cuLaunchKernelEx",
)
HIP: Final = DriverNames(
    library="libamdhip64.so",
    module_load="hipModuleLoadData",
    module_function="hipModuleGetFunction",
    launch="hipModuleLaunchKernel",
    error_name="hipGetErrorName",
    attribute="hipFuncGetAttribute",
    faults=frozenset({700, 702, 710, 719}),
)


class Driver:
    """One vendor's driver library.

    Raises:
        DeviceError: the library is not there.
    """

    def __init__(self, names: DriverNames) -> None:
        self.names = names
        try:
            self._library = ctypes.CDLL(names.library)
        except OSError as error:
            raise DeviceError(
                "no-driver", f"the GPU driver {names.library} does not load", reason=str(error)
            ) from error
        self._loading = threading.Lock()
        self._loaded: dict[tuple[int, int, bytes], LoadedFunction] = {}
        self.launch = self._library[names.launch]
        self.launch_address = _address(self.launch)
        self.launch_ex_address = self._optional_address(names.launch_ex)
        self.set_context_address = _address(self._library.cuCtxSetCurrent) if names is not HIP else 0

    def load(self, binary: GpuBinary, device: int) -> LoadedFunction:
        """Load `binary` on CUDA device `device`, which must be current; once, whoever asks.

        Raises:
            KernelLaunchError: the driver refuses the binary, or it needs more shared memory than there is.
        """
        context = self._current_context(device)
        key = (device, context, hashlib.sha256(encode_binary(binary)).digest())
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = self._load(binary, context)
            return self._loaded[key]

    def _load(self, binary: GpuBinary, context: int) -> LoadedFunction:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library[self.names.module_load](ctypes.byref(module), binary.image), binary, "load")
        self._check(
            self._library[self.names.module_function](ctypes.byref(function), module, binary.name.encode()),
            binary,
            "find",
        )
        if binary.shared_bytes > STATIC_SHARED_LIMIT_BYTES and self.names is not HIP:
            result = self._library.cuFuncSetAttribute(
                function, MAX_DYNAMIC_SHARED_MEMORY, ctypes.c_int(binary.shared_bytes)
            )
            self._check(result, binary, f"reserve {binary.shared_bytes} bytes of shared memory for")
        if (binary.cluster != 1 or binary.cooperative) and not self.launch_ex_address:
            raise KernelLaunchError(
                "kernel-load",
                f"kernel {binary.name} asks for clusters or a cooperative launch, which this driver has not",
            )
        if binary.cluster > MOST_PORTABLE_CLUSTER:
            result = self._library.cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, ctypes.c_int(1))
            self._check(result, binary, f"allow clusters of {binary.cluster} blocks for")
        return LoadedFunction(
            handle=function.value or 0,
            context=context,
            keep=module.value or 0,
            registers=self._attribute(function, REGISTERS),
            spill_bytes=self._attribute(function, LOCAL_BYTES),
        )

    def _optional_address(self, name: str) -> int:
        try:
            return _address(self._library[name]) if name else 0
        except AttributeError:
            # a driver older than CUDA 11.8
            return 0

    def launch_with_attributes(
        self, function: int, grid: Sequence[int], binary: GpuBinary, stream: int, parameters: Any
    ) -> int:
        """Return the driver's answer to a launch of clusters, or of blocks that wait for each other."""
        attributes = (LaunchAttribute * 3)()
        count = 0
        for which, numbers in _attributes(binary):
            attributes[count].which = which
            attributes[count].numbers[: len(numbers)] = numbers
            count += 1
        config = LaunchConfig(
            (ctypes.c_uint * 3)(grid[0] * binary.cluster, grid[1], grid[2]),
            (ctypes.c_uint * 3)(binary.threads, 1, 1),
            binary.shared_bytes,
            stream,
            attributes,
            count,
        )
        launch = self._library[self.names.launch_ex]
        result: int = launch(ctypes.byref(config), ctypes.c_void_p(function), parameters, None)
        return result

    def set_context(self, context: int) -> None:
        """Make `context` current in this thread."""
        self._library.cuCtxSetCurrent(ctypes.c_void_p(context))

    def error_name(self, code: int) -> str:
        """Return the driver's own name for an error code."""
        name = ctypes.c_char_p()
        if self.names is HIP:
            function = self._library[self.names.error_name]
            function.restype = ctypes.c_char_p
            return (function(code) or b"").decode() or f"error {code}"
        self._library[self.names.error_name](code, ctypes.byref(name))
        return (name.value or b"").decode() or f"error {code}"

    def _attribute(self, function: ctypes.c_void_p, which: int) -> int:
        value = ctypes.c_int()
        refused = self._library[self.names.attribute](ctypes.byref(value), which, function)
        return 0 if refused else value.value

    def _current_context(self, device: int) -> int:
        if self.names is HIP:
            return 0
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._library.cuCtxGetCurrent(ctypes.byref(context))
        if not context.value:
            # a thread that has not yet used the device through torch
            self._library.cuDeviceGet(ctypes.byref(handle), device)
            self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
            self._library.cuCtxSetCurrent(context)
        return context.value or 0

    def _check(self, result: int, binary: GpuBinary, what: str) -> None:
        if result in self.names.faults and torch.cuda.is_initialized():
            # raises what eager does: an earlier kernel failed an assertion, or left its memory
            torch.cuda.synchronize()
        if result:
            raise KernelLaunchError(
                "kernel-load",
                f"the driver cannot {what} kernel {binary.name}",
                reason=f"{self.names.module_load[:2]} error {result}: {self.error_name(result)}",
            )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("which", ctypes.c_int), ("padding", ctypes.c_int), ("numbers", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


def _attributes(binary: GpuBinary) -> Iterator[tuple[int, tuple[int, ...]]]:
    if binary.cooperative:
        yield COOPERATIVE, (1,)
    if binary.cluster != 1:
        yield CLUSTER_DIMENSION, (binary.cluster, 1, 1)
        yield CLUSTER_SCHEDULING, (SPREAD,)


@functools.cache
def present_driver() -> Driver:
    """Return the driver of the GPUs that torch uses.

    Raises:
        DeviceError: it is not there.
    """
    return Driver(HIP if torch.version.hip else CUDA)


def _int32(value: int) -> ctypes.c_int32:
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"size {value} does not fit the 32 bits that the kernel was compiled for")
    return ctypes.c_int32(value)


CELLS: Final[Mapping[str, Callable[[int], Any]]] = {"P": ctypes.c_uint64, "i": _int32, "l": ctypes.c_int64}


def make_slow_kernel(driver: Driver, function: LoadedFunction, binary: GpuBinary, kinds: str) -> Kernel:
    """Return `launcher.Kernel` of launcher.cpp in Python: called with grid, stream and arguments."""
    makers = [CELLS[kind] for kind in kinds]
    launch, handle = driver.launch, ctypes.c_void_p(function.handle)
    plain = binary.cluster == 1 and not binary.cooperative

    def call(grid_x: int, grid_y: int, grid_z: int, stream: int, scratch: Any, *values: Any) -> None:
        if not (grid_x and grid_y and grid_z):
            return
        cells = [make(get_value(value)) for make, value in zip(makers, values, strict=True)]
        cells += [ctypes.c_uint64(get_value(scratch)), ctypes.c_uint64(0)]
        parameters = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        extents = (grid_x, grid_y, grid_z, binary.threads, 1, 1, binary.shared_bytes)

        def once() -> int:
            if not plain:
                return driver.launch_with_attributes(function.handle, extents[:3], binary, stream, parameters)
            answer: int = launch(handle, *extents, ctypes.c_void_p(stream), parameters, None)
            return answer

        result = once()
        if result == INVALID_CONTEXT and function.context:
            # a thread that has not used the device yet
            driver.set_context(function.context)
            result = once()
        if result:
            raise RuntimeError(
                f"kernel {binary.name}: grid {(grid_x, grid_y, grid_z)}: {driver.error_name(result)}"
            )

    return call


def get_value(value: Any) -> int:
    """Return a tensor's address; a number itself."""
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# ---- launching ----


def make_kernel(
    driver: Driver,
    function: LoadedFunction,
    binary: GpuBinary,
    kinds: str,
    store: Store | None,
    *,
    may_build: bool = True,
) -> Kernel:
    """Return a callable over grid, stream, scratch and arguments. `kinds`: see launcher.cpp."""
    extension = find_launcher_extension(store, may_build=may_build)
    if extension is None:
        return make_slow_kernel(driver, function, binary, kinds)
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


def find_launcher_extension(store: Store | None, *, may_build: bool = True) -> Any | None:
    """Return the extension module, or None where there is neither a stored one nor what it takes to build
    it.
    """
    return load_own_extension(LAUNCHER, store, may_build=may_build)
