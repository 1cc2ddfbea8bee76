"""Rewrite circular padding as one read at positions modulo the size.

Torch decomposes it, before any compiler sees it, into copies of slices into uninitialised memory, each of
which reads what the ones before it made. `find_slice_copies` follows the chain: if all copies come from one
tensor and agree along the other dimensions, each dimension has a list of runs, stretches of coordinates that
read stretches of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.fx_nodes import get_packet_name
from coilwork_lowering.rewrites.engine import Operand
from coilwork_lowering.rewrites.rewrite import Condition, Match, Pattern, Rewrite, call, either, tensor, value
from coilwork_lowering.torch_compat.sizes import find_plain_number, is_surely

# slice copies


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
class SliceCopies:
    """A source and the runs of each dimension that read it; a source of None if nothing was copied yet."""

    source: fx.Node | None
    runs: tuple[tuple[Run, ...], ...]


def find_slice_copies(node: fx.Node) -> SliceCopies | None:
    """Return the source and ordered runs of `node`, a `slice_scatter`, if all of it is copied from one
    tensor.

    Adds no guard.
    """
    if not _begins_with_nothing(node):
        return None
    copies = _Reader().parts(node)
    if copies.source is None or copies.source is node:
        return None
    shape = node.meta["val"].shape
    ordered = [_order_runs(runs, size) for runs, size in zip(copies.runs, shape, strict=True)]
    complete = [runs for runs in ordered if runs is not None]
    return SliceCopies(copies.source, tuple(complete)) if len(complete) == len(ordered) else None


def _begins_with_nothing(node: fx.Node) -> bool:
    """Tell if the chain of copies that ends with `node` begins with uninitialised memory. Cheap: every copy
    is asked.
    """
    for _ in range(_MOST_COPIES):
        if get_packet_name(node.target) != "slice_scatter":
            break
        base = node.args[0]
        assert isinstance(base, fx.Node)
        node = base
    return find_info(get_packet_name(node.target)).is_uninitialized


def _order_runs(runs: tuple[Run, ...], size: Size) -> tuple[Run, ...] | None:
    """`runs` from 0 to `size`, each behind the one before; None if they leave gaps."""
    left: list[Run] = list(runs)
    ordered: list[Run] = []
    at: Size = 0
    while left:
        following = [run for run in left if is_surely(run.start == at)]
        if len(following) != 1:
            return None
        ordered.append(following[0])
        left.remove(following[0])
        at = following[0].end
    return tuple(ordered) if is_surely(at == size) else None


class _Reader:
    """Reads the calls of one chain, each once."""

    def __init__(self) -> None:
        self.known: dict[fx.Node, SliceCopies] = {}

    def parts(self, node: fx.Node) -> SliceCopies:
        """Return the copies that make `node`; at least `node` itself."""
        if node not in self.known:
            copies = self._look_up(node) if len(self.known) < _MOST_CALLS else None
            self.known[node] = _identity_runs(node) if copies is None else copies
        return self.known[node]

    def _look_up(self, node: fx.Node) -> SliceCopies | None:
        name = get_packet_name(node.target)
        if find_info(name).is_uninitialized:
            return SliceCopies(None, ((),) * node.meta["val"].dim())
        if name == "slice":
            return self._slice(node)
        if name == "slice_scatter":
            return self._read_scatter(node)
        if name == "copy" and _is_like(node.args[1], node):
            assert isinstance(node.args[1], fx.Node)
            return self.parts(node.args[1])
        return None

    def _slice(self, node: fx.Node) -> SliceCopies | None:
        place = _find_place(node, node.args[0], 1)
        if place is None:
            return None
        whole = self.parts(place.base)
        inside = [_clip_run(run, place.start, place.end) for run in whole.runs[place.dim]]
        clipped = [run for run in inside if run is not None]
        if len(clipped) != len(inside):
            return None
        moved = tuple(
            Run(run.start - place.start, run.end - place.start, run.shift + place.start)
            for run in clipped
            if not is_surely(run.start == run.end)
        )
        return SliceCopies(whole.source, _replace_dim(whole.runs, place.dim, moved))

    def _read_scatter(self, node: fx.Node) -> SliceCopies | None:
        place = _find_place(node, node.args[0], 2)
        if place is None or not isinstance(node.args[1], fx.Node) or not _is_same_type(node.args[1], node):
            return None
        base, part = self.parts(place.base), self.parts(node.args[1])
        stored = tuple(
            Run(run.start + place.start, run.end + place.start, run.shift - place.start)
            for run in part.runs[place.dim]
        )
        if part.source is None:
            return None
        if base.source is None:
            return SliceCopies(part.source, _replace_dim(part.runs, place.dim, stored))
        along = [(a, b) for k, (a, b) in enumerate(zip(base.runs, part.runs, strict=True)) if k != place.dim]
        if base.source is not part.source or not all(_are_equal_runs(a, b) for a, b in along):
            return None
        left: list[Run] = []
        for run in base.runs[place.dim]:
            before, after = _clip_run(run, 0, place.start), _clip_run(run, place.end, run.end)
            if before is None or after is None:
                return None
            left.extend(piece for piece in (before, after) if not is_surely(piece.start == piece.end))
        return SliceCopies(base.source, _replace_dim(base.runs, place.dim, (*left, *stored)))


def _identity_runs(node: fx.Node) -> SliceCopies:
    return SliceCopies(node, tuple((Run(0, size, 0),) for size in node.meta["val"].shape))


def _replace_dim(
    runs: tuple[tuple[Run, ...], ...], dim: int, own: tuple[Run, ...]
) -> tuple[tuple[Run, ...], ...]:
    return (*runs[:dim], own, *runs[dim + 1 :])


def _are_equal_runs(a: tuple[Run, ...], b: tuple[Run, ...]) -> bool:
    return len(a) == len(b) and all(
        is_surely(x.start == y.start) and is_surely(x.end == y.end) and is_surely(x.shift == y.shift)
        for x, y in zip(a, b, strict=True)
    )


def _clip_run(run: Run, start: Size, end: Size) -> Run | None:
    """`run` clipped to `start` and `end`, perhaps empty; None if the sizes do not decide."""
    first, last = _choose_larger(run.start, start), _choose_smaller(run.end, end)
    if first is None or last is None:
        return None
    if is_surely(last <= first):
        return Run(first, first, run.shift)
    return Run(first, last, run.shift) if is_surely(first <= last) else None


def _choose_larger(a: Size, b: Size) -> Size | None:
    return a if is_surely(a >= b) else b if is_surely(b >= a) else None


def _choose_smaller(a: Size, b: Size) -> Size | None:
    return a if is_surely(a <= b) else b if is_surely(b <= a) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Coordinates of `base` along `dim`, from `start` to before `end`."""

    base: fx.Node
    dim: int
    start: Size
    end: Size


def _find_place(node: fx.Node, base: Any, first: int) -> _Place | None:
    """Return the place in `base` that the call `node` reads or writes, by its arguments from number `first`
    on.
    """
    dim, start, end, step = (_value_of_argument(argument) for argument in _walk_arguments(node, first))
    if not isinstance(base, fx.Node) or type(dim) is not int or step != 1:
        return None
    shape = base.meta["val"].shape
    dim %= len(shape)
    size = shape[dim]
    start, end = 0 if start is None else start, size if end is None else end
    start, end = (bound + size if is_surely(bound < 0) else bound for bound in (start, end))
    if is_surely(end >= size):
        end = size
    if not (is_surely(start >= 0) and is_surely(start <= end) and is_surely(end <= size)):
        return None
    return _Place(base=base, dim=dim, start=start, end=end)


def _walk_arguments(node: fx.Node, first: int) -> Iterator[Any]:
    for k, (name, default) in enumerate((("dim", 0), ("start", None), ("end", None), ("step", 1))):
        at = first + k
        yield node.args[at] if at < len(node.args) else node.kwargs.get(name, default)


def _value_of_argument(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


def _is_same_type(first: fx.Node, second: fx.Node) -> bool:
    a, b = first.meta["val"], second.meta["val"]
    return (a.dtype, a.device) == (b.dtype, b.device)


def _is_like(value: Any, node: fx.Node) -> bool:
    """Tell if `value` has the type, the device and surely the shape of `node`."""
    if not isinstance(value, fx.Node) or not _is_same_type(value, node):
        return False
    a, b = value.meta["val"].shape, node.meta["val"].shape
    return len(a) == len(b) and all(is_surely(x == y) for x, y in zip(a, b, strict=True))


# rewrite


aten = torch.ops.aten

# Twice around, and what is padded on either side.
_MOST_TIMES: Final = 5


@dataclass(frozen=True, slots=True)
class _Amount:
    """`times` the size of a dimension, and `more`."""

    times: int
    more: int

    def resolve(self, size: Any) -> Any:
        """Return the amount for a dimension of `size`, as a number or a call."""
        if self.times == 0:
            return self.more
        whole = size if self.times == 1 else size * self.times
        return whole + self.more if self.more else whole


@dataclass(frozen=True, slots=True)
class _Span:
    """Coordinates from `start` to before `end`."""

    start: _Amount
    end: _Amount

    def is_all_of(self, size: Size) -> bool:
        """Tell if that is surely all of a dimension of `size`, which the amounts count."""
        return is_surely(self.start.resolve(size) == 0) and is_surely(self.end.resolve(size) == size)


@dataclass(frozen=True, slots=True)
class _Window:
    """One dimension of the result: `box` of the source, repeated, and `part` of that; None for all."""

    box: _Span
    repeats: int = 1
    part: _Span | None = None


def _find_window(runs: tuple[Run, ...], size: Size) -> _Window | None:
    """Return the window that `runs` read of a dimension of `size`, if they repeat one box."""
    if not runs:
        return None
    starts = [run.start + run.shift for run in runs]
    ends = [run.end + run.shift for run in runs]
    if len(runs) == 1:
        box = _find_span(starts[0], ends[0], size)
        return None if box is None else _Window(box)
    low, high = starts[1], ends[0]
    if not (is_surely(starts[0] >= low) and is_surely(ends[-1] <= high)):
        return None
    if not all(is_surely(start == low) for start in starts[1:]) or not all(
        is_surely(end == high) for end in ends[:-1]
    ):
        return None
    box, part = _find_span(low, high, size), _find_span(starts[0] - low, starts[0] - low + runs[-1].end, size)
    return None if box is None or part is None else _Window(box, len(runs), part)


def _find_span(start: Size, end: Size, size: Size) -> _Span | None:
    first, last = _find_amount(start, size), _find_amount(end, size)
    return None if first is None or last is None else _Span(first, last)


def _find_amount(number: Size, size: Size) -> _Amount | None:
    """`number` as a multiple of `size` plus a number."""
    for times in range(_MOST_TIMES):
        more = find_plain_number(number - times * size)
        if more is not None:
            return _Amount(times, more)
    return None


def _is_undisturbed(match: Match) -> bool:
    """Tell if nothing writes into memory between where the source is made and the last copy."""
    copies = find_slice_copies(match.root)
    if copies is None or copies.source is None or match.result.dtype.is_complex:
        return False
    node = copies.source
    while node is not match.root:
        node = node.next
        if match.vocabulary.writes(node):
            return False
    return True


def _slice_and_repeat(result: Any, **rest: Any) -> Any:
    copies = find_slice_copies(result.node)
    assert copies is not None and copies.source is not None
    source = Operand(copies.source, result.tracer)
    sizes = source.value.shape
    windows = [_find_window(runs, size) for runs, size in zip(copies.runs, sizes, strict=True)]
    if None in windows:
        return None
    complete = [window for window in windows if window is not None]
    result_node = _slice_spans(source, [window.box for window in complete], source)
    if any(window.repeats > 1 for window in complete):
        result_node = aten.repeat.default(result_node, [window.repeats for window in complete])
    result_node = _slice_spans(result_node, [window.part for window in complete], source)
    return aten.clone.default(result_node, memory_format=torch.contiguous_format)


def _slice_spans(whole: Any, spans: Sequence[_Span | None], counted: Operand) -> Any:
    """`whole` within `spans`, which count sizes of `counted`."""
    for dim, (span, size) in enumerate(zip(spans, counted.value.shape, strict=True)):
        if span is None or span.is_all_of(size):
            continue
        number = size if type(size) is int else aten.sym_size.int(counted, dim)
        whole = aten.slice.Tensor(whole, dim, span.start.resolve(number), span.end.resolve(number))
    return whole


def _match_number(name: str) -> Pattern:
    """Symbolic sizes are nodes, others are not."""
    return either(value(name), tensor(name))


CIRCULAR_PADDING: Final = Rewrite(
    name="wrapped-around",
    doc=(
        "A tensor that copies of slices fill with another, which begins again where it ends, is read at "
        "positions modulo its size."
    ),
    pattern=call(
        "aten.slice_scatter.default",
        self=tensor("base"),
        src=tensor("part"),
        dim=value("dim"),
        start=_match_number("start"),
        end=_match_number("end"),
        step=value("step"),
        named="result",
    ),
    replacement=_slice_and_repeat,
    conditions=(Condition(name="all of it is copied from one tensor", holds=_is_undisturbed),),
)
