"""Products of matrices as sites of the layout pass.

A product takes a factor by rows or by columns for free, and copies any other order before each call. It
writes into given memory, by rows or by columns. Where rows begin between vectors, measured rates say how fast
it is. Memory whose rows would, may have them padded (`Alignment`): whoever makes it writes it so, and nobody
copies it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.layouts import Run, Strides, find_dense_order, make_nested_strides, make_padded_strides
from coilwork_ir.loops.matrix_products import ACTIVATED_PRODUCT, BATCHED_PRODUCT, PRODUCT
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    Site,
)

COPIED: Final = 3
"""A copy is written, and read again by whom it is made for."""

_HALVES: Final = (DType.BF16, DType.F16)
_PRODUCTS: Final = frozenset({PRODUCT, BATCHED_PRODUCT, ACTIVATED_PRODUCT})
# Padding is written with the rows, and read with them about twice.
_TOUCHES: Final = 3


@dataclass(frozen=True, slots=True)
class Alignment:
    """What a product costs more because rows begin between vectors, and padded rows instead.

    A library chooses kernels by sizes, too, in 16 bits: of what lies together, terms and the result's columns
    decide, and its rows do not. Padding of what decides gives no aligned kernel.

    Attributes:
        lost: eighths of bytes that memory moves while the product takes longer.
        padded: the same of what padding costs beside its bytes: kernels cannot take padded rows as one.
        vector_bytes: a vector.
    """

    lost: int
    padded: int
    vector_bytes: int

    def is_padding_useful(self, number: int, dtype: DType, *, is_by_rows: bool) -> bool:
        """Tell if padded rows of matrix `number` of the product, or columns, give it an aligned kernel."""
        return self.lost > 0 and (dtype not in _HALVES or (number == 0 and not is_by_rows))

    def round_up(self, dtype: DType) -> int:
        """Elements that rows begin at multiples of."""
        return max(1, self.vector_bytes // dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Weight:
    """What one operand costs in one layout: eighths of bytes, and if no aligned kernel can read it."""

    moved: int
    is_slow: bool = False
    is_padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSite:
    """A product of two matrices, batched or not, and its result, last; `added` is what is added, maybe by
    rows.

    Attributes:
        context: facts about the graph.
        matrices: left, right and result.
        added: other operands.
        alignment: what rows between vectors cost.
        apart: eighths of bytes that memory moves while a CPU's library is called for each matrix of a batch,
            as it is unless factors lie by rows or by columns, and the result by rows without gaps.
    """

    context: LayoutContext
    matrices: tuple[Buffer, Buffer, Buffer]
    added: tuple[Buffer, ...]
    alignment: Alignment
    apart: int
    _known: dict[tuple[str, Strides], _Weight] = field(default_factory=dict, repr=False)

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
        return (ProductSite, shapes, self.matrices[0].dtype, self.alignment, self.apart)

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """All of its operands and the result, and their memory."""
        roots, buffers = self.context.roots, self.context.buffers
        operands = [(roots[buffer.name], buffer) for buffer in (*self.matrices, *self.added)]
        memory = [(root, buffers[root]) for root, _ in operands[: len(self.matrices)]]
        return (*operands, *memory) if self.alignment.lost else tuple(operands)

    def cost(self, layout: LayoutOf) -> int:
        """Each matrix once, three times where it is copied; more where no aligned kernel can read it."""
        found = 0
        slow = padded = one_by_one = False
        for number, buffer in enumerate((*self.matrices, *self.added)):
            root = self.context.roots[buffer.name]
            strides, memory = layout(root, buffer), layout(root, self.context.buffers[root])
            if strides is None or memory is None:
                return IMPOSSIBLE
            key = (buffer.name, memory)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._weigh(number, buffer, strides, memory)
            found += known.moved
            slow = slow or known.is_slow
            padded = padded or known.is_padded
            one_by_one = one_by_one or (self.apart > 0 and self._is_apart(number, buffer, strides))
        found += self.alignment.padded if padded else 0
        return found + (self.alignment.lost if slow else 0) + (self.apart if one_by_one else 0)

    def _is_apart(self, number: int, buffer: Buffer, strides: Strides) -> bool:
        """Tell if matrix `number` of the product lies so that a CPU's library takes no batches of it."""
        if number > 2:
            return False
        if number < 2:
            return not self._find_leading_steps(buffer, strides)
        rows = make_contiguous_strides(buffer.shape)
        pairs = zip(
            self.context.steps(strides), self.context.steps(rows), self.context.extents(buffer), strict=True
        )
        return any(step != row and extent != 1 for step, row, extent in pairs)

    def _weigh(self, number: int, buffer: Buffer, strides: Strides, memory: Strides) -> _Weight:
        """Return what operand `number` costs where it and the memory that it is in lie so."""
        size = self._bytes(buffer) * SCALE
        if number >= len(self.matrices):
            return _Weight(size)
        leading = self._find_leading_steps(buffer, strides)
        if not leading:
            return _Weight(COPIED * size)
        itemsize = buffer.dtype.itemsize
        slow = any(step * itemsize % self.alignment.vector_bytes for step in leading)
        if not self._is_padded(buffer, memory):
            return _Weight(size, is_slow=slow)
        *_, rows, columns = self.context.extents(buffer)
        is_by_rows = self.context.steps(strides)[-1] == 1
        slow = slow or not self.alignment.is_padding_useful(number, buffer.dtype, is_by_rows=is_by_rows)
        gap = leading[-1] - (columns if is_by_rows else rows)
        padding = size // (columns if is_by_rows else rows) * max(gap, 0)
        # a bias is copied into a result whose rows are apart
        added = 2 * size if number == len(self.matrices) - 1 and self.added else 0
        return _Weight(size + _TOUCHES * padding + added, is_slow=slow, is_padded=True)

    def _is_padded(self, buffer: Buffer, memory: Strides) -> bool:
        """Tell if rows of the memory of `buffer`, which lies so, were padded by this pass."""
        root = self.context.buffers[self.context.roots[buffer.name]]
        if not self.alignment.lost or memory == root.strides:
            return False
        return find_dense_order(replace(root, strides=memory)) is None

    def least(self) -> int:
        """Return all read and written once."""
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
        padded: list[Strides] = []
        for buffer in mine:
            runs = self.context.views.list_runs(buffer, root)
            if runs is None or runs[-1] is None or runs[-2] is None:
                continue
            for inner, outer, is_by_rows in ((runs[-1], runs[-2], True), (runs[-2], runs[-1], False)):
                nested = _nest(captured, [*reversed(outer.dimensions), *reversed(inner.dimensions)])
                yield make_nested_strides(root.shape, nested)
                found = self._pad(buffer, root, nested, inner, is_by_rows=is_by_rows)
                if found is not None:
                    padded.append(found)
        yield from padded

    def _pad(
        self, buffer: Buffer, root: Buffer, nested: tuple[int, ...], inner: Run, *, is_by_rows: bool
    ) -> Strides | None:
        """Return strides of `root` that nest dimensions so and pad the rows of `buffer`, or its columns; None
        if that gives the product no aligned kernel.
        """
        numbers = [k for k, matrix in enumerate(self.matrices) if matrix.name == buffer.name]
        dtype, multiple = buffer.dtype, self.alignment.round_up(buffer.dtype)
        if inner.step != 1 or not any(
            self.alignment.is_padding_useful(k, dtype, is_by_rows=is_by_rows) for k in numbers
        ):
            return None
        strides = make_padded_strides(root.shape, nested, len(inner.dimensions), multiple)
        return None if strides is None or strides == make_nested_strides(root.shape, nested) else strides

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
        alignment=_weigh_alignment(left, output, context),
        apart=_batch_call_cost(left, output, context),
    )


def _weigh_alignment(left: Buffer, output: Buffer, context: LayoutContext) -> Alignment:
    """Return what rows between vectors cost the product of `left` that makes `output`, by measured rates."""
    target = context.targets.of(output.device)
    figures, moved = target.machine.products, context.bytes_per_us(output.device)
    flops = 2.0 * context.sizes.numel(output.shape) * context.sizes.value(left.shape[-1])
    # CPUs' libraries copy what they multiply into blocks
    if not target.is_gpu:
        return Alignment(lost=0, padded=0, vector_bytes=figures.vector_bytes)
    us = 0.0
    if output.dtype in _HALVES:
        us = flops / figures.unaligned_rate_1 - flops / figures.aligned_rate
    elif output.dtype is DType.F32:
        us = flops / figures.single_rate * (figures.single_slowdown - 1)
    padded = int(figures.least_gain_us * moved) * SCALE
    return Alignment(lost=int(us * moved) * SCALE, padded=padded, vector_bytes=figures.vector_bytes)


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
