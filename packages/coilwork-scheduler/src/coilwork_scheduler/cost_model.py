"""Estimates that decisions rest on: the cost of a kernel (`CostModel`), and likely values of symbolic sizes.

`RooflineCost` is an explicit model over bytes and operations. Pass another implementation of the protocol to
`schedule(..., model=...)`. Likely sizes (`SizeHints`) are for costs and preferences only, never for
correctness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int, evaluate
from coilwork_ir.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """Estimated work of one kernel.

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


@dataclass(slots=True)
class SizeHints:
    """Estimates sizes; remembers what it has estimated. Lives for one call of `schedule`."""

    known: Mapping[str, int]
    default: int
    _values: dict[Expr, int] = field(default_factory=dict)

    def value(self, expr: Expr) -> int:
        """Return the likely value of `expr`, in which range symbols count as half their extent."""
        plain = as_int(expr)
        if plain is not None:
            return plain
        found = self._values.get(expr)
        if found is None:
            env = {s.name: self._symbol(s) for s in expr.free_symbols}
            try:
                found = evaluate(expr, env)
            except ArithmeticError:
                found = self.default
            self._values[expr] = found
        return found

    def _symbol(self, symbol: Expr) -> int:
        if symbol.extent is not None:
            return self.value(symbol.extent) // 2
        value = self.known.get(symbol.name, self.default)
        if symbol.lo is not None:
            value = max(value, symbol.lo)
        if symbol.hi is not None:
            value = min(value, symbol.hi)
        return value

    def numel(self, extents: tuple[Expr, ...]) -> int:
        """Return the likely number of points of a domain with these extents."""
        count = 1
        for extent in extents:
            count *= max(self.value(extent), 0)
        return count

    def size_bytes(self, buffer: Buffer) -> int:
        """Return the likely size of a buffer's elements, expanded dimensions counted once."""
        count = buffer.dtype.itemsize
        for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
            if as_int(stride) != 0:
                count *= max(self.value(extent), 0)
        return count
