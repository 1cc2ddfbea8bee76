"""Products as calls of a library: a factor by rows or by columns is free, any other order is a copy before
each call.

A call writes into given memory, and so its result lies as it is told, by rows or by columns. How fast it is
where rows begin between vectors, measured rates say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coilwork_ir.buffers import Buffer, Ref, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.layouts import Strides, dense_order, nested_strides
from coilwork_ir.loops.matrix_products import ACTIVATED_PRODUCT, BATCHED_PRODUCT, PRODUCT
from coilwork_scheduler.layouts.sites import IMPOSSIBLE, SCALE, Around, Choice, Copy, LayoutOf, Site

# A copy is written, and read again by the product.
_COPIED: Final = 3
_HALVES: Final = (DType.BF16, DType.F16)
_PRODUCTS: Final = frozenset({PRODUCT, BATCHED_PRODUCT, ACTIVATED_PRODUCT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSite:
    """A product of two matrices, batched or not, and its result, last; `added` is what is added, maybe by
    rows.

    Attributes:
        around: what is known.
        matrices: left, right and result.
        added: other operands.
        lost: eighths of bytes that memory moves while the product takes longer because rows begin between
            vectors.
        apart: eighths of bytes that memory moves while a CPU's library is called for each matrix of a batch,
            as it is unless factors lie by rows or by columns, and the result by rows without gaps.
    """

    around: Around
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
        return tuple(dict.fromkeys(self.around.roots[b.name] for b in (*self.matrices, *self.added)))

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
        roots = self.around.roots
        return tuple([(roots[buffer.name], buffer) for buffer in (*self.matrices, *self.added)])

    def cost(self, layout: LayoutOf) -> int:
        """Each matrix once, three times where it is copied; more where no aligned kernel can read it."""
        found = 0
        slow = one_by_one = False
        for number, buffer in enumerate((*self.matrices, *self.added)):
            strides = layout(self.around.roots[buffer.name], buffer)
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
            return not self._leading(buffer, strides)
        rows = contiguous_strides(buffer.shape)
        pairs = zip(
            self.around.steps(strides), self.around.steps(rows), self.around.extents(buffer), strict=True
        )
        return any(step != row and extent != 1 for step, row, extent in pairs)

    def _weigh(self, buffer: Buffer, strides: Strides, *, is_matrix: bool) -> tuple[int, bool]:
        """Return what `buffer` costs where it lies so, and whether rows begin between vectors."""
        size = self._bytes(buffer) * SCALE
        if not is_matrix:
            return size, False
        leading = self._leading(buffer, strides)
        slow = any(
            step * buffer.dtype.itemsize % self.around.targets.of(buffer.device).machine.products.vector_bytes
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
        roots = self.around.roots
        mine = [buffer for buffer in self.matrices if roots[buffer.name] == root.name]
        lying = tuple([(buffer.shape, buffer.strides) for buffer in mine])
        key = (ProductSite, lying, root.shape, root.strides)
        known = self.around.known.proposals
        found = known.get(key)
        if found is None:
            found = known[key] = tuple(self._nestings(mine, root))
        return found

    def _nestings(self, mine: Sequence[Buffer], root: Buffer) -> Iterable[Strides]:
        captured = dense_order(root)
        assert captured is not None, f"%{root.name} has gaps"
        for buffer in mine:
            runs = self.around.views.list_runs(buffer, root)
            if runs is None or runs[-1] is None or runs[-2] is None:
                continue
            for inner, outer in ((runs[-1], runs[-2]), (runs[-2], runs[-1])):
                nested = [*reversed(outer.dimensions), *reversed(inner.dimensions)]
                yield nested_strides(root.shape, _nest(captured, nested))

    def _bytes(self, buffer: Buffer) -> int:
        return self.around.sizes.size_bytes(buffer)

    def _leading(self, buffer: Buffer, strides: Strides) -> tuple[int, ...]:
        """Steps from row to row, or from column to column, and from matrix to matrix; none if it is copied
        first.
        """
        *batches, rows, columns = self.around.extents(buffer)
        *far, down, across = self.around.steps(strides)
        between = tuple(step for extent, step in zip(batches, far, strict=True) if extent != 1)
        if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
            return (*between, down if rows != 1 else columns)
        if (down == 1 or rows == 1) and (columns == 1 or across >= rows):
            return (*between, across if columns != 1 else rows)
        return ()


def weigh_product(position: int, node: Node, around: Around) -> Site | None:
    """`node` as a product, if it is a call of a library that writes a product into given memory."""
    if not isinstance(node, Extern) or node.implements not in _PRODUCTS or len(node.outputs) != 1:
        return None
    output = node.outputs[0]
    names = [argument.name for argument in node.args if isinstance(argument, Ref)]
    if not node.out_overload or not isinstance(output, Buffer) or len(names) != len(node.args):
        return None
    operands = [around.buffers[name] for name in names]
    if len(operands) not in (2, 3) or any(len(b.shape) != len(output.shape) for b in operands[-2:]):
        return None
    left, right = operands[-2:]
    types = {b.dtype for b in (*operands, output)}
    # bytes and numbers of 8 bits are multiplied by kernels that want one order
    if len(output.shape) not in (2, 3) or len(types) != 1 or not _is_wide(output.dtype):
        return None
    return ProductSite(
        around=around,
        matrices=(left, right, output),
        added=tuple(operands[:-2]),
        lost=_lost_to_alignment(left, output, around),
        apart=_spent_on_calls(left, output, around),
    )


def _lost_to_alignment(left: Buffer, output: Buffer, around: Around) -> int:
    if output.dtype not in _HALVES or not around.targets.of(output.device).is_gpu:
        return 0
    flops = 2.0 * around.sizes.numel(output.shape) * around.sizes.value(left.shape[-1])
    figures = around.targets.of(output.device).machine.products
    us = flops / figures.unaligned_rate_1 - flops / figures.aligned_rate
    return int(us * around.bytes_per_us(output.device)) * SCALE


def _spent_on_calls(left: Buffer, output: Buffer, around: Around) -> int:
    """Return what a call for each matrix costs, where a CPU's library could take all of them at once."""
    *batch, rows, columns = around.extents(output)
    terms = rows * columns * around.sizes.value(left.shape[-1])
    target = around.targets.of(output.device)
    if not batch or target.is_gpu or output.dtype not in (DType.F32, DType.F64):
        return 0
    loops = target.machine.loops
    # of fewer terms it adds products itself, in any layout
    if terms < loops.least_library_terms:
        return 0
    return int(batch[0] * loops.matrix_call_us * around.bytes_per_us(output.device)) * SCALE


def _nest(captured: Sequence[int], inner: Sequence[int]) -> tuple[int, ...]:
    """`captured` with the dimensions `inner` innermost, in that order."""
    last = tuple(dict.fromkeys(reversed(inner)))[::-1]
    return (*(d for d in captured if d not in last), *last)


def _is_wide(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize > 1
