"""Contractions in the form that libraries of matrix products take: two matrices as they lie in memory, and what is added to them.

`make_product` builds such a node, `matrix_product_of` reads one back. Lowering builds products so; implementations that are calls of a
library claim what is of this form, and nobody looks at the name of an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, as_int, symbol
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.nodes import Contraction
from coilwork_ir.scalar import Const, Load, Op, Parameter, Scalar, cast, const, load, op, parameter
from coilwork_ir.scalar.nodes import Literal_


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`output = alpha * (left @ right) + beta * added`.

    Shapes: `left` is `[batch, m, k]`, `right` `[batch, k, n]`, `output` `[batch, m, n]`, without batch where there is none;
    `added` is broadcast to the output's shape.
    """

    node: Contraction
    left: Buffer
    right: Buffer
    added: Buffer | None
    alpha: Literal_
    beta: Literal_

    @property
    def output(self) -> Buffer:
        """The buffer that the product is stored in."""
        return self.node.output

    @property
    def batch(self) -> tuple[Expr, ...]:
        """Extents of the batch: one or none."""
        return self.output.shape[:-2]

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr]:
        """Rows, columns and the length of the sums."""
        return self.output.shape[-2], self.output.shape[-1], self.left.shape[-1]

    @property
    def is_weighted(self) -> bool:
        """True if the product or what is added to it is multiplied by another number than 1."""
        return self.alpha != 1 or self.beta != 1


def make_product(
    output: Buffer,
    left: Buffer,
    right: Buffer,
    added: Buffer | None = None,
    *,
    alpha: Literal_ = 1,
    beta: Literal_ = 1,
    origins: tuple[Origin, ...] = UNKNOWN,
) -> Contraction:
    """`output = alpha * (left @ right) + beta * added`, of shapes as in `MatrixProduct`, rounded once, at the end.

    Sums are in the type that arithmetic on the output's type is carried out in.
    """
    accumulate = output.dtype.compute
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
    *batch, row, column = ranges
    axis = symbol("r0", extent=left.shape[-1])
    value: Scalar = _weighted(parameter(0, accumulate), alpha)
    if added is not None:
        term = load(added.name, _broadcast_index(added, output, ranges), added.dtype)
        value = op("add", value, _weighted(cast(term, accumulate), beta))
    return Contraction(
        output=output,
        ranges=ranges,
        axes=(axis,),
        left=load(left.name, (*batch, row, axis), left.dtype),
        right=load(right.name, (*batch, axis, column), right.dtype),
        accumulate=accumulate,
        epilogue=cast(value, output.dtype),
        origins=origins,
    )


def matrix_product_of(node: Contraction, buffers: Mapping[str, Buffer]) -> MatrixProduct | None:
    """`node` as `make_product` makes it, of `buffers`; None if it has another form."""
    left, right, (value, alpha) = node.left, node.right, _without_weight(_unwidened(node.epilogue))
    if not isinstance(left, Load) or not isinstance(right, Load) or len(node.output.shape) not in (2, 3):
        return None
    added: Buffer | None = None
    beta: Literal_ = 1
    if isinstance(value, Op) and value.op == "add":
        (value, alpha), (term, beta) = (_without_weight(operand) for operand in value.operands)
        term = _unwidened(term)
        if not isinstance(term, Load):
            return None
        added = buffers[term.buffer]
    if not isinstance(value, Parameter):
        return None
    found = MatrixProduct(
        node=node,
        left=buffers[left.buffer],
        right=buffers[right.buffer],
        added=added,
        alpha=alpha,
        beta=beta,
    )
    ranks = {len(found.left.shape), len(found.right.shape), len(node.output.shape)}
    if len(ranks) != 1 or (added is not None and len(added.shape) > len(node.output.shape)):
        return None
    again = make_product(
        node.output, found.left, found.right, added, alpha=alpha, beta=beta, origins=node.origins
    )
    return found if again == node else None


def _weighted(value: Scalar, weight: Literal_) -> Scalar:
    return value if weight == 1 else op("mul", value, const(weight, value.dtype))


def _without_weight(value: Scalar) -> tuple[Scalar, Literal_]:
    """What `_weighted` was given; a whole number of floats as an integer."""
    if not isinstance(value, Op) or value.op != "mul" or not isinstance(value.operands[1], Const):
        return value, 1
    number = value.operands[1].value
    return value.operands[0], int(number) if isinstance(number, float) and number.is_integer() else number


def _unwidened(value: Scalar) -> Scalar:
    """The operand of `value` if that is a cast, else `value`."""
    return value.operands[0] if isinstance(value, Op) and value.op == "cast" else value


def _broadcast_index(added: Buffer, output: Buffer, ranges: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index of what is added at a point of the output."""
    behind = len(ranges) - len(added.shape)
    pairs = zip(added.shape, output.shape[behind:], ranges[behind:], strict=True)
    return tuple(as_expr(0) if as_int(own) == 1 and as_int(size) != 1 else r for own, size, r in pairs)
