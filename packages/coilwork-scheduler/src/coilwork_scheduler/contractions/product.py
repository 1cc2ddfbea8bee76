"""Calls of matrix products: what they multiply, and what they add to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loops import Extern, Node

_TYPES: Final = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True, slots=True)
class _Call:
    """Positions of the factors and of what is added among a call's arguments, and the dimensions of the result."""

    left: int
    right: int
    added: int | None
    rank: int


_CALLS: Final[Mapping[str, _Call]] = MappingProxyType(
    {
        "aten.mm.default": _Call(0, 1, None, 2),
        "aten.bmm.default": _Call(0, 1, None, 3),
        "aten.addmm.default": _Call(1, 2, 0, 2),
        "aten.baddbmm.default": _Call(1, 2, 0, 3),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`output = left @ right + added`.

    Shapes: `left` is `[batch, m, k]`, `right` `[batch, k, n]`, `output` `[batch, m, n]`, without batch where there is none;
    `added` is broadcast to the output's shape.
    """

    node: Extern
    left: Buffer
    right: Buffer
    added: Buffer | None
    output: Buffer

    @property
    def batch(self) -> tuple[Expr, ...]:
        """Extents of the batch: one or none."""
        return self.output.shape[:-2]

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr]:
        """Rows, columns and the length of the sums."""
        return self.output.shape[-2], self.output.shape[-1], self.left.shape[-1]


def product_of(node: Node, buffers: Mapping[str, Buffer]) -> Product | None:
    """`node` as a product of matrices of one floating type that kernels multiply; None if it is none."""
    if not isinstance(node, Extern) or node.family != "contraction" or node.mutates or node.aliases:
        return None
    call = _CALLS.get(node.target)
    if call is None or len(node.outputs) != 1 or any(not _is_one(value) for _, value in node.kwargs):
        return None
    (output,) = node.outputs
    left, right = (_operand(node, place, buffers) for place in (call.left, call.right))
    if left is None or right is None or not isinstance(output, Buffer):
        return None
    added = None if call.added is None else _operand(node, call.added, buffers)
    if (added is None) != (call.added is None):
        return None
    operands = (left, right, *(() if added is None else (added,)))
    if output.dtype not in _TYPES or any(o.dtype is not output.dtype for o in operands):
        return None
    if any(o.device != output.device for o in operands):
        return None
    if len(output.shape) != call.rank or any(len(o.shape) != call.rank for o in (left, right)):
        return None
    return Product(node=node, left=left, right=right, added=added, output=output)


def _operand(node: Extern, place: int, buffers: Mapping[str, Buffer]) -> Buffer | None:
    argument = node.args[place] if place < len(node.args) else None
    return buffers[argument.name] if isinstance(argument, Ref) else None


def _is_one(value: Argument) -> bool:
    """`value`, a factor of a summand, is 1: other ones are left to the call."""
    return type(value) in (int, float) and value == 1
