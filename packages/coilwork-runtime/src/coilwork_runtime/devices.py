"""What the devices of this machine are, read without compiling anything."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_runtime.errors import DeviceError

AVX512: Final = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})
AVX2: Final = frozenset({"avx2", "fma", "f16c"})
CPU_INFO: Final = Path("/proc/cpuinfo")
_TORCH_FEATURES: Final[Mapping[str, frozenset[str]]] = {"AVX2": AVX2, "AVX512": AVX2 | AVX512}


def describe_device(device: str) -> dict[str, object]:
    """Facts about `device` (`"cpu"`, `"cuda:0"`, …) for the compiler's target description.

    Keys: `name` (of the target), `kind` (`cpu`, `cuda`, `hip`), `arch`, `multiprocessors`, `shared_memory_bytes`,
    `l2_bytes`; a fact that cannot be read is 0.

    Raises:
        DeviceError: there is no such device.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return _cpu()
    if kind == "cuda":
        return _cuda(int(index or 0))
    if kind == "meta":
        raise DeviceError(
            "unknown-device",
            "meta tensors have no memory, and a kernel nothing to compute",
            remedy="make them on another device, or keep what only asks for shapes out of the graph with torch.compiler.disable",
        )
    raise DeviceError(
        "unknown-device",
        f"no description of device {device!r}",
        reason="Coilwork compiles for cpu and cuda devices",
        remedy="move what is to be compiled to one of them, or leave it to eager with torch.compiler.disable",
    )


def cpu_features() -> frozenset[str]:
    """Instruction set extensions of this CPU, by their Linux names; without such a list, those that torch uses."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _TORCH_FEATURES.get(torch.backends.cpu.get_cpu_capability(), frozenset())
    for line in text.splitlines():
        key, _, values = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def cpu_target_name(machine: str, features: frozenset[str]) -> str:
    """The built-in target that a CPU with `features` can run."""
    if machine in ("aarch64", "arm64"):
        return "aarch64-neon"
    return "x86-64-avx512" if features >= AVX512 else "x86-64-avx2"


def _cpu() -> dict[str, object]:
    name = cpu_target_name(platform.machine(), cpu_features())
    return {
        "name": name,
        "kind": "cpu",
        "arch": name,
        "multiprocessors": torch.get_num_threads(),
        "shared_memory_bytes": 0,
        "l2_bytes": 0,
    }


def _cuda(index: int) -> dict[str, object]:
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise DeviceError(
            "missing-device",
            f"there is no device cuda:{index} on this machine",
            reason=f"torch sees {torch.cuda.device_count()} CUDA devices",
        )
    facts: Any = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        arch = str(facts.gcnArchName).partition(":")[0]
        name, kind = arch, "hip"
    else:
        arch = f"{facts.major}{facts.minor}"
        name, kind = f"sm_{arch}", "cuda"
    return {
        "name": name,
        "kind": kind,
        "arch": arch,
        "multiprocessors": facts.multi_processor_count,
        "shared_memory_bytes": facts.shared_memory_per_block_optin,
        "l2_bytes": facts.L2_cache_size,
    }
