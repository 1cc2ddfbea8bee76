"""Traits of torch's devices: what lowering, scheduling and the frontend ask of a device instead of its name.

Torch's own devices have a row here. Of another, the back end that serves it says its traits (`traits` beside
`device_types`), and it is found among what is registered. A device that nobody knows has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from coilwork_ir.registration import list_registered

GROUP: Final = "coilwork.backends"
"""The entry point group of back ends."""

ATEN_CPU: Final = "aten_cpu"
"""Eager runs ATen's kernels for CPUs: results, their strides and errors are those that these give."""
ATEN_CUDA: Final = "aten_cuda"
"""Eager runs ATen's kernels for CUDA."""
PROCESSOR: Final = "processor"
"""Kernels are loops that the cores of a processor run: a launch costs little, and so do steps one after the
other.
"""
HOST_MEMORY: Final = "host_memory"
"""Its memory is the host's, so that the host reads an element without a copy."""
CPU_LIBRARIES: Final = "cpu_libraries"
"""ATen calls oneDNN and MKL, which have layouts and formats of their own."""
SEQUENTIAL_RANDOM: Final = "sequential_random"
"""Its generator gives numbers one after the other, which code that draws them in parallel cannot
give again.
"""
FAST_F64: Final = "fast_f64"
"""Arithmetic of f64 takes twice that of f32, not many times."""
CUBLAS: Final = "cublas"
"""Products of matrices are cuBLASLt's, or can be."""
CUDNN: Final = "cudnn"
"""Convolutions are cuDNN's, or can be, in the layout of their operands."""
DRIVER_GRAPHS: Final = "driver_graphs"
"""Its driver takes work that is the same in call after call as a graph."""

DEVICE_TRAITS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "cpu": frozenset({ATEN_CPU, PROCESSOR, HOST_MEMORY, CPU_LIBRARIES, SEQUENTIAL_RANDOM}),
        "cuda": frozenset({ATEN_CUDA, CUBLAS, CUDNN, DRIVER_GRAPHS}),
        # shapes without memory
        "meta": frozenset(),
    }
)
"""By type, the traits of devices that torch itself brings."""


def list_types(trait: str) -> tuple[str, ...]:
    """Return the types of torch's own devices that have the trait."""
    return tuple(kind for kind, traits in DEVICE_TRAITS.items() if trait in traits)


@runtime_checkable
class Declaring(Protocol):
    """The part of a back end that says what its devices are like."""

    @property
    def device_types(self) -> tuple[str, ...]:
        """Types of devices, as `torch.device.type` has them."""
        ...

    @property
    def traits(self) -> frozenset[str]:
        """The traits of all of them."""
        ...


def has_trait(device: str, trait: str) -> bool:
    """Tell if `device`, `"cuda:0"` or only its type, has the trait."""
    return trait in get_traits(device.partition(":")[0])


@cache
def get_traits(device_type: str) -> frozenset[str]:
    """Return the traits of devices of a type.

    Raises:
        RegistrationError: a back end that may serve it cannot be imported.
    """
    own = DEVICE_TRAITS.get(device_type)
    if own is not None:
        return own
    for entry in list_registered(GROUP, own={}):
        backend = entry.load()
        if isinstance(backend, Declaring) and device_type in backend.device_types:
            return backend.traits
    return frozenset()
