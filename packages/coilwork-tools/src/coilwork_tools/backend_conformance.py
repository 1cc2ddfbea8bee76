"""Run all conformance kits against one back end: its generator's kernels, by its own compiler and device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from coilwork_ir.backend import Backend, Codegen
from coilwork_ir.conformance import CASES, Result, check_codegen, check_cores
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import Target
from coilwork_runtime import Device, DeviceError, KernelCompiler, KernelSpec, Launcher
from coilwork_runtime.conformance import Sample, Samples, check_device
from coilwork_runtime.languages import make_launcher
from coilwork_runtime.module_loader import load_kernels

_ADD: Final = """\
kernel @add fast {
  size n0 in [1, inf]
  range x0: `n0` parallel
  arg x: f32 in span `n0`
  arg y: f32 in span `n0`
  arg out: f32 out span `n0`
  body {
    t0 = load %x[x0] : f32
    t1 = load %y[x0] : f32
    t2 = add(t0, t1)
    store %out[x0] = t2
  }
}
"""
_PICK: Final = """\
kernel @pick fast {
  size n0 in [1, inf]
  range x0: `n0` parallel
  arg table: f32 in span `8`
  arg index: i64 in span `n0`
  arg out: f32 out span `n0`
  body {
    t0 = load %index[x0] : i64
    t1 = const 0 : i64
    t2 = le(t1, t0)
    t3 = const 8 : i64
    t4 = lt(t0, t3)
    t5 = bitwise_and(t2, t4)
    t6 = load %table[@0] using (t0) : f32 mask t5 other 0.0
    check t5 IndexError "index out of range"
    store %out[x0] = t6
  }
}
"""
# A case whose kernel's check fails; some devices do not come back from that.
_FAILING: Final = "failing-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class KitResult:
    """The result of a kit: how many of its cases passed and were refused, and a line for each that failed."""

    kit: str
    passed: int
    refused: int
    failures: tuple[str, ...]


def check_backend(backend: Backend[Any, KernelCompiler, Device]) -> Iterator[KitResult]:
    """Yield the result of each kit on the first device of `backend`. Nothing that is built is kept.

    Raises:
        DeviceError: it has no device here, or it compiles only.
    """
    compiler, device = backend.compiler(None), backend.device(None)
    refused = backend.refuses() or ("it launches nothing" if compiler is None or device is None else "")
    if refused or compiler is None or device is None:
        raise DeviceError("no-device", f"nothing can be run by the back end {backend.name}", reason=refused)
    where = backend.devices()[0]
    target = backend.describe(where)
    codegen = backend.codegen(target)
    kernels = _Kernels(codegen=codegen, target=target, compiler=compiler, device=device, where=where)
    cases = [case for case in CASES if device.recovers or case.name != _FAILING]
    yield _summary("kernels", check_codegen(codegen, target, kernels.run, cases=cases))
    yield _summary("cores of kernels", check_cores(codegen, target, kernels.run))
    results = check_device(device, where, kernels.samples())
    outcomes = [(one.status, f"{one.check}: {one.reason}") for one in results]
    yield _count("device", outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """Kernels of a generator's, on a device. Those that were built are kept, by their source."""

    codegen: Codegen
    target: Target
    compiler: KernelCompiler
    device: Device
    where: str
    built: dict[KernelSource, tuple[KernelSpec, Launcher]] = field(default_factory=dict)

    def run(self, source: KernelSource, args: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """Run a kernel on CPU tensors, which it overwrites: a `Runner` of the kits."""
        if source not in self.built:
            spec = _specification(source)
            self.built[source] = (spec, make_launcher(spec, self.compiler.compile(spec), self.device))
        spec, launch = self.built[source]
        tensors = {name: value.to(self.where, copy=True) for name, value in args.items()}
        given = [one.name for one in spec.args if one.role != "scratch"]
        launch(*(sizes[name] if name in sizes else tensors[name] for name in given))
        self.device.synchronize(self.device.stream(0))
        for name, value in tensors.items():
            args[name].copy_(value)

    def samples(self) -> Samples:
        """Return the kernels that the kit for devices launches."""
        samples = []
        for text in (_ADD, _PICK):
            spec = _specification(self.codegen.emit(parse_kernel(text), self.target, {}))
            samples.append(Sample(manifest=spec, binary=self.compiler.compile(spec)))
        return Samples(add=samples[0], pick=samples[1] if self.device.recovers else None)


def _specification(source: KernelSource) -> KernelSpec:
    (spec,) = load_kernels(write_kernels([(source, ())]))
    return spec


def _summary(kit: str, results: Iterable[Result]) -> KitResult:
    return _count(kit, [(one.status, f"{one.case} {dict(one.sizes)}: {one.reason}") for one in results])


def _count(kit: str, outcomes: Sequence[tuple[str, str]]) -> KitResult:
    statuses = [status for status, _ in outcomes]
    return KitResult(
        kit=kit,
        passed=statuses.count("passed"),
        refused=statuses.count("refused"),
        failures=tuple(line for status, line in outcomes if status == "failed"),
    )
