"""Operators with effects, as torch orders them."""

from __future__ import annotations

from torch._higher_order_ops.effects import _get_effect
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket


def is_ordered_by_token(target: object) -> bool:
    """Tell if torch orders the calls of an operator, or of any overload of one, by tokens."""
    if isinstance(target, OpOverloadPacket):
        return any(is_ordered_by_token(getattr(target, name)) for name in target.overloads())
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None
