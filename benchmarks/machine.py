"""Which machine and which versions a result came from."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def processor_name() -> str:
    """The CPU's marketing name, or its architecture where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_description(device: str) -> dict[str, str]:
    """Processor, GPU and versions, each as text."""
    described = {
        "processor": f"{processor_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used",
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", "),
        "python": platform.python_version(),
    }
    for package in ("torch", "triton", "transformers", "coilwork"):
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            described[package] = "source tree" if package == "coilwork" else "not installed"
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        described["gpu"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return described
