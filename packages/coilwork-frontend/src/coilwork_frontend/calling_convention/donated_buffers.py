"""Inputs of a backward graph whose memory it may overwrite: what the forward saved for it alone.

AOTAutograd says which saved tensors are no inputs, results or gradients of the user's. Of these, one may
still be a view of another; such memory has two readers, so it is left alone. So is what may start between
multiples of 16 bytes, where the memory of a program must not, and memory with gaps, in which something else
may live: an operator may have woven its results into each other. Only rows that Coilwork itself has padded
have nothing between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx

from coilwork_frontend.calling_convention.alignment import starts_aligned
from coilwork_frontend.torch_compat.aot_autograd import donated_input_positions
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import identify_strided_storage
from coilwork_ir.graph_marks import OWN_PADDING


def donated_inputs(gm: fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs of `gm`, the backward graph that is being compiled, that are given
    away to it.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in inputs]
    given = [p for p in donated_input_positions() if p < len(values) and starts_aligned(values[p])]
    whole = [p for p in given if OWN_PADDING in inputs[p].meta or is_whole(values[p])]
    return unshared(values, whole) if whole else ()


def is_whole(value: object) -> bool:
    """Tell if elements of `value` fill its memory, from the first to the last, whatever its sizes."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return are_equal_sizes((span,), (value.numel(),))


def unshared(values: Sequence[object], positions: Sequence[int]) -> tuple[int, ...]:
    """Return those of `positions` at which there is a strided tensor whose storage no other of
    `values` has.
    """
    storages = [identify_strided_storage(value) for value in values]
    users = Counter(storages)
    return tuple(p for p in positions if storages[p] is not None and users[storages[p]] == 1)
