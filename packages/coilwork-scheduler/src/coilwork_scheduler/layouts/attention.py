"""Attention as a call: keys and values may lie in any order of batch, heads and tokens, as long as their features lie together.

How the result lies follows from the query in some of the kernels, so the query stays as captured.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.layouts import dense_order, nested_strides
from coilwork_ir.loops.view_strides import Strides
from coilwork_scheduler.layouts.sites import IMPOSSIBLE, SCALE, Around, Conversion, LayoutOf, Site

_FORWARD: Final = "aten._scaled_dot_product_"
# keys and values, among the arguments
_FREE: Final = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """A call of attention; `operands` are its keys and values."""

    around: Around
    operands: tuple[Buffer, ...]

    @property
    def obliges(self) -> tuple[str, ...]:
        """Keys and values."""
        return tuple(buffer.name for buffer in self.operands)

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of keys and values."""
        return tuple(dict.fromkeys(self.around.roots[b.name] for b in self.operands))

    @property
    def conversions(self) -> tuple[Conversion, ...]:
        """None."""
        return ()

    @property
    def form(self) -> Hashable:
        """Shapes and the type."""
        return (AttentionSite, tuple([(b.shape, b.dtype) for b in self.operands]))

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """Its operands."""
        return tuple([(self.around.roots[b.name], b) for b in self.operands])

    def cost(self, layout: LayoutOf) -> int:
        """Each operand once, if its features lie together; no kernel reads others."""
        for buffer in self.operands:
            strides = layout(self.around.roots[buffer.name], buffer)
            if strides is None or self.around.sizes.value(strides[-1]) != 1:
                return IMPOSSIBLE
        return self.least()

    def least(self) -> int:
        """All read once."""
        return SCALE * sum(self.around.sizes.size_bytes(buffer) for buffer in self.operands)

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Features innermost."""
        captured = dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        for buffer in self.operands:
            runs = (
                self.around.views.list_runs(buffer, root)
                if self.around.roots[buffer.name] == root.name
                else None
            )
            if runs and runs[-1] is not None:
                inner = runs[-1].dimensions
                order = (*(d for d in captured if d not in inner), *reversed(inner))
                yield nested_strides(root.shape, order)


def weigh_attention(position: int, node: Node, around: Around) -> Site | None:
    """`node` as a call of attention whose keys and values may lie otherwise, if it is one."""
    if not isinstance(node, Extern) or not node.target.startswith(_FORWARD) or "backward" in node.target:
        return None
    given = [node.args[k] for k in _FREE if k < len(node.args)]
    operands = [around.buffers[a.name] for a in given if isinstance(a, Ref)]
    if len(operands) != len(_FREE) or any(around.sizes.value(b.strides[-1]) != 1 for b in operands):
        return None
    return AttentionSite(around=around, operands=tuple(operands))
