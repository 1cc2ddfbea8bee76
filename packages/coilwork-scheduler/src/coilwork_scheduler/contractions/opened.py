"""A product as loops: the sum of products, in pieces if so wanted, and what its result is rounded from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, extent_of, floordiv, symbol
from coilwork_ir.loops import Node, Pointwise, Reduce, View
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op
from coilwork_scheduler.contractions.product import Product
from coilwork_scheduler.contractions.through_views import element


def opened(
    product: Product,
    *,
    pieces: int,
    buffers: Mapping[str, Buffer],
    views: Mapping[str, View],
    name: Callable[[str], str],
    least: int = 1,
    round_first: bool = False,
) -> tuple[Node, ...]:
    """The nodes that compute `product`: sums in f32, in `pieces` of equal length, and the result in its own type.

    `name` gives fresh names for buffers. With `least` 2, a single row or column gets another one beside it, of zeros: a product of
    a matrix with a vector would be a sum in another order. With `round_first`, the product is rounded before something is added to it:
    whether torch adds a bias within a product or behind it depends on strides.
    """
    output, origins = product.output, product.node.origins
    length = product.sizes[2]
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(output.shape))
    *batch, i, j = ranges
    single = [as_int(size) == 1 and least > 1 for size in product.sizes[:2]]
    if any(single):
        i, j = (symbol(s.name, extent=least) if one else s for s, one in zip((i, j), single, strict=True))
    r = symbol("r0", extent=floordiv(length, pieces))
    piece = symbol("piece", extent=pieces)
    k: Expr = r if pieces == 1 else piece * floordiv(length, pieces) + r
    left = _beside(
        element(product.left, (*batch, as_expr(0) if single[0] else i, k), buffers, views), i, single[0]
    )
    right = _beside(
        element(product.right, (*batch, k, as_expr(0) if single[1] else j), buffers, views), j, single[1]
    )
    body = op("mul", cast(left, DType.F32), cast(right, DType.F32))
    plain = product.added is None and output.dtype is DType.F32 and not any(single)
    summed = tuple(extent_of(s) for s in (*batch, i, j))
    total = output if plain else _sums(output, name(f"{output.name}_sums"), summed)
    nodes: list[Node] = []
    if pieces == 1:
        nodes.append(
            Reduce(outputs=(total,), kind="sum", ranges=(*batch, i, j), axes=(r,), body=body, origins=origins)
        )
    else:
        parts = _sums(output, name(f"{output.name}_pieces"), (as_expr(pieces), *output.shape))
        over = (piece, *ranges)
        nodes.append(Reduce(outputs=(parts,), kind="sum", ranges=over, axes=(r,), body=body, origins=origins))
        again = load(parts.name, over, DType.F32)
        nodes.append(
            Reduce(outputs=(total,), kind="sum", ranges=ranges, axes=(piece,), body=again, origins=origins)
        )
    if not plain:
        value: Scalar = load(total.name, ranges, DType.F32)
        if product.added is not None:
            if round_first:
                value = cast(cast(value, output.dtype), DType.F32)
            added = _broadcast(product.added, ranges, output)
            value = op("add", value, cast(element(product.added, added, buffers, views), DType.F32))
        nodes.append(Pointwise(output=output, ranges=ranges, body=cast(value, output.dtype), origins=origins))
    return tuple(nodes)


def _beside(factor: Scalar, at: Expr, single: bool) -> Scalar:
    """`factor`, or 0 behind its only row or column, if it has a single one."""
    if not single:
        return factor
    first = op("lt", index_value(at), const(1, DType.I64))
    return op("where", first, factor, const(0.0, factor.dtype))


def _sums(output: Buffer, name: str, shape: tuple[Expr, ...]) -> Buffer:
    return replace(output, name=name, dtype=DType.F32, shape=shape, strides=contiguous_strides(shape))


def _broadcast(added: Buffer, ranges: tuple[Expr, ...], output: Buffer) -> tuple[Expr, ...]:
    """The index of what is added at a point of the result."""
    behind = len(ranges) - len(added.shape)
    pairs = zip(added.shape, output.shape[behind:], ranges[behind:], strict=True)
    return tuple(as_expr(0) if as_int(own) == 1 and as_int(size) != 1 else r for own, size, r in pairs)
