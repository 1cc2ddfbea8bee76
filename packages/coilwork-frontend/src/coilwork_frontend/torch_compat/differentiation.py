"""Transforms that wrap tensors or let them carry more: forward-mode differentiation, and `torch.func`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._dispatch.python import no_python_dispatcher
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext
from torch.autograd import forward_ad


def may_carry_tangents() -> bool:
    """Tell if the caller is within `torch.autograd.forward_ad.dual_level()`, where a tensor may carry a
    tangent.
    """
    return forward_ad._current_level >= 0


def guard_dual_level() -> None:
    """Let Dynamo compile anew what it is compiling, when it is called within another level or none.

    Dynamo has the guard, and installs it only where it has traced an entry into a level.
    """
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def taken_apart_after_autograd() -> AbstractContextManager[object]:
    """While it is entered, operators that torch takes apart before autograd sees them are differentiated as
    they are.

    Of open sizes they are not to be called then: torch's own kernels take numbers.
    """
    made: AbstractContextManager[object] = no_python_dispatcher()
    return made
