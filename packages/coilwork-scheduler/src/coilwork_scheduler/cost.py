"""What a kernel costs: an explicit model over bytes, behind a protocol that a vendor can implement differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from coilwork_ir.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What one kernel has to do, estimated.

    Attributes:
        read_bytes, write_bytes: memory traffic, each element once.
        operations: scalar operations, weighted by `ScalarOp.cost`, over all points. A special function's weight says how
            often its unit gives a result.
        rows: points of the parallel ranges.
        row_length: points of the reduction ranges, 1 without any.
        programs: parts of the work that can run at the same time, each as fast as one block of threads can be.
    """

    read_bytes: float
    write_bytes: float
    operations: float
    rows: int
    row_length: int
    programs: int


class CostModel(Protocol):
    """Estimates times. Implementations are pure and cheap: they are asked some times per node."""

    def kernel_us(self, work: KernelWork) -> float:
        """Microseconds that a kernel doing `work` takes, its launch included."""
        ...


# Arithmetic per second on vector units, as weighted operations: about 60e12 on a large GPU, 1e11 per CPU core.
_GPU_OPERATIONS_PER_US: Final = 15e6
_CPU_OPERATIONS_PER_US_AND_CORE: Final = 2e4
# Programs per multiprocessor that together keep enough loads in flight for the memory's full bandwidth. (An H200 moves
# about 16 GB/s per program.)
FULL_PROGRAMS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """Launch plus the longer of memory and arithmetic time, slower when too few programs keep the device busy."""

    target: Target

    def kernel_us(self, work: KernelWork) -> float:
        """See `CostModel`."""
        target = self.target
        units = max(target.multiprocessors, 1)
        # without reductions there are as many programs as one likes
        wanted = units * FULL_PROGRAMS if target.is_gpu else units
        busy = min(1.0, max(work.programs, 1) / wanted) if work.row_length > 1 else 1.0
        bytes_us = (work.read_bytes + work.write_bytes) / (target.bandwidth_gb_s * 1e3)
        if target.is_gpu:
            rate = _GPU_OPERATIONS_PER_US
        else:
            rate = _CPU_OPERATIONS_PER_US_AND_CORE * units
        return target.launch_us + max(bytes_us, work.operations / rate) / busy
