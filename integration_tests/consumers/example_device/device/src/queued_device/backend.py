"""The back end: Coilwork's C++ generator, with a language and a launcher of this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coilwork_cache import Store
from coilwork_cpp import CppCodegen
from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.target import TARGETS, Capabilities, Target
from coilwork_runtime import CppCompiler, describe_cpu
from coilwork_scheduler.contractions.registry import Registry
from queued_device import NAME
from queued_device.device import QueuedDevice
from queued_device.products import LIBRARY


@dataclass(frozen=True)
class QueuedCodegen:
    """C++ kernels, said to be in the language of this device, so that nobody else launches them."""

    name: str = NAME

    def supports(self, target: Target) -> bool:
        return target.kind == NAME

    def capabilities(self, target: Target) -> Capabilities:
        return CppCodegen().capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        return replace(CppCodegen().emit(kernel, target, options), language=NAME)


@dataclass(frozen=True)
class QueuedBackend:
    """Implements `coilwork_ir.backend.Backend`."""

    name: str = NAME
    device_types: tuple[str, ...] = (NAME,)
    kinds: tuple[str, ...] = (NAME,)
    languages: tuple[str, ...] = (NAME,)
    # what kernels do not compute, the CPU does; its cores run the kernels, too
    traits: frozenset[str] = frozenset({ATEN_CPU, PROCESSOR})

    def refuses(self) -> str:
        return ""

    def devices(self) -> tuple[str, ...]:
        return (f"{NAME}:0",)

    def describe(self, device: str) -> Target:
        facts = describe_cpu()
        return replace(TARGETS[facts.name], name=f"{NAME}-{facts.arch}", kind=NAME, traits=self.traits)

    def targets(self) -> Mapping[str, Target]:
        target = self.describe(self.devices()[0])
        return {target.name: target}

    def codegen(self, target: Target) -> QueuedCodegen:
        return QueuedCodegen()

    def implementations(self, target: Target) -> Registry:
        """The library of the device, before ATen's."""
        return LIBRARY

    def compiler(self, store: Store | None) -> CppCompiler:
        return CppCompiler()

    def device(self, store: Store | None) -> QueuedDevice:
        return QueuedDevice()


BACKEND = QueuedBackend()
