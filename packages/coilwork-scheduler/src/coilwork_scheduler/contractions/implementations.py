"""The ways to compute a product of matrices: calls of libraries, and kernels that are sums of products.

Each is one row of `IMPLEMENTATIONS`. An implementation says why it cannot compute a product (`claims`), what
it costs (`quote`), and what nodes it is (`build`). The pass in `choose.py` asks all of them and takes the
cheapest. A new library or template is a class and a row.

Libraries' products are hard to beat where arithmetic bounds them. They read operands as they lie in memory,
though: a weight of 8 bits has to be widened into memory first, which with few rows moves several times the
bytes of the product itself. A kernel that widens what it reads wins there, however well it multiplies: 61 us
against 15 us for a copy of the weight, with 16 rows of 4096 and 11008 columns on an H200. Libraries' fast
kernels also write rows of whole vectors only: a vocabulary of 50257 columns takes them 6.7 ms, and a kernel
of ours 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import ClassVar, Final, Literal, Protocol, TypeVar, runtime_checkable

from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.device_traits import CUBLAS
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, find_bounds, provably_divisible
from coilwork_ir.kernels import Candidate, Kernel
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, View
from coilwork_ir.loops.matrix_products import BATCHED_PRODUCT, PRODUCT, MatrixProduct
from coilwork_ir.machine.model import Products
from coilwork_ir.mapping.product_blocks import (
    COPY_ENGINE,
    LEAST_SIDE,
    PLAIN,
    Finish,
    Work,
    best_blocks_us,
    is_bound_by_memory,
    is_skinny,
    model_turns_us,
    propose_candidates,
)
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, find_contraction, iterate_postorder, list_loads
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.contractions.sum_of_products import SumBuilder
from coilwork_scheduler.cost_model import CostModel, KernelWork, SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.options import ScheduleOptions

# Operations per element that widen it, and nodes in a row that do, at most.
_WIDENING: Final = 16
_STEPS: Final = 4
NO_NUMBERS: Final[Mapping[str, float]] = MappingProxyType({})
_HALVES: Final = frozenset({DType.F16, DType.BF16})
# Not a wider float but for its last bits, as `float8_e5m2` is.
_TAKEN_APART: Final = frozenset({DType.F8E4M3, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ})
_KERNEL_TYPES: Final = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The cost of a form under one implementation.

    Attributes:
        us: microseconds, as modelled; infinity where it is not known to be worth it.
        reason: why it is worth it, or why that is not known.
        numbers: the figures that a decision is recorded with.
    """

    us: float
    reason: str = ""
    numbers: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)


FormT = TypeVar("FormT", contravariant=True)


class Implementation(Protocol[FormT]):
    """A way to compute nodes of one form: products of matrices, or convolutions."""

    @property
    def kind(self) -> Literal["library", "kernel"]:
        """A call of a library, or kernels of ours."""
        ...

    @property
    def loss(self) -> str:
        """Why it is not chosen where it takes longer."""
        ...

    def claims(self, form: FormT, target: Target, /) -> str | None:
        """Why it does not compute `form` on `target`; None if it does."""
        ...

    def quote(self, form: FormT, target: Target, /) -> Quote:
        """Cost of `form`, which it claims, on `target`. Pure, and as cheap as a cost model."""
        ...

    def least_gain_us(self, form: FormT, rival: Quote, /) -> float:
        """Return the gain over `rival` from which on it is chosen: models err."""
        ...

    def build(self, form: FormT, target: Target, /) -> tuple[Node, ...]:
        """Return the nodes that compute `form`."""
        ...


@runtime_checkable
class NamesBlocks(Protocol):
    """An implementation that also says how the kernels of its sums run."""

    def name_blocks(self, kernel: Kernel, target: Target, /) -> tuple[Candidate, ...]:
        """Return the blocks that `kernel`, which adds products that it built, is to run in, best guess first.

        It sees the kernel with its prologues and its epilogue. None: the generator decides.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationContext:
    """Facts about the graph that implementations are asked about.

    Attributes:
        graph, facts: the graph, and what is known of it.
        views: its views, by the names of what they define.
        name: gives fresh names for buffers.
        targets: the devices.
        model, sizes, options: what things cost, for which sizes, and what was asked for.
    """

    graph: Graph
    facts: Dependence
    views: Mapping[str, View]
    name: Callable[[str], str]
    targets: Targets
    model: CostModel
    sizes: SizeHints
    options: ScheduleOptions

    def size(self, buffer: Buffer) -> int:
        """Bytes of `buffer`."""
        return self.sizes.size_bytes(buffer)

    def move_us(self, read_bytes: float, write_bytes: float, programs: int = 1 << 20) -> float:
        """Time of a kernel that moves so many bytes."""
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

    def flops(self, product: MatrixProduct) -> float:
        """Additions and multiplications."""
        rows, columns, inner = (self.sizes.value(size) for size in product.sizes)
        return 2.0 * self.sizes.numel(product.batch) * rows * columns * inner

    def narrow_size(self, buffer: Buffer) -> int:
        """Bytes that computing `buffer` reads, if that is cheap and nobody writes into it; else its own."""
        found, cost = self._count_source_bytes(buffer.name, _STEPS)
        return found if cost <= _WIDENING else self.size(buffer)

    def find_widened(self, product: MatrixProduct) -> list[Buffer]:
        """Return the factors that are computed from fewer bytes than they have."""
        return [b for b in (product.left, product.right) if self.narrow_size(b) < self.size(b)]

    def find_read_types(self, buffer: Buffer) -> frozenset[DType]:
        """Return the types of the inputs that `buffer` is computed from. None at all if it is computed from
        anything else, or from less than a byte for each of its numbers.
        """
        found: set[DType] = set()
        if self.narrow_size(buffer) < self.sizes.numel(buffer.shape):
            return frozenset()
        pending = [buffer.name]
        while pending:
            name = pending.pop()
            if (view := self.views.get(name)) is not None:
                pending.append(view.source)
            elif (position := self.facts.definer.get(name)) is not None:
                made = self.graph.nodes[position]
                if not isinstance(made, Pointwise):
                    return frozenset()
                accesses = list_loads((made.body,))
                if any(a.indirect or a.mask is not None for a in accesses):
                    return frozenset()
                pending += [a.buffer for a in accesses]
            else:
                found.add(self.facts.buffers[name].dtype)
        return frozenset(found)

    def widen_us(self, product: MatrixProduct) -> float:
        """Time to lay out in memory the factors that are computed from fewer bytes; 0 if none is."""
        copied = sum(self.narrow_size(b) + self.size(b) for b in self.find_widened(product))
        return self.move_us(copied, 0) if copied else 0.0

    def count_summand_loads(self, product: MatrixProduct) -> float:
        """Bytes that are read of the product's summand, as a share of the result's; 0 if it is a row."""
        if product.added is None or len(product.added.shape) < 2:
            return 0.0
        return self.size(product.added) / max(1, self.size(product.output))

    def has_odd_columns(self, product: MatrixProduct, target: Target) -> bool:
        """Tell if 16-bit rows of the result are known to be no whole vectors, while those of the
        factors are.
        """
        output, columns = product.output, product.sizes[1]
        multiple = self.sizes.value(columns) & -self.sizes.value(columns)
        exact = as_int(columns) is not None and output.strides[-2] is columns
        vector = target.machine.products.halves_per_vector
        if output.dtype.itemsize != 2 or not exact or multiple >= vector:
            return False
        return all(_has_whole_rows(b, vector) for b in (product.left, product.right))

    def has_whole_rows(self, product: MatrixProduct, target: Target) -> bool:
        """Tell if rows of the factors are whole vectors."""
        vector = target.machine.products.halves_per_vector
        return all(_has_whole_rows(b, vector) for b in (product.left, product.right))

    def product_us(
        self, product: MatrixProduct, target: Target, *, sums: int = 1, finish: Finish = PLAIN
    ) -> float:
        """Time of a kernel of ours for `product` in 16 bits, or for `sums` alike that share a factor, and for
        what becomes of them.
        """
        work, figures = self._work_of(product, sums), target.machine.product_kernels
        memory_us = self._memory_us(product, self._find_share(work, target), sums)
        epilogue_us = finish.operations / figures.epilogue_operations
        more = finish.loads + finish.stores - 1
        if more:
            epilogue_us += self.move_us(int(more * self.size(product.output)), 0) - self.move_us(0, 0)
        if is_bound_by_memory(work.rows, work.columns, work.length, target):
            return memory_us + epilogue_us
        if work.others > 1 or not target.has(COPY_ENGINE):
            loaded_us = self.flops(product) * sums / figures.loaded_rate + figures.start_us
            return max(memory_us, loaded_us) + epilogue_us
        return max(memory_us, best_blocks_us(work, target, finish))

    def _find_share(self, work: Work, target: Target) -> float:
        """Share of the bandwidth that a kernel of ours for `work` moves, if memory bounds it."""
        figures, products = target.machine.product_kernels, target.machine.products
        if work.others > 1 or not is_skinny(work.rows, work.columns, target):
            return figures.memory_share
        strips = max(work.rows, work.columns) // products.least_strip
        is_full = strips >= target.multiprocessors * target.machine.launches.full_programs
        is_read_once = is_full and min(work.rows, work.columns) <= LEAST_SIDE
        return figures.few_rows_memory_share if is_read_once else figures.skinny_memory_share

    def call_us(self, product: MatrixProduct, target: Target) -> float:
        """Time of a library's call for `product` in 16 bits, at its best."""
        figures = target.machine.product_kernels
        work = self._work_of(product, 1)
        is_small = work.others > 1 and min(work.rows, work.columns) <= target.machine.products.skinny_rows
        share = figures.small_call_share if is_small else figures.call_memory_share
        memory_us = self._memory_us(product, share, 1)
        if is_bound_by_memory(work.rows, work.columns, work.length, target):
            return memory_us
        whole_us = self.flops(product) / figures.call_rate + figures.call_start_us
        return max(memory_us, min(whole_us, model_turns_us(work, target)))

    def _memory_us(self, product: MatrixProduct, share: float, sums: int) -> float:
        """Time to move factors, of which the smaller one is shared, and one result at a share of the
        bandwidth.
        """
        shared, other = sorted(self.size(b) for b in (product.left, product.right))
        launch_us = self.move_us(0, 0)
        moved_us = self.move_us(shared + sums * other, self.size(product.output)) - launch_us
        return launch_us + moved_us / share

    def _work_of(self, product: MatrixProduct, sums: int) -> Work:
        rows, columns, length = (self.sizes.value(size) for size in product.sizes)
        return Work(
            rows=rows,
            columns=columns,
            length=length,
            left_bytes=product.left.dtype.itemsize,
            right_bytes=product.right.dtype.itemsize * sums,
            dtype=product.output.dtype,
            sums=sums,
            others=self.sizes.numel(product.batch),
        )

    def sums(self, target: Target) -> SumBuilder:
        """Return the builder of contractions as loops."""
        return SumBuilder(
            buffers=self.facts.buffers,
            views=self.views,
            name=self.name,
            least=2 if self.options.batch_invariant and target.is_gpu else 1,
            round_first=self.options.batch_invariant,
        )

    def _count_source_bytes(self, name: str, steps: int) -> tuple[int, int]:
        """Return the fewest bytes that computing buffer `name` reads, and the operations that takes per
        element.
        """
        while name in self.views:
            name = self.views[name].source
        own = self.size(self.facts.buffers[name])
        position = self.facts.definer.get(name)
        made = None if position is None else self.graph.nodes[position]
        if not steps or not isinstance(made, Pointwise) or made.into is not None or made.checks:
            return own, 0
        read = list_loads((made.body,))
        if any(a.indirect or a.mask is not None for a in read):
            return own, 0
        cost = sum(SCALAR_OPS[v.op].cost for v in iterate_postorder((made.body,)) if isinstance(v, Op))
        below = [self._count_source_bytes(name, steps - 1) for name in sorted({a.buffer for a in read})]
        found = sum(size for size, _ in below)
        return (found, cost + sum(more for _, more in below)) if found < own else (own, 0)


@dataclass(frozen=True, slots=True)
class AtenCall:
    """A call of ATen's `mm`, `bmm`, `addmm`, `baddbmm` or `_int_mm`, which ask cuBLAS, cuBLASLt, MKL or
    oneDNN.
    """

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "library"
    loss: ClassVar[str] = ""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies matrices of one type, and bytes into integers of 32 bits."""
        if not product.is_plain:
            return "it multiplies matrices, and adds to them at most"
        types = {b.dtype for b in (product.left, product.right, product.added) if b is not None}
        if any(b.device != product.output.device for b in (product.left, product.right)):
            return "operands are on several devices"
        if types == {product.output.dtype} or _is_of_bytes(product):
            return None
        return (
            f"ATen multiplies no {', '.join(sorted(t.text for t in types))} into {product.output.dtype.text}"
        )

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Return the time to lay widened factors out in memory, then the longer of memory and, where that is
        known, arithmetic.
        """
        context = self.context
        once = sum(context.size(b) for b in (product.left, product.right))
        us = context.move_us(once, context.size(product.output))
        if context.has_odd_columns(product, target):
            columns = context.sizes.value(product.sizes[1])
            us = max(us, context.flops(product) / target.machine.products.unaligned_rate(columns))
        elif target.has(CUBLAS) and product.output.dtype in _HALVES:
            us = max(us, context.call_us(product, target))
        us += context.widen_us(product) + self._copy_us(product)
        return Quote(us=us, numbers={"call_us": round(us, 3)})

    def _copy_us(self, product: MatrixProduct) -> float:
        """Time to copy what is added into the result beforehand. A row of it is added by the library's
        kernel.
        """
        context, added = self.context, product.added
        if added is None or (len(added.shape) == 1 and not product.batch and not product.is_weighted):
            return 0.0
        launch_us = context.move_us(0, 0)
        return context.move_us(context.size(added), context.size(product.output)) - launch_us

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """0: it is what others are measured against."""
        return 0.0

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Return the call, which writes into given memory."""
        is_batched = len(product.output.shape) == 3
        operands: tuple[Argument, ...] = (Ref(product.left.name), Ref(product.right.name))
        name = "_int_mm" if _is_of_bytes(product) else "bmm" if is_batched else "mm"
        # a library's plans multiply floats of one type
        implements = "" if _is_of_bytes(product) else BATCHED_PRODUCT if is_batched else PRODUCT
        kwargs: list[tuple[str, Argument]] = []
        if product.added is not None:
            operands = (Ref(product.added.name), *operands)
            name = "baddbmm" if is_batched else "addmm"
            weights = (("beta", product.beta), ("alpha", product.alpha))
            kwargs = [(key, weight) for key, weight in weights if weight != 1]
        call = Extern(
            target=f"aten.{name}.default",
            args=operands,
            kwargs=tuple(kwargs),
            outputs=(product.output,),
            out_overload=f"aten.{name}.out",
            out_names=("out",),
            implements=implements,
            fresh=True,
            origins=product.node.origins,
        )
        return (call,)


@dataclass(frozen=True, slots=True)
class SumsOfProducts:
    """A kernel of ours that adds products, in pieces that fill the device: what is chosen where kernels are
    asked for.
    """

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "kernel"
    loss: ClassVar[str] = ""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies floats of one type, and adds what is not weighted."""
        if not product.is_plain:
            return "no kernel is known for vectors, scales and activations"
        output = product.output
        operands = [b for b in (product.left, product.right, product.added) if b is not None]
        if output.dtype not in _KERNEL_TYPES or any(b.dtype is not output.dtype for b in operands):
            return "kernels multiply f32, f16 and bf16"
        if any(b.device != output.device for b in operands):
            return "operands are on several devices"
        return "a weighted sum is the library's" if product.is_weighted else None

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Unknown: kinds of it say where they are known to be fast."""
        return Quote(us=inf, reason="no kernel is known to be faster")

    def _memory_quote(self, product: MatrixProduct, target: Target, reason: str) -> Quote:
        """Return the time to read the factors from where they are computed, and to add the pieces."""
        context, pieces = self.context, self._pieces(product, target)
        narrow = sum(min(context.narrow_size(b), context.size(b)) for b in (product.left, product.right))
        us = self._kernel_us(product, target.machine.products, narrow, pieces)
        return Quote(us=us, reason=reason, numbers={"kernel_us": round(us, 3), "pieces": float(pieces)})

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """0: bytes that are not moved are a sure gain."""
        return 0.0

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Loops like others."""
        pieces = self._pieces(product, target)
        return self.context.sums(target).build(product.node, pieces=pieces)

    def name_blocks(self, kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
        """Blocks by the product's sides and the device, on GPUs."""
        is_product = find_contraction(list_kernel_roots(kernel)) is not None
        return propose_candidates(kernel, target) if is_product else ()

    def _pieces(self, product: MatrixProduct, target: Target) -> int:
        """Pieces of the sums that fill the device; 1 where the product is not skinny, or long enough.

        The product with a vector is a reduction like others, which `split` cuts where that pays.
        """
        products = target.machine.products
        context = self.context
        rows, columns = (context.sizes.value(size) for size in product.sizes[:2])
        exact = as_int(product.sizes[2])
        if (
            context.options.batch_invariant
            or not target.is_gpu
            or exact is None
            or not 1 < min(rows, columns) <= products.skinny_rows
        ):
            return 1
        strips = self._strips(product, products)
        wanted = target.multiprocessors * target.machine.launches.full_programs
        pieces = 1
        while (
            strips * pieces < wanted
            and pieces < products.most_pieces
            and exact % (2 * pieces) == 0
            and exact // (2 * pieces) >= products.least_piece
        ):
            pieces *= 2
        once = sum(context.size(b) for b in (product.left, product.right))
        pieces_us = self._kernel_us(product, products, once, pieces)
        pays = pieces_us < self._kernel_us(product, products, once, 1)
        return pieces if pays else 1

    def _strips(self, product: MatrixProduct, products: Products) -> int:
        """Programs of one kernel: one per strip, or per result of a product with a vector."""
        rows, columns = (self.context.sizes.value(size) for size in product.sizes[:2])
        short, long = min(rows, columns), max(rows, columns)
        strip = min(products.most_strip, max(products.least_strip, 2 * short)) if short > 1 else 1
        return self.context.sizes.numel(product.batch) * max(1, -(-long // strip))

    def _kernel_us(self, product: MatrixProduct, products: Products, read_bytes: float, pieces: int) -> float:
        """Time of a kernel that reads the factors, and of the one that adds its pieces."""
        context = self.context
        strips, written = self._strips(product, products), context.size(product.output)
        if pieces == 1:
            return context.move_us(read_bytes, written, strips)
        results = context.sizes.numel(product.output.shape)
        parts = 4 * pieces * results
        return context.move_us(read_bytes, parts, strips * pieces) + context.move_us(parts, written, results)


@dataclass(frozen=True, slots=True)
class WideningSums(SumsOfProducts):
    """Sums of products that widen a narrow factor as they read it, instead of a copy of it in memory."""

    loss: ClassVar[str] = "widening into memory costs less than pieces do"

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Return the time that its memory traffic takes, where that is what bounds it."""
        unknown = self._unknown(product, target)
        if unknown:
            return Quote(us=inf, reason=unknown)
        return self._memory_quote(product, target, "widens what it reads, and moves fewer bytes")

    def _unknown(self, product: MatrixProduct, target: Target) -> str:
        context, dtype = self.context, product.output.dtype
        if context.options.numerics == "strict" or (target.is_gpu and not target.has(CUBLAS)):
            return "no kernel is known to be faster"
        widened = context.find_widened(product)
        rows, columns = (context.sizes.value(size) for size in product.sizes[:2])
        larger = product.left if rows > columns else product.right
        read = frozenset[DType]() if target.is_gpu else context.find_read_types(larger)
        skinny = self._most_rows(dtype, read, target)
        if not widened or min(rows, columns) > skinny:
            return "reads what lies in memory, as a library's product does"
        most = find_bounds(product.sizes[0 if rows <= columns else 1]).hi
        if most is None or most > skinny:
            # with many of them a kernel made for few reads the weight again and again
            return "how many rows there will be is open"
        if target.is_gpu and dtype is DType.F32 and min(rows, columns) > 1:
            return "matrix units do not multiply in f32"
        if larger not in widened:
            return "what is widened is the smaller factor"
        if not (target.is_gpu or read):
            return "CPUs take bytes apart one by one"
        return ""

    def _most_rows(self, dtype: DType, read: frozenset[DType], target: Target) -> int:
        """Rows up to which reading the weight, of types `read`, bounds the kernel, or which a CPU multiplies
        fast enough.
        """
        if target.is_gpu:
            return target.machine.products.skinny_rows
        loops, is_half = target.machine.loops, dtype.itemsize == 2
        if read & _TAKEN_APART:
            return loops.float8_rows_16 if is_half else loops.float8_rows_32
        return loops.widened_rows_16 if is_half else loops.widened_rows_32


@dataclass(frozen=True, slots=True)
class OddColumnSums(SumsOfProducts):
    """Sums of products whose rows are no whole vectors, for which libraries have slow kernels."""

    loss: ClassVar[str] = "a library's slow kernel takes hardly longer"

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Return the longer of memory and arithmetic; a factor that is widened is laid out in memory for it
        as for a call.
        """
        context = self.context
        if not target.has(CUBLAS) or context.options.numerics == "strict":
            return Quote(us=inf, reason="no kernel is known to be faster")
        if not context.has_odd_columns(product, target):
            return Quote(us=inf, reason="rows of the result are whole vectors")
        us = context.product_us(product, target) + context.widen_us(product)
        reason = "stores rows that are no whole vectors, for which a library has slow kernels"
        return Quote(us=us, reason=reason, numbers={"kernel_us": round(us, 3)})

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """Return a share of the rival's time, but for widening: a kernel's rate is one that was measured
        elsewhere.
        """
        products = self.context.targets.of(product.output.device).machine.products
        rival_us = rival.us - self.context.widen_us(product)
        return max(products.least_gain_us, products.least_gain_share * rival_us)

    def _pieces(self, product: MatrixProduct, target: Target) -> int:
        return 1


IMPLEMENTATIONS: Final[tuple[Callable[[ImplementationContext], Implementation[MatrixProduct]], ...]] = (
    AtenCall,
    SumsOfProducts,
    OddColumnSums,
    WideningSums,
)
"""The registry's rows for products.

Among implementations that are worth it an earlier one is taken before later ones.
"""


def _is_of_bytes(product: MatrixProduct) -> bool:
    """True for signed bytes that are multiplied into integers of 32 bits, as quantised models do."""
    plain = product.added is None and not product.is_weighted and len(product.output.shape) == 2
    types = (product.left.dtype, product.right.dtype, product.output.dtype)
    return plain and types == (DType.I8, DType.I8, DType.I32)


def _has_whole_rows(buffer: Buffer, vector: int) -> bool:
    """Tell if rows of `buffer`, a matrix in either order, start at multiples of `vector` elements."""
    far, near = buffer.strides[-2:]
    if as_int(near) != 1:
        far, near = near, far
    return as_int(near) == 1 and provably_divisible(far, vector)
