"""The launcher written out for a kernel's arguments, on a GPU that only takes notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from runtime_sample_kernels import rewrite, triton_kernel, version

from coilwork_cache import MemoryStore
from coilwork_runtime import DeviceError, KernelBuildError, KernelLaunchError
from coilwork_runtime.launch_descriptor import GpuEntry
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels import launch as launching
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config
from coilwork_runtime.triton_kernels.autotune.search import Search
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.gpu import Gpu, LoadedKernel
from coilwork_runtime.triton_kernels.launch import Built, Explore, make_launcher


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
    spills: dict[bytes, int] = field(default_factory=dict)
    entries: dict[bytes, GpuEntry] = field(default_factory=dict)

    def gpu(self) -> Gpu:
        return Gpu(
            prepare=lambda: None,
            current=lambda: self.current,
            stream=lambda device: 100 + device,
            guard=self.guard,
            load=self.load,
            capturing=lambda: self.capturing,
            measure=self.measure,
            measure_cold=self.measure,
            name=lambda device: "a GPU",
            here=lambda: "a GPU",
        )

    @contextmanager
    def guard(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def load(self, binary: GpuBinary, device: int, kinds: str) -> LoadedKernel:
        if binary.image == b"too big":
            raise KernelLaunchError("kernel-load", "too big")
        self.loads.append((binary.image, device))
        return LoadedKernel(
            launch=lambda *args: self.launches.append((binary.image, device, *args)),
            entry=self.entries.get(binary.image),
            spill_bytes=self.spills.get(binary.image, 0),
        )

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


def in_forms(*images: bytes, forms: Sequence[int]) -> list[Built]:
    """Candidates, each of the form of its number."""
    return [
        dataclasses.replace(one, config={**one.config, "VERSION": form})
        for one, form in zip(built(*images), forms, strict=True)
    ]


def spec_of(candidates: Sequence[Built], guards: Sequence[str]) -> KernelSpec:
    return rewrite(
        triton_kernel(),
        configs=tuple(one.config for one in candidates),
        versions=tuple(version({"XBLOCK": (512, 256)}, guard=guard) for guard in guards),
    )


THREE = ("n0 % 16 + max(0, n0 - 4096)", "max(0, n0 - 4096)", "")


def test_sizes_choose_the_form_and_each_has_its_own_candidates() -> None:
    notes = Notes(times={b"one": 3.0, b"two": 1.0})
    candidates = in_forms(b"one", b"two", b"odd", b"any", forms=(2, 2, 1, 0))
    launch = make_launcher(spec_of(candidates, THREE), candidates, notes.gpu(), store=None)
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    for size in (1024, 1000, 8192, 2048, 8191):
        launch(x, y, size)
    assert [(entry[0], entry[-1]) for entry in notes.launches] == [
        (b"two", 1024),
        (b"odd", 1000),
        (b"any", 8192),
        (b"two", 2048),
        (b"any", 8191),
    ]


@pytest.mark.parametrize(
    ("left", "launched"),
    [((2,), [b"any"] * 3), ((1, 2), [b"any", b"odd", b"any"]), ((0, 2), [b"one", b"any", b"any"])],
)
def test_the_form_for_all_sizes_does_where_one_does_not_build(
    left: tuple[int, ...], launched: list[bytes]
) -> None:
    notes = Notes()
    candidates = in_forms(b"one", b"odd", b"any", forms=(2, 1, 0))
    launch = make_launcher(
        spec_of(candidates, THREE), [candidates[number] for number in left], notes.gpu(), store=None
    )
    for size in (1024, 1000, 8192):
        launch(OnDevice(0), OnDevice(0), size)
    assert [entry[0] for entry in notes.launches] == launched


def entry(handle: int) -> GpuEntry:
    return GpuEntry(
        launch_address=1,
        set_context_address=2,
        context=3,
        handle=handle,
        device=0,
        threads=128,
        shared_bytes=0,
        compiler_scratch_bytes=0,
    )


def test_calls_of_other_forms_alone_do_without_python_after_a_while() -> None:
    """The first form has candidates to time, which takes a call that is for it; if none comes, its best guess
    stands in.
    """
    notes = Notes(entries={image: entry(k) for k, image in enumerate((b"one", b"two", b"odd", b"any"))})
    candidates = in_forms(b"one", b"two", b"odd", b"any", forms=(2, 2, 1, 0))
    launch = make_launcher(spec_of(candidates, THREE), candidates, notes.gpu(), store=None)
    assert launch.descriptor is not None and launch.descriptor() is None
    for asked in range(1, 10):
        launch(OnDevice(0), OnDevice(0), 1000)
        assert (launch.descriptor() is None) == (asked <= 8)
    assert {image for image, *_ in notes.launches} == {b"odd"}


def test_all_forms_are_native_once_the_first_is_settled() -> None:
    notes = Notes(
        times={b"one": 3.0, b"two": 1.0},
        entries={image: entry(k) for k, image in enumerate((b"one", b"two", b"odd", b"any"))},
    )
    candidates = in_forms(b"one", b"two", b"odd", b"any", forms=(2, 2, 1, 0))
    launch = make_launcher(spec_of(candidates, THREE), candidates, notes.gpu(), store=None)
    launch(OnDevice(0, 64), OnDevice(0, 128), 1024)
    assert launch.descriptor is not None and launch.descriptor() is not None


def test_a_choice_is_remembered_by_kernel_device_and_size() -> None:
    store = MemoryStore()
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    first, kernel = Notes(times={b"one": 2.0, b"two": 1.0}), triton_kernel(blocks=(256, 512))
    make_launcher(kernel, built(b"one", b"two"), first.gpu(), store=store)(x, y, 1024)
    # nothing can be measured now, so it must be remembered
    second = Notes(times={})
    make_launcher(kernel, built(b"one", b"two"), second.gpu(), store=store)(x, y, 1030)
    assert [entry[0] for entry in second.launches] == [b"two"]
    with pytest.raises(KeyError):
        make_launcher(kernel, built(b"one", b"two"), second.gpu(), store=store)(x, y, 5000)


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
    spec = rewrite(triton_kernel(), grid=("min(n0, 7)", "n0 // XBLOCK", "2"))
    make_launcher(spec, built(b"one"), notes.gpu(), store=None)(OnDevice(0), OnDevice(0), 1024)
    assert notes.launches[0][2:5] == (7, 4, 2)


def test_candidates_that_spill_are_not_timed_where_others_do_not() -> None:
    notes = Notes(times={b"two": 2.0, b"three": 1.0}, spills={b"one": 8})
    launch = make_launcher(triton_kernel(), built(b"one", b"two", b"three"), notes.gpu(), store=None)
    launch(OnDevice(0, 64), OnDevice(0, 128), 8)
    assert [entry[0] for entry in notes.launches] == [b"three"]
    all_spill = Notes(times={b"one": 2.0, b"two": 1.0}, spills={b"one": 8, b"two": 4})
    launch = make_launcher(triton_kernel(), built(b"one", b"two"), all_spill.gpu(), store=None)
    launch(OnDevice(0, 64), OnDevice(0, 128), 8)
    assert [entry[0] for entry in all_spill.launches] == [b"two"]


WIDTHS = (64, 128, 256, 512, 1024)
SEARCHED = rewrite(
    triton_kernel(),
    configs=({"XBLOCK": 256, "num_warps": 4},),
    versions=(version({"XBLOCK": WIDTHS}),),
)


def explore(asked: list[Config]) -> Explore:
    """Builds a binary whose image is the block's width; the narrowest does not build."""

    def build(configs: Sequence[Config]) -> list[GpuBinary | KernelBuildError]:
        asked.extend(configs)
        return [image(config["XBLOCK"]) if config["XBLOCK"] > 64 else REFUSED for config in configs]

    return Explore(search=Search(), compile=build)


REFUSED = KernelBuildError("double_it", reason="no")


def image(width: int) -> GpuBinary:
    return GpuBinary(image=str(width).encode(), name="double_it", shared_bytes=0, threads=128)


def proposed(width: int = 256) -> list[Built]:
    return [Built(config={"XBLOCK": width, "num_warps": 4}, binary=image(width))]


TIMES = {b"64": 0.5, b"128": 3.0, b"256": 2.0, b"512": 1.5, b"1024": 1.0}


def test_a_search_goes_beyond_the_candidates_and_its_choice_launches() -> None:
    store, asked, notes = MemoryStore(), list[Config](), Notes(times=dict(TIMES))
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    launch = make_launcher(SEARCHED, proposed(), notes.gpu(), store=store, explore=explore(asked))
    launch(x, y, 4096)
    launch(x, y, 4096)
    assert notes.launches == [(b"1024", 0, 4, 1, 1, 100, 0, x, y, 4096)] * 2
    assert [config["XBLOCK"] for config in asked] == [512, 128, 1024]
    # remembered: whoever builds that one needs no search, nor anything timed
    other, none = Notes(), list[Config]()
    loaded = [*proposed(), *proposed(1024)]
    make_launcher(SEARCHED, loaded, other.gpu(), store=store, explore=explore(none))(x, y, 5000)
    make_launcher(SEARCHED, loaded, other.gpu(), store=store)(x, y, 5000)
    assert [entry[0] for entry in other.launches] == [b"1024", b"1024"] and none == []
    # for other sizes there is nothing yet
    unknown = Notes(times=dict(TIMES))
    make_launcher(SEARCHED, proposed(), unknown.gpu(), store=store, explore=explore(none))(x, y, 50)
    assert none


def test_another_source_knows_nothing_of_the_choice() -> None:
    store, x, y = MemoryStore(), OnDevice(0, 64), OnDevice(0, 128)
    notes = Notes(times=dict(TIMES))
    make_launcher(SEARCHED, proposed(), notes.gpu(), store=store, explore=explore([]))(x, y, 4096)
    changed = dataclasses.replace(SEARCHED, source=SEARCHED.source + "# else\n")
    notes = Notes(times={b"256": 1.0, b"1024": 1.0})
    make_launcher(changed, [*proposed(), *proposed(1024)], notes.gpu(), store=store)(x, y, 4096)
    assert [entry[0] for entry in notes.launches] == [b"256"]


def test_a_configuration_that_faults_does_not_lose_the_call() -> None:
    notes = Notes(times=dict(TIMES))

    def measure(call: Callable[[], None]) -> float:
        call()
        width = notes.launches.pop()[0]
        if width != b"256":
            raise RuntimeError("CUDA error: an illegal memory access")
        return TIMES[width]

    gpu = dataclasses.replace(notes.gpu(), measure_cold=measure)
    launch = make_launcher(SEARCHED, proposed(), gpu, store=None, explore=explore([]))
    launch(OnDevice(0, 64), OnDevice(0, 128), 4096)
    assert [entry[0] for entry in notes.launches] == [b"256"]


def test_nothing_that_can_be_timed_leaves_the_best_guess() -> None:
    notes = Notes()

    def measure(call: Callable[[], None]) -> float:
        raise RuntimeError("no events here")

    gpu = dataclasses.replace(notes.gpu(), measure_cold=measure)
    launch = make_launcher(SEARCHED, proposed(), gpu, store=MemoryStore(), explore=explore([]))
    launch(OnDevice(0, 64), OnDevice(0, 128), 4096)
    assert [entry[0] for entry in notes.launches] == [b"256"]


def test_no_search_without_memory_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> list[Any]:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(launching, "make_expendable_arguments", full)
    asked, notes = list[Config](), Notes(times=dict(TIMES))
    launch = make_launcher(SEARCHED, proposed(), notes.gpu(), store=None, explore=explore(asked))
    launch(OnDevice(0, 64), OnDevice(0, 128), 8)
    assert not asked and [entry[0] for entry in notes.launches] == [b"256"]


def test_no_search_while_a_graph_is_recorded() -> None:
    asked, notes = list[Config](), Notes(capturing=True, times=dict(TIMES))
    launch = make_launcher(SEARCHED, proposed(), notes.gpu(), store=None, explore=explore(asked))
    x, y = OnDevice(0, 64), OnDevice(0, 128)
    launch(x, y, 8)
    assert not asked
    notes.capturing = False
    launch(x, y, 8)
    assert asked and [entry[0] for entry in notes.launches] == [b"256", b"1024"]


def test_a_choice_that_needs_the_compilers_memory_is_left_out() -> None:
    notes = Notes(times=dict(TIMES))

    def build(configs: Sequence[Config]) -> list[GpuBinary | KernelBuildError]:
        return [dataclasses.replace(image(config["XBLOCK"]), scratch_bytes=64) for config in configs]

    explored = Explore(search=Search(), compile=build)
    launch = make_launcher(SEARCHED, proposed(), notes.gpu(), store=None, explore=explored)
    launch(OnDevice(0, 64), OnDevice(0, 128), 4096)
    assert [entry[0] for entry in notes.launches] == [b"256"]
