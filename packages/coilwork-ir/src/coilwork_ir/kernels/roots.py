"""Kernels with other scalar graphs: the graphs taken out in a fixed order, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coilwork_ir.kernels.nodes import Kernel, Store
from coilwork_ir.scalar import Scalar


def store_roots(store: Store) -> tuple[Scalar, ...]:
    """The value, index operands and mask of `store`."""
    mask = () if store.mask is None else (store.mask,)
    return (store.value, *store.indirect, *mask)


def kernel_roots(kernel: Kernel) -> tuple[Scalar, ...]:
    """Every scalar graph of `kernel`: its stores', the conditions of its checks, the bodies of its core."""
    stored = tuple(root for store in kernel.stores for root in store_roots(store))
    bodies = () if kernel.core is None else kernel.core.bodies
    return (*stored, *(check.condition for check in kernel.checks), *bodies)


def with_roots(kernel: Kernel, roots: Sequence[Scalar]) -> Kernel:
    """`kernel` with `roots`, which are in the order of `kernel_roots`, in place of its own."""
    rest = iter(roots)
    stores = []
    for store in kernel.stores:
        value = next(rest)
        indirect = tuple(next(rest) for _ in store.indirect)
        mask = None if store.mask is None else next(rest)
        stores.append(replace(store, value=value, indirect=indirect, mask=mask))
    checks = tuple(replace(check, condition=next(rest)) for check in kernel.checks)
    core = None if kernel.core is None else kernel.core.with_bodies(tuple(rest))
    return replace(kernel, stores=tuple(stores), checks=checks, core=core)
