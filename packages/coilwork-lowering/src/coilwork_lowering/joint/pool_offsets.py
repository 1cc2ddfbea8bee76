"""Save the positions of a max-pool as offsets within windows: one byte each instead of eight.

A max-pool's backward reads the largest element's flat position in the input plane, in 64 bits: as much memory
as the activation that was pooled. Its distance from the window's start fits 8 bits for all usual windows.
Either is the other plus a number that follows from the window's place, so kernels compute it where they need
it, and the minimum cut saves the distance because it is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_lowering.facts.fx_nodes import get_packet_name, insert_call
from coilwork_lowering.torch_compat.graphs import find_fake_mode

_aten: Final = torch.ops.aten
_prims: Final = torch.ops.prims
_POOLS: Final[Mapping[str, int]] = {"max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3}
_BACKWARDS: Final = frozenset(f"{name}_backward" for name in _POOLS)
_NARROW: Final = (torch.uint8, torch.int16, torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """The places where windows start: `corner` + the sum of `steps[k]` * place along dimension k, in flat
    positions; `reach` is the largest distance within a window.
    """

    counts: tuple[int, ...]
    steps: tuple[int, ...]
    corner: int
    reach: int


def narrow_pool_positions(gm: torch.fx.GraphModule) -> int:
    """Rewrite, in place, max-pools of `gm` whose positions only their backward reads; returns how many.

    Pools of planes whose size is not known are left as they are.
    """
    mode = find_fake_mode(gm)
    if mode is None:
        return 0
    rewritten = 0
    for node in list(gm.graph.nodes):
        positions = _find_saved_positions(node)
        windows = None if positions is None else _find_windows(node, positions)
        if positions is not None and windows is not None:
            rewritten += _save_offsets(gm.graph, positions, windows, mode)
    if rewritten:
        gm.graph.lint()
        gm.recompile()
    return rewritten


def _find_saved_positions(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the positions that max-pool `node` returns, if backwards of max-pools are all that reads
    them.
    """
    if node.op != "call_function" or get_packet_name(node.target) not in _POOLS:
        return None
    found = [user for user in node.users if user.args[1:] == (1,)]
    if len(found) != 1 or not found[0].users:
        return None
    (positions,) = found
    for user in positions.users:
        if get_packet_name(user.target) not in _BACKWARDS or user.args.count(positions) != 1:
            return None
    return positions


def _find_windows(node: torch.fx.Node, positions: torch.fx.Node) -> _Windows | None:
    rank = _POOLS[get_packet_name(node.target)]
    source, result = node.args[0], positions.meta.get("val")
    assert isinstance(source, torch.fx.Node)
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    sizes, counts = tuple(value.shape[-rank:]), tuple(result.shape[-rank:])
    if not all(type(size) is int and size > 0 for size in (*sizes, *counts)):
        return None
    defaults: tuple[Sequence[int], ...] = ((), (), (0,), (1,))
    arguments = [*node.args[1:5], *defaults[len(node.args[1:5]) :]]
    kernel, stride, padding, dilation = (_expand_per_dim(values, rank) for values in arguments)
    if kernel is None or padding is None or dilation is None:
        return None
    strides = [1] * rank
    for k in range(rank - 2, -1, -1):
        strides[k] = strides[k + 1] * sizes[k + 1]
    steps = tuple(s * n for s, n in zip(stride or kernel, strides, strict=True))
    reach = sum((k - 1) * d * n for k, d, n in zip(kernel, dilation, strides, strict=True))
    corner = -sum(p * n for p, n in zip(padding, strides, strict=True))
    return _Windows(counts=counts, steps=steps, corner=corner, reach=reach)


def _expand_per_dim(values: Any, rank: int) -> tuple[int, ...] | None:
    """One number per dimension; `None` if there is none or it is not known."""
    if not isinstance(values, list | tuple) or not values or not all(type(v) is int for v in values):
        return None
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _save_offsets(
    graph: torch.fx.Graph, positions: torch.fx.Node, windows: _Windows, mode: AbstractContextManager[object]
) -> bool:
    """Let readers of `positions` read the sum of a distance and where its window starts; False if none is
    small.
    """
    readers = list(positions.users)
    value = positions.meta["val"]
    narrow = next((t for t in _NARROW if windows.reach <= torch.iinfo(t).max), None)
    if narrow is None:
        return False
    after = positions.next

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        with mode:
            fake = target(*values, **kwargs)
        return insert_call(graph, after, positions, target, args, fake, kwargs)

    start: torch.fx.Node | None = None
    for k, (count, step) in enumerate(zip(windows.counts, windows.steps, strict=True)):
        along = call(
            _prims.iota.default,
            count,
            start=windows.corner if k == 0 else 0,
            step=step,
            dtype=torch.int64,
            device=value.device,
            requires_grad=False,
        )
        for _ in range(len(windows.counts) - 1 - k):
            along = call(_aten.unsqueeze.default, along, -1)
        start = along if start is None else call(_aten.add.Tensor, start, along)
    distance = call(_aten.sub.Tensor, positions, start)
    saved = call(_prims.convert_element_type.default, distance, narrow)
    restored = call(_prims.convert_element_type.default, saved, torch.int64)
    restored = call(_aten.add.Tensor, restored, start)
    for reader in readers:
        reader.replace_input_with(positions, restored)
    return True
