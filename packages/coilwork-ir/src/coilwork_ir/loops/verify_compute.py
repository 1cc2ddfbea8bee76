"""Verifier rules of the nodes that compute: domains, bodies and the types of their results.

For convolutions these say too that the tensors fit each other, that windows move, and that the type of the
sums holds them. Memory may be filled by several scatters, one box each: the first has no `into`, and its
output is the memory. The verifier follows which elements have a value, and nobody may read before all have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, provably_eq, provably_le
from coilwork_ir.loops.access import list_bodies, list_overwritten_buffers
from coilwork_ir.loops.convolutions import Roles, count_windows, get_roles
from coilwork_ir.loops.nodes import (
    Check,
    Contraction,
    Convolution,
    Groups,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    Weights,
    Window,
)
from coilwork_ir.ops import REDUCE_OPS
from coilwork_ir.scalar import Combine, Load, Parameter, Scalar, find_index_symbols, iterate_postorder
from coilwork_ir.scalar import Reduce as ScalarReduce
from coilwork_ir.scalar import Scan as ScalarScan
from coilwork_ir.verification import Box, Place, Scope, check_index, check_load, check_mask, check_symbols_of

# ---- Nodes that compute ----


def check_convolution(node: Convolution, scope: Scope, place: Place) -> None:
    """The operands are tensors of one convolution, the outputs what it makes of them, of types that fit."""
    _check_form(node, place)
    _check_bodies(node, scope, place)
    extents = get_roles(node)
    for what, mine, theirs in _equal_extents(node, extents):
        if as_int(mine) is not None and as_int(theirs) is not None and mine is not theirs:
            place.fail("convolution-extents", f"{what}: {mine!r} and {theirs!r}")
    features = as_int(extents.features)
    if features is not None and features % node.groups:
        place.fail("convolution-extents", f"{features} features in {node.groups} groups")


def _check_form(node: Convolution, place: Place) -> None:
    """Check the numbers of dimensions and outputs, and that windows move."""
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
    """Pairs of extents that must be equal, with a name for each pair."""
    value = [r.extent for r in node.value.ranges if r.extent is not None]
    result = node.epilogue if node.gradient is None else node.gradient
    assert result is not None
    extents_of_result = [r.extent for r in result.ranges if r.extent is not None]
    yield "batch of operand and result", value[0], extents_of_result[0]
    features = value if node.transposed else extents_of_result
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
    """Count the windows of an image of `size`.

    Transposed, `count` itself if an image of that many windows has `size` elements.
    """
    span = window.dilation * (taps - 1) + 1
    if transposed:
        whole = (count - 1) * window.stride - 2 * window.padding + span + window.extra
        return count if whole is size else count + (size - whole)
    return count_windows(window, size, taps)


def check_domain(
    outputs: Sequence[Buffer | None],
    ranges: Sequence[Expr],
    axes: Sequence[Expr],
    scope: Scope,
    place: Place,
    *,
    kept: Mapping[Expr, Expr] = MappingProxyType({}),
) -> None:
    """The ranges are what the shape of every output asks for; the axes are ranges too, none occurs twice.

    Of the ranges that `kept` names the outputs hold so many points.
    """
    whole = (*ranges, *axes)
    names: set[str] = set()
    for value in whole:
        if not value.is_symbol or value.extent is None:
            place.fail("range-extents", f"{value!r} is not a range symbol")
        if value.name in names:
            place.fail("range-extents", f"range {value.name} occurs twice")
        if value.name in scope.symbols:
            place.fail("unique-symbol", f"range {value.name} has the name of a declared symbol")
        names.add(value.name)
        scope.check_symbols(value.extent, (), place)
    for output in outputs:
        if output is None:
            continue
        if len(output.shape) != len(ranges):
            place.fail(
                "range-extents",
                f"%{output.name} has {len(output.shape)} dimensions, not {len(ranges)} ranges",
            )
        for position, (value, size) in enumerate(zip(ranges, output.shape, strict=True)):
            extent = kept.get(value, value.extent)
            if extent is not None and extent is not size and not provably_eq(extent, size):
                place.fail(
                    "range-extents",
                    (
                        f"dimension {position} of %{output.name} is {size!r}, range {value.name} gives "
                        f"{extent!r}"
                    ),
                )


def check_bodies(
    node: Pointwise | Reduce | Scan | Sort | Scatter,
    local: Sequence[Expr],
    checks: Sequence[Check],
    scope: Scope,
    place: Place,
) -> None:
    """Each scalar of the node is over `local` ranges, declared symbols and defined buffers."""
    for check in checks:
        check_mask(check.condition, "the condition of a check", place)
    check_scalars(list_bodies(node), local, scope, place)


def check_scalar(value: Scalar, local: frozenset[Expr], scope: Scope, place: Place) -> None:
    """One scalar, less its operands, is over `local` ranges, declared symbols and defined buffers."""
    match value:
        case Load():
            buffer = scope.use(value.buffer, place)
            check_load(value, buffer.dtype, len(buffer.shape), place)
        case ScalarReduce() | ScalarScan():
            place.fail("loop-scalar", f"the body holds a {type(value).__name__.lower()}")
        case _:
            pass
    check_symbols_of(value, local, scope, place)


def check_contraction(node: Contraction, scope: Scope, place: Place) -> None:
    """The factors know the ranges and axes as factors do, the epilogue the ranges and the sum; all have types
    that fit.
    """
    number = () if node.groups is None else (node.groups.index,)
    check_scalars((node.left, node.right), (*node.ranges, *node.axes, *number), scope, place)
    check_epilogue(node.epilogue, (*node.ranges, *number), node.accumulate, scope, place)
    if node.groups is not None:
        _check_groups(node, node.groups, scope, place)
    of_left, of_right = (find_index_symbols((factor,)) for factor in (node.left, node.right))
    # a sum over the points of a group alone differs from group to group
    known = [(r, r in of_left or r in of_right or r in number) for r in node.ranges]
    known += [(axis, axis in of_left and axis in of_right) for axis in node.axes]
    for symbol, is_known in known:
        if not is_known and (symbol.extent is None or as_int(symbol.extent) != 1):
            place.fail("contraction-ranges", f"the factors do not vary along {symbol.name} so")
    for factor in (node.left.dtype, node.right.dtype):
        check_factor_type(factor, node.accumulate, place)
    check_dtype(node.epilogue.dtype, node.output, place)


def _check_groups(node: Contraction, groups: Groups, scope: Scope, place: Place) -> None:
    """Groups lie along a range and have a number of their own, or along an axis and are a range."""
    ends, index = scope.use(groups.ends, place), groups.index
    if not ends.dtype.is_integer or len(ends.shape) != 1:
        place.fail("contraction-groups", f"%{groups.ends} is no line of integers")
    if index.extent is None or not provably_eq(index.extent, ends.shape[0]):
        place.fail("contraction-groups", f"%{groups.ends} has not one end for each {index.name}")
    along_axis, along_range = groups.along in node.axes, groups.along in node.ranges
    if not along_axis and not along_range:
        place.fail("contraction-groups", f"{groups.along!r} is neither a range nor an axis")
    if along_axis and index not in node.ranges:
        place.fail("contraction-groups", f"groups lie along an axis, and {index.name} is no range")
    taken = {symbol.name for symbol in (*node.ranges, *node.axes)} | set(scope.symbols)
    if along_range and index.name in taken:
        place.fail("contraction-groups", f"{index.name} is a group's number, and another thing")


def check_scalars(roots: Sequence[Scalar], local: Sequence[Expr], scope: Scope, place: Place) -> None:
    """Each scalar of `roots` is over `local` ranges, declared symbols and defined buffers."""
    known = frozenset(local)
    for value in iterate_postorder(roots):
        check_scalar(value, known, scope, place)


def check_epilogue(
    epilogue: Scalar, ranges: Sequence[Expr], accumulate: DType, scope: Scope, place: Place
) -> None:
    """An epilogue knows `ranges`, and the sum as its only parameter."""
    for value in iterate_postorder((epilogue,)):
        if not isinstance(value, Parameter):
            check_scalar(value, frozenset(ranges), scope, place)
        elif value.position != 0:
            place.fail(
                "parameter", f"parameter {value.position} of an epilogue, which is given the sum alone"
            )
        elif value.dtype is not accumulate:
            place.fail(
                "contraction-types", f"the epilogue is given {accumulate.text}, and reads {value.dtype.text}"
            )


def check_factor_type(factor: DType, accumulate: DType, place: Place) -> None:
    """Numbers of type `factor` can be multiplied in `accumulate`."""
    alike = factor.is_float if accumulate.is_float else accumulate.is_integer and factor.is_integer
    if not alike or (factor is not accumulate and factor.itemsize >= accumulate.itemsize):
        place.fail("contraction-types", f"{factor.text} is multiplied in {accumulate.text}")


def check_dtype(dtype: DType, output: Buffer | None, place: Place) -> None:
    """The output, if it is wanted, holds what the body computes."""
    if output is not None and output.dtype is not dtype:
        place.fail("body-dtype", f"the value is {dtype.text}, %{output.name} is {output.dtype.text}")


def check_count(node: Sort, scope: Scope, place: Place) -> Mapping[Expr, Expr]:
    """Check that a sort keeps at most a row's elements; return how many, by the range along the row."""
    extent = node.axis.extent
    if node.count is None or extent is None:
        return {}
    scope.check_symbols(node.count, (), place)
    if not (provably_le(0, node.count) and provably_le(node.count, extent)):
        place.fail("sort-count", f"the first {node.count!r} of {extent!r}")
    return {node.axis: node.count}


def check_axes(node: Reduce | Contraction | Weights, place: Place) -> None:
    """The axes are distinct range symbols, and none is a range of the output."""
    for position, axis in enumerate(node.axes):
        if not axis.is_symbol or axis.extent is None:
            place.fail("axes", f"{axis!r} is not a range symbol")
        if axis in node.axes[:position] or axis in node.ranges:
            place.fail("axes", f"{axis.name} occurs twice")


def check_reduce(node: Reduce, place: Place) -> None:
    """The kind has this many results, of these element types."""
    row = REDUCE_OPS.get(node.kind)
    wanted = 0 if row is None else row.outputs
    if len(node.outputs) != wanted or all(o is None for o in node.outputs):
        place.fail("output-count", f"{node.kind} has {wanted} results, the node {len(node.outputs)} outputs")
    source = node.body.dtype
    if node.kind in ("any", "all") and not source.is_bool:
        place.fail("body-dtype", f"{node.kind} combines bool, the value is {source.text}")
    if node.kind in ("welford", "online_softmax") and not source.is_float:
        place.fail("body-dtype", f"{node.kind} combines floats, the value is {source.text}")
    result = DType.I64 if node.kind in ("argmin", "argmax") else source
    for output in node.outputs:
        check_dtype(result, output, place)


def check_positions(node: Scan | Sort, place: Place) -> None:
    """A scan or sort gives values, then maybe positions; a scan by a function what that gives."""
    if isinstance(node, Scan) and isinstance(node.kind, Combine):
        _check_combined(node, node.kind, place)
        return
    if isinstance(node, Sort):
        most, first = 2, node.body.dtype
        if first.is_opaque:
            place.fail("body-dtype", f"{first.text} has no order")
    else:
        if node.others:
            place.fail(
                "combine-operands", f"{node.kind} combines 1 value, the node has {1 + len(node.others)}"
            )
        most = 2 if node.kind in ("min", "max") else 1
        first = DType.I64 if node.kind in ("argmin", "argmax") else node.body.dtype
    if not 1 <= len(node.outputs) <= most or all(o is None for o in node.outputs):
        place.fail(
            "output-count", f"there are at most {most} results, the node has {len(node.outputs)} outputs"
        )
    check_dtype(first, node.outputs[0], place)
    for output in node.outputs[1:]:
        check_dtype(DType.I64, output, place)


def _check_combined(node: Scan, kind: Combine, place: Place) -> None:
    """The node has as many values as its function combines, of these types, and outputs for its results."""
    values = (node.body, *node.others)
    wanted = [result.dtype for result in kind.results]
    if [value.dtype for value in values] != wanted:
        shown = ", ".join(dtype.text for dtype in wanted)
        given = ", ".join(value.dtype.text for value in values)
        place.fail("combine-operands", f"the function combines ({shown}), the values are ({given})")
    if not 1 <= len(node.outputs) <= kind.count or all(o is None for o in node.outputs):
        place.fail(
            "output-count",
            f"there are at most {kind.count} results, the node has {len(node.outputs)} outputs",
        )
    for output, dtype in zip(node.outputs, wanted, strict=False):
        check_dtype(dtype, output, place)


def check_split(node: Scan, place: Place) -> None:
    """A scan is shared by no more programs than its rows have points."""
    if node.split == 1:
        return
    extents = {r: None if r.extent is None else as_int(r.extent) for r in node.ranges}
    length = extents[node.axis]
    if length is None or None in extents.values() or not 1 < node.split <= length:
        place.fail("scan-split", f"split {node.split} along {node.axis.name}")


def check_scatter(node: Scatter, scope: Scope, place: Place) -> None:
    """The index fits the output, whose element type the value has; the mask is a bool."""
    check_domain((), node.ranges, (), scope, place)
    check_bodies(node, node.ranges, node.checks, scope, place)
    check_mask(node.mask, "the mask", place)
    check_dtype(node.value.dtype, node.output, place)
    if len(node.index) != len(node.output.shape):
        place.fail(
            "index-rank",
            (
                f"%{node.output.name} has {len(node.output.shape)} dimensions, got {len(node.index)} index "
                "expressions"
            ),
        )
    check_index(node.index, node.indirect, frozenset(node.ranges), scope, place)
    if node.covers and (node.into is not None or node.mode != "store"):
        place.fail("covers", "it stores into memory that holds something, or combines with it")
    if node.sparse and (node.into is not None or node.mode != "store" or node.covers):
        place.fail("sparse", "it stores into memory that holds something, combines with it, or covers it")
    if node.into is None:
        if box_of(node) is None:
            place.fail("fill", "the elements that it stores are not one box")
        return
    scope.store_into(node.into, place)
    if node.mode != "store" and not scope.is_full(node.into):
        place.fail("unfilled", f"parts of %{node.into} hold nothing to combine with yet")


def define_computed(outputs: Sequence[Buffer | None], node: Node, scope: Scope, place: Place) -> None:
    """Move `scope` past the node: its outputs are new, or take over the memory that it overwrites."""
    taken = list_overwritten_buffers(node)
    if not taken:
        for output in outputs:
            if output is not None:
                scope.define(output, place)
        return
    for (old, _), output in zip(taken, outputs, strict=True):
        assert output is not None
        before = scope.store_into if isinstance(node, Scatter) else scope.use
        check_same_layout(output, before(old, place), place)
    scope.overwrite([old for old, _ in taken], [o for o in outputs if o is not None], place)


def check_same_layout(new: Buffer, old: Buffer, place: Place) -> None:
    """`new` has the layout of `old`, whose memory it takes over."""
    for what, mine, theirs in (
        ("element type", new.dtype.text, old.dtype.text),
        ("device", new.device, old.device),
        ("number of dimensions", len(new.shape), len(old.shape)),
    ):
        if mine != theirs:
            place.fail("into-layout", f"{what} of %{new.name} is {mine}, of %{old.name} {theirs}")
    for mine_, theirs_ in zip((*new.shape, *new.strides), (*old.shape, *old.strides), strict=True):
        if mine_ is not theirs_ and not provably_eq(mine_, theirs_):
            place.fail("into-layout", f"%{new.name} has {mine_!r} where %{old.name} has {theirs_!r}")


# ---- Memory filled by several nodes ----


def box_of(node: Scatter) -> Box | None:
    """Return the elements that `node` stores, if they are one box: each of its ranges runs along a dimension
    of its own.

    None for scatters by looked-up or masked positions, but for those that cover their output (where a mask
    leaves elements out, readers know which) or whose other elements nobody depends on, and for those that
    combine with what is there.
    """
    if node.covers or node.sparse:
        return Box(tuple(as_expr(0) for _ in node.output.shape), node.output.shape)
    if node.indirect or node.mask is not None or node.mode != "store":
        return None
    left = set(node.ranges)
    starts: list[Expr] = []
    extents: list[Expr] = []
    for expr in node.index:
        moving = [r for r in node.ranges if r in expr.free_symbols]
        if not moving:
            starts.append(expr)
            extents.append(as_expr(1))
            continue
        symbol, start = moving[0], expr - moving[0]
        extent = symbol.extent
        if symbol not in left or extent is None or not start.free_symbols.isdisjoint(node.ranges):
            return None
        left.remove(symbol)
        starts.append(start)
        extents.append(extent)
    if any(r.extent is None or as_int(r.extent) != 1 for r in left):
        return None
    return Box(tuple(starts), tuple(extents))
