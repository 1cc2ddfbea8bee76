"""What generated code needs at run time: build, load, launch, check."""

from coilwork_runtime.artifact import LoadedArtifact, load_artifact, save_artifact
from coilwork_runtime.builder import Builder
from coilwork_runtime.calling.binding import bind_roles, bind_separate
from coilwork_runtime.devices import describe_device
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
)
from coilwork_runtime.executor.convolutions import ConvolutionLibrary
from coilwork_runtime.executor.forms import Launcher
from coilwork_runtime.executor.graphs import DriverGraphs
from coilwork_runtime.executor.lifetimes import LifetimeChecker
from coilwork_runtime.executor.products import ProductLibrary
from coilwork_runtime.executor.program import NativeProgram, load_native, warm_executor
from coilwork_runtime.loader import load_python
from coilwork_runtime.tensor_kinds import TensorKinds, collect_kinds, guard_call
from coilwork_runtime.triton_kernels.searching import Search
from coilwork_runtime.version import __version__

__all__ = [
    "ArtifactError",
    "Builder",
    "ConvolutionLibrary",
    "DriverGraphs",
    "DeviceError",
    "ExecutorUnavailableError",
    "KernelBuildError",
    "KernelLaunchError",
    "Launcher",
    "LayoutError",
    "LifetimeChecker",
    "LifetimeError",
    "LoadedArtifact",
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
    "__version__",
    "bind_roles",
    "bind_separate",
    "describe_device",
    "guard_call",
    "collect_kinds",
    "load_artifact",
    "load_native",
    "load_python",
    "save_artifact",
    "warm_executor",
]
