"""Inference with frozen parameters: what depends on them alone is computed once, and again when one has
changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from coilwork_frontend.torch_compat.tensors import is_static_input, version_of

_Stamp = tuple[tuple[int, int], ...]


class Prepared(Protocol):
    """What is computed before: where its inputs and the main graph's stand, the graph, and fakes of what it
    makes."""

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
    """Makes the inputs of the main graph of those of the whole, a list, which it empties.

    Before each call, every source is asked whether it is the tensor that it was, in the same memory and with
    the same version; if one is not, the values are prepared again. Writes that torch does not count, as those
    through `.data`, go unseen. Tensors made in inference mode have no version: with one among the sources,
    every call prepares.
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
        given = [args[position] for position in self._prepared.kept]
        args.clear()
        given.extend(state.values)
        return given

    def _values(self, sources: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            made = self._prepared.preparation(*sources)
        return tuple(
            _match_strides(value, like) for value, like in zip(made, self._prepared.values, strict=True)
        )


def list_freezable(example_inputs: Sequence[Any]) -> list[int] | None:
    """Positions of parameters and buffers that a call without gradients may take for frozen; None of one that
    asks for gradients."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        return None
    return [position for position, value in enumerate(example_inputs) if is_static_input(value)]


def _is_current(state: _State, sources: Sequence[torch.Tensor]) -> bool:
    same = all(known() is source for known, source in zip(state.sources, sources, strict=True))
    return same and state.stamp == _make_stamp(sources) and all(version >= 0 for _, version in state.stamp)


def _make_stamp(sources: Sequence[torch.Tensor]) -> _Stamp:
    return tuple((source.data_ptr(), version_of(source)) for source in sources)


def _match_strides(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value` with the strides that the main graph was compiled for; a packed one has none."""
    if value.layout is not torch.strided or value.stride() == like.stride():
        return value
    made = torch.empty_strided(value.shape, like.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)
