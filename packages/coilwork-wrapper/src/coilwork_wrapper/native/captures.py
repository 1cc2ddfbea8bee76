"""Capture regions of a program for the native executor: the work that it may hand to the driver as graphs.

What splits them is said once, with the verifier: `coilwork_ir.program.regions.find_capture_refusal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from coilwork_ir.program.nodes import Instruction, Program, Region
from coilwork_ir.program.regions import (
    find_capture_refusal,
    find_device,
    inline_nested_regions,
    make_region,
)
from coilwork_ir.program.subprograms import outline_regions
from coilwork_ir.program.walk import buffers

LEAST_WORK: Final = 4
"""Launches, products and convolutions in a region: the driver takes a graph in about the time of two."""


def mark_captures(program: Program) -> Program:
    """`program` with capture regions where work can be replayed. Its own stay, nested programs' go, and
    those of other kinds are calls."""
    program = outline_regions(program)
    if any(isinstance(instruction, Region) for instruction in program.instructions):
        return replace(program, instructions=tuple(map(inline_nested_regions, program.instructions)))
    return replace(program, instructions=tuple(_Stretches(program).split()))


class _Stretches:
    """One walk over a program: the stretch so far, and what of it may begin or end a region."""

    def __init__(self, program: Program) -> None:
        self._instructions = program.instructions
        self._buffers = buffers(program)
        self._stretch: list[Instruction] = []
        self._device = ""
        # the first and last work in the stretch, and how much there is
        self._first, self._last, self._work = 0, 0, 0

    def split(self) -> Iterator[Instruction]:
        """The program's instructions, with those of long stretches in regions."""
        for instruction in self._instructions:
            device = find_device(instruction, self._buffers)
            refusal = find_capture_refusal(instruction, self._buffers, self._device or device)
            if refusal:
                yield from self._end(refusal)
                # work of another device begins the next stretch
                self._device = ""
                if find_capture_refusal(instruction, self._buffers, device):
                    yield inline_nested_regions(instruction)
                    continue
            self._add(instruction, device)
        yield from self._end("the program ends")

    def _add(self, instruction: Instruction, device: str) -> None:
        if device:
            self._device = device
            self._first = self._first if self._work else len(self._stretch)
            self._last = len(self._stretch)
            self._work += 1
        self._stretch.append(instruction)

    def _end(self, why: str) -> Iterator[Instruction]:
        if self._work >= LEAST_WORK:
            end = self._last + 1
            yield from self._stretch[: self._first]
            yield make_region("capture", self._stretch[self._first : end], why)
            yield from self._stretch[end:]
        else:
            yield from self._stretch
        self._stretch, self._work = [], 0
