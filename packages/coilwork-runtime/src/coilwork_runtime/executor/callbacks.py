"""Calls of operators in Python, with what is the same in every call laid out beforehand."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_runtime.executor.program_reader import Argument, Item, RecordedCall, Size, Slot

Callback = Callable[[list[torch.Tensor], list[int]], Any]


def make_callback(call: RecordedCall) -> Callback:
    """A function over the call's tensors and computed integers, each in order, that makes the call and
    returns its results.

    Results that lie in lists are returned as one list, in the call's order.
    """
    find = find_operator(call.target)
    places = _Places()
    positional = _Row([places.of(value) for value in call.args])
    named = _Row([places.of(value) for value in call.kwargs.values()])
    names = tuple(call.kwargs)
    fixed = dict(zip(names, named.filled([], []), strict=True)) if named.is_fixed else None

    def made(tensors: list[torch.Tensor], sizes: list[int]) -> Any:
        args = positional.filled(tensors, sizes)
        if fixed is not None:
            return find()(*args, **fixed)
        return find()(*args, **dict(zip(names, named.filled(tensors, sizes), strict=True)))

    if not call.paths:
        return made
    return lambda tensors, sizes: _parts(made(tensors, sizes), call.paths)


def _parts(results: Any, paths: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return what lies in `results` at `paths`; each leads through tuples and lists."""
    return [functools.reduce(operator.getitem, path, results) for path in paths]


def find_operator(target: str) -> Callable[[], Callable[..., Any]]:
    """A function that looks an operator overload up when it is called: those of a library may be registered
    later."""
    parts = target.split(".")
    if len(parts) != 3:
        root: Any = torch.ops
        return lambda: functools.reduce(getattr, parts, root)
    namespace, name, overload = parts
    return lambda: getattr(getattr(getattr(torch.ops, namespace), name), overload)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """An argument that is the same in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Tensor:
    """The tensor of this number, or the number that it holds."""

    number: int
    is_item: bool = False


@dataclass(frozen=True, slots=True)
class _Integer:
    """The computed integer of this number."""

    number: int


class _Places:
    """Where arguments come from; tensors and integers are numbered as they are asked for."""

    def __init__(self) -> None:
        self._tensors = 0
        self._sizes = 0

    def of(self, value: Argument) -> _Fixed | _Tensor | _Integer | _Row:
        """The place of `value`."""
        match value:
            case Slot() | Item():
                self._tensors += 1
                return _Tensor(self._tensors - 1, isinstance(value, Item))
            case Size():
                self._sizes += 1
                return _Integer(self._sizes - 1)
            case list():
                return _Row([self.of(item) for item in value])
            case _:
                return _Fixed(value)


class _Row:
    """A list of arguments, of which only those that change are looked up in a call."""

    def __init__(self, places: Sequence[_Fixed | _Tensor | _Integer | _Row]) -> None:
        self._template = [place.value if isinstance(place, _Fixed) else None for place in places]
        self._tensors = [
            (k, one.number) for k, one in enumerate(places) if isinstance(one, _Tensor) and not one.is_item
        ]
        self._sizes = [(k, one.number) for k, one in enumerate(places) if isinstance(one, _Integer)]
        self._items = [
            (k, one.number) for k, one in enumerate(places) if isinstance(one, _Tensor) and one.is_item
        ]
        self._rows = [(k, one) for k, one in enumerate(places) if isinstance(one, _Row)]

    @property
    def is_fixed(self) -> bool:
        """True if it is the same in every call."""
        return not (self._tensors or self._sizes or self._items or self._rows)

    def filled(self, tensors: list[torch.Tensor], sizes: list[int]) -> list[Any]:
        """A new list with the arguments of a call."""
        row: list[Any] = self._template.copy()
        for place, number in self._tensors:
            row[place] = tensors[number]
        for place, number in self._sizes:
            row[place] = sizes[number]
        for place, number in self._items:
            row[place] = tensors[number].item()
        for place, inner in self._rows:
            row[place] = inner.filled(tensors, sizes)
        return row
