"""The meaning of a `Convolution`: its results as contractions, and the gradient of its bias as a sum.

Two of a convolution's three tensors decide the third. An image gives its elements to windows, so that index
maps of taps are affine and a mask keeps them inside: outside are zeros, whatever a prologue makes of zero.
The interpreter runs these contractions, and who computes a convolution in loops begins with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, provably_lt, provably_nonneg, symbol
from coilwork_ir.loops.nodes import Body, Contraction, Convolution, Reduce, Window
from coilwork_ir.scalar import (
    Load,
    Scalar,
    cast,
    const,
    index_value,
    iterate_postorder,
    load,
    op,
    parameter,
    rewrite,
    substitute_ranges,
    where,
)

Role: TypeAlias = Literal["image", "weight", "features"]
"""What a tensor is to a convolution."""

_TRUE: Final[Scalar] = const(True, DType.BOOL)
_FALSE: Final[Scalar] = const(False, DType.BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Extents of a convolution by role, each outermost first."""

    batch: Expr
    space: tuple[Expr, ...]
    channels: Expr
    features: Expr
    group_channels: Expr
    taps: tuple[Expr, ...]
    windows: tuple[Expr, ...]


class Windowed(Protocol):
    """The relation between the tensors of a convolution, in graphs and in kernels."""

    @property
    def windows(self) -> tuple[Window, ...]:
        """Stride, padding and dilation, one for each dimension of space."""

    @property
    def groups(self) -> int:
        """The number of groups of channels, which are convolved apart."""


def get_roles(node: Convolution) -> Roles:
    """Extents of `node`'s image, weight and features.

    Of a forward one, what the result's extents are stands in the epilogue, of gradients in the gradient.
    """
    result = node.epilogue if node.gradient is None else node.gradient
    assert result is not None
    value, output = _extents(node.value), _extents(result)
    image, features = (output, value) if node.transposed else (value, output)
    weight = _extents(node.weight)
    return Roles(
        batch=image[0],
        channels=image[1],
        space=image[2:],
        features=weight[0],
        group_channels=weight[1],
        taps=weight[2:],
        windows=features[2:],
    )


def list_contractions(node: Convolution) -> tuple[Contraction, ...]:
    """Return a contraction for each result of `node`, but for the gradient of a bias."""
    of_value: Role = "features" if node.transposed else "image"
    of_result: Role = "image" if node.transposed else "features"
    operands: dict[Role, Body] = {of_value: node.value, "weight": node.weight}
    if node.gradient is None:
        assert node.epilogue is not None
        (output,) = node.outputs
        assert output is not None
        return (_contraction(node, operands, output, of_result, node.epilogue),)
    contractions = []
    for output, role in zip(node.outputs, (of_value, "weight"), strict=False):
        if output is not None:
            sums = Body(
                ranges=operands[role].ranges,
                value=cast(parameter(0, node.accumulate), output.dtype),
            )
            others = {other: body for other, body in operands.items() if other != role}
            contractions.append(_contraction(node, {**others, of_result: node.gradient}, output, role, sums))
    return tuple(contractions)


def count_windows(window: Window, size: Expr, taps: Expr) -> Expr:
    """Count the windows of `taps` elements along a dimension of an image of `size` elements."""
    return (size + 2 * window.padding - window.dilation * (taps - 1) - 1) // window.stride + 1


def make_result(ranges: tuple[Expr, ...], bias: str, *, dtype: DType, accumulate: DType) -> Body:
    """Return the epilogue that rounds sums to `dtype`, behind an addition of the buffer `bias`, if one is
    named.
    """
    total: Scalar = parameter(0, accumulate)
    if bias:
        total = op("add", total, cast(load(bias, (ranges[1],), dtype), accumulate))
    return Body(ranges=ranges, value=cast(total, dtype))


def find_bias(node: Convolution) -> str | None:
    """Return the bias that `make_result` was given for the epilogue of `node`; None if that is another
    epilogue.
    """
    if node.epilogue is None:
        return None
    named = {value.buffer for value in iterate_postorder((node.epilogue.value,)) if isinstance(value, Load)}
    bias = "".join(named) if len(named) < 2 else ""
    again = make_result(
        node.epilogue.ranges, bias, dtype=node.epilogue.value.dtype, accumulate=node.accumulate
    )
    return bias if again == node.epilogue else None


def find_buffer(body: Body) -> str | None:
    """Return the buffer that `body` reads as it is; None if it computes something."""
    value = body.value
    is_whole = isinstance(value, Load) and value.index == body.ranges and not value.indirect
    return value.buffer if is_whole and isinstance(value, Load) and value.mask is None else None


def make_bias_gradient(node: Convolution) -> Reduce | None:
    """Return the sums of the result's gradient over all but its channels; None where they are not wanted.

    They are rounded when they are stored.
    """
    output = node.outputs[2] if node.gradient is not None else None
    if output is None or node.gradient is None:
        return None
    batch, channel, *space = node.gradient.ranges
    return Reduce(
        outputs=(output,),
        kind="sum",
        ranges=(channel,),
        axes=(batch, *space),
        body=cast(node.gradient.value, node.accumulate),
        origins=node.origins,
    )


def _contraction(
    node: Convolution, operands: Mapping[Role, Body], output: Buffer, role: Role, result: Body
) -> Contraction:
    """Return the contraction that computes what is `role` of the other two tensors."""
    extents = get_roles(node)
    names = iter(_free_names(result.ranges))
    axes = _axes(list_summed_extents(extents, node.groups, role), names)
    left, right = read_factors(node, extents, operands, role, result.ranges, axes)
    return Contraction(
        output=output,
        ranges=result.ranges,
        axes=axes,
        left=left,
        right=right,
        accumulate=node.accumulate,
        epilogue=result.value,
        origins=node.origins,
    )


def list_summed_extents(extents: Roles, groups: int, role: Role) -> tuple[Expr, ...]:
    """Extents of the axes along which products are summed to what is `role`.

    Channels of a group and taps for the features, features of a group and taps for the image, the batch and
    windows for the weight.
    """
    match role:
        case "features":
            return (extents.group_channels, *extents.taps)
        case "image":
            return (floordiv(extents.features, as_expr(groups)), *extents.taps)
        case "weight":
            return (extents.batch, *extents.windows)


def read_factors(
    node: Windowed,
    extents: Roles,
    operands: Mapping[Role, Body],
    role: Role,
    ranges: tuple[Expr, ...],
    axes: tuple[Expr, ...],
) -> tuple[Scalar, Scalar]:
    """Return the factors, of two `operands`, of the sums along `axes` at the points `ranges` of what is
    `role`.
    """
    if role == "features":
        places = find_places(node, extents, features=ranges, inner=axes[0], taps=axes[1:])
    elif role == "image":
        places = _places_of_transposed(node, extents, image=ranges, inner=axes[0], taps=axes[1:])
    else:
        feature, inner, *taps = ranges
        windows = (axes[0], feature, *axes[1:])
        places = find_places(node, extents, features=windows, inner=inner, taps=taps)
    left, right = (read_at(body, *places[other]) for other, body in operands.items())
    return left, right


Places: TypeAlias = Mapping[Role, tuple[tuple[Expr, ...], Scalar]]
"""An index and a mask for each tensor."""


def find_places(
    node: Windowed, extents: Roles, *, features: Sequence[Expr], inner: Expr, taps: Sequence[Expr]
) -> Places:
    """Return where a product's operands lie: at a point of the features, a channel of its group, and taps."""
    batch, feature, *windows = features
    per_group = floordiv(extents.features, as_expr(node.groups))
    group = as_expr(0) if node.groups == 1 else _divide(feature, per_group)
    channel = group * extents.group_channels + inner
    mask: Scalar = _TRUE
    at = []
    for d, (window, p, k) in enumerate(zip(node.windows, windows, taps, strict=True)):
        place = p * window.stride + k * window.dilation - window.padding
        # the last tap of the last window ends behind the image by no more than padding
        room = (extents.taps[d] - 1 - k) * window.dilation - window.padding
        mask = _join_masks(mask, _is_within_size(place, extents.space[d], ends_in=provably_nonneg(room)))
        at.append(place)
    return {
        "image": ((batch, channel, *at), mask),
        "weight": ((feature, inner, *taps), _TRUE),
        "features": (tuple(features), _TRUE),
    }


def _places_of_transposed(
    node: Windowed, extents: Roles, *, image: Sequence[Expr], inner: Expr, taps: Sequence[Expr]
) -> Places:
    """Do as `find_places`, at a point of the image and a feature of its group.

    A tap reaches a point from one window at most.
    """
    batch, channel, *space = image
    per_group = floordiv(extents.features, as_expr(node.groups))
    group = as_expr(0) if node.groups == 1 else _divide(channel, extents.group_channels)
    feature = group * per_group + inner
    mask: Scalar = _TRUE
    at = []
    for window, x, k, size in zip(node.windows, space, taps, extents.windows, strict=True):
        distance = x + window.padding - k * window.dilation
        place = floordiv(distance, as_expr(window.stride))
        if window.stride > 1:
            rest = index_value(mod(distance, as_expr(window.stride)))
            mask = _join_masks(mask, op("eq", rest, const(0, DType.I64)))
        mask = _join_masks(mask, _is_within_size(place, size))
        at.append(place)
    own = channel - group * extents.group_channels
    return {
        "features": ((batch, feature, *at), mask),
        "weight": ((feature, own, *taps), _TRUE),
        "image": (tuple(image), _TRUE),
    }


def read_at(body: Body, place: Sequence[Expr], mask: Scalar) -> Scalar:
    """Return the value of `body` at `place`; 0 outside of `mask`."""
    (value,) = substitute_ranges((body.value,), dict(zip(body.ranges, place, strict=True)))
    if mask is _TRUE:
        return value
    if mask is _FALSE:
        return const(0, value.dtype)
    if isinstance(value, Load) and value.mask is None:
        return _mask_load(value, mask)
    (value,) = rewrite((value,), lambda node: _mask_load(node, mask) if isinstance(node, Load) else node)
    return where(mask, value, const(0, value.dtype))


def _mask_load(value: Load, mask: Scalar) -> Load:
    both = mask if value.mask is None else _join_masks(value.mask, mask)
    return load(value.buffer, value.index, value.dtype, indirect=value.indirect, mask=both, other=value.other)


def _is_within_size(place: Expr, size: Expr, *, ends_in: bool = False) -> Scalar:
    """`0 <= place < size`, without the halves that hold for sure."""
    low = _TRUE if provably_nonneg(place) else op("ge", index_value(place), const(0, DType.I64))
    high = _TRUE if ends_in or provably_lt(place, size) else op("lt", index_value(place), _number(size))
    if place.is_const and (low is not _TRUE or (size.is_const and high is not _TRUE)):
        return _FALSE
    return _join_masks(low, high)


def _number(size: Expr) -> Scalar:
    return const(size.value, DType.I64) if size.is_const else index_value(size)


def _join_masks(a: Scalar, b: Scalar) -> Scalar:
    for first, other in ((a, b), (b, a)):
        if first is _TRUE or other is _FALSE:
            return other
    return op("bitwise_and", a, b)


def _divide(a: Expr, b: Expr) -> Expr:
    """`a // b`; where `b` is 0, there are no points."""
    return as_expr(0) if as_int(b) == 0 else floordiv(a, b)


def _axes(extents: Sequence[Expr], names: Iterator[str]) -> tuple[Expr, ...]:
    return tuple(symbol(next(names), extent=extent) for extent in extents)


def _free_names(ranges: Sequence[Expr]) -> list[str]:
    """Names for axes beside `ranges`: as many as a convolution has at most."""
    used = {r.name for r in ranges}
    most = 2 * len(ranges) + 2
    return [name for k in range(most) if (name := f"r{k}") not in used]


def _extents(body: Body) -> tuple[Expr, ...]:
    assert all(r.extent is not None for r in body.ranges)
    return tuple(r.extent for r in body.ranges if r.extent is not None)
