"""What the first reductions of a row in registers read is asked for before any thread waits.

A reduction ends in barriers, over which no load moves: one that only the next reduction reads would leave
memory idle while the program waits for this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.scalar import Load, Op, Reduce, Scalar
from coilwork_triton.values.values import Values


def early_loads(values: Values, roots: Sequence[Scalar]) -> list[Scalar]:
    """Loads along the row that come before the first reduction, converted if that is all they are for; none
    if they do anyway.
    """
    order = values.pending(values.top, roots)
    first = [node for node in order if isinstance(node, Reduce) and values.levels.stage[node] == 1]
    if len({node.operands for node in first}) < 2:
        return []
    below = values.pending(values.top, [operand for node in first for operand in node.operands])
    wanted = [node for node in below if isinstance(node, Load) and values.reduced(node)]
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
