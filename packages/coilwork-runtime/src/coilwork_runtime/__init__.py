"""What generated code needs at run time: build, load, launch, check."""

from coilwork_runtime.builder import Builder
from coilwork_runtime.devices import describe_device
from coilwork_runtime.errors import (
    DeviceError,
    KernelBuildError,
    KernelLaunchError,
    LayoutError,
    MissingCompilerError,
    MissingTritonError,
    ModuleTextError,
    RuntimeFault,
)
from coilwork_runtime.loader import load_python

__version__ = "0.1.0"

__all__ = [
    "Builder",
    "DeviceError",
    "KernelBuildError",
    "KernelLaunchError",
    "LayoutError",
    "MissingCompilerError",
    "MissingTritonError",
    "ModuleTextError",
    "RuntimeFault",
    "describe_device",
    "load_python",
]
