"""Circular padding: torch takes it apart into copies of slices before any compiler sees it, each of which
reads what those before it made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_lowering.facts.copied_parts import Run, Size, copied_parts
from coilwork_lowering.rewrites.condition import Condition
from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.rewrites.pattern import Pattern, call, either, tensor, value
from coilwork_lowering.rewrites.replace import Operand
from coilwork_lowering.rewrites.rewrite import Rewrite
from coilwork_lowering.torch_compat.sizes import plain_number, surely

aten = torch.ops.aten

# Twice around, and what is padded on either side.
_MOST_TIMES: Final = 5


@dataclass(frozen=True, slots=True)
class _Amount:
    """`times` the size of a dimension, and `more`."""

    times: int
    more: int

    def of(self, size: Any) -> Any:
        """In numbers, or as a call."""
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
        return surely(self.start.of(size) == 0) and surely(self.end.of(size) == size)


@dataclass(frozen=True, slots=True)
class _Window:
    """What one dimension of the result is: `box` of the source so many times in a row, and of that `part`;
    None for all.
    """

    box: _Span
    repeats: int = 1
    part: _Span | None = None


def _window(runs: tuple[Run, ...], size: Size) -> _Window | None:
    """Return what `runs`, in order, read of a dimension of `size`, if each begins where the second does and
    ends where the first does.
    """
    if not runs:
        return None
    starts = [run.start + run.shift for run in runs]
    ends = [run.end + run.shift for run in runs]
    if len(runs) == 1:
        box = _span(starts[0], ends[0], size)
        return None if box is None else _Window(box)
    low, high = starts[1], ends[0]
    if not (surely(starts[0] >= low) and surely(ends[-1] <= high)):
        return None
    if not all(surely(start == low) for start in starts[1:]) or not all(
        surely(end == high) for end in ends[:-1]
    ):
        return None
    box, part = _span(low, high, size), _span(starts[0] - low, starts[0] - low + runs[-1].end, size)
    return None if box is None or part is None else _Window(box, len(runs), part)


def _span(start: Size, end: Size, size: Size) -> _Span | None:
    first, last = _amount(start, size), _amount(end, size)
    return None if first is None or last is None else _Span(first, last)


def _amount(given: Size, size: Size) -> _Amount | None:
    """As so many times `size` and a number."""
    for times in range(_MOST_TIMES):
        more = plain_number(given - times * size)
        if more is not None:
            return _Amount(times, more)
    return None


def _is_undisturbed(match: Match) -> bool:
    """Tell if nothing writes into memory between where the source is made and the last copy."""
    found = copied_parts(match.root)
    if found is None or found.source is None or match.result.dtype.is_complex:
        return False
    node = found.source
    while node is not match.root:
        node = node.next
        if match.vocabulary.writes(node):
            return False
    return True


def _wrap_around(result: Any, **rest: Any) -> Any:
    found = copied_parts(result.node)
    assert found is not None and found.source is not None
    source = Operand(found.source, result.tracer)
    sizes = source.value.shape
    windows = [_window(runs, size) for runs, size in zip(found.runs, sizes, strict=True)]
    if None in windows:
        return None
    known = [window for window in windows if window is not None]
    made = _slice_spans(source, [window.box for window in known], source)
    if any(window.repeats > 1 for window in known):
        made = aten.repeat.default(made, [window.repeats for window in known])
    made = _slice_spans(made, [window.part for window in known], source)
    return aten.clone.default(made, memory_format=torch.contiguous_format)


def _slice_spans(whole: Any, spans: Sequence[_Span | None], counted: Operand) -> Any:
    """`whole` within `spans`, which count sizes of `counted`."""
    for dim, (span, size) in enumerate(zip(spans, counted.value.shape, strict=True)):
        if span is None or span.is_all_of(size):
            continue
        number = size if type(size) is int else aten.sym_size.int(counted, dim)
        whole = aten.slice.Tensor(whole, dim, span.start.of(number), span.end.of(number))
    return whole


def _number(name: str) -> Pattern:
    """Symbolic sizes are nodes, others are not."""
    return either(value(name), tensor(name))


WRAPPED: Final = Rewrite(
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
        start=_number("start"),
        end=_number("end"),
        step=value("step"),
        named="result",
    ),
    replacement=_wrap_around,
    conditions=(Condition(name="all of it is copied from one tensor", holds=_is_undisturbed),),
)
