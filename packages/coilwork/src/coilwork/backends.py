"""Our back ends: C++ kernels (`coilwork_cpp`) for CPUs, Triton kernels (`coilwork_triton`) for GPUs.

`registries.py` finds them, and those of other packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from coilwork_cache import Store
from coilwork_ir.backend import Codegen
from coilwork_ir.device_traits import DEVICE_TRAITS
from coilwork_ir.target import TARGETS, Target, describe_gpu_target, list_targets
from coilwork_runtime import (
    CppCompiler,
    CpuDevice,
    Device,
    GpuDevice,
    KernelCompiler,
    TritonCompiler,
    describe_cpu,
    describe_gpu,
)


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
        return list_targets(self.kinds)

    def codegen(self, target: Target) -> Codegen:
        from coilwork_cpp import CppCodegen

        return CppCodegen()

    def compiler(self, store: Store | None) -> KernelCompiler:
        return CppCompiler()

    def device(self, store: Store | None) -> Device:
        return CpuDevice()


CPU: Final = CpuBackend()


@dataclass(frozen=True, slots=True)
class CudaBackend:
    """The back end of GPUs, whatever torch is built for."""

    name: str = "cuda"
    device_types: tuple[str, ...] = ("cuda",)
    kinds: tuple[str, ...] = ("cuda", "hip")
    languages: tuple[str, ...] = ("triton",)
    traits: frozenset[str] = DEVICE_TRAITS["cuda"]

    def refuses(self) -> str:
        if torch.cuda.is_available():
            return ""
        built = torch.version.cuda or torch.version.hip
        return "torch sees no GPU here" if built else "this torch is built without CUDA and ROCm"

    def devices(self) -> tuple[str, ...]:
        return tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))

    def describe(self, device: str) -> Target:
        facts = describe_gpu(int(device.partition(":")[2] or 0))
        return describe_gpu_target(
            facts.name,
            facts.arch,
            multiprocessors=facts.multiprocessors,
            shared_memory_bytes=facts.shared_memory_bytes,
            l2_bytes=facts.l2_bytes,
        )

    def targets(self) -> Mapping[str, Target]:
        return list_targets(self.kinds)

    def codegen(self, target: Target) -> Codegen:
        from coilwork_triton import TritonCodegen

        return TritonCodegen()

    def compiler(self, store: Store | None) -> KernelCompiler:
        return TritonCompiler(store)

    def device(self, store: Store | None) -> Device:
        return GpuDevice(store)


CUDA: Final = CudaBackend()
