"""What Dynamo captured, in eager mode, in the stead of the compiled program for calls that this
is not for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import fx

from coilwork_frontend.random_state import random_state, restore

log = logging.getLogger("coilwork")


class CapturedGraph:
    """A captured `graph`, which runs for `reason`: told in the log the first time."""

    def __init__(self, graph: fx.GraphModule, reason: str) -> None:
        self._graph = graph
        self._reason = reason
        self._announced = False

    def run(self, *args: Any) -> Any:
        """Return what eager returns or raises."""
        return self._graph.forward(*args)  # a call of the module would print where an error is raised

    def announce(self) -> None:
        """Tell that the graph runs, and why."""
        if not self._announced:
            self._announced = True
            log.warning("%s: the captured graph runs, in eager mode", self._reason)


class WithCaptured:
    """A compiled program, and the captured graph for calls of which the program finds out that it is not for
    them.

    Such a call must have overwritten no input; random numbers are drawn anew, where there are some
    (`random`). If the captured graph may say something else than the user's program (not `faithful`), its
    error is raised if there is one, and else the compiled program's own.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        captured: CapturedGraph,
        *,
        is_failure: Callable[[Exception], bool],
        random: bool,
        faithful: bool = True,
    ) -> None:
        """`is_failure`: tells if an error of the program says that a call is not for it."""
        self._compiled = compiled
        self._captured = captured
        self._is_failure = is_failure
        self._random = random
        self._faithful = faithful

    def __call__(self, *args: Any) -> Any:
        numbers = random_state() if self._random else None
        failure: Exception | None = None
        try:
            return self._compiled(*args)
        # others are raised again
        except Exception as error:
            if not self._is_failure(error):
                raise
            if not self._faithful:
                failure = error
        if numbers is not None:
            restore(numbers)
        results = self._captured.run(*args)
        if failure is not None:
            raise failure
        self._captured.announce()
        return results
