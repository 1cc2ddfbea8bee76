"""Read what devices this machine has, without compiling anything."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_runtime.errors import DeviceError

_ARM: Final = ("aarch64", "arm64")
AVX512: Final = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})
AVX2: Final = frozenset({"avx2", "fma", "f16c"})
_GPU: Final = "cuda"
# Types of which there is one device; its tensors have no number.
_UNNUMBERED: Final = frozenset({"cpu", "meta"})
CPU_INFO: Final = Path("/proc/cpuinfo")
_TORCH_FEATURES: Final[Mapping[str, frozenset[str]]] = {"AVX2": AVX2, "AVX512": AVX2 | AVX512}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device as its driver describes it; a number that cannot be read is 0.

    Attributes:
        name: of the target that describes such devices.
        arch: architecture, as the device's compiler names it.
        multiprocessors: streaming multiprocessors, compute units, or threads of a CPU.
        shared_memory_bytes: most shared memory one block can have.
        l2_bytes: last-level cache.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_memory_bytes: int = 0
    l2_bytes: int = 0


@cache
def parse_device(name: str) -> torch.device:
    """`torch.device(name)`, where an accelerator without a number is the first of its type: people write
    `cuda` in modules that they run by themselves.
    """
    return torch.device(name if ":" in name or name in _UNNUMBERED else f"{name}:0")


def find_device_number(name: str) -> int:
    """Return the number of a device among those of its type; -1 for the host."""
    kind, _, number = name.partition(":")
    return -1 if kind in _UNNUMBERED else int(number or 0)


def count_devices(kind: str) -> int:
    """Return how many devices of a type torch sees beside the processor."""
    return torch.cuda.device_count() if kind == _GPU and torch.cuda.is_available() else 0


def current_device(kind: str) -> int:
    """Return the index of this thread's current device of a type."""
    return torch.cuda.current_device() if count_devices(kind) else 0


def describe_cpu() -> DeviceFacts:
    """Facts about the processor that runs this process.

    Raises:
        DeviceError: it lacks instructions that all kernels use, and would end the process at the first one.
    """
    machine, features = platform.machine(), read_cpu_features()
    missing = frozenset[str]() if machine in _ARM or not features else AVX2 - features
    if missing:
        raise DeviceError(
            "missing-features",
            f"kernels use {', '.join(sorted(missing))}, which this processor lacks",
            reason="the least x86 processor that code is generated for is x86-64-v3",
            remedy="give the virtual machine the host's processor model, or leave the graph to eager",
        )
    name = find_cpu_target_name(machine, features)
    return DeviceFacts(name=name, arch=name, multiprocessors=torch.get_num_threads())


def describe_gpu(index: int) -> DeviceFacts:
    """Facts about the GPU that torch calls `cuda:index`.

    Raises:
        DeviceError: there is no such device.
    """
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise DeviceError(
            "missing-device",
            f"there is no device cuda:{index} on this machine",
            reason=f"torch sees {torch.cuda.device_count()} CUDA devices",
        )
    facts: Any = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        name = arch = str(facts.gcnArchName).partition(":")[0]
    else:
        arch = f"{facts.major}{facts.minor}"
        name = f"sm_{arch}"
    return DeviceFacts(
        name=name,
        arch=arch,
        multiprocessors=facts.multi_processor_count,
        shared_memory_bytes=facts.shared_memory_per_block_optin,
        l2_bytes=facts.L2_cache_size,
    )


def read_cpu_features() -> frozenset[str]:
    """Instruction set extensions of this CPU, by their Linux names; without such a list, those that torch
    uses.
    """
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        if platform.machine() in _ARM:
            return frozenset({"asimd"})
        return _TORCH_FEATURES.get(torch.backends.cpu.get_cpu_capability(), frozenset())
    for line in text.splitlines():
        key, _, values = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def find_cpu_target_name(machine: str, features: frozenset[str]) -> str:
    """Return the built-in target that a CPU with `features` can run."""
    if machine in _ARM:
        return "aarch64-neon"
    return "x86-64-avx512" if features >= AVX512 else "x86-64-avx2"


def can_run_on(target: str, present: str) -> bool:
    """Return True if machine code for `target` runs on the GPU `present`. NVIDIA's runs on later GPUs of the
    same major version.
    """
    if target.startswith("sm_") and present.startswith("sm_"):
        wanted, here = int(target[3:]), int(present[3:])
        return wanted // 10 == here // 10 and wanted <= here and (wanted == here or wanted < 90)
    return target == present
