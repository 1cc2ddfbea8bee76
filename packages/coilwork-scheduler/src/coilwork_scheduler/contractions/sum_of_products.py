"""A contraction as loops: the sum of products, in pieces if so wanted, and the epilogue of what is summed.

The loops are reductions and pointwise nodes like others: what computes a factor is inlined into the sum, and
what follows is fused behind it. A reduction of this form is what matrix units compute:
`known.contraction_of`, and `kernels/contraction.py` on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, extent_of, floordiv, symbol
from coilwork_ir.loops import Contraction, Node, Pointwise, Reduce, View
from coilwork_ir.scalar import (
    Load,
    Parameter,
    Scalar,
    cast,
    const,
    index_value,
    load,
    op,
    parameter,
    rewrite,
    substitute_ranges,
)
from coilwork_scheduler.contractions.grouped_sums import ungroup
from coilwork_scheduler.contractions.through_views import element


@dataclass(frozen=True, slots=True, kw_only=True)
class SumBuilder:
    """Builds the loops of one graph's contractions.

    Attributes:
        buffers: those of the graph, by name.
        views: its views, by the names of what they define.
        name: gives fresh names for buffers.
        least: with 2, a single row or column gets another one beside it, of zeros: a product of a matrix with
            a vector would be a sum in another order.
        round_first: the sum is rounded before the epilogue computes with it: whether torch adds a bias within
            a product or behind it depends on strides.
    """

    buffers: Mapping[str, Buffer]
    views: Mapping[str, View]
    name: Callable[[str], str]
    least: int = 1
    round_first: bool = False

    def build(self, node: Contraction, *, pieces: int = 1) -> tuple[Node, ...]:
        """The nodes that compute `node`: sums, in `pieces` of equal length along its only axis, and the
        epilogue.
        """
        before, node = ungroup(node, self.buffers, self.name)
        nodes: list[Node] = [*before]
        output, origins = node.output, node.origins
        # the product with a vector has rows alone, and is a sum in one order anyhow
        last = frozenset(node.ranges[-2:]) if len(node.ranges) > 1 else frozenset()
        single = {r for r in last if as_int(extent_of(r)) == 1 and self.least > 1}
        ranges = tuple(symbol(r.name, extent=self.least) if r in single else r for r in node.ranges)
        length = extent_of(node.axes[0])
        axes, at = node.axes, {r: as_expr(0) for r in single}
        piece = symbol("piece", extent=pieces)
        if pieces > 1:
            axes = (symbol(node.axes[0].name, extent=floordiv(length, pieces)), *node.axes[1:])
            at[node.axes[0]] = piece * floordiv(length, pieces) + axes[0]
        factors = []
        for factor, moved in zip((node.left, node.right), self._moved(node, single, ranges), strict=True):
            (value,) = substitute_ranges((factor,), at)
            factors.append(_beside(self._through_views(value), moved))
        body = op("mul", *(cast(factor, node.accumulate) for factor in factors))
        is_plain = node.epilogue is parameter(0, output.dtype) and not single
        shape = tuple(extent_of(r) for r in ranges)
        total = output if is_plain else self._sums(node, f"{output.name}_sums", shape)
        if pieces == 1:
            nodes.append(
                Reduce(outputs=(total,), kind="sum", ranges=ranges, axes=axes, body=body, origins=origins)
            )
        else:
            parts = self._sums(node, f"{output.name}_pieces", (as_expr(pieces), *output.shape))
            over = (piece, *ranges)
            nodes.append(
                Reduce(outputs=(parts,), kind="sum", ranges=over, axes=axes, body=body, origins=origins)
            )
            again = load(parts.name, over, node.accumulate)
            nodes.append(
                Reduce(
                    outputs=(total,), kind="sum", ranges=ranges, axes=(piece,), body=again, origins=origins
                )
            )
        if not is_plain:
            value = self._epilogue(node, total)
            nodes.append(Pointwise(output=output, ranges=node.ranges, body=value, origins=origins))
        return tuple(nodes)

    def _moved(
        self, node: Contraction, single: set[Expr], ranges: tuple[Expr, ...]
    ) -> tuple[Expr | None, Expr | None]:
        """The range of each factor's rows or columns that got zeros beside it."""
        if not single:
            return None, None
        row, column = (
            wide if own in single else None for own, wide in zip(node.ranges[-2:], ranges[-2:], strict=True)
        )
        return row, column

    def _sums(self, node: Contraction, name: str, shape: tuple[Expr, ...]) -> Buffer:
        return replace(
            node.output,
            name=self.name(name),
            dtype=node.accumulate,
            shape=shape,
            strides=contiguous_strides(shape),
        )

    def _epilogue(self, node: Contraction, total: Buffer) -> Scalar:
        """The value stored at a point: the epilogue of the sum in `total`."""
        summed: Scalar = load(total.name, node.ranges, node.accumulate)
        if self.round_first and node.epilogue is not cast(parameter(0, node.accumulate), node.epilogue.dtype):
            summed = cast(cast(summed, node.output.dtype), node.accumulate)
        (value,) = rewrite(
            (node.epilogue,), lambda scalar: summed if isinstance(scalar, Parameter) else scalar
        )
        return self._through_views(value)

    def _through_views(self, value: Scalar) -> Scalar:
        """`value` with its loads, but those of what is built here, where the memory that they view lies."""

        def visit(scalar: Scalar) -> Scalar:
            if not isinstance(scalar, Load) or scalar.indirect or scalar.mask is not None:
                return scalar
            if scalar.buffer not in self.buffers:
                return scalar
            return element(self.buffers[scalar.buffer], scalar.index, self.buffers, self.views)

        (made,) = rewrite((value,), visit)
        return made


def _beside(factor: Scalar, at: Expr | None) -> Scalar:
    """`factor`, or 0 behind its only row or column along `at`, if it has a single one."""
    if at is None:
        return factor
    first = op("lt", index_value(at), const(1, DType.I64))
    return op("where", first, factor, const(0, factor.dtype))
