"""The statements of a contraction: a loop that multiplies blocks of the factors, then what becomes of the
sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.loops import Check
from coilwork_ir.mapping.stored_matrix import StoredMatrix
from coilwork_ir.scalar import Load, Op, Scalar
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Binary,
    Expression,
    For,
    List,
    Name,
    Number,
    Statement,
    Text,
    call,
    method,
)
from coilwork_triton.contraction_plan import ContractionShape
from coilwork_triton.facts.kernel_analysis import Levels, list_action_roots, list_actions
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import GROUP, STAGES
from coilwork_triton.statements.actions import perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import Writer, fill_shape, loop, tl, tl_name


def emit_contraction(
    kernel: Kernel, shape: ContractionShape, levels: Levels, library: set[str]
) -> tuple[Statement, ...]:
    """Return all statements of `kernel`'s function. Names of device functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    names = ["sums" if not number else f"sums{number}" for number in range(len(shape.nodes))]
    taken = {a.name for a in kernel.args} | {s.name for s in kernel.sizes} | {*names}
    setup = Writer(FreshNames(taken | {r.symbol.name for r in kernel.ranges}), library)
    top = setup.inner()

    def values_in(space_shape: Shape, roots: Sequence[Scalar]) -> Values:
        return Values(kernel, space_shape, levels, Space(kernel, space_shape, library), roots, library)

    lefts, rights = (tuple(dict.fromkeys(one)) for one in zip(*((n.left, n.right) for n in shape.nodes)))
    left, right = values_in(shape.left, lefts), values_in(shape.right, rights)
    left_blocks, left_lines = _factors(left, lefts, shape, setup, top)
    right_blocks, right_lines = _factors(right, rights, shape, setup, top)
    multiply: list[Statement] = []
    for name, node in zip(names, shape.nodes, strict=True):
        exact: dict[str, Expression] = (
            {"input_precision": Text("ieee")} if node.left.dtype is DType.F32 else {}
        )
        blocks = left_blocks[node.left], right_blocks[node.right]
        multiply.append(Assign((name,), tl("dot", *blocks, Name(name), **exact)))
        zeros = fill_shape((shape.rows.block, shape.columns.block), 0, DType.F32)
        top.statements.append(Assign((name,), zeros))
    top.statements.append(
        loop(
            LOOP_OFFSET.id,
            left.space.numel(shape.axis),
            Name(shape.axis.block),
            (*left_lines, *right_lines, *multiply),
            stages=Name(STAGES),
        )
    )
    actions = list_actions(kernel)
    roots = [root for action in actions for root in list_action_roots(action)]
    results = values_in(shape.results, roots)
    scope = Scope(writer=top, bound=dict(zip(shape.nodes, map(Name, names), strict=True)))
    results.compute(scope, results.find_pending(scope, roots))
    if _overwrites(results, actions):
        # an element may be stored by another thread than the one that loaded it
        top.do(tl("debug_barrier"))
    for action in actions:
        perform(results, scope, action)
    spaces = (left.space, right.space, results.space)
    counting, places = _find_places(shape, spaces, library)
    if not shape.resident:
        program = Assign(("program",), _convert_to_offset_type(tl("program_id", Number(0)), shape))
        return (*counting, program, *setup.statements, *places, *top.statements)
    total: Expression = Binary("*", Name("yprograms"), Name("xprograms"))
    if shape.batch is not None:
        total = Binary("*", total, results.space.numel(shape.batch))
    program = Assign(("program",), _convert_to_offset_type(Name("tile"), shape))
    # both loops become one, whose loads are on their way across tiles
    each = tl(
        "range",
        tl("program_id", Number(0)),
        Name("tiles"),
        tl("num_programs", Number(0)),
        num_stages=Name(STAGES),
        flatten=Number(True),
    )
    body = (program, *places, *top.statements)
    return (*counting, Assign(("tiles",), total), *setup.statements, For("tile", each, body))


def _convert_to_offset_type(number: Expression, shape: ContractionShape) -> Expression:
    """`number` in the type of offsets."""
    return number if shape.index_dtype is DType.I32 else tl("cast", number, tl_name("int64"))


def _factors(
    values: Values, factors: Sequence[Scalar], shape: ContractionShape, setup: Writer, top: Writer
) -> tuple[dict[Scalar, Expression], tuple[Statement, ...]]:
    """Return a block of each of `factors`, zero outside of the sum, and the lines of the loop that make
    them.
    """
    matrices = {factor: one for factor in factors if (one := shape.find_fetched(factor)) is not None}
    outer = Scope(writer=top)
    order = values.find_pending(outer, [factor for factor in factors if factor not in matrices])
    # what does not vary along the sum is computed before the loop
    values.compute(outer, [node for node in order if not values.varies_along_reduction(node)])
    inner = Scope(writer=top.inner(), parent=outer)
    values.compute(inner, order)
    found = {
        factor: _fetch(values, matrices[factor], top if matrices[factor].is_batched else setup, inner.writer)
        if factor in matrices
        else _block(values, factor, inner)
        for factor in factors
    }
    return found, (*values.space.reduction_lines(looped=True), *inner.writer.statements)


def _fetch(values: Values, matrix: StoredMatrix, setup: Writer, inner: Writer) -> Expression:
    """Return a block of a factor as the copy engine brings it, zeros where there is no such row or column.

    `setup` tells the engine of the matrix.
    """
    first, second = values.shape.tiles[-2:]
    side, axis = (first, second) if second.letter == "r" else (second, first)
    order = (side, axis) if matrix.along_axes else (axis, side)
    start: Expression = Name(matrix.buffer)
    if matrix.offset != as_expr(0):
        start = Binary("+", start, values.space.index(matrix.offset))
    descriptor = setup.bind(
        f"{matrix.buffer}_blocks",
        tl(
            "make_tensor_descriptor",
            start,
            List(tuple(values.space.numel(tile) for tile in order)),
            List((values.space.index(matrix.stride), Number(1))),
            List(tuple(Name(tile.block) for tile in order)),
        ),
    )
    offset: Expression = Name(f"{side.letter}offset")
    if values.shape.index_dtype is DType.I64:
        offset = tl("cast", offset, tl_name("int32"))
    places = (offset, LOOP_OFFSET) if matrix.along_axes else (LOOP_OFFSET, offset)
    found: Expression = method(descriptor, "load", List(places))
    if (first, second) != order:
        found = Attribute(found, "T")
    return inner.bind(matrix.buffer, found)


def _block(values: Values, factor: Scalar, inner: Scope) -> Expression:
    """Return a whole block of `factor`, zero outside of the sum."""
    found = values.expression(inner, factor)
    inside = None if _zero_outside(factor) else values.space.mask(frozenset("r"))
    if inside is not None:
        found = tl("where", inside, found, Number(0))
    tiles = [tile for tile in values.shape.tiles if tile.axis is not None]
    whole = tuple(tile.block for tile in tiles)
    if values.block(factor) != whole:
        found = tl("broadcast_to", found, List(tuple(Name(block) for block in whole)))
    if not isinstance(found, Name):
        found = inner.writer.bind("left" if tiles[1].letter == "r" else "right", found)
    return found


def _overwrites(results: Values, actions: Sequence[Store | Check]) -> bool:
    """Return the kernel stores over what it loads."""
    loaded = {node.buffer for node in results.order if isinstance(node, Load)}
    return any(isinstance(what, Store) and what.buffer in loaded for what in actions)


def _zero_outside(factor: Scalar) -> bool:
    """Loads find zeros outside of the sum; what only changes their type leaves them zeros."""
    while isinstance(factor, Op) and factor.op == "cast":
        (factor,) = factor.operands
    return isinstance(factor, Load) and factor.mask is None


def _find_places(
    shape: ContractionShape, spaces: Sequence[Space], library: set[str]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return how many tiles there are, and where the tile `program` lies: its positions along all sides."""
    counting = [line for space in spaces for line in space.extents()]
    for tile in (shape.rows, shape.columns):
        count = tl("cdiv", spaces[-1].numel(tile), Name(tile.block))
        counting.append(Assign((f"{tile.letter}programs",), count))
    lines: list[Statement] = []
    found: dict[str, Expression] = {}
    if shape.batch is not None:
        one = Binary("*", Name("yprograms"), Name("xprograms"))
        found["z"] = Name("zprogram")
        lines.append(Assign(("zprogram",), Binary("//", Name("program"), one)))
        lines.append(Assign(("program",), Binary("%", Name("program"), one)))
    library.add("grouped")
    counts = (Name("yprograms"), Name("xprograms"), Name(GROUP))
    lines.append(Assign(("yprogram", "xprogram"), call("grouped", Name("program"), *counts)))
    found |= {"y": Name("yprogram"), "x": Name("xprogram")}
    positions = [line for space in spaces for line in space.positions(lambda tile: found[tile.letter])]
    # tiles that two spaces share are defined alike in both
    return tuple(dict.fromkeys(counting)), tuple(dict.fromkeys((*lines, *positions)))
