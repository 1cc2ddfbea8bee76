"""Loads whose addresses a check of the same kernel judges.

A kernel computes its values first and asserts its checks then, before it stores. A load at an address that a
check refuses must not happen: far out of bounds the device ends the kernel with an illegal access, and the
assertion that names the fault is never reached. So the load is masked by the condition. That costs one
operation per address: the condition is computed all the same, and is as constant along a row as the address,
so accesses stay as wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar, postorder
from coilwork_triton.facts.levels import Levels


def guards_of_loads(
    kernel: Kernel, levels: Levels, order: Iterable[Scalar]
) -> Mapping[Scalar, tuple[Scalar, ...]]:
    """The conditions of checks that each load among `order` waits for, where there are any.

    These are conditions on nothing but what the address depends on as well. So they are known wherever the
    address is, and hold for a load that happens, as the kernel otherwise fails.
    """
    if not kernel.checks:
        return {}
    conditions = dict.fromkeys(check.condition for check in kernel.checks)
    sources = {condition: _sources((condition,)) for condition in conditions}
    found: dict[Scalar, tuple[Scalar, ...]] = {}
    for load in order:
        if isinstance(load, Load) and load.indirect:
            known = _sources(load.indirect)
            guards = tuple(
                condition
                for condition, needed in sources.items()
                if not needed.isdisjoint(known)
                and all(node in known or _is_position(node) for node in needed)
                and levels.varies[condition] <= levels.varies[load]
            )
            if guards:
                found[load] = guards
    return found


def _sources(values: Iterable[Scalar]) -> frozenset[Scalar]:
    """The values below `values` that are no arithmetic: loads, positions, results of reductions."""
    return frozenset(
        node
        for node in postorder(values)
        if not isinstance(node, Const | Op) and not (isinstance(node, IndexValue) and node.operands)
    )


def _is_position(node: Scalar) -> bool:
    return isinstance(node, IndexValue)
