"""Transforms that wrap tensors or let them carry more: forward-mode differentiation, and `torch.func`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext
from torch.autograd import forward_ad

# among the keys of the dispatcher within the `vmap` of autograd; its enumeration for Python has no name for it
_BATCHING: Final = torch._C._parse_dispatch_key("VmapMode")


def may_carry_tangents() -> bool:
    """Whether the caller is within `torch.autograd.forward_ad.dual_level()`, where a tensor may carry a tangent."""
    return forward_ad._current_level >= 0


def guard_dual_level() -> None:
    """Let Dynamo compile anew what it is compiling, when it is called within another level or none.

    Dynamo has the guard, and installs it only where it has traced an entry into a level.
    """
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def is_transformed() -> bool:
    """Whether tensors may carry tangents or be wrapped, and then have no memory: by `torch.func`, or by autograd for batches of gradients.

    The latter's `vmap` is an older one, of which only the dispatcher tells.
    """
    return (
        forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or (_BATCHING is not None and torch._C._dispatch_tls_is_dispatch_key_included(_BATCHING))
    )


def taken_apart_after_autograd() -> AbstractContextManager[object]:
    """While it is entered, operators that torch takes apart before autograd sees them are differentiated as they are.

    Of open sizes they are not to be called then: torch's own kernels take numbers.
    """
    made: AbstractContextManager[object] = no_python_dispatcher()
    return made
