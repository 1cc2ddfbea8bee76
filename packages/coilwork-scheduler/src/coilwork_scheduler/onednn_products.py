"""`call_onednn` has oneDNN multiply matrices in `f32` on CPUs, where ATen asks MKL.

ATen's `mm` and `addmm` are calls of MKL, whatever the processor; MKL has no AVX-512 kernels for those that
are not Intel's. Convolutions of one tap are such products as well to ATen where it has one thread. The
operator behind a frozen linear layer, `mkldnn::_linear_pointwise`, takes weights that are not packed, too: of
either order, and what it is to copy of them is little beside many sums. Its other operand is by rows, else it
makes a copy, which short sums do not repay. Its result is memory of its own, the pages of which the system
clears in each call if it is large.

The pass comes behind layouts, which choose among operands of ATen's calls: rows and columns are alike there,
and a convolution of one tap is a product of its pixels where its images are in channels-last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref
from coilwork_ir.device_traits import CPU_LIBRARIES
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_expr, as_int, symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, View, matrix_products
from coilwork_ir.machine.model import Loops
from coilwork_ir.scalar import load
from coilwork_scheduler.contractions import convolutions
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

_TARGET: Final = "mkldnn._linear_pointwise.default"
_SUM: Final = "aten.sum.dim_IntList"


def call_onednn(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with calls of oneDNN for products of known sizes that gain by it. Linear time.

    Results round as oneDNN rounds them: with `fast` numerics alone.
    """
    options = settings.options
    if not options.calls_onednn or options.numerics != "fast" or options.batch_invariant:
        return graph
    writer = _Writer(facts=facts, settings=settings, names=facts.fresh_names())
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        made = writer.replace(node) if isinstance(node, Extern) else None
        changed |= made is not None
        nodes += (node,) if made is None else made
    return replace(graph, nodes=tuple(nodes)) if changed else graph


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The numbers of `buffer` as a matrix; `strides` are those of its rows and columns."""

    buffer: str
    rows: int
    columns: int
    strides: tuple[int, int]

    @property
    def turned(self) -> _Matrix:
        """Its transpose, in the same memory."""
        return _Matrix(self.buffer, self.columns, self.rows, self.strides[::-1])

    @property
    def is_by_rows(self) -> bool:
        """Tell if its rows lie one behind the other."""
        return self.strides == (self.columns, 1)

    @property
    def is_by_columns(self) -> bool:
        """Tell if its columns lie one behind the other."""
        return self.strides == (1, self.rows)

    @property
    def size(self) -> int:
        """Numbers that it has."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes calls, and views and copies around them."""

    facts: Dependence
    settings: Settings
    names: FreshNames

    def replace(self, call: Extern) -> list[Node] | None:
        """Return the nodes that replace `call`; None if it stays."""
        made = [output for output in call.outputs if isinstance(output, Buffer)]
        if not made or len(made) < sum(output is not None for output in call.outputs):
            return None
        target = self.settings.targets.of(made[0].device)
        read = [self.facts.buffers[argument.name] for argument in call.args if isinstance(argument, Ref)]
        if not target.has(CPU_LIBRARIES) or any(b.dtype is not DType.F32 for b in (*read, *made)):
            return None
        if any(b.device != made[0].device for b in read):
            return None
        loops = target.machine.loops
        match call.implements:
            case matrix_products.PRODUCT:
                return self._replace_product(call, made[0], read, loops)
            case convolutions.FORWARD:
                return self._replace_convolution(call, made[0], loops)
            case convolutions.GRADIENTS:
                return self._replace_gradients(call, loops)
        return None

    def _replace_product(
        self, call: Extern, output: Buffer, read: list[Buffer], loops: Loops
    ) -> list[Node] | None:
        if call.kwargs or len(read) != len(call.args) or len(read) not in (2, 3) or len(output.shape) != 2:
            return None
        *added, left, right = map(_read_matrix, read)
        result = _read_matrix(output)
        bias = read[0] if added else None
        if left is None or right is None or result is None:
            return None
        return self._multiply(call, left, right, result, output, bias, loops)

    def _replace_convolution(self, call: Extern, output: Buffer, loops: Loops) -> list[Node] | None:
        value, weight, bias = call.args[:3]
        if not isinstance(value, Ref) or not isinstance(weight, Ref) or not _has_one_tap(call, 3):
            return None
        pixels, taps = self._read_pixels(value.name), self._read_weight(weight.name)
        result = _read_pixels(output)
        if pixels is None or taps is None or result is None:
            return None
        added = self.facts.buffers[bias.name] if isinstance(bias, Ref) else None
        return self._multiply(call, pixels, taps.turned, result, output, added, loops)

    def _replace_gradients(self, call: Extern, loops: Loops) -> list[Node] | None:
        """Products for the gradients of image and weight, and a sum for that of the bias.

        All of them or none: ATen lays operands out once for both.
        """
        gradient, value, weight = call.args[:3]
        names = [argument.name for argument in (gradient, value, weight) if isinstance(argument, Ref)]
        if len(names) < 3 or not _has_one_tap(call, 4) or len(call.outputs) != 3:
            return None
        given, pixels = map(self._read_pixels, names[:2])
        taps = self._read_weight(names[2])
        if given is None or pixels is None or taps is None:
            return None
        of_value, of_weight, of_bias = call.outputs
        nodes: list[Node] = []
        products = (
            (of_value, _read_pixels, given, taps),
            (of_weight, _read_weight, given.turned, pixels),
        )
        for output, read, left, right in products:
            if not isinstance(output, Buffer):
                continue
            result = read(output)
            if result is None:
                return None
            made = self._multiply(call, left, right, result, output, None, loops)
            if made is None:
                return None
            nodes += made
        if isinstance(of_bias, Buffer):
            axes = ListValue((0, *range(2, len(self.facts.buffers[names[0]].shape))))
            total = Extern(
                target=_SUM, args=(Ref(names[0]), axes), outputs=(of_bias,), fresh=True, origins=call.origins
            )
            nodes.append(total)
        return nodes

    def _read_pixels(self, name: str) -> _Matrix | None:
        return _read_pixels(self.facts.buffers[name])

    def _read_weight(self, name: str) -> _Matrix | None:
        return _read_weight(self.facts.buffers[name])

    def _multiply(
        self,
        call: Extern,
        left: _Matrix,
        right: _Matrix,
        result: _Matrix,
        output: Buffer,
        bias: Buffer | None,
        loops: Loops,
    ) -> list[Node] | None:
        """Nodes for `output`, which is `left` times `right`; None if `call` takes no longer."""
        terms = result.size * left.columns
        if (
            not result.size
            or terms < loops.least_onednn_terms
            or not _is_weight_as_it_lies(right)
            or not _is_weight_as_it_lies(left)
        ):
            return None
        if bias is not None and (len(bias.shape) != 1 or as_int(bias.shape[0]) != result.columns):
            return None
        # the same product turned around reads the right factor by rows, and makes columns
        plans = [(left, right, result)]
        if bias is None:
            plans.append((right.turned, left.turned, result.turned))
        costs = [
            (0 if first.is_by_rows else first.size) + (0 if made.is_by_rows else made.size)
            for first, _, made in plans
        ]
        copied = min(costs)
        if result.size > loops.kept_result and terms < result.size * loops.terms_of_result:
            self.settings.remarks.note(
                "onednn", (output.name,), False, "pages of a result of its own take what the sums save"
            )
            return None
        if terms < copied * loops.terms_of_copy:
            self.settings.remarks.note(
                "onednn", (output.name,), False, "copies of operands take what the sums save", copied=copied
            )
            return None
        self.settings.remarks.note(
            "onednn", (output.name,), True, "oneDNN multiplies in f32 faster than MKL", copied=copied
        )
        chosen = costs.index(copied)
        first, second, made = plans[chosen]
        return list(self._call(call, first, second, made, output, bias, is_turned=chosen == 1))

    def _call(
        self,
        call: Extern,
        left: _Matrix,
        right: _Matrix,
        result: _Matrix,
        output: Buffer,
        bias: Buffer | None,
        *,
        is_turned: bool,
    ) -> Iterator[Node]:
        """Yield the call with views of its operands, and `output` as a view or a copy of what it makes: that,
        or its transpose.
        """
        args: list[Argument] = []
        for operand in (left, right.turned):
            view = self._name(operand, output)
            yield View(output=view, source=operand.buffer, offset=as_expr(0), origins=call.origins)
            args.append(Ref(view.name))
        added: Argument = None if bias is None else Ref(bias.name)
        by_rows = replace(result, strides=(result.columns, 1))
        made = self._name(by_rows, output)
        yield Extern(
            target=_TARGET,
            args=(*args, added, "none", ListValue(()), ""),
            outputs=(made,),
            family="custom",
            fresh=True,
            origins=call.origins,
        )
        if result.is_by_rows:
            yield View(output=output, source=made.name, offset=as_expr(0), origins=call.origins)
            return
        yield self._copy(call, made, output, is_turned=is_turned)

    def _copy(self, call: Extern, made: Buffer, output: Buffer, *, is_turned: bool) -> Pointwise:
        """Return a kernel that lays the numbers of `made`, or of its transpose, out as `output` has them."""
        ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
        # of a matrix or a weight of one tap: two dimensions, and others of one element
        rows, columns = ranges[:2]
        value = load(made.name, (columns, rows) if is_turned else (rows, columns), made.dtype)
        return Pointwise(output=output, ranges=ranges, body=value, origins=call.origins)

    def _name(self, matrix: _Matrix, like: Buffer) -> Buffer:
        return replace(
            like,
            name=self.names.close_to(f"{matrix.buffer}_rows"),
            shape=(as_expr(matrix.rows), as_expr(matrix.columns)),
            strides=tuple(map(as_expr, matrix.strides)),
        )


def _is_weight_as_it_lies(matrix: _Matrix) -> bool:
    """Tell if oneDNN reads `matrix` as a weight as it lies."""
    return matrix.is_by_rows or matrix.is_by_columns


def _find_known_sizes(buffer: Buffer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sizes and strides of `buffer`; None if one is open."""
    shape, strides = (tuple(map(as_int, numbers)) for numbers in (buffer.shape, buffer.strides))
    sizes, steps = [n for n in shape if n is not None], [n for n in strides if n is not None]
    return (tuple(sizes), tuple(steps)) if len(sizes) == len(steps) == len(shape) else None


def _read_matrix(buffer: Buffer) -> _Matrix | None:
    """Return `buffer` as a matrix, if it is one of several rows and columns and of known sizes."""
    known = _find_known_sizes(buffer)
    if known is None or len(buffer.shape) != 2 or min(known[0]) < 2:
        return None
    (rows, columns), (far, near) = known
    return _Matrix(buffer.name, rows, columns, (far, near))


def _read_pixels(buffer: Buffer) -> _Matrix | None:
    """Return images as a matrix whose rows are the channels of a pixel, if they lie in channels-last."""
    known = _find_known_sizes(buffer)
    if known is None or len(buffer.shape) < 3 or 0 in known[0]:
        return None
    shape, strides = known
    step = shape[1]
    for dim in (*range(len(shape) - 1, 1, -1), 0):
        if shape[dim] > 1 and strides[dim] != step:
            return None
        step *= shape[dim]
    if shape[1] < 2 or strides[1] != 1 or prod(shape) == shape[1]:
        return None
    return _Matrix(buffer.name, prod(shape) // shape[1], shape[1], (shape[1], 1))


def _read_weight(buffer: Buffer) -> _Matrix | None:
    """Return the weight of one tap as a matrix of a row for each feature."""
    known = _find_known_sizes(buffer)
    if known is None or len(buffer.shape) < 3 or prod(known[0][2:]) != 1 or min(known[0][:2]) < 2:
        return None
    shape, strides = known
    return _Matrix(buffer.name, shape[0], shape[1], (strides[0], strides[1]))


def _has_one_tap(call: Extern, at: int) -> bool:
    """Tell if windows of the convolution, whose numbers begin at argument `at`, are single pixels.

    That the weight has one tap shows in its shape.
    """
    stride, padding, _, transposed, _, groups = call.args[at : at + 6]
    if not isinstance(stride, ListValue) or not isinstance(padding, ListValue):
        return False
    is_whole = all(n == 1 for n in stride.items) and all(n == 0 for n in padding.items)
    return is_whole and transposed is False and groups == 1
