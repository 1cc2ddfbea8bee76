"""Forward-mode differentiation (`torch.autograd.forward_ad`): tensors that carry tangents.

Torch's operators compute the tangents of their results beside them. Kernels that read memory would not, and
the results would be constants, without an error. Within a level what Dynamo captured runs, in eager mode; it
is compiled for calls outside of one, and Dynamo tells these from those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from coilwork_frontend.capture.captured_graph import CapturedGraph
from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.dynamo import guard_dual_level, may_carry_tangents


def in_forward_mode(gm: fx.GraphModule, *, only_compiled: bool) -> Callable[..., Any] | None:
    """Return what runs `gm`, Dynamo's graph, if this is called within a level; `None` if not: then it is to
    be compiled.

    Raises:
        CompileError: within a level, with `only_compiled`.
    """
    guard_dual_level()
    if not may_carry_tangents():
        return None
    if only_compiled:
        raise CompileError(
            "forward-mode",
            "a graph is called within torch.autograd.forward_ad.dual_level()",
            reason="only torch's own operators compute tangents",
            remedy="call it outside of the level, or use torch.func.jvp within what is compiled",
        )
    captured = CapturedGraph(gm, "tensors may carry tangents of forward-mode differentiation")
    captured.announce()
    return captured.run
