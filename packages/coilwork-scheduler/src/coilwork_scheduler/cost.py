"""What a kernel costs: an explicit model over bytes, behind a protocol that a vendor can implement
differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coilwork_ir.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What one kernel has to do, estimated.

    Attributes:
        read_bytes, write_bytes: memory traffic, each element once.
        operations: scalar operations, weighted by `ScalarOp.cost`, over all points. A special function's
            weight says how often its unit gives a result.
        rows: points of the parallel ranges.
        row_length: points of the reduction ranges, 1 without any.
        programs: parts of the work that can run at the same time, each as fast as one block of threads can
            be.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """Launch plus the longer of memory and arithmetic time, slower when too few programs keep the device
    busy.
    """

    target: Target

    def kernel_us(self, work: KernelWork) -> float:
        """See `CostModel`."""
        target, machine = self.target, self.target.machine
        units = max(target.multiprocessors, 1)
        # without reductions there are as many programs as one likes
        wanted = units * machine.launches.full_programs
        busy = min(1.0, max(work.programs, 1) / wanted) if work.row_length > 1 else 1.0
        bytes_us = (work.read_bytes + work.write_bytes) / (target.bandwidth_gb_s * 1e3)
        arithmetic = machine.arithmetic
        rate = arithmetic.device_operations_per_us + arithmetic.unit_operations_per_us * units
        return target.launch_us + max(bytes_us, work.operations / rate) / busy
