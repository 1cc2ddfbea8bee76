"""The run time of compiled programs: build, load, launch, autotune, check.

Open `executor/native_program.py` first: from a program's bytes to its callable. `calling_convention.py` goes
around the call, `cpp/` and `triton_kernels/` build and launch kernels, `artifact.py` saves programs;
`generated.py` is what readable modules import.
"""

from coilwork_runtime.builder import Builder
from coilwork_runtime.calling_convention import bind_roles, bind_separate
from coilwork_runtime.cpp.cpp_builder import CppCompiler
from coilwork_runtime.cpp.launch import CpuDevice
from coilwork_runtime.devices import DeviceFacts, describe_cpu, describe_gpu
from coilwork_runtime.errors import (
    ArtifactError,
    DeviceError,
    ExecutorUnavailableError,
    KernelBuildError,
    KernelLaunchError,
    LayoutError,
    LifetimeError,
    MissingCompilerError,
    MissingTritonError,
    ModuleTextError,
    ProgramBytesError,
    RuntimeFault,
    ScratchFolderError,
    raise_failure,
)
from coilwork_runtime.executor.interpreter import load_interpreted
from coilwork_runtime.executor.lifetime_checker import LifetimeChecker
from coilwork_runtime.executor.native_program import NativeProgram, load_native, warm_executor
from coilwork_runtime.executor.vendor_libraries import ConvolutionLibrary, DriverGraphs, ProductLibrary
from coilwork_runtime.languages import CapturingDevice, Device, DeviceLanguage, KernelCompiler, Language
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec
from coilwork_runtime.module_loader import load_python
from coilwork_runtime.tensor_kinds import TensorKinds, collect_kinds, guard_call
from coilwork_runtime.triton_kernels.autotune.search import Search
from coilwork_runtime.triton_kernels.device import GpuDevice, TritonCompiler
from coilwork_runtime.version import __version__

__all__ = [
    "ArtifactError",
    "Builder",
    "ConvolutionLibrary",
    "CppCompiler",
    "CpuDevice",
    "DriverGraphs",
    "DeviceError",
    "CapturingDevice",
    "Device",
    "DeviceFacts",
    "DeviceLanguage",
    "ExecutorUnavailableError",
    "GpuDevice",
    "KernelBuildError",
    "KernelCompiler",
    "KernelLaunchError",
    "KernelManifest",
    "KernelSpec",
    "Language",
    "Launcher",
    "LayoutError",
    "LifetimeChecker",
    "LifetimeError",
    "MissingCompilerError",
    "MissingTritonError",
    "ModuleTextError",
    "NativeProgram",
    "ProductLibrary",
    "ProgramBytesError",
    "ScratchFolderError",
    "RuntimeFault",
    "Search",
    "TensorKinds",
    "TritonCompiler",
    "__version__",
    "bind_roles",
    "bind_separate",
    "describe_cpu",
    "describe_gpu",
    "guard_call",
    "collect_kinds",
    "load_interpreted",
    "load_native",
    "load_python",
    "raise_failure",
    "warm_executor",
]
