"""A conformance kit for devices: launches in order, streams, events, memory, threads, faults, time,
captured launches.

The caller makes two kernels for the device; the kit compares what they do with torch on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import torch
from torch import Tensor

from coilwork_runtime.errors import KernelLaunchError
from coilwork_runtime.languages import CapturingDevice, Device, lay_out_words
from coilwork_runtime.manifest.kernel_manifest import KernelManifest

ELEMENTS: Final = 100_000
LAUNCHES: Final = 40
ROUNDS: Final = 5
THREADS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A kernel for the device, and what launching it takes."""

    manifest: KernelManifest
    binary: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The kernels that the kit launches; each takes its tensors in this order, then sizes.

    Attributes:
        add: `out[i] = x[i] + y[i]` for f32 over `x`, `y`, `out`, and how many elements there are.
        pick: `out[i] = table[index[i]]` over a `table` of 8 elements (f32), `index` (i64), `out` (f32), and
            how many elements `out` has, with a check that raises `IndexError`; None for a device that does
            not recover from a failed check.
    """

    add: Sample
    pick: Sample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """The outcome of one check: `refused` where the device need not do it; `reason` says why one failed."""

    check: str
    status: Literal["passed", "failed", "refused"]
    reason: str = ""


def check_device(device: Device, where: str, samples: Samples) -> tuple[DeviceResult, ...]:
    """Do every check on the device that torch calls `where`."""
    bench = _Bench(device, where, samples)
    return tuple(_run(name, check, bench) for name, check in CHECKS.items())


def format_failures(results: Iterable[DeviceResult]) -> str:
    """Lines for the checks that failed; `""` if none did."""
    return "\n".join(f"{one.check}: {one.reason}" for one in results if one.status == "failed")


class Refused(Exception):
    """The device need not do what a check asks."""


class _Bench:
    """The device, with kernels loaded."""

    def __init__(self, device: Device, where: str, samples: Samples) -> None:
        self.device = device
        self.where = where
        self.samples = samples
        self.index = torch.device(where).index or 0
        self._add = self._load(samples.add)

    def _load(self, sample: Sample) -> Callable[..., None]:
        """Return a launch of the kernel on a stream: `launch(stream, tensors, sizes)`."""
        handle = self.device.load(sample.binary, sample.manifest, self.index)
        words_of = lay_out_words(sample.manifest)

        def launch(stream: Any, *args: Any) -> None:
            words, scratch = words_of(args)
            self.device.launch(handle, words, stream)
            del scratch

        return launch

    def pick(self) -> Callable[..., None]:
        if self.samples.pick is None:
            raise Refused("it does not recover from a failed check")
        return self._load(self.samples.pick)

    def add(self, stream: Any, x: Tensor, y: Tensor, out: Tensor) -> None:
        self._add(stream, x, y, out, out.numel())

    def full(self, value: float, elements: int = ELEMENTS) -> Tensor:
        return torch.full((elements,), value, device=self.where)

    def stream(self) -> Any:
        return self.device.stream(self.index)

    def make_stream(self) -> Any:
        """Return a new stream on which what torch has put on its current one is done already."""
        stream = self.device.make_stream(self.index)
        self.device.wait(stream, self.device.record(self.stream()))
        return stream

    def chain(self, stream: Any, x: Tensor, launches: int = LAUNCHES) -> Tensor:
        """`x` and as many ones, each added by a launch to what the launch before stored."""
        one, left, right = torch.ones_like(x), torch.zeros_like(x), torch.zeros_like(x)
        self.device.wait(stream, self.device.record(self.stream()))
        self.add(stream, x, one, left)
        for _ in range(launches - 1):
            self.add(stream, left, one, right)
            left, right = right, left
        # memory of torch's belongs to its current stream
        self.device.wait(self.stream(), self.device.record(stream))
        return left


def _run(name: str, check: Callable[[_Bench], str], bench: _Bench) -> DeviceResult:
    try:
        reason = check(bench)
    except Refused as error:
        return DeviceResult(check=name, status="refused", reason=str(error))
    except Exception as error:  # noqa: BLE001  whatever a device raises is a finding
        reason = f"raised {type(error).__name__}: {error}"
    return DeviceResult(check=name, status="failed" if reason else "passed", reason=reason)


def _check_launches(bench: _Bench) -> str:
    for elements in (1, 17, ELEMENTS):
        x, y = torch.rand(elements), torch.rand(elements)
        out = bench.full(-1.0, elements)
        bench.add(bench.stream(), x.to(bench.where), y.to(bench.where), out)
        if not torch.equal(out.cpu(), x + y):
            return f"a launch over {elements} elements gave other values"
    return ""


def _check_order(bench: _Bench) -> str:
    for _ in range(ROUNDS):
        out = bench.chain(bench.stream(), bench.full(0.0))
        if not torch.equal(out.cpu(), torch.full((ELEMENTS,), float(LAUNCHES))):
            return "launches on one stream were not done in their order, or a copy did not wait for them"
    return ""


def _check_order_with_torch(bench: _Bench) -> str:
    x, out = bench.full(1.0), bench.full(0.0)
    for _ in range(ROUNDS):
        bench.add(bench.stream(), x, x, out)
        out.mul_(2.0)
        bench.add(bench.stream(), out, x, out)
        if not torch.equal(out.cpu(), torch.full((ELEMENTS,), 5.0)):
            return "launches and torch's own operators on one stream were not done in their order"
    return ""


def _check_events(bench: _Bench) -> str:
    device = bench.device
    for _ in range(ROUNDS):
        first, second = bench.make_stream(), bench.make_stream()
        sums = bench.chain(first, bench.full(1.0))
        out = bench.full(0.0)
        device.wait(second, device.record(bench.stream()))
        device.wait(second, device.record(first))
        bench.add(second, sums, sums, out)
        last = device.record(second)
        device.synchronize(second)
        if not device.is_done(last):
            return "an event had not happened after its stream was waited for"
        if not torch.equal(out.cpu(), torch.full((ELEMENTS,), 2.0 * (LAUNCHES + 1))):
            return "a stream did not wait for an event of another"
    return ""


def _check_current_stream(bench: _Bench) -> str:
    device, before = bench.device, bench.stream()
    stream = bench.make_stream()
    with device.use(stream):
        if bench.stream() != stream:
            return "the stream in use is not torch's current one"
        out = bench.chain(bench.stream(), bench.full(0.0))
        wrong = not torch.equal(out.cpu(), torch.full((ELEMENTS,), float(LAUNCHES)))
    if bench.stream() != before:
        return "the stream before is not torch's current one again"
    return "torch did not wait for launches on the stream in use" if wrong else ""


def _check_memory(bench: _Bench) -> str:
    for _ in range(ROUNDS):
        out = bench.chain(bench.stream(), bench.full(0.0))
        # its operands are gone, and their memory may be somebody else's, while launches may still be queued
        others = [bench.full(-1.0) for _ in range(4)]
        if not torch.equal(out.cpu(), torch.full((ELEMENTS,), float(LAUNCHES))):
            return "memory that was freed behind launches was changed before they were done"
        del others
    return ""


def _check_threads(bench: _Bench) -> str:
    def work(number: int) -> bool:
        stream = bench.make_stream()
        for _ in range(ROUNDS):
            out = bench.chain(stream, bench.full(float(number)))
            bench.device.synchronize(stream)
            if not torch.equal(out.cpu(), torch.full((ELEMENTS,), float(number + LAUNCHES))):
                return False
        return True

    with ThreadPoolExecutor(THREADS) as threads:
        right = list(threads.map(work, range(THREADS)))
    return "" if all(right) else f"{right.count(False)} of {THREADS} threads got other values"


def _check_damaged_binaries(bench: _Bench) -> str:
    try:
        bench.device.load(b"no binary", bench.samples.add.manifest, bench.index)
    except KernelLaunchError:
        return _check_launches(bench)
    return "bytes that are no binary were loaded without an error"


def _check_failed_checks(bench: _Bench) -> str:
    pick = bench.pick()
    table, out = torch.arange(8.0, device=bench.where), bench.full(0.0, 3)
    stream = bench.stream()
    pick(stream, table, torch.tensor([1, 2, 7], device=bench.where), out, 3)
    bench.device.synchronize(stream)
    if out.tolist() != [1.0, 2.0, 7.0]:
        return "a kernel with a check that holds gave other values"
    wrong = torch.tensor([1, 8, 2], device=bench.where)
    try:
        pick(stream, table, wrong, out, 3)
        bench.device.synchronize(stream)
    except IndexError:
        # told once, and the device goes on
        bench.device.synchronize(stream)
        return _check_launches(bench)
    return "a check failed, and waiting for the stream did not raise IndexError"


def _check_measuring(bench: _Bench) -> str:
    calls: list[int] = []
    x, out = bench.full(1.0), bench.full(0.0)

    def call() -> None:
        calls.append(1)
        bench.add(bench.stream(), x, x, out)

    seconds = bench.device.measure(call, bench.index)
    if not calls:
        return "what was to be measured was not called"
    return "" if 0.0 < seconds < 10.0 else f"a launch is said to take {seconds} s"


def _check_captured_launches(bench: _Bench) -> str:
    device = bench.device
    if not isinstance(device, CapturingDevice):
        raise Refused("it takes launches one by one")
    words_of, add = lay_out_words(bench.samples.add.manifest), bench.samples.add
    handle = device.load(add.binary, add.manifest, bench.index)
    x, one, out = bench.full(0.0), bench.full(1.0), bench.full(0.0)
    launches = [
        (handle, words_of((*tensors, ELEMENTS))[0])
        for _ in range(LAUNCHES // 2)
        for tensors in ((x, one, out), (out, one, x))
    ]
    captured = device.capture(launches, bench.index)
    if captured is None:
        raise Refused("it does not capture the launches of a sum")
    if x.cpu().any():
        return "launches were done when they were captured"
    for start, stream in enumerate((bench.stream(), bench.make_stream(), bench.stream())):
        x.fill_(float(start))
        device.wait(stream, device.record(bench.stream()))
        device.replay(captured, stream)
        bench.add(stream, x, one, out)
        device.wait(bench.stream(), device.record(stream))
        if not torch.equal(out.cpu(), torch.full((ELEMENTS,), float(start + LAUNCHES + 1))):
            return "captured launches gave other values, or were not done in their order"
    return ""


CHECKS: Final[Mapping[str, Callable[[_Bench], str]]] = MappingProxyType(
    {
        "launches": _check_launches,
        "launches are done in order": _check_order,
        "torch's operators are done in order, too": _check_order_with_torch,
        "events order streams": _check_events,
        "the current stream is torch's": _check_current_stream,
        "freed memory": _check_memory,
        "many threads": _check_threads,
        "damaged binaries": _check_damaged_binaries,
        "failed checks": _check_failed_checks,
        "measuring": _check_measuring,
        "captured launches": _check_captured_launches,
    }
)
