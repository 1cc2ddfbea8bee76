"""Loads whose addresses a check of the same kernel judges.

A kernel computes its values first and asserts its checks then, before it stores. A load at an address that a
check refuses must not happen: far out of bounds the device ends the kernel with an illegal access, and the
assertion that names the fault is never reached. So these checks are asserted in front of the load. That costs
no operation more; a mask of the load would, for each element, and took 10 to 15 % longer where many elements
are looked up one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar, postorder
from coilwork_triton.facts.kernel_analysis import Levels


def guards_of_loads(
    kernel: Kernel, levels: Levels, order: Iterable[Scalar]
) -> Mapping[Scalar, tuple[Check, ...]]:
    """The checks that each load among `order` waits for, where there are any.

    These are conditions on nothing but what the address depends on as well. So they are known wherever the
    address is, and hold for a load that happens, as the kernel otherwise fails.
    """
    if not kernel.checks:
        return {}
    sources = {check: _sources((check.condition,)) for check in kernel.checks}
    found: dict[Scalar, tuple[Check, ...]] = {}
    for load in order:
        if isinstance(load, Load) and load.indirect:
            known = _sources(load.indirect)
            guards = tuple(
                check
                for check, needed in sources.items()
                if not needed.isdisjoint(known)
                and all(node in known or _is_position(node) for node in needed)
                and levels.varies[check.condition] <= levels.varies[load]
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
