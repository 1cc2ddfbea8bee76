"""Rows and columns of one matrix: a loop over walked points around a row in registers.

A program takes its rows one after the other, or a few at a time. Each is reduced along the row as in any
persistent kernel. What is reduced along the walk has one accumulator per lane, which starts before the loop
and is combined after it: with one row at a time there is nothing left to combine, hence no communication
between threads for the column sums at all. What does not vary along the walk is computed before the loop, all
loads of a row happen before its stores, and the loop's stages, where a candidate has several, bring in the
next row while this one is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.errors import EmitError
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Reduce, Scalar
from coilwork_ir.syntax.python import Expression, Name
from coilwork_triton.combining.reductions import REDUCTIONS, Reduction, Site
from coilwork_triton.iteration.space import WALK_OFFSET
from coilwork_triton.launch.parameters import STAGES
from coilwork_triton.statements.actions import Action, perform_all
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import loop
from coilwork_triton.values.along_rows import bind_results, site_named
from coilwork_triton.values.values import Values


def emit_walk(values: Values, actions: Sequence[Action]) -> None:
    """Write the loop over the walked tile, what it needs before it, and what happens once after it.

    Raises:
        EmitError: a reduction along the walk whose results do not combine as values do.
    """
    tile = values.shape.walked
    assert tile is not None
    top = values.top
    groups = _columns(values)
    each = [action for action in actions if action.walked]
    roots = [root for action in each for root in action.roots]
    roots += [operand for group in groups for operand in group[0].operands]
    order = values.pending(top, roots)
    values.compute(top, [node for node in order if not values.walked(node)])
    inner = Scope(writer=top.writer.inner(), parent=top)
    values.compute(inner, order)
    finishing: list[tuple[Reduce, Reduction, Site, tuple[Name, ...]]] = []
    for group in groups:
        reduction = REDUCTIONS[group[0].kind]
        site = site_named(values, inner, group[0])
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
    last = [action for action in actions if not action.walked]
    values.compute(top, values.pending(top, [root for action in last for root in action.roots]))
    perform_all(values, top, last)


def _columns(values: Values) -> list[list[Reduce]]:
    """Reductions along the walk, those of the same values together."""
    groups: dict[tuple[str, tuple[Scalar, ...]], list[Reduce]] = {}
    for node in values.order:
        if isinstance(node, Reduce) and values.along_walk(node):
            if node.kind not in SELF_COMBINING:
                raise EmitError(
                    "walked-kind",
                    f"{node.kind} along walked ranges in kernel {values.kernel.name}",
                    origins=values.kernel.origins,
                    remedy="schedule it as a kernel of its own",
                )
            groups.setdefault((node.kind, node.operands), []).append(node)
    return list(groups.values())
