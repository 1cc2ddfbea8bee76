"""Functions that torch compiles ahead of time and writes down: `torch.compile(f).aot_compile(inputs)`.

A back end takes part by returning a `SerializableCallable`. Torch says by its configuration that it compiles
ahead of time, and that a backward graph has to be compiled at once.

Torch guards its global state, and with it the number of threads. `drop_thread_guard` leaves that guard out,
and `GlobalState` is what a saved function checks of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from torch._C._dynamo import guards as torch_guards
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._dynamo.guards import CheckFunctionManager
from torch._functorch import config as functorch_config

__all__ = [
    "GlobalState",
    "SerializableCallable",
    "drop_thread_guard",
    "is_compiling_ahead",
    "leave_torch_cache",
]
_THREADS: Final = "num_threads"


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


def drop_thread_guard(guards: Sequence[Any]) -> list[bool]:
    """Return which of torch's `guards` a saved function keeps: all but the one on the number of threads, and
    those that torch itself leaves out.

    For `torch.compile(f, options={"guard_filter_fn": drop_thread_guard}).aot_compile(inputs)`. Functions that
    are not saved keep all of their guards.
    """
    if not functorch_config.strict_autograd_cache:
        return [True] * len(guards)
    dropped = {"GLOBAL_STATE", *CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES}
    return [not guard.is_global and guard.guard_type not in dropped for guard in guards]


class GlobalState:
    """Torch's settings that compiled code depends on, as grad mode, autocast and the default type, but for
    the number of threads.

    Attributes:
        text: all of them, as JSON.
    """

    __slots__ = ("_guard", "text")

    def __init__(self, text: str) -> None:
        """Describe the settings of `text`.

        Raises:
            ValueError, TypeError: it is damaged.
        """
        self.text = text
        self._guard = self._make_guard()

    @classmethod
    def read(cls) -> Self:
        """Return the settings of this thread."""
        state: Any = torch_guards.GlobalStateGuard()
        return cls(state.__getstate__())

    def list_changes(self) -> str:
        """Return which settings of this thread are others; empty if none is."""
        if self._guard.check():
            return ""
        # the number of threads may have changed since
        self._guard = self._make_guard()
        return "" if self._guard.check() else str(self._guard.reason()).strip()

    def _make_guard(self) -> Any:
        guard: Any = torch_guards.GlobalStateGuard()
        here = json.loads(guard.__getstate__())
        guard.__setstate__(json.dumps({**json.loads(self.text), _THREADS: here[_THREADS]}))
        return guard
