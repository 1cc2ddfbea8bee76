"""What an operator asks of its operands' sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coilwork_lowering.torch_compat.sizes import require


def meets(condition: bool | torch.SymBool, message: Callable[[], str]) -> bool:
    """False where `condition` does not hold, which is guarded on: the operator is for ATen, whose error is
    eager's.

    Where only run time knows, for sizes from data, `message()` is raised then.
    """
    # loaded on use: it brings sympy, and graphs of known sizes need neither
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    if not (condition if isinstance(condition, bool) else guard_or_true(condition)):
        return False
    require(condition, message)
    return True
