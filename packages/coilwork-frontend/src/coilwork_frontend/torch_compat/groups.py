"""Process groups as Dynamo sees them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import fx
from torch._dynamo.guards import GuardBuilder
from torch._guards import TracingContext


def is_process_group(value: Any) -> bool:
    """Tell if `value` is a group of processes; a torch that was built without any knows no such class."""
    if not torch.distributed.is_available():
        return False
    return isinstance(value, torch.distributed.ProcessGroup)


def guard_identity(node: fx.Node) -> None:
    """Let Dynamo compile anew when the input `node` of the graph that it is compiling is another object; it
    checks the class alone.
    """
    context, argument = TracingContext.try_get(), node.meta.get("grapharg")
    if context is not None and argument is not None:
        context.guards_context.dynamo_guards.add(argument.source.make_guard(GuardBuilder.ID_MATCH))
