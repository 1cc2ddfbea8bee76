"""Checks of numbers from data that the user wrote: `torch._check(n > 3, lambda: "too few")` fails with the
user's words.

Torch derives assertions of its own from them, `n >= 4`, and puts these first, where the number is read. What
fails is then told as an expression of names that are no program's. The user's check goes before those of the
same numbers.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

OF_TORCH: Final = "Runtime assertion failed for expression "
_ASSERTION: Final = torch.ops.aten._assert_scalar.default
# arithmetic that raises nothing itself
_MOVED: Final[frozenset[Any]] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.neg, operator.abs),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
        *(operator.and_, operator.or_, operator.xor, operator.not_),
        *(torch.sym_max, torch.sym_min, torch.sym_ite, torch.sym_not, torch.sym_sum),
    }
)


def put_told_checks_first(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, check what the user wrote before what torch made of it."""
    derived: list[fx.Node] = []
    changed = False
    for node in list(gm.graph.nodes):
        if node.target is not _ASSERTION:
            continue
        if str(node.args[1]).startswith(OF_TORCH):
            derived.append(node)
            continue
        changed |= _move_before(node, derived)
    if changed:
        gm.recompile()


def _size(node: fx.Node) -> tuple[fx.Node, object] | None:
    """The tensor and the dimension of which `node` is the size: `x.size()[0]`, `x.size(0)`,
    `sym_size(x, 0)`.
    """
    given = list(node.args)
    if node.target is operator.getitem and isinstance(given[0], fx.Node) and _reads_sizes(given[0]):
        given = [*given[0].args, *given[1:]]
    elif not _reads_sizes(node):
        return None
    return (given[0], given[1]) if len(given) == 2 and isinstance(given[0], fx.Node) else None


def _reads_sizes(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.sym_size.int or (node.op == "call_method" and node.target == "size")


def _move_before(check: fx.Node, derived: list[fx.Node]) -> bool:
    """Put `check`, with what it is computed by, before the first of `derived` that is about the
    same numbers.
    """
    parts, read = _condition(check)
    for first in derived:
        if not read & _condition(first)[1] or any(first < one for one, _ in read):
            continue
        for one in sorted(parts):
            if first < one:
                first.prepend(one)
        first.prepend(check)
        return True
    return False


def _condition(check: fx.Node) -> tuple[set[fx.Node], set[tuple[fx.Node, object]]]:
    """Return what the condition of `check` is computed by, and the numbers that it is computed from, with the
    dimension if they are sizes.
    """
    parts: set[fx.Node] = set()
    read: set[tuple[fx.Node, object]] = set()
    pending = list(check.all_input_nodes)
    while pending:
        node = pending.pop()
        if node in parts:
            continue
        size = _size(node)
        if size is not None:
            parts.add(node)
            parts.update(one for one in node.all_input_nodes if one is not size[0])
            read.add(size)
        elif node.op == "call_function" and node.target in _MOVED:
            parts.add(node)
            pending += node.all_input_nodes
        else:
            read.add((node, None))
    return parts, read
