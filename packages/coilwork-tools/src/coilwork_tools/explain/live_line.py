"""A line on the terminal that says what is being compiled, after two seconds of it, and goes when it is done.

It needs rich. It is for people who wait: there is none where standard error is no terminal, and none where
the variable CI is set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

# Seconds: whoever waits for less wonders about nothing.
PATIENCE_S: Final = 2.0
# Seconds: between two stages torch traces, and between two graphs the program runs.
IDLE_S: Final = 1.0
PERIOD_S: Final = 0.1


def is_watched() -> bool:
    """Tell if standard error is a terminal with somebody at it."""
    # a program may have closed or replaced it
    stream = sys.stderr
    if stream is None or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class LiveLine:
    """Shows what `describe` says until `measure_idle` is `IDLE_S` seconds."""

    def __init__(self, describe: Callable[[], str], measure_idle: Callable[[], float]) -> None:
        self._describe = describe
        self._measure_idle = measure_idle

    def run(self) -> None:
        """Show it. To be called in a thread of its own."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < PATIENCE_S:
            time.sleep(PERIOD_S)
            if self._measure_idle() > IDLE_S:
                return
        try:
            # no small import, and an extra
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text
        except ImportError:
            return
        console = Console(stderr=True)
        # what the program itself prints goes where it always goes
        shown = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with shown:
            while self._measure_idle() <= IDLE_S:
                seconds = time.monotonic() - begun_s
                text = f"coilwork: {self._describe()} ({seconds:.0f} s)"
                shown.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
                time.sleep(PERIOD_S)
