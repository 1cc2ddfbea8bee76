"""One kernel for calls that differ in numbers alone: how many elements they take, and where.

A kernel whose extents and offsets are numbers is a text of its own for each of them, and a compiler takes as
long for each. Steps of a loop that append to what the steps before made, or write elsewhere in it, would
never be one text. Beyond a few of one pattern the numbers become arguments, and one text serves all. Long
loops lose nothing by that: they go over blocks, whose ends are computed anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_scheduler.launches.generalize import find_pattern, generalize
from coilwork_scheduler.remarks import Journal

Built = tuple[Kernel, KernelCall]
_SHOWN: Final = 4


def open_sizes(
    built: Mapping[int, Built], buffers: Mapping[str, Buffer], journal: Journal, *, most_sizes: int
) -> Mapping[int, Built]:
    """`built` with one kernel for those of a pattern that come with more than `most_sizes` different numbers,
    and its calls.
    """
    changed: dict[int, Built] = {}
    for alike in _much_alike(built, most_sizes):
        by_pattern: dict[str, dict[int, tuple[int, ...]]] = {}
        for index in alike:
            kernel, call = built[index]
            pattern = find_pattern(kernel)
            if pattern is not None:
                devices = " ".join(buffers[name].device for name in call.args)
                by_pattern.setdefault(f"{devices}\n{pattern.text}", {})[index] = pattern.numbers
        for numbers in by_pattern.values():
            sizes = len(set(numbers.values()))
            if sizes <= most_sizes:
                continue
            found = generalize(built[next(iter(numbers))][0], tuple(numbers.values()))
            journal.note(
                "open-size",
                tuple(built[index][1].args[-1] for index in list(numbers)[:_SHOWN]),
                found is not None,
                "of one kind, and in so many sizes that the size is an argument"
                if found is not None
                else "of one kind, but a divisor or too many numbers would be arguments",
                members=len(numbers),
                sizes=sizes,
            )
            if found is None:
                continue
            kernel, values = found
            for index, own in zip(numbers, values, strict=True):
                call = built[index][1]
                changed[index] = (kernel, replace(call, sizes=(*call.sizes, *map(as_expr, own))))
    return {**built, **changed} if changed else built


def _much_alike(built: Mapping[int, Built], most_sizes: int) -> Sequence[Sequence[int]]:
    """Calls that may be of one pattern, as far as one sees without a look at what they compute, where there
    are enough.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for index, (kernel, _) in built.items():
        types = tuple((arg.dtype, arg.role) for arg in kernel.args)
        found.setdefault((kernel.name, len(kernel.ranges), len(kernel.stores), types), []).append(index)
    return [tuple(same) for same in found.values() if len(same) > most_sizes]
