"""Functions that torch compiles ahead of time and writes down: `torch.compile(f).aot_compile(inputs)`.

A back end takes part by returning a `SerializableCallable`. Torch says by its configuration that it compiles
ahead of time, and that a backward graph has to be compiled at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._dynamo.aot_compile_types import SerializableCallable
from torch._functorch import config as functorch_config

__all__ = ["SerializableCallable", "is_compiling_ahead", "leave_torch_cache"]


def is_compiling_ahead() -> bool:
    """Tell if torch will write down what it is compiling now."""
    return bool(
        functorch_config.bypass_autograd_cache_key and functorch_config.force_non_lazy_backward_lowering
    )


def leave_torch_cache() -> AbstractContextManager[object]:
    """Return a context in which AOTAutograd caches nothing by itself: it can write down its own back end's
    graphs only, and asks for them while torch compiles ahead of time."""
    patch: AbstractContextManager[object] = functorch_config.patch(
        force_autograd_cache=False, bundled_autograd_cache=False, strict_autograd_cache=False
    )
    return patch
