"""Tensors made by copying parts of one tensor, and then parts of what is there already, into memory of any
contents.

Circular padding is written so. Each copy replaces a box of what is there, and where all of them agree along
the other dimensions, every dimension has a list of its own: which stretch of coordinates reads which stretch
of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.generated import operator
from coilwork_lowering.torch_compat.sizes import surely

Size: TypeAlias = int | torch.SymInt

# Padding of three dimensions takes seven copies, and some fifty calls.
_MOST_COPIES: Final = 8
_MOST_CALLS: Final = 80


@dataclass(frozen=True, slots=True)
class Run:
    """Coordinates from `start` to before `end`, which read what lies `shift` further on."""

    start: Size
    end: Size
    shift: Size


@dataclass(frozen=True, slots=True)
class CopiedParts:
    """What `runs`, those of each dimension, read of `source`; None if nothing was copied yet. The rest may
    hold anything.
    """

    source: fx.Node | None
    runs: tuple[tuple[Run, ...], ...]


def copied_parts(node: fx.Node) -> CopiedParts | None:
    """Return what is in `node`, a `slice_scatter`, if it all comes from one tensor by copies; each
    dimension's runs are in order, without gaps.

    Adds no guard.
    """
    if not _begins_with_nothing(node):
        return None
    found = _Reader().parts(node)
    if found.source is None or found.source is node:
        return None
    shape = node.meta["val"].shape
    ordered = [_order_runs(runs, size) for runs, size in zip(found.runs, shape, strict=True)]
    complete = [runs for runs in ordered if runs is not None]
    return CopiedParts(found.source, tuple(complete)) if len(complete) == len(ordered) else None


def _begins_with_nothing(node: fx.Node) -> bool:
    """Tell if the first copy of those that end with `node` goes to memory of any contents; cheap, for every
    copy is asked about.
    """
    for _ in range(_MOST_COPIES):
        if operator(node.target) != "slice_scatter":
            break
        base = node.args[0]
        assert isinstance(base, fx.Node)
        node = base
    return find_info(operator(node.target)).is_uninitialized


def _order_runs(runs: tuple[Run, ...], size: Size) -> tuple[Run, ...] | None:
    """`runs` from 0 to `size`, each behind the one before; None if they leave gaps."""
    left: list[Run] = list(runs)
    ordered: list[Run] = []
    at: Size = 0
    while left:
        following = [run for run in left if surely(run.start == at)]
        if len(following) != 1:
            return None
        ordered.append(following[0])
        left.remove(following[0])
        at = following[0].end
    return tuple(ordered) if surely(at == size) else None


class _Reader:
    """Looks through the calls of one chain, each once."""

    def __init__(self) -> None:
        self.known: dict[fx.Node, CopiedParts] = {}

    def parts(self, node: fx.Node) -> CopiedParts:
        """Return what is in `node`; at least that it is itself."""
        if node not in self.known:
            found = self._looked_up(node) if len(self.known) < _MOST_CALLS else None
            self.known[node] = _itself(node) if found is None else found
        return self.known[node]

    def _looked_up(self, node: fx.Node) -> CopiedParts | None:
        name = operator(node.target)
        if find_info(name).is_uninitialized:
            return CopiedParts(None, ((),) * node.meta["val"].dim())
        if name == "slice":
            return self._slice(node)
        if name == "slice_scatter":
            return self._read_scatter(node)
        if name == "copy" and _alike(node.args[1], node):
            assert isinstance(node.args[1], fx.Node)
            return self.parts(node.args[1])
        return None

    def _slice(self, node: fx.Node) -> CopiedParts | None:
        place = _place(node, node.args[0], 1)
        if place is None:
            return None
        whole = self.parts(place.base)
        inside = [_within(run, place.start, place.end) for run in whole.runs[place.dim]]
        kept = [run for run in inside if run is not None]
        if len(kept) != len(inside):
            return None
        moved = tuple(
            Run(run.start - place.start, run.end - place.start, run.shift + place.start)
            for run in kept
            if not surely(run.start == run.end)
        )
        return CopiedParts(whole.source, _with(whole.runs, place.dim, moved))

    def _read_scatter(self, node: fx.Node) -> CopiedParts | None:
        place = _place(node, node.args[0], 2)
        if place is None or not isinstance(node.args[1], fx.Node) or not _same_type(node.args[1], node):
            return None
        base, part = self.parts(place.base), self.parts(node.args[1])
        stored = tuple(
            Run(run.start + place.start, run.end + place.start, run.shift - place.start)
            for run in part.runs[place.dim]
        )
        if part.source is None:
            return None
        if base.source is None:
            return CopiedParts(part.source, _with(part.runs, place.dim, stored))
        along = [(a, b) for k, (a, b) in enumerate(zip(base.runs, part.runs, strict=True)) if k != place.dim]
        if base.source is not part.source or not all(_equal(a, b) for a, b in along):
            return None
        left: list[Run] = []
        for run in base.runs[place.dim]:
            before, after = _within(run, 0, place.start), _within(run, place.end, run.end)
            if before is None or after is None:
                return None
            left.extend(piece for piece in (before, after) if not surely(piece.start == piece.end))
        return CopiedParts(base.source, _with(base.runs, place.dim, (*left, *stored)))


def _itself(node: fx.Node) -> CopiedParts:
    return CopiedParts(node, tuple((Run(0, size, 0),) for size in node.meta["val"].shape))


def _with(runs: tuple[tuple[Run, ...], ...], dim: int, own: tuple[Run, ...]) -> tuple[tuple[Run, ...], ...]:
    return (*runs[:dim], own, *runs[dim + 1 :])


def _equal(a: tuple[Run, ...], b: tuple[Run, ...]) -> bool:
    return len(a) == len(b) and all(
        surely(x.start == y.start) and surely(x.end == y.end) and surely(x.shift == y.shift)
        for x, y in zip(a, b, strict=True)
    )


def _within(run: Run, start: Size, end: Size) -> Run | None:
    """Return what of `run` lies between `start` and `end`, perhaps nothing; None if the sizes do not say."""
    first, last = _larger(run.start, start), _smaller(run.end, end)
    if first is None or last is None:
        return None
    if surely(last <= first):
        return Run(first, first, run.shift)
    return Run(first, last, run.shift) if surely(first <= last) else None


def _larger(a: Size, b: Size) -> Size | None:
    return a if surely(a >= b) else b if surely(b >= a) else None


def _smaller(a: Size, b: Size) -> Size | None:
    return a if surely(a <= b) else b if surely(b <= a) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Coordinates of `base` along `dim`, from `start` to before `end`."""

    base: fx.Node
    dim: int
    start: Size
    end: Size


def _place(node: fx.Node, base: Any, first: int) -> _Place | None:
    """Return where in `base` the call `node` reads or writes; its arguments from number `first` on, or by
    name, say so.
    """
    dim, start, end, step = (_value(given) for given in _walk_arguments(node, first))
    if not isinstance(base, fx.Node) or type(dim) is not int or step != 1:
        return None
    shape = base.meta["val"].shape
    dim %= len(shape)
    size = shape[dim]
    start, end = 0 if start is None else start, size if end is None else end
    start, end = (bound + size if surely(bound < 0) else bound for bound in (start, end))
    if surely(end >= size):
        end = size
    if not (surely(start >= 0) and surely(start <= end) and surely(end <= size)):
        return None
    return _Place(base=base, dim=dim, start=start, end=end)


def _walk_arguments(node: fx.Node, first: int) -> Iterator[Any]:
    for k, (name, default) in enumerate((("dim", 0), ("start", None), ("end", None), ("step", 1))):
        at = first + k
        yield node.args[at] if at < len(node.args) else node.kwargs.get(name, default)


def _value(given: Any) -> Any:
    return given.meta.get("val") if isinstance(given, fx.Node) else given


def _same_type(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return (a.dtype, a.device) == (b.dtype, b.device)


def _alike(given: Any, node: fx.Node) -> bool:
    """Tell if `given` has the type, the device and surely the shape of `node`."""
    if not isinstance(given, fx.Node) or not _same_type(given, node):
        return False
    a, b = given.meta["val"].shape, node.meta["val"].shape
    return len(a) == len(b) and all(surely(x == y) for x, y in zip(a, b, strict=True))
