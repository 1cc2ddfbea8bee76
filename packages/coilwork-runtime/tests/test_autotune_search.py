"""What is built, left out and timed around the candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from runtime_sample_kernels import rewrite, triton_kernel, version

from coilwork_runtime import KernelBuildError, KernelLaunchError
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config, Space, Trial
from coilwork_runtime.triton_kernels.autotune.search import (
    Ready,
    Search,
    Workshop,
    count_resident_threads,
    explain_hopeless,
    search,
)
from coilwork_runtime.triton_kernels.compilation import GpuBinary

SPACE = Space.from_spec(
    rewrite(triton_kernel(), versions=(version({"XBLOCK": (64, 128, 256, 512), "num_warps": (4, 8)}),))
)


class Lab:
    """Configurations whose calls do nothing but note that they were made."""

    def __init__(self, times: dict[int, float], spills: dict[int, int]) -> None:
        self.times = times
        self.spills = spills
        self.called: list[int] = []

    def ready(self, config: Config) -> Ready:
        x = config["XBLOCK"]

        def call() -> None:
            self.called.append(x)

        return Ready(
            config=config,
            call=call,
            threads=32 * config["num_warps"],
            registers=32,
            spill_bytes=self.spills.get(x, 0),
        )

    def measure(self, call: Callable[[], None]) -> float:
        call()
        return self.times[self.called[-1]]

    def compile(self, configs: Sequence[Config]) -> list[GpuBinary | KernelBuildError]:
        binary = GpuBinary(image=b"code", name="k", shared_bytes=0, threads=128)
        refusal = KernelBuildError("k", reason="it is too wide")
        return [refusal if config["XBLOCK"] == 512 else binary for config in configs]

    def load(self, config: Config, binary: GpuBinary) -> Ready:
        if config["XBLOCK"] == 128 and config["num_warps"] == 8:
            raise KernelLaunchError("kernel-load", "no room for it")
        return self.ready(config)

    def search(self, limits: Search) -> list[Trial]:
        workshop = Workshop(compile=self.compile, load=self.load)
        start = [self.ready({"XBLOCK": 128, "num_warps": 4})]
        found = search("k", start, SPACE, workshop, limits=limits, measure=self.measure)
        assert found is not None
        return [found.best, *found.tried]


def test_reasons_are_kept_and_the_rest_is_timed() -> None:
    lab = Lab({64: 3.0, 128: 2.0, 256: 1.0}, {64: 8})
    heard: list[tuple[str, int]] = []
    best, *tried = lab.search(Search(told=lambda name, trials, _: heard.append((name, trials))))
    assert best.config == {"XBLOCK": 256, "num_warps": 4}
    reasons = {(t.config["XBLOCK"], t.config["num_warps"]): t.reason for t in tried}
    assert reasons[256, 4] == ""
    assert reasons[64, 4].startswith("spills 8 bytes")
    assert reasons[128, 8].startswith("does not load") and "no room for it" in reasons[128, 8]
    assert reasons[512, 4].startswith("does not build")
    assert 64 not in lab.called
    assert heard[0] == ("k", 4) and heard[-1][1] == 1 + len(tried)


def test_the_time_is_limited() -> None:
    lab = Lab({64: 3.0, 128: 2.0, 256: 1.0}, {})
    best, *tried = lab.search(Search(seconds=-1.0))
    assert tried == [] and best.config["XBLOCK"] == 128


def test_spills_and_registers_tell_what_cannot_win() -> None:
    best = Trial(config={}, milliseconds=1.0, registers=64, threads=128)
    assert count_resident_threads(best) == 1024
    assert count_resident_threads(dataclasses.replace(best, registers=0)) == 2048
    assert explain_hopeless(dataclasses.replace(best, registers=128), best) == ""
    assert "threads of 200 registers" in explain_hopeless(dataclasses.replace(best, registers=200), best)
    assert explain_hopeless(dataclasses.replace(best, spill_bytes=4), best).startswith("spills 4")
    assert explain_hopeless(best, dataclasses.replace(best, spill_bytes=4)) == ""
