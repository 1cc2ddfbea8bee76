"""Contractions in the form that libraries take: products of matrices, and of groups of unequal size.

`make_product` builds a product of two matrices, or of one and a vector, as they lie in memory, and
`match_matrix_product` reads one back. `make_grouped_product` and `match_grouped_product` do so for groups:
two tensors, where each group ends, and scales, as for the tokens of each expert of a mixture. Lowering builds
products so; implementations that are calls of a library claim what has this form, and nobody looks at the
name of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Final, Literal, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, symbol
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.nodes import Contraction, Groups
from coilwork_ir.scalar import Const, Load, Op, Parameter, Scalar, cast, const, load, op, parameter
from coilwork_ir.scalar.nodes import Literal_

# ---- Products ----


Activation: TypeAlias = Literal["", "relu", "gelu", "gelu_tanh"]
"""What is done to every sum at the end; `gelu_tanh` is GELU by its tanh form."""

PRODUCT: Final = "product"
BATCHED_PRODUCT: Final = "batched product"
ACTIVATED_PRODUCT: Final = "activated product"
"""What calls of a library implement whose operands are two matrices, or batches of them, behind a summand if
there is one.
"""

_ACTIVATIONS: Final[tuple[Activation, ...]] = ("relu", "gelu", "gelu_tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`output = activation(alpha * (left @ right * scales) + beta * added)`.

    Shapes: `left` is `[batch, m, k]`, `right` `[batch, k, n]`, `output` `[batch, m, n]`, without batch where
    there is none; or `right` is a vector `[k]`, and `output` `[m]`. `added` and the two `scales`, one for
    each factor, if there are any, are broadcast to the output's shape.
    """

    node: Contraction
    left: Buffer
    right: Buffer
    added: Buffer | None
    alpha: Literal_
    beta: Literal_
    activation: Activation = ""
    scales: tuple[Buffer, Buffer] | None = None

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
        """Rows, columns and the length of the sums. A vector is one column."""
        rows, columns = (self.output.shape[-1], as_expr(1)) if self.is_of_vector else self.output.shape[-2:]
        return rows, columns, self.left.shape[-1]

    @property
    def is_of_vector(self) -> bool:
        """True for the product of a matrix with a vector."""
        return len(self.right.shape) == 1

    @property
    def is_plain(self) -> bool:
        """True for matrices whose sums are weighted and added to at most."""
        return not self.is_of_vector and not self.activation and self.scales is None

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Every buffer that is read."""
        added = () if self.added is None else (self.added,)
        return (self.left, self.right, *added, *(self.scales or ()))

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
    activation: Activation = "",
    scales: tuple[Buffer, Buffer] | None = None,
    approximate: bool = False,
    origins: tuple[Origin, ...] = UNKNOWN,
) -> Contraction:
    """`output = activation(alpha * (left @ right * scales) + beta * added)`, as in `MatrixProduct`, rounded
    once, at the end.

    Sums are in the type that arithmetic on the output's type is carried out in.
    """
    accumulate = output.dtype.compute
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
    axis = symbol("r0", extent=left.shape[-1])
    rows, columns = (ranges, ()) if len(right.shape) == 1 else (ranges[:-1], ranges[-1:])
    value: Scalar = parameter(0, accumulate)
    for scale in scales or ():
        value = op("mul", value, _read_broadcast(scale, output, ranges, accumulate))
    value = _weigh(value, alpha)
    if added is not None:
        value = op("add", value, _weigh(_read_broadcast(added, output, ranges, accumulate), beta))
    value = _activate(value, activation)
    return Contraction(
        output=output,
        ranges=ranges,
        axes=(axis,),
        left=load(left.name, (*rows, axis), left.dtype),
        right=load(right.name, (*(rows[:-1] if columns else ()), axis, *columns), right.dtype),
        accumulate=accumulate,
        epilogue=cast(value, output.dtype),
        approximate=approximate,
        origins=origins,
    )


def match_matrix_product(node: Contraction, buffers: Mapping[str, Buffer]) -> MatrixProduct | None:
    """`node` as `make_product` makes it, of `buffers`; None if it has another form."""
    left, right = node.left, node.right
    value, activation = _split_activation(_strip_cast(node.epilogue))
    value, alpha = _split_weight(value)
    if not isinstance(left, Load) or not isinstance(right, Load) or len(node.output.shape) not in (1, 2, 3):
        return None
    added: Buffer | None = None
    beta: Literal_ = 1
    if isinstance(value, Op) and value.op == "add":
        (value, alpha), (term, beta) = (_split_weight(operand) for operand in value.operands)
        term = _strip_cast(term)
        if not isinstance(term, Load):
            return None
        added = buffers[term.buffer]
    value, scaling = strip_scales(value)
    if not isinstance(value, Parameter) or len(scaling) not in (0, 2):
        return None
    product = MatrixProduct(
        node=node,
        left=buffers[left.buffer],
        right=buffers[right.buffer],
        added=added,
        alpha=alpha,
        beta=beta,
        activation=activation,
        scales=(buffers[scaling[0]], buffers[scaling[1]]) if scaling else None,
    )
    rank = len(node.output.shape)
    ranks = (2, 1) if product.is_of_vector else (rank, rank)
    broadcast = (*(product.scales or ()), *(() if added is None else (added,)))
    if (len(product.left.shape), len(product.right.shape)) != ranks or rank != ranks[
        0
    ] - product.is_of_vector:
        return None
    if any(len(operand.shape) > rank for operand in broadcast):
        return None
    again = make_product(
        node.output,
        product.left,
        product.right,
        added,
        alpha=alpha,
        beta=beta,
        activation=activation,
        scales=product.scales,
        approximate=node.approximate,
        origins=node.origins,
    )
    return product if again == node else None


def _activate(value: Scalar, activation: Activation) -> Scalar:
    """Apply `activation` to `value`."""
    dtype = value.dtype
    if activation == "relu":
        return op("maximum", value, const(0, dtype))
    if activation == "":
        return value
    half = op("mul", value, const(0.5, dtype))
    if activation == "gelu":
        inner = op("erf", op("mul", value, const(sqrt(0.5), dtype)))
    else:
        cubed = op("mul", op("mul", op("mul", value, value), value), const(0.044715, dtype))
        inner = op("tanh", op("mul", op("add", value, cubed), const(sqrt(2 / pi), dtype)))
    return op("mul", half, op("add", inner, const(1, dtype)))


def _split_activation(value: Scalar) -> tuple[Scalar, Activation]:
    """Undo `_activate`: the operand and the activation."""
    if isinstance(value, Op) and value.op in ("maximum", "mul"):
        first = value.operands[0]
        inner = first if value.op == "maximum" else first.operands[0] if first.operands else first
        for activation in _ACTIVATIONS:
            if _activate(inner, activation) is value:
                return inner, activation
    return value, ""


def strip_scales(value: Scalar) -> tuple[Scalar, tuple[str, ...]]:
    """`value` without its scales, and the buffers of the scales."""
    scales: list[str] = []
    while isinstance(value, Op) and value.op == "mul":
        value, scale = value.operands[0], _strip_cast(value.operands[1])
        if not isinstance(scale, Load):
            return value, ()
        scales.insert(0, scale.buffer)
    return value, tuple(scales)


def _weigh(value: Scalar, weight: Literal_) -> Scalar:
    return value if weight == 1 else op("mul", value, const(weight, value.dtype))


def _split_weight(value: Scalar) -> tuple[Scalar, Literal_]:
    """Undo `_weigh`; a whole number of floats is an integer, unless 64 bits do not hold it."""
    if not isinstance(value, Op) or value.op != "mul" or not isinstance(value.operands[1], Const):
        return value, 1
    number = value.operands[1].value
    is_negative_zero = number == 0 and math.copysign(1.0, number) < 0
    if isinstance(number, float) and number.is_integer() and abs(number) < 1 << 63 and not is_negative_zero:
        return value.operands[0], int(number)
    return value.operands[0], number


def _strip_cast(value: Scalar) -> Scalar:
    """Return the operand of `value` if that is a cast, else `value`."""
    return value.operands[0] if isinstance(value, Op) and value.op == "cast" else value


def _read_broadcast(value: Buffer, output: Buffer, ranges: tuple[Expr, ...], dtype: DType) -> Scalar:
    """`value` at a point of the output, in `dtype`."""
    return cast(load(value.name, _broadcast_index(value, output, ranges), value.dtype), dtype)


def _broadcast_index(added: Buffer, output: Buffer, ranges: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index of what is added at a point of the output."""
    behind = len(ranges) - len(added.shape)
    pairs = zip(added.shape, output.shape[behind:], ranges[behind:], strict=True)
    return tuple(as_expr(0) if as_int(own) == 1 and as_int(size) != 1 else r for own, size, r in pairs)


# ---- Products of groups ----


GROUPED_PRODUCT: Final = "grouped product"
"""What calls of a library implement whose operands are two tensors, scales, and where groups end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedProduct:
    """`output = left @ right * scales`, for each of the groups that `ends` tells apart.

    | left | right | output | groups are of |
    |---|---|---|---|
    | `[t, k]` | `[g, k, n]` | `[t, n]` | rows |
    | `[g, m, k]` | `[k, t]` | `[m, t]` | columns |
    | `[m, t]` | `[t, n]` | `[g, m, n]` | terms |
    | `[g, m, k]` | `[g, k, n]` | `[g, m, n]` | one size, without `ends`, scaled |

    The two `scales`, if there are any, are one number for each row of the left factor and for each column of
    the right one, in each matrix; in both lines of them where groups are of terms, one behind the other.
    """

    node: Contraction
    left: Buffer
    right: Buffer
    ends: Buffer | None
    scales: tuple[Buffer, Buffer] | None = None

    @property
    def output(self) -> Buffer:
        """The buffer that the product is stored in."""
        return self.node.output

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Every buffer that is read."""
        ends = () if self.ends is None else (self.ends,)
        return (self.left, self.right, *ends, *(self.scales or ()))


def make_grouped_product(
    output: Buffer,
    left: Buffer,
    right: Buffer,
    ends: Buffer | None,
    *,
    scales: tuple[Buffer, Buffer] | None = None,
    approximate: bool = False,
    origins: tuple[Origin, ...] = UNKNOWN,
) -> Contraction:
    """`output = left @ right * scales` in groups, as in `GroupedProduct`, rounded once, at the end.

    Sums are in the type that arithmetic on the output's type is carried out in.
    """
    accumulate = output.dtype.compute
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
    axis = symbol("r0", extent=left.shape[-1])
    rows, columns = ranges[-2:]
    groups: Groups | None = None
    number, in_left, in_right = ranges[0], len(left.shape) == 3, len(right.shape) == 3
    if len(output.shape) == 2:
        number = symbol("g0", extent=(left if in_left else right).shape[0])
    if ends is not None:
        cut = axis if len(output.shape) == 3 else columns if in_left else rows
        groups = Groups(index=number, along=cut, ends=ends.name)
    of_left, of_right = ((number,) if is_in else () for is_in in (in_left, in_right))
    value: Scalar = parameter(0, accumulate)
    if scales is not None:
        places = (*of_left, rows), (*of_right, columns)
        if groups is not None and groups.along is axis:
            places = (number * output.shape[1] + rows,), (number * output.shape[2] + columns,)
        for scale, place in zip(scales, places, strict=True):
            value = op("mul", value, cast(load(scale.name, place, scale.dtype), accumulate))
    return Contraction(
        output=output,
        ranges=ranges,
        axes=(axis,),
        left=load(left.name, (*of_left, rows, axis), left.dtype),
        right=load(right.name, (*of_right, axis, columns), right.dtype),
        accumulate=accumulate,
        epilogue=cast(value, output.dtype),
        groups=groups,
        approximate=approximate,
        origins=origins,
    )


def match_grouped_product(node: Contraction, buffers: Mapping[str, Buffer]) -> GroupedProduct | None:
    """`node` as `make_grouped_product` makes it, of `buffers`; None if it has another form, or is just a
    batch.
    """
    if not isinstance(node.left, Load) or not isinstance(node.right, Load):
        return None
    left, right = buffers[node.left.buffer], buffers[node.right.buffer]
    ends = None if node.groups is None else buffers[node.groups.ends]
    is_batched = (len(left.shape), len(right.shape)) == (3, 3)
    if not {len(left.shape), len(right.shape)} <= {2, 3} or is_batched is not (ends is None):
        return None
    if len(node.output.shape) != (2 if len(left.shape) != len(right.shape) else 3):
        return None
    value = node.epilogue
    if isinstance(value, Op) and value.op == "cast":
        (value,) = value.operands
    value, scaling = strip_scales(value)
    if not isinstance(value, Parameter) or len(scaling) not in ((2,) if ends is None else (0, 2)):
        return None
    scales = (buffers[scaling[0]], buffers[scaling[1]]) if scaling else None
    again = make_grouped_product(
        node.output,
        left,
        right,
        ends,
        scales=scales,
        approximate=node.approximate,
        origins=node.origins,
    )
    if again != node:
        return None
    return GroupedProduct(node=node, left=left, right=right, ends=ends, scales=scales)
