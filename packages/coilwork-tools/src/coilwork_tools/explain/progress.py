"""Tell what a process compiles right now: to callbacks, to the log, and to who sits at a terminal.

`on_progress` is for users. Compilers open a `ProgressReporter` for each graph: it tells of the graph's stages
and kernels, and of its end. All of a process's reporters share one `ProgressBoard`.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, TypeAlias

from coilwork_runtime.threads import ForkedLock
from coilwork_tools.explain.live_line import LiveLine, is_watched

log = logging.getLogger("coilwork")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """One step of a compilation.

    Attributes:
        graph: short name of the graph, the same in every process; its role stands first.
        event: a stage begins; a kernel is ready; or the graph is.
        stage: the stage that the graph is in, as in its report; empty at the end.
        built: kernels that are ready.
        total: kernels that the graph has; 0 as long as that is not known.
        found: those among the ready ones that the cache had.
        cache_hit: the cache had the whole graph. Known at the end.
        seconds: since the graph's first stage began.
    """

    graph: str
    event: Literal["stage", "kernels", "done"]
    stage: str = ""
    built: int = 0
    total: int = 0
    found: int = 0
    cache_hit: bool = False
    seconds: float = 0.0


Listener: TypeAlias = Callable[[ProgressEvent], object]


class Subscription:
    """Ends with `stop`, or with the block that it is entered for."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def on_progress(callback: Listener) -> Subscription:
    """Call `callback` with a `ProgressEvent` at each step of whatever this process compiles, until the result
    is stopped:

        with coilwork.on_progress(print):
            compiled(x)

    It is called in the threads that compile, which wait for it. One that raises is logged and not called
    again.
    """
    return find_board().subscribe(callback)


class ProgressReporter:
    """Tells of one graph. With `is_shown`, a terminal shows it, too."""

    def __init__(self, graph: str, *, is_shown: bool = False) -> None:
        self._last = ProgressEvent(graph=graph, event="stage")
        self._is_shown = is_shown
        self._begun_s = time.monotonic()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Tell that stage `name` begins; while it is entered, the graph is being compiled."""
        board = find_board()
        self._tell(replace(self._last, event="stage", stage=name))
        board.begin(self._last.graph, is_shown=self._is_shown)
        try:
            yield
        finally:
            board.end(self._last.graph)

    def count_kernels(self, built: int, total: int, compiled: int) -> None:
        """Tell how many kernels are ready, of how many; `compiled` of them were not in the cache."""
        found = max(0, built - compiled)
        log.debug("graph %s: %d of %d kernels ready, %d found", self._last.graph, built, total, found)
        self._tell(replace(self._last, event="kernels", built=built, total=total, found=found))

    def finish(self, *, cache_hit: bool) -> None:
        """Tell that the graph is ready."""
        self._tell(replace(self._last, event="done", stage="", cache_hit=cache_hit))

    def _tell(self, event: ProgressEvent) -> None:
        self._last = replace(event, seconds=time.monotonic() - self._begun_s)
        find_board().tell(self._last)


class ProgressBoard:
    """The graphs that a process compiles, who is told of them, and the line on the terminal."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        self._listeners: tuple[Listener, ...] = ()
        self._latest: dict[str, ProgressEvent] = {}
        self._depths: dict[str, int] = {}
        self._process = os.getpid()
        self._idle_since_s = time.monotonic()
        self._line: threading.Thread | None = None

    def subscribe(self, listener: Listener) -> Subscription:
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return Subscription(functools.partial(self._forget, listener))

    def tell(self, event: ProgressEvent) -> None:
        """Remember `event` and hand it to the listeners."""
        with self._lock:
            if event.event == "done":
                self._latest.pop(event.graph, None)
            else:
                self._latest[event.graph] = event
        for listener in self._listeners:
            try:
                listener(event)
            # a user's function may raise anything, and compiling goes on
            except Exception:
                log.warning("a callback of on_progress failed and is not called again", exc_info=True)
                self._forget(listener)

    def begin(self, graph: str, *, is_shown: bool) -> None:
        """A stage of `graph` begins."""
        with self._lock:
            if self._process != os.getpid():
                # the parent's graphs, and its thread
                self._process, self._depths, self._latest, self._line = os.getpid(), {}, {}, None
            self._depths[graph] = self._depths.get(graph, 0) + 1
            is_new = is_shown and (self._line is None or not self._line.is_alive())
            if is_new and is_watched():
                line = LiveLine(self.describe, self.measure_idle)
                self._line = threading.Thread(target=line.run, name="coilwork-progress", daemon=True)
                try:
                    self._line.start()
                except RuntimeError:
                    # the interpreter is shutting down
                    self._line = None

    def end(self, graph: str) -> None:
        """A stage of `graph` has ended."""
        with self._lock:
            depth = self._depths.pop(graph, 1) - 1
            if depth > 0:
                self._depths[graph] = depth
            self._idle_since_s = time.monotonic()

    def measure_idle(self) -> float:
        """Seconds since nothing is compiled; 0 while something is."""
        with self._lock:
            return 0.0 if self._depths else time.monotonic() - self._idle_since_s

    def describe(self) -> str:
        """Say in a line what is going on."""
        with self._lock:
            events = [self._latest[graph] for graph in self._depths if graph in self._latest]
        if not events:
            return "tracing"
        last = events[-1]
        parts = [f"{last.stage} of {last.graph}"]
        total = sum(one.total for one in events)
        if total:
            parts.append(f"{sum(one.built for one in events)} of {total} kernels")
        found = sum(one.found for one in events)
        if found:
            parts.append(f"{found} from the cache")
        if len(events) > 1:
            parts.append(f"{len(events)} graphs at once")
        return ", ".join(parts)

    def _forget(self, listener: Listener) -> None:
        with self._lock:
            left = list(self._listeners)
            if listener in left:
                left.remove(listener)
            self._listeners = tuple(left)


@functools.cache
def find_board() -> ProgressBoard:
    """Return the board of this process."""
    return ProgressBoard()
