"""Profile the native executor: time by kind of instruction, ranges for profilers, launch hooks.

A `Stopwatch` measures what the host time of a program is spent on. The native executor calls `enter` by name
(native/call/observing.hpp), and only while somebody listens; kernels on GPUs have their own names in a
profile in any case.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from coilwork_runtime.executor.call_plans import CallPlan, Route
from coilwork_runtime.torch_compat import is_profiler_on, open_profiler_range

PHASES: Final = ("inputs", "beginning", "instructions", "results")
_KINDS: Final[Mapping[int, str]] = {
    1: "sizes",
    2: "sizes",
    3: "checks of inputs",
    4: "allocations",
    5: "allocations",
    6: "views",
    7: "views",
    8: "views",
    9: "kernels",
    11: "sizes",
    12: "branches and loops",
    13: "branches and loops",
    14: "frees",
    16: "results of operators",
    17: "kernels",
    18: "views",
    32: "streams",
    33: "regions",
}
_CALL: Final = 10
_ROUTES: Final[Mapping[Route, str]] = {
    Route.PYTHON: "in Python",
    Route.FUNCTION: "C function",
    Route.DISPATCHER: "dispatcher",
    Route.ITEM: "C function",
    Route.LAUNCH: "launched",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTime:
    """The time of instructions of one kind in a call, on average.

    Attributes:
        kind: `kernels`, `allocations`, …, or an operator with who calls it.
        count: of such instructions in a call.
        microseconds: of all of them together.
    """

    kind: str
    count: float
    microseconds: float


class Stopwatch:
    """Measures a native program, `call`, while it is entered. Nested programs count twice: in their
    instruction, too.
    """

    def __init__(self, call: Any, plans: Sequence[CallPlan]) -> None:
        self._call = call
        self._plans = plans

    def __enter__(self) -> Stopwatch:
        self._call.time(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._call.time(False)

    @property
    def calls(self) -> int:
        """The number of calls of the program while it was measured."""
        phases, _ = self._call.times()
        return phases[0][0] if phases else 0

    def phases(self) -> tuple[KindTime, ...]:
        """Return the parts of a call, in order: its instructions are one of them."""
        phases, _ = self._call.times()
        calls = max(1, self.calls)
        return tuple(
            KindTime(kind=name, count=1, microseconds=spent / calls / 1e3)
            for name, (_, spent) in zip(PHASES, phases, strict=False)
        )

    def kinds(self) -> tuple[KindTime, ...]:
        """Return the instructions by kind, the longest first."""
        return _sum_by_kind(
            ((kind, times, spent) for kind, _, times, spent in self._rows()), max(1, self.calls)
        )

    def places(self) -> tuple[KindTime, ...]:
        """The instructions by what they do: each kernel and operator by itself, the longest first."""
        return _sum_by_kind(
            ((place, times, spent) for _, place, times, spent in self._rows()), max(1, self.calls)
        )

    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Kind, what is done, how often, and nanoseconds, of each instruction that ran."""
        _, rows = self._call.times()
        for _, _, code, about, place, times, spent in rows:
            if times:
                yield self._kind(code, about), place.partition("\n")[0], times, spent

    def _kind(self, code: int, about: int) -> str:
        if code != _CALL:
            return _KINDS.get(code, f"instruction {code}")
        plan = self._plans[about]
        return f"{plan.target}, {plan.library or _ROUTES[plan.route]}"


def _sum_by_kind(rows: Iterable[tuple[str, int, int]], calls: int) -> tuple[KindTime, ...]:
    counts: dict[str, int] = defaultdict(int)
    spent_ns: dict[str, int] = defaultdict(int)
    for kind, times, spent in rows:
        counts[kind] += times
        spent_ns[kind] += spent
    times_by_kind = (
        KindTime(kind=kind, count=counts[kind] / calls, microseconds=spent_ns[kind] / calls / 1e3)
        for kind in counts
    )
    return tuple(sorted(times_by_kind, key=lambda one: -one.microseconds))


# ---- ranges and launch hooks ----


PREFIX: Final = "coilwork: "


@dataclass(slots=True)
class LaunchMetadata:
    """The argument of a launch hook, with the interface of Triton's own lazy dictionary."""

    data: dict[str, Any]
    extras: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = field(default_factory=list)

    def get(self) -> dict[str, Any]:
        """Return the name of the kernel, its function (0: it is not known by one) and stream, and what was
        added.
        """
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
        """Tell profilers and hooks that the range begins."""
        if is_profiler_on():
            within: AbstractContextManager[object] = open_profiler_range(name if is_launch else PREFIX + name)
            self._stack.enter_context(within)
        if is_launch:
            enter, leave = launch_hooks()
            metadata = LaunchMetadata({"name": name, "function": 0, "stream": stream})
            if enter is not None:
                enter(metadata)
            if leave is not None:
                self._stack.callback(leave, metadata)

    def leave(self) -> None:
        """Tell them that it ends."""
        self._stack.close()


def enter(name: str, is_launch: bool, stream: int) -> Observation:
    """Begin the range of a program, or of the launch of a kernel."""
    observation = Observation()
    try:
        observation.begin(name, is_launch=is_launch, stream=stream)
    except BaseException:
        observation.leave()
        raise
    return observation


def launch_hooks() -> tuple[Callable[[LaunchMetadata], None] | None, Callable[[LaunchMetadata], None] | None]:
    """Triton's hooks before and after a launch, where Triton is loaded."""
    knobs: Any = sys.modules.get("triton.knobs")
    if knobs is None:
        return None, None
    return knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
