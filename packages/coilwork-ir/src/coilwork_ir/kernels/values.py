"""The values of a kernel by their names in its text: `t5` is what the sixth statement of its body defines."""

from __future__ import annotations

from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.scalar import Scalar, postorder


def printed_roots(kernel: Kernel) -> tuple[Scalar, ...]:
    """Values that the statements of the body of `kernel` compute, in the order in which they are printed."""
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots += [*store.indirect, store.value, *(() if store.mask is None else (store.mask,))]
    return (*roots, *(check.condition for check in kernel.checks))


def value_names(kernel: Kernel) -> dict[str, Scalar]:
    """Each value of `kernel` by its name."""
    return {f"t{number}": value for number, value in enumerate(postorder(printed_roots(kernel)))}
