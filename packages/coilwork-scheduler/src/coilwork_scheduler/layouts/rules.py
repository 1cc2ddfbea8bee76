"""The rules of the layout pass: one table, a row for each kind of node whose cost depends on its layout.

Add a row for what the pass should know: a kernel that likes its rows padded, a library that takes another
order for free. The rules for attention and for products are here; those for loops and convolutions have files
of their own.

Attention kernels read features that lie together, and keys and values in any order of batch, heads and
tokens. A row of `contractions.attention.KERNELS` says the rest of each library. The query stays as captured
where the result follows it, as in all but the memory-efficient kernel. The result's gradient is taken as the
row says, and copied first if it lies otherwise. Query, key and value of a gradient stay, since the results of
some kernels follow them.

A product takes a factor by rows or by columns for free, and copies any other order before each call. It
writes into given memory, by rows or by columns. Where rows begin between vectors, measured rates say how fast
it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.attention import ATTENTION_GRADIENT
from coilwork_ir.loops.layouts import Strides, find_dense_order, make_nested_strides
from coilwork_ir.loops.matrix_products import ACTIVATED_PRODUCT, BATCHED_PRODUCT, PRODUCT
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
from coilwork_scheduler.layouts.traffic import weigh_loop
from coilwork_scheduler.options import ScheduleOptions

# ---- Attention ----


# A copy is written, and read again by the kernel.
_COPIED: Final = 3
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
                return self.least() * (1 if self._is_free(buffer, strides) else _COPIED)
            if self.context.sizes.value(strides[-1]) != 1:
                return IMPOSSIBLE
        return self.least()

    def least(self) -> int:
        """All read once."""
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


# ---- Products ----


# A copy is written, and read again by the product.
_HALVES: Final = (DType.BF16, DType.F16)
_PRODUCTS: Final = frozenset({PRODUCT, BATCHED_PRODUCT, ACTIVATED_PRODUCT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSite:
    """A product of two matrices, batched or not, and its result, last; `added` is what is added, maybe by
    rows.

    Attributes:
        context: facts about the graph.
        matrices: left, right and result.
        added: other operands.
        lost: eighths of bytes that memory moves while the product takes longer because rows begin between
            vectors.
        apart: eighths of bytes that memory moves while a CPU's library is called for each matrix of a batch,
            as it is unless factors lie by rows or by columns, and the result by rows without gaps.
    """

    context: LayoutContext
    matrices: tuple[Buffer, Buffer, Buffer]
    added: tuple[Buffer, ...]
    lost: int
    apart: int
    _known: dict[tuple[str, Strides], tuple[int, bool]] = field(default_factory=dict, repr=False)

    @property
    def obliges(self) -> tuple[str, ...]:
        """All that it reads and makes."""
        return tuple(buffer.name for buffer in (*self.matrices, *self.added))

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of its operands and of its result."""
        return tuple(dict.fromkeys(self.context.roots[b.name] for b in (*self.matrices, *self.added)))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """None beside layouts."""
        return ()

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """None: the library makes the copy that it needs."""
        return ()

    @property
    def form(self) -> Hashable:
        """Shapes and the type, and what is lost."""
        shapes = tuple([buffer.shape for buffer in (*self.matrices, *self.added)])
        return (ProductSite, shapes, self.matrices[0].dtype, self.lost)

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """All of its operands and the result."""
        roots = self.context.roots
        return tuple([(roots[buffer.name], buffer) for buffer in (*self.matrices, *self.added)])

    def cost(self, layout: LayoutOf) -> int:
        """Each matrix once, three times where it is copied; more where no aligned kernel can read it."""
        found = 0
        slow = one_by_one = False
        for number, buffer in enumerate((*self.matrices, *self.added)):
            strides = layout(self.context.roots[buffer.name], buffer)
            if strides is None:
                return IMPOSSIBLE
            key = (buffer.name, strides)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._weigh(buffer, strides, is_matrix=number < len(self.matrices))
            found += known[0]
            slow = slow or known[1]
            one_by_one = one_by_one or (self.apart > 0 and self._is_apart(number, buffer, strides))
        return found + (self.lost if slow else 0) + (self.apart if one_by_one else 0)

    def _is_apart(self, number: int, buffer: Buffer, strides: Strides) -> bool:
        """True if matrix `number` of the product lies so that a CPU's library takes no batches of it."""
        if number > 2:
            return False
        if number < 2:
            return not self._find_leading_steps(buffer, strides)
        rows = make_contiguous_strides(buffer.shape)
        pairs = zip(
            self.context.steps(strides), self.context.steps(rows), self.context.extents(buffer), strict=True
        )
        return any(step != row and extent != 1 for step, row, extent in pairs)

    def _weigh(self, buffer: Buffer, strides: Strides, *, is_matrix: bool) -> tuple[int, bool]:
        """Return what `buffer` costs where it lies so, and whether rows begin between vectors."""
        size = self._bytes(buffer) * SCALE
        if not is_matrix:
            return size, False
        leading = self._find_leading_steps(buffer, strides)
        slow = any(
            step
            * buffer.dtype.itemsize
            % self.context.targets.of(buffer.device).machine.products.vector_bytes
            for step in leading
        )
        return size if leading else _COPIED * size, slow

    def least(self) -> int:
        """All read and written once."""
        return SCALE * sum(self._bytes(buffer) for buffer in (*self.matrices, *self.added))

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Nothing: a library's wishes do not hang on how others lie."""
        return ()

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Its matrices by rows, and by columns."""
        roots = self.context.roots
        mine = [buffer for buffer in self.matrices if roots[buffer.name] == root.name]
        lying = tuple([(buffer.shape, buffer.strides) for buffer in mine])
        key = (ProductSite, lying, root.shape, root.strides)
        known = self.context.known.proposals
        found = known.get(key)
        if found is None:
            found = known[key] = tuple(self._nestings(mine, root))
        return found

    def _nestings(self, mine: Sequence[Buffer], root: Buffer) -> Iterable[Strides]:
        captured = find_dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        for buffer in mine:
            runs = self.context.views.list_runs(buffer, root)
            if runs is None or runs[-1] is None or runs[-2] is None:
                continue
            for inner, outer in ((runs[-1], runs[-2]), (runs[-2], runs[-1])):
                nested = [*reversed(outer.dimensions), *reversed(inner.dimensions)]
                yield make_nested_strides(root.shape, _nest(captured, nested))

    def _bytes(self, buffer: Buffer) -> int:
        return self.context.sizes.size_bytes(buffer)

    def _find_leading_steps(self, buffer: Buffer, strides: Strides) -> tuple[int, ...]:
        """Steps from row to row, or from column to column, and from matrix to matrix; none if it is copied
        first.
        """
        *batches, rows, columns = self.context.extents(buffer)
        *far, down, across = self.context.steps(strides)
        between = tuple(step for extent, step in zip(batches, far, strict=True) if extent != 1)
        if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
            return (*between, down if rows != 1 else columns)
        if (down == 1 or rows == 1) and (columns == 1 or across >= rows):
            return (*between, across if columns != 1 else rows)
        return ()


def weigh_product(position: int, node: Node, context: LayoutContext) -> Site | None:
    """`node` as a product, if it is a call of a library that writes a product into given memory."""
    if not isinstance(node, Extern) or node.implements not in _PRODUCTS or len(node.outputs) != 1:
        return None
    output = node.outputs[0]
    names = [argument.name for argument in node.args if isinstance(argument, Ref)]
    if not node.out_overload or not isinstance(output, Buffer) or len(names) != len(node.args):
        return None
    operands = [context.buffers[name] for name in names]
    if len(operands) not in (2, 3) or any(len(b.shape) != len(output.shape) for b in operands[-2:]):
        return None
    left, right = operands[-2:]
    types = {b.dtype for b in (*operands, output)}
    # bytes and numbers of 8 bits are multiplied by kernels that want one order
    if len(output.shape) not in (2, 3) or len(types) != 1 or not _is_wide(output.dtype):
        return None
    return ProductSite(
        context=context,
        matrices=(left, right, output),
        added=tuple(operands[:-2]),
        lost=_alignment_loss(left, output, context),
        apart=_batch_call_cost(left, output, context),
    )


def _alignment_loss(left: Buffer, output: Buffer, context: LayoutContext) -> int:
    if output.dtype not in _HALVES or not context.targets.of(output.device).is_gpu:
        return 0
    flops = 2.0 * context.sizes.numel(output.shape) * context.sizes.value(left.shape[-1])
    figures = context.targets.of(output.device).machine.products
    us = flops / figures.unaligned_rate_1 - flops / figures.aligned_rate
    return int(us * context.bytes_per_us(output.device)) * SCALE


def _batch_call_cost(left: Buffer, output: Buffer, context: LayoutContext) -> int:
    """Return what a call for each matrix costs, where a CPU's library could take all of them at once."""
    *batch, rows, columns = context.extents(output)
    terms = rows * columns * context.sizes.value(left.shape[-1])
    target = context.targets.of(output.device)
    if not batch or target.is_gpu or output.dtype not in (DType.F32, DType.F64):
        return 0
    loops = target.machine.loops
    # of fewer terms it adds products itself, in any layout
    if terms < loops.least_library_terms:
        return 0
    return int(batch[0] * loops.matrix_call_us * context.bytes_per_us(output.device)) * SCALE


def _nest(captured: Sequence[int], inner: Sequence[int]) -> tuple[int, ...]:
    """`captured` with the dimensions `inner` innermost, in that order."""
    last = tuple(dict.fromkeys(reversed(inner)))[::-1]
    return (*(d for d in captured if d not in last), *last)


def _is_wide(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize > 1


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
            "read once more"
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
    """The table as text: a line for each rule, with its reason."""
    width = max(len(rule.name) for rule in rules)
    return "".join(f"{rule.name.ljust(width)}  {rule.why}\n" for rule in rules)
