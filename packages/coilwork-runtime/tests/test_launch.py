"""The launcher written out for a kernel's arguments, on a GPU that only takes notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from runtime_sample_kernels import triton_kernel

from coilwork_cache import MemoryStore
from coilwork_runtime import DeviceError, KernelLaunchError
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.launch import Built, make_launcher


@dataclass(frozen=True)
class OnDevice:
    """What a launcher looks at of a tensor."""

    device: int
    address: int = 0

    def get_device(self) -> int:
        return self.device

    def untyped_storage(self) -> OnDevice:
        return self

    def data_ptr(self) -> int:
        return self.address


@dataclass
class Notes:
    """A GPU's notes: loads as (image, device), launches as (image, device, arguments)."""

    current: int = 0
    capturing: bool = False
    loads: list[tuple[bytes, int]] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    times: dict[bytes, float] = field(default_factory=dict)

    def gpu(self) -> Gpu:
        return Gpu(
            prepare=lambda: None,
            current=lambda: self.current,
            stream=lambda device: 100 + device,
            guard=self.guard,
            load=self.load,
            capturing=lambda: self.capturing,
            measure=self.measure,
            name=lambda device: "a GPU",
        )

    @contextmanager
    def guard(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def load(self, binary: GpuBinary, device: int, kinds: str) -> Callable[..., None]:
        if binary.image == b"too big":
            raise KernelLaunchError("kernel-load", "too big")
        self.loads.append((binary.image, device))
        return lambda *args: self.launches.append((binary.image, device, *args))

    def measure(self, call: Callable[[], None]) -> float:
        call()
        return self.times[self.launches.pop()[0]]


def built(*images: bytes, scratch_bytes: int = 0) -> list[Built]:
    return [
        Built(
            config={"XBLOCK": 256 * 2**k, "num_warps": 4},
            binary=GpuBinary(
                image=image, name="double_it", shared_bytes=0, threads=128, scratch_bytes=scratch_bytes
            ),
        )
        for k, image in enumerate(images)
    ]


def test_computes_the_grid_and_passes_the_arguments() -> None:
    notes = Notes()
    launch = make_launcher(triton_kernel(), built(b"one"), notes.gpu(), store=None)
    x, y = OnDevice(0), OnDevice(0)
    launch(x, y, 1000)
    launch(x, y, 1)
    assert notes.launches == [(b"one", 0, 4, 1, 1, 100, 0, x, y, 1000), (b"one", 0, 1, 1, 1, 100, 0, x, y, 1)]
    assert notes.loads == [(b"one", 0)]


def test_each_device_has_its_own_copy() -> None:
    notes = Notes()
    launch = make_launcher(triton_kernel(), built(b"one"), notes.gpu(), store=None)
    for device in (0, 1, 0, 1):
        launch(OnDevice(device), OnDevice(device), 8)
    assert [entry[1] for entry in notes.launches] == [0, 1, 0, 1]
    assert [entry[5] for entry in notes.launches] == [100, 101, 100, 101]
    assert notes.loads == [(b"one", 0), (b"one", 1)]
    assert notes.current == 0


def test_runs_on_the_tensors_device_when_another_is_current() -> None:
    notes = Notes(current=1)
    launch = make_launcher(triton_kernel(), built(b"one"), notes.gpu(), store=None)
    launch(OnDevice(0), OnDevice(0), 8)
    launch(OnDevice(0), OnDevice(0), 8)
    assert [entry[1] for entry in notes.launches] == [0, 0]
    assert notes.current == 1


def test_cpu_tensors_are_refused() -> None:
    launch = make_launcher(triton_kernel(), built(b"one"), Notes().gpu(), store=None)
    with pytest.raises(
        DeviceError, match=r"double_it was built for sm_90 and called with CPU tensors(?s:.*)TRITON_INTERPRET"
    ):
        launch(OnDevice(-1), OnDevice(-1), 8)


def test_the_fastest_candidate_launches_with_its_own_grid() -> None:
    notes = Notes(times={b"one": 3.0, b"two": 1.0, b"three": 2.0})
    launch = make_launcher(triton_kernel(), built(b"one", b"two", b"three"), notes.gpu(), store=None)
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    launch(x, y, 1024)
    launch(x, y, 1024)
    assert notes.launches == [(b"two", 0, 2, 1, 1, 100, 0, x, y, 1024)] * 2


def test_a_choice_is_remembered_by_kernel_device_and_size() -> None:
    store = MemoryStore()
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    first = Notes(times={b"one": 2.0, b"two": 1.0})
    make_launcher(triton_kernel(), built(b"one", b"two"), first.gpu(), store=store)(x, y, 1024)
    # nothing can be measured now, so it must be remembered
    second = Notes(times={})
    make_launcher(triton_kernel(), built(b"one", b"two"), second.gpu(), store=store)(x, y, 1030)
    assert [entry[0] for entry in second.launches] == [b"two"]
    with pytest.raises(KeyError):
        make_launcher(triton_kernel(), built(b"one", b"two"), second.gpu(), store=store)(x, y, 5000)


def test_nothing_is_measured_while_a_graph_is_recorded() -> None:
    notes = Notes(capturing=True, times={b"one": 2.0, b"two": 1.0})
    launch = make_launcher(triton_kernel(), built(b"one", b"two"), notes.gpu(), store=None)
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    launch(x, y, 8)
    notes.capturing = False
    launch(x, y, 8)
    assert [entry[0] for entry in notes.launches] == [b"one", b"two"]


def test_a_candidate_that_does_not_fit_drops_out() -> None:
    notes = Notes()
    launch = make_launcher(triton_kernel(), built(b"too big", b"two"), notes.gpu(), store=None)
    launch(OnDevice(0), OnDevice(0), 8)
    assert [entry[0] for entry in notes.launches] == [b"two"]
    none_fits = make_launcher(triton_kernel(), built(b"too big"), notes.gpu(), store=None)
    with pytest.raises(KernelLaunchError, match="too big"):
        none_fits(OnDevice(0), OnDevice(0), 8)


def test_grid_with_three_extents_and_min() -> None:
    notes = Notes()
    spec = dataclasses.replace(triton_kernel(), grid=("min(n0, 7)", "n0 // XBLOCK", "2"))
    make_launcher(spec, built(b"one"), notes.gpu(), store=None)(OnDevice(0), OnDevice(0), 1024)
    assert notes.launches[0][2:5] == (7, 4, 2)
