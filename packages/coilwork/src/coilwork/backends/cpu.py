"""CPUs: C++ kernels of `coilwork_cpp`, which the runtime builds with the compiler that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from coilwork_cache import Store
from coilwork_ir.backend import Codegen
from coilwork_ir.device_traits import DEVICE_TRAITS
from coilwork_ir.target import TARGETS, Target
from coilwork_runtime import CppCompiler, CpuDevice, Device, KernelCompiler, describe_cpu


@dataclass(frozen=True, slots=True)
class CpuBackend:
    """The back end of the processor that runs this process."""

    name: str = "cpu"
    device_types: tuple[str, ...] = ("cpu",)
    kinds: tuple[str, ...] = ("cpu",)
    languages: tuple[str, ...] = ("cpp",)
    traits: frozenset[str] = DEVICE_TRAITS["cpu"]

    def refuses(self) -> str:
        return ""

    def devices(self) -> tuple[str, ...]:
        return self.device_types

    def describe(self, device: str) -> Target:
        facts = describe_cpu()
        return replace(TARGETS[facts.name], arch=facts.arch, multiprocessors=facts.multiprocessors)

    def targets(self) -> Mapping[str, Target]:
        return {name: target for name, target in TARGETS.items() if target.kind in self.kinds}

    def codegen(self, target: Target) -> Codegen:
        from coilwork_cpp import CppCodegen

        return CppCodegen()

    def compiler(self, store: Store | None) -> KernelCompiler:
        return CppCompiler()

    def device(self, store: Store | None) -> Device:
        return CpuDevice()


BACKEND: Final = CpuBackend()
