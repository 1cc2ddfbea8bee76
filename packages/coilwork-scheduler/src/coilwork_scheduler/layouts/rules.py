"""The rules of the layout pass: one table, a row for each kind of node whose cost depends on its layout.

Add a row for what the pass should know: a kernel that likes its rows padded, a library that takes another
order for free. The rules for attention are here; those for loops, products and convolutions have files of
their own.

Attention kernels read features that lie together, and keys and values in any order of batch, heads and
tokens. A row of `contractions.attention.KERNELS` says the rest of each library. The query stays as captured
where the result follows it, as in all but the memory-efficient kernel. The result's gradient is taken as the
row says, and copied first if it lies otherwise. Query, key and value of a gradient stay, since the results of
some kernels follow them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.attention import ATTENTION_GRADIENT
from coilwork_ir.loops.layouts import Strides, find_dense_order, make_nested_strides
from coilwork_scheduler.contractions.attention import Kernels, find_kernels
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    LayoutRule,
    Site,
)
from coilwork_scheduler.layouts.convolutions import (
    weigh_asked_convolution,
    weigh_blocked_convolution,
    weigh_convolution,
    weigh_rounded_convolution,
)
from coilwork_scheduler.layouts.products import COPIED, weigh_product
from coilwork_scheduler.layouts.traffic import weigh_loop
from coilwork_scheduler.options import ScheduleOptions

# ---- Attention ----


# Tokens, then heads, then features: how projections make them.
_BY_TOKENS: Final = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """A call of attention or of its gradients.

    Attributes:
        context: facts about the graph.
        operands: what may lie otherwise.
        free: strides with which the only operand costs nothing beside itself; with others it is copied first.
            None where all do whose features lie together, and no kernel reads others.
    """

    context: LayoutContext
    operands: tuple[Buffer, ...]
    free: Strides | None = None

    @property
    def obliges(self) -> tuple[str, ...]:
        """All of the operands."""
        return tuple(buffer.name for buffer in self.operands)

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of the operands."""
        return tuple(dict.fromkeys(self.context.roots[b.name] for b in self.operands))

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
        return tuple([(self.context.roots[b.name], b) for b in self.operands])

    def cost(self, layout: LayoutOf) -> int:
        """Each operand once, or three times where it is copied."""
        for buffer in self.operands:
            strides = layout(self.context.roots[buffer.name], buffer)
            if strides is None:
                return IMPOSSIBLE
            if self.free is not None:
                return self.least() * (1 if self._is_free(buffer, strides) else COPIED)
            if self.context.sizes.value(strides[-1]) != 1:
                return IMPOSSIBLE
        return self.least()

    def least(self) -> int:
        """Return all read once."""
        return SCALE * sum(self.context.sizes.size_bytes(buffer) for buffer in self.operands)

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Nothing: a library's wishes do not hang on how others lie."""
        return ()

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Features innermost; around them heads and tokens as they are free, or as captured."""
        captured = find_dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        for buffer in self.operands:
            if self.context.roots[buffer.name] != root.name:
                continue
            runs = self.context.views.list_runs(buffer, root)
            if runs is None or runs[-1] is None:
                continue
            nested = (len(runs) - 1,) if self.free is None else self._free_order(buffer)
            inwards = [d for k in nested if (run := runs[k]) is not None for d in reversed(run.dimensions)]
            inner = list(dict.fromkeys(reversed(inwards)))[::-1]
            yield make_nested_strides(root.shape, (*(d for d in captured if d not in inner), *inner))

    def _free_order(self, buffer: Buffer) -> tuple[int, ...]:
        """Dimensions of `buffer` as `free` nests them, the outermost first."""
        assert self.free is not None
        steps = self.context.steps(self.free)
        return tuple(sorted(range(len(steps)), key=lambda k: (-steps[k], k)))

    def _is_free(self, buffer: Buffer, strides: Strides) -> bool:
        assert self.free is not None
        extents = self.context.extents(buffer)
        wanted, lies = self.context.steps(self.free), self.context.steps(strides)
        return all(w == s for w, s, extent in zip(wanted, lies, extents, strict=True) if extent != 1)


def weigh_attention(position: int, node: Node, context: LayoutContext) -> Site | None:
    """`node` as a call of attention or of its gradients whose operands may lie otherwise, if it is one."""
    kernels = find_kernels(node) if isinstance(node, Extern) else None
    if not isinstance(node, Extern) or kernels is None:
        return None
    if node.implements == ATTENTION_GRADIENT:
        return _weigh_gradients(node, context, kernels)
    given = [node.args[k] for k in kernels.free if k < len(node.args)]
    operands = [context.buffers[a.name] for a in given if isinstance(a, Ref)]
    if len(operands) < 2 or len(operands) != len(given):
        return None
    if any(context.sizes.value(b.strides[-1]) != 1 for b in operands):
        return None
    return AttentionSite(context=context, operands=tuple(operands))


def _weigh_gradients(node: Extern, context: LayoutContext, kernels: Kernels) -> Site | None:
    given, result = node.args[0], node.args[kernels.result]
    if kernels.gradient_layout is None or not isinstance(given, Ref) or not isinstance(result, Ref):
        return None
    gradient, made = context.buffers[given.name], context.buffers[result.name]
    if len(gradient.shape) != len(_BY_TOKENS):
        return None
    if kernels.gradient_layout == "features together":
        is_taken = context.sizes.value(gradient.strides[-1]) == 1
        return AttentionSite(context=context, operands=(gradient,)) if is_taken else None
    by_tokens = kernels.gradient_layout == "by tokens"
    free = make_nested_strides(gradient.shape, _BY_TOKENS) if by_tokens else made.strides
    return AttentionSite(context=context, operands=(gradient,), free=free)


# ---- The table ----


def _weighs_convolutions(options: ScheduleOptions) -> bool:
    return options.convolution_layout == "auto" and options.numerics != "strict"


RULES: Final[tuple[LayoutRule, ...]] = (
    LayoutRule(
        name="loops",
        site=weigh_loop,
        why=(
            "a kernel runs along one range: what does not lie together along it moves by whole sectors of "
            "32 bytes"
        ),
    ),
    LayoutRule(
        name="products",
        site=weigh_product,
        why=(
            "libraries read and write matrices by rows and by columns alike; others are copied first, and "
            "read once more; kernels of whole vectors take rows that begin at multiples of one, padded or not"
        ),
        is_asked=lambda options: options.numerics != "strict",
    ),
    LayoutRule(
        name="convolutions",
        site=weigh_convolution,
        why=(
            "kernels for matrix units compute in channels-last, and convert what lies otherwise around each "
            "call"
        ),
        is_asked=_weighs_convolutions,
    ),
    LayoutRule(
        name="tf32-convolutions",
        site=weigh_rounded_convolution,
        why=(
            "on GPUs, matrix units compute those in `f32` that round their operands, and convert as others do"
        ),
        is_asked=lambda options: _weighs_convolutions(options) and options.tf32_convolutions,
    ),
    LayoutRule(
        name="blocked-convolutions",
        site=weigh_blocked_convolution,
        why=(
            "CPUs' libraries compute `f32` in blocks: they convert activations that are not channels-last, "
            "and copy the weights of calls that are"
        ),
        is_asked=_weighs_convolutions,
    ),
    LayoutRule(
        name="asked-convolutions",
        site=weigh_asked_convolution,
        why="all are computed in channels-last where the user says so, whatever copies around them cost",
        is_asked=lambda options: options.convolution_layout == "channels_last",
    ),
    LayoutRule(
        name="attention",
        site=weigh_attention,
        why=(
            "attention kernels take features together, in any order of batch, heads and tokens; some copy a "
            "gradient that lies otherwise than they like"
        ),
        is_asked=lambda options: options.numerics != "strict",
    ),
)


def format_rules(rules: tuple[LayoutRule, ...] = RULES) -> str:
    """Return the table as text: a line for each rule, with its reason."""
    width = max(len(rule.name) for rule in rules)
    return "".join(f"{rule.name.ljust(width)}  {rule.why}\n" for rule in rules)
