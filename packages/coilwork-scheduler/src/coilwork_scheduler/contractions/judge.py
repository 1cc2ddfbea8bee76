"""Whether a kernel of ours computes a product rather than the library: by bytes, and by what is known of either.

Libraries' products are hard to beat where they are bound by arithmetic. They read operands as they lie in memory, though: a
weight of 8 bits has to be widened into memory first, which with few rows moves several times the bytes of the product itself. There
a kernel that widens what it reads wins however well it multiplies: 61 us against 15 us for a copy of the weight, with 16 rows
of 4096 and 11008 columns on an H200.

Libraries' fast kernels also write rows of whole vectors only. A vocabulary of 50257 columns has them take 6.7 ms for what takes a
kernel of ours 1.1, and 0.9 where the rows are padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, bounds, provably_divisible
from coilwork_ir.loops import Graph, Pointwise, View
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, loads, postorder
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.contractions.product import Product
from coilwork_scheduler.cost import FULL_PROGRAMS, CostModel, KernelWork
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints

# Rows, or columns, up to which a product is bound by reading the other factor.
SKINNY: Final = 64
# Columns, or rows, that a program of a skinny product computes: twice its rows, so that it reads more of what is read once.
LEAST_STRIP: Final = 32
MOST_STRIP: Final = 128
# Operations per element that widen it, and nodes in a row that do, at most.
_WIDENING: Final = 16
_STEPS: Final = 4
# Terms of a sum's piece, at least.
_LEAST_PIECE: Final = 512
# Numbers of 16 bits in a vector. Floating point operations per microsecond of a library's product whose columns are a multiple
# of so many numbers and no more: of 1 and 2 measured on an H200 (50257 and 30522 columns), of 4 in proportion; and those of
# a kernel there.
_VECTOR: Final = 8
_LIBRARY: Final[Mapping[int, float]] = MappingProxyType({1: 9.5e7, 2: 1.8e8, 4: 3.6e8})
_KERNEL: Final = 5.2e8
# What a kernel must gain, as a share of the call's time and in microseconds.
_LEAST_SHARE: Final = 0.2
_LEAST_US: Final = 5.0
_MOST_PIECES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a kernel computes a product, in how many pieces, and why."""

    generated: bool
    pieces: int
    reason: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductJudge:
    """Judges the products of one graph. `views` are its views by the names of what they define."""

    graph: Graph
    facts: Dependence
    views: Mapping[str, View]
    targets: Targets
    model: CostModel
    sizes: SizeHints
    options: ScheduleOptions

    def verdict(self, product: Product) -> Verdict:
        """What is to become of `product`."""
        pieces = self._pieces(product)
        choice = self.options.contractions
        if choice == "generated":
            return Verdict(generated=True, pieces=pieces, reason="kernels are asked for", numbers={})
        if self._target(product).kind != "cuda" or self.options.numerics == "strict":
            return _call("no kernel is known to be faster", {})
        odd = self._odd_rows(product)
        if odd is not None:
            return odd
        widened = [b for b in (product.left, product.right) if self._narrower(b) < self._size(b)]
        rows, columns = (self.sizes.value(size) for size in product.sizes[:2])
        if not widened or min(rows, columns) > SKINNY:
            return _call("reads what lies in memory, as a library's product does", {})
        most = bounds(product.sizes[0 if rows <= columns else 1]).hi
        if most is None or most > SKINNY:
            # with many of them a kernel made for few reads the weight again and again
            return _call("how many rows there will be is open", {})
        if product.output.dtype is DType.F32 and min(rows, columns) > 1:
            return _call("matrix units do not multiply in f32", {})
        if (product.left if rows > columns else product.right) not in widened:
            return _call("what is widened is the smaller factor", {})
        copied = sum(self._narrower(b) + self._size(b) for b in widened)
        written = self._size(product.output)
        once = sum(self._size(b) for b in (product.left, product.right))
        narrow = sum(min(self._narrower(b), self._size(b)) for b in (product.left, product.right))
        call_us = self._us(copied, 0, 1 << 20) + self._us(once, written, 1 << 20)
        kernel_us = self._kernel_us(product, narrow, pieces)
        numbers = {"call_us": round(call_us, 3), "kernel_us": round(kernel_us, 3), "pieces": float(pieces)}
        if kernel_us >= call_us:
            return _call("widening into memory costs less than pieces do", numbers)
        reason = "widens what it reads, and moves fewer bytes"
        return Verdict(generated=True, pieces=pieces, reason=reason, numbers=numbers)

    def _odd_rows(self, product: Product) -> Verdict | None:
        """The verdict on a product whose rows are no whole vectors, if a kernel gains by it; None otherwise."""
        output = product.output
        rows, columns, inner = (self.sizes.value(size) for size in product.sizes)
        multiple = columns & -columns
        exact = as_int(product.sizes[1]) is not None and output.strides[-2] is product.sizes[1]
        if output.dtype.itemsize != 2 or not exact or multiple >= _VECTOR:
            return None
        if not all(_has_whole_rows(b) for b in (product.left, product.right)):
            return None
        operations = 2.0 * self.sizes.numel(product.batch) * rows * columns * inner
        moved_us = self._us(self._size(product.left) + self._size(product.right), self._size(output), 1 << 20)
        call_us = max(operations / _LIBRARY[multiple], moved_us)
        kernel_us = max(operations / _KERNEL, moved_us)
        if call_us - kernel_us < max(_LEAST_US, _LEAST_SHARE * call_us):
            return None
        numbers = {"call_us": round(call_us, 3), "kernel_us": round(kernel_us, 3)}
        reason = "stores rows that are no whole vectors, for which a library has slow kernels"
        return Verdict(generated=True, pieces=1, reason=reason, numbers=numbers)

    def _narrower(self, buffer: Buffer) -> int:
        """Bytes that computing `buffer` reads, if that is cheap and nobody writes into it; else its own."""
        found, cost = self._behind(buffer.name, _STEPS)
        return found if cost <= _WIDENING else self._size(buffer)

    def _behind(self, name: str, steps: int) -> tuple[int, int]:
        """The fewest bytes that computing buffer `name` reads, and the operations that takes per element."""
        while name in self.views:
            name = self.views[name].source
        own = self._size(self.facts.buffers[name])
        position = self.facts.definer.get(name)
        made = None if position is None else self.graph.nodes[position]
        if not steps or not isinstance(made, Pointwise) or made.into is not None or made.checks:
            return own, 0
        read = loads((made.body,))
        if any(a.indirect or a.mask is not None for a in read):
            return own, 0
        cost = sum(SCALAR_OPS[v.op].cost for v in postorder((made.body,)) if isinstance(v, Op))
        below = [self._behind(name, steps - 1) for name in sorted({a.buffer for a in read})]
        found = sum(size for size, _ in below)
        return (found, cost + sum(more for _, more in below)) if found < own else (own, 0)

    def _pieces(self, product: Product) -> int:
        """Pieces of the sums that fill the device; 1 where the product is not skinny, or long enough.

        The product with a vector is a reduction like others, which `split` cuts where that pays.
        """
        rows, columns = (self.sizes.value(size) for size in product.sizes[:2])
        exact = as_int(product.sizes[2])
        if (
            self.options.batch_invariant
            or not self._target(product).is_gpu
            or exact is None
            or not 1 < min(rows, columns) <= SKINNY
        ):
            return 1
        strips = self._strips(product)
        wanted = self._target(product).multiprocessors * FULL_PROGRAMS
        pieces = 1
        while (
            strips * pieces < wanted
            and pieces < _MOST_PIECES
            and exact % (2 * pieces) == 0
            and exact // (2 * pieces) >= _LEAST_PIECE
        ):
            pieces *= 2
        narrow = sum(self._size(b) for b in (product.left, product.right))
        pays = self._kernel_us(product, narrow, pieces) < self._kernel_us(product, narrow, 1)
        return pieces if pays else 1

    def _strips(self, product: Product) -> int:
        """Programs of one kernel: one per strip, or per result of a product with a vector."""
        rows, columns = (self.sizes.value(size) for size in product.sizes[:2])
        short, long = min(rows, columns), max(rows, columns)
        strip = min(MOST_STRIP, max(LEAST_STRIP, 2 * short)) if short > 1 else 1
        return self.sizes.numel(product.batch) * max(1, -(-long // strip))

    def _kernel_us(self, product: Product, read_bytes: float, pieces: int) -> float:
        """Time of a kernel that reads the factors, and of the one that adds its pieces."""
        strips, written = self._strips(product), self._size(product.output)
        if pieces == 1:
            return self._us(read_bytes, written, strips)
        results = self.sizes.numel(product.output.shape)
        parts = 4 * pieces * results
        return self._us(read_bytes, parts, strips * pieces) + self._us(parts, written, results)

    def _us(self, read_bytes: float, write_bytes: float, programs: int) -> float:
        return self.model.kernel_us(
            KernelWork(
                read_bytes=read_bytes,
                write_bytes=write_bytes,
                operations=0,
                rows=programs,
                row_length=2,
                programs=programs,
            )
        )

    def _target(self, product: Product) -> Target:
        return self.targets.of(product.output.device)

    def _size(self, buffer: Buffer) -> int:
        return self.sizes.size_bytes(buffer)


def _has_whole_rows(buffer: Buffer) -> bool:
    """Whether rows of `buffer`, a matrix in either order, start at multiples of a vector."""
    far, near = buffer.strides[-2:]
    if as_int(near) != 1:
        far, near = near, far
    return as_int(near) == 1 and provably_divisible(far, _VECTOR)


def _call(reason: str, numbers: Mapping[str, float]) -> Verdict:
    return Verdict(generated=False, pieces=1, reason=reason, numbers=numbers)
