"""The functions that generated modules use, under the name `rt`. The runtime's stable surface."""

from coilwork_runtime.layout_checks import (
    LayoutMemory,
    check_aligned_layout,
    check_layout,
    check_rank,
    empty_pool,
    empty_strided,
    empty_strided_cpu,
    empty_strided_cuda,
    ensure_aligned,
    ensure_aligned_layout,
    ensure_layout,
    pool_view,
    reinterpret,
    reinterpret_dtype,
)
from coilwork_runtime.manifest.readable import (
    ReadableVersion as KernelVersion,
)
from coilwork_runtime.manifest.readable import (
    cpp_kernel as CppKernel,
)
from coilwork_runtime.manifest.readable import (
    device_kernel as DeviceKernel,
)
from coilwork_runtime.manifest.readable import (
    triton_kernel as TritonKernel,
)
from coilwork_runtime.module_loader import random_input, run_standalone
from coilwork_runtime.streams import (
    fork_stream,
    join_stream,
    on_stream,
    record_event,
    synchronize_event,
    wait_event,
)

__all__ = [
    "CppKernel",
    "DeviceKernel",
    "KernelVersion",
    "LayoutMemory",
    "TritonKernel",
    "check_aligned_layout",
    "check_layout",
    "check_rank",
    "empty_pool",
    "empty_strided",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "ensure_aligned",
    "ensure_aligned_layout",
    "ensure_layout",
    "fork_stream",
    "join_stream",
    "on_stream",
    "pool_view",
    "random_input",
    "record_event",
    "reinterpret",
    "reinterpret_dtype",
    "run_standalone",
    "synchronize_event",
    "wait_event",
]
