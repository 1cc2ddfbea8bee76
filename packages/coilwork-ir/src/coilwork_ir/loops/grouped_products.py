"""Products of groups of unequal size in the form that libraries take: two tensors, where each group ends, and
scales.

`make_grouped_product` builds such a contraction, `grouped_product_of` reads one back. The tokens of each
expert of a mixture, one behind the other, are such groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import symbol
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.matrix_products import strip_scales
from coilwork_ir.loops.nodes import Contraction, Groups
from coilwork_ir.scalar import Load, Op, Parameter, Scalar, cast, load, op, parameter

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
    of_left, of_right = ((number,) if one else () for one in (in_left, in_right))
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


def grouped_product_of(node: Contraction, buffers: Mapping[str, Buffer]) -> GroupedProduct | None:
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
