"""What profilers hear of the native executor: a range per program and per kernel, and Triton's launch hooks.

Called by name from native/call/observing.hpp, and only while somebody listens. Kernels on GPUs have their own
names in a profile in any case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from coilwork_runtime.torch_compat import profiler_is_on, recorded_range

PREFIX: Final = "coilwork: "


@dataclass(slots=True)
class LaunchMetadata:
    """What a launch hook is told; the interface of Triton's own lazy dictionary."""

    data: dict[str, Any]
    extras: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = field(default_factory=list)

    def get(self) -> dict[str, Any]:
        """The name of the kernel, its function (0: it is not known by one) and stream, and what was added."""
        for function, arguments in self.extras:
            self.data = self.data | function(*arguments)
        self.extras.clear()
        return self.data

    def add(self, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
        """`function(*arguments)` says more, if anybody asks."""
        self.extras.append((function, arguments))


class Observation:
    """A program or a launch that profilers have been told of, until `leave`."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def begin(self, name: str, *, is_launch: bool, stream: int) -> None:
        """Tell them."""
        if profiler_is_on():
            within: AbstractContextManager[object] = recorded_range(name if is_launch else PREFIX + name)
            self._stack.enter_context(within)
        if is_launch:
            enter, leave = launch_hooks()
            metadata = LaunchMetadata({"name": name, "function": 0, "stream": stream})
            if enter is not None:
                enter(metadata)
            if leave is not None:
                self._stack.callback(leave, metadata)

    def leave(self) -> None:
        """It is over."""
        self._stack.close()


def enter(name: str, is_launch: bool, stream: int) -> Observation:
    """A program, or the launch of a kernel, begins."""
    made = Observation()
    try:
        made.begin(name, is_launch=is_launch, stream=stream)
    except BaseException:
        made.leave()
        raise
    return made


def launch_hooks() -> tuple[Callable[[LaunchMetadata], None] | None, Callable[[LaunchMetadata], None] | None]:
    """Triton's hooks before and after a launch, where Triton is loaded."""
    knobs: Any = sys.modules.get("triton.knobs")
    if knobs is None:
        return None, None
    return knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
