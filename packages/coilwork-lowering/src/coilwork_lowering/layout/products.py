"""Matrix products whose operands start their rows at unaligned places, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from coilwork_lowering.generated import operator
from coilwork_lowering.layout.formats import hinted_sizes
from coilwork_lowering.torch_compat import Overload

ALIGNMENT: Final = 16
"""Bytes. Kernels for matrix units read rows in vectors of this size; others are several times slower."""

# Positions of the matrices among the arguments. An `addmm`'s first operand is copied into the result beforehand.
_MATRICES: Final[Mapping[str, tuple[int, int]]] = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
}


@dataclass(frozen=True, slots=True)
class _Speed:
    """Floating point operations per microsecond of large products, and how many times slower unaligned ones are."""

    flops_per_us: float
    slowdown: float


# Measured on an H200: 8192 x 768 x 50257 in bf16 takes 0.9 ms aligned and 6.7 ms unaligned. Products in f32 without
# TF32 do not use the matrix units; they lose their vector loads.
_SPEED: Final[Mapping[torch.dtype, _Speed]] = {
    torch.bfloat16: _Speed(7.0e8, 7.0),
    torch.float16: _Speed(7.0e8, 7.0),
    torch.float32: _Speed(5.0e7, 1.3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A call of `mm`, `addmm`, `bmm` or `baddbmm`.

    Attributes:
        node: the call.
        tensors: what has a leading dimension in it: its two matrices and its result.
    """

    node: torch.fx.Node
    tensors: tuple[torch.fx.Node, ...]

    @property
    def flops(self) -> int:
        """Additions and multiplications, by hints; 0 where sizes depend on data."""
        left, result = (hinted_sizes(self.tensors[k].meta["val"]) for k in (0, 2))
        return 0 if left is None or result is None else 2 * prod(result) * left[-1]

    @property
    def lost_us(self) -> float:
        """Time that unaligned kernels take longer than aligned ones, as modelled."""
        speed = _SPEED[self.tensors[2].meta["val"].dtype]
        return self.flops / speed.flops_per_us * (speed.slowdown - 1)


def is_product(node: torch.fx.Node) -> bool:
    """Whether `node` is one of the calls that `Product` describes: they take and write matrices of any strides."""
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, Overload)
        and target._overloadname == "default"
        and operator(target) in _MATRICES
    )


def find_products(gm: torch.fx.GraphModule, devices: Sequence[str]) -> Iterator[Product]:
    """Products on `devices` of element types whose kernels care for alignment."""
    for node in gm.graph.nodes:
        if not is_product(node):
            continue
        places, value = _MATRICES[operator(node.target)], node.meta.get("val")
        if not isinstance(value, torch.Tensor) or len(node.args) <= places[1]:
            continue
        matrices = tuple(node.args[place] for place in places)
        tensors = (*matrices, node)
        if value.device.type not in devices or value.dtype not in _SPEED:
            continue
        if all(isinstance(t, torch.fx.Node) and isinstance(t.meta.get("val"), torch.Tensor) for t in tensors):
            yield Product(node=node, tensors=tensors)


def is_unaligned(tensor: torch.Tensor) -> bool:
    """Whether a product reads or writes `tensor` in place, but no aligned kernel can: rows start between vectors.

    False where that is not known, and for what a product copies first: matrices with no dimension of stride 1.
    """
    (rows, columns), (far, near) = tensor.shape[-2:], tensor.stride()[-2:]
    if _is(near, 1):
        leading, other = far, rows
    elif _is(far, 1):
        leading, other = near, columns
    else:
        return False
    steps = [leading] if not _is(other, 1) else []
    steps += [s for n, s in zip(tensor.shape[:-2], tensor.stride()[:-2], strict=True) if not _is(n, 1)]
    places = [*steps, tensor.storage_offset()]
    return any(type(place) is int and place * tensor.element_size() % ALIGNMENT != 0 for place in places)


def _is(size: int | torch.SymInt, number: int) -> bool:
    return type(size) is int and size == number
