"""What is measured of a machine, as values that are handed down with its target.

One class per subject. A figure's meaning stands here; its value, unit and source stand in the device's data file,
since they are the device's (docs/how-to/measure-a-machine.md). What a figure is compared with decides between ways
that are all correct: a wrong one costs time, never results.

A pass reads `target.machine.reductions.clear_win`. What is no fact of a machine stays where it is used: bounds of
searches and recursions, formats, and what a language or a library takes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory and caches, as kernels of loops see them.

    Attributes:
        fetched_bytes: what memory gives at least for one element.
        tile_elements: elements of a row, or of some, that a block of threads has at a time.
    """

    fetched_bytes: int
    tile_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Speed of arithmetic, in operations weighted as in the op table.

    Attributes:
        device_operations_per_us: what the whole device does, however many units it has.
        unit_operations_per_us: what each of its units adds to that.
        matrix_rate: products that matrix units add in the time of one operation on vectors.
    """

    device_operations_per_us: float
    unit_operations_per_us: float
    matrix_rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Starting kernels.

    Attributes:
        full_programs: programs per unit that together move as much as memory can.
        bound: times its launch that a kernel takes at most, to share another's though the two read nothing alike.
        shared_loss: share of a kernel's time that may be lost in a launch shared with others.
    """

    full_programs: int
    bound: float
    shared_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    """The figures of one device.

    Attributes:
        name: the device, as its data file is called.
        memory, arithmetic, launches: see the classes.
    """

    name: str
    memory: Memory
    arithmetic: Arithmetic
    launches: Launches
