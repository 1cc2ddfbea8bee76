"""The statements of a kernel: loads and arithmetic in passes over the reduction, then its stores.

`emit_body` writes one straight run where rows stay in registers, one loop per pass where they do not, and a
row loop where columns are reduced beside rows. A branch around everything is written where a number in memory
says whether the kernel does anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.alias_analysis import find_overwritten_arguments
from coilwork_ir.loops.nodes import Check
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load, Op, Reduce, Scalar, Scan, iterate_postorder
from coilwork_ir.syntax.python import Assign, Binary, Expression, For, If, Name, Number, Statement, method
from coilwork_triton.facts.kernel_analysis import (
    Levels,
    find_segment_length,
    is_segmented_reduction,
    list_action_roots,
    list_actions,
)
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import LOOP_OFFSET, WALK_OFFSET, Space
from coilwork_triton.launch.parameters import STAGES
from coilwork_triton.statements.actions import Action, perform_all
from coilwork_triton.statements.reductions import REDUCTIONS, Reduction, Site
from coilwork_triton.statements.row_operations import bind_results, build_site
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import conjunction, get_triton_type, loop, tl

# The body


def emit_body(kernel: Kernel, shape: Shape, levels: Levels, library: set[str]) -> tuple[Statement, ...]:
    """Return all statements of `kernel`'s function. Names of device functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    actions = _actions(kernel, levels)
    space = Space(kernel, shape, library)
    values = Values(kernel, shape, levels, space, [root for a in actions for root in a.roots], library)
    top = values.top
    if shape.walk == "looped":
        inside: tuple[Statement, ...] = ()
        _emit_loops(values, actions)
    elif shape.sequential is not None:
        emit_row_loop(values, actions)
        inside = space.reduction_lines(looped=False)
    else:
        _emit_unless_skipped(values, actions)
        inside = space.reduction_lines(looped=shape.sharing is not None)
    return _start_sharing(shape) + space.prologue() + inside + tuple(top.writer.statements)


def _start_sharing(shape: Shape) -> tuple[Statement, ...]:
    """Return the lines that find the program's row and its piece of it, if programs share rows."""
    tile = shape.reduced
    if shape.sharing is None or tile is None:
        return ()
    return shape.sharing.start(LOOP_OFFSET.id, tile.block)


def _emit_unless_skipped(values: Values, actions: Sequence[Action]) -> None:
    """Write `actions`, in a branch if data say that they may do nothing."""
    top = values.top
    conditions = find_skip_conditions(actions, values.levels) if values.shape.walk == "pointwise" else ()
    values.compute(top, values.find_pending(top, conditions))
    holds = conjunction(tuple(values.expression(top, condition) for condition in conditions))
    if holds is None:
        if values.shape.walk == "persistent":
            roots = [root for a in actions for root in a.roots]
            values.compute(top, values.find_pending(top, find_early_loads(values, roots)))
        _emit_actions(values, top, actions)
        return
    inner = Scope(writer=top.writer.inner(), parent=top)
    _emit_actions(values, inner, actions)
    top.writer.statements.append(If(holds, tuple(inner.writer.statements)))


def _emit_actions(values: Values, scope: Scope, actions: Sequence[Action]) -> None:
    """Everything that `actions` need, then the actions: all loads before all stores."""
    values.compute(scope, values.find_pending(scope, [root for a in actions for root in a.roots]))
    perform_all(values, scope, actions)


def _actions(kernel: Kernel, levels: Levels) -> list[Action]:
    """Checks first, then stores; each in the first pass in which it may happen."""
    reduced = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
    sequential = frozenset(r.symbol for r in kernel.ranges if r.kind == "sequential")
    stages = _stages(kernel, levels)
    found = []
    for what, stage in stages.items():
        roots = list_action_roots(what)
        symbols: frozenset[Expr] = frozenset().union(*(levels.varies[r] for r in roots))
        if isinstance(what, Store):
            symbols |= what.index.free_symbols
        found.append(
            Action(
                what=what,
                roots=roots,
                stage=stage,
                reduced=bool(symbols & reduced),
                sequential=bool(symbols & sequential),
            )
        )
    return found


def _stages(kernel: Kernel, levels: Levels) -> dict[Check | Store, int]:
    """Return the first pass in which each may happen: memory may be overwritten only after the last pass that
    reads it.

    A store that waits for others' reads has its own done as late, for which others may have to wait in turn.
    """
    stages: dict[Check | Store, int] = {
        what: max(levels.stage[r] for r in list_action_roots(what)) for what in list_actions(kernel)
    }
    late: dict[Check | Store, int] | None = None
    while late is None or late:
        last_read = _last_reads(stages, levels)
        late = {}
        for what, stage in stages.items():
            if isinstance(what, Store):
                wanted = max(
                    [
                        stage,
                        *(last_read.get(source, 0) for source in find_overwritten_arguments(kernel, what)),
                    ]
                )
                if wanted > stage:
                    late[what] = wanted
        stages |= late
    return stages


def _last_reads(stages: Mapping[Check | Store, int], levels: Levels) -> dict[str, int]:
    """Return the last pass in which each buffer is loaded along the reduction, if all happens in the passes
    that `stages` says.
    """
    last: dict[str, int] = {}
    for what, at in stages.items():
        pending: list[tuple[Scalar, int]] = [(root, at) for root in list_action_roots(what)]
        seen: set[tuple[Scalar, int]] = set()
        while pending:
            node, stage = pending.pop()
            if (node, stage) in seen:
                continue
            seen.add((node, stage))
            if isinstance(node, Load):
                last[node.buffer] = max(last.get(node.buffer, 0), stage)
            below = levels.stage[node] - 1 if isinstance(node, Reduce) else stage
            pending.extend((operand, below) for operand in node.operands)
    return last


def _emit_loops(values: Values, actions: Sequence[Action]) -> None:
    """One loop over the r tile per pass that does something, then what happens once per row."""
    passes = _passes(values, actions)
    values.note_passes([one.roots for one in passes])
    last = [root for action in actions if not action.reduced for root in action.roots]
    if is_segmented_reduction(last):
        # loops that most rows leave at once: what else their results need is on its way meanwhile
        pending = values.find_pending(values.top, last)
        values.compute(values.top, [n for n in pending if _is_known_before_loops(values, n)])
    for number, one in enumerate(passes):
        if one.reductions or one.actions:
            _emit_pass(values, one, number)
    _emit_actions(values, values.top, [action for action in actions if not action.reduced])


def _is_known_before_loops(values: Values, node: Scalar) -> bool:
    """`node` is known without any reduction."""
    return values.levels.stage[node] == 0 and not values.varies_along_reduction(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One loop: reductions that it completes and actions within it."""

    reductions: tuple[tuple[Reduce, ...], ...]
    actions: tuple[Action, ...]

    @property
    def roots(self) -> tuple[Scalar, ...]:
        """The values that its loop computes."""
        operands = [operand for group in self.reductions for operand in group[0].operands]
        return tuple(operands) + tuple(root for action in self.actions for root in action.roots)


def _passes(values: Values, actions: Sequence[Action]) -> list[Pass]:
    levels = values.levels
    groups: dict[tuple[str, tuple[Scalar, ...]], list[Reduce]] = {}
    for node in values.order:
        if isinstance(node, Reduce):
            groups.setdefault((node.kind, node.operands), []).append(node)
    count = max(levels.stage.values(), default=0) + 1
    count = max([count, *(a.stage + 1 for a in actions)])
    return [
        Pass(
            reductions=tuple(tuple(g) for g in groups.values() if levels.stage[g[0]] - 1 == stage),
            actions=tuple(a for a in actions if a.reduced and a.stage == stage),
        )
        for stage in range(count)
    ]


def _emit_pass(values: Values, loop_pass: Pass, number: int) -> None:
    top = values.top
    order = values.find_pending(top, loop_pass.roots)
    # what does not vary along the loop is computed before it
    values.compute(top, [node for node in order if not values.varies_along_reduction(node)])
    backwards = _runs_backwards(values, order)
    inner = Scope(writer=top.writer.inner(), parent=top, number=number)
    values.compute(inner, order)
    finishing = []
    for group in loop_pass.reductions:
        reduction = REDUCTIONS[group[0].kind]
        site = build_site(values, inner, group[0])
        if backwards:
            site = replace(site, ascending=False)
        lanes = reduction.start(site, top.writer)
        reduction.step(site, inner.writer, lanes)
        finishing.append((group, reduction, site, lanes))
    perform_all(values, inner, loop_pass.actions)
    end = None if loop_pass.actions or backwards else _segment_end(values, loop_pass)
    top.writer.statements.append(_loop(values, inner, backwards, end))
    for group, reduction, site, lanes in finishing:
        bind_results(values, top, group[0], reduction.finish(site, top.writer, lanes))


def _segment_end(values: Values, loop_pass: Pass) -> Expression | None:
    """Return the end of the longest of the program's rows; None if rows go to the end of the range."""
    tile = values.shape.reduced
    counts = [find_segment_length(group[0]) for group in loop_pass.reductions]
    if tile is None or not counts:
        return None
    found: list[Expression] = []
    for count in counts:
        if count is None:
            return None
        end = values.expression(values.top, count)
        if values.block(count):
            inside = values.space.mask(values.space.letters(values.levels.varies[count]))
            end = tl("max", end if inside is None else tl("where", inside, end, Number(0)))
        found.append(end)
    longest = found[0]
    for end in found[1:]:
        longest = tl("maximum", longest, end)
    within = tl("minimum", longest, values.space.numel(tile))
    return values.top.writer.bind("rend", method(within, "to", get_triton_type(values.shape.index_dtype)))


def _loop(values: Values, inner: Scope, backwards: bool, end: Expression | None) -> For:
    """Return the loop around the statements of `inner`; backwards it starts at the last, possibly partial
    block.
    """
    space = values.space
    tile = values.shape.reduced
    assert tile is not None
    block = Name(tile.block)
    end = space.end(tile) if end is None else end
    body = (*space.reduction_lines(looped=True), *inner.writer.statements)
    stages = Name(STAGES) if values.shape.has_stages else None
    if not backwards:
        return loop(LOOP_OFFSET.id, end, block, body, stages=stages)
    last = Binary("*", Binary("-", tl("cdiv", end, block), Number(1)), block)
    offset = Assign((LOOP_OFFSET.id,), Binary("-", last, Name("r0_done")))
    return loop("r0_done", end, block, (offset, *body), stages=stages)


def _runs_backwards(values: Values, order: Sequence[Scalar]) -> bool:
    """Tell if the scans among `order` run from the end. Raises EmitError if they disagree."""
    directions = {node.reverse for node in order if isinstance(node, Scan)}
    if len(directions) > 1:
        raise EmitError(
            "mixed-scans",
            "scans in both directions over a row that is too long for registers",
            origins=values.kernel.origins,
            remedy="schedule them as two kernels",
        )
    return True in directions


# Row loops


def emit_row_loop(values: Values, actions: Sequence[Action]) -> None:
    """Write the loop over the sequential tile, what it needs before it, and what happens once after it.

    A program takes its rows one after the other, or a few at a time, and reduces each as in any persistent
    kernel. A reduction along the walk has one accumulator per lane, which is combined after the loop: with
    one row at a time nothing is left to combine, so column sums need no communication between threads. All
    loads of a row come before its stores, and the loop's stages load the next row while this one is reduced.

    Raises:
        EmitError: a reduction along the walk whose results do not combine as values do.
    """
    tile = values.shape.sequential
    assert tile is not None
    top = values.top
    groups = _column_reductions(values)
    each = [action for action in actions if action.sequential]
    roots = [root for action in each for root in action.roots]
    roots += [operand for group in groups for operand in group[0].operands]
    order = values.find_pending(top, roots)
    values.compute(top, [node for node in order if not values.varies_along_walk(node)])
    inner = Scope(writer=top.writer.inner(), parent=top)
    values.compute(inner, order)
    finishing: list[tuple[Reduce, Reduction, Site, tuple[Name, ...]]] = []
    for group in groups:
        reduction = REDUCTIONS[group[0].kind]
        site = build_site(values, inner, group[0])
        lanes = reduction.start(site, top.writer)
        reduction.step(site, inner.writer, lanes)
        finishing.append((group[0], reduction, site, lanes))
    perform_all(values, inner, each)
    body = (*values.space.walk_lines(), *inner.writer.statements)
    end = values.space.numel(tile)
    top.writer.statements.append(loop(WALK_OFFSET.id, end, Name(tile.block), body, stages=Name(STAGES)))
    for node, reduction, site, lanes in finishing:
        # one row at a time: each lane has all of its column
        found: Sequence[Expression] = (
            lanes if tile.axis is None else reduction.finish(site, top.writer, lanes)
        )
        bind_results(values, top, node, found)
    last = [action for action in actions if not action.sequential]
    values.compute(top, values.find_pending(top, [root for action in last for root in action.roots]))
    perform_all(values, top, last)


def _column_reductions(values: Values) -> list[list[Reduce]]:
    """Reductions along the walk, those of the same values together."""
    groups: dict[tuple[str, tuple[Scalar, ...]], list[Reduce]] = {}
    for node in values.order:
        if isinstance(node, Reduce) and values.reduces_along_walk(node):
            if node.kind not in SELF_COMBINING:
                raise EmitError(
                    "sequential-kind",
                    f"{node.kind} along sequential ranges in kernel {values.kernel.name}",
                    origins=values.kernel.origins,
                    remedy="schedule it as a kernel of its own",
                )
            groups.setdefault((node.kind, node.operands), []).append(node)
    return list(groups.values())


# Conditions to skip a kernel


def find_skip_conditions(actions: Sequence[Action], levels: Levels) -> tuple[Scalar, ...]:
    """Conditions, read from memory, without any of which `actions` do nothing.

    No store then stores, and all checks hold. Masks alone would keep every program from memory, but not from
    the arithmetic, which is most of what is left.
    """
    stores = [action.what for action in actions if isinstance(action.what, Store)]
    checks = [action.what.condition for action in actions if not isinstance(action.what, Store)]
    masks = [() if store.mask is None else tuple(_operands("bitwise_and", store.mask)) for store in stores]
    if not masks:
        return ()
    return tuple(
        condition
        for condition in dict.fromkeys(masks[0])
        if all(condition in mask for mask in masks[1:])
        and not levels.varies[condition]
        and any(isinstance(node, Load) for node in iterate_postorder((condition,)))
        and all(_holds_without(condition, check) for check in checks)
    )


def _operands(name: str, value: Scalar) -> Iterator[Scalar]:
    """Yield the operands of a tree of operations `name` with root `value`, in order; `value` itself if it is
    none.
    """
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, Op) and node.op == name:
            pending.extend(reversed(node.operands))
        else:
            yield node


def _holds_without(condition: Scalar, check: Scalar) -> bool:
    """Tell if `check` says that it holds where `condition` does not."""
    return any(
        _is_opposite(found, condition) or _is_opposite(condition, found)
        for found in _operands("bitwise_or", check)
    )


def _is_opposite(value: Scalar, other: Scalar) -> bool:
    return isinstance(value, Op) and value.op == "bitwise_not" and value.operands[0] is other


# Early loads


def find_early_loads(values: Values, roots: Sequence[Scalar]) -> list[Scalar]:
    """Loads along the row, with their conversions, that are to come before the first reduction.

    A reduction ends in barriers, over which no load moves: a load that only the next reduction reads would
    leave memory idle while the program waits for this one. Empty if all loads come first anyway.
    """
    order = values.find_pending(values.top, roots)
    first = [node for node in order if isinstance(node, Reduce) and values.levels.stage[node] == 1]
    if len({node.operands for node in first}) < 2:
        return []
    below = values.find_pending(values.top, [operand for node in first for operand in node.operands])
    wanted = [node for node in below if isinstance(node, Load) and values.varies_along_reduction(node)]
    if len(wanted) > values.shape.grids.early_rows:
        return []
    casts: dict[Scalar, list[Scalar]] = {load: [] for load in wanted}
    for node in order:
        for operand in set(node.operands) & casts.keys():
            casts[operand].append(node)
    found: list[Scalar] = []
    for load, users in casts.items():
        only = users[0] if len(users) == 1 else None
        found.append(only if isinstance(only, Op) and only.op == "cast" else load)
    return found
