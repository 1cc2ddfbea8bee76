"""Rules of convolutions: tensors that fit each other, windows that move, and types that hold the sums."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops.convolutions import Roles, fitting_windows, roles_of
from coilwork_ir.loops.nodes import Convolution, Window
from coilwork_ir.loops.verify_computed import (
    check_domain,
    check_dtype,
    check_epilogue,
    check_factor_type,
    check_scalars,
)
from coilwork_ir.verification.rules import Place
from coilwork_ir.verification.scope import Scope


def check_convolution(node: Convolution, scope: Scope, place: Place) -> None:
    """The operands are tensors of one convolution, the outputs what it makes of them, of types that fit."""
    _check_form(node, place)
    _check_bodies(node, scope, place)
    extents = roles_of(node)
    for what, mine, theirs in _equal_extents(node, extents):
        if as_int(mine) is not None and as_int(theirs) is not None and mine is not theirs:
            place.fail("convolution-extents", f"{what}: {mine!r} and {theirs!r}")
    features = as_int(extents.features)
    if features is not None and features % node.groups:
        place.fail("convolution-extents", f"{features} features in {node.groups} groups")


def _check_form(node: Convolution, place: Place) -> None:
    """As many dimensions and outputs as there should be, and windows that move."""
    bodies = [b for b in (node.value, node.weight, node.gradient, node.epilogue) if b is not None]
    rank = len(node.windows) + 2
    if not node.windows or any(len(body.ranges) != rank for body in bodies):
        place.fail("convolution-form", f"{len(node.windows)} windows, and operands of other dimensions")
    for window in node.windows:
        if min(window.stride, window.dilation) < 1 or min(window.padding, window.extra) < 0:
            place.fail("convolution-form", f"{window} moves or pads by no number of elements")
        if window.extra and not node.transposed:
            place.fail("convolution-form", "elements behind the last window, of an image that is no result")
    if node.groups < 1:
        place.fail("convolution-form", f"{node.groups} groups")
    if (node.gradient is None) == (node.epilogue is None):
        place.fail("convolution-form", "a result has an epilogue, and gradients have the gradient of one")
    wanted = 1 if node.gradient is None else 3
    if len(node.outputs) != wanted or all(output is None for output in node.outputs):
        place.fail("output-count", f"there are {wanted} results, the node has {len(node.outputs)} outputs")


def _check_bodies(node: Convolution, scope: Scope, place: Place) -> None:
    gradients = node.outputs if node.gradient is not None else (None, None, None)
    check_domain(gradients[:1], node.value.ranges, (), scope, place)
    check_domain(gradients[1:2], node.weight.ranges, (), scope, place)
    operands = [body for body in (node.value, node.weight, node.gradient) if body is not None]
    every = [r for body in operands for r in body.ranges]
    if node.epilogue is not None:
        check_domain(node.outputs, node.epilogue.ranges, (), scope, place)
        check_epilogue(node.epilogue.value, node.epilogue.ranges, node.accumulate, scope, place)
        check_dtype(node.epilogue.value.dtype, node.outputs[0], place)
        every += node.epilogue.ranges
    check_domain((), every, (), scope, place)
    if node.gradient is not None:
        check_domain(gradients[2:], node.gradient.ranges[1:2], (), scope, place)
        for output in gradients:
            if output is not None and output.dtype.is_float != node.accumulate.is_float:
                place.fail("contraction-types", f"sums of {node.accumulate.text} are {output.dtype.text}")
    for body in operands:
        check_scalars((body.value,), body.ranges, scope, place)
        check_factor_type(body.value.dtype, node.accumulate, place)


def _equal_extents(node: Convolution, extents: Roles) -> Iterator[tuple[str, Expr, Expr]]:
    """Return what must be equal, and what both are."""
    value = [r.extent for r in node.value.ranges if r.extent is not None]
    result = node.epilogue if node.gradient is None else node.gradient
    assert result is not None
    made = [r.extent for r in result.ranges if r.extent is not None]
    yield "batch of operand and result", value[0], made[0]
    features = value if node.transposed else made
    yield "features and those of the weight", features[1], extents.features
    yield "channels of the image and of all groups", extents.channels, extents.group_channels * node.groups
    for window, size, taps, count in zip(
        node.windows, extents.space, extents.taps, extents.windows, strict=True
    ):
        yield (
            "windows and what fits the image",
            count,
            _count_windows(window, size, taps, node.transposed, count),
        )


def _count_windows(window: Window, size: Expr, taps: Expr, transposed: bool, count: Expr) -> Expr:
    """How many windows an image of `size` has.

    Transposed, `count` itself if an image of that many windows has `size` elements.
    """
    span = window.dilation * (taps - 1) + 1
    if transposed:
        whole = (count - 1) * window.stride - 2 * window.padding + span + window.extra
        return count if whole is size else count + (size - whole)
    return fitting_windows(window, size, taps)
