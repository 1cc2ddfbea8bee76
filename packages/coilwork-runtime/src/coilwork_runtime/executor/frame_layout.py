"""Where things lie in the frame of a call: inputs first, then buffers, registers and constants.

A frame is the one list that a call of an interpreted program has. Its layout is found once, when the program
is loaded, so that an instruction reads and writes numbered places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_runtime.executor.program_reader import CONSTANT, Code, Kind, Layout, Part

Frame = list[Any]
Fetch = Callable[[Frame], Sequence[Any]]


class FrameLayout:
    """The places of what one part of a program reads and writes.

    Attributes:
        slots, registers: the places of tensors and of numbers, by their numbers in the program.
        constants: the slots of constants, which outlive a call.
        given: how many inputs a call has; the table of streams, if there is one, is behind them.
        first_kept: the place behind all that a call is given.
    """

    def __init__(self, part: Part, constants: Sequence[torch.Tensor], *, is_nested: bool) -> None:
        self._part = part
        # a nested program is given the sizes of its caller behind its inputs
        outer = [(Kind.NUMBER, number) for number in part.outer] if is_nested else []
        inputs = (*part.inputs, *outer)
        self.given = len(inputs)
        self.has_streams = any(step.code is Code.STREAM for step in part.steps)
        self.first_kept = self.given + self.has_streams
        self.slots: dict[int, int] = {}
        self.registers: dict[int, int] = {}
        self._kept: Frame = []
        for place, (kind, number) in enumerate(inputs):
            if kind is not Kind.NOTHING:
                (self.slots if kind is Kind.TENSOR else self.registers)[number] = place
        known = {slot: constants[key] for slot, key in part.known}
        self.constants = frozenset(known)
        for slot in range(len(part.slots)):
            if slot not in self.slots:
                self.slots[slot] = self.keep(known.get(slot))
        for number in range(part.variables):
            if number not in self.registers:
                self.registers[number] = self.keep(None)
        for number, value in enumerate(part.constants):
            self.registers[CONSTANT | number] = self.keep(value)

    def keep(self, value: object) -> int:
        """Put `value` into every frame, and return its place."""
        self._kept.append(value)
        return self.first_kept + len(self._kept) - 1

    @property
    def kept(self) -> tuple[Any, ...]:
        """Return what lies in every frame, behind all that a call is given."""
        return tuple(self._kept)

    def find(self, kind: Kind, number: int) -> int:
        """Return the place of a slot or register, or of a None."""
        if kind is Kind.NOTHING:
            return self.keep(None)
        return (self.slots if kind is Kind.TENSOR else self.registers)[number]

    def fetch_layout(self, layout: Layout) -> tuple[Fetch, Fetch]:
        """Return functions that get the sizes and the strides of `layout`."""
        sizes, strides = (
            fetch([self.registers[number] for number in numbers])
            for numbers in (layout.sizes, layout.strides)
        )
        return sizes, strides

    def read_fixed_layout(self, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the sizes and the strides of a layout that is the same in every call."""
        sizes, strides = (
            tuple(self._part.constants[number & ~CONSTANT] for number in numbers)
            for numbers in (layout.sizes, layout.strides)
        )
        return sizes, strides


def fetch(places: Sequence[int]) -> Fetch:
    """Return a function that gets what lies at `places`, as a tuple."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    if not places:
        return lambda frame: ()
    (place,) = places
    return lambda frame: (frame[place],)


def is_fixed(layout: Layout) -> bool:
    """Tell if `layout` is the same in every call."""
    return all(number & CONSTANT for number in (*layout.sizes, *layout.strides))
