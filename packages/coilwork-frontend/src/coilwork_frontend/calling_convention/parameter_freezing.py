"""Frozen parameters: in inference, compute once what depends on them alone, and again when one has
changed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from coilwork_frontend.torch_compat.tensors import get_version, is_static_input

_Stamp = tuple[tuple[int, int], ...]


class Prepared(Protocol):
    """The part of a graph that depends on frozen parameters alone, split from the main graph.

    `sources` and `kept` are positions of the whole graph's inputs: those of the preparation, and those that
    the main graph keeps. The main graph's other inputs are what `preparation` returns; `values` are fakes of
    it.
    """

    @property
    def sources(self) -> Sequence[int]: ...

    @property
    def kept(self) -> Sequence[int]: ...

    @property
    def preparation(self) -> torch.fx.GraphModule: ...

    @property
    def values(self) -> Sequence[torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class _State:
    """Prepared values, and the tensors that they were made from."""

    sources: tuple[weakref.ref[torch.Tensor], ...]
    stamp: _Stamp
    values: tuple[torch.Tensor, ...]


class FrozenParameters:
    """Makes the main graph's inputs from the whole graph's, a list, which it empties.

    Each call compares every source with the last one: the tensor, its address and its version. If one
    differs, the values are prepared again. Writes that torch does not count, such as those through `.data`,
    go unseen. Tensors made in inference mode have no version: with one among the sources, every call
    prepares.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._state: _State | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        sources = [args[position] for position in self._prepared.sources]
        state = self._state
        if state is None or not _is_current(state, sources):
            # another thread may do the same: whoever is last leaves its values, which are equal
            state = _State(
                sources=tuple(weakref.ref(source) for source in sources),
                stamp=_make_stamp(sources),
                values=self._values(sources),
            )
            self._state = state
        inputs = [args[position] for position in self._prepared.kept]
        args.clear()
        inputs.extend(state.values)
        return inputs

    def _values(self, sources: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            values = self._prepared.preparation(*sources)
        return tuple(
            _match_strides(value, like) for value, like in zip(values, self._prepared.values, strict=True)
        )


def list_freezable(example_inputs: Sequence[Any]) -> list[int] | None:
    """Return the positions of parameters and buffers, which may be frozen; None if a call records
    gradients."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        return None
    return [position for position, value in enumerate(example_inputs) if is_static_input(value)]


def _is_current(state: _State, sources: Sequence[torch.Tensor]) -> bool:
    same = all(known() is source for known, source in zip(state.sources, sources, strict=True))
    return same and state.stamp == _make_stamp(sources) and all(version >= 0 for _, version in state.stamp)


def _make_stamp(sources: Sequence[torch.Tensor]) -> _Stamp:
    return tuple((source.data_ptr(), get_version(source)) for source in sources)


def _match_strides(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return `value` with the strides of `like`, for which the main graph was compiled.

    A packed weight has no strides.
    """
    if value.layout is not torch.strided or value.stride() == like.stride():
        return value
    result = torch.empty_strided(value.shape, like.stride(), dtype=value.dtype, device=value.device)
    return result.copy_(value)
