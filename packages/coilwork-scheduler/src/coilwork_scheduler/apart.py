"""Calls that share no kernel with others, as `ScheduleOptions.apart` asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.loc import Origin


def may_share_kernel(one: Iterable[Origin], two: Iterable[Origin], apart: frozenset[str]) -> bool:
    """True if what implements the calls `one` may be computed in a kernel with what implements `two`.

    `apart` are names of calls that share no kernel with others. The parts of one call may share a kernel.
    """
    if not apart:
        return True
    first, second = {origin.node for origin in one}, {origin.node for origin in two}
    return first == second or apart.isdisjoint(first | second)
