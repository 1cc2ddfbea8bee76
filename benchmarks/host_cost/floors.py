"""The least that a launch, an allocation and ATen's product cost the host: floors.cpp, built and run."""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from coilwork_runtime.cpp.toolchain import find_toolchain

SOURCE: Final = Path(__file__).with_name("floors.cpp")
ROUNDS: Final = 40
# Fewer than the driver queues, so that no call waits for the device.
COUNT: Final = 200
# Single calls, each begun while the GPU is idle.
IDLE_ROUNDS: Final = 300
# As many parameters as a kernel of Triton has with three tensors.
PARAMETERS: Final = 5
NOTHING: Final = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e) { ret; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Microseconds per call: the least of many rounds of calls in a row, and the median of single calls on an
    idle GPU.

    Attributes:
        launch: of `cuLaunchKernel`, with a kernel that does nothing.
        allocation: of making and dropping a tensor through the C shim.
        product: of `aoti_torch_cuda_mm_out` with square bf16 matrices.
        launch_when_idle: of one `cuLaunchKernel`.
        allocation_when_idle: of one tensor, made and dropped.
    """

    launch: float
    allocation: float
    product: float
    launch_when_idle: float
    allocation_when_idle: float


def measure_floors(size: int) -> Floors:
    """The floors on the current GPU, with products of `size` x `size`.

    Raises:
        coilwork_runtime.MissingCompilerError: there is no C++ compiler.
        RuntimeError: the driver or torch refused a call.
    """
    torch.cuda.init()
    library = build_floors()
    launch, launch_when_idle = _launch_us(library)
    allocation, allocation_when_idle = _allocation_us(library)
    return Floors(
        launch=launch,
        allocation=allocation,
        product=_product_us(library, size),
        launch_when_idle=launch_when_idle,
        allocation_when_idle=allocation_when_idle,
    )


def build_floors() -> ctypes.CDLL:
    """The library of floors.cpp, whose functions return microseconds per call."""
    with tempfile.TemporaryDirectory(prefix="floors-") as folder:
        path = Path(folder, "floors.so")
        command = [
            find_toolchain().command,
            "-O2",
            "-std=c++17",
            "-shared",
            "-fPIC",
            str(SOURCE),
            "-o",
            str(path),
        ]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(path))
    for name in ("launches", "allocations", "products"):
        getattr(library, name).restype = ctypes.c_double
    return library


def _launch_us(library: ctypes.CDLL) -> tuple[float, float]:
    """Return the time of launches in a row, and of one on an idle GPU."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")  # the context is made with the first tensor
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), NOTHING.encode()), "cuModuleLoadData")
    _check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"nothing"), "cuModuleGetFunction")
    values = (ctypes.c_uint64 * PARAMETERS)()
    places = [ctypes.addressof(values) + 8 * k for k in range(PARAMETERS)]
    parameters = (ctypes.c_void_p * PARAMETERS)(*places)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p)
    return _time_row_and_idle(
        lambda count: library.launches(launch, kernel, stream, parameters, count), "cuLaunchKernel"
    )


def _allocation_us(library: ctypes.CDLL) -> tuple[float, float]:
    """Return the time of tensors in a row, and of one while the GPU is idle."""
    shim = _torch_library("torch_cpu")
    make, drop = (
        ctypes.cast(getattr(shim, name), ctypes.c_void_p)
        for name in ("aoti_torch_empty_strided", "aoti_torch_delete_tensor_object")
    )
    elements = ctypes.c_int64(64)
    kinds = shim.aoti_torch_dtype_float32(), shim.aoti_torch_device_type_cuda(), 0
    return _time_row_and_idle(
        lambda count: library.allocations(make, drop, elements, *kinds, count), "aoti_torch_empty_strided"
    )


def _product_us(library: ctypes.CDLL, size: int) -> float:
    shim = _torch_library("torch_cpu")
    matrices = [_matrix(shim, size) for _ in range(3)]
    multiply = ctypes.cast(_torch_library("torch_cuda").aoti_torch_cuda_mm_out, ctypes.c_void_p)
    try:
        return _least(
            lambda: library.products(multiply, *matrices, ctypes.c_int64(COUNT)), "aoti_torch_cuda_mm_out"
        )
    finally:
        for matrix in matrices:
            shim.aoti_torch_delete_tensor_object(matrix)


def _matrix(shim: ctypes.CDLL, size: int) -> ctypes.c_void_p:
    """A handle to a square matrix of bf16; what is in it does not matter."""
    handle = ctypes.c_void_p()
    sizes, strides = (ctypes.c_int64 * 2)(size, size), (ctypes.c_int64 * 2)(size, 1)
    kinds = shim.aoti_torch_dtype_bfloat16(), shim.aoti_torch_device_type_cuda(), 0
    failed = shim.aoti_torch_empty_strided(ctypes.c_int64(2), sizes, strides, *kinds, ctypes.byref(handle))
    _check(failed, "aoti_torch_empty_strided")
    return handle


def _torch_library(name: str) -> ctypes.CDLL:
    """One of the libraries that `import torch` has loaded."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.so"))


def _time_row_and_idle(measured: Callable[[ctypes.c_int64], float], name: str) -> tuple[float, float]:
    """The least mean of COUNT calls in a row, and the median of single calls."""
    least = _least(lambda: measured(ctypes.c_int64(COUNT)), name)
    single = []
    for _ in range(IDLE_ROUNDS):
        torch.cuda.synchronize()
        single.append(measured(ctypes.c_int64(1)))
    return least, statistics.median(single)


def _least(measured: Callable[[], float], name: str) -> float:
    found = []
    for _ in range(ROUNDS):
        found.append(measured())
        torch.cuda.synchronize()
    _check(int(min(found) < 0), name)
    return min(found)


def _check(failed: int, name: str) -> None:
    if failed:
        raise RuntimeError(f"{name} failed: {failed}")
