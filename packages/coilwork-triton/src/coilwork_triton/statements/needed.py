"""Kernels of which data say, in a number that is one for all points, whether they do anything: a branch
around all of it.

Masks alone would keep every program from memory, but not from the arithmetic, which is most of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coilwork_ir.kernels import Store
from coilwork_ir.scalar import Load, Op, Scalar, postorder
from coilwork_triton.facts.kernel_analysis import Levels
from coilwork_triton.statements.actions import Action


def needed(actions: Sequence[Action], levels: Levels) -> tuple[Scalar, ...]:
    """Conditions without any of which `actions` do nothing: no store stores, and all checks hold. They are
    read from memory.
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
        and any(isinstance(node, Load) for node in postorder((condition,)))
        and all(_holds_without(condition, check) for check in checks)
    )


def _operands(name: str, value: Scalar) -> Iterator[Scalar]:
    """Return what `value` joins by the operation `name`, in order; itself if it is none."""
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
