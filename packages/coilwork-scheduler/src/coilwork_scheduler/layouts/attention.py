"""Attention as a call: which of its operands may lie otherwise, and what each library's kernels make of them.

All kernels read features that lie together, and keys and values in any order of batch, heads and tokens.
A row of `contractions.attention.KERNELS` says the rest of one library:

- the query stays as captured where the result follows it, as all but the memory-efficient kernel's do;
- gradients are taken with the result's gradient as the row says, which is copied first if it lies otherwise.
  Query, key and value of gradients stay, since in some kernels their gradients follow them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.attention import ATTENTION_GRADIENT
from coilwork_ir.loops.layouts import Strides, dense_order, nested_strides
from coilwork_scheduler.contractions.attention import Kernels, find_kernels
from coilwork_scheduler.layouts.sites import IMPOSSIBLE, SCALE, Around, Choice, Copy, LayoutOf, Site

# A copy is written, and read again by the kernel.
_COPIED: Final = 3
# Tokens, then heads, then features: how projections make them.
_BY_TOKENS: Final = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """A call of attention or of its gradients.

    Attributes:
        around: what is known.
        operands: what may lie otherwise.
        free: strides with which the only operand costs nothing beside itself; with others it is copied first.
            None where all do whose features lie together, and no kernel reads others.
    """

    around: Around
    operands: tuple[Buffer, ...]
    free: Strides | None = None

    @property
    def obliges(self) -> tuple[str, ...]:
        """All of the operands."""
        return tuple(buffer.name for buffer in self.operands)

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of the operands."""
        return tuple(dict.fromkeys(self.around.roots[b.name] for b in self.operands))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """None beside layouts."""
        return ()

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """None: the library makes the copy that it needs."""
        return ()

    @property
    def form(self) -> Hashable:
        """Shapes and the type, and what is free."""
        return (AttentionSite, tuple([(b.shape, b.dtype) for b in self.operands]), self.free)

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """Its operands."""
        return tuple([(self.around.roots[b.name], b) for b in self.operands])

    def cost(self, layout: LayoutOf) -> int:
        """Each operand once, or three times where it is copied."""
        for buffer in self.operands:
            strides = layout(self.around.roots[buffer.name], buffer)
            if strides is None:
                return IMPOSSIBLE
            if self.free is not None:
                return self.least() * (1 if self._is_free(buffer, strides) else _COPIED)
            if self.around.sizes.value(strides[-1]) != 1:
                return IMPOSSIBLE
        return self.least()

    def least(self) -> int:
        """All read once."""
        return SCALE * sum(self.around.sizes.size_bytes(buffer) for buffer in self.operands)

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Nothing: a library's wishes do not hang on how others lie."""
        return ()

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Features innermost; around them heads and tokens as they are free, or as captured."""
        captured = dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        for buffer in self.operands:
            if self.around.roots[buffer.name] != root.name:
                continue
            runs = self.around.views.list_runs(buffer, root)
            if runs is None or runs[-1] is None:
                continue
            nested = (len(runs) - 1,) if self.free is None else self._free_order(buffer)
            inwards = [d for k in nested if (run := runs[k]) is not None for d in reversed(run.dimensions)]
            inner = list(dict.fromkeys(reversed(inwards)))[::-1]
            yield nested_strides(root.shape, (*(d for d in captured if d not in inner), *inner))

    def _free_order(self, buffer: Buffer) -> tuple[int, ...]:
        """Dimensions of `buffer` as `free` nests them, the outermost first."""
        assert self.free is not None
        steps = self.around.steps(self.free)
        return tuple(sorted(range(len(steps)), key=lambda k: (-steps[k], k)))

    def _is_free(self, buffer: Buffer, strides: Strides) -> bool:
        assert self.free is not None
        extents = self.around.extents(buffer)
        wanted, lies = self.around.steps(self.free), self.around.steps(strides)
        return all(w == s for w, s, extent in zip(wanted, lies, extents, strict=True) if extent != 1)


def weigh_attention(position: int, node: Node, around: Around) -> Site | None:
    """`node` as a call of attention or of its gradients whose operands may lie otherwise, if it is one."""
    kernels = find_kernels(node) if isinstance(node, Extern) else None
    if not isinstance(node, Extern) or kernels is None:
        return None
    if node.implements == ATTENTION_GRADIENT:
        return _weigh_gradients(node, around, kernels)
    given = [node.args[k] for k in kernels.free if k < len(node.args)]
    operands = [around.buffers[a.name] for a in given if isinstance(a, Ref)]
    if len(operands) < 2 or len(operands) != len(given):
        return None
    if any(around.sizes.value(b.strides[-1]) != 1 for b in operands):
        return None
    return AttentionSite(around=around, operands=tuple(operands))


def _weigh_gradients(node: Extern, around: Around, kernels: Kernels) -> Site | None:
    given, result = node.args[0], node.args[kernels.result]
    if kernels.gradient_layout is None or not isinstance(given, Ref) or not isinstance(result, Ref):
        return None
    gradient, made = around.buffers[given.name], around.buffers[result.name]
    if len(gradient.shape) != len(_BY_TOKENS):
        return None
    if kernels.gradient_layout == "features together":
        is_taken = around.sizes.value(gradient.strides[-1]) == 1
        return AttentionSite(around=around, operands=(gradient,)) if is_taken else None
    by_tokens = kernels.gradient_layout == "by tokens"
    free = nested_strides(gradient.shape, _BY_TOKENS) if by_tokens else made.strides
    return AttentionSite(around=around, operands=(gradient,), free=free)
