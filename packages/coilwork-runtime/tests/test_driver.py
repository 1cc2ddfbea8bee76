"""From a binary to launches, against a driver that only takes notes. Both launchers must do the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stub_driver import StubDriver

from coilwork_runtime import DeviceError, KernelLaunchError
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.driver import (
    CUDA,
    Driver,
    LoadedFunction,
    find_launcher_extension,
    make_kernel,
    make_slow_kernel,
)

BINARY = GpuBinary(image=b"code", name="double_it", shared_bytes=1024, threads=128)
STREAM = 0x5000

Make = Callable[[Driver, LoadedFunction, GpuBinary, str], Callable[..., None]]


def fast(driver: Driver, function: LoadedFunction, binary: GpuBinary, kinds: str) -> Callable[..., None]:
    if find_launcher_extension(None) is None:
        pytest.skip("needs a compiler and Python.h")
    return make_kernel(driver, function, binary, kinds, None)


@pytest.fixture
def stub(tmp_path: Path) -> StubDriver:
    return StubDriver(tmp_path)


@pytest.fixture
def driver(stub: StubDriver) -> Driver:
    return Driver(dataclasses.replace(CUDA, library=str(stub.path)))


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_passes_grid_stream_arguments_and_two_scratch_pointers(
    stub: StubDriver, driver: Driver, make: Make
) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "PPil")
    stub.set("want_parameters", 6)
    x, y = torch.ones(3), torch.ones(3)
    kernel(7, 2, 1, STREAM, 0, x, y, 5, 1 << 40)
    assert stub.launch() == [0x2000 + len("double_it"), 7, 2, 1, 128, 1024, STREAM]
    got = stub.parameters()
    assert got[:2] == [x.data_ptr(), y.data_ptr()]
    assert got[2] & 0xFFFFFFFF == 5
    assert got[3:] == [1 << 40, 0, 0]
    kernel(7, 2, 1, STREAM, y, x, y, 5, -3)
    assert stub.parameters()[3:] == [-3, y.data_ptr(), 0]


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_clusters_and_blocks_that_wait_for_each_other(stub: StubDriver, driver: Driver, make: Make) -> None:
    binary = dataclasses.replace(BINARY, cluster=2, cooperative=True)
    kernel = make(driver, driver.load(binary, 0), binary, "P")
    stub.set("want_parameters", 3)
    x = torch.ones(3)
    kernel(7, 2, 1, STREAM, 0, x)
    assert stub.launch()[1:] == [14, 2, 1, 128, 1024, STREAM]
    assert stub.attributes() == [[2, 1, 0, 0], [4, 2, 1, 1], [5, 1, 0, 0]]
    assert stub.parameters()[0] == x.data_ptr()
    large = dataclasses.replace(BINARY, cluster=16)
    kernel = make(driver, driver.load(large, 0), large, "P")
    kernel(1, 1, 1, STREAM, 0, x)
    assert stub.attributes() == [[4, 16, 1, 1], [5, 1, 0, 0]]


def test_a_binary_is_loaded_once_per_device(stub: StubDriver, driver: Driver) -> None:
    before = stub.number("modules")
    first = driver.load(BINARY, 0)
    assert driver.load(dataclasses.replace(BINARY), 0) is first
    assert stub.number("modules") == before + 1
    driver.load(BINARY, 1)
    driver.load(dataclasses.replace(BINARY, image=b"other code"), 0)
    assert stub.number("modules") == before + 3


def test_a_driver_without_clusters_refuses_them(stub: StubDriver) -> None:
    old = Driver(dataclasses.replace(CUDA, library=str(stub.path), launch_ex="cuLaunchKernelAbsent"))
    old.load(BINARY, 0)
    with pytest.raises(KernelLaunchError, match="asks for clusters"):
        old.load(dataclasses.replace(BINARY, cluster=2), 0)


def test_what_a_thread_uses_is_read(driver: Driver) -> None:
    function = driver.load(BINARY, 0)
    assert (function.registers, function.spill_bytes) == (40, 16)


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_an_empty_grid_launches_nothing(stub: StubDriver, driver: Driver, make: Make) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "P")
    before = stub.number("launches")
    kernel(0, 1, 1, STREAM, 0, torch.ones(1))
    kernel(1, 0, 1, STREAM, 0, torch.ones(1))
    assert stub.number("launches") == before


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_a_thread_without_a_context_gets_the_kernels(stub: StubDriver, driver: Driver, make: Make) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "P")
    stub.set("fail_with", 201)
    kernel(1, 1, 1, STREAM, 0, torch.ones(1))
    assert stub.number("current_context") == 0x77


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_a_refused_launch_raises(stub: StubDriver, driver: Driver, make: Make) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "P")
    stub.set("fail_with", 9)
    with pytest.raises(RuntimeError, match="kernel double_it"):
        kernel(1, 99999999, 1, STREAM, 0, torch.ones(1))


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_a_size_that_does_not_fit_raises(driver: Driver, make: Make) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "Pi")
    with pytest.raises(OverflowError):
        kernel(1, 1, 1, STREAM, 0, torch.ones(1), 1 << 31)


@pytest.mark.parametrize("make", [fast, make_slow_kernel])
def test_a_wrong_number_of_arguments_raises(driver: Driver, make: Make) -> None:
    kernel = make(driver, driver.load(BINARY, 0), BINARY, "Pi")
    with pytest.raises((TypeError, ValueError)):
        kernel(1, 1, 1, STREAM, 0, torch.ones(1))


def test_the_extension_refuses_what_is_no_tensor(driver: Driver) -> None:
    kernel = fast(driver, driver.load(BINARY, 0), BINARY, "Pi")
    with pytest.raises(AttributeError, match="data_ptr"):
        kernel(1, 1, 1, STREAM, 0, "text", 3)
    with pytest.raises(TypeError):
        kernel(1, 1, 1, STREAM, 0, torch.ones(1), 2.5)
    with pytest.raises(OverflowError):
        kernel(-1, 1, 1, STREAM, 0, torch.ones(1), 2)


@pytest.mark.parametrize("torch_knows", [False, True])
def test_a_kernel_that_failed_before_is_told_as_torch_tells_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, torch_knows: bool
) -> None:
    def synchronize() -> None:
        if torch_knows:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    message = "device-side assert" if torch_knows else "cannot load kernel double_it"
    with pytest.raises(RuntimeError, match=message):
        driver.load(dataclasses.replace(BINARY, image=b"?"), 0)
    with pytest.raises(KernelLaunchError, match="CUDA_ERROR_STUB"):
        driver.load(dataclasses.replace(BINARY, image=b"!"), 0)


def test_large_shared_memory_is_asked_for(stub: StubDriver, driver: Driver) -> None:
    driver.load(dataclasses.replace(BINARY, shared_bytes=100_000), 0)
    with pytest.raises(KernelLaunchError, match="300000 bytes of shared memory"):
        driver.load(dataclasses.replace(BINARY, shared_bytes=300_000), 0)


def test_a_thread_without_a_context_takes_the_devices_own(stub: StubDriver, driver: Driver) -> None:
    stub.set("no_context", 1)
    assert driver.load(BINARY, 0).context == 0x78
    stub.set("no_context", 0)


@pytest.mark.parametrize("change", [{"image": b"!damaged"}, {"name": "absent"}])
def test_a_damaged_binary_is_refused(driver: Driver, change: dict[str, Any]) -> None:
    with pytest.raises(KernelLaunchError, match="CUDA_ERROR_STUB"):
        driver.load(dataclasses.replace(BINARY, **change), 0)


def test_a_missing_driver_says_so() -> None:
    with pytest.raises(DeviceError, match=r"libabsent_driver\.so"):
        Driver(dataclasses.replace(CUDA, library="libabsent_driver.so"))
