"""Which values use which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from coilwork_ir.scalar import Scalar

Users: TypeAlias = Mapping[Scalar, Sequence[Scalar]]


def users_of(order: Sequence[Scalar]) -> Users:
    """The nodes of `order` that each of its nodes is an operand of."""
    found: dict[Scalar, list[Scalar]] = {node: [] for node in order}
    for node in order:
        for operand in dict.fromkeys(node.operands):
            found[operand].append(node)
    return found
