"""The statements of a contraction: a loop that multiplies blocks of the factors, then what becomes of the
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Load, Op, Scalar
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Expression,
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
from coilwork_triton.iteration.shape import Shape, Tile
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import GROUP, STAGES
from coilwork_triton.statements.actions import perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import Writer, fill_shape, loop, tl, tl_name

_SUMS = Name("sums")


def emit_contraction(
    kernel: Kernel, shape: ContractionShape, levels: Levels, library: set[str]
) -> tuple[Statement, ...]:
    """All statements of `kernel`'s function. Names of device functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    taken = {a.name for a in kernel.args} | {s.name for s in kernel.sizes} | {_SUMS.id}
    top = Writer(FreshNames(taken | {r.symbol.name for r in kernel.ranges}), library)

    def values_in(space_shape: Shape, roots: Sequence[Scalar]) -> Values:
        return Values(kernel, space_shape, levels, Space(kernel, space_shape, library), roots, library)

    left, right = (
        values_in(blocks, (factor,))
        for blocks, factor in ((shape.left, shape.node.left), (shape.right, shape.node.right))
    )
    first, left_lines = _factor(left, shape.node.left, top)
    second, right_lines = _factor(right, shape.node.right, top)
    exact: dict[str, Expression] = (
        {"input_precision": Text("ieee")} if shape.node.left.dtype is DType.F32 else {}
    )
    multiply = Assign((_SUMS.id,), tl("dot", first, second, _SUMS, **exact))
    top.statements.append(
        Assign((_SUMS.id,), fill_shape((shape.rows.block, shape.columns.block), 0, DType.F32))
    )
    top.statements.append(
        loop(
            LOOP_OFFSET.id,
            left.space.numel(shape.axis),
            Name(shape.axis.block),
            (*left_lines, *right_lines, multiply),
            stages=Name(STAGES),
        )
    )
    actions = list_actions(kernel)
    roots = [root for action in actions for root in list_action_roots(action)]
    results = values_in(shape.results, roots)
    scope = Scope(writer=top, bound={shape.node: _SUMS})
    results.compute(scope, results.find_pending(scope, roots))
    if _overwrites(results, actions):
        # an element may be stored by another thread than the one that loaded it
        top.do(tl("debug_barrier"))
    for action in actions:
        perform(results, scope, action)
    spaces = (left.space, right.space, results.space)
    return (*_prologue(shape, spaces, library), *top.statements)


def _factor(values: Values, factor: Scalar, top: Writer) -> tuple[Expression, tuple[Statement, ...]]:
    """A block of `factor`, zero outside of the sum, and the lines of the loop that make it."""
    outer = Scope(writer=top)
    order = values.find_pending(outer, [factor])
    # what does not vary along the sum is computed before the loop
    values.compute(outer, [node for node in order if not values.varies_along_reduction(node)])
    inner = Scope(writer=top.inner(), parent=outer)
    values.compute(inner, order)
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
    return found, (*values.space.reduction_lines(looped=True), *inner.writer.statements)


def _overwrites(results: Values, actions: Sequence[Store | Check]) -> bool:
    """The kernel stores over what it loads."""
    loaded = {node.buffer for node in results.order if isinstance(node, Load)}
    return any(isinstance(what, Store) and what.buffer in loaded for what in actions)


def _zero_outside(factor: Scalar) -> bool:
    """Loads find zeros outside of the sum; what only changes their type leaves them zeros."""
    while isinstance(factor, Op) and factor.op == "cast":
        (factor,) = factor.operands
    return isinstance(factor, Load) and factor.mask is None


def _prologue(shape: ContractionShape, spaces: Sequence[Space], library: set[str]) -> tuple[Statement, ...]:
    extents = [line for space in spaces for line in space.extents()]
    counting, programs = _programs(shape, spaces[-1], library)
    positions = [line for space in spaces for line in space.positions(programs)]
    # tiles that two spaces share are defined alike in both
    return tuple(dict.fromkeys((*extents, *counting, *positions)))


def _programs(
    shape: ContractionShape, space: Space, library: set[str]
) -> tuple[list[Statement], Callable[[Tile], Expression]]:
    """A program's number along each tile, and the lines that find it."""
    program: Expression = tl("program_id", Number(0))
    if shape.index_dtype is DType.I64:
        program = method(program, "to", tl_name("int64"))
    lines: list[Statement] = [Assign(("program",), program)]
    found: dict[str, Expression] = {}
    for tile in (shape.rows, shape.columns):
        count = tl("cdiv", space.numel(tile), Name(tile.block))
        lines.append(Assign((f"{tile.letter}programs",), count))
    if shape.batch is not None:
        one = Binary("*", Name("yprograms"), Name("xprograms"))
        found["z"] = Name("zprogram")
        lines.append(Assign(("zprogram",), Binary("//", Name("program"), one)))
        lines.append(Assign(("program",), Binary("%", Name("program"), one)))
    library.add("grouped")
    counts = (Name("yprograms"), Name("xprograms"), Name(GROUP))
    lines.append(Assign(("yprogram", "xprogram"), call("grouped", Name("program"), *counts)))
    found |= {"y": Name("yprogram"), "x": Name("xprogram")}
    return lines, lambda tile: found[tile.letter]
