"""One kernel for calls that differ in how many elements they take.

A kernel whose extent is a number is a text of its own for each number, and a compiler takes as long for
each. Beyond a few of one kind (see `kind`) the extent becomes an argument, and one text serves all. Long
loops lose nothing by that: they go over blocks, whose ends are computed anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.launches.kind import general, kind_of

Built = tuple[Kernel, KernelCall]
_SHOWN: Final = 4


def open_sizes(
    built: Mapping[int, Built], buffers: Mapping[str, Buffer], journal: Journal, *, most_sizes: int
) -> Mapping[int, Built]:
    """`built` with one kernel for those of a kind that come in more than `most_sizes` sizes, and
    its calls.
    """
    changed: dict[int, Built] = {}
    for alike in _much_alike(built, most_sizes):
        by_kind: dict[str, dict[int, int]] = {}
        for index in alike:
            kernel, call = built[index]
            kind = kind_of(kernel)
            if kind is not None and kind.extent is not None:
                devices = " ".join(buffers[name].device for name in call.args)
                by_kind.setdefault(f"{devices}\n{kind.text}", {})[index] = kind.extent
        for extents in by_kind.values():
            sizes = set(extents.values())
            if len(sizes) <= most_sizes:
                continue
            least, most = min(sizes), max(sizes)
            for index, extent in extents.items():
                kernel, call = built[index]
                opened = general(kernel, least=least, most=most)
                changed[index] = (opened, replace(call, sizes=(*call.sizes, as_expr(extent))))
            journal.note(
                "open-size",
                tuple(built[index][1].args[-1] for index in list(extents)[:_SHOWN]),
                True,
                "of one kind, and in so many sizes that the size is an argument",
                members=len(extents),
                sizes=len(sizes),
            )
    return {**built, **changed} if changed else built


def _much_alike(built: Mapping[int, Built], most_sizes: int) -> Sequence[Sequence[int]]:
    """Calls that may be of one kind, as far as one sees without a look at what they compute, where they have
    enough sizes.
    """
    found: dict[tuple[object, ...], dict[int, int]] = {}
    for index, (kernel, _) in built.items():
        extents = [as_int(r.extent) for r in kernel.ranges]
        whole = [extent for extent in extents if extent != 1]
        if len(whole) == 1 and whole[0]:
            types = tuple((arg.dtype, arg.role) for arg in kernel.args)
            found.setdefault((kernel.name, types), {})[index] = whole[0]
    return [tuple(same) for same in found.values() if len(set(same.values())) > most_sizes]
